"""The state of kernel recursive least squares: how it begins, takes more outputs, and is checked when it comes from a file."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from streamsvm.core.memory.block import record
from streamsvm.core.memory.landmarks import LandmarkStore, landmark_views
from streamsvm.core.steps import least_squares
from streamsvm.core.steps.iterates import RULE_STATE
from streamsvm.core.steps.landmarks import finish
from streamsvm.core.steps.least_squares import ADDING, IDLE, PRIOR, STEPPING, SWAPPING
from streamsvm.core.steps.triangle import row_start

__all__ = ["FIRST_STATE", "check_work", "holds_labels", "widen"]

#: Fields of the rule's state that are not 0 before the first row, beside the parameters.
FIRST_STATE = MappingProxyType({"size": 1, "next_refit": 1, "making": -1, "jitter": least_squares.LEAST_JITTER})


def widen(block: np.ndarray, before: int, outputs: int, positive: int) -> None:
    """Go on with more outputs.

    One output f is two outputs f and -f, of the positive label, which has the number ``positive``, and of the negative one.
    Targets of a new label were -1 in all rows so far: the products with them are the negative of those with the intercept's
    regressor, which S has.
    """
    finish(block)
    v, s = landmark_views(block), record(block, RULE_STATE, least_squares.STATE)
    size = int(s["size"])
    if before == 1:
        for rows in (v.products, v.weights, v.corrections):
            one = rows[0].copy()
            rows[positive], rows[1 - positive] = one, -one
        for targets in (v.window_targets[: s["held"]], v.targets[s["half"], : s["gathered"]]):
            targets[:] = np.where(targets > 0.0, positive, 1 - positive)
        before = 2
    v.products[before:outputs, :size] = v.prior[:size] - v.moments[:size]
    v.weights[before:outputs, 0] = -1.0
    v.header[0]["live"] = outputs
    v.cache[0] = 0


def holds_labels(store: LandmarkStore, s: np.void) -> bool:
    """Whether the targets that a classifier holds are labels: the number of an output, or 1 and -1 of one output."""
    v = store.views
    possible = range(store.live) if store.live > 1 else (-1.0, 1.0)
    held = (v.window_targets[: s["held"]], v.targets[s["half"], : s["gathered"]], v.targets[1 - s["half"], : s["pending"]])
    return bool(np.isin(np.concatenate(held), list(possible)).all())


def check_work(store: LandmarkStore, s: Any) -> None:
    """Raise a ValueError unless where the work stands, which compiled code takes for places in arrays, fits the store.

    ``s`` is a record of `streamsvm.core.steps.least_squares.STATE`.
    """
    v, stage = store.views, s["stage"]
    size, n, stride, started = int(s["size"]), store.n_support + 1, int(v.header[0]["stride"]), bool(s["started"])
    places = {IDLE: 1, PRIOR: size, SWAPPING: s["max_swaps"], ADDING: size, STEPPING: store.live}
    waiting = stage == PRIOR or s["making"] >= 0 or (not started and s["replayed"] < s["held"])
    diagonal = [row_start(j, stride) + j for j in range(size if 1 <= size <= n else 0)]
    if not (
        (size == n if started else 1 <= size <= n)
        and s["replayed"] <= s["held"] < len(v.window) + started
        and s["next_refit"] <= len(v.window)
        and s["making"] < size
        and s["place"] < places[stage]
        and (s["pending"] > 0) == (stage in (SWAPPING, ADDING))
        and (stage != STEPPING or s["ready"])
        and (not s["refitting"] or waiting)
        and (not s["ready"] or s["refitting"] or (v.factors[s["in_use"]][diagonal] > 0.0).all())
    ):
        raise ValueError("the saved model is corrupt: where its work stands does not fit its rows and landmarks")
