"""Avro records with a schema in a registry."""

import datetime
import decimal
import io
import random
import tracemalloc

import fastavro
import pytest

from fake_registry import FIELDS, PREFIX, avro_codec, read_avro, record
from refused import raises
from streamsvm.stream.endpoints import Row


def test_avro_record():
    fields = {"a": 0.5, "b": None, "c": "é", "d": True, "y": 3}
    assert read_avro(record(*FIELDS), fields) == Row({"a": 0.5, "c": "é", "d": True}, 3)
    assert read_avro(record(*FIELDS), fields, label=None) == Row({"a": 0.5, "c": "é", "d": True, "y": 3}, None)


def test_enums_of_one_name_in_two_namespaces():
    kinds = [
        {"type": "enum", "name": name, "namespace": space, "symbols": [space]}
        for name, space in (("E", "a"), ("E", "b"), ("row", "c"))
    ]
    x = {"f0": "a", "f1": "b", "f2": "c"}
    assert read_avro(record(*({"name": f"f{i}", "type": ["null", kind]} for i, kind in enumerate(kinds))), x) == Row(x, None)


def logical(kind, logical_type, **more):
    return {"type": kind, "logicalType": logical_type, **more}


CHOICE = {"type": "enum", "name": "City", "symbols": ["Oslo", "Paris"], "default": "Paris"}
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "p", "type": ["null", "int"]}, {"name": "q", "type": "string"}]}
MOMENT = datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, datetime.UTC)
MONEY, SHORT = logical("bytes", "decimal", precision=20, scale=3), {"type": "fixed", "name": "Short", "size": 4}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("int", 7, {"a": 7}),
        (CHOICE, "Paris", {"a": "Paris"}),
        (["null", CHOICE], "Oslo", {"a": "Oslo"}),
        ({"type": "string", "avro.java.string": "String"}, "x", {"a": "x"}),
        (logical("string", "uuid"), "x", {"a": "x"}),
        (logical("int", "date"), datetime.date(1969, 12, 31), {"a": datetime.date(1969, 12, 31)}),
        (logical("long", "timestamp-millis"), MOMENT, {"a": MOMENT}),
        (logical("long", "timestamp-micros"), MOMENT, {"a": MOMENT}),
        (logical("long", "local-timestamp-micros"), MOMENT.replace(tzinfo=None), {"a": MOMENT.replace(tzinfo=None)}),
        (logical("int", "time-millis"), datetime.time(0, 0, 1), {"a": 1000}),
        (logical("long", "unheard-of"), 5, {"a": 5}),
        (MONEY, decimal.Decimal("0.001"), {"a": 0.001}),
        (MONEY, decimal.Decimal("-12345678901234567.890"), {"a": -12345678901234567.890}),
        (logical("bytes", "decimal", precision=20), decimal.Decimal(-7), {"a": -7}),
        (logical("fixed", "decimal", precision=5, scale=2, name="D", size=4), decimal.Decimal("1.25"), {"a": 1.25}),
        (["null", MONEY], None, {}),
        ("bytes", b"\xff", {"a": b"\xff"}),
        (SHORT, b"abcd", {"a": b"abcd"}),
        (INNER, {"p": None, "q": "x"}, {"a.q": "x"}),
        (["null", "int", INNER], {"p": 3, "q": "x"}, {"a.p": 3, "a.q": "x"}),
        (["null", "int", INNER], 3, {"a": 3}),
        ({"type": "map", "values": ["null", "int"]}, {"k": 1, "n": None}, {"a.k": 1}),
        ({"type": "array", "items": ["null", INNER]}, [None, {"p": 1, "q": ""}], {"a": [None, {"p": 1, "q": ""}]}),
        (
            {"type": "map", "values": {"type": "map", "values": INNER}},
            {"k": {"l": {"p": 1, "q": "z"}}},
            {"a.k.l.p": 1, "a.k.l.q": "z"},
        ),
    ],
)
def test_avro_fields(kind, value, result):
    assert read_avro(record({"name": "a", "type": kind}, aliases=["Old"], doc="..."), {"a": value}) == Row(result, None)


def test_fields_of_type_null():
    kinds = {
        "a": "null",
        "b": {"type": "record", "name": "R", "fields": [{"name": "c", "type": "null"}, {"name": "d", "type": "int"}]},
    }
    schema = record(*({"name": name, "type": kind} for name, kind in kinds.items()))
    assert read_avro(schema, {"a": None, "b": {"c": None, "d": 1}}) == Row({"b.d": 1}, None)


def test_schemas_that_other_libraries_accept():
    """A default that does not match its type, and a record that is an imported type or a union."""
    codec = avro_codec(record({"name": "a", "type": ["string", "null"], "default": None}))
    assert codec.decode(PREFIX + b"\0\2x") == Row({"a": "x"}, None)
    references = {
        "test.One": record({"name": "a", "type": "int"}, name="One"),
        "test.Two": record({"name": "b", "type": "test.One"}, name="Two"),
    }
    assert avro_codec("test.Two", references=references).decode(PREFIX + b"\4") == Row({"b.a": 2}, None)
    assert avro_codec(["test.One", "test.Two"], references=references).decode(PREFIX + b"\2\4") == Row({"b.a": 2}, None)
    raises("3 is not a record", avro_codec(["int", "test.Two"], references=references).decode, PREFIX + b"\0\6")


def deep_types(depth):
    """Return fields whose types are nested ever deeper, although the schema is not."""
    kinds = [
        {"type": "record", "name": f"R{i}", "fields": [{"name": "a", "type": f"R{i - 1}" if i else "int"}]} for i in range(depth)
    ]
    return [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]


