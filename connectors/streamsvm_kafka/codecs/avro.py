"""Reads Avro records by their schemas, with fastavro, which the extra ``avro`` installs."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import fastavro

from streamsvm.files.messages import short_repr
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES

#: The parts of a schema that decoding needs. Defaults and documentation are left out: fastavro refuses some that others accept.
_SCHEMA_PARTS = ("type", "name", "namespace", "symbols", "items", "values", "size", "scale")
_TIME_TYPES = ("date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
#: How fastavro reads logical types. Of the others, the number or text that stores a value is read.
_LOGICAL_TYPES = {"decimal": "streamsvm-decimal"} | dict(zip(_TIME_TYPES, _TIME_TYPES, strict=True))


class AvroSchema:
    """The schema of Avro records: the JSON ``text`` that a registry returns, and those of the ``imports`` that it refers to.

    Numbers, booleans, strings and enums are read as in JSON, decimals as numbers, dates and timestamps as Python objects, bytes
    as bytes. Records and maps become dicts, arrays become lists. A union is read as the value that it contains. Raise an error if
    the schema is invalid, or a message could be nested without limit, or take much more memory than its size.

    >>> schema = AvroSchema('{"type": "record", "name": "Row", "fields": [{"name": "a", "type": ["null", "double"]}]}', {})
    >>> schema.read(bytes(5) + bytes.fromhex("02 000000000000e03f"))
    {'a': 0.5}
    """

    def __init__(self, text: str, imports: Mapping[str, str]) -> None:
        types: dict[str, Any] = {}
        for imported in imports.values():
            fastavro.parse_schema(_simplify(json.loads(imported)), types)
        # A record with one field is stored as that field. fastavro finds imported types only from within a record.
        row = {"name": "row", "type": _simplify(json.loads(text))}
        self._parsed = fastavro.parse_schema({"type": "record", "name": "streamsvm_row", "fields": [row]}, types)
        if (depth := _measure_depth([*types.values()], {})) > 64:  # fastavro crashes if values are nested a few thousand deep
            raise ValueError("a value is nested more than 64 deep, or within itself")
        #: Maximum size of a message. Within an array, each byte may become a record at each level, of 232 bytes as a dict.
        self.max_bytes: float = MAX_MESSAGE_BYTES // max(1.0, 2.0 * depth - 4.0)

    def read(self, value: bytes) -> dict[str, Any]:
        """Decode a message, which begins with a zero and the id of the schema, to a dict of its fields."""
        stream = io.BytesIO(value[5:])
        fields: Any = fastavro.schemaless_reader(stream, self._parsed, None)["row"]
        if n_left := len(stream.read()):
            raise ValueError(f"{n_left} bytes follow it")
        if not isinstance(fields, dict):
            raise ValueError(f"{short_repr(fields)} is not a record")
        return fields


def _simplify(kind: Any) -> Any:
    """Return a copy of an Avro schema or type (parsed JSON) with only the parts that decoding needs. Fields of type null are left
    out, too, as they take no bytes.
    """
    if isinstance(kind, list):
        return [_simplify(member) for member in kind]
    if not isinstance(kind, dict):
        return kind
    simple = {part: _simplify(kind[part]) for part in _SCHEMA_PARTS if part in kind}
    if "fields" in kind:
        simple["fields"] = [_simplify(field) for field in kind["fields"] if field["type"] != "null"]
    logical_type = _LOGICAL_TYPES.get(kind.get("logicalType", ""))
    return simple | ({"logicalType": logical_type} if logical_type else {})


def _measure_depth(kind: Any, depths: dict[str, float]) -> float:
    """Return how deep values of an Avro type (parsed by fastavro) are nested; infinite if they contain values of the same type.
    ``depths`` are those of named types so far.

    Raise a ValueError if values take no bytes, because an array of a few bytes could contain any number of them.
    """
    if isinstance(kind, list):
        return max((_measure_depth(member, depths) for member in kind if member != "null"), default=0)
    if isinstance(kind, str) and kind != "null":
        return depths.get(kind, 0)
    if kind == "null" or kind["type"] == "null" or kind.get("size", 1) <= 0 or kind.get("fields") == []:
        raise ValueError(f"values of type {short_repr(kind)} take no bytes")
    name, parts = kind.get("name", ""), [field["type"] for field in kind.get("fields", ())]
    parts += [kind[part] for part in ("items", "values") if part in kind]
    depths[name] = math.inf
    depths[name] = 1 + max((_measure_depth(part, depths) for part in parts), default=-1)
    return depths[name]


def _read_decimal(data: bytes, schema: Mapping[str, Any], _: Any = None) -> float:
    """Convert the bytes of an Avro decimal to a number, an int if its ``schema`` has no decimal places. fastavro would convert a
    million bytes to a Decimal, which takes seconds.
    """
    if len(data) > 64:
        raise ValueError(f"a decimal of {len(data)} bytes; at most 64 are read")
    number, scale = int.from_bytes(data, signed=True), schema.get("scale", 0)
    return float(f"{number}e-{scale}") if scale else number


fastavro.read.LOGICAL_READERS |= {f"{kind}-streamsvm-decimal": _read_decimal for kind in ("bytes", "fixed")}
