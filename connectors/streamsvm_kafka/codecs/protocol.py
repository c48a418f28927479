"""Base classes of codecs, with one row or many rows in each message, and functions that codecs share."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.files.messages import short_repr
from streamsvm.stream.rows import is_number
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm.stream.tables.values import get_nested_value, normalize_label

#: Maximum size of a message with one row, which is a broker's default limit. Longer messages are not decoded.
MAX_MESSAGE_BYTES = 1 << 20
#: Maximum size of a message with many rows. The broker's limit must have been raised for this.
MAX_TABLE_BYTES = 8 << 20
#: Maximum memory of the decoded rows of a message.
_MAX_DECODED_BYTES = 64 << 20
#: Memory of a label or a text as a Python object in a list.
OBJECT_BYTES = 64
_MAX_EXACT_INTEGER = 2.0**62


class MessageCodec:
    """Base of all codecs. A codec converts the value of a message to a row, and a row to a value."""

    name: str
    """Name of the format, as in a URL."""
    label: str | None = None
    """Name of the label's field or column; None if the messages have no label, or features have no names."""
    dropped_fields: frozenset[str] = frozenset()
    """Paths of objects and arrays that are left out of rows, if the format has such fields."""
    has_names: bool = True
    """Whether features have names; otherwise, they are numbered."""

    def decode(self, value: bytes) -> Row:
        """Decode the value (payload) of a message to a row of features and label. A codec implements this method, or
        `decode_with_fields`.

        Raise a ValueError with the reason if the message is invalid; the caller adds its partition and offset.
        """
        return self.decode_with_fields(value, ())[0]

    def decode_with_fields(self, value: bytes, names: Sequence[str]) -> tuple[Row, list[Any]]:
        """Decode a message to a row, and return the row and a list of the values of the message's fields ``names``, unchanged, to
        be copied into predictions. A missing field has the value None.
        """
        row = self.decode(value)
        fields: dict[Any, Any] = {**row.x, self.label: row.y} if names else {}
        return row, [get_nested_value(fields, name) for name in names]

    def decode_batch(self, data: bytes, starts: np.ndarray, stops: np.ndarray, features: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Decode many messages at once to a table of rows; message i is ``data[starts[i]:stops[i]]``. ``features`` are the
        model's feature names; if it is empty, all features are decoded. Return None if the messages must be decoded one by one,
        by `decode`.

        Rows that `decode` must decode one by one are unparsed rows of the table; if there are many of them, return None.
        ``features`` is as for `Chunk.table`.
        """
        return None

    def encode(self, row: Row) -> bytes:
        """Encode a row as the value (payload) of a message. Raise a ValueError if this format cannot represent it."""
        raise NotImplementedError(f"{type(self).__name__} only reads messages: write them with another program or codec")


class TableCodec(MessageCodec):
    """Base of codecs with many rows in each message."""

    def decode_rows(self, value: bytes) -> Table:
        """Decode the value (payload) of a message that contains many rows to a table. A codec implements this method, or
        `decode_rows_with_columns`.

        Raise a ValueError with the reason if the message is invalid; the caller adds its partition and offset.
        """
        return self.decode_rows_with_columns(value, ())[0]

    def decode_rows_with_columns(self, value: bytes, names: Sequence[str]) -> tuple[Table, list[Any]]:  # noqa: ARG002
        """Decode a message that contains many rows to a table. Return the table and a list of the message's columns ``names``,
        unchanged, to be copied into predictions.

        A column is a chunked array of pyarrow; None if it is missing. ``names`` is empty if features have no names.
        """
        return self.decode_rows(value), []

    def encode_rows(self, rows: Table) -> bytes:
        """Encode a table of rows as the value (payload) of one message that `decode_rows` can read. Raise a ValueError if this
        format cannot represent the rows.
        """
        raise NotImplementedError


def make_row(fields: dict[Any, Any], label: str | None, may_have_nulls: bool) -> Row:
    """Convert the fields of a message to a row: the field ``label`` is its label, and fields that are None are missing features.
    ``may_have_nulls`` tells whether there may be any.
    """
    y = normalize_label(fields.pop(label, None)) if label is not None else None
    if may_have_nulls:
        fields = {name: item for name, item in fields.items() if item is not None}
    return Row(fields, y)


def check_n_features(n_features: int) -> None:
    """Raise a ValueError if the number of features of a row is below 1, or so large that a message of float32 numbers would
    exceed the limit of 1 MiB.
    """
    if not 1 <= n_features < MAX_MESSAGE_BYTES // 4:
        raise ValueError(f"n_features must be from 1 to {MAX_MESSAGE_BYTES // 4 - 1}, got {n_features}")


def make_fields(row: Row, label: str | None, codec: str) -> dict[Any, Any]:
    """Return a new dict of a row's features and its label, if it has one, under the name ``label``.

    Raise a ValueError, which names the ``codec``, if the row has a label without a name, or ``label`` is also a feature's name.
    """
    fields = dict(row.x)
    if row.y is not None:
        if label is None:
            raise ValueError(f"the row has a label, but the codec has no name for it: give {codec}(label=...)")
        if label in fields:
            raise ValueError(f"{label!r} is the name of the label and of a feature")
        fields[label] = row.y
    return fields


def rows_to_table(rows: Sequence[Row]) -> Table:
    """Convert rows, whose features may differ, to a table of float32 columns: a column for each feature, in the order of first
    occurrence, with NaN where a row lacks it.

    Raises
    ------
    ValueError
        A feature is not a number, is NaN (which means missing in a table), or exceeds the range of float32.

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
                    f"feature {short_repr(name)} is {short_repr(value)}: a table takes only numbers that fit float32"
                )
            X[i, columns[name]] = value
    return Table(tuple(columns), list(X.T), none_if_all_missing([row.y for row in rows], columns))


