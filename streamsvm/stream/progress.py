"""The progress of a loop that learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from river import base, compose

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """The progress of a loop that learns.

    Parameters
    ----------
    rows, learned
        Number of rows read so far, including earlier runs, and number of those that had a label.
    rows_per_second
        Rows per second since the last progress.
    metric_name, metric, windowed, window
        Name of the metric, its value over all rows, its value over the last ``window`` rows (or over all, if there are fewer),
        and the number of those rows. A value is NaN if the metric has none, and before a row was scored.
    model
        The model in its present state.
    seconds
        Seconds since this run began.
    ended, interrupted
        Whether this is the end of the run, and whether `LearningLoop.stop` ended it.
    refused
        Number of refused rows, by kind of reason. They are included in ``rows``, and had no influence.
    unlabelled, empty
        Number of rows without a label, which were only predicted, and number of rows without any feature.
    delayed
        The counts of `DelayedLabels`, if labels come from another stream; ``rows`` then counts messages of both streams.
    drifts
        Number of drifts found; None if the loop does not watch for drift.
    majority
        The commonest label and its share of the rows, which is the accuracy of always predicting it. None if the metric is not
        accuracy.
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
    majority: tuple[Any, float] | None = None
