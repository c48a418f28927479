"""``streamsvm score``: compute metrics of a model on rows with labels, without learning them."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from river import base

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.job import StreamJob
from streamsvm.cli.parsing import DecisionFlags, apply_decision, check_predicts, find_positive_label, make_metrics
from streamsvm.cli.progress import format_learning_curve, format_scores, scores_to_json
from streamsvm.cli.streams import load_newest, open_source_for_model, print_messages, stop_on_signals
from streamsvm.files.messages import format_count
from streamsvm.stream import DelayedLearningLoop, PredictionLoop, Progress, Sink
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.delayed.loop import UNJOINED_STATES
from streamsvm.stream.endpoints import Position, Record
from streamsvm.stream.prediction_fields import make_conformal_fields
from streamsvm.stream.rows import find_learner, has_probabilities, split_pipeline
from streamsvm.stream.stream_loop import StreamLoop

_WINDOW = 1000
_TABLES = ["ClassificationReport", "ConfusionMatrix"]


def run_score(arguments: argparse.Namespace) -> bool:
    """Run ``streamsvm score``: predict rows by a saved model, and print metrics. Return whether it was interrupted.

    Raises UsageError if a metric is unknown or for the other kind of models, StreamError if no row has a label or a metric
    refuses one, and CommandError if no row was joined with a label of ``--labels``.
    """
    checkpoint = load_newest(arguments.path, arguments.trusted)
    check_predicts(checkpoint.model, arguments.path)
    job = make_labelled_job(arguments.source, arguments)
    positive = arguments.positive if arguments.threshold else None
    decision = DecisionFlags(arguments.threshold, arguments.costs, positive, job.text_format)
    model = apply_decision(checkpoint.model, decision, arguments.abstain)
    positive = find_positive_label(arguments.positive, model, job.text_format)
    metric, is_regressor = choose_metrics(model, positive), isinstance(find_learner(model), base.Regressor)
    if arguments.metric is not None:
        metric, positive = make_metrics(arguments.metric, _WINDOW, positive, is_regressor, arguments.positive is None)
    conformal = None if job.label_stream is not None else make_conformal_fields(model)
    coverage = None if conformal is None else _CoverageSink()
    fields = [] if conformal is None else [conformal]
    with scoring_loop(
        job, checkpoint, model, metric, positive, sink=coverage, computed_fields=fields, abstain=arguments.abstain
    ) as loop:
        progress = loop.run()
    check_any_scored(progress, loop.source.name)
    counts = count_unscored_rows(progress)
    if arguments.json:
        course = {"every": loop.curve.every, "points": loop.curve.state["points"]}
        facts = {"rows": progress.scored, "scores": scores_to_json(progress.scores), "course": course, "left_out": counts}
        facts |= {} if coverage is None else {"held": coverage.facts}
        print(json.dumps(facts, allow_nan=False, default=str))
        return progress.interrupted
    left_out = "".join(f"  {count:,} {kind}" for kind, count in counts.items())
    print(f"{format_count(progress.scored, 'row')} scored{left_out}{'  interrupted' * progress.interrupted}")
    lines = format_scores(progress.scores)
    n_numbers = sum(report.table is None for report in progress.scores)  # tables come after them
    lines[n_numbers:n_numbers] = [] if coverage is None else [coverage.description]
    for line in [*lines, *format_learning_curve(loop.curve)]:
        print(escape_unprintable(line))
    if arguments.metric is None and positive is None and len(getattr(find_learner(model), "labels", ())) == 2:
        print("--positive LABEL shows more: ROCAUC, AveragePrecision and F1 of that label, and thresholds for it")
    return progress.interrupted


def make_labelled_job(source: str | list[str], arguments: argparse.Namespace) -> StreamJob:
    """Return the description of a source of labelled rows, for the commands ``score``, ``explain`` and ``report``, with the flags
    of `add_label_flags` in their ``arguments``. Raise a UsageError if a value is invalid.
    """
    job = StreamJob(source=source, format=arguments.format, label=arguments.label, labels=arguments.labels)
    if job.labels is not None and "expired=dead-letter" in job.labels:
        raise UsageError(f"--labels {job.labels}: this command writes no dead letters: leave expired=dead-letter out")
    _ = job.text_format, job.label_stream  # raise an error if they are invalid
    return job


@contextlib.contextmanager
def scoring_loop(
    job: StreamJob, checkpoint: Checkpoint, model: Any, metric: Any, positive: Any, **parameters: Any
) -> Iterator[StreamLoop]:
    """Within a ``with`` block, provide a loop that predicts the rows of a job's source by ``model``, and scores them by
    ``metric`` without learning. ``positive`` is the positive label, and ``parameters`` are further ones of the loop. Ctrl-C
    stops it. At the end, print messages about unknown columns and refused rows.
    """
    loop_class: Any = partial(PredictionLoop, needs_labels=True)
    if job.label_stream is not None:
        loop_class = partial(DelayedLearningLoop, delayed=job.label_stream.buffer, learns=False)
    parameters |= {"window": _WINDOW, "positive": positive, "on_error": "skip", "error_share": 1.0}
    with open_source_for_model(job, checkpoint) as source:
        loop = loop_class(source, model, metric=metric, **parameters)
        with stop_on_signals(loop.stop):
            yield loop
    print_messages(loop.progress.messages)


def check_any_scored(progress: Progress, source_name: str) -> None:
    """Raise a CommandError if a run has scored no row, unless the user interrupted it."""
    if not (progress.scored or progress.interrupted):
        counts = ", ".join(f"{count:,} {kind}" for kind, count in count_unscored_rows(progress).items())
        raise CommandError(f"{source_name}: no row was joined with a label: {counts or 'there are no rows'}")


class _CoverageSink(Sink):
    """Counts how many predicted intervals or label sets contain the true value, and sums their sizes."""

    name = "a count"

    def __init__(self) -> None:
        self._n_rows, self._n_covered, self._total_size, self._has_intervals = 0, 0, 0.0, False

    def write(self, record: Record) -> None:
        """Count the prediction in ``record``, if it has an interval or a label set and the true value is known, and whether that
        value is within it.
        """
        y, labels = record["y_true"], record.get("labels")
        low: Any = record.get("low")
        high: Any = record.get("high")
        if y is None or (labels is None and (low is None or high is None)):
            return
        self._n_rows += 1
        self._has_intervals = labels is None
        if labels is not None:
            is_covered, size = y in labels, len(labels)
        else:
            is_covered, size = low <= y <= high, high - low
        self._n_covered, self._total_size = self._n_covered + is_covered, self._total_size + size

    def flush(self) -> Position:
        """Return an empty position, because this sink writes nothing."""
        return {}

    @property
    def facts(self) -> dict[str, float | None]:
        """The share of predicted intervals or label sets that contain the true value, and their mean size; None without rows."""
        n = self._n_rows
        return {"share": self._n_covered / n if n else None, "size": self._total_size / n if n else None}

    @property
    def description(self) -> str:
        """A sentence for the output: the share of intervals or label sets that contain the true value, and their mean size."""
        if not self._n_rows:
            return "no row has an interval, or a set of labels, yet"
        size = self._total_size / self._n_rows
        kind, mean = ("intervals", f"{size:.4g} wide") if self._has_intervals else ("sets of labels", f"with {size:.2f} labels")
        return f"{kind} that hold the truth {self._n_covered / self._n_rows:.4f}, {mean} in the mean"


def choose_metrics(model: Any, positive: Any) -> list[str]:
    """Return metrics that suit the type of ``model``; binary ones only if the ``positive`` label is known."""
    if isinstance(find_learner(model), base.Regressor):
        return ["MAE", "RMSE", "R2"]
    if not has_probabilities(split_pipeline(model)[1]):
        return ["Accuracy", *["F1"] * (positive is not None), *_TABLES]
    binary = ["ROCAUC", "AveragePrecision", "F1"] if positive is not None else []
    return ["Accuracy", "LogLoss", *binary, *_TABLES, "Calibration", *["Thresholds"] * (positive is not None)]


def count_unscored_rows(progress: Progress) -> dict[str, int]:
    """Return the numbers of rows that were not scored, by reason (such as "without label"); zero counts are left out."""
    delayed = progress.delayed
    unjoined = {} if delayed is None else {text: delayed[name] for name, text in UNJOINED_STATES.items()}
    counts = {"abstained": progress.abstained, **progress.refused, "without label": progress.unlabelled, **unjoined}
    return {reason: count for reason, count in counts.items() if count}
