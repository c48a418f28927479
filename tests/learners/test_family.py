"""The reference algorithms against their twins, and their invariants."""

import inspect
import itertools
import pickle
import zlib

import numpy as np
import pytest
from numba import config
from river import base, datasets

from naive_baselines import NaiveBaseline
from problems import dicts, learned_by, snapshot
from refused import refused
from streamsvm import learners
from streamsvm.core import kernels
from streamsvm.learners import BOGD, BPAS, FOGD, NOGD, RBP, Forgetron, KernelOGD, KernelPegasos, Projectron

ROWS = 200 if config.DISABLE_JIT else 600


def bananas(rows=ROWS):
    return [({"a": float(np.float32(x["1"])), "b": float(np.float32(x["2"]))}, y) for x, y in datasets.Bananas().take(rows)]


RULES = {
    "perceptron": (learners.KernelPerceptron, {}, 1000),
    "stoptron": (learners.Stoptron, {}, 20),
    "rbp": (RBP, {"seed": 5}, 20),
    "forgetron": (Forgetron, {}, 20),
    "projectron": (Projectron, {"eta": 0.4}, 20),
    "projectron_pp": (learners.ProjectronPP, {"eta": 0.4}, 20),
    "bpas": (BPAS, {"C": 0.5}, 20),
    "bogd": (BOGD, {"eta0": 0.3, "l2": 0.05, "seed": 5}, 20),
    "ogd": (KernelOGD, {"eta0": 0.3, "l2": 0.05}, 1000),
    "nogd": (NOGD, {"eta0": 0.3, "rank": 8}, 20),
}


