"""The exact solution of a kernel machine's dual: conjugate SMO on a set of active rows that shrinks, checked in float64."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.column_cache import ColumnCache
from streamsvm.batch.csmo.columns import Rows, cost, diagonal, expand, subset
from streamsvm.batch.csmo.steps import RUNNING, STALLED, Active, slopes, steps
from streamsvm.kernels import RBF, Kernel

__all__ = ["Options", "Problem", "Solution", "add_expansions", "solve"]

_PAUSE = 1e9  # operations between two looks at signals: a fraction of a second
_SHRINK_EVERY = 1000
_WORTHWHILE = 0.9  # the share of active rows that must be left for the others to be taken out
_CHECKS = 100  # in float64, each followed by more steps, before a tolerance is given up


@dataclass(frozen=True)
class Problem:
    """The dual that `streamsvm.batch.csmo.steps` states. Arrays float64 [n]; ``rows`` in float32, ``exact_rows`` in float64."""

    rows: Rows
    exact_rows: Rows
    kernel: Kernel
    targets: np.ndarray
    epsilon: float
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    classification: bool


@dataclass(frozen=True)
class Options:
    """How to solve a problem; the estimators say what the fields mean."""

    tol: float
    conjugate: bool
    shrinking: bool
    max_iter: int
    verbose: bool


class Solution(NamedTuple):
    """``gap`` is that of the optimality conditions, ``objective`` the dual's, to be minimised, ``primal`` the primal's, and
    ``interrupted`` says whether the user asked to stop.
    """

    b: np.ndarray
    bias: float
    gap: float
    objective: float
    primal: float
    n_iter: int
    interrupted: bool


def add_expansions(rows: Rows, b: np.ndarray, source: Rows, which: np.ndarray, kernel: Kernel, out: np.ndarray) -> None:
    """``out[which] += K b`` for the rows numbered ``which`` of ``source``, in parts that a signal can come between.

    ``b`` float64 [outputs, n], ``out`` float64 [rows of source, outputs].
    """
    support = np.flatnonzero(b.any(axis=0))
    if not len(support):
        return
    if len(support) < b.shape[1]:
        rows, b = subset(rows, support), b[:, support]
    b = np.require(b, requirements=["C", "W"])  # what compiled code is compiled for
    values = np.empty(len(support), rows.dense.dtype)
    size = max(int(_PAUSE / (len(support) * cost(rows))), 1)
    for begin in range(0, len(which), size):
        some = which[begin : begin + size]
        sums = np.zeros((len(some), len(b)))
        expand(rows, b, source, some, kernel, values, sums)
        out[some] += sums


class _State:
    """The solution so far. ``gradient`` is that at the point ``reference``; rows that are active have theirs in ``active``.

    Methods assign what belongs together last and at once, since an interrupt may come between any two statements.
    """

    def __init__(self, problem: Problem, b: np.ndarray, buffer: np.ndarray) -> None:
        n = len(b)
        self.problem = problem
        self.b, self.reference = b, np.zeros(n)
        self.gradient = -problem.targets
        self.diagonal = np.empty(n, np.float32)
        diagonal(problem.rows, problem.kernel, self.diagonal)
        self.cache = ColumnCache(buffer, n)
        self.which = np.arange(0)
        self.restore()

    def add(self, rows: Rows, b: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Add the rows ``which`` of K b to a gradient."""
        add_expansions(rows, b[np.newaxis], rows, which, self.problem.kernel, gradient[:, np.newaxis])

    def restore(self) -> None:
        """Make all rows active, with the gradient of the point reached."""
        p, n = self.problem, len(self.b)
        gradient, inactive = self.gradient.copy(), np.ones(n, bool)
        if len(self.which):
            self.b[self.which] = self.active.b
            gradient[self.which] = self.active.gradient
            inactive[self.which] = False
        if inactive.any():
            self.add(p.rows, self.b - self.reference, np.flatnonzero(inactive), gradient)
        self.gradient, self.reference = gradient, self.b.copy()
        if inactive.any():
            self.activate(np.arange(n))

    def activate(self, which: np.ndarray) -> None:
        """Make the rows ``which`` the active ones, at the point of reference."""
        p, m = self.problem, len(which)
        active = Active(
            self.b[which], self.gradient[which], p.lower[which], p.upper[which], p.kink[which],
            np.empty(m, np.float32), np.empty(m, np.float32), self.diagonal[which],
            np.empty(m, np.float32), np.empty(m, np.float32), np.zeros(m), np.zeros(m), np.empty(m, np.int64), np.zeros(m, bool),
        )  # fmt: skip
        self.cache.reset(m)
        self.which, self.rows, self.active = which, p.rows if m == len(self.b) else subset(p.rows, which), active

    def derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """What the objective changes by, a unit, where each active variable rises, and minus that where it falls."""
        a, epsilon = self.active, self.problem.epsilon
        slopes(a, epsilon)
        rise, fall = (np.where(np.isinf(slope), slope, np.copysign(np.float64(epsilon), slope)) for slope in (a.rise, a.fall))
        return a.gradient + rise, a.gradient + fall

    def shrink(self) -> None:
        """Take rows out that are at a bound or kink and that the most violating pair would leave there, if they are enough."""
        a, (rises, falls) = self.active, self.derivatives()
        keep = np.flatnonzero((rises <= falls.max()) | (falls >= rises.min()))
        if not 2 <= len(keep) <= _WORTHWHILE * len(self.which):
            return
        self.b[self.which] = a.b
        self.cache.keep(keep)
        self.which, self.rows, self.active = self.which[keep], subset(self.rows, keep), Active(*(array[keep] for array in a))

    def check(self) -> float:
        """The gap in float64, of all rows, which must be active: the gradient of the rows that decide it is worked out anew.

        A row decides where its gradient in float32 does not exclude it by four times the largest error seen among those that do.
        Kernels other than the Gaussian one can have values of any size, and errors with them: there all rows decide.
        """
        p, a = self.problem, self.active
        exact = np.zeros(len(self.b), bool)
        error = 1e-7 * float(np.sqrt(np.sum(a.b**2) * self.diagonal.max()))
        while True:
            rises, falls = self.derivatives()
            doubt = (rises <= rises.min() + 8.0 * error) | (falls >= falls.max() - 8.0 * error)
            doubt |= p.kernel.kind != RBF
            new = np.flatnonzero(doubt & ~exact)
            if not len(new):
                self.restore()
                return max(float(falls.max() - rises.min()), 0.0)
            gradient = -p.targets
            self.add(p.exact_rows, a.b, new, gradient)
            error = max(error, float(np.abs(a.gradient[new] - gradient[new]).max()))
            a.gradient[new], exact[new] = gradient[new], True


