"""``streamsvm report``: one page that says what a model has learned, how well it predicts, what matters to it, and why."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from river import base

from streamsvm.cli import CommandError, UsageError, printable
from streamsvm.cli.arguments import failing
from streamsvm.cli.outputs import check_written
from streamsvm.cli.parsing import positive_of
from streamsvm.cli.score import check_met, labelled_job, metrics_of, rows_left_out, scoring_loop
from streamsvm.cli.streams import newest, read_by_model, unwinding
from streamsvm.export.report.about import card
from streamsvm.export.report.facts import Given, facts_of
from streamsvm.files.container import ModelFileError
from streamsvm.files.model_file import write
from streamsvm.stream import BadRow, StreamError
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.page import page
from streamsvm.stream.rows import learner_of

_ROWS = 1000  # with which importance is measured
_FORMS = {".html": page, ".htm": page, ".md": card}


def run(arguments: argparse.Namespace) -> None:
    """Write the page, and print where it is.

    A UsageError says that the file is of no form that there is, or others wrote it. A CommandError says that a row cannot be
    read, or the file cannot be written.
    """
    path: Path = arguments.into
    if (write_form := _FORMS.get(path.suffix.lower())) is None:
        raise UsageError(f"--to {path}: name an .html file for a page, or an .md file for a model card")
    if arguments.labels is not None and not arguments.source:
        raise UsageError(f"--labels {arguments.labels} is about ROWS: name them, too")
    rows = {f"ROWS {name}": Path(name) for name in arguments.source}
    check_written("--to", [path], {"the model": arguments.path, **rows}, arguments.overwrite)
    checkpoint = newest(arguments.path, arguments.trusted)
    given = _given_rows(arguments, checkpoint) if arguments.source else None
    facts = facts_of(checkpoint, given, _file_bytes(arguments.path))
    with failing(f"--to {path}: ", ModelFileError), unwinding():
        write(path, write_form(facts).encode())
    print(printable(f"{path}: {path.stat().st_size:,} bytes"))


def _given_rows(arguments: argparse.Namespace, checkpoint: Checkpoint) -> Given:
    source = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    job = labelled_job(source, arguments.label, arguments.labels)
    name = job.source if isinstance(job.source, str) else f"{len(job.source)} files"
    with read_by_model(job, checkpoint) as source:
        first = [row for row in itertools.islice(source, _ROWS) if not isinstance(row, BadRow)]
    if not first:
        raise CommandError(f"{name} has no rows")
    xs, ys = [row.x for row in first], [row.y for row in first]
    model: Any = checkpoint.model
    if not isinstance(learner_of(model), base.Classifier | base.Regressor):
        return Given(name, xs, ys)
    positive = positive_of(arguments.positive, model, job.text_format)
    with scoring_loop(job, checkpoint, model, metrics_of(model, positive=positive), positive) as loop:
        began = time.process_time()
        try:
            end = loop.run()
        except StreamError:
            if loop.scored or loop.unlabelled < loop.rows:
                raise
            return Given(name, xs, ys)  # without a label
        check_met(end, loop.source.name)
        seconds = time.process_time() - began
    return Given(name, xs, ys, end.scored, end.scores, rows_left_out(end), seconds)


def _file_bytes(place: Path | str) -> int | None:
    """Return the size of the newest file of a place of checkpoints; None where there is none, as of a topic."""
    if not isinstance(place, Path):
        return None
    files = sorted(place.glob("checkpoint-*.ckpt")) if place.is_dir() else [place]
    return files[-1].stat().st_size if files else None
