"""The expert of the last label and of the labels that followed it, against its twin."""

import numpy as np
import pytest
from numba import config

from naive_neighbours import NaiveTable
from problems import names_of, of_experts, place_of
from streamsvm import SVMClassifier
from streamsvm.core.steps.experts import predict_from_last_label
from streamsvm.learners.ensemble import EXPERTS, _make_ascent_expert
from streamsvm.learners.experts import LastLabelExpert, NeighboursExpert

TEAM = (_make_ascent_expert(1.0, 1.0, budget=5), EXPERTS["normal"][-1])


def stream(names, n, seed=0):
    """Labels that mostly follow a fixed order, with new ones in the course of time; and weights."""
    rng, last = np.random.default_rng(seed), 0
    for t in range(n):
        n_labels = min(2 + t * (len(names) - 2) // (n // 2), len(names)) if t else 1
        last = (last + 1) % n_labels if rng.random() < 0.8 else int(rng.integers(n_labels))
        yield names[last], float(rng.choice([0.1, 1.0, 3.0, 500.0], p=[0.2, 0.5, 0.2, 0.1]))


def said_by(model):
    first = place_of(model, LastLabelExpert)[1]
    return model._store.views.inputs[: model._n_outputs, first : first + 2]


TWO = [[False, True], [True, False], ["ham", "spam"]]


@pytest.mark.parametrize(
    ("names", "max_classes"),
    [
        *((names, 2) for names in TWO),
        *((names, 128) for names in TWO),
        ([False, True, 2], 128),
        ([True, False, "a third"], 128),  # the positive label comes first: from the third label on, it is number 0
        (list(range(1, 13)), 128),
        pytest.param([f"label {i}" for i in range(70)], 128, marks=pytest.mark.once),
    ],
)
def test_the_last_label_expert_equals_its_twin(names, max_classes):
    model, twin, last = of_experts(SVMClassifier, *TEAM, max_features=1, max_classes=max_classes, seed=0), NaiveTable(), 0.0
    for t, (y, weight) in enumerate(stream(names, 60 if config.DISABLE_JIT else 300)):
        x = {"a": t % 7 - 3.0}
        model.predict_one(x)
        expected = twin.say(names_of(model))
        np.testing.assert_allclose(said_by(model), expected, rtol=1e-9, atol=1e-9)
        model.learn_one(x, y, weight)
        labels_seen = names_of(model)
        np.testing.assert_allclose(said_by(model), twin.say(labels_seen), rtol=1e-9, atol=1e-9)  # with one output or several
        twin.learn(y, weight, labels_seen)
        last = max(last, np.abs(expected[:, 1]).max())
    assert len(model.labels) == len(names)
    assert last > 0.5
    assert model._store.views.transitions.shape == (min(max(len(names), 2), 64),) * 2


@pytest.mark.parametrize("order", [(False, True), (True, False)])
@pytest.mark.parametrize("third", [2, "a third"])
def test_a_third_label_keeps_the_transition_counts(order, third):
    model = of_experts(SVMClassifier, *TEAM, NeighboursExpert("neighbours", 32), max_features=1, seed=0)
    rng = np.random.default_rng(0)
    for t in range(50):
        model.learn_one({"a": float(rng.normal())}, order[int(t > 0 and rng.random() < 0.7)])

    def meant():
        names, v, store = names_of(model), model._store.views, place_of(model, NeighboursExpert)[0][0]
        table = {(a, b): v.transitions[i, j] for i, a in enumerate(names) for j, b in enumerate(names) if {a, b} <= set(order)}
        age = np.roll(np.arange(store.n_rows), -store.views.header[0]["next_slot"])  # a larger store begins with the oldest row
        remembered = [names[int(target)] for target in store.views.targets[age]]
        return table, remembered, store.vectors[age].tolist(), names[model._rule_record[0]["last"]]

    before = meant()
    table = before[0]
    assert len(set(table.values())) == 4
    assert set(before[1]) == set(order)
    model._labels.encode(third)
    model._resize(3)
    assert meant() == before
    assert names_of(model) == [*order, third]
    assert model._store.views.transitions.shape == (3, 3)
    assert not model._store.views.transitions[2].any()
    assert not model._store.views.transitions[:, 2].any()


@pytest.mark.parametrize("last", [-1, 0, 1, 4, 5])
def test_the_last_label_expert_beyond_its_table(last):
    # Two of five labels have a place in the table, and number 4 was not seen yet.
    follows, counts, out = np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([4.0, 2.0, 3.0, 1.0, 0.0]), np.full((5, 2), -7.0)
    predict_from_last_label(follows, counts, 10.0, last, 5, out)
    expected = np.full(5, -0.5) if last >= 0 else np.zeros(5)
    if 0 <= last < 5:
        expected[last] = 0.5
    np.testing.assert_array_equal(out[:, 0], expected)
    if last in (0, 1):
        often = np.array([*follows[last], 0.0, 0.0, 0.0]) + 2.0 * (counts + 0.5) / 12.5
        np.testing.assert_allclose(out[:, 1], np.log(often / often.sum() * 5.0), rtol=1e-12)
    else:
        assert not out[:, 1].any()
