"""Nearest stored rows as examples: against public attributes, and in the units of rows."""

import math

import numpy as np
import pandas as pd
import pytest
from river import base, linear_model, preprocessing

from discovered import estimators
from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor, OneClassBSGD, SVMClassifier, SVMRegressor, examples_one, table_model
from streamsvm.batch import CSMOClassifier, CSMORegressor, HierarchicalSVC, HSSADMMClassifier
from streamsvm.learners import OnlineLinearSVC
from streamsvm.learners.conformal import ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.stream.tables import TableEncoder

pytestmark = pytest.mark.once


def learned(model, n=150, labels=("low", "high")):
    """A model of three features, with a second one around 50, and the rows that it has learned."""
    rng, rows = np.random.default_rng(0), []
    for a, b, c in rng.normal([0.0, 50.0, 0.0], [1.0, 5.0, 0.1], (n, 3)).tolist():
        y = a + (b - 50.0) / 5.0
        if isinstance(getattr(model, "_last_step", model), base.Classifier):
            y = labels[min(int(y > 0.0) + int(y > 1.0), len(labels) - 1)]
        rows.append(({"a": a, "b": b, "c": c}, y))
        model.learn_one(*rows[-1][: 1 if isinstance(model, OneClassBSGD) else 2])
    return model, rows


@pytest.mark.parametrize("kind", [kind for kind in estimators() if issubclass(kind, OnlineEstimator)])
def test_examples_of_every_learner(kind):
    parameters = next(iter(kind._unit_test_params()))
    model, rows = learned(kind(**parameters))
    x = rows[-1][0]
    raises("has learned nothing", kind(**parameters).examples_one, x)
    raises("n must be", model.examples_one, x, 0)
    if not hasattr(model, "effort") and (kind.__name__ == "FOGD" or not hasattr(model, "support_vectors")):
        raises("stores no rows", model.examples_one, x)
        return
    raises("'a'", model.examples_one, {**x, "a": math.nan})
    examples = model.examples_one(x, n=4)
    assert str(examples).count("distance") == sum(map(len, examples.nearest.values()))
    if hasattr(model, "effort"):
        return
    scale, vectors, row = getattr(model, "scale_in_use", None), model.support_vectors, np.array([[*x.values()]])
    unscaled = vectors if scale is None else scale.inverse_transform(vectors)
    distances = np.linalg.norm(vectors - (row if scale is None else scale.transform(row)), axis=1)
    negative = model.coefficients[0] <= 0.0
    parts = {"low": negative, "high": ~negative} if hasattr(model, "labels") else {None: np.full(len(vectors), True)}
    assert (examples.n_candidates, examples.kind) == (len(vectors), "support vectors")
    assert [*examples.nearest] == [*parts]
    for label, part in parts.items():
        nearest = np.flatnonzero(part)[np.argsort(distances[part])][:4]
        assert [example.target for example in examples.nearest[label]] == [label] * len(nearest)
        assert [example.distance for example in examples.nearest[label]] == pytest.approx(distances[nearest], rel=1e-4, abs=1e-4)
        assert [[*example.values.values()] for example in examples.nearest[label]] == pytest.approx(
            unscaled[nearest], rel=1e-4, abs=1e-4
        )


@pytest.mark.parametrize("scaling", ["auto", None])
@pytest.mark.parametrize("labels", [("low", "high"), ("low", "middle", "high"), (True, False)])
def test_examples_of_an_ensemble_are_learned_rows(labels, scaling):
    model, rows = learned(SVMClassifier(scaling=scaling, seed=0), labels=labels)
    for x, y in rows[::20]:
        examples = model.examples_one(x)
        assert {*examples.nearest} == {*labels}
        assert (examples.n_candidates, examples.kind) == (len(rows), "rows")
        assert examples.nearest[y][0].distance == pytest.approx(0.0, abs=1e-5)
        assert examples.nearest[y][0].values == pytest.approx(x, rel=1e-4, abs=1e-4)
        for label, near in examples.nearest.items():
            for example in near:
                assert (example.target, len(near)) == (label, 3)
                assert any(example.values == pytest.approx(row, rel=1e-4, abs=1e-4) for row, of in rows if of == label)
    few = learned(SVMClassifier("low", scaling=scaling, seed=0), labels=labels)[0].examples_one(rows[0][0])
    assert ({*few.nearest}, few.kind) == ({*labels}, "support vectors")


def test_examples_with_small_numbers_late_features_and_unseen_labels():
    rng, model = np.random.default_rng(0), SVMClassifier(seed=0)
    for a in rng.normal(scale=1e-15, size=50).tolist():
        model.learn_one({"a": a}, True)
    for late in range(20):
        model.learn_one({"a": 1e-15, "late": 1.0 + late}, True)
    nearest_rows = model.examples_one({"a": a}, 10**9).nearest
    assert {*nearest_rows} == {True}
    assert nearest_rows[True][0].values == pytest.approx({"a": a, "late": 0.0}, rel=1e-4, abs=0.0)
    assert sum(example.values["late"] > 1.9 for example in nearest_rows[True]) == 19  # the first one is what others differ from


