"""Stores checkpoints in a model topic, in one transaction with predictions and offsets."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from streamsvm.files.container import ModelFileError
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, Checkpoints, Retention, SavedCheckpoint, read_checkpoint
from streamsvm.stream.logs import log_checkpoint
from streamsvm_kafka.clients.protocol import BATCH_BYTES
from streamsvm_kafka.connection import Connection
from streamsvm_kafka.model_topic import MAX_CHECKPOINT_BYTES, ModelReader, check_model_name, ensure_model_topic
from streamsvm_kafka.sink import SIZE_ADVICE, KafkaSink
from streamsvm_kafka.topics import TopicEndpoint, read_message_limit
from streamsvm_kafka.transaction import Transaction

logger: logging.Logger = logging.getLogger(__name__)
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
    is one message: its key is the name, its value consists of the bytes of a checkpoint file. Older checkpoints that are kept
    have the name and their number of rows as keys, such as ``rows/000000012345``. They are written and deleted in the transaction
    of the next checkpoint.

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
    keep
        Number of newest checkpoints to keep, at least 1. If it is set, each is written twice. Checkpoints save it: None keeps as
        many as before, at first 1.
    keep_every
        Period in seconds, as in `CheckpointFolder`.

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
    ValueError
        ``keep`` or ``keep_every`` is out of its range.

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
    max_seconds: float | None = None
    _trust_advice = "TopicCheckpoints(..., trusted=True)"
    _default_keep = 1

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
        **retention: Unpack[Retention],
    ) -> None:
        self._set_retention(**retention)
        self._place = f"kafka://{bootstrap}/{topic}"
        self.path = f"{self._place}?name={name}"
        check_model_name(name, self._place)
        self.group: str | None = group
        self._topic, self._name, self._trusted = topic, name, trusted
        self._connection = Connection(bootstrap, client)
        self._seconds = transaction_seconds
        self._copies: list[SavedCheckpoint] | None = None  # the kept ones, newest first; None if they were not requested yet
        ensure_model_topic(self._connection, topic, self._place)
        # Fence other processes before anything is read, so that no newer checkpoint can be missed.
        self._transaction = Transaction(self._connection, f"streamsvm-{topic}-{name}", self.path, transaction_seconds)
        self._transaction.partitions_for(topic)  # so that the first checkpoint need not request them

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
        self.max_seconds = self._seconds / 2.0
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
            saved = SavedCheckpoint(self.path, rows, time.time(), len(data), False, lambda: data)
            self._send_checkpoints({**self._update_copies(saved), self._name: saved})
        except (ModelFileError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{self.path}: the checkpoint was not written: {error}") from error
        offsets = {} if self.group is None else dict(_iter_offsets(position))
        self._transaction.commit(offsets, self.group)
        log_checkpoint(logger, self.path, rows, len(data), time.perf_counter() - start_time)
        return self.path

    def _update_copies(self, new: SavedCheckpoint) -> dict[str, SavedCheckpoint | None]:
        """Return the messages, by key, that accompany the checkpoint ``new`` in its transaction: a copy of it, and None (a
        tombstone) for copies that are no longer to be kept, or that a rollback has set aside and that ``new`` has passed. Return
        an empty dict if only the newest checkpoint is kept.
        """
        if not self._retention:
            return {}
        if self._copies is None:
            with self._open_reader() as reader:
                self._copies = reader.read_history(to_end=True)
        older = [saved for saved in self._copies if saved.rows < new.rows and not saved.is_aside]
        ahead = [saved for saved in self._copies if saved.rows > new.rows]
        kept = [saved._replace(read=bytes) for saved in self._select_kept([new, *older])]  # they need not stay in memory
        deleted = {self._make_key(saved) for saved in self._copies} - {self._make_key(saved) for saved in (*ahead, *kept)}
        self._copies = [*ahead, *kept]
        return {**dict.fromkeys(deleted), self._make_key(new): new}

    def _make_key(self, saved: SavedCheckpoint) -> str:
        return f"{self._name}/{saved.rows:012d}"

    def _send_checkpoints(self, messages: Mapping[str, SavedCheckpoint | None]) -> None:
        """Send messages to the model topic, by key: each is a checkpoint with its time, or None for a tombstone."""
        for key, saved in messages.items():
            value, timestamp = (None, None) if saved is None else (saved.read(), round(1000.0 * saved.time))
            self._transaction.send_messages(self._topic, [value], [key.encode()], 0, timestamps=[timestamp])

    def _open_reader(self) -> contextlib.closing[ModelReader]:
        return contextlib.closing(ModelReader(self._connection, self._topic, self._name, self._place))

    def roll_back(self, target: SavedCheckpoint) -> None:
        """Make ``target``, from `FollowedTopic.history`, the newest checkpoint of this model, from which the next run continues.
        This is one transaction, and other processes that write checkpoints of this name have been fenced.

        The checkpoint that was the newest one stays in the topic, with its number of rows in the key, as do others that are later
        than ``target``. To undo it, roll back to one of them. Predictions in topics, and offsets of consumer groups, stay as they
        are.

        Raises
        ------
        CheckpointError
            ``target`` is damaged, or the transaction was not committed.
        """
        target.load()
        with self._open_reader() as reader:
            newest = next((saved for saved in reader.read_history(to_end=True) if not saved.is_aside), target)
            self._send_checkpoints({self._make_key(newest): newest, self._name: target})
        self._transaction.commit({}, None)

    def newest(self) -> Checkpoint | None:
        """Return the newest committed checkpoint of this model in the topic; None if the topic contains no message of the model.

        Raises
        ------
        CheckpointError
            The checkpoint cannot be loaded, or the topic contains messages that are not checkpoints.
        StreamError
            The topic cannot be read.
        """
        with self._open_reader() as reader:
            data = reader.read_newest(to_end=True)
        return None if data is None else self._adopt_retention(read_checkpoint(self.path, self._trusted, data))

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
