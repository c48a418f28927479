"""The consumer of kafka-python."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import IllegalStateError, KafkaError
from kafka.structs import OffsetAndMetadata

from streamsvm_kafka.clients.kafka_python.client import open_client
from streamsvm_kafka.clients.kafka_python.record_batches import records_to_messages, use_compiled_parsing
from streamsvm_kafka.clients.messages import Messages
from streamsvm_kafka.clients.protocol import CommitCallback, RebalanceListener
from streamsvm_kafka.connection import RESPONSE_SECONDS, Connection

logger: logging.Logger = logging.getLogger(__name__)

#: Shorter losses of the connection are not reported.
_OUTAGE_SECONDS = 1.0
#: Maximum wait for the response to a request between two polls.
_POSITION_MS = 200


class KafkaPythonConsumer:
    """A consumer of kafka-python that implements `TopicConsumer`."""

    def __init__(
        self, connection: Connection, topic: str, group: str | None, max_fetches: int, size: int, settings: Mapping[str, Any]
    ) -> None:
        self.group: str | None = group
        self._topic = topic
        defaults = {"max_partition_fetch_bytes": size, "fetch_max_bytes": max_fetches * size, **settings}
        fixed = {
            "isolation_level": defaults.pop("isolation_level", "read_committed"),
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            # kafka-python 3.0.12 never returns to a partition that was paused after half of a fetch was read. So each poll
            # returns all fetched messages, and only the size of fetches limits them.
            "max_poll_records": sys.maxsize,
        }
        self._consumer = open_client(KafkaConsumer, connection, defaults, fixed)
        self._bootstrap, self._lost_time, self._is_away = connection.bootstrap, math.inf, False
        use_compiled_parsing(self._consumer)

    def _make_key(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([self._make_key(partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(self._make_key(partition), offset)

    def subscribe(self, listener: RebalanceListener) -> None:
        # A group leader without the topic's metadata assigns no partitions until its next refresh.
        with contextlib.suppress(KafkaError):
            self._consumer.partitions_for_topic(self._topic)
        self._consumer.subscribe([self._topic], listener=_RebalanceForwarder(self._consumer, listener))

    def resume_at(self, partition: int, offset: int) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.seek(self._make_key(partition), offset)
            self._consumer.resume(self._make_key(partition))

    def pause_partition(self, partition: int) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.pause(self._make_key(partition))

    def poll(self, seconds: float) -> dict[int, Messages]:
        polled = self._consumer.poll(int(1000 * seconds))
        self._report_outage()
        return {key.partition: records_to_messages(records) for key, records in polled.items() if records}

    @property
    def is_connected(self) -> bool:
        return any(connection.connected for connection in [*self._consumer._client._manager._conns.values()])

    def _report_outage(self) -> None:
        """Log one warning if no broker has been connected for a second, and another one as soon as a broker is connected."""
        now = time.monotonic()
        if self.is_connected:
            if self._is_away:
                logger.warning("Kafka at %s is back: reading continues", self._bootstrap)
            self._lost_time, self._is_away = math.inf, False
            return
        self._lost_time = min(self._lost_time, now)
        if not self._is_away and now - self._lost_time > _OUTAGE_SECONDS:
            self._is_away = True
            logger.warning("no Kafka broker at %s answers. Reading continues when one is back", self._bootstrap)

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        self._consumer.pause(*map(self._make_key, paused))
        self._consumer.resume(*map(self._make_key, resumed))

    def position(self, partition: int) -> int | None:
        position: int | None = self._consumer.position(self._make_key(partition), timeout_ms=_POSITION_MS)
        return position

    def cached_position(self, partition: int) -> int | None:
        state = self._consumer._subscription.assignment.get(self._make_key(partition))
        position = None if state is None else state.position
        return None if position is None else int(position.offset)

    def high_watermark(self, partition: int) -> int | None:
        try:
            offset: int | None = self._consumer.highwater(self._make_key(partition))
        except IllegalStateError:  # the partition was revoked
            return None
        return offset

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        keys = list(map(self._make_key, partitions))
        beginnings = self._consumer.beginning_offsets(keys, timeout_ms=1000 * RESPONSE_SECONDS)
        ends = self._consumer.end_offsets(keys, timeout_ms=1000 * RESPONSE_SECONDS)
        return {key.partition: beginnings[key] for key in keys}, {key.partition: ends[key] for key in keys}

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        times = dict.fromkeys(map(self._make_key, partitions), milliseconds)
        offsets = self._consumer.offsets_for_times(times, timeout_ms=1000 * RESPONSE_SECONDS)
        return {key.partition: None if offset is None else offset.offset for key, offset in offsets.items()}

    def committed(self, partition: int) -> int | None:
        offset: int | None = self._consumer.committed(self._make_key(partition), timeout_ms=1000 * RESPONSE_SECONDS)
        return offset

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        def report_result(_: Any, response: Any) -> None:
            callback(offsets, response if isinstance(response, Exception) else None)

        self._consumer.commit_async(self._add_metadata(offsets), callback=report_result)

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        self._consumer.commit(self._add_metadata(offsets), timeout_ms=1000 * seconds)

    def _add_metadata(self, offsets: Mapping[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Convert offsets by partition number to the mapping of TopicPartition to OffsetAndMetadata that kafka-python commits."""
        return {self._make_key(partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}

    def close(self, seconds: float) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000 * seconds)


class _RebalanceForwarder(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forwards rebalances, which kafka-python reports in a thread of its own that must not block, to a listener."""

    def __init__(self, consumer: Any, listener: RebalanceListener) -> None:
        self._consumer, self._listener = consumer, listener

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        for key in assigned:  # paused until `resume_at`; without a position, kafka-python would look for a committed offset
            self._consumer.pause(key)
            self._consumer.seek(key, 0)
        self._listener("assigned", {key.partition for key in assigned})

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        # kafka-python 3.0.12: if a poll ends before a rebalance that a change of the topic has caused, it forgets that rebalance.
        # The new partitions would not be reported, and heartbeats would stop.
        self._consumer._coordinator.request_rejoin()
        self._listener("revoked", {key.partition for key in revoked})

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._listener("lost", {key.partition for key in lost})
