"""Avro records, and the registry of their schemas."""

import datetime
import io
import math
import random
import shutil
import socket
import struct
import subprocess

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_registry import fake_registry
from refused import raises
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import AvroCodec, JSONCodec, SchemaRegistry, client_options, connection, open_source, publish
from streamsvm_kafka.codecs import avro as registry_module

FIELDS = [
    {"name": "a", "type": "double"},
    {"name": "b", "type": ["null", "long"], "default": None},
    {"name": "c", "type": ["null", "string"]},
    {"name": "d", "type": "boolean"},
    {"name": "y", "type": ["null", "int", "string"], "doc": "the label"},
]


def record(*fields, **more):
    return {"type": "record", "name": "Row", "namespace": "test", "fields": list(fields), **more}


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


@pytest.fixture(scope="module")
def codec(registry):
    return AvroCodec("y", SchemaRegistry(registry.url), schema=1)


longs = st.integers(-(2**63), 2**63 - 1)
rows = st.fixed_dictionaries({"a": st.floats(allow_nan=False, allow_infinity=False), "d": st.booleans()}, optional={
    "b": longs, "c": st.text()}
)  # fmt: skip


@given(rows, st.none() | st.integers(-(2**31), 2**31 - 1) | st.text().map(str.strip))
def test_avro_round_trip_equals_json(codec, x, y):
    assert codec.decode(codec.encode(Row(x, y))) == Row(x, y)
    json = JSONCodec("y")
    if abs(x.get("b", 0)) < 2**53:
        assert json.decode(json.encode(Row(x, y))) == codec.decode(codec.encode(Row(x, y)))


def test_avro_of_another_writer(codec):
    value = message(1, record(*FIELDS), {"a": 0.5, "b": None, "c": "é", "d": True, "y": 3})
    assert codec.decode(value) == Row({"a": 0.5, "c": "é", "d": True}, 3)
    assert AvroCodec(None, codec._registry).decode(value) == Row({"a": 0.5, "c": "é", "d": True, "y": 3}, None)


def test_avro_writes_numpy_numbers(codec):
    x = {"a": np.float32(0.5), "b": np.int64(7), "d": np.True_}
    assert codec.decode(codec.encode(Row(x, np.int8(1)))) == Row({"a": 0.5, "b": 7, "d": True}, 1)


def test_schema_is_requested_once(registry):
    registry.schemas[2] = record({"name": "a", "type": "float"})
    codec, value = AvroCodec("y", SchemaRegistry(registry.url)), message(2, registry.schemas[2], {"a": math.inf})
    before = len(registry.asked)
    assert [codec.decode(value) for _ in range(5)] == [Row({"a": math.inf}, None)] * 5
    assert registry.asked[before:] == ["/schemas/ids/2"]


def test_schema_cache_is_bounded(registry, monkeypatch):
    monkeypatch.setattr(registry_module, "_MAX_CACHED_SCHEMAS", 2)
    schemas = SchemaRegistry(registry.url + "/")
    for number in (11, 12, 13, 12, 11):
        registry.schemas[number] = record({"name": f"a{number}", "type": "float"})
        assert schemas.get_schema(number) == registry.schemas[number]
    for number in range(100, 110):
        raises(f"knows no schema {number}", schemas.get_schema, number)
    assert len(schemas._schemas) == len(schemas._invalid_ids) == 2


@pytest.mark.parametrize(
    ("number", "schema", "reason", "asked"),
    [
        (404, None, "the schema registry http://.* knows no schema 404", 1),
        (405, {"schema": '"x"', "schemaType": "PROTOBUF"}, "schema 405 is of type 'PROTOBUF', not Avro", 1),
        (-7, None, "-7 is not a valid id of a schema", 0),
    ],
)
def test_invalid_schema_id_is_a_row_error_and_requested_once(registry, number, schema, reason, asked):
    if schema is not None:
        registry.schemas[number] = schema
    codec = AvroCodec("y", SchemaRegistry(registry.url))
    before = len(registry.asked)
    for _ in range(3):
        raises(reason, codec.decode, struct.pack(">bi", 0, number))
    assert len(registry.asked) == before + asked


def test_enums_of_one_name_in_two_namespaces(registry):
    kinds = [
        {"type": "enum", "name": name, "namespace": space, "symbols": [space]}
        for name, space in (("E", "a"), ("E", "b"), ("row", "c"))
    ]
    registry.schemas[406] = record(*({"name": f"f{i}", "type": ["null", kind]} for i, kind in enumerate(kinds)), name="Row")
    x = {"f0": "a", "f1": "b", "f2": "c"}
    codec = AvroCodec("y", SchemaRegistry(registry.url), schema=406)
    assert codec.decode(message(406, registry.schemas[406], x)) == codec.decode(codec.encode(Row(x))) == Row(x, None)


