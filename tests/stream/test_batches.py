"""Batches: a loop that processes many rows in one call gives the same bytes as one that processes single rows."""

import inspect
import itertools
import json
import math
import random

import numpy as np
import pytest
from river import metrics, utils
from river.datasets import synth

import streamsvm
from chunks import InChunks, write_rows
from saved import dumps
from streamsvm import BSCARegressor, BSGDClassifier, BSGDRegressor, KernelRLSClassifier, SVMClassifier
from streamsvm.learners import KernelPerceptron
from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
from streamsvm.learners.scaling import ScalingEstimator
from streamsvm.stream import (
    CheckpointFolder,
    Chunk,
    FileSink,
    IterableSource,
    LearningLoop,
    Row,
    Sink,
    open_source,
)
from streamsvm.stream.batches import next_batch
from streamsvm.stream.rows import ValidatingPipeline
from streamsvm.stream.scores.river_score import RiverScore
from streamsvm.stream.scores.score_set import ScoreSet
from streamsvm.stream.tables import TableEncoder

N = 600
LEARNERS = [
    kind
    for _, kind in inspect.getmembers(streamsvm, inspect.isclass)
    if issubclass(kind, ScalingEstimator) and hasattr(kind, "predict_one") and "OneClass" not in kind.__name__
]


def float32(x):
    return {name: float(np.float32(value)) for name, value in x.items()}


def rows_of(n=N, regression=False, mixed=False):
    stream = synth.Friedman(seed=1) if regression else synth.Waveform(seed=1)
    rows = [Row(float32(x), y / 10.0 - 1.5 if regression else int(y > 0)) for x, y in stream.take(n)]
    if not mixed:
        return rows
    rng = random.Random(3)
    for i in range(60, n):
        x, y = rows[i]
        chance = rng.random()
        if chance < 0.03:
            rows[i] = Row({**x, f"new{i % 5}": 1.0}, y)
        elif chance < 0.06:
            rows[i] = Row(dict(list(x.items())[:-3]), y)
        elif chance < 0.09:
            rows[i] = Row(x, None)
        elif chance < 0.10:
            rows[i] = Row({}, y)
        elif chance < 0.11:
            rows[i] = Row({**x, next(iter(x)): math.inf}, y)
    return rows


def in_columns(rows):
    names = list(dict.fromkeys(name for row in rows for name in row[0]))
    return np.array([[row[0].get(name, 0.0) for name in names] for row in rows]), names


