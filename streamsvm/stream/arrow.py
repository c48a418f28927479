"""The source of Parquet and Arrow files, which pyarrow reads batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from streamsvm.files.messages import missing_package_error, suggest_name
from streamsvm.stream.endpoints import ForeignPositionError, Position, StreamError
from streamsvm.stream.lines import digest_file_ends
from streamsvm.stream.sources import TableSource
from streamsvm.stream.tables.chunk import Chunk, Row, Table, Values
from streamsvm.stream.tables.column_kinds import DROP
from streamsvm.stream.tables.table_parser import ParserOptions, TableParser
from streamsvm.stream.tables.values import MAX_DEPTH

#: The names of the formats.
KINDS = ("parquet", "arrow")
_BATCH_ROWS = 1024


class ArrowSource(TableSource):
    """Rows of a Parquet file or an Arrow file (IPC, also called Feather), or of a file with an Arrow stream.

    It needs pyarrow (``streamsvm[files]``). Numbers, booleans, texts and times become Python objects, and a null is a missing
    feature. The fields of a struct become columns named by their path (``after.amount``). Memory holds at most 1,024 rows as
    Python objects, and for Parquet also the pages that pyarrow decodes. Such files are never appended to, so a run can resume
    only with the same file: it must have the same size, and the same first and last 64 KiB.

    Parameters
    ----------
    path
        Path of the file.
    label
        Name of the label's column. None if the rows have no label.
    kind
        ``"parquet"`` or ``"arrow"``. None goes by the file's suffix (``.parquet``, else Arrow).
    label_needed
        Whether a file without a column of the label is an error. If not, its rows have no label.
    columns_needed
        Whether a file that lacks one of ``columns`` is an error. If not, its rows miss it.
    **parser_options
        How columns are read: ``columns``, ``missing`` and ``decimal``, as in
        `streamsvm.stream.tables.TableParser`.

    Raises
    ------
    StreamError
        The file does not have that format, or lacks a requested column; while you iterate, also if it is corrupt.
    ModuleNotFoundError
        pyarrow is not installed (extra ``files``).
    ValueError
        Two options for a column contradict each other.

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
        columns_needed: bool = True,
        **parser_options: Unpack[ParserOptions],
    ) -> None:
        super().__init__(label, parser_options)
        self.name: str = str(path)
        self._kind = kind or ("parquet" if self.name.lower().endswith(".parquet") else "arrow")
        self._rows = 0
        self._stopped = False
        self._exit_stack = contextlib.ExitStack()
        try:
            import pyarrow as pa  # noqa: PLC0415 - of an extra
            from pyarrow import parquet  # noqa: PLC0415

            from streamsvm.stream.tables import arrow_columns  # noqa: PLC0415
        except ImportError as error:
            raise missing_package_error(f"{path}: a Parquet or Arrow file", "pyarrow", "files", error) from error
        self._errors, self._arrow = arrow_columns.ERRORS, arrow_columns.ArrowColumnReader()
        self._get_nested_field = arrow_columns.get_nested_field
        try:
            size = Path(path).stat().st_size  # both formats have their index at the end
            self._digest = digest_file_ends(path, size, f"{size}:")
            if self._kind == "parquet":
                self._file: Any = self._exit_stack.enter_context(parquet.ParquetFile(path))
                schema = self._file.schema_arrow
            else:
                mapped = self._exit_stack.enter_context(pa.memory_map(self.name))
                is_stream = mapped.read_at(4, 0) == b"\xff\xff\xff\xff"
                self._file = self._exit_stack.enter_context((pa.ipc.open_stream if is_stream else pa.ipc.open_file)(mapped))
                schema = self._file.schema
        except self._errors as error:
            self._exit_stack.close()
            raise StreamError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        columns = [column for field in schema for column in _iter_leaf_columns(_Column((field.name,)), field.type)]
        names, structs = [column.name for column in columns], {name for column in columns for name in column.path[:-1]}
        if problem := self._parser.find_column_problem(names, label if label_needed else None, structs, columns_needed):
            self._exit_stack.close()
            raise StreamError(f"{path}: {problem}")
        self._all_columns = columns
        dropped = {name for name in names if self._parser.get_kind(name) == DROP}
        dropped = dropped.union(self._parser.columns_of_kind(DROP)) - {label}
        self._columns = [column for column in columns if dropped.isdisjoint(column.path)]
        self._passthrough: list[_Column] = []
        self.columns: Sequence[str] = [column.name for column in self._columns]
        self._batch: tuple[Any, int] = None, 0  # the current batch, and the number of its rows that were returned
        self._batches: Iterator[Any] | None = None

    def read(self, max_rows: int) -> Chunk | None:
        self._has_started = True
        if self._batches is None:
            self._batches = self._iter_batches(self._rows)
        batch, n_read = self._batch
        while not self._stopped and (batch is None or n_read == batch.num_rows):
            with self._with_place(self._rows):
                batch, n_read = next(self._batches, None), 0
            if batch is None:
                return None
        if self._stopped:
            return None
        part, first = batch.slice(n_read, max_rows), self._rows + 1
        self._batch = batch, n_read + part.num_rows
        with self._with_place(self._rows):
            columns = self._read_columns(part)
            copies = [self._arrow.read_objects(column.name, self._get_array(part, column)) for column in self._passthrough]
        self._rows += part.num_rows
        return BatchChunk(columns, self._parser, lambda i: f"{self.name}, row {first + i:,}", copies)

    def _read_columns(self, batch: Any) -> Table:
        """Return the features and labels of ``batch`` (a pyarrow RecordBatch) as a `Table`, with one array or list of values per
        feature. Each label is missing (None) if the file has no label column.
        """
        columns: dict[Hashable, Values] = {}
        y: list[Any] = [None] * batch.num_rows
        for column in self._columns:
            values = self._get_array(batch, column)
            if column.name == self._label:
                y = self._arrow.read_labels(column.name, values)
            else:
                columns[column.name] = self._arrow.read_values(column.name, values)
        return Table(tuple(columns), list(columns.values()), y)

    def _get_array(self, batch: Any, column: _Column) -> Any:
        """Return the Arrow array of one column of ``batch`` (a pyarrow RecordBatch). ``column`` is a column of the file, or a
        field within its struct columns.
        """
        return self._get_nested_field(batch.column(column.path[0]), column.indices)

    @contextlib.contextmanager
    def _with_place(self, row: int) -> Iterator[None]:
        """Return a context manager that converts errors of pyarrow to a StreamError with the place "after row N", where N is
        ``row``.
        """
        try:
            yield
        except self._errors as error:
            raise StreamError(f"{self.name}, after row {row:,}: {error}") from error

    def _iter_batches(self, n_skipped: int) -> Iterator[Any]:
        """Yield pyarrow RecordBatches of at most 1,024 rows from this file, without its first ``n_skipped`` rows. Row groups that
        lie completely within the skipped rows are not read.
        """
        fields = list(dict.fromkeys(column.path[0] for column in (*self._columns, *self._passthrough)))
        if self._kind == "parquet":
            groups: Any = range(self._file.num_row_groups)
            sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        else:
            is_stream, sizes = not hasattr(self._file, "get_batch"), []
            groups = self._file if is_stream else map(self._file.get_batch, range(self._file.num_record_batches))
        for group in groups:
            if sizes and sizes[group] <= n_skipped:
                n_skipped -= sizes[group]
                continue
            if self._kind == "parquet":
                batches = self._file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=fields, use_threads=False)
            else:
                batch = group.select(fields)
                batch.validate(full=True)  # the offsets of a corrupt file could point outside its memory
                batches = iter([batch])
            for batch in batches:
                for start in range(min(n_skipped, batch.num_rows), batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(start, _BATCH_ROWS)
                n_skipped -= min(n_skipped, batch.num_rows)

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Request that `read` also returns the columns ``names`` unchanged, so that they can be copied into predictions. Return
        the names; raise a StreamError if the file lacks a column. Call it before the first `read`.
        """
        by_name = {name: column.get_struct(name) for column in reversed(self._all_columns) for name in column.path}
        if missing := [name for name in names if name not in by_name]:
            columns = [column.name for column in self._all_columns]
            text = f"there is no column {missing[0]!r} to pass through. It has: {', '.join(columns)}"
            raise StreamError(f"{self.name}: {text}{suggest_name(missing[0], columns)}")
        self._passthrough = [by_name[name] for name in names]
        return super().request_passthrough(names)

    @property
    def position(self) -> Position:
        """The position of the next row, as a dict: the number of rows read, a digest of the file, the label's name, and the
        parser options.
        """
        return self._parser_position | {"rows": self._rows, "file_digest": self._digest, "label": self._label}

    def seek(self, position: Position) -> None:
        """Continue reading at ``position``, the saved `position` of an earlier source. Raise a StreamError if the file, the label
        or the parser options have changed, and a RuntimeError if rows were read already.
        """
        self._check_not_started()
        rows = position.get("rows")
        if not {"rows", "file_digest", "label"} <= position.keys() or type(rows) is not int or not 0 <= rows < 2**63:
            raise self._foreign_position_error(position)
        self._check_columns(position)
        if position["file_digest"] != self._digest:
            raise ForeignPositionError(f"{self.name}: it is not the file of the checkpoint, or was rewritten")
        self._rows = rows

    def stop(self) -> None:
        """Make all further calls of `read` return None, as at the end of the file."""
        self._stopped = True

    def close(self) -> None:
        """Close the file."""
        self._exit_stack.close()


class BatchChunk(Chunk):
    """Rows of a record batch, whose columns are converted when they are needed."""

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

    def read_table(self, known_features: Sequence[Hashable]) -> Table:  # noqa: ARG002
        return self._converted_table


class _Column(NamedTuple):
    """A column of a file, which may be a field of nested structs."""

    path: tuple[str, ...]  # the names of the structs around it, from outside, and its own name
    indices: tuple[int, ...] = ()  # its index in each struct

    @property
    def name(self) -> str:
        return self.path[-1]

    def get_struct(self, name: str) -> _Column:
        """Return the struct column ``name`` that contains this field, such as ``a.b`` for the field ``a.b.c``; this column itself
        if ``name`` is its own name.
        """
        depth = self.path.index(name)
        return _Column(self.path[: depth + 1], self.indices[:depth])


def _iter_leaf_columns(column: _Column, kind: Any) -> Iterator[_Column]:
    """Yield ``column`` if its Arrow type ``kind`` is not a struct. Otherwise yield a column for each field of the struct, and for
    the fields of structs within it, up to a maximum depth.
    """
    fields = [kind.field(i) for i in range(kind.num_fields)] if str(kind).startswith("struct<") else []
    if not fields or len(column.path) == MAX_DEPTH:
        yield column
        return
    for i, field in enumerate(fields):
        yield from _iter_leaf_columns(_Column((*column.path, f"{column.name}.{field.name}"), (*column.indices, i)), field.type)
