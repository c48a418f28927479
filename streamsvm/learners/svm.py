"""Support vector machines without hyperparameters to tune: ensembles of kernel machines and other learners."""

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
    """A support vector machine for data streams that needs no tuning: an ensemble of kernel machines and other experts.

    All experts learn every row: budgeted kernel machines with several kernel widths, linear learners of first and second order,
    an additive model (a sum of functions of one feature each), kernel machines that reset on concept drift, an instance memory
    (k nearest neighbours), a rolling forest, the last label, and the frequencies of labels that follow it. With
    ``effort="high"``, there is also least squares on kernel landmarks.

    Two logistic regressions, the stacks, combine the experts. Their inputs are the last and the average iterate of each expert,
    and the outcome of a weighted vote of all experts. They learn by Newton's method with forgetting. Predictions follow the
    stacks, the vote or the best expert, whichever has made the fewest errors over about the last 1,000 rows.

    Notes
    -----
    *Time.* A row costs about as much as all kernel machines together. Each has 150 support vectors, except for two that have 300
    with ``"normal"`` and 500 with ``"high"``. Predicting and learning a row of 10 features takes about 7 microseconds with
    ``"low"`` (two kernel machines, and three learners on the features), 17 with ``"normal"`` (four kernel machines, four
    learners on the features, the neighbours, the forest and the last label), and 26 with ``"high"`` (the same, and least squares
    on 300, 100 and 100 landmarks). With ``"normal"`` and 20 features, a row takes about 33 microseconds with 10 labels, 44 with
    26 and 101 with 100. The first row of a new label takes some milliseconds more.

    *Memory* grows with features and labels. With ``"normal"`` and room for 2, 16 and 256 features, two labels take .40, .85 and
    2.75 MB, and K > 2 labels take ``.42 MB + 17.3 KB K``, ``.98 MB + 18.6 KB K`` and ``2.75 MB + 26.7 KB K``. With 1,024
    features, the default maximum, two labels take 6.2 MB.

    *The instance memory* stores 2,000 rows, or 4,000 with three or more labels, but at most 128,000 numbers: 496 rows of 256
    features. It only stores the first 512 features. It keeps the rows that the ensemble or the memory itself misclassified, one
    in ten of the others, and all rows until it is half full. The distance of two rows is the weighted sum over features of their
    difference in standard deviations, where a difference counts at most 1, so that categories that are coded as numbers need
    no encoding. The weights of features are learned by the rule of ReliefF. Each of the 13 nearest rows votes with its weight,
    divided by the third power of its distance. For this search, distances are rounded to 1/1024, so that an exported model finds
    the same neighbours. The labels that follow a label are counted for the first 64 labels.

    *The forest* has 16 trees of up to 1,200 nodes. Each is grown from 85 % of the latest 2,000 rows, or of fewer rows with more
    than 64 features, because the forest stores at most 153,600 numbers, of the first 512 features. A tree grows by a limited
    amount of work with each row, and then replaces the oldest tree. A leaf of a complete tree that receives a row of another
    label is split between that row and its latest one. All rows count the same, except those of weight 0. Rows are stored
    unscaled.

    *The experts of second order* only use the first 64 features, because their matrices grow with the square of the number of
    features. The additive model has 4 functions of each of up to 16 features (piecewise linear, with a knot .8 standard
    deviations from the mean), 2 of each of up to 32 features, and is linear with more.

    *Probabilities* are those of the stacks. If predictions follow the vote or the best expert, and it disagrees with the stacks,
    both labels get the same probability. During the first rows, probabilities are shrunk towards the class frequencies. Decision
    values are log odds.

    References
    ----------
    [^1]: Qaadan et al. (2019), as of `BSCAClassifier`, for the kernel machines.
    [^2]: Wolpert, D. (1992). Stacked generalization. Neural Networks 5.
    [^3]: Hastie, T., Tibshirani, R. (1986). Generalized additive models. Statistical Science 1.
    [^4]: Littlestone, N., Warmuth, M. (1994). The weighted majority algorithm. Information and Computation 108 (the vote).
    [^5]: Kononenko, I. (1994). Estimating attributes: analysis and extensions of RELIEF. ECML (weights of features).
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
        """Initialise the state of all members for new labels in ``store``, an enlarged copy of this ensemble's memory with room
        for ``outputs`` decision values, and the stacking weights and label statistics of these labels.
        """
        v, before = store.views, self._n_outputs  # two labels share one output
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
            expert.grow_outputs(stores, before, outputs, positive)
        v.header[0]["n_outputs"] = outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if (n_outputs := int(self._store.views.header[0]["n_outputs"])) != self._n_outputs:
            raise ValueError(f"the saved model is corrupt: {len(self.labels)} labels for {n_outputs} outputs")
        last, n_labels = self._rule_record[0]["last"], max(self._n_outputs, 2)
        if last >= n_labels:
            raise ValueError(f"the saved model is corrupt: the index of its last label is {last}, with {n_labels} labels")
        self._check_experts()


@learner
class SVMRegressor(OnlineRegressor, Ensemble):
    """Support vector regression for data streams that needs no tuning: an ensemble of kernel machines and other experts.

    All experts learn every row: linear learners of first and second order, an additive model (a sum of functions of one feature
    each), recursive least squares on landmarks with a Gaussian and with a cubic kernel, the last target, budgeted kernel
    regressions of the residuals of the additive model (boosting), an instance memory (k nearest neighbours), and a rolling
    forest, half of whose trees learn the residuals of the other experts. One of the kernel regressions resets on concept drift.
    If rows are scaled, the budgeted kernel regressions also multiply each feature by its relevance, which the instance memory
    learns: between .2 and 1, relative to the most relevant feature.

    Two stacks combine the experts: recursive least squares with forgetting. Their inputs are the last and the average iterate
    of each expert, and the mean of all of them, weighted by their recent errors. Predictions follow the stacks, that mean or the
    best expert, whichever has had the smallest absolute error over about the last 1,000 rows.

    You do not need to scale features or targets. Targets are standardised by their running mean and standard deviation, and
    clipped to [-8, 8]. Rows with a large error get a smaller weight. Outliers among the targets therefore do little harm, and
    predictions are within 10 standard deviations of the mean.

    Notes
    -----
    Before the first row, the prediction is 0.

    *Time.* Predicting and learning a row of 10 features takes about 9 microseconds with ``"low"`` (two kernel regressions of 150
    support vectors, and five small experts), 33 with ``"normal"`` (two kernel regressions of 300 and 150 support vectors, least
    squares on 300 landmarks with each kernel, neighbours and forest), and 51 with ``"high"`` (three kernel regressions, least
    squares on 500, 300 and 300 landmarks, neighbours and forest). All kernel regressions except one with ``"low"`` learn the
    residuals of the additive model, which are simpler than the target.

    *Memory.* With room for 2, 16 and 256 features, ``"normal"`` takes 2.7, 3.2 and 6.4 MB, and ``"high"`` 5.9, 6.6 and 11.2 MB.

    *Experts.* Those of second order only use the first 64 features. The instance memory of 2,000 rows is as in `SVMClassifier`;
    it predicts the mean target of the neighbours, and keeps the rows with an above-average error of the stacks, and one in ten
    of the others. The forest has as many trees as that of `SVMClassifier`. Eight predict the target from the features and the
    last target. Eight predict the residual of a prediction, which is the mean of the other experts' vote and of the best of them,
    from the features, the last target, that prediction and its last residual. A leaf predicts the mean of its targets, which is
    updated with every row; below the root, a node of fewer than 8 rows is not split.

    *Loss.* In everything that is fitted by least squares, a row has the weight min(1, 1.5 m / e), where e is its absolute error
    and m the recent mean of these errors. This is the Huber loss, which is closer to the absolute error than the squared loss.

    References
    ----------
    [^1]: Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing
        52.
    [^2]: Qaadan et al. (2019), as of `BSCARegressor`, for the budgeted kernel regressions.
    [^3]: Huber, P. (1964). Robust estimation of a location parameter. Annals of Mathematical Statistics 35.
    [^4]: Wolpert, D. (1992). Stacked generalization. Neural Networks 5.
    [^5]: Robnik-Sikonja, M., Kononenko, I. (1997). An adaptation of Relief for attribute estimation in regression. ICML
        (relevance of features).
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
        self.expect_scaled_targets()  # this model scales targets itself

    @property
    def _error_unit(self) -> float:  # type: ignore[override]
        """The standard deviation of the targets: the factor that converts errors of standardised targets to the original unit of
        the target.
        """
        return float(target_predictions.compute_deviation(self._store.views.target_moments[0]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._check_experts()
