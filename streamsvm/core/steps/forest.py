"""The rolling forest expert of an ensemble, compiled: predictions of its trees, and how their leaves learn a row.

Now and then, a tree is grown from the latest rows, and replaces the oldest tree, so that the forest follows the stream (see
`forest_growth`). In between, leaves learn. In classification, a leaf of one label that gets a row of another label is split in
two: it remembers its latest row, and the split is between the two rows, by a random feature as in a node. So every tree knows
every row, also rows after it was grown. Leaves that cannot be split count their two most frequent labels. A tree votes with the
shares of the labels in the leaf, weighted by exp(-4 e), where e is its recent error.

In regression, every other tree predicts targets: it follows jumps, rules on single features, and the last target together with a
feature, which other experts do not. The other trees predict residuals of the experts before the forest (the mean of their vote
and of the best one): a tree that sees that prediction and the last residual beside the row finds where the experts are wrong
together. A leaf is a running mean. Trees vote with 1 / (0.01 + e)^2, where e is the mean absolute error, in standard deviations
of the target.
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
from streamsvm.core.steps.ensemble import CHECK_REPEATS, NEW_SCALE
from streamsvm.core.steps.forest_growth import LEAF_THRESHOLD, compute_threshold, compute_vote, draw_below, grow_tree, is_skipped
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import average_votes, clip_prediction, find_best_input

#: The smallest share of votes for which the logarithm is taken.
MIN_LABEL_SHARE = 0.02

#: The window of a tree's recent error, in rows.
ERROR_WINDOW = 48
_MAX_DRAWS = 8  # random features that are tried for splitting a leaf
_LEVELS_PER_ROUND = 3  # levels that a row descends in all trees between two checks for leaves


# Predictions --------------------------------------------------------------------------------------------------------------------


@compiled
def _fill_row(block: np.ndarray, store: np.ndarray) -> None:
    """Copy the ensemble's current row (in ``block``) into the memory of its forest (``store``), minus an anchor for each
    feature: a value near its mean, which is subtracted so that float32 is precise enough.
    """
    v, s = ensemble_views(block), forest_views(store)
    h = s.header[0]
    n_extra = h["extra_columns"]
    for j in range(min(h["used"], h["row_width"] - n_extra)):
        s.row[j + n_extra] = np.float32(min(max(v.unscaled[0, j] - s.anchors[j + n_extra], -LARGEST_VALUE), LARGEST_VALUE))


@compiled(noinline=True)
def _walk_trees(store: np.ndarray) -> None:
    """Find the leaf of each tree that the current row falls into. The leaves and their depths are stored in the forest's memory
    ``store``.

    All trees are descended in step and without branches, so that their memory reads overlap.
    """
    s = forest_views(store)
    nodes, thresholds, row = s.nodes, s.nodes.view(np.float32), s.row
    reached, depths, walking = s.reached, s.depths, s.walking
    for t in range(TREES):
        reached[t], depths[t], walking[t] = t * NODES, 0, t
    n = TREES
    while n > 0:
        for _ in range(_LEVELS_PER_ROUND):
            for a in range(n):
                tree = np.uint64(walking[a])
                node = reached[tree]
                link, threshold = np.int64(nodes[np.uint64(node), 0]), thresholds[np.uint64(node), 1]
                value = row[np.uint64((link >> FEATURE) & 0x3FFF)]
                passes = np.int64(value <= threshold) & (np.int64(value == threshold) | (1 - (link >> EQUALITY)))
                child = (link & LEFT) + 1 - passes
                depths[tree] += np.int64(child != node)
                reached[tree] = child
        n_walking = 0
        for a in range(n):
            tree = np.uint64(walking[a])
            walking[n_walking] = tree
            n_walking += int(thresholds[np.uint64(reached[tree]), 1] != LEAF_THRESHOLD)
        n = n_walking
    for t in range(TREES):
        s.landed[t] = t * LEAVES + (nodes[reached[t], 0] >> FEATURE)


@compiled
def _vote_by_trees(store: np.ndarray, n_labels: int) -> None:
    """Compute the share of each of ``n_labels`` class labels in the weighted votes of all trees for the current row. The shares
    are stored in the forest's memory ``store``.
    """
    s = forest_views(store)
    leaves, shares = s.leaves, s.shares
    total = 0.0
    for k in range(n_labels):
        shares[k] = 0.0
    for t in range(TREES):
        leaf = s.landed[t]
        counts = leaves[leaf, COUNTS]
        first_count, second_count = counts & 255, counts >> 8
        vote = np.float64(s.votes[t]) / float(max(first_count + second_count, 1))
        shares[leaves[leaf, FIRST_LABEL]] += vote * first_count
        shares[leaves[leaf, SECOND_LABEL]] += vote * second_count
        total += np.float64(s.votes[t])
    for k in range(n_labels):
        shares[k] /= total


@compiled
def predict_labels(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Compute the class predictions of a forest, a member of an ensemble, for the current row: two values per output. They are
    stored in the ensemble's memory ``block``; ``store`` is the forest's own memory, ``expert`` its index in the ensemble. Always
    returns 0.

    They are twice the label's share of the votes less 1, and half the logarithm of the share, plus 1. With two labels, the single
    output has half the difference between the labels.
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


# Learning ----------------------------------------------------------------------------------------------------------------------


@compiled
def update_labels(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Train a forest, a member of an ensemble, on the current row, whose class index is ``label``: store the row, update the
    leaves it falls into, and grow a new tree if enough rows have arrived since the last. A row with a ``weight`` of 0 is
    ignored. Always returns 0.
    """
    damping = ensemble_views(block).damping[0]
    if weight > 0.0:
        position = _store_row(block, store)
        forest_views(store).labels[position] = label
        _update_leaves(store, damping, position, label)
        grow_tree(store, damping)
    return 0


