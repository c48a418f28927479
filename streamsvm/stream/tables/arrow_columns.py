"""Columns of record batches as the values of a table. This imports pyarrow, of an extra: import it where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from streamsvm.stream.tables.chunk import Values
from streamsvm.stream.tables.values import normalize_label

#: What pyarrow raises for data that are corrupt. Python's own objects are not made of every number that a column can hold.
ERRORS: tuple[type[Exception], ...] = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, SystemError)


def is_text(kind: Any) -> bool:
    """Whether a type is one of texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: Any) -> bool:
    """Whether a type is one of numbers, booleans not among them."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def to_float_array(column: Any, dtype: Any) -> np.ndarray:
    """Return a column of numbers or booleans as floats of a type [n], NaN where one is null. Each is rounded once.

    >>> to_float_array(pa.array([31, None]), np.float32)
    array([31., nan], dtype=float32)
    """
    if types.is_decimal(column.type) or types.is_null(column.type):
        column = column.cast(pa.float64())
    if not column.null_count or types.is_floating(column.type):
        numbers: np.ndarray = column.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        return numbers
    numbers = column.fill_null(False if types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False).astype(dtype)
    numbers[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return numbers


def get_nested_field(column: Any, places: Sequence[int]) -> Any:
    """Return a field of a column of structs, given by its position in each nested struct; null where a struct is null."""
    return compute.struct_field(column, list(places)) if places else column


def to_objects(column: Any) -> list[Any]:
    """Convert a column without a dictionary to a list of Python objects, None for null.

    A time outside the years 1 to 9999, which Python cannot represent, becomes text.

    >>> to_objects(pa.array([0, 3_000_000]).cast(pa.int32()).cast(pa.date32()))
    [datetime.date(1970, 1, 1), '10183-09-21']
    """
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        values = list(map(_object_of, column))
    return values


def _object_of(value: Any) -> Any:
    try:
        return value.as_py()
    except OverflowError:
        return value.cast(pa.string()).as_py()


class ArrowColumnReader:
    """Converts columns, given by a key, and reads a dictionary that many batches share only once.

    ``read`` converts a column without a dictionary to a list of objects.

    >>> reader, cities = ArrowColumnReader(), pa.array(["Oslo ", None, "Oslo "])
    >>> reader.values("city", cities.dictionary_encode()), reader.labels("city", cities)
    (['Oslo ', None, 'Oslo '], ['Oslo', None, 'Oslo'])
    >>> reader.values("age", pa.array([31.0, None])), reader.values("n", pa.array([1, None]))
    (array([31., nan]), [1, None])
    """

    def __init__(self, read: Callable[[Any], list[Any]] = to_objects) -> None:
        self._read = read
        self._known: dict[Hashable, tuple[Any, np.ndarray]] = {}  # by key, the dictionary of the batch before, and its entries

    def values(self, key: Hashable, column: Any) -> Values:
        """Return the values of a column: floats, and whole numbers and booleans without a null, as an array; others as objects.

        Whole numbers with a null are no floats, because a date is read differently from them.
        """
        kind = column.type
        if types.is_floating(kind) or (not column.null_count and (types.is_integer(kind) or types.is_boolean(kind))):
            numbers: np.ndarray = column.to_numpy(zero_copy_only=False)
            return numbers
        return self.objects(key, column)

    def labels(self, key: Hashable, column: Any) -> list[Any]:
        """Return the labels in a column, as `normalize_label` does each."""
        kind = column.type
        if types.is_primitive(kind):
            return self._read(column)
        if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
            column = column.dictionary_encode()  # most of them are alike
        return self._objects_of(key, column, lambda part: list(map(normalize_label, self._read(part))))

    def objects(self, key: Hashable, column: Any) -> list[Any]:
        """Return the values of a column as Python has them; None where one is null."""
        return self._objects_of(key, column, self._read)

    def _objects_of(self, key: Hashable, column: Any, read: Callable[[Any], list[Any]]) -> list[Any]:
        if not types.is_dictionary(column.type):
            return read(column)
        known = self._known.get(key)
        if known is None or not _is_same(known[0], column.dictionary):
            entries = np.fromiter([*read(column.dictionary), None], object)  # the last is that of rows without one
            known = self._known[key] = column.dictionary, entries
        found: list[Any] = known[1][column.indices.cast(pa.int64()).fill_null(-1).to_numpy()].tolist()
        return found


def _is_same(dictionary: Any, other: Any) -> bool:
    """Whether two dictionaries lie in the same memory."""
    places = [(each.offset, len(each), [part and part.address for part in each.buffers()]) for each in (dictionary, other)]
    return bool(places[0] == places[1])
