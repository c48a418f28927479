"""Predictions have what they are joined by: columns of their rows, as they came."""

import csv
import json
import math
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from river import preprocessing

from chunks import InChunks
from streamsvm import BSGDClassifier
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    CSVSource,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    IterableSource,
    JoinedSource,
    JSONLinesSource,
    LearningLoop,
    LIBSVMSource,
    Prediction,
    PredictionLoop,
    RowsChunk,
    Sink,
    StreamError,
    TableChunk,
    open_source,
)
from streamsvm.stream.endpoints import WrappedSource
from streamsvm.stream.keeping import MOST_KEPT, keeping_of, kept_values
from streamsvm.stream.prediction import FollowedModel
from streamsvm.stream.rows import RowError
from streamsvm.stream.tables.chunk import ChangedChunk

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
def test_columns_of_csv_stay_as_they_are_written(tmp_path, suffix):
    how = {"drop": ["id", "city"], "dates": "ts"}
    with (
        CSVSource(write_csv(tmp_path / "rows.csv"), "y", **how) as source,
        FileSink(out := tmp_path / f"out.{suffix}") as sink,
    ):
        LearningLoop(source, model(), sink=sink, keep=["ts", "id", "city", "y"]).run()
    found = read(out)
    assert list(found[0]) == ["row", "y_pred", "y_true", "probability", "ts", "id", "city", "y"]
    nothing = "" if suffix == "csv" else None
    for i, line in enumerate(found):
        assert (line["id"], line["ts"]) == (f"00{i}", f"2024-01-{i % 28 + 1:02d}")
        assert line["city"] == (nothing if i % 3 else f"c{i}")
        assert (line["y"], str(line["row"])) == (line["y_true"], str(i))


def test_predictions_are_those_without_it(tmp_path):
    path = write_csv(tmp_path / "rows.csv")
    for keep in ([], ["id"]):
        with FileSink(tmp_path / f"{len(keep)}.csv") as sink, CSVSource(path, "y", drop=["id", "ts", "city"]) as source:
            LearningLoop(source, model(), sink=sink, keep=keep).run()
    without, kept = (read(tmp_path / f"{n}.csv") for n in (0, 1))
    assert [{name: value for name, value in line.items() if name != "id"} for line in kept] == without


