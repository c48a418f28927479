"""Tests of `StreamLearner` in streaming queries: each micro-batch is learned once and in order, also after a kill."""

import json
import os
import pickle
import shutil
import threading
from inspect import GEN_SUSPENDED, getgeneratorstate

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import StreamingQueryException
from river import drift, metrics

import streamsvm
from patience import PATIENCE, until
from refused import raises
from spark_frames import make_array_frame, make_model, run_plain_loop, serialize_model
from streamsvm import BSCAClassifier
from streamsvm.cli.main import main
from streamsvm.stream import CheckpointFolder, DriftWatch
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.prediction import FollowedFolder
from streamsvm_spark import RowsError, StreamLearner, micro_batches

SCHEMA = "features array<double>, label long"
FILES = 3
QUERY = "00000000-0000-0000-0000-000000000001"
QUERY_PROPERTY = "sql.streaming.queryId"


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    """Return a folder with the rows in files; a stream reads them in order, one in each micro-batch."""
    rows_folder = tmp_path_factory.mktemp("rows")
    X, _, three, _ = rows
    for i, (part, labels) in enumerate(zip(np.split(X, FILES), np.split(three, FILES), strict=True)):
        path = rows_folder / f"{i}.parquet"
        parquet.write_table(pa.table({"features": part.astype("f8").tolist(), "label": labels}), path)
        os.utime(path, (i + 1, i + 1))
    return rows_folder


@pytest.fixture
def stream(spark, folder):
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def start_query(stream, learner, location):
    if not location.exists():
        location.mkdir()
        (location / "metadata").write_text(json.dumps({"id": QUERY}))  # so that all runs are the same query
    writer = stream.writeStream.foreachBatch(learner).option("checkpointLocation", str(location))
    return writer.trigger(availableNow=True).start()


def run_query(stream, place, **settings):
    with StreamLearner(make_model(), place / "model", **settings) as learner:
        start_query(stream, learner, place / "spark").awaitTermination()
        return learner.loop


def read_last_checkpoint(place):
    [path] = (place / "model").glob(f"checkpoint-{600:012d}.ckpt")
    return path.read_bytes()


@pytest.fixture(scope="module")
def expected_file(spark, folder, tmp_path_factory):
    """Return the bytes of the last checkpoint of an uninterrupted query."""
    place = tmp_path_factory.mktemp("complete")
    run_query(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)), place)
    return read_last_checkpoint(place)


def test_query_learns_as_a_plain_loop_does(stream, rows, tmp_path, expected_file):
    X, _, three, _ = rows
    reports = []
    loop = run_query(stream, tmp_path, on_progress=reports.append)
    assert (serialize_model(loop.model), loop.metric.get()) == run_plain_loop(make_model(), X, three, metrics.Accuracy())
    assert [progress.rows for progress in reports] == [200, 400, 600]
    assert reports[-1].metric == loop.metric.get()
    assert read_last_checkpoint(tmp_path) == expected_file


class KilledError(Exception):
    """Stands for the kill of the process."""


def is_second_batch(*_, position, **__):
    return position["batch"] == 1


#: Class and method to patch, whether the kill follows the call, and the condition of the kill, for each moment of a kill.
KILLS = {
    "inside": (
        micro_batches.MicroBatches,
        "read",
        False,
        lambda source, _: source.position["batch"] == 1 and getgeneratorstate(source._rows) == GEN_SUSPENDED,
    ),
    "before the write": (CheckpointFolder, "save", False, is_second_batch),
    "after the write": (CheckpointFolder, "save", True, is_second_batch),
    "before the commit": (StreamLearner, "__call__", True, lambda learner, batch, batch_id: batch_id == 1),
}


def kill(patch, owner, name, is_after, condition):
    """Make a method raise `KilledError` before or after a call that meets a condition."""
    original = getattr(owner, name)

    def call_and_kill(self, *arguments, **facts):
        is_due = condition(self, *arguments, **facts)
        if is_due and not is_after:
            raise KilledError
        result = original(self, *([min(*arguments, 50)] if name == "read" else arguments), **facts)
        if is_due:
            raise KilledError
        return result

    patch.setattr(owner, name, call_and_kill)


