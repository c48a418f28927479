"""A real Apache Kafka for the tests marked `broker`: the one that STREAMSVM_TEST_KAFKA names, or one started here."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ACL

from kafka_broker import LIBRARIES, Broker, broker_or_skip, options_of_alice, shared_broker
from patience import until
from streamsvm_kafka import EmbeddedBroker, connection
from streamsvm_kafka.clients import confluent, kafka_python

#: Timeouts of the package, which are too short for tests on a busy machine.
LIMITS = (
    "RESPONSE_SECONDS",
    "INIT_TRANSACTIONS_SECONDS",
    "CONNECT_SECONDS",
    "DELIVERY_SECONDS",
    "SESSION_SECONDS",
    "STALL_SECONDS",
)
#: Modules whose connections time out.
CLIENT_MODULES = (
    connection,
    kafka_python.client,
    kafka_python.producer,
    confluent.client,
    confluent.producer,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("streamsvm_kafka.")]
    for module in modules:
        for limit in LIMITS:
            if hasattr(module, limit):
                monkeypatch.setattr(module, limit, 90.0)


@pytest.fixture
def as_alice(broker: Broker, client_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment variables with which the broker accepts the user alice."""
    for name, value in options_of_alice(client_library, broker).items():
        monkeypatch.setenv(f"STREAMSVM_KAFKA_{name.upper()}", value)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Returns a function that runs a check with a short timeout of clients, and if that fails, with a long one."""

    def called(check: Callable[[], Any]) -> Any:
        for seconds in (3.0, 90.0):
            for module in CLIENT_MODULES:
                monkeypatch.setattr(module, "CONNECT_SECONDS", seconds)
            with contextlib.suppress(*[AssertionError, pytest.fail.Exception] * (seconds < 90.0)):
                return check()
        raise AssertionError

    return called


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts to reach a broker. They take no time: the clock of connections is their sum."""
    made: list[float] = []
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: sum(made), sleep=made.append))
    return made


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a real broker."""
    address = os.environ.get("STREAMSVM_TEST_KAFKA")
    return address or request.getfixturevalue("broker").plaintext


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker that was started here, for all workers of this run: to start it costs more than most tests."""
    with broker_or_skip(lambda: shared_broker(tmp_path_factory)) as started:
        yield started


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=300_000)
    yield client
    client.close()


@pytest.fixture
def rules(admin: Any) -> Callable[..., AbstractContextManager[None]]:
    """Returns a context manager that adds access rules, waits until the broker applies them, and removes them."""

    @contextmanager
    def apply_rules(*acls: ACL) -> Iterator[None]:
        def count_known() -> int:
            return sum(bool(admin.describe_acls(acl)[0]) for acl in acls)

        admin.create_acls([*acls])
        try:
            until(lambda: count_known() == len(acls), every=0.02)
            yield
        finally:
            admin.delete_acls([*acls])
            until(lambda: count_known() == 0, every=0.02)

    return apply_rules


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Any]:
    client = KafkaProducer(bootstrap_servers=bootstrap, max_request_size=2**24)
    yield client
    client.close()


@pytest.fixture
def new_topic(admin: Any) -> Iterator[Callable[..., str]]:
    """Returns a function that creates a topic with a new name; the topics are deleted after the test."""
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
    """The client library to test, also in child processes. A test with this fixture runs with each library."""
    name: str = request.param
    monkeypatch.setattr(connection, "DEFAULT_LIBRARY", name)
    monkeypatch.setenv("STREAMSVM_KAFKA_CLIENT", name)
    return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = any("client_library" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "client_library" in metafunc.fixturenames and not named:
        of_one = metafunc.definition.get_closest_marker("kafka_python") is not None
        metafunc.parametrize("client_library", LIBRARIES[:1] if of_one else LIBRARIES, indirect=True)
