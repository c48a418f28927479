"""Dual coordinate ascent over rows on disk, with shrinking to a working set in a file of its own.

A pass over all rows steps each of them, and writes those that are free afterwards to a working set. Passes over the working set
follow, each over the rows that are still free. Then comes a pass over all rows again, until the duality gap over all rows is
closed. (Hsieh et al. end after the first round, which can be far from the optimum.) Where C is large, a coefficient is many
steps away from it. So the fit goes through stages of rising C: coefficients are multiplied as C grows, and those at their
bounds stay there.

One problem for all losses, in one signed variable b_i a row, its dual coefficient:

    min 1/2 |w|^2 + sum_i (1/2 d_i b_i^2 - t_i b_i + epsilon |b_i|),    w = sum_i b_i x_i,    lower_i <= b_i <= upper_i.

Classification: t is +1 or -1, epsilon is 0, and b lies between 0 and t C (hinge, d = 0) or has no bound but 0 (squared hinge, d
= 1 / (2 C)). Regression: t is the target, and b lies between -C and C, or has no bounds and d = 1 / (2 C). C is that of the row,
times its weight. Rows have one feature more than is written, with the same value in all: its weight, the last of w, times that
value is the intercept.

Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
large-scale linear SVM. ICML, algorithm 1; Ho, C.-H., Lin, C.-J. (2012). Large-scale linear support vector regression. JMLR 13,
algorithm 4, of which the step in one variable is here.
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
from streamsvm.linear.dual_state import DualFiles, DualState, numbered_rows
from streamsvm.linear.solution import LinearLoss, LinearOptions, LinearSolution, Pass, bounds, cost, is_free, target_of, weight_of


@compiled(fastmath=FAST)
def product(w: np.ndarray, block: Block, i: int) -> float:
    """Return the product of w and a row, without the constant feature."""
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
def _product_and_square(w: np.ndarray, block: Block, i: int) -> tuple[float, float]:
    """Return w'x and x'x of a row, without the constant feature, in one loop."""
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
    """Add a row times ``step`` to w, without the constant feature."""
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
    """Shuffle in place: Fisher and Yates, with the random numbers of SplitMix64."""
    state = np.uint64(seed)
    for i in range(len(rows) - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        j = np.int64(((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        rows[i], rows[j] = rows[j], rows[i]


def free_rows(b: np.ndarray, block: Block, loss: LinearLoss) -> np.ndarray:
    """Return the numbers, int64, of the rows of a block whose coefficients are free."""
    rows = np.empty(len(b), np.int64)
    return rows[: _find_free(b, block, loss, rows)]


@compiled
def _find_free(b: np.ndarray, block: Block, loss: LinearLoss, rows: np.ndarray) -> int:
    # The numbers of the free rows go into ``rows``; how many they are.
    count = 0
    for i in range(len(b)):
        lower, upper, _ = bounds(target_of(block.labels[i], loss), weight_of(block, i), loss)
        rows[count] = i
        count += is_free(b[i], lower, upper, loss)
    return count


@compiled
def sweep(
    w: np.ndarray, b: np.ndarray, block: Block, rows: np.ndarray, seed: int, loss: LinearLoss
) -> tuple[float, float, float, int]:
    """Step each of some rows, int64, of a block, in an order that the seed gives.

    Changes w float64 [features + 1], b float64 [rows of the block] and the order of ``rows``.

    Returns the largest step, in units of the gradient; the rise of the dual objective, without -1/2 |w|^2; the cost of the rows,
    each before its step; and how many of them are free after it.
    """
    _shuffle_rows(rows, seed)
    largest, gain, total, count, constant = 0.0, 0.0, 0.0, 0, loss.constant
    for i in rows:
        t, weight = target_of(block.labels[i], loss), weight_of(block, i)
        lower, upper, d = bounds(t, weight, loss)
        f, square = _product_and_square(w, block, i)
        f += constant * w[-1]
        total += cost(t, weight, f, loss)
        old, slope = b[i], f - t + d * b[i]
        if loss.epsilon == 0.0 and ((slope >= 0.0 and old == lower) or (slope <= 0.0 and old == upper)):
            continue  # it stays at its bound
        curvature = square + constant * constant + d
        if curvature > 0.0:
            v, width = old - slope / curvature, loss.epsilon / curvature
            new = v - width if v > width else v + width if v < -width else 0.0
        else:  # an empty row costs the same whatever w is
            new = np.inf if slope < -loss.epsilon else -np.inf if slope > loss.epsilon else old
        new = min(max(new, lower), upper)
        if new != old:
            b[i] = new
            _add_row(w, new - old, block, i)
            w[-1] += (new - old) * constant
            largest = max(largest, abs(new - old) * curvature)
            gain += (new - old) * (t - 0.5 * d * (new + old)) - loss.epsilon * (abs(new) - abs(old))
        count += is_free(new, lower, upper, loss)
    return largest, gain, total, count


@compiled
def sweep_free(
    w: np.ndarray, b: np.ndarray, block: Block, seed: int, loss: LinearLoss, tolerance: float, most: int
) -> tuple[float, float, int, int]:
    """Sweep the free rows of a block until the largest step is at most ``tolerance`` or there would be more than ``most`` steps;
    once at least.

    Returns the largest step of the last sweep, the rise of the dual objective, how many rows are free, and how many steps it
    took.
    """
    gain, steps = 0.0, 0
    room = np.empty(len(b), np.int64)
    while True:
        rows = room[: _find_free(b, block, loss, room)]
        largest, rise, _, count = sweep(w, b, block, rows, seed + steps, loss)
        gain += rise
        steps += len(rows)
        if largest <= tolerance or count == 0 or steps + count > most:
            return largest, gain, count, steps


@compiled
def measure(w: np.ndarray, b: np.ndarray, block: Block, loss: LinearLoss, expansion: np.ndarray) -> tuple[float, float]:
    """Return the parts of a block in the primal objective of w, without 1/2 |w|^2, and in the dual objective of b, without
    -1/2 |expansion|^2. Adds its part of sum_i b_i x_i to ``expansion``, float64 [features + 1].
    """
    primal, dual = 0.0, 0.0
    for i in range(len(b)):
        t, weight = target_of(block.labels[i], loss), weight_of(block, i)
        primal += cost(t, weight, product(w, block, i) + loss.constant * w[-1], loss)
        dual += t * b[i] - loss.epsilon * abs(b[i]) - 0.5 * bounds(t, weight, loss)[2] * b[i] * b[i]
        if b[i] != 0.0:
            _add_row(expansion, b[i], block, i)
            expansion[-1] += b[i] * loss.constant
    return primal, dual


_WORKING_SET_STEPS = 2  # for each row of all, at most, between two passes over all rows
_STEP_TOLERANCE = 0.03  # passes over the working set end at this part of the largest step of the pass over all rows
_REWRITE_BELOW = 0.7  # the working set is written anew where a smaller part of it is still free
_STAGE_FACTOR = 4.0  # a stage multiplies C by at most this
_STAGE_TOLERANCE = 0.03  # a stage ends where the estimate of the relative gap is at most this
_STAGES_PART = 0.3  # stages take at most this part of the passes
_MEASURE_BELOW = 4.0  # the gap is measured where its estimate is at most so many tolerances
_SAVE_EVERY = 1.0  # seconds


class DualSolver:
    """Finds w for one loss after the other, each from where the one before has ended.

    The order of rows depends on ``seed``. If ``resumable``, it saves its state in the folder and goes on from a saved one.
    """

    _state: DualState

    def __init__(self, file: BlockFile, folder: Path, options: LinearOptions, seed: int, *, resumable: bool) -> None:
        self._file, self._options, self._seed = file, options, seed
        self._files = DualFiles(file, folder, seed, resumable=resumable)
        self._begun = False
        self._began = self._saved_at = time.monotonic()

    def solve(self, loss: LinearLoss) -> LinearSolution:
        """Return the optimum of a loss within the tolerance, or what as many passes as are allowed lead to."""
        if not self._begun:
            self._state = self._files.open() or DualState(np.zeros(self._file.shape[1] + 1), _first_stage(loss, self._file), loss)
            self._begun = True
        state = self._state
        if state.goal != loss:
            state.goal, state.history, state.visited, state.seconds = loss, [], 0, 0.0
            self._files.drop_working_set()
            on_the_way = _differ_in_size(state.loss, loss) and state.loss.C_positive < loss.C_positive
            if state.loss != loss and not on_the_way:
                self._next_stage()
        self._began = time.monotonic() - state.seconds
        solution = self._ascend_passes()
        self._save_state(now=True)
        return solution

    def _ascend_passes(self) -> LinearSolution:
        state, files, n, tol = self._state, self._files, self._file.shape[0], self._options.tol
        most = self._options.max_iter * n
        while True:
            if files.working_set is None:
                if state.loss != state.goal and self._stage_ends():
                    self._next_stage()
                self._pass_over_all()
                self._save_state()
            if state.loss != state.goal and self._stage_ends():
                files.drop_working_set()
                continue
            while (
                state.free
                and state.largest_step > state.step_tolerance
                and state.working_set_steps < _WORKING_SET_STEPS * n
                and state.visited < most
            ):
                self._pass_over_working_set()
                self._save_state()
            files.drop_working_set()
            ends = state.visited >= most
            if state.loss == state.goal and (ends or state.gap_first or state.gap <= _MEASURE_BELOW * tol):
                primal, dual, expansion = self._measure_objectives()
                closed = primal - dual <= tol * primal
                # The next problem of a path is like this one: if one pass closes the gap, no second one is needed to see it.
                state.gap_first = closed and (state.gap_first or 0.0 <= state.gap <= tol)
                if ends or closed:
                    return LinearSolution(state.w.copy(), primal, dual, state.visited / n, state.history)
                state.w = expansion  # every step has rounded w a little

    def _stage_ends(self) -> bool:
        return self._state.gap <= _STAGE_TOLERANCE or self._stages_took_long()

    def _stages_took_long(self) -> bool:
        return self._state.visited >= _STAGES_PART * self._options.max_iter * self._file.shape[0]

    def _next_stage(self) -> None:
        state, files = self._state, self._files
        state.loss, factor = _next_stage(state.loss, state.goal, self._file, to_the_goal=self._stages_took_long())
        files.b.begin()
        files.b.values[:] *= factor
        state.w *= factor
        state.dual *= factor
        state.gap = math.inf  # that of the next stage is not known yet

    def _pass_over_all(self) -> None:
        state = self._state
        cost = self._make_pass(self._file, collect=True)
        half = 0.5 * float(state.w @ state.w)
        primal = half + cost
        state.gap = (primal - (state.dual - half)) / primal if primal > 0.0 else 0.0
        state.step_tolerance, state.working_set_steps = _STEP_TOLERANCE * state.largest_step, 0
        self._record_pass("all", self._file.shape[0], primal, state.dual - half)

    def _pass_over_working_set(self) -> None:
        state, file, before = self._state, cast(BlockFile, self._files.working_set), self._state.visited
        self._make_pass(file, collect=state.free < _REWRITE_BELOW * file.shape[0] and len(file) > 1)
        steps = state.visited - before
        state.working_set_steps += steps
        self._record_pass("working set", steps, math.nan, state.dual - 0.5 * float(state.w @ state.w))

    def _make_pass(self, file: BlockFile, *, collect: bool) -> float:
        """Step all rows, or the free ones of the working set, block by block in random order.

        Returns what all rows cost before their steps. If asked for, those that are free after them are the working set then.
        """
        state, files = self._state, self._files
        state.n_passes += 1
        state.working_sets += collect
        rng = np.random.default_rng((self._seed, state.n_passes))
        order, seeds = rng.permutation(len(file)), rng.integers(2**62, size=len(file))
        # A working set of one block is swept until it ends, without a pass for each sweep.
        most = _WORKING_SET_STEPS * self._file.shape[0] - state.working_set_steps if len(file) == 1 else 0
        state.largest_step, state.free, total = 0.0, 0, 0.0
        files.b.begin()
        with files.new_working_set(state, self._options.working_set_bytes) if collect else nullcontext() as writer:
            for at, number in enumerate(iterate_with_progress(order, f"pass {state.n_passes}", self._options.verbose)):
                if at + 1 < len(order):
                    file.expect(order[at + 1])
                block = file.block(number)
                places = files.places_of(block)
                b = files.b.values[places]
                if file is self._file:
                    steps = len(b)
                    largest, gain, cost, free = sweep(state.w, b, block, np.arange(steps), seeds[at], state.loss)
                    total += float(cost)
                else:
                    tolerance = state.step_tolerance
                    largest, gain, free, steps = sweep_free(state.w, b, block, seeds[at], state.loss, tolerance, most)
                    files.b.values[places] = b
                state.largest_step = max(state.largest_step, float(largest))
                state.dual += float(gain)
                state.free += int(free)
                state.visited += int(steps)
                if writer is not None and free:
                    writer.append(numbered_rows(block, free_rows(b, block, state.loss)), self._file.shape[1])
                del block, b  # to free their memory before the next are read
        return total

    def _measure_objectives(self) -> tuple[float, float, np.ndarray]:
        """Return the primal objective of w, the dual objective of the coefficients, and their expansion, sum_i b_i x_i.

        The expansion differs from w by rounding. The gap between the two objectives is exact all the same.
        """
        state, file = self._state, self._file
        primal, state.dual, expansion = 0.5 * float(state.w @ state.w), 0.0, np.zeros(len(state.w))
        for number in iterate_with_progress(range(len(file)), "duality gap", self._options.verbose):
            block = file.block(number)
            b = self._files.b.values[self._files.places_of(block)]
            cost, gain = measure(state.w, b, block, state.loss, expansion)
            primal += float(cost)
            state.dual += float(gain)
        state.visited += file.shape[0]
        dual = state.dual - 0.5 * float(expansion @ expansion)
        self._record_pass("gap", file.shape[0], primal, dual)
        return primal, dual, expansion

    def _record_pass(self, kind: str, rows: int, primal: float, dual: float) -> None:
        state, seconds = self._state, time.monotonic() - self._began
        state.history.append(Pass(kind, rows, state.free, state.loss.C_positive, primal, dual, seconds))

    def _save_state(self, *, now: bool = False) -> None:
        at, state = time.monotonic(), self._state
        if self._files.resumable and (now or at - self._saved_at >= _SAVE_EVERY):
            self._saved_at, state.seconds = at, at - self._began
            self._files.save(state)

    def close(self) -> None:
        """Close the files. A saved state stays; what is not saved is removed."""
        self._files.close()


def _differ_in_size(loss: LinearLoss, goal: LinearLoss) -> bool:
    """Tell whether two losses are the same but for a factor of both C."""
    same = np.isclose(goal.C_negative / goal.C_positive, loss.C_negative / loss.C_positive, rtol=1e-12, atol=0.0)
    return bool(same and loss._replace(C_positive=goal.C_positive, C_negative=goal.C_negative) == goal)


def _first_stage(goal: LinearLoss, file: BlockFile) -> LinearLoss:
    """Return the loss with a C that a coefficient reaches in a step or two."""
    square = file.mean_square + goal.constant * goal.constant
    step = (file.mean_label if goal.regression else 1.0) / square if square > 0.0 else math.inf
    ratio = step / (max(goal.C_positive, goal.C_negative) * file.weights[2])
    if not 0.0 < ratio < 1.0 / _STAGE_FACTOR or goal.squared:
        return goal
    return goal._replace(C_positive=ratio * goal.C_positive, C_negative=ratio * goal.C_negative)


def _next_stage(loss: LinearLoss, goal: LinearLoss, file: BlockFile, *, to_the_goal: bool) -> tuple[LinearLoss, float]:
    """Return the loss of the next stage, and what coefficients are multiplied by for it.

    Coefficients grow with C: those at a bound stay there, and the others stay where they are between theirs. Where stages took
    too long, the goal is next, and coefficients stay as they are: multiplied by so much, a w far from the optimum would be
    worse than 0. From the solution of another problem nothing is taken.
    """
    ratio = goal.C_positive / loss.C_positive
    if not _differ_in_size(loss, goal):
        return _first_stage(goal, file), 0.0
    if ratio <= _STAGE_FACTOR:
        return goal, ratio
    if to_the_goal:
        return goal, 1.0
    C_positive, C_negative = _STAGE_FACTOR * loss.C_positive, _STAGE_FACTOR * loss.C_negative
    return loss._replace(C_positive=C_positive, C_negative=C_negative), _STAGE_FACTOR
