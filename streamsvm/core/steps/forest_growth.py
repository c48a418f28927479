"""Growing one tree of a rolling forest, compiled.

A new tree is grown from a random sample of the latest rows, and replaces the oldest tree. At a node, it tries random features
with random thresholds, each midway between two rows of the node, and keeps the split with the smallest Gini impurity of the
labels, or the smallest variance of the targets, estimated on about 64 rows of the node. Random features make the trees differ
(Breiman 2001, Random forests). A fully damped feature is skipped in nine of ten draws. The next tree is due once enough rows have
arrived to pay for the work of this one.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.forest import (
    COUNTS,
    DEPTH,
    EQUALITY,
    FEATURE,
    FIRST_LABEL,
    IS_MIXED,
    LATEST_ROW,
    LEAVES,
    MAX_LEAF_COUNT,
    MAX_MEAN_COUNT,
    N_EXTRA_COLUMNS,
    NODE_BEGIN,
    NODE_DEPTH,
    NODE_END,
    NODES,
    RESIDUAL,
    SECOND_LABEL,
    TESTS,
    TREES,
    count_growing_rows,
    count_tried_features,
    count_used_columns,
    forest_views,
)
from streamsvm.core.memory.slots import GOLDEN_GAMMA, next_random

#: Work for growing trees per learned row, in values read: for classification and for regression.
WORK_PER_ROW, WORK_PER_ROW_REGRESSION = 600, 1500
_SAMPLE_SHARE = np.uint64(0.85 * 2.0**32)  # share of the latest rows in a tree's sample, times 2^32
_MIN_LEARNED, _MIN_SAMPLE = 10, 4  # rows learned before the first tree, and rows that a tree is grown from
_PAUSE_DIVISOR, _MAX_PAUSE = 2 * TREES, 100  # pause between two trees: this fraction of the rows learned, at most 100 rows
_ROWS_PER_TEST = 64  # rows (up to twice as many) of a node on which splits are evaluated
# Nodes with at least 256 rows try twice as many splits, nodes with less than 6 rows a third.
_LARGE_NODE, _SMALL_NODE = 256, 6
_MIN_SPLIT_ROWS = 8  # smallest node that is split in regression, in rows
_INITIAL_AGE = 20  # weight of the initial error of a new tree, in rows
_WARM_UP_ROWS = 1000  # rows learned before that; until then, the initial error has no weight
_SKIPPED_SHARE = 0.9 * 2.0**31  # share of draws that skip a fully damped feature, times 2^31
_VOTE_DECAY, _VOTE_OFFSET = 4.0, 0.01  # a tree votes with exp(-4 error); in regression with 1 / (0.01 + error)^2

#: The threshold that marks a node as a leaf.
LEAF_THRESHOLD = np.float32(np.inf)
_HALF = np.float32(0.5)

_count_tried_features = compiled(count_tried_features)
_count_growing_rows = compiled(count_growing_rows)
_count_used_columns = compiled(count_used_columns)


@compiled(inline=True)
def draw_below(bits: np.uint64, n: int) -> int:
    """Return a pseudo-random integer from 0 to n - 1, computed from the low 32 of 64 random ``bits``."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@compiled(inline=True)
def is_skipped(bits: np.uint64, damping: float) -> bool:
    """Return whether a randomly drawn feature is to be skipped: with a probability of 0.9 times its ``damping`` (0 for relevant
    features, near 1 for irrelevant ones). The chance is taken from bits 33 to 63 of the random ``bits``.
    """
    return bool(damping * _SKIPPED_SHARE > np.float64((bits >> np.uint64(32)) & np.uint64(0x7FFFFFFF)))


@compiled(inline=True)
def compute_threshold(a: np.float32, b: np.float32) -> np.float32:
    """Return a threshold between two different feature values ``a`` and ``b``, to split a tree node: the smaller value is at
    most the threshold, the larger one is above it.
    """
    middle = np.float32(_HALF * (a + b))
    return min(a, b) if middle == max(a, b) else middle


@compiled(inline=True)
def compute_vote(error: float, regression: bool) -> np.float32:
    """Return the weight of a tree's vote from its recent ``error``: exp(-4 error) in classification, 1 / (0.01 + error)^2 in
    ``regression``.
    """
    return np.float32(1.0 / ((_VOTE_OFFSET + error) * (_VOTE_OFFSET + error)) if regression else math.exp(-_VOTE_DECAY * error))


