"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from river import base

from streamsvm.cli import CommandError
from streamsvm.cli.arguments import Reporter, select_job_flags
from streamsvm.cli.job import PredictJob
from streamsvm.cli.learn import run_worker
from streamsvm.cli.outputs import check_differs_from_learner
from streamsvm.cli.parsing import apply_decision, check_predicts, make_extra_fields
from streamsvm.cli.progress import format_scores, scores_to_json
from streamsvm.cli.streams import adapt_source, open_streams, serve_metrics, stop_on_signals
from streamsvm.cli.tables import combine_table_options, read_saved_label
from streamsvm.core.warning import warn
from streamsvm.files.messages import format_count
from streamsvm.stream import CheckpointFolder, PredictionLoop, Progress, Source
from streamsvm.stream.prediction import FollowedModel, open_followed
from streamsvm.stream.rows import detects_anomalies, find_keys, has_probabilities, split_pipeline

_WINDOW = 1000


def run_predict(arguments: argparse.Namespace) -> bool:
    """Run ``streamsvm predict``: predict the rows of a stream by a saved model. Return whether the run was interrupted."""
    job = PredictJob(**select_job_flags(PredictJob, arguments))
    with contextlib.ExitStack() as stack:
        models = stack.enter_context(contextlib.closing(open_followed(job.model, job.trusted)))
        with stop_on_signals(models.stop) if job.follow else contextlib.nullcontext():
            saved = models.wait_for_first() if job.follow else models.read()
        if saved is None:  # interrupted while waiting
            return True
        check_predicts(saved.model, job.model, accepts_detectors=True)
        check_differs_from_learner({"--to": str(job.to), "--on-error": job.on_error}, saved)
        if not job.follow and (keys := find_keys(saved.model)):
            text = f"what it remembers of each {keys[0]} is as of its checkpoint: --follow keeps it up to date while learn runs"
            job.reporter.report_event(text, "keys")
        followed = None if not job.follow else _DecisionFollower(models, job)
        table = combine_table_options(job.table_flags, job.text_format, job.label, saved, predict=True)
        default_label = None if job.text_format == "libsvm" else read_saved_label(saved)
        model = apply_decision(saved.model, job.decision, job.abstain)
        last_step = split_pipeline(model)[1]
        metrics = ["MAE"] if isinstance(last_step, base.Regressor) else ["Accuracy", *["LogLoss"] * has_probabilities(last_step)]

        def make_loop(source: Source, **options: Any) -> PredictionLoop:
            return PredictionLoop(
                adapt_source(source, saved),
                model,
                follow=followed,
                abstain=job.abstain,
                metric=None if detects_anomalies(last_step) else metrics,
                window=_WINDOW,
                computed_fields=make_extra_fields(model, job.probabilities, job.explain),
                version=rows if type(rows := saved.header.get("rows")) is int else 0,
                **options,
            )

        if job.group is not None:
            return run_worker(job, table, default_label if job.label is None else job.label, make_loop)
        checkpoints = None if job.checkpoint is None else stack.enter_context(CheckpointFolder(job.checkpoint))
        source, sink, on_error = stack.enter_context(open_streams(job, table, default_label))
        if not isinstance(job.model, Path) and any(map(models.reads_from, (sink, on_error))):
            raise CommandError(f"{job.model} holds models: give predictions and refused rows another topic")
        outputs = {"sink": sink, "on_error": on_error, "passthrough": job.passthrough}
        loop = make_loop(source, checkpoints=checkpoints, **outputs, **job.loop_limits)
        loop.watch_gaps()
        n_before = loop.progress.predicted
        if loop.rows or job.reporter.json:
            text = f"continuing after row {loop.rows:,}" if loop.rows else "starting"
            version = {"version": loop.version} if job.follow else {}
            job.reporter.report_event(text, "start", rows=loop.rows, source=source.name, **version)
        with serve_metrics(job, loop), stop_on_signals(loop.stop):
            progress = loop.run(job.max_rows)
    _report_end(progress, n_before, job.reporter)
    return progress.interrupted


class _DecisionFollower:
    """Follows models, and wraps each new one so that it chooses labels as the flags say. Several loops may share it."""

    def __init__(self, models: Any, job: PredictJob) -> None:
        self._models, self._decision = models, job.decision
        self._newest: FollowedModel | None = None

    def read_newer(self) -> FollowedModel | None:
        newest: FollowedModel | None = self._models.read_newer()
        if newest is not None:
            try:
                self._newest = newest._replace(model=apply_decision(newest.model, self._decision))
            except CommandError as error:  # perhaps the model was reset, and has not learned the label yet
                warn(f"the model after {newest.version:,} rows cannot be used: {error}: the earlier model stays")
        return self._newest


def _report_end(progress: Progress, n_before: int, reporter: Reporter) -> None:
    """Report the counts and scores of ``predict``, as text or JSON. ``n_before`` rows were predicted by earlier runs."""
    n = progress.predicted
    facts = {"rows": progress.rows, "predicted": n, "refused": dict(progress.refused), "interrupted": progress.interrupted}
    facts |= progress.columns.counts
    facts |= {"abstained": progress.abstained} if progress.abstained else {}
    facts |= {"scored": progress.scored, "scores": scores_to_json(progress.scores)} if progress.scored else {}
    if reporter.quiet:
        print(json.dumps({"event": "end", **facts}))
        if not reporter.json:
            return
    refused_kinds = "".join(f"  {count:,} {kind}" for kind, count in progress.refused.items())
    refused = f"  {sum(progress.refused.values()):,} refused{refused_kinds}" if refused_kinds else ""
    now = f", {n - n_before:,} of them in this run" if n_before else ""
    for message in progress.messages:
        reporter.report_event(message, "unfamiliar")
    if progress.scored:
        rows = format_count(progress.scored, "row")
        text = f"{rows} had a label, which was not learned: {', '.join(format_scores(progress.scores))} (more: streamsvm score)"
        reporter.report_event(text, "scored", scored=progress.scored)
    unsure = f"  {progress.abstained:,} of them abstained" if progress.abstained else ""
    reporter.report_event(f"{format_count(n, 'row')} predicted{now}{unsure}{refused}", "end", **facts)
