"""Brokers and topics before they are read or written: what is wrong with the connection, and which rights a user lacks."""

from __future__ import annotations

import difflib
import importlib.util
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    RetriableError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
    for_code,
)
from kafka.net.compat import KafkaNetClient

from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.logs import redacting
from streamsvm_kafka.options import Secret, client_options


def missing_right(
    user: str, error: BaseException, operation: str, *topics: str, group: str | None = None, identity: str | None = None
) -> str | None:
    """Return which right an error says is missing; None if it is about something else.

    ``operation`` is what was to be done with one of the topics; the consumer group and the transactional id are those that were
    used.

    >>> print(missing_right("alice", TopicAuthorizationFailedError(), "Write", "scores"))
    the user 'alice' lacks the right Write of the topic 'scores' (see "Access rights" in docs/kafka.md)
    """
    rights: tuple[tuple[type[BaseException], str, str, tuple[str | None, ...]], ...] = (
        (TopicAuthorizationFailedError, operation, "topic", topics),
        (GroupAuthorizationFailedError, "Read", "group", (group,)),
        (TransactionalIdAuthorizationFailedError, "Write", "transactional-id", (identity,)),
        (ClusterAuthorizationFailedError, "IdempotentWrite", "cluster", ()),
    )
    for kind, what, resource, names in rights:
        if isinstance(error, kind) or kind.__name__ in str(error):  # kafka-python raises some as a text only
            of = " ".join([f"the {resource}", " or ".join(map(repr, filter(None, names)))]).rstrip()
            return f'the user {user!r} lacks the right {what} of {of} (see "Access rights" in docs/kafka.md)'
    return None


logger: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that a broker has to accept a connection, and then to answer.
CONNECT_SECONDS = 5.0
#: Seconds that it then has to tell its offsets, which a busy one takes longer for.
ANSWER_SECONDS = 30.0
DEFAULT_PORT = 9092
#: The longest pause between two attempts of a client to reach a broker that it has lost.
RECONNECT_MS = 1000
#: The client library where none is asked for.
DEFAULT_CLIENT = "kafka-python"
#: Pauses between two attempts to reach a broker, or a registry.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


def patiently(attempt: Callable[[], T], errors: tuple[type[Exception], ...], seconds: float, failed: Callable[..., None]) -> T:
    """Return what an attempt gives. After some errors it is made again, with ever longer pauses, for so many seconds.

    ``failed`` is called with each such error before the pause: how many there were before, and whether it is the last, which is
    raised if the call does not raise another one.
    """
    deadline, pause, before = time.monotonic() + seconds, FIRST_PAUSE, 0
    while True:
        try:
            return attempt()
        except errors as error:
            last = time.monotonic() + pause > deadline
            failed(error, before, last)
            if last:
                raise
        time.sleep(pause)
        pause, before = min(2.0 * pause, LONGEST_PAUSE), before + 1


class BrokerUnreachableError(StreamError):
    """No broker answers at the address. It may help to try again later."""


class MissingTopicError(StreamError):
    """There is no such topic."""


class TopicDescription(NamedTuple):
    """The identity of a topic, and its partitions."""

    topic_id: str | None  # changes if the topic is deleted and created again; None from brokers before Kafka 2.8
    partitions: tuple[int, ...]


