"""Support vector machines without parameters to choose: ensembles of learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from streamsvm.core.memory.block import view_record
from streamsvm.core.memory.ensemble import STATE, EnsembleStore
from streamsvm.core.steps import label_predictions, target_predictions
from streamsvm.core.steps.iterates import RULE_STATE_OFFSET
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.ensemble import EXPERTS, REGRESSION_EXPERTS, Ensemble
from streamsvm.learners.estimator import learner
from streamsvm.learners.experts import Expert
from streamsvm.learners.labels import MAX_CLASSES
from streamsvm.learners.regressor import OnlineRegressor


@learner
class SVMClassifier(OnlineClassifier, Ensemble):
    """A support vector machine for any stream, with nothing to tune.

    The model is an ensemble of experts that all learn every row: budgeted kernel machines with several kernel widths, linear
    learners of first and second order, a sum of functions of one feature each, machines that start from scratch where the
    stream drifts, a memory of rows whose nearest neighbours vote, a rolling forest, the last label, and what followed it before.
    With the highest effort, there is also least squares on kernel landmarks.

    Two logistic regressions, the stacks, combine the experts. Their inputs are the last and the average output of each expert,
    and the outcome of a vote among all of them. They learn by Newton's method, with memories that fade. Predictions follow the
    stacks, the votes or the best expert, whichever has made the fewest errors over the last 1,000 rows.

    Notes
    -----
    A row costs about as much as in all the kernel machines combined. Each of these has 150 support vectors, except for two
    that have 300 with ``"normal"`` and 500 with ``"high"``. Predicting and learning a row of 10 features takes about 7
    microseconds with ``"low"`` (two kernel machines and three learners on the features themselves), 17 with ``"normal"``
    (four, four, the neighbours, the forest and the last label), and 26 with ``"high"`` (the same as ``"normal"``, and least
    squares on 300, 100 and 100 landmarks). Time grows with labels: with ``"normal"`` and 20 features, a row takes about 33
    microseconds with 10 labels, 44 with 26 and 101 with 100. The first row of a label takes some milliseconds more.

    Memory grows with features and labels. With ``"normal"`` and room for 2, 16 and 256 features, two labels take .40, .85 and
    2.75 MB, and K > 2 take ``.42 MB + 17.3 KB K``, ``.98 MB + 18.6 KB K`` and ``2.75 MB + 26.7 KB K``. Of 1,024 features, the
    most by default, two labels take 6.2 MB.

    The memory of rows holds 2,000 rows, or 4,000 of three and more labels, but no more than 128,000 numbers: of 256 features
    496 rows, of the first 512 features if there are more. It keeps the rows that the ensemble or the memory itself missed, and
    one in ten of the others, and all rows until it is half full. A distance is the sum over features of their differences, in
    standard deviations, each at most 1, and times what the feature counts. So a feature whose numbers are names, such as codes,
    needs no encoding. What a feature counts is learned by ReliefF's rule. Of the 13 nearest rows, each has a vote of its weight
    over the third power of its distance. To find them, distances are rounded to 1/1024, so that an exported model finds the same.
    What follows a label is counted for the first 64 labels.

    The forest has 16 trees of up to 1,200 nodes, each grown of 85 % of the latest 2,000 rows, or of fewer if there are more than
    64 features: it holds 153,600 numbers, of the first 512 features. A tree grows by a bounded amount of work with each row, then
    takes the place of the oldest one. Meanwhile, a leaf that gets a row of another label is cut between that and its latest
    row. A row counts as one, whatever it weighs, unless it weighs nothing. Rows are kept as they are given.

    The experts of second order use the first 64 features only, as their matrices grow with the square of the number of
    features. The sum of functions has 4 functions of each feature up to 16 features (piecewise linear ones that bend at .8
    deviations from the mean), 2 up to 32 features, and is linear beyond that.

    Probabilities are those of the stacks. When predictions follow something else, and it disagrees with the stacks, both
    answers count as equally probable. During the first rows, probabilities lean towards how frequent the classes are. Decision
    values are log odds.

    References
    ----------
    [^1]: Qaadan et al. (2019), as of `BSCAClassifier`, for the kernel machines.
    [^2]: Wolpert, D. (1992). Stacked generalization. Neural Networks 5.
    [^3]: Hastie, T., Tibshirani, R. (1986). Generalized additive models. Statistical Science 1 (the sum of functions).
    [^4]: Littlestone, N., Warmuth, M. (1994). The weighted majority algorithm. Information and Computation 108 (the votes).
    [^5]: Kononenko, I. (1994). Estimating attributes: analysis and extensions of RELIEF. ECML (what a feature counts).
    [^6]: Dudani, S. (1976). The distance-weighted k-nearest-neighbor rule. IEEE Trans. Systems, Man, and Cybernetics 6.
    [^7]: Breiman, L. (2001). Random forests. Machine Learning 45.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import SVMClassifier

    >>> round(evaluate.progressive_val_score(datasets.Phishing(), SVMClassifier(seed=0), metrics.Accuracy()).get(), 1)
    0.9
    """

    max_classes: int = MAX_CLASSES

    _specs_by_effort: ClassVar[Mapping[str, tuple[Expert, ...]]] = EXPERTS
    _combiner: ClassVar[Any] = label_predictions

    def _grow_outputs(self, store: EnsembleStore, outputs: int) -> None:
        v, before = store.views, self._n_outputs
        positive, negative = (0, 1) if self._labels.is_positive_first else (1, 0)
        if before == 1:
            weights = v.newton_weights
            half = 0.5 * weights[:, 0]
            weights[:, positive], weights[:, negative] = half, 0.0 - half
            if positive == 0:
                v.transitions[:2, :2] = v.transitions[1::-1, 1::-1].copy()
            v.counts[negative], v.counts[positive] = max(self._rule_record["rows"][0] - v.counts[0], 0.0), v.counts[0]
            last = self._rule_record["last"][0]
            if last >= 0:
                view_record(store.block, RULE_STATE_OFFSET, STATE)["last"] = positive if last == 1 else negative
        for expert, stores in zip(self._expert_specs, store.stores, strict=True):
            expert.grow(stores, before, outputs, positive)
        v.header[0]["n_outputs"] = outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if (live := int(self._store.views.header[0]["n_outputs"])) != self._n_outputs:
            raise ValueError(f"the saved model is corrupt: {len(self.labels)} labels for {live} outputs")
        last, most = self._rule_record[0]["last"], max(self._n_outputs, 2)
        if last >= most:
            raise ValueError(f"the saved model is corrupt: its last label is number {last} of {most}")
        self._check_experts()


@learner
class SVMRegressor(OnlineRegressor, Ensemble):
    """A support vector regression for any stream, with nothing to tune.

    The model is an ensemble of experts that all learn every row, as `SVMClassifier` is: linear learners of first and second
    order, a sum of functions of one feature each, recursive least squares on landmarks with a Gaussian and with a cubic kernel,
    the last target, budgeted kernel regressions of what the sum of functions does not explain, a memory of rows, whose nearest
    neighbours give the mean of their targets, and a rolling forest, which knows what experts miss together. One of the kernel
    regressions starts from scratch where the stream drifts. If rows are scaled, a feature counts in them by what the memory of
    rows has learned of it, and at least .2 of the most relevant one.

    Stacks combine the experts: recursive least squares with memories that fade. Their inputs are the last and the average
    output of each expert, and a mean of all of them that is weighted by their recent errors. Predictions follow the stacks,
    that mean or the best expert, whichever has had the smallest absolute error over the last 1,000 rows.

    You need no scaler, neither for features nor for targets. Targets are learned as deviations from their running mean, in
    running standard deviations, and bounded to 8 of these. Rows that are missed by far count less. An absurd target therefore
    does little harm, and no prediction is more than 10 deviations from the mean.

    Notes
    -----
    Before the first row, the prediction is 0. Predicting and learning a row of 10 features takes about 9
    microseconds with ``"low"`` (two kernel regressions of 150 support vectors, and five small experts), 33 with ``"normal"``
    (two, of 300 and 150 support vectors, least squares on 300 landmarks twice, nearest neighbours, and the forest), and 51 with
    ``"high"`` (three, 500, 300 and 300 landmarks, neighbours and forest). All kernel regressions except one of ``"low"`` learn
    what the sum of functions leaves, which is simpler than the target. The experts of second order use the first 64 features
    only, and the memory of 2,000 rows is as in `SVMClassifier`: it keeps those that were missed by more than usual, and one in
    ten of the others. With room for 2, 16 and 256 features, ``"normal"`` takes 2.7, 3.2 and 6.4 MB, and ``"high"`` 5.9, 6.6 and
    11.2 MB.

    The forest has the trees of that of `SVMClassifier`. Eight predict the target, by the features and the last target. Eight
    predict what the mean of the other experts' vote and of the best one of them misses: by the features, the last target, that
    prediction, and what was missed last. The leaves are means, which learn every row; below the root, a node of fewer than 8
    rows is not cut.

    In everything that is fitted by least squares, a row counts min(1, 1.5 m / e), where e is its absolute error and m the
    recent mean of these errors. This makes the loss that of Huber, which is nearer than a square to the absolute error that is
    measured.

    References
    ----------
    [^1]: Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing
        52.
    [^2]: Qaadan et al. (2019), as of `BSCARegressor`, for the budgeted kernel regressions.
    [^3]: Huber, P. (1964). Robust estimation of a location parameter. Annals of Mathematical Statistics 35 (the weights of
        rows).
    [^4]: Wolpert, D. (1992). Stacked generalization. Neural Networks 5.
    [^5]: Robnik-Sikonja, M., Kononenko, I. (1997). An adaptation of Relief for attribute estimation in regression. ICML (what a
        feature counts).
    [^6]: Breiman, L. (2001). Random forests. Machine Learning 45.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import SVMRegressor

    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), SVMRegressor(seed=0), metrics.MAE()).get(), 1)
    0.2
    """

    _specs_by_effort: ClassVar[Mapping[str, tuple[Expert, ...]]] = REGRESSION_EXPERTS
    _combiner: ClassVar[Any] = target_predictions
    _has_targets = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect_scaled_targets()  # they are scaled inside

    @property
    def _error_unit(self) -> float:
        return float(target_predictions.compute_deviation(self._store.views.target_moments[0]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._check_experts()