@pytest.mark.parametrize(
    ("moment", "again"),
    [*((moment, "a new one") for moment in KILLS), ("inside", "the same learner"), ("before the commit", "the same learner")],
)
def test_killed_query_ends_with_the_same_bytes(stream, tmp_path, monkeypatch, expected_file, moment, again):
    with StreamLearner(make_model(), tmp_path / "model") as learner:
        with monkeypatch.context() as patch:
            kill(patch, *KILLS[moment])
            raises(
                "KilledError", start_query(stream, learner, tmp_path / "spark").awaitTermination, error=StreamingQueryException
            )
        assert learner.loop.rows == (200 if moment in ("inside", "before the write") else 400)
        if again == "the same learner":
            start_query(stream, learner, tmp_path / "spark").awaitTermination()
    if again == "a new one":
        run_query(stream, tmp_path)
    assert read_last_checkpoint(tmp_path) == expected_file


def test_lost_commit_of_spark_does_not_repeat_a_micro_batch(stream, tmp_path, expected_file):
    run_query(stream, tmp_path)
    commits = tmp_path / "spark" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()
    reports = []
    run_query(stream, tmp_path, on_progress=reports.append)
    assert (commits / "2").exists()  # Spark has passed the micro-batch again
    assert not reports
    assert read_last_checkpoint(tmp_path) == expected_file


def test_query_stopped_within_a_micro_batch_resumes(stream, tmp_path, monkeypatch, expected_file):
    has_begun, may_continue = threading.Event(), threading.Event()
    read = micro_batches.MicroBatches.read

    def read_slowly(source, max_rows):
        has_begun.set()
        assert may_continue.wait(PATIENCE)
        return read(source, max_rows)

    with StreamLearner(make_model(), tmp_path / "model") as learner, monkeypatch.context() as patch:
        patch.setattr(micro_batches.MicroBatches, "read", read_slowly)
        query = start_query(stream, learner, tmp_path / "spark")
        assert has_begun.wait(PATIENCE)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        until(lambda: not query.isActive)
        may_continue.set()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        assert learner.loop.rows in {0, 200}  # the job is complete, or cancelled
    run_query(stream, tmp_path)
    assert read_last_checkpoint(tmp_path) == expected_file


def test_learner_closed_within_a_micro_batch_saves_no_part(stream, tmp_path, monkeypatch, expected_file):
    has_begun, read = threading.Event(), micro_batches.MicroBatches.read

    def read_slowly(source, max_rows):
        chunk = read(source, min(max_rows, 10))
        has_begun.set()
        until(lambda: learner.loop._stopped)
        return chunk

    with monkeypatch.context() as patch:
        patch.setattr(micro_batches.MicroBatches, "read", read_slowly)
        with StreamLearner(make_model(), tmp_path / "model") as learner:  # closes the learner as Ctrl-C does
            query = start_query(stream, learner, tmp_path / "spark")
            assert has_begun.wait(PATIENCE)
    assert not list((tmp_path / "model").glob("*.ckpt"))
    raises("the learner was closed during batch 0", query.awaitTermination, error=StreamingQueryException)
    run_query(stream, tmp_path)
    assert read_last_checkpoint(tmp_path) == expected_file


def test_deleted_checkpoint_location_is_refused(stream, tmp_path, learning):
    run_query(stream, tmp_path)
    before = read_last_checkpoint(tmp_path)
    shutil.rmtree(tmp_path / "spark")
    raises("checkpointLocation is older than the model", run_query, stream, tmp_path, error=StreamingQueryException)
    fresh_learner = learning(make_model(), tmp_path / "model")
    with pytest.raises(StreamingQueryException, match="checkpointLocation is another one, or was deleted.*StreamLearner"):
        stream.writeStream.foreachBatch(fresh_learner).trigger(availableNow=True).start().awaitTermination()
    fresh_learner.close()
    assert read_last_checkpoint(tmp_path) == before
    # The remedy that the message names.
    with StreamLearner(streamsvm.load(tmp_path / "model"), tmp_path / "new") as learner:
        shutil.rmtree(tmp_path / "spark")
        start_query(stream, learner, tmp_path / "spark").awaitTermination()
        assert learner.model.n_learned == 1200
    with StreamLearner(streamsvm.load(tmp_path / "model"), tmp_path / "new") as learner:
        assert learner.model.n_learned == 1200


def test_micro_batches_out_of_sequence_are_refused(spark, rows, tmp_path, learning):
    X, labels, _, _ = (part[:20] for part in rows)
    frame, context = make_array_frame(spark, X, labels), spark.sparkContext
    learner = learning(make_model(), tmp_path)
    learner(frame, 0)
    before = serialize_model(learner.model)
    learner(frame, 0)
    assert serialize_model(learner.model) == before
    learner(frame, 1)
    raises("older than the model", learner, frame, 0, error=StreamError)
    raises("checkpoint is older than Spark's", learner, frame, 3, error=StreamError)
    context.setLocalProperty(QUERY_PROPERTY, QUERY)
    try:
        raises(f"of query {QUERY}: .* another one", learner, frame, 1, error=StreamError)
    finally:
        context.setLocalProperty(QUERY_PROPERTY, None)
    assert learner.loop.rows == 40
    learner(frame, 2)
    assert learner.model.n_learned == 60
    with pytest.warns(UserWarning, match="is batch 7 of the query: the model lacks"):
        learning(make_model(), tmp_path / "other")(frame, 7)


