"""The options of clients, from a mapping and the environment, with secrets that are never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Self

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import StreamError

#: Of the variables of the environment that hold options.
PREFIX = "STREAMSVM_KAFKA_"
_MAX_SECONDS = 7 * 24 * 3600.0
#: Names of options whose values are secret, or may contain a secret.
_SECRET = re.compile("password|passphrase|secret|token|proxy|pem$|_config$|ssl_key$")


class Secret(str):
    """A text that is used as it is, but shown as ``***``.

    Examples
    --------
    >>> password = Secret("hunter2")
    >>> f"{password} {[password]}", password.encode(), password == "hunter2"
    ("*** ['***']", b'hunter2', True)
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        return super().__new__(cls, "".join(text))  # for str(text) of one that is a secret already is not its text

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)


def is_secret(name: str) -> bool:
    """Return whether the value of an option is secret, or may contain a secret."""
    return _SECRET.search(name.replace(".", "_")) is not None


def client_options(options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the options of a connection, from a mapping and from the environment.

    Parameters
    ----------
    options
        Options by name:

        - ``client``: the client library. ``kafka-python`` is the default; ``confluent-kafka`` needs less time to read, and a
          tenth of it to write (extra ``confluent``).
        - All options of that library, under its own names: for kafka-python, those of its consumers, producers and admin clients
          (``security_protocol``, ``ssl_cafile``, ``sasl_mechanism``, ``sasl_plain_username``, ``sasl_oauth_token_provider``,
          ``linger_ms``); for confluent-kafka, those in librdkafka's CONFIGURATION.md, with ``.`` or ``_`` between words
          (``security_protocol``, ``ssl_ca_location``, ``sasl_mechanism``, ``sasl_username``, ``oauth_cb``, ``linger_ms``). The
          library checks them when a connection is opened.
        - ``outage_seconds``: how long to wait for a broker that does not answer; by default not at all at the start, and 30 s
          for what is written.
        - ``schema_registry_url``, ``schema_registry_username``, ``schema_registry_password``, ``schema_registry_cafile``: the
          registry of Avro schemas (see `SchemaRegistry`).
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
        ``outage_seconds`` is not a number of seconds.

    Examples
    --------
    >>> client_options({"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"}, {
    ...     "STREAMSVM_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "STREAMSVM_KAFKA_SASL_PLAIN_PASSWORD": "hunter2",
    ... })  # doctest: +NORMALIZE_WHITESPACE
    {'sasl_plain_password': '***', 'security_protocol': 'SASL_SSL', 'sasl_mechanism': 'PLAIN', 'sasl_plain_username': 'alice'}
    """
    variables = os.environ if environment is None else environment
    merged: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): variables[name] for name in sorted(variables) if name.startswith(PREFIX)
    }
    merged |= {name.replace(".", "_"): value for name, value in (options or {}).items()}
    for name, value in merged.items():
        if isinstance(value, os.PathLike):
            merged[name] = os.fspath(value)
        elif isinstance(value, str) and is_secret(name):
            merged[name] = Secret(value)
    if "outage_seconds" in merged:
        merged["outage_seconds"] = _checked_seconds(merged["outage_seconds"])
    return merged


def _checked_seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0.0 <= seconds <= _MAX_SECONDS:
        raise StreamError(f"outage_seconds must be a number of seconds from 0 to {_MAX_SECONDS:,.0f}, not {shown(value)}")
    return seconds
