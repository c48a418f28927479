"""The base of loops that score their predictions: metrics, the learning curve, drift, and rows without a label."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from river import base, compose

from streamsvm.core.checks import check_number, finite_or_none
from streamsvm.core.warning import warn
from streamsvm.files.messages import shown
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import Source, StreamError
from streamsvm.stream.rows import (
    SETTLED,
    GuardedModel,
    LabelRules,
    RowError,
    checked_number,
    columns_of,
    gives_probabilities,
    listed,
)
from streamsvm.stream.scores.base import Columns, Score, ScoreError
from streamsvm.stream.scores.several import Scores
from streamsvm.stream.stream_loop import Progress, StreamLoop
from streamsvm.stream.tables.chunk import Chunk
from streamsvm.stream.unfamiliar import Unfamiliar

_MOST_POINTS = 200
_LONGEST_NAME = 100
_LARGEST = 1e300  # a picture has no room for larger ones
_DIGITS = 6  # a picture shows fewer, and the last digits of some metrics depend on the order of their sums


class CurvePoint(NamedTuple):
    """The scores after some number of rows, to six digits, and what had happened until then.

    A score is NaN if there is no value, or one beyond 1e300.
    """

    rows: int
    metric: float
    windowed: float
    guess: float = math.nan
    """What the best of the guesses would have given on the same rows."""
    refused: int | None = None
    """Number of rows that had been refused; None if nobody has counted."""
    drifts: int | None = None
    """Number of drifts that had been found; None if nobody has looked."""


class LearningCurve:
    """A metric over the rows of a stream, at a bounded number of points.

    There is a point every ``every`` rows. When there are 200 points, every second one is dropped, and ``every`` doubles. The
    points therefore depend on the number of rows alone, and memory and time do not grow with the stream: n rows cost 100 log2(n
    / 100) readings of the metric.

    Parameters
    ----------
    metric
        Name of the metric; its first 100 characters are kept.
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
    ...     if rows == curve.next_after(rows - 1):
    ...         curve.add(rows, 1 - 1 / rows, 1.0)
    >>> curve.every, len(curve.points), curve.points[-1]
    (8, 125, CurvePoint(rows=1000, metric=0.999, windowed=1.0, guess=nan, refused=None, drifts=None))
    """

    def __init__(self, metric: str, window: int) -> None:
        self.metric: str = metric[:_LONGEST_NAME]
        self.window: int = window
        self.every: int = 1
        self.points: list[CurvePoint] = []

    def __repr__(self) -> str:
        return f"LearningCurve({self.metric!r}, window={self.window}): {len(self.points)} points, one every {self.every:,} rows"

    def next_after(self, rows: int) -> int:
        """Return the number of rows at which the next point is due."""
        return (rows // self.every + 1) * self.every

    def add(
        self,
        rows: int,
        metric: float,
        windowed: float,
        guess: float = math.nan,
        refused: int | None = None,
        drifts: int | None = None,
    ) -> None:
        """Add the point that is due after this number of rows."""
        self.points.append(
            CurvePoint(rows, _rounded_value(metric), _rounded_value(windowed), _rounded_value(guess), refused, drifts)
        )
        if len(self.points) == _MOST_POINTS:
            self.every *= 2
            self.points = [point for point in self.points if point.rows % self.every == 0]

    @property
    def state(self) -> dict[str, Any]:
        """The curve as JSON, for the header of a checkpoint."""
        points = [list(map(finite_or_none, point)) for point in self.points]
        return {"metric": self.metric, "window": self.window, "every": self.every, "points": points}

    @classmethod
    def of(cls, state: Any, rows: Any) -> LearningCurve:
        """Make the curve of a saved `state` after this number of rows, neither of which is trusted.

        A ValueError names the value that is not one of a curve.
        """
        if not isinstance(state, dict) or state.keys() != {"metric", "window", "every", "points"}:
            raise _corrupt_curve(shown(state))
        metric, window, every, points = (state[name] for name in ("metric", "window", "every", "points"))
        named = type(metric) is str and len(metric) <= _LONGEST_NAME
        if not (named and _is_count(window) and _is_count(every) and every.bit_count() == 1):
            raise _corrupt_curve(f"it is of {shown(metric)}, {shown(window)}, every {shown(every)} rows")
        if type(points) is not list or len(points) >= _MOST_POINTS:
            raise _corrupt_curve(f"its points are {shown(points)}")
        if type(rows) is not int:
            raise _corrupt_curve(f"it is of {shown(rows)} rows")
        curve, before = cls(metric, window), 0
        curve.every = every
        for point in points:
            if not _is_point(point):
                raise _corrupt_curve(f"{shown(point)} is no point")
            if not before < point[0] <= rows or point[0] % every:
                raise _corrupt_curve(f"a point at row {point[0]}, after one at {before}, every {every} of {rows}")
            before = point[0]
            metric, windowed, guess = (math.nan if x is None else float(x) for x in (*point[1:4], None)[:3])
            curve.points.append(CurvePoint(before, metric, windowed, guess, *point[4:]))
        return curve


def _corrupt_curve(reason: str) -> ValueError:
    return ValueError(f"the learning curve is corrupt: {reason}")


def _rounded_value(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if abs(value) <= _LARGEST else math.nan


def _is_point(point: Any) -> bool:
    if type(point) is not list or len(point) not in (3, 6):  # earlier versions saved the scores alone
        return False
    counts = (x is None or (type(x) is int and 0 <= x < 2**63) for x in point[4:])
    return _is_count(point[0]) and all(map(_is_value, point[1:4])) and all(counts)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**63


def _is_value(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= _LARGEST)


#: A metric of river, or a name.
Metric = metrics.base.ClassificationMetric | metrics.base.RegressionMetric | str

_MOST_PROBABILITIES = 2**21  # of rows that are taken together


class ScoredLoop(StreamLoop[Progress]):
    """A loop that scores each prediction before its row is learned; the arguments are those of `LearningLoop`."""

    def __init__(
        self,
        source: Source,
        model: base.Classifier | base.Regressor | compose.Pipeline,
        metric: Metric | Sequence[Metric] | None,
        positive: Hashable,
        window: int,
        classes: Iterable[Hashable] | None,
        drift: DriftWatch | None,
        abstain: float,
        **options: Any,
    ) -> None:
        super().__init__(source, model, **options)
        check_number("abstain", abstain, 0.0, inclusive=True, high=1.0)
        if abstain and (self._learns or self._regression or not gives_probabilities(self._guarded.last)):
            raise ValueError("abstain is of a loop that does not learn, and of a classifier with probabilities: leave it out")
        self._abstain = abstain
        last = self._guarded.last
        self._scores = Scores(metric, window, positive, bool(getattr(model, "_multiclass", False)), self._regression)
        self.curve: LearningCurve = LearningCurve(self._scores.first.name, window)
        self.learned: int = 0
        self.unlabelled: int = 0
        self.empty: int = 0
        self.abstained: int = 0
        self.unfamiliar: Unfamiliar = Unfamiliar(() if self._learns else columns_of(model), self._guarded.encoder)
        self._warned = False
        if classes is not None and self._regression:
            raise ValueError(f"classes are declared, and {type(last).__name__} predicts numbers: leave them out")
        if not self._regression and (wanting := self._scores.wants_probabilities) and not gives_probabilities(last):
            raise ValueError(f"{wanting} needs probabilities, which {type(last).__name__} does not give: try Accuracy or F1")
        self._labels = LabelRules(classes)
        most = getattr(last, "max_classes", math.inf)
        if self._labels.classes is not None and len(self._labels.classes) > most:
            raise ValueError(f"{len(self._labels.classes)} classes are declared, and the model has max_classes={most}")
        self._weight = source.weight
        if drift is not None:
            drift.begin(model, self._regression, source.name)
            self._at_once = self._at_once and not drift.renews  # for the next row is for another model
        self.drift: DriftWatch | None = drift

    @property
    def metric(self) -> Any:
        """The metric over all rows."""
        return self._scores.first.metric

    @property
    def windowed(self) -> Any:
        """The metric over the last ``window`` rows."""
        return self._scores.first.windowed

    def _row_predictor(self, guarded: GuardedModel) -> Callable[[Any], tuple[Any, Any, Any, float | None]]:
        """Return the function that predicts a row: the row as the last step sees it, the label, what is scored, probability."""
        scores, prepare, predictor = self._scores, guarded.prepare, guarded.last
        wanted = self.sink is not None and not self._regression
        wants_probability = scores.wants_probabilities or self._abstain or (wanted and gives_probabilities(predictor))
        learns, unfamiliar = self._learns, self.unfamiliar

        def predict(x: Any) -> tuple[Any, Any, Any, float | None]:
            if not learns:
                unfamiliar.add_row(x)
            seen = x if prepare is None else prepare(x)
            if not wants_probability:
                label = predictor.predict_one(seen)
                return seen, label, label, None
            probabilities = predictor.predict_proba_one(seen)
            label = predictor.predict_one(seen)
            probability = probabilities.get(label, max(probabilities.values(), default=None))
            if self._abstain and probability is not None and probability < self._abstain:
                label, self.abstained = None, self.abstained + 1
            return seen, label, scores.scored_of(label, probabilities), probability

        return predict

    def _most_together(self, last: int | None) -> int:
        most = super()._most_together(last)
        if self._scores.wants_probabilities:  # of all labels, which may be many
            most = min(most, max(_MOST_PROBABILITIES // max(len(getattr(self._guarded.last, "labels", ())), 1), 1))
        return most

    def _scored_labels(self, ys: list[Any]) -> list[Any] | None:
        """Return labels as they are scored where nothing is learned; None where one of them is refused."""
        try:
            if self._regression:
                return [None if y is None else checked_number(y) for y in ys]
            new = {y: self._labels.check(y) for y in set(ys) - {None}}
        except (RowError, TypeError):  # a TypeError of a label that is none
            return None
        for y, is_new in new.items():
            if self._scores.binary:
                self._admit_label(y)
            if is_new:
                self._labels.add(y)
        return ys

    def _admit_label(self, y: Any) -> None:
        """Raise a StreamError where a score cannot count rows with that label."""
        try:
            self._scores.admit(y)
        except ScoreError as error:
            raise StreamError(f"{self._row_place}: {error}") from error

    def _score_many(self, ys: list[Any], predicted: list[Any], probabilities: Columns | None) -> None:
        """Score predictions and watch them for drift, with the points of the curve that are due between them."""
        first, n = 0, len(ys)
        while first < n:
            point = self.curve.next_after(self.rows + first) - self.rows
            end = min(point, n)
            part = None if probabilities is None else {label: column[first:end] for label, column in probabilities.items()}
            self._scores.update_many(ys[first:end], predicted[first:end], part)
            if self.drift is not None:
                for i in range(first, end):
                    if ys[i] is not None:
                        self.drift.update(ys[i], predicted[i], self.rows + i)
            if end == point:
                self._add_point(self.rows + end)
            first = end

    def _add_point(self, rows: int) -> None:
        if (score := self._scores.first).counted:
            drifts = None if self.drift is None else self.drift.drifts
            self.curve.add(rows, score.value, score.windowed_value, self._best_guess(score), self._refusals.total, drifts)

    def _best_guess(self, score: Score) -> float:
        """Return what the best guess would have given, without the time that a report takes; NaN if there is none."""
        if (majority := score.majority) is not None:
            return majority[1]
        guesses = self._scores.reports()[0].guesses if self._regression else score.guesses
        best = max if getattr(score.metric, "bigger_is_better", False) else min
        return best((value for _, value in guesses if math.isfinite(value)), default=math.nan)

    def _check_end(self) -> None:
        if self.learned:
            return
        if not self.rows:
            raise StreamError(f"{self.source.name} has no rows: there is nothing to {'learn' if self._learns else 'score'}")
        end, done = f"{self.source.name} ended, and none of its {self.rows:,} rows", "learned" if self._learns else "scored"
        if self._weight is not None and self.rows > self.unlabelled + self._refusals.total:
            raise StreamError(f"{end} was learned: those with a label have the weight 0, in column {self._weight!r}")
        if self.refused:
            counted = ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items())
            raise StreamError(f"{end} was {done}: {self.unlabelled:,} had no label, and refused were {counted}")
        raise StreamError(
            f"{end} had a label: nothing was {done}. Is its name right? The last row had {listed(self._x, 10) or 'no features'}"
        )

    @property
    def _delayed_counts(self) -> Mapping[str, int] | None:
        return None

    def _take_all(self, chunk: Chunk) -> None:
        super()._take_all(chunk)
        if not (self.learned or self._warned or self._refusals.total) and self.unlabelled >= SETTLED:
            self._warned, done = True, "learned" if self._learns else "scored"
            text = (
                f"{self.source.name}: none of the first {self.rows:,} rows has a label, so nothing is {done}. Is its name right?"
            )
            warn(f"{text} The last row had {listed(self._x, 10) or 'no features'}")

    def _progress_now(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        reports = self._scores.reports()
        scores = *reports[0][:3], self._scores.first.window
        interrupted = ended and self._stopped
        counts = self.refused, self.unlabelled, self.empty, self._delayed_counts
        drifts = None if self.drift is None else self.drift.drifts
        now = self.rows, self.learned, rows_per_second, *scores, self.model, seconds
        return Progress(*now, ended, interrupted, *counts, drifts, self._scores.first.majority, reports, self.abstained)
