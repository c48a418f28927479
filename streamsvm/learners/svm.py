"""A support vector machine without parameters to choose: a committee of learners."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal, NamedTuple

import numpy as np

from streamsvm._options import Overflow
from streamsvm.checks import parameter, random_state
from streamsvm.frames import Batch
from streamsvm.learners import normal_equations
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.compiled import committee, kinds, least_squares, newton, second_order, stack
from streamsvm.learners.compiled.iterates import LEARNED
from streamsvm.learners.compiled.rule import REFUSED, Rule
from streamsvm.learners.estimator import check_record, learner, runs
from streamsvm.learners.experts import BUDGET, EXPERTS, Expert, begin, get_ready, states
from streamsvm.memory.block import STATE_BEGIN
from streamsvm.memory.committee import CommitteeStore, committee_views
from streamsvm.memory.features import OVERFLOW
from streamsvm.memory.support_vectors import views
from streamsvm.memory.weights import weight_views

__all__ = ["SVMClassifier"]

_LEARNED = {
    "choice": (0, 2),
    "last": (-1, 2**31),
    "functions": (0, 4),
    "resets": (0, 2**62),
    "rows": (0.0, 1e100),
}


class ExpertReport(NamedTuple):
    """A line of `SVMClassifier.experts`."""

    name: str
    output: str
    """``"last"`` iterate or ``"average"``."""
    error: float
    """Its prequential error over the last 1,000 rows or so."""
    weight: float
    """Of its decision value in the stacks' log odds."""


