"""Dual coordinate ascent over rows on disk, with shrinking to a working set in a second file.

A pass over all rows makes a step for each row, and writes the rows that are free afterwards to a working set. Passes over the
working set follow, each over the rows that are still free, then another pass over all rows, and so on until the duality gap over
all rows is closed. (Hsieh et al. stop after the first round, which can be far from the optimum.) If C is large, coefficients need
many steps to reach their optimum. The fit therefore has stages with increasing C: coefficients are multiplied as C grows, and
those at their bounds stay there.

All losses are one problem with one signed variable b_i per row, its dual coefficient:

    min 1/2 |w|^2 + sum_i (1/2 d_i b_i^2 - t_i b_i + epsilon |b_i|),    w = sum_i b_i x_i,    lower_i <= b_i <= upper_i.

Classification: t is +1 or -1, epsilon is 0, and b lies between 0 and t C (hinge, d = 0) or between 0 and t times infinity
(squared hinge, d = 1 / (2 C)). Regression: t is the target, and b lies between -C and C, or is unbounded with d = 1 / (2 C). C
includes the weights of the row and its class. Every row has an additional constant feature, which is not stored: the intercept is
its value times its weight, the last element of w.

Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
large-scale linear SVM. ICML, algorithm 1; Ho, C.-H., Lin, C.-J. (2012). Large-scale linear support vector regression. JMLR 13,
algorithm 4 (the update of one variable).
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.core.progress import iterate_with_progress
from streamsvm.linear.block_file import Block, BlockFile
from streamsvm.linear.dual_state import DualFiles, DualState, select_numbered_rows
from streamsvm.linear.solution import (
    LinearLoss,
    LinearOptions,
    LinearSolution,
    Pass,
    compute_bounds,
    compute_cost,
    encode_target,
    get_weight,
    is_free,
)


@compiled(fastmath=FAST)
def dot_row(w: np.ndarray, block: Block, i: int) -> float:
    """Return the dot product of the weights ``w`` float64 [features + 1] and row number ``i`` of ``block``, a part of the
    training rows. The last weight, which is the intercept's, is left out.
    """
    total = 0.0
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            total += w[block.indices[k]] * block.values[k]
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            total += w[k] * x[k]
    return total


@compiled(fastmath=FAST)
def _dot_and_square(w: np.ndarray, block: Block, i: int) -> tuple[float, float]:
    """Return the dot product of the weights ``w`` and row number ``i`` of ``block``, a part of the training rows, and the squared
    norm of the row. The last weight, which is the intercept's, is left out.
    """
    total, square = 0.0, 0.0
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            value = np.float64(block.values[k])
            total += w[block.indices[k]] * value
            square += value * value
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            value = np.float64(x[k])
            total += w[k] * value
            square += value * value
    return total, square


@compiled(fastmath=FAST)
def _add_row(w: np.ndarray, step: float, block: Block, i: int) -> None:
    """Add ``step`` times row number ``i`` of ``block``, a part of the training rows, to the weights ``w`` float64 [features + 1],
    in place. The last weight, which is the intercept's, stays unchanged.
    """
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            w[block.indices[k]] += step * block.values[k]
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            w[k] += step * x[k]


@compiled
def _shuffle_rows(rows: np.ndarray, seed: int) -> None:
    """Shuffle the array ``rows`` in place, in an order that depends on ``seed`` only (Fisher-Yates, with SplitMix64 as the random
    number generator).
    """
    state = np.uint64(seed)
    for i in range(len(rows) - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        j = np.int64(((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        rows[i], rows[j] = rows[j], rows[i]


def find_free_rows(b: np.ndarray, block: Block, loss: LinearLoss) -> np.ndarray:
    """Return the positions, int64, of the rows of ``block`` (arrays of some training rows) that are free: their dual coefficients
    ``b`` [rows] lie strictly between the bounds that the ``loss`` allows.
    """
    rows = np.empty(len(b), np.int64)
    return rows[: _list_free_rows(b, block, loss, rows)]


@compiled
def _list_free_rows(b: np.ndarray, block: Block, loss: LinearLoss, rows: np.ndarray) -> int:
    """Find the free rows of a block of training rows: those with a dual coefficient, in ``b``, strictly between its bounds. Write
    their positions into the output array ``rows`` int64, which is as long as the block, and return their number.
    """
    count = 0
    for i in range(len(b)):
        lower, upper, _ = compute_bounds(encode_target(block.labels[i], loss), get_weight(block, i), loss)
        rows[count] = i
        count += is_free(b[i], lower, upper, loss)
    return count


@compiled
def sweep_rows(
    w: np.ndarray, b: np.ndarray, block: Block, rows: np.ndarray, seed: int, loss: LinearLoss
) -> tuple[float, float, float, int]:
    """Make one step of dual coordinate ascent for each of the ``rows`` (positions in ``block``), in an order shuffled by
    ``seed``. This updates the weights ``w`` and the dual coefficients ``b`` in place. Return a tuple: the largest step, the
    increase of the dual objective, the sum of the rows' losses times C, and the number of free rows.

    Modifies w float64 [features + 1], b float64 [rows of the block] and the order of ``rows``. The largest step is in units of
    the gradient, the dual objective is without -1/2 |w|^2, the cost of each row is that before its step, and free rows are
    counted after their step.
    """
    _shuffle_rows(rows, seed)
    largest, gain, total_cost, n_free, constant = 0.0, 0.0, 0.0, 0, loss.constant
    for i in rows:
        t, weight = encode_target(block.labels[i], loss), get_weight(block, i)
        lower, upper, d = compute_bounds(t, weight, loss)
        f, square = _dot_and_square(w, block, i)
        f += constant * w[-1]
        total_cost += compute_cost(t, weight, f, loss)
        old, slope = b[i], f - t + d * b[i]
        if loss.epsilon == 0.0 and ((slope >= 0.0 and old == lower) or (slope <= 0.0 and old == upper)):
            continue  # the coefficient stays at its bound
        curvature = square + constant * constant + d
        if curvature > 0.0:
            v, width = old - slope / curvature, loss.epsilon / curvature
            new = v - width if v > width else v + width if v < -width else 0.0
        else:  # the cost of an empty row does not depend on w
            new = np.inf if slope < -loss.epsilon else -np.inf if slope > loss.epsilon else old
        new = min(max(new, lower), upper)
        if new != old:
            b[i] = new
            _add_row(w, new - old, block, i)
            w[-1] += (new - old) * constant
            largest = max(largest, abs(new - old) * curvature)
            gain += (new - old) * (t - 0.5 * d * (new + old)) - loss.epsilon * (abs(new) - abs(old))
        n_free += is_free(new, lower, upper, loss)
    return largest, gain, total_cost, n_free


@compiled
def sweep_free_rows(
    w: np.ndarray, b: np.ndarray, block: Block, seed: int, loss: LinearLoss, tolerance: float, max_steps: int
) -> tuple[float, float, int, int]:
    """Repeat steps of dual coordinate ascent for the free rows of ``block`` (those with a dual coefficient strictly between its
    bounds), which updates ``w`` and ``b`` in place. Stop when the largest step is at most ``tolerance``, or before ``max_steps``
    is exceeded. Return the largest step, the increase of the dual objective, and the numbers of free rows and of steps.

    There is at least one sweep.
    """
    gain, steps = 0.0, 0
    buffer = np.empty(len(b), np.int64)
    while True:
        rows = buffer[: _list_free_rows(b, block, loss, buffer)]
        largest, increase, _, n_free = sweep_rows(w, b, block, rows, seed + steps, loss)
        gain += increase
        steps += len(rows)
        if largest <= tolerance or n_free == 0 or steps + n_free > max_steps:
            return largest, gain, n_free, steps


@compiled
def measure_objectives(w: np.ndarray, b: np.ndarray, block: Block, loss: LinearLoss, w_dual: np.ndarray) -> tuple[float, float]:
    """Return the parts of the primal and the dual objective that the rows of ``block`` contribute, at the weights ``w`` and the
    dual coefficients ``b`` [rows], without the regularisation terms. Also add the rows times their coefficients to ``w_dual``,
    the weights that follow from the coefficients.

    The regularisation terms are 1/2 |w|^2 and -1/2 |w_dual|^2, where ``w_dual`` is sum_i b_i x_i, float64 [features + 1].
    """
    primal, dual = 0.0, 0.0
    for i in range(len(b)):
        t, weight = encode_target(block.labels[i], loss), get_weight(block, i)
        primal += compute_cost(t, weight, dot_row(w, block, i) + loss.constant * w[-1], loss)
        dual += t * b[i] - loss.epsilon * abs(b[i]) - 0.5 * compute_bounds(t, weight, loss)[2] * b[i] * b[i]
        if b[i] != 0.0:
            _add_row(w_dual, b[i], block, i)
            w_dual[-1] += b[i] * loss.constant
    return primal, dual


_MAX_WORKING_SET_PASSES = 2  # steps in the working set between two passes over all rows, per row of the file
_STEP_TOLERANCE = 0.03  # passes over the working set end below this share of the largest step of the pass over all rows
_REWRITE_BELOW_SHARE = 0.7  # the working set is rewritten when a smaller share of it is still free
_STAGE_FACTOR = 4.0  # a stage multiplies C by at most this
_STAGE_TOLERANCE = 0.03  # a stage ends when the estimate of the relative gap is at most this
_MAX_STAGES_SHARE = 0.3  # of the passes, for all stages before the last
_MEASURE_BELOW_TOLERANCES = 4.0  # the gap is measured when its estimate is at most this multiple of the tolerance
_SAVE_INTERVAL_SECONDS = 1.0


class DualSolver:
    """Solves the problems of several losses one after the other, each warm-started from the previous solution.

    The order of rows depends on ``seed``. If ``resumable``, the state is saved in the folder, and a later fit resumes from it.
    """

    _state: DualState

    def __init__(self, file: BlockFile, folder: Path, options: LinearOptions, seed: int, *, resumable: bool) -> None:
        self._file, self._options, self._seed = file, options, seed
        self._files = DualFiles(file, folder, seed, resumable=resumable)
        self._is_open = False
        self._start_time = self._last_save_time = time.monotonic()

    def solve(self, loss: LinearLoss) -> LinearSolution:
        """Fit the weights for one ``loss`` by dual coordinate ascent, until the relative duality gap is at most the tolerance or
        the number of passes is reached. Return the solution. The first fit resumes a saved state, later ones start from the
        previous solution.
        """
        if not self._is_open:
            self._state = self._files.open() or DualState(np.zeros(self._file.shape[1] + 1), _first_stage(loss, self._file), loss)
            self._is_open = True
        state = self._state
        if state.goal != loss:
            state.goal, state.history, state.visited, state.seconds = loss, [], 0, 0.0
            self._files.drop_working_set()
            is_earlier_stage = _differ_in_scale(state.loss, loss) and state.loss.C_positive < loss.C_positive
            if state.loss != loss and not is_earlier_stage:
                self._start_next_stage()
        self._start_time = time.monotonic() - state.seconds
        solution = self._run_passes()
        self._save_state(force=True)
        return solution

    def _run_passes(self) -> LinearSolution:
        state, files, n, tol = self._state, self._files, self._file.shape[0], self._options.tol
        max_visits = self._options.max_iter * n
        while True:
            if files.working_set is None:
                if state.loss != state.goal and self._is_stage_complete():
                    self._start_next_stage()
                self._run_full_pass()
                self._save_state()
            if state.loss != state.goal and self._is_stage_complete():
                files.drop_working_set()
                continue
            while (
                state.free
                and state.largest_step > state.step_tolerance
                and state.working_set_steps < _MAX_WORKING_SET_PASSES * n
                and state.visited < max_visits
            ):
                self._run_working_set_pass()
                self._save_state()
            files.drop_working_set()
            is_last = state.visited >= max_visits
            if state.loss == state.goal and (is_last or state.gap_first or state.gap <= _MEASURE_BELOW_TOLERANCES * tol):
                primal, dual, expansion = self._measure_objectives()
                is_closed = primal - dual <= tol * primal
                # The next problem of a path is similar: if one pass closes its gap, measuring first saves the second pass.
                state.gap_first = is_closed and (state.gap_first or 0.0 <= state.gap <= tol)
                if is_last or is_closed:
                    return LinearSolution(state.w.copy(), primal, dual, state.visited / n, state.history)
                state.w = expansion  # removes the rounding errors of all steps

    def _is_stage_complete(self) -> bool:
        return self._state.gap <= _STAGE_TOLERANCE or self._have_stages_timed_out()

    def _have_stages_timed_out(self) -> bool:
        return self._state.visited >= _MAX_STAGES_SHARE * self._options.max_iter * self._file.shape[0]

    def _start_next_stage(self) -> None:
        """Start the next stage of this fit, with a larger C: C is raised in stages to the requested value. Replace the
        current loss function, and rescale dual coefficients and weights to suit it.
        """
        state, files = self._state, self._files
        state.loss, factor = _next_stage(state.loss, state.goal, self._file, skip_stages=self._have_stages_timed_out())
        files.b.begin_changes()
        files.b.values[:] *= factor
        state.w *= factor
        state.dual *= factor
        state.gap = math.inf  # unknown for the next stage

    def _run_full_pass(self) -> None:
        """Make one step of dual coordinate ascent for each row of the file, estimate the duality gap, and store the free rows
        (dual coefficient strictly between its bounds) in a second file, the working set.
        """
        state = self._state
        cost = self._make_pass(self._file, collect=True)
        half_norm = 0.5 * float(state.w @ state.w)
        primal = half_norm + cost
        state.gap = (primal - (state.dual - half_norm)) / primal if primal > 0.0 else 0.0
        state.step_tolerance, state.working_set_steps = _STEP_TOLERANCE * state.largest_step, 0
        self._record_pass("all", self._file.shape[0], primal, state.dual - half_norm)

    def _run_working_set_pass(self) -> None:
        """Make steps of dual coordinate ascent for the rows of the working set (the rows that were free after the last full
        pass). If many are no longer free, write a smaller working set.
        """
        state, file, n_before = self._state, cast(BlockFile, self._files.working_set), self._state.visited
        self._make_pass(file, collect=state.free < _REWRITE_BELOW_SHARE * file.shape[0] and len(file) > 1)
        steps = state.visited - n_before
        state.working_set_steps += steps
        self._record_pass("working set", steps, math.nan, state.dual - 0.5 * float(state.w @ state.w))

    def _make_pass(self, file: BlockFile, *, collect: bool) -> float:
        """Make steps of dual coordinate ascent for the rows of ``file``, block by block in random order. The file contains all
        rows, or only the working set (free rows). Return the total cost of all rows; 0 for a working set. With ``collect``, the
        rows that are free now become the new working set.

        The cost of each row is that before its step.
        """
        state, files = self._state, self._files
        state.n_passes += 1
        rng = np.random.default_rng((self._seed, state.n_passes))
        order, seeds = rng.permutation(len(file)), rng.integers(2**62, size=len(file))
        # A working set of one block is swept repeatedly, without reading it again for each sweep.
        max_steps = _MAX_WORKING_SET_PASSES * self._file.shape[0] - state.working_set_steps if len(file) == 1 else 0
        state.largest_step, state.free, total = 0.0, 0, 0.0
        files.b.begin_changes()
        with files.new_working_set(self._options.working_set_block_bytes) if collect else nullcontext() as writer:
            for i, number in enumerate(iterate_with_progress(order, f"pass {state.n_passes}", self._options.verbose)):
                if i + 1 < len(order):
                    file.prefetch_block(order[i + 1])
                block = file.read_block(number)
                positions = files.find_coefficients(block)
                b = files.b.values[positions]
                if file is self._file:
                    steps = len(b)
                    largest, gain, cost, free = sweep_rows(state.w, b, block, np.arange(steps), seeds[i], state.loss)
                    total += float(cost)
                else:
                    tolerance = state.step_tolerance
                    largest, gain, free, steps = sweep_free_rows(state.w, b, block, seeds[i], state.loss, tolerance, max_steps)
                    files.b.values[positions] = b
                state.largest_step = max(state.largest_step, float(largest))
                state.dual += float(gain)
                state.free += int(free)
                state.visited += int(steps)
                if writer is not None and free:
                    writer.append_block(select_numbered_rows(block, find_free_rows(b, block, state.loss)), self._file.shape[1])
                del block, b  # frees their memory before the next block is read
        return total

    def _measure_objectives(self) -> tuple[float, float, np.ndarray]:
        """Read all rows, and return the primal objective of the weights, the dual objective of the dual coefficients, and the
        weights recomputed from these coefficients, float64 [features + 1].

        The recomputed weights differ from w by rounding errors. The gap between the two objectives is exact nevertheless.
        """
        state, file = self._state, self._file
        primal, state.dual, expansion = 0.5 * float(state.w @ state.w), 0.0, np.zeros(len(state.w))
        for number in iterate_with_progress(range(len(file)), "duality gap", self._options.verbose):
            block = file.read_block(number)
            b = self._files.b.values[self._files.find_coefficients(block)]
            cost, gain = measure_objectives(state.w, b, block, state.loss, expansion)
            primal += float(cost)
            state.dual += float(gain)
        state.visited += file.shape[0]
        dual = state.dual - 0.5 * float(expansion @ expansion)
        self._record_pass("gap", file.shape[0], primal, dual)
        return primal, dual, expansion

    def _record_pass(self, kind: str, rows: int, primal: float, dual: float) -> None:
        state, seconds = self._state, time.monotonic() - self._start_time
        state.history.append(Pass(kind, rows, state.free, state.loss.C_positive, primal, dual, seconds))

    def _save_state(self, *, force: bool = False) -> None:
        """Save the state of this fit to its folder if it is resumable and the last save was at least a second ago. With
        ``force``, save it in any case if it is resumable.
        """
        now, state = time.monotonic(), self._state
        if self._files.resumable and (force or now - self._last_save_time >= _SAVE_INTERVAL_SECONDS):
            self._last_save_time, state.seconds = now, now - self._start_time
            self._files.save(state)

    def close(self) -> None:
        """Remove the working set. The saved state remains for a later fit."""
        self._files.drop_working_set()


def _differ_in_scale(loss: LinearLoss, goal: LinearLoss) -> bool:
    """Return whether two loss functions are equal up to a common factor of C: all other parameters are the same, and so is the
    ratio of C for the positive class to C for the negative class.
    """
    same_ratio = np.isclose(goal.C_negative / goal.C_positive, loss.C_negative / loss.C_positive, rtol=1e-12, atol=0.0)
    return bool(same_ratio and loss._replace(C_positive=goal.C_positive, C_negative=goal.C_negative) == goal)


def _first_stage(goal: LinearLoss, file: BlockFile) -> LinearLoss:
    """Return the loss function of the first stage of a fit that raises C in stages. It is ``goal``, the requested loss, with a
    smaller C, which depends on the size of the features in ``file``. If C is small already or the loss is squared, return
    ``goal`` itself.

    Coefficients reach the bounds of this C in one or two steps.
    """
    square = file.mean_square + goal.constant * goal.constant
    step = (file.mean_label if goal.regression else 1.0) / square if square > 0.0 else math.inf
    ratio = step / (max(goal.C_positive, goal.C_negative) * file.weights[2])
    if not 0.0 < ratio < 1.0 / _STAGE_FACTOR or goal.squared:
        return goal
    return goal._replace(C_positive=ratio * goal.C_positive, C_negative=ratio * goal.C_negative)


def _next_stage(loss: LinearLoss, goal: LinearLoss, file: BlockFile, *, skip_stages: bool) -> tuple[LinearLoss, float]:
    """Return the loss function of the next stage of a fit that raises C in stages, and a factor for all dual
    coefficients and weights. C is up to four times that of ``loss``, the current stage, and at most that of ``goal``, the
    requested loss. ``skip_stages`` goes to ``goal`` directly.

    Coefficients grow with C, so that their position relative to their bounds stays the same. If stages took too long, the goal is
    next, and coefficients are unchanged: multiplied by a large factor, a w far from the optimum would be worse than 0. The factor
    is 0 if the current loss belongs to another problem.
    """
    ratio = goal.C_positive / loss.C_positive
    if not _differ_in_scale(loss, goal):
        return _first_stage(goal, file), 0.0
    if ratio <= _STAGE_FACTOR:
        return goal, ratio
    if skip_stages:
        return goal, 1.0
    C_positive, C_negative = _STAGE_FACTOR * loss.C_positive, _STAGE_FACTOR * loss.C_negative
    return loss._replace(C_positive=C_positive, C_negative=C_negative), _STAGE_FACTOR
