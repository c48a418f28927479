"""Writes predictions and dead letters as JSON lines or CSV: to a file, to numbered files, or to standard output."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from streamsvm.core.checks import check_one_of, to_python_scalar, validate_count
from streamsvm.core.warning import warn
from streamsvm.files.locks import try_lock
from streamsvm.files.messages import short_repr
from streamsvm.files.model_file import sync_folder
from streamsvm.stream.endpoints import ForeignPositionError, Position, Record, Sink, SinkLockedError, StreamError
from streamsvm.stream.lines import digest_tail
from streamsvm.stream.tables.chunk import MessageColumns
from streamsvm.stream.tables.quantities import parse_duration_or_unit

_SIZE = re.compile(r"(?i)([1-9]\d{0,5}) ?([KMGT])B")
#: Matches the beginning of a file of predictions or dead letters, as CSV or as JSON lines, and the number of its first row.
RECORD_PATTERN = re.compile(rb'(?:row,(?:y_pred|place),.*\n?|\{"row": (?=\d+, "(?:y_pred|place)": ))(\d{1,18}\b)?')


class FileSink(Sink):
    """Writes each prediction or dead letter as a line of a file: CSV for ``.csv``, else JSON.

    A run that resumes truncates the file to the position of the checkpoint, so that the file has one line for each row, even
    after many kills. A pipe or device, such as standard output, gets each line immediately and cannot be truncated, so lines may
    be repeated. Values that are not finite, and missing predictions, are null or empty cells.

    If another program, such as logrotate, has moved, removed or emptied the file, a new one begins, with a warning. A run that
    resumes moves it back if it is in the same folder, and not compressed.

    Parameters
    ----------
    path
        Path of the file, which is emptied unless you call `seek`; or ``"-"`` for standard output (JSON lines).
    rotate
        When to begin a new file: after a size, such as ``"500MB"`` or ``"1GB"``; at midnight UTC, ``"DAY"``; or at the multiples
        of a duration, such as ``"12h"``. ``predictions.csv`` then becomes ``predictions.000001.csv``, later ones get the next
        numbers, and ``predictions.csv`` always has the newest lines. Those of an earlier run are deleted. None: one file.

    Raises
    ------
    StreamError
        The file cannot be written, another process (or sink) is writing to it, its name ends in ``.gz``, because a compressed
        file cannot be truncated, or ``rotate`` is given for a pipe or device.
    ValueError
        ``rotate`` is neither a size nor a duration.
    BrokenPipeError
        The reader of standard output has gone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with FileSink(f"{folder}/out.jsonl", rotate="1KB") as sink:
    ...         for row in range(300):
    ...             sink.write({"row": row, "y_pred": 1})
    ...     print(sorted(path.name for path in Path(folder).iterdir()))
    ['out.000001.jsonl', 'out.000002.jsonl', 'out.jsonl']
    """

    def __init__(self, path: str | Path, rotate: str | None = None) -> None:
        self._is_standard_output = str(path) == "-"
        self.name: str = "standard output" if self._is_standard_output else str(path)
        if str(path).endswith(".gz"):
            raise StreamError(f"{self.name}: it cannot be compressed, because a killed run could not continue it")
        self._max_bytes, self._seconds = (math.inf, math.inf) if rotate is None else parse_rotation(rotate)
        self._path = Path(path).absolute()  # also if the process changes its folder
        # Without the folder, which may have another path in the next run.
        self._file_name = self.name if self._is_standard_output else self._path.name
        self.has_header: bool = str(path).endswith(".csv")
        self._records: list[Record] = []  # that wait to be written together
        self._offset = -1  # size of the file; -1 before the first record
        # The number of the last numbered file, that of the row after the last record, and the time of that record in periods.
        self._part, self._next_row, self._period, self._created = 0, 0, 0.0, False
        self._is_regular = "://" not in self.name and str(path) != "-" and (self._path.is_file() or not self._path.exists())
        if rotate is not None and not self._is_regular:
            raise StreamError(f"{self.name} is not a file, and only files are rotated: leave {rotate} out")
        with self._naming_errors():
            file = getattr(sys.stdout, "buffer", None) if self._is_standard_output else self._open()
            if file is None:
                raise StreamError(f"{self.name} is closed")
            self._file: BinaryIO = file

    def _open(self) -> BinaryIO:
        """Open the file, or create it, lock it, and return it. Do not truncate it before `seek` is called, or the first record
        is written. Raise a StreamError if another process has locked it.
        """
        self._created = not self._path.exists()
        flags = (os.O_RDWR | os.O_CREAT | os.O_APPEND if self._is_regular else os.O_WRONLY) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(self._path, flags, 0o644), "r+b" if self._is_regular else "wb", 0)
        if self._created:
            sync_folder(self._path.parent)
        self._stat = os.fstat(file.fileno())
        self._period = self._stat.st_mtime // self._seconds
        # The process that had locked the file may have renamed it, after it was opened here.
        if self._is_regular and not (try_lock(file) and os.path.samestat(self._path.stat(), self._stat)):
            file.close()
            raise SinkLockedError(f"{self.name}: another process is writing to it. Stop it, or name another file")
        return file

    @contextlib.contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Within a ``with`` block, convert an OSError of this file to a StreamError with its name. A BrokenPipeError of standard
        output is raised unchanged, as command-line tools expect.
        """
        try:
            yield
        except OSError as error:
            if self._is_standard_output and isinstance(error, BrokenPipeError):
                raise
            raise StreamError(f"{self.name}: {error.strerror}") from error

    def write(self, record: Record) -> None:
        """Write one record (the fields of a prediction by name) as a line of CSV or JSON; raise a StreamError if that fails. Only
        `flush` and `close` guarantee that it is in the file: 100 records are written together, because that is faster.
        """
        self._records.append(record)
        if len(self._records) >= 100 or not self._is_regular:
            self._write_records()

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:  # noqa: ARG002
        """Write n lines of CSV or JSON; ``columns`` has a sequence of n values for each field. ``messages`` are ignored. Raise a
        StreamError if that fails.
        """
        with self._naming_errors():
            self._write_records()
            period = time.time() // self._seconds
            if self._is_regular and not (
                self._path.exists() and os.path.samestat(stat := self._path.stat(), self._stat) and stat.st_size == self._offset
            ):
                warn(f"{self.name} was moved, removed or changed: a new file begins, for rows from {self._next_row:,} on")
                self._reopen()
            elif self._offset >= self._max_bytes or (self._offset and period > self._period):
                self._rotate()
            self._period = period
            if self.has_header:
                rows = zip(*map(_to_csv_cells, columns.values()), strict=True)
                csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows if self._offset else [columns, *rows])
                lines = text.getvalue()
            else:
                lines = _format_json_lines(columns)
            data = lines.encode(errors="backslashreplace")  # lone surrogates are escaped
            self._offset += len(data)
            while data:
                data = data[self._file.write(data) :]
            self._file.flush()
            self._next_row = int(1 + max(columns.get("row", ())[-1:], default=self._next_row - 1))

    def _write_records(self) -> None:
        """Write the records that wait. Before the first one, delete the old contents of this file, and the numbered files of an
        earlier run, if this one rotates, too. Pipes and devices have no such contents.
        """
        if self._offset < 0:
            self._offset = 0
            if min(self._max_bytes, self._seconds) < math.inf:
                self._delete_later(0, 0)
            if self._is_regular:
                self._file.truncate(0)
        records, self._records = self._records, []
        for names, group in itertools.groupby(records, tuple):
            self.write_many(dict(zip(names, zip(*(record.values() for record in group), strict=True), strict=True)))

    def _reopen(self, source: Path | None = None, target: Path | None = None) -> None:
        """Close the file, rename ``source`` to ``target`` if they are given, and open the file at the path of this sink."""
        os.fsync(self._file.fileno())
        self._file.close()
        if source is not None and target is not None:
            source.replace(target)
        self._file = self._open()
        self._offset = self._stat.st_size

    def _rotate(self) -> None:
        """Give the current file the next number, and begin a new one."""
        self._part = next(i for i in itertools.count(self._part + 1) if not self._get_part(i).exists())
        self._reopen(self._path, self._get_part(self._part))

    def _get_part(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.{number:06}{self._path.suffix}")

    def _delete_later(self, part: int, next_row: int) -> None:
        """Delete the numbered files after number ``part`` that begin with row ``next_row`` or a later one."""
        paths = map(self._get_part, itertools.count(part + 1))
        for path in reversed(list(itertools.takewhile(lambda path: _read_first_row(path) >= next_row, paths))):
            path.unlink()

    def flush(self) -> Position:
        """Make all written lines durable (fsync), and return the position after them for `seek`, a dict: name and size of the
        file, a digest of its last bytes, the number of the last numbered file, and the row after the last one.
        """
        with self._naming_errors():
            self._write_records()
            if self._is_regular:
                os.fsync(self._file.fileno())
            position = {"name": self._file_name, "offset": self._offset, "part": self._part, "next_row": self._next_row}
            return position | {"tail_digest": digest_tail(self._file, self._offset) if self._is_regular else None}

    def owns(self, position: Position) -> bool:
        return position.get("name") == self._file_name

    def begin(self, row: int) -> None:
        """Prepare to write records from ``row`` on, in a run that has written to another sink before. If this file has records of
        earlier rows, it gets a number, so that they stay.
        """
        files = map(self._get_part, itertools.count(1))
        part = sum(1 for _ in itertools.takewhile(lambda file: file.exists() and _read_first_row(file) < row, files))
        self.seek({"name": self._file_name, "offset": 0, "tail_digest": None, "part": part, "next_row": row})

    def seek(self, position: Position) -> None:
        """Truncate this file to ``position`` (a result of `flush`), so that a resumed run does not write lines twice, and delete
        numbered files after the position. Lines in a pipe cannot be removed, and are repeated.

        A file that another program has moved is moved back. If it is gone, a new one begins, with a warning, and if the file of
        this name has other contents, or was cut off, it gets a number first. Raise a ForeignPositionError if the position is of
        another sink.
        """
        try:
            check_one_of("name", position["name"], [self._file_name])
            offset, tail = validate_count("offset", position["offset"]), position["tail_digest"]
            self._part, self._next_row = (validate_count(field, position.get(field, 0)) for field in ("part", "next_row"))
        except (KeyError, ValueError):
            raise ForeignPositionError(f"{self.name}: the checkpoint is of another sink ({short_repr(dict(position))})") from None
        with self._naming_errors():
            if self._is_regular:
                next_part = self._get_part(self._part + 1)
                beginnings = f"{self._path.stem}.", f"{self._path.stem}-"
                paths = [path for path in self._path.parent.iterdir() if path.name.startswith(beginnings) and path.is_file()]
                paths = [self._path, *sorted(paths, key=lambda path: -path.stat().st_mtime)]
                place = next((path for path in paths if holds_position(path, offset, tail)), None)
                size, first_row = self._path.stat().st_size, _read_first_row(self._path)
                # Positions of earlier versions have no `next_row`, and the offset is larger.
                self._delete_later(self._part + (place == next_part), self._next_row or offset)
                if offset and place not in (self._path, next_part):
                    news = f"{place} is moved back" if place else f"a new file begins, for rows from {self._next_row:,} on"
                    warn(f"{self.name} was moved, removed or changed: {news}")
                if place != self._path and size and first_row < (self._next_row or offset):  # of another program, or cut off
                    self._rotate()
                if place is not None:
                    self._reopen(place, self._path)
                self._file.truncate(offset := 0 if place is None else offset)
            self._offset = offset

    def close(self) -> None:
        """Close this file, but not standard output. Delete it if this sink has created it and written nothing."""
        if self._is_standard_output:
            return
        with self._naming_errors(), contextlib.ExitStack() as stack:
            stack.callback(lambda: self._file.close())  # noqa: PLW0108 - the last records may begin a new file
            if self._records:
                self._write_records()
        if self._created and self._offset < 0:
            self._path.unlink(missing_ok=True)


def parse_rotation(text: str) -> tuple[float, float]:
    """Parse when to begin a new file: its size, such as ``1GB``, or a period, such as ``DAY`` or ``12h``. Return the size and
    the period in seconds; one of the two is infinite. Raise a ValueError for other texts.

    >>> [parse_rotation(text) for text in ("1GB", "DAY", "12h")]
    [(1000000000.0, inf), (inf, 86400.0), (inf, 43200.0)]
    """
    with contextlib.suppress(ValueError):
        if (size := _SIZE.fullmatch(text)) is not None:
            return float(size[1]) * 1000.0 ** " KMGT".index(size[2].upper()), math.inf
        if 1.0 <= (seconds := parse_duration_or_unit(text)) < math.inf:
            return math.inf, seconds
    raise ValueError(f"rotate must be a size such as 500MB or 1GB, DAY, or a duration such as 12h, not {text!r}")


def _read_first_row(path: Path) -> int:
    """Return the number of the first row in a file of predictions or dead letters; -1 for another or a missing file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return int(match[1]) if (match := RECORD_PATTERN.match(file.read(2**16))) and match[1] else -1
    return -1


def holds_position(path: Path, offset: int, tail: str) -> bool:
    """Return whether the file ``path`` has the digest ``tail`` before ``offset``, as the position of a `FileSink` says. An empty
    beginning does not count.
    """
    with path.open("rb") as file:
        return 0 < offset <= path.stat().st_size and digest_tail(file, offset) == tail


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
