"""Micro-batches are learned once, in their order, as a plain loop learns their rows; whatever ends a query, and whenever."""

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
from spark_frames import frame_of, new_model, of_file, plain
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
    """The rows in files that a stream reads in their order, one a micro-batch."""
    made = tmp_path_factory.mktemp("rows")
    X, _, three, _ = rows
    for i, (part, labels) in enumerate(zip(np.split(X, FILES), np.split(three, FILES), strict=True)):
        path = made / f"{i}.parquet"
        parquet.write_table(pa.table({"features": part.astype("f8").tolist(), "label": labels}), path)
        os.utime(path, (i + 1, i + 1))
    return made


@pytest.fixture
def stream(spark, folder):
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def started(stream, learner, location):
    if not location.exists():
        location.mkdir()
        (location / "metadata").write_text(json.dumps({"id": QUERY}))  # so that two runs are the same query
    writer = stream.writeStream.foreachBatch(learner).option("checkpointLocation", str(location))
    return writer.trigger(availableNow=True).start()


def run(stream, place, **how):
    with StreamLearner(new_model(), place / "model", **how) as learner:
        started(stream, learner, place / "spark").awaitTermination()
        return learner.loop


def saved(place):
    [path] = (place / "model").glob(f"checkpoint-{600:012d}.ckpt")
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(spark, folder, tmp_path_factory):
    """The last checkpoint of a query that nothing has ended."""
    place = tmp_path_factory.mktemp("whole")
    run(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)), place)
    return saved(place)


def test_a_query_learns_as_a_plain_loop_does(stream, rows, tmp_path, whole):
    X, _, three, _ = rows
    told = []
    loop = run(stream, tmp_path, on_progress=told.append)
    assert (of_file(loop.model), loop.metric.get()) == plain(new_model(), X, three, metrics.Accuracy())
    assert [progress.rows for progress in told] == [200, 400, 600]
    assert told[-1].metric == loop.metric.get()
    assert saved(tmp_path) == whole


class KilledError(Exception):
    """In the place of a kill."""


def in_the_second(*_, position, **__):
    return position["batch"] == 1


#: What is patched, whether the kill comes after it, and when: in the middle of the rows of the second micro-batch, and so on.
KILLS = {
    "inside": (
        micro_batches.MicroBatches,
        "read",
        False,
        lambda source, _: source.position["batch"] == 1 and getgeneratorstate(source._rows) == GEN_SUSPENDED,
    ),
    "before the write": (CheckpointFolder, "save", False, in_the_second),
    "after the write": (CheckpointFolder, "save", True, in_the_second),
    "before the commit": (StreamLearner, "__call__", True, lambda learner, batch, batch_id: batch_id == 1),
}


def kill(patch, owner, name, after, when):
    whole = getattr(owner, name)

    def killed(self, *arguments, **facts):
        due = when(self, *arguments, **facts)
        if due and not after:
            raise KilledError
        found = whole(self, *([min(*arguments, 50)] if name == "read" else arguments), **facts)
        if due:
            raise KilledError
        return found

    patch.setattr(owner, name, killed)


@pytest.mark.parametrize(
    ("where", "again"),
    [*((where, "a new one") for where in KILLS), ("inside", "the same learner"), ("before the commit", "the same learner")],
)
def test_a_query_that_is_killed_ends_with_the_same_bytes(stream, tmp_path, monkeypatch, whole, where, again):
    with StreamLearner(new_model(), tmp_path / "model") as learner:
        with monkeypatch.context() as patch:
            kill(patch, *KILLS[where])
            raises("KilledError", started(stream, learner, tmp_path / "spark").awaitTermination, error=StreamingQueryException)
        assert learner.loop.rows == (200 if where in ("inside", "before the write") else 400)
        if again == "the same learner":
            started(stream, learner, tmp_path / "spark").awaitTermination()
    if again == "a new one":
        run(stream, tmp_path)
    assert saved(tmp_path) == whole


def test_a_commit_of_spark_that_is_lost(stream, tmp_path, whole):
    run(stream, tmp_path)
    commits = tmp_path / "spark" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()
    told = []
    run(stream, tmp_path, on_progress=told.append)
    assert (commits / "2").exists()  # it was given once more
    assert not told
    assert saved(tmp_path) == whole


def test_a_query_that_is_stopped_within_a_micro_batch(stream, tmp_path, monkeypatch, whole):
    begun, going_on = threading.Event(), threading.Event()
    read = micro_batches.MicroBatches.read

    def slowly(source, most):
        begun.set()
        assert going_on.wait(PATIENCE)
        return read(source, most)

    with StreamLearner(new_model(), tmp_path / "model") as learner, monkeypatch.context() as patch:
        patch.setattr(micro_batches.MicroBatches, "read", slowly)
        query = started(stream, learner, tmp_path / "spark")
        assert begun.wait(PATIENCE)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        until(lambda: not query.isActive)
        going_on.set()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        assert learner.loop.rows in {0, 200}  # a job ends whole, or is cancelled
    run(stream, tmp_path)
    assert saved(tmp_path) == whole


def test_a_learner_that_is_closed_within_a_micro_batch(stream, tmp_path, monkeypatch, whole):
    begun, read = threading.Event(), micro_batches.MicroBatches.read

    def slowly(source, most):
        found = read(source, min(most, 10))
        begun.set()
        until(lambda: learner.loop._stopped)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(micro_batches.MicroBatches, "read", slowly)
        with StreamLearner(new_model(), tmp_path / "model") as learner:  # as Ctrl-C leaves it
            query = started(stream, learner, tmp_path / "spark")
            assert begun.wait(PATIENCE)
    assert not list((tmp_path / "model").glob("*.ckpt"))
    raises("the learner was closed during batch 0", query.awaitTermination, error=StreamingQueryException)
    run(stream, tmp_path)
    assert saved(tmp_path) == whole


