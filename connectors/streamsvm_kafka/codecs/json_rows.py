"""Codec of JSON objects, one row in each message."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import orjson

from streamsvm.files.messages import short_repr
from streamsvm.stream.json_objects import STRICT_DECODER, JSONObjects
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm.stream.tables.values import flatten_row, get_nested_value
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, MessageCodec, make_fields, make_row

_PREFIX_BYTES = 5  # of Confluent's serializers: a zero, and the id of the schema


class JSONCodec(MessageCodec):
    """Codec of JSON objects, one row in each message.

    The object has a field for each feature and one for the label. A null is a missing feature. A message whose label field is
    absent or null is an unlabelled row. Other values are numbers, strings or booleans. Fields of an object within the object are
    named by their path (``payload.after.amount``), and extended JSON of MongoDB is read as in JSON lines. An array stays a list,
    which a model refuses unless it drops the field. NaN and Infinity are read as in JSON lines. Confluent's prefix (the id of the
    schema) is skipped. A message longer than `MAX_MESSAGE_BYTES` is an error.

    Parameters
    ----------
    label
        Name of the label's field. None if the messages have none.

    Examples
    --------
    >>> codec = JSONCodec(label="y")
    >>> codec.decode(b'{"temperature": 21.5, "humid": true, "y": 1}')
    Row(x={'temperature': 21.5, 'humid': True}, y=1)
    >>> codec.encode(Row({"temperature": 21.5}, 0))
    b'{"temperature":21.5,"y":0}'
    >>> codec.decode(b"[1, 2]")
    Traceback (most recent call last):
        ...
    ValueError: expected a JSON object whose fields are features, got [1, 2]
    """

    name = "json"

    def __init__(self, label: str | None) -> None:
        self.label = label
        self._objects = JSONObjects(label, orjson.loads)

    def decode_with_fields(self, value: bytes, names: Sequence[str]) -> tuple[Row, list[Any]]:
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(value)} bytes; a row may have at most {MAX_MESSAGE_BYTES}")
        text = value[_PREFIX_BYTES:] if value[:1] == b"\0" else value
        try:
            fields = self._parse_object(text)
        except (ValueError, RecursionError) as error:
            hint = f". It begins with schema {int.from_bytes(value[1:5])} of a registry: if that is not JSON, use codec=registry"
            raise ValueError(f"not JSON: {error}{hint * (text is not value)}") from None
        if type(fields) is not dict:
            raise ValueError(f"expected a JSON object whose fields are features, got {short_repr(fields)}")
        kept = [get_nested_value(fields, name) for name in names] if names else []
        # Most messages contain neither of these bytes, so their fields need not be checked.
        if text.find(b"{", 1) >= 0 or (self.dropped_fields and b"[" in text):
            fields = flatten_row(fields, self.label, self.dropped_fields)
        if text.count(b":") >= len(fields) + text.count(b"{"):  # a colon in a text, or a duplicate name
            STRICT_DECODER.decode(text.decode())
        return make_row(fields, self.label, b"null" in value), kept

    def _parse_object(self, text: bytes) -> Any:
        """Parse the JSON of a message. As in JSON lines, NaN and Infinity are numbers."""
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            if b"NaN" not in text and b"Infinity" not in text:
                raise
        return STRICT_DECODER.decode(text.decode())

    def decode_batch(self, data: bytes, starts: np.ndarray, stops: np.ndarray, features: Sequence[Hashable]) -> Table | None:
        """Decode many JSON messages at once to a table, in compiled code; message i is ``data[starts[i]:stops[i]]``. ``features``
        are the model's feature names; if it is empty, all fields are decoded. Return None if most messages must be decoded one by
        one, by `decode`.

        Rows that must be decoded one by one are unparsed rows of the table. ``features`` is as for `Chunk.table`.
        """
        if data:
            has_prefix = np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)] == 0
            starts = starts + _PREFIX_BYTES * has_prefix
        return self._objects.parse_table(data, starts, stops, features)

    def encode(self, row: Row) -> bytes:
        """Encode a row as a JSON object of its features and, under the label's name, its label; return the bytes of the message.

        Raise a ValueError if the name of a feature is not a string, or is the label's name.
        """
        try:
            return orjson.dumps(make_fields(row, self.label, "JSONCodec"), option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the row cannot be written as JSON: {error}") from None
