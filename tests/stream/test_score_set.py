"""Several metrics in one run, their baselines, tables of labels, and saved states."""

import copy
import json
import operator
import random

import numpy as np
import pytest
from river import datasets, drift, metrics
from river.datasets import synth
from sklearn import calibration
from sklearn import metrics as sk

from chunks import InChunks
from crafted import repacked
from loops import make_model
from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.files.container import unpack_container
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    DelayedLabels,
    DelayedLearningLoop,
    DriftWatch,
    IterableSource,
    JoinedSource,
    LearningLoop,
    PredictionLoop,
    StreamError,
    stream_loop,
)
from streamsvm.stream.scores.score_set import ClassificationReport, ConfusionMatrix, ScoreSet

ALL = ["Accuracy", "F1", "ROCAUC", "AveragePrecision", "LogLoss", "BrierScore"]
ALL += ["ConfusionMatrix", "ClassificationReport", "Calibration", "Thresholds"]


def bananas(rows=600):
    return list(datasets.Bananas().take(rows))


def named_bananas(rows=600):
    return [(x, ("ham", "spam")[y]) for x, y in bananas(rows)]


def run(metric, rows=None, model=None, **options):
    source = InChunks(bananas() if rows is None else rows)
    return LearningLoop(source, model or BSGDClassifier(20, seed=1), metric, **options).run()


def targets(rows=300):
    return [(x, y / 10.0 - 1.5) for x, y in synth.Friedman(seed=1).take(rows)]


@pytest.mark.parametrize("positive", [None, "spam"])
def test_each_metric_has_the_same_value_alone(positive):
    rows, options = (bananas(), {}) if positive is None else (named_bananas(), {"positive": positive})
    progress = run(ALL, rows, window=100, **options)
    assert [report.name for report in progress.scores] == ALL
    assert (progress.metric_name, progress.metric, progress.windowed) == progress.scores[0][:3]
    for name, report in zip(ALL[:6], progress.scores, strict=False):
        own_options = {} if name == "Accuracy" else options
        assert run(name, rows, window=100, **own_options).scores == (report,)
    assert run([metrics.Accuracy(), metrics.F1(), "ROCAUC"], rows, window=100, **options).scores == progress.scores[:3]


def test_accuracy_uses_predicted_labels_and_log_loss_probabilities():
    class AlwaysFalse(BSGDClassifier):
        def predict_one(self, x, **_):
            return False

    progress = LearningLoop(IterableSource(bananas()), AlwaysFalse(20, seed=1), ["Accuracy", "LogLoss"]).run()
    labels = [y for _, y in bananas()]
    assert progress.metric == pytest.approx(labels.count(False) / len(labels), abs=2e-3)
    assert progress.scores[1].value < 0.6


def test_batches_are_smaller_for_many_labels(monkeypatch):
    scores, sizes = [], []

    class RecordingSource(InChunks):
        def read(self, most):
            sizes.append(most)
            return super().read(most)

    rows = list(synth.Waveform(seed=1).take(300))
    for limit in (2**21, 60):
        monkeypatch.setattr(stream_loop, "_MAX_BATCH_PROBABILITIES", limit)
        scores.append(LearningLoop(RecordingSource(rows), BSGDClassifier(20, seed=1), "LogLoss").run().scores)
    assert scores[0] == scores[1]
    assert (max(sizes), sizes[-1]) == (1000, 20)


def test_drift_is_detected_from_labels_with_any_metric():
    rows, results = [(x, y ^ (i >= 2000)) for i, (x, y) in enumerate(synth.Sine(seed=1).take(3000))], []
    for source in (IterableSource, InChunks):
        for metric in ("Accuracy", "LogLoss", ["Accuracy", "LogLoss"]):
            watch = DriftWatch(drift.ADWIN())
            LearningLoop(source(rows), BSGDClassifier(50), metric, drift=watch).run()
            results.append((watch.drifts, watch.state))
    assert results == results[:1] * 6
    assert results[0][0] > 0


