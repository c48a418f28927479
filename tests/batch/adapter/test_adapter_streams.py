"""Batch adapters on streams: pipelines, probabilities, labels."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numba import config
from river import compose, evaluate, metrics, preprocessing
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.svm import SVC, SVR

from adapters import ROWS, N, adapter, fitted, stream
from refused import raises, refused
from saved import dumps, loads
from streamsvm.batch import BatchClassifier, CSMOClassifier, CSMORegressor, batch_adapter
from streamsvm.batch.adapter.fit_job import assign_folds, calibrate_probabilities, fit_log_factor

SLOW = config.DISABLE_JIT


def decisions(model):
    names = model.feature_names
    return [model.decision_function_one(dict(zip(names, x.values(), strict=True))) for x, _ in ROWS]


@pytest.mark.parametrize("like", [pd.DataFrame, pl.DataFrame, pa.Table.from_pylist])
def test_frames_and_rows_give_the_same_model(like):
    frame, labels = like([x for x, _ in ROWS[:30]]), [y for _, y in ROWS[:30]]
    assert decisions(fitted(adapter(refit_every=None), frame, labels)) == decisions(fitted(adapter(refit_every=None), ROWS[:30]))


def test_the_window_holds_the_last_rows():
    model = fitted(adapter(window=30, refit_every=None), ROWS)
    assert (model.n_learned, model.n_window) == (N, 30)
    assert decisions(model) == decisions(fitted(adapter(window=30, refit_every=None), ROWS[-30:]))


def test_pipelines_and_evaluation():
    for model in (preprocessing.StandardScaler() | adapter(), compose.Select("a", "b") | adapter(standardize=False)):
        assert evaluate.progressive_val_score(stream(2 * N, seed=1), model, metrics.Accuracy()).get() > 0.6
        assert model[-1].n_fits == 2 * N // 20
    model = preprocessing.TargetStandardScaler(batch_adapter(CSMORegressor(), window=60, refit_every=20))
    rows = [(x, 1000.0 + 100.0 * x["a"]) for x, _ in ROWS]
    assert evaluate.progressive_val_score(rows, model, metrics.MAE()).get() < 100.0


SOLVERS = [
    SVC(),
    SVC(kernel="linear", class_weight={True: 2.0}),
    LogisticRegression(),
    make_pipeline(PolynomialFeatures(2), LogisticRegression()),
    SVR(),
    Ridge(),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_solvers_of_scikit_learn(solver):
    model = batch_adapter(solver, window=80, refit_every=40)
    X, y = np.array([list(x.values()) for x, _ in ROWS], np.float32), np.array([y for _, y in ROWS])
    regression = not isinstance(model, BatchClassifier)
    y = y.astype(float) if regression else y
    model.learn_many(X[:40], y[:40])
    Z = (X - model.mean) / model.scale
    direct = solver.fit(Z[:40], y[:40])
    np.testing.assert_allclose(model.predict_many(X), direct.predict(Z), rtol=1e-12)
    if hasattr(direct, "predict_proba"):
        np.testing.assert_allclose(model.predict_proba_many(X), direct.predict_proba(Z), rtol=1e-12)
    elif not regression:
        p = model.predict_proba_many(X)
        assert ((p[:, 1] > 0.5) == model.predict_many(X)).all()
    assert loads(dumps(model, trusted=True), trusted=True).predict_one({0: 1.0}) == model.predict_one({0: 1.0})


@pytest.mark.once
@pytest.mark.parametrize(
    "kind", [int, lambda v: 2 * v - 1, str, lambda v: ("t", v), lambda v: 1 if v else "n", lambda v: v + 0.5, lambda v: 1e300 * v]
)
def test_labels_of_any_kind(kind):
    rows = [(x, kind(y)) for x, y in ROWS[:40]]
    model, twin = fitted(adapter(refit_every=None), rows), fitted(adapter(refit_every=None), ROWS[:40])
    flip = model.classes != [kind(False), kind(True)]
    assert set(model.classes) == {kind(False), kind(True)}
    assert [model.predict_one(x) for x, _ in ROWS] == [kind(twin.predict_one(x)) for x, _ in ROWS]
    assert model.predict_many(pd.DataFrame([x for x, _ in ROWS])).tolist() == [model.predict_one(x) for x, _ in ROWS]
    signs = np.sign(decisions(model)) * (-1.0 if flip else 1.0)
    np.testing.assert_array_equal(signs, np.sign(decisions(twin)))
    for x, _ in ROWS[:20]:
        assert model.predict_proba_one(x)[kind(True)] == pytest.approx(twin.predict_proba_one(x)[True], abs=1e-3)


def test_class_weights_require_labels_of_one_type():
    model = batch_adapter(CSMOClassifier(class_weight={1: 3.0, 0: 1.0}), refit_every=None)
    with pytest.raises(ValueError, match="class_weight can be a dictionary only if labels have one type"):
        fitted(model, [({"a": 1.0}, "x"), ({"a": 2.0}, ("y",))])
    raises("whole float", fitted, model.clone(), [({"a": 1.0}, 0.5), ({"a": 2.0}, 1.0)])


def test_three_classes():
    rng = np.random.default_rng(0)
    rows = [({"a": float(a), "b": float(b)}, ["ham", "spam", "eggs"][int(3 * a)]) for a, b in rng.random((N, 2))]
    model = fitted(adapter(refit_every=None, calibration_folds=3), rows)
    assert model.classes == sorted(model.labels)
    X = pd.DataFrame([x for x, _ in rows])
    p = model.predict_proba_many(X)
    assert p.columns.tolist() == model.classes
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    predicted = [model.predict_one(x) for x, _ in rows]
    assert p.idxmax(axis=1).tolist() == predicted == model.predict_many(X).tolist()
    assert np.mean([y == label for (_, y), label in zip(rows, predicted, strict=True)]) > 0.8
    f = model.decision_function_one(rows[0][0])
    assert max(f, key=f.get) == predicted[0]
    model.learn_one({"a": 0.0}, "new")
    assert model.predict_proba_one(rows[0][0])["new"] == 0.0
    assert model.classes[-1] == "new"


def test_probabilities_are_calibrated_on_held_out_rows():
    n = 60 if SLOW else 600
    rows = list(stream(n, noise=3.0))
    held_out = list(stream(n, seed=9, noise=3.0))
    losses = []
    for folds in (0, 5):
        model = fitted(batch_adapter(CSMOClassifier(C=10.0), refit_every=None, calibration_folds=folds), rows)
        f = np.array([model.decision_function_one(x) for x, _ in held_out])
        p = np.array([model.predict_proba_one(x)[True] for x, _ in held_out])
        assert ((p > 0.5) == (f > 0.0)).all()
        if folds == 0:
            np.testing.assert_allclose(p, expit(f), atol=1e-12)
        losses.append(metrics.LogLoss())
        for (_, y), q in zip(held_out, p.tolist(), strict=True):
            losses[-1].update(y, {True: q, False: 1.0 - q})
    assert losses[1].get() < losses[0].get()


def test_calibration_factor_is_fitted():
    assert assign_folds(np.array([0, 1, 0, 0, 2, 1]), 2).tolist() == [0, 0, 1, 0, -1, 1]
    rng = np.random.default_rng(0)
    f = rng.normal(size=4000) * 2.0
    labels = (rng.random(4000) < expit(3.0 * f)).astype(int)
    scores = {"two": f, "three": np.column_stack((np.zeros(4000), f, np.full(4000, -5.0)))}
    for values in scores.values():
        log_factor = fit_log_factor(labels, np.ones(4000), 4, lambda train, test, values=values: values[test])
        assert np.exp(log_factor) == pytest.approx(3.0, rel=0.15)
    assert fit_log_factor(labels, np.ones(4000), 4, lambda train, test: -f[test]) < -15.0
    assert fit_log_factor(np.arange(3), np.ones(3), 3, lambda *_: None) == 0.0
    p = calibrate_probabilities(-20.0, np.array([-1e-30, 0.0, 1e-30]))
    assert p[:, 1].tolist() == [0.5, 0.5, 0.5 + 2.0**-52]


def test_memory_is_bounded_for_any_stream():
    for overflow in ("hash", "ignore"):
        model = adapter(max_features=4, overflow=overflow, max_classes=2)
        size = model.nbytes
        for i, (x, y) in enumerate(ROWS):
            model.learn_one({**x, f"n{i}": 1.0}, y)
        assert model.nbytes == size
        assert model.feature_names == ["a", "b", "n0", "n1"]
        assert model.fitted_.n_features_in_ == 4
        frame = pd.DataFrame([{**x, "n5": 2.0} for x, _ in ROWS[:9]])
        assert model.predict_many(frame).tolist() == [model.predict_one({**x, "n5": 2.0}) for x, _ in ROWS[:9]]


def test_hashed_values_whose_sum_overflows_are_refused():
    model = batch_adapter(CSMORegressor(), max_features=1, overflow="hash")
    model.learn_one({"a": 1.0}, 1.0)
    before = dumps(model)
    X = pd.DataFrame({"a": [1.0, 3e38], "b": [1.0, 3e38]})
    for call, *y in ((model.learn_many, [1.0, 2.0]), (model.predict_many,)):
        refused("row 1: the row is too large", call, X, *y)
        assert dumps(model) == before


def test_new_features_count_after_the_next_fit():
    model = fitted(adapter(refit_every=None), [(x, y) for x, y in ROWS[:30]])
    before = model.predict_proba_one(ROWS[0][0])
    model.learn_one({"a": 0.0, "new": 5.0}, True)
    assert model.predict_proba_one({**ROWS[0][0], "new": 9.0}) == before
    assert model.fit().fitted_.n_features_in_ == 3
