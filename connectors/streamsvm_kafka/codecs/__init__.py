"""Codecs, which turn rows into Kafka messages and back."""

from streamsvm_kafka.codecs.arrow import ArrowCodec
from streamsvm_kafka.codecs.avro import AvroCodec
from streamsvm_kafka.codecs.float32 import Float32Codec
from streamsvm_kafka.codecs.json_rows import JSONCodec
from streamsvm_kafka.codecs.names import check_headers
from streamsvm_kafka.codecs.npy import NpyCodec
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, MAX_TABLE_BYTES, Codec, TableCodec, table_of
from streamsvm_kafka.codecs.registry import SchemaRegistry

__all__ = [
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
    "check_headers",
    "table_of",
]
