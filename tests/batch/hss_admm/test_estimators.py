"""ADMM on compressed kernel matrices: against its twin, the exact solver and scikit-learn's checks."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score

import naive_batch
from failing import Failing, interrupted, interrupts, of_compiled_code
from problems import dicts, learned_by, sine_classes, sine_curve
from refused import refused
from streamsvm.batch import BatchAdapter, CSMOClassifier, CSMORegressor, HSSADMMClassifier, HSSADMMRegressor
from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm import iteration
from streamsvm.batch.hss_admm.iteration import ADMMOptions, admm, compare_values
from streamsvm.batch.problem import Bounds

SLOW = config.DISABLE_JIT
N = 120 if SLOW else 500


def two_classes(n=N, noise=0.5):
    return sine_classes(n, 3, noise)


def curve(n=N):
    return sine_curve(n, 2, 0.1)


def exact_classifier(**parameters):
    return HSSADMMClassifier(predict_with="exact", **parameters)


def exact_regressor(**parameters):
    return HSSADMMRegressor(predict_with="exact", **parameters)


def bounds_of(y, C=1.0):
    """Of a classifier."""
    side = np.where(y > 0, C, 0.0)
    return Bounds(side - C, side, y * C)


def small_problem(regression):
    """A compressed matrix, y, C, targets, epsilon and bounds of 90 rows."""
    X, y = curve(90) if regression else two_classes(90)
    C = np.random.default_rng(1).uniform(0.2, 3.0, 90)
    K = HSSMatrix.compress(X, gamma=0.5, rel_tol=0.3, leaf_size=20)
    if regression:
        return K, y, C, y - np.median(y), 0.1, Bounds(-C, C, np.zeros(90))
    return K, y, C, np.zeros(90), 1.0, bounds_of(y, C)


@pytest.mark.once
@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("beta", "relaxation"), [(100.0, 1.0), (3.0, 1.6), (0.2, 1.9)])
def test_steps_are_those_of_the_twin(beta, relaxation, regression):
    K, _, _, t, epsilon, bounds = small_problem(regression)
    b, bias = naive_batch.admm(K.to_array(), t, *bounds, epsilon, beta, relaxation, 12)
    columns = Bounds(*(np.column_stack([side, 2.0 * side]) for side in bounds))  # with another problem beside it
    solution = admm(K, t, epsilon, columns, ADMMOptions(beta, False, relaxation, 0.0, 12, False))
    np.testing.assert_allclose(solution.b[:, 0], b, atol=1e-9)
    assert solution.bias[0] == pytest.approx(bias, abs=1e-9)
    assert (solution.n_iter.tolist(), solution.n_factorizations) == ([12, 12], 1)
    half = admm(K, t, epsilon, columns, ADMMOptions(beta, False, relaxation, 0.0, 6, False))
    gone_on = admm(K, t, epsilon, columns, ADMMOptions(beta, False, relaxation, 0.0, 6, False), (half.b, half.multipliers))
    np.testing.assert_allclose(gone_on.b, solution.b, atol=1e-9)


@pytest.mark.once
@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
def test_classifier_is_nearly_the_exact_one(C):
    X, y = load_breast_cancer(return_X_y=True)
    X = ((X - X.mean(axis=0)) / X.std(axis=0))[:N]
    y = y[:N]
    exact = CSMOClassifier(C=C, gamma=0.03).fit(X, y)
    ours = exact_classifier(C=C, gamma=0.03, rel_tol=0.01, tol=1e-5, max_iter=2000, leaf_size=64).fit(X, y)
    assert ours.compression_error_ <= 0.02
    assert np.abs(ours.decision_function(X) - exact.decision_function(X)).max() < 0.15
    assert (ours.predict(X) == exact.predict(X)).mean() > 0.99
    polished = exact_classifier(C=C, gamma=0.03, rel_tol=0.3, polish=True, leaf_size=64).fit(X, y)
    assert np.abs(polished.decision_function(X) - exact.decision_function(X)).max() < 5e-3


@pytest.mark.once
def test_regressor_is_nearly_the_exact_one():
    X, y = curve()
    exact = CSMORegressor(C=3.0, epsilon=0.05, gamma=0.5).fit(X, y)
    ours = exact_regressor(C=3.0, epsilon=0.05, gamma=0.5, rel_tol=1e-3, tol=1e-4, max_iter=5000, leaf_size=64).fit(X, y)
    assert np.abs(ours.predict(X) - exact.predict(X)).mean() < 0.01
    polished = exact_regressor(C=3.0, epsilon=0.05, gamma=0.5, polish=True, leaf_size=64).fit(X, y)
    assert np.abs(polished.predict(X) - exact.predict(X)).max() < 5e-3
    shifted = HSSADMMRegressor(**ours.get_params()).fit(X, y + 1e4)  # an offset is one of the intercept
    np.testing.assert_allclose(shifted.predict(X), ours.predict(X) + 1e4, atol=1e-5)


@pytest.mark.parametrize("C", [1.0, 100.0])
def test_values_without_errors_are_found_though_nothing_is_to_be_balanced(C):
    X = np.round(np.random.default_rng(0).normal(size=(N, 1)))  # few rows, and a function that is found exactly
    y = np.sin(2.0 * X[:, 0])
    exact = CSMORegressor(C=C, gamma=3.5, epsilon=0.0).fit(X, y)
    ours = exact_regressor(C=C, gamma=3.5, epsilon=0.0).fit(X, y)
    assert ours.beta_ > 1e-6
    np.testing.assert_allclose(ours.predict(X), exact.predict(X), atol=0.02)


@pytest.mark.once
def test_an_objective_of_nearly_nothing_need_not_be_found_to_the_last_digit():
    differences = []
    for seed in range(2 if SLOW else 4):  # how far it is found depends on rounding: by .008 to .034, and .017 in the mean
        X = np.random.default_rng(seed).uniform(-1.5, 2.5, size=(N, 1))
        y = np.sin(3.0 * X[:, 0])
        exact = CSMORegressor(C=100.0).fit(X, y)
        model = exact_regressor(C=100.0, leaf_size=64).fit(X, y)
        assert model.n_iter_ < 300
        differences.append(np.abs(model.predict(X) - exact.predict(X)).mean())
    assert np.mean(differences) < 0.03


@pytest.mark.parametrize("regression", [False, True])
def test_the_gap_is_that_of_the_twin(regression):
    K, y, C, t, epsilon, bounds = small_problem(regression)
    columns = Bounds(*(side[:, np.newaxis] for side in bounds))
    solution = admm(K, t, epsilon, columns, ADMMOptions(3.0, False, 1.6, 0.0, 15, False))
    z, bias, quadratic = solution.b[:, 0], solution.bias[0], K.to_array()
    f = quadratic @ z + bias
    losses = np.maximum(np.abs(t - f) - epsilon, 0.0) if regression else np.maximum(1.0 - y * f, 0.0)
    primal = 0.5 * z @ quadratic @ z + C @ losses
    gains = t @ z - epsilon * np.abs(z).sum() if regression else y @ z
    dual = gains - 0.5 * z @ quadratic @ z - bias * z.sum()  # as if the sum were zero
    # What a constant costs, of which a tenth counts where that is more
    constants = (-epsilon, 0.0, epsilon)
    costs = [np.maximum(np.abs(t - c) - epsilon, 0.0) if regression else np.maximum(1.0 - y * c, 0.0) for c in constants]
    worth = 0.1 * min(C @ cost for cost in costs)
    assert solution.gap[0] == pytest.approx((primal - dual) / max(primal, worth), rel=1e-6)
    assert solution.residual[0] == max(solution.primal[0], solution.dual[0], 0.1 * solution.gap[0])


class Apart:
    """A compressed matrix whose values differ from exact ones by what is given."""

    def __init__(self, exact, difference):
        self.exact, self.difference = exact, difference

    def __matmul__(self, b):
        return self.exact + self.difference

    def exact_product(self, rows, b):
        return self.exact[rows]


def compared(K, y, b, bias, C=1.0):
    """How far a classifier's intercept is from that of exact values, and its values from them."""
    column = y[:, np.newaxis].astype(float)
    return compare_values(K, np.zeros(len(y)), b, np.full(1, bias), bounds_of(column, C), 1.0, regression=False)


