"""`table_model` on frames, files, dicts and sources, compared with the command line."""

import json
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river.tree import HoeffdingTreeClassifier

import streamsvm
from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier, SVMRegressor, importance, load, save, table_model
from streamsvm.core.frames import to_list
from streamsvm.stream import IterableSource, LearningLoop, StreamError, open_source
from streamsvm.stream.tables import TableEncoder, TableModel

pytestmark = pytest.mark.once  # slow: many rows

N = 240


def make_columns():
    rng = np.random.default_rng(0)
    city = rng.choice(["Oslo", "Paris", "Rome", "Bonn"], N)
    age = rng.integers(20, 60, N).astype(float)
    return {
        "id": [f"n{i}" for i in range(N)],
        "city": city.tolist(),
        "since": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024" for i in range(N)],
        "age": ["?" if i % 11 == 0 else f"{age[i]:.0f}" for i in range(N)],
        "y": np.where((city == "Oslo") ^ (age > 40), "yes", "no").tolist(),
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "people.csv"
    pd.DataFrame(make_columns()).to_csv(path, index=False)
    return path


FORMS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": lambda columns: pl.DataFrame(columns).to_arrow(),
    "dicts": lambda columns: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    "a generator": lambda columns: (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)),
}
OPTIONS = "columns='id:drop,city:category,since:date=%d.%m.%Y', missing=['?']"


@pytest.mark.parametrize("form", FORMS)
def test_the_schema_does_not_depend_on_the_form_of_the_data(form, path):
    model = table_model(FORMS[form](make_columns()), label="y")
    assert repr(model.schema) == f"TableSchema(label='y', {OPTIONS})"
    assert model.schema.options == table_model(path, label="y").schema.options
    assert type(model["SVMClassifier"]) is SVMClassifier
    assert not model["SVMClassifier"].feature_names  # nothing was learned
    assert "table_model" in dir(streamsvm)


def test_the_model_equals_that_of_the_command_line(path, tmp_path, call):
    call("learn", path, "--label", "y", "--checkpoint", tmp_path / "state")
    saved = load(tmp_path / "state")
    model = table_model(path, label="y", learner=list(saved.steps.values())[-1].clone())
    assert isinstance(saved, TableModel)
    assert saved.schema.options == model.schema.options
    assert str(saved.schema) == str(model.schema)
    with open_source(str(path), label="y", **model.schema.source_options) as source:
        LearningLoop(source, model).run()
    rows = FORMS["dicts"](make_columns())
    assert [model.predict_proba_one(row) for row in rows] == [saved.predict_proba_one(row) for row in rows]


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow"])
def test_frames_are_learned_predicted_and_scored(form):
    columns = make_columns()
    frame = FORMS[form](columns)
    without = FORMS[form]({name: values for name, values in columns.items() if name != "y"})
    model, twin = (table_model(frame, label="y", learner=BSGDClassifier(budget=60)) for _ in range(2))
    model.learn_many(frame)
    twin.learn_many(without, columns["y"])
    predicted = to_list(model.predict_many(frame))
    assert predicted == to_list(model.predict_many(without)) == to_list(twin.predict_many(without))
    share = float(np.mean([a == b for a, b in zip(predicted, columns["y"], strict=True)]))
    assert model.score(frame) == model.score(without, columns["y"]) == share > 0.8
    row = dict(zip(columns, next(zip(*columns.values(), strict=True)), strict=True))
    assert model.predict_one(row) == predicted[0]
    raises("X has no column 'y', which is the label", model.learn_many, without)
    raises("X has no column 'y', which is the label", model.score, without)


