"""Warnings of fits that another machine would do in a tenth of the time."""

import time
import warnings

import numpy as np
import pytest
from numba import config
from scipy import sparse

from streamsvm.batch import (
    CSMOClassifier,
    CSMOOneClass,
    CSMORegressor,
    HierarchicalSVC,
    HierarchicalSVR,
    HSSADMMClassifier,
    path_machine,
)
from streamsvm.batch.csmo import machine
from streamsvm.core.compiling.common import compilation
from streamsvm.core.compiling.functions import with_numba

X = np.random.default_rng(0).normal(size=(300, 3))

Y = X[:, 0] * X[:, 1] > 0.0
SMALL = {"n_trees": 2, "leaf_size": 100, "rank": 20}


def found(model, X=X, y=Y):
    """The warnings of a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [str(each.message) for each in caught if "has taken" in str(each.message)]


@pytest.fixture
def slow(monkeypatch):
    """Any fit takes long, and all others no time."""
    monkeypatch.setattr(path_machine, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(path_machine, "_TIMES", 0.0)


@pytest.mark.once
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("model", "y", "other"),
    [
        (CSMOClassifier(), Y, "HierarchicalSVC"),
        (CSMOClassifier(), Y + (X[:, 2] > 0.0), "HierarchicalSVC"),
        (CSMOClassifier(kernel="poly"), Y, "HierarchicalSVC"),
        (CSMOClassifier(kernel="linear"), Y, "OutOfCoreLinearSVC"),
        (CSMORegressor(), X[:, 0], "HierarchicalSVR"),
        (CSMORegressor(kernel="linear"), X[:, 0], "OutOfCoreLinearSVR"),
        (HierarchicalSVC(**SMALL), Y, "CSMOClassifier"),
        (HierarchicalSVR(**SMALL), X[:, 0], "CSMORegressor"),
        (HSSADMMClassifier(), Y, "CSMOClassifier"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_other_machine_is_named(model, y, other):
    texts = found(model, y=y)
    assert texts
    for text in texts:
        assert text.startswith(f"{type(model).__name__} has taken ")
        assert f"s for 300 rows: {other} would take about " in text


@pytest.mark.once
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("model", [CSMOClassifier(kernel="sigmoid"), CSMOClassifier(kernel=lambda A, B: A @ B.T), CSMOOneClass()])
def test_where_there_is_no_other_machine(model):
    assert not found(model)


@pytest.mark.once
@pytest.mark.usefixtures("slow")
def test_rows_that_cannot_be_dense(monkeypatch):
    monkeypatch.setattr(machine, "LARGEST_DENSE", 800.0)
    wide = sparse.csr_array(X)
    assert not found(CSMOClassifier(), wide)
    assert found(CSMOClassifier(kernel="linear"), wide)


@pytest.mark.once
@pytest.mark.parametrize("model", [CSMOClassifier(), HierarchicalSVC(**SMALL)], ids=lambda model: type(model).__name__)
def test_quick_fits_say_nothing(model, monkeypatch):
    monkeypatch.setattr(path_machine.Stopwatch, "seconds", property(lambda self: 9.9))
    assert not found(model)


def wide(rows, seed=0):
    """Rows of many features, mostly 0; few rows are near the boundary."""
    rng = np.random.default_rng(seed)
    few = (rng.random((rows, 300)) < 0.04).astype(np.float64)
    return few, few[:, 0] > 0.0


@pytest.mark.once
@pytest.mark.skipif(config.DISABLE_JIT, reason="minutes without compilation")
def test_a_forest_says_before_it_begins_that_it_is_not_for_such_rows(monkeypatch):
    def no_fit(*_):
        raise RuntimeError("it begins")

    monkeypatch.setattr(HierarchicalSVC, "_trees", no_fit)
    X, y = wide(20_000)
    message = "HierarchicalSVC will take about .* s for .* rows: CSMOClassifier would take about .* s"
    with pytest.raises(RuntimeError, match="it begins"), pytest.warns(UserWarning, match=message):
        HierarchicalSVC(gamma=2.0**-5).fit(X, y)
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(60_000, 8))
    overlapping = (dense[:, 0] * dense[:, 1] > 0.0) ^ (rng.random(60_000) < 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, labels in ((X[:2000], y[:2000]), (dense, overlapping)):
            with pytest.raises(RuntimeError, match="it begins"):
                HierarchicalSVC().fit(rows, labels)


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "other", "y"),
    [(HierarchicalSVC(**SMALL), CSMOClassifier(), Y), (HierarchicalSVR(**SMALL), CSMORegressor(), X[:, 0])],
    ids=["classes", "numbers"],
)
def test_support_vectors_of_a_pilot_are_those_of_the_machine(model, other, y, monkeypatch):
    support = len(other.fit(X, y).support_)
    prepared = model._prepared([1.0, 1.0], X, y, None)
    found = path_machine.exact_seconds(prepared, [1.0, 1.0], model._kernel, model._epsilon)
    assert found == pytest.approx(path_machine.columns_seconds(len(X), 2 * support), rel=0.1)
    monkeypatch.setattr(path_machine, "_ROWS", 150)
    monkeypatch.setattr(path_machine, "_FEWER", 50)
    assert path_machine.exact_seconds(prepared, [1.0, 1.0], model._kernel, model._epsilon) == pytest.approx(found, rel=0.5)


@pytest.mark.once
def test_a_pilot_without_a_class_is_no_error_and_an_interrupt_ends_it(monkeypatch):
    model = HierarchicalSVC(**SMALL)
    rare = np.arange(len(X)) == 7
    monkeypatch.setattr(path_machine, "_ROWS", 20)
    monkeypatch.setattr(path_machine, "_FEWER", 5)
    prepared = model._prepared([1.0], X, rare, None)
    assert 0.0 < path_machine.exact_seconds(prepared, [1.0], model._kernel, None) < 1.0
    solve = path_machine.solve
    monkeypatch.setattr(path_machine, "solve", lambda *given: solve(*given)._replace(interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        path_machine.exact_seconds(prepared, [1.0], model._kernel, None)


@pytest.mark.parametrize(
    ("warn", "seconds", "other", "told"),
    [
        *((path_machine.warn_before, *case) for case in ((2.9, 0.5, False), (3.0, 0.5, True), (3.0, 0.7, False))),
        *((path_machine.warn_meanwhile, *case) for case in ((9.9, 0.5, False), (10.0, 0.5, True), (60.0, 0.5, True))),
        *((path_machine.warn_meanwhile, *case) for case in ((199.0, 20.0, False), (200.0, 20.0, True))),
    ],
)
def test_short_fits_are_not_worth_a_word_nor_those_that_take_a_few_times_as_long(warn, seconds, other, told):
    other = path_machine.Alternative("Other", other)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert warn("This", seconds, 1000, other if warn is path_machine.warn_meanwhile else lambda: other) == told
    assert len(caught) == told
    if seconds == 200.0:
        assert str(caught[0].message).startswith("This has taken 200 s for 1,000 rows: Other would take about 20 s")


def test_estimates_grow_as_times_do():
    few, many = (path_machine.forest_seconds(n, 8, 1) for n in (10**5, 10**6))
    assert many == pytest.approx(10.0 * few)
    assert 1.0 < few < 5.0  # 2.3 s were measured
    assert path_machine.columns_seconds(10**5, 33_000) == pytest.approx(13.2)  # 7 s were measured


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_compilation_does_not_count():
    began, compiled = time.perf_counter(), compilation.seconds
    stopwatch = path_machine.Stopwatch()
    function = with_numba().Function(lambda x: x + 1.0, {})
    function._cache.disable()
    function(1.0)
    seconds, took = stopwatch.seconds, time.perf_counter() - began
    assert seconds <= took - (compilation.seconds - compiled) < took