@compiled
def _store_row(block: np.ndarray, store: np.ndarray) -> int:
    """Copy the current row over the oldest one in the forest's ring buffer of recent rows, and return its index there. ``store``
    is the forest's memory, ``block`` that of the ensemble it belongs to.
    """
    v, s = ensemble_views(block), forest_views(store)
    h = s.header[0]
    position, n_extra = h["n_learned"] % h["capacity"], h["extra_columns"]
    for j in range(n_extra):
        s.rows[position, j] = s.row[j]
    for j in range(min(h["used"], h["row_width"] - n_extra)):
        s.rows[position, j + n_extra] = s.row[j + n_extra]
        if v.unscaled[0, j] != math.floor(v.unscaled[0, j]):
            s.fractions[j + n_extra] = 1
    h["n_learned"] += 1
    return position


@compiled
def _update_leaves(store: np.ndarray, damping: np.ndarray, position: int, label: int) -> None:
    """Count class index ``label`` in the leaf of each tree that the current row falls into, and update the recent error of each
    tree. A leaf that had only one other label is split if possible. ``position`` is the row's index in the buffer of recent
    rows; a feature with a ``damping`` near 1 is rarely used in splits.
    """
    s = forest_views(store)
    leaves, errors, ages, landed, depths = s.leaves, s.errors, s.ages, s.landed, s.depths
    for t in range(TREES):
        leaf = landed[t]
        first_label, counts = int(leaves[leaf, FIRST_LABEL]), int(leaves[leaf, COUNTS])
        first_count, second_count = counts & 255, counts >> 8
        ages[t] = min(int(ages[t]) + 1, ERROR_WINDOW)
        rate = 1.0 / (ages[t] + 2.0)
        error = float(errors[t])
        errors[t] = np.float32(error + rate * ((0.0 if first_label == label and first_count > 0 else 1.0) - error))
        if first_label == label:
            first_count += 1
            leaves[leaf, LATEST_ROW] = position
        elif second_count == 0 and depths[t] < DEPTH and _split_leaf(store, damping, t, position, label):
            continue
        else:
            second_label = int(leaves[leaf, SECOND_LABEL])
            if second_count > 0 and second_label == label:
                second_count += 1
            elif second_count <= 1:
                second_count, second_label = 1, label
            else:
                second_count -= 1
            if second_count > first_count:
                first_count, second_count, second_label = second_count, first_count, first_label
                leaves[leaf, FIRST_LABEL], leaves[leaf, LATEST_ROW] = label, position
            leaves[leaf, SECOND_LABEL] = second_label
        if first_count >= MAX_LEAF_COUNT:
            first_count, second_count = (first_count + 1) >> 1, second_count >> 1
        leaves[leaf, COUNTS] = first_count | (second_count << 8)
    t = (s.header[0]["n_learned"] - 1) % TREES  # the vote of one tree is updated per row
    s.votes[t] = compute_vote(float(errors[t]), False)