@learner
class SVMClassifier(OnlineClassifier):
    """A support vector machine for any stream, with no parameters to choose.

    It is a committee. Its experts are budgeted kernel machines of several widths and C, linear learners of first and second
    order, a sum of functions of one feature each, machines that begin anew where the stream drifts, one that forgets steadily,
    the last label and, with the highest effort, least squares on kernel landmarks. The last and the averaged output of each, and
    the outcome of their votes, are the inputs of two logistic regressions, the stacks, which learn by Newton's method with fading
    memories. Predictions follow the stacks, the votes or the best expert, whichever has made fewer errors over the last 1,000
    rows.

    Parameters
    ----------
    effort
        Which experts there are: ``"low"``, ``"normal"`` or ``"high"``. See Notes.
    scaling
        ``"auto"``: rows are learned as deviations from the running mean of each feature, in running standard deviations, and
        bounded to 8 of these: no scaler need stand before the model. None: rows are learned as they are.
    max_classes
        Labels that there is room for.
    max_features
        Feature names that there is room for.
    overflow
        What happens to further names: ``"raise"``, ``"hash"`` them into the columns there are, or ``"ignore"`` them.
    class_weight
        As in `BSGDClassifier`.
    seed
        Of the random choices.

    Attributes
    ----------
    experts : list of ExpertReport
    n_learned, nbytes : int

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Notes
    -----
    A row costs about as much as in each of the kernel machines, of 150 support vectors each. Predicting and learning a row of 10
    features takes some 5 microseconds with ``"low"`` (two kernel machines, three learners in the features), 14 with ``"normal"``
    (seven, and five), and 25 with ``"high"`` (those, and least squares on 300, 100 and 100 landmarks). The experts of second
    order take the first 64 features, as their matrices grow with the square of these; up to 16 features, the sum of functions has
    4 of each (piecewise linear ones, bent at .8 deviations from the mean), up to 32 it has 2, and beyond it is linear.

    References
    ----------
    [^1]: Qaadan et al. (2019), as of `BSCAClassifier`, for the kernel machines.
    [^2]: Wolpert, D. (1992). Stacked generalization. Neural Networks 5.
    [^3]: Hastie, T., Tibshirani, R. (1986). Generalized additive models. Statistical Science 1 (the sum of functions).
    [^4]: Littlestone, N., Warmuth, M. (1994). The weighted majority algorithm. Information and Computation 108 (the votes).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import SVMClassifier

    >>> evaluate.progressive_val_score(datasets.Phishing(), SVMClassifier(seed=0), metrics.Accuracy())
    Accuracy: 91.19%
    """

    effort: Literal["low", "normal", "high"] = parameter(default="normal", choices=EXPERTS, kw_only=False)
    scaling: Literal["auto"] | None = parameter(default="auto", choices=("auto", None))
    max_classes: int = 10
    max_features: int = 256
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW)
    seed: int | None = None

    _row: np.ndarray = field(init=False)
    #: Whether the experts are compiled, and what maintains their budgets: not before the first row, and one that may exceed them.
    _connected: bool = field(init=False)
    _ready: bool = field(init=False)

    _rule = Rule(committee.learn_one, committee.learn_many, kinds.STATE, _LEARNED)

    def __post_init__(self) -> None:
        super().__post_init__()
        v = self._store.views
        self._row, self._scores, self._connected, self._ready = v.rows[0], v.scores, False, False
        self._own["scaling"], self._own["last"] = self.scaling == "auto", -1
        seed = random_state(self.seed)
        for number, (expert, stores) in enumerate(zip(self._team, self._store.stores, strict=True)):
            v.widths[number] = expert.width
            for store in stores:
                begin(expert, store, number, seed)
        for curvature, inverse, ridge, weights in zip(v.curvatures, v.inverses, stack.RIDGES, v.weights, strict=True):
            newton.start(curvature, inverse, ridge)
            stack.first_weights(weights)
        newton.start(v.newton_curvatures, v.newton_inverses, second_order.NEWTON_RIDGE)

    def _make_store(self) -> CommitteeStore:
        return CommitteeStore(
            [expert.place for expert in self._team], self.max_features, self.max_classes if self._multiclass else 1
        )

    @property
    def _team(self) -> tuple[Expert, ...]:
        return EXPERTS[self.effort]

    # Rows -----------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Hashable, Any], target: float, weight: float, outputs: int = 1) -> None:
        store, known = self._store, self._store.used
        try:
            if self._features.fill(self._row, x, True):
                store.used = len(self._features)
            refused = outputs != self._outputs and committee.refused(self._block)
            if not refused:
                self._resize(outputs)
                self._get_ready(1)
        except BaseException:  # an interrupt as well
            self._forget(known, self._outputs)
            raise
        if refused or committee.learn_one(self._block, target, weight) == REFUSED:
            self._forget(known, self._outputs)
            self._features.complain_not_finite(x)

    def _decide_row(self, x: Mapping[Hashable, Any], what: int) -> float:
        self._features.fill(self._row, x, False)
        if not self._connected:
            self._connect()
        f: float = committee.decide(self._block, what)
        if f != f:
            self._features.complain_not_finite(x)
        return f

    def _learn_batch(self, batch: Batch) -> None:
        with self._undoing():
            targets, outputs = self._targets(batch)
            columns = self._admit(batch)
            self._get_ready(len(batch.matrix))
        try:
            for rows, n in runs(outputs):
                self._resize(n)
                self._get_ready(len(batch.matrix))
                committee.learn_many(self._block, batch.matrix[rows], columns, targets[rows], batch.weights[rows])
        finally:
            if len(outputs):  # after an interrupt, too, the labels are known
                self._resize(int(outputs[-1]))

    def _first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        return int(committee.first_refused(self._block, matrix, columns))

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        self._connect()
        committee.decide_many(self._block, matrix, columns, what, decisions)

    def _connect(self) -> None:
        committee.connect(self._store, {expert.kind for expert in self._team})
        self._connected = True

    def _get_ready(self, rows: int) -> None:
        if not self._connected:
            self._connect()
        if not self._ready and self.n_learned + rows > BUDGET:
            for expert, stores in zip(self._team, self._store.stores, strict=True):
                if expert.place.budget:
                    get_ready(stores[0], self._outputs > 1)
            self._ready = True

    def _resize(self, outputs: int) -> None:
        # Go on with so many outputs: one output f becomes two, f / 2 of the positive label and -f / 2 of the negative one. In a
        # copy, which then takes the place of the block as a whole: an interrupt leaves it as it was.
        if outputs == self._outputs:
            return
        self._ready = False
        block = self._block.copy()
        v = committee_views(block)
        if self._outputs == 1:
            positive, negative = (0, 1) if self._labels.positive_comes_first else (1, 0)
            weights = v.newton_weights
            half = 0.5 * weights[:, 0]
            weights[:, positive], weights[:, negative] = half, -half
            v.counts[negative], v.counts[positive] = max(self._own["rows"][0] - v.counts[0], 0.0), v.counts[0]
            last = self._own["last"][0]
            if last >= 0:
                block_own = block[self._own_bytes].view(kinds.STATE)
                block_own["last"] = positive if last == 1 else negative
        for kind, begin_at, size, _, _ in v.experts:
            if size and kind == kinds.LINEAR:
                if self._outputs == 1:
                    parts = [block[begin_at + k * size : begin_at + (k + 1) * size] for k in (0, 1)]
                    parts[1][:] = parts[0]
                    w = weight_views(parts[negative])
                    for numbers in (w.weights, w.biases):
                        np.negative(numbers, out=numbers)
            elif size and kind == kinds.LANDMARKS:
                normal_equations.widen(
                    block[begin_at : begin_at + size], self._outputs, outputs, positive if self._outputs == 1 else 0
                )
            elif size:
                _widen(views(block[begin_at : begin_at + size]), self._outputs, outputs, positive if self._outputs == 1 else 0)
        v.header[0]["live"] = outputs
        v.cache[0] = 0
        self._block[:] = block
        self._outputs = outputs

    @property
    def _own_bytes(self) -> slice:
        begin_at = STATE_BEGIN + self._common.itemsize
        return slice(begin_at, begin_at + self._own.itemsize)

    # What the model is ----------------------------------------------------------------------------------------------------

    @property
    def experts(self) -> list[ExpertReport]:
        """The outputs of each expert, with the error and the weight that each has now."""
        v = self._store.views
        names = [(expert.name, output) for expert in self._team for output in expert.outputs]
        shares = np.exp(v.losses.min() - v.losses)
        weights = shares @ v.weights / shares.sum()
        return [ExpertReport(*name, float(v.errors[m]), float(weights[m])) for m, name in enumerate(names, stack.FIRST_INPUT)]

    @property
    def follows(self) -> str:
        """The source of predictions now: ``"stacks"``, ``"votes"`` or ``"best"``, one expert."""
        return ("stacks", "votes", "best")[int(self._own[0]["choice"])]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        live = int(self._store.views.header[0]["live"])
        self._outputs, self._ready = live, False
        if live != self._labels.outputs:
            raise ValueError(f"the saved model is corrupt: {len(self.labels)} labels for {live} outputs")
        if self._own[0]["last"] >= max(live, 2):
            raise ValueError(f"the saved model is corrupt: its last label is number {self._own[0]['last']} of {max(live, 2)}")
        fresh = type(self)(**state["parameters"])
        for expert, stores, others in zip(self._team, self._store.stores, fresh._store.stores, strict=True):
            for store, other in zip(stores, others, strict=True):
                _check_expert(expert, store, other, live)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 20, "effort": "low"}
        yield {"max_features": 20}


