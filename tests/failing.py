"""Functions that fail when a test wants them to."""

import pytest


class Failing:
    """A function whose call of a number, counted from 1, raises an error instead."""

    def __init__(self, call, at=1, error=KeyboardInterrupt):
        self.call, self.at, self.error, self.calls = call, at, error, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.at:
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
