"""Keys, timestamps and headers of messages as columns of their rows: for learning, predicting, joining and passing through."""

import json
import shutil
from contextlib import ExitStack, closing

import pytest
from kafka import KafkaProducer

from saved import dumps
from streamsvm import BSGDClassifier, load, save
from streamsvm.stream import LearningLoop, Row, StreamError
from streamsvm.stream.checkpoint import read_header
from streamsvm.stream.endpoints import BadRow
from streamsvm.stream.tables import TableEncoder
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, KafkaSource
from streamsvm_kafka.codecs import rows_to_table

BEGIN = 1_772_323_200_000  # milliseconds
JSON = JSONCodec("y")
COLUMNS = ["key", "message.key", "timestamp", "header.trace"]


@pytest.fixture
def send(embedded):
    """Returns a function that sends a message to partition 0 of the topic of rows."""
    with closing(KafkaProducer(bootstrap_servers=embedded.bootstrap, **embedded.client)) as producer:

        def send_message(value, key=None, time=None, headers=(), topic="rows"):
            value = value if isinstance(value, bytes) else json.dumps(value).encode()
            producer.send(topic, value, key=key, partition=0, timestamp_ms=time, headers=[*headers])

        send_message.flush, send_message.url = producer.flush, embedded.url("rows")
        yield send_message


@pytest.fixture
def source_of(embedded):
    with ExitStack() as stack:

        def open_(codec=JSON, columns=COLUMNS, topic="rows"):
            options = {"stop_at_end": True, "client": embedded.client, "message_columns": columns}
            return stack.enter_context(closing(KafkaSource(embedded.bootstrap, topic, codec, **options)))

        yield open_


def chunks(source):
    while (chunk := source.read(100)) is not None:
        yield chunk


def test_parts_of_messages_beside_fields_of_rows(send, source_of):
    for i in range(40):
        own = {"key": ["own", None][i % 2]} if i % 10 > 7 else {}
        key = (b"device", b"\xff\x01", b"", None)[i % 4]
        send({"x": i, **own, "y": i % 2}, key, BEGIN + i, [("trace", b"first"), ("trace", b"a%d" % i)] if i % 5 else [])
    send(b"no object", b"device")
    send.flush()
    source, rows = source_of(), []
    source.request_passthrough(["key", "header.trace", "x", "other"])
    for chunk in chunks(source):
        table = chunk.table(())
        for i, copies in enumerate(zip(*chunk.passthrough_columns(0, len(chunk)), strict=True)):
            row = chunk.row(i)
            assert isinstance(row, BadRow) or table.row(i) == row
            rows.append((row, copies[:4]))
    (x, y), copies = rows[1]
    assert (x, y) == (
        {"x": 1, "key": "\\xff\x01", "message.key": "\\xff\x01", "timestamp": BEGIN / 1000 + 0.001, "header.trace": "a1"},
        1,
    )
    assert copies == ("\\xff\x01", "a1", 1, None)
    assert [rows[i][0].x.get("key") for i in (0, 2, 3, 8, 9, 18)] == ["device", "", None, "own", "\\xff\x01", "own"]
    assert [rows[i][0].x.get("message.key") for i in (3, 8)] == [None, "device"]
    assert "header.trace" not in rows[5][0].x
    assert type(rows[40][0]) is BadRow
    assert source.position["message_columns"] == COLUMNS


def test_parts_of_messages_with_many_rows(send, source_of):
    table = rows_to_table([Row({"x": 1.0}, 0), Row({"x": 2.0}, 1)])
    codec = ArrowCodec("y")
    send(codec.encode_rows(table), b"device", BEGIN)
    send(codec.encode_rows(table), None, BEGIN + 500)
    send.flush()
    source = source_of(codec, ["key", "timestamp"])
    source.request_passthrough(["key", "x"])
    rows, copies = [], []
    for chunk in chunks(source):
        rows += map(chunk.row, range(len(chunk)))
        copies += zip(*chunk.passthrough_columns(0, len(chunk))[:2], strict=True)
    seconds = BEGIN / 1000
    assert rows[1] == Row({"x": 2.0, "key": "device", "timestamp": seconds}, 1)
    assert rows[2] == Row({"x": 1.0, "timestamp": seconds + 0.5}, 0)
    assert copies == [("device", 1.0), ("device", 2.0), (None, 1.0), (None, 2.0)]


def test_names_of_no_part_are_refused(send, source_of):
    send({"x": 1})
    send.flush()
    for names in (["keys"], ["header."], 17, [17]):
        with pytest.raises(StreamError, match="is not key, timestamp or header.NAME"):
            source_of(columns=names)
    with pytest.raises(StreamError, match="'key' is not key, timestamp or header.NAME of messages with named fields"):
        source_of(Float32Codec(2), ["key"])
    source = source_of()
    with pytest.raises(StreamError, match="is not key, timestamp or header.NAME"):
        source.seek(source.position | {"message_columns": {"key": 1}})


