"""Sources of rows from a Kafka topic (`KafkaSource`), or from one partition of a worker (`PartitionSource`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streamsvm.core.checks import validate_count, validate_mapping
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.stream.continuation import describe_label
from streamsvm.stream.endpoints import ForeignPositionError, Position, StreamError
from streamsvm.stream.rows import find_keys
from streamsvm.stream.stream_loop import StreamLoop
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.messages import Backlog, Messages
from streamsvm_kafka.codecs import MessageCodec
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, TopicDescription
from streamsvm_kafka.decoding import MessageSource
from streamsvm_kafka.offsets import StartPoint, parse_start
from streamsvm_kafka.reader import RECREATED_REASON, TopicReader, find_resume_obstacle, lost_messages_error
from streamsvm_kafka.topics import TopicEndpoint, describe_topic


class KafkaSource(MessageSource):
    """The rows of all partitions of a Kafka topic.

    Use it as the source of a `LearningLoop`. The loop saves the position in the same checkpoint as the model, and `seek`
    returns to it, so every row counts exactly once in the model, however often the process is killed. The source joins no
    consumer group.

    Rows of aborted transactions are not read (``read_committed``), and messages without a value (tombstones) are not rows. A
    message that the codec cannot decode becomes a `BadRow`.

    With ``stop_at_end``, the stream is one bounded pass, from the position to the end offsets of the partitions when the source
    was opened. Its order is fixed: one row of each partition in turn, by partition number, until all are exhausted. A pass that
    resumes from a checkpoint keeps its end offsets and the next partition, so it has the same rows in the same order as one that
    was never interrupted. New messages are left for the next pass.

    Without ``stop_at_end``, the stream is endless (until you call `stop`), and returns rows as they arrive. Rows of one partition
    stay in order, but how partitions interleave depends on timing, so use one partition if the stream has to be reproducible.
    Partitions that are added to the topic are read within a minute. If the broker is unreachable, the source waits for it.

    The number of partitions bounds the memory. For each partition, the source holds at most 3000 messages, or 4 MiB of them,
    and two fetches of 256 KiB, or of 1 MiB if messages have many rows (with confluent-kafka, 2 MiB of fetches). A longer message
    is held alone. Compressed fetches take as much memory as they decompress to.

    Parameters
    ----------
    bootstrap
        ``host:port`` of a broker, or several with commas between them.
    topic
        Name of the topic, which must exist.
    codec
        Codec that decodes the messages, such as `JSONCodec` or `Float32Codec`.
    stop_at_end
        Whether to read one bounded pass instead of an endless stream.
    start
        Where reading starts without a checkpoint: ``"earliest"``, ``"latest"``, a time such as ``"2026-03-01T12:00:00Z"``, or
        ``"PARTITION:OFFSET"``, several with commas between them. None starts at the earliest message. A position passed to `seek`
        has precedence. Only if the topic no longer holds the messages after that position, or retention removes them before they
        are read, does the partition continue from ``start``, with a warning; without ``start``, that is an error.
    group
        Consumer group for which the offsets of each checkpoint are committed, so that tools can show its lag. The source does not
        join the group, and ignores the group's offsets. None commits no offsets.
    client
        Options of the connection, such as TLS and passwords; see `client_options`.
    message_columns
        Parts of each message that become columns of its row: ``"key"`` and ``"header.NAME"`` (as texts), and ``"timestamp"`` (in
        seconds since 1970). A row that has a field of this name keeps its value; write ``"message.key"`` for a column beside it.
        A run that continues from a checkpoint reads those of the checkpoint.

    Raises
    ------
    BrokerUnreachableError
        No broker answers at ``bootstrap`` within 10 seconds, or within ``outage_seconds`` if that is more.
    StreamError
        An option is invalid, the broker refuses the user, or the topic does not exist or may not be read. While you iterate,
        also: retention has removed messages before they were read, or the topic was deleted or recreated.

    Warns
    -----
    RuntimeWarning
        Retention has removed messages that a stream from the earliest one would have had, or messages that were to be read
        next.

    Examples
    --------
    >>> from streamsvm.stream import Row
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
        codec: MessageCodec,
        *,
        stop_at_end: bool = False,
        start: str | None = None,
        group: str | None = None,
        client: Mapping[str, Any] | None = None,
        message_columns: Sequence[str] = (),
    ) -> None:
        super().__init__(f"kafka://{bootstrap}/{topic}", topic, codec)
        self.set_message_columns(message_columns)
        connection = self._connection = Connection(bootstrap, client)
        self.is_endless: bool = not stop_at_end
        self.may_block: bool = self.is_endless
        self.start: str | None = start
        self._start = parse_start(start, self.name)
        description = describe_topic(connection, topic)
        self._topic_id = description.topic_id
        consumer = self._consumer = open_consumer(connection, topic, group, max_fetches=64, has_tables=self._has_tables)
        try:
            reader = self._reader = TopicReader(connection, topic, self.name, consumer, description, stop_at_end, self._start)
            first = self._start or StartPoint("earliest", "earliest")
            reader.next_offsets = reader.topic_offsets.find_start_offsets(first, reader.beginning_offsets, reader.end_offsets)
        except BaseException:
            self._consumer.close(CONNECT_SECONDS)
            raise
        self._has_position = self._is_joined = False
        self._batches: Iterator[Messages] | None = None

    @property
    def position(self) -> Position:
        """The position of the next row, for a checkpoint: a dict of the topic, the label's name, and the next offset of each
        partition.

        ``{"topic": ..., "topic_id": ..., "label": "y", "offsets": {"0": 17, ...}, "end_offsets": {"0": 40, ...},
        "next_partition": 0}``. In an endless stream, ``"end_offsets"`` has the value None. Within a message of many rows,
        ``"rows_taken": {"0": 250}`` has the number of its rows that were read, by partition.
        """
        reader = self._reader
        offsets, next_partition = dict(reader.next_offsets), reader.next_partition
        taken = {partition: n for partition, (offset, n) in self._rows_to_skip.items() if offsets[partition] == offset}
        if self._partly_read is not None:
            next_partition, offset = self._partly_read.partition_and_offset
            offsets[next_partition], taken[next_partition] = offset, self._partly_read.n_read
        return {
            "topic": self.topic,
            "topic_id": self._topic_id,
            "label": self.codec.label,
            "offsets": {str(partition): offset for partition, offset in offsets.items()},
            "end_offsets": reader.pass_ends and {str(partition): offset for partition, offset in reader.pass_ends.items()},
            "next_partition": next_partition,
            **({"rows_taken": {str(partition): n for partition, n in taken.items()}} if taken else {}),
            **self._saved_columns,
        }

    def seek(self, position: Position) -> None:
        """Continue reading at ``position``, which an earlier run has saved in a checkpoint. Call it only before the first row is
        read.

        Partitions that were added after the position are read from their beginning. With ``stop_at_end``, an interrupted pass
        continues to its end offsets; if it is complete, a new pass begins.

        Raises
        ------
        StreamError
            The position is corrupt, or of another topic. Without ``start``, also: the topic was recreated since, or no longer
            holds the messages after the position.
        """
        if not {"topic", "topic_id", "label", "offsets", "end_offsets", "next_partition"} <= position.keys():
            raise self._foreign_position_error(position)
        if position["topic"] != self.topic:
            raise ForeignPositionError(f"{self.name}: the checkpoint is of topic {position['topic']!r}")
        if position["label"] != self.codec.label:
            raise StreamError(f"{self.name}: {describe_label(position['label'], self.codec.label)}")
        try:
            offsets = _parse_counts("offsets", position["offsets"])
            pass_ends = {} if position["end_offsets"] is None else _parse_counts("end_offsets", position["end_offsets"])
            rows_taken = _parse_counts("rows_taken", position.get("rows_taken", {}))
            next_partition = validate_count("next_partition", position["next_partition"])
        except ValueError as error:
            raise self._corrupt_position_error(f" ({error})") from None
        if rows_taken:
            self._check_has_tables()
        self.set_message_columns(position.get("message_columns", ()))
        beginnings, ends = self._reader.topic_offsets.beginning_and_end_offsets(self._reader.next_offsets)
        reasons: dict[int, str] = {}  # why a partition cannot continue at its offset
        if None not in (position["topic_id"], self._topic_id) and position["topic_id"] != self._topic_id:
            reasons = dict.fromkeys(beginnings, RECREATED_REASON)
            offsets, pass_ends = {}, {}
        for partition, offset in offsets.items():
            if partition not in beginnings:
                reasons[partition] = f"it has no partition {partition} any more, which the checkpoint continues"
                continue
            known_offset = max(offset, pass_ends.get(partition, 0))
            reason = find_resume_obstacle(partition, beginnings[partition], ends[partition], offset, known_offset)
            if reason is not None:
                reasons[partition] = reason
        next_offsets = beginnings | {partition: offset for partition, offset in offsets.items() if partition in beginnings}
        if reasons:
            start = self._choose_restart(set(reasons.values()))
            start_offsets = self._reader.topic_offsets.find_start_offsets(start, beginnings, ends)
            next_offsets |= {partition: start_offsets[partition] for partition in reasons if partition in start_offsets}
        self._reader.next_offsets, self._has_position = next_offsets, True
        self._rows_to_skip = {p: (offsets[p], n) for p, n in rows_taken.items() if p in offsets and p not in reasons}
        if pass_ends and not self.is_endless:
            self._reader.pass_ends = {p: min(offset, ends[p]) for p, offset in pass_ends.items() if p in ends}
            self._reader.next_partition = next_partition

    def prepare_for_join(self) -> None:
        """Prepare this source to be one of the two streams of a `JoinedSource`, which needs one row in each message.

        A bounded pass then has the messages of all partitions in the order of their times, and keeps the order within a
        partition. A pass that resumes keeps its end offsets.
        """
        if self._has_tables:
            raise StreamError(f"{self.name}: its messages hold many rows, and a join needs one row a message")
        self._is_joined = True

    def _next_messages(self, max_messages: int) -> Messages | None:
        if self._batches is None:
            self._warn_of_removal()
            self._batches = self._reader.iter_batches(self._is_joined)
        self._reader.max_messages = max_messages
        self._reader.topic_offsets.retry_commits()
        return next(self._batches, None)

    def _warn_of_removal(self) -> None:
        """Warn, before the first row is read, if reading starts at the first message of a partition and the topic's retention has
        removed earlier messages.
        """
        beginnings, offsets = self._reader.beginning_offsets, self._reader.next_offsets
        removed = {} if self._has_position else {p: offset for p, offset in beginnings.items() if offsets[p] == offset > 0}
        if removed:
            places = ", ".join(f"{offset:,} of partition {partition}" for partition, offset in removed.items())
            warn(f"{self.name}: retention has removed the oldest messages before this run: {places}")
        self._has_position = True

    def lag(self) -> dict[int, int]:
        """Return the number of unread messages of each partition (the consumer lag), as of the broker's last response.

        You can call it from any thread.
        """
        return self._reader.compute_lag()

    @property
    def is_connected(self) -> bool:  # type: ignore[override]
        return self._consumer.is_connected

    def on_checkpoint(self) -> None:
        """Commit the current offsets for the consumer group, if there is one, because a checkpoint now contains them. A failure
        is only logged.
        """
        if self._consumer.group is not None:
            self._reader.topic_offsets.commit_async({int(p): offset for p, offset in self.position["offsets"].items()})

    def reads_from(self, output: object) -> bool:
        """Return whether ``output``, a sink or checkpoint store, writes to the topic that this source reads."""
        return isinstance(output, TopicEndpoint) and output.is_same_topic(self._connection, self.topic)

    def stop(self) -> None:
        """End the iteration over rows before the next row, or within a fraction of a second while it waits for messages.

        You can call it from a signal handler or another thread. `position` stays valid.
        """
        self._reader.stop()

    def close(self) -> None:
        """Commit the remaining offsets for the consumer group, and close the connection to the broker."""
        self._reader.topic_offsets.commit_remaining()
        self._consumer.close(CONNECT_SECONDS)

    def _choose_restart(self, reasons: set[str]) -> StartPoint:
        """Return the user's ``start``, the place to read from in partitions that cannot continue at the checkpoint, and log a
        warning with the ``reasons``. Raise a StreamError if the user has not set ``start``.
        """
        if self._start is None:
            raise lost_messages_error(self.name, min(reasons))
        for reason in sorted(reasons):
            warn(f"{self.name}: {reason}. The model is kept, and reading continues from {self._start.text}")
        return self._start


