"""Out-of-core linear support vector machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from sklearn.base import RegressorMixin

from streamsvm.core.checks import ClassificationLoss, RegressionLoss, parameter
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.sklearn_base import SklearnClassifier, check_targets
from streamsvm.linear.block_file import BlockFile
from streamsvm.linear.fit import OutOfCoreLinear
from streamsvm.linear.solution import LinearLoss

_MIN_C, _MAX_C = 1e-30, 1e30
_MAX_EXACT_INTEGER = 2.0**53  # float64 represents all integers up to it exactly


def _check_bounds(C: float, name: str, file: BlockFile) -> None:
    """Raise a ValueError that names the parameter ``name`` if its value ``C``, multiplied by the smallest or largest row weight
    of the file, is so small or large that the solver's sums could overflow.
    """
    for weight in file.weights[:2]:
        if not _MIN_C <= C * weight <= _MAX_C:
            factor = f" times the weight of a row, {weight:g}," if file.weighted else ""
            raise ValueError(f"{name}{factor} is {C * weight:g}, outside {_MIN_C:g} to {_MAX_C:g}: scale it")


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class OutOfCoreLinearSVC(SklearnClassifier, OutOfCoreLinear):
    """A linear support vector classifier of two classes that learns from a file, within a memory limit.

    Use `fit_file` for rows on disk, and `fit` for arrays. It solves the problem of scikit-learn's LinearSVC to the optimum, and
    reports how close it is. For more classes, wrap it in ``sklearn.multiclass.OneVsRestClassifier``.

    The solver is coordinate ascent in the dual. Rows whose coefficients are free (between their bounds) are stored in a second
    file, the working set, and most passes read only that file. From time to time, a pass over all rows follows, until the duality
    gap shows that the result is the optimum. With the squared loss, and a Hessian that fits into memory, the solver is Newton's
    method in the primal instead.

    Attributes
    ----------
    classes_ : [2]
        The labels, sorted.

    Notes
    -----
    Predictions and a pass cost O(non-zero values). A pass reads the file once. Values are rounded to float32. C rises in steps
    of a factor of 4, from a value that a coefficient reaches in one step. Empty rows count in the objective, but do not affect
    the model.

    Disk: 8 bytes per non-zero value, or 4 bytes per value if most are not zero; 12 bytes per row, or 20 with weights; temporarily
    twice as much if the rows are sorted by label; 16 bytes per row for coefficients; twice the working set; and 8 bytes per
    feature for each solution that is saved in a work folder. Memory in addition to the blocks: 24 bytes per feature.

    Ctrl-C leaves the model unchanged, and the saved state in the work folder.

    References
    ----------
    Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
    large-scale linear SVM. ICML, algorithm 1. Its shrinking on disk stops after one round, without checking the removed rows
    again; on a9a, that ends 8 % above the optimum.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.linear import OutOfCoreLinearSVC

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> model = OutOfCoreLinearSVC(memory_limit=2**20).fit(X, y)
    >>> model.score(X, y) > 0.98, model.duality_gap_ <= 1e-3 * model.objective_
    (True, True)
    """

    loss: ClassificationLoss = parameter(default="hinge", choices=get_args(ClassificationLoss))
    """``"hinge"`` or ``"squared_hinge"``."""
    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    """Weights of the classes: factors of C. A dictionary maps labels to numbers above 0; labels that it does not contain have
    weight 1. ``"balanced"`` is n / (2 * rows of the class), where rows count by their weights. None gives both classes weight 1.
    Use ``"balanced"`` when one class is rare.
    """

    def _encode_labels(self, y: Any, weights: np.ndarray | None) -> np.ndarray:
        labels = self._index_classes(y, np.arange(len(y)) if weights is None else np.flatnonzero(weights))
        if len(self.classes_) != 2:
            # scikit-learn's checks expect this sentence
            raise ValueError(
                f"Only binary classification is supported: y has {len(self.classes_)} classes. "
                "Wrap it in sklearn.multiclass.OneVsRestClassifier"
            )
        self._positive_label, self._label_weights = 1.0, np.bincount(labels, weights).astype(np.float64)
        return labels.astype(np.float64)

    def _load_labels(self, file: BlockFile) -> None:
        counts, names = file.label_counts, file.meta.get("classes")
        if counts is None or len(counts) != 2:
            labels_in_file = names if isinstance(names, list) else [f"{label:g}" for label in sorted(counts or ())]
            listing = "more than 64" if counts is None else ", ".join(map(str, labels_in_file[:5]))
            raise ValueError(f"{file.path} must have two labels, but has {listing}")
        labels = sorted(counts)
        if names is None:
            are_integers = all(label.is_integer() and abs(label) < _MAX_EXACT_INTEGER for label in labels)
            self.classes_: np.ndarray = np.array(labels, np.int64 if are_integers else np.float64)
        else:  # labels are indices into the list of names
            if not isinstance(names, list) or len(names) != 2 or labels != [0.0, 1.0]:
                raise ValueError(f"{file.path} has labels {labels} of classes {names!r}, which do not match")
            labels.sort(key=lambda label: str(names[int(label)]))
            self.classes_ = np.array([str(names[int(label)]) for label in labels])
        sums = file.label_weights or {}
        self._positive_label, self._label_weights = labels[1], np.array([sums[label] for label in labels], np.float64)

    def _make_loss(self, C: float, file: BlockFile) -> LinearLoss:
        weights = self._compute_class_weights(np.arange(2), self._label_weights)
        for label, weight in zip(self.classes_.tolist(), weights, strict=True):
            _check_bounds(C * weight, f"C times the weight of class {label!r}", file)
        negative, positive = (float(C * weight) for weight in weights)
        return LinearLoss(False, self.loss == "squared_hinge", 0.0, self._constant, self._positive_label, positive, negative)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class OutOfCoreLinearSVR(RegressorMixin, OutOfCoreLinear):  # type: ignore[misc]
    """Linear support vector regression that learns from a file, within a memory limit.

    Use `fit_file` for rows on disk, and `fit` for arrays. `OutOfCoreLinearSVC` describes the solver.

    References
    ----------
    Ho, C.-H., Lin, C.-J. (2012). Large-scale linear support vector regression. JMLR 13.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from streamsvm.linear import OutOfCoreLinearSVR

    >>> X, y = load_diabetes(return_X_y=True, scaled=False)
    >>> X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    >>> print(f"{OutOfCoreLinearSVR().fit(X, y).score(X, y):.1f}")
    0.5
    """

    loss: RegressionLoss = parameter(default="epsilon_insensitive", choices=get_args(RegressionLoss))
    """``"epsilon_insensitive"`` or ``"squared_epsilon_insensitive"``."""
    epsilon: float = parameter(default=0.0, least=0.0)
    """Largest error without a loss, in the units of y; at least 0."""

    def _encode_labels(self, y: Any, weights: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        y = np.asarray(y, np.float64)
        check_targets(y)
        return y

    def _load_labels(self, file: BlockFile) -> None:
        check_targets(np.array([file.mean_label]))  # a single target that is too large makes the objective infinite

    def _make_loss(self, C: float, file: BlockFile) -> LinearLoss:
        _check_bounds(C, "C", file)
        squared = self.loss == "squared_epsilon_insensitive"
        return LinearLoss(True, squared, float(self.epsilon), self._constant, 0.0, float(C), float(C))
