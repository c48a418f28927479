"""A batch of rows has the same features as its rows singly, to the bit, and changes the encoder in the same way."""

import copy
import math
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saved import dumps
from streamsvm.stream import Table
from streamsvm.stream.tables import TableEncoder

NUMBERS = ([0.5, -3.0, 2.25], [1, -2, None], ["2.5", 1.0, ""], [True, 0.0, 4])
NAMES = (["Oslo", "Rome", None], ["Oslo", " Oslo ", "NA", "Bari"], [1, 1.0, "1", True], [75001.0, "75001", 2.5])
DATES = (["2024-01-02", "2024-05-06", None], ["2024-01-02T03:04", "2024-01-03"], [0.0, 86400.0, 1.7e9], [1_700_000_000, 2024])
UNUSUAL = [-0.0, 1e39, -math.inf, 10**40, 2**60, -999, "-999", "NA", "", " ", "x", "1_0", "nan", "inf", True, "x" * 1100, "é"]
UNUSUAL += ["\ud800", None, Decimal("1.5"), np.float32(0.25), np.int64(3), np.bool_(1), (1, 2), [1.0], date(2024, 1, 2)]
UNUSUAL += [datetime(2024, 5, 6, 7)]
LABELS = (
    ["no", "yes", None],
    ["x", "rows", "last x", "recent rows"],
    [0, 1, 2, True],
    [0.5, -3, 1e30, math.nan],
    list(range(12)),
    [3, 2.5, "x", (1, 2)],
)
COLUMNS = {"n": NUMBERS, 7: NUMBERS, "c": NAMES, "k": NAMES, "d": DATES}
COLUMNS |= dict.fromkeys(
    ["c=Oslo", "c~yes", "c~last yes", "k~", "k~rows", "c#0", "n is missing", "d day sin"], NUMBERS
)  # as derived features are called


KEYS = "c:key=-999|a,k:key"


@st.composite
def tables(draw, names):
    """Draw a table with some columns, most of whose values are of the expected kind."""
    n, columns = draw(st.integers(1, 12)), []
    for name in names:
        if name not in ("c", "k") and draw(st.integers(0, 3)) == 0:
            numbers = draw(st.lists(st.sampled_from([0.5, -1.0, 86400.0, math.nan]), min_size=n, max_size=n))
            columns.append(np.array(numbers, draw(st.sampled_from(["f8", "f4"]))))
        else:
            expected = st.sampled_from(draw(st.sampled_from(COLUMNS.get(name, NUMBERS))))
            unusual = expected if draw(st.integers(0, 3)) else st.sampled_from(UNUSUAL)
            columns.append(draw(st.lists(expected | expected | expected | unusual, min_size=n, max_size=n)))
    return Table(tuple(names), columns)


parameters_of_encoders = st.fixed_dictionaries(
    {
        "columns": st.tuples(
            st.sampled_from(["c:category,k:category", "c:category", "c:category=-999|a,k:category=", "c:key,k:category", KEYS]),
            st.sampled_from(["", ",d:date"]),
            st.sampled_from(["", ",n:drop"]),
        ).map("".join),
        "when_missing": st.sampled_from(["mean", "indicator", "drop"]),
        "cycles": st.sampled_from([[], ["day"], ["week", "year"]]),
        "missing": st.sampled_from([[], ["NA", "-999"]]),
        "max_values": st.sampled_from([0, 1, 2, 64]),
        "buckets": st.sampled_from([None, None, 1, 3]),
        "max_columns": st.sampled_from([1024, 1024, 4]),
    },
    optional={"decimal": st.just(",")},
).map(lambda parameters: parameters | ({"buckets": None} if ":key" in parameters["columns"] else {}))


def to_bits(features):
    return {name: float(value).hex() for name, value in features.items()}


def call_or_empty(method, x):
    """Return the result of a method for a row; an empty dict if it refuses the row or returns None."""
    try:
        return method(x) or {}
    except ValueError:
        return {}


