"""Progress as the command line shows it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from rich.console import Console
from rich.text import Text
from river import compose

from streamsvm.cli import escape_unprintable
from streamsvm.cli.arguments import Reporter
from streamsvm.core.checks import finite_or_none
from streamsvm.stream import LearningLoop, Progress
from streamsvm.stream.progress import LearningCurve
from streamsvm.stream.rows import find_learner
from streamsvm.stream.scores.base import ScoreReport

_SECONDS_BETWEEN_LINES = {False: 5.0, True: 1.0}  # by whether it is quiet

_WIDEST = 24  # letters of a cell of a table
_MOST_POINTS = 8  # of a score along the way
_COUNTS = {"n_support": "support vectors", "n_merges": "merges"}
#: Of labels from another stream.
WAITING = {
    "pending": "wait for a label",
    "early": "labels wait for a row",
    "expired_rows": "expired",
    "expired_labels": "labels without a row",
    "late_labels": "labels too late",
    "duplicate_rows": "duplicate rows",
    "duplicate_labels": "duplicate labels",
}


class ProgressDisplay:
    """Shows progress: a live line on a terminal, a line every 5 s elsewhere, a line of JSON every second if ``quiet``.

    Where standard error has lines of JSON, they are log records.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._last_line, self._rows, self._waiting = 0.0, -1, False
        self._counted: tuple[int, float] | None = None  # rows and seconds of the last line, from which the next one counts
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Any = None
        #: The score along the way, which is shown at the end; None: it is not.
        self.curve: LearningCurve | None = None

    def __enter__(self) -> Self:
        if self._reporter.shows_text and self._console.is_terminal:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def attach_loop(self, loop: LearningLoop) -> None:
        """Note the state of a loop that begins, so that waiting for its next row is reported."""
        self.curve, self._rows = loop.curve, loop.rows

    def report_event(self, text: str, event: str, **fields: Any) -> None:
        """Show a line of text as `Reporter.report_event` does, or in the live line."""
        if self._status is not None:
            self._status.update(Text(escape_unprintable(text)))
        else:
            self._reporter.report_event(text, event, **fields)

    def show_compilation(self, done: int, functions: int, name: str) -> None:
        """Show which function is compiled next, of how many."""
        now = time.perf_counter()
        if done == 0 or self._status is not None or now - self._last_line > _SECONDS_BETWEEN_LINES[False]:
            self._last_line = now
            self.report_event(f"compiling {done + 1} of {functions} functions, once on this machine: {name}", "compiling")

    def show_progress(self, progress: Progress) -> None:
        """Show progress if it is the end or time for another line."""
        if progress.ended:
            self.__exit__()
        now = time.perf_counter()
        if self._counted is not None and (since := progress.seconds - self._counted[1]) > 0.0:
            progress = replace(progress, rows_per_second=(progress.rows - self._counted[0]) / since)
        skips = (
            self._status is None and not progress.ended and now - self._last_line < _SECONDS_BETWEEN_LINES[self._reporter.quiet]
        )
        if self._counted is None or not skips:
            self._counted = progress.rows, progress.seconds
        if skips:
            return
        self._last_line = now
        waiting, self._rows = progress.rows == self._rows and not progress.ended, progress.rows
        if waiting and self._reporter.shows_text:
            if not self._waiting:
                self.report_event("waiting for rows", "waiting")
            self._waiting = True
            return
        self._waiting = False
        if self._reporter.quiet:
            print(json.dumps(_progress_facts(progress), allow_nan=False), flush=True)  # noqa: T201
        if progress.ended and self._reporter.shows_text:
            lines = format_scores(progress.scores[1:], min(progress.window, progress.learned))
            for line in lines if self.curve is None else [*lines, *format_learning_curve(self.curve)]:
                self._console.print(Text(escape_unprintable(line)))
        if progress.ended or not self._reporter.quiet:
            self.report_event(_progress_line(progress), **_progress_facts(progress))


def _progress_line(progress: Progress) -> str:
    line = f"{progress.rows:,} row{'s' * (progress.rows != 1)}"
    if progress.rows_per_second > 0.0:
        line += f"  {progress.rows_per_second:,.0f} rows/s"
    if math.isfinite(progress.metric):
        line += f"  {progress.metric_name} {progress.metric:.4f}"
        if progress.majority is not None:
            label, share = progress.majority
            line += f" (always {label!r}: {share:.4f})"
        elif progress.ended and progress.scores:
            line += format_guesses(progress.scores[0])
    if math.isfinite(progress.windowed):
        line += f"  last {min(progress.window, progress.learned):,} rows {progress.windowed:.4f}"
    learner = find_learner(progress.model)
    line += "".join(f"  {getattr(learner, name):,} {what}" for name, what in _COUNTS.items() if hasattr(learner, name))
    counts = {**progress.refused, "without label": progress.unlabelled, "empty": progress.empty}
    counts |= {what: progress.delayed[name] for name, what in WAITING.items()} if progress.delayed is not None else {}
    if progress.refused:
        line += f"  {sum(progress.refused.values()):,} refused"
    line += "".join(f"  {count:,} {kind}" for kind, count in counts.items() if count)
    if progress.drifts is not None:
        line += f"  {progress.drifts:,} drift{'s' * (progress.drifts != 1)}"
    if bounded := _bounded_values(progress.model):
        line += f"  {bounded:,} extreme values bounded"
    if progress.ended:
        line += f"  {'interrupted' if progress.interrupted else 'done'} after {progress.seconds:.1f} s"
    return line


