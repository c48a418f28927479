"""``streamsvm inspect``, ``explain`` and ``report``: contents, important columns and scores of a model."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from river import base

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import as_command_error, as_usage_error
from streamsvm.cli.outputs import check_output_files
from streamsvm.cli.parsing import find_positive_label
from streamsvm.cli.progress import format_baselines
from streamsvm.cli.score import check_any_scored, choose_metrics, count_unscored_rows, make_labelled_job, scoring_loop
from streamsvm.cli.streams import interruptible, iter_first_rows, load_newest, open_source_for_model
from streamsvm.cli.tables import read_saved_label
from streamsvm.core.checks import finite_or_none
from streamsvm.core.explaining import Examples
from streamsvm.edge.program import ExportError
from streamsvm.explanations import examples_one, explain_one, importance
from streamsvm.export import plots
from streamsvm.export.convert import make_program
from streamsvm.export.report.contents import ReportRows, make_report
from streamsvm.export.report.model_card import make_model_card
from streamsvm.export.report.summary import ModelSummary
from streamsvm.files.container import ModelFileError
from streamsvm.files.messages import shorten
from streamsvm.files.model_file import write_file
from streamsvm.stream import BadRow, StreamError
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.page import render_page
from streamsvm.stream.rows import find_learner
from streamsvm.stream.scores.base import ScoreReport

_FIGURES = [
    "budget",
    "n_support",
    "n_merges",
    "n_learned",
    "nbytes",
    "effective_gamma",
    "follows_average",
    "labels",
    "feature_names",
]
_ROWS = 1000  # with which importance is measured
_LONGEST, _MOST_NAMES, _MOST_EXPERTS = 40, 8, 4


def run_inspect(arguments: argparse.Namespace) -> None:
    """Print the facts of a model, and draw its learning curve and boundary to the file ``plot``.

    Raises UsageError if no picture can be written there, and CommandError if there is nothing to draw.
    """
    if arguments.plot is not None:
        check_output_files("--plot", [arguments.plot], {"the model": arguments.path}, arguments.overwrite)
        with as_usage_error("--plot: ", (plots.DrawingError,)):
            plots.check_plot_path(arguments.plot)
    checkpoint = load_newest(arguments.path, arguments.trusted)
    about = ModelSummary(checkpoint)
    if arguments.json:
        print(json.dumps(_checkpoint_facts(checkpoint), default=str, sort_keys=True))
    else:
        _print_facts(_lines_for_users(about))
        if arguments.all:
            print()
            _print_facts(_checkpoint_facts(checkpoint))
    if arguments.plot is None:
        return
    if about.curve_error:
        raise CommandError(f"--plot: {about.curve_error}")
    with as_command_error("--plot: ", plots.DrawingError), interruptible():
        left_out = plots.save_plot(arguments.plot, checkpoint.model, about.curve)
    # Standard output may be JSON for scripts.
    print(escape_unprintable(f"drawn: {arguments.plot}{''.join(f' ({reason})' for reason in left_out)}"), file=sys.stderr)


def _print_facts(facts: Mapping[str, Any]) -> None:
    named = {escape_unprintable(str(name)): value for name, value in facts.items()}
    width = max(map(len, named)) + 2
    for name, value in named.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape_unprintable(str(value), True)
        print(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width))


def _lines_for_users(about: ModelSummary) -> dict[str, str]:
    usual = "a number" if about.is_regressor else "how odd a row is" if about.is_anomaly_detector else "labels"
    lines = {"predicts": about.label or usual}
    if about.labels:
        lines["labels"] = _listed_names(about.labels)
    if about.source is not None:
        lines["learned from"] = about.source
    rows = [f"{about.n_learned or 0:,} learned"]
    rows += [f"{about.n_unlabelled:,} without a label"] * bool(about.n_unlabelled)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in about.refused.items())
    rows.append(f"{about.n_refused:,} refused" + f" ({counts})" * bool(counts))
    rows += [f"{about.n_drifts or 0:,} drift{'s' * (about.n_drifts != 1)}"] * (about.n_drifts is not None)
    lines["rows"] = ", ".join(rows)
    for number, report in enumerate(report for report in about.reports if math.isfinite(report.value)):
        lines["score" if not number else f"score {number + 1}"] = _score_text(report)
    columns = [column for column in about.columns if column.kind not in ("label", "target")]
    if columns:
        kinds = Counter(column.kind for column in columns)
        counted = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        lines["columns"] = f"{counted}\n{_listed_names([column.name for column in columns if column.kind != 'dropped'])}"
    lines["learner"] = f"{about.learner_name}: {about.learner_description[:1].lower()}{about.learner_description[1:]}"
    if about.decision_rule:
        lines["decides"] = about.decision_rule
    if about.experts:
        heard = (f"{name} ({100.0 * share:.0f} %)" for name, share, _ in about.experts[:_MOST_EXPERTS])
        lines["listens to"] = ", ".join(heard) + (", ..." if len(about.experts) > _MOST_EXPERTS else "")
    if about.support_vectors is not None:
        n, budget = about.support_vectors
        lines["support vectors"] = f"{n:,}" + (f" of {budget:,}" if budget is not None else "")
    if about.nbytes is not None:
        lines["memory"] = f"{about.nbytes:,} bytes"
    lines["export"] = about.export
    if about.curve_error or about.curve is not None:
        drawn = "" if about.curve is None else f"{len(about.curve.points)} points, one every {about.curve.every:,} rows"
        lines["learning curve"] = about.curve_error or f"{drawn}; --plot draws them, and streamsvm report shows it all"
    return lines


def _score_text(report: ScoreReport) -> str:
    last = f", of the last rows {report.windowed:.4f}" if math.isfinite(report.windowed) else ""
    return f"{report.name} {report.value:.4f}{last}{format_baselines(report)}"


def _listed_names(names: list[Any]) -> str:
    shown = [shorten(str(name), _LONGEST) for name in names[:_MOST_NAMES]]
    return ", ".join(shown) + (f", ... ({len(names):,})" if len(names) > _MOST_NAMES else "")


def _checkpoint_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return all that a checkpoint says, and the figures of its model."""
    learner = find_learner(checkpoint.model)
    facts = checkpoint.header | {name: getattr(learner, name) for name in _FIGURES if hasattr(learner, name)}
    try:
        program = make_program(checkpoint.model)
        facts["export"] = {"columns": len(program.columns), "bytes": program.nbytes, "steps": [step.op for step in program.steps]}
    except ExportError as error:
        facts["export"] = str(error)
    experts = [report._asdict() for report in getattr(learner, "experts", [])]
    if experts:
        del facts["follows_average"]  # each expert has two outputs, and both are asked
        facts |= {"effort": learner.effort, "active_combiner": learner.active_combiner, "experts": experts}
    return facts


