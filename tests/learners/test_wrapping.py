"""Wrappers that choose labels by costs or thresholds: in batches and row by row, saved, merged and explained."""

import copy
import pickle
import random

import numpy as np
import pandas
import pytest
from river import checks, linear_model, metrics, preprocessing

from problems import answers, learned_by
from refused import raises, refused
from saved import dumps, loads
from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier, table_model
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier, compute_threshold_costs
from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.merging import merge_models

KINDS = (
    CostSensitiveClassifier,
    TunedThresholdClassifier,
    ConformalClassifier,
    ConformalRegressor,
    KeyedClassifier,
    KeyedRegressor,
)
WRAPPERS = [(kind, parameters) for kind in KINDS for parameters in kind._unit_test_params()]


@pytest.mark.once
@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize(("kind", "parameters"), WRAPPERS, ids=lambda of: getattr(of, "__name__", ""))
def test_rivers_checks_of_wrappers(kind, parameters):
    made = kind(**parameters)
    for check in checks.yield_checks(made):
        check(made.clone())


def rows(n, seed=0, labels=("fine", "fraud")):
    rng = random.Random(seed)
    for _ in range(n):
        y = labels[min(int(rng.random() < 0.2) + (len(labels) > 2) * (rng.random() < 0.3), len(labels) - 1)]
        yield {name: rng.gauss(float(place * labels.index(y)), 1.0) for place, name in enumerate("abc")}, y


MADE = {
    "costs": lambda: CostSensitiveClassifier(BSGDClassifier(budget=20, seed=0), {"fraud": 5.0}),
    "threshold": lambda: TunedThresholdClassifier(BSGDClassifier(budget=20, seed=0), metrics.F1(pos_val="fraud")),
    "conformal": lambda: ConformalClassifier(BSGDClassifier(budget=20, seed=0), 0.9, 50),
    "numbers": lambda: ConformalRegressor(BSGDRegressor(budget=20, seed=0), 0.9, 50),
    "both": lambda: ConformalClassifier(TunedThresholdClassifier(BSGDClassifier(budget=20, seed=0)), 0.8, 100),
    "ensemble": lambda: CostSensitiveClassifier(SVMClassifier("low", seed=0), {"fine": 0.2}),
}


OF_LABELS = [name for name in MADE if name != "numbers"]


@pytest.mark.once
@pytest.mark.parametrize("probability", [False, True, "all"])
@pytest.mark.parametrize("name", OF_LABELS)
def test_batches_equal_row_by_row(name, probability):
    one, many = MADE[name](), MADE[name]()
    data = list(rows(620))
    for model in (one, many):
        for x, y in data[:20]:
            model.learn_one(x, y)
    rng, start = np.random.default_rng(0), 20
    while start < len(data):
        part = data[start : start + int(rng.integers(1, 300))]
        start += len(part)
        ys = [None if rng.random() < 0.1 else y for _, y in part]
        weights = rng.choice([0.0, 1.0, 2.5], len(part))
        X = np.array([list(x.values()) for x, _ in part], np.float64)
        labels, probabilities = many.predict_then_learn(X, list("abc"), ys, probability, weights)
        for i, (x, _) in enumerate(part):
            p = one.predict_proba_one(x)
            assert labels[i] == one.predict_one(x)
            if probability == "all":
                assert {label: float(column[i]) for label, column in probabilities.items()} == pytest.approx(p, rel=1e-6)
            elif probability:
                assert probabilities[i] == pytest.approx(p[labels[i]], rel=1e-6)
            if ys[i] is not None and weights[i] > 0.0:
                one.learn_one(x, ys[i], w=float(weights[i]))
    assert dumps(one) == dumps(many)
    assert many.predict_then_learn(np.zeros((1, 4)), list("abcd"), [None], False) is None


