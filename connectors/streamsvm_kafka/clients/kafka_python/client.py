"""Opens clients of kafka-python: their options, TLS, and errors that say why a connection fails. Also the admin client."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    BrokerResponseError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NoError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    for_code,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.transport import KafkaSSLTransport

from streamsvm.files.messages import suggest_name
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.logs import redacting_filter
from streamsvm_kafka.connection import CONNECT_SECONDS, RECONNECT_MS, Connection, Secret, TopicDescription

_CLIENTS = KafkaConsumer, KafkaProducer, KafkaAdminClient
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: The default of each option of kafka-python, by name.
_DEFAULT_OPTIONS: dict[str, Any] = {name: value for client in _CLIENTS for name, value in client.DEFAULT_CONFIG.items()}


def open_client(client_class: Any, connection: Connection, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    """Create a connected client of kafka-python of the class ``client_class``, such as `KafkaConsumer`. Options of ``connection``
    override those in ``defaults``. Raise a StreamError if one of them is also in ``fixed``, options that the user must not
    change.

    Raise a StreamError for unknown or fixed options, and the errors of `Connection.open_with_retries` if no broker responds.
    """
    options: dict[str, Any] = {}
    for name, value in connection.options.items():
        if name not in _DEFAULT_OPTIONS:
            hint = suggest_name(name, _DEFAULT_OPTIONS) or ", see the options of KafkaConsumer and KafkaProducer"
            raise connection.options_error(f"{name} is unknown{hint}")
        if name in fixed:
            raise connection.options_error(f"{name} is set by streamsvm, leave it out")
        if name in client_class.DEFAULT_CONFIG:
            options[name] = _convert_option(name, value)
    if options.get("security_protocol", "PLAINTEXT") not in _SECURITY_PROTOCOLS:  # kafka-python would connect in plain text
        names = f"{', '.join(_SECURITY_PROTOCOLS[:-1])} or {_SECURITY_PROTOCOLS[-1]}"
        raise connection.options_error(f"security_protocol must be {names}")
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("kafka.")]:
        logging.getLogger(name).addFilter(_demote_outage)
        if any(isinstance(value, Secret) for value in options.values()):
            # At level DEBUG, kafka-python logs each request, including the one with the password.
            logging.getLogger(name).addFilter(redacting_filter)
    tls = _make_tls_context(connection, options)
    if tls is not None:
        options = {name: value for name, value in options.items() if not name.startswith("ssl_")} | {"ssl_context": tls}
    arguments = {
        "bootstrap_servers": connection.bootstrap.split(","),
        "bootstrap_timeout_ms": 1000 * CONNECT_SECONDS,
        # kafka-python's default of 30 s would be added to each outage: half the time that a transaction may be open.
        "reconnect_backoff_max_ms": RECONNECT_MS,
        **defaults,
        **options,
        **fixed,
    }
    return connection.open_with_retries(lambda: _connect_client(client_class, connection, arguments, tls))


def _convert_option(name: str, value: Any) -> Any:
    """Convert the value of kafka-python's option ``name``, if it is a text (as from an environment variable), to the type of the
    option's default; return other values unchanged.
    """
    default = _DEFAULT_OPTIONS[name]
    if name == "api_version" and isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)+", value):
        return tuple(map(int, value.split(".")))
    if not isinstance(value, str) or not isinstance(default, bool | int | float):
        return value
    if isinstance(default, bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    try:
        return type(default)(value)
    except ValueError:
        return value


def _make_tls_context(connection: Connection, options: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the TLS context for the connection's options ``ssl_...``; None if the options do not request TLS. Raise a
    StreamError if a certificate or key file cannot be loaded.
    """
    if "SSL" not in options.get("security_protocol", "").split("_"):
        return None
    config = {name: options.get(name, default) for name, default in KafkaSSLTransport.DEFAULT_CONFIG.items()}
    try:
        # kafka-python 3.0.12 fails to load a certificate revocation list.
        context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context(config | {"ssl_crlfile": None})
        if config["ssl_crlfile"]:
            context.load_verify_locations(config["ssl_crlfile"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (ssl.SSLError, OSError) as error:
        files = ", ".join(f"{name}={path}" for name, path in options.items() if name.startswith("ssl_") and name.endswith("file"))
        raise connection.options_error(f"TLS cannot be set up with {files} ({error}). Are they PEM files?") from error
    return context


def _connect_client(client_class: Any, connection: Connection, arguments: Mapping[str, Any], tls: ssl.SSLContext | None) -> Any:
    """Create a kafka-python client with the constructor's ``arguments``, after a test of the TLS handshake if a TLS context is
    given. Raise a StreamError that explains why it cannot connect.
    """
    if tls is not None:
        connection.check_reachable(tls)  # kafka-python may wait for a TLS handshake without limit
    recorder = _ConnectionErrorRecorder()
    networks: list[KafkaNetClient] = []

    def make_network(**configs: Any) -> KafkaNetClient:
        networks.append(KafkaNetClient(**configs))
        # kafka-python 3.0.12 does not pass this option on, so that each refresh would create a topic that was deleted.
        networks[-1].cluster.config["allow_auto_create_topics"] = False
        return networks[-1]

    with recorder.record_errors():
        try:
            client = client_class(**arguments, kafka_client=make_network)
        except BaseException as error:
            for network in networks:  # kafka-python leaves its thread and sockets open
                network.close()
            if isinstance(error, KafkaError):
                raise _explain_failure(connection, recorder.error or error) from error
            if isinstance(error, ValueError | TypeError | AssertionError):
                raise connection.options_error(error) from error
            raise
    try:
        connection.check_advertised_addresses([(broker.host, broker.port) for broker in networks[0].cluster.brokers()])
    except BaseException:
        client.close()
        raise
    return client


def _explain_failure(connection: Connection, error: BaseException) -> StreamError:
    """Return the StreamError to raise for an ``error`` of kafka-python while connecting: invalid options, a user that the broker
    refuses, or no response.
    """
    if isinstance(error, KafkaConfigurationError):
        return connection.options_error(error)
    # A broker closes the connection after it refuses a user, perhaps before kafka-python has read its response.
    has_user = "sasl_mechanism" in connection.options and isinstance(error, KafkaConnectionError)
    if has_user or isinstance(error, SaslAuthenticationFailedError | UnsupportedSaslMechanismError):
        return connection.refused_user_error(error)
    return connection.no_answer_error(error)


_OUTAGE_TEXT = re.compile(r"Kafka(Connection|Timeout)Error|NodeNotReadyError|No node available|\bsocket\b")


def _demote_outage(record: logging.LogRecord) -> bool:
    """Filter for a logger of kafka-python: set the level of a record about a lost connection to DEBUG, because kafka-python logs
    hundreds of them while a broker is away. Return whether the record is still logged.
    """
    is_expected = record.levelno < logging.WARNING or _ConnectionErrorRecorder.n_active > 0
    if is_expected or _OUTAGE_TEXT.search(record.getMessage()) is None:
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


class _ConnectionErrorRecorder(logging.Handler):
    """Records the errors that kafka-python logs while it connects, because the exceptions that it raises are less specific."""

    n_active = 0  # number of recorders that need all records
    _specific_errors = (KafkaConnectionError, UnsupportedSaslMechanismError, SaslAuthenticationFailedError)  # in this order

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        #: The last of the most specific errors so far; None before the first.
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the Kafka error among the arguments of a log record, unless a more specific error was logged before (a refused
        user is more specific than a lost connection).
        """
        for value in record.args or ():
            if isinstance(value, KafkaError) and self._rank_error(value) >= self._rank_error(self.error):
                self.error = value

    def _rank_error(self, error: BaseException | None) -> int:
        """Return how specific a connection error is: 3 for refused credentials, 2 for an unsupported SASL mechanism, 1 for a lost
        connection, 0 for other errors and None.
        """
        return max((number for number, kind in enumerate(self._specific_errors, 1) if isinstance(error, kind)), default=0)

    @contextlib.contextmanager
    def record_errors(self) -> Iterator[None]:
        """Remember the errors that kafka-python logs during the ``with`` block; the most specific one is then in `error`."""
        logger = logging.getLogger("kafka")
        logger.addHandler(self)
        _ConnectionErrorRecorder.n_active += 1
        try:
            yield
        finally:
            _ConnectionErrorRecorder.n_active -= 1
            logger.removeHandler(self)


#: The error classes of brokers by name: kafka-python raises some errors only as a text with that name.
_ERRORS_BY_NAME: dict[str, Any] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BrokerResponseError)
}


def find_broker_error(error: BaseException) -> BaseException:
    """Return the error that a broker has responded with: ``error`` itself, one of its arguments or causes, or one named in its
    text. If the broker has sent no error, return ``error``.
    """
    cause: BaseException | None = error
    while cause is not None:
        for candidate in (cause, *cause.args):
            if isinstance(candidate, BrokerResponseError):
                return candidate
        for name in re.findall(r"\w+Error", str(cause)):
            if name in _ERRORS_BY_NAME:
                named: BaseException = _ERRORS_BY_NAME[name](str(cause))
                return named
        cause = cause.__cause__ or cause.__context__
    return error


class _RaisingBrokerErrors:
    """Raises the broker's error in place of one that contains or names it. (A class is faster here than a generator.)"""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KafkaError) and not isinstance(error, KafkaTimeoutError):
            broker_error = find_broker_error(error)
            if broker_error is not error:
                raise broker_error from error


raising_broker_errors: _RaisingBrokerErrors = _RaisingBrokerErrors()


class KafkaPythonAdmin:
    """An admin client of kafka-python that implements `TopicAdmin`."""

    def __init__(self, connection: Connection) -> None:
        self._admin = open_client(KafkaAdminClient, connection, {"request_timeout_ms": 1000 * CONNECT_SECONDS}, {})

    def describe_topic(self, topic: str) -> TopicDescription:
        (metadata,) = self._admin.describe_topics([topic])
        if (failure := for_code(metadata["error_code"])) is not NoError:
            raise failure(topic)
        if not metadata["partitions"]:
            raise LeaderNotAvailableError(topic)
        return TopicDescription(metadata.get("topic_id"), tuple(sorted(p["partition_index"] for p in metadata["partitions"])))

    def list_topics(self) -> list[str]:
        return list(self._admin.list_topics())

    def read_topic_config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = self._admin.describe_configs([resource], config_filter="all")
        try:
            return str(next(iter(next(iter(configs.values())).values()))[name]["value"])
        except (KeyError, StopIteration, TypeError):
            return None

    def create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        options = {"num_partitions": 1, "replication_factor": -1, "configs": dict(settings)}
        self._admin.create_topics({topic: options}, timeout_ms=int(1000 * CONNECT_SECONDS), wait_for_metadata=True)

    def read_cluster_id(self) -> str | None:
        cluster_id: str | None = self._admin.describe_cluster().get("cluster_id")
        return cluster_id

    def close(self) -> None:
        self._admin.close()