def test_an_intercept_is_that_of_exact_values_where_rows_cost_clearly_less():
    rng = np.random.default_rng(0)
    y = np.where(np.arange(2000) % 20 == 0, 1, -1)  # few of one class, and most of the other near the margin
    exact = np.where(y > 0, 1.2, -1.1)[:, np.newaxis] + 0.05 * rng.normal(size=(2000, 1)) + 1.3
    K, b = Apart(exact, -1.3 + 0.1 * rng.normal(size=(2000, 1))), np.zeros((2000, 1))
    shift, off = compared(K, y, b, 0.0)
    assert shift[0] == pytest.approx(-1.3, abs=0.15)
    assert off[0] == pytest.approx(0.1 + abs(shift[0] + 1.3), abs=0.1)
    shift, off = compared(K, y, b, -1.3)
    assert shift[0] == pytest.approx(0.0, abs=0.1)  # there is little to be gained
    assert off[0] == pytest.approx(1.3, abs=0.4)
    y = np.where(np.arange(2000) % 2 == 0, 1, -1)
    K = Apart(y[:, np.newaxis] + rng.normal(size=(2000, 1)), 0.0)
    assert compared(K, y, b, 0.1) == (0.0, 0.0)  # and here nothing clear
    bounds = Bounds(np.full((2000, 1), -1.0), np.full((2000, 1), 1.0), np.zeros((2000, 1)))
    K = Apart(exact, -1.3 + 0.1 * rng.normal(size=(2000, 1)))
    shift, off = compare_values(K, np.zeros(2000), b + 0.5, np.zeros(1), bounds, 0.1, regression=True)
    assert (shift[0], off[0]) == (pytest.approx(-1.3, abs=0.02), pytest.approx(0.1, abs=0.02))


