"""The state of a loop as families of metrics, by the conventions of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from streamsvm import __version__
from streamsvm.runtime.rows import learner_of
from streamsvm.runtime.timings import BOUNDS, Histogram

__all__ = ["families"]

_COUNTERS = {
    "rows": "Rows of the stream, those of earlier runs included",
    "learned": "Rows that were learned",
    "predicted": "Rows that were predicted",
    "unlabelled": "Rows without a label, which were predicted only",
    "empty": "Rows without any feature",
}
_GAUGES = {
    "n_support": ("streamsvm_support_vectors", "Support vectors of the model"),
    "nbytes": ("streamsvm_model_bytes", "Memory of the model"),
}


def families(loop: Any, progress: Any) -> Iterator[Metric]:
    """Yield the metrics of a loop, of which ``progress`` is a snapshot."""
    for name, text in _COUNTERS.items():
        if hasattr(progress, name):
            counter = CounterMetricFamily(f"streamsvm_{name if name == 'rows' else f'{name}_rows'}", text)
            counter.add_metric([], getattr(progress, name))
            yield counter
    refused = CounterMetricFamily("streamsvm_refused_rows", "Rows that were refused, by kind of reason", labels=["reason"])
    for kind, count in progress.refused.items():
        refused.add_metric([kind], count)
    yield refused
    if getattr(progress, "drifts", None) is not None:
        yield CounterMetricFamily("streamsvm_drifts", "Drifts that were found", value=progress.drifts)
    if getattr(progress, "delayed", None) is not None:
        yield from _delayed(progress.delayed)
    if hasattr(progress, "metric"):
        score = GaugeMetricFamily(
            "streamsvm_metric", "The metric, over all rows and over the last ones", labels=["name", "window"]
        )
        for window, value in (("all", progress.metric), (str(progress.window), progress.windowed)):
            if math.isfinite(value):
                score.add_metric([progress.metric_name, window], value)
        yield score
    learner = learner_of(loop.model)
    for name, (of, text) in _GAUGES.items():
        if hasattr(learner, name):
            yield GaugeMetricFamily(of, text, value=getattr(learner, name))
    if hasattr(learner, "n_merges"):
        yield CounterMetricFamily("streamsvm_merges", "Merges of support vectors", value=learner.n_merges)
    if (found := lags(loop)) is not None:
        lag = GaugeMetricFamily("streamsvm_consumer_lag", "Messages that wait to be read", labels=["partition"])
        for partition, count in found.items():
            lag.add_metric([str(partition)], count)
        yield lag
    if loop.saved_rows is not None:
        yield GaugeMetricFamily("streamsvm_checkpoint_rows", "Rows at the newest checkpoint", value=loop.saved_rows)
    if loop.timings is not None:
        yield _histogram("streamsvm_predict_seconds", "Time to predict a row", loop.timings.predict)
        if hasattr(progress, "learned"):
            yield _histogram("streamsvm_learn_seconds", "Time to learn a row and score its prediction", loop.timings.learn)
    yield InfoMetricFamily("streamsvm", "The process", value={"version": __version__, "source": loop.source.name})


def _delayed(counts: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the metrics of labels that come from another stream."""
    for name, key, text in _DELAYED_GAUGES:
        yield GaugeMetricFamily(f"streamsvm_{name}", text, value=counts[key])
    for name, key, text in _DELAYED_COUNTERS:
        yield CounterMetricFamily(f"streamsvm_{name}", text, value=counts[key])
    expired = CounterMetricFamily("streamsvm_expired_rows", "Rows whose label did not come in time", labels=["reason"])
    for reason in ("age", "count", "bytes"):
        expired.add_metric([reason], counts[f"expired_{reason}"])
    yield expired


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


def lags(loop: Any) -> dict[int | str, int] | None:
    """Return the messages that wait to be read, by partition; None where the source does not tell."""
    lag = getattr(loop.source, "lag", None)
    return None if lag is None else lag()


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    ends = [*map(str, BOUNDS), "+Inf"]
    return HistogramMetricFamily(
        name, text, buckets=list(zip(ends, accumulate(found.counts), strict=True)), sum_value=found.total
    )
