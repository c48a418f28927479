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
    MIXED,
    MOST_COUNTED,
    NODES,
    NONE,
    OPENING,
    OTHER,
    PLACE,
    SEVERAL,
    TESTS,
    TREES,
    forest_views,
    tried_of,
    window_of,
)
from streamsvm.core.memory.slots import next_random

#: Units of work on the tree that grows, for each row.
WORK = 600
_DRAWN = np.uint64(0.85 * 2.0**32)  # the share of the rows that a tree draws, over 2^-32
_LEAST_BEGUN, _LEAST_DRAWN = 10, 4  # rows
_PAUSE, _LONGEST_PAUSE = 2 * TREES, 100  # rows from one tree to the next: one in so many that were learned, at most so many
_COUNTED = 64  # rows of a node of which tests are counted, up to twice
_MANY, _VERY_FEW = 256, 6  # rows from which on twice the tests are tried, and below which a third
_GROWN = 20  # rows that the first error of a new tree counts as
_YOUNG = 1000  # rows until which it counts as none
_PASSED_OVER = 0.9 * 2.0**31  # the share of the draws of a feature that is damped in full, over 2^-31
#: A vote is exp(-that times the error of the tree).
STEEP = 4.0
#: By which the state of a generator of random numbers moves on; the threshold of a leaf.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
INFINITE = np.float32(np.inf)
_HALF = np.float32(0.5)

_tried_of = compiled(tried_of)
_window_of = compiled(window_of)


@compiled(inline=True)
def drawn_below(bits: np.uint64, n: int) -> int:
    """A number below n, of the low half of random bits."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@compiled(inline=True)
def _drawn_too(bits: np.uint64, n: int) -> int:
    """Another one, of the high half."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@compiled(inline=True)
def passed_over(bits: np.uint64, damping: float) -> bool:
    """Whether a feature that was drawn is passed over, by the 33rd to the 63rd of random bits."""
    return bool(damping * _PASSED_OVER > np.float64((bits >> np.uint64(32)) & np.uint64(0x7FFFFFFF)))


@compiled(inline=True)
def midway(a: np.float32, b: np.float32) -> np.float32:
    """A threshold that has one of two values on each side."""
    middle = np.float32(_HALF * (a + b))
    return min(a, b) if middle == max(a, b) else middle


@compiled
def grow_tree(store: np.ndarray, damping: np.ndarray) -> None:
    """Do the work on the tree that grows that there is for a row; ``damping`` is float64 [features or more]. O(1)."""
    h = forest_views(store).header[0]
    work = WORK
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
            work = _count_tests(store, work)
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
        wanted = TESTS * _tried_of(min(h["used"], h["kept"]))
        wanted = 2 * wanted if n >= _MANY else max(wanted // 3, 2) if n < _VERY_FEW else wanted
        tried, tries = _draw_tests(store, damping, begin, n, min(wanted, h["tests"]))
    if tried == 0:
        _make_leaf(store)
        return work - 8 - 3 * tries - (3 * min(n, _COUNTED) if s.waiting[node, MIXED] else 0)
    for c in range(tried):
        s.squares[c, 0] = s.squares[c, 1] = s.beyond[c] = 0
    h["tried"], h["cursor"], h["step"], h["phase"] = tried, begin, max(n // _COUNTED, 1), COUNTING
    return work - 8 - 3 * tries


@compiled
def _draw_tests(store: np.ndarray, damping: np.ndarray, begin: int, n: int, wanted: int) -> tuple[int, int]:
    # Draw tests of features and of two of n rows that differ there; how many there are, and how often they were drawn.
    s = forest_views(store)
    h, members, rows, random = s.header[0], s.members, s.rows, s.header[0]["random"]
    used, tried, tries = min(h["used"], h["kept"]), 0, 0
    while tried < wanted and tries < 4 * wanted and used > 0:
        tries += 1
        random += GOLDEN_GAMMA
        bits = next_random(random)
        j, equal = drawn_below(bits, used), 0
        a = rows[int(members[0, begin + _drawn_too(bits, n)]), j]
        random += GOLDEN_GAMMA
        bits = next_random(random)
        if passed_over(bits, damping[j]):
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
def _choose_test(store: np.ndarray) -> int:
    # Choose the test that leaves the labels purest, by what was counted, and forget that; the work that it was.
    s = forest_views(store)
    h, members, counts = s.header[0], s.members, s.counts
    node, tried, step, labels = h["node"], h["tried"], h["step"], h["labels"]
    begin, end = int(s.waiting[node, BEGIN]), int(s.waiting[node, END])
    counted = (end - begin + step - 1) // step
    best, purest = -1, -1.0
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
            pure = np.float64(s.squares[c, 0]) / left + np.float64(s.squares[c, 1]) / right
            if pure > purest:
                purest, best = pure, c
    if best < 0:
        _make_leaf(store)
        h["phase"] = OPENING
    else:
        h["best"], h["first"], h["last"], h["left"], h["right"], h["phase"] = best, begin, end - 1, NONE, NONE, DIVIDING
    return tried * min(labels, counted) // 2


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
        waiting[child, BEGIN], waiting[child, END], waiting[child, MIXED] = begin, first, left == SEVERAL
        waiting[child + 1, BEGIN], waiting[child + 1, END], waiting[child + 1, MIXED] = first, end, right == SEVERAL
        waiting[child, DEEP] = waiting[child + 1, DEEP] = deep + 1
        h["node"] = node + 1
    h["phase"] = OPENING
    return work


@compiled
def _make_leaf(store: np.ndarray) -> None:
    # Make the node a leaf of the two commonest labels, as some of its rows have them, and go on to the next one.
    s = forest_views(store)
    h, members, counts = s.header[0], s.members, s.counts
    node, slot = h["node"], int(s.slots[TREES])
    place, leaf = slot * NODES + node, slot * LEAVES + h["leaf"]
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
    s.nodes[place, 0], s.nodes.view(np.float32)[place, 1] = place | (h["leaf"] << FEATURE), INFINITE
    s.leaves[leaf, LABEL], s.leaves[leaf, OTHER] = label, other
    s.leaves[leaf, PLACE], s.leaves[leaf, COUNTS] = members[0, latest], first | (second << 8)
    h["node"], h["leaf"] = node + 1, h["leaf"] + 1


@compiled
def _end_tree(store: np.ndarray) -> None:
    # Let the tree that is whole take the place of the oldest one. Its error is as that of the others.
    s = forest_views(store)
    h = s.header[0]
    oldest = h["grown"] % TREES
    s.slots[oldest], s.slots[TREES] = s.slots[TREES], s.slots[oldest]
    error = 0.0
    for t in range(TREES):
        error += float(s.errors[t]) if t != oldest else 0.0
    s.errors[oldest] = np.float32(error / (TREES - 1))
    s.votes[oldest], s.ages[oldest] = (
        np.float32(math.exp(-STEEP * float(s.errors[oldest]))),
        _GROWN if h["learned"] >= _YOUNG else 0,
    )
    h["grown"] += 1
    h["phase"] = IDLE
