"""Schemas by their ids, from a registry."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.connection import patiently

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds for each step of a request.
ANSWER_SECONDS = 5.0
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
            raise StreamError(f"schema_registry_url must be such as https://registry:8081, not {shown(url.partition('?')[0])}")
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
        given = {name.removeprefix("schema_registry_"): options[name] for name in options if name.startswith("schema_registry_")}
        if not given:
            return None
        if unknown := sorted(given.keys() - {"url", "username", "password", "cafile"}):
            raise StreamError(
                f"schema_registry_{unknown[0]} is unknown: there are ..._url, ..._username, ..._password and ..._cafile"
            )
        if "url" not in given:
            raise StreamError(f"schema_registry_{min(given)} needs schema_registry_url, too")
        return cls(**given, outage_seconds=options.get("outage_seconds", OUTAGE_SECONDS))

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
            reason = f"schema {number} is of type {shown(kind)}, not Avro"
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

        return patiently(lambda: self._ask_once(number), (OSError, http.client.HTTPException), self._outage_seconds, failed)

    def _ask_once(self, number: int) -> dict[str, Any] | None:
        request = urllib.request.Request(f"{self.url}/schemas/ids/{number}", headers=self._headers)  # noqa: S310 - was checked
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as response:
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


def _remember_schema(known: dict[int, Any], number: int, what: Any) -> None:
    if len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[number] = what
