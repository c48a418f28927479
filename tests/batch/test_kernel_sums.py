"""Decision values of exact machines, against the definition and scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import SVC, SVR, OneClassSVM

import naive_batch
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor
from streamsvm.batch.kernel_sums import KernelSums
from streamsvm.core.kernels import MACHINE_KERNELS, Kernel, exp2d


def dense(rng, n, d):
    return rng.normal(size=(n, d)) + 1e3


def rare(rng, n, d):
    """Rows where most features have a usual value other than 0."""
    return np.where(rng.random((n, d)) < 0.1, rng.normal(size=(n, d)), 0.0) + np.linspace(-3.0, 900.0, d)


def zeros(rng, n, d):
    return np.where(rng.random((n, d)) < 0.1, rng.normal(size=(n, d)), 0.0)


def text(rng, n, d):
    return sparse.csr_array(zeros(rng, n, d))


FORMS = {"dense": dense, "rare": rare, "zeros": zeros, "text": text}


def array(X):
    return X.toarray() if sparse.issparse(X) else X


@pytest.mark.once
@pytest.mark.parametrize("machines", [1, 6])
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize(("m", "n", "d"), [(3, 70, 5), (700, 300, 30), (33, 1, 9), (40, 0, 4), (100, 65, 2500)])
def test_sums(m, n, d, form, machines):
    rng = np.random.default_rng(m)
    X, S = FORMS[form](rng, m, d), FORMS[form](rng, n, d)
    coefficients = np.where(rng.random((machines, n)) < 0.5, 10.0 * rng.normal(size=(machines, n)), 0.0)
    coefficients[:, 256:] = 0.0  # those of a whole tile
    sums = KernelSums(S, coefficients, Kernel(MACHINE_KERNELS["rbf"], 0.3 / d, 0.0, 3))
    expected, size = naive_batch.kernel_matrix(array(X), array(S), gamma=0.3 / d) @ coefficients.T, np.abs(coefficients).sum()
    for rows in (X, sparse.csr_matrix(X), array(X)):
        np.testing.assert_allclose(sums.compute(rows), expected, rtol=0, atol=1e-10 * (size + 1.0))


@pytest.mark.parametrize("kernel", ["linear", "poly", "sigmoid"])
@pytest.mark.parametrize("form", ["dense", "text"])
def test_other_kernels(form, kernel):
    rng = np.random.default_rng(0)
    X, S, c = FORMS[form](rng, 90, 20), FORMS[form](rng, 300, 20), rng.normal(size=(2, 300))
    expected = naive_batch.kernel_matrix(array(X), array(S), kernel, 1e-3, 0.5, 3) @ c.T
    sums = KernelSums(S, c, Kernel(MACHINE_KERNELS[kernel], 1e-3, 0.5, 3))
    for rows in (X, sparse.csr_matrix(X), array(X), X[:3]):
        np.testing.assert_allclose(sums.compute(rows), expected[: rows.shape[0]], rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_exponentials():
    values = np.concatenate([np.linspace(-1022.0, 0.1, 99_991), [-1e4, -np.inf]])
    computed = np.empty_like(values)
    exp2d(values, 1.0, len(values), computed)
    np.testing.assert_allclose(computed, np.exp2(np.maximum(values, -1022.0)), rtol=2e-15)


def problem(n=900, d=6, classes=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    number = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n)
    return X, np.digitize(number, np.quantile(number, np.arange(1, classes) / classes)), number


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (CSMOClassifier(C=10.0, tol=1e-6), SVC(C=10.0, tol=1e-6)),
        (CSMOClassifier(C=10.0, tol=1e-6, break_ties=True), SVC(C=10.0, tol=1e-6, break_ties=True)),
        (CSMORegressor(C=10.0, tol=1e-6), SVR(C=10.0, tol=1e-6)),
        (CSMOOneClass(tol=1e-6, nu=0.3), OneClassSVM(tol=1e-6, nu=0.3)),
    ],
)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.once
def test_like_scikit_learn(ours, theirs, classes):
    X, y, number = problem(500, classes=classes)
    y = number if isinstance(ours, CSMORegressor) else y
    ours.fit(X[:300], y[:300]), theirs.fit(X[:300], y[:300])
    X = X[300:]  # support vectors are at the boundary
    for n in (len(X), 3):  # by tiles, and by columns
        functions = getattr(ours, "decision_function", ours.predict), getattr(theirs, "decision_function", theirs.predict)
        np.testing.assert_allclose(functions[0](X[:n]), functions[1](X[:n]), atol=1e-4)
    if not isinstance(ours, CSMORegressor):
        assert (ours.predict(X) != theirs.predict(X)).sum() <= 1
    many = np.tile(X, (20, 1))
    values = ours.predict(many)
    np.testing.assert_array_equal(ours.set_params(n_jobs=3).predict(many), values)
    ours.set_params(n_jobs=None)
    # A product of more rows may add up in another order.
    np.testing.assert_allclose(values, np.tile(ours.predict(X), 20), rtol=1e-10)


@pytest.mark.once
def test_rows_of_any_size():
    X, y, _ = problem()
    model = CSMOClassifier(gamma=0.2).fit(X, y)
    huge = np.concatenate([X[:50], 10.0 ** np.arange(-300.0, 308.0, 8.0)[:, np.newaxis] * np.ones(X.shape[1])])
    K = np.array([np.exp(-0.2 * np.square(x - model.support_vectors_).sum(axis=1)) for x in np.clip(huge, -1e150, 1e150)])
    expected = K @ model._coefficients[0] + model._intercepts
    np.testing.assert_allclose(model.decision_function(huge), expected, atol=1e-10 * np.abs(model._coefficients).sum())
    np.testing.assert_allclose(model.decision_function(sparse.csr_array(huge)), expected, atol=1e-9)
    np.testing.assert_array_equal(model.predict(huge), (expected > 0.0).astype(int))
    for gamma in (1e-30, 1e15, 1e30):
        sums = KernelSums(X[:100], np.ones((1, 100)), Kernel(0, gamma, 0.0, 1))
        np.testing.assert_allclose(sums.compute(X), naive_batch.kernel_matrix(X, X[:100], gamma=gamma).sum(axis=1, keepdims=True))
    for value in (np.nan, np.inf):
        refused("contains (NaN|infinity)", model.predict, np.where(np.eye(6) == 1.0, value, X[:6]))


def test_no_support_vector():
    X, _, number = problem()
    model = CSMORegressor(epsilon=100.0).fit(X, number)
    assert len(model.support_) == 0
    np.testing.assert_array_equal(model.predict(X), np.full(len(X), model.intercept_[0]))