def test_differences_far_from_the_margin_are_seen():
    y = np.where(np.arange(1000) < 500, 1, -1)
    exact = 1.5 * y[:, np.newaxis].astype(float)
    difference = np.where(np.arange(1000) % 2, 3.0, 0.0)[:, np.newaxis]
    b = 0.0 * exact
    b[0] = 0.5  # the only row at the margin
    difference[0] = 0.0
    assert compared(Apart(exact, difference), y, b, 0.0)[1][0] > 1.0
    assert compared(Apart(2.0 * exact, y[:, np.newaxis] * difference), y, b, 0.0)[1][0] == 0.0  # classified as well


@pytest.mark.once
def test_three_classes_share_a_compression():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = exact_classifier(gamma=0.5, rel_tol=0.01, leaf_size=40).fit(X, names)
    assert model.decision_function(X).shape == (150, 3)
    assert model.dual_coef_.shape == (3, len(model.support_))
    assert model.score(X, names) > 0.95


@pytest.mark.thorough
@settings(max_examples=4 if SLOW else 60)
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
    model = exact_classifier(
        C=10.0**log_C,
        gamma=0.5 * 10.0 ** (-2.0 * log_h),
        rel_tol=tolerance,
        beta="balanced" if log_beta is None else 10.0**log_beta,
        relaxation=relaxation,
        max_iter=3000,
        tol=1e-2,
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
    X, y = two_classes()
    compressions = []
    compress = HSSMatrix.compress
    monkeypatch.setattr(HSSMatrix, "compress", staticmethod(lambda *a, **k: compressions.append(1) or compress(*a, **k)))
    model = exact_classifier(gamma=0.5, rel_tol=0.05, beta=10.0, leaf_size=64, tol=1e-4, max_iter=20_000)
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
def test_compression_is_as_exact_as_values_ask_for():
    X, y = two_classes()
    coarse, closer = (
        exact_classifier(C=50.0, gamma=0.1, leaf_size=64, rel_tol=tol, max_iter=5000).fit(X, y) for tol in (0.3, "auto")
    )
    exact = CSMOClassifier(C=50.0, gamma=0.1).fit(X, y)
    assert closer.value_error_ <= 0.3 < coarse.value_error_
    assert closer.compression_error_ < 0.5 * coarse.compression_error_
    errors = [np.abs(model.decision_function(X) - exact.decision_function(X)).mean() for model in (coarse, closer)]
    assert errors[1] < 0.5 * errors[0]
    easy, hard = exact_classifier(gamma=0.1, leaf_size=64, max_iter=5000).fit_path(X, y, [0.01, 50.0])
    assert hard.compression_error_ < 0.5 * easy.compression_error_  # which had been enough
    assert max(easy.value_error_, hard.value_error_) <= 0.3


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:the compressed matrix has an error")
def test_what_is_left_of_a_compressions_error_is_warned_of():
    X, y = two_classes()
    with pytest.warns(
        ConvergenceWarning, match=r"values of the model for C=1000 differ from exact ones by .*: lower rel_tol, or polish"
    ):
        exact_classifier(C=1000.0, gamma=0.1, leaf_size=64, max_rank=3, max_iter=20, tol=1e3).fit(X, y)
    with pytest.warns(ConvergenceWarning, match=r"ended for C=50 after 30 iterations with relative residuals"):
        exact_classifier(gamma=0.1, leaf_size=64, max_iter=30).fit_path(X, y, [0.01, 50.0])


@pytest.mark.once
def test_warnings_point_at_the_line_that_fits():
    X, y = two_classes()
    machine = exact_classifier(gamma=0.1, leaf_size=64, max_rank=3, max_iter=20)
    for fit in (lambda: machine.fit(X, y), lambda: machine.fit_path(X, y, [1.0])):
        with pytest.warns((RuntimeWarning, ConvergenceWarning)) as caught:
            fit()
        assert {warning.category for warning in caught} == {RuntimeWarning, ConvergenceWarning}
        assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(("kernel", "scale", "offset"), [("linear", 1e8, 0.0), ("poly", 1.0, 300.0)])
def test_features_of_a_bad_scale_are_warned_of(kernel, scale, offset):
    X, y = two_classes()
    model = exact_classifier(kernel=kernel, leaf_size=64, max_iter=500)
    with pytest.warns(ConvergenceWarning, match="relative residuals"):
        model.fit(X * scale + offset, y)
    assert len(model.support_) > 0


def test_all_rows_are_zero():
    y = np.arange(10) % 2
    assert exact_classifier(kernel="linear").fit(np.zeros((10, 2)), y).score(np.zeros((10, 2)), y) == 0.5


def test_models_of_a_path_share_nothing():
    X, y = two_classes(60)
    first, second = exact_classifier(gamma=0.5, class_weight={1: 2.0}).fit_path(X, y, [1.0, 2.0])
    expected = second.predict(X)
    first.classes_[:] = [7, 8]
    first.class_weight[1] = 9.0
    np.testing.assert_array_equal(second.predict(X), expected)
    assert second.class_weight == {1: 2.0}


def test_an_interrupt_leaves_the_last_iterate(monkeypatch):
    X, y = two_classes()
    model = exact_classifier(gamma=0.5, tol=0.0, leaf_size=64)
    monkeypatch.setattr(iteration, "_relative", Failing(lambda part, whole: np.ones_like(part), 11))
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.6


def test_an_interrupt_between_compressions_leaves_the_last_iterate(monkeypatch):
    X, y = two_classes()
    coarse = exact_classifier(C=50.0, gamma=0.1, leaf_size=64, rel_tol=0.3, max_iter=500).fit(X, y)
    monkeypatch.setattr(HSSMatrix, "closer", interrupted)
    model = exact_classifier(C=50.0, gamma=0.1, leaf_size=64, max_iter=2000)
    interrupts(model.fit, X, y)
    np.testing.assert_array_equal(model.decision_function(X), coarse.decision_function(X))


@pytest.mark.parametrize("where", ["hss.HSSMatrix.compress", "hss.HSSMatrix.factorize", "hss_admm.machine.compare_values"])
def test_an_interrupt_of_what_is_found_first_leaves_the_model_as_it_was(where, monkeypatch):
    X, y = two_classes(60)
    model = exact_classifier(gamma=0.5).fit(X, y)
    monkeypatch.setattr(f"streamsvm.batch.{where}", interrupted)
    for rows, labels in ((X[::-1], y), (X, np.where(y > 0, "other", "labels"))):
        refused(None, model.fit, rows, labels, error=KeyboardInterrupt)


def test_an_interrupt_of_compiled_code_is_none_of_the_system(monkeypatch):
    X, y = two_classes()
    model = exact_classifier(gamma=0.5, tol=0.0, leaf_size=64)
    monkeypatch.setattr(iteration, "_advance", Failing(iteration._advance, 21, of_compiled_code()))
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.6
    monkeypatch.setattr(iteration, "_advance", Failing(None, 1, SystemError("another")))
    refused("another", model.fit, X, y, error=SystemError)


def test_too_few_iterations_are_warned_of():
    X, y = two_classes()
    with pytest.warns(ConvergenceWarning, match=r"after 3 iterations with .* above tol=1e-08, or .*: raise max_iter or tol"):
        exact_classifier(gamma=0.5, tol=1e-8, max_iter=3).fit(X, y)


@pytest.mark.once
def test_saved_models_distilled_models_and_the_adapter():
    X, y = two_classes()
    model = exact_classifier(gamma=0.5, rel_tol=0.05, leaf_size=64).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.decision_function(X), again.decision_function(X))
    learner = model.to_budget(60, X)
    assert (learner.predict_many(X) == model.predict(X)).mean() > 0.95
    iris, kinds = load_iris(return_X_y=True)
    three = exact_classifier(gamma=0.3, leaf_size=40).fit(iris, kinds)
    assert (three.to_budget(40, iris).predict_many(iris) == three.predict(iris)).mean() > 0.9
    adapter = BatchAdapter(exact_classifier(gamma=0.5, rel_tol=0.05), window=300, refit_every=100)
    learned_by(adapter, zip(dicts(X[:250]), y[:250].tolist(), strict=True))
    assert adapter.n_fits == min(N, 250) // 100
    assert np.mean([adapter.predict_one(x) for x in dicts(X)] == y) > 0.7