def _widen(v: Any, before: int, outputs: int, positive: int) -> None:
    # Make the outputs of an expert with support vectors so many.
    if before == 1:
        for rows in (v.coefficients, v.biases):
            half = 0.5 * rows[:2]
            rows[2 * positive : 2 * positive + 2], rows[2 - 2 * positive : 4 - 2 * positive] = half, -half
    v.header[0]["live"] = 2 * outputs
    v.cache[0] = 0


def _check_expert(expert: Expert, store: Any, fresh: Any, live: int) -> None:
    for record, other in zip(states(store, expert.kind), states(fresh, expert.kind), strict=True):
        check_record(record[0], other[0], {**LEARNED, **least_squares.LEARNED} if expert.kind == kinds.LANDMARKS else LEARNED)
    if expert.place.budget or expert.place.landmarks:
        header, other = store.views.header[0], fresh.views.header[0]
        for name, value in (
            ("live", 2 * live if expert.place.budget else live),
            *((name, other[name]) for name in ("kernel", "degree", "coef0")),
        ):
            if header[name] != value:
                raise ValueError(f"the saved model is corrupt: {name} of an expert is {header[name]}, not {value}")
    if expert.kind == kinds.LANDMARKS:
        normal_equations.check_work(store, states(store, expert.kind)[1][0])
        if not normal_equations.holds_labels(store, states(store, expert.kind)[1][0]):
            raise ValueError("the saved model is corrupt: an expert holds targets that are no labels")
