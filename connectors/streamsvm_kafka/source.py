"""A Kafka topic as a source of rows, whose offsets are saved by the learning loop."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streamsvm._warnings import warn
from streamsvm.runtime.endpoints import START_AFRESH, BadRow, Position, Row, StreamError
from streamsvm_kafka.codecs import Codec
from streamsvm_kafka.connection import CONNECT_SECONDS, BrokerUnreachableError, Connection, describe_topic
from streamsvm_kafka.offsets import TopicOffsets
from streamsvm_kafka.start import Start, start_of

__all__ = ["KafkaSource"]

logger = logging.getLogger(__name__)

#: The longest wait for messages, and so the longest time until `KafkaSource.stop` and a signal take effect.
POLL_MS = 200
#: The most that is fetched of a partition at once. A longer message still comes, alone.
FETCH_BYTES = 1 << 18
#: A bounded pass fetches no more of a partition while so many of its messages wait for their turn.
PREFETCH = 1000
#: A bounded pass gives up if none of its remaining messages comes for so long.
STALL_SECONDS = 60.0
#: A joined stream goes on without this one if it has messages to read and none comes for so long (of an open transaction).
BEHIND_SECONDS = 5.0
#: Time between two checks of an endless stream for new partitions, and for a topic that was replaced.
REFRESH_SECONDS = 60.0


def consumer_of(connection: Connection, group: str | None, fetches: int, **more: Any) -> Any:
    """Make a consumer that commits nothing by itself, skips nothing, and holds so many fetches of `FETCH_BYTES` at once."""
    return connection.client(
        KafkaConsumer,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        allow_auto_create_topics=False,
        # kafka-python 3.0.12 never returns to a partition that was paused with half of a fetch read, so every poll takes all
        # messages and the size of a fetch is the bound.
        max_poll_records=sys.maxsize,
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_bytes=fetches * FETCH_BYTES,
        **more,
    )


class KafkaSource:
    """The rows of all partitions of one topic.

    The source joins no consumer group: the learning loop saves its `position` in one checkpoint with the
    model, and `seek` returns to it, so that every row counts exactly once in the model however often the process is killed. Rows
    of aborted transactions are not read (``read_committed``); messages without a value (tombstones) are no rows. A message that
    the codec cannot decode is given as a `BadRow`.

    With ``stop_at_end`` the stream is one bounded pass, from the position to the ends that the partitions had when the source
    was opened. Its order is fixed: one row of each partition in turn, by partition number, until all are exhausted. A pass that
    is resumed from a checkpoint has the same ends and the same turn, so that it gives the same rows in the same order as one
    that was never interrupted; new messages are for the next pass.

    Without ``stop_at_end`` the stream never ends (but see `stop`) and gives rows as they arrive. Rows of one partition stay in
    order; how partitions mix depends on the moment, so a stream that must be reproducible has one partition. Partitions that
    are added to the topic are read within a minute. If the broker goes away, the source waits for it.

    Memory is bounded by the number of partitions: of each, at most 1000 messages and two fetches of 256 KiB are held.

    Parameters
    ----------
    bootstrap
        ``host:port`` of a broker, or several with commas between them.
    topic
        Name of the topic, which must exist.
    codec
        Decodes a message, such as `JSONCodec` or `Float32Codec`.
    stop_at_end
        Read one bounded pass instead of an endless stream.
    start
        Where to begin: ``"earliest"``, ``"latest"``, a time such as ``"2026-03-01T12:00:00Z"``, or ``"PARTITION:OFFSET"``,
        several with commas between them. None: at the earliest message. A position that `seek` goes on from counts more, unless
        the topic no longer holds what follows it: then a partition goes on from ``start`` (with a warning) if it is given.
    group
        The consumer group whose offsets follow the checkpoints, for tools that show how far a group is behind. Nothing is read
        from there, and the source does not join it. None: nothing is committed.
    client
        Options of the connection, see `client_options`.

    Raises
    ------
    BrokerUnreachableError
        No broker answers at ``bootstrap`` within 10 seconds, or ``outage_seconds`` if that is more.
    StreamError
        An option is wrong, the broker does not let the user in, or the topic does not exist or may not be read. While iterating
        also: messages that retention removed before they were read, a topic that was deleted or replaced.

    Warns
    -----
    RuntimeWarning
        Retention has removed messages from the topic's beginning, so that a stream from the earliest one lacks them; or messages
        that the position of a checkpoint had not reached.

    Examples
    --------
    >>> from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish
    >>> codec = JSONCodec(label="y")
    >>> with EmbeddedBroker() as broker:
    ...     _ = publish([Row({"x": 1.5}, 0), Row({"x": 2.5}, 1)], broker.bootstrap, "rows", codec, client=broker.client)
    ...     source = KafkaSource(broker.bootstrap, "rows", codec, stop_at_end=True, client=broker.client)
    ...     sorted(row.x["x"] for row in source)
    ...     source.close()
    [1.5, 2.5]
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: Codec,
        *,
        stop_at_end: bool = False,
        start: str | None = None,
        group: str | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = f"kafka://{bootstrap}/{topic}"
        self._connection, self._topic, self._codec = Connection(bootstrap, client), topic, codec
        self._stop_at_end = stop_at_end
        self._start = start_of(start, self.name)
        self._stopping = threading.Event()
        description = describe_topic(self._connection, topic)
        self._topic_id = description.topic_id
        self._consumer = consumer_of(self._connection, group, 64)
        self._topic_offsets = TopicOffsets(self._consumer, self.name, topic)
        try:
            self._beginnings, self._newest = self._topic_offsets.bounds(description.partitions)
            self._offsets = self._topic_offsets.first(
                self._start or Start("earliest", "earliest"), self._beginnings, self._newest
            )
        except BaseException:
            self.close()
            raise
        self._sought = False
        # Of the present bounded pass: the ends of its partitions, and the partition whose turn it is.
        self._ends = self._newest if stop_at_end else None
        self._turn = description.partitions[0]
        self._last = (self._turn, -1)  # partition and offset of the row that was given last
        #: The value of the message that was given last.
        self.raw = b""
        self._record: Any = None

    @property
    def place(self) -> str:
        """The topic, and the partition and offset of the message that was given last."""
        partition, offset = self._last
        return f"{self.name}: message at partition {partition}, offset {offset}"

    @property
    def position(self) -> Position:
        """The next offset of each partition, and the name of the label; in a bounded pass also its ends and whose turn it is.

        ``{"topic": ..., "topic_id": ..., "label": "y", "partitions": {"0": 17, ...}, "ends": {"0": 40, ...} or None, "turn": 0}``
        """
        return {
            "topic": self._topic,
            "topic_id": self._topic_id,
            "label": getattr(self._codec, "label", None),
            "partitions": {str(partition): offset for partition, offset in self._offsets.items()},
            "ends": self._ends and {str(partition): end for partition, end in self._ends.items()},
            "turn": self._turn,
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``; only before the first row was read.

        Partitions that are newer than the position are read from their beginning. With ``stop_at_end``, an interrupted pass goes
        on to the ends that it had; if nothing is left of it, a new one begins.

        Raises
        ------
        StreamError
            The position is of another topic; or, where ``start`` is not given, of an earlier topic of this name or of messages
            that the topic no longer holds.
        """
        self._check_topic(position)
        offsets = {int(partition): int(offset) for partition, offset in position["partitions"].items()}
        pass_ends = {int(partition): int(end) for partition, end in (position["ends"] or {}).items()}
        beginnings, ends = self._topic_offsets.bounds(self._offsets)
        lost = {}  # reasons, by partition
        if None not in (position["topic_id"], self._topic_id) and position["topic_id"] != self._topic_id:
            lost = dict.fromkeys(beginnings, "it was deleted and created again since the checkpoint")
            offsets, pass_ends = {}, {}
        for partition, offset in offsets.items():
            if partition not in beginnings:
                lost[partition] = f"it has no partition {partition} any more, which the checkpoint continues"
                continue
            begin, end, known = beginnings[partition], ends[partition], max(offset, pass_ends.get(partition, 0))
            place = f"partition {partition} holds offsets {begin} to {end}, the checkpoint"
            if offset < begin:
                lost[partition] = f"{place} goes on at {offset}: retention has removed {begin - offset} unread messages"
            elif known > end:
                lost[partition] = f"{place} knows of {known}: the topic was cut back, or is not the one that was learned"
        following = beginnings | {partition: offset for partition, offset in offsets.items() if partition in beginnings}
        if lost:
            first = self._topic_offsets.first(self._lost_start(set(lost.values())), beginnings, ends)
            following |= {partition: first[partition] for partition in lost if partition in first}
        self._offsets, self._sought = following, True
        if self._stop_at_end and pass_ends:
            self._ends = {partition: min(end, ends[partition]) for partition, end in pass_ends.items() if partition in ends}
            self._turn = int(position["turn"])

    @property
    def message_time(self) -> float | None:
        """The time of the message that was given last, in seconds since 1970; None if it has none."""
        return None if self._record is None or self._record.timestamp < 0 else self._record.timestamp / 1000

    @property
    def message_key(self) -> str | bytes | None:
        """The key of the message that was given last, as text; as bytes where they are none of UTF-8."""
        key: bytes | None = None if self._record is None else self._record.key
        try:
            return None if key is None else key.decode()
        except UnicodeDecodeError:
            return key

    @property
    def endless(self) -> bool:
        """Whether the stream never ends."""
        return not self._stop_at_end

    def __iter__(self) -> Iterator[Row | BadRow]:
        self._warn_of_removed()
        if self._ends is None:
            yield from (row for row in self._endless(pauses=False) if row is not None)
            return
        began = False
        for row in self._bounded(self._ends):
            began = True
            yield row
        # The checkpoint may have been written after the last row of its pass: then this pass is for the messages since.
        if not began and not self._stopping.is_set():
            yield from self._bounded(self._newest)

    def messages(self) -> Iterator[Row | BadRow | None]:
        """Iterate as a part of a `JoinedSource`.

        An endless stream gives None where it has nothing more to read. A bounded pass has the order of the messages' times, of
        all partitions; within a partition the order is kept. One that is resumed ends where it would have ended.
        """
        self._warn_of_removed()
        yield from self._endless(pauses=True) if self._ends is None else self._bounded(self._ends, by_time=True)

    def _warn_of_removed(self) -> None:
        removed = {} if self._sought else {p: begin for p, begin in self._beginnings.items() if self._offsets[p] == begin > 0}
        if removed:
            places = ", ".join(f"{begin:,} of partition {partition}" for partition, begin in removed.items())
            warn(f"{self.name}: retention has removed the oldest messages before this run: {places}")
        self._sought = True

    def lag(self) -> dict[int, int]:
        """Return how many messages of each partition wait to be read, as far as the broker has told. From any thread."""
        told = {key.partition: self._consumer.highwater(key) or 0 for key in self._consumer.assignment()}
        return {p: max(told.get(p, 0), self._newest.get(p, 0)) - offset for p, offset in dict(self._offsets).items()}

    def saved(self) -> None:
        """Commit the `position`, which a checkpoint holds now, for the group. A failure is logged."""
        if self._consumer.config["group_id"] is not None:
            self._topic_offsets.commit(self._offsets)

    def stop(self) -> None:
        """End the iteration before its next row, or within a fraction of a second if it waits for one.

        May be called from a signal handler or another thread. `position` stays valid.
        """
        self._stopping.set()

    def close(self) -> None:
        """Close the connection."""
        if hasattr(self, "_topic_offsets"):
            self._topic_offsets.finish()
        self._consumer.close(autocommit=False, timeout_ms=1000 * CONNECT_SECONDS)

    def _endless(self, pauses: bool) -> Iterator[Row | BadRow | None]:
        """Give rows as they come; with ``pauses`` None instead of a wait, once all was read."""
        self._assign(self._offsets)
        now = time.monotonic()
        refresh, came, silent = now + REFRESH_SECONDS, now, False
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= refresh:
                self._refresh()
                refresh = now + REFRESH_SECONDS
            polled = self._poll(0 if silent else POLL_MS)
            for key, records in polled.items():
                for record in records:
                    if self._stopping.is_set():
                        return
                    self._offsets[key.partition] = record.offset + 1
                    if record.value is not None:
                        yield self._decode(record)
            if polled:
                came, silent = time.monotonic(), False
            elif pauses:
                silent = silent or self._caught_up() or time.monotonic() - came > BEHIND_SECONDS
                if silent:
                    yield None

    def _caught_up(self) -> bool:
        """Whether all that the broker has told of was read."""
        keys = [TopicPartition(self._topic, partition) for partition in self._offsets]
        reached = {key: self._consumer.position(key, timeout_ms=POLL_MS) for key in keys}
        known = {key: max(self._consumer.highwater(key) or 0, self._newest.get(key.partition, 0)) for key in keys}
        return all(reached[key] is not None and reached[key] >= known[key] for key in keys)

    def _bounded(self, ends: dict[int, int], by_time: bool = False) -> Iterator[Row | BadRow]:
        buffers: dict[int, deque[Any]] = {partition: deque() for partition in ends}
        order = sorted(ends)
        first = order.index(self._turn) if self._turn in ends else 0
        waiting = deque(order[first:] + order[:first])
        self._ends = ends
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
            record = buffers[partition].popleft()
            row = self._decode(record)
            waiting.rotate(-1)
            # The offset never runs ahead of the rows (over tombstones, markers of transactions), which arrive at any moment:
            # equal rows must leave equal positions.
            self._offsets[partition], self._turn = record.offset + 1, order[0] if by_time else waiting[0]
            yield row
        self._offsets |= ends
        self._ends = None
        self._turn = order[0]

    def _oldest_first(self, waiting: Iterable[int], buffers: dict[int, deque[Any]], ends: dict[int, int]) -> deque[int]:
        """Return partitions by the time of their next message; those that are exhausted come first."""
        for partition in waiting:
            self._fill(partition, buffers, ends)
        return deque(sorted(waiting, key=lambda p: (buffers[p][0].timestamp if buffers[p] else -math.inf, p)))

    def _fill(self, partition: int, buffers: dict[int, deque[Any]], ends: dict[int, int]) -> bool:
        """Wait until the partition has a message in its buffer; False if it is exhausted, or the source was stopped."""
        progress, deadline = None, time.monotonic() + STALL_SECONDS
        while not buffers[partition]:
            reached = {p: self._consumer.position(TopicPartition(self._topic, p), timeout_ms=POLL_MS) for p in buffers}
            if self._stopping.is_set() or reached[partition] >= ends[partition]:
                return False
            if reached != progress:
                progress, deadline = reached, time.monotonic() + STALL_SECONDS
            elif time.monotonic() > deadline:
                raise StreamError(
                    f"{self.name}: partition {partition} gave nothing for {STALL_SECONDS:g} s at offset {reached[partition]}, "
                    f"and ends at {ends[partition]}. Check the broker, then start again from the checkpoint."
                )
            for p, buffer in buffers.items():
                full = len(buffer) >= PREFETCH or reached[p] >= ends[p]
                (self._consumer.pause if full else self._consumer.resume)(TopicPartition(self._topic, p))
            for key, records in self._poll().items():
                end = ends[key.partition]
                buffers[key.partition].extend(one for one in records if one.offset < end and one.value is not None)
        return not self._stopping.is_set()

    def _poll(self, milliseconds: int = POLL_MS) -> dict[Any, list[Any]]:
        try:
            messages: dict[Any, list[Any]] = self._consumer.poll(milliseconds)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise self._lost(f"retention has removed unread messages ({error})") from error
        except LogTruncationError as error:
            raise self._lost(f"it was cut back, or deleted and created again ({error})") from error
        except KafkaError as error:
            raise StreamError(f"{self.name}: cannot be read: {error}") from error
        return messages

    def _decode(self, record: Any) -> Row | BadRow:
        self._last, self.raw, self._record = (record.partition, record.offset), record.value, record
        try:
            return self._codec.decode(record.value)
        except ValueError as error:
            return BadRow(self.place, record.value, str(error))

    def _assign(self, partitions: Iterable[int]) -> None:
        keys = [TopicPartition(self._topic, partition) for partition in partitions]
        self._consumer.assign(keys)
        for key in keys:
            self._consumer.seek(key, self._offsets[key.partition])

    def _refresh(self) -> None:
        try:
            description = describe_topic(self._connection, self._topic)
        except BrokerUnreachableError as error:
            logger.warning("%s: %s The stream goes on when it is back.", self.name, error)
            return
        if description.topic_id != self._topic_id:
            raise self._lost("it was deleted and created again while it was read")
        if added := tuple(p for p in description.partitions if p not in self._offsets):
            self._offsets |= self._topic_offsets.bounds(added)[0]
            self._assign(self._offsets)

    def _check_topic(self, position: Position) -> None:
        if not {"topic", "topic_id", "label", "partitions", "ends", "turn"} <= position.keys():
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream. Give that stream, {START_AFRESH}")
        if position["topic"] != self._topic:
            raise StreamError(f"{self.name}: the checkpoint is of topic {position['topic']!r}. Give that topic, {START_AFRESH}")
        if position["label"] != (label := getattr(self._codec, "label", None)):
            raise StreamError(
                f"{self.name}: the checkpoint was learned with the label {position['label']!r}, not {label!r}. "
                f"Ask for the same, {START_AFRESH}"
            )

    def _lost_start(self, reasons: set[str]) -> Start:
        """Return where to begin in partitions that cannot be continued, with a warning; StreamError if nobody has said it."""
        if self._start is None:
            raise self._lost(min(reasons))
        for reason in sorted(reasons):
            warn(f"{self.name}: {reason}. The model is kept, and reading goes on from {self._start.text}")
        return self._start

    def _lost(self, reason: str) -> StreamError:
        return StreamError(
            f"{self.name}: {reason}. To go on with the model of the checkpoint, say where: --from earliest, latest, a time or "
            "PARTITION:OFFSET (start=... of KafkaSource)"
        )
