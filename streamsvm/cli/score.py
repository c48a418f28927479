"""``streamsvm score``: how well a model predicts rows with labels, without learning them."""
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
from streamsvm.cli.progress import WAITING, format_learning_curve, format_scores, scores_to_json
from streamsvm.cli.streams import load_newest, open_source_for_model, print_unfamiliar_columns, stop_on_signals
from streamsvm.stream import DelayedLearningLoop, PredictionLoop, Progress, Sink
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.endpoints import Position, Record
from streamsvm.stream.prediction_fields import make_conformal_fields
from streamsvm.stream.rows import find_learner, has_probabilities, split_pipeline
from streamsvm.stream.scores.score_set import ScoreSet
from streamsvm.stream.stream_loop import StreamLoop

_WINDOW = 1000
_TABLES = ["ClassificationReport", "ConfusionMatrix"]


def run_score(arguments: argparse.Namespace) -> bool:
    """Predict the rows, and print the metrics. Return whether the run was interrupted.

    Raises UsageError if a metric is unknown or for the other kind of models, StreamError if no row has a label or a metric cannot
    count one, and CommandError if no label of another stream has met its row.
    """
    checkpoint = load_newest(arguments.path, arguments.trusted)
    check_predicts(checkpoint.model, arguments.path)
    job = make_labelled_job(arguments.source, arguments.label, arguments.labels)
    decision = DecisionFlags(arguments.threshold, arguments.costs, arguments.positive)
    decide = decision.make_wrapper(job.text_format, regression=False, learns=False)
    model = apply_decision(checkpoint.model, decide, decision.flag, arguments.abstain)
    positive = find_positive_label(arguments.positive, model, job.text_format)
    if arguments.metric is not None and arguments.positive is None:
        metric = choose_metrics(model, arguments.metric)
        positive = positive if ScoreSet(metric, _WINDOW).accepts_positive_label else None
    else:
        metric = choose_metrics(model, arguments.metric, positive)
    sure = None if job.label_stream is not None else make_conformal_fields(model)
    held = None if sure is None else _CoverageSink()
    answers = [] if sure is None else [sure]
    with scoring_loop(
        job, checkpoint, model, metric, positive, sink=held, computed_fields=answers, abstain=arguments.abstain
    ) as loop:
        end = loop.run()
    check_any_scored(end, loop.source.name)
    counts = count_unscored_rows(end)
    if arguments.json:
        course = {"every": loop.curve.every, "points": loop.curve.state["points"]}
        facts = {"rows": end.scored, "scores": scores_to_json(end.scores), "course": course, "left_out": counts}
        facts |= {} if held is None else {"held": held.facts}
        print(json.dumps(facts, allow_nan=False, default=str))
        return end.interrupted
    left_out = "".join(f"  {count:,} {kind}" for kind, count in counts.items())
    print(f"{end.scored:,} row{'s' * (end.scored != 1)} scored{left_out}{'  interrupted' * end.interrupted}")
    scores = format_scores(end.scores)
    first = sum(report.table is None for report in end.scores)
    for line in [*scores[:first], *([] if held is None else [held.line]), *scores[first:], *format_learning_curve(loop.curve)]:
        print(escape_unprintable(line))
    if arguments.metric is None and positive is None and len(getattr(find_learner(model), "labels", ())) == 2:
        print("--positive LABEL shows more: ROCAUC, AveragePrecision and F1 of that label, and thresholds for it")
    return end.interrupted


def make_labelled_job(source: str | list[str], label: str | None, labels: str | None) -> StreamJob:
    """Return the job of reading rows with labels, by the flags of their commands."""
    job = StreamJob(source=source, label=label, labels=labels)
    if labels is not None and "expired=dead-letter" in labels:
        raise UsageError(f"--labels {labels}: nothing is written here but counts: leave expired=dead-letter out")
    _ = job.text_format, job.label_stream
    return job


@contextlib.contextmanager
def scoring_loop(
    job: StreamJob, checkpoint: Checkpoint, model: Any, metric: Any, positive: Any, **parameters: Any
) -> Iterator[StreamLoop]:
    """Open a loop that scores rows without learning them, and stops at Ctrl-C; report unfamiliar columns at the end."""
    make: Any = partial(PredictionLoop, needs_labels=True)
    if job.label_stream is not None:
        make = partial(DelayedLearningLoop, delayed=job.label_stream.buffer, learns=False)
    parameters |= {"window": _WINDOW, "positive": positive, "on_error": "skip", "error_share": 1.0}
    with open_source_for_model(job, checkpoint) as source:
        loop = make(source, model, metric=metric, **parameters)
        with stop_on_signals(loop.stop):
            yield loop
    print_unfamiliar_columns(loop.columns)


def check_any_scored(end: Progress, name: str) -> None:
    """Raise a CommandError where no row has met its label."""
    if not (end.scored or end.interrupted):
        others = ", ".join(f"{count:,} {kind}" for kind, count in count_unscored_rows(end).items())
        raise CommandError(f"{name}: no row has met its label: {others or 'there are none'}")


class _CoverageSink(Sink):
    """Counts the rows whose true value is in their interval or set of labels, and sums the sizes of these."""

    name = "a count"

    def __init__(self) -> None:
        self._rows, self._held, self._size, self._what = 0, 0, 0.0, ""

    def write(self, record: Record) -> None:
        y, labels = record["y_true"], record.get("labels")
        low: Any = record.get("low")
        high: Any = record.get("high")
        if y is None or (labels is None and (low is None or high is None)):
            return
        self._rows += 1
        if labels is not None:
            self._what, held, size = "sets of labels", y in labels, len(labels)
        else:
            self._what, held, size = "intervals", low <= y <= high, high - low
        self._held, self._size = self._held + held, self._size + size

    def flush(self) -> Position:
        """Return nothing: there is no position."""
        return {}

    @property
    def facts(self) -> dict[str, float | None]:
        """The share of rows that are held, and the mean width or number of labels."""
        n = self._rows
        return {"share": self._held / n if n else None, "size": self._size / n if n else None}

    @property
    def line(self) -> str:
        """The same in words."""
        if not self._rows:
            return "no row has an interval, or a set of labels, yet"
        size = self._size / self._rows
        mean = f"{size:.4g} wide" if self._what == "intervals" else f"with {size:.2f} labels"
        return f"{self._what} that hold the truth {self._held / self._rows:.4f}, {mean} in the mean"


def choose_metrics(model: Any, named: str | None = None, positive: Any = None) -> Any:
    """Return the metrics that are asked for, or those that tell most about a model of its kind."""
    regression = isinstance(find_learner(model), base.Regressor)
    if named is not None:
        return make_metrics(named, _WINDOW, positive, regression)
    if regression:
        return ["MAE", "RMSE", "R2"]
    if not has_probabilities(split_pipeline(model)[1]):
        return ["Accuracy", *["F1"] * (positive is not None), *_TABLES]
    of_positive = ["ROCAUC", "AveragePrecision", "F1"] if positive is not None else []
    return ["Accuracy", "LogLoss", *of_positive, *_TABLES, "Calibration", *["Thresholds"] * (positive is not None)]


def count_unscored_rows(end: Progress) -> dict[str, int]:
    """Return how many rows were not scored, by kind."""
    waiting = {} if end.delayed is None else {what: end.delayed[name] for name, what in WAITING.items()}
    counts = {"abstained": end.abstained, **end.refused, "without label": end.unlabelled, **waiting}
    return {kind: count for kind, count in counts.items() if count}
