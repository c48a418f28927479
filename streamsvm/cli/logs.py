"""Messages of the command line on standard error: lines of text, or of JSON with ``--log-format json``."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from streamsvm.cli import UsageError, printable

logger: logging.Logger = logging.getLogger("streamsvm")


@contextlib.contextmanager
def logged(arguments: argparse.Namespace) -> Iterator[None]:
    """Write log records as lines of JSON if ``--log-format json`` asks for it; else as Python does (warnings, as text)."""
    if not says_json(arguments):
        if getattr(arguments, "log_level", None) is not None:
            raise UsageError("--log-level is about lines of JSON: give --log-format json, too")
        yield
        return
    from streamsvm.stream.logs import json_lines  # noqa: PLC0415 - --help must be quick

    with json_lines(sys.stderr, arguments.log_level or "info"):
        yield


def says_json(arguments: argparse.Namespace) -> bool:
    """Whether standard error has lines of JSON; `inspect` and `demo` have none."""
    return getattr(arguments, "log_format", "text") == "json"


class Output(NamedTuple):
    """How a command says what it does."""

    quiet: bool
    """Whether standard output has lines of JSON for a program, and people read nothing."""
    json: bool
    """Whether standard error has lines of JSON."""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Output:
        """Return what the flags ask for."""
        return cls(arguments.quiet, says_json(arguments))

    @property
    def for_people(self) -> bool:
        """Whether standard error is text that somebody may read."""
        return not (self.quiet or self.json)

    def say(self, text: str, event: str, **fields: Any) -> None:
        """Say something on standard error: unless quiet as text, or else as an event."""
        if self.json:
            logger.info("%s", text, extra={"fields": {"event": event, **fields}})
        elif not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)
