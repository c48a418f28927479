"""Offsets of a topic: the beginning and end of each partition, where reading starts, and commits for a group."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafka.errors import KafkaError

from streamsvm.files.messages import format_names
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.tables.dates import parse_iso_time
from streamsvm_kafka.clients.protocol import TopicConsumer
from streamsvm_kafka.connection import CONNECT_SECONDS, BrokerUnreachableError, describe_missing_right

#: Minimum time between two retries of failed commits.
COMMIT_RETRY_SECONDS = 1.0
_PARTITION_OFFSET = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)
_START_FORMATS = "earliest, latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET such as 0:1500,1:1498"


class StartPoint(NamedTuple):
    """Where reading starts in each partition of a topic, as the user requests it."""

    text: str
    """The text that was parsed."""
    kind: str
    """``"earliest"``, ``"latest"``, ``"time"`` or ``"offsets"``."""
    milliseconds: int = 0
    """For a time: milliseconds since 1970, UTC. Reading starts at the first message at or after it."""
    offsets: Mapping[int, int] = MappingProxyType({})
    """For offsets: the first offset by partition. Other partitions are read from their beginning."""


def parse_start(text: str | None, name: str) -> StartPoint | None:
    """Parse the user's choice of where to start reading a topic: ``earliest``, ``latest``, a time in ISO 8601 (UTC without a time
    zone), or ``PARTITION:OFFSET,...``. ``name`` is the stream in errors.

    Return None for None. Raise a StreamError, with the ``name`` of the stream, for any other text.

    >>> parse_start("0:1500,1:1498", "rows").offsets
    {0: 1500, 1: 1498}
    >>> parse_start("2026-03-01", "rows").milliseconds
    1772323200000
    """
    if text is None:
        return None
    if text in ("earliest", "latest"):
        return StartPoint(text, text)
    matches = [_PARTITION_OFFSET.fullmatch(part.strip()) for part in text.split(",")]
    pairs = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    if len(pairs) == len(matches):
        if len(dict(pairs)) < len(pairs):
            raise StreamError(f"{name}: {text!r} names a partition twice")
        return StartPoint(text, "offsets", offsets=dict(pairs))
    with contextlib.suppress(ValueError):
        if (seconds := parse_iso_time(text)) >= 0.0:
            return StartPoint(text, "time", int(1000 * seconds))
    raise StreamError(f"{name}: {text!r} is none of {_START_FORMATS}")


logger: logging.Logger = logging.getLogger(__name__)


class TopicOffsets:
    """Requests offsets of a topic through a consumer, computes its lag, and commits offsets with retries.

    ``name`` is the stream and ``user`` the Kafka user in messages.
    """

    def __init__(self, consumer: TopicConsumer, topic: str, name: str, user: str) -> None:
        self._consumer, self._topic, self._name, self._user = consumer, topic, name, user
        self._uncommitted: dict[int, int] = {}
        self._is_failing = False
        self._failed_partitions: set[int] = set()  # whose last commit has failed
        self._next_retry_time = 0.0
        # Offsets after transaction markers, which are not messages. `compute_lag` reads them from any thread.
        self._positions_after_markers: dict[int, int] = {}

    def beginning_and_end_offsets(self, partitions: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Request the first offset and the end offset (after the last message) of each partition, and return them as two dicts by
        partition. Raise a BrokerUnreachableError if the broker does not respond.
        """
        try:
            return self._consumer.beginning_and_end_offsets(sorted(partitions))
        except KafkaError as error:
            text = f"{self._name}: its offsets cannot be read: {error}. Check the broker and its log."
            raise BrokerUnreachableError(text) from error

    def find_start_offsets(self, start: StartPoint, beginnings: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return the offset of the first message to read in each partition, for the user's choice ``start``: earliest, latest, a
        time or offsets. ``beginnings`` and ``ends`` are the first and the end offsets by partition.

        Raise a BrokerUnreachableError if the broker does not respond, and another StreamError if ``start`` names an unknown
        partition, or an offset that its partition does not hold.
        """
        if start.kind == "latest":
            return dict(ends)
        if start.kind == "time":
            try:
                offsets = self._consumer.offsets_for_time(start.milliseconds, sorted(ends))
            except KafkaError as error:
                text = f"{self._name}: its offsets at a time cannot be read: {error}. Check the broker."
                raise BrokerUnreachableError(text) from error
            return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}
        if unknown := sorted(start.offsets.keys() - beginnings.keys()):
            raise StreamError(f"{self._name} has no partition {unknown[0]}: it has {format_names(sorted(beginnings), 10)}")
        for partition, offset in start.offsets.items():
            beginning, end_offset = beginnings[partition], ends[partition]
            if not beginning <= offset <= end_offset:
                raise StreamError(f"{self._name}: partition {partition} holds offsets {beginning} to {end_offset}, not {offset}")
        return {**beginnings, **start.offsets}

    def advance_past_markers(self, partitions: Iterable[int]) -> None:
        """Remember the consumer's current position in each of the partitions, which may be after transaction markers, so that
        `compute_lag` does not count those as unread messages. Call this only when all fetched messages are processed.
        """
        for partition in partitions:
            self._positions_after_markers[partition] = self._consumer.cached_position(partition) or 0

    def find_end_offset(self, partition: int, end_offset: int) -> int:
        """Return the larger of ``end_offset`` and the partition's end offset as last reported by the broker. Thread-safe."""
        return max(self._consumer.high_watermark(partition) or 0, end_offset)

    def compute_lag(self, offsets: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return the number of unread messages by partition (the consumer lag), as of the broker's last response. Thread-safe.

        ``offsets`` are the next offsets to read, ``ends`` the end offsets when the topic was opened.
        """
        return {
            partition: self.find_end_offset(partition, ends.get(partition, 0))
            - max(offset, self._positions_after_markers.get(partition, 0))
            for partition, offset in offsets.items()
        }

    def retry_commits(self) -> None:
        """Repeat failed commits of offsets for the consumer group, at most once a second. (They fail during a rebalance.)"""
        if self._failed_partitions and time.monotonic() >= self._next_retry_time:
            self._next_retry_time = time.monotonic() + COMMIT_RETRY_SECONDS
            self.commit_async({p: offset for p, offset in [*self._uncommitted.items()] if p in self._failed_partitions})

    def commit_async(self, offsets: Mapping[int, int]) -> None:
        """Commit ``offsets`` (the next offset of each partition) for the consumer group, without waiting. A failure is only
        logged, and retried by `retry_commits`, because checkpoints contain the offsets, too.
        """
        self._uncommitted |= offsets
        try:
            self._consumer.commit_async(offsets, self._handle_commit_result)
        except KafkaError as error:
            self._handle_commit_result(offsets, error)

    def commit_remaining(self) -> None:
        """Commit all offsets that are not committed yet, and wait a few seconds for the result. A failure is only logged."""
        if self._uncommitted:
            try:
                self._consumer.commit_sync(dict(self._uncommitted), CONNECT_SECONDS)
            except KafkaError as error:
                self._handle_commit_result({}, error)
            self._uncommitted.clear()
            self._failed_partitions.clear()

    def forget_partition(self, partition: int) -> None:
        """Forget uncommitted offsets of a partition, because the group has assigned it to another member."""
        self._positions_after_markers.pop(partition, None)
        self._uncommitted.pop(partition, None)
        self._failed_partitions.discard(partition)

    def _handle_commit_result(self, offsets: Mapping[int, int], error: Exception | None) -> None:
        """Process the result of a commit of ``offsets``: after an ``error``, log it and mark their partitions for a retry; after
        success (None), forget the offsets.
        """
        if error is not None:
            level = logging.DEBUG if self._is_failing else logging.WARNING  # warn once, until a commit succeeds
            reason = describe_missing_right(self._user, error, "Read", self._topic, group=self._consumer.group) or error
            text = "%s: the offsets of the group were not committed (%s); the checkpoints have them"
            logger.log(level, text, self._name, reason)
            self._is_failing = True
            self._failed_partitions |= offsets.keys() & self._uncommitted.keys()
            return
        self._is_failing = False
        self._failed_partitions -= offsets.keys()
        for partition, offset in offsets.items():
            if self._uncommitted.get(partition) == offset:
                self._uncommitted.pop(partition, None)
