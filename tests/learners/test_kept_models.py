"""Snapshots, pickles and clones: what is kept is what is taken back, and what no model wrote is refused."""

import copy
import pickle

import numpy as np
import pytest

from problems import snapshot
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor, OneClassBSGD
from streamsvm.memory.support_vectors import HEADER, SupportVectorStore


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
        ("weights", 0, -1.0, "no learning leads to"),
        ("weights", 0, np.inf, "no learning leads to"),
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


def test_a_store_that_does_not_fit_names_what_makes_it_large():
    for options, named in (
        ({"max_classes": 2**20, "budget": 10**7}, r"budget=10000000, max_features=256, outputs=2097152 \(two a class\) need"),
        (
            {"replay": 2**31 - 1, "max_features": 10**7},
            "budget=100, max_features=10000000, outputs=20 .*, replay=2147483647 need",
        ),
        ({"kernel": "linear", "budget": 10**8}, r"budget=100000000 \(squared: projection keeps a matrix\), max"),
    ):
        with pytest.raises(ValueError, match=named):
            BSCAClassifier(**options)


@pytest.mark.parametrize("weight", [-1.0, 1e10, np.nan])
def test_window_weights_that_no_row_can_have_are_refused(weight):
    model = BSCAClassifier(budget=5, replay=4)
    model.learn_many(np.eye(3), [0, 1, 0])
    model._store.views.window_weights[1] = weight
    with pytest.raises(ValueError, match="no learning leads to"):
        pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("kind", [BSGDRegressor, BSCARegressor, OneClassBSGD])
def test_models_of_one_output_have_one(kind):
    model = kind(budget=5)
    model.learn_many(np.ones((1, 1)), *([[1.0]] if kind is not OneClassBSGD else []))
    model._store.live = 0
    with pytest.raises(ValueError, match="0 rows of coefficients|no support vectors or no features"):
        pickle.loads(pickle.dumps(model))
