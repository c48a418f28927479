"""Rolling forests as experts, for labels and for targets, against their twins."""

import math

import numpy as np
import pytest
from numba import config

from naive_forest import NaiveForest
from naive_forest_of_numbers import NaiveForestOfNumbers, predicted_before
from problems import accuracy, answers, dicts, learned_by, names_of, of_experts, place_of
from streamsvm import SVMClassifier, SVMRegressor, edge
from streamsvm.core.memory.forest import COUNTS, FIRST_LABEL, LATEST_ROW, SECOND_LABEL
from streamsvm.core.steps import forest
from streamsvm.export.convert import make_program
from streamsvm.learners.ensemble import _ADDITIVE, _make_ascent_expert, _make_regression_expert
from streamsvm.learners.experts import ForestExpert, NeighboursExpert, RegressionForestExpert

N = 70 if config.DISABLE_JIT else 450
PLACES = 120
FEW = (_make_ascent_expert(1.0, 1.0, budget=10), _ADDITIVE, NeighboursExpert("neighbours", 64), ForestExpert("forest", PLACES))
CORRECTING = _make_regression_expert(1.0, 1.0, resets=True, budget=10, corrects=_ADDITIVE)
FEW_OF_NUMBERS = (_ADDITIVE, CORRECTING, NeighboursExpert("neighbours", 64), RegressionForestExpert("forest", PLACES))
LABELS = [False, True, "a third", *range(3, 12)]


