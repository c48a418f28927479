"""The threshold that is tuned to a metric, against a slow twin, and refused input."""

import math

import numpy as np
import pytest
from river import base, linear_model, metrics

import streamsvm
from refused import refused
from streamsvm.learners.thresholds import THRESHOLDS, TunedThresholdClassifier

ROWS = 330


class Stub(base.Classifier):
    """Gives the feature "p" as the probability of the label "yes" of labels "yes" and "no"."""

    def __init__(self, labels=(False, True)):
        self.labels = labels

    def learn_one(self, x, y, w=1.0):
        pass

    def predict_proba_one(self, x):
        return {self.labels[0]: 1.0 - x["p"], self.labels[1]: x["p"]}


class Cost(metrics.base.BinaryMetric):
    """A row of the positive class that is missed costs ten times a false alarm."""

    @property
    def bigger_is_better(self):
        return False

    def get(self):
        return 10.0 * self.cm.false_negatives(True) + self.cm.false_positives(True)


def f1(tp, fp, fn, tn):
    return 2 * tp / (2 * tp + fp + fn)


def balanced(tp, fp, fn, tn):
    return 0.5 * (tp / (tp + fn) + tn / (tn + fp))


def mcc(tp, fp, fn, tn):
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(below) if below > 0.0 else 0.0


def f2(tp, fp, fn, tn):
    return 5 * tp / (5 * tp + 4 * fn + fp)


def negative_cost(tp, fp, fn, tn):
    return -(10.0 * fn + fp)


def rows(n=ROWS, labels=(False, True), seed=0):
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < 0.15
    p = 1.0 / (1.0 + np.exp(-rng.normal(loc=np.where(positive, -0.5, -2.0))))
    return [
        ({"p": float(value)}, labels[int(y)], float(rng.choice([0.5, 1.0, 3.0]))) for value, y in zip(p, positive, strict=True)
    ]


@pytest.mark.parametrize(
    ("metric", "formula", "horizon"),
    [
        (metrics.F1(), f1, 80),
        (metrics.F1(), f1, 10_000),
        (None, balanced, 10_000),
        (metrics.MCC(), mcc, 80),
        (metrics.FBeta(beta=2), f2, 10_000),
        (Cost(), negative_cost, 80),
    ],
    ids=lambda of: getattr(of, "__name__", str(of)),
)
def test_the_threshold_is_the_best_candidate(metric, formula, horizon):
    model = TunedThresholdClassifier(Stub(), metric, horizon)
    seen, chosen = [], set()
    for n, (x, y, w) in enumerate(rows(), 1):
        assert model.predict_one(x) == (x["p"] >= model.threshold) or len({label for _, label, _ in seen}) < 2
        model.learn_one(x, y, w)
        seen.append((x["p"], y, w))
        if n % 100:
            continue
        values = []
        for threshold in THRESHOLDS:
            cells = {(a, b): 0.0 for a in (False, True) for b in (False, True)}
            for age, (p, label, weight) in enumerate(reversed(seen)):
                cells[label, p >= threshold] += weight * (1.0 - 1.0 / horizon) ** age
            values.append(formula(cells[True, True], cells[False, True], cells[True, False], cells[False, False]))
        assert values[THRESHOLDS.index(model.threshold)] == pytest.approx(max(values))
        near = [t for t, value in zip(THRESHOLDS, values, strict=True) if value > max(values) - 1e-10]
        assert abs(model.threshold - 0.5) == pytest.approx(min(abs(t - 0.5) for t in near))
        chosen.add(model.threshold)
    assert chosen - {0.5}


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (("ham", "spam"), metrics.F1(pos_val="spam")),
        (("ham", "spam"), metrics.MCC(pos_val="spam")),
        (("ham", "spam"), None),
        ((0, 1), metrics.F1()),
        ((-1, 1), metrics.BalancedAccuracy()),
    ],
    ids=str,
)
def test_labels_other_than_bools(labels, metric):
    model, plain = TunedThresholdClassifier(Stub(labels), metric), TunedThresholdClassifier(Stub(), metrics.F1())
    if not isinstance(metric, metrics.F1):
        plain = TunedThresholdClassifier(Stub(), None if metric is None else type(metric)())
    data = rows(labels=labels)
    data = [next(row for row in data if row[1] == labels[0]), *data]  # the negative label first
    for x, y, w in data:
        model.learn_one(x, y, w)
        plain.learn_one(x, y == labels[1], w)
        assert model.threshold == plain.threshold
        if model.n_learned > 300:
            predicted, expected = model.predict_one(x), labels[int(plain.predict_one(x))]
            assert (predicted, type(predicted)) == (expected, type(expected))
    assert model.threshold != 0.5


def test_the_threshold_follows_concept_drift():
    model = TunedThresholdClassifier(Stub(), metrics.F1(), horizon=200)
    thresholds = []
    for shift in (0.0, 0.5):
        for x, y, w in rows(1500, seed=1):
            model.learn_one({"p": min(x["p"] + shift, 1.0)}, y, w)
        thresholds.append(model.threshold)
    assert thresholds[1] > thresholds[0] + 0.3


def test_refused_rows_change_nothing():
    model = TunedThresholdClassifier(streamsvm.BSGDClassifier(budget=10, max_classes=5, seed=0))
    model.learn_one({"a": 1.0}, "ham")
    model.learn_one({"a": -1.0}, "spam")
    before = model._counts.copy()
    for learn in (model.learn_one, model.check_one):
        refused("label 'eggs' is a third one, after 'ham' and 'spam'", learn, {"a": 1.0}, "eggs")
    refused("'a' is nan", model.learn_one, {"a": math.nan}, "spam")
    refused("w must be", model.learn_one, {"a": 1.0}, "spam", -1.0)
    model.learn_one({"a": 1.0}, "spam", 0.0)
    assert (model.n_learned, model.classifier.n_learned) == (2, 2)
    assert (model._counts == before).all()
    named = TunedThresholdClassifier(Stub(("ham", "spam")), metrics.F1())
    named.learn_one({"p": 0.5}, "ham")
    refused(
        r"positive label is True, but the labels are 'ham' and 'spam': set it, as in metrics.F1\(pos_val='spam'\)",
        named.learn_one,
        {"p": 0.5},
        "spam",
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"classifier": linear_model.LinearRegression()}, "classifier must be"),
        ({"metric": metrics.LogLoss()}, "metric must be"),
        ({"metric": metrics.ConfusionMatrix()}, "metric must have a single number as value"),
        ({"horizon": 0}, "horizon must be"),
    ],
    ids=str,
)
def test_parameters_are_checked(parameters, message):
    refused(message, TunedThresholdClassifier, **{"classifier": Stub(), **parameters})


def test_the_callers_metric_is_not_changed():
    metric = metrics.F1()
    metric.update(True, False)
    model = TunedThresholdClassifier(Stub(), metric)
    for x, y, _ in rows(100):
        model.learn_one(x, y)
    assert (metric.cm.total_weight, metric.get()) == (1, 0.0)
