"""BSCAClassifier against its twin, and its extra steps against their definition."""

import itertools
import pickle

import numpy as np
import pytest

import naive
from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor
from streamsvm.core.steps import coordinate_ascent


@pytest.mark.parametrize("C", [0.01, 0.5, 1000.0])
def test_the_largest_step_of_one_pass(C):
    model, twin = BSCAClassifier(budget=2, C=C), naive.NaiveBSCA(2, 1.0, C, averaging=3000)
    every = itertools.product([1, 700, 2500, 10**6], [(0.1, 0.1), (0.2, 0.19), (0.2, 0.05), (0.01, 0.3), (50.0, 49.0)])
    for t, errors in every:
        model._common["t"], model._common["error"], model._rule_record["C"] = t, errors, C
        twin.t, twin.errors = t, errors
        largest = coordinate_ascent.compute_step_limit(model._block, 1.0)
        assert largest == pytest.approx(twin.largest_step()), (t, errors)
        assert largest <= max(C, 3000.0 / t)
        # The bound is one of decision values: a row whose self-kernel is 4 is moved by no more.
        model._rule_record["C"] = 0.25 * C
        assert 4.0 * coordinate_ascent.compute_step_limit(model._block, 4.0) == pytest.approx(largest)
    without = BSCAClassifier(budget=2, C=7.0, averaging=0)  # steps are as long as asked
    without._common["t"], without._common["error"] = 10, (0.3, 0.1)
    assert coordinate_ascent.compute_step_limit(without._block, 1.0) == 7.0


def turned(n, at, seed=0):
    """Rows of two features whose labels change places."""
    X = np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)
    return X, (X[:, 0] > 0.3 * X[:, 1] ** 2) ^ (np.arange(n) >= at)


@pytest.mark.once
@pytest.mark.parametrize("numbers", [False, True])
def test_drift_is_detected_at_the_same_rows_as_by_the_twin(numbers):
    X, y = turned(420, 300)
    options = {"gamma": 0.8, "budget": 420}  # without merges, which could set the two apart
    if numbers:
        model = BSCARegressor(**options, scaling=None, relaxation=0.3)
        twin = naive.NaiveBSCARegression(**options, C=1.0, relaxation=0.3, averaging=3000, epsilon=0.1)
    else:
        model = BSCAClassifier(**options, scaling=None, relaxation=1.0, tol=0.0, reprocess=0)
        twin = naive.NaiveBSCA(**options, C=1.0, averaging=3000)
    drifts = []
    targets = np.sin(X[:, 0]) * np.where(np.arange(420) < 300, 1.0, -1.0) if numbers else np.where(y == y[0], 1.0, -1.0)
    for number, (row, target) in enumerate(zip(X, targets.tolist(), strict=True)):
        x = dict(enumerate(row.tolist()))
        got = [model._compute_output(x, iterate) for iterate in (0, 1)]
        np.testing.assert_allclose(got, twin.decisions(row), atol=1e-4 * (sum(map(abs, twin.last)) + 1.0))
        model.learn_one(x, target if numbers else target > 0.0)
        twin.learn(row, target)
        if twin.t == 1 and number:
            drifts.append(number)
            assert np.count_nonzero(model._store.views.weights) <= 1
        assert (model._common["t"][0], model.n_learned) == (twin.t, number + 1)
    assert len(drifts) == 1
    assert 300 < drifts[0] < 330


@pytest.mark.once
@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_saved_after_drift_continues_identically(classes):
    X, turn = turned(1200, 600)
    y = (turn.astype(int) + (classes - 2) * (X[:, 1] > 1.0)) % classes
    model = BSCAClassifier(budget=20, seed=0)
    model.learn_many(X[:900], y[:900])
    assert model._rule_record["forgotten"][0] > 600
    assert model.n_learned == 900
    again = pickle.loads(pickle.dumps(model))
    for one in (model, again):
        one.learn_many(X[900:], y[900:])
    assert again._store.snapshot() == model._store.snapshot()
    assert np.mean(model.predict_many(X[900:]) == y[900:]) > 0.9


