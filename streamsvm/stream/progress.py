"""The progress of a run, its learning curve, and the times that rows take."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from river import base, compose

from streamsvm.core.checks import finite_or_none, validate_count
from streamsvm.files.messages import short_repr
from streamsvm.stream.scores.base import ScoreReport
from streamsvm.stream.tables.column_monitor import ColumnMonitor

_MAX_POINTS = 200
_MAX_NAME_CHARS = 100
_LARGEST_VALUE = 1e300  # larger values cannot be drawn
_N_DIGITS = 6  # the last digits of some metrics depend on the order of summation


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a loop.

    Parameters
    ----------
    rows
        Number of rows read so far, including earlier runs.
    model
        The model in its present state.
    learns
        Whether the loop learns.
    learned
        Number of rows learned so far: they had a label, and not the weight 0.
    scored
        Number of rows of this run that had a label, and count in the scores.
    unlabelled, empty
        Number of rows without a label, which were only predicted, and number of rows without any feature value.
    refused
        Number of refused rows, by kind of reason. They are included in ``rows``, and were not learned.
    refusal_messages
        One message for each kind of rows that this run refused, with the position of the first one, and the reason.
    schema_changes
        Number of changes of the schema, by kind and column.
    abstained
        Number of rows whose probability was too small for a prediction.
    window
        Number of rows of windowed scores (or all, if there are fewer).
    scores
        The value of each metric, and of its baseline; the first metric is the score of the loop.
    columns
        The columns of the rows, and the names in them, compared with those that the model has learned.
    delayed
        The counts of `DelayedLabels`, if labels come from another stream; ``rows`` then counts messages of both streams.
    drifts
        Number of drifts found; None if the loop does not watch for drift.
    rows_per_second
        Rows per second since the last progress; at the end, over the whole run.
    seconds
        Seconds since this run began.
    ended, interrupted
        Whether this is the end of the run, and whether `LearningLoop.stop` ended it.
    """

    rows: int
    model: base.Classifier | base.Regressor | compose.Pipeline
    learns: bool = True
    learned: int = 0
    scored: int = 0
    unlabelled: int = 0
    empty: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    refusal_messages: Sequence[str] = ()
    schema_changes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    abstained: int = 0
    window: int = 1000
    scores: tuple[ScoreReport, ...] = ()
    columns: ColumnMonitor = field(default_factory=ColumnMonitor)
    delayed: Mapping[str, int] | None = None
    drifts: int | None = None
    rows_per_second: float = math.nan
    seconds: float = math.nan
    ended: bool = False
    interrupted: bool = False

    @property
    def predicted(self) -> int:
        """Number of rows that were predicted (read and not refused) so far, including those of earlier runs."""
        return self.rows - sum(self.refused.values())

    @property
    def messages(self) -> list[str]:
        """Messages for the user about unknown columns and values, and about refused rows."""
        return [*self.columns.messages, *self.refusal_messages]

    @property
    def metric_name(self) -> str:
        """Name of the loop's first metric, such as ``"Accuracy"``; ``""`` without metrics."""
        return self.scores[0].name if self.scores else ""

    @property
    def metric(self) -> float:
        """Value of the loop's first metric over all rows; NaN if no row was scored, or if it is undefined."""
        return self.scores[0].value if self.scores else math.nan

    @property
    def windowed(self) -> float:
        """Value of the loop's first metric over the last ``window`` rows; NaN if no row was scored, or if it is undefined."""
        return self.scores[0].windowed if self.scores else math.nan


class CurvePoint(NamedTuple):
    """The scores after a number of rows, rounded to six digits, with the numbers of refused rows and drifts.

    A score is NaN if it has no value, or one beyond 1e300.
    """

    rows: int
    metric: float
    windowed: float
    baseline: float = math.nan
    """The value of the best baseline on the same rows."""
    refused: int | None = None
    """Number of refused rows until then; None if it is unknown."""
    drifts: int | None = None
    """Number of drifts until then; None if the run did not watch for drift."""
    windowed_baseline: float = math.nan
    """The value of the best baseline on the last ``window`` rows; NaN in a curve of an earlier version."""


