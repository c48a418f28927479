"""A schema registry for tests: an HTTP server that supports the requests of `SchemaRegistry`.

A real registry takes half a minute to start and cannot be made to fail. The responses follow Confluent's documentation.
"""

from __future__ import annotations

import base64
import io
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fastavro

from streamsvm.stream.endpoints import Row
from streamsvm_kafka import RegistryCodec, SchemaRegistry


class FakeRegistry:
    """Schemas by id and by path, responses (status and body) to send first, the requested paths, and the accepted user."""

    def __init__(self) -> None:
        self.schemas: dict[int, object] = {}
        self.by_path: dict[str, object] = {}
        self.answers: list[tuple[int, bytes]] = []  # sent first
        self.asked: list[str] = []
        self.user: tuple[str, str] | None = None
        self.url = ""

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.answers:
            return self.answers.pop(0)
        if self.user and authorization != "Basic " + base64.b64encode(":".join(self.user).encode()).decode():
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        path = path.partition("?")[0]
        schema = self.by_path.get(path) or self.schemas.get(int(path.rpartition("/")[2]) if path.startswith("/schemas") else -1)
        if schema is None:
            code = 40403 if path.startswith("/schemas") else 40402
            return 404, b'{"error_code": %d, "message": "Schema not found"}' % code
        return 200, json.dumps(schema if "schema" in schema else {"schema": json.dumps(schema)}).encode()


@contextmanager
def fake_registry(certificate: Path | None = None) -> Iterator[FakeRegistry]:
    """Serve a registry, with TLS if ``certificate`` (a file with certificate and key) is given."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers["Authorization"])
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            if status // 100 == 3:
                self.send_header("Location", "/elsewhere/schemas/ids/1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def handle(self) -> None:
            with suppress(ssl.SSLError, ConnectionError):  # of a client that does not trust it
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        registry.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


class LocalRegistry(SchemaRegistry):
    """The client of a registry that needs no server: ``answers`` are the responses by path, and ``asked`` the requested paths."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        super().__init__("http://registry")
        self.answers, self.asked = answers, []

    def _send_request(self, path: str) -> object:
        self.asked.append(path)
        return self.answers[path.partition("?")[0]]


def read_avro(schema: object, fields: object, label: str | None = "y", references: Mapping[str, object] | None = None) -> Row:
    """Encode fields with fastavro by a schema, and decode the message with a codec. ``references`` are its imports by name."""
    names: dict[str, object] = {}
    for referenced in (references or {}).values():
        fastavro.parse_schema(referenced, names)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, names), fields)
    return avro_codec(schema, label, references).decode(PREFIX + stream.getvalue())


def avro_codec(schema: object, label: str | None = "y", references: Mapping[str, object] | None = None) -> RegistryCodec:
    """Return a codec of messages whose schema, of Avro, has the id 1."""
    answers = {f"subjects/{name}/versions/1": {"schema": json.dumps(text)} for name, text in (references or {}).items()}
    listed = [{"name": name, "subject": name, "version": 1} for name in references or ()]
    answers["schemas/ids/1"] = {"schema": json.dumps(schema), "references": listed}
    return RegistryCodec(label, LocalRegistry(answers))


PREFIX = b"\0\0\0\0\1"
#: The fields of the records of tests.
FIELDS = [
    {"name": "a", "type": "double"},
    {"name": "b", "type": ["null", "long"], "default": None},
    {"name": "c", "type": ["null", "string"]},
    {"name": "d", "type": "boolean"},
    {"name": "y", "type": ["null", "int", "string"], "doc": "the label"},
]
"""The first bytes of messages whose schema has the id 1."""


def record(*fields, **more):
    """Return the Avro schema of a record with these fields."""
    return {"type": "record", "name": "Row", "namespace": "test", "fields": list(fields), **more}
