"""Checkpoints of another run: with another model, metric, stream, sink or options, the error names the difference."""

import contextlib
import functools

import pytest
from river import compose, drift, metrics, preprocessing, stats

from chunks import write_rows
from loops import make_model
from refused import raises
from streamsvm import BSGDRegressor
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    CSVSource,
    DelayedLabels,
    DelayedLearningLoop,
    DriftWatch,
    FileSink,
    IterableSource,
    JoinedSource,
    LearningLoop,
    PredictionLoop,
    StreamError,
    WeightedSource,
    load,
)

ROWS = [({"a": float(i % 7), "b": float(i % 5), "id": i, "t": float(i)}, i % 7 > 3) for i in range(60)]


def same(x):
    return x


def imputed(budget=30):
    """A model whose repr has learned values, and the address of a function."""
    return preprocessing.StatImputer(("b", stats.Mean())) | compose.FuncTransformer(same) | make_model(budget=budget)


def learned():
    model = make_model()
    for x, y in ROWS:
        model.learn_one(x, y)
    return model


def regressor(l2):
    return preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(BSGDRegressor(budget=30, seed=1, l2=l2))


def joined(_, key="id"):
    rows = IterableSource([(x, None) for x, _ in ROWS[:30]])
    return JoinedSource(rows, IterableSource([(x, y) for x, y in ROWS[:30]], "labels"), key=key, time="t")


def run_of(folder, most=None, kind=LearningLoop, source=None, model=make_model, metric=None, drift=None, sink=None, **options):
    """Run a loop in a folder, with options that are functions which make the objects, and return the number of rows."""
    options |= {name: make() for name, make in (("drift", drift), ("metric", metric)) if make is not None}
    options |= {"delayed": DelayedLabels()} if kind is DelayedLearningLoop else {}
    opened = contextlib.nullcontext() if sink is None else FileSink(folder / sink)
    with CheckpointFolder(folder / "state", trusted=True) as checkpoints, opened as out:
        source_opened = IterableSource(ROWS) if source is None else source(folder)
        with source_opened:
            return kind(source_opened, model(), sink=out, checkpoints=checkpoints, **options).run(most).rows


part = functools.partial
DELAYED = {"kind": DelayedLearningLoop, "source": joined}
KEEPS = {"sink": "out.csv", "passthrough": ["id"]}
PREDICTS = {"kind": PredictionLoop, "model": learned, "sink": "out.csv"}
BETA = {"metric": part(metrics.FBeta, beta=2.0), "window": 100}


def weighted(name):
    return {"source": lambda _: WeightedSource(IterableSource(ROWS), name)}


def watched(detector):
    return {"drift": lambda: DriftWatch(detector())}


def of_file(folder):
    return CSVSource(write_rows(folder / "rows.csv", [{**x, "y": y} for x, y in ROWS]), "y")


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        ({}, {"model": part(make_model, budget=31)}, "other parameters"),
        ({"model": imputed}, {"model": part(imputed, 31)}, "other parameters"),
        ({"model": part(regressor, 1e-3)}, {"model": part(regressor, 1e-2)}, "other parameters"),
        ({}, {"metric": metrics.F1}, r"has scored with Accuracy\(window=1000\), not F1\("),
        (BETA, {**BETA, "window": 50}, "window=100.*window=50"),
        (BETA, {**BETA, "positive": False}, "not FBeta.*positive=False"),
        ({}, {"sink": "out.csv"}, "without a sink"),
        ({"sink": "out.csv"}, {}, r"with a sink of predictions, out\.csv: give it too"),
        ({"sink": "out.csv"}, {"sink": "other.csv"}, r"what this checkpoint has written is in out\.csv"),
        (KEEPS, {"sink": "out.csv"}, r"additional fields \['id'\], not \[\]: pass the same --passthrough"),
        (KEEPS, {**KEEPS, "passthrough": ["t"]}, r"additional fields \['id'\], not \['t'\]: pass the same --passthrough"),
        ({}, {"source": of_file}, "another kind of stream"),
        (weighted("a"), {}, "learned with the weight 'a', not None"),
        (weighted("a"), weighted("b"), "learned with the weight 'a', not 'b'"),
        (watched(drift.ADWIN), {}, "learned with a detector of drift: give --drift"),
        (
            watched(drift.ADWIN),
            watched(part(drift.ADWIN, delta=0.1)),
            r"watched by ADWIN\(delta=0.002, .*, not ADWIN\(delta=0.1, .*: ask for the same",
        ),
        (DELAYED, {}, "labels from another stream: give --labels"),
        ({}, DELAYED, "without labels from another stream: leave --labels out"),
        (DELAYED, {**DELAYED, "source": part(joined, key="a")}, "learned with key='id', not 'a'"),
        ({}, PREDICTS, "not written by a prediction loop"),
        (PREDICTS, {"sink": "out.csv"}, "not written by a learning loop"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, then, now, reason):
    assert run_of(tmp_path, 20, **then) == 20
    before = {path: path.read_bytes() for path in tmp_path.glob("state/*.ckpt")}
    written = (tmp_path / "out.csv").read_bytes() if "sink" in then else b""
    raises(reason, run_of, tmp_path, error=(CheckpointError, StreamError), **now)
    assert {path: path.read_bytes() for path in tmp_path.glob("state/*.ckpt")} == before
    assert "sink" not in then or (tmp_path / "out.csv").read_bytes() == written
    assert run_of(tmp_path, **then) == 60


def test_a_checkpoint_of_predictions_has_no_model(tmp_path):
    run_of(tmp_path, 20, **PREDICTS)
    raises("belongs to a run of predictions and holds no model", load, tmp_path / "state", error=CheckpointError)
