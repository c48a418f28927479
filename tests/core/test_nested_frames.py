"""Columns of structs and dicts are columns of their fields, in frames as in JSON."""

import json
import random

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streamsvm import BSGDClassifier, BSGDRegressor, table_model
from streamsvm.batch.tables import TableClassifier
from streamsvm.core.frames import to_columns, to_list, to_matrix
from streamsvm.stream.tables import TableEncoder

MAKERS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table.from_pylist}


def make_rows(n=200):
    rng = random.Random(0)
    for i in range(n):
        a, b = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
        device = {"a": a, "at": {"b": b, "city": ["Oslo", "Rome"][i % 2]}} if i % 9 else None
        yield {"dev": device, "c": rng.gauss(0.0, 1.0), "y": "yes" if a + b > 0.0 else "no"}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_fields_are_columns_named_by_their_path(make):
    frame = make([{"k": 1, "dev": {"a": 1.5, "in": {"b": 2}}, "z": 3}, {"k": 2, "dev": None, "z": 4}])
    names, columns, _ = to_columns(frame)
    assert names == ["k", "dev.a", "dev.in.b", "z"]
    values = dict(zip(names, columns, strict=True))
    assert np.asarray(values["dev.a"], float)[0] == 1.5
    assert np.isnan(np.asarray(values["dev.in.b"], float)[1])
    matrix, names, _ = to_matrix(frame, np.float64)
    assert matrix[0, names.index("dev.in.b")] == 2.0
    assert np.isnan(matrix[1, names.index("dev.a")])
    only = make([{"dev": {"a": 1.0}}, {"dev": {"a": 2.0}}])
    assert to_matrix(only)[0].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_all_doors_make_one_model(make, tmp_path):
    rows = list(make_rows())
    path, learner = tmp_path / "rows.jsonl", BSGDClassifier(30)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = {name: table_model(data, "y", learner=learner) for name, data in {"path": str(path), "dicts": rows}.items()}
    models["frame"] = table_model(frame := make(rows), "y", learner=learner)
    assert len({str(sorted(model.schema.options.items())) for model in models.values()}) == 1
    models["frame"].learn_many(frame)
    for name in ("path", "dicts"):
        for row in rows:
            models[name].learn_one({column: value for column, value in row.items() if column != "y"}, row["y"])
    assert models["frame"].score(frame) > 0.8
    predicted = {name: [model.predict_one(row) for row in rows] for name, model in models.items()}
    assert predicted["path"] == predicted["dicts"] == predicted["frame"] == to_list(models["path"].predict_many(frame))


def test_structs_of_numbers_reach_learners_without_an_encoder():
    frame = pd.DataFrame([{"dev": {"a": float(i % 5), "b": i}, "c": 1.0} for i in range(40)], index=range(100, 140))
    classifier, regressor = BSGDClassifier(10), BSGDRegressor(10)
    classifier.learn_many(frame, [i % 5 > 2 for i in range(40)])
    regressor.learn_many(frame, [float(i % 5) for i in range(40)])
    assert classifier.feature_names == ["dev.a", "dev.b", "c"] or set(classifier.feature_names) == {"dev.a", "dev.b", "c"}
    assert list(classifier.predict_many(frame).index) == list(range(100, 140))
    encoded = TableEncoder("dev.k:category").transform_many(pd.DataFrame({"dev": [{"k": "x", "n": 2.0}]}))
    assert list(encoded.columns) == ["dev.n"]


def test_estimators_of_scikit_learn_take_structs():
    frame = pl.DataFrame(list(make_rows()))
    model = TableClassifier(BSGDClassifier(30), random_state=0).fit(frame.drop("y"), frame["y"].to_list())
    assert set(model.feature_names_in_) == {"dev.a", "dev.at.b", "dev.at.city", "c"}
    assert model.score(frame.drop("y"), frame["y"].to_list()) > 0.7


def test_ambiguous_fields_are_refused_and_lists_cannot_be_learned():
    with pytest.raises(ValueError, match=r"two columns have the path 'dev\.a'"):
        to_columns(pd.DataFrame({"dev": [{"a": 1}], "dev.a": [2]}))
    mixed = pd.DataFrame({"dev": [{"a": 1}, 7.0, None], "c": [1.0, 2.0, 3.0]})
    assert set(to_columns(mixed)[0]) == {"dev", "dev.a", "c"}  # as in JSON
    with pytest.raises(ValueError, match="feature 'x' is"):
        (TableEncoder() | BSGDClassifier(5)).learn_many(pl.DataFrame({"x": [[1.0], [2.0]]}), [0, 1])


def test_dropping_an_object_drops_its_fields_through_all_doors(tmp_path, call):
    rows, path = list(make_rows()), tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for data in (rows, str(path), *(make(rows) for make in MAKERS.values())):
        model = table_model(data, "y", columns="dev:drop", learner=BSGDClassifier(30, seed=0))
        model.learn_one(rows[1], "yes")
        assert list(model._last_step.feature_names) == ["c"]
        with pytest.raises(ValueError, match="there is no column 'device'"):
            table_model(rows, "y", columns="device:drop")
    call(
        "learn", path, "--label", "y", "--columns", "dev:drop", "--checkpoint", tmp_path / "state", "--learner", "bsgd,budget=20"
    )
    assert "never learned" not in call("predict", path, "--model", tmp_path / "state", "--to", tmp_path / "out.jsonl").stderr
