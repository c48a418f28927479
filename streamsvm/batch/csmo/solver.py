"""Conjugate SMO with shrinking: steps in float32 on the working set, and checks of the solution in float64."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.block_phase import block_phase
from streamsvm.batch.csmo.column_cache import ColumnCache
from streamsvm.batch.csmo.columns import cost
from streamsvm.batch.csmo.problem import Problem, feasible, first_point
from streamsvm.batch.csmo.state import PAUSE, State
from streamsvm.batch.csmo.steps import RUNNING, STALLED, WANTED
from streamsvm.batch.csmo.workers import Workers
from streamsvm.core.stopping import stop_if_asked

__all__ = ["Options", "Solution", "column_buffer", "solve"]

_MEGABYTE = 2**20
_MEGABYTES_AN_OPERATION = 4.0  # of a kernel value: columns that are soon computed again are not worth more memory
_SHRINK_EVERY = 1000  # steps
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


def solve(
    problem: Problem,
    start: np.ndarray | None,
    options: Options,
    buffer: np.ndarray,
    workers: Workers | None = None,
    look: Callable[[], None] = lambda: None,
) -> Solution:
    """Solve a problem from coefficients ``start`` float64 [n], or from the first point, with a cache in a `column_buffer`.

    O(n) a step, and O(n d) for each new column. An interrupt, or `stop_if_asked`, ends it with the point so far. ``look`` is
    called now and then.
    """
    n = len(problem.lower)
    limit = int(_MEGABYTES_AN_OPERATION * cost(problem.rows) * _MEGABYTE)
    b = first_point(problem) if start is None else feasible(problem, start)
    state = State(problem, b, buffer[: ColumnCache.values(limit, n)], workers)
    checks, gap, interrupted = 0, np.inf, False
    max_iter = options.max_iter if options.max_iter >= 0 else sys.maxsize
    goal, since = options.tol, 0
    try:
        block_phase(state, goal, options.conjugate, options.shrinking, max_iter, options.verbose, look)
        while True:
            stop_if_asked()
            look()
            m = len(state.which)
            pause = max(int(PAUSE / (m * cost(state.rows))), 50)
            status, done = state.workers.steps(
                state.working, state.cache.slots, state.rows, problem.kernel, problem.epsilon, goal, options.conjugate,
                min(max(_SHRINK_EVERY, 2_000_000 // m), pause, max_iter - state.n_iter),
            )  # fmt: skip
            state.n_iter, since = state.n_iter + done, since + done
            if status == WANTED:
                state.provide_column()
                status = RUNNING
            elif options.verbose:
                sys.stderr.write(f"{state.n_iter:,} steps, {m:,} of {n:,} rows in the working set\n")
            if status == RUNNING and state.n_iter < max_iter:
                if options.shrinking and since >= _SHRINK_EVERY:
                    since = 0
                    state.shrink()
                continue
            state.unshrink()
            before, gap, checks = gap, state.check(), checks + 1
            stuck = checks == _CHECKS or (status == STALLED and gap > 0.5 * before)
            if gap <= options.tol or state.n_iter >= max_iter or stuck:
                break
            goal = 0.9 * options.tol  # few steps are left, for which float32 is exact enough: one more check should do
            if options.shrinking:
                state.shrink()
    except KeyboardInterrupt:
        interrupted = True
        state.unshrink()
        gap = state.check()
    state.unshrink()
    return _solution(problem, state, gap, interrupted)


def _solution(p: Problem, state: State, gap: float, interrupted: bool) -> Solution:
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
    return Solution(a.b, bias, gap, objective, square + float(loss) + bias * p.total, state.n_iter, interrupted)
