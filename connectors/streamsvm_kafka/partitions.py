"""Workers of a consumer group that share a topic, with a model for each partition, which moves with the partition."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from kafka.errors import KafkaError, LogTruncationError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streamsvm.core.warning import warn
from streamsvm.stream import CheckpointFolder
from streamsvm.stream.checkpoint import Checkpoints, FolderLockedError, Retention, TakenOverError
from streamsvm.stream.endpoints import SinkLockedError, StreamError
from streamsvm.stream.logs import event
from streamsvm.stream.progress import Timings
from streamsvm.stream.stream_loop import StreamLoop
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.messages import Messages
from streamsvm_kafka.codecs import MessageCodec, TableCodec
from streamsvm_kafka.connection import CONNECT_SECONDS, BrokerUnreachableError, Connection
from streamsvm_kafka.offsets import StartPoint, TopicOffsets, parse_start
from streamsvm_kafka.reader import (
    POLL_SECONDS,
    REFRESH_SECONDS,
    describe_removal,
    lost_messages_error,
    to_stream_error,
    try_describe_topic,
)
from streamsvm_kafka.source import PartitionSource
from streamsvm_kafka.topics import describe_topic

logger: logging.Logger = logging.getLogger(__name__)

#: Maximum number of rows that are learned between two checks for a rebalance.
MAX_BATCH_ROWS = 200
#: Time after which the group removes a member that sends no heartbeat.
SESSION_SECONDS = 10.0
#: Time between heartbeats, in whose responses a member learns that the group is dividing the partitions anew.
HEARTBEAT_SECONDS = 2.0
#: Time after which the folder of a partition is taken from a worker that left the group but still holds the lock.
TAKE_OVER_SECONDS = 3.0 * SESSION_SECONDS


class _Assignment:
    """A partition that is assigned to the worker. It has no source and loop until its folder can be locked."""

    def __init__(self) -> None:
        self.wait_start = time.monotonic()
        self.has_warned = False
        self.checkpoints: Checkpoints | None = None
        self.source: PartitionSource | None = None
        self.loop: StreamLoop | None = None


class CommittedOffsets(Checkpoints):
    """Checkpoints that store nothing: the source commits its offset for the consumer group after each of them, and the next
    worker of the partition starts there.
    """

    def __init__(self, path: str) -> None:
        self.path: str = path

    def save(self, model: Any, state: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> None:
        """Do nothing: the source commits its offset afterwards."""

    def newest(self) -> None:
        """Return None: there are no checkpoints."""


class PartitionWorker:
    """A worker of a consumer group that learns a model for each partition which the group assigns to it, or predicts its rows.

    Each partition has a folder of checkpoints, ``partition-N``, inside a folder that all workers share: on one machine, or on a
    file system with locks. When a partition moves, its model moves with it. The worker that loses it writes a checkpoint and
    releases the folder. The next worker locks the folder, loads the model, and continues after the last row in it. Each model
    therefore learns the rows of its partition in order, each row once, even if workers are killed, and has the same bytes as one
    that was learned without a rebalance.

    A worker that was removed from the group writes no more checkpoints for its partitions. A worker that hangs while it holds a
    folder is fenced after half a minute: the folder is taken from it.

    Parameters
    ----------
    bootstrap, topic, codec, start, client, message_columns
        As in `KafkaSource`.
    group
        Consumer group. Its offsets are committed after each checkpoint, but only for tools: a worker resumes from checkpoints, if
        there are any.
    folder
        Folder that contains the partitions' folders, or a function that returns the checkpoints of a partition by its number.
        None stores no checkpoints, for a `PredictionLoop`: a partition continues at the offset that is committed for the group.
        It is committed after predictions were written, so that none is lost, and some are repeated after a kill.
    make_loop
        Function that creates the loop of a partition, such as a `LearningLoop` or `PredictionLoop`, from its source and its
        checkpoints. When the partition is released, the worker closes the sinks of this loop.
    stop_at_end
        Whether to end when all partitions of this worker are learned up to their end offsets at the time of their assignment. A
        worker without partitions ends after a while.
    trusted, keep, keep_every
        As in `CheckpointFolder`.

    Raises
    ------
    BrokerUnreachableError, StreamError
        As in `KafkaSource`. `run` also raises any error of a loop.

    Attributes
    ----------
    rows : int
        Number of rows that this worker has processed.
    loops : dict of int to StreamLoop
        The loops by partition.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: MessageCodec,
        *,
        group: str,
        folder: str | Path | Callable[[int], Checkpoints] | None,
        make_loop: Callable[[PartitionSource, Checkpoints], StreamLoop],
        stop_at_end: bool = False,
        start: str | None = None,
        client: Mapping[str, Any] | None = None,
        trusted: bool = False,
        message_columns: Sequence[str] = (),
        **retention: Unpack[Retention],
    ) -> None:
        self.name: str = f"kafka://{bootstrap}/{topic}"
        self.rows: int = 0
        self._connection, self._topic, self._codec = Connection(bootstrap, client), topic, codec
        self._folder, self._make_loop, self._stop_at_end = folder, make_loop, stop_at_end
        self._options: dict[str, Any] = {"trusted": trusted, **retention}
        self._start, self._message_columns = parse_start(start, self.name), tuple(message_columns)
        self._description = describe_topic(self._connection, topic)
        self._consumer = open_consumer(
            self._connection,
            topic,
            group,
            max_fetches=16,
            has_tables=isinstance(codec, TableCodec),
            session_timeout_ms=int(1000 * SESSION_SECONDS),
            heartbeat_interval_ms=int(1000 * HEARTBEAT_SECONDS),
            metadata_max_age_ms=int(1000 * REFRESH_SECONDS),  # after which the group learns of partitions that were added
        )
        self._offsets = TopicOffsets(self._consumer, topic, self.name, self._connection.user)
        #: Rebalances that are not handled yet: ``"assigned"``, ``"revoked"`` or ``"lost"``, and the partitions.
        self._events: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        self._consumer.subscribe(lambda *decision: self._events.put(decision))
        self._stopping = threading.Event()
        self._assigned: dict[int, _Assignment] = {}
        self._has_joined, self._is_failing, self._idle_since = False, False, time.monotonic()
        #: Receives the timings of rows; None does not measure them.
        self.timings: Timings | None = None
        #: ``"new"``, ``"running"``, ``"failed"``, ``"stopped"`` or ``"ended"``.
        self.state: str = "new"

    @property
    def loops(self) -> dict[int, StreamLoop]:
        """The learning loop of each partition that the group has assigned to this worker, by partition. A partition whose
        checkpoint folder another worker has locked is left out.
        """
        return {number: assignment.loop for number, assignment in sorted(self._assigned.items()) if assignment.loop is not None}

    @property
    def is_connected(self) -> bool:
        """Whether a broker responds. You can call it from any thread."""
        return self._consumer.is_connected

    def lag(self) -> dict[int, int]:
        """Return the number of unread messages of each assigned partition (the consumer lag), as of the broker's last response.

        You can call it from any thread.
        """
        sources = self._sources
        offsets = {number: source.offset for number, source in sources.items()}
        return self._offsets.compute_lag(offsets, {number: source.end_offset for number, source in sources.items()})

    @property
    def _sources(self) -> dict[int, PartitionSource]:
        """The source of each assigned partition, by partition, except those whose folder is still locked."""
        assigned = dict(self._assigned)
        return {number: assignment.source for number, assignment in assigned.items() if assignment.source is not None}

    def stop(self) -> None:
        """Make `run` write checkpoints and end, before it learns the next rows.

        You can call it from a signal handler or another thread.
        """
        self._stopping.set()

    def run(self, max_rows: int | None = None, on_rows: Callable[[PartitionWorker], None] | None = None) -> None:
        """Learn the assigned partitions until `stop` is called, ``max_rows`` rows were processed or, with ``stop_at_end``, the
        ends of all partitions are reached.

        Then write checkpoints.

        Parameters
        ----------
        max_rows
            Maximum number of rows. None sets no limit.
        on_rows
            Function that is called with the worker after every few hundred rows, and after each poll.
        """
        self._max_rows, self._on_rows = math.inf if max_rows is None else max_rows, on_rows or (lambda _: None)
        refresh_time, self.state = time.monotonic() + REFRESH_SECONDS, "running"
        try:
            while not self._stopping.is_set() and self.rows < self._max_rows:
                self._handle_rebalances()
                if self._stop_at_end and self._is_at_end():
                    break
                if time.monotonic() >= refresh_time:
                    self._check_topic()
                    refresh_time = time.monotonic() + REFRESH_SECONDS
                polled_for = dict(self._assigned)
                messages = self._poll_messages()
                self._handle_rebalances()
                for number, fetched in messages.items():
                    # If a partition was revoked and assigned again since the poll, these messages come after dropped ones.
                    if (assignment := self._assigned.get(number)) is not None and assignment is polled_for.get(number):
                        self._learn_messages(number, assignment, fetched)
                self._write_due_checkpoints()
                self._offsets.retry_commits()
                self._offsets.advance_past_markers(number for number, source in self._sources.items() if not source.has_rows)
                self._on_rows(self)
            self._handle_rebalances()
            for assignment in self._assigned.values():
                self._write_checkpoint(assignment)
            self._offsets.commit_remaining()
            self.state = "stopped" if self._stopping.is_set() else "ended"
        finally:
            self.state = "failed" if self.state == "running" else self.state
            for number in list(self._assigned):
                self._release_partition(number, save=False)

    def close(self) -> None:
        """Leave the consumer group, and close the connection. Partitions that are still assigned get no checkpoint."""
        for number in list(self._assigned):
            self._release_partition(number, save=False)
        self._offsets.commit_remaining()
        try:
            self._consumer.close(CONNECT_SECONDS)
        except KafkaError as error:  # an unreachable broker reassigns the partitions by itself
            logger.warning("%s: the group could not be left in order (%s)", self.name, error)

    def _handle_rebalances(self) -> None:
        """Process the rebalances of the group since the last call: add new partitions to the assigned ones, and release revoked
        ones. Then try to open the checkpoint folders of those that have no loop yet.
        """
        while not self._events.empty():
            kind, partitions = self._events.get()
            self._has_joined = kind == "assigned"
            if self._has_joined:
                for number in partitions:
                    if number in self._assigned:  # the consumer has paused it, and moved it to its beginning
                        self._resume_fetching(number, self._assigned[number])
                    else:
                        self._assigned[number] = _Assignment()
            else:
                for number in partitions & self._assigned.keys():
                    self._release_partition(number, save=kind == "revoked")
        for number, assignment in self._assigned.items():
            if assignment.loop is None:
                self._try_open_partition(number, assignment)

    def _try_open_partition(self, number: int, assignment: _Assignment) -> None:
        """Lock the checkpoint folder of partition ``number``, load its model and start to fetch its messages. If another worker
        holds the lock or no broker responds, return without that; the next call tries again. ``assignment`` stores the
        checkpoints and the loop.
        """
        waited, checkpoints = time.monotonic() - assignment.wait_start, None
        try:
            checkpoints = self._open_checkpoints(number, waited > TAKE_OVER_SECONDS)
            source = self._make_source(number)
            loop = self._make_loop(source, checkpoints)
        except Exception as error:
            if checkpoints is not None:
                checkpoints.close()
            if isinstance(error, KafkaError) and not error.retriable:
                raise to_stream_error(self.name, error, self._connection, self._topic, self._consumer.group) from error
            if isinstance(error, TakenOverError | BrokerUnreachableError | KafkaError):
                logger.warning("%s Trying again.", error)  # the group reassigns the partition when the broker is back
                assignment.wait_start = time.monotonic()  # an outage does not mean that another worker hangs
            elif not isinstance(error, FolderLockedError | SinkLockedError):
                raise
            elif not assignment.has_warned and waited > SESSION_SECONDS:
                assignment.has_warned = True
                logger.warning("%s: waiting for another worker to release partition %d: %s", self.name, number, error)
            return
        loop.timings = self.timings
        assignment.source, assignment.loop, assignment.checkpoints = source, loop, checkpoints
        source.check_keys(loop)
        source.on_checkpoint()  # the previous worker could not commit during the rebalance
        fields = event("partition", partition=number, offset=source.offset, rows=assignment.loop.rows)
        logger.info("%s: partition %d is assigned, from offset %d", self.name, number, source.offset, extra=fields)
        self._resume_fetching(number, assignment)

    def _resume_fetching(self, number: int, assignment: _Assignment) -> None:
        """Make the consumer fetch partition ``number`` after the last message that the assignment's source already has; do
        nothing if it has no source yet.
        """
        if assignment.source is not None:
            self._consumer.resume_at(number, assignment.source.next_offset)

    def _make_source(self, number: int) -> PartitionSource:
        """Create the source that reads rows of partition ``number``, and set its position to where a new model starts."""
        if number not in self._description.partitions:
            self._check_topic()
        beginnings, ends = self._offsets.beginning_and_end_offsets([number])
        start_offset, is_requested = self._find_start_offset(number, beginnings, ends)
        source = PartitionSource(
            self.name,
            self._codec,
            self._topic,
            self._description,
            number,
            beginning=beginnings[number],
            end_offset=ends[number],
            start=start_offset,
            restart=start_offset if is_requested else None,
            commit=self._offsets.commit_async,
        )
        source.set_message_columns(self._message_columns)
        if self._folder is None and (offset := self._consumer.committed(number)) is not None:
            source.seek({**source.position, "offset": offset})
        return source

    def _open_checkpoints(self, number: int, take_over: bool) -> Checkpoints:
        """Open the checkpoints of partition ``number``. If ``take_over``, take the folder over from a worker that hangs."""
        if callable(self._folder):
            return self._folder(number)
        if self._folder is None:
            return CommittedOffsets(self.name)
        return CheckpointFolder(Path(self._folder) / f"partition-{number}", take_over=take_over, **self._options)

    def _find_start_offset(self, number: int, beginnings: Mapping[int, int], ends: Mapping[int, int]) -> tuple[int, bool]:
        """Return the offset where a new model starts to read partition ``number``, and whether the user's ``start`` chose it
        (otherwise, it is the first). ``beginnings`` and ``ends`` are the first and end offset by partition.
        """
        is_requested = self._start is not None and (self._start.kind != "offsets" or number in self._start.offsets)
        start = self._start if self._start is not None and is_requested else StartPoint("earliest", "earliest")
        if start.kind == "offsets":  # this worker cannot check the offsets of other workers' partitions
            start = StartPoint(start.text, "offsets", offsets={number: start.offsets[number]})
        offsets = self._offsets.find_start_offsets(start, {number: beginnings[number]}, {number: ends[number]})
        return offsets[number], is_requested

    def _release_partition(self, number: int, save: bool) -> None:
        """Remove partition ``number`` from the assigned ones, with a last checkpoint if ``save``, and unlock its folder."""
        assignment = self._assigned.pop(number)
        try:
            if save:
                self._write_checkpoint(assignment)
        finally:
            self._offsets.forget_partition(number)
            if assignment.loop is not None and assignment.checkpoints is not None:
                assignment.loop.close_sinks()  # before another worker can lock the folder
                assignment.checkpoints.close()
                fields = event("partition released", partition=number, flushed=save)
                logger.info("%s: partition %d is released", self.name, number, extra=fields)

    def _write_checkpoint(self, assignment: _Assignment) -> None:
        """Write a checkpoint of an assigned partition, or only log a warning if another worker has taken over its folder."""
        try:
            if assignment.loop is not None:
                assignment.loop.write_checkpoint()
        except TakenOverError as error:
            logger.warning("%s", error)

    def _is_at_end(self) -> bool:
        """Return whether this worker has learned all its partitions up to their end offsets. Also return True if it has been a
        member of the consumer group for 15 s without being assigned a partition.
        """
        if self._assigned:
            self._idle_since = time.monotonic()
            return all(map(self._is_done, self._assigned))
        # This worker may be superfluous. But partitions of a killed worker are reassigned only when its session has expired.
        return self._has_joined and time.monotonic() - self._idle_since > 1.5 * SESSION_SECONDS

    def _is_done(self, number: int) -> bool:
        """Return whether partition ``number`` is learned up to its end offset, as of the time when it was assigned."""
        if (source := self._assigned[number].source) is None:
            return False
        if source.offset >= source.end_offset:
            return True
        try:  # transaction markers and tombstones may follow the last row
            return not source.has_rows and (self._consumer.position(number) or 0) >= source.end_offset
        except KafkaError:  # the partition was revoked, or the broker is unreachable
            return False

    def _learn_messages(self, number: int, assignment: _Assignment, messages: Messages) -> None:
        """Learn ``messages`` of partition ``number`` in batches. Stop early if the group revokes the partition, `stop` is called,
        or this worker has processed the maximum number of rows of `run`.
        """
        if assignment.source is None or assignment.loop is None:
            return
        assignment.source.add_messages(messages)
        while assignment.source.has_rows and not self._stopping.is_set():
            n = int(min(MAX_BATCH_ROWS, self._max_rows - self.rows))
            if n == 0:
                return
            n_before = assignment.loop.rows
            try:
                assignment.loop.run_step(n)
            except TakenOverError as error:
                self._drop_partition(number, error)
                return
            self.rows += assignment.loop.rows - n_before
            self._on_rows(self)
            self._handle_rebalances()
            if self._assigned.get(number) is not assignment:
                return

    def _write_due_checkpoints(self) -> None:
        """Write a checkpoint of each partition whose interval between checkpoints has passed, even without new rows."""
        for number, assignment in list(self._assigned.items()):
            try:
                if assignment.loop is not None:
                    assignment.loop.write_checkpoint_if_due()
            except TakenOverError as error:
                self._drop_partition(number, error)

    def _drop_partition(self, number: int, error: TakenOverError) -> None:
        """Release partition ``number``, without a checkpoint, because another worker has taken over its folder (``error``). Then
        wait for the folder again, as for a new assignment.
        """
        # Usually, the group has removed this worker, and will report it. If the partition stays assigned, it starts anew.
        logger.warning("%s. This worker drops its unsaved state of the partition", error)
        self._release_partition(number, save=False)
        self._assigned[number] = _Assignment()
        self._consumer.pause_partition(number)

    def _poll_messages(self) -> dict[int, Messages]:
        """Return newly fetched messages by partition. If the broker is unreachable for now, log that and return an empty dict;
        raise a StreamError for permanent errors.
        """
        try:
            messages = self._consumer.poll(POLL_SECONDS)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError, LogTruncationError) as error:
            self._skip_removed_messages(error)
            return {}
        except KafkaError as error:
            if not error.retriable:
                raise to_stream_error(self.name, error, self._connection, self._topic, self._consumer.group) from error
            level = logging.DEBUG if self._is_failing else logging.WARNING  # warn once, until a poll succeeds
            logger.log(level, "%s: cannot be read for now (%s). Reading continues when the broker is back.", self.name, error)
            self._is_failing = True
            for number, assignment in self._assigned.items():  # fetched messages may be lost with the error
                self._resume_fetching(number, assignment)
            self._stopping.wait(POLL_SECONDS)
            return {}
        self._is_failing = False
        return messages

    def _skip_removed_messages(self, error: KafkaError) -> None:
        """Continue at the user's ``start`` in partitions whose next messages were deleted by the topic's retention, with a
        warning. Raise a StreamError if the user has not set ``start``. ``error`` is the exception of the poll.
        """
        sources = self._sources
        beginnings, ends = self._offsets.beginning_and_end_offsets(sources)
        positions = {number: self._consumer.cached_position(number) or source.next_offset for number, source in sources.items()}
        if not (affected := [number for number, offset in positions.items() if offset < beginnings[number]]):
            raise lost_messages_error(self.name, f"messages that were not read are gone ({error})") from error
        for number in affected:
            reason = describe_removal(number, beginnings[number], ends[number], positions[number])
            start_offset, is_requested = self._find_start_offset(number, beginnings, ends)
            if self._start is None or not is_requested:
                raise lost_messages_error(self.name, reason) from error
            warn(f"{self.name}: {reason}. Reading continues from {self._start.text}")
            sources[number].skip_to(start_offset)
            self._consumer.resume_at(number, start_offset)

    def _check_topic(self) -> None:
        """Raise a StreamError if the topic was deleted and created again while this worker read it, or if it has got partitions
        and `PartitionSource.check_keys` raises one.
        """
        if (description := try_describe_topic(self._connection, self._topic, self.name)) is None:
            return
        if description.topic_id != self._description.topic_id:
            raise StreamError(f"{self.name}: it was deleted and created again while it was read. Say where to continue: --from")
        self._description = description
        for number, loop in self.loops.items():
            self._sources[number].n_partitions = len(description.partitions)
            self._sources[number].check_keys(loop)
