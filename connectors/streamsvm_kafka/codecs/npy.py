"""Rows as arrays in NumPy's format, many a message."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.tables.chunk import Table
from streamsvm_kafka.codecs.protocol import TableCodec, check_features, check_length, check_memory, is_number, labels_of

_MAGIC = b"\x93NUMPY"
_LENGTHS = {1: 2, 2: 4, 3: 4}  # bytes that the length of the header takes, by version
_MAX_HEADER = 1024
_VALUE = r"""'[^'\\]*'|"[^"\\]*"|True|False|\([0-9, ]*\)"""
_ITEM = rf"""['"](descr|fortran_order|shape)['"] *: *({_VALUE})"""
#: A mapping of the three names. Nothing in it is evaluated.
_HEADER = re.compile(rf"\{{ *{_ITEM} *, *{_ITEM} *, *{_ITEM} *,? *\}}\s*")
_TYPES = re.compile(r"[<>=|]?(f[248]|[iu][1248]|b1)")
_SHAPE = re.compile(r"\( *([0-9]{1,10}) *, *([0-9]{1,10}) *,? *\)")


class NpyCodec(TableCodec):
    """Codec of NumPy arrays, many rows in each message.

    A message is a two-dimensional array as `numpy.save` writes it, with a row for each row and the label in the last place.
    Features are named 0 to ``n_features - 1`` and read as float32. NaN means that the row does not have the feature, or the
    label. A label that is a whole number is read as an int. The numbers may be floats, ints or bools of any width, in either
    byte order, and either order of rows and columns. Objects are not read. More than 64 MiB in memory is an error.

    Parameters
    ----------
    n_features
        Number of features of a row, at least 1.

    Raises
    ------
    ValueError
        ``n_features`` is not a positive number, or one row would be longer than 1 MiB.

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
    ValueError: not an array in NumPy's format (.npy): it does not begin with its mark
    """

    name = "npy"
    has_names = False

    def __init__(self, n_features: int) -> None:
        check_features(n_features)
        self.n_features = n_features
        self._names = tuple(range(n_features))

    def decode_rows(self, value: bytes) -> Table:
        """Decode an array; raise a ValueError if the message does not have the class's form."""
        check_length(value)
        dtype, order, rows, columns, begin = _header_of(value)
        if columns != self.n_features + 1:
            raise ValueError(f"an array of {columns} columns; {self.n_features} features and a label are {self.n_features + 1}")
        if len(value) - begin != rows * columns * dtype.itemsize:
            raise ValueError(
                f"{len(value) - begin} bytes behind the header; {rows} rows of {columns} numbers ({dtype}) take "
                f"{rows * columns * dtype.itemsize}"
            )
        check_memory(rows, columns)
        table = np.frombuffer(value, dtype, offset=begin).reshape((rows, columns), order=order)
        with np.errstate(over="ignore", invalid="ignore"):  # a number beyond float32 is infinite, and then the row is refused
            X = table[:, :-1].astype(np.float32, copy=False)
        return Table(self._names, list(X.T), labels_of(table[:, -1]))

    def encode_rows(self, rows: Table) -> bytes:
        """Encode rows as float32; raise a ValueError if a name or a label does not fit."""
        table = np.full((len(rows), self.n_features + 1), np.nan, "<f4")
        for name, column in zip(rows.names, rows.columns, strict=True):
            if type(name) is not int or not 0 <= name < self.n_features:
                raise ValueError(f"feature {shown(name)} is not one of 0 to {self.n_features - 1}")
            table[:, name] = column
        for i, y in enumerate(rows.y or ()):
            if y is None:
                continue
            if not is_number(y) or not abs(y) < 2**128 or float(np.float32(y)) != y:
                raise ValueError(f"label {shown(y)} is not a number that float32 holds exactly")
            table[i, -1] = y
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {table.shape}, }}".encode()
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
        return _MAGIC + bytes((1, 0)) + len(header).to_bytes(2, "little") + header + table.tobytes()


def _header_of(value: bytes) -> tuple[np.dtype[Any], Any, int, int, int]:
    """The type, the order of rows and columns, their numbers, and where the numbers begin."""
    mistake = "not an array in NumPy's format (.npy): "
    if value[:6] != _MAGIC:
        raise ValueError(f"{mistake}it does not begin with its mark")
    width = _LENGTHS.get(value[6] if len(value) > 6 else 0)
    if width is None:
        raise ValueError(f"{mistake}its version is not 1, 2 or 3")
    length = int.from_bytes(value[8 : 8 + width], "little")
    begin = 8 + width + length
    if length > _MAX_HEADER or begin > len(value):
        raise ValueError(f"{mistake}a header of {length} bytes is too long")
    found = _HEADER.fullmatch(value[8 + width : begin].decode("latin-1"))
    items = {} if found is None else dict(zip(found.groups()[::2], found.groups()[1::2], strict=True))
    if len(items) != 3:
        raise ValueError(f"{mistake}its header does not give descr, fortran_order and shape")
    descr, shape = items["descr"][1:-1], _SHAPE.fullmatch(items["shape"])
    if _TYPES.fullmatch(descr) is None:
        raise ValueError(f"an array of type {shown(descr)}; rows are floats, ints or bools")
    if shape is None:
        raise ValueError(f"an array of shape {shown(items['shape'])}; rows are an array of two dimensions")
    if items["fortran_order"] not in ("True", "False"):
        raise ValueError(f"{mistake}fortran_order is {shown(items['fortran_order'])}")
    order = "F" if items["fortran_order"] == "True" else "C"
    return np.dtype(descr), order, int(shape[1]), int(shape[2]), begin
