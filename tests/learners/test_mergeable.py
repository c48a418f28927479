"""Merging of models of any kind: the merged state, and the invariants of update rules afterwards."""

import numpy as np
import pytest
from numba.core.config import DISABLE_JIT

from lists import first
from problems import learned_by, sectors
from refused import refused
from saved import dumps, loads
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor, OneClassBSGD, SVMClassifier, learners
from streamsvm.core.budget import Removal
from streamsvm.learners import BOGD, NOGD, RBP, Forgetron, OnlineLinearSVC, OnlineLinearSVR, Projectron, ProjectronPP
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream.merging import merge_models

EACH = 60 if DISABLE_JIT else 300  # rows of a model
BUDGET = 20
KERNEL = [BSGDClassifier, BSCAClassifier, BSGDRegressor, BSCARegressor, OneClassBSGD]
RULES = [learners.Stoptron, RBP, Forgetron, Projectron, ProjectronPP, learners.BPAS, BOGD, NOGD]
LINEAR = [OnlineLinearSVC, OnlineLinearSVR]
UNITS = {"spread": (1.0, 1.0), "centre": (0.0, 0.0)}


def rows(kind, n, seed=0):
    return sectors(n, seed, **(UNITS if kind in LINEAR or kind in RULES else {}))


def learned(model, X, y):
    _ = model.learn_many(X) if isinstance(model, OneClassBSGD) else model.learn_many(X, y)
    return model


def parts(kind, n=3, n_rows=EACH, **parameters):
    X, y = rows(kind, n * n_rows)
    defaults = {"budget": BUDGET} if kind not in LINEAR else {}
    defaults |= {"seed": 0} if kind in (*KERNEL, RBP, BOGD) else {}
    return [learned(kind(**defaults, **parameters), X[i::n], y[i::n]) for i in range(n)]


def one_of(models, *more):
    models[0].merge_with(*models[1:], *more)
    return models[0]


SCALES = [{}, {"scaling": None, "gamma": 0.5}]
if not DISABLE_JIT:
    SCALES.append({"scaling": None})  # few rows find a gamma that differs by more than a quarter


@pytest.mark.parametrize(
    "case",
    [
        *first(
            0,
            ((kind, more) for kind in KERNEL for more in (*SCALES[:2], {"kernel": "linear"}, {"maintenance": Removal()})),
            pytest.mark.once,
        ),
        *((kind, {}) for kind in (*RULES, *LINEAR)),
        *first(0, ((kind, more) for kind in (Projectron, NOGD) for more in SCALES[1:]), pytest.mark.once),
    ],
    ids=str,
)
def test_merging_is_deterministic_and_learning_continues(case):
    (kind, parameters), results = case, []
    for _ in range(2):
        models = parts(kind, **parameters)
        before = [dumps(model) for model in models[1:]]
        n_merges = sum(getattr(model, "n_merges", 0) for model in models[1:])
        model = one_of(models)
        assert [dumps(source) for source in models[1:]] == before
        assert model.n_learned == 3 * EACH
        assert getattr(model, "n_merges", 0) >= n_merges
        copy = loads(dumps(model))  # which checks the state of the rule
        for one in (model, copy):
            assert kind in LINEAR or 0 < one.n_support <= BUDGET
            learned(one, *rows(kind, EACH, 1))
        assert kind in LINEAR or model.n_support <= BUDGET
        assert np.isfinite(model.coefficients).all()
        assert dumps(copy) == dumps(model)
        results.append(dumps(model))
    assert results[0] == results[1]


@pytest.mark.once
@pytest.mark.skipif(DISABLE_JIT, reason="too few rows")
@pytest.mark.parametrize("kind", [BSGDClassifier, Forgetron, OnlineLinearSVC])
def test_the_merged_model_is_better_than_each_model(kind):
    models = parts(kind, 8, 30) if kind in LINEAR else parts(kind, 4, 150 if kind in KERNEL else EACH, gamma=0.5)
    X, y = rows(kind, 4000, 5)
    alone = [np.mean(model.predict_many(X) == y) for model in models]
    assert np.mean(one_of(models).predict_many(X) == y) > (max(alone) if kind in KERNEL else np.mean(alone))


