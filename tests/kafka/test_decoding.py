"""Predictions of a topic's rows say which message each is of, and keep its key, time and headers if they go to a topic."""

import json
import time
from contextlib import ExitStack, closing

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from loops import make_model
from patience import PATIENCE, until
from streamsvm import BSGDClassifier
from streamsvm.stream import (
    CheckpointFolder,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    JoinedSource,
    LearningLoop,
    PredictionLoop,
    StreamError,
)
from streamsvm.stream.prediction_fields import MAX_COPIED_MESSAGE_BYTES
from streamsvm.stream.tables.chunk import Message, Row
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, KafkaSink, KafkaSource, NpyCodec, publish
from streamsvm_kafka.clients.kafka_python import producer as kafka_python_producer
from streamsvm_kafka.codecs import rows_to_table

NOW = int(1000 * time.time())
JSON = JSONCodec("y")


@pytest.fixture
def producer(embedded):
    with closing(KafkaProducer(bootstrap_servers=embedded.bootstrap, **embedded.client)) as client:
        yield client


@pytest.fixture
def source_of(embedded):
    with ExitStack() as stack:

        def open_(topic, codec=JSON, **options):
            options = {"stop_at_end": True, "client": embedded.client} | options
            return stack.enter_context(closing(KafkaSource(embedded.bootstrap, topic, codec, **options)))

        yield open_


def messages(embedded, topic, n):
    """Return the messages of a topic as soon as there are n."""
    records = []

    def all_came():
        records.extend(message for batch in consumer.poll(200).values() for message in batch)
        return len(records) >= n

    with closing(KafkaConsumer(**embedded.client, bootstrap_servers=embedded.bootstrap)) as consumer:
        keys = [TopicPartition(topic, partition) for partition in range(4)]
        consumer.assign(keys)
        for key in keys:
            consumer.seek(key, 0)
        until(all_came)
    return records


def learned(source, to, model=None, **options):
    with closing(to):
        return LearningLoop(source, model or make_model(), sink=to, **options).run()


def lines(path):
    return list(map(json.loads, path.read_text().splitlines()))


def send(producer, topic, n=60, partitions=2, **more):
    """Rows with keys, times and headers; every third has none of them."""
    for i in range(n):
        value = json.dumps({"id": i, "a": float(i % 7), "y": i % 7 > 3}).encode()
        fields = (
            {"key": b"key %d" % i, "timestamp_ms": NOW - i, "headers": [("trace", b"%d" % i), ("trace", b"")]} if i % 3 else {}
        )
        producer.send(topic, value, partition=i % partitions, **fields | more)
    producer.flush()


def place(partition, offset, topic="rows"):
    """The headers of a prediction that name the message of its row."""
    numbers = ("source-partition", b"%d" % partition), ("source-offset", b"%d" % offset)
    return [("source-topic", topic.encode()), *numbers]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_topic_of_predictions_has_keys_times_and_headers(embedded, producer, source_of, at_once):
    n = 1200  # more than a poll gives, and enough that rows are taken together
    send(producer, "rows", n)
    out = f"out {at_once}".replace(" ", "-")
    source = source_of("rows")
    model = BSGDClassifier(budget=10) if at_once else make_model()
    learned(source, KafkaSink(embedded.bootstrap, out, client=embedded.client), model, passthrough=["id"])
    rows = {json.loads(message.value)["id"]: message for message in messages(embedded, "rows", n)}
    records = messages(embedded, out, n)
    assert len(records) == len(rows) == n
    for message in records:
        value = json.loads(message.value)
        row = rows[value["id"]]
        assert (value["partition"], value["offset"]) == (row.partition, row.offset)
        if row.key is None:
            assert (message.key, message.headers) == (b"%d" % value["row"], place(row.partition, row.offset))
        else:
            headers = [*row.headers, *place(row.partition, row.offset)]
            assert (message.key, message.timestamp, message.headers) == (row.key, row.timestamp, headers)


