"""Writes invalid numbers into the state of a model, to test its validation."""

import numpy as np

from refused import refused


def spoil(views, field, value, *states):
    """Write a number into a field of the header or the states, or into an array at an index."""
    if isinstance(field, tuple):
        name, place = field
        with np.errstate(over="ignore"):
            getattr(views, name)[place] = value
    else:
        next(part for part in (views.header, *states) if field in (part.dtype.names or ()))[field] = value


def check_spoilt(store, other, wrong):
    """Check that another store refuses each snapshot with a number of ``wrong``, and is unchanged.

    ``wrong`` maps words of the message to fields and values, or to functions that change a store.
    """
    good, before = store._saved.copy(), other.snapshot()
    for match, fields in wrong.items():
        for change in fields if isinstance(fields, list) else [(field, value) for field in fields for value in fields[field]]:
            change(store) if callable(change) else spoil(store.views, *change)
            refused(match, other.restore, store._saved.tobytes())
            assert other.snapshot() == before
            store._saved[:] = good
