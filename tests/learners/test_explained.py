"""Contributions of features: against exact Shapley values, known functions, and irrelevant features."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from discovered import estimators
from refused import raises
from streamsvm import BSCAClassifier, BSGDClassifier, BSGDRegressor, OneClassBSGD, SVMClassifier, SVMRegressor, table_model
from streamsvm.core.explaining import compute_contributions
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.stream.tables import TableEncoder

pytestmark = pytest.mark.once  # these are many rows


def shapley(decide, row, typical):
    """The slow twin: the exact Shapley values, of all subsets of features."""
    d = len(row)
    values = np.zeros(d)
    for j in range(d):
        other_features = [k for k in range(d) if k != j]
        for size in range(d):
            weight = math.factorial(size) * math.factorial(d - size - 1) / math.factorial(d)
            for subset in itertools.combinations(other_features, size):
                without = typical.copy()
                without[list(subset)] = row[list(subset)]
                with_j = without.copy()
                with_j[j] = row[j]
                values[j] += weight * (decide(with_j[None])[0] - decide(without[None])[0])
    return values


@pytest.mark.parametrize("seed", range(4))
def test_contributions_are_shapley_values_of_pairwise_interactions(seed):
    rng = np.random.default_rng(seed)
    d = 6
    alone, pairs = rng.normal(size=(2, d)), np.triu(rng.normal(size=(d, d)), 1)

    def decide(rows):
        return (alone[0] * rows + alone[1] * rows**2).sum(1) + np.einsum("ni,ij,nj->n", np.sin(rows), pairs, rows)

    row, typical = rng.normal(size=(2, d))
    decision, base, contributions = compute_contributions(decide, row, typical, np.arange(d), d)
    assert contributions == pytest.approx(shapley(decide, row, typical))
    assert base + contributions.sum() == pytest.approx(decision)


def learned(kind, n=400, d=4, **parameters):
    model, rng = kind(**parameters), np.random.default_rng(0)
    for values in rng.normal(size=(n, d)):
        x = {f"x{j}": float(value) for j, value in enumerate(values)}
        y = math.sin(values[0]) + values[1]
        if isinstance(model, OneClassBSGD):
            model.learn_one(x)
        else:
            model.learn_one(x, y if "Regressor" in kind.__name__ or "SVR" in kind.__name__ else bool(y > 0.0))
    return model


@pytest.mark.parametrize("kind", [kind for kind in estimators() if issubclass(kind, OnlineEstimator)])
def test_contributions_of_every_learner_add_up(kind):
    model = learned(kind, n=120, **next(iter(kind._unit_test_params())))
    x = {"x0": 1.0, "x1": 0.5, "x2": 0.0, "x3": 0.25}
    explanation = model.explain_one(x)
    assert explanation.typical + sum(explanation.contributions.values()) + explanation.remainder == pytest.approx(
        explanation.decision, abs=1e-9
    )
    assert {*explanation.contributions} == {*x}
    assert [abs(size) for size in explanation.contributions.values()] == sorted(
        map(abs, explanation.contributions.values()), reverse=True
    )
    if hasattr(model, "predict_one"):
        assert explanation.prediction == model.predict_one(x)
    assert len(str(explanation).splitlines()) == 6
    same = model.explain_one(x, typical=x)
    assert (set(same.contributions.values()), same.remainder, same.typical) == ({0.0}, 0.0, same.decision)
    raises("x0", model.explain_one, {"x0": math.nan})
    raises("x1", model.explain_one, x, {"x1": "a"})
    raises("has learned nothing", kind(**next(iter(kind._unit_test_params()))).explain_one, x)


@pytest.mark.parametrize("kind", [SVMClassifier, BSGDClassifier, BSCAClassifier])
def test_the_explained_decision_is_that_of_the_predicted_label(kind):
    model = learned(kind)
    for x in ({"x0": 2.0, "x1": 2.0}, {"x0": -2.0, "x1": -2.0}):
        explanation, decision = model.explain_one(x), model.decision_function_one(x)
        assert explanation.prediction == model.predict_one(x) == (x["x0"] > 0.0)
        assert explanation.decision == pytest.approx(abs(decision))
        assert min(explanation.contributions["x0"], explanation.contributions["x1"]) > 0.0
    for i in range(300):
        model.learn_one({"x0": 0.0, "x1": 0.0, "x2": float(i % 9) + 5.0, "x3": 0.0}, "far")
    explanation = model.explain_one({"x0": 0.0, "x1": 0.0, "x2": 9.0, "x3": 0.0})
    assert (explanation.prediction, next(iter(explanation.contributions))) == ("far", "x2")
    assert explanation.decision == pytest.approx(model.decision_function_one({"x2": 9.0})["far"])


def test_contributions_to_a_sum_are_its_terms():
    model = learned(SVMRegressor, n=2000)
    explanation = model.explain_one({"x0": 1.2, "x1": 0.8, "x2": 1.0, "x3": -1.0})
    assert explanation.contributions["x0"] == pytest.approx(math.sin(1.2), abs=0.15)
    assert explanation.contributions["x1"] == pytest.approx(0.8, abs=0.15)
    assert abs(explanation.contributions["x2"]) + abs(explanation.contributions["x3"]) < 0.15
    assert abs(explanation.remainder) < 0.1


def test_irrelevant_features_have_no_contribution_and_equal_ones_share():
    model, rng = BSGDRegressor(budget=100, scaling=None), np.random.default_rng(0)
    for value, noise in rng.normal(size=(600, 2)).tolist():
        model.learn_one({"a": value, "b": value, "constant": 3.0, "noise": noise}, value)
    explanation = model.explain_one({"a": 1.0, "b": 1.0, "constant": 3.0, "noise": 0.5}, typical={"constant": 3.0})
    assert explanation.contributions["a"] == pytest.approx(explanation.contributions["b"])
    assert explanation.contributions["constant"] == 0.0
    assert abs(explanation.contributions["noise"]) < 0.3 * explanation.contributions["a"]


def test_features_of_a_column_are_grouped():
    rng = np.random.default_rng(0)
    city = rng.choice([f"c{i}" for i in range(12)], 1500)
    frame = pd.DataFrame({"city": city, "age": rng.integers(20, 60, 1500), "since": "2024-01-02T03:04", "who": "x"})
    frame.loc[::5, "age"] = np.nan
    good = {f"c{i}" for i in range(0, 12, 3)}
    frame["y"] = [("yes" if name in good else "no") for name in city]
    for options in ({}, {"cycles": "day", "when_missing": "indicator"}):
        model = table_model(frame, label="y", learner=SVMClassifier("low", seed=0), columns="since:date,who:category", **options)
        model.learn_many(frame)
        x = {"city": "c3", "age": 30, "since": "2024-01-02T03:04", "who": "x", "y": "no"}
        explanation = model.explain_one(x)
        assert (explanation.prediction, next(iter(explanation.contributions))) == ("yes", "city")
        assert {*explanation.contributions} <= {*x}
        assert "city = c3" in str(explanation)
        assert explanation.contributions["city"] > 3 * abs(explanation.contributions["age"])
        assert "age = missing" in str(model.explain_one({"city": "c3"}))
        assert model.explain_one(x, typical=x).remainder == 0.0
    model = TableEncoder("city:category", buckets=4, max_values=2) | BSGDClassifier(budget=50)
    model.learn_many(frame[["city"]], frame["y"])
    assert [*model.explain_one({"city": "c3"}).contributions] == ["city"]
