"""The client library confluent-kafka, whose work is done by librdkafka."""

from streamsvm_kafka.clients.confluent.client import ConfluentAdmin
from streamsvm_kafka.clients.confluent.consumer import ConfluentConsumer
from streamsvm_kafka.clients.confluent.producer import ConfluentProducer

__all__ = ["ConfluentAdmin", "ConfluentConsumer", "ConfluentProducer"]
