"""Snapshots, pickles and clones: what is kept is what is taken back, and what no model wrote is refused."""

import copy
import pickle

import numpy as np
import pytest

from problems import snapshot
from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor, OneClassBSGD


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss", 2),
        ("l2", 2.0),
        ("scale", np.nan),
        ("scale", 0.0),
        ("scale", 1e-310),
        ("average_v", 0.0),
        ("t", -1),
        ("t", 2**63 - 1),
        ("slope", 1e300),
        ("size", -1.0),
        ("gamma_rows", -1),
        ("gamma_rows", 10**6),
        ("error", -1.0),
    ],
)
def test_pickles_whose_state_compiled_code_could_not_trust_are_refused(model, field, value):
    state = model._common if field in model._common.dtype.names else model._own
    state[field] = value
    refused(f"corrupt: its {field} is", pickle.loads, pickle.dumps(model))


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
        ("labels", [True, False, 7], "of a model with other sizes or labels"),
        ("attributes", {"_learn_row": bool}, "'_learn_row'"),
        ("attributes", {"_rule": bool}, "'_rule'"),
    ):
        refused(match, BSGDClassifier.__new__(BSGDClassifier).__setstate__, {**state, key: value})


def test_parameters_of_a_model_are_fixed(model):
    for name in ("budget", "l2", "kernel"):
        refused(rf"{name} is fixed when a model is made: model.clone\(", setattr, model, name, 3, error=AttributeError)
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
    refused("leave out", model.clone, {"budget": 7}, include_attributes=True)


def test_rows_so_small_that_their_norms_underflow_can_be_kept():
    model = BSGDClassifier(budget=5)
    model.learn_one({"a": 1e-22}, True)
    model.learn_one({"a": 1.0}, False)
    assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)


def test_a_store_that_does_not_fit_names_what_makes_it_large():
    for options, named in (
        ({"replay": 2**31 - 1, "max_features": 10**7}, "budget=100, max_features=10000000, outputs=2, window=2147483647 need"),
        ({"kernel": "linear", "budget": 10**8}, r"budget=100000000, .* and a Gram matrix \(budget squared\) need"),
    ):
        refused(named, BSCAClassifier, **options)


@pytest.mark.parametrize("weight", [-1.0, 1e10, np.nan])
def test_window_weights_that_no_row_can_have_are_refused(weight):
    model = BSCAClassifier(budget=5, replay=4)
    model.learn_many(np.eye(3), [0, 1, 0])
    model._store.views.window_weights[1] = weight
    refused("corrupt: window_weights hold", pickle.loads, pickle.dumps(model))


@pytest.mark.parametrize("kind", [BSGDRegressor, BSCARegressor, OneClassBSGD])
def test_models_of_one_output_have_one(kind):
    model = kind(budget=5)
    model.learn_many(np.ones((1, 1)), *([[1.0]] if kind is not OneClassBSGD else []))
    model._store.live = 0
    refused("0 rows of coefficients|beyond the part in use", pickle.loads, pickle.dumps(model))