def check_encoded(encoder, table, first, stop, is_learned, features=None, labels=()):
    """Check that a batch is encoded and learned like its rows singly; return the encoded batch."""
    before, twin, n_empty = dumps(encoder), copy.deepcopy(encoder), 0
    weights = None if len(labels) == 0 else 0.25 + np.arange(len(labels)) % 3
    batch = encoder.parse_table(table).encode_batch(first, stop, is_learned, features, labels, weights)
    assert dumps(encoder) == before
    for i, row in enumerate(batch.X):
        x = table.row(first + i).x
        expected = twin.transform_one(x)
        assert to_bits(dict(zip(batch.names, row, strict=True))) == to_bits(
            {name: expected.get(name, 0.0) for name in batch.names}
        )
        omitted = {name: value for name, value in expected.items() if name not in batch.names}
        if is_learned is None:  # the learner ignores unknown features
            unlearned = {encoder.column_state.get_feature(name) for name in set(table.names) - set(encoder.learned_columns)}
            usable = {name for name in omitted if (features is None or name in features) and name not in unlearned}
            assert not any(omitted[name] for name in usable)
        else:
            assert not omitted
            assert features is None or features >= expected.keys()
        n_empty += not x
        if is_learned is not None and is_learned[i]:
            twin.learn_one(x, *((labels[i], float(weights[i])) if len(labels) else ()))
    assert batch.n_empty == n_empty
    if is_learned is not None:
        batch.update_encoder()
    assert dumps(encoder) == dumps(twin)
    return batch


@settings(max_examples=60)
@given(st.data(), parameters_of_encoders)
def test_a_batch_is_encoded_and_learned_like_its_rows_singly(data, parameters):
    names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True))
    encoder, label = TableEncoder(**parameters), st.sampled_from(data.draw(st.sampled_from(LABELS)))
    for _ in range(data.draw(st.integers(0, 3))):
        table = data.draw(tables(names))
        for i in range(len(table)):
            call_or_empty(lambda x: encoder.learn_one(x, data.draw(label)), table.row(i).x)
    table = data.draw(tables(data.draw(st.sampled_from([names, [*names, "new"], names[1:] or names]))))
    first = data.draw(st.integers(0, len(table) - 1))
    n = data.draw(st.integers(1, len(table) - first))
    is_learned = data.draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n).map(np.array))
    features = {name for i in range(len(table)) for name in call_or_empty(encoder.transform_one, table.row(i).x)}
    features -= set(data.draw(st.lists(st.sampled_from(sorted(features, key=str)), max_size=1))) if features else set()
    labels = data.draw(st.just([]) | st.lists(label, min_size=n, max_size=n))
    check_encoded(encoder, table, first, first + n, is_learned, data.draw(st.sampled_from([None, features])), labels)


@pytest.mark.parametrize("when_missing", ["mean", "indicator", "drop"])
def test_a_table_with_learned_columns_is_encoded_in_one_batch(when_missing):
    """Categories are of several types, and some are hashed; new columns are ignored in prediction."""
    parameters = {
        "columns": "c:category,k:category,d:date",
        "cycles": "day",
        "max_values": 2,
        "buckets": 32,
        "missing": "NA",
        "when_missing": when_missing,
    }
    encoder, n = TableEncoder(**parameters), 40
    columns = {
        "a": np.where(np.arange(n) % 5, np.arange(n) / 7, np.nan),
        "b": [str(i) if i % 3 else "NA" for i in range(n)],
        "c": [(1, 1.0, True, "1", None, 2.5, "x")[i % 7] for i in range(n)],
        "k": ["Oslo", "Rome", " Bari ", "NA"] * 10,
        "d": [f"2024-01-{i % 28 + 1:02d}T0{i % 9}:00" for i in range(n)],
    }
    table = Table(tuple(columns), list(columns.values()))
    for i in range(8):
        encoder.learn_one(table.row(i).x)
    is_learned = np.arange(n - 8) % 4 > 0
    for mask in (is_learned, None):
        batch = check_encoded(encoder, table, 8, n, mask)
        assert len(batch.X) == n - 8
    assert {"c#", "k#"} <= {name[:2] for name in batch.names}
    wide = Table((*table.names, "new"), [*table.columns, np.ones(n)])
    assert encoder.parse_table(wide).encode_batch(0, n, None, None).names == batch.names
    assert len(encoder.parse_table(wide).encode_batch(0, n, is_learned, None).X) == 0
