"""Progress as a command line shows it."""

from __future__ import annotations

import json
import math
import time
from typing import Any, Self

from rich.console import Console
from rich.text import Text
from river import compose

from streamsvm.runtime import Progress

__all__ = ["Display", "learner_of"]

_PLAIN_EVERY = 5.0
_QUIET_EVERY = 1.0


class Display:
    """Progress: a live line on a terminal, a line now and then elsewhere, JSON lines where quiet."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._told = 0.0
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Any = None

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Show what is going on."""
        if self._status is not None:
            self._status.update(Text(text))
        elif not self._quiet:
            self._console.print(Text(text))

    def show(self, progress: Progress) -> None:
        """Show how far it is."""
        now = time.perf_counter()
        if self._quiet:
            if progress.ended or now - self._told >= _QUIET_EVERY:
                self._told = now
                print(json.dumps(_facts(progress), allow_nan=False), flush=True)  # noqa: T201
            return
        facts = _facts(progress)
        line = (
            f"{progress.rows:,} rows  {progress.rows_per_second:,.0f} rows/s  {progress.metric_name} {progress.metric:.4f}  "
            f"last {min(progress.window, progress.learned):,} rows {progress.windowed:.4f}"
        )
        if "n_support" in facts:
            line += f"  {facts['n_support']:,} support vectors  {facts['n_merges']:,} merges"
        if progress.ended:
            if self._status is not None:
                self._status.stop()
                self._status = None
            line += f"  {'interrupted' if progress.interrupted else 'done'} after {progress.seconds:.1f} s"
            self._console.print(Text(line))
        elif self._status is not None:
            self._status.update(Text(line))
        elif now - self._told >= _PLAIN_EVERY:
            self._told = now
            self._console.print(Text(line))


def _facts(progress: Progress) -> dict[str, Any]:
    learner = learner_of(progress.model)
    facts = {
        "event": "end" if progress.ended else "progress",
        "rows": progress.rows,
        "learned": progress.learned,
        "rows_per_second": round(progress.rows_per_second, 1),
        "metric_name": progress.metric_name,
        "metric": _or_none(progress.metric),
        "windowed": _or_none(progress.windowed),
        "window": progress.window,
        "seconds": round(progress.seconds, 3),
    }
    for name in ("n_support", "n_merges", "nbytes"):
        if hasattr(learner, name):
            facts[name] = getattr(learner, name)
    if progress.ended:
        facts["interrupted"] = progress.interrupted
    return facts


def _or_none(value: float) -> float | None:
    # JSON has no NaN.
    return value if math.isfinite(value) else None


def learner_of(model: Any) -> Any:
    """The last step of a pipeline, or the model itself."""
    return model[-1] if isinstance(model, compose.Pipeline) else model