@compiled
def _split_leaf(store: np.ndarray, damping: np.ndarray, t: int, position: int, label: int) -> bool:
    """Split the leaf of tree ``t`` that the current row falls into, so that the row is separated from the leaf's latest row of
    another label. Returns False if the tree is full, or no drawn feature separates them. ``label`` is the row's class,
    ``position`` its index in the buffer of recent rows; ``damping`` makes features rarer in splits.
    """
    s = forest_views(store)
    node, leaf = s.reached[t], s.landed[t]
    h, leaves, nodes, thresholds = s.header[0], s.leaves, s.nodes, s.nodes.view(np.float32)
    first_label, latest, size = int(leaves[leaf, FIRST_LABEL]), int(leaves[leaf, LATEST_ROW]), int(s.sizes[t])
    used = min(h["used"], h["row_width"])
    if size + 2 > NODES or s.labels[latest] != first_label or used == 0:
        return False
    random, j, n_draws = h["random"], 0, 0
    bits = np.uint64(0)
    while n_draws < _MAX_DRAWS:
        random += GOLDEN_GAMMA
        bits = next_random(random)
        j = draw_below(bits, used)
        if s.rows[latest, j] != s.row[j] and (n_draws == _MAX_DRAWS - 1 or not is_skipped(bits, damping[j])):
            break
        n_draws += 1
    h["random"] = random
    if n_draws == _MAX_DRAWS:
        return False
    new_value, old_value = s.row[j], s.rows[latest, j]
    equal = 1 if s.fractions[j] == 0 and bits >> np.uint64(63) else 0
    threshold = new_value if equal else compute_threshold(new_value, old_value)
    left = t * NODES + size
    s.sizes[t] = size + 2
    nodes[node, 0], thresholds[node, 1] = left | (j << FEATURE) | (equal << EQUALITY), threshold
    new_child = left if equal or new_value <= threshold else left + 1
    old_leaf, new_leaf = leaf - t * LEAVES, (size + 1) // 2  # indices of leaves in the tree: two more nodes are one more leaf
    for child in range(left, left + 2):
        number = new_leaf if child == new_child else old_leaf
        nodes[child, 0], thresholds[child, 1] = child | (number << FEATURE), LEAF_THRESHOLD
    i = new_leaf + t * LEAVES
    leaves[i, FIRST_LABEL], leaves[i, SECOND_LABEL], leaves[i, LATEST_ROW], leaves[i, COUNTS] = label, 0, position, 1
    return True


# Regression --------------------------------------------------------------------------------------------------------------------


