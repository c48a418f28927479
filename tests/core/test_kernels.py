"""Kernel rows and exponentials against float64 references."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.core import kernels


@pytest.mark.parametrize(("exponentials", "kind", "error"), [("exp2f", np.float32, 2e-7), ("exp2d", np.float64, 2e-15)])
def test_exponentials_of_non_positive_numbers(exponentials, kind, error):
    least = np.finfo(kind).minexp
    values = np.append(np.linspace(least, 0.0, 3001), [-1e-10, -1e30]).astype(kind)
    out = np.empty_like(values)
    getattr(kernels, exponentials)(values, kind(1.0), len(values), out)
    assert np.abs(out[:-1] / np.exp2(values[:-1].astype(float)) - 1.0).max() < error
    assert out[3000] == pytest.approx(1.0, abs=error)
    assert out[-1] == (0.0 if kind is np.float32 else pytest.approx(2.0**least, rel=error, abs=0.0))


def kernel_row(kernel, vectors, row, gamma=0.5, coef0=1.0, degree=3):
    vectors, row = np.asarray(vectors, np.float32), np.asarray(row, np.float32)
    n, used = vectors.shape
    norms = (vectors.astype(float) ** 2).sum(axis=1)
    active = np.flatnonzero(row)
    distances, out = np.zeros(n, np.float32), np.zeros(n, np.float32)
    kernels.compute_kernel_row(
        kernel, gamma, coef0, degree, np.ascontiguousarray(vectors.T), norms.astype(np.float32), float(norms.max()), row,
        float((row.astype(float) ** 2).sum()), np.append(active, 0), len(active), used, n, distances, out,
    )  # fmt: skip
    return out


@given(st.integers(1, 40), st.integers(1, 30), st.floats(0.0, 1.0), st.sampled_from([0.0, 1000.0]), st.integers(0, 2**32 - 1))
def test_kernel_rows_equal_float64_reference(n, features, density, shift, seed):
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(n, features)) * (rng.random((n, features)) < density) + shift).astype(np.float32)
    row = (rng.normal(size=features) * (rng.random(features) < density) + shift).astype(np.float32)
    exact_v, exact_x = vectors.astype(float), row.astype(float)
    expected = np.exp(-0.5 * ((exact_v - exact_x) ** 2).sum(axis=1))
    np.testing.assert_allclose(kernel_row(kernels.RBF, vectors, row), expected, rtol=1e-4, atol=1e-6)
    if shift == 0.0:
        product = exact_v @ exact_x
        np.testing.assert_allclose(kernel_row(kernels.LINEAR, vectors, row), product, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(kernel_row(kernels.POLY, vectors, row), (0.5 * product + 1.0) ** 3, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("features", [4, 60])
def test_distances_between_long_vectors_do_not_cancel(features):
    # Norms for which the expansion of distances would be inexact.
    vectors = np.zeros((20, features), np.float32)
    vectors[:, 0] = 3000.0 + np.arange(20) / 64
    row = np.zeros(features, np.float32)
    row[0] = 3000.0
    expected = np.exp(-0.5 * (np.arange(20) / 64) ** 2)
    np.testing.assert_allclose(kernel_row(kernels.RBF, vectors, row), expected, rtol=1e-5)


def test_self_kernel():
    assert kernels.compute_self_kernel(kernels.RBF, 0.5, 1.0, 3, 7.0) == 1.0
    assert kernels.compute_self_kernel(kernels.LINEAR, 0.5, 1.0, 3, 7.0) == 7.0
    assert kernels.compute_self_kernel(kernels.POLY, 0.5, 1.0, 3, 7.0) == 4.5**3
