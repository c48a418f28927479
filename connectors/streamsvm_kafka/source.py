"""A Kafka topic, or one partition of it, as a source of rows, whose offsets are saved by the learning loop."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streamsvm.core.checks import validate_count, validate_mapping
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.stream.endpoints import START_AFRESH, Position, StreamError
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.messages import Backlog, Messages
from streamsvm_kafka.codecs import MessageCodec
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection
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
    message that the codec cannot decode is given as a `BadRow`.

    With ``stop_at_end``, the stream is one bounded pass, from the position to the ends that the partitions had when the source
    was opened. Its order is fixed: one row of each partition in turn, by partition number, until all are exhausted. A pass that
    resumes from a checkpoint keeps its ends and its turn, so it gives the same rows in the same order as one that was never
    interrupted. New messages are left for the next pass.

    Without ``stop_at_end``, the stream never ends (until you call `stop`), and gives rows as they arrive. Rows of one partition
    stay in order, but how partitions mix depends on the moment, so use one partition if the stream has to be reproducible.
    Partitions that are added to the topic are read within a minute. If the broker goes away, the source waits for it.

    The number of partitions bounds the memory. For each partition, the source holds at most 3000 messages, or 4 MiB of them,
    and two fetches of 256 KiB, or of 1 MiB if messages have many rows (with confluent-kafka, 2 MiB of fetches). A message that
    is longer still comes. If messages are compressed, a fetch takes what it decompresses to.

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
        Where to begin if there is no checkpoint: ``"earliest"``, ``"latest"``, a time such as ``"2026-03-01T12:00:00Z"``, or
        ``"PARTITION:OFFSET"``, several with commas between them. None begins at the earliest message. A position to which
        `seek` returns takes precedence. Only if the topic no longer holds the messages after that position, or retention
        removes them before they are read, does the partition continue from ``start``, with a warning; without ``start``, that
        is an error.
    group
        Consumer group whose offsets follow the checkpoints, so that tools can show how far the group is behind. Nothing is read
        from the group, and the source does not join it. None commits no offsets.
    client
        Options of the connection, such as TLS and passwords; see `client_options`.

    Raises
    ------
    BrokerUnreachableError
        No broker answers at ``bootstrap`` within 10 seconds, or within ``outage_seconds`` if that is more.
    StreamError
        An option is wrong, the broker refuses the user in, or the topic does not exist or may not be read. While you
        iterate, also: retention has removed messages before they were read, or the topic was deleted or replaced.

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
    ) -> None:
        super().__init__(f"kafka://{bootstrap}/{topic}", topic, codec)
        connection = self._connection = Connection(bootstrap, client)
        self.is_endless: bool = not stop_at_end
        self.may_block: bool = self.is_endless
        self._start = parse_start(start, self.name)
        description = describe_topic(connection, topic)
        self._topic_id = description.topic_id
        self._consumer = open_consumer(connection, topic, group, max_fetches=64, has_tables=self._has_tables)
        try:
            reader = self._reader = TopicReader(
                connection, topic, self.name, self._consumer, description, stop_at_end, self._start
            )
            first = self._start or StartPoint("earliest", "earliest")
            reader.next_offsets = reader.topic_offsets.find_start_offsets(first, reader.beginning_offsets, reader.end_offsets)
        except BaseException:
            self._consumer.close(CONNECT_SECONDS)
            raise
        self._sought = self._joined = False
        self._runs: Iterator[Messages] | None = None

    @property
    def position(self) -> Position:
        """Where the next row is: the next offset of each partition, and the name of the label.

        ``{"topic": ..., "topic_id": ..., "label": "y", "offsets": {"0": 17, ...}, "end_offsets": {"0": 40, ...},
        "next_partition": 0}``. Without a bounded pass, the end offsets are None. Within a message of many rows, ``"rows_taken":
        {"0": 250}`` has the number of its rows that were given, by partition.
        """
        reader = self._reader
        offsets, turn, inside = dict(reader.next_offsets), reader.next_partition, {}
        if self._open is not None:
            turn, offset = self._open.place
            offsets[turn], inside = offset, {"rows_taken": {str(turn): self._open.n_read}}
        return {
            "topic": self.topic,
            "topic_id": self._topic_id,
            "label": self.codec.label,
            "offsets": {str(partition): offset for partition, offset in offsets.items()},
            "end_offsets": reader.pass_ends and {str(partition): end for partition, end in reader.pass_ends.items()},
            "next_partition": turn,
            **inside,
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``; only before the first row was read.

        Partitions that are newer than the position are read from their beginning. With ``stop_at_end``, an interrupted pass
        continues to the ends that it had; if nothing is left of it, a new pass begins.

        Raises
        ------
        StreamError
            The position is corrupt, or of another topic. If ``start`` is not given, also: it is of an earlier topic of this
            name, or of messages that the topic no longer holds.
        """
        self._check_topic(position)
        try:
            offsets = _saved_counts("offsets", position["offsets"])
            pass_ends = {} if position["end_offsets"] is None else _saved_counts("end_offsets", position["end_offsets"])
            rows_taken = _saved_counts("rows_taken", position.get("rows_taken", {}))
            turn = validate_count("next_partition", position["next_partition"])
        except ValueError as error:
            raise StreamError(f"{self.name}: the position of the checkpoint is corrupt ({error}): give another folder") from None
        if rows_taken:
            self._check_many()
        beginnings, ends = self._reader.topic_offsets.beginning_and_end_offsets(self._reader.next_offsets)
        reasons: dict[int, str] = {}  # why partitions cannot be continued
        if None not in (position["topic_id"], self._topic_id) and position["topic_id"] != self._topic_id:
            reasons = dict.fromkeys(beginnings, RECREATED_REASON)
            offsets, pass_ends = {}, {}
        for partition, offset in offsets.items():
            if partition not in beginnings:
                reasons[partition] = f"it has no partition {partition} any more, which the checkpoint continues"
                continue
            last = max(offset, pass_ends.get(partition, 0))
            if (reason := find_resume_obstacle(partition, beginnings[partition], ends[partition], offset, last)) is not None:
                reasons[partition] = reason
        following = beginnings | {partition: offset for partition, offset in offsets.items() if partition in beginnings}
        if reasons:
            first = self._reader.topic_offsets.find_start_offsets(self._lost_start(set(reasons.values())), beginnings, ends)
            following |= {partition: first[partition] for partition in reasons if partition in first}
        self._reader.next_offsets, self._sought = following, True
        self._skip = {p: (offsets[p], n) for p, n in rows_taken.items() if p in offsets and p not in reasons}
        if pass_ends and not self.is_endless:
            self._reader.pass_ends = {
                partition: min(end, ends[partition]) for partition, end in pass_ends.items() if partition in ends
            }
            self._reader.next_partition = turn

    def prepare_for_join(self) -> None:
        """Be read as a part of a `JoinedSource`.

        A bounded pass then has the messages of all partitions in the order of their times, and keeps the order within a
        partition. A pass that resumes ends where it would have ended.
        """
        if self._has_tables:
            raise StreamError(f"{self.name}: its messages hold many rows, and a join needs one row a message")
        self._joined = True

    def _take_messages(self, most: int) -> Messages | None:
        if self._runs is None:
            self._warn_of_removed()
            self._runs = self._reader.iter_batches(self._joined)
        self._reader.max_messages = most
        self._reader.topic_offsets.retry_commits()
        return next(self._runs, None)

    def _warn_of_removed(self) -> None:
        beginnings, offsets = self._reader.beginning_offsets, self._reader.next_offsets
        removed = {} if self._sought else {p: begin for p, begin in beginnings.items() if offsets[p] == begin > 0}
        if removed:
            places = ", ".join(f"{begin:,} of partition {partition}" for partition, begin in removed.items())
            warn(f"{self.name}: retention has removed the oldest messages before this run: {places}")
        self._sought = True

    def lag(self) -> dict[int, int]:
        """Return how many messages of each partition are waiting to be read, as far as the broker has told.

        You can call it from any thread.
        """
        return self._reader.compute_lag()

    def on_checkpoint(self) -> None:
        """Commit the `position`, which is now in a checkpoint, for the group. A failure is logged."""
        if self._consumer.group is not None:
            self._reader.topic_offsets.commit_async({int(p): offset for p, offset in self.position["offsets"].items()})

    def reads_from(self, output: object) -> bool:
        """Return whether a sink or a checkpoint store is this topic."""
        return isinstance(output, TopicEndpoint) and output.is_same_topic(self._connection, self.topic)

    def stop(self) -> None:
        """End the iteration before its next row, or within a fraction of a second if it waits for one.

        You can call it from a signal handler or another thread. `position` stays valid.
        """
        self._reader.stop()

    def close(self) -> None:
        """Close the connection."""
        self._reader.topic_offsets.commit_remaining()
        self._consumer.close(CONNECT_SECONDS)

    def _check_topic(self, position: Position) -> None:
        if not {"topic", "topic_id", "label", "offsets", "end_offsets", "next_partition"} <= position.keys():
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream. Give that stream, {START_AFRESH}")
        if position["topic"] != self.topic:
            raise StreamError(f"{self.name}: the checkpoint is of topic {position['topic']!r}. Give that topic, {START_AFRESH}")
        if position["label"] != self.codec.label:
            raise StreamError(
                f"{self.name}: the checkpoint was learned with the label {position['label']!r}, not {self.codec.label!r}. "
                f"Ask for the same, {START_AFRESH}"
            )

    def _lost_start(self, reasons: set[str]) -> StartPoint:
        """Return where to begin in partitions that cannot be continued, with a warning; StreamError if nobody has said it."""
        if self._start is None:
            raise lost_messages_error(self.name, min(reasons))
        for reason in sorted(reasons):
            warn(f"{self.name}: {reason}. The model is kept, and reading continues from {self._start.text}")
        return self._start


