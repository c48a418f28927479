"""Model topics: compacted topics with one partition, whose messages are checkpoints. Finds the newest checkpoint."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial

from kafka.errors import KafkaError, TopicAlreadyExistsError

from streamsvm.core.checks import validate_count
from streamsvm.core.warning import warn
from streamsvm.files.container import CorruptFileError, ModelFileError, unpack_container
from streamsvm.files.messages import short_repr
from streamsvm.stream.checkpoint import CheckpointError, CorruptCheckpointError, SavedCheckpoint, read_checkpoint
from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.messages import TopicMessage
from streamsvm_kafka.connection import CONNECT_SECONDS, Connection, MissingTopicError, TopicDescription, describe_missing_right
from streamsvm_kafka.reader import POLL_SECONDS
from streamsvm_kafka.topics import connect_admin, describe_topic, read_topic_config

#: Maximum size of a checkpoint, which is a single message.
MAX_CHECKPOINT_BYTES = 1 << 26
_MODEL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_model_name(name: str, place: str) -> None:
    """Raise a CheckpointError if ``name``, the name of a model in a topic of checkpoints, has other characters than letters,
    digits and "._-" or is too long. ``place`` is the topic's URL for the message.
    """
    if not _MODEL_NAME.fullmatch(name):
        raise CheckpointError(f"{place}: {name!r} is not a valid model name: use up to 249 letters, digits, '.', '_' and '-'")


def find_checkpoint_fault(value: bytes) -> str:
    """Return why a message's ``value`` is not an intact checkpoint file (damaged, or other data); "" if it is intact, also if a
    newer version of streamsvm wrote it.
    """
    try:
        unpack_container(value)
    except ModelFileError as error:
        return str(error) if isinstance(error, CorruptFileError) else ""
    return ""


class NewestCheckpoint:
    """Finds the newest checkpoint of one model among the messages of a topic. Add all messages in order of their offsets.

    >>> newest = NewestCheckpoint("rows")
    >>> newest.add_message(7, b"rows", b"garbage")
    >>> newest.data, newest.skip_reason
    (None, 'the message at offset 7 is not a checkpoint: it is cut off, or not a file of streamsvm')
    """

    def __init__(self, name: str) -> None:
        self._key = name.encode()
        #: The newest checkpoint; None if no checkpoint was added, or the last one was deleted (a tombstone).
        self.data: bytes | None = None
        #: Why a newer message with the model's name was skipped; empty if none was.
        self.skip_reason: str = ""

    def add_message(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Process the next message of the topic: if its key is the model's name, its value becomes the newest checkpoint, or a
        damaged value is skipped. A null value (tombstone) deletes the checkpoint.
        """
        if key != self._key:
            return
        if value is not None and (fault := find_checkpoint_fault(value)):
            self.skip_reason = f"the message at offset {offset} is not a checkpoint: {fault}"
        else:
            self.data, self.skip_reason = value, ""


logger: logging.Logger = logging.getLogger(__name__)

#: Number of messages to read from the end of a topic at first. If they contain no checkpoint, four times as many are read.
FIRST_TAIL_MESSAGES = 4
#: Maximum wait for another producer's open transaction, which hides all later messages.
OPEN_TRANSACTION_SECONDS = 90.0
#: A topic is refused as a model topic if this many messages at its end are not checkpoints.
_MAX_OTHER_MESSAGES = 1024
#: Configuration of a new topic. Small segments are compacted soon. Without compression, the broker's limit of a message also
#: limits the memory of its readers.
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 26),
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "uncompressed",
    "max.message.bytes": str(MAX_CHECKPOINT_BYTES + (1 << 16)),
}


