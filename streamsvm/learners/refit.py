"""Refitting of a model's coefficients to rows that are distributed over partitions, in sums that are added up.

A refit minimises the sum over rows of weight times loss, plus ridge / 2 |f|^2, in the coefficients of the model's current support
vectors, or in the weights of a linear model. The loss is max(0, 1 - y f)^2 / 2 for two labels; max(0, 1 - f_y + f_j)^2 / 4 for
more, where j is the best other label; and (y - f)^2 / 2 for regression. A step is one of Newton's method (Mangasarian 2002, A
finite Newton method for classification), for each output: the `NormalEquations` of all rows determine its direction, and a
`LineSearch` over all rows its length and the scale of the probabilities. Rows never leave their partitions: only these sums do.

Decision values are linear in the functions of a basis: the kernel values of support vectors, or the features (`make_basis`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from streamsvm.core.frames import make_batch
from streamsvm.core.kernels import compute_kernel_matrix
from streamsvm.core.sparse import scatter_columns
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE


def read_kernel_parameters(model: Any) -> tuple[int, float, float, int]:
    """Return the kernel parameters that ``model`` currently uses: the number of the kernel (linear, polynomial or Gaussian),
    gamma, coef0 and degree, as arguments for `compute_kernel_matrix`.
    """
    h = model._store.views.header[0]
    return h["kernel"], h["gamma"], h["coef0"], h["degree"]


class SupportVectorBasis(NamedTuple):
    """The kernel values with a model's support vectors, as a basis. The intercept is not fitted."""

    model: Any
    vectors: np.ndarray  # float64 [B, features], scaled
    coefficients: np.ndarray  # float64 [outputs, B]: the current ones of the model
    intercept: np.ndarray  # float64 [outputs]

    def compute_values(self, X: np.ndarray) -> np.ndarray:
        """Return the kernel values of the rows ``X`` [n, features], which are not scaled yet, with the model's B support vectors:
        float64 [n, B].
        """
        scale = self.model.scale_in_use
        return compute_kernel_matrix(
            *read_kernel_parameters(self.model), X.astype(np.float64) if scale is None else scale.transform(X), self.vectors
        )

    def compute_penalty(self) -> np.ndarray:
        """Return the matrix P, float64 [B, B], with which a P a' is the penalty on the model's coefficients a: the kernel matrix
        of its B support vectors.
        """
        return compute_kernel_matrix(*read_kernel_parameters(self.model), self.vectors, self.vectors)

    def set_coefficients(self, coefficients: np.ndarray) -> None:
        """Replace the coefficients of the model's B support vectors by ``coefficients``, float64 [outputs, B]. Its intercepts do
        not change.
        """
        self.model.set_coefficients(coefficients, self.intercept)


class FeatureBasis(NamedTuple):
    """The features of a linear model as a basis, with a constant 1 if an intercept is fitted."""

    model: Any
    coefficients: np.ndarray  # float64 [1, B]: the current weights of the model
    intercept: float  # the intercept, if it is not fitted

    def compute_values(self, X: np.ndarray) -> np.ndarray:
        """Return the matrix, float64 [n, B], that gives the decision values of the rows ``X`` [n, features] when multiplied by
        the linear model's weights: X, with a column of ones added if the model fits an intercept.
        """
        return np.hstack([X.astype(np.float64), np.ones((len(X), self.coefficients.shape[1] - X.shape[1]))])

    def compute_penalty(self) -> np.ndarray:
        """Return the matrix P, float64 [B, B], with which w P w' is the penalty on the weights w of a linear model: the identity
        matrix. The weights include the intercept if the model fits one.
        """
        return np.eye(self.coefficients.shape[1])

    def set_coefficients(self, coefficients: np.ndarray) -> None:
        """Replace the weights of the linear model by ``coefficients``, float64 [1, B], whose last column is the intercept if that
        is fitted.
        """
        weights, intercept = np.split(coefficients[0], [self.model._store.used])
        self.model.set_coefficients(weights, float(intercept[0]) if len(intercept) else self.intercept)


def make_basis(model: Any) -> SupportVectorBasis | FeatureBasis:
    """Return an object that computes the columns whose weighted sum is the decision function of ``model``: kernel values with its
    support vectors (`SupportVectorBasis`), or the features if the model is linear (`FeatureBasis`).
    """
    if hasattr(model, "support_vectors"):
        return SupportVectorBasis(model, model.support_vectors.astype(np.float64), model.coefficients, model.intercept)
    if model.fit_intercept:
        return FeatureBasis(model, np.append(model.coefficients, model.intercept)[None], 0.0)
    return FeatureBasis(model, model.coefficients[None], model.intercept)


