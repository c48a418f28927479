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
@pytest.mark.parametrize("model", [CSMOClassifier(), HierarchicalSVC(**SMALL)])
def test_quick_fits_say_nothing(model):
    assert not found(model)


@pytest.mark.parametrize(("seconds", "told"), [(9.9, False), (10.0, True), (60.0, True)])
def test_short_fits_are_not_worth_a_word(seconds, told):
    other = path_machine.Alternative("Other", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert path_machine.advise("This", seconds, 100, other) == told


def test_nor_are_those_that_take_a_few_times_as_long():
    other = path_machine.Alternative("Other", 20.0)
    with pytest.warns(UserWarning, match="This has taken 200 s for 1,000 rows: Other would take about 20 s") as caught:
        assert [path_machine.advise("This", seconds, 1000, other) for seconds in (199.0, 200.0)] == [False, True]
    assert len(caught) == 1


def test_estimates_grow_as_times_do():
    few, many = (path_machine.hierarchical("", n, 8, 1).seconds for n in (10**5, 10**6))
    assert many == pytest.approx(10.0 * few)
    assert 1.0 < few < 5.0  # 2.3 s were measured
    assert path_machine.exact("", 10**5, 33_000, 1).seconds == pytest.approx(13.2)  # 7 s were measured


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_compilation_does_not_count():
    stopwatch = path_machine.Stopwatch()
    began = time.perf_counter()
    function = with_numba().Function(lambda x: x + 1.0, {})
    function._cache.disable()
    function(1.0)
    took = time.perf_counter() - began
    assert stopwatch.seconds < 0.5 * took
