"""Serves the state of a running loop over HTTP: metrics for Prometheus, health checks, and a live page with curves."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from streamsvm.files.messages import missing_package_error
from streamsvm.stream.endpoints import Closeable
from streamsvm.stream.http_server import MonitorServer, RequestHandler
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.metric_families import MetricFamilies, get_version
from streamsvm.stream.page import make_live_state, render_page
from streamsvm.stream.progress import Timings
from streamsvm.stream.rows import find_learner
from streamsvm.stream.stream_loop import StreamLoop

logger: logging.Logger = logging.getLogger(__name__)
_MAX_POINTS = 600  # points of the history; beyond, every second one is dropped
_FIRST_INTERVAL_SECONDS = 1.0  # between two points, until points are dropped
#: Upper bounds of the buckets of the time histograms, in seconds.
BUCKETS = (*(float(f"{digit}e{power}") for power in range(-6, 0) for digit in (1, 2, 5)), 1.0)
_SNAPSHOT_ATTEMPTS = 5  # a snapshot fails if the loop changes a dict meanwhile


class MonitorError(Exception):
    """The server cannot start: its port is in use."""


class Monitor(Closeable):
    """Serves the state of a loop over HTTP, from a separate thread.

    ``/metrics`` has metrics for Prometheus: ``streamsvm_rows_total``, ``streamsvm_refused_rows_total`` by reason,
    ``streamsvm_metric`` over all rows and over the last ones, ``streamsvm_consumer_lag`` by partition,
    ``streamsvm_predict_seconds`` and ``streamsvm_learn_seconds`` as histograms, ``streamsvm_support_vectors`` and others.
    ``/healthz`` returns status 200 until the loop has failed, ``/readyz`` while it processes rows, and 503 otherwise. ``/`` is a
    live report, which draws ``/state.json``. At most 200 clients are served at once, each for at most 5 seconds. Beyond, the
    oldest one is disconnected.

    Parameters
    ----------
    loop
        A `LearningLoop` or `PredictionLoop`, or a worker of a group, which has several loops: metrics then have the label
        ``partition``. From now on the loop times one row of each chunk, which takes some microseconds.
    port
        Port to listen on; 0 chooses a free one.
    host
        Address to listen on. All who can connect to it can read the name of the source and all figures, but change nothing.
    names
        Host names with a dot that requests may have, such as ``learner.example.org``. IP addresses, names without a dot and
        ``host`` are always accepted. Requests with other host names are rejected, because they may come from a foreign web page
        (DNS rebinding).

    Attributes
    ----------
    port : int
        The port.
    names : frozenset of str
        Host names with a dot that requests may have.

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
        self._loop, self._has_partitions = loop, not isinstance(loop, StreamLoop)
        self._stream: Any = loop if self._has_partitions else loop.source  # has ``name`` and ``lag()``
        self._make_families = partial(MetricFamilies, core, self._has_partitions)
        self._last_progress: dict[str, Any] = {}
        registry = CollectorRegistry()
        learns = registry if self._has_partitions or isinstance(loop, LearningLoop) else None
        loop.timings = Timings(
            Histogram("streamsvm_predict_seconds", "Time to predict a row", registry=registry, buckets=BUCKETS),
            Histogram("streamsvm_learn_seconds", "Time to learn a row", registry=learns, buckets=BUCKETS),
        )
        registry.register(self)
        self._format_metrics: Callable[[], bytes] = partial(generate_latest, registry)
        self._start_time = time.monotonic()
        self._points: list[dict[str, Any]] = []
        self._interval = _FIRST_INTERVAL_SECONDS
        self._closing = threading.Event()
        self.has_warned_of_host: bool = False
        try:
            self._server = MonitorServer(host, port, partial(RequestHandler, self))
        except OSError as error:
            raise MonitorError(f"cannot listen at {host}:{port}: {error.strerror or error}. Give another port") from None
        self.port: int = self._server.server_address[1]
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._server.serve_forever, self._watch_loops)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the HTTP server of this monitor, and wait for its threads to end."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def collect(self) -> Any:
        """Return an iterator over the current Prometheus metrics of all loops. `prometheus_client` calls this method of its
        collectors.
        """
        families = self._make_families()
        for partition, loop in self._named_loops().items():
            families.add_loop(loop, self._read_progress(partition, loop), partition)
        for partition, count in (self._read_lag() or {}).items():
            families.add_gauge("consumer_lag", "Messages that wait to be read", count, partition=str(partition))
        families.add_process(self._stream.name, self._stream.is_connected)
        return iter(families)

    def _named_loops(self) -> dict[str, Any]:
        """Return the monitored loops by the number of their Kafka partition, as text; a single loop without partitions has the
        name ``""``.
        """
        return {str(number): loop for number, loop in self._loop.loops.items()} if self._has_partitions else {"": self._loop}

    def _read_lag(self) -> dict[Any, int] | None:
        """Return the number of unread rows by partition (the consumer lag); None if it is unknown, or no broker responds."""
        lag: dict[Any, int] | None = self._stream.lag() if self._stream.is_connected else None
        return lag

    def make_state(self) -> dict[str, Any]:
        """Return the data of the live web page as a dict for JSON: source, state of the run, current scores, and their history so
        far.
        """
        loops = self._named_loops()
        progress = [self._read_progress(partition, loop) for partition, loop in loops.items()]
        curve = self._loop.curve if isinstance(self._loop, LearningLoop) else None
        return {
            "source": self._stream.name,
            "state": self._loop.state,
            **make_live_state(self._stream.name, progress, [*self._points, self._make_point()], curve, self._model_facts(loops)),
        }

    def _model_facts(self, loops: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return facts about the models for the live web page, as (name, text) pairs: row count, age and memory size of each
        loop's model, and the time to predict and to learn a row. ``loops`` has the loops by Kafka partition.
        """
        facts, timings = [], self._loop.timings
        for partition, loop in loops.items():
            suffix = f" of partition {partition}" * bool(partition)
            learner, (version, start) = find_learner(loop.model), get_version(loop)
            if version and start is not None:
                verb = "saved" if isinstance(loop, LearningLoop) else "in use"
                facts.append((f"model{suffix}", f"after {version:,} rows, {verb} for {time.time() - start:,.0f} s"))
            if hasattr(learner, "nbytes"):
                facts.append((f"memory{suffix}", f"{learner.nbytes:,} bytes"))
        for name, histogram in (("to predict a row", timings.predict), ("to learn a row", timings.learn)):
            if math.isfinite(median := find_quantile(histogram, 0.5)):
                tail = find_quantile(histogram, 0.99)
                facts.append((name, f"half within {1e6 * median:,.0f} µs, 99 % within {1e6 * tail:,.0f} µs"))
        return facts

    def _read_progress(self, partition: str, loop: Any) -> Any:
        """Return a snapshot of a loop's progress. If the loop keeps changing it in another thread meanwhile, return the previous
        snapshot of this ``partition``.
        """
        for _ in range(_SNAPSHOT_ATTEMPTS):
            try:
                self._last_progress[partition] = loop.progress
            except RuntimeError:  # a metric got a new label while its dict was read
                continue
            break
        return self._last_progress[partition]

    def _make_point(self) -> dict[str, Any]:
        """Return one point of the history for the live web page, as a dict: seconds since the start, and rows, mean scores,
        drifts, consumer lag, refused rows and support vectors over all loops.
        """
        loops, lag = self._named_loops(), self._read_lag()
        progress = [self._read_progress(partition, loop) for partition, loop in loops.items()]
        learning = [one for one in progress if one.learns]
        sizes = [getattr(find_learner(loop.model), "n_support", None) for loop in loops.values()]
        return {
            "seconds": round(time.monotonic() - self._start_time, 2),
            "rows": sum(one.rows for one in progress),
            "metric": _weighted_mean([(one.metric, one.rows) for one in learning]),
            "windowed": _weighted_mean([(one.windowed, 1) for one in learning]),
            "drifts": sum(one.drifts or 0 for one in progress),
            "lag": None if lag is None else sum(lag.values()),
            "refused": sum(sum(one.refused.values()) for one in progress),
            "support_vectors": None if None in sizes else sum(size for size in sizes if size is not None),
        }

    def _watch_loops(self) -> None:
        """Append a point of current figures to the history at regular intervals, until this monitor is closed. If there are too
        many points, drop every second one and double the interval.
        """
        while not self._closing.wait(self._interval):
            self._points.append(self._make_point())
            if len(self._points) > _MAX_POINTS:
                self._points, self._interval = self._points[::2], 2.0 * self._interval

    def make_response(self, path: str) -> tuple[int, str, bytes]:
        """Return HTTP status, content type and content for a GET request of ``path``: the web page, its data as JSON, Prometheus
        metrics, or a health check. The status is 404 for other paths.
        """
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", self._format_metrics()
        if path == "/state.json":
            return 200, "application/json", json.dumps(self.make_state(), allow_nan=False).encode()
        if path in ("/healthz", "/readyz"):
            state = self._loop.state
            is_good = state != "failed"
            if path == "/readyz" and (is_good := state == "running") and not self._stream.is_connected:
                state, is_good = "no broker responds", False
            return (200 if is_good else 503), "text/plain", f"{state}\n".encode()
        if path == "/":
            return 200, "text/html; charset=utf-8", render_page().encode()
        return 404, "text/plain", b"there are /, /metrics, /healthz, /readyz and /state.json\n"


def find_quantile(histogram: Any, share: float) -> float:
    """Return an upper bound of a quantile of the times in a Prometheus ``histogram``: the limit of its bucket. ``share`` is from
    0 to 1 (0.5 is the median). NaN if no time was observed.
    """
    (family,) = histogram.collect()
    buckets = [(float(sample.labels["le"]), sample.value) for sample in family.samples if sample.name.endswith("_bucket")]
    n = buckets[-1][1]
    return next((bound for bound, count in buckets if count and count >= share * n), math.nan)


def _weighted_mean(values: list[tuple[float, int]]) -> float | None:
    pairs = [(value, weight) for value, weight in values if math.isfinite(value) and weight]
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs) if pairs else None
