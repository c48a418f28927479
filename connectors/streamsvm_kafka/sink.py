"""Kafka topics to which rows or predictions are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

import orjson
from kafka.errors import InvalidRecordError, InvalidTimestampError, KafkaError, MessageSizeTooLargeError

from streamsvm.stream.endpoints import START_AFRESH, Position, Record, Sink, StreamError
from streamsvm.stream.tables.chunk import MessageColumns, Row
from streamsvm_kafka.clients import open_producer
from streamsvm_kafka.clients.messages import Headers
from streamsvm_kafka.clients.protocol import BATCH_BYTES, TopicProducer
from streamsvm_kafka.codecs import MessageCodec, TableCodec, rows_to_table
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, describe_missing_right
from streamsvm_kafka.topics import TopicEndpoint, read_message_limit

#: Time for a message to be acknowledged by all replicas, retries included, unless ``outage_seconds`` says another one.
DELIVERY_SECONDS = 30.0
#: The least of it: a broker is given half of it for an answer.
MIN_DELIVERY_SECONDS = 2.0
#: The remedy for a message that is too large for its topic.
RAISE_LIMIT_HINT = "Raise max.message.bytes of the topic"


#: The hint for sinks with kafka-python, which sends one message at a time.
FASTER_CLIENT_HINT = (
    "predictions go to a topic through kafka-python, which takes 50 us or more of the processor for each, and confluent-kafka a "
    "tenth: pip install 'streamsvm[confluent]', and STREAMSVM_KAFKA_CLIENT=confluent-kafka in the environment"
)
#: The error and the remedy if a topic refuses the times of messages. Predictions have the times of their rows.
REFUSED_TIMESTAMPS = (
    "refuses these messages, as a rule for the times that they have of their rows (message.timestamp.before.max.ms, "
    "message.timestamp.after.max.ms). Let the topic give messages its own: message.timestamp.type=LogAppendTime"
)


#: The errors for such times, by the version of the broker.
TIMESTAMP_ERRORS = InvalidTimestampError, InvalidRecordError


class MessageSender:
    """Sends messages: the part that a sender of a topic and a transaction share."""

    _producer: TopicProducer
    _seconds: float  # for an answer of the broker
    _failure: Exception | None = None  # that all which follows raises
    _undelivered = "a message was not delivered"

    def send_messages(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int | None] | None = None,
    ) -> None:
        """Send messages, and wait for those before them if they are too many."""
        with self._explaining_errors("a message cannot be sent"):
            self._begin_sending()
            self._producer.send_messages(topic, values, keys, partition, headers, timestamps)

    def _begin_sending(self) -> None:
        """Begin a transaction, if the messages belong to one."""

    @contextmanager
    def _explaining_errors(self, reason: str) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (KafkaError, ValueError) as error:
            raise self._explained_error(reason, error) from error

    def _explained_error(self, reason: str, error: BaseException) -> Exception:
        raise NotImplementedError

    def flush(self) -> None:
        """Wait until the broker has all messages."""
        with self._explaining_errors("messages were not acknowledged in time"):
            self._producer.flush(self._seconds + CONNECT_SECONDS)
        with self._explaining_errors(self._undelivered):
            if self._producer.delivery_error is not None:
                raise self._producer.delivery_error

    def close(self) -> None:
        """Close the connection."""
        self._producer.close(CONNECT_SECONDS)


class _TopicSender(MessageSender):
    """A producer that loses nothing silently: a failed delivery is raised at the next flush."""

    _undelivered = "a message was not delivered, so start again from the checkpoint"

    def __init__(self, connection: Connection, topic: str) -> None:
        self.name = f"kafka://{connection.bootstrap}/{topic}"
        self._connection, self._topic = connection, topic
        self._seconds = (
            DELIVERY_SECONDS if connection.outage_seconds is None else max(connection.outage_seconds, MIN_DELIVERY_SECONDS)
        )
        # A batch of messages must not be larger than the topic takes one message to be.
        batch_bytes = min(BATCH_BYTES, read_message_limit(connection, topic) or BATCH_BYTES)
        with self._explaining_errors("its options are wrong"):
            self._producer = open_producer(connection, self._seconds, batch_bytes=batch_bytes)
        try:
            with self._explaining_errors("the topic does not exist and the broker does not create it"):
                self._producer.partitions_for(topic)
        except BaseException:
            self.close()
            raise

    def _explained_error(self, reason: str, error: BaseException) -> StreamError:
        if isinstance(error, MessageSizeTooLargeError):
            return StreamError(f"{self.name}: a message is larger than its topic takes. {RAISE_LIMIT_HINT}")
        if isinstance(error, TIMESTAMP_ERRORS):
            return StreamError(f"{self.name} {REFUSED_TIMESTAMPS}")
        if (right := describe_missing_right(self._connection.user, error, "Write", self._topic)) is not None:
            return StreamError(f"{self.name}: {right}")
        return StreamError(f"{self.name}: {reason}: {error}. Check the broker, the topic and its access rules.")


class KafkaSink(Sink, TopicEndpoint):
    """Writes predictions, or dead letters, as JSON messages to a topic.

    A message is ``{"row": 17, "y_pred": 1, "y_true": 0, "probability": 0.83}``, and its key is the row number in digits. NaN,
    and the prediction of a model that does not predict yet, is null. The prediction of a topic's row has the key (if that has
    one), the time and the headers of the row's message, and the fields ``partition`` and ``offset`` say which that was.

    A topic cannot be cut back as a file can. A learner that is killed and started again writes the predictions after its last
    checkpoint once more, with the same keys and content. A reader gets each of them at least once, and exactly once if it uses
    only the first message of each row, or of each partition and offset. (With checkpoints in a topic, each comes exactly once:
    see `TopicCheckpoints`.) In all other respects, the guarantees are the strongest of Kafka: acknowledged by all replicas, in
    order, without duplicates from retries.

    Parameters
    ----------
    bootstrap
        ``host:port`` of a broker, or several with commas between them.
    topic
        Name of the topic. If it does not exist, the broker's configuration (``auto.create.topics.enable``) decides whether it
        is created.
    client
        Options of the connection; see `client_options`.

    Raises
    ------
    BrokerUnreachableError
        No broker answers at ``bootstrap``.
    StreamError
        The topic does not exist. From `write` and `flush`: a prediction was not delivered, or cannot be written as JSON.

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
        self._send_by(_TopicSender(connection, topic), connection, topic, owns=True)

    @classmethod
    def from_sender(cls, sender: MessageSender, connection: Connection, topic: str) -> Self:
        """Make a sink whose messages are sent to a topic by an existing sender, which stays open."""
        sink = cls.__new__(cls)
        sink._send_by(sender, connection, topic, owns=False)
        return sink

    def _send_by(self, sender: MessageSender, connection: Connection, topic: str, *, owns: bool) -> None:
        self.name: str = f"kafka://{connection.bootstrap}/{topic}"
        self.hint: str = "" if connection.library == "confluent-kafka" else FASTER_CLIENT_HINT
        self._sender, self._connection, self._topic, self._owns = sender, connection, topic, owns

    def write(self, record: Record) -> None:
        """Send a prediction or a dead letter; it is durable after `flush`.

        Raise a StreamError if JSON cannot hold it.
        """
        self.write_many({name: [value] for name, value in record.items()})

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:
        """Send a message for each row of columns, the first of which are the numbers of the rows, as `write` sends it.

        The messages of the rows give it their key, time and headers.
        """
        n = len(next(iter(columns.values())))
        try:
            texts = list(map(_json_column, columns.values()))
        except orjson.JSONEncodeError as error:
            if n > 1:  # up to the first that cannot be written
                for i in range(n):
                    row = {name: values[i : i + 1] for name, values in columns.items()}
                    self.write_many(row, None if messages is None else messages[i : i + 1])
                return
            raise StreamError(
                f"{self.name}: the prediction of row {columns['row'][0]} cannot be written as JSON ({error}). "
                "Labels must be numbers, strings or booleans."
            ) from error
        form = b"{%b}" % b",".join(b"%b:%%b" % orjson.dumps(name).replace(b"%", b"%%") for name in columns)
        values = list(map(form.__mod__, zip(*texts, strict=True)))
        keys, headers, timestamps = texts[0], None, None
        if messages is not None:
            keys = [row if key is None else key for row, key in zip(keys, messages.keys, strict=True)]
            headers, timestamps = messages.headers, messages.timestamps
        self._sender.send_messages(self._topic, values, keys, headers=headers, timestamps=timestamps)

    def flush(self) -> Position:
        """Wait until all messages are acknowledged, and return the position: the topic's name.

        Raise a StreamError if a message is not acknowledged.
        """
        self._sender.flush()
        return {"topic": self._topic}

    def seek(self, position: Position) -> None:
        """Raise a StreamError if the position is not of this topic. Messages cannot be dropped."""
        if position.get("topic") != self._topic:
            written = f"topic {position['topic']!r}" if "topic" in position else position.get("name", dict(position))
            raise StreamError(f"{self.name}: what this checkpoint has written is in {written}. Give that, {START_AFRESH}")

    def close(self) -> None:
        """Close the connection. Messages that were not flushed may be lost."""
        if self._owns:
            self._sender.close()


_PLAIN = frozenset((int, float, bool, type(None)))


def _json_column(values: Sequence[Any]) -> list[bytes]:
    """Return values as JSON; raise a JSONEncodeError where one cannot be written."""
    kinds = set(map(type, values))
    if kinds <= _PLAIN:  # no comma is within one
        return orjson.dumps(list(values))[1:-1].split(b",")
    if kinds == {str}:  # often the same ones
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
    """Write rows to a topic, and wait until all are acknowledged.

    A `KafkaSource` with the same codec reads them.

    Parameters
    ----------
    rows
        The rows, in the order that each partition will have.
    bootstrap, topic, client
        As in `KafkaSink`.
    codec
        Codec that encodes a row as a message, or ``rows_per_message`` rows.
    rows_per_message
        Number of rows in each message except the last. More than one needs a codec of many rows (a `TableCodec`); a message
        then has a column for each feature that one of its rows has.
    partition
        Partition to write to. None lets the client choose one for each message.

    Returns
    -------
    int
        The number of rows.

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