@pytest.mark.once
def test_cross_validation():
    X, y = load_diabetes(return_X_y=True)
    model = HSSADMMRegressor(C=100.0, epsilon=1.0, gamma=5.0, leaf_size=64, max_iter=2000)
    scores = cross_val_score(model, X, y, cv=2 if SLOW else 5)
    assert scores.mean() > 0.45  # the exact one: 0.49


# Predictions with the compressed kernel ---------------------------------------------------------------------------------------

COMPRESSED = {"gamma": 0.5, "predict_with": "compressed", "leaf_size": 40, "max_rank": 15}


@pytest.mark.once
@pytest.mark.parametrize("regression", [False, True])
def test_compressed_values_are_those_of_the_fit(regression):
    X, y = curve() if regression else two_classes()
    machine = (HSSADMMRegressor if regression else HSSADMMClassifier)(**COMPRESSED)
    for model in machine.fit_path(X, y, [0.1, 10.0]):
        b = np.zeros(len(X))
        b[model.support_] = model.dual_coef_[0]
        K = HSSMatrix.compress(X, gamma=0.5, rel_tol=None, leaf_size=40, max_rank=15, n_neighbors=16, zero_sum=True)
        values = model.predict(X) if regression else model.decision_function(X)
        np.testing.assert_allclose(values, K @ b + model.intercept_[0], atol=1e-7 * np.abs(b).sum())
        Z = X + 0.1
        values = model.predict(Z) if regression else model.decision_function(Z)
        np.testing.assert_allclose(values, K.extend(Z, b) + model.intercept_[0], atol=1e-7 * np.abs(b).sum())


