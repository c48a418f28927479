"""Invalid input is refused by name and does not change the model; `check_one` agrees with that."""

import math
import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from numba import config
from river import base

from problems import learned_by, snapshot
from refused import refused
from streamsvm import (
    BSCAClassifier,
    BSCARegressor,
    BSGDClassifier,
    BSGDRegressor,
    KernelRLSClassifier,
    OneClassBSGD,
    SVMClassifier,
    SVMRegressor,
    learners,
)
from streamsvm.core.memory.features import FeatureSpace
from streamsvm.core.steps.rule import learn_rows
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.bsgd import step
from streamsvm.learners.labels import Labels

#: Learners with max_features=3; the rows that they have learned have two features.
MADE = {
    "bsgd": lambda: BSGDClassifier(budget=5, max_features=3, seed=1),
    "without scaling": lambda: BSGDClassifier(budget=5, max_features=3, scaling=None, seed=1),
    "bsca": lambda: BSCAClassifier(budget=5, max_features=3, replay=4, class_weight="balanced", seed=0),
    "linear": lambda: OnlineLinearSVC(max_features=3),
    "least squares": lambda: KernelRLSClassifier(budget=5, max_features=3),
    "ensemble": lambda: SVMClassifier("low", max_features=3, seed=0),
    "bsgd of numbers": lambda: BSGDRegressor(budget=5, max_features=3),
    "bsca of numbers": lambda: BSCARegressor(budget=5, max_features=3),
    "linear of numbers": lambda: OnlineLinearSVR(max_features=3),
    "ensemble of numbers": lambda: SVMRegressor("low", max_features=3, seed=0),
    "one class": lambda: OneClassBSGD(budget=5, max_features=3),
}
ROWS_ARE_NO_MAPPINGS = [(x, "a row must be a mapping") for x in (None, [1.0], "ab", pd.Series({"a": 1.0}))]
WRONG_ROWS = [
    *(
        ({**row, name: value}, f"feature {name!r} is")
        for value in ("1.5", None, 1 + 2j, [1.0], {}, math.nan, math.inf, -math.inf, 1e39, 10**400)
        for name in ("a", "new", 7)
        for row in ({}, {"a": 1.0, "b": 2.0})
    ),
    *ROWS_ARE_NO_MAPPINGS,
    ({"a": 1.0, **{f"g{i}": 1.0 for i in range(3)}}, "has no column left: max_features=3.*overflow='hash'"),
    *(({name: 1.0}, "2,0.. characters") for name in ("n" * 2000, ("n" * 1996,))),
]
WRONG_LABELS = [None, math.nan, [1], {"a": 1}, pd.NA, pd.NaT, np.float32("inf")]
WRONG_TARGETS = [None, math.nan, [1.0], math.inf, -1e300, 10**400, "1.0"]
WRONG_WEIGHTS = [-1.0, math.nan, math.inf, "2", None, True]


def learned(name, n):
    """A learner of this name that has learned rows, and whether it predicts labels or numbers."""
    model = MADE[name]()
    labels, numbers = isinstance(model, base.Classifier), isinstance(model, base.Regressor)
    for i in range(n):
        model.learn_one({"a": float(i), "b": -1.0}, *([i % 2 == 0] if labels else [i / 3.0] if numbers else []))
    return model, labels, numbers