@compiled
def grow_tree(store: np.ndarray, damping: np.ndarray) -> None:
    """Replace the oldest tree of the forest by a new one grown from the latest rows, if enough rows have arrived since the last
    growth to pay for the work. ``store`` is the forest's memory; features with a large ``damping`` float64 [features or more] are
    tried less often.

    The initial error of the new tree is the mean error of the other trees of its kind.
    """
    s = forest_views(store)
    h = s.header[0]
    n_learned, tree, n_kinds = h["n_learned"], h["n_grown"] % TREES, 1 if h["labels"] > 0 else 2
    if n_learned < max(_MIN_LEARNED, h["next_growth"]):
        return
    work, n_sampled = _draw_sample(store)
    if n_sampled >= _MIN_SAMPLE:
        work += _grow_nodes(store, damping, tree, n_sampled)
        error = 0.0
        for t in range(tree % n_kinds, TREES, n_kinds):
            error += float(s.errors[t]) if t != tree else 0.0
        s.errors[tree] = np.float32(error / (TREES // n_kinds - 1))
        s.votes[tree] = compute_vote(float(s.errors[tree]), n_kinds == 2)
        s.ages[tree] = _INITIAL_AGE if n_learned >= _WARM_UP_ROWS else 0
        h["n_grown"] += 1
    work_per_row = WORK_PER_ROW if n_kinds == 1 else WORK_PER_ROW_REGRESSION
    h["next_growth"] = n_learned + max(min(n_learned // _PAUSE_DIVISOR, _MAX_PAUSE), work // work_per_row, 1)


@compiled
def _draw_sample(store: np.ndarray) -> tuple[int, int]:
    """Draw a random sample (85 %) of the latest rows to train a tree on, and store their indices and labels in the forest's
    memory ``store``. Returns a tuple: number of rows considered, number of rows drawn.
    """
    s = forest_views(store)
    h, members, labels = s.header[0], s.members, s.labels
    n_learned, capacity, n_sampled, random = h["n_learned"], h["capacity"], 0, h["random"]
    n_visited = min(n_learned, _count_growing_rows(capacity))
    for age in range(n_visited):
        random += GOLDEN_GAMMA
        if next_random(random) >> np.uint64(32) < _SAMPLE_SHARE:
            position = (n_learned - 1 - age) % capacity
            members[0, n_sampled], members[1, n_sampled] = position, labels[position]
            n_sampled += 1
    h["random"] = random
    return n_visited, n_sampled


@compiled
def _grow_nodes(store: np.ndarray, damping: np.ndarray, tree: int, n_sampled: int) -> int:
    """Build the tree with index ``tree`` from the ``n_sampled`` drawn rows in the forest's memory ``store``, breadth first. A
    feature with a ``damping`` near 1 is rarely used in splits. Returns the work done, as a number of values read.
    """
    s = forest_views(store)
    h, waiting, nodes, thresholds = s.header[0], s.waiting, s.nodes, s.nodes.view(np.float32)
    root, node, size, n_leaves, work, regression = tree * NODES, 0, 1, 0, 0, h["labels"] == 0
    waiting[0, NODE_BEGIN], waiting[0, NODE_END], waiting[0, IS_MIXED], waiting[0, NODE_DEPTH] = 0, n_sampled, 1, 0
    while node < size:
        start, stop, depth = int(waiting[node, NODE_BEGIN]), int(waiting[node, NODE_END]), int(waiting[node, NODE_DEPTH])
        n, middle, best = stop - start, start, -1
        work += 8
        if waiting[node, IS_MIXED] and n >= 2 and size + 2 <= NODES and depth < DEPTH:
            n_tests, n_draws = _draw_splits(store, damping, start, n)
            best = _find_best_split(store, n_tests, start, stop) if n_tests > 0 else -1
            work += 3 * n_draws + n_tests * min(n, _ROWS_PER_TEST)
        if best >= 0:
            middle = _split_rows(store, best, start, stop)
            work += 2 * n
        if middle in (start, stop):
            nodes[root + node, 0], thresholds[root + node, 1] = (root + node) | (n_leaves << FEATURE), LEAF_THRESHOLD
            if regression:
                _fill_mean_leaf(store, tree * LEAVES + n_leaves, start, stop)
            else:
                _fill_label_leaf(store, tree * LEAVES + n_leaves, start, stop, waiting[node, IS_MIXED] != 0)
            n_leaves += 1
        else:
            nodes[root + node, 0] = (root + size) | (int(s.features[best]) << FEATURE) | (int(s.equal[best]) << EQUALITY)
            thresholds[root + node, 1] = s.thresholds[best]
            for child in range(size, size + 2):
                first, last = (start, middle) if child == size else (middle, stop)
                waiting[child, NODE_BEGIN], waiting[child, NODE_END], waiting[child, NODE_DEPTH] = first, last, depth + 1
                waiting[child, IS_MIXED] = last - first >= _MIN_SPLIT_ROWS if regression else _is_mixed(s.members[1, first:last])
            size += 2
        node += 1
    s.sizes[tree] = size
    return work


@compiled
def _is_mixed(labels: np.ndarray) -> bool:
    """Return whether an array of class labels contains different labels."""
    for label in labels:  # noqa: SIM110 - compiled
        if label != labels[0]:
            return True
    return False


@compiled
def _draw_splits(store: np.ndarray, damping: np.ndarray, start: int, n: int) -> tuple[int, int]:
    """Draw random candidate splits for a tree node: each is a feature, and a threshold between two rows that differ in it. The
    node has the ``n`` sampled rows from index ``start`` on. A feature with a ``damping`` near 1 is rarely drawn. Returns a
    tuple: number of candidates, number of draws.
    """
    s = forest_views(store)
    h, members, rows, random = s.header[0], s.members, s.rows, s.header[0]["random"]
    used, n_tests, n_draws, n_extra = _count_used_columns(h["used"], h["extra_columns"], h["row_width"]), 0, 0, h["extra_columns"]
    max_tests = TESTS * _count_tried_features(used)
    max_tests = min(2 * max_tests if n >= _LARGE_NODE else max(max_tests // 3, 2) if n < _SMALL_NODE else max_tests, h["tests"])
    # Trees of targets do not use the extra columns except the first.
    n_hidden = N_EXTRA_COLUMNS - 1 if n_extra > 0 and h["n_grown"] & 1 != RESIDUAL else 0
    used -= n_hidden
    while n_tests < max_tests and n_draws < 4 * max_tests and used > 0:
        n_draws += 1
        random += GOLDEN_GAMMA
        bits = next_random(random)
        j, equal = draw_below(bits, used), 0
        j += n_hidden if j > 0 else 0
        a = rows[int(members[0, start + draw_below(bits >> np.uint64(32), n)]), j]
        random += GOLDEN_GAMMA
        bits = next_random(random)
        if n_extra == 0 and is_skipped(bits, damping[j]):
            continue
        b = rows[int(members[0, start + draw_below(bits, n)]), j]
        threshold = compute_threshold(a, b)
        if s.fractions[j] == 0 and (a == b or bits >> np.uint64(63)):
            equal, threshold = 1, a
        elif a == b:
            continue
        s.features[n_tests], s.equal[n_tests], s.thresholds[n_tests] = j, equal, threshold
        n_tests += 1
    h["random"] = random
    return n_tests, n_draws


@compiled
def _count_labels(store: np.ndarray, n_tests: int, start: int, stop: int, step: int) -> None:
    """Count the class labels on both sides of each of ``n_tests`` candidate splits of a tree node, over every ``step``-th of the
    sampled rows from index ``start`` to ``stop``. The counts are stored in the forest's memory ``store``.
    """
    s = forest_views(store)
    members, rows, counts, squares, beyond = s.members, s.rows, s.counts, s.squares, s.beyond
    features, equal, thresholds = s.features, s.equal, s.thresholds
    counts[:n_tests], squares[:n_tests], beyond[:n_tests] = 0, 0, 0
    for q in range(start, stop, step):
        i, label = np.uint64(members[0, q]), np.uint64(members[1, q])
        for c in range(n_tests):
            value, threshold = rows[i, np.uint64(features[c])], thresholds[c]
            passes = np.int64(value <= threshold) & (np.int64(value == threshold) | (1 - int(equal[c])))
            side = np.uint64(1 - passes)
            count = int(counts[c, side, label])
            counts[c, side, label] = count + 1
            squares[c, side] += 2 * count + 1
            beyond[c] += 1 - passes


@compiled
def _sum_targets(store: np.ndarray, n_tests: int, start: int, stop: int, step: int) -> None:
    """Sum the regression targets, and count the rows, on the right side of each of ``n_tests`` candidate splits of a tree node,
    over every ``step``-th of the sampled rows from index ``start`` to ``stop``. The sums are stored in the forest's memory
    ``store``.

    It loops over splits outside and rows inside, so that the sums stay in registers.
    """
    s = forest_views(store)
    members, rows, numbers = s.members[0], s.rows, s.numbers[s.header[0]["n_grown"] & 1]
    for c in range(n_tests):
        j, threshold, equal = np.uint64(s.features[c]), s.thresholds[c], s.equal[c] == 1
        total, beyond = 0.0, 0
        for q in range(start, stop, step):
            i = np.uint64(members[q])
            value = rows[i, j]
            fails = (value > threshold) | (equal & (value != threshold))
            total += np.float64(numbers[i]) * fails  # a branch would be mispredicted half of the time
            beyond += fails
        s.sums[c], s.beyond[c] = total, beyond


@compiled
def _find_best_split(store: np.ndarray, n_tests: int, start: int, stop: int) -> int:
    """Return the index of the best of ``n_tests`` candidate splits of a tree node: the one with the smallest Gini impurity of
    labels, or the smallest variance of regression targets. -1 if no candidate separates any rows. The node has the sampled rows
    from index ``start`` to ``stop`` in the forest's memory ``store``.
    """
    s = forest_views(store)
    regression, step = s.header[0]["labels"] == 0, max((stop - start) // _ROWS_PER_TEST, 1)
    n_rows = (stop - start + step - 1) // step
    best, max_purity, total = -1, -1.0, 0.0
    if regression:
        _sum_targets(store, n_tests, start, stop, step)
        for q in range(start, stop, step):
            total += np.float64(s.numbers[s.header[0]["n_grown"] & 1, s.members[0, q]])
    else:
        _count_labels(store, n_tests, start, stop, step)
    for c in range(n_tests):
        n_right = int(s.beyond[c])
        n_left = n_rows - n_right
        if n_left > 0 and n_right > 0:
            if regression:
                total_left = total - s.sums[c]
                purity = total_left * total_left / n_left + s.sums[c] * s.sums[c] / n_right
            else:
                purity = np.float64(s.squares[c, 0]) / n_left + np.float64(s.squares[c, 1]) / n_right
            if purity > max_purity:
                max_purity, best = purity, c
    return best


@compiled
def _split_rows(store: np.ndarray, c: int, start: int, stop: int) -> int:
    """Reorder the sampled rows from index ``start`` to ``stop``, those of a tree node, by the candidate split with the index
    ``c``: rows of the left child first. Returns the index of the first row of the right child. ``store`` is the forest's memory.
    """
    s = forest_views(store)
    members, rows, feature, equal, threshold = s.members, s.rows, int(s.features[c]), int(s.equal[c]), s.thresholds[c]
    first, last = start, stop - 1
    while first <= last:
        position, label = members[0, first], members[1, first]
        value = rows[int(position), feature]
        if (value == threshold) if equal else (value <= threshold):
            first += 1
        else:
            members[0, first], members[1, first] = members[0, last], members[1, last]
            members[0, last], members[1, last] = position, label
            last -= 1
    return first


@compiled
def _fill_mean_leaf(store: np.ndarray, leaf: int, start: int, stop: int) -> None:
    """Set a regression leaf to the mean target of its rows: the sampled rows from index ``start`` to ``stop``, up to a limit.
    Their number becomes its weight. ``leaf`` is its index in the forest's memory ``store``.
    """
    s = forest_views(store)
    means, total, n = s.leaves.view(np.float32), 0.0, 0
    for q in range(start, stop, max((stop - start) // _ROWS_PER_TEST, 1)):
        total += np.float64(s.numbers[s.header[0]["n_grown"] & 1, s.members[0, q]])
        n += 1
    means[leaf, 0], means[leaf, 1] = np.float32(total / n), np.float32(min(stop - start, MAX_MEAN_COUNT))


@compiled
def _fill_label_leaf(store: np.ndarray, leaf: int, start: int, stop: int, mixed: bool) -> None:
    """Set a classification leaf to the two most frequent labels, and their counts, of its rows: the sampled rows from index
    ``start`` to ``stop``, up to a limit. ``leaf`` is its index in the forest's memory ``store``; ``mixed`` is False if all its
    labels are equal.
    """
    s = forest_views(store)
    members, counts = s.members, s.counts[0, 0]
    step = max((stop - start) // _ROWS_PER_TEST, 1) if mixed else stop - start
    counts[:] = 0
    for q in range(start, stop, step):
        counts[members[1, q]] += 1
    label, second_label, latest = int(members[1, start]), 0, start
    for q in range(start, stop, step):
        if counts[members[1, q]] > counts[label]:
            label = int(members[1, q])
    first_count, second_count = int(counts[label]), 0
    for q in range(start, stop, step):
        k = int(members[1, q])
        if k == label:
            latest = q
        elif counts[k] > second_count:
            second_count, second_label = int(counts[k]), k
    if not mixed:
        first_count = stop - start
    if first_count >= MAX_LEAF_COUNT:
        first_count, second_count = MAX_LEAF_COUNT - 1, second_count * (MAX_LEAF_COUNT - 1) // first_count
    s.leaves[leaf, FIRST_LABEL], s.leaves[leaf, SECOND_LABEL] = label, second_label
    s.leaves[leaf, LATEST_ROW], s.leaves[leaf, COUNTS] = members[0, latest], first_count | (second_count << 8)
