"""Validation of rows in front of any pipeline, and parsing of labels."""

import itertools
import math

import pytest
from river import compose, ensemble, evaluate, feature_extraction, linear_model, metrics, neighbors, preprocessing, stats

from reading import read
from saved import dumps
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import FileSink, IterableSource, LearningLoop, PredictionLoop
from streamsvm.stream.rows import parse_label, split_pipeline
from streamsvm.stream.tables import TableEncoder

PIPELINES = {
    "nothing": lambda last: last,
    "standard": lambda last: preprocessing.StandardScaler() | last,
    "bounded": lambda last: BoundedScaler() | last,
    "max_abs, bounded": lambda last: preprocessing.MaxAbsScaler() | BoundedScaler() | last,
    "imputer, bounded": lambda last: preprocessing.StatImputer(("a", stats.Mean())) | BoundedScaler() | last,
    "union": lambda last: (preprocessing.StandardScaler() + (compose.Prefixer("x ") | preprocessing.MinMaxScaler())) | last,
    "fourier": lambda last: preprocessing.StandardScaler() | feature_extraction.RBFSampler(n_components=4, seed=1) | last,
    "projected": lambda last: preprocessing.GaussianRandomProjector(n_components=2, seed=1) | last,
    "nested": lambda last: compose.Pipeline(preprocessing.StandardScaler(), compose.Pipeline(preprocessing.MinMaxScaler(), last)),
    "table": lambda last: TableEncoder(scaler=BoundedScaler()) | last,
}
#: Pipelines without river transformers, which remember the names of rows that they transform.
OWN = ("nothing", "bounded", "table")
GOOD = [({"a": float(i % 5), "b": float(i % 3) - 1.0}, bool(i % 2)) for i in range(60)]
LAST = {
    "classifier": lambda: BSGDClassifier(budget=5, max_features=8, seed=0),
    "regressor": lambda: BSGDRegressor(budget=5, max_features=8, seed=0),
    "target scaler": lambda: BoundedTargetScaler(LAST["regressor"]()),
    "river's target scaler": lambda: preprocessing.TargetStandardScaler(LAST["regressor"]()),
}
#: Each pipeline in front of a classifier, and some in front of other learners.
ENDS = [(name, "classifier") for name in PIPELINES] + list(
    itertools.product(("nothing", "standard", "union", "table"), [*LAST][1:])
)
BAD = {
    "infinity": ({"a": 1.0, "b": math.inf}, True),
    "text": ({"a": 1.0, "b": "text"}, True),
    "a text of a new name": ({"a": 1000.0, "c": "text"}, True),
    "a long name": ({"a": 1.0, "n" * 2000: 1.0}, True),
    "a long label": ({"a": 1.0}, "x" * 2000),
    "no number as a label": ({"a": 1.0, "b": 1.0}, math.nan),
    "one name too many": ({"a": 1.0, "b": 1.0} | {f"c{i}": 1.0 for i in range(20)}, True),
}


def learned(rows, model):
    loop = LearningLoop(IterableSource(rows), model, on_error="skip", error_share=1.0)
    progress = loop.run()
    return progress, (dumps(loop.model), dumps(split_pipeline(loop.model)[1]))


@pytest.mark.parametrize(("name", "last"), ENDS)
def test_a_refused_row_leaves_no_trace_in_any_pipeline(name, last):
    def model():
        return PIPELINES[name](LAST[last]())

    _, good = learned(GOOD, model())
    for bad, row in BAD.items():
        progress, mixed = learned([*GOOD[:30], row, *GOOD[30:]], model())
        if name == "projected" and bad in ("one name too many", "a long name"):  # any names become a fixed number of features
            assert (progress.learned, progress.refused) == (61, {}), bad
        else:
            assert (progress.learned, sum(progress.refused.values())) == (60, 1), bad
            if name in OWN:
                assert mixed == good, bad
            elif bad != "a text of a new name":  # river transformers have learned the names before it
                assert mixed[1] == good[1], bad


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_learn_what_river_learns(name):
    rows = [*GOOD, ({"a": 1.0, "b": 2.0, "later": 3.0}, True), ({"a": 1.0, "b": 2.0, "later": 5.0}, False), *GOOD]
    progress, model = learned(rows, PIPELINES[name](BSGDClassifier(budget=5, seed=0)))
    assert not progress.refused
    expected = PIPELINES[name](BSGDClassifier(budget=5, seed=0))
    for x, y in rows:
        expected.learn_one(x, y)
    assert model[0] == dumps(expected)


def test_learning_during_prediction_is_as_in_river():
    rows = GOOD * 3
    with compose.learn_during_predict():
        expected = evaluate.progressive_val_score(rows, PIPELINES["standard"](linear_model.Perceptron()), metrics.Accuracy())
        loop = LearningLoop(IterableSource(rows), PIPELINES["standard"](linear_model.Perceptron()))
        assert loop.run().metric == expected.get()
    assert loop.model["StandardScaler"].counts["a"] > 0


def test_a_river_classifier_without_probabilities(tmp_path):
    model = ensemble.VotingClassifier([linear_model.Perceptron(), neighbors.KNNClassifier()])
    with FileSink(tmp_path / "out.csv") as sink:
        loop = LearningLoop(IterableSource(GOOD), model, sink=sink)
        assert loop.run().learned == 60
    with FileSink(tmp_path / "later.csv") as sink:
        assert PredictionLoop(IterableSource(GOOD), loop.model, sink).run().predicted == 60


def test_one_absurd_value_does_not_ruin_what_is_imputed():
    encoder = TableEncoder(when_missing="mean", scaler=BoundedScaler())
    for i in range(6000):
        encoder.learn_one({"a": 1e10 if i == 3000 else float(i % 7), "b": 1.0})
    assert abs(encoder.transform_one({"b": 1.0})["a"]) < 0.01


# Parsing of labels


@pytest.mark.parametrize(
    ("text", "label"),
    [
        *[("0", 0), ("-1", -1), ("2.5", 2.5), ("1.0", 1.0), ("TRUE", True), (" spam ", "spam"), ("007", "007")],
        *[("1_000", "1_000"), ("+1", "+1"), ("1e3", "1e3"), ("-0", "-0"), ("inf", "inf")],
        *[("123456789012345678", 123456789012345678), ("12345678901234567890", "12345678901234567890"), ("9" * 5000, "9" * 5000)],
        ("", None),
    ],
)
def test_parsed_labels_print_as_their_text(text, label):
    label_parsed = parse_label(text)
    assert (label_parsed, type(label_parsed)) == (label, type(label))


def test_labels_of_libsvm_text_are_numbers(tmp_path):
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{label} 1:1\n" for label in ("+1", "-1", "1.0", "0.5", "spam", "nan")))
    assert repr([row.y for row in read(path, label=None)[0]]) == "[1, -1, 1, 0.5, 'spam', nan]"
    assert repr(parse_label("NaN")) == "nan"
