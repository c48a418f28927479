"""``streamsvm inspect``: say what a checkpoint holds, first what its user asks, and draw what its model has learned."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from streamsvm.cli import CommandError, printable
from streamsvm.cli.arguments import failing, wrong_usage
from streamsvm.cli.outputs import check_written
from streamsvm.cli.progress import guessing_text
from streamsvm.cli.streams import newest, unwinding
from streamsvm.edge.program import ProgramError
from streamsvm.export import plots
from streamsvm.export.describe import program_of
from streamsvm.export.report.about import About, about_checkpoint
from streamsvm.files.messages import cut
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.rows import learner_of
from streamsvm.stream.scores.base import ScoreReport

_FIGURES = ["budget", "n_support", "n_merges", "n_learned", "nbytes", "effective_gamma", "averaged", "labels", "feature_names"]
_LONGEST, _MOST_NAMES, _MOST_EXPERTS = 40, 8, 4


def run(arguments: argparse.Namespace) -> None:
    """Print what is known of a model, and draw its learning curve and boundary where ``plot`` says.

    A UsageError says that no picture can be written there. A CommandError says that there is nothing to draw.
    """
    if arguments.plot is not None:
        check_written("--plot", [arguments.plot], {"the model": arguments.path}, arguments.overwrite)
        with wrong_usage("--plot: ", (plots.DrawingError,)):
            plots.check_path(arguments.plot)
    checkpoint = newest(arguments.path, arguments.trusted)
    known = about_checkpoint(checkpoint)
    if arguments.json:
        print(json.dumps(_facts_of(checkpoint), default=str, sort_keys=True))
    else:
        _print_facts(_lines_for_users(known))
        if arguments.all:
            print()
            _print_facts(_facts_of(checkpoint))
    if arguments.plot is None:
        return
    if known.corrupt:
        raise CommandError(f"--plot: {known.corrupt}")
    with failing("--plot: ", plots.DrawingError), unwinding():
        left_out = plots.draw(arguments.plot, checkpoint.model, known.curve)
    # Standard output may be JSON for scripts.
    print(printable(f"drawn: {arguments.plot}{''.join(f' ({reason})' for reason in left_out)}"), file=sys.stderr)


def _print_facts(facts: Mapping[str, Any]) -> None:
    named = {printable(str(name)): value for name, value in facts.items()}
    width = max(map(len, named)) + 2
    for name, value in named.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value), True)
        print(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width))


def _lines_for_users(known: About) -> dict[str, str]:
    usual = "a number" if known.regression else "how odd a row is" if known.anomalies else "labels"
    found = {"predicts": known.label or usual}
    if known.labels:
        found["labels"] = _listed_names(known.labels)
    if known.source is not None:
        found["learned from"] = known.source
    rows = [f"{known.learned or 0:,} learned"]
    rows += [f"{known.unlabelled:,} without a label"] * bool(known.unlabelled)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in known.refused.items())
    rows.append(f"{known.n_refused:,} refused" + f" ({counts})" * bool(counts))
    rows += [f"{known.drifts or 0:,} drift{'s' * (known.drifts != 1)}"] * (known.drifts is not None)
    found["rows"] = ", ".join(rows)
    for number, report in enumerate(each for each in known.reports if math.isfinite(each.value)):
        found["score" if not number else f"score {number + 1}"] = _score_text(report)
    columns = [column for column in known.columns if column.kind not in ("label", "target")]
    if columns:
        kinds = Counter(column.kind for column in columns)
        told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        found["columns"] = f"{told}\n{_listed_names([column.name for column in columns if column.kind != 'dropped'])}"
    found["learner"] = f"{known.learner}: {known.words[:1].lower()}{known.words[1:]}"
    if known.decides:
        found["decides"] = known.decides
    if known.experts:
        heard = (f"{name} ({100.0 * share:.0f} %)" for name, share, _ in known.experts[:_MOST_EXPERTS])
        found["listens to"] = ", ".join(heard) + (", ..." if len(known.experts) > _MOST_EXPERTS else "")
    if known.support_vectors is not None:
        n, budget = known.support_vectors
        found["support vectors"] = f"{n:,}" + (f" of {budget:,}" if budget is not None else "")
    if known.nbytes is not None:
        found["memory"] = f"{known.nbytes:,} bytes"
    found["export"] = known.export
    if known.corrupt or known.curve is not None:
        drawn = "" if known.curve is None else f"{len(known.curve.points)} points, one every {known.curve.every:,} rows"
        found["learning curve"] = known.corrupt or f"{drawn}; --plot draws them, and streamsvm report shows it all"
    return found


def _score_text(report: ScoreReport) -> str:
    last = f", of the last rows {report.windowed:.4f}" if math.isfinite(report.windowed) else ""
    return f"{report.name} {report.value:.4f}{last}{guessing_text(report)}"


def _listed_names(names: list[Any]) -> str:
    shown = [cut(str(name), _LONGEST) for name in names[:_MOST_NAMES]]
    return ", ".join(shown) + (f", ... ({len(names):,})" if len(names) > _MOST_NAMES else "")


def _facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return all that a checkpoint says, and the figures of its model."""
    learner = learner_of(checkpoint.model)
    facts = checkpoint.header | {name: getattr(learner, name) for name in _FIGURES if hasattr(learner, name)}
    try:
        program = program_of(checkpoint.model)
        facts["export"] = {"columns": len(program.columns), "bytes": program.nbytes, "steps": [step.do for step in program.steps]}
    except ProgramError as error:
        facts["export"] = str(error)
    experts = [report._asdict() for report in getattr(learner, "experts", [])]
    if experts:
        del facts["averaged"]  # each expert has two outputs, and both are asked
        facts |= {"effort": learner.effort, "follows": learner.follows, "experts": experts}
    return facts
