"""Kernel values by tiles of matrix products, against the definition."""

import numpy as np
import pytest

import naive_batch
from streamsvm.batch.csmo import tiles
from streamsvm.core.threads import Workers
from streamsvm.core.kernels import LINEAR, RBF, Kernel, exp2


def kernel(gamma):
    return Kernel(RBF, gamma, 0.0, 3)


@pytest.mark.once
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (700, 300, 5), (513, 257, 12), (30, 900, 3)])
def test_products_and_matrices(n, m, d):
    rng = np.random.default_rng(n)
    X, c = rng.normal(size=(n + m, d)), 10.0 * rng.normal(size=m)
    K = naive_batch.kernel_matrix(X, X, gamma=1.0 / d)
    of, near = tiles.factors(np.ascontiguousarray(X.T) + 1e3, kernel(1.0 / d))
    assert near.all()
    out = np.full(n, 3.0)
    tiles.add_products(of, np.arange(n), c, n + np.arange(m), out, Workers().each)
    np.testing.assert_allclose(out, 3.0 + K[:n, n:] @ c, atol=1e-6 * np.abs(c).sum())
    some = np.array([n + m - 1, 0])
    found = np.empty((2, 2), np.float32)
    tiles.gram(of, some, found)
    np.testing.assert_allclose(found, K[np.ix_(some, some)], atol=1e-6)


def test_rows_far_from_the_mean_are_told():
    X = np.random.default_rng(0).normal(size=(3, 40))
    X[:, 7] += 30.0
    assert np.flatnonzero(~tiles.factors(X, kernel(1.0))[1]).tolist() == [7]
    assert tiles.factors(X, kernel(1e4)) is None
    assert tiles.factors(X, Kernel(LINEAR, 1.0, 0.0, 3)) is None


def test_powers_of_two():
    x = np.concatenate([-np.logspace(-6, np.log10(126.0), 3000), [0.0, 1e-6]]).astype(np.float32)
    found = np.array([exp2(value) for value in x], np.float64)
    np.testing.assert_allclose(found, np.exp2(x.astype(np.float64)), rtol=3e-7)
    assert exp2(np.float32(-1e30)) == np.float32(2.0**-126)


def test_exact_products_are_exact():
    rng = np.random.default_rng(0)
    X, c = rng.normal(size=(900, 4)), 10.0 * rng.normal(size=700)
    X[5] += 300.0
    K = naive_batch.kernel_matrix(X, X, gamma=0.3)
    which, columns, out = np.array([7, 5, 899]), np.arange(700), np.ones(3)
    tiles.add_exact_products(np.ascontiguousarray(X.T), kernel(0.3), which, c, columns, out, Workers(2).each)
    np.testing.assert_allclose(out, 1.0 + K[np.ix_(which, columns)] @ c, atol=1e-8)
