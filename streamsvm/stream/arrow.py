"""Parquet and Arrow files as sources, read by pyarrow a batch at a time."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Unpack

from streamsvm.core.checks import plain
from streamsvm.files.messages import missing_package
from streamsvm.stream.endpoints import START_AFRESH, Position, Row, StreamError
from streamsvm.stream.sources import TableSource
from streamsvm.stream.tables.reading import ReadingOptions
from streamsvm.stream.tables.values import DEEPEST, at_path, flat

#: The formats.
KINDS = ("parquet", "arrow")
_ROWS_AT_ONCE = 1024
_DIGESTED = 2**16  # bytes at the beginning and at the end, where both formats have their index


class ArrowSource(TableSource):
    """Rows of a Parquet file or an Arrow file (IPC, also called Feather).

    pyarrow reads it (``streamsvm[files]``). Numbers, booleans, texts and times become the Python objects for them; a null is a
    missing feature. The fields of a struct are columns of their own, named by their path (``after.amount``). At most 1,024 rows
    are held as Python objects, and for Parquet, the pages that pyarrow decodes. Such files are written as a whole, so a run can
    resume only with the same file: one of the same size that is equal in the first and the last 64 KiB.

    Parameters
    ----------
    path
        Path of the file.
    label
        Name of the label's column. None if there is none.
    kind
        ``"parquet"`` or ``"arrow"``. None goes by the file's suffix (``.parquet``, else Arrow).
    label_needed
        Whether a file without a column of the label is an error. If not, its rows have no label.
    **reading
        How columns are read: ``features``, ``drop``, ``categorical``, ``dates``, ``missing`` and ``decimal``, as in
        `streamsvm.stream.tables.Reading`.

    Raises
    ------
    StreamError
        The file is not of that format, or lacks a column that was named; while you iterate, it is corrupt.
    ModuleNotFoundError
        pyarrow is not installed (extra ``files``).
    ValueError
        A column is requested in two ways that exclude each other.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import pyarrow as pa
    >>> from pyarrow import parquet
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.parquet")
    >>> parquet.write_table(pa.table({"city": ["Oslo", None], "age": [31, 40], "y": [True, False]}), path)
    >>> with ArrowSource(path, label="y") as source:
    ...     list(source)
    [Row(x={'city': 'Oslo', 'age': 31}, y=True), Row(x={'age': 40}, y=False)]
    """

    def __init__(
        self,
        path: str | Path,
        label: str | None = None,
        *,
        kind: str | None = None,
        label_needed: bool = True,
        **reading: Unpack[ReadingOptions],
    ) -> None:
        super().__init__(label, reading)
        self.name: str = str(path)
        self._kind = kind or ("parquet" if self.name.lower().endswith(".parquet") else "arrow")
        self._rows = 0
        self._stopped = False
        self._open = contextlib.ExitStack()
        try:
            import pyarrow as pa  # noqa: PLC0415 - of an extra
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError as error:
            raise missing_package(f"{path}: a Parquet or Arrow file", "pyarrow", "files", error) from error
        # Python's own objects are not made of every number that a file can hold.
        self._errors: tuple[type[Exception], ...] = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, SystemError)
        try:
            self._digest = _digest(Path(path))
            if self._kind == "parquet":
                self._file: Any = self._open.enter_context(parquet.ParquetFile(path))
                schema = self._file.schema_arrow
            else:
                mapped = self._open.enter_context(pa.memory_map(self.name))
                self._file = self._open.enter_context(pa.ipc.open_file(mapped))
                schema = self._file.schema
        except self._errors as error:
            self._open.close()
            raise StreamError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        paths = [path for field in schema for path in _paths(field)]
        names, within = [path[-1] for path in paths], {name for path in paths for name in path[:-1]}
        if problem := self._reading.problem(names, label if label_needed else None, within):
            self._open.close()
            raise StreamError(f"{path}: {problem}")
        self._paths = paths
        self._keep: list[str] = []  # columns to copy, and their values in the row that was given last
        self._kept: list[Any] = []
        dropped = {*self._reading.drop, *(set(names) - {*(self._reading.features or names), label})}
        kept = [path for path in paths if dropped.isdisjoint(path)]
        #: The columns that are read, in their order.
        self.columns: list[str] = [path[-1] for path in kept]
        self._fields, self._is_nested = list(dict.fromkeys(path[0] for path in kept)), bool(within)

    def __iter__(self) -> Iterator[Row]:
        self._begun = True
        label = self._label
        try:
            for batch in self._batches(self._rows):
                names = [name for name in batch.schema.names if name != label]
                columns = [batch.column(name).to_pylist() for name in names]
                labels = batch.column(label).to_pylist() if label in batch.schema.names else [None] * batch.num_rows
                # Of no columns there is no row to zip.
                for y, *cells in zip(labels, *columns, strict=True):
                    if self._stopped:
                        return
                    self._rows += 1
                    x = dict(zip(names, cells, strict=True))
                    if self._keep:
                        self._kept = [at_path(x, name) if y is None or name != label else y for name in self._keep]
                    if self._is_nested:
                        x = flat(x, dropped=self._reading.drop)
                        y = y if label is None else x.pop(label, y)
                    yield Row(self._reading.row(x.items()), self._reading.label(plain(y) if isinstance(y, Decimal) else y))
        except self._errors as error:
            raise StreamError(f"{self.name}, after row {self._rows:,}: {error}") from error

    def _batches(self, skipped: int) -> Iterator[Any]:
        # Batches of at most `_ROWS_AT_ONCE` rows, after so many rows; parts of the file that lie before them are not read.
        if self._kind == "parquet":
            groups = range(self._file.num_row_groups)
            sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        else:
            groups, sizes = range(self._file.num_record_batches), []
        for group in groups:
            if sizes and sizes[group] <= skipped:
                skipped -= sizes[group]
                continue
            if self._kind == "parquet":
                batches = self._file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=self._fields, use_threads=False)
            else:
                batch = self._file.get_batch(group).select(self._fields)
                batch.validate(full=True)  # pyarrow reads wherever the offsets of a corrupt file say
                batches = iter([batch])
            for batch in batches:
                for begin in range(min(skipped, batch.num_rows), batch.num_rows, _ROWS_AT_ONCE):
                    yield batch.slice(begin, _ROWS_AT_ONCE)
                skipped -= min(skipped, batch.num_rows)

    def keep(self, names: Iterable[str]) -> list[str]:
        """Have `kept_of` copy these columns, as `Source` describes; raise a StreamError if the file does not have one of them."""
        self._keep = list(names)
        found = [path[0] for name in self._keep for path in self._paths if name in path]
        if missing := [name for name in self._keep if not any(name in path for path in self._paths)]:
            columns = ", ".join(path[-1] for path in self._paths)
            raise StreamError(f"{self.name}: there is no column {missing[0]!r} to keep. It has: {columns}")
        self._fields = list(dict.fromkeys([*self._fields, *found]))
        return self._keep

    def kept_of(self, i: int) -> list[Any]:  # noqa: ARG002
        """The columns to copy of the row that was given last."""
        return self._kept

    @property
    def place(self) -> str:
        """The file and the number of the row that was given last."""
        return f"{self.name}, row {self._rows:,}"

    @property
    def position(self) -> Position:
        """Where the next row is.

        It has the number of rows given, a digest of the file, the label, and how columns are read.
        """
        return self._columns_read | {"rows": self._rows, "file": self._digest, "label": self._label}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; another label, and columns that are read in another way are errors, too."""
        self._check_new()
        rows = position.get("rows")
        if not {"rows", "file", "label"} <= position.keys() or type(rows) is not int or not 0 <= rows < 2**63:
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream. Give that stream, {START_AFRESH}")
        if position["file"] != self._digest:
            raise StreamError(f"{self.name} is not the file of the checkpoint, or was written anew. Give it, {START_AFRESH}")
        self._check_columns(position)
        self._rows = rows

    def stop(self) -> None:
        """End before the next row."""
        self._stopped = True

    def close(self) -> None:
        """Close the file."""
        self._open.close()


def _paths(field: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The columns that a field is read as: the names of the structs that each is in, and its own."""
    path = (*before, f"{before[-1]}.{field.name}" if before else field.name)
    children = [field.type.field(i) for i in range(field.type.num_fields)] if str(field.type).startswith("struct<") else []
    if not children or len(path) == DEEPEST:
        yield path
    for child in children if len(path) < DEEPEST else ():
        yield from _paths(child, path)


def _digest(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        found = hashlib.sha256(b"%d:" % size + file.read(_DIGESTED))
        file.seek(max(size - _DIGESTED, 0))
        found.update(file.read())
    return found.hexdigest()
