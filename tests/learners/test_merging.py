"""Models that become one: the union of what they have learned, within the budget."""

import numpy as np
import pytest
from numba.core.config import DISABLE_JIT
from scipy import optimize

from lists import first
from refused import refused
from saved import dumps, loads
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor, OneClassBSGD, SVMClassifier
from streamsvm.core.budget import Removal
from streamsvm.core.memory.moments import FOLLOWED, N_FIRST, pool_moments
from streamsvm.learners import merging

EACH, TIMES = (60, 1) if DISABLE_JIT else (400, 2)  # rows of a model; how often models are made, to be compared
KINDS = [BSGDClassifier, BSCAClassifier, BSGDRegressor, BSCARegressor, OneClassBSGD]


def rows(n, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * (1.0, 20.0) + (0.0, 7.0)
    angles = np.arctan2(X[:, 0], (X[:, 1] - 7.0) / 20.0)
    return X.astype(np.float32), ((angles + np.pi) // (2.0 * np.pi / classes)).astype(int).clip(0, classes - 1)


def learned(model, X, y):
    _ = model.learn_many(X) if isinstance(model, OneClassBSGD) else model.learn_many(X, y)
    return model


def parts(kind, n=3, each=EACH, **parameters):
    X, y = rows(n * each)
    models = [kind(**{"budget": 30, "seed": 0, **parameters}) for _ in range(n)]
    return [learned(m, X[i * each : (i + 1) * each], y[i * each : (i + 1) * each]) for i, m in enumerate(models)]


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "parameters", [{}, {"scaling": None, "gamma": 0.5}, {"kernel": "linear"}, {"maintenance": Removal()}], ids=repr
)
def test_same_models_give_same_bytes_and_go_on(kind, parameters):
    results = []
    for _ in range(TIMES):
        models = parts(kind, **parameters)
        before = [dumps(model) for model in models[1:]]
        models[0].merge_with(*models[1:])
        assert [dumps(model) for model in models[1:]] == before
        merged = models[0]
        assert merged.n_learned == 3 * EACH
        assert 0 < merged.n_support <= 30
        assert merged.n_merges >= sum(model.n_merges for model in models[1:])
        copy = loads(dumps(merged))
        for model in (merged, copy):
            learned(model, *rows(EACH // 2, seed=1))
        assert dumps(copy) == dumps(merged)
        results.append(dumps(merged))
    assert results[0] == results[-1]


@pytest.mark.once
def test_one_model_of_all_is_better_than_each():
    models = parts(BSGDClassifier, n=4, each=150)
    X, y = rows(4000, seed=5)
    alone = max(np.mean(model.predict_many(X) == y) for model in models)
    models[0].merge_with(*models[1:])
    assert np.mean(models[0].predict_many(X) == y) > alone


@pytest.mark.once
@pytest.mark.skipif(DISABLE_JIT, reason="too few rows for a tree of models")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier])
def test_merged_models_merge_again(kind, classes):
    X, y = rows(6400, classes=classes)
    noise = np.random.default_rng(1).random(len(y)) < 0.15
    labels = np.where(noise, (y + 1) % classes, y)
    models = [learned(kind(budget=30, seed=0), X[i::16], labels[i::16]) for i in range(16)]
    flat = loads(dumps(models[0]))
    flat.merge_with(*models[1:])
    while len(models) > 1:
        for one, other in zip(models[::2], models[1::2], strict=True):
            one.merge_with(other)
        models = models[::2]
    X, y = rows(4000, seed=5, classes=classes)
    tree, at_once = (np.mean(model.predict_many(X) == y) for model in (models[0], flat))
    assert tree > at_once - 0.03
    assert tree > 0.9


def kernels(model, X, Z):
    return np.exp(-model.effective_gamma * np.square(X[:, None] - Z).sum(axis=2))


@pytest.mark.once
@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier, BSCARegressor])
def test_merged_coefficients_make_the_objective_smallest(kind, monkeypatch):
    monkeypatch.setattr(merging, "_NOISE", 0.0)
    parameters = {"scaling": None, "gamma": 0.5, "budget": 40}
    X, y = rows(90)
    X[:, 1] = (X[:, 1] - 7.0) / 20.0
    models = [learned(kind(**parameters, seed=0), X[i::3], y[i::3]) for i in range(3)]
    union = [(m.support_vectors.astype(float), m.coefficients[0] / 3.0, float(m.intercept[0]) / 3.0) for m in models]
    asked = []
    for model, (vectors, a, _) in zip(models, union, strict=True):
        f = model.predict_many(vectors) if kind is BSCARegressor else model.decision_function_many(vectors)
        labels = np.sign(a)
        asked += (
            zip(vectors, f, (0.0 * f), strict=True)
            if kind is BSCARegressor
            else zip(vectors, labels, f * labels > 0.0, strict=True)
        )
    S, labels, margins = (np.array(column, float) for column in zip(*asked, strict=True))
    merged = kind(**{**parameters, "budget": 120}, seed=0)
    merged.merge_with(*models)
    Z, intercept = merged.support_vectors.astype(float), sum(b for *_, b in union)
    assert len(Z) == sum(len(vectors) for vectors, *_ in union)
    mean = np.concatenate([a for _, a, _ in union])
    order = np.argsort(-np.abs(mean), kind="stable")
    np.testing.assert_array_equal(Z, np.vstack([vectors for vectors, *_ in union])[order])
    K, between = kernels(merged, S, Z), kernels(merged, Z, Z)

    def objective(a):
        f, move = K @ a + intercept, a - mean[order]
        loss = (labels - f) ** 2 if kind is BSCARegressor else np.maximum(margins - labels * f, 0.0) ** 2
        return float(loss.sum() + 0.03 * move @ between @ move)

    found = objective(merged.coefficients[0])
    best = optimize.minimize(objective, merged.coefficients[0], method="L-BFGS-B").fun
    assert found <= best + 1e-5 * (1.0 + best)
    assert found < 0.99 * objective(mean[order])


