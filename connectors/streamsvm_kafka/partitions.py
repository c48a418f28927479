"""Workers of a consumer group that share a topic: each partition has a model of its own, which moves with it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError, LogTruncationError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streamsvm.core.warning import warn
from streamsvm.stream import CheckpointFolder, LearningLoop
from streamsvm.stream.checkpoint import FolderLockedError, TakenOverError
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.logs import event
from streamsvm.stream.progress import Timings
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

#: Number of rows that are learned before the decisions of the group are checked again.
ROWS_AT_ONCE = 200
#: How long the group waits for a member that gives no sign.
SESSION_SECONDS = 10.0
#: Seconds after which the folder of a partition is taken from a worker that left the group but still holds it.
TAKE_OVER_SECONDS = 3.0 * SESSION_SECONDS


class _Assignment:
    """A partition that is assigned: its loop once the folder could be locked, before that since when it waits for it."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.has_warned = False
        self.folder: CheckpointFolder | None = None
        self.source: PartitionSource | None = None
        self.loop: LearningLoop | None = None
        self.end: int | None = None


class PartitionWorker:
    """A worker of a consumer group that learns a model for each partition which the group assigns to it.

    Each partition has a folder of checkpoints, ``partition-N``, inside a folder that all workers share: on one machine, or on a
    file system with locks. When a partition moves, its model moves with it. The worker that loses it writes a checkpoint and
    releases the folder. The next worker locks the folder, loads the model, and continues after the last row in it. Each model
    therefore learns the rows of its partition in order, each row once, whatever happens to the workers, and has the same bytes
    as one that was left alone.

    A worker that was thrown out of the group writes nothing more for its partitions. A worker that hangs while it holds a
    folder is fenced after half a minute: the folder is taken from it.

    Parameters
    ----------
    bootstrap, topic, codec, start, client
        As in `KafkaSource`.
    group
        Consumer group. Its offsets are committed after each checkpoint, for tools; the checkpoints are the truth.
    folder
        Folder in which the partitions have their folders.
    make_loop
        Function that makes the loop of a partition from its source and its checkpoints.
    stop_at_end
        Whether to end when all partitions of this worker are learned up to the ends that they had when they came. A worker
        without partitions ends after a while.
    trusted
        Whether models may hold classes and functions of your own, as in `CheckpointFolder`.

    Raises
    ------
    BrokerUnreachableError, StreamError
        As in `KafkaSource`. While it runs, also any error of a loop.

    Attributes
    ----------
    rows : int
        Number of rows that this worker has processed.
    loops : dict of int to LearningLoop
        The loops by partition.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: MessageCodec,
        *,
        group: str,
        folder: str | Path,
        make_loop: Callable[[PartitionSource, CheckpointFolder], LearningLoop],
        stop_at_end: bool = False,
        start: str | None = None,
        client: Mapping[str, Any] | None = None,
        trusted: bool = False,
    ) -> None:
        self.name: str = f"kafka://{bootstrap}/{topic}"
        self.rows: int = 0
        self._connection, self._topic, self._codec = Connection(bootstrap, client), topic, codec
        self._folder, self._make_loop, self._stop_at_end, self._trusted = Path(folder), make_loop, stop_at_end, trusted
        self._start = parse_start(start, self.name)
        self._topic_id = describe_topic(self._connection, topic).topic_id
        self._consumer = open_consumer(
            self._connection,
            topic,
            group,
            max_fetches=16,
            has_tables=isinstance(codec, TableCodec),
            session_timeout_ms=int(1000 * SESSION_SECONDS),
            heartbeat_interval_ms=int(1000 * SESSION_SECONDS / 5),
            metadata_max_age_ms=int(1000 * REFRESH_SECONDS),  # after which the group learns of partitions that were added
        )
        self._offsets = TopicOffsets(self._consumer, topic, self.name, self._connection.user)
        #: Decisions of the group, for the thread that learns.
        self._events: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        self._consumer.subscribe(lambda *decision: self._events.put(decision))
        self._stopping = threading.Event()
        self._assigned: dict[int, _Assignment] = {}
        self._joined, self._failing, self._idle_since = False, False, time.monotonic()
        #: Where the times of rows are counted; None: nowhere.
        self.timings: Timings | None = None
        #: ``"new"``, ``"running"``, ``"failed"``, ``"stopped"`` or ``"ended"``.
        self.state: str = "new"

    @property
    def loops(self) -> dict[int, LearningLoop]:
        """The loops of the partitions that are being learned, by partition."""
        return {number: assignment.loop for number, assignment in sorted(self._assigned.items()) if assignment.loop is not None}

    def lag(self) -> dict[int, int]:
        """Return how many messages of each partition are waiting to be read, as far as the broker has told.

        You can call it from any thread.
        """
        assigned = dict(self._assigned)
        offsets = {number: assignment.source.offset for number, assignment in assigned.items() if assignment.source is not None}
        return self._offsets.compute_lag(offsets, {number: assigned[number].end or 0 for number in offsets})

    def stop(self) -> None:
        """End the run before the next rows, with checkpoints.

        You can call it from a signal handler or another thread.
        """
        self._stopping.set()

    def run(self, max_rows: int | None = None, on_rows: Callable[[PartitionWorker], None] | None = None) -> None:
        """Learn until `stop` is called, the ends are reached, or ``max_rows`` rows were processed.

        Then write checkpoints.

        Parameters
        ----------
        max_rows
            Maximum number of rows. None sets no limit.
        on_rows
            Function that is called with the worker after every few hundred rows, and whenever there were none for a moment.
        """
        refresh, self.state = time.monotonic() + REFRESH_SECONDS, "running"
        try:
            while not self._stopping.is_set() and (max_rows is None or self.rows < max_rows):
                self._heed_group()
                if self._stop_at_end and self._is_at_end():
                    break
                if time.monotonic() >= refresh:
                    self._check_identity()
                    refresh = time.monotonic() + REFRESH_SECONDS
                before = dict(self._assigned)
                messages = self._poll_messages()
                self._heed_group()
                for number, fetched in messages.items():
                    # Where a partition has gone and come meanwhile, messages are those after the rows that were dropped.
                    if (assignment := self._assigned.get(number)) is not None and assignment is before.get(number):
                        self._learn_messages(number, assignment, fetched, max_rows, on_rows)
                self._save_what_is_due()
                self._offsets.retry_commits()
                learned = {n: assignment.source for n, assignment in self._assigned.items() if assignment.source is not None}
                self._offsets.advance_past_markers(number for number, source in learned.items() if not source.has_rows)
                if on_rows is not None:
                    on_rows(self)
            self._heed_group()
            for assignment in self._assigned.values():
                self._flush_sink(assignment)
            self._offsets.commit_remaining()
            self.state = "stopped" if self._stopping.is_set() else "ended"
        finally:
            self.state = "failed" if self.state == "running" else self.state
            for number in list(self._assigned):
                self._release_folder(number, flush=False)

    def close(self) -> None:
        """Leave the group. Partitions that were not released are dropped without a checkpoint."""
        for number in list(self._assigned):
            self._release_folder(number, flush=False)
        self._offsets.commit_remaining()
        try:
            self._consumer.close(CONNECT_SECONDS)
        except KafkaError as error:  # the broker is away, and gives the partitions to others by itself
            logger.warning("%s: the group could not be left in order (%s)", self.name, error)

    def _heed_group(self) -> None:
        """Carry out the decisions of the group since the last call, and lock the folders of assigned partitions."""
        while not self._events.empty():
            decision, partitions = self._events.get()
            self._joined = decision == "assigned"
            if self._joined:
                for number in partitions:
                    if number in self._assigned:  # the listener has paused it, and moved it to the beginning
                        self._read_on(number, self._assigned[number])
                    else:
                        self._assigned[number] = _Assignment()
            else:
                for number in partitions & self._assigned.keys():
                    self._release_folder(number, flush=decision == "revoked")
        for number, assignment in self._assigned.items():
            if assignment.loop is None:
                self._acquire_folder(number, assignment)

    def _acquire_folder(self, number: int, assignment: _Assignment) -> None:
        path, waited = self._folder / f"partition-{number}", time.monotonic() - assignment.since
        try:
            assignment.folder = CheckpointFolder(path, self._trusted, take_over=waited > TAKE_OVER_SECONDS)
        except FolderLockedError:
            if not assignment.has_warned and waited > SESSION_SECONDS:
                assignment.has_warned = True
                logger.warning("%s: waiting for another worker to release %s", self.name, path)
            return
        try:
            source, end = self._source_of(number)
        except BrokerUnreachableError as error:  # the group will say whose the partition is when the broker is back
            logger.warning("%s Trying again.", error)
            assignment.folder.close()
            assignment.since = time.monotonic()  # an outage does not mean that another worker hangs
            return
        try:
            loop = self._make_loop(source, assignment.folder)
        except TakenOverError as error:
            logger.warning("%s", error)
            assignment.folder.close()
            assignment.since = time.monotonic()
            return
        loop.timings = self.timings
        assignment.source, assignment.loop, assignment.end = source, loop, end
        source.on_checkpoint()  # the previous worker could not commit while the group took the partition away
        fields = event("partition", partition=number, offset=source.offset, rows=assignment.loop.rows)
        logger.info("%s: partition %d has come, and continues at offset %d", self.name, number, source.offset, extra=fields)
        self._read_on(number, assignment)

    def _read_on(self, number: int, assignment: _Assignment) -> None:
        """Fetch the messages of a partition after those that were handed over."""
        if assignment.source is not None:
            self._consumer.resume_at(number, assignment.source.next_offset)

    def _source_of(self, number: int) -> tuple[PartitionSource, int]:
        # The source of a partition, before a checkpoint has moved it, and the end that it has now.
        beginnings, ends = self._offsets.beginning_and_end_offsets([number])
        first, is_named = self._first_of(number, beginnings, ends)
        source = PartitionSource(
            self.name,
            self._codec,
            self._topic,
            self._topic_id,
            number,
            beginning=beginnings[number],
            end=ends[number],
            start=first,
            lost_start=first if is_named else None,
            commit=self._offsets.commit_async,
        )
        return source, ends[number]

    def _first_of(self, number: int, beginnings: Mapping[int, int], ends: Mapping[int, int]) -> tuple[int, bool]:
        """Return where a partition begins that has no checkpoint, and whether ``start`` says so."""
        is_named = self._start is not None and (self._start.kind != "offsets" or number in self._start.offsets)
        start = self._start if self._start is not None and is_named else StartPoint("earliest", "earliest")
        if start.kind == "offsets":  # of the others, other workers may know
            start = StartPoint(start.text, "offsets", offsets={number: start.offsets[number]})
        own = ({number: of[number]} for of in (beginnings, ends))
        return self._offsets.find_start_offsets(start, *own)[number], is_named

    def _release_folder(self, number: int, flush: bool) -> None:
        assignment = self._assigned.pop(number)
        try:
            if flush:
                self._flush_sink(assignment)
        finally:
            self._offsets.forget_partitions([number])
            if assignment.folder is not None:
                assignment.folder.close()
                fields = event("partition released", partition=number, flushed=flush)
                logger.info("%s: partition %d has gone", self.name, number, extra=fields)

    def _flush_sink(self, assignment: _Assignment) -> None:
        try:
            if assignment.loop is not None:
                assignment.loop.write_checkpoint()
        except TakenOverError as error:
            logger.warning("%s", error)

    def _is_at_end(self) -> bool:
        if self._assigned:
            self._idle_since = time.monotonic()
            return all(map(self._is_done, self._assigned))
        # There may be more workers than partitions; but those of one that was killed come when the group has given it up.
        return self._joined and time.monotonic() - self._idle_since > 1.5 * SESSION_SECONDS

    def _is_done(self, number: int) -> bool:
        assignment = self._assigned[number]
        if assignment.source is None or assignment.end is None:
            return False
        if assignment.source.offset >= assignment.end:
            return True
        try:  # markers of transactions and messages without a value are no rows
            return not assignment.source.has_rows and (self._consumer.position(number) or 0) >= assignment.end
        except KafkaError:  # it has gone meanwhile, or the broker
            return False

    def _learn_messages(
        self,
        number: int,
        assignment: _Assignment,
        messages: Messages,
        max_rows: int | None,
        on_rows: Callable[[PartitionWorker], None] | None,
    ) -> None:
        if assignment.source is None or assignment.loop is None:
            return
        assignment.source.add_messages(messages)
        while assignment.source.has_rows and not self._stopping.is_set():
            n = ROWS_AT_ONCE if max_rows is None else min(ROWS_AT_ONCE, max_rows - self.rows)
            if n == 0:
                return
            before = assignment.loop.rows
            try:
                assignment.loop.run_step(n)
            except TakenOverError as error:
                self._drop_partition(number, error)
                return
            self.rows += assignment.loop.rows - before
            if on_rows is not None:
                on_rows(self)
            self._heed_group()
            if self._assigned.get(number) is not assignment:
                return

    def _save_what_is_due(self) -> None:
        """Write the checkpoints that are due, of partitions that have no rows for the moment, too."""
        for number, assignment in list(self._assigned.items()):
            try:
                if assignment.loop is not None:
                    assignment.loop.write_checkpoint_if_due()
            except TakenOverError as error:
                self._drop_partition(number, error)

    def _drop_partition(self, number: int, error: TakenOverError) -> None:
        # Thrown out of the group, as a rule, which will say so. But if it leaves the partition here, it comes anew.
        logger.warning("%s. This worker drops its unsaved state of the partition", error)
        self._release_folder(number, flush=False)
        self._assigned[number] = _Assignment()
        self._consumer.pause_partition(number)

    def _poll_messages(self) -> dict[int, Messages]:
        try:
            messages = self._consumer.poll(POLL_SECONDS)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError, LogTruncationError) as error:
            self._pass_over_removed(error)
            return {}
        except KafkaError as error:
            if not error.retriable:
                raise to_stream_error(self.name, error, self._connection, self._topic, self._consumer.group) from error
            level = logging.DEBUG if self._failing else logging.WARNING  # once, until a poll succeeds
            logger.log(level, "%s: cannot be read for now (%s). Reading continues when the broker is back.", self.name, error)
            self._failing = True
            for number, assignment in self._assigned.items():  # messages that were fetched may be lost with the error
                self._read_on(number, assignment)
            self._stopping.wait(POLL_SECONDS)
            return {}
        self._failing = False
        return messages

    def _pass_over_removed(self, error: KafkaError) -> None:
        """Continue at ``start`` in partitions whose next messages are gone; StreamError without ``start``."""
        sources = {number: assignment.source for number, assignment in self._assigned.items() if assignment.source is not None}
        beginnings, ends = self._offsets.beginning_and_end_offsets(sources)
        positions = {number: self._consumer.cached_position(number) or source.next_offset for number, source in sources.items()}
        if not (gone := [number for number, at in positions.items() if at < beginnings[number]]):
            raise lost_messages_error(self.name, f"messages that were not read are gone ({error})") from error
        for number in gone:
            reason = describe_removal(number, beginnings[number], ends[number], positions[number])
            first, is_named = self._first_of(number, beginnings, ends)
            if self._start is None or not is_named:
                raise lost_messages_error(self.name, reason) from error
            warn(f"{self.name}: {reason}. Reading continues from {self._start.text}")
            sources[number].skip_to(first)
            self._consumer.resume_at(number, first)

    def _check_identity(self) -> None:
        description = try_describe_topic(self._connection, self._topic, self.name)
        if description is not None and description.topic_id != self._topic_id:
            raise StreamError(f"{self.name}: it was deleted and created again while it was read. Say where to continue: --from")
