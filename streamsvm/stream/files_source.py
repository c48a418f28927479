"""The rows of several files as one source."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamsvm.core.checks import validate_count
from streamsvm.core.warning import warn
from streamsvm.stream.endpoints import KEEP_MODEL, ForeignPositionError, Position, Source, StreamError
from streamsvm.stream.lines import digest_file_ends
from streamsvm.stream.tables.chunk import Chunk, Row, Table

_MAX_DIGESTS = 1000  # finished files that are recognised when earlier ones are removed


class FilesSource(Source):
    """The rows of several files of one format, one file after the other. ``open_file`` opens the source of a path; its second
    argument tells whether the file must have all columns that were declared.

    All files must have most columns in common, in any order; a warning names each of the others once. The column ``label`` may be
    missing if ``open_file`` allows that. ``read_partition`` returns the values that the names of a file's folders give to its
    rows. The position is the one within the current file, with the number of finished files and a digest of their sizes and of
    their first and last 64 KiB. A run resumes only if these have not changed; further files may have been added after them, and
    finished ones removed. If the position
    does not fit the order of ``paths``, the files are read in the order of their names as texts, as in earlier versions. Raises
    a StreamError if the first file cannot be opened; while you iterate, also if another file cannot be opened, or has other
    columns.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        open_file: Callable[[str, bool], Source],
        label: str | None,
        read_partition: Callable[[str], Mapping[Hashable, Any]] = lambda _: {},
    ) -> None:
        self._open_file, self._label, self._partition_reader = open_file, label, read_partition
        self.name: str = name
        self._stopped = False
        self._start(list(paths))
        self.has_names: bool = self._source.has_names

    def _start(self, paths: list[str]) -> None:
        """Open the first of the files ``paths``, to read them in this order."""
        self._paths = paths
        self._read_partition, self._has_partitions = self._partition_reader, any(map(self._partition_reader, paths))
        self._digest = ""  # of the finished files
        self._digests: deque[str] = deque(maxlen=_MAX_DIGESTS)  # of each of the last finished files
        self._columns: set[str] | None = None  # the columns of the first file, without the label
        self._differing: set[str] = set()  # columns that only some files have
        self._open_at(0)

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        columns = self._source.columns
        return [*columns, *(str(name) for name in self._partition if name not in columns)] if columns else columns

    def read(self, max_rows: int) -> Chunk | None:
        while True:
            size = _file_size(self._paths[self._n_done])  # before reading, because bytes that are appended later may be missed
            chunk = self._source.read(max_rows)
            if chunk is not None:
                self._check_columns()
                return _add_columns(chunk, self._partition) if self._partition and chunk else chunk
            if self._stopped or self._n_done + 1 == len(self._paths):
                return None
            self._check_columns()
            self._add_finished(self._paths[self._n_done], size)
            self._source.close()
            self._open_at(self._n_done + 1)

    def _add_finished(self, path: str, size: int) -> None:
        """Add the first ``size`` bytes of a file, which were read, to the digests of the finished files."""
        self._digest = digest_file_ends(path, size, f"{self._digest}:{size}:")
        self._digests.append(_digest_file(path, size))

    def _open_at(self, index: int) -> None:
        """Open the file with this ``index``, after the files before it are finished."""
        self._n_done = index  # number of finished files
        self._source = self._open_file(self._paths[index], False)
        self._partition = self._read_partition(self._paths[index])
        if self._stopped:
            self._source.stop()
        if self.passthrough_names:
            self._source.request_passthrough(self.passthrough_names)

    def _check_columns(self) -> None:
        """Warn of the columns that the current file lacks, or has beside those of the first file. Raise a StreamError if they
        have few columns in common, or if both the first and the last file lack a column that was declared.
        """
        columns, first_path, path = {*self._source.columns} - {self._label}, self._paths[0], self._paths[self._n_done]
        if not columns:
            return
        if self._columns is None:
            self._columns = columns
            try:
                self._check_declared_columns(first_path)
            except StreamError:
                self._check_declared_columns(self._paths[-1])
        differing, earlier_columns = columns ^ self._columns, self._columns | self._differing
        if len(columns ^ earlier_columns) > len(columns & earlier_columns):
            name = min(differing)
            has_it, lacks_it = (path, first_path) if name in columns else (first_path, path)
            raise StreamError(
                f"{has_it} has a column {name!r}, and {lacks_it} does not: files of one source must have the same columns"
            )
        if added := differing - self._differing:
            self._differing |= added
            texts = [f"column {name!r} is {'new' if name in columns else 'missing'}" for name in sorted(added)]
            warn(f"{path}: {', '.join(texts[:5])}{', ...' * (len(texts) > 5)} (compared with {first_path})")

    def _check_declared_columns(self, path: str) -> None:
        with self._open_file(path, True) as source:
            source.read(1)

    @property
    def position(self) -> Position:
        """The position of the next row in this source of several files, as a dict: the position within the current file, the
        number of files that were read completely, and a digest of these files.
        """
        partitions = {"partitions": True} if self._has_partitions else {}
        files = {"files_done": self._n_done, "files_digest": self._digest, "files_digests": list(self._digests)}
        return {**self._source.position, **partitions, **files}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, the saved `position` of an earlier source of the same files. Raise a StreamError if one of
        the files that were read completely before it has changed, or follows a new one.
        """
        paths = self._paths
        try:
            self._seek(position)
        except StreamError:
            self._source.close()
            self._start(sorted(paths))
            try:
                self._seek(position)
            except StreamError:
                self._source.close()
                self._start(paths)
                raise

    def _seek(self, position: Position) -> None:
        file_position: dict[str, Any] = dict(position)
        if "files_done" not in position:  # a position within a single file is one within the first of several
            file_position |= {"files_done": 0, "files_digest": ""}
        if not file_position.pop("partitions", False):  # saved by a version that did not read the names of folders
            self._read_partition, self._has_partitions, self._partition = (lambda _: {}), False, {}
        try:
            n_done, digest = validate_count("files_done", file_position.pop("files_done")), file_position.pop("files_digest")
            digests = set(file_position.pop("files_digests", ()))
        except (KeyError, ValueError, TypeError):
            raise self._foreign_position_error(position) from None
        path = self._paths[min(n_done, len(self._paths) - 1)]
        text = f"{self.name}: the files before {path} are not those of the checkpoint: one is gone, changed or new"
        changed = StreamError(f"{text}. Put them back, {KEEP_MODEL}")
        if n_done:
            self._source.read(1)
            self._check_columns()
            if (n_done := self._skip_finished(n_done, digest, digests)) < 0:
                raise changed
            self._source.close()
            self._open_at(n_done)
        try:
            self._source.seek(file_position)
        except ForeignPositionError:
            # A run may begin here only if none of the files was learned.
            if n_done or any(self._has_position(path, file_position) for path in self._paths[1:]):
                raise changed from None
            raise

    def _has_position(self, path: str, position: Position) -> bool:
        with contextlib.suppress(StreamError), self._open_file(path, False) as source:
            source.seek(position)
            return True
        return False

    def _skip_finished(self, n_done: int, digest: str, digests: set[str]) -> int:
        """Return the number of finished files that are still here, and add them to the digests; -1 if they are not the first
        files here. ``n_done`` files were finished, with the common ``digest``; ``digests`` has that of each.
        """
        files = [(path, _file_size(path)) for path in self._paths]
        are_done = [_digest_file(*file) in digests for file in files]
        for n in (n_done, sum(are_done)):  # all of them, or those that were not removed
            self._digest = ""
            self._digests.clear()
            for file in files[:n]:
                self._add_finished(*file)
            if n < len(files) and (self._digest == digest or (digests and sum(are_done) == n == sum(are_done[:n]))):
                return n
        return -1

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Request that `read` also returns the columns ``names`` of all files unchanged, so that they can be copied into
        predictions. Return the names; raise a StreamError if the current file lacks a column.
        """
        super().request_passthrough(names)
        return self._source.request_passthrough(names)

    def stop(self) -> None:
        """End a wait of `read` for rows, from a signal handler or another thread, and do not open any further file."""
        self._stopped = True
        self._source.stop()

    def close(self) -> None:
        """Close the file that is currently read."""
        self._source.close()


def _file_size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise StreamError(f"{path}: {error.strerror or error}") from error


def _digest_file(path: str, size: int) -> str:
    return digest_file_ends(path, size, f"{size}:")[:16]


def _add_columns(chunk: Chunk, values: Mapping[Hashable, Any]) -> Chunk:
    """Return a copy of a chunk (rows read together) whose rows all have these ``values``, by column, beside their own."""

    def change_table(table: Table) -> Table:
        added = {name: [value] * len(table) for name, value in values.items() if name not in table.names}
        return replace(table, names=(*table.names, *added), columns=[*table.columns, *added.values()])

    return chunk.with_change(lambda row: Row({**values, **row.x}, row.y), change_table)
