"""The protocol of client libraries: a client for administration, a consumer of one topic, and a producer.

Errors are of kafka-python's classes (`kafka.errors`), whichever library speaks to the broker. No method may be called by two
threads at once, but for those that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from streamsvm_kafka.clients.messages import Headers, Messages
from streamsvm_kafka.connection import TopicDescription

#: The most messages of a producer that wait to be acknowledged, and the most bytes of them: a prediction may have the headers of
#: its row's message.
MAX_PENDING_MESSAGES, MAX_PENDING_BYTES = 20_000, 1 << 24
#: The most bytes of a message that is sent: a checkpoint. Topics have limits of their own.
MAX_REQUEST_BYTES = (1 << 26) + (1 << 16)
#: The most bytes of messages that are sent together, unless their topic takes fewer.
BATCH_BYTES = 1 << 17
#: Called with the offsets that were to be committed, by partition, and with the error if they were not.
CommitCallback = Callable[[Mapping[int, int], Exception | None], None]


#: Called with the decision of a group and its partitions, perhaps by another thread. They are ``"assigned"``, and fetched after
#: `TopicConsumer.resume_at`; ``"revoked"``, in order; or ``"lost"``: others may read them already. It must not block.
RebalanceListener = Callable[[str, set[int]], None]


class TopicAdmin(Protocol):
    """Asks for topics and the cluster, and creates topics."""

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return the identity and the partitions of a topic; raise the broker's error, retriable while it has no leader."""

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""

    def read_topic_config(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic; None if the broker does not tell it."""

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Create a topic with one partition."""

    def read_cluster_id(self) -> str | None:
        """Return the identity of the cluster; None if the broker does not tell it."""

    def close(self) -> None:
        """Close the connection."""


class TopicConsumer(Protocol):
    """Reads a topic. It commits nothing by itself, and skips nothing: an offset that there is not is an error of `poll`."""

    @property
    def group(self) -> str | None:
        """The consumer group."""

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions and no others, each from its offset. Held partitions stay held."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Read the partitions that the group assigns, once `resume_at` says from where."""

    def resume_at(self, partition: int, offset: int) -> None:
        """Fetch a partition from an offset on; nothing happens if it is not assigned any more."""

    def pause_partition(self, partition: int) -> None:
        """Fetch nothing more of a partition, until `resume_at`; nothing happens if it is not assigned any more."""

    def poll(self, seconds: float) -> dict[int, Messages]:
        """Return the messages that have come, by partition, after waiting for the first for so long."""

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        """Pause some partitions, and resume others."""

    def position(self, partition: int) -> int | None:
        """Return the offset behind all that was given, or passed over: the markers of transactions. None: not known yet."""

    def cached_position(self, partition: int) -> int | None:
        """Return `position` without a request to the broker. From any thread."""

    def high_watermark(self, partition: int) -> int | None:
        """Return the end of a partition as the broker told it last. From any thread."""

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Ask for the first offset of each partition, and for the one behind the last that may be read."""

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        """Ask for the first offset of each partition that is not older than a time; None where all are."""

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        """Commit offsets for the group, without waiting."""

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        """Commit offsets for the group. Nothing may be read afterwards: messages that come meanwhile may be dropped."""

    def close(self, seconds: float) -> None:
        """Leave the group, and close the connection."""


class TopicProducer(Protocol):
    """Sends messages, each acknowledged by all replicas, in order and without duplicates; or in transactions."""

    @property
    def delivery_error(self) -> BaseException | None:
        """Why a message was not delivered; None if none is known to be lost."""

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
        """Send messages, after waiting for those before them if they are too many. Without a partition, keys choose them."""

    def flush(self, seconds: float) -> None:
        """Wait until all messages are acknowledged, or have failed."""

    def init_transactions(self) -> None:
        """Fence other producers with the transactional id. A KafkaTimeoutError may be tried again."""

    def begin_transaction(self) -> None:
        """Begin a transaction."""

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        """Have the transaction commit offsets, by topic and partition."""

    def commit_transaction(self, seconds: float) -> None:
        """Commit the transaction. After a KafkaTimeoutError, it is not known whether it is committed."""

    def abort_transaction(self, seconds: float) -> None:
        """Abort the transaction."""

    def close(self, seconds: float) -> None:
        """Close the connection. Messages that were not flushed may be lost."""
