"""Coefficients on disk."""

import numpy as np

from streamsvm.linear.dual_state import Coefficients


def test_coefficients_are_those_of_the_last_pass_that_ended(tmp_path):
    b = Coefficients(tmp_path / "b", 10)
    b.begin()
    b.write(0, np.arange(10.0))
    b.end()
    saved = b.save()
    b.begin(some=True)
    b.scatter(np.array([7, 8, 2, 3, 5], np.uint64), -np.ones(5), np.array([0, 4], np.uint64))
    np.testing.assert_array_equal(b.read(0, 10), np.arange(10.0))
    again = Coefficients(tmp_path / "b", 10, saved)
    np.testing.assert_array_equal(again.read(2, 5), np.arange(2.0, 7.0))
    again.close()
    b.end()
    np.testing.assert_array_equal(b.read(0, 10), [0, 1, -1, -1, 4, -1, 6, -1, -1, 9])
    b.remove()
    assert list(tmp_path.iterdir()) == []
