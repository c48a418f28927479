"""Sinks of predictions and dead letters: JSON lines and CSV, to a file or to standard output."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from streamsvm.core.checks import to_python_scalar, validate_count
from streamsvm.files.locks import try_lock
from streamsvm.files.messages import short_repr
from streamsvm.files.model_file import sync_folder
from streamsvm.stream.endpoints import START_AFRESH, Position, Record, Sink, StreamError
from streamsvm.stream.lines import FINGERPRINT_BYTES, hex_digest
from streamsvm.stream.tables.chunk import MessageColumns


class FileSink(Sink):
    """Writes each prediction, or dead letter, as a line of a file: CSV for ``.csv``, else JSON.

    A run that resumes cuts the file back to the checkpoint, so that it ends with one line for each row, however often it was
    killed. A pipe or device, such as standard output, gets each line immediately and cannot be cut back, so lines may come
    again. A value that is not finite, and the prediction of a model that does not predict yet, is null or an empty cell.

    Parameters
    ----------
    path
        Path of the file, which is emptied unless you call `seek`; or ``"-"`` for standard output (JSON lines).

    Raises
    ------
    StreamError
        The file cannot be written, another process (or sink) is writing to it, or its name asks for compression, which could
        not be cut back.
    BrokenPipeError
        The reader of standard output has gone.
    """

    def __init__(self, path: str | Path) -> None:
        self._standard = str(path) == "-"
        self.name: str = "standard output" if self._standard else str(path)
        if str(path).endswith(".gz"):
            raise StreamError(f"{self.name}: it cannot be compressed, because a killed run could not continue it")
        self._path = Path(path)
        # Without the folder, which the next run may find under another name.
        self._short_name = self.name if self._standard else self._path.name
        self._csv = str(path).endswith(".csv")
        self._offset = -1  # bytes written; -1 before the first
        self._created = self._failed = self._regular = False
        try:
            if self._standard:
                self._file: BinaryIO = sys.stdout.buffer
            else:
                self._created = not self._path.exists()
                self._regular = self._created or self._path.is_file()
                # It is cut back only when `seek` is called or the first line comes.
                flags = (os.O_RDWR | os.O_CREAT if self._regular else os.O_WRONLY) | getattr(os, "O_BINARY", 0)
                self._file = os.fdopen(os.open(path, flags, 0o644), "r+b" if self._regular else "wb")
            is_alone = not self._regular or try_lock(self._file)
        except OSError as error:
            raise self._failure_of(error) from error
        except AttributeError:  # sys.stdout is None then
            raise StreamError(f"{self.name} is closed") from None
        if not is_alone:
            self._file.close()
            raise StreamError(f"{self.name}: another process is writing to it. Stop it, or name another file")

    def _failure_of(self, error: OSError) -> Exception:
        self._failed = True
        if self._standard and isinstance(error, BrokenPipeError):
            return error
        return StreamError(f"{self.name}: {error.strerror}")

    def write(self, record: Record) -> None:
        """Write one line; raise a StreamError if that fails."""
        self.write_many({name: [value] for name, value in record.items()})

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:  # noqa: ARG002
        """Write a line for each row of columns; raise a StreamError if that fails."""
        try:
            if self._offset < 0:
                self._begin_file()
            if self._csv:
                text, header = io.StringIO(), [columns] if self._offset == 0 else []
                rows = zip(*map(_csv_column, columns.values()), strict=True)
                csv.writer(text, lineterminator="\n").writerows([*header, *rows])
                lines = text.getvalue()
            else:
                lines = _json_lines(columns)
            data = lines.encode(errors="backslashreplace")  # of half a surrogate pair
            self._file.write(data)
            self._offset += len(data)
            if not self._regular:
                self._file.flush()
        except OSError as error:
            raise self._failure_of(error) from error

    def _begin_file(self) -> None:
        self._offset = 0
        if self._regular:
            self._file.truncate(0)

    def flush(self) -> Position:
        """Make all lines durable, and return the position: the name and the size of the file, and a digest of its last bytes."""
        try:
            if self._offset < 0:
                self._begin_file()
            self._file.flush()
            if self._regular:
                os.fsync(self._file.fileno())
            if self._created:
                sync_folder(self._path.absolute().parent)
                self._created = False
            return {"name": self._short_name, "offset": self._offset, "tail_digest": self._tail_before(self._offset)}
        except OSError as error:
            raise self._failure_of(error) from error

    def _tail_before(self, offset: int) -> str | None:
        if not self._regular:
            return None
        begin, at = max(offset - FINGERPRINT_BYTES, 0), self._file.tell()
        self._file.seek(begin)
        last = self._file.read(offset - begin)
        self._file.seek(at)
        return hex_digest(last)

    def seek(self, position: Position) -> None:
        """Drop the lines after a position, as `Sink.seek`. Lines that went to a pipe come again."""
        try:
            name, offset, tail = position["name"], validate_count("offset", position["offset"]), position["tail_digest"]
        except (KeyError, ValueError):
            raise StreamError(
                f"{self.name}: the checkpoint is of another kind of sink ({short_repr(dict(position))}). Give that, "
                f"{START_AFRESH}"
            ) from None
        if name != self._short_name:
            raise StreamError(f"{self.name}: what this checkpoint has written is in {name}. Give that, {START_AFRESH}")
        if self._created:
            raise StreamError(f"{self.name}, which this checkpoint has written, is not there. Put it back, {START_AFRESH}")
        if self._regular:
            size = os.fstat(self._file.fileno()).st_size
            if size < offset:
                raise StreamError(
                    f"{self.name} has {size:,} bytes, not {offset:,} as then: it was cut off. Put it back, {START_AFRESH}"
                )
            if self._tail_before(offset) != tail:
                raise StreamError(f"{self.name} does not hold what this checkpoint has written. Put it back, {START_AFRESH}")
            self._file.truncate(offset)
            self._file.seek(offset)
        self._offset = offset

    def close(self) -> None:
        """Close the file, but not standard output; remove it if it was created here and nothing was written to it."""
        if self._standard:
            return
        failed = self._failed  # an error is raised once
        try:
            self._file.close()
        except OSError as error:
            if not failed:
                raise self._failure_of(error) from error
        if self._created and self._offset < 0:
            self._path.unlink(missing_ok=True)


def _plain_value(value: Any) -> Any:
    # A value that JSON can hold: a scalar of numpy as Python's, None for a number that is not finite.
    value = to_python_scalar(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_column(values: Sequence[Any]) -> Sequence[Any]:
    """Return values as cells of CSV."""
    kinds = set(map(type, values))
    if kinds <= {bool, int, str, type(None)} or (kinds == {float} and all(map(math.isfinite, values))):
        return values
    # An object or a list is written as JSON.
    return [json.dumps(value, default=str) if isinstance(value, dict | list) else _plain_value(value) for value in values]


def _json_lines(columns: Mapping[str, Sequence[Any]]) -> str:
    # As json.dumps of each record, in a fraction of the time.
    forms, texts = zip(*map(_json_column, columns.values()), strict=True)
    line = "{" + ", ".join(f"{json.dumps(name)}: {form}" for name, form in zip(columns, forms, strict=True)) + "}\n"
    return line * len(texts[0]) % tuple(itertools.chain.from_iterable(zip(*texts, strict=True)))


def _json_column(values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return how values are printed as JSON, and what is printed so."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return "%d", values
    if kinds == {float} and all(map(math.isfinite, values)):
        return "%r", values
    if kinds <= {bool, str, type(None)}:  # often the same ones
        texts = {value: json.dumps(value) for value in set(values)}
        return "%s", [texts[value] for value in values]
    return "%s", [json.dumps(_plain_value(value), default=str) for value in values]
