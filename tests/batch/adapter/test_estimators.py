"""Batch models behind river's protocol: river's checks, the window, the schedule, and invalid input."""

import functools
import inspect
import itertools
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import base, preprocessing
from sklearn.dummy import DummyRegressor
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVR

import problems
from adapters import Majority, fitted
from lists import checks_of_river
from problems import learned_by
from refused import raises, refused
from streamsvm import batch
from streamsvm.batch import BatchClassifier, BatchRegressor, CSMOClassifier, CSMORegressor, batch_adapter


def estimators():
    classes = [kind for _, kind in inspect.getmembers(batch, inspect.isclass) if hasattr(kind, "learn_one")]
    return [kind for kind in classes if issubclass(kind, base.Classifier | base.Regressor)]


MODELS = [kind(**parameters) for kind in estimators() for parameters in kind._unit_test_params()]
CASES = checks_of_river(MODELS)


def name(value):
    return value.__name__ if hasattr(value, "__name__") else type(value).__name__


def test_both_adapters_pass_rivers_checks_without_exceptions():
    assert estimators() == [BatchClassifier, BatchRegressor]
    assert all(not model._unit_test_skips() for model in MODELS)


@pytest.mark.once
@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize(("model", "checks"), CASES, ids=name)
def test_rivers_checks(model, checks):
    for check in checks:
        if hasattr(check, "keywords") and "memory" not in check.__name__:  # two fits are as good as four
            check = functools.partial(check.func, dataset=list(itertools.islice(check.keywords["dataset"], 110)))
        check(model.clone())


def rows(n, d=3, seed=0, classes=2):
    X = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    f = np.sin(2.0 * X[:, 0]) + X[:, 1]
    return X, (np.digitize(f, np.quantile(f, np.arange(1, classes) / classes))), f.astype(np.float64)


def dicts(X):
    return [dict(zip("abcdefgh", row.tolist(), strict=False)) for row in X]


def snapshot(model):
    return pickle.dumps(model)


@pytest.mark.parametrize("standardize", [True, False])
def test_classifier_equals_a_direct_fit(standardize):
    X, y, _ = rows(90)
    X = X * np.float32(3.0) + np.float32(1.0)
    model = batch_adapter(CSMOClassifier(C=2.0), window=60, refit_every=30, standardize=standardize)
    learned_by(model, zip(dicts(X), y.tolist(), strict=True))
    last = X[30:].astype(np.float64)
    mean, scale = (last.mean(axis=0), last.std(axis=0)) if standardize else (np.zeros(3), np.ones(3))
    np.testing.assert_allclose(model.mean, mean, atol=1e-12)
    np.testing.assert_allclose(model.scale, scale, rtol=1e-12)
    direct = CSMOClassifier(C=2.0).fit((last - model.mean) / model.scale, y[30:])
    np.testing.assert_array_equal(model.fitted_.dual_coef_, direct.dual_coef_)
    Z = (X[:30] - model.mean) / model.scale
    f = direct.decision_function(Z)
    np.testing.assert_allclose([model.decision_function_one(x) for x in dicts(X[:30])], f, rtol=1e-9)
    assert [model.predict_one(x) for x in dicts(X[:30])] == direct.predict(Z).tolist()
    p = [model.predict_proba_one(x)[1] for x in dicts(X[:30])]
    assert ((np.array(p) > 0.5) == (f > 0.0)).all()
    frame = pd.DataFrame(X[:30], columns=list("abc"))
    np.testing.assert_allclose(model.predict_proba_many(frame)[1], p)
    for like in (frame[["c", "a", "b"]], pl.from_pandas(frame)):
        assert model.predict_many(like).to_list() == direct.predict(Z).tolist()
    assert (model.n_fits, model.n_window, model.n_learned, model.feature_names) == (3, 60, 90, ["a", "b", "c"])


def test_regressor_equals_a_direct_fit():
    X, _, y = rows(60)
    model = batch_adapter(CSMORegressor(epsilon=0.05), window=40, refit_every=20)
    model.learn_many(X, y)
    direct = CSMORegressor(epsilon=0.05).fit((X[20:] - model.mean) / model.scale, y[20:])
    np.testing.assert_allclose(model.predict_many(X), direct.predict((X - model.mean) / model.scale), rtol=1e-9)
    assert model.predict_one({0: 0.5}) == pytest.approx(model.predict_many(np.array([[0.5, 0.0, 0.0]]))[0])
    assert isinstance(model, base.Regressor)


class Rounding(DummyRegressor):
    def predict(self, X):
        return super().predict(X).round().astype(int)


def test_predicted_targets_are_floats():
    X, _, number = rows(60)
    model = learned_by(BatchRegressor(Rounding(), window=60, refit_every=60), zip(dicts(X), number.tolist(), strict=True))
    assert type(model.predict_one(dicts(X)[0])) is float


