"""Consumers and producers of confluent-kafka, whose work is done by librdkafka."""

from __future__ import annotations

import contextlib
import logging
import operator
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

import confluent_kafka as library
import numpy as np
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
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

from streamsvm_kafka.clients.messages import Headers, Messages
from streamsvm_kafka.clients.protocol import (
    MAX_PENDING_BYTES,
    MAX_PENDING_MESSAGES,
    MAX_REQUEST_BYTES,
    CommitCallback,
    RebalanceListener,
)
from streamsvm_kafka.connection import (
    CONNECT_SECONDS,
    RECONNECT_MS,
    RESPONSE_SECONDS,
    Connection,
    TopicDescription,
    is_secret,
)

#: The log of librdkafka. What matters of it is raised, or reported by sources and sinks.
logger: logging.Logger = logging.getLogger("confluent_kafka")


def _demote_record(record: logging.LogRecord) -> bool:
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logger.isEnabledFor(logging.DEBUG)


logger.addFilter(_demote_record)

#: The most bytes of a partition that wait in librdkafka. A message that is longer still comes.
QUEUED_BYTES = 1 << 21
#: The longest wait of a broker for messages.
_WAIT_MS = 200
#: It fetches more of a partition when fewer messages of it wait.
_QUEUED = 100
#: The most messages that are taken of librdkafka at once.
_AT_ONCE = 1000
#: Pauses of fetching where enough has been fetched, and looks at callbacks while something is waited for.
_BACKOFF_MS, _LOOK_SECONDS = 2, 0.1
#: Options of librdkafka whose names have ``_`` in them.
_UNDERSCORES = ("log_level", "ssl_key", "ssl_certificate", "ssl_ca", "ssl_engine_callback_data")
#: A setting of consumers whose name in librdkafka is another one.
_REFRESH = {"metadata_max_age_ms": "topic.metadata.refresh.interval.ms"}
#: Errors of librdkafka itself, as kafka-python has them.
_OWN = {
    Code._AUTO_OFFSET_RESET: OffsetOutOfRangeError,
    Code._LOG_TRUNCATION: OffsetOutOfRangeError,
    Code._TIMED_OUT: KafkaTimeoutError,
    Code._MSG_TIMED_OUT: KafkaTimeoutError,
    Code._FENCED: ProducerFencedError,
    Code._AUTHENTICATION: SaslAuthenticationFailedError,
    Code._UNKNOWN_TOPIC: UnknownTopicOrPartitionError,
    Code._UNKNOWN_PARTITION: UnknownTopicOrPartitionError,
    Code._TRANSPORT: KafkaConnectionError,
    Code._ALL_BROKERS_DOWN: KafkaConnectionError,
    Code._RESOLVE: KafkaConnectionError,
}
#: What passes by itself: the broker is away, or the group decides anew.
_PASSING = {Code._TRANSPORT, Code._ALL_BROKERS_DOWN, Code._RESOLVE, Code._TIMED_OUT, Code._MAX_POLL_EXCEEDED}


def _translated_error(error: Any) -> KafkaError:
    """Return an error of librdkafka as kafka-python has it."""
    code, text = error.code(), error.str()
    if code > 0:
        translated: KafkaError = for_code(code)(text)
        return translated
    return _OWN.get(code, KafkaError)(text)


@contextlib.contextmanager
def _translating_errors() -> Iterator[None]:
    try:
        yield
    except (KafkaException, SystemError) as error:
        # confluent-kafka calls callbacks while it raises a fatal error, which is then only the cause of what comes out, or lost.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        raise (_translated_error(cause.args[0]) if isinstance(cause, KafkaException) else KafkaError(str(error))) from error


def _property(name: str) -> str:
    """Return the name of an option in librdkafka.

    >>> _property("ssl_ca_location"), _property("oauth_cb")
    ('ssl.ca.location', 'oauth_cb')
    """
    return name if name.endswith("_cb") or name in _UNDERSCORES else name.replace("_", ".")


