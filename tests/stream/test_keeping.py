"""Passthrough columns: predictions have unchanged columns of their rows."""

import csv
import json
import math
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river import preprocessing

from chunks import TABLES, InChunks, write_rows
from streamsvm import BSGDClassifier
from streamsvm.stream import (
    CheckpointFolder,
    Chunk,
    CSVSource,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    IterableSource,
    JoinedSource,
    JSONLinesSource,
    LearningLoop,
    LIBSVMSource,
    StreamError,
    open_source,
)
from streamsvm.stream.prediction_fields import MAX_COPIED_CHARS, to_json_columns
from streamsvm.stream.rows import RowError

N = 60


def model():
    return preprocessing.StandardScaler() | BSGDClassifier(budget=10, seed=1)


def read(path):
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return list(map(json.loads, path.read_text().splitlines()))


def write_csv(path, n=N):
    lines = [
        f"00{i},2024-01-{i % 28 + 1:02d},{'' if i % 3 else f' c{i}'},{i % 7},{'yes' if i % 7 > 3 else 'no'}" for i in range(n)
    ]
    path.write_text("\n".join(["id,ts,city,a,y", *lines]) + "\n")
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_passthrough_columns_of_csv_are_unchanged_and_written_once(tmp_path, suffix):
    path, out = write_csv(tmp_path / "rows.csv"), tmp_path / f"out.{suffix}"
    options, passthrough = {"columns": "id:drop,city:drop,ts:date"}, ["ts", "id", "city", "y"]
    for most in (20, None):
        with CheckpointFolder(tmp_path / "state") as folder, FileSink(out) as sink, CSVSource(path, "y", **options) as source:
            LearningLoop(source, model(), sink=sink, passthrough=passthrough, checkpoints=folder).run(most)
        with out.open("a") as file:
            file.write("20,yes,yes,1.0,0020\n" if most else "")  # after the checkpoint
    records = read(out)
    assert list(records[0]) == ["row", "y_pred", "y_true", "probability", *passthrough]
    assert [str(line["row"]) for line in records] == list(map(str, range(N)))
    nothing = "" if suffix == "csv" else None
    for i, line in enumerate(records):
        assert (line["id"], line["ts"]) == (f"00{i}", f"2024-01-{i % 28 + 1:02d}")
        assert line["city"] == (nothing if i % 3 else f"c{i}")
        assert line["y"] == line["y_true"]


