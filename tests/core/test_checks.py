"""Values in messages, and counts and mappings of a header."""

from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river import preprocessing

from refused import refused
from saved import dumps, loads
from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.core.checks import checked_count, checked_mapping, plain
from streamsvm.files.messages import shown
from streamsvm.learners import OnlineLinearSVC

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


@given(PLAIN)
def test_a_value_is_shown_as_its_repr_or_its_beginning(value):
    whole = repr(value)
    assert shown(value) == (whole if len(whole) <= 80 else f"{whole[:77]}...")


@pytest.mark.parametrize("within", [list, tuple, lambda pair: {"a": pair[0], "b": pair[1]}])
def test_what_never_ends_is_shown_at_once(within):
    value = [1]
    for _ in range(60):
        value = within([value, value])
    assert len(shown(value)) == 80
    assert len(shown({"key": preprocessing.StandardScaler, "value": value})) == 80


def test_what_holds_others_is_shown_by_its_class():
    assert shown(preprocessing.StandardScaler()) == "<StandardScaler>"
    assert shown([preprocessing.StandardScaler()]) == "[<StandardScaler>]"
    assert shown("x" * 10**6) == f"'{'x' * 76}..."
    assert shown(10**5000).startswith("0x")
    loop = []
    loop.append(loop)
    assert shown(loop) == "[" * 77 + "..."


@pytest.mark.parametrize("value", [-1, 2**63, 10**400, 0.0, 1.0, True, "1", None, [], float("nan")])
def test_what_is_no_count_is_refused(value):
    refused(r"^rows is .*, and no count$", checked_count, "rows", value)
    assert checked_count("rows", 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("value", [[], "{}", None, 5, (("a", 1),)])
def test_what_is_no_mapping_is_refused(value):
    refused(r"^sink is .*, and no mapping$", checked_mapping, "sink", value)


class Text(str, Enum):  # noqa: UP042 - as others write it
    A, B = "a", "b"


class Number(IntEnum):
    A, B = 1, 2


ALIKE = [  # pairs of values, and the plain ones that they equal
    ((np.str_("a"), np.str_("b")), ("a", "b")),
    ((np.int64(3), np.uint8(4)), (3, 4)),
    ((np.bool_(False), np.bool_(True)), (False, True)),
    ((np.float32(1.5), np.float64(2.5)), (1.5, 2.5)),
    ((Decimal("1.50"), Decimal(2)), (1.5, 2)),
    ((Text.A, Text.B), ("a", "b")),
    ((Number.A, Number.B), (1, 2)),
    ((pd.Timestamp("2020-01-01"), np.datetime64("2021-01-01T00:00:00", "ns")), (datetime(2020, 1, 1), datetime(2021, 1, 1))),
    ((("a", np.int64(1)), frozenset({np.str_("b")})), (("a", 1), frozenset({"b"}))),
]


@pytest.mark.once
@pytest.mark.parametrize(("given", "plain_ones"), ALIKE)
@pytest.mark.parametrize("make", [BSGDClassifier, SVMClassifier, OnlineLinearSVC], ids=lambda kind: kind.__name__)
def test_what_is_learned_can_be_saved(make, given, plain_ones):
    """Labels and names of any type that equals a plain one: learned, saved and loaded, the model is that of the plain ones."""
    assert [plain(value) for value in given] == list(plain_ones)
    assert [type(plain(value)) for value in given] == [type(value) for value in plain_ones]
    seed = {} if make is OnlineLinearSVC else {"seed": 0}
    of_labels, of_names, plainly = (make(**seed) for _ in range(3))
    for i in range(40):
        of_labels.learn_one({"a": float(i % 2), "b": 1.0}, given[i % 2])
        of_names.learn_one({given[0]: float(i % 2), given[1]: float(i % 3)}, bool(i % 2))
        plainly.learn_one({plain_ones[0]: float(i % 2), plain_ones[1]: float(i % 3)}, bool(i % 2))
    assert dumps(of_names) == dumps(plainly)
    assert (
        loads(dumps(of_labels)).predict_one({"a": 1.0, "b": 1.0}) == of_labels.predict_one({"a": 1.0, "b": 1.0}) == plain_ones[1]
    )
    x = {given[0]: 1.0, given[1]: 2.0}
    assert loads(dumps(of_names)).decision_function_one(x) == plainly.decision_function_one(
        dict(zip(plain_ones, x.values(), strict=True))
    )


@pytest.mark.parametrize("value", [UUID(int=1), Fraction(1, 2), object(), Exception])
def test_what_no_file_can_hold_is_refused_at_once(value):
    refused("which no file can hold", BSGDClassifier().learn_one, {"a": 1.0}, value)
    refused("the name of a feature, .* which no file can hold", BSGDClassifier().learn_one, {value: 1.0}, True)
