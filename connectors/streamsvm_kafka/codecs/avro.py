"""Rows as Avro records with the id of their schema, one a message."""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from streamsvm.core.checks import as_python
from streamsvm.files.messages import missing_package, shown
from streamsvm.stream.tables.chunk import Row
from streamsvm.stream.tables.values import label_of
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, Codec, fields_of
from streamsvm_kafka.codecs.registry import SchemaRegistry

_FLAT = ("null", "boolean", "int", "long", "float", "double", "string", "enum")
#: Those that fastavro reads as times; of others the number or text below them.
_TIMES = ("date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
_BEGIN = struct.Struct(">bi")
_SCHEMAS = 1000
#: What fastavro raises for bytes that are no such record, or a record that is none of the schema.
_ERRORS = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, StopIteration, TypeError, ValueError, struct.error,
)  # fmt: skip


class _Flat(NamedTuple):
    """A schema of a flat record."""

    parsed: Any
    names: frozenset[str]


class AvroCodec(Codec):
    """Codec of Avro records with a schema registry, one row in each message.

    Messages are in Confluent's wire format: a zero, the id of the schema in four bytes, and the record. fastavro reads it
    (``streamsvm[avro]``) by the schema that it was written with, from the registry. A field is a feature or the label, as in
    JSON: numbers, booleans, strings and enums (as text), and times (as Python objects). Each of these may also be in a union
    with null, which is a missing feature or an unlabelled row. If a schema has any other field, each of its rows is an error.

    Parameters
    ----------
    label
        Name of the label's field. None if the messages have none.
    registry
        Registry that holds the schemas.
    schema
        Id of the schema that `encode` writes with. None makes a codec that only reads.

    Raises
    ------
    ModuleNotFoundError
        fastavro is not installed (extra ``avro``).
    StreamError
        From `decode` and `encode`: the registry cannot be asked.

    Examples
    --------
    >>> registry = SchemaRegistry("http://localhost:8081")
    >>> AvroCodec("y", registry).decode(b'{"temperature": 21.5}')
    Traceback (most recent call last):
        ...
    ValueError: not Avro in Confluent's wire format: the first byte is 123, not 0
    """

    name = "avro"

    def __init__(self, label: str | None, registry: SchemaRegistry, *, schema: int | None = None) -> None:
        try:
            import fastavro  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise missing_package("an Avro message", "fastavro", "avro", error) from error
        self.label = label
        self._avro: Any = fastavro
        self._registry, self._schema = registry, schema
        self._schemas: dict[int, _Flat | str] = {}  # or why it is none

    def decode(self, value: bytes) -> Row:
        """Decode a record; raise a ValueError if the message does not have the class's form."""
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(value)} bytes; a row may have at most {MAX_MESSAGE_BYTES}")
        if not value or value[0] != 0:
            found = f"the first byte is {value[0]}, not 0" if value else "it is empty"
            raise ValueError(f"not Avro in Confluent's wire format: {found}")
        if len(value) < _BEGIN.size:
            raise ValueError(f"not Avro in Confluent's wire format: {len(value)} bytes hold no id of a schema")
        number = _BEGIN.unpack_from(value)[1]
        schema = self._flat_schema(number)
        stream = io.BytesIO(value)
        stream.seek(_BEGIN.size)
        try:
            fields = self._avro.schemaless_reader(stream, schema.parsed, None)
        except _ERRORS as error:
            raise ValueError(f"not a record of schema {number}: {error or type(error).__name__}") from None
        if stream.tell() != len(value):
            raise ValueError(f"not a record of schema {number}: {len(value) - stream.tell()} bytes are left behind it")
        y = label_of(fields.pop(self.label, None)) if self.label is not None else None
        if None in fields.values():
            fields = {name: item for name, item in fields.items() if item is not None}
        return Row(fields, y)

    def encode(self, row: Row) -> bytes:
        """Encode a row as a record of the schema.

        Raise a ValueError if the codec has no schema, or the row does not fit it.
        """
        if self._schema is None:
            raise ValueError("this codec only reads: give AvroCodec(..., schema=ID), the id of the schema to write with")
        schema, fields = self._flat_schema(self._schema), fields_of(row, self.label, "AvroCodec")
        if unknown := fields.keys() - schema.names:
            raise ValueError(f"{shown(min(unknown, key=repr))} is no field of schema {self._schema}")
        plain = {name: as_python(item) for name, item in fields.items()}
        stream = io.BytesIO(_BEGIN.pack(0, self._schema))
        stream.seek(_BEGIN.size)
        try:
            self._avro.schemaless_writer(stream, schema.parsed, plain)
        except _ERRORS as error:
            raise ValueError(f"the row is no record of schema {self._schema}: {error or type(error).__name__}") from None
        return stream.getvalue()

    def _flat_schema(self, number: int) -> _Flat:
        schema = self._schemas.get(number)
        if schema is None:
            given = self._registry.schema(number)
            schema = _not_flat(given) or self._parsed_schema(given)
            if len(self._schemas) >= _SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[number] = schema
        if isinstance(schema, str):
            raise ValueError(f"schema {number} is not that of a row: {schema}")
        return schema

    def _parsed_schema(self, given: Any) -> _Flat | str:
        try:
            parsed = self._avro.parse_schema(_plain_schema(given))
        except (*_ERRORS, self._avro.schema.SchemaParseException, self._avro.schema.UnknownType) as error:
            return f"fastavro does not read it ({error or type(error).__name__})"
        return _Flat(parsed, frozenset(field["name"] for field in given["fields"]))


def _not_flat(schema: Any) -> str:
    """Say why a schema is not that of a flat record; empty if it is."""
    if not (isinstance(schema, dict) and schema.get("type") == "record" and isinstance(schema.get("fields"), list)):
        return "it is no record"
    for field in schema["fields"]:
        if not (isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field):
            return "a field has no name or no type"
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            found = kind.get("type") if isinstance(kind, dict) else kind
            if found not in _FLAT:
                return f"field {field['name']!r} is of type {shown(found)}; a row is flat, with numbers, booleans and text"
    return ""


def _plain_schema(schema: Any) -> dict[str, Any]:
    """A flat record's schema with what is needed to read it, and of logical types only times: no model takes the others."""
    numbers = itertools.count()
    fields = [{"name": field["name"], "type": _plain_type(field["type"], numbers)} for field in schema["fields"]]
    return {"type": "record", "name": "row", "fields": fields}


def _plain_type(kind: Any, numbers: Iterator[int]) -> Any:
    if isinstance(kind, list):
        return [_plain_type(one, numbers) for one in kind]
    if isinstance(kind, dict):
        needed = {name: kind[name] for name in ("type", "symbols") if name in kind}
        if "name" in kind:  # two of one name may differ in the namespace, which is left out
            needed["name"] = f"enum{next(numbers)}"
        return needed | ({"logicalType": kind["logicalType"]} if kind.get("logicalType") in _TIMES else {})
    return kind
