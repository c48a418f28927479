"""Protobuf messages with a schema in a registry."""

import base64
import json
import math
import random
import re
import tracemalloc

import pytest
from google.protobuf import timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from fake_registry import PREFIX, LocalRegistry
from refused import raises
from registry_golden import GOLDEN
from streamsvm.stream.endpoints import Row
from streamsvm_kafka import RegistryCodec

FIRST = PREFIX + b"\0"
"""The first bytes of messages of the first type."""


def make_file(fields, imports=(), syntax="proto3", name="row.proto"):
    """Return a file with the message type Row. Fields are (name, type, name of the type or label, more arguments)."""
    file = FileDescriptorProto(name=name, syntax=syntax, dependency=imports)
    kind = file.message_type.add(name="Row")
    for number, (field, kind_of_field, more) in enumerate(fields, 1):
        kind.field.add(name=field, number=number, type=kind_of_field, **{"label": Field.LABEL_OPTIONAL, **more})
    return file


def make_codec(file, label="y", **imports):
    """Return a codec of messages with a schema, a file, and files that it imports from the registry."""

    def answer(content):
        return {"schema": base64.b64encode(content.SerializeToString()).decode(), "schemaType": "PROTOBUF"}

    answers = {f"subjects/{name}/versions/2": answer(content) for name, content in imports.items()}
    references = [{"name": f"{name}.proto", "subject": name, "version": 2} for name in imports]
    answers["schemas/ids/1"] = answer(file) | {"references": references}
    return RegistryCodec(label, LocalRegistry(answers))


def message_of(name, **more):
    return {"type_name": name, **more}


REPEATED = {"label": Field.LABEL_REPEATED}
PLAIN = make_file([("a", Field.TYPE_DOUBLE, {}), ("b", Field.TYPE_INT64, {}), ("y", Field.TYPE_STRING, {})])


def test_defaults_and_absent_fields():
    proto3 = make_file([("a", Field.TYPE_DOUBLE, {}), ("b", Field.TYPE_INT32, {"proto3_optional": True, "oneof_index": 0})])
    proto3.message_type[0].oneof_decl.add(name="_b")
    assert make_codec(proto3).decode(FIRST) == Row({"a": 0.0}, None)
    assert make_codec(proto3).decode(FIRST + b"\x10\0") == Row({"a": 0.0, "b": 0}, None)
    proto2 = make_file([("a", Field.TYPE_INT32, {"default_value": "5"}), ("l", Field.TYPE_INT32, REPEATED)], syntax="proto2")
    assert make_codec(proto2).decode(FIRST) == Row({}, None)
    assert make_codec(proto2).decode(FIRST + b"\x08\7\x10\1\x10\2") == Row({"a": 7, "l": [1, 2]}, None)


def test_unknown_fields_and_values_of_enums():
    file = make_file([("e", Field.TYPE_ENUM, message_of(".E")), ("m", Field.TYPE_ENUM, message_of(".E", **REPEATED))])
    kind = file.enum_type.add(name="E")
    for number, name in enumerate(("ZERO", "ONE")):
        kind.value.add(name=name, number=number)
    assert make_codec(file).decode(FIRST) == Row({"e": "ZERO"}, None)
    assert make_codec(file).decode(FIRST + b"\x08\1\x12\2\1\7\x50\5") == Row({"e": "ONE", "m": ["ONE", None]}, None)


def test_maps_and_wrappers():
    file = make_file(
        [
            ("m", Field.TYPE_MESSAGE, message_of(".Row.MEntry", **REPEATED)),
            ("w", Field.TYPE_MESSAGE, message_of(".google.protobuf.Int64Value")),
            ("t", Field.TYPE_MESSAGE, message_of(".google.protobuf.Timestamp", **REPEATED)),
        ],
        imports=["google/protobuf/wrappers.proto", "google/protobuf/timestamp.proto"],
    )
    entry = file.message_type[0].nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Int64Value")
    codec = make_codec(file)
    assert codec.decode(FIRST) == Row({}, None)
    value = b"\x0a\6\x08\5\x12\2\x08\7" + b"\x12\0" + b"\x1a\2\x08\1"
    row = codec.decode(FIRST + value)
    assert row.x["m.5"] == 7
    assert row.x["w"] == 0
    assert [moment.isoformat() for moment in row.x["t"]] == ["1970-01-01T00:00:01+00:00"]
    far = timestamp_pb2.Timestamp(seconds=10**12).SerializeToString()
    raises("not a record of schema 1: .*(range|year)", codec.decode, FIRST + b"\x1a" + bytes([len(far)]) + far)
    assert wrappers_pb2.Int64Value(value=7).SerializeToString() == b"\x08\7"


def test_imports():
    other = make_file([("p", Field.TYPE_INT32, {})], name="anything.proto")
    other.package = "other"
    file = make_file([("o", Field.TYPE_MESSAGE, message_of(".other.Row"))], imports=["other.proto", "confluent/meta.proto"])
    assert make_codec(file, other=other).decode(FIRST + b"\x0a\2\x08\3") == Row({"o.p": 3}, None)
    raises("schema 1 is not that of a row: .*other.Row", make_codec(file).decode, FIRST)
    circle = make_file([("p", Field.TYPE_INT32, {})], imports=["streamsvm_row.proto", "other.proto"])
    raises("schema 1 is not that of a row: .*duplicate", make_codec(file, other=circle).decode, FIRST)