def test_values_of_json_lines(tmp_path):
    rows = [
        {"id": 7, "a": 1.0, "y": 1, "meta": {"at": {"ms": 2**70}, "tags": ["x", 1]}},
        {"id": "007", "a": 2.0, "y": 0, "meta": {"at": None}},
        {"id": True, "a": 1.5, "y": 0, "meta.at": 1.5},
        {"a": 1.5, "y": 0, "id": math.nan},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with (
        JSONLinesSource(tmp_path / "rows.jsonl", "y", columns="id:drop,meta:drop,meta.at:drop") as source,
        FileSink(tmp_path / "out.jsonl") as sink,
    ):
        LearningLoop(source, model(), sink=sink, passthrough=["id", "meta.at.ms", "meta.tags", "meta.at", "none"]).run()
    records = [list(line.values())[4:] for line in read(tmp_path / "out.jsonl")]
    assert records == [
        [7, str(2**70), '["x", 1]', f'{{"ms": {2**70}}}', None],
        ["007", None, None, None, None],
        [True, None, None, 1.5, None],
        [None] * 5,
    ]


@pytest.mark.parametrize("kind", TABLES)
def test_columns_of_parquet_and_arrow(tmp_path, kind):
    moment = datetime(2024, 3, 1, 12, tzinfo=UTC)
    inner = {"day": date(2024, 1, 2), "k": "x"}
    rows = [{"id": 2**60 + 1, "at": moment, "price": Decimal("1.50"), "in": inner, "a": 1.0, "y": "u"}]
    path = write_rows(tmp_path / f"rows.{kind}", [*rows, dict.fromkeys(rows[0]) | {"a": 2.0, "y": "v"}])
    passthrough = ["id", "at", "price", "in.day", "in", "y"]
    with (
        closing(open_source(str(path), columns="a:number,*:drop", label="y")) as source,
        FileSink(tmp_path / "out.jsonl") as sink,
    ):
        LearningLoop(source, model(), sink=sink, passthrough=passthrough).run()
    first, second = (list(line.values())[4:] for line in read(tmp_path / "out.jsonl"))
    assert first == [2**60 + 1, moment.isoformat(), "1.50", "2024-01-02", '{"day": "2024-01-02", "k": "x"}', "u"]
    assert second == [*[None] * 5, "v"]
    with (
        closing(open_source(str(path), label="y")) as source,
        pytest.raises(StreamError, match="no column 'b' to pass through. It has: id, at, price, in.day, in.k, a, y"),
    ):
        source.request_passthrough(["b"])


#: Values that are copied from a row whose feature b is their index, and the values in predictions; some refuse the row.
COPIED = [("\ud800", None), ("x" * (MAX_COPIED_CHARS + 1), None), (2**63, str(2**63)), (-(2**63), -(2**63)), ("\xe9", "\xe9")]


class Copied(Chunk):
    """Rows with passthrough columns that are not features: their place, and the values above."""

    def passthrough_columns(self, start, stop):
        indices = [int(self.row(i).x["b"]) for i in range(start, stop)]
        return [[self.place(start + i).partition(", ")[2] if b < 0 else COPIED[b][0] for i, b in enumerate(indices)]]


@pytest.mark.parametrize("as_table", [True, False])
def test_batches_are_as_single_rows(tmp_path, as_table):
    odd = [i // 10 - 40 if i % 10 == 0 and 400 <= i < 450 else -1 for i in range(500)]
    rows = [({"a": float(i % 7), "b": float(b)}, i % 7 > 3) for i, b in enumerate(odd)]
    refused, left = [], []
    for at_once in (True, False):
        with FileSink(tmp_path / f"{at_once}.jsonl") as sink:
            source = InChunks(rows, as_table, kind=Copied)
            loop = LearningLoop(source, BSGDClassifier(budget=10), sink=sink, passthrough="id", on_error="skip")
            assert loop._uses_batches
            loop._uses_batches = at_once
            loop.run()
        refused.append(loop.refused)
        left.append(read(tmp_path / f"{at_once}.jsonl"))
    assert refused == [{"malformed": 1, "too long": 1}] * 2  # a lone surrogate is not valid text
    assert left[0] == left[1]
    expected = [f"row {i + 1}" if b < 0 else COPIED[b][1] for i, b in enumerate(odd) if b not in (0, 1)]
    assert [line["id"] for line in left[0]] == expected


def test_delayed_labels(tmp_path):
    rows = [{"id": f"0{i}", "t": float(i), "a": i % 7, "note": [i]} for i in range(50)]
    labels = [{"id": f"0{i}", "t": i + 3.5, "y": i % 7 > 3} for i in range(50)]
    for name, records in (("rows", rows), ("labels", labels)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))

    def run(most, *passthrough):
        rows = JSONLinesSource(tmp_path / "rows.jsonl", "y", columns="note:drop,id:category")
        source = JoinedSource(rows, JSONLinesSource(tmp_path / "labels.jsonl", "y"), key="id", time="t")
        with CheckpointFolder(tmp_path / "state") as folder, FileSink(tmp_path / "out.jsonl") as sink, source:
            DelayedLearningLoop(
                source, model(), sink=sink, checkpoints=folder, delayed=DelayedLabels(), passthrough=passthrough
            ).run(most)

    for most in (17, None):  # a row is read ahead of the labels, and is in the checkpoint
        run(most, "id", "t", "note")
    records = [(line["key"], line["id"], line["t"], line["note"]) for line in read(tmp_path / "out.jsonl")]
    assert records == [(f"0{i}", f"0{i}", float(i), f"[{i}]") for i in range(50)]
    with pytest.raises(StreamError, match="'key' cannot be passed through"):
        run(None, "id", "key")


def test_passthrough_columns_that_are_refused(tmp_path):
    path = write_csv(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="no sink receives them"):
        LearningLoop(IterableSource([]), model(), passthrough=["id"])
    (tmp_path / "rows.svm").write_text("1 1:2\n")
    for kind, passthrough, error, text in (
        (CSVSource, ["id", "id"], ValueError, "passthrough has 'id' more than once"),
        (CSVSource, ["row"], StreamError, "column 'row' cannot be passed through: predictions have a field of that name"),
        (CSVSource, ["idd"], StreamError, "no column 'idd' to pass through. It has: id, ts, city, a, y"),
        (LIBSVMSource, ["id"], StreamError, "column 'id' cannot be passed through: the rows are numbers without names"),
    ):
        where = tmp_path / "rows.svm" if kind is LIBSVMSource else path
        with FileSink(tmp_path / "out.csv") as sink, kind(where) as source, pytest.raises(error, match=text):
            LearningLoop(source, model(), sink=sink, passthrough=passthrough).run()


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], [math.nan], {(1, 2): 3}, b"\xff", "x" * (MAX_COPIED_CHARS + 1)])
def test_values_that_refuse_their_row(value):
    with pytest.raises(
        RowError, match=r"column 'a' is .* cannot be passed through|passthrough columns have more than 65,536 characters"
    ):
        to_json_columns(["a"], [[value]])


def test_deeply_nested_values_refuse_their_row():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(RowError, match="cannot be passed through"):
        to_json_columns(["a"], [[nested]])


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.datetimes()


@pytest.mark.once
@given(
    st.lists(st.recursive(values, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3), max_leaves=6))
)
def test_any_value_becomes_plain_json_or_refuses_its_row(values_drawn):
    names = list(map(str, range(len(values_drawn))))
    try:
        converted = [value for (value,) in to_json_columns(names, [[value] for value in values_drawn])]
    except RowError:
        return
    assert to_json_columns(names, [[value] for value in converted]) == [[value] for value in converted]
    json.dumps(converted, allow_nan=False).encode()
    for value, value_drawn in zip(converted, values_drawn, strict=True):
        if type(value_drawn) is str or (type(value_drawn) is int and abs(value_drawn) < 2**63):
            assert value == value_drawn


def test_nat_becomes_none():
    pd = pytest.importorskip("pandas")
    assert to_json_columns(["a", "b"], [[pd.NaT], [pd.Timestamp("2024-01-02")]]) == [[None], ["2024-01-02T00:00:00"]]


def test_numpy_scalars_become_numbers():
    assert to_json_columns(["a"], [[np.int64(5), np.float32(0.5), np.bool_(True)]]) == [[5, 0.5, True]]
