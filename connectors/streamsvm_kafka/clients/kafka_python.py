"""Consumers and producers of kafka-python, and how they read a batch of records by one compiled call.

kafka-python takes the records of a fetch from its batches one by one, in Python. Here, a batch whose records are plain gives
one record in their place, whose value is the `Messages` of all. What kafka-python does about batches stays its own: checksums,
transactions that were aborted, control batches, the position, metrics. A batch that is not plain, because it has headers, another
format, or mistakes, is read by kafka-python as ever, which raises its own errors.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NoError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    for_code,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.transport import KafkaSSLTransport
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import decode_varint
from kafka.structs import OffsetAndMetadata

from streamsvm.core.records import HEADERS, KEY, OFFSET, SHORTEST, TIME, VALUE, find_fields
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.logs import redacting_filter
from streamsvm_kafka.clients.messages import Headers, Messages, concatenate_messages
from streamsvm_kafka.clients.protocol import (
    MAX_PENDING_BYTES,
    MAX_PENDING_MESSAGES,
    MAX_REQUEST_BYTES,
    CommitCallback,
    RebalanceListener,
)
from streamsvm_kafka.connection import CONNECT_SECONDS, RECONNECT_MS, RESPONSE_SECONDS, Connection, Secret, TopicDescription

#: The version of the format of batches that is read here.
_MAGIC = 2


def use_compiled_parsing(consumer: Any) -> None:
    """Have a consumer, which has no deserializers, read batches by compiled code, and names that are no text as question marks.

    Another version of kafka-python may have no such parts as are replaced here. Its consumers stay as they are.
    """
    try:
        consumer._fetcher.PartitionRecords = _make_partition_records(consumer._fetcher.PartitionRecords)
    except (AttributeError, TypeError, ValueError):
        return


def records_to_messages(records: Iterable[Any]) -> Messages:
    """Convert a non-empty list of kafka-python records from one partition to columns."""
    parts: list[Messages] = []
    single: list[Any] = []
    for record in records:
        if type(record.value) is not Messages:
            single.append(record)
            continue
        if single:
            parts.append(_record_columns(single))
            single = []
        parts.append(record.value)
    return concatenate_messages([*parts, _record_columns(single)] if single else parts)


def _record_columns(records: list[Any]) -> Messages:
    try:
        offsets, times = (np.array([getattr(each, name) for each in records], dtype=np.int64) for name in ("offset", "timestamp"))
    except OverflowError:
        raise CorruptRecordError("an offset or a time has more than 64 bits") from None
    keys = [each.key for each in records]
    headers = [each.headers for each in records]
    return Messages(
        records[0].partition,
        offsets,
        times,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        [each.value for each in records],
    )


@cache
def _make_partition_records(own: Any) -> Any:
    """Return kafka-python's class of the records of a fetch with batches as they are here, once they have been tried.

    If it gives anything else than kafka-python's own, it is a ValueError.
    """

    class PartitionRecords(own):  # type: ignore[misc]
        def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
            began = False  # the fetch, with a record that is not before its offset
            for record in super()._unpack_records(tp, _CompiledBatches(tp, records), *deserializers):
                messages = record.value
                if type(messages) is Messages:
                    self.records_read += len(messages) - 1
                    if not began and messages.offsets[0] < self.fetch_offset <= record.offset:  # it begins within the batch
                        messages = messages[int(np.searchsorted(messages.offsets, self.fetch_offset)) :]
                        record = record._replace(value=messages)
                began = began or record.offset >= self.fetch_offset
                yield record

    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, -1, -1, -1, 1 << 10)
    builder.append(0, 1, b"key", b"value", [])
    builder.append(1, 2, None, None, [])
    batch = bytes(builder.build())
    if _numbers_taken(own, batch) != _numbers_taken(PartitionRecords, batch):
        raise ValueError("another version of kafka-python reads records otherwise")
    return PartitionRecords


def _numbers_taken(kind: Any, data: bytes) -> tuple[Any, ...]:
    fetch = kind(0, TopicPartition("topic", 0), MemoryRecords(data))
    return [*records_to_messages(fetch.take())], fetch.next_fetch_offset, fetch.leader_epoch, fetch.records_read, fetch.bytes_read


class _CompiledBatches:
    """The batches of a fetch."""

    def __init__(self, key: Any, records: Any) -> None:
        self._key, self._records = key, records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _CompiledBatch(self._key, batch) if type(batch) is DefaultRecordBatch else batch


class _CompiledBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch that gives one record, whose value is all of its records; itself, if these are not plain."""

    __slots__ = ("_key",)

    def __init__(self, key: Any, batch: Any) -> None:
        super().__init__(batch._buffer)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        one_by_one: Iterator[Any] = super().__iter__()  # which is uncompressed now
        whole = self._whole_record()
        return one_by_one if whole is None else iter([whole])

    def _whole_record(self) -> Any:
        """Return one record for all; None if they are not plain."""
        data, n = bytes(self._buffer), self._num_records
        # The batch states the count: no memory is allocated for more records than fit into its bytes.
        if self.magic != _MAGIC or not 0 < n <= (len(data) - self._pos) // SHORTEST:
            return None
        columns = np.empty((n, HEADERS + 1), dtype=np.int64)
        size = find_fields(np.frombuffer(data, np.uint8), self._pos, columns)
        if size < 0 or columns[:, HEADERS].any():
            return None
        is_log_time = self.timestamp_type == self.LOG_APPEND_TIME
        times = np.zeros(n, dtype=np.int64) if is_log_time else columns[:, TIME]
        first_time = self.max_timestamp if is_log_time else self.first_timestamp
        if not (_fits_int64(self.base_offset, columns[:, OFFSET]) and _fits_int64(first_time, times)):
            return None
        offsets, times = self.base_offset + columns[:, OFFSET], first_time + times
        if not (offsets[1:] > offsets[:-1]).all():
            return None
        fields = columns[:, KEY], columns[:, KEY + 1], columns[:, VALUE], columns[:, VALUE + 1]
        keys, key_sizes, values, value_sizes = (np.ascontiguousarray(each) for each in fields)
        messages = Messages(
            self._key.partition, offsets, times, _parts_of(data, keys, key_sizes), None, (data, values, value_sizes)
        )
        return DefaultRecord(size, int(offsets[-1]), -1, 0, None, messages, [])

    def _read_msg(self) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            _blank_names(self._buffer, self._pos)
            return super()._read_msg()


