"""Writes log records as lines of JSON, and removes secrets from them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

#: Loggers of this library and its connectors, which get the requested level.
_OWN_LOGGERS = "streamsvm", "streamsvm_kafka"
#: Client libraries that also get the level DEBUG. Others do not: numba would log each instruction that it compiles.
_CLIENT_LOGGERS = ("kafka", "confluent_kafka")


class RedactingFilter(logging.Filter):
    """Removes secrets from log records.

    If the message, arguments, fields or traceback of a record contain a secret, they are replaced by a note. Add the filter to a
    handler, because a filter of a logger does not get the records of other loggers.

    >>> filter = RedactingFilter()
    >>> filter.add("hunter2")
    >>> record = logging.makeLogRecord({"msg": "connecting with %r", "args": ("hunter2",)})
    >>> filter.filter(record), record.getMessage()
    (True, '(not shown, as it holds a secret)')
    """

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()

    def add(self, secret: str) -> None:
        """Add a secret, such as a password, that this filter removes from log records: as plain text, and as Python's repr or
        JSON would write it.
        """
        plain = "".join(secret)
        if plain:
            self._secrets |= {plain, repr(plain)[1:-1], repr(plain.encode())[2:-1], json.dumps(plain)[1:-1]}

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - wrong arguments, which the handler reports
            text = f"{record.msg} {record.args}"
        if fields := getattr(record, "fields", None):
            text += f"\n{fields}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        if any(secret in text for secret in self._secrets):
            record.msg, record.args, record.exc_info, record.exc_text = "(not shown, as it holds a secret)", (), None, None
            record.__dict__.pop("fields", None)
        return True


#: The filter of this process. Code that receives a secret adds it.
redacting_filter: RedactingFilter = RedactingFilter()


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, and its fields.

    Fields are those of ``extra={"fields": {...}}`` (see `event`). ``error`` is the traceback of an exception. NaN and infinity
    become null.

    >>> record = logging.makeLogRecord(
    ...     {"msg": "row %d", "args": (7,), "created": 0.25, "levelname": "INFO", "name": "streamsvm", "fields": {"rows": 7}}
    ... )
    >>> print(JSONFormatter().format(record))
    {"time": "1970-01-01T00:00:00.250Z", "level": "info", "logger": "streamsvm", "message": "row 7", "rows": 7}
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        line |= {name: _replace_nonfinite(value) for name, value in fields.items() if name not in line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, allow_nan=False, default=str)


def _replace_nonfinite(value: Any) -> Any:
    """Return a value with all NaNs and infinities replaced by None, also within mappings and lists, so that it can be written as
    JSON.
    """
    if isinstance(value, Mapping):
        return {str(name): _replace_nonfinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Return a dict to pass as ``extra`` to a logger's method, so that the record has the event's ``name`` and its ``fields``.
    `log_as_json` writes them as JSON.

    >>> logging.getLogger("streamsvm").info("a checkpoint was written", extra=event("checkpoint", rows=5000))
    """
    return {"fields": {"event": name, **fields}}


def log_checkpoint(logger: logging.Logger, path: str, rows: int, size: int, seconds: float) -> None:
    """Log that a checkpoint was written to ``path``, after ``rows`` rows of the stream, with ``size`` bytes, in ``seconds``."""
    fields = event("checkpoint", path=path, rows=rows, seconds=round(seconds, 6), bytes=size)
    logger.info("checkpoint after %d rows, %d bytes in %.3f s: %s", rows, size, seconds, path, extra=fields)


@contextmanager
def log_as_json(stream: TextIO, level: str = "info") -> Iterator[None]:
    """Return a context manager. Within its context, log records are written to ``stream`` as one line of JSON each, without
    secrets. ``level`` is the minimum level of the records, such as ``"info"``.

    ``level`` is the minimum level of the records of this library and its connectors: ``"debug"``, ``"info"``, ``"warning"`` or
    ``"error"``. Other loggers keep their level, but with ``"debug"``, Kafka's client libraries log everything.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    handler.addFilter(redacting_filter)
    minimum: int = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(minimum)
    root = logging.getLogger()
    levels = {logging.getLogger(name): minimum for name in _OWN_LOGGERS}
    if minimum == logging.DEBUG:
        levels |= {logging.getLogger(name): minimum for name in _CLIENT_LOGGERS}
    old_levels = {logger: logger.level for logger in levels}
    for logger, new in levels.items():
        logger.setLevel(new)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, old in old_levels.items():
            logger.setLevel(old)
