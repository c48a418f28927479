"""Serve predictions over HTTP with the newest model of a running learner.

    streamsvm learn rows.csv --label y --checkpoint state                   # on this machine or another one
    python examples/serve.py state                                          # or: kafka://localhost:9092/models?name=rows
    curl localhost:8000/predict -d '[{"a": 1.0, "b": 2.0}]'

It needs only streamsvm and the standard library. It has neither authentication nor TLS: see docs/serve.md.
"""

import argparse
import contextlib
import json
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from streamsvm.stream import CheckpointError, FollowedFolder, IterableSource, PredictionLoop, Sink, StreamError
from streamsvm.stream.open import open_models

MAX_REQUEST_BYTES = 1 << 20
MAX_REQUEST_ROWS = 1000
MAX_CLIENTS = 100  # each has a thread
TIMEOUT_SECONDS = 5.0  # from the connection to the end of the response


class RequestError(Exception):
    """A request that cannot be answered, with the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ListSink(list, Sink):
    """A sink that collects the predictions in a list."""

    name = "response"
    write = list.append

    def flush(self) -> dict[str, int]:
        """Return the position of the sink."""
        return {"records": len(self)}


class Predictor:
    """The newest model in a folder or topic of checkpoints; a thread loads newer ones."""

    def __init__(self, location: str) -> None:
        self._models = open_models(location) if "://" in location else FollowedFolder(location)
        self._model, self.version = None, -1
        self._lock = threading.Lock()  # a model predicts one row at a time
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Load newer models until `close` is called."""
        while not self._closing.is_set():
            try:
                if self._model is None and (first := self._models.wait_for_first()) is not None:
                    self._replace_model(first.model, first.header["rows"])
                if (newer := self._models.read_newer()) is not None:
                    self._replace_model(*newer)
            except (CheckpointError, StreamError) as error:  # the broker is unavailable: keep the model
                print(error, file=sys.stderr)
            self._closing.wait(0.2)

    def _replace_model(self, model: Any, version: int) -> None:
        """Use another model for predictions."""
        with self._lock:
            self._model, self.version = model, version

    @property
    def is_ready(self) -> bool:
        """Whether there is a model, and newer ones are followed."""
        return self._model is not None and self._thread.is_alive()

    def predict(self, rows: list[Any]) -> dict[str, Any]:
        """Return the predictions of rows, the model's version, and notes about unknown columns and categories."""
        predictions, refused = ListSink(), ListSink()
        with self._lock:
            if self._model is None:
                raise RequestError(503, "there is no model yet")
            source = IterableSource([(row, None) for row in rows])
            loop = PredictionLoop(source, self._model, predictions, on_error=refused, error_share=1.0)
            try:
                notes = loop.run().columns.messages
            except StreamError as error:
                raise RequestError(400, str(error)) from error
            version = self.version
        if refused:
            raise RequestError(400, f"row {refused[0]['row'] + 1}: {refused[0]['reason']}")
        answers = [{"label": p["y_pred"], "probability": p["probability"]} for p in predictions]
        return {"version": version, "predictions": answers, "notes": list(notes)}

    def close(self) -> None:
        """Stop following models."""
        self._closing.set()
        self._models.stop()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """Handles the requests POST /predict and GET /healthz."""

    server: "Server"

    def setup(self) -> None:
        """Start the timeout of the connection."""
        # A timer also disconnects clients that send single bytes, which a socket timeout would not.
        self._timer = threading.Timer(TIMEOUT_SECONDS, self._disconnect)
        self._timer.start()
        super().setup()

    def finish(self) -> None:
        """Cancel the timeout."""
        self._timer.cancel()
        super().finish()

    def _disconnect(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # the client has disconnected already
            self.request.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer a request for the health of the server."""
        if self.path != "/healthz":
            self._send_json(404, {"error": "unknown path: use POST /predict or GET /healthz"})
            return
        is_ready = self.server.predictor.is_ready
        self._send_json(200 if is_ready else 503, {"ready": is_ready, "version": self.server.predictor.version})

    def do_POST(self) -> None:
        """Answer a request for predictions."""
        try:
            if self.path != "/predict":
                raise RequestError(404, "unknown path: use POST /predict or GET /healthz")
            self._send_json(200, self.server.predictor.predict(self._read_rows()))
        except RequestError as error:
            self._send_json(error.status, {"error": str(error)})

    def _read_rows(self) -> list[Any]:
        """Return the rows of a request; raise RequestError if they are invalid."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RequestError(411, "the request needs a Content-Length")
        if len(length) > 10 or int(length) > MAX_REQUEST_BYTES:
            raise RequestError(413, f"the request has more than {MAX_REQUEST_BYTES:,} bytes")
        try:
            rows = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"the request is not JSON: {error}") from error
        if not isinstance(rows, list) or not rows:
            raise RequestError(400, 'the request must be a list of rows, such as [{"a": 1.0}]')
        if len(rows) > MAX_REQUEST_ROWS:
            raise RequestError(413, f"the request has more than {MAX_REQUEST_ROWS:,} rows")
        return rows

    def _send_json(self, status: int, content: dict[str, Any]) -> None:
        """Send a response, and close the connection after an error."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if status != 200:  # a client that is still sending would not read the response
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(MAX_REQUEST_BYTES):
                pass

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        """Log nothing: a proxy in front of this server logs requests."""


class Server(ThreadingHTTPServer):
    """Serves a predictor to at most MAX_CLIENTS clients at a time; others wait."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], predictor: Predictor) -> None:
        super().__init__(address, Handler)
        self.predictor = predictor
        self._slots = threading.BoundedSemaphore(MAX_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for a free slot, and start the thread of a client."""
        self._slots.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a client, and release its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that have disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve predictions until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", help="folder of checkpoints, or kafka://host:port/topic")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at (0: any free port)")
    arguments = parser.parse_args()
    try:
        predictor = Predictor(arguments.models)
    except (CheckpointError, StreamError) as error:
        sys.exit(str(error))
    with Server((arguments.host, arguments.port), predictor) as server:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"listening at http://{arguments.host}:{server.server_address[1]}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    predictor.close()


if __name__ == "__main__":
    main()
