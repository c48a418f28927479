"""Workers of a consumer group that share a topic: each partition has a model of its own, which moves with it."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streamsvm.runtime import CheckpointFolder, LearningLoop
from streamsvm.runtime.checkpoint import FolderLockedError, TakenOverError
from streamsvm.runtime.endpoints import START_AFRESH, BadRow, Position, Row, StreamError
from streamsvm_kafka.codecs import Codec
from streamsvm_kafka.connection import CONNECT_SECONDS, BrokerUnreachableError, Connection, describe_topic
from streamsvm_kafka.offsets import TopicOffsets
from streamsvm_kafka.source import FETCH_BYTES, POLL_MS, REFRESH_SECONDS
from streamsvm_kafka.start import Start, parse_start

__all__ = ["PartitionSource", "PartitionWorker"]

logger = logging.getLogger(__name__)

#: Rows that are learned between two looks at what the group wants.
ROWS_AT_ONCE = 200
#: How long the group waits for a member that gives no sign.
SESSION_SECONDS = 10.0
#: After so many seconds, the folder of a partition is taken from a worker that holds it and that the group has done without.
TAKE_OVER_SECONDS = 3.0 * SESSION_SECONDS


class PartitionSource:
    """The rows of one partition, as a worker hands them over. Its `position` is that after the row that was given last.

    Parameters
    ----------
    name
        The stream in messages.
    topic, topic_id, label
        As in the position of `KafkaSource`.
    partition
        The partition.
    beginning, end
        The offsets that it holds.
    start
        Where it begins without a checkpoint.
    lost_start
        Where it goes on if it no longer holds what follows the checkpoint; None: that is an error.
    commit
        Called with the partition and its offset when a checkpoint holds it.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        topic_id: str | None,
        label: str | None,
        partition: int,
        *,
        beginning: int,
        end: int,
        start: int,
        lost_start: int | None,
        commit: Callable[[int, int], None],
    ) -> None:
        self.name, self.offset = name, start
        self._partition = partition
        self._identity: dict[str, Any] = {"topic": topic, "topic_id": topic_id, "label": label, "partition": partition}
        self._beginning, self._end, self._lost_start, self._commit = beginning, end, lost_start, commit
        self._last = -1
        self._rows: deque[tuple[Row | BadRow, int, bytes]] = deque()
        self.raw = b""

    @property
    def place(self) -> str:
        """The partition, and the offset of the message that was given last."""
        return f"{self.name}: message at partition {self._partition}, offset {self._last}"

    @property
    def position(self) -> Position:
        """``{"topic": ..., "topic_id": ..., "label": "y", "partition": 3, "offset": 17}``, of the next message."""
        return {**self._identity, "offset": self.offset}

    def seek(self, position: Position) -> None:
        """Continue at ``position``.

        Raises
        ------
        StreamError
            It is of another topic, label or partition; or of messages that the partition no longer holds, where it is not said
            where to go on.
        """
        found = {name: position.get(name) for name in self._identity}
        offset = position.get("offset")
        if None in (found["topic_id"], self._identity["topic_id"]):
            found["topic_id"] = self._identity["topic_id"]
        for name, ours in self._identity.items():
            if name != "topic_id" and found[name] != ours:
                raise StreamError(
                    f"{self.name}: the checkpoint is of {name} {found[name]!r}, not {ours!r}. Give that, {START_AFRESH}"
                )
        if type(offset) is not int:
            raise StreamError(
                f"{self.name}: the checkpoint is corrupt, its offset is {offset!r}: {START_AFRESH.removeprefix('or ')}"
            )
        reason, held = "", f"partition {self._partition} holds offsets {self._beginning} to {self._end}"
        if found["topic_id"] != self._identity["topic_id"]:
            reason = "it was deleted and created again since the checkpoint"
        elif not self._beginning <= offset <= self._end:
            reason = f"{held}, the checkpoint goes on at {offset}"
        if reason and self._lost_start is None:
            raise StreamError(
                f"{self.name}: {reason}. To go on with the model of the checkpoint, say where: --from earliest, latest, a time "
                "or PARTITION:OFFSET"
            )
        if reason and self._lost_start is not None:
            logger.warning("%s: %s. The model is kept, and reading goes on at %s", self.name, reason, self._lost_start)
            offset = self._lost_start
        self.offset = offset

    def feed(self, records: Iterable[Any], codec: Codec) -> None:
        """Hand over messages of the partition. Those before the position are left out, as those without a value."""
        for record in records:
            if record.value is None or record.offset < self.offset:
                continue
            row: Row | BadRow
            try:
                row = codec.decode(record.value)
            except ValueError as error:
                self._last = record.offset
                row = BadRow(self.place, record.value, str(error))
            self._rows.append((row, record.offset, record.value))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row | BadRow]:
        return self

    def __next__(self) -> Row | BadRow:
        if not self._rows:
            raise StopIteration
        row, self._last, self.raw = self._rows.popleft()
        self.offset = self._last + 1
        return row

    def saved(self) -> None:
        """Commit the position for the group."""
        self._commit(self._partition, self.offset)

    def stop(self) -> None:
        """Drop the rows that were handed over and not given yet."""
        self._rows.clear()

    def close(self) -> None:
        """Do nothing: the connection is the worker's."""