@pytest.mark.parametrize("kind", [SVMClassifier, BSGDClassifier])
def test_examples_have_the_hashed_names_of_the_row(kind):
    model = kind(max_features=20, overflow="hash", seed=0)
    rng = np.random.default_rng(0)
    rows = [dict.fromkeys(rng.choice([f"w{i}" for i in range(90)], 3, False).tolist(), 1.0) for _ in range(200)]
    for row in rows:
        model.learn_one(row, "w1" in row)
    x = {"w1": 1.0, "w2": 1.0, "w88": 1.0}
    model.learn_one(x, True)
    assert {*model.explain_one(x).values} <= {*model.examples_one(x).nearest[True][0].values}


def test_examples_have_targets_in_their_unit():
    model, rows = learned(SVMRegressor(seed=0), 300)
    for x, y in rows[200::10]:
        [near] = model.examples_one(x, 1).nearest[None]
        assert near.target == pytest.approx(y, abs=0.1)  # which is kept in the deviations of its time
    assert "target" in str(model.examples_one(x))
    model, rows = learned(ConformalRegressor(BoundedTargetScaler(SVMRegressor(seed=0))), 300)
    assert model.examples_one(x, 1).nearest[None][0].target == pytest.approx(y, abs=0.3)
    model, _ = learned(BoundedTargetScaler(preprocessing.StandardScaler() | BSGDRegressor(budget=20)))
    assert model.explain_one(x).values == x
    raises("not a list", model.examples_one, [1.0])
    raises("not a list", model.explain_one, [1.0])
    assert [example.target for example in model.examples_one(x).nearest[None]] == [None] * 3


def test_examples_of_a_table_have_its_columns():
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, 400), "D")
    frame = pd.DataFrame({"city": rng.choice([f"c{i}" for i in range(9)], 400), "age": rng.integers(20, 60, 400), "since": days})
    frame["y"] = ["yes" if city in ("c0", "c3") else "no" for city in frame["city"]]
    model = table_model(frame, label="y", learner=SVMClassifier(seed=0))
    model.learn_many(frame)
    x = frame.iloc[-1].to_dict()
    near = model.examples_one(x).nearest[x["y"]][0]
    assert near.values["age"] == pytest.approx(x["age"], abs=1e-3)
    assert near.values["since"] == str(x["since"].date())
    every = {example.values["city"] for row in frame.to_dict("records")[:50] for example in model.examples_one(row).nearest["no"]}
    assert {name for name in every if name.startswith("c")} <= {*frame["city"]}
    assert any(name.startswith("another (") for name in every)
    buckets = TableEncoder("city:category", buckets=4, max_values=2) | BSGDClassifier(budget=50)
    buckets.learn_many(frame[["city"]], frame["y"])
    near = buckets.examples_one({"city": x["city"]}).nearest["no"]
    assert {example.values["city"] for example in near} <= {"another", *frame["city"]}
    linear = TableEncoder("city:category") | OnlineLinearSVC()
    linear.learn_many(frame[["city"]], frame["y"])
    raises("stores no rows", linear.examples_one, {"city": "c0"})
    raises("not a Series: give x.to_dict()", model.examples_one, frame.iloc[-1])
    gaps = TableEncoder(when_missing="indicator") | BSGDClassifier(budget=50)
    for i in range(50):
        gaps.learn_one({"a": None if i % 3 == 1 else float(i)}, i % 2)
    assert gaps.examples_one({"a": None}).nearest[0][0].values == {"a": None}
    raises("LogisticRegression has no rows to show", (TableEncoder() | linear_model.LogisticRegression()).examples_one, {})


@pytest.mark.parametrize("kind", [CSMOClassifier, HSSADMMClassifier, HierarchicalSVC])
@pytest.mark.parametrize("bounds", [[0.0], [-0.5, 0.5]])
def test_examples_of_batch_estimators(kind, bounds):
    X = np.random.default_rng(0).normal(size=(90, 2))
    due = np.digitize(X[:, 0], bounds)
    examples = examples_one(kind(C=10.0).fit(X, due), X[0], 90)
    assert {*examples.nearest} == {*due.tolist()}
    for label, near in examples.nearest.items():
        for example in near:
            values = np.array([*example.values.values()])
            assert due[np.linalg.norm(X - values, axis=1).argmin()] == label
            assert example.distance == pytest.approx(np.linalg.norm(values - X[0]))


def test_examples_of_pipelines_and_wrappers():
    X = np.random.default_rng(0).normal(size=(90, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    machine = CSMOClassifier(C=10.0).fit(X, y)
    assert [example.target for example in examples_one(CSMORegressor().fit(X, X[:, 0]), X[0]).nearest[None]] == [None] * 3
    raises("2 numbers", examples_one, machine, [1.0])
    raises("2 numbers, not {'a': 1}", examples_one, machine, {"a": 1})
    for far in (math.nan, 1e300):
        raises("not finite, or too large", examples_one, machine, [0.0, far])
    raises("or is not fitted", examples_one, CSMOClassifier(), [1.0])
    raises("stores no rows", examples_one, CSMOClassifier(kernel="precomputed").fit(X @ X.T, y), X[0])
    model, rows = learned(preprocessing.StandardScaler() | BSGDClassifier(budget=20))
    assert {*examples_one(model, rows[0][0]).nearest} == {*model["BSGDClassifier"].labels}
    model, _ = learned(CostSensitiveClassifier(preprocessing.StandardScaler() | SVMClassifier(seed=0), {"low": 2.0}))
    assert examples_one(model, rows[0][0]).kind == "rows"
    raises("stores no rows", examples_one, preprocessing.StandardScaler(), {})