def test_baselines_of_classification_metrics():
    progress = run([*ALL[:6], "MacroF1"], named_bananas(), positive="spam")
    baselines = {report.name: report.baselines for report in progress.scores}
    share = sum(y == "spam" for _, y in named_bananas()[1:]) / 599
    label, majority = ("spam", share) if share > 0.5 else ("ham", 1.0 - share)
    labels = [y for _, y in named_bananas()[1:]]
    same = sum(map(operator.eq, labels, labels[1:])) / 598
    assert dict(baselines["Accuracy"]) == pytest.approx({f"always {label!r}": majority, "the previous label": same})
    assert baselines["Accuracy"][0][1] == max(majority, same)  # the best one first
    assert baselines["F1"] == (("always 'spam'", pytest.approx(2.0 * share / (1.0 + share))),)
    assert baselines["ROCAUC"] == (("rows in any order", 0.5),)
    assert baselines["AveragePrecision"] == (("rows in any order", pytest.approx(share)),)
    assert baselines["BrierScore"][0][1] == pytest.approx(share * (1.0 - share), abs=5e-3)
    assert baselines["MacroF1"] == ((f"always {label!r}", pytest.approx(majority / (1.0 + majority))),)
    assert run("F1").scores[0].baselines[0][0] == "always the positive label"
    assert run(metrics.ROCAUC()).scores[0].baselines == ()


@pytest.mark.parametrize("name", ["MAE", "MSE", "RMSE", "R2"])
def test_baselines_of_regression_metrics(name):
    rows = targets()
    progress = run(name, rows, BSGDRegressor(20, seed=1))
    y = np.array([target for _, target in rows])
    means = np.cumsum(y)[:-1] / np.arange(1, len(y))
    baselines = dict(progress.scores[0].baselines)
    for baseline, prediction in (("the mean so far", means), ("the last target", y[:-1])):
        value = baselines.pop(baseline)
        if name == "R2":
            expected = 1.0 - ((y[1:] - prediction) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        else:
            metric = {"MAE": sk.mean_absolute_error, "MSE": sk.mean_squared_error, "RMSE": sk.root_mean_squared_error}[name]
            expected = metric(y[1:], prediction)
        assert value == pytest.approx(expected, abs=1e-6)
    assert not baselines
    assert run("SMAPE", rows, BSGDRegressor(20, seed=1)).scores[0].baselines == ()
    together = run(["R2", "MAE"], rows, BSGDRegressor(20, seed=1))
    assert run("MAE", rows, BSGDRegressor(20, seed=1)).scores == together.scores[1:]


def test_tables_of_labels_equal_those_of_scikit_learn():
    rng = random.Random(3)
    ys, predicted = ([rng.choice("aaaabbc") for _ in range(500)] for _ in range(2))
    matrix, report = ConfusionMatrix(10), ClassificationReport(10)
    for score in (matrix, report):
        score.update_many(ys[:100], predicted[:100])
        for y, label in zip(ys[100:], predicted[100:], strict=True):
            score.update_many([y, "a"], [label, None])
    assert matrix.table[0] == ["true label", "as a", "as b", "as c"]
    assert [row[1:] for row in matrix.table[1:]] == sk.confusion_matrix(ys, predicted).tolist()
    expected = sk.classification_report(ys, predicted, output_dict=True)
    rows = [*"abc", "macro avg", "weighted avg"]
    assert [row[0] for row in report.table[1:]] == ["a", "b", "c", "mean of labels", "mean of rows"]
    for row, name in zip(report.table[1:], rows, strict=True):
        assert row[1:] == pytest.approx([expected[name][key] for key in ("precision", "recall", "f1-score", "support")])


def test_calibration_equals_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    p = np.sort(rng.dirichlet([1.0, 1.0, 1.0], 500), axis=1)
    y = rng.integers(0, 3, 500)
    score = ScoreSet(["Accuracy", "Calibration"], 10).scores[1]
    score.update_many(y.tolist(), {label: p[:, label] for label in range(3)})
    *bins, _ = score.table[1:]
    right, expected = calibration.calibration_curve(y == 2, p[:, 2], n_bins=10)  # the last label is the most probable one
    assert [row[1] for row in bins] == pytest.approx(expected, abs=1e-6)
    assert [row[2] for row in bins] == pytest.approx(right)
    assert score.table[-1] == ["all", pytest.approx(p[:, 2].mean(), abs=1e-6), (y == 2).mean(), 500]


def test_tables_are_bounded():
    rng = random.Random(3)
    ys, predicted = ([int(rng.paretovariate(0.3)) % 100_000 for _ in range(5000)] for _ in range(2))
    matrix, report = ConfusionMatrix(10), ClassificationReport(10)
    for score in (matrix, report):
        score.update_many(ys, predicted)
        assert len(score._labels) == 100
        assert sum(row[-1] if score is report else sum(row[1:]) for row in score.table[1:14]) == 5000
    assert [len(row) for row in matrix.table] == [14] * 14
    assert matrix.table[-1][0] == report.table[13][0] == "(others)"
    assert len(report.table) == 16
    assert json.loads(json.dumps([matrix.table, report.table])) == [matrix.table, report.table]
    assert ConfusionMatrix(5).table == [["true label"]]
    assert ClassificationReport(5).table == [["label", "precision", "recall", "F1", "rows"]]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ([], "there must be from 1 to 20 metrics, not 0"),
        (["Accuracy"] * 21, "from 1 to 20"),
        (["F1", "F1"], "F1, F1: a metric is named twice"),
        ("ConfusionMatrix", "ConfusionMatrix is a table: name a metric that is one number before it"),
        ("Accurracy", "'Accurracy' is not the name of a metric; try Accuracy, F1"),
        ("base", "'base' is not the name of a metric"),
        ("FBeta", "FBeta needs parameters"),
        ("MAE", "MAE is not a metric of river for classifiers"),
        (7, "int is not a metric of river"),
        (metrics.Accuracy, "must be an instance, such as Accuracy"),
    ],
)
def test_invalid_metrics_are_refused(metric, message):
    raises(message, LearningLoop, IterableSource(bananas(10)), make_model(), metric)


