"""Messages of a topic in columns, as clients return them and sources read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple, Self, overload

import numpy as np

#: The headers of one message. Client libraries differ in whether a header with a null value has None.
Headers = Sequence[tuple[str, bytes | None]]


class TopicMessage(NamedTuple):
    """One message of a topic."""

    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; negative if the message has no timestamp."""
    key: bytes | None
    value: bytes | None
    headers: Headers


class Messages(Sequence[TopicMessage]):
    """A sequence of `TopicMessage` that is stored in columns.

    ``offsets`` and ``timestamps`` are int64 [n]; ``partitions`` is one number for all messages, or a list of n; ``keys`` and
    ``headers`` are lists of n, or None if no message has any. The values are a list; or a buffer that contains all of them, with
    int64 [n] start positions and int64 [n] sizes in bytes (-1 for a null value).
    """

    def __init__(
        self,
        partitions: int | list[int],
        offsets: np.ndarray,
        timestamps: np.ndarray,
        keys: list[bytes | None] | None,
        headers: list[Headers] | None,
        values: tuple[bytes, np.ndarray, np.ndarray] | list[bytes | None],
    ) -> None:
        self.partitions: int | list[int] = partitions
        self.offsets: np.ndarray = offsets
        self.timestamps: np.ndarray = timestamps
        self.keys: list[bytes | None] | None = keys
        self.headers: list[Headers] | None = headers
        self._values = values

    def __len__(self) -> int:
        return len(self.offsets)

    @cached_property
    def values(self) -> list[bytes | None]:
        """The value (payload) of each message as bytes; None for a null value (tombstone)."""
        if isinstance(self._values, list):
            return self._values
        data, starts, sizes = self._values
        pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
        return [data[start : start + size] if size >= 0 else None for start, size in pairs]

    @property
    def joined_values(self) -> tuple[bytes, np.ndarray, np.ndarray]:
        """All values (payloads) in one bytes object, and int64 [n] positions where each starts and stops; no nulls."""
        if isinstance(self._values, tuple):
            data, starts, sizes = self._values
            return data, starts, starts + sizes
        values: Any = self._values
        stops = self.value_sizes.cumsum()
        return b"".join(values), stops - self.value_sizes, stops

    @cached_property
    def value_sizes(self) -> np.ndarray:
        """The size of each message's value (payload) in bytes, int64 [n]; -1 for a null value."""
        if isinstance(self._values, tuple):
            return self._values[2]
        return np.array([-1 if value is None else len(value) for value in self._values], dtype=np.int64)

    @property
    def partition_list(self) -> list[int]:
        """The partition number of each message, as a list of length n."""
        return [self.partitions] * len(self) if isinstance(self.partitions, int) else self.partitions

    @property
    def total_bytes(self) -> int:
        """The total size in bytes of all messages: values, keys and headers."""
        size = int(np.maximum(self.value_sizes, 0).sum())
        size += 0 if self.keys is None else sum(len(key or b"") for key in self.keys)
        return size + sum(len(name) + len(value or b"") for pairs in self.headers or () for name, value in pairs)

    @overload
    def __getitem__(self, i: int) -> TopicMessage: ...
    @overload
    def __getitem__(self, i: slice) -> Self: ...
    def __getitem__(self, i: int | slice) -> TopicMessage | Self:
        if isinstance(i, slice):
            return self._index_columns(i)
        key = None if self.keys is None else self.keys[i]
        headers = [] if self.headers is None else self.headers[i]
        partition = self.partitions if isinstance(self.partitions, int) else self.partitions[i]
        return TopicMessage(partition, int(self.offsets[i]), int(self.timestamps[i]), key, self.values[i], headers)

    def select_messages(self, selection: np.ndarray) -> Self:
        """Return a new `Messages` object of the messages at ``selection``: int64 indices, or a bool [n] mask."""
        return self._index_columns(np.flatnonzero(selection) if selection.dtype == bool else selection)

    def repeat(self, n: int) -> Self:
        """Return a new `Messages` object with the first message ``n`` times."""
        return self._index_columns(np.zeros(n, np.int64))

    def _index_columns(self, index: slice | np.ndarray) -> Self:
        """Return a new `Messages` object with the messages at ``index`` (a slice or int64 indices), by indexing each column."""

        def index_column(column: Any) -> Any:
            if column is None or isinstance(column, int):
                return column
            if isinstance(index, slice) or isinstance(column, np.ndarray):
                return column[index]
            return [column[i] for i in index.tolist()]

        values: Any = self._values
        if isinstance(values, tuple):
            values = values[0], index_column(values[1]), index_column(values[2])
        else:
            values = index_column(values)
        partitions, offsets, timestamps = map(index_column, (self.partitions, self.offsets, self.timestamps))
        return type(self)(partitions, offsets, timestamps, index_column(self.keys), index_column(self.headers), values)


