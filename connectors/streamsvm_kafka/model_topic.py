"""A model topic: a compacted topic of one partition with a message for each checkpoint, and how the newest one is found there."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Sequence

from kafka.errors import KafkaError, TopicAlreadyExistsError

from streamsvm.core.warning import warn
from streamsvm.files.container import CorruptFileError, ModelFileError, unpack_container
from streamsvm.files.messages import short_repr
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.messages import TopicMessage
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, MissingTopicError, TopicDescription, describe_missing_right
from streamsvm_kafka.reader import POLL_SECONDS
from streamsvm_kafka.topics import connect_admin, describe_topic, read_topic_config

#: The largest checkpoint: one message.
MAX_CHECKPOINT_BYTES = 1 << 26
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_model_name(name: str, place: str) -> None:
    """Raise a CheckpointError if a model cannot have this name in a model topic."""
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{place}: {name!r} is no name of a model: up to 249 letters, digits, '.', '_' and '-' are")


def find_checkpoint_fault(value: bytes) -> str:
    """Return why bytes are not a checkpoint, which contains its own digest; "" for a checkpoint, also of a newer version."""
    try:
        unpack_container(value)
    except CorruptFileError as error:
        return str(error)
    except ModelFileError:
        return ""
    return ""


class NewestCheckpoint:
    """Finds the newest checkpoint of one name among the messages of a topic, added in order. Other names are passed over.

    >>> newest = NewestCheckpoint("rows")
    >>> newest.add_message(7, b"rows", b"garbage")
    >>> newest.data, newest.skip_reason
    (None, 'the message at offset 7 is not a checkpoint: it is cut off, or not a file of streamsvm')
    """

    def __init__(self, name: str) -> None:
        self._key = name.encode()
        #: The newest checkpoint; None where there is none, or it was deleted.
        self.data: bytes | None = None
        #: Why a newer message was passed over; empty where there is none.
        self.skip_reason: str = ""

    def add_message(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Add the next message."""
        if key != self._key:
            return
        if value is None:
            self.data, self.skip_reason = None, ""
        elif fault := find_checkpoint_fault(value):
            self.skip_reason = f"the message at offset {offset} is not a checkpoint: {fault}"
        else:
            self.data, self.skip_reason = value, ""


logger: logging.Logger = logging.getLogger(__name__)

#: Number of messages that are read from the end of a topic at first; if they hold no checkpoint, four times as many, and so on.
TAIL = 4
#: Seconds to wait for another producer's open transaction, which hides all messages behind its beginning.
HIDDEN_SECONDS = 90.0
#: Number of messages at the end of a topic without a checkpoint after which the topic is taken for one of something else.
_MAX_OTHERS = 1024
#: Settings of a topic that is created here. Small segments are compacted soon. Without compression, the broker bounds what a
#: message takes in its readers.
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 26),
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "uncompressed",
    "max.message.bytes": str(MAX_CHECKPOINT_BYTES + (1 << 16)),
}


class NoCheckpointError(CheckpointError):
    """A topic holds messages with the name of a model, but no checkpoint."""


def ensure_model_topic(connection: Connection, topic: str, name: str) -> None:
    """Make sure that there is a topic for checkpoints, with one partition; warn if more than compaction removes messages.

    Create the topic if it does not exist. Raise a CheckpointError if that fails, or the topic has several partitions.
    """
    try:
        description = describe_topic(connection, topic)
    except MissingTopicError:
        _create_topic(connection, topic, name)
        return
    check_single_partition(description, name)
    policy = read_topic_config(connection, topic, "cleanup.policy")
    if policy not in (None, "compact"):
        warn(
            f"{name} has cleanup.policy={policy}, so retention can remove the newest checkpoint, and the next run then begins "
            "anew. Set cleanup.policy=compact for the topic"
        )


def check_single_partition(description: TopicDescription, name: str) -> None:
    """Raise a CheckpointError where a topic has more than one partition."""
    if len(description.partitions) > 1:
        raise CheckpointError(
            f"{name} has {len(description.partitions)} partitions, and the order of checkpoints is that of one: give a topic "
            "with one"
        )


def _create_topic(connection: Connection, topic: str, name: str) -> None:
    try:
        with connect_admin(connection) as admin:
            admin.create_topic(topic, _SETTINGS)
        describe_topic(connection, topic)  # which waits until it has a leader
    except TopicAlreadyExistsError:  # by another learner, at the same time
        pass
    except KafkaError as error:
        reason = describe_missing_right(connection.user, error, "Create", topic) or error
        raise CheckpointError(
            f"{name}: there is no such topic, and it cannot be created ({reason}). Create it with one partition, "
            "cleanup.policy=compact, and a max.message.bytes that is larger than a checkpoint"
        ) from error


