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
from streamsvm_kafka.offsets import Start, TopicOffsets, start_of
from streamsvm_kafka.reader import POLL_SECONDS, REFRESH_SECONDS, described_again, lost, removed_reason, unreadable_error
from streamsvm_kafka.source import PartitionSource
from streamsvm_kafka.topics import describe_topic

logger: logging.Logger = logging.getLogger(__name__)

#: Rows that are learned between two looks at what the group wants.
ROWS_AT_ONCE = 200
#: How long the group waits for a member that gives no sign.
SESSION_SECONDS = 10.0
#: After so many seconds, the folder of a partition is taken from a worker that holds it and that the group has done without.
TAKE_OVER_SECONDS = 3.0 * SESSION_SECONDS


class _Partition:
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
        self._start = start_of(start, self.name)
        self._topic_id = describe_topic(self._connection, topic).topic_id
        self._consumer = open_consumer(
            self._connection,
            topic,
            group,
            fetches=16,
            many=isinstance(codec, TableCodec),
            session_timeout_ms=int(1000 * SESSION_SECONDS),
            heartbeat_interval_ms=int(1000 * SESSION_SECONDS / 5),
            metadata_max_age_ms=int(1000 * REFRESH_SECONDS),  # the group is told of partitions that were added
        )
        self._offsets = TopicOffsets(self._consumer, topic, self.name, self._connection.user)
        #: What the group has decided, for the thread that learns.
        self._events: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        self._consumer.join(lambda *decided: self._events.put(decided))
        self._stopping = threading.Event()
        self._assigned: dict[int, _Partition] = {}
        self._joined, self._failing, self._idle_since = False, False, time.monotonic()
        #: Where the times of rows are counted; None: nowhere.
        self.timings: Timings | None = None
        #: ``"new"``, ``"running"``, ``"failed"``, ``"stopped"`` or ``"ended"``.
        self.state: str = "new"

    @property
    def loops(self) -> dict[int, LearningLoop]:
        """The loops of the partitions that are being learned, by partition."""
        return {number: each.loop for number, each in sorted(self._assigned.items()) if each.loop is not None}

    def lag(self) -> dict[int, int]:
        """Return how many messages of each partition are waiting to be read, as far as the broker has told.

        You can call it from any thread.
        """
        assigned = dict(self._assigned)
        offsets = {number: each.source.offset for number, each in assigned.items() if each.source is not None}
        return self._offsets.lag(offsets, {number: assigned[number].end or 0 for number in offsets})

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
                    if (each := self._assigned.get(number)) is not None and each is before.get(number):
                        self._learn_messages(number, each, fetched, max_rows, on_rows)
                self._save_what_is_due()
                self._offsets.commit_again()
                learned = {n: each.source for n, each in self._assigned.items() if each.source is not None}
                self._offsets.pass_markers(number for number, source in learned.items() if not source.holds_rows)
                if on_rows is not None:
                    on_rows(self)
            self._heed_group()
            for each in self._assigned.values():
                self._flush_sink(each)
            self._offsets.finish()
            self.state = "stopped" if self._stopping.is_set() else "ended"
        finally:
            self.state = "failed" if self.state == "running" else self.state
            for number in list(self._assigned):
                self._release_folder(number, flush=False)

    def close(self) -> None:
        """Leave the group. Partitions that were not released are dropped without a checkpoint."""
        for number in list(self._assigned):
            self._release_folder(number, flush=False)
        self._offsets.finish()
        try:
            self._consumer.close(CONNECT_SECONDS)
        except KafkaError as error:  # the broker is away, and gives the partitions to others by itself
            logger.warning("%s: the group could not be left in order (%s)", self.name, error)

    def _heed_group(self) -> None:
        """Do what the group has decided since the last look, and lock the folders of partitions that have come."""
        while not self._events.empty():
            what, partitions = self._events.get()
            self._joined = what == "assigned"
            if self._joined:
                for number in partitions:
                    if number in self._assigned:  # the listener has paused it, and moved it to the beginning
                        self._read_on(number, self._assigned[number])
                    else:
                        self._assigned[number] = _Partition()
            else:
                for number in partitions & self._assigned.keys():
                    self._release_folder(number, flush=what == "revoked")
        for number, each in self._assigned.items():
            if each.loop is None:
                self._acquire_folder(number, each)

    def _acquire_folder(self, number: int, each: _Partition) -> None:
        path, waited = self._folder / f"partition-{number}", time.monotonic() - each.since
        try:
            each.folder = CheckpointFolder(path, self._trusted, take_over=waited > TAKE_OVER_SECONDS)
        except FolderLockedError:
            if not each.has_warned and waited > SESSION_SECONDS:
                each.has_warned = True
                logger.warning("%s: waiting for another worker to release %s", self.name, path)
            return
        try:
            source, end = self._source_of(number)
        except BrokerUnreachableError as error:  # the group will say whose the partition is when the broker is back
            logger.warning("%s Trying again.", error)
            each.folder.close()
            each.since = time.monotonic()  # an outage is no sign that another worker hangs
            return
        try:
            loop = self._make_loop(source, each.folder)
        except TakenOverError as error:
            logger.warning("%s", error)
            each.folder.close()
            each.since = time.monotonic()
            return
        loop.timings = self.timings
        each.source, each.loop, each.end = source, loop, end
        source.saved()  # whoever had the partition before could not commit while the group took it away
        fields = event("partition", partition=number, offset=source.offset, rows=each.loop.rows)
        logger.info("%s: partition %d has come, and continues at offset %d", self.name, number, source.offset, extra=fields)
        self._read_on(number, each)

    def _read_on(self, number: int, each: _Partition) -> None:
        """Fetch what comes after the messages of a partition that were handed over."""
        if each.source is not None:
            self._consumer.read_from(number, each.source.next_offset)

    def _source_of(self, number: int) -> tuple[PartitionSource, int]:
        # The source of a partition, before a checkpoint has moved it, and the end that it has now.
        beginnings, ends = self._offsets.bounds([number])
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
            commit=self._offsets.commit,
        )
        return source, ends[number]

    def _first_of(self, number: int, beginnings: Mapping[int, int], ends: Mapping[int, int]) -> tuple[int, bool]:
        """Return where a partition begins that has no checkpoint, and whether ``start`` says so."""
        is_named = self._start is not None and (self._start.kind != "offsets" or number in self._start.offsets)
        start = self._start if self._start is not None and is_named else Start("earliest", "earliest")
        if start.kind == "offsets":  # of the others, other workers may know
            start = Start(start.text, "offsets", offsets={number: start.offsets[number]})
        own = ({number: of[number]} for of in (beginnings, ends))
        return self._offsets.first(start, *own)[number], is_named

    def _release_folder(self, number: int, flush: bool) -> None:
        each = self._assigned.pop(number)
        try:
            if flush:
                self._flush_sink(each)
        finally:
            self._offsets.forget([number])
            if each.folder is not None:
                each.folder.close()
                fields = event("partition released", partition=number, flushed=flush)
                logger.info("%s: partition %d has gone", self.name, number, extra=fields)

    def _flush_sink(self, each: _Partition) -> None:
        try:
            if each.loop is not None:
                each.loop.checkpoint()
        except TakenOverError as error:
            logger.warning("%s", error)

    def _is_at_end(self) -> bool:
        if self._assigned:
            self._idle_since = time.monotonic()
            return all(map(self._is_done, self._assigned))
        # There may be more workers than partitions; but those of one that was killed come when the group has given it up.
        return self._joined and time.monotonic() - self._idle_since > 1.5 * SESSION_SECONDS

    def _is_done(self, number: int) -> bool:
        each = self._assigned[number]
        if each.source is None or each.end is None:
            return False
        if each.source.offset >= each.end:
            return True
        try:  # markers of transactions and messages without a value are no rows
            return not each.source.holds_rows and (self._consumer.position(number) or 0) >= each.end
        except KafkaError:  # it has gone meanwhile, or the broker
            return False

    def _learn_messages(
        self,
        number: int,
        each: _Partition,
        messages: Messages,
        max_rows: int | None,
        on_rows: Callable[[PartitionWorker], None] | None,
    ) -> None:
        if each.source is None or each.loop is None:
            return
        each.source.feed(messages)
        while each.source.holds_rows and not self._stopping.is_set():
            n = ROWS_AT_ONCE if max_rows is None else min(ROWS_AT_ONCE, max_rows - self.rows)
            if n == 0:
                return
            before = each.loop.rows
            try:
                each.loop.take(n)
            except TakenOverError as error:
                self._drop_partition(number, error)
                return
            self.rows += each.loop.rows - before
            if on_rows is not None:
                on_rows(self)
            self._heed_group()
            if self._assigned.get(number) is not each:
                return

    def _save_what_is_due(self) -> None:
        """Write the checkpoints that are due, of partitions that have no rows for the moment, too."""
        for number, each in list(self._assigned.items()):
            try:
                if each.loop is not None:
                    each.loop.checkpoint_if_due()
            except TakenOverError as error:
                self._drop_partition(number, error)

    def _drop_partition(self, number: int, error: TakenOverError) -> None:
        # Thrown out of the group, as a rule, which will say so. But if it leaves the partition here, it comes anew.
        logger.warning("%s. This worker drops what it has of the partition", error)
        self._release_folder(number, flush=False)
        self._assigned[number] = _Partition()
        self._consumer.drop(number)

    def _poll_messages(self) -> dict[int, Messages]:
        try:
            messages = self._consumer.poll(POLL_SECONDS)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError, LogTruncationError) as error:
            self._pass_over_removed(error)
            return {}
        except KafkaError as error:
            if not error.retriable:
                raise unreadable_error(self.name, error, self._connection, self._topic, self._consumer.group) from error
            level = logging.DEBUG if self._failing else logging.WARNING  # once, until a poll succeeds
            logger.log(level, "%s: cannot be read for now (%s). Reading continues when the broker is back.", self.name, error)
            self._failing = True
            for number, each in self._assigned.items():  # what it had fetched may have gone with the error
                self._read_on(number, each)
            self._stopping.wait(POLL_SECONDS)
            return {}
        self._failing = False
        return messages

    def _pass_over_removed(self, error: KafkaError) -> None:
        """Go on where ``start`` says in partitions whose next messages are gone; StreamError if it does not say."""
        sources = {number: each.source for number, each in self._assigned.items() if each.source is not None}
        beginnings, ends = self._offsets.bounds(sources)
        reached = {number: self._consumer.reached(number) or source.next_offset for number, source in sources.items()}
        if not (gone := [number for number, at in reached.items() if at < beginnings[number]]):
            raise lost(self.name, f"messages that were not read are gone ({error})") from error
        for number in gone:
            reason = removed_reason(number, beginnings[number], ends[number], reached[number])
            first, is_named = self._first_of(number, beginnings, ends)
            if self._start is None or not is_named:
                raise lost(self.name, reason) from error
            warn(f"{self.name}: {reason}. Reading continues from {self._start.text}")
            sources[number].skip_to(first)
            self._consumer.read_from(number, first)

    def _check_identity(self) -> None:
        description = described_again(self._connection, self._topic, self.name)
        if description is not None and description.topic_id != self._topic_id:
            raise StreamError(f"{self.name}: it was deleted and created again while it was read. Say where to continue: --from")
