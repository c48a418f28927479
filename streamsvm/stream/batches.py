"""Sources that give the rows at hand together, made of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from streamsvm.stream.endpoints import BadRow, BatchSource, Row, Rows, Source

__all__ = ["OneByOne", "RawRows", "WrappedSource", "batches_of"]


class RawRows(Sequence[Row | BadRow]):
    """Rows that are read one by one as they are asked for, or one after the other with fewer checks.

    Parameters
    ----------
    read
        Reads the row with a number.
    read_pairs
        Gives the features and the label of each row from one number to another, and ends early before one that needs a closer
        look. Values of features may be no numbers.
    rows
        The first number, and the one after the last.
    """

    def __init__(
        self,
        read: Callable[[int], Row | BadRow],
        read_pairs: Callable[[int, int], Iterator[tuple[Any, Any]]],
        rows: tuple[int, int],
    ) -> None:
        self._read, self._read_pairs, self._rows = read, read_pairs, rows

    def __len__(self) -> int:
        return self._rows[1] - self._rows[0]

    @overload
    def __getitem__(self, i: int) -> Row | BadRow: ...
    @overload
    def __getitem__(self, i: slice) -> RawRows: ...
    def __getitem__(self, i: int | slice) -> Row | BadRow | RawRows:
        numbers = range(*self._rows)[i]
        if isinstance(numbers, int):
            return self._read(numbers)
        return RawRows(self._read, self._read_pairs, (numbers.start, numbers.stop))

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Give the features and the label of each row, up to one that must be looked at by itself."""
        return self._read_pairs(*self._rows)


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
