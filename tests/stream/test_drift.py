"""Drift detection in a loop: the errors, the counted drifts, the reset model, and the state in checkpoints."""

import io
import json
import math
import random
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, core, generate_latest
from river import drift, linear_model, preprocessing
from river.datasets import synth

from chunks import InChunks
from failing import Failing
from refused import raises
from saved import dumps
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import CheckpointFolder, DriftWatch, IterableSource, LearningLoop
from streamsvm.stream.logs import log_as_json
from streamsvm.stream.metric_families import MetricFamilies

DETECTORS = {"ADWIN": drift.ADWIN, "PageHinkley": lambda: drift.PageHinkley(threshold=20), "DDM": drift.binary.DDM}


def rows_of(n=3000):
    """Rows whose labels are flipped in the second half."""
    return [(x, bool(y) ^ (i >= n // 2)) for i, (x, y) in enumerate(synth.Sine(seed=1).take(n))]


def model_of():
    return preprocessing.StandardScaler() | BSGDClassifier(budget=30, seed=0)


def twin(rows, model, detector, resets_model):
    """A plain implementation: return the number of drifts, and the model at the end."""
    errors, drifts = [], 0
    for x, y in rows:
        predicted = model.predict_one(x)
        model.learn_one(x, y)
        if predicted is None:
            continue
        errors.append(float(predicted != y))
        detector.update(predicted != y)
        if detector.drift_detected:
            recent = 0.0
            for i, error in enumerate(errors, 1):
                recent += (error - recent) / min(i, 50)
            if recent > sum(errors) / len(errors):
                drifts += 1
                model = model.clone() if resets_model else model
            errors = []
    return drifts, model


@pytest.mark.parametrize("on_drift", ["count", "reset"])
@pytest.mark.parametrize(
    ("name", "learner"), [*((name, model_of) for name in DETECTORS), ("ADWIN", linear_model.LogisticRegression)]
)
def test_drifts_and_model_are_those_of_a_plain_implementation(name, learner, on_drift):
    rows = rows_of(2000)
    watch, first_model = DriftWatch(DETECTORS[name](), on_drift), learner()
    loop = LearningLoop(IterableSource(rows), first_model, drift=watch)
    progress = loop.run()
    drifts, model = twin(rows, learner(), DETECTORS[name](), on_drift == "reset")
    assert progress.drifts == watch.drifts == drifts
    assert drifts >= 1
    assert (loop.model is first_model) == (on_drift == "count")
    assert dumps(loop.model) == dumps(model)


@pytest.mark.parametrize("on_drift", ["count", "reset"])
def test_drifts_in_batches_are_those_of_single_rows(on_drift):
    results = []
    for source in (IterableSource, InChunks):
        watch = DriftWatch(drift.ADWIN(), on_drift)
        loop = LearningLoop(source(rows_of()), BSGDClassifier(budget=30, seed=0), drift=watch)
        loop.run()
        assert loop._uses_batches is (on_drift == "count")
        results.append((watch.state, dumps(loop.model), dumps(watch.detector)))
    assert results[0] == results[1]
    assert results[0][0]["drifts"] == 1


def test_a_decrease_of_errors_is_not_a_drift():
    errors = [1.0] * 300 + [0.0] * 300
    watch = DriftWatch(drift.ADWIN())
    for error in errors:
        watch.update(True, error == 0.0, 0)
    assert watch.state["count"] < 600  # the detector has reported it
    assert watch.drifts == 0
    for error in errors[:300]:
        watch.update(True, error == 0.0, 0)
    assert watch.drifts == 1


def test_errors_of_numbers():
    rows = [({"a": a}, a if i < 1500 else -a) for i, a in enumerate(random.Random(0).gauss(0, 1) for _ in range(3000))]
    watch = DriftWatch(drift.PageHinkley(threshold=5))
    loop = LearningLoop(IterableSource(rows), BSGDRegressor(budget=20, seed=0), drift=watch)
    assert loop.run().drifts >= 1
    with pytest.raises(ValueError, match=r"DDM\(.*\) is for errors of labels, and the model predicts numbers"):
        LearningLoop(IterableSource(rows), BSGDRegressor(budget=20), drift=DriftWatch(drift.binary.DDM()))


@pytest.mark.parametrize("predicted", [math.nan, math.inf, -1e308])
def test_infinite_predictions_have_the_largest_error(predicted):
    slow = [lambda: drift.KSWIN(seed=0)] * (predicted == math.inf)
    for kind in (drift.ADWIN, drift.PageHinkley, *slow):
        watch, again = DriftWatch(kind()), DriftWatch(kind())
        for some_watch in (watch, again):
            some_watch.start(linear_model.LinearRegression(), True, "rows")
        for row in range(1000):
            watch.update(1.0, 0.5 if row < 500 else predicted, row)
        assert watch.drifts == 1
        again.restore(json.loads(json.dumps(watch.state, allow_nan=False)), watch.detector)
        assert again.state == watch.state


def test_rows_without_a_prediction_are_not_counted():
    watch = DriftWatch(drift.NoDrift())
    for predicted in ("b", "a", None):
        watch.update("b", predicted, 0)
    assert (watch.state["count"], watch.state["sum"]) == (2, 1.0)


def test_close_errors_have_the_digits_in_which_they_differ(caplog):
    watch = DriftWatch(drift.NoDrift())
    watch.start(linear_model.LinearRegression(), True, "rows")
    watch.detector = SimpleNamespace(update=lambda error: None, drift_detected=True)
    for recent, text in (
        (0.50001, "was 0.5, and is 0.50001"),
        (0.7, "was 0.5, and is 0.696"),
        (0.5 + 1e-15, "was 0.5, and is 0.50"),
    ):
        watch._sum, watch._count, watch._recent = 0.5e6, 10**6, recent
        watch.update(1.0, 0.5, 0)
        assert f"drift: the error {text}" in caplog.messages[-1]


def test_a_drift_is_logged_and_a_metric():
    stream = io.StringIO()
    loop = LearningLoop(IterableSource(rows_of(), "rows"), model_of(), drift=DriftWatch(drift.ADWIN(), "reset"))
    with log_as_json(stream):
        loop.run()
    (line,) = [record for record in map(json.loads, stream.getvalue().splitlines()) if record.get("event") == "drift"]
    assert line["level"] == "warning"
    assert line["drifts"] == 1
    assert line["reset"] is True
    assert line["recent_error"] > line["error"]
    assert line["source"] == "rows"
    assert 1500 < line["row"] < 1800

    class Collector:
        def collect(self):
            families = MetricFamilies(core, has_partitions=False)
            families.add_loop(loop, loop.progress)
            return iter(families)

    registry = CollectorRegistry()
    registry.register(Collector())
    assert "streamsvm_drifts_total 1.0" in generate_latest(registry).decode().splitlines()


def run_in(folder, watch, rows=None):
    with CheckpointFolder(folder) as checkpoints:
        loop = LearningLoop(IterableSource(rows or rows_of(100)), model_of(), drift=watch, checkpoints=checkpoints)
        loop.run()
    return loop


def test_a_detector_may_come_later(tmp_path):
    run_in(tmp_path, None, rows_of(100))
    loop = run_in(tmp_path, DriftWatch(drift.NoDrift()), rows_of(500))
    assert (loop.rows, loop.drift.state["count"]) == (500, 400)


@pytest.mark.parametrize(
    ("facts", "detector", "reason"),
    [
        ({"drifts": -1}, None, "drifts"),
        ({"sum": math.inf}, None, "sum of a saved DriftWatch cannot be inf"),
        ({}, drift.PageHinkley(threshold=20, mode="up"), None),
        ({}, drift.ADWIN(), "the checkpoint's detector is"),
        ({}, "nothing", "the checkpoint's detector is"),
    ],
)
def test_corrupt_states_are_refused(facts, detector, reason):
    watch = DriftWatch(drift.PageHinkley(threshold=20))
    saved = watch.state | facts
    if reason is None:
        detector._x_mean = "none"
        reason = "the checkpoint's detector is corrupt"
    raises(reason, watch.restore, saved, watch.detector if detector is None else detector)
    assert watch.drifts == 0


def test_a_detector_whose_compiled_code_panics_is_corrupt(monkeypatch):
    watch = DriftWatch(drift.PageHinkley())
    panics = Failing(None, 1, BaseException("index out of bounds"))  # a panic of Rust is not an Exception
    monkeypatch.setattr(drift.PageHinkley, "update", panics)
    raises("the checkpoint's detector is corrupt: index out of bounds", watch.restore, watch.state, drift.PageHinkley())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: DriftWatch(drift.ADWIN), "must be one of river"),
        (lambda: DriftWatch("ADWIN"), "must be one of river"),
        (lambda: DriftWatch(linear_model.LogisticRegression()), "must be one of river"),
        (lambda: DriftWatch(drift.KSWIN()), "KSWIN draws at random: give it a seed"),
        (lambda: DriftWatch(drift.PageHinkley(min_instances="x")), "cannot be fed"),
        (lambda: DriftWatch(drift.ADWIN(), "stop"), "on_drift must be 'count' or 'reset', not 'stop'"),
    ],
)
def test_invalid_parameters_are_refused(make, reason):
    raises(reason, make)


def test_a_detector_that_fails_is_reset(caplog):
    watch = DriftWatch(drift.binary.DDM())
    watch.update(True, True, 0)
    watch.detector._p = _Broken()
    watch.update(True, False, 1)
    assert "DDM(" in caplog.text
    assert "is reset" in caplog.text
    watch.update(True, False, 1)
    assert watch.detector._p.n == 1


class _Broken:
    def update(self, x):
        raise ValueError("math domain error")


def test_a_model_without_clone_cannot_be_reset():
    class Model:
        predict_one = learn_one = None

    raises(r"Model has no clone\(\)", DriftWatch(drift.ADWIN(), "reset").start, Model(), False, "rows")
