"""``streamsvm score``: how well a model predicts rows with labels, without learning them."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from river import base

from streamsvm.cli import CommandError, printable
from streamsvm.cli.inspect import newest
from streamsvm.cli.parsing import make_metrics, parse_positive
from streamsvm.cli.progress import lines_of, scores_of
from streamsvm.cli.streams import labelled_source
from streamsvm.stream import BadRow, Row, Source
from streamsvm.stream.open import format_of
from streamsvm.stream.rows import GuardedModel, checked_number, learner_of
from streamsvm.stream.scores.positive import ScoreError
from streamsvm.stream.scores.several import Scores
from streamsvm.stream.together import Together, takes_many, together

_WINDOW, _AT_ONCE = 1000, 1000
_USUAL = {False: ["Accuracy", "LogLoss", "ClassificationReport", "ConfusionMatrix"], True: ["MAE", "RMSE", "R2"]}


def run(arguments: argparse.Namespace) -> None:
    """Predict the rows, and print what the metrics say.

    Raises
    ------
    UsageError
        A metric is none, or for the other kind of models.
    CommandError
        No row has a label, or a metric cannot count one.
    """
    checkpoint = newest(arguments.path, arguments.trusted)
    model: Any = checkpoint.model
    place = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    regression = isinstance(learner_of(model), base.Regressor)
    positive = parse_positive(arguments.positive, format_of(place))
    metric: Any = _USUAL[regression]
    if arguments.metric is not None:
        metric = make_metrics(arguments.metric, _WINDOW, positive, regression)
    elif positive is not None:
        metric = [*metric[:2], "ROCAUC", "AveragePrecision", "F1", *metric[2:]]
    scores = Scores(metric, _WINDOW, positive, True, regression)
    counts: Counter[str] = Counter()
    with labelled_source(place, checkpoint, arguments.label) as source:
        n_scored = _score(source, model, scores, counts)
    if not n_scored:
        others = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        raise CommandError(f"no row has a label to score: {others or 'there are none'}. Is its name right? --label NAME")
    reports = scores.reports()
    if arguments.json:
        print(
            json.dumps({"rows": n_scored, "scores": scores_of(reports), "left_out": dict(counts)}, allow_nan=False, default=str)
        )
        return
    left_out = "".join(f"  {count:,} {kind}" for kind, count in counts.items())
    print(f"{n_scored:,} row{'s' * (n_scored != 1)} scored{left_out}")
    for line in lines_of(reports):
        print(printable(line))


def _score(source: Source, model: Any, scores: Scores, counts: Counter[str]) -> int:
    """Predict and score the rows of a source, many at once where the model can; the number of rows that were scored."""
    guarded, n_scored = GuardedModel(model, learns=False), 0
    at_once, regression = takes_many(guarded, False), isinstance(guarded.last, base.Regressor)
    while (chunk := source.read(_AT_ONCE)) is not None:
        first, n = 0, len(chunk)
        while first < n:
            rows = together(chunk, first, n, guarded, False, bool, regression) if at_once else None
            if rows is not None and len(rows.X):
                n_scored += _score_many(rows, guarded, scores, counts, regression)
                first += len(rows.X)
            else:
                n_scored += _score_one(chunk.row(first), guarded, scores, counts, regression)
                first += 1
    return n_scored


def _score_many(rows: Together, guarded: GuardedModel, scores: Scores, counts: Counter[str], regression: bool) -> int:
    asked = "each" if scores.wants_probabilities else False
    labels, probabilities = guarded.last.predict_then_learn(rows.X, rows.names, [None] * len(rows.X), asked)
    ys = [_label(y, scores, counts, regression) for y in rows.y]
    scores.update_many(ys, labels, probabilities if asked else None)
    return len(ys) - ys.count(None)


def _score_one(row: Row | BadRow, guarded: GuardedModel, scores: Scores, counts: Counter[str], regression: bool) -> int:
    if isinstance(row, BadRow):
        counts["unreadable"] += 1
        return 0
    if (y := _label(row.y, scores, counts, regression)) is None:
        return 0
    try:
        x = row.x if guarded.prepare is None else guarded.prepare(row.x)
        probabilities = guarded.last.predict_proba_one(x) if scores.wants_probabilities else None
        scores.update(y, scores.scored_of(guarded.last.predict_one(x), probabilities))
    except ValueError:
        counts["refused"] += 1
        return 0
    return 1


def _label(y: Any, scores: Scores, counts: Counter[str], regression: bool) -> Any:
    """Return a label as it is scored; None, which is counted, where it cannot be."""
    if y is None:
        counts["without label"] += 1
        return None
    try:
        y = checked_number(y) if regression else y
    except ValueError:
        counts["refused"] += 1
        return None
    try:
        if scores.binary:
            scores.admit(y)
    except ScoreError as error:
        raise CommandError(str(error)) from error
    return y
