"""Newton's method in the primal, for squared losses of rows with few features: a dozen passes, whatever C is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from streamsvm._progress import shown
from streamsvm.linear.files.block_file import Block, BlockFile
from streamsvm.linear.solvers import state
from streamsvm.linear.solvers.solution import Options, Pass, Solution
from streamsvm.linear.solvers.sweep import Loss, product, target

__all__ = ["NewtonSolver"]

_ENOUGH = 1e-4  # of the decrease that the slope promises: Armijo's rule
_SMALLEST = 2.0**-30
_PARTS = 16  # of a block of dense rows


class _Place:
    """w, and what a pass over all rows says of it."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = w
        self.primal = 0.5 * float(w @ w)
        self.gradient, self.hessian = w.copy(), np.eye(len(w))
        self.conjugate = 0.0
        self.active = 0

    @property
    def dual(self) -> float:
        """The dual objective of the coefficients that the rows' losses have here, whose expansion is w without the gradient."""
        expansion = self.w - self.gradient
        return self.conjugate - 0.5 * float(expansion @ expansion)


class NewtonSolver:
    """Finds w for one squared loss after the other, each from where the one before has ended.

    Mangasarian, O. L. (2002). A finite Newton method for classification. Optimization Methods and Software 17. O(values^2) for
    each row that costs something, or O(features^2) where rows are dense, and O(features^3), a pass.

    Parameters
    ----------
    file, folder, options, resumable
        As of `streamsvm.linear.solvers.dual.DualSolver`.
    """

    def __init__(self, file: BlockFile, folder: Path, options: Options, *, resumable: bool) -> None:
        self._file, self._options = file, options
        self._state = folder / "newton" if resumable else None
        self._w = np.zeros(file.shape[1] + 1)
        if self._state is not None and (kept := state.load(self._state, {"rows": file.signature}, len(self._w))) is not None:
            self._w = kept[1]

    def solve(self, loss: Loss) -> Solution:
        """The optimum of a loss within the tolerance, or what as many passes as there may be lead to."""
        options, began = self._options, time.monotonic()
        history: list[Pass] = []

        def tried(w: np.ndarray) -> _Place:
            place = self._pass(w, loss, len(history) + 1)
            row = (place.active, loss.C_positive, place.primal, place.dual, time.monotonic() - began)
            history.append(Pass("newton", self._file.shape[0], *row))
            return place

        place = tried(self._w)
        while place.primal - place.dual > options.tol * place.primal and len(history) < options.max_iter:
            direction, size = -_solved(place.hessian, place.gradient), 1.0
            slope = float(place.gradient @ direction)
            new = tried(place.w + direction)
            while new.primal > place.primal + _ENOUGH * size * slope and len(history) < options.max_iter and size > _SMALLEST:
                size *= 0.5
                new = tried(place.w + size * direction)
            if new.primal >= place.primal:
                break  # rounding is larger than what is left
            place = new
            if self._state is not None:
                state.save(self._state, {"problem": {"rows": self._file.signature}}, place.w)
        self._w = place.w
        return Solution(place.w.copy(), place.primal, place.dual, float(len(history)), history)

    def _pass(self, w: np.ndarray, loss: Loss, number: int) -> _Place:
        place = _Place(w)
        for at in shown(range(len(self._file)), f"pass {number}", self._options.verbose):
            if at + 1 < len(self._file):
                self._file.expect(at + 1)
            block = self._file.block(at)
            add = _add_dense if self._file.dense else _add_sparse
            for some in _parts(block) if self._file.dense else [block]:
                cost, conjugate, active = add(w, some, loss, place.gradient, place.hessian)
                place.primal += float(cost)
                place.conjugate += float(conjugate)
                place.active += int(active)
        if not self._file.dense:  # of which one triangle was made
            place.hessian += np.triu(place.hessian, 1).T
        return place

    def close(self) -> None:
        """What was kept stays."""


def _solved(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    # By a Cholesky factorisation of the matrix with 1 on its diagonal: features may be of very different size. Where rounding has
    # left it no positive one, of that with more on its diagonal: still a direction downwards.
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


def _parts(block: Block) -> Iterator[Block]:
    # Dense rows, few at a time: those that are added become float64, and several copies.
    n = len(block.labels)
    size = max(n // _PARTS, 1)
    features = len(block.values) // n
    for begin in range(0, n, size):
        end = min(begin + size, n)
        yield block._replace(labels=block.labels[begin:end], values=block.values[begin * features : end * features])


def _add_dense(w: np.ndarray, block: Block, loss: Loss, gradient: np.ndarray, hessian: np.ndarray) -> tuple[float, float, int]:
    X = np.empty((len(block.labels), len(w)))
    X[:, :-1] = block.values.reshape(len(X), -1)
    X[:, -1] = loss.bias
    b, C = np.empty(len(X)), np.empty(len(X))
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused at the end
        cost, conjugate, active = _errors(X @ w, block.labels, loss, b, C)
        gradient -= b @ X
        X = X[b != 0.0] * np.sqrt(2.0 * C[b != 0.0])[:, np.newaxis]
        hessian += X.T @ X
    return cost, conjugate, active


@njit(cache=True, error_model="numpy")
def _errors(f: np.ndarray, labels: np.ndarray, loss: Loss, b: np.ndarray, C: np.ndarray) -> tuple[float, float, int]:
    # What rows with values f cost; their coefficients and C; and how many cost something.
    cost, conjugate, active = 0.0, 0.0, 0
    for i in range(len(f)):
        t = target(labels[i], loss)
        C[i] = loss.C_positive if t > 0.0 else loss.C_negative
        distance = t - f[i]
        error = max(abs(distance) - loss.epsilon, 0.0) if loss.regression else max(1.0 - t * f[i], 0.0)
        sign = t if not loss.regression else 1.0 if distance > 0.0 else -1.0
        b[i] = 2.0 * C[i] * error * sign
        cost += C[i] * error * error
        conjugate += t * b[i] - loss.epsilon * abs(b[i]) - b[i] * b[i] / (4.0 * C[i])
        active += error > 0.0
    return cost, conjugate, active


@njit(cache=True, error_model="numpy")
def _add_sparse(w: np.ndarray, block: Block, loss: Loss, gradient: np.ndarray, hessian: np.ndarray) -> tuple[float, float, int]:
    # Of the Hessian, the upper triangle.
    starts, indices, values = block.starts, block.indices, block.values
    n = len(block.labels)
    f, b, C = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        f[i] = product(w, block, i) + loss.bias * w[-1]
    found = _errors(f, block.labels, loss, b, C)
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
            row[last] += scaled * loss.bias
        gradient[last] -= b[i] * loss.bias
        hessian[last, last] += 2.0 * C[i] * loss.bias * loss.bias
    return found
