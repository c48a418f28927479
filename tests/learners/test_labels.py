"""Encoding of labels, and class weights, fixed and balanced, on every classifier."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config

import streamsvm
from problems import dicts, learned_by, snapshot
from refused import refused
from streamsvm import BSGDClassifier, learners
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.labels import MAX_BALANCED_WEIGHT, ClassWeights, Labels


@pytest.mark.parametrize(
    ("labels", "of"), [(["a", 5], ["a", 5]), ([("a", 1), ("b", 2, 3)], [("a", 1), ("b", 2, 3)]), ([2, 1], [2, 1])]
)
def test_decode_list_and_array_equal_decode(labels, of):
    model = BSGDClassifier(budget=5, gamma=1.0)
    model.learn_many(np.array([[0.0], [5.0]]), labels)
    assert list(model.predict_many(np.array([[0.0], [5.0]]))) == of == [model.predict_one({0: x}) for x in (0.0, 5.0)]


def test_probabilities_agree_with_labels_for_tiny_decision_values():
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
def test_signs_of_two_labels(labels, signs, negative, positive):
    encoder = Labels(2)
    assert [encoder.encode(y) for y in labels if y is not None] == signs
    assert (encoder.decode(-1.0), encoder.decode(1.0)) == (negative, positive)
    assert abs(sum(encoder.make_probabilities(0.25).values()) - 1.0) < 1e-12


def test_no_label_before_the_first_row_and_after_a_refusal():
    # river asks of binary classifiers that both labels have a probability.
    for labels, probabilities in ((Labels(2), {False: 0.5, True: 0.5}), (Labels(3), {})):
        assert (labels.decode(0.0), labels.positive, labels.make_probabilities(0.5)) == (None, None, probabilities)
        assert labels.decode_array(np.zeros(2)).tolist() == [None, None]
    model = BSGDClassifier(budget=5)
    refused("feature", model.learn_one, {"a": "x"}, "spam")
    assert model.labels == []
    assert (model.predict_one({"a": 1.0}), model.predict_proba_one({"a": 1.0})) == (None, {})
    X = np.ones((2, 1))
    assert model.predict_many(X).tolist() == [None, None]
    assert model.predict_proba_many(X).shape == (2, 0)
    model.learn_one({"a": 1.0}, "spam")
    assert (model.predict_one({"a": 1.0}), model.predict_proba_one({"a": 1.0})) == ("spam", {"spam": 1.0})


# Weights of classes -------------------------------------------------------------------------------------------------------------

CLASSIFIERS = [
    kind for name in learners.__all__ if inspect.isclass(kind := getattr(learners, name)) and issubclass(kind, OnlineClassifier)
]
ROWS = 25 if config.DISABLE_JIT else 120


def rows(n=ROWS, classes=2, seed=0):
    """Rows of two features; one in six does not belong to the first class."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    y = np.where(rng.random(n) < 1 / 6, rng.integers(1, classes, size=n), 0)
    return X, [f"class {k}" for k in y] if classes > 2 else (y > 0).tolist()


def small(kind, **parameters):
    valid = inspect.signature(kind).parameters
    options = {"budget": 20, "max_features": 4, "seed": 0, "averaging": 30, "effort": "low"}
    if getattr(kind, "_refuses_when_full", False):
        options["budget"] = 200
    return kind(**{name: value for name, value in options.items() if name in valid}, **parameters)


def balanced(labels):
    """The twin: the weight of each row, from the labels up to it."""
    weights = []
    for i, label in enumerate(labels):
        so_far = labels[: i + 1]
        classes = set(so_far)
        n, n_c = len(so_far) + len(classes), so_far.count(label) + 1
        weights.append(min(n / (len(classes) * n_c), MAX_BALANCED_WEIGHT))
    return weights


@pytest.mark.once
@pytest.mark.parametrize("kind", CLASSIFIERS, ids=lambda kind: kind.__name__)
def test_class_weights_equal_row_weights(kind):
    X, y = rows()
    for class_weight, factors in (("balanced", balanced(y)), ({True: 3.0, "other": 0.5}, [3.0 if label else 1.0 for label in y])):
        one, many, plain, unweighted = (small(kind, class_weight=of) for of in (class_weight, class_weight, None, None))
        weights = [1.0 if i % 3 else 0.5 for i in range(len(y))]
        for row, label, factor, w in zip(dicts(X), y, factors, weights, strict=True):
            one.learn_one(row, label, w)
            plain.learn_one(row, label, w * factor)
            unweighted.learn_one(row, label, w)
        many.learn_many(X, y, weights)
        assert one._block.tobytes() == plain._block.tobytes()
        assert snapshot(one) == snapshot(many)
        assert one._block.tobytes() != unweighted._block.tobytes()