def test_invalid_metrics_of_regressors_are_refused():
    for name in ("ROCAUC", "ConfusionMatrix", "Accuracy"):
        raises("is not a metric of river for regressors; try MAE", ScoreSet, name, 10, regression=True)
    raises("'nothing' is not the name of a metric; try MAE, RMSE or R2", ScoreSet, ["MAE", "nothing"], 10, regression=True)
    raises("window must be at least 1", ScoreSet, "MAE", 0, regression=True)
    raises("Accuracy, MacroF1 treat all labels alike", ScoreSet, ["Accuracy", "MacroF1"], 10, "spam")


def change_checkpoint(path, change):
    """Change the tree and the metadata of a checkpoint file."""
    container = unpack_container(path.read_bytes())
    arrays = dict(container.arrays)
    tree, facts = json.loads(arrays.pop("tree").tobytes()), json.loads(container.strings["metadata"])
    change(tree, facts)
    repacked(path, json.dumps(tree).encode(), arrays, facts)


def resume(folder, metric, rows=bananas, model=None):
    with CheckpointFolder(folder) as checkpoints:
        return LearningLoop(IterableSource(rows(300)), model or BSGDClassifier(20, seed=1), metric, checkpoints=checkpoints).run(
            50
        )


@pytest.mark.parametrize("regression", [False, True])
def test_forged_states_are_refused(regression):
    names = ["MAE", "R2"] if regression else ["Accuracy", "LogLoss", "ConfusionMatrix", "ClassificationReport", "Calibration"]

    def make_scores():
        return ScoreSet(names, 20, regression=regression)

    scores = make_scores()
    for i in range(30):
        row = (float(i % 3), 1.0) if regression else ("abc"[i % 3], "a", {"a": 0.5, "b": 0.5})
        scores.update(*row)
    scores.flush()
    state, resumed = scores.state, make_scores()
    resumed.resume(copy.deepcopy(state))
    assert resumed.make_reports() == scores.make_reports()
    parts = state["scores"]
    forged = [None, {}, {**state, "scores": parts[1:]}, {**state, "scores": None}]
    forged += [{**state, "guesses": {"rows": 1}}] * regression
    forged += [{**state, "scores": [{**parts[0], name: value}, *parts[1:]]} for name in parts[0] for value in (None, -1, "x", [])]
    if not regression:
        forged.append(copy.deepcopy(state))
        del forged[-1]["scores"][0]["metric"].cm.n_samples
    for forged_state in forged:
        raises("the checkpoint's scores are not what was written", make_scores().resume, forged_state, error=CheckpointError)
    invalid = {**state, "scores": [None] * len(parts)}
    assert len(ScoreSet("RMSE" if regression else "MCC", 20, regression=regression).resume(invalid, repr(scores))) == 1 + len(
        parts
    )


