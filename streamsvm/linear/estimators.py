"""Linear support vector machines of more rows than memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from streamsvm.checks import check_number, check_one_of
from streamsvm.linear.files.block_file import BlockFile
from streamsvm.linear.fit import OutOfCoreLinear
from streamsvm.linear.memory_plan import DEFAULT_LIMIT
from streamsvm.linear.solvers.sweep import Loss
from streamsvm.sklearn_base import check_targets, class_weights, labels_of

__all__ = ["OutOfCoreLinearSVC", "OutOfCoreLinearSVR"]

_SMALLEST_C, _LARGEST_C = 1e-30, 1e30
_LARGEST_WHOLE = 2.0**53  # beyond it a float does not tell whole numbers apart


def _check_bound(C: float, what: str) -> None:
    """ValueError where coefficients would leave the range of float64, squared and summed."""
    if not _SMALLEST_C <= C <= _LARGEST_C:
        raise ValueError(f"{what} is {C:g}, out of {_SMALLEST_C:g} to {_LARGEST_C:g}: scale it")


class OutOfCoreLinearSVC(ClassifierMixin, OutOfCoreLinear):  # type: ignore[misc]
    """A linear support vector classifier of two classes that learns from a file, within a limit of memory.

    Coordinate ascent in the dual, which keeps the rows that are still undecided in a file of their own, and passes over that one
    again and again between passes over all: until the duality gap says that the result is the optimum. With the squared loss, and
    where the square of the number of features has room, Newton's method in the primal. The problem is that of scikit-learn's
    LinearSVC.

    Parameters
    ----------
    C
        What a row costs that is on the wrong side by the margin, times the weight of its class.
    loss
        ``"hinge"`` or ``"squared_hinge"``.
    fit_intercept
        Whether there is an intercept. It is penalised as any coefficient, as one of a feature that is ``intercept_scaling`` in
        all rows.
    intercept_scaling
        The larger, the less the intercept is penalised, and the more passes it takes.
    class_weight
        Of labels, numbers above 0; ``"balanced"``: n / (2 times the rows of the class); None: all 1.
    tol
        Duality gap, relative to the objective, at which it ends.
    max_iter
        Passes over as many rows as there are, at most; but for one with the C that is asked for, one over what is undecided, and
        one to measure the gap.
    memory_limit
        Bytes for rows, coefficients and everything else that fitting takes, beside what the interpreter has; and in `fit` beside
        the arrays given, copies of them where they are no arrays or CSR matrices of floats, and some 50 bytes a row for labels.
    work_folder
        Where there is to be a folder ``streamsvm-fit`` for block files, coefficients and what is undecided. None: a temporary
        one, for the time of a fit. If it is given, a fit that was killed goes on from the last pass that ended at least a second
        after the one kept before, if it is called again with the same rows, ``class_weight``, a ``random_state`` that is a
        number, and for arrays ``memory_limit``; a fit with another C starts from the coefficients of the last one; and text is
        parsed once. One fit at a time may use it.
    random_state
        Of the order of rows; None: another one each time.
    verbose
        Whether progress is shown on standard error.

    Attributes
    ----------
    classes_ : [2]
    coef_ : float64 [1, features]
    intercept_ : float64 [1]
    objective_ : float
        1/2 |w|^2 + C sum of losses, as it was measured over all rows.
    duality_gap_ : float
        Of it to the best there can be, at most.
    n_iter_ : int
        Passes over as many rows as there are.
    n_samples_fit_ : int
    history_ : list of Pass

    Raises
    ------
    ValueError
        A parameter is out of its range, there are not two labels, or ``memory_limit`` is too small; the message says what would
        do. Of files, also BlockFileError: it is damaged, cut off, or was changed while it was read.
    OSError
        A file cannot be read, or the disk is full.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` passes.

    Notes
    -----
    A pass is O(values that are not zero), and reads the file once; C is reached in steps of 4 from where a coefficient comes to
    it at once. Disk: the rows (8 bytes a value that is not zero, 4 where most are not, and 12 a row; twice for a while if they
    come sorted), 16 bytes a row for coefficients, twice what is undecided, and 8 bytes a feature for each fit that a work folder
    remembers. Memory beside blocks: 24 bytes a feature. Values are rounded to float32. Rows without values cost what they cost,
    and change nothing.

    Ctrl-C leaves the model as it was, and in ``work_folder`` what was kept.

    References
    ----------
    Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
    large-scale linear SVM. ICML, algorithm 1. The source of shrinking on disk ends after one round, and does not look again at
    rows that were left out: 8 % above the optimum on a9a.

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

    def __init__(
        self,
        C: float = 1.0,
        *,
        loss: str = "hinge",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: dict[Any, float] | str | None = None,
        tol: float = 1e-3,
        max_iter: int = 1000,
        memory_limit: float = DEFAULT_LIMIT,
        work_folder: str | Path | None = None,
        random_state: int | None = 0,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.memory_limit = memory_limit
        self.work_folder = work_folder
        self.random_state = random_state
        self.verbose = verbose

    def _check(self, Cs: Sequence[float]) -> None:
        super()._check(Cs)
        check_one_of("loss", self.loss, ("hinge", "squared_hinge"))

    def _labels(self, y: Any) -> np.ndarray:
        self.classes_, labels = labels_of(y, np.arange(len(y)))
        if len(self.classes_) != 2:
            # scikit-learn's checks look for these words
            raise ValueError(
                f"Only binary classification is supported: y has {len(self.classes_)} classes. "
                "Wrap it in sklearn.multiclass.OneVsRestClassifier"
            )
        self._positive, self._counts = 1.0, np.bincount(labels)
        return labels.astype(np.float64)

    def _label_counts(self, file: BlockFile) -> None:
        counts, names = file.label_counts, file.meta.get("classes")
        if counts is None or len(counts) != 2:
            shown = names if isinstance(names, list) else [f"{label:g}" for label in sorted(counts or ())]
            found = "more than 64" if counts is None else ", ".join(map(str, shown[:5]))
            raise ValueError(f"{file.path} must have two labels, and has {found}")
        labels = sorted(counts)
        if names is None:
            whole = all(label.is_integer() and abs(label) < _LARGEST_WHOLE for label in labels)
            self.classes_ = np.array(labels, np.int64 if whole else np.float64)
        else:  # of which labels are the places
            if not isinstance(names, list) or len(names) != 2 or labels != [0.0, 1.0]:
                raise ValueError(f"{file.path} has labels {labels} of classes {names!r}, which do not fit together")
            labels.sort(key=lambda label: str(names[int(label)]))
            self.classes_ = np.array([str(names[int(label)]) for label in labels])
        self._positive, self._counts = labels[1], np.array([counts[label] for label in labels])

    def _loss(self, C: float) -> Loss:
        weights = class_weights(self.class_weight, self.classes_, np.arange(2), self._counts.astype(np.float64))
        squared = self.loss == "squared_hinge"
        for label, weight in zip(self.classes_.tolist(), weights, strict=True):
            _check_bound(C * weight, f"C times the weight of class {label!r}")
        return Loss(False, squared, 0.0, self._bias, self._positive, float(C * weights[1]), float(C * weights[0]))

    def _coefficients(self, w: np.ndarray) -> np.ndarray:
        return w[np.newaxis].copy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Distances from the boundary, in units of the margin, of rows [n, features]: float64 [n], above 0: ``classes_[1]``."""
        return self._values(X)

    def predict(self, X: Any) -> np.ndarray:
        """Labels [n] of rows [n, features]."""
        f = self._values(X)
        return self.classes_[(f > 0.0).astype(np.int64)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class OutOfCoreLinearSVR(RegressorMixin, OutOfCoreLinear):  # type: ignore[misc]
    """Linear support vector regression that learns from a file, within a limit of memory: see `OutOfCoreLinearSVC`.

    Parameters
    ----------
    C
        What an error costs beyond ``epsilon``.
    loss
        ``"epsilon_insensitive"`` or ``"squared_epsilon_insensitive"``.
    epsilon
        Errors up to it cost nothing.
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

    def __init__(
        self,
        C: float = 1.0,
        *,
        loss: str = "epsilon_insensitive",
        epsilon: float = 0.0,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        tol: float = 1e-3,
        max_iter: int = 1000,
        memory_limit: float = DEFAULT_LIMIT,
        work_folder: str | Path | None = None,
        random_state: int | None = 0,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.loss = loss
        self.epsilon = epsilon
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.tol = tol
        self.max_iter = max_iter
        self.memory_limit = memory_limit
        self.work_folder = work_folder
        self.random_state = random_state
        self.verbose = verbose

    def _check(self, Cs: Sequence[float]) -> None:
        super()._check(Cs)
        check_one_of("loss", self.loss, ("epsilon_insensitive", "squared_epsilon_insensitive"))
        check_number("epsilon", self.epsilon, 0.0, inclusive=True)

    def _labels(self, y: Any) -> np.ndarray:
        y = np.asarray(y, np.float64)
        check_targets(y)
        return y

    def _label_counts(self, file: BlockFile) -> None:
        check_targets(np.array([file.mean_label]))  # what is beyond it in some rows shows in objectives that are not finite

    def _loss(self, C: float) -> Loss:
        _check_bound(C, "C")
        return Loss(True, self.loss != "epsilon_insensitive", float(self.epsilon), self._bias, 0.0, float(C), float(C))

    def _coefficients(self, w: np.ndarray) -> np.ndarray:
        return w.copy()

    def predict(self, X: Any) -> np.ndarray:
        """Values, float64 [n], of rows [n, features]."""
        return self._values(X)
