"""Merging of models with support vectors: their union within the budget, with refitted coefficients."""

import numpy as np
import pytest
from numba.core.config import DISABLE_JIT
from scipy import optimize

from problems import sectors
from refused import refused
from saved import dumps, loads
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, OneClassBSGD
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, pool_moments
from streamsvm.learners import OnlineLinearSVC, merging

EACH = 40 if DISABLE_JIT else 200  # rows of a model


def rows(n, seed=0, classes=2):
    return sectors(n, seed, classes, spread=(1.0, 1.0), centre=(0.0, 0.0))


def learned(model, X, y):
    model.learn_many(X, y)
    return model


def parts(kind, n=3, classes=2, of=rows, **parameters):
    X, y = of(n * EACH, classes=classes)
    return [learned(kind(**{"budget": 30, "seed": 0, **parameters}), X[i::n], y[i::n]) for i in range(n)]


@pytest.mark.once
@pytest.mark.skipif(DISABLE_JIT, reason="too few rows for a tree of models")
@pytest.mark.parametrize(("kind", "classes"), [(BSGDClassifier, 2), (BSCAClassifier, 3)])
def test_merged_models_merge_again(kind, classes):
    X, y = sectors(6400, classes=classes)
    noise = np.random.default_rng(1).random(len(y)) < 0.15
    labels = np.where(noise, (y + 1) % classes, y)
    models = [learned(kind(budget=30, seed=0), X[i::16], labels[i::16]) for i in range(16)]
    flat = loads(dumps(models[0]))
    flat.merge_with(*models[1:])
    while len(models) > 1:
        for one, second in zip(models[::2], models[1::2], strict=True):
            one.merge_with(second)
        models = models[::2]
    X, y = sectors(4000, seed=5, classes=classes)
    tree, at_once = (np.mean(model.predict_many(X) == y) for model in (models[0], flat))
    assert tree > at_once - 0.03
    assert tree > 0.9


def kernels(model, X, Z):
    return np.exp(-model.effective_gamma * np.square(X[:, None] - Z).sum(axis=2))


@pytest.mark.parametrize("with_rows", [pytest.param(False, marks=pytest.mark.once), True])
@pytest.mark.parametrize("kind", [pytest.param(BSGDClassifier, marks=pytest.mark.once), BSCAClassifier, BSCARegressor])
def test_merged_coefficients_minimise_the_objective(kind, with_rows, monkeypatch):
    monkeypatch.setattr(merging, "_NOISE", 0.0)
    models = parts(kind, scaling=None, gamma=0.5)
    union = [(m.support_vectors.astype(float), m.coefficients[0] / 3.0, float(m.intercept[0]) / 3.0) for m in models]
    S, mean = np.vstack([vectors for vectors, *_ in union]), np.concatenate([a for _, a, _ in union])
    intercept, wanted, margins = sum(b for *_, b in union), [], []
    for model, (vectors, a, _) in zip(models, union, strict=True):
        f = model.predict_many(vectors) if kind is BSCARegressor else model.decision_function_many(vectors)
        wanted.append(f if kind is BSCARegressor else np.sign(a))
        margins.append((f * np.sign(a) > 0.0).astype(float))
    X, y = rows(50, seed=7)
    w = np.where(np.arange(50) % 2, 0.5, 2.0)
    merged = kind(budget=len(S), scaling=None, gamma=0.5, seed=0)
    merged.merge_with(*models, **({"rows": (X, y, w)} if with_rows else {}))
    Z = merged.support_vectors.astype(float)
    order = [int(np.flatnonzero((z == S).all(axis=1))[0]) for z in Z]
    assert len(Z) == len(S)
    if not with_rows:
        np.testing.assert_allclose(np.abs(mean[order]), np.sort(np.abs(mean))[::-1], rtol=1e-12)
    targets = y.astype(float) if kind is BSCARegressor else np.where(y == merged.positive_label, 1.0, -1.0)
    wanted, margins = np.concatenate([*wanted, targets]), np.concatenate([*margins, np.ones(50)])
    weights = np.append(np.ones(len(S)), (10.0 if with_rows else 0.0) * w)
    K, between = kernels(merged, np.vstack([S, X]), Z), kernels(merged, Z, Z)

    def objective(a):
        f, move = K @ a + intercept, a - mean[order]
        loss = (wanted - f) ** 2 if kind is BSCARegressor else np.maximum(margins - wanted * f, 0.0) ** 2
        return float(weights @ loss + 0.03 * move @ between @ move)

    smallest = objective(merged.coefficients[0])
    best = optimize.minimize(objective, merged.coefficients[0], method="L-BFGS-B").fun
    assert smallest <= best + 1e-5 * (1.0 + best)  # where it is the best one, up to rounding
    assert smallest < 0.99 * objective(mean[order])


