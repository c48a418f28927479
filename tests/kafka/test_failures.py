"""The scenarios of docs/failures.md: its messages are those of runs, and its tests exist."""

import ast
import contextlib
import io
import json
import logging
import os
import re
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from command_words import main
from kafka_broker import PASSWORD, certify, each_library
from patience import until
from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.files import container
from streamsvm.stream import CheckpointFolder, FileSink, load
from streamsvm.stream.checkpoint import TakenOverError
from streamsvm.stream.endpoints import Row
from streamsvm.stream.logs import log_as_json
from streamsvm.stream.rows import find_learner
from streamsvm_kafka import JSONCodec, KafkaSource, TopicCheckpoints, connection, publish, sink

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "failures.md").read_text().split())
JSON = JSONCodec("y")
NO_OLD, COMPACT = {"message.timestamp.before.max.ms": "1000"}, {"cleanup.policy": "compact"}


def rows_of(numbers):
    return [Row({"a": float(i % 7), "b": float(i % 3)}, int(i % 7 > 3)) for i in numbers]


@pytest.fixture
def expect_documented(capfd, caplog, tmp_path):
    """Returns a function that runs the command line, and checks that docs/failures.md quotes its message."""

    def run(*words, status=1, shortened=False, **names):
        caplog.clear()
        capfd.readouterr()
        with caplog.at_level(logging.WARNING):
            assert main(words) == status
        said = re.findall(r"^streamsvm: (?:warning: )?(.*)", capfd.readouterr().err, re.MULTILINE)
        said += [record.getMessage() for record in caplog.records if record.name.startswith("streamsvm")]
        run.check([text.partition(" (")[0] if shortened else text for text in said], **names)
        return said

    def check(said, **names):
        assert said
        for text in said:
            for name, value in {"DIR": tmp_path, **names}.items():
                text = text.replace(str(value), name)
            assert text in PAGE

    run.check = check
    return run


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for path, name in named:
        functions = [node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
        assert name in functions, f"{path}::{name}"


def csv_of(path, labels):
    path.write_text("a,b,y\n" + "".join(f"{i % 7},{i % 3},{y}\n" for i, y in enumerate(labels)))
    return path


def test_missing_broker_at_start(expect_documented, pauses, monkeypatch):
    words = "learn", "kafka://127.0.0.1:1/rows", "--label", "y"
    expect_documented(*words, HOST="127.0.0.1:1")
    monkeypatch.setenv("STREAMSVM_KAFKA_OUTAGE_SECONDS", "60")
    expect_documented(*words, HOST="127.0.0.1:1")
    assert 50.0 < sum(pauses) < 60.0


@pytest.mark.filterwarnings("default")
def test_a_disk_that_is_full(expect_documented, tmp_path, monkeypatch):
    rows = csv_of(tmp_path / "rows.csv", [int(i % 7 > 3) for i in range(500)])
    words = "learn", rows, "--label", "y", "--checkpoint-every", 100, "--checkpoint"
    assert main([*words, tmp_path / "whole"]) == 0
    sync, left = os.fsync, [3]

    def fails(file):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fails)
        expect_documented(*words, tmp_path / "state", ROWS="000000000200")
    assert [path.name for path in (tmp_path / "state").glob("*.ckpt*")] == ["checkpoint-000000000100.ckpt"]
    assert main([*words, tmp_path / "state"]) == 0
    whole_path, state = (tmp_path / name / "checkpoint-000000000500.ckpt" for name in ("whole", "state"))
    assert whole_path.read_bytes() == state.read_bytes()


@pytest.mark.filterwarnings("default")
def test_predictions_are_moved_or_removed(expect_documented, tmp_path):
    rows, out = csv_of(tmp_path / "rows.csv", [int(i % 7 > 3) for i in range(500)]), tmp_path / "out.csv"
    words = "learn", rows, "--label", "y", "--to", out, "--checkpoint", tmp_path / "state"

    def check(*more, rows):
        assert len(expect_documented(*words, *more, status=0, ROWS=rows)) == 1

    assert main([*words, "--max-rows", 100]) == 0
    out.rename(tmp_path / "out.csv.1")
    out.touch()
    check("--max-rows", 100, rows=100)
    assert sorted(tmp_path.glob("out*")) == [out]
    out.unlink()
    check("--max-rows", 100, rows=200)
    out.write_text("my notes\n")
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--max-rows", 100])
    assert out.read_text() == "my notes\n"
    check("--max-rows", 100, "--overwrite", rows=300)
    assert (tmp_path / "out.000001.csv").read_text() == "my notes\n"
    with FileSink(out) as sink:
        sink.write_many({"row": range(300), "y_pred": [1] * 300})
        out.unlink()
        with pytest.warns(UserWarning, match="a new file begins") as warned:
            sink.write_many({"row": range(300, 400), "y_pred": [1] * 100})
    expect_documented.check([str(warning.message) for warning in warned], ROWS=300)


