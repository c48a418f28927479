"""What all budgeted learners share: rows, frames and kept models, between river's protocol and a compiled rule over a store."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from river import base

from streamsvm.budget import Maintenance, Projection, Refusal
from streamsvm.budget.maintenance import REFUSAL
from streamsvm.budget.upkeep import upkeep_for
from streamsvm.features import OVERFLOW, FeatureSpace
from streamsvm.kernels import KERNELS, LARGEST_GAMMA
from streamsvm.learners import _online
from streamsvm.learners._inputs import Batch, as_matrix, check_number, check_one_of, random_state
from streamsvm.learners._kept import COMMON_RANGES, check_fields
from streamsvm.store import STATE_BEGIN, STATE_END, SupportVectorStore

__all__ = ["BudgetedEstimator"]

_OUTPUTS = {"auto": _online.CHOSEN, "last": _online.LAST, "average": _online.AVERAGE}


class BudgetedEstimator(base.Estimator):
    """A model that is a store of support vectors, and a compiled rule that learns it row by row.

    A learner's file gives the parameters and names the rule; this class turns feature dicts and frames into what that takes, and
    checks them: input that is refused leaves the model as it was. What a target is, the classes below this one say.

    A model is for one thread at a time, even to predict: the row at hand is laid out inside its store.

    Parameters
    ----------
    strategy
        What keeps the model within its budget; None where the rule does so itself.
    outputs
        Decision values that a row has, at most; a model begins with one.
    gram
        Whether the rule needs room for a Gram matrix.
    window
        Rows that the rule keeps to learn them again.

    The others are those of the learners.
    """

    #: The compiled rule, as `_online` describes it.
    _rule: ClassVar[ModuleType]

    def __init__(
        self,
        budget: int,
        kernel: str,
        gamma: float | str,
        degree: int,
        coef0: float,
        max_features: int,
        overflow: str,
        *,
        strategy: Maintenance | None,
        averaging: int = 0,
        seed: int | None = None,
        outputs: int = 1,
        gram: bool = False,
        window: int = 0,
    ) -> None:
        self.budget = budget
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.max_features = max_features
        self.overflow = overflow
        check_one_of("kernel", kernel, KERNELS)
        if gamma != "scale":
            if isinstance(gamma, str):
                raise ValueError(f"gamma must be 'scale' or a number above 0, not {gamma!r}")
            check_number("gamma", gamma, 0.0, high=LARGEST_GAMMA)
        check_number("averaging", averaging, 0, inclusive=True, high=2**53, integer=True)
        check_number("degree", degree, 1, inclusive=True, high=100, integer=True)
        # Below 0 the polynomial is no kernel: there is no space whose products it gives.
        check_number("coef0", coef0, 0.0 if kernel == "poly" else -1e6, inclusive=True, high=1e6)
        check_one_of("overflow", overflow, OVERFLOW)
        self._store = SupportVectorStore(
            budget, max_features, outputs=2 * outputs, gram=gram or isinstance(strategy, Projection), window=window
        )
        self._outputs = 1
        self._capped = isinstance(strategy, Refusal)
        self._store.live = 2  # rows of coefficients: of the last iterate and of the average
        self._features = FeatureSpace(max_features, overflow)
        # What is read for every row is looked up once.
        self._block = self._store.block
        self._row = self._store.views.rows[0]
        self._scores = self._store.views.scores
        self._upkeep: np.ndarray | None = None
        state = self._block[STATE_BEGIN:STATE_END]
        at = _online.OWN_BEGIN - STATE_BEGIN
        self._common = state[:at].view(_online.COMMON)
        own = self._rule.STATE
        self._own = state[at : at + own.itemsize].view(own) if own.names else np.zeros(1, own)
        header, common = self._store.views.header, self._common
        header["kernel"], header["degree"], header["coef0"] = KERNELS[kernel], degree, coef0
        header["gamma"] = 1.0 if gamma == "scale" else gamma
        common["gamma_rows"] = 0 if gamma == "scale" else -1
        common["scale"] = common["average_v"] = 1.0
        common["maintenance"] = REFUSAL if strategy is None else strategy.code
        common["horizon"], common["random"] = averaging, random_state(seed)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_own" in self.__dict__ and name in _parameters(type(self)):
            raise AttributeError(f"{name} is fixed when a model is made: model.clone({{{name!r}: ...}}) makes another")
        super().__setattr__(name, value)

    # One row --------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Hashable, Any], target: float, weight: float, outputs: int = 1) -> None:
        store, before, known = self._store, self._outputs, -1
        try:
            if self._features.fill(self._row, x, True):
                known = store.used
                store.used = len(self._features)
            if outputs != before:
                self._resize(outputs)
            kept = store.snapshot() if self._capped and self.n_support == self.budget else None
            upkeep = self._upkeep
            if upkeep is None:
                upkeep = self._ready()
        except BaseException:  # an interrupt as well
            self._forget(store.used if known < 0 else known, before)
            raise
        status = self._rule.learn_one(self._block, upkeep, target, weight)
        if status != _online.LEARNED:
            if kept is not None:
                store.restore(kept, own=True)
            self._forget(store.used if known < 0 else known, before)
            if status == _online.REFUSED:
                self._features.complain_not_finite(x)
            self._refuse()

    def _ready(self) -> np.ndarray:
        # What keeps the budget is compiled when there is something to learn.
        if self._upkeep is None:
            self._upkeep = upkeep_for(int(self._common["maintenance"][0]), self._outputs > 1)
        return self._upkeep

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"{type(self).__name__} knows no budget maintenance and has {self.budget} support vectors, the most that it was made "
            "for. Give it a larger budget, or take a learner that keeps one"
        )

    def _forget(self, n_features: int, outputs: int) -> None:
        # What a row that was refused had brought.
        self._features.forget(n_features)
        self._store.used = n_features
        if outputs != self._outputs:
            self._resize(outputs)

    def _resize(self, outputs: int) -> None:
        # Go on with so many outputs. A class whose models have more than one makes the decisions stay the same.
        self._outputs, self._upkeep = outputs, None
        self._store.live = 2 * outputs

    def _decide_row(self, x: Mapping[Hashable, Any], what: int) -> float:
        self._features.fill(self._row, x, False)
        f: float = _online.decide(self._block, what)
        if f != f:
            self._features.complain_not_finite(x)
        return f

    # Many rows --------------------------------------------------------------------------------------------------------------

    def _learn_batch(self, batch: Batch) -> None:
        with self._undoing():
            targets, outputs = self._targets(batch)
            columns = self._admit(batch)
            upkeep = self._ready()
            if self._capped:
                self._learn_all_or_none(batch, columns, targets)
                return
        try:
            for rows, n in _runs(outputs):
                if n != self._outputs:
                    self._resize(n)
                    upkeep = self._ready()
                X, y, w = batch.matrix[rows], targets[rows], batch.weights[rows]
                self._rule.learn_many(self._block, upkeep, X, columns, y, w)
        finally:
            if len(outputs) and self._outputs != outputs[-1]:  # an interrupt: the labels are known by now
                self._resize(int(outputs[-1]))

    def _learn_all_or_none(self, batch: Batch, columns: np.ndarray, targets: np.ndarray) -> None:
        # Without budget maintenance; such models have one output.
        kept = self._store.snapshot()
        try:
            if self._rule.learn_many(self._block, self._ready(), batch.matrix, columns, targets, batch.weights) < len(targets):
                self._refuse()
        except BaseException:
            self._store.restore(kept, own=True)
            raise

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Forget what a batch had brought, new names first of all, where it is refused or its admission interrupted."""
        n_features, n_outputs = self._store.used, self._outputs
        try:
            yield
        except BaseException:
            self._forget(n_features, n_outputs)
            raise

    def _targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """What compiled code takes for the labels or targets, float64 [n], and the outputs that each row needs, int64 [n]."""
        raise NotImplementedError

    def _admit(self, batch: Batch) -> np.ndarray:
        """The columns of a batch's features, int64 [features], once all of its rows can be learned."""
        features, matrix, names = self._features, batch.matrix, batch.names
        columns = features.columns_of(names, True) if len(matrix) else np.empty(0, np.int64)
        self._store.used = len(features)
        apart = len(np.unique(columns)) == len(columns) and (columns >= 0).all()
        row = _online.first_refused(self._block, matrix, columns, bool(apart))
        if row >= 0:
            self._complain_of(matrix[row], names, int(batch.numbers[row]))
        return columns

    def _decide_rows(self, X: Any, what: int) -> tuple[np.ndarray, Any]:
        """What `_online.decide_many` gives, and the frame that answers are made like (None for an array)."""
        matrix, names, like = as_matrix(X)
        decisions = np.empty((len(matrix), 1 if self._outputs == 1 else self._outputs + 1))
        _online.decide_many(self._block, matrix, self._features.columns_of(names, False), what, decisions)
        refused = np.flatnonzero(np.isnan(decisions[:, 0]))
        if len(refused):
            self._complain_of(matrix[refused[0]], names, int(refused[0]))
        return decisions, like

    def _complain_of(self, row: np.ndarray, names: list[Hashable], number: int) -> None:
        try:
            self._features.complain_not_finite(dict(zip(names, row.tolist(), strict=True)))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None

    # What the model is ------------------------------------------------------------------------------------------------------

    @property
    def n_support(self) -> int:
        """Support vectors that the model holds now, at most ``budget``."""
        return self._store.n_support

    @property
    def support_vectors(self) -> np.ndarray:
        """float32 [n_support, features seen]: a copy; columns in the order of `feature_names`."""
        return self._store.vectors

    @property
    def coefficients(self) -> np.ndarray:
        """float64 [outputs, n_support]: of what predictions follow. Three and more classes have an output each, others one."""
        return self._coefficients_of("auto")

    def _output(self, name: str) -> int:
        # What `_online.decide` is asked for by name. Without averaging, the average is the last iterate.
        check_one_of("output", name, _OUTPUTS)
        return _online.LAST if self._common["horizon"][0] == 0.0 else _OUTPUTS[name]

    def _coefficients_of(self, output: str) -> np.ndarray:
        c, rows, what = self._common[0], self._store.coefficients, self._output(output)
        u, v = rows[::2], rows[1::2]
        if what == _online.AVERAGE or (what == _online.CHOSEN and self.averaged):
            return c["average_v"] * v + c["average_u"] * u
        return c["scale"] * u

    @property
    def averaged(self) -> bool:
        """Whether predictions follow the average of the iterates now, or the last one."""
        return bool(_online.follows_average(self._block))

    @property
    def intercept(self) -> np.ndarray:
        """float64 [outputs]: the constants of what predictions follow; 0 where none is fitted."""
        return self._store.views.biases[int(self.averaged) : self._store.live : 2].copy()

    @property
    def effective_gamma(self) -> float:
        """The gamma in use: the one given, or what ``"scale"`` has found."""
        return float(self._store.views.header[0]["gamma"])

    @property
    def n_merges(self) -> int:
        """Merges so far."""
        return int(self._common[0]["n_merges"])

    @property
    def n_learned(self) -> int:
        """Rows learned so far (those of weight 0 do not count)."""
        return int(self._common[0]["t"])

    @property
    def feature_names(self) -> list[Hashable]:
        """The features seen, in the order of the columns of `support_vectors`."""
        return self._features.names

    @property
    def nbytes(self) -> int:
        """Bytes that the model takes: constant from construction. The formula is that of `SupportVectorStore.nbytes`."""
        return self._store.nbytes

    @property
    def _mutable_attributes(self) -> set[str]:
        return set()

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
        """A fresh model with the same parameters; see `river.base.Base.clone`.

        Raises
        ------
        ValueError
            Both other parameters and what was learned are asked for: a model of other sizes cannot hold it.
        """
        if new_params and include_attributes:
            raise ValueError("what was learned fits its own parameters only: leave out new_params or include_attributes")
        return copy.deepcopy(self) if include_attributes else super().clone(new_params)

    # A model is kept as plain values, which its constructor and the checks below put together again: whatever a file says,
    # nothing that compiled code relies on comes from it unseen.

    #: Fields of the rule's own state that learning changes, with the least and the largest value they can have. All others are
    #: what the parameters make them.
    _own_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        parameters = self._get_params()
        made = {*parameters, *_MADE_ANEW}
        return {
            "parameters": parameters,
            "store": self._store.snapshot(),
            "features": self.feature_names,
            "attributes": {name: value for name, value in self.__dict__.items() if name not in made},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["attributes"].items():  # those that a subclass or a user has added
            if hasattr(type(self), name):
                raise ValueError(f"the model was kept with an attribute {name!r}, which is not one that a model keeps")
            self.__dict__[name] = value
        self.__init__(**state["parameters"])  # type: ignore[misc]
        common, own, kernel = self._common[0].copy(), self._own[0].copy(), self._kernel()
        self._features.restore(state["features"])
        self._store.restore(state["store"])
        self._outputs, self._upkeep = self._store.live // 2, None
        if self._outputs < 1 or self._store.live % 2:
            raise ValueError(f"the model was kept with {self._store.live} rows of coefficients, two an output are needed")
        if len(self._features) != self._store.used:
            raise ValueError(f"the model has {len(self._features)} feature names for {self._store.used} columns")
        if self._kernel() != kernel:
            raise ValueError(f"the model was kept with the kernel {self._kernel()}, its parameters ask for {kernel}")
        if common["gamma_rows"] == -1 and self.effective_gamma != self.gamma:
            raise ValueError(f"the model was kept with gamma {self.effective_gamma}, its parameters ask for {self.gamma}")
        gamma_rows = (-1, -1) if common["gamma_rows"] == -1 else (0, _online.GAMMA_ROWS)
        check_fields(self._common[0], common, {**COMMON_RANGES, "gamma_rows": gamma_rows})
        check_fields(self._own[0], own, self._own_ranges)

    def _kernel(self) -> tuple[Any, ...]:
        header = self._store.views.header[0]
        return header["kernel"], header["degree"], header["coef0"]


#: Attributes that the constructor makes, and that a kept model holds as the values from which to make them.
_MADE_ANEW = (
    *("_store", "_features", "_labels", "_block", "_row", "_scores", "_upkeep", "_common", "_own"),
    *("_outputs", "_capped"),
)


def _runs(outputs: np.ndarray) -> list[tuple[slice, int]]:
    # Runs of rows that ask for the same number of outputs.
    if not len(outputs):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(outputs)) + 1).tolist(), len(outputs)]
    return [(slice(start, stop), int(outputs[start])) for start, stop in itertools.pairwise(cuts)]


@lru_cache
def _parameters(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind).parameters)
