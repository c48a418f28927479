"""Sinks that write predictions or dead letters to a Kafka topic, and `publish`, which writes rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

import orjson
from kafka.errors import InvalidRecordError, InvalidTimestampError, KafkaError, MessageSizeTooLargeError

from streamsvm.stream.endpoints import Position, Sink, StreamError
from streamsvm.stream.tables.chunk import MessageColumns, Row
from streamsvm_kafka.clients import open_producer
from streamsvm_kafka.clients.messages import Headers
from streamsvm_kafka.clients.protocol import BATCH_BYTES, TopicProducer
from streamsvm_kafka.codecs import MessageCodec, TableCodec, rows_to_table
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, describe_missing_right
from streamsvm_kafka.topics import TopicEndpoint, is_missing, read_message_limit

#: Time for a message to be acknowledged by all replicas, including retries, unless ``outage_seconds`` is set.
DELIVERY_SECONDS = 30.0
#: Minimum of that time. Half of it is the timeout of a single request.
MIN_DELIVERY_SECONDS = 2.0
#: What to do if a message is too large for its topic.
SIZE_ADVICE = "Raise max.message.bytes of the topic"


#: The hint for sinks with kafka-python, which is slow because it sends one message at a time.
FASTER_CLIENT_HINT = (
    "predictions are sent to a topic by kafka-python, which needs 50 us or more of processor time for each; confluent-kafka "
    "needs a tenth: pip install 'streamsvm[confluent]', and set STREAMSVM_KAFKA_CLIENT=confluent-kafka in the environment"
)
#: Text of the error if a topic refuses the timestamps of predictions, which are those of their rows.
REFUSED_TIMESTAMPS = (
    "refuses these messages, usually because of their timestamps, which are those of their rows "
    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms). Let the topic set timestamps of its own: "
    "message.timestamp.type=LogAppendTime"
)


#: Errors for refused timestamps: which one is raised depends on the version of the broker.
TIMESTAMP_ERRORS = InvalidTimestampError, InvalidRecordError


class MessageSender:
    """Base of a sender to one topic and of a transaction: it sends messages, and converts errors."""

    _producer: TopicProducer
    _connection: Connection
    _topics: Iterable[str]  # those to which messages are sent
    _seconds: float  # time for messages to be acknowledged
    _failure: Exception | None = None  # raised by each further call
    _undelivered_text = "a message was not delivered"

    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int | None] | None = None,
    ) -> None:
        """Send a message to ``topic`` for each of ``values``, with its key, headers and timestamp in milliseconds, if these
        are given. Only wait for acknowledgements if too many messages are unacknowledged.
        """
        with self._converting_errors("a message cannot be sent"):
            self._begin_sending()
            self._producer.send_messages(topic, values, keys, partition, headers, timestamps)

    def _begin_sending(self) -> None:
        """Prepare to send: a transactional sender begins a transaction if none is open."""

    @contextmanager
    def _converting_errors(self, reason: str) -> Iterator[None]:
        """Within a ``with`` block, convert errors of the Kafka client; ``reason`` says which action failed, for the message. If
        an earlier call has failed for good, raise its error at once.
        """
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (KafkaError, ValueError) as error:
            raise self._convert_error(self._describe_missing_topic() or reason, error) from error

    def _describe_missing_topic(self) -> str:
        """Return a text for an error that names a topic of the messages which does not exist; "" if all exist."""
        missing = [topic for topic in self._topics if is_missing(self._connection, topic)]
        return f"there is no topic {missing[0]!r}: it was deleted during this run, or the broker creates none" if missing else ""

    def _convert_error(self, reason: str, error: BaseException) -> Exception:
        """Return the exception to raise in place of ``error``, which the Kafka client has raised. ``reason`` says which action
        failed, for the message.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Wait until the broker has acknowledged all sent messages. Raise an error if one was not delivered."""
        with self._converting_errors("messages were not acknowledged in time"):
            self._producer.flush(self._seconds + CONNECT_SECONDS)
        with self._converting_errors(self._undelivered_text):
            if self._producer.delivery_error is not None:
                raise self._producer.delivery_error

    def close(self) -> None:
        """Close the producer's connection to the broker."""
        self._producer.close(CONNECT_SECONDS)