_EMPTY = np.empty(0, dtype=np.int64)
NO_MESSAGES: Messages = Messages(0, _EMPTY, _EMPTY, None, None, [])


def concatenate_messages(parts: Sequence[Messages]) -> Messages:
    """Join `Messages` objects, at least one, to a single object, in order."""
    if len(parts) == 1:
        return parts[0]

    def concatenate_column(name: str, default: Any) -> list[Any] | None:
        columns = [getattr(part, name) for part in parts]
        if all(column is None for column in columns):
            return None
        pairs = zip(parts, columns, strict=True)
        return [*chain.from_iterable(repeat(default, len(part)) if column is None else column for part, column in pairs)]

    partitions: Any = {part.partitions for part in parts if isinstance(part.partitions, int)}
    if len(partitions) == 1 and all(isinstance(part.partitions, int) for part in parts):
        (partitions,) = partitions
    else:
        partitions = [*chain.from_iterable(part.partition_list for part in parts)]
    values: Any
    buffers: list[Any] = [part._values for part in parts if isinstance(part._values, tuple)]
    # Buffers are joined only if the values are at least half of their bytes: otherwise, the copy would be mostly waste.
    if len(buffers) == len(parts) and sum(len(data) for data, _, _ in buffers) <= 2 * sum(int(b[2].sum()) for b in buffers):
        shifts = np.cumsum([0, *[len(data) for data, _, _ in buffers[:-1]]])
        starts = np.concatenate([starts + shift for (_, starts, _), shift in zip(buffers, shifts, strict=True)])
        values = b"".join([data for data, _, _ in buffers]), starts, np.concatenate([sizes for _, _, sizes in buffers])
    else:
        values = [*chain.from_iterable(part.values for part in parts)]
    offsets, timestamps = (np.concatenate([getattr(part, name) for part in parts]) for name in ("offsets", "timestamps"))
    return Messages(partitions, offsets, timestamps, concatenate_column("keys", None), concatenate_column("headers", []), values)


class Backlog:
    """A queue of fetched messages that have not been read yet."""

    def __init__(self) -> None:
        self._parts: deque[Messages] = deque()
        self._count = 0
        #: The total size of values, keys and headers.
        self.total_bytes: int = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first_time(self) -> int:
        """The timestamp of the first message in the backlog, in milliseconds since 1970. The backlog must not be empty."""
        return int(self._parts[0].timestamps[0])

    @property
    def last_offset(self) -> int:
        """The Kafka offset of the last message in the backlog, which must not be empty."""
        return int(self._parts[-1].offsets[-1])

    def extend(self, messages: Messages) -> None:
        """Append fetched messages to the end of the backlog."""
        if len(messages):
            self._parts.append(messages)
            self._count += len(messages)
            self.total_bytes += messages.total_bytes

    def pop_first(self, n: int) -> Messages:
        """Remove and return the first ``n`` messages of this backlog (all if there are fewer), which must not be empty."""
        parts, n_missing = [], n
        while n_missing and self._parts:
            part = self._parts.popleft()
            if len(part) > n_missing:
                self._parts.appendleft(part[n_missing:])
                part = part[:n_missing]
            parts.append(part)
            n_missing -= len(part)
        messages = concatenate_messages(parts)
        self._count -= len(messages)
        self.total_bytes -= messages.total_bytes
        return messages

    def clear(self) -> None:
        """Remove all messages from the backlog."""
        self._parts.clear()
        self._count = self.total_bytes = 0
