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
        """Request the id and the partition numbers of a topic from the broker. Raise the broker's error; it is retriable while
        the topic has no leader yet.
        """

    def list_topics(self) -> list[str]:
        """Return the names of all topics of the cluster."""

    def read_topic_config(self, topic: str, name: str) -> str | None:
        """Return the value of a topic's configuration ``name``, such as ``cleanup.policy``; None if the broker does not report
        it.
        """

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Create a topic with one partition, the cluster's default replication, and the topic configuration ``settings``."""

    def read_cluster_id(self) -> str | None:
        """Return the id of the Kafka cluster; None if the broker does not report it."""

    def close(self) -> None:
        """Close the admin client's connection to the broker."""


class TopicConsumer(Protocol):
    """Reads a topic. It never commits on its own, and never resets an offset: `poll` raises an error if an offset is gone."""

    @property
    def group(self) -> str | None:
        """The name of the consumer group; None without a group."""

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Set the partitions to read, without a consumer group: ``offsets`` maps each to the offset of its next message.
        Partitions that were paused before stay paused.
        """

    @property
    def is_connected(self) -> bool:
        """Whether a broker responds. Thread-safe."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the consumer group. ``listener`` is called with the partitions that the group assigns or revokes; each new one is
        paused until `resume_at` is called for it.
        """

    def resume_at(self, partition: int, offset: int) -> None:
        """Start or continue to fetch messages of a partition, at ``offset``; do nothing if the group has revoked it."""

    def pause_partition(self, partition: int) -> None:
        """Fetch no messages of a partition until `resume_at` is called for it. Do nothing if the group has revoked it."""

    def poll(self, seconds: float) -> dict[int, Messages]:
        """Return newly fetched messages by partition number; an empty dict if none arrives within ``seconds``."""

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        """Stop fetching messages of the partitions ``paused``, and fetch those of ``resumed`` again where they were stopped."""

    def position(self, partition: int) -> int | None:
        """Return the offset of the next message that `poll` would return for a partition, after skipped transaction markers; None
        if it is unknown.
        """

    def cached_position(self, partition: int) -> int | None:
        """Return the offset of the next message that `poll` would return for a partition, from the client's memory: without a
        request to the broker. Return None if it is unknown. Thread-safe.
        """

    def high_watermark(self, partition: int) -> int | None:
        """Return the end offset of a partition (after its last message), as last reported by the broker, or None. Thread-safe."""

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Request from the broker, for each partition, the offset of its first message and the offset after its last readable
        message. Return them as two dicts by partition.
        """

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        """Request from the broker, for each partition, the offset of its first message with a timestamp of at least
        ``milliseconds`` since 1970. Return them by partition; None where all messages are older.
        """

    def committed(self, partition: int) -> int | None:
        """Request the committed offset of the consumer group in a partition; None without a committed offset."""

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        """Commit ``offsets`` (the next offset of each partition) for the consumer group without waiting. ``callback`` is called
        later with the offsets and the error, or None after success.
        """

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        """Commit ``offsets`` (the next offset of each partition) for the consumer group, and wait at most ``seconds``. Do not
        poll afterwards: messages that arrive meanwhile may be dropped.
        """

    def close(self, seconds: float) -> None:
        """Leave the consumer group, and close the connection to the broker, within ``seconds``."""


class TopicProducer(Protocol):
    """Sends messages in order and without duplicates, acknowledged by all replicas, optionally in transactions."""

    @property
    def delivery_error(self) -> BaseException | None:
        """The error of the first message that could not be delivered; None if all were delivered so far."""

    def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of the partitions of a topic. If it does not exist, let the broker create it, if its configuration
        allows that (``auto.create.topics.enable``). All other requests of a client create no topic.
        """

    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        """Send a message for each of ``values``, with its key, headers and timestamp in milliseconds, unless those lists are
        None. ``partition`` None chooses it by the key. Wait while too many messages are unacknowledged.
        """

    def flush(self, seconds: float) -> None:
        """Wait until all sent messages are acknowledged or have failed, at most ``seconds``."""

    def init_transactions(self) -> None:
        """Register this producer's transactional id with the broker, which fences (shuts out) other producers with the same id.
        After a KafkaTimeoutError, it may be called again.
        """

    def begin_transaction(self) -> None:
        """Begin a transaction: messages that are sent from now on belong to it."""

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        """Add the offsets of a consumer group, by (topic, partition), to the open transaction, within ``seconds``: they are
        committed together with its messages.
        """

    def commit_transaction(self, seconds: float) -> None:
        """Commit the open transaction within ``seconds``. After a KafkaTimeoutError, it is unknown whether it is committed."""

    def abort_transaction(self, seconds: float) -> None:
        """Abort the open transaction within ``seconds``: consumers that read only committed messages never see its messages."""

    def close(self, seconds: float) -> None:
        """Close the producer's connection to the broker within ``seconds``. Messages that were not flushed may be lost."""
