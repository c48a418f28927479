"""Tests of the rows of micro-batches: learners, weights, order, predictions, dead letters and refused rows."""

import json

import numpy as np
import pytest
from pyspark.sql import functions as F
from river import linear_model, metrics

from refused import raises
from spark_frames import make_array_frame, make_model, run_plain_loop, serialize_model
from streamsvm import BSGDRegressor, KernelRLSClassifier, SVMClassifier
from streamsvm.learners import OnlineLinearSVC
from streamsvm_spark import RowsError, StreamLearner


@pytest.mark.parametrize(
    "make",
    [lambda: KernelRLSClassifier(20), lambda: SVMClassifier(effort="low", seed=0), OnlineLinearSVC],
    ids=["rls", "ensemble", "linear"],
)
def test_learners_of_all_kinds_learn_micro_batches(spark, rows, tmp_path, make, learning):
    X, labels, _, _ = (part[:150] for part in rows)
    learner = learning(make(), tmp_path)
    for i in range(3):
        part = slice(50 * i, 50 * i + 50)
        learner(make_array_frame(spark, X[part], labels[part]), i)
    assert (serialize_model(learner.model), learner.loop.metric.get()) == run_plain_loop(make(), X, labels, metrics.Accuracy())


def test_invalid_rows_are_refused_or_skipped(spark, rows, tmp_path, learning):
    X, labels, _, _ = (part[:30] for part in rows)
    bad_X, bad_y = [*X[10:], None, [1.0, np.nan, 2.0], X[0], X[1]], [*labels[10:].tolist(), 1, 1, None, 0]
    frame = make_array_frame(spark, bad_X, bad_y)
    learner = learning(make_model(), tmp_path / "stops")
    learner(make_array_frame(spark, X[:10], labels[:10]), 0)
    before, file = serialize_model(learner.model), next((tmp_path / "stops").glob("*.ckpt")).read_bytes()
    raises("3 of 24 rows of a batch .* handleInvalid='skip'", learner, frame, 1, error=RowsError)
    assert serialize_model(learner.model) == before
    assert [path.read_bytes() for path in (tmp_path / "stops").glob("*.ckpt")] == [file]
    learner.close()
    with StreamLearner(make_model(), tmp_path / "stops", handleInvalid="skip") as learner:
        learner(frame, 1)
    assert learner.loop.refused == {"malformed": 3}
    assert learner.loop.rows == 34
    good = np.append(X, X[1:2], axis=0), np.append(labels, 0)
    assert (serialize_model(learner.model), learner.loop.metric.get()) == run_plain_loop(make_model(), *good, metrics.Accuracy())
    assert not spark.sparkContext._jsc.getPersistentRDDs()  # the failed micro-batch is not cached either


def test_weighted_rows_are_learned(spark, rows, tmp_path):
    X, labels, _, _ = (part[:90] for part in rows)
    w = (np.arange(90) % 3).astype(float)
    expected, score = make_model(), metrics.Accuracy()
    for x, y, weight in zip(X.tolist(), labels.tolist(), w, strict=True):
        row = dict(enumerate(x))
        if (predicted := expected.predict_one(row)) is not None:
            score.update(y, predicted)
        expected.learn_one(row, y, weight)
    for batch in range(3):  # a new learner for each, as after a restart
        part = slice(30 * batch, 30 * batch + 30)
        with StreamLearner(make_model(), tmp_path, weightCol="w") as learner:
            learner(make_array_frame(spark, X[part], labels[part], w=w[part]), batch)
    assert (serialize_model(learner.model), learner.loop.metric.get()) == (serialize_model(expected), score.get())
    assert serialize_model(expected) != run_plain_loop(make_model(), X, labels, metrics.Accuracy())[0]


def test_invalid_weights_are_refused_or_skipped(spark, rows, tmp_path, learning):
    X, labels, _, _ = (part[:20] for part in rows)
    with pytest.raises(ValueError, match="rows have weights .'w'., but PAClassifier accepts none"):
        learning(linear_model.PAClassifier(), tmp_path / "other", weightCol="w")
    learner = learning(make_model(), tmp_path / "model", weightCol="w", handleInvalid="skip")
    raises(
        "a weight is -1: weights must be from 0",
        learner,
        make_array_frame(spark, X, labels, w=[1.0] * 19 + [-1.0]),
        0,
        error=RowsError,
    )
    learner(make_array_frame(spark, X, labels, w=[1.0] * 19 + [None]), 0)
    assert (learner.model.n_learned, learner.loop.refused) == (19, {"malformed": 1})


