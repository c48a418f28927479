"""Rows are written into arrays by the names of their features."""

import math
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.core.memory.features import FeatureSpace

KINDS = dict, MappingProxyType
NUMBERS = st.sampled_from([1.5, -2, True, 0.0, -0.0, 1e300, math.nan, np.float32(0.25), "1", None, 10**400])


def fill(space, row, x, learn):
    """Return the result of `fill_row` and the row, or the message of its error."""
    try:
        return space.fill_row(row, x, learn), row.view(np.uint8).tolist()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_a_dict_is_written_like_another_mapping(dtype, data):
    """Another mapping is written value by value; the fast paths are for dicts."""
    overflow = data.draw(st.sampled_from(["raise", "hash", "ignore"]))
    spaces = [FeatureSpace(6, overflow, dtype) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 6))):
        x = data.draw(st.dictionaries(st.sampled_from("abcdefgh"), NUMBERS if data.draw(st.booleans()) else st.just(1.5)))
        if data.draw(st.integers(0, 4)) == 0:
            n_names = data.draw(st.integers(0, 4))
            for space in spaces:
                space.forget_names(n_names)
        learn, rows = data.draw(st.booleans()), [np.full(8, 7.0, dtype) for _ in range(2)]
        is_full = len(x) == len(spaces[0]) and x.keys() == set(spaces[0].names)
        results = [fill(space, row, kind(x), learn) for space, row, kind in zip(spaces, rows, KINDS, strict=True)]
        if not is_full:  # a dict with exactly the known names leaves the other columns, and the signs of zeros, as they are
            assert results[0] == results[1]
        assert spaces[0].names == spaces[1].names
