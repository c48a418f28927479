"""A server of HTTP in a thread beside a loop."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Self

from streamsvm.runtime.rows import learner_of
from streamsvm.runtime.timings import Timings

__all__ = ["Monitor", "MonitorError"]

_POINTS = 600  # of the history; when there are more, every other one is dropped
_SECONDS = 1.0  # between two points at first
_REQUEST_SECONDS = 10.0  # in which a client has to send its request
_PROBES = 5  # snapshots that are tried while the loop changes what they read


class MonitorError(Exception):
    """The server cannot start: its port is in use, or a package is missing."""


class Monitor:
    """Serves what a loop does over HTTP, from a thread of its own.

    ``/metrics`` has metrics for Prometheus: ``streamsvm_rows_total``, ``streamsvm_refused_rows_total`` by reason,
    ``streamsvm_metric`` over all rows and the last ones, ``streamsvm_consumer_lag`` by partition, ``streamsvm_predict_seconds``
    and ``streamsvm_learn_seconds`` as histograms, ``streamsvm_support_vectors`` and others. ``/healthz`` answers 200 until the
    loop has failed, ``/readyz`` while it takes rows, else 503. ``/`` is a page with curves of ``/state.json``.

    Parameters
    ----------
    loop
        A `LearningLoop` or `PredictionLoop`. Its rows are timed from now on, which takes half a microsecond each.
    port
        0: any that is free.
    host
        The address to listen at. Whoever reaches it can read the name of the source and all figures; nothing can be changed.

    Attributes
    ----------
    port : int
        The port.

    Raises
    ------
    MonitorError
        The port is in use, or `prometheus_client` is not installed (``pip install 'streamsvm[metrics]'``).

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> from river import datasets
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.runtime import IterableSource, LearningLoop
    >>> loop = LearningLoop(IterableSource(datasets.Bananas().take(500)), BSGDClassifier(budget=50))
    >>> with Monitor(loop) as monitor:
    ...     _ = loop.run()
    ...     text = urlopen(f"http://127.0.0.1:{monitor.port}/metrics").read().decode()
    >>> [line for line in text.splitlines() if line.startswith("streamsvm_rows_total")]
    ['streamsvm_rows_total 500.0']
    """

    def __init__(self, loop: Any, port: int = 0, host: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra

            from streamsvm.runtime.monitor.metrics import families, lags  # noqa: PLC0415 - it, too
        except ImportError as error:
            raise MonitorError(f"metrics need prometheus_client ({error}): pip install 'streamsvm[metrics]'") from None
        self._loop, self._families, self._lags = loop, families, lags
        self._last: Any = None
        loop.timings = Timings()
        registry = CollectorRegistry()
        registry.register(self)
        self._text: Callable[[], bytes] = partial(generate_latest, registry)
        self._began = time.monotonic()
        self._points: list[dict[str, Any]] = []
        self._seconds = _SECONDS
        self._closing = threading.Event()
        try:
            self._server = ThreadingHTTPServer((host, port), partial(_Handler, self))
        except OSError as error:
            raise MonitorError(f"cannot listen at {host}:{port}: {error.strerror or error}. Give another port") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._server.serve_forever, self._watch)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def collect(self) -> Any:
        """Yield the metrics, as a collector of `prometheus_client`."""
        return self._families(self._loop, self._progress())

    def state(self) -> dict[str, Any]:
        """Return what the page shows: facts, and points of the run so far."""
        loop, timings = self._loop, self._loop.timings
        return {
            "source": loop.source.name,
            "state": loop.state,
            "metric": getattr(self._progress(), "metric_name", None),
            "predict_seconds": {str(part): _finite(timings.predict.quantile(part)) for part in (0.5, 0.99)},
            "learn_seconds": {str(part): _finite(timings.learn.quantile(part)) for part in (0.5, 0.99)},
            "points": [*self._points, self._point()],
        }

    def _progress(self) -> Any:
        """Return a snapshot of the loop, which goes on meanwhile."""
        for _ in range(_PROBES):
            try:
                self._last = self._loop.progress
            except RuntimeError:  # a dictionary of a metric has got a new label while it was read
                continue
            break
        return self._last

    def _point(self) -> dict[str, Any]:
        progress, lag = self._progress(), self._lags(self._loop)
        learner = learner_of(self._loop.model)
        return {
            "seconds": round(time.monotonic() - self._began, 2),
            "rows": progress.rows,
            "metric": _finite(getattr(progress, "metric", math.nan)),
            "windowed": _finite(getattr(progress, "windowed", math.nan)),
            "lag": None if lag is None else sum(lag.values()),
            "refused": sum(progress.refused.values()),
            "support_vectors": getattr(learner, "n_support", None),
        }

    def _watch(self) -> None:
        while not self._closing.wait(self._seconds):
            self._points.append(self._point())
            if len(self._points) > _POINTS:
                self._points, self._seconds = self._points[::2], 2.0 * self._seconds

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, type and content for a path."""
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", self._text()
        if path == "/state.json":
            return 200, "application/json", json.dumps(self.state(), allow_nan=False).encode()
        if path in ("/healthz", "/readyz"):
            state = self._loop.state
            good = state != "failed" if path == "/healthz" else state == "running"
            return (200 if good else 503), "text/plain", f"{state}\n".encode()
        if path == "/":
            return 200, "text/html; charset=utf-8", files(__package__).joinpath("page.html").read_bytes()
        return 404, "text/plain", b"there are /, /metrics, /healthz, /readyz and /state.json\n"


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS

    def __init__(self, monitor: Monitor, *arguments: Any) -> None:
        self._monitor = monitor
        super().__init__(*arguments)

    def do_GET(self) -> None:
        status, kind, content = self._monitor.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing on standard error."""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
