"""Blocks of many variables before single steps, and rows that leave the working set and return."""

import numpy as np
import pytest
from sklearn.svm import SVC, SVR

import naive_batch
from failing import Failing, interrupts
from streamsvm.batch import CSMOClassifier, CSMORegressor
from streamsvm.batch.csmo import solver, state
from streamsvm.batch.csmo.state import make_problem
from streamsvm.batch.problem import RowGroups
from streamsvm.core.kernels import RBF, Kernel

N = 150


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in (("_MIN_ROWS_FOR_BLOCKS", 40), ("_BLOCK_SIZE", 24), ("_MAX_NEW_VARIABLES", 12)):
        monkeypatch.setattr(solver, name, value)


def rows(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3))
    X[:4] += [[9.0, 0.0, 0.0], [9.1, 0.0, 0.0], [-12.0, 5.0, 0.0], [9.0, 0.3, 0.0]]  # far from the others
    y = np.where(rng.random(N) < 0.1, -1.0, 1.0) * np.sin(2.0 * X[:, 0] + X[:, 1])
    return X, y


def state_of(X, positive, C=3.0):
    groups = RowGroups(X.copy(), np.arange(len(X)))
    problem = make_problem(groups, groups.compute_bounds(np.full(len(X), C), positive), Kernel(RBF, 0.5, 0.0, 3), None)
    return state.SolverState(problem, np.zeros(len(problem.lower)), solver.allocate_buffer(10.0, len(X))), groups


CASES = [(0.3, False), (0.3, True), (3.0, False), (3.0, True), pytest.param(100.0, False, marks=pytest.mark.once), (100.0, True)]


@pytest.mark.once
@pytest.mark.parametrize(("C", "shrinking"), CASES)
def test_solutions_match_libsvm(C, shrinking):
    X, y = rows()
    for ours, theirs, target in ((CSMOClassifier, SVC, y > 0.0), (CSMORegressor, SVR, y)):
        model = ours(C=C, gamma=0.5, tol=1e-4, shrinking=shrinking).fit(X, target)
        peer = theirs(C=C, gamma=0.5, tol=1e-4).fit(X, target)
        assert model.gap_ <= 1e-4
        np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=2e-3)


@pytest.mark.once
@pytest.mark.parametrize("seed", range(4))
def test_blocks_keep_gradient_and_sum_consistent(seed):
    X, y = rows(seed)
    of, _ = state_of(X, y > 0.0)
    solver.solve_blocks(of, solver.SolverOptions(1e-3, True, True, 10**6, False), 1e-3)
    assert of.n_iter > 0
    before = of.working.b.copy()
    of.restore_rows()
    b, p = of.working.b, of.problem
    assert len(b) == N
    assert before.any()
    assert abs(b.sum()) < 1e-9
    assert ((p.lower <= b) & (b <= p.upper)).all()
    K = naive_batch.kernel_matrix(X, X, gamma=0.5)
    order = p.rows.X + 0.5 * (X.min(axis=0) + X.max(axis=0))
    np.testing.assert_allclose(order, X[[np.abs(X - row).sum(axis=1).argmin() for row in order]], atol=1e-9)
    which = np.array([np.abs(X - row).sum(axis=1).argmin() for row in order])
    np.testing.assert_allclose(of.working.gradient, (K[np.ix_(which, which)] @ b) - p.targets, atol=1e-4)


def test_each_block_lowers_the_objective():
    X, y = rows()
    of, _ = state_of(X, y > 0.0, 1000.0)
    objectives, add = [0.0], of.add_change

    def noted(change, columns, which, gradient):
        add(change, columns, which, gradient)
        a = of.working
        b = a.b.copy()
        b[columns] += change
        objectives.append(0.5 * b @ gradient - np.abs(b).sum())

    of.add_change = noted
    solver.solve_blocks(of, solver.SolverOptions(1e-3, True, False, 10**6, False), 1e-3)
    assert len(objectives) > 3
    assert (np.diff(objectives) < 0.0).all()


def test_a_block_has_free_variables_and_spread_violators():
    rng = np.random.default_rng(0)
    n, largest = 2000, 200
    ascents, descents = rng.normal(size=n), np.full(n, -np.inf)
    free = np.sort(rng.choice(n, 30, replace=False))
    ascents[free] = descents[free] = 0.0
    middle = solver._estimate_middle_slope(ascents, descents, free)
    assert middle == 0.0 or ascents.min() < middle < 0.0
    seen = np.zeros(n, bool)
    for number in range(400):
        which = solver._choose_block(ascents, descents, np.arange(5), largest, number)
        assert (np.diff(which) > 0).all()
        assert set(free) | {ascents.argmin(), descents.argmax()} <= set(which.tolist())
        assert len(which) <= 30 + solver._MAX_NEW_VARIABLES + 7
        seen[which] = True
    violators = middle - ascents > solver._VIOLATION_SHARE * (middle - ascents.min())
    assert seen[violators].all()  # in the end, each of them
    assert not seen[~violators & ~np.isfinite(descents)][5:].any()
    filled = solver._choose_block(ascents, descents, np.arange(500), largest, 0)
    assert solver._BLOCK_SIZE <= len(filled) <= largest


