"""Rows that are predicted and learned singly: the memory that an encoder has of earlier rows changes no answer and no byte."""

import math
import random
from decimal import Decimal

import numpy as np
import pytest

from saved import dumps, loads
from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier
from streamsvm.core import steps
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.stream import Table
from streamsvm.stream.tables import TableEncoder, column_state

#: Some values are equal and different categories, some are equal and the same one.
VALUES = [1, True, 1.0, "1", "1.0", 0, False, -0.0, "a", " a ", "b", "TRUE", "true", "", None, math.nan, "NA", "x" * 70]
VALUES += [np.float64(1.0), np.int64(1), Decimal(1), b"a", [1.0], "2024-01-02", "2024-01-03 04:05", 1e39, *map(str, range(9))]
OPTIONS = {
    "columns": ["c:category,k:category,d:date", "c:category=a,d:date,k:category", "c:key,k:category,d:date"],
    "when_missing": ["mean", "indicator", "drop"],
    "cycles": [[], ["day"]],
    "missing": [[], ["NA", "1"]],
    "max_values": [None, None, 0, 2],
    "buckets": [None, None, None, 2],
    "max_columns": [1024, 4],
    "scaler": [None, None, None, "standard"],
}
#: In two of them, class labels become targets of a regression later.
LABELS = (["no", "yes", None], [0.5, 1.0, -3.25], [*[1] * 40, 2.5], [*range(64)] * 5, [*range(80)])


def call(method, *arguments):
    """Return the result of a method with all bits of numbers, or the message of its error."""
    try:
        result = method(*arguments)
    except ValueError as error:
        return str(error)
    return {name: float(value).hex() for name, value in result.items()} if isinstance(result, dict) else None


LONG = "k" * 1023  # too long for features of its categories


def learn_batch(encoder):
    x = {"n": 7.0, "c": "a", LONG: "a"}
    encoder.parse_table(Table.from_rows([(x, 1)])).encode_batch(0, 1, np.ones(1, bool), None, [1], np.ones(1)).update_encoder()


def learn_other(encoder):
    encoder.learn_one({"n": 7.0}, 1)
    return encoder