def format_guesses(report: ScoreReport) -> str:
    """Return what guessing would have given, in brackets; "" where that is not known."""
    guesses = [f"{what}: {value:.4f}" for what, value in report.baselines if math.isfinite(value)]
    return f" ({', '.join(guesses)})" if guesses else ""


def format_scores(scores: Iterable[ScoreReport], last_rows: int = 0) -> list[str]:
    """Return what metrics say at the end of a run, also of its last rows, if a number of these is given."""
    lines: list[str] = []
    for report in scores:
        if report.table is not None:
            if len(report.table) == 1:  # of no row
                continue
            lines += [f"{report.name}:", *_table_lines(report.table)]
        elif math.isfinite(report.value):
            has_last = last_rows and math.isfinite(report.windowed)
            last = f"  last {last_rows:,} rows {report.windowed:.4f}" if has_last else ""
            lines.append(f"{report.name} {report.value:.4f}{format_guesses(report)}{last}")
        else:
            lines.append(f"{report.name} has no value")
    return lines


def format_learning_curve(curve: LearningCurve) -> list[str]:
    """Return a line with the windowed metric at some points of the run; none for a short run."""
    points = [point for point in curve.points if point.rows >= curve.window and math.isfinite(point.windowed)]
    if len(points) < 2 or points[-1].rows < 2 * curve.window:
        return []
    step = -(-len(points) // _MOST_POINTS)
    shown = points[(len(points) - 1) % step :: step]
    values = "  ".join(f"{point.windowed:.4f}" for point in shown)
    first_row, last_row = shown[0].rows, shown[-1].rows
    return [f"{curve.metric} of {curve.window:,} rows each time, from row {first_row:,} to {last_row:,}: {values}"]


def _table_lines(table: list[list[Any]]) -> list[str]:
    """Return the lines of a table whose first column holds names.

    >>> _table_lines([["label", "recall", "rows"], ["spam", 0.5, 1200]])
    ['  label  recall   rows', '  spam   0.5000  1,200']
    """
    texts = [[row[0], *(_cell_text(cell) for cell in row[1:])] for row in table]
    texts = [[str(cell) if len(str(cell)) <= _WIDEST else f"{str(cell)[: _WIDEST - 1]}…" for cell in row] for row in texts]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in texts
    ]


def _cell_text(value: Any) -> str:
    return f"{value:.4f}" if type(value) is float else f"{value:,}" if type(value) is int else str(value)


def scores_to_json(scores: Iterable[ScoreReport]) -> list[dict[str, Any]]:
    """Return what each metric says as JSON has it."""
    facts_of_scores = []
    for report in scores:
        fact: dict[str, Any] = {"name": report.name}
        if report.table is None:
            fact |= {"value": finite_or_none(report.value), "windowed": finite_or_none(report.windowed)}
        else:
            fact["table"] = report.table
        if report.baselines:
            fact["guesses"] = {what: finite_or_none(value) for what, value in report.baselines}
        facts_of_scores.append(fact)
    return facts_of_scores


def _progress_facts(progress: Progress) -> dict[str, Any]:
    learner = find_learner(progress.model)
    facts = {
        "event": "end" if progress.ended else "progress",
        "rows": progress.rows,
        "learned": progress.learned,
        "rows_per_second": round(progress.rows_per_second, 1),
        "metric_name": progress.metric_name,
        "metric": finite_or_none(progress.metric),
        "majority": None if progress.majority is None else progress.majority[1],
        "windowed": finite_or_none(progress.windowed),
        "window": progress.window,
        "scores": scores_to_json([report for report in progress.scores if progress.ended or report.table is None]),
        "refused": dict(progress.refused),
        "unlabelled": progress.unlabelled,
        "empty": progress.empty,
        "bounded": _bounded_values(progress.model),
        "seconds": round(progress.seconds, 3),
    }
    facts |= {} if progress.delayed is None else {"delayed": dict(progress.delayed)}
    facts |= {} if progress.drifts is None else {"drifts": progress.drifts}
    facts |= {name: getattr(learner, name) for name in (*_COUNTS, "active_combiner", "nbytes") if hasattr(learner, name)}
    if progress.ended:
        facts["interrupted"] = progress.interrupted
    return facts


def _bounded_values(model: Any) -> int:
    steps = model.steps.values() if isinstance(model, compose.Pipeline) else ()
    return sum(getattr(getattr(step, "learned_scaler", step), "n_bounded", 0) for step in steps)
