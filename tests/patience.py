"""Waiting for what must come, on a machine that may have any amount of other work."""

import contextlib
import time
from pathlib import Path

#: Seconds after which a test gives up. Only a test that fails waits so long.
PATIENCE = 900.0
#: What a command says where it takes more than a second to stop.
SLOW_END = "streamsvm: stopping after the step that is running; press Ctrl-C again to stop now\n"


def until(reached, every=0.01):
    """Wait until something is reached; fail if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := reached()):
        assert time.monotonic() < deadline, f"it was not reached in {PATIENCE:.0f} s"
        time.sleep(every)
    return found


def signals_of(pid, kind="SigCgt"):
    """The numbers of the signals that a process catches, or ignores (``SigIgn``); none once it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                bits = int(line.split()[1], 16)
                return {number for number in range(1, bits.bit_length() + 1) if bits & 1 << (number - 1)}
    return set()
