"""Codec of Avro records, one row in each message, and a client of the registry that has their schemas."""

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

#: Timeout of each step of a request: to connect, and to read the response.
RESPONSE_SECONDS = 5.0
#: How long requests are retried if the registry does not respond, unless ``outage_seconds`` is set.
OUTAGE_SECONDS = 30.0
#: How long an invalid schema id is not requested again: it is unknown to the registry, or not of an Avro schema.
INVALID_ID_SECONDS = 60.0
_MAX_CACHED_SCHEMAS = 1000
_MAX_RESPONSE_BYTES = 1 << 20
_UNKNOWN_SCHEMA_CODE = 40403  # error_code of the response for an unknown schema id
_RETRIABLE_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class SchemaRegistry:
    """Client of a schema registry with Confluent's REST interface.

    Apicurio, Karapace and Redpanda have this interface, too. Each schema is requested once; the last 1,000 are cached.

    Parameters
    ----------
    url
        Address of the registry, such as ``https://registry:8081``, without a user or password.
    username, password
        User and password for HTTP basic authentication.
    cafile
        Path of a PEM file with trusted certificate authorities. None uses those of the system.
    outage_seconds
        How long to retry requests, with exponential backoff, while the registry does not respond.

    Raises
    ------
    StreamError
        The URL or the file is invalid.

    Notes
    -----
    Requests use ``urllib.request``, which takes proxies from the environment as usual. The client of confluent-kafka would
    need five more packages for this one request, reads responses of any length, and follows redirects.
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
        if "@" in parts.netloc:  # the message does not repeat it, because it contains a password
            raise StreamError("schema_registry_url takes no user or password: give schema_registry_username and ..._password")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise StreamError(f"schema_registry_url must be like https://registry:8081, not {short_repr(url.partition('?')[0])}")
        self.url: str = url.rstrip("/")
        self._outage_seconds = outage_seconds
        self._headers = {"Accept": _ACCEPT}
        if username is not None:
            pair = ":".join("".join(text) for text in (username, password or ""))  # str() of a `Secret` would be ***
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        try:
            context = ssl.create_default_context(cafile=cafile)
        except (OSError, ssl.SSLError) as error:
            raise StreamError(f"schema_registry_cafile: {cafile} holds no certificates ({error})") from error
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
        self._schemas: dict[int, Any] = {}
        self._invalid_ids: dict[int, tuple[float, str]] = {}  # time of the response, and reason

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self | None:
        """Create a client of a schema registry from the connection options ``schema_registry_...``; return None if there are no
        such options.

        Raise a StreamError if an option of a registry is unknown, or the URL is missing.
        """
        settings = {n.removeprefix("schema_registry_"): value for n, value in options.items() if n.startswith("schema_registry_")}
        if not settings:
            return None
        if unknown := sorted(settings.keys() - {"url", "username", "password", "cafile"}):
            raise StreamError(f"schema_registry_{unknown[0]} is unknown: give ..._url, ..._username, ..._password or ..._cafile")
        if "url" not in settings:
            raise StreamError(f"schema_registry_{min(settings)} needs schema_registry_url, too")
        return cls(**settings, outage_seconds=options.get("outage_seconds", OUTAGE_SECONDS))

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def get_schema(self, schema_id: int) -> Any:
        """Return the Avro schema with the id ``schema_id`` as parsed JSON, from the cache or by a request to the registry.

        Raises
        ------
        ValueError
            The registry does not know the id, or it is not of an Avro schema.
        StreamError
            The registry does not respond within ``outage_seconds``, refuses the user, or is not a registry.
        """
        if schema_id in self._schemas:
            return self._schemas[schema_id]
        if schema_id < 0:  # not all registries report that a negative id is unknown
            raise ValueError(f"{schema_id} is not a valid id of a schema")
        request_time, reason = self._invalid_ids.get(schema_id, (-math.inf, ""))
        if time.monotonic() - request_time < INVALID_ID_SECONDS:
            raise ValueError(reason)
        response = self._request_schema(schema_id)
        if response is None:
            reason = f"the schema registry {self.url} knows no schema {schema_id}"
        elif (kind := response.get("schemaType", "AVRO")) != "AVRO":
            reason = f"schema {schema_id} is of type {short_repr(kind)}, not Avro"
        elif response.get("references"):
            reason = f"schema {schema_id} refers to others: a row is flat"
        else:
            try:
                schema = json.loads(response["schema"])
            except (KeyError, TypeError, ValueError, RecursionError):
                raise self._invalid_response_error("its answer holds no schema") from None
            _add_to_cache(self._schemas, schema_id, schema)
            return schema
        _add_to_cache(self._invalid_ids, schema_id, (time.monotonic(), reason))
        raise ValueError(reason)

    def _request_schema(self, schema_id: int) -> dict[str, Any] | None:
        """Request a schema by its id from the registry, and return the JSON object of its response; None if the registry does not
        know the id. Retry while the registry does not respond, for `outage_seconds`.
        """

        def report_error(error: Exception, _: int, is_last: bool) -> None:
            if is_last:
                raise StreamError(
                    f"the schema registry {self.url} does not answer ({error}). Check schema_registry_url and the registry, "
                    "then start again from the checkpoint; outage_seconds waits longer."
                ) from error
            logger.warning("The schema registry %s does not answer (%s): it is asked again.", self.url, error)

        return retry_with_backoff(
            lambda: self._send_request(schema_id), (OSError, http.client.HTTPException), self._outage_seconds, report_error
        )

    def _send_request(self, schema_id: int) -> dict[str, Any] | None:
        """Send one request for a schema to the registry, and return the JSON object of its response; None if the id is unknown.
        Raise a ConnectionError if a retry may help, and a StreamError for other failures.
        """
        request = urllib.request.Request(f"{self.url}/schemas/ids/{schema_id}", headers=self._headers)  # noqa: S310 - the scheme was checked
        try:
            with self._opener.open(request, timeout=RESPONSE_SECONDS) as response:
                return self._parse_response(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _RETRIABLE_STATUSES:
                    raise ConnectionError(f"HTTP status {error.code}") from None
                if error.code in (401, 403):
                    raise self._invalid_response_error("it refuses schema_registry_username or its password") from None
                if error.code == 404 and self._parse_response(error).get("error_code") == _UNKNOWN_SCHEMA_CODE:
                    return None
                raise self._invalid_response_error(f"it answers with HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise self._invalid_response_error(
                    f"its certificate does not verify ({error.reason.verify_message}): give schema_registry_cafile"
                ) from error
            raise ConnectionError(str(error.reason)) from error

    def _parse_response(self, response: Any) -> dict[str, Any]:
        """Return the JSON object in an HTTP response of the registry. Raise a StreamError if it is another kind of JSON, invalid,
        or longer than 1 MiB.
        """
        text = response.read(_MAX_RESPONSE_BYTES + 1)
        try:
            content = json.loads(text[: _MAX_RESPONSE_BYTES + 1]) if len(text) <= _MAX_RESPONSE_BYTES else None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise self._invalid_response_error("its answer is not a JSON object of at most 1 MiB")
        return content

    def _invalid_response_error(self, reason: str) -> StreamError:
        """Return the StreamError for a response that cannot be from a schema registry; ``reason`` describes the response."""
        return StreamError(f"the schema registry {self.url}: {reason}. schema_registry_url must be its address.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the password is not sent to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _add_to_cache(cache: dict[int, Any], schema_id: int, value: Any) -> None:
    """Add a value to a ``cache`` with schema ids as keys. If the cache is full, first remove the entry that was added first."""
    if len(cache) >= _MAX_CACHED_SCHEMAS:
        del cache[next(iter(cache))]
    cache[schema_id] = value


#: Types of the fields of a row.
_ROW_TYPES = ("null", "boolean", "int", "long", "float", "double", "string", "enum")
#: Logical types that fastavro reads as times. Of other logical types, the underlying number or text is read.
_TIME_TYPES = ("date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
_PREFIX = struct.Struct(">bi")  # zero, and the schema id
#: Errors of fastavro for invalid bytes, or a record that does not match the schema.
_FASTAVRO_ERRORS = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, StopIteration, TypeError, ValueError, struct.error,
)  # fmt: skip


class _RowSchema(NamedTuple):
    """The schema of a record without nested fields."""

    parsed: Any
    names: frozenset[str]


class AvroCodec(MessageCodec):
    """Codec of Avro records with a schema registry, one row in each message.

    Messages are in Confluent's wire format: a zero, the schema id in four bytes, and the record. fastavro
    (``streamsvm[avro]``) decodes it with its schema from the registry. A field is a feature or the label, as in JSON: numbers,
    booleans, strings and enums (as text), and times (as Python objects). Each of these may also be in a union with null, which
    is a missing feature or an unlabelled row. If a schema has any other field, each of its rows is an error.

    Parameters
    ----------
    label
        Name of the label's field. None if the messages have none.
    registry
        Registry that has the schemas.
    schema
        Id of the schema that `encode` uses. None makes a codec that only decodes.

    Raises
    ------
    ModuleNotFoundError
        fastavro is not installed (extra ``avro``).
    StreamError
        Raised by `decode` and `encode` if the registry does not respond.

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
        self._registry, self._schema_id = registry, schema
        self._schemas: dict[int, _RowSchema | str] = {}  # by id; a text is the reason why a schema is not of a row

    def decode(self, value: bytes) -> Row:
        """Decode a message in Confluent's Avro format to a row, by its schema in the registry. Raise a ValueError if the message
        is invalid, or the schema has nested fields.
        """
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(value)} bytes; a row may have at most {MAX_MESSAGE_BYTES}")
        if not value or value[0] != 0:
            reason = f"the first byte is {value[0]}, not 0" if value else "it is empty"
            raise ValueError(f"not Avro in Confluent's wire format: {reason}")
        if len(value) < _PREFIX.size:
            raise ValueError(f"not Avro in Confluent's wire format: {len(value)} bytes hold no id of a schema")
        schema_id = _PREFIX.unpack_from(value)[1]
        schema = self._get_row_schema(schema_id)
        stream = io.BytesIO(value)
        stream.seek(_PREFIX.size)
        try:
            fields = self._avro.schemaless_reader(stream, schema.parsed, None)
        except _FASTAVRO_ERRORS as error:
            raise ValueError(f"not a record of schema {schema_id}: {error or type(error).__name__}") from None
        if stream.tell() != len(value):
            raise ValueError(f"not a record of schema {schema_id}: {len(value) - stream.tell()} bytes follow it")
        y = normalize_label(fields.pop(self.label, None)) if self.label is not None else None
        if None in fields.values():
            fields = {name: item for name, item in fields.items() if item is not None}
        return Row(fields, y)

    def encode(self, row: Row) -> bytes:
        """Encode a row as an Avro message in Confluent's format, by the schema whose id was given to the constructor.

        Raise a ValueError if the codec has no schema, or the row does not match it.
        """
        if self._schema_id is None:
            raise ValueError("this codec only reads: give AvroCodec(..., schema=ID), the id of the schema to write with")
        schema, fields = self._get_row_schema(self._schema_id), make_fields(row, self.label, "AvroCodec")
        if unknown := fields.keys() - schema.names:
            raise ValueError(f"{short_repr(min(unknown, key=repr))} is not a field of schema {self._schema_id}")
        python_fields = {name: to_python_scalar(item) for name, item in fields.items()}
        stream = io.BytesIO(_PREFIX.pack(0, self._schema_id))
        stream.seek(_PREFIX.size)
        try:
            self._avro.schemaless_writer(stream, schema.parsed, python_fields)
        except _FASTAVRO_ERRORS as error:
            raise ValueError(f"the row does not match schema {self._schema_id}: {error or type(error).__name__}") from None
        return stream.getvalue()

    def _get_row_schema(self, schema_id: int) -> _RowSchema:
        """Return the schema with an id, from the cache or the registry, as fastavro needs it. Raise a ValueError if it is not a
        record of plain fields (numbers, booleans, texts, enums).
        """
        schema = self._schemas.get(schema_id)
        if schema is None:
            document = self._registry.get_schema(schema_id)
            schema = _find_schema_fault(document) or self._parse_row_schema(document)
            if len(self._schemas) >= _MAX_CACHED_SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[schema_id] = schema
        if isinstance(schema, str):
            raise ValueError(f"schema {schema_id} is not that of a row: {schema}")
        return schema

    def _parse_row_schema(self, document: Any) -> _RowSchema | str:
        """Convert a schema (``document``, parsed JSON) to the form that fastavro decodes with. If fastavro refuses the schema,
        return the reason as a text instead.
        """
        try:
            parsed = self._avro.parse_schema(_simplify_schema(document))
        except (*_FASTAVRO_ERRORS, self._avro.schema.SchemaParseException, self._avro.schema.UnknownType) as error:
            return f"fastavro does not read it ({error or type(error).__name__})"
        return _RowSchema(parsed, frozenset(field["name"] for field in document["fields"]))


