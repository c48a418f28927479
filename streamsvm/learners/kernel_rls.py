"""Kernel recursive least squares on landmarks (Nystroem features): the estimators, and functions that ensembles use, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from streamsvm.core.checks import OutputName, parameter
from streamsvm.core.memory.block import view_record
from streamsvm.core.memory.landmarks import CHUNK_ROWS, LandmarkStore, landmark_views
from streamsvm.core.steps import landmarks, least_squares
from streamsvm.core.steps.iterates import AVERAGE_ITERATE, DECISION, RULE_STATE_OFFSET
from streamsvm.core.steps.rule import Rule
from streamsvm.core.steps.triangle import row_start
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.estimator import learner
from streamsvm.learners.kernel_estimator import KernelEstimator
from streamsvm.learners.labels import MAX_CLASSES
from streamsvm.learners.regressor import OnlineRegressor

#: Initial values of fields of the update rule's state that are neither 0 nor parameters.
INITIAL_STATE = MappingProxyType({"next_refit": 1, "jitter": least_squares.MIN_JITTER})


def grow_outputs(block: np.ndarray, before: int, outputs: int, positive: int) -> None:
    """Increase the number of decision values of a kernel least squares model from ``before`` to ``outputs``, for new labels.
    ``block`` is its memory (one uint8 array), changed in place. If two labels shared one value so far, ``positive`` (0 or 1) is
    the index of the label for which it was above 0.

    A single output f becomes two: f for the positive label, and -f for the negative one. The targets of a new label are -1 in all
    rows so far. Its products are therefore the negative of those with the intercept's regressor, which are in the matrix S.
    """
    v, s = landmark_views(block), view_record(block, RULE_STATE_OFFSET, least_squares.STATE)
    size = int(v.header[0]["n_support"]) + 1
    if before == 1:
        for rows in (v.products, v.weights, v.corrections):
            output = rows[0].copy()
            rows[positive], rows[1 - positive] = output, -output
        for targets in (v.window_targets[: s["n_stored"]], v.targets[: s["n_buffered"]]):
            targets[:] = np.where(targets > 0.0, positive, 1 - positive)
        before = 2
    v.products[before:outputs, :size] = v.prior[:size] - v.moments[:size]
    v.weights[before:outputs, 0] = -1.0
    v.header[0]["n_outputs"] = outputs
    v.cache[0]["valid"] = 0


def has_label_targets(store: LandmarkStore, s: np.void) -> bool:
    """Return whether the target of each row that a kernel least squares classifier stores is valid: a label index, or 1 or -1 for
    two labels. ``store`` is the classifier's memory, and ``s`` the record in it that counts its rows.
    """
    v = store.views
    valid_targets = range(store.n_outputs) if store.n_outputs > 1 else (-1.0, 1.0)
    targets = np.append(v.window_targets[: s["n_stored"]], v.targets[: s["n_buffered"]])
    return bool(np.isin(targets, list(valid_targets)).all())


def check_stored_rows(store: LandmarkStore, s: Any) -> None:
    """Raise a ValueError if a saved kernel least squares model is corrupt: if the row counts in ``s``, a record of its state, do
    not fit its memory ``store``. Compiled code uses these counts as array indices.
    """
    v, n, stride, window = store.views, store.n_support + 1, int(store.views.header[0]["stride"]), len(store.views.window)
    n_stored, is_full = int(s["n_stored"]), bool(s["is_full"])
    diagonal = [row_start(j, stride) + j for j in range(n)]
    is_consistent = n_stored == window if is_full else n_stored < s["next_refit"] <= window
    if not is_consistent or (is_full and not (v.factor[diagonal] > 0.0).all()):
        raise ValueError("the saved model is corrupt: its stored rows do not fit its landmarks")


@learner
class KernelRLS(KernelEstimator):
    """The base of models that are the least-squares solution on kernel values with landmarks; see the update rule `landmarks`.

    Parameters
    ----------
    gamma
        The kernel parameter: a number above 0, or ``"scale"``. The larger it is, the narrower a Gaussian kernel is; the linear
        kernel ignores it. ``"scale"`` is one over the sum of the features' variances. It is estimated from the first 500 rows,
        updated with each of them, and fixed from then on. During these rows, the model is recomputed from time to time.
    """

    budget: int = field(default=300, kw_only=False)
    """The maximum number of landmarks, m. More landmarks can represent more detail, but the time per row grows with the square
    of their number: see the Notes of `KernelRLSClassifier`.
    """
    ridge: float = parameter(default=0.3, least=1e-9, high=1e9)
    """The penalty on the squared norm of the model in the kernel's space. It corresponds to 1 / (2 C) of a least-squares support
    vector machine, or in regression to the variance of the noise divided by that of the function. Increase it for noisy labels
    or targets.
    """
    forgetting_factor: float = parameter(default=1.0, least=0.5, high=1.0)
    """The factor from 0.5 to 1 that multiplies the weight of all earlier rows with each new row. With 1, nothing is forgotten.
    Below 1 the model adapts to concept drift, but also forgets regions that have had no rows for a long time. Use 0.999 for
    streams with permanent drift.
    """
    max_swaps: int = parameter(default=5, least=0, high=CHUNK_ROWS, integer=True)
    """The maximum number of landmark swaps in 256 rows, at most 64. With 0, the first landmarks are never replaced."""

    _rule = Rule(landmarks.learn_one, least_squares.STATE, least_squares.STATE_RANGES)
    _output_function = staticmethod(landmarks.compute_output)
    _changeable = KernelEstimator._changeable - {"budget"}  # the normal equations are those of the landmarks
    averaging = 1  # so that the second output, which has no corrections, can be chosen

    def __post_init__(self) -> None:
        super().__post_init__()
        self._write_rule_state()

    def _make_rule_state(self) -> dict[str, Any]:
        """Return the initial state of recursive least squares in the model's memory, as a dict of field name to value: its
        parameters and counters.
        """
        return {**super()._make_rule_state(), **INITIAL_STATE}

    def _make_store(self, outputs: int, columns: int) -> LandmarkStore:
        """Return a new memory for landmarks and normal equations (`LandmarkStore`), with room for ``outputs`` decision values and
        ``columns`` features.
        """
        return LandmarkStore(self.budget, self.max_features, outputs, columns=columns)

    def _make_store_attributes(self, store: LandmarkStore) -> dict[str, Any]:
        """Return the attributes that this model must set when it starts to use the memory ``store``, as a dict of name to value:
        views of the memory's arrays, and the number of decision values per row.
        """
        return {**super()._make_store_attributes(store), "_n_outputs": store.n_outputs}

    # Properties of the model ------------------------------------------------------------------------------------------------

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients of the landmarks that predictions currently use, float64 [outputs, n_support].

        With three or more classes, there is one output for each class.
        """
        return self._get_output_weights("auto")[:, 1:]

    @property
    def intercept(self) -> np.ndarray:
        """The intercept of each output that predictions currently use, float64 [outputs]."""
        return self._get_output_weights("auto")[:, 0]

    def _get_output_weights(self, output: OutputName) -> np.ndarray:
        """Return the intercept (column 0) and the coefficients of the landmarks, float64 [outputs, 1 + n_support]. ``output``
        selects the least-squares solution (``"average"``), this solution plus corrections for recent rows (``"last"``), or the
        one that predictions use (``"auto"``).
        """
        v, code, n = self._store.views, self._find_output_code(output), self.n_support + 1
        is_average = code == AVERAGE_ITERATE or (code == DECISION and self.follows_average)
        weights: np.ndarray = v.weights[: self._n_outputs, :n] + (0.0 if is_average else v.corrections[: self._n_outputs, :n])
        return weights

    @property
    def n_swaps(self) -> int:
        """The number of times that a landmark was replaced by another row of the stream so far."""
        return int(self._rule_record[0]["n_swaps"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        check_stored_rows(self._store, self._rule_record[0])


@learner
class KernelRLSClassifier(OnlineClassifier, KernelRLS):
    """A kernel classifier that learns row by row by recursive least squares on landmarks.

    This is a second-order method. Landmarks are rows of the stream, and the kernel values of a row with them are its regressors
    (the Nystroem approximation of the kernel). The model is the least-squares solution for labels of -1 and 1, over all rows so
    far. Each row therefore has its full effect immediately, while the first-order steps of `BSCAClassifier` need
    many rows, or several passes.

    The first rows become landmarks. Later, rows that were predicted badly and are not near a landmark replace landmarks that no
    rows are near. Memory only grows with new features and labels. The model does not scale rows: put a scaler in front of it.

    Notes
    -----
    There are two outputs, which correspond to the last and the average iterate of other learners. ``"average"`` is the
    least-squares solution, which is updated every 64 rows. ``"last"`` adds a correction for about the last ten rows, by
    normalised least mean squares, which helps if equal labels arrive in runs. Predictions follow the output that has made fewer
    errors recently.

    A row takes O(m^2) for m landmarks, mainly in matrix products for 64 rows: about 1, 4 and 7 microseconds with 100, 300 and 500
    landmarks and 10 features. A Cholesky factor is computed in O(m^3) at least every 1,024 rows, and whenever landmarks are
    swapped; this takes up to half as much time again, in the call of a single row. The normal equations are in float64, and take
    8 m^2 bytes with all related arrays; the factor, and sums over 64 rows, are in float32.

    Least squares fits each label to exactly -1 or 1, and the number of landmarks limits the detail. If the boundary between
    classes is very detailed, as in ijcnn1, `BSCAClassifier` is more accurate.

    References
    ----------
    [^1]: Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing
        52. There a dictionary grows by approximate linear dependence; here it has a budget.
    [^2]: Williams, C., Seeger, M. (2001). Using the Nystroem method to speed up kernel machines. NIPS 13.
    [^3]: Haykin, S. (2002). Adaptive Filter Theory (recursive least squares with a forgetting factor; normalised LMS).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelRLSClassifier

    >>> model = preprocessing.StandardScaler() | KernelRLSClassifier(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 1)
    0.9
    """

    max_classes: int = MAX_CLASSES

    def _grow_outputs(self, store: LandmarkStore, outputs: int) -> None:
        """Initialise the weights of new labels in ``store``, an enlarged copy of this model's memory with room for ``outputs``
        decision values.
        """
        grow_outputs(store.block, self._n_outputs, outputs, 0 if self._labels.is_positive_first else 1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._labels.outputs != self._store.n_outputs or not has_label_targets(self._store, self._rule_record[0]):
            raise ValueError(f"the saved model is corrupt: {len(self.labels)} labels do not fit its {self._n_outputs} outputs")

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "forgetting_factor": 0.99}
        yield {"budget": 10, "gamma": 1.0, "max_classes": 2, "max_swaps": 0}


@learner
class KernelRLSRegressor(OnlineRegressor, KernelRLS):
    """A kernel regression that learns row by row by recursive least squares on landmarks.

    Landmarks are rows of the stream. The model is the least-squares solution on the kernel values of rows with them, over all
    rows so far: see `KernelRLSClassifier`. It does not scale rows or targets: put a scaler in front of it. Targets should have a
    mean near 0 and a standard deviation near 1: wrap the model in ``river.preprocessing.TargetStandardScaler``.

    References
    ----------
    Engel, Y., Mannor, S., Meir, R. (2004). The kernel recursive least-squares algorithm. IEEE Trans. Signal Processing 52.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelRLSRegressor

    >>> model = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(KernelRLSRegressor(budget=100))
    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE()).get(), 1)
    0.4
    """

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "poly", "coef0": 1.0}
