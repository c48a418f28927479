"""How the tree of a rolling forest grows that does not vote yet, compiled: a little with each row.

At a node it tries some features, each with some thresholds midway between two of the node's rows, and takes the test that leaves
the labels purest (Gini's index), as about 64 of the rows have it. The features are drawn: that is what makes trees differ
(Breiman 2001, Random forests). One that is damped is passed over: in full, in nine of ten draws. Growing a tree at once would
hold up one row. It grows by `WORK` units with each row instead, of which a value that is looked at is one. When it is whole, it
takes the place of the oldest one, and the next one begins.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.forest import (
    ADDED,
    BEGIN,
    COUNTING,
    COUNTS,
    DEEP,
    DEPTH,
    DIVIDING,
    DRAWING,
    END,
    EQUALITY,
    FEATURE,
    IDLE,
    LABEL,
    LEAVES,
    MISSING,
    MIXED,
    MOST_AVERAGED,
    MOST_COUNTED,
    NODES,
    NONE,
    OPENING,
    OTHER,
    PLACE,
    SEVERAL,
    TESTS,
    TREES,
    columns_in_use,
    forest_views,
    tried_of,
    window_of,
)
from streamsvm.core.memory.slots import GOLDEN_GAMMA, next_random

#: Units of work on the tree that grows, for each row; and where numbers are predicted.
WORK, WORK_OF_NUMBERS = 600, 1500
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
INFINITE = np.float32(np.inf)
_HALF = np.float32(0.5)

_tried_of = compiled(tried_of)
_window_of = compiled(window_of)
_columns_in_use = compiled(columns_in_use)


@compiled(inline=True)
def drawn_below(bits: np.uint64, n: int) -> int:
    """A number below n, of the low half of random bits."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@compiled(inline=True)
def passed_over(bits: np.uint64, damping: float) -> bool:
    """Whether a feature that was drawn is passed over, by the 33rd to the 63rd of random bits."""
    return bool(damping * _PASSED_OVER > np.float64((bits >> np.uint64(32)) & np.uint64(0x7FFFFFFF)))


@compiled(inline=True)
def midway(a: np.float32, b: np.float32) -> np.float32:
    """A threshold that has one of two values on each side."""
    middle = np.float32(_HALF * (a + b))
    return min(a, b) if middle == max(a, b) else middle


@compiled(inline=True)
def vote_of(error: float, numbers: bool) -> np.float32:
    """The vote of a tree, by its error."""
    return np.float32(1.0 / ((_SHARP + error) * (_SHARP + error)) if numbers else math.exp(-_STEEP * error))


@compiled
def grow_tree(store: np.ndarray, damping: np.ndarray) -> None:
    """Do the work on the tree that grows that there is for a row; ``damping`` is float64 [features or more]. O(1)."""
    h = forest_views(store).header[0]
    work = WORK if h["labels"] > 0 else WORK_OF_NUMBERS
    while work > 0:
        phase = h["phase"]
        if phase == IDLE:
            if not _begin_tree(store):
                return
        elif phase == DRAWING:
            work = _draw_rows(store, work)
        elif phase == OPENING:
            work = _open_node(store, damping, work)
        elif phase == COUNTING:
            work = _count_tests(store, work) if h["labels"] > 0 else _sum_numbers(store, work)
        else:
            work = _divide_rows(store, work)


