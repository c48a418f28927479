"""Base classes of codecs, with one row or many rows in a message, and shared checks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, TypeGuard

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm.stream.tables.values import get_nested_value

#: A longer message of one row is refused before it is decoded. A broker's default limit.
MAX_MESSAGE_BYTES = 1 << 20
#: The same of a message of many rows: a broker's limit must have been raised for that.
MAX_TABLE_BYTES = 8 << 20
#: The most that the rows of a message take when they are decoded.
_MAX_DECODED_BYTES = 64 << 20
#: Bytes of a label or a text as a Python object, with its place in a list.
OBJECT_BYTES = 64
_MOST_EXACT = 2.0**62


class MessageCodec:
    """Decodes the value of a message to a row, and encodes a row: the base of all codecs."""

    name: str
    """Name of the format, as in a URL."""
    label: str | None = None
    """Name of the label's field or column; None if the messages have no label, or features have no names."""
    has_names: bool = True
    """Whether features have names, and not numbers alone."""

    def decode(self, value: bytes) -> Row:
        """Decode a message.

        Raise a ValueError with the reason if it does not hold such a row; the caller adds the place.
        """
        raise NotImplementedError

    def decode_with_fields(self, value: bytes, names: Sequence[str]) -> tuple[Row, list[Any]]:
        """Decode a message as `decode` does, and return some of its fields as they came too, None for one that is not there."""
        row = self.decode(value)
        fields: dict[Any, Any] = {**row.x, self.label: row.y} if names else {}
        return row, [get_nested_value(fields, name) for name in names]

    def decode_batch(self, data: bytes, begins: np.ndarray, ends: np.ndarray, known: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Decode messages together, each as `decode` does but faster, if the codec can.

        They lie in ``data``, each from where it begins to where it ends, int64 [messages]. Those that must be decoded alone are
        odd in the table; None where these are many. ``known`` is as for `Chunk.table`.
        """
        return None

    def encode(self, row: Row) -> bytes:
        """Encode a row so that `decode` reads it; raise a ValueError if the codec cannot."""
        raise NotImplementedError


class TableCodec(MessageCodec):
    """A codec of many rows in each message."""

    def decode_rows(self, value: bytes) -> Table:
        """Decode a message.

        Raise a ValueError with the reason if it does not hold such rows; the caller adds the place.
        """
        raise NotImplementedError

    def decode_rows_with_columns(self, value: bytes, names: Sequence[str]) -> tuple[Table, list[Any]]:  # noqa: ARG002
        """Decode a message as `decode_rows` does, and return some of its columns as they came too.

        A column is as pyarrow has it, and None if it is not there. None are asked for if features have no names.
        """
        return self.decode_rows(value), []

    def encode_rows(self, rows: Table) -> bytes:
        """Encode rows so that `decode_rows` reads them; raise a ValueError if the codec cannot."""
        raise NotImplementedError


def check_n_features(n_features: int) -> None:
    """Raise a ValueError if ``n_features`` is out of range."""
    if not 1 <= n_features < MAX_MESSAGE_BYTES // 4:
        raise ValueError(f"n_features must be from 1 to {MAX_MESSAGE_BYTES // 4 - 1}, got {n_features}")


def make_fields(row: Row, label: str | None, codec: str) -> dict[Any, Any]:
    """Return the features of a row and its label, by the name that a codec has for it; ValueError if it has none for both."""
    fields = dict(row.x)
    if row.y is not None:
        if label is None:
            raise ValueError(f"the row has a label, but the codec has no name for it: give {codec}(label=...)")
        if label in fields:
            raise ValueError(f"{label!r} is the name of the label and of a feature")
        fields[label] = row.y
    return fields


def rows_to_table(rows: Sequence[Row]) -> Table:
    """Return rows as a table, with a column for each feature in the order in which they come.

    Raises
    ------
    ValueError
        A feature is not a number, is NaN (which a table reads as missing), or is beyond float32.

    Examples
    --------
    >>> table = rows_to_table([Row({"a": 1.5}, 0), Row({"b": 2, "a": 0.5})])
    >>> table.names, table.y, table.columns[1]
    (('a', 'b'), [0, None], array([nan,  2.], dtype=float32))
    """
    columns: dict[Hashable, int] = {}
    for row in rows:
        for name in row.x:
            columns.setdefault(name, len(columns))
    X = np.full((len(rows), len(columns)), np.nan, np.float32)
    for i, row in enumerate(rows):
        for name, value in row.x.items():
            if not is_number(value) or not abs(value) <= LARGEST_FLOAT32:
                raise ValueError(
                    f"feature {short_repr(name)} is {short_repr(value)}: only numbers that float32 can hold go into a table"
                )
            X[i, columns[name]] = value
    return Table(tuple(columns), list(X.T), none_if_all_missing([row.y for row in rows], columns))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number or a boolean of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def none_if_all_missing(y: list[Any], columns: Collection[Hashable]) -> list[Any] | None:
    """Return the labels of a table; None if all are missing, unless the table has no columns to count its rows by."""
    return y if not columns or any(label is not None for label in y) else None


def numbers_to_labels(column: np.ndarray) -> list[Any] | None:
    """Return labels that came as numbers: whole ones as ints, NaN as None; None if there is no other.

    >>> numbers_to_labels(np.array([1, 0.5, np.nan])), numbers_to_labels(np.array([2, -1], ">f4"))
    ([1, 0.5, None], [2, -1])
    >>> numbers_to_labels(np.array([np.nan])) is None
    True
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


def check_message_size(value: bytes) -> None:
    """ValueError if a message of many rows is too long."""
    if len(value) > MAX_TABLE_BYTES:
        raise ValueError(f"{len(value)} bytes; a message of many rows may have {MAX_TABLE_BYTES}: send fewer rows a message")


def check_decoded_size(rows: int, columns: int, more: int = 0) -> None:
    """Raise a ValueError if rows, with ``more`` bytes, would take too much memory."""
    if rows * (4 * columns + OBJECT_BYTES) + more > _MAX_DECODED_BYTES:
        raise ValueError(
            f"it takes more than {_MAX_DECODED_BYTES >> 20} MiB when it is decoded ({rows} rows of {columns} features, "
            f"{more} bytes besides): send fewer rows a message"
        )
