"""The rule of kernel recursive least squares, compiled: rows in, decisions out. The work is that of `landmarks`."""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.landmarks import landmark_views
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.steps.decisions import answer
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.landmarks import take_row
from streamsvm.core.steps.least_squares import compute_regressors, correct, decide_regressors
from streamsvm.core.steps.rule import LEARNED, REFUSED
from streamsvm.core.steps.step import GAMMA_ROWS, differ, observe_variances, track_errors


@compiled
def _compute_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    # The regressors of a row that was predicted are those that it is learned with.
    v = landmark_views(block)
    used = v.header[0]["used"]
    if v.cache[0]["valid"] == 0 or differ(v.rows[0], v.rows[2], used):
        compute_regressors(block, 0, n_active, norm)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0]["valid"] = 1
    decide_regressors(block, v.kernel_rows[0])


@compiled
def learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the row at hand, which is in ``rows[0]``; `LEARNED`, or `REFUSED` where it is not finite or too large."""
    v, c = landmark_views(block), common(block)
    h = v.header[0]
    n_active, norm = scan_row(v.rows[0], h["used"], v.active[0])
    if n_active < 0:
        return REFUSED
    if 0 <= c["gamma_rows"] < GAMMA_ROWS:
        observe_variances(c, v.rows[0], v.means, h["used"])
    c["t"] += 1
    _compute_scores(block, n_active, norm)
    track_errors(c, v.scores, 2 * h["live"], target)
    correct(block, v.kernel_rows[0], target, weight)
    take_row(block, norm, target, weight)
    return LEARNED


@compiled
def ask(block: np.ndarray) -> bool:
    """Compute the decision values of the row at hand, two for each output; False for a row that is not finite or too large."""
    v = landmark_views(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active < 0:
        return False
    _compute_scores(block, n_active, norm)
    return True


@compiled
def decide(block: np.ndarray, what: int) -> float:
    """Answer ``what`` is asked of the row at hand, as `streamsvm.core.steps.decisions.decide` does.

    The last iterate is that with corrections, the average that without.
    """
    v = landmark_views(block)
    return answer(common(block), v.scores, 2 * v.header[0]["live"], what) if ask(block) else np.nan
