"""Offsets of a topic: the first and last of each partition, where reading starts, and those committed for a group."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from kafka.errors import KafkaError

from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.rows import format_names
from streamsvm_kafka.clients.protocol import TopicConsumer
from streamsvm_kafka.connection import CONNECT_SECONDS, BrokerUnreachableError, describe_missing_right

#: Time between two attempts to commit offsets.
COMMIT_RETRY_SECONDS = 1.0
_OFFSET = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)
_FORMS = "earliest, latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET such as 0:1500,1:1498"


class StartPoint(NamedTuple):
    """The first message to read of each partition."""

    text: str  # that the user gave
    kind: str  # ``"earliest"``, ``"latest"``, ``"time"`` or ``"offsets"``
    milliseconds: int = 0  # of a time: since 1970, UTC. The first message that is not older.
    offsets: Mapping[int, int] = MappingProxyType({})  # by partition; those that are not named are read from their beginning


def parse_start(text: str | None, name: str) -> StartPoint | None:
    """Return what ``earliest``, ``latest``, a time (ISO 8601; UTC if it names no zone) or ``PARTITION:OFFSET,...`` stands for.

    Return None for None. Raise a StreamError, with the name of the stream, for any other text.

    >>> parse_start("0:1500,1:1498", "rows").offsets
    {0: 1500, 1: 1498}
    >>> parse_start("2026-03-01", "rows").milliseconds
    1772323200000
    """
    if text is None:
        return None
    if text in ("earliest", "latest"):
        return StartPoint(text, text)
    matches = [_OFFSET.fullmatch(part.strip()) for part in text.split(",")]
    pairs = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    if len(pairs) == len(matches):
        if len(dict(pairs)) < len(pairs):
            raise StreamError(f"{name}: {text!r} names a partition twice")
        return StartPoint(text, "offsets", offsets=dict(pairs))
    try:
        time = datetime.fromisoformat(text)
        moment = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        moment = -1.0
    if moment < 0.0:
        raise StreamError(f"{name}: {text!r} is none of {_FORMS}")
    return StartPoint(text, "time", int(1000 * moment))


logger: logging.Logger = logging.getLogger(__name__)


class TopicOffsets:
    """The offsets of a topic, asked for through a consumer of a user. The stream has a name in messages."""

    def __init__(self, consumer: TopicConsumer, topic: str, name: str, user: str) -> None:
        self._consumer, self._topic, self._name, self._user = consumer, topic, name, user
        self._uncommitted: dict[int, int] = {}
        self._failing = False
        self._failed: set[int] = set()  # partitions whose last commit has failed
        self._again_at = 0.0  # when these are committed once more
        # Offsets behind markers of transactions, which are not messages. `lag` reads them from any thread.
        self._passed: dict[int, int] = {}

    def beginning_and_end_offsets(self, partitions: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return the first and the next offset of each partition; BrokerUnreachableError if the broker does not tell them."""
        try:
            return self._consumer.beginning_and_end_offsets(sorted(partitions))
        except KafkaError as error:
            text = f"{self._name}: its offsets cannot be read: {error}. Check the broker and its log."
            raise BrokerUnreachableError(text) from error

    def find_start_offsets(self, start: StartPoint, beginnings: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return the first offset to read of each partition.

        A BrokerUnreachableError says that the broker does not tell, another StreamError that ``start`` names a partition or an
        offset that there is not.
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
            begin, end = beginnings[partition], ends[partition]
            if not begin <= offset <= end:
                raise StreamError(f"{self._name}: partition {partition} holds offsets {begin} to {end}, not {offset}")
        return {**beginnings, **start.offsets}

    def advance_past_markers(self, partitions: Iterable[int]) -> None:
        """Record how far partitions were read whose messages have all been processed."""
        for partition in partitions:
            self._passed[partition] = self._consumer.cached_position(partition) or 0

    def find_end_offset(self, partition: int, end: int) -> int:
        """Return the end of a partition, as far as the broker has told, and ``end`` at least. From any thread: it asks nobody."""
        return max(self._consumer.high_watermark(partition) or 0, end)

    def compute_lag(self, offsets: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return how many messages of each partition wait behind its offset, as far as is known. From any thread."""
        return {p: self.find_end_offset(p, ends.get(p, 0)) - max(offset, self._passed.get(p, 0)) for p, offset in offsets.items()}

    def retry_commits(self) -> None:
        """Commit, now and then, what could not be committed: as while the group decides anew who reads what."""
        if self._failed and time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + COMMIT_RETRY_SECONDS
            self.commit_async(
                {partition: offset for partition, offset in [*self._uncommitted.items()] if partition in self._failed}
            )

    def commit_async(self, offsets: Mapping[int, int]) -> None:
        """Commit offsets for the group of the consumer, without waiting. A failure is logged: nothing depends on them."""
        self._uncommitted |= offsets
        try:
            self._consumer.commit_async(offsets, self._handle_commit_result)
        except KafkaError as error:
            self._handle_commit_result(offsets, error)

    def commit_remaining(self) -> None:
        """Wait a few seconds for the last commits. A failure is logged."""
        if self._uncommitted:
            try:
                self._consumer.commit_sync(dict(self._uncommitted), CONNECT_SECONDS)
            except KafkaError as error:
                self._handle_commit_result({}, error)
            self._uncommitted.clear()
            self._failed.clear()

    def forget_partitions(self, partitions: Iterable[int]) -> None:
        """Commit nothing more of partitions that others read now."""
        for partition in partitions:
            self._passed.pop(partition, None)
            self._uncommitted.pop(partition, None)
            self._failed.discard(partition)

    def _handle_commit_result(self, offsets: Mapping[int, int], error: Exception | None) -> None:
        if error is not None:
            level = logging.DEBUG if self._failing else logging.WARNING  # once, until one succeeds
            reason = describe_missing_right(self._user, error, "Read", self._topic, group=self._consumer.group) or error
            text = "%s: the offsets of the group were not committed (%s); the checkpoints have them"
            logger.log(level, text, self._name, reason)
            self._failing = True
            self._failed |= offsets.keys() & self._uncommitted.keys()
            return
        self._failing = False
        self._failed -= offsets.keys()
        for partition, offset in offsets.items():
            if self._uncommitted.get(partition) == offset:
                self._uncommitted.pop(partition, None)
