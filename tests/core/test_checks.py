"""Values in messages, and checks of saved counts and mappings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import preprocessing

from refused import refused
from streamsvm.core.checks import validate_count, validate_mapping
from streamsvm.files.messages import short_repr

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.sets(st.integers(), max_size=3)
        | st.frozensets(st.integers(), max_size=3)
        | st.tuples(inner)
    ),
)


@settings(max_examples=40)
@given(PLAIN)
def test_short_repr_is_the_cut_repr(value):
    full_repr = repr(value)
    assert short_repr(value) == (full_repr if len(full_repr) <= 80 else f"{full_repr[:77]}...")


@pytest.mark.parametrize("within", [list, tuple, lambda pair: {"a": pair[0], "b": pair[1]}])
def test_short_repr_of_exponentially_large_values_is_fast(within):
    value = [1]
    for _ in range(60):
        value = within([value, value])
    assert len(short_repr(value)) == 80
    assert len(short_repr({"key": preprocessing.StandardScaler, "value": value})) == 80


def test_short_repr_shows_other_containers_as_classes():
    assert short_repr(preprocessing.StandardScaler()) == "<StandardScaler>"
    assert short_repr([preprocessing.StandardScaler()]) == "[<StandardScaler>]"
    assert short_repr("x" * 10**6) == f"'{'x' * 76}..."
    assert short_repr(10**5000).startswith("0x")
    loop = []
    loop.append(loop)
    assert short_repr(loop) == "[" * 77 + "..."


@pytest.mark.parametrize("value", [-1, 2**63, 10**400, 0.0, 1.0, True, "1", None, [], float("nan")])
def test_invalid_counts_are_refused(value):
    refused(r"^rows must be an integer from 0", validate_count, "rows", value)
    assert validate_count("rows", 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("value", [[], "{}", None, 5, (("a", 1),)])
def test_invalid_mappings_are_refused(value):
    refused(r"^sink must be a mapping, not", validate_mapping, "sink", value)
