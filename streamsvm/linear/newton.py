"""Newton's method in the primal, for squared losses and few features: a dozen passes, for any C.

Mangasarian, O. L. (2002). A finite Newton method for classification. Optimization Methods and Software 17.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.progress import iterate_with_progress
from streamsvm.linear.block_file import Block, BlockFile
from streamsvm.linear.dual import dot_row
from streamsvm.linear.solution import (
    LinearLoss,
    LinearOptions,
    LinearSolution,
    Pass,
    encode_target,
    get_weight,
    load_state,
    save_state,
)

_ARMIJO = 1e-4  # a step must decrease the objective by at least this share of the decrease predicted by the slope
_MIN_STEP = 2.0**-30  # of the line search, in units of the Newton step
_CHUNKS_PER_DENSE_BLOCK = 16  # dense rows are converted to float64 chunk by chunk, to bound memory


class _Iterate:
    """A vector w with the objectives, gradient and Hessian that a pass over all rows computes for it."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = w
        self.primal = 0.5 * float(w @ w)
        self.gradient, self.hessian = w.copy(), np.eye(len(w))
        self.conjugate = 0.0  # the dual objective without -1/2 |expansion|^2
        self.active = 0  # rows with a positive loss

    @property
    def dual(self) -> float:
        """The dual objective, a lower bound of the optimal objective, at the dual coefficients that follow from the current
        weights.
        """
        expansion = self.w - self.gradient
        return self.conjugate - 0.5 * float(expansion @ expansion)


class NewtonSolver:
    """Solves the problems of several squared losses one after the other, each warm-started from the previous solution.

    A pass is O(features^3), plus O(values^2) for each sparse row with a positive loss, or O(features^2) for a dense one. If
    ``resumable``, w is saved in the folder, and a later fit starts from it.
    """

    def __init__(self, file: BlockFile, folder: Path, options: LinearOptions, *, resumable: bool) -> None:
        self._file, self._options = file, options
        self._path = folder / "newton" if resumable else None
        self._w = np.zeros(file.shape[1] + 1)
        if self._path is not None and (saved := load_state(self._path, {"rows": file.signature}, len(self._w))) is not None:
            self._w = saved[1]

    def solve(self, loss: LinearLoss) -> LinearSolution:
        """Fit the weights for one squared ``loss`` by Newton's method, until the relative duality gap is at most the tolerance or
        the number of passes is reached. Return the solution. It starts from the previous solution.
        """
        options, start_time = self._options, time.monotonic()
        history: list[Pass] = []

        def evaluate(w: np.ndarray) -> _Iterate:
            iterate = self._make_pass(w, loss, len(history) + 1)
            numbers = (iterate.active, loss.C_positive, iterate.primal, iterate.dual, time.monotonic() - start_time)
            history.append(Pass("newton", self._file.shape[0], *numbers))
            return iterate

        point = evaluate(self._w)
        while point.primal - point.dual > options.tol * point.primal and len(history) < options.max_iter:
            direction, size = -_solve_newton_system(point.hessian, point.gradient), 1.0
            slope = float(point.gradient @ direction)
            new = evaluate(point.w + direction)
            while new.primal > point.primal + _ARMIJO * size * slope and len(history) < options.max_iter and size > _MIN_STEP:
                size *= 0.5
                new = evaluate(point.w + size * direction)
            if new.primal >= point.primal:
                break  # further progress is below rounding errors
            point = new
            if self._path is not None:
                save_state(self._path, {"problem": {"rows": self._file.signature}}, point.w)
        self._w = point.w
        return LinearSolution(point.w.copy(), point.primal, point.dual, float(len(history)), history)

    def _make_pass(self, w: np.ndarray, loss: LinearLoss, number: int) -> _Iterate:
        """Read all training rows once, and compute primal and dual objective, gradient and Hessian at the weights ``w`` float64
        [features + 1]. Return them as an object. ``number`` is the number of this pass, for the progress display.
        """
        point = _Iterate(w)
        for i in iterate_with_progress(range(len(self._file)), f"pass {number}", self._options.verbose):
            if i + 1 < len(self._file):
                self._file.prefetch_block(i + 1)
            block = self._file.read_block(i)
            add = _add_dense if self._file.dense else _add_sparse
            for rows in _split_rows(block) if self._file.dense else [block]:
                cost, conjugate, active = add(w, rows, loss, point.gradient, point.hessian)
                point.primal += float(cost)
                point.conjugate += float(conjugate)
                point.active += int(active)
        if not self._file.dense:  # sparse rows were added to the upper triangle only
            point.hessian += np.triu(point.hessian, 1).T
        return point

    def close(self) -> None:
        """Do nothing: this solver has no open files between fits."""


