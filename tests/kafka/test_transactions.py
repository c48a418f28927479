"""Checkpoints in a topic, predictions and offsets in one transaction: killed, fenced, expired, followed; and hostile messages."""

import contextlib
import json
import random
import threading
import time
import uuid
from functools import partial
from unittest import mock

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerIdMappingError, MessageSizeTooLargeError, OffsetOutOfRangeError

import kills
from loops import prediction
from partition_models import save as save_part
from patience import PATIENCE, until
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.stream.checkpoint import CheckpointError, TakenOverError
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.open import open_models
from streamsvm_kafka import FollowedTopic, TopicCheckpoints, checkpoints, model_topic, transaction

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("client_library")]


@pytest.fixture
def models(new_topic):
    return new_topic(**{"cleanup.policy": "compact"})


@pytest.fixture
def opened(bootstrap):
    """Opens checkpoints in a topic, and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def open_(topic, name="rows", **options):
            checkpoints_found = TopicCheckpoints(bootstrap, topic, name, **options)
            stack.callback(checkpoints_found.close)
            return checkpoints_found

        yield open_


def save(place, rows, budget=3):
    return place.save(BSGDClassifier(budget=budget), None, rows=rows, position={})


def send(producer, topic, *messages):
    for key, value in messages:
        producer.send(topic, value, key=key, partition=0)
    producer.flush()


def predictions(bootstrap, topic, isolation="read_committed"):
    return [json.loads(message.value)["row"] for message in kills.committed(bootstrap, topic, isolation=isolation)]


def committed(bootstrap, group, *topics):
    with contextlib.closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)) as consumer:
        return [consumer.committed(TopicPartition(topic, 0)) for topic in topics]


def test_killed_amid_rows_and_transactions(bootstrap, new_topic, models):
    rows, out = 1200, new_topic()
    topic = new_topic()
    url = kills.publish_rows(bootstrap, topic, rows)
    group = f"group-{uuid.uuid4().hex[:8]}"
    counts, *same = kills.kill_with_topic(url, bootstrap, models, out, rows, 2, random.randrange(10**6), group)
    assert sum(counts.values()) == 2
    assert same == [True, True]
    assert committed(bootstrap, group, topic) == [rows]


def test_predictions_are_seen_with_their_checkpoint(bootstrap, new_topic, models, opened):
    out, place = new_topic(), opened(models)
    assert place.max_seconds is None
    sink = place.open_sink(out)
    assert place.max_seconds == checkpoints.TRANSACTION_SECONDS / 2
    assert place.newest() is None
    sink.write(prediction(0, 1, 1, None))
    assert sink.flush() == {"topic": out}
    assert predictions(bootstrap, out) == []
    save(place, 1)
    assert predictions(bootstrap, out) == [0]
    sink.write(prediction(1, 1, 1, None))
    sink.flush()
    place.close()
    assert predictions(bootstrap, out) == [0]
    assert predictions(bootstrap, out, "read_uncommitted") == [0, 1]
    assert opened(models).newest().header["rows"] == 1


def test_older_process_with_same_name_is_fenced(bootstrap, new_topic, models, opened):
    out, older = new_topic(), opened(models)
    sink = older.open_sink(out)
    save(older, 1)
    sink.write(prediction(0, 1, 1, None))
    sink.flush()
    other_place = opened(models, "another")
    newer = opened(models)
    raises(r"name=rows: another process .* is fenced.* \?name=", save, older, 2, error=TakenOverError)
    with pytest.raises(TakenOverError):
        sink.write(prediction(1, 1, 1, None))
    assert newer.newest().header["rows"] == 1
    save(newer, 3)
    save(other_place, 7)
    assert predictions(bootstrap, out) == []
    assert (newer.newest().header["rows"], other_place.newest().header["rows"]) == (3, 7)


def test_fenced_process_does_not_fence_its_successor(new_topic, models, opened):
    out, older = new_topic(), opened(models)
    sink = older.open_sink(out)
    save(older, 1)
    sink.write(prediction(0, 1, 1, None))
    sink.flush()
    newer = opened(models)
    newer_sink = newer.open_sink(out)
    newer_sink.write(prediction(0, 1, 1, None))
    newer_sink.flush()  # both are in the middle of a transaction
    sink.write(prediction(1, 1, 1, None))
    with pytest.raises(TakenOverError):
        sink.flush()
    time.sleep(1.0)  # meanwhile, kafka-python without our change would fence the newer process
    save(newer, 2)
    assert newer.newest().header["rows"] == 2


def test_a_transaction_that_was_open_for_too_long(bootstrap, new_topic, models, opened):
    place, out = opened(models, transaction_seconds=3.0), new_topic()
    sink = place.open_sink(out)
    sink.write(prediction(0, 1, 1, None))
    sink.flush()
    key = TopicPartition(out, 0)
    with contextlib.closing(KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")) as consumer:
        until(lambda: consumer.end_offsets([key])[key] > 0, every=0.1)  # the broker has aborted it
    raises(r"was open for \d+ s, and the broker has aborted it after 3 s.*Start again", save, place, 1, error=CheckpointError)
    place.close()
    assert opened(models).newest() is None
    assert predictions(bootstrap, out) == []


@pytest.mark.kafka_python
def test_commit_without_response(models, opened, monkeypatch):
    place = opened(models)
    save(place, 1)
    never_set = threading.Event()
    monkeypatch.setattr(place._transaction._producer._producer, "commit_transaction", never_set.wait)
    monkeypatch.setattr(place._transaction, "_seconds", 0.1)
    raises(
        "not known whether it is committed. Start again: the run continues from the newest", save, place, 2, error=CheckpointError
    )
    raises("not known", save, place, 3, error=CheckpointError)
    never_set.set()
    assert opened(models).newest().header["rows"] == 1


def test_expired_transactional_id(models, opened, monkeypatch):
    place = opened(models)
    save(place, 1)
    monkeypatch.setattr(place._transaction._producer, "send_messages", mock.Mock(side_effect=InvalidProducerIdMappingError()))
    raises(r"longer than transactional\.id\.expiration\.ms, .* Start again", save, place, 2, error=CheckpointError)


def test_a_large_model_in_a_topic_of_small_messages(new_topic, models, opened, monkeypatch):
    made = opened(f"streamsvm-test-{uuid.uuid4().hex[:12]}")
    facts = {"note": "x" * (32 << 20)}
    made.save(BSGDClassifier(budget=3), None, rows=1, position={}, **facts)
    made.save(BSGDClassifier(budget=4), None, rows=2, position={}, **facts)
    assert (made.newest().model.budget, len(made.newest().header["note"])) == (4, 32 << 20)
    small, place = opened(new_topic(**{"cleanup.policy": "compact", "max.message.bytes": "900"})), opened(models)
    message = r"larger than the topic allows .* Raise max.message.bytes"
    raises(message, save, small, 1, error=CheckpointError)
    raises(message, partial(place.save, **facts), BSGDClassifier(), None, rows=1, position={}, error=CheckpointError)
    monkeypatch.setattr(checkpoints, "MAX_CHECKPOINT_BYTES", 900)
    raises("a topic takes at most 900: use a folder", save, made, 3, error=CheckpointError)


def deleted(admin, topic, offset):
    """Delete what lies before an offset; whether that is there yet, as the mark of a commit comes after it."""
    try:
        admin.delete_records({TopicPartition(topic, 0): offset})
    except OffsetOutOfRangeError:
        return False
    return True


def test_model_topic_is_created_or_refused(bootstrap, new_topic, admin, opened):
    made = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
    save(opened(made), 1)
    options = {"compression_type": "gzip", "max_request_size": 1 << 28}
    with KafkaProducer(bootstrap_servers=bootstrap, **options) as stranger:
        bomb = stranger.send(made, bytes(66 << 20), key=b"rows", partition=0)
        with pytest.raises(MessageSizeTooLargeError):
            bomb.get(PATIENCE)
    admin.delete_topics([made])
    raises("3 partitions", opened, new_topic(partitions=3), error=CheckpointError)
    for policy in ("delete", "compact,delete"):
        topic = new_topic(**{"cleanup.policy": policy})
        with pytest.warns(UserWarning, match=f"cleanup.policy={policy}, so retention can remove the newest checkpoint"):
            place = opened(topic)
        save(place, 1)
        until(partial(deleted, admin, topic, 2))  # it, and the mark of its commit
        with pytest.warns(UserWarning, match="no checkpoint of 'rows': .* removed with all before offset 2"):
            assert place.newest() is None
    raises("'a b' is not a valid model name", opened, made, "a b", error=CheckpointError)
    raises("no topic", FollowedTopic(bootstrap, made, "rows").read, error=StreamError)


def test_offsets_of_two_topics_that_are_joined(bootstrap, new_topic, models, opened):
    rows, group = new_topic(), f"group-{uuid.uuid4().hex[:8]}"
    place = opened(models, group=group)
    position = {"rows": {"topic": rows, "offsets": {"0": 17}}, "labels": {"topic": models, "offsets": {"0": 3}}}
    place.save(BSGDClassifier(), None, rows=1, position=position)
    assert committed(bootstrap, group, rows, models) == [17, 3]


def test_strange_messages(models, opened, producer):
    place = opened(models)
    send(producer, models, (b"rows", b"garbage"))
    raises("messages of a model 'rows', but no checkpoint: the message at offset 0 is not", place.newest, error=CheckpointError)
    save(place, 1)
    assert place.newest().header["rows"] == 1
    send(producer, models, (b"rows", b"garbage"))
    with pytest.warns(UserWarning, match="is not a checkpoint: it is cut off.* Continuing from the one before it"):
        assert place.newest().header["rows"] == 1
    save(place, 2)
    assert place.newest().header["rows"] == 2


def test_follower_skips_invalid_checkpoints(bootstrap, models, opened, producer):
    place = opened(models)
    send(producer, models, (b"rows", b"garbage"))
    waited = []
    with contextlib.closing(FollowedTopic(bootstrap, models, "rows", seconds=0.0)) as follower:
        waiting = threading.Thread(target=lambda: waited.append(follower.wait_for_first()))
        waiting.start()
        with pytest.warns(UserWarning, match="but no checkpoint: the message at offset 0 is not") as warned:
            until(lambda: len(warned) > 0)
        save(place, 1)
        waiting.join(PATIENCE)
        follower.stop()
        waiting.join(PATIENCE)
    assert [checkpoints_found.header["rows"] for checkpoints_found in waited] == [1]


def test_the_end_is_not_hidden_by_another_transaction(bootstrap, models, opened, monkeypatch):
    stranger = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex, transaction_timeout_ms=900_000)
    stranger.init_transactions()
    stranger.begin_transaction()
    stranger.send(models, b"x", key=b"x").get(PATIENCE)
    place = opened(models)
    save(place, 5)  # committed behind an open transaction, so that read_committed consumers do not see it
    with monkeypatch.context() as patch:
        patch.setattr(model_topic, "OPEN_TRANSACTION_SECONDS", 0.5)
        raises("transaction of another producer is open there", place.newest, error=CheckpointError)
    ending = threading.Timer(0.5, stranger.abort_transaction)
    ending.start()
    assert place.newest().header["rows"] == 5
    ending.join()
    stranger.close()


def test_a_follower_takes_newer_models(bootstrap, models, opened, producer, monkeypatch):
    monkeypatch.setattr(model_topic, "FIRST_TAIL_MESSAGES", 2)
    place, other_place = opened(models, "rows"), opened(models, "other")
    follower = FollowedTopic(bootstrap, models, "rows", seconds=0.0)
    with contextlib.closing(follower):
        waited = []
        waiting = threading.Thread(target=lambda: waited.append(follower.wait_for_first()))
        waiting.start()
        save(other_place, 1)
        save(place, 1)
        waiting.join(PATIENCE)
        assert waited[0].header["rows"] == 1

        def versions(n):
            checkpoints_found = []

            def all_found():
                checkpoints_found.extend(model.version for model in (follower.read_newer(),) if model is not None)
                return len(checkpoints_found) >= n

            until(all_found, every=0.05)
            return checkpoints_found

        save(place, 2)
        assert versions(1) == [2]
        send(producer, models, (b"rows", b"nothing"))
        with pytest.warns(UserWarning, match="is not a checkpoint: it is cut off.*: the earlier model stays") as warned:
            until(lambda: follower.read_newer() is None and len(warned) > 0, every=0.05)
        for rows in (4, 5, 6, 7):
            save(other_place, rows)
        save(place, 8)
        assert versions(1) == [8]
        assert follower.read_newer() is None


def test_a_follower_waits_for_a_topic(bootstrap, opened, caplog):
    models = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
    with contextlib.closing(FollowedTopic(bootstrap, models, "rows", seconds=0.1)) as follower:
        raises(f"there is no topic '{models}'", follower.read, error=StreamError)
        waited = []
        waiting = threading.Thread(target=lambda: waited.append(follower.wait_for_first()))
        waiting.start()
        until(lambda: "waiting for the first checkpoint in" in caplog.text)
        place = opened(models)
        place.save_start({})
        save(place, 7)
        waiting.join(PATIENCE)
        assert waited[0].header["rows"] == 7


def test_command_lines(bootstrap, new_topic, opened, call, monkeypatch):
    models = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
    place, topic = f"kafka://{bootstrap}/{models}", new_topic()
    rows = kills.publish_rows(bootstrap, topic, 700)
    learn = ["learn", rows, "--label", "y", "--checkpoint", place, "--stop-at-end", "--to", f"kafka://{bootstrap}/{new_topic()}"]
    call(*learn)
    kills.publish_rows(bootstrap, topic, 1)
    model = f"{place}?name={topic}"
    assert "700" in call("inspect", model).stdout
    predict = ["predict", rows, "--model", model, "--stop-at-end", "--to", "-"]
    assert [line | {"model": 700} for line in call(*predict).rows] == call(*predict, "--follow").rows

    def fenced(self, *arguments):
        opened(models, topic)
        return commit(self, *arguments)

    commit = transaction.Transaction.commit
    monkeypatch.setattr(transaction.Transaction, "commit", fenced)
    call(*learn, status=1, says="is fenced")


def test_merged_models_go_to_a_topic_that_followers_read(bootstrap, tmp_path, call):
    url = f"kafka://{bootstrap}/models-{uuid.uuid4().hex}"
    for number in range(2):
        save_part(tmp_path / "state" / f"partition-{number}", 100, number, label="y")
    call("merge", tmp_path / "state", "--to", url)
    models = open_models(f"{url}?name=merged")
    assert models.wait_for_first().header["rows"] == 200
    save_part(tmp_path / "state" / "partition-1", 150, 1, label="y")
    call("merge", tmp_path / "state", "--to", url)
    merged = {"partition-0": 100, "partition-1": 150}
    until(lambda: models.read().header["parts"] == merged)  # a broker ends a transaction after its producer
    models.close()