class _TopicSender(MessageSender):
    """Sends messages to one topic. If a message is not delivered, the next call raises a StreamError."""

    _undelivered_text = "a message was not delivered, so start again from the checkpoint"

    def __init__(self, connection: Connection, topic: str) -> None:
        self.name = f"kafka://{connection.bootstrap}/{topic}"
        self._connection, self._topics = connection, [topic]
        self._seconds = (
            DELIVERY_SECONDS if connection.outage_seconds is None else max(connection.outage_seconds, MIN_DELIVERY_SECONDS)
        )
        # The topic's limit applies to whole batches of messages.
        batch_bytes = min(BATCH_BYTES, read_message_limit(connection, topic) or BATCH_BYTES)
        with self._converting_errors("its options are wrong"):
            self._producer = open_producer(connection, self._seconds, batch_bytes=batch_bytes)
        try:
            with self._converting_errors("its partitions are not known"):
                self._producer.partitions_for(topic)
        except BaseException:
            self.close()
            raise

    def _convert_error(self, reason: str, error: BaseException) -> StreamError:
        if isinstance(error, MessageSizeTooLargeError):
            return StreamError(f"{self.name}: a message is larger than the topic allows. {SIZE_ADVICE}")
        if isinstance(error, TIMESTAMP_ERRORS):
            return StreamError(f"{self.name} {REFUSED_TIMESTAMPS}")
        if (right := describe_missing_right(self._connection.user, error, "Write", *self._topics)) is not None:
            return StreamError(f"{self.name}: {right}")
        return StreamError(f"{self.name}: {reason}: {error}. Check the broker, the topic and its access rules.")


class KafkaSink(Sink, TopicEndpoint):
    """Writes predictions, or dead letters, as JSON messages to a topic.

    A message is ``{"row": 17, "y_pred": 1, "y_true": 0, "probability": 0.83}``, and its key is the row number in digits. NaN,
    and the prediction of a model that does not predict yet, is null. The prediction of a topic's row has the key (if there is
    one), the timestamp and the headers of the row's message, and the fields ``partition`` and ``offset`` identify that message.

    A topic cannot be truncated as a file can. A learner that is killed and started again writes the predictions after its last
    checkpoint once more, with the same keys and content. A consumer receives each of them at least once, and exactly once if it
    uses only the first message of each row, or of each partition and offset. (With checkpoints in a topic, each is delivered
    exactly once: see `TopicCheckpoints`.) Otherwise, Kafka's strongest guarantees hold: messages are acknowledged by all
    replicas, in order, and without duplicates from retries.

    Parameters
    ----------
    bootstrap
        ``host:port`` of a broker, or several with commas between them.
    topic
        Name of the topic. If it does not exist, the broker creates it if its configuration allows that
        (``auto.create.topics.enable``).
    client
        Options of the connection; see `client_options`.

    Raises
    ------
    BrokerUnreachableError
        No broker answers at ``bootstrap``.
    StreamError
        The topic does not exist. `write` and `flush` also raise it if a prediction was not delivered, or cannot be written as
        JSON.

    Examples
    --------
    >>> from streamsvm_kafka import EmbeddedBroker
    >>> from streamsvm.stream import Prediction
    >>> with EmbeddedBroker() as broker:
    ...     sink = KafkaSink(broker.bootstrap, "predictions", client=broker.client)
    ...     sink.write(Prediction(row=0, y_pred=1, y_true=0, probability=0.75))
    ...     sink.flush()
    ...     sink.close()
    {'topic': 'predictions'}
    """

    accepts_messages = True

    def __init__(self, bootstrap: str, topic: str, *, client: Mapping[str, Any] | None = None) -> None:
        connection = Connection(bootstrap, client or {})
        self._set_sender(_TopicSender(connection, topic), connection, topic, is_owner=True)

    @classmethod
    def from_sender(cls, sender: MessageSender, connection: Connection, topic: str) -> Self:
        """Return a sink that sends messages to ``topic`` through an existing ``sender``, such as a transaction. `close` of the
        sink leaves the sender open.
        """
        sink = cls.__new__(cls)
        sink._set_sender(sender, connection, topic, is_owner=False)
        return sink

    def _set_sender(self, sender: MessageSender, connection: Connection, topic: str, *, is_owner: bool) -> None:
        """Set the attributes of this sink: the ``sender`` that sends its messages, the ``connection`` and the ``topic``. If
        ``is_owner``, closing the sink also closes the sender.
        """
        self.name: str = f"kafka://{connection.bootstrap}/{topic}"
        self.hint: str = "" if connection.library == "confluent-kafka" else FASTER_CLIENT_HINT
        self._sender, self._connection, self._topic, self._owns_sender = sender, connection, topic, is_owner

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:
        """Send one JSON message for each row of ``columns``, a mapping from field names to lists of values. The first column
        contains row numbers, which become the keys, unless ``messages`` has other keys, timestamps and headers.

        If ``messages`` are given, each message gets the key, timestamp and headers of its row's message.
        """
        n = len(next(iter(columns.values())))
        try:
            encoded = list(map(_encode_column, columns.values()))
        except orjson.JSONEncodeError as error:
            if n > 1:  # send the rows before the one that cannot be written
                for i in range(n):
                    row = {name: values[i : i + 1] for name, values in columns.items()}
                    self.write_many(row, None if messages is None else messages[i : i + 1])
                return
            raise StreamError(
                f"{self.name}: the prediction of row {columns['row'][0]} cannot be written as JSON ({error}). "
                "Labels must be numbers, strings or booleans."
            ) from error
        template = b"{%b}" % b",".join(b"%b:%%b" % orjson.dumps(name).replace(b"%", b"%%") for name in columns)
        values = list(map(template.__mod__, zip(*encoded, strict=True)))
        keys, headers, timestamps = encoded[0], None, None
        if messages is not None:
            keys = [row if key is None else key for row, key in zip(keys, messages.keys, strict=True)]
            headers, timestamps = messages.headers, messages.timestamps
        self._sender.send_messages(self._topic, values, keys, headers=headers, timestamps=timestamps)

    def flush(self) -> Position:
        """Wait until the broker has acknowledged all sent messages. Return the position for a checkpoint, a dict of the topic.

        Raise a StreamError if a message is not acknowledged.
        """
        self._sender.flush()
        return {"topic": self._topic}

    def owns(self, position: Position) -> bool:
        """Return whether ``position``, from a checkpoint, is of this topic, which is not truncated: messages that were sent later
        stay.
        """
        return position.get("topic") == self._topic

    def close(self) -> None:
        """Close the connection to the broker. Messages that were not flushed may be lost."""
        if self._owns_sender:
            self._sender.close()