def test_values_of_json_lines(tmp_path):
    rows = [
        {"id": 7, "a": 1.0, "y": 1, "meta": {"at": {"ms": 2**70}, "tags": ["x", 1]}},
        {"id": "007", "a": 2.0, "y": 0, "meta": {"at": None}},
        {"id": True, "a": 1.5, "y": 0, "meta.at": 1.5},
        {"a": 1.5, "y": 0, "id": math.nan},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with (
        JSONLinesSource(tmp_path / "rows.jsonl", "y", drop=["id", "meta", "meta.at"]) as source,
        FileSink(tmp_path / "out.jsonl") as sink,
    ):
        LearningLoop(source, model(), sink=sink, keep=["id", "meta.at.ms", "meta.tags", "meta.at", "none"]).run()
    found = [list(line.values())[4:] for line in read(tmp_path / "out.jsonl")]
    assert found == [
        [7, str(2**70), '["x", 1]', f'{{"ms": {2**70}}}', None],
        ["007", None, None, None, None],
        [True, None, None, 1.5, None],
        [None] * 5,
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_parquet_and_arrow(tmp_path, kind):
    moment = datetime(2024, 3, 1, 12, tzinfo=UTC)
    columns = {
        "id": [2**60 + 1, None],
        "at": [moment, None],
        "price": [Decimal("1.50"), None],
        "in": [{"day": date(2024, 1, 2), "k": "x"}, None],
        "a": [1.0, 2.0],
        "y": ["u", "v"],
    }
    table = pa.table(columns)
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    keep = ["id", "at", "price", "in.day", "in", "y"]
    with closing(open_source(str(path), label="y", features=["a"])) as source, FileSink(tmp_path / "out.jsonl") as sink:
        LearningLoop(source, model(), sink=sink, keep=keep).run()
    first, second = (list(line.values())[4:] for line in read(tmp_path / "out.jsonl"))
    assert first == [2**60 + 1, moment.isoformat(), "1.50", "2024-01-02", '{"day": "2024-01-02", "k": "x"}', "u"]
    assert second == [*[None] * 5, "v"]
    with (
        closing(open_source(str(path), label="y")) as source,
        pytest.raises(StreamError, match="no column 'b' to keep. It has: id, at, price, in.day, in.k, a, y"),
    ):
        source.keep(["b"])


class Copied(ChangedChunk):
    """Rows whose names are not among their features, but for one whose name is no text."""

    def row(self, i):
        return self._chunk.row(i)

    def table(self, known):
        return self._chunk.table(known)

    def kept(self, first, end):
        return [[self.place(i).partition(", ")[2] if self.row(i).x["b"] else "\ud800" for i in range(first, end)]]


def with_copies(rows, kind):
    return WrappedSource(InChunks(rows, kind), Copied)


KINDS = pytest.mark.parametrize("kind", [TableChunk, RowsChunk])


@KINDS
def test_rows_together_are_as_row_by_row(tmp_path, kind):
    rows = [({"a": float(i % 7), "b": float(i != 400)}, i % 7 > 3) for i in range(500)]
    refused, left = [], []
    for at_once in (True, False):
        with FileSink(tmp_path / f"{at_once}.jsonl") as sink:
            loop = LearningLoop(with_copies(rows, kind), BSGDClassifier(budget=10), sink=sink, keep="id", on_error="skip")
            assert loop._at_once
            loop._at_once = at_once
            loop.run()
        refused.append(loop.refused)
        left.append(read(tmp_path / f"{at_once}.jsonl"))
    assert refused == [{"malformed": 1}] * 2  # half of a surrogate pair is no text
    assert left[0] == left[1]
    assert [line["id"] for line in left[0]] == [f"row {i + 1}" for i in range(500) if i != 400]


def test_predictions_of_newer_models(tmp_path):
    rows = [({"a": float(i % 7), "b": 1.0}, None) for i in range(3000)]
    learner = BSGDClassifier(budget=10)
    learner.learn_one({"a": 1.0, "b": 1.0}, True)
    follow = SimpleNamespace(newer=iter([None] * 3 + [FollowedModel(learner, 7)] + [None] * 200).__next__)
    with FileSink(tmp_path / "out.jsonl") as sink:
        PredictionLoop(with_copies(rows, RowsChunk), learner, sink, follow=follow, keep="id").run()
    found = read(tmp_path / "out.jsonl")
    assert list(found[0]) == ["row", "y_pred", "y_true", "probability", "model", "id"]
    assert [line["id"] for line in found] == [f"row {i + 1:,}" for i in range(3000)]
    assert [line["model"] for line in found] == sorted(line["model"] for line in found)
    assert {line["model"] for line in found} == {0, 7}


@KINDS
def test_of_a_source_that_copies_nothing_columns_are_features(tmp_path, kind):
    rows = [({"a": float(i), "b": 1.0}, None) for i in range(100)]
    learner = BSGDClassifier(budget=10)
    learner.learn_one({"a": 1.0, "b": 1.0}, True)
    with FileSink(tmp_path / "out.jsonl") as sink:
        PredictionLoop(InChunks(rows, kind), learner, sink, keep=["a", "c"]).run()
    assert [(line["row"], line["a"], line["c"]) for line in read(tmp_path / "out.jsonl")] == [(i, i, None) for i in range(100)]


def test_a_run_that_was_killed_has_each_row_once(tmp_path):
    path = write_csv(tmp_path / "rows.csv")

    def run(keep, name="out.csv", most=None):
        with (
            CheckpointFolder(tmp_path / "state") as folder,
            FileSink(tmp_path / name) as sink,
            CSVSource(path, "y", drop=["id", "ts", "city"]) as source,
        ):
            LearningLoop(source, model(), sink=sink, keep=keep, checkpoints=folder).run(most)

    run(["id"], most=20)
    with (tmp_path / "out.csv").open("a") as file:
        file.write("20,yes,yes,1.0,0020\n")  # after the checkpoint
    for other in ([], ["ts"], ["id", "ts"]):
        with pytest.raises(CheckpointError, match=r"predictions that have \['id'\] of their rows.*ask for the same --keep"):
            run(other)
    run(["id"])
    assert [line["id"] for line in read(tmp_path / "out.csv")] == [f"00{i}" for i in range(N)]


def test_delayed_labels(tmp_path):
    rows = [{"id": f"0{i}", "t": float(i), "a": i % 7, "note": [i]} for i in range(50)]
    labels = [{"id": f"0{i}", "t": i + 3.5, "y": i % 7 > 3} for i in range(50)]
    for name, found in (("rows", rows), ("labels", labels)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, found)))
    for run in (17, None):  # rows and labels: a row is read ahead, and is in the checkpoint
        source = JoinedSource(
            JSONLinesSource(tmp_path / "rows.jsonl", "y", drop="note", categorical="id"),
            JSONLinesSource(tmp_path / "labels.jsonl", "y"),
            key="id",
            time="t",
        )
        with CheckpointFolder(tmp_path / "state") as folder, FileSink(tmp_path / "out.jsonl") as sink, closing(source):
            how = {"delayed": DelayedLabels(), "keep": ["id", "t", "note"]}
            DelayedLearningLoop(source, model(), sink=sink, checkpoints=folder, **how).run(run)
    found = [(line["key"], line["id"], line["t"], line["note"]) for line in read(tmp_path / "out.jsonl")]
    assert found == [(f"0{i}", f"0{i}", float(i), f"[{i}]") for i in range(50)]


