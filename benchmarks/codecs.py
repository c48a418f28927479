"""Measures the time to decode a row of a Kafka message, for each codec, with one row and with many rows a message.

Rows have 22 normally distributed features and a binary label. A call decodes one message; a call of ``decode_batch`` decodes
1,000. The peer of each codec is another library that parses the same bytes, but makes no rows: ``json`` and orjson, pyarrow's
batches, ``numpy.load``, fastavro's record, protobuf's message, ``numpy.frombuffer``. Nested rows of ``registry`` have half of the
features in a record (Avro) or message (Protobuf) ``p``.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import common
import fastavro
import numpy as np
import orjson
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from streamsvm.stream import Table
from streamsvm.stream.tables.chunk import concatenate_rows
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, NpyCodec, RegistryCodec, SchemaRegistry
from streamsvm_kafka.codecs import rows_to_table

FEATURES = 22
BATCH_ROWS = 1000


PREFIX = b"\0\0\0\0\1"


class _LocalRegistry(SchemaRegistry):
    """A registry with one schema, so that no server is needed."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__("http://localhost")
        self._answer = {"schemaType": kind, "schema": text}

    def _send_request(self, _: str) -> dict[str, Any]:
        return self._answer


def make_avro(names: Sequence[str], is_nested: bool) -> tuple[RegistryCodec, Any]:
    """Return the codec of Avro records with features of these names, and their schema as fastavro parses it."""
    fields: list[Any] = [{"name": name, "type": "float"} for name in names]
    if is_nested:
        half = len(fields) // 2
        fields[half:] = [{"name": "p", "type": {"type": "record", "name": "Part", "fields": fields[half:]}}]
    schema = {"type": "record", "name": "Row", "fields": [*fields, {"name": "y", "type": "int"}]}
    return RegistryCodec("y", _LocalRegistry("AVRO", json.dumps(schema))), fastavro.parse_schema(schema)


def make_protobuf(names: Sequence[str], is_nested: bool) -> tuple[RegistryCodec, Any]:
    """Return the codec of Protobuf messages with features of these names, and the class of the messages."""
    file = FileDescriptorProto(name="row.proto", syntax="proto3")
    kind, part = file.message_type.add(name="Row"), file.message_type.add(name="Part")
    for number, name in enumerate(names, 1):
        place = part if is_nested and number > len(names) // 2 else kind
        place.field.add(name=name, number=number, type=FieldDescriptorProto.TYPE_FLOAT, label=1)
    kind.field.add(name="y", number=100, type=FieldDescriptorProto.TYPE_INT32, label=1)
    if is_nested:
        kind.field.add(name="p", number=101, type=FieldDescriptorProto.TYPE_MESSAGE, type_name="Part", label=1)
    pool = DescriptorPool()
    pool.Add(file)
    text = base64.b64encode(file.SerializeToString()).decode()
    return RegistryCodec("y", _LocalRegistry("PROTOBUF", text)), GetMessageClass(pool.FindMessageTypeByName("Row"))