def _solve_newton_system(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the solution x of the linear equations ``hessian @ x = gradient``, by a Cholesky factorisation of the Hessian, which
    is scaled to a diagonal of 1.

    Scaling helps if features differ much in size. If rounding made the matrix indefinite, its diagonal is increased: minus the
    solution is still a direction of descent.
    """
    scale, ridge = 1.0 / np.sqrt(hessian.diagonal()), 0.0
    scaled = hessian * scale
    scaled *= scale[:, np.newaxis]
    while True:
        matrix = scaled.copy()
        matrix[np.diag_indices(len(matrix))] += ridge
        try:
            factor = cho_factor(matrix, lower=True, overwrite_a=True)
        except LinAlgError:
            ridge = max(10.0 * ridge, 1e-14)
        else:
            return scale * cho_solve(factor, scale * gradient)


def _split_rows(block: Block) -> Iterator[Block]:
    """Split a block of dense training rows into up to about 16 smaller blocks of consecutive rows, and yield these."""
    n = len(block.labels)
    size, features = max(n // _CHUNKS_PER_DENSE_BLOCK, 1), len(block.values) // n
    for start in range(0, n, size):
        stop = min(start + size, n)
        values = block.values[start * features : stop * features]
        yield block._replace(labels=block.labels[start:stop], weights=block.weights[start:stop], values=values)


def _add_dense(
    w: np.ndarray, block: Block, loss: LinearLoss, gradient: np.ndarray, hessian: np.ndarray
) -> tuple[float, float, int]:
    """Add the contributions of the dense rows of ``block``, at the weights ``w``, to the ``gradient`` [features + 1] and the
    ``hessian`` [features + 1, features + 1] of the objective, in place. Return the rows' part of the primal and of the dual
    objective, and the number of rows with a positive loss.

    The dual objective is without -1/2 |expansion|^2.
    """
    X = np.empty((len(block.labels), len(w)))
    X[:, :-1] = block.values.reshape(len(X), -1)
    X[:, -1] = loss.constant
    b, C = np.empty(len(X)), np.empty(len(X))
    with np.errstate(over="ignore", invalid="ignore"):  # a solution that is not finite is refused later
        cost, conjugate, active = _set_coefficients(X @ w, block, loss, b, C)
        gradient -= b @ X
        X = X[b != 0.0] * np.sqrt(2.0 * C[b != 0.0])[:, np.newaxis]
        hessian += X.T @ X
    return cost, conjugate, active


@compiled
def _set_coefficients(f: np.ndarray, block: Block, loss: LinearLoss, b: np.ndarray, C: np.ndarray) -> tuple[float, float, int]:
    """Compute the dual coefficients of the n rows of ``block`` from their decision values ``f``, and write them into the output
    array ``b`` [n]; write each row's weight times C into ``C`` [n]. Return the rows' part of the primal and of the dual
    objective, and the number of rows with a positive loss.
    """
    cost, conjugate, active = 0.0, 0.0, 0
    for i in range(len(f)):
        t = encode_target(block.labels[i], loss)
        C[i] = get_weight(block, i) * (loss.C_positive if t > 0.0 else loss.C_negative)
        distance = t - f[i]
        error = max(abs(distance) - loss.epsilon, 0.0) if loss.regression else max(1.0 - t * f[i], 0.0)
        sign = t if not loss.regression else 1.0 if distance > 0.0 else -1.0
        b[i] = 2.0 * C[i] * error * sign
        cost += C[i] * error * error
        conjugate += t * b[i] - loss.epsilon * abs(b[i]) - b[i] * b[i] / (4.0 * C[i])
        active += error > 0.0
    return cost, conjugate, active


@compiled
def _add_sparse(
    w: np.ndarray, block: Block, loss: LinearLoss, gradient: np.ndarray, hessian: np.ndarray
) -> tuple[float, float, int]:
    """Add the contributions of the sparse rows of ``block``, at the weights ``w``, to the ``gradient`` and the upper triangle of
    the ``hessian`` of the objective, in place. Return the rows' part of the primal and of the dual objective, and the number of
    rows with a positive loss.
    """
    starts, indices, values = block.starts, block.indices, block.values
    n = len(block.labels)
    f, b, C = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        f[i] = dot_row(w, block, i) + loss.constant * w[-1]
    sums = _set_coefficients(f, block, loss, b, C)
    last = len(w) - 1
    for i in range(n):
        if b[i] == 0.0:
            continue
        start, stop = starts[i], starts[i + 1]
        for k in range(start, stop):
            gradient[indices[k]] -= b[i] * values[k]
            scaled, row = 2.0 * C[i] * values[k], hessian[indices[k]]
            for j in range(k, stop):
                row[indices[j]] += scaled * values[j]
            row[last] += scaled * loss.constant
        gradient[last] -= b[i] * loss.constant
        hessian[last, last] += 2.0 * C[i] * loss.constant * loss.constant
    return sums
