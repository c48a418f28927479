"""The default of HSS-ADMM: one compression, descent along its tree, and exact solutions where it does not serve."""

import logging

import numpy as np
import pytest
from numba import config
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from failing import Failing, interrupted, interrupts
from problems import sine_classes, sine_curve
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMORegressor, HSSADMMClassifier, HSSADMMRegressor, tree_descent
from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm import iteration, machine
from streamsvm.batch.problem import Bounds
from streamsvm.batch.tree_descent import Loss, lift, walk

SLOW = config.DISABLE_JIT
N = 120 if SLOW else 500
#: Compressions that serve for gamma = 0.5 and C = 0.1, and that do not for C = 10.
FINE, COARSE = {"gamma": 0.5, "leaf_size": 60, "max_rank": 40}, {"gamma": 0.5, "leaf_size": 60, "max_rank": 3}


def two_classes(n=N):
    return sine_classes(n, 3, 0.5)


def problem(X, y, C, K):
    """The problem of a classifier, in the order in which rows were given."""
    side = np.where(y > 0, C, 0.0)
    return Bounds(side - C, side, y * C), Loss.of(np.zeros(len(y)), None, K.mean_diagonal)


def gap_of(K, b, bias, y, C):
    """The duality gap of the dense problem, relative to the primal objective; a sum that is not 0 costs as much as itself."""
    f = K.to_array() @ b + bias
    primal = 0.5 * b @ K.to_array() @ b + C * np.maximum(1.0 - y * f, 0.0).sum()
    dual = np.abs(b).sum() - 0.5 * b @ K.to_array() @ b - bias * b.sum()
    return (primal - dual + abs(b.sum())) / primal


@pytest.mark.parametrize("n", [1, 40, N])
def test_walks_go_through_the_compressed_matrix(n):
    rng = np.random.default_rng(0)
    X, b = rng.normal(size=(n, 3)), rng.normal(size=n)
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, leaf_size=30, max_rank=10)
    cuts, matrix = K.compositional()
    assert matrix.nbytes < 0.6 * K.nbytes + 2000
    assert K.mean_diagonal == 1.0
    near, up, down = np.zeros(n), np.zeros(len(matrix.skeletons)), np.zeros(len(matrix.skeletons))
    tree, x = (cuts.begin, cuts.end, cuts.right), b[K.order].copy()
    lift(*tree, matrix, x, near, up)
    zero, large = np.zeros(n), np.full(n, 1e6)
    _, quadratic, _ = walk(*tree, matrix, zero, 0.0, -large, large, zero, x, near, up, down, 0.0, 1e-9, 0)
    assert quadratic == pytest.approx(b @ (K @ b), rel=1e-4, abs=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_a_start_solves_the_dense_problem(C):
    X, y = two_classes()
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, leaf_size=60, max_rank=20)
    bounds, loss = problem(X, y, C, K)
    results = iteration.start(iteration.Problems(K, loss, [bounds], [[0]], 0.05, 1000))
    assert results.gap[0] == pytest.approx(gap_of(K, results.b[:, 0], results.bias[0], y, C), abs=1e-3)
    assert results.gap[0] < (0.01 if C < 1.0 else 1.0)
    assert 1 <= results.n_iter[0] <= 30
    assert ((bounds.lower <= results.b[:, 0]) & (results.b[:, 0] <= bounds.upper)).all()


@pytest.mark.once
@pytest.mark.parametrize("walks", [0, 1500])
def test_a_problem_that_walks_do_not_solve_goes_on(walks, monkeypatch):
    X, y = two_classes()
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, leaf_size=60, max_rank=20)
    bounds, loss = problem(X, y, 10.0, K)
    monkeypatch.setattr(iteration, "_WALKS", 2)
    monkeypatch.setattr(iteration, "_MORE_WALKS", max(walks, 1))
    problems = iteration.Problems(K, loss, [bounds], [[0]], 0.05, 2000)
    results = iteration.start(problems)
    first = results.gap[0]
    options = iteration.ADMMOptions(5.0, True, 1.6, 0.05, 0, False)
    iteration.go_on(problems, results, np.array([0]), options)
    assert results.gap[0] < 0.5 * first
    assert gap_of(K, results.b[:, 0], results.bias[0], y, 10.0) < 0.12
    assert (results.beta[0] > 0.0) == (walks == 0)  # ADMM iterated


