"""Rows as tables of numbers: what codecs of many rows a message share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeGuard

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import Row, Rows
from streamsvm_kafka.codecs.protocol import MAX_TABLE_BYTES

#: The most that the rows of a message take when they are decoded.
_MAX_DECODED_BYTES = 64 << 20
_LABEL_BYTES = 64  # that a label takes as a Python object, and its place in a list
_MOST_EXACT = 2.0**62
_LARGEST = float(np.finfo(np.float32).max)


class OneRow:
    """Messages of one row, for a codec of many."""

    def decode_rows(self, value: bytes) -> Rows:
        raise NotImplementedError

    def encode_rows(self, rows: Rows) -> bytes:
        raise NotImplementedError

    def decode(self, value: bytes) -> Row:
        """Decode a message that holds one row; raise a ValueError if it holds none, or more."""
        rows = self.decode_rows(value)
        if len(rows.X) != 1:
            raise ValueError(f"the message holds {len(rows.X)} rows; here each row needs a message of its own")
        return rows.row(0)

    def encode(self, row: Row) -> bytes:
        """Encode one row; raise a ValueError as `encode_rows` does."""
        return self.encode_rows(table_of([row]))


def table_of(rows: Sequence[Row]) -> Rows:
    """Return rows as a table, with a column for each feature in the order in which they come.

    Raises
    ------
    ValueError
        A feature is not a number, is NaN (which a table reads as missing), or is beyond float32.

    Examples
    --------
    >>> table_of([Row({"a": 1.5}, 0), Row({"b": 2, "a": 0.5})])
    Rows(names=('a', 'b'), X=array([[1.5, nan], [0.5, 2. ]], dtype=float32), y=[0, None])
    """
    columns: dict[Hashable, int] = {}
    for row in rows:
        for name in row.x:
            columns.setdefault(name, len(columns))
    X = np.full((len(rows), len(columns)), np.nan, np.float32)
    for i, row in enumerate(rows):
        for name, value in row.x.items():
            if not is_number(value) or not abs(value) <= _LARGEST:
                raise ValueError(f"feature {shown(name)} is {shown(value)}: only numbers that float32 can hold go into a table")
            X[i, columns[name]] = value
    labels = [row.y for row in rows]
    return Rows(tuple(columns), X, None if all(y is None for y in labels) else labels)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number or a boolean of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def labels_of(column: np.ndarray) -> list[Any] | None:
    """Return labels that came as numbers: whole ones as ints, NaN as None; None if there is no other.

    Examples
    --------
    >>> labels_of(np.array([1, 0.5, np.nan])), labels_of(np.array([2, -1], ">f4")), labels_of(np.array([np.nan]))
    ([1, 0.5, None], [2, -1], None)
    """
    if not len(column):
        return None
    if column.dtype.kind != "f":
        return list(column.tolist())
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        column = column.astype(np.float64)
        whole = np.all((column == np.floor(column)) & (np.abs(column) < _MOST_EXACT))
    if whole:  # and no NaN
        return list(column.astype(np.int64).tolist())
    if np.isnan(column).all():
        return None
    return [int(y) if y.is_integer() else y if y == y else None for y in column.tolist()]


def check_length(value: bytes) -> None:
    """ValueError if a message of many rows is too long."""
    if len(value) > MAX_TABLE_BYTES:
        raise ValueError(f"{len(value)} bytes; a message of many rows may have {MAX_TABLE_BYTES}: send fewer rows a message")


def check_memory(rows: int, columns: int, more: int = 0) -> None:
    """ValueError if so many rows would take too much memory, with ``more`` bytes besides."""
    if rows * (4 * columns + _LABEL_BYTES) + more > _MAX_DECODED_BYTES:
        raise ValueError(
            f"it takes more than {_MAX_DECODED_BYTES >> 20} MiB when it is decoded ({rows} rows of {columns} features, "
            f"{more} bytes besides): send fewer rows a message"
        )
