"""Rows are written into arrays by the names of their features."""

import math
import re
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refused import refused
from streamsvm import BSGDClassifier
from streamsvm.core.memory.features import FeatureSpace, make_natural_sort_key

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


@given(st.lists(st.from_regex(r"[fg]?[0-9]{0,24}(_[0-9]{1,3})?", fullmatch=True) | st.integers(-5, 5), max_size=8))
def test_digits_in_names_are_ordered_as_numbers(names):
    def make_key(name):
        if isinstance(name, int):
            return 0, name
        parts = re.split("([0-9]+)", name)
        parts[1::2] = map(int, parts[1::2])
        return 1, parts, len(name), name

    assert sorted(names, key=make_natural_sort_key) == sorted(names, key=make_key)


def test_names_may_have_more_digits_than_an_int():
    names = ["9" * 5000, "f" + "1" * 5000, "f2", "1" + "0" * 5000]
    assert sorted(names, key=make_natural_sort_key) == [names[0], names[3], names[2], names[1]]
    refused("has a name of 5,000 characters, more than 1,024", BSGDClassifier(20).learn_one, {names[0]: 1.0}, "a")
