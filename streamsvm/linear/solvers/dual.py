"""Dual coordinate ascent over rows on disk, which keeps the undecided ones in a file of their own.

A pass over all rows gives each a step, and writes those that end at no bound to another file; passes over that one follow, of
which each looks at what is still undecided; then one over all rows again, until the duality gap over all rows is closed. (The
source ends after the first round, which can be far from the optimum.) Where C is large, a coefficient is many steps away from it:
so a small C comes first, and coefficients are multiplied as it grows, by which those at their bounds stay there.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import numpy as np

from streamsvm._progress import shown
from streamsvm.linear.files.block_file import Block, BlockFile, BlockFileError
from streamsvm.linear.files.block_writer import BlockWriter
from streamsvm.linear.files.coefficients import Coefficients
from streamsvm.linear.solvers import state
from streamsvm.linear.solvers.solution import Options, Pass, Solution
from streamsvm.linear.solvers.sweep import Loss, loss_of, measure, sweep, sweeps, taken, undecided

__all__ = ["DualSolver"]

_STEPS = 2  # for each row there is, of the undecided between two passes over all
_SETTLED = 0.03  # of the largest step of the pass over all rows: when those over the undecided end
_STAGES = 0.3  # of the passes: those of stages, at most
_GROWTH = 4.0  # of C, at most, from stage to stage
_STAGE_TOLERANCE = 0.03  # of the gap as it is estimated, where a stage ends
_REWRITTEN = 0.7  # of the rows in the file of the undecided: with fewer that still are, it is written anew
_PROMISING = 4.0  # tolerances: a gap that is estimated to be below is measured
_KEPT_EVERY = 1.0  # seconds
_COUNTS, _NUMBERS = ("serial", "number", "visited", "steps", "undecided"), ("dual", "gap", "largest", "settled", "seconds")
_FACTS: dict[str, type] = {**dict.fromkeys(_COUNTS, int), **dict.fromkeys(_NUMBERS, float), "direct": bool}


class _Rows(NamedTuple):
    """Rows with their coefficients."""

    file: BlockFile
    b: Coefficients

    def close(self) -> None:
        self.file.close()
        self.b.close()

    def remove(self) -> None:
        self.close()
        self.file.path.unlink(missing_ok=True)
        self.b.remove()


class _Undecided:
    """Undecided rows on their way to files of their own. Used with ``with``: nothing is left of it if something goes wrong."""

    def __init__(self, folder: Path, serial: int, options: Options, *, dense: bool, durable: bool) -> None:
        self._path = folder / f"undecided-{serial}"
        size = options.undecided_bytes
        self._writer = BlockWriter(self._path, dense=dense, numbered=True, block_bytes=size, durable=durable)
        try:
            self._b = Coefficients(self._path.with_name(f"{self._path.name}-b"), 0)
        except BaseException:
            self._writer.discard()
            raise

    def add(self, block: Block, b: np.ndarray, rows: np.ndarray, features: int) -> None:
        """Some rows of a block, int64 [m], with their coefficients, of which ``b`` has those of all."""
        self._b.write(self._writer.shape[0], b[rows])
        self._writer.append(taken(block, rows), features)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)
        if kind is not None:
            self._b.remove()

    def rows(self) -> _Rows:
        """What was written."""
        return _Rows(BlockFile(self._path), self._b)


class DualSolver:
    """Finds w for one loss after the other, each from where the one before has ended.

    Parameters
    ----------
    file
        Rows.
    folder
        For files of its own.
    seed
        Of the order of rows.
    resumable
        Whether what was found so far is kept in the folder, and gone on from if there is some for the same rows.
    """

    _w: np.ndarray
    _all: _Rows
    _loss: Loss
    _target: Loss
    _serial: int
    _number: int
    _visited: int
    _steps: int
    _undecided: int
    _dual: float  # without -1/2 |w|^2
    _gap: float  # relative, as it was estimated last
    _largest: float
    _settled: float
    _seconds: float

    def __init__(self, file: BlockFile, folder: Path, options: Options, seed: int, *, resumable: bool) -> None:
        self._file, self._folder, self._options, self._seed, self._resumable = file, folder, options, seed, resumable
        self._begun = self._direct = False
        self._some: _Rows | None = None
        self._kept_some: _Rows | None = None
        self._history: list[Pass] = []

    def solve(self, loss: Loss) -> Solution:
        """The optimum of a loss within the tolerance, or what as many passes as there may be lead to.

        Raises
        ------
        BlockFileError
            The file was changed, or is damaged.
        OSError
            The disk is full.
        """
        if not self._begun:
            self._begin(loss)
        if self._target != loss:
            self._target, self._history, self._visited, self._seconds = loss, [], 0, 0.0
            if self._some is not None:
                self._back()
            if self._loss != loss and not self._on_the_way():
                self._grow()
        self._began = time.monotonic() - self._seconds
        solution = self._solve()
        self._keep(now=True)
        return solution

    def _solve(self) -> Solution:
        n, options = self._file.shape[0], self._options
        while True:
            if self._some is None and self._loss != self._target and self._stage_ends():
                self._grow()
            if self._some is None:
                self._over_all()
                self._keep()
            if self._loss != self._target and self._stage_ends():
                self._back()
                continue
            most = options.max_iter * n
            while self._undecided and self._largest > self._settled and self._steps < _STEPS * n and self._visited < most:
                self._over_some()
                self._keep()
            self._back()
            ends = self._visited >= most
            if self._loss == self._target and (ends or self._direct or self._gap <= _PROMISING * options.tol):
                primal, dual, expansion = self._measured()
                closed = primal - dual <= options.tol * primal
                # The next problem is like this one: it need not wait for a pass over all that finds the gap closed already.
                self._direct = closed and (self._direct or 0.0 <= self._gap <= options.tol)
                if ends or closed:
                    return Solution(self._w.copy(), primal, dual, self._visited / n, self._history)
                self._w = expansion  # steps have rounded w, each a little

    def _stage_ends(self) -> bool:
        return self._gap <= _STAGE_TOLERANCE or self._visited >= self._for_stages

    @property
    def _for_stages(self) -> float:
        return _STAGES * self._options.max_iter * self._file.shape[0]

    def _begin(self, loss: Loss) -> None:
        # From what was kept, or from nothing.
        self._kept_at = time.monotonic()
        size = self._file.shape[1] + 1
        kept = state.load(self._folder / "state", self._problem, size) if self._resumable else None
        if kept is None or not self._restore(*kept):
            self._w, self._all = (
                np.zeros(size),
                _Rows(self._file, Coefficients(self._folder / "coefficients", self._file.shape[0])),
            )
            self._serial = self._number = self._visited = self._steps = self._undecided = 0
            self._dual = self._largest = self._settled = self._seconds = 0.0
            self._gap = np.inf
            self._loss, self._target = _first(loss, self._file), loss
        self._begun = True
        own = None if self._some is None else self._some.file.path.name
        for path in self._folder.glob("undecided-*"):
            if own not in (path.name, path.name.rpartition("-b-")[0]):
                path.unlink()  # of a process that was killed

    @property
    def _problem(self) -> dict[str, object]:
        return {"rows": self._file.signature, "seed": self._seed}

    def _restore(self, facts: dict[str, Any], w: np.ndarray) -> bool:
        # What another process has kept; False: some of it is not there any more, or is something else.
        with ExitStack() as stack:
            try:
                b = Coefficients(self._folder / "coefficients", self._file.shape[0], facts["kept"])
                stack.callback(b.close)
                some = None
                if facts["kept_some"] is not None:
                    kept, signature = facts["kept_some"]
                    path = self._folder / f"undecided-{int(facts['serial'])}"
                    file = stack.enter_context(BlockFile(path))
                    like = (self._file.shape[1], self._file.dense, True)
                    if file.signature != signature or (file.shape[1], file.dense, file.numbered) != like:
                        return False
                    some = _Rows(file, Coefficients(path.with_name(f"{path.name}-b"), 0, kept))
                    stack.callback(some.b.close)
                history = [Pass(*of) for of in facts["history"]]
                losses = [loss_of(facts[name]) for name in ("loss", "target")]
                numbers = {f"_{name}": type_of(facts[name]) for name, type_of in _FACTS.items()}
            except (OSError, BlockFileError, KeyError, TypeError, ValueError, OverflowError):
                return False
            stack.pop_all()
        self._w, self._all, self._some, self._kept_some, self._history = w, _Rows(self._file, b), some, some, history
        self._loss, self._target = losses
        self.__dict__.update(numbers)
        return True

    def _alike(self) -> bool:
        # Whether the target is the loss at hand but for C.
        old, target = self._loss, self._target
        shares = np.isclose(target.C_negative / target.C_positive, old.C_negative / old.C_positive, rtol=1e-12, atol=0.0)
        return bool(shares and old._replace(C_positive=target.C_positive, C_negative=target.C_negative) == target)

    def _on_the_way(self) -> bool:
        return self._alike() and self._loss.C_positive < self._target.C_positive

    def _grow(self) -> None:
        # The next stage: coefficients grow with C. Those at it stay there, and the others keep their share. Where stages have
        # taken too long, the target is next, and coefficients stay what they are: far from the optimum, w times so much would be
        # worse than none. From another problem nothing is taken.
        old, target = self._loss, self._target
        ratio = target.C_positive / old.C_positive
        if not self._alike():
            ratio, self._loss = 0.0, _first(target, self._file)
        elif ratio <= _GROWTH or self._visited >= self._for_stages:
            ratio, self._loss = ratio if ratio <= _GROWTH else 1.0, target
        else:
            ratio = _GROWTH
            self._loss = old._replace(C_positive=ratio * old.C_positive, C_negative=ratio * old.C_negative)
        b = self._all.b
        b.begin()
        for first, end in itertools.pairwise([*self._file.firsts.tolist(), self._file.shape[0]]):
            b.write(first, ratio * b.read(first, end - first))
        b.end()
        self._w *= ratio
        self._dual *= ratio
        self._gap = np.inf  # that of the next stage is not known yet

    def _over_all(self) -> None:
        self._serial += 1
        cost, self._some = self._pass(self._all)
        half = 0.5 * float(self._w @ self._w)
        primal = half + cost
        self._gap = (primal - (self._dual - half)) / primal if primal > 0.0 else 0.0
        self._settled, self._steps = _SETTLED * self._largest, 0
        self._tell("all", self._file.shape[0], primal)

    def _over_some(self) -> None:
        rows, before = cast(_Rows, self._some), self._visited
        anew = self._undecided < _REWRITTEN * rows.file.shape[0] and len(rows.file) > 1
        if anew:
            self._serial += 1
        _, some = self._pass(rows, anew=anew)
        if some is not None:
            self._back()
            self._some = some
        self._steps += self._visited - before
        self._tell("undecided", self._visited - before, math.nan)

    def _pass(self, rows: _Rows, *, anew: bool = True) -> tuple[float, _Rows | None]:
        # Steps for all rows, or for the undecided ones of some. What all of them cost before theirs; and, where asked for, those
        # that are undecided after it, in files of their own.
        self._number += 1
        all_rows, n = rows is self._all, self._file.shape[0]
        rng = np.random.default_rng((self._seed, self._number))
        order, seeds = rng.permutation(len(rows.file)), rng.integers(2**62, size=len(rows.file))
        # What fits into one block is in memory, and learned to the end.
        most = _STEPS * n - self._steps if len(rows.file) == 1 else 0
        self._largest, self._undecided, total = 0.0, 0, 0.0
        with ExitStack() as stack:
            into = None
            if anew:
                dense, durable = self._file.dense, self._resumable
                into = stack.enter_context(_Undecided(self._folder, self._serial, self._options, dense=dense, durable=durable))
            rows.b.begin()
            for at, number in enumerate(shown(order, f"pass {self._number}", self._options.verbose)):
                if at + 1 < len(order):
                    rows.file.expect(order[at + 1])
                block = rows.file.block(number)
                b = rows.b.read(block.first, len(block.labels))
                if all_rows:
                    steps = len(b)
                    largest, gain, cost, count = sweep(self._w, b, block, np.arange(steps), seeds[at], self._loss)
                    total += float(cost)
                else:
                    largest, gain, count, steps = sweeps(self._w, b, block, seeds[at], self._loss, self._settled, most)
                rows.b.write(block.first, b)
                self._largest = max(self._largest, float(largest))
                self._dual += float(gain)
                self._undecided += int(count)
                self._visited += int(steps)
                if into is not None and count:
                    into.add(block, b, undecided(b, block.labels, self._loss), self._file.shape[1])
                del block, b  # before the next are read
            rows.b.end()
        return total, None if into is None else into.rows()

    def _back(self) -> None:
        # The coefficients of the undecided go back to those of all rows.
        some = cast(_Rows, self._some)
        self._all.b.begin(some=True)
        for number in range(len(some.file)):
            block = some.file.block(number)
            if block.numbers.max() >= self._file.shape[0]:
                raise BlockFileError(f"{some.file.path} is damaged: it has rows that there are not")
            self._all.b.scatter(block.numbers, some.b.read(block.first, len(block.labels)), self._file.firsts)
        self._all.b.end()
        self._some = None
        if some is not self._kept_some:  # which another process would go on from
            some.remove()

    def _measured(self) -> tuple[float, float, np.ndarray]:
        # The primal objective of w, the dual one of the coefficients, and their expansion, which w should be: the gap is true
        # whether it is or not.
        primal, self._dual, expansion = 0.5 * float(self._w @ self._w), 0.0, np.zeros(len(self._w))
        for number in shown(range(len(self._file)), "duality gap", self._options.verbose):
            block = self._file.block(number)
            cost, gain = measure(self._w, self._all.b.read(block.first, len(block.labels)), block, self._loss, expansion)
            primal += float(cost)
            self._dual += float(gain)
        self._visited += self._file.shape[0]
        dual = self._dual - 0.5 * float(expansion @ expansion)
        self._tell("measured", self._file.shape[0], primal, dual)
        return primal, dual, expansion

    def _tell(self, kind: str, rows: int, primal: float, dual: float | None = None) -> None:
        dual = self._dual - 0.5 * float(self._w @ self._w) if dual is None else dual
        seconds = time.monotonic() - self._began
        self._history.append(Pass(kind, rows, self._undecided, self._loss.C_positive, primal, dual, seconds))

    def _keep(self, *, now: bool = False) -> None:
        # What another process goes on from: it stays whole until the next one is.
        time_now = time.monotonic()
        if not self._resumable or (time_now - self._kept_at < _KEPT_EVERY and not now):
            return
        self._kept_at, self._seconds = time_now, time_now - self._began
        facts = {name: getattr(self, f"_{name}") for name in _FACTS} | {
            "problem": self._problem,
            "loss": self._loss,
            "target": self._target,
            "history": self._history,
            "kept": self._all.b.keep(),
            "kept_some": None if self._some is None else [self._some.b.keep(), self._some.file.signature],
        }
        state.save(self._folder / "state", facts, self._w)
        if self._kept_some is not None and self._kept_some is not self._some:
            self._kept_some.remove()
        self._kept_some = self._some

    def close(self) -> None:
        """Close its files. What was kept stays, and what another process would not go on from does not."""
        if self._begun:
            self._all.b.close()
            if self._some is not None and self._some is not self._kept_some:
                self._some.remove()
            if self._kept_some is not None:
                self._kept_some.close()


def _first(loss: Loss, file: BlockFile) -> Loss:
    # The first stage: a C to which a coefficient comes in a step or two.
    square = file.mean_square + loss.bias * loss.bias
    step = (file.mean_label if loss.regression else 1.0) / square if square > 0.0 else math.inf
    ratio = step / max(loss.C_positive, loss.C_negative)
    if not 0.0 < ratio < 1.0 / _GROWTH or loss.squared:
        return loss
    return loss._replace(C_positive=ratio * loss.C_positive, C_negative=ratio * loss.C_negative)