def ensure_model_topic(connection: Connection, topic: str, name: str) -> None:
    """Create ``topic``, for checkpoints of models, if it does not exist. If it exists, check that it has one partition, and warn
    if its cleanup policy can remove the newest checkpoint.

    Raise a CheckpointError if it cannot be created, or has several partitions. ``name`` is the topic in messages.
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
            f"{name} has cleanup.policy={policy}, so retention can remove the newest checkpoint, and the next run then starts "
            "from scratch. Set cleanup.policy=compact for the topic"
        )


def check_single_partition(description: TopicDescription, name: str) -> None:
    """Raise a CheckpointError if a topic has more than one partition, as checkpoints are only ordered within a partition.
    ``name`` is the topic's URL for the message.
    """
    if len(description.partitions) > 1:
        raise CheckpointError(
            f"{name} has {len(description.partitions)} partitions, and checkpoints are ordered only within one: give a topic "
            "with one partition"
        )


def _create_topic(connection: Connection, topic: str, name: str) -> None:
    """Create a compacted topic with one partition for checkpoints, and wait until it has a leader. Raise a CheckpointError if
    that fails; ``name`` is the topic's URL for the message.
    """
    try:
        with connect_admin(connection) as admin:
            admin.create_topic(topic, _TOPIC_CONFIG)
        describe_topic(connection, topic)  # waits until the topic has a leader
    except TopicAlreadyExistsError:  # another learner has created it at the same time
        pass
    except KafkaError as error:
        reason = describe_missing_right(connection.user, error, "Create", topic) or error
        raise CheckpointError(
            f"{name}: the topic does not exist, and cannot be created ({reason}). Create it with one partition, "
            "cleanup.policy=compact, and a max.message.bytes that is larger than a checkpoint"
        ) from error


@functools.cache  # a run reads its checkpoints twice
def _warn_once(text: str) -> None:
    logger.warning(text)


class ModelReader:
    """Reads committed checkpoints of one model from a model topic.

    The newest one is searched from the end of the topic backwards, so that the time does not grow with the messages that are not
    compacted yet. ``place`` is the topic in messages. Methods raise a StreamError if the topic cannot be read, and a
    CheckpointError if another producer's open transaction hides its end for too long.
    """

    def __init__(self, connection: Connection, topic: str, name: str, place: str) -> None:
        self._connection, self._place, self._name = connection, place, name
        self._topic, self._path = topic, f"{place}?name={name}"
        self._own_keys = re.compile(re.escape(name.encode()) + rb"(/\d{12,18})?")
        self._consumer = open_consumer(connection, topic, None, max_fetches=4, has_tables=False)
        self._newest: NewestCheckpoint | None = None  # as of the last call of `read_newest` or `read_newer`

    def read_newest(self, to_end: bool = False) -> bytes | None:
        """Search the topic backwards from its end for the newest intact checkpoint of this model, and return its bytes; None if
        the topic contains no message of the model.

        With ``to_end``, wait until no open transaction of any producer hides the end of the topic. A process that has fenced all
        other writers of the model then sees everything that was committed. Raise a CheckpointError if there are messages of
        the model, but no checkpoint, because a new model would overwrite it. With ``to_end``, also raise a CheckpointError if
        the topic contains messages that are not checkpoints.
        """
        beginning, end_offset = self._request_offset_bounds(to_end)
        count = FIRST_TAIL_MESSAGES
        while True:
            start = max(beginning, end_offset - count)
            newest, has_only_others, last, names = NewestCheckpoint(self._name), True, None, set()
            for last in self._read_messages(start, end_offset):
                newest.add_message(last.offset, last.key, last.value)
                is_other = last.key != self._name.encode() and (last.value is None or bool(find_checkpoint_fault(last.value)))
                has_only_others = has_only_others and is_other
                if not is_other and last.key != self._name.encode():
                    names.add((last.key or b"").partition(b"/")[0].decode(errors="replace"))
            if to_end and has_only_others and last is not None and (start == beginning or count >= _MAX_OTHER_MESSAGES):
                raise CheckpointError(
                    f"{self._place} holds messages that are not checkpoints, such as that at offset {last.offset} with the key "
                    f"{short_repr(last.key)}: give checkpoints a topic of their own"
                )
            if newest.data is not None or start == beginning:
                break
            count *= 4
        self._newest = newest
        skip_reason, newest.skip_reason = newest.skip_reason, ""  # it is reported below
        if newest.data is None and skip_reason:
            raise CheckpointError(
                f"{self._place} holds messages of a model {self._name!r}, but no checkpoint: {skip_reason}. Give another name "
                "(?name=...), and --start-from STATE if there is a copy"
            )
        names = {name for name in names if re.sub(r"-\d+$", "", name) != re.sub(r"-\d+$", "", self._name)}  # not of partitions
        if newest.data is None and to_end and names:  # perhaps the source, which gives the model its name, was renamed
            _warn_once(f"{self._place} has other models. To continue one, give ?name={' or ?name='.join(sorted(names)[:5])}")
        if newest.data is None and to_end and beginning:
            warn(
                f"{self._place} holds no checkpoint of {self._name!r}: if there was one, it was removed with all before offset "
                f"{beginning}, and a new model begins. If there is a copy of the checkpoint: --start-from STATE"
            )
        if skip_reason:
            warn(f"{self._place}: {skip_reason}. Continuing from the one before it; predictions since then come again")
        return newest.data

    def read_newer(self) -> bytes | None:
        """Return the bytes of the newest checkpoint of this model if it has changed since the last call of this method or
        `read_newest`, else None. This does not wait for messages, except in the first call.
        """
        if self._newest is None:
            return self.read_newest()
        last_data, start_time = self._newest.data, time.monotonic()
        while (messages := self._poll_messages(0.0)) and time.monotonic() - start_time < CONNECT_SECONDS:
            for message in messages:
                self._newest.add_message(message.offset, message.key, message.value)
        if self._newest.skip_reason:
            warn(f"{self._place}: {self._newest.skip_reason}: the earlier model stays")
            self._newest.skip_reason = ""
        return None if self._newest.data is last_data else self._newest.data

    def read_history(self, to_end: bool = False) -> list[SavedCheckpoint]:
        """List the checkpoints of this model, newest first: the one with the key NAME, and older ones that are kept with keys
        such as NAME/000000012345, or that a rollback has set aside. Their ``read`` works until this reader is closed. ``to_end``
        is as in `read_newest`.
        """
        history: dict[bytes, SavedCheckpoint] = {}
        for message in self._read_messages(*self._request_offset_bounds(to_end)):
            if message.key is None or not self._own_keys.fullmatch(message.key):
                continue
            if message.value is None:
                history.pop(message.key, None)
                continue
            with contextlib.suppress(CorruptCheckpointError, ValueError):  # `read_newest` skips it, too
                rows = validate_count("rows", read_checkpoint(self._path, None, message.value).header.get("rows"))
                read, time_written = partial(self._read_value, message.offset), message.timestamp / 1000
                history[message.key] = SavedCheckpoint(self._path, rows, time_written, len(message.value), False, read)
        newest = history.pop(self._name.encode(), None)
        n_rows = -1 if newest is None else newest.rows
        copies = [saved._replace(is_aside=saved.rows > n_rows) for saved in history.values() if saved.rows != n_rows]
        return sorted([*copies, *filter(None, [newest])], key=lambda saved: saved.rows, reverse=True)

    def _read_value(self, offset: int) -> bytes:
        """Read the value of the message at ``offset``. Raise a CheckpointError if it was compacted."""
        message = next(self._read_messages(offset, offset + 1))
        if message.offset != offset or message.value is None:
            raise CheckpointError(f"{self._path}: the checkpoint has just been replaced: start again")
        return message.value

    def _request_offset_bounds(self, to_end: bool) -> tuple[int, int]:
        """Request and return the first offset of the topic's only partition, and its end offset. The end includes messages of
        transactions that are still open if ``to_end`` is True.
        """
        consumer = self._consumer
        with self._converting_errors():
            if to_end:
                consumer = open_consumer(
                    self._connection, self._topic, None, max_fetches=1, has_tables=False, isolation_level="read_uncommitted"
                )
            try:
                beginnings, ends = consumer.beginning_and_end_offsets([0])
            finally:
                if to_end:
                    consumer.close(CONNECT_SECONDS)
        return beginnings[0], ends[0]

    def _read_messages(self, start: int, end_offset: int) -> Iterator[TopicMessage]:
        """Yield the committed messages of the topic from offset ``start`` to at least before ``end_offset``; later ones that the
        same poll returns are also yielded. Raise a CheckpointError if an open transaction delays them for 90 s.
        """
        self._consumer.assign({0: start})
        position, last_progress, has_warned = start, time.monotonic(), False
        while position < end_offset:
            yield from self._poll_messages(POLL_SECONDS)
            with self._converting_errors():
                new_position = self._consumer.position(0)
            if new_position is not None and new_position > position:
                position, last_progress = new_position, time.monotonic()
            silent_seconds = time.monotonic() - last_progress
            if silent_seconds > OPEN_TRANSACTION_SECONDS:
                raise CheckpointError(
                    f"{self._place}: nothing after offset {position} can be read for {silent_seconds:.0f} s, and it ends at "
                    f"{end_offset}: a transaction of another producer is open there, or the broker has a problem"
                )
            if silent_seconds > CONNECT_SECONDS and not has_warned:
                has_warned = True
                logger.warning("%s: waiting for the end of a transaction of another producer", self._place)

    def _poll_messages(self, seconds: float) -> Sequence[TopicMessage]:
        """Return newly fetched messages of the topic; empty if none arrives within ``seconds``."""
        with self._converting_errors():
            return self._consumer.poll(seconds).get(0, ())

    @contextlib.contextmanager
    def _converting_errors(self) -> Iterator[None]:
        """Within a ``with`` block, convert errors of the Kafka consumer to a StreamError with the topic and advice."""
        try:
            yield
        except KafkaError as error:
            right = describe_missing_right(self._connection.user, error, "Read", self._topic)
            reason = right or f"it cannot be read: {error}. Check the broker and its access rules"
            raise StreamError(f"{self._place}: {reason}") from error

    def close(self) -> None:
        """Close the consumer's connection to the broker."""
        self._consumer.close(CONNECT_SECONDS)
