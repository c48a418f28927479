"""Topics before they are read or written: whether they exist, their partitions and their settings."""

from __future__ import annotations

import contextlib
import difflib
import logging
import time
from collections.abc import Iterator

from kafka.errors import BrokerResponseError, KafkaError, UnknownTopicOrPartitionError

from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.clients import open_admin
from streamsvm_kafka.clients.protocol import TopicAdmin
from streamsvm_kafka.connection import (
    CONNECT_SECONDS,
    BrokerUnreachableError,
    Connection,
    MissingTopicError,
    TopicDescription,
    describe_missing_right,
)

logger: logging.Logger = logging.getLogger(__name__)


class TopicEndpoint:
    """A sink or checkpoints in a topic, which can tell whether another topic is the same one, perhaps by another address."""

    _connection: Connection
    _topic: str

    def is_same_topic(self, connection: Connection, topic: str) -> bool:
        """Return whether it is the topic with that name; raise a BrokerUnreachableError if that is not known."""
        if topic != self._topic:
            return False
        if connection.bootstrap == self._connection.bootstrap:
            return True
        try:
            one, two = (describe_topic(each, topic).topic_id for each in (connection, self._connection))
        except MissingTopicError:
            return False
        return one is not None and one == two


@contextlib.contextmanager
def connect_admin(connection: Connection) -> Iterator[TopicAdmin]:
    """Open a client for questions about topics and clusters."""
    admin = open_admin(connection)
    try:
        yield admin
    finally:
        admin.close()


def read_topic_config(connection: Connection, topic: str, name: str) -> str | None:
    """Return a setting of a topic; None if the broker does not tell it, because not everybody may ask."""
    try:
        with connect_admin(connection) as admin:
            return admin.read_topic_config(topic, name)
    except KafkaError as error:
        logger.debug("%s: %s is not known (%r)", topic, name, error)
        return None


def read_message_limit(connection: Connection, topic: str) -> int | None:
    """Return the largest message, or batch of messages, that a topic takes, in bytes; None if the broker does not tell it."""
    limit = read_topic_config(connection, topic, "max.message.bytes")
    return int(limit) if limit is not None and limit.isdecimal() else None


def describe_topic(connection: Connection, topic: str) -> TopicDescription:
    """Ask a broker for a topic, without creating one.

    Raise a MissingTopicError if there is none, and another StreamError if no broker answers, or the topic may not be read.
    """
    deadline, bootstrap = time.monotonic() + CONNECT_SECONDS, connection.bootstrap
    with connect_admin(connection) as admin:
        while True:
            try:
                return admin.describe_topic(topic)
            except UnknownTopicOrPartitionError as error:
                similar = difflib.get_close_matches(topic, admin.list_topics(), n=3)
                hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else "."
                text = f"there is no topic {topic!r} on {bootstrap}{hint} Create it, or correct the name."
                raise MissingTopicError(text) from error
            except BrokerResponseError as error:
                # A topic that was just created has no leader yet, which is a retriable failure.
                if not error.retriable or time.monotonic() > deadline:
                    reason = describe_missing_right(connection.user, error, "Describe", topic) or type(error).__name__
                    raise StreamError(f"topic {topic!r} on {bootstrap} cannot be used: {reason}") from error
            except KafkaError as error:
                raise BrokerUnreachableError(f"{bootstrap} does not answer about topic {topic!r}: {error}") from error
            time.sleep(0.1)


def read_cluster_id(connection: Connection) -> str | None:
    """Return the identity of a cluster; None if its brokers do not tell it."""
    try:
        with connect_admin(connection) as admin:
            return admin.read_cluster_id()
    except KafkaError as error:
        raise BrokerUnreachableError(f"{connection.bootstrap} does not tell which cluster it is of: {error}") from error