def test_a_checkpoint_of_a_newer_version(expect_documented, tmp_path, monkeypatch):
    rows = csv_of(tmp_path / "rows.csv", [int(i % 7 > 3) for i in range(50)])
    words = "learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"
    with monkeypatch.context() as patch:
        patch.setattr(container, "VERSION", 9)
        assert main(words) == 0
    expect_documented(*words, ROWS="000000000050")


def test_two_learners_with_one_folder(expect_documented, tmp_path):
    rows = csv_of(tmp_path / "rows.csv", [int(i % 7 > 3) for i in range(50)])
    with CheckpointFolder(tmp_path / "state"):
        expect_documented("learn", rows, "--label", "y", "--checkpoint", tmp_path / "state")


def test_the_type_of_labels_flips(expect_documented, tmp_path):
    rows = csv_of(tmp_path / "rows.csv", [int(i % 7 > 3) for i in range(50)] + ["yes"])
    expect_documented("learn", rows, "--label", "y")
    assert main(["learn", rows, "--label", "y", "--on-error", "skip", "--checkpoint", tmp_path / "state"]) == 0
    good = csv_of(tmp_path / "good.csv", [int(i % 7 > 3) for i in range(50)])
    assert main(["learn", good, "--label", "y", "--checkpoint", tmp_path / "good"]) == 0
    assert dumps(load(tmp_path / "state")) == dumps(load(tmp_path / "good"))


@pytest.mark.filterwarnings("default")
def test_columns_change(expect_documented, tmp_path):
    rows = tmp_path / "rows.jsonl"
    words = "learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"
    old = [json.dumps({"a": i % 7, "b": i % 3, "y": i % 2}) for i in range(1000)]
    rows.write_text("\n".join(old) + "\n")
    assert main(words) == 0
    new = [json.dumps({"b": i % 3, "c": i % 3, "y": i % 2}) for i in range(600)]
    rows.write_text("\n".join(old + new) + "\n")
    expect_documented(*words, status=0)


@pytest.mark.filterwarnings("default")
def test_labels_of_other_keys_and_times(expect_documented, tmp_path):
    at = 1_700_000_000
    rows, labels = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    words = "learn", rows, "--label", "y", "--labels", f"{labels}?key=id&time=at"
    good = [{"id": i, "at": at + i, "a": float(i % 7)} for i in range(20)]

    def write(extra=None, label=0):
        rows.write_text("".join(json.dumps(row) + "\n" for row in [*good, *([extra] if extra else [])]))
        known_labels = [{"id": i + label, "at": at + i + 5, "y": i % 2} for i in range(20)]
        labels.write_text("".join(json.dumps(row) + "\n" for row in known_labels))

    write({"at": at + 30, "a": 1.0})
    expect_documented(*words)
    write({"id": 99, "at": 4_000_000_000, "a": 1.0})
    expect_documented(*words)
    write(label=1000)
    expect_documented(*words, status=0)
    good.pop()
    write({"id": 99, "at": at + 432_000, "a": 1.0}, label=1000)
    expect_documented(*words, status=0)


@pytest.mark.broker
@pytest.mark.filterwarnings("default")
def test_messages_after_checkpoint_are_gone(expect_documented, bootstrap, new_topic, admin, tmp_path):
    topic = new_topic()
    names = {"HOST": bootstrap, "rows": topic}
    words = "learn", f"kafka://{bootstrap}/{topic}", "--label", "y", "--stop-at-end", "--checkpoint", tmp_path / "state"
    publish(rows_of(range(100)), bootstrap, topic, JSON)
    assert main([*words, "--max-rows", "60"]) == 0
    admin.delete_records({TopicPartition(topic, 0): 75})
    expect_documented(*words, **names)
    expect_documented(*words, "--from", "earliest", status=0, **names)
    assert find_learner(load(tmp_path / "state")).n_learned == 85
    admin.delete_topics([topic])
    until(lambda: topic not in admin.list_topics(), every=0.05)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    publish(rows_of(range(10)), bootstrap, topic, JSON)
    expect_documented(*words, **names)


def test_another_source(expect_documented, tmp_path):
    rows, new, folder = (tmp_path / name for name in ("rows.csv", "new.csv", "data"))
    folder.mkdir()
    for i, path in enumerate((rows, new, folder / "1.csv", folder / "2.csv")):
        csv_of(path, ["yes" if (j + i) % 7 > 3 else "no" for j in range(60)])
    state = "--checkpoint", tmp_path / "state"
    assert main(["learn", rows, "--label", "y", *state]) == 0
    expect_documented("learn", rows, *state, "--label", "b")
    expect_documented("learn", rows, *state, "--window", "50", status=0)
    expect_documented("learn", new, *state)
    expect_documented("learn", new, *state, "--from", "earliest", status=0)
    state = "--checkpoint", tmp_path / "of-data"
    assert main(["learn", folder, "--label", "y", *state, "--max-rows", "90"]) == 0
    csv_of(folder / "1.csv", ["yes"] * 60)
    expect_documented("learn", folder, *state)


