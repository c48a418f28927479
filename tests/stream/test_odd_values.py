"""Unusual values are refused or read in the same way in chunks, in frames and row by row."""

import datetime
import random
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import Chunk, FileSink, IterableSource, LearningLoop, PredictionLoop, Row
from streamsvm.stream.tables import TableEncoder

ZONES = datetime.UTC, datetime.timezone(datetime.timedelta(hours=1))
MOMENTS = [datetime.datetime(2024, 1, 1, 12 + i, tzinfo=zone) for i, zone in enumerate(ZONES)]  # the same moment


class AtOnce(IterableSource):
    """A source whose rows are all available."""

    def read(self, most):
        rows = [chunk.row(0) for chunk in iter(lambda: super(AtOnce, self).read(1), None)]
        return Chunk(rows, str, passthrough_names=self.passthrough_names) if rows else None


def rows(**odd):
    draw, rows_given = random.Random(0), []
    for i in range(60):
        a, b = draw.gauss(0.0, 1.0), draw.gauss(0.0, 1.0)
        rows_given.append(Row({"a": a, "b": b, "c": "xy"[i % 2]} if "c" in odd else {"a": a, "b": b}, a * b > 0.0))
    y = [odd.pop("y")] if "y" in odd else []
    return [Row(row.x | odd, *(y or [row.y])) if i in (30, 45) else row for i, row in enumerate(rows_given)]


ODD = [
    *[{"a": np.array([1.0, 2.0])}, {"a": Decimal("sNaN")}, {"a": 10**400}, {"a": 1e39}, {"a": float("inf")}, {"a": [1.0]}],
    {"a": None},
    *({"y": value} for value in ([1], float("nan"), 0.5)),
    *[{"new": 10**400}, {"new": [1]}, {"new": None}, {"new": "text"}, {"c": ["x"]}, {"c": ("x",)}, {"c": MOMENTS[0]}],
    *[{"c": MOMENTS[1]}, {"c": Decimal("sNaN")}],
    *({"c": value} for value in (Decimal("1.0"), 1, True)),
]


def model_of(odd):
    learner = BSGDClassifier(10, seed=1)
    return TableEncoder("c:category") | learner if "c" in odd else learner


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_batches_are_processed_as_single_rows(tmp_path, odd):
    learned, predicted = [], []
    model = model_of(odd)
    LearningLoop(IterableSource(rows()), model).run()
    for kind in (IterableSource, AtOnce):
        loop = LearningLoop(kind(rows(**odd)), model_of(odd), on_error="skip")
        learned.append((loop.run().refused, dumps(loop.model)))
        with FileSink(tmp_path / f"{kind.__name__}.jsonl") as sink:
            loop = PredictionLoop(kind(rows(**odd)), model, sink, on_error="skip")
            predicted.append((loop.run().refused, loop.columns.counts))
        predicted[-1] += ((tmp_path / f"{kind.__name__}.jsonl").read_text(),)
    assert learned[0] == learned[1]
    assert predicted[0] == predicted[1]


FRAMES = [
    {"b": pd.array([1, None, 2], dtype="Int64"), "c": ["x", "y", "z"]},
    {"b": pd.array([True, None, False], dtype="boolean"), "c": pd.array(["x", None, "z"], dtype="string")},
    {0: [1.0, 2.0, 3.0], "c": ["x", "y", "z"]},
    {"a": [1.0, 2.0, 3.0], "n": [np.nan] * 3},
    {"a": [1.0, 2.0, 3.0], "at": [None, None, None]},
    {"c": pd.Series(["P", np.array([1, 2]), "Q"], dtype=object)},
    {"c": pd.Series([(1,), (2,), (1, 2)], dtype=object)},
    {"c": pd.Series([*MOMENTS, None], dtype=object)},
    {"c": pd.Series([1, True, 1.0], dtype=object)},
]


@pytest.mark.parametrize("scaler", [None, "standard"])
@pytest.mark.parametrize("columns", FRAMES, ids=lambda columns: "-".join(map(str, columns)))
def test_frames_are_learned_as_their_rows(columns, scaler):
    frame = pd.DataFrame(columns)
    many, one = (TableEncoder("c:category,at:date", cycles="day", scaler=scaler) for _ in range(2))
    many.learn_many(frame)
    for i in range(len(frame)):
        one.learn_one({name: values.iloc[i] for name, values in frame.items()})
    assert dumps(many) == dumps(one)
    transformed = many.transform_many(frame)
    for i in range(len(frame)):
        x = one.transform_one({name: values.iloc[i] for name, values in frame.items()})
        assert {name: value for name, value in transformed.iloc[i].items() if value} == {k: v for k, v in x.items() if v}
    if not frame.notna().to_numpy().all(axis=None):
        assert set(transformed.columns) <= {
            *one.learned_columns,
            *(f"c={text}" for text in "xyz"),
            "c=" + str(MOMENTS[0]),
            "c=" + str(MOMENTS[1]),
        }


def test_features_that_are_hashed_are_hashed_in_predictions(tmp_path):
    learner = BSGDClassifier(10, seed=1, max_features=2, overflow="hash")
    LearningLoop(IterableSource(rows()), learner).run()
    rows_given = [Row(row.x | {"new": 5.0}) for row in rows()]
    with FileSink(tmp_path / "out.jsonl") as sink:
        PredictionLoop(AtOnce(rows_given), learner, sink).run()
    labels = pd.read_json(tmp_path / "out.jsonl", lines=True)["y_pred"]
    assert labels.tolist() == [learner.predict_one(row.x) for row in rows_given] != [learner.predict_one(row.x) for row in rows()]
