"""Scaling inside kernel learners: it follows the stream, and support vectors are rescaled."""

import math

import numpy as np
import pandas as pd
import pytest
from numba import config

from naive import NaiveBSGD, rbf
from problems import accuracy, learned_by
from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, OneClassBSGD, SVMClassifier
from streamsvm.learners import FOGD, NOGD, Projectron

NAMES = ("a", "b", "c")

compiled = pytest.mark.skipif(config.DISABLE_JIT, reason="takes minutes without compiled code, and says nothing new")


def stream(rows, seed=0, spread=(1.0, 100.0, 1e-3), centre=(0.0, 5e3, 1e-4), drift=0.0):
    """Rows whose class is the side of a circle in two features in units of their own, and a third that says nothing."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(rows, 3)) * (1.0 + drift * np.arange(rows)[:, None] / rows)
    y = (Z[:, 0] ** 2 + Z[:, 1] ** 2 > 1.4).tolist()
    X = (Z * spread + centre).astype(np.float32).astype(float)
    return [(dict(zip(NAMES, row, strict=True)), label) for row, label in zip(X.tolist(), y, strict=True)]


class NaiveScale:
    """The scale of all rows so far, from their lists; rows are without outliers, and fewer than are remembered."""

    def __init__(self, features):
        self.rows, self.location, self.spread = [], np.zeros(features), np.zeros(features)

    def learn(self, x, model):
        """Learn a row, and bring the vectors of a model to a new scale."""
        self.rows.append(x)
        t = len(self.rows)
        if t > 64 and t % 16:
            return
        X = np.array(self.rows)
        means, spread = X.mean(axis=0), X.std(axis=0)
        location = np.where(np.abs(means) > 2.0 * spread, means, 0.0)
        if (np.abs(spread - self.spread) > 0.05 * self.spread).any() or (np.abs(location - self.location) > 0.1 * spread).any():
            raw = [self.location + self.spread * vector for vector in model.vectors]
            self.location, self.spread = location, spread
            model.vectors = [self.of(vector) for vector in raw]

    def of(self, x):
        scaled = np.divide(x - self.location, self.spread, out=np.zeros(len(x)), where=self.spread > 0.0)
        return np.clip(scaled, -8.0, 8.0)


@pytest.mark.once
@pytest.mark.parametrize("drift", [0.0, 3.0])
def test_scaling_equals_its_twin(drift):
    model = BSGDClassifier(budget=15, l2=1e-3, seed=0, scaling="auto", max_features=3)
    naive, scale = NaiveBSGD(15, 1.0 / 3.0, 1e-3), NaiveScale(3)
    moves = 0
    for x, y in stream(130, drift=drift):
        row, before = np.array(list(x.values())), scale.spread
        scale.learn(row, naive)
        moves += before is not scale.spread
        naive.learn(scale.of(row), 1.0 if y else -1.0)
        model.learn_one(x, y)
        expected = naive.decisions(scale.of(row))
        assert model.decision_function_one(x, "last") == pytest.approx(expected[0], rel=1e-3, abs=1e-3)
        assert model.decision_function_one(x, "average") == pytest.approx(expected[1], rel=1e-3, abs=1e-3)
    assert moves > 10
    assert model.scale_in_use.location == pytest.approx(scale.location, rel=1e-6)
    assert model.scale_in_use.spread == pytest.approx(scale.spread, rel=1e-6)


@pytest.mark.once
def test_decisions_can_be_computed_from_public_attributes():
    model = learned_by(BSCAClassifier(budget=30, seed=0, scaling="auto"), stream(500, drift=2.0))
    assert model.positive_label
    for x, _ in stream(20, seed=1):
        row = model.scale_in_use.transform([list(x.values())])[0]
        kernels = [rbf(row, vector, model.effective_gamma) for vector in model.support_vectors]
        f = np.dot(model.coefficients[0], kernels) + model.intercept[0]
        assert model.decision_function_one(x) == pytest.approx(f, rel=1e-4, abs=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("make", [BSCAClassifier, BSGDClassifier], ids=lambda kind: kind.__name__)
def test_units_of_features_do_not_matter(make):
    """Powers of two are exact: the models are the same but for the units of their scales."""
    rows = stream(700)
    converted = [({"a": x["a"] * 2.0**-20, "b": x["b"] * 2.0**10, "c": x["c"]}, y) for x, y in rows]
    one, two = (learned_by(make(budget=30, seed=0, scaling="auto"), of) for of in (rows, converted))
    assert (one.support_vectors == two.support_vectors).all()
    assert [one.decision_function_one(x) for x, _ in rows[:50]] == [two.decision_function_one(x) for x, _ in converted[:50]]


@pytest.mark.once
def test_a_constant_feature_has_an_effect_once_it_varies():
    rng = np.random.default_rng(0)
    rows = [({"a": a, "b": 7.0}, a > 0.0) for a in rng.normal(size=800).tolist()]
    rows += [({"a": a, "b": 7.0 + 0.01 * b}, a * b > 0.0) for a, b in rng.normal(size=(3000, 2)).tolist()]
    model = learned_by(BSCAClassifier(budget=60, seed=0, scaling="auto"), rows[:800])
    assert model.scale_in_use.spread[1] == 0.0
    assert not model.support_vectors[:, 1].any()
    gamma = model.effective_gamma
    learned_by(model, rows[800:2800])
    assert accuracy(model, rows[2800:]) > 0.9
    assert model.effective_gamma == gamma == 0.5


@compiled
@pytest.mark.parametrize("start", [0.0, -999.0, None])
def test_a_feature_keeps_its_effect_after_a_level_change(start):
    rows = stream(3000, spread=(1.0, 1.0, 1.0), centre=(0.0, 0.0, 0.0))
    changed = [({**x, "b": x["b"] + 1e3 if i >= 500 else x["b"] if start is None else start}, y) for i, (x, y) in enumerate(rows)]
    clean, model = (BSCAClassifier(budget=50, seed=0) for _ in range(2))
    clean = accuracy(learned_by(clean, rows[:1500]), rows[1500:])
    assert accuracy(learned_by(model, changed[:1500]), changed[1500:]) > clean - 0.03
    assert 0.8 < model.scale_in_use.spread[1] < 1.3


@compiled
@pytest.mark.parametrize("absurd", [1e6, -1e17])
def test_outliers_are_clipped(absurd):
    rows = stream(2500, spread=(1.0, 1.0, 1.0), centre=(0.0, 0.0, 0.0))
    clean = accuracy(BSCAClassifier(budget=50, seed=0, scaling="auto"), rows)
    for every, lost, spread in ((500, 0.02, 1.1), (50, 0.15, 3.5)):
        hit = [({**x, "b": absurd} if i % every == 20 else x, y) for i, (x, y) in enumerate(rows)]
        model = BSCAClassifier(budget=50, seed=0, scaling="auto")
        assert accuracy(model, hit) > clean - lost
        assert 0.9 < model.scale_in_use.spread[1] < spread
        assert np.abs(model.support_vectors).max() <= 8.0


@compiled
def test_a_rarely_nonzero_feature_keeps_its_effect():
    """The bound that is for absurd values would take its few other values for such."""
    rng = np.random.default_rng(2)
    rows = [({"a": a, "b": 2.0 * (b < 0.005)}, a > 0.0) for a, b in zip(rng.normal(size=8000), rng.random(8000), strict=True)]
    model = learned_by(BSGDClassifier(budget=10, scaling="auto"), rows)
    assert model.scale_in_use.spread[1] == pytest.approx(2.0 * math.sqrt(0.005), rel=0.2)


def beside_a_number(values):
    rng = np.random.default_rng(4)
    a = rng.normal(size=2000)
    chosen = rng.choice(values, size=2000)
    return [({"a": x, "b": z}, bool(x + z > 0.5)) for x, z in zip(a.tolist(), chosen.tolist(), strict=True)]


@pytest.mark.once
@pytest.mark.parametrize("make", [BSGDClassifier, SVMClassifier], ids=lambda kind: kind.__name__)
def test_binary_features_are_not_scaled(make):
    """A feature of 0 and 1 is not scaled, but its variance counts in gamma; with another value it is one like others."""
    rows = beside_a_number([0.0, 1.0])
    model = learned_by(make(scaling="auto", seed=0), rows[:1100])
    scale = model.scale_in_use
    assert (scale.location[1], scale.spread[1]) == (0.0, 1.0)
    assert 0.9 < scale.spread[0] < 1.1
    if make is BSGDClassifier:
        assert model.effective_gamma == pytest.approx(1.0 / 1.25, rel=0.01)
        assert 0.0 <= model.support_vectors[:, 1].min() < model.support_vectors[:, 1].max() <= 1.0
    learned_by(model, beside_a_number([0.0, 5.0])[1100:])
    assert model.scale_in_use.spread[1] == pytest.approx(1.9, rel=0.2)


@pytest.mark.once
def test_rare_binary_features_count_more_if_all_are_binary():
    """As words do; gamma is one over the sum of their variances. A number among them ends that."""
    rng = np.random.default_rng(5)
    draws = rng.random((1025, 2)) < [0.5, 0.04]
    rows = [({"often": float(a), "rare": float(b)}, bool(a)) for a, b in draws.tolist()]
    model = learned_by(BSGDClassifier(budget=20, scaling="auto", seed=0), rows[:1024])
    deviations = draws[:1024].std(axis=0)
    assert model.scale_in_use.spread == pytest.approx(np.sqrt(deviations), rel=0.1)
    assert model.effective_gamma == pytest.approx(1.0 / deviations.sum(), rel=0.1)
    learned_by(model, [({**x, "new": 2.0 + 0.1 * i}, y) for i, (x, y) in enumerate(rows)])
    assert model.scale_in_use.spread[:2].tolist() == [1.0, 1.0]


@pytest.mark.once
@pytest.mark.parametrize("make", [BSGDClassifier, SVMClassifier], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("offset", [5.4e6, -1e9])
def test_a_large_mean_does_not_change_the_model(make, offset):
    """Coordinates in metres: models and predictions are the same as without the offset."""
    rng = np.random.default_rng(1)
    values = np.round(rng.normal(size=(800, 2)), 3)
    y = [bool(label) for label in values[:, 0] > 0.0]
    near = [{"north": a, "speed": b} for a, b in values.tolist()]
    far = [{"north": a + offset, "speed": b} for a, b in values.tolist()]
    models = [learned_by(make(seed=0), zip(rows[:600], y, strict=False)) for rows in (near, far)]
    answers = [[model.predict_one(x) for x in rows[600:]] for model, rows in zip(models, (near, far), strict=True)]
    assert np.mean(np.array(answers[0]) == np.array(answers[1])) > 0.97
    assert np.mean(np.array(answers[1]) == np.array(y[600:])) > 0.9
    X = np.array([[x["north"], x["speed"]] for x in far[:600]])
    many = make(seed=0)
    many.learn_many(pd.DataFrame(X, columns=["north", "speed"]), y[:600])
    assert many.predict_many(pd.DataFrame([*far[600:]])).tolist() == answers[1]
    if hasattr(many, "predict_then_learn"):
        together = learned_by(make(seed=0), zip(far[:9], y, strict=False))
        assert together.predict_then_learn(X[9:], ["north", "speed"], y[9:600], False)
        assert together.predict_many(pd.DataFrame([*far[600:]])).tolist() == answers[1]


@pytest.mark.once
@pytest.mark.parametrize("make", [BSGDClassifier, SVMClassifier], ids=lambda kind: kind.__name__)
def test_values_whose_squares_are_too_large_are_scaled(make):
    """Amounts in wei, and hashes of 64 bits; beyond float32 a row is refused."""
    rng = np.random.default_rng(3)
    rows = [
        ({"wei": 1e20 * (2.0 + a), "hash": float(h)}, a > 0.0)
        for a, h in zip(*rng.normal(size=(2, 600)) * [[1], [1e19]], strict=True)
    ]
    model = make(seed=0)
    assert accuracy(model, rows) > 0.85
    refused("features must be finite float32 numbers", model.learn_one, {"wei": 1e39, "hash": 0.0}, True)


def test_extreme_ratios_of_scales_stay_finite():
    """The first value is bounded away by those after it, and the scale shrinks by 40 orders of magnitude."""
    model = BSGDClassifier(budget=10, scaling="auto", max_features=2)
    values = [9e17, *(1e-30 * math.sin(i) for i in range(200))]
    for i, value in enumerate(values):
        model.learn_one({"a": value, "b": float(i % 3)}, i % 3 == 0)
        assert np.isfinite(model.support_vectors).all()
        assert math.isfinite(model.decision_function_one({"a": value, "b": 0.0}))


@pytest.mark.once
def test_the_replay_window_stores_unscaled_rows():
    rows = stream(300, drift=3.0)
    model = learned_by(BSCAClassifier(budget=20, seed=0, scaling="auto", replay=40, replay_steps=2), rows)
    window = np.sort(model._store.views.window[:, : len(NAMES)], axis=0)
    assert window == pytest.approx(np.sort([list(x.values()) for x, _ in rows[-40:]], axis=0), rel=1e-6)
    assert accuracy(model, stream(500, seed=2, drift=0.0)) > 0.7


@pytest.mark.once
def test_epochs_use_the_current_scale():
    rows = stream(300)
    X, y = np.array([list(x.values()) for x, _ in rows]), [label for _, label in rows]
    model = BSCAClassifier(budget=400, relaxation=1.0, tol=1e-3, averaging=0, seed=0, scaling="auto")
    solution = model.learn_epochs(X, y, epochs=60)
    assert solution.dual() == pytest.approx(solution.primal(), rel=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "drift"), [(Projectron(15, scaling="auto", gamma=0.5), 4.0), (NOGD(8, rank=8, scaling="auto", gamma=0.5), 3.0)]
)
def test_inverse_gram_matrices_follow_the_scale(model, drift):
    model, checked = model.clone(), 0
    for x, y in stream(500, drift=drift):
        f = model.decision_function_one(x) if model.n_learned else 0.0
        f = f if model.positive_label == y else -f
        full = model.n_support == model.budget
        model.learn_one(x, y)
        due = (
            full and f < 1.0 and model._rule_record["gamma"][0] != 0.0
            if isinstance(model, NOGD)
            else f <= 0.0 and model.n_support > 3
        )
        if due:
            n, vectors = model.n_support, model.support_vectors
            gram = np.array([[rbf(a, b, 0.5) for a in vectors] for b in vectors])
            assert model._store.views.gram[:n, :n] @ gram == pytest.approx(np.eye(n), abs=0.05 if full else 0.02)
            checked += 1
    assert checked > 20


def test_frequencies_of_fogd_are_not_rescaled():
    rows = stream(400, drift=3.0)
    model = learned_by(FOGD(budget=20, seed=0, scaling="auto"), rows[:100])
    before, scale = model.support_vectors, model.scale_in_use.spread
    learned_by(model, rows[100:])
    assert (model.support_vectors == before).all()
    assert (model.scale_in_use.spread > 1.2 * scale).all()


@pytest.mark.once
@pytest.mark.parametrize("kernel", ["linear", "poly"])
def test_linear_and_polynomial_kernels_use_centred_rows(kernel):
    model = learned_by(BSGDClassifier(budget=20, kernel=kernel, scaling="auto"), stream(200, centre=(1.0, 50.0, 1e-3)))
    assert model.scale_in_use.location == pytest.approx([1.0, 50.0, 1e-3], rel=0.6)
    sparse = learned_by(BSGDClassifier(budget=20, scaling="auto"), stream(200, centre=(1.0, 50.0, 1e-3)))
    assert not sparse.scale_in_use.location.any()


@pytest.mark.once
def test_detectors_and_regressors_scale_rows():
    detector = OneClassBSGD(budget=30, scaling="auto")
    rows = stream(1500)
    for x, _ in rows:
        detector.learn_one(x)
    usual = {"a": 0.0, "b": 5e3, "c": 1e-4}
    assert detector.score_one({**usual, "c": 0.1}) > 0.9 > detector.score_one(usual)
    regressor, errors = BSCARegressor(budget=60, seed=0, scaling="auto"), []
    for x, _ in rows:
        target = math.sin(1e3 * x["c"])
        errors.append(abs(regressor.predict_one(x) - target))
        regressor.learn_one(x, target)
    assert np.mean(errors[-500:]) < 0.2


def test_without_scaling_there_is_no_scale():
    model = learned_by(BSGDClassifier(budget=20, scaling=None), stream(50))
    assert model.scale_in_use is None
    assert model._store.views.moments.size == 0
