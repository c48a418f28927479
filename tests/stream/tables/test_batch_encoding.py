"""Rows that are encoded together have the features of rows one by one, to the bit, and teach the encoder the same."""

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
ODD = [-0.0, 1e39, -math.inf, 10**40, 2**60, -999, "-999", "NA", "", " ", "x", "1_0", "nan", "inf", True, "x" * 1100, "é"]
ODD += ["\ud800", None, Decimal("1.5"), np.float32(0.25), np.int64(3), np.bool_(1), (1, 2), [1.0], date(2024, 1, 2)]
ODD += [datetime(2024, 5, 6, 7)]
LABELS = (["no", "yes", None], [0, 1, 2, True], [0.5, -3, 1e30, math.nan], list(range(12)), [3, 2.5, "x", (1, 2)])
COLUMNS = {"n": NUMBERS, 7: NUMBERS, "c": NAMES, "k": NAMES, "d": DATES}


@st.composite
def tables(draw, names):
    """A table of some columns, each of which has mostly what it should."""
    n, columns = draw(st.integers(1, 12)), []
    for name in names:
        if name not in ("c", "k") and draw(st.integers(0, 3)) == 0:
            numbers = draw(st.lists(st.sampled_from([0.5, -1.0, 86400.0, math.nan]), min_size=n, max_size=n))
            columns.append(np.array(numbers, draw(st.sampled_from(["f8", "f4"]))))
        else:
            usual = st.sampled_from(draw(st.sampled_from(COLUMNS.get(name, NUMBERS))))
            odd = usual if draw(st.integers(0, 3)) else st.sampled_from(ODD)
            columns.append(draw(st.lists(usual | usual | usual | odd, min_size=n, max_size=n)))
    return Table(tuple(names), columns)


ways = st.fixed_dictionaries(
    {
        "columns": st.tuples(
            st.sampled_from(["c:category,k:category", "c:category", "c:category=-999|a,k:category="]),
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
)


def bits(features):
    return {name: float(value).hex() for name, value in features.items()}


def tried(method, x):
    """What a method makes of a row, nothing of one that it refuses."""
    try:
        return method(x) or {}
    except ValueError:
        return {}


def check_encoded(encoder, table, first, end, learned, known=None, labels=()):
    """Check that rows are encoded, and then learned, as one by one; return what they became."""
    before, twin, empty = dumps(encoder), copy.deepcopy(encoder), 0
    weights = None if len(labels) == 0 else 0.25 + np.arange(len(labels)) % 3
    found = encoder.encode_batch(table, first, end, learned, known, labels, weights)
    assert dumps(encoder) == before
    for i, row in enumerate(found.X):
        x = table.row(first + i).x
        features = twin.transform_one(x)
        assert bits(dict(zip(found.names, row, strict=True))) == bits({name: features.get(name, 0.0) for name in found.names})
        others = {name: value for name, value in features.items() if name not in found.names}
        if learned is None:  # the learner leaves out what it does not know
            unlearned = set(table.names) - set(encoder.learned_columns)
            assert not any(value for name, value in others.items() if (known is None or name in known) and name not in unlearned)
        else:
            assert not others
            assert known is None or known >= features.keys()
        empty += not x
        if learned is not None and learned[i]:
            twin.learn_one(x, *((labels[i], float(weights[i])) if len(labels) else ()))
    assert found.n_empty == empty
    if learned is not None:
        found.update_encoder()
    assert dumps(encoder) == dumps(twin)
    return found


@settings(max_examples=60)
@given(st.data(), ways)
def test_features_and_encoder_are_those_of_rows_one_by_one(data, how):
    names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True))
    encoder, label = TableEncoder(**how), st.sampled_from(data.draw(st.sampled_from(LABELS)))
    for _ in range(data.draw(st.integers(0, 3))):
        table = data.draw(tables(names))
        for i in range(len(table)):
            tried(lambda x: encoder.learn_one(x, data.draw(label)), table.row(i).x)
    table = data.draw(tables(data.draw(st.sampled_from([names, [*names, "new"], names[1:] or names]))))
    first = data.draw(st.integers(0, len(table) - 1))
    end = data.draw(st.integers(first + 1, len(table)))
    learned = data.draw(st.none() | st.lists(st.booleans(), min_size=end - first, max_size=end - first).map(np.array))
    known = {name for i in range(len(table)) for name in tried(encoder.transform_one, table.row(i).x)}
    known -= set(data.draw(st.lists(st.sampled_from(sorted(known, key=str)), max_size=1))) if known else set()
    labels = data.draw(st.just([]) | st.lists(label, min_size=end - first, max_size=end - first))
    check_encoded(encoder, table, first, end, learned, data.draw(st.sampled_from([None, known])), labels)


@pytest.mark.parametrize("when_missing", ["mean", "indicator", "drop"])
def test_what_was_learned_is_encoded_to_the_end(when_missing):
    """Names are ints, floats and bools, texts are hashed, and of rows that are predicted, new columns are left out."""
    how = {
        "columns": "c:category,k:category,d:date",
        "cycles": "day",
        "max_values": 2,
        "buckets": 32,
        "missing": "NA",
        "when_missing": when_missing,
    }
    encoder, n = TableEncoder(**how), 40
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
    learned = np.arange(n - 8) % 4 > 0
    for each in (learned, None):
        found = check_encoded(encoder, table, 8, n, each)
        assert len(found.X) == n - 8
    assert {"c#", "k#"} <= {name[:2] for name in found.names}
    wide = Table((*table.names, "new"), [*table.columns, np.ones(n)])
    assert encoder.encode_batch(wide, 0, n, None, None).names == found.names
    assert len(encoder.encode_batch(wide, 0, n, learned, None).X) == 0