@compiled(inline=True)
def _begin_tree(store: np.ndarray) -> bool:
    h = forest_views(store).header[0]
    learned = h["learned"]
    if learned < _LEAST_BEGUN or learned - h["begun"] < min(learned // _PAUSE, _LONGEST_PAUSE):
        return False
    h["begun"], h["phase"], h["cursor"], h["drawn"] = learned, DRAWING, 0, 0
    return True


@compiled
def _draw_rows(store: np.ndarray, work: int) -> int:
    # Draw most of the latest rows; what is left of the work.
    s = forest_views(store)
    h, members, labels = s.header[0], s.members, s.labels
    begun, places, begin, drawn, random = h["begun"], h["places"], h["cursor"], h["drawn"], h["random"]
    some = min(begun, _window_of(places))
    end = min(some, begin + work)
    for cursor in range(begin, end):
        random += GOLDEN_GAMMA
        if next_random(random) >> np.uint64(32) < _DRAWN:
            place = (begun - 1 - cursor) % places
            members[0, drawn], members[1, drawn] = place, labels[place]
            drawn += 1
    h["cursor"], h["drawn"], h["random"] = end, drawn, random
    if end == some:
        h["phase"], h["node"], h["leaf"] = OPENING if drawn >= _LEAST_DRAWN else IDLE, 0, 0
        s.sizes[s.slots[TREES]] = 1
        s.waiting[0, BEGIN], s.waiting[0, END], s.waiting[0, MIXED], s.waiting[0, DEEP] = 0, drawn, 1, 0
    return work - (end - begin)


@compiled
def _open_node(store: np.ndarray, damping: np.ndarray, work: int) -> int:
    # Draw the tests of the next node, or make it a leaf; or end with the tree that is whole. What is left of the work.
    s = forest_views(store)
    h = s.header[0]
    node, slot = h["node"], int(s.slots[TREES])
    if node >= s.sizes[slot]:
        _end_tree(store)
        return work - 50
    begin, end = int(s.waiting[node, BEGIN]), int(s.waiting[node, END])
    n, tried, tries = end - begin, 0, 0
    if s.waiting[node, MIXED] and n >= 2 and s.sizes[slot] + 2 <= NODES and s.waiting[node, DEEP] < DEPTH:
        columns = _columns_in_use(h["used"], h["added"], h["kept"])
        wanted = TESTS * _tried_of(columns)
        wanted = 2 * wanted if n >= _MANY else max(wanted // 3, 2) if n < _VERY_FEW else wanted
        tried, tries = _draw_tests(store, damping, begin, n, min(wanted, h["tests"]))
    if tried == 0:
        _make_leaf(store)
        return work - 8 - 3 * tries - (3 * min(n, _COUNTED) if s.waiting[node, MIXED] else 0)
    for c in range(tried):
        s.squares[c, 0] = s.squares[c, 1] = s.beyond[c] = 0
    h["tried"], h["cursor"], h["step"], h["phase"] = tried, begin if h["labels"] > 0 else 0, max(n // _COUNTED, 1), COUNTING
    return work - 8 - 3 * tries


@compiled
def _draw_tests(store: np.ndarray, damping: np.ndarray, begin: int, n: int, wanted: int) -> tuple[int, int]:
    # Draw tests of features and of two of n rows that differ there; how many there are, and how often they were drawn.
    s = forest_views(store)
    h, members, rows, random = s.header[0], s.members, s.rows, s.header[0]["random"]
    used, tried, tries, added = _columns_in_use(h["used"], h["added"], h["kept"]), 0, 0, h["added"]
    passed = ADDED - 1 if added > 0 and h["grown"] & 1 != MISSING else 0  # columns behind the first that are not for this tree
    used -= passed
    while tried < wanted and tries < 4 * wanted and used > 0:
        tries += 1
        random += GOLDEN_GAMMA
        bits = next_random(random)
        j, equal = drawn_below(bits, used), 0
        j += passed if j > 0 else 0
        a = rows[int(members[0, begin + drawn_below(bits >> np.uint64(32), n)]), j]
        random += GOLDEN_GAMMA
        bits = next_random(random)
        if added == 0 and passed_over(bits, damping[j]):
            continue
        b = rows[int(members[0, begin + drawn_below(bits, n)]), j]
        threshold = midway(a, b)
        if s.fractions[j] == 0 and (a == b or bits >> np.uint64(63)):
            equal, threshold = 1, a
        elif a == b:
            continue
        s.features[tried], s.equal[tried], s.thresholds[tried] = j, equal, threshold
        tried += 1
    h["random"] = random
    return tried, tries


@compiled
def _count_tests(store: np.ndarray, work: int) -> int:
    # Count the labels of some of the node's rows on both sides of each test, then choose one; what is left of the work.
    s = forest_views(store)
    h, members, rows, counts, squares, beyond = s.header[0], s.members, s.rows, s.counts, s.squares, s.beyond
    features, equal, thresholds = s.features, s.equal, s.thresholds
    tried, q, step, end = h["tried"], h["cursor"], h["step"], int(s.waiting[h["node"], END])
    while q < end and work > 0:
        i, label = np.uint64(members[0, q]), np.uint64(members[1, q])
        for c in range(tried):
            value, threshold = rows[i, np.uint64(features[c])], thresholds[c]
            passes = np.int64(value <= threshold) & (np.int64(value == threshold) | (1 - int(equal[c])))
            side = np.uint64(1 - passes)
            count = int(counts[c, side, label])
            counts[c, side, label] = count + 1
            squares[c, side] += 2 * count + 1
            beyond[c] += 1 - passes
        q += step
        work -= tried
    h["cursor"] = q
    return work if q < end else work - _choose_test(store)


@compiled
def _sum_numbers(store: np.ndarray, work: int) -> int:
    # Sum the numbers of some of the node's rows that do not pass each test, then choose one; what is left of the work. It goes on
    # test by test, so that sums are not in memory.
    s = forest_views(store)
    h, members, rows, numbers = s.header[0], s.members[0], s.rows, s.numbers[s.header[0]["grown"] & 1]
    step, begin, end, c = h["step"], int(s.waiting[h["node"], BEGIN]), int(s.waiting[h["node"], END]), h["cursor"]
    while c < h["tried"] and work > 0:
        j, threshold, equal = np.uint64(s.features[c]), s.thresholds[c], s.equal[c] == 1
        total, beyond = 0.0, 0
        for q in range(begin, end, step):
            i = np.uint64(members[q])
            value = rows[i, j]
            fails = (value > threshold) | (equal & (value != threshold))
            total += np.float64(numbers[i]) * fails  # a branch would be foretold wrongly, half of the time
            beyond += fails
        s.sums[c], s.beyond[c] = total, beyond
        work -= (end - begin) // step
        c += 1
    h["cursor"] = c
    return work if c < h["tried"] else work - _choose_test(store)


@compiled(apart=True)
def _choose_test(store: np.ndarray) -> int:
    # Choose the test that leaves the labels purest, or the variance of numbers least, by what was counted, and forget that; the
    # work that it was.
    s = forest_views(store)
    h, members, counts = s.header[0], s.members, s.counts
    node, tried, step, labels = h["node"], h["tried"], h["step"], h["labels"]
    begin, end = int(s.waiting[node, BEGIN]), int(s.waiting[node, END])
    counted = (end - begin + step - 1) // step
    best, purest, total = -1, -1.0, 0.0
    for q in range(begin, end if labels == 0 else begin, step):
        total += np.float64(s.numbers[h["grown"] & 1, members[0, q]])
    for c in range(tried):
        right = int(s.beyond[c])
        left = counted - right
        if labels <= counted:
            for k in range(labels):
                counts[c, 0, k] = counts[c, 1, k] = 0
        else:
            for q in range(begin, end, step):
                label = members[1, q]
                counts[c, 0, label] = counts[c, 1, label] = 0
        if left > 0 and right > 0:
            if labels > 0:
                pure = np.float64(s.squares[c, 0]) / left + np.float64(s.squares[c, 1]) / right
            else:
                passed = total - s.sums[c]
                pure = passed * passed / left + s.sums[c] * s.sums[c] / right
            if pure > purest:
                purest, best = pure, c
    if best < 0:
        _make_leaf(store)
        h["phase"] = OPENING
    else:
        h["best"], h["first"], h["last"], h["left"], h["right"], h["phase"] = best, begin, end - 1, NONE, NONE, DIVIDING
    return tried * max(min(labels, counted), 1) // 2


@compiled
def _divide_rows(store: np.ndarray, work: int) -> int:
    # Bring the node's rows that pass the test to the front, and at the end give it its children; what is left of the work.
    s = forest_views(store)
    h, members, rows = s.header[0], s.members, s.rows
    node, slot, c = h["node"], int(s.slots[TREES]), h["best"]
    feature, equal, threshold = int(s.features[c]), int(s.equal[c]), s.thresholds[c]
    first, last, left, right = h["first"], h["last"], h["left"], h["right"]
    while first <= last and work > 0:
        place, label = members[0, first], int(members[1, first])
        value = rows[int(place), feature]
        if (value == threshold) if equal else (value <= threshold):
            first += 1
            if left != label:
                left = label if left == NONE else SEVERAL
        else:
            members[0, first], members[1, first] = members[0, last], members[1, last]
            members[0, last], members[1, last] = place, label
            last -= 1
            if right != label:
                right = label if right == NONE else SEVERAL
        work -= 2
    h["first"], h["last"], h["left"], h["right"] = first, last, left, right
    if first <= last:
        return work
    waiting = s.waiting
    begin, end, deep = waiting[node, BEGIN], waiting[node, END], waiting[node, DEEP]
    if first in (begin, end):
        _make_leaf(store)
    else:
        child, root = int(s.sizes[slot]), slot * NODES
        s.sizes[slot] = child + 2
        s.nodes[root + node, 0] = (root + child) | (feature << FEATURE) | (equal << EQUALITY)
        s.nodes.view(np.float32)[root + node, 1] = threshold
        numbers = h["labels"] == 0
        waiting[child, BEGIN], waiting[child, END] = begin, first
        waiting[child + 1, BEGIN], waiting[child + 1, END] = first, end
        waiting[child, MIXED] = first - begin >= _LEAST_CUT if numbers else left == SEVERAL
        waiting[child + 1, MIXED] = end - first >= _LEAST_CUT if numbers else right == SEVERAL
        waiting[child, DEEP] = waiting[child + 1, DEEP] = deep + 1
        h["node"] = node + 1
    h["phase"] = OPENING
    return work


@compiled
def _make_leaf(store: np.ndarray) -> None:
    # Make the node a leaf, and go on to the next one.
    s = forest_views(store)
    h = s.header[0]
    place, leaf = int(s.slots[TREES]) * NODES + h["node"], int(s.slots[TREES]) * LEAVES + h["leaf"]
    s.nodes[place, 0], s.nodes.view(np.float32)[place, 1] = place | (h["leaf"] << FEATURE), INFINITE
    if h["labels"] > 0:
        _count_leaf(store, leaf)
    else:
        _average_leaf(store, leaf)
    h["node"], h["leaf"] = h["node"] + 1, h["leaf"] + 1


@compiled
def _average_leaf(store: np.ndarray, leaf: int) -> None:
    # Let a leaf be the mean of the numbers of some of the node's rows.
    s = forest_views(store)
    h, means = s.header[0], s.leaves.view(np.float32)
    begin, end = int(s.waiting[h["node"], BEGIN]), int(s.waiting[h["node"], END])
    total, n = 0.0, 0
    for q in range(begin, end, max((end - begin) // _COUNTED, 1)):
        total += np.float64(s.numbers[h["grown"] & 1, s.members[0, q]])
        n += 1
    means[leaf, 0], means[leaf, 1] = np.float32(total / n), np.float32(min(end - begin, MOST_AVERAGED))


@compiled
def _count_leaf(store: np.ndarray, leaf: int) -> None:
    # Let a leaf have the two commonest labels, as some of the node's rows have them.
    s = forest_views(store)
    h, members, counts = s.header[0], s.members, s.counts
    node = h["node"]
    begin, end = int(s.waiting[node, BEGIN]), int(s.waiting[node, END])
    step = max((end - begin) // _COUNTED, 1) if s.waiting[node, MIXED] else end - begin
    for q in range(begin, end, step):
        counts[0, 0, members[1, q]] += 1
    label, other, latest = int(members[1, begin]), 0, begin
    for q in range(begin, end, step):
        if counts[0, 0, members[1, q]] > counts[0, 0, label]:
            label = int(members[1, q])
    first, second = int(counts[0, 0, label]), 0
    for q in range(begin, end, step):
        k = int(members[1, q])
        if k == label:
            latest = q
        elif counts[0, 0, k] > second:
            second, other = int(counts[0, 0, k]), k
    for q in range(begin, end, step):
        counts[0, 0, members[1, q]] = 0
    if not s.waiting[node, MIXED]:
        first = end - begin
    if first >= MOST_COUNTED:
        first, second = MOST_COUNTED - 1, second * (MOST_COUNTED - 1) // first
    s.leaves[leaf, LABEL], s.leaves[leaf, OTHER] = label, other
    s.leaves[leaf, PLACE], s.leaves[leaf, COUNTS] = members[0, latest], first | (second << 8)


@compiled
def _end_tree(store: np.ndarray) -> None:
    # Let the tree that is whole take the place of the oldest one. Its error is as that of the others, of the same kind.
    s = forest_views(store)
    h = s.header[0]
    oldest, kinds = h["grown"] % TREES, 1 if h["labels"] > 0 else 2
    s.slots[oldest], s.slots[TREES] = s.slots[TREES], s.slots[oldest]
    error = 0.0
    for t in range(oldest % kinds, TREES, kinds):
        error += float(s.errors[t]) if t != oldest else 0.0
    s.errors[oldest] = np.float32(error / (TREES // kinds - 1))
    s.votes[oldest] = vote_of(float(s.errors[oldest]), h["labels"] == 0)
    s.ages[oldest] = _GROWN if h["learned"] >= _YOUNG else 0
    h["grown"] += 1
    h["phase"] = IDLE
