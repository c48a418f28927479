"""The progress of a loop that learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from river import base, compose

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """The progress of a loop.

    Parameters
    ----------
    rows, learned
        Rows of the stream so far, those of earlier runs included; and those of them that had a label.
    rows_per_second
        Since the progress before.
    metric_name, metric, windowed, window
        The metric over all rows, and over the last ``window`` rows (over all if there are fewer). NaN if it has no value, and
        before a row was scored.
    model
        The model in its present state.
    seconds
        Since this run began.
    ended, interrupted
        Whether this is the end of the run, and whether `LearningLoop.stop` ended it.
    refused
        Rows that were refused, by kind of reason. They are among ``rows``, and had no influence.
    unlabelled, empty
        Rows without a label, which were predicted only; and rows without any feature.
    delayed
        Where labels come from another stream: the counts of `DelayedLabels`. ``rows`` are messages of both streams then.
    drifts
        Drifts that were found; None if none are looked for.
    """

    rows: int
    learned: int
    rows_per_second: float
    metric_name: str
    metric: float
    windowed: float
    window: int
    model: base.Classifier | base.Regressor | compose.Pipeline
    seconds: float
    ended: bool = False
    interrupted: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)
    unlabelled: int = 0
    empty: int = 0
    delayed: Mapping[str, int] | None = None
    drifts: int | None = None
