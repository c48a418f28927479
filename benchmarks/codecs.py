"""What it takes to decode a row of a Kafka message, by codec, with one row a message and with many.

Rows have 22 features, normal numbers, and a label of two. A call takes one message, but ``decode_batch``
as many as others have rows a message. The peer of each is what another library reads of the same bytes, without a row being
made of it: ``json`` and orjson, pyarrow's batches, ``numpy.load``, fastavro's record, ``numpy.frombuffer``.
"""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import common
import fastavro
import numpy as np
import orjson
import pyarrow as pa

from streamsvm.stream import Table
from streamsvm.stream.tables.chunk import concatenate_rows
from streamsvm_kafka import ArrowCodec, AvroCodec, Float32Codec, JSONCodec, NpyCodec, SchemaRegistry
from streamsvm_kafka.codecs import rows_to_table

FEATURES = 22
MANY = 1000


class _Held(SchemaRegistry):
    """A registry that is not asked."""

    def __init__(self, schema: Any) -> None:
        super().__init__("http://localhost")
        self._schemas[1] = schema


def tables(rng: np.random.Generator) -> tuple[Table, Table]:
    """The rows, with features named by texts and by numbers."""
    columns = list(rng.normal(size=(MANY, FEATURES)).astype(np.float32).T)
    y = (columns[0] > 0).astype(int).tolist()
    return Table(tuple(f"f{j}" for j in range(FEATURES)), columns, y), Table(tuple(range(FEATURES)), columns, y)


def measured(call: Callable[[Any], object], values: Sequence[Any], rows: int, repeats: int) -> dict[str, float]:
    """Microseconds a row of calls for each value."""
    found = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        for value in values:
            call(value)
        found.append(1e6 * (time.perf_counter() - begin) / rows)
    return common.summary(found[1:])  # the first warms up


def main() -> None:
    parser = common.argument_parser(__doc__, "codecs")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    named, numbered = tables(np.random.default_rng(1))
    fields = [{"name": name, "type": "float"} for name in named.names]
    schema = {"type": "record", "name": "Row", "fields": [*fields, {"name": "y", "type": "int"}]}
    parsed = fastavro.parse_schema(schema)
    layout = struct.Struct(f"<{FEATURES + 1}f")
    jsons, packed, avro = JSONCodec("y"), Float32Codec(FEATURES), AvroCodec("y", _Held(schema), schema=1)
    arrow, npy = ArrowCodec("y"), NpyCodec(FEATURES)
    by_name, by_number = ([rows.row(i) for i in range(MANY)] for rows in (named, numbered))

    def poll(values: Sequence[bytes]) -> Table:
        rows = packed.decode_batch(*concatenate_rows(values), list(numbered.names))
        assert rows is not None
        return rows

    def numbers(values: Sequence[bytes]) -> Any:
        found = jsons.decode_batch(*concatenate_rows(values), list(named.names))
        assert found is not None
        assert not found.unparsed_rows
        return found

    def batches(value: bytes) -> list[Any]:
        return list(pa.ipc.open_stream(value))

    def loaded(value: bytes) -> Any:
        return np.load(io.BytesIO(value))

    def frombuffer(values: Sequence[bytes]) -> Any:
        return np.frombuffer(b"".join(values), "<f4").reshape(-1, FEATURES + 1)

    def record(value: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)

    in_json, in_packed = [jsons.encode(row) for row in by_name], [packed.encode(row) for row in by_number]
    in_avro = [avro.encode(row) for row in by_name]
    one_arrow = [arrow.encode_rows(rows_to_table([row])) for row in by_name]
    one_npy = [npy.encode_rows(rows_to_table([row])) for row in by_number]
    many_arrow, many_npy = [arrow.encode_rows(named)] * 20, [npy.encode_rows(numbered)] * 20
    #: Name, rows a call, its values, the codec's call, the peer's name and call.
    cases: list[tuple[str, int, Sequence[Any], Callable[[Any], object], str, Callable[[Any], object]]] = [
        ("json", 1, in_json, jsons.decode, "orjson", orjson.loads),
        ("json", 1, in_json, jsons.decode, "json", json.loads),
        ("json, decode_many", MANY, [in_json] * 20, numbers, "orjson", lambda values: list(map(orjson.loads, values))),
        ("avro", 1, in_avro, avro.decode, "fastavro", record),
        ("float32", 1, in_packed, packed.decode, "struct", layout.unpack),
        ("float32, decode_many", MANY, [in_packed] * 20, poll, "numpy.frombuffer", frombuffer),
        ("npy", 1, one_npy, npy.decode_rows, "numpy.load", loaded),
        ("npy", MANY, many_npy, npy.decode_rows, "numpy.load", loaded),
        ("arrow", 1, one_arrow, arrow.decode_rows, "pyarrow", batches),
        ("arrow", MANY, many_arrow, arrow.decode_rows, "pyarrow", batches),
    ]
    lengths = {"json": len(in_json[0]), "avro": len(in_avro[0]), "float32": len(in_packed[0])}
    results, shown = [], []
    for name, rows, values, call, peer_name, peer in cases:
        ours, theirs = (measured(each, values, rows * len(values), arguments.repeats) for each in (call, peer))
        size = lengths.get(name.partition(",")[0]) or len(values[0]) / rows
        results.append({"codec": name, "rows": rows, "bytes": size, "us": ours, "peer": peer_name, "peer_us": theirs})
        times = [" ".join(f"{each[part]:.3f}" for part in ("min", "median", "max")) for each in (ours, theirs)]
        shown.append((name, rows, f"{size:.0f}", times[0], peer_name, times[1]))
        common.progress(f"{name}, {rows}: {ours['median']:.3f} us a row")
    columns = ("codec", "rows a call", "bytes a row", "us a row (min median max)", "peer", "us a row")
    common.show(f"Decoding rows of {FEATURES} features", columns, shown)
    common.write(arguments.out, {"features": FEATURES, "repeats": arguments.repeats, "codecs": results})


if __name__ == "__main__":
    main()