def test_what_admm_makes_worse_is_not_taken(monkeypatch):
    X, y = two_classes()
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, leaf_size=60, max_rank=20)
    bounds, loss = problem(X, y, 1.0, K)
    problems = iteration.Problems(K, loss, [bounds], [[0]], 1e-9, 40)
    monkeypatch.setattr(iteration, "_MORE_WALKS", 5)
    results = iteration.start(problems)
    b = results.b.copy()
    monkeypatch.setattr(iteration, "_descend", lambda *_, **__: None)
    iteration.go_on(problems, results, np.array([0]), iteration.ADMMOptions(1e9, False, 1.0, 0.0, 0, False))
    np.testing.assert_array_equal(results.b, b)
    assert results.n_iter[0] == 40


@pytest.mark.once
def test_exact_solutions_are_for_what_compression_does_not_serve(caplog):
    X, y = two_classes()
    easy, hard = HSSADMMClassifier(**FINE).fit_path(X, y, [0.1, 10.0])
    assert (easy.predict_with_, easy.solved_exactly_) == ("compressed", False)
    assert easy.value_error_ <= 0.15
    b = np.zeros(len(X))
    b[easy.support_] = easy.dual_coef_[0]
    K = HSSMatrix.compress(X, rel_tol=None, n_neighbors=16, zero_sum=True, **FINE)
    np.testing.assert_allclose(easy.decision_function(X), K @ b + easy.intercept_[0], atol=1e-6 * np.abs(b).sum())
    with caplog.at_level(logging.INFO, "streamsvm"):
        hard = HSSADMMClassifier(C=10.0, **COARSE).fit(X, y)
    assert (hard.predict_with_, hard.solved_exactly_) == ("exact", True)
    assert caplog.messages == [
        "HSSADMMClassifier solved the model for C=10 with the exact kernel: the compressed one was too coarse or too slow"
    ]
    assert hard.value_error_ > 0.15
    assert hard.gap_ <= 1e-3
    exact = CSMOClassifier(10.0, gamma=0.5).fit(X, y)
    assert np.abs(hard.decision_function(X) - exact.decision_function(X)).max() < 0.02


@pytest.mark.once
def test_the_default_regression_is_the_exact_one():
    X, y = sine_curve(N, 2, 0.1)
    ours = HSSADMMRegressor(C=3.0, epsilon=0.05, gamma=0.5, leaf_size=40, max_rank=3).fit(X, y)
    exact = CSMORegressor(C=3.0, epsilon=0.05, gamma=0.5).fit(X, y)
    assert ours.predict_with_ == "exact"
    assert np.abs(ours.predict(X) - exact.predict(X)).max() < 0.01


@pytest.mark.once
@pytest.mark.parametrize("limit", ["_SOLVED_EXACTLY", "_POLISH_WORK"])
def test_too_many_rows_are_not_solved_exactly(limit, monkeypatch):
    monkeypatch.setattr(machine, limit, 1)
    X, y = two_classes()
    model = HSSADMMClassifier(C=10.0, **COARSE).fit(X, y)
    assert model.predict_with_ == "compressed"
    assert model.gap_ <= 0.05
    same = HSSADMMClassifier(C=10.0, predict_with="compressed", **COARSE).fit(X, y)
    np.testing.assert_array_equal(model.decision_function(X), same.decision_function(X))


@pytest.mark.once
def test_all_machines_of_several_classes_are_solved_alike():
    X, kinds = load_iris(return_X_y=True)
    X = X[:, :3]
    rough = {"gamma": 0.5, "leaf_size": 30, "max_rank": 2}
    easy, hard = HSSADMMClassifier(**rough).fit_path(X, kinds, [0.001, 100.0])
    assert (easy.predict_with_, hard.predict_with_) == ("compressed", "exact")
    for machine_number in range(3):
        exact = CSMOClassifier(100.0, gamma=0.5).fit(X, kinds == machine_number)
        ours = hard.decision_function(X)[:, machine_number]
        assert np.abs(ours - exact.decision_function(X)).max() < 0.1


