"""The linear learners against a slow twin and river's own passive-aggressive models, and their invariants."""

import numpy as np
import pytest
from numba import config
from river import linear_model
from sklearn.linear_model import SGDRegressor

from naive import NaiveLinear
from problems import learned_by, snapshot
from refused import refused
from streamsvm.core.memory.weights import WeightStore
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR

N = 150 if config.DISABLE_JIT else 600


def rows(n=N, seed=0, names=30, target=bool):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=names)
    for _ in range(n):
        which = rng.choice(names, rng.integers(1, 12), replace=False)
        x = {f"f{j}": float(np.float32(rng.normal())) for j in which}
        f = sum(w[int(name[1:])] * value for name, value in x.items()) + rng.normal() - 0.5
        yield x, target(f > 0.0) if target is not float else f


@pytest.mark.once
@pytest.mark.parametrize("averaging", [0, 40, 3000])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", [OnlineLinearSVC, OnlineLinearSVR])
def test_linear_models_equal_their_twin(kind, fit_intercept, averaging):
    regression = kind is OnlineLinearSVR
    parameters = {"C": 0.3, "fit_intercept": fit_intercept, "averaging": averaging, **({"epsilon": 0.2} if regression else {})}
    model, twin = kind(**parameters), NaiveLinear(**parameters)
    rng = np.random.default_rng(5)
    for x, y in rows(target=float if regression else bool):
        weight = float(rng.choice([0.0, 0.5, 1.0, 3.0]))
        if not regression:
            for output, expected in zip(("last", "average"), twin.decisions(x), strict=True):
                assert model.decision_function_one(x, output=output) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        predicted = model.predict_one(x)
        if predicted is None:
            assert not model.n_learned
            predicted = False
        assert predicted == pytest.approx(twin.predict(x), rel=1e-9, abs=1e-12)
        model.learn_one(x, y, weight)
        twin.learn(x, y if regression else (1.0 if y else -1.0), weight)
    chosen = twin.average if twin.follows_average() else twin.last
    assert model.follows_average == twin.follows_average()
    assert dict(zip(model.feature_names, model.coefficients, strict=True)) == pytest.approx(
        {name: chosen.get(name, 0.0) for name in model.feature_names}, rel=1e-9, abs=1e-12
    )
    assert model.intercept == pytest.approx(chosen[None], rel=1e-9, abs=1e-12)


def test_weights_are_those_of_rivers_passive_aggressive_classifier():
    model = OnlineLinearSVC(C=0.2, fit_intercept=False, averaging=0)
    rivers = linear_model.PAClassifier(C=0.2, mode=1, learn_intercept=False)
    for x, y in rows(200):
        model.learn_one(x, y)
        rivers.learn_one(x, y)
    assert dict(zip(model.feature_names, model.coefficients, strict=True)) == pytest.approx(dict(rivers.weights), rel=1e-6)


def test_weights_are_those_of_scikit_learns_passive_aggressive_regressor():
    # river's takes targets for labels of 0 and 1.
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 5)).astype(np.float32)
    y = X @ rng.normal(size=5) + rng.normal(size=200)
    model = OnlineLinearSVR(C=0.2, epsilon=0.1, fit_intercept=False, averaging=0)
    theirs = SGDRegressor(
        loss="epsilon_insensitive", epsilon=0.1, penalty=None, learning_rate="pa1", eta0=0.2, fit_intercept=False
    )
    model.learn_many(X, y)
    for i in range(200):
        theirs.partial_fit(X[i : i + 1].astype(np.float64), y[i : i + 1])
    np.testing.assert_allclose(model.coefficients, theirs.coef_, rtol=1e-6)


@pytest.mark.parametrize("overflow", ["ignore", "hash"])
def test_learn_many_equals_learn_one_for_any_order_of_keys(overflow):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 20)).astype(np.float32) * (rng.random((60, 20)) < 0.6)
    y = rng.random(60) < 0.5
    many, one, mixed = (OnlineLinearSVC(max_features=8, overflow=overflow) for _ in range(3))
    many.learn_many(X, y)
    for x, label in zip(X.tolist(), y.tolist(), strict=True):
        row = dict(enumerate(x))
        one.learn_one(row, label)
        mixed.learn_one(dict(sorted(row.items(), key=lambda item: rng.random())), label)
    assert snapshot(many) == snapshot(one)
    if overflow == "hash":  # values that meet in a column are added as they come
        np.testing.assert_allclose(mixed.coefficients, one.coefficients, rtol=1e-4, atol=1e-6)
    else:
        assert snapshot(mixed) == snapshot(one)
    assert many.predict_many(X).tolist() == [one.predict_one(dict(enumerate(x))) for x in X.tolist()]
    for x, p in zip(X.tolist(), many.predict_proba_many(X).tolist(), strict=True):
        assert list(one.predict_proba_one(dict(enumerate(x))).values()) == p


def test_full_and_sparse_rows_are_learned_identically():
    dense, sparse = OnlineLinearSVC(), OnlineLinearSVC()
    for x, y in rows(names=12, n=100):
        full = {f"f{j}": x.get(f"f{j}", 0.0) for j in range(12)}
        if not sparse.n_learned:
            sparse.learn_one(full, y)
        else:
            sparse.learn_one(x, y)
        dense.learn_one(full, y)
        assert sparse.predict_one(x) == dense.predict_one(full)
    assert snapshot(dense) == snapshot(sparse)


