"""The client library kafka-python."""

from streamsvm_kafka.clients.kafka_python.client import KafkaPythonAdmin
from streamsvm_kafka.clients.kafka_python.consumer import KafkaPythonConsumer
from streamsvm_kafka.clients.kafka_python.producer import KafkaPythonProducer

__all__ = ["KafkaPythonAdmin", "KafkaPythonConsumer", "KafkaPythonProducer"]
