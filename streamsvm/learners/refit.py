"""The coefficients of a model by least squares over rows, in sums that the parts of the rows give and that add up.

A refit makes the sum over the rows of w loss + ridge / 2 |f|^2 small in the coefficients of the support vectors that are there,
or in the weights of a linear model. The loss is max(0, 1 - y f)^2 / 2 of two labels, max(0, 1 - f_y + f_j)^2 / 4 of more, where j
is the best other label, and (y - f)^2 / 2 of targets. A step is one of Newton's method (Mangasarian 2002, A finite Newton method
for classification), output by output: the `NormalEquations` of all rows give its direction, and a `LineSearch` over all rows its
length and the scale of the probabilities. Rows can lie anywhere: only the sums meet.

It is in functions in which decision values are linear: kernel values of support vectors, or features (`make_basis`).
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
    """Return what `compute_kernel_matrix` needs to know of the kernel of a model with support vectors."""
    h = model._store.views.header[0]
    return h["kernel"], h["gamma"], h["coef0"], h["degree"]


class SupportVectorBasis(NamedTuple):
    """The kernel values of support vectors. The intercept stays as it is."""

    model: Any
    vectors: np.ndarray  # float64 [B, features]
    coefficients: np.ndarray  # float64 [outputs, B], of the model now
    intercept: np.ndarray  # float64 [outputs]

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return float64 [n, B] of rows [n, features] as they are given."""
        scale = self.model.scale_in_use
        return compute_kernel_matrix(
            *read_kernel_parameters(self.model), X.astype(np.float64) if scale is None else scale.transform(X), self.vectors
        )

    def penalty(self) -> np.ndarray:
        """Return the matrix of |f|^2, float64 [B, B]."""
        return compute_kernel_matrix(*read_kernel_parameters(self.model), self.vectors, self.vectors)

    def set(self, coefficients: np.ndarray) -> None:
        """Give the model other coefficients."""
        self.model.set_coefficients(coefficients, self.intercept)