NAMES = [("no", "yes"), ("yes", "no"), (-1, 1), (1, -1), (0.0, 1.0)]


@pytest.mark.once
@pytest.mark.parametrize("kind", [BSGDClassifier, OnlineLinearSVC])
@pytest.mark.parametrize("names", NAMES)
def test_models_with_another_order_of_labels_are_merged_by_label(names, kind):
    X, y = rows(kind, 800)
    labels = np.array(names)[y].tolist()
    model = learned(kind(), X[:400], labels[:400])
    at = next(i for i in range(400, 800) if labels[i] != model.labels[0])  # the other label comes first
    model.merge_with(learned(kind(), X[at:], labels[at:]))
    assert set(model.labels) == set(names)
    T, wanted = rows(kind, 2000, 3)
    assert np.mean(np.array(model.predict_many(T)) == np.array(names)[wanted]) > 0.9


def test_merging_refuses_a_third_label():
    X, y = rows(OnlineLinearSVC, 100)
    model, second = (learned(OnlineLinearSVC(), X, np.where(y, label, "a").tolist()) for label in "bc")
    refused("label 'c' exceeds max_classes", model.merge_with, second)


@pytest.mark.parametrize("kind", [BSGDClassifier, OnlineLinearSVC])
def test_the_merged_model_has_the_features_of_all(kind):
    models = [kind(max_features=3) for _ in range(2)]
    for i in range(200):
        y, fourth = i % 2 == 0, (i * 7) % 3 - 1.0
        models[0].learn_one({"a": fourth, "b": 1.0 if y else -1.0}, y)
        models[1].learn_one({"c": 1.0 if y else -1.0} if kind in LINEAR else {"c": fourth, "b": 1.0 if y else -1.0}, y)
    weights = [dict(zip(model.feature_names, model.coefficients, strict=False)) for model in models]
    model = one_of(models)
    assert model.feature_names == ["a", "b", "c"]
    if kind in LINEAR:  # of those who know them
        weight_by_name = dict(zip(model.feature_names, model.coefficients, strict=True))
        assert weight_by_name == pytest.approx({"a": weights[0]["a"], "b": weights[0]["b"], "c": weights[1]["c"]})
    assert (model.predict_one({"b": 1.0}), model.predict_one({"b": -1.0})) == (True, False)
    fourth = learned_by(kind(max_features=3), [({"d": 1.0}, True)])
    refused("4 features together, more than max_features=3", model.merge_with, fourth)


@pytest.mark.parametrize("kind", [BSGDClassifier, OnlineLinearSVC])
def test_class_counts_are_summed(kind):
    models = parts(kind, class_weight="balanced")
    counts = [model._class_weights.list_counts([0, 1]) for model in models]
    assert one_of(models)._class_weights.list_counts([0, 1]) == np.sum(counts, axis=0).tolist()


@pytest.mark.parametrize("kind", [BSGDClassifier, OnlineLinearSVC])
def test_merging_untrained_models_changes_nothing(kind):
    (model,) = parts(kind, n=1)
    before = dumps(model)
    model.merge_with()
    model.merge_with(kind())
    assert dumps(model) == before


@pytest.mark.parametrize(
    ("kind", "parameters", "reason"),
    [
        (BSGDClassifier, {"kernel": "poly"}, "kernel='rbf' and kernel='poly' cannot be merged"),
        (BSGDClassifier, {"gamma": 0.3}, "gamma='scale' and gamma=0.3"),
        (BSGDClassifier, {"l2": 0.5}, "l2=0.0001 and l2=0.5"),
        (OnlineLinearSVC, {"C": 0.5}, "models with C=1.0 and C=0.5 cannot be merged: give both the same"),
    ],
)
def test_models_with_other_parameters_are_refused(kind, parameters, reason):
    (model,), (second,) = parts(kind, n=1), parts(kind, n=1, **parameters)
    refused(reason, model.merge_with, second)


