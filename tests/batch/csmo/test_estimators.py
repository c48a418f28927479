"""Conjugate SMO against a slow reference implementation, scikit-learn and the optimality conditions."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, SVR

import naive_batch
from failing import Failing, interrupts
from problems import sine_classes, sine_curve
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMORegressor
from streamsvm.batch.csmo import machine, solver

SLOW = config.DISABLE_JIT
N = 60 if SLOW else 300


def two_classes(n=N, noise=0.5):
    return sine_classes(n, 4, noise)


def curve(n=N):
    return sine_curve(n, 3, 0.2)


def coefficients(model, n):
    b = np.zeros(n)
    dual = model.dual_coef_
    b[model.support_] = (dual.toarray() if sparse.issparse(dual) else dual)[0]
    return b


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return (X[:80], y[:80]) if SLOW else (X, y)


KERNELS = [*naive_batch.KERNELS, {"kernel": "sigmoid", "gamma": 0.02, "coef0": 0.1}]


@pytest.mark.once
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel"])
def test_classifier_objective_matches_the_reference(kernel, form):
    X, y = two_classes()
    if form == "sparse":
        X = np.where(np.abs(X) > 1.0, X, 0.0)
    K = naive_batch.kernel_matrix(X, X, **kernel)
    b, objective = naive_batch.classify(K, y, 3.0, 1e-3)
    for conjugate in (True, False):
        model = CSMOClassifier(C=3.0, conjugate=conjugate, **kernel).fit(sparse.csr_array(X) if form == "sparse" else X, y)
        ours = coefficients(model, len(y))
        assert abs(ours.sum()) < 1e-9
        assert (ours * y >= 0.0).all()
        assert np.abs(ours).max() <= 3.0
        assert naive_batch.classification_objective(K, y, ours) <= objective + 1e-4 * abs(objective)
        assert model.objective_ == pytest.approx(naive_batch.classification_objective(K, y, ours), rel=1e-5)
        gap = naive_batch.gap(K, ours, np.where(y > 0, 0.0, -3.0), np.where(y > 0, 3.0, 0.0), y)
        assert gap <= 1e-3 * (1.0 + 1e-9)
        assert model.gap_ == pytest.approx(gap, abs=1e-9)
        assert 0.0 <= model.duality_gap_ <= 1e-3 * 3.0 * len(y)
        assert np.allclose(model.decision_function(X), K @ ours + model.intercept_, atol=1e-9)
        assert np.abs(K @ b - K @ ours).max() < 0.02 * max(np.abs(K @ b).max(), 1.0)


@pytest.mark.once
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("conjugate", [True, False])
def test_regressor_objective_matches_the_reference(conjugate, epsilon):
    X, y = curve()
    K = naive_batch.kernel_matrix(X, X, gamma=0.7)
    _, objective = naive_batch.regress(K, y, 3.0, epsilon, 1e-3)
    model = CSMORegressor(C=3.0, gamma=0.7, epsilon=epsilon, conjugate=conjugate).fit(X, y)
    ours = coefficients(model, len(y))
    assert abs(ours.sum()) < 1e-9
    assert np.abs(ours).max() <= 3.0
    assert naive_batch.regression_objective(K, y, epsilon, ours) <= objective + 1e-4 * abs(objective)
    gap = naive_batch.gap(K, ours, -3.0, 3.0, y, epsilon)
    assert gap <= 1e-3 * (1.0 + 1e-9)
    assert model.gap_ == pytest.approx(gap, abs=1e-9)
    assert 0.0 <= model.duality_gap_ <= 1e-3 * 3.0 * len(y)
    assert np.allclose(model.predict(X), K @ ours + model.intercept_, atol=1e-9)


@pytest.mark.once
@pytest.mark.parametrize("C", [0.1, 10.0, 1000.0])
def test_objective_matches_scikit_learn(C):
    X, y = cancer()
    K = naive_batch.kernel_matrix(X, X, gamma=0.05)
    signs = np.where(y == 1, 1.0, -1.0)
    ours, peer = CSMOClassifier(C=C, gamma=0.05).fit(X, y), SVC(C=C, gamma=0.05).fit(X, y)
    objective, expected = (naive_batch.classification_objective(K, signs, coefficients(model, len(y))) for model in (ours, peer))
    assert objective <= expected + 1e-5 * abs(expected)
    assert np.array_equal(ours.predict(X), peer.predict(X)) or np.mean(ours.predict(X) != peer.predict(X)) <= 0.002
    X, t = load_diabetes(return_X_y=True)
    X, t = X[:N], t[:N]
    ours, peer = CSMORegressor(C=C, gamma=20.0).fit(X, t), SVR(C=C, gamma=20.0).fit(X, t)
    K = naive_batch.kernel_matrix(X, X, gamma=20.0)
    objective, expected = (naive_batch.regression_objective(K, t, 0.1, coefficients(model, len(t))) for model in (ours, peer))
    assert objective <= expected + 1e-5 * abs(expected)
    assert ours.score(X, t) == pytest.approx(peer.score(X, t), abs=1e-3)


@pytest.mark.skipif(SLOW, reason="minutes without compilation")
def test_two_valued_features_become_indicators_and_equal_rows_merge():
    X, y = load_digits(return_X_y=True)
    X, y = (X[:900] > 8.0).astype(float), y[:900] >= 5
    X = np.vstack([X, X[:150]])
    y = np.concatenate([y, ~y[:150]])  # equal rows of both classes
    ours, peer = CSMOClassifier(C=2.0, gamma=0.05).fit(X, y), SVC(C=2.0, gamma=0.05).fit(X, y)
    K = naive_batch.kernel_matrix(X, X, gamma=0.05)
    signs = np.where(y, 1.0, -1.0)
    b, b_peer = (coefficients(model, len(y)) for model in (ours, peer))
    assert (b * signs >= 0.0).all()
    assert np.abs(b).max() <= 2.0
    assert np.sum(b != 0.0) <= 1.05 * np.sum(b_peer != 0.0)  # equal rows are support vectors one after the other
    objective, expected = (naive_batch.classification_objective(K, signs, b) for b in (b, b_peer))
    assert objective <= expected + 1e-5 * abs(expected)
    assert ours.objective_ == pytest.approx(objective, rel=1e-5)
    ours.set_params(tol=1e-7).fit(X, y)
    shifted = CSMOClassifier(C=2.0, gamma=0.05 / 9.0, tol=1e-7).fit(3.0 * X - 7.0, y)  # other values, same distances
    assert np.allclose(shifted.decision_function(3.0 * X - 7.0), ours.decision_function(X), atol=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("conjugate", [True, False])
def test_shrinking_does_not_change_the_solution(conjugate, monkeypatch):
    monkeypatch.setattr(solver, "_STEPS_BETWEEN_SHRINKS", 20)
    monkeypatch.setattr(solver, "MAX_UNINTERRUPTED_OPERATIONS", 1.0)  # the least number of steps at a time
    for model, (X, y) in ((CSMOClassifier, two_classes(noise=1.0)), (CSMORegressor, curve())):
        objectives = [
            model(C=50.0, gamma=0.5, shrinking=shrinking, conjugate=conjugate, tol=1e-4).fit(X, y).objective_
            for shrinking in (True, False)
        ]
        # Rows that come back have kernel values by products in float32, whose errors the objective shows.
        assert objectives[0] == pytest.approx(objectives[1], rel=3e-6)


@pytest.mark.skipif(SLOW, reason="minutes without compilation")
def test_conjugate_directions_save_steps():
    X, y = curve(1500)
    steps = [
        CSMORegressor(C=100.0, gamma=0.3, epsilon=0.01, conjugate=conjugate).fit(X, y).n_iter_ for conjugate in (True, False)
    ]
    assert steps[0] < 0.8 * steps[1]


@settings(max_examples=5 if SLOW else 40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 25),
    levels=st.integers(1, 4),
    C=st.sampled_from([0.01, 1.0, 100.0]),
    regression=st.booleans(),
)
def test_repeated_rows_reach_the_optimum(seed, n, levels, C, regression):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, levels, size=(n, 2)).astype(float)
    y = rng.integers(0, 2, n) * 2 - 1
    y[:2] = -1, 1
    weights = rng.uniform(0.1, 2.0, n)
    K = naive_batch.kernel_matrix(X, X, gamma=0.5)
    bounds = C * weights
    if regression:
        model = CSMORegressor(C=C, gamma=0.5).fit(X, y, weights)
        low, high, epsilon = -bounds, bounds, 0.1
    else:
        model = CSMOClassifier(C=C, gamma=0.5).fit(X, y, weights)
        low, high, epsilon = np.where(y > 0, 0.0, -bounds), np.where(y > 0, bounds, 0.0), 0.0
    b = coefficients(model, n)
    assert abs(b.sum()) < 1e-8
    near = 1e-9 * bounds  # the shares of equal rows round
    assert (b >= low - near).all()
    assert (b <= high + near).all()
    assert naive_batch.gap(K, b, low + near, high - near, y, epsilon) <= 1.001e-3


@pytest.mark.once
def test_warm_start_needs_fewer_steps():
    for model, (X, y) in ((CSMOClassifier, two_classes()), (CSMORegressor, curve())):
        cold = model(C=10.0, gamma=0.5).fit(X, y)
        again = model(C=10.0, gamma=0.5).fit(X, y, dual_coef_init=coefficients(cold, len(y)))
        assert np.sum(again.n_iter_) <= 0.1 * np.sum(cold.n_iter_)
        assert again.objective_ <= cold.objective_ + 1e-5 * abs(cold.objective_)  # kernel values are of float32
        wild = model(C=10.0, gamma=0.5).fit(X, y, dual_coef_init=np.linspace(-90.0, 100.0, len(y)))
        assert wild.gap_ <= 1e-3
        assert wild.objective_ == pytest.approx(cold.objective_, rel=1e-4)
    refused("dual_coef_init must be", CSMOClassifier().fit, X[:4], [0, 1, 0, 1], dual_coef_init=[0.0, np.nan, 0.0, 0.0])
    refused("two classes", CSMOClassifier().fit, X[:3], [0, 1, 2], dual_coef_init=[0.0, 0.0, 0.0])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel"])
def test_sparse_and_dense_rows_give_equal_models(kernel):
    rng = np.random.default_rng(3)
    n, d = (40, 400) if SLOW else (150, 4000)  # so wide that they stay sparse
    X = sparse.random_array((n, d), density=0.005, rng=rng, format="csr")
    y = np.where(np.asarray(X.sum(axis=1)).ravel() > X.sum() / n, "yes", "no")
    X.data[:5] = 0.0  # explicit zeros
    thin, thick = CSMOClassifier(C=5.0, **kernel).fit(X, y), CSMOClassifier(C=5.0, **kernel).fit(X.toarray(), y)
    assert sparse.issparse(thin.support_vectors_)
    assert thin.objective_ == pytest.approx(thick.objective_, rel=1e-5)
    assert np.allclose(thin.decision_function(X), thick.decision_function(X.toarray()), atol=1e-2)
    for model in (thin, thick):
        assert np.allclose(model.decision_function(X), model.decision_function(X.toarray()), rtol=1e-9)


@pytest.mark.once
def test_the_cache_respects_its_limit_without_changing_results(monkeypatch):
    X, y = two_classes()
    sizes = []
    monkeypatch.setattr(machine, "allocate_buffer", lambda *args: sizes.append(buffer := solver.allocate_buffer(*args)) or buffer)
    limits = [0.02, 0.05, 1.0]
    models = [CSMOClassifier(C=10.0, gamma=0.5, cache_size=limit).fit(X, y) for limit in limits]
    for limit, buffer in zip(limits, sizes, strict=True):
        assert buffer.nbytes <= limit * 2**20
    tiny = CSMOClassifier(C=10.0, gamma=0.5, cache_size=1e-9).fit(X, y)  # two columns
    for model in (*models, tiny):  # kernel values are rounded alike only where they are computed together
        assert model.gap_ <= 1e-3
        assert model.objective_ == pytest.approx(models[0].objective_, rel=1e-6)


@pytest.mark.skipif(SLOW, reason="minutes without compilation")
@pytest.mark.parametrize(("kind", "form"), [(CSMOClassifier, "dense"), (CSMORegressor, "dense"), (CSMOClassifier, "sparse")])
def test_memory_stays_below_the_documented_bound(kind, form):
    rng, n = np.random.default_rng(0), 4000
    X, stated = rng.normal(size=(n, 30)), 40 * n * 30
    if form == "sparse":
        X = sparse.csr_array(np.where(rng.random((n, 500)) < 0.02, rng.normal(size=(n, 500)), 0.0))
        stated = 90 * X.nnz
    f = X @ rng.normal(size=X.shape[1])
    y = (f + 0.3 * f.std() * rng.normal(size=n) > 0.0).astype(float)
    model = kind(gamma=0.05, cache_size=3.0, tol=0.3)
    model.fit(X[:1200], y[:1200])  # compiles
    tracemalloc.start()
    model.fit(X, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(model.support_) > 1000
    assert peak <= 1.05 * 3.0 * 2**20 + stated + 400 * n + 2**20 < 0.25 * 4 * n * n


def test_the_order_of_rows_does_not_matter():
    X, y = curve(50)
    order = np.random.default_rng(0).permutation(50)
    one, reordered = CSMORegressor(C=10.0).fit(X, y), CSMORegressor(C=10.0).fit(X[order], y[order])
    assert np.allclose(one.predict(X), reordered.predict(X), rtol=1e-9)
    assert np.array_equal(pickle.loads(pickle.dumps(one)).predict(X), one.predict(X))


# Bad input -----------------------------------------------------------------------------------------------------------------


def test_refused_rows():
    X, y = two_classes(10)
    refused("no row whose sample_weight", CSMOClassifier().fit, X, y, y > 0)
    refused("zero", CSMORegressor().fit, X, y, np.zeros(10))
    for kernel in ("rbf", "linear", "poly"):
        refused("too large for this kernel", CSMOClassifier(kernel=kernel, gamma=1.0).fit, 1e18 * X, y)


def test_unusual_but_valid_rows_are_learned():
    X, y = two_classes(20)
    flat = CSMOClassifier().fit(np.ones((20, 3)), y)  # nothing tells rows apart
    assert len(set(flat.predict(np.ones((4, 3))))) == 1
    twins = CSMOClassifier(C=2.0).fit(np.vstack([X, X]), np.concatenate([y, -y]))
    assert np.allclose(twins.decision_function(X), 0.0, atol=1e-3)
    plain = CSMOClassifier(gamma=0.5).fit(X, y).decision_function(X)
    wide = np.hstack([X, np.full((20, 2), 5.0)])
    assert np.allclose(CSMOClassifier(gamma=0.5).fit(wide, y).decision_function(wide), plain, atol=0.02)
    assert CSMORegressor().fit([[1.0]], [3.0]).predict([[2.0]]) == pytest.approx(3.0)
    assert CSMORegressor().fit(X, np.full(20, 7.0)).predict(X) == pytest.approx(np.full(20, 7.0))
    assert CSMOClassifier().fit([[0.0], [1.0]], [0, 1]).predict([[0.1], [0.9]]).tolist() == [0, 1]
    far = CSMOClassifier(gamma=0.5).fit(X + 1000.0, y)
    assert np.allclose(far.decision_function(X + 1000.0), plain, atol=0.02)


@pytest.mark.once
def test_an_unreachable_tolerance_warns_with_the_gap():
    X, y = two_classes()
    with pytest.warns(ConvergenceWarning, match=r"^Solver terminated early \(max_iter=30\)\..* ended with a gap of"):
        model = CSMOClassifier(C=10.0, gamma=0.5, max_iter=30).fit(X, y)
    assert model.gap_ > 1e-3
    assert model.n_iter_.tolist() == [30]
    assert np.isfinite(model.decision_function(X)).all()
    K = naive_batch.kernel_matrix(X, X, gamma=0.5)
    b = coefficients(model, len(y))
    assert model.gap_ == pytest.approx(naive_batch.gap(K, b, np.minimum(10.0 * y, 0.0), np.maximum(10.0 * y, 0.0), y), abs=1e-9)
    with pytest.warns(ConvergenceWarning):
        model = CSMORegressor(C=10.0, tol=1e-18).fit(*curve())
    assert model.gap_ < 1e-6


def test_interrupted_fit_keeps_the_last_iterate(monkeypatch):
    X, y = two_classes()
    steps = Failing(solver.run_steps, 3)
    monkeypatch.setattr(solver, "run_steps", steps)
    monkeypatch.setattr(solver, "_STEPS_BETWEEN_SHRINKS", 20)
    monkeypatch.setattr(solver, "MAX_UNINTERRUPTED_OPERATIONS", 1.0)
    monkeypatch.setattr(solver, "_MAX_SMALL_ROWS", 0)
    model = CSMOClassifier(C=10.0, gamma=0.5, shrinking=False)
    interrupts(model.fit, X, y)
    assert model.n_iter_.tolist() == [100]
    assert model.gap_ > 1e-3
    assert np.mean(model.predict(X) == y) > 0.7
    steps.calls = 0
    X, y = load_iris(return_X_y=True)
    model = CSMOClassifier(C=1000.0, shrinking=False)
    interrupts(model.fit, X, y)
    assert model.decision_function(X).shape == (150, 3)


def test_progress_is_shown(capsys):
    CSMOClassifier(verbose=True).fit(*two_classes(30))
    assert "rows in the working set" in capsys.readouterr().err


@pytest.mark.once
@pytest.mark.parametrize("megabytes", [0.3, 200.0])  # no room for all kernel values, and room for them twice
@pytest.mark.parametrize("kind", [CSMOClassifier, CSMORegressor])
def test_path_models_equal_single_fits(kind, megabytes, monkeypatch):
    monkeypatch.setattr(solver, "_MAX_SMALL_ROWS", 0)
    X, y = two_classes() if kind is CSMOClassifier else curve()
    weights, model = np.random.default_rng(0).integers(0, 3, len(y)) / 2.0, kind(gamma=0.5, tol=1e-5, cache_size=megabytes)
    path = model.fit_path(X, y, [0.1, 1.0, 1000.0, 2.0], sample_weight=weights)
    assert not hasattr(model, "support_")
    for C, model_of_path in zip([0.1, 1.0, 1000.0, 2.0], path, strict=True):
        one = clone(model).set_params(C=C).fit(X, y, sample_weight=weights)
        assert model_of_path.C == C
        assert model_of_path.gap_ <= 1e-5
        assert model_of_path.objective_ == pytest.approx(one.objective_, rel=1e-6)
        np.testing.assert_allclose(model_of_path._compute_decisions(X), one._compute_decisions(X), atol=1e-3)


@pytest.mark.once
def test_small_fits_of_a_path_share_kernel_values():
    assert solver.allocate_gram(2000, 200.0).values.shape == (2000, 2000)
    assert solver.allocate_gram(2001, 200.0) is None
    assert solver.allocate_gram(2000, 30.0) is None  # no room beside as many columns


@pytest.mark.once
def test_a_path_of_few_rows_and_three_classes():
    X, y = load_iris(return_X_y=True)
    for C, model_of_path in zip([1.0, 10.0], CSMOClassifier().fit_path(X, y, [1.0, 10.0]), strict=True):
        np.testing.assert_array_equal(model_of_path._compute_decisions(X), CSMOClassifier(C=C).fit(X, y)._compute_decisions(X))
    refused("Cs must be numbers", CSMOClassifier().fit_path, X, y, [])
    refused("C must be", CSMOClassifier().fit_path, X, y, [1.0, 0.0])
