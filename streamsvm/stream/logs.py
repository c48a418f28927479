"""Log records as lines of JSON, in which no secret is shown."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

#: Loggers whose level is the one that is asked for; others tell warnings only, or all if that is DEBUG.
_OWN = "streamsvm", "streamsvm_kafka"
#: Clients that may tell all they do. Others, such as numba, would tell every instruction that they compile.
_CLIENTS = ("kafka", "confluent_kafka")


class RedactingFilter(logging.Filter):
    """Leaves secrets out of log records.

    A record whose message, arguments, fields or traceback hold one loses them all: what is left says so, at the same time, level
    and logger. A filter of a logger is asked for the records of that logger only, one of a handler for all that it writes.

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
        """Leave a text out from now on, as it is, and as Python or JSON would write it within quotes."""
        plain = "".join(secret)
        if plain:
            self._secrets |= {plain, repr(plain)[1:-1], repr(plain.encode())[2:-1], json.dumps(plain)[1:-1]}

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - of arguments that do not fit, which is for the handler to tell
            text = f"{record.msg} {record.args}"
        if fields := getattr(record, "fields", None):
            text += f"\n{fields}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        if any(secret in text for secret in self._secrets):
            record.msg, record.args, record.exc_info, record.exc_text = "(not shown, as it holds a secret)", (), None, None
            record.__dict__.pop("fields", None)
        return True


#: The filter that knows the secrets of this process: whoever is given one adds it.
redacting_filter: RedactingFilter = RedactingFilter()


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, and its fields.

    Fields are those of ``extra={"fields": {...}}`` (see `event`); ``error`` has the traceback, if there is one. A number that
    JSON does not have (NaN, infinity) is null.

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
        line |= {name: _finite_values(value) for name, value in fields.items() if name not in line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, allow_nan=False, default=str)


def _finite_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a record that tells of an event.

    >>> logging.getLogger("streamsvm").info("a checkpoint was written", extra=event("checkpoint", rows=5000))
    """
    return {"fields": {"event": name, **fields}}


def log_checkpoint(logger: logging.Logger, path: str, rows: int, size: int, seconds: float) -> None:
    """Tell that a checkpoint was written: where, after how many rows, of how many bytes, and how long that took."""
    fields = event("checkpoint", path=path, rows=rows, seconds=round(seconds, 6), bytes=size)
    logger.info("checkpoint after %d rows, %d bytes in %.3f s: %s", rows, size, seconds, path, extra=fields)


@contextmanager
def log_as_json(stream: TextIO, level: str = "info") -> Iterator[None]:
    """Write log records to a text stream as lines of JSON, without secrets, as long as the context lasts.

    ``level`` is the least of the records of this library and its connectors: ``"debug"``, ``"info"``, ``"warning"`` or
    ``"error"``. Those of others are written from warnings on, or, with ``"debug"``, all of Kafka's client libraries.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    handler.addFilter(redacting_filter)
    number: int = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(number)
    root = logging.getLogger()
    changed = {logging.getLogger(name): number for name in _OWN}
    if number == logging.DEBUG:
        changed |= {logging.getLogger(name): number for name in _CLIENTS}
    before = {logger: logger.level for logger in changed}
    for logger, new in changed.items():
        logger.setLevel(new)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, old in before.items():
            logger.setLevel(old)