def test_what_cannot_be_kept(tmp_path):
    path = write_csv(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="these go nowhere"):
        LearningLoop(IterableSource([]), model(), keep=["id"])
    (tmp_path / "rows.svm").write_text("1 1:2\n")
    for kind, keep, error, text in (
        (CSVSource, ["id", "id"], ValueError, "keep has 'id' more than once"),
        (CSVSource, ["row"], StreamError, "column 'row' cannot be kept, because predictions have a field of that name"),
        (CSVSource, ["idd"], StreamError, "no column 'idd' to keep. It has: id, ts, city, a, y"),
        (LIBSVMSource, ["id"], StreamError, "column 'id' cannot be kept: LIBSVM text has numbers"),
    ):
        where = tmp_path / "rows.svm" if kind is LIBSVMSource else path
        with FileSink(tmp_path / "out.csv") as sink, kind(where) as source, pytest.raises(error, match=text):
            LearningLoop(source, model(), sink=sink, keep=keep).run()


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], [math.nan], {(1, 2): 3}, b"\xff", "x" * (MOST_KEPT + 1)])
def test_values_that_refuse_their_row(value):
    with pytest.raises(RowError, match=r"column 'a' is .* cannot be kept|columns to keep have more than 65,536 characters"):
        kept_values(["a"], [value])
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(RowError, match="cannot be kept"):
        kept_values(["a"], [nested])


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.datetimes()


@pytest.mark.once
@given(st.lists(st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))))
def test_any_value_is_kept_as_plain_json_or_refused(found):
    names = list(map(str, range(len(found))))
    try:
        kept = kept_values(names, found)
    except RowError:
        return
    assert kept_values(names, kept) == kept
    json.dumps(kept, allow_nan=False).encode()
    for value, given_ in zip(kept, found, strict=True):
        if type(given_) is str or (type(given_) is int and abs(given_) < 2**63):
            assert value == given_


def test_a_record_with_more_fields():
    keeping = keeping_of(IterableSource([]), Sink(), ["class", "a b"], Prediction)
    made = keeping.joined(Prediction(3, 1, 0, 0.5), ["x", None])
    assert isinstance(made, Prediction)
    assert (made.row, made.y_pred, made.probability) == (3, 1, 0.5)
    assert made._asdict() == {"row": 3, "y_pred": 1, "y_true": 0, "probability": 0.5, "class": "x", "a b": None}
    assert repr(made) == "Prediction(row=3, y_pred=1, y_true=0, probability=0.5, class='x', a b=None)"
    assert keeping_of(IterableSource([]), Sink(), [], Prediction) is None


def test_a_time_of_pandas_that_is_none_is_none():
    pd = pytest.importorskip("pandas")
    assert kept_values(["a", "b"], [pd.NaT, pd.Timestamp("2024-01-02")]) == [None, "2024-01-02T00:00:00"]