def test_predictions_and_dead_letters_are_written_once(spark, rows, tmp_path):
    X, labels, _, _ = (part[:60] for part in rows)
    texts = np.where(labels, "spam", "ham").tolist()
    good = make_array_frame(spark, X[:30], texts[:30], "string")
    bad = make_array_frame(spark, [*X[30:], None], [*texts[30:59], "eggs", "ham"], "string")
    failing = bad.withColumn("features", F.when(F.col("label") != "eggs", F.col("features")).otherwise(F.array(F.lit(1.0))))

    def run_query(folder, batches):
        folder.mkdir()
        settings = {"classes": ["spam", "ham"], "handleInvalid": "skip"}
        number = 0
        for batch in batches:  # a new learner for each, as after a restart
            with StreamLearner(
                make_model(), folder / "model", predictions=folder / "out.csv", dead_letters=folder / "dead.jsonl", **settings
            ) as learner:
                if batch is failing:
                    raises("vectors have", learner, batch, number, error=RowsError)
                    learner(bad, number)  # resumes after the checkpoint
                else:
                    learner(batch, number)
                number += 1
        letters = [json.loads(line) for line in (folder / "dead.jsonl").read_text().splitlines()]
        return (folder / "out.csv").read_text(), letters, learner.loop.rows

    out, letters, n = run_query(tmp_path / "complete", [good, bad])
    assert n == 61
    assert [line.split(",")[0] for line in out.splitlines()] == ["row", *map(str, range(59))]
    assert [letter["place"] for letter in letters] == ["batch 1, row 29", "batch 1, row 30"]
    assert [json.loads(letter["raw"]) for letter in letters] == [
        {"features": X[59].astype(float).tolist(), "label": "eggs"},
        {"features": None, "label": "ham"},
    ]
    again, letters_again, _ = run_query(tmp_path / "killed", [good, failing])
    assert again == out
    assert [{**letter, "time": None} for letter in letters_again] == [{**letter, "time": None} for letter in letters]
    with pytest.raises(ValueError, match="dead_letters needs handleInvalid='skip'"):
        StreamLearner(make_model(), tmp_path / "model", dead_letters=tmp_path / "dead.jsonl")


def test_unknown_labels_are_refused_or_skipped(spark, rows, tmp_path, learning):
    X, labels, _, _ = (part[:30] for part in rows)
    texts = np.where(labels, "spam", "ham").tolist()
    learner = learning(make_model(), tmp_path / "a", classes=["spam", "ham"])
    frame = make_array_frame(spark, X, [*texts[:-1], "eggs"], "string")
    raises(r"batch 0, row 29: label 'eggs' .* handleInvalid='skip'", learner, frame, 0, error=RowsError)
    assert learner.model.n_learned == 0
    assert learner.loop.saved_rows is None
    learner.close()
    learner = learning(make_model(), tmp_path / "a", classes=["spam", "ham"], handleInvalid="skip")
    learner(frame, 0)
    assert learner.loop.refused == {"label": 1}
    assert serialize_model(learner.model) == run_plain_loop(make_model(), X[:-1], np.array(texts[:-1]), metrics.Accuracy())[0]


def test_regression_targets_are_learned(spark, rows, tmp_path, learning):
    X, _, _, target = (part[:100] for part in rows)
    learner = learning(BSGDRegressor(20, seed=0), tmp_path, metric=metrics.RMSE())
    raises("label column has the type string", learner, make_array_frame(spark, X, target, "string"), 0, error=RowsError)
    learner(make_array_frame(spark, X, target, "double"), 0)
    model, score = run_plain_loop(BSGDRegressor(20, seed=0), X, target, metrics.RMSE())
    assert serialize_model(learner.model) == model
    assert learner.loop.metric.get() == pytest.approx(score)


def test_vectors_of_different_lengths_are_refused(spark, rows, tmp_path, learning):
    X, labels, _, _ = (part[:20] for part in rows)
    learner = learning(make_model(), tmp_path)
    learner(make_array_frame(spark, X, labels), 0)
    raises("3 and 2 features", learner, make_array_frame(spark, X[:, :2], labels), 1, error=RowsError)


def test_partitions_are_learned_in_frame_order(spark, rows, tmp_path, learning):
    X, labels, _, _ = rows
    frame = make_array_frame(spark, X, labels).repartition(4)
    order = [row.features for row in frame.collect()]
    learner = learning(make_model(), tmp_path)
    learner(frame, 0)
    positions = {x.tobytes(): i for i, x in enumerate(X)}
    learned = [positions[np.array(x, np.float32).tobytes()] for x in order]
    assert learned != sorted(learned)
    assert serialize_model(learner.model) == run_plain_loop(make_model(), X[learned], labels[learned], metrics.Accuracy())[0]
