"""Numbers that no learning leads to, written into a state."""

import numpy as np

from refused import refused


def spoil(views, field, value, *states):
    """Write a number into the header or the states, by the name of its field, or into an array, by its name and a place."""
    if isinstance(field, tuple):
        name, place = field
        with np.errstate(over="ignore"):
            getattr(views, name)[place] = value
    else:
        next(part for part in (views.header, *states) if field in (part.dtype.names or ()))[field] = value


def check_spoilt(store, other, wrong):
    """Each snapshot of a store with a number of ``wrong`` is refused, and the other store, which refuses it, stays as it is.

    ``wrong`` has, by words of the message, fields and their values, or functions that spoil a store.
    """
    good, before = store._saved.copy(), other.snapshot()
    for match, fields in wrong.items():
        for change in fields if isinstance(fields, list) else [(field, value) for field in fields for value in fields[field]]:
            change(store) if callable(change) else spoil(store.views, *change)
            refused(match, other.restore, store._saved.tobytes())
            assert other.snapshot() == before
            store._saved[:] = good
