"""Protocols that both client libraries implement: an admin client, a consumer of one topic, and a producer.

Errors are kafka-python's classes (`kafka.errors`) with either library. A client is not thread-safe, except for the methods that
say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from streamsvm_kafka.clients.messages import Headers, Messages
from streamsvm_kafka.connection import TopicDescription

#: A producer waits if more unacknowledged messages or bytes are pending. (A prediction may have its row's headers.)
MAX_PENDING_MESSAGES, MAX_PENDING_BYTES = 20_000, 1 << 24
#: Maximum size of a message to send, for checkpoints. Topics have limits of their own.
MAX_REQUEST_BYTES = (1 << 26) + (1 << 16)
#: Maximum size of a batch of messages to send, unless the topic's limit is lower.
BATCH_BYTES = 1 << 17
#: Called after a commit with its offsets by partition, and with the error, or None if they were committed.
CommitCallback = Callable[[Mapping[int, int], Exception | None], None]


#: Called when the group rebalances, with ``"assigned"`` (the partitions are paused until `TopicConsumer.resume_at`),
#: ``"revoked"`` or ``"lost"`` (other members may already read them), and the partitions. It may run in another thread, and must
#: not block.
RebalanceListener = Callable[[str, set[int]], None]


class TopicAdmin(Protocol):
    """Describes topics and the cluster, and creates topics."""

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return the id and the partitions of a topic; raise the broker's error, which is retriable if it has no leader yet."""

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""

    def read_topic_config(self, topic: str, name: str) -> str | None:
        """Return a configuration value of a topic; None if the broker does not report it."""

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Create a topic with one partition."""

    def read_cluster_id(self) -> str | None:
        """Return the id of the cluster; None if the broker does not report it."""

    def close(self) -> None:
        """Close the connection."""


class TopicConsumer(Protocol):
    """Reads a topic. It never commits on its own, and never resets an offset: `poll` raises an error if an offset is gone."""

    @property
    def group(self) -> str | None:
        """The consumer group."""

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Replace the assignment: read these partitions, each from its offset. Paused partitions stay paused."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group. Each partition that it assigns is paused until `resume_at`."""

    def resume_at(self, partition: int, offset: int) -> None:
        """Fetch a partition from an offset on; do nothing if it was revoked."""

    def pause_partition(self, partition: int) -> None:
        """Stop fetching from a partition until `resume_at`; do nothing if it was revoked."""

    def poll(self, seconds: float) -> dict[int, Messages]:
        """Return newly fetched messages by partition; wait at most ``seconds`` for the first one."""

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        """Pause fetching from some partitions, and resume it for others."""

    def position(self, partition: int) -> int | None:
        """Return the offset after the last message that was returned, or transaction marker that was skipped; None if unknown."""

    def cached_position(self, partition: int) -> int | None:
        """Return `position` without a request to the broker. Thread-safe."""

    def high_watermark(self, partition: int) -> int | None:
        """Return the end offset of a partition from the broker's last response; None if unknown. Thread-safe."""

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Request the first offset of each partition, and the one after its last readable message."""

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        """Request the offset of the first message of each partition at or after a time; None if all messages are older."""

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        """Commit offsets for the group without waiting."""

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        """Commit offsets for the group. Do not poll afterwards: messages that arrive meanwhile may be dropped."""

    def close(self, seconds: float) -> None:
        """Leave the group, and close the connection."""


class TopicProducer(Protocol):
    """Sends messages in order and without duplicates, acknowledged by all replicas, optionally in transactions."""

    @property
    def delivery_error(self) -> BaseException | None:
        """The error of the first message that was not delivered; None without failures so far."""

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic."""

    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        """Send messages. Wait if too many are unacknowledged. Without a ``partition``, the key of each determines it."""

    def flush(self, seconds: float) -> None:
        """Wait until all messages are acknowledged, or have failed."""

    def init_transactions(self) -> None:
        """Fence other producers with the same transactional id. A KafkaTimeoutError may be retried."""

    def begin_transaction(self) -> None:
        """Begin a transaction."""

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        """Add offsets of a group, by topic and partition, to the transaction."""

    def commit_transaction(self, seconds: float) -> None:
        """Commit the transaction. After a KafkaTimeoutError, it is unknown whether it is committed."""

    def abort_transaction(self, seconds: float) -> None:
        """Abort the transaction."""

    def close(self, seconds: float) -> None:
        """Close the connection. Messages that were not flushed may be lost."""