def _saved_counts(name: str, saved: Any) -> dict[int, int]:
    """Return the counts by partition that a checkpoint holds; ValueError where it holds others."""
    counts = {}
    for partition, count in validate_mapping(name, saved).items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", partition):
            raise ValueError(f"{name} has a partition {short_repr(partition)}")
        counts[int(partition)] = validate_count(name, count)
    return counts


logger: logging.Logger = logging.getLogger(__name__)


class PartitionSource(MessageSource):
    """The rows of one partition, as a worker hands them over. Its `position` is that after the row that was given last.

    The partition holds offsets from ``beginning`` to ``end``. Without a checkpoint, it begins at ``start``; if it no longer holds
    the messages after the checkpoint, it continues at ``lost_start``; None makes that an error. ``commit`` is called with the
    offset by partition when a checkpoint holds it.
    """

    def __init__(
        self,
        name: str,
        codec: MessageCodec,
        topic: str,
        topic_id: str | None,
        partition: int,
        *,
        beginning: int,
        end: int,
        start: int,
        lost_start: int | None,
        commit: Callable[[Mapping[int, int]], None],
    ) -> None:
        super().__init__(name, topic, codec)
        self.offset: int = start
        self._partition = partition
        self._identity: dict[str, Any] = {"topic": topic, "topic_id": topic_id, "label": codec.label, "partition": partition}
        self._beginning, self._end, self._lost_start, self._commit = beginning, end, lost_start, commit
        self._waiting = Backlog()

    @property
    def position(self) -> Position:
        """``{"topic": ..., "topic_id": ..., "label": "y", "partition": 3, "offset": 17}``, of the next message.

        Within a message of many rows, also how many of them were given: ``"rows_taken": 250``.
        """
        if self._open is not None:
            return {**self._identity, "offset": self._open.place[1], "rows_taken": self._open.n_read}
        return {**self._identity, "offset": self.offset}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; another topic, label or partition is an error, too."""
        saved = {name: position.get(name) for name in self._identity}
        offset = position.get("offset")
        if None in (saved["topic_id"], self._identity["topic_id"]):
            saved["topic_id"] = self._identity["topic_id"]
        for name, ours in self._identity.items():
            if name != "topic_id" and saved[name] != ours:
                raise StreamError(
                    f"{self.name}: the checkpoint is of {name} {saved[name]!r}, not {ours!r}. Give that, {START_AFRESH}"
                )
        if type(offset) is not int:
            raise self._corrupt_position(f", its offset is {offset!r}")
        reason = find_resume_obstacle(self._partition, self._beginning, self._end, offset, offset)
        if saved["topic_id"] != self._identity["topic_id"]:
            reason = RECREATED_REASON
        if reason is not None:
            if self._lost_start is None:
                raise lost_messages_error(self.name, reason)
            logger.warning("%s: %s. The model is kept, and reading continues at %s", self.name, reason, self._lost_start)
            offset = self._lost_start
        elif "rows_taken" in position:
            try:
                rows = validate_count("rows_taken", position["rows_taken"])
            except ValueError as error:
                raise self._corrupt_position(f" ({error})") from None
            self._check_many()
            self._skip[self._partition] = offset, rows
        self.offset = offset

    def _corrupt_position(self, how: str) -> StreamError:
        return StreamError(f"{self.name}: the checkpoint is corrupt{how}: give another folder to start from scratch")

    @property
    def next_offset(self) -> int:
        """The offset of the message that is to be handed over next."""
        return self._waiting.last_offset + 1 if len(self._waiting) else self.offset

    def add_messages(self, messages: Messages) -> None:
        """Hand over messages of the partition. Those that were handed over before are left out, as those without a value."""
        is_wanted = (messages.value_sizes >= 0) & (messages.offsets >= self.next_offset)
        self._waiting.extend(messages if is_wanted.all() else messages.select_messages(is_wanted))

    def skip_to(self, offset: int) -> None:
        """Pass over messages that are gone, behind those that were handed over."""
        if not self.has_rows:
            self.offset = offset

    @property
    def has_rows(self) -> bool:
        """Whether there are rows that were handed over and not given yet."""
        return self._open is not None or len(self._waiting) > 0

    def _take_messages(self, most: int) -> Messages | None:
        if not len(self._waiting):
            return None
        messages = self._waiting.pop_first(most)
        self.offset = int(messages.offsets[-1]) + 1
        return messages

    def on_checkpoint(self) -> None:
        """Commit the position for the group."""
        self._commit({self._partition: self.position["offset"]})

    def stop(self) -> None:
        """Drop the messages that were handed over and not read yet."""
        self._waiting.clear()