class FeatureBasis(NamedTuple):
    """The features of a linear model, and 1 for the intercept where one is fitted."""

    model: Any
    coefficients: np.ndarray  # float64 [1, B], of the model now
    intercept: float  # a constant that is not fitted

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return float64 [n, B] of rows float32 [n, features]."""
        return np.hstack([X.astype(np.float64), np.ones((len(X), self.coefficients.shape[1] - X.shape[1]))])

    def penalty(self) -> np.ndarray:
        """Return the matrix of |w|^2, float64 [B, B]; the intercept is a weight, as in the learner."""
        return np.eye(self.coefficients.shape[1])

    def set(self, coefficients: np.ndarray) -> None:
        """Give the model other weights."""
        weights, fitted = np.split(coefficients[0], [self.model._store.used])
        self.model.set_coefficients(weights, float(fitted[0]) if len(fitted) else self.intercept)


def make_basis(model: Any) -> SupportVectorBasis | FeatureBasis:
    """Return that of a model with support vectors, or of a linear one."""
    if hasattr(model, "support_vectors"):
        return SupportVectorBasis(model, model.support_vectors.astype(np.float64), model.coefficients, model.intercept)
    if model.fit_intercept:
        return FeatureBasis(model, np.append(model.coefficients, model.intercept)[None], 0.0)
    return FeatureBasis(model, model.coefficients[None], model.intercept)


#: The penalty of a refit. (Chosen on four data sets, and confirmed on four others: see `docs/spark.md`. Of linear models any from
#: .1 to 100 does as well.)
RIDGE = 0.1

_SINGULAR = 1e-9  # of the mean of the diagonal: vectors that nearly coincide are singular to rounding
_CHUNK = 2000  # rows whose kernel values are held at once
_SIZES = np.array([1.0, 0.5, 0.25, 0.0])  # of a step
_FACTORS = np.exp(np.linspace(-4.0, 8.0, 25))  # from decision values to log odds
_MEASURES = 4  # numbers of a trial of one size, before those of the factors: weight, loss, errors, size of decision values


def compute_residuals(F: np.ndarray, wanted: np.ndarray, margins: np.ndarray, numbers: bool) -> tuple[np.ndarray, np.ndarray]:
    """By how much outputs F float64 [n, outputs] miss what they are asked for, and whether each miss counts.

    What is wanted, float64 [n], are targets if they are ``numbers``, signs of one output, or the places of labels among several
    outputs. Labels are asked for a margin, float64 [n], from 0 or from the best other label.
    """
    if numbers:
        return wanted[:, None] - F, np.ones(F.shape, bool)
    if F.shape[1] == 1:
        short = margins[:, None] - wanted[:, None] * F
        return wanted[:, None] * short, short > 0.0
    rows, labels = np.arange(len(F)), wanted.astype(np.intp)
    others = F.copy()
    others[rows, labels] = -np.inf
    rivals = others.argmax(axis=1)
    short = margins - F[rows, labels] + F[rows, rivals]
    residual, active = np.zeros(F.shape), np.zeros(F.shape, bool)
    residual[rows, labels], residual[rows, rivals] = 0.5 * short, -0.5 * short
    active[rows, labels] = active[rows, rivals] = short > 0.0
    return residual, active


class RefitRows(NamedTuple):
    """Rows that coefficients are fitted to."""

    X: np.ndarray  # [n, features of the model]
    wanted: np.ndarray  # float64 [n]: see `compute_residuals`
    weights: np.ndarray  # float64 [n]


def check_refit_rows(model: Any, X: Any, y: Any, w: Any = 1.0) -> RefitRows:
    """Return rows as ``learn_many`` takes them; raise a ValueError as it does, or where the model has not learned a label.

    All of them are dense at once: pass sparse rows in parts, whose sums are added.
    """
    batch = make_batch(X, y, w, model._dtype)
    wanted = model._encode_known_targets(batch.y)
    if wanted is None or np.isnan(wanted).any():
        raise ValueError("y has labels that the model has not learned, or no numbers: refit it with rows that it has learned")
    columns = model._features.find_columns(batch.names, False)
    matrix = scatter_columns(batch.matrix, columns, model._store.used, model._dtype)
    if not np.isfinite(matrix).all():
        raise ValueError("X has values that are not finite: fill them in, or leave those rows out")
    weights, of_class = batch.weights, getattr(model, "_class_weights", None)
    if of_class is not None:
        weights = weights * np.array([of_class.get_weight(label) for label in batch.y])
    return RefitRows(matrix, wanted, weights)


def _iter_chunks(basis: SupportVectorBasis | FeatureBasis, rows: RefitRows) -> Iterator[tuple[np.ndarray, ...]]:
    """Give rows some at a time: the values of the basis, the outputs of the model now, what is wanted, and weights."""
    for begin in range(0, len(rows.X), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        K = basis.values(rows.X[some])
        yield K, K @ basis.coefficients.T + basis.intercept, rows.wanted[some], rows.weights[some]


class NormalEquations(NamedTuple):
    """The normal equations of a step, by the rows of one part or of all."""

    A: np.ndarray  # float64 [outputs, B, B]
    g: np.ndarray  # float64 [outputs, B]

    @classmethod
    def from_rows(cls, model: Any, X: Any, y: Any, w: Any = 1.0) -> Self:
        """Return the equations of rows, as `check_refit_rows` takes them, at the current coefficients of a model.

        O(n B (d + B)) and a memory of O(outputs B^2), whatever n. Rows that are beyond their margins cost O(B d). A linear model
        has B = d, or d + 1 with an intercept.
        """
        sums = cls.zeros(model)
        for K, F, wanted, weights in _iter_chunks(make_basis(model), check_refit_rows(model, X, y, w)):
            sums.add_rows(K, *compute_residuals(F, wanted, np.ones(len(wanted)), _has_numbers(model)), weights)
        return sums

    @classmethod
    def zeros(cls, model: Any) -> Self:
        """Return the equations of no rows: zeros."""
        outputs, n = make_basis(model).coefficients.shape
        return cls(np.zeros((outputs, n, n)), np.zeros((outputs, n)))

    def add(self, other: Self) -> None:
        """Add the equations of other rows."""
        self.A[:] += other.A
        self.g[:] += other.g

    def add_rows(self, K: np.ndarray, residual: np.ndarray, active: np.ndarray, weights: np.ndarray) -> None:
        """Add rows with kernel values K float64 [n, B], residuals [n, outputs] and weights [n]. O(n outputs B^2)."""
        for k, on in enumerate(active.T):
            root = K[on] * np.sqrt(weights[on])[:, None]
            self.A[k] += root.T @ root  # a matrix times itself is half the work
            self.g[k] += K[on].T @ (weights[on] * residual[on, k])

    def step(self, model: Any, ridge: float = RIDGE) -> np.ndarray:
        """Return the step from the coefficients of the model, float64 [outputs, B], by the rows of these sums."""
        basis = make_basis(model)
        return self.solve(ridge * basis.penalty(), basis.coefficients)

    def solve(self, penalty: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return the step of Newton's method, float64 [outputs, B], at a ``distance`` from where the penalty is 0. O(B^3)."""
        from scipy import linalg  # noqa: PLC0415 - takes a third of a second, and few runs merge

        steps = np.empty_like(distance)
        for k, (A, g) in enumerate(zip(self.A, self.g, strict=True)):
            matrix = A + penalty
            matrix[np.diag_indices_from(matrix)] += _SINGULAR * np.mean(np.diag(matrix))
            steps[k] = linalg.solve(matrix, g - penalty @ distance[k], assume_a="pos")
        return steps


