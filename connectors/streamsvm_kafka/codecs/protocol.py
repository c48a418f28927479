"""The protocols of codecs: one row a message, or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from streamsvm.stream.endpoints import Row, Rows

#: A longer message of one row is refused before it is decoded. A broker's default limit.
MAX_MESSAGE_BYTES = 1 << 20
#: The same of a message of many rows: a broker's limit must have been raised for that.
MAX_TABLE_BYTES = 8 << 20


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
