"""Kernel recursive least squares on landmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from streamsvm._options import Gamma, KernelName, OutputName, Overflow
from streamsvm.checks import parameter
from streamsvm.kernels import KERNELS, check_learner_kernel
from streamsvm.learners import normal_equations
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.compiled import kernel_rls, least_squares
from streamsvm.learners.compiled.iterates import AVERAGE, CHOSEN
from streamsvm.learners.compiled.rule import REFUSED, Rule
from streamsvm.learners.compiled.step import GAMMA_ROWS
from streamsvm.learners.estimator import OnlineEstimator, learner
from streamsvm.learners.regressor import OnlineRegressor
from streamsvm.memory.features import OVERFLOW
from streamsvm.memory.landmarks import CHUNK_ROWS, LandmarkStore

__all__ = ["KernelRLSClassifier", "KernelRLSRegressor"]


@learner
class KernelRLS(OnlineEstimator):
    """A model that is the least-squares solution on kernel values with landmarks, and the rule of `kernel_rls`."""

    budget: int = field(default=300, kw_only=False)
    kernel: KernelName = parameter(default="rbf", choices=KERNELS)
    gamma: Gamma = "scale"
    degree: int = parameter(default=3, least=1, high=100, integer=True)
    coef0: float = 0.0
    ridge: float = parameter(default=0.3, least=1e-9, high=1e9)
    forgetting_factor: float = parameter(default=1.0, least=0.5, high=1.0)
    max_swaps: int = parameter(default=5, least=0, high=CHUNK_ROWS, integer=True)
    max_features: int = 256
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW)

    #: The row at hand in the store, float32 [max_features], and its decision values: looked up once, as each row needs them.
    _row: np.ndarray = field(init=False)
    _scores: np.ndarray = field(init=False)

    _rule = Rule(kernel_rls.learn_one, kernel_rls.learn_many, least_squares.STATE, least_squares.LEARNED)
    averaging = 1  # there is a second output to choose: that without corrections

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_learner_kernel(self.kernel, self.gamma, self.coef0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._row, self._scores = self._store.views.rows[0], self._store.views.scores
        header, gamma = self._store.views.header, 1.0 if isinstance(self.gamma, str) else self.gamma
        header["kernel"], header["gamma"], header["coef0"], header["degree"] = (
            KERNELS[self.kernel],
            gamma,
            self.coef0,
            self.degree,
        )
        self._common["gamma_rows"] = 0 if self.gamma == "scale" else -1
        self._set_rule_state()

    def _rule_state(self) -> dict[str, Any]:
        return {**super()._rule_state(), **normal_equations.FIRST_STATE}

    def _make_store(self) -> LandmarkStore:
        return LandmarkStore(self.budget, self.max_features, self._most_outputs)

    @property
    def _most_outputs(self) -> int:
        return 1

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:
        store, n_features = self._store, self._store.used
        try:
            if self._features.fill(self._row, x, True):
                store.used = len(self._features)
            if outputs != self._outputs:
                self._check_row(x)
                self._resize(outputs)
        except BaseException:  # an interrupt as well
            self._forget(n_features, self._outputs)
            raise
        if kernel_rls.learn_one(self._block, target, weight) == REFUSED:
            self._forget(n_features, self._outputs)
            self._features.complain_not_finite(x)

    def _check_row(self, x: Mapping[Any, Any]) -> None:
        # Before anything is changed for it.
        if np.isnan(kernel_rls.decide(self._block, CHOSEN)):
            self._features.complain_not_finite(x)

    def _decide_row(self, x: Mapping[Any, Any], what: int) -> float:
        self._features.fill(self._row, x, False)
        f: float = kernel_rls.decide(self._block, what)
        if f != f:
            self._features.complain_not_finite(x)
        return f

    def _first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        return int(kernel_rls.first_refused(self._block, matrix, columns))

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, out: np.ndarray) -> None:
        kernel_rls.decide_many(self._block, matrix, columns, what, out)

    # What the model is ------------------------------------------------------------------------------------------------------

    @property
    def n_support(self) -> int:
        """Landmarks that the model has now, at most ``budget``."""
        return self._store.n_support

    @property
    def support_vectors(self) -> np.ndarray:
        """float32 [n_support, features seen]: a copy of the landmarks; columns in the order of `feature_names`."""
        return self._store.vectors

    @property
    def coefficients(self) -> np.ndarray:
        """float64 [outputs, n_support], of what predictions follow. Three and more classes have an output each."""
        return self._weights("auto")[:, 1:]

    @property
    def intercept(self) -> np.ndarray:
        """float64 [outputs], of what predictions follow."""
        return self._weights("auto")[:, 0]

    def _weights(self, output: OutputName) -> np.ndarray:
        v, what, n = self._store.views, self._output(output), self.n_support + 1
        slow = what == AVERAGE or (what == CHOSEN and self.averaged)
        weights: np.ndarray = v.weights[: self._outputs, :n] + (0.0 if slow else v.corrections[: self._outputs, :n])
        return weights

    @property
    def effective_gamma(self) -> float:
        """The gamma in use: the one given, or the one that ``"scale"`` has found so far."""
        return float(self._store.views.header[0]["gamma"])

    @property
    def n_swaps(self) -> int:
        """Landmarks so far that came after the first rows."""
        return int(self._own[0]["n_swaps"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._outputs = self._store.live
        normal_equations.check_work(self._store, self._own[0])

    def _fixed(self) -> dict[str, Any]:
        header = self._store.views.header[0]
        given = {} if self.gamma == "scale" else {"gamma": self.effective_gamma}
        return {"kernel": header["kernel"], "degree": header["degree"], "coef0": header["coef0"], **given}

    def _learned(self) -> dict[str, tuple[float, float]]:
        return {"gamma_rows": (0, GAMMA_ROWS)} if self.gamma == "scale" else {}


@learner
class KernelRLSClassifier(OnlineClassifier, KernelRLS):
    """A kernel classifier that learns row by row by recursive least squares on landmarks, a second-order method.

    A row's regressors are its kernel values with landmarks, which are rows of the stream (the Nystroem approximation of the
    kernel). The model is the least-squares solution of labels of -1 and 1 on them, over all rows so far: so each row counts in
    full at once, where the first-order steps of `BSCAClassifier` need many rows, or several passes. The first rows become
    landmarks; later, rows that were predicted badly and that no landmark is near take the places of landmarks that no rows come
    near. Memory is allocated once and never grows.

    Parameters
    ----------
    budget
        Landmarks, at most.
    kernel, gamma, degree, coef0
        As in `BSGDClassifier`. While ``gamma="scale"`` is found, all is computed anew with it from time to time.
    ridge
        The penalty of the squared norm in the kernel's space, in rows: 1 / (2 C) of a least-squares support vector machine.
    forgetting_factor
        By what the weight of all rows so far is multiplied with each row. 1: nothing is forgotten. Below 1 the model follows a
        drift, but forgets what it knows where the rows stay away for long: 0.999 is for streams that drift all the time.
    max_swaps
        Landmarks that may be swapped in 256 rows. 0: those of the first rows stay.
    max_classes
        Labels that there is room for; with three and more, each has an output, and all have the landmarks in common.
    max_features, overflow, class_weight
        As in `BSGDClassifier`.

    Attributes
    ----------
    support_vectors : float32 [n_support, features seen]
        The landmarks.
    coefficients, intercept : float64 [outputs, n_support] and [outputs]
    n_support, n_swaps, n_learned, nbytes : int
    effective_gamma : float

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Notes
    -----
    There are two outputs, as those of the last and the average iterate of other learners: ``"average"`` is the least-squares
    solution, which takes rows 64 at a time; ``"last"`` is that and a correction for the last ten rows or so, by normalised least
    mean squares, which pays where labels come in runs. Predictions follow the one that has made fewer errors recently.

    O(m^2) a row for m landmarks, most of it in matrix products of 64 rows: about 1, 3 and 6 us a row for 100, 300 and 500
    landmarks of 10 features. A Cholesky factor, O(m^3), is made anew every 1,024 rows or earlier, and where landmarks were
    swapped: up to half as much again. All of this is done in small parts, so that no row waits for more than .2 ms of it with 500
    landmarks or fewer. The normal equations are in float64, and need 10 m^2 bytes with all that belongs to them; factors and sums
    within 64 rows are in float32.

    Least squares asks each label to be -1 or 1 exactly, and landmarks resolve no more than their number allows: where the classes
    meet in many places, as in ijcnn1, `BSCAClassifier` is more accurate.

    References
    ----------
    [^1]: Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing 52.
        There a dictionary grows by approximate linear dependence; here it has a budget.
    [^2]: Williams, C., Seeger, M. (2001). Using the Nystroem method to speed up kernel machines. NIPS 13.
    [^3]: Haykin, S. (2002). Adaptive Filter Theory (recursive least squares with a forgetting factor; normalised LMS).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelRLSClassifier

    >>> model = preprocessing.StandardScaler() | KernelRLSClassifier(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 89.58%
    """

    max_classes: int = 10

    @property
    def _most_outputs(self) -> int:
        return self.max_classes if self.max_classes > 2 else 1

    def _resize(self, outputs: int) -> None:
        normal_equations.widen(self._block, self._outputs, outputs, 0 if self._labels.positive_comes_first else 1)
        self._outputs = outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._labels.outputs != self._outputs or not normal_equations.holds_labels(self._store, self._own[0]):
            raise ValueError(f"the saved model is corrupt: {len(self.labels)} labels do not fit its {self._outputs} outputs")

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "forgetting_factor": 0.99}
        yield {"budget": 10, "gamma": 1.0, "max_classes": 2, "max_swaps": 0}


@learner
class KernelRLSRegressor(OnlineRegressor, KernelRLS):
    """A kernel regression that learns row by row by recursive least squares on landmarks: see `KernelRLSClassifier`.

    Targets should be about 0 and about 1 in size: wrap the model in ``river.preprocessing.TargetStandardScaler``.

    Parameters
    ----------
    budget, kernel, gamma, degree, coef0, forgetting_factor, max_swaps, max_features, overflow
        As in `KernelRLSClassifier`.
    ridge
        The penalty of the squared norm in the kernel's space, in rows: the variance of the noise over that of the function.

    Attributes
    ----------
    support_vectors, coefficients, intercept, n_support, n_swaps, n_learned, nbytes, effective_gamma
        As in `KernelRLSClassifier`.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    References
    ----------
    Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing 52.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelRLSRegressor

    >>> model = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(KernelRLSRegressor(budget=100))
    >>> evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
    MAE: 0.436077
    """

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "poly", "coef0": 1.0}