def run_explain(arguments: argparse.Namespace) -> None:
    """Print the importance of each column, and explain the decisions of the first rows; CommandError without rows."""
    checkpoint = load_newest(arguments.path, arguments.trusted)
    model: Any = checkpoint.model
    rows = list(iter_first_rows(arguments.source, checkpoint, _ROWS))
    if not rows:
        raise CommandError(f"{arguments.source} has no rows to explain")
    xs, ys = [row.x for row in rows], [row.y for row in rows]
    labelled = [i for i, y in enumerate(ys) if y is not None]
    with as_command_error(f"{arguments.path} cannot explain {arguments.source}: ", ValueError):
        if labelled:
            ranking = importance(model, [xs[i] for i in labelled], [ys[i] for i in labelled])
        else:
            ranking = importance(model, xs)
        explained = [explain_one(model, x) for x in xs[: arguments.rows]]
        near = [examples_one(model, x, arguments.examples) for x in xs[: arguments.rows]] if arguments.examples else []
    if arguments.json:
        facts = {"sizes": ranking.mean_contributions, "losses": ranking.error_increases, "rows": ranking.n_rows}
        facts["error"] = finite_or_none(ranking.error)
        facts["explained"] = [
            {
                "prediction": explanation.prediction,
                "decision": explanation.decision,
                "typical": explanation.typical,
                "contributions": explanation.contributions,
                "remainder": explanation.remainder,
                **({} if examples is None else {"examples": _listed_examples(examples)}),
            }
            for explanation, examples in itertools.zip_longest(explained, near)
        ]
        print(json.dumps({name: _by_text(value) for name, value in facts.items()}, default=str))
        return
    print(escape_unprintable(f"{ranking}\n", newlines=True))
    if not ranking.error_increases and (label := read_saved_label(checkpoint)) is not None:
        print(
            escape_unprintable(
                f"No row has its label ({label}), so how much the error grows without a column is not known.\n", True
            )
        )
    for number, (explanation, examples) in enumerate(itertools.zip_longest(explained, near), 1):
        like = "" if examples is None else f"the nearest that it knows:\n{examples}\n"
        print(escape_unprintable(f"row {number:,}: {explanation}\n{like}", newlines=True))