def rows(labels, n=N, seed=0):
    """Rows with a name, a time that is far from 0, and a feature that comes late; and their labels, which come by and by."""
    rng = np.random.default_rng(seed)
    for t in range(n):
        z = rng.normal(size=4)
        x = features_of(t, n, z, rng)
        value = z[0] + (x["name"] == 2.0) - (x["name"] == 4.0) + 0.3 * z[2]
        n_labels = min(labels, 2 + t * (labels - 1) // (n // 2))
        yield x, LABELS[int(np.clip((value + 2.0) / 4.0 * n_labels, 0, n_labels - 1))], float(rng.choice([1.0, 0.01, 300.0]))


def rows_of_numbers(n=N, seed=0):
    """Rows with a name, a time that is far from 0, and a feature that comes late; and targets that follow the last one."""
    rng, last = np.random.default_rng(seed), 0.0
    for t in range(n):
        z = rng.normal(size=4)
        x = features_of(t, n, z, rng)
        last = (0.8 if x["name"] > 2.0 else -0.5) * last + (z[0] > 0.3) + 0.2 * z[2]
        yield x, 100.0 + 10.0 * last, float(rng.choice([1.0, 0.01, 300.0]))


def few(scaling, kind=SVMClassifier, **parameters):
    """An ensemble of few experts, including a forest of 120 rows."""
    team = FEW if kind is SVMClassifier else FEW_OF_NUMBERS
    return of_experts(kind, *team, **{"max_features": 6, "scaling": scaling, "seed": 1, **parameters})


def rows_for(kind, n=N):
    return rows(3, n) if kind is SVMClassifier else rows_of_numbers(n)


def features_of(t, n, z, rng):
    """Row t of n: with a name, a time that is far from 0, and a feature that comes late."""
    x = {"a": 3.0 * z[0], "name": float(rng.integers(6)), "time": 1.7e9 + 60.0 * t, "constant": 7.0}
    if t > n // 3:
        x["late"] = z[1] if t > n // 2 else float(np.round(z[1]))
    return x


def store_of(model):
    return place_of(model, ForestExpert)[0][0]


class Pair:
    """The ensemble, and the twin."""

    #: Of what float32 holds beside the twin.
    rtol = 1e-6

    def __init__(self, model, twin):
        self.model, self.twin, self.first = model, twin, place_of(model, ForestExpert)[1]

    def given(self, x):
        return [x.get(name, 0.0) for name in self.model.feature_names]

    def said(self):
        """The forest's prediction for the current row: two numbers for each output."""
        return self.model._store.views.inputs[: self.model._n_outputs, self.first : self.first + 2]

    def learn_by_model(self, x, y, weight):
        """Let the model learn a row, and the twin follow its anchors."""
        before = store_of(self.model).views.anchors.copy()
        self.model.learn_one(x, y, weight)
        after = store_of(self.model).views.anchors
        for j in np.flatnonzero(np.pad(before, (0, len(after) - len(before))) != after).tolist():
            self.twin.move_anchor(j, float(after[j]))

    def compare(self):
        store, twin = store_of(self.model), self.twin
        h, v = store.views.header[0], store.views
        counters = store.n_learned, store.n_grown, h["next_growth"], int(h["random"])
        assert counters == (twin.learned, twin.grown, twin.due, twin.random.state)
        np.testing.assert_array_equal(v.rows[:, : twin.width], twin.rows[:, : twin.width])
        for name in ("errors", "votes", "ages"):
            np.testing.assert_allclose(getattr(v, name), getattr(twin, name), rtol=self.rtol)

    def compare_trees(self):
        for number, tree in enumerate(self.twin.trees):
            links, thresholds, leaves = store_of(self.model).get_tree(number)
            pairs = [(0, tree)]
            while pairs:
                place, node = pairs.pop()
                if node.feature is not None:
                    link = int(links[place])
                    assert (link >> 16 & 0x3FFF, link >> 30, thresholds[place]) == (node.feature, node.equal, node.threshold)
                    pairs += [(link & 0xFFFF, node.left), ((link & 0xFFFF) + 1, node.right)]
                    continue
                assert thresholds[place] == np.inf
                self.compare_leaf(leaves[place], node)


class Beside(Pair):
    """The ensemble and its twin, of labels."""

    def __init__(self, model):
        super().__init__(model, NaiveForest(PLACES, 1 + FEW.index(FEW[-1]), 16))

    def compare_answers(self, x):
        np.testing.assert_allclose(self.said(), self.twin.say(self.given(x), names_of(self.model)), rtol=1e-9, atol=1e-12)

    def learn(self, x, y, weight=1.0):
        model, twin = self.model, self.twin
        model.predict_one(x)
        self.learn_by_model(x, y, weight)
        damping = model._store.views.damping[0, : len(store_of(model).views.anchors)]
        twin.damping[: len(damping)] = damping
        self.compare_answers(x)
        twin.learn(self.given(x), y, names_of(model))
        self.compare()

    def compare_leaf(self, leaf, node):
        leaf, names = leaf.tolist(), names_of(self.model)
        assert (leaf[COUNTS] & 255, leaf[COUNTS] >> 8) == (node.first, node.second)
        assert names[leaf[FIRST_LABEL]] == node.label
        assert leaf[LATEST_ROW] == node.place
        assert not node.second or names[leaf[SECOND_LABEL]] == node.other


class BesideNumbers(Pair):
    """The ensemble and its twin, of numbers."""

    rtol = 1e-4

    def __init__(self, model):
        super().__init__(model, NaiveForestOfNumbers(PLACES, 1 + FEW_OF_NUMBERS.index(FEW_OF_NUMBERS[-1]), 16))

    def compare_answers(self, x):
        self.model.predict_one(x)
        last, base = float(self.model._rule_record[0]["last_target"]), predicted_before(self.model._store.views, self.first)
        np.testing.assert_allclose(self.said()[0], self.twin.say(self.given(x), last, base), rtol=1e-6, atol=1e-6)

    def learn(self, x, y, weight=1.0):
        # A new feature, and a scale that moves, change what experts say of the row: they are asked once more when it is learned.
        self.compare_answers(x)
        self.learn_by_model(x, y, weight)
        last, base = (float(number) for number in store_of(self.model).views.row[:2])
        self.twin.learn(self.given(x), last, base, float(self.model._rule_record[0]["last_target"]))
        self.compare()
        np.testing.assert_allclose(store_of(self.model).views.numbers, self.twin.numbers, atol=1e-6)

    def compare_leaf(self, leaf, node):
        np.testing.assert_allclose(leaf.view(np.float32), (node.mean, node.rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("labels", "scaling"), [(2, "auto"), (3, None), (12, "auto"), (0, "auto"), (0, None)])
@pytest.mark.once
def test_trees_equal_those_of_the_twins(labels, scaling):
    pair = Beside(few(scaling)) if labels else BesideNumbers(few(scaling, SVMRegressor))
    for t, (x, y, weight) in enumerate(rows(labels) if labels else rows_of_numbers()):
        pair.learn(x, y, weight)
        if t % 100 == 99:
            pair.compare_trees()
    pair.compare_trees()
    assert pair.twin.grown > (1 if config.DISABLE_JIT else 20)
    assert not labels or (pair.twin.damping.max() > 0.3) == (scaling == "auto" and not config.DISABLE_JIT)
    assert np.count_nonzero(pair.twin.anchors) == 1  # the time
    before = pair.model._store.snapshot()
    for x, _, _ in rows(labels, 20, seed=1) if labels else rows_of_numbers(20, seed=1):  # of rows that it does not learn
        pair.model.predict_one(x)
        pair.compare_answers(x)
    assert pair.model._store.snapshot() == before


@pytest.mark.once
@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_the_forest_ignores_features_beyond_512(kind):
    model, rng = few(None, kind, max_features=600), np.random.default_rng(0)
    for t in range(60):
        x = {f"{j:03}": float(rng.normal()) for j in (rng.permutation(600)[:50] if t else range(600))}
        model.learn_one(x, sum(x.values()) > 0.0 if kind is SVMClassifier else sum(x.values()))
    assert store_of(model).views.rows.shape == (PLACES, 512 if kind is SVMClassifier else 515)
    assert store_of(model).n_grown > 0
    predictor = edge.Predictor(make_program(model))
    for x in ({"511": 5.0}, {"512": 5.0, "599": -5.0}):
        if kind is SVMClassifier:
            assert predictor.predict_proba_one(x) == pytest.approx(model.predict_proba_one(x), abs=1e-6)
        else:
            assert predictor.predict_one(x) == pytest.approx(model.predict_one(x), rel=1e-5)


@pytest.mark.once
def test_the_seed_determines_the_forest():
    def said(seed):
        model = learned_by(few("auto", seed=seed), rows(2, 200))
        return [model._store.views.inputs[0, -2] for x, _, _ in rows(2, 30, seed=1) if model.predict_one(x) is not None]

    assert said(1) == said(1) != said(2)


@pytest.mark.once
@pytest.mark.skipif(config.DISABLE_JIT, reason="minutes")
@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_the_forest_learns_residuals_of_other_experts(kind):
    """Labels of a tree of depth 4 on ten features, which kernels know badly; and what follows the last target by the hour."""
    rng, labels = np.random.default_rng(0), kind is SVMClassifier
    X, cuts, features = rng.random((3000, 10)), rng.uniform(0.3, 0.7, 31), rng.integers(0, 10, 31)
    y, node, last = np.zeros(len(X), int if labels else float), np.zeros(len(X), int), 0.0
    for _ in range(4):
        node = 2 * node + 1 + (X[np.arange(len(X)), features[node]] > cuts[node])
    y[:] = node % 5
    for t in range(0 if labels else len(X)):
        X[t, 0] = t % 6
        y[t] = last = (1.0, 2.0, 0.5, -1.0, 0.25, 1.0)[t % 6] * last + 0.3 * rng.normal() + (t % 6 == 4)
    without = {"normal": tuple(e for e in kind._specs_by_effort["normal"] if not isinstance(e, ForestExpert))}
    without_forest, data = type("Other", (kind,), {"_specs_by_effort": without}), list(zip(dicts(X), y.tolist(), strict=True))
    if labels:
        assert accuracy(kind(seed=0), data, 1000) > accuracy(without_forest(seed=0), data, 1000) + 0.05
    else:
        errors = [np.abs(np.subtract(answers(cls(seed=0), data), y))[1000:].mean() for cls in (kind, without_forest)]
        assert errors[0] < 0.8 * errors[1]


@pytest.mark.once
def test_an_anchor_moves_to_a_distant_mean():
    model, n = few("auto"), N // 2
    for t in range(n):
        x = {"far": 1e9 + 0.25 * (t * 7 % 13), "near": 1e3 + 0.25 * (t * 5 % 13)}
        model.learn_one(x, t * 7 % 13 > 6)
    v = store_of(model).views
    assert v.anchors[1] == 0.0
    assert abs(v.anchors[0] - 1e9) <= 3.0
    n_stored = store_of(model).n_rows
    np.testing.assert_array_equal(v.rows[:n_stored, 0][-5:] % 0.25, 0.0)
    assert np.ptp(v.rows[20:n_stored, 0]) == 3.0  # of 1e9, float32 has no fractions
    assert forest.MAX_ANCHOR_DISTANCE > 2.0**10 * 13
    assert model.predict_one({"far": 1e9, "near": 1e3}) is False
    assert math.isclose(v.anchors[0] % 0.25, 0.0)
