"""Input that is refused: by name, and without a trace in the model."""

import copy
import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
from numba import config

from streamsvm import BSGDClassifier
from streamsvm.budget import Refusal
from streamsvm.features import FeatureSpace
from streamsvm.learners import _bsgd
from streamsvm.learners.labels import Labels
from streamsvm.store import HEADER, SupportVectorStore


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


@pytest.mark.parametrize("y", [None, float("nan"), [1], {"a": 1}, pd.NA, pd.NaT, np.float32("inf")])
def test_labels(model, y):
    before = snapshot(model)
    with pytest.raises(ValueError, match="label"):
        model.learn_one({"a": 1.0}, y)
    assert snapshot(model) == before


def test_a_label_too_many():
    model = BSGDClassifier(budget=5, max_classes=2)
    model.learn_one({"a": 1.0}, "x")
    model.learn_one({"a": 2.0}, "y")
    before = snapshot(model)
    with pytest.raises(ValueError, match="label 'z' is one too many.*for 2 classes.*'x', 'y'.*max_classes.*OneVsRestClassifier"):
        model.learn_one({"a": 3.0}, "z")
    with pytest.raises(ValueError, match="too many"):
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


def test_weight_zero_changes_nothing(model):
    before = snapshot(model)
    model.learn_one({"a": 1.0, "z": 1.0}, "x", 0.0)
    model.learn_many(np.ones((2, 7)), ["x", "y"], 0)
    assert snapshot(model) == before


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_nothing_is_compiled_anew_for_another_kind_of_number():
    model = BSGDClassifier(budget=3, max_features=3)
    X = np.ones((2, 2), np.float32)
    model.learn_one({"a": 1.0}, True)
    model.learn_many(X, [True, False])
    compiled = len(_bsgd.learn_one.signatures), len(_bsgd.learn_many.signatures)
    for w in (1, True, 2, np.float32(2.0), np.float16(2.0), np.int64(3)):
        model.learn_one({"a": 1.0}, True, w)
        model.learn_many(X, [True, False], w)
    X.flags.writeable = False
    model.learn_many(X, [1, 0])
    model.learn_many(np.asfortranarray(X.astype(np.float64)), [1, 0])
    assert (len(_bsgd.learn_one.signatures), len(_bsgd.learn_many.signatures)) == compiled


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
    for X, y, match in (
        (good, pd.DataFrame({"target": [True, False]}), "sequence of labels, not a DataFrame"),
        (good, True, "sequence of labels, not a bool"),
        (good, "yn", "sequence of labels, not a str"),
        (good, np.array([[1], [0]]), "sequence of labels, not a ndarray"),
        (good, pd.Series([True, pd.NA], dtype="boolean"), "label <NA>"),
        (good, pd.Series(["x", pd.NA], dtype="string"), "label"),
        (np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2)), [1, 0], "masked"),
    ):
        with pytest.raises(ValueError, match=match):
            model.learn_many(X, y)
        assert snapshot(model) == before
    model.learn_many(good.iloc[:0], [])
    assert snapshot(model) == before
    with pytest.raises(ValueError, match="output must be one of"):
        model.decision_function_one({"a": 1.0}, "best")


def test_empty_rows_are_rows_of_zeros():
    model = BSGDClassifier(budget=5)
    model.learn_one({}, True)
    assert model.n_support == 1
    assert model.predict_one({}) is True


def test_rows_that_are_refused_use_up_no_name():
    for overflow in ("raise", "hash", "ignore"):
        model = BSGDClassifier(budget=3, max_features=2, overflow=overflow)
        model.learn_one({"a": 1.0}, True)
        before = snapshot(model)
        for refused in (1e19, 1e39, "x"):
            with pytest.raises(ValueError, match=r"feature 'b'|too large"):
                model.learn_one({"a": 1.0, "b": refused}, False)
            assert snapshot(model) == before
        for x in (None, [1.0], "ab", pd.Series({"a": 1.0})):
            with pytest.raises(ValueError, match="a row must be a mapping"):
                model.learn_one(x, "new")
            with pytest.raises(ValueError, match="a row must be a mapping"):
                model.predict_one(x)
            assert snapshot(model) == before


def test_rows_whose_hashed_values_add_up_to_too_much():
    model = BSGDClassifier(budget=3, max_features=1, overflow="hash")
    model.learn_one({"a": 1.0}, True)
    before = snapshot(model)
    with pytest.raises(ValueError, match="row 1: the row is too large"):
        model.learn_many(pd.DataFrame({"a": [0.0, 6e17], "b": [1.0, 6e17]}), [True, False])
    assert snapshot(model) == before


@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_features_that_are_ignored_are_ignored(value):
    one, many = (BSGDClassifier(budget=3, max_features=1, overflow="ignore", seed=0) for _ in range(2))
    for model in (one, many):
        model.learn_one({"a": 1.0}, True)
    one.learn_one({"a": 2.0, "b": value}, False)
    many.learn_many(pd.DataFrame({"a": [2.0], "b": [value]}), [False])
    assert snapshot(one) == snapshot(many)