def test_a_long_chain_of_types_is_read_alike_each_time():
    file = make_file([("o", Field.TYPE_MESSAGE, message_of(".T0")), ("p", Field.TYPE_INT32, {})])
    for i in range(400):
        file.message_type.add(name=f"T{i}").field.add(
            name="o", number=1, type=Field.TYPE_MESSAGE, label=1, type_name=f".T{i + 1}"
        )
    file.message_type.add(name="T400")
    codec = make_codec(file)
    assert [codec.decode(FIRST + b"\x10\5") for _ in range(2)] == [Row({"p": 5}, None)] * 2


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('syntax = "proto3"; message Row { int32 a = 1; }', "the registry does not compile Protobuf"),
        ("", r"the schema has no message type \[0\]"),
        ("AAAA", "schema 1 is not that of a row: Error parsing message"),
    ],
)
def test_schemas_that_are_no_compiled_file(schema, reason):
    codec = RegistryCodec("y", LocalRegistry({"schemas/ids/1": {"schema": schema, "schemaType": "PROTOBUF"}}))
    raises(reason, codec.decode, FIRST)


GOLDEN_FILE = json.loads(GOLDEN.read_text())
ORDER = bytes.fromhex(GOLDEN_FILE["messages"]["protobuf order"])
TREE = bytes.fromhex(GOLDEN_FILE["messages"]["protobuf tree"])[:7]


@pytest.fixture(scope="module")
def golden():
    return RegistryCodec("y", LocalRegistry({path[1:]: answer for path, answer in GOLDEN_FILE["answers"].items()}))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (ORDER[:5], "it ends within the indexes of its type"),
        (ORDER[:5] + b"\x04\x02", "it ends within the indexes"),
        (ORDER[:5] + b"\x80", "it ends within the indexes"),
        (ORDER[:5] + b"\xff" * 1000, "it ends within the indexes"),
        (ORDER[:5] + b"\x02\x08", r"the schema has no message type \[4\]"),
        (ORDER[:5] + b"\x02\x01", r"the schema has no message type \[-1\]"),
        (ORDER[:5] + b"\x01", r"the schema has no message type \[\]"),
        (ORDER[:5] + b"\xf0\xff\xff\x0f" + b"\x02" * 2000, r"the schema has no message type \[1, 1"),
        (ORDER[:7] + bytes(1 << 20), "a row with schema 2 may have at most 1048576"),
        (ORDER[:-1], "not a record of schema 2: Error parsing message"),
        (ORDER[:7] + b"\x0a\xff\xff\xff\xff\x07", "not a record of schema 2: Error parsing message"),
        (ORDER[:7] + b"\x22\2\xff\xff", "not a record of schema 2: Error parsing message"),
        (ORDER[:7] + b"\x9a\1\x0b\x0a\t\n\1a\x12\4\x11" + bytes(7), "not a record of schema 2: Error parsing message"),
    ],
)
def test_invalid_messages(golden, value, reason):
    raises(reason, golden.decode, value)


def wrap(value, tag):
    """Return a message with ``value`` as the field with a tag."""
    length, size = [], len(value)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return tag + bytes([*length, size]) + value


def test_deep_nesting(golden):
    value = b"\x08\1"
    for _ in range(14):
        value = wrap(value, b"\x12")
    assert golden.decode(TREE + value).x["left." * 14 + "size"] == 1
    for depth, reason in ((4, "more than 16 deep"), (90, "Error parsing message"), (20_000, "Error parsing message")):
        for _ in range(depth):
            value = wrap(value, b"\x12")
        raises(reason, golden.decode, TREE + value)


@pytest.mark.thorough
def test_memory_is_bounded():
    """Each of half a million messages within a message would be a dict of 30 default values."""
    kind = [(f"f{i}", Field.TYPE_DOUBLE, {}) for i in range(30)] + [("m", Field.TYPE_MESSAGE, message_of(".Row", **REPEATED))]
    codec = make_codec(make_file(kind))
    value = FIRST + b"\xfa\1\0" * 60_000
    tracemalloc.start()
    raises("it has more than 524288 values", codec.decode, value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
    assert len(codec.decode(FIRST + b"\xfa\1\0" * 15_000).x["m"]) == 15_000


def test_hostile_messages_are_rows_or_a_value_error(golden):
    draw, refused, rounds = random.Random(3), 0, 2000
    assert golden.decode(ORDER).y == "yes"
    for _ in range(rounds):
        value = bytearray(ORDER)
        for _ in range(draw.choice([1, 1, 2, 4])):
            value[draw.randrange(5, len(value))] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        try:
            row = golden.decode(bytes(value[: draw.choice([len(value), len(value), draw.randrange(len(value))])]))
        except ValueError:
            refused += 1
        else:
            assert isinstance(row, Row)
    assert 0 < refused < rounds


@given(st.binary(max_size=100))
def test_random_bytes_raise_only_value_error(golden, value):
    for start in (ORDER[:5], ORDER[:7], TREE):
        try:
            assert isinstance(golden.decode(start + value), Row)
        except ValueError as error:
            assert str(error)


def test_special_floats():
    infinite = PLAIN.message_type[0].field[0].name
    row = make_codec(PLAIN).decode(FIRST + b"\x09" + bytes.fromhex("000000000000f07f") + b"\x1a\3no ")
    assert row == Row({infinite: math.inf, "b": 0}, "no")
    assert re.fullmatch("a|b", infinite)