def deep(kind, depth):
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]},
            "nested more than 64 deep, or within itself",
        ),
        ({"type": "array", "items": ["null", {"type": "map", "values": "test.Row"}]}, "within itself"),
        (deep("int", 70), "nested more than 64 deep"),
        (deep("int", 900), "not that of a row: .*recursion"),
        ({"type": "array", "items": "null"}, "values of type 'null' take no bytes"),
        ({"type": "array", "items": {"type": "null"}}, "take no bytes"),
        ({"type": "map", "values": {"type": "fixed", "name": "F", "size": 0}}, "take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}}, "take no bytes"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}}, "take no bytes"),
        ("Unknown", "Unknown"),
        (5, "schema 1 is not that of a row"),
        ({"type": "enum", "name": "E"}, "symbols"),
        (logical("bytes", ["decimal"]), "unhashable"),
    ],
)
def test_schemas_that_are_refused(kind, reason):
    codec = avro_codec(record({"name": "a", "type": kind}))
    for _ in range(2):
        raises(reason, codec.decode, PREFIX + bytes(8))
    assert len(codec._registry.asked) == 1


def test_deep_nesting_by_named_types():
    assert avro_codec(record(*deep_types(14))).decode(PREFIX + bytes(14)).x["f2.a.a.a"] == 0
    raises("objects within objects, more than 16 deep", avro_codec(record(*deep_types(20))).decode, PREFIX + bytes(20))
    raises("nested more than 64 deep", avro_codec(record(*deep_types(5000))).decode, PREFIX + bytes(5000))


@pytest.mark.parametrize(
    "schema", ["double", {"type": "record", "name": "R"}, record({"name": "a"}), record({"type": "int"}), [], 7, None]
)
def test_schemas_of_no_record_are_refused(schema):
    raises("schema 1 is not that of a row|not a record of schema 1", avro_codec(schema).decode, PREFIX + bytes(8))


GOOD = {"a": 0.5, "b": 7, "c": "text" * 5, "d": True, "y": "label", "e": "Oslo", "t": MOMENT, "f": 1.5, "i": {"p": 1, "q": "x"}}
KINDS = {"e": CHOICE, "t": logical("long", "timestamp-millis"), "f": "float", "i": INNER}
KINDS |= {"l": {"type": "array", "items": ["int", "Inner"]}, "m": {"type": "map", "values": MONEY}, "s": SHORT}
GOOD = {**GOOD, "l": [1, {"p": 2, "q": ""}], "m": {"k": decimal.Decimal("1.5")}, "s": b"abcd"}


@pytest.mark.parametrize(
    ("kinds", "value", "reason"),
    [
        ([], b"", "not a record of schema 1: cannot read double"),
        ([], bytes(8) + b"\0\0\1\0\0", "1 bytes follow it"),
        (["string"], b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "not a record of schema 1"),
        (["bytes"], b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "not a record of schema 1"),
        ([{"type": "array", "items": "int"}], b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1" + bytes(100), "not a record of schema 1"),
        ([{"type": "array", "items": "int"}], b"\xff" * 30, "not a record of schema 1"),
        ([CHOICE], b"\x08", "not a record of schema 1"),
        (["string"], b"\2\xff", "not a record of schema 1: .*utf-8"),
        ([MONEY], b"\xd0\x0f" + bytes(1000), "a decimal of 1000 bytes; at most 64 are read"),
        ([logical("int", "date")], b"\xff\xff\xff\xff\x0f", "not a record of schema 1"),
        ([{"type": "map", "values": "int"}, {"type": "map", "values": "int"}], b"\2\2a\2\0\2\2a\2\0", None),
    ],
)
def test_invalid_records(kinds, value, reason):
    fields = FIELDS if not kinds else [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]
    codec = avro_codec(record(*fields))
    if reason is None:
        assert codec.decode(PREFIX + value) == Row({"f0.a": 1, "f1.a": 1}, None)
    else:
        raises(reason, codec.decode, PREFIX + value)


def test_two_columns_of_one_path_are_refused():
    inner = {"type": "map", "values": "int"}
    codec = avro_codec(record({"name": "a", "type": {"type": "map", "values": ["int", inner]}}))
    assert codec.decode(PREFIX + b"\2\2b\2\2\2c\6\0\0") == Row({"a.b.c": 3}, None)
    raises("two values have the path 'a.b.c'", codec.decode, PREFIX + b"\4\2b\2\2\2c\6\0\6b.c\0\2\0")


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [1, 4, 16])
def test_memory_is_bounded(depth):
    """Each byte of the message is a record at each level of an array's items."""
    kind = {"type": "record", "name": f"R{depth}", "fields": [{"name": "a", "type": "boolean"}]}
    for i in range(depth - 1, 0, -1):
        kind = {"type": "record", "name": f"R{i}", "fields": [{"name": "a", "type": kind}]}
    codec = avro_codec(record({"name": "a", "type": {"type": "array", "items": kind}}))

    def encode(n):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, "long", n)
        return PREFIX + stream.getvalue() + bytes(n + 1)

    limit = (1 << 20) // (2 * (depth + 1))
    raises(f"bytes; a row with schema 1 may have at most {limit}", codec.decode, encode(limit))
    tracemalloc.start()
    assert len(codec.decode(encode(limit - 20)).x["a"]) == limit - 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20


def test_hostile_records_are_rows_or_a_value_error():
    schema = record(*FIELDS, *({"name": name, "type": kind} for name, kind in KINDS.items()))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), GOOD)
    codec, seed = avro_codec(schema), PREFIX + stream.getvalue()
    assert codec.decode(seed).y == "label"
    draw, refused, rounds = random.Random(3), 0, 2000
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