def test_hashed_values_add_up_and_cancel():
    # Names that meet in one column again and again, with sums that are 0 in between.
    model, plain = OnlineLinearSVC(max_features=1, overflow="hash", C=1.0), OnlineLinearSVC(max_features=1, C=1.0)
    for values in ([1.0, -1.0, 2.0], [3.0, -3.0, 0.0], [0.5, 0.25, 0.25], [-2.0, 1.0, -1.0]):
        y = sum(values) > 0.0
        model.learn_one(dict(enumerate(values)), y)
        plain.learn_one({0: sum(values)}, y)
    assert (model.coefficients.tolist(), model.intercept) == (plain.coefficients.tolist(), plain.intercept)
    assert model.predict_one({0: 0.3}) == plain.predict_one({0: 0.3})


def test_memory_is_bounded_for_any_number_of_names():
    model = OnlineLinearSVC(max_features=64, overflow="hash")
    for i in range(N // 3):
        x = {f"name {i * 200 + j}": 1.0 - 2.0 * (j % 2) for j in range(200)}
        model.learn_one(x, i % 2)
        model.predict_one(x)
        assert model.nbytes == 448 + 29 * 64
    assert len(model.feature_names) == len(model.coefficients) == 64
    assert np.isfinite(model.coefficients).all()


def forged(model, change):
    state = model.__getstate__()
    change(state)
    fresh = object.__new__(type(model))
    fresh.__setstate__(state)


def at(place, value):
    def change(state):
        data = bytearray(state["store"])
        data[place : place + len(value)] = value
        state["store"] = bytes(data)

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (at(WeightStore._layout.header.fields["columns"][1], b"\xff" * 8), "the snapshot's columns is -1, the store's 32"),
        (at(WeightStore._layout.header.fields["row_columns"][1], bytes(8)), "the snapshot's row_columns is 0, the store's 32"),
        (at(WeightStore._layout.header.fields["used"][1], b"\xff" * 8), "does not fit"),
        (at(WeightStore._layout.header.fields["used"][1], (41).to_bytes(8, "little")), "does not fit"),
        (at(WeightStore._layout.header.fields["used"][1], (29).to_bytes(8, "little")), "bytes, not"),
        (at(384, np.float64(np.nan).tobytes()), "not finite"),
        (at(400, np.float64(1e300).tobytes()), "not finite"),
        (lambda state: state.update(store=state["store"][:100]), "cut off"),
        (lambda state: state.update(store=state["store"] + b"\0" * 8), "bytes, not"),
        (lambda state: state.update(parameters={**state["parameters"], "C": 9.0}), "C "),
    ],
)
def test_corrupt_linear_models_are_refused(change, match):
    model = learned_by(OnlineLinearSVC(max_features=40), rows(100))
    assert len(model.feature_names) == 30
    refused(match, forged, model, change)


def test_snapshots_only_contain_used_columns():
    store = WeightStore(1000)
    store.used = 3
    store.views.weights[:, :3] = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    smaller = WeightStore(1000)
    smaller.used = 7
    smaller.views.weights[:] = 9.0
    smaller.restore(store.snapshot())
    assert len(store.snapshot()) == 400 + 16 * 3
    assert smaller.snapshot() == store.snapshot()
    assert not smaller.views.weights[:, 3:].any()


def test_a_forgotten_name_leaves_no_weight_behind():
    model = learned_by(OnlineLinearSVC(max_features=40), rows(50))
    n_known = len(model.feature_names)
    refused("too large", model.learn_one, {"new": 1e30}, True)
    model.learn_one({"other": 0.0}, True)
    assert len(model.feature_names) == n_known + 1
    assert model.coefficients[n_known] == 0.0


def test_probabilities_follow_the_decisions():
    model, errors, gains = OnlineLinearSVC(), [], []
    for x, y in rows(N, seed=7):
        if model.n_learned > N // 2:
            p, f = model.predict_proba_one(x)[True], model.decision_function_one(x)
            assert (p > 0.5) == (f > 0.0)
            layer = int(model.follows_average)
            slope, size = (model._common[0][name][layer] for name in ("slope", "size"))
            q = 1.0 / (1.0 + np.exp(-np.clip(np.exp(slope) / max(size, 1.0) * f, -30.0, 30.0)))
            assert p == pytest.approx(q + 2.0 / (model.n_learned + 3.0) * (0.5 - q), abs=1e-12)
            gains.append(np.log(p if y else 1.0 - p))
            errors.append(model.predict_one(x) != y)
        model.learn_one(x, y)
    assert np.mean(gains) > np.log(0.5) + 0.1  # better than a coin


def test_names_are_not_hashed_before_all_columns_are_used():
    model = OnlineLinearSVC(max_features=8, overflow="hash")
    model.learn_one({"a": 1.0}, True)
    assert model.decision_function_one({"b": 5.0}) == model.intercept


@pytest.mark.parametrize("kind", [OnlineLinearSVC, OnlineLinearSVR])
def test_linear_models_accept_many_features_by_default(kind):
    assert kind().max_features == 2**16
