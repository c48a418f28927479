"""Newton's method in the primal, for squared losses of rows with few features: a dozen passes, whatever C is.

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
from streamsvm.linear.dual import product
from streamsvm.linear.solution import (
    LinearLoss,
    LinearOptions,
    LinearSolution,
    Pass,
    load_state,
    save_state,
    target_of,
    weight_of,
)

_ARMIJO = 1e-4  # a step must decrease the objective by at least this part of what the slope promises
_SMALLEST = 2.0**-30  # step of the line search, in units of the Newton step
_DENSE_CHUNKS = 16  # in which a block of dense rows is added, since they become float64


class _Point:
    """w, and what a pass over all rows computes at it."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = w
        self.primal = 0.5 * float(w @ w)
        self.gradient, self.hessian = w.copy(), np.eye(len(w))
        self.conjugate = 0.0  # the dual objective without -1/2 |expansion|^2
        self.active = 0  # rows that cost something

    @property
    def dual(self) -> float:
        """The dual objective of the coefficients that the losses have here, whose expansion is w minus the gradient."""
        expansion = self.w - self.gradient
        return self.conjugate - 0.5 * float(expansion @ expansion)


class NewtonSolver:
    """Finds w for one squared loss after the other, each from where the one before has ended.

    A pass is O(features^3), and O(values^2) for each row that costs something, or O(features^2) where rows are dense. If
    ``resumable``, it saves w in the folder and goes on from a saved one.
    """

    def __init__(self, file: BlockFile, folder: Path, options: LinearOptions, *, resumable: bool) -> None:
        self._file, self._options = file, options
        self._path = folder / "newton" if resumable else None
        self._w = np.zeros(file.shape[1] + 1)
        if self._path is not None and (found := load_state(self._path, {"rows": file.signature}, len(self._w))) is not None:
            self._w = found[1]

    def solve(self, loss: LinearLoss) -> LinearSolution:
        """Return the optimum of a loss within the tolerance, or what as many passes as are allowed lead to."""
        options, began = self._options, time.monotonic()
        history: list[Pass] = []

        def try_(w: np.ndarray) -> _Point:
            point = self._make_pass(w, loss, len(history) + 1)
            numbers = (point.active, loss.C_positive, point.primal, point.dual, time.monotonic() - began)
            history.append(Pass("newton", self._file.shape[0], *numbers))
            return point

        point = try_(self._w)
        while point.primal - point.dual > options.tol * point.primal and len(history) < options.max_iter:
            direction, size = -_solve_scaled(point.hessian, point.gradient), 1.0
            slope = float(point.gradient @ direction)
            new = try_(point.w + direction)
            while new.primal > point.primal + _ARMIJO * size * slope and len(history) < options.max_iter and size > _SMALLEST:
                size *= 0.5
                new = try_(point.w + size * direction)
            if new.primal >= point.primal:
                break  # what is left is less than rounding
            point = new
            if self._path is not None:
                save_state(self._path, {"problem": {"rows": self._file.signature}}, point.w)
        self._w = point.w
        return LinearSolution(point.w.copy(), point.primal, point.dual, float(len(history)), history)

    def _make_pass(self, w: np.ndarray, loss: LinearLoss, number: int) -> _Point:
        point = _Point(w)
        for at in iterate_with_progress(range(len(self._file)), f"pass {number}", self._options.verbose):
            if at + 1 < len(self._file):
                self._file.expect(at + 1)
            block = self._file.block(at)
            add = _add_dense if self._file.dense else _add_sparse
            for rows in _row_chunks(block) if self._file.dense else [block]:
                cost, conjugate, active = add(w, rows, loss, point.gradient, point.hessian)
                point.primal += float(cost)
                point.conjugate += float(conjugate)
                point.active += int(active)
        if not self._file.dense:  # of sparse rows only one triangle was added
            point.hessian += np.triu(point.hessian, 1).T
        return point

    def close(self) -> None:
        """Nothing is open between solutions."""


def _solve_scaled(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve with a Cholesky factor of the matrix scaled to a diagonal of 1, since features may be of very different size. If
    rounding left it indefinite, its diagonal is raised: the solution is a direction of descent all the same.
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


def _row_chunks(block: Block) -> Iterator[Block]:
    n = len(block.labels)
    size, features = max(n // _DENSE_CHUNKS, 1), len(block.values) // n
    for begin in range(0, n, size):
        end = min(begin + size, n)
        values = block.values[begin * features : end * features]
        yield block._replace(labels=block.labels[begin:end], weights=block.weights[begin:end], values=values)


def _add_dense(
    w: np.ndarray, block: Block, loss: LinearLoss, gradient: np.ndarray, hessian: np.ndarray
) -> tuple[float, float, int]:
    """Add the parts of dense rows to the gradient and the Hessian; return their cost, conjugate, and how many cost something."""
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
    """Set the coefficients b and C of rows with decision values f; return cost, conjugate, and how many cost something."""
    cost, conjugate, active = 0.0, 0.0, 0
    for i in range(len(f)):
        t = target_of(block.labels[i], loss)
        C[i] = weight_of(block, i) * (loss.C_positive if t > 0.0 else loss.C_negative)
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
    """Do as `_add_dense` for sparse rows, with the upper triangle of the Hessian."""
    starts, indices, values = block.starts, block.indices, block.values
    n = len(block.labels)
    f, b, C = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        f[i] = product(w, block, i) + loss.constant * w[-1]
    found = _set_coefficients(f, block, loss, b, C)
    last = len(w) - 1
    for i in range(n):
        if b[i] == 0.0:
            continue
        begin, end = starts[i], starts[i + 1]
        for k in range(begin, end):
            gradient[indices[k]] -= b[i] * values[k]
            scaled, row = 2.0 * C[i] * values[k], hessian[indices[k]]
            for j in range(k, end):
                row[indices[j]] += scaled * values[j]
            row[last] += scaled * loss.constant
        gradient[last] -= b[i] * loss.constant
        hessian[last, last] += 2.0 * C[i] * loss.constant * loss.constant
    return found