@each_library
def test_messages_of_open_transaction_are_left_for_later(bootstrap, new_topic, producer, call, tmp_path):
    topic = new_topic()
    words = "learn", f"kafka://{bootstrap}/{topic}", "--label", "y", "--stop-at-end", "--checkpoint", tmp_path / "state"
    publish(rows_of(range(50)), bootstrap, topic, JSON)
    with KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic, transaction_timeout_ms=900_000) as other_producer:
        other_producer.init_transactions()
        other_producer.begin_transaction()
        for row in rows_of(range(10)):
            other_producer.send(topic, JSON.encode(row))
        other_producer.flush()
        publish(rows_of(range(5)), bootstrap, topic, JSON)
        call(*words)
        assert find_learner(load(tmp_path / "state")).n_learned == 50
        other_producer.commit_transaction()
    call(*words)
    assert find_learner(load(tmp_path / "state")).n_learned == 65


@each_library
def test_a_broker_that_names_a_wrong_address(expect_documented, broker, new_topic, tmp_path):
    topic, rows = new_topic(), csv_of(tmp_path / "rows.csv", [i % 7 > 3 for i in range(60)])
    names = {"HOST": broker.wrong}
    expect_documented("learn", f"kafka://{broker.wrong}/{topic}", "--label", "y", **names)
    expect_documented("learn", rows, "--label", "y", "--quiet", "--to", f"kafka://{broker.wrong}/{topic}", **names)
    expect_documented("learn", rows, "--label", "y", "--quiet", "--checkpoint", f"kafka://{broker.wrong}/{topic}", **names)


@each_library
def test_output_topic_refuses_old_timestamps(expect_documented, bootstrap, new_topic, producer):
    topic, strict, models = new_topic(**{"retention.ms": "-1"}), *(new_topic(**configs) for configs in (NO_OLD, COMPACT))
    for row in rows_of(range(50)):
        producer.send(topic, JSON.encode(row), timestamp_ms=1_700_000_000_000)
    producer.flush()
    words = "learn", f"kafka://{bootstrap}/{topic}", "--label", "y", "--stop-at-end", "--to", f"kafka://{bootstrap}/{strict}"
    expect_documented(*words, "--quiet", HOST=bootstrap, predictions=strict)
    expect_documented(*words, "--quiet", "--checkpoint", f"kafka://{bootstrap}/{models}?name=n", HOST=bootstrap, models=models)


@pytest.mark.broker
@pytest.mark.kafka_python
def test_refused_certificate_and_password(expect_documented, broker, as_alice, new_topic, tmp_path, monkeypatch, soon):
    words = "learn", f"kafka://{broker.sasl_ssl}/{new_topic()}", "--label", "y"
    monkeypatch.setenv("STREAMSVM_KAFKA_SASL_PLAIN_PASSWORD", PASSWORD[::-1])
    said = soon(partial(expect_documented, *words, shortened=True, HOST=broker.sasl_ssl))
    assert PASSWORD[::-1] not in "".join(said)
    monkeypatch.setenv("STREAMSVM_KAFKA_SSL_CAFILE", str(certify(tmp_path, "other")))
    expect_documented(*words, HOST=broker.sasl_ssl)


@each_library
def test_output_topics_with_small_message_limit(expect_documented, new_topic, bootstrap, call, tmp_path):
    rows = csv_of(tmp_path / "rows.csv", [i % 7 > 3 for i in range(300)])
    learn = ["learn", rows, "--label", "y", "--quiet", "--learner", "bsgd"]
    small = new_topic(**{"max.message.bytes": "1000"})  # the limit also applies to batches of predictions
    call(*learn, "--to", f"kafka://{bootstrap}/{small}")
    with contextlib.closing(KafkaSource(bootstrap, small, JSONCodec("y_true"), stop_at_end=True)) as source:
        assert [row.x["row"] for row in source] == list(range(300))
    tiny, models = new_topic(**{"max.message.bytes": "90"}), new_topic(**{"cleanup.policy": "compact"})
    expect_documented(*learn, "--to", f"kafka://{bootstrap}/{tiny}", HOST=bootstrap, predictions=tiny)
    transaction = "--checkpoint", f"kafka://{bootstrap}/{models}", "--to", f"kafka://{bootstrap}/{small}"
    expect_documented(*learn, *transaction, HOST=bootstrap, predictions=small)