@pytest.mark.once
def test_the_scale_is_that_of_all_rows():
    models = parts(BSGDClassifier)
    X, _ = rows(3 * EACH)
    models[0].merge_with(*models[1:])
    np.testing.assert_allclose(models[0].scale_in_use.spread, X.std(axis=0), rtol=1e-3)
    of_first = BSGDClassifier(budget=30, seed=0)
    of_first.merge_with(parts(BSGDClassifier)[0])  # the scale in use lags by some percent, and comes up to date
    one = parts(BSGDClassifier)[0]
    np.testing.assert_allclose(
        of_first.scale_in_use.undo(of_first.support_vectors)[np.lexsort(of_first.support_vectors.T)],
        one.scale_in_use.undo(one.support_vectors)[np.lexsort(one.support_vectors.T)],
        rtol=1e-3,
        atol=1e-3,
    )


def test_pooled_moments_are_those_of_all_values():
    rng = np.random.default_rng(0)
    streams, arrays = [rng.normal(size=n) + n for n in (40, 3, 5)], []
    for places, values in zip(([0], [0, 1], [1]), ([streams[0]], [streams[1], streams[2]], [streams[1]]), strict=True):
        moments, first = np.zeros((4, FOLLOWED)), np.zeros((4, N_FIRST), np.float32)
        for j, of in enumerate(values):
            moments[j, :3] = len(of), of.mean(), len(of) * of.var()
            first[j, : len(of)][:N_FIRST] = np.sort(of)[:N_FIRST]
        arrays.append((moments, first, np.array(places)))
    moments, first = np.zeros((4, FOLLOWED)), np.zeros((4, N_FIRST), np.float32)
    pool_moments(arrays, moments, first)
    for j, of in enumerate((np.concatenate(streams[:2]), np.concatenate([streams[2], streams[1]]))):
        np.testing.assert_allclose(moments[j, :3], (len(of), of.mean(), len(of) * of.var()), rtol=1e-12)
    assert not first[0].any()
    np.testing.assert_array_equal(first[1, :8], np.sort(np.concatenate(streams[1:]).astype(np.float32)))


@pytest.mark.parametrize("names", first(1, [("no", "yes"), ("yes", "no"), (-1, 1), (1, -1)], others=pytest.mark.once))
def test_labels_that_came_in_another_order_are_the_same_labels(names):
    X, y = rows(800)
    labels = np.array(names)[y].tolist()
    first, second = (BSGDClassifier(budget=30, seed=0) for _ in range(2))
    first.learn_many(X[:400], labels[:400])
    at = next(i for i in range(400, 800) if labels[i] != first.labels[0])  # the other label comes first
    second.learn_many(X[at:], labels[at:])
    first.merge_with(second)
    assert set(first.labels) == set(names)
    T, wanted = rows(2000, seed=3)
    assert np.mean(np.array(first.predict_many(T)) == np.array(names)[wanted]) > 0.9


