"""Brokers and topics before they are read or written, with errors that say what is wrong with the connection."""

from __future__ import annotations

import difflib
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, RetriableError, UnknownTopicOrPartitionError, for_code

from streamsvm.runtime.endpoints import StreamError

__all__ = ["BrokerUnreachableError", "TopicDescription", "describe_topic", "reach"]

#: Seconds that a broker has to accept a connection, and then to answer.
CONNECT_SECONDS = 5.0
DEFAULT_PORT = 9092


class BrokerUnreachableError(StreamError):
    """No broker answers at the address. It may help to try again later."""


class TopicDescription(NamedTuple):
    """The identity of a topic and its partitions."""

    topic_id: str | None
    """Changes if the topic is deleted and created again; None from brokers before Kafka 2.8."""
    partitions: tuple[int, ...]


def reach(bootstrap: str) -> None:
    """Open and close a TCP connection to one of the brokers; BrokerUnreachableError if none accepts it.

    The client library reports every failure to connect as a timeout, and only after it has passed; this tells a refused
    connection, an unknown host and a silent network apart, at once if the system knows at once.

    Examples
    --------
    >>> reach("127.0.0.1:1")
    Traceback (most recent call last):
        ...
    streamsvm_kafka.connection.BrokerUnreachableError: no Kafka broker at 127.0.0.1:1 (...). Start the broker...
    """
    failures = []
    for address in bootstrap.split(","):
        host, colon, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)) if colon else (address, DEFAULT_PORT), CONNECT_SECONDS):
                return
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    raise BrokerUnreachableError(f"no Kafka broker at {', '.join(failures)}. Start the broker, or correct the address.")


@contextmanager
def _admin(bootstrap: str, client: Mapping[str, Any]) -> Iterator[Any]:
    reach(bootstrap)
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap.split(","),
            bootstrap_timeout_ms=1000 * CONNECT_SECONDS,
            request_timeout_ms=1000 * CONNECT_SECONDS,
            **client,
        )
    except KafkaError as error:
        raise BrokerUnreachableError(
            f"{bootstrap} takes connections but does not answer as a Kafka broker in {CONNECT_SECONDS:g} s ({error}). "
            "Check that this is the port of a Kafka listener and that its security settings are the client's; "
            "a broker that cannot be asked for its version needs api_version."
        ) from error
    try:
        yield admin
    finally:
        admin.close()


def describe_topic(bootstrap: str, topic: str, client: Mapping[str, Any]) -> TopicDescription:
    """Ask a broker for a topic, without creating one.

    Raises
    ------
    BrokerUnreachableError
        No broker answers.
    StreamError
        There is no such topic, or it may not be read.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    with _admin(bootstrap, client) as admin:
        while True:
            try:
                (found,) = admin.describe_topics([topic])
                failure = for_code(found["error_code"])
                if failure is UnknownTopicOrPartitionError:
                    similar = difflib.get_close_matches(topic, admin.list_topics(), n=3)
                    hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else "."
                    raise StreamError(
                        f"there is no topic {topic!r} on {bootstrap}{hint} "
                        "Create it (kafka-topics.sh --create) or correct the name."
                    )
            except KafkaError as error:
                raise BrokerUnreachableError(f"{bootstrap} does not answer about topic {topic!r}: {error}") from error
            if found["partitions"]:
                partitions = tuple(sorted(p["partition_index"] for p in found["partitions"]))
                return TopicDescription(found.get("topic_id"), partitions)
            # A topic that was just created has no leader yet, which is a retriable failure.
            if not issubclass(failure, RetriableError) or time.monotonic() > deadline:
                raise StreamError(f"topic {topic!r} on {bootstrap} cannot be used: {failure.__name__}")
            time.sleep(0.1)
