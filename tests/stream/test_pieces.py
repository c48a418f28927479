"""A run in pieces, each with a new source, sink and folder, writes the bytes of an uninterrupted run."""

import itertools
import random
from contextlib import closing

import pytest
from river import datasets, drift, metrics, preprocessing
from river.datasets import synth

from chunks import InChunks
from lists import first
from loops import make_model
from streamsvm import BSCARegressor, BSGDClassifier
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import (
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
)

DETECTORS = {"ADWIN": drift.ADWIN, "KSWIN": lambda: drift.KSWIN(seed=0), "DDM": drift.binary.DDM}
BANANAS = list(datasets.Bananas().take(1000))
METRICS = ["LogLoss", "F1", "ROCAUC", "AveragePrecision", "BrierScore", "ConfusionMatrix", "ClassificationReport", "Thresholds"]
#: Labels are flipped in the second half.
FLIPPED = [(x, bool(y) ^ (i >= 1000)) for i, (x, y) in enumerate(synth.Sine(seed=1).take(2000))]
ROWS = [({**x, "id": i, "t": float(i)}, None) for i, (x, _) in enumerate(FLIPPED)]
LABELS = [({"id": i, "t": i + 20.0}, y) for i, (_, y) in enumerate(FLIPPED)]


def of_a_file(path, **options):
    if not path.exists():
        path.write_text("a,b,y\n" + "".join(f"{x['1']!r},{x['2']!r},{y}\n" for x, y in datasets.Bananas().take(2000)))
    return LearningLoop(CSVSource(path, "y"), make_model(), **options)


def of_targets(_, **options):
    model = BoundedScaler() | BoundedTargetScaler(BSCARegressor(budget=30, seed=1))
    return LearningLoop(IterableSource(datasets.TrumpApproval().take(400)), model, **options)


def of_predictions(_, **options):
    model = make_model()
    for x, y in BANANAS[:200]:
        model.learn_one(x, y)
    return PredictionLoop(IterableSource(BANANAS), model, **options)


def with_a_metric(metric):
    return lambda _, **options: LearningLoop(IterableSource(BANANAS), make_model(), metric.clone(), window=100, **options)


def with_metrics_of_rows_together(_, **options):
    return LearningLoop(InChunks(BANANAS), BSGDClassifier(20, seed=1), METRICS, window=70, **options)


def flipped_model():
    return preprocessing.StandardScaler() | BSGDClassifier(budget=30, seed=0)


def with_a_detector(name):
    def make(_, **options):
        watch = DriftWatch(DETECTORS[name](), "reset")
        return LearningLoop(IterableSource(FLIPPED[600:1400]), flipped_model(), drift=watch, **options)

    return make


def with_later_labels_and_a_detector(_, **options):
    source = JoinedSource(IterableSource(ROWS), IterableSource(LABELS), key="id", time="t")
    watch, delayed = DriftWatch(drift.ADWIN(), "reset"), DelayedLabels(max_age=60.0)
    return DelayedLearningLoop(source, flipped_model(), delayed=delayed, drift=watch, **options)


RUNS = [
    pytest.param(of_a_file, 2000, id="file"),
    pytest.param(of_targets, 400, id="targets"),
    pytest.param(of_predictions, 1000, id="predictions"),
    pytest.param(with_metrics_of_rows_together, 1000, id="metrics"),
    *(
        pytest.param(with_a_metric(metric), 1000, id=type(metric).__name__)
        for metric in (metrics.Accuracy(), metrics.LogLoss(), metrics.ROCAUC())
    ),
    *(pytest.param(with_a_detector(*case.values), 800, marks=case.marks, id=case.values[0]) for case in first(2, DETECTORS)),
    pytest.param(with_later_labels_and_a_detector, 4000, id="later labels"),
]


@pytest.mark.parametrize(("make", "n"), RUNS)
def test_a_run_in_pieces_writes_the_bytes_of_an_uninterrupted_run(make, n, tmp_path):
    every = 2 * n // 15

    def run(name, *pieces):
        for most in pieces:
            with CheckpointFolder(tmp_path / name) as folder, FileSink(tmp_path / name / "out.jsonl") as sink:
                loop = make(tmp_path / "rows.csv", checkpoints=folder, checkpoint_every=every, sink=sink)
                with closing(loop.source):
                    progress = loop.run(most)
        assert (progress.rows, progress.ended) == (n, True)
        return progress, {
            path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.suffix in (".ckpt", ".jsonl")
        }

    progress, files = run("files", None)
    ends = [0, 1, *sorted(random.Random(n).sample(range(2, 4 * n // 5), 4))]
    pieces = [progress - start for start, progress in itertools.pairwise(ends)]
    assert run("pieces", *pieces, None, None)[1] == files
    assert sorted(files) == [*(f"checkpoint-{rows:012d}.ckpt" for rows in ((n - 1) // every * every, n)), "out.jsonl"]
    assert files["out.jsonl"].count(b"\n") == (n if make is not with_later_labels_and_a_detector else n // 2)
    assert make is not with_later_labels_and_a_detector or progress.drifts >= 1
