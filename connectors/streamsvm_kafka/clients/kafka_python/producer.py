"""The producer of kafka-python."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from streamsvm_kafka.clients.kafka_python.client import find_broker_error, open_client, raising_broker_errors
from streamsvm_kafka.clients.messages import Headers
from streamsvm_kafka.clients.protocol import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES, MAX_REQUEST_BYTES
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection


class KafkaPythonProducer:
    """A producer of kafka-python that implements `TopicProducer`."""

    def __init__(
        self, connection: Connection, seconds: float, transactional_id: str | None, transaction_seconds: float, batch_bytes: int
    ) -> None:
        transactions: dict[str, Any] = {}
        if transactional_id is not None:
            transactions = {"transactional_id": transactional_id, "transaction_timeout_ms": int(1000 * transaction_seconds)}
        self._seconds = seconds
        defaults = {
            "max_block_ms": 1000 * CONNECT_SECONDS,
            # It must be shorter than the delivery timeout, and an integer: otherwise, kafka-python never sends the request.
            "request_timeout_ms": min(10_000, int(500 * seconds)),
            "linger_ms": 5,
            "batch_size": batch_bytes,
            "max_request_size": MAX_REQUEST_BYTES,
        }
        fixed = {"delivery_timeout_ms": int(1000 * seconds), "acks": "all", "enable_idempotence": True, **transactions}
        self._producer = open_client(KafkaProducer, connection, defaults, fixed)
        if transactional_id is not None:
            # If its epoch is refused, kafka-python would request a new one: a fenced producer would fence its successor.
            self._producer._transaction_manager._supports_epoch_bump = lambda: False
        self.delivery_error: BaseException | None = None
        self._n_pending = self._pending_bytes = 0

    def partitions_for(self, topic: str) -> set[int]:
        settings = self._producer._metadata.config
        settings["allow_auto_create_topics"] = True
        with raising_broker_errors:
            partitions: set[int] = self._producer.partitions_for(topic)
        settings["allow_auto_create_topics"] = False
        return partitions

    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        with raising_broker_errors:
            for i, value in enumerate(values):
                if self.delivery_error is not None:  # otherwise, each further message would wait for the broker
                    raise self.delivery_error
                key = None if keys is None else keys[i]
                pairs = None if headers is None else headers[i]
                timestamp = None if timestamps is None else timestamps[i]
                future = self._producer.send(topic, value, key=key, partition=partition, headers=pairs, timestamp_ms=timestamp)
                future.add_errback(self._record_failure)
                self._n_pending += 1
                header_bytes = sum(len(text or b"") for pair in pairs or () for text in pair)
                self._pending_bytes += len(value or b"") + len(key or b"") + header_bytes
                # kafka-python itself has no limit of pending messages.
                if self._n_pending >= MAX_PENDING_MESSAGES or self._pending_bytes >= MAX_PENDING_BYTES:
                    self.flush(self._seconds + CONNECT_SECONDS)

    def _record_failure(self, error: BaseException) -> None:
        """Store ``error``, unless an earlier one is stored: kafka-python calls this if a message cannot be delivered."""
        self.delivery_error = self.delivery_error or find_broker_error(error)

    def flush(self, seconds: float) -> None:
        if self._n_pending:
            with raising_broker_errors:
                self._producer.flush(seconds)
        self._n_pending = self._pending_bytes = 0

    def init_transactions(self) -> None:
        with raising_broker_errors:
            self._producer.init_transactions()

    def begin_transaction(self) -> None:
        with raising_broker_errors:
            self._producer.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        committed = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        _call_with_timeout(lambda: self._producer.send_offsets_to_transaction(committed, group), seconds)

    def commit_transaction(self, seconds: float) -> None:
        _call_with_timeout(self._producer.commit_transaction, seconds)

    def abort_transaction(self, seconds: float) -> None:
        _call_with_timeout(self._producer.abort_transaction, seconds)

    def close(self, seconds: float) -> None:
        try:
            self._producer.close(seconds)
        except KafkaError:  # pending messages would be retried until they expire
            self._producer._sender.force_close()
            with contextlib.suppress(KafkaError):
                self._producer.close(seconds)


def _call_with_timeout(call: Callable[[], Any], seconds: float) -> None:
    """Run ``call`` (a transaction method of kafka-python, which may wait forever) in a thread. Raise its error, or a
    KafkaTimeoutError if it does not return within ``seconds``.
    """
    outcomes: list[BaseException | None] = []

    def run_call() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            outcomes.append(error)
        else:
            outcomes.append(None)

    thread = threading.Thread(target=run_call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcomes:
        raise KafkaTimeoutError(f"no response in {seconds:g} s")
    if outcomes[0] is not None:
        with raising_broker_errors:
            raise outcomes[0]
