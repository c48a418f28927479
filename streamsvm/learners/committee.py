"""The base of committees: experts of several kinds in one block, which learn the same rows, and are combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

import numpy as np

from streamsvm.core.checks import parameter, random_state
from streamsvm.core.memory.committee import CommitteeStore
from streamsvm.core.memory.features import OVERFLOW
from streamsvm.core.options import OutputName, Overflow
from streamsvm.core.steps import committee, kinds, least_squares, newton, second_order
from streamsvm.core.steps.iterates import LEARNED
from streamsvm.core.steps.rule import REFUSED, Rule
from streamsvm.core.steps.stack import FIRST_INPUT
from streamsvm.learners import normal_equations
from streamsvm.learners.estimator import OnlineEstimator, check_record, learner
from streamsvm.learners.experts import EXPERTS, Expert, begin, get_ready, states
from streamsvm.learners.scale import ScaleInUse

__all__ = ["Committee", "ExpertReport"]

_LEARNED = {
    "choice": (0, 2),
    "last": (-1, 2**31),
    "last_target": (-8.0, 8.0),
    "functions": (0, 4),
    "resets": (0, 2**62),
    "rows": (0.0, 1e100),
}


class ExpertReport(NamedTuple):
    """One entry of a committee's ``experts``: an output of an expert, its recent error and its weight."""

    name: str
    output: str
    """``"last"`` iterate or ``"average"``."""
    error: float
    """Its prequential error over the last 1,000 rows or so: the share of wrong labels, or the mean absolute error."""
    weight: float
    """Of its decision value in the stacks."""


