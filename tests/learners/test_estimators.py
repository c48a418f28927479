"""river's checks and our own on every estimator of the package, found by looking."""

import functools
import importlib
import inspect
import itertools
import pkgutil

import numpy as np
import pytest
from numba import config
from river import base, datasets

import streamsvm
from lists import checks_of_river, of_each_kind
from problems import snapshot
from streamsvm import learners


def estimators():
    found = set()
    for module in pkgutil.iter_modules(learners.__path__, f"{learners.__name__}."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__ != module.name or not issubclass(kind, base.Estimator) or not hasattr(kind, "learn_one"):
                continue
            parameters = inspect.signature(kind).parameters.values()
            # Those that others are built on take what they add, or make no store.
            if all(parameter.default is not parameter.empty for parameter in parameters) and hasattr(kind, "_rule"):
                found.add(kind)
    return sorted(found, key=lambda kind: kind.__name__)


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
    return value.__name__ if inspect.isfunction(value) else type(value).__name__ if isinstance(value, base.Estimator) else None


def learn(model, x, y):
    if isinstance(model, base.Classifier):
        model.learn_one(x, y)
    elif isinstance(model, base.Regressor):
        model.learn_one(x, float(y) + x["empty_server_form_handler"])
    else:
        model.learn_one(x)


def test_there_are_some_and_none_asks_for_exceptions():
    assert streamsvm.BSGDClassifier in estimators()
    assert len(MODELS) >= 3
    assert all(not model._unit_test_skips() for model in MODELS)
    assert {kind.__name__ for kind in estimators()} == set(learners.__all__)


@pytest.mark.filterwarnings("ignore:the first 100 targets")  # of TrumpApproval, as they are
@pytest.mark.parametrize(("model", "check"), CASES, ids=name)
def test_river(model, check, monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", Transactions)
    if config.DISABLE_JIT and hasattr(check, "keywords"):
        check = functools.partial(check.func, dataset=list(itertools.islice(check.keywords["dataset"], 70)))
    check(model.clone())


@pytest.mark.parametrize("model", of_each_kind(MODELS), ids=name)
def test_size_is_constant_and_the_budget_holds(model):
    model = model.clone()
    size = model.nbytes
    for x, y in datasets.Phishing().take(50 if config.DISABLE_JIT else 200):
        learn(model, x, y)
        assert not hasattr(model, "budget") or model.n_support <= model.budget
    assert model.nbytes == size
    if hasattr(model, "budget"):
        assert model.support_vectors.shape == (model.n_support, 9)
    if not hasattr(model, "coefficients"):  # a committee has those of its experts
        return
    assert model.coefficients.shape[-1] == (model.n_support if hasattr(model, "budget") else 9)
    assert np.isfinite(model.coefficients).all()


@pytest.mark.once
@pytest.mark.parametrize("model", of_each_kind(MODELS), ids=name)
def test_same_seed_same_rows_same_bytes(model):
    snapshots = set()
    for _ in range(2):
        fresh = model.clone({"seed": 11} if "seed" in model._get_params() else None)
        for x, y in datasets.Phishing().take(40 if config.DISABLE_JIT else 120):
            learn(fresh, x, y)
        snapshots.add(snapshot(fresh))
    assert len(snapshots) == 1
