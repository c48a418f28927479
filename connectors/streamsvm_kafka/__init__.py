"""Kafka topics as sources of rows, sinks of predictions, and stores of checkpoints.

`open_source` and `open_sink` open a topic by its URL, as the command line does; `KafkaSource` and `KafkaSink` are the classes
behind them. To try them without a broker, use an `EmbeddedBroker`, which runs inside this process.
"""

from streamsvm.files.messages import missing_package_error

try:
    import kafka  # noqa: F401
    import orjson  # noqa: F401
except ImportError as _error:
    raise missing_package_error("streamsvm_kafka", "kafka-python and orjson", "kafka", _error) from _error

from streamsvm_kafka.checkpoints import TopicCheckpoints
from streamsvm_kafka.codecs import ArrowCodec, Float32Codec, JSONCodec, MessageCodec, NpyCodec, RegistryCodec, SchemaRegistry
from streamsvm_kafka.connection import BrokerUnreachableError, Secret, client_options
from streamsvm_kafka.embedded import EmbeddedBroker
from streamsvm_kafka.followed_topic import FollowedTopic
from streamsvm_kafka.partitions import PartitionWorker
from streamsvm_kafka.sink import KafkaSink, publish
from streamsvm_kafka.source import KafkaSource
from streamsvm_kafka.urls import open_checkpoints, open_models, open_sink, open_source, open_worker

__all__ = [
    "ArrowCodec",
    "BrokerUnreachableError",
    "EmbeddedBroker",
    "Float32Codec",
    "FollowedTopic",
    "JSONCodec",
    "KafkaSink",
    "KafkaSource",
    "MessageCodec",
    "NpyCodec",
    "PartitionWorker",
    "RegistryCodec",
    "SchemaRegistry",
    "Secret",
    "TopicCheckpoints",
    "client_options",
    "open_checkpoints",
    "open_models",
    "open_sink",
    "open_source",
    "open_worker",
    "publish",
]
