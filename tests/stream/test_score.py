"""Metrics of river over all rows and over the last ones, and the positive label."""

import inspect
import math

import numpy as np
import pytest
from river import base, datasets, evaluate, metrics, multiclass, naive_bayes, preprocessing, tree

from loops import make_model
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, FileSink, IterableSource, LearningLoop, StreamError

each_binary = pytest.mark.parametrize("metric", [metrics.F1(), metrics.ROCAUC(), metrics.LogLoss()], ids=repr)


def bananas(rows=1000):
    return list(datasets.Bananas().take(rows))


@pytest.mark.parametrize("labels", [("ham", "spam"), (2, 1), (1, 2), ("0", "1")])
@each_binary
def test_binary_metrics_need_to_know_the_positive_label(labels, metric):
    def score(rows, positive=None, metric=metric):
        return LearningLoop(IterableSource(rows), make_model(), metric.clone(), positive=positive).run()

    renamed = [(x, labels[y]) for x, y in bananas(500)]
    raises(r"row \d+: .* counts one label as positive, and which one is not known", score, renamed, error=StreamError)
    plain = score(bananas(500))
    assert plain.metric > 0.1
    if labels[0] != 2:  # the model takes 1 as positive, which is not a label here
        expected = plain.metric
        if isinstance(
            metric, metrics.LogLoss
        ):  # the first row: with one label so far, a model is certain of it, unless labels are bools
            expected += (-math.log(1e-15) - math.log(2)) / 500
        assert score(renamed, labels[1]).metric == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("labels", [(False, True), (0, 1), (-1, 1), (np.int64(0), np.int64(1))])
@each_binary
def test_true_and_1_are_positive_by_default(labels, metric):
    rows = [(x, labels[y]) for x, y in bananas(200)]
    expected = LearningLoop(IterableSource(bananas(200)), make_model(), metric.clone()).run()
    assert LearningLoop(IterableSource(rows), make_model(), metric.clone()).run().metric == expected.metric


class TwoClasses(base.Classifier):
    """A model for two labels only."""

    _multiclass = False

    def learn_one(self, x, y):
        pass

    def predict_proba_one(self, *_):
        return {False: 0.4, True: 0.6}


@each_binary
def test_a_missing_positive_label_is_an_error_or_a_warning(metric):
    rows = [(x, "abc"[i % 3]) for i, (x, _) in enumerate(bananas(100))]

    def loop(model, positive):
        return LearningLoop(IterableSource(rows), model, metric.clone(), positive=positive)

    message = "no label so far is '{}', which was named as the positive one: there are 'a' and 'b'"
    raises(r"row 2: " + message.format("eggs"), loop(TwoClasses(), "eggs").run, error=StreamError)
    model = preprocessing.StandardScaler() | multiclass.OneVsRestClassifier(BSGDClassifier(budget=10, seed=1))
    with pytest.warns(UserWarning, match=message.format("c")):
        assert loop(model.clone(), "c").run().metric != 0.0
    loop(model.clone(), "b").run()


ALL_METRICS = [
    kind
    for kind in (getattr(metrics, name, None) for name in metrics.__all__)
    if inspect.isclass(kind) and issubclass(kind, metrics.base.ClassificationMetric)
]
NO_NUMBER = {"ClassificationReport", "ConfusionMatrix", "RollingPRAUC", "RollingROCAUC"}


@pytest.mark.parametrize("kind", ALL_METRICS, ids=lambda kind: kind.__name__)
def test_every_metric_works_or_is_refused(tmp_path, kind):
    arguments = {"MultiFBeta": {"betas": {True: 1.0, False: 2.0}, "weights": None}}.get(
        kind.__name__, {"beta": 2.0} if "FBeta" in kind.__name__ else {}
    )
    metric = kind(**arguments)
    with CheckpointFolder(tmp_path) as folder:
        if kind.__name__ in NO_NUMBER:
            raises(f"{kind.__name__} does not give one number", LearningLoop, IterableSource(bananas(10)), make_model(), metric)
            return
        progress = LearningLoop(IterableSource(bananas(80)), make_model(), metric, window=50, checkpoints=folder).run()
        assert isinstance(progress.metric, float)
        assert isinstance(progress.windowed, float)
        resumed = LearningLoop(IterableSource(bananas(90)), make_model(), kind(**arguments), window=50, checkpoints=folder)
        assert resumed.run().rows == 90


@pytest.mark.parametrize("metric", [metrics.Accuracy(), metrics.MacroF1(), metrics.CrossEntropy()], ids=repr)
@pytest.mark.parametrize(
    "model", [tree.HoeffdingTreeClassifier(), naive_bayes.GaussianNB()], ids=lambda model: type(model).__name__
)
def test_a_row_without_a_prediction_is_not_scored(tmp_path, model, metric):
    rows = [(x, ("ham", "spam")[y]) for x, y in bananas(300)]
    expected = evaluate.progressive_val_score(rows, model.clone(), metric.clone()).get()
    with FileSink(tmp_path / "out.csv") as sink:
        loop = LearningLoop(IterableSource(rows), model.clone(), metric.clone(), sink=sink)
        progress = loop.run()
    assert (progress.metric, progress.windowed) == pytest.approx((expected, expected), abs=1e-12)
    assert LearningLoop(IterableSource(rows), model.clone(), metric.clone()).run().metric == progress.metric
    assert progress.learned == 300
    assert isinstance(metric, metrics.CrossEntropy) or set(loop.metric.cm.classes) == {"ham", "spam"}
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert (lines[1], len(lines)) == (f"0,,{rows[0][1]},", 301)


@each_binary
def test_a_row_without_a_prediction_is_not_scored_as_the_negative_label(metric):
    model, rows = tree.HoeffdingTreeClassifier(), [(x, not y) for x, y in bananas(300)]  # the first row is positive
    expected = evaluate.progressive_val_score(rows, model.clone(), metric.clone()).get()
    renamed = [(x, ("ham", "spam")[y]) for x, y in rows]
    assert LearningLoop(IterableSource(renamed), model, metric.clone(), positive="spam").run().metric == pytest.approx(expected)
