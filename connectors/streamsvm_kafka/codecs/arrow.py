"""Rows as Arrow record batches, many a message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.stream.tables.chunk import Table
from streamsvm_kafka.codecs.protocol import OBJECT_BYTES, TableCodec, check_decoded_size, check_message_size, none_if_all_missing

_LARGEST_SCALES = {32: 9, 64: 18, 128: 38, 256: 76}  # of decimals, by their bits
_TEXT_FACTOR = 5  # a text in Python may take 4 bytes for one in Arrow, and has a copy there
_NO_NUMBERS = np.empty(0, np.float32)


class _Plan(NamedTuple):
    """How batches of one schema are read."""

    schema: Any
    names: tuple[str, ...]
    features: list[tuple[int, bool]]  # the place of each column, and whether it is read as objects
    label: int | None  # the place of the label's column


class ArrowCodec(TableCodec):
    """Codec of Arrow record batches, many rows in each message.

    A message is an Arrow stream (IPC) of one or several batches, which pyarrow reads (``streamsvm[files]``). A column is a
    feature: text, or numbers of any width, decimals or booleans, all read as float32 unless they are dictionary-encoded. A null,
    or NaN, means that the row does not have the feature. The label's column may be text, numbers or booleans. A null there, or
    NaN, is a row without a label, as are all rows of a message without that column. The columns may differ from message to
    message.

    Rows that take more than 64 MiB when they are decoded are an error. pyarrow itself decompresses a batch (LZ4, Zstandard) to
    whatever size the message states. Columns of other types, and two columns with one name, are errors too.

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
            raise missing_package_error("an Arrow message", "pyarrow", "files", error) from error
        self.label = label
        self._pa: Any = pa
        self._options = pa.ipc.IpcReadOptions(use_threads=False)
        self._arrow: Any = arrow_columns
        self._plan: _Plan | None = None  # of the last message

    def decode_rows(self, value: bytes) -> Table:
        """Decode a stream of batches; raise a ValueError if the message does not have the class's form."""
        return self.decode_rows_with_columns(value, ())[0]

    def decode_rows_with_columns(self, value: bytes, names: Sequence[str]) -> tuple[Table, list[Any]]:
        check_message_size(value)
        if value[:6] == b"ARROW1":
            raise ValueError("an Arrow file; a message is an Arrow stream (pyarrow.ipc.new_stream)")
        source = self._pa.BufferReader(value)
        try:
            reader = self._pa.ipc.open_stream(source, options=self._options)
            if self._plan is None or not reader.schema.equals(self._plan.schema, check_metadata=True):
                self._plan = self._plan_reading(reader.schema)
            decoded = self._read_rows(reader, self._plan, names)
        except self._arrow.ERRORS as error:
            raise ValueError(f"not an Arrow stream: {error}") from None
        if source.tell() < len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes follow its end: send one stream a message")
        return decoded

    def encode_rows(self, rows: Table) -> bytes:
        """Encode rows as one batch, of float32 columns if the table is of such.

        Raise a ValueError if a name is not a text, or labels are of several types.
        """
        for name in rows.names:
            if not isinstance(name, str):
                raise ValueError(f"feature {short_repr(name)}: the name of an Arrow column is a text")
        names: list[Any] = list(rows.names)
        columns = [self._pa.array(column, from_pandas=True) for column in rows.columns]
        if rows.y is not None and (self.label is not None or none_if_all_missing(rows.y, names)):
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

    def _plan_reading(self, schema: Any) -> _Plan:
        """Check the columns of a schema, and plan how they are read; ValueError for one that can be neither label nor feature."""
        names, label, features = schema.names, None, []
        if len(set(names)) < len(names):
            raise ValueError(f"two columns have the name {short_repr(max(names, key=Counter(names).__getitem__))}")
        for place, field in enumerate(schema):
            self._check_column(field)
            if field.name == self.label:
                label = place
            else:
                is_object = self._arrow.is_text(field.type) or self._pa.types.is_dictionary(field.type)
                features.append((place, is_object))
        return _Plan(schema, tuple(names[place] for place, _ in features), features, label)

    def _check_column(self, field: Any) -> None:
        types, name, kind = self._pa.types, short_repr(field.name), field.type
        if isinstance(kind, self._pa.BaseExtensionType) or b"ARROW:extension:name" in (field.metadata or ()):
            raise ValueError(f"column {name} is of an extension type: send what it is stored as")
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_decimal(kind) and abs(kind.scale) > _LARGEST_SCALES[kind.bit_width]:
            # pyarrow reads beyond its table of powers of ten.
            raise ValueError(f"column {name} is a decimal ({kind}) with the scale {kind.scale}: send floats")
        if not (self._arrow.is_number(kind) or self._arrow.is_text(kind) or types.is_boolean(kind) or types.is_null(kind)):
            wanted = "send text, numbers or booleans" if field.name == self.label else "drop the column, or send numbers"
            raise ValueError(f"column {name} is of type {short_repr(str(kind))}: {wanted}")

    def _read_rows(self, reader: Any, plan: _Plan, names: Sequence[str]) -> tuple[Table, list[Any]]:
        columns: list[list[Any]] = [[] for _ in plan.features]  # batches, or objects
        y: list[Any] = []
        kept: list[tuple[int, list[Any]]] = [(reader.schema.get_field_index(name), []) for name in names]
        rows = size = 0

        def read_objects(column: Any) -> list[Any]:
            nonlocal size
            size += len(column) * OBJECT_BYTES + _TEXT_FACTOR * column.nbytes
            check_decoded_size(rows, len(plan.names), size)
            return self._objects_of(column)

        read, to_float_array = self._arrow.ArrowColumnReader(read_objects), self._arrow.to_float_array
        for batch in reader:
            rows += batch.num_rows
            check_decoded_size(rows, len(plan.names), size)
            batch.validate(full=True)  # pyarrow reads wherever the offsets of a damaged message say
            if batch.num_rows == 0:
                continue
            with np.errstate(over="ignore", invalid="ignore"):  # a number beyond float32 is infinite, and then the row is refused
                for values, (place, is_object) in zip(columns, plan.features, strict=True):
                    column = batch.column(place)
                    if is_object:
                        values += read.read_objects(place, column)
                    else:
                        values.append(to_float_array(column, np.float32))
            if plan.label is not None:
                y += read.read_labels(plan.label, batch.column(plan.label))
            for place, parts in kept:
                parts += [] if place < 0 else [batch.column(place)]
        together = [
            values if is_object else values[0] if len(values) == 1 else np.concatenate([_NO_NUMBERS, *values])
            for values, (_, is_object) in zip(columns, plan.features, strict=True)
        ]
        if plan.label is None:
            y = [None] * rows
        table = Table(plan.names, together, none_if_all_missing(y, plan.names))
        return table, [self._pa.chunked_array(parts) if parts else None for _, parts in kept]

    def _objects_of(self, column: Any) -> list[Any]:
        """The values of a column as Python has them, decimals as floats; None where there is none, or NaN."""
        if self._pa.types.is_decimal(column.type):
            column = column.cast(self._pa.float64())
        values: list[Any] = column.to_pylist()
        if self._pa.types.is_floating(column.type):
            return [None if value != value else value for value in values]
        return values
