"""Connections to brokers: their options, with secrets that are never shown, and errors that explain why one cannot be used."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from streamsvm.files.messages import short_repr
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.logs import redacting_filter

#: Prefix of environment variables that contain options.
ENVIRONMENT_PREFIX = "STREAMSVM_KAFKA_"
_MAX_OUTAGE_SECONDS = 7 * 24 * 3600.0
#: Matches names of options whose values are secret, or may contain a secret.
_SECRET_NAME = re.compile("password|passphrase|secret|token|proxy|pem$|_config$|ssl_key$")


class Secret(str):
    """A string that is shown as ``***``, although its content can be used as usual.

    Examples
    --------
    >>> password = Secret("hunter2")
    >>> f"{password} {[password]}", password.encode(), password == "hunter2"
    ("*** ['***']", b'hunter2', True)
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        return super().__new__(cls, "".join(text))  # not str(text), which is "***" if the text already is a Secret

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)


def is_secret(name: str) -> bool:
    """Return whether the option ``name`` of a Kafka client holds, or may contain, a secret such as a password."""
    return _SECRET_NAME.search(name.replace(".", "_")) is not None


def client_options(options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the options of a Kafka connection by name: those in environment variables ``STREAMSVM_KAFKA_...``, overridden by
    those in ``options``.

    Parameters
    ----------
    options
        Options by name:

        - ``client``: the client library. ``kafka-python`` is the default; ``confluent-kafka`` is faster at reading, and ten
          times as fast at writing (extra ``confluent``).
        - All options of that library, under its own names: for kafka-python, those of its consumers, producers and admin clients
          (``security_protocol``, ``ssl_cafile``, ``sasl_mechanism``, ``sasl_plain_username``, ``sasl_oauth_token_provider``,
          ``linger_ms``); for confluent-kafka, those in librdkafka's CONFIGURATION.md, with ``.`` or ``_`` between words
          (``security_protocol``, ``ssl_ca_location``, ``sasl_mechanism``, ``sasl_username``, ``oauth_cb``, ``linger_ms``). The
          library checks them when a connection is opened.
        - ``outage_seconds``: how long to wait for a broker that does not respond. Default: no wait when a connection is opened,
          and 30 s for messages to be acknowledged.
        - ``schema_registry_url``, ``schema_registry_username``, ``schema_registry_password``, ``schema_registry_cafile``: the
          registry of schemas (see `SchemaRegistry`).
    environment
        Mapping with further options under names in capitals after ``STREAMSVM_KAFKA_``, such as
        ``STREAMSVM_KAFKA_SASL_MECHANISM``. None uses the environment of this process.

    Returns
    -------
    dict
        Options for `KafkaSource`, `KafkaSink` and `publish`. Secret texts are of type `Secret`.

    Raises
    ------
    StreamError
        ``outage_seconds`` is not a valid number of seconds.

    Examples
    --------
    >>> client_options({"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"}, {
    ...     "STREAMSVM_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "STREAMSVM_KAFKA_SASL_PLAIN_PASSWORD": "hunter2",
    ... })  # doctest: +NORMALIZE_WHITESPACE
    {'sasl_plain_password': '***', 'security_protocol': 'SASL_SSL', 'sasl_mechanism': 'PLAIN', 'sasl_plain_username': 'alice'}
    """
    variables = os.environ if environment is None else environment
    merged: dict[str, Any] = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): variables[name]
        for name in sorted(variables)
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    merged |= {name.replace(".", "_"): value for name, value in (options or {}).items()}
    for name, value in merged.items():
        if isinstance(value, os.PathLike):
            merged[name] = os.fspath(value)
        elif isinstance(value, str) and is_secret(name):
            merged[name] = Secret(value)
    if "outage_seconds" in merged:
        merged["outage_seconds"] = _parse_outage_seconds(merged["outage_seconds"])
    return merged


def _parse_outage_seconds(value: Any) -> float:
    """Convert the option ``outage_seconds`` (how long to wait for an unreachable broker) to a float. Raise a StreamError if it is
    not a number from 0 to one week.
    """
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0.0 <= seconds <= _MAX_OUTAGE_SECONDS:
        raise StreamError(f"outage_seconds must be a number from 0 to {_MAX_OUTAGE_SECONDS:,.0f}, not {short_repr(value)}")
    return seconds


logger: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Time for a broker to accept a connection, and again to respond to the first request.
CONNECT_SECONDS = 5.0
#: Time for a response to later requests, such as for offsets: a busy broker may need longer for them.
RESPONSE_SECONDS = 30.0
DEFAULT_PORT = 9092
#: Maximum pause between two attempts of a client to reconnect to a broker.
RECONNECT_MS = 1000
#: The supported client libraries, and the default.
CLIENT_LIBRARIES = ("kafka-python", "confluent-kafka")
DEFAULT_LIBRARY = "kafka-python"
#: Pauses of `retry_with_backoff`.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0


def describe_missing_right(
    user: str, error: BaseException, operation: str, *topics: str, group: str | None = None, transactional_id: str | None = None
) -> str | None:
    """Return a sentence that tells which access right the Kafka ``user`` lacks, if ``error`` reports one for the ``operation``
    (such as "Read") on topics, a group or a transactional id; None for other errors.

    ``operation`` is the right that is needed for each of ``topics``, such as ``"Read"``.

    >>> print(describe_missing_right("alice", TopicAuthorizationFailedError(), "Write", "scores"))
    the user 'alice' lacks the right Write of the topic 'scores' (see "Access rights" in docs/kafka.md)
    """
    rights: tuple[tuple[type[BaseException], str, str, tuple[str | None, ...]], ...] = (
        (TopicAuthorizationFailedError, operation, "topic", topics),
        (GroupAuthorizationFailedError, "Read", "group", (group,)),
        (TransactionalIdAuthorizationFailedError, "Write", "transactional-id", (transactional_id,)),
        (ClusterAuthorizationFailedError, "IdempotentWrite", "cluster", ()),
    )
    for kind, right, resource, names in rights:
        if isinstance(error, kind):
            target = " ".join([f"the {resource}", " or ".join(map(repr, filter(None, names)))]).rstrip()
            return f'the user {user!r} lacks the right {right} of {target} (see "Access rights" in docs/kafka.md)'
    return None


def retry_with_backoff(
    call: Callable[[], T], errors: tuple[type[Exception], ...], seconds: float, on_error: Callable[..., None] = lambda *_: None
) -> T:
    """Call the function ``call`` and return its result. If it raises one of the classes ``errors``, call it again after
    increasing pauses (exponential backoff), for at most ``seconds``; then raise the error. ``on_error`` is called after each
    failure.

    After each such error, ``on_error(error, n_before, is_last)`` is called with the number of errors before it, and whether it
    is the last attempt. The last error is then raised, unless the call raises another one.
    """
    deadline, pause, n_before = time.monotonic() + seconds, FIRST_PAUSE_SECONDS, 0
    while True:
        try:
            return call()
        except errors as error:
            is_last = time.monotonic() + pause > deadline
            on_error(error, n_before, is_last)
            if is_last:
                raise
        time.sleep(pause)
        pause, n_before = min(2.0 * pause, MAX_PAUSE_SECONDS), n_before + 1


class BrokerUnreachableError(StreamError):
    """No broker responds at the address. It may help to try again later."""


class MissingTopicError(StreamError):
    """The topic does not exist."""


class TopicDescription(NamedTuple):
    """The id of a topic, and its partitions."""

    topic_id: str | None
    """It changes if the topic is deleted and created again; None from brokers before Kafka 2.8."""
    partitions: tuple[int, ...]


class Connection:
    """The address of one or more brokers (``host:port,host:port``), and the options of `client_options` for their clients.

    The environment is not read. Raise a StreamError if the client library is unknown or not installed.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> None:
        options = client_options(client, {})
        for value in options.values():
            if isinstance(value, Secret):
                redacting_filter.add(value)
        self.bootstrap = bootstrap
        #: How long to wait for a broker that does not respond; None if the option is not set.
        self.outage_seconds: float | None = options.pop("outage_seconds", None)
        #: The client library, one of `CLIENT_LIBRARIES`.
        self.library: str = options.pop("client", DEFAULT_LIBRARY)
        if self.library not in CLIENT_LIBRARIES:
            raise StreamError(f"client must be {' or '.join(CLIENT_LIBRARIES)}, not {self.library!r}")
        if self.library == "confluent-kafka" and importlib.util.find_spec("confluent_kafka") is None:
            raise StreamError("client=confluent-kafka needs the package confluent-kafka: pip install 'streamsvm[confluent]'")
        #: Options of the client library.
        self.options: dict[str, Any] = {n: value for n, value in options.items() if not n.startswith("schema_registry_")}
        #: Name of the user in access rules: of a user with a certificate, its subject.
        self.user: str = "ANONYMOUS"
        for name, template in _USER_OPTIONS.items():
            if name in options:
                self.user = template.format(options[name])
        self._has_checked_advertised = False

    def open_with_retries(self, open_client: Callable[[], T]) -> T:
        """Call ``open_client`` and return the client that it creates. While no broker responds, repeat that for the connection's
        ``outage_seconds``.

        Raise a BrokerUnreachableError if none responds, and another StreamError if the options are invalid, the broker's
        certificate does not verify, or the broker refuses the user.
        """

        def check_and_open() -> T:
            self.check_reachable()
            return open_client()

        def warn_once(error: Exception, n_before: int, is_last: bool) -> None:
            if not (n_before or is_last):
                logger.warning("%s Trying again for %g s.", error, self.outage_seconds)

        return retry_with_backoff(check_and_open, (BrokerUnreachableError,), self.outage_seconds or 0.0, warn_once)

    def check_reachable(self, tls: ssl.SSLContext | None = None) -> None:
        """Try to open a TCP connection to a broker, with a TLS handshake if ``tls`` is given. Raise a BrokerUnreachableError if
        no broker accepts it, and a StreamError if the handshake fails.

        Client libraries report every failure to connect as a timeout, and only after it has passed. This check distinguishes a
        refused connection, an unknown host and a silent network; and with ``tls``, a certificate that does not verify.

        >>> Connection("127.0.0.1:1").check_reachable()
        Traceback (most recent call last):
            ...
        streamsvm_kafka.connection.BrokerUnreachableError: no Kafka broker at 127.0.0.1:1 (...). Start the broker...
        """
        failures: list[str] = []
        if not (self._has_proxy or self._is_any_reachable(self.bootstrap.split(","), failures, tls)):
            raise BrokerUnreachableError(f"no Kafka broker at {', '.join(failures)}. Start the broker, or correct the address.")

    @property
    def _has_proxy(self) -> bool:
        """Whether an option of the connection sets a proxy. Brokers then cannot be tested by direct TCP connections."""
        return any("proxy" in name for name in self.options)

    def _is_any_reachable(self, addresses: Iterable[str], failures: list[str], tls: ssl.SSLContext | None = None) -> bool:
        """Return whether one of the ``addresses`` (``"host:port"``) accepts a TCP connection. The reason of each failure is
        appended to ``failures``. With ``tls``, raise a StreamError if the TLS handshake fails.
        """
        for address in addresses:
            host, colon, port = address.rpartition(":")
            target = (host.strip("[]"), int(port)) if colon else (address, DEFAULT_PORT)
            try:
                with socket.create_connection(target, CONNECT_SECONDS) as connected:
                    if tls is not None:
                        tls.wrap_socket(connected, server_hostname=target[0]).close()
                    return True
            except ssl.SSLError as error:
                raise self.tls_error(getattr(error, "verify_message", None) or error.reason or error) from error
            except OSError as error:
                failures.append(f"{address} ({error.strerror or error})")
        return False

    def check_advertised_addresses(self, brokers: Iterable[tuple[str, int]]) -> None:
        """Raise a BrokerUnreachableError if none of ``brokers``, the (host, port) pairs that the cluster advertises to clients,
        accepts a TCP connection. Only the first successful check makes connections.
        """
        addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in brokers]
        if self._has_checked_advertised or self._has_proxy or not addresses or {*addresses} & {*self.bootstrap.split(",")}:
            return
        failures: list[str] = []
        if not self._is_any_reachable(addresses, failures):
            raise BrokerUnreachableError(
                f"{self.bootstrap} answers, but tells clients to go on to {', '.join(failures)}. Correct advertised.listeners of "
                "the broker, or make that address reachable from here."
            )
        self._has_checked_advertised = True

    def options_error(self, reason: object) -> StreamError:
        """Return the StreamError for options that the Kafka client library refuses, with its ``reason``."""
        return StreamError(f"the options of the connection are wrong: {reason} (client={self.library})")

    def refused_user_error(self, reason: object) -> StreamError:
        """Return the StreamError for a failed authentication: the broker refuses the user or password, with its ``reason``."""
        causes = f"wrong name, password or sasl_mechanism={self.options.get('sasl_mechanism')}"
        return StreamError(f"{self.bootstrap} refuses the user {self.user!r}: {causes} ({reason})")

    def tls_error(self, reason: object) -> StreamError:
        """Return the StreamError for a TLS handshake with the broker that failed for ``reason``, with advice on certificates."""
        return StreamError(
            f"{self.bootstrap}: no TLS connection ({reason}). Is it the port of an SSL or SASL_SSL listener, with this host in "
            "its certificate? Give the certificates that it is signed with (ssl_cafile; with confluent-kafka, ssl_ca_location)"
        )

    def no_answer_error(self, reason: object) -> BrokerUnreachableError:
        """Return the error for a server that accepts TCP connections, but does not respond as a Kafka broker. ``reason`` is what
        the client library reports.
        """
        return BrokerUnreachableError(
            f"{self.bootstrap} takes connections but does not answer as a Kafka broker in {CONNECT_SECONDS:g} s ({reason}). "
            "Check that this is the port of a Kafka listener and that its security settings are the client's "
            f"(security_protocol={self.options.get('security_protocol', 'PLAINTEXT')}); "
            "of a broker that does not report its version, such as an EmbeddedBroker, the URL ends in ?api_version=2.3."
        )


#: Options that determine the user; later ones have precedence.
_USER_OPTIONS = {
    "ssl_certificate_location": "the subject of {}",
    "ssl_certfile": "the subject of {}",
    "sasl_username": "{}",
    "sasl_plain_username": "{}",
}
