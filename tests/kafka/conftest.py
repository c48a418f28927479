"""A real Apache Kafka for the tests marked `broker`: the one that STREAMSVM_TEST_KAFKA names, or one started here."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from kafka_broker import Broker, broker_or_skip
from streamsvm_kafka import EmbeddedBroker, connection


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a real broker."""
    given = os.environ.get("STREAMSVM_TEST_KAFKA")
    return given or request.getfixturevalue("broker").plaintext


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker that was started here."""
    with broker_or_skip(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Any]:
    client = KafkaProducer(bootstrap_servers=bootstrap, max_request_size=2**24)
    yield client
    client.close()


@pytest.fixture
def new_topic(admin: Any) -> Iterator[Callable[..., str]]:
    """Makes a topic that no other test has, and removes it afterwards: ``new_topic(partitions=1, **configs)``."""
    names: list[str] = []

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: options}, wait_for_metadata=True)
        names.append(name)
        return name

    yield make
    existing = set(admin.list_topics())
    if left := [name for name in names if name in existing]:
        admin.delete_topics(left)


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def client_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The client library of what is tested, and of the processes that it starts. Tests that use this run with each."""
    name: str = request.param
    monkeypatch.setattr(connection, "DEFAULT_CLIENT", name)
    monkeypatch.setenv("STREAMSVM_KAFKA_CLIENT", name)
    return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client_library" in metafunc.fixturenames:
        of_one = metafunc.definition.get_closest_marker("kafka_python") is not None
        metafunc.parametrize("client_library", ["kafka-python"] if of_one else ["kafka-python", "confluent-kafka"], indirect=True)
