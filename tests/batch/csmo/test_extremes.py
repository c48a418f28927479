"""Exact fits with large numbers: bounds, features and kernels of any size. Gaps are recomputed in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from scipy import sparse
from sklearn.datasets import load_breast_cancer, make_blobs
from sklearn.exceptions import ConvergenceWarning

import naive_batch
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMORegressor

SEEDS = (16, 36, 142) if config.DISABLE_JIT else (*range(0, 40, 4), 95, 116, 142, 154)


def kernel_of(model, X):
    return naive_batch.kernel_matrix(X, X, model.kernel, model.gamma, model.coef0, model.degree)


def true_gap(model, X, y):
    """Return the largest violation of optimality over all rows."""
    b = np.zeros(len(y))
    b[model.support_] = model._coefficients[0]
    K = kernel_of(model, X)
    if isinstance(model, CSMORegressor):
        return naive_batch.gap(K, b, -model.C, model.C, y, model.epsilon)
    sign = np.where(y == model.classes_[1], 1.0, -1.0)
    return naive_batch.gap(K, b, np.minimum(sign * model.C, 0.0), np.maximum(sign * model.C, 0.0), sign)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("C", [1e4, 1e12])
def test_large_bounds_lose_no_support_vector(C, scale):
    X, y = make_blobs(50, centers=2, random_state=0, cluster_std=0.6)
    model = CSMOClassifier(kernel="linear", C=C).fit(X * scale, y)
    assert model.score(X * scale, y) == 1.0
    assert len(model.support_) >= 2
    assert abs(model.dual_coef_.sum()) <= 1e-9 * np.abs(model.dual_coef_).sum()
    assert true_gap(model, X * scale, y) <= 2e-3


@pytest.mark.once
@pytest.mark.parametrize("C", [1.0, 100.0])
def test_unscaled_features_reach_the_tolerance(C):
    X, y = load_breast_cancer(return_X_y=True)  # kernel values up to 2e7, which float32 rounds to 1
    model = CSMOClassifier(kernel="linear", C=C).fit(X, y)
    assert true_gap(model, X, y) <= 1e-3
    assert abs(model.dual_coef_.sum()) <= 1e-9 * np.abs(model.dual_coef_).sum()


@pytest.mark.parametrize("C", [1e8, 1e12])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_regression_with_large_bounds(C):
    X = np.linspace(-3.0, 3.0, 60)[:, None]
    model = CSMORegressor(C=C, epsilon=0.01, gamma=0.5).fit(X, np.sin(X[:, 0]))
    assert model.score(X, np.sin(X[:, 0])) > 0.999


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_gap_is_exact_for_kernels_of_any_size():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(8, 30)), int(rng.integers(1, 4))
        X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1.0, 1.0, size=(n, 1))
        y = rng.permutation(np.arange(n) % 2)
        model = CSMOClassifier(kernel="poly", gamma=1000.0, C=10.0, max_iter=20_000)
        model.fit(X, y)
        K, a = np.abs(kernel_of(model, X)), np.abs(model.dual_coef_[0])
        rounding = 1e-11 * (K[:, model.support_] @ a).max()
        assert true_gap(model, X, y) <= 1.01 * model.gap_ + rounding


@settings(max_examples=5 if config.DISABLE_JIT else 50)
@given(
    kernel=st.sampled_from(["rbf", "linear", "poly", "sigmoid"]),
    coef0=st.sampled_from([1.0, -1.0]),
    model=st.sampled_from([CSMOClassifier, CSMORegressor]),
    log_scale=st.floats(-3.0, 3.0),
    log_C=st.floats(-3.0, 12.0),
    thin=st.booleans(),
    seed=st.integers(0, 10_000),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_gap_is_exact_for_random_problems(kernel, coef0, model, log_scale, log_C, thin, seed):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(4, 30)), int(rng.integers(1, 9))
    X = rng.normal(size=(n, d)) * 10.0**log_scale
    if thin:
        X[rng.random((n, d)) < 0.7] = 0.0
    y = rng.permutation(np.arange(n) % 2)
    model = model(C=10.0**log_C, kernel=kernel, gamma=0.3, coef0=coef0, max_iter=20_000)
    model.fit(sparse.csr_array(X) if thin else X, y)
    if not len(model.support_):
        assert isinstance(model, CSMORegressor)
        return
    b, K = model._coefficients[0], np.abs(kernel_of(model, X))
    assert (np.abs(b) <= model.C).all()
    # A step moves each of the n variables by 2 C at most, and may snap it by a part of 1e-12 of that.
    assert abs(b.sum()) <= 1e-12 * (1 + np.max(model.n_iter_)) * 2.0 * n * model.C
    rounding = 1e-10 * (K[:, model.support_] @ np.abs(b)).max()  # of kernel values from products
    assert true_gap(model, X, y) <= 1.01 * model.gap_ + rounding


@pytest.mark.once
@pytest.mark.parametrize("offset", [1e4, 1e8, 1.7e9])
def test_a_shift_of_all_rows_does_not_matter(offset):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0.0, 3600.0, size=(120, 1)), axis=0)
    X = np.round(X * 16.0) / 16.0  # so that adding the offset loses nothing
    y = np.sin(X[:, 0] / 300.0) > 0.0
    near, far = (CSMOClassifier(gamma=1e-4, C=10.0).fit(rows, y) for rows in (X, X + offset))
    assert far.score(X + offset, y) == near.score(X, y) > 0.9
    assert true_gap(far, X, y) <= 1.1e-3


def test_a_refused_fit_does_not_change_the_model():
    X, y = make_blobs(50, centers=2, random_state=0)
    model = CSMOClassifier(gamma=0.5).fit(X, y)
    before = model.decision_function(X)
    for bad_X, bad_y in ((X * 1e18, np.where(y, "a", "b")), (X * 1e200, y), (X[:, :1] * np.nan, y), (X, np.zeros(50))):
        refused("too large|NaN|one class", model.fit, bad_X, bad_y)
        np.testing.assert_array_equal(model.decision_function(X), before)
    for factor in (1e30, 1e-30):
        refused("scale the targets", CSMORegressor().fit, X, y * factor)


def test_sparse_rows_with_large_indices():
    X, y = make_blobs(50, centers=2, random_state=0)
    rows = sparse.csr_array(X)
    rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    np.testing.assert_allclose(
        CSMOClassifier(gamma=0.5).fit(rows, y).decision_function(rows),
        CSMOClassifier(gamma=0.5).fit(X, y).decision_function(X),
        atol=2e-3,
    )


def test_units_too_large_for_float32_are_refused():
    X, y = make_blobs(50, centers=2, random_state=0)
    for model in (CSMOClassifier(), CSMOClassifier(kernel="poly"), CSMOClassifier(gamma=1e40)):
        refused("gamma is .*, which is too large for float32: scale the features", model.fit, X * 1e-20, y)


@pytest.mark.skipif(config.DISABLE_JIT, reason="minutes without compilation")
def test_large_bounds_use_float64_columns():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.8, 2.8, (900, 2))
    y = np.where(rng.random(900) < 0.1, -1.0, 1.0) * np.sin(2.0 * X[:, 0] + X[:, 1]) > 0.0
    model = CSMOClassifier(C=1e4, gamma=1.0, max_iter=2_000_000).fit(X, y)
    assert model.gap_ <= 1e-3
    with pytest.warns(ConvergenceWarning):
        last = CSMOClassifier(C=1e8, gamma=1.0, max_iter=100_000).fit(X, y)
    assert last.objective_ < 0.0  # each step lowers it