def test_the_predicted_label_has_the_least_expected_cost():
    model = CostSensitiveClassifier(BSGDClassifier(budget=30, seed=0), {"a": 3.0, "c": 0.5})
    for x, y in rows(300, labels=("a", "b", "c")):
        model.learn_one(x, y)
    costs, seen = {"a": 3.0, "b": 1.0, "c": 0.5}, set()
    for x, _ in rows(200, 1, ("a", "b", "c")):
        p = model.predict_proba_one(x)
        expected = {label: sum(costs[missed] * p[missed] for missed in p if missed != label) for label in p}
        assert model.predict_one(x) == min(expected, key=expected.get)
        seen.add(model.predict_one(x) == model.classifier.predict_one(x))
    assert seen == {True, False}
    threshold = CostSensitiveClassifier(BSGDClassifier(budget=30, seed=0), compute_threshold_costs("b", 0.3))
    for x, y in rows(300, labels=("a", "b")):
        threshold.learn_one(x, y)
    for x, _ in rows(200, 1, ("a", "b")):
        assert (threshold.predict_one(x) == "b") == (threshold.predict_proba_one(x)["b"] >= 0.3)


def test_wrappers_before_the_first_row():
    for name in OF_LABELS:
        assert MADE[name]().predict_one({"a": 1.0}) is None
    binary = CostSensitiveClassifier(linear_model.LogisticRegression(), {True: 2.0})
    assert binary.predict_one({"a": 1.0}) is True


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({}, "costs must be a mapping of label to number"),
        (3.0, "costs must be a mapping of label to number"),
        ({"a": 0.0}, "the cost of 'a' must be a number above 0"),
        ({"a": float("nan")}, "the cost of 'a' must be a number above 0"),
        ({"a": 1e10}, "at most 1e"),
        ({"a": True}, "the cost of 'a'"),
    ],
)
def test_invalid_costs_are_refused(costs, message):
    refused(message, CostSensitiveClassifier, BSGDClassifier(), costs)
    with pytest.raises(ValueError, match="classifier must be a river classifier"):
        CostSensitiveClassifier(BSGDRegressor(), {"a": 1.0})
    saved = CostSensitiveClassifier(BSGDClassifier(), {"a": 2.0})
    refused(message, saved.__setstate__, {"classifier": saved.classifier, "costs": costs})


@pytest.mark.parametrize("name", MADE)
def test_a_saved_wrapper_continues_identically(name):
    labels = (0.5, 2.0) if name == "numbers" else ("fine", "fraud")
    model, rest = learned_by(MADE[name](), rows(150, labels=labels)), list(rows(150, 1, labels))
    loaded, unpickled = loads(dumps(model)), pickle.loads(pickle.dumps(model))
    said = [answers(one, rest) for one in (model, loaded, unpickled)]
    assert said[0] == said[1] == said[2]
    assert dumps(loaded) == dumps(model) == dumps(unpickled)


def test_the_predicted_label_is_explained():
    model = CostSensitiveClassifier(BSGDClassifier(budget=20, seed=0), {"fraud": 9.0})
    for x, y in rows(300):
        model.learn_one(x, y)
    moved = 0
    for x, _ in rows(50, 1):
        why, plain = model.explain_one(x), model.classifier.explain_one(x)
        assert why.prediction == model.predict_one(x)
        assert why.typical + sum(why.contributions.values()) + why.remainder == pytest.approx(why.decision, abs=1e-5)
        if why.prediction != plain.prediction:
            moved += 1
            assert why.decision == pytest.approx(-plain.decision)
    assert moved
    refused("no label 'egg'", model.classifier.explain_one, {"a": 1.0}, label="egg")
    second = CostSensitiveClassifier(linear_model.LogisticRegression(), {True: 2.0})
    refused("cannot be explained", second.explain_one, {"a": 1.0})