def nest(row: dict[str, Any]) -> dict[str, Any]:
    """Move the second half of a row's features into ``p``."""
    names = [name for name in row if name != "y"]
    second = names[len(names) // 2 :]
    return {name: row[name] for name in row if name not in second} | {"p": {name: row[name] for name in second}}


def make_tables(rng: np.random.Generator) -> tuple[Table, Table]:
    """Return random rows twice: with strings and with integers as names of features."""
    columns = list(rng.normal(size=(BATCH_ROWS, FEATURES)).astype(np.float32).T)
    y = (columns[0] > 0).astype(int).tolist()
    return Table(tuple(f"f{j}" for j in range(FEATURES)), columns, y), Table(tuple(range(FEATURES)), columns, y)


def write_avro(schema: Any, row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def read_avro(schema: Any, value: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)


def read_protobuf(message_class: Any, value: bytes) -> Any:
    return message_class.FromString(value[6:])


def parse_json_behind_prefix(value: bytes) -> Any:
    return orjson.loads(value[5:])


def measure_call(call: Callable[[Any], object], values: Sequence[Any], rows: int, repeats: int) -> dict[str, float]:
    """Call a function with each value, and return statistics of the microseconds of CPU time a row."""
    microseconds = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        for value in values:
            call(value)
        microseconds.append(1e6 * (time.thread_time() - start) / rows)
    return common.summarise(microseconds[1:])  # the first warms up


def main() -> None:
    parser = common.make_parser(__doc__, "codecs")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    named, numbered = make_tables(np.random.default_rng(1))
    layout = struct.Struct(f"<{FEATURES + 1}f")
    jsons, packed = JSONCodec("y"), Float32Codec(FEATURES)
    arrow, npy = ArrowCodec("y"), NpyCodec(FEATURES)
    by_name, by_number = ([rows.row(i) for i in range(BATCH_ROWS)] for rows in (named, numbered))

    def decode_float32(values: Sequence[bytes]) -> Table:
        rows = packed.decode_batch(*concatenate_rows(values), list(numbered.names))
        assert rows is not None
        return rows

    def decode_json(values: Sequence[bytes]) -> Any:
        table = jsons.decode_batch(*concatenate_rows(values), list(named.names))
        assert table is not None
        assert not table.unparsed_rows
        return table

    def read_arrow(value: bytes) -> list[Any]:
        return list(pa.ipc.open_stream(value))

    def load_npy(value: bytes) -> Any:
        return np.load(io.BytesIO(value))

    def view_float32(values: Sequence[bytes]) -> Any:
        return np.frombuffer(b"".join(values), "<f4").reshape(-1, FEATURES + 1)

    in_json, in_packed = [jsons.encode(row) for row in by_name], [packed.encode(row) for row in by_number]
    rows_as_dicts = [{**{name: float(item) for name, item in row.x.items()}, "y": row.y} for row in by_name]
    one_arrow = [arrow.encode_rows(rows_to_table([row])) for row in by_name]
    one_npy = [npy.encode_rows(rows_to_table([row])) for row in by_number]
    many_arrow, many_npy = [arrow.encode_rows(named)] * 20, [npy.encode_rows(numbered)] * 20
    #: Name, rows a call, encoded values, the codec's function, the peer's name and function.
    cases: list[tuple[str, int, Sequence[Any], Callable[[Any], object], str, Callable[[Any], object]]] = [
        ("json", 1, in_json, jsons.decode, "orjson", orjson.loads),
        ("json", 1, in_json, jsons.decode, "json", json.loads),
        ("json, decode_many", BATCH_ROWS, [in_json] * 20, decode_json, "orjson", lambda values: list(map(orjson.loads, values))),
        ("float32", 1, in_packed, packed.decode, "struct", layout.unpack),
        ("float32, decode_many", BATCH_ROWS, [in_packed] * 20, decode_float32, "numpy.frombuffer", view_float32),
        ("npy", 1, one_npy, npy.decode_rows, "numpy.load", load_npy),
        ("npy", BATCH_ROWS, many_npy, npy.decode_rows, "numpy.load", load_npy),
        ("arrow", 1, one_arrow, arrow.decode_rows, "pyarrow", read_arrow),
        ("arrow", BATCH_ROWS, many_arrow, arrow.decode_rows, "pyarrow", read_arrow),
    ]
    lengths = {"json": len(in_json[0]), "float32": len(in_packed[0])}
    for is_nested in (False, True):
        kind, dicts = (", nested", [nest(row) for row in rows_as_dicts]) if is_nested else ("", rows_as_dicts)
        codec, schema = make_avro(named.names, is_nested)
        values = [PREFIX + write_avro(schema, row) for row in dicts]
        cases.append((f"registry, Avro{kind}", 1, values, codec.decode, "fastavro", partial(read_avro, schema)))
        codec, message_class = make_protobuf(named.names, is_nested)
        values = [PREFIX + b"\0" + message_class(**row).SerializeToString() for row in dicts]
        cases.append((f"registry, Protobuf{kind}", 1, values, codec.decode, "protobuf", partial(read_protobuf, message_class)))
    codec = RegistryCodec("y", _LocalRegistry("JSON", ""))
    cases.append(("registry, JSON", 1, [PREFIX + value for value in in_json], codec.decode, "orjson", parse_json_behind_prefix))
    results, lines = [], []
    for name, rows, values, call, peer_name, peer in cases:
        ours, theirs = (measure_call(function, values, rows * len(values), arguments.repeats) for function in (call, peer))
        size = lengths.get(name.partition(",")[0]) or len(values[0]) / rows
        results.append({"codec": name, "rows": rows, "bytes": size, "us": ours, "peer": peer_name, "peer_us": theirs})
        times = [" ".join(f"{figures[part]:.3f}" for part in ("min", "median", "max")) for figures in (ours, theirs)]
        lines.append((name, rows, f"{size:.0f}", times[0], peer_name, times[1]))
        common.report_progress(f"{name}, {rows}: {ours['median']:.3f} us a row")
    columns = ("codec", "rows a call", "bytes a row", "us a row (min median max)", "peer", "us a row")
    common.print_table(f"Decoding rows of {FEATURES} features", columns, lines)
    common.write_json(arguments.out, {"features": FEATURES, "repeats": arguments.repeats, "codecs": results})


if __name__ == "__main__":
    main()