@pytest.mark.parametrize(
    ("model", "second", "reason"),
    [
        (
            OnlineLinearSVC(),
            OnlineLinearSVR(),
            "a OnlineLinearSVC can be merged with others of its class, not with a OnlineLinearSVR",
        ),
        (BSCAClassifier(), BSGDClassifier(), "not with a BSGDClassifier"),
        (BSCAClassifier(replay=20), BSCAClassifier(replay=20), "window of rows"),
        (SVMClassifier(), SVMClassifier(), "models of SVMClassifier cannot be merged"),
        *(
            (kind(BUDGET), kind(BUDGET), f"models of {kind.__name__} cannot be merged: learn with BSGDClassifier")
            for kind in (learners.KernelPerceptron, learners.KernelOGD, learners.KernelPegasos, learners.FOGD)
        ),
    ],
    ids=str,
)
def test_models_of_other_classes_are_refused(model, second, reason):
    refused(reason, getattr(model, "merge_with", lambda second: merge_models([model, second])), second)


# Rules of the online kernel family ----------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_damage_of_merged_forgetrons_is_summed():
    models = parts(Forgetron)
    mistakes, damage = (sum(float(model._rule_record[name][0]) for model in models) for name in ("mistakes", "damage"))
    own = one_of(models)._rule_record[0]
    assert (own["mistakes"], own["damage"]) == (mistakes, pytest.approx(damage))
    assert 0.0 < own["damage"] <= 15.0 / 32.0 * mistakes


def gram(Z):
    return np.exp(-0.5 * np.square(Z[:, None] - Z).sum(axis=2))


@pytest.mark.parametrize("kind", [Projectron, ProjectronPP])
def test_the_inverse_of_a_merged_projectron_is_recomputed(kind):
    model = one_of(parts(kind, gamma=0.5, scaling=None))
    X, y = rows(kind, EACH, 1)
    at = np.flatnonzero(model.predict_many(X) != y)[0]
    model.learn_many(X[at : at + 1], y[at : at + 1])
    n = model.n_support
    G = model._store.views.gram[:n, :n]
    assert np.abs(G @ gram(model.support_vectors.astype(float)) - np.eye(n)).max() < 1e-6 * np.abs(G).max() < 0.5  # float32


