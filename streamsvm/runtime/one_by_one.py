"""Sources whose rows come one by one, as those that give the rows at hand together."""

from __future__ import annotations

from typing import Any

from streamsvm.runtime.endpoints import BadRow, BatchSource, Row, Source

__all__ = ["OneByOne", "batches_of"]


class OneByOne:
    """The `BatchSource` of a source that only iterates."""

    def __init__(self, source: Source) -> None:
        self._source, self._iterator = source, iter(source)

    def take(self, most: int) -> list[Row | BadRow] | None:  # noqa: ARG002
        """Return the next row; None at the end."""
        row = next(self._iterator, None)
        return None if row is None else [row]

    def place_of(self, i: int) -> str:  # noqa: ARG002
        """The place of the row."""
        return self._source.place

    def raw_of(self, i: int) -> bytes | None:  # noqa: ARG002
        """The bytes of the row."""
        return getattr(self._source, "raw", None)


def batches_of(source: Source) -> BatchSource:
    """Return what gives the rows at hand of a source: itself, if it can."""
    found: Any = source if hasattr(source, "take") else OneByOne(source)
    return found
