"""Converts columns of Arrow record batches to values of a table. Import it lazily: pyarrow is an optional dependency."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from streamsvm.stream.tables.chunk import Values
from streamsvm.stream.tables.values import normalize_label

#: Exceptions of pyarrow for corrupt data, and for values that Python objects cannot represent.
ERRORS: tuple[type[Exception], ...] = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, SystemError)


def is_text(kind: Any) -> bool:
    """Return whether a pyarrow data type is text: string, large string or string view."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: Any) -> bool:
    """Return whether a pyarrow data type is numeric: integer, float or decimal. Booleans are not."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def to_float_array(column: Any, dtype: Any) -> np.ndarray:
    """Convert a pyarrow column [n] of numbers or booleans to a NumPy array [n] of a float ``dtype``, with NaN for null. Each
    value is rounded only once.

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


def get_nested_field(column: Any, indices: Sequence[int]) -> Any:
    """Return a field of a pyarrow column of structs as a column; it is null where a struct is null. ``indices`` is the path to
    the field: its index in the struct, then in the nested struct, and so on. If it is empty, ``column`` itself is returned.
    """
    return compute.struct_field(column, list(indices)) if indices else column


def to_objects(column: Any) -> list[Any]:
    """Convert a pyarrow column to a list of Python objects, with None for null. The column must not be dictionary-encoded.

    A time outside the years 1 to 9999, which Python cannot represent, becomes text.

    >>> to_objects(pa.array([0, 3_000_000]).cast(pa.int32()).cast(pa.date32()))
    [datetime.date(1970, 1, 1), '10183-09-21']
    """
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        values = list(map(_to_object, column))
    return values


def _to_object(value: Any) -> Any:
    """Convert a pyarrow scalar to a Python object, or to text if Python cannot represent it, such as a date
    after the year 9999.
    """
    try:
        return value.as_py()
    except OverflowError:
        return value.cast(pa.string()).as_py()


class ArrowColumnReader:
    """Converts columns of batches to values, and converts a dictionary that is shared by many batches only once.

    ``to_list`` converts a column that is not dictionary-encoded to a list of objects. Columns are identified by a key.

    >>> reader, cities = ArrowColumnReader(), pa.array(["Oslo ", None, "Oslo "])
    >>> reader.read_values("city", cities.dictionary_encode()), reader.read_labels("city", cities)
    (['Oslo ', None, 'Oslo '], ['Oslo', None, 'Oslo'])
    >>> reader.read_values("age", pa.array([31.0, None])), reader.read_values("n", pa.array([1, None]))
    (array([31., nan]), [1, None])
    """

    def __init__(self, to_list: Callable[[Any], list[Any]] = to_objects) -> None:
        self._to_list = to_list
        self._dictionaries: dict[Hashable, tuple[Any, np.ndarray]] = {}  # the last dictionary of each column, and its objects

    def read_values(self, key: Hashable, column: Any) -> Values:
        """Convert a pyarrow column to a NumPy array if it has floats, or integers or booleans without null; otherwise to a list
        of Python objects, with None for null. ``key`` names the column for the cache, so that work is saved if the next batch has
        the same dictionary.

        Integers with null do not become floats, because numeric dates are parsed differently from floats.
        """
        kind = column.type
        if types.is_floating(kind) or (not column.null_count and (types.is_integer(kind) or types.is_boolean(kind))):
            numbers: np.ndarray = column.to_numpy(zero_copy_only=False)
            return numbers
        return self.read_objects(key, column)

    def read_labels(self, key: Hashable, column: Any) -> list[Any]:
        """Convert a pyarrow column to a list of labels: texts are stripped, bytes decoded, and null becomes None. ``key`` names
        the column for the cache, so that work is saved if the next batch has the same dictionary.
        """
        kind = column.type
        if types.is_primitive(kind) and not types.is_duration(kind):
            return self._to_list(column)
        if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
            column = column.dictionary_encode()  # labels have few distinct values
        return self._decode(key, column, lambda values: list(map(normalize_label, self._to_list(values))))

    def read_objects(self, key: Hashable, column: Any) -> list[Any]:
        """Convert a pyarrow column to a list of Python objects, with None for null. ``key`` names the column for the cache, so
        that work is saved if the next batch has the same dictionary.
        """
        return self._decode(key, column, self._to_list)

    def _decode(self, key: Hashable, column: Any, to_list: Callable[[Any], list[Any]]) -> list[Any]:
        """Convert a pyarrow column to a list of objects with the function ``to_list``. Of a dictionary-encoded column, only the
        dictionary is converted; the result is cached under ``key``, and reused if the next batch has the same dictionary.
        """
        if not types.is_dictionary(column.type):
            return to_list(column)
        entry = self._dictionaries.get(key)
        if entry is None or not _share_memory(entry[0], column.dictionary):
            objects = np.fromiter([*to_list(column.dictionary), None], object)  # the last one is for null
            entry = self._dictionaries[key] = column.dictionary, objects
        values: list[Any] = entry[1][column.indices.cast(pa.int64()).fill_null(-1).to_numpy()].tolist()
        return values


def _share_memory(first: Any, second: Any) -> bool:
    """Return whether two pyarrow arrays use the same buffers at the same offset, so that they are surely equal."""
    keys = [(array.offset, len(array), [buffer and buffer.address for buffer in array.buffers()]) for array in (first, second)]
    return bool(keys[0] == keys[1])