@pytest.mark.once
@pytest.mark.parametrize(("options", "weight"), [({"averaging": 0}, 1.0), ({}, 2.0), ({"class_weight": "balanced"}, 1.0)])
def test_drift_is_not_detected_without_averaging_or_with_weights(options, weight):
    X, y = turned(900, 600)
    model = BSCAClassifier(budget=20, seed=0, **options)
    model.learn_many(X, y, weight)
    assert not model._rule_record["forgotten"][0]


def scores_of(model, slot):
    """Scores of the last iterate at a support vector, its coefficients, and k(x, x) = 1."""
    coefficients = model._store.coefficients[::2] * model._common["scale"][0]
    kernels = [naive.rbf(model.support_vectors[slot], s, model.effective_gamma) for s in model.support_vectors]
    return coefficients @ np.array(kernels), coefficients[:, slot]


@pytest.mark.once
@pytest.mark.parametrize("classes", [2, 4])
def test_reprocessing_moves_a_support_vector_to_the_margin(classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = rng.integers(classes, size=200)
    model = BSCAClassifier(budget=12, gamma=1.0, scaling=None, C=0.3, reprocess=0, averaging=50, seed=3)
    model.learn_many(X, y)
    stepped = 0
    twin = naive.NaiveBSCA(12, 1.0, 0.3, averaging=50)
    twin.t, twin.errors = model.n_learned, model._common["error"][0].tolist()
    for _ in range(60):
        before = model._store.coefficients.copy()
        average = [model.decision_function_one({0: a, 1: b}, "average") for a, b in X[:3]]
        coordinate_ascent._reprocess_vector(model._block)
        after = model._store.coefficients
        changed = np.flatnonzero((before != after).any(axis=0))
        assert len(changed) <= 1
        # the earlier average is not lost
        now = [model.decision_function_one({0: a, 1: b}, "average") for a, b in X[:3]]
        for was, is_ in zip(average, now, strict=True):
            np.testing.assert_allclose(
                list(is_.values()) if classes > 2 else is_, list(was.values()) if classes > 2 else was, atol=1e-9
            )
        if not len(changed):
            continue
        slot = int(changed[0])
        scores, coefficients = scores_of(model, slot)
        cap = twin.largest_step() * model._store.views.weights[slot]
        if classes == 2:
            margin, share = np.sign(coefficients[0]) * scores[0], abs(coefficients[0])
        else:
            own = int(coefficients.argmax())
            margin = scores[own] - max(np.delete(scores, own))
            share, cap = coefficients[own], 0.5 * cap
            if margin < 1.0 - 1e-4 and share < cap - 1e-9:
                continue  # the step was right for the rival of before, now another one is nearer
        assert margin == pytest.approx(1.0, abs=1e-4) or share == pytest.approx(cap)
        stepped += 1
    assert stepped > 5


@pytest.mark.once
def test_a_merged_support_vector_has_the_weights_of_its_rows():
    X, y = np.random.default_rng(0).normal(size=(200, 2)), np.arange(200) % 2
    model = BSCAClassifier(budget=200, gamma=1.0, scaling=None, C=0.3, relaxation=1.0, tol=0.0, reprocess=3, averaging=0, seed=3)
    w = np.random.default_rng(1).uniform(0.1, 2.0, size=200)
    model.learn_many(X, y, w)
    weights = model._store.views.weights[: model.n_support].astype(float)
    assert set(weights.tolist()) <= set(w.astype(np.float32).astype(float).tolist())
    last = np.abs(model._store.coefficients[0]) * model._common["scale"][0]
    assert (last <= 0.3 * weights * (1.0 + 1e-6)).all()
    assert (last >= 0.3 * weights * (1.0 - 1e-6)).any()
    budgeted = BSCAClassifier(budget=20, gamma=1.0, scaling=None, C=0.3, relaxation=1.0, tol=0.0, reprocess=0, seed=3)
    total, merges = 0.0, 0
    for row, label, weight in zip(X, y, w, strict=True):
        before = budgeted._store.views.header[0]["next_stamp"]
        merges = budgeted.n_merges
        budgeted.learn_one(dict(enumerate(row)), label, weight)
        if budgeted._store.views.header[0]["next_stamp"] - before > budgeted.n_merges - merges:  # a merge has a stamp of its own
            total += weight
    assert budgeted.n_merges > 50
    assert budgeted._store.views.weights.sum() == pytest.approx(total, rel=1e-5)


def test_weights_are_added_for_projected_and_repeated_rows():
    model = BSCAClassifier(budget=1, gamma=1.0, scaling=None, relaxation=1.0, tol=0.0, reprocess=0)
    model.learn_one({"a": 0.0}, True, 0.5)
    model.learn_one({"a": 1.0}, False, 2.0)  # of the other sign: projected onto the nearest
    assert model.n_merges == 0
    assert model._store.views.weights[0] == 2.5
    model = BSCAClassifier(
        budget=5, gamma=1.0, scaling=None, C=0.1, relaxation=1.0, tol=0.0, reprocess=0, replay=1, replay_steps=2, averaging=0
    )
    model.learn_one({"a": 0.0}, True, 2.0)
    assert model._store.views.weights[0] == 6.0
    np.testing.assert_allclose(model._store.coefficients[0], [0.6])


@pytest.mark.parametrize("classes", [2, 3])
def test_the_window_holds_the_last_rows(classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)).astype(np.float32), rng.integers(classes, size=60)
    model = BSCAClassifier(budget=10, gamma=1.0, scaling=None, replay=7, replay_steps=2, reprocess=0, averaging=0, seed=9)
    again = BSCAClassifier(budget=10, gamma=1.0, scaling=None, reprocess=0, averaging=0, seed=9)
    for number in range(60):
        model.learn_many(X[number : number + 1], y[number : number + 1])
        again.learn_many(X[number : number + 1], y[number : number + 1])
        window = model._store.views.window[: min(number + 1, 7), :2]
        first = max(0, number + 1 - 7)
        window_rows = {tuple(row) for row in X[first : number + 1].tolist()}
        assert {tuple(row) for row in window.tolist()} == window_rows
    assert model.n_merges > again.n_merges
    assert model.nbytes > again.nbytes


