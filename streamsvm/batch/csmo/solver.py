"""Conjugate SMO with shrinking: steps in blocks or on the whole working set, and checks of the solution in float64.

Steps need columns of the kernel matrix, and a column costs more than a step. Therefore each round chooses a block of variables,
those between their bounds and some that violate optimality, and solves the problem for them on their small kernel matrix; then
the gradients of all rows are updated at once (`solve_blocks`). If the working set is small, or most of its variables are between
their bounds and its whole kernel matrix fits into the cache, the steps use the whole working set.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.newton import NewtonSteps, run_exact_steps
from streamsvm.batch.csmo.small import (
    GAP_SHARE,
    SmallOptions,
    compute_objectives,
    recompute_slopes,
    solve_free_variables,
    solve_small,
    write_first_point,
)
from streamsvm.batch.csmo.state import MAX_UNINTERRUPTED_OPERATIONS, GramCache, Problem, SolverState, make_feasible
from streamsvm.batch.csmo.steps import CONVERGED, MAX_SPREAD, RUNNING, STALLED, Scratch, WorkingSet, run_steps
from streamsvm.core.threads import Workers, raise_if_stopped

_MAX_NEW_VARIABLES = 512  # violators that enter a block
_BLOCK_SIZE = 1024  # variables in a block
_MIN_ROWS_FOR_BLOCKS = 2000
_MAX_SMALL_ROWS = 500  # problems up to this size take little time in float64, with their whole kernel matrix
# If the kernel matrix of the working set fits, and at least this share of its variables is free, steps on all of it are faster.
_MIN_FREE_SHARE = 0.25
_VIOLATION_SHARE = 0.1  # a variable enters a block if its violation exceeds this share of the largest one
_MAX_STEPS_PER_VARIABLE = 20  # of a block
_GOLDEN_RATIO = 0.618034  # multiples of it, modulo 1, are spread evenly
_MEGABYTE = 2**20
_STEPS_BETWEEN_SHRINKS = 1000
# The working set shrinks if at most this share of it remains; the second, if its kernel matrix must be compacted.
_MAX_REMAINING_SHARE, _MAX_REMAINING_SHARE_OF_MATRIX = 0.9, 0.7
_MAX_FAILED_CHECKS = 3  # checks that find less than half of the gap gone; then float64 steps are tried
_GOAL_SHARE = 0.9  # the steps aim at this share of the tolerance, the rest allows for float32 errors
_MAX_POLISHED_VARIABLES = 150  # if more are between their bounds, they are not solved for to the last digits
_MAX_CHECKS = 100  # checks in float64, each followed by more steps, before the solver gives up on the tolerance


class SolverOptions(NamedTuple):
    """Parameters of the estimators that control the solver."""

    tol: float
    conjugate: bool
    shrinking: bool
    max_iter: int  # maximum number of steps of a machine
    verbose: bool
    megabytes: float = 0.0  # limit of the cache; small problems use less


def solve_blocks(state: SolverState, options: SolverOptions, goal: float) -> int:
    """Solve the dual problem in blocks of about 1,000 variables, with all others fixed, until the gap (violation of the
    optimality conditions) is at most ``goal``. Updates ``state``, and returns a status: `CONVERGED`; `STALLED` if no progress is
    possible; or `RUNNING` if the caller should continue with steps on all variables.

    `STALLED` means that a block made no progress. O(n d m) for each block, where m coefficients change. The matrix of a block
    overwrites the matrix of the working set.
    """
    p, max_size = state.problem, max(math.isqrt(len(state.buffer)), 2)
    previous, number = np.arange(0), 0
    while len(state.which) > min(_MIN_ROWS_FOR_BLOCKS, max_size) and state.n_iter < options.max_iter:
        raise_if_stopped()
        if options.shrinking:
            state.shrink_rows(_MAX_REMAINING_SHARE)
        n, (ascents, descents, gap) = len(state.which), state.compute_slopes()
        if gap <= goal:
            return CONVERGED
        if n <= max_size and np.count_nonzero(ascents == descents) > _MIN_FREE_SHARE * n:
            break
        which = _choose_block(ascents, descents, _find_positions(previous, state.which), max_size, number)
        a, m = state.working, len(which)
        block = WorkingSet(*(array[which] for array in a))
        start, values = block.b.copy(), state.reserve_matrix(m)
        state.write_matrix(which, values)
        limit = int(MAX_UNINTERRUPTED_OPERATIONS / (4 * m))
        limit = min(_MAX_STEPS_PER_VARIABLE * m, limit, options.max_iter - state.n_iter)
        scratch = Scratch.allocate(m, np.float32)
        _, n_steps = run_steps(block, scratch, values.ravel(), p.epsilon, max(GAP_SHARE * gap, goal), options.conjugate, limit)
        changed = np.flatnonzero(block.b != start)
        if not len(changed):
            return RUNNING if n <= max_size else STALLED  # steps on the whole working set may be in float64
        gradient, b = a.gradient.copy(), a.b.copy()
        b[which] = block.b
        state.add_change((block.b - start)[changed], state.which[which[changed]], state.which, gradient)
        state.working, state.n_iter = a._replace(b=b, gradient=gradient), state.n_iter + n_steps
        previous, number = state.which[which], number + 1
        if options.verbose:
            sys.stderr.write(f"block {number}: gap {gap:.3g}, {state.n_iter:,} steps, {n:,} rows in the working set\n")
    return RUNNING


def _find_positions(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the positions of ``rows`` in ``which`` int64 [m]: both contain row numbers, and ``which`` (the rows that the solver
    currently works on) is ascending. Rows that do not occur in it are left out.
    """
    positions = np.searchsorted(which, rows)
    positions[positions == len(which)] = 0
    return positions[which[positions] == rows]


