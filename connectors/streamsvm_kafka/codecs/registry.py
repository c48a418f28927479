"""Codec of Avro, Protobuf and JSON messages, one row in each, and a client of the registry that has their schemas."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import logging
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Self
from urllib.parse import quote, urlsplit

from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm.stream.tables.values import flatten_row, get_nested_value
from streamsvm_kafka.codecs.json_rows import JSONCodec
from streamsvm_kafka.codecs.protocol import MessageCodec, make_row
from streamsvm_kafka.connection import retry_with_backoff

logger: logging.Logger = logging.getLogger(__name__)

#: Timeout of each step of a request: to connect, and to read the response.
RESPONSE_SECONDS = 5.0
#: How long requests are retried if the registry does not respond, unless ``outage_seconds`` is set.
OUTAGE_SECONDS = 30.0
#: How long an invalid schema id is not requested again: it is unknown to the registry, or its messages cannot be rows.
INVALID_ID_SECONDS = 60.0
_MAX_CACHED_SCHEMAS = 1000
_MAX_IMPORTS = 100  # schemas that one schema imports, directly or not
_MAX_RESPONSE_BYTES = 1 << 20


class SchemaRegistry:
    """Client of a schema registry with Confluent's REST interface.

    Apicurio, Karapace and Redpanda have this interface, too. Each schema is requested once; the last 1,000 are cached.

    Parameters
    ----------
    url
        Address of the registry, such as ``https://registry:8081``, without a user or password.
    username, password
        User and password for HTTP basic authentication. An empty ``username`` means none.
    cafile
        Path of a PEM file with trusted certificate authorities. An empty path means those of the system.
    outage_seconds
        How long to retry requests, with exponential backoff, while the registry does not respond.

    Raises
    ------
    StreamError
        The URL or the file is invalid.

    Notes
    -----
    Requests use ``urllib.request``, which takes proxies from the environment as usual. The client of confluent-kafka would
    need 15 more packages (30 MB) for these two requests, reads responses of any length, and follows redirects.
    """

    def __init__(
        self, url: str, *, username: str = "", password: str = "", cafile: str = "", outage_seconds: float = OUTAGE_SECONDS
    ) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:  # the message does not repeat it, because it contains a password
            raise StreamError("schema_registry_url takes no user or password: give schema_registry_username and ..._password")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise StreamError(f"schema_registry_url must be like https://registry:8081, not {short_repr(url.partition('?')[0])}")
        self.url: str = url.rstrip("/")
        self._outage_seconds = outage_seconds
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if username:
            pair = ":".join("".join(text) for text in (username, password))  # str() of a `Secret` would be ***
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        try:
            context = ssl.create_default_context(cafile=cafile)
        except (OSError, ssl.SSLError) as error:
            raise StreamError(f"schema_registry_cafile: {cafile} holds no certificates ({error})") from error
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
        #: By id: the time when it is to be requested again, and the schema, or the reason why messages with it cannot be read.
        self._schemas: dict[int, tuple[float, Any]] = {}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Create a client of a schema registry from the connection options ``schema_registry_...``. Raise a StreamError if one of
        them is unknown, or the URL is missing.
        """
        settings = {n.removeprefix("schema_registry_"): value for n, value in options.items() if n.startswith("schema_registry_")}
        if unknown := sorted(settings.keys() - {"url", "username", "password", "cafile"}):
            raise StreamError(f"schema_registry_{unknown[0]} is unknown: give ..._url, ..._username, ..._password or ..._cafile")
        if "url" not in settings:
            raise StreamError("no address of the schema registry: set STREAMSVM_KAFKA_SCHEMA_REGISTRY_URL or schema_registry_url")
        return cls(**settings, outage_seconds=options.get("outage_seconds", OUTAGE_SECONDS))

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def get_schema(self, schema_id: int) -> Any:
        """Return the schema with the id ``schema_id``, from the cache or by requests to the registry: an object with the method
        ``read(message)``, which returns a dict of the message's fields, and the attribute ``max_bytes``, the maximum size of a
        message. Return None for a JSON Schema, which is not needed.

        Raises
        ------
        ValueError
            The registry does not know the id, or messages with this schema cannot be rows.
        StreamError
            The registry does not respond within ``outage_seconds``, refuses the user, or is not a registry.
        ModuleNotFoundError
            The schema is of Avro or Protobuf, and fastavro or protobuf (extras ``avro``, ``protobuf``) is not installed.
        """
        expiry, schema = self._schemas.get(schema_id, (-math.inf, None))
        if expiry != math.inf and expiry < (now := time.monotonic()):
            try:
                expiry, schema = math.inf, self._read_schema(schema_id)
            except ValueError as error:
                expiry, schema = now + INVALID_ID_SECONDS, str(error)
            if len(self._schemas) >= _MAX_CACHED_SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[schema_id] = expiry, schema
        if isinstance(schema, str):
            raise ValueError(schema)
        return schema

    def _read_schema(self, schema_id: int) -> Any:
        """Request a schema and those that it imports. Return it in the form that decodes messages; None for a JSON Schema."""
        if schema_id < 0:  # not all registries report that a negative id is unknown
            raise ValueError(f"{schema_id} is not a valid id of a schema")
        path, parameters = f"schemas/ids/{schema_id}", "deleted=true"
        response = self._request(path)
        if (kind := str(response.get("schemaType", "AVRO"))) == "JSON":
            return None
        if kind not in ("AVRO", "PROTOBUF"):
            raise ValueError(f"schema {schema_id} is of type {short_repr(kind)}, not Avro, Protobuf or JSON")
        if kind == "PROTOBUF":
            parameters += "&format=serialized"  # compiled by the registry, so that no compiler is needed here
            response = self._request(f"{path}?{parameters}")
        imports: dict[str, str] = {}
        try:
            text = self._read_imports(response, parameters, imports)
        except (AttributeError, KeyError, RecursionError, TypeError):
            raise self._invalid_response_error("its answer holds no schema") from None
        try:
            module = importlib.import_module(f"streamsvm_kafka.codecs.{kind.lower()}")
            return getattr(module, f"{kind.capitalize()}Schema")(text, imports)
        except ImportError as error:
            if kind == "AVRO":
                raise missing_package_error("an Avro message", "fastavro", "avro", error) from error
            raise missing_package_error("a Protobuf message", "protobuf", "protobuf", error) from error
        except Exception as error:  # noqa: BLE001 - fastavro and protobuf raise many kinds of errors for invalid schemas
            raise ValueError(f"schema {schema_id} is not that of a row: {str(error) or type(error).__name__}") from None

    def _read_imports(self, response: Mapping[str, Any], parameters: str, imports: dict[str, str]) -> str:
        """Return the text of a schema in the registry's ``response``. Request those that it imports, with the ``parameters`` of a
        URL, and add their texts to ``imports`` by name, each after those that it imports itself.
        """
        for reference in response.get("references") or ():
            if (name := reference["name"]) not in imports:
                path = f"subjects/{quote(reference['subject'], safe='')}/versions/{int(reference['version'])}?{parameters}"
                imports[name] = ""  # schemas may import each other
                if len(imports) > _MAX_IMPORTS:
                    raise ValueError(f"it imports more than {_MAX_IMPORTS} schemas")
                imports[name] = self._read_imports(self._request(path), parameters, imports) + imports.pop(name)
        return "".join(response["schema"])

    def _request(self, path: str) -> dict[str, Any]:
        """Request a schema by its ``path`` in the registry, and return the JSON object of the response. Retry while the registry
        does not respond, for `outage_seconds`. Raise a ValueError if it does not know the schema.
        """

        def report_error(error: Exception, _: int, is_last: bool) -> None:
            text = f"the schema registry {self.url} does not answer ({error})"
            if is_last:
                advice = "Check schema_registry_url, then start again from the checkpoint; outage_seconds waits longer."
                raise StreamError(f"{text}. {advice}") from error
            logger.warning("%s: it is asked again.", text)

        return retry_with_backoff(lambda: self._send_request(path), (OSError, HTTPException), self._outage_seconds, report_error)

    def _send_request(self, path: str) -> dict[str, Any]:
        """Send one request for a schema to the registry, and return the JSON object of its response. Raise a ValueError if the
        schema is unknown, a ConnectionError if a retry may help, and a StreamError for other failures.
        """
        request = urllib.request.Request(f"{self.url}/{path}", headers=self._headers)  # noqa: S310 - the scheme was checked
        try:
            with self._opener.open(request, timeout=RESPONSE_SECONDS) as response:
                return self._parse_response(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (408, 425, 429, 500, 502, 503, 504):
                    raise ConnectionError(f"HTTP status {error.code}") from None
                if error.code in (401, 403):
                    raise self._invalid_response_error("it refuses schema_registry_username or its password") from None
                # The subject, the version or the id is unknown. A server without these codes is not a registry.
                if error.code == 404 and self._parse_response(error).get("error_code") in (40401, 40402, 40403):
                    raise ValueError(f"the schema registry {self.url} knows no {path.partition('?')[0]}") from None
                raise self._invalid_response_error(f"it answers with HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                reason = f"its certificate does not verify ({error.reason.verify_message}): give schema_registry_cafile"
                raise self._invalid_response_error(reason) from error
            raise ConnectionError(str(error.reason)) from error

    def _parse_response(self, response: Any) -> dict[str, Any]:
        """Return the JSON object in an HTTP response of the registry. Raise a StreamError if it is another kind of JSON, invalid,
        or longer than 1 MiB.
        """
        text = response.read(_MAX_RESPONSE_BYTES + 1)
        with contextlib.suppress(ValueError, RecursionError):
            if len(text) <= _MAX_RESPONSE_BYTES and isinstance(content := json.loads(text), dict):
                return content
        raise self._invalid_response_error("its answer is not a JSON object of at most 1 MiB")

    def _invalid_response_error(self, reason: str) -> StreamError:
        """Return the StreamError for a response that cannot be from a schema registry; ``reason`` describes the response."""
        return StreamError(f"the schema registry {self.url}: {reason}. schema_registry_url must be its address.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the password is not sent to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RegistryCodec(JSONCodec):
    """Codec of Avro, Protobuf and JSON messages with a schema registry, one row in each message.

    Messages are in Confluent's wire format: a zero, the schema id in four bytes, and the record. It is decoded with its schema
    from the registry, by fastavro (``streamsvm[avro]``), protobuf (``streamsvm[protobuf]``), or as `JSONCodec` decodes it. So a
    topic may contain messages with several schemas, also of different types.

    Fields are named and read as in JSON: those of nested records by their path (``payload.after.amount``), enums as text,
    decimals as numbers. A null, or an absent field, is a missing feature or an unlabelled row. A model refuses a list unless it
    drops the column. Dates and timestamps are Python objects, which a column of dates (``date`` in ``--columns``) reads like
    their texts in JSON. JSON is not validated against its schema.

    Parameters
    ----------
    label
        Name of the label's field. None if the messages have none.
    registry
        Registry that has the schemas.

    Raises
    ------
    StreamError
        Raised by `decode` if the registry does not respond.
    ModuleNotFoundError
        Raised by `decode` if the package for messages of a type is not installed.

    Examples
    --------
    >>> registry = SchemaRegistry("http://localhost:8081")
    >>> RegistryCodec("y", registry).decode(b'{"temperature": 21.5}')
    Traceback (most recent call last):
        ...
    ValueError: not in Confluent's wire format: it begins with b'{"tem', not with a zero and a schema's id
    """

    name = "registry"
    # Messages are only read, and one by one.
    decode_batch: Callable[..., Table | None] = MessageCodec.decode_batch
    encode: Callable[..., bytes] = MessageCodec.encode

    def __init__(self, label: str | None, registry: SchemaRegistry) -> None:
        super().__init__(label)
        self._registry = registry

    def decode_with_fields(self, value: bytes, names: Sequence[str]) -> tuple[Row, list[Any]]:
        prefix, schema_id = value[:5], int.from_bytes(value[1:5], signed=True)
        if len(prefix) < 5 or prefix[0]:
            raise ValueError(f"not in Confluent's wire format: it begins with {prefix!r}, not with a zero and a schema's id")
        schema = self._registry.get_schema(schema_id)
        if schema is None:
            return super().decode_with_fields(value[5:], names)
        if len(value) > schema.max_bytes:
            raise ValueError(f"{len(value)} bytes; a row with schema {schema_id} may have at most {schema.max_bytes:.0f}")
        try:
            fields = schema.read(value)
        except Exception as error:  # noqa: BLE001 - fastavro and protobuf raise many kinds of errors for invalid messages
            raise ValueError(f"not a record of schema {schema_id}: {str(error) or type(error).__name__}") from None
        kept = [get_nested_value(fields, name) for name in names] if names else []
        types = {*map(type, fields.values())}
        if is_nested := dict in types or list in types:
            fields = flatten_row(fields, self.label, self.dropped_fields)
        return make_row(fields, self.label, is_nested or type(None) in types), kept
