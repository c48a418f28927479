"""ADMM on compressed kernel matrices: against a reference implementation, the exact solver and scikit-learn's checks."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning

import naive_batch
from failing import Failing, interrupted, interrupts, of_compiled_code
from problems import dicts, learned_by, sine_classes
from refused import refused
from streamsvm.batch import CSMOClassifier, HSSADMMClassifier, batch_adapter
from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm import iteration
from streamsvm.batch.hss_admm.iteration import ADMMOptions, find_max_residual, measure_errors, run_admm
from streamsvm.batch.problem import Bounds

SLOW = config.DISABLE_JIT
N = 120 if SLOW else 500


def two_classes(n=N):
    return sine_classes(n, 3, 0.5)


def small_problem():
    """Return a compressed matrix, y, C and the bounds of 90 rows."""
    X, y = two_classes(90)
    C = np.random.default_rng(1).uniform(0.2, 3.0, 90)
    side = np.where(y > 0, C, 0.0)
    return HSSMatrix.compress(X, gamma=0.5, rel_tol=0.3, leaf_size=20), y, C, Bounds(side - C, side, y * C)


@pytest.mark.once
@pytest.mark.parametrize(("beta", "relaxation"), [(100.0, 1.0), (3.0, 1.6), (0.2, 1.9)])
def test_steps_match_the_reference(beta, relaxation):
    K, _, _, bounds = small_problem()
    b, bias = naive_batch.run_admm(K.to_array(), np.zeros(90), *bounds, 1.0, beta, relaxation, 12)
    columns = Bounds(*(np.column_stack([side, 2.0 * side]) for side in bounds))  # with another problem beside it
    solution = run_admm(K, columns, ADMMOptions(beta, False, relaxation, 0.0, 12, False))
    np.testing.assert_allclose(solution.b[:, 0], b, atol=1e-9)
    assert solution.bias[0] == pytest.approx(bias, abs=1e-9)
    assert (solution.n_iter.tolist(), solution.n_factorizations) == ([12, 12], 1)


@pytest.mark.once
@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
def test_classifier_is_close_to_the_exact_one(C):
    X, y = load_breast_cancer(return_X_y=True)
    X = ((X - X.mean(axis=0)) / X.std(axis=0))[:N]
    y = y[:N]
    exact = CSMOClassifier(C=C, gamma=0.03).fit(X, y)
    ours = HSSADMMClassifier(C=C, gamma=0.03, rel_tol=0.01, tol=1e-5, leaf_size=64).fit(X, y)
    assert ours.compression_error_ <= 0.02
    assert np.abs(ours.decision_function(X) - exact.decision_function(X)).max() < 0.15
    assert (ours.predict(X) == exact.predict(X)).mean() > 0.99
    K = HSSMatrix.compress(X, gamma=0.03, rel_tol=0.01, leaf_size=64, zero_sum=True)
    b = np.zeros(len(X))
    b[ours.support_] = ours.dual_coef_[0]
    apart = np.clip(K @ b + ours.intercept_, -2.0, 2.0) - np.clip(ours.decision_function(X), -2.0, 2.0)
    assert ours.value_error_ == pytest.approx(np.sqrt(np.mean(apart[ours.support_] ** 2)), rel=0.5)


def test_the_gap_matches_the_reference():
    K, y, C, bounds = small_problem()
    columns = Bounds(*(side[:, np.newaxis] for side in bounds))
    solution = run_admm(K, columns, ADMMOptions(3.0, False, 1.6, 0.0, 15, False))
    z, bias, quadratic = solution.b[:, 0], solution.bias[0], K.to_array()
    primal = 0.5 * z @ quadratic @ z + C @ np.maximum(1.0 - y * (quadratic @ z + bias), 0.0)
    dual = y @ z - 0.5 * z @ quadratic @ z - bias * z.sum()  # as if the sum were zero
    assert solution.gap[0] == pytest.approx((primal - dual) / primal, rel=1e-6)
    residual = find_max_residual(solution.primal, solution.dual, solution.gap)
    assert residual[0] == max(solution.primal[0], solution.dual[0], 0.1 * solution.gap[0])


class Apart:
    """A compressed matrix whose values differ from the exact ones by a given array."""

    def __init__(self, exact, difference):
        self.exact, self.difference = exact, difference

    def __matmul__(self, b):
        return self.exact + self.difference

    def exact_product(self, rows, b):
        return self.exact[rows]


def test_differences_far_from_the_margin_are_seen():
    exact = 1.5 * np.where(np.arange(1000) < 500, 1.0, -1.0)[:, np.newaxis]
    difference, b = np.where(np.arange(1000) % 2, 3.0, 0.0)[:, np.newaxis], np.zeros((1000, 1))
    assert measure_errors(Apart(exact, difference), b, np.zeros(1))[0] > 1.0
    assert measure_errors(Apart(2.0 * exact, np.sign(exact) * difference), b, np.zeros(1))[0] == 0.0  # classified as well
    few, b = np.zeros((1000, 1)), b.copy()
    few[::100], b[::100] = 1.0, 0.5  # only of support vectors
    assert measure_errors(Apart(exact, few), b, np.zeros(1))[0] == pytest.approx(np.sqrt(0.625))  # 0.5 for clipped halves


@pytest.mark.once
def test_three_classes_share_a_compression():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = HSSADMMClassifier(gamma=0.5, rel_tol=0.01, leaf_size=40).fit(X, names)
    assert model.decision_function(X).shape == (150, 3)
    assert model.dual_coef_.shape == (3, len(model.support_))
    assert model.score(X, names) > 0.95


@pytest.mark.thorough
@settings(max_examples=4 if SLOW else 25)
@given(
    n=st.integers(2, 120),
    log_h=st.floats(-2.0, 2.0),
    tolerance=st.floats(0.001, 1.0),
    log_beta=st.none() | st.floats(-3.0, 3.0),
    relaxation=st.floats(0.5, 1.95),
    log_C=st.floats(-2.0, 2.0),
    repeats=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_no_setting_diverges(n, log_h, tolerance, log_beta, relaxation, log_C, repeats, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    X = np.round(X) if repeats else X
    y = rng.permutation(np.arange(n) % 2)
    model = HSSADMMClassifier(
        C=10.0**log_C,
        gamma=0.5 * 10.0 ** (-2.0 * log_h),
        rel_tol=tolerance,
        beta="balanced" if log_beta is None else 10.0**log_beta,
        relaxation=relaxation,
        max_iter=3000,
        leaf_size=16,
        max_rank=40,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert np.abs(model.dual_coef_).max(initial=0.0) <= model.C
    assert np.isfinite(model.decision_function(X)).all()
    converged = max(model.primal_residual_, model.dual_residual_) <= 1e-2
    assert converged or (log_beta is not None and any(w.category is ConvergenceWarning for w in caught))


@pytest.mark.once
def test_a_path_costs_one_compression(monkeypatch):
    X, y = two_classes(60 if SLOW else 250)
    compressions = []
    compress = HSSMatrix.compress
    monkeypatch.setattr(HSSMatrix, "compress", staticmethod(lambda *a, **k: compressions.append(1) or compress(*a, **k)))
    model = HSSADMMClassifier(gamma=0.5, rel_tol=0.01, beta=10.0, leaf_size=64, tol=1e-4, max_iter=20_000)
    models = model.fit_path(X, y, [0.1, 1.0, 10.0])
    assert compressions == [1]
    assert [m.C for m in models] == [0.1, 1.0, 10.0]
    assert not hasattr(model, "classes_")
    for m in models:
        alone = HSSADMMClassifier(**m.get_params()).fit(X, y)
        assert np.abs(alone.decision_function(X) - m.decision_function(X)).max() < 0.05
        assert (m.n_features_in_, m.classes_.tolist()) == (3, [-1, 1])
    refused("Cs must be numbers", model.fit_path, X, y, [])
    refused("Cs must be numbers", model.fit_path, X, y, 1.0)
    refused("C must be", model.fit_path, X, y, [1.0, -1.0])


def test_setting_of_the_paper():
    X, y = two_classes()
    model = HSSADMMClassifier(gamma=0.5, beta="paper", leaf_size=64).fit(X, y)
    assert (model.n_iter_, model.beta_) == (11, 100.0)
    assert model.score(X, y) > 0.7


@pytest.mark.once
def test_large_value_errors_cause_a_warning():
    X, y = two_classes()
    coarse = HSSADMMClassifier(gamma=0.1, leaf_size=64, rel_tol=0.3, max_iter=5000)
    message = r"values of the model for C=50 are .* margins from those .*: lower rel_tol=0.3, or use CSMOClassifier"
    with pytest.warns(ConvergenceWarning, match=message):
        _, coarse = coarse.fit_path(X, y, [0.01, 50.0])
    closer = HSSADMMClassifier(C=50.0, gamma=0.1, leaf_size=64, rel_tol=1e-3, max_iter=5000).fit(X, y)
    exact = CSMOClassifier(C=50.0, gamma=0.1).fit(X, y)
    assert closer.value_error_ <= 0.3 < coarse.value_error_
    errors = [np.abs(model.decision_function(X) - exact.decision_function(X)).mean() for model in (coarse, closer)]
    assert errors[1] < 0.5 * errors[0]


def test_too_few_iterations_cause_a_warning():
    X, y = two_classes()
    message = r"after 3 iterations with .* above tol=1e-08, or .*: raise max_iter or tol, or use CSMOClassifier"
    with pytest.warns(ConvergenceWarning, match=message):
        HSSADMMClassifier(gamma=0.5, tol=1e-8, max_iter=3).fit(X, y)


def test_rows_that_are_all_equal_few_or_of_a_bad_scale():
    zeros, y = np.zeros((10, 2)), np.arange(10) % 2
    assert HSSADMMClassifier(kernel="linear").fit(zeros, y).score(zeros, y) == 0.5
    assert HSSADMMClassifier().fit([[0.0], [1.0]], [0, 1]).predict([[0.0], [1.0]]).tolist() == [0, 1]
    X, y = two_classes(60)
    for gamma in (1e-9, 1e9):
        assert np.isfinite(HSSADMMClassifier(gamma=gamma, leaf_size=20).fit(X, y).decision_function(X)).all()


def test_models_of_a_path_share_nothing():
    X, y = two_classes(60)
    first, second = HSSADMMClassifier(gamma=0.5, class_weight={1: 2.0}).fit_path(X, y, [1.0, 2.0])
    expected = second.predict(X)
    first.classes_[:] = [7, 8]
    first.class_weight[1] = 9.0
    np.testing.assert_array_equal(second.predict(X), expected)
    assert second.class_weight == {1: 2.0}


def test_an_interrupt_leaves_the_last_iterate(monkeypatch):
    X, y = two_classes()
    model = HSSADMMClassifier(gamma=0.5, tol=0.0, leaf_size=64)
    monkeypatch.setattr(iteration, "_compute_relative_size", Failing(lambda part, total: np.ones_like(part), 11))
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("where", ["hss.HSSMatrix.compress", "hss.HSSMatrix.factorize", "hss_admm.estimators.measure_errors"])
def test_an_early_interrupt_does_not_change_the_model(where, monkeypatch):
    X, y = two_classes(60)
    model = HSSADMMClassifier(gamma=0.5).fit(X, y)
    monkeypatch.setattr(f"streamsvm.batch.{where}", interrupted)
    for rows, labels in ((X[::-1], y), (X, np.where(y > 0, "other", "labels"))):
        refused(None, model.fit, rows, labels, error=KeyboardInterrupt)


def test_an_interrupt_of_compiled_code_is_a_keyboard_interrupt(monkeypatch):
    X, y = two_classes()
    model = HSSADMMClassifier(gamma=0.5, tol=0.0, leaf_size=64)
    monkeypatch.setattr(iteration, "_advance_iterate", Failing(iteration._advance_iterate, 21, of_compiled_code()))
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.6
    monkeypatch.setattr(iteration, "_advance_iterate", Failing(None, 1, SystemError("another")))
    refused("another", model.fit, X, y, error=SystemError)


@pytest.mark.once
def test_saved_models_distilled_models_and_the_adapter():
    X, y = two_classes()
    model = HSSADMMClassifier(gamma=0.5, rel_tol=0.05, leaf_size=64).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.decision_function(X), again.decision_function(X))
    learner = model.to_budget(60, X)
    assert (learner.predict_many(X) == model.predict(X)).mean() > 0.95
    iris, kinds = load_iris(return_X_y=True)
    three = HSSADMMClassifier(gamma=0.3, rel_tol=0.05, leaf_size=40).fit(iris, kinds)
    assert (three.to_budget(40, iris).predict_many(iris) == three.predict(iris)).mean() > 0.9
    adapter = batch_adapter(HSSADMMClassifier(gamma=0.5, rel_tol=0.05), window=300, refit_every=100)
    learned_by(adapter, zip(dicts(X[:250]), y[:250].tolist(), strict=True))
    assert adapter.n_fits == min(N, 250) // 100
    assert np.mean([adapter.predict_one(x) for x in dicts(X)] == y) > 0.7