def test_schedule_and_window(majority):
    X = rows(23)[0]
    fits = []
    for i, x in enumerate(dicts(X)):
        majority.learn_one(x, bool(i % 2))
        fits.append(majority.n_fits)
    assert fits == [(i + 1) // 5 for i in range(23)]
    np.testing.assert_array_equal(majority.fitted_.X_, X[10:20])
    assert majority.fitted_.y_.dtype == bool
    assert (majority.n_window, majority.n_since_fit, majority.nbytes) == (10, 3, 10 * (4 * 256 + 16))
    majority.fit()
    np.testing.assert_array_equal(majority.fitted_.X_, X[13:])
    assert (majority.n_fits, majority.n_since_fit) == (5, 0)


@pytest.mark.parametrize("sizes", [[23], [1] * 23, [4, 0, 19], [11, 12]])
def test_learn_many_fits_after_the_same_rows_as_learn_one(majority, sizes):
    X, y, _ = rows(23)
    y[:7] = 0  # a fit that waits
    one, many = majority.clone(), majority.clone()
    learned_by(one, zip(problems.dicts(X), y.tolist(), strict=True))
    start = 0
    for size in sizes:
        many.learn_many(X[start : start + size], y[start : start + size])
        start += size
    assert one.n_fits == many.n_fits > 2
    np.testing.assert_array_equal(one.fitted_.X_, many.fitted_.X_)
    assert snapshot(one) == snapshot(many)


def test_without_a_schedule_only_explicit_fits_happen(majority):
    model = majority.clone({"refit_every": None})
    X, y, _ = rows(30)
    model.learn_many(X, y)
    assert model.fitted_ is model.mean is model.scale is None
    refused("no rows", majority.clone().fit)
    assert model.fit() is model
    assert model.n_fits == 1


def test_before_the_first_fit():
    model = batch_adapter(CSMOClassifier())
    assert model.predict_one({"a": 1.0}) is None
    assert model.predict_many(np.ones((2, 1))).tolist() == [None, None]
    assert model.predict_proba_one({}) == {}
    assert model.clone({"max_classes": 2}).predict_proba_one({}) == {False: 0.5, True: 0.5}
    assert model.decision_function_one({}) == 0.0
    model.learn_one({"a": 1.0}, True)
    assert model.predict_one({"a": 1.0}) is True
    assert model.predict_proba_one({}) == pytest.approx({False: 1 / 3, True: 2 / 3})
    model = batch_adapter(CSMOClassifier())
    model.learn_one({"a": 1.0}, "spam")
    assert model.predict_one({}) == "spam"
    assert model.predict_proba_one({}) == {"spam": 1.0}
    model = batch_adapter(CSMORegressor())
    model.learn_one({"a": 1.0}, 5.0)
    model.learn_one({"a": 1.0}, 2.0)
    assert model.predict_one({"a": 1.0}) == 3.5
    assert model.predict_many(np.ones((2, 1))).tolist() == [3.5, 3.5]
    assert model.clone().predict_one({"a": 1.0}) == 0.0


def test_one_class_waits_for_the_second_and_keeps_the_model(majority):
    for _ in range(7):
        majority.learn_one({"a": 1.0}, "x")
    assert majority.n_fits == 0
    assert majority.predict_one({"a": 1.0}) == "x"
    refused("only one class, 'x'", majority.fit)
    majority.learn_one({"a": 2.0}, "y")
    assert majority.n_fits == 1
    assert majority.classes == ["x", "y"]
    # fitted while "y" is in the window, and waiting from then on
    with pytest.warns(RuntimeWarning, match="only one class, 'x': the model of 5 rows ago stays") as caught:
        majority.learn_many(pd.DataFrame({"a": [1.0] * 20}), ["x"] * 20)
    assert len(caught) == 1
    assert majority.fitted_.classes_.tolist() == ["x", "y"]
    assert majority.predict_proba_one({}) == {"x": 1.0, "y": 0.0}
    n_fits = majority.n_fits
    majority.learn_one({"a": 2.0}, "z")
    assert majority.n_fits == n_fits + 1
    assert majority.classes == ["x", "z", "y"]
    assert majority.predict_proba_one({}) == {"x": 1.0, "z": 0.0, "y": 0.0}


def test_a_waiting_fit_warns_once(majority):
    majority.learn_one({"a": 0.0}, "x")
    majority.learn_one({"a": 1.0}, "y")
    majority.fit()
    for _ in range(2):
        majority._add_rows(np.ones((20, 1), np.float32), np.zeros(20), np.ones(20))
        with pytest.warns(RuntimeWarning, match="only one class, 'x': the model of .* rows ago stays") as caught:
            majority.learn_many(pd.DataFrame({"a": [1.0] * 20}), ["x"] * 20)
        assert len(caught) == 1
        majority.learn_one({"a": 2.0}, "y")
    assert majority.n_fits == 3


def test_a_failed_fit_keeps_the_last_model(majority, monkeypatch):
    monkeypatch.setattr(Majority, "failures", ((2, ValueError("no luck")), (3, ValueError("nor now"))))
    X, y, _ = rows(20)
    majority.learn_many(X[:9], y[:9])
    model = majority.fitted_
    with pytest.warns(RuntimeWarning, match="the fit of 10 rows failed, the model of 5 rows ago stays: no luck"):
        majority.learn_many(X[9:11], y[9:11])
    assert majority.fitted_ is model
    assert (majority.n_fits, majority.n_window, majority.n_since_fit) == (1, 10, 1)
    with pytest.warns(RuntimeWarning, match="failed, the model of 10 rows ago stays: nor now"):
        majority.learn_many(X[11:15], y[11:15])
    majority.learn_many(X[15:], y[15:])
    assert majority.n_fits == 2
    np.testing.assert_array_equal(majority.fitted_.X_, X[10:])


def test_a_failed_first_fit_is_raised_and_loses_no_row(majority, monkeypatch):
    monkeypatch.setattr(Majority, "failures", ((1, ValueError("no luck")),))
    X, y, _ = rows(12)
    raises("no luck", majority.learn_many, X[:8], y[:8])
    assert (majority.n_fits, majority.n_learned) == (0, 8)
    model = batch_adapter(CSMOClassifier(C=-1.0), refit_every=5)
    raises("C must be", model.learn_many, X, y)
    assert model.n_window == 12


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupt_during_a_fit_keeps_the_model_and_the_rows(majority, monkeypatch, many):
    monkeypatch.setattr(Majority, "failures", ((2, KeyboardInterrupt()),))
    X, y, _ = rows(13)
    majority.learn_many(X[:5], y[:5])
    model = majority.fitted_
    if not many:
        majority.learn_many(X[5:9], y[5:9])
    with pytest.raises(KeyboardInterrupt):
        majority.learn_many(X[5:], y[5:]) if many else majority.learn_one(dict(enumerate(X[9].tolist())), int(y[9]))
    assert majority.fitted_ is model
    assert majority.n_learned == (13 if many else 10)
    assert majority.fit().n_fits == 2


def test_weights():
    X, y, _ = rows(40)
    w = np.random.default_rng(1).integers(0, 4, 40).astype(float)
    model = batch_adapter(CSMOClassifier(tol=1e-6), refit_every=None)
    for x, label, weight in zip(dicts(X), y.tolist(), w.tolist(), strict=True):
        model.learn_one(x, label, weight)
    assert model.n_window == (w > 0.0).sum()
    twin = batch_adapter(CSMOClassifier(tol=1e-6), refit_every=None)
    twin.learn_many(pd.DataFrame(X, columns=list("abc")), y, w)
    assert snapshot(model.fit()) == snapshot(twin.fit())
    repeated = batch_adapter(CSMOClassifier(tol=1e-6), refit_every=None)
    fitted(repeated, np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int)))
    np.testing.assert_allclose(model.mean, repeated.mean, atol=1e-12)
    f = [model.decision_function_one(x) for x in dicts(X)]
    np.testing.assert_allclose(f, [repeated.decision_function_one(dict(enumerate(x.values()))) for x in dicts(X)], atol=1e-4)
    refusing = batch_adapter(Majority())
    refusing.learn_one({"a": 1.0}, True, 0.0)
    before = snapshot(refusing)
    for learn in (lambda: refusing.learn_one({"a": 1.0}, True, 2.0), lambda: refusing.learn_many(X, y, w)):
        refused("Majority takes no sample_weight", learn)
        assert snapshot(refusing) == before


