"""The state of loops as metrics for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from streamsvm.stream.prediction import PredictionLoop
from streamsvm.stream.progress import Progress
from streamsvm.stream.rows import find_learner
from streamsvm.stream.stream_loop import StreamLoop

_LEARNER_GAUGES = {
    "n_support": ("support_vectors", "Support vectors of the model"),
    "nbytes": ("model_bytes", "Memory of the model"),
}


def get_version(loop: StreamLoop) -> tuple[int | None, float | None]:
    """Return the version of a loop's model (the number of rows that it had read), and the Unix time in seconds when it was
    saved or, in a prediction loop, began to predict. Return None for a number that is unknown.
    """
    if isinstance(loop, PredictionLoop):
        return loop.version or None, loop.model_time
    return loop.saved_rows, loop.saved_time


class MetricFamilies:
    """The state of loops as Prometheus metric families; ``core`` is the module ``prometheus_client.core``."""

    def __init__(self, core: Any, has_partitions: bool) -> None:
        self._core = core
        self._families: dict[str, Any] = {}
        self._has_partitions, self._partition = has_partitions, ""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._families.values())

    def _add_value(self, make: Any, name: str, text: str, value: Any, labels: Mapping[str, str]) -> None:
        if self._has_partitions and "partition" not in labels:
            labels = {"partition": self._partition, **labels}
        if name not in self._families:
            self._families[name] = make(name, text, labels=list(labels))
        # Names of columns in JSON may be invalid as UTF-8.
        self._families[name].add_metric([text.encode(errors="backslashreplace").decode() for text in labels.values()], *value)

    def add_counter(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to these metrics as the Prometheus counter ``streamsvm_<name>`` with the given ``labels``. ``text`` is
        its help text.
        """
        self._add_value(self._core.CounterMetricFamily, f"streamsvm_{name}", text, (value,), labels)

    def add_gauge(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to these metrics as the Prometheus gauge ``streamsvm_<name>`` with the given ``labels``. ``text`` is its
        help text.
        """
        self._add_value(self._core.GaugeMetricFamily, f"streamsvm_{name}", text, (value,), labels)

    def add_process(self, source: str, is_connected: bool) -> None:
        """Add metrics of the whole process: this library's version, the name of the ``source``, and if it ``is_connected``."""
        text = "Whether the source can be read: 0 while no broker responds"
        self._families["connected"] = self._core.GaugeMetricFamily("streamsvm_connected", text, value=is_connected)
        self._families["info"] = self._core.InfoMetricFamily(
            "streamsvm", "The process", value={"version": version("streamsvm"), "source": source}
        )

    def add_loop(self, loop: StreamLoop, progress: Progress, partition: str = "") -> None:
        """Add all Prometheus metrics of one loop: row counts and scores from ``progress``, a snapshot, and the model's size.
        ``partition`` is the Kafka partition of the loop, used as label.
        """
        self._partition = partition
        self.add_counter("rows", "Rows of the stream, those of earlier runs included", progress.rows)
        self._add_scores(progress)
        if progress.learns:
            self._add_learning(progress)
        else:
            self.add_counter("predicted_rows", "Rows that were predicted", progress.predicted)
        for kind, count in progress.refused.items():
            self.add_counter("refused_rows", "Rows that were refused, by kind of reason", count, reason=kind)
        for (kind, column), count in progress.schema_changes.items():
            self.add_counter("schema_changes", "Changes of columns, by kind of change", count, kind=kind, column=column)
        learner = find_learner(loop.model)
        for attribute, (name, text) in _LEARNER_GAUGES.items():
            if hasattr(learner, attribute):
                self.add_gauge(name, text, getattr(learner, attribute))
        if hasattr(learner, "n_merges"):
            self.add_counter("merges", "Merges of support vectors", learner.n_merges)
        version, start = get_version(loop)
        if version is not None:
            self.add_gauge("model_version", "Rows of the model that was saved, or that predicts", version)
        if loop.saved_rows is not None:
            self.add_gauge("checkpoint_rows", "Rows at the newest checkpoint", loop.saved_rows)
        for name, text, seconds in (
            ("model", "When the model was saved, or began to predict", start),
            ("checkpoint", "When the newest checkpoint was written", loop.saved_time),
            ("event", "The time of the newest row", loop.source.event_time),
        ):
            if seconds is not None:
                self.add_gauge(f"{name}_timestamp_seconds", f"{text}, in seconds since 1970", seconds)

    def _add_learning(self, progress: Progress) -> None:
        self.add_counter("learned_rows", "Rows that were learned", progress.learned)
        self.add_counter("unlabelled_rows", "Rows without a label, which were predicted only", progress.unlabelled)
        self.add_counter("empty_rows", "Rows without any feature", progress.empty)
        if progress.drifts is not None:
            self.add_counter("drifts", "Drifts that were found", progress.drifts)
        if progress.delayed is not None:
            for name, key, text in _DELAYED_GAUGES:
                self.add_gauge(name, text, progress.delayed[key])
            for name, key, text in _DELAYED_COUNTERS:
                self.add_counter(name, text, progress.delayed[key])
            text = "Rows whose label did not come in time"
            for reason in ("age", "count", "bytes"):
                self.add_counter("expired_rows", text, progress.delayed[f"expired_{reason}"], reason=reason)

    def _add_scores(self, progress: Progress) -> None:
        for score in progress.scores:
            values = ("all", score.value, score.baselines), (str(progress.window), score.windowed, score.windowed_baselines)
            for window, value, baselines in values:
                if math.isfinite(value):
                    text = "The metrics, over all rows and over the last ones"
                    self.add_gauge("metric", text, value, name=score.name, window=window)
                for baseline, baseline_value in baselines:
                    text = "The metrics of simple baselines, over the same rows"
                    self.add_gauge("baseline", text, baseline_value, name=score.name, window=window, baseline=baseline)


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