class LearningCurve:
    """A metric over the rows of a stream, at a bounded number of points.

    There is a point every ``every`` rows. When there are 200 points, every second one is dropped, and ``every`` doubles. The
    points therefore depend only on the number of rows. Memory is bounded, and n rows cost 100 log2(n / 100) computations of the
    metric.

    Parameters
    ----------
    metric
        Name of the metric; the curve stores its first 100 characters.
    window
        Number of rows of the windowed metric.

    Attributes
    ----------
    metric, window
        As given.
    every : int
        Number of rows between two points; a power of two.
    points : list of CurvePoint
        The points, in the order of rows; fewer than 200.

    Examples
    --------
    >>> curve = LearningCurve("Accuracy", window=1000)
    >>> for rows in range(1, 1001):
    ...     if rows == curve.find_next_row(rows - 1):
    ...         curve.add(CurvePoint(rows, 1 - 1 / rows, 1.0))
    >>> curve.every, len(curve.points), curve.points[-1]
    (8, 125, CurvePoint(rows=1000, metric=0.999, windowed=1.0, baseline=nan, refused=None, drifts=None, windowed_baseline=nan))
    """

    def __init__(self, metric: str, window: int) -> None:
        self.metric: str = metric[:_MAX_NAME_CHARS]
        self.window: int = window
        self.every: int = 1
        self.points: list[CurvePoint] = []

    def __repr__(self) -> str:
        return f"LearningCurve({self.metric!r}, window={self.window}): {len(self.points)} points, one every {self.every:,} rows"

    def find_next_row(self, rows: int) -> int:
        """Return the number of rows after which this learning curve gets its next point: the first such number above ``rows``."""
        return (rows // self.every + 1) * self.every

    def add(self, point: CurvePoint) -> None:
        """Add a point to this learning curve, with rounded scores."""
        self.points.append(_round_scores(point))
        self.make_room(point.rows, point.rows)

    def make_room(self, start: int, stop: int) -> None:
        """Delete every second point of this learning curve, and double their distance, until all points after the rows ``start``
        to ``stop`` find room. Points that would be deleted soon need not be computed then.
        """
        while len(self.points) + stop // self.every - start // self.every >= _MAX_POINTS:
            self.every *= 2
            self.points = [point for point in self.points if point.rows % self.every == 0]

    @property
    def state(self) -> dict[str, Any]:
        """The metric's name, the window and all points of this learning curve as a dict for JSON, for a checkpoint's header."""
        points = [list(map(finite_or_none, point)) for point in self.points]
        return {"metric": self.metric, "window": self.window, "every": self.every, "points": points}

    @classmethod
    def from_state(cls, state: Any, rows: Any) -> LearningCurve:
        """Create a learning curve from its saved `state`, for a run that has read ``rows`` rows. Raise a ValueError if the state
        is corrupt, or has points after these rows.
        """
        try:
            curve = cls(state["metric"], validate_count("window", state["window"]))
            curve.every = validate_count("every", state["every"])
            for row, *values in state["points"]:
                metric, windowed, baseline, refused, drifts, windowed_baseline = values if len(values) > 5 else [*values, None]
                n_refused, n_drifts = (None if x is None else validate_count("points", x) for x in (refused, drifts))
                point = CurvePoint(row, metric, windowed, baseline, n_refused, n_drifts, windowed_baseline)
                curve.points.append(_round_scores(point))
            positions = [0, *(point.rows for point in curve.points)]
            is_ascending = all(a < b for a, b in itertools.pairwise(positions))
            if len(positions) > _MAX_POINTS or positions[-1] > rows or not is_ascending:
                raise ValueError
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the learning curve is corrupt: {short_repr(state)}") from error
        return curve


def _round_scores(point: CurvePoint) -> CurvePoint:
    """Return a point whose scores are rounded to six significant digits; NaN if one is missing, above 1e300 or not finite."""
    metric, windowed, baseline, last = map(_round_value, (*point[1:4], point.windowed_baseline))
    return CurvePoint(point.rows, metric, windowed, baseline, point.refused, point.drifts, last)


def _round_value(value: float | None) -> float:
    return float(f"{value:.{_N_DIGITS}g}") if value is not None and abs(value) <= _LARGEST_VALUE else math.nan


class Timings:
    """Observes the times of predicting and of learning a row, in two histograms of `prometheus_client`."""

    __slots__ = ("_since", "learn", "predict")

    def __init__(self, predict: Any, learn: Any) -> None:
        self.predict: Any = predict
        self.learn: Any = learn
        self._since = 0.0

    def start_row(self) -> None:
        """Start the clock for one row, before it is predicted."""
        self._since = time.perf_counter()

    def observe_prediction(self) -> None:
        """Add the time since `start_row` to the histogram of prediction times, and restart the clock."""
        now = time.perf_counter()
        self.predict.observe(now - self._since)
        self._since = now

    def observe_learning(self) -> None:
        """Add the time since `observe_prediction` to the histogram of learning times."""
        self.learn.observe(time.perf_counter() - self._since)
