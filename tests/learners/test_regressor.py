"""Regressors and the one-class detector against their twins, and warnings of unscaled targets."""

import pickle
import warnings

import numpy as np
import pytest
from numba import config
from sklearn.svm import OneClassSVM

import naive
from problems import dicts, waves
from streamsvm import BSCARegressor, BSGDRegressor, OneClassBSGD
from streamsvm.learners import OnlineLinearSVR


def test_an_unfitted_intercept_does_not_change():
    X, y = waves(60)
    model = BSGDRegressor(budget=100, gamma=0.8, scaling=None, l2=1e-2, fit_intercept=False)
    twin = naive.NaiveBSGDRegression(100, 0.8, 1e-2, learning_rate="capped", eta0=0.1, epsilon=0.1)
    model._store.views.biases[:2] = twin.bias = twin.average_bias = 50.0  # as distillation brings it
    for row, target in zip(X, y + 50.0, strict=True):
        x = dict(enumerate(row))
        np.testing.assert_allclose(
            [model._compute_output(x, code) for code in (0, 1)], twin.decisions(np.float32(row)), rtol=1e-5
        )
        model.learn_one(x, target)
        twin.learn(np.float32(row), target)
    assert model.intercept.tolist() == [50.0]


@pytest.mark.skipif(config.DISABLE_JIT, reason="too slow without compilation")
@pytest.mark.parametrize("nu", [0.05, 0.5])
def test_a_fraction_nu_is_outside_and_ranks_agree_with_the_exact_model(nu):
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(3000, 2)), rng.normal(size=(3000, 2)) * 0.5 + 4.0])[rng.permutation(6000)]
    model = OneClassBSGD(budget=100, gamma=0.5, scaling=None, nu=nu)
    model.learn_many(X)
    fresh = np.vstack([rng.normal(size=(500, 2)), rng.normal(size=(500, 2)) * 0.5 + 4.0])
    scores = model.score_many(fresh)
    assert abs((model.decision_function_many(fresh) < 0.0).mean() - nu) < 0.05
    np.testing.assert_array_equal(scores[:5], [model.score_one({0: a, 1: b}) for a, b in fresh[:5]])
    exact = OneClassSVM(gamma=0.5, nu=nu).fit(X)
    grid = rng.uniform(-4.0, 7.0, size=(1000, 2))
    agree = (model.decision_function_many(grid) > 0.0) == (exact.decision_function(grid) > 0.0)
    assert agree.mean() > 0.95


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "mean", "deviation", "far"),
    [
        *((BSGDRegressor, *case) for case in ((0.0, 1.0, False), (40.0, 1.0, True), (1.0, 0.01, True), (0.0, 50.0, True))),
        *((kind, 40.0, 1.0, True) for kind in (BSCARegressor, OnlineLinearSVR)),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_unscaled_targets_cause_one_warning(kind, mean, deviation, far, many):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(250, 2)), mean + deviation * rng.normal(size=250)
    model = kind()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if many:
            for start in range(0, 250, 60):
                model.learn_many(X[start : start + 60], y[start : start + 60])
        else:
            for x, target in zip(dicts(X), y, strict=True):
                model.learn_one(x, target)
    assert len(warned) == far
    if far:
        assert f"wrap it in streamsvm.learners.preprocessing.BoundedTargetScaler({kind.__name__}(...))" in str(warned[0].message)
        assert warned[0].filename == __file__


@pytest.mark.once
def test_started_and_loaded_models_do_not_warn_of_targets():
    started, half = BSGDRegressor(5, gamma=1.0, scaling=None), BSGDRegressor(5)
    started.start_from(np.ones((1, 1)), [40.0])
    half.learn_one({0: 1.0}, 40.0)
    for model in (started, pickle.loads(pickle.dumps(half))):
        for i in range(150):
            model.learn_one({0: i / 150.0}, 40.0 + i)
