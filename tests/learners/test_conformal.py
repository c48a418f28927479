"""Intervals and sets have the chosen coverage, also after concept drift, and do not change the wrapped model."""

import math
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river import conf, linear_model, preprocessing

from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier, SVMRegressor
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor, _Calibration
from streamsvm.stream.tables import TableEncoder

pytestmark = pytest.mark.once  # these are many rows


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5]) | st.floats(0.0, 10.0), max_size=120), st.floats(0.05, 0.95))
def test_the_threshold_is_a_quantile_of_the_window(scores, level):
    """Beside a twin that sorts all scores anew."""
    calibration, last, misses = _Calibration(level, 30), deque(maxlen=30), 1.0 - level
    for score in scores:
        due = math.inf
        if len(last) >= 20:
            place = math.ceil((1.0 - misses) * (len(last) + 1)) - 1
            due = 2.0 * max(last) if place >= len(last) else sorted(last)[place] if place >= 0 else -math.inf
        assert calibration.threshold == due
        misses = min(max(misses + 0.02 * (1.0 - level - (score > due)), -1.0), 2.0)
        last.append(score)
        calibration.add_score(score)


def numbers(n, seed=0):
    """Rows whose noise grows with a feature, and which change altogether in the middle."""
    rng = random.Random(seed)
    for i in range(n):
        a, b = rng.random(), rng.random()
        slope = 3.0 if i < n // 2 else -5.0
        yield {"a": a, "b": b}, slope * a + rng.gauss(0.0, 0.1 + b)


def test_intervals_have_the_chosen_coverage():
    level = 0.8
    model, alone, covered, widths = ConformalRegressor(SVMRegressor("low", seed=0), level), SVMRegressor("low", seed=0), [], []
    for x, y in numbers(4000):
        assert model.predict_one(x) == alone.predict_one(x)
        low, high = model.predict_interval_one(x)
        covered.append(low <= y <= high)
        widths.append(high - low)
        model.learn_one(x, y)
        alone.learn_one(x, y)
    assert np.mean(covered) == pytest.approx(level, abs=0.01)
    assert np.mean(covered[2000:2500]) > level - 0.05
    narrow, wide = (model.predict_interval_one({"a": 0.5, "b": b}) for b in (0.05, 0.95))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])
    assert widths[:20] == [math.inf] * 20


def test_sets_have_the_chosen_coverage():
    rng, covered, sizes = random.Random(0), [], []
    model = ConformalClassifier(SVMClassifier("low", seed=0))
    for i in range(4000):
        x = {"a": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0)}
        y = int(x["a"] + rng.gauss(0.0, 1.0) > 0.0) + int(x["b"] > 1.0)
        y = y if i < 2000 else 2 - y
        labels = model.predict_set_one(x)
        covered.append(y in labels)
        sizes.append(len(labels))
        model.learn_one(x, y)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)
    assert np.mean(covered[2000:2500]) > 0.8
    assert 1.0 < np.mean(sizes[200:]) < 2.5
    probabilities = model.predict_proba_one({"a": 0.0, "b": 0.0})
    labels = model.predict_set_one({"a": 0.0, "b": 0.0})
    assert labels == sorted(probabilities, key=probabilities.get, reverse=True)[: len(labels)]


def test_conformal_models_in_pipelines_and_with_weights():
    model = ConformalRegressor(preprocessing.StandardScaler() | linear_model.LinearRegression())
    for x, y in numbers(300):
        model.learn_one(x, y)
    assert math.isfinite(model.predict_interval_one({"a": 0.1, "b": 0.2})[0])
    weighted = ConformalClassifier(BSGDClassifier(budget=10))
    for x, y in numbers(100):
        weighted.learn_one(x, y > 0.0, w=0.0)
    assert not weighted._calibration.scores
    weighted.learn_one({"a": 1.0}, True, w=2.0)
    raises("finite", ConformalRegressor(BSGDRegressor()).check_one, {"a": 1.0}, math.nan)
    same = ConformalRegressor(linear_model.LinearRegression())
    for _ in range(50):
        same.learn_one({"a": 0.0}, 0.0)
    assert same.predict_interval_one({"a": 0.0}) == pytest.approx((0.0, 0.0))


def test_intervals_have_rivers_interface():
    model = preprocessing.StandardScaler() | ConformalRegressor(BSGDRegressor(budget=20))
    for x, y in numbers(100):
        model.learn_one(x, y)
    interval = model.predict_one(x, with_interval=True)
    assert isinstance(interval, conf.Interval)
    assert (interval.lower, interval.upper) == model._last_step.predict_interval_one(model._transform_one(x)[0])
    assert model.predict_one(x) in interval


def test_parameters_are_validated():
    raises("must be a river", ConformalRegressor, BSGDClassifier())
    raises("must be a river", ConformalClassifier, BSGDRegressor())
    for level in (0.0, 1.0, -1, "high", None):
        raises("level", ConformalRegressor, BSGDRegressor(), level, error=(ValueError, TypeError))
    for window in (5, 1e9, "many"):
        raises("window", ConformalClassifier, BSGDClassifier(), window=window, error=(ValueError, TypeError))


def test_tables_have_intervals_and_sets():
    city = TableEncoder("city:category")
    sets = city | ConformalClassifier(BSGDClassifier(budget=20))
    intervals = city.clone() | ConformalRegressor(BSGDRegressor(budget=20))
    for i in range(60):
        x = {"city": "Oslo" if i % 2 else "Rome"}
        sets.learn_one(x, i % 2)
        intervals.learn_one(x, float(i % 2))
    assert 1 in sets.predict_set_one({"city": "Oslo"})
    low, high = intervals.predict_interval_one({"city": "Rome"})
    assert -0.5 < low <= high < 0.5
    raises("a ConformalRegressor has no sets of labels", intervals.predict_set_one, {"city": "Rome"})
    raises("a ConformalClassifier has no intervals", sets.predict_interval_one, {"city": "Rome"})
