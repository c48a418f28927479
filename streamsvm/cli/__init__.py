"""The command line. `main` parses it; the function `run_COMMAND` of a module runs each command.

This imports next to nothing, for the handlers of SIGINT and SIGTERM must be there from the first moment of a command.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal  # signal first makes enums of its constants, which takes as long as Python's own start

INTERRUPTED_STATUS = 130
#: The signals that end a command in order.
ENDING_SIGNALS: tuple[int, int] = (_signal.SIGINT, _signal.SIGTERM)


def exit_at_once(number: int, frame: object) -> None:  # noqa: ARG001
    """End the process here and now, as a handler of a signal.

    An exception could be lost, or printed, in the running code: an import in C, or a callback of the compiler. A kill at the same
    moment would leave the same files.
    """
    try:
        if os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            os.write(2, b"\r\x1b[K\x1b[?25h")  # the line of a spinner, and the cursor that it hides
        os.write(2, b"streamsvm: interrupted\n")
    finally:
        os._exit(INTERRUPTED_STATUS)


def set_signal_handlers(handler: Any) -> dict[int, Any]:
    """Set the handler of the signals, and return the earlier one of each.

    A signal that is ignored (under nohup, or in the background of a shell) stays ignored, and is left out.
    """
    before = {number: _signal.getsignal(number) for number in ENDING_SIGNALS}
    return {number: _signal.signal(number, handler) for number, earlier in before.items() if earlier != _signal.SIG_IGN}


class UsageError(Exception):
    """The command line asks for something that does not exist, or for things that exclude each other."""


class CommandError(Exception):
    """The command failed; the message says why in one line."""


def escape_unprintable(text: str, newlines: bool = False) -> str:
    r"""Escape unprintable characters of a text from outside, so that it cannot control a terminal.

    With ``newlines``, line breaks are kept.

    >>> print(escape_unprintable("rows\x1b[2J.csv, naïve"))
    rows\x1b[2J.csv, naïve
    """
    return "".join(
        letter if letter.isprintable() or (newlines and letter == "\n") else letter.encode("unicode_escape").decode()
        for letter in text
    )
