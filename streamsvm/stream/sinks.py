"""Writes predictions and dead letters as JSON lines or CSV, to a file or to standard output."""

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
from streamsvm.stream.endpoints import KEEP_MODEL, Position, Record, Sink, StreamError
from streamsvm.stream.lines import digest_tail
from streamsvm.stream.tables.chunk import MessageColumns


class FileSink(Sink):
    """Writes each prediction or dead letter as a line of a file: CSV for ``.csv``, else JSON.

    A run that resumes truncates the file to the position of the checkpoint, so that the file has one line for each row, even
    after many kills. A pipe or device, such as standard output, gets each line immediately and cannot be truncated, so lines may
    be repeated. Values that are not finite, and missing predictions, are null or empty cells.

    Parameters
    ----------
    path
        Path of the file, which is emptied unless you call `seek`; or ``"-"`` for standard output (JSON lines).

    Raises
    ------
    StreamError
        The file cannot be written, another process (or sink) is writing to it, or its name ends in ``.gz``: a compressed file
        cannot be truncated.
    BrokenPipeError
        The reader of standard output has gone.
    """

    def __init__(self, path: str | Path) -> None:
        self._is_standard_output = str(path) == "-"
        self.name: str = "standard output" if self._is_standard_output else str(path)
        if str(path).endswith(".gz"):
            raise StreamError(f"{self.name}: it cannot be compressed, because a killed run could not continue it")
        self._path = Path(path)
        # Without the folder, which may have another path in the next run.
        self._file_name = self.name if self._is_standard_output else self._path.name
        self._is_csv = self.has_header = str(path).endswith(".csv")
        self._offset = -1  # number of bytes written; -1 before the first record
        self._created = self._failed = self._is_regular = False
        try:
            if self._is_standard_output:
                self._file: BinaryIO = sys.stdout.buffer
            else:
                self._created = not self._path.exists()
                self._is_regular = self._created or self._path.is_file()
                # Do not truncate the file before `seek` is called, or the first record is written.
                flags = (os.O_RDWR | os.O_CREAT if self._is_regular else os.O_WRONLY) | getattr(os, "O_BINARY", 0)
                self._file = os.fdopen(os.open(path, flags, 0o644), "r+b" if self._is_regular else "wb")
            has_lock = not self._is_regular or try_lock(self._file)
        except OSError as error:
            raise self._make_error(error) from error
        except AttributeError:  # sys.stdout is missing
            raise StreamError(f"{self.name} is closed") from None
        if not has_lock:
            self._file.close()
            raise StreamError(f"{self.name}: another process is writing to it. Stop it, or name another file")

    def _make_error(self, error: OSError) -> Exception:
        """Convert an OSError of this file to a StreamError with its name. A BrokenPipeError of standard output is returned
        unchanged, as command-line tools expect.
        """
        self._failed = True
        if self._is_standard_output and isinstance(error, BrokenPipeError):
            return error
        return StreamError(f"{self.name}: {error.strerror}")

    def write(self, record: Record) -> None:
        """Write one record (the fields of a prediction by name) as a line of CSV or JSON; raise a StreamError if that fails."""
        self.write_many({name: [value] for name, value in record.items()})

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:  # noqa: ARG002
        """Write n lines of CSV or JSON; ``columns`` has a sequence of n values for each field. ``messages`` are ignored. Raise a
        StreamError if that fails.
        """
        try:
            if self._offset < 0:
                self._start_file()
            if self._is_csv:
                text, header = io.StringIO(), [columns] if self._offset == 0 else []
                rows = zip(*map(_to_csv_cells, columns.values()), strict=True)
                csv.writer(text, lineterminator="\n").writerows([*header, *rows])
                lines = text.getvalue()
            else:
                lines = _format_json_lines(columns)
            data = lines.encode(errors="backslashreplace")  # lone surrogates are escaped
            self._file.write(data)
            self._offset += len(data)
            if not self._is_regular:
                self._file.flush()
        except OSError as error:
            raise self._make_error(error) from error

    def _start_file(self) -> None:
        """Delete the old contents of this file, before its first record is written. Pipes and devices have no such contents."""
        self._offset = 0
        if self._is_regular:
            self._file.truncate(0)

    def flush(self) -> Position:
        """Make all written lines durable (fsync), and return the position after them for `seek`, a dict: name and size of the
        file, and a digest of its last bytes.
        """
        try:
            if self._offset < 0:
                self._start_file()
            self._file.flush()
            if self._is_regular:
                os.fsync(self._file.fileno())
            if self._created:
                sync_folder(self._path.absolute().parent)
                self._created = False
            digest = digest_tail(self._file, self._offset) if self._is_regular else None
            return {"name": self._file_name, "offset": self._offset, "tail_digest": digest}
        except OSError as error:
            raise self._make_error(error) from error

    def owns(self, position: Position) -> bool:
        return position.get("name") == self._file_name

    def seek(self, position: Position) -> None:
        """Truncate this file to ``position`` (a result of `flush`), so that a resumed run does not write lines twice. Raise a
        StreamError if it is not the same file. Lines in a pipe cannot be removed, and are repeated.
        """
        try:
            name, offset, tail = position["name"], validate_count("offset", position["offset"]), position["tail_digest"]
        except (KeyError, ValueError):
            raise StreamError(
                f"{self.name}: the checkpoint is of another kind of sink ({short_repr(dict(position))}). Give that, {KEEP_MODEL}"
            ) from None
        if name != self._file_name:
            raise StreamError(f"{self.name}: what this checkpoint has written is in {name}. Give that, {KEEP_MODEL}")
        if self._created:
            raise StreamError(f"{self.name}, which this checkpoint has written, is not there. Put it back, {KEEP_MODEL}")
        if self._is_regular:
            size = os.fstat(self._file.fileno()).st_size
            if size < offset:
                raise StreamError(f"{self.name} has {size:,} bytes, not {offset:,}: it was cut off. Put it back, {KEEP_MODEL}")
            if digest_tail(self._file, offset) != tail:
                raise StreamError(f"{self.name} does not hold what this checkpoint has written. Put it back, {KEEP_MODEL}")
            self._file.truncate(offset)
            self._file.seek(offset)
        self._offset = offset

    def close(self) -> None:
        """Close this file, but not standard output. Delete it if this sink has created it and written nothing."""
        if self._is_standard_output:
            return
        has_failed = self._failed  # do not raise the same error twice
        try:
            self._file.close()
        except OSError as error:
            if not has_failed:
                raise self._make_error(error) from error
        if self._created and self._offset < 0:
            self._path.unlink(missing_ok=True)


