"""The client libraries: kafka-python, and where it is asked for and installed, confluent-kafka."""

from __future__ import annotations

import importlib
from typing import Any

from streamsvm_kafka.clients.protocol import BATCH_BYTES, Producer, TopicConsumer
from streamsvm_kafka.connection import Connection

#: The most that is fetched of a partition at once. A longer message still comes, alone.
FETCH_BYTES = 1 << 18
#: The same of messages with many rows.
TABLE_FETCH_BYTES = 1 << 20


def open_consumer(
    connection: Connection, topic: str, group: str | None, *, fetches: int, many: bool, **more: Any
) -> TopicConsumer:
    """Open a consumer of a topic that holds so many fetches at once.

    These are of `FETCH_BYTES`, or where messages have ``many`` rows, of `TABLE_FETCH_BYTES`. ``more`` are options of Kafka's
    consumers, such as ``session_timeout_ms``.
    """
    found: TopicConsumer = _library_of(connection).Consumer(
        connection, topic, group, fetches, TABLE_FETCH_BYTES if many else FETCH_BYTES, more
    )
    return found


def open_producer(
    connection: Connection,
    seconds: float,
    identity: str | None = None,
    transaction_seconds: float = 60.0,
    batch_bytes: int = BATCH_BYTES,
) -> Producer:
    """Open a producer whose messages are acknowledged within so many seconds, or fail.

    Something was asked of the broker before, which has told whether it answers, and lets the user in.
    ``identity`` is a transactional id; a transaction is then aborted after so many seconds.
    """
    found: Producer = _library_of(connection).Producer(connection, seconds, identity, transaction_seconds, batch_bytes)
    return found


def _library_of(connection: Connection) -> Any:
    # Imported late: each takes a while, and only one of them is used.
    return importlib.import_module(f"streamsvm_kafka.clients.{'librdkafka' if connection.is_librdkafka else 'kafka_python'}")
