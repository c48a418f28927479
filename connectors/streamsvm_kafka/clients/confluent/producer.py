"""The producer of confluent-kafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ErrorCode
from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

from streamsvm_kafka.clients.confluent.client import CALLBACK_SECONDS, create_client, translate_error, translating_errors
from streamsvm_kafka.clients.messages import Headers
from streamsvm_kafka.clients.protocol import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES, MAX_REQUEST_BYTES
from streamsvm_kafka.connection import CONNECT_SECONDS, RESPONSE_SECONDS, Connection, retry_with_backoff


class ConfluentProducer:
    """A producer of confluent-kafka that implements `TopicProducer`."""

    def __init__(
        self, connection: Connection, seconds: float, transactional_id: str | None, transaction_seconds: float, batch_bytes: int
    ) -> None:
        transactions: dict[str, Any] = {}
        if transactional_id is not None:
            transactions = {"transactional.id": transactional_id, "transaction.timeout.ms": int(1000 * transaction_seconds)}
        self._seconds = seconds
        defaults = {
            "linger.ms": 5,
            "batch.size": batch_bytes,
            "message.max.bytes": MAX_REQUEST_BYTES,
            "partitioner": "murmur2_random",  # as other clients do, so that equal keys go to the same partition
            "queue.buffering.max.messages": MAX_PENDING_MESSAGES,
            # A checkpoint must fit besides pending predictions.
            "queue.buffering.max.kbytes": (MAX_PENDING_BYTES + (MAX_REQUEST_BYTES if transactions else 0)) >> 10,
        }
        fixed = {
            "acks": "all",
            "enable.idempotence": True,
            # It must not exceed the timeout of a transaction.
            "delivery.timeout.ms": int(1000 * (seconds if transactional_id is None else min(seconds, transaction_seconds))),
            "delivery.report.only.error": True,
            "allow.auto.create.topics": False,
            **transactions,
        }
        self._producer = create_client(Producer, connection, defaults, fixed)
        self.delivery_error: BaseException | None = None
        self._is_transactional = transactional_id is not None
        self._group_consumers: dict[str, Any] = {}
        self._connection = connection

    def partitions_for(self, topic: str) -> set[int]:
        creator = create_client(Producer, self._connection, {}, {})  # only its requests create a topic

        @translating_errors()
        def read_partitions() -> set[int]:
            metadata = creator.list_topics(topic, timeout=RESPONSE_SECONDS).topics[topic]
            if metadata.error is not None:
                raise translate_error(metadata.error)
            return set(metadata.partitions)

        # For a moment, a broker may respond that a topic which it creates does not exist, or has no leader.
        return retry_with_backoff(read_partitions, (BrokerResponseError,), 2.0)

    @translating_errors()
    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        columns: Any = keys or repeat(None), headers or repeat([]), timestamps or repeat(None)
        # In a transaction, the commit reports messages that were not delivered.
        produce, report_delivery = self._producer.produce, None if self._is_transactional else self._record_failure
        partition_number = -1 if partition is None else partition  # -1: chosen by the key, or at random without one
        for value, key, pairs, timestamp in zip(values, *columns, strict=False):
            milliseconds = 0 if timestamp is None else max(timestamp, 1)  # 0 means now
            message = topic, value, key, partition_number, report_delivery, None, milliseconds, pairs
            try:
                produce(*message)
            except BufferError:
                self._retry_produce(message)
            except KafkaException as error:
                if self._is_transactional and error.args[0].code() == ErrorCode._STATE:
                    self._producer.commit_transaction(self._seconds)  # fails, with the reason why the transaction has failed
                raise
        self._producer.poll(0)

    def _retry_produce(self, message: tuple[Any, ...]) -> None:
        """Repeat an attempt to send a message until the producer's buffer has space for it; callbacks of delivered messages free
        that space. ``message`` contains the arguments of confluent-kafka's ``produce``.
        """
        deadline = time.monotonic() + self._seconds + CONNECT_SECONDS
        while time.monotonic() < deadline:
            self._producer.poll(CALLBACK_SECONDS)
            with contextlib.suppress(BufferError):
                self._producer.produce(*message)
                return
        raise KafkaTimeoutError("earlier messages were not acknowledged in time")

    def _record_failure(self, error: Any, _: Any) -> None:
        """Callback that confluent-kafka calls for each sent message: store ``error`` if the message was not delivered and no
        earlier error is stored. After a delivery, it is called with None as ``error``. The second argument is unused.
        """
        if error is not None:
            self.delivery_error = self.delivery_error or translate_error(error)

    def flush(self, seconds: float) -> None:
        with translating_errors():
            n_pending = self._producer.flush(seconds)
        if n_pending:
            raise KafkaTimeoutError(f"{n_pending} messages were not acknowledged in {seconds:g} s")

    def init_transactions(self) -> None:
        with translating_errors():
            self._producer.init_transactions(RESPONSE_SECONDS)

    def begin_transaction(self) -> None:
        with translating_errors():
            self._producer.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        if group not in self._group_consumers:  # librdkafka takes the metadata of a group only from a consumer
            self._group_consumers[group] = create_client(Consumer, self._connection, {}, {"group.id": group})
        positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        with translating_errors():
            metadata = self._group_consumers[group].consumer_group_metadata()
            self._producer.send_offsets_to_transaction(positions, metadata, seconds)

    def commit_transaction(self, seconds: float) -> None:
        with translating_errors():
            self._producer.commit_transaction(seconds)

    def abort_transaction(self, seconds: float) -> None:
        with translating_errors():
            self._producer.abort_transaction(seconds)

    def close(self, seconds: float) -> None:
        with contextlib.suppress(KafkaError), translating_errors():  # also if the producer is fenced
            self._producer.purge()
            self._producer.flush(seconds)
        for consumer in self._group_consumers.values():
            consumer.close()
