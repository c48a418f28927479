"""The rows of micro-batches: by which learners they are learned, with weights, in which order, and which are refused."""

import json

import numpy as np
import pytest
from pyspark.sql import functions as F
from river import linear_model, metrics

from refused import raises
from spark_frames import frame_of, new_model, of_file, plain
from streamsvm import BSGDRegressor, KernelRLSClassifier, SVMClassifier
from streamsvm.learners import OnlineLinearSVC
from streamsvm_spark import RowsError, StreamLearner


@pytest.mark.parametrize(
    "make",
    [lambda: KernelRLSClassifier(20), lambda: SVMClassifier(effort="low", seed=0), OnlineLinearSVC],
    ids=["rls", "ensemble", "linear"],
)
def test_any_learner_learns(spark, rows, tmp_path, make, learning):
    X, two, _, _ = (part[:150] for part in rows)
    learner = learning(make(), tmp_path)
    for i in range(3):
        part = slice(50 * i, 50 * i + 50)
        learner(frame_of(spark, X[part], two[part]), i)
    assert (of_file(learner.model), learner.loop.metric.get()) == plain(make(), X, two, metrics.Accuracy())


def test_rows_that_cannot_be_used(spark, rows, tmp_path, learning):
    X, two, _, _ = (part[:30] for part in rows)
    bad_X, bad_y = [*X[10:], None, [1.0, np.nan, 2.0], X[0], X[1]], [*two[10:].tolist(), 1, 1, None, 0]
    frame = frame_of(spark, bad_X, bad_y)
    learner = learning(new_model(), tmp_path / "stops")
    learner(frame_of(spark, X[:10], two[:10]), 0)
    before, file = of_file(learner.model), next((tmp_path / "stops").glob("*.ckpt")).read_bytes()
    raises("3 of 24 rows of a batch .* handleInvalid='skip'", learner, frame, 1, error=RowsError)
    assert of_file(learner.model) == before
    assert [path.read_bytes() for path in (tmp_path / "stops").glob("*.ckpt")] == [file]
    learner.close()
    with StreamLearner(new_model(), tmp_path / "stops", handleInvalid="skip") as learner:
        learner(frame, 1)
    assert learner.loop.refused == {"malformed": 3}
    assert learner.loop.rows == 34
    good = np.append(X, X[1:2], axis=0), np.append(two, 0)
    assert (of_file(learner.model), learner.loop.metric.get()) == plain(new_model(), *good, metrics.Accuracy())
    assert not spark.sparkContext._jsc.getPersistentRDDs()  # also not those of the micro-batch that failed


def test_rows_with_weights(spark, rows, tmp_path):
    X, two, _, _ = (part[:90] for part in rows)
    w = (np.arange(90) % 3).astype(float)
    by_hand, score = new_model(), metrics.Accuracy()
    for x, y, weight in zip(X.tolist(), two.tolist(), w, strict=True):
        row = dict(enumerate(x))
        if (predicted := by_hand.predict_one(row)) is not None:
            score.update(y, predicted)
        by_hand.learn_one(row, y, weight)
    for batch in range(3):  # each by a process of its own
        part = slice(30 * batch, 30 * batch + 30)
        with StreamLearner(new_model(), tmp_path, weightCol="w") as learner:
            learner(frame_of(spark, X[part], two[part], w=w[part]), batch)
    assert (of_file(learner.model), learner.loop.metric.get()) == (of_file(by_hand), score.get())
    assert of_file(by_hand) != plain(new_model(), X, two, metrics.Accuracy())[0]


def test_weights_that_are_refused(spark, rows, tmp_path, learning):
    X, two, _, _ = (part[:20] for part in rows)
    with pytest.raises(ValueError, match="rows have weights, 'w', and PAClassifier takes none"):
        learning(linear_model.PAClassifier(), tmp_path / "other", weightCol="w")
    learner = learning(new_model(), tmp_path / "model", weightCol="w", handleInvalid="skip")
    raises("a weight is -1: weights must be from 0", learner, frame_of(spark, X, two, w=[1.0] * 19 + [-1.0]), 0, error=RowsError)
    learner(frame_of(spark, X, two, w=[1.0] * 19 + [None]), 0)
    assert (learner.model.n_learned, learner.loop.refused) == (19, {"malformed": 1})


