"""The rolling forest as an expert where numbers are predicted, compiled: what its trees say, and how their leaves learn a row.

Every other tree is of targets. What these follow in jumps, experts do not: rules on single features, and the last target along
with a feature. The other trees are of what the experts before the forest miss, as the mean of their vote and of the best one has
it: a tree that sees a row beside that prediction, and beside what was missed last, finds where experts are wrong together.

Trees are walked and grown as those of `forest`. A leaf is a running mean. Trees vote by 1 / (.01 + e)^2, where e is the mean
absolute error, in deviations of the target.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.committee import STATE, committee_views
from streamsvm.core.memory.forest import (
    LAST,
    MISSED,
    MISSING,
    MOST_AVERAGED,
    TARGET,
    TREES,
    VOTED,
    forest_views,
)
from streamsvm.core.steps.forest import LATEST, fill_row, keep_row, walk_trees
from streamsvm.core.steps.forest_growth import grow_tree, vote_of
from streamsvm.core.steps.rule import state_of
from streamsvm.core.steps.stack import best_input, bounded, vote_of_numbers


@compiled
def predict(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Predict the target by the trees, and what the experts before predict and miss."""
    v, s = committee_views(block), forest_views(store)
    inputs, first = v.at_hand[0], v.experts[expert]["first_input"]
    base = 0.5 * (vote_of_numbers(inputs, v.mistakes, first) + bounded(inputs[best_input(v.errors, first)]))
    s.row[LAST] = np.float32(state_of(block, STATE)["last_target"])
    s.row[VOTED], s.row[MISSED] = np.float32(base), np.float32(s.header[0]["missed"])
    fill_row(block, store)
    walk_trees(store)
    means = s.leaves.view(np.float32)
    for kind in range(2):
        total = mean = 0.0
        for t in range(kind, TREES, 2):
            total += np.float64(s.votes[t])
            mean += np.float64(s.votes[t]) * np.float64(means[s.landed[t], 0])
        inputs[first + kind] = mean / total
    inputs[first + MISSING] += base
    return 0


@compiled
def update(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Learn the current row, which was predicted, and its target in deviations. It counts as one row, if it weighs anything."""
    s = forest_views(store)
    missed = target - np.float64(s.row[VOTED])
    if weight > 0.0:
        place = keep_row(block, store)
        s.numbers[TARGET, place], s.numbers[MISSING, place] = target, missed
        for kind in range(2):
            _teach_trees(store, kind, missed if kind == MISSING else target)
        t = (s.header[0]["learned"] - 1) % TREES  # one tree's vote for each row
        s.votes[t] = vote_of(float(s.errors[t]), True)
        grow_tree(store, committee_views(block).damping[0])
    s.header[0]["missed"] = missed
    return 0


@compiled
def _teach_trees(store: np.ndarray, kind: int, number: float) -> None:
    # Let the leaves of one kind of trees that the row at hand came to learn its number, and the trees' errors.
    s = forest_views(store)
    means = s.leaves.view(np.float32)
    for t in range(kind, TREES, 2):
        leaf = s.landed[t]
        mean = np.float64(means[leaf, 0])
        s.ages[t] = min(int(s.ages[t]) + 1, LATEST)
        error = float(s.errors[t])
        s.errors[t] = np.float32(error + (abs(number - mean) - error) / (s.ages[t] + 2.0))
        rows = min(np.float64(means[leaf, 1]) + 1.0, float(MOST_AVERAGED))
        means[leaf, 0], means[leaf, 1] = np.float32(mean + (number - mean) / rows), np.float32(rows)