def _find_schema_fault(schema: Any) -> str:
    """Return why an Avro schema (parsed JSON) is unsupported, such as a nested field; "" if it is a record of plain fields."""
    if not (isinstance(schema, dict) and schema.get("type") == "record" and isinstance(schema.get("fields"), list)):
        return "it is not a record"
    for field in schema["fields"]:
        if not (isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field):
            return "a field has no name or no type"
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            name = kind.get("type") if isinstance(kind, dict) else kind
            if name not in _ROW_TYPES:
                return f"field {field['name']!r} is of type {short_repr(name)}; a row is flat, with numbers, booleans and text"
    return ""


def _simplify_schema(schema: Any) -> dict[str, Any]:
    """Return a copy of an Avro record schema (parsed JSON) with only what decoding needs: names and types of fields, symbols of
    enums, and logical types of times. Defaults and documentation are left out.
    """
    numbers = itertools.count()
    fields = [{"name": field["name"], "type": _simplify_type(field["type"], numbers)} for field in schema["fields"]]
    return {"type": "record", "name": "row", "fields": fields}


def _simplify_type(kind: Any, numbers: Iterator[int]) -> Any:
    """Return a copy of ``kind``, the Avro type of a field as parsed JSON, with only the parts that decoding needs. Enums are
    renamed to ``enum0``, ``enum1``, ... so that their names are unique; ``numbers`` yields these numbers.
    """
    if isinstance(kind, list):
        return [_simplify_type(member, numbers) for member in kind]
    if isinstance(kind, dict):
        simple_type = {name: kind[name] for name in ("type", "symbols") if name in kind}
        if "name" in kind:  # unique, because two enums may differ only in the namespace, which is left out
            simple_type["name"] = f"enum{next(numbers)}"
        return simple_type | ({"logicalType": kind["logicalType"]} if kind.get("logicalType") in _TIME_TYPES else {})
    return kind
