"""Transactions of a Kafka producer: messages and offsets become visible together, or not at all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
)

from streamsvm.stream.checkpoint import CheckpointError, TakenOverError
from streamsvm_kafka.clients import open_producer
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, describe_missing_right, retry_with_backoff
from streamsvm_kafka.sink import DELIVERY_SECONDS, REFUSED_TIMESTAMPS, SIZE_ADVICE, TIMESTAMP_ERRORS, MessageSender

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
        self._transactional_id, self._max_seconds, self._connection = transactional_id, seconds, connection
        self._topics: dict[str, None] = {}  # in the order of their first messages
        self._group = ""
        self._seconds = max(connection.outage_seconds or 0.0, DELIVERY_SECONDS)
        self._begin_time: float | None = None  # of the open transaction; None if no transaction is open
        self._producer = open_producer(connection, self._seconds, transactional_id, seconds)
        try:
            with self._converting_errors("no transactions can be begun"):
                # It times out while a commit is unfinished, or if the broker has just started.
                retry_with_backoff(self._producer.init_transactions, (KafkaTimeoutError,), INIT_TRANSACTIONS_SECONDS)
        except BaseException:
            self._producer.close(CONNECT_SECONDS)
            raise

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of ``topic``, to which this producer will send messages. Raise a CheckpointError if the
        topic does not exist and the broker does not create it.
        """
        self._topics[topic] = None
        with self._converting_errors(f"the partitions of the topic {topic!r} are not known"):
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
                reason = self._describe_missing_topic() or (
                    f"the broker has not answered for {self._seconds:g} s to the commit of a transaction, and it is not known "
                    "whether it is committed"
                )
                advice = "Start again: the run continues from the newest committed checkpoint"
                self._failure = CheckpointError(f"{self.name}: {reason}. {advice}")
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
                self._connection.user, cause, "Write", *topics, group=self._group, transactional_id=self._transactional_id
            ):
                return CheckpointError(f"{self.name}: {right}")
        return CheckpointError(
            f"{self.name}: {reason}: {self._producer.delivery_error or error}. Check the broker, the limits and access rules of "
            "the topics, then start again from the checkpoint"
        )
