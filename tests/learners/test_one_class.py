"""Anomaly scores are between 0 and 1, as river's metrics and filters expect."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from river import metrics, preprocessing
from sklearn.metrics import roc_auc_score

from problems import snapshot
from streamsvm import OneClassBSGD


def stream(n, seed=0):
    """Normal rows, and one in twenty that may lie anywhere."""
    rng = random.Random(seed)
    for _ in range(n):
        odd = rng.random() < 0.05
        yield (
            ({"a": rng.uniform(-6.0, 6.0), "b": rng.uniform(-6.0, 6.0)} if odd else {"a": rng.gauss(0, 1), "b": rng.gauss(0, 1)}),
            odd,
        )


@pytest.mark.skipif(config.DISABLE_JIT, reason="too slow without compilation")
def test_rivers_roc_auc_is_exact():
    model = preprocessing.StandardScaler() | OneClassBSGD(100, nu=0.05)
    coarse, rolling, odd, scores = metrics.ROCAUC(n_thresholds=30), metrics.RollingROCAUC(window_size=5000), [], []
    for x, y in stream(5000):
        score = model.score_one(x)
        for metric in (coarse, rolling):
            metric.update(y, score)
        odd.append(y)
        scores.append(score)
        model.learn_one(x)
    exact = roc_auc_score(odd, scores)
    assert exact > 0.95
    assert coarse.get() == pytest.approx(exact, abs=0.01)
    assert rolling.get() == pytest.approx(exact, abs=1e-6)
    assert 0.0 < min(scores[2:]) < max(scores) < 1.0


def share_outside(model, X):
    """Share of the rows that are outside the region, each decided before it is learned."""
    n_outside = 0
    for chunk in np.array_split(X, len(X) // 20):
        n_outside += (model.decision_function_many(chunk) < 0.0).sum()
        model.learn_many(chunk)
    return n_outside / len(X)


@pytest.mark.once
def test_nu_moves_the_threshold_and_not_the_scores():
    X = np.array([list(x.values()) for x, _ in stream(4000)])
    scores = []
    for nu in (0.02, 0.2, 0.5):
        model, other = OneClassBSGD(50, nu=nu, seed=0), OneClassBSGD(50, nu=nu, seed=1)
        model.learn_many(X[:1000])
        other.learn_many(X[1000:2000])
        scores.append(model.score_many(X))
        assert share_outside(model, X[2000:3000]) == pytest.approx(nu, abs=0.03)
        model.merge_with(other)
        assert share_outside(model, X[3000:]) == pytest.approx(nu, abs=0.03)
    np.testing.assert_allclose(scores[1:], [scores[0], scores[0]], atol=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("seed", [0, 1])
def test_the_threshold_follows_a_drift_and_survives_a_constant_stretch(seed):
    rng, model = np.random.default_rng(seed), OneClassBSGD(50, nu=0.1, seed=0)
    for X in (rng.normal(size=(1000, 3)), np.ones((1000, 3)), rng.normal(5.0, 3.0, size=(4000, 3))):
        model.learn_many(X)
    fresh = rng.normal(5.0, 3.0, size=(1000, 3))
    assert share_outside(model, fresh) == pytest.approx(0.1, abs=0.03)
    assert roc_auc_score(np.repeat([0, 1], [1000, 100]), model.score_many(np.vstack([fresh, np.full((100, 3), 25.0)]))) > 0.95


@pytest.mark.once
@pytest.mark.parametrize("nu", [0.1, 0.02, 0.005])
@pytest.mark.parametrize("d", [2, 10])
def test_a_row_far_from_all_others_is_an_anomaly_at_any_time(d, nu):
    rng, model, far = np.random.default_rng(0), OneClassBSGD(nu=nu, seed=0), np.full((1, d), 1000.0)
    for _ in range(100):
        model.learn_many(rng.normal(size=(100, d)))
        assert model.decision_function_many(far)[0] < 0.0
    assert nu / 3.0 < share_outside(model, rng.normal(size=(2000, d))) < 2.0 * nu


@pytest.mark.once
@pytest.mark.parametrize("nu", [0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("n_repeats", [300, 1000])
def test_the_threshold_recovers_soon_after_a_constant_stretch(n_repeats, nu):
    rng, model = np.random.default_rng(0), OneClassBSGD(nu=nu, seed=0)
    for X in (rng.normal(size=(2000, 4)), np.repeat(rng.normal(size=(1, 4)), n_repeats, axis=0)):
        model.learn_many(X)
    for _ in range(10):
        X = rng.normal(size=(300, 4))
        assert (model.decision_function_many(X + rng.choice([-4.0, 4.0], X.shape)) < 0.0).mean() > 0.98
        model.learn_many(X)
        assert (model.decision_function_many(rng.normal(size=(300, 4))) < 0.0).mean() < 2.0 * nu + 0.03
    assert share_outside(model, rng.normal(size=(2000, 4))) == pytest.approx(nu, abs=0.02)


@pytest.mark.once
def test_scores_decrease_with_decision_values_without_ties():
    model = OneClassBSGD(50, kernel="linear", scaling=None, averaging=0)
    for x, _ in stream(300):
        model.learn_one({"a": x["a"] + 3.0, "b": x["b"] + 3.0})
    X = np.linspace(-1e4, 1e4, 2001)[:, np.newaxis] * np.array([1.0, 1.0])
    order = np.argsort([model.decision_function_one({"a": a, "b": b}) for a, b in X])
    scores = np.array([model.score_one({"a": a, "b": b}) for a, b in X])
    assert (np.diff(scores[order]) < 0.0).all()
    assert 0.0 < scores.min() < scores.max() < 1.0


def test_scores_are_0_before_learning_and_scoring_changes_nothing():
    model = OneClassBSGD(50)
    assert (model.score_one({"a": 3.0}), model.decision_function_one({"a": 3.0})) == (0.0, 0.0)
    model.learn_one({"a": 1.0})
    assert model.score_one({"a": 3.0}) == model.score_one({"a": 1.0}) == 0.0
    assert model.score_many(pd.DataFrame({"a": [1.0, 1.0]})).tolist() == [0.0, 0.0]
    for x, _ in stream(100):
        model.learn_one(x)
    before = snapshot(model)
    assert model.score_one({"a": 3.0}) == model.score_one({"a": 3.0}) > 0.5
    assert snapshot(model) == before


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=30))
def test_scores_are_between_0_and_1_for_any_rows(rows):
    model = OneClassBSGD(5, gamma=0.1, scaling=None, kernel="linear")
    for a, b in rows:
        assert 0.0 <= model.score_one({0: a, 1: b}) <= 1.0
        model.learn_one({0: a, 1: b})
    X = np.array(rows)
    np.testing.assert_array_equal(model.score_many(X), [model.score_one(dict(enumerate(row))) for row in X.tolist()])
    np.testing.assert_array_equal(
        model.decision_function_many(X), [model.decision_function_one(dict(enumerate(row))) for row in X.tolist()]
    )
