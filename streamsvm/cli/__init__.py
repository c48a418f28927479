"""The command line. `main` parses it, and calls the function ``run_COMMAND`` of a module for each command.

This module imports almost nothing, because the handlers of SIGINT and SIGTERM must be set as early as possible.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal  # the module signal creates enums of its constants, which takes as long as Python's own start

INTERRUPTED_STATUS = 130
#: Signals that end a command: after orderly cleanup where a command has set handlers for it, otherwise immediately.
ENDING_SIGNALS: tuple[int, int] = (_signal.SIGINT, _signal.SIGTERM)


def exit_at_once(number: int, frame: object) -> None:  # noqa: ARG001
    """End the process immediately with status 130, without cleanup: a handler of the signals SIGINT and SIGTERM.

    It raises no exception, because code that is running could swallow or print it, such as an import in C or a callback of the
    compiler. The files are left as after SIGKILL, which every command must survive anyway.
    """
    try:
        if os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            os.write(2, b"\r\x1b[K\x1b[?25h")  # erase the line of a spinner, and show the cursor again
        os.write(2, b"streamsvm: interrupted\n")
    finally:
        os._exit(INTERRUPTED_STATUS)


def set_signal_handlers(handler: Any) -> dict[int, Any]:
    """Set ``handler`` for SIGINT and SIGTERM, and return the previous handler of each signal, by its number.

    A signal that is ignored (under nohup, or in the background of a shell) stays ignored, and is not in the result.
    """
    earlier_handlers = {number: _signal.getsignal(number) for number in ENDING_SIGNALS}
    return {number: _signal.signal(number, handler) for number, old in earlier_handlers.items() if old != _signal.SIG_IGN}


class UsageError(Exception):
    """The command line is invalid: a flag has an invalid value, or flags contradict each other."""


class CommandError(Exception):
    """The command failed; the message says why in one line."""


def escape_unprintable(text: str, newlines: bool = False) -> str:
    r"""Return untrusted ``text`` with unprintable characters as escapes such as ``\x1b``, so that it cannot control a terminal.
    Line breaks are kept if ``newlines``.

    >>> print(escape_unprintable("rows\x1b[2J.csv, naïve"))
    rows\x1b[2J.csv, naïve
    """
    return "".join(
        letter if letter.isprintable() or (newlines and letter == "\n") else letter.encode("unicode_escape").decode()
        for letter in text
    )