def one_by_one(model, rows, weights=None):
    predictions = []
    for (x, y), w in zip(rows, [1.0] * len(rows) if weights is None else weights, strict=True):
        probabilities = None if isinstance(y, float) else max(model.predict_proba_one(x).values(), default=None)
        predictions.append((model.predict_one(x), probabilities))
        if y is not None and w > 0.0:
            model.learn_one(x, y, w=w)
    return predictions


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", LEARNERS, ids=lambda kind: kind.__name__)
def test_a_batch_gives_the_predictions_and_the_model_of_single_rows(kind, weighted):
    regression = "Regressor" in kind.__name__
    parameters = {name: value for name, value in {"budget": 20, "seed": 3}.items() if name in inspect.signature(kind).parameters}
    rows, at_once = rows_of(regression=regression), 0
    if not regression:
        rows[300::7] = [Row(x, None) for x, _ in rows[300::7]]
    single, many = kind(**parameters), kind(**parameters)
    weights = np.array([1.0, 0.5, 0.0, 2.0] * (N // 4)) if weighted else np.ones(N)
    expected, results, i = one_by_one(single, rows, weights), [], 0
    while i < len(rows):
        part = rows[i : (stop := i + 1 + i % 50)]
        options = {"weights": weights[i:stop]} if weighted else {}
        predictions = many.predict_then_learn(*in_columns(part), [row.y for row in part], not regression, **options)
        if predictions is None:
            part = rows[i : i + 1]
            results += one_by_one(many, part, weights[i : i + 1])
        else:
            at_once += len(part)
            results += zip(predictions[0], predictions[1] or [None] * len(part), strict=True)
        i += len(part)
    assert results == expected
    assert dumps(many) == dumps(single)
    assert at_once > N / 2 or kind._rule is None or many._refuses_when_full


@pytest.mark.parametrize("three", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in LEARNERS if "Regressor" not in kind.__name__], ids=lambda kind: kind.__name__)
def test_a_batch_gives_the_probabilities_of_all_labels(kind, three):
    parameters = {name: value for name, value in {"budget": 20, "seed": 3}.items() if name in inspect.signature(kind).parameters}
    rows, single, many = (THREE if three else rows_of())[:200], kind(**parameters), kind(**parameters)
    for x, y in rows[:30]:
        single.learn_one(x, y)
        many.learn_one(x, y)
    answers = many.predict_then_learn(*in_columns(rows[30:]), [row.y for row in rows[30:]], "all")
    if answers is None:
        assert not many.can_learn_many
        answers = many.predict_then_learn(*in_columns(rows[30:]), [None] * 170, "all")
        expected = [single.predict_proba_one(x) for x, _ in rows[30:]]
    else:
        expected = []
        for x, y in rows[30:]:
            expected.append(single.predict_proba_one(x))
            single.learn_one(x, y)
    names, columns = list(answers[1]), [column.tolist() for column in answers[1].values()]
    assert [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] == expected
    assert dumps(many) == dumps(single)


def test_a_batch_gives_probabilities_before_labels_were_learned():
    for model in (BSGDClassifier(10, seed=0), BSGDClassifier(10, seed=0, max_classes=2)):
        predictions, probabilities = model.predict_then_learn(np.empty((2, 0)), [], [None, None], "all")
        assert predictions == [model.predict_one({})] * 2
        assert {label: column.tolist() for label, column in probabilities.items()} == {
            label: [p, p] for label, p in model.predict_proba_one({}).items()
        }
        model.learn_one({"a": 1.0}, "only")
        _, probabilities = model.predict_then_learn(np.ones((2, 1)), ["a"], [None, "only"], "all")
        assert [{label: column[i] for label, column in probabilities.items()} for i in (0, 1)] == [{"only": 1.0}] * 2


def test_a_batch_ends_before_a_row_with_a_new_feature_or_label():
    model = BSGDClassifier(10, seed=0)
    for x, y in rows_of(50):
        model.learn_one(x, y)
    before, (x, y) = dumps(model), rows_of(1)[0]
    for row in ({**x, "new": 1.0}, {**x, 0: "text"}, {**x, 0: None}, {**x, 0: 1e39}, {**x, 0: [1.0]}, [1.0], {"new": 1.0}):
        chunk = Chunk([Row(x, y), Row(row, y)], str)
        assert len(next_batch(chunk, 0, 2, ValidatingPipeline(model), True, {y}.__contains__, False).X) == 1
        assert next_batch(chunk, 1, 2, ValidatingPipeline(model), True, {y}.__contains__, False) is None
    for value in (math.nan, math.inf, 1e39):
        assert model.predict_then_learn(*in_columns([(x, y), ({**x, 0: value}, y)]), [y, y], False) is None
    for label in (2, "text", math.nan, [1]):
        assert model.predict_then_learn(*in_columns([(x, y)] * 2), [y, label], False) is None
    table = np.ones((2, 2), np.float32)
    assert model.predict_then_learn(table, [0, 0], [y, y], False) is None
    assert model.predict_then_learn(table, [0, "new"], [y, y], False) is None
    assert model.predict_then_learn(table * np.inf, [0, 1], [y, y], False) is None
    assert dumps(model) == before


def run_results(folder, source, make, **options):
    """Run a loop; return places of refused rows, counts and scores, the checkpoint, the model, predictions, and the curve."""
    out, letters = folder / "out.jsonl", folder / "letters.jsonl"
    with CheckpointFolder(folder / "state") as checkpoints, FileSink(out) as sink:
        loop = LearningLoop(source, make(), sink=sink, checkpoints=checkpoints, on_error=str(letters), error_share=1.0, **options)
        progress = loop.run()
    newest = max((folder / "state").glob("*.ckpt"))
    letters_found = list(map(json.loads, letters.read_text().splitlines()))
    places = [letter["place"].rpartition(", ")[2] for letter in letters_found]
    reasons = [(letter["row"], letter["kind"], letter["reason"]) for letter in letters_found]
    counts = (
        progress.rows,
        progress.learned,
        progress.unlabelled,
        progress.empty,
        progress.refused,
        progress.metric,
        progress.windowed,
    )
    return places, counts, newest.name, dumps(loop.model), out.read_bytes(), reasons, repr(loop.windowed), loop.curve.state


THREE = [Row(float32(x), y) for x, y in synth.Waveform(seed=1).take(N)]
TARGETS = rows_of(regression=True)
MIXED = {"rows": rows_of(mixed=True), "checkpoint_every": 130, "window": 50}
#: Rows of devices, a number that some rows lack; with values that are refused, new features and missing labels.
OF_KEYS = {
    **MIXED,
    "rows": [
        Row({("device" if n == 3 else str(n)): round(v) if n == 3 else v for n, v in x.items()}, y) for x, y in MIXED["rows"]
    ],
}


@pytest.mark.parametrize(
    ("as_table", "make", "case"),
    [
        *(
            (as_table, lambda: BSGDClassifier(20, seed=0), {**MIXED, "metric": metric})
            for as_table, metric in (
                *((False, metric) for metric in (metrics.Accuracy, metrics.MacroF1, metrics.F1, metrics.LogLoss)),
                (True, metrics.LogLoss),
            )
        ),
        *(
            (False, lambda: BSGDClassifier(20, seed=0), {**MIXED, **case, "metric": lambda names=names: names})
            for names, case in (
                (["ROCAUC", "LogLoss"], {}),
                (["Accuracy", "AveragePrecision", "BrierScore", "ConfusionMatrix"], {"rows": THREE, "positive": 2}),
                ("CrossEntropy", {"rows": THREE}),
            )
        ),
        *(
            (False, lambda: BSGDClassifier(20, seed=0, max_classes=2), {**MIXED, "metric": lambda names=names: names})
            for names in (["Accuracy", "AveragePrecision", "BrierScore", "ConfusionMatrix"], "CrossEntropy")
        ),
        *(
            (as_table, lambda: KeyedClassifier(BSGDClassifier(20, seed=0), "device", 5), {**OF_KEYS, "metric": metrics.LogLoss})
            for as_table in (False, True)
        ),
        *(
            (False, lambda model=model: model(20, seed=0), {"rows": TARGETS, "window": 40, "metric": metrics.MAE})
            for model in (BSGDRegressor, BSCARegressor)
        ),
        (False, lambda: SVMClassifier(seed=0), {"rows": rows_of(150), "metric": metrics.Accuracy}),
        (False, lambda: KernelRLSClassifier(20), {"rows": rows_of(150), "metric": metrics.Accuracy}),  # one row at a time
    ],
)
def test_a_loop_with_batches_gives_the_results_of_a_loop_over_rows(tmp_path, as_table, make, case):
    rows, metric = case["rows"], case["metric"]
    options = {name: value for name, value in case.items() if name not in ("rows", "metric")}
    results = []
    for name, source in (("rows", IterableSource(rows, "chunks")), ("chunks", InChunks(rows, as_table))):
        (tmp_path / name).mkdir()
        results.append(run_results(tmp_path / name, source, make, metric=metric(), **options))
    assert results[0] == results[1]
    _, _, unlabelled, empty, refused, *_ = results[0][1]
    assert min(sum(refused.values()), unlabelled, empty) > 0 or rows is not MIXED["rows"]


NAMED, KEYED = "dropped:drop,city:category,code:category", "dropped:drop,city:key,code:category"
WRONG = [1e39, "inf", "text", "2024-13-01", "1_0", True, "x" * 1100, "-0.5", "", None]


def people(regression):
    """Rows with names, dates and missing values; some are invalid."""
    rng = random.Random(5)
    for i in range(N):
        x = {
            "age": round(rng.gauss(40.0, 9.0), 2),
            "height": rng.choice([1.5, 1.8, None, -999]),
            "code": rng.choice([1, 2.0, 7, "01"]),
        }
        x |= {"city": rng.choice(["Oslo", "Rome", " Rome", "NA", None, *("Bari" for _ in range(i // 100))]), "dropped": "a, b"}
        x["since"] = rng.choice([f"2024-{i % 12 + 1:02d}-03", "2023-05-06T07:08", None])
        y = x["age"] / 10 if regression else x["age"] > 40.0
        if i > 60 and rng.random() < 0.05:
            x[rng.choice(list(x))] = rng.choice(WRONG)
        elif i > 60 and rng.random() < 0.03:
            x, y = dict.fromkeys(x, rng.choice([None, "NA"])), rng.choice([y, None, "maybe"])
        yield {**x, "y": y}


@pytest.mark.parametrize(
    ("suffix", "regression", "encoder_options", "reading"),
    [
        (
            "csv",
            True,
            {"missing": ["NA", "-999"], "columns": f"{KEYED},since:date", "cycles": ["day", "year"], "max_values": 3},
            {},
        ),
        ("jsonl", False, {"missing": ["NA", "-999"], "columns": f"{KEYED},since:date", "cycles": "week", "max_values": 3}, {}),
        (
            "jsonl",
            True,
            {"missing": "NA", "columns": f"{NAMED},since:date", "when_missing": "indicator", "buckets": 3},
            {"missing": "-999"},
        ),
        (
            "csv",
            False,
            {"when_missing": "drop", "decimal": ".", "columns": NAMED, "max_values": 0},
            {"columns": "city:category,code:category,since:date", "missing": "NA"},
        ),
    ],
)
def test_an_encoder_encodes_batches_as_it_encodes_rows(tmp_path, regression, suffix, encoder_options, reading):
    path = write_rows(tmp_path / f"rows.{suffix}", list(people(regression)))

    def model():
        learner = (BSGDRegressor if regression else BSGDClassifier)(20, seed=0)
        if KEYED in encoder_options["columns"]:
            learner = (KeyedRegressor if regression else KeyedClassifier)(learner, "city", max_keys=4)
        return TableEncoder(**encoder_options) | learner

    def opened():
        return open_source(str(path), label="y", **reading)

    with opened() as source:
        rows, results = list(source), []
        by_rows = IterableSource(rows)
        by_rows.columns = source.columns
    for name, source in (("rows", by_rows), ("chunks", opened())):
        (tmp_path / name).mkdir()
        results.append(run_results(tmp_path / name, source, model, window=50, checkpoint_every=130))
        source.close()
    assert results[0][1:] == results[1][1:]
    first = 1 + (suffix == "csv")
    assert results[1][0] == [f"line {row + first:,}" for row, *_ in results[1][5]] != []
    _, learned, unlabelled, empty, *_ = results[0][1]
    assert min(learned - N // 2, unlabelled, empty) > 0
    alone = []  # rows that are processed one by one
    with opened() as source:
        loop = LearningLoop(source, model(), on_error="skip", error_share=1.0)
        take = loop._process_row
        loop._process_row = lambda chunk, i: (alone.append(i), take(chunk, i))
        loop.run()
    assert len(alone) < N / 2


@pytest.mark.parametrize("metric", [metrics.Accuracy, metrics.MacroF1, metrics.F1, metrics.CohenKappa])
@pytest.mark.parametrize("window", [1, 7, 40])
def test_a_score_counts_a_batch_as_it_counts_rows(metric, window):
    rng = random.Random(window)
    positive = {"positive": 1} if metric is metrics.F1 else {}
    one, many = (ScoreSet(metric(), window, multiclass=True, **positive) for _ in range(2))
    for _ in range(30):
        n = rng.randint(1, 20)
        ys, predicted = ([rng.choice([0, 1, 2]) for _ in range(n)] for _ in range(2))
        for y, prediction in zip(ys, predicted, strict=True):
            one.update(y, prediction)
            if rng.random() < 0.2:  # at any time
                one.flush()
        one.flush()
        many.update_many([*ys, None], [*predicted, 1])
        score, expected_score = many.first, one.first
        assert score.metric.cm.data == expected_score.metric.cm.data
        assert list(score.metric.cm.sum_row.items()) == list(expected_score.metric.cm.sum_row.items())
        assert many.make_reports() == one.make_reports()
        assert many.first.state["windowed"] == one.first.state["windowed"]
        resumed = ScoreSet(metric(), window, multiclass=True, **positive)
        resumed.resume(many.state)
        assert resumed.first.windowed_value == expected_score.windowed_value
        assert resumed.first.state["windowed"] == one.first.state["windowed"]


def test_the_window_is_that_of_a_rolling_metric():
    rolling, score, rng = utils.Rolling(metrics.MacroF1, window_size=20), RiverScore(metrics.MacroF1(), 20), random.Random(5)
    for _ in range(300):
        y, predicted = rng.choice([0, 1, 2]), rng.choice([0, 1, 2])
        rolling.update(y, predicted)
        score.update_many([y], [predicted])
        assert score.windowed_value == rolling.get()


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_sink_writes_a_batch_as_it_writes_records(tmp_path, suffix):
    labels = [0, 1, True, False, 'a, "quoted" one', "ö\ud800", None, 1.5, math.nan, np.int64(3), np.float32(0.5)]
    rows = [range(len(labels)), labels, labels[::-1], [0.1] * 5 + [None] * 6, [7] * len(labels)]
    names = ["row", "y_pred", "y_true", "probability", "model"]
    for columns_of_rows in (rows, [list(column)[:2] for column in rows], [[value] * 3 for value in (1, True, False, 0.25, 7)]):
        columns = dict(zip(names, columns_of_rows, strict=True))
        with FileSink(tmp_path / f"many.{suffix}") as sink:
            sink.write_many(columns)
        with FileSink(tmp_path / f"single.{suffix}") as sink:
            Sink.write_many(sink, columns)
        text = (tmp_path / f"many.{suffix}").read_bytes()
        assert text == (tmp_path / f"single.{suffix}").read_bytes()
        if suffix == "jsonl":
            plain = [value.item() if isinstance(value, np.generic) else value for value in columns_of_rows[1]]
            expected = [None if isinstance(value, float) and math.isnan(value) else value for value in plain]
            assert [json.loads(line)["y_pred"] for line in text.splitlines()] == expected


@pytest.mark.parametrize(("asked", "longest"), [(2.0, None), (None, 2.0)])
def test_checkpoints_by_time(tmp_path, monkeypatch, asked, longest):
    """After the requested time, or earlier if the checkpoint store needs it; never before the first row."""
    now, written = 0.0, []
    monkeypatch.setattr("time.monotonic", lambda: now)

    class Slow(InChunks):
        def read(self, most):
            nonlocal now
            now += 0.4
            return Chunk([], str) if now < 4.0 else super().read(min(most, 10))

    with CheckpointFolder(tmp_path) as checkpoints:
        save = checkpoints.save

        def noted(*arguments, rows, **facts):
            written.append((round(now, 1), rows))
            return save(*arguments, rows=rows, **facts)

        monkeypatch.setattr(checkpoints, "save", noted)
        monkeypatch.setattr(CheckpointFolder, "max_seconds", longest)
        options = {"checkpoints": checkpoints, "checkpoint_every": None, "checkpoint_seconds": asked}
        LearningLoop(Slow(rows_of(100)), BSGDClassifier(20, seed=0), **options).run()
    times = [moment for moment, _ in written]
    assert len(times) > 2
    assert all(later - earlier >= 2.0 for earlier, later in itertools.pairwise(times[:-1]))
    assert written[0][1] > 0
    assert written[-1][1] == 100


class Counting(Chunk):
    """Counts how often rows are read."""

    reads = 0

    def read_row(self, i):
        Counting.reads += 1
        return super().read_row(i)

    def read_table(self, known_features):
        Counting.reads += len(self)
        return super().read_table(known_features)


@pytest.mark.parametrize(
    ("model", "metric"),
    [(BSGDClassifier(budget=20, class_weight="balanced"), metrics.Accuracy()), (KernelPerceptron(), metrics.Accuracy())],
    ids=["class weights", "no budget"],
)
def test_rows_that_cannot_be_learned_in_batches_are_read_once(model, metric, monkeypatch):
    monkeypatch.setattr(Counting, "reads", 0)
    assert LearningLoop(InChunks(rows_of(4000), kind=Counting), model, metric).run().rows == Counting.reads == 4000


def test_a_model_that_learns_single_rows_predicts_in_batches():
    model, rows = BSGDClassifier(budget=20, class_weight="balanced"), rows_of()
    for x, y in rows:
        model.learn_one(x, y)
    X = in_columns(rows)
    results = [list(model.predict_proba_one(x).values()) for x, _ in rows]
    before = dumps(model)
    assert model.predict_then_learn(*X, [row.y for row in rows], True) is None
    assert model.predict_then_learn(*X, [None] * N, True) == ([model.predict_one(x) for x, _ in rows], list(map(max, results)))
    assert dumps(model) == before
