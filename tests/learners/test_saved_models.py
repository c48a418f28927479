"""Snapshots, pickles and clones restore the same model; corrupt ones are refused."""

import copy
import pickle

import numpy as np
import pytest

from problems import snapshot
from refused import refused
from spoilt import spoil
from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.learners import KernelRLSClassifier, OnlineLinearSVC

ROWS = np.random.default_rng(0).normal(size=(600, 3))
#: Models, how many rows they learn, and numbers that no learning leads to.
STATES = {
    "bsgd": (
        lambda: BSGDClassifier(budget=5, max_features=10, seed=1),
        50,
        {
            "loss": [2],
            "l2": [2.0],
            "scale": [np.nan, 0.0, 1e-310],
            "average_v": [0.0],
            "t": [-1, 2**63 - 1],
            "slope": [1e300],
            "size": [-1.0],
            "gamma_rows": [-1, 10**6],
            "error": [-1.0],
            "n_outputs": [0],
            ("moments", (0, 0)): [-1e6, np.nan],
            ("moments", (0, 2)): [-1.0],
            ("spread", 0): [-1.0],
            ("location", 3): [1.0],
            ("first", (0, 0)): [np.inf],
        },
    ),
    "bsca": (
        lambda: BSCAClassifier(budget=5, replay=4),
        30,
        {
            "drifts": [(9.0, 0.1, np.nan), (9.0, -0.1, 0.1), (1e30, 0.1, 0.1), (9.0, 0.1, 1.5)],
            "forgotten": [-1],
            ("window_weights", 1): [-1.0, 1e10, np.nan],
            ("window_targets", 2): [0.5, 7.0, -3.0, np.nan],
        },
    ),
    "bsca without an average": (
        lambda: BSCAClassifier(budget=20, averaging=0),
        0,
        {"drifts": [(9.0, 0.1, 0.1)], "forgotten": [5]},
    ),
    "linear": (
        lambda: OnlineLinearSVC(max_features=40),
        100,
        {"t": [-1], "scale": [0.0], "average_v": [-1.0], "horizon": [1.0], "loss": [1], "slope": [[99.0, 0.0]], "epsilon": [1.0]},
    ),
    "least squares": (
        lambda: KernelRLSClassifier(10),
        530,
        {
            "n_stored": [10**6, 499],
            "is_full": [0, 2],
            "n_buffered": [64],
            "jitter": [0.0, np.nan],
            "ridge": [1.0],
            "max_swaps": [4],
            ("norms", 0): [5.0],
            ("norms", 12): [1.0],
            ("weights", (0, 12)): [1.0],
            ("weights", (0, 1)): [np.nan],
            ("moments", 0): [np.inf],
            ("factor", 0): [1e39, 0.0],
            ("usage", 0): [-1.0],
            ("vectors", (0, 12)): [1.0],
            ("window_weights", 0): [-1.0],
            ("window_targets", 3): [0.5],
            ("targets", 0): [3.0],
            ("products", (0, 12)): [1.0],
        },
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_corrupt_states_are_refused(name):
    make, n, wrong = STATES[name]
    model = make()
    if n:
        y = np.arange(n) % (3 if name == "bsca" else 2)
        model.learn_many(ROWS[:n], y)
    saved = pickle.dumps(model)
    for field, values in wrong.items():
        words = f"{field[0]} hold|corrupt" if isinstance(field, tuple) else f"its {field} is"
        for value in values:
            match = "corrupt|outputs|beyond the part in use" if name == "least squares" or field == "n_outputs" else words
            model = pickle.loads(saved)
            spoil(model._store.views, field, value, model._rule_record, model._common)
            refused(match, pickle.loads, pickle.dumps(model))


def test_inconsistent_pickles_are_refused(model):
    model.learn_one({"a": 1.0, "b": 1.0}, True)
    state = model.__getstate__()
    for name, value, match in (("budget", 400, "snapshot"), ("gamma", 3.0, "gamma"), ("kernel", "linear", "kernel|snapshot")):
        with pytest.raises(ValueError, match=match):
            BSGDClassifier.__new__(BSGDClassifier).__setstate__({**state, "parameters": {**state["parameters"], name: value}})
    for key, value, match in (
        ("features", ["a"], "1 feature names for 2 columns"),
        ("features", ["a", "a"], "a repeated name"),
        ("labels", [True, False, 7], "of a model with other sizes or labels"),
        ("attributes", {"_learn_row": bool}, "'_learn_row'"),
        ("attributes", {"_rule": bool}, "'_rule'"),
    ):
        refused(match, BSGDClassifier.__new__(BSGDClassifier).__setstate__, {**state, key: value})


def test_parameters_of_a_model_are_fixed(model):
    for name, method in {"budget": "mutate", "l2": "mutate", "kernel": "clone"}.items():
        refused(rf"{name} cannot be set after construction: model.{method}\(", setattr, model, name, 3, error=AttributeError)
    assert model.budget == 5


def test_attributes_set_by_users_are_saved():
    class Named(BSGDClassifier):
        pass

    model = Named(budget=5)
    model.name = "mine"
    assert copy.deepcopy(model).name == "mine"


def test_clone(model):
    model.learn_one({"a": 1.0}, True)
    assert snapshot(model.clone(include_attributes=True)) == snapshot(model)
    assert model.clone({"budget": 7}).budget == 7
    refused("leave out", model.clone, {"budget": 7}, include_attributes=True)


def test_rows_whose_norms_underflow_can_be_saved():
    model = BSGDClassifier(budget=5)
    model.learn_one({"a": 1e-22}, True)
    model.learn_one({"a": 1.0}, False)
    assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)


def test_a_store_beyond_memory_names_its_large_parameters():
    for options, named in (
        ({"replay": 2**31 - 1, "max_features": 10**7}, "budget=100, max_features=10000000, outputs=2, window=2147483647 need"),
        ({"kernel": "linear", "budget": 10**8}, r"budget=100000000, .* and a Gram matrix \(budget squared\) need"),
    ):
        refused(named, BSCAClassifier, **options)
