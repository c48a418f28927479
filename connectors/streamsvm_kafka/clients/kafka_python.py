"""Consumers and producers of kafka-python."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from streamsvm_kafka.clients.messages import Headers, Messages
from streamsvm_kafka.clients.protocol import MAX_PENDING, MAX_PENDING_BYTES, Answered, Listener
from streamsvm_kafka.clients.record_batches import messages_of, read_at_once
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection

#: Time for an answer that is asked for within a poll.
_ANSWER_MS = 200


class Consumer:
    """A consumer of kafka-python, as `TopicConsumer`."""

    def __init__(
        self, connection: Connection, topic: str, group: str | None, fetches: int, size: int, more: Mapping[str, Any]
    ) -> None:
        self.group: str | None = group
        self._topic = topic
        self._consumer = connection.client(
            KafkaConsumer,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            # kafka-python 3.0.12 never returns to a partition that was paused with half of a fetch read, so every poll takes all
            # messages and the size of a fetch is the bound.
            max_poll_records=sys.maxsize,
            max_partition_fetch_bytes=size,
            fetch_max_bytes=fetches * size,
            **{"isolation_level": "read_committed", **more},
        )
        read_at_once(self._consumer)

    def _key(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([self._key(partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(self._key(partition), offset)

    def join(self, listener: Listener) -> None:
        with contextlib.suppress(KafkaError):  # a group whose leader does not know them gets none until it has looked again
            self._consumer.partitions_for_topic(self._topic)
        self._consumer.subscribe([self._topic], listener=_Listener(self._consumer, listener))

    def read_from(self, partition: int, offset: int) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.seek(self._key(partition), offset)
            self._consumer.resume(self._key(partition))

    def drop(self, partition: int) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.pause(self._key(partition))

    def poll(self, seconds: float) -> dict[int, Messages]:
        found = self._consumer.poll(int(1000 * seconds))
        return {key.partition: messages_of(records) for key, records in found.items() if records}

    def hold(self, partitions: Iterable[int], others: Iterable[int]) -> None:
        self._consumer.pause(*map(self._key, partitions))
        self._consumer.resume(*map(self._key, others))

    def position(self, partition: int) -> int | None:
        found: int | None = self._consumer.position(self._key(partition), timeout_ms=_ANSWER_MS)
        return found

    def reached(self, partition: int) -> int | None:
        state = self._consumer._subscription.assignment.get(self._key(partition))
        position = None if state is None else state.position
        return None if position is None else int(position.offset)

    def highwater(self, partition: int) -> int | None:
        try:
            found: int | None = self._consumer.highwater(self._key(partition))
        except IllegalStateError:  # it is not assigned any more
            return None
        return found

    def bounds(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        keys = list(map(self._key, partitions))
        first = self._consumer.beginning_offsets(keys, timeout_ms=1000 * CONNECT_SECONDS)
        last = self._consumer.end_offsets(keys, timeout_ms=1000 * CONNECT_SECONDS)
        return {key.partition: first[key] for key in keys}, {key.partition: last[key] for key in keys}

    def offsets_at(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        moments = dict.fromkeys(map(self._key, partitions), milliseconds)
        found = self._consumer.offsets_for_times(moments, timeout_ms=1000 * CONNECT_SECONDS)
        return {key.partition: None if each is None else each.offset for key, each in found.items()}

    def commit(self, offsets: Mapping[int, int], answered: Answered) -> None:
        def told(_: Any, answer: Any) -> None:
            answered(offsets, answer if isinstance(answer, Exception) else None)

        self._consumer.commit_async(self._committed(offsets), callback=told)

    def commit_now(self, offsets: Mapping[int, int], seconds: float) -> None:
        self._consumer.commit(self._committed(offsets), timeout_ms=1000 * seconds)

    def _committed(self, offsets: Mapping[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {self._key(partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}

    def close(self, seconds: float) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000 * seconds)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hands on what kafka-python tells in a thread of its own, which must not wait."""

    def __init__(self, consumer: Any, listener: Listener) -> None:
        self._consumer, self._listener = consumer, listener

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        for key in assigned:  # nothing is fetched before it is said from where
            self._consumer.pause(key)
            self._consumer.seek(key, 0)
        self._listener.assigned({key.partition for key in assigned})

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        # If a poll ends before the rebalance does, kafka-python forgets that it has begun one, where the topic was what changed:
        # nobody would be told of the new partitions, and no more signs of life be given.
        self._consumer._coordinator.request_rejoin()
        self._listener.revoked({key.partition for key in revoked})

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._listener.lost({key.partition for key in lost})


class Producer:
    """A producer of kafka-python, as `streamsvm_kafka.clients.protocol.Producer`."""

    def __init__(
        self, connection: Connection, seconds: float, identity: str | None, transaction_seconds: float, batch_bytes: int
    ) -> None:
        transactions: dict[str, Any] = {}
        if identity is not None:
            transactions = {"transactional_id": identity, "transaction_timeout_ms": int(1000 * transaction_seconds)}
        self._seconds = seconds
        self._producer = connection.client(
            KafkaProducer,
            max_block_ms=1000 * CONNECT_SECONDS,
            # Shorter than the next one; and whole, for kafka-python sends it as an integer, or else never.
            request_timeout_ms=min(10_000, int(500 * seconds)),
            delivery_timeout_ms=int(1000 * seconds),
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            batch_size=batch_bytes,
            **transactions,
        )
        if identity is not None:
            # Where its epoch is refused, kafka-python would ask for a new one: who is fenced would fence the one after it.
            self._producer._transaction_manager._supports_epoch_bump = lambda: False
        self.lost: BaseException | None = None
        self._pending = self._bytes = 0

    def partitions_of(self, topic: str) -> set[int]:
        found: set[int] = self._producer.partitions_for(topic)
        return found

    def send(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        for i, value in enumerate(values):
            if self.lost is not None:  # the broker is away, and each would wait for it
                raise self.lost
            key = None if keys is None else keys[i]
            more = None if headers is None else headers[i]
            timestamp = None if timestamps is None else timestamps[i]
            future = self._producer.send(topic, value, key=key, partition=partition, headers=more, timestamp_ms=timestamp)
            future.add_errback(self._failed)
            self._pending += 1
            self._bytes += len(value) + len(key or b"") + sum(len(text or b"") for header in more or () for text in header)
            if self._pending >= MAX_PENDING or self._bytes >= MAX_PENDING_BYTES:  # kafka-python itself sets no bound
                self.flush(self._seconds + CONNECT_SECONDS)

    def _failed(self, error: BaseException) -> None:
        self.lost = self.lost or error

    def flush(self, seconds: float) -> None:
        if self._pending:
            self._producer.flush(seconds)
        self._pending = self._bytes = 0

    def init_transactions(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        found = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        _in_time(lambda: self._producer.send_offsets_to_transaction(found, group), seconds)

    def commit(self, seconds: float) -> None:
        _in_time(self._producer.commit_transaction, seconds)

    def abort(self, seconds: float) -> None:
        _in_time(self._producer.abort_transaction, seconds)

    def close(self, seconds: float) -> None:
        try:
            self._producer.close(seconds)
        except KafkaError:  # messages wait for a broker that is away, and would be sent again until they expire
            self._producer._sender.force_close()
            with contextlib.suppress(KafkaError):
                self._producer.close(seconds)


def _in_time(call: Callable[[], Any], seconds: float) -> None:
    # kafka-python waits for the end of a transaction without any limit.
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise KafkaTimeoutError(f"no answer in {seconds:g} s")
    if outcome[0] is not None:
        raise outcome[0]
