"""Checkpoints in a model topic: written in a transaction with predictions and offsets, and read by followers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
)

from streamsvm.core.warning import warn
from streamsvm.files.container import ModelFileError
from streamsvm.stream.checkpoint import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    TakenOverError,
    check_row_count,
    parse_checkpoint,
)
from streamsvm.stream.logs import event, log_checkpoint
from streamsvm.stream.prediction import Follower
from streamsvm_kafka.clients import open_producer
from streamsvm_kafka.clients.protocol import BATCH_BYTES
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, MissingTopicError, describe_missing_right
from streamsvm_kafka.model_topic import (
    MAX_CHECKPOINT_BYTES,
    ModelReader,
    NoCheckpointError,
    check_model_name,
    check_single_partition,
    ensure_model_topic,
)
from streamsvm_kafka.sink import DELIVERY_SECONDS, REFUSED_TIMESTAMPS, SIZE_ADVICE, TIMESTAMP_ERRORS, KafkaSink, MessageSender
from streamsvm_kafka.topics import TopicEndpoint, describe_topic, read_cluster_id, read_message_limit

logger: logging.Logger = logging.getLogger(__name__)

#: Errors of a producer that was fenced, or whose transaction the broker has aborted.
_FENCED_ERRORS = (ProducerFencedError, InvalidProducerEpochError, InvalidTxnStateError)
#: Time for which a new process waits for an unfinished commit of the previous one.
INIT_TRANSACTIONS_SECONDS = 30.0
#: Time to abort a transaction when it is closed. If the broker does not respond, it aborts the transaction itself later.
ABORT_SECONDS = 5.0


class Transaction(MessageSender):
    """A transactional producer. A transaction begins with the first message after the last commit.

    A cluster has one producer for each transactional id: a new one fences its predecessor, whose open transaction is aborted,
    and which can commit nothing more. After a `Transaction` is created, no other process can commit with its id.

    After any failure, all further calls raise the same error: a TakenOverError if another producer has the
    ``transactional_id``, otherwise a CheckpointError. The broker aborts a transaction after ``seconds``.
    """

    def __init__(self, connection: Connection, transactional_id: str, name: str, seconds: float) -> None:
        self.name: str = name
        self._transactional_id, self._max_seconds, self._user = transactional_id, seconds, connection.user
        self._topics: dict[str, None] = {}  # the topics to which messages are sent, in order
        self._group = ""
        self._seconds = max(connection.outage_seconds or 0.0, DELIVERY_SECONDS)
        self._begin_time: float | None = None  # of the open transaction; None if no transaction is open
        self._producer = open_producer(connection, self._seconds, transactional_id, seconds)
        try:
            with self._converting_errors("no transactions can be begun"):
                deadline, is_initialized = time.monotonic() + INIT_TRANSACTIONS_SECONDS, False
                while not is_initialized:
                    try:
                        self._producer.init_transactions()
                        is_initialized = True
                    except KafkaTimeoutError:  # a commit is unfinished, or the broker has just started
                        if time.monotonic() > deadline:
                            raise
        except BaseException:
            self._producer.close(CONNECT_SECONDS)
            raise

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of ``topic``, to which this producer will send messages. Raise a CheckpointError if the
        topic does not exist and the broker does not create it.
        """
        self._topics[topic] = None
        with self._converting_errors(f"the topic {topic!r} does not exist and the broker does not create it"):
            return self._producer.partitions_for(topic)

    def _begin_sending(self) -> None:
        if self._begin_time is None:
            self._producer.begin_transaction()
            self._begin_time = time.monotonic()

    def commit(self, offsets: Mapping[tuple[str, int], int], group: str | None) -> None:
        """Commit the open transaction: all messages since the last commit and, if a consumer ``group`` is given, its ``offsets``,
        which map (topic, partition) to the next offset to read.

        A TakenOverError means that nothing was committed. The message of a CheckpointError says if that is unknown.
        """
        self.flush()
        if group is not None and offsets:
            self._group = group
            with self._converting_errors(f"the offsets of the group {group!r} cannot be committed"):
                self._begin_sending()
                self._producer.send_offsets_to_transaction(offsets, group, self._seconds)
        with self._converting_errors("the transaction was not committed"):
            try:
                self._producer.commit_transaction(self._seconds)
            except KafkaTimeoutError as error:
                self._begin_time = None  # it may be committed, so `close` must not abort it
                self._failure = CheckpointError(
                    f"{self.name}: the broker has not answered for {self._seconds:g} s to the commit of a transaction, "
                    "and it is not known whether it is committed. Start again: the run continues from the newest committed "
                    "checkpoint"
                )
                raise self._failure from error
        self._begin_time = None

    def close(self) -> None:
        """Abort the transaction if one is open, and close the connection to the broker."""
        if self._begin_time is not None:
            with contextlib.suppress(KafkaError):  # then another producer is active, or the broker aborts it later
                self._producer.abort_transaction(ABORT_SECONDS)
        self._begin_time = None
        super().close()

    def _convert_error(self, reason: str, error: BaseException) -> Exception:
        self._failure = failure = self._choose_exception(reason, error)
        return failure

    def _choose_exception(self, reason: str, error: BaseException) -> CheckpointError:
        """Return the exception to raise after an action of the transaction has failed: a TakenOverError if another producer with
        the same transactional id has fenced this one, else a CheckpointError. ``error`` is the Kafka client's exception, and
        ``reason`` names the action in the message.
        """
        # Either of the error and the failed delivery of a message may be the cause of the other.
        causes = [cause for cause in (self._producer.delivery_error, error) if cause is not None]

        def has_cause(*kinds: type[BaseException]) -> bool:
            return any(isinstance(cause, kinds) for cause in causes)

        if has_cause(*_FENCED_ERRORS):
            open_seconds = 0.0 if self._begin_time is None else time.monotonic() - self._begin_time
            if open_seconds >= self._max_seconds:
                return CheckpointError(
                    f"{self.name}: the transaction was open for {open_seconds:.0f} s, and the broker has aborted it after "
                    f"{self._max_seconds:g} s (or another process has taken over). Its messages are discarded. Start again: the "
                    "run continues from its newest checkpoint; write one more often"
                )
            return TakenOverError(
                f"{self.name}: another process with the same name writes its checkpoints there now, and this one is fenced: "
                "its uncommitted messages are discarded. Stop one of the two, or give each a name of its own: ?name=..."
            )
        if has_cause(InvalidProducerIdMappingError):
            return CheckpointError(
                f"{self.name}: nothing was written for longer than transactional.id.expiration.ms, and the broker has forgotten "
                "who writes here. Start again: the run continues from its newest checkpoint"
            )
        if has_cause(MessageSizeTooLargeError):
            return CheckpointError(f"{self.name}: a message is larger than the topic allows ({causes[0]}). {SIZE_ADVICE}")
        if has_cause(*TIMESTAMP_ERRORS):
            return CheckpointError(f"{self.name}: a topic of predictions {REFUSED_TIMESTAMPS}")
        text = " ".join(map(str, causes))  # it may contain the name of the topic
        topics = [topic for topic in self._topics if topic in text] or self._topics
        for cause in causes:
            if right := describe_missing_right(
                self._user, cause, "Write", *topics, group=self._group, transactional_id=self._transactional_id
            ):
                return CheckpointError(f"{self.name}: {right}")
        return CheckpointError(
            f"{self.name}: {reason}: {self._producer.delivery_error or error}. Check the broker, the limits and access rules of "
            "the topics, then start again from the checkpoint"
        )