@pytest.mark.parametrize("class_weight", ["balanced", {"class 1": 2.0, 7: 0.5}], ids=str)
def test_class_weights_are_saved(class_weight, tmp_path):
    X, y = rows(classes=3)
    model = streamsvm.BSCAClassifier(budget=10, class_weight=class_weight, seed=0)
    half = len(y) // 2
    model.learn_many(X[:half], y[:half])
    model.save(tmp_path / "model")
    again = streamsvm.load(tmp_path / "model")
    assert again.class_weight == class_weight
    for one in (model, again):
        one.learn_many(X[half:], y[half:])
    assert snapshot(model) == snapshot(again)
    assert model.clone().class_weight == class_weight
    assert model.clone()._class_weights.counts == {}


@pytest.mark.parametrize(
    ("class_weight", "named"),
    [
        ({True: -1.0}, "class_weight\\[True\\]"),
        ({"a": math.nan}, "class_weight\\['a'\\]"),
        ({"a": "1"}, "class_weight\\['a'\\]"),
        ("unbalanced", "'unbalanced'"),
    ],
    ids=str,
)
def test_invalid_class_weights_are_named(class_weight, named):
    refused(named, streamsvm.BSGDClassifier, class_weight=class_weight)


def test_the_mapping_of_class_weights_is_copied():
    weights = {True: 2.0}
    model = streamsvm.BSGDClassifier(class_weight=weights)
    weights[True] = -1.0
    assert model.class_weight == {True: 2.0}
    assert model.clone().class_weight == {True: 2.0}


def test_a_class_of_weight_0_is_ignored():
    X, y = rows()
    model, twin = (streamsvm.BSGDClassifier(budget=10, class_weight={False: 0.0}, seed=0) for _ in range(2))
    model.learn_one({0: 1.0}, False)
    assert (model.n_learned, model.labels) == (0, [])
    model.learn_many(X, y)
    learned_by(twin, zip(dicts(X), y, strict=True))
    assert model.n_learned == sum(y)
    assert snapshot(model) == snapshot(twin)


def test_passes_use_balanced_weights_of_all_rows():
    X, y = rows()
    n, n_c = len(y) + 2, sum(y) + 1
    weight = {True: n / (2 * n_c), False: n / (2 * (n - n_c))}
    options = {"budget": 200, "gamma": 1.0, "tol": 0.01, "seed": 0}
    model, weighted = (streamsvm.BSCAClassifier(class_weight=of, **options) for of in ("balanced", weight))
    solutions = [one.learn_epochs(X, y, epochs=3) for one in (model, weighted)]
    np.testing.assert_allclose(solutions[0].coefficients, solutions[1].coefficients)
    assert model._class_weights.counts == {True: sum(y), False: len(y) - sum(y)}
    refused("row 0", model.learn_epochs, np.full((1, 2), np.nan), [True])
    assert model._class_weights.counts == {True: sum(y), False: len(y) - sum(y)}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40))
def test_balanced_weights_equal_those_of_the_twin(labels):
    weights = ClassWeights("balanced")
    assert [weights.count_row(label) for label in labels] == pytest.approx(balanced(labels))
    for label in reversed(labels):
        weights.uncount_row(label)
    assert (weights.counts, weights.n_rows) == ({}, 0)


def test_the_weight_of_a_late_class_is_limited():
    weights = ClassWeights("balanced")
    for _ in range(10_000):
        weights.count_row(False)
    assert weights.count_row(True) == MAX_BALANCED_WEIGHT


def test_the_opposite_of_a_single_label_0_is_1():
    for zero, one in ((0, 1), (0.0, 1.0)):
        model = streamsvm.BSGDClassifier(budget=10, seed=0)
        model.learn_one({"a": 1.0}, zero)
        assert [(type(label), label) for label in model.predict_proba_one({"a": 1.0})] == [(type(zero), zero), (type(one), one)]
