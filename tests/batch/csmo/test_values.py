"""Kernel values in float64, and their sums, against the definition."""

import numpy as np
import pytest
from scipy import sparse

import naive_batch
from streamsvm.batch.csmo import values
from streamsvm.core.kernels import MACHINE_KERNELS, Kernel
from streamsvm.core.threads import Workers


def array(X):
    return X.toarray() if sparse.issparse(X) else X


def rare(rng, n, d):
    return sparse.csr_array(np.where(rng.random((n, d)) < 0.2, rng.normal(size=(n, d)), 0.0))


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "gamma"), [("rbf", 0.1), ("rbf", 1e6), ("rbf", 1e30), *((n, 0.1) for n in ("linear", "poly", "sigmoid"))]
)
@pytest.mark.parametrize("tile", [30, 256])
def test_values(name, gamma, tile, monkeypatch):
    monkeypatch.setattr(values, "_DENSE_TILE_SIZE", tile)
    monkeypatch.setattr(values, "_SPARSE_TILE_SHAPE", (tile, 2 * tile))
    monkeypatch.setattr(values, "_MAX_VALUES_AT_ONCE", tile)
    rng, kernel = np.random.default_rng(0), Kernel(MACHINE_KERNELS[name], gamma, 0.5 if name in ("poly", "sigmoid") else 0.0, 3)
    X, Z = rng.normal(size=(70, 6)), rng.normal(size=(40, 6))
    X[3] = 1e4  # far from all others
    S, T = rare(rng, 70, 40), rare(rng, 40, 40)
    X, Z, S, T, dense_S, dense_T = (values.NormedRows(rows) for rows in (X, Z, S, T, array(S), array(T)))
    for A, B in ((X, Z), (X, X), (Z, X), (S, T), (S, S), (dense_S, T), (S, dense_T), (X[:1], X[:0])):
        expected = naive_batch.kernel_matrix(array(A.X), array(B.X), name, gamma, kernel.coef0)
        computed = values.compute_kernel_values(A, B, kernel)
        np.testing.assert_allclose(computed, expected, rtol=1e-9, atol=1e-13)
        if A is B:
            np.testing.assert_array_equal(computed, computed.T)
            np.testing.assert_allclose(values.compute_self_kernels(A, kernel), np.diag(expected), rtol=1e-9)
        c, size = rng.normal(size=(len(B), 2)), max(np.abs(expected).max(initial=1.0), 1.0)
        for threads in (1, 2):
            written, sums = np.empty(expected.shape, np.float32), np.ones((len(A), 2))
            with Workers(threads) as workers:
                values.write_kernel_values(A, B, kernel, written, workers.for_each)
                values.add_kernel_sums(A, B, c, kernel, sums, workers.for_each)
            np.testing.assert_allclose(written, expected, rtol=1e-5, atol=1e-30)
            np.testing.assert_allclose(sums, 1.0 + expected @ c, atol=1e-9 * size)