def test_rows_that_invent_values_are_read_as_they_are():
    model = BSGDClassifier(budget=5)
    model.learn_one(Counter({"a": 1, "b": 1}), True)
    model.learn_one(Counter({"a": 1, "c": 5}), False)
    assert model.feature_names == ["a", "b", "c"]
    np.testing.assert_array_equal(model.support_vectors[1], [1.0, 0.0, 5.0])
    row = defaultdict(float, {"a": 1.0, "c": 2.0, "d": 3.0})
    model.predict_one(row)
    assert set(row) == {"a", "c", "d"}


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
    for long in ("n" * 2000, ("n" * 1996,)):
        with pytest.raises(ValueError, match="2,0.. characters"):
            model.learn_one({long: 1.0}, True)


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
    found = Labels(2)
    assert [found.target(y) for y in labels if y is not None] == signs
    assert (found.of(-1.0), found.of(1.0)) == (negative, positive)
    assert abs(sum(found.probabilities(0.25).values()) - 1.0) < 1e-12


def test_labels_before_any_and_after_refusal():
    labels = Labels(2)
    assert (labels.of(0.0), labels.probabilities(0.5)) == (False, {False: 0.5, True: 0.5})
    model = BSGDClassifier(budget=5)
    with pytest.raises(ValueError, match="feature"):
        model.learn_one({"a": "x"}, "spam")
    assert model.labels == []
    assert model.predict_one({"a": 1.0}) is False


def filled():
    model = BSGDClassifier(budget=5, max_features=3, max_classes=2, seed=1)
    for i in range(20):
        model.learn_one({"a": float(i % 7), "b": -1.0}, i % 2 == 0)
    return model._store


