"""Compiled steps against a slow, obvious reference implementation, in both precisions."""

import numpy as np
import pytest

from streamsvm.batch.csmo.steps import CONVERGED, RUNNING, Scratch, WorkingSet, _move_along_direction, run_steps, write_slopes

N = 60


def problem(seed, C, regression):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3))
    K = np.exp(-0.3 * ((X[:, None] - X) ** 2).sum(axis=2))
    f = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=N)
    if regression:
        return K, f, np.full(N, -C), np.full(N, C), np.zeros(N), 0.1
    lower, upper = np.where(f > 0.0, 0.0, -C), np.where(f > 0.0, C, 0.0)
    return K, np.zeros(N), lower, upper, lower + upper, 1.0


def working_set(K, targets, lower, upper, kink, b):
    return WorkingSet(b.copy(), K @ b - targets, lower, upper, kink, K.diagonal().astype(np.float32))


def columns_of(K):
    return K.astype(np.float32).ravel()


def twin(K, targets, lower, upper, kink, epsilon, b, count):
    """Conjugate SMO by its definition: one step after the other on float64 vectors of all rows."""
    b, direction, follow = b.copy(), np.zeros(N), False
    for _ in range(count):
        gradient = K @ b - targets
        rise = np.where(b >= upper, np.inf, np.where(b >= kink, epsilon, -epsilon))
        fall = np.where(b <= lower, -np.inf, np.where(b > kink, epsilon, -epsilon))
        ascent, descent = gradient + rise, gradient + fall
        i = ascent.argmin()
        image, curvature = K @ direction, direction @ K @ direction
        inverse = 1.0 / curvature if follow else 0.0
        gain = np.maximum(descent - ascent[i], 0.0)
        of_pairs = K[i, i] + K.diagonal() - 2.0 * K[i] - inverse * (image[i] - image) ** 2
        gains = gain**2 / np.maximum(of_pairs, K[i, i] * 2.0**-22)
        gains[i] = -1.0
        j = gains.argmax()
        beta = -(image[i] - image[j]) * inverse
        direction = beta * direction
        direction[i] += 1.0
        direction[j] -= 1.0
        step, clipped = (descent[j] - ascent[i]) / (direction @ K @ direction), False
        for k in np.flatnonzero(direction):
            d = direction[k]
            target = (kink[k] if b[k] < kink[k] else upper[k]) if d > 0.0 else (kink[k] if b[k] > kink[k] else lower[k])
            if (target - b[k]) / d <= step:
                step, clipped = (target - b[k]) / d, True
        b = b + step * direction
        for side in (lower, upper, kink):
            b = np.where(np.abs(b - side) < 1e-12, side, b)
        follow = not clipped
    return b


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_steps_match_the_reference(seed, regression, dtype):
    K, targets, lower, upper, kink, epsilon = problem(seed, 2.0, regression)
    for count in (1, 2, 5, 12):
        a = working_set(K, targets, lower, upper, kink, np.zeros(N))
        result = run_steps(a, Scratch.allocate(N, dtype), columns_of(K), epsilon, 1e-6, True, count)
        assert result == (RUNNING, count)
        expected = twin(K, targets, lower, upper, kink, epsilon, np.zeros(N), count)
        np.testing.assert_allclose(a.b, expected, atol=2e-5)
        np.testing.assert_allclose(a.gradient, K @ a.b - targets, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("regression", [False, True])
def test_steps_end_at_the_optimum(regression, conjugate, dtype):
    K, targets, lower, upper, kink, epsilon = problem(0, 10.0, regression)
    a = working_set(K, targets, lower, upper, kink, np.zeros(N))
    status, done = run_steps(a, Scratch.allocate(N, dtype), columns_of(K), epsilon, 1e-4, conjugate, 10**6)
    assert status == CONVERGED
    assert done > 0
    assert abs(a.b.sum()) < 1e-11
    assert ((lower <= a.b) & (a.b <= upper)).all()
    exact = a._replace(gradient=K @ a.b - targets)
    ascents, descents = np.empty(N), np.empty(N)
    least, most = write_slopes(exact, epsilon, 0.0, ascents, descents)
    assert (least, most) == (ascents.min(), descents.max())
    assert most - least < 2e-4
    assert run_steps(a, Scratch.allocate(N, dtype), columns_of(K), epsilon, 1.0, conjugate, 10) == (CONVERGED, 0)


def test_equal_rows_form_no_pair():
    K = np.ones((N, N))
    lower, upper = np.where(np.arange(N) % 2, 0.0, -1.0), np.where(np.arange(N) % 2, 1.0, 0.0)
    a = working_set(K, np.zeros(N), lower, upper, lower + upper, np.zeros(N))
    status, done = run_steps(a, Scratch.allocate(N, np.float32), columns_of(K), 1.0, 1e-3, True, 10**4)
    assert status == CONVERGED
    assert done <= N  # each pair goes to its bounds at once
    assert np.array_equal(np.abs(a.b), np.ones(N))


def test_a_step_rounded_onto_a_bound_stops_there():
    room = 2.0**-20
    a = WorkingSet(*np.array([[1.0 - room], [0.0], [0.0], [1.0], [0.0]]), np.ones(1, np.float32))
    s = Scratch.allocate(1, np.float64)
    s.ascent[:], s.descent[:], s.direction[:], s.support[:] = 1.0, 1.0, 1.0, 0
    assert _move_along_direction(a, s, 1, room * (1.0 - 1e-11), 1.0)
    assert (a.b[0], s.ascent[0], s.descent[0]) == (1.0, np.inf, 1.0)
