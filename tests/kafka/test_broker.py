"""What only a real Apache Kafka shows: transactions, retention, topics that come and go, brokers that go away."""

import base64
import itertools
import json
import threading
import uuid

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition, codec
from kafka.record import default_records

import poison
from loops import make_model
from patience import until
from refused import raises
from saved import dumps
from streamsvm.stream import LearningLoop, load
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import (
    BrokerUnreachableError,
    JSONCodec,
    KafkaSink,
    KafkaSource,
    connection,
    publish,
    reader,
    topics,
)
from streamsvm_kafka.clients.confluent import client as confluent_client
from streamsvm_kafka.clients.kafka_python import client as kafka_python_client
from streamsvm_kafka.clients.kafka_python import producer as kafka_python_producer

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("client_library")]

JSON = JSONCodec("y")


def rows_of(numbers):
    return [Row({"i": i}, i % 2) for i in numbers]


def all_of(chunk):
    return [chunk.row(i) for i in range(len(chunk))]


@pytest.fixture
def open_source(bootstrap):
    sources = []

    def open_(topic, codec=JSON, **options):
        sources.append(KafkaSource(bootstrap, topic, codec, **{"stop_at_end": True, **options}))
        return sources[-1]

    yield open_
    for opened in sources:
        opened.close()


def test_transaction_markers_are_not_lag(bootstrap, new_topic, open_source):
    topic = new_topic(partitions=2)
    with KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic, transaction_timeout_ms=900_000) as transactional:
        transactional.init_transactions()
        for number, finish in enumerate((transactional.commit_transaction, transactional.abort_transaction)):
            transactional.begin_transaction()
            for i in range(40):
                transactional.send(topic, JSON.encode(Row({"i": i}, 0)), partition=1 if i > 5 else number)
            transactional.flush()
            finish()
        endless, rows = open_source(topic, stop_at_end=False), []
        # With the markers, as nothing has been read. A transaction ends for its producer before they are written.
        until(lambda: endless.lag() == {0: 6 + 1, 1: 34 + 1 + 40 + 1})
        until(lambda: rows.extend(all_of(endless.read(1000))) or endless.lag() == {0: 0, 1: 0})
        assert len(rows) == 40
        position = endless.position
        bounded = open_source(topic)
        for _ in range(13):
            bounded.read(1)
        assert bounded.lag()[0] == 0
        assert bounded.lag()[1] > 30
        bounded = open_source(topic)
        bounded.seek(position)
        assert list(bounded) == []
        assert bounded.lag() == {0: 0, 1: 0}
        transactional.begin_transaction()
        transactional.send(topic, JSON.encode(Row({"i": 0}, 0)), partition=0)
        transactional.flush()
        until(
            lambda: endless.read(1000) is not None and endless.lag() == {0: 1, 1: 0}
        )  # the reader cannot see these messages yet
        transactional.commit_transaction()
        until(lambda: rows.extend(all_of(endless.read(1000))) or (len(rows) == 41 and endless.lag() == {0: 0, 1: 0}))


@pytest.mark.kafka_python
@pytest.mark.parametrize(
    ("compression", "writer"),
    [
        *(("gzip", "kafka-python"), ("lz4", "kafka-python"), ("snappy", "kafka-python")),
        *(("lz4", "librdkafka"), ("snappy", "librdkafka"), ("zstd", "librdkafka")),
    ],
)
def test_compressed_topics(bootstrap, new_topic, open_source, monkeypatch, compression, writer):
    rows = [Row({"a": i % 11 / 8, "b": i % 7}, i % 3) for i in range(600)]
    plain, topic, unpacked = new_topic(), new_topic(), []
    publish(rows, bootstrap, plain, JSON)
    if writer == "librdkafka":
        client = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": compression, "linger.ms": 50})
        for row in rows:
            client.produce(topic, JSON.encode(row), partition=0)
        client.flush()
    else:
        client = KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=50)
        for row in rows:
            client.send(topic, JSON.encode(row), partition=0)
        client.close()
    own = getattr(default_records, f"{compression}_decode")
    monkeypatch.setattr(default_records, f"{compression}_decode", lambda data: unpacked.append(own(data)) or unpacked[-1])
    assert list(open_source(topic)) == rows
    assert sum(map(len, unpacked)) > sum(len(JSON.encode(row)) for row in rows)
    models = [make_model() for _ in "ab"]
    for rows_topic, model in zip((topic, plain), models, strict=True):
        LearningLoop(open_source(rows_topic), model).run()
    assert dumps(models[0]) == dumps(models[1])


