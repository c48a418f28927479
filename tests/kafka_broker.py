"""A real Apache Kafka, started from the jars that Maven fetches: with TLS, passwords and transactions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from patience import until

POM = Path(__file__).parent / "kafka" / "pom.xml"
#: Options of Java for processes that end soon: no second compiler and no parallel garbage collection, and no verification of the
#: classes of each jar, which took a seventh of the CPU time of a start.
QUICK_JAVA = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"
JAVA = "java", "-Xms128m", "-Xmx512m", *QUICK_JAVA, "-Djava.awt.headless=true"

SERVER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plaintext},SSL://127.0.0.1:{ssl},SASL_SSL://127.0.0.1:{sasl_ssl},WRONG://127.0.0.1:{wrong},\\
  CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plaintext},SSL://127.0.0.1:{ssl},SASL_SSL://127.0.0.1:{sasl_ssl},WRONG://127.0.0.1:1
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,WRONG:PLAINTEXT,CONTROLLER:PLAINTEXT
ssl.keystore.type=PKCS12
ssl.keystore.location={folder}/broker.p12
ssl.keystore.password={password}
ssl.key.password={password}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_alice="{password}";
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule \\
  required unsecuredLoginStringClaim_sub="broker";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/log
auto.create.topics.enable={creates_topics}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=5
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
metadata.max.idle.interval.ms=0
num.network.threads=1
num.io.threads=4
"""

IDENTITY = "MkU3OEVBNTcwNTJENDM2Qg"  # of the cluster
PASSWORD = "an open secret"  # of the user alice

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


def why_no_broker() -> str | None:
    if missing := [tool for tool in ("java", "mvn") if shutil.which(tool) is None]:
        return f"no {' and no '.join(missing)} on this machine"
    java_version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', java_version)
    if version is None or int(version[1]) < 17:
        return f"Kafka needs Java 17, this machine has {java_version.splitlines()[0] if java_version else 'none that runs'}"
    return None


def jars_of(pom: Path, *options: str) -> Path:
    """Return the folder with the jars of a POM, which Maven downloads once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamsvm-tests"
    jars = cache / f"{pom.parent.name}-{hashlib.sha256(pom.read_bytes() + ' '.join(options).encode()).hexdigest()[:12]}"
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"part-{uuid.uuid4().hex}"
        command = [
            "mvn",
            "-B",
            "-q",
            "-f",
            pom,
            *options,
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={part}",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"Maven could not fetch the jars of {pom}:\n{done.stdout}{done.stderr}"
            if not jars.is_dir():
                part.rename(jars)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return jars


class Broker(NamedTuple):
    """A running broker: the addresses of its listeners, its certificate, and a function to kill and restart it.

    At the wrong one, it directs clients to an address where nothing answers.
    """

    plaintext: str
    ssl: str
    sasl_ssl: str
    wrong: str
    certificate: Path
    restart: Callable[[], None] | None  # None for a broker that processes share


def free_ports(names: tuple[str, ...]) -> dict[str, int]:
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.socket()) for name in names}
        for listener in sockets.values():
            listener.bind(("127.0.0.1", 0))
        return {name: listener.getsockname()[1] for name, listener in sockets.items()}


def certify(folder: Path, name: str = "broker") -> Path:
    """Create a key and a certificate for 127.0.0.1 in ``name.p12``, and return the certificate's path."""
    store = "-keystore", folder / f"{name}.p12", "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", name
    key = "-keyalg", "EC", "-dname", f"CN={name}", "-validity", "2", "-ext", "san=ip:127.0.0.1"
    certificate = folder / f"{name}.pem"
    tool = "keytool", *(f"-J{option}" for option in JAVA[1:])
    subprocess.run([*tool, "-genkeypair", *store, *key], capture_output=True, check=True)
    subprocess.run([*tool, "-exportcert", "-rfc", *store, "-file", certificate], capture_output=True, check=True)
    return certificate


