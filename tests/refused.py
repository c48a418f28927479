"""Calls that must be refused: with a message, and without a trace."""

import pickle

import pytest


def state_of(call):
    """The state of the model that a function is a method of, where there is one that can be saved."""
    model = getattr(call, "__self__", None)
    if (not hasattr(model, "learn_one") and not hasattr(model, "fit")) or call.__name__ == "__setstate__":
        return None
    try:
        return pickle.dumps(model)
    except Exception:  # noqa: BLE001 - as of one with a function in it
        return None


def raises(match, call, *args, error=ValueError, **kwargs):
    """The call raises an error that says so."""
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


def refused(match, call, *args, **kwargs):
    """The call raises an error that says so, and leaves the model that it is a method of as it was."""
    before = state_of(call)
    raises(match, call, *args, **kwargs)
    assert state_of(call) == before
