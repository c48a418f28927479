"""Messages whose schema is in a registry, and the client of the registry. Avro and Protobuf have tests of their own."""

import base64
import datetime
import io
import json
import math
import shutil
import socket
import struct
import subprocess
from contextlib import closing

import fastavro
import orjson
import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer

from fake_registry import FIELDS, PREFIX, LocalRegistry, avro_codec, fake_registry, record
from refused import raises
from registry_golden import GOLDEN, ORDER
from streamsvm.cli.main import main
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm.stream.tables import TableEncoder
from streamsvm_kafka import JSONCodec, RegistryCodec, SchemaRegistry, client_options, connection, open_source
from streamsvm_kafka.codecs import registry as registry_module


def message(number, schema, fields):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), fields)
    return struct.pack(">bi", 0, number) + stream.getvalue()


@pytest.fixture(scope="module")
def registry():
    with fake_registry() as fake:
        fake.schemas[1] = record(*FIELDS)
        yield fake


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.01)


# Messages that Confluent's library wrote

GOLDEN_FILE = json.loads(GOLDEN.read_text())
MESSAGES = {name: bytes.fromhex(value) for name, value in GOLDEN_FILE["messages"].items()}


def golden_registry():
    return LocalRegistry({path.removeprefix("/"): answer for path, answer in GOLDEN_FILE["answers"].items()})


NESTED = {
    "size": 1.5, "count": -(2**60), "express": True, "city": "Malmö", "state": "PAID", "price.amount": 9.99,
    "price.currency": "EUR", "scores.a": 0.5,
}  # fmt: skip
MOMENT = datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, datetime.UTC)
ROWS = {
    "avro order": NESTED
    | {
        "at": MOMENT,
        "exact": datetime.datetime(1969, 12, 31, 1, 2, 3, 456789, datetime.UTC),
        "day": datetime.date(2024, 2, 29),
        "id": "8f14e45f-ceea-467f-a0e6-1b0d3f4c5a6b",
        "refund.amount": -0.05,
        "refund.currency": "SEK",
        "tags": ["x"],
        "lines": [{"sku": "s1", "count": 2}],
        "hash": b"\0\1\2\xff",
    },
    "protobuf order": NESTED
    | {
        "scores.b": -1.0,
        "at": MOMENT,
        "note": "",
        "tags": ["x", "y"],
        "lines": [{"sku": "s1", "count": 2}, {"sku": "s2", "count": 0, "gift": {"text": "hi"}}],
        "big": 2**64 - 1,
        "ratio": 0.25,
        "raw": b"\xff\0a",
        "took": 1.5,
        "extra.a.b": 1.5,
        "extra.c": [True, None],
        "cash": 7,
        "states": ["NEW", "PAID"],
    },
    "protobuf line": {"sku": "s", "count": 3},
    "protobuf gift": {"text": "hi"},
    "protobuf key": {"id": "k"},
    "protobuf tree": {
        "size": 1,
        "left.size": 2,
        "left.left.size": 0,
        "children": [{"size": 0, "children": None}, {"size": 3, "children": None}],
    },
}


@pytest.mark.parametrize("name", ROWS)
def test_messages_of_confluents_serializers(name):
    codec = RegistryCodec("y", golden_registry())
    assert codec.decode(MESSAGES[name]) == Row(ROWS[name], "yes" if name.endswith("order") else None)
    asked = list(codec._registry.asked)
    row, kept = codec.decode_with_fields(MESSAGES[name], ["size", "price", "price.amount", "y", "absent"])
    assert kept[0] == row.x.get("size")
    assert kept[4] is None
    if name.endswith("order"):
        assert kept[1:4] == [{"amount": 9.99, "currency": "EUR"}, 9.99, "yes"]
    assert codec._registry.asked == asked


