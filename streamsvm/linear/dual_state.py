"""The state of dual coordinate ascent, its working set and files: what a fit goes on from after its process was killed."""

from __future__ import annotations

import math
import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from streamsvm.linear.block_file import Block, BlockFile, BlockFileError, take_rows
from streamsvm.linear.block_writer import BlockWriter, explained_errors
from streamsvm.linear.solution import LinearLoss, Pass, load_state, loss_of, save_state


class Coefficients:
    """float64 [n], at first 0, in two files that are mapped: while one changes, the other one stays as it was saved.

    The names of the files begin with ``stem``. With what `save` returned in an earlier process, its files are opened; OSError or
    ValueError where they are missing or something else.
    """

    def __init__(self, stem: Path, n: int, saved: list[int] | None = None) -> None:
        self._maps: list[mmap.mmap] = []
        for path in (stem.with_name(f"{stem.name}-{copy}") for copy in (0, 1)):
            with path.open("w+b" if saved is None else "r+b") as file:
                if saved is None:
                    with explained_errors("room for coefficients was taken", path):  # later, a full disk would be a signal
                        os.posix_fallocate(file.fileno(), 0, 8 * n)
                self._maps.append(mmap.mmap(file.fileno(), 8 * n))
        self._at = int(saved is not None and saved[:1] == [1])  # the copy that is read
        self._saved: int | None = None if saved is None else self._at
        if saved is not None and self._checksum() != saved:
            raise OSError(f"{stem} was changed")

    @property
    def values(self) -> np.ndarray:
        """The coefficients; change them after `begin` only."""
        return np.frombuffer(self._maps[self._at])

    def begin(self) -> None:
        """Begin to change coefficients: what was saved stays."""
        if self._at == self._saved:
            before, self._at = self.values, 1 - self._at
            self.values[:] = before

    def save(self) -> list[int]:
        """Make sure that the values of now stay until the next call, even if the process is killed.

        Returns which copy they are in, and its CRC.
        """
        self._maps[self._at].flush()
        self._saved = self._at
        return self._checksum()

    def _checksum(self) -> list[int]:
        return [self._at, zlib.crc32(self._maps[self._at])]


@dataclass
class DualState:
    """The numbers that a pass changes. All but the coefficients on disk is here, and all of it is saved."""

    w: np.ndarray  # float64 [features + 1]
    loss: LinearLoss  # the loss of the stage
    goal: LinearLoss  # the loss that was asked for, to which the stages lead
    history: list[Pass] = field(default_factory=list)
    seconds: float = 0.0  # since the fit for this goal began, as of the last time it was saved
    n_passes: int = 0  # passes with steps so far; the order of rows depends on it
    visited: int = 0  # rows that were stepped or measured for this goal
    working_set_steps: int = 0  # steps in the working set since the last pass over all rows
    working_sets: int = 0  # working sets that were written so far
    free: int = 0  # rows that were free after the last pass
    dual: float = 0.0  # dual objective, without -1/2 |w|^2
    gap: float = math.inf  # duality gap relative to the primal objective, as it was estimated last
    largest_step: float = 0.0  # the largest step of the last pass, in units of the gradient
    step_tolerance: float = 0.0  # the largest step at which passes over the working set end
    gap_first: bool = False  # whether the gap is measured after the first pass: that of the problem before was closed by then

    @classmethod
    def of(cls, facts: dict[str, Any], w: np.ndarray) -> Self:
        """Return a saved state; KeyError, TypeError, ValueError or OverflowError where its facts are corrupt."""
        numbers = {one.name: type(one.default)(facts[one.name]) for one in fields(cls) if one.default is not MISSING}
        history = [Pass(*values) for values in facts["history"]]
        return cls(w, loss_of(facts["loss"]), loss_of(facts["goal"]), history, **numbers)


