"""Kernel values from tiles of matrix products, against the definition."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics.pairwise import pairwise_kernels

import naive_batch
from streamsvm.batch.csmo import tiles
from streamsvm.core.kernels import LINEAR, MACHINE_KERNELS, RBF, Kernel, exp2


def kernel(gamma):
    return Kernel(RBF, gamma, 0.0, 3)


def dense(rng, n, d):
    return rng.normal(size=(n, d)) + 1e3


def rare(rng, n, d):
    return sparse.csr_array(np.where(rng.random((n, d)) < 0.2, rng.normal(size=(n, d)), 0.0))


def names(rng, n, d):
    return np.where(rng.random((n, d)) < rng.choice([0.05, 0.5, 0.95], d), 3.5, -1.0)


FORMS = {"dense": dense, "sparse": rare, "two values": names}


@pytest.mark.once
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (700, 300, 5), (513, 257, 30), (30, 900, 12), (20, 70, 2500)])
def test_products_and_matrices(n, m, d, form):
    rng = np.random.default_rng(n)
    X, c = FORMS[form](rng, n + m, d), 10.0 * rng.normal(size=m)
    K = naive_batch.kernel_matrix(*2 * (X.toarray() if sparse.issparse(X) else X,), gamma=0.3 / d)
    of, near, is_exact = tiles.check_float32_rows(
        *tiles.convert_to_indicators(X, kernel(0.3 / d)) if form == "two values" else (X, kernel(0.3 / d))
    )
    assert near.all()
    assert n == 1 or is_exact == (form == "two values")
    left, right = of.take_rows(np.arange(n)), of.take_rows(n + np.arange(m))
    out = np.full(n, 3.0)
    tiles.add_kernel_products(left, right, c, out)
    np.testing.assert_allclose(out, 3.0 + K[:n, n:] @ c, atol=2e-6 * np.abs(c).sum())
    block = np.empty((n, m), np.float32)
    tiles.write_kernel_block(left, right, block)
    np.testing.assert_allclose(block, K[:n, n:], atol=4e-6)
    square = np.empty((n, n), np.float32)
    tiles.write_kernel_block(left, left, square)
    np.testing.assert_allclose(square, K[:n, :n], atol=4e-6)


@pytest.mark.parametrize("name", ["linear", "poly", "sigmoid"])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_other_kernels(form, name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4)) if form == "dense" else rare(rng, 90, 40)
    K = pairwise_kernels(X, metric=name, filter_params=True, gamma=0.2, coef0=0.5, degree=2)
    of, near, _ = tiles.check_float32_rows(X, Kernel(MACHINE_KERNELS[name], 0.2, 0.5, 2))
    assert near.all()
    block, sums, c = np.empty((90, 20), np.float32), np.zeros(90), rng.normal(size=20)
    tiles.write_kernel_block(of, of.take_rows(np.arange(20)), block)
    np.testing.assert_allclose(block, K[:, :20], atol=1e-5)
    tiles.add_kernel_products(of, of.take_rows(np.arange(20)), c, sums)
    np.testing.assert_allclose(sums, K[:, :20] @ c, atol=1e-4)


def test_rows_far_from_the_mean_are_marked():
    X = np.random.default_rng(0).normal(size=(40, 3))
    X[7] += 30.0
    assert np.flatnonzero(~tiles.check_float32_rows(X, kernel(1.0)).is_near).tolist() == [7]
    assert tiles.check_float32_rows(X, kernel(1e4)) is None
    assert tiles.check_float32_rows(X, Kernel(LINEAR, 1.0, 0.0, 3)).is_near.all()


def test_small_integers_are_exact():
    rng = np.random.default_rng(0)
    X = sparse.csr_array(np.where(rng.random((50, 60)) < 0.2, rng.integers(1, 9, (50, 60)), 0).astype(float))
    of, near, is_exact = tiles.check_float32_rows(X, kernel(3.0))
    assert near.all()
    assert is_exact
    block = np.empty((50, 50), np.float32)
    tiles.write_kernel_block(of, of, block)
    np.testing.assert_allclose(block, naive_batch.kernel_matrix(X.toarray(), X.toarray(), gamma=3.0), rtol=3e-6, atol=1e-30)
    assert (
        not tiles.check_float32_rows(X + 0.5 * (X > 0), kernel(3.0))
        or not tiles.check_float32_rows(X + 0.5 * (X > 0), kernel(3.0)).is_near.all()
    )


def test_a_steep_kernel_of_two_values_far_apart():
    X = np.repeat(np.where(np.random.default_rng(0).random((20, 3)) < 0.5, 1e6, -1e6), 2, axis=0)
    of, near, _ = tiles.check_float32_rows(*tiles.convert_to_indicators(X, kernel(1e37)))
    assert near.all()
    block = np.empty((40, 40), np.float32)
    tiles.write_kernel_block(of, of, block)
    np.testing.assert_allclose(block, naive_batch.kernel_matrix(X, X, gamma=1e37), atol=1e-30)


def test_features_that_cannot_become_indicators():
    X = np.where(np.random.default_rng(0).random((200, 3)) < 0.5, 1.0, 0.0)
    changed = X.copy()
    changed[150, 1] = 0.5
    for rows, k in (
        (np.ones((5, 2)), kernel(1.0)),
        (X * [1.0, 2.0, 1.0], kernel(1.0)),
        (changed, kernel(1.0)),
        (X, Kernel(LINEAR, 1.0, 0.0, 3)),
    ):
        assert tiles.convert_to_indicators(rows, k)[0] is rows


def test_powers_of_two():
    x = np.concatenate([-np.logspace(-6, np.log10(126.0), 3000), [0.0, 1e-6]]).astype(np.float32)
    powers = np.array([exp2(value) for value in x], np.float64)
    np.testing.assert_allclose(powers, np.exp2(x.astype(np.float64)), rtol=3e-7)
    assert exp2(np.float32(-1e30)) == np.float32(2.0**-126)
