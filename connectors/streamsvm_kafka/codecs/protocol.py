"""The protocols of codecs: one row a message, or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from streamsvm.runtime.endpoints import Row, Rows

__all__ = ["MAX_MESSAGE_BYTES", "MAX_TABLE_BYTES", "Codec", "PackedCodec", "TableCodec"]

#: A longer message of one row is refused before it is decoded. A broker's default limit.
MAX_MESSAGE_BYTES = 1 << 20
#: The same of a message of many rows: a broker's limit must have been raised for that.
MAX_TABLE_BYTES = 8 << 20


class Codec(Protocol):
    """Decodes a row from the value of a message, and encodes it."""

    @property
    def name(self) -> str:
        """The name of the format, as in a URL."""

    def decode(self, value: bytes) -> Row:
        """Decode a message; ValueError if it holds no such row, with the reason (the caller adds the place)."""

    def encode(self, row: Row) -> bytes:
        """Encode a row as `decode` reads it; ValueError if the codec cannot."""


@runtime_checkable
class PackedCodec(Codec, Protocol):
    """A codec of one row a message that decodes many messages at once."""

    def decode_values(self, values: Sequence[bytes]) -> Rows | None:
        """Decode messages as `decode` does each of them; None if `decode` refuses one, which the caller finds with it."""


@runtime_checkable
class TableCodec(Codec, Protocol):
    """A codec of many rows a message. Its `decode` is for messages of one row."""

    def decode_rows(self, value: bytes) -> Rows:
        """Decode a message; ValueError if it holds no such rows, with the reason (the caller adds the place)."""

    def encode_rows(self, rows: Rows) -> bytes:
        """Encode rows as `decode_rows` reads them; ValueError if the codec cannot."""
