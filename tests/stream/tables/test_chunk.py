"""Chunks of rows and their tables contain the same values."""

import math
from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chunks import check_table
from streamsvm.stream import BadRow, Chunk, Row, Table, WeightedLabel
from streamsvm.stream.tables.chunk import drop_columns, to_float_prefix

VALUES = [0.0, -0.0, 1.5, math.nan, math.inf, 7, 2**70, 10**400, True, None, "text", "", np.float32(0.1), np.float64("nan")]
VALUES += [[1.0], np.int64(3), np.bool_(1), Decimal("1.5")]
values = st.sampled_from(VALUES)
labels = st.sampled_from([None, True, 1, "a", 2.5, WeightedLabel("a", 0.5), WeightedLabel(None, 1.0), WeightedLabel(2, 0.0)])
rows = st.dictionaries(st.sampled_from(["a", "b", 3]), values).flatmap(lambda x: labels.map(lambda y: Row(x, y)))
chunks = st.lists(rows | rows | st.sampled_from([BadRow("here", None, "torn"), Row("a text", 1), Row(None), Row([1.0], 2)]))


@given(chunks, st.sampled_from([[], ["a"], ["a", 3, "none"]]))
def test_a_chunk_as_a_table_equals_its_rows(rows, dropped):
    chunk = Chunk(rows, str, passthrough_names=["a", "b"])
    table = check_table(chunk)
    features = [row[0] if isinstance(row[0], dict) else {} for row in rows]
    assert table.unparsed_rows == [i for i, row in enumerate(rows) if not isinstance(row[0], dict)]
    assert table.rows_with_nulls == [
        i for i, x in enumerate(features) if any(value is None or value != value for value in x.values())
    ]
    without = drop_columns(chunk, dropped)
    remaining = check_table(without)
    assert remaining.names == tuple(name for name in table.names if name not in dropped)
    assert all(
        remaining.get_column(name) is (None if name in dropped else table.get_column(name)) for name in ("a", "b", 3, "none")
    )
    assert repr(without.passthrough_columns(1, len(rows))) == repr([[x.get(name) for x in features[1:]] for name in ("a", "b")])
    plain = Chunk(table, str, passthrough_names=["a"])
    expected = [None if value is None or value != value else value for x in features for value in [x.get("a")]]
    assert repr(plain.passthrough_columns(0, len(rows))) == repr([expected])


def test_dropped_columns_are_requested_from_the_format():
    requests = []

    class RecordingChunk(Chunk):
        def read_table(self, features):
            requests.append(list(features))
            return super().read_table(features)

    chunk = drop_columns(RecordingChunk([Row({"a": 1.0, "b": 2.0}, 1)], str), ["b"])
    assert [chunk.table(features).names for features in (["a"], ())] == [("a",), ("a",)]
    assert requests == [["a", "b"], []]


def test_sparse_rows_do_not_become_a_table():
    rows = [Row({f"n{i}": 1.0}, 0) for i in range(200)]
    assert Chunk(rows, str).table(()) is None
    assert len(Chunk(rows[:50], str).table(()).names) == 50


@given(st.lists(values))
def test_a_list_is_converted_up_to_the_first_value_that_is_not_a_number(values):
    numbers, n = to_float_prefix(values)
    expected = []
    for value in values:
        if not (value is None or isinstance(value, int | float | np.number | np.bool_)) or (type(value) is int and value > 1e308):
            break
        expected.append(math.nan if value is None else float(value))
    assert (n, numbers.tobytes()) == (len(expected), np.array(expected, np.float64).tobytes())


def test_arrays_are_converted_to_float64():
    for kind in ("f4", "f8", "i8", "u1", "?"):
        numbers, n = to_float_prefix(np.array([0, 1], kind))
        assert (numbers.dtype, numbers.tolist(), n) == (np.float64, [0.0, 1.0], 2)


def test_rows_of_a_table_omit_missing_values():
    table = Table(("a",), [np.array([1, np.nan], np.float32)], ["u", None], np.array([2.0, 3.0]))
    assert [table.row(i) for i in range(len(table))] == [Row({"a": 1.0}, WeightedLabel("u", 2.0)), Row({}, None)]
    assert type(table.row(0).x["a"]) is float
    assert len(Table((), [], [1, 2])) == 2
