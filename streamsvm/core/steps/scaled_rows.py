"""Rows of a store of support vectors by the scale in use, compiled.

A row comes as it is given into `given_row`. `scan_given` makes it the row at hand: by the scale in use where the store has one.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FOURIER, LINEAR, POLY
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rescale import REACH, learn_moments, move_vectors, scale_moved, scale_row

__all__ = ["FOLLOWS", "GIVEN", "follow_scale", "given_row", "scan_given"]

#: In the state, in the place of the rows that gamma="scale" is found from: gamma was given, or follows the scale in use.
GIVEN, FOLLOWS = -1, -2


@compiled(inline=True)
def given_row(block: np.ndarray) -> np.ndarray:
    """The place of a row as it is given, float32 [columns]."""
    v = views(block)
    return v.given if v.header[0]["scaled"] > 0 else v.rows[0]


@compiled(inline=True)
def scan_given(block: np.ndarray) -> tuple[int, float]:
    """Make the row that is given the row at hand, ``rows[0]``; the number of its non-zero features and its squared norm.

    The first is -1 for a row that is not finite or too large as it is given.
    """
    v = views(block)
    if v.header[0]["scaled"] > 0:
        return _scan_scaled(block)
    return scan_row(v.rows[0], v.header[0]["used"], v.active[0])


@compiled
def _scan_scaled(block: np.ndarray) -> tuple[int, float]:
    v = views(block)
    used = v.header[0]["used"]
    n_active, norm = scan_row(v.given, used, v.active[0])
    if n_active < 0:
        return n_active, norm
    scale_row(v.given, v.rows[0], v.location, v.spread, used)
    return scan_row(v.rows[0], used, v.active[0])


@compiled
def follow_scale(block: np.ndarray) -> bool:
    """Let the scale learn the row that is given, which is finite; whether another scale has come into use with it.

    Support vectors are brought to it. Frequencies are not: they are for rows of any scale.
    """
    v, c = views(block), common(block)
    h = v.header[0]
    used = h["used"]
    gamma = 1.0 / max(used, 1)  # each feature has a variance of 1, or will have: gamma is not to change where it begins to vary
    if c["gamma_rows"] == FOLLOWS and h["gamma"] != gamma:
        h["gamma"] = gamma
        v.cache[0] = 0
    learn_moments(v.moments, v.first, v.given, used, REACH)
    centred = h["kernel"] == LINEAR or h["kernel"] == POLY  # for the others only differences of rows count
    if not scale_moved(v.moments, v.location, v.spread, v.ratio, v.shift, used, True, centred, c["t"]):
        return False
    if h["kernel"] != FOURIER:
        h["largest_norm"] = move_vectors(v.vectors, v.norms, h["n_support"], used, v.ratio, v.shift)
    v.cache[0] = 0
    return True
