"""The protocols of codecs, with one row a message or many, and what they share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import Row, Rows

#: A longer message of one row is refused before it is decoded. A broker's default limit.
MAX_MESSAGE_BYTES = 1 << 20
#: The same of a message of many rows: a broker's limit must have been raised for that.
MAX_TABLE_BYTES = 8 << 20
#: The most that the rows of a message take when they are decoded.
_MAX_DECODED_BYTES = 64 << 20
_LABEL_BYTES = 64  # that a label takes as a Python object, and its place in a list
_MOST_EXACT = 2.0**62
_LARGEST = float(np.finfo(np.float32).max)


class Codec(Protocol):
    """Decodes the value of a message to a row, and encodes a row: the protocol of all codecs."""

    @property
    def name(self) -> str:
        """Name of the format, as in a URL."""

    def decode(self, value: bytes) -> Row:
        """Decode a message.

        Raise a ValueError with the reason if it does not hold such a row; the caller adds the place.
        """

    def encode(self, row: Row) -> bytes:
        """Encode a row so that `decode` reads it; raise a ValueError if the codec cannot."""


@runtime_checkable
class PackedCodec(Codec, Protocol):
    """A codec of one row in each message that can decode many messages together."""

    def decode_values(self, values: Sequence[bytes]) -> Rows | None:
        """Decode messages, each as `decode` does.

        None if `decode` refuses one of them; the caller then finds it with `decode`.
        """


@runtime_checkable
class TableCodec(Codec, Protocol):
    """A codec of many rows in each message. Its `decode` is for messages of one row."""

    def decode_rows(self, value: bytes) -> Rows:
        """Decode a message.

        Raise a ValueError with the reason if it does not hold such rows; the caller adds the place.
        """

    def encode_rows(self, rows: Rows) -> bytes:
        """Encode rows so that `decode_rows` reads them; raise a ValueError if the codec cannot."""


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


def check_features(n_features: int) -> None:
    """ValueError if rows cannot have so many features."""
    if not 1 <= n_features < MAX_MESSAGE_BYTES // 4:
        raise ValueError(f"n_features must be from 1 to {MAX_MESSAGE_BYTES // 4 - 1}, got {n_features}")


def fields_of(row: Row, label: str | None, codec: str) -> dict[Any, Any]:
    """Return the features of a row and its label, by the name that a codec has for it; ValueError if it has none for both."""
    fields = dict(row.x)
    if row.y is not None:
        if label is None:
            raise ValueError(f"the row has a label, but the codec has no name for it: give {codec}(label=...)")
        if label in fields:
            raise ValueError(f"{label!r} is the name of the label and of a feature")
        fields[label] = row.y
    return fields


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