def solve(problem: Problem, b: np.ndarray, options: Options, buffer: np.ndarray) -> Solution:
    """Solve a problem from the feasible point ``b`` float64 [n], with room for columns, float32 [at least 2 n].

    O(n) a step, and O(n d) for each new column.
    """
    n_iter, checks, gap, interrupted = 0, 0, np.inf, False
    limit = options.max_iter if options.max_iter >= 0 else sys.maxsize
    state = _State(problem, b.copy(), buffer)
    goal, since = options.tol, 0
    try:
        while True:
            m = len(state.which)
            pause = max(int(_PAUSE / (m * cost(state.rows))), 50)
            status, done = steps(
                state.active, state.cache.slots, state.rows, problem.kernel, problem.epsilon, goal, options.conjugate,
                min(max(_SHRINK_EVERY, 2_000_000 // m), pause, limit - n_iter),
            )  # fmt: skip
            n_iter, since = n_iter + done, since + done
            if options.verbose:
                sys.stderr.write(f"{n_iter:,} steps, {m:,} of {len(b):,} rows active\n")
            if status == RUNNING and n_iter < limit:
                if options.shrinking and since >= _SHRINK_EVERY:
                    since = 0
                    state.shrink()
                continue
            state.restore()
            before, gap, checks = gap, state.check(), checks + 1
            stuck = checks == _CHECKS or (status == STALLED and gap > 0.5 * before)
            if gap <= options.tol or n_iter >= limit or stuck:
                break
            goal = 0.9 * options.tol  # the steps to come are few, and float32 good enough for them: one more check should do
            if options.shrinking:
                state.shrink()
    except KeyboardInterrupt:
        interrupted = True
        state.restore()
        gap = state.check()
    state.restore()
    return _finish(problem, state, gap, n_iter, interrupted)


def _finish(problem: Problem, state: _State, gap: float, n_iter: int, interrupted: bool) -> Solution:
    p, a = problem, state.active
    rises, falls = state.derivatives()
    free = rises == falls
    if free.any():
        bias = -float(rises[free].mean())
    else:
        ends = [end for end in (float(rises.min()), float(falls.max())) if math.isfinite(end)]
        bias = -sum(ends) / len(ends)
    square = 0.5 * float(a.b @ (a.gradient + p.targets))
    objective = square - float(a.b @ p.targets) + p.epsilon * float(np.abs(a.b - p.kink).sum())
    residual = -(a.gradient + bias)  # t - f
    margin = p.epsilon
    if p.classification:
        margin = -1.0
        objective -= float((p.upper - p.lower).sum())
    loss = p.upper @ np.maximum(residual - margin, 0.0) - p.lower @ np.maximum(-residual - margin, 0.0)
    return Solution(a.b, bias, gap, objective, square + float(loss), n_iter, interrupted)
