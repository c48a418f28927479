"""A real Apache Kafka for the tests marked `broker`: the one that STREAMSVM_KAFKA_BOOTSTRAP names, or one started here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from streamsvm_kafka import EmbeddedBroker

POM = Path(__file__).with_name("pom.xml")
JAVA = "java", "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"
START_SECONDS = 60

SERVER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""

LOG4J = """
rootLogger.level=warn
rootLogger.appenderRef.c.ref=C
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=[%d] %p %c %m%n
logger.k.name=kafka.server.KafkaRaftServer
logger.k.level=info
"""


def _why_no_broker() -> str | None:
    if missing := [tool for tool in ("java", "mvn") if shutil.which(tool) is None]:
        return f"no {' and no '.join(missing)} on this machine"
    found = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', found)
    if version is None or int(version[1]) < 17:
        return f"Kafka needs Java 17, this machine has {found.splitlines()[0] if found else 'none that runs'}"
    return None


def _jars() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamsvm-tests"
    jars = cache / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"part-{uuid.uuid4().hex}"
        command = [
            "mvn",
            "-B",
            "-q",
            "-f",
            POM,
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={part}",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"Maven could not fetch Kafka's jars:\n{done.stdout}{done.stderr}"
            if not jars.is_dir():
                part.rename(jars)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return jars


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def _running_broker(folder: Path) -> Iterator[str]:
    port, controller = _free_ports()
    settings, log = folder / "server.properties", folder / "broker.txt"
    settings.write_text(SERVER.format(port=port, controller=controller, folder=folder))
    (folder / "log4j2.properties").write_text(LOG4J)
    java = [*JAVA, f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", "-cp", f"{_jars()}/*"]
    identity = subprocess.check_output([*java, "kafka.tools.StorageTool", "random-uuid"], text=True).strip()
    subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", settings], capture_output=True, check=True)
    # In a session of its own: a Ctrl-C that ends the tests must not end the broker before the clients that wait for it.
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*java, "kafka.Kafka", settings], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as broker,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while "Kafka Server started" not in log.read_text():
                running = broker.poll() is None and time.monotonic() < deadline
                assert running, f"Kafka did not start:\n{log.read_text()}"
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            broker.terminate()
            try:
                broker.wait(20)
            except subprocess.TimeoutExpired:
                broker.kill()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a real broker."""
    if given := os.environ.get("STREAMSVM_KAFKA_BOOTSTRAP"):
        yield given
        return
    if reason := _why_no_broker():
        reason = f"no real Kafka broker: {reason}; install Java 17 and Maven, or set STREAMSVM_KAFKA_BOOTSTRAP"
        # A suite that skips its broker proves nothing of it, so where it counts that is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with _running_broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
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
