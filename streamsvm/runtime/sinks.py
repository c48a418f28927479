"""Sinks of predictions: JSON lines and CSV, to a file or to standard output."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

from streamsvm.runtime.endpoints import Position, Prediction, StreamError

__all__ = ["FileSink"]


class FileSink:
    """Writes each prediction as a line: CSV where the name ends in ``.csv``, else JSON.

    A run that is resumed cuts the file back to the checkpoint, so that it ends with one line a row, however often it was killed.

    Parameters
    ----------
    path
        A file, which is written anew unless `seek` says where to go on; ``"-"`` for standard output (JSON lines).

    Raises
    ------
    StreamError
        The file cannot be written, or its name asks for compression, which could not be cut back.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = "standard output" if str(path) == "-" else str(path)
        if str(path).endswith(".gz"):
            raise StreamError(f"{self.name}: predictions cannot be written compressed, a killed run could not go on with them")
        self._standard = str(path) == "-"
        self._csv = str(path).endswith(".csv")
        try:
            # Opened without cutting it off: whether to go on is known only when `seek` is called or the first line comes.
            self._file: BinaryIO = (
                sys.stdout.buffer if self._standard else os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
            )
        except OSError as error:
            raise StreamError(f"{self.name}: {error.strerror}") from error
        self._offset = -1  # bytes written; -1 before the first

    def write(self, prediction: Prediction) -> None:
        """Write one line (buffered)."""
        if self._offset < 0:
            self._begin()
        if self._csv:
            line = _csv_line(prediction)
        else:
            line = json.dumps(prediction._asdict(), default=str) + "\n"
        data = line.encode()
        self._put(data)

    def _begin(self) -> None:
        self._offset = 0
        if not self._standard:
            self._file.truncate(0)
        if self._csv:
            self._put(_csv_line(Prediction._fields).encode())

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise StreamError(f"{self.name}: {error.strerror}") from error
        self._offset += len(data)

    def flush(self) -> Position:
        """Make all lines durable; the position is their size in bytes."""
        if self._offset < 0:
            self._begin()
        try:
            self._file.flush()
            if not self._standard:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise StreamError(f"{self.name}: {error.strerror}") from error
        return {"offset": self._offset}

    def seek(self, position: Position) -> None:
        """Drop the lines after a position. On standard output they are gone already, and come again.

        Raises
        ------
        StreamError
            The file is shorter than the position, or the position is of another kind of sink.
        """
        try:
            offset = int(position["offset"])
        except (KeyError, TypeError, ValueError):
            raise StreamError(f"{self.name}: the checkpoint is of another kind of sink ({dict(position)})") from None
        self._offset = offset
        if self._standard:
            return
        size = self._file.seek(0, os.SEEK_END)
        if size < offset:
            raise StreamError(
                f"{self.name} has {size:,} bytes, the checkpoint stands after {offset:,}: it was changed or removed. "
                "Put it back, or give another checkpoint folder to start afresh"
            )
        self._file.truncate(offset)
        self._file.seek(offset)

    def close(self) -> None:
        """Close the file. Standard output stays open."""
        if self._standard:
            self._file.flush()
        else:
            self._file.close()


def _csv_line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
