"""Where a topic is read from when no checkpoint says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from streamsvm.stream.endpoints import StreamError

__all__ = ["Start", "parse_start", "start_of"]

_OFFSET = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)
_FORMS = "earliest, latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET such as 0:1500,1:1498"


class Start(NamedTuple):
    """The first message to read of each partition."""

    text: str
    """As it was given."""
    kind: str
    """``"earliest"``, ``"latest"``, ``"time"`` or ``"offsets"``."""
    milliseconds: int = 0
    """Of a time: since 1970, UTC. The first message that is not older."""
    offsets: Mapping[int, int] = MappingProxyType({})
    """By partition; those that are not named are read from their beginning."""


def parse_start(text: str) -> Start:
    """Return what ``earliest``, ``latest``, a time (ISO 8601; UTC if it names no zone) or ``PARTITION:OFFSET,...`` stands for.

    Raises
    ------
    ValueError
        The text is none of these.

    Examples
    --------
    >>> parse_start("0:1500,1:1498").offsets
    {0: 1500, 1: 1498}
    >>> parse_start("2026-03-01").milliseconds
    1772323200000
    """
    if text in ("earliest", "latest"):
        return Start(text, text)
    found = [_OFFSET.fullmatch(part.strip()) for part in text.split(",")]
    pairs = [(int(match[1]), int(match[2])) for match in found if match is not None]
    if len(pairs) == len(found):
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"{text!r} names a partition twice")
        return Start(text, "offsets", offsets=dict(pairs))
    try:
        time = datetime.fromisoformat(text)
        moment = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        moment = -1.0
    if moment < 0.0:
        raise ValueError(f"{text!r} is none of {_FORMS}")
    return Start(text, "time", int(1000 * moment))


def start_of(text: str | None, name: str) -> Start | None:
    """Return what `parse_start` finds for a stream, None for None; StreamError if it finds nothing."""
    try:
        return None if text is None else parse_start(text)
    except ValueError as error:
        raise StreamError(f"{name}: {error}") from None
