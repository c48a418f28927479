"""Checks calls that must raise an error with a message and leave the model unchanged."""

import pickle

import pytest


def state_of(call):
    """Return the state of the model whose method the call is; None for other functions, and if the kernel is a function."""
    model = getattr(call, "__self__", None)
    is_model = hasattr(model, "learn_one") or hasattr(model, "fit")
    if not is_model or call.__name__ == "__setstate__" or callable(getattr(model, "kernel", None)):
        return None
    return pickle.dumps(model)


def raises(match, call, *args, error=ValueError, **kwargs):
    """Check that a call raises an error with a matching message."""
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


def refused(match, call, *args, **kwargs):
    """Check that a call raises an error with a matching message, and leaves its model unchanged."""
    before = state_of(call)
    raises(match, call, *args, **kwargs)
    assert state_of(call) == before