@pytest.mark.once
def test_compressed_values_of_several_classes_equal_rows_and_rows_without_weight():
    iris, kinds = load_iris(return_X_y=True)
    weights = np.where(np.arange(150) % 7, 1.0, 0.0)
    model = HSSADMMClassifier(**COMPRESSED).fit(np.vstack([iris, iris]), np.tile(kinds, 2), np.tile(weights, 2))
    assert model.score(iris, kinds) > 0.9
    assert model.decision_function(iris).shape == (150, 3)
    sparse_model = HSSADMMClassifier(**COMPRESSED).fit(sparse.csr_array(iris), kinds, weights)
    dense_model = HSSADMMClassifier(**COMPRESSED).fit(iris, kinds, weights)
    np.testing.assert_array_equal(sparse_model.decision_function(sparse.csr_array(iris)), dense_model.decision_function(iris))


@pytest.mark.once
def test_compressed_values_are_as_good_as_exact_ones():
    X, y = two_classes(2 * N)
    compressed = HSSADMMClassifier(**COMPRESSED).fit(X[::2], y[::2])
    exact = CSMOClassifier(gamma=0.5).fit(X[::2], y[::2])
    assert compressed.score(X[1::2], y[1::2]) > exact.score(X[1::2], y[1::2]) - 0.02


@pytest.mark.once
def test_the_kernel_of_predictions_is_that_of_the_last_fit():
    X, y = two_classes()
    model = exact_classifier(gamma=0.5, rel_tol=0.1, max_iter=5000)
    exact = model.fit(X, y).decision_function(X)
    model.set_params(predict_with="compressed").fit(X, y)
    assert not np.array_equal(model.decision_function(X), exact)
    again = model.set_params(predict_with="exact").fit(X, y)
    np.testing.assert_array_equal(again.decision_function(X), exact)


@pytest.mark.once
def test_saved_and_distilled_models_with_compressed_values():
    X, y = two_classes()
    model = HSSADMMClassifier(**COMPRESSED).fit(X, y)
    state = model.__getstate__()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.decision_function(X), again.decision_function(X))
    assert (model.to_budget(60, X).predict_many(X) == model.predict(X)).mean() > 0.95
    forest = model._forest
    for changed in (
        {"_forest": 3},
        {"solved_exactly_": True},
        {"solved_exactly_": 0},
        {"_forest": tuple(forest._replace(rows=forest.rows + 10_000))},
        {"_forest": tuple(forest._replace(right=forest.right[::-1].copy()))},
        {"support_vectors_": sparse.csr_array(state["support_vectors_"])},
    ):
        refused("corrupt", HSSADMMClassifier().__setstate__, {**state, **changed})
