"""Reads the messages of all partitions of a topic, as they arrive or in a fixed order."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from kafka.errors import (
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
)

from streamsvm.core.warning import warn
from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.clients.messages import NO_MESSAGES, Backlog, Messages, concatenate_messages
from streamsvm_kafka.clients.protocol import TopicConsumer
from streamsvm_kafka.connection import (
    BrokerUnreachableError,
    Connection,
    TopicDescription,
    describe_missing_right,
)
from streamsvm_kafka.offsets import StartPoint, TopicOffsets
from streamsvm_kafka.topics import describe_topic

logger: logging.Logger = logging.getLogger(__name__)

#: The longest wait for messages, and so the longest time until a signal takes effect.
POLL_SECONDS = 0.2
#: A bounded pass pauses a partition while this many of its messages, or bytes of them, wait for their turn.
PREFETCH_MESSAGES, PREFETCH_BYTES = 3000, 4 << 20
#: A bounded pass gives up if none of its remaining messages comes for so long.
STALL_SECONDS = 60.0
#: Seconds after which a joined stream continues without this topic, if none of its messages arrives (an open transaction).
JOIN_WAIT_SECONDS = 5.0
#: Time between two checks of an endless stream for new partitions, and for a topic that was replaced.
REFRESH_SECONDS = 60.0
#: The packages of the compressions that Python cannot read by itself.
_PACKAGES = {"lz4": "lz4", "snappy": "python-snappy", "zstd": "zstandard"}


def lost_messages_error(name: str, reason: str) -> StreamError:
    """Return the error for messages that a topic no longer holds."""
    return StreamError(
        f"{name}: {reason}. To continue with the model of the checkpoint, say where: --from earliest, latest, a time or "
        "PARTITION:OFFSET (start=... of KafkaSource)"
    )


#: The reason for a partition whose topic was created again.
RECREATED_REASON = "it was deleted and created again since the checkpoint"


def find_resume_obstacle(partition: int, beginning: int, end: int, offset: int, last: int) -> str | None:
    """Return why a partition cannot continue at the offset of a checkpoint; None if it can.

    ``last`` is the largest offset that the checkpoint knows.
    """
    place = f"partition {partition} holds offsets {beginning} to {end}, the checkpoint"
    if offset < beginning:
        return f"{place} continues at {offset}: retention has removed {beginning - offset} unread messages"
    if last > end:
        return f"{place} knows of {last}: the topic was cut back, or is not the one that was learned"
    return None


def describe_removal(partition: int, beginning: int, end: int, at: int) -> str:
    """Return the reason why a partition cannot be read on at an offset."""
    return (
        f"partition {partition} holds offsets {beginning} to {end}, and {at} is next: retention has removed {beginning - at} "
        "unread messages"
    )


def to_stream_error(name: str, error: KafkaError, connection: Connection, topic: str, group: str | None = None) -> StreamError:
    """Return the error for a topic that cannot be read, with the right or the package that is missing, if one is."""
    if (right := describe_missing_right(connection.user, error, "Read", topic, group=group)) is not None:
        return StreamError(f"{name}: {right}")
    if isinstance(error, UnsupportedCodecError):
        for compression, package in _PACKAGES.items():
            if compression in str(error):
                text = (
                    f'{name}: its messages are compressed by {compression}, which needs {package}: pip install "streamsvm[kafka]"'
                )
                return StreamError(text)
    return StreamError(f"{name}: cannot be read: {error}")


def try_describe_topic(connection: Connection, topic: str, name: str) -> TopicDescription | None:
    """Describe a topic again; None, with a warning, if no broker answers for a while."""
    try:
        return describe_topic(connection, topic)
    except BrokerUnreachableError as error:
        logger.warning("%s: %s Reading continues when it is back.", name, error)
        return None


class TopicReader:
    """Yields the messages of all partitions of a topic, as many at once as have arrived.

    Nothing is assigned to the consumer before. With ``stop_at_end``, it reads up to the ends that the partitions have now, and no
    further.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        name: str,
        consumer: TopicConsumer,
        description: TopicDescription,
        stop_at_end: bool,
        start: StartPoint | None = None,
    ) -> None:
        self._start = start
        self._connection, self._topic, self._name, self._consumer = connection, topic, name, consumer
        self._topic_id = description.topic_id
        self.topic_offsets: TopicOffsets = TopicOffsets(consumer, topic, name, connection.user)
        beginnings, newest = self.topic_offsets.beginning_and_end_offsets(description.partitions)
        self.beginning_offsets: dict[int, int] = beginnings
        #: The ends when the topic was opened.
        self.end_offsets: dict[int, int] = newest
        #: The next offset of each partition: behind the run that was given last.
        self.next_offsets: dict[int, int] = dict(beginnings)
        #: Of the present bounded pass; None of an endless stream, and at the end of a pass.
        self.pass_ends: dict[int, int] | None = self.end_offsets if stop_at_end else None
        #: The partition whose turn it is in a bounded pass.
        self.next_partition: int = description.partitions[0]
        #: Messages of a run. May be changed before each.
        self.max_messages: int = 1
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the runs, and a wait for the next one. May be called from a signal handler or another thread."""
        self._stopping.set()

    def iter_batches(self, joined: bool) -> Iterator[Messages]:
        """Give runs of messages, each of `max_messages` at most; one of none where none came for a moment.

        A part of a ``joined`` stream is given none only where it has read all that there is, and then at once. Its bounded passes
        have the order of the messages' times.
        """
        if self.pass_ends is None:
            yield from self._endless_messages(joined)
            return
        began = False
        for run in self._bounded_messages(self.pass_ends, by_time=joined):
            began = True
            yield run
        # The checkpoint may have been written after the last row of its pass: then this pass is for the messages since.
        if not (began or joined or self._stopping.is_set()):
            yield from self._bounded_messages(self.end_offsets)

    def compute_lag(self) -> dict[int, int]:
        """Return how many messages of each partition wait to be read, as far as the broker has told. From any thread."""
        return self.topic_offsets.compute_lag(dict(self.next_offsets), self.end_offsets)

    def _endless_messages(self, joined: bool) -> Iterator[Messages]:
        self._consumer.assign(self.next_offsets)
        now = time.monotonic()
        refresh, came, silent = now + REFRESH_SECONDS, now, False
        while not self._stopping.is_set():
            now = time.monotonic()
            self.topic_offsets.advance_past_markers(self.next_offsets)
            if now >= refresh:
                self._refresh_partitions()
                refresh = now + REFRESH_SECONDS
            polled = self._poll_messages(0.0 if silent else POLL_SECONDS)
            for partition, messages in polled.items():
                at = 0
                while at < len(messages):
                    if self._stopping.is_set():
                        return
                    run = messages[at : at + self.max_messages]
                    at += len(run)
                    self.next_offsets[partition] = int(run.offsets[-1]) + 1
                    has_value = run.value_sizes >= 0
                    if has_value.any():
                        yield run if has_value.all() else run.select_messages(has_value)
            if polled:
                came, silent = time.monotonic(), False
            else:
                silent = joined and (silent or self._caught_up() or time.monotonic() - came > JOIN_WAIT_SECONDS)
                if silent or not joined:
                    yield NO_MESSAGES

    def _caught_up(self) -> bool:
        """Whether all that the broker has told of was read."""
        positions = {partition: self._consumer.position(partition) for partition in self.next_offsets}
        ends = {p: self.topic_offsets.find_end_offset(p, self.end_offsets.get(p, 0)) for p in positions}
        return all(position is not None and position >= ends[p] for p, position in positions.items())

    def _bounded_messages(self, ends: dict[int, int], by_time: bool = False) -> Iterator[Messages]:
        backlogs = {partition: Backlog() for partition in ends}
        order = sorted(ends)
        first = order.index(self.next_partition) if self.next_partition in ends else 0
        waiting = deque(order[first:] + order[:first])
        self.pass_ends = ends
        self._consumer.assign({partition: self.next_offsets[partition] for partition in ends})
        while waiting:
            if by_time:
                waiting = self._oldest_first(waiting, backlogs, ends)
            partition = waiting[0]
            filled = self._fill_backlog(partition, backlogs, ends)
            if self._stopping.is_set():
                return
            if not filled:
                waiting.popleft()
                continue
            # Offsets never run ahead of the rows (over tombstones, markers of transactions), which arrive at any moment: equal
            # rows must leave equal positions.
            rounds = (
                0 if by_time else min(self.max_messages // len(waiting), *(len(backlogs[p]) for p in waiting), self.max_messages)
            )
            if rounds:  # one message of each partition in turn, repeatedly
                parts = [backlogs[p].pop_first(rounds) for p in waiting]
                self.next_offsets |= {p: int(part.offsets[-1]) + 1 for p, part in zip(waiting, parts, strict=True)}
                run = parts[0]
                if len(parts) > 1:
                    run = concatenate_messages(parts).select_messages(
                        np.arange(rounds * len(parts)).reshape(len(parts), rounds).T.ravel()
                    )
            else:
                run = backlogs[partition].pop_first(1)
                waiting.rotate(-1)
                self.next_offsets[partition] = int(run.offsets[-1]) + 1
            self.next_partition = order[0] if by_time else waiting[0]
            yield run
        self.next_offsets |= ends
        self.pass_ends = None
        self.next_partition = order[0]

    def _oldest_first(self, waiting: Iterable[int], backlogs: dict[int, Backlog], ends: dict[int, int]) -> deque[int]:
        """Return partitions by the time of their next message; those that are exhausted come first."""
        for partition in waiting:
            self._fill_backlog(partition, backlogs, ends)
        return deque(sorted(waiting, key=lambda p: (backlogs[p].first_time if len(backlogs[p]) else -math.inf, p)))

    def _fill_backlog(self, partition: int, backlogs: dict[int, Backlog], ends: dict[int, int]) -> bool:
        """Wait until the partition has a message in its backlog; False if it is exhausted, or the reader was stopped."""
        progress, deadline = None, time.monotonic() + STALL_SECONDS
        while not len(backlogs[partition]):
            positions = {p: self._consumer.position(p) for p in backlogs}
            position = positions[partition]
            if self._stopping.is_set() or (position is not None and position >= ends[partition]):
                self.topic_offsets.advance_past_markers([partition])
                return False
            if positions != progress:
                progress, deadline = positions, time.monotonic() + STALL_SECONDS
            elif time.monotonic() > deadline:
                raise StreamError(
                    f"{self._name}: partition {partition} gave nothing for {STALL_SECONDS:g} s at offset {position}, "
                    f"and ends at {ends[partition]}. Check the broker, then start again from the checkpoint."
                )
            paused = {
                p
                for p, backlog in backlogs.items()
                if len(backlog) >= PREFETCH_MESSAGES or backlog.total_bytes >= PREFETCH_BYTES or (positions[p] or 0) >= ends[p]
            }
            self._consumer.pause_and_resume(paused, backlogs.keys() - paused)
            for p, messages in self._poll_messages(POLL_SECONDS).items():
                is_wanted = (messages.offsets < ends[p]) & (messages.value_sizes >= 0)
                backlogs[p].extend(messages if is_wanted.all() else messages.select_messages(is_wanted))
        return not self._stopping.is_set()

    def _poll_messages(self, seconds: float) -> dict[int, Messages]:
        try:
            return self._consumer.poll(seconds)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            self._refresh_partitions()  # which says so where it is another topic now
            self._pass_over_removed(error)
            return {}
        except LogTruncationError as error:
            raise lost_messages_error(self._name, f"it was cut back, or deleted and created again ({error})") from error
        except KafkaError as error:
            raise to_stream_error(self._name, error, self._connection, self._topic, self._consumer.group) from error

    def _pass_over_removed(self, error: KafkaError) -> None:
        """Continue at ``start`` in partitions whose next messages are gone; StreamError without ``start``."""
        beginnings, ends = self.topic_offsets.beginning_and_end_offsets(
            self.next_offsets if self.pass_ends is None else self.pass_ends
        )
        positions = {p: self._consumer.cached_position(p) for p in beginnings}
        at = {p: self.next_offsets[p] if offset is None else offset for p, offset in positions.items()}
        gone = {p: describe_removal(p, begin, ends[p], at[p]) for p, begin in beginnings.items() if at[p] < begin}
        if not gone or self._start is None:
            raise lost_messages_error(
                self._name, min(gone.values(), default=f"messages that were not read are gone ({error})")
            ) from error
        first = self.topic_offsets.find_start_offsets(self._start, beginnings, ends)
        for reason in gone.values():
            warn(f"{self._name}: {reason}. Reading continues from {self._start.text}")
        self._consumer.assign(at | {p: first[p] for p in gone})
        if self.pass_ends is None:  # else those before them may still wait for their turn
            self.next_offsets |= {p: first[p] for p in gone}

    def _refresh_partitions(self) -> None:
        if (description := try_describe_topic(self._connection, self._topic, self._name)) is None:
            return
        if description.topic_id != self._topic_id:
            raise lost_messages_error(self._name, "it was deleted and created again while it was read")
        if added := tuple(p for p in description.partitions if p not in self.next_offsets):
            self.next_offsets |= self.topic_offsets.beginning_and_end_offsets(added)[0]
            self._consumer.assign(self.next_offsets)
