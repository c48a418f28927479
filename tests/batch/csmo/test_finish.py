"""Small problems are solved to the last digits, for all forms of rows and all kinds of steps."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_classification

from failing import Failing, interrupts
from naive_batch import KERNELS
from problems import sine_classes, sine_curve
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor
from streamsvm.batch.csmo import solver
from streamsvm.batch.csmo.steps import run_steps
from streamsvm.core.compiling.common import compilation

pytestmark = pytest.mark.once

N = 120


def rows_of(kind):
    if kind is CSMORegressor:
        return sine_curve(N, 3, 0.2)
    X, y = sine_classes(N, 4, 0.5)
    return X, np.where(y > 0, 1, 0) + (X[:, 0] > 1.0)  # three classes


def function(kernel, gamma=1.0, coef0=0.0, degree=1):
    def values(A, B):
        if kernel == "rbf":
            return np.exp(-gamma * np.square(A[:, None] - B).sum(axis=2))
        return (gamma * A @ B.T + coef0) ** degree

    return values


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel"])
@pytest.mark.parametrize("kind", [CSMOClassifier, CSMORegressor, CSMOOneClass])
def test_all_forms_of_rows_give_the_same_solution(kind, kernel):
    X, y = rows_of(kind)
    if kind is CSMOOneClass:
        X = X + 2.0  # with a plane, usual rows are those far from the origin
    k = function(**kernel)
    kernel = kernel | {"tol": 1e-4}  # so that all find the same variables at their bounds
    dense = kind(**kernel).fit(X, y)
    far = sparse.hstack([X, sparse.csr_array((N, 5000))], "csr")  # so wide that it stays sparse
    decide = "predict" if kind is CSMORegressor else "decision_function"
    values = getattr(dense, decide)(X)
    assert dense.gap_ < 1e-8
    for model, rows in ((kind(**kernel), far), (kind(kernel="precomputed", tol=1e-4), k(X, X)), (kind(kernel=k, tol=1e-4), X)):
        model.fit(rows, y)
        np.testing.assert_array_equal(model.support_, dense.support_)
        np.testing.assert_allclose(getattr(model, decide)(rows), values, atol=1e-7)
        np.testing.assert_allclose(model.intercept_, dense.intercept_, atol=1e-7)


@pytest.mark.parametrize(
    "kernel", [*KERNELS, {"kernel": "sigmoid", "gamma": 1.0, "coef0": 1.0}], ids=lambda kernel: kernel["kernel"]
)
@pytest.mark.parametrize("C", [0.1, 10.0, 1000.0])
@pytest.mark.parametrize("kind", [CSMOClassifier, CSMORegressor])
def test_the_exact_solution_is_kept_if_better(kind, C, kernel, monkeypatch):
    X, y = rows_of(kind)
    finished = kind(C=C, **kernel).fit(X, y)
    monkeypatch.setattr(solver, "_MAX_POLISHED_VARIABLES", 0)
    plain = kind(C=C, **kernel).fit(X, y)
    assert finished.gap_ <= plain.gap_
    assert finished.objective_ <= plain.objective_ + 1e-5 * abs(plain.objective_)  # the latter has columns of float32
    assert np.abs(finished.dual_coef_).max() <= C * (1.0 + 1e-12)
    assert np.sum(finished.n_iter_) <= 1.1 * np.sum(plain.n_iter_)  # tries on the way change what steps follow


def test_the_exact_solution_is_rejected_outside_the_bounds():
    X, y = make_classification(150, 10, n_informative=3, random_state=5, flip_y=0.1)
    model = CSMOClassifier(kernel="linear", C=10.0).fit((X - X.mean(axis=0)) / X.std(axis=0), y)
    assert 1e-8 < model.gap_ <= 1e-3


def test_an_interrupt_keeps_the_last_iterate(monkeypatch):
    X, y = rows_of(CSMOClassifier)
    monkeypatch.setattr(solver, "_MAX_SMALL_ROWS", 0)
    for calls in (1, 2):
        monkeypatch.setattr(solver, "run_steps", Failing(run_steps, calls))
        model = CSMOClassifier()
        interrupts(model.fit, X, y)
        assert sorted(model.n_iter_ > 0) == [False] * (4 - calls) + [True] * (calls - 1)
        assert np.isfinite(model.decision_function(X)).all()


def test_large_problems_are_not_polished(monkeypatch):
    X, y = rows_of(CSMOClassifier)
    for name in ("_MAX_SMALL_ROWS", "_MAX_POLISHED_VARIABLES"):
        with monkeypatch.context() as patch:
            patch.setattr(solver, name, 0)
            assert 1e-8 < CSMOClassifier().fit(X, y).gap_ <= 1e-3


@pytest.mark.parametrize("kind", [CSMOClassifier, CSMORegressor, CSMOOneClass])
def test_the_compiled_small_solver_matches_the_general_one(kind, monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, (N, 3)).astype(float), rng.integers(0, 3, N)  # equal rows of all classes, and of two weights
    weights, parameters = rng.integers(0, 3, N) / 2.0, {"kernel": "rbf", "gamma": 0.7, "tol": 1e-6}
    solved_at_once = kind(**parameters).fit(X, y, sample_weight=weights)
    monkeypatch.setattr(solver, "_MAX_SMALL_ROWS", 0)
    solved_by_steps = kind(**parameters).fit(X, y, sample_weight=weights)
    assert solved_at_once.gap_ <= 1e-6
    assert solved_at_once.objective_ == pytest.approx(solved_by_steps.objective_, rel=1e-6)
    np.testing.assert_allclose(solved_at_once._compute_decisions(X), solved_by_steps._compute_decisions(X), atol=1e-5)
    assert not np.isin(solved_at_once.support_, np.flatnonzero(weights == 0.0)).any()
    most = (1.0 if kind is CSMOOneClass else solved_at_once.C) * weights[solved_at_once.support_]
    assert (np.abs(solved_at_once._coefficients) <= most * (1.0 + 1e-9)).all()


def test_other_array_layouts_need_no_compilation():
    X, targets = rows_of(CSMOClassifier)[0], np.arange(N) % 3
    CSMOClassifier().fit(X, targets)
    CSMOClassifier(kernel="precomputed").fit(X @ X.T, targets)
    before = compilation.seconds
    for form in (np.asfortranarray, lambda X: np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]):
        for read_only in (False, True):
            rows, K = form(X), form(X @ X.T)
            rows.flags.writeable = K.flags.writeable = not read_only
            CSMOClassifier().fit(rows, targets)
            CSMOClassifier(kernel="precomputed").fit(K, targets)
    assert compilation.seconds == before