def test_empty_micro_batches_are_counted(spark, rows, tmp_path):
    X, labels, _, _ = (part[:20] for part in rows)
    frame = make_array_frame(spark, X, labels)
    for batch in range(4):  # a new learner for each, as after a restart
        with StreamLearner(make_model(), tmp_path) as learner:
            learner(frame if batch == 2 else frame.filter("label > 5"), batch)
    assert learner.loop.rows == learner.model.n_learned == 20


def test_error_leaves_scores_and_detectors_unchanged(spark, rows, tmp_path, learning):
    X, labels, _, _ = rows
    first_half, second_half = make_array_frame(spark, X[:300], labels[:300]), make_array_frame(spark, X[300:], 1 - labels[300:])
    bad = make_array_frame(spark, [*X[300:], None], [*(1 - labels[300:]).tolist(), 1])
    checkpoints = []
    for name, batches in {"complete": [first_half, second_half], "with errors": [bad, first_half, bad, second_half]}.items():
        watch = DriftWatch(drift.ADWIN(), "reset")
        learner = learning(make_model(), tmp_path / name, metric=metrics.MacroF1(), drift=watch)
        number = 0
        for batch in batches:
            if batch is bad:
                with pytest.raises(RowsError):
                    learner(batch, number)
            else:
                learner(batch, number)
                number += 1
        assert learner.loop.drift.drifts > 0
        checkpoints.append(next((tmp_path / name).glob("*600.ckpt")).read_bytes())
    assert checkpoints[0] == checkpoints[1]


def test_learner_cannot_be_pickled_for_spark_connect(tmp_path, learning, monkeypatch):
    raises("Spark Connect", pickle.dumps, learning(make_model(), tmp_path), error=TypeError)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    raises(r"Spark Connect would do: .* SparkSession.builder.master", StreamLearner, make_model(), tmp_path, error=TypeError)


def test_model_or_settings_that_differ_from_the_checkpoint_are_refused(spark, rows, tmp_path):
    X, labels, _, _ = (part[:20] for part in rows)
    with StreamLearner(make_model(), tmp_path) as learner:
        learner(make_array_frame(spark, X, labels), 0)
    for error, model, settings, reason in (
        (CheckpointError, BSCAClassifier(budget=20, seed=0, kernel="linear"), {}, "kernel: 'rbf' -> 'linear'"),
        (StreamError, make_model(), {"featureNames": ["a", "b", "c"]}, "has learned the features .* featureNames"),
        (ValueError, make_model(), {"handleInvalid": "keep"}, "handleInvalid must be one of"),
    ):
        raises(reason, StreamLearner, model, tmp_path, error=error, **settings)
    with StreamLearner(make_model(), tmp_path, metric=metrics.MacroF1()) as learner:
        learner(make_array_frame(spark, X, labels), 1)
        assert (learner.loop.progress.metric_name, learner.loop.learned) == ("MacroF1", 40)


def test_followers_read_each_newer_model(spark, rows, tmp_path):
    X, labels, _, _ = (part[:60] for part in rows)
    models = FollowedFolder(tmp_path / "model", seconds=0.0)
    assert models.read_newer() is None
    names = ["a", "b", "c"]
    with StreamLearner(make_model(), tmp_path / "model", featureNames=names, labelCol="label") as learner:
        learner(make_array_frame(spark, X[:30], labels[:30]), 0)
        assert models.read_newer().version == 30
        learner(make_array_frame(spark, X[30:], labels[30:]), 1)
        newest = models.read_newer()
    assert newest.version == 60
    assert serialize_model(newest.model) == serialize_model(learner.model)
    table = pa.table({name: X[:, i] for i, name in enumerate(names)} | {"label": labels})
    parquet.write_table(table, tmp_path / "new.parquet")
    assert main(["predict", f"{tmp_path}/new.parquet", "--model", f"{tmp_path}/model", "--to", f"{tmp_path}/out.jsonl"]) == 0
    predictions = [json.loads(line)["y_pred"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert predictions == [learner.model.predict_one(dict(zip(names, x, strict=True))) for x in X.tolist()]