@pytest.mark.kafka_python
@pytest.mark.parametrize(("compression", "package"), [("lz4", "lz4"), ("snappy", "python-snappy"), ("zstd", "zstandard")])
def test_missing_decompression_package_is_named(bootstrap, new_topic, open_source, monkeypatch, compression, package):
    topic = new_topic()
    client = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": compression})
    client.produce(topic, b'{"a": 1.0, "y": 1}' + b" " * 1000)
    client.flush()
    monkeypatch.setattr(codec, f"has_{compression}", lambda: False)
    needs = f"{topic}: its messages are compressed by {compression}, which needs {package}: pip install"
    with pytest.raises(StreamError, match=needs):
        list(open_source(topic))


@pytest.mark.parametrize("prefetch", [10, 200])
def test_partitions_of_unequal_length_take_turns(bootstrap, new_topic, open_source, monkeypatch, prefetch):
    monkeypatch.setattr(reader, "PREFETCH_MESSAGES", prefetch)
    topic, lengths = new_topic(partitions=4), (300, 0, 10, 170)
    for partition, length in enumerate(lengths):
        publish(rows_of(range(10_000 * partition, 10_000 * partition + length)), bootstrap, topic, JSON, partition=partition)
    turns = itertools.zip_longest(*(range(10_000 * p, 10_000 * p + length) for p, length in enumerate(lengths)))
    expected = rows_of(i for turn in turns for i in turn if i is not None)
    assert list(open_source(topic)) == expected
    opened = open_source(topic)
    read = []
    for rows in (1, 2, 3, 5, 9, 100, 1000):
        read += itertools.islice(opened, rows)
        position = opened.position
        opened = open_source(topic)
        opened.seek(position)
    assert read == expected


def test_aborted_and_open_transactions_are_not_rows(bootstrap, new_topic, open_source):
    topic = new_topic()
    with KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic, transaction_timeout_ms=900_000) as transactional:
        transactional.init_transactions()
        for number in range(6):
            transactional.begin_transaction()
            for i in range(10):
                transactional.send(topic, JSON.encode(Row({"i": 10 * number + i}, 0)))
            transactional.flush()
            if number < 5:
                (transactional.abort_transaction if number % 2 else transactional.commit_transaction)()
        expected = [*range(10), *range(20, 30), *range(40, 50)]
        assert [row.x["i"] for row in open_source(topic)] == expected
        for rows in (5, 10, 15, 20, 29):
            first, second = open_source(topic), open_source(topic)
            read = list(itertools.islice(first, rows))
            second.seek(first.position)
            assert [row.x["i"] for row in [*read, *second]] == expected
        transactional.abort_transaction()
    # The pass ends behind the last row, with markers of transactions and an aborted one to pass over.
    assert [row.x["i"] for row in open_source(topic)] == expected


def test_paused_partitions_are_read_in_the_next_pass(new_topic, open_source, bootstrap, producer):
    topic = new_topic(partitions=2)
    for partition in range(2):  # the rest of the first pass are tombstones, a different number in each partition
        producer.send(topic, JSON.encode(Row({"i": partition}, 0)), partition=partition)
        for _ in range(10 + 2000 * partition):
            producer.send(topic, None, b"key", partition=partition)
    producer.flush()
    first = open_source(topic)
    assert len(list(itertools.islice(first, 2))) == 2
    position = first.position
    publish(rows_of(range(2, 8)), bootstrap, topic, JSON)
    second = open_source(topic)
    second.seek(position)
    assert sorted(row.x["i"] for row in second) == list(range(2, 8))
    assert second.lag() == {0: 0, 1: 0}
    second.close()
    second.lag()  # as another thread may ask for it


def test_message_larger_than_a_fetch_is_passed_over(new_topic, open_source, bootstrap):
    topic = new_topic(**{"max.message.bytes": str(8 << 20)})
    with KafkaProducer(bootstrap_servers=bootstrap, max_request_size=8 << 20) as large:
        for value in (b'{"i": 0}', b'{"i": "%s"}' % (b"x" * (4 << 20)), b'{"i": 2}'):
            large.send(topic, value)
    assert [row.x["i"] for row in open_source(topic) if isinstance(row, Row)] == [0, 2]