def test_json_of_confluents_serializer():
    codec, plain = RegistryCodec("y", golden_registry()), JSONCodec("y")
    codec.dropped_fields = plain.dropped_fields = frozenset(["lines", "extra"])
    value = MESSAGES["json order"]
    assert codec.decode(value) == plain.decode(value)
    assert codec.decode_with_fields(value, ["extra"])[1] == [ORDER["extra"]]
    assert "extra.a.b" not in codec.decode(value).x
    raises("not JSON", codec.decode, value[:-1])


def test_types_may_be_mixed_in_a_topic_and_columns_dropped():
    codec = RegistryCodec("price.currency", golden_registry())
    codec.dropped_fields = frozenset(["scores", "extra", "lines"])
    for name in ("avro order", "protobuf order", "json order"):
        row = codec.decode(MESSAGES[name])
        assert row.y == "EUR"
        assert row.x["price.amount"] == 9.99
        assert not any(column.startswith(("scores", "extra", "lines")) for column in row.x)


def test_references_are_requested_once_and_with_deleted_versions():
    registry = golden_registry()
    codec = RegistryCodec("y", registry)
    for name in ("protobuf order", "protobuf key", "avro order", "protobuf order", "avro order"):
        codec.decode(MESSAGES[name])
    assert registry.asked == [
        "schemas/ids/2",
        "schemas/ids/2?deleted=true&format=serialized",
        "subjects/shop%2Fmoney.proto/versions/1?deleted=true&format=serialized",
        "schemas/ids/4",
        "subjects/money/versions/1?deleted=true",
    ]


# The same data through each door