@pytest.mark.parametrize("n", [0, 5])
@pytest.mark.parametrize("name", MADE)
def test_refused_input_does_not_change_the_model(name, n):
    model, labels, numbers = learned(name, n)
    y = [1.0] if numbers else [] if not labels else ["new"] if not n or model.max_classes > 2 else [True]
    for x, match in WRONG_ROWS:
        refused(match, model.learn_one, x, *y)
    ask = model.predict_one if y else model.score_one
    for x, match in ROWS_ARE_NO_MAPPINGS:
        refused(match, ask, x)
    if n:
        refused("feature 'a' is", ask, {"a": math.nan, "b": 1.0})
        refused("row 1", model.predict_many if y else model.score_many, pd.DataFrame({"a": [1.0, np.inf], "b": 0.0}))
    for value in (1e19, 1e30) if model.__dict__.get("scaling", getattr(model, "scaling", None)) is None else ():
        refused("too large", model.learn_one, {"a": value, "new": 1.0}, *y)
    X = pd.DataFrame({"a": [1.0, 2.0], "c": [0.0, 1.0]})
    for value in (np.nan, np.inf):
        refused("row 1: feature 'c' is", model.learn_many, X.assign(c=[1.0, value]), *([y * 2] if y else []))
    refused("max_features=3", model.learn_many, X.assign(d=1.0, e=2.0), *([y * 2] if y else []))
    if not y:
        return
    for wrong in WRONG_LABELS if labels else WRONG_TARGETS:
        match = "label" if labels else "target .* is not a finite number"
        refused(match, model.learn_one, {"a": 1.0, "new": 1.0}, wrong)
        refused(f"row 1: {match}", model.learn_many, X, [*y, wrong])
    for w in WRONG_WEIGHTS:
        refused("w must be", model.learn_one, {"a": 1.0, "new": 1.0}, *y, w)
        if w is not True:
            refused(None, model.learn_many, X, y * 2, [1.0, w], error=(ValueError, TypeError))
    before = snapshot(model)
    model.learn_one({"a": 1.0, "new": 1.0}, *y, 0.0)
    model.learn_many(X, y * 2, 0)
    assert snapshot(model) == before


@pytest.mark.parametrize("value", [float("nan"), 1e30])
@pytest.mark.parametrize(
    "make", [lambda **more: BSGDClassifier(budget=3, seed=0, **more), OnlineLinearSVC], ids=["bsgd", "linear"]
)
def test_values_of_ignored_features_are_not_checked(make, value):
    one, many = (make(max_features=1, overflow="ignore") for _ in range(2))
    for model in (one, many):
        model.learn_one({"a": 1.0}, True)
    one.learn_one({"a": 2.0, "b": value}, False)
    many.learn_many(pd.DataFrame({"a": [2.0], "b": [value]}), [False])
    assert snapshot(one) == snapshot(many)


@pytest.mark.parametrize("kind", [str, str.encode, np.str_], ids=["str", "bytes", "numpy"])
def test_labels_longer_than_1024_characters_are_refused(model, kind):
    refused("label b?'x{50}'... has 1,025 characters; at most 1,024 are allowed", model.learn_one, {"a": 1.0}, kind("x" * 1025))
    refused("row 1: label .* has 1,025 characters", model.learn_many, np.ones((2, 1)), [True, kind("x" * 1025)])
    Labels(2).encode(kind("x" * 1024))


TOO_MANY = "label '[vz]' exceeds max_classes=2.*'x', 'y'.*larger max_classes.*OneVsRestClassifier.*n_ignored"
MANY = [(1.0, "x"), (2.0, "z"), (2.5, "y"), (float("nan"), "v"), (3.0, "v"), (0.5, "x"), (4.0, "z"), (1.5, "y")]


@pytest.mark.parametrize("weights", [None, "balanced", {"z": 0.0, "v": 2.0}], ids=str)
def test_rows_beyond_max_classes_are_ignored_counted_and_warned_of_once(weights):
    one, many, peer = (BSGDClassifier(budget=5, max_classes=2, class_weight=weights, seed=0) for _ in range(3))
    rows = MANY if isinstance(weights, dict) else [MANY[0], *MANY[2:]]  # a label of weight 0 takes no room
    with pytest.warns(UserWarning, match=TOO_MANY) as warned:
        learned_by(one, [({0: value}, label) for value, label in rows])
    assert len(warned) == 1
    for part in (rows[:3], rows[3:5], rows[5:]):
        X, y = np.array([[value] for value, _ in part]), [label for _, label in part]
        with pytest.warns(UserWarning, match=TOO_MANY) if "v" in y and not many.n_ignored else nullcontext([]) as warned:
            many.learn_many(X, y)
        assert {item.filename for item in warned} <= {__file__}
    learned_by(peer, [({0: value}, label) for value, label in rows if label in ("x", "y")])
    assert (one.n_ignored, peer.n_ignored, one.n_learned) == (3, 0, 4)
    assert one._store.snapshot() == many._store.snapshot() == peer._store.snapshot()
    assert snapshot(one) == snapshot(many) == snapshot(pickle.loads(pickle.dumps(one)))
    assert one.predict_proba_one({0: 1.0}).keys() == {"x", "y"}
    assert one.clone().n_ignored == 0


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_other_numeric_types_do_not_compile_again():
    model = BSGDClassifier(budget=3, max_features=3)
    X = np.ones((2, 2), np.float32)
    model.learn_one({"a": 1.0}, True)
    model.learn_many(X, [True, False])
    compiled = len(step.learn_one.signatures), len(learn_rows.signatures)
    for w in (1, 2, np.float32(2.0), np.float16(2.0), np.int64(3)):
        model.learn_one({"a": 1.0}, True, w)
        model.learn_many(X, [True, False], w)
    X.flags.writeable = False
    model.learn_many(X, [1, 0])
    model.learn_many(np.asfortranarray(X.astype(np.float64)), [1, 0], [1.0, 2.0])
    assert (len(step.learn_one.signatures), len(learn_rows.signatures)) == compiled


