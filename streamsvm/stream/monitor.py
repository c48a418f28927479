"""The state of a loop over HTTP, from a thread beside it: metrics for Prometheus, health, and a page with curves."""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any

from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.stream.endpoints import Closeable
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.page import make_live_state, render_page, to_json_number
from streamsvm.stream.progress import Progress, Timings
from streamsvm.stream.rows import find_learner
from streamsvm.stream.stream_loop import StreamLoop

logger: logging.Logger = logging.getLogger(__name__)
_POINTS = 600  # of the history; when there are more, every other one is dropped
_SECONDS = 1.0  # between two points at first
_REQUEST_SECONDS = 5.0  # in which a client has to send its request and take the answer
_MOST_CLIENTS = 200  # at once: each has a thread and a file of the process
_MOST_WAITING = 1024  # to be let in
_SECONDS_TO_ASK = 0.2  # that each client has at least
#: Upper ends of the buckets of times, in seconds.
BUCKETS = (*(float(f"{digit}e{power}") for power in range(-6, 0) for digit in (1, 2, 5)), 1.0)
_PROBES = 5  # snapshots that are tried while the loop changes what they read


class MonitorError(Exception):
    """The server cannot start: its port is in use."""


class Monitor(Closeable):
    """Serves what a loop does over HTTP, from a thread of its own.

    ``/metrics`` has metrics for Prometheus: ``streamsvm_rows_total``, ``streamsvm_refused_rows_total`` by reason,
    ``streamsvm_metric`` over all rows and the last ones, ``streamsvm_consumer_lag`` by partition, ``streamsvm_predict_seconds``
    and ``streamsvm_learn_seconds`` as histograms, ``streamsvm_support_vectors`` and others. ``/healthz`` answers 200 until the
    loop has failed, ``/readyz`` while it takes rows, else 503. ``/`` is the page of a report, live: it draws ``/state.json``.
    At most 200 clients are served at once, each for 5 seconds at most; where more come, the oldest one that waits has to go.

    Parameters
    ----------
    loop
        A `LearningLoop` or `PredictionLoop`, or a worker of a group, which has several of them: metrics then have the label
        ``partition``. Rows are timed from now on, which takes some microseconds each; of rows that are taken together, one is.
    port
        0: any that is free.
    host
        The address to listen at. Whoever reaches it can read the name of the source and all figures; nothing can be changed.
    names
        Names with a dot by which clients may ask, such as ``learner.example.org``. IP addresses, names without a dot and
        ``host`` are always served; what is asked under another name is not, as it may be a page of a stranger in a browser.

    Attributes
    ----------
    port : int
        The port.
    names : frozenset of str
        Names with a dot by which clients may ask.

    Raises
    ------
    MonitorError
        The port is in use.
    ModuleNotFoundError
        `prometheus_client` is not installed (extra ``metrics``).

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> from river import datasets
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream import IterableSource, LearningLoop
    >>> loop = LearningLoop(IterableSource(datasets.Bananas().take(500)), BSGDClassifier(budget=50))
    >>> with Monitor(loop) as monitor:
    ...     _ = loop.run()
    ...     text = urlopen(f"http://127.0.0.1:{monitor.port}/metrics").read().decode()
    >>> [line for line in text.splitlines() if line.startswith("streamsvm_rows_total")]
    ['streamsvm_rows_total 500.0']
    """

    def __init__(self, loop: Any, port: int = 0, host: str = "127.0.0.1", names: Iterable[str] = ()) -> None:
        try:
            from prometheus_client import CollectorRegistry, Histogram, core, generate_latest  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise missing_package_error("serving metrics", "prometheus-client", "metrics", error) from error
        names = [names] if isinstance(names, str) else names
        self.names: frozenset[str] = frozenset(name.lower().removesuffix(".") for name in (host, *names))
        self._loop, self._several = loop, not isinstance(loop, StreamLoop)
        self._stream: Any = loop if self._several else loop.source  # has a name, and knows how many messages wait
        self._families = partial(Families, core, self._several)
        self._last: dict[str, Any] = {}
        registry = CollectorRegistry()
        learns = registry if self._several or isinstance(loop, LearningLoop) else None
        loop.timings = Timings(
            Histogram("streamsvm_predict_seconds", "Time to predict a row", registry=registry, buckets=BUCKETS),
            Histogram("streamsvm_learn_seconds", "Time to learn a row", registry=learns, buckets=BUCKETS),
        )
        registry.register(self)
        self._text: Callable[[], bytes] = partial(generate_latest, registry)
        self._began = time.monotonic()
        self._versions: dict[str, tuple[int, float]] = {}  # of each model, and when it was seen first
        self._points: list[dict[str, Any]] = []
        self._seconds = _SECONDS
        self._closing = threading.Event()
        self.told: bool = False  # of a name that is not served
        try:
            self._server = _Server(host, port, partial(_Handler, self))
        except OSError as error:
            raise MonitorError(f"cannot listen at {host}:{port}: {error.strerror or error}. Give another port") from None
        self.port: int = self._server.server_address[1]
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._server.serve_forever, self._watch_loops)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the server."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def collect(self) -> Any:
        """Yield the metrics, as a collector of `prometheus_client`."""
        families = self._families()
        for partition, loop in self._named_loops().items():
            families.add(loop, self._progress_of(partition, loop), partition)
        for partition, count in (self._stream.lag() or {}).items():
            families.gauge("consumer_lag", "Messages that wait to be read", count, partition=str(partition))
        families.about(self._stream.name)
        return iter(families)

    def _named_loops(self) -> dict[str, Any]:
        """Return the loops by partition; one that is alone has no name."""
        return {str(number): loop for number, loop in self._loop.loops.items()} if self._several else {"": self._loop}

    def state(self) -> dict[str, Any]:
        """Return what the page shows: the parts of a report, and points of the run so far."""
        loops, timings = self._named_loops(), self._loop.timings
        progress = [self._progress_of(partition, loop) for partition, loop in loops.items()]
        curve = self._loop.curve if isinstance(self._loop, LearningLoop) else None
        return {
            "source": self._stream.name,
            "state": self._loop.state,
            "predict_seconds": {str(part): to_json_number(quantile(timings.predict, part)) for part in (0.5, 0.99)},
            "learn_seconds": {str(part): to_json_number(quantile(timings.learn, part)) for part in (0.5, 0.99)},
            **make_live_state(self._stream.name, progress, [*self._points, self._curve_point()], curve, self._model_facts(loops)),
        }

    def _model_facts(self, loops: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the age and the size of each model, and the times that rows take, with names."""
        facts, now, timings = [], time.monotonic(), self._loop.timings
        for partition, loop in loops.items():
            of = f" of partition {partition}" * bool(partition)
            learner, saved = find_learner(loop.model), loop.saved_rows
            verb = "saved"
            if not isinstance(loop, LearningLoop):
                verb, saved = "in use", getattr(loop, "version", 0) or None
            if saved is not None:
                if self._versions.get(partition, (-1, 0.0))[0] != saved:
                    self._versions[partition] = saved, now
                facts.append((f"model{of}", f"after {saved:,} rows, {verb} for {now - self._versions[partition][1]:,.0f} s"))
            if hasattr(learner, "nbytes"):
                facts.append((f"memory{of}", f"{learner.nbytes:,} bytes"))
        for what, histogram in (("to predict a row", timings.predict), ("to learn a row", timings.learn)):
            if math.isfinite(half := quantile(histogram, 0.5)):
                facts.append((what, f"half within {1e6 * half:,.0f} µs, 99 % within {1e6 * quantile(histogram, 0.99):,.0f} µs"))
        return facts

    def _progress_of(self, partition: str, loop: Any) -> Any:
        for _ in range(_PROBES):
            try:
                self._last[partition] = loop.progress
            except RuntimeError:  # a dictionary of a metric has got a new label while it was read
                continue
            break
        return self._last[partition]

    def _curve_point(self) -> dict[str, Any]:
        loops, lag = self._named_loops(), self._stream.lag()
        progress = [self._progress_of(partition, loop) for partition, loop in loops.items()]
        learning = [one for one in progress if one.learns]
        sizes = [getattr(find_learner(loop.model), "n_support", None) for loop in loops.values()]
        return {
            "seconds": round(time.monotonic() - self._began, 2),
            "rows": sum(one.rows for one in progress),
            "metric": _weighted_mean([(one.metric, one.rows) for one in learning]),
            "windowed": _weighted_mean([(one.windowed, 1) for one in learning]),
            "drifts": sum(one.drifts or 0 for one in progress),
            "lag": None if lag is None else sum(lag.values()),
            "refused": sum(sum(one.refused.values()) for one in progress),
            "support_vectors": None if None in sizes else sum(size for size in sizes if size is not None),
        }

    def _watch_loops(self) -> None:
        while not self._closing.wait(self._seconds):
            self._points.append(self._curve_point())
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
            return 200, "text/html; charset=utf-8", render_page().encode()
        return 404, "text/plain", b"there are /, /metrics, /healthz, /readyz and /state.json\n"


def quantile(histogram: Any, part: float) -> float:
    """Return the end of the bucket below which ``part`` of the observed times are; NaN if there are none."""
    (family,) = histogram.collect()
    buckets = [(float(sample.labels["le"]), sample.value) for sample in family.samples if sample.name.endswith("_bucket")]
    n = buckets[-1][1]
    return next((end for end, count in buckets if count and count >= part * n), math.nan)


_GAUGES = {
    "n_support": ("support_vectors", "Support vectors of the model"),
    "nbytes": ("model_bytes", "Memory of the model"),
}


class Families:
    """The state of loops as families of metrics by Prometheus' conventions; ``core`` is ``prometheus_client.core``."""

    def __init__(self, core: Any, several: bool) -> None:
        self._core = core
        self._families: dict[str, Any] = {}
        self._several, self._partition = several, ""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._families.values())

    def _add_family(self, make: Any, name: str, text: str, value: Any, labels: Mapping[str, str]) -> None:
        if self._several and "partition" not in labels:
            labels = {"partition": self._partition, **labels}
        if name not in self._families:
            self._families[name] = make(name, text, labels=list(labels))
        self._families[name].add_metric(list(labels.values()), *value)

    def counter(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add the value of a counter."""
        self._add_family(self._core.CounterMetricFamily, f"streamsvm_{name}", text, (value,), labels)

    def gauge(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add the value of a gauge."""
        self._add_family(self._core.GaugeMetricFamily, f"streamsvm_{name}", text, (value,), labels)

    def about(self, source: str) -> None:
        """Add what the process is."""
        self._families["info"] = self._core.InfoMetricFamily(
            "streamsvm", "The process", value={"version": version("streamsvm"), "source": source}
        )

    def add(self, loop: StreamLoop, progress: Progress, partition: str = "") -> None:
        """Add the metrics of a loop, of which ``progress`` is a snapshot."""
        self._partition = partition
        self.counter("rows", "Rows of the stream, those of earlier runs included", progress.rows)
        if progress.learns:
            self._add_learning(progress)
        else:
            self.counter("predicted_rows", "Rows that were predicted", progress.predicted)
        for kind, count in progress.refused.items():
            self.counter("refused_rows", "Rows that were refused, by kind of reason", count, reason=kind)
        learner = find_learner(loop.model)
        for name, (of, text) in _GAUGES.items():
            if hasattr(learner, name):
                self.gauge(of, text, getattr(learner, name))
        if hasattr(learner, "n_merges"):
            self.counter("merges", "Merges of support vectors", learner.n_merges)
        if loop.saved_rows is not None:
            self.gauge("checkpoint_rows", "Rows at the newest checkpoint", loop.saved_rows)

    def _add_learning(self, progress: Progress) -> None:
        self.counter("learned_rows", "Rows that were learned", progress.learned)
        self.counter("unlabelled_rows", "Rows without a label, which were predicted only", progress.unlabelled)
        self.counter("empty_rows", "Rows without any feature", progress.empty)
        if progress.drifts is not None:
            self.counter("drifts", "Drifts that were found", progress.drifts)
        if progress.delayed is not None:
            for name, key, text in _DELAYED_GAUGES:
                self.gauge(name, text, progress.delayed[key])
            for name, key, text in _DELAYED_COUNTERS:
                self.counter(name, text, progress.delayed[key])
            text = "Rows whose label did not come in time"
            for reason in ("age", "count", "bytes"):
                self.counter("expired_rows", text, progress.delayed[f"expired_{reason}"], reason=reason)
        for score in progress.scores:
            for window, value in (("all", score.value), (str(progress.window), score.windowed)):
                if math.isfinite(value):
                    text = "The metrics, over all rows and over the last ones"
                    self.gauge("metric", text, value, name=score.name, window=window)


_DELAYED_GAUGES = (
    ("pending_rows", "pending", "Rows that wait for their label"),
    ("pending_bytes", "bytes", "Bytes of the rows that wait, and of early labels"),
    ("early_labels", "early", "Labels that wait for their row"),
)
_DELAYED_COUNTERS = (
    ("labels", "labels", "Labels that came from another stream"),
    ("joined_rows", "joined", "Rows that met their label"),
    ("expired_labels", "expired_labels", "Labels whose row did not come in time"),
    ("late_labels", "late_labels", "Labels of rows that had expired"),
    ("duplicate_rows", "duplicate_rows", "Rows with a key that was there already"),
    ("duplicate_labels", "duplicate_labels", "Further labels of a key"),
)


class _Server(ThreadingHTTPServer):
    """A server of few clients at once, none of which can stay for long: where there are too many, the oldest one has to go.

    Each has the time to say what it wants, and others wait meanwhile in the order in which they came. So a probe gets its answer
    whatever others do: with 600 others that come again and again, within a second.
    """

    daemon_threads = True
    request_queue_size = _MOST_WAITING

    def __init__(self, host: str, port: int, handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.clients: dict[Any, float] = {}  # and when they came, the oldest first
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self.clients) >= _MOST_CLIENTS:
            for oldest, came in list(self.clients.items())[:1]:  # a copy: threads that have answered take theirs out
                time.sleep(max(came + _SECONDS_TO_ASK - time.monotonic(), 0.0))
                self._hang_up(oldest)
        self.clients[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on clients whose time is over: called twice a second."""
        late = time.monotonic() - _REQUEST_SECONDS
        for request, came in list(self.clients.items()):
            if came < late:
                self._hang_up(request)

    def _hang_up(self, request: Any) -> None:
        self.clients.pop(request, None)
        with suppress(OSError):  # its thread has just closed it
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing on standard error of a client that has gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS

    def __init__(self, monitor: Monitor, *arguments: Any) -> None:
        self._monitor = monitor
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = self.headers.get("Host")
        status, kind, content = 421, "text/plain", _OTHER_HOST
        if host is None or is_served(host, self._monitor.names):
            try:
                status, kind, content = self._monitor.answer(self.path.partition("?")[0])
            except Exception:  # of a model or source of the user's own: the next request is answered, too
                logger.exception("%s cannot be answered", self.path)
                status, kind, content = 500, "text/plain", b"it cannot be answered now: see the log\n"
        elif not self._monitor.told:  # once: who asks can make up any number of names
            self._monitor.told = True
            logger.warning("what was asked under the name %s was not answered: --metrics-names allows it", short_repr(host))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing on standard error."""


_OTHER_HOST = b"this name is not served: ask by address, or allow it with --metrics-names NAME; in Python: Monitor(names=...)\n"


def is_served(host: str, names: Collection[str]) -> bool:
    """Whether a request for a host is answered.

    A page of a stranger can ask this server for its figures if the browser believes that the server is the stranger's: his name
    then leads to our address. Such a name has a dot, and is none of ``names``.

    >>> [is_served(host, []) for host in ("10.1.2.3:9400", "[::1]:9400", "localhost", "learner-1:9400", "evil.example:9400")]
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


def _weighted_mean(values: list[tuple[float, int]]) -> float | None:
    pairs = [(value, weight) for value, weight in values if math.isfinite(value) and weight]
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs) if pairs else None
