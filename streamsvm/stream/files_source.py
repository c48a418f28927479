"""The rows of several files as one source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from streamsvm.core.checks import validate_count
from streamsvm.stream.endpoints import START_AFRESH, Position, Source, StreamError
from streamsvm.stream.lines import digest_file_ends
from streamsvm.stream.tables.chunk import Chunk


class FilesSource(Source):
    """The rows of several files of one format, one file after the other. ``open_file`` opens the source of each path.

    All files must have the same columns, in any order. The column ``label`` may be missing if ``open_file`` allows that. The
    position is the one within the current file, with the number of finished files and a digest of their sizes and of their first
    and last 64 KiB. A run resumes only if these have not changed; further files may have been added. Raises a StreamError if the
    first file cannot be opened; while you iterate, also if another file cannot be opened, or has other columns.
    """

    def __init__(self, name: str, paths: Sequence[str], open_file: Callable[[str], Source], label: str | None = None) -> None:
        self._paths, self._open_file, self._label = list(paths), open_file, label
        self.name: str = name
        self._n_done = 0  # number of finished files
        self._digest = ""  # of the finished files
        self._stopped = False
        self._columns: set[str] | None = None  # the columns that all files must have, without the label
        self._source = open_file(paths[0])
        self.has_names: bool = self._source.has_names

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        return self._source.columns

    def read(self, max_rows: int) -> Chunk | None:
        while True:
            size = _file_size(self._paths[self._n_done])  # before reading, because bytes that are appended later may be missed
            chunk = self._source.read(max_rows)
            if chunk is not None:
                self._check_columns()
                return chunk
            if self._stopped or self._n_done + 1 == len(self._paths):
                return None
            self._check_columns()
            self._digest = digest_file_ends(self._paths[self._n_done], size, f"{self._digest}:{size}:")
            self._n_done += 1
            self._open_next()

    def _open_next(self) -> None:
        self._source.close()
        self._source = self._open_file(self._paths[self._n_done])
        if self._stopped:
            self._source.stop()
        if self.passthrough_names:
            self._source.request_passthrough(self.passthrough_names)

    def _check_columns(self) -> None:
        columns = {*self._source.columns} - {self._label}
        if self._columns is None:
            self._columns = columns
        elif columns != self._columns and self._source.columns:
            name = min(columns ^ self._columns)
            files = self._paths[self._n_done], self._paths[0]
            has_it, lacks_it = files if name in columns else files[::-1]
            raise StreamError(
                f"{has_it} has a column {name!r}, and {lacks_it} does not: files of one source must have the same columns"
            )

    @property
    def position(self) -> Position:
        """The position of the next row in this source of several files, as a dict: the position within the current file, the
        number of files that were read completely, and a digest of these files.
        """
        return {**self._source.position, "files_done": self._n_done, "files_digest": self._digest}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, the saved `position` of an earlier source of the same files. Raise a StreamError if one of
        the files that were read completely before it is missing or has changed.
        """
        file_position = dict(position)
        try:
            n_done, digest = validate_count("files_done", file_position.pop("files_done")), file_position.pop("files_digest")
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        if n_done:
            if n_done >= len(self._paths):
                raise StreamError(
                    f"{self.name}: there are {len(self._paths)} files, and the checkpoint is within file {n_done + 1}. "
                    f"Give all of them, {START_AFRESH}"
                )
            self._source.read(1)
            self._check_columns()
            for path in self._paths[:n_done]:
                size = _file_size(path)
                self._digest = digest_file_ends(path, size, f"{self._digest}:{size}:")
            if self._digest != digest:
                raise StreamError(
                    f"{self.name}: the files before {self._paths[n_done]} are not those of the checkpoint: one is gone, "
                    f"changed or new. Put them back, {START_AFRESH}"
                )
            self._n_done = n_done
            self._open_next()
        self._source.seek(file_position)

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
