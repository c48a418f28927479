"""One-class machines against a slow reference implementation, scikit-learn's OneClassSVM and the optimality conditions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from sklearn.svm import OneClassSVM

import naive_batch
from refused import refused
from streamsvm.batch import CSMOOneClass
from streamsvm.batch.csmo import solver

N = 40 if config.DISABLE_JIT else 200
KERNELS = [
    {"kernel": "rbf", "gamma": 0.3},
    {"kernel": "linear"},
    {"kernel": "poly", "gamma": 0.3, "coef0": 1.0, "degree": 2},
    {"kernel": "sigmoid", "gamma": 0.05, "coef0": -0.5},
]


def rows(n=N):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)) * rng.gamma(1.0, 1.0, size=(n, 1)) + 1.0


def coefficients(model, n):
    a = np.zeros(n)
    a[model.support_] = model._coefficients[0]
    return a


def gap_of(K, a, bounds):
    return naive_batch.gap(K, a, 0.0, bounds, np.zeros(len(a)))


@pytest.mark.parametrize("nu", [0.05, 0.5])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel"])
def test_objective_matches_the_reference_and_scikit_learn(kernel, nu):
    X = rows()
    weights = np.random.default_rng(1).uniform(0.2, 2.0, N)
    K = naive_batch.kernel_matrix(X, X, **kernel)
    _, objective = naive_batch.one_class(K, weights, nu, 1e-4)
    ours, peer = (model(nu=nu, tol=1e-4, **kernel).fit(X, sample_weight=weights) for model in (CSMOOneClass, OneClassSVM))
    a = coefficients(ours, N)
    b = coefficients(ours, N) * 0.0
    b[peer.support_] = peer.dual_coef_[0]
    assert (a >= 0.0).all()
    assert (a <= weights * (1.0 + 1e-12)).all()
    assert a.sum() == pytest.approx(nu * weights.sum(), rel=1e-12)
    assert ours.objective_ == pytest.approx(0.5 * a @ K @ a, rel=1e-5)
    if kernel["kernel"] != "sigmoid":  # whose problem has several local minima
        for other_objective in (objective, 0.5 * b @ K @ b):
            assert ours.objective_ <= other_objective + 1e-5 * abs(other_objective)
        assert 0.0 <= ours.duality_gap_ <= 1e-4 * weights.sum()
        np.testing.assert_allclose(ours.decision_function(X), peer.decision_function(X), atol=2e-3)
    assert ours.gap_ == pytest.approx(max(gap_of(K, a, weights), 0.0), abs=1e-9)
    assert ours.gap_ <= 1e-4
    np.testing.assert_allclose(ours.decision_function(X), K @ a + ours.intercept_, atol=1e-9)


@settings(max_examples=5 if config.DISABLE_JIT else 40)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 25), levels=st.integers(1, 4), nu=st.sampled_from([0.01, 0.3, 0.9, 1.0]))
def test_repeated_rows_reach_the_optimum(seed, n, levels, nu):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, levels, size=(n, 2)).astype(float)
    weights = rng.uniform(0.1, 2.0, n)
    model = CSMOOneClass(nu=nu, gamma=0.5).fit(X, sample_weight=weights)
    a, near = coefficients(model, n), 1e-9 * weights  # the shares of equal rows round
    assert (a >= 0.0).all()
    assert (a <= weights + near).all()
    assert a.sum() == pytest.approx(nu * weights.sum(), rel=1e-9)
    K = naive_batch.kernel_matrix(X, X, gamma=0.5)
    low, high = a > near, a < weights - near
    if low.any() and high.any():
        gradient = K @ a
        assert gradient[low].max() - gradient[high].min() <= 1.001e-3
    assert np.isfinite(model.offset_).all()


@pytest.mark.parametrize("nu", [0.02, 0.2, 0.7])
def test_nu_bounds_the_share_of_outliers(nu):
    X = rows()
    model = CSMOOneClass(nu=nu, gamma=0.3, tol=1e-6).fit(X)
    values = model.decision_function(X)
    assert np.mean(values < -1e-5) <= nu <= len(model.support_) / len(X)
    assert set(model.predict(X)) <= {-1, 1}
    assert model.predict(X).dtype == np.intp
    np.testing.assert_array_equal(model.predict(X), np.where(values >= 0.0, 1, -1))
    np.testing.assert_array_equal(model.fit_predict(X), model.predict(X))
    np.testing.assert_array_equal(model.score_samples(X), values + model.offset_)
    np.testing.assert_array_equal(model.offset_, -model.intercept_)
    far = model.predict(X + 50.0)
    assert (far == -1).all()


def test_refused():
    with pytest.raises(TypeError):
        CSMOOneClass(C=1.0)
    refused("OneClassBSGD", CSMOOneClass().fit(rows(20)).to_budget, 5)


def test_all_at_their_bound_in_blocks(monkeypatch):
    monkeypatch.setattr(solver, "_MIN_ROWS_FOR_BLOCKS", 30)
    model = CSMOOneClass(nu=1.0).fit(rows())  # the only point there is
    np.testing.assert_array_equal(model.dual_coef_[0], np.ones(N))
    assert model.gap_ == 0.0
