"""Messages of a topic, in columns: as clients give them, and as sources take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple, Self, overload

import numpy as np

#: Those of a message: some clients have None for a value that is null.
Headers = Sequence[tuple[str, bytes | None]]


class TopicMessage(NamedTuple):
    """One message of a topic."""

    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; negative if it has no time."""
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
        times: np.ndarray,
        keys: list[bytes | None] | None,
        headers: list[Headers] | None,
        values: tuple[bytes, np.ndarray, np.ndarray] | list[bytes | None],
    ) -> None:
        self.partitions: int | list[int] = partitions
        self.offsets: np.ndarray = offsets
        self.timestamps: np.ndarray = times
        self.keys: list[bytes | None] | None = keys
        self.headers: list[Headers] | None = headers
        self._values = values

    def __len__(self) -> int:
        return len(self.offsets)

    @cached_property
    def values(self) -> list[bytes | None]:
        """The values; None for those that are null."""
        if isinstance(self._values, list):
            return self._values
        data, begins, sizes = self._values
        pairs = zip(begins.tolist(), sizes.tolist(), strict=True)
        return [data[at : at + size] if size >= 0 else None for at, size in pairs]

    @property
    def joined_values(self) -> tuple[bytes, np.ndarray, np.ndarray]:
        """The values behind each other: bytes, and int64 [n] where each begins and ends. None of them is null."""
        if isinstance(self._values, tuple):
            data, begins, sizes = self._values
            return data, begins, begins + sizes
        values: Any = self._values
        ends = self.value_sizes.cumsum()
        return b"".join(values), ends - self.value_sizes, ends

    @cached_property
    def value_sizes(self) -> np.ndarray:
        """The bytes of the values, int64 [n]; -1 for those that are null."""
        if isinstance(self._values, tuple):
            return self._values[2]
        return np.array([-1 if value is None else len(value) for value in self._values], dtype=np.int64)

    @property
    def partition_list(self) -> list[int]:
        """The partition of each message."""
        return [self.partitions] * len(self) if isinstance(self.partitions, int) else self.partitions

    @property
    def total_bytes(self) -> int:
        """Bytes of values, keys and headers."""
        size = int(np.maximum(self.value_sizes, 0).sum())
        size += 0 if self.keys is None else sum(len(key or b"") for key in self.keys)
        return size + sum(len(name) + len(value or b"") for each in self.headers or () for name, value in each)

    @overload
    def __getitem__(self, i: int) -> TopicMessage: ...
    @overload
    def __getitem__(self, i: slice) -> Self: ...
    def __getitem__(self, i: int | slice) -> TopicMessage | Self:
        if isinstance(i, slice):
            return self._picked_messages(i)
        key = None if self.keys is None else self.keys[i]
        headers = [] if self.headers is None else self.headers[i]
        partition = self.partitions if isinstance(self.partitions, int) else self.partitions[i]
        return TopicMessage(partition, int(self.offsets[i]), int(self.timestamps[i]), key, self.values[i], headers)

    def select_messages(self, which: np.ndarray) -> Self:
        """Return messages by their numbers, int64, or those for which a bool [n] is true."""
        return self._picked_messages(np.flatnonzero(which) if which.dtype == bool else which)

    def _picked_messages(self, which: slice | np.ndarray) -> Self:
        def of(column: Any) -> Any:
            if column is None or isinstance(column, int):
                return column
            if isinstance(which, slice) or isinstance(column, np.ndarray):
                return column[which]
            return [column[i] for i in which.tolist()]

        values: Any = self._values
        values = (values[0], of(values[1]), of(values[2])) if isinstance(values, tuple) else of(values)
        return type(self)(of(self.partitions), of(self.offsets), of(self.timestamps), of(self.keys), of(self.headers), values)


_NONE = np.empty(0, dtype=np.int64)
NO_MESSAGES: Messages = Messages(0, _NONE, _NONE, None, None, [])


def concatenate_messages(parts: Sequence[Messages]) -> Messages:
    """Concatenate a non-empty list of messages."""
    if len(parts) == 1:
        return parts[0]

    def column(name: str, nothing: Any) -> list[Any] | None:
        columns = [getattr(part, name) for part in parts]
        if all(each is None for each in columns):
            return None
        pairs = zip(parts, columns, strict=True)
        return [*chain.from_iterable(repeat(nothing, len(part)) if each is None else each for part, each in pairs)]

    partitions: Any = {part.partitions for part in parts if isinstance(part.partitions, int)}
    if len(partitions) == 1 and all(isinstance(part.partitions, int) for part in parts):
        (partitions,) = partitions
    else:
        partitions = [*chain.from_iterable(part.partition_list for part in parts)]
    values: Any
    tuples: list[Any] = [part._values for part in parts if isinstance(part._values, tuple)]
    # A few messages of large batches are taken out of them.
    if len(tuples) == len(parts) and sum(len(each[0]) for each in tuples) <= 2 * sum(int(each[2].sum()) for each in tuples):
        firsts = np.cumsum([0, *[len(data) for data, _, _ in tuples[:-1]]])
        begins = [each[1] + first for each, first in zip(tuples, firsts, strict=True)]
        values = b"".join([each[0] for each in tuples]), np.concatenate(begins), np.concatenate([each[2] for each in tuples])
    else:
        values = [*chain.from_iterable(part.values for part in parts)]
    offsets, times = (np.concatenate([getattr(part, name) for part in parts]) for name in ("offsets", "timestamps"))
    return Messages(partitions, offsets, times, column("keys", None), column("headers", []), values)


class Backlog:
    """Messages that wait for their turn, in order."""

    def __init__(self) -> None:
        self._parts: deque[Messages] = deque()
        self._n = 0
        #: Bytes of values, keys and headers.
        self.total_bytes: int = 0

    def __len__(self) -> int:
        return self._n

    @property
    def first_time(self) -> int:
        """The time of the first message."""
        return int(self._parts[0].timestamps[0])

    @property
    def last_offset(self) -> int:
        """The offset of the last message."""
        return int(self._parts[-1].offsets[-1])

    def extend(self, messages: Messages) -> None:
        """Have more messages wait."""
        if len(messages):
            self._parts.append(messages)
            self._n += len(messages)
            self.total_bytes += messages.total_bytes

    def take(self, n: int) -> Messages:
        """Take the first ``n`` messages, or all if there are fewer; there is at least one."""
        taken, left = [], n
        while left and self._parts:
            part = self._parts.popleft()
            if len(part) > left:
                self._parts.appendleft(part[left:])
                part = part[:left]
            taken.append(part)
            left -= len(part)
        messages = concatenate_messages(taken)
        self._n -= len(messages)
        self.total_bytes -= messages.total_bytes
        return messages

    def clear(self) -> None:
        """Drop all messages."""
        self._parts.clear()
        self._n = self.total_bytes = 0
