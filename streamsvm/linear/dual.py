"""Dual coordinate ascent over rows on disk, with shrinking to a working set in a file of its own.

A pass over all rows steps each of them, and writes those that are free afterwards to a working set. Passes over the working set
follow, each over the rows that are still free. Then comes a pass over all rows again, until the duality gap over all rows is
closed. (Hsieh et al. end after the first round, which can be far from the optimum.) Where C is large, a coefficient is many
steps away from it. So the fit goes through stages of rising C: coefficients are multiplied as C grows, and those at their
bounds stay there.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np

from streamsvm.core.progress import shown
from streamsvm.linear.block_file import BlockFile
from streamsvm.linear.dual_state import DualFiles, DualState, StoredRows, take, working_set_writer
from streamsvm.linear.solution import Loss, Options, Pass, Solution
from streamsvm.linear.sweep import free_rows, measure, sweep, sweep_free

__all__ = ["DualSolver"]

_WORKING_SET_STEPS = 2  # for each row of all, at most, between two passes over all rows
_STEP_TOLERANCE = 0.03  # passes over the working set end at this part of the largest step of the pass over all rows
_REWRITE_BELOW = 0.7  # the working set is written anew where a smaller part of it is still free
_STAGE_FACTOR = 4.0  # a stage multiplies C by at most this
_STAGE_TOLERANCE = 0.03  # a stage ends where the estimate of the relative gap is at most this
_STAGES_PART = 0.3  # stages take at most this part of the passes
_MEASURE_BELOW = 4.0  # the gap is measured where its estimate is at most so many tolerances
_SAVE_EVERY = 1.0  # seconds
_AT_ONCE = 1.0 / 16.0  # of a block of the working set: coefficients that take no more are read and written once a pass


class DualSolver:
    """Finds w for one loss after the other, each from where the one before has ended.

    The order of rows depends on ``seed``. If ``resumable``, it saves its state in the folder and goes on from a saved one.
    """

    _state: DualState
    _began: float
    _saved_at: float

    def __init__(self, file: BlockFile, folder: Path, options: Options, seed: int, *, resumable: bool) -> None:
        self._file, self._options, self._seed = file, options, seed
        self._at_once = 8 * file.shape[0] <= _AT_ONCE * options.working_set_bytes
        self._files = DualFiles(file, folder, seed, resumable=resumable, at_once=self._at_once)
        self._begun = False

    def solve(self, loss: Loss) -> Solution:
        """Return the optimum of a loss within the tolerance, or what as many passes as are allowed lead to."""
        if not self._begun:
            self._saved_at = time.monotonic()
            self._state = self._files.open() or DualState(np.zeros(self._file.shape[1] + 1), _first_stage(loss, self._file), loss)
            self._begun = True
        state = self._state
        if state.goal != loss:
            state.goal, state.history, state.visited, state.seconds = loss, [], 0, 0.0
            self._files.merge_working_set()
            on_the_way = _differ_in_size(state.loss, loss) and state.loss.C_positive < loss.C_positive
            if state.loss != loss and not on_the_way:
                self._next_stage()
        self._began = time.monotonic() - state.seconds
        solution = self._ascend()
        self._save(now=True)
        return solution

    def _ascend(self) -> Solution:
        state, files, n, tol = self._state, self._files, self._file.shape[0], self._options.tol
        most = self._options.max_iter * n
        while True:
            if files.working_set is None:
                if state.loss != state.goal and self._stage_ends():
                    self._next_stage()
                self._pass_over_all()
                self._save()
            if state.loss != state.goal and self._stage_ends():
                files.merge_working_set()
                continue
            while (
                state.free
                and state.largest_step > state.step_tolerance
                and state.working_set_steps < _WORKING_SET_STEPS * n
                and state.visited < most
            ):
                self._pass_over_working_set()
                self._save()
            files.merge_working_set()
            ends = state.visited >= most
            if state.loss == state.goal and (ends or state.gap_first or state.gap <= _MEASURE_BELOW * tol):
                primal, dual, expansion = self._measure()
                closed = primal - dual <= tol * primal
                # The next problem of a path is like this one: if one pass closes the gap, no second one is needed to see it.
                state.gap_first = closed and (state.gap_first or 0.0 <= state.gap <= tol)
                if ends or closed:
                    return Solution(state.w.copy(), primal, dual, state.visited / n, state.history)
                state.w = expansion  # every step has rounded w a little

    def _stage_ends(self) -> bool:
        return self._state.gap <= _STAGE_TOLERANCE or self._stages_took_long()

    def _stages_took_long(self) -> bool:
        return self._state.visited >= _STAGES_PART * self._options.max_iter * self._file.shape[0]

    def _next_stage(self) -> None:
        state, b = self._state, self._files.all_rows.b
        state.loss, factor = _next_stage(state.loss, state.goal, self._file, to_the_goal=self._stages_took_long())
        b.begin()
        for first, end in itertools.pairwise([*self._file.firsts.tolist(), self._file.shape[0]]):
            b.write(first, factor * b.read(first, end - first))
        b.end()
        state.w *= factor
        state.dual *= factor
        state.gap = math.inf  # that of the next stage is not known yet

    def _pass_over_all(self) -> None:
        state = self._state
        cost, self._files.working_set = self._pass(self._files.all_rows, collect=True)
        half = 0.5 * float(state.w @ state.w)
        primal = half + cost
        state.gap = (primal - (state.dual - half)) / primal if primal > 0.0 else 0.0
        state.step_tolerance, state.working_set_steps = _STEP_TOLERANCE * state.largest_step, 0
        self._record("all", self._file.shape[0], primal, state.dual - half)

    def _pass_over_working_set(self) -> None:
        state, rows, before = self._state, cast(StoredRows, self._files.working_set), self._state.visited
        collect = state.free < _REWRITE_BELOW * rows.file.shape[0] and len(rows.file) > 1
        _, working_set = self._pass(rows, collect=collect)
        if working_set is not None:
            self._files.merge_working_set()
            self._files.working_set = working_set
        steps = state.visited - before
        state.working_set_steps += steps
        self._record("working set", steps, math.nan, state.dual - 0.5 * float(state.w @ state.w))

    def _pass(self, rows: StoredRows, *, collect: bool) -> tuple[float, StoredRows | None]:
        """Step all rows, or the free ones of the working set, block by block in random order.

        Returns what all rows cost before their steps, and if asked for a new working set of those that are free after them.
        """
        state, file, over_all = self._state, rows.file, rows is self._files.all_rows
        state.n_passes += 1
        state.working_sets += collect
        rng = np.random.default_rng((self._seed, state.n_passes))
        order, seeds = rng.permutation(len(file)), rng.integers(2**62, size=len(file))
        # A working set of one block is swept until it ends, without a pass for each sweep.
        most = _WORKING_SET_STEPS * self._file.shape[0] - state.working_set_steps if len(file) == 1 else 0
        state.largest_step, state.free, total = 0.0, 0, 0.0
        with ExitStack() as stack:
            path, size, durable = self._files.working_set_path(state), self._options.working_set_bytes, self._files.resumable
            if collect:
                writer, free_b = stack.enter_context(working_set_writer(path, like=file, block_bytes=size, durable=durable))
            whole = rows.b.read(0, file.shape[0]) if self._at_once else None
            free_parts: list[np.ndarray] = []
            rows.b.begin()
            for at, number in enumerate(shown(order, f"pass {state.n_passes}", self._options.verbose)):
                if at + 1 < len(order):
                    file.expect(order[at + 1])
                block = file.block(number)
                end = block.first + len(block.labels)
                b = rows.b.read(block.first, len(block.labels)) if whole is None else whole[block.first : end]
                if over_all:
                    steps = len(b)
                    largest, gain, cost, free = sweep(state.w, b, block, np.arange(steps), seeds[at], state.loss)
                    total += float(cost)
                else:
                    tolerance = state.step_tolerance
                    largest, gain, free, steps = sweep_free(state.w, b, block, seeds[at], state.loss, tolerance, most)
                if whole is None:
                    rows.b.write(block.first, b)
                state.largest_step = max(state.largest_step, float(largest))
                state.dual += float(gain)
                state.free += int(free)
                state.visited += int(steps)
                if collect and free:
                    chosen = free_rows(b, block, state.loss)
                    if whole is None:
                        free_b.write(writer.shape[0], b[chosen])
                    else:
                        free_parts.append(b[chosen])
                    writer.append(take(block, chosen), self._file.shape[1])
                del block, b  # to free their memory before the next are read
            if whole is not None:
                rows.b.write(0, whole)
                if free_parts:
                    free_b.write(0, np.concatenate(free_parts))
            rows.b.end()
        return total, StoredRows(BlockFile(path), free_b) if collect else None

    def _measure(self) -> tuple[float, float, np.ndarray]:
        """Return the primal objective of w, the dual objective of the coefficients, and their expansion, sum_i b_i x_i.

        The expansion differs from w by rounding. The gap between the two objectives is exact all the same.
        """
        state, file = self._state, self._file
        primal, state.dual, expansion = 0.5 * float(state.w @ state.w), 0.0, np.zeros(len(state.w))
        for number in shown(range(len(file)), "duality gap", self._options.verbose):
            block = file.block(number)
            b = self._files.all_rows.b.read(block.first, len(block.labels))
            cost, gain = measure(state.w, b, block, state.loss, expansion)
            primal += float(cost)
            state.dual += float(gain)
        state.visited += file.shape[0]
        dual = state.dual - 0.5 * float(expansion @ expansion)
        self._record("gap", file.shape[0], primal, dual)
        return primal, dual, expansion

    def _record(self, kind: str, rows: int, primal: float, dual: float) -> None:
        state, seconds = self._state, time.monotonic() - self._began
        state.history.append(Pass(kind, rows, state.free, state.loss.C_positive, primal, dual, seconds))

    def _save(self, *, now: bool = False) -> None:
        at, state = time.monotonic(), self._state
        if self._files.resumable and (now or at - self._saved_at >= _SAVE_EVERY):
            self._saved_at, state.seconds = at, at - self._began
            self._files.save(state)

    def close(self) -> None:
        """Close the files. A saved state stays; what is not saved is removed."""
        self._files.close()


def _differ_in_size(loss: Loss, goal: Loss) -> bool:
    """Tell whether two losses are the same but for a factor of both C."""
    same = np.isclose(goal.C_negative / goal.C_positive, loss.C_negative / loss.C_positive, rtol=1e-12, atol=0.0)
    return bool(same and loss._replace(C_positive=goal.C_positive, C_negative=goal.C_negative) == goal)


def _first_stage(goal: Loss, file: BlockFile) -> Loss:
    """Return the loss with a C that a coefficient reaches in a step or two."""
    square = file.mean_square + goal.constant * goal.constant
    step = (file.mean_label if goal.regression else 1.0) / square if square > 0.0 else math.inf
    ratio = step / (max(goal.C_positive, goal.C_negative) * file.weights[2])
    if not 0.0 < ratio < 1.0 / _STAGE_FACTOR or goal.squared:
        return goal
    return goal._replace(C_positive=ratio * goal.C_positive, C_negative=ratio * goal.C_negative)


def _next_stage(loss: Loss, goal: Loss, file: BlockFile, *, to_the_goal: bool) -> tuple[Loss, float]:
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
