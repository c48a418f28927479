"""Exact machines: corrupt files are refused, and support vectors are converted once."""

import pickle

import numpy as np
import pytest
from numba import config

from adapters import ROWS, adapter, fitted
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor, batch_adapter
from streamsvm.core.kernels import convert_to_kernel_values
from streamsvm.core.sklearn_base import SklearnEstimator


def solver():
    return fitted(adapter(), ROWS[:30]).fitted_


def one_class():
    return CSMOOneClass().fit(np.random.default_rng(0).normal(size=(30, 3)))


def precomputed():
    machine = CSMORegressor(kernel="precomputed").fit(np.eye(6), [0.0, 9.0, 9.0, -9.0, -9.0, 0.0])
    assert machine.support_.tolist() == [1, 2, 3, 4]
    return machine


def restored(machine, state):
    type(machine).__new__(type(machine)).__setstate__(state)


PARTS = ("_kernel", "_coefficients", "_intercepts", "support_", "n_support_", "n_features_in_", "classes_")
KERNELS = [
    *((7, 1.0, 0.0, 3), (0, float("nan"), 0.0, 3), (0, -1.0, 0.0, 3), (0, 1.0, -1.0, 3), (2, 1.0, 0.0, 2**40)),
    *((2, 1.0, 0.0, 2.5), (4, 1.0, 1e31, 3), (5, 1.0, 0.0, 1), (0, 1.0, 0.0), 3),
]
#: Values of attributes that are refused.
WRONG = {
    solver: {
        "_coefficients": [np.ones((1, 500)), np.ones(5)],
        "dual_coef_": [np.ones((1, 5))],
        "support_vectors_": [np.ones((500, 2)), np.ones((500, 2), np.float32), [[1.0]]],
        "n_features_in_": [9],
        "_intercepts": [np.ones(3), np.array([np.nan])],
        "_kernel": KERNELS,
        "classes_": [np.array([0, 1, 2]), np.array([1, 1]), np.array([[0, 1]]), [0, 1]],
        "support_": [None, np.arange(7)],
        "n_support_": [np.array([1, 1], np.int32), np.array([-1, 1], np.int32), [1, 1]],
        "shape_fit_": [7, (), (1, None)],
        "predict": [len],
        "_predictor": [()],
    },
    one_class: {
        "_coefficients": [np.ones((1, 500)), np.ones((2, 500))],
        "_intercepts": [np.array([np.inf])],
        "_kernel": [(3, 1.0, 0.0, 3)],
        "offset_": [np.zeros(1)],
        "predict": [len],
    },
    precomputed: {
        "support_": [np.array([0, 1, 2, 6], np.int32), np.array([-1, 1, 2, 3], np.int32), np.arange(4.0), [0, 1, 2, 3]],
        "_coefficients": [np.ones((1, 9))],
        "_intercepts": [np.array([np.nan])],
    },
}


@pytest.mark.once
@pytest.mark.parametrize("make", WRONG)
def test_corrupt_machines_are_refused(make):
    machine = make()
    X, state = np.random.default_rng(1).normal(size=(6, machine.n_features_in_)), machine.__getstate__()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(machine)).predict(X), machine.predict(X))
    for name, values in WRONG[make].items():
        for value in values:
            refused("the saved model is corrupt: ", restored, machine, {**state, name: value})
    for name in PARTS if make is solver else ():
        refused("the saved model is corrupt: ", restored, machine, {key: state[key] for key in state if key != name})


def test_a_regressor_is_one_machine():
    machine = CSMORegressor().fit(np.arange(6.0)[:, np.newaxis], np.arange(6.0))
    twice = {name: np.concatenate([getattr(machine, name)] * 2) for name in ("_coefficients", "_intercepts")}
    refused("do not fit together", restored, machine, {**machine.__getstate__(), **twice})


@pytest.mark.once
def test_support_vectors_are_converted_once(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    solver = CSMOClassifier().fit(X, y)
    for model in (solver, pickle.loads(pickle.dumps(solver)), CSMOClassifier().fit(-X, y).fit(X, y)):
        np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
        np.testing.assert_array_equal(model.decision_function(X), solver.decision_function(X))
    assert "_predictor" not in solver.__getstate__()
    expected = fitted(batch_adapter(CSMOClassifier(), refit_every=None), X, y).predict_many(X).tolist()
    model = fitted(batch_adapter(CSMOClassifier(), refit_every=None), X, y)
    monkeypatch.delattr(SklearnEstimator, "_check_rows")  # the adapter has checked its rows
    assert [model.predict_one(dict(enumerate(x))) for x in X.tolist()] == expected
    assert set(model.decision_function_one({0: 1.0})) == {0, 1, 2}


def test_read_only_arrays_need_no_compilation():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    model = CSMOClassifier().fit(X, y)
    expected = model.predict(X)
    compiled = len(convert_to_kernel_values.signatures) if not config.DISABLE_JIT else 0
    Z = np.asfortranarray(X)
    for array in (Z, model._coefficients):
        array.flags.writeable = False
    np.testing.assert_array_equal(model.predict(Z), expected)
    if not config.DISABLE_JIT:
        assert len(convert_to_kernel_values.signatures) == compiled