def _parse_counts(name: str, saved: Any) -> dict[int, int]:
    """Convert ``saved``, a mapping in a checkpoint from partition numbers (as texts) to counts, to a dict of ints. Raise a
    ValueError with its ``name`` if it is invalid.
    """
    counts = {}
    for partition, count in validate_mapping(name, saved).items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", partition):
            raise ValueError(f"{name} has a partition {short_repr(partition)}")
        counts[int(partition)] = validate_count(name, count)
    return counts


logger: logging.Logger = logging.getLogger(__name__)
_MOVED_KEYS = (
    "{}: the topic has {} partitions, and had {} when the model of partition {} was learned: a key ({}) may be in another "
    "partition now. Start all partitions with a model of all keys, in a new folder: streamsvm merge DIR --to MERGED, then learn "
    "with --start-from MERGED --checkpoint NEW. If the models cannot be merged, learn the topic again with --checkpoint NEW"
)


class PartitionSource(MessageSource):
    """The rows of one partition, whose messages a `PartitionWorker` adds.

    The partition holds offsets from ``beginning`` to ``end_offset``. Without a checkpoint, reading starts at ``start``; if the
    partition no longer holds the messages after the checkpoint, it continues at ``restart``; None makes that an error.
    ``commit`` is called with the offset by partition when a checkpoint contains it.
    """

    def __init__(
        self,
        name: str,
        codec: MessageCodec,
        topic: str,
        description: TopicDescription,
        partition: int,
        *,
        beginning: int,
        end_offset: int,
        start: int,
        restart: int | None,
        commit: Callable[[Mapping[int, int]], None],
    ) -> None:
        super().__init__(name, topic, codec)
        self.offset: int = start
        self._partition = partition
        self._identity: dict[str, Any] = {"topic": topic, "topic_id": description.topic_id}
        self._identity |= {"label": codec.label, "partition": partition}
        #: The end offset of the partition when it was assigned.
        self.end_offset: int = end_offset
        self._beginning, self._restart, self._commit = beginning, restart, commit
        self.start: str | None = None if restart is None else f"offset {restart:,}"
        self._backlog = Backlog()
        #: The number of partitions of the topic now, and when the checkpoint was written.
        self.n_partitions: int = len(description.partitions)
        self.n_partitions_before: int = self.n_partitions

    @property
    def position(self) -> Position:
        """The position of the next message, for a checkpoint: a dict of topic, topic id, label, partition, offset, and the number
        of partitions of the topic.

        Within a message of many rows, ``"rows_taken": 250`` is the number of its rows that were read.
        """
        offset, n_taken = self._rows_to_skip.get(self._partition, (self.offset, 0))
        if self._partly_read is not None:
            (_, offset), n_taken = self._partly_read.partition_and_offset, self._partly_read.n_read
        facts = {"offset": offset, "partitions": self.n_partitions} | ({"rows_taken": n_taken} if n_taken else {})
        return {**self._identity, **facts, **self._saved_columns}

    def seek(self, position: Position) -> None:
        """Continue reading at ``position``, which an earlier run has saved in a checkpoint. Raise a StreamError if it is of
        another topic, label or partition, or the topic has lost the messages after it, without a ``restart``.
        """
        saved = {name: position.get(name) for name in self._identity}
        if None in (saved["topic_id"], self._identity["topic_id"]):
            saved["topic_id"] = self._identity["topic_id"]
        for name, value in self._identity.items():
            if name != "topic_id" and saved[name] != value:
                kind = ForeignPositionError if name == "topic" else StreamError
                raise kind(f"{self.name}: the checkpoint is of {name} {saved[name]!r}, not {value!r}")
        try:
            counts = {"rows_taken": 0, "partitions": self.n_partitions, **position}
            offset, rows, n_before = (validate_count(name, counts.get(name)) for name in ("offset", "rows_taken", "partitions"))
        except ValueError as error:
            raise self._corrupt_position_error(f" ({error})") from None
        reason = find_resume_obstacle(self._partition, self._beginning, self.end_offset, offset, offset)
        if saved["topic_id"] != self._identity["topic_id"]:
            reason = RECREATED_REASON
        if reason is not None:
            if self._restart is None:
                raise lost_messages_error(self.name, reason)
            logger.warning("%s: %s. The model is kept, and reading continues at %s", self.name, reason, self._restart)
            offset = self._restart
        elif rows:
            self._check_has_tables()
            self._rows_to_skip[self._partition] = offset, rows
        self.set_message_columns(position.get("message_columns", ()))
        self.offset, self.n_partitions_before = offset, n_before

    def check_keys(self, loop: StreamLoop) -> None:
        """Raise a StreamError if the model of ``loop``, which learns this partition, has learned keys when the topic had another
        number of partitions: most keys are in another partition now, whose model does not know them.
        """
        n, n_before = self.n_partitions, self.n_partitions_before
        if n != n_before and loop.learned and (keys := find_keys(loop.model)):
            raise StreamError(_MOVED_KEYS.format(self.name, n, n_before, self._partition, ", ".join(keys)))

    @property
    def next_offset(self) -> int:
        """The offset after the last message that was added, which is the next to fetch from the partition."""
        return self._backlog.last_offset + 1 if len(self._backlog) else self.offset

    def add_messages(self, messages: Messages) -> None:
        """Append fetched messages of the partition to the unread ones, except messages that were added before and tombstones
        (null values).
        """
        is_wanted = (messages.value_sizes >= 0) & (messages.offsets >= self.next_offset)
        self._backlog.extend(messages if is_wanted.all() else messages.select_messages(is_wanted))

    def skip_to(self, offset: int) -> None:
        """Continue reading at ``offset``, because the topic's retention has removed the messages before it. Do nothing while
        added messages are unread.
        """
        if not self.has_rows:
            self.offset, self._rows_to_skip = offset, {}

    @property
    def has_rows(self) -> bool:
        """Whether rows of the added messages have not been read yet."""
        return self._partly_read is not None or len(self._backlog) > 0

    def _next_messages(self, max_messages: int) -> Messages | None:
        if not len(self._backlog):
            return None
        messages = self._backlog.pop_first(max_messages)
        self.offset = int(messages.offsets[-1]) + 1
        return messages

    def on_checkpoint(self) -> None:
        """Commit the offset of the next message for the consumer group, because a checkpoint now contains it."""
        self._commit({self._partition: self.position["offset"]})

    def stop(self) -> None:
        """Remove all added messages that have not been read yet, so that reading ends."""
        self._backlog.clear()
