"""The messages of a model topic: a checkpoint in parts that a broker takes, and what a reader makes of them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from streamsvm.files.container import CorruptError, NewerError, unpack

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
    """CorruptError if the bytes are no file of streamsvm; one of a newer version is."""
    with contextlib.suppress(NewerError):
        unpack(data)


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
    ``check`` raises a CorruptError for bytes that are none of a checkpoint. It is not asked for those with another digest.

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
            self._forget()
            if index < self._count:
                self.whole, self._count = None, 0
            return
        self._alive.add(index)
        part = _part_of(headers)
        if part is None or part.number != index:
            self._forget()
            self.complaint = f"the message at offset {offset} is no part of a checkpoint"
            return
        if self._coming is None or part._replace(number=0) != self._coming:
            self._forget()
            self._coming = part._replace(number=0)
        self._bytes += len(value) - len(self._parts.get(index, b""))
        self._parts[index] = value
        if self._bytes > MOST_BYTES:
            self._forget()
            self.complaint = f"the checkpoint at offset {offset} has more than {MOST_BYTES:,} bytes"
        elif len(self._parts) == part.parts:
            self._finish(offset, part)

    def _forget(self) -> None:
        self._coming, self._parts, self._bytes = None, {}, 0

    def _finish(self, offset: int, part: _Part) -> None:
        data = b"".join(self._parts[index] for index in range(part.parts))
        self._forget()
        if hashlib.sha256(data).hexdigest().encode() != part.digest:
            self.complaint = f"the checkpoint that ends at offset {offset} is not as it was written: its SHA-256 is another one"
            return
        try:
            self._check(data)
        except CorruptError as error:
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
