"""Precomputed kernels: Gram matrices, and kernel functions of rows of any type."""

import numpy as np
import pytest
from numba import config
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.svm import SVC

import naive_batch
from problems import sine_classes, sine_curve
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor
from streamsvm.batch.csmo import machine, solver
from streamsvm.batch.csmo.precomputed import PrecomputedRows

N = 50 if config.DISABLE_JIT else 200
WHOLE, BLOCKS = 200.0, 0.01  # megabytes: of all values, and of small blocks
KERNELS = [{"kernel": "rbf", "gamma": 0.7}, {"kernel": "sigmoid", "gamma": 0.3, "coef0": -0.5}]


def problem(kind):
    X, y = sine_curve(N, 3, 0.2) if kind is CSMORegressor else sine_classes(N, 3, 0.5)
    return X, None if kind is CSMOOneClass else y


def values(model, X):
    return model.predict(X) if isinstance(model, CSMORegressor) else model.decision_function(X)


@pytest.mark.once
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel"])
@pytest.mark.parametrize("kind", [CSMOClassifier, CSMORegressor, CSMOOneClass])
def test_precomputed_kernels_give_the_same_model(kind, kernel, monkeypatch):
    monkeypatch.setattr(solver, "_STEPS_BETWEEN_SHRINKS", 20)
    X, y = problem(kind)
    K = naive_batch.kernel_matrix(X, X, **kernel)
    Z = X[::3] + 0.1
    at_Z = naive_batch.kernel_matrix(Z, X, **kernel)

    def function(A, B):
        return naive_batch.kernel_matrix(A, B, **kernel)

    tol = 1e-5
    expected = values(kind(tol=tol, **kernel).fit(X, y), Z)
    for size in (WHOLE, BLOCKS):
        matrix = kind(kernel="precomputed", tol=tol, cache_size=size).fit(K, y)
        called = kind(kernel=function, tol=tol, cache_size=size).fit(X, y)
        assert matrix.gap_ <= tol
        assert matrix.support_vectors_.shape == (0, 0)
        assert matrix.shape_fit_ == (N, N)
        np.testing.assert_array_equal(called.support_vectors_, X[called.support_])
        np.testing.assert_allclose(values(called, Z), values(matrix, at_Z), rtol=1e-9, atol=1e-9)
        if kernel["kernel"] == "rbf":  # with the other one there are several local minima
            np.testing.assert_allclose(values(matrix, at_Z), expected, atol=2e-3)


@pytest.mark.parametrize("coef0", [0.5, -1.0])
@pytest.mark.parametrize("C", [1.0, 1000.0])
def test_an_indefinite_kernel_ends_at_a_local_optimum(C, coef0):
    X, y = sine_classes(N, 4, 0.5)
    kernel = {"kernel": "sigmoid", "gamma": 0.5, "coef0": coef0}
    K = naive_batch.kernel_matrix(X, X, **kernel)
    assert np.linalg.eigvalsh(K).min() < -1.0
    model = CSMOClassifier(C=C, **kernel).fit(X, y)
    b = np.zeros(N)
    b[model.support_] = model.dual_coef_[0]
    assert naive_batch.gap(K, b, np.minimum(C * y, 0.0), np.maximum(C * y, 0.0), y) <= 1e-3 * (1.0 + 1e-9) + 1e-12 * C
    assert model.fit_status_ == 0
    _, objective = naive_batch.classify(K, y, C, 1e-3)
    own_objective = naive_batch.classification_objective(K, y, b)
    assert own_objective < 0.0
    assert own_objective <= 0.5 * objective  # other starts, other local minima


def test_a_fit_calls_the_function_once():
    X = sine_classes(200, 3, 0.5)[0]
    shapes = []

    def function(A, B):
        shapes.append((len(A), len(B)))
        return A @ B.T

    CSMOClassifier(kernel=function).fit(X, X[:, 0] > 0.0)
    assert shapes == [(200, 200)]


def test_rows_of_any_form():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("ab"), size=rng.integers(1, 6))) for _ in range(40)]
    counts = np.array([[word.count("a"), word.count("b")] for word in words], float)
    y = np.where(counts[:, 0] > counts[:, 1], "a", "b")

    def common(A, B):
        return [[a.count("a") * b.count("a") + a.count("b") * b.count("b") for b in B] for a in A]

    linear = CSMOClassifier(kernel="linear", tol=1e-6).fit(counts, y)
    for size in (WHOLE, BLOCKS):
        model = CSMOClassifier(kernel=common, tol=1e-6, cache_size=size).fit(words, y)
        np.testing.assert_allclose(model.decision_function(words), linear.decision_function(counts), atol=1e-4)
        assert model.predict(["aaab", "b"]).tolist() == ["a", "b"]
        assert [type(word) for word in model.support_vectors_] == [str] * len(model.support_)
        assert model.shape_fit_ == (40,)
    thin = CSMOClassifier(kernel=lambda A, B: A @ B.T, tol=1e-6).fit(sparse.csr_array(counts), y)
    np.testing.assert_allclose(thin.decision_function(sparse.csr_array(counts)), linear.decision_function(counts), atol=1e-4)