@pytest.mark.parametrize("learned", [0, 6])
def test_refused_rows_change_nothing(learned):
    X, y, _ = rows(6)
    model = batch_adapter(CSMOClassifier(), max_features=3, window=20, refit_every=5, max_classes=2)
    learned_by(model, zip(dicts(X)[:learned], y.tolist(), strict=False))
    before = snapshot(model)
    good = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    for match, learn in (
        ("feature 'a' is nan", lambda: model.learn_one({"a": np.nan}, 1)),
        ("'. has no column left|no column left", lambda: model.learn_one(dict.fromkeys("abcd", 1.0), 1)),
        ("a row must be a mapping", lambda: model.learn_one([1.0], 1)),
        ("label None", lambda: model.learn_one({"a": 1.0}, None)),
        ("w must be", lambda: model.learn_one({"a": 1.0}, 1, -1.0)),
        ("row 1: feature 'b' is nan", lambda: model.learn_many(good.assign(b=[0.0, None]), [0, 1])),
        ("row 2: label 'z' exceeds max_classes", lambda: model.learn_many(np.ones((3, 1)), [0, 1, "z"])),
        ("X has 2 rows, y 1", lambda: model.learn_many(good, [1])),
    ):
        refused(match, learn)
        assert snapshot(model) == before, match
    for predict in (model.predict_one, model.predict_proba_one, model.decision_function_one):
        refused("feature 'a'", predict, {"a": None})
        if learned:
            refused("feature 'a' is nan", predict, {"a": np.nan})
    assert snapshot(model) == before
    regressor = batch_adapter(CSMORegressor())
    refused("target nan", regressor.learn_one, {"a": 1.0}, np.nan)
    assert regressor.feature_names == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"window": 1},
        {"refit_every": 0},
        {"standardize": 1},
        {"overflow": "drop"},
        {"calibration_folds": 1},
        {"max_classes": 1},
        {"model": SVC(decision_function_shape="ovo")},
        {"model": make_pipeline(SVC(decision_function_shape="ovo"))},
        {"model": SVC},
        {"model": preprocessing.StandardScaler()},
    ],
    ids=repr,
)
def test_parameters_are_checked(parameters):
    refused(next(iter(parameters)), batch_adapter, **{"model": CSMOClassifier(), **parameters})


