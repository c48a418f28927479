"""A schema registry for tests: an HTTP server that supports the one request of `SchemaRegistry`.

A real registry takes half a minute to start and cannot be made to fail. The responses follow Confluent's documentation.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FakeRegistry:
    """Schemas by id, responses (status and body) to send first, the requested paths, and the accepted user."""

    def __init__(self) -> None:
        self.schemas: dict[int, object] = {}
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
        schema = self.schemas.get(int(path.rpartition("/")[2]))
        if schema is None:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
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
