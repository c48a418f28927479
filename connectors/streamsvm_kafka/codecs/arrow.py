"""Rows as Arrow record batches, many a message, and the memory that they ask for, read from metadata before Arrow reads them.

Arrow checks that a stream is well formed, not what it costs: a buffer may say that it is 2^40 bytes long when it is decompressed,
a batch that it has 2^40 rows of nothing, and a schema may name one long text, or one nested type, a million times. The layouts
are those of Arrow's ``Message.fbs`` and ``Schema.fbs``, in FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package, shown
from streamsvm.stream.tables.chunk import Table, Values
from streamsvm_kafka.codecs.protocol import OBJECT_BYTES, TableCodec, check_length, check_memory, labels_or_none

MAX_COLUMNS = 1 << 14
MAX_SCHEMA_BYTES = 1 << 20
MAX_PARTS = 1024  # batches, and dictionaries, of a message
MAX_TEXTS, MAX_TEXT_BYTES = 1 << 16, 4 << 20  # of names and annotations: one text may be named many times

_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_VERSION_5 = 4
_BYTE, _SHORT, _UNSIGNED_SHORT, _INT, _UNSIGNED, _LONG = (struct.Struct(f"<{code}") for code in "BhHiIq")
#: Names of types by their numbers in ``Schema.fbs``: those that a row may have, and the usual ones that it may not.
_TYPES = {1: "null", 2: "int", 3: "float", 4: "binary", 5: "text", 6: "bool", 7: "decimal", 8: "date", 9: "time", 10: "timestamp"}
_TYPES |= {12: "list", 13: "struct", 14: "union", 16: "list", 17: "map", 20: "text", 21: "list", 24: "string_view"}


class Column(NamedTuple):
    """A column of a schema."""

    name: str
    type: str
    extension: str  # the name of its extension type, or an empty text


class Survey(NamedTuple):
    """The memory that a stream asks for, and its schema."""

    schema: bytes  # the metadata of the schema
    rows: int  # of all batches
    entries: int  # of all dictionaries
    size: int  # bytes of all bodies after decompression


class _Table:
    """A table of a FlatBuffer. Reading beyond its bytes raises struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _number_at(_INT, data, at)
        self._size = _number_at(_UNSIGNED_SHORT, data, self._fields)

    def _place_of_field(self, field: int) -> int:
        """Where a field is; 0 if the table does not have it."""
        place = 4 + 2 * field
        offset = _number_at(_UNSIGNED_SHORT, self._data, self._fields + place) if place + 2 <= self._size else 0
        return offset and self._at + offset

    def number(self, field: int, kind: struct.Struct) -> int:
        at = self._place_of_field(field)
        return _number_at(kind, self._data, at) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._place_of_field(field)
        return _Table(self._data, at + _number_at(_UNSIGNED, self._data, at)) if at else None

    def vector(self, field: int) -> tuple[int, int]:
        """Where the items of a vector begin, and how many they are."""
        at = self._place_of_field(field)
        if not at:
            return 0, 0
        at += _number_at(_UNSIGNED, self._data, at)
        return at + 4, _number_at(_UNSIGNED, self._data, at)

    def tables(self, field: int) -> Iterator[_Table]:
        begin, count = self.vector(field)
        for at in range(begin, begin + 4 * count, 4):
            yield _Table(self._data, at + _number_at(_UNSIGNED, self._data, at))

    def text(self, field: int) -> bytes:
        begin, count = self.vector(field)
        return self._data[begin : begin + count]


class _Texts:
    """Counts names and annotations."""

    def __init__(self) -> None:
        self._count = self._bytes = 0

    def counted(self, text: bytes) -> bytes:
        self._count, self._bytes = self._count + 1, self._bytes + len(text)
        if self._count > MAX_TEXTS or self._bytes > MAX_TEXT_BYTES:
            raise ValueError("its names and annotations are too many or too long")
        return text

    def annotations(self, table: _Table, field: int) -> dict[bytes, bytes]:
        return {self.counted(each.text(0)): self.counted(each.text(1)) for each in table.tables(field)}


