"""Exact machines: saved ones that are corrupt are refused, and support vectors are stored once."""

import pickle

import numpy as np
import pytest
from numba import config
from scipy import sparse

from adapters import ROWS, adapter
from refused import refused
from streamsvm.batch import BatchAdapter, CSMOClassifier, CSMOOneClass, CSMORegressor
from streamsvm.batch.csmo import columns
from streamsvm.core.sklearn_base import SklearnEstimator


def solver():
    return adapter().fit(ROWS[:30]).fitted_


def one_class():
    return CSMOOneClass().fit(np.random.default_rng(0).normal(size=(30, 3)))


def precomputed():
    machine = CSMORegressor(kernel="precomputed").fit(np.eye(6), [0.0, 9.0, 9.0, -9.0, -9.0, 0.0])
    assert machine.support_.tolist() == [1, 2, 3, 4]
    return machine


def restored(machine, state):
    type(machine).__new__(type(machine)).__setstate__(state)


@pytest.mark.once
@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (solver, "_coefficients", np.ones((1, 500))),
        (solver, "_coefficients", np.ones(5)),
        (solver, "dual_coef_", np.ones((1, 5))),
        (solver, "support_vectors_", np.ones((500, 2))),
        (solver, "support_vectors_", np.ones((500, 2), np.float32)),
        (solver, "support_vectors_", [[1.0]]),
        (solver, "n_features_in_", 9),
        (solver, "_intercepts", np.ones(3)),
        (solver, "_intercepts", np.array([np.nan])),
        (solver, "_kernel", (7, 1.0, 0.0, 3)),
        (solver, "_kernel", (0, float("nan"), 0.0, 3)),
        (solver, "_kernel", (0, -1.0, 0.0, 3)),
        (solver, "_kernel", (0, 1.0, -1.0, 3)),
        (solver, "_kernel", (2, 1.0, 0.0, 2**40)),
        (solver, "_kernel", (2, 1.0, 0.0, 2.5)),
        (solver, "_kernel", (4, 1.0, 1e31, 3)),
        (solver, "_kernel", (5, 1.0, 0.0, 1)),
        (solver, "_kernel", (0, 1.0, 0.0)),
        (solver, "_kernel", 3),
        (solver, "classes_", np.array([0, 1, 2])),
        (solver, "classes_", np.array([1, 1])),
        (solver, "classes_", np.array([[0, 1]])),
        (solver, "classes_", [0, 1]),
        (solver, "support_", None),
        (solver, "support_", np.arange(7)),
        (solver, "n_support_", np.array([1, 1], np.int32)),
        (solver, "n_support_", np.array([-1, 1], np.int32)),
        (solver, "n_support_", [1, 1]),
        (solver, "shape_fit_", 7),
        (solver, "shape_fit_", ()),
        (solver, "shape_fit_", (1, None)),
        (solver, "predict", len),
        (solver, "_rows", ()),
        (one_class, "_coefficients", np.ones((1, 500))),
        (one_class, "_coefficients", np.ones((2, 500))),
        (one_class, "_intercepts", np.array([np.inf])),
        (one_class, "_kernel", (3, 1.0, 0.0, 3)),
        (one_class, "offset_", np.zeros(1)),
        (one_class, "predict", len),
        (precomputed, "support_", np.array([0, 1, 2, 6], np.int32)),
        (precomputed, "support_", np.array([-1, 1, 2, 3], np.int32)),
        (precomputed, "support_", np.array([0.0, 1.0, 2.0, 3.0])),
        (precomputed, "support_", [0, 1, 2, 3]),
        (precomputed, "_coefficients", np.ones((1, 9))),
        (precomputed, "_intercepts", np.array([np.nan])),
    ],
)
def test_a_machine_that_was_changed_is_refused(make, name, value):
    machine = make()
    X = np.random.default_rng(1).normal(size=(6, machine.n_features_in_))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(machine)).predict(X), machine.predict(X))
    refused("the saved model is corrupt: ", restored, machine, {**machine.__getstate__(), name: value})


@pytest.mark.parametrize(
    "name", ["_kernel", "_coefficients", "_intercepts", "support_", "n_support_", "n_features_in_", "classes_"]
)
def test_a_solver_that_lacks_a_part_is_refused(name):
    state = dict(solver().__getstate__())
    del state[name]
    refused("the saved model is corrupt: ", restored, solver(), state)


def test_a_regressor_is_one_machine():
    machine = CSMORegressor().fit(np.arange(6.0)[:, np.newaxis], np.arange(6.0))
    twice = {name: np.concatenate([getattr(machine, name)] * 2) for name in ("_coefficients", "_intercepts")}
    refused("do not fit together", restored, machine, {**machine.__getstate__(), **twice})


@pytest.mark.once
@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.indices.__setitem__(0, 99),
        lambda X: X.indices.__setitem__(0, -1),
        lambda X: X.indptr.__setitem__(1, 10**6),
        lambda X: X.indptr.__setitem__(0, 1),
        lambda X: X.indptr.__setitem__(-1, 10**6),
        lambda X: X.data.__setitem__(0, np.inf),
        lambda X: setattr(X, "data", X.data[:-1]),
        lambda X: setattr(X, "data", X.data.astype(np.float32)),
        lambda X: setattr(X, "indices", X.indices.astype(np.float64)),
        lambda X: setattr(X, "indptr", X.indptr[:-1]),
        lambda X: setattr(X, "indices", X.indices.tolist()),
    ],
)
def test_sparse_support_vectors_that_were_changed_are_refused(change):
    X = sparse.random_array((40, 30), density=0.2, rng=np.random.default_rng(0), format="csr")
    solver = CSMOClassifier().fit(X, np.arange(40) % 2)
    copy = pickle.loads(pickle.dumps(solver))
    np.testing.assert_array_equal(copy.predict(X), solver.predict(X))
    change(copy.support_vectors_)
    refused("the saved model is corrupt: ", CSMOClassifier.__new__(CSMOClassifier).__setstate__, copy.__getstate__())


@pytest.mark.once
def test_support_vectors_are_laid_out_once(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    solver = CSMOClassifier().fit(X, y)
    for model in (solver, pickle.loads(pickle.dumps(solver)), CSMOClassifier().fit(-X, y).fit(X, y)):
        np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
        np.testing.assert_array_equal(model.decision_function(X), solver.decision_function(X))
    assert "_rows" not in solver.__getstate__()
    expected = BatchAdapter(CSMOClassifier(), refit_every=None).fit(X, y).predict_many(X).tolist()
    model = BatchAdapter(CSMOClassifier(), refit_every=None).fit(X, y)
    monkeypatch.delattr(SklearnEstimator, "_checked")  # the adapter has checked its rows
    assert [model.predict_one(dict(enumerate(x))) for x in X.tolist()] == expected
    assert set(model.decision_function_one({0: 1.0})) == {0, 1, 2}


def test_compiled_code_is_not_compiled_anew_for_arrays_that_cannot_be_written():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    model = CSMOClassifier().fit(X, y)
    expected = model.predict(X)
    compiled = len(columns.expand.signatures) if not config.DISABLE_JIT else 0
    Z = np.asfortranarray(X)
    for array in (Z, model._coefficients):
        array.flags.writeable = False
    np.testing.assert_array_equal(model.predict(Z), expected)
    if not config.DISABLE_JIT:
        assert len(columns.expand.signatures) == compiled