def test_invalid_frames_and_labels_are_refused(model):
    before, good = snapshot(model), pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    for X, y, match in (
        (good.assign(b=["x", "y"]), [True, False], "feature 'b' is of type"),
        (good, [True], "X has 2 rows, y 1"),
        (np.ones(3), [True], "2-D"),
        (np.array([["a"]]), [True], "2-D array of numbers"),
        ([[1.0]], [True], "must be an eager frame"),
        (good, pd.DataFrame({"target": [True, False]}), "sequence of labels, not a DataFrame"),
        (good, True, "sequence of labels, not a bool"),
        (good, "yn", "sequence of labels, not a str"),
        (good, np.array([[1], [0]]), "sequence of labels, not a ndarray"),
        (good, pd.Series([True, pd.NA], dtype="boolean"), "label <NA>"),
        (good, pd.Series(["x", pd.NA], dtype="string"), "label"),
        (np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2)), [1, 0], "masked"),
    ):
        refused(match, model.learn_many, X, y)
    model.learn_many(good.iloc[:0], [])
    assert snapshot(model) == before
    refused("output must be one of", model.decision_function_one, {"a": 1.0}, "best")


def test_an_empty_row_is_a_row_of_zeros():
    model = BSGDClassifier(budget=5)
    model.learn_one({}, True)
    assert model.n_support == 1
    assert model.predict_one({}) is True


def test_a_row_is_refused_if_the_sum_of_hashed_values_is_too_large():
    for scaling, value in ((None, 6e17), ("auto", 3e38)):
        model = BSGDClassifier(budget=3, max_features=1, overflow="hash", scaling=scaling)
        model.learn_one({"a": 1.0}, True)
        X = pd.DataFrame({"a": [0.0, value], "b": [1.0, value]})
        refused("row 1: the row is too large", model.learn_many, X, [True, False])


def test_mappings_with_default_values_are_read_without_adding_keys():
    model = BSGDClassifier(budget=5, scaling=None)
    model.learn_one(Counter({"a": 1, "b": 1}), True)
    model.learn_one(Counter({"a": 1, "c": 5}), False)
    assert model.feature_names == ["a", "b", "c"]
    np.testing.assert_array_equal(model.support_vectors[1], [1.0, 0.0, 5.0])
    row = defaultdict(float, {"a": 1.0, "c": 2.0, "d": 3.0})
    model.predict_one(row)
    assert set(row) == {"a", "c", "d"}


