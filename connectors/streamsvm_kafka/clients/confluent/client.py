"""Creates clients of confluent-kafka, and translates their errors to kafka-python's classes. Also the admin client."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicCollection
from confluent_kafka import KafkaError as ErrorCode
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    SaslAuthenticationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from streamsvm_kafka.connection import CONNECT_SECONDS, RECONNECT_MS, Connection, TopicDescription, is_secret

#: The log of librdkafka. Its important errors are also raised, or reported by sources and sinks.
logger: logging.Logger = logging.getLogger("confluent_kafka")


def _demote_record(record: logging.LogRecord) -> bool:
    """Filter for a logger: set the level of a log record to DEBUG. Return True, so that the record is logged, if the logger is
    enabled for DEBUG, and False otherwise.
    """
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logger.isEnabledFor(logging.DEBUG)


logger.addFilter(_demote_record)

#: Time between two polls for callbacks, while waiting for something else.
CALLBACK_SECONDS = 0.1
#: Options of librdkafka whose names contain ``_``.
_NAMES_WITH_UNDERSCORES = ("log_level", "ssl_key", "ssl_certificate", "ssl_ca", "ssl_engine_callback_data")
#: The classes of kafka-python for librdkafka's own errors, by code.
_ERRORS_BY_CODE = {
    ErrorCode._AUTO_OFFSET_RESET: OffsetOutOfRangeError,
    ErrorCode._LOG_TRUNCATION: OffsetOutOfRangeError,
    ErrorCode._TIMED_OUT: KafkaTimeoutError,
    ErrorCode._MSG_TIMED_OUT: KafkaTimeoutError,
    ErrorCode._FENCED: ProducerFencedError,
    ErrorCode._AUTHENTICATION: SaslAuthenticationFailedError,
    ErrorCode._UNKNOWN_TOPIC: UnknownTopicOrPartitionError,
    ErrorCode._UNKNOWN_PARTITION: UnknownTopicOrPartitionError,
    ErrorCode._TRANSPORT: KafkaConnectionError,
    ErrorCode._ALL_BROKERS_DOWN: KafkaConnectionError,
    ErrorCode._RESOLVE: KafkaConnectionError,
}


def translate_error(error: Any) -> KafkaError:
    """Return the exception of kafka-python that corresponds to an error object of confluent-kafka, by its error code."""
    code, text = error.code(), error.str()
    if code > 0:
        translated: KafkaError = for_code(code)(text)
        return translated
    return _ERRORS_BY_CODE.get(code, KafkaError)(text)


@contextlib.contextmanager
def translating_errors() -> Iterator[None]:
    """Within a ``with`` block, convert exceptions of confluent-kafka to the corresponding exceptions of kafka-python."""
    try:
        yield
    except (KafkaException, SystemError) as error:
        # confluent-kafka runs callbacks while it raises a fatal error, which then is only the cause of a SystemError, or lost.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        raise (translate_error(cause.args[0]) if isinstance(cause, KafkaException) else KafkaError(str(error))) from error


def to_property_name(name: str) -> str:
    """Convert the name of an option from Python's spelling to that of librdkafka's configuration: underscores become dots, with a
    few exceptions.

    >>> to_property_name("ssl_ca_location"), to_property_name("oauth_cb")
    ('ssl.ca.location', 'oauth_cb')
    """
    return name if name.endswith("_cb") or name in _NAMES_WITH_UNDERSCORES else name.replace("_", ".")


def create_client(client_class: Any, connection: Connection, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    """Create a client of confluent-kafka of the class ``client_class``, such as `Consumer`. Options of ``connection`` override
    those in ``defaults``. Raise a StreamError if one of them is also in ``fixed``, options that the user must not change.

    Raise a StreamError if librdkafka refuses the options.
    """
    # librdkafka would read the text of a `Secret` as "***".
    options = {to_property_name(n): "".join(v) if isinstance(v, str) else v for n, v in connection.options.items()}
    if duplicates := sorted(options.keys() & fixed.keys()):
        raise connection.options_error(f"{duplicates[0]} is set by streamsvm, leave it out")
    settings = {
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "socket.connection.setup.timeout.ms": max(int(1000 * CONNECT_SECONDS), 1000),
        **defaults,
        **options,
        **fixed,
        "bootstrap.servers": connection.bootstrap,
        "logger": logger,
    }
    try:
        return client_class(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if any(isinstance(value, str) and value in reason for name, value in options.items() if is_secret(name)):
            reason = "an invalid value of a secret option"
        if "No such configuration property" in reason:
            reason += ". Its names are those of librdkafka's CONFIGURATION.md, such as ssl_ca_location and sasl_username"
        raise connection.options_error(reason) from error


_REFUSED_USER_CODES = (ErrorCode._AUTHENTICATION, ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM)


class ConfluentAdmin:
    """An admin client of confluent-kafka that implements `TopicAdmin`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._connection_errors: list[Any] = []
        # Metadata is requested by a consumer, because an admin client would create a topic that does not exist.
        fixed = {"group.id": "streamsvm", "allow.auto.create.topics": False, "error_cb": self._connection_errors.append}
        self._metadata_client = create_client(Consumer, connection, {}, fixed)
        try:
            self._cluster = connection.open_with_retries(self._read_cluster)
            connection.check_advertised_addresses([(broker.host, broker.port) for broker in self._cluster.brokers.values()])
        except BaseException:
            self.close()
            raise

    def _read_cluster(self) -> Any:
        """Return the cluster's metadata (brokers and topics). If no broker responds within the connection timeout, raise a
        StreamError with the cause: a refused user, a failed TLS handshake, or no answer.
        """
        deadline, seconds = time.monotonic() + CONNECT_SECONDS, CALLBACK_SECONDS
        self._connection_errors.clear()
        while True:
            with contextlib.suppress(KafkaException):
                return self._metadata_client.list_topics(timeout=seconds)
            self._metadata_client.poll(0.0)  # which calls error_cb
            reasons = {error.code(): error.str() for error in self._connection_errors}
            for code in _REFUSED_USER_CODES:
                if code in reasons:
                    raise self._connection.refused_user_error(reasons[code])
            for code, text in reasons.items():
                if code == ErrorCode._SSL or "SSL_HANDSHAKE" in text:
                    raise self._connection.tls_error(text)
            if (left := deadline - time.monotonic()) <= 0.0:
                raise self._connection.no_answer_error("; ".join(reasons.values()) or "no answer")
            seconds = min(2.0 * seconds, max(left, CALLBACK_SECONDS))

    @cached_property
    def _admin(self) -> Any:
        return create_client(AdminClient, self._connection, {}, {})

    @property
    def _has_controller(self) -> bool:
        """Whether the cluster has a controller, the broker that responds to admin requests. An `EmbeddedBroker` (librdkafka's
        mock) has none, and each request would time out.
        """
        return self._cluster.controller_id in self._cluster.brokers

    def describe_topic(self, topic: str) -> TopicDescription:
        with translating_errors():
            metadata = self._metadata_client.list_topics(topic, timeout=CONNECT_SECONDS).topics[topic]
        if metadata.error is not None:
            raise translate_error(metadata.error)
        if not metadata.partitions:
            raise LeaderNotAvailableError(topic)
        partitions = tuple(sorted(metadata.partitions))
        if not self._has_controller:
            return TopicDescription(None, partitions)
        description = _wait_for_result(self._admin.describe_topics(TopicCollection([topic]), request_timeout=CONNECT_SECONDS))
        high, low = description.topic_id.get_most_significant_bits(), description.topic_id.get_least_significant_bits()
        topic_id = uuid.UUID(int=(high & (1 << 64) - 1) << 64 | low & (1 << 64) - 1)
        return TopicDescription(str(topic_id) if topic_id.int else None, partitions)

    def list_topics(self) -> list[str]:
        with translating_errors():
            return list(self._metadata_client.list_topics(timeout=CONNECT_SECONDS).topics)

    def read_topic_config(self, topic: str, name: str) -> str | None:
        if not self._has_controller:
            return None
        resources = [ConfigResource(ResourceType.TOPIC, topic)]
        configs = _wait_for_result(self._admin.describe_configs(resources, request_timeout=CONNECT_SECONDS))
        return str(configs[name].value) if name in configs else None

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        new_topic = NewTopic(topic, 1, -1, config=dict(settings))
        _wait_for_result(self._admin.create_topics([new_topic], request_timeout=CONNECT_SECONDS))

    def read_cluster_id(self) -> str | None:
        cluster_id: str | None = self._cluster.cluster_id
        return cluster_id

    def close(self) -> None:
        self._metadata_client.close()


def _wait_for_result(futures: Mapping[Any, Any]) -> Any:
    """Wait for the single future in ``futures``, as admin methods of confluent-kafka return them, and return its result. Errors
    are raised as exceptions of kafka-python.
    """
    (future,) = futures.values()
    with translating_errors():
        return future.result(2.0 * CONNECT_SECONDS)
