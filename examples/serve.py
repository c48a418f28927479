"""Serve the predictions of a model over HTTP, while a learner goes on and writes newer models.

    streamsvm learn rows.csv --label y --checkpoint state                   # here, or elsewhere, again and again
    python examples/serve.py state                                          # or: kafka://localhost:9092/models?name=rows
    curl localhost:8000/predict -d '[{"a": 1.0, "b": 2.0}]'

Only the standard library is needed besides streamsvm. There are no users and no TLS: see docs/serve.md.
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

MOST_BYTES = 1 << 20  # of a request
MOST_ROWS = 1000  # of a request
MOST_CLIENTS = 100  # at once: each has a thread
SECONDS = 5.0  # from the connection to the end of the answer


class RequestError(Exception):
    """A request that cannot be answered: the status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Records(list, Sink):
    """A sink that keeps what it is given."""

    name = "answer"
    write = list.append

    def flush(self) -> dict[str, int]:
        return {"records": len(self)}


class Predictor:
    """The newest model of a place, which a thread looks for."""

    def __init__(self, place: str) -> None:
        self._models = open_models(place) if "://" in place else FollowedFolder(place)
        self._model, self.version = None, -1
        self._lock = threading.Lock()  # a model predicts one row at a time
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                if self._model is None and (first := self._models.wait()) is not None:
                    self._take(first.model, first.header["rows"])
                if (found := self._models.read_newer()) is not None:
                    self._take(*found)
            except (CheckpointError, StreamError) as error:  # a broker is away: the model stays
                print(error, file=sys.stderr)
            self._closing.wait(0.2)

    def _take(self, model: Any, version: int) -> None:
        with self._lock:
            self._model, self.version = model, version

    @property
    def ready(self) -> bool:
        return self._model is not None and self._thread.is_alive()

    def predict(self, rows: list[Any]) -> dict[str, Any]:
        """Return the predictions of rows, the model's version, and what the rows have that the model has not met."""
        predictions, refused = Records(), Records()
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
        found = [{"label": each["y_pred"], "probability": each["probability"]} for each in predictions]
        return {"version": version, "predictions": found, "notes": list(notes)}

    def close(self) -> None:
        self._closing.set()
        self._models.stop()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """Answers a request: POST /predict and GET /healthz."""

    server: "Server"

    def setup(self) -> None:
        # A client that sends a byte now and then is cut off, too.
        self._timer = threading.Timer(SECONDS, self._cut)
        self._timer.start()
        super().setup()

    def finish(self) -> None:
        self._timer.cancel()
        super().finish()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):  # it has gone
            self.request.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        if self.path != "/healthz":
            self._answer(404, {"error": "there are POST /predict and GET /healthz"})
            return
        ready = self.server.predictor.ready
        self._answer(200 if ready else 503, {"ready": ready, "version": self.server.predictor.version})

    def do_POST(self) -> None:
        try:
            if self.path != "/predict":
                raise RequestError(404, "there are POST /predict and GET /healthz")
            self._answer(200, self.server.predictor.predict(self._rows()))
        except RequestError as error:
            self._answer(error.status, {"error": str(error)})

    def _rows(self) -> list[Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RequestError(411, "the request must say its Content-Length")
        if len(length) > 10 or int(length) > MOST_BYTES:
            raise RequestError(413, f"the request has more than {MOST_BYTES:,} bytes")
        try:
            rows = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"the request is not JSON: {error}") from error
        if not isinstance(rows, list) or not rows:
            raise RequestError(400, 'the request must be a list of rows, such as [{"a": 1.0}]')
        if len(rows) > MOST_ROWS:
            raise RequestError(413, f"the request has more than {MOST_ROWS:,} rows")
        return rows

    def _answer(self, status: int, facts: dict[str, Any]) -> None:
        body = json.dumps(facts).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if status != 200:  # a client that is still sending would not see the answer
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(MOST_BYTES):
                pass

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        """Keep quiet: a line for each request is for the server in front of this one."""


class Server(ThreadingHTTPServer):
    """Serves a predictor to so many clients at once; others wait to be let in."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], predictor: Predictor) -> None:
        super().__init__(address, Handler)
        self.predictor = predictor
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about clients that have gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", help="a folder of checkpoints, or kafka://host:port/topic")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
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
