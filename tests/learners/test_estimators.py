"""river's checks, and further ones, on every estimator of the package, which are found automatically."""

import copy
import functools
import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
from numba import config
from river import base, datasets

import streamsvm
from discovered import estimators
from lists import checks_of_river, of_each_kind
from problems import snapshot
from streamsvm import learners


class Transactions:
    """In place of river's CreditCard, which must be fetched from afar: as many columns, rare anomalies of a larger spread."""

    def take(self, rows):
        rng = np.random.default_rng(0)
        for _ in range(rows):
            anomalous = rng.random() < 0.02
            yield {f"V{i}": float(v) for i, v in enumerate(rng.normal(size=30) * (4.0 if anomalous else 1.0))}, anomalous


MODELS = [kind(**parameters) for kind in estimators() for parameters in kind._unit_test_params()]
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(datasets, "CreditCard", Transactions)
    CASES = checks_of_river(MODELS)


def name(value):
    return type(value).__name__ if isinstance(value, base.Estimator) else "" if isinstance(value, list) else None


def learn(model, x, y):
    if isinstance(model, base.Classifier):
        model.learn_one(x, y)
    elif isinstance(model, base.Regressor):
        model.learn_one(x, float(y) + x["empty_server_form_handler"])
    else:
        model.learn_one(x)


def test_learners_are_discovered_without_skipped_checks():
    assert streamsvm.BSGDClassifier in estimators()
    assert len(MODELS) >= 3
    assert all(not model._unit_test_skips() for model in MODELS)
    assert {kind.__name__ for kind in estimators()} == set(learners.__all__)


@pytest.mark.usefixtures("few_objects")
@pytest.mark.filterwarnings("ignore:the first 100 targets")  # of TrumpApproval, as they are
@pytest.mark.parametrize(("model", "checks"), CASES, ids=name)
def test_rivers_checks_of_estimators(model, checks, monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", Transactions)
    for check in checks:
        if config.DISABLE_JIT and hasattr(check, "keywords"):
            check = functools.partial(check.func, dataset=list(itertools.islice(check.keywords["dataset"], 40)))
        check(model.clone())


@pytest.mark.once
@pytest.mark.parametrize("model", of_each_kind(MODELS), ids=name)
def test_size_and_budget_are_constant(model):
    model, sizes = model.clone(), set()
    for x, y in datasets.Phishing().take(50 if config.DISABLE_JIT else 200):
        learn(model, x, y)
        sizes.add(model.nbytes)
        assert not hasattr(model, "budget") or model.n_support <= model.budget
    assert len(sizes) == 1
    if hasattr(model, "budget"):
        assert model.support_vectors.shape == (model.n_support, 9)
    if not hasattr(model, "coefficients"):  # an ensemble has those of its experts
        return
    assert model.coefficients.shape[-1] == (model.n_support if hasattr(model, "budget") else 9)
    assert np.isfinite(model.coefficients).all()


@pytest.mark.once
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("model", of_each_kind(MODELS), ids=name)
def test_learn_many_equals_learn_one_and_copies_continue(model, classes):
    """Of one seed, of a frame in pieces, with weights, and where a copy of the model takes over."""
    if classes > getattr(model, "max_classes", 2):
        return
    n = 40 if config.DISABLE_JIT else 120
    rows = [(x, (y, x["empty_server_form_handler"] > 0.5) if classes > 2 else y) for x, y in datasets.Phishing().take(n)]
    X, w = pd.DataFrame([x for x, _ in rows]), np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], size=n)
    y = [float(label) + x["empty_server_form_handler"] if isinstance(model, base.Regressor) else str(label) for x, label in rows]
    supervised = isinstance(model, base.Classifier | base.Regressor)
    one, many = (model.clone({"seed": 11} if "seed" in model._get_params() else None) for _ in range(2))
    if hasattr(one, "note_columns"):  # in the order that a frame has, and a dict has not
        one.note_columns(X.columns)
    for i, (x, _) in enumerate(rows):
        if i in (50, 51, 52):
            copies = pickle.loads(pickle.dumps(one)), copy.deepcopy(one), one.clone(include_attributes=True)
            one = copies[i - 50]
        ask = one.predict_one if supervised else one.score_one
        ask({**x, "unknown": 3.0})  # which changes nothing
        _ = one.learn_one(x, y[i], w[i]) if supervised else one.learn_one(x)
    for part in (slice(0, 70), slice(70, n)):
        _ = many.learn_many(X[part], y[part], w[part]) if supervised else many.learn_many(X[part])
    assert snapshot(one) == snapshot(many)
    for method in ("predict", "predict_proba", "decision_function", "score"):
        if hasattr(model, f"{method}_many"):
            results = [getattr(one, f"{method}_one")(x) for x, _ in rows[:20]]
            results = [list(of.values()) for of in results] if isinstance(results[0], dict) else results
            answers = getattr(many, f"{method}_many")(X[:20])
            assert isinstance(answers, pd.Series | pd.DataFrame)
            np.testing.assert_array_equal(answers.to_numpy(), results)
    if isinstance(model, base.Classifier):
        p = many.predict_proba_many(X)
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
        assert (p.idxmax(axis=1) == many.predict_many(X)).all()
    assert snapshot(one) == snapshot(many)