def _fits_int64(first: int, beyond: np.ndarray) -> bool:
    """Whether sums are integers of 64 bits; others are left to Python, whose integers have no end."""
    return first + int(beyond.min()) >= -(1 << 63) and first + int(beyond.max()) < 1 << 63


def _parts_of(data: bytes, begins: np.ndarray, sizes: np.ndarray) -> list[bytes | None] | None:
    """Return parts of data, with None for those with a size of -1; None if all are."""
    if sizes.max() < 0:
        return None
    return [data[at : at + size] if size >= 0 else None for at, size in zip(begins.tolist(), sizes.tolist(), strict=True)]


def _blank_names(buffer: bytearray, at: int) -> None:
    """Put question marks in the place of names that are no text, in the message that begins there."""
    for _ in range(4):  # length, attributes, time, offset
        _, at = decode_varint(buffer, at)
    for _ in range(2):  # key, value
        size, at = decode_varint(buffer, at)
        at += max(size, 0)
    count, at = decode_varint(buffer, at)
    for _ in range(count):
        size, at = decode_varint(buffer, at)
        if size < 0:  # which is refused when it is read
            return
        try:
            buffer[at : at + size].decode()
        except UnicodeDecodeError as error:
            buffer[at : at + size] = b"?" * len(error.object)
        size, at = decode_varint(buffer, at + size)
        at += max(size, 0)


