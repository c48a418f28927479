"""Row weights: from any source to the model, not among the features, and ignored by metrics."""

import json
import math
from contextlib import closing

import numpy as np
import pytest
from river import linear_model, neighbors, preprocessing

from chunks import InChunks, check_table, chunks_of, write_rows
from saved import dumps
from streamsvm import BSCARegressor, BSGDClassifier, BSGDRegressor
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import (
    BadRow,
    Chunk,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    IterableSource,
    JoinedSource,
    LearningLoop,
    PredictionLoop,
    Row,
    StreamError,
    WeightedLabel,
    WeightedSource,
    open_source,
)
from streamsvm.stream.rows import SETTLED_ROWS, RowError
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.weights import parse_weight

WEIGHTS = [0.5, None, 0.0, 2.0, 1.0]


def rows_of(n=100):
    """Triples of the features with the weight, the label, and the weight."""
    for i in range(n):
        x, w = {"a": (i % 7) / 4, "b": (i % 5) / 4}, WEIGHTS[i % 5]
        yield x, "yes" if i % 7 > 3 else "no", w


def model():
    return BoundedScaler() | BSGDClassifier(budget=20, seed=1)


def learned_by_hand():
    model_ = model()
    for x, y, w in rows_of():
        model_.predict_one(x)
        if w != 0.0:
            model_.learn_one(x, y, w=1.0 if w is None else w)
    return model_


@pytest.mark.parametrize("as_table", [False, True])
def test_tables_and_rows_without_a_label(as_table):
    class WithBytes(Chunk):
        def raw(self, i):
            return b"raw"

    xs = {"a": 1.0, "w": 0.5}, {"a": 2.0}, {"a": 3.0, "w": -1.0}, {"a": 4.0, "w": 1.0}, {"a": 5.0, "w": 2.0}
    expected = [
        Row({"a": 1.0}, WeightedLabel("u", 0.5)),
        Row({"a": 2.0}, "v"),
        BadRow("chunks, row 3", b"raw", "weight -1.0 is not a finite number of at least 0", "weight"),
        Row({"a": 4.0}, None),
        Row({"a": 5.0}, None),
    ]
    for most in (1, 100):
        source = WeightedSource(InChunks(zip(xs, ["u", "v", "u", None, None], strict=True), as_table, kind=WithBytes), "w")
        rows, odd = [], 0
        for chunk in chunks_of(source, most):
            rows += [chunk.row(i) for i in range(len(chunk))]
            odd += len(check_table(chunk).unparsed_rows)
        assert (rows, odd) == (expected, 1)