class _Partition:
    """A partition that is assigned: its loop once the folder could be locked, before that since when it waits for it."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.told = False
        self.folder: CheckpointFolder | None = None
        self.source: PartitionSource | None = None
        self.loop: LearningLoop | None = None
        self.end: int | None = None


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hands what the group decides over to the thread that learns: it is called in that of kafka-python, which must not wait."""

    def __init__(self, consumer: Any, events: queue.SimpleQueue[tuple[str, set[int]]]) -> None:
        self._consumer, self._events = consumer, events

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        for key in assigned:  # nothing is fetched before the checkpoint has said from where
            self._consumer.pause(key)
            self._consumer.seek(key, 0)
        self._events.put(("assigned", {key.partition for key in assigned}))

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._events.put(("revoked", {key.partition for key in revoked}))

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._events.put(("lost", {key.partition for key in lost}))


class PartitionWorker:
    """A worker of a consumer group that learns the partitions of a topic which the group gives it, each with its own model.

    A partition has a folder of checkpoints, ``partition-N``, in a folder that all workers share: on one machine, or on a file
    system with locks. Where the partition moves, its model moves with it. The worker that loses it writes a checkpoint and
    releases the folder; the other one locks it, loads the model, and reads on behind the last row in it. So each model learns
    the rows of its partition in their order, each once, whatever becomes of the workers: it has the bytes of one that was left
    alone. A worker that was thrown out of the group writes nothing more of what it had. One that hangs and holds a folder is
    fenced after half a minute: the folder is taken from it.

    Parameters
    ----------
    bootstrap, topic, codec, start, client
        As of `KafkaSource`.
    group
        The consumer group. Offsets are committed for it after each checkpoint, for tools; the checkpoints are the truth.
    folder
        The folder of the folders.
    make_loop
        Makes the loop of a partition from its source and its checkpoints.
    stop_at_end
        End when all partitions that this worker has were learned up to the ends that they had when they came.
    trusted
        As of `CheckpointFolder`.

    Raises
    ------
    BrokerUnreachableError, StreamError
        As of `KafkaSource`. While it runs also what a loop raises.

    Attributes
    ----------
    rows : int
        Rows that this worker has taken.
    loops : dict of int to LearningLoop
        By partition.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: Codec,
        *,
        group: str,
        folder: str | Path,
        make_loop: Callable[[PartitionSource, CheckpointFolder], LearningLoop],
        stop_at_end: bool = False,
        start: str | None = None,
        client: Mapping[str, Any] | None = None,
        trusted: bool = False,
    ) -> None:
        self.name, self.rows = f"kafka://{bootstrap}/{topic}", 0
        self._connection, self._topic, self._codec = Connection(bootstrap, client), topic, codec
        self._folder, self._make_loop, self._stop_at_end, self._trusted = Path(folder), make_loop, stop_at_end, trusted
        try:
            self._start = None if start is None else parse_start(start)
        except ValueError as error:
            raise StreamError(f"{self.name}: {error}") from None
        self._topic_id = describe_topic(self._connection, topic).topic_id
        self._consumer = self._connection.client(
            KafkaConsumer,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            session_timeout_ms=int(1000 * SESSION_SECONDS),
            heartbeat_interval_ms=int(1000 * SESSION_SECONDS / 5),
            max_poll_records=sys.maxsize,  # as in KafkaSource
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_bytes=16 * FETCH_BYTES,
        )
        self._offsets = TopicOffsets(self._consumer, self.name, topic)
        self._events: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        self._consumer.subscribe([topic], listener=_Listener(self._consumer, self._events))
        self._stopping = threading.Event()
        self._assigned: dict[int, _Partition] = {}
        self._joined = False

    @property
    def loops(self) -> dict[int, LearningLoop]:
        """The loops of the partitions that are learned now."""
        return {number: each.loop for number, each in sorted(self._assigned.items()) if each.loop is not None}

    def stop(self) -> None:
        """End the run before the next rows, with checkpoints. May be called from a signal handler or another thread."""
        self._stopping.set()

    def run(self, max_rows: int | None = None, on_rows: Callable[[PartitionWorker], None] | None = None) -> None:
        """Learn until `stop` is called, or the ends are reached, or ``max_rows`` were taken; then write checkpoints.

        Parameters
        ----------
        max_rows
            None: no limit.
        on_rows
            Called after each few hundred rows, and when there were none for a moment.
        """
        refresh = time.monotonic() + REFRESH_SECONDS
        try:
            while not self._stopping.is_set() and (max_rows is None or self.rows < max_rows):
                self._heed()
                if self._joined and self._stop_at_end and all(map(self._is_done, self._assigned)):
                    break
                if time.monotonic() >= refresh:
                    self._check_identity()
                    refresh = time.monotonic() + REFRESH_SECONDS
                messages = self._poll()
                self._heed()
                for key, records in messages.items():
                    self._learn(key.partition, records, max_rows, on_rows)
                if on_rows is not None:
                    on_rows(self)
            self._heed()
            for number in list(self._assigned):
                self._release(number, flush=True)
        finally:
            for number in list(self._assigned):
                self._release(number, flush=False)

    def close(self) -> None:
        """Leave the group. Partitions that were not released are dropped without a checkpoint."""
        for number in list(self._assigned):
            self._release(number, flush=False)
        self._offsets.finish()
        self._consumer.close(autocommit=False, timeout_ms=1000 * CONNECT_SECONDS)

    def _heed(self) -> None:
        """Do what the group has decided since the last look, and lock the folders of partitions that have come."""
        while not self._events.empty():
            what, partitions = self._events.get()
            self._joined = what == "assigned"
            if self._joined:
                self._assigned |= {number: _Partition() for number in partitions if number not in self._assigned}
            else:
                for number in partitions & self._assigned.keys():
                    self._release(number, flush=what == "revoked")
        for number, each in self._assigned.items():
            if each.loop is None:
                self._acquire(number, each)

    def _acquire(self, number: int, each: _Partition) -> None:
        path, waited = self._folder / f"partition-{number}", time.monotonic() - each.since
        try:
            each.folder = CheckpointFolder(path, self._trusted, take_over=waited > TAKE_OVER_SECONDS)
        except FolderLockedError:
            if not each.told and waited > SESSION_SECONDS:
                each.told = True
                logger.warning("%s: waiting for another worker to release %s", self.name, path)
            return
        beginnings, ends = self._offsets.bounds([number])
        named = self._start is not None and (self._start.kind != "offsets" or number in self._start.offsets)
        start = self._start if self._start is not None and named else Start("earliest", "earliest")
        if start.kind == "offsets":  # of the others, other workers may know
            start = Start(start.text, "offsets", offsets={number: start.offsets[number]})
        first = self._offsets.first(start, beginnings, ends)[number]
        each.source = PartitionSource(
            self.name,
            self._topic,
            self._topic_id,
            getattr(self._codec, "label", None),
            number,
            beginning=beginnings[number],
            end=ends[number],
            start=first,
            lost_start=first if named else None,
            commit=lambda partition, offset: self._offsets.commit({partition: offset}),
        )
        each.loop, each.end = self._make_loop(each.source, each.folder), ends[number]
        key = TopicPartition(self._topic, number)
        if key not in self._consumer.assignment():  # it has gone meanwhile, and the next look will tell
            return
        self._consumer.seek(key, each.source.offset)
        self._consumer.resume(key)

    def _release(self, number: int, flush: bool) -> None:
        each = self._assigned.pop(number)
        self._offsets.forget([number])
        try:
            if flush and each.loop is not None:
                each.loop.checkpoint()
        except TakenOverError as error:
            logger.warning("%s", error)
        finally:
            if each.folder is not None:
                each.folder.close()

    def _is_done(self, number: int) -> bool:
        each, key = self._assigned[number], TopicPartition(self._topic, number)
        if each.source is None or each.end is None or key not in self._consumer.assignment():
            return False
        return each.source.offset >= each.end or (self._consumer.position(key, timeout_ms=POLL_MS) or 0) >= each.end

    def _learn(
        self, number: int, records: list[Any], max_rows: int | None, on_rows: Callable[[PartitionWorker], None] | None
    ) -> None:
        each = self._assigned.get(number)
        if each is None or each.source is None or each.loop is None:
            return
        each.source.feed(records, self._codec)
        while len(each.source) and not self._stopping.is_set():
            n = min(len(each.source), ROWS_AT_ONCE, sys.maxsize if max_rows is None else max_rows - self.rows)
            if n == 0:
                return
            try:
                each.loop.take(n)
            except TakenOverError as error:
                logger.warning("%s. This worker was thrown out of the group, and drops the partition", error)
                self._release(number, flush=False)
                return
            self.rows += n
            if on_rows is not None:
                on_rows(self)
            self._heed()
            if self._assigned.get(number) is not each:
                return

    def _poll(self) -> dict[Any, list[Any]]:
        try:
            messages: dict[Any, list[Any]] = self._consumer.poll(POLL_MS)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError, LogTruncationError) as error:
            raise StreamError(
                f"{self.name}: messages that were not read are gone ({error}). Say where to go on: --from"
            ) from error
        except KafkaError as error:
            raise StreamError(f"{self.name}: cannot be read: {error}") from error
        return messages

    def _check_identity(self) -> None:
        try:
            found = describe_topic(self._connection, self._topic)
        except BrokerUnreachableError as error:
            logger.warning("%s: %s The stream goes on when it is back.", self.name, error)
            return
        if found.topic_id != self._topic_id:
            raise StreamError(f"{self.name}: it was deleted and created again while it was read. Say where to go on: --from")
