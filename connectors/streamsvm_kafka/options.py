"""The options of clients: from a mapping and the environment, checked, with secrets that no text shows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import StreamError

_PREFIX = "STREAMSVM_KAFKA_"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENTS = ("auto", "confluent-kafka", "kafka-python")
_MOST_SECONDS = 7 * 24 * 3600.0


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


def client_options(given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the options of a connection, from a mapping and from the environment.

    Parameters
    ----------
    given
        Options by name:

        - ``security_protocol``: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
        - ``ssl_cafile``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_crlfile`` (paths of PEM files), ``ssl_password`` (of the
          key), ``ssl_check_hostname``
        - ``sasl_mechanism`` (PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512), ``sasl_plain_username``, ``sasl_plain_password``
        - ``client``: the client library. ``kafka-python`` is the default; ``confluent-kafka`` needs less time to read, and a
          tenth of it to write (extra ``confluent``); ``auto`` is confluent-kafka where that is installed
        - ``client_id``
        - ``api_version``: version of a broker that does not report it, such as ``"2.3"``; confluent-kafka finds that out itself
        - ``outage_seconds``: how long to wait for a broker that does not answer; by default not at all at the start, and 30 s
          for what is written
        - ``schema_registry_url``, ``schema_registry_username``, ``schema_registry_password``, ``schema_registry_cafile``: the
          registry of Avro schemas (see `SchemaRegistry`)
    environment
        Mapping that holds the other options under names in capitals after ``STREAMSVM_KAFKA_``, such as
        ``STREAMSVM_KAFKA_SASL_MECHANISM``. None uses the environment of this process.

    Returns
    -------
    dict
        Options for `KafkaSource`, `KafkaSink` and `publish`. Secret values are of type `Secret`.

    Raises
    ------
    StreamError
        An option does not exist, cannot have that value, or needs others that are missing.

    Examples
    --------
    >>> client_options({"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"}, {
    ...     "STREAMSVM_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "STREAMSVM_KAFKA_SASL_PLAIN_PASSWORD": "hunter2",
    ... })  # doctest: +NORMALIZE_WHITESPACE
    {'security_protocol': 'SASL_SSL', 'sasl_mechanism': 'PLAIN', 'sasl_plain_username': 'alice', 'sasl_plain_password': '***'}
    """
    variables = os.environ if environment is None else environment
    options: dict[str, Any] = {}
    for variable in sorted(name for name in variables if name.startswith(_PREFIX)):
        name = variable.removeprefix(_PREFIX).lower()
        options[name] = _checked_option(name, variables[variable], variable)
    options |= {name: _checked_option(name, value, name) for name, value in (given or {}).items()}
    _check_together(options)
    order = [name for name in _OPTIONS if name in options]
    return {name: options[name] for name in order}


def _checked_option(name: str, value: Any, place: str) -> Any:
    if name not in _OPTIONS:
        raise StreamError(f"{place} is no option of a Kafka connection: there are {', '.join(_OPTIONS)}")
    try:
        return _OPTIONS[name](value)
    except ValueError as error:
        raise StreamError(f"{place} {error}") from None


def _check_together(options: Mapping[str, Any]) -> None:
    protocol = options.get("security_protocol", "PLAINTEXT")
    for name in options:
        layer = name.partition("_")[0]
        if layer in ("ssl", "sasl") and layer.upper() not in protocol:
            right = "SASL_SSL, or SASL_PLAINTEXT" if layer == "sasl" else "SSL, or SASL_SSL"
            raise StreamError(f"{name} has no effect with security_protocol={protocol}: set that to {right}")
    if "SASL" in protocol:
        for name in ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password"):
            if name not in options:
                raise StreamError(f"security_protocol={protocol} needs {name}: as an option, or as {_PREFIX}{name.upper()}")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise StreamError("ssl_keyfile is the key of a certificate: give ssl_certfile, too")
    if "schema_registry_username" in options and "schema_registry_password" not in options:
        raise StreamError(
            f"schema_registry_username needs schema_registry_password: as an option, or as {_PREFIX}SCHEMA_REGISTRY_PASSWORD"
        )
    for name in options:
        if name.startswith("schema_registry_") and "schema_registry_url" not in options:
            raise StreamError(f"{name} has no effect without schema_registry_url: give that, too")


def _one_of(choices: tuple[str, ...], spelt: Callable[[str], str] = str.upper) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        found = spelt(str(value))
        if found not in choices:
            raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}, not {shown(value)}")
        return found

    return check


def _text_option(value: Any) -> str:
    if not (isinstance(value, str) and value):
        raise ValueError("must be a text")  # the value is not shown, as it may be a secret in the wrong place
    return value


def _secret_option(value: Any) -> Secret:
    return Secret(_text_option(value))


def _file_option(value: Any) -> str:
    if not isinstance(value, str | Path):
        raise ValueError("must be the path of a file")
    path = os.fspath(value)
    try:
        with Path(path).open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {error.strerror}") from None


def _flag_option(value: Any) -> bool:
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if found is None:
        raise ValueError(f"must be true or false, not {shown(value)}")
    return found


def _seconds_option(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0.0 <= found <= _MOST_SECONDS:
        raise ValueError(f"must be a number of seconds from 0 to {_MOST_SECONDS:,.0f}, not {shown(value)}")
    return found


def _version_option(value: Any) -> tuple[int, ...]:
    text = ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})+", text, re.ASCII):
        raise ValueError(f"must be a version such as 2.3, not {shown(value)}")
    return tuple(map(int, text.split(".")))


#: How each option is checked.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "security_protocol": _one_of(_PROTOCOLS),
    "ssl_cafile": _file_option,
    "ssl_certfile": _file_option,
    "ssl_keyfile": _file_option,
    "ssl_crlfile": _file_option,
    "ssl_password": _secret_option,
    "ssl_check_hostname": _flag_option,
    "sasl_mechanism": _one_of(_MECHANISMS),
    "sasl_plain_username": _text_option,
    "sasl_plain_password": _secret_option,
    "client": _one_of(CLIENTS, str),
    "client_id": _text_option,
    "api_version": _version_option,
    "outage_seconds": _seconds_option,
    "schema_registry_url": _text_option,
    "schema_registry_username": _text_option,
    "schema_registry_password": _secret_option,
    "schema_registry_cafile": _file_option,
}