def test_contributions_to_targets_are_in_their_unit():
    rng = random.Random(0)
    model = ConformalRegressor(BoundedTargetScaler(BSGDRegressor(budget=40, seed=0)))
    for _ in range(400):
        a, b = rng.random(), rng.random()
        model.learn_one({"a": a, "b": b}, 1000.0 + 200.0 * a)
    x = {"a": 0.9, "b": 0.1}
    why = model.explain_one(x)
    assert why.decision == why.prediction == pytest.approx(model.predict_one(x), rel=1e-5)
    assert why.typical + sum(why.contributions.values()) + why.remainder == pytest.approx(why.decision)
    assert why.contributions["a"] > 30.0
    assert list(why.contributions) == ["a", "b"]
    copy.deepcopy(model)


@pytest.mark.parametrize("name", ["costs", "threshold"])
def test_merged_wrappers_predict_alike(name):
    models = [MADE[name]() for _ in range(2)]
    for model, labels in zip(models, [("fine", "fraud"), ("fraud", "fine")], strict=True):
        for x, y in list(rows(450, labels.index("fraud")))[:: 1 if labels[0] == "fine" else -1]:
            model.learn_one(x, y)
    within = merge_models([model.classifier for model in models])
    model = merge_models(models)
    assert dumps(model.classifier) == dumps(within)
    if name == "threshold":
        assert (model._counts == models[0]._counts + models[1]._counts).all()
        assert model.n_learned == 900
    raises("different parameters", models[0].merge_with, type(model)(within, {"fine": 2.0} if name == "costs" else None))
    raises("--interval", merge_models, [MADE["conformal"]()] * 2)


def test_thresholds_are_merged_for_any_order_of_labels():
    models = [TunedThresholdClassifier(BSGDClassifier(budget=20, seed=0)) for _ in range(2)]
    for model, first in zip(models, (False, True), strict=True):
        for x, y in sorted(rows(400), key=lambda row: row[1] == "fraud" and not first):
            model.learn_one(x, y)
    second = TunedThresholdClassifier(BSGDClassifier(), horizon=20)
    models[1]._labels.reverse()  # as if the other one had come first
    models[1]._counts = models[1]._counts[::-1, ::-1].copy()
    straight = models[1]._counts[::-1, ::-1] + models[0]._counts
    assert (merge_models(models)._counts == straight).all()
    raises("different parameters", models[0].merge_with, second)
    second = TunedThresholdClassifier(BSGDClassifier(budget=20, seed=0))
    second.learn_one({"a": 1.0}, "third")
    raises("one threshold is for two classes", models[0].merge_with, second)


def test_wrapped_pipelines_are_explained():
    for make in (ConformalClassifier, lambda model: CostSensitiveClassifier(model, {"fraud": 5.0})):
        model = make(preprocessing.StandardScaler() | BSGDClassifier(budget=20, seed=0))
        for x, y in rows(200):
            model.learn_one(x, y)
        x = {"a": 0.3, "b": 2.0, "c": 4.0}
        explanation = model.explain_one(x, {"a": 0.0, "b": 0.0, "c": 0.0})
        assert explanation.prediction == model.predict_one(x)
        assert explanation.decision == pytest.approx(
            explanation.typical + sum(explanation.contributions.values()) + explanation.remainder
        )
    table = [{**x, "y": y} for x, y in rows(200)]
    model = ConformalClassifier(table_model(table, label="y", learner=BSGDClassifier(budget=20, seed=0)))
    for x in table:
        model.learn_one(x, x["y"])
    assert set(model.explain_one(table[0]).contributions) == {"a", "b", "c"}


def test_table_models_predict_batches_through_wrappers():
    frame = pandas.DataFrame([{**x, "y": y} for x, y in rows(300)])
    model = table_model(frame, label="y", learner=MADE["costs"]())
    model.learn_many(frame)
    predictions = model.predict_many(frame).tolist()
    assert predictions == [model.predict_one(x) for x in frame.to_dict("records")]
    assert model.score(frame) == np.mean(predictions == frame["y"])
