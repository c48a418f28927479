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
    coarse, rolling, odd, scores = metrics.ROCAUC(), metrics.RollingROCAUC(window_size=5000), [], []
    for x, y in stream(5000):
        score = model.score_one(x)
        for metric in (coarse, rolling):
            metric.update(y, score)
        odd.append(y)
        scores.append(score)
        model.learn_one(x)
    exact = roc_auc_score(odd, scores)
    assert exact > 0.85
    assert coarse.get() == pytest.approx(exact, abs=0.01)
    assert rolling.get() == pytest.approx(exact, abs=1e-6)
    assert 0.0 < min(scores[2:]) < max(scores) < 1.0


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