def test_predictions_and_dead_letters_are_there_once(spark, rows, tmp_path):
    X, two, _, _ = (part[:60] for part in rows)
    texts = np.where(two, "spam", "ham").tolist()
    good = frame_of(spark, X[:30], texts[:30], "string")
    bad = frame_of(spark, [*X[30:], None], [*texts[30:59], "eggs", "ham"], "string")
    fails = bad.withColumn("features", F.when(F.col("label") != "eggs", F.col("features")).otherwise(F.array(F.lit(1.0))))

    def run(place, batches):
        place.mkdir()
        how = {"classes": ["spam", "ham"], "handleInvalid": "skip"}
        number = 0
        for batch in batches:  # each by a process of its own
            with StreamLearner(
                new_model(), place / "model", predictions=place / "out.csv", dead_letters=place / "dead.jsonl", **how
            ) as learner:
                if batch is fails:
                    raises("vectors have", learner, batch, number, error=RowsError)
                    learner(bad, number)  # goes on behind the checkpoint
                else:
                    learner(batch, number)
                number += 1
        letters = [json.loads(line) for line in (place / "dead.jsonl").read_text().splitlines()]
        return (place / "out.csv").read_text(), letters, learner.loop.rows

    out, letters, n = run(tmp_path / "whole", [good, bad])
    assert n == 61
    assert [line.split(",")[0] for line in out.splitlines()] == ["row", *map(str, range(59))]
    assert [letter["place"] for letter in letters] == ["batch 1, row 29", "batch 1, row 30"]
    assert [json.loads(letter["raw"]) for letter in letters] == [
        {"features": X[59].astype(float).tolist(), "label": "eggs"},
        {"features": None, "label": "ham"},
    ]
    again, found, _ = run(tmp_path / "killed", [good, fails])
    assert again == out
    assert [{**letter, "time": None} for letter in found] == [{**letter, "time": None} for letter in letters]
    with pytest.raises(ValueError, match="dead_letters needs handleInvalid='skip'"):
        StreamLearner(new_model(), tmp_path / "model", dead_letters=tmp_path / "dead.jsonl")


def test_labels_that_the_model_refuses(spark, rows, tmp_path, learning):
    X, two, _, _ = (part[:30] for part in rows)
    texts = np.where(two, "spam", "ham").tolist()
    learner = learning(new_model(), tmp_path / "a", classes=["spam", "ham"])
    frame = frame_of(spark, X, [*texts[:-1], "eggs"], "string")
    raises(r"batch 0, row 29: label 'eggs' .* handleInvalid='skip'", learner, frame, 0, error=RowsError)
    assert learner.model.n_learned == 0
    assert learner.loop.saved_rows is None
    learner.close()
    learner = learning(new_model(), tmp_path / "a", classes=["spam", "ham"], handleInvalid="skip")
    learner(frame, 0)
    assert learner.loop.refused == {"label": 1}
    assert of_file(learner.model) == plain(new_model(), X[:-1], np.array(texts[:-1]), metrics.Accuracy())[0]


def test_targets(spark, rows, tmp_path, learning):
    X, _, _, target = (part[:100] for part in rows)
    learner = learning(BSGDRegressor(20, seed=0), tmp_path, metric=metrics.RMSE())
    raises("label column has the type string", learner, frame_of(spark, X, target, "string"), 0, error=RowsError)
    learner(frame_of(spark, X, target, "double"), 0)
    model, score = plain(BSGDRegressor(20, seed=0), X, target, metrics.RMSE())
    assert of_file(learner.model) == model
    assert learner.loop.metric.get() == pytest.approx(score)


def test_vectors_of_several_lengths(spark, rows, tmp_path, learning):
    X, two, _, _ = (part[:20] for part in rows)
    learner = learning(new_model(), tmp_path)
    learner(frame_of(spark, X, two), 0)
    raises("3 and 2 features", learner, frame_of(spark, X[:, :2], two), 1, error=RowsError)


def test_a_query_of_many_partitions(spark, rows, tmp_path, learning):
    X, two, _, _ = rows
    frame = frame_of(spark, X, two).repartition(4)
    order = [row.features for row in frame.collect()]
    learner = learning(new_model(), tmp_path)
    learner(frame, 0)
    place = {x.tobytes(): i for i, x in enumerate(X)}
    found = [place[np.array(x, np.float32).tobytes()] for x in order]
    assert found != sorted(found)
    assert of_file(learner.model) == plain(new_model(), X[found], two[found], metrics.Accuracy())[0]
