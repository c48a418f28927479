"""Linear models that become one: the mean of their decision functions, weighted by rows."""

import numpy as np
import pytest
from numba.core.config import DISABLE_JIT

from refused import refused
from saved import dumps, loads
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream.merging import merged

EACH = 60 if DISABLE_JIT else 300  # rows of a model
KINDS = [OnlineLinearSVC, OnlineLinearSVR]


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    f = X @ (1.0, -2.0, 0.5) + 0.3 + 0.3 * rng.normal(size=n)
    return X, f / 2.0


def target(kind, f):
    return f if kind is OnlineLinearSVR else f > 0.0


def learned(model, X, y):
    model.learn_many(X, y)
    return model


def parts(kind, sizes=(EACH, EACH // 2, 2 * EACH), **parameters):
    X, f = rows(sum(sizes))
    cuts = np.cumsum(sizes)[:-1]
    each = zip(np.split(X, cuts), np.split(target(kind, f), cuts), strict=True)
    return [learned(kind(**parameters), *some) for some in each]


def decisions(model, X):
    return model.predict_many(X) if isinstance(model, OnlineLinearSVR) else model.decision_function_many(X)


@pytest.mark.parametrize("averaging", [0, 3000])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_decision_function_is_the_mean_by_rows(kind, fit_intercept, averaging):
    models = parts(kind, fit_intercept=fit_intercept, averaging=averaging)
    before = [dumps(model) for model in models[1:]]
    X, _ = rows(100, 3)
    expected = sum(model.n_learned * decisions(model, X) for model in models) / sum(model.n_learned for model in models)
    errors = [model._common["error"][0][int(model.averaged)] for model in models]
    counts = [model.n_learned for model in models]
    models[0].merge_with(*models[1:])
    assert [dumps(model) for model in models[1:]] == before
    np.testing.assert_allclose(decisions(models[0], X), expected, rtol=1e-9, atol=1e-12)
    assert models[0].n_learned == sum(counts)
    np.testing.assert_allclose(models[0]._common["error"][0], np.average(errors, weights=counts), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_same_models_give_same_bytes_and_go_on(kind):
    results = []
    for _ in range(2):
        models = parts(kind)
        models[0].merge_with(*models[1:])
        copy = loads(dumps(models[0]))
        X, f = rows(EACH // 2, 1)
        for model in (models[0], copy):
            before = dumps(model)
            learned(model, X, target(kind, f))
            assert dumps(model) != before
        assert dumps(copy) == dumps(models[0])
        results.append(dumps(models[0]))
    assert results[0] == results[1]


@pytest.mark.once
def test_one_model_of_all_is_better_than_each():
    models = parts(OnlineLinearSVC, [30] * 8)
    X, f = rows(4000, 5)
    alone = [np.mean(model.predict_many(X) == (f > 0.0)) for model in models]
    models[0].merge_with(*models[1:])
    assert np.mean(models[0].predict_many(X) == (f > 0.0)) > np.mean(alone) + 0.01


@pytest.mark.parametrize("names", [("no", "yes"), (-1, 1), (1, -1), (0.0, 1.0)])
def test_labels_that_came_in_another_order_are_the_same_labels(names):
    X, f = rows(400)
    labels = np.array(names)[(f > 0.0).astype(int)].tolist()
    first = learned(OnlineLinearSVC(), X[:200], labels[:200])
    at = next(i for i in range(200, 400) if labels[i] != first.labels[0])  # the other label comes first
    first.merge_with(learned(OnlineLinearSVC(), X[at:], labels[at:]))
    assert set(first.labels) == set(names)
    T, f = rows(1000, 3)
    assert np.mean(np.array(first.predict_many(T)) == np.array(names)[(f > 0.0).astype(int)]) > 0.85


def test_a_third_label_is_one_too_many():
    X, f = rows(100)
    model, other = (learned(OnlineLinearSVC(), X, np.where(f > 0.0, label, "a").tolist()) for label in "bc")
    refused("label 'c' is one too many", model.merge_with, other)


def test_features_of_all_are_known():
    models = [OnlineLinearSVC(max_features=3) for _ in range(2)]
    for i in range(200):
        y = i % 2 == 0
        models[0].learn_one({"a": (i * 7) % 3 - 1.0, "b": 1.0 if y else -1.0}, y)
        models[1].learn_one({"c": 1.0 if y else -1.0}, y)
    weights = [dict(zip(model.feature_names, model.coefficients, strict=True)) for model in models]
    models[0].merge_with(models[1])
    assert models[0].feature_names == ["a", "b", "c"]
    found = dict(zip(models[0].feature_names, models[0].coefficients, strict=True))
    assert found == pytest.approx({"a": weights[0]["a"], "b": weights[0]["b"], "c": weights[1]["c"]})  # of those who know them
    other = learned(OnlineLinearSVC(), *[np.ones((1, 1), np.float32), [True]])
    refused("4 features together, more than max_features=3", models[0].merge_with, other)


def test_balanced_counts_are_summed():
    models = parts(OnlineLinearSVC, class_weight="balanced")
    counts = [model._class_weights.counts_of([False, True]) for model in models]
    models[0].merge_with(*models[1:])
    assert models[0]._class_weights.counts_of([False, True]) == np.sum(counts, axis=0).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_scales_are_pooled(kind):
    models = []
    for number in range(3):
        X, f = rows(EACH, number)
        X *= np.float32((2.0, 30.0, 1.0))
        X += np.float32((0.0, 100.0, number))
        last = BoundedTargetScaler(OnlineLinearSVR()) if kind is OnlineLinearSVR else OnlineLinearSVC()
        models.append(BoundedScaler() | last)
        for x, y in zip(X.tolist(), target(kind, 100.0 * f + 7.0 * number).tolist(), strict=True):
            models[-1].learn_one(dict(zip("abc", x, strict=True)), y)
    T, _ = rows(50, 9)
    tests = [
        dict(zip("abc", x, strict=True)) for x in (T * np.float32((2.0, 30.0, 1.0)) + np.float32((0.0, 100.0, 5.0))).tolist()
    ]
    one = merged(models)

    def answers(model):
        if kind is OnlineLinearSVR:
            return np.array([model.predict_one(x) for x in tests])
        return np.array([model["OnlineLinearSVC"].decision_function_one(model["BoundedScaler"].transform_one(x)) for x in tests])

    np.testing.assert_allclose(answers(one), np.mean([answers(model) for model in models], axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_units_move_weights_and_a_feature_that_one_has_not_seen_is_that_of_the_others(kind):
    X, f = rows(2 * EACH)
    some = X.copy()
    some[:EACH, 2] = 0.0
    models = [learned(kind(), part, target(kind, y)) for part, y in zip(np.split(some, 2), np.split(f, 2), strict=True)]
    moves = np.array([[(2.0, 1.0), (0.5, -3.0), (0.0, 7.0)], [(1.0, 0.0), (4.0, 2.0), (0.1, 0.3)]])
    w = [model.coefficients / np.where(moves[i, :, 0] != 0.0, moves[i, :, 0], 1.0) for i, model in enumerate(models)]
    T, _ = rows(50, 3)
    weighed = [T[:, :2].astype(float) @ w[i][:2] - moves[i, :2, 1] @ w[i][:2] + model.intercept for i, model in enumerate(models)]
    expected = np.mean(weighed, axis=0) + w[1][2] * (T[:, 2] - 0.3)
    models[0].merge_with(models[1], units=[dict(enumerate(map(tuple, each))) for each in moves.tolist()])
    np.testing.assert_allclose(decisions(models[0], T), expected, rtol=1e-6, atol=1e-6)


def test_models_that_learned_nothing_change_nothing():
    model = parts(OnlineLinearSVC)[0]
    before = dumps(model)
    model.merge_with(OnlineLinearSVC())
    assert dumps(model) == before


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (OnlineLinearSVC(C=0.5), "models with C=1.0 and C=0.5 cannot be merged: give both the same"),
        (OnlineLinearSVC(fit_intercept=False), "fit_intercept=True and fit_intercept=False"),
        (OnlineLinearSVR(), "a OnlineLinearSVC can be merged with others of its class, not with a OnlineLinearSVR"),
    ],
)
def test_models_that_cannot_become_one_are_refused(other, reason):
    refused(reason, OnlineLinearSVC().merge_with, other)


def test_coefficients_that_do_not_fit_are_refused():
    model = parts(OnlineLinearSVC)[0]
    refused(r"coefficients must be \[3\], one for each feature, not \[2\]", model.set_coefficients, [1.0, 2.0])
    refused("numbers below", model.set_coefficients, [1.0, 2.0, np.nan])