def test_a_regression_is_inferred_from_the_label():
    frame = pd.DataFrame(make_columns())
    frame = frame.assign(y=[f"{len(city)},{i % 17:02d}" for i, city in enumerate(frame["city"])])
    model = table_model(frame, label="y", decimal=",")
    assert type(model["SVMRegressor"]) is SVMRegressor
    assert "  y       target" in str(model.schema)
    model.learn_many(frame)
    predicted = np.array(list(model.predict_many(frame)))
    y = np.array([float(text.replace(",", ".")) for text in frame["y"]])
    assert model.score(frame) == pytest.approx(1.0 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    assert model.score(frame) > 0.9
    integers = frame.assign(y=range(N))
    assert table_model(integers, label="y").schema.regression
    assert not table_model(integers, label="y", regression=False).schema.regression
    assert table_model(integers.assign(y=1.0), label="y", learner=BSGDRegressor()).schema.regression


def test_arguments_override_the_inferred_schema(path):
    model = table_model(path, label="y", columns="id:category,since:drop", missing=["?", "Bonn"])
    assert "city" in model["TableEncoder"].categories
    assert model["TableEncoder"].columns == {"id": "category", "since": "drop", "city": "category", "y": "drop"}
    assert model["TableEncoder"].missing == ["?", "Bonn"]
    only = table_model(path, label="y", columns="age:number,*:drop", missing="?")
    assert only["TableEncoder"].columns == {"age": "number", "*": "drop", "y": "drop"}
    assert get_kinds(only) == {"id": "dropped", "city": "dropped", "since": "dropped", "age": "number", "y": "label"}
    changed = only.schema.with_options(columns="city:category")
    assert get_kinds(table_model(changed)) == get_kinds(only) | {"city": "category"}
    assert table_model(changed)["TableEncoder"].columns == {"age": "number", "*": "drop", "city": "category", "y": "drop"}
    assert model.schema.with_options(columns="id:number", missing=None, when_missing="indicator").encoder_options == {
        "columns": {"id": "number", "since": "drop", "city": "category"},
        "missing": ["?", "Bonn"],
        "when_missing": "indicator",
    }
    raises("there is no option 'colums'", model.schema.with_options, colums="id:drop")
    raises("cannot be read: it is NAME:KIND", model.schema.with_options, columns="id=drop")


def get_kinds(model):
    return {column.name: column.kind for column in model.schema.columns}


def test_the_schema_is_saved_and_cloned(tmp_path):
    frame = pd.DataFrame(make_columns())
    model = table_model(frame, label="y", learner=BSGDClassifier(budget=20))
    model.learn_many(frame)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert str(loaded.schema) == str(model.schema)
    assert loaded.score(frame) == model.score(frame)
    assert loaded.clone().schema.options == model.schema.options
    assert (TableEncoder("city:category") | BSGDClassifier()).schema is None


def test_ambiguous_or_invalid_data_raises(tmp_path, path):
    frame = pd.DataFrame(make_columns())
    raises(r"which column is the label\? It has 'id', 'city', .* Perhaps label='y'", table_model, frame)
    raises("no column 'z' for the label", table_model, frame, label="z")
    raises(r"Perhaps label='y'", table_model, str(path))
    raises("no column is left to learn from", table_model, frame[["id", "y"]], label="y")
    raises("no column but y", table_model, frame[["y"]], label="y")
    raises("has no row to look at", table_model, frame[:0], label="y")
    raises("has no row to look at", table_model, [], label="y")
    either = frame.assign(since=["01/02/2024", "03/04/2024"] * (N // 2))
    raises(r"columns='.*since:date=%d/%m/%Y.*'", table_model, either, label="y")
    assert "%m/%d/%Y" in repr(table_model(either, label="y", columns="since:date=%m/%d/%Y").schema)
    raises("a column is called 0", table_model, pd.DataFrame([[1, 2]]), label="y")
    raises("data is not a table", table_model, {"a": 1.0}, label="y")
    raises("data is not a table", table_model, 3, label="y")
    raises("columns id=drop: id=drop cannot be read", table_model, frame, label="y", columns="id=drop")
    raises("none.csv is no file", table_model, "none.csv", label="y", error=StreamError)
    text = tmp_path / "rows.libsvm"
    text.write_text("1 1:0.5\n0 1:1.5\n")
    raises("LIBSVM text, which has numbers only", table_model, text, label="y")
    raises("leave out label='y'", table_model, [({"a": 1.0}, True)], label="y")
    raises(r"make the model by streamsvm.table_model\(table, label=...\)", SVMClassifier().learn_many, frame, frame["y"])


def test_pairs_sources_and_files_are_accepted(tmp_path, path):
    rows = FORMS["dicts"](make_columns())
    pairs = [({name: value for name, value in row.items() if name != "y"}, row["y"]) for row in rows]
    for data in (pairs, IterableSource(pairs)):
        model = table_model(data)
        assert model.label is None
        assert model.schema.options == table_model(rows, label="y").schema.options
        for x, y in pairs:
            model.learn_one(x, y)
        assert model.predict_one(pairs[0][0]) in ("yes", "no")
    (tmp_path / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert table_model([tmp_path / "people.jsonl"], label="y").schema.options == table_model(rows, label="y").schema.options
    german = tmp_path / "german.csv"
    pd.DataFrame(make_columns()).assign(price=[f"1.{i:03d},5" for i in range(N)]).to_csv(
        german, index=False, sep=";", encoding="cp1252"
    )
    schema = table_model(german, label="y").schema
    assert schema.source_options["delimiter"] == ";"
    assert schema.options["decimal"] == ","


def test_max_features_is_enough_for_a_wide_table():
    rng = np.random.default_rng(0)
    names = {f"c{k}": rng.choice([f"v{i}" for i in range(12)], 100) for k in range(60)}
    numbers = {f"n{k}": rng.normal(size=100) for k in range(300)}
    frame = pd.DataFrame(names | numbers).assign(y=rng.integers(0, 3, 100))
    model = table_model(frame, label="y", when_missing="indicator")
    model.learn_many(frame)
    assert len(model["SVMClassifier"].feature_names) > 590


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_, Decimal])
def test_numbers_of_other_types_are_numeric(kind):
    rows = [{"p": kind(i % 7), "b": i % 5, "y": i % 2 == 0} for i in range(60)]
    for data in (rows, pd.DataFrame(rows)):
        assert get_kinds(table_model(data, label="y"))["p"] == "number"


@pytest.mark.parametrize("form", ["pandas", "polars", "dicts"])
def test_durations_become_seconds(form):
    waits = [timedelta(minutes=i % 50) for i in range(60)]
    columns = {"wait": waits, "b": [i % 5 for i in range(60)], "y": [i % 50 > 25 for i in range(60)]}
    model = table_model(FORMS[form](columns), label="y")
    assert get_kinds(model)["wait"] == "number"
    if form != "dicts":
        model.learn_many(FORMS[form](columns))
    else:
        for row in FORMS[form](columns):
            model.learn_one(row, row["y"])
    assert model["TableEncoder"].transform_one({"wait": timedelta(hours=1)})["wait"] == 3600.0


def test_invalid_arguments_are_refused():
    frame = pd.DataFrame(make_columns())
    raises(
        "city .said to be a number, and has .*Try: columns='.*city:category", table_model, frame, label="y", columns="city:number"
    )
    raises("there is no column 'nope'", table_model, frame, label="y", columns="nope:drop")
    for kind in ("drop", "category", "number"):
        raises("y is the label: leave it out", table_model, frame, label="y", columns=f"y:{kind}")
    raises("columns must be a text", table_model, frame, label="y", columns={"city": "drop"})
    raises("learner must be a classifier, regressor or anomaly detector of river", table_model, frame, label="y", learner="svm")
    learned = BSGDClassifier(budget=5)
    learned.learn_one({"a": 1.0}, True)
    raises("has learned already", table_model, frame, label="y", learner=learned)
    raises("give the data again", table_model, table_model(frame, label="y").schema, label="city")
    for data in ([1, 2], [(1, 2, 3)], np.zeros((3, 2)), frame["age"], [{"a": 1}, None]):
        raises("data is not a table", table_model, data, label="y")


def test_formatted_targets_and_floats_make_a_regression(tmp_path):
    frame = pd.DataFrame({"a": np.arange(300) % 7, "y": [f"{i * 7 % 300 / 20:.2f}".replace(".", ",") for i in range(300)]})
    frame.to_csv(tmp_path / "rows.csv", sep=";", index=False)
    for data in (frame, tmp_path / "rows.csv"):
        schema = table_model(data, label="y").schema
        assert schema.regression
        assert schema.options["decimal"] == ","
    table_model(frame, label="y").learn_many(frame)
    halves = pd.DataFrame({"a": np.arange(200) % 7, "y": np.arange(200) * 7 % 15 * 0.5})
    assert table_model(halves, label="y").schema.regression
    raises("row 0: .*'no'", table_model(frame, label="y").learn_many, frame.assign(y="no"))


@pytest.mark.parametrize("w", [2.0, [0.0, 1.0] * 120])
def test_weights_have_the_same_effect_in_frames_and_single_rows(w):
    frame = pd.DataFrame(make_columns()).assign(age=np.arange(240) % 7.0)
    models = [table_model(frame, label="y", learner=BSGDClassifier(budget=30)) for _ in range(3)]
    weights = np.broadcast_to(w, 240)
    models[0].learn_many(frame, w=w)
    for i, row in enumerate(frame.to_dict("records")):
        models[1].learn_one(row, row["y"], w=float(weights[i]))
    for first in range(0, 240, 7):
        models[2].learn_many(frame[first : first + 7], w=weights[first : first + 7])
    expected = [model.predict_proba_one(row) for model in models[:1] for row in frame[:20].to_dict("records")]
    for model in models[1:]:
        assert [model.predict_proba_one(row) for row in frame[:20].to_dict("records")] == expected
        assert model["TableEncoder"].column_state.means == models[0]["TableEncoder"].column_state.means


def test_unlabelled_rows_are_skipped_and_sorted_frames_cause_a_warning():
    frame = pd.DataFrame(make_columns())
    half = frame["y"].where(np.arange(240) % 2 == 0)
    unlabelled = frame.assign(y=half)
    models = [table_model(frame, label="y", learner=BSGDClassifier(budget=30)) for _ in range(3)]
    for model, arguments in zip(models, ((frame, half), (unlabelled,), (frame[::2],)), strict=True):
        model.learn_many(*arguments)
        assert list(model.predict_many(frame)) == list(models[0].predict_many(frame))
        assert model.score(*arguments) == model.score(frame[::2])
    raises("no row with a label", models[0].score, unlabelled[unlabelled["y"].isna()])
    assert importance(models[0], frame, half).error == pytest.approx(1.0 - models[0].score(frame, half))
    with pytest.warns(UserWarning, match="sorted by their labels"):
        table_model(frame, label="y", learner=BSGDClassifier(budget=30)).learn_many(frame.sort_values("y"))
    tree = table_model(frame, label="y", learner=HoeffdingTreeClassifier())
    tree.learn_many(frame)
    assert 0.0 <= tree.score(frame) <= 1.0
    raises("a HoeffdingTreeClassifier has no predict_proba_many", tree.predict_proba_many, frame)