@each_library
def test_fast_response_is_within_minimum_delivery_time(new_topic, bootstrap, call, tmp_path, monkeypatch):
    rows = csv_of(tmp_path / "rows.csv", [i % 7 > 3 for i in range(60)])
    monkeypatch.setattr(sink, "MIN_DELIVERY_SECONDS", 19.0)  # not 2: on a busy machine, even a fast response may take that long
    monkeypatch.setenv("STREAMSVM_KAFKA_OUTAGE_SECONDS", "0.5")
    call("learn", rows, "--label", "y", "--quiet", "--learner", "bsgd", "--to", f"kafka://{bootstrap}/{new_topic()}")


@each_library
def test_a_topic_that_may_not_be_written(expect_documented, broker, as_alice, rules, new_topic, tmp_path):
    topic = new_topic()
    of_topic = ResourcePattern(ResourceType.TOPIC, topic)
    rows = csv_of(tmp_path / "rows.csv", [i % 7 > 3 for i in range(60)])
    words = "learn", rows, "--label", "y", "--quiet", "--to", f"kafka://{broker.sasl_ssl}/{topic}"
    with rules(ACL("User:alice", "*", ACLOperation.WRITE, ACLPermissionType.DENY, of_topic)):
        expect_documented(*words, HOST=broker.sasl_ssl, predictions=topic)


@each_library
def test_source_without_group_needs_no_group_right(broker, as_alice, rules, new_topic, bootstrap, call):
    topic = new_topic()
    publish(rows_of(range(50)), bootstrap, topic, JSON)
    of_groups = ResourcePattern(ResourceType.GROUP, "streamsvm")
    refusal = ACL("User:alice", "*", ACLOperation.ALL, ACLPermissionType.DENY, of_groups)
    words = "learn", f"kafka://{broker.sasl_ssl}/{topic}", "--label", "y", "--stop-at-end", "--quiet"
    with rules(refusal):
        assert call(*words, "--learner", "bsgd").end["learned"] == 50


@pytest.mark.broker
def test_a_message_of_12_megabytes(expect_documented, new_topic, bootstrap, producer, tmp_path):
    topic = new_topic(**{"max.message.bytes": str(2**24)})
    for row in rows_of(range(30)):
        producer.send(topic, JSON.encode(row))
    producer.send(topic, b'{"a": "%s", "y": 1}' % (b"x" * 12_000_000))
    for row in rows_of(range(30)):
        producer.send(topic, JSON.encode(row))
    producer.flush()
    words = "learn", f"kafka://{bootstrap}/{topic}", "--label", "y", "--stop-at-end", "--checkpoint", tmp_path / "state"
    expect_documented(*words, HOST=bootstrap, rows=topic)
    letters = tmp_path / "letters.jsonl"
    assert main([*words, "--on-error", letters]) == 0
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert letter["bytes"] > 12_000_000
    assert letters.stat().st_size < 200_000
    assert find_learner(load(tmp_path / "state")).n_learned == 60


@pytest.mark.broker
def test_broker_becomes_unreachable(expect_documented, bootstrap, new_topic, caplog, monkeypatch):
    topic = new_topic()
    opened = KafkaSource(bootstrap, topic, JSON)
    monkeypatch.setattr(opened._reader, "_connection", connection.Connection("127.0.0.1:1", {"client": "confluent-kafka"}))
    with caplog.at_level(logging.WARNING):
        opened._reader._refresh_partitions()
    opened.close()
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("kafka.")]  # it warns of slow machines
    expect_documented.check([message.replace("127.0.0.1:1", bootstrap) for message in ours], HOST=bootstrap, rows=topic)


@pytest.mark.broker
def test_two_learners_with_one_name(expect_documented, bootstrap, new_topic):
    models, stream = new_topic(**{"cleanup.policy": "compact"}), io.StringIO()
    with (
        log_as_json(stream),
        TopicCheckpoints(bootstrap, models, "rows") as older,
        TopicCheckpoints(bootstrap, models, "rows") as newer,
    ):
        newer.save(BSGDClassifier(budget=3), None, rows=1, position={})
        with pytest.raises(TakenOverError) as error:
            older.save(BSGDClassifier(budget=3), None, rows=1, position={})
    expect_documented.check([str(error.value)], HOST=bootstrap, models=models)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (line,) = [line for line in lines if line.get("event") == "checkpoint"]
    assert (line["rows"], line["path"]) == (1, newer.path)


def test_labels_of_partitions_are_refused(call, tmp_path):
    words = ["--label", "y", "--labels", "kafka://127.0.0.1:1/labels?key=id", "--group", "g", "--checkpoint", tmp_path]
    call("learn", "kafka://127.0.0.1:1/rows", *words, "--scope", "partition", status=2, says="--labels is of one model")
