"""Codec of Arrow record batches, many rows in each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.stream.tables.chunk import Table
from streamsvm_kafka.codecs.protocol import OBJECT_BYTES, TableCodec, check_decoded_size, check_message_size, none_if_all_missing

_MAX_DECIMAL_SCALES = {32: 9, 64: 18, 128: 38, 256: 76}  # by the bits of a decimal
_TEXT_FACTOR = 5  # memory of a text: up to 4 bytes in Python for each in Arrow, which is kept, too
_NO_NUMBERS = np.empty(0, np.float32)


class _ReadingPlan(NamedTuple):
    """How batches with a schema are read."""

    schema: Any
    names: tuple[str, ...]
    features: list[tuple[int, bool]]
    """The index of each feature's column, and whether it is read as Python objects."""
    label: int | None
    """The index of the label's column."""


class ArrowCodec(TableCodec):
    """Codec of Arrow record batches, many rows in each message.

    A message is an Arrow IPC stream of one or several batches, which pyarrow reads (``streamsvm[files]``). A column is a
    feature: text, or numbers of any width, decimals or booleans, all read as float32 unless they are dictionary-encoded. A null,
    or NaN, means that the row does not have the feature. The label's column may be text, numbers or booleans; a null or NaN is
    a row without a label, as are all rows of a message without that column. Messages may have different columns.

    A message is an error if its decoded rows need more than 64 MiB, if a column has another type, or if two columns have the same
    name. The limit of memory does not hold for compressed batches (LZ4, Zstandard): pyarrow decompresses them to the size that
    the message states.

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

    A message as other programs write it:

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
        self._plan: _ReadingPlan | None = None  # for the schema of the last message

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
        """Encode a table of rows as an Arrow IPC stream with one record batch, and return its bytes. Numeric columns keep their
        dtype, such as float32.

        Raise a ValueError if a name is not a text, or labels have different types.
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
        value: bytes = sink.getvalue().to_pybytes()
        return value

    def _plan_reading(self, schema: Any) -> _ReadingPlan:
        """Return a plan that tells which columns of an Arrow schema are features and which is the label, to be reused for
        messages with the same schema. Raise a ValueError if the type of a column is unsupported, or a name occurs twice.
        """
        names, label, features = schema.names, None, []
        if len(set(names)) < len(names):
            raise ValueError(f"two columns have the name {short_repr(max(names, key=Counter(names).__getitem__))}")
        for i, field in enumerate(schema):
            self._check_column(field)
            if field.name == self.label:
                label = i
            else:
                is_object = self._arrow.is_text(field.type) or self._pa.types.is_dictionary(field.type)
                features.append((i, is_object))
        return _ReadingPlan(schema, tuple(names[i] for i, _ in features), features, label)

    def _check_column(self, field: Any) -> None:
        """Raise a ValueError if the type of an Arrow schema's ``field`` is unsupported: neither number, boolean, text nor null,
        or a decimal with too large a scale.
        """
        types, name, kind = self._pa.types, short_repr(field.name), field.type
        if isinstance(kind, self._pa.BaseExtensionType) or b"ARROW:extension:name" in (field.metadata or ()):
            raise ValueError(f"column {name} is of an extension type: send what it is stored as")
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_decimal(kind) and abs(kind.scale) > _MAX_DECIMAL_SCALES[kind.bit_width]:
            # pyarrow would read beyond the end of its table of powers of ten.
            raise ValueError(f"column {name} is a decimal ({kind}) with the scale {kind.scale}: send floats")
        if not (self._arrow.is_number(kind) or self._arrow.is_text(kind) or types.is_boolean(kind) or types.is_null(kind)):
            advice = "send text, numbers or booleans" if field.name == self.label else "drop the column, or send numbers"
            raise ValueError(f"column {name} is of type {short_repr(str(kind))}: {advice}")

    def _read_rows(self, stream: Any, plan: _ReadingPlan, names: Sequence[str]) -> tuple[Table, list[Any]]:
        """Read all record batches of an open Arrow stream. Return a `Table` of their rows, whose features and label are chosen by
        ``plan``, and a list of the columns ``names`` as Arrow arrays, not converted; None stands for a missing column.
        """
        columns: list[list[Any]] = [[] for _ in plan.features]  # arrays of batches, or Python objects
        y: list[Any] = []
        copied: list[tuple[int, list[Any]]] = [(stream.schema.get_field_index(name), []) for name in names]
        n_rows = object_bytes = 0

        def read_objects(column: Any) -> list[Any]:
            nonlocal object_bytes
            object_bytes += len(column) * OBJECT_BYTES + _TEXT_FACTOR * column.nbytes
            check_decoded_size(n_rows, len(plan.names), object_bytes)
            return self._to_python_objects(column)

        reader, to_float_array = self._arrow.ArrowColumnReader(read_objects), self._arrow.to_float_array
        for batch in stream:
            n_rows += batch.num_rows
            check_decoded_size(n_rows, len(plan.names), object_bytes)
            batch.validate(full=True)  # pyarrow would follow the invalid offsets of a damaged message
            if batch.num_rows == 0:
                continue
            with np.errstate(over="ignore", invalid="ignore"):  # a number beyond float32 becomes infinite, and its row is refused
                for values, (i, is_object) in zip(columns, plan.features, strict=True):
                    column = batch.column(i)
                    if is_object:
                        values += reader.read_objects(i, column)
                    else:
                        values.append(to_float_array(column, np.float32))
            if plan.label is not None:
                y += reader.read_labels(plan.label, batch.column(plan.label))
            for i, arrays in copied:
                arrays += [] if i < 0 else [batch.column(i)]
        table_columns = [
            values if is_object else values[0] if len(values) == 1 else np.concatenate([_NO_NUMBERS, *values])
            for values, (_, is_object) in zip(columns, plan.features, strict=True)
        ]
        if plan.label is None:
            y = [None] * n_rows
        table = Table(plan.names, table_columns, none_if_all_missing(y, plan.names))
        return table, [self._pa.chunked_array(arrays) if arrays else None for _, arrays in copied]

    def _to_python_objects(self, column: Any) -> list[Any]:
        """Convert an Arrow column to a list of Python objects. Decimals become floats; nulls and NaN become None."""
        if self._pa.types.is_decimal(column.type):
            column = column.cast(self._pa.float64())
        values: list[Any] = column.to_pylist()
        if self._pa.types.is_floating(column.type):
            return [None if value != value else value for value in values]
        return values