_CLIENTS = KafkaConsumer, KafkaProducer, KafkaAdminClient
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: Defaults of all options of kafka-python, by name.
_OPTIONS: dict[str, Any] = {name: value for client in _CLIENTS for name, value in client.DEFAULT_CONFIG.items()}


def _client(kind: Any, connection: Connection, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    """Make a client with the options of a connection, which replace ``defaults``; those that are ``fixed`` may not be given.

    Raise a StreamError if kafka-python does not know the options, and another one of `Connection.connect` if no broker answers.
    """
    options: dict[str, Any] = {}
    for name, value in connection.options.items():
        if name not in _OPTIONS:
            similar = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {similar[0]}?" if similar else "see the options of KafkaConsumer and KafkaProducer"
            raise connection.options_error(f"{name} is unknown, {hint}")
        if name in fixed:
            raise connection.options_error(f"{name} is set by streamsvm, leave it out")
        if name in kind.DEFAULT_CONFIG:
            options[name] = _convert_option(name, value)
    if options.get("security_protocol", "PLAINTEXT") not in _PROTOCOLS:  # kafka-python would connect in plain text
        raise connection.options_error(f"security_protocol must be {', '.join(_PROTOCOLS[:-1])} or {_PROTOCOLS[-1]}")
    if any(isinstance(value, Secret) for value in options.values()):
        # At level DEBUG, kafka-python shows each request, also the one with the password, to whatever handlers there are.
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]:
            logging.getLogger(name).addFilter(redacting_filter)
    tls = _tls_context(connection, options)
    if tls is not None:
        options = {name: value for name, value in options.items() if not name.startswith("ssl_")} | {"ssl_context": tls}
    arguments = {
        "bootstrap_servers": connection.bootstrap.split(","),
        "bootstrap_timeout_ms": 1000 * CONNECT_SECONDS,
        # kafka-python's own limit is 30 s, which come on top of each outage: half the time that a transaction may be open.
        "reconnect_backoff_max_ms": RECONNECT_MS,
        **defaults,
        **options,
        **fixed,
    }
    return connection.connect(lambda: _connected(kind, connection, arguments, tls))