class ModelReader:
    """Reads the checkpoints of one name from a model topic, committed ones only.

    The newest is looked for from the end of the topic backwards, so that the time does not grow with what compaction has not yet
    removed. ``place`` is the topic in messages. Methods raise a CheckpointError if the topic cannot be read, or if another
    producer's transaction hides its end for too long.
    """

    def __init__(self, connection: Connection, topic: str, name: str, place: str) -> None:
        self._connection, self._place, self._name = connection, place, name
        self._topic = topic
        self._consumer = open_consumer(connection, topic, None, max_fetches=4, has_tables=False)
        self._newest = NewestCheckpoint(name)

    def read_newest(self, to_end: bool = False) -> bytes | None:
        """Return the newest checkpoint; None if there is none.

        With ``to_end``, wait until no open transaction of anybody hides the end of the topic. A process that has just fenced all
        other writers of the name then misses nothing that was committed. Raise a NoCheckpointError if there are messages with the
        name, but no checkpoint, because to begin anew would lose it, and another CheckpointError if the topic holds something
        else.
        """
        beginning, end = self._offset_bounds(to_end)
        count = TAIL
        while True:
            first = max(beginning, end - count)
            newest, is_other, last = NewestCheckpoint(self._name), True, None
            for last in self._read_messages(first, end):
                newest.add_message(last.offset, last.key, last.value)
                is_other = (
                    is_other
                    and last.key != self._name.encode()
                    and (last.value is None or bool(find_checkpoint_fault(last.value)))
                )
            self._newest = newest
            if to_end and is_other and last is not None and (first == beginning or count >= _MAX_OTHERS):
                raise CheckpointError(
                    f"{self._place} holds messages that are not checkpoints, such as that at offset {last.offset} with the key "
                    f"{short_repr(last.key)}: give checkpoints a topic of their own"
                )
            if newest.data is not None or first == beginning:
                break
            count *= 4
        skip_reason, newest.skip_reason = newest.skip_reason, ""  # it is reported here
        if newest.data is None and skip_reason:
            raise NoCheckpointError(
                f"{self._place} holds messages of a model {self._name!r}, but no checkpoint: {skip_reason}. Give another name "
                "(?name=...) to start from scratch"
            )
        if newest.data is None and to_end and beginning:
            warn(
                f"{self._place} holds no checkpoint of {self._name!r}: if there was one, it was removed with all before offset "
                f"{beginning}, and the run begins anew"
            )
        if skip_reason:
            warn(f"{self._place}: {skip_reason}. Continuing from the one before it; predictions since then come again")
        return newest.data

    def read_newer(self) -> bytes | None:
        """Return the newest checkpoint if it has come since the last one that was returned. This does not wait."""
        before, began = self._newest.data, time.monotonic()
        while (messages := self._poll_messages(0.0)) and time.monotonic() - began < CONNECT_SECONDS:
            for message in messages:
                self._newest.add_message(message.offset, message.key, message.value)
        if self._newest.skip_reason:
            warn(f"{self._place}: {self._newest.skip_reason}: the model before it stays")
            self._newest.skip_reason = ""
        return None if self._newest.data is before else self._newest.data

    def _offset_bounds(self, to_end: bool) -> tuple[int, int]:
        """Return the first offset and the one behind the last; with ``to_end``, of messages in open transactions, too."""
        reader = self._consumer
        with self._explaining_errors():
            if to_end:
                reader = open_consumer(
                    self._connection, self._topic, None, max_fetches=1, has_tables=False, isolation_level="read_uncommitted"
                )
            try:
                beginnings, ends = reader.beginning_and_end_offsets([0])
            finally:
                if to_end:
                    reader.close(CONNECT_SECONDS)
        return beginnings[0], ends[0]

    def _read_messages(self, first: int, end: int) -> Iterator[TopicMessage]:
        """Give the messages from ``first`` to ``end``, and those that come with them."""
        self._consumer.assign({0: first})
        reached, since, has_warned = first, time.monotonic(), False
        while reached < end:
            yield from self._poll_messages(POLL_SECONDS)
            with self._explaining_errors():
                position = self._consumer.position(0)
            if position is not None and position > reached:
                reached, since = position, time.monotonic()
            silent = time.monotonic() - since
            if silent > HIDDEN_SECONDS:
                raise CheckpointError(
                    f"{self._place}: nothing after offset {reached} can be read for {silent:.0f} s, and it ends at {end}: a "
                    "transaction of another producer is open there, or the broker is ill"
                )
            if silent > CONNECT_SECONDS and not has_warned:
                has_warned = True
                logger.warning("%s: waiting for the end of a transaction of another producer", self._place)

    def _poll_messages(self, seconds: float) -> Sequence[TopicMessage]:
        with self._explaining_errors():
            return self._consumer.poll(seconds).get(0, ())

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            right = describe_missing_right(self._connection.user, error, "Read", self._topic)
            reason = right or f"it cannot be read: {error}. Check the broker and its access rules"
            raise CheckpointError(f"{self._place}: {reason}") from error

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close(CONNECT_SECONDS)