@pytest.mark.parametrize(
    "known", first(1, [((0, 1), (1, 2)), ((0,), (1,)), ((0,), (1, 2)), ((0, 1, 2), (2, 0))], others=pytest.mark.once)
)
def test_labels_of_all_are_known(known):
    X, y = rows(1500, classes=3)
    names = np.array(["a", "b", "c"])
    models = []
    for half, labels in enumerate(known):
        some = np.flatnonzero(np.isin(y, labels) & (np.arange(len(y)) % 2 == half))
        models.append(BSCAClassifier(budget=60, seed=0))
        models[-1].learn_many(X[some], names[y[some]].tolist())
    everything = {label for labels in known for label in labels}
    models[0].merge_with(models[1])
    assert sorted(models[0].labels) == sorted(names[list(everything)])
    T, wanted = rows(1000, seed=3, classes=3)
    some = np.isin(wanted, list(everything))
    assert np.mean(models[0].predict_many(T[some]) == names[wanted[some]]) > 0.8
    assert dumps(loads(dumps(models[0]))) == dumps(models[0])


def test_features_of_all_are_known():
    models = [BSGDClassifier(budget=20, max_features=3, seed=0) for _ in range(2)]
    for i in range(200):
        y, other = i % 2 == 0, (i * 7) % 3 - 1.0
        models[0].learn_one({"a": other, "b": 1.0 if y else -1.0}, y)
        models[1].learn_one({"c": other, "b": 1.0 if y else -1.0}, y)
    models[0].merge_with(models[1])
    assert models[0].feature_names == ["a", "b", "c"]
    assert models[0].predict_one({"b": 1.0}) is True
    assert models[0].predict_one({"b": -1.0}) is False
    other = BSGDClassifier(budget=20, max_features=3, seed=0)
    other.learn_one({"d": 1.0}, True)
    before = dumps(models[0])
    refused("4 features together, more than max_features=3", models[0].merge_with, other)
    assert dumps(models[0]) == before


def test_balanced_counts_are_summed():
    models = parts(BSGDClassifier, n=2, class_weight="balanced")
    counts = [model._class_weights.counts_of([0, 1]) for model in models]
    models[0].merge_with(models[1])
    assert models[0]._class_weights.counts_of([0, 1]) == [a + b for a, b in zip(*counts, strict=True)]


def test_models_that_learned_nothing_change_nothing():
    (model,) = parts(BSGDClassifier, n=1)
    before = dumps(model)
    model.merge_with()
    model.merge_with(BSGDClassifier(budget=5))
    assert dumps(model) == before


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"kernel": "poly"}, "kernel='rbf' and kernel='poly' cannot be merged"),
        ({"gamma": 0.3}, "gamma='scale' and gamma=0.3"),
        ({"scaling": None}, "scaling='auto' and scaling=None"),
        ({"l2": 0.5}, "l2=0.0001 and l2=0.5"),
    ],
)
def test_models_that_cannot_become_one_are_refused(parameters, reason):
    (model,), (other,) = parts(BSGDClassifier, n=1), parts(BSGDClassifier, n=1, **parameters)
    refused(reason, model.merge_with, other)


@pytest.mark.once
def test_other_classes_windows_and_kernels_that_were_found_are_refused():
    model = BSCAClassifier(budget=10, replay=20)
    refused("window of rows", model.merge_with, BSCAClassifier(budget=10, replay=20))
    refused("not with a BSGDClassifier", model.merge_with, BSGDClassifier(budget=10))
    X, y = rows(600)
    models = [learned(BSGDClassifier(budget=10, scaling=None), factor * X, y) for factor in (1.0, 1.05, 2.0)]
    models[0].merge_with(models[1])
    refused("too far apart", models[0].merge_with, models[2])


def test_hashed_columns_are_those_of_one_model():
    models = [BSGDClassifier(budget=10, max_features=2, overflow="hash") for _ in range(2)]
    for i in range(10):
        models[0].learn_one({"a": i, "b": -i, "c": 1.0}, i % 2 == 0)
        models[1].learn_one({"a": i, "c": 1.0, "b": -i}, i % 2 == 0)
    models[0].merge_with(models[1])
    other = BSGDClassifier(budget=10, max_features=2, overflow="hash")
    other.learn_one({"b": 1.0, "a": 2.0}, True)
    other.learn_one({"c": 1.0}, True)
    models[0].merge_with(other)
    one = BSGDClassifier(budget=10, max_features=2, overflow="hash")
    one.learn_one({"c": 1.0}, True)
    one.learn_one({"a": 1.0}, False)
    refused("more than max_features=2", models[0].merge_with, one)


def test_committees_are_refused():
    refused("models of SVMClassifier cannot be merged", SVMClassifier().merge_with, SVMClassifier())
