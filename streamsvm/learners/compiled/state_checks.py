"""What a kept model may say of its learner's own numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["COMMON_RANGES", "check_fields"]

#: Fields of the state that every learner has which learning changes, with the least and the largest value they can have.
COMMON_RANGES = {
    "t": (0, 2**62),
    "n_merges": (0, 2**62),
    "random": (0, 2**64 - 1),
    "deviation": (0.0, 1e100),
    "scale": (1e-10, 1.0),
    "average_v": (1e-10, 1.0),
    "average_u": (0.0, 1.0),
    "error": (0.0, 1e100),
    "slope": (-50.0, 50.0),
    "curvature": (-1e-9, 1e3),
}


def check_fields(state: np.void, fresh: np.void, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse a state that was read from outside where compiled code could not trust it; ``fresh`` is that of a new model."""
    for field in state.dtype.names or ():
        if field not in ranges:
            if state[field] != fresh[field]:
                raise ValueError(f"the model was kept with {field} {state[field]}, its parameters ask for {fresh[field]}")
        else:
            low, high = ranges[field]
            if not np.all((state[field] >= low) & (state[field] <= high)):
                raise ValueError(f"the model was kept with {field} {state[field]}, which no learning leads to")