@pytest.mark.parametrize("largest", [2, 3, 5])
def test_a_small_block_respects_its_limit(largest):
    for seed in range(20):
        ascents, descents = np.random.default_rng(seed).normal(size=(2, 6))
        assert 2 <= len(solver._choose_block(ascents, descents, np.arange(6), largest, seed)) <= largest


def test_a_block_takes_a_part_of_very_many_free_variables():
    ascents = np.random.default_rng(0).normal(size=1000)
    seen = np.zeros(1000, bool)
    for number in range(200):
        which = solver._choose_block(ascents, ascents.copy(), np.arange(1000), 50, number)
        assert len(which) <= 50
        assert {ascents.argmin(), ascents.argmax()} <= set(which.tolist())
        seen[which] = True
    assert seen.all()


@pytest.mark.once
@pytest.mark.parametrize("size", [1e-9, 0.001, 0.01])
def test_more_free_variables_than_fit_into_a_block(size):
    X, _ = rows()
    target = np.sin(X).sum(axis=1)
    model = CSMORegressor(C=100.0, gamma=1.0, epsilon=1e-3, tol=1e-4, cache_size=size).fit(X, target)
    peer = SVR(C=100.0, gamma=1.0, epsilon=1e-3, tol=1e-5).fit(X, target)
    assert len(model.support_) > 60
    assert model.gap_ <= 1e-4
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-3)


def test_shrinking_compacts_the_kernel_matrix():
    X, y = rows()
    of, _ = state_of(X, y > 0.0)
    full_matrix = of.fill_matrix().copy()
    keep = np.arange(0, N, 3)
    slopes = np.where(np.isin(np.arange(N), keep), 0.0, np.nan)
    of.compute_slopes = lambda: (np.where(np.isnan(slopes), 1.0, 0.0), np.where(np.isnan(slopes), -1.0, 0.0), 1.0)
    of.shrink_rows(0.9)
    assert np.array_equal(of.values, full_matrix[np.ix_(keep, keep)])
    assert of.fill_matrix() is of.values


def test_a_block_fits_into_the_buffer():
    X, y = rows()
    of, _ = state_of(X, y > 0.0)
    of.buffer = np.empty(60 * 60, np.float32)
    sizes = []
    write_matrix = of.write_matrix
    of.write_matrix = lambda variables, out: (sizes.append(len(variables)), write_matrix(variables, out))
    solver.solve_blocks(of, solver.SolverOptions(1e-6, True, False, 10**6, False), 1e-6)
    assert 0 < max(sizes) <= 60


def test_an_interrupt_keeps_the_previous_block(monkeypatch):
    X, y = rows()
    of, _ = state_of(X, y > 0.0)
    add = Failing(state.add_kernel_products, 3)
    monkeypatch.setattr(state, "add_kernel_products", add)
    interrupts(solver.solve_blocks, of, solver.SolverOptions(1e-6, True, False, 10**6, False), 9e-7)
    exact = of.compute_exact_gradient(np.arange(N))
    np.testing.assert_allclose(of.working.gradient, exact, atol=1e-4)
    done = of.n_iter
    assert done > 0
    add.calls = 0
    model = CSMOClassifier(C=3.0, gamma=0.5, tol=1e-6, shrinking=False)
    interrupts(model.fit, X, y > 0.0)
    assert model.n_iter_.tolist() == [done]
    assert model.gap_ > 1e-3
    np.testing.assert_allclose(np.abs(model.dual_coef_).sum(), np.abs(of.working.b).sum(), rtol=1e-6)  # float32 kernel values


def test_restored_rows_catch_up_with_changes():
    X, y = rows()
    of, _ = state_of(X, y > 0.0)
    rng = np.random.default_rng(0)
    for part in (120, 80, 50):
        a = of.working
        keep = np.sort(rng.choice(len(of.which), part, replace=False))
        rises, falls = np.ones(len(of.which)), -np.ones(len(of.which))
        rises[keep] = falls[keep] = 0.0
        of.compute_slopes = lambda rises=rises, falls=falls: (rises, falls, 1.0)
        of.shrink_rows(0.9)
        assert len(of.which) == part
        a = of.working
        change = 0.1 * rng.normal(size=part)
        gradient = a.gradient.copy()
        of.add_change(change, of.which, of.which, gradient)
        of.working = a._replace(b=a.b + change, gradient=gradient)
    del of.compute_slopes
    of.restore_rows()
    np.testing.assert_allclose(of.working.gradient, of.compute_exact_gradient(np.arange(N)), atol=1e-5)
