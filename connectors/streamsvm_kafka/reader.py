"""Reads all partitions of a topic for `KafkaSource`: endlessly as messages arrive, or once up to the current end offsets."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from kafka.errors import KafkaError, LogTruncationError, NoOffsetForPartitionError, OffsetOutOfRangeError, UnsupportedCodecError

from streamsvm.core.warning import warn
from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.clients.messages import NO_MESSAGES, Backlog, Messages, concatenate_messages
from streamsvm_kafka.clients.protocol import TopicConsumer
from streamsvm_kafka.connection import BrokerUnreachableError, Connection, TopicDescription, describe_missing_right
from streamsvm_kafka.offsets import StartPoint, TopicOffsets
from streamsvm_kafka.topics import describe_topic

logger: logging.Logger = logging.getLogger(__name__)

#: Longest wait of one poll for messages, and so the longest time until a signal takes effect.
POLL_SECONDS = 0.2
#: A bounded pass pauses fetching from a partition while its backlog has at least this many messages or bytes.
PREFETCH_MESSAGES, PREFETCH_BYTES = 3000, 4 << 20
#: A bounded pass fails if it waits this long for a message and no partition makes progress.
STALL_SECONDS = 60.0
#: A join stops waiting for a topic whose unread messages have not arrived after this time (they are in an open transaction).
JOIN_WAIT_SECONDS = 5.0
#: Interval of an endless stream's checks for new partitions, and for a topic that was deleted and created again.
REFRESH_SECONDS = 60.0

#: Reason for a `lost_messages_error`.
RECREATED_REASON = "it was deleted and created again since the checkpoint"
#: Packages that kafka-python needs to decompress messages.
_DECOMPRESSION_PACKAGES = {"lz4": "lz4", "snappy": "python-snappy", "zstd": "zstandard"}


class TopicReader:
    """Iterates over the messages of all partitions of a topic, and tracks the next offset of each.

    With ``stop_at_end``, it makes one bounded pass to the current end offsets; without, it is endless. ``start`` is where to
    continue if retention removes unread messages; None makes that an error. ``consumer`` must not have an assignment yet.
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
        beginnings, ends = self.topic_offsets.beginning_and_end_offsets(description.partitions)
        #: First offset of each partition when the topic was opened.
        self.beginning_offsets: dict[int, int] = beginnings
        #: End offset of each partition when the topic was opened.
        self.end_offsets: dict[int, int] = ends
        #: Next offset of each partition: the one after the last message that `iter_batches` has yielded.
        self.next_offsets: dict[int, int] = dict(beginnings)
        #: End offsets of the current bounded pass; None for an endless stream, and after the pass.
        self.pass_ends: dict[int, int] | None = self.end_offsets if stop_at_end else None
        #: The partition from which a bounded pass takes its next message.
        self.next_partition: int = description.partitions[0]
        #: Maximum number of messages in a batch. It may be changed before each batch.
        self.max_messages: int = 1
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the iteration over messages, also while it waits for some. Safe to call from a signal handler or another thread."""
        self._stopping.set()

    def iter_batches(self, is_joined: bool) -> Iterator[Messages]:
        """Yield the next messages of the topic in batches of at most `max_messages`: up to the end of the topic, or endlessly
        (``stop_at_end=False``), with an empty batch if no message arrives within 0.2 s. ``is_joined`` is True if the topic is one
        of the two streams of a join.

        If the topic is one of the two streams of a join, an endless stream yields empty batches only once it has read all
        available messages, and then without waiting, and a bounded pass is in the order of message times.
        """
        if self.pass_ends is None:
            yield from self._iter_endless(is_joined)
            return
        is_empty = True
        for batch in self._iter_bounded(self.pass_ends, by_time=is_joined):
            is_empty = False
            yield batch
        # If the resumed pass was already complete at the checkpoint, begin a new one with the messages that have arrived since.
        if is_empty and not (is_joined or self._stopping.is_set()):
            yield from self._iter_bounded(self.end_offsets)

    def compute_lag(self) -> dict[int, int]:
        """Return the number of unread messages by partition (the consumer lag), as of the broker's last response. Thread-safe."""
        return self.topic_offsets.compute_lag(dict(self.next_offsets), self.end_offsets)

    def _iter_endless(self, is_joined: bool) -> Iterator[Messages]:
        """Yield batches of messages as they arrive, each from one partition, until `stop` is called. A batch is empty if no
        message has arrived for a while. If ``is_joined`` (the topic is one of the two streams of a join), this happens only after
        all available messages.
        """
        self._consumer.assign(self.next_offsets)
        now = time.monotonic()
        refresh_time, last_arrival, is_idle = now + REFRESH_SECONDS, now, False
        while not self._stopping.is_set():
            now = time.monotonic()
            self.topic_offsets.advance_past_markers(self.next_offsets)
            if now >= refresh_time:
                self._refresh_partitions()
                refresh_time = now + REFRESH_SECONDS
            polled = self._poll_messages(0.0 if is_idle else POLL_SECONDS)
            for partition, messages in polled.items():
                position = 0
                while position < len(messages):
                    if self._stopping.is_set():
                        return
                    batch = messages[position : position + self.max_messages]
                    position += len(batch)
                    self.next_offsets[partition] = int(batch.offsets[-1]) + 1
                    has_value = batch.value_sizes >= 0  # tombstones are skipped
                    if has_value.any():
                        yield batch if has_value.all() else batch.select_messages(has_value)
            if polled:
                last_arrival, is_idle = time.monotonic(), False
            else:
                is_idle = is_joined and (is_idle or self._has_caught_up() or time.monotonic() - last_arrival > JOIN_WAIT_SECONDS)
                if is_idle or not is_joined:
                    yield NO_MESSAGES

    def _has_caught_up(self) -> bool:
        """Return whether all messages were fetched, up to the end offsets in the broker's last responses."""
        positions = {partition: self._consumer.position(partition) for partition in self.next_offsets}
        ends = {p: self.topic_offsets.find_end_offset(p, self.end_offsets.get(p, 0)) for p in positions}
        return all(position is not None and position >= ends[p] for p, position in positions.items())

    def _iter_bounded(self, pass_ends: dict[int, int], by_time: bool = False) -> Iterator[Messages]:
        """Yield batches of messages up to the end offset of each partition, in ``pass_ends``. Messages alternate between the
        partitions; if ``by_time``, they are merged in the order of their timestamps.
        """
        backlogs = {partition: Backlog() for partition in pass_ends}
        partitions = sorted(pass_ends)
        first = partitions.index(self.next_partition) if self.next_partition in pass_ends else 0
        unfinished = deque(partitions[first:] + partitions[:first])
        self.pass_ends = pass_ends
        self._consumer.assign({partition: self.next_offsets[partition] for partition in pass_ends})
        while unfinished:
            if by_time:
                unfinished = self._sort_by_time(unfinished, backlogs, pass_ends)
            partition = unfinished[0]
            has_message = self._fill_backlog(partition, backlogs, pass_ends)
            if self._stopping.is_set():
                return
            if not has_message:
                unfinished.popleft()
                continue
            # Equal rows must leave equal positions. So next offsets follow the yielded messages, and not the tombstones and
            # transaction markers after them, which may or may not have been fetched yet.
            n_rounds = 0
            if not by_time:
                n_rounds = min(self.max_messages // len(unfinished), *(len(backlogs[p]) for p in unfinished), self.max_messages)
            if n_rounds:  # take one message of each partition in turn, n_rounds times
                parts = [backlogs[p].pop_first(n_rounds) for p in unfinished]
                self.next_offsets |= {p: int(part.offsets[-1]) + 1 for p, part in zip(unfinished, parts, strict=True)}
                batch = parts[0]
                if len(parts) > 1:
                    order = np.arange(n_rounds * len(parts)).reshape(len(parts), n_rounds).T.ravel()
                    batch = concatenate_messages(parts).select_messages(order)
            else:
                batch = backlogs[partition].pop_first(1)
                unfinished.rotate(-1)
                self.next_offsets[partition] = int(batch.offsets[-1]) + 1
            self.next_partition = partitions[0] if by_time else unfinished[0]
            yield batch
        self.next_offsets |= pass_ends
        self.pass_ends = None
        self.next_partition = partitions[0]

    def _sort_by_time(self, partitions: Iterable[int], backlogs: dict[int, Backlog], pass_ends: dict[int, int]) -> deque[int]:
        """Return ``partitions`` sorted by the timestamp of their next unread message; partitions without further messages come
        first. ``backlogs`` are the fetched messages by partition; messages are fetched, up to the offsets ``pass_ends``, if they
        are empty.
        """
        for partition in partitions:
            self._fill_backlog(partition, backlogs, pass_ends)
        return deque(sorted(partitions, key=lambda p: (backlogs[p].first_time if len(backlogs[p]) else -math.inf, p)))

    def _fill_backlog(self, partition: int, backlogs: dict[int, Backlog], pass_ends: dict[int, int]) -> bool:
        """Poll until the backlog (the fetched messages) of ``partition`` contains a message. Return False if its end offset in
        ``pass_ends`` is reached without one, or `stop` was called.
        """
        last_positions, deadline = None, time.monotonic() + STALL_SECONDS
        while not len(backlogs[partition]):
            positions = {p: self._consumer.position(p) for p in backlogs}
            position = positions[partition]
            if self._stopping.is_set() or (position is not None and position >= pass_ends[partition]):
                self.topic_offsets.advance_past_markers([partition])
                return False
            if positions != last_positions:
                last_positions, deadline = positions, time.monotonic() + STALL_SECONDS
            elif time.monotonic() > deadline:
                raise StreamError(
                    f"{self._name}: partition {partition} delivered no message for {STALL_SECONDS:g} s at offset {position}, "
                    f"before its end {pass_ends[partition]}. Check the broker, then start again from the checkpoint."
                )
            paused = {
                p
                for p, backlog in backlogs.items()
                if len(backlog) >= PREFETCH_MESSAGES
                or backlog.total_bytes >= PREFETCH_BYTES
                or (positions[p] or 0) >= pass_ends[p]
            }
            self._consumer.pause_and_resume(paused, backlogs.keys() - paused)
            for p, messages in self._poll_messages(POLL_SECONDS).items():
                is_wanted = (messages.offsets < pass_ends[p]) & (messages.value_sizes >= 0)
                backlogs[p].extend(messages if is_wanted.all() else messages.select_messages(is_wanted))
        return not self._stopping.is_set()

    def _poll_messages(self, seconds: float) -> dict[int, Messages]:
        """Return newly fetched messages by partition; empty if none arrives within ``seconds``. Raise a StreamError if the topic
        is not readable any more.
        """
        try:
            return self._consumer.poll(seconds)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            self._refresh_partitions()  # raises if the topic was recreated
            self._skip_removed_messages(error)
            return {}
        except LogTruncationError as error:
            raise lost_messages_error(self._name, f"it was truncated, or deleted and created again ({error})") from error
        except KafkaError as error:
            raise to_stream_error(self._name, error, self._connection, self._topic, self._consumer.group) from error

    def _skip_removed_messages(self, error: KafkaError) -> None:
        """Continue at the user's ``start`` in partitions whose next messages were deleted by the topic's retention, with a
        warning. Raise a StreamError if the user has not set ``start``. ``error`` is the exception of the poll.
        """
        partitions = self.next_offsets if self.pass_ends is None else self.pass_ends
        beginnings, ends = self.topic_offsets.beginning_and_end_offsets(partitions)
        positions = {p: self._consumer.cached_position(p) for p in beginnings}
        offsets = {p: self.next_offsets[p] if offset is None else offset for p, offset in positions.items()}
        reasons = {p: describe_removal(p, first, ends[p], offsets[p]) for p, first in beginnings.items() if offsets[p] < first}
        if not reasons or self._start is None:
            reason = min(reasons.values(), default=f"messages that were not read are gone ({error})")
            raise lost_messages_error(self._name, reason) from error
        start_offsets = self.topic_offsets.find_start_offsets(self._start, beginnings, ends)
        for reason in reasons.values():
            warn(f"{self._name}: {reason}. Reading continues from {self._start.text}")
        self._consumer.assign(offsets | {p: start_offsets[p] for p in reasons})
        if self.pass_ends is None:  # in a bounded pass, earlier messages may still be in the backlog
            self.next_offsets |= {p: start_offsets[p] for p in reasons}

    def _refresh_partitions(self) -> None:
        """Start to read partitions that were added to the topic. Raise a StreamError if it was deleted and created again."""
        if (description := try_describe_topic(self._connection, self._topic, self._name)) is None:
            return
        if description.topic_id != self._topic_id:
            raise lost_messages_error(self._name, "it was deleted and created again while it was read")
        if new_partitions := tuple(p for p in description.partitions if p not in self.next_offsets):
            self.next_offsets |= self.topic_offsets.beginning_and_end_offsets(new_partitions)[0]
            self._consumer.assign(self.next_offsets)


def try_describe_topic(connection: Connection, topic: str, name: str) -> TopicDescription | None:
    """Request the current id and partitions of a topic. Return None, with a logged warning that begins with the stream's
    ``name``, if no broker is reachable.
    """
    try:
        return describe_topic(connection, topic)
    except BrokerUnreachableError as error:
        # With kafka-python, the consumer has warned already.
        level = logging.DEBUG if connection.library == "kafka-python" else logging.WARNING
        logger.log(level, "%s: %s Reading continues when it is back.", name, error)
        return None


def find_resume_obstacle(partition: int, beginning: int, end_offset: int, next_offset: int, known_offset: int) -> str | None:
    """Return a text that says why reading of a partition cannot continue at ``next_offset`` of a checkpoint, or None if it can.
    Either messages were removed before ``beginning``, or the topic was truncated: its ``end_offset`` is below ``known_offset``,
    the largest in the checkpoint.

    The partition holds offsets ``beginning`` to ``end_offset``.
    """
    place = f"partition {partition} holds offsets {beginning} to {end_offset}, the checkpoint"
    if next_offset < beginning:
        return f"{place} continues at {next_offset}: retention has removed {beginning - next_offset} unread messages"
    if known_offset > end_offset:
        return f"{place} has seen offset {known_offset}: the topic was truncated, or is not the one that was learned"
    return None


def describe_removal(partition: int, beginning: int, end_offset: int, next_offset: int) -> str:
    """Return a sentence for a message to the user: the topic's retention has deleted unread messages of a partition.
    ``next_offset`` is the next offset to read, but the partition now has the offsets ``beginning`` to ``end_offset``.
    """
    return (
        f"partition {partition} holds offsets {beginning} to {end_offset}, and {next_offset} is next: retention has removed "
        f"{beginning - next_offset} unread messages"
    )


def lost_messages_error(name: str, reason: str) -> StreamError:
    """Return the StreamError for a stream ``name`` whose next messages are not in the topic any more, for ``reason``. It advises
    to choose where reading continues.
    """
    return StreamError(
        f"{name}: {reason}. To continue with the model of the checkpoint, choose where: --from earliest, latest, a time or "
        "PARTITION:OFFSET (start=... of KafkaSource)"
    )


def to_stream_error(name: str, error: KafkaError, connection: Connection, topic: str, group: str | None = None) -> StreamError:
    """Return the StreamError to raise for an ``error`` of the Kafka client while reading ``topic``. It names the access right
    that the user lacks, or the package that decompression needs, if that is the cause.
    """
    if (right := describe_missing_right(connection.user, error, "Read", topic, group=group)) is not None:
        return StreamError(f"{name}: {right}")
    if isinstance(error, UnsupportedCodecError):
        for compression, package in _DECOMPRESSION_PACKAGES.items():
            if compression in str(error):
                remedy = f'{compression}, which needs {package}: pip install "streamsvm[kafka]"'
                return StreamError(f"{name}: its messages are compressed by {remedy}")
    return StreamError(f"{name}: cannot be read: {error}")