_TYPES_WITHOUT_COMMAS = frozenset((int, float, bool, type(None)))


def _encode_column(values: Sequence[Any]) -> list[bytes]:
    """Return the JSON text of each value, as bytes. Raise a JSONEncodeError if JSON cannot represent a value."""
    kinds = set(map(type, values))
    if kinds <= _TYPES_WITHOUT_COMMAS:
        return orjson.dumps(list(values))[1:-1].split(b",")
    if kinds == {str}:  # texts are often repeated, such as labels
        texts = {value: orjson.dumps(value) for value in set(values)}
        return [texts[value] for value in values]
    return [orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY) for value in values]


def publish(
    rows: Iterable[Row],
    bootstrap: str,
    topic: str,
    codec: MessageCodec,
    *,
    rows_per_message: int = 1,
    partition: int | None = None,
    client: Mapping[str, Any] | None = None,
) -> int:
    """Write rows as messages to a topic, wait until the broker has acknowledged all, and return the number of rows. ``codec`` is
    the message format; a `KafkaSource` with the same codec can read them. A message contains ``rows_per_message`` rows.

    Parameters
    ----------
    rows
        The rows. Each partition gets its rows in this order.
    bootstrap, topic, client
        As in `KafkaSink`.
    codec
        Codec that encodes a row as a message, or ``rows_per_message`` rows.
    rows_per_message
        Number of rows in each message except the last. More than one requires a codec of many rows (a `TableCodec`); a message
        then has a column for each feature of any of its rows.
    partition
        Partition to write to. None lets the client choose a partition for each message.

    Returns
    -------
    int
        The number of rows written.

    Raises
    ------
    BrokerUnreachableError
        No broker answers at ``bootstrap``.
    StreamError
        The topic does not exist, or a row was not delivered.
    ValueError
        The codec cannot encode a row, or not several rows in a message.

    Examples
    --------
    >>> from streamsvm_kafka import ArrowCodec, EmbeddedBroker
    >>> rows = (Row({"x": float(i)}, i % 2) for i in range(2500))
    >>> with EmbeddedBroker() as broker:
    ...     publish(rows, broker.bootstrap, "rows", ArrowCodec("y"), rows_per_message=1000, client=broker.client)
    2500
    """
    if rows_per_message < 1:
        raise ValueError(f"rows_per_message must be at least 1, got {rows_per_message}")
    if rows_per_message > 1 and not isinstance(codec, TableCodec):
        raise ValueError(f"codec {codec.name} has one row a message: leave out rows_per_message, or take ArrowCodec or NpyCodec")
    sender = _TopicSender(Connection(bootstrap, client or {}), topic)
    try:
        count = 0
        remaining = iter(rows)
        while batch := list(islice(remaining, rows_per_message)):
            value = codec.encode_rows(rows_to_table(batch)) if isinstance(codec, TableCodec) else codec.encode(batch[0])
            sender.send_messages(topic, [value], partition=partition)
            count += len(batch)
        sender.flush()
    finally:
        sender.close()
    return count
