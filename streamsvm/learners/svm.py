"""Support vector machines without parameters to choose: committees of learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from streamsvm.learners import normal_equations
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.committee import Committee
from streamsvm.learners.compiled import kinds, label_answers, regression_stack, stack, target_answers
from streamsvm.learners.compiled.rule import state_of
from streamsvm.learners.estimator import learner
from streamsvm.learners.experts import EXPERTS, REGRESSION_EXPERTS, Expert, states
from streamsvm.learners.regressor import OnlineRegressor
from streamsvm.memory.committee import committee_views
from streamsvm.memory.support_vectors import views
from streamsvm.memory.weights import weight_views

__all__ = ["SVMClassifier", "SVMRegressor"]


@learner
class SVMClassifier(OnlineClassifier, Committee):
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
    A row costs about as much as in each of the kernel machines. They have 150 support vectors each, but for two, which have 300
    with ``"normal"`` and 500 with ``"high"``. Predicting and learning a row of 10 features takes some 6 microseconds with
    ``"low"`` (two kernel machines, three learners in the features), 10 with ``"normal"`` (seven, and five), and 17 with
    ``"high"`` (those, and least squares on 300, 100 and 100 landmarks). The experts of second order take the first 64 features,
    as their matrices grow with the square of these; up to 16 features, the sum of functions has 4 of each (piecewise linear
    ones, bent at .8 deviations from the mean), up to 32 it has 2, and beyond it is linear.

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
    Accuracy: 91.11%
    """

    max_classes: int = 10

    _experts: ClassVar[Mapping[str, tuple[Expert, ...]]] = EXPERTS
    _answers: ClassVar[Any] = label_answers
    _stack: ClassVar[Any] = stack

    def __post_init__(self) -> None:
        super().__post_init__()
        self._scores = self._store.views.scores

    @property
    def _most_outputs(self) -> int:
        return self.max_classes if self._multiclass else 1

    def _resize(self, outputs: int) -> None:
        # Go on with so many outputs: one output f becomes two, f / 2 of the positive label and -f / 2 of the negative one. In a
        # copy, which then takes the place of the block as a whole: an interrupt leaves it as it was.
        self._ready = False
        block = self._block.copy()
        v = committee_views(block)
        before = int(v.header[0]["live"])
        if before == outputs:  # an interrupt came when the block had them
            self._outputs = outputs
            return
        positive, negative = (0, 1) if self._labels.positive_comes_first else (1, 0)
        if before == 1:
            weights = v.newton_weights
            half = 0.5 * weights[:, 0]
            weights[:, positive], weights[:, negative] = half, -half
            v.counts[negative], v.counts[positive] = max(self._own["rows"][0] - v.counts[0], 0.0), v.counts[0]
            last = self._own["last"][0]
            if last >= 0:
                state_of(block, kinds.STATE)["last"] = positive if last == 1 else negative
        for kind, begin_at, size, *_ in v.experts:
            if size and kind == kinds.LINEAR:
                if before == 1:
                    parts = [block[begin_at + k * size : begin_at + (k + 1) * size] for k in (0, 1)]
                    parts[1][:] = parts[0]
                    w = weight_views(parts[negative])
                    for numbers in (w.weights, w.biases):
                        np.negative(numbers, out=numbers)
            elif size and kind == kinds.LANDMARKS:
                normal_equations.widen(block[begin_at : begin_at + size], before, outputs, positive)
            elif size:
                _widen(views(block[begin_at : begin_at + size]), before, outputs, positive)
        v.header[0]["live"] = outputs
        v.cache[0] = 0
        self._block[:] = block
        self._outputs = outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._outputs != self._labels.outputs:
            raise ValueError(f"the saved model is corrupt: {len(self.labels)} labels for {self._outputs} outputs")
        last, most = self._own[0]["last"], max(self._outputs, 2)
        if last >= most:
            raise ValueError(f"the saved model is corrupt: its last label is number {last} of {most}")
        rows, counted = float(self._own[0]["rows"]), float(self._store.views.counts.sum())
        if counted > rows * (1.0 + 1e-9):
            raise ValueError(f"the saved model is corrupt: {counted} rows of its classes, and {rows} of all")
        self._check_experts()

    def _check_expert(self, expert: Expert, store: Any, fresh: Any) -> None:
        super()._check_expert(expert, store, fresh)
        if expert.kind == kinds.LANDMARKS and not normal_equations.holds_labels(store, states(store, expert.kind)[1][0]):
            raise ValueError("the saved model is corrupt: an expert holds targets that are no labels")


