"""Shows progress and scores on the command line."""

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
from streamsvm.files.messages import format_count
from streamsvm.stream import LearningLoop, Progress
from streamsvm.stream.delayed.loop import UNJOINED_STATES
from streamsvm.stream.progress import LearningCurve
from streamsvm.stream.rows import find_learner
from streamsvm.stream.scores.base import ScoreReport

#: The time between two lines of progress, by whether the command is quiet.
SECONDS_BETWEEN_LINES: dict[bool, float] = {False: 5.0, True: 1.0}

_MAX_CELL_CHARS = 24  # in a table
_MAX_CURVE_POINTS = 8
_LEARNER_COUNTS = {"n_support": "support vector", "n_merges": "merge"}


class ProgressDisplay:
    """Shows progress: a live line on a terminal, a line every 5 s elsewhere, or a JSON line every second if quiet.

    With ``--log-format json``, the lines on standard error are log records.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._last_line_time, self._last_rows, self._is_waiting = 0.0, -1, False
        self._last_counts: tuple[int, float] | None = None  # rows and seconds at the last line, to compute the current rate
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Any = None
        #: The learning curve to show at the end, or None.
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
        """Remember the number of rows and the learning curve of a loop that is about to run, to be shown later."""
        self.curve, self._last_rows = loop.curve, loop.rows

    def report_event(self, text: str, event: str, **fields: Any) -> None:
        """Show ``text`` in the live line at the bottom of a terminal. Without a live line, report ``text``, or as JSON the name
        ``event`` and its ``fields``, on standard error.
        """
        if self._status is not None:
            self._status.update(Text(escape_unprintable(text)))
        else:
            self._reporter.report_event(text, event, **fields)

    def show_compilation(self, n_done: int, n_functions: int, name: str) -> None:
        """Show that function ``name`` is being compiled, after ``n_done`` of ``n_functions``."""
        now = time.perf_counter()
        if n_done == 0 or self._status is not None or now - self._last_line_time > SECONDS_BETWEEN_LINES[False]:
            self._last_line_time = now
            self.report_event(f"compiling {n_done + 1} of {n_functions} functions, once on this machine: {name}", "compiling")

    def show_progress(self, progress: Progress) -> None:
        """Show the progress of a run, unless it was shown a moment ago: at most every 1 or 5 seconds, and at the end."""
        if progress.ended:
            self.__exit__()
        now = time.perf_counter()
        if not progress.ended and self._last_counts is not None and (since := progress.seconds - self._last_counts[1]) > 0.0:
            progress = replace(progress, rows_per_second=(progress.rows - self._last_counts[0]) / since)
        is_early = now - self._last_line_time < SECONDS_BETWEEN_LINES[self._reporter.quiet]
        skips = self._status is None and not progress.ended and is_early
        if self._last_counts is None or not skips:
            self._last_counts = progress.rows, progress.seconds
        if skips:
            return
        self._last_line_time = now
        is_waiting, self._last_rows = progress.rows == self._last_rows and not progress.ended, progress.rows
        if is_waiting and self._reporter.shows_text:
            if not self._is_waiting:
                self.report_event("waiting for rows", "waiting")
            self._is_waiting = True
            return
        self._is_waiting = False
        if self._reporter.quiet:
            print(json.dumps(_report_to_json(progress), allow_nan=False), flush=True)  # noqa: T201
        if progress.ended and self._reporter.shows_text:
            lines = [*progress.refusal_messages, *format_scores(progress.scores[1:], min(progress.window, progress.learned))]
            for line in lines if self.curve is None else [*lines, *format_learning_curve(self.curve)]:
                self._console.print(Text(escape_unprintable(line)))
        if progress.ended or not self._reporter.quiet:
            self.report_event(_format_progress(progress), **_report_to_json(progress))


def _format_progress(progress: Progress) -> str:
    """Return the progress of a run as one line of text: rows, rows per second, scores, and counts of refused rows and drifts."""
    line = format_count(progress.rows, "row")
    if progress.rows_per_second > 0.0:
        line += f"  {progress.rows_per_second:,.0f} rows/s"
    if math.isfinite(progress.metric):
        line += f"  {progress.metric_name} {progress.metric:.4f}"
        line += format_baselines(progress.scores[0].baselines[: None if progress.ended else 1])
    if math.isfinite(progress.windowed):
        line += f"  last {format_count(min(progress.window, progress.learned), 'row')} {_format_windowed(progress.scores[0])}"
    learner = find_learner(progress.model)
    sizes = {noun: getattr(learner, name) for name, noun in _LEARNER_COUNTS.items() if hasattr(learner, name)}
    line += "".join(f"  {format_count(size, noun)}" for noun, size in sizes.items())
    counts = {**progress.refused, "without label": progress.unlabelled, "empty": progress.empty}
    if progress.delayed is not None:
        counts |= {text: progress.delayed[name] for name, text in UNJOINED_STATES.items()}
    if progress.refused:
        line += f"  {sum(progress.refused.values()):,} refused"
    line += "".join(f"  {count:,} {kind}" for kind, count in counts.items() if count)
    if progress.drifts is not None:
        line += f"  {format_count(progress.drifts, 'drift')}"
    if n_clipped := _count_clipped_values(progress.model):
        line += f"  {format_count(n_clipped, 'extreme value')} bounded"
    if progress.ended:
        line += f"  {'interrupted' if progress.interrupted else 'done'} after {progress.seconds:.1f} s"
    return line


def format_baselines(baselines: Iterable[tuple[str, float]]) -> str:
    """Return the names and values of a metric's baselines, such as always predicting one label, in brackets; "" without any."""
    texts = [f"{name}: {value:.4f}" for name, value in baselines if math.isfinite(value)]
    return f" ({', '.join(texts)})" if texts else ""