def test_a_file_of_predictions_has_partition_and_offset(embedded, producer, source_of, tmp_path):
    send(producer, "rows", headers=[("trace", b"x" * (MAX_COPIED_MESSAGE_BYTES + 1))])  # which files do not keep
    learned(source_of("rows"), FileSink(tmp_path / "out.csv"), passthrough=["y", "none"])
    first, *records = (tmp_path / "out.csv").read_text().splitlines()
    assert first == "row,y_pred,y_true,probability,y,none,partition,offset"
    cells = [line.split(",") for line in records]
    assert [(int(cell[0]), int(cell[6]), int(cell[7])) for cell in cells] == [(i, i % 2, i // 2) for i in range(60)]
    assert all(cell[4] == cell[2] and cell[5] == "" for cell in cells)


def test_which_headers_and_times_are_kept(producer, source_of):
    send(producer, "rows", 1, headers=[("Content-Type", b"application/json"), ("codec", b"json"), ("b", b"1")], key=b"\xff")
    send(producer, "rows", 1, timestamp_ms=NOW + 2 * 3_600_000)
    source = source_of("rows")
    records = source.read(1).messages(0, 1)[0]
    assert records == Message(b"\xff", records.timestamp, [("b", b"1"), *place(0, 0)])
    assert abs(records.timestamp - NOW) < 3_600_000
    assert source.read(1).messages(0, 1)[0] == Message(None, None, place(0, 1))


def test_marks_of_missing_weights_and_labels(embedded, producer, tmp_path, call):
    for i in range(60):
        value = {"a": i % 7, "w": ["NA", 2, "0.5"][i % 3], "y": "NA" if i % 10 == 1 else str(i % 2)}
        producer.send("rows", json.dumps(value).encode(), partition=0)
    producer.flush()
    words = ["learn", embedded.url("rows"), "--label", "y", "--weight", "w", "--missing", "NA", "--stop-at-end", "--quiet"]
    done = call(*words, "--checkpoint", tmp_path / "state", "--learner", "bsgd")
    assert (done.end["learned"], done.end["unlabelled"], done.end["refused"]) == (54, 6, {})


def test_pending_bytes_are_bounded(embedded, producer, source_of, monkeypatch):
    send(producer, "rows", 10, 1, headers=[("a", b"x" * 1000)])
    monkeypatch.setattr(kafka_python_producer, "MAX_PENDING_BYTES", 3000)
    out, flushed = KafkaSink(embedded.bootstrap, "out", client=embedded.client), []
    flush = out._sender._producer.flush
    monkeypatch.setattr(out._sender._producer, "flush", lambda seconds: flushed.append(flush(seconds)))
    learned(source_of("rows"), out)
    assert len(flushed) == 10 // 3 + 1  # and at the end


def test_a_key_or_headers_that_are_too_long_refuse_the_row(embedded, producer, source_of):
    send(producer, "rows", 20, 1)
    send(producer, "rows", 1, 1, headers=[("a", b"x" * MAX_COPIED_MESSAGE_BYTES)])
    send(producer, "rows", 1, 1, key=b"x" * (MAX_COPIED_MESSAGE_BYTES + 1))
    send(producer, "rows", 20, 1)
    out = KafkaSink(embedded.bootstrap, "out", client=embedded.client)
    progress = learned(source_of("rows"), out, BSGDClassifier(budget=10), on_error="skip")
    assert (progress.learned, progress.refused) == (40, {"too long": 2})
    with pytest.raises(StreamError, match="offset 20: key and headers of the message have 131,185 bytes; predictions can carry"):
        learned(source_of("rows"), KafkaSink(embedded.bootstrap, "out", client=embedded.client))


def test_tables_have_the_row_within_the_message(embedded, producer, source_of, tmp_path):
    ids = [2**40 + i for i in range(50)]
    codec = ArrowCodec("y")
    batch = pa.record_batch(
        {"id": ids, "a": [float(i % 7) for i in range(50)], "y": ["u" if i % 7 > 3 else "v" for i in range(50)]}
    )
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    for i in range(3):
        producer.send("tables", stream.getvalue().to_pybytes(), partition=0, key=b"%d" % i).get(10)
    progress = learned(
        source_of("tables", codec), FileSink(tmp_path / "out.jsonl"), BSGDClassifier(budget=10), passthrough=["id", "y", "z"]
    )
    assert progress.learned == 150
    records = [
        (line["id"], line["y"], line["z"], line["partition"], line["offset"], line["within"])
        for line in lines(tmp_path / "out.jsonl")
    ]
    labels = batch.column("y").to_pylist()
    assert records == [(ids[i], labels[i], None, 0, offset, i) for offset in range(3) for i in range(50)]
    out = KafkaSink(embedded.bootstrap, "out", client=embedded.client)
    with closing(out):
        PredictionLoop(source_of("tables", codec), BSGDClassifier(budget=10), out, passthrough="id", on_error="skip").run()
    for message in messages(embedded, "out", 150):
        assert message.key == b"%d" % json.loads(message.value)["offset"]


@pytest.mark.parametrize("codec", [Float32Codec(1), NpyCodec(1)])
def test_rows_without_names(embedded, source_of, tmp_path, codec):
    rows = [Row({0: float(i % 7)}, i % 7 > 3) for i in range(40)]
    publish(rows, embedded.bootstrap, "rows", codec, partition=1, client=embedded.client)
    learned(source_of("rows", codec), FileSink(tmp_path / "out.jsonl"), BSGDClassifier(budget=10))
    assert [(line["partition"], line["offset"]) for line in lines(tmp_path / "out.jsonl")] == [(1, i) for i in range(40)]
    with (
        FileSink(tmp_path / "no.jsonl") as to,
        pytest.raises(StreamError, match="'id' cannot be passed through: .* numbers without names"),
    ):
        LearningLoop(source_of("rows", codec), make_model(), sink=to, passthrough=["id"])


@pytest.mark.parametrize("start", [None, "earliest"])
def test_a_run_that_changes_within_a_message_learns_its_rows_once(producer, source_of, tmp_path, start):
    codec = NpyCodec(1)
    for partition in (0, 1):
        rows = [Row({0: float(i % 7)}, i % 7 > 3) for i in range(40)]
        producer.send("rows", codec.encode_rows(rows_to_table(rows)), partition=partition)
    producer.flush()
    for metric, n in (("Accuracy", 50), ("MCC", 0), ("MCC", None)):  # the second run reads no row
        with CheckpointFolder(tmp_path / "state") as checkpoints:
            source = source_of("rows", codec, start=start)
            progress = LearningLoop(source, BSGDClassifier(budget=10), metric, checkpoints=checkpoints).run(n)
    assert progress.learned == 80


def test_delayed_labels_of_topics(embedded, producer, source_of):
    for i in range(40):
        fields = {"id": i, "a": float(i % 7), "tag": i + 0.5}
        producer.send(
            "rows", json.dumps(fields).encode(), partition=0, key=b"k%d" % i, timestamp_ms=NOW + i, headers=[("h", b"1")]
        )
        producer.send("labels", json.dumps({"id": i, "y": i % 7 > 3}).encode(), partition=0, timestamp_ms=NOW + i + 3)
    producer.flush()
    out = KafkaSink(embedded.bootstrap, "out", client=embedded.client)
    source = JoinedSource(source_of("rows"), source_of("labels"), key="id")
    loop = DelayedLearningLoop(source, BSGDClassifier(budget=10), delayed=DelayedLabels(), sink=out, passthrough=["tag"])
    loop.run(21)  # a row is read ahead, and is in the position
    again = JoinedSource(source_of("rows"), source_of("labels"), key="id")
    assert again.request_passthrough(["tag"]) == ["tag", "partition", "offset"]
    again.seek(json.loads(json.dumps(dict(source.position))))
    while (chunk := again.read(1)) is not None:
        row, event = chunk.row(0)
        if row:
            assert chunk.passthrough_columns(0, 1) == [[int(event.key) + 0.5], [0], [int(event.key)]]
            headers = [("h", b"1"), *place(0, int(event.key))]
            assert chunk.messages(0, 1)[0] == Message(b"k%d" % int(event.key), NOW + int(event.key), headers)
        else:
            assert (chunk.passthrough_columns(0, 1), chunk.messages(0, 1)) == ([[None]] * 3, None)
    loop.run()
    out.close()
    for message in messages(embedded, "out", 40):
        value = json.loads(message.value)
        number = int(value["key"])
        assert (value["tag"], value["partition"], value["offset"]) == (number + 0.5, 0, number)
        headers = [("h", b"1"), *place(0, number)]
        assert (message.key, message.timestamp, message.headers) == (b"k%d" % number, NOW + number, headers)


@pytest.mark.parametrize("change", [{"message": [1, 2]}, {"message": ["€", 1, []]}])
def test_a_corrupt_copy_in_a_position(producer, source_of, change):
    send(producer, "rows", 3, 1, timestamp_ms=NOW)
    producer.send("labels", b'{"id": 1, "y": 1}', partition=0, timestamp_ms=NOW - 1).get(PATIENCE)

    def opened():
        source = JoinedSource(source_of("rows", JSONCodec("z")), source_of("labels"), key="id")
        source.request_passthrough(["a"])
        return source

    source = opened()
    assert [row for row, _ in (next(iter(source)),)] == [{}]
    position = json.loads(json.dumps(dict(source.position)))
    opened().seek(position)
    position["read_ahead"][0][0] |= change
    with pytest.raises(StreamError, match="position of the checkpoint is corrupt"):
        opened().seek(position)


class Bytes(str):
    """The name of a header, as a producer of another language may write it."""

    def encode(self, *_):
        return bytes.fromhex(self)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_header_name_that_is_not_utf8_does_not_stop_reading(embedded, compression):
    names = ["", "ff", "61fe62", "e282", "", "ff"]
    with KafkaProducer(
        bootstrap_servers=embedded.bootstrap, compression_type=compression, linger_ms=1000, **embedded.client
    ) as producer:
        for i, name in enumerate(names):
            headers = [("trace", b"17"), (Bytes(name), b"\xff"), (Bytes(name), b""), ("codec", b"json")] if name else []
            producer.send("rows", b'{"i":%d,"y":0}' % i, key=b"\xff", headers=headers, partition=0)
    source = KafkaSource(embedded.bootstrap, "rows", JSON, stop_at_end=True, client=embedded.client)
    assert list(source) == [Row({"i": i}, 0) for i in range(len(names))]
    source.close()
