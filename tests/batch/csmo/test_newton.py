"""Newton steps match a slow reference implementation, and fits with and without them have the same solution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.linalg import cho_factor

import naive_batch
from problems import sine_classes, sine_curve
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor
from streamsvm.batch.csmo import newton, solver, state
from streamsvm.batch.csmo.state import make_problem
from streamsvm.batch.problem import RowGroups
from streamsvm.core.kernels import RBF, Kernel

pytestmark = pytest.mark.once

N = 200
KERNELS = [*naive_batch.KERNELS, {"kernel": "sigmoid", "gamma": 0.1, "coef0": 0.5}]


def twin(H, slopes, down, up):
    """The same path to the minimum: at each bound, the equations of the remaining variables are solved from scratch."""
    x, left = np.zeros(len(slopes)), np.ones(len(slopes), bool)
    while left.sum() > 1:
        m = int(left.sum())
        equations = np.ones((m + 1, m + 1))
        equations[:m, :m], equations[m, m] = H[np.ix_(left, left)], 0.0
        d = np.zeros(len(x))
        d[left] = np.linalg.solve(equations, np.append(-(slopes + H @ x)[left], 0.0))[:m]
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(d != 0.0, (np.where(d > 0.0, up, down) - x) / d, np.inf)
        if steps.min() >= 1.0:
            return x + d
        i = steps.argmin()
        x = x + steps[i] * d
        x[i] = up[i] if d[i] > 0.0 else down[i]
        left[i] = False
    return x


@given(st.integers(2, 12), st.floats(0.01, 3.0), st.integers(0, 2**32 - 1))
def test_newton_changes_match_the_reference(m, width, seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(m, m + 2))
    H, slopes = A @ A.T + 0.1 * np.eye(m), rng.normal(size=m)
    down, up = -width * rng.random(m), width * rng.random(m)
    down[rng.random(m) < 0.2] = 0.0  # at a bound
    room = newton._MovableVariables(np.arange(m), slopes, down, up)
    x = newton._minimise_model(cho_factor(H, lower=True), room)
    np.testing.assert_allclose(x, twin(H, slopes, down, up), atol=1e-7)
    assert ((x >= down - 1e-12) & (x <= up + 1e-12)).all()
    assert abs(x.sum()) < 1e-9
    assert 0.5 * x @ H @ x + slopes @ x <= 1e-12


def test_stops_are_bounded(monkeypatch):
    monkeypatch.setattr(newton, "_MAX_STOPS", 3)
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 40))
    room = newton._MovableVariables(np.arange(40), rng.normal(size=40), np.full(40, -0.01), np.full(40, 0.01))
    x = newton._minimise_model(cho_factor(A @ A.T + np.eye(40), lower=True), room)
    assert 1 <= (np.abs(x) == 0.01).sum() <= 4  # the last one ends the path


def test_ill_conditioned_equations_keep_the_sum():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 1))
    K = naive_batch.kernel_matrix(X, X, "rbf", 0.5) + 1e-10 * np.eye(150)
    room = newton._MovableVariables(np.arange(150), rng.normal(size=150), -1e6 * rng.random(150), 1e6 * rng.random(150))
    x = newton._minimise_model(cho_factor(K, lower=True), room)
    assert ((x == room.min_change) | (x == room.max_change)).sum() > 10
    assert abs(x.sum()) < 1e-12 * np.abs(x).sum()


def always(monkeypatch):
    """Let a Newton step follow each short series of other steps."""
    done = []

    def counted(*arguments, original=newton.run_newton_step, **more):
        done.append(original(*arguments, **more))
        return done[-1]

    for name, value in (("_MAX_GAP_FACTOR", 1e9), ("_PATIENCE", 0.0), ("_MEMORY_SHARE", 1e9)):
        monkeypatch.setattr(newton, name, value)
    monkeypatch.setattr(newton, "run_newton_step", counted)
    monkeypatch.setattr(solver, "MAX_UNINTERRUPTED_OPERATIONS", 1.0)  # 50 steps
    monkeypatch.setattr(solver, "_MAX_SMALL_ROWS", 0)
    return done


def objective(model, X, y, **kernel):
    K = naive_batch.kernel_matrix(X, X, **kernel)
    b = np.zeros(len(X))
    b[model.support_] = model._coefficients[0]
    assert y is None or abs(b.sum()) < 1e-9 * np.abs(b).sum()
    if isinstance(model, CSMORegressor):
        return naive_batch.regression_objective(K, y, model.epsilon, b)
    return 0.5 * b @ K @ b if y is None else naive_batch.classification_objective(K, y, b)


@pytest.mark.parametrize("C", [1.0, 1000.0])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel"])
@pytest.mark.parametrize("kind", [CSMOClassifier, CSMORegressor, CSMOOneClass])
def test_newton_steps_do_not_change_the_solution(kind, kernel, C, monkeypatch):
    X, y = sine_curve(N, 3, 0.2) if kind is CSMORegressor else sine_classes(N, 3, 0.5)
    y, parameters = (None, {}) if kind is CSMOOneClass else (y, {"C": C})
    plain = kind(**parameters, **kernel).fit(X, y)
    done = always(monkeypatch)
    model = kind(**parameters, **kernel).fit(X, y)
    assert model.gap_ <= 1e-3
    if kernel["kernel"] == "sigmoid":  # there are several minima
        return
    assert any(done) or kernel["kernel"] != "rbf"
    expected = objective(plain, X, y, **kernel)
    assert objective(model, X, y, **kernel) == pytest.approx(expected, rel=2e-3, abs=1e-6)  # of one class, linear, it is 0
    assert np.sum(model.n_iter_) <= np.sum(plain.n_iter_) + 50


@pytest.mark.parametrize("form", ["dense", "sparse", "bits", "given"])
def test_kernel_matrices_are_exact_for_all_forms_of_rows(form):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    if form == "sparse":
        X = np.where(rng.random((N, 300)) < 0.02, rng.normal(size=(N, 300)), 0.0)
    elif form == "bits":
        X = (rng.random((N, 70)) < 0.5).astype(float)
    expected = naive_batch.kernel_matrix(X, X, "rbf", 0.3)
    if form == "given":
        rows = state.PrecomputedRows.from_matrix(expected.copy())
    else:
        rows = sparse.csr_array(X) if form == "sparse" else X.copy()
    groups = RowGroups(rows, np.arange(N))
    problem = make_problem(groups, groups.compute_bounds(np.ones(N), np.arange(N) % 2 == 0), Kernel(RBF, 0.3, 0.0, 3), None)
    of = state.SolverState(problem, np.zeros(len(groups)), solver.allocate_buffer(10.0, N))
    variables = rng.permutation(len(groups))[:20]
    first = groups.row_of_group[variables] if form != "given" else variables
    np.testing.assert_allclose(newton.compute_kernel_matrix(of, variables), expected[np.ix_(first, first)], rtol=1e-12)


def test_variables_land_exactly_on_kinks_and_bounds(monkeypatch):
    # Equal rows of both classes are one variable, with a kink between its bounds.
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, size=(2 * N, 2)).astype(float)
    y = np.where(X[:, 0] + rng.normal(size=2 * N) > 1.5, 1.0, -1.0)
    plain = CSMOClassifier(C=30.0, gamma=0.5, tol=1e-5).fit(X, y)
    done = always(monkeypatch)
    model = CSMOClassifier(C=30.0, gamma=0.5, tol=1e-5).fit(X, y)
    assert any(done)
    assert model.gap_ <= 1e-5
    assert model.duality_gap_ <= 1e-4 * abs(model.objective_)
    assert model.objective_ == pytest.approx(plain.objective_, rel=1e-6)
    sizes = np.abs(model.dual_coef_[0])
    assert (sizes == 30.0).sum() > 0.7 * N  # of equal rows, all but one are at a bound


def test_newton_steps_are_due_only_after_smo_steps(monkeypatch):
    X, y = sine_classes(N, 3, 0.5)
    done = always(monkeypatch)
    monkeypatch.setattr(newton, "_PATIENCE", 1e9)
    CSMOClassifier(C=100.0, gamma=0.7).fit(X, y)
    assert not done
    monkeypatch.setattr(newton, "_PATIENCE", 0.0)
    monkeypatch.setattr(newton, "_MEMORY_SHARE", 0.0)
    CSMOClassifier(C=100.0, gamma=0.7).fit(X, y)
    assert not done