@learner
class Committee(OnlineEstimator):
    """A model that is a committee of experts, and the rule of `streamsvm.core.steps.committee`."""

    effort: Literal["low", "normal", "high"] = parameter(default="normal", choices=EXPERTS, kw_only=False)
    scaling: Literal["auto"] | None = parameter(default="auto", choices=("auto", None))
    max_features: int = 256
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW)
    seed: int | None = None

    #: The row at hand in the store, float32 [max_features].
    _row: np.ndarray = field(init=False)
    #: Whether the experts are compiled, and what maintains their budgets: not before the first row, and one that may exceed them.
    _connected: bool = field(init=False)
    _ready: bool = field(init=False)

    _rule = Rule(committee.learn_one, committee.learn_many, kinds.STATE, _LEARNED)
    _has_targets = False
    #: The experts by effort.
    _experts: ClassVar[Mapping[str, tuple[Expert, ...]]]
    #: The compiled modules that combine them: what answers, and the stacks.
    _answers: ClassVar[Any]
    _stack: ClassVar[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        v = self._store.views
        self._row, self._connected, self._ready = v.rows[0], False, False
        self._own["scaling"], self._own["last"] = self.scaling == "auto", -1
        seed = random_state(self.seed)
        for number, (expert, stores) in enumerate(zip(self._team, self._store.stores, strict=True)):
            v.widths[number] = expert.width
            for store in stores:
                begin(expert, store, number, seed, self._loss)
        for curvature, inverse, ridge, weights in zip(v.curvatures, v.inverses, self._stack.RIDGES, v.weights, strict=True):
            newton.start(curvature, inverse, ridge)
            self._stack.first_weights(weights)
        newton.start(v.newton_curvatures, v.newton_inverses, second_order.NEWTON_RIDGE)

    def _make_store(self) -> CommitteeStore:
        return CommitteeStore([expert.place for expert in self._team], self.max_features, self._most_outputs, self._has_targets)

    @property
    def _most_outputs(self) -> int:
        return 1

    @property
    def _team(self) -> tuple[Expert, ...]:
        return self._experts[self.effort]

    # Rows -----------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:
        store, known = self._store, self._store.used
        try:
            if self._features.fill(self._row, x, True):
                store.used = len(self._features)
            refused = outputs != self._outputs and committee.refused(self._block)
            if not refused:
                if outputs != self._outputs:
                    self._resize(outputs)
                self._get_ready(1)
        except BaseException:  # an interrupt as well
            self._outputs = int(self._store.views.header[0]["live"])
            self._forget(known, self._outputs)
            raise
        if refused or committee.learn_one(self._block, target, weight) == REFUSED:
            self._forget(known, self._outputs)
            self._features.complain_not_finite(x)

    def _decide_row(self, x: Mapping[Any, Any], what: int) -> float:
        self._features.fill(self._row, x, False)
        if not self._connected:
            self._connect()
        f: float = committee.decide(self._block, what)
        if f != f:
            self._features.complain_not_finite(x)
        return f

    def _first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        return int(committee.first_refused(self._block, matrix, columns))

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        self._connect()
        committee.decide_many(self._block, matrix, columns, what, decisions)

    def _connect(self) -> None:
        committee.connect(self._store, {expert.kind for expert in self._team}, self._answers)
        self._connected = True

    def _get_ready(self, rows: int) -> None:
        if not self._connected:
            self._connect()
        if self._ready:
            return
        team = zip(self._team, self._store.stores, strict=True)
        budgeted = [(expert.budget, stores[0]) for expert, stores in team if expert.place.budget]
        if self.n_learned + rows > min(budget for budget, _ in budgeted):
            for _, store in budgeted:
                get_ready(store, self._outputs > 1)
            self._ready = True

    def _output(self, name: OutputName) -> int:
        if name != "auto":
            raise ValueError(f"output must be 'auto': {type(self).__name__} combines the last and the average iterates")
        return super()._output(name)

    # What the model is ----------------------------------------------------------------------------------------------------

    @property
    def experts(self) -> list[ExpertReport]:
        """The outputs of each expert, with the error and the weight that each has now.

        Each entry has a ``name``, an ``output`` (``"last"`` or ``"average"`` iterate), the ``error`` over the last 1,000 rows
        or so (the fraction of wrong labels, or the mean absolute error) and the ``weight`` of its decision value in the stacks.
        """
        v, unit = self._store.views, self._unit_of_errors
        names = [(expert.name, output) for expert in self._team for output in expert.outputs]
        shares = np.exp(self._stack.RATE * (v.losses.min() - v.losses))
        weights = shares @ v.weights / shares.sum()
        return [ExpertReport(*name, unit * float(v.errors[m]), float(weights[m])) for m, name in enumerate(names, FIRST_INPUT)]

    def merge_with(self, *others: Any, **units: Any) -> NoReturn:  # noqa: ARG002
        """Refuse to merge with other models: committees cannot do what `BSGDClassifier.merge_with` does.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            f"models of {type(self).__name__} cannot be merged: the stack of each is fitted to the decision values of its own "
            "experts, and no rows are left to fit another one. Learn with BSGDClassifier or BSCAClassifier, their regressors, or "
            "a linear learner"
        )

    @property
    def _unit_of_errors(self) -> float:
        return 1.0

    @property
    def scale_in_use(self) -> ScaleInUse | None:
        """The location and spread of each feature by which rows are scaled now; None without scaling."""
        if self.scaling is None:
            return None
        v, used = self._store.views, self._store.used
        return ScaleInUse(v.location[:used].copy(), v.spread[:used].copy())

    @property
    def follows(self) -> str:
        """What predictions follow now: ``"stacks"``, ``"votes"`` or ``"best"``, the best expert."""
        return ("stacks", "votes", "best")[int(self._own[0]["choice"])]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._outputs, self._ready = int(self._store.views.header[0]["live"]), False

    def _check_experts(self) -> None:
        # Raise a ValueError where experts that come from a file do not fit the parameters.
        fresh = type(self)(**self._get_params())
        for expert, stores, others in zip(self._team, self._store.stores, fresh._store.stores, strict=True):
            for store, other in zip(stores, others, strict=True):
                self._check_expert(expert, store, other)

    def _check_expert(self, expert: Expert, store: Any, fresh: Any) -> None:
        learned = {**LEARNED, **least_squares.LEARNED} if expert.kind == kinds.LANDMARKS else LEARNED
        for record, other in zip(states(store, expert.kind), states(fresh, expert.kind), strict=True):
            check_record(record[0], other[0], learned)
        if expert.place.budget or expert.place.landmarks:
            header, other = store.views.header[0], fresh.views.header[0]
            live = 2 * self._outputs if expert.place.budget else self._outputs
            for name, value in (("live", live), *((name, other[name]) for name in ("kernel", "degree", "coef0"))):
                if header[name] != value:
                    raise ValueError(f"the saved model is corrupt: {name} of an expert is {header[name]}, not {value}")
        if expert.kind == kinds.LANDMARKS:
            normal_equations.check_work(store, states(store, expert.kind)[1][0])

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 20, "effort": "low"}
        yield {"max_features": 20}
