"""Fits and predictions give the same bits with any number of threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import config
from scipy import sparse

from failing import Failing, interrupts
from patience import PATIENCE
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor
from streamsvm.batch.csmo import solver, tiles
from streamsvm.core.kernels import RBF, Kernel
from streamsvm.core.threads import Workers, resolve_n_jobs

SLOW = bool(config.DISABLE_JIT)
N = 60 if SLOW else 700


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 16)
    monkeypatch.setattr(tiles, "_ITEMS", N)
    monkeypatch.setattr(tiles, "_MIN_ITEM_ROWS", (16, 16))
    monkeypatch.setattr(tiles, "_MIN_ITEM_VALUES", 1)
    monkeypatch.setattr(solver, "_MIN_ROWS_FOR_BLOCKS", 100)
    monkeypatch.setattr(solver, "_BLOCK_SIZE", 128)
    monkeypatch.setattr(solver, "_MAX_NEW_VARIABLES", 64)
    monkeypatch.setattr(solver, "_STEPS_BETWEEN_SHRINKS", 100)


def rows(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 5))
    return X, np.where(rng.random(N) < 0.1, -1.0, 1.0) * np.sin(2.0 * X[:, 0] + X[:, 1])


def form_of(X, form):
    if form == "bits":
        return np.where(X > 0.0, 1.0, 0.0) @ np.eye(5, 70) + np.where(np.abs(X[:, :1]) > 0.5, 1.0, 0.0) * np.eye(70)[40]
    return sparse.csr_array(np.where(np.abs(X) > 1.2, X, 0.0) @ np.eye(5, 300)) if form == "sparse" else X


def fitted(make, X, y, jobs):
    model = make(n_jobs=jobs).fit(X, y)
    return [model.dual_coef_, model.intercept_, model.n_iter_, model.objective_, model.gap_, model.predict(X)]


CASES = {
    "classes": (lambda **parameters: CSMOClassifier(C=3.0, gamma=0.5, **parameters), "dense", "two"),
    "bits": (lambda **parameters: CSMOClassifier(C=3.0, gamma=0.5, **parameters), "bits", "two"),
    "sparse": (lambda **parameters: CSMOClassifier(C=3.0, gamma=0.5, **parameters), "sparse", "two"),
    "pairs": (lambda **parameters: CSMOClassifier(C=3.0, gamma=0.5, **parameters), "dense", "four"),
    "poly": (lambda **parameters: CSMOClassifier(kernel="poly", degree=2, gamma=0.2, coef0=1.0, **parameters), "dense", "two"),
    "targets": (lambda **parameters: CSMORegressor(C=3.0, gamma=0.5, **parameters), "dense", "targets"),
    "one class": (lambda **parameters: CSMOOneClass(nu=0.3, gamma=0.5, **parameters), "dense", "two"),
}


@pytest.mark.once
@pytest.mark.parametrize("case", sorted(CASES))
def test_results_do_not_depend_on_the_number_of_threads(case):
    make, form, target = CASES[case]
    X, values = rows()
    y = {"two": values > 0.0, "four": np.digitize(values, [-0.6, 0.0, 0.6]), "targets": values}[target]
    X = form_of(X, form)
    one, several = fitted(make, X, y, None), fitted(make, X, y, 3)
    for a, b in zip(one, several, strict=True):
        same = (a != b).nnz == 0 if sparse.issparse(a) else np.array_equal(a, b)
        assert same


@pytest.mark.skipif(SLOW, reason="only compiled steps run at the same time")
def test_concurrent_fits_are_independent():
    X, values = rows()

    def fit(seed):
        return fitted(lambda **parameters: CSMOClassifier(C=1e3, gamma=0.5, **parameters), X, np.roll(values, seed) > 0.0, None)

    alone = [fit(seed) for seed in range(2)]
    with ThreadPoolExecutor(4) as pool:
        for seed, together in enumerate(pool.map(fit, [0, 1] * 4)):
            assert all(map(np.array_equal, alone[seed % 2], together))


def test_threads_share_the_rows_of_tiles():
    X, _ = rows()
    of = tiles.check_float32_rows(X, Kernel(RBF, 0.5, 0.0, 3)).rows
    asked, barrier = set(), threading.Barrier(2)

    def waiting(do, items):
        def noted(item):
            asked.add(threading.get_ident())
            if item in (0, 16):
                barrier.wait(PATIENCE)
            do(item)

        workers.for_each(noted, items)

    out = np.zeros(N)
    with Workers(2) as workers:
        tiles.add_kernel_products(of, of.take_rows(np.arange(20)), np.ones(20), out, waiting)
    assert len(asked) == 2
    alone = np.zeros(N)
    tiles.add_kernel_products(of, of.take_rows(np.arange(20)), np.ones(20), alone)
    assert np.array_equal(out, alone)


@pytest.mark.skipif(SLOW, reason="minutes without compilation")
def test_predictions_of_many_rows():
    X, y = rows()
    many = np.random.default_rng(1).normal(size=(9000, 5))
    values = [CSMORegressor(C=3.0, gamma=0.5, n_jobs=jobs).fit(X, y).predict(many) for jobs in (1, 2, -1)]
    assert np.array_equal(values[0], values[1])
    assert np.array_equal(values[0], values[2])


@pytest.mark.skipif(SLOW, reason="minutes without compilation")
@pytest.mark.parametrize("case", ["classes", "pairs"])
def test_an_interrupt_stops_all_threads(case, monkeypatch):
    make, _, target = CASES[case]
    X, values = rows()
    y = values > 0.0 if target == "two" else np.digitize(values, [-0.6, 0.0, 0.6])
    before = {*threading.enumerate()}  # some may end in the meantime
    # One machine takes 10 calls; six take 28, and the first ones are done after 20, also if one thread starts late.
    monkeypatch.setattr(solver, "run_steps", Failing(solver.run_steps, 4 if case == "classes" else 20))
    model = make(tol=1e-6, n_jobs=2)
    interrupts(model.fit, X, y)
    assert np.sum(model.n_iter_) > 0
    assert model.gap_ > 1e-6
    assert np.isfinite(model.decision_function(X)).all()
    assert {*threading.enumerate()} <= before


def test_an_error_in_one_thread_stops_the_others():
    done = []

    def do(item):
        if item == 3:
            raise ValueError("three")
        done.append(item)

    for threads in (1, 2):
        stop = threading.Event()
        with Workers(threads) as workers, pytest.raises(ValueError, match="three"):
            workers.for_each(do, range(4), stop)
        assert stop.is_set() == (threads > 1)


def test_the_first_error_is_raised_and_stops_the_others():
    stop, begun = threading.Event(), threading.Barrier(2)

    def do(item):
        begun.wait(PATIENCE)
        if item == 1:
            raise ValueError("one")
        assert stop.wait(PATIENCE)
        raise KeyboardInterrupt

    with Workers(2) as workers, pytest.raises(ValueError, match="one"):
        workers.for_each(do, range(2), stop)


@pytest.mark.parametrize(("n_jobs", "expected"), [(None, 1), (1, 1), (3, 3), (-1000, 1)])
def test_number_of_threads(n_jobs, expected):
    assert resolve_n_jobs(n_jobs) == expected
    assert resolve_n_jobs(-1) >= 1
