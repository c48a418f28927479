"""Processes of a consumer group share the predictions of a topic: each row is predicted, also if processes are killed."""

import csv
import json
import random
import signal
import time
import uuid
from collections import Counter
from contextlib import closing

import pytest
from kafka import KafkaConsumer, TopicPartition

from forked import Command
from kafka_broker import LIBRARIES, each_library
from lists import OF_RELEASE, pairs
from patience import PATIENCE, until
from saved import dumps
from streamsvm import BSGDClassifier, load
from streamsvm.stream import CheckpointFolder, FollowedFolder, PredictionLoop, Row
from streamsvm.stream.prediction import FollowedModel
from streamsvm_kafka import FollowedTopic, JSONCodec, PartitionWorker, publish

N_PARTITIONS = 4
#: Of a group that soon notices that a member was killed.
LIMITS = {"SESSION_SECONDS": 2.0, "HEARTBEAT_SECONDS": 0.4}


def rows_of(first, n):
    return [Row({"a": i * 7919 % 13, "b": i % 5, "id": i}, int(i * 7919 % 13 > 6)) for i in range(first, first + n)]


@pytest.fixture
def topic(bootstrap, new_topic):
    """A topic with four partitions, and a function that sends rows to each of them."""
    name, n_sent = new_topic(partitions=N_PARTITIONS), 0

    def send(n):
        nonlocal n_sent
        for partition in range(N_PARTITIONS):
            publish(rows_of(n_sent, n), bootstrap, name, JSONCodec("y"), partition=partition)
        n_sent += n

    send(50)
    send.name, send.url, send.count = name, f"kafka://{bootstrap}/{name}", lambda: n_sent
    return send


@pytest.fixture
def model(tmp_path):
    learner = BSGDClassifier(budget=30, seed=1)
    for x, y in rows_of(0, 500):
        learner.learn_one({name: x[name] for name in "ab"}, y)
    learner.save(tmp_path / "model")
    return tmp_path / "model"