def _client(kind: Any, connection: Connection, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    """Make a client with the options of a connection, which replace ``defaults``; those that are ``fixed`` may not be given.

    Raise a StreamError if librdkafka does not accept the options.
    """
    # librdkafka would read "***" in place of a secret.
    options = {_property(n): "".join(v) if isinstance(v, str) else v for n, v in connection.options.items()}
    if both := sorted(options.keys() & fixed.keys()):
        raise connection.options_error(f"{both[0]} is set by streamsvm, leave it out")
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
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if any(isinstance(value, str) and value in reason for name, value in options.items() if is_secret(name)):
            reason = "an invalid value of a secret option"
        if "No such configuration property" in reason:
            reason += ". Its names are those of librdkafka's CONFIGURATION.md, such as ssl_ca_location and sasl_username"
        raise connection.options_error(reason) from error


_REFUSED = (Code._AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED, Code.UNSUPPORTED_SASL_MECHANISM)


class ConfluentAdmin:
    """A client for administration, as `TopicAdmin`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._errors: list[Any] = []  # of the connection
        # Unlike a client for administration, a consumer creates no topic that it asks for.
        fixed = {"group.id": "streamsvm", "allow.auto.create.topics": False, "error_cb": self._errors.append}
        self._asker = _client(library.Consumer, connection, {}, fixed)
        try:
            self._cluster = connection.connect(self._ask_cluster)
            connection.check_advertised_addresses([(each.host, each.port) for each in self._cluster.brokers.values()])
        except BaseException:
            self.close()
            raise

    def _ask_cluster(self) -> Any:
        """Return the metadata of the cluster; raise the error that explains why no broker answers."""
        deadline, seconds = time.monotonic() + CONNECT_SECONDS, _LOOK_SECONDS
        self._errors.clear()
        while True:
            with contextlib.suppress(KafkaException):
                return self._asker.list_topics(timeout=seconds)
            self._asker.poll(0.0)  # which calls error_cb
            reasons = {error.code(): error.str() for error in self._errors}
            for code in _REFUSED:
                if code in reasons:
                    raise self._connection.refused_user_error(reasons[code])
            for code, text in reasons.items():
                if code == Code._SSL or "SSL_HANDSHAKE" in text:
                    raise self._connection.tls_error(text)
            if (left := deadline - time.monotonic()) <= 0.0:
                raise self._connection.no_answer_error("; ".join(reasons.values()) or "no answer")
            seconds = min(2.0 * seconds, max(left, _LOOK_SECONDS))

    @cached_property
    def _admin(self) -> Any:
        return _client(AdminClient, self._connection, {}, {})

    @property
    def _has_controller(self) -> bool:
        """Whether the cluster answers administrators. An `EmbeddedBroker` does not, and would be waited for."""
        return self._cluster.controller_id in self._cluster.brokers

    def describe_topic(self, topic: str) -> TopicDescription:
        with _translating_errors():
            metadata = self._asker.list_topics(topic, timeout=CONNECT_SECONDS).topics[topic]
        if metadata.error is not None:
            raise _translated_error(metadata.error)
        if not metadata.partitions:
            raise LeaderNotAvailableError(topic)
        partitions = tuple(sorted(metadata.partitions))
        if not self._has_controller:
            return TopicDescription(None, partitions)
        described = _result_of(self._admin.describe_topics(TopicCollection([topic]), request_timeout=CONNECT_SECONDS))
        high, low = described.topic_id.get_most_significant_bits(), described.topic_id.get_least_significant_bits()
        identity = uuid.UUID(int=(high & (1 << 64) - 1) << 64 | low & (1 << 64) - 1)
        return TopicDescription(str(identity) if identity.int else None, partitions)

    def list_topics(self) -> list[str]:
        with _translating_errors():
            return list(self._asker.list_topics(timeout=CONNECT_SECONDS).topics)

    def read_topic_config(self, topic: str, name: str) -> str | None:
        if not self._has_controller:
            return None
        asked = [ConfigResource(ResourceType.TOPIC, topic)]
        settings = _result_of(self._admin.describe_configs(asked, request_timeout=CONNECT_SECONDS))
        return str(settings[name].value) if name in settings else None

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        new = NewTopic(topic, 1, -1, config=dict(settings))
        _result_of(self._admin.create_topics([new], request_timeout=CONNECT_SECONDS))

    def read_cluster_id(self) -> str | None:
        identity: str | None = self._cluster.cluster_id
        return identity

    def close(self) -> None:
        self._asker.close()


def _result_of(futures: Mapping[Any, Any]) -> Any:
    """Wait for the answer of a broker to a question about one thing."""
    (future,) = futures.values()
    with _translating_errors():
        return future.result(2.0 * CONNECT_SECONDS)


#: Errors about groups that do not matter to a consumer that joins none.
_OF_GROUPS = {Code.GROUP_AUTHORIZATION_FAILED, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS}


class ConfluentConsumer:
    """A consumer of librdkafka, as `TopicConsumer`."""

    def __init__(
        self, connection: Connection, topic: str, group: str | None, max_fetches: int, size: int, settings: Mapping[str, Any]
    ) -> None:
        self.group: str | None = group
        self._topic = topic
        defaults = {
            "fetch.wait.max.ms": _WAIT_MS,  # after which a partition is known to have no more messages
            "fetch.message.max.bytes": size,
            "fetch.max.bytes": max_fetches * size,
            "message.max.bytes": size,  # librdkafka requires it not to exceed the one before, although it bounds sent messages
            "queued.min.messages": _QUEUED,  # for it does not count the bytes of keys and headers
            "queued.max.messages.kbytes": QUEUED_BYTES >> 10,
            "fetch.queue.backoff.ms": _BACKOFF_MS,
        }
        fixed = {
            "isolation.level": settings.get("isolation_level", "read_committed"),
            "group.id": group or "streamsvm",  # which is asked for, and not used
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,  # which reports that a marker of a transaction was passed over
            "on_commit": self._on_commit,
        }
        for name, value in settings.items():
            if name != "isolation_level":
                defaults[_REFRESH.get(name, _property(name))] = value
        self._consumer = _client(library.Consumer, connection, defaults, fixed)
        self._positions: dict[int, int] = {}
        self._held: set[int] = set()
        self._members: set[int] = set()  # partitions that the group has assigned
        self._answers: list[tuple[Mapping[int, int], CommitCallback]] = []
        self._failure: KafkaError | None = None

    def _place_of(self, partition: int, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._positions = dict(offsets)
        with _translating_errors():
            self._consumer.assign([self._place_of(partition, offset) for partition, offset in offsets.items()])

    def subscribe(self, listener: RebalanceListener) -> None:
        def gone(partitions: Sequence[Any]) -> set[int]:
            numbers = {place.partition for place in partitions}
            self._members -= numbers
            self._positions = {p: offset for p, offset in self._positions.items() if p not in numbers}
            self._consumer.unassign()  # of the group's protocol here, all partitions go at once
            return numbers

        def assigned(_: Any, partitions: Sequence[Any]) -> None:
            self._consumer.assign([self._place_of(*place) for place in self._positions.items()])
            numbers = {place.partition for place in partitions}
            self._members |= numbers
            listener("assigned", numbers)

        with _translating_errors():
            self._consumer.subscribe(
                [self._topic],
                on_assign=assigned,
                on_revoke=lambda _, partitions: listener("revoked", gone(partitions)),
                on_lost=lambda _, partitions: listener("lost", gone(partitions)),
            )

    def resume_at(self, partition: int, offset: int) -> None:
        if partition in self._members:
            self.assign({**self._positions, partition: offset})

    def pause_partition(self, partition: int) -> None:
        self.assign({p: offset for p, offset in self._positions.items() if p != partition})

    def poll(self, seconds: float) -> dict[int, Messages]:
        self._raise_failure()
        with _translating_errors():
            polled = self._consumer.consume(_AT_ONCE, 0.0)
            if not polled and seconds:
                polled = self._consumer.consume(1, seconds)
                polled += self._consumer.consume(_AT_ONCE, 0.0) if polled else []
        ends: dict[int, int] = {}  # of partitions that were read so far, over markers of transactions too
        if any(message.error() is not None for message in polled):
            polled = [message for message in polled if self._is_message(message, ends)]
        partitions = [message.partition() for message in polled]
        if len(set(partitions)) > 1:
            by_partition: dict[int, list[Any]] = {partition: [] for partition in partitions}
            for partition, message in zip(partitions, polled, strict=True):
                by_partition[partition].append(message)
        else:
            by_partition = {partitions[0]: polled} if polled else {}
        columns = {partition: _message_columns(partition, messages) for partition, messages in by_partition.items()}
        for partition in columns.keys() | ends.keys():
            last = int(columns[partition].offsets[-1]) + 1 if partition in columns else 0
            self._positions[partition] = max(last, ends.get(partition, 0))
        if not columns:
            self._raise_failure()
        return columns

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _is_message(self, message: Any, ends: dict[int, int]) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() == Code._PARTITION_EOF:
            ends[message.partition()] = message.offset()
        elif error.code() not in _PASSING and (self.group is not None or error.code() not in _OF_GROUPS):
            self._failure = self._failure or _translated_error(error)
        return False

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        # Fetches are thrown away where a partition is paused, so nothing is done twice.
        pause, resume = set(paused) - self._held, set(resumed) & self._held
        self._held = (self._held | pause) - resume
        with _translating_errors():
            if pause:
                self._consumer.pause(list(map(self._place_of, pause)))
            if resume:
                self._consumer.resume(list(map(self._place_of, resume)))

    def position(self, partition: int) -> int | None:
        return self._positions.get(partition)

    cached_position = position

    def high_watermark(self, partition: int) -> int | None:
        with contextlib.suppress(KafkaException, RuntimeError):  # of one that is closed
            _, end = self._consumer.get_watermark_offsets(self._place_of(partition), cached=True)
            return end if end >= 0 else None
        return None

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        with _translating_errors():
            self._consumer.list_topics(self._topic, timeout=RESPONSE_SECONDS)  # so that it knows partitions that are new
            watermarks = {
                p: self._consumer.get_watermark_offsets(self._place_of(p), timeout=RESPONSE_SECONDS) for p in partitions
            }
        if None in watermarks.values():
            raise KafkaTimeoutError(f"no answer in {RESPONSE_SECONDS:g} s")
        return {p: first for p, (first, _) in watermarks.items()}, {p: end for p, (_, end) in watermarks.items()}

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        with _translating_errors():
            places = self._consumer.offsets_for_times(
                [self._place_of(p, milliseconds) for p in partitions], timeout=RESPONSE_SECONDS
            )
        for place in places:
            if place.error is not None:
                raise _translated_error(place.error)
        return {place.partition: place.offset if place.offset >= 0 else None for place in places}

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        self._answers.append((offsets, callback))
        with _translating_errors():
            self._consumer.commit(offsets=[self._place_of(*each) for each in offsets.items()], asynchronous=True)

    def _on_commit(self, error: Any, _: Any) -> None:  # called within a poll, in the order of the commits
        if self._answers:
            offsets, callback = self._answers.pop(0)
            callback(offsets, None if error is None else _translated_error(error))

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        outcome: list[KafkaError | None] = []
        self.commit_async(offsets, lambda _, error: outcome.append(error))
        deadline = time.monotonic() + seconds
        while not outcome:
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"no answer in {seconds:g} s")
            self._consumer.poll(_LOOK_SECONDS)
        if outcome[0] is not None:
            raise outcome[0]

    def close(self, seconds: float) -> None:  # noqa: ARG002 - librdkafka leaves the group in a moment, or gives up
        with _translating_errors():
            self._consumer.close()


def _message_columns(partition: int, messages: Sequence[Any]) -> Messages:
    offsets = np.array([message.offset() for message in messages], dtype=np.int64)
    times = np.array([message.timestamp()[1] for message in messages], dtype=np.int64)
    keys = [message.key() for message in messages]
    headers = list(map(_headers_read, messages))
    return Messages(
        partition,
        offsets,
        times,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        [message.value() for message in messages],
    )


#: A call that is always checked: `headers` returns something and leaves an error behind, which one that is inlined does not see.
_headers_of = operator.methodcaller("headers")


def _headers_read(message: Any) -> Headers:
    try:
        return _headers_of(message) or ()
    except (SystemError, UnicodeDecodeError):  # of a name that is not UTF-8
        return [("?", None)]


class ConfluentProducer:
    """A producer of librdkafka, as `TopicProducer`."""

    def __init__(
        self, connection: Connection, seconds: float, identity: str | None, transaction_seconds: float, batch_bytes: int
    ) -> None:
        transactions: dict[str, Any] = {}
        if identity is not None:
            transactions = {"transactional.id": identity, "transaction.timeout.ms": int(1000 * transaction_seconds)}
        self._seconds = seconds
        defaults = {
            "linger.ms": 5,
            "batch.size": batch_bytes,
            "message.max.bytes": MAX_REQUEST_BYTES,
            "partitioner": "murmur2_random",  # of other clients: equal keys are in one partition
            "queue.buffering.max.messages": MAX_PENDING_MESSAGES,
            # A checkpoint must fit beside them.
            "queue.buffering.max.kbytes": (MAX_PENDING_BYTES + (MAX_REQUEST_BYTES if transactions else 0)) >> 10,
        }
        fixed = {
            "acks": "all",
            "enable.idempotence": True,
            # In a transaction, no longer than that may be open.
            "delivery.timeout.ms": int(1000 * (seconds if identity is None else min(seconds, transaction_seconds))),
            "delivery.report.only.error": True,
            **transactions,
        }
        self._producer = _client(library.Producer, connection, defaults, fixed)
        self.delivery_error: BaseException | None = None
        self._identity = identity
        self._groups: dict[str, Any] = {}
        self._connection = connection

    def partitions_for(self, topic: str) -> set[int]:
        with _translating_errors():
            metadata = self._producer.list_topics(topic, timeout=RESPONSE_SECONDS).topics[topic]
        if metadata.error is not None:
            raise _translated_error(metadata.error)
        return set(metadata.partitions)

    @_translating_errors()
    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        columns: Any = keys or repeat(None), headers or repeat([]), timestamps or repeat(None)
        # A message of a transaction that is not delivered is reported when the transaction is committed.
        produce, failed = self._producer.produce, None if self._identity is not None else self._note_failure
        place = -1 if partition is None else partition  # chosen by the key, or at random without one
        for value, key, more, timestamp in zip(values, *columns, strict=False):
            moment = 0 if timestamp is None else max(timestamp, 1)  # for at 0 it is sent with the time of now
            message = topic, value, key, place, failed, None, moment, more
            try:
                produce(*message)
            except BufferError:
                self._produce_late(message)
            except KafkaException as error:
                if self._identity is not None and error.args[0].code() == Code._STATE:
                    self._producer.commit_transaction(self._seconds)  # which does not, but says why the transaction has failed
                raise
        self._producer.poll(0)

    def _produce_late(self, message: tuple[Any, ...]) -> None:
        """Produce a message once there is room for it."""
        deadline = time.monotonic() + self._seconds + CONNECT_SECONDS
        while time.monotonic() < deadline:
            self._producer.poll(_LOOK_SECONDS)
            with contextlib.suppress(BufferError):
                self._producer.produce(*message)
                return
        raise KafkaTimeoutError("messages before it were not acknowledged in time")

    def _note_failure(self, error: Any, _: Any) -> None:
        if error is not None:
            self.delivery_error = self.delivery_error or _translated_error(error)

    def flush(self, seconds: float) -> None:
        with _translating_errors():
            left = self._producer.flush(seconds)
        if left:
            raise KafkaTimeoutError(f"{left} messages were not acknowledged in {seconds:g} s")

    def init_transactions(self) -> None:
        with _translating_errors():
            self._producer.init_transactions(RESPONSE_SECONDS)

    def begin_transaction(self) -> None:
        with _translating_errors():
            self._producer.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        if group not in self._groups:  # a consumer that never reads knows what its group is called
            self._groups[group] = _client(library.Consumer, self._connection, {}, {"group.id": group})
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        with _translating_errors():
            self._producer.send_offsets_to_transaction(places, self._groups[group].consumer_group_metadata(), seconds)

    def commit_transaction(self, seconds: float) -> None:
        with _translating_errors():
            self._producer.commit_transaction(seconds)

    def abort_transaction(self, seconds: float) -> None:
        with _translating_errors():
            self._producer.abort_transaction(seconds)

    def close(self, seconds: float) -> None:
        with contextlib.suppress(KafkaError), _translating_errors():  # of one that is fenced, too
            self._producer.purge()
            self._producer.flush(seconds)
        for each in self._groups.values():
            each.close()
