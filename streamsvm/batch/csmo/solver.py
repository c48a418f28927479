"""Conjugate SMO with shrinking: steps in blocks or on the whole working set, and checks of the solution in float64.

Steps need columns of the kernel matrix, and a column costs more than a step. So rounds choose a block of variables, those between
their bounds and some of those that violate optimality, and solve for it on its own small matrix; then the gradient of all rows
takes all changes at once (`solve_blocks`). Where the working set is small, or most of its variables are between their bounds and
its whole matrix fits, steps are on all of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.newton import NewtonSteps, run_exact_steps
from streamsvm.batch.csmo.small import (
    PART,
    SmallOptions,
    compute_objectives,
    recompute_slopes,
    solve_free_variables,
    solve_machines,
    solve_small,
    write_first_point,
)
from streamsvm.batch.csmo.state import PAUSE, GramCache, Problem, SolverState, make_feasible
from streamsvm.batch.csmo.steps import CONVERGED, RUNNING, SPREAD, STALLED, Scratch, WorkingSet, run_steps
from streamsvm.core.threads import Workers, raise_if_stopped

_NEW = 512  # violators that come into a block, at most
_BLOCK = 1024  # variables that a block has where there are so many
_FEW = 2000  # rows that are too few for blocks
_SMALL = 500  # rows whose whole kernel matrix takes little time in float64, too
_FREE = 0.25  # of a working set whose matrix fits, from which part of free variables on steps on all of it win
_WORST = 0.1  # of the worst violation, above which a violator is chosen for a block
_STEPS = 20  # for each variable of a block, at most
_GOLDEN = 0.618034  # multiples of it lie everywhere between two integers
_MEGABYTE = 2**20
_SHRINK_EVERY = 1000  # steps
_LEFT, _LEFT_OF_MATRIX = 0.9, 0.7  # of the working set, at most, where it shrinks; the latter where its matrix has to be moved
_FAILED = 3  # checks that find no half of the gap before, after which steps in float64 are tried
_GOAL = 0.9  # of the tolerance, which steps reach: float32 may be off by the rest
_MOST_FREE = 150  # variables between their bounds, whose last digits are solved for
_AT_ONCE = 64  # machines that are solved before a signal can be handled, each in milliseconds
_CHECKS = 100  # at most so many checks in float64, each followed by more steps, before a tolerance is given up


class SolverOptions(NamedTuple):
    """Parameters of the estimators that say how to solve a problem."""

    tol: float
    conjugate: bool
    shrinking: bool
    max_iter: int  # steps of a machine, at most
    verbose: bool
    megabytes: float = 0.0  # that the cache may take, where its buffer takes less


def solve_blocks(state: SolverState, options: SolverOptions, goal: float) -> int:
    """Solve block after block, until the gap of the working set is at most ``goal``, or steps on all of it win; return why.

    O(n d m) a block in which m coefficients change. The matrix of a block lies in the memory of that of the working set.
    """
    p, largest = state.problem, max(math.isqrt(len(state.buffer)), 2)
    before, number = np.arange(0), 0
    while len(state.which) > min(_FEW, largest) and state.n_iter < options.max_iter:
        raise_if_stopped()
        if options.shrinking:
            state.shrink_rows(_LEFT)
        n, (ascents, descents, gap) = len(state.which), state.compute_slopes()
        if gap <= goal:
            return CONVERGED
        if n <= largest and np.count_nonzero(ascents == descents) > _FREE * n:
            break
        which = _choose_block(ascents, descents, _find_positions(before, state.which), largest, number)
        a, m = state.working, len(which)
        block = WorkingSet(*(array[which] for array in a))
        start, values = block.b.copy(), state.reserve_matrix(m)
        state.write_matrix(which, values)
        limit = min(_STEPS * m, int(PAUSE / (4 * m)), options.max_iter - state.n_iter)
        scratch = Scratch.allocate(m, np.float32)
        _, done = run_steps(block, scratch, values.ravel(), p.epsilon, max(PART * gap, goal), options.conjugate, limit)
        changed = np.flatnonzero(block.b != start)
        if not len(changed):
            return RUNNING if n <= largest else STALLED  # steps on the whole working set may have more precision
        gradient, b = a.gradient.copy(), a.b.copy()
        b[which] = block.b
        state.add_change((block.b - start)[changed], state.which[which[changed]], state.which, gradient)
        state.working, state.n_iter = a._replace(b=b, gradient=gradient), state.n_iter + done
        before, number = state.which[which], number + 1
        if options.verbose:
            sys.stderr.write(f"block {number}: gap {gap:.3g}, {state.n_iter:,} steps, {n:,} rows in the working set\n")
    return RUNNING


def _find_positions(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return where those of the ``rows`` that are still in the working set ``which``, ascending, lie in it."""
    places = np.searchsorted(which, rows)
    places[places == len(which)] = 0
    return places[which[places] == rows]


