"""How a tree of a rolling forest is grown, compiled.

A tree is grown of the latest rows, of which it draws most, in the place of the oldest tree. At a node it tries some features,
each with some thresholds midway between two of the node's rows, and takes the test that leaves the labels purest (Gini's
index), or the variance of numbers least, as about 64 of the rows have it. The features are drawn: that is what makes trees
differ (Breiman 2001, Random forests). One that is damped is passed over: in full, in nine of ten draws. The next tree is due
once rows have come for the work that this one was.
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

#: Units of work on trees for each row, a value that is looked at being one; and where numbers are predicted.
WORK_PER_ROW, WORK_PER_ROW_REGRESSION = 600, 1500
_DRAWN = np.uint64(0.85 * 2.0**32)  # the share of the rows that a tree draws, over 2^-32
_LEAST_BEGUN, _LEAST_DRAWN = 10, 4  # rows
_PAUSE, _LONGEST_PAUSE = 2 * TREES, 100  # rows from one tree to the next: one in so many that were learned, at most so many
_COUNTED = 64  # rows of a node of which tests are counted, up to twice
_MANY, _VERY_FEW = 256, 6  # rows from which on twice the tests are tried, and below which a third
_LEAST_CUT = 8  # rows of a node that is cut, where numbers are predicted
_GROWN = 20  # rows that the first error of a new tree counts as
_YOUNG = 1000  # rows until which it counts as none
_PASSED_OVER = 0.9 * 2.0**31  # the share of the draws of a feature that is damped in full, over 2^-31
_STEEP, _SHARP = 4.0, 0.01  # a vote is exp(-that times the error of the tree); of numbers 1 / (that + the error) ** 2

#: The threshold of a leaf.
LEAF_THRESHOLD = np.float32(np.inf)
_HALF = np.float32(0.5)

_tried_of = compiled(count_tried_features)
_window_of = compiled(count_growing_rows)
_columns_in_use = compiled(count_used_columns)


@compiled(inline=True)
def draw_below(bits: np.uint64, n: int) -> int:
    """A number below n, of the low half of random bits."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@compiled(inline=True)
def is_skipped(bits: np.uint64, damping: float) -> bool:
    """Whether a feature that was drawn is passed over, by the 33rd to the 63rd of random bits."""
    return bool(damping * _PASSED_OVER > np.float64((bits >> np.uint64(32)) & np.uint64(0x7FFFFFFF)))


@compiled(inline=True)
def compute_threshold(a: np.float32, b: np.float32) -> np.float32:
    """A threshold that has one of two values on each side."""
    middle = np.float32(_HALF * (a + b))
    return min(a, b) if middle == max(a, b) else middle


@compiled(inline=True)
def compute_vote(error: float, numbers: bool) -> np.float32:
    """The vote of a tree, by its error."""
    return np.float32(1.0 / ((_SHARP + error) * (_SHARP + error)) if numbers else math.exp(-_STEEP * error))


