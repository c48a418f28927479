"""What `check_one` refuses is what `learn_one` would refuse for its names and its label; and it changes nothing."""

import pickle

import pytest

from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.learners import OnlineLinearSVC

ROW = {"a": 1.0, "b": -1.0}
NAMES = [ROW, {}, {"a": 1.0}, {"c": 1.0}, {"c": 1.0, "d": 1.0}, {"x" * 1100: 1.0}, {**ROW, "c": 1.0, "d": 2.0}]
LABELS = ["ham", "spam", "eggs", "more", None, float("nan"), "x" * 1100, [1], 1.5]


@pytest.mark.once
@pytest.mark.parametrize("overflow", ["raise", "hash", "ignore"])
@pytest.mark.parametrize("n_labels", [0, 1, 2, 3])
def test_of_a_classifier(overflow, n_labels):
    for kind, more in ((BSGDClassifier, {"budget": 5, "max_classes": 3}), (OnlineLinearSVC, {})):
        model = kind(max_features=3, overflow=overflow, **more)
        for y in LABELS[: min(n_labels, model.max_classes)]:
            model.learn_one(ROW, y)
        before = pickle.dumps(model)
        for x in NAMES:
            for y in LABELS:
                assert refuses(model.check_one, x, y) == refuses(pickle.loads(before).learn_one, x, y), (x, y)
        assert pickle.dumps(model) == before


def test_of_a_regressor():
    model = BSGDRegressor(budget=5, max_features=3)
    model.learn_one(ROW, 1.0)
    before = pickle.dumps(model)
    for x in NAMES:
        for y in (1.0, None, "1", float("inf"), 1e31):
            assert refuses(model.check_one, x, y) == refuses(pickle.loads(before).learn_one, x, y), (x, y)
    assert pickle.dumps(model) == before


def refuses(method, *row):
    try:
        method(*row)
    except ValueError as error:
        return str(error)
    return ""