def start_broker(folder: Path, creates_topics: str, running: list[subprocess.Popen[bytes]]) -> Broker:
    """Start a broker in an empty folder; add its process, and each later one, to ``running``."""
    ports = free_ports(("plaintext", "ssl", "sasl_ssl", "wrong", "controller"))
    certificate = certify(folder)
    settings, log = folder / "server.properties", folder / "broker.txt"
    settings.write_text(SERVER.format(**ports, folder=folder, password=PASSWORD, creates_topics=creates_topics))
    (folder / "log4j2.properties").write_text(LOG4J)
    java = [*JAVA, f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", "-cp", f"{jars_of(POM)}/*"]
    user = f"SCRAM-SHA-256=[name=alice,password={PASSWORD}]"
    form = [*java, "kafka.tools.StorageTool", "format", "-t", IDENTITY, "-c", settings, "--add-scram", user]
    subprocess.run(form, capture_output=True, check=True)

    def start() -> None:
        # In a session of its own: a Ctrl-C that ends the tests must not end the broker before the clients that wait for it.
        with log.open("w") as output:
            running.append(
                subprocess.Popen(
                    [*java, "kafka.Kafka", settings], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )

        def started() -> bool:
            assert running[-1].poll() is None, f"Kafka did not start:\n{log.read_text()}"
            return "Kafka Server started" in log.read_text()

        until(started, every=0.1)

    def restart() -> None:
        running[-1].kill()
        running[-1].wait()
        start()

    start()
    return Broker(*(f"127.0.0.1:{ports[name]}" for name in ("plaintext", "ssl", "sasl_ssl", "wrong")), certificate, restart)


@contextmanager
def running_broker(folder: Path, creates_topics: str = "false") -> Iterator[Broker]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        yield start_broker(folder, creates_topics, running)
    finally:
        for broker in running:
            broker.terminate()
            try:
                broker.wait(20)
            except subprocess.TimeoutExpired:
                broker.kill()


@contextmanager
def shared_broker(tmp_path_factory: Any, creates_topics: str = "false") -> Iterator[Broker]:
    """A broker for all workers of a run of tests: the first one that needs it starts it, and the last one kills it."""
    import fcntl

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"kafka-{creates_topics}"
    folder.mkdir(exist_ok=True)
    description = folder / "broker.json"
    with (folder / "changes").open("w") as changes, (folder / "users").open("w") as users:
        fcntl.flock(changes, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not description.exists():
            running: list[subprocess.Popen[bytes]] = []
            try:
                broker = start_broker(Path(tempfile.mkdtemp(dir=folder)), creates_topics, running)
            except BaseException:
                for process in running:
                    process.kill()
                raise
            place = {**broker._asdict(), "certificate": str(broker.certificate), "restart": None}
            description.write_text(json.dumps([running[0].pid, place]))
            running[0].returncode = 0  # this process does not wait for it, and warns of none that runs on
        pid, place = json.loads(description.read_text())
        fcntl.flock(changes, fcntl.LOCK_UN)
        try:
            yield Broker(**{**place, "certificate": Path(place["certificate"])})
        finally:
            fcntl.flock(changes, fcntl.LOCK_EX)
            with suppress(BlockingIOError):  # another process uses it
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                description.unlink()
                os.kill(pid, signal.SIGKILL)


#: Names of the client libraries.
LIBRARIES = "kafka-python", "confluent-kafka"


def options_of_alice(library: str, broker: Broker) -> dict[str, str]:
    """Return options of a client library with which the broker accepts the user alice."""
    common = {"client": library, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    names = ("ssl_cafile", "sasl_plain_username", "sasl_plain_password")
    if library != "kafka-python":
        names = ("ssl_ca_location", "sasl_username", "sasl_password")
    return common | dict(zip(names, (str(broker.certificate), "alice", PASSWORD), strict=True))


def each_library(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs a real broker, and runs with each client library."""
    import pytest

    return pytest.mark.broker(pytest.mark.usefixtures("client_library")(test))


@contextmanager
def broker_or_skip(start: Callable[[], AbstractContextManager[Broker]]) -> Iterator[Broker]:
    """Start a broker for tests, by `running_broker` or `shared_broker`; skip them if that is impossible."""
    import pytest

    if reason := why_no_broker():
        reason = f"no real Kafka broker: {reason}; install Java 17 and Maven, or set STREAMSVM_TEST_KAFKA"
        # A suite that skips its broker proves nothing of it, so where it counts that is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with start() as started:
        yield started