#: Default ridge penalty of a refit. It was chosen on four data sets and confirmed on four others: see `docs/spark.md`. For linear
#: models, any value from .1 to 100 is as good.
RIDGE = 0.1

_JITTER = 1e-9  # is added to the diagonal, times its mean: nearly equal support vectors make the matrix singular
_CHUNK_ROWS = 2000  # the number of rows whose kernel values are in memory at a time
_STEP_SIZES = np.array([1.0, 0.5, 0.25, 0.0])
_FACTORS = np.exp(np.linspace(-4.0, 8.0, 25))  # from decision values to log odds
_N_MEASURES = 4  # sums of weights, losses, errors and absolute decision values; log losses for each factor follow


def compute_residuals(
    F: np.ndarray, targets: np.ndarray, margins: np.ndarray, is_regression: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the residuals of the decision values ``F`` [n, outputs], float64 of the same shape, and a bool mask of those that
    add to the loss. A residual is the change that F needs to equal the ``targets`` [n] in regression; in classification, to
    favour the label in ``targets`` [n] by the row's margin in ``margins`` [n].

    Parameters
    ----------
    F
        The decision values, float64 [n, outputs].
    targets
        float64 [n]: targets in regression, signs of labels for one output, or indices of labels for several outputs.
    margins
        float64 [n]: the margins that labels should have, from 0 or from the best other label.
    is_regression
        Whether targets are those of a regression.
    """
    if is_regression:
        return targets[:, None] - F, np.ones(F.shape, bool)
    if F.shape[1] == 1:
        shortfall = margins[:, None] - targets[:, None] * F
        return targets[:, None] * shortfall, shortfall > 0.0
    rows, labels = np.arange(len(F)), targets.astype(np.intp)
    other_outputs = F.copy()
    other_outputs[rows, labels] = -np.inf
    rivals = other_outputs.argmax(axis=1)
    shortfall = margins - F[rows, labels] + F[rows, rivals]
    residual, active = np.zeros(F.shape), np.zeros(F.shape, bool)
    residual[rows, labels], residual[rows, rivals] = 0.5 * shortfall, -0.5 * shortfall
    active[rows, labels] = active[rows, rivals] = shortfall > 0.0
    return residual, active


class RefitRows(NamedTuple):
    """Checked rows that coefficients are fitted to."""

    X: np.ndarray  # [n, features of the model]
    targets: np.ndarray  # float64 [n]: see `compute_residuals`
    weights: np.ndarray  # float64 [n]


def check_refit_rows(model: Any, X: Any, y: Any, w: Any = 1.0) -> RefitRows:
    """Validate the rows ``X`` with labels or targets ``y`` and weights ``w``, as for ``learn_many``, and return them as arrays in
    the columns of ``model``. Raise a ValueError if one is invalid, or has a label that the model has not learned.

    Sparse rows become dense at once: pass many of them in parts, and add up their sums.
    """
    batch = make_batch(X, y, w, model._dtype)
    targets = model._encode_known_targets(batch.y)
    if targets is None or np.isnan(targets).any():
        raise ValueError(
            "y has labels that the model has not learned, or missing targets: refit it with rows that it has learned"
        )
    columns = model._features.find_columns(batch.names, False)
    matrix = scatter_columns(batch.matrix, columns, model._store.used, model._dtype)
    if not np.isfinite(matrix).all():
        raise ValueError("X has values that are not finite: impute them, or leave out those rows")
    weights, class_weights = batch.weights, getattr(model, "_class_weights", None)
    if class_weights is not None:
        weights = weights * np.array([class_weights.get_weight(label) for label in batch.y])
    return RefitRows(matrix, targets, weights)


def _iter_chunks(basis: SupportVectorBasis | FeatureBasis, rows: RefitRows) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield ``rows`` in chunks of at most 2,000, to bound memory. Each chunk is a tuple of four arrays: kernel values or features
    [n, B], computed by ``basis``; the model's decision values [n, outputs]; the targets [n]; and the weights [n].
    """
    for start in range(0, len(rows.X), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        K = basis.compute_values(rows.X[part])
        yield K, K @ basis.coefficients.T + basis.intercept, rows.targets[part], rows.weights[part]


class NormalEquations(NamedTuple):
    """The normal equations of a Newton step, summed over the rows of one or more partitions."""

    A: np.ndarray  # float64 [outputs, B, B]
    g: np.ndarray  # float64 [outputs, B]

    @classmethod
    def from_rows(cls, model: Any, X: Any, y: Any, w: Any = 1.0) -> Self:
        """Return the normal equations of a Newton step that improves the current coefficients of ``model`` on the rows ``X`` with
        labels or targets ``y`` and weights ``w``. Normal equations of several parts of the data can be added up.

        This takes O(n B (d + B)), and O(B d) for a row outside its margin; memory is O(outputs B^2), for any n. For a linear
        model, B is d, or d + 1 with an intercept.
        """
        sums = cls.zeros(model)
        for K, F, targets, weights in _iter_chunks(make_basis(model), check_refit_rows(model, X, y, w)):
            sums.add_rows(K, *compute_residuals(F, targets, np.ones(len(targets)), _is_regression(model)), weights)
        return sums

    @classmethod
    def zeros(cls, model: Any) -> Self:
        """Return normal equations of a Newton step of ``model`` that have no rows yet: arrays of zeros, to which rows can be
        added.
        """
        outputs, n = make_basis(model).coefficients.shape
        return cls(np.zeros((outputs, n, n)), np.zeros((outputs, n)))

    def add(self, equations: Self) -> None:
        """Add ``equations``, the normal equations of the same Newton step for other rows, to these normal equations, in place."""
        self.A[:] += equations.A
        self.g[:] += equations.g

    def add_rows(self, K: np.ndarray, residual: np.ndarray, active: np.ndarray, weights: np.ndarray) -> None:
        """Add n rows to these normal equations of a Newton step. ``K`` [n, B] has their kernel values or features, ``residual``
        and ``active`` (both [n, outputs]) are the two results of `compute_residuals`, and ``weights`` [n] are the weights of the
        rows.
        """
        for k, mask in enumerate(active.T):
            root = K[mask] * np.sqrt(weights[mask])[:, None]
            self.A[k] += root.T @ root  # for a matrix times its own transpose, BLAS does half the work
            self.g[k] += K[mask].T @ (weights[mask] * residual[mask, k])

    def compute_step(self, model: Any, ridge: float = RIDGE) -> np.ndarray:
        """Solve these normal equations, and return the Newton step: the change of the coefficients of ``model``, float64
        [outputs, B]. ``ridge`` is the factor of the penalty on the squared norm of the model.
        """
        basis = make_basis(model)
        return self.solve(ridge * basis.compute_penalty(), basis.coefficients)

    def solve(self, penalty: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Solve these normal equations with a quadratic penalty on coefficients, and return the Newton step: their change,
        float64 [outputs, B]. ``penalty`` [B, B] is the matrix of the penalty; ``distance`` [outputs, B] is how far the current
        coefficients are from those with penalty 0.
        """
        from scipy import linalg  # noqa: PLC0415 - the import takes a third of a second, and is rarely needed

        steps = np.empty_like(distance)
        for k, (A, g) in enumerate(zip(self.A, self.g, strict=True)):
            matrix = A + penalty
            matrix[np.diag_indices_from(matrix)] += _JITTER * np.mean(np.diag(matrix))
            steps[k] = linalg.solve(matrix, g - penalty @ distance[k], assume_a="pos")
        return steps


class LineSearch(NamedTuple):
    """The losses after steps of several sizes, summed over the rows of one or more partitions."""

    sums: np.ndarray
    """float64 [sizes, measures]: for each step size, sums of weights, losses, errors, absolute decision values and log losses."""

    @classmethod
    def from_rows(cls, model: Any, step: np.ndarray, X: Any, y: Any, w: Any = 1.0) -> Self:
        """Return a line search: the weighted sums of losses of ``model`` after four multiples of ``step``, a change of its
        coefficients [outputs, B]. The losses are those of the rows ``X`` with labels or targets ``y`` and weights ``w``.
        """
        search = cls.zeros()
        for K, F, targets, weights in _iter_chunks(make_basis(model), check_refit_rows(model, X, y, w)):
            change = K @ step.T
            for sums, size in zip(search.sums, _STEP_SIZES, strict=True):
                sums += _measure_outputs(F + size * change, targets, weights, _is_regression(model))
        return search

    @classmethod
    def zeros(cls) -> Self:
        """Return a line search (sums of losses for several step sizes) without rows: all sums are 0, and those of rows can be
        added.
        """
        return cls(np.zeros((len(_STEP_SIZES), _N_MEASURES + len(_FACTORS))))

    def add(self, search: Self) -> None:
        """Add ``search``, a line search along the same step over other rows, to this line search: its sums of losses are added in
        place.
        """
        self.sums[:] += search.sums


def _is_regression(model: Any) -> bool:
    """Return whether ``model`` is a regressor: whether its loss function is epsilon-insensitive."""
    return bool(model._common["loss"][0] == EPSILON_INSENSITIVE)


def _measure_outputs(F: np.ndarray, targets: np.ndarray, weights: np.ndarray, is_regression: bool) -> np.ndarray:
    """Return the sums, weighted by ``weights`` [n], of several measures of n rows with decision values ``F`` [n, outputs] and
    labels or values ``targets`` [n]: loss, errors, size of decisions, and log loss by each factor from decisions to log odds (0
    if ``is_regression``). Result: float64 [measures].
    """
    residual, active = compute_residuals(F, targets, np.ones(len(F)), is_regression)
    squares = np.where(active, np.square(residual), 0.0).sum(axis=1)
    measures = np.zeros(_N_MEASURES + len(_FACTORS))
    measures[0], measures[1] = weights.sum(), 0.5 * weights @ squares
    if is_regression:
        measures[2] = weights @ np.abs(residual[:, 0])
        return measures
    if F.shape[1] == 1:
        rivals = -targets[:, None] * F
        is_wrong, sizes = rivals[:, 0] >= 0.0, np.abs(F[:, 0])
    else:
        rows, labels = np.arange(len(F)), targets.astype(np.intp)
        rivals = F - F[rows, labels][:, None]
        sizes = np.abs(rivals).max(axis=1)
        is_wrong = F.argmax(axis=1) != labels
        rivals = np.delete(rivals.ravel(), rows * F.shape[1] + labels).reshape(len(F), -1)
    measures[2], measures[3] = weights @ is_wrong, weights @ sizes
    for index, factor in enumerate(_FACTORS, _N_MEASURES):
        measures[index] = weights @ np.log1p(np.exp(np.minimum(factor * rivals, 30.0)).sum(axis=1))
    return measures


def take_step(model: Any, step: np.ndarray, search: LineSearch, ridge: float = RIDGE) -> float:
    """Add a multiple of the Newton step ``step`` [outputs, B] to the coefficients of ``model``, and calibrate its probabilities.
    The multiple, which is returned, is the one from 0 to 1 with the smallest sum of losses (from the line search ``search``) and
    penalty (with the factor ``ridge``).

    Parameters
    ----------
    model
        The model, with the coefficients that step and search were computed at.
    step
        The step from `NormalEquations.compute_step`.
    search
        The line search over all rows.
    ridge
        The penalty, as for the step.

    Returns
    -------
    The size of the step, from 0 to 1: 0 if no step reduces the objective.
    """
    basis = make_basis(model)
    penalty = basis.compute_penalty()
    candidates = [basis.coefficients + size * step for size in _STEP_SIZES]
    penalties = [0.5 * ridge * sum(float(row @ penalty @ row) for row in candidate) for candidate in candidates]
    best = int(np.argmin(search.sums[:, 1] + penalties))
    basis.set_coefficients(candidates[best])
    measures = search.sums[best]
    if measures[0] == 0.0:
        return 0.0
    model._common["error"] = measures[2] / measures[0]
    _calibrate_outputs(model, measures)
    return float(_STEP_SIZES[best])


def calibrate_probabilities(model: Any, rows: RefitRows) -> None:
    """Calibrate the probabilities of the classifier ``model``: set the factor from decision values to log odds to the one with
    the lowest log loss over ``rows``. A regressor does not change.
    """
    if not _is_regression(model) and rows.weights.sum() > 0.0:
        measures = np.zeros(_N_MEASURES + len(_FACTORS))
        for _, F, targets, weights in _iter_chunks(make_basis(model), rows):
            measures += _measure_outputs(F, targets, weights, False)
        _calibrate_outputs(model, measures)


def _calibrate_outputs(model: Any, measures: np.ndarray) -> None:
    """Set the factor from decision values to log odds in the classifier ``model`` to the one with the lowest log loss.
    ``measures`` are weighted sums over rows, which include the log loss for each of 25 factors. A regressor does not change.
    """
    if not _is_regression(model):
        size = measures[3] / measures[0]
        model._common["size"] = size
        model._common["slope"] = math.log(_find_best_factor(measures[_N_MEASURES:]) * max(size, 1.0))


def _find_best_factor(losses: np.ndarray) -> float:
    """Return the factor from decision values to log odds with the lowest log loss. ``losses`` has the log loss of each factor on
    a fixed grid; the minimum between grid points is found by a parabola through the lowest loss and its neighbours.
    """
    index = int(np.argmin(losses))
    logs = np.log(_FACTORS)
    if not 0 < index < len(losses) - 1:
        return float(_FACTORS[index])
    left, middle, right = losses[index - 1 : index + 2]
    bend = left - 2.0 * middle + right
    shift = 0.5 * (left - right) / bend if bend > 0.0 else 0.0
    return math.exp(logs[index] + shift * (logs[1] - logs[0]))
