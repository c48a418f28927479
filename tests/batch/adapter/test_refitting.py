"""Background fits: learning continues, models change between calls, and no thread remains."""

import copy
import functools
import gc
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from numba import config
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning

from adapters import ROWS, adapter, fitted
from failing import Failing, interrupts
from patience import PATIENCE
from problems import learned_by
from refused import raises, refused
from saved import dumps
from streamsvm.batch import CSMOClassifier, CSMORegressor, HierarchicalSVC, HierarchicalSVR, HSSADMMClassifier, batch_adapter
from streamsvm.core import threads as core_threads
from streamsvm.core.threads import allow_stop, limit_blas_threads, raise_if_stopped
from streamsvm.stream import CheckpointFolder, load


class Gate(ClassifierMixin, BaseEstimator):
    """A classifier whose fits wait for a signal, and then succeed, fail or stop as the test wants."""

    opened = threading.Event()
    begun = threading.Semaphore(0)
    seen = ()
    outcomes = ()

    def fit(self, X, y):
        type(self).seen = (*self.seen, X.copy())
        number = len(self.seen)
        self.begun.release()
        while not self.opened.wait(0.001):
            raise_if_stopped()
        if number <= len(self.outcomes) and self.outcomes[number - 1]:
            raise self.outcomes[number - 1]
        self.classes_, self.number_ = np.unique(y), number
        return self

    def predict_proba(self, X):
        return np.full((len(X), len(self.classes_)), 1.0 / len(self.classes_))

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.setattr(Gate, "opened", threading.Event())
    monkeypatch.setattr(Gate, "begun", threading.Semaphore(0))
    monkeypatch.setattr(Gate, "seen", ())
    monkeypatch.setattr(Gate, "outcomes", ())
    yield Gate
    Gate.opened.set()
    for thread in fits():
        thread.join(PATIENCE)
    assert not fits()


def fits():
    return [thread for thread in threading.enumerate() if thread.name == "streamsvm-fit"]


def gated(**parameters):
    return batch_adapter(Gate(), **{"window": 10, "refit_every": 5, "standardize": False, "background": True, **parameters})


def learn(model, start, stop):
    learned_by(model, ROWS[start:stop])


def values(start, stop):
    return np.array([list(x.values()) for x, _ in ROWS[start:stop]])


def test_learning_continues_during_a_fit_and_the_model_changes_between_calls(gate):
    model = gated()
    learn(model, 0, 8)
    assert gate.begun.acquire(timeout=PATIENCE)
    assert (model.fitting, model.fitted_, model.n_fits, model.n_since_fit) == (True, None, 0, 3)
    frequent = max((False, True), key=[y for _, y in ROWS[:8]].count)
    assert model.predict_one(ROWS[0][0]) is frequent
    assert model.wait(0.0) is False
    gate.opened.set()
    model._background_fit.wait(PATIENCE)
    assert model.fitted_ is None  # until the next call
    assert model.predict_one(ROWS[0][0]) is False
    assert (model.fitting, model.fitted_.number_, model.n_fits, model.n_since_fit) == (False, 1, 1, 3)
    np.testing.assert_array_equal(gate.seen[0], values(0, 5))
    assert model.wait() is True


def test_a_fit_due_during_another_starts_next_with_the_last_rows(gate):
    model = gated()
    learn(model, 0, 23)
    assert len(fits()) == 1
    gate.opened.set()
    assert model.wait()
    assert model.n_since_fit == 18
    learn(model, 23, 24)
    assert model.wait()
    assert (model.n_fits, model.n_since_fit, len(gate.seen)) == (2, 0, 2)
    np.testing.assert_array_equal(gate.seen[1], values(14, 24))


@pytest.mark.parametrize("sizes", [[23], [12, 11]])
def test_many_rows_at_once(gate, sizes):
    model, start = gated(), 0
    for size in sizes:
        rows = ROWS[start : start + size]
        model.learn_many(values(start, start + size), [y for _, y in rows])
        start += size
    assert (len(fits()), model.n_learned) == (1, 23)
    gate.opened.set()
    assert model.wait()
    np.testing.assert_array_equal(gate.seen[0], values(0, 5))


def test_a_failed_background_fit_keeps_the_last_model(gate):
    gate.opened.set()
    gate.outcomes = (None, ValueError("no luck"), None)
    model = gated()
    learn(model, 0, 5)
    assert model.wait()
    learn(model, 5, 10)
    model._background_fit.wait(PATIENCE)
    model.predict_one(ROWS[0][0])  # says nothing
    with pytest.warns(RuntimeWarning, match="the fit of 10 rows failed, the model of 6 rows ago stays: no luck"):
        learn(model, 10, 11)
    assert (model.n_fits, model.fitted_.number_, model.n_learned) == (1, 1, 11)
    learn(model, 11, 15)
    assert model.wait()
    assert (model.n_fits, model.fitted_.number_) == (2, 3)


