"""Rows in one topic, their labels in another: joined by key in the order of message times, also if processes are killed."""

import json
import threading
import time

import pytest

from delayed_twin import check_replayed, streams
from killing import whole_and_killed
from loops import make_model
from patience import until
from streamsvm.stream import DelayedLabels, DelayedLearningLoop, JoinedSource
from streamsvm_kafka import JSONCodec, KafkaSource

pytestmark = pytest.mark.broker

BEGIN = 1_700_000_000.0  # of all streams
FOREVER = {"retention.ms": "-1"}  # retention goes by the messages' times, which are long past
PARTITIONS = {"rows": 2, "labels": 3}


def send(producer, topic, messages, partitions, time="timestamp"):
    """Write messages with their times, over all partitions; rows of one time keep their order, for they are of one partition."""
    for message in messages:
        fields = dict(message)
        stamp = round(1000 * fields["t"])
        if time == "timestamp":
            del fields["t"]
        producer.send(topic, json.dumps(fields).encode(), partition=hash_of(fields["id"]) % partitions, timestamp_ms=stamp)
    producer.flush()


def hash_of(key):
    return sum(map(ord, str(key)))


def in_milliseconds(messages):
    """The messages with times that Kafka can hold, no two alike."""
    return [message | {"t": BEGIN + i / 1000 + round(message["t"])} for i, message in enumerate(messages)]


@pytest.fixture
def topics(bootstrap, new_topic, producer):
    rows, labels = (in_milliseconds(stream) for stream in streams(7, 800, 60.0))
    names = {name: new_topic(partitions=n, **FOREVER) for name, n in PARTITIONS.items()}
    send(producer, names["rows"], rows, PARTITIONS["rows"])
    send(producer, names["labels"], labels, PARTITIONS["labels"])
    return rows, labels, {name: f"kafka://{bootstrap}/{topic}" for name, topic in names.items()}


def test_killed_learner_ends_with_the_bytes_of_a_replay(topics, tmp_path):
    rows, labels, urls = topics
    total = len(rows) + len(labels)
    options = {"labels": urls["labels"], "label": "y", "stop_at_end": True, "join": {"key": "id"}, "delayed": {"max_age": 60.0}}
    options["passthrough"] = ["id"]
    uninterrupted, killed = whole_and_killed(tmp_path, 4, total, urls["rows"], options)
    assert max(uninterrupted.glob("*.ckpt")).read_bytes() == max(killed.glob("*.ckpt")).read_bytes()
    check_replayed(killed, rows, labels, 60.0)


def opened(bootstrap, names, **options):
    sources = [KafkaSource(bootstrap, name, JSONCodec("y"), **options) for name in names]
    return JoinedSource(*sources, key="id")


def test_silent_stream_does_not_block_a_join(bootstrap, new_topic, producer):
    names = [new_topic(), new_topic(partitions=2)]
    source = opened(bootstrap, names)
    loop = DelayedLearningLoop(source, make_model(), delayed=DelayedLabels())
    thread = threading.Thread(target=loop.run)
    thread.start()

    def wait_for(**counts):
        until(lambda: all(loop.delayed.counts[name] == count for name, count in counts.items()))

    try:
        now = time.time()
        send(producer, names[0], [{"id": i, "t": now, "a": float(i)} for i in range(300)], 1)
        wait_for(pending=300)
        send(producer, names[1], [{"id": i, "t": now + 1, "y": i % 2} for i in range(400)], 2)
        wait_for(joined=300, early=100)
        send(producer, names[0], [{"id": i, "t": now + 2, "a": float(i)} for i in range(300, 400)], 1)
        wait_for(joined=400, pending=0, early=0)
    finally:
        loop.stop()
        thread.join()
        source.close()
    assert loop.rows == 800


def test_messages_that_cannot_be_joined(bootstrap, new_topic, producer, tmp_path):
    any_time = {"message.timestamp.after.max.ms": str(2**62)}  # by default, brokers refuse timestamps more than an hour ahead
    names = [new_topic(**{"max.message.bytes": str(2**24), **any_time, **FOREVER}), new_topic(**FOREVER)]
    stamp = {"timestamp_ms": 1000 * int(BEGIN)}
    producer.send(names[0], b'{"a": 1.0}', key=b"of the message", **stamp)
    producer.send(names[0], b'{"a": 1.0}', **stamp)
    producer.send(names[0], b'{"a": 1.0}', key=b"\xff", **stamp)
    producer.send(names[0], b'{"id": "long", "a": "%s"}' % (b"x" * 12_000_000), **stamp)
    producer.send(names[0], b'{"id": 9, "a": 2.0}', timestamp_ms=4_000_000_000_000)
    producer.send(names[1], b'{"id": "of the message", "y": true}', **stamp)
    producer.send(names[1], None, key=b"tombstone", **stamp)
    producer.flush()
    source, letters = opened(bootstrap, names, stop_at_end=True), tmp_path / "letters.jsonl"
    progress = DelayedLearningLoop(source, make_model(), delayed=DelayedLabels(), on_error=letters).run()
    source.close()
    reasons = [json.loads(line)["reason"] for line in letters.read_text().splitlines()]
    assert [reason.split(":")[0][:45] for reason in reasons] == [
        "the key is missing",
        r"the key is b'\xff'",
        "12000023 bytes; a row may have at most 104857",
        "the event time is 4000000000.0, which is in t",
    ]
    assert (progress.rows, progress.learned) == (6, 1)