def test_a_merged_nogd_continues_in_the_span_of_its_landmarks():
    model = one_of(parts(NOGD, gamma=0.5, scaling=None))
    before, a = model.support_vectors, model.coefficients
    X, y = rows(NOGD, EACH, 1)
    signs = np.where(y == model.positive_label, 1.0, -1.0)
    at = np.flatnonzero(signs * model.decision_function_many(X) < 1.0)[0]
    model.learn_many(X[at : at + 1], y[at : at + 1])
    np.testing.assert_array_equal(model.support_vectors, before)
    Z = before.astype(float)
    values, vectors = np.linalg.eigh(gram(Z))
    G = (vectors[:, -BUDGET // 5 :] / values[-BUDGET // 5 :]) @ vectors[:, -BUDGET // 5 :].T
    k = np.exp(-0.5 * np.square(X[at].astype(float) - Z).sum(axis=1))
    np.testing.assert_allclose(model.coefficients - a, [0.1 * signs[at] * G @ k], rtol=1e-3, atol=1e-5)


def test_the_oldest_vector_of_a_merged_forgetron_has_the_smallest_coefficient():
    model = one_of(parts(Forgetron))
    assert (np.diff(model._store.views.stamps[:BUDGET]) > 0).all()
    with_room = Forgetron(3 * BUDGET)
    with_room.merge_with(*parts(Forgetron))
    kept = {row.tobytes() for row in model.support_vectors}
    assert kept == {row.tobytes() for row in with_room.support_vectors[-BUDGET:]}


# Linear models: the mean of their decision functions, weighted by rows -------------------------------------------------------


def linear_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return X, (X @ (1.0, -2.0, 0.5) + 0.3 + 0.3 * rng.normal(size=n)) / 2.0


def target(kind, f):
    return f if kind is OnlineLinearSVR else f > 0.0


def decisions(model, X):
    return model.predict_many(X) if isinstance(model, OnlineLinearSVR) else model.decision_function_many(X)


@pytest.mark.parametrize("averaging", [0, 3000])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", LINEAR)
def test_linear_models_are_averaged_by_numbers_of_rows(kind, fit_intercept, averaging):
    cuts = EACH, EACH + EACH // 2
    X, f = linear_rows(cuts[-1] + 2 * EACH)
    batches = zip(np.split(X, cuts), np.split(target(kind, f), cuts), strict=True)
    models = [learned(kind(fit_intercept=fit_intercept, averaging=averaging), *batch) for batch in batches]
    X, _ = linear_rows(100, 3)
    counts = [model.n_learned for model in models]
    expected = np.average([decisions(model, X) for model in models], axis=0, weights=counts)
    errors = [model._common["error"][0][int(model.follows_average)] for model in models]
    np.testing.assert_allclose(decisions(one_of(models), X), expected, rtol=1e-9, atol=1e-12)
    assert models[0].n_learned == sum(counts)
    np.testing.assert_allclose(models[0]._common["error"][0], np.average(errors, weights=counts), rtol=1e-12)


@pytest.mark.parametrize("kind", LINEAR)
def test_scales_are_pooled(kind):
    models, spread = [], np.float32((2.0, 30.0, 1.0))
    for number in range(3):
        X, f = linear_rows(EACH, number)
        X = X * spread + np.float32((0.0, 100.0, number))
        last = BoundedTargetScaler(OnlineLinearSVR()) if kind is OnlineLinearSVR else OnlineLinearSVC()
        x = [dict(zip("abc", row, strict=True)) for row in X.tolist()]
        models.append(learned_by(BoundedScaler() | last, zip(x, target(kind, 100.0 * f + 7.0 * number).tolist(), strict=True)))
    T = linear_rows(50, 9)[0] * spread + np.float32((0.0, 100.0, 5.0))
    tests = [dict(zip("abc", row, strict=True)) for row in T.tolist()]

    def answers(model):
        if kind is OnlineLinearSVR:
            return np.array([model.predict_one(x) for x in tests])
        return np.array([model["OnlineLinearSVC"].decision_function_one(model["BoundedScaler"].transform_one(x)) for x in tests])

    expected = np.mean([answers(model) for model in models], axis=0)
    np.testing.assert_allclose(answers(merge_models(models)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", LINEAR)
def test_units_convert_weights_and_unseen_features_are_ignored(kind):
    X, f = linear_rows(2 * EACH)
    scaled = X.copy()
    scaled[:EACH, 2] = 0.0
    models = [learned(kind(), part, target(kind, y)) for part, y in zip(np.split(scaled, 2), np.split(f, 2), strict=True)]
    moves = np.array([[(2.0, 1.0), (0.5, -3.0), (0.0, 7.0)], [(1.0, 0.0), (4.0, 2.0), (0.1, 0.3)]])
    w = [model.coefficients / np.where(moves[i, :, 0] != 0.0, moves[i, :, 0], 1.0) for i, model in enumerate(models)]
    T, _ = linear_rows(50, 3)
    weighed = [T[:, :2].astype(float) @ w[i][:2] - moves[i, :2, 1] @ w[i][:2] + model.intercept for i, model in enumerate(models)]
    expected = np.mean(weighed, axis=0) + w[1][2] * (T[:, 2] - 0.3)
    models[0].merge_with(models[1], units=[dict(enumerate(map(tuple, move))) for move in moves.tolist()])
    np.testing.assert_allclose(decisions(models[0], T), expected, rtol=1e-6, atol=1e-6)


def test_coefficients_that_do_not_fit_are_refused():
    (model,) = parts(OnlineLinearSVC, n=1)
    refused(r"coefficients must have the shape \[2\], one for each feature, not \[3\]", model.set_coefficients, [1.0, 2.0, 3.0])
    refused("numbers below", model.set_coefficients, [1.0, np.nan])


def test_models_with_few_rows_are_merged():
    models = [OnlineLinearSVC() for _ in range(3)]
    for model in models:
        model.learn_one({"a": 1.0}, True)
        model._common["t"] = 2**62
    models[0].merge_with(*models[1:])
    assert models[0].n_learned == 2**62
