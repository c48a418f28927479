"""Writes ``registry_golden.json``: schemas and messages as Confluent's own client library registers and serializes them.

Run it in an environment of its own: ``pip install "confluent-kafka[avro,json,protobuf,schemaregistry]" grpcio-tools``, then
``python tests/registry_golden.py``. Tests read the file, so that they need none of these packages.
"""

import base64
import datetime
import decimal
import json
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).with_suffix(".json")

PROTOS = {
    "shop/money.proto": 'syntax = "proto3"; package shop; message Money { double amount = 1; string currency = 2; }',
    "orders.proto": """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto"; import "shop/money.proto";
message Key { string id = 1; }
message Order {
  enum State { NEW = 0; PAID = 1; }
  map<string, double> scores = 11;
  message Line { string sku = 1; int32 count = 2; message Gift { string text = 1; } Gift gift = 3; }
  double size = 1; int64 count = 2; bool express = 3; string city = 4; State state = 5;
  google.protobuf.Timestamp at = 6; google.protobuf.DoubleValue discount = 7; google.protobuf.StringValue note = 8;
  optional int32 visits = 9; Money price = 10; repeated string tags = 12; repeated Line lines = 13;
  string y = 14; uint64 big = 15; float ratio = 16; bytes raw = 17; google.protobuf.Duration took = 18;
  google.protobuf.Struct extra = 19; oneof payment { string card = 20; int32 cash = 21; } repeated State states = 22;
}
message Tree { int32 size = 1; Tree left = 2; repeated Tree children = 3; }
""",
}
ORDER = {
    "size": 1.5, "count": -(2**60), "express": True, "city": "Malmö", "state": "PAID", "at": "2024-02-03T04:05:06.789Z",
    "note": "", "price": {"amount": 9.99, "currency": "EUR"}, "scores": {"a": 0.5, "b": -1.0}, "tags": ["x", "y"],
    "lines": [{"sku": "s1", "count": 2}, {"sku": "s2", "gift": {"text": "hi"}}], "y": "yes", "big": 2**64 - 1, "ratio": 0.25,
    "raw": base64.b64encode(b"\xff\0a").decode(), "took": "1.500s", "extra": {"a": {"b": 1.5}, "c": [True, None]}, "cash": 7,
    "states": ["NEW", "PAID"],
}  # fmt: skip

MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "currency", "type": "string"},
]}  # fmt: skip
STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"], "default": "NEW"}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}
AVRO = {"type": "record", "name": "Order", "namespace": "shop", "doc": "an order", "fields": [
    {"name": "size", "type": "double"}, {"name": "count", "type": "long"}, {"name": "express", "type": "boolean"},
    {"name": "city", "type": "string"}, {"name": "state", "type": STATE}, {"name": "before", "type": ["null", "State"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "price", "type": "Money"}, {"name": "refund", "type": ["null", "shop.Money"], "default": None},
    {"name": "scores", "type": {"type": "map", "values": "double"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}}, {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}}, {"name": "y", "type": ["null", "string", "int"]},
]}  # fmt: skip
UTC = datetime.UTC
RECORD = {
    "size": 1.5, "count": -(2**60), "express": True, "city": "Malmö", "state": "PAID", "before": None,
    "at": datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, UTC), "exact": datetime.datetime(1969, 12, 31, 1, 2, 3, 456789, UTC),
    "day": datetime.date(2024, 2, 29), "id": "8f14e45f-ceea-467f-a0e6-1b0d3f4c5a6b",
    "price": {"amount": decimal.Decimal("9.99"), "currency": "EUR"},
    "refund": {"amount": decimal.Decimal("-0.05"), "currency": "SEK"}, "scores": {"a": 0.5}, "tags": ["x"],
    "lines": [{"sku": "s1", "count": 2}], "hash": b"\0\1\2\xff", "y": "yes",
}  # fmt: skip


def main():
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from grpc_tools import protoc

    client = SchemaRegistryClient.new_client({"url": "mock://golden"})
    context = SerializationContext("orders", MessageField.VALUE)
    messages = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in PROTOS.items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(text)
        includes = str(Path(protoc.__file__).parent / "_proto")
        out = Path(folder) / "set"
        assert protoc.main(["", f"-I{folder}", f"-I{includes}", "--include_imports", f"-o{out}", "orders.proto"]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    tree = {"size": 1, "left": {"size": 2, "left": {}}, "children": [{}, {"size": 3}]}
    protobuf = {
        "shop.Order": ("order", ORDER), "shop.Order.Line": ("line", {"sku": "s", "count": 3}), "shop.Key": ("key", {"id": "k"}),
        "shop.Order.Line.Gift": ("gift", {"text": "hi"}), "shop.Tree": ("tree", tree),
    }  # fmt: skip
    for kind, (name, fields) in protobuf.items():
        message = json_format.ParseDict(fields, message_factory.GetMessageClass(pool.FindMessageTypeByName(kind))())
        serializer = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
        messages[f"protobuf {name}"] = serializer(message, context).hex()
    client.register_schema("money", Schema(json.dumps(MONEY), "AVRO"))
    avro = Schema(json.dumps(AVRO), "AVRO", [SchemaReference("shop.Money", "money", 1)])
    messages["avro order"] = AvroSerializer(client, avro)(RECORD, SerializationContext("avro", MessageField.VALUE)).hex()
    schema = {"title": "Order", "type": "object", "properties": {"size": {"type": "number"}}, "required": ["size"]}
    text = json.dumps(schema)
    messages["json order"] = JSONSerializer(text, client)(ORDER, SerializationContext("json", MessageField.VALUE)).hex()

    answers = {}
    for subject in client.get_subjects():
        for version in client.get_versions(subject):
            registered = client.get_version(subject, version)
            answer = {"schema": registered.schema.schema_str}
            if registered.schema.schema_type != "AVRO":
                answer["schemaType"] = registered.schema.schema_type
            if registered.schema.references:
                answer["references"] = [
                    {"name": r.name, "subject": r.subject, "version": r.version} for r in registered.schema.references
                ]
            paths = [f"/schemas/ids/{registered.schema_id}", f"/subjects/{subject.replace('/', '%2F')}/versions/{version}"]
            for path in paths:
                answers[path] = answer
    GOLDEN.write_text(json.dumps({"answers": answers, "messages": messages}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
