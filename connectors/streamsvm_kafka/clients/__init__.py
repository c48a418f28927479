"""The client libraries: kafka-python, and where it is asked for, confluent-kafka."""

from __future__ import annotations

import importlib
from typing import Any

from streamsvm_kafka.clients.protocol import BATCH_BYTES, TopicAdmin, TopicConsumer, TopicProducer
from streamsvm_kafka.connection import Connection

#: The most that is fetched of a partition at once. A longer message still comes, alone.
FETCH_BYTES = 1 << 18
#: The same of messages with many rows.
TABLE_FETCH_BYTES = 1 << 20


def open_admin(connection: Connection) -> TopicAdmin:
    """Open a client for administration, after waiting for the broker as long as the connection says."""
    admin: TopicAdmin = _client_class(connection, "Admin")(connection)
    return admin


def open_consumer(
    connection: Connection, topic: str, group: str | None, *, max_fetches: int, has_tables: bool, **settings: Any
) -> TopicConsumer:
    """Open a consumer of a topic that holds at most ``max_fetches`` fetches at once.

    A fetch has `FETCH_BYTES`, or `TABLE_FETCH_BYTES` if messages have many rows (``has_tables``). ``settings`` are options of
    consumers under Kafka's names with ``_`` for ``.``, such as ``session_timeout_ms``.
    """
    size = TABLE_FETCH_BYTES if has_tables else FETCH_BYTES
    consumer: TopicConsumer = _client_class(connection, "Consumer")(connection, topic, group, max_fetches, size, settings)
    return consumer


def open_producer(
    connection: Connection,
    seconds: float,
    identity: str | None = None,
    transaction_seconds: float = 60.0,
    batch_bytes: int = BATCH_BYTES,
) -> TopicProducer:
    """Open a producer whose messages are acknowledged within ``seconds``, or fail.

    Before that, a `TopicAdmin` has asked the broker something, so that it is known to answer. ``identity`` is a transactional id;
    a transaction is then aborted after ``transaction_seconds``.
    """
    producer: TopicProducer = _client_class(connection, "Producer")(
        connection, seconds, identity, transaction_seconds, batch_bytes
    )
    return producer


def _client_class(connection: Connection, kind: str) -> Any:
    # Imported late: each library takes a while to import, and only one of them is used.
    module, prefix = ("kafka_python", "KafkaPython") if connection.library == "kafka-python" else ("confluent", "Confluent")
    return getattr(importlib.import_module(f"streamsvm_kafka.clients.{module}"), prefix + kind)
