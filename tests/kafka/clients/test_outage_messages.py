"""While a broker is away, kafka-python's consumer says so once, and its hundreds of messages have the level DEBUG."""

import logging
from types import SimpleNamespace

import pytest

from streamsvm.stream import Row
from streamsvm_kafka import JSONCodec, KafkaSource, publish
from streamsvm_kafka.clients.kafka_python import client, consumer

MESSAGES = {
    "kafka.net.manager": "Connection failed: KafkaConnectionError: 111 ECONNREFUSED",
    "kafka.cluster": "No node available for metadata refresh - backoff/retry",
    "kafka.net.transport": "<KafkaTCPTransport [none]>: Error receiving network data closing socket",
    "kafka.coordinator": "Error sending HeartbeatRequest to node coordinator-1 [KafkaConnectionError: 111 ECONNREFUSED]",
}


@pytest.fixture
def source(embedded):
    publish([Row({"a": 1.0}, 0)], embedded.bootstrap, "rows", JSONCodec("y"), client=embedded.client)
    source = KafkaSource(embedded.bootstrap, "rows", JSONCodec("y"), client=embedded.client)
    yield source
    source.close()


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_about_lost_connections_are_demoted(source, caplog, name):
    logger = logging.getLogger(name)
    with caplog.at_level(logging.INFO, "kafka"):
        logger.error("%s", MESSAGES[name])
        assert not caplog.records
        logger.error("The group refuses the user")
        logging.getLogger("my.kafka").error("%s", MESSAGES[name])
        assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
        with client._ConnectionErrorRecorder().record_errors():  # it needs them to explain a failure
            logger.error("%s", MESSAGES[name])
        assert caplog.records[-1].getMessage() == MESSAGES[name]
    with caplog.at_level(logging.DEBUG, name):
        logger.warning("%s", MESSAGES[name])
    assert caplog.records[-1].levelname == "DEBUG"


def test_an_outage_is_one_warning_and_one_at_its_end(embedded, source, caplog, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(consumer, "time", SimpleNamespace(monotonic=lambda: 0.6 * next(clock)))
    connections = source._consumer._consumer._client._manager._conns
    states = {True: {1: SimpleNamespace(connected=True)}, False: {1: SimpleNamespace(connected=False)}}

    def report(is_connected):
        fake = SimpleNamespace(_client=SimpleNamespace(_manager=SimpleNamespace(_conns=states[is_connected])))
        monkeypatch.setattr(source._consumer, "_consumer", fake)
        source._consumer._report_outage()
        return [record.getMessage() for record in caplog.records]

    real = source._consumer._consumer
    assert any(connection.connected for connection in connections.values())
    away = f"no Kafka broker at {embedded.bootstrap} answers. Reading continues when one is back"
    back = f"Kafka at {embedded.bootstrap} is back: reading continues"
    assert not [*report(True), *report(False), *report(False), *report(True)]  # a short loss
    assert [report(False) for _ in range(50)][-1] == [away]
    assert [report(True) for _ in range(3)][-1] == [away, back]
    assert [report(False) for _ in range(3)][-1] == [away, back, away]
    monkeypatch.setattr(source._consumer, "_consumer", real)
