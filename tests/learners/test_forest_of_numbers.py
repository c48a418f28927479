"""The expert of a committee of numbers that is a rolling forest, beside its twin."""

import copy

import numpy as np
import pytest
from numba import config

from forest_pairs import Pair, features_of, store_of
from lists import first
from naive_forest_of_numbers import NaiveForestOfNumbers, predicted_before
from problems import learned_by, of_experts
from streamsvm import SVMRegressor, edge
from streamsvm.core.memory import committee as kinds
from streamsvm.core.memory.forest import COUNTING, DIVIDING, IDLE, OPENING
from streamsvm.export.describe import program_of
from streamsvm.learners.committee import _ADDITIVE, _FOREST_OF_NUMBERS, _NEIGHBOURS, _regression_expert

N = 70 if config.DISABLE_JIT else 450
PLACES = 120
CORRECTING = _regression_expert(1.0, 1.0, kinds.RESETTING, budget=10, corrects=kinds.ADDITIVE)
FEW = (_ADDITIVE, CORRECTING, _NEIGHBOURS._replace(budget=64), _FOREST_OF_NUMBERS._replace(budget=PLACES))


def rows(n=N, seed=0):
    """Rows with a name, a time that is far from 0, and a feature that comes late; and targets that follow the last one."""
    rng, last = np.random.default_rng(seed), 0.0
    for t in range(n):
        z = rng.normal(size=4)
        x = features_of(t, n, z, rng)
        last = (0.8 if x["name"] > 2.0 else -0.5) * last + (z[0] > 0.3) + 0.2 * z[2]
        yield x, 100.0 + 10.0 * last, float(rng.choice([1.0, 0.01, 300.0]))


def few(scaling, **parameters):
    """A committee of few experts, of which one is a forest of 120 rows."""
    return of_experts(SVMRegressor, *FEW, **{"max_features": 6, "scaling": scaling, "seed": 1, **parameters})


class Beside(Pair):
    """The committee and its twin, of numbers."""

    rtol = 1e-4

    def __init__(self, model):
        super().__init__(model, NaiveForestOfNumbers(PLACES, 1 + FEW.index(FEW[-1]), 16))

    def compare_answers(self, x):
        self.model.predict_one(x)
        last, base = float(self.model._own[0]["last_target"]), predicted_before(self.model._store.views, self.first)
        np.testing.assert_allclose(self.said()[0], self.twin.say(self.given(x), last, base), rtol=1e-6, atol=1e-6)

    def learn(self, x, y, weight=1.0):
        # A new feature, and a scale that moves, change what experts say of the row: they are asked once more when it is learned.
        self.compare_answers(x)
        self.learn_by_model(x, y, weight)
        last, base = (float(number) for number in store_of(self.model).views.row[:2])
        self.twin.learn(self.given(x), last, base, float(self.model._own[0]["last_target"]))
        self.compare()
        np.testing.assert_allclose(store_of(self.model).views.numbers, self.twin.numbers, atol=1e-6)

    def compare_leaf(self, leaf, node):
        np.testing.assert_allclose(leaf.view(np.float32), (node.mean, node.rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scaling", first(1, ["auto", None]))
@pytest.mark.once
def test_trees_grow_and_answer_as_their_twins(scaling):
    pair = Beside(few(scaling))
    for t, (x, y, weight) in enumerate(rows()):
        pair.learn(x, y, weight)
        if t % 100 == 99:
            pair.compare_trees()
    pair.compare_trees()
    assert pair.twin.grown > (1 if config.DISABLE_JIT else 20)
    assert np.count_nonzero(pair.twin.anchors) == 1  # the time
    before = pair.model._store.snapshot()
    for x, _, _ in rows(20, seed=1):  # it says so of rows that it does not learn
        pair.compare_answers(x)
    assert pair.model._store.snapshot() == before


@pytest.mark.once
@pytest.mark.parametrize("phase", [IDLE, OPENING, COUNTING, DIVIDING])  # rows are drawn at once
def test_a_model_that_is_saved_goes_on_wherever_its_tree_stands(phase):
    model, data = few("auto", max_features=16), list(rows())
    wide = [({**x, **{f"n{j}": float(j * t % 7) for j in range(11)}}, y, w) for t, (x, y, w) in enumerate(data)]
    stood = False
    for t, row in enumerate(wide[: N - 20]):
        model.learn_one(*row)
        if t > N // 2 and store_of(model).views.header[0]["phase"] == phase:
            stood = True
            break
    assert stood or config.DISABLE_JIT
    again = copy.deepcopy(model)
    for row in wide[t + 1 :]:
        model.learn_one(*row), again.learn_one(*row)
    assert model._store.snapshot() == again._store.snapshot()


@pytest.mark.once
def test_rows_that_weigh_nothing_are_not_kept():
    model = learned_by(few("auto"), rows(50))
    before = store_of(model).learned, store_of(model).views.rows.copy()
    model.learn_one({"a": 1.0}, 3.0, 0.0)
    assert store_of(model).learned == before[0]
    np.testing.assert_array_equal(store_of(model).views.rows, before[1])


def mean_error(model, data, first):
    errors = []
    for x, y in data:
        errors.append(abs(model.predict_one(x) - y))
        model.learn_one(x, y)
    return float(np.mean(errors[first:]))


@pytest.mark.once
@pytest.mark.skipif(config.DISABLE_JIT, reason="minutes")
@pytest.mark.parametrize("kind", ["a rule on single columns", "what follows the last target by the hour"])
def test_what_other_experts_do_not_know_is_learned(kind):
    rng = np.random.default_rng(0)
    X, y, last = rng.random((4000, 6)), np.empty(4000), 0.0
    for t, x in enumerate(X):
        if kind == "a rule on single columns":
            y[t] = (x[0] > 0.4) * (x[1] > 0.6) + 2.0 * (x[2] > 0.8) * (x[0] <= 0.4) + 0.05 * rng.normal()
        else:
            x[0] = t % 6
            y[t] = last = (1.0, 2.0, 0.5, -1.0, 0.25, 1.0)[t % 6] * last + 0.3 * rng.normal() + (t % 6 == 4)
    data = list(zip([dict(enumerate(x)) for x in X.tolist()], y.tolist(), strict=True))
    without = {"normal": tuple(e for e in SVMRegressor._experts["normal"] if e.kind != kinds.FOREST)}
    other = type("Other", (SVMRegressor,), {"_experts": without})
    assert mean_error(SVMRegressor(seed=0), data, 1500) < 0.8 * mean_error(other(seed=0), data, 1500)


@pytest.mark.once
def test_features_beyond_512_are_not_taken():
    model, rng = few(None, max_features=600), np.random.default_rng(0)
    for t in range(60):
        x = {f"{j:03}": float(rng.normal()) for j in (rng.permutation(600)[:50] if t else range(600))}
        model.learn_one(x, sum(x.values()))
    assert store_of(model).views.rows.shape == (PLACES, 515)
    assert store_of(model).grown > 0
    predictor = edge.Predictor(program_of(model))
    for x in ({"511": 5.0}, {"512": 5.0, "599": -5.0}):
        assert predictor.predict_one(x) == pytest.approx(model.predict_one(x), rel=1e-5)
