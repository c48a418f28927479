"""A sensor that stands still repeats one row thousands of times. Afterwards, every learner is about as good as without that."""

import numpy as np
import pytest
from numba import config
from river import base
from sklearn.datasets import make_friedman1

from discovered import estimators
from problems import sine_classes, snapshot, waves
from saved import dumps, loads
from streamsvm import SVMClassifier, SVMRegressor

FIRST, REPEATS, NEXT = (150, 200, 300) if config.DISABLE_JIT else (1000, 3000, 3000)


def learn(model, X, y):
    if isinstance(model, base.AnomalyDetector):
        model.learn_many(X)
    else:
        model.learn_many(X, y)


def measure_loss(model, X, y):
    """Return the share of wrong labels, the mean absolute error, or the share of outliers that have a lower score than a row."""
    if isinstance(model, base.Classifier):
        return float(np.mean(model.predict_many(X) != np.array(y)))
    if isinstance(model, base.Regressor):
        return float(np.mean(np.abs(model.predict_many(X) - y)))
    outliers = model.score_many(np.random.default_rng(0).uniform(-9.0, 9.0, X.shape))
    return float(np.mean(outliers[:, None] <= model.score_many(X)))


def measure_losses(model, n_repeats, repeated, data=None):
    """Return the mean loss in chunks of rows some time after a stretch of equal rows, before each chunk is learned."""
    n = FIRST + NEXT
    X, y = data or (waves(n) if isinstance(model, base.Regressor) else sine_classes(n, 2, 0.1))
    y = y.tolist()
    learn(model, X[:FIRST], y[:FIRST])
    if n_repeats:
        learn(model, np.repeat(X[repeated : repeated + 1], n_repeats, axis=0), y[repeated : repeated + 1] * n_repeats)
    losses = []
    for start in range(FIRST, FIRST + NEXT, NEXT // 10):
        chunk = slice(start, start + NEXT // 10)
        losses.append(measure_loss(model, X[chunk], y[chunk]))
        learn(model, X[chunk], y[chunk])
    return np.mean(losses[3:])


@pytest.mark.once
@pytest.mark.parametrize("kind", estimators(), ids=lambda kind: kind.__name__)
def test_learners_recover_from_a_constant_stretch(kind):
    model = kind(**({"seed": 0} if "seed" in kind()._get_params() else {}))
    for repeated in (7, 11):
        loss, expected = (measure_losses(model.clone(), n, repeated) for n in (REPEATS, 0))
        assert loss <= 1.3 * expected + 0.02


@pytest.mark.once
@pytest.mark.parametrize("repeated", [7, 12])
def test_the_default_regressor_recovers_although_its_rows_and_targets_are_scaled(repeated):
    X, y = make_friedman1(FIRST + NEXT, noise=1.0, random_state=0)
    loss, expected = (measure_losses(SVMRegressor(seed=0), n, repeated, (X, y)) for n in (REPEATS, 0))
    assert loss <= 1.15 * expected


@pytest.mark.once
@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_repeated_rows_do_not_change_the_scale_of_an_ensemble(kind):
    model, rng = kind(seed=0), np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = X[:, 0].tolist() if kind is SVMRegressor else (X[:, 0] > 0.0).tolist()
    learn(model, X, y)
    learn(model, np.repeat(X[:1], 64, axis=0), y[:1] * 64)
    views = model._store.views
    moments, target_moments = views.moments.copy(), views.target_moments.copy()
    for n, changes in ((1, False), (100, False), (1, True)):
        row = X[1:2] if changes else X[:1]  # another row ends the stretch
        learn(model, np.repeat(row, n, axis=0), (y[1:2] if changes else y[:1]) * n)
        is_equal = np.array_equal(model._store.views.moments, moments)
        assert is_equal != changes
        if kind is SVMRegressor and n > 1:
            assert np.array_equal(model._store.views.target_moments, target_moments)
        copy = loads(dumps(model)) if not changes else None
        if copy is not None:  # a run that resumes within the stretch
            learn(copy, X[:1], y[:1])
            twin = model.clone(include_attributes=True)
            learn(twin, X[:1], y[:1])
            assert snapshot(copy) == snapshot(twin)
    learn(model, X[:1], [y[1]])
    assert not np.array_equal(model._store.views.moments, moments)


@pytest.mark.once
def test_repeated_rows_with_other_targets_are_a_new_level():
    model, rng = SVMRegressor(seed=0), np.random.default_rng(0)
    X, y = rng.normal(size=(100, 1)), rng.normal(size=100).tolist()
    model.learn_many(X, y)
    model.learn_many(np.repeat(X[:1], 200, axis=0), [50.0 + 0.1 * number for number in range(200)])
    assert abs(model.predict_one({0: float(X[0, 0])}) - 69.9) < 5.0
