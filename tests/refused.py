"""Calls that must be refused: with a message, and without a trace."""

import pickle

import pytest


def state_of(call):
    """The state of the model that a function is a method of, if it is one of a model; None if the kernel is a function."""
    model = getattr(call, "__self__", None)
    is_model = hasattr(model, "learn_one") or hasattr(model, "fit")
    if not is_model or call.__name__ == "__setstate__" or callable(getattr(model, "kernel", None)):
        return None
    return pickle.dumps(model)


def raises(match, call, *args, error=ValueError, **kwargs):
    """The call raises an error that says so."""
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


def refused(match, call, *args, **kwargs):
    """The call raises an error that says so, and leaves the model that it is a method of as it was."""
    before = state_of(call)
    raises(match, call, *args, **kwargs)
    assert state_of(call) == before