def _format_windowed(report: ScoreReport) -> str:
    """Return a metric's value over the last rows as text, with that of the best baseline unless it is that of all rows."""
    baselines = () if report.windowed_baselines == report.baselines else report.windowed_baselines[:1]
    return f"{report.windowed:.4f}{format_baselines(baselines)}"


def format_scores(scores: Iterable[ScoreReport], last_rows: int = 0) -> list[str]:
    """Return the values and tables of metrics as a list of lines of text. If ``last_rows`` is not 0, each value is followed by
    the metric over that number of latest rows.
    """
    lines: list[str] = []
    for report in scores:
        if report.table is not None:
            if len(report.table) == 1:  # a header without rows
                continue
            lines += [f"{report.name}:", *_format_table(report.table)]
        elif math.isfinite(report.value):
            has_last = last_rows and math.isfinite(report.windowed)
            last = f"  last {format_count(last_rows, 'row')} {_format_windowed(report)}" if has_last else ""
            lines.append(f"{report.name} {report.value:.4f}{format_baselines(report.baselines)}{last}")
        else:
            lines.append(f"{report.name} has no value")
    return lines


def format_learning_curve(curve: LearningCurve) -> list[str]:
    """Return lines of text with the windowed metric at up to 8 points of the run, and with that of the best baseline; empty for a
    short run.
    """
    points = [point for point in curve.points if point.rows >= curve.window and math.isfinite(point.windowed)]
    if len(points) < 2 or points[-1].rows < 2 * curve.window:
        return []
    step = -(-len(points) // _MAX_CURVE_POINTS)
    shown = points[(len(points) - 1) % step :: step]
    first_row, last_row = shown[0].rows, shown[-1].rows
    text = f"{curve.metric} of {curve.window:,} rows each time, from row {first_row:,} to {last_row:,}:"
    lines = [f"{text} {'  '.join(f'{point.windowed:.4f}' for point in shown)}"]
    if all(math.isfinite(point.windowed_baseline) for point in shown):
        baselines = "  ".join(f"{point.windowed_baseline:.4f}" for point in shown)
        lines.append(f"{'the best baseline on these rows:':>{len(text)}} {baselines}")
    return lines


def _format_table(table: list[list[Any]]) -> list[str]:
    """Format a table (a list of rows, with names in the first column) as lines of text with aligned columns.

    >>> _format_table([["label", "recall", "rows"], ["spam", 0.5, 1200]])
    ['  label  recall   rows', '  spam   0.5000  1,200']
    """
    texts = [[row[0], *(_format_cell(cell) for cell in row[1:])] for row in table]
    texts = [
        [str(cell) if len(str(cell)) <= _MAX_CELL_CHARS else f"{str(cell)[: _MAX_CELL_CHARS - 1]}…" for cell in row]
        for row in texts
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in texts
    ]


def _format_cell(value: Any) -> str:
    """Return the text of a table's cell: floats with four decimals, ints with thousands separators, others as ``str``."""
    return f"{value:.4f}" if type(value) is float else f"{value:,}" if type(value) is int else str(value)


def scores_to_json(scores: Iterable[ScoreReport]) -> list[dict[str, Any]]:
    """Convert the values and tables of metrics to dicts that JSON can represent; values that are not finite become None."""
    facts = []
    for report in scores:
        fact: dict[str, Any] = {"name": report.name}
        if report.table is None:
            fact |= {"value": finite_or_none(report.value), "windowed": finite_or_none(report.windowed)}
        else:
            fact["table"] = report.table
        for key, baselines in (("baselines", report.baselines), ("windowed_baselines", report.windowed_baselines)):
            fact |= {key: {name: finite_or_none(value) for name, value in baselines}} if baselines else {}
        facts.append(fact)
    return facts


def progress_to_json(progress: Progress, with_tables: bool) -> dict[str, Any]:
    """Convert the counts and scores of a run to a dict that JSON can represent, without metrics that are tables unless
    ``with_tables``.
    """
    learner = find_learner(progress.model)
    facts = {
        "rows": progress.rows,
        "learned": progress.learned,
        "metric_name": progress.metric_name,
        "metric": finite_or_none(progress.metric),
        "windowed": finite_or_none(progress.windowed),
        "window": progress.window,
        "scores": scores_to_json([report for report in progress.scores if with_tables or report.table is None]),
        "refused": dict(progress.refused),
        "unlabelled": progress.unlabelled,
        "empty": progress.empty,
        "bounded": _count_clipped_values(progress.model),
    }
    facts |= {} if progress.delayed is None else {"delayed": dict(progress.delayed)}
    facts |= {} if progress.drifts is None else {"drifts": progress.drifts}
    sizes = (*_LEARNER_COUNTS, "active_combiner", "nbytes")
    return facts | {name: getattr(learner, name) for name in sizes if hasattr(learner, name)}


def _report_to_json(progress: Progress) -> dict[str, Any]:
    """Convert a report of the progress, or of the end of a run, to a dict that JSON can represent."""
    speed = {"rows_per_second": round(progress.rows_per_second, 1), "seconds": round(progress.seconds, 3)}
    end = {"interrupted": progress.interrupted} if progress.ended else {}
    return {"event": "end" if progress.ended else "progress", **progress_to_json(progress, progress.ended), **speed, **end}


def _count_clipped_values(model: Any) -> int:
    """Return how many extreme values the scalers in a model's pipeline have clipped so far."""
    steps = model.steps.values() if isinstance(model, compose.Pipeline) else ()
    return sum(getattr(getattr(step, "learned_scaler", step), "n_bounded", 0) for step in steps)