@pytest.mark.parametrize("to_topic", [False, True])
def test_fifty_kinds_of_invalid_rows(new_topic, bootstrap, producer, tmp_path, call, to_topic):
    order, rows = poison.mixed(poison.JSON), poison.good_rows()
    topics = {"whole": new_topic(), "good": new_topic()}
    for item in order:
        value = json.dumps(rows[item]).encode() if isinstance(item, int) else item[0]
        producer.send(topics["whole"], value, partition=0)
        if isinstance(item, int):
            producer.send(topics["good"], value, partition=0)
    producer.flush()
    dead = f"kafka://{bootstrap}/{new_topic()}" if to_topic else str(tmp_path / "dead.jsonl")
    for name, topic in topics.items():
        words = ["learn", f"kafka://{bootstrap}/{topic}", *["--label", "y", "--stop-at-end", "--quiet"]]
        words += ["--learner", f"bsgd,budget=20,max_classes=2,max_features={poison.MAX_FEATURES}"]
        call(*words, "--checkpoint", tmp_path / name, *(["--on-error", dead] if name == "whole" else []))
    assert dumps(load(tmp_path / "whole")) == dumps(load(tmp_path / "good"))
    if to_topic:
        letters = [json.loads(message.value) for message in messages_of(bootstrap, dead.rpartition("/")[2], 50)]
    else:
        letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    bad = [(number, *item) for number, item in enumerate(order) if not isinstance(item, int)]
    assert [letter["row"] for letter in letters] == [number for number, *_ in bad]
    for (number, raw, kind), letter in zip(bad, letters, strict=True):
        assert letter["kind"] == kind, letter
        assert letter["place"].endswith(f"message at partition 0, offset {number}")
        text = letter["raw"]
        assert (base64.b64decode(text) if letter["encoding"] == "base64" else text.encode()) == raw


def messages_of(bootstrap, topic, n):
    """The first n messages of a topic of one partition."""
    with KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return list(itertools.islice(consumer, n))


def test_resume_after_retention_removed_messages(bootstrap, new_topic, open_source, admin):
    topic = new_topic()
    publish(rows_of(range(100)), bootstrap, topic, JSON)
    opened = open_source(topic)
    list(itertools.islice(opened, 10))
    key = TopicPartition(topic, 0)
    admin.delete_records({key: 10})
    at_the_edge = open_source(topic)
    at_the_edge.seek(opened.position)
    assert list(at_the_edge) == rows_of(range(10, 100))
    admin.delete_records({key: 25})
    message = (
        f"kafka://{bootstrap}/{topic}: partition 0 holds offsets 25 to 100, the checkpoint continues at 10: "
        "retention has removed 15 unread messages. To continue with the model of the checkpoint, choose where: --from earliest"
    )
    with pytest.raises(StreamError) as error:
        open_source(topic).seek(opened.position)
    assert str(error.value).startswith(message)
    afresh = open_source(topic)
    with pytest.warns(UserWarning, match="retention has removed the oldest messages before this run: 25 of partition 0"):
        assert list(afresh) == rows_of(range(25, 100))
    for start, first in {"earliest": 25, "latest": 100, "0:40": 40}.items():
        going_on = open_source(topic, start=start)
        with pytest.warns(
            UserWarning, match=f"removed 15 unread messages. The model is kept, and reading continues from {start}"
        ):
            going_on.seek(opened.position)
        assert list(going_on) == rows_of(range(first, 100))
    latest_source = open_source(topic, start="latest")  # the position counts more where the topic holds what follows it
    latest_source.seek(opened.position | {"offsets": {"0": 30}})
    assert list(latest_source) == rows_of(range(30, 100))


def test_retention_removes_messages_during_a_pass(bootstrap, new_topic, open_source, admin):
    topic = new_topic(partitions=2)
    for partition in range(2):
        publish(rows_of(range(100 * partition, 100 * partition + 100)), bootstrap, topic, JSON, partition=partition)
    plain, bounded, endless = (
        open_source(topic, **options) for options in ({}, {"start": "earliest"}, {"start": "earliest", "stop_at_end": False})
    )
    admin.delete_records({TopicPartition(topic, 0): 25})
    reason = "partition 0 holds offsets 25 to 100, and 0 is next: retention has removed 25 unread messages."
    raises(f"{reason} To continue", list, plain, error=StreamError)
    for opened in (bounded, endless):
        with pytest.warns(UserWarning, match=f"{reason} Reading continues from earliest"):
            rows = list(itertools.islice(opened, 175))
        assert sorted(row.x["i"] for row in rows) == list(range(25, 200))
        assert opened.position["offsets"] == {"0": 100, "1": 100}


def test_topic_that_was_created_again(bootstrap, new_topic, open_source):
    topic, second_topic = new_topic(), new_topic()
    for name in (topic, second_topic):
        publish(rows_of(range(10)), bootstrap, name, JSON)
    position = open_source(second_topic).position | {"topic": topic}
    raises("it was deleted and created again since the checkpoint", open_source(topic).seek, position, error=StreamError)
    with pytest.warns(UserWarning, match="deleted and created again since the checkpoint. The model is kept"):
        (going_on := open_source(topic, start="earliest")).seek(position | {"offsets": {"0": 7, "1": 5}})
    assert list(going_on) == rows_of(range(10))


