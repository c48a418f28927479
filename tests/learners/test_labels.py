"""Labels to targets and back."""

import numpy as np
import pytest

from refused import refused
from streamsvm import BSGDClassifier
from streamsvm.learners.labels import Labels


@pytest.mark.parametrize(
    ("labels", "of"), [(["a", 5], ["a", 5]), ([("a", 1), ("b", 2, 3)], [("a", 1), ("b", 2, 3)]), ([2, 1], [2, 1])]
)
def test_labels_of_many_rows_are_those_of_one(labels, of):
    model = BSGDClassifier(budget=5, gamma=1.0)
    model.learn_many(np.array([[0.0], [5.0]]), labels)
    assert list(model.predict_many(np.array([[0.0], [5.0]]))) == of == [model.predict_one({0: x}) for x in (0.0, 5.0)]


def test_probabilities_agree_with_labels_however_small_the_decision():
    model = BSGDClassifier(budget=5, gamma=1.0)
    model.learn_one({"a": 0.0}, True)
    model.learn_one({"a": 5.0}, False)
    for a in np.linspace(-9.0, 14.0, 47):
        probabilities = model.predict_proba_one({"a": a})
        assert max(probabilities, key=probabilities.get) == model.predict_one({"a": a})
    fresh = BSGDClassifier(budget=5)
    fresh.learn_one({0: 1.0}, "x")
    assert fresh.predict_proba_many(np.ones((2, 1))).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("labels", "signs", "negative", "positive"),
    [
        ([True, False], [1, -1], False, True),
        ([np.bool_(False), np.bool_(True)], [-1, 1], False, True),
        ([1, 0], [1, -1], 0, 1),
        ([-1, 1], [-1, 1], -1, 1),
        ([1.0, -1.0], [1, -1], -1, 1),
        (["ham", "spam"], [-1, 1], "ham", "spam"),
        ([1, 2], [1, -1], 2, 1),
        ([2, 1], [-1, 1], 2, 1),
        ([7, 5], [-1, 1], 7, 5),
        ([("a", 1), None], [-1], ("a", 1), ("a", 1)),
    ],
)
def test_sides_of_labels(labels, signs, negative, positive):
    found = Labels(2)
    assert [found.target(y) for y in labels if y is not None] == signs
    assert (found.of(-1.0), found.of(1.0)) == (negative, positive)
    assert abs(sum(found.probabilities(0.25).values()) - 1.0) < 1e-12


def test_labels_before_any_and_after_refusal():
    # river asks of binary classifiers that both labels have a probability.
    for labels, probabilities in ((Labels(2), {False: 0.5, True: 0.5}), (Labels(3), {})):
        assert (labels.of(0.0), labels.positive, labels.probabilities(0.5)) == (None, None, probabilities)
        assert labels.array(np.zeros(2)).tolist() == [None, None]
    model = BSGDClassifier(budget=5)
    refused("feature", model.learn_one, {"a": "x"}, "spam")
    assert model.labels == []
    assert (model.predict_one({"a": 1.0}), model.predict_proba_one({"a": 1.0})) == (None, {})
    X = np.ones((2, 1))
    assert model.predict_many(X).tolist() == [None, None]
    assert model.predict_proba_many(X).shape == (2, 0)
    model.learn_one({"a": 1.0}, "spam")
    assert (model.predict_one({"a": 1.0}), model.predict_proba_one({"a": 1.0})) == ("spam", {"spam": 1.0})