def _convert_option(name: str, value: Any) -> Any:
    """Convert the text of an option, as it stands in the environment, to the type of its default."""
    default = _OPTIONS[name]
    if name == "api_version" and isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)+", value):
        return tuple(map(int, value.split(".")))
    if not isinstance(value, str) or not isinstance(default, bool | int | float):
        return value
    if isinstance(default, bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    try:
        return type(default)(value)
    except ValueError:
        return value


def _tls_context(connection: Connection, options: Mapping[str, Any]) -> ssl.SSLContext | None:
    if "SSL" not in options.get("security_protocol", "").split("_"):
        return None
    config = {name: options.get(name, default) for name, default in KafkaSSLTransport.DEFAULT_CONFIG.items()}
    try:
        # kafka-python 3.0.12 cannot read a list of revoked certificates.
        context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context(config | {"ssl_crlfile": None})
        if config["ssl_crlfile"]:
            context.load_verify_locations(config["ssl_crlfile"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (ssl.SSLError, OSError) as error:
        files = ", ".join(
            f"{name}={value}" for name, value in options.items() if name.startswith("ssl_") and name.endswith("file")
        )
        raise connection.options_error(f"TLS cannot be set up with {files} ({error}). Are they PEM files?") from error
    return context


def _connected(kind: Any, connection: Connection, arguments: Mapping[str, Any], tls: ssl.SSLContext | None) -> Any:
    if tls is not None:
        connection.check_reachable(tls)  # kafka-python may wait for a handshake without any limit
    failures = _Failures()
    begun: list[KafkaNetClient] = []

    def network(**configs: Any) -> KafkaNetClient:
        begun.append(KafkaNetClient(**configs))
        return begun[-1]

    with failures.heard():
        try:
            client = kind(**arguments, kafka_client=network)
        except BaseException as error:
            for each in begun:  # kafka-python leaves its thread and sockets open
                each.close()
            if isinstance(error, KafkaError):
                raise _explained_error(connection, failures.reason or error) from error
            if isinstance(error, ValueError | TypeError | AssertionError):
                raise connection.options_error(error) from error
            raise
    try:
        connection.check_advertised_addresses([(each.host, each.port) for each in begun[0].cluster.brokers()])
    except BaseException:
        client.close()
        raise
    return client


def _explained_error(connection: Connection, error: BaseException) -> StreamError:
    if isinstance(error, KafkaConfigurationError):
        return connection.options_error(error)
    # A broker closes the connection after its answer, which kafka-python then may not have read.
    has_user = "sasl_mechanism" in connection.options and isinstance(error, KafkaConnectionError)
    if has_user or isinstance(error, SaslAuthenticationFailedError | UnsupportedSaslMechanismError):
        return connection.refused_user_error(error)
    return connection.no_answer_error(error)


class _Failures(logging.Handler):
    """Collects what kafka-python logs of a connection that fails, because the exceptions that it raises say less."""

    _telling = (KafkaConnectionError, UnsupportedSaslMechanismError, SaslAuthenticationFailedError)

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason: BaseException | None = None  # the last failure, or one before it that says more

    def emit(self, record: logging.LogRecord) -> None:
        for value in record.args or ():
            if isinstance(value, KafkaError) and self._rank_of(value) >= self._rank_of(self.reason):
                self.reason = value

    def _rank_of(self, error: BaseException | None) -> int:
        return max((number for number, kind in enumerate(self._telling, 1) if isinstance(error, kind)), default=0)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        logger = logging.getLogger("kafka")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


#: Errors of brokers by the names of their classes: kafka-python raises some of them as a text that has the name.
_NAMED_ERRORS: dict[str, Any] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BrokerResponseError)
}


def _broker_error(error: BaseException) -> BaseException:
    """Return the error of a broker that an error is, contains, names or was raised from; the error itself if there is none."""
    chain: BaseException | None = error
    while chain is not None:
        for each in (chain, *chain.args):
            if isinstance(each, BrokerResponseError):
                return each
        for name in re.findall(r"\w+Error", str(chain)):
            if name in _NAMED_ERRORS:
                named: BaseException = _NAMED_ERRORS[name](str(chain))
                return named
        chain = chain.__cause__ or chain.__context__
    return error


class _TranslatingErrors:
    """Raises the error of a broker in place of one that contains or names it. (A class, as each message is sent within one.)"""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KafkaError) and not isinstance(error, KafkaTimeoutError):
            translated = _broker_error(error)
            if translated is not error:
                raise translated from error


_translating_errors = _TranslatingErrors()


class KafkaPythonAdmin:
    """A client for administration, as `TopicAdmin`."""

    def __init__(self, connection: Connection) -> None:
        self._admin = _client(KafkaAdminClient, connection, {"request_timeout_ms": 1000 * CONNECT_SECONDS}, {})

    def describe_topic(self, topic: str) -> TopicDescription:
        (described,) = self._admin.describe_topics([topic])
        if (failure := for_code(described["error_code"])) is not NoError:
            raise failure(topic)
        if not described["partitions"]:
            raise LeaderNotAvailableError(topic)
        return TopicDescription(described.get("topic_id"), tuple(sorted(p["partition_index"] for p in described["partitions"])))

    def list_topics(self) -> list[str]:
        return list(self._admin.list_topics())

    def read_topic_config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource], config_filter="all")
        try:
            return str(next(iter(next(iter(described.values())).values()))[name]["value"])
        except (KeyError, StopIteration, TypeError):
            return None

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        options = {"num_partitions": 1, "replication_factor": -1, "configs": dict(settings)}
        self._admin.create_topics({topic: options}, timeout_ms=int(1000 * CONNECT_SECONDS), wait_for_metadata=True)

    def read_cluster_id(self) -> str | None:
        identity: str | None = self._admin.describe_cluster().get("cluster_id")
        return identity

    def close(self) -> None:
        self._admin.close()