def test_a_key_is_learned_as_a_field_of_that_name(send, source_of):
    for i in range(300):
        x = {"x": i * 7919 % 13}
        send({**x, "y": i % 3 == 1}, b"device-%d" % (i % 3))
        send({**x, "key": f"device-{i % 3}", "y": i % 3 == 1}, topic="fields")
    send.flush()

    def learned(*columns, topic):
        model = TableEncoder(columns="key:key") | BSGDClassifier(budget=100, seed=1)
        loop = LearningLoop(source_of(columns=columns, topic=topic), model)
        loop.run()
        return loop

    loop = learned("key", topic="rows")
    assert dumps(loop.model) == dumps(learned(topic="fields").model)
    assert loop.metric.get() > 0.9
    assert learned(topic="rows").metric.get() < 0.8


def test_flag_is_part_of_the_checkpoint(send, call, tmp_path):
    for i in range(600):
        send({"x": i * 7919 % 13, "y": i % 3 == 1}, b"device-%d" % (i % 3), BEGIN + 1000 * i)
    send.flush()
    learn = ["learn", send.url, "--label", "y", "--learner", "bsgd", "--stop-at-end", "--checkpoint"]
    flags = ["--columns", "message.key:key,timestamp:date", "--cycles", "none"]
    call(*learn, tmp_path / "whole", *flags)
    said = call(*learn, tmp_path / "state", *flags, "--max-rows", 200).stderr
    assert "message.key  key     device-0, device-1, device-2\n" in said
    assert "timestamp    date" in said
    call(*learn, tmp_path / "state", *flags, "--max-rows", 200)
    call(*learn, tmp_path / "state")
    assert dumps(load(tmp_path / "state")) == dumps(load(tmp_path / "whole"))
    predictions = tmp_path / "predictions.jsonl"
    predict = ["predict", send.url, "--stop-at-end", "--to", predictions, "--passthrough", "key,timestamp", "--model"]
    call(*predict, tmp_path / "state")
    lines = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert {line["key"]: line["y_pred"] for line in lines} == {f"device-{i}": i == 1 for i in range(3)}
    assert (lines[1]["timestamp"], lines[1]["offset"]) == (BEGIN / 1000 + 1, 1)
    assert "Accuracy 1.0000" in call("score", send.url, "--model", tmp_path / "state").stdout
    save(load(tmp_path / "state"), tmp_path / "model")  # without a position
    call(*predict, tmp_path / "model", *flags)
    assert [json.loads(line)["y_pred"] for line in predictions.read_text().splitlines()] == [line["y_pred"] for line in lines]


def test_models_of_a_field_stay_as_they_were(send, call, tmp_path):
    """A row without its field keeps having none if the model was learned before the flag was given."""
    for i in range(100):
        send({"x": i % 7, **({"key": "uv"[i % 2]} if i % 3 else {}), "y": i % 2}, b"another")
    send.flush()
    words = ["learn", send.url, "--label", "y", "--learner", "bsgd", "--stop-at-end", "--checkpoint", tmp_path / "state"]
    said = call(*words, "--max-rows", 50).stderr
    assert "category  v, u    missing in 34" in said
    shutil.copytree(tmp_path / "state", tmp_path / "other")
    call(*words)
    call(*words[:-1], tmp_path / "other", "--columns", "key:category")
    assert dumps(load(tmp_path / "other")) == dumps(load(tmp_path / "state"))
    assert "message_columns" not in read_header(max((tmp_path / "state").glob("*.ckpt")))["position"]


def test_key_joins_labels_and_is_a_column(send, call, tmp_path, embedded):
    for i in range(200):
        send({"x": i % 7}, b"order-%d" % i, BEGIN + 10 * i, [("shop", b"uv"[i % 2 : i % 2 + 1])])
        send({"y": i % 2}, b"order-%d" % i, BEGIN + 10 * i + 5, topic="labels")
    send.flush()
    labels = f"{embedded.url('labels')}&key=id"
    words = ["learn", send.url, "--label", "y", "--labels", labels, "--learner", "bsgd", "--stop-at-end", "--quiet"]
    words += ["--columns", "header.shop:category", "--checkpoint", tmp_path / "state"]
    call(*words, "--max-rows", 150)
    end = json.loads(call(*words).stdout.splitlines()[-1])
    assert end["delayed"]["joined"] == 200
    assert end["scores"][0]["value"] > 0.9
