"""Codecs between rows and Kafka messages."""

from streamsvm_kafka.codecs.arrow import ArrowCodec
from streamsvm_kafka.codecs.float32 import Float32Codec
from streamsvm_kafka.codecs.json_rows import JSONCodec
from streamsvm_kafka.codecs.npy import NpyCodec
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, MAX_TABLE_BYTES, Codec, PackedCodec, TableCodec

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MAX_TABLE_BYTES",
    "ArrowCodec",
    "Codec",
    "Float32Codec",
    "JSONCodec",
    "NpyCodec",
    "PackedCodec",
    "TableCodec",
]