class Pairs(SVC):
    """Returns a decision value for each pair of classes."""

    def decision_function(self, X):
        return np.ones((len(X), 1))


def test_models_need_a_decision_value_for_each_class():
    with pytest.raises(ValueError, match=r"Pairs returns decision values of shape \[1, 1\] for 1 rows of 2 classes"):
        fitted(batch_adapter(Pairs()), [({"a": 1.0}, 0), ({"a": 2.0}, 1)])


@pytest.mark.parametrize("solver", [CSMOClassifier(), SVC(), Majority(), CSMORegressor(), LinearSVR()], ids=name)
def test_predictions_of_zero_rows_are_empty(solver):
    model = batch_adapter(solver, refit_every=None)
    frames = [pd.DataFrame({"a": [], "b": []}, dtype=float), np.empty((0, 2))]
    for classes in (0, 2):
        assert [len(model.predict_many(X)) for X in frames] == [0, 0]
        if isinstance(model, BatchClassifier):
            assert [np.shape(model.predict_proba_many(X)) for X in frames] == [(0, classes)] * 2
        fitted(model, [({"a": 1.0}, 0), ({"a": 2.0, "b": 1.0}, 1)])


def test_parameters_change_on_a_trained_adapter():
    rows = [({"a": float(i % 7), "b": float(i % 3)}, i % 7 > 3) for i in range(50)]
    adapter = fitted(batch_adapter(CSMOClassifier(), window=60, refit_every=None), rows[:40])
    before = [adapter.predict_proba_one(x) for x, _ in rows]
    with pytest.raises(AttributeError, match=r"refit_every cannot be set after construction: model.mutate\("):
        adapter.refit_every = 10
    refused("window of a BatchClassifier cannot change after construction", adapter.mutate, {"window": 7})
    adapter.mutate({"refit_every": 10, "model": CSMOClassifier(C=3.0)})
    assert [adapter.predict_proba_one(x) for x, _ in rows] == before
    for x, y in rows[40:]:
        adapter.learn_one(x, y)
    assert (adapter.n_fits, adapter.fitted_.C, adapter.n_window) == (2, 3.0, 50)


def test_signatures():
    assert list(inspect.signature(BatchRegressor).parameters) == list(inspect.signature(BatchClassifier).parameters)[:7]

    class Own(BatchClassifier):
        def __init__(self, C):
            self.C = C
            super().__init__(SVC(C=C))

    assert list(inspect.signature(Own).parameters) == ["C"]
    assert Own(C=3.0).clone().model.C == 3.0


def test_kinds():
    for model, kind in ((SVC(), BatchClassifier), (CSMOClassifier(), BatchClassifier), (LinearSVR(), BatchRegressor)):
        adapter = batch_adapter(model, window=500)
        assert type(adapter) is type(adapter.clone()) is kind
        assert adapter.window == 500
        assert "window=500" in repr(adapter)
    refused("must be a classifier", BatchClassifier, CSMORegressor())
    assert batch_adapter(CSMOClassifier()).clone({"model": CSMOClassifier(C=3.0)}).model.C == 3.0
    with pytest.raises(AttributeError, match=r"window cannot be set after construction: model.clone\({'window': ...}\)"):
        adapter.window = 7
    assert adapter.clone({"window": 7}).window == 7
    adapter.learn_one({"a": 1.0}, 1.0)
    assert adapter.clone(include_attributes=True).n_window == 1
    assert adapter.clone().n_window == 0
    refused("leave out", adapter.clone, {"window": 5}, include_attributes=True)