def _estimate_middle_slope(ascents: np.ndarray, descents: np.ndarray, free: np.ndarray) -> float:
    """Estimate the slope of the objective that all free variables (strictly between their bounds) will have at the optimum: the
    median over the positions ``free``. ``ascents`` and ``descents`` [m] are the slopes when each variable is raised and lowered.
    """
    least, most = ascents.min(), descents.max()
    middle = float(np.median(ascents[free])) if len(free) else 0.5 * (least + most)
    return float(np.clip(middle, least + _VIOLATION_SHARE * (most - least), most - _VIOLATION_SHARE * (most - least)))


def _choose_block(ascents: np.ndarray, descents: np.ndarray, previous: np.ndarray, max_size: int, number: int) -> np.ndarray:
    """Choose at most ``max_size`` variables that are solved together next: variables between their bounds, some that violate the
    optimality conditions, and some of the ``previous`` block. ``ascents`` and ``descents`` are the slopes of all variables; the
    block's ``number`` varies the choice. Returns positions, int64 ascending.

    Violators are sampled evenly over all rows, not by their violation: the worst ones are similar rows, where a gain for one is a
    loss for the others. A block should resemble the whole problem.
    """
    free = np.flatnonzero(ascents == descents)
    middle = _estimate_middle_slope(ascents, descents, free)
    is_chosen = np.zeros(len(ascents), bool)
    is_chosen[ascents.argmin()] = is_chosen[descents.argmax()] = True
    n_violators = min(_MAX_NEW_VARIABLES, max(max_size // 2, 2)) // 2
    for violation in (middle - ascents, descents - middle):
        violators = np.flatnonzero(violation > _VIOLATION_SHARE * violation.max())
        n_left = max_size - int(np.count_nonzero(is_chosen))
        is_chosen[_pick_spread(violators, min(n_violators, n_left), number)] = True
    is_chosen[_pick_spread(free, max_size - int(np.count_nonzero(is_chosen)), number)] = True
    candidates = previous[~is_chosen[previous]]
    is_chosen[candidates[: max(min(_BLOCK_SIZE, max_size) - np.count_nonzero(is_chosen), 0)]] = True
    return np.flatnonzero(is_chosen)


def _pick_spread(variables: np.ndarray, n: int, number: int) -> np.ndarray:
    """Pick ``n`` of the ``variables`` (positions), evenly spread over the array, and return them; all of them if there are fewer.
    The ``number`` of the block shifts the choice, so that consecutive blocks of variables get different ones.
    """
    if len(variables) <= n:
        return variables
    stride = len(variables) / max(n, 1)
    return variables[(stride * (np.arange(n) + number * _GOLDEN_RATIO % 1.0)).astype(np.int64)]


class MachineSolution(NamedTuple):
    """The solution of a dual problem; ``objective`` is the dual objective, which is minimised, ``primal`` the primal one."""

    b: np.ndarray
    bias: float
    gap: float
    objective: float
    primal: float
    n_iter: int
    interrupted: bool

    def has_ended(self, options: SolverOptions) -> bool:
        """Return whether this solution is final: its gap (violation of the optimality conditions) is at most the tolerance, or
        the maximum number of steps is reached.
        """
        return self.gap <= options.tol or self.n_iter >= options.max_iter


def is_small(n: int, megabytes: float) -> bool:
    """Return whether a problem of ``n`` rows should be solved with its whole Gram matrix in float64: it has at most 500 rows, and
    the matrix fits into a cache of this many ``megabytes``.
    """
    return n <= min(_MAX_SMALL_ROWS, _MIN_ROWS_FOR_BLOCKS) and 12 * n * n <= megabytes * _MEGABYTE


def allocate_gram(n: int, megabytes: float) -> GramCache | None:
    """Allocate memory for the float32 Gram matrix of ``n`` rows, which several fits to the same rows share, and return it. Return
    None if ``n`` is above 2,000, or two such matrices do not fit into a cache of this many ``megabytes``.

    Fits to more rows begin with blocks, which share little.
    """
    has_room = 8.0 * n * n + 64.0 * n <= megabytes * _MEGABYTE
    return GramCache(n) if n <= _MIN_ROWS_FOR_BLOCKS and has_room else None


def allocate_buffer(megabytes: float, n: int) -> np.ndarray:
    """Return a float32 array for kernel matrices of up to ``n`` variables, within a limit of ``megabytes``. The operating system
    provides its memory page by page, when it is first written.
    """
    return np.empty(max(min(int(megabytes * _MEGABYTE) // 4, n * n), 2 * n), np.float32)


def solve_problem(
    problem: Problem,
    start: np.ndarray | None,
    options: SolverOptions,
    buffer: np.ndarray,
    workers: Workers | None = None,
    n_done: int = 0,
    gram: GramCache | None = None,
) -> MachineSolution:
    """Solve the dual problem of an SVM, and return the solution. It starts from the coefficients ``start`` float64 [n], made
    feasible, or without them from a default point. ``buffer`` is memory for kernel values, ``workers`` are threads for them, and
    ``gram`` is a Gram matrix that several fits share. ``n_done`` steps led to ``start``.

    ``buffer`` comes from `allocate_buffer`, and ``gram`` from `allocate_gram`. An interrupt, or `raise_if_stopped`, ends the
    solver with the current solution. O(n) for each step, O(n d) for each new column of the kernel matrix.
    """
    if start is None:
        b = np.empty(len(problem.upper))
        write_first_point(problem.upper, problem.total, b)
    else:
        b = make_feasible(problem, start)
    goal, interrupted, n = _GOAL_SHARE * options.tol, False, len(problem.targets)
    K = None
    if problem.precomputed is not None and n <= min(_MAX_SMALL_ROWS, _MIN_ROWS_FOR_BLOCKS) and n * n <= len(buffer):
        K = problem.precomputed.get_matrix()
    if K is not None and not n_done:
        try:
            raise_if_stopped()
            solution = _solve_small_problem(problem, K, b, options)
            if solution.has_ended(options):
                return solution
            n_done = solution.n_iter
        except KeyboardInterrupt:
            interrupted = True
    state = SolverState(problem, b, buffer, workers, options.tol, int(options.megabytes * _MEGABYTE), gram)
    state.n_iter = n_done
    n_checks, n_failed, gap = 0, 0, np.inf
    try:
        while not interrupted:
            status = solve_blocks(state, options, goal)
            if status == RUNNING:
                status = _run_single_steps(state, options, goal)
            state.restore_rows()
            previous_gap, gap, n_checks = gap, state.check_gap(), n_checks + 1
            n_failed += gap > 0.5 * previous_gap
            is_stuck = n_checks == _MAX_CHECKS or (status == STALLED and gap > 0.5 * previous_gap)
            needs_float64 = is_stuck or n_failed == _MAX_FAILED_CHECKS
            if options.tol < gap and state.n_iter < options.max_iter and needs_float64:
                gap = run_exact_steps(state, gap, options.tol)
            if gap <= options.tol or state.n_iter >= options.max_iter or is_stuck:
                break
            if options.shrinking:
                state.shrink_rows(_MAX_REMAINING_SHARE)
    except KeyboardInterrupt:
        interrupted = True
    state.restore_rows()
    if interrupted:
        gap = state.check_gap()
    elif K is not None and gap <= options.tol:
        gap = _polish_solution(problem, K, state.working, options.tol)
    p, working = problem, state.working
    bias, objective, primal = compute_objectives(working, p.targets, p.epsilon, p.classification, p.total)
    return MachineSolution(working.b, bias, gap, objective, primal, state.n_iter, interrupted)


def make_small_options(options: SolverOptions) -> SmallOptions:
    """Return the solver's options as the tuple `SmallOptions`, which the compiled solver of small problems takes."""
    goal = _GOAL_SHARE * options.tol
    return SmallOptions(options.tol, goal, options.conjugate, options.max_iter, _MAX_POLISHED_VARIABLES)


def _solve_small_problem(p: Problem, K: np.ndarray, b: np.ndarray, options: SolverOptions) -> MachineSolution:
    """Solve the problem ``p`` of few rows with its Gram matrix K float64 [n, n], starting from the coefficients ``b`` float64
    [n], which are overwritten by the solution. Return it with its objectives and the remaining gap (violation of the optimality
    conditions).
    """
    small = make_small_options(options)
    values = solve_small(K, b, p.targets, p.lower, p.upper, p.kink, p.epsilon, p.classification, p.total, small)
    return make_solution(b, values, options)


def make_solution(b: np.ndarray, values: Sequence[float], options: SolverOptions) -> MachineSolution:
    """Combine the coefficients ``b`` and the five ``values`` that `solve_small` returns (intercept, gap, dual objective, primal
    objective, number of steps) to a `MachineSolution`, and return it.
    """
    bias, gap, objective, primal, n_steps = values
    if options.verbose:
        sys.stderr.write(f"{n_steps:,.0f} steps, all rows in the working set\n")
    return MachineSolution(b, bias, gap, objective, primal, int(n_steps), interrupted=False)


def _polish_solution(p: Problem, K: np.ndarray, a: WorkingSet, tol: float) -> float:
    """Improve the nearly optimal solution ``a`` of the problem ``p``, with Gram matrix K: solve for its free variables (strictly
    between their bounds) exactly. Skipped if the gap (violation of the optimality conditions), recomputed in float64, exceeds
    ``tol``. Return the gap.
    """
    free = np.empty(len(a.b), np.int64)
    gap, _, m = recompute_slopes(K, a, p.targets, p.epsilon, free)
    if gap <= tol and 1 < m <= _MAX_POLISHED_VARIABLES:
        gap = solve_free_variables(K, a, p.epsilon, free[:m], gap)
    return max(gap, 0.0)


def _run_single_steps(state: SolverState, options: SolverOptions, goal: float) -> int:
    """Run SMO steps (steps on pairs of variables) and occasional Newton steps on all variables in the solver's ``state``, until
    the gap (violation of the optimality conditions) is below ``goal`` or the step limit is reached. Return the status:
    `CONVERGED`, `STALLED` (no step is possible) or `RUNNING` (limit reached).
    """
    p, n_since_shrink, newton = state.problem, 0, NewtonSteps(options.tol)
    while state.n_iter < options.max_iter:
        raise_if_stopped()
        m, (ascents, descents, gap) = len(state.which), state.compute_slopes()
        if gap < goal:
            return CONVERGED
        spread = max(_compute_spread(ascents), _compute_spread(descents))
        is_float32_enough = spread < MAX_SPREAD * max(goal, GAP_SHARE * gap)
        scratch = Scratch.allocate(m, np.float32 if is_float32_enough else np.float64)
        limit = max(int(MAX_UNINTERRUPTED_OPERATIONS / (8 * m)), 50)
        limit = min(max(_STEPS_BETWEEN_SHRINKS, 2_000_000 // m), limit, options.max_iter - state.n_iter)
        values = state.fill_matrix().ravel()
        status, n_steps = run_steps(state.working, scratch, values, p.epsilon, goal, options.conjugate, limit)
        state.n_iter, n_since_shrink = state.n_iter + n_steps, n_since_shrink + n_steps
        newton.spent += float(n_steps * m)
        if options.verbose:
            sys.stderr.write(f"{state.n_iter:,} steps, {m:,} of {len(state.b):,} rows in the working set\n")
        if status != RUNNING:
            return status
        newton.run_if_due(state)
        if options.shrinking and n_since_shrink >= _STEPS_BETWEEN_SHRINKS:
            n_since_shrink = 0
            state.shrink_rows(_MAX_REMAINING_SHARE_OF_MATRIX)
    return RUNNING


def _compute_spread(slopes: np.ndarray) -> float:
    """Return the difference between the largest and the smallest of the finite ``slopes``; 0 if none is finite."""
    finite = slopes[np.isfinite(slopes)]
    return float(finite.max() - finite.min()) if len(finite) else 0.0
