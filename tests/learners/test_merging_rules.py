"""Rules of the online kernel family that become one: what a rule relies on holds after a merge."""

import numpy as np
import pytest
from numba.core.config import DISABLE_JIT

from lists import first
from refused import refused
from saved import dumps, loads
from streamsvm.learners import (
    BOGD,
    BPAS,
    FOGD,
    NOGD,
    RBP,
    Forgetron,
    KernelOGD,
    KernelPegasos,
    KernelPerceptron,
    Projectron,
    ProjectronPP,
    Stoptron,
)
from streamsvm.stream.merging import merged

EACH = 60 if DISABLE_JIT else 300  # rows of a model
BUDGET = 20
KINDS = [Stoptron, RBP, Forgetron, Projectron, ProjectronPP, BPAS, BOGD, NOGD]
SCALES = [{}, {"scaling": None, "gamma": 0.5}]
if not DISABLE_JIT:
    SCALES.append({"scaling": None})  # few rows find a gamma that differs by more than a quarter


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    return X, (X[:, 0] > 0.5 * np.sin(2.0 * X[:, 1])).astype(int)


def parts(kind, n=3, budget=BUDGET, **parameters):
    X, y = rows(n * EACH)
    models = [kind(budget, **({"seed": 0} if kind in (RBP, BOGD) else {}), **parameters) for _ in range(n)]
    for i, model in enumerate(models):
        model.learn_many(X[i::n], y[i::n])
    return models


@pytest.mark.parametrize("parameters", first(1, SCALES, others=pytest.mark.once), ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_same_models_give_same_bytes_and_go_on(kind, parameters):
    results = []
    for _ in range(2):
        models = parts(kind, **parameters)
        models[0].merge_with(*models[1:])
        model = models[0]
        assert model.n_learned == 3 * EACH
        assert 0 < model.n_support <= BUDGET
        copy = loads(dumps(model))  # which checks the state of the rule
        X, y = rows(EACH, 1)
        for one in (model, copy):
            one.learn_many(X, y)
        assert dumps(copy) == dumps(model)
        assert model.n_support <= BUDGET
        assert np.isfinite(model.coefficients).all()
        results.append(dumps(model))
    assert results[0] == results[1]


@pytest.mark.once
@pytest.mark.skipif(DISABLE_JIT, reason="too few rows")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not NOGD])  # whose 20 landmarks say as little as before
def test_one_model_of_all_is_better_than_each(kind):
    models = parts(kind, 4, gamma=0.5)
    X, y = rows(3000, 5)
    alone = np.mean([np.mean(model.predict_many(X) == y) for model in models])
    assert np.mean(merged(models).predict_many(X) == y) > alone


def test_the_damage_of_a_forgetron_is_that_of_all():
    models = parts(Forgetron, budget=5)  # less than the mistakes of few rows
    mistakes, damage = (sum(float(model._own[name][0]) for model in models) for name in ("mistakes", "damage"))
    models[0].merge_with(*models[1:])
    own = models[0]._own[0]
    assert (own["mistakes"], own["damage"]) == (mistakes, pytest.approx(damage))
    assert 0.0 < own["damage"] <= 15.0 / 32.0 * mistakes


@pytest.mark.parametrize("kind", [Projectron, ProjectronPP])
def test_the_inverse_of_a_projectron_is_made_anew(kind):
    models = parts(kind, gamma=0.5, scaling=None)
    models[0].merge_with(*models[1:])
    model = models[0]
    X, y = rows(EACH, 1)
    at = np.flatnonzero(model.predict_many(X) != y)[0]
    model.learn_many(X[at : at + 1], y[at : at + 1])
    Z, n = model.support_vectors.astype(float), model.n_support
    K = np.exp(-0.5 * np.square(Z[:, None] - Z).sum(axis=2))
    G = model._store.views.gram[:n, :n]
    assert np.abs(G @ K - np.eye(n)).max() < 1e-6 * np.abs(G).max() < 0.5  # kernel values are float32


def test_landmarks_go_on_within_their_span():
    models = parts(NOGD, gamma=0.5, scaling=None)
    models[0].merge_with(*models[1:])
    model = models[0]
    before, a = model.support_vectors, model.coefficients
    X, y = rows(EACH, 1)
    at = np.flatnonzero(np.where(y > 0, 1.0, -1.0) * model.decision_function_many(X) < 1.0)[0]
    model.learn_many(X[at : at + 1], y[at : at + 1])
    np.testing.assert_array_equal(model.support_vectors, before)
    Z = before.astype(float)
    K = np.exp(-0.5 * np.square(Z[:, None] - Z).sum(axis=2))
    values, vectors = np.linalg.eigh(K)
    G = (vectors[:, -BUDGET // 5 :] / values[-BUDGET // 5 :]) @ vectors[:, -BUDGET // 5 :].T
    k = np.exp(-0.5 * np.square(X[at].astype(float) - Z).sum(axis=1))
    np.testing.assert_allclose(model.coefficients - a, [(0.1 if y[at] else -0.1) * G @ k], rtol=1e-3, atol=1e-5)


def test_the_least_support_vector_is_the_oldest():
    models = parts(Forgetron)
    models[0].merge_with(*models[1:])
    stamps = models[0]._store.views.stamps[:BUDGET]
    assert (np.diff(stamps) > 0).all()
    with_room = Forgetron(3 * BUDGET)
    with_room.merge_with(*parts(Forgetron))
    kept = {row.tobytes() for row in models[0].support_vectors}
    assert kept == {row.tobytes() for row in with_room.support_vectors[-BUDGET:]}


@pytest.mark.parametrize("kind", [KernelPerceptron, KernelOGD, KernelPegasos, FOGD])
def test_rules_without_a_budget_and_with_frequencies_are_refused(kind):
    refused(f"models of {kind.__name__} cannot be merged: learn with BSGDClassifier", merged, [kind(BUDGET), kind(BUDGET)])