def test_replay_of_a_single_row_equals_learning_it_again():
    options = {"budget": 10, "gamma": 1.0, "scaling": None, "C": 0.2, "relaxation": 1.0}
    options |= {"tol": 0.0, "reprocess": 0, "averaging": 0}
    model = BSCAClassifier(**options, replay=5, replay_steps=3)
    plain = BSCAClassifier(**options)
    model.learn_one({"a": 1.0}, True)
    for _ in range(4):
        plain.learn_one({"a": 1.0}, True)
    np.testing.assert_allclose(model.coefficients, [[0.8]])  # on the row's own support vector
    np.testing.assert_allclose(plain.coefficients, [[0.2, 0.2, 0.2, 0.2]])
    light = BSCAClassifier(**options, replay=5, replay_steps=3)
    light.learn_one({"a": 1.0}, True, 0.5)
    np.testing.assert_allclose(light.coefficients, [[0.4]])  # the window keeps the weight
    refused("is nan", model.learn_one, {"a": float("nan")}, True)


def test_tolerance_and_weights_limit_steps():
    model = BSCAClassifier(budget=50, gamma=1.0, scaling=None, C=1.0, tol=0.3, relaxation=1.0, reprocess=0, averaging=0)
    model.learn_one({"a": 0.0}, True)
    model.learn_one({"a": 0.3}, True)  # k = 0.914: within the tolerance
    assert model.n_support == 1
    model.learn_one({"a": 3.0}, True, 0.25)
    np.testing.assert_allclose(model.coefficients, [[1.0, 0.25]])