@pytest.mark.parametrize("metric", [["Accuracy", "LogLoss", "F1"], ["ROCAUC", "BrierScore"]])
def test_delayed_labels_are_scored_with_earlier_predictions(tmp_path, metric):
    pairs = bananas(400)
    rows = [({**x, "id": i, "t": float(i)}, None) for i, (x, _) in enumerate(pairs)]
    labels = [({"id": i, "t": i + 30.5}, y) for i, (_, y) in enumerate(pairs)]

    def loop(folder):
        source = JoinedSource(IterableSource(rows, "rows"), IterableSource(labels, "labels"), key="id", time="t", max_age=60.0)
        delayed = DelayedLabels(max_age=60.0)
        return DelayedLearningLoop(source, BSGDClassifier(20, seed=1), metric, delayed=delayed, checkpoints=folder, window=50)

    with CheckpointFolder(tmp_path / "uninterrupted") as folder:
        uninterrupted = loop(folder).run()
    for max_rows in (90, 111, 1, None):
        with CheckpointFolder(tmp_path / "parts") as folder:
            resumed = loop(folder).run(max_rows)
    assert resumed.scores == uninterrupted.scores
    newest = [max((tmp_path / name).glob("*.ckpt")).read_bytes() for name in ("uninterrupted", "parts")]
    assert newest[0] == newest[1]
    # Compute the same: each prediction is made when the row comes, 30 rows before its label.
    model, y, p, predicted = BSGDClassifier(20, seed=1), [], [], []
    for i in range(400 + 30):
        if i < 400:
            x = {**pairs[i][0]}
            p.append(model.predict_proba_one(x).get(True))
            predicted.append(model.predict_one(x))
        if i >= 30:
            model.learn_one(pairs[i - 30][0], pairs[i - 30][1])
            y.append(pairs[i - 30][1])
    scored = [row for row in zip(y, p, predicted, strict=True) if None not in row]
    assert len(scored) > 300
    y, p, predicted = map(list, zip(*scored, strict=True))
    references = {
        "Accuracy": lambda: sk.accuracy_score(y, predicted),
        "F1": lambda: sk.f1_score(y, predicted),
        "ROCAUC": lambda: sk.roc_auc_score(y, p),
        "LogLoss": lambda: sk.log_loss(y, p),
        "BrierScore": lambda: sk.brier_score_loss(y, p),
    }
    for report in uninterrupted.scores:
        assert report.value == pytest.approx(references[report.name](), abs=1e-3 if report.name == "ROCAUC" else 1e-9)


@pytest.mark.parametrize("delayed", [False, True])
def test_scoring_without_learning_does_not_change_the_model(delayed):
    rows = named_bananas()
    learned = LearningLoop(InChunks(rows[:300]), BSGDClassifier(20, seed=1)).run().model
    results = []
    for learns in (False, True):
        model, metric = copy.deepcopy(learned), ["Accuracy", "LogLoss"]
        if delayed:
            features = IterableSource([({**x, "id": i, "t": float(i)}, None) for i, (x, _) in enumerate(rows[300:])])
            labels = IterableSource([({"id": i, "t": i + 1e6}, y) for i, (_, y) in enumerate(rows[300:])])
            source = JoinedSource(features, labels, key="id", time="t")
            loop = DelayedLearningLoop(source, model, metric, delayed=DelayedLabels(max_age=None), learns=learns)
        else:
            loop = (LearningLoop if learns else PredictionLoop)(InChunks(rows[300:]), model, metric=metric)
        results.append(loop.run())
        if not learns:
            assert model.predict_proba_one(rows[0][0]) == learned.predict_proba_one(rows[0][0])
            assert (model.n_learned, results[0].learned, results[0].scored) == (300, 0, len(rows) - 300)
    accuracy = np.mean([learned.predict_one(x) == y for x, y in rows[300:]])
    assert results[0].scores[0].value == pytest.approx(accuracy)
    # Labels that come after all rows leave the predictions as they were.
    assert (results[0].scores == results[1].scores) == delayed


def test_invalid_rows_are_refused_when_only_scoring():
    model = LearningLoop(InChunks(named_bananas(300)), BSGDClassifier(20, seed=1)).run().model
    rows = [(x, y) for x, y in named_bananas(100)] + [({"1": 0.0}, 7), ({"1": 0.0}, "egg"), ({"1": "a"}, "ham")]
    for needs_labels, refused in ((True, {"label": 1, "not a number": 1}), (False, {"not a number": 1})):
        loop = PredictionLoop(InChunks(rows), model, needs_labels=needs_labels, on_error="skip", abstain=1.0)
        progress = loop.run()
        assert (progress.scored, progress.rows, progress.refused, progress.unlabelled) == (101, 103, refused, not needs_labels)
        assert progress.predicted == progress.abstained == 103 - sum(refused.values())  # refused rows do not count as abstained
    unlabelled = PredictionLoop(InChunks([({"1": 0.0}, None)]), model, needs_labels=True)
    raises("nothing was scored", unlabelled.run, error=StreamError)
    PredictionLoop(InChunks([({"1": 0.0}, None)]), model).run()
