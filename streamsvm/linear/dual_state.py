"""The state, working set and files of dual coordinate ascent, from which a fit resumes after its process was killed."""

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

from streamsvm.linear.block_file import Block, BlockFile, select_rows
from streamsvm.linear.block_writer import BlockWriter, add_path_to_errors
from streamsvm.linear.solution import LinearLoss, Pass, load_state, read_loss, save_state


class Coefficients:
    """Dual coefficients float64 [n], initially 0, in two memory-mapped files: one is modified, the other one keeps the saved
    values.

    The names of the files start with ``stem``. ``saved`` is the result of `save` in an earlier process, whose files are opened
    then; raises OSError or ValueError if they are missing or have other contents.
    """

    def __init__(self, stem: Path, n: int, saved: list[int] | None = None) -> None:
        self._maps: list[mmap.mmap] = []
        for path in (stem.with_name(f"{stem.name}-{copy}") for copy in (0, 1)):
            with path.open("w+b" if saved is None else "r+b") as file:
                if saved is None:
                    with add_path_to_errors("space for coefficients was allocated", path):  # a full disk would kill us later
                        os.posix_fallocate(file.fileno(), 0, 8 * n)
                self._maps.append(mmap.mmap(file.fileno(), 8 * n))
        self._current = int(saved is not None and saved[:1] == [1])  # the copy that is read
        self._saved: int | None = None if saved is None else self._current
        if saved is not None and self._compute_checksum() != saved:
            raise OSError(f"{stem} was changed")

    @property
    def values(self) -> np.ndarray:
        """The dual coefficients of all rows, float64 [n], as a view of a file in memory. Call `begin_changes` before you modify
        them.
        """
        return np.frombuffer(self._maps[self._current])

    def begin_changes(self) -> None:
        """Prepare to modify the dual coefficients. They are stored in two copies: if the current copy was saved, copy its values
        to the other one and use that, so that the saved values remain intact.
        """
        if self._current == self._saved:
            saved_values, self._current = self.values, 1 - self._current
            self.values[:] = saved_values

    def save(self) -> list[int]:
        """Write the coefficients to disk, so that they survive a kill of the process. Return the number of the copy (0 or 1) that
        contains them, and its CRC-32 checksum.
        """
        self._maps[self._current].flush()
        self._saved = self._current
        return self._compute_checksum()

    def _compute_checksum(self) -> list[int]:
        return [self._current, zlib.crc32(self._maps[self._current])]


@dataclass
class DualState:
    """The variables of the solver that a pass changes, apart from the coefficients. All of them are saved."""

    w: np.ndarray  # float64 [features + 1]
    loss: LinearLoss  # the loss of the current stage
    goal: LinearLoss  # the requested loss, reached by the last stage
    history: list[Pass] = field(default_factory=list)
    seconds: float = 0.0  # duration of the fit for this goal until the last save
    n_passes: int = 0  # passes with steps so far; the order of rows depends on it
    visited: int = 0  # rows updated or measured for this goal
    working_set_steps: int = 0  # steps in the working set since the last pass over all rows
    free: int = 0  # free rows after the last pass
    dual: float = 0.0  # dual objective, without -1/2 |w|^2
    gap: float = math.inf  # latest estimate of the duality gap, relative to the primal objective
    largest_step: float = 0.0  # largest step of the last pass, in units of the gradient
    step_tolerance: float = 0.0  # passes over the working set end at this largest step
    gap_first: bool = False  # whether to measure the gap after the first pass, because the previous problem needed only one

    @classmethod
    def from_saved(cls, saved: dict[str, Any], w: np.ndarray) -> Self:
        """Return a solver state from the dictionary ``saved`` of a state file and the weights ``w``. Raise KeyError, TypeError,
        ValueError or OverflowError if it is corrupt.
        """
        numbers = {item.name: type(item.default)(saved[item.name]) for item in fields(cls) if item.default is not MISSING}
        history = [Pass(*values) for values in saved["history"]]
        return cls(w, read_loss(saved["loss"]), read_loss(saved["goal"]), history, **numbers)


class DualFiles:
    """The files of a fit in a folder: the coefficients ``b`` of all rows, the working set and the saved state.

    With ``resumable``, the state is saved, and a later fit of the same rows with the same ``seed`` resumes from it, with a pass
    over all rows, which writes the working set again.
    """

    b: Coefficients

    def __init__(self, file: BlockFile, folder: Path, seed: int, *, resumable: bool) -> None:
        self._file, self._folder = file, folder
        self.resumable: bool = resumable
        self._problem = {"rows": file.signature, "seed": seed}
        self.working_set: BlockFile | None = None

    def open(self) -> DualState | None:
        """Open the files of an earlier fit of the same problem, and return its saved solver state. If they are missing or
        unusable, start with dual coefficients of 0 and return None. Remains of killed processes are removed.
        """
        size = self._file.shape[1] + 1
        saved = load_state(self._folder / "state", self._problem, size) if self.resumable else None
        state = None if saved is None else self._restore_state(*saved)
        if state is None:
            self.b = Coefficients(self._folder / "coefficients", self._file.shape[0])
        for path in self._folder.glob("working-set*"):
            path.unlink()  # left by a killed process
        return state

    def _restore_state(self, saved: dict[str, Any], w: np.ndarray) -> DualState | None:
        """Return the solver state from a state file, and open the files of the dual coefficients that belong to it. Return None
        if they are missing, corrupt or belong to another problem.
        """
        with suppress(OSError, KeyError, TypeError, ValueError, OverflowError):
            state = DualState.from_saved(saved, w)
            self.b = Coefficients(self._folder / "coefficients", self._file.shape[0], saved["coefficients"])
            return state
        return None

    def save(self, state: DualState) -> None:
        """Save the solver state and the dual coefficients, so that a later process can resume. If the process is killed
        meanwhile, the previous save remains valid.
        """
        values = vars(state) | {"problem": self._problem, "coefficients": self.b.save()}
        save_state(self._folder / "state", values, values.pop("w"))

    @contextmanager
    def new_working_set(self, block_bytes: int) -> Iterator[BlockWriter]:
        """Context manager that opens a `BlockWriter` with blocks of ``block_bytes`` bytes for a new working set, the file of free
        rows (dual coefficient strictly between its bounds). When it ends, the new file replaces the current working set.
        """
        path, layout = self._folder / "working-set", {"dense": self._file.dense, "weighted": self._file.weighted}
        with BlockWriter(path, **layout, with_row_numbers=True, block_bytes=block_bytes, durable=False) as writer:
            yield writer
        old, self.working_set = self.working_set, BlockFile(path)
        if old is not None:
            old.close()

    def drop_working_set(self) -> None:
        """Stop using the working set (the file of free rows), and remove its file."""
        old, self.working_set = self.working_set, None
        if old is not None:
            old.close()
            old.path.unlink(missing_ok=True)

    def find_coefficients(self, block: Block) -> slice | np.ndarray:
        """Return the positions, in the array of all dual coefficients, of the coefficients of the rows in ``block``: a slice for
        consecutive rows, an array for selected ones.
        """
        if not len(block.row_numbers):
            return slice(block.first_row, block.first_row + len(block.labels))
        return block.row_numbers


def select_numbered_rows(block: Block, rows: np.ndarray) -> Block:
    """Return a new block with copies of the rows of ``block`` at the positions ``rows`` int64. It also contains the row numbers,
    counted in the file of all training rows.
    """
    selected = select_rows(block, rows)
    if len(selected.row_numbers):
        return selected
    return selected._replace(row_numbers=rows.astype(np.uint64) + np.uint64(block.first_row))
