"""Labels and names of any type become plain Python values, so that models can be saved."""

from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from river.preprocessing import StandardScaler

from refused import refused
from saved import dumps, loads
from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.core.checks import to_plain
from streamsvm.learners import OnlineLinearSVC


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
@pytest.mark.parametrize(
    ("make", "originals", "plain_ones"),
    [*((BSGDClassifier, *pair) for pair in ALIKE), *((kind, *ALIKE[-1]) for kind in (SVMClassifier, OnlineLinearSVC))],
)
def test_labels_and_names_of_any_type_can_be_saved(make, originals, plain_ones):
    """Labels and names of any type that equals a plain one: learned, saved and loaded, the model is that of the plain ones."""
    assert [to_plain(value) for value in originals] == list(plain_ones)
    assert [type(to_plain(value)) for value in originals] == [type(value) for value in plain_ones]
    seed = {} if make is OnlineLinearSVC else {"seed": 0}
    of_labels, of_names, plainly = (make(**seed) for _ in range(3))
    for i in range(40):
        of_labels.learn_one({"a": float(i % 2), "b": 1.0}, originals[i % 2])
        of_names.learn_one({originals[0]: float(i % 2), originals[1]: float(i % 3)}, bool(i % 2))
        plainly.learn_one({plain_ones[0]: float(i % 2), plain_ones[1]: float(i % 3)}, bool(i % 2))
    assert dumps(of_names) == dumps(plainly)
    assert (
        loads(dumps(of_labels)).predict_one({"a": 1.0, "b": 1.0}) == of_labels.predict_one({"a": 1.0, "b": 1.0}) == plain_ones[1]
    )
    x = {originals[0]: 1.0, originals[1]: 2.0}
    assert loads(dumps(of_names)).decision_function_one(x) == plainly.decision_function_one(
        dict(zip(plain_ones, x.values(), strict=True))
    )


@pytest.mark.parametrize("value", [UUID(int=1), Fraction(1, 2), object(), Exception])
def test_labels_that_cannot_be_saved_are_refused(value):
    refused("which cannot be saved", BSGDClassifier().learn_one, {"a": 1.0}, value)
    refused("the name of a feature, .* which cannot be saved", BSGDClassifier().learn_one, {value: 1.0}, True)


def test_numpy_names_in_a_river_scaler_can_be_saved():
    of_numpy, plainly = (StandardScaler() | BSGDClassifier(budget=5, seed=0) for _ in range(2))
    for i in range(20):
        of_numpy.learn_one({np.str_("a"): float(i % 7), np.str_("b"): 1.0}, i % 2)
        plainly.learn_one({"a": float(i % 7), "b": 1.0}, i % 2)
    assert dumps(of_numpy) == dumps(plainly)
    assert loads(dumps(of_numpy)).predict_one({np.str_("a"): 1.0, "b": 1.0}) == plainly.predict_one({"a": 1.0, "b": 1.0})