def test_several_classes_and_weights():
    X, y = load_iris(return_X_y=True)
    if config.DISABLE_JIT:
        X, y = X[::3], y[::3]
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    K = X @ X.T
    ours = CSMOClassifier(kernel="precomputed", tol=1e-6).fit(K, y, weights)
    peer = SVC(kernel="linear", tol=1e-6).fit(X, y, weights)  # which takes wrong columns of a matrix where weights are 0
    np.testing.assert_allclose(ours.decision_function(K), peer.decision_function(X), atol=1e-3)
    assert (weights[ours.support_] > 0).all()


def test_predictions_in_chunks(monkeypatch):
    X, y = sine_classes(N, 3, 0.5)
    models = [CSMOClassifier(kernel=lambda A, B: A @ B.T).fit(X, y), CSMOClassifier(kernel="precomputed").fit(X @ X.T, y)]
    expected = [models[0].decision_function(X), models[1].decision_function(X @ X.T)]
    monkeypatch.setattr(machine, "_MAX_KERNEL_VALUES", 1000)
    np.testing.assert_allclose(models[0].decision_function(X), expected[0], rtol=1e-12)
    np.testing.assert_allclose(models[1].decision_function(X @ X.T), expected[1], rtol=1e-12)
    flat = CSMORegressor(kernel=lambda A, B: A @ B.T).fit(X, np.full(N, 2.0))  # without support vectors
    np.testing.assert_array_equal(flat.predict(X[:5]), np.full(5, 2.0))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda A, B: A, "must return an array of shape"),
        (lambda A, B: np.full((len(A), len(B)), np.nan), "not finite"),
        (lambda A, B: np.full((len(A), len(B)), 1e35), "scale the kernel"),
        (lambda A, B: 1 / 0, "division"),
    ],
)
def test_a_failing_kernel_function_does_not_change_the_model(function, message):
    X, y = sine_classes(N, 3, 0.5)
    model = CSMOClassifier(gamma=0.5).fit(X, y)
    before = model.decision_function(X)
    refused(message, model.set_params(kernel=function).fit, X, y, error=(ValueError, ZeroDivisionError))
    np.testing.assert_array_equal(model.decision_function(X), before)


def test_no_rows_are_refused():
    refused("X has no rows", CSMOOneClass(kernel=lambda A, B: A @ B.T).fit, [])


def test_refused_matrices():
    X, y = sine_classes(20, 3, 0.5)
    model = CSMOClassifier(kernel="precomputed")
    refused("must be square", model.fit, X, y)
    refused("Sparse precomputed", model.fit, sparse.csr_array(X @ X.T), y, error=TypeError)
    refused("scale the kernel", model.fit, 1e35 * (X @ X.T), y)
    refused("features", model.fit(X @ X.T, y).predict, X)


@pytest.mark.parametrize("kernel", ["sigmoid", "precomputed", np.dot], ids=str)
def test_machines_with_unsupported_kernels_cannot_be_distilled(kernel):
    X, y = sine_classes(20, 3, 0.5)
    model = CSMOClassifier(kernel=(lambda A, B: A @ B.T) if kernel is np.dot else kernel).fit(X @ X.T, y)
    refused("no learner supports the kernel", model.to_budget, 5)


def test_machines_with_negative_coef0_cannot_be_distilled():
    X, y = sine_classes(20, 3, 0.5)
    refused("coef0 must be at least 0", CSMOClassifier(kernel="poly", coef0=-0.5).fit(X, y).to_budget, 5)


def test_selected_rows_have_their_kernel_values():
    K = np.arange(36.0).reshape(6, 6)
    K = K + K.T
    all_rows = PrecomputedRows.from_matrix(K)
    assert all_rows.matrix is K  # read where it lies
    np.testing.assert_array_equal(all_rows.gather_values(np.arange(6), np.arange(6)), K)
    rows = all_rows[np.array([1, 2, 5])]
    assert len(rows) == 3
    np.testing.assert_array_equal(rows.gather_values(np.array([2]), np.arange(3)), K[[5]][:, [1, 2, 5]])
    np.testing.assert_array_equal(rows.diagonal(), K.diagonal()[[1, 2, 5]])
    out = np.ones(3)
    rows.add_kernel_products(np.array([0.0, 2.0, 1.0]), np.arange(3), np.array([0, 2]), out[::2])
    np.testing.assert_array_equal(out, [1.0 + 2.0 * K[1, 2] + K[1, 5], 1.0, 1.0 + 2.0 * K[5, 2] + K[5, 5]])


def test_a_kernel_that_is_not_symmetric_is_refused():
    """Otherwise, the steps might never converge."""
    X, y = problem(CSMOClassifier)
    K = X @ X.T
    noise = 1e-7 * np.abs(K).max() * np.random.default_rng(0).normal(size=K.shape)
    assert CSMOClassifier(kernel="precomputed").fit(K + noise, y).fit_status_ == 0  # as of values that were rounded
    K[3, 7] += 1.0
    refused("the kernel is not symmetric: of rows 3 and 7, its values are", CSMOClassifier(kernel="precomputed").fit, K, y)
    with pytest.raises(ValueError, match="the kernel is not symmetric"):
        CSMOClassifier(kernel=lambda A, B: A @ np.triu(np.ones((3, 3))) @ B.T).fit(X, y)
