"""Functions that fail when a test wants them to."""

import threading

import pytest


class Failing:
    """A function whose call of a number, counted from 1, raises an error instead."""

    def __init__(self, call, at=1, error=KeyboardInterrupt):
        self.call, self.at, self.error, self.calls, self.counting = call, at, error, 0, threading.Lock()

    def __call__(self, *args, **kwargs):
        with self.counting:  # threads call it, too
            self.calls += 1
            fails = self.calls == self.at
        if fails:
            raise self.error
        return self.call(*args, **kwargs)


def interrupted(*_, **__):
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


def of_compiled_code():
    """Return the error that compiled code raises where it is interrupted."""
    error = SystemError("returned a result with an exception set")
    error.__cause__ = KeyboardInterrupt()
    return error


def interrupts(call, *args, **kwargs):
    """The call is ended by KeyboardInterrupt."""
    with pytest.raises(KeyboardInterrupt):
        call(*args, **kwargs)
