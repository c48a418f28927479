"""Transactions of Kafka: messages to several topics, and the offsets of a group, which count together or not at all."""

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
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, missing_right
from streamsvm_kafka.sink import DELIVERY_SECONDS, OTHER_TIMES, RAISE_LIMIT, TIME_ERRORS, Sending

#: The errors by which a broker refuses a producer whose transactional id another one has, or whose transaction it has aborted.
_FENCED = (ProducerFencedError, InvalidProducerEpochError, InvalidTxnStateError)
#: How long a process that begins waits until what the one before it has begun to commit is committed.
BEGIN_SECONDS = 30.0
#: Time to abort a transaction at the end; a broker that does not answer then aborts it by itself, later.
ABORT_SECONDS = 5.0


class Transaction(Sending):
    """A transactional producer, whose transaction begins with the first message.

    There is one producer for each transactional id in a cluster: a new one fences the one before it, whose open transaction is
    aborted, and which can commit nothing more. So whoever makes a `Transaction`, and then reads what is committed, knows that
    nothing is committed behind its back.

    After any failure the transaction is dead: all that follows raises the same error, a CheckpointError, or a TakenOverError if
    another producer has the transactional id, ``identity``. The broker aborts a transaction that is open for so many ``seconds``.
    """

    def __init__(self, connection: Connection, identity: str, name: str, seconds: float) -> None:
        self.name: str = name
        self._identity, self._longest, self._user = identity, seconds, connection.user
        self._topics: dict[str, None] = {}  # that are written to
        self._group = ""
        self._seconds = max(connection.outage_seconds or 0.0, DELIVERY_SECONDS)
        self._began: float | None = None  # when the transaction did; None: there is none
        self._producer = open_producer(connection, self._seconds, identity, seconds)
        try:
            with self._explaining_errors("no transactions can be begun"):
                deadline, begun = time.monotonic() + BEGIN_SECONDS, False
                while not begun:
                    try:
                        self._producer.init_transactions()
                        begun = True
                    except KafkaTimeoutError:  # a commit that was begun goes on, or the broker has just started
                        if time.monotonic() > deadline:
                            raise
        except BaseException:
            self._producer.close(CONNECT_SECONDS)
            raise

    def partitions_of(self, topic: str) -> set[int]:
        """Return the partitions of a topic; CheckpointError if there is none."""
        self._topics[topic] = None
        with self._explaining_errors(f"the topic {topic!r} does not exist and the broker does not create it"):
            return self._producer.partitions_of(topic)

    def _begin_sending(self) -> None:
        if self._began is None:
            self._producer.begin()
            self._began = time.monotonic()

    def commit(self, offsets: Mapping[tuple[str, int], int], group: str | None) -> None:
        """Commit all messages since the last commit, with offsets of a group, by topic and partition, if one is given.

        Nothing was committed where that raises a TakenOverError; of a CheckpointError, the message says whether it is known.
        """
        self.flush()
        if group is not None and offsets:
            self._group = group
            with self._explaining_errors(f"the offsets of the group {group!r} cannot be committed"):
                self._begin_sending()
                self._producer.send_offsets(offsets, group, self._seconds)
        with self._explaining_errors("the transaction was not committed"):
            try:
                self._producer.commit(self._seconds)
            except KafkaTimeoutError as error:
                self._began = None  # what may be committed is not aborted
                self._failure = CheckpointError(
                    f"{self.name}: the broker has not answered for {self._seconds:g} s to the commit of a transaction, "
                    "and it is not known whether it is committed. Start again: the newest checkpoint that is committed decides"
                )
                raise self._failure from error
        self._began = None

    def close(self) -> None:
        """Abort what is not committed, and close the connection."""
        if self._began is not None:
            with contextlib.suppress(KafkaError):  # it is no longer ours, or the broker aborts it later
                self._producer.abort(ABORT_SECONDS)
        self._began = None
        super().close()

    def _explained_error(self, reason: str, error: BaseException) -> Exception:
        self._failure = found = self._found_failure(reason, error)
        return found

    def _found_failure(self, reason: str, error: BaseException) -> CheckpointError:
        # The error may be what came of a lost message, or the other way round.
        causes = [cause for cause in (self._producer.lost, error) if cause is not None]

        def is_among(*kinds: type[BaseException]) -> bool:
            return any(isinstance(cause, kinds) for cause in causes)

        if is_among(*_FENCED):
            open_for = 0.0 if self._began is None else time.monotonic() - self._began
            if open_for >= self._longest:
                return CheckpointError(
                    f"{self.name}: the transaction was open for {open_for:.0f} s, and the broker has aborted it after "
                    f"{self._longest:g} s (or another process has taken over). What it held counts nowhere. Start again: the run "
                    "continues from its newest checkpoint; write one more often"
                )
            return TakenOverError(
                f"{self.name}: another process with the same name writes its checkpoints there now, and this one is fenced: what "
                "it has not committed counts nowhere. Stop one of the two, or give each a name of its own: ?name=..."
            )
        if is_among(InvalidProducerIdMappingError):
            return CheckpointError(
                f"{self.name}: nothing was written for longer than transactional.id.expiration.ms, and the broker has forgotten "
                "who writes here. Start again: the run continues from its newest checkpoint"
            )
        if is_among(MessageSizeTooLargeError):
            return CheckpointError(f"{self.name}: a message is larger than its topic takes ({causes[0]}). {RAISE_LIMIT}")
        if is_among(*TIME_ERRORS):
            return CheckpointError(f"{self.name}: a topic of predictions {OTHER_TIMES}")
        texts = " ".join(map(str, causes))  # some name the topic
        topics = [topic for topic in self._topics if topic in texts] or self._topics
        for cause in causes:
            if right := missing_right(self._user, cause, "Write", *topics, group=self._group, identity=self._identity):
                return CheckpointError(f"{self.name}: {right}")
        return CheckpointError(
            f"{self.name}: {reason}: {self._producer.lost or error}. Check the broker, the limits and access rules of the "
            "topics, then start again from the checkpoint"
        )
