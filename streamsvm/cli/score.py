"""``streamsvm score``: how well a model predicts rows with labels, without learning them."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from river import base

from streamsvm.cli import CommandError, printable
from streamsvm.cli.decisions import check_predicts, decide_of, decided, decision_flag
from streamsvm.cli.job import Job, labels_of
from streamsvm.cli.parsing import make_metrics, parse_positive
from streamsvm.cli.progress import WAITING, course_of, lines_of, scores_of
from streamsvm.cli.streams import newest, read_by_model, stopping
from streamsvm.stream import DelayedLearningLoop, LearningLoop, Progress
from streamsvm.stream.open import format_of
from streamsvm.stream.rows import gives_probabilities, learner_of, steps_of

_WINDOW = 1000
_TABLES = ["ClassificationReport", "ConfusionMatrix"]


def run(arguments: argparse.Namespace) -> bool:
    """Predict the rows, and print what the metrics say. Return whether the run was interrupted.

    Raises
    ------
    UsageError
        A metric is none, or for the other kind of models.
    StreamError
        No row has a label, or a metric cannot count one.
    CommandError
        No label of another stream has met its row.
    """
    checkpoint = newest(arguments.path, arguments.trusted)
    check_predicts(checkpoint.model, arguments.path)
    place = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    text_format = format_of(place)
    positive = parse_positive(arguments.positive, text_format)
    decide = decide_of(arguments, text_format, regression=False, learns=False)
    model = decided(checkpoint.model, decide, decision_flag(arguments), arguments.abstain)
    labels = labels_of(argparse.Namespace(**{**vars(arguments), "source": place, "start": None}), text_format)
    job = Job(place=place, format=text_format, label=arguments.label, labels=labels)
    metric = metrics_of(model, arguments.metric, positive)
    with read_by_model(job, checkpoint) as source:
        loop = (LearningLoop if labels is None else partial(DelayedLearningLoop, delayed=labels.buffer))(
            source,
            model,
            metric,
            window=_WINDOW,
            positive=positive,
            learns=False,
            abstain=arguments.abstain,
            on_error="skip",
            error_share=1.0,
        )
        with stopping(loop.stop):
            end = loop.run()
    counts = rows_left_out(end)
    if not (end.learned or end.interrupted):
        others = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        raise CommandError(f"{source.name}: no row has met its label: {others or 'there are none'}")
    if arguments.json:
        course = {"every": loop.curve.every, "points": loop.curve.state["points"]}
        facts = {"rows": end.learned, "scores": scores_of(end.scores), "course": course, "left_out": counts}
        print(json.dumps(facts, allow_nan=False, default=str))
        return end.interrupted
    left_out = "".join(f"  {count:,} {kind}" for kind, count in counts.items())
    print(f"{end.learned:,} row{'s' * (end.learned != 1)} scored{left_out}{'  interrupted' * end.interrupted}")
    for line in [*lines_of(end.scores), *course_of(loop.curve)]:
        print(printable(line))
    return end.interrupted


def metrics_of(model: Any, named: str | None = None, positive: Any = None) -> Any:
    """Return the metrics that are asked for, or those that tell most about a model of its kind."""
    regression = isinstance(learner_of(model), base.Regressor)
    if named is not None:
        return make_metrics(named, _WINDOW, positive, regression)
    if regression:
        return ["MAE", "RMSE", "R2"]
    if not gives_probabilities(steps_of(model)[1]):
        return ["Accuracy", *["F1"] * (positive is not None), *_TABLES]
    of_positive = ["ROCAUC", "AveragePrecision", "F1"] if positive is not None else []
    return ["Accuracy", "LogLoss", *of_positive, *_TABLES, "Calibration"]


def rows_left_out(end: Progress) -> dict[str, int]:
    """Return how many rows were not scored, by kind."""
    waiting = {} if end.delayed is None else {what: end.delayed[name] for name, what in WAITING.items()}
    counts = {"abstained": end.abstained, **end.refused, "without label": end.unlabelled, **waiting}
    return {kind: count for kind, count in counts.items() if count}
