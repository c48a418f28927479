"""Reads Protobuf messages by the schemas that a registry has compiled, with protobuf, which the extra ``protobuf`` installs."""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from functools import partial
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES

_MAX_VALUES = MAX_MESSAGE_BYTES // 2  # of a message: fields with the default value take no bytes in it
_VARINT = re.compile(rb"[\x80-\xff]{0,4}[\0-\x7f]")  # an integer of variable length, up to 35 bits
#: Files that are imported without being in the registry.
_GOOGLE_NAMES = ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_GOOGLE_FILES = [importlib.import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR for name in _GOOGLE_NAMES]
#: How messages of well-known types are read, by the name of the type.
_WELL_KNOWN: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Timestamp": lambda message: message.ToDatetime(UTC),
    "google.protobuf.Duration": lambda message: message.ToTimedelta().total_seconds(),
    **{f"google.protobuf.{name}": MessageToDict for name in ("Struct", "Value", "ListValue")},
    **{kind.full_name: lambda message: message.value for kind in _GOOGLE_FILES[-1].message_types_by_name.values()},
}


class _Files(dict[str, FileDescriptorProto]):
    """Files from which a pool of types takes those that it needs."""

    def FindFileByName(self, name: str) -> FileDescriptorProto:  # noqa: N802 - called by protobuf
        """Return and remove a file: if two imported each other, protobuf would not end. An unknown file is empty: most of those
        that a registry knows by itself, such as ``confluent/meta.proto``, have only options.
        """
        return self.pop(name, None) or FileDescriptorProto(name=name)


class ProtobufSchema:
    """The schema of Protobuf messages: a file that a registry has compiled (a FileDescriptorProto as ``text`` in base64), and
    the ``imports`` of that file by name, in the same form.

    Fields have the names of the schema. Numbers, booleans and strings are read as in JSON, enums as the names of their values
    (None for unknown ones), timestamps as Python datetimes, durations as seconds, bytes as bytes. Messages and maps become dicts,
    repeated fields become lists, or None if they are empty. A field that is absent from the message has its default value if the
    schema does not distinguish the two, as for numbers in proto3; otherwise, it is left out. Raise an error if the schema is
    invalid.
    """

    max_bytes: float = MAX_MESSAGE_BYTES

    def __init__(self, text: str, imports: Mapping[str, str]) -> None:
        files = _Files((file.name, FileDescriptorProto.FromString(file.serialized_pb)) for file in _GOOGLE_FILES)
        for name, content in {**imports, "streamsvm_row.proto": text}.items():
            try:
                files[name] = FileDescriptorProto.FromString(base64.b64decode(content, validate=True))
            except ValueError:
                raise ValueError("the registry does not compile Protobuf (format=serialized)") from None
            files[name].name = name
        file = DescriptorPool(files).FindFileByName("streamsvm_row.proto")
        self._types = dict(_iter_types(file.message_types_by_name.values()))
        #: Of each message type: a list of (field's name, whether it may be absent, conversion of its value or None).
        self._fields: dict[str, list[tuple[str, bool, Any]]] = {}

    def read(self, value: bytes) -> dict[str, Any]:
        """Decode a message, which begins with a zero, the schema's id and the indexes of its type, to a dict of its fields."""
        indexes, start = _read_indexes(value)
        if (kind := self._types.get(indexes)) is None:
            raise ValueError(f"the schema has no message type {list(indexes)}")
        self._n_values = 0
        return self._read_fields(kind, GetMessageClass(kind).FromString(value[start:]))

    def _make_conversion(self, field: Any) -> Any:
        """Return the function that converts the value of a field (a descriptor) to Python; None to keep the value."""
        kind, convert = field.message_type, None
        if kind is not None and kind.GetOptions().map_entry:
            convert = self._make_conversion(kind.fields_by_name["value"]) or (lambda item: item)
            return lambda items: {str(key): convert(items[key]) for key in items}
        if kind is not None:
            convert = _WELL_KNOWN.get(kind.full_name) or partial(self._read_fields, kind)
        elif field.enum_type is not None:
            convert = {number: value.name for number, value in field.enum_type.values_by_number.items()}.get
        if field.is_repeated:  # it is missing if it is empty: Protobuf does not distinguish the two
            return lambda items: [convert(item) if convert else item for item in items] or None
        return convert

    def _read_fields(self, kind: Any, message: Any) -> dict[str, Any]:
        """Convert a message of a type (a descriptor) to a dict of its fields. Raise a ValueError if it has too many of them."""
        values, kind_name = {}, kind.full_name
        if kind_name not in self._fields:
            self._fields[kind_name] = [(field.name, field.has_presence, self._make_conversion(field)) for field in kind.fields]
        for name, may_be_absent, convert in self._fields[kind_name]:
            if not may_be_absent or message.HasField(name):
                item = getattr(message, name)
                values[name] = item if convert is None else convert(item)
        self._n_values += len(values) + 1
        if self._n_values > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES} values")
        return values


def _iter_types(kinds: Iterable[Any], indexes: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the indexes of each message type (a descriptor), its own after those of the types around it, and the type."""
    for i, kind in enumerate(kinds):
        yield (*indexes, i), kind
        yield from _iter_types(kind.nested_types, (*indexes, i))


def _read_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message's type, which follow the schema's id, and the position where they end. Their number and
    each of them are integers of variable length in zigzag encoding; without any, it is the first type.
    """
    numbers, position = list[int](), 5
    while not numbers or len(numbers) <= min(numbers[0], 100):
        if (varint := _VARINT.match(value, position)) is None:
            raise ValueError("it ends within the indexes of its type")
        number = sum((byte & 127) << 7 * i for i, byte in enumerate(varint[0]))
        numbers.append(number >> 1 ^ -(number & 1))
        position = varint.end()
    return (0,) if numbers == [0] else tuple(numbers[1:]), position
