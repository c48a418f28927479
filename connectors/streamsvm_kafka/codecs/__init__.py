"""Codecs, which turn rows into Kafka messages and back."""

from typing import Any

from streamsvm_kafka.codecs.arrow import ArrowCodec
from streamsvm_kafka.codecs.json_rows import JSONCodec
from streamsvm_kafka.codecs.numeric import Float32Codec, NpyCodec
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, MAX_TABLE_BYTES, MessageCodec, TableCodec, rows_to_table
from streamsvm_kafka.codecs.registry import RegistryCodec, SchemaRegistry

#: The codecs that a URL can name. Those without feature names take ``n_features``, the others the name of the label.
CODECS: dict[str, Any] = {codec.name: codec for codec in (JSONCodec, Float32Codec, ArrowCodec, NpyCodec, RegistryCodec)}
CODECS["avro"] = RegistryCodec

__all__ = [
    "CODECS",
    "MAX_MESSAGE_BYTES",
    "MAX_TABLE_BYTES",
    "ArrowCodec",
    "Float32Codec",
    "JSONCodec",
    "MessageCodec",
    "NpyCodec",
    "RegistryCodec",
    "SchemaRegistry",
    "TableCodec",
    "rows_to_table",
]
