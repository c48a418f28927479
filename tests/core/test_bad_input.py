"""Input that is refused: by name, and without a trace in the model."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from streamsvm import BSGDClassifier
from streamsvm.features import FeatureSpace
from streamsvm.learners.labels import BinaryLabels
from streamsvm.store import SupportVectorStore


def snapshot(model):
    return pickle.dumps((model._store.snapshot(), model.feature_names, model.labels))


@pytest.fixture(params=[0, 5], ids=["fresh", "learned"])
def model(request):
    model = BSGDClassifier(budget=5, max_features=3, seed=1)
    for i in range(request.param):
        model.learn_one({"a": float(i), "b": -1.0}, i % 2 == 0)
    return model


@pytest.mark.parametrize(
    "value", ["1.5", None, 1 + 2j, [1.0], {}, float("nan"), float("inf"), -float("inf"), 1e39, np.nan, 10**400]
)
@pytest.mark.parametrize("name", ["a", "new", 7])
def test_features(model, value, name):
    before = snapshot(model)
    for x in ({name: value}, {"a": 1.0, "b": 2.0, name: value}):
        with pytest.raises(ValueError, match=f"feature {name!r} is"):
            model.learn_one(x, True)
        assert snapshot(model) == before
    if name == "a":
        if model.n_support:
            with pytest.raises(ValueError, match="feature 'a' is"):
                model.predict_one({"a": value, "b": 1.0})
        assert snapshot(model) == before


@pytest.mark.parametrize("y", [None, float("nan"), [1], {"a": 1}])
def test_labels(model, y):
    before = snapshot(model)
    with pytest.raises(ValueError, match="label"):
        model.learn_one({"a": 1.0}, y)
    assert snapshot(model) == before


def test_a_third_label():
    model = BSGDClassifier(budget=5)
    model.learn_one({"a": 1.0}, "x")
    model.learn_one({"a": 2.0}, "y")
    before = snapshot(model)
    with pytest.raises(ValueError, match="label 'z' is a third one.*OneVsRestClassifier"):
        model.learn_one({"a": 3.0}, "z")
    with pytest.raises(ValueError, match="third"):
        model.learn_many(np.ones((3, 1)), ["x", "y", "z"])
    assert snapshot(model) == before


@pytest.mark.parametrize("w", [-1.0, float("nan"), float("inf"), "2", None])
def test_weights(model, w):
    before = snapshot(model)
    with pytest.raises(ValueError, match="w must be"):
        model.learn_one({"a": 1.0}, True, w)
    with pytest.raises((ValueError, TypeError)):
        model.learn_many(np.ones((2, 1)), [True, False], [1.0, w])
    assert snapshot(model) == before


def test_weight_zero_learns_nothing(model):
    before = model.n_learned, model.n_support
    model.learn_one({"a": 1.0}, True, 0.0)
    assert (model.n_learned, model.n_support) == before


def test_frames(model):
    before = snapshot(model)
    good = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    for X, y, match in (
        (good.assign(b=["x", "y"]), [True, False], "feature 'b' is of type"),
        (good.assign(b=[1.0, None]), [True, False], "row 1: feature 'b' is nan"),
        (good.assign(b=[np.inf, 0.0]), [True, False], "row 0: feature 'b' is inf"),
        (good, [True], "X has 2 rows, y 1"),
        (good.assign(c=1.0, d=2.0), [True, False], "max_features=3"),
        (np.ones(3), [True], "2-D"),
        (np.array([["a"]]), [True], "2-D array of numbers"),
        ([[1.0]], [True], "must be an eager frame"),
    ):
        with pytest.raises(ValueError, match=match):
            model.learn_many(X, y)
        assert snapshot(model) == before
    model.learn_many(good.iloc[:0], [])
    with pytest.raises(ValueError, match="output must be one of"):
        model.decision_function_one({"a": 1.0}, "best")


def test_empty_rows_are_rows_of_zeros():
    model = BSGDClassifier(budget=5)
    model.learn_one({}, True)
    assert model.n_support == 1
    assert model.predict_one({}) is True


def test_too_many_names():
    names = [f"n{i}" for i in range(6)]
    refusing = BSGDClassifier(budget=5, max_features=3)
    with pytest.raises(ValueError, match="'n3' has no column left: max_features=3.*overflow='hash'"):
        refusing.learn_one(dict.fromkeys(names, 1.0), True)
    assert refusing.feature_names == []
    for overflow in ("hash", "ignore"):
        model = BSGDClassifier(budget=5, max_features=3, overflow=overflow)
        for name in names:
            model.learn_one({name: 1.0}, True)
        assert model.feature_names == names[:3]
        assert model.support_vectors.shape[1] == 3
    model = BSGDClassifier(budget=5)
    with pytest.raises(ValueError, match="2,000 characters"):
        model.learn_one({"n" * 2000: 1.0}, True)


def test_columns_do_not_depend_on_key_order_or_hash_seed():
    code = (
        "from streamsvm.features import FeatureSpace; import numpy as np\n"
        "space, row = FeatureSpace(4, 'hash'), np.zeros(4, np.float32)\n"
        "space.fill(row, {name: 1.0 for name in {'d', 'a', 'c', 'b'}}, True)\n"
        "space.fill(row, {'a': 1.0, 'x': 2.0, ('t', 1): 4.0, 7: 8.0}, True)\nprint(space.names, row.tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("['a', 'b', 'c', 'd']")


def test_quick_and_general_way_of_filling_agree():
    space, a, b = FeatureSpace(5, "raise"), np.zeros(5, np.float32), np.ones(5, np.float32)
    x = {"q": 1, "r": np.float32(2.5), "s": True, "t": np.int64(-3)}
    space.fill(a, x, True)
    space.fill(a, x, False)
    space.fill(b, {**x, "unknown": 9.0}, False)
    np.testing.assert_array_equal(a, b)
    space.fill(a, {"r": 4.0}, False)
    np.testing.assert_array_equal(a, [0, 4, 0, 0, 0])


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
    found = BinaryLabels()
    assert [found.sign(y) for y in labels if y is not None] == signs
    assert (found.of(-1.0), found.of(1.0)) == (negative, positive)
    assert abs(sum(found.probabilities(0.25).values()) - 1.0) < 1e-12


def test_labels_before_any_and_after_refusal():
    labels = BinaryLabels()
    assert (labels.of(0.0), labels.probabilities(0.5)) == (False, {False: 0.5, True: 0.5})
    model = BSGDClassifier(budget=5)
    with pytest.raises(ValueError, match="feature"):
        model.learn_one({"a": "x"}, "spam")
    assert model.labels == []
    assert model.predict_one({"a": 1.0}) is False


def filled():
    model = BSGDClassifier(budget=5, max_features=3, seed=1)
    for i in range(20):
        model.learn_one({"a": float(i % 7), "b": -1.0}, i % 2 == 0)
    return model._store


def test_store_size_is_what_its_formula_says():
    for budget, features, outputs, gram in ((1, 1, 1, False), (100, 20, 1, False), (15, 16, 3, True), (500, 300, 2, False)):
        S, D = -(-(budget + 1) // 16) * 16, -(-features // 16) * 16
        expected = 448 + 32 * S + 8 * outputs * S + 4 * D * S + 36 * D + (8 * S * S if gram else 0)
        assert SupportVectorStore(budget, features, outputs, gram).nbytes == expected


def test_snapshots():
    store, other = filled(), SupportVectorStore(5, 3, 2)
    other.restore(store.snapshot())
    assert other.snapshot() == store.snapshot()
    np.testing.assert_array_equal(other.vectors, store.vectors)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (0, b"\x07", "budget"),
        (40, b"\xff" * 8, "support vectors"),
        (40, b"\x06", "support vectors"),
        (48, b"\x09", "features"),
        (56, b"\x00", "older or newer"),
        (56, b"\xff" * 7 + b"\x7f", "older or newer"),
        (64, b"\x05", "kernel"),
        (80, b"\xff" * 8, "not finite"),
        (-1000, None, "snapshot of"),
        (0, None, "snapshot of 0 bytes"),
    ],
)
def test_snapshots_that_no_store_wrote_are_refused(place, value, match):
    store = filled()
    before = store.snapshot()
    snapshot = bytearray(before)
    snapshot = snapshot[:place] if value is None else snapshot[:place] + value + snapshot[place + len(value) :]
    with pytest.raises(ValueError, match=match):
        store.restore(bytes(snapshot))
    assert store.snapshot() == before


def test_a_row_that_the_kernel_cannot_hold():
    model = BSGDClassifier(budget=5, kernel="poly", degree=9, gamma=1.0, l2=1e-2)
    model.learn_one({"a": 1.0}, True)
    before = snapshot(model)
    with pytest.raises(ValueError, match="too large for the kernel"):
        model.learn_one({"a": 1e10}, False)
    assert snapshot(model) == before
    with pytest.raises(ValueError, match="row 1: the row is too large"):
        model.learn_many(np.array([[2.0], [1e10], [3.0]]), [1, 0, 1])


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("maintenance", 6, "maintenance"),
        ("scale", np.nan, "no learning leads to"),
        ("t", -1, "no learning leads to"),
        ("l2", 2.0, "l2"),
    ],
)
def test_pickles_whose_state_compiled_code_could_not_trust_are_refused(model, field, value, match):
    model._state[field] = value
    with pytest.raises(ValueError, match=match):
        pickle.loads(pickle.dumps(model))


def test_pickles_with_other_sizes_or_names_are_refused(model):
    twin = pickle.loads(pickle.dumps(model))
    twin.budget = 400
    with pytest.raises(ValueError, match="budget 5, its parameters ask for 400"):
        pickle.loads(pickle.dumps(twin))
    model.learn_one({"a": 1.0, "b": 1.0}, True)
    model._features.forget(1)
    with pytest.raises(ValueError, match="1 feature names for 2 columns"):
        pickle.loads(pickle.dumps(model))
