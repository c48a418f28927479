"""Codecs of numbers without names: packed float32 with one row in each message, and NumPy arrays with many rows."""

from __future__ import annotations

import io
import math
import struct
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from streamsvm.files.messages import short_repr
from streamsvm.stream.rows import is_number
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm_kafka.codecs.protocol import (
    MessageCodec,
    TableCodec,
    check_decoded_size,
    check_message_size,
    check_n_features,
    numbers_to_labels,
)


class Float32Codec(MessageCodec):
    """Codec of packed float32 numbers, one row in each message.

    A message is ``n_features`` little-endian float32 numbers, then the label as one more. Features are named 0 to
    ``n_features - 1``. NaN means that the row does not have the feature, or the label. Every message is exactly
    ``4 * (n_features + 1)`` bytes long; any other length is an error. An integral label is read as an int.

    Parameters
    ----------
    n_features
        Number of features of a row, at least 1.

    Raises
    ------
    ValueError
        ``n_features`` is not positive, or a row of that many features would be longer than `MAX_MESSAGE_BYTES`.

    Examples
    --------
    >>> import numpy as np
    >>> codec = Float32Codec(n_features=2)
    >>> codec.decode(np.array([0.5, -3, 1], dtype="<f4").tobytes())
    Row(x={0: 0.5, 1: -3.0}, y=1)
    >>> codec.decode(codec.encode(Row({0: 0.5, 1: -3.0})))
    Row(x={0: 0.5, 1: -3.0}, y=None)
    """

    name = "float32"
    has_names = False

    def __init__(self, n_features: int) -> None:
        check_n_features(n_features)
        self.n_features = n_features
        self._layout = struct.Struct(f"<{n_features + 1}f")
        self._names = range(n_features)

    def decode(self, value: bytes) -> Row:
        """Decode a message of packed float32 numbers (all features, then the label) to a row. NaN means a missing feature or
        label. Raise a ValueError if the message has another length.
        """
        if len(value) != self._layout.size:
            raise ValueError(f"{len(value)} bytes; {self.n_features} features and a label as float32 take {self._layout.size}")
        *features, y = self._layout.unpack(value)
        label = int(y) if y.is_integer() else None if math.isnan(y) else y
        x: dict[Hashable, Any] = dict(zip(self._names, features, strict=True))
        if math.isnan(sum(features)):  # a feature is NaN, or two are infinite with opposite signs
            x = {name: feature for name, feature in x.items() if feature == feature}
        return Row(x, label)

    def decode_batch(self, data: bytes, starts: np.ndarray, stops: np.ndarray, features: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Decode many messages of packed float32 numbers at once to a table; message i is ``data[starts[i]:stops[i]]``. Return
        None if there are no messages or one has an invalid length. ``features`` is not used.
        """
        size = self._layout.size
        if not len(starts) or (stops - starts != size).any():
            return None
        rows = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=1)  # overlapping: one row begins at each byte
        table = rows[starts].view("<f4").reshape(len(starts), self.n_features + 1)
        return Table(tuple(self._names), list(table[:, :-1].T), numbers_to_labels(table[:, -1]))

    def encode(self, row: Row) -> bytes:
        """Encode a row as packed float32 numbers: all features, then the label; NaN for missing ones. Return the bytes of the
        message.

        Raise a ValueError if a name or a value is invalid, or float32 would round an integer label.
        """
        if unknown := row.x.keys() - set(self._names):
            raise ValueError(f"feature {min(unknown, key=repr)!r} is not one of 0 to {self.n_features - 1}")
        features = (row.x.get(name, math.nan) for name in self._names)
        try:
            packed = self._layout.pack(*features, math.nan if row.y is None else row.y)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"the row cannot be written as float32: {error}") from None
        if isinstance(row.y, int | np.integer) and self._layout.unpack(packed)[-1] != row.y:
            raise ValueError(f"label {short_repr(row.y)} is not a number that float32 holds exactly")
        return packed


class NpyCodec(TableCodec):
    """Codec of NumPy arrays, many rows in each message.

    A message is a two-dimensional array as `numpy.save` writes it, with a row for each row and the label in the last column.
    Features are named 0 to ``n_features - 1`` and read as float32. NaN means that the row does not have the feature, or the
    label. An integral label is read as an int. The numbers may be floats, ints or bools of any width, in either byte order, and
    in C or Fortran order. Arrays of objects are refused, as are those of more than 64 MiB in memory.

    Parameters
    ----------
    n_features
        Number of features of a row, at least 1.

    Raises
    ------
    ValueError
        ``n_features`` is not positive, or one row would be longer than 1 MiB.

    Examples
    --------
    >>> import io
    >>> codec, file = NpyCodec(n_features=2), io.BytesIO()
    >>> np.save(file, np.array([[0.5, -3, 1], [1.5, np.nan, 0]]))
    >>> codec.decode_rows(file.getvalue())
    Table(names=(0, 1), columns=[array([0.5, 1.5], dtype=float32), array([-3., nan], dtype=float32)], y=[1, 0], ...)
    >>> codec.decode_rows(b"0.5,-3,1")
    Traceback (most recent call last):
        ...
    ValueError: not an array in NumPy's format (.npy): the magic string is not correct; ...
    """

    name = "npy"
    has_names = False

    def __init__(self, n_features: int) -> None:
        check_n_features(n_features)
        self.n_features = n_features
        self._names = tuple(range(n_features))

    def decode_rows(self, value: bytes) -> Table:
        """Decode a message in NumPy's ``.npy`` format, an array [rows, features + 1] whose last column is the label, to a table.
        Raise a ValueError if the message is invalid.
        """
        check_message_size(value)
        dtype, order, n_rows, n_columns, start = _parse_header(value)
        if n_columns != self.n_features + 1:
            raise ValueError(f"an array of {n_columns} columns; {self.n_features} features and a label are {self.n_features + 1}")
        if len(value) - start != n_rows * n_columns * dtype.itemsize:
            raise ValueError(
                f"{len(value) - start} bytes behind the header; {n_rows} rows of {n_columns} numbers ({dtype}) take "
                f"{n_rows * n_columns * dtype.itemsize}"
            )
        check_decoded_size(n_rows, n_columns)
        table = np.frombuffer(value, dtype, offset=start).reshape((n_rows, n_columns), order=order)
        with np.errstate(over="ignore", invalid="ignore"):  # a number beyond float32 becomes infinite, and its row is refused
            X = table[:, :-1].astype(np.float32, copy=False)
        return Table(self._names, list(X.T), numbers_to_labels(table[:, -1]))

    def encode_rows(self, rows: Table) -> bytes:
        """Encode a table of rows in NumPy's ``.npy`` format, as a float32 array [rows, features + 1] whose last column is the
        label. Raise a ValueError if a feature's name is not a valid number, or float32 would round a label.
        """
        table = np.full((len(rows), self.n_features + 1), np.nan, "<f4")
        for name, column in zip(rows.names, rows.columns, strict=True):
            if type(name) is not int or not 0 <= name < self.n_features:
                raise ValueError(f"feature {short_repr(name)} is not one of 0 to {self.n_features - 1}")
            table[:, name] = column
        for i, y in enumerate(rows.y or ()):
            if y is None:
                continue
            if not is_number(y) or not abs(y) < 2**128 or float(np.float32(y)) != y:
                raise ValueError(f"label {short_repr(y)} is not a number that float32 holds exactly")
            table[i, -1] = y
        file = io.BytesIO()
        np.lib.format.write_array(file, table, (1, 0))
        return file.getvalue()


def _parse_header(value: bytes) -> tuple[np.dtype[Any], Any, int, int, int]:
    """Parse the header of a message in NumPy's ``.npy`` format. Return the dtype, the memory order (``"C"`` or ``"F"``), the
    numbers of rows and columns, and the byte position where the data begin. Raise a ValueError if it is invalid.
    """
    file = io.BytesIO(value)
    try:
        with warnings.catch_warnings(action="ignore"):  # headers written by Python 2 warn
            is_version_1 = np.lib.format.read_magic(file) == (1, 0)
            read_header = np.lib.format.read_array_header_1_0 if is_version_1 else np.lib.format.read_array_header_2_0
            shape, is_fortran_order, dtype = read_header(file)
    except Exception as error:  # noqa: BLE001 - numpy raises many kinds of errors for invalid headers
        raise ValueError(f"not an array in NumPy's format (.npy): {error}") from None
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(f"an array of type {short_repr(dtype.str)}; rows are floats, ints or bools")
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"an array of shape {short_repr(shape)}; rows are an array of two dimensions")
    return dtype, "F" if is_fortran_order else "C", *shape, file.tell()