@pytest.mark.once
def test_the_merged_scale_is_that_of_all_rows():
    models = parts(BSGDClassifier, of=sectors)
    X, _ = sectors(3 * EACH)
    models[0].merge_with(*models[1:])
    np.testing.assert_allclose(models[0].scale_in_use.spread, X.std(axis=0), rtol=1e-3)
    of_first = BSGDClassifier(budget=30, seed=0)
    of_first.merge_with(parts(BSGDClassifier, of=sectors)[0])  # the scale in use lags by some percent, and comes up to date
    one = parts(BSGDClassifier, of=sectors)[0]
    np.testing.assert_allclose(
        of_first.scale_in_use.inverse_transform(of_first.support_vectors)[np.lexsort(of_first.support_vectors.T)],
        one.scale_in_use.inverse_transform(one.support_vectors)[np.lexsort(one.support_vectors.T)],
        rtol=1e-3,
        atol=1e-3,
    )


def test_pooled_moments_are_those_of_all_values():
    rng = np.random.default_rng(0)
    streams, arrays = [rng.normal(size=n) + n for n in (40, 3, 5)], []
    for places, values in zip(([0], [0, 1], [1]), ([streams[0]], [streams[1], streams[2]], [streams[1]]), strict=True):
        moments, first = np.zeros((4, N_MOMENTS)), np.zeros((4, N_FIRST), np.float32)
        for j, of in enumerate(values):
            moments[j, :3] = len(of), of.mean(), len(of) * of.var()
            first[j, : len(of)][:N_FIRST] = np.sort(of)[:N_FIRST]
        arrays.append((moments, first, np.array(places)))
    moments, first = np.zeros((4, N_MOMENTS)), np.zeros((4, N_FIRST), np.float32)
    pool_moments(arrays, moments, first)
    for j, of in enumerate((np.concatenate(streams[:2]), np.concatenate([streams[2], streams[1]]))):
        np.testing.assert_allclose(moments[j, :3], (len(of), of.mean(), len(of) * of.var()), rtol=1e-12)
    assert not first[0].any()
    np.testing.assert_array_equal(first[1, :8], np.sort(np.concatenate(streams[1:]).astype(np.float32)))


@pytest.mark.once
@pytest.mark.parametrize("label_sets", [((0, 1), (1, 2)), ((0,), (1,)), ((0,), (1, 2)), ((0, 1, 2), (2, 0))])
def test_the_merged_model_has_the_labels_of_all(label_sets):
    X, y = sectors(1500, classes=3)
    names = np.array(["a", "b", "c"])
    models = []
    for half, labels in enumerate(label_sets):
        part = np.flatnonzero(np.isin(y, labels) & (np.arange(len(y)) % 2 == half))
        models.append(BSCAClassifier(budget=60, seed=0))
        models[-1].learn_many(X[part], names[y[part]].tolist())
    everything = {label for labels in label_sets for label in labels}
    models[0].merge_with(models[1])
    assert sorted(models[0].labels) == sorted(names[list(everything)])
    T, wanted = sectors(1000, seed=3, classes=3)
    part = np.isin(wanted, list(everything))
    assert np.mean(models[0].predict_many(T[part]) == names[wanted[part]]) > 0.8
    assert dumps(loads(dumps(models[0]))) == dumps(models[0])


@pytest.mark.once
def test_estimates_of_gamma_that_differ_too_much_are_refused():
    X, y = sectors(600)
    models = [learned(BSGDClassifier(budget=10, scaling=None), factor * X, y) for factor in (1.0, 1.05, 2.0)]
    models[0].merge_with(models[1])
    refused("differ too much", models[0].merge_with, models[2])


def test_models_with_hashed_columns_merge_only_with_equal_columns():
    models = [BSGDClassifier(budget=10, max_features=2, overflow="hash") for _ in range(2)]
    for i in range(10):
        models[0].learn_one({"a": i, "b": -i, "c": 1.0}, i % 2 == 0)
        models[1].learn_one({"a": i, "c": 1.0, "b": -i}, i % 2 == 0)
    models[0].merge_with(models[1])
    third = BSGDClassifier(budget=10, max_features=2, overflow="hash")
    third.learn_one({"b": 1.0, "a": 2.0}, True)
    third.learn_one({"c": 1.0}, True)
    models[0].merge_with(third)
    one = BSGDClassifier(budget=10, max_features=2, overflow="hash")
    one.learn_one({"c": 1.0}, True)
    one.learn_one({"a": 1.0}, False)
    refused("more than max_features=2", models[0].merge_with, one)


# Rows that the coefficients are fitted to besides -----------------------------------------------------------------------------