@pytest.mark.once
@pytest.mark.parametrize("rule", RULES)
def test_decisions_are_those_of_the_twin(rule):
    kind, options, budget = RULES[rule]
    model = kind(budget=budget, gamma=0.8, scaling=None, **options)
    twin = NaiveBaseline(rule, budget, 0.8, **options)
    for x, y in bananas(ROWS // 3):
        row = [x["a"], x["b"]]
        expected = twin.decide(row)
        assert model.decision_function_one(x) == pytest.approx(expected, abs=2e-3 * (1.0 + np.abs(twin.a).max(initial=0.0)))
        model.learn_one(x, y)
        twin.learn(row, 1.0 if y else -1.0)
        assert model.n_support == len(twin.a)
    if kind in (RBP, Forgetron, BPAS, BOGD, NOGD):
        assert model.n_support == budget


@pytest.mark.once
@pytest.mark.parametrize("kind", [learners.KernelPerceptron, KernelOGD, KernelPegasos, Projectron, learners.ProjectronPP])
def test_the_average_is_that_of_the_iterates(kind):
    rows = bananas(150)
    model = kind(budget=30 if issubclass(kind, Projectron) else 1000, gamma=0.8, scaling=None, averaging=40)
    probes = [x for x, _ in rows[:5]]
    expected = np.zeros(5)
    for t, (x, y) in enumerate(rows, 1):
        model.learn_one(x, y)
        last = np.array([model.decision_function_one(p, "last") for p in probes])
        expected += min(max(16.0 / (t + 15.0), 1.0 / 40.0), 1.0) * (last - expected)
        average = [model.decision_function_one(p, "average") for p in probes]
        np.testing.assert_allclose(average, expected, atol=1e-6 * (1.0 + np.abs(model.coefficients).sum()))


def test_fourier_features_are_those_of_the_kernel_and_steps_are_linear():
    model = FOGD(budget=300, gamma=0.5, scaling=None, eta0=0.7, seed=1)
    w = None
    for x, y in bananas(100):
        row = np.array([x["a"], x["b"]])
        got = model.decision_function_one(x)
        frequencies = model.support_vectors.astype(float)
        if w is not None:
            z = np.concatenate([np.cos(frequencies @ row), np.sin(frequencies @ row)]) / np.sqrt(300)
            assert got == pytest.approx(w @ z, abs=1e-4)
        model.learn_one(x, y)
        frequencies = model.support_vectors.astype(float)
        z = np.concatenate([np.cos(frequencies @ row), np.sin(frequencies @ row)]) / np.sqrt(300)
        w = np.zeros(600) if w is None else w
        if (1.0 if y else -1.0) * (w @ z) < 1.0:
            w += 0.7 * (1.0 if y else -1.0) * z
    rng = np.random.default_rng(0)
    model = FOGD(budget=4000, gamma=0.5, scaling=None, seed=2)
    model.learn_one(dict(enumerate(rng.normal(size=5))), True)
    X = rng.normal(size=(50, 5))
    angles = X @ model.support_vectors.astype(float).T
    Z = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(4000)
    exact = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    assert np.abs(Z @ Z.T - exact).max() < 0.08
    assert len(set(model.support_vectors.ravel().tolist())) > 19_900


def test_cosines_and_sines_are_accurate():
    values = np.linspace(-40.0, 40.0, 20_001).astype(np.float32)
    sines, cosines = values.copy(), np.zeros_like(values)
    kernels.compute_cos_and_sin(sines, np.float32(1.0 / (2.0 * np.pi)), len(values), cosines)
    np.testing.assert_allclose(cosines, np.cos(values.astype(float)), atol=5e-6)
    np.testing.assert_allclose(sines, np.sin(values.astype(float)), atol=5e-6)


@pytest.mark.once
@pytest.mark.parametrize("kind", [learners.KernelPerceptron, KernelOGD, KernelPegasos])
def test_references_refuse_rows_beyond_the_budget_and_do_not_change(kind):
    rows = bananas(300)
    model = kind(budget=10)
    over = 0
    for x, y in rows:
        before = pickle.dumps(model)
        try:
            model.learn_one(x, y)
        except RuntimeError as error:
            assert f"{kind.__name__} has no budget maintenance, and the row exceeds its budget of 10 support vectors" in str(
                error
            )
            assert pickle.dumps(model) == before
            over += 1
    assert over > 0
    assert model.n_support == 10
    X = np.array([[x["a"], x["b"]] for x, _ in rows])
    many = kind(budget=10)
    many.learn_many(X[:5], [y for _, y in rows[:5]])
    refused("use a larger budget", many.learn_many, X, [y for _, y in rows], error=RuntimeError)


@pytest.mark.once
def test_the_projectrons_inverse_is_exact_while_gamma_is_estimated():
    model = Projectron(budget=60, eta=0.05, scaling=None)
    rows = bananas(600 if config.DISABLE_JIT else 1000)
    X, y = np.array([[x["a"], x["b"]] for x, _ in rows]), [label for _, label in rows]
    for stop in range(0, len(rows), 50):
        model.learn_many(X[stop : stop + 50], y[stop : stop + 50])
    S, n = model.support_vectors.astype(float), model.n_support
    K = np.exp(-model.effective_gamma * ((S[:, None] - S[None]) ** 2).sum(axis=2))
    inverse = model._store.views.gram[:n, :n]
    assert n > 10
    assert np.abs(K @ inverse - np.eye(n)).max() < 0.02


def decisions(model, X):
    """By the kernel expansion, for a Gaussian kernel."""
    squares = ((X[:, None] - model.support_vectors.astype(float)[None]) ** 2).sum(axis=2)
    return np.exp(-model.effective_gamma * squares) @ model.coefficients[0]


@pytest.mark.once
def test_landmarks_of_nogd_follow_gamma_while_it_is_estimated():
    rows = bananas(300 if config.DISABLE_JIT else 600)
    X, y = np.array([[x["a"], x["b"]] for x, _ in rows]), [label for _, label in rows]
    model = NOGD(budget=20, rank=8, scaling=None)
    model.learn_many(X[:100], y[:100])
    early = model.effective_gamma
    model.learn_many(X[100:], y[100:])
    assert abs(model.effective_gamma / early - 1.0) > 0.01
    S = model.support_vectors.astype(float)
    K = np.exp(-model.effective_gamma * ((S[:, None] - S[None]) ** 2).sum(axis=2))
    values, vectors = np.linalg.eigh(K)
    expected = vectors[:, -8:] / values[-8:] @ vectors[:, -8:].T
    np.testing.assert_allclose(model._store.views.gram[:20, :20], expected, atol=2e-3 * np.abs(expected).max())
    np.testing.assert_allclose(model.decision_function_many(X), decisions(model, X), atol=1e-4 * np.abs(model.coefficients).sum())


@pytest.mark.parametrize("kind", [Projectron, learners.ProjectronPP])
def test_support_vectors_that_coincide_under_a_new_gamma_are_projected(kind):
    rng = np.random.default_rng(0)
    model = kind(budget=30, eta=0.01, scaling=None)
    learned_by(model, ((x, bool(rng.random() < 0.7)) for x in dicts(rng.normal(size=(20, 2)))))
    total = model.coefficients.sum()
    assert model.n_support > 5
    model.learn_one({0: 1e5, 1: 0.0}, total < 0.0)  # far from all: its own decision is 0, a mistake
    assert model.n_support == 2
    np.testing.assert_allclose(sorted(model.coefficients[0]), sorted([total, -np.sign(total)]), rtol=1e-3)


@pytest.mark.once
@pytest.mark.parametrize(("coef0", "outlier"), [(1.0, 30.0), (0.0, 30.0), (1.0, 1e9), (0.0, 1e9)])
@pytest.mark.parametrize("kind", [Projectron, learners.ProjectronPP])
def test_an_outlier_in_a_polynomial_kernel_leaves_a_valid_inverse(kind, coef0, outlier):
    rng = np.random.default_rng(1)
    model = kind(budget=30, kernel="poly", degree=10, coef0=coef0, scaling=None)
    for i, row in enumerate(rng.normal(size=(120, 3))):
        model.learn_one(dict(enumerate(row * (outlier if i == 60 else 1.0))), bool(rng.random() < 0.5))
    n, gram = model.n_support, model._store.views.gram
    S = model.support_vectors.astype(float)
    K = (model.effective_gamma * S @ S.T + coef0) ** 10
    K /= np.sqrt(np.outer(np.diag(K), np.diag(K)))
    assert 0 < n <= 30
    assert np.abs(K @ gram[:n, :n] - np.eye(n)).max() < 0.1
    assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)