@compiled
def grow_tree(store: np.ndarray, damping: np.ndarray) -> None:
    """Grow a tree in the place of the oldest one, if it is due; ``damping`` is float64 [features or more].

    Its error is as that of the others, of the same kind.
    """
    s = forest_views(store)
    h = s.header[0]
    learned, tree, kinds = h["n_learned"], h["n_grown"] % TREES, 1 if h["labels"] > 0 else 2
    if learned < max(_LEAST_BEGUN, h["next_growth"]):
        return
    work, drawn = _draw_rows(store)
    if drawn >= _LEAST_DRAWN:
        work += _grow_nodes(store, damping, tree, drawn)
        error = 0.0
        for t in range(tree % kinds, TREES, kinds):
            error += float(s.errors[t]) if t != tree else 0.0
        s.errors[tree] = np.float32(error / (TREES // kinds - 1))
        s.votes[tree] = compute_vote(float(s.errors[tree]), kinds == 2)
        s.ages[tree] = _GROWN if learned >= _YOUNG else 0
        h["n_grown"] += 1
    h["next_growth"] = learned + max(
        min(learned // _PAUSE, _LONGEST_PAUSE), work // (WORK_PER_ROW if kinds == 1 else WORK_PER_ROW_REGRESSION), 1
    )


@compiled
def _draw_rows(store: np.ndarray) -> tuple[int, int]:
    # Draw most of the latest rows; how many were looked at, and how many drawn.
    s = forest_views(store)
    h, members, labels = s.header[0], s.members, s.labels
    learned, places, drawn, random = h["n_learned"], h["capacity"], 0, h["random"]
    some = min(learned, _window_of(places))
    for back in range(some):
        random += GOLDEN_GAMMA
        if next_random(random) >> np.uint64(32) < _DRAWN:
            place = (learned - 1 - back) % places
            members[0, drawn], members[1, drawn] = place, labels[place]
            drawn += 1
    h["random"] = random
    return some, drawn


@compiled
def _grow_nodes(store: np.ndarray, damping: np.ndarray, tree: int, drawn: int) -> int:
    # Grow a tree of the rows that were drawn, breadth first; the work that it was.
    s = forest_views(store)
    h, waiting, nodes, thresholds = s.header[0], s.waiting, s.nodes, s.nodes.view(np.float32)
    root, node, size, leaves, work, numbers = tree * NODES, 0, 1, 0, 0, h["labels"] == 0
    waiting[0, NODE_BEGIN], waiting[0, NODE_END], waiting[0, IS_MIXED], waiting[0, NODE_DEPTH] = 0, drawn, 1, 0
    while node < size:
        begin, end, deep = int(waiting[node, NODE_BEGIN]), int(waiting[node, NODE_END]), int(waiting[node, NODE_DEPTH])
        n, middle, best = end - begin, begin, -1
        work += 8
        if waiting[node, IS_MIXED] and n >= 2 and size + 2 <= NODES and deep < DEPTH:
            tried, tries = _draw_tests(store, damping, begin, n)
            best = _best_test(store, tried, begin, end) if tried > 0 else -1
            work += 3 * tries + tried * min(n, _COUNTED)
        if best >= 0:
            middle = _divide_rows(store, best, begin, end)
            work += 2 * n
        if middle in (begin, end):
            nodes[root + node, 0], thresholds[root + node, 1] = (root + node) | (leaves << FEATURE), LEAF_THRESHOLD
            if numbers:
                _average_leaf(store, tree * LEAVES + leaves, begin, end)
            else:
                _count_leaf(store, tree * LEAVES + leaves, begin, end, waiting[node, IS_MIXED] != 0)
            leaves += 1
        else:
            nodes[root + node, 0] = (root + size) | (int(s.features[best]) << FEATURE) | (int(s.equal[best]) << EQUALITY)
            thresholds[root + node, 1] = s.thresholds[best]
            for child in range(size, size + 2):
                first, last = (begin, middle) if child == size else (middle, end)
                waiting[child, NODE_BEGIN], waiting[child, NODE_END], waiting[child, NODE_DEPTH] = first, last, deep + 1
                waiting[child, IS_MIXED] = last - first >= _LEAST_CUT if numbers else _is_mixed(s.members[1, first:last])
            size += 2
        node += 1
    s.sizes[tree] = size
    return work


@compiled
def _is_mixed(labels: np.ndarray) -> bool:
    for label in labels:  # noqa: SIM110 - compiled
        if label != labels[0]:
            return True
    return False


@compiled
def _draw_tests(store: np.ndarray, damping: np.ndarray, begin: int, n: int) -> tuple[int, int]:
    # Draw tests of features and of two of n rows that differ there; how many there are, and how often they were drawn.
    s = forest_views(store)
    h, members, rows, random = s.header[0], s.members, s.rows, s.header[0]["random"]
    used, tried, tries, added = _columns_in_use(h["used"], h["extra_columns"], h["row_width"]), 0, 0, h["extra_columns"]
    wanted = TESTS * _tried_of(used)
    wanted = min(2 * wanted if n >= _MANY else max(wanted // 3, 2) if n < _VERY_FEW else wanted, h["tests"])
    passed = (
        N_EXTRA_COLUMNS - 1 if added > 0 and h["n_grown"] & 1 != RESIDUAL else 0
    )  # columns behind the first that are not for this tree
    used -= passed
    while tried < wanted and tries < 4 * wanted and used > 0:
        tries += 1
        random += GOLDEN_GAMMA
        bits = next_random(random)
        j, equal = draw_below(bits, used), 0
        j += passed if j > 0 else 0
        a = rows[int(members[0, begin + draw_below(bits >> np.uint64(32), n)]), j]
        random += GOLDEN_GAMMA
        bits = next_random(random)
        if added == 0 and is_skipped(bits, damping[j]):
            continue
        b = rows[int(members[0, begin + draw_below(bits, n)]), j]
        threshold = compute_threshold(a, b)
        if s.fractions[j] == 0 and (a == b or bits >> np.uint64(63)):
            equal, threshold = 1, a
        elif a == b:
            continue
        s.features[tried], s.equal[tried], s.thresholds[tried] = j, equal, threshold
        tried += 1
    h["random"] = random
    return tried, tries


@compiled
def _count_tests(store: np.ndarray, tried: int, begin: int, end: int, step: int) -> None:
    # Count the labels of some of a node's rows on both sides of each test.
    s = forest_views(store)
    members, rows, counts, squares, beyond = s.members, s.rows, s.counts, s.squares, s.beyond
    features, equal, thresholds = s.features, s.equal, s.thresholds
    counts[:tried], squares[:tried], beyond[:tried] = 0, 0, 0
    for q in range(begin, end, step):
        i, label = np.uint64(members[0, q]), np.uint64(members[1, q])
        for c in range(tried):
            value, threshold = rows[i, np.uint64(features[c])], thresholds[c]
            passes = np.int64(value <= threshold) & (np.int64(value == threshold) | (1 - int(equal[c])))
            side = np.uint64(1 - passes)
            count = int(counts[c, side, label])
            counts[c, side, label] = count + 1
            squares[c, side] += 2 * count + 1
            beyond[c] += 1 - passes


@compiled
def _sum_numbers(store: np.ndarray, tried: int, begin: int, end: int, step: int) -> None:
    # Sum the numbers of some of a node's rows that do not pass each test; test by test, so that sums are not in memory.
    s = forest_views(store)
    members, rows, numbers = s.members[0], s.rows, s.numbers[s.header[0]["n_grown"] & 1]
    for c in range(tried):
        j, threshold, equal = np.uint64(s.features[c]), s.thresholds[c], s.equal[c] == 1
        total, beyond = 0.0, 0
        for q in range(begin, end, step):
            i = np.uint64(members[q])
            value = rows[i, j]
            fails = (value > threshold) | (equal & (value != threshold))
            total += np.float64(numbers[i]) * fails  # a branch would be foretold wrongly, half of the time
            beyond += fails
        s.sums[c], s.beyond[c] = total, beyond


@compiled
def _best_test(store: np.ndarray, tried: int, begin: int, end: int) -> int:
    # The test that leaves the labels purest, or the variance of numbers least; -1 where all rows lie on one side of each.
    s = forest_views(store)
    numbers, step = s.header[0]["labels"] == 0, max((end - begin) // _COUNTED, 1)
    counted = (end - begin + step - 1) // step
    best, purest, total = -1, -1.0, 0.0
    if numbers:
        _sum_numbers(store, tried, begin, end, step)
        for q in range(begin, end, step):
            total += np.float64(s.numbers[s.header[0]["n_grown"] & 1, s.members[0, q]])
    else:
        _count_tests(store, tried, begin, end, step)
    for c in range(tried):
        right = int(s.beyond[c])
        left = counted - right
        if left > 0 and right > 0:
            if numbers:
                passed = total - s.sums[c]
                pure = passed * passed / left + s.sums[c] * s.sums[c] / right
            else:
                pure = np.float64(s.squares[c, 0]) / left + np.float64(s.squares[c, 1]) / right
            if pure > purest:
                purest, best = pure, c
    return best


@compiled
def _divide_rows(store: np.ndarray, c: int, begin: int, end: int) -> int:
    # Bring a node's rows that pass a test to the front; where the others begin.
    s = forest_views(store)
    members, rows, feature, equal, threshold = s.members, s.rows, int(s.features[c]), int(s.equal[c]), s.thresholds[c]
    first, last = begin, end - 1
    while first <= last:
        place, label = members[0, first], members[1, first]
        value = rows[int(place), feature]
        if (value == threshold) if equal else (value <= threshold):
            first += 1
        else:
            members[0, first], members[1, first] = members[0, last], members[1, last]
            members[0, last], members[1, last] = place, label
            last -= 1
    return first


@compiled
def _average_leaf(store: np.ndarray, leaf: int, begin: int, end: int) -> None:
    # Let a leaf be the mean of the numbers of some of a node's rows.
    s = forest_views(store)
    means, total, n = s.leaves.view(np.float32), 0.0, 0
    for q in range(begin, end, max((end - begin) // _COUNTED, 1)):
        total += np.float64(s.numbers[s.header[0]["n_grown"] & 1, s.members[0, q]])
        n += 1
    means[leaf, 0], means[leaf, 1] = np.float32(total / n), np.float32(min(end - begin, MAX_MEAN_COUNT))


@compiled
def _count_leaf(store: np.ndarray, leaf: int, begin: int, end: int, mixed: bool) -> None:
    # Let a leaf have the two commonest labels, as some of a node's rows have them.
    s = forest_views(store)
    members, counts = s.members, s.counts[0, 0]
    step = max((end - begin) // _COUNTED, 1) if mixed else end - begin
    counts[:] = 0
    for q in range(begin, end, step):
        counts[members[1, q]] += 1
    label, other, latest = int(members[1, begin]), 0, begin
    for q in range(begin, end, step):
        if counts[members[1, q]] > counts[label]:
            label = int(members[1, q])
    first, second = int(counts[label]), 0
    for q in range(begin, end, step):
        k = int(members[1, q])
        if k == label:
            latest = q
        elif counts[k] > second:
            second, other = int(counts[k]), k
    if not mixed:
        first = end - begin
    if first >= MAX_LEAF_COUNT:
        first, second = MAX_LEAF_COUNT - 1, second * (MAX_LEAF_COUNT - 1) // first
    s.leaves[leaf, FIRST_LABEL], s.leaves[leaf, SECOND_LABEL] = label, other
    s.leaves[leaf, LATEST_ROW], s.leaves[leaf, COUNTS] = members[0, latest], first | (second << 8)