@compiled
def predict_targets(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Compute two predictions of a regression forest, a member of an ensemble, for the current row: its target, and the error of
    the members before the forest. They are stored in the ensemble's memory ``block``; ``store`` is the forest's own memory,
    ``expert`` its index. Always returns 0.
    """
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
    """Train a regression forest, a member of an ensemble, on the current row, whose ``target`` is in standard deviations: store
    the row, update the leaves it falls into, and grow a new tree if enough rows have arrived since the last. A row with a
    ``weight`` of 0 is not stored. Always returns 0.
    """
    s = forest_views(store)
    residual = target - np.float64(s.row[EXPERTS_VOTE])
    if weight > 0.0:
        position = _store_row(block, store)
        s.numbers[TARGET, position], s.numbers[RESIDUAL, position] = target, residual
        for kind in range(2):
            _update_means(store, kind, residual if kind == RESIDUAL else target)
        t = (s.header[0]["n_learned"] - 1) % TREES  # one tree's vote for each row
        s.votes[t] = compute_vote(float(s.errors[t]), True)
        grow_tree(store, ensemble_views(block).damping[0])
    s.header[0]["last_residual"] = residual
    return 0


@compiled
def _update_means(store: np.ndarray, kind: int, target: float) -> None:
    """Update the means in the leaves that the current row falls into with the value ``target``, and the recent errors of the
    trees. ``kind`` selects the trees: those that predict targets, or those that predict residuals. ``store`` is the forest's
    memory.
    """
    s = forest_views(store)
    means = s.leaves.view(np.float32)
    for t in range(kind, TREES, 2):
        leaf = s.landed[t]
        mean = np.float64(means[leaf, 0])
        s.ages[t] = min(int(s.ages[t]) + 1, ERROR_WINDOW)
        error = float(s.errors[t])
        s.errors[t] = np.float32(error + (abs(target - mean) - error) / (s.ages[t] + 2.0))
        rows = min(np.float64(means[leaf, 1]) + 1.0, float(MAX_MEAN_COUNT))
        means[leaf, 0], means[leaf, 1] = np.float32(mean + (target - mean) / rows), np.float32(rows)


# Anchors of features -----------------------------------------------------------------------------------------------------------

#: An anchor moves if the feature's mean is further away, in standard deviations: float32 resolves a deviation in 512 steps there.
MAX_ANCHOR_DISTANCE = 2.0**15
_MIN_REPEATS = 64  # equal rows that are a stretch in which nothing changes


@compiled
def rescale_forest(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:  # noqa: ARG001
    """Keep the rows stored in a forest precise in float32: if a feature's mean has moved far from its anchor (the value that is
    subtracted before storing), move the anchor to the current row's value. This happens if ``event`` is `NEW_SCALE`. If it is
    `CHECK_REPEATS`, return whether the current row equals the last stored ones. Returns 0 for all other events.
    """
    if event == CHECK_REPEATS:
        return _repeats_rows(block, store)
    if event != NEW_SCALE:
        return 0
    v, s = ensemble_views(block), forest_views(store)
    h = s.header[0]
    for j in range(min(h["used"], h["row_width"] - h["extra_columns"])):
        distance = abs(v.moments[j, 1] - s.anchors[j + h["extra_columns"]])
        if distance > MAX_ANCHOR_DISTANCE * v.spread[j] > 0.0 and abs(v.moments[j, 1] - v.unscaled[0, j]) < distance:
            _move_anchor(store, j + h["extra_columns"], v.unscaled[0, j])
    return 0


@compiled
def _repeats_rows(block: np.ndarray, store: np.ndarray) -> int:
    """Return 1 if the current row of the ensemble in ``block`` equals the last `_MIN_REPEATS` rows that its forest has stored in
    ``store``, and 0 otherwise, or if the forest does not store all features.
    """
    s = forest_views(store)
    h = s.header[0]
    n_extra, capacity, used = h["extra_columns"], h["capacity"], h["used"]
    if h["n_learned"] < _MIN_REPEATS or capacity < _MIN_REPEATS or used > h["row_width"] - n_extra:
        return 0
    _fill_row(block, store)
    for i in range(1, _MIN_REPEATS + 1):
        position = (h["n_learned"] - i) % capacity
        for j in range(n_extra, n_extra + used):
            if s.rows[position, j] != s.row[j]:
                return 0
    return 1


@compiled
def _move_anchor(store: np.ndarray, j: int, anchor: float) -> None:
    """Set the anchor of column j (the value that is subtracted before storing as float32) to ``anchor``, and shift the column's
    values in all stored rows and its thresholds in all trees of the forest accordingly.
    """
    s = forest_views(store)
    h, thresholds = s.header[0], s.nodes.view(np.float32)
    shift = s.anchors[j] - anchor
    s.anchors[j] = anchor
    for i in range(min(h["n_learned"], h["capacity"])):
        s.rows[i, j] = _shift_value(s.rows[i, j], shift)
    for t in range(TREES):
        for i in range(t * NODES, t * NODES + s.sizes[t]):
            if (s.nodes[i, 0] >> FEATURE) & 0x3FFF == j and thresholds[i, 1] != LEAF_THRESHOLD:
                thresholds[i, 1] = _shift_value(thresholds[i, 1], shift)


@compiled(inline=True)
def _shift_value(value: np.float32, shift: float) -> np.float32:
    """Return ``value`` + ``shift`` as float32, clipped to the largest magnitude that the forest stores."""
    return np.float32(min(max(float(value) + shift, -LARGEST_VALUE), LARGEST_VALUE))
