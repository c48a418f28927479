"""Equal rows, and the cache of columns, against obvious twins."""

from collections import OrderedDict

import numpy as np

from streamsvm.batch.csmo import columns
from streamsvm.batch.csmo.columns import ColumnCache, find

N = 70


def test_equal_rows_have_one_number_whatever_their_order():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(N, 3)).astype(float)
    y = rng.integers(0, 2, N).astype(float)
    order = rng.permutation(N)
    for values in (None, y):
        numbers = columns.same_rows(X, values)
        again = columns.same_rows(X[order], None if values is None else values[order])
        keys = X if values is None else np.column_stack([X, values])
        assert len(np.unique(keys, axis=0)) == numbers.max() + 1
        assert np.array_equal((keys[:, None] == keys).all(axis=2), numbers[:, None] == numbers)
        assert np.array_equal(numbers[order], again)


def test_cache_forgets_what_was_used_longest_ago():
    n, rng = 12, np.random.default_rng(0)
    cache = ColumnCache(np.zeros(5 * n, np.float32), n)
    twin = OrderedDict()
    for i in rng.integers(0, n, 300):
        s, found = find(*cache.slots[1:], i)
        assert found == (i in twin)
        column = cache.buffer[s * n : (s + 1) * n]
        if found:
            assert (column == i).all()
        column[:] = i
        twin[i] = None
        twin.move_to_end(i)
        if len(twin) > 5:
            twin.popitem(last=False)


def test_columns_of_rows_that_stay_are_kept():
    n = 10
    cache = ColumnCache(np.zeros(4 * n, np.float32), n)
    for i in (7, 2, 9, 4):
        s, _ = find(*cache.slots[1:], i)
        cache.buffer[s * n : (s + 1) * n] = 100 * i + np.arange(n)
    rows = np.array([2, 3, 4, 7])
    cache.keep(rows)
    assert len(cache.slots.owner) == 4
    for k, found in ((0, True), (2, True), (3, True), (1, False)):
        s, there = find(*cache.slots[1:], k)
        assert there == found
        if found:
            assert np.array_equal(cache.buffer[s * 4 : (s + 1) * 4], 100 * rows[k] + rows)


def test_columns_that_are_put_take_the_place_of_those_used_longest_ago():
    n = 6
    K = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    cache = ColumnCache(np.empty(4 * n, np.float32), n)
    cache.put(np.array([1, 4, 2, 0]), lambda which, out: np.copyto(out, K[which]))
    assert find(*cache.slots[1:], 1)[1]
    cache.put(np.array([5, 3]), lambda which, out: np.copyto(out, K[which]))
    cache.put(np.array([0, 3, 5]), lambda which, out: np.copyto(out, K[which]))  # no more side by side
    assert (cache.slots.slot_of >= 0).tolist() == [True, True, False, True, False, True]
    for i in (0, 1, 3, 5):
        s = cache.slots.slot_of[i]
        assert np.array_equal(cache.buffer[s * n : (s + 1) * n], K[i])


def test_room_of_the_cache():
    assert ColumnCache.values(10**6, 50) == 50 * 50
    assert ColumnCache.values(1, 50) == 100
    cache = ColumnCache(np.empty(ColumnCache.values(10**6, 5000), np.float32), 5000)
    assert 0.8e6 < sum(array.nbytes for array in cache.slots) <= 1e6