def test_where_to_begin(bootstrap, new_topic, open_source, producer):
    topic = new_topic(partitions=2, **{"retention.ms": "-1"})  # the times of its messages are long past
    for i in range(20):
        producer.send(topic, JSON.encode(Row({"i": i}, 0)), partition=i % 2, timestamp_ms=1_700_000_000_000 + 1000 * i)
    producer.flush()

    def read(start):
        return sorted(row.x["i"] for row in open_source(topic, start=start))

    assert read("earliest") == list(range(20))
    assert read("latest") == []
    assert read("0:9,1:8") == [17, 18, 19]
    assert read("1:9") == [*range(0, 20, 2), 19]
    assert read("2023-11-14T22:13:29.5Z") == list(range(10, 20))
    assert read("2023-11-14T23:13:30+01:00") == list(range(10, 20))
    assert read("2100-01-01") == []
    for start, reason in {
        "2:0": "has no partition 2: it has 0, 1",
        "0:11": "partition 0 holds offsets 0 to 10, not 11",
        "yesterday": "'yesterday' is none of earliest, latest, a time",
        "0:1,0:2": "names a partition twice",
        "1969-01-01": "is none of",
    }.items():
        raises(reason, open_source, topic, start=start, error=StreamError)


def test_invalid_topic_name(bootstrap):
    with pytest.raises(StreamError, match=r"topic 'no topic' on .* cannot be used: InvalidTopicError"):
        KafkaSource(bootstrap, "no topic", JSON)


def test_sink_without_its_topic(bootstrap, monkeypatch):
    monkeypatch.setattr(kafka_python_producer, "CONNECT_SECONDS", 0.5)
    missing = f"streamsvm-test-{uuid.uuid4().hex}"
    with pytest.raises(
        StreamError,
        match=f"/{missing}: there is no topic '{missing}': it was deleted during this run, or the broker creates none",
    ):
        KafkaSink(bootstrap, missing)
    raises(r"/no topic: .*(illegal|InvalidTopic)", KafkaSink, bootstrap, "no topic", error=StreamError)


def test_server_that_is_not_a_broker(monkeypatch):
    for module in (connection, confluent_client, kafka_python_client):  # each has its own name for it
        monkeypatch.setattr(module, "CONNECT_SECONDS", 0.5)
    with connection.socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BrokerUnreachableError, match=f"{address} takes connections but does not answer as a Kafka broker"):
            KafkaSource(address, "rows", JSON)


def test_partition_without_progress_fails(new_topic, open_source, bootstrap, monkeypatch):
    monkeypatch.setattr(reader, "STALL_SECONDS", 0.3)
    topic = new_topic()
    publish(rows_of(range(10)), bootstrap, topic, JSON)
    opened = open_source(topic)
    monkeypatch.setattr(opened._consumer, "poll", lambda _: {})
    raises(
        r"partition 0 delivered no message for 0.3 s at offset 0, before its end 10. Check the broker",
        list,
        opened,
        error=StreamError,
    )


def test_endless_stream_finds_added_partitions(bootstrap, new_topic, open_source, admin, monkeypatch):
    monkeypatch.setattr(reader, "REFRESH_SECONDS", 0.1)
    topic = new_topic()
    publish(rows_of(range(10)), bootstrap, topic, JSON)
    opened = open_source(topic, stop_at_end=False)
    iterator = iter(opened)
    assert list(itertools.islice(iterator, 10)) == rows_of(range(10))
    admin.create_partitions({topic: 3})
    # The broker tells of the partitions a moment after it has taken the request.
    until(lambda: len(topics.describe_topic(connection.Connection(bootstrap), topic).partitions) == 3, every=0.05)
    publish(rows_of(range(10, 20)), bootstrap, topic, JSON, partition=2)
    publish(rows_of(range(20, 30)), bootstrap, topic, JSON, partition=0)
    assert sorted(row.x["i"] for row in itertools.islice(iterator, 20)) == list(range(10, 30))
    assert opened.position["offsets"] == {"0": 20, "1": 0, "2": 10}


def test_endless_stream_of_a_deleted_topic(bootstrap, new_topic, open_source, admin, monkeypatch):
    monkeypatch.setattr(reader, "REFRESH_SECONDS", 0.1)
    topic = new_topic()
    opened = open_source(topic, stop_at_end=False)
    admin.delete_topics([topic])
    raises(topic, next, iter(opened), error=StreamError)


def test_endless_stream_waits_for_a_broker(bootstrap, new_topic, open_source, monkeypatch, caplog):
    monkeypatch.setattr(reader, "REFRESH_SECONDS", 0.0)
    topic = new_topic()
    opened = open_source(topic, stop_at_end=False)
    monkeypatch.setattr(opened._reader, "_connection", connection.Connection("127.0.0.1:1", {"client": "confluent-kafka"}))

    def feed():
        until(lambda: "continues when it is back" in caplog.text)
        publish(rows_of([1]), bootstrap, topic, JSON)

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert next(iter(opened)) == Row({"i": 1}, 1)
    feeder.join()
    assert "no Kafka broker at 127.0.0.1:1 (Connection refused)" in caplog.text