def survey_stream(value: bytes) -> Survey:
    """Return what a stream asks for.

    A ValueError says that it is no stream that has a schema first, and then batches and dictionaries; a struct.error that it ends
    too early, or points beyond its end.
    """
    schema: bytes | None = None
    rows = entries = size = 0
    texts = _Texts()
    for number, (metadata, body) in enumerate(_stream_parts(value)):
        if number > MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS} batches: make them larger")
        message = _root_table(metadata)
        if message.number(0, _SHORT) != _VERSION_5:
            raise ValueError("its metadata are of a version before Arrow 1.0")
        kind, header = message.number(1, _BYTE), message.table(2)
        texts.annotations(message, 4)
        if (kind == _SCHEMA) != (schema is None) or kind not in (_SCHEMA, _DICTIONARY, _BATCH) or header is None:
            raise ValueError("it must have one schema, and then batches")
        if kind == _SCHEMA:
            if len(metadata) > MAX_SCHEMA_BYTES:
                raise ValueError(f"its schema has {len(metadata)} bytes, more than {MAX_SCHEMA_BYTES}: send fewer columns")
            schema = metadata
            continue
        if kind == _DICTIONARY:
            if header.number(2, _BYTE):
                raise ValueError("a dictionary comes in parts (a delta): write the message with a writer of its own")
            header = header.table(1) or header
        count = header.number(0, _LONG)
        if count < 0:
            raise ValueError(f"a batch of {count} rows")
        rows, entries = (rows + count, entries) if kind == _BATCH else (rows, entries + count)
        size += _unpacked_size(header, metadata, value, *body)
    if schema is None:
        raise ValueError("it is empty")
    return Survey(schema, rows, entries, size)


def columns_of(schema: bytes) -> list[Column]:
    """Return the columns that a schema has, from its metadata; struct.error if these point beyond their end.

    A ValueError says that there are too many, one holds others, or two have one name.
    """
    header = _root_table(schema).table(2)
    if header is None or header.vector(1)[1] > MAX_COLUMNS:
        raise ValueError(f"it has no columns, or more than {MAX_COLUMNS}")
    texts = _Texts()
    texts.annotations(header, 2)
    columns: dict[str, Column] = {}
    for field in header.tables(1):
        name = texts.counted(field.text(0)).decode()
        annotations = texts.annotations(field, 6)
        number = field.number(2, _BYTE)
        kind = _TYPES.get(number, f"number {number}")
        if field.vector(5)[1]:
            raise ValueError(f"column {shown(name)} holds others ({kind}): drop it, or send what it holds as columns")
        extension = annotations.get(b"ARROW:extension:name", b"").decode()
        if name in columns:
            raise ValueError(f"two columns have the name {shown(name)}")
        columns[name] = Column(name, kind, extension)
    return list(columns.values())


