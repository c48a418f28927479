"""Rows as Arrow record batches, many a message."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package, shown
from streamsvm.stream.endpoints import Rows
from streamsvm_kafka.codecs.arrow_stream import Column, columns_of, survey
from streamsvm_kafka.codecs.protocol import OneRow, check_length, check_memory

_NUMBERS = ("int", "float", "bool", "decimal", "null")
_LARGEST_SCALES = {32: 9, 64: 18, 128: 38, 256: 76}  # of decimals, by their bits
_SCHEMAS = 16  # that are remembered: of producers of several versions


class _Plan(NamedTuple):
    """How batches of one schema are read."""

    names: tuple[str, ...]
    features: list[tuple[int, _Numbers]]  # the place of each column, and how its values are read
    label: int | None  # the place of the label's column
    text: bool  # whether labels are text


class _Numbers(NamedTuple):
    """How the values of a column are read."""

    dtype: np.dtype[Any] | None  # None: all are null
    cast: Any  # the type of Arrow to which they are brought first; None: to none


class ArrowCodec(OneRow):
    """Codec of Arrow record batches, many rows in each message.

    A message is an Arrow stream (IPC) of one or several batches, which pyarrow reads (``streamsvm[files]``). A column is a
    feature: numbers of any width, decimals or booleans, all read as float32. A null, or NaN, means that the row does not have
    the feature. The label's column may be text, numbers or booleans, plain or dictionary-encoded. A null there, or NaN, is a
    row without a label, as are all rows of a message without that column. The columns may differ from message to message.

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
    >>> message = codec.encode_rows(Rows(("age", "height"), np.array([[31, 1.5], [40, np.nan]], np.float32), ["a", None]))
    >>> codec.decode_rows(message)
    Rows(names=('age', 'height'), X=array([[31. ,  1.5], [40. ,  nan]], dtype=float32), y=['a', None])

    As other programs write it:

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"age": [31, 40], "member": [True, None], "y": [0, 1]})
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, batch.schema) as stream:
    ...     stream.write_batch(batch)
    >>> codec.decode_rows(sink.getvalue().to_pybytes())
    Rows(names=('age', 'member'), X=array([[31.,  1.], [40., nan]], dtype=float32), y=[0, 1])
    """

    name = "arrow"

    def __init__(self, label: str | None) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise missing_package("an Arrow message", "pyarrow", "files", error) from error
        self.label = label
        self._pa: Any = pa
        self._options = pa.ipc.IpcReadOptions(use_threads=False)
        self._errors = (pa.ArrowException, OSError, OverflowError, SystemError)
        self._plans: dict[bytes, _Plan] = {}  # by the metadata of the schema

    def decode_rows(self, value: bytes) -> Rows:
        """Decode a stream of batches; raise a ValueError if the message does not have the class's form."""
        check_length(value)
        if value[:6] == b"ARROW1":
            raise ValueError("an Arrow file; a message is an Arrow stream (pyarrow.ipc.new_stream)")
        try:
            found = survey(value)
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
            check_memory(found.rows + found.entries, len(plan.names), found.size * (5 if plan.text else 1))
            return self._read(reader, plan, found.rows)
        except self._errors as error:
            raise ValueError(f"not an Arrow stream: {error}") from None

    def columns_of(self, value: bytes, names: Iterable[str]) -> list[Any]:
        """Return columns of a message that `decode_rows` has decoded, as pyarrow has them; None for one that is not there."""
        table = self._pa.ipc.open_stream(self._pa.py_buffer(value), options=self._options).read_all()
        return [table.column(name) if name in table.column_names else None for name in names]

    def encode_rows(self, rows: Rows) -> bytes:
        """Encode rows as one batch of float32 columns.

        Raise a ValueError if a name is not a text, or labels are of several types.
        """
        for name in rows.names:
            if not isinstance(name, str):
                raise ValueError(f"feature {shown(name)}: the name of an Arrow column is a text")
        names: list[Any] = list(rows.names)
        columns = [self._pa.array(np.ascontiguousarray(column), from_pandas=True) for column in rows.X.T]
        if rows.y is not None:
            if self.label is None:
                raise ValueError("the rows have labels, but the codec has no name for them: give ArrowCodec(label=...)")
            if self.label in names:
                raise ValueError(f"{self.label!r} is the name of the label and of a feature")
            names.append(self.label)
            try:
                columns.append(self._pa.array(list(rows.y)))
            except (*self._errors, TypeError) as error:
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
        if column.name == self.label:
            if column.type not in (*_NUMBERS, "text"):
                raise ValueError(f"column {name} of the label is of type {kind}: send text, numbers or booleans")
        elif column.dictionary:
            raise ValueError(f"column {name} has a dictionary, and is a feature: send its numbers, or drop the column")
        elif column.type == "text":
            raise ValueError(f"column {name} holds text, and features are numbers: drop the column, or send JSON or Avro rows")
        elif column.type not in _NUMBERS:
            raise ValueError(f"column {name} is of type {kind}, and features are numbers: drop the column, or send numbers")

    def _planned(self, metadata: bytes, schema: Any) -> _Plan:
        types, names, kinds = self._pa.types, schema.names, schema.types  # pyarrow makes the lists anew each time
        places = [place for place, name in enumerate(names) if name != self.label]
        features = [(place, self._numbers_of(kinds[place])) for place in places]
        label = names.index(self.label) if self.label in names else None
        kind = None if label is None else kinds[label]
        if kind is not None and types.is_dictionary(kind):
            kind = kind.value_type
        text = kind is not None and (types.is_string(kind) or types.is_large_string(kind))
        plan = _Plan(tuple(names[place] for place in places), features, label, text)
        if len(self._plans) >= _SCHEMAS:
            self._plans.clear()
        self._plans[metadata] = plan
        return plan

    def _numbers_of(self, kind: Any) -> _Numbers:
        types = self._pa.types
        if types.is_null(kind):
            return _Numbers(None, None)
        if types.is_boolean(kind):
            return _Numbers(np.dtype(np.uint8), self._pa.uint8())
        if types.is_decimal(kind):
            if abs(kind.scale) > _LARGEST_SCALES[kind.bit_width]:  # with which pyarrow reads beyond its powers of ten
                raise ValueError(f"a decimal column ({kind}) has the scale {kind.scale}: send floats")
            return _Numbers(np.dtype(np.float64), self._pa.float64())
        return _Numbers(np.dtype(kind.to_pandas_dtype()), None)

    def _read(self, reader: Any, plan: _Plan, rows: int) -> Rows:
        X = np.empty((rows, len(plan.features)), np.float32)
        y: list[Any] = []
        known: tuple[Any, np.ndarray] | None = None  # the dictionary of the batch before, and its labels: many may have the same
        begin = 0
        for batch in reader:
            batch.validate(full=True)  # pyarrow reads wherever the offsets of a damaged message say
            if batch.num_rows == 0:
                continue
            part = X[begin : begin + batch.num_rows]
            with np.errstate(over="ignore", invalid="ignore"):  # a number beyond float32 is infinite, and then the row is refused
                for j, (place, numbers) in enumerate(plan.features):
                    column = batch.column(place)
                    part[:, j] = np.nan if numbers.dtype is None else _values(column, numbers)
                    if column.null_count:
                        part[column.is_null().to_numpy(zero_copy_only=False), j] = np.nan
            if plan.label is not None:
                column = batch.column(plan.label)
                if plan.text and not self._pa.types.is_dictionary(column.type):
                    column = column.dictionary_encode()
                if not self._pa.types.is_dictionary(column.type):
                    y += self._labels(column)
                else:
                    if known is None or not _is_same(known[0], column.dictionary):
                        known = column.dictionary, self._table(column.dictionary, plan.text)
                    y += known[1][column.indices.cast(self._pa.int64()).fill_null(-1).to_numpy()].tolist()
            begin += batch.num_rows
        if begin != rows:
            raise ValueError(f"not an Arrow stream: {begin} rows, not {rows}")
        return Rows(plan.names, X, y if any(label is not None for label in y) else None)

    def _table(self, dictionary: Any, text: bool) -> np.ndarray:
        """The labels of a dictionary, and behind them that of rows without one."""
        entries = dictionary.to_pylist() if text else self._labels(dictionary)
        table = np.empty(len(entries) + 1, object)
        table[:-1] = entries
        return table

    def _labels(self, column: Any) -> list[Any]:
        """The labels of a column that is no text; None where there is none."""
        numbers = self._numbers_of(column.type)
        if numbers.dtype is None or not len(column):
            return [None] * len(column)
        values = _values(column, numbers)
        labels: list[Any] = (values.astype(bool) if self._pa.types.is_boolean(column.type) else values).tolist()
        missing = column.is_null(nan_is_null=True)
        if missing.true_count:
            for i in np.flatnonzero(missing.to_numpy(zero_copy_only=False)).tolist():
                labels[i] = None
        return labels


def _is_same(dictionary: Any, other: Any) -> bool:
    """Whether two dictionaries lie in the same memory."""
    places = ([None if each is None else each.address for each in one.buffers()] for one in (dictionary, other))
    return len(dictionary) == len(other) and next(places) == next(places)


def _values(column: Any, numbers: _Numbers) -> np.ndarray:
    """The values of a column that is not empty, with any number in the place of a null."""
    if numbers.cast is not None:
        column = column.cast(numbers.cast)
    return np.frombuffer(column.buffers()[1], numbers.dtype, len(column))
