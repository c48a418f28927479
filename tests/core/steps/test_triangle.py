"""Packed symmetric and triangular matrices against numpy."""

import numpy as np
import pytest

from naive_rls import packed, unpacked
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.steps.triangle import add_two_rows, factor_two_rows, multiply_row, multiply_symmetric, solve_factored

# Compiling these functions takes seconds: the quick tests cover them by kernel recursive least squares.
pytestmark = [] if INTERPRETED else pytest.mark.thorough
SIZES = [1, 2, 3, 4, 5, 17, 40]
ROOM = 3  # allocated rows that are unused


def positive_definite(n, seed=0):
    A = np.random.default_rng(seed).normal(size=(2 * n, n))
    return A.T @ A / n + 0.1 * np.eye(n)


def factor(matrix, stride, least=1e-6):
    n = len(matrix)
    U = packed(matrix, stride, np.float32)
    scratch = np.empty(stride, np.int64), np.empty(stride, np.float32), np.empty(stride, np.float32)
    sums = np.full((2, stride), np.nan, np.float32)
    exists = all(factor_two_rows(U, stride, j, n, np.float32(least), *scratch, sums) for j in range(0, n, 2))
    return U, exists


@pytest.mark.parametrize("n", SIZES)
def test_packed_storage_keeps_every_element(n):
    matrix, stride = positive_definite(n), n + ROOM
    triangle = packed(matrix, stride)
    assert np.count_nonzero(triangle) == n * (n + 1) // 2
    np.testing.assert_array_equal(unpacked(triangle, stride, n), matrix)


@pytest.mark.parametrize("n", SIZES)
def test_cholesky_factors_and_solutions(n):
    matrix, stride = positive_definite(n), n + ROOM
    U, exists = factor(matrix, stride)
    assert exists
    upper = np.triu(unpacked(U, stride, n))
    np.testing.assert_allclose(upper, np.linalg.cholesky(matrix).T, rtol=1e-4, atol=1e-5)
    right = np.random.default_rng(1).normal(size=n)
    x = np.append(right, np.full(ROOM, 7.0)).astype(np.float32)
    solve_factored(U, stride, x, n)
    np.testing.assert_allclose(x[:n], np.linalg.solve(matrix, right), rtol=1e-3, atol=1e-4)
    assert (x[n:] == 7.0).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bad", [0, -1])
def test_indefinite_matrix_has_no_factor(n, bad):
    matrix = positive_definite(n)
    matrix[bad, bad] = -1.0
    assert not factor(matrix, n + ROOM)[1]


def test_matrix_with_nan_has_no_factor():
    matrix = positive_definite(5)
    matrix[1, 3] = np.nan
    assert not factor(matrix, 5)[1]


@pytest.mark.parametrize("n", SIZES)
def test_products_with_symmetric_matrices(n):
    matrix, stride = positive_definite(n), n + ROOM
    triangle = packed(matrix, stride)
    x, out = np.random.default_rng(2).normal(size=stride), np.full(stride, 7.0)
    multiply_symmetric(triangle, stride, x, n, out)
    np.testing.assert_allclose(out[:n], matrix @ x[:n], rtol=1e-12)
    assert (out[n:] == 7.0).all()
    out[:] = 0.0
    multiply_row(matrix[n // 2, n // 2 :].copy(), x, n // 2, n, out)
    part = np.zeros((n, n))
    part[n // 2, n // 2 :] = part[n // 2 :, n // 2] = matrix[n // 2, n // 2 :]
    np.testing.assert_allclose(out[:n], part @ x[:n], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9])
def test_weighted_sums_of_rows(count):
    rng = np.random.default_rng(3)
    values = rng.normal(size=400).astype(np.float32)
    starts = rng.integers(0, 380, size=max(count, 1))
    a, b = rng.normal(size=(2, max(count, 1))).astype(np.float32)
    out = np.ones((2, 20), np.float32)
    add_two_rows(values, starts, a, b, count, 2, 17, out)
    expected = np.ones((2, 20))
    for k in range(count):
        expected[:, 2:17] += np.outer([a[k], b[k]], values[starts[k] + 2 : starts[k] + 17])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
