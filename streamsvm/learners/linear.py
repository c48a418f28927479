"""Online linear support vector machines, for sparse rows with many features."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import parameter
from streamsvm.core.frames import FrameBatch
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
    """The base of linear models, which have a weight for each feature, and learn by the update rule of `linear_step`."""

    C: float = parameter(default=1.0, above=0.0, high=1e15, kw_only=False)
    """The maximum coefficient of a row, above 0, which is multiplied by the weight of the row. Decrease it for noisy labels, and
    increase it for concept drift. Targets are usually noisy, so the default is smaller in regression.
    """
    fit_intercept: bool = parameter(default=True, boolean=True)
    """Whether to fit an intercept, as the weight of a feature that is 1 in all rows."""
    averaging: int = 3000
    max_features: int = 2**16
    """The maximum number of feature names. Memory grows with the number of names seen: each takes 29 bytes, in addition to the
    name in Python.
    """

    _rule = Rule(linear_step.learn_one, linear_step.STATE, {})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._write_rule_state()

    def _make_store(self, outputs: int, columns: int) -> WeightStore:  # noqa: ARG002 - there is one output
        """Return a new memory for the weights of this linear model (`WeightStore`), with room for ``columns`` features."""
        return WeightStore(self.max_features, columns=columns)

    def _make_store_attributes(self, store: WeightStore) -> dict[str, Any]:
        """Return the attributes that this model must set when it starts to use the memory ``store``, as a dict of name to value:
        views of the memory's arrays, such as the current row.
        """
        return {**super()._make_store_attributes(store), "_row": store.views.row}

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:  # noqa: ARG002
        """Learn one row ``x`` (a dict of feature name to number) with its numeric ``target`` and its ``weight``, in time that
        only depends on the number of features in the row. Raises a ValueError for an invalid row; then the model does not change.
        """
        features, store = self._features, self._store
        n_known = len(features)
        try:
            is_full = features.try_fill_row(self._row, x)
            if not is_full:
                columns, values = features.make_sparse_row(x, True)
                if len(features) != n_known:
                    self._grow_columns()
        except BaseException:  # also for an interrupt
            self._rollback_row(n_known, store)
            raise
        if is_full:
            is_learned = linear_step.learn_full_row(self._block, target, weight)
        else:
            is_learned = linear_step.learn_one(self._block, columns, values, target, weight)
        if not is_learned:
            self._rollback_row(n_known, store)
            features.raise_for_row(x)

    def _compute_output(self, x: Mapping[Any, Any], output: int) -> float:
        """Return one number that the model computes for the row ``x``, a dict of feature name to number. ``output`` is an integer
        code that selects the decision value, a probability, or the decision value by the latest or the averaged weights. Raises a
        ValueError if a feature is not a finite number.
        """
        f: float
        if self._features.try_fill_row(self._row, x):
            f = linear_step.compute_full_output(self._block, output)
        else:
            f = linear_step.compute_output(self._block, *self._features.make_sparse_row(x, False), output)
        if f != f:
            self._features.raise_for_row(x)
        return f

    def _learn_batch(self, batch: FrameBatch) -> None:
        """Learn the rows of ``batch`` (a matrix with names, targets and weights) in order. If a row is invalid, raise a
        ValueError with its number, and learn none of the rows.
        """
        with self._rollback_names_on_error():
            targets, _ = self._encode_targets(batch)
            columns = self._admit_features(batch)
        for part in iter_slices(batch.matrix, self._store.used):
            X, part_columns = gather_columns(batch.matrix[part], columns)
            linear_step.learn_rows(self._block, X, part_columns, targets[part], batch.weights[part])

    def _find_first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        """Return the index of the first row of ``matrix`` [n, d] that has an invalid number (NaN, infinite or too large), or -1
        if all rows are valid. ``columns`` [d] are the model's column indices of the features.
        """
        return int(linear_step.find_refused_row(self._block, matrix, columns))

    def _compute_matrix_outputs(self, matrix: np.ndarray, columns: np.ndarray, output: int, values: np.ndarray) -> None:
        """Compute decision values or probabilities for the rows of ``matrix`` [n, d], and write them into ``values`` [n, 1], with
        NaN for rows with invalid numbers. ``columns`` [d] has the model's column index of each feature; ``output`` is an integer
        code that selects the kind of value.
        """
        linear_step.compute_outputs(self._block, matrix, columns, output, values)

    @property
    def coefficients(self) -> np.ndarray:
        """The weights of the features that predictions currently use (the latest ones or their running average), float64
        [features seen], in the order of `feature_names`.
        """
        c, (u, v) = self._common[0], self._store.views.weights[:, : self._store.used]
        return c["average_v"] * v + c["average_u"] * u if self.follows_average else c["scale"] * u

    @property
    def intercept(self) -> float:
        """The intercept that predictions currently use; 0 if the model does not fit an intercept."""
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
        """Initialise this new, untrained model with the ``weights`` [d] and the ``intercept`` of another linear model, such as
        one that a batch solver has trained. ``feature_names`` and ``labels`` are the names of the d features and the two classes;
        ``n_learned`` is the number of rows to count as learned.

        Parameters
        ----------
        weights
            The weights, float [d].
        intercept
            The intercept.
        feature_names
            The names of the d features. None: 0, 1, ..., d - 1.
        labels
            The two labels of a classifier. The second one is that of decision values above 0 in the other model. This model
            decides by itself which label is positive (see `positive_label`), and negates the weights if necessary.
        n_learned
            The number of rows that count as learned.

        Raises
        ------
        ValueError
            This model has already learned something, or shapes, names or numbers do not fit.
        """
        self._check_unlearned(n_learned)
        weights = np.asarray(weights, np.float64)
        if weights.ndim != 1 or not ((np.abs(weights) < LARGEST).all() and abs(intercept) < LARGEST):
            raise ValueError(
                f"weights must be an array [d] of numbers, and the intercept a number, with absolute values below {LARGEST:g}"
            )
        names = self._check_start_names(len(weights), feature_names)
        with self._rollback_names_on_error():
            sign = self._set_start_labels(labels, 1)
            self._features.restore(names)
            self._grow_columns()
        self.set_coefficients(sign * weights, sign * intercept)
        self._common["t"], self._common["slope"] = n_learned, 0.0

    def set_coefficients(self, coefficients: Any, intercept: float = 0.0) -> None:
        """Replace the weights of the features by ``coefficients``, [features seen], and the ``intercept`` of this model. The
        running average of the weights, which predictions may use instead of the latest ones, is set to the same values.

        Parameters
        ----------
        coefficients
            The weights, float [features seen], in the order and with the signs of the attribute ``coefficients``.
        intercept
            The intercept.

        Raises
        ------
        ValueError
            The shape does not fit, or a number is not finite or too large.
        """
        weights, used = np.asarray(coefficients, np.float64), self._store.used
        if weights.shape != (used,):
            raise ValueError(f"coefficients must have the shape [{used}], one for each feature, not {list(weights.shape)}")
        if not ((np.abs(weights) < LARGEST).all() and abs(intercept) < LARGEST):
            raise ValueError(f"coefficients and intercept must be numbers below {LARGEST:g}")
        self._store.views.weights[:, :used], self._store.views.biases[:] = weights, intercept
        self._common["scale"], self._common["average_v"], self._common["average_u"] = 1.0, 1.0, 0.0

    def _merge_sources(self, sources: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        """Set the weights of this new model to the mean weights of the trained models in ``sources``, each counted by its number
        of rows. A model whose weight of a feature is exactly 0 is left out of that feature's mean. Raise a ValueError if extra
        ``rows`` are passed: linear models cannot be fitted to them.
        """
        if rows is not None:
            raise ValueError("linear models are merged by averaging their weights: merge them without rows")
        self._merge_counters(sources)
        weights, constants, shares = np.zeros((3, self._store.used))
        for source in sources:
            # A feature that was 0 in all rows has the factor 0. Its weight is ignored.
            scaled = np.divide(
                source.coefficients[0], source.factors, out=np.zeros(len(source.columns)), where=source.factors != 0.0
            )
            weights[source.columns] += source.share * scaled
            constants[source.columns] -= source.share * scaled * source.shifts
            shares[source.columns] += source.share * (scaled != 0.0)
        weights, constants = (
            np.divide(sums, shares, out=np.zeros_like(sums), where=shares > 0.0) for sums in (weights, constants)
        )
        intercept = sum(source.share * float(source.intercept[0]) for source in sources) + float(constants.sum())
        self.set_coefficients(weights, intercept)


@learner
class OnlineLinearSVC(OnlineClassifier, LinearEstimator):
    """A linear SVM for two classes that learns row by row, fast for sparse rows with many features.

    The time per row only depends on the number of features in the row. A row inside the margin changes the weights by the
    smallest step that moves it onto the margin, with a coefficient of at most C times the weight of the row (passive-aggressive
    learning). This is a step of coordinate ascent in the dual from 0, so that no learning rate is needed. For more than two
    classes, wrap the model in ``river.multiclass.OneVsRestClassifier``. It does not scale rows.

    Notes
    -----
    A row with k features takes O(k); missing features count as 0. All weights are rescaled once in several times ``averaging``
    rows.

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

    max_features: int = LinearEstimator.max_features  # or else the dataclass would use the default of its first base

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 500}
        yield {"max_features": 500, "fit_intercept": False, "averaging": 0}


@learner
class OnlineLinearSVR(EpsilonInsensitiveRegressor, LinearEstimator):
    """Linear support vector regression that learns row by row, fast for sparse rows with many features.

    A row with an absolute error above ``epsilon`` changes the weights by the smallest step that reduces the error to epsilon,
    with a coefficient of at most C times the weight of the row: see `OnlineLinearSVC`. Targets should have a mean near 0 and a
    standard deviation near 1: wrap the model in `streamsvm.learners.preprocessing.BoundedTargetScaler`. It does not scale rows.

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
