"""Sources that give the rows at hand together, made of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamsvm.runtime.endpoints import BadRow, BatchSource, Row, Rows, Source

__all__ = ["OneByOne", "WrappedSource", "batches_of"]


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


class WrappedSource:
    """A source with other rows: those that a class below this one makes of them.

    Parameters
    ----------
    source
        The source; all else is asked of it.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._batches: BatchSource | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows, as `BatchSource.take`."""
        if self._batches is None:
            self._batches = batches_of(self._source)
        rows = self._batches.take(most)
        return self._changed(rows) if rows else rows

    def _changed(self, rows: Sequence[Row | BadRow] | Rows) -> Sequence[Row | BadRow] | Rows:
        """Return what becomes of rows, at least one."""
        raise NotImplementedError

    def place_of(self, i: int) -> str:
        """The place of a row of those that were taken last."""
        place: str = self._source.place if self._batches is None else self._batches.place_of(i)
        return place

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of a row of those that were taken last."""
        return None if self._batches is None else self._batches.raw_of(i)
