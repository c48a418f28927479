"""Codecs, which turn rows into Kafka messages and back."""

from typing import Any

from streamsvm_kafka.codecs.arrow import ArrowCodec
from streamsvm_kafka.codecs.avro import AvroCodec
from streamsvm_kafka.codecs.float32 import Float32Codec
from streamsvm_kafka.codecs.json_rows import JSONCodec
from streamsvm_kafka.codecs.npy import NpyCodec
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, MAX_TABLE_BYTES, Codec, TableCodec, table_of
from streamsvm_kafka.codecs.registry import SchemaRegistry

#: The codecs that a URL can name. Those without feature names take ``n_features``, the others the name of the label.
CODECS: dict[str, Any] = {codec.name: codec for codec in (JSONCodec, Float32Codec, ArrowCodec, NpyCodec, AvroCodec)}

__all__ = [
    "CODECS",
    "MAX_MESSAGE_BYTES",
    "MAX_TABLE_BYTES",
    "ArrowCodec",
    "AvroCodec",
    "Codec",
    "Float32Codec",
    "JSONCodec",
    "NpyCodec",
    "SchemaRegistry",
    "TableCodec",
    "table_of",
]