@learner
class SVMRegressor(OnlineRegressor, Committee):
    """A support vector regression for any stream, with no parameters to choose.

    It is a committee, as `SVMClassifier` is. Its experts are linear learners of first and second order, a sum of functions of one
    feature each, recursive least squares on landmarks with a Gaussian and a cubic kernel, budgeted kernel regressions of what
    that sum does not explain, one of which begins anew where the stream drifts, and the last target. The last and the averaged
    output of each, and their mean by their recent errors, are the inputs of the stacks: recursive least squares with fading
    memories. Predictions follow the stacks, that mean or the best expert, whichever has the least absolute error over the last
    1,000 rows.

    Targets are learned as deviations from their running mean, in running standard deviations, and bounded to 8 of these; rows
    that are missed by far count less. So an absurd target does little, and nothing is predicted that is more than 10 deviations
    away.

    Parameters
    ----------
    effort
        Which experts there are: ``"low"``, ``"normal"`` or ``"high"``. See Notes.
    scaling, max_features, overflow, seed
        As in `SVMClassifier`.

    Attributes
    ----------
    experts : list of ExpertReport
        With the mean absolute error of each over the last 1,000 rows or so, in the target's unit.
    follows : str
        The source of predictions now: ``"stacks"``, ``"votes"`` (the mean) or ``"best"``, one expert.
    n_learned, nbytes : int

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Notes
    -----
    Before the first row, 0 is predicted. Predicting and learning a row of 10 features takes some 7 microseconds with ``"low"``
    (two kernel regressions of 150 support vectors, and five small experts), 17 with ``"normal"`` (two, of 300 and 150 support
    vectors, and least squares on 300 landmarks twice) and 33 with ``"high"`` (three, and 500, 300 and 300 landmarks). All kernel
    regressions but one of ``"low"`` learn what the sum of functions leaves, which is simpler than the target. Experts of second
    order take the first 64 features, as in `SVMClassifier`.

    Rows count min(1, 1.5 m / e) in what is fitted by least squares, where e is the absolute error and m its recent mean: the loss
    is that of Huber, nearer to the absolute error that is measured than a square is.

    References
    ----------
    [^1]: Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing 52.
    [^2]: Qaadan et al. (2019), as of `BSCARegressor`, for the budgeted kernel regressions.
    [^3]: Huber, P. (1964). Robust estimation of a location parameter. Annals of Mathematical Statistics 35 (the weights of rows).
    [^4]: Wolpert, D. (1992). Stacked generalization. Neural Networks 5.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import SVMRegressor

    >>> evaluate.progressive_val_score(datasets.TrumpApproval(), SVMRegressor(seed=0), metrics.MAE())
    MAE: 0.196631
    """

    _experts: ClassVar[Mapping[str, tuple[Expert, ...]]] = REGRESSION_EXPERTS
    _answers: ClassVar[Any] = target_answers
    _stack: ClassVar[Any] = regression_stack
    _has_targets = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect_scaled_targets()  # they are scaled inside

    @property
    def _unit_of_errors(self) -> float:
        return float(target_answers.spread_of(self._store.views.target_moments[0]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._check_experts()


def _widen(v: Any, before: int, outputs: int, positive: int) -> None:
    # Make the outputs of an expert with support vectors so many.
    if before == 1:
        for rows in (v.coefficients, v.biases):
            half = 0.5 * rows[:2]
            rows[2 * positive : 2 * positive + 2], rows[2 - 2 * positive : 4 - 2 * positive] = half, -half
    v.header[0]["live"] = 2 * outputs
    v.cache[0] = 0
