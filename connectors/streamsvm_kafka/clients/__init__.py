"""The two client libraries: kafka-python, which is the default, and confluent-kafka."""

from __future__ import annotations

import importlib
from typing import Any

from streamsvm_kafka.clients.protocol import BATCH_BYTES, TopicAdmin, TopicConsumer, TopicProducer
from streamsvm_kafka.connection import Connection

#: Maximum size of a fetch from one partition. A longer message is fetched alone.
FETCH_BYTES = 1 << 18
#: The same for messages with many rows.
TABLE_FETCH_BYTES = 1 << 20


def open_admin(connection: Connection) -> TopicAdmin:
    """Return a connected Kafka admin client of the installed client library. If no broker responds, retry for the connection's
    ``outage_seconds``.
    """
    admin: TopicAdmin = _import_client_class(connection, "Admin")(connection)
    return admin


def open_consumer(
    connection: Connection, topic: str, group: str | None, *, max_fetches: int, has_tables: bool, **settings: Any
) -> TopicConsumer:
    """Return a consumer of ``topic``, as a member of the consumer ``group`` if one is given. It buffers at most ``max_fetches``
    responses of brokers; these may be larger if ``has_tables``: each message contains many rows. ``settings`` are further options
    of the Kafka consumer.

    A response has at most `FETCH_BYTES`, or `TABLE_FETCH_BYTES` if ``has_tables``. ``settings`` have Kafka's names with ``_`` for
    ``.``, such as ``session_timeout_ms``.
    """
    size = TABLE_FETCH_BYTES if has_tables else FETCH_BYTES
    consumer: TopicConsumer = _import_client_class(connection, "Consumer")(connection, topic, group, max_fetches, size, settings)
    return consumer


def open_producer(
    connection: Connection,
    seconds: float,
    transactional_id: str | None = None,
    transaction_seconds: float = 60.0,
    batch_bytes: int = BATCH_BYTES,
) -> TopicProducer:
    """Return a producer. A message that is not acknowledged within ``seconds`` counts as failed. With a ``transactional_id``, the
    producer sends in transactions, and the broker aborts one that is open for ``transaction_seconds``. ``batch_bytes`` is the
    maximum size of a batch of messages.

    Use a `TopicAdmin` before, so that the broker is known to respond.
    """
    producer: TopicProducer = _import_client_class(connection, "Producer")(
        connection, seconds, transactional_id, transaction_seconds, batch_bytes
    )
    return producer


def _import_client_class(connection: Connection, kind: str) -> Any:
    # Imported late: each library takes a while to import, and only one of them is used.
    package, prefix = ("kafka_python", "KafkaPython") if connection.library == "kafka-python" else ("confluent", "Confluent")
    return getattr(importlib.import_module(f"streamsvm_kafka.clients.{package}"), prefix + kind)
