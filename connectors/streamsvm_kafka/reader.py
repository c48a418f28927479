"""The messages of all partitions of a topic, in runs of those that are at hand."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
)

from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.connection import BrokerUnreachableError, Connection, TopicDescription, describe_topic
from streamsvm_kafka.offsets import TopicOffsets

logger: logging.Logger = logging.getLogger(__name__)

#: The longest wait for messages, and so the longest time until a signal takes effect.
POLL_MS = 200
#: The most that is fetched of a partition at once. A longer message still comes, alone.
FETCH_BYTES = 1 << 18
#: The same of messages with many rows.
TABLE_FETCH_BYTES = 1 << 20
#: A bounded pass fetches no more of a partition while so many of its messages, or bytes of them, wait for their turn.
PREFETCH, PREFETCH_BYTES = 1000, 4 << 20
#: A bounded pass gives up if none of its remaining messages comes for so long.
STALL_SECONDS = 60.0
#: A joined stream goes on without this one if it has messages to read and none comes for so long (of an open transaction).
BEHIND_SECONDS = 5.0
#: Time between two checks of an endless stream for new partitions, and for a topic that was replaced.
REFRESH_SECONDS = 60.0
#: The packages of the compressions that Python cannot read by itself.
_PACKAGES = {"lz4": "lz4", "snappy": "python-snappy", "zstd": "zstandard"}


def consumer_of(connection: Connection, group: str | None, fetches: int, many: bool, **more: Any) -> Any:
    """Make a consumer that commits nothing by itself, skips nothing, and holds so many fetches at once.

    These are of `FETCH_BYTES`, or where messages have ``many`` rows, of `TABLE_FETCH_BYTES`.
    """
    from streamsvm_kafka.record_batches import read_at_once  # noqa: PLC0415 - numba, where there is no machine code

    size = TABLE_FETCH_BYTES if many else FETCH_BYTES
    consumer = connection.client(
        KafkaConsumer,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        # kafka-python 3.0.12 never returns to a partition that was paused with half of a fetch read, so every poll takes all
        # messages and the size of a fetch is the bound.
        max_poll_records=sys.maxsize,
        max_partition_fetch_bytes=size,
        fetch_max_bytes=fetches * size,
        **{"isolation_level": "read_committed", **more},
    )
    read_at_once(consumer)
    return consumer


def lost(name: str, reason: str) -> StreamError:
    """Return the error for messages that a topic no longer holds."""
    return StreamError(
        f"{name}: {reason}. To continue with the model of the checkpoint, say where: --from earliest, latest, a time or "
        "PARTITION:OFFSET (start=... of KafkaSource)"
    )


def unreadable(name: str, error: KafkaError) -> StreamError:
    """Return the error for a topic that cannot be read; where it is compressed, with the package that is missing."""
    if isinstance(error, UnsupportedCodecError):
        for compression, package in _PACKAGES.items():
            if compression in str(error):
                text = (
                    f'{name}: its messages are compressed by {compression}, which needs {package}: pip install "streamsvm[kafka]"'
                )
                return StreamError(text)
    return StreamError(f"{name}: cannot be read: {error}")


class TopicReader:
    """The messages of all partitions of a topic, in runs of those that are at hand.

    Nothing is assigned to the consumer before. With ``stop_at_end``, it reads up to the ends that the partitions have now, and no
    further.
    """

    def __init__(
        self, connection: Connection, topic: str, name: str, consumer: Any, described: TopicDescription, stop_at_end: bool
    ) -> None:
        self._connection, self._topic, self._name, self._consumer = connection, topic, name, consumer
        self._topic_id = described.topic_id
        self.told: TopicOffsets = TopicOffsets(consumer, name, topic)
        beginnings, newest = self.told.bounds(described.partitions)
        self.beginnings: dict[int, int] = beginnings
        #: The ends when the topic was opened.
        self.newest: dict[int, int] = newest
        #: The next offset of each partition: behind the run that was given last.
        self.offsets: dict[int, int] = dict(beginnings)
        #: Of the present bounded pass; None of an endless stream, and at the end of a pass.
        self.ends: dict[int, int] | None = self.newest if stop_at_end else None
        # Offsets that were reached over what is no message, such as markers of transactions: `lag` looks at it from any thread.
        self._passed: dict[int, int] = {}
        #: The partition whose turn it is in a bounded pass.
        self.turn: int = described.partitions[0]
        #: Messages of a run. May be changed before each.
        self.most: int = 1
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the runs, and a wait for the next one. May be called from a signal handler or another thread."""
        self._stopping.set()

    def runs(self, joined: bool) -> Iterator[list[Any]]:
        """Give runs of messages, each of `most` at most; an empty one where none came for a moment.

        A part of a ``joined`` stream is given an empty one only where it has read all that there is, and then at once. Its
        bounded passes have the order of the messages' times.
        """
        if self.ends is None:
            yield from self._endless(joined)
            return
        began = False
        for run in self._bounded(self.ends, by_time=joined):
            began = True
            yield run
        # The checkpoint may have been written after the last row of its pass: then this pass is for the messages since.
        if not (began or joined or self._stopping.is_set()):
            yield from self._bounded(self.newest)

    def lag(self) -> dict[int, int]:
        """Return how many messages of each partition wait to be read, as far as the broker has told. From any thread."""
        return {p: self._end_of(p) - max(offset, self._passed.get(p, 0)) for p, offset in dict(self.offsets).items()}

    def _end_of(self, partition: int) -> int:
        """Return the end of a partition, as far as the broker has told. From any thread: nothing is asked of the broker."""
        newest, told = self.newest.get(partition, 0), None
        with contextlib.suppress(IllegalStateError):  # of a partition that is not assigned yet
            told = self._consumer.highwater(TopicPartition(self._topic, partition))
        return max(newest, told or 0)

    def _pass_markers(self) -> None:
        """Note how far partitions were read of which all messages were given."""
        for partition, offset in self.offsets.items():
            if self._end_of(partition) > max(offset, self._passed.get(partition, 0)):
                with contextlib.suppress(KafkaError):  # which the next poll tells of
                    reached = self._consumer.position(TopicPartition(self._topic, partition), timeout_ms=POLL_MS)
                    self._passed[partition] = reached or 0

    def _endless(self, joined: bool) -> Iterator[list[Any]]:
        self._assign(self.offsets)
        now = time.monotonic()
        refresh, came, silent = now + REFRESH_SECONDS, now, False
        while not self._stopping.is_set():
            now = time.monotonic()
            self._pass_markers()
            if now >= refresh:
                self._refresh()
                refresh = now + REFRESH_SECONDS
            polled = self._poll(0 if silent else POLL_MS)
            for key, messages in polled.items():
                at = 0
                while at < len(messages):
                    if self._stopping.is_set():
                        return
                    run = messages[at : at + self.most]
                    at += len(run)
                    self.offsets[key.partition] = run[-1].offset + 1
                    yield [message for message in run if message.value is not None]
            if polled:
                came, silent = time.monotonic(), False
            else:
                silent = joined and (silent or self._caught_up() or time.monotonic() - came > BEHIND_SECONDS)
                if silent or not joined:
                    yield []

    def _caught_up(self) -> bool:
        """Whether all that the broker has told of was read."""
        keys = [TopicPartition(self._topic, partition) for partition in self.offsets]
        reached = {key: self._consumer.position(key, timeout_ms=POLL_MS) for key in keys}
        return all(reached[key] is not None and reached[key] >= self._end_of(key.partition) for key in keys)

    def _bounded(self, ends: dict[int, int], by_time: bool = False) -> Iterator[list[Any]]:
        buffers: dict[int, deque[Any]] = {partition: deque() for partition in ends}
        order = sorted(ends)
        first = order.index(self.turn) if self.turn in ends else 0
        waiting = deque(order[first:] + order[:first])
        self.ends = ends
        self._assign(ends)
        while waiting:
            if by_time:
                waiting = self._oldest_first(waiting, buffers, ends)
            partition = waiting[0]
            filled = self._fill(partition, buffers, ends)
            if self._stopping.is_set():
                return
            if not filled:
                waiting.popleft()
                continue
            # Offsets never run ahead of the rows (over tombstones, markers of transactions), which arrive at any moment: equal
            # rows must leave equal positions.
            rounds = 0 if by_time else min(self.most // len(waiting), *(len(buffers[p]) for p in waiting), self.most)
            if rounds:  # one message of each partition in turn, so many times
                columns = [_first(buffers[p], rounds) for p in waiting]
                self.offsets |= {p: column[-1].offset + 1 for p, column in zip(waiting, columns, strict=True)}
                run = columns[0] if len(columns) == 1 else [message for each in zip(*columns, strict=True) for message in each]
            else:
                run = [buffers[partition].popleft()]
                waiting.rotate(-1)
                self.offsets[partition] = run[0].offset + 1
            self.turn = order[0] if by_time else waiting[0]
            yield run
        self.offsets |= ends
        self.ends = None
        self.turn = order[0]

    def _oldest_first(self, waiting: Iterable[int], buffers: dict[int, deque[Any]], ends: dict[int, int]) -> deque[int]:
        """Return partitions by the time of their next message; those that are exhausted come first."""
        for partition in waiting:
            self._fill(partition, buffers, ends)
        return deque(sorted(waiting, key=lambda p: (buffers[p][0].timestamp if buffers[p] else -math.inf, p)))

    def _fill(self, partition: int, buffers: dict[int, deque[Any]], ends: dict[int, int]) -> bool:
        """Wait until the partition has a message in its buffer; False if it is exhausted, or the reader was stopped."""
        progress, deadline = None, time.monotonic() + STALL_SECONDS
        while not buffers[partition]:
            reached = {p: self._consumer.position(TopicPartition(self._topic, p), timeout_ms=POLL_MS) for p in buffers}
            if self._stopping.is_set() or reached[partition] >= ends[partition]:
                self._passed[partition] = reached[partition]
                return False
            if reached != progress:
                progress, deadline = reached, time.monotonic() + STALL_SECONDS
            elif time.monotonic() > deadline:
                raise StreamError(
                    f"{self._name}: partition {partition} gave nothing for {STALL_SECONDS:g} s at offset {reached[partition]}, "
                    f"and ends at {ends[partition]}. Check the broker, then start again from the checkpoint."
                )
            for p, buffer in buffers.items():
                full = len(buffer) >= PREFETCH or reached[p] >= ends[p]
                full = full or sum([len(one.value) for one in buffer]) >= PREFETCH_BYTES
                (self._consumer.pause if full else self._consumer.resume)(TopicPartition(self._topic, p))
            for key, messages in self._poll().items():
                end = ends[key.partition]
                whole = messages[-1].offset < end and None not in [one.value for one in messages]
                buffers[key.partition].extend(
                    messages if whole else [one for one in messages if one.offset < end and one.value is not None]
                )
        return not self._stopping.is_set()

    def _poll(self, milliseconds: int = POLL_MS) -> Mapping[Any, list[Any]]:
        try:
            messages: dict[Any, list[Any]] = self._consumer.poll(milliseconds)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise lost(self._name, f"retention has removed unread messages ({error})") from error
        except LogTruncationError as error:
            raise lost(self._name, f"it was cut back, or deleted and created again ({error})") from error
        except KafkaError as error:
            raise unreadable(self._name, error) from error
        return messages

    def _assign(self, partitions: Iterable[int]) -> None:
        keys = [TopicPartition(self._topic, partition) for partition in partitions]
        self._consumer.assign(keys)
        for key in keys:
            self._consumer.seek(key, self.offsets[key.partition])

    def _refresh(self) -> None:
        try:
            description = describe_topic(self._connection, self._topic)
        except BrokerUnreachableError as error:
            logger.warning("%s: %s Reading continues when it is back.", self._name, error)
            return
        if description.topic_id != self._topic_id:
            raise lost(self._name, "it was deleted and created again while it was read")
        if added := tuple(p for p in description.partitions if p not in self.offsets):
            self.offsets |= self.told.bounds(added)[0]
            self._assign(self.offsets)


def _first(buffer: deque[Any], n: int) -> list[Any]:
    """Take the first ``n`` messages out of a buffer."""
    if n < len(buffer):
        return [buffer.popleft() for _ in range(n)]
    found = list(buffer)
    buffer.clear()
    return found
