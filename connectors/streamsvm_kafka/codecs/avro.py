"""Rows as Avro records with the id of their schema, one a message, and the registry that has the schemas."""

from __future__ import annotations

import base64
import http.client
import io
import itertools
import json
import logging
import math
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from streamsvm.core.checks import to_python_scalar
from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.tables.chunk import Row
from streamsvm.stream.tables.values import normalize_label
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, MessageCodec, make_fields
from streamsvm_kafka.connection import retry_with_backoff

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds for each step of a request.
RESPONSE_SECONDS = 5.0
#: For how long a registry that does not answer is asked again, unless ``outage_seconds`` says another time.
OUTAGE_SECONDS = 30.0
#: For how long an id is not asked for again that the registry does not know, or that is of no Avro schema.
UNKNOWN_SECONDS = 60.0
_REMEMBERED = 1000
_MAX_ANSWER = 1 << 20
_NO_SCHEMA = 40403  # error_code of an id that the registry does not know
_LATER = (408, 425, 429, 500, 502, 503, 504)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class SchemaRegistry:
    """The schemas of a registry that has Confluent's REST interface.

    Besides Confluent's, Apicurio, Karapace and Redpanda have it. Each schema is requested once; the last 1,000 are held.

    Parameters
    ----------
    url
        Address of the registry, such as ``https://registry:8081``, without a user or password.
    username, password
        User and password for HTTP basic authentication.
    cafile
        Path of a PEM file with the authorities that sign certificates. None uses those of the system.
    outage_seconds
        Seconds for which to ask again, with pauses, while the registry does not answer.

    Raises
    ------
    StreamError
        The URL or the file is wrong.

    Notes
    -----
    Requests use ``urllib.request``, which takes proxies from the environment as usual. The client of confluent-kafka would
    bring five packages for this one request, reads answers of any length, and follows redirects.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        cafile: str | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:  # it is not repeated, for it holds a password
            raise StreamError("schema_registry_url takes no user or password: give schema_registry_username and ..._password")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise StreamError(
                f"schema_registry_url must be such as https://registry:8081, not {short_repr(url.partition('?')[0])}"
            )
        self.url: str = url.rstrip("/")
        self._outage_seconds = outage_seconds
        self._headers = {"Accept": _ACCEPT}
        if username is not None:
            pair = ":".join("".join(text) for text in (username, password or ""))  # also of a secret, whose str is ***
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        try:
            context = ssl.create_default_context(cafile=cafile)
        except (OSError, ssl.SSLError) as error:
            raise StreamError(f"schema_registry_cafile: {cafile} holds no certificates ({error})") from error
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
        self._schemas: dict[int, Any] = {}
        self._refused: dict[int, tuple[float, str]] = {}  # when, and why

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self | None:
        """Return the registry in options of a connection (see `client_options`); None if they have none.

        Raise a StreamError if an option of a registry is unknown, or there is no URL.
        """
        settings = {
            name.removeprefix("schema_registry_"): options[name] for name in options if name.startswith("schema_registry_")
        }
        if not settings:
            return None
        if unknown := sorted(settings.keys() - {"url", "username", "password", "cafile"}):
            raise StreamError(
                f"schema_registry_{unknown[0]} is unknown: there are ..._url, ..._username, ..._password and ..._cafile"
            )
        if "url" not in settings:
            raise StreamError(f"schema_registry_{min(settings)} needs schema_registry_url, too")
        return cls(**settings, outage_seconds=options.get("outage_seconds", OUTAGE_SECONDS))

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def schema(self, number: int) -> Any:
        """Return the Avro schema with this id, as JSON has it.

        Raises
        ------
        ValueError
            The registry does not know the id, or it is not that of an Avro schema.
        StreamError
            The registry does not answer within ``outage_seconds``, does not let this user in, or is not a registry.
        """
        if number in self._schemas:
            return self._schemas[number]
        if number < 0:  # no registry has one, and not all of them answer that they do not know it
            raise ValueError(f"{number} is no id of a schema")
        asked, reason = self._refused.get(number, (-math.inf, ""))
        if time.monotonic() - asked < UNKNOWN_SECONDS:
            raise ValueError(reason)
        answer = self._ask_registry(number)
        if answer is None:
            reason = f"the schema registry {self.url} knows no schema {number}"
        elif (kind := answer.get("schemaType", "AVRO")) != "AVRO":
            reason = f"schema {number} is of type {short_repr(kind)}, not Avro"
        elif answer.get("references"):
            reason = f"schema {number} refers to others: a row is flat"
        else:
            try:
                schema = json.loads(answer["schema"])
            except (KeyError, TypeError, ValueError, RecursionError):
                raise self._wrong_answer("its answer holds no schema") from None
            _remember_schema(self._schemas, number, schema)
            return schema
        _remember_schema(self._refused, number, (time.monotonic(), reason))
        raise ValueError(reason)

    def _ask_registry(self, number: int) -> dict[str, Any] | None:
        """The registry's answer; None if it knows no such schema."""

        def failed(error: Exception, _: int, last: bool) -> None:
            if last:
                raise StreamError(
                    f"the schema registry {self.url} does not answer ({error}). Check schema_registry_url and the registry, "
                    "then start again from the checkpoint; outage_seconds waits longer."
                ) from error
            logger.warning("The schema registry %s does not answer (%s): it is asked again.", self.url, error)

        return retry_with_backoff(
            lambda: self._ask_once(number), (OSError, http.client.HTTPException), self._outage_seconds, failed
        )

    def _ask_once(self, number: int) -> dict[str, Any] | None:
        request = urllib.request.Request(f"{self.url}/schemas/ids/{number}", headers=self._headers)  # noqa: S310 - was checked
        try:
            with self._opener.open(request, timeout=RESPONSE_SECONDS) as response:
                return self._read_answer(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _LATER:
                    raise ConnectionError(f"HTTP status {error.code}") from None
                if error.code in (401, 403):
                    raise self._wrong_answer(
                        "it does not let this user in: check schema_registry_username and its password"
                    ) from None
                if error.code == 404 and self._read_answer(error).get("error_code") == _NO_SCHEMA:
                    return None
                raise self._wrong_answer(f"it answers with HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise self._wrong_answer(
                    f"its certificate does not verify ({error.reason.verify_message}): give schema_registry_cafile"
                ) from error
            raise ConnectionError(str(error.reason)) from error

    def _read_answer(self, response: Any) -> dict[str, Any]:
        text = response.read(_MAX_ANSWER + 1)
        try:
            answer = json.loads(text[: _MAX_ANSWER + 1]) if len(text) <= _MAX_ANSWER else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._wrong_answer("its answer is no JSON object of at most 1 MiB")
        return answer

    def _wrong_answer(self, reason: str) -> StreamError:
        return StreamError(f"the schema registry {self.url}: {reason}. schema_registry_url must be its address.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A password goes to nobody else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _remember_schema(cache: dict[int, Any], number: int, value: Any) -> None:
    if len(cache) >= _REMEMBERED:
        del cache[next(iter(cache))]
    cache[number] = value


_FLAT = ("null", "boolean", "int", "long", "float", "double", "string", "enum")
#: Those that fastavro reads as times; of others the number or text below them.
_TIMES = ("date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
_BEGIN = struct.Struct(">bi")
_SCHEMAS = 1000
#: Errors of fastavro for invalid bytes, or a record that does not fit the schema.
_ERRORS = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, StopIteration, TypeError, ValueError, struct.error,
)  # fmt: skip


class _Flat(NamedTuple):
    """A schema of a flat record."""

    parsed: Any
    names: frozenset[str]


class AvroCodec(MessageCodec):
    """Codec of Avro records with a schema registry, one row in each message.

    Messages are in Confluent's wire format: a zero, the id of the schema in four bytes, and the record. fastavro reads it
    (``streamsvm[avro]``) by the schema that it was written with, from the registry. A field is a feature or the label, as in
    JSON: numbers, booleans, strings and enums (as text), and times (as Python objects). Each of these may also be in a union
    with null, which is a missing feature or an unlabelled row. If a schema has any other field, each of its rows is an error.

    Parameters
    ----------
    label
        Name of the label's field. None if the messages have none.
    registry
        Registry that holds the schemas.
    schema
        Id of the schema that `encode` writes with. None makes a codec that only reads.

    Raises
    ------
    ModuleNotFoundError
        fastavro is not installed (extra ``avro``).
    StreamError
        From `decode` and `encode`: the registry cannot be asked.

    Examples
    --------
    >>> registry = SchemaRegistry("http://localhost:8081")
    >>> AvroCodec("y", registry).decode(b'{"temperature": 21.5}')
    Traceback (most recent call last):
        ...
    ValueError: not Avro in Confluent's wire format: the first byte is 123, not 0
    """

    name = "avro"

    def __init__(self, label: str | None, registry: SchemaRegistry, *, schema: int | None = None) -> None:
        try:
            import fastavro  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise missing_package_error("an Avro message", "fastavro", "avro", error) from error
        self.label = label
        self._avro: Any = fastavro
        self._registry, self._schema = registry, schema
        self._schemas: dict[int, _Flat | str] = {}  # or why the schema cannot be used

    def decode(self, value: bytes) -> Row:
        """Decode a record; raise a ValueError if the message does not have the class's form."""
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(value)} bytes; a row may have at most {MAX_MESSAGE_BYTES}")
        if not value or value[0] != 0:
            reason = f"the first byte is {value[0]}, not 0" if value else "it is empty"
            raise ValueError(f"not Avro in Confluent's wire format: {reason}")
        if len(value) < _BEGIN.size:
            raise ValueError(f"not Avro in Confluent's wire format: {len(value)} bytes hold no id of a schema")
        number = _BEGIN.unpack_from(value)[1]
        schema = self._flat_schema(number)
        stream = io.BytesIO(value)
        stream.seek(_BEGIN.size)
        try:
            fields = self._avro.schemaless_reader(stream, schema.parsed, None)
        except _ERRORS as error:
            raise ValueError(f"not a record of schema {number}: {error or type(error).__name__}") from None
        if stream.tell() != len(value):
            raise ValueError(f"not a record of schema {number}: {len(value) - stream.tell()} bytes are left behind it")
        y = normalize_label(fields.pop(self.label, None)) if self.label is not None else None
        if None in fields.values():
            fields = {name: item for name, item in fields.items() if item is not None}
        return Row(fields, y)

    def encode(self, row: Row) -> bytes:
        """Encode a row as a record of the schema.

        Raise a ValueError if the codec has no schema, or the row does not fit it.
        """
        if self._schema is None:
            raise ValueError("this codec only reads: give AvroCodec(..., schema=ID), the id of the schema to write with")
        schema, fields = self._flat_schema(self._schema), make_fields(row, self.label, "AvroCodec")
        if unknown := fields.keys() - schema.names:
            raise ValueError(f"{short_repr(min(unknown, key=repr))} is no field of schema {self._schema}")
        plain = {name: to_python_scalar(item) for name, item in fields.items()}
        stream = io.BytesIO(_BEGIN.pack(0, self._schema))
        stream.seek(_BEGIN.size)
        try:
            self._avro.schemaless_writer(stream, schema.parsed, plain)
        except _ERRORS as error:
            raise ValueError(f"the row is no record of schema {self._schema}: {error or type(error).__name__}") from None
        return stream.getvalue()

    def _flat_schema(self, number: int) -> _Flat:
        schema = self._schemas.get(number)
        if schema is None:
            document = self._registry.schema(number)
            schema = _not_flat(document) or self._parsed_schema(document)
            if len(self._schemas) >= _SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[number] = schema
        if isinstance(schema, str):
            raise ValueError(f"schema {number} is not that of a row: {schema}")
        return schema

    def _parsed_schema(self, document: Any) -> _Flat | str:
        try:
            parsed = self._avro.parse_schema(_plain_schema(document))
        except (*_ERRORS, self._avro.schema.SchemaParseException, self._avro.schema.UnknownType) as error:
            return f"fastavro does not read it ({error or type(error).__name__})"
        return _Flat(parsed, frozenset(field["name"] for field in document["fields"]))


def _not_flat(schema: Any) -> str:
    """Say why a schema is not that of a flat record; empty if it is."""
    if not (isinstance(schema, dict) and schema.get("type") == "record" and isinstance(schema.get("fields"), list)):
        return "it is no record"
    for field in schema["fields"]:
        if not (isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field):
            return "a field has no name or no type"
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            name = kind.get("type") if isinstance(kind, dict) else kind
            if name not in _FLAT:
                return f"field {field['name']!r} is of type {short_repr(name)}; a row is flat, with numbers, booleans and text"
    return ""


def _plain_schema(schema: Any) -> dict[str, Any]:
    """Reduce the schema of a flat record to the parts that reading needs. Of logical types, only times are kept."""
    numbers = itertools.count()
    fields = [{"name": field["name"], "type": _plain_type(field["type"], numbers)} for field in schema["fields"]]
    return {"type": "record", "name": "row", "fields": fields}


def _plain_type(kind: Any, numbers: Iterator[int]) -> Any:
    if isinstance(kind, list):
        return [_plain_type(one, numbers) for one in kind]
    if isinstance(kind, dict):
        needed = {name: kind[name] for name in ("type", "symbols") if name in kind}
        if "name" in kind:  # two of one name may differ in the namespace, which is left out
            needed["name"] = f"enum{next(numbers)}"
        return needed | ({"logicalType": kind["logicalType"]} if kind.get("logicalType") in _TIMES else {})
    return kind