@pytest.mark.parametrize(("regression", "encoded"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("as_table", [False, True])
def test_batches_are_as_single_rows(as_table, regression, encoded):
    rows = [({**x, "w": -1.0 if i % 50 == 7 else w}, x["a"] if regression else y) for i, (x, y, w) in enumerate(rows_of(400))]
    for x, _ in rows[::5]:
        del x["w"]
    results = []
    for source in (IterableSource(rows), InChunks(rows, as_table)):
        learner = (BSGDRegressor if regression else BSGDClassifier)(budget=20, seed=1)
        learner = TableEncoder() | learner if encoded else learner
        loop = LearningLoop(WeightedSource(source, "w"), learner, on_error="skip")
        progress = loop.run()
        results.append((dumps(loop.model), progress.rows, progress.learned, progress.refused, progress.scores))
    assert results[0] == results[1]
    assert results[0][3] == {"weight": 8}
    assert loop._uses_batches
    with pytest.raises(StreamError, match="row 8: weight -1.0 is not a finite number of at least 0"):
        LearningLoop(WeightedSource(InChunks(rows, as_table), "w"), learner.clone()).run()


@pytest.mark.parametrize(("cell", "w"), [("", 1.0), (None, 1.0), ("1e-3", 0.001), (np.float32(2.0), 2.0), (3, 3.0), ("-0", 0.0)])
def test_weights_are_parsed_from_cells(cell, w):
    assert parse_weight(cell) == w


@pytest.mark.parametrize("cell", [-1, -1e-300, math.nan, math.inf, "nan", "inf", "heavy", "1_0", True, [1.0], {}, 1e300, "-0.1"])
def test_invalid_weights_refuse_their_row(cell):
    with pytest.raises(RowError, match="is not a finite number of at least 0"):
        parse_weight(cell)


def test_targets_of_a_regression():
    rows = [({"a": x["a"], "w": w}, x["b"] * 100) for x, _, w in rows_of()]
    loop = LearningLoop(WeightedSource(IterableSource(rows), "w"), BoundedTargetScaler(BSCARegressor(budget=10, seed=1)))
    loop.run()
    expected = BoundedTargetScaler(BSCARegressor(budget=10, seed=1))
    for x, y in rows:
        expected.learn_one({"a": x["a"]}, y, w=1.0 if x["w"] is None else x["w"])
    assert dumps(loop.model) == dumps(expected)


@pytest.mark.parametrize(
    ("taker", "refused"),
    [
        (linear_model.LogisticRegression(), None),
        (preprocessing.StandardScaler() | linear_model.LogisticRegression(), None),
        (neighbors.KNNClassifier(), "KNNClassifier"),
        (preprocessing.StandardScaler() | neighbors.KNNClassifier(), "KNNClassifier"),
        (BoundedTargetScaler(neighbors.KNNRegressor()), "KNNRegressor"),
    ],
)
def test_models_that_do_not_accept_weights_are_refused_at_the_start(taker, refused):
    source = WeightedSource(IterableSource([({"a": float(i), "w": 2.0}, i % 2) for i in range(9)]), "w")
    if refused is None:
        assert LearningLoop(source, taker).run().learned == 9
        return
    with pytest.raises(ValueError, match=f"rows have weights .'w'., but {refused} accepts none: use another model"):
        LearningLoop(source, taker)


def test_predictions_of_rows_with_weights(tmp_path):
    rows = [({**x, "w": w}, y) for x, y, w in rows_of(20)]
    for learner in (learned_by_hand(), BSGDClassifier(budget=5)):
        with FileSink(tmp_path / "out.jsonl") as sink:
            PredictionLoop(WeightedSource(IterableSource(rows), "w"), learner, sink).run()
        lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
        assert [line["y_true"] for line in lines] == [y for _, y in rows]


def test_missing_columns_of_weights(tmp_path):
    path = str(write_rows(tmp_path / "rows.csv", [{"w": w, **x, "y": y} for x, y, w in rows_of()]))
    with (
        closing(open_source(path, label="y", weight="v")) as source,
        pytest.raises(StreamError, match="no column 'v' for the weight"),
    ):
        LearningLoop(source, model()).run()
    for options in ({"label": "w"}, {"label": "y", "columns": "w:drop"}):
        with pytest.raises(StreamError, match="'w' cannot hold the weight: it is the label, or dropped"):
            open_source(path, weight="w", **options)
    (tmp_path / "rows.svm").write_text("1 1:2\n")
    with pytest.raises(StreamError, match="no column 'w' for the weight: its rows are numbers without names"):
        open_source(str(tmp_path / "rows.svm"), weight="w")


@pytest.mark.parametrize("n", [20, SETTLED_ROWS + 5])
def test_a_column_that_no_row_has(n):
    rows = [(x, y) for x, y, _ in rows_of(n)]
    with pytest.warns(UserWarning, match=f"none of the first {min(n, SETTLED_ROWS):,} rows has a weight 'w': all count as 1"):
        LearningLoop(WeightedSource(IterableSource(rows), "w"), model()).run()


def test_rows_of_weight_0_are_not_learned():
    rows = [({**x, "w": 0}, y) for x, y, _ in rows_of(20)]
    with pytest.raises(StreamError, match="none of its 20 rows was learned: those with a label have the weight 0, in column 'w'"):
        LearningLoop(WeightedSource(IterableSource(rows), "w"), model()).run()


def test_delayed_labels_exclude_weights():
    source = WeightedSource(IterableSource([]), "w")
    with pytest.raises(StreamError, match="rows that wait for their labels have no weights"):
        DelayedLearningLoop(JoinedSource(source, IterableSource([]), key="id", time="t"), model(), delayed=DelayedLabels())
