"""Kernel recursive least squares: against the solution in float64."""

import pickle

import numpy as np
import pytest
from numba import config

import naive_rls
from naive_rls import unpacked
from problems import blobs, sine_classes, sine_curve, snapshot
from refused import refused
from streamsvm.core.memory.landmarks import LandmarkStore
from streamsvm.core.steps.iterates import LAST_ITERATE
from streamsvm.core.steps.least_squares import compute_factor, step_weights
from streamsvm.learners import KernelRLSClassifier, KernelRLSRegressor

NOJIT = config.DISABLE_JIT
GAMMA = 0.5
ROWS = 640 if NOJIT else 1500
BUDGET = 8 if NOJIT else 30


def rows(X):
    return [dict(enumerate(x)) for x in X.tolist()]


def equations(model):
    """S, c and the prior of a model."""
    v, n, stride = model._store.views, model.n_support + 1, int(model._store.views.header[0]["stride"])
    return unpacked(v.moments, stride, n), v.products[: model._n_outputs, :n].copy(), unpacked(v.prior, stride, n)


def targets_of(y, outputs):
    if outputs == 1:
        return np.where(y, 1.0, -1.0)[None]
    return np.where(y[None] == np.arange(outputs)[:, None], 1.0, -1.0)


@pytest.mark.parametrize(
    ("classes", "forgetting"), [(3, 0.995), *(pytest.param(2, rate, marks=pytest.mark.once) for rate in (1.0, 0.995))]
)
def test_normal_equations_sum_all_rows_and_weights_solve_them(classes, forgetting):
    X, y = blobs(classes, rows=ROWS)
    w = np.random.default_rng(1).choice([0.5, 1.0, 3.0], size=ROWS)
    model = KernelRLSClassifier(BUDGET, gamma=GAMMA, forgetting_factor=forgetting, max_swaps=0)
    model.learn_many(X, y.tolist(), w)
    S, c, R = equations(model)
    L = model.support_vectors.astype(float)
    Z = naive_rls.regressors(X.astype(float), L, GAMMA)
    order = y if classes == 2 else np.array([model.labels.index(k) for k in y.tolist()])
    T = targets_of(order == 1 if classes == 2 else order, 1 if classes == 2 else classes)
    expected_R = naive_rls.prior(L, GAMMA, 0.3)
    np.testing.assert_allclose(R, expected_R, rtol=2e-5, atol=1e-7)
    expected_S, expected_c, taken = naive_rls.normal_equations(Z, T, w, expected_R, forgetting)
    assert ROWS - taken == model._rule_record[0]["n_buffered"]
    scale = np.abs(expected_S).max()
    np.testing.assert_allclose(S, expected_S, rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(c, expected_c, rtol=1e-5, atol=1e-6 * scale)
    best = np.linalg.solve(expected_S, expected_c.T).T
    for weights, v, right in zip(model._get_output_weights("average"), best, expected_c, strict=True):
        least = -0.5 * right @ v
        assert 0.5 * weights @ expected_S @ weights - right @ weights - least <= 0.01 * abs(least)
    # Steps with a factor of the current S solve the equations.
    compute_factor(model._block)
    for _ in range(50):
        v, n = model._store.views, len(expected_S)
        v.residuals[: len(c), :n] = c - v.weights[: len(c), :n] @ S
        step_weights(model._block)
    probe = Z[:50]
    np.testing.assert_allclose(probe @ model._get_output_weights("average").T, probe @ best.T, atol=0.01)


def test_corrections_are_normalised_least_mean_squares():
    X, y = sine_curve(80, 2, 0.1)
    model, L, v, size = KernelRLSRegressor(12, gamma=GAMMA), [], np.zeros(1), 1
    for x, row, target in zip(X.astype(np.float32).astype(float), rows(X), y, strict=True):
        z = naive_rls.regressors([x], L, GAMMA)[0] if L else np.ones(1)
        slow = z @ model._get_output_weights("average")[0]
        assert model._compute_output(row, LAST_ITERATE) == pytest.approx(slow + z @ v, abs=1e-5)
        v = 0.9 * v + 0.3 * (target - slow - z @ v) / (z @ z) * z
        model.learn_one(row, target)
        if model.n_support == size:
            L.append(x)
            v = np.append(v, 0.0)
            size += 1
        np.testing.assert_allclose(model._store.views.corrections[0, : len(v)], v, atol=1e-5)


@pytest.mark.once
def test_first_landmarks_are_apart_from_each_other():
    X, y = blobs(rows=300)
    model, L = KernelRLSClassifier(25, gamma=GAMMA), []
    model.learn_many(X, y.tolist())
    for x in X.astype(float):
        if len(L) < 25 and all(naive_rls.rbf(x, s, GAMMA) ** 2 < 0.9 for s in L):
            L.append(x)
    np.testing.assert_array_equal(model.support_vectors, np.float32(L))


def test_a_swap_projects_the_new_landmark_on_its_neighbours():
    X, y = sine_classes(2000, 2)
    model = KernelRLSClassifier(20, gamma=4.0, max_swaps=1)
    swaps = 0
    for i in range(800 if NOJIT else 2000):
        before, landmarks, n = equations(model), model.support_vectors, model.n_swaps
        usage = model._store.views.usage[1:21].copy()
        block, targets = model._store.views.regressors.copy(), model._store.views.targets.copy()
        model.learn_many(X[i : i + 1], y[i : i + 1].tolist())
        if model.n_swaps == n:
            continue
        swaps += 1
        S, c, R = equations(model)
        new = model.support_vectors
        (place,) = np.flatnonzero((new != landmarks).any(axis=1)) + 1
        remaining = [j for j in range(1, 21) if j != place]
        assert usage[place - 1] == min(usage)
        np.testing.assert_allclose(R, naive_rls.prior(new.astype(float), 4.0, 0.3), rtol=2e-5, atol=1e-7)
        expected_S, expected_c = naive_rls.projected(before[0], before[1], place, R, remaining)
        # The rows gathered since, with the projection as the new landmark's regressor, come on top.
        A = R[np.ix_(remaining, remaining)].copy()
        A[np.diag_indices(19)] *= 1.0 + 1e-4
        x = np.linalg.solve(A, R[place, remaining])
        z = block[:, :21].astype(float)
        last = naive_rls.regressors(X[i : i + 1].astype(np.float32).astype(float), landmarks.astype(float), 4.0)
        z[63], targets[63] = last[0], 1.0 if y[i] == 1 else -1.0
        z[:, place] = z[:, remaining] @ x
        np.testing.assert_allclose(S, expected_S + z.T @ z, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(c[0], (expected_c + targets @ z)[0], rtol=1e-4, atol=1e-3)
    assert swaps == model.n_swaps >= (1 if NOJIT else 3)


@pytest.mark.skipif(NOJIT, reason="slow")
def test_swapped_landmarks_follow_concept_drift():
    def accuracy(max_swaps):
        rng = np.random.default_rng(0)
        X, place = rng.normal(size=(3000, 2)), 0.002 * np.arange(3000)
        y = np.square(X).sum(axis=1) > 1.4
        X[:, 0] += place
        model = KernelRLSClassifier(30, gamma=0.5, max_swaps=max_swaps)
        right = 0
        for start in range(0, 3000, 50):
            right += (model.predict_many(X[start : start + 50]) == y[start : start + 50]).sum() if start else 0
            model.learn_many(X[start : start + 50], y[start : start + 50].tolist())
        return right / 3000.0

    assert accuracy(5) > accuracy(0) + 0.05


@pytest.mark.parametrize("kernel", [pytest.param("rbf", marks=pytest.mark.once), "linear"])
def test_learn_one_equals_learn_many_for_kernel_rls(kernel):
    X, y = blobs(3, rows=600 if NOJIT else 1200)
    many, one = (KernelRLSClassifier(12, kernel=kernel) for _ in range(2))
    many.learn_many(X, y.tolist())
    for x, label in zip(rows(X), y.tolist(), strict=True):
        one.predict_one(x)
        one.learn_one(x, label)
    assert snapshot(one) == snapshot(many)


@pytest.mark.once
@pytest.mark.parametrize("budget", [10, 150])
def test_saved_model_continues_identically(budget):
    X, y = blobs(3, rows=1000)
    rng = np.random.default_rng(0)
    model, loaded = (KernelRLSClassifier(budget) for _ in range(2))
    for start in range(0, 1000, 10):
        for m in (model, loaded):
            m.learn_many(X[start : start + 10], y[start : start + 10].tolist())
        if rng.random() < 0.2:
            model = pickle.loads(pickle.dumps(model))
    assert snapshot(model) == snapshot(loaded)
    assert model.nbytes == loaded.nbytes


@pytest.mark.once
def test_a_third_label_changes_no_decision_on_the_other_two():
    X, y = blobs(rows=700)
    for labels in (["x", "y"], [True, False], [0, 1]):
        model = KernelRLSClassifier(10, gamma=GAMMA)
        model.learn_many(X, [labels[k] for k in y])
        positive = model.positive_label
        before = [model.decision_function_one(x, output="average") for x in rows(X[:20])]
        model._labels.encode("third")
        model._resize(3)
        for x, f in zip(rows(X[:20]), before, strict=True):
            scores = model.decision_function_one(x, output="average")
            (negative,) = set(scores) - {positive, "third"}
            assert (scores[positive], scores[negative], scores["third"]) == pytest.approx((f, -f, -1.0))
        # The equations of the new label are those of rows that all had the target -1.
        S, c, R = equations(model)
        np.testing.assert_allclose(c[2], -(S - R)[0])


@pytest.mark.once
def test_late_labels_are_learned_as_if_known_from_the_start():
    X, y = blobs(4, rows=ROWS)
    late = np.argsort((y == 3) * ROWS // 3 + np.arange(ROWS), kind="stable")
    X, y = X[late], y[late]
    models = [KernelRLSClassifier(BUDGET, gamma=GAMMA, max_swaps=0) for _ in range(2)]
    for label in range(4):
        models[1]._labels.encode(label)
    models[1]._resize(4)
    for model in models:
        model.learn_many(X, y.tolist())
    order = [models[0].labels.index(label) for label in range(4)]
    S, c, _ = equations(models[0])
    known_S, known_c, _ = equations(models[1])
    np.testing.assert_array_equal(S, known_S)
    np.testing.assert_allclose(c[order], known_c, atol=1e-6 * ROWS)
    assert np.mean(models[0].predict_many(X) == models[1].predict_many(X)) > 0.95
    assert models[0].coefficients.shape == (4, models[0].n_support)


SIZES = [(kernel, scale) for scale in (1e-30, 1e-3, 1e6, 1e15) for kernel in ("rbf", "linear", "poly")]


@pytest.mark.parametrize(("kernel", "scale"), SIZES[:: 4 if NOJIT else 1])  # without compiled code each kernel still comes once
def test_rows_of_any_scale_leave_a_finite_model(kernel, scale):
    X, y = blobs(rows=600 if NOJIT else 1500)
    X[::7] *= np.float32(scale)
    model = KernelRLSClassifier(10, kernel=kernel, gamma=0.5, coef0=1.0)
    model.learn_many(X, y.tolist(), np.where(np.arange(len(y)) % 5, 1.0, 1e9))
    assert np.isfinite(model.coefficients).all()
    assert np.isfinite(model.decision_function_many(X)).all()
    assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)


@pytest.mark.once
def test_equal_rows_only():
    model = KernelRLSClassifier(10)
    for i in range(700):
        model.learn_one({"a": 1.0, "b": 2.0}, i % 3 == 0)
    assert model.n_support == 1
    assert model.predict_one({"a": 1.0, "b": 2.0}) is False
    assert model.decision_function_one({"a": 1.0, "b": 2.0}, output="average") == pytest.approx(-1.0 / 3.0, abs=0.02)


QUIET = [
    {"gamma": gamma, "budget": budget, "forgetting_factor": forgetting}
    for gamma in (0.5, 0.8, 1.25)
    for budget, forgetting in ((60, 1.0), (100, 1.0), (300, 1.0), (60, 0.99))
]


@pytest.mark.once
@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("quiet", [300] if NOJIT else [1000, 4000])
def test_accuracy_recovers_after_a_stretch_of_equal_rows(quiet, regression):
    # A sensor that stands still: rounding errors of equal rows are equal, and must not add up in S.
    X, y = sine_curve(4000, 2, 0.1) if regression else sine_classes(4000, 2, noise=0.1)
    cls = KernelRLSRegressor if regression else KernelRLSClassifier
    y, first, last = y.tolist(), 700, 900 if NOJIT else 3500
    rest = np.s_[last : last + 500]

    def loss(model, n):
        model.learn_many(X[:first], y[:first])
        model.learn_many(np.repeat(X[:1], n, axis=0), y[:1] * n)
        model.learn_many(X[first:last], y[first:last])
        answers = model.predict_many(X[rest])
        return np.mean(np.abs(answers - y[rest])) if regression else np.mean(answers != y[rest])

    for options in QUIET[:1] if NOJIT else QUIET:
        model = cls(**options)
        assert loss(model, quiet) <= loss(cls(**options), 0) + 0.03, options
        assert np.linalg.eigvalsh(equations(model)[0])[0] > 0.0, options
        assert np.abs(model.coefficients).max() < 1e4, options


def test_snapshots_of_other_sizes_are_refused():
    store = LandmarkStore(10, 3)
    for data in (store.snapshot()[:-1], LandmarkStore(200, 3).snapshot(), LandmarkStore(11, 3).snapshot()):
        refused("snapshot", store.restore, data)