def test_a_checkpoint_location_that_is_deleted(stream, tmp_path, learning):
    run(stream, tmp_path)
    before = saved(tmp_path)
    shutil.rmtree(tmp_path / "spark")
    raises("checkpointLocation is older than the model", run, stream, tmp_path, error=StreamingQueryException)
    anew = learning(new_model(), tmp_path / "model")
    with pytest.raises(StreamingQueryException, match="checkpointLocation is another one, or was deleted.*StreamLearner"):
        stream.writeStream.foreachBatch(anew).trigger(availableNow=True).start().awaitTermination()
    anew.close()
    assert saved(tmp_path) == before
    # As the message says.
    with StreamLearner(streamsvm.load(tmp_path / "model"), tmp_path / "new") as learner:
        shutil.rmtree(tmp_path / "spark")
        started(stream, learner, tmp_path / "spark").awaitTermination()
        assert learner.model.n_learned == 1200
    with StreamLearner(streamsvm.load(tmp_path / "model"), tmp_path / "new") as learner:
        assert learner.model.n_learned == 1200


def test_micro_batches_that_do_not_follow(spark, rows, tmp_path, learning):
    X, two, _, _ = (part[:20] for part in rows)
    frame, context = frame_of(spark, X, two), spark.sparkContext
    learner = learning(new_model(), tmp_path)
    learner(frame, 0)
    before = of_file(learner.model)
    learner(frame, 0)
    assert of_file(learner.model) == before
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
        learning(new_model(), tmp_path / "other")(frame, 7)


def test_micro_batches_without_rows_count(spark, rows, tmp_path):
    X, two, _, _ = (part[:20] for part in rows)
    frame = frame_of(spark, X, two)
    for batch in range(4):  # each by a process of its own
        with StreamLearner(new_model(), tmp_path) as learner:
            learner(frame if batch == 2 else frame.filter("label > 5"), batch)
    assert learner.loop.rows == learner.model.n_learned == 20


def test_an_error_leaves_scores_and_detectors_as_they_were(spark, rows, tmp_path, learning):
    X, two, _, _ = rows
    start, end = frame_of(spark, X[:300], two[:300]), frame_of(spark, X[300:], 1 - two[300:])
    bad = frame_of(spark, [*X[300:], None], [*(1 - two[300:]).tolist(), 1])
    ends = []
    for name, batches in {"whole": [start, end], "with errors": [bad, start, bad, end]}.items():
        watch = DriftWatch(drift.ADWIN(), "reset")
        learner = learning(new_model(), tmp_path / name, metric=metrics.MacroF1(), drift=watch)
        number = 0
        for batch in batches:
            if batch is bad:
                with pytest.raises(RowsError):
                    learner(batch, number)
            else:
                learner(batch, number)
                number += 1
        assert learner.loop.drift.drifts > 0
        ends.append(next((tmp_path / name).glob("*600.ckpt")).read_bytes())
    assert ends[0] == ends[1]


def test_it_is_not_sent_anywhere(tmp_path, learning, monkeypatch):
    raises("Spark Connect", pickle.dumps, learning(new_model(), tmp_path), error=TypeError)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    raises(r"Spark Connect would do: .* SparkSession.builder.master", StreamLearner, new_model(), tmp_path, error=TypeError)


def test_another_model_is_refused(spark, rows, tmp_path):
    X, two, _, _ = (part[:20] for part in rows)
    with StreamLearner(new_model(), tmp_path) as learner:
        learner(frame_of(spark, X, two), 0)
    for error, model, how, reason in (
        (CheckpointError, BSCAClassifier(budget=30, seed=0), {}, "learned with .*20.* asked for is .*30"),
        (StreamError, new_model(), {"featureNames": ["a", "b", "c"]}, "has learned the features .* featureNames"),
        (CheckpointError, new_model(), {"metric": metrics.MacroF1()}, "has scored with Accuracy"),
        (ValueError, new_model(), {"handleInvalid": "keep"}, "handleInvalid must be one of"),
    ):
        raises(reason, StreamLearner, model, tmp_path, error=error, **how)


def test_followers_find_each_newer_model(spark, rows, tmp_path):
    X, two, _, _ = (part[:60] for part in rows)
    models = FollowedFolder(tmp_path / "model", seconds=0.0)
    assert models.read_newer() is None
    names = ["a", "b", "c"]
    with StreamLearner(new_model(), tmp_path / "model", featureNames=names, labelCol="label") as learner:
        learner(frame_of(spark, X[:30], two[:30]), 0)
        assert models.read_newer().version == 30
        learner(frame_of(spark, X[30:], two[30:]), 1)
        found = models.read_newer()
    assert found.version == 60
    assert of_file(found.model) == of_file(learner.model)
    table = pa.table({name: X[:, i] for i, name in enumerate(names)} | {"label": two})
    parquet.write_table(table, tmp_path / "new.parquet")
    assert main(["predict", f"{tmp_path}/new.parquet", "--model", f"{tmp_path}/model", "--to", f"{tmp_path}/out.jsonl"]) == 0
    answers = [json.loads(line)["y_pred"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answers == [learner.model.predict_one(dict(zip(names, x, strict=True))) for x in X.tolist()]
