"""Waiting for what must come, on a machine that may have any amount of other work."""

import time

#: Seconds after which a test gives up. Only a test that fails waits so long.
PATIENCE = 900.0


def until(reached, every=0.01):
    """Wait until something is reached; fail if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := reached()):
        assert time.monotonic() < deadline, f"it was not reached in {PATIENCE:.0f} s"
        time.sleep(every)
    return found
