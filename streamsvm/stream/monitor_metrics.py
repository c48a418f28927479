"""The state of a loop as families of metrics, by the conventions of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from streamsvm.stream.rows import learner_of
from streamsvm.stream.stream_loop import BOUNDS, Histogram

_COUNTERS = {
    "rows": "Rows of the stream, those of earlier runs included",
    "learned": "Rows that were learned",
    "predicted": "Rows that were predicted",
    "unlabelled": "Rows without a label, which were predicted only",
    "empty": "Rows without any feature",
}
_GAUGES = {
    "n_support": ("support_vectors", "Support vectors of the model"),
    "nbytes": ("model_bytes", "Memory of the model"),
}


class Families:
    """Families of metrics of one loop, or of several, which have the label ``partition`` then.

    Parameters
    ----------
    several
        Whether there may be several.
    """

    def __init__(self, several: bool) -> None:
        self._families: dict[str, Any] = {}
        self._several, self._partition = several, ""

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def _add(self, make: Any, name: str, text: str, value: Any, labels: Mapping[str, str]) -> None:
        if self._several and "partition" not in labels:
            labels = {"partition": self._partition, **labels}
        if name not in self._families:
            self._families[name] = make(name, text, labels=list(labels))
        self._families[name].add_metric(list(labels.values()), *value)

    def counter(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add the value of a counter."""
        self._add(CounterMetricFamily, f"streamsvm_{name}", text, (value,), labels)

    def gauge(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add the value of a gauge."""
        self._add(GaugeMetricFamily, f"streamsvm_{name}", text, (value,), labels)

    def histogram(self, name: str, text: str, found: Histogram) -> None:
        """Add the counts of a histogram, of all partitions."""
        ends = [*map(str, BOUNDS), "+Inf"]
        buckets = list(zip(ends, accumulate(found.counts), strict=True))
        self._families[name] = HistogramMetricFamily(f"streamsvm_{name}", text, buckets=buckets, sum_value=found.total)

    def about(self, source: str) -> None:
        """Add what the process is."""
        self._families["info"] = InfoMetricFamily(
            "streamsvm", "The process", value={"version": version("streamsvm"), "source": source}
        )

    def add(self, loop: Any, progress: Any, partition: str = "") -> None:
        """Add the metrics of a loop, of which ``progress`` is a snapshot."""
        self._partition = partition
        for name, text in _COUNTERS.items():
            if hasattr(progress, name):
                self.counter(name if name == "rows" else f"{name}_rows", text, getattr(progress, name))
        for kind, count in progress.refused.items():
            self.counter("refused_rows", "Rows that were refused, by kind of reason", count, reason=kind)
        if getattr(progress, "drifts", None) is not None:
            self.counter("drifts", "Drifts that were found", progress.drifts)
        if getattr(progress, "delayed", None) is not None:
            self._add_delayed(progress.delayed)
        if hasattr(progress, "metric"):
            for window, value in (("all", progress.metric), (str(progress.window), progress.windowed)):
                if math.isfinite(value):
                    text = "The metric, over all rows and over the last ones"
                    self.gauge("metric", text, value, name=progress.metric_name, window=window)
        learner = learner_of(loop.model)
        for name, (of, text) in _GAUGES.items():
            if hasattr(learner, name):
                self.gauge(of, text, getattr(learner, name))
        if hasattr(learner, "n_merges"):
            self.counter("merges", "Merges of support vectors", learner.n_merges)
        if loop.saved_rows is not None:
            self.gauge("checkpoint_rows", "Rows at the newest checkpoint", loop.saved_rows)

    def _add_delayed(self, counts: Mapping[str, int]) -> None:
        """Add the metrics of labels that come from another stream."""
        for name, key, text in _DELAYED_GAUGES:
            self.gauge(name, text, counts[key])
        for name, key, text in _DELAYED_COUNTERS:
            self.counter(name, text, counts[key])
        for reason in ("age", "count", "bytes"):
            self.counter("expired_rows", "Rows whose label did not come in time", counts[f"expired_{reason}"], reason=reason)


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