def test_a_failed_first_fit_is_raised_and_loses_no_row(gate):
    gate.opened.set()
    gate.outcomes = (ValueError("no luck"),) * 2
    model = gated()
    learn(model, 0, 5)
    model._background_fit.wait(PATIENCE)
    raises("no luck", learn, model, 5, 6)
    assert (model.n_learned, model.n_fits) == (6, 0)
    learn(model, 6, 10)
    raises("no luck", model.wait)
    learn(model, 10, 15)
    assert model.wait()
    assert model.n_fits == 1


def test_one_class_waits_in_the_background_too(gate):
    model = gated()
    for _ in range(7):
        model.learn_one({"a": 1.0}, True)
    assert not fits()
    model.learn_one({"a": 2.0}, False)
    assert len(fits()) == 1


@pytest.mark.parametrize("copied", ["pickle", "deepcopy", "clone"])
def test_copies_made_during_a_fit_keep_the_rows_and_fit_again(gate, copied):
    gate.opened.set()
    model = gated()
    learn(model, 0, 5)
    assert model.wait()
    gate.opened.clear()
    learn(model, 5, 12)
    twin = {
        "pickle": lambda: pickle.loads(pickle.dumps(model)),
        "deepcopy": lambda: copy.deepcopy(model),
        "clone": lambda: model.clone(include_attributes=True),
    }[copied]()
    assert (twin.fitting, twin.n_window, twin.n_fits, twin.n_since_fit) == (False, 10, 1, 7)
    assert (model.fitting, model.n_since_fit) == (True, 2)
    assert not model.clone().fitting
    learn(twin, 12, 13)
    assert twin.fitting
    gate.opened.set()
    assert twin.wait()
    assert model.wait()
    np.testing.assert_array_equal(gate.seen[2], values(3, 13))
    assert (twin.n_fits, model.n_fits) == (2, 2)


def test_a_finished_background_fit_is_saved(gate):
    gate.opened.set()
    model = gated()
    learn(model, 0, 5)
    model._background_fit.wait(PATIENCE)
    assert pickle.loads(pickle.dumps(model)).fitted_.number_ == 1
    gate.outcomes = (None, ValueError("no luck"))
    learn(model, 5, 10)
    model._background_fit.wait(PATIENCE)
    twin = pickle.loads(pickle.dumps(model))  # does not know of the failure, and tries again
    assert (twin.n_fits, twin.n_since_fit) == (1, 5)
    with pytest.warns(RuntimeWarning, match="no luck"):
        model.wait()


def test_explicit_fit_stops_the_background_fit(gate):
    model = gated()
    learn(model, 0, 6)
    (thread,) = fits()
    assert gate.begun.acquire(timeout=PATIENCE)
    assert model.fitting
    timer = threading.Timer(0.05, gate.opened.set)
    timer.start()
    model.fit()
    timer.join()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert (model.n_fits, model.fitted_.number_, model.n_since_fit, model.fitting) == (1, 2, 0, False)
    np.testing.assert_array_equal(gate.seen[1], values(0, 6))


def test_a_deleted_adapter_stops_its_fit(gate):
    model = gated()
    learn(model, 0, 5)
    (thread,) = fits()
    del model
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not gate.opened.is_set()


def test_a_stopped_fit_is_due_again(gate):
    model = gated()
    learn(model, 0, 6)
    model._background_fit.stop()
    assert model.wait()
    assert (model.n_fits, model.n_since_fit) == (0, 6)
    gate.opened.set()
    learn(model, 6, 7)
    assert model.wait()
    assert (model.n_fits, model.n_since_fit) == (1, 0)


