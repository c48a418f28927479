"""What all budgeted learners share: a compiled rule over a store of support vectors."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import numpy as np

from streamsvm.budget import Refusal, Strategy
from streamsvm.budget.dispatch import upkeep_for
from streamsvm.checks import check_number, check_one_of, random_state
from streamsvm.frames import Batch
from streamsvm.kernels import KERNELS, LARGEST_GAMMA
from streamsvm.learners.compiled import iterates, step
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.memory.features import OVERFLOW, FeatureSpace
from streamsvm.memory.support_vectors import SupportVectorStore

__all__ = ["BudgetedEstimator"]


class BudgetedEstimator(OnlineEstimator):
    """A model that is a store of support vectors, and a compiled rule that learns it row by row.

    A learner's file gives the parameters and names the rule; this class hands rows to it. What a target is, the classes below
    this one say.

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

    #: The compiled rule, as `compiled.step` describes it.
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
        strategy: Strategy | None,
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
            budget, max_features, outputs=2 * outputs, gram=gram or (strategy is not None and strategy.needs_gram), window=window
        )
        self._outputs = 1
        self._capped = isinstance(strategy, Refusal)
        self._strategy = strategy or Refusal()
        self._store.live = 2  # rows of coefficients: of the last iterate and of the average
        self._features = FeatureSpace(max_features, overflow)
        # What is read for every row is looked up once.
        self._block = self._store.block
        self._row = self._store.views.rows[0]
        self._scores = self._store.views.scores
        self._upkeep: np.ndarray | None = None
        self._open_state(self._rule.STATE, averaging)
        header, common = self._store.views.header, self._common
        header["kernel"], header["degree"], header["coef0"] = KERNELS[kernel], degree, coef0
        header["gamma"] = 1.0 if gamma == "scale" else gamma
        common["gamma_rows"] = 0 if gamma == "scale" else -1
        common["random"] = random_state(seed)

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
        if status != step.LEARNED:
            if kept is not None:
                store.restore(kept, own=True)
            self._forget(store.used if known < 0 else known, before)
            if status == step.REFUSED:
                self._features.complain_not_finite(x)
            self._refuse()

    def _ready(self) -> np.ndarray:
        # What keeps the budget is compiled when there is something to learn.
        if self._upkeep is None:
            self._upkeep = upkeep_for(self._strategy, self._outputs > 1)
        return self._upkeep

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"{type(self).__name__} knows no budget maintenance and has {self.budget} support vectors, the most that it was made "
            "for. Give it a larger budget, or take a learner that keeps one"
        )

    def _forget(self, n_features: int, outputs: int) -> None:
        super()._forget(n_features, outputs)
        if outputs != self._outputs:
            self._resize(outputs)

    def _resize(self, outputs: int) -> None:
        # Go on with so many outputs. A class whose models have more than one makes the decisions stay the same.
        self._outputs, self._upkeep = outputs, None
        self._store.live = 2 * outputs

    def _decide_row(self, x: Mapping[Hashable, Any], what: int) -> float:
        self._features.fill(self._row, x, False)
        f: float = step.decide(self._block, what)
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

    def _first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        apart = len(np.unique(columns)) == len(columns) and (columns >= 0).all()
        return int(step.first_refused(self._block, matrix, columns, bool(apart)))

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        step.decide_many(self._block, matrix, columns, what, decisions)

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

    def _coefficients_of(self, output: str) -> np.ndarray:
        c, rows, what = self._common[0], self._store.coefficients, self._output(output)
        u, v = rows[::2], rows[1::2]
        if what == iterates.AVERAGE or (what == iterates.CHOSEN and self.averaged):
            return c["average_v"] * v + c["average_u"] * u
        return c["scale"] * u

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._outputs, self._upkeep = self._store.live // 2, None
        if self._outputs < 1 or self._store.live % 2:
            raise ValueError(f"the model was kept with {self._store.live} rows of coefficients, two an output are needed")

    def _fixed(self) -> dict[str, Any]:
        header = self._store.views.header[0]
        given = {} if self.gamma == "scale" else {"gamma": self.effective_gamma}
        return {"kernel": header["kernel"], "degree": header["degree"], "coef0": header["coef0"], **given}

    @property
    def _more_ranges(self) -> dict[str, tuple[float, float]]:
        return {"gamma_rows": (0, step.GAMMA_ROWS) if self.gamma == "scale" else (-1, -1)}


def _runs(outputs: np.ndarray) -> list[tuple[slice, int]]:
    # Runs of rows that ask for the same number of outputs.
    if not len(outputs):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(outputs)) + 1).tolist(), len(outputs)]
    return [(slice(start, stop), int(outputs[start])) for start, stop in itertools.pairwise(cuts)]