@pytest.mark.once
def test_a_tolerance_that_is_given_and_the_setting_of_the_paper():
    X, y = two_classes()
    model = HSSADMMClassifier(gamma=0.5, rel_tol=0.02, leaf_size=60).fit(X, y)
    assert model.compression_error_ <= 0.03
    paper = HSSADMMClassifier(gamma=0.5, beta="paper", leaf_size=60)
    auto, exact = paper.fit(X, y).decision_function(X), paper.set_params(predict_with="exact").fit(X, y).decision_function(X)
    np.testing.assert_array_equal(auto, exact)
    assert (paper.predict_with_, paper.solved_exactly_) == ("exact", False)


@pytest.mark.once
def test_polish_solves_all_exactly(caplog):
    X, y = two_classes()
    exact = CSMOClassifier(0.1, gamma=0.5).fit(X, y)
    with caplog.at_level(logging.INFO, "streamsvm"):
        model = HSSADMMClassifier(0.1, polish=True, **FINE).fit(X, y)
    assert (model.predict_with_, model.solved_exactly_) == ("exact", True)
    assert not caplog.messages  # it was asked for
    assert np.abs(model.decision_function(X) - exact.decision_function(X)).max() < 5e-3


def test_rows_that_are_all_equal_few_or_of_a_bad_scale():
    zeros = np.zeros((10, 2))
    assert HSSADMMClassifier(kernel="linear").fit(zeros, np.arange(10) % 2).score(zeros, np.arange(10) % 2) == 0.5
    assert HSSADMMClassifier().fit([[0.0], [1.0]], [0, 1]).predict([[0.0], [1.0]]).tolist() == [0, 1]
    X, y = two_classes(60)
    for gamma in (1e-9, 1e9):
        assert np.isfinite(HSSADMMClassifier(gamma=gamma, leaf_size=20).fit(X, y).decision_function(X)).all()


def test_too_few_iterations_are_warned_of(monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(machine, "_SOLVED_EXACTLY", 1)
    with pytest.warns(ConvergenceWarning, match="ended for C=10 after 3 iterations"):
        model = HSSADMMClassifier(C=10.0, gamma=0.05, max_iter=3, leaf_size=60).fit(X, y)
    assert model.n_iter_ == 3


def test_an_interrupt_of_a_walk_leaves_the_last_one(monkeypatch):
    X, y = two_classes()
    model = HSSADMMClassifier(C=10.0, **COARSE)
    monkeypatch.setattr(tree_descent, "walk", Failing(walk, 4))
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.6
    assert model.predict_with_ == "compressed"
    monkeypatch.setattr(tree_descent, "walk", interrupted)
    refused(None, model.fit, -X, y, error=KeyboardInterrupt)


@pytest.mark.once
@pytest.mark.parametrize("machines", [1, 3])
def test_an_interrupt_of_the_exact_solution_leaves_that_of_the_walks(machines, monkeypatch):
    X, y = load_iris(return_X_y=True) if machines == 3 else two_classes()
    solve = machine.solve
    monkeypatch.setattr(machine, "solve", lambda *a: solve(*a)._replace(interrupted=True))
    model = HSSADMMClassifier(C=10.0, gamma=0.5, leaf_size=30, max_rank=1)
    interrupts(model.fit, X, y)
    assert model.predict_with_ == "compressed"
    assert model.score(X, y) > 0.6


def test_an_interrupt_of_admm_leaves_the_last_walk(monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(iteration, "_MORE_WALKS", 1)
    monkeypatch.setattr(iteration, "admm", interrupted)
    model = HSSADMMClassifier(C=10.0, gamma=0.05, leaf_size=60, tol=1e-6, predict_with="compressed")
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.6


@pytest.mark.once
def test_an_interrupt_of_what_follows_the_walks_leaves_these(monkeypatch):
    X, y = two_classes()
    expected = HSSADMMClassifier(0.1, **FINE).fit(X, y).decision_function(X)
    monkeypatch.setattr(machine, "compare", interrupted)
    model = HSSADMMClassifier(0.1, **FINE)
    interrupts(model.fit, X, y)
    np.testing.assert_array_equal(model.decision_function(X), expected)
    monkeypatch.setattr(machine, "compare", Failing(None, 1, OSError("no")))
    refused("no", model.fit, X, y, error=OSError)