class DualFiles:
    """The coefficients ``b`` of all rows, the working set and the saved state, in a folder.

    With ``resumable`` the state is saved, and opened again by a fit of the same rows and ``seed``.
    """

    b: Coefficients

    def __init__(self, file: BlockFile, folder: Path, seed: int, *, resumable: bool) -> None:
        self._file, self._folder = file, folder
        self.resumable: bool = resumable
        self._problem = {"rows": file.signature, "seed": seed}
        self.working_set: BlockFile | None = None
        self._saved_working_set: BlockFile | None = None

    def open(self) -> DualState | None:
        """Open the files as they were saved, and return the state; None where there is none: coefficients are 0 then."""
        size = self._file.shape[1] + 1
        found = load_state(self._folder / "state", self._problem, size) if self.resumable else None
        state = None if found is None else self._restore_state(*found)
        if state is None:
            self.b = Coefficients(self._folder / "coefficients", self._file.shape[0])
        for path in self._folder.glob("working-set-*"):
            if self.working_set is None or path != self.working_set.path:
                path.unlink()  # a killed process left it
        return state

    def _restore_state(self, facts: dict[str, Any], w: np.ndarray) -> DualState | None:
        # None: a part of it is missing, corrupt, or of something else.
        with suppress(OSError, BlockFileError, KeyError, TypeError, ValueError, OverflowError):
            state = DualState.of(facts, w)
            self.b = Coefficients(self._folder / "coefficients", self._file.shape[0], facts["coefficients"])
            if facts["working_set"] is not None:
                file = BlockFile(self._working_set_path(state))
                like = (self._file.shape[1], self._file.dense, self._file.weighted, True)
                if file.signature != facts["working_set"] or (file.shape[1], file.dense, file.weighted, file.numbered) != like:
                    file.close()
                    return None
                self.working_set = self._saved_working_set = file
            return state
        return None

    def save(self, state: DualState) -> None:
        """Save the state, the coefficients and the working set. The earlier state stays whole until this one is."""
        signature = None if self.working_set is None else self.working_set.signature
        facts = vars(state) | {"problem": self._problem, "coefficients": self.b.save(), "working_set": signature}
        save_state(self._folder / "state", facts, facts.pop("w"))
        before, self._saved_working_set = self._saved_working_set, self.working_set
        if before is not None and before is not self.working_set:
            _remove_file(before)

    @contextmanager
    def new_working_set(self, state: DualState, block_bytes: int) -> Iterator[BlockWriter]:
        """Give a writer of the rows that are the working set afterwards."""
        path, kind = self._working_set_path(state), {"dense": self._file.dense, "weighted": self._file.weighted}
        with BlockWriter(path, **kind, numbered=True, block_bytes=block_bytes, durable=self.resumable) as writer:
            yield writer
        self.drop_working_set()
        self.working_set = BlockFile(path)

    def drop_working_set(self) -> None:
        """Have no working set. A file from which a new process would go on stays."""
        before, self.working_set = self.working_set, None
        if before is not None and before is not self._saved_working_set:
            _remove_file(before)

    def places_of(self, block: Block) -> slice | np.ndarray:
        """Return where the coefficients of a block's rows are in ``b``; BlockFileError where a row has none."""
        if not len(block.numbers):
            return slice(block.first, block.first + len(block.labels))
        if block.numbers.max() >= self._file.shape[0]:
            raise BlockFileError(f"a working set is corrupt: it numbers a row that {self._file.path} does not have")
        return block.numbers

    def _working_set_path(self, state: DualState) -> Path:
        return self._folder / f"working-set-{state.working_sets}"

    def close(self) -> None:
        """Close the files, and remove a working set that was not saved."""
        self.drop_working_set()
        if self._saved_working_set is not None:
            self._saved_working_set.close()


def _remove_file(file: BlockFile) -> None:
    file.close()
    file.path.unlink(missing_ok=True)


def numbered_rows(block: Block, rows: np.ndarray) -> Block:
    """Return some rows, int64, of a block, with the numbers that they have in the file of all rows."""
    some = take_rows(block, rows)
    return some if len(some.numbers) else some._replace(numbers=rows.astype(np.uint64) + np.uint64(block.first))
