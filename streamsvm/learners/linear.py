"""Linear support vector machines that learn row by row."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import parameter
from streamsvm.core.frames import Batch
from streamsvm.core.memory.block import LARGEST
from streamsvm.core.memory.weights import WeightStore
from streamsvm.core.sparse import gather_columns, iter_slices
from streamsvm.core.steps import linear_step
from streamsvm.core.steps.rule import Rule
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.estimator import learner
from streamsvm.learners.mergeable import Mergeable, MergeSource
from streamsvm.learners.regressor import EpsilonInsensitiveRegressor


@learner
class LinearEstimator(Mergeable):
    """A model that is a weight for each feature, and the rule of `linear_step`."""

    C: float = parameter(default=1.0, above=0.0, high=1e15, kw_only=False)
    """The largest coefficient of a row, above 0; the weight of the row multiplies it. Lower it for noisy labels, and raise it
    for a stream that drifts. Targets are usually noisy, so the default is lower in regression.
    """
    fit_intercept: bool = parameter(default=True, boolean=True)
    """Whether to learn an intercept, as the weight of a feature that is 1 in all rows."""
    averaging: int = 3000
    max_features: int = 2**16
    """The maximum number of feature names. Each takes 29 bytes, and what Python takes for a name. Memory grows with those that
    come.
    """

    _rule = Rule(linear_step.learn_one, linear_step.STATE, {})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._write_rule_state()

    def _make_store(self, outputs: int, columns: int) -> WeightStore:  # noqa: ARG002 - there is one output
        return WeightStore(self.max_features, columns=columns)

    def _make_store_attributes(self, store: WeightStore) -> dict[str, Any]:
        return {**super()._make_store_attributes(store), "_row": store.views.row}

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:  # noqa: ARG002
        features, store = self._features, self._store
        known = len(features)
        try:
            packed = features.try_fill_row(self._row, x)
            if not packed:
                columns, values = features.make_sparse_row(x, True)
                if len(features) != known:
                    self._grow_columns()
        except BaseException:  # an interrupt as well
            self._rollback_row(known, store)
            raise
        if packed:
            learned = linear_step.learn_full_row(self._block, target, weight)
        else:
            learned = linear_step.learn_one(self._block, columns, values, target, weight)
        if not learned:
            self._rollback_row(known, store)
            features.raise_for_row(x)

    def _compute_output(self, x: Mapping[Any, Any], what: int) -> float:
        f: float
        if self._features.try_fill_row(self._row, x):
            f = linear_step.compute_full_output(self._block, what)
        else:
            f = linear_step.compute_output(self._block, *self._features.make_sparse_row(x, False), what)
        if f != f:
            self._features.raise_for_row(x)
        return f

    def _learn_batch(self, batch: Batch) -> None:
        with self._rollback_names_on_error():
            targets, _ = self._encode_targets(batch)
            columns = self._admit_features(batch)
        for part in iter_slices(batch.matrix, self._store.used):
            some = gather_columns(batch.matrix[part], columns)
            linear_step.learn_rows(self._block, *some, targets[part], batch.weights[part])

    def _find_first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        return int(linear_step.find_refused_row(self._block, matrix, columns))

    def _compute_matrix_outputs(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        linear_step.compute_outputs(self._block, matrix, columns, what, decisions)

    @property
    def coefficients(self) -> np.ndarray:
        """The weights that predictions follow, float64 [features seen], in the order of `feature_names`."""
        c, (u, v) = self._common[0], self._store.views.weights[:, : self._store.used]
        return c["average_v"] * v + c["average_u"] * u if self.follows_average else c["scale"] * u

    @property
    def intercept(self) -> float:
        """The intercept that predictions follow; 0 if none is fitted."""
        return float(self._store.views.biases[int(self.follows_average)])

    def start_from(
        self,
        weights: Any,
        intercept: float = 0.0,
        *,
        feature_names: Sequence[Hashable] | None = None,
        labels: Sequence[Any] | None = None,
        n_learned: int = 0,
    ) -> None:
        """Start from the weights of another linear model, float [d]; the arguments are as in `BSGDClassifier.start_from`.

        Both the last and the average iterate become the given model. Of two ``labels``, the second one is the label of decision
        values above 0 here. The model itself calls True or 1 positive, and so may hold the negative of the weights: see
        `positive_label`. A ValueError says that the model has already learned something, or that shapes, names or numbers do not
        fit.
        """
        self._check_unlearned(n_learned)
        weights = np.asarray(weights, np.float64)
        if weights.ndim != 1 or not ((np.abs(weights) < LARGEST).all() and abs(intercept) < LARGEST):
            raise ValueError(f"weights must be an array [d] of numbers below {LARGEST:g}, and so must be the intercept")
        names = self._check_start_names(len(weights), feature_names)
        with self._rollback_names_on_error():
            sign = self._set_start_labels(labels, 1)
            self._features.restore(names)
            self._grow_columns()
        self.set_coefficients(sign * weights, sign * intercept)
        self._common["t"], self._common["slope"] = n_learned, 0.0

    def set_coefficients(self, coefficients: Any, intercept: float = 0.0) -> None:
        """Replace the weights of the features and the intercept, in both iterates.

        They are float [features seen], and a number, in the order and with the signs of the attributes of the same names. A
        ValueError says that the shape does not fit, or a number is not finite.
        """
        weights, used = np.asarray(coefficients, np.float64), self._store.used
        if weights.shape != (used,):
            raise ValueError(f"coefficients must be [{used}], one for each feature, not {list(weights.shape)}")
        if not ((np.abs(weights) < LARGEST).all() and abs(intercept) < LARGEST):
            raise ValueError(f"coefficients and intercept must be numbers below {LARGEST:g}")
        self._store.views.weights[:, :used], self._store.views.biases[:] = weights, intercept
        self._common["scale"], self._common["average_v"], self._common["average_u"] = 1.0, 1.0, 0.0

    def _merge_sources(self, models: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        if rows is not None:
            raise ValueError("linear models become one by the mean of their weights: merge them without rows")
        self._merge_counters(models)
        weights, constants, shares = np.zeros((3, self._store.used))
        for part in models:
            # A factor of 0 is that of a feature that was 0 in all rows: it has no weight.
            moved = np.divide(part.coefficients[0], part.factors, out=np.zeros(len(part.columns)), where=part.factors != 0.0)
            weights[part.columns] += part.share * moved
            constants[part.columns] -= part.share * moved * part.shifts
            shares[part.columns] += part.share * (moved != 0.0)
        weights, constants = (
            np.divide(sums, shares, out=np.zeros_like(sums), where=shares > 0.0) for sums in (weights, constants)
        )
        intercept = sum(part.share * float(part.intercept[0]) for part in models) + float(constants.sum())
        self.set_coefficients(weights, intercept)


@learner
class OnlineLinearSVC(OnlineClassifier, LinearEstimator):
    """A linear SVM for two classes that learns row by row, fast on sparse rows of many features.

    The time per row depends only on how many features the row has. A row inside the margin moves the weights just so far that
    it comes onto the margin, with a coefficient of at most C times the weight of the row. That is a step of coordinate ascent
    in the dual, from a coefficient of 0 for each new row, so there is no learning rate. For more than two classes, wrap the
    model in ``river.multiclass.OneVsRestClassifier``. It does not scale rows.

    Notes
    -----
    A row costs O(k) for the k features that it has; the others count as 0. Every few times ``averaging`` rows, all weights are
    rescaled.

    References
    ----------
    Crammer, K., Dekel, O., Keshet, J., Shalev-Shwartz, S., Singer, Y. (2006). Online passive-aggressive algorithms. JMLR 7,
    figure 1, PA-I; that is Hsieh et al. (2008), A dual coordinate descent method for large-scale linear SVM, algorithm 1, with
    alpha_i = 0 for each new row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import OnlineLinearSVC

    >>> model = preprocessing.StandardScaler() | OnlineLinearSVC()
    >>> round(evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy()).get(), 2)
    0.88
    """

    max_features: int = LinearEstimator.max_features  # a dataclass takes the default of the first base otherwise

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 500}
        yield {"max_features": 500, "fit_intercept": False, "averaging": 0}


@learner
class OnlineLinearSVR(EpsilonInsensitiveRegressor, LinearEstimator):
    """Linear support vector regression that learns row by row, fast on sparse rows of many features.

    A row whose prediction is off by more than ``epsilon`` moves the weights just so far that the error becomes epsilon, with a
    coefficient of at most C times the weight of the row: see `OnlineLinearSVC`. Targets should be about 0, and about 1 in size:
    wrap the model in `streamsvm.learners.preprocessing.BoundedTargetScaler`. The model does not scale rows either.

    References
    ----------
    Crammer et al. (2006), section 5, PA-I; Ho, C.-H., Lin, C.-J. (2012). Large-scale linear support vector regression. JMLR 13.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm.learners import OnlineLinearSVR
    >>> from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler

    >>> model = BoundedScaler() | BoundedTargetScaler(OnlineLinearSVR())
    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE()).get(), 1)
    0.3
    """

    C: float = parameter(default=0.1, above=0.0, high=1e15, kw_only=False)
    epsilon: float = parameter(default=0.1, least=0.0, high=1e15)
    max_features: int = LinearEstimator.max_features

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 500}
