"""The state of dual coordinate ascent, its working set and files: what a fit goes on from after its process was killed."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, field, fields
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np

from streamsvm.linear.block_file import Block, BlockFile, BlockFileError, take_sparse
from streamsvm.linear.block_writer import BlockWriter, explained_errors, write_all
from streamsvm.linear.solution import Loss, Pass, load_state, loss_of, save_state

_CHUNK = 2**16  # bytes that a checksum reads at once


class Coefficients:
    """float64 [n] on disk, at first 0, in two copies: a pass that follows `save` writes to the other one.

    The names of the files begin with ``stem``. With n = 0, coefficients are appended. With what `save` returned in an earlier
    process, its files are opened; OSError where they are missing or something else.
    """

    def __init__(self, stem: Path, n: int, saved: list[int] | None = None) -> None:
        self._paths = [stem.with_name(f"{stem.name}-{copy}") for copy in (0, 1)]
        self._from = self._to = 0  # the copies that are read and written
        self._saved: int | None = None
        with ExitStack() as stack:
            mode = "w+b" if saved is None else "r+b"
            self._files = [cast(FileIO, stack.enter_context(path.open(mode, buffering=0))) for path in self._paths]
            if saved is not None:
                self._from = self._to = self._saved = 1 if saved[0] == 1 else 0
                if self._stored_checksum() != saved:
                    raise OSError(f"{self._paths[self._from]} was changed")
            elif n:
                for file in self._files:
                    file.truncate(8 * n)  # to zeros, which take no room on the disk
            stack.pop_all()

    def begin(self, *, some: bool = False) -> None:
        """Begin a pass, which writes all coefficients, or only some."""
        if self._from == self._saved:
            self._to = 1 - self._from
            if some:
                with explained_errors("coefficients were copied", self._paths[self._to]):
                    shutil.copyfile(self._paths[self._from], self._paths[self._to])

    def end(self) -> None:
        """End a pass: from now on what it wrote is read."""
        self._from = self._to

    def save(self) -> list[int]:
        """Make sure that what is read now stays until the next call, even if the process is killed.

        Returns which copy it is, its size and its CRC.
        """
        os.fsync(self._files[self._from].fileno())
        self._saved = self._from
        return self._stored_checksum()

    def _stored_checksum(self) -> list[int]:
        file, size, crc = self._files[self._from], 0, 0
        file.seek(0)
        while data := file.read(_CHUNK):
            size, crc = size + len(data), zlib.crc32(data, crc)
        return [self._from, size, crc]

    def read(self, first: int, count: int) -> np.ndarray:
        """Return the coefficients, float64 [count], of the rows from ``first`` on."""
        return self._read_copy(self._from, first, count)

    def write(self, first: int, b: np.ndarray) -> None:
        file = self._files[self._to]
        file.seek(8 * first)
        with explained_errors("coefficients were written", self._paths[self._to]):
            write_all(file, b)

    def scatter(self, numbers: np.ndarray, b: np.ndarray, firsts: np.ndarray) -> None:
        """Write the coefficients of the rows with these numbers, uint64 [m], in a pass of some.

        The numbers rise within runs. Each run is read and written at once, up to the next of ``firsts``, uint64.
        """
        runs = np.searchsorted(firsts, numbers, "right")
        cuts = np.flatnonzero((numbers[1:] < numbers[:-1]) | (runs[1:] != runs[:-1])) + 1
        for begin, end in itertools.pairwise([0, *cuts.tolist(), len(b)]):
            first, last = int(numbers[begin]), int(numbers[end - 1])
            run = self._read_copy(self._to, first, last - first + 1)
            run[(numbers[begin:end] - np.uint64(first)).astype(np.int64)] = b[begin:end]
            self.write(first, run)

    def _read_copy(self, copy: int, first: int, count: int) -> np.ndarray:
        b, file = np.empty(count), self._files[copy]
        file.seek(8 * first)
        if file.readinto(b.view(np.uint8).data) != b.nbytes:
            raise OSError(f"{self._paths[copy]} was changed while it was read")
        return b

    def close(self) -> None:
        for file in self._files:
            file.close()

    def remove(self) -> None:
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)


@dataclass
class DualState:
    """The numbers that a pass changes. All but the coefficients on disk is here, and all of it is saved."""

    w: np.ndarray  # float64 [features + 1]
    loss: Loss  # the loss of the stage
    goal: Loss  # the loss that was asked for, to which the stages lead
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
    """The coefficients of all rows, the working set and the saved state, in a folder.

    With ``resumable`` the state is saved, and opened again by a fit of the same rows and ``seed``. With ``at_once`` all
    coefficients may be in memory, which saves reads and writes for each block.
    """

    all_rows: StoredRows

    def __init__(self, file: BlockFile, folder: Path, seed: int, *, resumable: bool, at_once: bool) -> None:
        self._file, self._folder, self._at_once = file, folder, at_once
        self.resumable: bool = resumable
        self._problem = {"rows": file.signature, "seed": seed}
        self.working_set: StoredRows | None = None
        self._saved_working_set: StoredRows | None = None

    def open(self) -> DualState | None:
        """Open the files as they were saved, and return the state; None where there is none: coefficients are 0 then."""
        size = self._file.shape[1] + 1
        found = load_state(self._folder / "state", self._problem, size) if self.resumable else None
        state = None if found is None else self._restore_state(*found)
        if state is None:
            self.all_rows = StoredRows(self._file, Coefficients(self._folder / "coefficients", self._file.shape[0]))
        in_use = None if self.working_set is None else self.working_set.file.path.name
        for path in self._folder.glob("working-set-*"):
            if path.name.partition("-b-")[0] != in_use:
                path.unlink()  # a killed process left it
        return state

    def _restore_state(self, facts: dict[str, Any], w: np.ndarray) -> DualState | None:
        # None: a part of it is missing, corrupt, or of something else.
        with ExitStack() as stack:
            try:
                state = DualState.of(facts, w)
                b = Coefficients(self._folder / "coefficients", self._file.shape[0], facts["coefficients"])
                stack.callback(b.close)
                working_set = None
                if facts["working_set"] is not None:
                    coefficients, signature = facts["working_set"]
                    path = self.working_set_path(state)
                    file = stack.enter_context(BlockFile(path))
                    like = (self._file.shape[1], self._file.dense, self._file.weighted, True)
                    if file.signature != signature or (file.shape[1], file.dense, file.weighted, file.numbered) != like:
                        return None
                    working_set = StoredRows(file, Coefficients(coefficients_of(path), 0, coefficients))
            except (OSError, BlockFileError, KeyError, TypeError, ValueError, OverflowError):
                return None
            stack.pop_all()
        self.all_rows, self.working_set, self._saved_working_set = StoredRows(self._file, b), working_set, working_set
        return state

    def save(self, state: DualState) -> None:
        """Save the state, the coefficients and the working set. The earlier state stays whole until this one is."""
        working_set = self.working_set
        facts = vars(state) | {
            "problem": self._problem,
            "coefficients": self.all_rows.b.save(),
            "working_set": None if working_set is None else [working_set.b.save(), working_set.file.signature],
        }
        save_state(self._folder / "state", facts, facts.pop("w"))
        if self._saved_working_set is not None and self._saved_working_set is not working_set:
            self._saved_working_set.remove()
        self._saved_working_set = working_set

    def working_set_path(self, state: DualState) -> Path:
        return self._folder / f"working-set-{state.working_sets}"

    def merge_working_set(self) -> None:
        """Write the coefficients of the working set to those of all rows, and remove it; BlockFileError where it is corrupt."""
        rows, b = self.working_set, self.all_rows.b
        if rows is None:
            return
        whole = b.read(0, self._file.shape[0]) if self._at_once else None
        b.begin(some=whole is None)
        for number in range(len(rows.file)):
            block = rows.file.block(number)
            if block.numbers.max() >= self._file.shape[0]:
                raise BlockFileError(f"{rows.file.path} is corrupt: it numbers a row that {self._file.path} does not have")
            found = rows.b.read(block.first, len(block.labels))
            if whole is None:
                b.scatter(block.numbers, found, self._file.firsts)
            else:
                whole[block.numbers] = found
        if whole is not None:
            b.write(0, whole)
        b.end()
        self.working_set = None
        if rows is not self._saved_working_set:  # from which a new process would go on
            rows.remove()

    def close(self) -> None:
        """Close the files, and remove a working set that was not saved."""
        if hasattr(self, "all_rows"):
            self.all_rows.b.close()
        if self.working_set is not None and self.working_set is not self._saved_working_set:
            self.working_set.remove()
        if self._saved_working_set is not None:
            self._saved_working_set.close()


class StoredRows(NamedTuple):
    """Rows on disk with their coefficients."""

    file: BlockFile
    b: Coefficients

    def close(self) -> None:
        self.file.close()
        self.b.close()

    def remove(self) -> None:
        self.close()
        self.file.path.unlink(missing_ok=True)
        self.b.remove()


def coefficients_of(path: Path) -> Path:
    """Return the stem of the names of the files that hold the coefficients of a working set."""
    return path.with_name(f"{path.name}-b")


@contextmanager
def working_set_writer(
    path: Path, *, like: BlockFile, block_bytes: int, durable: bool
) -> Iterator[tuple[BlockWriter, Coefficients]]:
    """Give a writer of rows of a file and their coefficients. If something fails, no files are left."""
    kind = {"dense": like.dense, "weighted": like.weighted}
    with BlockWriter(path, **kind, numbered=True, block_bytes=block_bytes, durable=durable) as writer:
        b = Coefficients(coefficients_of(path), 0)
        try:
            yield writer, b
        except BaseException:
            b.remove()
            raise


def taken_rows(block: Block, rows: np.ndarray) -> Block:
    """Return some rows, int64, of a block, with the numbers that they have in the file of all rows."""
    numbers = block.numbers[rows] if len(block.numbers) else rows.astype(np.uint64) + np.uint64(block.first)
    if len(block.starts):
        starts, indices, values = take_sparse(block, rows)
    else:
        starts, indices, values = block.starts, block.indices, block.values.reshape(len(block.labels), -1)[rows].reshape(-1)
    weights = block.weights[rows] if len(block.weights) else block.weights
    return Block(0, block.labels[rows], numbers, starts, indices, values, weights)
