"""Parquet and Arrow files as sources, read by pyarrow a batch at a time."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.files.messages import missing_package
from streamsvm.stream.endpoints import START_AFRESH, Position, StreamError
from streamsvm.stream.sources import TableSource
from streamsvm.stream.tables.chunk import Chunk, Row, Table, Values
from streamsvm.stream.tables.reading import ReadingOptions
from streamsvm.stream.tables.values import DEEPEST, at_path, flat, label_of

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
        dropped = {*self._reading.drop, *(set(names) - {*(self._reading.features or names), label})}
        kept = [path for path in paths if dropped.isdisjoint(path)]
        self.columns: Sequence[str] = [path[-1] for path in kept]  # that are read, in their order
        self._batch: tuple[Any, int] = None, 0  # that is being given, and how many rows of it were
        self._batches: Iterator[Any] | None = None
        self._fields, self._is_nested = list(dict.fromkeys(path[0] for path in kept)), bool(within)

    def read(self, most: int) -> Chunk | None:
        self._begun = True
        try:
            if self._batches is None:
                self._batches = self._batches_after(self._rows)
            batch, given = self._batch
            while batch is None or given == batch.num_rows:
                if self._stopped or (batch := next(self._batches, None)) is None:
                    return None
                given = 0
            if self._stopped:
                return None
            part = batch.slice(given, most)
            self._batch = batch, given + part.num_rows
            chunk = BatchChunk(part, self, self._rows + 1)
            self._rows += part.num_rows
            return chunk
        except self._errors as error:
            raise StreamError(f"{self.name}, after row {self._rows:,}: {error}") from error

    def rows_of(self, batch: Any, first: int) -> tuple[list[Row], list[list[Any]]]:
        """Return the rows of a batch, of which the first has a number, and what is kept of each."""
        label, found, kept = self._label, [], []
        try:
            names = [name for name in batch.schema.names if name != label]
            columns = [batch.column(name).to_pylist() for name in names]
            labels = batch.column(label).to_pylist() if label in batch.schema.names else [None] * batch.num_rows
        except self._errors as error:
            raise StreamError(f"{self.name}, after row {first - 1:,}: {error}") from error
        # Of no columns there is no row to zip.
        for y, *cells in zip(labels, *columns, strict=True):
            x = dict(zip(names, cells, strict=True))
            if self.kept_names:
                kept.append([at_path(x, name) if y is None or name != label else y for name in self.kept_names])
            if self._is_nested:
                x = flat(x, dropped=self._reading.drop)
                y = y if label is None else x.pop(label, y)
            found.append(Row(self._reading.row(x.items()), self._reading.label(label_of(y))))
        return found, kept

    def table_of(self, batch: Any, first: int, rows: Callable[[], list[Row]]) -> Table | None:
        """Return a batch in columns, of which the first row has a number; ``rows`` gives its rows where these say it better."""
        if self._is_nested:
            return Table.of_rows(rows())
        try:
            return self._in_columns(batch)
        except self._errors as error:
            raise StreamError(f"{self.name}, after row {first - 1:,}: {error}") from error

    def _in_columns(self, batch: Any) -> Table:
        names = [name for name in batch.schema.names if name != self._label and not self._reading.drops(name)]
        columns = [_values(batch.column(name)) for name in names]
        y = [label_of(y) for y in _values_of_label(batch, self._label)]
        return self._reading.table(Table(tuple(names), columns, y))

    def _batches_after(self, skipped: int) -> Iterator[Any]:
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

    def keep(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns, as `Source.keep`; raise a StreamError if the file does not have one of them."""
        found = [path[0] for name in names for path in self._paths if name in path]
        if missing := [name for name in names if not any(name in path for path in self._paths)]:
            columns = ", ".join(path[-1] for path in self._paths)
            raise StreamError(f"{self.name}: there is no column {missing[0]!r} to keep. It has: {columns}")
        self._fields = list(dict.fromkeys([*self._fields, *found]))
        return super().keep(names)

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


class BatchChunk(Chunk):
    """Rows of a record batch."""

    def __init__(self, batch: Any, source: ArrowSource, first: int) -> None:
        self._batch, self._source, self._first = batch, source, first
        self._rows: tuple[list[Row], list[list[Any]]] | None = None
        self._table: Table | None = None

    def __len__(self) -> int:
        n: int = self._batch.num_rows
        return n

    def _read(self) -> tuple[list[Row], list[list[Any]]]:
        if self._rows is None:
            self._rows = self._source.rows_of(self._batch, self._first)
        return self._rows

    def row(self, i: int) -> Row:
        return self._read()[0][i]

    def table(self, known: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        if self._table is None:
            self._table = self._source.table_of(self._batch, self._first, lambda: self._read()[0])
        return self._table

    def place(self, i: int) -> str:
        return f"{self._source.name}, row {self._first + i:,}"

    def kept(self, first: int, end: int) -> list[Sequence[Any]]:
        return [list(values) for values in zip(*self._read()[1][first:end], strict=True)]


def _values(column: Any) -> Values:
    """Return the values of a column of pyarrow, in which NaN or None is missing."""
    kind = str(column.type)
    if kind in _FLOATS or (kind in _INTS and not column.null_count):  # as dates, whole numbers and floats are read differently
        values: np.ndarray = column.to_numpy(zero_copy_only=False)
        return values
    if kind.startswith("dictionary<"):
        texts = [*column.dictionary.to_pylist(), None]
        return [texts[-1 if code is None else code] for code in column.indices.to_pylist()]
    values_of: list[Any] = column.to_pylist()
    return values_of


def _values_of_label(batch: Any, label: str | None) -> list[Any]:
    return list(batch.column(label).to_pylist()) if label in batch.schema.names else [None] * batch.num_rows


_FLOATS = ("double", "float", "halffloat")
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


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