def test_a_replacing_vector_is_not_longer_than_the_replaced_one():
    # (s.x)^3 = 1e42 is clipped to 1e30, which exceeds the Cauchy-Schwarz bound for k(s, s) = 1e30 and k(x, x) = 1e-18.
    small, huge = {0: 1e-3}, {0: 1e17}
    model = BPAS(budget=1, kernel="poly", gamma=1.0, scaling=None)
    model.learn_one(huge, False)
    model.learn_one(small, True)
    assert model.coefficients[0, 0] == pytest.approx(1.0, rel=1e-5)  # before it, -1e-30: no more than 1e24 times that
    # Nor does the loss of a replacement become negative: a vector that the row represents exactly is replaced first.
    model = BPAS(budget=2, kernel="poly", gamma=1.0, scaling=None)
    learned_by(model, ((small, True), (huge, False), (small, True)))
    np.testing.assert_allclose(model.support_vectors[:, 0], [1e17, 1e-3], rtol=1e-6)
    np.testing.assert_allclose(model.coefficients[0], [-1.0, 2.0], rtol=1e-6)


def test_growing_coefficients_are_clipped():
    model = BOGD(budget=3, gamma=1.0, scaling=None, eta0=0.5, l2=1e-3, seed=0)
    model.learn_many(np.array([[0.0], [10.0], [20.0]]), [True, False, True])
    model._common["scale"] = 1e-4
    model._store.views.coefficients[0, :3] = [0.9e34, -0.9e34, 0.9e34]
    model.learn_one({0: 30.0}, True)
    np.testing.assert_allclose(np.abs(model.coefficients[0]), [1e30, 1e30, 0.5], rtol=1e-3)


def wild_rows(rng, n):
    """Rows of scales from 1e-18 to 1e17, zeros and rows that were there before."""
    rows = np.zeros((n, 3), np.float32)
    for i in range(n):
        kind = rng.random()
        if kind < 0.15 and i:
            rows[i] = rows[rng.integers(i)]
        elif kind < 0.9:
            rows[i] = rng.normal(size=3) * 10.0 ** rng.uniform(-18.0, 17.0)
    return rows


def learn(model, x, y, w):
    try:
        if isinstance(model, base.Classifier):
            model.learn_one(x, bool(y), w)
        elif isinstance(model, base.Regressor):
            model.learn_one(x, 2.0 * y - 1.0, w)
        else:
            model.learn_one(x)
    except RuntimeError:  # over its cap
        assert model._refuses_when_full
    views = model._store.views
    assert np.isfinite(views.scores if hasattr(views, "scores") else model.coefficients).all()


@pytest.mark.parametrize("name", learners.__all__)
def test_models_stay_bounded_and_can_be_saved_with_rows_of_all_scales(name):
    kind = getattr(learners, name)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    parameter_names, wanted = (
        inspect.signature(kind).parameters,
        {"budget": 8, "kernel": "poly", "max_features": 3, "averaging": 20, "seed": 1},
    )
    n = 25 if config.DISABLE_JIT else 60
    shapes = itertools.product((10, 1, 2, 3), (0.0, 1.0))
    for (degree, coef0), gamma in list(zip(shapes, 2 * ["scale", 1e-3, 1.0, 1e12], strict=True))[
        : 2 if config.DISABLE_JIT else 8
    ]:
        parameters = {**wanted, "gamma": gamma, "degree": degree, "coef0": coef0}
        model = kind(**{name: value for name, value in parameters.items() if name in parameter_names})
        kept = None
        for i, row in enumerate(wild_rows(rng, n)):
            kept = pickle.loads(pickle.dumps(model)) if i == n - 20 else kept
            x, y, w = dict(enumerate(row.tolist())), rng.random() < 0.5, rng.choice([1.0, 1e-9, 1e9], p=[0.8, 0.1, 0.1])
            for one in (model, kept) if kept else (model,):
                learn(one, x, y, w)
        before = snapshot(model)
        assert snapshot(kept) == before
        assert snapshot(pickle.loads(pickle.dumps(model))) == before
