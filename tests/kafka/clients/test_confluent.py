"""Responses of librdkafka in orders that are rare with a real broker."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError as Code
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from streamsvm_kafka.clients.confluent import ConfluentConsumer
from streamsvm_kafka.connection import Connection


def answer(offset, error=None, partition=0):
    """A message, or an error in the place of one."""
    failure = None if error is None else SimpleNamespace(code=lambda: error, str=lambda: "as it is told")
    return SimpleNamespace(
        error=lambda: failure,
        partition=lambda: partition,
        offset=lambda: offset,
        timestamp=lambda: (1, 5),
        key=lambda: None,
        value=lambda: b"v",
        headers=lambda: None,
    )


@pytest.fixture
def consumer(embedded):
    opened = ConfluentConsumer(Connection(embedded.bootstrap, {"client": "confluent-kafka"}), "rows", None, 4, 1 << 18, {})
    yield opened
    opened.close(1.0)


def polled(consumer, *answers):
    """Return the offsets that a poll returns for the given responses, by partition."""
    library, consumer._consumer = consumer._consumer, SimpleNamespace(consume=lambda *_: list(answers))
    try:
        return {partition: messages.offsets.tolist() for partition, messages in consumer.poll(0.0).items()}
    finally:
        consumer._consumer = library


END = Code._PARTITION_EOF


def test_partition_end_is_after_polled_messages(consumer):
    assert polled(consumer, answer(3), answer(4), answer(7, END), answer(2, END, 1)) == {0: [3, 4]}
    assert (consumer.position(0), consumer.position(1)) == (7, 2)
    assert polled(consumer, answer(7, END), answer(9), answer(2, partition=1)) == {0: [9], 1: [2]}
    assert (consumer.position(0), consumer.position(1)) == (10, 3)


def test_errors_are_translated_and_raised_after_messages(consumer):
    assert polled(consumer, answer(3), answer(9, Code._AUTO_OFFSET_RESET)) == {0: [3]}
    with pytest.raises(OffsetOutOfRangeError, match="as it is told"):
        polled(consumer)
    assert polled(consumer) == {}
    for code, kind in ((Code.TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationFailedError), (Code._INVALID_ARG, KafkaError)):
        with pytest.raises(kind, match="as it is told"):
            polled(consumer, answer(9, code))


def test_transient_errors_are_ignored(consumer):
    assert polled(consumer, answer(-1, Code._TRANSPORT), answer(-1, Code.GROUP_AUTHORIZATION_FAILED), answer(4)) == {0: [4]}
    consumer.group = "a group"
    with pytest.raises(KafkaError):
        polled(consumer, answer(-1, Code.GROUP_AUTHORIZATION_FAILED))