class LineSearch(NamedTuple):
    """The losses after steps of several sizes, by the rows of one part or of all."""

    sums: np.ndarray
    """float64 [sizes, numbers]: of each size of the step, sums of weight, loss, error and decision values, and of log losses."""

    @classmethod
    def from_rows(cls, model: Any, step: np.ndarray, X: Any, y: Any, w: Any = 1.0) -> Self:
        """Return the trial of rows: see `NormalEquations.from_rows`. O(n B d)."""
        trial = cls.zeros()
        for K, F, wanted, weights in _iter_chunks(make_basis(model), check_refit_rows(model, X, y, w)):
            change = K @ step.T
            for sums, size in zip(trial.sums, _SIZES, strict=True):
                sums += _measure_outputs(F + size * change, wanted, weights, _has_numbers(model))
        return trial

    @classmethod
    def zeros(cls) -> Self:
        """Return the trial of no rows: zeros."""
        return cls(np.zeros((len(_SIZES), _MEASURES + len(_FACTORS))))

    def add(self, other: Self) -> None:
        """Add the trial of other rows."""
        self.sums[:] += other.sums


def _has_numbers(model: Any) -> bool:
    return bool(model._common["loss"][0] == EPSILON_INSENSITIVE)


def _measure_outputs(F: np.ndarray, wanted: np.ndarray, weights: np.ndarray, numbers: bool) -> np.ndarray:
    residual, active = compute_residuals(F, wanted, np.ones(len(F)), numbers)
    squares = np.where(active, np.square(residual), 0.0).sum(axis=1)
    found = np.zeros(_MEASURES + len(_FACTORS))
    found[0], found[1] = weights.sum(), 0.5 * weights @ squares
    if numbers:
        found[2] = weights @ np.abs(residual[:, 0])
        return found
    if F.shape[1] == 1:
        rivals = -wanted[:, None] * F
        wrong, sizes = rivals[:, 0] >= 0.0, np.abs(F[:, 0])
    else:
        rows, labels = np.arange(len(F)), wanted.astype(np.intp)
        rivals = F - F[rows, labels][:, None]
        sizes = np.abs(rivals).max(axis=1)
        wrong = F.argmax(axis=1) != labels
        rivals = np.delete(rivals.ravel(), rows * F.shape[1] + labels).reshape(len(F), -1)
    found[2], found[3] = weights @ wrong, weights @ sizes
    for place, factor in enumerate(_FACTORS, _MEASURES):
        found[place] = weights @ np.log1p(np.exp(np.minimum(factor * rivals, 30.0)).sum(axis=1))
    return found


def take_step(model: Any, step: np.ndarray, trial: LineSearch, ridge: float = RIDGE) -> float:
    """Go along a step of `NormalEquations.step` as far as the trial of all rows says, and calibrate probabilities by it.

    The model has the coefficients that step and trial were made from. Return the size of the step that was taken: 0 where the
    loss only rises.
    """
    basis = make_basis(model)
    between = basis.penalty()
    tried = [basis.coefficients + size * step for size in _SIZES]
    penalties = [0.5 * ridge * sum(float(one @ between @ one) for one in each) for each in tried]
    best = int(np.argmin(trial.sums[:, 1] + penalties))
    basis.set(tried[best])
    measures = trial.sums[best]
    if measures[0] == 0.0:
        return 0.0
    model._common["error"] = measures[2] / measures[0]
    _calibrate_outputs(model, measures)
    return float(_SIZES[best])


def calibrate_probabilities(model: Any, rows: RefitRows) -> None:
    """Make the probabilities of a classifier those that have the lowest log loss of rows; of a regressor nothing changes."""
    if not _has_numbers(model) and rows.weights.sum() > 0.0:
        measures = np.zeros(_MEASURES + len(_FACTORS))
        for _, F, wanted, weights in _iter_chunks(make_basis(model), rows):
            measures += _measure_outputs(F, wanted, weights, False)
        _calibrate_outputs(model, measures)


def _calibrate_outputs(model: Any, measures: np.ndarray) -> None:
    if not _has_numbers(model):
        size = measures[3] / measures[0]
        model._common["size"] = size
        model._common["slope"] = math.log(_best_factor(measures[_MEASURES:]) * max(size, 1.0))


def _best_factor(losses: np.ndarray) -> float:
    # The lowest point of a parabola through the lowest loss and its neighbours.
    place = int(np.argmin(losses))
    logs = np.log(_FACTORS)
    if not 0 < place < len(losses) - 1:
        return float(_FACTORS[place])
    left, middle, right = losses[place - 1 : place + 2]
    bend = left - 2.0 * middle + right
    shift = 0.5 * (left - right) / bend if bend > 0.0 else 0.0
    return math.exp(logs[place] + shift * (logs[1] - logs[0]))