def test_no_thread_remains(gate, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    gate.opened.set()
    model = gated()
    learn(model, 0, 5)
    assert model.wait()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.warns(RuntimeWarning, match="the model of 5 rows ago stays: can't start"):
            learn(model, 5, 10)
    assert (model.fitting, model.n_since_fit, model.n_learned) == (False, 5, 10)
    learn(model, 10, 11)
    assert model.wait()
    assert model.n_fits == 2


def test_parameters_are_checked():
    refused("background must be True or False, not 1", gated, background=1)
    refused("timeout must be", gated().wait, -1.0)


@pytest.mark.parametrize("solver", [CSMOClassifier, CSMORegressor])
def test_background_and_foreground_fits_give_equal_models(solver):
    models = [batch_adapter(solver(), window=30, refit_every=20, background=background) for background in (False, True)]
    for x, y in ROWS[:35]:
        for model in models:
            model.learn_one(x, float(y))
            assert model.wait()
    assert [model.n_fits for model in models] == [1, 1]
    assert [models[0].predict_one(x) for x, _ in ROWS] == [models[1].predict_one(x) for x, _ in ROWS]
    first, second = (model.__getstate__() for model in models)
    assert dumps({**first, "parameters": None}) == dumps({**second, "parameters": None})


def test_warnings_of_the_fit_come_with_the_next_call():
    model = batch_adapter(CSMOClassifier(C=100.0, max_iter=1), refit_every=20, calibration_folds=0, background=True)
    learn(model, 0, 20)
    with pytest.warns(ConvergenceWarning, match="ended with a gap") as caught:
        model.wait()
    assert caught[0].filename == __file__
    assert model.n_fits == 1


def test_stop_requests_reach_only_their_thread():
    asked = threading.Event()
    asked.set()
    raise_if_stopped()
    with allow_stop(asked), pytest.raises(KeyboardInterrupt):
        raise_if_stopped()
    raise_if_stopped()


SMALL = {"gamma": 2.0, "leaf_size": 20, "rank": 8}
SOLVERS = [
    CSMOClassifier(C=10.0),
    CSMOClassifier(kernel=lambda X, Y: np.exp(-np.square(X[:, None] - Y).sum(axis=2))),
    CSMORegressor(),
    HierarchicalSVC(n_trees=2, **SMALL),
    HierarchicalSVC(n_trees=2, n_jobs=2, **SMALL),
    HierarchicalSVR(n_trees=2, **SMALL),
    HSSADMMClassifier(leaf_size=20, gamma=2.0),
]


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_every_solver_stops_on_request(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = X[:, 0] * X[:, 1] + 0.1 * rng.normal(size=100)
    targets = y > 0.0 if hasattr(solver, "class_weight") else y
    asked = threading.Event()
    asked.set()
    with allow_stop(asked), pytest.raises(KeyboardInterrupt):
        solver.fit(X, targets)
    if hasattr(solver, "support_"):  # conjugate SMO has its first iterate
        assert np.sum(solver.n_iter_) == 0
    with allow_stop(threading.Event()):
        solver.fit(X, targets)
    assert len(solver.support_)


PROGRAM = """
import sys, time
import numpy as np
from streamsvm.batch import batch_adapter, CSMOClassifier
class Telling(CSMOClassifier):
    def fit(self, X, y):
        super().fit(X, y)
        print("fitted", flush=True)
        return self
rng = np.random.default_rng(0)
X = rng.normal(size=(6000, 2)); y = rng.integers(0, int(sys.argv[1]), 6000)
CSMOClassifier(n_jobs=int(sys.argv[2])).fit(X[:50], y[:50])
model = batch_adapter(Telling(C=1e6, gamma=50.0, n_jobs=int(sys.argv[2])), window=6000, refit_every=6000, background=True)
model.learn_many(X, y)
time.sleep(.2)
assert model.fitting
print("ends", flush=True)
"""


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.skipif(config.DISABLE_JIT, reason="compiled loops are what must stop")
@pytest.mark.parametrize(("classes", "jobs"), [(3, 2)])
def test_the_program_can_end_during_a_fit(classes, jobs):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(classes), str(jobs)], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout == "ends\n"  # and the fit, which takes minutes, did not
    assert done.stderr == ""


@pytest.mark.thorough
@pytest.mark.parametrize("solver", SOLVERS[:1] + SOLVERS[2:4] + SOLVERS[5:], ids=lambda solver: type(solver).__name__)
def test_solvers_of_the_package_need_no_trust_and_become_learners(tmp_path, solver):
    classifier = hasattr(solver, "class_weight")
    model = batch_adapter(solver, window=60, refit_every=None, **({"calibration_folds": 0} if classifier else {}))
    fitted(model, [(x, y if classifier else x["a"] + x["b"]) for x, y in ROWS[:60]])
    with CheckpointFolder(tmp_path) as folder:
        folder.save(model, None, rows=1, position={})
    loaded = load(tmp_path)
    predict_finite_rows = [model.predict_one(x) for x, _ in ROWS[:30]]
    assert [loaded.predict_one(x) for x, _ in ROWS[:30]] == predict_finite_rows
    learner = loaded.to_budget(20, passes=5)
    learner_predictions = [learner.predict_one(x) for x, _ in ROWS[:30]]
    if classifier:
        assert np.mean([a == b for a, b in zip(learner_predictions, predict_finite_rows, strict=True)]) > 0.9
    else:
        assert np.corrcoef(learner_predictions, predict_finite_rows)[0, 1] > 0.95
    refused("no fitted model yet", adapter().to_budget, 20)


def test_the_number_of_blas_threads_is_restored():
    from threadpoolctl import threadpool_info

    def threads():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = threads()
    first, second = limit_blas_threads(), limit_blas_threads()
    first.__enter__()
    second.__enter__()
    assert set(threads()) == {1}
    first.__exit__(None, None, None)
    assert set(threads()) == {1}
    second.__exit__(None, None, None)
    assert threads() == before


@pytest.mark.parametrize("at", [1, 2, 3, 4])  # on the way in, and on the way out
def test_an_interrupt_restores_the_number_of_blas_threads(at, monkeypatch):
    libraries = [SimpleNamespace(num_threads=number) for number in (2, 3)]
    set_threads = Failing(lambda library, number: setattr(library, "num_threads", number), at)
    for library in libraries:
        library.set_num_threads = functools.partial(set_threads, library)
    monkeypatch.setattr(core_threads, "_find_blas_libraries", lambda: libraries)

    def numbers_within():
        with limit_blas_threads():
            return [library.num_threads for library in libraries]

    interrupts(numbers_within)
    assert [library.num_threads for library in libraries] == [2, 3]
    assert numbers_within() == [1, 1]
