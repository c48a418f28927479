"""The consumer of confluent-kafka."""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ErrorCode
from kafka.errors import KafkaError, KafkaTimeoutError

from streamsvm_kafka.clients.confluent.client import (
    CALLBACK_SECONDS,
    create_client,
    to_property_name,
    translate_error,
    translating_errors,
)
from streamsvm_kafka.clients.messages import Headers, Messages
from streamsvm_kafka.clients.protocol import CommitCallback, RebalanceListener
from streamsvm_kafka.connection import RESPONSE_SECONDS, Connection

#: Maximum size of the messages that librdkafka buffers for a partition. A longer message is buffered alone.
QUEUED_BYTES = 1 << 21
#: Maximum time that a broker waits for messages before it responds to a fetch.
_FETCH_WAIT_MS = 200
#: librdkafka fetches more from a partition if fewer messages of it are buffered.
_MIN_QUEUED_MESSAGES = 100
#: Maximum number of messages in a call of `consume`.
_MAX_CONSUMED_MESSAGES = 1000
#: Time between two looks at the broker, and the maximum wait for one that was away.
_LOOK_SECONDS = 0.5
#: Pause of fetching from a partition whose buffer is full.
_FETCH_BACKOFF_MS = 2
#: A setting that has a different name in librdkafka.
_RENAMED_SETTINGS = {"metadata_max_age_ms": "topic.metadata.refresh.interval.ms"}
#: Errors that librdkafka recovers from by itself: the broker is unreachable, or the group rebalances.
_TRANSIENT_CODES = {
    ErrorCode._TRANSPORT,
    ErrorCode._ALL_BROKERS_DOWN,
    ErrorCode._RESOLVE,
    ErrorCode._TIMED_OUT,
    ErrorCode._MAX_POLL_EXCEEDED,
}
#: Errors about groups, which do not matter to a consumer without one.
_GROUP_CODES = {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


class ConfluentConsumer:
    """A consumer of confluent-kafka that implements `TopicConsumer`."""

    def __init__(
        self, connection: Connection, topic: str, group: str | None, max_fetches: int, size: int, settings: Mapping[str, Any]
    ) -> None:
        self.group: str | None = group
        self._topic = topic
        defaults = {
            "fetch.wait.max.ms": _FETCH_WAIT_MS,  # after which an end of partition is reported
            "fetch.message.max.bytes": size,
            "fetch.max.bytes": max_fetches * size,
            "message.max.bytes": size,  # librdkafka requires it not to exceed the one before, although it limits sent messages
            "queued.min.messages": _MIN_QUEUED_MESSAGES,  # small, because the limit of bytes ignores keys and headers
            "queued.max.messages.kbytes": QUEUED_BYTES >> 10,
            "fetch.queue.backoff.ms": _FETCH_BACKOFF_MS,
            "error_cb": self._handle_error,
        }
        fixed = {
            "isolation.level": settings.get("isolation_level", "read_committed"),
            "group.id": group or "streamsvm",  # required even if no group is used
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,  # reports that transaction markers at the end were skipped
            "on_commit": self._handle_commit,
        }
        for name, value in settings.items():
            if name != "isolation_level":
                defaults[_RENAMED_SETTINGS.get(name, to_property_name(name))] = value
        # Read by other threads. They must not call the consumer: 2.16 lets them wait while a thread polls again and again.
        self.is_connected: bool = True
        self._end_offsets: dict[int, int] = {}
        self._next_look = 0.0
        self._consumer = create_client(Consumer, connection, defaults, fixed)
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()
        self._assigned_by_group: set[int] = set()
        self._pending_commits: list[tuple[Mapping[int, int], CommitCallback]] = []
        self._failure: KafkaError | None = None

    def _handle_error(self, error: Any) -> None:  # called during a poll
        self.is_connected = self.is_connected and error.code() != ErrorCode._ALL_BROKERS_DOWN

    def _look_at_broker(self) -> None:
        """Twice a second, copy the end offsets that the broker has last reported and, while none responds, see if it is back."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        with contextlib.suppress(KafkaException):
            if not self.is_connected:  # librdkafka does not report that a broker is back
                self._consumer.list_topics(self._topic, timeout=_LOOK_SECONDS)
                self.is_connected = True
            for partition in self._positions:
                _, offset = self._consumer.get_watermark_offsets(self._make_key(partition), cached=True)
                self._end_offsets[partition] = offset

    def _make_key(self, partition: int, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._positions = dict(offsets)
        with translating_errors():
            self._consumer.assign([self._make_key(partition, offset) for partition, offset in offsets.items()])

    def subscribe(self, listener: RebalanceListener) -> None:
        def remove_partitions(keys: Sequence[Any]) -> set[int]:
            partitions = {key.partition for key in keys}
            self._assigned_by_group -= partitions
            self._positions = {p: offset for p, offset in self._positions.items() if p not in partitions}
            self._consumer.unassign()  # with the group protocol in use, all partitions are revoked at once
            return partitions

        def add_partitions(_: Any, keys: Sequence[Any]) -> None:
            self._consumer.assign([self._make_key(*position) for position in self._positions.items()])
            partitions = {key.partition for key in keys}
            self._assigned_by_group |= partitions
            listener("assigned", partitions)

        with translating_errors():
            self._consumer.subscribe(
                [self._topic],
                on_assign=add_partitions,
                on_revoke=lambda _, keys: listener("revoked", remove_partitions(keys)),
                on_lost=lambda _, keys: listener("lost", remove_partitions(keys)),
            )

    def resume_at(self, partition: int, offset: int) -> None:
        if partition in self._assigned_by_group:
            self.assign({**self._positions, partition: offset})

    def pause_partition(self, partition: int) -> None:
        self.assign({p: offset for p, offset in self._positions.items() if p != partition})

    def poll(self, seconds: float) -> dict[int, Messages]:
        self._raise_failure()
        self._look_at_broker()
        with translating_errors():
            polled = self._consumer.consume(_MAX_CONSUMED_MESSAGES, 0.0)
            if not polled and seconds:
                polled = self._consumer.consume(1, seconds)
                polled += self._consumer.consume(_MAX_CONSUMED_MESSAGES, 0.0) if polled else []
        end_offsets: dict[int, int] = {}  # of partitions that were read to their end, including transaction markers
        if any(message.error() is not None for message in polled):
            polled = [message for message in polled if self._is_message(message, end_offsets)]
        partitions = [message.partition() for message in polled]
        if len(set(partitions)) > 1:
            by_partition: dict[int, list[Any]] = {partition: [] for partition in partitions}
            for partition, message in zip(partitions, polled, strict=True):
                by_partition[partition].append(message)
        else:
            by_partition = {partitions[0]: polled} if polled else {}
        columns = {partition: _make_columns(partition, messages) for partition, messages in by_partition.items()}
        for partition in columns.keys() | end_offsets.keys():
            next_offset = int(columns[partition].offsets[-1]) + 1 if partition in columns else 0
            self._positions[partition] = max(next_offset, end_offsets.get(partition, 0))
        if not columns:
            self._raise_failure()
        return columns

    def _raise_failure(self) -> None:
        """Raise the error that an earlier poll has stored, and clear it; do nothing if no error is stored."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _is_message(self, message: Any, end_offsets: dict[int, int]) -> bool:
        """Return whether ``message``, a result of confluent-kafka's poll, is really a message. If it is the event that the end of
        a partition is reached, store its offset in ``end_offsets`` (by partition). If it is an error, store it, to be raised
        later.
        """
        error = message.error()
        if error is None:
            return True
        if error.code() == ErrorCode._PARTITION_EOF:
            end_offsets[message.partition()] = message.offset()
        elif error.code() not in _TRANSIENT_CODES and (self.group is not None or error.code() not in _GROUP_CODES):
            self._failure = self._failure or translate_error(error)
        return False

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        # librdkafka discards buffered messages when a partition is paused, so a paused partition must not be paused again.
        to_pause, to_resume = set(paused) - self._paused, set(resumed) & self._paused
        self._paused = (self._paused | to_pause) - to_resume
        with translating_errors():
            if to_pause:
                self._consumer.pause(list(map(self._make_key, to_pause)))
            if to_resume:
                self._consumer.resume(list(map(self._make_key, to_resume)))

    def position(self, partition: int) -> int | None:
        return self._positions.get(partition)

    cached_position = position

    def high_watermark(self, partition: int) -> int | None:
        offset = self._end_offsets.get(partition, -1)
        return offset if offset >= 0 else None

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        with translating_errors():
            self._consumer.list_topics(self._topic, timeout=RESPONSE_SECONDS)  # makes new partitions known to librdkafka
            offsets = {p: self._consumer.get_watermark_offsets(self._make_key(p), timeout=RESPONSE_SECONDS) for p in partitions}
        if None in offsets.values():
            raise KafkaTimeoutError(f"no response in {RESPONSE_SECONDS:g} s")
        return {p: low for p, (low, _) in offsets.items()}, {p: high for p, (_, high) in offsets.items()}

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        with translating_errors():
            times = [self._make_key(partition, milliseconds) for partition in partitions]
            results = self._consumer.offsets_for_times(times, timeout=RESPONSE_SECONDS)
        for result in results:
            if result.error is not None:
                raise translate_error(result.error)
        return {result.partition: result.offset if result.offset >= 0 else None for result in results}

    def committed(self, partition: int) -> int | None:
        with translating_errors():
            (position,) = self._consumer.committed([self._make_key(partition)], timeout=RESPONSE_SECONDS)
        return position.offset if position.offset >= 0 else None

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        self._pending_commits.append((offsets, callback))
        with translating_errors():
            self._consumer.commit(offsets=[self._make_key(*position) for position in offsets.items()], asynchronous=True)

    def _handle_commit(self, error: Any, _: Any) -> None:  # called during a poll, in the order of the commits
        """Pass the result of a commit of offsets to the callback of the oldest pending commit: ``error``, or None after success.
        librdkafka calls this once for each commit, in order; its second argument is unused.
        """
        if self._pending_commits:
            offsets, callback = self._pending_commits.pop(0)
            callback(offsets, None if error is None else translate_error(error))

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        outcomes: list[KafkaError | None] = []
        self.commit_async(offsets, lambda _, error: outcomes.append(error))
        deadline = time.monotonic() + seconds
        while not outcomes:
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"no response in {seconds:g} s")
            self._consumer.poll(CALLBACK_SECONDS)
        if outcomes[0] is not None:
            raise outcomes[0]

    def close(self, seconds: float) -> None:  # noqa: ARG002 - librdkafka leaves the group quickly, or gives up
        with translating_errors():
            self._consumer.close()


def _make_columns(partition: int, messages: Sequence[Any]) -> Messages:
    """Convert a list of confluent-kafka's messages from one ``partition`` to a `Messages` object, which stores offsets,
    timestamps, keys, headers and values as columns.
    """
    offsets = np.array([message.offset() for message in messages], dtype=np.int64)
    timestamps = np.array([message.timestamp()[1] for message in messages], dtype=np.int64)
    keys: Any = [message.key() for message in messages]
    keys = keys if any(key is not None for key in keys) else None
    headers: Any = list(map(_read_headers, messages))
    headers = headers if any(headers) else None
    return Messages(partition, offsets, timestamps, keys, headers, [message.value() for message in messages])


#: Calls ``message.headers()`` with a check for errors: the method may return a value and also set an error, which an inlined call
#: of CPython does not notice.
_call_headers = operator.methodcaller("headers")


def _read_headers(message: Any) -> Headers:
    """Return the headers of a confluent-kafka message as (name, value) pairs. If the name of a header is not UTF-8, return a
    single placeholder header instead of all.
    """
    try:
        return _call_headers(message) or ()
    except (SystemError, UnicodeDecodeError):  # a name is not UTF-8
        return [("?", None)]