#: Time for an answer that is asked for within a poll.
_ANSWER_MS = 200


class KafkaPythonConsumer:
    """A consumer of kafka-python, as `TopicConsumer`."""

    def __init__(
        self, connection: Connection, topic: str, group: str | None, max_fetches: int, size: int, settings: Mapping[str, Any]
    ) -> None:
        self.group: str | None = group
        self._topic = topic
        defaults = {"max_partition_fetch_bytes": size, "fetch_max_bytes": max_fetches * size, **settings}
        fixed = {
            "isolation_level": defaults.pop("isolation_level", "read_committed"),
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            # kafka-python 3.0.12 never returns to a partition that was paused with half of a fetch read, so every poll takes all
            # messages and the size of a fetch is the bound.
            "max_poll_records": sys.maxsize,
        }
        self._consumer = _client(KafkaConsumer, connection, defaults, fixed)
        use_compiled_parsing(self._consumer)

    def _key(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([self._key(partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(self._key(partition), offset)

    def subscribe(self, listener: RebalanceListener) -> None:
        with contextlib.suppress(KafkaError):  # a group whose leader does not know them gets none until it has looked again
            self._consumer.partitions_for_topic(self._topic)
        self._consumer.subscribe([self._topic], listener=_RebalanceForwarder(self._consumer, listener))

    def resume_at(self, partition: int, offset: int) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.seek(self._key(partition), offset)
            self._consumer.resume(self._key(partition))

    def pause_partition(self, partition: int) -> None:
        with contextlib.suppress(IllegalStateError):
            self._consumer.pause(self._key(partition))

    def poll(self, seconds: float) -> dict[int, Messages]:
        polled = self._consumer.poll(int(1000 * seconds))
        return {key.partition: records_to_messages(records) for key, records in polled.items() if records}

    def pause_and_resume(self, paused: Iterable[int], resumed: Iterable[int]) -> None:
        self._consumer.pause(*map(self._key, paused))
        self._consumer.resume(*map(self._key, resumed))

    def position(self, partition: int) -> int | None:
        position: int | None = self._consumer.position(self._key(partition), timeout_ms=_ANSWER_MS)
        return position

    def cached_position(self, partition: int) -> int | None:
        state = self._consumer._subscription.assignment.get(self._key(partition))
        position = None if state is None else state.position
        return None if position is None else int(position.offset)

    def high_watermark(self, partition: int) -> int | None:
        try:
            end: int | None = self._consumer.highwater(self._key(partition))
        except IllegalStateError:  # it is not assigned any more
            return None
        return end

    def beginning_and_end_offsets(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        keys = list(map(self._key, partitions))
        first = self._consumer.beginning_offsets(keys, timeout_ms=1000 * RESPONSE_SECONDS)
        last = self._consumer.end_offsets(keys, timeout_ms=1000 * RESPONSE_SECONDS)
        return {key.partition: first[key] for key in keys}, {key.partition: last[key] for key in keys}

    def offsets_for_time(self, milliseconds: int, partitions: Sequence[int]) -> dict[int, int | None]:
        moments = dict.fromkeys(map(self._key, partitions), milliseconds)
        offsets = self._consumer.offsets_for_times(moments, timeout_ms=1000 * RESPONSE_SECONDS)
        return {key.partition: None if offset is None else offset.offset for key, offset in offsets.items()}

    def commit_async(self, offsets: Mapping[int, int], callback: CommitCallback) -> None:
        def report(_: Any, answer: Any) -> None:
            callback(offsets, answer if isinstance(answer, Exception) else None)

        self._consumer.commit_async(self._commit_offsets(offsets), callback=report)

    def commit_sync(self, offsets: Mapping[int, int], seconds: float) -> None:
        self._consumer.commit(self._commit_offsets(offsets), timeout_ms=1000 * seconds)

    def _commit_offsets(self, offsets: Mapping[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {self._key(partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}

    def close(self, seconds: float) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000 * seconds)


class _RebalanceForwarder(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hands on what kafka-python tells in a thread of its own, which must not wait."""

    def __init__(self, consumer: Any, listener: RebalanceListener) -> None:
        self._consumer, self._listener = consumer, listener

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        for key in assigned:  # nothing is fetched before it is said from where
            self._consumer.pause(key)
            self._consumer.seek(key, 0)
        self._listener("assigned", {key.partition for key in assigned})

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        # If a poll ends before the rebalance does, kafka-python forgets that it has begun one, where the topic was what changed:
        # nobody would be told of the new partitions, and no more signs of life be given.
        self._consumer._coordinator.request_rejoin()
        self._listener("revoked", {key.partition for key in revoked})

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._listener("lost", {key.partition for key in lost})


class KafkaPythonProducer:
    """A producer of kafka-python, as `TopicProducer`."""

    def __init__(
        self, connection: Connection, seconds: float, identity: str | None, transaction_seconds: float, batch_bytes: int
    ) -> None:
        transactions: dict[str, Any] = {}
        if identity is not None:
            transactions = {"transactional_id": identity, "transaction_timeout_ms": int(1000 * transaction_seconds)}
        self._seconds = seconds
        defaults = {
            "max_block_ms": 1000 * CONNECT_SECONDS,
            # Shorter than the delivery; and whole, for kafka-python sends it as an integer, or else never.
            "request_timeout_ms": min(10_000, int(500 * seconds)),
            "linger_ms": 5,
            "batch_size": batch_bytes,
            "max_request_size": MAX_REQUEST_BYTES,
        }
        fixed = {"delivery_timeout_ms": int(1000 * seconds), "acks": "all", "enable_idempotence": True, **transactions}
        self._producer = _client(KafkaProducer, connection, defaults, fixed)
        if identity is not None:
            # Where its epoch is refused, kafka-python would ask for a new one: who is fenced would fence the one after it.
            self._producer._transaction_manager._supports_epoch_bump = lambda: False
        self.delivery_error: BaseException | None = None
        self._pending = self._bytes = 0

    def partitions_for(self, topic: str) -> set[int]:
        with _translating_errors:
            partitions: set[int] = self._producer.partitions_for(topic)
        return partitions

    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int | None] | None,
    ) -> None:
        with _translating_errors:
            for i, value in enumerate(values):
                if self.delivery_error is not None:  # the broker is away, and each would wait for it
                    raise self.delivery_error
                key = None if keys is None else keys[i]
                more = None if headers is None else headers[i]
                timestamp = None if timestamps is None else timestamps[i]
                future = self._producer.send(topic, value, key=key, partition=partition, headers=more, timestamp_ms=timestamp)
                future.add_errback(self._note_failure)
                self._pending += 1
                self._bytes += len(value) + len(key or b"") + sum(len(text or b"") for header in more or () for text in header)
                if self._pending >= MAX_PENDING_MESSAGES or self._bytes >= MAX_PENDING_BYTES:  # kafka-python itself sets no bound
                    self.flush(self._seconds + CONNECT_SECONDS)

    def _note_failure(self, error: BaseException) -> None:
        self.delivery_error = self.delivery_error or _broker_error(error)

    def flush(self, seconds: float) -> None:
        if self._pending:
            with _translating_errors:
                self._producer.flush(seconds)
        self._pending = self._bytes = 0

    def init_transactions(self) -> None:
        with _translating_errors:
            self._producer.init_transactions()

    def begin_transaction(self) -> None:
        with _translating_errors:
            self._producer.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Mapping[tuple[str, int], int], group: str, seconds: float) -> None:
        committed = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        _in_time(lambda: self._producer.send_offsets_to_transaction(committed, group), seconds)

    def commit_transaction(self, seconds: float) -> None:
        _in_time(self._producer.commit_transaction, seconds)

    def abort_transaction(self, seconds: float) -> None:
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
        with _translating_errors:
            raise outcome[0]
