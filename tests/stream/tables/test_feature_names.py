"""Columns whose names are those of features that the encoder derives from other columns are learned like under another name."""

import random

import pandas as pd
import polars as pl
import pytest

from saved import dumps, loads
from streamsvm import BSGDClassifier, explain_one
from streamsvm.stream import CSVSource, IterableSource, JSONLinesSource, LearningLoop
from streamsvm.stream.tables import TableEncoder

CASES = {
    "plan=pro": ({"columns": "plan:category"}, lambda i: {"plan": ["basic", "pro"][i // 2 % 2]}),
    "shop~yes": ({"columns": "shop:category"}, lambda i: {"shop": f"S{i % 40}"}),
    "shop#3": ({"columns": "shop:category", "buckets": 8, "max_values": 4}, lambda i: {"shop": f"S{i % 40}"}),
    "age is missing": ({"when_missing": "indicator"}, lambda i: {"age": None if i % 3 == 0 else i % 7}),
    "at day sin": ({"columns": "at:date", "cycles": "day"}, lambda i: {"at": f"2024-01-{1 + i % 28:02d}T{i % 24:02d}:00:00"}),
    "at day cos": ({"columns": "at:date", "cycles": ["day", "week"]}, lambda i: {"at": 1.7e9 + 5000.0 * i}),
}


def make_rows(name, make_others, n=120, first=True):
    rng = random.Random(0)
    for i in range(n):
        value, others = rng.gauss(0.0, 1.0), make_others(i)
        yield {name: value, **others} if first else {**others, name: value}, "yes" if value > 0.0 else "no"


def get_values(encoder, x, name):
    """Return the features of a row in an order that does not depend on their names, after a check of their number."""
    features = encoder.transform_one(x)
    return [features[encoder.column_state.get_feature(name)], sorted(map(float, features.values()))]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_features_of_a_column_do_not_depend_on_its_name(name, first):
    options, make_others = CASES[name]
    encoders = TableEncoder(**options), TableEncoder(**options)
    for (x, y), (other, _) in zip(make_rows(name, make_others, first=first), make_rows("z", make_others), strict=True):
        assert get_values(encoders[0], x, name) == get_values(encoders[1], other, "z")
        for encoder, row in zip(encoders, (x, other), strict=True):
            encoder.learn_one(row, y)
    state = encoders[0].column_state
    assert state.get_feature(name) == f'"{name}"'
    assert state.map_features_to_columns()[f'"{name}"'] == name
    assert name in encoders[0].learned_columns
    x = next(make_rows(name, make_others))[0]
    assert state.decode_features(encoders[0].transform_one(x))[name] == x[name]


@pytest.mark.parametrize("name", CASES)
def test_all_doors_make_one_model(name, tmp_path):
    options, make_others = CASES[name]
    rows = list(make_rows(name, make_others))

    def make_model():
        return TableEncoder(**options) | BSGDClassifier(budget=20)

    expected = make_model()
    for x, y in rows:
        expected.learn_one(x, y)
    frame = pd.DataFrame([x for x, _ in rows])
    models = {"frame": make_model(), "polars": make_model()}
    models["frame"].learn_many(frame, [y for _, y in rows])
    models["polars"].learn_many(pl.DataFrame([x for x, _ in rows]), [y for _, y in rows])
    frame.assign(y=[y for _, y in rows]).to_csv(tmp_path / "rows.csv", index=False)
    frame.assign(y=[y for _, y in rows]).to_json(tmp_path / "rows.jsonl", orient="records", lines=True, double_precision=15)
    reading = {option: value for option, value in options.items() if option == "columns"}
    sources = {
        "csv": CSVSource(tmp_path / "rows.csv", "y", **reading),
        "jsonl": JSONLinesSource(tmp_path / "rows.jsonl", "y", **reading),
        "dicts": IterableSource(rows),
    }
    for door, source in sources.items():
        with source:
            loop = LearningLoop(source, make_model())
            assert loop.run().learned == len(rows)
            models[door] = loop.model
    expected_features = sorted(map(str, expected["BSGDClassifier"].feature_names))
    assert len(expected_features) == len(set(expected_features))
    for door, model in models.items():
        assert sorted(map(str, model["BSGDClassifier"].feature_names)) == expected_features, door
        tested = [model.predict_proba_one(x)["yes"] for x, _ in rows[:20]]
        assert tested == pytest.approx([expected.predict_proba_one(x)["yes"] for x, _ in rows[:20]], abs=1e-5), door
    assert list(expected.predict_many(frame)) == [expected.predict_one(x) for x, _ in rows]
    assert loads(dumps(expected)).predict_proba_one(rows[0][0]) == expected.predict_proba_one(rows[0][0])
    contributions = explain_one(expected, rows[0][0]).contributions
    assert name in contributions
    assert f'"{name}"' not in contributions


def test_a_column_may_come_later_and_be_new_in_a_row_to_predict():
    model = TableEncoder("plan:category") | BSGDClassifier(budget=10)
    for i in range(40):
        model.learn_one({"plan": "pro" if i % 2 else "basic"}, i % 2 == 1)
    before = model.predict_proba_one({"plan": "basic"})
    assert model.predict_proba_one({"plan": "basic", "plan=pro": 1.0}) == before
    frame = pd.DataFrame({"plan": ["basic"] * 2, "plan=pro": [1.0, 0.0]})
    with pytest.warns(UserWarning, match="column 'plan=pro' was never learned"):
        assert not any(model.predict_many(frame))
    encoder = model["TableEncoder"]
    assert set(encoder.transform_many(frame).columns) >= {'"plan=pro"', "plan=basic"}
    model.learn_one({"plan": "basic", "plan=pro": 1.0}, False)
    assert encoder.transform_one({"plan": "pro", "plan=pro": 0.25})['"plan=pro"'] == 0.25


def test_categories_of_two_columns_that_make_one_name_keep_separate_features():
    encoder = TableEncoder("a:category,a=b:category", max_values=5)
    for i in range(8):
        encoder.learn_one({"a": "b=c", "a=b": "d"}, i % 2)
        encoder.learn_one({"a": "e", "a=b": "c"}, i % 2)
    assert set(encoder.transform_one({"a": "b=c", "a=b": "d"})) != set(encoder.transform_one({"a": "e", "a=b": "c"}))
    features = [feature for values in encoder.column_state.categories.values() for feature in values.values() if feature]
    assert len(features) == len(set(features)) == 3


def test_models_of_older_versions_keep_their_names():
    encoder = TableEncoder("plan:category")
    encoder.column_state._derived_feature = None
    for i in range(10):
        encoder.learn_one({"plan": "pro", "plan=pro": float(i)}, i % 2)
    older = loads(dumps(encoder))
    assert "_quoted" not in older.__getstate__()
    assert older.column_state.get_feature("plan=pro") == "plan=pro"
    assert older.column_state.get_feature("plan=basic") == '"plan=basic"'
    new = TableEncoder("plan:category")
    new.learn_one({"plan": "pro", "plan=basic": 2.0}, 1)
    assert loads(dumps(new)).column_state.quoted == {"plan=basic": '"plan=basic"'}
    older.merge_with(new)
    assert older.column_state.quoted == {"plan=basic": '"plan=basic"'}


def test_names_of_ordinary_tables_do_not_change():
    rows = [{"a=b": 1.0 * i, "x is missing": 0.5, "city": "Oslo", "town~2": 3.0, '"': i % 3} for i in range(40)]
    encoder = TableEncoder("city:category")
    for i, row in enumerate(rows):
        encoder.learn_one(row, i % 2)
    assert {"a=b", "x is missing", "town~2", "city=Oslo"} <= encoder.transform_one(rows[0]).keys()
