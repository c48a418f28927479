"""Kernel machines that are fitted for several values of C together."""

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

_FEW_FEATURES = 12
_SIZES, _LARGE_SIZES = (256, 50), (512, 100)  # of leaves and skeletons, for few features and for more
_MANY_ROWS, _LARGEST_FACTOR = 50_000, 4.0  # fewer rows have larger leaves and skeletons, which cost less there


def choose_forest_sizes(n: int, d: int) -> tuple[int, int]:
    """Return the rows of a leaf, at most, and the rank that a forest has by default for n rows of d features."""
    leaf_size, rank = _SIZES if d <= _FEW_FEATURES else _LARGE_SIZES
    factor = min(max(_MANY_ROWS / n, 1.0), _LARGEST_FACTOR)
    return int(factor * leaf_size), int(factor * rank)


#: The most values of a sparse X that is made dense.
LARGEST_DENSE = 1e9


class PathData(NamedTuple):
    """Rows, weights and bounds that the fits of all C share."""

    training: TrainingData
    weights: np.ndarray  # float64 [counted]: of the rows that count
    positives: list[np.ndarray | None]  # of each machine, which of these are of its positive class; None: regression
    X: np.ndarray  # all rows as an array
    groups: RowGroups
    unit_bounds: list[Bounds]  # of each machine, the bounds at C = 1

    def expand_coefficients(self, b: Iterable[np.ndarray], C: float) -> np.ndarray:
        """Return the coefficients of all rows, float64 [machines, n], from those of each machine's groups, for one C."""
        out = np.zeros((len(self.positives), len(self.training.weights)))
        for row, of_groups, positive in zip(out, b, self.positives, strict=True):
            row[self.training.counted] = self.groups.split_coefficients(of_groups, C * self.weights, positive)
        return out


@dataclass(eq=False, repr=False, kw_only=True)
class PathMachine(PathEstimator, KernelMachine):
    """A machine whose fits share what does not depend on C; of more than two classes, each has a machine against all others.

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
        return "CSMOClassifier" if is_classifier(self) else "CSMORegressor"

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        super()._check_parameters(Cs)
        check_one_of("kernel", self.kernel, self._kernels)

    def _check_or_auto(self, name: str, least: float, **how: Any) -> None:
        """Check a parameter that is a number or ``"auto"``."""
        value = getattr(self, name)
        if isinstance(value, str):
            check_one_of(name, value, ("auto",))
        else:
            check_number(name, value, least, inclusive=True, **how)

    def _prepare_path(self, Cs: Sequence[float], X: Any, y: Any, sample_weight: Any) -> PathData:
        """Check parameters and rows, and make what the fits of all C share."""
        self._check_parameters(Cs)
        training = self._prepare_training(X, y, sample_weight)
        counted, targets = training.counted, training.targets
        weights, sides = training.weights[counted], self._find_positive_rows(training)
        for C in Cs:
            check_bounds(C * weights)
        dense = self._to_dense(training.X)
        groups = RowGroups(dense, counted, None if targets is None else targets[counted])
        units = [groups.compute_bounds(weights, positive) for positive in sides]
        return PathData(training, weights, sides, dense, groups, units)

    @staticmethod
    def _find_positive_rows(training: TrainingData) -> list[np.ndarray | None]:
        """Return for each machine which of the rows that count are of its positive class, bool [n]; None: regression."""
        if training.labels is None:
            return [None]
        labels = training.labels[training.counted]
        classes = int(labels.max()) + 1
        return [labels == k for k in range(1 if classes == 2 else 0, classes)]

    def _to_dense(self, X: Any) -> np.ndarray:
        if not sparse.issparse(X):
            return X
        if float(X.shape[0]) * X.shape[1] > LARGEST_DENSE:
            raise ValueError(f"a sparse X of shape {X.shape} is too large to be made dense: project its features to fewer")
        return np.asarray(X.toarray())
