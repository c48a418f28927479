"""Reduced sets: the choice of vectors, coefficients against a reference implementation, gradients against differences."""

import itertools
import math

import numpy as np
import pytest
from scipy import sparse

from streamsvm.batch.reduced_set import ReducedSet, choose_vectors, interpolate_rows
from streamsvm.core.kernels import LINEAR, POLY, RBF, Kernel, compute_kernel_matrix

GAUSS = Kernel(RBF, 0.7, 0.0, 3)


def problem(kernel=GAUSS, n=60, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    targets = np.column_stack([np.sin(2.0 * X[:, 0]) * X[:, 1], X[:, 2] * X[:, 0], X[:, 1]])[:, :outputs]
    return ReducedSet(kernel, X, targets, rng.random(n) + 0.1), X[:8] + 0.1


def value(kernel, x, s):
    product = sum(a * b for a, b in zip(x, s, strict=True))
    if kernel.kind == RBF:
        return math.exp(-kernel.gamma * sum((a - b) ** 2 for a, b in zip(x, s, strict=True)))
    return product if kernel.kind == LINEAR else (kernel.gamma * product + kernel.coef0) ** kernel.degree


def error(reduced, vectors):
    errors = compute_kernel_matrix(*GAUSS, reduced.rows, vectors) @ reduced.solve_coefficients(vectors) - reduced.targets
    return float(reduced.weights @ np.square(errors).sum(axis=1))


@pytest.mark.parametrize("kernel", [GAUSS, Kernel(LINEAR, 1.0, 0.0, 1), Kernel(POLY, 0.5, 1.0, 2)], ids=["rbf", "linear", "poly"])
def test_coefficients_match_the_reference(kernel):
    reduced, vectors = problem(kernel)
    K = np.array([[value(kernel, x, s) for s in vectors] for x in reduced.rows])
    roots = np.sqrt(reduced.weights)[:, np.newaxis]
    ridge = 1e-7 * np.trace((roots * K).T @ (roots * K)) / len(vectors)
    # the ridge as rows of its own: no normal equations
    A = np.vstack([roots * K, math.sqrt(ridge) * np.eye(len(vectors))])
    b = np.vstack([roots * reduced.targets, np.zeros((len(vectors), 2))])
    expected = np.linalg.lstsq(A, b, rcond=None)[0]
    coefficients = reduced.solve_coefficients(vectors)
    np.testing.assert_allclose(K @ coefficients, K @ expected, atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_step_solves_the_damped_reference_equations(outputs, monkeypatch):
    monkeypatch.setattr("streamsvm.batch.reduced_set._MAX_CG_STEPS", 60)
    monkeypatch.setattr("streamsvm.batch.reduced_set._CG_TOLERANCE", 1e-20)
    reduced, vectors = problem(outputs=outputs)
    fit = reduced._fit_coefficients(vectors, 1e-9, np.dtype(np.float64))
    step, promised = reduced._compute_step(fit, 0.5)
    roots, h = np.sqrt(reduced.weights)[:, np.newaxis], 1e-6

    def errors(Z):
        """Return the errors with the best coefficients for the first vectors."""
        return (roots * (compute_kernel_matrix(*GAUSS, reduced.rows, Z) @ fit.coefficients - reduced.targets)).T.ravel()

    moves = h * np.eye(vectors.size).reshape(-1, *vectors.shape)
    J = np.column_stack([(errors(vectors + move) - errors(vectors - move)) / (2.0 * h) for move in moves])
    Q, _ = np.linalg.qr(np.kron(np.eye(outputs), roots * compute_kernel_matrix(*GAUSS, reduced.rows, vectors)))
    gradient, P = J.T @ errors(vectors), J - Q @ (Q.T @ J)  # without what coefficients can change
    curvature = np.square(J).sum(axis=0).reshape(vectors.shape).mean(axis=1, keepdims=True)
    D = 0.5 * np.diag(np.broadcast_to(curvature + 0.03 * curvature.mean(), vectors.shape).ravel())
    expected = np.linalg.solve(P.T @ P + D, -gradient)
    np.testing.assert_allclose(step.ravel(), expected, rtol=1e-3, atol=1e-5)
    assert promised == pytest.approx(-gradient @ expected - 0.5 * expected @ P.T @ P @ expected, rel=1e-3)


@pytest.mark.once
def test_uncached_kernel_values_give_the_same_result(monkeypatch):
    reduced, vectors = problem(n=1500)
    cached = reduced.move_vectors(vectors, 3)
    monkeypatch.setattr("streamsvm.batch.reduced_set._MAX_CACHED_VALUES", 0)
    reduced._cached_rows.clear()
    np.testing.assert_allclose(reduced.move_vectors(vectors, 3), cached, rtol=1e-12)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_moved_vectors_are_better(far):
    reduced, vectors = problem(n=300)
    reduced.rows = reduced.rows + far  # where float32 has not the distances that it has about 0
    vectors = vectors + far
    before = error(reduced, vectors)
    after = [error(reduced, reduced.move_vectors(vectors, passes)) for passes in (3, 30)]
    assert after[1] < after[0] < before
    assert after[1] < 0.3 * before


def test_moving_stops_when_values_are_good_enough():
    reduced, vectors = problem()
    seen = []
    moved = reduced.move_vectors(vectors, 40, lambda values: seen.append(values) or len(seen) == 2)
    assert len(seen) == 2
    coefficients = reduced._fit_coefficients(moved, 1e-5, np.dtype(np.float32)).coefficients
    np.testing.assert_allclose(seen[1], compute_kernel_matrix(*GAUSS, reduced.rows, moved) @ coefficients, atol=1e-4)
    assert np.abs(moved - vectors).max() > 1e-3


def test_vectors_stay_where_they_cannot_move(monkeypatch):
    reduced, vectors = problem()
    assert reduced.move_vectors(vectors, 0) is vectors
    linear, _ = problem(Kernel(LINEAR, 1.0, 0.0, 1))
    assert linear.move_vectors(vectors, 5) is vectors
    perfect = ReducedSet(GAUSS, vectors, np.zeros((8, 1)), np.ones(8))
    assert perfect.move_vectors(vectors, 5) is vectors
    monkeypatch.setattr("streamsvm.batch.reduced_set._MAX_MOVED_VALUES", 23)
    assert reduced.move_vectors(vectors, 5) is vectors


def test_vectors_far_from_all_rows_stay_finite():
    for gamma, size in itertools.product((1e-30, 50.0, 1e37), (1, 8)):
        reduced, vectors = problem(Kernel(RBF, gamma, 0.0, 3), outputs=3)
        moved = reduced.move_vectors(vectors[:size] + 10.0, 40)
        followed = reduced.match_largest_output(moved, reduced.solve_coefficients(moved), np.zeros(3), 10)
        assert all(np.isfinite(numbers).all() for numbers in (moved, *followed))


@pytest.mark.once
@pytest.mark.parametrize("kernel", [GAUSS, Kernel(LINEAR, 1.0, 0.0, 1)], ids=["moves", "stays"])
def test_largest_outputs_match_votes(kernel):
    reduced, vectors = problem(kernel, n=400, outputs=3)
    labels = reduced.targets.argmax(axis=1)
    reduced.targets = np.eye(3)[labels]
    coefficients, intercept = reduced.solve_coefficients(vectors), np.array([0.1, 0.0, -0.1])

    def right(vectors, coefficients):
        K = np.array([[value(kernel, x, s) for s in vectors] for x in reduced.rows])
        return float(((K @ coefficients + intercept).argmax(axis=1) == labels).mean())

    moved, followed = reduced.match_largest_output(vectors, coefficients, intercept, 40)
    assert (moved is vectors) == (kernel.kind == LINEAR)
    assert right(moved, followed) > right(vectors, coefficients) + 0.02
    assert reduced.match_largest_output(vectors, coefficients, intercept, 0) == (vectors, coefficients)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_the_worst_rows_have_large_errors(form):
    reduced, vectors = problem(n=200)
    reduced.rows[150:] += 20.0  # out of reach of the vectors
    reduced.targets[:150] = compute_kernel_matrix(*GAUSS, reduced.rows[:150], vectors) @ np.ones((8, 2))
    np.testing.assert_allclose(reduced.compute_values(vectors, np.ones((8, 2)))[:150], reduced.targets[:150], atol=1e-4)
    reduced.rows = form(reduced.rows)
    reduced.weights[190:] = 0.0
    worst_rows = reduced.find_worst_rows(vectors, 12, np.random.default_rng(0))
    assert worst_rows.shape == (12, 3)
    dense = reduced.rows.toarray() if sparse.issparse(reduced.rows) else reduced.rows
    numbers = [int(np.flatnonzero((dense == row).all(axis=1))[0]) for row in worst_rows]
    assert len(set(numbers)) == 12
    assert min(numbers) >= 150
    assert max(numbers) < 190


def test_chosen_vectors_are_far_from_each_other():
    rng = np.random.default_rng(0)
    clusters = np.repeat(10.0 * np.eye(4), 25, axis=0)
    S = clusters + 0.01 * rng.normal(size=clusters.shape)
    for vectors in (S, sparse.csr_array(S)):
        chosen = choose_vectors(GAUSS, vectors, np.ones(100), 4, np.random.default_rng(1))
        assert sorted(chosen // 25) == [0, 1, 2, 3]
    weights = np.where(np.arange(100) < 50, 1.0, 0.0)
    chosen = choose_vectors(GAUSS, S, weights, 80, rng)
    assert len(set(chosen.tolist())) == len(chosen) == 50
    assert chosen.max() < 50
    assert len(choose_vectors(GAUSS, np.ones((9, 2)), np.ones(9), 5, rng)) == 1  # equal rows
    assert len(choose_vectors(GAUSS, np.ones((0, 2)), np.ones(0), 5, rng)) == 0


def test_interpolated_rows_are_within_the_range_of_values():
    rng = np.random.default_rng(0)
    X = rng.integers(2, size=(200, 6)).astype(np.float32)
    rows = interpolate_rows(X, 1000, rng)
    assert rows.shape == (1000, 6)
    assert rows.dtype == np.float32
    assert (rows >= 0.0).all()
    assert (rows <= 1.0).all()
    assert 0.3 < np.isin(rows, (0.0, 1.0)).all(axis=1).mean() < 0.7
    np.testing.assert_array_equal(interpolate_rows(np.ones((1, 2)), 3, rng), np.ones((3, 2)))
