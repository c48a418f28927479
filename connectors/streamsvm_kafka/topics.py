"""Queries about topics: whether they exist, their partitions, ids and configuration."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Mapping
from typing import Any

from kafka.errors import BrokerResponseError, KafkaError, UnknownTopicOrPartitionError

from streamsvm.files.messages import suggest_name
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
    """A topic at an address, to compare it with one that another address may name: the base of a sink or checkpoint store."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection, self._topic = connection, topic

    def is_on_cluster_of(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> bool:
        """Return whether the brokers ``bootstrap`` (``"host:port,..."``, with connection options ``client``) belong to the Kafka
        cluster of this topic. Raise a BrokerUnreachableError if they do not respond.
        """
        if bootstrap == self._connection.bootstrap:
            return True
        cluster_id = read_cluster_id(Connection(bootstrap, client))
        return cluster_id is not None and cluster_id == read_cluster_id(self._connection)

    def is_same_topic(self, connection: Connection, topic: str) -> bool:
        """Return whether ``topic`` at the brokers of ``connection`` is the topic of this sink or store, perhaps under another
        address. Raise a BrokerUnreachableError if a broker does not respond.
        """
        if topic != self._topic:
            return False
        if connection.bootstrap == self._connection.bootstrap:
            return True
        try:
            topic_id = describe_topic(connection, topic).topic_id
            own_topic_id = describe_topic(self._connection, topic).topic_id
        except MissingTopicError:
            return False
        return topic_id is not None and topic_id == own_topic_id


def connect_admin(connection: Connection) -> contextlib.closing[TopicAdmin]:
    """Open a Kafka admin client for a ``with`` block, and close it at the end of the block."""
    return contextlib.closing(open_admin(connection))


def read_topic_config(connection: Connection, topic: str, name: str) -> str | None:
    """Request the value of the configuration ``name`` (such as ``cleanup.policy``) of a topic. Return None if the broker does not
    report it, as for a user without the access right.
    """
    try:
        with connect_admin(connection) as admin:
            return admin.read_topic_config(topic, name)
    except KafkaError as error:
        logger.debug("%s: %s is not known (%r)", topic, name, error)
        return None


def read_message_limit(connection: Connection, topic: str) -> int | None:
    """Return the maximum size in bytes of a message or batch in a topic (its configuration ``max.message.bytes``); None if the
    broker does not report it.
    """
    limit = read_topic_config(connection, topic, "max.message.bytes")
    return int(limit) if limit is not None and limit.isdecimal() else None


def describe_topic(connection: Connection, topic: str) -> TopicDescription:
    """Request the id and the partition numbers of a topic from the broker. A topic that does not exist is not created.

    Raise a MissingTopicError if it does not exist, a BrokerUnreachableError if no broker responds, and another StreamError if
    the user may not describe it.
    """
    deadline, bootstrap = time.monotonic() + CONNECT_SECONDS, connection.bootstrap
    with connect_admin(connection) as admin:
        while True:
            try:
                return admin.describe_topic(topic)
            except UnknownTopicOrPartitionError as error:
                hint = suggest_name(topic, admin.list_topics())
                text = f"there is no topic {topic!r} on {bootstrap}{hint}. Create it, or correct the name."
                raise MissingTopicError(text) from error
            except BrokerResponseError as error:
                # A topic that was just created has no leader yet, which is a retriable error.
                if not error.retriable or time.monotonic() > deadline:
                    reason = describe_missing_right(connection.user, error, "Describe", topic) or type(error).__name__
                    raise StreamError(f"topic {topic!r} on {bootstrap} cannot be used: {reason}") from error
            except KafkaError as error:
                raise BrokerUnreachableError(f"{bootstrap} does not answer about topic {topic!r}: {error}") from error
            time.sleep(0.1)


def is_missing(connection: Connection, topic: str) -> bool:
    """Return whether a topic does not exist. Return False if that is unknown, for example because no broker responds; do not wait
    for one.
    """
    connection = copy.copy(connection)
    connection.outage_seconds = None
    try:
        describe_topic(connection, topic)
    except StreamError as error:
        return isinstance(error, MissingTopicError)
    return False


def read_cluster_id(connection: Connection) -> str | None:
    """Return the id of the Kafka cluster at a connection's brokers; None if they do not report one. Raise a
    BrokerUnreachableError if they do not respond.
    """
    try:
        with connect_admin(connection) as admin:
            return admin.read_cluster_id()
    except KafkaError as error:
        raise BrokerUnreachableError(f"{connection.bootstrap} does not tell which cluster it is of: {error}") from error
