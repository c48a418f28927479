"""The handlers of SIGINT and SIGTERM from the first moment of a command. This imports next to nothing, for they come first."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130
#: The signals that end a command in order.
ENDING = signal.SIGINT, signal.SIGTERM


def exit_at_once(number: int, frame: object) -> None:  # noqa: ARG001
    """End the process here and now, as a handler of a signal.

    An exception could be lost, or printed, in whatever is running: an import in C, or a callback of the compiler. A kill at the
    same moment would leave the same files.
    """
    try:
        if os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            os.write(2, b"\r\x1b[K\x1b[?25h")  # the line of a spinner, and the cursor that it hides
        os.write(2, b"streamsvm: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def handle(handler: Any) -> dict[int, Any]:
    """Set the handler of the signals, and return what it was.

    A signal that is ignored (under nohup, or in the background of a shell) stays ignored, and is left out.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    return {number: signal.signal(number, handler) for number, found in before.items() if found is not signal.SIG_IGN}
