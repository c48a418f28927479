"""Rows between vectors."""

import numpy as np

from streamsvm.core.between import rows_between


def test_rows_between_are_within_and_keep_values():
    rng = np.random.default_rng(0)
    X = rng.integers(2, size=(200, 6)).astype(np.float32)
    rows = rows_between(X, 1000, rng)
    assert rows.shape == (1000, 6)
    assert rows.dtype == np.float32
    assert (rows >= 0.0).all()
    assert (rows <= 1.0).all()
    assert 0.3 < np.isin(rows, (0.0, 1.0)).all(axis=1).mean() < 0.7
    np.testing.assert_array_equal(rows_between(np.ones((1, 2)), 3, rng), np.ones((3, 2)))
