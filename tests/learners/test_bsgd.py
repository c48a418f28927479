"""BSGDClassifier against its twin, step by step, and invariants of any model."""

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numba import config
from river import datasets, preprocessing

from streamsvm import BSGDClassifier, Merge, Projection, Removal
from streamsvm.learners import KernelRLSClassifier

ROWS = 150 if config.DISABLE_JIT else 600
SEARCHES = ("gss", "gss-precise", "lookup-h", "lookup-wd")


def bananas(rows=ROWS):
    return [({"a": x["1"], "b": x["2"]}, y) for x, y in datasets.Bananas().take(rows)]


def arrays(rows=ROWS):
    data = bananas(rows)
    return np.array([[x["a"], x["b"]] for x, _ in data]), np.array([y for _, y in data])


@pytest.mark.once
@pytest.mark.parametrize(
    "maintenance", [*(Merge(search) for search in SEARCHES), Removal(), Removal("random"), Projection()], ids=str
)
def test_budget_and_memory_hold_and_unused_slots_are_zero(maintenance):
    model = BSGDClassifier(budget=9, gamma=1.0, scaling=None, maintenance=maintenance, seed=4)
    size = model.nbytes
    for x, y in bananas(200):
        model.learn_one(x, y)
        assert model.n_support <= 9
    views = model._store.views
    assert model.nbytes == size == model._block.nbytes
    assert not views.vectors[:, model.n_support :].any()
    assert not views.coefficients[:, model.n_support :].any()
    assert len(set(views.stamps[: model.n_support])) == model.n_support
    expected = (views.vectors[:, : model.n_support].astype(float) ** 2).sum(axis=0)
    np.testing.assert_allclose(views.norms[: model.n_support], expected, rtol=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-5])
def test_projection_of_a_linear_model_loses_nothing(scale):
    # Three vectors span the plane, so a budget of four does not restrict the model, for any units of the rows.
    X, y = arrays(300)
    X = np.column_stack([X, np.ones(len(X))]) * scale
    options = {"learning_rate": "pegasos", "averaging": 0, "max_features": 3, "scaling": None}
    model = BSGDClassifier(budget=4, kernel="linear", maintenance=Projection(), l2=1e-2 * scale**2, **options)
    model.learn_many(X, y)
    w = np.zeros(3)
    for t, (x, label) in enumerate(zip(X.astype(np.float32).astype(float), np.where(y, 1.0, -1.0), strict=True), 1):
        inside = label * (w @ x) < 1.0
        w *= 1.0 - 1.0 / t
        w += inside * label / (1e-2 * scale**2 * t) * x
    np.testing.assert_allclose(model.decision_function_many(X, "last"), X @ w, atol=2e-2 * np.abs(X @ w).max())


@pytest.mark.parametrize(
    "model",
    [BSGDClassifier(budget=5, scaling=None), pytest.param(KernelRLSClassifier(10), marks=pytest.mark.once)],
    ids=["bsgd", "rls"],
)
def test_gamma_scale_is_one_over_the_variances_of_the_first_500_rows(model):
    X, y = arrays(520)
    model.learn_many(X, y)
    assert model.effective_gamma == pytest.approx(1.0 / X[:500].astype(np.float32).astype(float).var(axis=0).sum(), rel=1e-9)


@pytest.mark.once
def test_frames_of_any_library_are_learned_as_an_array():
    X, y = arrays()
    X = X.astype(np.float32).astype(np.float64)
    frames = [
        X.astype(np.float32),
        np.asfortranarray(X),
        pd.DataFrame(X, columns=["a", "b"]),
        pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}),
        pa.table({"a": X[:, 0], "b": X[:, 1]}),
    ]
    weights, of_array = np.random.default_rng(0).random(len(y)), BSGDClassifier(budget=20, seed=1)
    of_array.learn_many(X, y, weights)
    for frame in frames:
        model = BSGDClassifier(budget=20, seed=1)
        model.learn_many(frame, y if isinstance(frame, np.ndarray) else pd.Series(y), weights)
        assert model._store.snapshot() == of_array._store.snapshot()
        turned = frame if isinstance(frame, np.ndarray) else nw.from_native(frame).select("b", "a").to_native()
        for ask in ("predict_many", "decision_function_many", "predict_proba_many"):
            np.testing.assert_array_equal(np.asarray(getattr(model, ask)(turned)), getattr(of_array, ask)(X))


def test_probabilities_agree_with_predictions_and_are_calibrated():
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=50, l2=1e-3)
    pairs = []
    for x, y in datasets.Bananas().take(300 if config.DISABLE_JIT else 3000):
        p = model.predict_proba_one(x)
        if not pairs and not p:  # nothing is known before the first row
            model.learn_one(x, y)
            continue
        assert p[False] + p[True] == 1.0
        if p[True] != 0.5:
            assert model.predict_one(x) == (p[True] > 0.5)
        pairs.append((p[True], y))
        model.learn_one(x, y)
    if not config.DISABLE_JIT:
        p, y = np.array(pairs[1000:], float).T
        for low in (0.5, 0.7, 0.9):
            inside = (np.abs(p - 0.5) + 0.5 >= low) & (np.abs(p - 0.5) + 0.5 < low + 0.2)
            sure = np.abs(p[inside] - 0.5) + 0.5
            assert abs(((p > 0.5) == y)[inside].mean() - sure.mean()) < 0.1


@pytest.mark.once
@pytest.mark.parametrize("options", [{"learning_rate": "constant", "eta0": 1e4, "l2": 9e-5}, {"l2": 1e-15}, {"l2": 1e9}], ids=str)
def test_numbers_stay_finite_with_fast_shrinking(options):
    X, y = arrays()
    model = BSGDClassifier(budget=10, gamma=1.0, scaling=None, seed=0, **options)
    for _ in range(3):
        model.learn_many(X, y, 1e9)
        model.learn_many(X, y)
    assert np.isfinite(model._store.coefficients).all()
    assert np.isfinite(model.decision_function_many(X, "last")).all()
    assert np.isfinite(model.decision_function_many(X, "average")).all()
