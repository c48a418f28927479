"""Several files as one source, one after the other."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from streamsvm.core.checks import checked_count
from streamsvm.stream.endpoints import START_AFRESH, Position, Source, StreamError
from streamsvm.stream.tables.chunk import Chunk

_DIGESTED = 2**16  # bytes at the beginning and at the end of a file
_PATTERN = frozenset("*?[")


def files_of(spec: str | Sequence[str], is_rows: Callable[[str], bool]) -> list[str]:
    """Return the files that a folder or a pattern such as ``data/*.csv`` names, sorted by name, or each of several names.

    Of a folder, they are those whose names are of rows and begin with neither ``.`` nor ``_``. Empty files are left out, and each
    file is read once. There are none for a name that is
    neither. A StreamError says that there are no such files.
    """
    if not isinstance(spec, str):
        files = _distinct_paths(path for each in spec for path in files_of(each, is_rows) or [each])
        if others := [path for path in files if not Path(path).is_file()]:
            raise StreamError(f"{others[0]} is no file: several sources are files, folders or patterns")
        return files
    if "://" in spec or spec == "-":
        return []
    path = Path(spec)
    if path.is_dir():
        found = [each for each in sorted(path.iterdir()) if each.name[0] not in "._" and _has_bytes(each)]
        if not (files := [str(each) for each in found if is_rows(each.name)]):
            raise StreamError(f"{spec} is a folder without a file of rows. Name the files by a pattern: '{path}/*.txt'")
        return files
    if not _PATTERN & {*spec} or path.exists():
        return []
    if not (files := _distinct_paths(each for each in sorted(glob.glob(spec, recursive=True)) if _has_bytes(Path(each)))):  # noqa: PTH207 - as a shell
        raise StreamError(f"{spec}: there is no such file")
    return files


def _distinct_paths(paths: Iterable[str]) -> list[str]:
    """Return paths without those that lead to a file which is there already, as links do."""
    return list({os.path.realpath(path): path for path in reversed([*paths])}.values())[::-1]


def _has_bytes(path: Path) -> bool:
    """Whether this is a file which is not empty."""
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


class FilesSource(Source):
    """The rows of several files of one format, one file after the other, each of which ``opened`` opens.

    The columns of tables must be the same, in any order; some files may lack that of the ``label`` where ``opened`` allows it.
    The position is that within a file, with the number of files before it and a digest of their sizes, first and last 64 KiB. A
    run resumes only if these are there as they were; files may come after them. A StreamError says that the first file cannot be
    opened; while you iterate, that another one cannot, or has other columns.
    """

    def __init__(self, name: str, paths: Sequence[str], opened: Callable[[str], Source], label: str | None = None) -> None:
        self._paths, self._opened, self._label = list(paths), opened, label
        self.name: str = name
        self._done = 0  # files
        self._digest = ""  # of these
        self._stopped = False
        self._known: set[str] | None = None  # the columns of all files
        self._source = opened(paths[0])
        self.has_names: bool = self._source.has_names

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        return self._source.columns

    def read(self, most: int) -> Chunk | None:
        while True:
            size = _file_size(self._paths[self._done])  # before it is read: what is appended then may not be
            chunk = self._source.read(most)
            if chunk is not None:
                self._check_columns()
                return chunk
            if self._stopped or self._done + 1 == len(self._paths):
                return None
            self._check_columns()
            self._digest = _digest_of_files(self._digest, self._paths[self._done], size)
            self._done += 1
            self._open()

    def _open(self) -> None:
        """Open the file that comes next."""
        self._source.close()
        self._source = self._opened(self._paths[self._done])
        if self._stopped:
            self._source.stop()
        if self.kept_names:
            self._source.keep(self.kept_names)

    def _check_columns(self) -> None:
        columns = {*self._source.columns} - {self._label}
        if self._known is None:
            self._known = columns
        elif columns != self._known and self._source.columns:
            other = min(columns ^ self._known)
            where = self._paths[self._done], self._paths[0]
            has, lacks = where if other in columns else where[::-1]
            raise StreamError(
                f"{has} has a column {other!r}, which {lacks} has not: files that are read as one have equal columns"
            )

    @property
    def position(self) -> Position:
        """Where the next row is: the position within the file at hand, and the number and a digest of those before it."""
        return {**self._source.position, "files": self._done, "before": self._digest}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; files before it that are gone, changed or new are errors."""
        within = dict(position)
        try:
            done, before = checked_count("files", within.pop("files")), within.pop("before")
        except (KeyError, ValueError):
            raise StreamError(
                f"{self.name}: the checkpoint is of another kind of stream. Give that stream, {START_AFRESH}"
            ) from None
        if done:
            if done >= len(self._paths):
                raise StreamError(
                    f"{self.name}: there are {len(self._paths)} files, and the checkpoint is within file {done + 1}. "
                    f"Give all of them, {START_AFRESH}"
                )
            self._source.read(1)
            self._check_columns()
            for path in self._paths[:done]:
                self._digest = _digest_of_files(self._digest, path, _file_size(path))
            if self._digest != before:
                raise StreamError(
                    f"{self.name}: the files before {self._paths[done]} are not those {done} of the checkpoint: one is gone, "
                    f"changed or new. Put them back, {START_AFRESH}"
                )
            self._done = done
            self._open()
        self._source.seek(within)

    def keep(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns, as `Source.keep`."""
        super().keep(names)
        return self._source.keep(names)

    def stop(self) -> None:
        """End before the next row."""
        self._stopped = True
        self._source.stop()

    def close(self) -> None:
        """Close the file at hand."""
        self._source.close()


def _file_size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise StreamError(f"{path}: {error.strerror or error}") from error


def _digest_of_files(before: str, path: str, size: int) -> str:
    """Return a digest of files: that of those before, and of so many bytes of one more."""
    with Path(path).open("rb") as file:
        found = hashlib.sha256(f"{before}:{size}:".encode() + file.read(min(_DIGESTED, size)))
        begin = max(size - _DIGESTED, 0)
        file.seek(begin)
        found.update(file.read(size - begin))
    return found.hexdigest()
