"""Compressed kernel matrices, their products, solves and determinants, against dense ones."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

import naive_batch
from lists import first
from refused import refused
from streamsvm.batch.hss import HSSMatrix

SLOW = config.DISABLE_JIT
N = 160 if SLOW else 1200


def blobs(n=N, d=3, clusters=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(clusters, d))[rng.integers(0, clusters, n)] * 2.0 + 0.7 * rng.normal(size=(n, d))


def dense_error(K, exact):
    return np.linalg.norm(K.to_array() - exact) / np.linalg.norm(exact)


@pytest.mark.once
@pytest.mark.parametrize(("gamma", "tolerance"), [(0.5, 0.3), (50.0, 0.03), (0.005, 0.03), (0.5, 0.003)])
def test_the_error_is_within_the_tolerance(gamma, tolerance):
    X = blobs()
    K = HSSMatrix.compress(X, gamma=gamma, rel_tol=tolerance, leaf_size=64)
    error = dense_error(K, naive_batch.kernel_matrix(X, X, gamma=gamma))
    assert error <= 3.0 * tolerance
    if tolerance > 0.01:  # of smaller errors few rows have most, and 256 of them may not be among those
        assert K.error == pytest.approx(error, rel=0.5, abs=1e-9)


@pytest.mark.parametrize("kernel", [{"kernel": "linear"}, {"kernel": "poly", "gamma": 0.2, "coef0": 1.0, "degree": 2}])
def test_kernels_of_low_rank_are_exact(kernel):
    X = blobs()
    K = HSSMatrix.compress(X, rel_tol=1e-6, leaf_size=64, **kernel)
    assert dense_error(K, naive_batch.kernel_matrix(X, X, **kernel)) < 1e-5
    assert K.ranks.max() <= 10  # of d = 3: three, or all products of two and fewer


@settings(max_examples=5 if SLOW else 40)
@given(
    n=st.integers(1, 200),
    d=st.integers(1, 4),
    levels=st.sampled_from([2, 5, 1000]),
    gamma=st.sampled_from([1e-6, 0.01, 1.0, 1e6]),
    tolerance=st.sampled_from([0.5, 0.05, 1e-4]),
    leaf=st.integers(2, 40),
    rank=st.integers(1, 50),
    log_shift=st.floats(-4.0, 4.0),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_negative_eigenvalue_and_solves_are_exact(n, d, levels, gamma, tolerance, leaf, rank, log_shift, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, levels, size=(n, d)) / levels  # many rows repeat
    K = HSSMatrix.compress(X, gamma=gamma, rel_tol=tolerance, leaf_size=leaf, max_rank=rank)
    A, shift = K.to_array(), 10.0**log_shift
    np.testing.assert_allclose(A, A.T, atol=1e-12)
    assert np.linalg.eigvalsh(A)[0] >= -1e-8
    assert K.ranks.max(initial=0) <= rank
    A[np.diag_indices(n)] += shift
    factorization, B = K.factorize(shift), rng.normal(size=(n, 3))
    solution = factorization.solve(B)
    np.testing.assert_allclose(A @ solution, B, rtol=0.0, atol=1e-10 * np.linalg.norm(A) * np.abs(solution).max())


@pytest.mark.once
@pytest.mark.parametrize("log_shift", first(1, [-10, -6]))
@pytest.mark.parametrize(
    ("d", "parameters"), [(1, {"gamma": 1.0, "rel_tol": 1e-3}), (2, {"gamma": 0.5, "rel_tol": 1e-4}), (3, {"kernel": "linear"})]
)
def test_small_shifts_lose_no_more_digits_than_a_dense_factorisation(d, parameters, log_shift):
    X, b = np.random.default_rng(0).normal(size=(N, d)), np.sin(np.arange(N))
    K = HSSMatrix.compress(X, leaf_size=64, **parameters)
    A = K.to_array()
    A = 0.5 * (A + A.T)
    shift = 10.0**log_shift * A.diagonal().max()
    A[np.diag_indices(N)] += shift
    factorization = K.factorize(shift)
    residual = np.linalg.norm(A @ factorization.solve(b) - b)
    dense = np.linalg.norm(A @ cho_solve(cho_factor(A), b) - b)
    assert residual < 100.0 * dense


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:the compressed matrix has an error")
def test_rows_far_apart_leave_no_negative_eigenvalue():
    X = np.random.default_rng(1).normal(size=(N, 3))
    for distance in (1e4, 1e7):
        X[N // 2 :, 0] += distance
        K = HSSMatrix.compress(X, gamma=0.5, rel_tol=1e-3, leaf_size=64)
        assert np.linalg.eigvalsh(K.to_array())[0] > -1e-3
        K.factorize(0.01)


@pytest.mark.once
def test_values_near_each_other_and_far_from_the_rest_are_exact():
    n = 160 if SLOW else 400
    X = blobs(n)
    X[n // 2 :, 0] += 1e8
    exact, v = naive_batch.kernel_matrix(X, X, gamma=0.5), np.random.default_rng(0).normal(size=n)
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=1e-3, leaf_size=32)
    assert K.error <= 2e-3
    assert dense_error(K, exact) <= 2e-3
    np.testing.assert_allclose(K.exact_product(np.arange(0, n, 7), v), (exact @ v)[::7], atol=1e-6)
    np.testing.assert_allclose(K.expand(X[::7], v), (exact @ v)[::7], atol=1e-6)
    diagonal = HSSMatrix.compress(X, gamma=1e15, rel_tol=1e-3, leaf_size=32).to_array()
    np.testing.assert_allclose(diagonal, np.eye(n), atol=1e-12)


def test_matrices_too_small_to_compress():
    zeros = HSSMatrix.compress(np.zeros((9, 2)), kernel="linear", rel_tol=0.0, abs_tol=0.1)
    assert zeros.error == 0.0
    nearly_constant = HSSMatrix.compress(blobs(), gamma=1e-12, zero_sum=True)
    assert nearly_constant.error == 0.0


def test_products_and_solves_keep_shape_and_order():
    X = blobs()
    K = HSSMatrix.compress(X, gamma=0.5, leaf_size=50)
    V = np.random.default_rng(1).normal(size=(N, 4))
    dense = K.to_array()
    np.testing.assert_allclose(K @ V, dense @ V, atol=1e-10)
    np.testing.assert_allclose(K @ V[:, 0], dense @ V[:, 0], atol=1e-10)
    first, second = K.factorize(1.0), K.factorize(0.1)  # of one compression
    for factorization in (first, second):
        x = factorization.solve(V[:, 0])
        assert x.shape == (N,)
        np.testing.assert_allclose(K @ x + factorization.shift * x, V[:, 0], atol=1e-9)
    with pytest.raises(ValueError, match=f"an array of {N} rows is needed"):
        K @ V[:-1]


def test_expansions_are_exact():
    X, Z = blobs(), blobs(50, seed=3)
    K = HSSMatrix.compress(X + 1e6, gamma=0.5, rel_tol=0.5)  # far from the origin
    coefficients = np.random.default_rng(1).normal(size=(N, 2))
    expected = naive_batch.kernel_matrix(Z, X, gamma=0.5) @ coefficients
    np.testing.assert_allclose(K.expand(Z + 1e6, coefficients), expected, atol=1e-6)
    np.testing.assert_allclose(K.expand(Z + 1e6, coefficients[:, 0]), expected[:, 0], atol=1e-6)
    np.testing.assert_allclose(
        K.exact_product(np.arange(9), coefficients), naive_batch.kernel_matrix(X[:9], X, gamma=0.5) @ coefficients, atol=1e-6
    )
    for rows in ([-1], [N], [[0]], [0.5]):
        refused("rows must be integers from 0", K.exact_product, np.array(rows), coefficients)
    for length in (N - 1, N + 1):
        refused(f"an array of {N} rows", K.expand, Z, np.ones(length))
        refused(f"an array of {N} rows", K.exact_product, np.arange(3), np.ones(length))
    refused("rows of 3 features", K.expand, Z[:, :2], coefficients)


@pytest.mark.once
def test_memory_does_not_grow_with_the_square():
    sizes = [HSSMatrix.compress(blobs(n), gamma=0.5, leaf_size=64, max_rank=40).nbytes / n for n in (N, 4 * N)]
    assert sizes[1] < 1.3 * sizes[0]
    K = HSSMatrix.compress(blobs(), gamma=0.5, leaf_size=64)
    assert K.shape == (N, N)
    assert K.nbytes >= 8 * N * 64 / 2
    assert K.factorize(1.0).nbytes > 0


def test_too_small_a_rank_warns_with_the_error():
    with pytest.warns(RuntimeWarning, match=r"an error of about 0\.\d+, above 0.001: raise max_rank=3"):
        HSSMatrix.compress(blobs(), gamma=0.5, rel_tol=1e-3, max_rank=3, leaf_size=64)


@pytest.mark.parametrize(
    ("X", "parameters", "message"),
    [
        ([[1.0, np.nan]], {}, "not finite"),
        ([[1e160]], {}, "beyond 1e+15"),
        ([[1e15]] * 3, {"kernel": "poly", "degree": 20}, "too large: scale"),
        ([1.0, 2.0], {}, "at least one row and one feature"),
        (np.empty((0, 3)), {}, "at least one row and one feature"),
        ([[1.0]], {"rel_tol": 0.0}, "rel_tol or abs_tol must be above 0"),
        ([[1.0]], {"gamma": -1.0}, "gamma must be"),
        ([[1.0]], {"max_rank": 0}, "max_rank must be"),
        ([[1.0]], {"leaf_size": 1}, "leaf_size must be"),
        ([[1.0]], {"kernel": "sigmoid"}, "kernel must be one of"),
        ([[1.0]], {"seed": -1}, "seed must be"),
        (sparse.csr_array([[1.0]]), {}, "convert a sparse matrix by X.toarray()"),
        ([[1.0j]], {}, "real numbers"),
        (np.ma.masked_equal([[1.0, 2.0]], 2.0), {}, "without missing values"),
    ],
)
def test_bad_input(X, parameters, message):
    refused(re.escape(message), HSSMatrix.compress, X, **parameters)


def test_a_shift_must_be_above_zero():
    refused("shift must be", HSSMatrix.compress(blobs()).factorize, 0.0)


@pytest.mark.once
def test_same_seed_same_matrix():
    X = blobs(max(N, 220))  # with fewer rows, all are sampled for any seed
    first, again, different = (HSSMatrix.compress(X, gamma=0.5, seed=seed, leaf_size=50).to_array() for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, different)


def test_progress_is_shown(capsys):
    K = HSSMatrix.compress(blobs(), verbose=True)
    K.factorize(1.0, verbose=True)
    assert capsys.readouterr().out == ""


@pytest.mark.once
def test_compression_with_a_given_rank():
    X = blobs()
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, max_rank=10, leaf_size=40)  # and does not warn of its error
    assert (K.ranks == 10).all()
    assert K.reached
    closer = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, max_rank=30, leaf_size=40)
    exact = naive_batch.kernel_matrix(X, X, gamma=0.5)
    assert dense_error(closer, exact) < 0.5 * dense_error(K, exact)