def _stream_parts(value: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """The metadata of each message of the stream, and where its body begins and ends."""
    at = 0
    while at < len(value):
        if value[at : at + 4] != _CONTINUES:
            raise ValueError("it is damaged, or written by Arrow before 0.15")
        length = _number_at(_INT, value, at + 4)
        if length == 0:
            if at + 8 < len(value):
                raise ValueError(f"{len(value) - at - 8} bytes follow its end: send one stream a message")
            return
        at += 8
        if not 0 < length <= len(value) - at:
            raise ValueError("it ends too early")
        metadata = value[at : at + length]
        begin = at + length
        at = begin + _root_table(metadata).number(3, _LONG)
        if not begin <= at <= len(value):
            raise ValueError("it ends too early")
        yield metadata, (begin, at)


def _unpacked_size(batch: _Table, metadata: bytes, value: bytes, begin: int, end: int) -> int:
    """Bytes of the body of a batch after decompression."""
    if batch.table(3) is None:
        return end - begin
    first, count = batch.vector(2)
    buffers = np.frombuffer(metadata[first : first + 16 * count], "<i8").reshape(-1, 2).tolist()
    size = 0
    for offset, length in buffers:
        if length == 0:
            continue
        if offset < 0 or length < 8 or begin + offset + length > end:
            raise ValueError("a buffer lies outside its batch")
        unpacked = _number_at(_LONG, value, begin + offset)  # before the compressed bytes; -1: they are not compressed
        if unpacked < -1:
            raise ValueError(f"a buffer of {unpacked} bytes")
        size += length if unpacked == -1 else unpacked
    return size


def _root_table(metadata: bytes) -> _Table:
    return _Table(metadata, _number_at(_UNSIGNED, metadata, 0))


def _number_at(kind: struct.Struct, data: bytes, at: int) -> int:
    if at < 0:  # struct counts from the end
        raise struct.error("it points beyond its beginning")
    number: int = kind.unpack_from(data, at)[0]
    return number


_READ = ("int", "float", "bool", "decimal", "null", "text")
_LARGEST_SCALES = {32: 9, 64: 18, 128: 38, 256: 76}  # of decimals, by their bits
_SCHEMAS = 16  # that are remembered: of producers of several versions


class _Plan(NamedTuple):
    """How batches of one schema are read."""

    names: tuple[str, ...]
    features: list[tuple[int, bool]]  # the place of each column, and whether it is read as objects
    label: int | None  # the place of the label's column
    objects: int  # number of those that are read as objects
    text: bool  # whether a column is text, labels included


class ArrowCodec(TableCodec):
    """Codec of Arrow record batches, many rows in each message.

    A message is an Arrow stream (IPC) of one or several batches, which pyarrow reads (``streamsvm[files]``). A column is a
    feature: text, or numbers of any width, decimals or booleans, all read as float32 unless they are dictionary-encoded. A null,
    or NaN, means that the row does not have the feature. The label's column may be text, numbers or booleans. A null there, or
    NaN, is a row without a label, as are all rows of a message without that column. The columns may differ from message to
    message.

    The metadata of a message says how much memory it needs before it is decoded. More than 64 MiB is an error, however well the
    message is compressed (LZ4, Zstandard). Columns of other types, two columns of one name, and a dictionary in parts are
    errors too.

    Parameters
    ----------
    label
        Name of the label's column. None if the messages have none.

    Raises
    ------
    ModuleNotFoundError
        pyarrow is not installed (extra ``files``).

    Examples
    --------
    >>> codec = ArrowCodec(label="y")
    >>> codec.decode_rows(codec.encode_rows(Table(("age",), [np.array([31, np.nan], np.float32)], ["a", None])))
    Table(names=('age',), columns=[array([31., nan], dtype=float32)], y=['a', None], ...)

    As other programs write it:

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"age": [31, 40], "city": ["Oslo", None], "y": [0, 1]})
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, batch.schema) as stream:
    ...     stream.write_batch(batch)
    >>> codec.decode_rows(sink.getvalue().to_pybytes())
    Table(names=('age', 'city'), columns=[array([31., 40.], dtype=float32), ['Oslo', None]], y=[0, 1], ...)
    """

    name = "arrow"

    def __init__(self, label: str | None) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - of an extra

            from streamsvm.stream.tables import arrow_columns  # noqa: PLC0415
        except ImportError as error:
            raise missing_package("an Arrow message", "pyarrow", "files", error) from error
        self.label = label
        self._pa: Any = pa
        self._options = pa.ipc.IpcReadOptions(use_threads=False)
        self._arrow: Any = arrow_columns
        self._plans: dict[bytes, _Plan] = {}  # by the metadata of the schema

    def decode_rows(self, value: bytes) -> Table:
        """Decode a stream of batches; raise a ValueError if the message does not have the class's form."""
        return self.decode_rows_kept(value, ())[0]

    def decode_rows_kept(self, value: bytes, names: Sequence[str]) -> tuple[Table, list[Any]]:
        check_length(value)
        if value[:6] == b"ARROW1":
            raise ValueError("an Arrow file; a message is an Arrow stream (pyarrow.ipc.new_stream)")
        try:
            found = survey_stream(value)
            plan = self._plans.get(found.schema)
            columns = columns_of(found.schema) if plan is None else None
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"not an Arrow stream: {error}") from None
        if columns is not None:
            for column in columns:
                self._check_column(column)
        try:
            reader = self._pa.ipc.open_stream(self._pa.py_buffer(value), options=self._options)
            if plan is None:
                plan = self._planned_read(found.schema, reader.schema)
            rows, size = found.rows + found.entries, found.size * (5 if plan.text else 1)
            check_memory(rows, len(plan.names), size + rows * OBJECT_BYTES * plan.objects)
            return self._read_rows(reader, plan, found.rows, names)
        except self._arrow.ERRORS as error:
            raise ValueError(f"not an Arrow stream: {error}") from None

    def encode_rows(self, rows: Table) -> bytes:
        """Encode rows as one batch, of float32 columns if the table is of such.

        Raise a ValueError if a name is not a text, or labels are of several types.
        """
        for name in rows.names:
            if not isinstance(name, str):
                raise ValueError(f"feature {shown(name)}: the name of an Arrow column is a text")
        names: list[Any] = list(rows.names)
        columns = [self._pa.array(column, from_pandas=True) for column in rows.columns]
        if rows.y is not None and (self.label is not None or labels_or_none(rows.y, names)):
            if self.label is None:
                raise ValueError("the rows have labels, but the codec has no name for them: give ArrowCodec(label=...)")
            if self.label in names:
                raise ValueError(f"{self.label!r} is the name of the label and of a feature")
            names.append(self.label)
            try:
                columns.append(self._pa.array(rows.y))
            except (*self._arrow.ERRORS, TypeError) as error:
                raise ValueError(f"the labels cannot be written as an Arrow column: {error}") from None
        schema = self._pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])
        sink = self._pa.BufferOutputStream()
        with self._pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(self._pa.record_batch(columns, schema=schema))
        written: bytes = sink.getvalue().to_pybytes()
        return written

    def _check_column(self, column: Column) -> None:
        """ValueError if a column can be neither label nor feature."""
        name, kind = shown(column.name), column.type
        if column.extension:
            raise ValueError(f"column {name} is of the extension type {shown(column.extension)}: send what it is stored as")
        if kind not in _READ:
            if column.name == self.label:
                raise ValueError(f"column {name} of the label is of type {kind}: send text, numbers or booleans")
            raise ValueError(f"column {name} is of type {kind}, and features are numbers: drop the column, or send numbers")

    def _planned_read(self, metadata: bytes, schema: Any) -> _Plan:
        names, types = schema.names, self._pa.types
        held = [kind.value_type if types.is_dictionary(kind) else kind for kind in schema.types]
        for kind in filter(types.is_decimal, held):
            if abs(kind.scale) > _LARGEST_SCALES[kind.bit_width]:  # with which pyarrow reads beyond its powers of ten
                raise ValueError(f"a decimal column ({kind}) has the scale {kind.scale}: send floats")
        texts = list(map(self._arrow.is_text, held))
        as_objects = [texts[place] or types.is_dictionary(kind) for place, kind in enumerate(schema.types)]
        features = [(place, as_objects[place]) for place, name in enumerate(names) if name != self.label]
        label = names.index(self.label) if self.label in names else None
        objects = sum(is_object for _, is_object in features)
        plan = _Plan(tuple(names[place] for place, _ in features), features, label, objects, any(texts))
        if len(self._plans) >= _SCHEMAS:
            self._plans.clear()
        self._plans[metadata] = plan
        return plan

    def _read_rows(self, reader: Any, plan: _Plan, rows: int, names: Sequence[str]) -> tuple[Table, list[Any]]:
        columns: list[Values] = [[] if is_object else np.empty(rows, np.float32) for _, is_object in plan.features]
        y: list[Any] = []
        kept: list[tuple[int, list[Any]]] = [(reader.schema.get_field_index(name), []) for name in names]
        read, numbers_of = self._arrow.ArrowColumns(self._objects_of), self._arrow.numbers_of
        begin = 0
        for batch in reader:
            batch.validate(full=True)  # pyarrow reads wherever the offsets of a damaged message say
            if batch.num_rows == 0:
                continue
            end = begin + batch.num_rows
            with np.errstate(over="ignore", invalid="ignore"):  # a number beyond float32 is infinite, and then the row is refused
                for values, (place, is_object) in zip(columns, plan.features, strict=True):
                    column = batch.column(place)
                    values[begin:end] = read.objects(place, column) if is_object else numbers_of(column, np.float32)
            if plan.label is not None:
                y += read.labels(plan.label, batch.column(plan.label))
            for place, parts in kept:
                parts += [] if place < 0 else [batch.column(place)]
            begin = end
        if begin != rows:
            raise ValueError(f"not an Arrow stream: {begin} rows, not {rows}")
        if plan.label is None:
            y = [None] * rows
        table = Table(plan.names, columns, labels_or_none(y, plan.names))
        return table, [self._pa.chunked_array(parts) if parts else None for _, parts in kept]

    def _objects_of(self, column: Any) -> list[Any]:
        """The values of a column as Python has them, decimals as floats; None where there is none, or NaN."""
        if self._pa.types.is_decimal(column.type):
            column = column.cast(self._pa.float64())
        found: list[Any] = column.to_pylist()
        if self._pa.types.is_floating(column.type):
            return [None if value != value else value for value in found]
        return found