TIME = {"type": "long", "logicalType": "timestamp-millis"}
CHOICE = {"type": "enum", "name": "City", "symbols": ["Oslo", "Paris"]}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("int", 7, 7),
        (CHOICE, "Paris", "Paris"),
        (["null", CHOICE], "Oslo", "Oslo"),
        ({"type": "string", "avro.java.string": "String"}, "x", "x"),
        ({"type": "string", "logicalType": "uuid"}, "x", "x"),
        ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
        (TIME, 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)),
        ("null", None, None),
    ],
)
def test_avro_fields(registry, kind, value, result):
    schema = record({"name": "a", "type": kind}, aliases=["Old"], doc="...")
    number = 1000 + len(registry.schemas)
    registry.schemas[number] = schema
    codec = AvroCodec("y", SchemaRegistry(registry.url), schema=number)
    assert codec.decode(message(number, schema, {"a": value})) == Row({} if result is None else {"a": result}, None)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("double", "it is not a record"),
        ({"type": "record", "name": "R"}, "it is not a record"),
        (record({"name": "a"}), "a field has no name or no type"),
        (record({"name": "a", "type": {"type": "array", "items": "double"}}), "field 'a' is of type 'array'; a row is flat"),
        (record({"name": "a", "type": ["null", record({"name": "b", "type": "int"})]}), "'a' is of type 'record'"),
        (record({"name": "a", "type": "Row"}), "'a' is of type 'Row'"),
        (record({"name": "a", "type": {"type": "enum", "name": "E"}}), "fastavro does not read it"),
        ({"schema": "1", "references": [{"name": "x"}]}, "refers to others"),
    ],
)
def test_schemas_that_are_not_of_rows(registry, schema, reason):
    number = 2000 + len(registry.schemas)
    registry.schemas[number] = schema if isinstance(schema, dict) else {"schema": f'"{schema}"'}
    codec = AvroCodec("y", SchemaRegistry(registry.url))
    for _ in range(2):
        raises(reason, codec.decode, struct.pack(">bi", 0, number) + bytes(8))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "wire format: it is empty"),
        (b'{"a": 1}', "the first byte is 123, not 0"),
        (b"\0\0\0\1", "4 bytes hold no id"),
        (b"\0\0\0\0\1", "not a record of schema 1"),
        (message(1, record(*FIELDS), {"a": 1.0, "d": True}) + b"\0", "1 bytes follow it"),
        (message(1, record(*FIELDS), {"a": 1.0, "d": True})[:-1], "not a record of schema 1"),
        (b"\0\0\0\0\1" + bytes(1 << 20), "a row may have at most"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_avro_refuses(codec, value, reason):
    raises(reason, codec.decode, value)


def test_hostile_records_are_rows_or_a_value_error(codec, registry):
    more = {"e": CHOICE, "t": TIME, "f": "float"}
    registry.schemas[3] = record(*FIELDS, *({"name": name, "type": kind} for name, kind in more.items()))
    good = {"a": 0.5, "b": 7, "c": "text" * 5, "d": True, "y": "label", "e": "Oslo", "t": 2**40, "f": 1.5}
    seed, draw, refused = message(3, registry.schemas[3], good), random.Random(3), 0
    rounds = 2000
    for _ in range(rounds):
        value = bytearray(seed)
        for _ in range(draw.choice([1, 1, 2, 4])):
            value[draw.randrange(5, len(value))] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        try:
            row = codec.decode(bytes(value[: draw.choice([len(value), len(value), draw.randrange(len(value))])]))
        except ValueError:
            refused += 1
        else:
            assert isinstance(row, Row)
    assert 0 < refused < rounds


@pytest.mark.parametrize(
    ("label", "schema", "row", "reason"),
    [
        ("y", None, Row({}), "only reads: give AvroCodec"),
        ("y", 1, Row({"a": 1.0, "d": True, "z": 1}), "'z' is not a field of schema 1"),
        ("y", 1, Row({"a": "hot", "d": True}), "the row does not match schema 1"),
        ("y", 1, Row({"a": 1.0, "d": True, "b": 2**64}), "the row does not match schema 1"),
        ("y", 1, Row({"y": 1}, 1), "name of the label and of a feature"),
        (None, 1, Row({"a": 1.0, "d": True}, 1), "no name for it"),
    ],
)
def test_avro_refuses_to_write(registry, label, schema, row, reason):
    raises(reason, AvroCodec(label, SchemaRegistry(registry.url), schema=schema).encode, row)


# The registry


def test_a_registry_that_is_away_for_a_while(registry, caplog):
    registry.schemas[4] = record({"name": "a", "type": "float"})
    registry.answers += [(503, b""), (429, b""), (500, b"{}")]
    assert SchemaRegistry(registry.url).get_schema(4) == registry.schemas[4]
    assert caplog.text.count("it is asked again") == 3


def test_a_registry_that_stays_away():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    codec = AvroCodec("y", SchemaRegistry(url, outage_seconds=0.05))
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
        ((200, b'{"schema": "{"}'), "holds no schema"),
        ((404, b'{"error_code": 40401}'), "HTTP status 404"),
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
    assert result.get_schema(1) == registry.schemas[1]
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
        assert SchemaRegistry(secure.url, cafile=file + ".crt").get_schema(1) == secure.schemas[1]
        with pytest.raises(StreamError, match="certificate does not verify .*: give schema_registry_cafile"):
            SchemaRegistry(secure.url).get_schema(1)


def test_a_topic_of_avro_by_url(embedded, registry, codec):
    rows = [Row({"a": 0.5, "c": "x", "d": True}, 1), Row({"a": 1.5, "d": False}, None)]
    publish(rows, embedded.bootstrap, "rows", codec, partition=0, client=embedded.client)
    options = {"schema_registry_url": registry.url}
    source = open_source(embedded.url("rows", codec="avro"), label="y", stop_at_end=True, options=options)
    assert list(source) == rows
    source.close()
