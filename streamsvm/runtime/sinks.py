"""Sinks of predictions: JSON lines and CSV, to a file or to standard output."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from streamsvm.runtime.checkpoint import sync_folder
from streamsvm.runtime.endpoints import Position, Prediction, StreamError
from streamsvm.runtime.lines import digest

__all__ = ["FileSink"]


# What a file holds before the checkpoint is recognised by a digest of as many of its last bytes.
_REMEMBERED = 4096


class FileSink:
    """Writes each prediction as a line: CSV where the name ends in ``.csv``, else JSON.

    A run that is resumed cuts the file back to the checkpoint, so that it ends with one line a row, however often it was killed.
    A pipe or device, such as standard output, takes each line at once, and cannot be cut back: lines may come again.

    Parameters
    ----------
    path
        A file, which is written anew unless `seek` says where to go on; ``"-"`` for standard output (JSON lines).

    Raises
    ------
    StreamError
        The file cannot be written, or its name asks for compression, which could not be cut back.
    BrokenPipeError
        Who reads standard output has gone.
    """

    def __init__(self, path: str | Path) -> None:
        self._standard = str(path) == "-"
        self.name = "standard output" if self._standard else str(path)
        if str(path).endswith(".gz"):
            raise StreamError(f"{self.name}: predictions cannot be written compressed, a killed run could not go on with them")
        self._path = Path(path)
        self._csv = str(path).endswith(".csv")
        self._offset = -1  # bytes written; -1 before the first
        self._created = self._failed = False
        try:
            if self._standard:
                self._file: BinaryIO = sys.stdout.buffer
                self._regular = False
            else:
                self._created = not self._path.exists()
                self._regular = self._created or self._path.is_file()
                # Not cut off yet: whether to go on is known only when `seek` is called or the first line comes.
                flags = os.O_RDWR | os.O_CREAT if self._regular else os.O_WRONLY
                self._file = os.fdopen(os.open(path, flags, 0o644), "r+b" if self._regular else "wb")
        except OSError as error:
            raise self._failure(error) from error
        except AttributeError:  # sys.stdout is None then
            raise StreamError(f"{self.name} is closed") from None

    def _failure(self, error: OSError) -> Exception:
        self._failed = True
        if self._standard and isinstance(error, BrokenPipeError):
            return error
        return StreamError(f"{self.name}: {error.strerror}")

    def write(self, prediction: Prediction) -> None:
        """Write one line."""
        cells = [_plain(value) for value in prediction]
        if self._csv:
            line = _csv_line(cells)
        else:
            line = json.dumps(dict(zip(Prediction._fields, cells, strict=True)), default=str) + "\n"
        try:
            if self._offset < 0:
                self._begin()
            self._put(line)
            if not self._regular:
                self._file.flush()
        except OSError as error:
            raise self._failure(error) from error

    def _begin(self) -> None:
        self._offset = 0
        if self._regular:
            self._file.truncate(0)
        if self._csv:
            self._put(_csv_line(Prediction._fields))

    def _put(self, line: str) -> None:
        data = line.encode()
        self._file.write(data)
        self._offset += len(data)

    def flush(self) -> Position:
        """Make all lines durable; the position is the file's name, its size in bytes, and a digest of the last of them."""
        try:
            if self._offset < 0:
                self._begin()
            self._file.flush()
            if self._regular:
                os.fsync(self._file.fileno())
            if self._created:
                sync_folder(self._path.absolute().parent)
                self._created = False
            return {"name": self._short_name, "offset": self._offset, "tail": self._tail(self._offset)}
        except OSError as error:
            raise self._failure(error) from error

    @property
    def _short_name(self) -> str:
        # Without its folder, which may be called otherwise by the next run.
        return self.name if self._standard else self._path.name

    def _tail(self, offset: int) -> str | None:
        if not self._regular:
            return None
        begin = max(offset - _REMEMBERED, 0)
        return digest(os.pread(self._file.fileno(), offset - begin, begin))

    def seek(self, position: Position) -> None:
        """Drop the lines after a position. From a pipe they are gone already, and come again.

        Raises
        ------
        StreamError
            The position is of another sink, or the file is not there any more, shorter or changed.
        """
        try:
            name, offset, tail = position["name"], int(position["offset"]), position["tail"]
        except (KeyError, TypeError, ValueError):
            raise StreamError(f"{self.name}: the checkpoint is of another kind of sink ({dict(position)})") from None
        way_out = "or give another checkpoint folder to start afresh"
        if name != self._short_name:
            raise StreamError(f"{self.name}: the predictions of this checkpoint are in {name}. Give that, {way_out}")
        if self._created:
            raise StreamError(
                f"{self.name} is not there, and the predictions of this checkpoint are in it. Put it back, {way_out}"
            )
        if self._regular:
            size = os.fstat(self._file.fileno()).st_size
            if size < offset:
                raise StreamError(
                    f"{self.name} has {size:,} bytes, the checkpoint stands after {offset:,}: it was cut off. "
                    f"Put it back, {way_out}"
                )
            if self._tail(offset) != tail:
                raise StreamError(f"{self.name} does not hold the predictions of this checkpoint. Put them back, {way_out}")
            self._file.truncate(offset)
            self._file.seek(offset)
        self._offset = offset

    def close(self) -> None:
        """Close the file, and remove it if it was made here and nothing was to be written. Standard output stays open."""
        if self._standard:
            return
        known = self._failed  # that what is left cannot be written is said once
        try:
            self._file.close()
        except OSError as error:
            if not known:
                raise self._failure(error) from error
        if self._created and self._offset < 0:
            self._path.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: numpy's scalars as what they stand for, None for what is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
