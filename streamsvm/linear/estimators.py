"""Out-of-core linear support vector machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from sklearn.base import RegressorMixin

from streamsvm._options import ClassificationLoss, RegressionLoss
from streamsvm.checks import parameter
from streamsvm.linear.files.block_file import BlockFile
from streamsvm.linear.fit import OutOfCoreLinear
from streamsvm.linear.solvers.loss import Loss
from streamsvm.sklearn_base import SklearnClassifier, check_targets

__all__ = ["OutOfCoreLinearSVC", "OutOfCoreLinearSVR"]

_SMALLEST_C, _LARGEST_C = 1e-30, 1e30
_LARGEST_WHOLE = 2.0**53  # floats tell whole numbers apart up to it


def _check_bounds(C: float, what: str, file: BlockFile) -> None:
    """Refuse a C with which, times the weight of a row, sums of squared coefficients could leave the range of float64."""
    for weight in file.weights[:2]:
        if not _SMALLEST_C <= C * weight <= _LARGEST_C:
            times = f" times the weight of a row, {weight:g}," if file.weighted else ""
            raise ValueError(f"{what}{times} is {C * weight:g}, out of {_SMALLEST_C:g} to {_LARGEST_C:g}: scale it")


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfCoreLinearSVC(SklearnClassifier, OutOfCoreLinear):
    """A linear support vector classifier of two classes that learns from a file, within a memory limit.

    Coordinate ascent in the dual, with the rows whose coefficients are free in a file of their own, the working set: most passes
    read that one only, and a pass over all rows follows now and then, until the duality gap shows that the result is the optimum.
    With the squared loss, and few enough features for a Hessian in memory, Newton's method in the primal. The problem is that of
    scikit-learn's LinearSVC.

    Parameters
    ----------
    C
        Cost of a row that is on the wrong side by the margin, times the weight of its class and that of the row.
    loss
        ``"hinge"`` or ``"squared_hinge"``.
    fit_intercept
        Whether there is an intercept. It is penalised like any coefficient: that of a feature which is ``intercept_scaling`` in
        all rows.
    intercept_scaling
        The larger, the less the intercept is penalised, and the more passes a fit takes.
    class_weight
        Of labels, numbers above 0; ``"balanced"``: n / (2 times the rows of the class), where rows count by their weights;
        None: all 1.
    tol
        Duality gap, relative to the objective, at which a fit ends.
    max_iter
        Passes, of as many steps as there are rows, at most; one pass with the final C, one over its working set, and one to
        measure the gap may follow.
    memory_limit
        Bytes for rows, coefficients and everything else that a fit takes, beside what the interpreter has; and in `fit` beside
        the arrays given, copies of them where they are no arrays or CSR matrices of floats, and some 50 bytes a row for labels.
    work_folder
        Folder in which a folder ``streamsvm-fit`` for block files, coefficients and the working set is made. None: a temporary
        one, for the time of a fit. If it is given, a killed fit goes on from its saved state, which is at most a pass and a
        second old, when it is called again with the same rows, ``class_weight``, a ``random_state`` that is a number, and for
        arrays ``memory_limit``; a fit with another C starts from the coefficients of the last one; and text is parsed once. One
        fit at a time may use it.
    random_state
        Seed of the order of rows; None: another one each time.
    verbose
        Whether progress is shown on standard error.

    Attributes
    ----------
    classes_ : [2]
    coef_ : float64 [1, features]
    intercept_ : float64 [1]
    objective_ : float
        1/2 |w|^2 + C sum of losses, measured over all rows.
    duality_gap_ : float
        The objective is above the optimum by at most this.
    n_iter_ : int
        Passes, of as many steps as there are rows.
    n_samples_fit_ : int
        Rows, without those of weight 0.
    history_ : list of Pass

    Raises
    ------
    ValueError
        A parameter is out of its range, there are not two labels, or ``memory_limit`` is too small; the message says what would
        do. For files also BlockFileError: it is corrupt, cut off, or was changed while it was read.
    OSError
        A file cannot be read, or the disk is full.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` passes.

    Notes
    -----
    Predictions and a pass are O(values that are not zero); a pass reads the file once. C rises by steps of 4, from one that a
    coefficient reaches in a step. Disk: the rows (8 bytes a value that is not zero, or 4 bytes a value where most are not zero,
    and 12 bytes a row, 20 with weights; for a while twice that if they come sorted), 16 bytes a row for coefficients, twice the
    working set, and 8 bytes a feature for each solution that is saved in a work folder. Memory beside blocks: 24 bytes a feature.
    Values are rounded to float32. Rows without values count in the objective and change nothing.

    Ctrl-C leaves the model as it was, and in ``work_folder`` what was saved.

    References
    ----------
    Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
    large-scale linear SVM. ICML, algorithm 1. Its shrinking on disk ends after one round, and does not check the rows again that
    were left out: on a9a that ends 8 % above the optimum.

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
    class_weight: dict[Any, float] | Literal["balanced"] | None = None

    def _labels(self, y: Any, weights: np.ndarray | None) -> np.ndarray:
        labels = self._number_classes(y, np.arange(len(y)) if weights is None else np.flatnonzero(weights))
        if len(self.classes_) != 2:
            # scikit-learn's checks look for these words
            raise ValueError(
                f"Only binary classification is supported: y has {len(self.classes_)} classes. "
                "Wrap it in sklearn.multiclass.OneVsRestClassifier"
            )
        self._positive, self._counts = 1.0, np.bincount(labels, weights).astype(np.float64)
        return labels.astype(np.float64)

    def _read_labels(self, file: BlockFile) -> None:
        counts, names = file.label_counts, file.meta.get("classes")
        if counts is None or len(counts) != 2:
            shown = names if isinstance(names, list) else [f"{label:g}" for label in sorted(counts or ())]
            found = "more than 64" if counts is None else ", ".join(map(str, shown[:5]))
            raise ValueError(f"{file.path} must have two labels, and has {found}")
        labels = sorted(counts)
        if names is None:
            whole = all(label.is_integer() and abs(label) < _LARGEST_WHOLE for label in labels)
            self.classes_: np.ndarray = np.array(labels, np.int64 if whole else np.float64)
        else:  # labels are places in the list of names
            if not isinstance(names, list) or len(names) != 2 or labels != [0.0, 1.0]:
                raise ValueError(f"{file.path} has labels {labels} of classes {names!r}, which do not fit together")
            labels.sort(key=lambda label: str(names[int(label)]))
            self.classes_ = np.array([str(names[int(label)]) for label in labels])
        sums = file.label_weights or {}
        self._positive, self._counts = labels[1], np.array([sums[label] for label in labels], np.float64)

    def _loss(self, C: float, file: BlockFile) -> Loss:
        weights = self._class_weights(np.arange(2), self._counts)
        for label, weight in zip(self.classes_.tolist(), weights, strict=True):
            _check_bounds(C * weight, f"C times the weight of class {label!r}", file)
        negative, positive = (float(C * weight) for weight in weights)
        return Loss(False, self.loss == "squared_hinge", 0.0, self._constant, self._positive, positive, negative)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfCoreLinearSVR(RegressorMixin, OutOfCoreLinear):  # type: ignore[misc]
    """Linear support vector regression that learns from a file, within a memory limit: see `OutOfCoreLinearSVC`.

    Parameters
    ----------
    C
        Cost of an error, as far as it is above ``epsilon``, times the weight of its row.
    loss
        ``"epsilon_insensitive"`` or ``"squared_epsilon_insensitive"``.
    epsilon
        The largest error that costs nothing.
    fit_intercept, intercept_scaling, tol, max_iter, memory_limit, work_folder, random_state, verbose
        As in `OutOfCoreLinearSVC`.

    Attributes
    ----------
    coef_ : float64 [features]
    intercept_, objective_, duality_gap_, n_iter_, n_samples_fit_, history_
        As in `OutOfCoreLinearSVC`.

    Raises
    ------
    ValueError, OSError
        As `OutOfCoreLinearSVC`.

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
    epsilon: float = parameter(default=0.0, least=0.0)

    def _labels(self, y: Any, weights: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        y = np.asarray(y, np.float64)
        check_targets(y)
        return y

    def _read_labels(self, file: BlockFile) -> None:
        check_targets(np.array([file.mean_label]))  # single targets that are too large make the objective infinite

    def _loss(self, C: float, file: BlockFile) -> Loss:
        _check_bounds(C, "C", file)
        squared = self.loss == "squared_epsilon_insensitive"
        return Loss(True, squared, float(self.epsilon), self._constant, 0.0, float(C), float(C))