def read_topic(bootstrap, topic):
    """Return the committed predictions of a topic with one partition."""
    predictions, key = [], TopicPartition(topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")) as consumer:
        consumer.assign([key])
        consumer.seek(key, 0)
        end = consumer.end_offsets([key])[key]
        while consumer.position(key) < end:
            for messages in consumer.poll(200).values():
                predictions += [json.loads(message.value) for message in messages]
    return predictions


def count(predictions):
    return Counter((int(line["partition"]), int(line["offset"])) for line in predictions)


#: Command, place of checkpoints, place of predictions, and whether each row is predicted exactly once.
KILLS = [
    ("predict", None, "topic", False),
    ("predict", "topic", "topic", True),
    ("predict", "folder", "file", True),
    ("learn", "folder", "file", True),
    ("learn", "topic", "topic", True),
]


@pytest.mark.broker
@pytest.mark.parametrize(("case", "client_library"), pairs(KILLS, LIBRARIES), indirect=["client_library"])
@pytest.mark.usefixtures("client_library")
def test_kills(bootstrap, new_topic, topic, model, tmp_path, case):
    """For a release with more kills, and each case with both libraries."""
    command, checkpoints, to, is_once = case
    out, group, rng = new_topic(), uuid.uuid4().hex, random.Random(f"{command} {checkpoints}")
    learn = ["--label", "y", "--learner", "bsgd", "--scope", "partition"]
    place = {"topic": f"kafka://{bootstrap}/{new_topic(**{'cleanup.policy': 'compact'})}", "folder": str(tmp_path / "state")}
    words = [command, topic.url, "--group", group, *(learn if command == "learn" else ["--model", str(model)])]
    words += ["--to", f"kafka://{bootstrap}/{out}" if to == "topic" else str(tmp_path / "out.csv"), "--columns", "id:drop"]
    # A divisor of the numbers of rows: an open transaction hides all that is behind it, for 30 s where no more rows come.
    words += ["--checkpoint-every", "10", *(["--checkpoint", place[checkpoints]] if checkpoints else [])]
    processes = []

    def start():
        with (tmp_path / "log").open("a") as log:
            processes.append(Command(words, stdout=log, stderr=log, limits=LIMITS))

    def read():
        if to == "topic":
            return count(read_topic(bootstrap, out))
        lines = [line for path in tmp_path.glob("out-*.csv") for line in csv.DictReader(path.read_text().splitlines())]
        return count(line for line in lines if line["offset"])  # the last line may be half written

    def wait_for(n):
        def reached():
            assert {process.poll() for process in processes} <= {None, -signal.SIGKILL}, (tmp_path / "log").read_text()
            return len(read()) >= n

        until(reached, every=0.3)

    try:
        start()
        start()
        wait_for(100)
        for _ in range(3 if OF_RELEASE else 1):
            topic(150)
            time.sleep(rng.uniform(0.0, 0.3))
            killed = rng.choice([process for process in processes if process.poll() is None])
            killed.kill()
            killed.wait()
            start()
            wait_for(N_PARTITIONS * (topic.count() - 100))
        wait_for(N_PARTITIONS * topic.count())
        for process in processes:
            process.terminate()
        assert {process.wait(PATIENCE) for process in processes} <= {0, 130, -signal.SIGTERM, -signal.SIGKILL}
    finally:
        for process in processes:
            process.kill()
            process.wait()
    counts = read()
    assert set(counts) == {(partition, offset) for partition in range(N_PARTITIONS) for offset in range(topic.count())}
    assert not is_once or max(counts.values()) == 1


@each_library
def test_offsets_are_committed_after_predictions(bootstrap, new_topic, topic, model, admin, call):
    out, group = new_topic(), uuid.uuid4().hex
    words = ["predict", topic.url, "--model", model, "--group", group, "--columns", "id:drop", "--stop-at-end", "--quiet"]
    words += ["--to", f"kafka://{bootstrap}/{out}", "--passthrough", "id"]
    call(*words, "--max-rows", 120)
    (offsets,) = admin.list_group_offsets(group).values()
    assert sum(member.offset for member in offsets.values()) == 120
    topic(10)
    end = json.loads(call(*words).stdout.splitlines()[-1])
    assert (end["event"], end["rows"]) == ("end", 4 * 60 - 120)
    predictions = read_topic(bootstrap, out)
    assert set(count(predictions).values()) == {1}
    assert all(line["id"] == line["offset"] for line in predictions)
    learner = load(model)
    for line in predictions:
        x = rows_of(line["id"], 1)[0].x
        assert line["y_pred"] == learner.predict_one({name: x[name] for name in "ab"})
    assert call(*words).stdout.splitlines()[-1].startswith('{"event": "end", "rows": 0')


@pytest.mark.broker
def test_files_and_dead_letters_of_partitions(bootstrap, topic, tmp_path, call, producer):
    producer.send(topic.name, b"no object", partition=2)
    producer.flush()
    words = ["learn", topic.url, "--label", "y", "--learner", "bsgd", "--group", uuid.uuid4().hex, "--scope", "partition"]
    words += ["--checkpoint", tmp_path / "state", "--to", tmp_path / "out.jsonl", "--on-error", tmp_path / "bad.jsonl"]
    words += ["--stop-at-end", "--columns", "id:drop", "--passthrough", "id"]
    (tmp_path / "out-1.jsonl").write_text("of somebody else\n")
    call(*words, status=2, says="out-1.jsonl exists, and streamsvm did not write it")
    (tmp_path / "out-1.jsonl").unlink()
    call(*words)
    topic(20)
    call(*words)
    for partition in range(N_PARTITIONS):
        lines = list(map(json.loads, (tmp_path / f"out-{partition}.jsonl").read_text().splitlines()))
        assert [line["id"] for line in lines] == [*range(70)]
        assert {line["partition"] for line in lines} == {partition}
    (letter,) = (tmp_path / "bad-2.jsonl").read_text().splitlines()
    assert json.loads(letter)["raw"] == "no object"
    alone = load(tmp_path / "state" / "partition-0")
    assert dumps(alone) == dumps(load(tmp_path / "state" / "partition-3"))  # of equal rows


@pytest.mark.broker
def test_a_file_that_another_worker_writes_is_waited_for(bootstrap, topic, model, tmp_path):
    from streamsvm.stream import FileSink

    path, waited = tmp_path / "out.csv", []
    busy = FileSink(path)

    def make_loop(source, checkpoints):
        return PredictionLoop(source, load(model), FileSink(path), checkpoints=checkpoints)

    worker = PartitionWorker(
        bootstrap,
        topic.name,
        JSONCodec("y"),
        group=uuid.uuid4().hex,
        folder=tmp_path / "state",
        make_loop=make_loop,
        stop_at_end=True,
    )

    def release(worker):
        waited.append(bool(worker.loops))
        if len(waited) == 3:
            busy.close()

    with closing(worker):
        worker.run(50, on_rows=release)
    assert waited[:3] == [False] * 3
    assert worker.rows == 50


@pytest.mark.broker
def test_all_partitions_follow_the_newest_model(bootstrap, new_topic, topic, model, tmp_path, call, monkeypatch):
    with CheckpointFolder(tmp_path / "models") as folder:
        folder.save(load(model), None, rows=500, position={})
    newer, n_reads = load(model), 0

    def read_newer(self):
        nonlocal n_reads
        n_reads += 1
        return FollowedModel(newer, 600) if n_reads == 2 else None

    for kind in (FollowedFolder, FollowedTopic):
        monkeypatch.setattr(kind, "read_newer", read_newer)
    out = new_topic()
    words = ["predict", topic.url, "--model", tmp_path / "models", "--follow", "--group", uuid.uuid4().hex, "--stop-at-end"]
    call(*words, "--to", f"kafka://{bootstrap}/{out}", "--columns", "id:drop")
    versions = {partition: [] for partition in range(N_PARTITIONS)}
    for line in read_topic(bootstrap, out):
        versions[line["partition"]].append(line["model"])
    assert sorted(versions.values(), key=sum)[1:] == [[600] * 50] * 3
    assert sum(map(len, versions.values())) == 200


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--to", "p.csv"], "--group with --to p.csv needs --checkpoint DIR, which all processes share"),
        (["--to", "-", "--on-error", "./bad"], "--group with --on-error ./bad needs --checkpoint DIR"),
    ],
)
def test_files_need_checkpoints(words, reason, call):
    call("predict", "kafka://127.0.0.1:1/rows", "--model", "state", "--group", "g", *words, status=2, says=reason)


def test_a_file_cannot_be_shared(model, tmp_path, call):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    words = ["predict", tmp_path / "rows.csv", "--model", model, "--to", "-", "--group", "g"]
    call(*words, status=1, says="no partitions that workers could share")
