"""An expert that is a rolling forest, compiled: what its trees say, and how their leaves learn a row.

Now and then a tree is grown of the latest rows, and takes the place of the oldest one: so the forest follows the stream (see
`forest_growth`).

Meanwhile leaves learn. A leaf of one label that gets a row of another one becomes two: it holds its latest row, and cuts
between the two, by a feature that is drawn as for a node. So each tree knows each row at once, also those that came after it was
grown. Leaves that cannot be cut count their two commonest labels.

A tree votes with the share of each label in the leaf, by the weight exp(-4 e), where e is its recent error.

Every other tree is of targets. What these follow in jumps, experts do not: rules on single features, and the last target along
with a feature. The other trees are of what the experts before the forest miss, as the mean of their vote and of the best one has
it: a tree that sees a row beside that prediction, and beside what was missed last, finds where experts are wrong together.

A leaf is a running mean. Trees vote by 1 / (.01 + e)^2, where e is the mean
absolute error, in deviations of the target.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.ensemble import STATE, ensemble_views
from streamsvm.core.memory.forest import (
    COUNTS,
    DEPTH,
    EQUALITY,
    EXPERTS_VOTE,
    FEATURE,
    FIRST_LABEL,
    LARGEST_VALUE,
    LAST_RESIDUAL,
    LAST_TARGET,
    LATEST_ROW,
    LEAVES,
    LEFT,
    MAX_LEAF_COUNT,
    MAX_MEAN_COUNT,
    NODES,
    RESIDUAL,
    SECOND_LABEL,
    TARGET,
    TREES,
    forest_views,
)
from streamsvm.core.memory.slots import GOLDEN_GAMMA, next_random
from streamsvm.core.steps.ensemble import NEW_SCALE
from streamsvm.core.steps.forest_growth import LEAF_THRESHOLD, compute_threshold, compute_vote, draw_below, grow_tree, is_skipped
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import average_votes, clip_prediction, find_best_input

#: The least share of a label of which an input tells.
MIN_LABEL_SHARE = 0.02

#: Rows that an error is the mean of.
ERROR_WINDOW = 48
_TRIES = 8  # features in which a leaf looks for a difference
_LEVELS = 3  # that trees are walked between two looks whether they have come to a leaf


# What the trees say --------------------------------------------------------------------------------------------------------


@compiled
def _fill_row(block: np.ndarray, store: np.ndarray) -> None:
    """Fill in the features of the current row of an ensemble, less their anchors."""
    v, s = ensemble_views(block), forest_views(store)
    h = s.header[0]
    added = h["extra_columns"]
    for j in range(min(h["used"], h["row_width"] - added)):
        s.row[j + added] = np.float32(min(max(v.unscaled[0, j] - s.anchors[j + added], -LARGEST_VALUE), LARGEST_VALUE))


@compiled(noinline=True)
def _walk_trees(store: np.ndarray) -> None:
    """Bring the current row to a leaf of each tree.

    Trees go down in step, without branches: their reads from memory overlap.
    """
    s = forest_views(store)
    nodes, thresholds, row = s.nodes, s.nodes.view(np.float32), s.row
    reached, depths, walking = s.reached, s.depths, s.walking
    for t in range(TREES):
        reached[t], depths[t], walking[t] = t * NODES, 0, t
    n = TREES
    while n > 0:
        for _ in range(_LEVELS):
            for a in range(n):
                tree = np.uint64(walking[a])
                at = reached[tree]
                link, threshold = np.int64(nodes[np.uint64(at), 0]), thresholds[np.uint64(at), 1]
                value = row[np.uint64((link >> FEATURE) & 0x3FFF)]
                passes = np.int64(value <= threshold) & (np.int64(value == threshold) | (1 - (link >> EQUALITY)))
                to = (link & LEFT) + 1 - passes
                depths[tree] += np.int64(to != at)
                reached[tree] = to
        still = 0
        for a in range(n):
            tree = np.uint64(walking[a])
            walking[still] = tree
            still += int(thresholds[np.uint64(reached[tree]), 1] != LEAF_THRESHOLD)
        n = still
    for t in range(TREES):
        s.landed[t] = t * LEAVES + (nodes[reached[t], 0] >> FEATURE)


@compiled
def _vote_by_trees(store: np.ndarray, labels: int) -> None:
    # Compute the share of the votes that each label has, of the leaves that were reached.
    s = forest_views(store)
    leaves, shares = s.leaves, s.shares
    total = 0.0
    for k in range(labels):
        shares[k] = 0.0
    for t in range(TREES):
        leaf = s.landed[t]
        counts = leaves[leaf, COUNTS]
        first, second = counts & 255, counts >> 8
        each = np.float64(s.votes[t]) / float(max(first + second, 1))
        shares[leaves[leaf, FIRST_LABEL]] += each * first
        shares[leaves[leaf, SECOND_LABEL]] += each * second
        total += np.float64(s.votes[t])
    for k in range(labels):
        shares[k] /= total


@compiled
def predict_labels(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Predict labels by the trees.

    Of each label, two inputs: twice its share of the votes less 1, and half the logarithm of the share, plus 1. Of two labels,
    half of what these differ by.
    """
    v, s = ensemble_views(block), forest_views(store)
    h, n_outputs, first = s.header[0], v.header[0]["n_outputs"], v.experts[expert]["first_input"]
    _fill_row(block, store)
    _walk_trees(store)
    if h["n_learned"] == 0:
        for k in range(n_outputs):
            v.inputs[k, first] = v.inputs[k, first + 1] = 0.0
        return 0
    _vote_by_trees(store, max(n_outputs, 2))
    if n_outputs == 1:
        negative, positive = s.shares[0], s.shares[1]
        v.inputs[0, first] = positive - negative
        v.inputs[0, first + 1] = 0.25 * math.log(max(positive, MIN_LABEL_SHARE) / max(negative, MIN_LABEL_SHARE))
        return 0
    least = 0.5 * math.log(MIN_LABEL_SHARE) + 1.0
    for k in range(n_outputs):
        share = s.shares[k]
        v.inputs[k, first] = 2.0 * share - 1.0
        v.inputs[k, first + 1] = 0.5 * math.log(share) + 1.0 if share > MIN_LABEL_SHARE else least
    return 0