def test_store_size_is_what_its_formula_says():
    for budget, features, outputs, gram, window in (
        (1, 1, 1, False, 0),
        (100, 20, 1, False, 9),
        (15, 16, 3, True, 0),
        (500, 300, 2, False, 1000),
    ):
        S, D = -(-(budget + 1) // 16) // 2 * 32 + 16, -(-features // 16) * 16
        expected = 448 + 128 * ((outputs + 7) // 8) + 36 * S + 8 * outputs * S + 4 * D * S + 36 * D + (8 * S * S if gram else 0)
        expected += 4 * D * window + 24 * (-(-window // 8) * 8)
        assert SupportVectorStore(budget, features, outputs, gram, window).nbytes == expected


def test_snapshots():
    store, other = filled(), SupportVectorStore(5, 3, 2)
    other.restore(store.snapshot())
    assert other.snapshot() == store.snapshot()
    np.testing.assert_array_equal(other.vectors, store.vectors)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("budget", b"\x07", "budget"),
        ("n_support", b"\xff" * 8, "support vectors"),
        ("n_support", b"\x06", "support vectors"),
        ("used", b"\x09", "features"),
        ("live", b"\x03", "outputs"),
        ("live", b"\xff" * 8, "outputs"),
        ("next_stamp", b"\x00", "older or newer"),
        ("next_stamp", b"\xff" * 7 + b"\x7f", "older or newer"),
        ("next_stamp", b"\xff" * 7 + b"\x3f", "older or newer"),
        ("gamma", np.float64(-1.0).tobytes(), "no learning leads to"),
        ("gamma", np.float64(0.0).tobytes(), "no learning leads to"),
        ("largest_norm", np.float64(0.0).tobytes(), "no learning leads to"),
        ("kernel", b"\x05", "kernel"),
        ("gamma", b"\xff" * 8, "not finite"),
        (-1000, None, "snapshot of"),
        (0, None, "snapshot of 0 bytes"),
    ],
)
def test_snapshots_that_no_store_wrote_are_refused(place, value, match):
    store = filled()
    before = store.snapshot()
    snapshot = bytearray(before)
    place = HEADER.fields[place][1] if isinstance(place, str) else place
    snapshot = snapshot[:place] if value is None else snapshot[:place] + value + snapshot[place + len(value) :]
    with pytest.raises(ValueError, match=match):
        store.restore(bytes(snapshot))
    assert store.snapshot() == before


@pytest.mark.parametrize(
    ("array", "place", "value", "match"),
    [
        ("vectors", (0, 0), 3e38, "no learning leads to"),
        ("norms", 0, -3e38, "no learning leads to"),
        ("coefficients", (0, 0), np.inf, "not finite"),
        ("stamps", 1, None, "one age"),
        ("vectors", (0, 7), 1.0, "where it has no support vectors"),
        ("vectors", (2, 0), 1.0, "or no features"),
        ("coefficients", (1, 8), 1.0, "where it has no support vectors"),
        ("biases", 0, np.nan, "not finite"),
    ],
)
def test_snapshots_with_numbers_that_compiled_code_could_not_trust(array, place, value, match):
    store, other = filled(), SupportVectorStore(5, 3, 2)
    numbers = getattr(store.views, array)
    numbers[place] = numbers[0] if value is None else value
    with pytest.raises(ValueError, match=match):
        other.restore(store.snapshot())
    assert other.snapshot() == SupportVectorStore(5, 3, 2).snapshot()


def test_a_row_that_is_huge_leaves_a_model_that_answers():
    for gamma in (1.0, "scale"):
        model = BSGDClassifier(budget=5, kernel="poly", degree=9, gamma=gamma, l2=1e-2)
        for a in (1e15, 1.0, -2.0, 1e17, 3.0):
            model.learn_one({"a": a}, a > 0.0)
        assert all(np.isfinite(model.decision_function_one({"a": a})) for a in (0.0, 1.0, 1e4, -1e17))
    model = BSGDClassifier(budget=5)
    before = snapshot(model)
    with pytest.raises(ValueError, match="the row is too large"):
        model.learn_one({"a": 1e19}, False)
    assert snapshot(model) == before


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_gamma_of_any_scale_is_a_number_that_compiled_code_takes(scale):
    model = BSGDClassifier(budget=5)
    for i in range(20):
        model.learn_one({"a": float(np.float32(min(scale, 1e17) * (i % 3)))}, i % 2 == 0)
    assert 0.0 < model.effective_gamma <= 1e15
    assert np.isfinite(model.decision_function_one({"a": 0.0}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("maintenance", 6),
        ("l2", 2.0),
        ("scale", np.nan),
        ("scale", 0.0),
        ("scale", 1e-310),
        ("average_v", 0.0),
        ("t", -1),
        ("t", 2**63 - 1),
        ("slope", 1e300),
        ("gamma_rows", -1),
        ("gamma_rows", 10**6),
        ("error", -1.0),
    ],
)
def test_pickles_whose_state_compiled_code_could_not_trust_are_refused(model, field, value):
    state = model._common if field in model._common.dtype.names else model._own
    state[field] = value
    with pytest.raises(ValueError, match=f"kept with {field}"):
        pickle.loads(pickle.dumps(model))


def test_pickles_with_other_parameters_or_names_are_refused(model):
    model.learn_one({"a": 1.0, "b": 1.0}, True)
    state = model.__getstate__()
    for name, value, match in (("budget", 400, "snapshot"), ("gamma", 3.0, "gamma"), ("kernel", "linear", "kernel|snapshot")):
        with pytest.raises(ValueError, match=match):
            BSGDClassifier.__new__(BSGDClassifier).__setstate__({**state, "parameters": {**state["parameters"], name: value}})
    for key, value, match in (
        ("features", ["a"], "1 feature names for 2 columns"),
        ("features", ["a", "a"], "one of them twice"),
        ("features", list("abcd"), "4 feature names"),
        ("labels", [True, False, 7], "3 labels for 1 outputs"),
        ("attributes", {"_learn_row": bool}, "'_learn_row'"),
        ("attributes", {"_rule": bool}, "'_rule'"),
    ):
        with pytest.raises(ValueError, match=match):
            BSGDClassifier.__new__(BSGDClassifier).__setstate__({**state, key: value})


def test_parameters_of_a_model_are_fixed(model):
    for name in ("budget", "l2", "kernel"):
        with pytest.raises(AttributeError, match=rf"{name} is fixed when a model is made: model.clone\("):
            setattr(model, name, 3)
    assert model.budget == 5


def test_what_a_user_added_is_kept():
    class Named(BSGDClassifier):
        pass

    model = Named(budget=5)
    model.name = "mine"
    assert copy.deepcopy(model).name == "mine"


def test_clone(model):
    model.learn_one({"a": 1.0}, True)
    assert snapshot(model.clone(include_attributes=True)) == snapshot(model)
    assert model.clone({"budget": 7}).budget == 7
    with pytest.raises(ValueError, match="leave out"):
        model.clone({"budget": 7}, include_attributes=True)


def test_rows_so_small_that_their_norms_underflow_can_be_kept():
    model = BSGDClassifier(budget=5)
    model.learn_one({"a": 1e-22}, True)
    model.learn_one({"a": 1.0}, False)
    assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)


def test_a_batch_that_was_refused_for_want_of_room_undoes_the_label_that_came_with_it():
    model = BSGDClassifier(budget=3, gamma=1.0, maintenance=Refusal(), averaging=0)
    model.learn_many(np.array([[0.0], [5.0]]), ["a", "b"])
    before, decision = snapshot(model), model.decision_function_one({0: 5.0})
    with pytest.raises(RuntimeError, match="no budget maintenance"):
        model.learn_many(np.array([[10.0], [20.0], [30.0], [40.0]]), ["c", "a", "b", "c"])
    assert snapshot(model) == before
    assert model.decision_function_one({0: 5.0}) == decision != 0.0


def test_a_polynomial_that_is_no_kernel_is_refused():
    with pytest.raises(ValueError, match="coef0 must be a finite number at least 0"):
        BSGDClassifier(kernel="poly", coef0=-0.1)