def _estimate_middle_slope(ascents: np.ndarray, descents: np.ndarray, free: np.ndarray) -> float:
    """Return about where ascents and descents will meet: where those of the ``free`` variables do."""
    least, most = ascents.min(), descents.max()
    middle = float(np.median(ascents[free])) if len(free) else 0.5 * (least + most)
    return float(np.clip(middle, least + _WORST * (most - least), most - _WORST * (most - least)))


def _choose_block(ascents: np.ndarray, descents: np.ndarray, before: np.ndarray, largest: int, number: int) -> np.ndarray:
    """Return the variables of block number ``number``, int64 ascending: free ones, violators, and others of the block before.

    They are at most ``largest``. Violators are taken from all over the rows, and not the worst ones: these lie beside each other,
    and what one of them gains the others lose. So a block is like the problem.
    """
    free = np.flatnonzero(ascents == descents)
    middle = _estimate_middle_slope(ascents, descents, free)
    wanted = np.zeros(len(ascents), bool)
    wanted[ascents.argmin()] = wanted[descents.argmax()] = True
    room = min(_NEW, max(largest // 2, 2)) // 2
    for violation in (middle - ascents, descents - middle):
        violators = np.flatnonzero(violation > _WORST * violation.max())
        wanted[_pick_spread(violators, min(room, largest - int(np.count_nonzero(wanted))), number)] = True
    wanted[_pick_spread(free, largest - int(np.count_nonzero(wanted)), number)] = True
    others = before[~wanted[before]]
    wanted[others[: max(min(_BLOCK, largest) - np.count_nonzero(wanted), 0)]] = True
    return np.flatnonzero(wanted)


def _pick_spread(variables: np.ndarray, n: int, number: int) -> np.ndarray:
    """Return at most n variables from all over the given ones, others for each block number."""
    if len(variables) <= n:
        return variables
    stride = len(variables) / max(n, 1)
    return variables[(stride * (np.arange(n) + number * _GOLDEN % 1.0)).astype(np.int64)]


class DualSolution(NamedTuple):
    """A solution: ``objective`` is that of the dual, which is minimised, and ``primal`` that of the primal."""

    b: np.ndarray
    bias: float
    gap: float
    objective: float
    primal: float
    n_iter: int
    interrupted: bool

    def has_ended(self, options: SolverOptions) -> bool:
        """Whether nothing is left to do: the gap is small enough, or there may be no more steps."""
        return self.gap <= options.tol or self.n_iter >= options.max_iter


def is_small(n: int, megabytes: float) -> bool:
    """Whether n rows are best given by their Gram matrix in float64: it takes little time, and fits beside all columns."""
    return n <= min(_SMALL, _FEW) and 12 * n * n <= megabytes * _MEGABYTE


def allocate_gram(n: int, megabytes: float) -> GramCache | None:
    """Return memory for the kernel values of n rows, if there is room for them beside as many in a `allocate_buffer`.

    None, too, where fits begin with blocks, which share next to nothing.
    """
    return GramCache(n) if n <= _FEW and 8.0 * n * n + 64.0 * n <= megabytes * _MEGABYTE else None


def allocate_buffer(megabytes: float, n: int) -> np.ndarray:
    """Return memory for kernel matrices of up to n variables. The operating system provides it only as they are written."""
    return np.empty(max(min(int(megabytes * _MEGABYTE) // 4, n * n), 2 * n), np.float32)


def solve_problem(
    problem: Problem,
    start: np.ndarray | None,
    options: SolverOptions,
    buffer: np.ndarray,
    workers: Workers | None = None,
    done: int = 0,
    gram: GramCache | None = None,
) -> DualSolution:
    """Solve a problem from coefficients ``start`` float64 [n], or from the first point, with a cache in a `allocate_buffer`.

    O(n) a step, and O(n d) for each new column. An interrupt, or `raise_if_stopped`, ends it with the point so far. ``done``
    steps were done before, to get to ``start``. ``gram`` is memory of all kernel values, by which fits to the same rows share
    them.
    """
    if start is None:
        b = np.empty(len(problem.upper))
        write_first_point(problem.upper, problem.total, b)
    else:
        b = make_feasible(problem, start)
    goal, interrupted, n = _GOAL * options.tol, False, len(problem.targets)
    K = (
        problem.precomputed.get_matrix()
        if problem.precomputed is not None and n <= min(_SMALL, _FEW) and n * n <= len(buffer)
        else None
    )
    if K is not None and not done:
        try:
            raise_if_stopped()
            solution = _solve_small_problem(problem, K, b, options)
            if solution.has_ended(options):
                return solution
            done = solution.n_iter
        except KeyboardInterrupt:
            interrupted = True
    state = SolverState(problem, b, buffer, workers, options.tol, int(options.megabytes * _MEGABYTE), gram)
    state.n_iter = done
    checks, failed, gap = 0, 0, np.inf
    try:
        while not interrupted:
            status = solve_blocks(state, options, goal)
            if status == RUNNING:
                status = _run_single_steps(state, options, goal)
            state.restore_rows()
            before, gap, checks = gap, state.check_gap(), checks + 1
            failed += gap > 0.5 * before
            stuck = checks == _CHECKS or (status == STALLED and gap > 0.5 * before)
            if options.tol < gap and state.n_iter < options.max_iter and (stuck or failed == _FAILED):
                gap = run_exact_steps(state, gap, options.tol)
            if gap <= options.tol or state.n_iter >= options.max_iter or stuck:
                break
            if options.shrinking:
                state.shrink_rows(_LEFT)
    except KeyboardInterrupt:
        interrupted = True
    state.restore_rows()
    if interrupted:
        gap = state.check_gap()
    elif K is not None and gap <= options.tol:
        gap = _polish_solution(problem, K, state.working, options.tol)
    p, working = problem, state.working
    bias, objective, primal = compute_objectives(working, p.targets, p.epsilon, p.classification, p.total)
    return DualSolution(working.b, bias, gap, objective, primal, state.n_iter, interrupted)


def _make_small_options(options: SolverOptions) -> SmallOptions:
    return SmallOptions(options.tol, _GOAL * options.tol, options.conjugate, options.max_iter, _MOST_FREE)


def solve_small_machines(
    K: np.ndarray,
    places: np.ndarray,
    C: np.ndarray,
    labels: np.ndarray,
    targets: np.ndarray,
    machines: np.ndarray,
    epsilon: float | None,
    share: float,
    options: SolverOptions,
    coefficients: np.ndarray,
) -> dict[int, DualSolution]:
    """Return the solutions of all machines, of few rows each, and write their ``coefficients``, float64 [machines, n].

    The other arguments are those of `streamsvm.batch.csmo.small.solve_machines`. Some solutions may not have ended.
    """
    values, small = np.empty((len(machines), 5)), _make_small_options(options)
    linear = 1.0 if epsilon is None else epsilon
    for begin in range(0, len(machines), _AT_ONCE):
        raise_if_stopped()
        part = slice(begin, begin + _AT_ONCE)
        solve_machines(
            K, places, C, labels, targets, machines[part], linear, epsilon is None, share, small, coefficients[part], values[part]
        )
    return {k: _make_solution(coefficients[k], row, options) for k, row in enumerate(values.tolist())}


def _solve_small_problem(p: Problem, K: np.ndarray, b: np.ndarray, options: SolverOptions) -> DualSolution:
    """Return the solution of a problem of few rows, from ``b``, which is written. K float64 [n, n]."""
    values = solve_small(
        K, b, p.targets, p.lower, p.upper, p.kink, p.epsilon, p.classification, p.total, _make_small_options(options)
    )
    return _make_solution(b, values, options)


def _make_solution(b: np.ndarray, values: Sequence[float], options: SolverOptions) -> DualSolution:
    bias, gap, objective, primal, done = values
    if options.verbose:
        sys.stderr.write(f"{done:,.0f} steps, all rows in the working set\n")
    return DualSolution(b, bias, gap, objective, primal, int(done), interrupted=False)


def _polish_solution(p: Problem, K: np.ndarray, a: WorkingSet, tol: float) -> float:
    """Compute the gradient in float64, and solve for free variables where the gap is at most ``tol``; return the gap."""
    free = np.empty(len(a.b), np.int64)
    gap, _, m = recompute_slopes(K, a, p.targets, p.epsilon, free)
    return max(solve_free_variables(K, a, p.epsilon, free[:m], gap) if gap <= tol and 1 < m <= _MOST_FREE else gap, 0.0)


def _run_single_steps(state: SolverState, options: SolverOptions, goal: float) -> int:
    """Do steps on the whole working set until its gap is below ``goal``; return why they ended."""
    p, since, newton = state.problem, 0, NewtonSteps(options.tol)
    while state.n_iter < options.max_iter:
        raise_if_stopped()
        m, (ascents, descents, gap) = len(state.which), state.compute_slopes()
        if gap < goal:
            return CONVERGED
        spread = max(_compute_spread(ascents), _compute_spread(descents))
        scratch = Scratch.allocate(m, np.float32 if spread < SPREAD * max(goal, PART * gap) else np.float64)
        at_once = min(max(_SHRINK_EVERY, 2_000_000 // m), max(int(PAUSE / (8 * m)), 50))
        limit = min(at_once, options.max_iter - state.n_iter)
        values = state.fill_matrix().ravel()
        status, done = run_steps(state.working, scratch, values, p.epsilon, goal, options.conjugate, limit)
        state.n_iter, since, newton.spent = state.n_iter + done, since + done, newton.spent + float(done * m)
        if options.verbose:
            sys.stderr.write(f"{state.n_iter:,} steps, {m:,} of {len(state.b):,} rows in the working set\n")
        if status != RUNNING:
            return status
        newton.run_if_due(state)
        if options.shrinking and since >= _SHRINK_EVERY:
            since = 0
            state.shrink_rows(_LEFT_OF_MATRIX)
    return RUNNING


def _compute_spread(slopes: np.ndarray) -> float:
    finite = slopes[np.isfinite(slopes)]
    return float(finite.max() - finite.min()) if len(finite) else 0.0