AVRO_ORDER = {
    "type": "record", "name": "Order", "fields": [
        {"name": "size", "type": "double"}, {"name": "count", "type": "long"}, {"name": "express", "type": "boolean"},
        {"name": "city", "type": "string"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "discount", "type": ["null", "double"]}, {"name": "note", "type": ["null", "string"]},
        {"name": "visits", "type": ["int", "null"]}, {"name": "big", "type": "long"}, {"name": "ratio", "type": "float"},
        {"name": "price", "type": ["null", {"type": "record", "name": "Money", "fields": [
            {"name": "amount", "type": "double"}, {"name": "currency", "type": "string"}]}]},
        {"name": "scores", "type": {"type": "map", "values": "double"}},
        {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]}, {"name": "y", "type": "string"},
    ],
}  # fmt: skip
AVRO_CODEC, AVRO_PARSED = avro_codec(AVRO_ORDER), fastavro.parse_schema(AVRO_ORDER)
PROTOBUF_CODEC = RegistryCodec("y", golden_registry())
numbers, texts = st.floats(-1e30, 1e30), st.text(max_size=5)
moments = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)).map(
    lambda time: time.replace(tzinfo=datetime.UTC)
)
orders = st.fixed_dictionaries(
    {
        "size": numbers, "count": st.integers(-(2**63), 2**63 - 1), "express": st.booleans(), "city": texts,
        "state": st.sampled_from(["NEW", "PAID"]), "y": texts,
        "scores": st.dictionaries(st.sampled_from("abc"), numbers), "big": st.integers(0, 2**63 - 1),
        "ratio": st.floats(-(2**99), 2**99, width=32),
    },
    optional={
        "at": moments, "discount": numbers, "note": texts, "visits": st.integers(-(2**31), 2**31 - 1),
        "price": st.fixed_dictionaries({"amount": numbers, "currency": texts}), "tags": st.lists(texts, min_size=1, max_size=3),
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def order_class():
    pool = DescriptorPool()
    for module in (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for path in ("/schemas/ids/1", "/schemas/ids/2"):
        pool.AddSerializedFile(base64.b64decode(GOLDEN_FILE["answers"][path]["schema"]))
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@given(order=orders)
def test_one_row_from_json_avro_and_protobuf(order, order_class):
    as_json = order | ({"at": order["at"].isoformat()} if "at" in order else {})
    row = JSONCodec("y").decode(orjson.dumps(as_json))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO_PARSED, order)
    protobuf = ParseDict(as_json, order_class()).SerializeToString()
    registered = {
        "avro": AVRO_CODEC.decode(PREFIX + stream.getvalue()),
        "protobuf": PROTOBUF_CODEC.decode(b"\0\0\0\0\2\2\2" + protobuf),
    }
    assert registered["protobuf"].x.pop("raw") == b""
    for kind, other in registered.items():
        assert other.y == row.y, kind
        assert set(other.x) == set(row.x), kind
        for name, value in row.x.items():
            same = value if name != "at" else datetime.datetime.fromisoformat(value)
            assert (type(other.x[name]), other.x[name]) == (type(same), same), (kind, name)
    encoder = TableEncoder(columns="at:date,tags:drop,city:category,state:category,note:category,price.currency:category")
    encoded = [encoder.transform_one(x) for x in (row.x, registered["avro"].x, registered["protobuf"].x)]
    assert encoded[0] == encoded[1] == encoded[2]


# The client


def test_schema_is_requested_once(registry):
    registry.schemas[2] = record({"name": "a", "type": "float"})
    codec, value = RegistryCodec("y", SchemaRegistry(registry.url)), message(2, registry.schemas[2], {"a": math.inf})
    before = len(registry.asked)
    assert [codec.decode(value) for _ in range(5)] == [Row({"a": math.inf}, None)] * 5
    assert registry.asked[before:] == ["/schemas/ids/2"]


def test_schema_cache_is_bounded(registry, monkeypatch):
    monkeypatch.setattr(registry_module, "_MAX_CACHED_SCHEMAS", 2)
    schemas = SchemaRegistry(registry.url + "/")
    for number in (11, 12, 13, 12, 11):
        registry.schemas[number] = record({"name": f"a{number}", "type": "float"})
        name = f"a{number}"
        assert schemas.get_schema(number).read(message(number, registry.schemas[number], {name: 1.0})) == {name: 1.0}
    for number in range(100, 110):
        raises(f"knows no schemas/ids/{number}$", schemas.get_schema, number)
    assert len(schemas._schemas) == 2


@pytest.mark.parametrize(
    ("number", "schema", "reason", "asked"),
    [
        (404, None, "the schema registry http://.* knows no schemas/ids/404", 1),
        (405, {"schema": '"x"', "schemaType": "THRIFT"}, "schema 405 is of type 'THRIFT', not Avro, Protobuf or JSON", 1),
        (406, {"schema": "{"}, "schema 406 is not that of a row: Expecting property name", 1),
        (407, {"schema": "syntax", "schemaType": "PROTOBUF"}, "the registry does not compile Protobuf", 2),
        (
            408,
            {"schema": '"x"', "references": [{"name": "x", "subject": "a/b", "version": 3}]},
            "no subjects/a%2Fb/versions/3",
            2,
        ),
        (409, {"schema": '"x"', "references": [{"name": "x", "subject": "a", "version": "new"}]}, "invalid literal for int", 1),
        (-7, None, "-7 is not a valid id of a schema", 0),
    ],
)
def test_unusable_schema_is_a_row_error_and_requested_once(registry, number, schema, reason, asked):
    if schema is not None:
        registry.schemas[number] = schema
    codec = RegistryCodec("y", SchemaRegistry(registry.url))
    before = len(registry.asked)
    for _ in range(3):
        raises(reason, codec.decode, struct.pack(">bi", 0, number))
    assert len(registry.asked) == before + asked


def test_unusable_schema_is_requested_again_after_a_minute(registry, monkeypatch):
    client = SchemaRegistry(registry.url)
    raises("knows no", client.get_schema, 777)
    registry.schemas[777] = record(*FIELDS)
    raises("knows no", client.get_schema, 777)
    now = registry_module.time.monotonic()
    monkeypatch.setattr(registry_module.time, "monotonic", lambda: now + registry_module.INVALID_ID_SECONDS + 1)
    assert client.get_schema(777) is not None


def test_imports_are_bounded():
    names = [f"test.R{i}" for i in range(200)]
    answers = {"schemas/ids/1": {"schema": "1", "references": [{"name": name, "subject": name, "version": 1} for name in names]}}
    for name in names:
        answers[f"subjects/{name}/versions/1"] = {"schema": json.dumps({"type": "enum", "name": name, "symbols": ["A"]})}
    codec = RegistryCodec("y", LocalRegistry(answers))
    raises("imports more than 100 schemas", codec.decode, PREFIX)
    circle = {"schema": "1", "references": [{"name": "b", "subject": "b", "version": 1}]}
    codec = RegistryCodec("y", LocalRegistry({"schemas/ids/1": circle, "subjects/b/versions/1": circle}))
    raises("schema 1 is not that of a row", codec.decode, PREFIX)
    for i, name in enumerate(names):  # each schema imports the next one
        answers[f"subjects/{name}/versions/1"]["references"] = [
            {"name": f"test.R{i + 1}", "subject": f"test.R{i + 1}", "version": 1}
        ]
    answers["schemas/ids/1"]["references"] = answers["schemas/ids/1"]["references"][:1]
    codec = RegistryCodec("y", registry := LocalRegistry(answers))
    raises("imports more than 100 schemas", codec.decode, PREFIX)
    assert len(registry.asked) == 101


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "wire format: it begins with b''"),
        (b'{"a": 1}', "it begins with b'{\"a\":', not with a zero and a schema's id"),
        (b"\0\0\0\1", "it begins with b'.x00.x00.x00.x01'"),
        (PREFIX + bytes(1 << 20), "1048581 bytes; a row with schema 1 may have at most 1048576"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_messages_without_a_schema_are_refused(value, reason):
    raises(reason, avro_codec(record(*FIELDS)).decode, value)


def test_rows_are_not_written_with_a_schema():
    raises("RegistryCodec only reads", avro_codec(record(*FIELDS)).encode, Row({"a": 1.0}), error=NotImplementedError)


def test_a_registry_that_is_away_for_a_while(registry, caplog):
    registry.schemas[4] = record({"name": "a", "type": "float"})
    registry.answers += [(503, b""), (429, b""), (500, b"{}")]
    assert SchemaRegistry(registry.url).get_schema(4).read(message(4, registry.schemas[4], {"a": 0.5})) == {"a": 0.5}
    assert caplog.text.count("it is asked again") == 3


def test_a_registry_that_stays_away():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    codec = RegistryCodec("y", SchemaRegistry(url, outage_seconds=0.05))
    with pytest.raises(StreamError, match=rf"{url} does not answer \(.*refused.*\). Check schema_registry_url"):
        codec.decode(struct.pack(">bi", 0, 1))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"<html>"), "not a JSON object"),
        ((200, b"[1]"), "not a JSON object"),
        ((200, b"[" * 100_000), "not a JSON object"),
        ((200, b" " * (1 << 20) + b"{}"), "not a JSON object of at most 1 MiB"),
        ((200, b"{}"), "holds no schema"),
        ((200, b'{"schema": "{}", "references": [1]}'), "holds no schema"),
        ((404, b'{"error_code": 404}'), "HTTP status 404"),
        ((404, b"nothing here"), "not a JSON object"),
        ((302, b""), "HTTP status 302"),
        ((403, b""), "refuses schema_registry_username or its password"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_invalid_registry_responses(registry, answer, reason):
    registry.answers.append(answer)
    raises(reason, SchemaRegistry(registry.url).get_schema, 1, error=StreamError)
    assert not registry.answers


def test_a_user_and_a_password(registry, monkeypatch):
    monkeypatch.setattr(registry, "user", ("alice", "hunter2"))
    options = {"url": registry.url, "username": "alice", "password": "hunter2"}
    result = SchemaRegistry.from_options(client_options({f"schema_registry_{name}": value for name, value in options.items()}))
    assert result.get_schema(1) is not None
    for wrong in ({"username": "alice", "password": "hunter3"}, {}):
        with pytest.raises(StreamError, match="refuses schema_registry_username") as error:
            SchemaRegistry(registry.url, **wrong).get_schema(1)
        assert "hunter" not in str(error.value)
    assert "hunter2" not in repr(result)


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://", "https://a:secret@registry:8081", "http://registry/?token=secret", ""]
)
def test_mistakes_in_the_address(url):
    with pytest.raises(StreamError, match="schema_registry_url") as error:
        SchemaRegistry(url)
    assert "secret" not in str(error.value)


