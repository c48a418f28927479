"""Waits for conditions in tests, with timeouts that also suffice on a busy machine."""

import contextlib
import time
from pathlib import Path

#: Seconds after which a test gives up. Only failing tests wait this long.
PATIENCE = 900.0
#: Message of a command that takes more than a second to stop.
SLOW_END = "streamsvm: stopping after the step that is running; press Ctrl-C again to stop now\n"


def until(reached, every=0.01):
    """Wait until a function returns a true value, and return it; fail after the timeout."""
    deadline = time.monotonic() + PATIENCE
    while not (value := reached()):
        assert time.monotonic() < deadline, f"it was not reached in {PATIENCE:.0f} s"
        time.sleep(every)
    return value


def signals_of(pid, kind="SigCgt"):
    """Return the numbers of the signals that a process catches, or ignores (``SigIgn``); empty for an ended process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                bits = int(line.split()[1], 16)
                return {number for number in range(1, bits.bit_length() + 1) if bits & 1 << (number - 1)}
    return set()
