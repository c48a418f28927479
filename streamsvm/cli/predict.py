"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from river import base

from streamsvm.cli import CommandError
from streamsvm.cli.arguments import Reporter, select_job_flags
from streamsvm.cli.job import PredictJob
from streamsvm.cli.parsing import apply_decision, check_predicts, make_extra_fields
from streamsvm.cli.progress import format_scores, scores_to_json
from streamsvm.cli.streams import drop_unlearned_columns, open_streams, serve_metrics, stop_on_signals
from streamsvm.cli.tables import combine_table_options, read_saved_label
from streamsvm.core.warning import warn
from streamsvm.stream import CheckpointFolder, FollowedFolder, PredictionLoop, Progress
from streamsvm.stream.checkpoint import read_model
from streamsvm.stream.open import open_models
from streamsvm.stream.prediction import FollowedModel
from streamsvm.stream.rows import has_probabilities, split_pipeline

_WINDOW = 1000


def run_predict(arguments: argparse.Namespace) -> bool:
    """Predict the source. Return whether the run was interrupted."""
    job = PredictJob(**select_job_flags(PredictJob, arguments))
    with contextlib.ExitStack() as stack:
        models = _open_models(job, stack)
        if models is None or not job.follow:
            saved = read_model(job.model, job.trusted) if models is None else models.read()
        else:
            with stop_on_signals(models.stop):
                saved = models.wait()
        if saved is None:  # the user does not want to wait
            return True
        check_predicts(saved.model, job.model)
        follow = models if job.follow else None
        table = combine_table_options(job.table_flags, job.text_format, job.label, saved, predict=True)
        usual_label = None if job.text_format == "libsvm" else read_saved_label(saved)
        checkpoints = None if job.checkpoint is None else stack.enter_context(CheckpointFolder(job.checkpoint))
        source, sink, on_error = stack.enter_context(open_streams(job, table, usual_label))
        if not isinstance(job.model, Path) and any(map(models.reads_from, (sink, on_error))):
            raise CommandError(f"{job.model} holds models: give predictions and refused rows another topic")
        model = apply_decision(saved.model, job.decide, job.decision.flag, job.abstain)
        last = split_pipeline(model)[1]
        usual = ["MAE"] if isinstance(last, base.Regressor) else ["Accuracy", *["LogLoss"] * has_probabilities(last)]
        loop = PredictionLoop(
            drop_unlearned_columns(source, saved),
            model,
            sink,
            follow=None if follow is None else _DecisionFollower(follow, job),
            abstain=job.abstain,
            metric=usual,
            window=_WINDOW,
            computed_fields=make_extra_fields(model, job.probabilities, job.explain),
            version=saved.header["rows"] if follow is not None else 0,
            checkpoints=checkpoints,
            on_error=on_error,
            passthrough=job.passthrough,
            **job.loop_limits,
        )
        before = loop.progress.predicted
        if loop.rows or job.reporter.json:
            text = f"continuing after row {loop.rows:,}" if loop.rows else "starting"
            which = {"version": loop.version} if follow is not None else {}
            job.reporter.report_event(text, "start", rows=loop.rows, source=source.name, **which)
        with serve_metrics(job, loop), stop_on_signals(loop.stop):
            end = loop.run(job.max_rows)
    _show_end(end, before, job.reporter)
    return end.interrupted


class _DecisionFollower(NamedTuple):
    """A source of newer models that lets each decide as the flags say."""

    models: Any
    job: PredictJob

    def read_newer(self) -> FollowedModel | None:
        newest: FollowedModel | None = self.models.read_newer()
        if newest is None:
            return None
        try:
            return newest._replace(model=apply_decision(newest.model, self.job.decide, self.job.decision.flag))
        except CommandError as error:  # it has begun anew, perhaps, and not met the label yet
            warn(f"what came after {newest.version:,} rows cannot be used: {error}: the model before it stays")
            return None


def _open_models(job: PredictJob, stack: contextlib.ExitStack) -> Any:
    """Return what gives the models, where these are in a topic or are to be followed; else None."""
    if isinstance(job.model, Path):
        return FollowedFolder(job.model, job.trusted) if job.follow else None
    models = open_models(job.model, trusted=job.trusted)
    stack.callback(models.close)
    return models


def _show_end(end: Progress, before: int, reporter: Reporter) -> None:
    facts = {"rows": end.rows, "predicted": end.predicted, "refused": dict(end.refused), "interrupted": end.interrupted}
    facts |= end.columns.counts
    facts |= {"abstained": end.abstained} if end.abstained else {}
    facts |= {"scored": end.scored, "scores": scores_to_json(end.scores)} if end.scored else {}
    if reporter.quiet:
        print(json.dumps({"event": "end", **facts}))
        if not reporter.json:
            return
    counted = "".join(f"  {count:,} {kind}" for kind, count in end.refused.items())
    refused = f"  {sum(end.refused.values()):,} refused{counted}" if counted else ""
    now = f", {end.predicted - before:,} of them in this run" if before else ""
    for sentence in end.columns.messages:
        reporter.report_event(sentence, "unfamiliar")
    if end.scored:
        rows = f"{end.scored:,} row{'s' * (end.scored != 1)} had a label, which was not learned"
        reporter.report_event(
            f"{rows}: {', '.join(format_scores(end.scores))} (more: streamsvm score)", "scored", scored=end.scored
        )
    unsure = f"  {end.abstained:,} of them abstained" if end.abstained else ""
    reporter.report_event(f"{end.predicted:,} row{'s' * (end.predicted != 1)} predicted{now}{unsure}{refused}", "end", **facts)
