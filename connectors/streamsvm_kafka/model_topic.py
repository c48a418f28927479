"""A model topic: a compacted topic of one partition that holds checkpoints in parts, and how the newest one is found there."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kafka.errors import KafkaError, TopicAlreadyExistsError

from streamsvm.core.warning import warn
from streamsvm.files.container import CorruptFileError, ModelFileError, unpack
from streamsvm.files.messages import shown
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.rows import listed
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.messages import TopicMessage
from streamsvm_kafka.connection import (
    CONNECT_SECONDS,
    BrokerUnreachableError,
    Connection,
    MissingTopicError,
    TopicDescription,
    admin_of,
    describe_topic,
    missing_right,
    topic_setting,
)
from streamsvm_kafka.reader import POLL_SECONDS

#: The most bytes of a part. A broker takes messages of 1 MiB, unless it is told otherwise.
PART_BYTES = 1 << 19
#: The most bytes of a checkpoint, and with it the most parts.
MOST_BYTES = 1 << 30
MOST_PARTS = MOST_BYTES // PART_BYTES

_KEY = re.compile(rb"([a-zA-Z0-9._-]{1,249})/([0-9]{1,6})")
_PART = re.compile(rb"([0-9]{1,6})/([0-9]{1,6})")
_ROWS = re.compile(rb"[0-9]{1,18}")
_DIGEST = re.compile(rb"[0-9a-f]{64}")


class Message(NamedTuple):
    """One message of a model topic."""

    key: bytes  # ``NAME/INDEX``: compaction keeps the newest of each part of a name
    value: bytes
    headers: list[tuple[str, bytes]]  # ``rows`` (of the checkpoint), ``part`` (``INDEX/COUNT``) and ``sha256`` (of the whole)


class Whole(NamedTuple):
    """A checkpoint all parts of which were found."""

    data: bytes
    rows: int
    offset: int  # of the message with which it became whole


class _Part(NamedTuple):
    number: int
    parts: int
    rows: int
    digest: bytes


def messages_of(name: str, rows: int, data: bytes) -> Iterator[Message]:
    """Give the messages that hold the bytes of a checkpoint; ValueError if it is larger than `MOST_BYTES`.

    >>> [message] = messages_of("rows", 17, b"a checkpoint")
    >>> message.key, message.headers[:2]
    (b'rows/0', [('rows', b'17'), ('part', b'0/1')])
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, and a model topic takes checkpoints of up to {MOST_BYTES:,}")
    digest, count = hashlib.sha256(data).hexdigest().encode(), max(-(-len(data) // PART_BYTES), 1)
    for index in range(count):
        headers = [("rows", b"%d" % rows), ("part", b"%d/%d" % (index, count)), ("sha256", digest)]
        yield Message(b"%b/%d" % (name.encode(), index), data[index * PART_BYTES : (index + 1) * PART_BYTES], headers)


def _check_file(data: bytes) -> None:
    """Raise CorruptFileError if the bytes are no file of streamsvm; one of a newer version is."""
    try:
        unpack(data)
    except CorruptFileError:
        raise
    except ModelFileError:
        pass


def name_of(key: Any) -> str | None:
    """Return the name in a message's key; None where the key is of another kind."""
    match = _KEY.fullmatch(key) if isinstance(key, bytes) else None
    return None if match is None else match[1].decode()


def is_part(name: str, key: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bool:
    """Whether a message has a key of the name, or is a part of a checkpoint of any name."""
    of = name_of(key)
    return of is not None and (of == name or _part_of(headers) is not None)


class Assembler:
    """Puts the messages of one name together, in their order.

    Held are the newest whole checkpoint and the parts of the one that is coming, `MOST_BYTES` each at most. Messages of other
    names and other kinds are passed over. Parts of an earlier, longer checkpoint, which compaction leaves behind, belong to none.
    ``check`` raises a CorruptFileError for bytes that are none of a checkpoint. It is not asked for those with another digest.

    >>> assembler = Assembler("rows", lambda data: None)
    >>> for offset, message in enumerate(messages_of("rows", 17, b"a checkpoint")):
    ...     assembler.add(offset, message.key, message.value, message.headers)
    >>> assembler.whole
    Whole(data=b'a checkpoint', rows=17, offset=0)
    """

    def __init__(self, name: str, check: Callable[[bytes], None] = _check_file) -> None:
        self._name, self._check = name.encode(), check
        #: The newest checkpoint that is whole, has the digest that its parts say and passes the check.
        self.whole: Whole | None = None
        #: Why a newer one was passed over; empty where there is none.
        self.complaint: str = ""
        self._count = 0  # parts of the whole one
        self._coming: _Part | None = None
        self._parts: dict[int, bytes] = {}
        self._bytes = 0
        self._alive: set[int] = set()

    @property
    def has_parts(self) -> bool:
        """Whether there is any message of the name that was not deleted."""
        return bool(self._alive)

    @property
    def is_coming(self) -> bool:
        """Whether there are parts of a checkpoint that is not whole yet."""
        return self._coming is not None

    def add(self, offset: int, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> None:
        """Take the next message."""
        match = _KEY.fullmatch(key) if key is not None else None
        if match is None or match[1] != self._name or int(match[2]) >= MOST_PARTS:
            return
        index = int(match[2])
        if value is None:  # deleted
            self._alive.discard(index)
            self._forget_parts()
            if index < self._count:
                self.whole, self._count = None, 0
            return
        self._alive.add(index)
        part = _part_of(headers)
        if part is None or part.number != index:
            self._forget_parts()
            self.complaint = f"the message at offset {offset} is no part of a checkpoint"
            return
        if self._coming is None or part._replace(number=0) != self._coming:
            self._forget_parts()
            self._coming = part._replace(number=0)
        self._bytes += len(value) - len(self._parts.get(index, b""))
        self._parts[index] = value
        if self._bytes > MOST_BYTES:
            self._forget_parts()
            self.complaint = f"the checkpoint at offset {offset} has more than {MOST_BYTES:,} bytes"
        elif len(self._parts) == part.parts:
            self._finish_checkpoint(offset, part)

    def _forget_parts(self) -> None:
        self._coming, self._parts, self._bytes = None, {}, 0

    def _finish_checkpoint(self, offset: int, part: _Part) -> None:
        data = b"".join(self._parts[index] for index in range(part.parts))
        self._forget_parts()
        if hashlib.sha256(data).hexdigest().encode() != part.digest:
            self.complaint = f"the checkpoint that ends at offset {offset} is not as it was written: its SHA-256 is another one"
            return
        try:
            self._check(data)
        except CorruptFileError as error:
            self.complaint = f"the checkpoint that ends at offset {offset} is none: {error}"
            return
        self.whole, self._count, self.complaint = Whole(data, part.rows, offset), part.parts, ""


def _part_of(headers: Iterable[tuple[str, bytes | None]]) -> _Part | None:
    found = {name: value for name, value in headers if isinstance(value, bytes)}
    part, rows = _PART.fullmatch(found.get("part", b"")), _ROWS.fullmatch(found.get("rows", b""))
    digest = _DIGEST.fullmatch(found.get("sha256", b""))
    if part is None or rows is None or digest is None:
        return None
    index, count = int(part[1]), int(part[2])
    return _Part(index, count, int(rows[0]), digest[0]) if index < count <= MOST_PARTS else None


logger: logging.Logger = logging.getLogger(__name__)

#: Messages that are read from the end of a topic at first; if they hold no whole checkpoint, four times as many are, and so on.
TAIL = 64
#: A transaction of another producer hides what comes after it, until its broker has aborted it.
HIDDEN_SECONDS = 90.0
#: The most names of a topic that are told apart.
MOST_NAMES = 10_000
#: A topic is one of something else if so many messages at its end are, or all.
_MOST_OTHERS = 1024
#: Of a topic that is made here. Small segments are compacted soon; a message is measured as it is when readers decompress it.
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 26),
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "uncompressed",
}


class NotWholeError(CheckpointError):
    """A topic holds parts of checkpoints of a name, and no whole one."""


def prepare_topic(connection: Connection, topic: str, name: str) -> None:
    """Make sure that there is a topic for checkpoints, with one partition; warn if more than compaction removes messages.

    It is made if there is none. A CheckpointError says that it cannot be made, or has several partitions.
    """
    try:
        found = describe_topic(connection, topic)
    except MissingTopicError:
        _create_topic(connection, topic, name)
        return
    check_partitions(found, name)
    policy = topic_setting(connection, topic, "cleanup.policy")
    if policy not in (None, "compact"):
        warn(
            f"{name} has cleanup.policy={policy}, so retention can remove the newest checkpoint, and the next run then begins "
            "anew. kafka-configs.sh --alter --entity-type topics --add-config cleanup.policy=compact"
        )


def check_partitions(found: TopicDescription, name: str) -> None:
    """Raise a CheckpointError where a topic has more than one partition."""
    if len(found.partitions) > 1:
        raise CheckpointError(
            f"{name} has {len(found.partitions)} partitions, and the order of checkpoints is that of one: give a topic with one"
        )


def _create_topic(connection: Connection, topic: str, name: str) -> None:
    options = {"num_partitions": 1, "replication_factor": -1, "configs": _CONFIGS}
    try:
        with admin_of(connection) as admin:
            admin.create_topics({topic: options}, timeout_ms=int(1000 * CONNECT_SECONDS), wait_for_metadata=True)
    except TopicAlreadyExistsError:  # by another learner, at the same time
        pass
    except KafkaError as error:
        reason = missing_right(connection.user, error, "Create", topic) or error
        raise CheckpointError(
            f"{name}: there is no such topic, and it cannot be made ({reason}). Make it: kafka-topics.sh --create --topic "
            f"{topic} --partitions 1 --config cleanup.policy=compact"
        ) from error


def cluster_of(connection: Connection) -> str | None:
    """Return the identity of a cluster; None where its brokers do not tell it."""
    try:
        with admin_of(connection) as admin:
            found: str | None = admin.describe_cluster().get("cluster_id")
    except KafkaError as error:
        raise BrokerUnreachableError(f"{connection.bootstrap} does not tell which cluster it is of: {error}") from error
    return found


def one_name(connection: Connection, topic: str, place: str, usual: str | None) -> str | None:
    """Return the name of the only model of a topic, or of several the ``usual`` one; None where there is none.

    A CheckpointError says that there are several, and which one is meant is not clear.
    """
    names: set[str] = set()
    reader = ModelReader(connection, topic, "", place)
    try:
        for message in reader.all():
            if (name := name_of(message.key)) is None:
                continue
            if message.value is not None:
                names.add(name)
            elif message.key is not None and message.key.endswith(b"/0"):  # its other parts are deleted, too
                names.discard(name)
            if len(names) > MOST_NAMES:
                raise CheckpointError(f"{place} has more than {MOST_NAMES:,} names: say which model, ?name=...")
    finally:
        reader.close()
    found = sorted(names)
    if len(found) == 1:
        return found[0]
    if usual in found:
        return usual
    if not found:
        return None
    raise CheckpointError(f"{place} holds the models {listed(found, 10)}: say which one, such as {place}?name={found[0]}")


class ModelReader:
    """Reads the checkpoints of one name from a model topic, committed ones only.

    The newest is looked for from the end of the topic backwards, so that the time does not grow with what compaction has not yet
    removed. Held are one whole checkpoint and the parts of another (`Assembler`).

    ``place`` is the topic in messages. A CheckpointError of a method says that the topic cannot be read, or that another
    producer's transaction hides its end for too long.
    """

    def __init__(self, connection: Connection, topic: str, name: str, place: str) -> None:
        self._connection, self._place, self._name = connection, place, name
        self._topic = topic
        self._consumer = open_consumer(connection, topic, None, fetches=4, many=False)
        self._assembler = Assembler(name)

    def newest(self, truth: bool = False) -> Whole | None:
        """Return the newest whole checkpoint; None where there is none.

        With ``truth``, wait until the end of the topic is not hidden by a transaction of anybody. Who has just fenced all other
        writers of the name, and then reads the truth, misses nothing that was committed. A NotWholeError says that there are
        messages of the name, but no whole checkpoint: to begin anew would lose it. Another CheckpointError says that the topic
        holds something else.
        """
        beginning, end = self._offset_bounds(truth)
        count = TAIL
        while True:
            first = max(beginning, end - count)
            self._assembler, others, last = Assembler(self._name), True, None
            for last in self._read_messages(first, end):
                others = others and not is_part(self._name, last.key, last.headers)
                self._add_message(last)
            if truth and others and last is not None and (first == beginning or count >= _MOST_OTHERS):
                raise CheckpointError(
                    f"{self._place} holds messages that are no checkpoints, such as that at offset {last.offset} with the key "
                    f"{shown(last.key)}: give checkpoints a topic of their own"
                )
            if self._assembler.whole is not None or first == beginning:
                break
            count *= 4
        found, complaint = self._assembler.whole, self._assembler.complaint
        if self._assembler.is_coming and not complaint:  # parts that were written by us are committed together
            complaint = "not all parts of the newest checkpoint are there"
        self._assembler.complaint = ""  # it is told here
        if found is None and self._assembler.has_parts:
            raise NotWholeError(
                f"{self._place} holds parts of a model {self._name!r}, but no whole one{complaint and f': {complaint}'}. Give "
                "another name (?name=...) to start from scratch"
            )
        if found is None and truth and beginning:
            warn(
                f"{self._place} holds no checkpoint of {self._name!r}: if there was one, it was removed with all before offset "
                f"{beginning}, and the run begins anew"
            )
        if complaint:
            warn(f"{self._place}: {complaint}. Continuing from the one before it; predictions since then come again")
        return found

    def newer(self) -> Whole | None:
        """Return the newest whole checkpoint if it has come since the last one that was returned.

        There is no wait for one of which nothing has come yet.
        """
        before, began = self._assembler.whole, time.monotonic()
        # A fetch goes on between two calls. The first message of several is worth a wait for the others.
        messages = self._poll_messages(0.0)
        while messages and time.monotonic() - began < CONNECT_SECONDS:
            for message in messages:
                self._add_message(message)
            messages = self._poll_messages(POLL_SECONDS if self._assembler.is_coming else 0.0)
        if self._assembler.complaint:
            warn(f"{self._place}: {self._assembler.complaint}: the model before it stays")
            self._assembler.complaint = ""
        return None if self._assembler.whole is before else self._assembler.whole

    def all(self) -> Iterator[TopicMessage]:
        """Give all messages of the topic."""
        yield from self._read_messages(*self._offset_bounds(truth=False))

    def _add_message(self, message: TopicMessage) -> None:
        self._assembler.add(message.offset, message.key, message.value, message.headers)

    def _offset_bounds(self, truth: bool) -> tuple[int, int]:
        """Return the first offset and the one behind the last; with ``truth`` also behind transactions that are open."""
        reader = self._consumer
        with self._explaining_errors():
            if truth:
                reader = open_consumer(
                    self._connection, self._topic, None, fetches=1, many=False, isolation_level="read_uncommitted"
                )
            try:
                beginnings, ends = reader.bounds([0])
            finally:
                if truth:
                    reader.close(CONNECT_SECONDS)
        return beginnings[0], ends[0]

    def _read_messages(self, first: int, end: int) -> Iterator[TopicMessage]:
        """Give the messages from ``first`` to ``end``, and those that come with them."""
        self._consumer.assign({0: first})
        reached, since, told = first, time.monotonic(), False
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
                    "transaction of another producer is open there, or the broker is ill. Look for it: kafka-transactions.sh list"
                )
            if silent > CONNECT_SECONDS and not told:
                told = True
                logger.warning("%s: waiting for the end of a transaction of another producer", self._place)

    def _poll_messages(self, seconds: float) -> Sequence[TopicMessage]:
        with self._explaining_errors():
            return self._consumer.poll(seconds).get(0, ())

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            right = missing_right(self._connection.user, error, "Read", self._topic)
            reason = right or f"it cannot be read: {error}. Check the broker and its access rules"
            raise CheckpointError(f"{self._place}: {reason}") from error

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close(CONNECT_SECONDS)
