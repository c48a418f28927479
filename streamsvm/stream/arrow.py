"""Parquet and Arrow files as sources, read by pyarrow a batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from streamsvm.files.messages import missing_package_error
from streamsvm.stream.endpoints import START_AFRESH, Position, StreamError
from streamsvm.stream.lines import digest_file_ends
from streamsvm.stream.sources import TableSource
from streamsvm.stream.tables.chunk import Chunk, Row, Table, Values
from streamsvm.stream.tables.column_kinds import DROP
from streamsvm.stream.tables.table_parser import ParserOptions, TableParser
from streamsvm.stream.tables.values import MAX_DEPTH

#: The formats.
KINDS = ("parquet", "arrow")
_ROWS_AT_ONCE = 1024


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
    **parser_options
        How columns are read: ``columns``, ``missing`` and ``decimal``, as in
        `streamsvm.stream.tables.TableParser`.

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
        **parser_options: Unpack[ParserOptions],
    ) -> None:
        super().__init__(label, parser_options)
        self.name: str = str(path)
        self._kind = kind or ("parquet" if self.name.lower().endswith(".parquet") else "arrow")
        self._rows = 0
        self._stopped = False
        self._open = contextlib.ExitStack()
        try:
            import pyarrow as pa  # noqa: PLC0415 - of an extra
            from pyarrow import parquet  # noqa: PLC0415

            from streamsvm.stream.tables import arrow_columns  # noqa: PLC0415
        except ImportError as error:
            raise missing_package_error(f"{path}: a Parquet or Arrow file", "pyarrow", "files", error) from error
        self._errors, self._arrow, self._field_of = (
            arrow_columns.ERRORS,
            arrow_columns.ArrowColumnReader(),
            arrow_columns.get_nested_field,
        )
        try:
            size = Path(path).stat().st_size  # both formats have their index at the ends
            self._digest = digest_file_ends(path, size, f"{size}:")
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
        columns = [column for field in schema for column in _leaf_columns(_Column((field.name,)), field.type)]
        names, structs = [column.name for column in columns], {name for column in columns for name in column.path[:-1]}
        if problem := self._parser.find_column_problem(names, label if label_needed else None, structs):
            self._open.close()
            raise StreamError(f"{path}: {problem}")
        self._all = columns
        dropped = {*self._parser.columns_of_kind(DROP), *(name for name in names if self._parser.get_kind(name) == DROP)} - {
            label
        }
        self._read = [column for column in columns if dropped.isdisjoint(column.path)]
        self._kept: list[_Column] = []
        self.columns: Sequence[str] = [column.name for column in self._read]
        self._batch: tuple[Any, int] = None, 0  # that is being read, and the number of its rows that were returned
        self._batches: Iterator[Any] | None = None

    def read(self, max_rows: int) -> Chunk | None:
        self._has_started = True
        if self._batches is None:
            self._batches = self._batches_after(self._rows)
        batch, n_read = self._batch
        while not self._stopped and (batch is None or n_read == batch.num_rows):
            with self._reading_after(self._rows):
                batch, n_read = next(self._batches, None), 0
            if batch is None:
                return None
        if self._stopped:
            return None
        part, first = batch.slice(n_read, max_rows), self._rows + 1
        self._batch = batch, n_read + part.num_rows
        with self._reading_after(self._rows):
            columns = self._read_columns(part)
            copies = [self._arrow.read_objects(column.name, self._array_of(part, column)) for column in self._kept]
        self._rows += part.num_rows
        return BatchChunk(columns, self._parser, lambda i: f"{self.name}, row {first + i:,}", copies)

    def _read_columns(self, batch: Any) -> Table:
        """Return a batch in columns, as it is in the file."""
        columns: dict[Hashable, Values] = {}
        y: list[Any] = [None] * batch.num_rows
        for column in self._read:
            values = self._array_of(batch, column)
            if column.name == self._label:
                y = self._arrow.read_labels(column.name, values)
            else:
                columns[column.name] = self._arrow.read_values(column.name, values)
        return Table(tuple(columns), list(columns.values()), y)

    def _array_of(self, batch: Any, column: _Column) -> Any:
        return self._field_of(batch.column(column.path[0]), column.places)

    @contextlib.contextmanager
    def _reading_after(self, row: int) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise StreamError(f"{self.name}, after row {row:,}: {error}") from error

    def _batches_after(self, skipped: int) -> Iterator[Any]:
        # Batches of at most `_ROWS_AT_ONCE` rows, without the first rows; parts of the file that have only these are not read.
        fields = list(dict.fromkeys(column.path[0] for column in (*self._read, *self._kept)))
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
                batches = self._file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=fields, use_threads=False)
            else:
                batch = self._file.get_batch(group).select(fields)
                batch.validate(full=True)  # pyarrow reads wherever the offsets of a corrupt file say
                batches = iter([batch])
            for batch in batches:
                for begin in range(min(skipped, batch.num_rows), batch.num_rows, _ROWS_AT_ONCE):
                    yield batch.slice(begin, _ROWS_AT_ONCE)
                skipped -= min(skipped, batch.num_rows)

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns, as `Source.request_passthrough`; raise a StreamError if the file lacks one of them."""
        within = {name: column.upto(name) for column in reversed(self._all) for name in column.path}
        if missing := [name for name in names if name not in within]:
            columns = ", ".join(column.name for column in self._all)
            raise StreamError(f"{self.name}: there is no column {missing[0]!r} to pass through. It has: {columns}")
        self._kept = [within[name] for name in names]
        return super().request_passthrough(names)

    @property
    def position(self) -> Position:
        """Where the next row is: the number of rows returned, a digest of the file, the label, and how columns are read."""
        return self._parser_position | {"rows": self._rows, "file_digest": self._digest, "label": self._label}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; another label, and columns that are read in another way are errors, too."""
        self._check_not_started()
        rows = position.get("rows")
        if not {"rows", "file_digest", "label"} <= position.keys() or type(rows) is not int or not 0 <= rows < 2**63:
            raise self._foreign_position_error(position)
        if position["file_digest"] != self._digest:
            raise StreamError(f"{self.name} is not the file of the checkpoint, or was rewritten. Give that file, {START_AFRESH}")
        self._check_columns(position)
        self._rows = rows

    def stop(self) -> None:
        """End before the next row."""
        self._stopped = True

    def close(self) -> None:
        """Close the file."""
        self._open.close()


class BatchChunk(Chunk):
    """Rows of a record batch, with columns as the file has them."""

    def __init__(self, columns: Table, parser: TableParser, place: Callable[[int], str], copies: Sequence[Sequence[Any]]) -> None:
        super().__init__(columns, place, passthrough_columns=copies)
        self._columns, self._parser = columns, parser

    @cached_property
    def _converted_rows(self) -> list[Row]:
        columns, parser = self._columns, self._parser
        lists = [values.tolist() if isinstance(values, np.ndarray) else values for values in columns.columns]
        rows = zip(columns.y or (), *lists, strict=True)
        return [Row(parser.parse_row(zip(columns.names, cells, strict=True)), parser.parse_label(y)) for y, *cells in rows]

    @cached_property
    def _converted_table(self) -> Table:
        return self._parser.parse_table(self._columns)

    def read_row(self, i: int) -> Row:
        return self._converted_rows[i]

    def read_table(self, known: Sequence[Hashable]) -> Table:  # noqa: ARG002
        return self._converted_table


class _Column(NamedTuple):
    """A column of a file, which may be in structs."""

    path: tuple[str, ...]  # the names of the structs that it is in, and its own
    places: tuple[int, ...] = ()  # its number in each of them

    @property
    def name(self) -> str:
        return self.path[-1]

    def upto(self, name: str) -> _Column:
        """Return the struct of a name that it is in, or itself."""
        end = self.path.index(name)
        return _Column(self.path[: end + 1], self.places[:end])


def _leaf_columns(column: _Column, kind: Any) -> Iterator[_Column]:
    """Give the columns that one of a type is read as: of structs those that are in them."""
    fields = [kind.field(i) for i in range(kind.num_fields)] if str(kind).startswith("struct<") else []
    if not fields or len(column.path) == MAX_DEPTH:
        yield column
        return
    for place, field in enumerate(fields):
        yield from _leaf_columns(_Column((*column.path, f"{column.name}.{field.name}"), (*column.places, place)), field.type)
