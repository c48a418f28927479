"""Estimators for raw data frames: scikit-learn's tools and conventions, and the same results as table models."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score

from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor, explain_one, load, save, table_model
from streamsvm.batch import CSMOClassifier, CSMOOneClass, HierarchicalSVC
from streamsvm.batch.tables import TableClassifier, TableRegressor
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.linear import OutOfCoreLinearSVC

pytestmark = pytest.mark.once  # these are many rows


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"city": rng.choice(["Oslo", "Paris", "Rome"], 400), "age": rng.integers(18, 90, 400).astype(float)})
    frame["since"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 500, 400), "D")
    warm = (frame["city"] != "Oslo").to_numpy() & (frame["age"] > 30).to_numpy()
    frame.loc[::9, "age"] = np.nan
    return frame, warm


@pytest.mark.parametrize("kind", ["text", "texts of numbers", "numbers", "bools", "three"])
@pytest.mark.parametrize("convert", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas])
def test_labels_of_all_types_are_predicted(table, kind, convert):
    frame, warm = table
    labels = {"text": ("a", "b"), "texts of numbers": ("1", "02"), "numbers": (3, 7), "bools": (False, True)}.get(
        kind, ("a", "b")
    )
    y = np.array(labels)[warm.astype(int)]
    if kind == "three":
        y = np.where(frame["age"] > 60, "old", y)
    model = TableClassifier(BSGDClassifier(budget=50, seed=0), random_state=0).fit(convert(frame), y)
    assert model.classes_.tolist() == sorted(set(y.tolist()))
    predictions, probabilities = model.predict(convert(frame)), model.predict_proba(convert(frame))
    assert predictions.dtype == y.dtype
    assert (predictions == y).mean() > 0.85
    assert probabilities.sum(1) == pytest.approx(1.0)
    assert (model.classes_[probabilities.argmax(1)] == predictions).mean() > 0.99
    assert model.score(convert(frame), y) == (predictions == y).mean()


def test_scikit_learns_tools_accept_frames(table):
    frame, warm = table
    model = TableClassifier(random_state=0)
    assert cross_val_score(model, frame, warm, cv=3).min() > 0.85
    learners = [BSGDClassifier(budget=budget, seed=0) for budget in (2, 50)]
    search = GridSearchCV(clone(model), {"learner": learners, "when_missing": ["mean", "indicator"]}, cv=2).fit(frame, warm)
    assert search.best_params_["learner"].budget == 50
    matters = permutation_importance(search.best_estimator_, frame, warm, n_repeats=2, random_state=0).importances_mean
    assert matters.argmax() == 0
    assert (is_classifier(model), is_regressor(TableRegressor())) == (True, True)
    size = frame["age"].fillna(50.0) + 20.0 * (frame["city"] == "Oslo")
    assert cross_val_score(TableRegressor(random_state=0), frame, size, cv=3).min() > 0.8
    assert (
        TableRegressor(BSGDRegressor(budget=50, seed=0))
        .set_params(columns="since:drop")
        .fit(frame, (size - 60) / 20)
        .n_features_in_
        == 3
    )


def test_the_model_equals_that_of_table_model(table, tmp_path):
    frame, warm = table
    y = np.where(warm, "yes", "no")
    classifier = TableClassifier(shuffle=False).fit(frame, y)
    direct = table_model(frame.assign(label=y), "label")
    direct.learn_many(frame, y.tolist())
    assert classifier.predict(frame).tolist() == list(direct.predict_many(frame))
    assert classifier.model_.schema.columns == direct.schema.columns
    x = frame.iloc[1].to_dict()
    assert explain_one(classifier.model_, x).contributions == explain_one(direct, x).contributions
    save(classifier.model_, tmp_path / "model")
    assert load(tmp_path / "model").predict_one(x) == direct.predict_one(x)
    again = TableClassifier(shuffle=False).fit(frame[:300], y[:300]).partial_fit(frame[300:], y[300:])
    assert again.model_.predict_proba_one(x) == pytest.approx(direct.predict_proba_one(x), abs=0.2)
    assert TableClassifier().partial_fit(frame, y).partial_fit(frame[:40], np.full(40, "new")).classes_.tolist() == [
        "new",
        "no",
        "yes",
    ]
    half = TableClassifier(shuffle=False).fit(frame, y, sample_weight=(np.arange(400) < 200).astype(float))
    assert half.model_["SVMClassifier"].n_learned == 200


def test_invalid_frames_are_refused(table):
    frame, warm = table
    model = TableClassifier(random_state=0)
    raises("not fitted", model.predict, frame, error=NotFittedError)
    raises("eager frame", model.fit, frame[["age"]].to_numpy(), warm)
    raises("X has 400 rows, y 399", model.fit, frame, warm[1:])
    raises(r"sample_weight the shape \(3,\)", model.fit, frame, warm, [1, 2, 3])
    raises("Unknown label type", model.fit, frame, frame["age"].fillna(0.5) + 0.5)
    for nothing in (None, np.nan, pd.NaT):
        labels = pd.Series(np.where(warm, "a", "b"), dtype=object)
        labels[[3, 7]] = nothing
        raises("y is missing in row 3, and in 2 of 400 rows", model.fit, frame, labels)
    raises("in row 0, and in 1 of 400", TableRegressor().fit, frame, [np.nan, *range(399)])
    model.fit(frame, warm)
    raises("no column 'age'", model.predict, frame[["city"]])
    with pytest.warns(UserWarning, match="column 'more' was never learned: it is left out"):
        assert model.predict(frame.assign(more=1)).shape == (400,)


@pytest.mark.parametrize("kind", [CSMOClassifier, CSMOOneClass, HierarchicalSVC, OutOfCoreLinearSVC])
@pytest.mark.parametrize("column", [["a", "b"] * 10, [pd.Timestamp("2024-01-02")] * 20, [1.0, None] * 10])
def test_machines_of_numbers_point_to_estimators_of_tables(kind, column):
    frame = pd.DataFrame({"x": np.arange(20.0), "city": column})
    raises(rf"{kind.__name__} takes numbers only \(.*\. For a frame with names.*TableClassifier", kind().fit, frame, [0, 1] * 10)
    model = kind().fit(frame.assign(city=True), [0, 1] * 10)
    raises("TableClassifier", model.predict, frame)
    array = np.array([["a", "b"]] * 20)
    with pytest.raises(ValueError, match="could not convert") as caught:
        kind().fit(array, [0, 1] * 10)
    assert "TableClassifier" not in str(caught.value)


@pytest.mark.parametrize("convert", [lambda y: y[:, None], lambda y: pd.DataFrame({"y": y}), lambda y: y[:, None].tolist()])
def test_a_column_of_labels_is_flattened(table, convert):
    frame, warm = table
    y, learner = warm.astype(int), BSGDClassifier(budget=10, seed=0)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = TableClassifier(learner, random_state=0).fit(frame, convert(y))
    assert (model.predict(frame) == TableClassifier(learner, random_state=0).fit(frame, y).predict(frame)).all()
    with pytest.warns(DataConversionWarning, match="column-vector"):
        assert model.score(frame, convert(y)) == model.score(frame, y)
    raises("y should be a 1d array", TableClassifier(learner).fit, frame, np.column_stack([y, y]))
    stream = table_model(frame.assign(y=y), label="y", learner=learner)
    raises(r"not of shape \(400, 1\): give one column", stream.learn_many, frame, convert(y))


@pytest.mark.parametrize("convert", [int, bool, float, str])
def test_labels_in_an_array_of_objects_are_plain(table, convert):
    frame, warm = table
    y = [convert(label) for label in warm.astype(int)]
    model = TableClassifier(BSGDClassifier(budget=10), random_state=0).fit(frame, np.array(y, object))
    expected = TableClassifier(BSGDClassifier(budget=10), random_state=0).fit(frame, y)
    assert model.predict(frame).tolist() == expected.predict(frame).tolist()
    assert list(map(type, model.classes_.tolist())) == [convert] * 2
    assert model.score(frame, np.array(y, object)) == expected.score(frame, y)


@pytest.mark.parametrize("kind", ["currency", "duration", "date"])
def test_targets_with_types_or_notations_are_scored(kind, tmp_path, call):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=200).round(3), "b": rng.normal(size=200)})
    hours = 20.0 + 3.0 * X["a"]
    seconds = pd.to_timedelta(hours * 3600.0, unit="s")
    y = {"currency": hours.map("${:,.2f}".format), "duration": seconds, "date": pd.Timestamp("1970-01-01") + seconds}[kind]
    numbers = y.str[1:].astype(float) if kind == "currency" else hours * 3600.0
    learner = BoundedTargetScaler(BSGDRegressor(20))
    model, plain = (TableRegressor(learner, random_state=0).fit(X, targets) for targets in (y, numbers))
    assert model.predict(X) == pytest.approx(plain.predict(X))
    assert model.score(X, y) == pytest.approx(plain.score(X, numbers))
    frame = X.assign(y=y)
    frame.to_parquet(tmp_path / "rows.parquet")
    words = ["--label", "y", "--learner", "bsgd,budget=20", "--quiet", "--checkpoint"]
    metric = call("learn", tmp_path / "rows.parquet", *words, tmp_path / "m").end["metric"]
    X.assign(y=numbers).to_parquet(tmp_path / "plain.parquet")
    assert metric == pytest.approx(call("learn", tmp_path / "plain.parquet", *words, tmp_path / "p").end["metric"])