def _listed_examples(examples: Examples) -> list[dict[str, Any]]:
    return [
        {"label": label, "target": example.target, "distance": example.distance, "values": _by_text(example.values)}
        for label, nearest in examples.nearest.items()
        for example in nearest
    ]


def _by_text(value: Any) -> Any:
    """Return a value with the keys of its dicts as texts, as JSON has them."""
    if isinstance(value, dict):
        return {str(key): _by_text(inner) for key, inner in value.items()}
    return [_by_text(inner) for inner in value] if isinstance(value, list) else value


_FORMS = {".html": render_page, ".htm": render_page, ".md": make_model_card}


def run_report(arguments: argparse.Namespace) -> None:
    """Write the page, and print where it is.

    Raises UsageError if the form of the file is unknown, or others wrote it, and CommandError if a row cannot be read, or the
    file cannot be written.
    """
    path: Path = arguments.into
    if (write_form := _FORMS.get(path.suffix.lower())) is None:
        raise UsageError(f"--to {path}: name an .html file for a page, or an .md file for a model card")
    if arguments.labels is not None and not arguments.source:
        raise UsageError(f"--labels {arguments.labels} is about ROWS: name them, too")
    rows = {f"ROWS {name}": Path(name) for name in arguments.source}
    check_output_files("--to", [path], {"the model": arguments.path, **rows}, arguments.overwrite)
    checkpoint = load_newest(arguments.path, arguments.trusted)
    given = _given_rows(arguments, checkpoint) if arguments.source else None
    facts = make_report(checkpoint, given, _file_bytes(arguments.path))
    with as_command_error(f"--to {path}: ", ModelFileError), interruptible():
        write_file(path, write_form(facts).encode())
    print(escape_unprintable(f"{path}: {path.stat().st_size:,} bytes"))


def _given_rows(arguments: argparse.Namespace, checkpoint: Checkpoint) -> ReportRows:
    source = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    job = make_labelled_job(source, arguments.label, arguments.labels)
    name = job.source if isinstance(job.source, str) else f"{len(job.source)} files"
    with open_source_for_model(job, checkpoint) as source:
        first = [row for row in itertools.islice(source, _ROWS) if not isinstance(row, BadRow)]
    if not first:
        raise CommandError(f"{name} has no rows")
    xs, ys = [row.x for row in first], [row.y for row in first]
    model: Any = checkpoint.model
    if not isinstance(find_learner(model), base.Classifier | base.Regressor):
        return ReportRows(name, xs, ys)
    positive = find_positive_label(arguments.positive, model, job.text_format)
    with scoring_loop(job, checkpoint, model, choose_metrics(model, positive=positive), positive) as loop:
        began = time.process_time()
        try:
            end = loop.run()
        except StreamError:
            if loop.scored or loop.unlabelled < loop.rows:
                raise
            return ReportRows(name, xs, ys)  # without a label
        check_any_scored(end, loop.source.name)
        seconds = time.process_time() - began
    return ReportRows(name, xs, ys, end.scored, end.scores, count_unscored_rows(end), seconds)


def _file_bytes(place: Path | str) -> int | None:
    """Return the size of the newest file of a model or a folder of checkpoints; None for a topic."""
    if not isinstance(place, Path):
        return None
    files = sorted(place.glob("checkpoint-*.ckpt")) if place.is_dir() else [place]
    return files[-1].stat().st_size if files else None
