"""Sparse rows give the same bytes as dense ones, and are never made dense all at once."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config
from scipy import sparse

from lists import of_each_kind
from problems import snapshot
from refused import refused
from streamsvm import BSCAClassifier, BSGDClassifier, BSGDRegressor, OneClassBSGD, SVMClassifier
from streamsvm.batch import BatchClassifier, CSMOClassifier
from streamsvm.core import sparse as core_sparse
from streamsvm.learners import KernelRLSClassifier, OnlineLinearSVC
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.learners.refit import NormalEquations

MAKERS = {
    "BSGDClassifier": lambda: BSGDClassifier(budget=8, seed=0),
    "BSGDClassifier hash": lambda: BSGDClassifier(budget=8, seed=0, scaling=None, max_features=4, overflow="hash"),
    "BSGDClassifier ignore": lambda: BSGDClassifier(budget=8, seed=0, max_features=4, overflow="ignore"),
    "BSGDRegressor": lambda: BSGDRegressor(budget=8, seed=0),
    "KernelRLSClassifier": lambda: KernelRLSClassifier(budget=8),
    "OnlineLinearSVC": OnlineLinearSVC,
    "OnlineLinearSVC hash": lambda: OnlineLinearSVC(max_features=4, overflow="hash"),
    "OneClassBSGD": lambda: OneClassBSGD(budget=8, seed=0),
    "SVMClassifier": lambda: SVMClassifier(seed=0),
    "BatchClassifier": lambda: BatchClassifier(CSMOClassifier(), window=60, refit_every=50),
}


def rows(n=80, d=12):
    X = sparse.random_array((n, d), density=0.2, format="csr", rng=np.random.default_rng(0))
    return X, (np.asarray(X.sum(axis=1)).ravel() > 1.2).tolist()


def learn(model, X, y, w=1.0):
    if isinstance(model, OneClassBSGD):
        model.learn_many(X)
    else:
        model.learn_many(X, y, w)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(core_sparse, "_MAX_DENSE_VALUES", 100)


@pytest.mark.once
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", of_each_kind(MAKERS, lambda name: name.split()[0]))
def test_sparse_and_dense_rows_give_the_same_model(name):
    X, y = rows()
    weights = np.random.default_rng(1).choice([0.0, 1.0], size=len(y))
    forms = (X.toarray(), X, X.tocoo(), sparse.csc_matrix(X), pd.DataFrame.sparse.from_spmatrix(X))
    models = [MAKERS[name]() for _ in forms]
    for model, form in zip(models, forms, strict=True):
        learn(model, form.tocsr()[:0] if sparse.issparse(form) else form[:0], [])
        learn(model, form, y, weights)
        learn(model, form, y)
    assert len({snapshot(model) for model in models}) == 1
    for ask in ("predict", "predict_proba", "decision_function", "score"):
        if hasattr(models[0], f"{ask}_many"):
            expected, *results = (getattr(model, f"{ask}_many")(form) for model, form in zip(models, forms, strict=True))
            assert all(isinstance(answer, np.ndarray) for answer in results[:-1])
            assert isinstance(results[-1], pd.Series | pd.DataFrame)
            for answer in results:
                np.testing.assert_array_equal(np.asarray(answer), expected)


@pytest.mark.once
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("value", [np.nan, 1e39])
@pytest.mark.parametrize("name", of_each_kind(MAKERS, lambda name: name.split()[0]))
def test_invalid_sparse_rows_are_refused(name, value):
    X, y = rows()
    model = MAKERS[name]()
    learn(model, X, y)
    before, first = snapshot(model), int(X.indices[X.indptr[60]])
    X.data[X.indptr[60]] = value
    if name.endswith("ignore") and first not in model.feature_names:
        return
    sums = "too large" if name.endswith("hash") else f"feature {first} is"
    refused(rf"row 60: (feature {first} is|the row is {sums})", learn, model, X, y)
    assert snapshot(model) == before
    if not isinstance(model, OneClassBSGD):
        refused("row 60: ", model.predict_many, X)


@pytest.mark.once
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([-1.0, 0.0, 0.5, 2.0])), max_size=12))
def test_unsorted_and_duplicate_entries(entries):
    i, j, values = zip(*entries, strict=True) if entries else ((), (), ())
    X = sparse.coo_array((np.array(values, np.float64), (np.array(i, np.int64), np.array(j, np.int64))), shape=(4, 6))
    models = [BSGDClassifier(budget=3, max_features=4, overflow="hash", seed=0) for _ in range(2)]
    for model, form in zip(models, (X, X.toarray()), strict=True):
        model.learn_many(form, [0, 1, 0, 1])
    assert snapshot(models[0]) == snapshot(models[1])


def test_too_many_columns():
    X, y = rows()
    refused("feature 4 has no column left: max_features=4", BSGDClassifier(max_features=4).learn_many, X, y)
    model = BSGDClassifier(max_features=4, overflow="ignore")
    model.learn_many(X, y)
    assert model.feature_names == [0, 1, 2, 3]
    with pytest.warns(UserWarning, match="X has 2 columns, but the model has learned 4"):
        model.predict_many(X[:, :2])


def test_matrices_without_columns():
    X, y = sparse.csr_array((5, 0)), [True, False, True, True, False]
    models = [BSGDClassifier(budget=3, seed=0) for _ in range(2)]
    for model, form in zip(models, (X, X.toarray()), strict=True):
        model.learn_many(form, y)
        assert len(model.predict_many(form)) == 5
    assert snapshot(models[0]) == snapshot(models[1])


@pytest.mark.skipif(config.DISABLE_JIT, reason="too slow")
@pytest.mark.parametrize("name", ["scipy", "pandas"])
def test_memory_is_bounded(name):
    n, d = 8_000, 1000
    rng = np.random.default_rng(0)
    X = sparse.csr_array((np.ones(5 * n), rng.integers(d, size=5 * n), np.arange(0, 5 * n + 1, 5)), shape=(n, d))
    X = pd.DataFrame.sparse.from_spmatrix(X) if name == "pandas" else X
    y = (np.arange(n) % 2).tolist()
    model = OnlineLinearSVC(max_features=d)
    model.learn_many(X[:10], y[:10])
    tracemalloc.start()
    try:
        model.learn_many(X, y)
        model.predict_many(X)
        assert tracemalloc.get_traced_memory()[1] < 4 * n * d // 3  # bytes of the rows dense, in float32, are 32 million
    finally:
        tracemalloc.stop()


def test_passes_and_sums_over_sparse_rows():
    X, y = rows()
    models = [BSCAClassifier(budget=8, max_features=4, overflow="hash", seed=0) for _ in range(2)]
    solutions = [model.learn_epochs(form, y, epochs=3) for model, form in zip(models, (X, X.toarray()), strict=True)]
    assert snapshot(models[0]) == snapshot(models[1])
    assert [solution.primal() for solution in solutions] == [solutions[0].primal()] * 2
    np.testing.assert_array_equal(solutions[0].coefficients, solutions[1].coefficients)
    sparse_sums, dense_sums = (NormalEquations.from_rows(models[0], form, y) for form in (X, X.toarray()))
    np.testing.assert_array_equal(sparse_sums.A, dense_sums.A)
    np.testing.assert_array_equal(sparse_sums.g, dense_sums.g)


def test_sums_with_hashed_columns():
    X = np.random.default_rng(0).normal(size=(30, 3))
    hashed = BSGDClassifier(budget=8, max_features=1, overflow="hash", scaling=None, gamma=1.0, seed=0)
    summed = hashed.clone()
    y = (X.sum(axis=1) > 0.0).tolist()
    X = X.astype(np.float32)
    sums = X[:, :1] + X[:, 1:2] + X[:, 2:]
    hashed.learn_many(X, y)
    summed.learn_many(sums, y)
    np.testing.assert_array_equal(NormalEquations.from_rows(hashed, X, y).A, NormalEquations.from_rows(summed, sums, y).A)


def test_scalers_accept_sparse_rows():
    X, _ = rows()
    scalers = BoundedScaler(), BoundedScaler()
    for scaler, form in zip(scalers, (X, X.toarray()), strict=True):
        scaler.learn_many(form)
    np.testing.assert_array_equal(scalers[0].transform_many(X), scalers[1].transform_many(X.toarray()))
    assert sparse.issparse(X)