#: Time after which the broker aborts an open transaction.
TRANSACTION_SECONDS = 60.0


class TopicCheckpoints(Checkpoints, TopicEndpoint):
    """Stores the checkpoints of a run in a model topic, instead of a `CheckpointFolder`.

    A checkpoint, the predictions and dead letters before it (of sinks from `open_sink`) and the offsets of the ``group`` are
    one transaction. A consumer with ``isolation.level=read_committed`` reads all of them or none. A run that is killed resumes
    from the newest committed checkpoint, and nothing has to be truncated. Predictions become visible once their checkpoint is
    written.

    Only one process at a time writes checkpoints of a name. A new process fences the previous one, whose next message or
    checkpoint raises a `CheckpointError`.

    The topic has one partition and is compacted; if it does not exist, it is created, for messages of up to 64 MiB. A checkpoint
    is one message: its key is the name, its value consists of the bytes of a checkpoint file.

    Parameters
    ----------
    bootstrap, client
        Broker and options of the connection, as in `KafkaSource`.
    topic
        Name of the model topic.
    name
        Name of the model in the topic. A restarted process finds its checkpoints by this name.
    group
        Consumer group whose offsets of a `KafkaSource` of this cluster are committed with each checkpoint. None commits none.
    trusted
        Whether models may hold classes and functions of your own, as in `CheckpointFolder`.
    transaction_seconds
        Seconds after which the broker aborts a transaction whose checkpoint is not written yet.

    Attributes
    ----------
    path : str
        The topic and the name, in messages.
    max_seconds : float or None
        Maximum time between two checkpoints; None if no sink was opened.

    Raises
    ------
    BrokerUnreachableError, StreamError
        As in `KafkaSource`.
    CheckpointError
        The topic cannot be created or has several partitions, or the broker refuses transactions.

    Notes
    -----
    For a loop, write ``LearningLoop(source, model, sink=checkpoints.open_sink("predictions"), checkpoints=checkpoints)``. The
    Kafka user must be allowed to write as the transactional id ``streamsvm-TOPIC-NAME``.

    Examples
    --------
    >>> TopicCheckpoints("localhost:9092", "models", "my rows")
    Traceback (most recent call last):
        ...
    streamsvm.stream.checkpoint.CheckpointError: kafka://localhost:9092/models: 'my rows' is not a valid model name...
    """

    path: str
    _trust_advice = "TopicCheckpoints(..., trusted=True)"

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        *,
        group: str | None = None,
        trusted: bool = False,
        client: Mapping[str, Any] | None = None,
        transaction_seconds: float = TRANSACTION_SECONDS,
    ) -> None:
        self._place = f"kafka://{bootstrap}/{topic}"
        self.path = f"{self._place}?name={name}"
        check_model_name(name, self._place)
        self.group: str | None = group
        self._topic, self._name, self._trusted = topic, name, trusted
        self._connection = Connection(bootstrap, client)
        self._seconds = transaction_seconds
        self._has_sinks = False
        ensure_model_topic(self._connection, topic, self._place)
        # Fence other processes before anything is read, so that no newer checkpoint can be missed.
        self._transaction = Transaction(self._connection, f"streamsvm-{topic}-{name}", self.path, transaction_seconds)
        self._transaction.partitions_for(topic)  # so that the first checkpoint need not request them

    @property
    def max_seconds(self) -> float | None:
        """Maximum time in seconds between two checkpoints: half of the transaction timeout, or None if no sink was opened."""
        return self._seconds / 2.0 if self._has_sinks else None

    def is_on_cluster_of(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> bool:
        """Return whether the brokers ``bootstrap`` (``"host:port,..."``, with connection options ``client``) belong to the Kafka
        cluster of this model topic. Raise a BrokerUnreachableError if they do not respond.
        """
        if bootstrap == self._connection.bootstrap:
            return True
        cluster_id = read_cluster_id(Connection(bootstrap, client))
        return cluster_id is not None and cluster_id == read_cluster_id(self._connection)

    def open_sink(self, topic: str) -> KafkaSink:
        """Return a sink that writes to another ``topic`` of the same cluster. Its messages belong to the same transaction as the
        checkpoints: consumers that read only committed messages see them after the next checkpoint.

        Raises
        ------
        CheckpointError
            The topic does not exist. The sink also raises it if a message was not delivered, or another process writes
            checkpoints of this name.
        """
        if topic == self._topic:
            raise CheckpointError(f"{self._place} holds checkpoints: give another topic for predictions or dead letters")
        self._transaction.partitions_for(topic)
        limit = read_message_limit(self._connection, topic)
        if limit is not None and limit < BATCH_BYTES:
            raise CheckpointError(
                f"kafka://{self._connection.bootstrap}/{topic} takes messages of up to {limit} bytes, and in a transaction they "
                f"are sent in batches of up to {BATCH_BYTES}. {SIZE_ADVICE}"
            )
        self._has_sinks = True
        return KafkaSink.from_sender(self._transaction, self._connection, topic)

    def save(self, model: Any, state: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> str:
        """Write a checkpoint of the model and of the run's ``state`` to the topic, after ``rows`` rows; ``facts`` are further
        fields of its header. In the same transaction, commit the sinks' messages and the consumer group's offsets, which are in
        the source's ``position``. Return a text that names the topic and the model.

        The parameters are those of `CheckpointFolder.save`.

        Raises
        ------
        TakenOverError
            Another process writes checkpoints of this name; nothing of this transaction was committed.
        CheckpointError
            The checkpoint was not committed, or that is unknown; the message says which.
        """
        start_time = time.perf_counter()
        try:
            data = self._serialize(model, state, facts, rows, position)
            if len(data) > MAX_CHECKPOINT_BYTES:
                raise ValueError(f"it has {len(data):,} bytes, and a topic takes at most {MAX_CHECKPOINT_BYTES:,}: use a folder")
            self._transaction.send_messages(self._topic, [data], [self._name.encode()], 0)
        except (ModelFileError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{self.path}: the checkpoint was not written: {error}") from error
        offsets = {} if self.group is None else dict(_iter_offsets(position))
        self._transaction.commit(offsets, self.group)
        log_checkpoint(logger, self.path, rows, len(data), time.perf_counter() - start_time)
        return self.path

    def newest(self) -> Checkpoint | None:
        """Return the newest committed checkpoint of this model in the topic; None if the topic contains no message of the model.

        Raises
        ------
        CheckpointError
            The checkpoint cannot be loaded, or the topic cannot be read or contains messages that are not checkpoints.
        """
        reader = ModelReader(self._connection, self._topic, self._name, self._place)
        try:
            data = reader.read_newest(to_end=True)
        finally:
            reader.close()
        return None if data is None else parse_checkpoint(data, self.path, self._trusted)

    def close(self) -> None:
        """Close the connection to the broker. Predictions that were sent since the last checkpoint are aborted."""
        self._transaction.close()


def _iter_offsets(position: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield ((topic, partition), next offset) for each Kafka partition in ``position``, which a source has returned for a
    checkpoint. The position of a join contains those of its two streams. Yield nothing for other sources, such as files.
    """
    topic, offsets = position.get("topic"), position.get("offsets")
    if isinstance(topic, str) and isinstance(offsets, Mapping):
        for partition, offset in offsets.items():
            yield (topic, int(partition)), int(offset)
        return
    for part in (position.get("rows"), position.get("labels")):
        if isinstance(part, Mapping):
            yield from _iter_offsets(part)


class FollowedTopic(Follower):
    """Follows the newest model in a model topic to which a learner writes, instead of a `FollowedFolder`.

    Parameters
    ----------
    bootstrap, client
        Broker and options of the connection, as in `KafkaSource`.
    topic
        Name of the model topic. `wait` also waits until the topic exists.
    name
        Name of the model in the topic, as in `TopicCheckpoints`.
    trusted
        Whether models may hold classes and functions of your own, as in `streamsvm.load`.
    seconds
        Number of seconds between two checks for a newer model.

    Attributes
    ----------
    path : str
        The topic and the name, in messages.

    Raises
    ------
    BrokerUnreachableError, StreamError
        Methods raise it as `KafkaSource` does, and if the topic cannot be read.
    CheckpointError
        The name is invalid. Methods also raise it if the topic has several partitions.

    Examples
    --------
    >>> FollowedTopic("127.0.0.1:1", "models", "rows").read()
    Traceback (most recent call last):
        ...
    streamsvm_kafka.connection.BrokerUnreachableError: no Kafka broker at 127.0.0.1:1 (...). Start the broker...
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        *,
        trusted: bool = False,
        seconds: float = 1.0,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(trusted, seconds)
        self._place = f"kafka://{bootstrap}/{topic}"
        self.path: str = f"{self._place}?name={name}"
        check_model_name(name, self._place)
        self._connection, self._topic, self._name = Connection(bootstrap, client), topic, name
        self._reader: ModelReader | None = None

    def read(self) -> Checkpoint:
        """Return the newest checkpoint of the model in this topic, with the loaded model.

        Raise a CheckpointError if the topic contains no checkpoint of the model, or it cannot be loaded or contains no model, and
        a StreamError if the topic does not exist.
        """
        data = self._open_reader().read_newest()
        if data is None:
            raise CheckpointError(f"{self.path} holds no checkpoint")
        return self._check_has_rows(parse_checkpoint(data, self.path, self._trusted))

    def _read_if_changed(self) -> Checkpoint | None:
        return None if self._reader is None else self._load_usable(self._reader.read_newer())

    def wait_for_first(self) -> Checkpoint | None:
        """Wait until the topic exists and contains a checkpoint of the model that can be loaded. Return the newest one, or None
        if `stop` is called while waiting.
        """
        reader, checkpoint, has_warned = None, None, False
        while reader is None:
            with contextlib.suppress(MissingTopicError):  # the learner will create it
                reader = self._open_reader()
                checkpoint = self._read_usable(reader)
            if checkpoint is None and not has_warned:
                has_warned = True
                logger.warning("waiting for the first checkpoint in %s", self.path, extra=event("waiting"))
            if reader is None and self._stopping.wait(self._seconds):
                return None
        while checkpoint is None and not self._stopping.wait(self._seconds):
            checkpoint = self._load_usable(reader.read_newer())
        return None if self._stopping.is_set() else checkpoint

    def _open_reader(self) -> ModelReader:
        """Return the reader of the model topic, opened by the first call. Raise a CheckpointError if the topic has several
        partitions.
        """
        if self._reader is None:
            check_single_partition(describe_topic(self._connection, self._topic), self._place)
            self._reader = ModelReader(self._connection, self._topic, self._name, self._place)
        return self._reader

    def _read_usable(self, reader: ModelReader) -> Checkpoint | None:
        """Read the newest checkpoint of the model through ``reader``. Return None if the topic has none yet, or, with a warning,
        if it is damaged or its model cannot be loaded.
        """
        try:
            return self._load_usable(reader.read_newest())
        except NoCheckpointError as error:
            warn(str(error))
            return None

    def _load_usable(self, data: bytes | None) -> Checkpoint | None:
        """Load a checkpoint from ``data``, the bytes of a Kafka message. Return None without ``data``, if the checkpoint was
        written before any row was learned, or, with a warning, if it cannot be loaded.
        """
        try:
            checkpoint = None if data is None else parse_checkpoint(data, self.path, self._trusted)
            return None if checkpoint is None or checkpoint.is_start else self._check_has_rows(checkpoint)
        except CheckpointError as error:
            warn(f"{error}: the earlier model stays")
            return None

    def _check_has_rows(self, checkpoint: Checkpoint) -> Checkpoint:
        check_row_count(self.path, checkpoint)
        return checkpoint

    def reads_from(self, output: object) -> bool:
        """Return whether ``output``, a sink or checkpoint store, writes to the model topic that this object reads."""
        return isinstance(output, TopicEndpoint) and output.is_same_topic(self._connection, self._topic)

    def close(self) -> None:
        """Close the connection to the broker if it was opened."""
        if self._reader is not None:
            self._reader.close()
