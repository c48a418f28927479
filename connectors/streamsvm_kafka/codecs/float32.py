"""Rows as packed float32 numbers, one a message."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm_kafka.codecs.protocol import Codec, check_features, labels_of


class Float32Codec(Codec):
    """Codec of packed float32 numbers, one row in each message.

    A message is ``n_features`` little-endian float32 numbers, then the label as one more. Features are named 0 to
    ``n_features - 1``. NaN means that the row does not have the feature, or the label. Every message is exactly
    ``4 * (n_features + 1)`` bytes long; any other length is an error. A label that is a whole number is read as an int.

    Parameters
    ----------
    n_features
        Number of features of a row, at least 1.

    Raises
    ------
    ValueError
        ``n_features`` is not a positive number, or a row of so many would be longer than `MAX_MESSAGE_BYTES`.

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
        check_features(n_features)
        self.n_features = n_features
        self._layout = struct.Struct(f"<{n_features + 1}f")
        self._names = range(n_features)

    def decode(self, value: bytes) -> Row:
        """Decode a packed row; raise a ValueError if it has another length."""
        if len(value) != self._layout.size:
            raise ValueError(f"{len(value)} bytes; {self.n_features} features and a label as float32 take {self._layout.size}")
        *features, y = self._layout.unpack(value)
        label = int(y) if y.is_integer() else None if math.isnan(y) else y
        x: dict[Hashable, Any] = dict(zip(self._names, features, strict=True))
        if math.isnan(sum(features)):  # one of them is NaN, or two are infinite
            x = {name: feature for name, feature in x.items() if feature == feature}
        return Row(x, label)

    def decode_many(self, data: bytes, begins: np.ndarray, ends: np.ndarray, known: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Decode many packed rows together, as `Codec.decode_many`; None if one has another length."""
        size = self._layout.size
        if not len(begins) or (ends - begins != size).any():
            return None
        rows = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=1)  # that begin at each byte
        table = rows[begins].view("<f4").reshape(len(begins), self.n_features + 1)
        return Table(tuple(self._names), list(table[:, :-1].T), labels_of(table[:, -1]))

    def encode(self, row: Row) -> bytes:
        """Encode a packed row.

        Raise a ValueError if a name or a value does not fit, or float32 would round a label that is a whole number.
        """
        if unknown := row.x.keys() - set(self._names):
            raise ValueError(f"feature {min(unknown, key=repr)!r} is not one of 0 to {self.n_features - 1}")
        features = (row.x.get(name, math.nan) for name in self._names)
        try:
            packed = self._layout.pack(*features, math.nan if row.y is None else row.y)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"the row cannot be written as float32: {error}") from None
        if isinstance(row.y, int | np.integer) and self._layout.unpack(packed)[-1] != row.y:
            raise ValueError(f"label {shown(row.y)} is not a number that float32 holds exactly")
        return packed
