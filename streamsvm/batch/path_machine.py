"""The base of machines that are fitted for several values of C together, and share the work that does not depend on C."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier

from streamsvm.batch.kernel_machine import KernelMachine, TrainingData
from streamsvm.batch.problem import Bounds, RowGroups, check_bounds
from streamsvm.core.checks import check_number, check_one_of
from streamsvm.core.sklearn_base import PathEstimator

_MAX_FEW_FEATURES = 12
# (rows of a leaf, rank) for up to _MAX_FEW_FEATURES features, and for more.
_SIZES, _SIZES_FOR_MANY_FEATURES = (256, 50), (512, 100)
# Fits to fewer rows use larger leaves and ranks, up to this factor: they are affordable there.
_ROWS_FOR_BASE_SIZES, _MAX_SIZE_FACTOR = 50_000, 4.0


def choose_forest_sizes(n: int, d: int) -> tuple[int, int]:
    """Return the default maximum number of rows of a leaf, and the default rank (number of rows from which those of a node are
    interpolated), of partition trees for ``n`` training rows of ``d`` features.
    """
    leaf_size, rank = _SIZES if d <= _MAX_FEW_FEATURES else _SIZES_FOR_MANY_FEATURES
    factor = min(max(_ROWS_FOR_BASE_SIZES / n, 1.0), _MAX_SIZE_FACTOR)
    return int(factor * leaf_size), int(factor * rank)


#: A sparse X with more values than this, zeros included, is not converted to a dense array.
MAX_DENSE_VALUES = 1e9


class PathData(NamedTuple):
    """The rows, weights and bounds that the fits for all values of C share."""

    training: TrainingData
    weights: np.ndarray  # float64 [m]: the weights above 0, those of training.used_rows
    positives: list[np.ndarray | None]  # for each machine a mask of its positive class among these rows; None: regression
    X: np.ndarray  # all rows, dense
    groups: RowGroups
    unit_bounds: list[Bounds]  # for each machine the bounds at C = 1

    def expand_coefficients(self, b: Iterable[np.ndarray], C: float) -> np.ndarray:
        """Split the dual coefficients of groups of equal rows among all training rows, for one value of C, and return them as
        float64 [machines, n]. ``b`` yields the coefficients of the groups, one array for each binary machine.
        """
        out = np.zeros((len(self.positives), len(self.training.weights)))
        for row, group_coefficients, positive in zip(out, b, self.positives, strict=True):
            row[self.training.used_rows] = self.groups.split_coefficients(group_coefficients, C * self.weights, positive)
        return out


@dataclass(eq=False, repr=False, kw_only=True)
class PathMachine(PathEstimator, KernelMachine):
    """A kernel machine whose fits for several C share work. Each of three or more classes has a machine against all others.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, or X, y or a weight cannot be learned. The message says which one.
    """

    random_state: int | None = 0
    """Seed of the random choices, for repeatable fits. None uses a different seed each time."""
    verbose: bool = False
    """Whether to show progress on standard error."""

    @property
    def _exact_class_name(self) -> str:
        """The name of the exact estimator that warnings recommend: that for classifiers or that for regressors."""
        return "CSMOClassifier" if is_classifier(self) else "CSMORegressor"

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        super()._check_parameters(Cs)
        check_one_of("kernel", self.kernel, self._kernels)

    def _check_or_auto(self, name: str, least: float, **options: Any) -> None:
        """Raise a ValueError that names the parameter ``name`` of this estimator unless its value is ``"auto"`` or a number of at
        least ``least``. ``options`` are passed to `check_number`, such as ``integer=True``.
        """
        value = getattr(self, name)
        if isinstance(value, str):
            check_one_of(name, value, ("auto",))
        else:
            check_number(name, value, least, inclusive=True, **options)

    def _prepare_path(self, Cs: Sequence[float], X: Any, y: Any, sample_weight: Any) -> PathData:
        """Check the parameters, the rows X, the labels or targets y, and the weights, and return the data that the fits for all
        values of C in ``Cs`` share, such as the groups of equal rows.
        """
        self._check_parameters(Cs)
        training = self._prepare_training(X, y, sample_weight)
        used_rows, targets = training.used_rows, training.targets
        weights, positives = training.weights[used_rows], self._find_positive_rows(training)
        for C in Cs:
            check_bounds(C * weights)
        X = self._to_dense(training.X)
        groups = RowGroups(X, used_rows, None if targets is None else targets[used_rows])
        unit_bounds = [groups.compute_bounds(weights, positive) for positive in positives]
        return PathData(training, weights, positives, X, groups, unit_bounds)

    @staticmethod
    def _find_positive_rows(training: TrainingData) -> list[np.ndarray | None]:
        """Return a mask for each binary machine (one class against all others) that marks the rows of its positive class, bool
        [m], among the m rows of positive weight. Return ``[None]`` for regression.
        """
        if training.labels is None:
            return [None]
        labels = training.labels[training.used_rows]
        classes = int(labels.max()) + 1
        return [labels == k for k in range(1 if classes == 2 else 0, classes)]

    def _to_dense(self, X: Any) -> np.ndarray:
        """Return the rows X as a dense array. Raise a ValueError if X is sparse and has more than 10^9 values, zeros included."""
        if not sparse.issparse(X):
            return X
        if float(X.shape[0]) * X.shape[1] > MAX_DENSE_VALUES:
            raise ValueError(f"a sparse X of shape {X.shape} is too large to be made dense: project its features to fewer")
        return np.asarray(X.toarray())
