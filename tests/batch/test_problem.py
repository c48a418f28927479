"""Groups of equal rows, against an obvious reference implementation."""

import numpy as np

from streamsvm.batch import problem

N = 70


def test_groups_of_equal_rows_do_not_depend_on_their_order():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(N, 3)).astype(float)
    y = rng.integers(0, 2, N).astype(float)
    order = rng.permutation(N)
    for values in (None, y):
        numbers = problem.group_equal_rows(X, values)
        again = problem.group_equal_rows(X[order], None if values is None else values[order])
        keys = X if values is None else np.column_stack([X, values])
        assert len(np.unique(keys, axis=0)) == numbers.max() + 1
        assert np.array_equal((keys[:, None] == keys).all(axis=2), numbers[:, None] == numbers)
        assert np.array_equal(numbers[order], again)
