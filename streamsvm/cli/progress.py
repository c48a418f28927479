"""Progress as the command line shows it."""

from __future__ import annotations

import json
import logging
import math
import time
from typing import Any, Self

from rich.console import Console
from rich.text import Text
from river import compose

from streamsvm.cli import printable
from streamsvm.cli.logs import Output
from streamsvm.stream import Progress
from streamsvm.stream.rows import learner_of

logger: logging.Logger = logging.getLogger("streamsvm")

_SECONDS_BETWEEN_LINES = {False: 5.0, True: 1.0}  # by whether it is quiet

_COUNTS = {"n_support": "support vectors", "n_merges": "merges"}
#: Of labels from another stream.
_WAITING = {
    "pending": "wait for a label",
    "early": "labels wait for a row",
    "expired_rows": "expired",
    "expired_labels": "labels without a row",
    "late_labels": "labels too late",
    "duplicate_rows": "duplicate rows",
    "duplicate_labels": "duplicate labels",
}


class Display:
    """Shows progress: a live line on a terminal, a line every 5 s elsewhere, a line of JSON every second if ``quiet``.

    Where standard error has lines of JSON, they are log records.
    """

    def __init__(self, output: Output) -> None:
        self._quiet, self._logs = output
        self._last_line, self._rows, self._waiting = 0.0, -1, False
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Any = None

    def __enter__(self) -> Self:
        if not (self._quiet or self._logs) and self._console.is_terminal:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, text: str, **fields: Any) -> None:
        """Show a line of text, unless quiet; as a log record, it has the fields."""
        if self._logs:
            logger.info("%s", text, extra={"fields": fields})
        elif self._status is not None:
            self._status.update(Text(printable(text)))
        elif not self._quiet:
            self._console.print(Text(printable(text)))

    def compiling(self, done: int, functions: int, name: str) -> None:
        """Show which function is compiled next, of how many."""
        now = time.perf_counter()
        if done == 0 or self._status is not None or now - self._last_line > _SECONDS_BETWEEN_LINES[False]:
            self._last_line = now
            self.say(f"compiling {done + 1} of {functions} functions, once on this machine: {name}", event="compiling")

    def show(self, progress: Progress) -> None:
        """Show progress if it is the end or time for another line."""
        if progress.ended:
            self.__exit__()
        now = time.perf_counter()
        if self._status is None and not progress.ended and now - self._last_line < _SECONDS_BETWEEN_LINES[self._quiet]:
            return
        self._last_line = now
        waiting, self._rows = progress.rows == self._rows and not progress.ended, progress.rows
        if waiting and not (self._quiet or self._logs):
            if not self._waiting:
                self.say("waiting for rows")
            self._waiting = True
            return
        self._waiting = False
        if self._quiet:
            print(json.dumps(_facts(progress), allow_nan=False), flush=True)  # noqa: T201
        if progress.ended or not self._quiet:
            self.say(_line(progress), **_facts(progress))


def _line(progress: Progress) -> str:
    line = f"{progress.rows:,} row{'s' * (progress.rows != 1)}"
    if progress.rows_per_second > 0.0:
        line += f"  {progress.rows_per_second:,.0f} rows/s"
    if math.isfinite(progress.metric):
        line += f"  {progress.metric_name} {progress.metric:.4f}"
        if progress.majority is not None:
            label, share = progress.majority
            line += f" (always {label!r}: {share:.4f})"
    if math.isfinite(progress.windowed):
        line += f"  last {min(progress.window, progress.learned):,} rows {progress.windowed:.4f}"
    learner = learner_of(progress.model)
    line += "".join(f"  {getattr(learner, name):,} {what}" for name, what in _COUNTS.items() if hasattr(learner, name))
    counts = {**progress.refused, "without label": progress.unlabelled, "empty": progress.empty}
    counts |= {what: progress.delayed[name] for name, what in _WAITING.items()} if progress.delayed is not None else {}
    if progress.refused:
        line += f"  {sum(progress.refused.values()):,} refused"
    line += "".join(f"  {count:,} {kind}" for kind, count in counts.items() if count)
    if progress.drifts is not None:
        line += f"  {progress.drifts:,} drift{'s' * (progress.drifts != 1)}"
    if bounded := _bounded(progress.model):
        line += f"  {bounded:,} extreme values bounded"
    if progress.ended:
        line += f"  {'interrupted' if progress.interrupted else 'done'} after {progress.seconds:.1f} s"
    return line


def _facts(progress: Progress) -> dict[str, Any]:
    learner = learner_of(progress.model)
    facts = {
        "event": "end" if progress.ended else "progress",
        "rows": progress.rows,
        "learned": progress.learned,
        "rows_per_second": round(progress.rows_per_second, 1),
        "metric_name": progress.metric_name,
        "metric": _finite(progress.metric),
        "majority": None if progress.majority is None else progress.majority[1],
        "windowed": _finite(progress.windowed),
        "window": progress.window,
        "refused": dict(progress.refused),
        "unlabelled": progress.unlabelled,
        "empty": progress.empty,
        "bounded": _bounded(progress.model),
        "seconds": round(progress.seconds, 3),
    }
    facts |= {} if progress.delayed is None else {"delayed": dict(progress.delayed)}
    facts |= {} if progress.drifts is None else {"drifts": progress.drifts}
    facts |= {name: getattr(learner, name) for name in (*_COUNTS, "follows", "nbytes") if hasattr(learner, name)}
    if progress.ended:
        facts["interrupted"] = progress.interrupted
    return facts


def _bounded(model: Any) -> int:
    """Values that the transformers of a pipeline have bounded."""
    steps = model.steps.values() if isinstance(model, compose.Pipeline) else ()
    return sum(getattr(getattr(step, "learned_scaler", step), "n_bounded", 0) for step in steps)


def _finite(value: float) -> float | None:
    # JSON has no NaN.
    return value if math.isfinite(value) else None