@pytest.mark.once
def test_extra_rows_help_with_label_noise():
    classes = 3
    X, y = rows(8 * EACH, classes=classes)
    noise = np.random.default_rng(1).random(len(y)) < 0.2
    y = np.where(noise, np.random.default_rng(2).integers(classes, size=len(y)), y)
    models, plain_models = ([BSCAClassifier(budget=40, seed=0) for _ in range(4)] for _ in range(2))
    for group in (models, plain_models):
        for i, model in enumerate(group):
            model.learn_many(X[i::4], y[i::4])
    models[0].merge_with(*models[1:])
    plain_models[0].merge_with(*plain_models[1:], rows=(X, y))

    def loss(model):
        F, of = model.decision_function_many(X), [model.labels.index(label) for label in y]
        own = F[np.arange(len(F)), of]
        F[np.arange(len(F)), of] = -np.inf
        return np.square(np.maximum(1.0 - own + F.max(axis=1), 0.0)).mean()

    assert loss(plain_models[0]) < 0.9 * loss(models[0])
    T, t = rows(2000, seed=5, classes=classes)
    without, with_rows = (np.mean(np.array(model.predict_many(T)) == t) for model in (models[0], plain_models[0]))
    assert with_rows > without
    plain_models[0].learn_many(*rows(20, seed=8, classes=classes))


@pytest.mark.once
def test_extra_rows_calibrate_probabilities():
    models, plain_models = (parts(BSCAClassifier) for _ in range(2))
    models[0].merge_with(*models[1:])
    X, y = rows(1000, seed=2)
    y = np.where(np.random.default_rng(3).random(1000) < 0.2, 1 - y, y)
    plain_models[0].merge_with(*plain_models[1:], rows=(X, y))

    def log_loss(model):
        p = model.predict_proba_many(X)[:, [int(label != model.positive_label) for label in (0, 1)].index(0)]
        return -np.log(np.clip(np.where(y == 1, p, 1.0 - p), 1e-6, 1.0)).mean()

    assert log_loss(plain_models[0]) < min(log_loss(models[0]), 0.55)


@pytest.mark.once
def test_class_weights_apply_to_extra_rows():
    X, y = rows(300, seed=2)
    rare = np.flatnonzero((y == 1) | (np.arange(300) % 10 == 0))
    models = []
    for weights in ({0: 10.0, 1: 1.0}, {0: 1.0, 1: 1.0}):
        models.append(parts(BSCAClassifier, class_weight=weights))
        for model in models[-1]:
            model.learn_many(X[rare], y[rare])
        models[-1][0].merge_with(*models[-1][1:], rows=(X[rare], y[rare]))
    T, _ = rows(1000, seed=9)
    heavy, light = (np.mean(np.array(of[0].predict_many(T)) == 0) for of in models)
    assert heavy > light


def test_merging_one_model_with_and_without_extra_rows():
    (model,), (second,) = parts(BSCAClassifier, n=1), parts(BSCAClassifier, n=1)
    model.merge_with(rows=rows(100, seed=2))
    assert model.n_learned == second.n_learned
    assert not np.array_equal(model.coefficients, second.coefficients)
    new = BSCAClassifier(budget=5)
    new.merge_with(rows=rows(10))
    assert new.n_learned == 0
    models, reference_models = parts(BSCAClassifier), parts(BSCAClassifier)
    models[0].merge_with(*models[1:], rows=(np.zeros((0, 2), np.float32), []))
    reference_models[0].merge_with(*reference_models[1:])
    assert dumps(models[0]) == dumps(reference_models[0])


@pytest.mark.parametrize(
    ("extra_rows", "reason"),
    [
        (([[1.0, 2.0]], [0]), "X must be an eager frame or a 2-D array"),
        ((np.ones((2, 2)), [0]), "X has 2 rows, y 1"),
        ((np.ones((1, 2)), [7]), "y has labels that the model has not learned"),
        ((np.array([[1.0, np.nan]]), [0]), "X has values that are not finite"),
        ((np.ones((1, 2)), [0], -1.0), "w"),
    ],
    ids=str,
)
def test_invalid_extra_rows_do_not_change_the_model(extra_rows, reason):
    models = parts(BSCAClassifier, n=2)
    before = dumps(models[0])
    refused(reason, models[0].merge_with, models[1], rows=extra_rows)
    assert dumps(models[0]) == before


def test_models_that_do_not_accept_extra_rows():
    X, y = rows(60)
    linear = [OnlineLinearSVC() for _ in range(2)]
    detectors = [OneClassBSGD(budget=10) for _ in range(2)]
    for model in linear:
        model.learn_many(X, y)
    for detector in detectors:
        detector.learn_many(X)
    refused("linear models are merged by averaging", linear[0].merge_with, linear[1], rows=(X, y))
    refused("OneClassBSGD has no labels or targets to fit", detectors[0].merge_with, detectors[1], rows=(X, y))


@pytest.mark.parametrize("classes", [2, 3])
def test_kernel_values_that_are_not_cached_are_recomputed(classes, monkeypatch):
    models = parts(BSCAClassifier, n=2, classes=classes)
    X, y = rows(EACH, seed=7, classes=classes)
    monkeypatch.setattr(merging, "_CHUNK_ROWS", 30)
    merged = []
    for cache_bytes in 0, 8 * 30 * 30, 2**27:
        monkeypatch.setattr(merging, "_MAX_CACHED_BYTES", cache_bytes)
        merged.append(BSCAClassifier(budget=30, seed=0))
        merged[-1].merge_with(*models, rows=(X, y))
    assert dumps(merged[0]) == dumps(merged[1]) == dumps(merged[2])