def test_a_file_without_certificates(tmp_path):
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(StreamError, match="schema_registry_cafile: .* holds no certificates"):
        SchemaRegistry("https://registry:8081", cafile=str(tmp_path / "ca.pem"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_a_registry_with_tls(tmp_path):
    file = str(tmp_path / "registry.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", file]
    extension = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", file + ".crt"]
    subprocess.run([*made, *extension], check=True, capture_output=True)
    with (tmp_path / "registry.pem").open("a") as pem_file:
        pem_file.write((tmp_path / "registry.pem.crt").read_text())
    with fake_registry(tmp_path / "registry.pem") as secure:
        secure.schemas[1] = record(*FIELDS)
        assert SchemaRegistry(secure.url, cafile=file + ".crt").get_schema(1) is not None
        with pytest.raises(StreamError, match="certificate does not verify .*: give schema_registry_cafile"):
            SchemaRegistry(secure.url).get_schema(1)


def send(address, topic, values, client):
    with closing(KafkaProducer(bootstrap_servers=address, **client)) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush()


GOLDEN_ROWS = ["avro order", "protobuf order", "protobuf key"]


def test_a_topic_by_url(embedded, registry):
    registry.by_path = GOLDEN_FILE["answers"]
    send(embedded.bootstrap, "rows", [MESSAGES[name] for name in GOLDEN_ROWS] + [b"\0\0\0\0\x63"], embedded.client)
    for name in ("registry", "avro"):
        options = {"schema_registry_url": registry.url}
        with closing(open_source(embedded.url("rows", codec=name), label="y", stop_at_end=True, options=options)) as source:
            rows = [row for chunk in iter(lambda: source.read(10), None) for row in map(chunk.read_row, range(len(chunk)))]
        assert [row.x for row in rows[:3]] == [ROWS[name] for name in GOLDEN_ROWS]
        assert "partition 0, offset 3" in rows[3].place
        assert "knows no schemas/ids/99" in rows[3].reason


@pytest.mark.broker
def test_a_topic_of_a_real_broker(bootstrap, new_topic, registry, monkeypatch, tmp_path, capsys):
    """The command line learns from messages of Avro, Protobuf and JSON."""
    registry.by_path = GOLDEN_FILE["answers"]
    topic = new_topic()
    names = ["avro order", "protobuf order", "json order"]
    send(bootstrap, topic, [MESSAGES[name] for _ in range(20) for name in names] + [MESSAGES["avro order"][:-3]], {})
    monkeypatch.setenv("STREAMSVM_KAFKA_SCHEMA_REGISTRY_URL", registry.url)
    dropped = "tags lines extra extra.c states hash raw day exact id count big took note cash refund.amount refund.currency"
    columns = ",".join(["at:date", "city:category", *(f"{name}:drop" for name in dropped.split())])
    url = f"kafka://{bootstrap}/{topic}?codec=registry"
    words = ["learn", url, "--label", "price.amount", "--regression", "--columns", columns, "--on-error", "skip"]
    assert main([*words, "--stop-at-end", "--checkpoint", str(tmp_path / "state"), "--quiet"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["rows"], state["learned"]) == (61, 60)
