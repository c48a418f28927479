"""The HTTP server of a monitor, which bounds the number of clients and the time of each."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, ClassVar

from streamsvm.files.messages import short_repr

logger: logging.Logger = logging.getLogger(__name__)
_REQUEST_SECONDS = 5.0  # a client must send its request and receive the response within this time
_MAX_CLIENTS = 200  # simultaneous ones: each needs a thread and a file descriptor
_MAX_WAITING_CLIENTS = 1024  # in the queue of the socket
_MIN_CLIENT_SECONDS = 0.2  # a client is not disconnected before


class MonitorServer(ThreadingHTTPServer):
    """A server with a limited number of clients at once: when there are too many, it disconnects the oldest one.

    Each client has `_MIN_CLIENT_SECONDS` to send its request, and further clients wait in the order of their arrival. Therefore a
    probe always gets its response: within a second beside 600 other clients that connect again and again.
    """

    daemon_threads = True
    request_queue_size = _MAX_WAITING_CLIENTS

    def __init__(self, host: str, port: int, handler: Any) -> None:
        self.address_family: socket.AddressFamily = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.clients: dict[Any, float] = {}  # their times of arrival, the oldest first
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self.clients) >= _MAX_CLIENTS:
            for oldest, arrival in list(self.clients.items())[:1]:  # a copy, because other threads remove clients
                time.sleep(max(arrival + _MIN_CLIENT_SECONDS - time.monotonic(), 0.0))
                self._disconnect(oldest)
        self.clients[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect clients that were connected for longer than the time limit of a request. The base class calls this method
        twice a second.
        """
        earliest = time.monotonic() - _REQUEST_SECONDS
        for request, arrival in list(self.clients.items()):
            if arrival < earliest:
                self._disconnect(request)

    def _disconnect(self, request: Any) -> None:
        self.clients.pop(request, None)
        with suppress(OSError):  # its own thread has just closed it
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback for the current exception of a request. Ignore an OSError, because the client has disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class RequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of one client by ``monitor.make_response``, unless their host name is not allowed."""

    timeout: ClassVar[float] = _REQUEST_SECONDS

    def __init__(self, monitor: Any, *arguments: Any) -> None:
        self._monitor = monitor
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = self.headers.get("Host")
        status, content_type, content = 421, "text/plain", _REJECTED_HOST
        if host is None or is_allowed_host(host, self._monitor.names):
            try:
                status, content_type, content = self._monitor.make_response(self.path.partition("?")[0])
            except Exception:  # of a user's model or source: the next request may succeed
                logger.exception("the request for %s failed", self.path)
                status, content_type, content = 500, "text/plain", b"the request failed: see the log\n"
        elif not self._monitor.has_warned_of_host:  # once, because a client can use any number of names
            self._monitor.has_warned_of_host = True
            logger.warning("a request for the host name %s was rejected: --metrics-names allows it", short_repr(host))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Do nothing, so that requests are not logged to standard error."""


_REJECTED_HOST = b"this host name is not allowed: use the IP address, or allow it: --metrics-names NAME, Monitor(names=...)\n"


def is_allowed_host(host: str, names: Collection[str]) -> bool:
    """Return whether a request with this Host header may be answered: the host is an IP address, a name without a dot, or one of
    ``names``. Other host names are rejected, because a foreign web page could read the metrics under its own name (DNS
    rebinding).

    >>> [is_allowed_host(host, []) for host in ("10.1.2.3:9400", "[::1]:9400", "localhost", "learner-1:9400", "evil.example")]
    [True, True, True, True, False]
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    if "." not in name or name in names or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
