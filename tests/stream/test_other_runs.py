"""Checkpoints of another run: a contradiction is refused, and any other change is reported and keeps the model."""

import contextlib
import functools
import re

import pytest
from river import compose, drift, metrics, preprocessing, stats

from chunks import write_rows
from loops import make_model
from refused import raises
from saved import dumps
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
from streamsvm.stream.checkpoint import read_newest

ROWS = [({"a": float(i % 7), "b": float(i % 5), "id": i, "t": float(i)}, i % 7 > 3) for i in range(60)]


def same(x):
    return x


def imputed(budget=30, statistic=stats.Mean):
    """A model whose repr has learned values, and the address of a function."""
    return preprocessing.StatImputer(("b", statistic())) | compose.FuncTransformer(same) | make_model(budget=budget)


def learned():
    model = make_model()
    for x, y in ROWS:
        model.learn_one(x, y)
    return model


def regressor(l2, kernel="rbf"):
    learner = BSGDRegressor(budget=30, seed=1, l2=l2, kernel=kernel)
    return preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(learner)


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
        ({}, {"model": part(make_model, kernel="linear")}, "other parameters"),
        ({"model": imputed}, {"model": part(imputed, 31, stats.Max)}, "other parameters"),
        ({"model": part(regressor, 1e-3)}, {"model": part(regressor, 1e-3, "poly")}, "other parameters"),
        (KEEPS, {"sink": "out.csv"}, r"additional fields \[\], and had \['id'\]: name another file for them \(--to FILE\)"),
        (KEEPS, {**KEEPS, "passthrough": ["t"]}, r"fields \['t'\], and had \['id'\]: name another file"),
        ({}, {"source": of_file}, "another kind of stream.*say where to begin here: --from earliest"),
        (weighted("a"), {}, "learned with the weight 'a', not None: give --weight a"),
        (weighted("a"), weighted("b"), "learned with the weight 'a', not 'b': give --weight a"),
        ({}, weighted("b"), "not .b.: leave --weight out, for this column is a feature"),
        (DELAYED, {}, "another kind of stream|holds rows"),
        ({}, DELAYED, "learned without labels from another stream.*say where to begin here: --from earliest"),
        (DELAYED, {**DELAYED, "source": part(joined, key="a")}, "learned with key='id', not 'a'"),
        ({}, PREDICTS, "not written by a prediction loop"),
        (PREDICTS, {"sink": "out.csv"}, "belongs to a run of predictions and holds no model"),
    ],
)
def test_a_contradiction_of_the_checkpoint_is_refused(tmp_path, then, now, reason):
    assert run_of(tmp_path, 20, **then) == 20
    before = {path: path.read_bytes() for path in tmp_path.glob("state/*.ckpt")}
    written = (tmp_path / "out.csv").read_bytes() if "sink" in then else b""
    raises(reason, run_of, tmp_path, error=(CheckpointError, StreamError), **now)
    assert {path: path.read_bytes() for path in tmp_path.glob("state/*.ckpt")} == before
    assert "sink" not in then or (tmp_path / "out.csv").read_bytes() == written
    assert run_of(tmp_path, **then) == 60


ADWIN = r"'?ADWIN\(delta=0.002, .*"
NOW = r"detected by ADWIN\(delta=0.1, .* until then by ADWIN\(delta=0.002"


