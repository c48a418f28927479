"""The instance memory of ensembles, against its twin."""

import numpy as np
import pytest
from numba import config

from naive_neighbours import NaiveMemory
from problems import names_of, of_experts, place_of
from streamsvm import SVMClassifier, SVMRegressor
from streamsvm.core.memory import neighbours
from streamsvm.learners.ensemble import _ADDITIVE, _make_ascent_expert, _make_regression_expert
from streamsvm.learners.experts import NeighboursExpert

N = 90 if config.DISABLE_JIT else 400
FEW = (_make_ascent_expert(1.0, 1.0, budget=10), _ADDITIVE, NeighboursExpert("neighbours", 48))
FEW_NUMBERS = (_make_regression_expert(1.0, 1.0, budget=10), _ADDITIVE, NeighboursExpert("neighbours", 48))
LABELS = [False, True, "a third", *range(2, 11)]


def rows(labels, n=N, seed=0, late=2):
    """Rows whose first feature is the most relevant one, the second is constant for long, and ``late`` features come later; with
    labels, new ones in the course of time, or targets.
    """
    rng = np.random.default_rng(seed)
    for t in range(n):
        z = rng.normal(size=3 + late)
        x = {"a": 3.0 * z[0] + 50.0, "b": 0.01 * z[1] if t > n // 4 else 0.0, "c": float(z[2] > 0.5)}
        for j in range(late):
            first = (j + 1) * n // (late + 2)
            if t >= first:  # its first value is 0, so that the row does not differ from the predicted one
                x[f"late {j}"] = 20.0 * z[3 + j] if t > first else 0.0
        value = np.sin(z[0]) + 0.3 * z[1] + 0.2 * rng.normal()
        weight = float(rng.choice([1.0, 0.01, 3.0, 300.0], p=[0.7, 0.1, 0.15, 0.05]))
        if labels:
            n_labels = min(labels, 2 + t * (labels - 1) // (n // 2))
            yield x, LABELS[int(np.clip((value + 1.2) / 2.4 * n_labels, 0, n_labels - 1))], weight
        else:
            yield x, 5.0 * value - 3.0, weight


def scale_of(model):
    v = model._store.views
    return tuple(np.pad(numbers, (0, max(model.max_features - len(numbers), 0))) for numbers in (v.location, v.spread))


class Beside:
    """An ensemble and the twin of its instance memory, which learn the same rows and are compared after each."""

    def __init__(self, model):
        self.model, self.numbers, self.first = model, isinstance(model, SVMRegressor), place_of(model, NeighboursExpert)[1]
        self.twin = NaiveMemory(int(self.store.views.header[0]["rows"]), neighbours.MAX_CELLS, self.numbers)

    @property
    def store(self):
        return place_of(self.model, NeighboursExpert)[0][0]

    def laid_out(self, x):
        """A row as the expert takes it, and the units of its features."""
        row = np.zeros(len(self.model.feature_names))
        for j, name in enumerate(self.model.feature_names):
            row[j] = x.get(name, 0.0)
        location, spread = (numbers[: len(row)] for numbers in scale_of(self.model))
        if self.model.scaling is None:
            return row.astype(np.float32).astype(float), spread
        scaled = np.clip(np.where(spread > 0.0, (row - location) / np.where(spread > 0.0, spread, 1.0), 0.0), -8.0, 8.0)
        return scaled.astype(np.float32).astype(float), np.where(spread > 0.0, 1.0, 0.0)

    def agree_on(self, said, x):
        expected = self.twin.say(*self.laid_out(x), () if self.numbers else names_of(self.model))
        if not self.numbers and self.model._n_outputs == 1:
            expected = expected[1:]
        np.testing.assert_allclose(said, expected, atol=2e-4)

    def learn(self, x, y, weight):
        model, twin, before, outputs = self.model, self.twin, scale_of(self.model), self.model._n_outputs
        model.predict_one(x)
        model.learn_one(x, y, weight)
        if outputs != model._n_outputs:
            twin.age()
            twin.rows = int(self.store.views.header[0]["rows"])
        twin.grow(len(model.feature_names))
        if model.scaling is not None:
            twin.move(before, scale_of(model))
        v, outputs = model._store.views, model._n_outputs
        twin.damping = v.damping[0].copy()
        said = v.inputs[:outputs, self.first]
        self.agree_on(said, x)
        if self.numbers:
            target = float(model._rule_record[0]["last_target"])
            missed = abs(target - v.numbers[0]) > v.choice_errors[0]
        else:
            label = names_of(model).index(y)
            own = int(said[0] > 2.0**-16) if outputs == 1 else int(np.argmax(said >= max(said) - 2.0**-16))
            target = y
            missed = v.answers[0] != label or own != label
        twin.learn(*self.laid_out(x), target, weight, missed)
        self.compare()

    def compare(self):
        store, twin = self.store, self.twin
        h, v = store.views.header[0], store.views
        assert (store.n_rows, h["next_slot"], h["n_correct"], h["n_informative"]) == (
            len(twin.targets),
            twin.next,
            twin.passed,
            twin.told,
        )
        assert store.stride == twin.room
        targets = twin.targets if self.numbers else [names_of(self.model).index(label) for label in twin.targets]
        np.testing.assert_allclose(v.targets[: store.n_rows], targets, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(v.weights[: store.n_rows], np.array(twin.weights, np.float32))
        np.testing.assert_allclose(v.relevance[: len(twin.relevance)], twin.relevance, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(store.vectors, np.reshape(twin.vectors, store.vectors.shape), rtol=1e-4, atol=1e-5)

    def probe(self, x):
        """It says so of a row that it does not learn, and only of that."""
        before = self.store.snapshot()
        self.model.predict_one(x)
        self.agree_on(self.model._store.views.inputs[: self.model._n_outputs, self.first], x)
        assert self.store.snapshot() == before


def few(labels, scaling):
    """An ensemble of few experts, including an instance memory of 48 rows, or 96 with more than two labels."""
    kind, team = (SVMClassifier, FEW) if labels else (SVMRegressor, FEW_NUMBERS)
    return of_experts(kind, *team, max_features=9, scaling=scaling, seed=1)


@pytest.mark.parametrize(("labels", "scaling"), [(2, "auto"), (3, None), (12, "auto"), (0, "auto")])
def test_the_instance_memory_equals_its_twin(labels, scaling, monkeypatch):
    monkeypatch.setattr(neighbours, "MAX_CELLS", 48 * 3)  # of 3 features; of 5 there is room for 16
    pair = Beside(few(labels, scaling))
    for x, y, weight in rows(labels):
        pair.learn(x, y, weight)
    for x, _, _ in rows(labels, 20, seed=1):
        pair.probe(x)
    assert pair.store.stride == pair.store.n_rows == 16
    assert pair.twin.told > (N // 2 if labels else N - 9)
    if not config.DISABLE_JIT:
        assert np.ptp(pair.twin.counts()) > 0.1


@pytest.mark.once
@pytest.mark.parametrize(("labels", "scaling"), [(3, "auto"), (0, None)])
def test_the_instance_memory_of_ensembles_equals_its_twin(labels, scaling):
    model = (SVMClassifier if labels else SVMRegressor)(max_features=9, scaling=scaling, seed=1)
    pair = Beside(model)
    for x, y, weight in rows(labels, 60 if config.DISABLE_JIT else 120):
        pair.learn(x, y, weight)
    for x, _, _ in rows(labels, 20, seed=1):
        pair.probe(x)


def test_the_first_of_equally_near_rows_vote():
    # Four rows over and over again: more than 13 that are held have the same distance.
    pair = Beside(few(2, None))
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(4, 2))
    for _ in range(N):
        x = dict(zip("ab", pool[rng.integers(len(pool))].tolist(), strict=True))
        pair.learn(x, bool(rng.random() < (0.5 if x["a"] > 0.0 else 0.8)), 1.0)
    assert pair.twin.next > 0


@pytest.mark.parametrize("labels", [2, 0])
def test_feature_weights_decay_after_many_rows(labels):
    pair = Beside(few(labels, "auto"))
    for t, (x, y, weight) in enumerate(rows(labels, 60)):
        if t == 30:
            pair.twin.told = 3000
            pair.store.views.header["n_informative"] = 3000.0
        pair.learn(x, y, 100.0 * weight)
    assert pair.twin.told > 3010


@pytest.mark.once
def test_misclassified_rows_and_one_in_ten_others_are_stored():
    # The label is the sign: the memory is right of nearly all rows, and once it is half full, most of them are not kept.
    model = of_experts(SVMClassifier, *FEW, max_features=1, max_classes=2, seed=0)
    store, rng, passed = place_of(model, NeighboursExpert)[0][0], np.random.default_rng(0), []
    for t in range(200):
        z = float(rng.normal())
        x = {"a": z + (1.0 if z > 0.0 else -1.0)}
        n_stored = store.n_rows
        model.learn_one(x, z > 0.0)
        if n_stored == store.n_rows:
            passed.append(t)
    assert store.n_rows == 24 + (200 - 24) // 10
    assert len(passed) == 200 - store.n_rows


@pytest.mark.once
def test_the_instance_memory_ignores_features_beyond_512():
    model = of_experts(SVMClassifier, *FEW[::2], max_features=600, scaling=None, max_classes=2, seed=0)
    pair, rng = Beside(model), np.random.default_rng(0)
    for t in range(60):
        size, n_values = (500, 50) if t < 10 else (600, 600 if t == 10 else 50)
        x = {f"{j:03}": float(rng.normal()) for j in rng.choice(size, n_values, replace=False)}
        pair.learn(x, x.get("000", 0.0) + sum(x.values()) > 0.0, 1.0)
    assert len(model.feature_names) == 600
    assert pair.store.vectors.shape[1] == len(pair.twin.relevance) == 512
    pair.probe(dict.fromkeys(model.feature_names[400:], 1.0))