def none_if_all_missing(y: list[Any], columns: Collection[Hashable]) -> list[Any] | None:
    """Return the labels ``y`` unchanged, or None in their place if every label is missing. (A table without ``columns`` keeps
    them, because they then determine its number of rows.)
    """
    return y if not columns or any(label is not None for label in y) else None


def numbers_to_labels(column: np.ndarray) -> list[Any] | None:
    """Convert a numeric array of labels to a list: integral values become ints, NaN becomes None. Return None instead of a list
    if all are NaN.

    >>> numbers_to_labels(np.array([1, 0.5, np.nan])), numbers_to_labels(np.array([2, -1], ">f4"))
    ([1, 0.5, None], [2, -1])
    >>> numbers_to_labels(np.array([np.nan])) is None
    True
    """
    if not len(column):
        return None
    if column.dtype.kind != "f":
        return list(column.tolist())
    with np.errstate(invalid="ignore"):  # a signalling NaN would warn
        column = column.astype(np.float64)
        are_integral = np.all((column == np.floor(column)) & (np.abs(column) < _MAX_EXACT_INTEGER))
    if are_integral:  # which excludes NaN
        return list(column.astype(np.int64).tolist())
    if np.isnan(column).all():
        return None
    return [int(y) if y.is_integer() else y if y == y else None for y in column.tolist()]


def check_message_size(value: bytes) -> None:
    """Raise a ValueError if a message of many rows has more bytes than the limit for such messages."""
    if len(value) > MAX_TABLE_BYTES:
        raise ValueError(f"{len(value)} bytes; a message of many rows may have {MAX_TABLE_BYTES}: send fewer rows a message")


def check_decoded_size(n_rows: int, n_columns: int, extra_bytes: int = 0) -> None:
    """Raise a ValueError if decoded rows (``n_rows`` of ``n_columns`` float32 columns, and ``extra_bytes`` for Python objects)
    would exceed the memory limit for one message.
    """
    if n_rows * (4 * n_columns + OBJECT_BYTES) + extra_bytes > _MAX_DECODED_BYTES:
        raise ValueError(
            f"it takes more than {_MAX_DECODED_BYTES >> 20} MiB when it is decoded ({n_rows} rows of {n_columns} features, "
            f"{extra_bytes} bytes besides): send fewer rows a message"
        )