@pytest.mark.parametrize(
    ("then", "now", "reports"),
    [
        (
            {},
            {"metric": metrics.F1},
            [r"F1\(window=1000\) is new, from", r"Accuracy\(.*\) is not computed any more, from"],
        ),
        (BETA, {**BETA, "window": 50}, [r"FBeta\(beta=2.0, window=100\) is now FBeta\(beta=2.0, window=50\), from row 20 on"]),
        (BETA, {**BETA, "positive": False}, ["positive=False.* is new", r"window=100\) is not computed any more"]),
        ({}, {"sink": "out.csv"}, ["predictions are written here from row 20 on"]),
        ({"sink": "out.csv"}, {}, [r"predictions are not written from row 20 on; until then they went to out\.csv"]),
        ({"sink": "out.csv"}, {"sink": "other.csv"}, [r"other\.csv: .* here from row 20 on; until then they went to out\.csv"]),
        (KEEPS, {"sink": "o.jsonl", "passthrough": ["t"]}, ["written here from row 20 on"]),
        (
            {"sink": "o.jsonl"},
            {"sink": "o.jsonl", "passthrough": ["t"]},
            [r"rows from 20 on have additional fields \['t'\], and had \[\]"],
        ),
        (watched(drift.ADWIN), {}, [f"drift is detected by nothing from row 20 on; until then by {ADWIN}"]),
        ({}, watched(drift.ADWIN), [f"drift is detected by {ADWIN} from row 20 on; until then by nothing"]),
        (
            watched(drift.ADWIN),
            watched(part(drift.ADWIN, delta=0.1)),
            [NOW],
        ),
        ({}, {"classes": [True, False]}, []),
        ({}, {"checkpoint_every": 7, "abstain": 0.1, "on_error": "skip"}, []),
    ],
)
def test_a_changed_run_continues_with_its_model(tmp_path, caplog, then, now, reports):
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    for folder in (whole, changed):
        folder.mkdir()
        run_of(folder, 20, **then)
    caplog.clear()
    assert run_of(whole, **then) == run_of(changed, **now) == 60
    messages = [record.message for record in caplog.records]
    assert len(messages) == len(reports)
    for message, report in zip(messages, reports, strict=True):
        assert re.search(report, message), messages
    assert all(record.fields["event"] == "changed" for record in caplog.records)
    models = [load(folder / "state", trusted=True) for folder in (whole, changed)]
    assert dumps(models[0]) == dumps(models[1])


def test_scores_that_continue_have_all_rows(tmp_path):
    names = ["Accuracy", "ROCAUC", "LogLoss"]
    run_of(tmp_path, 40, metric=lambda: names, window=30)
    kept = {}
    for window, n in ((10, 41), (50, 42)):
        with CheckpointFolder(tmp_path / "state") as checkpoints:
            loop = LearningLoop(IterableSource(ROWS), make_model(), names, window=window, checkpoints=checkpoints)
            loop.run(1)
            twin = LearningLoop(IterableSource(ROWS[:n]), make_model(), names, window=window)
            twin.run()
        kept[window] = [(score.value, score.windowed) for score in loop.progress.scores]
        expected = [(score.value, score.windowed) for score in twin.progress.scores]
        assert [value for value, _ in kept[window]] == pytest.approx([value for value, _ in expected], abs=0.002)
        if window == 10:  # a larger window has the rows that were there
            assert kept[window] == [pytest.approx(pair) for pair in expected]


def test_several_runs_begin_with_one_checkpoint(tmp_path):
    run_of(tmp_path, 40, metric=lambda: "F1", positive=True)
    checkpoint = read_newest(tmp_path / "state")
    loops = [LearningLoop(IterableSource(ROWS), None, "F1", positive=flag, start_from=checkpoint) for flag in (True, False)]
    assert [loop.run(20).learned for loop in loops] == [60, 60]
    assert dumps(loops[0].model) == dumps(loops[1].model)
    assert dumps(checkpoint.model) == dumps(load(tmp_path / "state"))
    curves = [[point.rows for point in loop.curve.points] for loop in loops]
    assert curves[0][0] < 40 < curves[1][0]  # F1 of another label is another score


def test_a_checkpoint_is_not_rewritten_if_the_source_has_a_start(tmp_path):
    """Its time is when its rows were learned."""
    run_of(tmp_path, 40)
    before = (tmp_path / "state" / "checkpoint-000000000040.ckpt").stat()
    source = IterableSource(ROWS)
    source.start, source.start_can_change = "latest", True
    with CheckpointFolder(tmp_path / "state") as checkpoints:
        assert LearningLoop(source, None, checkpoints=checkpoints).rows == 40
    assert (tmp_path / "state" / "checkpoint-000000000040.ckpt").stat() == before


def test_a_checkpoint_of_predictions_has_no_model(tmp_path):
    run_of(tmp_path, 20, **PREDICTS)
    raises("belongs to a run of predictions and holds no model", load, tmp_path / "state", error=CheckpointError)