CHANGES = {
    "a row": lambda encoder: encoder.learn_one({"n": 7.0, "c": "b"}, 1),
    "a batch": learn_batch,
    "a merge": lambda encoder: encoder.merge_with(learn_other(loads(dumps(encoder)))),
    "a target of a regression": lambda encoder: encoder.learn_one({"c": "b"}, 2.5),
    "the last category": lambda encoder: encoder.learn_one({LONG: "z"}, 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_row_is_encoded_anew_after_the_encoder_has_changed(change):
    encoder, x = TableEncoder(f"c:category,{LONG}:category", max_values=1), {"c": "a", LONG: "a"}
    for i in range(4):
        encoder.learn_one({"n": float(i), **x}, i % 2)
    before = encoder.transform_one(x)
    CHANGES[change](encoder)
    assert before != encoder.transform_one(x)
    assert call(encoder.transform_one, x) == call(loads(dumps(encoder)).transform_one, x)


def test_more_categories_have_features_from_the_first_target_of_a_regression_on():
    encoder = TableEncoder("c:category")
    for i in range(20):
        encoder.learn_one({"c": str(i % 10)}, i % 2)
    assert "9" not in encoder.column_state.categories["c"]
    encoder.transform_one({"c": "9"})
    encoder.learn_one({"c": "9"}, 2.5)
    assert "9" in encoder.column_state.categories["c"]


@pytest.mark.parametrize("seed", range(12))
def test_an_encoder_answers_like_one_that_has_just_been_loaded(seed):
    """A loaded encoder remembers no row and no cell."""
    draw = random.Random(seed)
    parameters = {name: draw.choice(choices) for name, choices in OPTIONS.items()}
    parameters |= {"buckets": None} if ":key" in parameters["columns"] else {}
    encoder, labels = TableEncoder(**parameters), LABELS[seed % len(LABELS)]
    values = draw.sample(VALUES, draw.choice([3, 8, 12]))
    rows = [{name: draw.choice(values) for name in ("n", "c", "k", "d", "new") if draw.random() < 0.6} for _ in range(3)]
    for step in draw.choices(["transform", "learn", "change", "batch", "merge"], [4, 4, 3, 1, 0.2], k=100):
        x, y = draw.choice(rows), draw.choice(labels)
        twin = loads(dumps(encoder))
        if step == "transform":
            assert call(encoder.transform_one, x) == call(twin.transform_one, x)
        elif step == "learn":
            assert call(encoder.learn_one, x, y) == call(twin.learn_one, x, y)
        elif step == "change":
            x[draw.choice("nck")] = draw.choice(values)
        elif step == "batch" and parameters["scaler"] is None and x:
            for model in (encoder, twin):
                model.parse_table(Table.from_rows([(x, y)])).encode_batch(
                    0, 1, np.ones(1, bool), None, [y], np.ones(1)
                ).update_encoder()
        elif step == "merge":
            other = loads(dumps(encoder))
            assert call(encoder.merge_with, other) == call(twin.merge_with, other)
        assert dumps(encoder) == dumps(twin)


@pytest.mark.parametrize(
    ("values", "features"),
    [
        ([True, 1, 1.0, "1", "TRUE"], ["c=true", "c=1", "c=1", "c=1", "c=true"]),
        ([[1], [2]], ["c=[1]", "c=[2]"]),
        (["a", "b", " a", None], ["c=a", "c=b", "c=a", None]),
    ],
)
def test_a_row_that_is_changed_in_place_is_parsed_again(values, features):
    encoder = TableEncoder("c:category", max_values=10)
    for value in [*values, *values]:
        encoder.learn_one({"c": value, "n": 1.0}, "yes")
    x = {"c": values[0], "n": 1.0}
    for value, feature in zip(values, features, strict=True):
        x["c"] = value
        assert encoder.transform_one(x) == {"n": 1.0} | ({feature: 1.0} if feature else {})
    cell = [1]
    x["c"] = cell
    encoder.transform_one(x)
    cell[0] = 2
    assert encoder.transform_one(x).get("c=[2]") == (1.0 if "c=[2]" in features else None)


def test_a_changed_result_does_not_change_the_next_one():
    encoder, x = TableEncoder("c:category"), {"c": "a", "n": 2.0}
    encoder.learn_one(x)
    encoder.transform_one(x).clear()
    assert encoder.transform_one(x) == {"n": 2.0}


@pytest.mark.parametrize("is_regression", [False, True])
def test_rows_that_were_predicted_are_learned_like_others(is_regression):
    """The bytes of the model are those of a model that only learns, and of one that learns a frame."""
    rng = np.random.default_rng(0)
    names = rng.choice(["a", "b", "c", "d", "1", "1.0", "", "x" * 70, *map(str, range(80))], 300).tolist()
    xs = [{"c": name, "n": number, "k": name[:1]} for name, number in zip(names, rng.normal(size=300).tolist(), strict=True)]
    ys = [float(len(x["c"])) + x["n"] if is_regression else "yes" if x["n"] > 0.0 or x["c"] == "a" else "no" for x in xs]

    def make():
        learner = BoundedTargetScaler(BSGDRegressor(10, seed=0)) if is_regression else BSGDClassifier(10, seed=0)
        return TableEncoder("c:category,k:category") | learner

    learned, predicted, frame = make(), make(), make()
    for x, y in zip(xs, ys, strict=True):
        predicted.predict_one(xs[7])
        predicted.predict_one(x)
        predicted.learn_one(x, y)
        learned.learn_one(dict(x), y)
    table = {name: [x[name] for x in xs] for name in xs[0]}
    frame.learn_many(pytest.importorskip("pandas").DataFrame(table), ys)
    assert dumps(learned) == dumps(predicted)
    assert dumps(learned["TableEncoder"]) == dumps(frame["TableEncoder"])


def test_few_cells_of_a_column_are_remembered(monkeypatch):
    monkeypatch.setattr(column_state, "_MAX_CELLS", 3)
    encoder, twin = (TableEncoder("c:category", max_values=1) for _ in range(2))
    for i in range(40):
        x = {"c": str(i % 7)}
        encoder.transform_one(x)
        encoder.learn_one(x, i % 2)
        twin.learn_one(dict(x), i % 2)
        assert len(encoder.column_state._known_cells["c"]) <= 3
    assert dumps(encoder) == dumps(twin)


def test_a_row_is_explained_in_one_call_with_two_rows_for_each_column(monkeypatch):
    """The compiled functions of the members are linked once, not with each call."""
    model, calls = TableEncoder("c:category,k:category") | SVMClassifier("low", seed=0), []
    for i in range(60):
        model.learn_one({"c": "abc"[i % 3], "k": "de"[i % 2], "n": i % 7 - 3.0}, i % 5 > 1)
    compute = SVMClassifier._compute_matrix_outputs

    def count_rows(self, matrix, *arguments):
        calls.append(len(matrix))
        compute(self, matrix, *arguments)

    monkeypatch.setattr(SVMClassifier, "_compute_matrix_outputs", count_rows)
    monkeypatch.setattr(steps.ensemble, "link_functions", None)
    explanation = model.explain_one({"c": "a", "k": "d", "n": 0.5})
    assert sorted(explanation.contributions) == ["c", "k", "n"]
    assert calls == [2 * 3 + 2]