class Connection:
    """How clients reach a broker: by ``host:port``, or several with commas between them, and the options of `client_options`.

    The environment is not looked at. A StreamError says that an option is wrong, or a file of it is.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> None:
        options = client_options(client, {})
        for value in options.values():
            if isinstance(value, Secret):
                _leave_out(value)
        options = {name: value for name, value in options.items() if not name.startswith("schema_registry_")}
        self.bootstrap = bootstrap
        #: Whether confluent-kafka reads and writes, and not kafka-python.
        self.is_librdkafka: bool = _is_librdkafka(options.pop("client", DEFAULT_CLIENT))
        #: Those of `client_options`, but for what is of this class or of the registry.
        self.options: dict[str, Any] = {name: value for name, value in options.items() if name != "outage_seconds"}
        #: For how long to wait for a broker that does not answer; None: not asked for.
        self.outage_seconds: float | None = options.pop("outage_seconds", None)
        self._user = options.get("sasl_plain_username", "")
        #: The user, as access rules name him: of a certificate, its subject.
        self.user: str = self._user or ("the subject of " + options["ssl_certfile"] if "ssl_certfile" in options else "ANONYMOUS")
        self._was_led = False  # to an address that its brokers have told of
        protocol = options.get("security_protocol", "PLAINTEXT")
        of_tls = {name: options.pop(name) for name in list(options) if name.startswith("ssl_")}
        self._tls = _tls_context(of_tls) if "SSL" in protocol.split("_") else None
        #: For each of kafka-python's clients.
        self.arguments: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "bootstrap_timeout_ms": 1000 * CONNECT_SECONDS,
            **options,
        }
        if self._tls is not None:
            self.arguments["ssl_context"] = self._tls
        # kafka-python's own limit is 30 s, which come on top of each outage: half the time that a transaction may be open.
        self.arguments.setdefault("reconnect_backoff_max_ms", RECONNECT_MS)

    def client(self, make: Callable[..., T], **arguments: Any) -> T:
        """Make a client of kafka-python, waiting for the broker as long as asked.

        A BrokerUnreachableError says that no broker answers, another StreamError that its certificate does not verify, or that it
        does not let this user in.
        """

        def failed(error: Exception, before: int, last: bool) -> None:
            if not (before or last):
                logger.warning("%s Trying again for %g s.", error, self.outage_seconds)

        return patiently(
            lambda: self._made_client(make, arguments), (BrokerUnreachableError,), self.outage_seconds or 0.0, failed
        )

    def _made_client(self, make: Callable[..., T], arguments: Mapping[str, Any]) -> T:
        self.reach()
        failures = _Failures()
        begun: list[KafkaNetClient] = []

        def network(**configs: Any) -> KafkaNetClient:
            begun.append(KafkaNetClient(**configs))
            return begun[-1]

        with failures.heard():
            try:
                made: Any = make(**self.arguments, **arguments, kafka_client=network)
            except BaseException as error:
                for each in begun:  # kafka-python leaves its thread and sockets open
                    each.close()
                if isinstance(error, KafkaError):
                    raise self._explained_error(failures.reason or error) from error
                raise
        if not self._was_led:
            try:
                self._follow_addresses(begun[0].cluster.brokers())
            except BaseException:
                made.close()
                raise
        found: T = made
        return found

    def _follow_addresses(self, brokers: Iterable[Any]) -> None:
        """Try the addresses that brokers have for clients; BrokerUnreachableError if nothing answers at any."""
        told = [f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}" for each in brokers]
        failures: list[str] = []
        if told and not {*told} & {*self.bootstrap.split(",")} and not self._reach_any(told, failures):
            raise BrokerUnreachableError(
                f"{self.bootstrap} answers, but tells clients to go on to {', '.join(failures)}. Correct advertised.listeners of "
                "the broker, or make that address reachable from here."
            )
        self._was_led = True

    def _explained_error(self, error: BaseException) -> StreamError:
        # A broker ends the connection behind its answer, which kafka-python then may not have read.
        if isinstance(error, SaslAuthenticationFailedError) or (self._user and isinstance(error, KafkaConnectionError)):
            return StreamError(
                f"{self.bootstrap} refuses the user {self._user!r}: wrong name, password or sasl_mechanism ({error})"
            )
        if isinstance(error, UnsupportedSaslMechanismError):
            return StreamError(f"{self.bootstrap} does not take this sasl_mechanism ({error}): give one that it has")
        return BrokerUnreachableError(
            f"{self.bootstrap} takes connections but does not answer as a Kafka broker in {CONNECT_SECONDS:g} s ({error}). "
            "Check that this is the port of a Kafka listener and that its security settings are the client's "
            f"(security_protocol={self.arguments.get('security_protocol', 'PLAINTEXT')}); "
            "of a broker that does not say its version, such as an EmbeddedBroker, the URL ends in ?api_version=2.3."
        )

    def reach(self) -> None:
        """Open and close a connection to one of the brokers; BrokerUnreachableError if none accepts it.

        The client library reports every failure to connect as a timeout, and only after it has passed; this tells a refused
        connection, an unknown host, a silent network and a certificate that does not verify apart, at once if the system knows at
        once.

        >>> Connection("127.0.0.1:1").reach()
        Traceback (most recent call last):
            ...
        streamsvm_kafka.connection.BrokerUnreachableError: no Kafka broker at 127.0.0.1:1 (...). Start the broker...
        """
        failures: list[str] = []
        if not self._reach_any(self.bootstrap.split(","), failures):
            raise BrokerUnreachableError(f"no Kafka broker at {', '.join(failures)}. Start the broker, or correct the address.")

    def _reach_any(self, addresses: Iterable[str], failures: list[str]) -> bool:
        """Whether one of some addresses accepts a connection; the failures of those before it are added."""
        for address in addresses:
            host, colon, port = address.rpartition(":")
            place = (host.strip("[]"), int(port)) if colon else (address, DEFAULT_PORT)
            try:
                with socket.create_connection(place, CONNECT_SECONDS) as opened:
                    if self._tls is not None:
                        self._tls.wrap_socket(opened, server_hostname=place[0]).close()
                    return True
            except ssl.SSLCertVerificationError as error:
                raise StreamError(
                    f"{address}: its certificate does not verify ({error.verify_message}). Give ssl_cafile, the "
                    "certificates that it is signed with, and its right name"
                ) from error
            except ssl.SSLError as error:
                raise StreamError(
                    f"{address}: no TLS connection ({error.reason or error}). Is it the port of an SSL or SASL_SSL listener? One "
                    "that asks for certificates needs ssl_certfile and ssl_keyfile"
                ) from error
            except OSError as error:
                failures.append(f"{address} ({error.strerror or error})")
        return False


class TopicPlace:
    """A place that is a topic: it can tell whether another one is the same topic, perhaps by another address."""

    _connection: Connection
    _topic: str

    def is_topic(self, connection: Connection, topic: str) -> bool:
        """Return whether it is the topic of that name; a BrokerUnreachableError if that is not known."""
        if topic != self._topic:
            return False
        if connection.bootstrap == self._connection.bootstrap:
            return True
        try:
            one, two = (describe_topic(each, topic).topic_id for each in (connection, self._connection))
        except MissingTopicError:
            return False
        return one is not None and one == two


class _Failures(logging.Handler):
    """Hears what kafka-python logs of a connection that fails: the exceptions that it raises say less."""

    _telling = (KafkaConnectionError, UnsupportedSaslMechanismError, SaslAuthenticationFailedError)

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason: BaseException | None = None  # the last failure, or one before it that says more

    def emit(self, record: logging.LogRecord) -> None:
        for value in record.args or ():
            if isinstance(value, KafkaError) and self._rank_of(value) >= self._rank_of(self.reason):
                self.reason = value

    def _rank_of(self, error: BaseException | None) -> int:
        return max((number for number, kind in enumerate(self._telling, 1) if isinstance(error, kind)), default=0)

    @contextmanager
    def heard(self) -> Iterator[None]:
        library = logging.getLogger("kafka")
        library.addHandler(self)
        try:
            yield
        finally:
            library.removeHandler(self)


def _leave_out(secret: Secret) -> None:
    # At level DEBUG kafka-python shows each request, also that with the password, to whatever handlers there are.
    redacting.add(secret)
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]:
        logging.getLogger(name).addFilter(redacting)


def _is_librdkafka(client: str) -> bool:
    if client == "kafka-python":
        return False
    if importlib.util.find_spec("confluent_kafka") is not None:
        return True
    if client == "auto":
        return False
    raise StreamError("client=confluent-kafka needs the package confluent-kafka: pip install 'streamsvm[confluent]'")


def _tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_cafile"))
        context.check_hostname = options.get("ssl_check_hostname", True)
        if "ssl_crlfile" in options:
            context.load_verify_locations(cafile=options["ssl_crlfile"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if "ssl_certfile" in options:
            password = options.get("ssl_password", "")
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), password.encode())
    except (ssl.SSLError, OSError) as error:
        files = ", ".join(str(options[name]) for name in options if name.endswith("file"))
        text = f"TLS cannot be set up with {files}: {error}. Are they PEM files, and is ssl_password right?"
        raise StreamError(text) from error
    return context


@contextmanager
def admin_of(connection: Connection) -> Iterator[Any]:
    """Open a client for questions about topics and clusters."""
    admin = connection.client(KafkaAdminClient, request_timeout_ms=1000 * CONNECT_SECONDS)
    try:
        yield admin
    finally:
        admin.close()


def topic_setting(connection: Connection, topic: str, name: str) -> str | None:
    """Return a setting of a topic; None where the broker does not tell, as not everybody may ask for it."""
    try:
        with admin_of(connection) as admin:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            told = admin.describe_configs([resource], config_filter="all")
        return str(next(iter(next(iter(told.values())).values()))[name]["value"])
    except (KafkaError, KeyError, StopIteration, TypeError) as error:
        logger.debug("%s: %s is not known (%r)", topic, name, error)
        return None


def message_limit(connection: Connection, topic: str) -> int | None:
    """Return the most bytes of a message, or of a batch of them, that a topic takes; None where the broker does not tell."""
    limit = topic_setting(connection, topic, "max.message.bytes")
    return int(limit) if limit is not None and limit.isdecimal() else None


def describe_topic(connection: Connection, topic: str) -> TopicDescription:
    """Ask a broker for a topic, without creating one.

    A MissingTopicError says that there is none, another StreamError that no broker answers or that it may not be read.
    """
    deadline, bootstrap = time.monotonic() + CONNECT_SECONDS, connection.bootstrap
    with admin_of(connection) as admin:
        while True:
            try:
                (found,) = admin.describe_topics([topic])
                failure = for_code(found["error_code"])
                if failure is UnknownTopicOrPartitionError:
                    similar = difflib.get_close_matches(topic, admin.list_topics(), n=3)
                    hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else "."
                    raise MissingTopicError(f"there is no topic {topic!r} on {bootstrap}{hint} Create it, or correct the name.")
            except KafkaError as error:
                raise BrokerUnreachableError(f"{bootstrap} does not answer about topic {topic!r}: {error}") from error
            if found["partitions"]:
                partitions = tuple(sorted(p["partition_index"] for p in found["partitions"]))
                return TopicDescription(found.get("topic_id"), partitions)
            # A topic that was just created has no leader yet, which is a retriable failure.
            if not issubclass(failure, RetriableError) or time.monotonic() > deadline:
                right = missing_right(connection.user, failure(), "Describe", topic)
                raise StreamError(f"topic {topic!r} on {bootstrap} cannot be used: {right or failure.__name__}")
            time.sleep(0.1)
