"""Which features matter: against scikit-learn's permutation importance, and what must not count."""

import numpy as np
import pandas as pd
import pytest
from river import compose, preprocessing
from scipy.stats import spearmanr
from sklearn.base import BaseEstimator
from sklearn.inspection import permutation_importance

from refused import raises
from streamsvm import BSGDRegressor, SVMClassifier, explain_one, importance, table_model
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor, HierarchicalSVC
from streamsvm.learners.costs import CostSensitiveClassifier

pytestmark = pytest.mark.once  # these are many rows


def problem(n=900, d=6):
    """Rows whose label depends on features less and less, and on the last one not at all."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    score = sum(2.0**-j * X[:, j] for j in range(d - 1)) + 0.5 * X[:, 0] * X[:, 1]
    return X, score


@pytest.mark.parametrize("kind", [SVMClassifier, CSMOClassifier, CSMORegressor, BSGDRegressor])
def test_ranks_agree_with_permutation_importance(kind):
    X, score = problem()
    y = score if "Regressor" in kind.__name__ else np.where(score > 0.0, "yes", "no")
    model = kind()
    (model.fit if hasattr(model, "fit") else model.learn_many)(X, y)
    measured = importance(model, X, y)
    assert {*measured.mean_contributions} == {*measured.error_increases} == {*range(6)}
    assert measured.n_rows == 900

    class Asked(BaseEstimator):
        def fit(self, X, y):
            return self

        def predict(self, X):
            return (model.predict if hasattr(model, "predict") else model.predict_many)(X)

    metric = "neg_mean_absolute_error" if "Regressor" in kind.__name__ else "accuracy"
    due = permutation_importance(Asked(), X, y, scoring=metric, n_repeats=3, random_state=0).importances_mean
    for measure in (measured.mean_contributions, measured.error_increases):
        assert spearmanr([measure[j] for j in range(6)], due)[0] >= 0.9
    assert min(measured.mean_contributions, key=measured.mean_contributions.get) in (4, 5)
    assert importance(model, X, y).error_increases == measured.error_increases


def test_importance_of_table_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"city": rng.choice(["a", "b", "c"], 600), "age": rng.normal(size=600), "who": rng.choice(["x", "y"], 600)}
    )
    frame["y"] = np.where((frame["city"] == "a") ^ (frame["age"] > 1.0), 1, 0)
    frame.loc[::7, "age"] = np.nan
    model = table_model(frame, label="y")
    model.learn_many(frame)
    measured = importance(model, frame)
    assert list(measured.mean_contributions) == ["city", "age", "who"]
    assert measured.error_increases["city"] > measured.error_increases["age"] > 0.02 > abs(measured.error_increases["who"])
    assert measured.error == pytest.approx(1.0 - model.score(frame))
    rows = frame.to_dict("records")
    assert (
        importance(model, [{k: v for k, v in row.items() if v == v} for row in rows]).error_increases == measured.error_increases
    )
    assert str(measured).splitlines()[0] == f"column  moves the decision by  error when shuffled (now {measured.error:.4g})"
    assert len(str(importance(model, frame, max_rows=50)).splitlines()) == 4
    assert importance(model, frame.drop(columns="y")).error_increases == {}


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [*((kind, [-1, 1]) for kind in (CSMOClassifier, CSMORegressor, CSMOOneClass, HierarchicalSVC)), (CSMOClassifier, [0])],
)
def test_batch_estimators_explain_a_row(kind, bounds):
    X, score = problem(300)
    y = score if kind is CSMORegressor else np.digitize(score, bounds)
    model = kind().fit(X, y)
    for row in X[:5]:
        explanation = explain_one(model, row, X.mean(axis=0))
        decision = np.ravel(model.predict(row[None]) if kind is CSMORegressor else model.decision_function(row[None]))
        assert explanation.decision == pytest.approx(abs(decision[0]) if len(bounds) == 1 else decision.max())
        assert explanation.prediction == model.predict(row[None])[0]
        assert explanation.typical + sum(explanation.contributions.values()) + explanation.remainder == pytest.approx(
            explanation.decision
        )
    raises("needs a typical row", explain_one, model, X[0])
    raises("arrays of the same length", explain_one, model, X[0], X[0, :3])


def test_importance_in_a_pipeline_shuffles_original_columns():
    rng = np.random.default_rng(0)
    rows = [{"city": str(rng.choice(["a", "b"])), "noise": float(rng.normal())} for _ in range(300)]
    y = [row["city"] == "a" for row in rows]
    model = compose.Select("noise") + (compose.Select("city") | preprocessing.OneHotEncoder()) | SVMClassifier("low", seed=0)
    for row, label in zip(rows, y, strict=True):
        model.learn_one(row, label)
    measured = importance(model, rows, y)
    assert {*measured.error_increases} == {"city", "noise"}
    assert importance(CostSensitiveClassifier(model, {True: 1.0}), rows, y).error_increases == measured.error_increases
    assert measured.error_increases["city"] > 0.3 > abs(measured.error_increases["noise"])
    assert {*measured.mean_contributions} == {"city_a", "city_b", "noise"}
    assert [line.split()[0] for line in str(measured).splitlines()[-2:]] == ["noise", "city"]


def test_explanations_of_pipelines_unlabelled_and_unsupported_models():
    X, score = problem(200)
    model = preprocessing.StandardScaler() | SVMClassifier("low", seed=0)
    rows = [dict(enumerate(row)) for row in X.tolist()]
    for row, y in zip(rows, score > 0.0, strict=True):
        model.learn_one(row, bool(y))
    assert next(iter(importance(model, rows, score > 0.0).mean_contributions)) == 0
    why = explain_one(model, rows[0])
    assert {name: why.values[name] for name in range(6)} == rows[0]  # the original values, not scaled ones
    assert why.contributions == model["SVMClassifier"].explain_one(model["StandardScaler"].transform_one(rows[0])).contributions
    dated = table_model([{"at": f"2024-01-{i % 28 + 1:02}", "y": i % 5} for i in range(200)], label="y", regression=True)
    for i in range(200):
        dated.learn_one({"at": f"2024-01-{i % 28 + 1:02}"}, i % 5)
    assert (
        explain_one(dated, {"at": 1704412800.0}).values["at"]
        == dated.explain_one({"at": 1704412800.0}).values["at"]
        == "2024-01-05"
    )
    raises("pass labels as y, not in pairs", importance, model, list(zip(rows, score > 0.0, strict=True)))
    assert importance(CSMOOneClass().fit(X), X).error_increases == {}
    raises("there are no rows to measure with", importance, model, [])