# How leaves learn ----------------------------------------------------------------------------------------------------------


@compiled
def update_labels(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Learn the current row, which was predicted, and its label. It counts as one row, if it weighs anything."""
    damping = ensemble_views(block).damping[0]
    if weight > 0.0:
        place = _keep_row(block, store)
        forest_views(store).labels[place] = label
        _teach_trees(store, damping, place, label)
        grow_tree(store, damping)
    return 0


@compiled
def _keep_row(block: np.ndarray, store: np.ndarray) -> int:
    """Keep the current row of an ensemble in the place of the oldest one; its place."""
    v, s = ensemble_views(block), forest_views(store)
    h = s.header[0]
    place, added = h["n_learned"] % h["capacity"], h["extra_columns"]
    for j in range(added):
        s.rows[place, j] = s.row[j]
    for j in range(min(h["used"], h["row_width"] - added)):
        s.rows[place, j + added] = s.row[j + added]
        if v.unscaled[0, j] != math.floor(v.unscaled[0, j]):
            s.fractions[j + added] = 1
    h["n_learned"] += 1
    return place


@compiled
def _teach_trees(store: np.ndarray, damping: np.ndarray, place: int, label: int) -> None:
    # Let the leaf of each tree that the current row came to learn it, and the tree's error.
    s = forest_views(store)
    leaves, errors, ages, landed, depths = s.leaves, s.errors, s.ages, s.landed, s.depths
    for t in range(TREES):
        leaf = landed[t]
        known, counts = int(leaves[leaf, FIRST_LABEL]), int(leaves[leaf, COUNTS])
        first, second = counts & 255, counts >> 8
        ages[t] = min(int(ages[t]) + 1, ERROR_WINDOW)
        rate = 1.0 / (ages[t] + 2.0)
        error = float(errors[t])
        errors[t] = np.float32(error + rate * ((0.0 if known == label and first > 0 else 1.0) - error))
        if known == label:
            first += 1
            leaves[leaf, LATEST_ROW] = place
        elif second == 0 and depths[t] < DEPTH and _cut_leaf(store, damping, t, place, label):
            continue
        else:
            other = int(leaves[leaf, SECOND_LABEL])
            if second > 0 and other == label:
                second += 1
            elif second <= 1:
                second, other = 1, label
            else:
                second -= 1
            if second > first:
                first, second, other = second, first, known
                leaves[leaf, FIRST_LABEL], leaves[leaf, LATEST_ROW] = label, place
            leaves[leaf, SECOND_LABEL] = other
        if first >= MAX_LEAF_COUNT:
            first, second = (first + 1) >> 1, second >> 1
        leaves[leaf, COUNTS] = first | (second << 8)
    t = (s.header[0]["n_learned"] - 1) % TREES  # one tree's vote for each row
    s.votes[t] = compute_vote(float(errors[t]), False)


@compiled
def _cut_leaf(store: np.ndarray, damping: np.ndarray, t: int, place: int, label: int) -> bool:
    # Cut the leaf of a tree between its latest row and the current row, of another label, if there is room and the rows differ.
    s = forest_views(store)
    node, leaf = s.reached[t], s.landed[t]
    h, leaves, nodes, thresholds = s.header[0], s.leaves, s.nodes, s.nodes.view(np.float32)
    known, latest, size = int(leaves[leaf, FIRST_LABEL]), int(leaves[leaf, LATEST_ROW]), int(s.sizes[t])
    used = min(h["used"], h["row_width"])
    if size + 2 > NODES or s.labels[latest] != known or used == 0:
        return False
    random, j, tries = h["random"], 0, 0
    bits = np.uint64(0)
    while tries < _TRIES:
        random += GOLDEN_GAMMA
        bits = next_random(random)
        j = draw_below(bits, used)
        if s.rows[latest, j] != s.row[j] and (tries == _TRIES - 1 or not is_skipped(bits, damping[j])):
            break
        tries += 1
    h["random"] = random
    if tries == _TRIES:
        return False
    here, there = s.row[j], s.rows[latest, j]
    equal = 1 if s.fractions[j] == 0 and bits >> np.uint64(63) else 0
    threshold = here if equal else compute_threshold(here, there)
    left = t * NODES + size
    s.sizes[t] = size + 2
    nodes[node, 0], thresholds[node, 1] = left | (j << FEATURE) | (equal << EQUALITY), threshold
    mine = left if equal or here <= threshold else left + 1
    before, new = leaf - t * LEAVES, (size + 1) // 2  # numbers of leaves: of two nodes more, one is
    for child in range(left, left + 2):
        nodes[child, 0], thresholds[child, 1] = child | ((new if child == mine else before) << FEATURE), LEAF_THRESHOLD
    new += t * LEAVES
    leaves[new, FIRST_LABEL], leaves[new, SECOND_LABEL], leaves[new, LATEST_ROW], leaves[new, COUNTS] = label, 0, place, 1
    return True


# Where numbers are predicted ----------------------------------------------------------------------------------------------------


@compiled
def predict_targets(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Predict the target by the trees, and what the experts before predict and miss."""
    v, s = ensemble_views(block), forest_views(store)
    inputs, first = v.inputs[0], v.experts[expert]["first_input"]
    base = 0.5 * (average_votes(inputs, v.mistakes, first) + clip_prediction(inputs[find_best_input(v.errors, first)]))
    s.row[LAST_TARGET] = np.float32(get_rule_state(block, STATE)["last_target"])
    s.row[EXPERTS_VOTE], s.row[LAST_RESIDUAL] = np.float32(base), np.float32(s.header[0]["last_residual"])
    _fill_row(block, store)
    _walk_trees(store)
    means = s.leaves.view(np.float32)
    for kind in range(2):
        total = mean = 0.0
        for t in range(kind, TREES, 2):
            total += np.float64(s.votes[t])
            mean += np.float64(s.votes[t]) * np.float64(means[s.landed[t], 0])
        inputs[first + kind] = mean / total
    inputs[first + RESIDUAL] += base
    return 0


@compiled
def update_targets(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Learn the current row, which was predicted, and its target in deviations. It counts as one row, if it weighs anything."""
    s = forest_views(store)
    missed = target - np.float64(s.row[EXPERTS_VOTE])
    if weight > 0.0:
        place = _keep_row(block, store)
        s.numbers[TARGET, place], s.numbers[RESIDUAL, place] = target, missed
        for kind in range(2):
            _teach_means(store, kind, missed if kind == RESIDUAL else target)
        t = (s.header[0]["n_learned"] - 1) % TREES  # one tree's vote for each row
        s.votes[t] = compute_vote(float(s.errors[t]), True)
        grow_tree(store, ensemble_views(block).damping[0])
    s.header[0]["last_residual"] = missed
    return 0


@compiled
def _teach_means(store: np.ndarray, kind: int, number: float) -> None:
    # Let the leaves of one kind of trees that the current row came to learn its number, and the trees' errors.
    s = forest_views(store)
    means = s.leaves.view(np.float32)
    for t in range(kind, TREES, 2):
        leaf = s.landed[t]
        mean = np.float64(means[leaf, 0])
        s.ages[t] = min(int(s.ages[t]) + 1, ERROR_WINDOW)
        error = float(s.errors[t])
        s.errors[t] = np.float32(error + (abs(number - mean) - error) / (s.ages[t] + 2.0))
        rows = min(np.float64(means[leaf, 1]) + 1.0, float(MAX_MEAN_COUNT))
        means[leaf, 0], means[leaf, 1] = np.float32(mean + (number - mean) / rows), np.float32(rows)


# Anchors -------------------------------------------------------------------------------------------------------------------

#: Deviations between a feature's mean and its anchor from which on it gets another one: float32 has 512 steps of one there.
MAX_ANCHOR_DISTANCE = 2.0**15


@compiled
def rescale_forest(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:  # noqa: ARG001
    """Anchor the features again that are far from where they are anchored, at the current row."""
    if event != NEW_SCALE:
        return 0
    v, s = ensemble_views(block), forest_views(store)
    h = s.header[0]
    for j in range(min(h["used"], h["row_width"] - h["extra_columns"])):
        away = abs(v.moments[j, 1] - s.anchors[j + h["extra_columns"]])
        if away > MAX_ANCHOR_DISTANCE * v.spread[j] > 0.0 and abs(v.moments[j, 1] - v.unscaled[0, j]) < away:
            _move_anchor(store, j + h["extra_columns"], v.unscaled[0, j])
    return 0


@compiled
def _move_anchor(store: np.ndarray, j: int, anchor: float) -> None:
    # Anchor the feature of a column somewhere else, in the rows and in all cuts.
    s = forest_views(store)
    h, thresholds = s.header[0], s.nodes.view(np.float32)
    shift = s.anchors[j] - anchor
    s.anchors[j] = anchor
    for i in range(min(h["n_learned"], h["capacity"])):
        s.rows[i, j] = _moved_value(s.rows[i, j], shift)
    for t in range(TREES):
        for i in range(t * NODES, t * NODES + s.sizes[t]):
            if (s.nodes[i, 0] >> FEATURE) & 0x3FFF == j and thresholds[i, 1] != LEAF_THRESHOLD:
                thresholds[i, 1] = _moved_value(thresholds[i, 1], shift)


@compiled(inline=True)
def _moved_value(value: np.float32, shift: float) -> np.float32:
    return np.float32(min(max(float(value) + shift, -LARGEST_VALUE), LARGEST_VALUE))