@pytest.mark.thorough
def test_columns_do_not_depend_on_key_order_or_hash_seed():
    code = (
        "from streamsvm.core.memory.features import FeatureSpace; import numpy as np\n"
        "space, row = FeatureSpace(4, 'hash'), np.zeros(4, np.float32)\n"
        "space.fill_row(row, {name: 1.0 for name in {'d', 'a', 'c', 'b'}}, True)\n"
        "space.fill_row(row, {'a': 1.0, 'x': 2.0, ('t', 1): 4.0, 7: 8.0}, True)\nprint(space.names, row.tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in "12"
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("['a', 'b', 'c', 'd']")


def test_fast_and_general_filling_of_rows_agree():
    space, a, b = FeatureSpace(5, "raise"), np.zeros(5, np.float32), np.ones(5, np.float32)
    x = {"q": 1, "r": np.float32(2.5), "s": True, "t": np.int64(-3)}
    space.fill_row(a, x, True)
    space.fill_row(a, x, False)
    space.fill_row(b, {**x, "unknown": 9.0}, False)
    np.testing.assert_array_equal(a, b)
    space.fill_row(a, {"r": 4.0}, False)
    np.testing.assert_array_equal(a, [0, 4, 0, 0, 0])


def test_a_model_still_predicts_after_a_huge_row():
    for gamma in (1.0, "scale"):
        model = BSGDClassifier(budget=5, kernel="poly", degree=9, gamma=gamma, scaling=None, l2=1e-2)
        for a in (1e15, 1.0, -2.0, 1e17, 3.0):
            model.learn_one({"a": a}, a > 0.0)
        assert all(np.isfinite(model.decision_function_one({"a": a})) for a in (0.0, 1.0, 1e4, -1e17))


@pytest.mark.parametrize("rule", ["KernelPerceptron", "Stoptron", "RBP", "Forgetron", "BOGD", "NOGD", "BPAS", "Projectron"])
def test_zero_rows_are_not_stored_with_the_linear_kernel(rule):
    model = getattr(learners, rule)(budget=4, kernel="linear")
    for _ in range(10):
        model.learn_one({"a": 0.0}, True)
        model.learn_one({"a": 0.0}, False)
    assert model.n_support == 0
    model.learn_one({"a": 1.0}, True)
    assert model.n_support == 1


@pytest.mark.parametrize("kind", [BSGDClassifier, BSGDRegressor, OneClassBSGD, OnlineLinearSVC])
def test_mutate_names_parameters_that_are_fixed_or_unknown(kind):
    model = kind()
    fixed = model._get_params().keys() - model._mutable_attributes
    assert {"kernel", "gamma", "scaling", "maintenance"} & model._get_params().keys() <= fixed
    for name in fixed:
        refused(rf"{name} of a {kind.__name__} cannot change.*clone", model.mutate, {name: 1})
    refused("lambda of a .* is not a parameter", model.mutate, {"lambda": 1})
    for name in model._mutable_attributes - {"seed", "class_weight"}:
        refused(rf"{name} of a {kind.__name__} cannot change: .*{name}", model.mutate, {name: -1})
    model.mutate({})


def test_unknown_and_missing_columns_cause_a_warning():
    model = BSGDClassifier(budget=5)
    model.learn_many(np.arange(40.0).reshape(20, 2) % 7, [False, True] * 10)
    with pytest.warns(
        UserWarning, match=r"none of the columns of X \('a', 'b'\), so its predictions mean nothing: it knows 0, 1"
    ):
        model.predict_many(pd.DataFrame({"a": [1.0], "b": [2.0]}))
    with pytest.warns(UserWarning, match="X has 1 columns, but the model has learned 2 features: the others count as 0"):
        model.predict_many(np.ones((3, 1)))
    model.predict_many(pd.DataFrame({1: [1.0]}))  # sparse rows as a frame
    model.predict_many(np.ones((0, 1)))
    BSGDClassifier(budget=5).predict_many(np.ones((1, 3)))  # knows nothing yet


# What check_one refuses is what learn_one would ---------------------------------------------------------------------------------

ROW = {"a": 1.0, "b": -1.0}
NAMES = [ROW, {}, {"a": 1.0}, {"c": 1.0}, {"c": 1.0, "d": 1.0}, {"x" * 1100: 1.0}, {**ROW, "c": 1.0, "d": 2.0}]
LABELS = ["ham", "spam", "eggs", "more", None, float("nan"), "x" * 1100, [1], 1.5]


@pytest.mark.once
@pytest.mark.parametrize("overflow", ["raise", "hash", "ignore"])
@pytest.mark.parametrize("n_labels", [0, 1, 3])
def test_check_one_of_a_classifier(overflow, n_labels):
    for kind, more in ((BSGDClassifier, {"budget": 5, "max_classes": 3}), (OnlineLinearSVC, {})):
        model = kind(max_features=3, overflow=overflow, **more)
        for y in LABELS[: min(n_labels, model.max_classes)]:
            model.learn_one(ROW, y)
        before = pickle.dumps(model)
        for x in NAMES:
            for y in LABELS:
                copy, refusal = pickle.loads(before), refuses(model.check_one, x, y)
                if "exceeds max_classes" in refusal:
                    with pytest.warns(UserWarning, match="exceeds max_classes"):
                        copy.learn_one(x, y)
                    assert (copy.n_ignored, copy.n_learned, copy.feature_names) == (1, model.n_learned, model.feature_names)
                else:
                    assert refusal == refuses(copy.learn_one, x, y), (x, y)
        assert pickle.dumps(model) == before


def test_check_one_of_a_regressor():
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
