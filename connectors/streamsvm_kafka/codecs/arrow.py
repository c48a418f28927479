"""Rows as Arrow record batches, many a message."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package, shown
from streamsvm.stream.tables.chunk import Table, Values
from streamsvm_kafka.codecs.arrow_stream import Column, columns_of, survey_stream
from streamsvm_kafka.codecs.protocol import OBJECT_BYTES, TableCodec, check_length, check_memory, labels_or_none

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
                self._check(column)
        try:
            reader = self._pa.ipc.open_stream(self._pa.py_buffer(value), options=self._options)
            if plan is None:
                plan = self._planned(found.schema, reader.schema)
            rows, size = found.rows + found.entries, found.size * (5 if plan.text else 1)
            check_memory(rows, len(plan.names), size + rows * OBJECT_BYTES * plan.objects)
            return self._read(reader, plan, found.rows, names)
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

    def _check(self, column: Column) -> None:
        """ValueError if a column can be neither label nor feature."""
        name, kind = shown(column.name), column.type
        if column.extension:
            raise ValueError(f"column {name} is of the extension type {shown(column.extension)}: send what it is stored as")
        if kind not in _READ:
            if column.name == self.label:
                raise ValueError(f"column {name} of the label is of type {kind}: send text, numbers or booleans")
            raise ValueError(f"column {name} is of type {kind}, and features are numbers: drop the column, or send numbers")

    def _planned(self, metadata: bytes, schema: Any) -> _Plan:
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

    def _read(self, reader: Any, plan: _Plan, rows: int, names: Sequence[str]) -> tuple[Table, list[Any]]:
        columns: list[Values] = [[] if is_object else np.empty(rows, np.float32) for _, is_object in plan.features]
        y: list[Any] = []
        kept: list[tuple[int, list[Any]]] = [(reader.schema.get_field_index(name), []) for name in names]
        read, numbers_of = self._arrow.ArrowColumns(self._objects), self._arrow.numbers_of
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

    def _objects(self, column: Any) -> list[Any]:
        """The values of a column as Python has them, decimals as floats; None where there is none, or NaN."""
        if self._pa.types.is_decimal(column.type):
            column = column.cast(self._pa.float64())
        found: list[Any] = column.to_pylist()
        if self._pa.types.is_floating(column.type):
            return [None if value != value else value for value in found]
        return found
