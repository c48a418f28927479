"""Models that become one, with rows that the coefficients are fitted to besides."""

import numpy as np
import pytest
from numba.core.config import DISABLE_JIT
from scipy import optimize

from refused import refused
from saved import dumps
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, OneClassBSGD
from streamsvm.learners import OnlineLinearSVC, merging

EACH = 40 if DISABLE_JIT else 200  # rows of a model


def rows(n, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    angles = np.arctan2(X[:, 0], X[:, 1])
    return X, ((angles + np.pi) // (2.0 * np.pi / classes)).astype(int).clip(0, classes - 1)


def parts(kind, n=3, classes=2, **parameters):
    X, y = rows(n * EACH, classes=classes)
    models = [kind(**{"budget": 30, "seed": 0, **parameters}) for _ in range(n)]
    for i, model in enumerate(models):
        model.learn_many(X[i::n], y[i::n])
    return models


def kernels(model, X, Z):
    return np.exp(-model.effective_gamma * np.square(X[:, None] - Z).sum(axis=2))


@pytest.mark.parametrize("kind", [BSCAClassifier, BSCARegressor])
def test_the_objective_has_the_rows_in_it(kind, monkeypatch):
    monkeypatch.setattr(merging, "_NOISE", 0.0)
    models = parts(kind, n=2, scaling=None, gamma=0.5)
    union = [(m.support_vectors.astype(float), m.coefficients[0] / 2.0, float(m.intercept[0]) / 2.0) for m in models]
    mean, intercept = np.concatenate([a for _, a, _ in union]), sum(b for *_, b in union)
    S = np.vstack([vectors for vectors, *_ in union])
    wanted, margins = [], []
    for model, (vectors, a, _) in zip(models, union, strict=True):
        f = model.predict_many(vectors) if kind is BSCARegressor else model.decision_function_many(vectors)
        wanted.append(f if kind is BSCARegressor else np.sign(a))
        margins.append((f * np.sign(a) > 0.0).astype(float))
    X, y = rows(50, seed=7)
    w = np.where(np.arange(50) % 2, 0.5, 2.0)
    merged = kind(budget=len(S), scaling=None, gamma=0.5, seed=0)
    merged.merge_with(*models, rows=(X, y, w))
    targets = y.astype(float) if kind is BSCARegressor else np.where(y == merged.positive_label, 1.0, -1.0)
    wanted, margins = np.append(np.concatenate(wanted), targets), np.append(np.concatenate(margins), np.ones(50))
    weights = np.append(np.ones(len(S)), 10.0 * w)
    Z = merged.support_vectors.astype(float)
    order = [int(np.flatnonzero((z == S).all(axis=1))[0]) for z in Z]
    K, between = kernels(merged, np.vstack([S, X]), Z), kernels(merged, Z, Z)

    def objective(a):
        f, move = K @ a + intercept, a - mean[order]
        loss = (wanted - f) ** 2 if kind is BSCARegressor else np.maximum(margins - wanted * f, 0.0) ** 2
        return float(weights @ loss + 0.03 * move @ between @ move)

    found = objective(merged.coefficients[0])
    best = optimize.minimize(objective, merged.coefficients[0], method="L-BFGS-B").fun
    assert best * (1.0 - 1e-9) <= found <= best + 1e-5 * (1.0 + best)  # where it is the best one, up to rounding
    assert found < 0.99 * objective(mean[order])


@pytest.mark.once
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [BSCAClassifier, BSGDClassifier])
def test_rows_help(kind, classes):
    models, others = (parts(kind, n=4, classes=classes) for _ in range(2))
    models[0].merge_with(*models[1:])
    others[0].merge_with(*others[1:], rows=rows(400, seed=2, classes=classes))
    X, y = rows(2000, seed=5, classes=classes)
    right, other_right = (np.mean(np.array(model.predict_many(X)) == y) for model in (models[0], others[0]))
    assert other_right >= right - 0.005
    assert other_right > 0.9
    for model in (models[0], others[0]):
        model.learn_many(*rows(20, seed=8, classes=classes))


@pytest.mark.once
@pytest.mark.parametrize("classes", [3, 5])
def test_noisy_rows_of_several_classes_help(classes):
    X, y = rows(8 * EACH, classes=classes)
    noise = np.random.default_rng(1).random(len(y)) < 0.2
    y = np.where(noise, np.random.default_rng(2).integers(classes, size=len(y)), y)
    models, others = ([BSCAClassifier(budget=40, seed=0) for _ in range(4)] for _ in range(2))
    for each in (models, others):
        for i, model in enumerate(each):
            model.learn_many(X[i::4], y[i::4])
    models[0].merge_with(*models[1:])
    others[0].merge_with(*others[1:], rows=(X, y))

    def loss(model):
        F, of = model.decision_function_many(X), [model.labels.index(label) for label in y]
        own = F[np.arange(len(F)), of]
        F[np.arange(len(F)), of] = -np.inf
        return np.square(np.maximum(1.0 - own + F.max(axis=1), 0.0)).mean()

    assert loss(others[0]) < 0.9 * loss(models[0])
    T, t = rows(2000, seed=5, classes=classes)
    without, with_rows = (np.mean(np.array(model.predict_many(T)) == t) for model in (models[0], others[0]))
    assert with_rows > without


@pytest.mark.once
def test_probabilities_are_those_of_the_rows():
    models, others = (parts(BSCAClassifier) for _ in range(2))
    models[0].merge_with(*models[1:])
    X, y = rows(1000, seed=2)
    y = np.where(np.random.default_rng(3).random(1000) < 0.2, 1 - y, y)
    others[0].merge_with(*others[1:], rows=(X, y))

    def log_loss(model):
        p = model.predict_proba_many(X)[:, [int(label != model.positive_label) for label in (0, 1)].index(0)]
        return -np.log(np.clip(np.where(y == 1, p, 1.0 - p), 1e-6, 1.0)).mean()

    assert log_loss(others[0]) < min(log_loss(models[0]), 0.55)


@pytest.mark.once
def test_class_weights_weigh_the_rows():
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


def test_one_model_with_rows_and_none_without_rows():
    (model,), (other,) = parts(BSCAClassifier, n=1), parts(BSCAClassifier, n=1)
    model.merge_with(rows=rows(100, seed=2))
    assert model.n_learned == other.n_learned
    assert not np.array_equal(model.coefficients, other.coefficients)
    new = BSCAClassifier(budget=5)
    new.merge_with(rows=rows(10))
    assert new.n_learned == 0
    models, others = parts(BSCAClassifier), parts(BSCAClassifier)
    models[0].merge_with(*models[1:], rows=(np.zeros((0, 2), np.float32), []))
    others[0].merge_with(*others[1:])
    assert dumps(models[0]) == dumps(others[0])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (([[1.0, 2.0]], [0]), "X must be an eager frame or a 2-D numpy array"),
        ((np.ones((2, 2)), [0]), "X has 2 rows, y 1"),
        ((np.ones((1, 2)), [7]), "y has labels that the model has not learned"),
        ((np.array([[1.0, np.nan]]), [0]), "X has values that are not finite"),
        ((np.ones((1, 2)), [0], -1.0), "w"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_fitted_leave_the_model(given, reason):
    models = parts(BSCAClassifier, n=2)
    before = dumps(models[0])
    refused(reason, models[0].merge_with, models[1], rows=given)
    assert dumps(models[0]) == before


def test_models_that_take_no_rows():
    X, y = rows(60)
    linear = [OnlineLinearSVC() for _ in range(2)]
    detectors = [OneClassBSGD(budget=10) for _ in range(2)]
    for model in linear:
        model.learn_many(X, y)
    for detector in detectors:
        detector.learn_many(X)
    refused("linear models become one by the mean", linear[0].merge_with, linear[1], rows=(X, y))
    refused("OneClassBSGD has no labels or targets to fit", detectors[0].merge_with, detectors[1], rows=(X, y))


@pytest.mark.parametrize("classes", [2, 3])
def test_kernel_values_that_are_not_kept_are_computed_again(classes, monkeypatch):
    models = parts(BSCAClassifier, n=2, classes=classes)
    X, y = rows(EACH, seed=7, classes=classes)
    monkeypatch.setattr(merging, "_CHUNK", 30)
    merged = []
    for held in 0, 8 * 30 * 30, 2**27:
        monkeypatch.setattr(merging, "_HELD", held)
        merged.append(BSCAClassifier(budget=30, seed=0))
        merged[-1].merge_with(*models, rows=(X, y))
    assert dumps(merged[0]) == dumps(merged[1]) == dumps(merged[2])
