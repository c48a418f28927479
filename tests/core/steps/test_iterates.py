"""Probabilities of classifiers: the first ones, and their agreement with predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import datasets, metrics, preprocessing

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.core.steps.iterates import COMMON_STATE, INITIAL_SLOPE, compute_probabilities, compute_probability, update_size
from streamsvm.learners import OnlineLinearSVC


def state(t=0, slope=INITIAL_SLOPE, size=0.0):
    c = np.zeros(1, COMMON_STATE)
    c["t"], c["slope"], c["size"] = t, slope, size
    return c[0]


@pytest.mark.parametrize("make", [lambda: BSGDClassifier(100), lambda: BSCAClassifier(100, seed=0), OnlineLinearSVC])
def test_first_probabilities_are_cautious(make):
    scaler, model, loss = preprocessing.StandardScaler(), make(), metrics.LogLoss()
    for n, (x, y) in enumerate(datasets.Phishing().take(100)):
        p = model.predict_proba_one(scaler.transform_one(x))
        if p:  # no probabilities before the first row
            assert max(p.values()) <= (n + 2) / (n + 3)
            loss.update(y, p)
        scaler.learn_one(x)
        model.learn_one(scaler.transform_one(x), y)
    assert loss.get() < 0.5  # river's logistic regression has 0.57


def test_first_probabilities_of_several_classes_are_cautious():
    scaler, model, losses = preprocessing.StandardScaler(), BSGDClassifier(100), []
    for x, y in datasets.ImageSegments().take(150):
        p = model.predict_proba_one(scaler.transform_one(x))
        if y in p and len(p) > 2:
            losses.append(-math.log(p[y]))
        scaler.learn_one(x)
        model.learn_one(scaler.transform_one(x), y)
    assert np.mean(losses) < math.log(7)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=10),
    st.integers(0, 10),
    st.floats(0.0, 1e-12),
    st.integers(0, 10**6),
    st.floats(-20.0, 5.0),
)
def test_only_the_best_output_has_the_largest_probability(values, number, gap, t, slope):
    # The decision value of a second output is nearly that of the best one.
    best = int(np.argmax(values))
    second = number % len(values)
    if second != best:
        values[second] = values[best] - gap
        best = int(np.argmax(values))
    scores = np.repeat(np.array(values, np.float64), 2)
    compute_probabilities(state(t, slope, 1.0), scores, 0, len(scores), best)
    p = scores[::2]
    assert p.sum() == pytest.approx(1.0)
    assert (np.delete(p, best) < p[best]).all()


@settings(deadline=None, max_examples=50)
@given(st.floats(-1e6, 1e6), st.integers(0, 10**6), st.floats(-20.0, 5.0))
def test_probability_and_decision_value_agree_on_the_label(f, t, slope):
    p = compute_probability(state(t, slope, 1.0), 0, f)
    assert p > 0.5 if f > 0.0 else p <= 0.5


def test_calibration_is_relative_to_the_size_of_decision_values():
    small, large = state(size=1.0), state(size=1e4)
    assert compute_probability(small, 0, 0.7) == pytest.approx(compute_probability(large, 0, 0.7e4))
    c = state()
    assert update_size(c, 0, 5.0, 0.5) == pytest.approx(math.exp(INITIAL_SLOPE) / 5.0)
    update_size(c, 0, 9.0, 0.5)
    for size in (math.inf, math.nan):  # decision values are finite, unless coefficients are at their limits
        update_size(c, 0, size, 0.5)
    assert c["size"].tolist() == [7.0, 0.0]


def test_warm_started_model_ranks_rows_before_it_learns():
    model = BSGDClassifier(2, gamma=1.0, scaling=None)
    model.start_from(np.array([[0.0], [3.0]]), [-1.0, 1.0], labels=[False, True])
    p = [model.predict_proba_one({0: x})[True] for x in np.linspace(0.0, 3.0, 7)]
    assert np.all(np.diff(p) > 0.0)
