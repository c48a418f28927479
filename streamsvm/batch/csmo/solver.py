"""Conjugate SMO with shrinking: steps in float32 on the working set, and checks of the solution in float64."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.column_cache import ColumnCache
from streamsvm.batch.csmo.columns import Rows, cost, diagonal, expand, subset
from streamsvm.batch.csmo.problem import Problem, feasible, first_point
from streamsvm.batch.csmo.steps import RUNNING, STALLED, WANTED, WorkingSet, slopes, steps
from streamsvm.kernels import RBF, Kernel

__all__ = ["Options", "Solution", "add_expansions", "column_buffer", "solve"]

_MEGABYTE = 2**20
_MEGABYTES_AN_OPERATION = 4.0  # of a kernel value: columns that are soon computed again are not worth more memory
_PAUSE = 1e9  # operations before a signal can be handled: a fraction of a second
_SHRINK_EVERY = 1000  # steps
_WORTHWHILE = 0.9  # shrinking must leave at most this part of the working set
_CHECKS = 100  # at most so many checks in float64, each followed by more steps, before a tolerance is given up


class Options(NamedTuple):
    """Parameters of the estimators that say how to solve a problem."""

    tol: float
    conjugate: bool
    shrinking: bool
    max_iter: int
    verbose: bool


class Solution(NamedTuple):
    """A solution: ``objective`` is that of the dual, which is minimised, and ``primal`` that of the primal."""

    b: np.ndarray
    bias: float
    gap: float
    objective: float
    primal: float
    n_iter: int
    interrupted: bool


def column_buffer(megabytes: float, n: int) -> np.ndarray:
    """Return memory for columns of up to n values. The operating system provides it only as columns are written."""
    return np.empty(ColumnCache.values(int(megabytes * _MEGABYTE), n), np.float32)


def add_expansions(rows: Rows, b: np.ndarray, source: Rows, which: np.ndarray, kernel: Kernel, out: np.ndarray) -> None:
    """Add K b to ``out[which]`` for the rows numbered ``which`` of ``source``, in chunks between which signals are handled.

    ``b`` float64 [outputs, n], ``out`` float64 [rows of source, outputs].
    """
    support = np.flatnonzero(b.any(axis=0))
    if not len(support):
        return
    if len(support) < b.shape[1]:
        rows, b = subset(rows, support), b[:, support]
    b = np.require(b, requirements=["C", "W"])  # other layouts would be compiled anew
    values = np.empty(len(support), rows.dense.dtype)
    size = max(int(_PAUSE / (len(support) * cost(rows))), 1)
    for begin in range(0, len(which), size):
        chunk = which[begin : begin + size]
        sums = np.zeros((len(chunk), len(b)))
        expand(rows, b, source, chunk, kernel, values, sums)
        out[chunk] += sums


class _State:
    """The solution so far: of the rows in the working set in ``working``, of the others in ``b``.

    ``gradient`` is that at the point ``reference``. Methods assign what belongs together last and at once, since an interrupt may
    come between any two statements.
    """

    working: WorkingSet

    def __init__(self, problem: Problem, b: np.ndarray, buffer: np.ndarray) -> None:
        n = len(b)
        self.problem = problem
        self.b, self.reference = b, np.zeros(n)
        self.gradient = -problem.targets
        self.diagonal = np.empty(n, np.float32)
        if problem.given is None:
            diagonal(problem.rows, problem.kernel, self.diagonal)
        else:
            self.diagonal[:] = problem.given.diagonal()
        self.cache = ColumnCache(buffer, n)
        self.which = np.arange(0)
        self.unshrink()
        if problem.given is not None:
            self.cache.fill(problem.given.columns())

    def add(self, rows: Rows, b: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Add the rows ``which`` of K b to a gradient."""
        if self.problem.given is not None:
            self.problem.given.add_products(b, which, gradient)
        else:
            add_expansions(rows, b[np.newaxis], rows, which, self.problem.kernel, gradient[:, np.newaxis])

    def provide_column(self) -> None:
        """Write the column for which steps wait."""
        i, column = self.cache.newest
        column[:] = self.problem.given.values(self.which[i : i + 1], self.which)[0]  # type: ignore[union-attr]

    def unshrink(self) -> None:
        """Put all rows into the working set, with the gradient at the present point."""
        p, n = self.problem, len(self.b)
        gradient, shrunk = self.gradient.copy(), np.ones(n, bool)
        if len(self.which):
            self.b[self.which] = self.working.b
            gradient[self.which] = self.working.gradient
            shrunk[self.which] = False
        if shrunk.any():
            self.add(p.rows, self.b - self.reference, np.flatnonzero(shrunk), gradient)
        self.gradient, self.reference = gradient, self.b.copy()
        if shrunk.any():
            working = WorkingSet(
                self.b.copy(), gradient.copy(), p.lower, p.upper, p.kink,
                np.empty(n, np.float32), np.empty(n, np.float32), self.diagonal,
                np.empty(n, np.float32), np.empty(n, np.float32), np.zeros(n), np.zeros(n),
                np.empty(n, np.int64), np.zeros(n, bool),
            )  # fmt: skip
            self.cache.reset(n)
            self.which, self.rows, self.working = np.arange(n), p.rows, working

    def derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes of the objective in each variable of the working set: upwards from it, and downwards to it."""
        a, epsilon = self.working, self.problem.epsilon
        slopes(a, epsilon)
        rise, fall = (np.where(np.isinf(slope), slope, np.copysign(np.float64(epsilon), slope)) for slope in (a.rise, a.fall))
        return a.gradient + rise, a.gradient + fall

    def shrink(self) -> None:
        """Drop bounded variables that the most violating pair would leave at their bound or kink, if they are enough."""
        a, (rises, falls) = self.working, self.derivatives()
        keep = np.flatnonzero((rises <= falls.max()) | (falls >= rises.min()))
        if not 2 <= len(keep) <= _WORTHWHILE * len(self.which):
            return
        self.b[self.which] = a.b
        self.cache.keep(keep)
        self.which, self.rows, self.working = self.which[keep], subset(self.rows, keep), WorkingSet(*(array[keep] for array in a))

    def check(self) -> float:
        """Return the gap in float64. All rows must be in the working set; the gradients that decide the gap are computed anew.

        A row cannot decide it if its float32 gradient excludes it by more than four times the largest error found so far. Kernels
        other than the Gaussian one can have values, and errors, of any size: all their rows are computed anew.
        """
        p, a = self.problem, self.working
        exact = np.zeros(len(self.b), bool)
        error = 1e-7 * float(np.sqrt(np.sum(a.b**2) * np.abs(self.diagonal).max()))
        while True:
            rises, falls = self.derivatives()
            doubt = (rises <= rises.min() + 8.0 * error) | (falls >= falls.max() - 8.0 * error)
            doubt |= p.kernel.kind != RBF
            new = np.flatnonzero(doubt & ~exact)
            if not len(new):
                self.unshrink()
                return max(float(falls.max() - rises.min()), 0.0)
            gradient = -p.targets
            self.add(p.exact_rows, a.b, new, gradient)
            error = max(error, float(np.abs(a.gradient[new] - gradient[new]).max()))
            a.gradient[new], exact[new] = gradient[new], True


def solve(problem: Problem, start: np.ndarray | None, options: Options, buffer: np.ndarray) -> Solution:
    """Solve a problem from coefficients ``start`` float64 [n], or from the first point, with a cache in a `column_buffer`.

    O(n) a step, and O(n d) for each new column.
    """
    n = len(problem.lower)
    limit = int(_MEGABYTES_AN_OPERATION * cost(problem.rows) * _MEGABYTE)
    b = first_point(problem) if start is None else feasible(problem, start)
    state = _State(problem, b, buffer[: ColumnCache.values(limit, n)])
    n_iter, checks, gap, interrupted = 0, 0, np.inf, False
    max_iter = options.max_iter if options.max_iter >= 0 else sys.maxsize
    goal, since = options.tol, 0
    try:
        while True:
            m = len(state.which)
            pause = max(int(_PAUSE / (m * cost(state.rows))), 50)
            status, done = steps(
                state.working, state.cache.slots, state.rows, problem.kernel, problem.epsilon, goal, options.conjugate,
                min(max(_SHRINK_EVERY, 2_000_000 // m), pause, max_iter - n_iter),
            )  # fmt: skip
            n_iter, since = n_iter + done, since + done
            if status == WANTED:
                state.provide_column()
                status = RUNNING
            elif options.verbose:
                sys.stderr.write(f"{n_iter:,} steps, {m:,} of {n:,} rows in the working set\n")
            if status == RUNNING and n_iter < max_iter:
                if options.shrinking and since >= _SHRINK_EVERY:
                    since = 0
                    state.shrink()
                continue
            state.unshrink()
            before, gap, checks = gap, state.check(), checks + 1
            stuck = checks == _CHECKS or (status == STALLED and gap > 0.5 * before)
            if gap <= options.tol or n_iter >= max_iter or stuck:
                break
            goal = 0.9 * options.tol  # few steps are left, for which float32 is exact enough: one more check should do
            if options.shrinking:
                state.shrink()
    except KeyboardInterrupt:
        interrupted = True
        state.unshrink()
        gap = state.check()
    state.unshrink()
    return _solution(problem, state, gap, n_iter, interrupted)


def _solution(p: Problem, state: _State, gap: float, n_iter: int, interrupted: bool) -> Solution:
    a = state.working
    rises, falls = state.derivatives()
    free = rises == falls
    if free.any():
        bias = -float(rises[free].mean())
    else:
        ends = [end for end in (float(rises.min()), float(falls.max())) if math.isfinite(end)]
        bias = -sum(ends) / len(ends)
    square = 0.5 * float(a.b @ (a.gradient + p.targets))
    objective = square - float(a.b @ p.targets) + p.epsilon * float(np.abs(a.b - p.kink).sum())
    residual = -(a.gradient + bias)  # target minus decision value
    margin = p.epsilon
    if p.classification:
        margin = -1.0
        objective -= float((p.upper - p.lower).sum())
    loss = p.upper @ np.maximum(residual - margin, 0.0) - p.lower @ np.maximum(-residual - margin, 0.0)
    return Solution(a.b, bias, gap, objective, square + float(loss) + bias * p.total, n_iter, interrupted)