def _to_json_value(value: Any) -> Any:
    """Convert a value for JSON: numpy scalars to Python objects, and numbers that are not finite to None. Other values stay."""
    value = to_python_scalar(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _to_csv_cells(values: Sequence[Any]) -> Sequence[Any]:
    """Convert the values of a column for `csv.writer`: dicts and lists to JSON text, numpy scalars to Python objects, and numbers
    that are not finite to None.
    """
    types = set(map(type, values))
    if types <= {bool, int, str, type(None)} or (types == {float} and all(map(math.isfinite, values))):
        return values
    # Dicts and lists are written as JSON.
    return [json.dumps(value, default=str) if isinstance(value, dict | list) else _to_json_value(value) for value in values]


def _format_json_lines(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return n lines of JSON, one object per row. ``columns`` has a sequence of n values for each field. The result equals
    `json.dumps` of each row, but is much faster.
    """
    formats, arguments = zip(*map(_to_json_format, columns.values()), strict=True)
    line = "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in zip(columns, formats, strict=True)) + "}\n"
    return line * len(arguments[0]) % tuple(itertools.chain.from_iterable(zip(*arguments, strict=True)))


def _to_json_format(values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Prepare the values of a column to be written as JSON by Python's ``%`` operator: return the format of one value, such as
    ``"%d"``, and the sequence of its arguments, one per value.
    """
    types = set(map(type, values))
    if types == {int}:
        return "%d", values
    if types == {float} and all(map(math.isfinite, values)):
        return "%r", values
    if types <= {bool, str, type(None)}:  # few different values
        texts = {value: json.dumps(value) for value in set(values)}
        return "%s", [texts[value] for value in values]
    return "%s", [json.dumps(_to_json_value(value), default=str) for value in values]
