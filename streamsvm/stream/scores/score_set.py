"""The scores of a run: the first one is the score of the loop, others are told beside it; and tables of labels among them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.files.river_metrics import metrics
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.scores.base import PositiveLabels, ProbabilityColumns, Score, ScoreReport, TableScore
from streamsvm.stream.scores.probability_scores import PROBABILITY_SCORES, Calibration
from streamsvm.stream.scores.river_score import BASELINE_METRICS, RiverScore, TargetBaselines

_MOST_KEPT = 100  # labels that are told apart
_MOST_SHOWN = 12
_OTHERS = "(others)"


class LabelTable(TableScore):
    """The base of tables of how often each label was predicted for each true one.

    The first 100 labels are told apart. The 12 with most rows are shown, the others are summed up.
    """

    _saved_attributes = ("_labels", "_pairs")

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self._pairs: Counter[tuple[int, int]] = Counter()  # of numbers of labels; 0 are all beyond
        self._labels: dict[Any, int] = {}

    def _number_of(self, label: Any) -> int:
        number = self._labels.get(label)
        if number is None:
            if len(self._labels) >= _MOST_KEPT:
                return 0
            number = self._labels[label] = len(self._labels) + 1
        return number

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        for (y, label), times in Counter(zip(ys, predicted, strict=True)).items():  # in the order in which they came first
            if label is not None:
                self._pairs[self._number_of(y), self._number_of(label)] += times

    @property
    def has_rows(self) -> bool:
        return bool(self._pairs)

    def _shown_labels(self) -> tuple[list[int], dict[int, Any]]:
        """Return the numbers of the labels that are shown, those with most rows first; and all labels by number."""
        rows: Counter[int] = Counter()
        for (y, _), times in list(self._pairs.items()):
            rows[y] += times
        labels = {number: label for label, number in list(self._labels.items())}
        order = sorted(labels, key=lambda number: (-rows[number], number))
        return order[:_MOST_SHOWN], labels


class ConfusionMatrix(LabelTable):
    """How often each label was predicted for the rows of each true label.

    >>> score = ConfusionMatrix(window=10)
    >>> score.update_many(["ham", "ham", "spam"], ["ham", "spam", "spam"])
    >>> score.table
    [['true label', 'as ham', 'as spam'], ['ham', 1, 1], ['spam', 0, 1]]
    """

    @property
    def table(self) -> list[list[Any]]:
        shown, labels = self._shown_labels()
        place = {number: i for i, number in enumerate(shown)}
        names = [labels[number] for number in shown]
        pairs = list(self._pairs.items())
        if any(not {y, predicted} <= place.keys() for (y, predicted), _ in pairs):
            names.append(_OTHERS)
        counts = [[0] * len(names) for _ in names]
        for (y, predicted), times in pairs:
            counts[place.get(y, len(shown))][place.get(predicted, len(shown))] += times
        rows = [[_json_label(name), *row] for name, row in zip(names, counts, strict=True)]
        return [["true label", *(f"as {name}" for name in names)], *rows]


class ClassificationReport(LabelTable):
    """Precision, recall and F1 of each label, with the number of its rows, and their means.

    >>> score = ClassificationReport(window=10)
    >>> score.update_many(["ham", "ham", "spam"], ["ham", "spam", "spam"])
    >>> for row in score.table:
    ...     print(row)
    ['label', 'precision', 'recall', 'F1', 'rows']
    ['ham', 1.0, 0.5, 0.6666666666666666, 2]
    ['spam', 0.5, 1.0, 0.6666666666666666, 1]
    ['mean of labels', 0.75, 0.75, 0.6666666666666666, 3]
    ['mean of rows', 0.8333333333333334, 0.6666666666666666, 0.6666666666666666, 3]
    """

    @property
    def table(self) -> list[list[Any]]:
        shown, labels = self._shown_labels()
        right: Counter[int] = Counter()
        called: Counter[int] = Counter()
        rows: Counter[int] = Counter()
        for (y, predicted), times in list(self._pairs.items()):
            rows[y] += times
            called[predicted] += times
            right[y] += times * (y == predicted and y > 0)

        def line(*numbers: int) -> tuple[float, float, float, int]:
            n_right, n_called, n_rows = (sum(figures[number] for number in numbers) for figures in (right, called, rows))
            precision, recall = n_right / max(n_called, 1), n_right / max(n_rows, 1)
            return precision, recall, 2 * n_right / max(n_called + n_rows, 1), n_rows

        total, every = rows.total(), [line(number) for number in labels]
        table: list[list[Any]] = [["label", "precision", "recall", "F1", "rows"]]
        table += [[_json_label(labels[number]), *line(number)] for number in shown]
        if others := (rows.keys() | called.keys()) - set(shown):
            table.append([_OTHERS, *line(*others)])
        if every:
            n = len(every)
            table.append(["mean of labels", *(sum(row[i] for row in every) / n for i in range(3)), total])
            table.append(["mean of rows", *(sum(row[i] * row[3] for row in every) / max(total, 1) for i in range(3)), total])
        return table


def _json_label(label: Hashable) -> Any:
    return label if type(label) in (bool, int, str) else str(label)


_MOST_SCORES = 20
_MAX_ROWS_WAITING = 1000  # before they are counted
#: The tables by name.
TABLES: dict[str, type[TableScore]] = {kind.__name__: kind for kind in (ConfusionMatrix, ClassificationReport, Calibration)}


class ScoreSet:
    """The scores of a run.

    ``metric`` is a metric of river, a name, or several of these; None is accuracy, or for a ``regression`` MAE. Names are those
    of `PROBABILITY_SCORES`, `TABLES` and metrics of river without parameters. The first one is one number. ``positive`` is
    the positive label of those that have one, and ``multiclass`` says whether there may be more than two labels. A ValueError
    says which metric is none, or for the other kind of models.
    """

    def __init__(
        self, metric: Any, window: int, positive: Hashable = None, multiclass: bool = False, regression: bool = False
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        if metric is None:
            metric = "MAE" if regression else "Accuracy"
        named = list(metric) if isinstance(metric, list | tuple) else [metric]
        if not 0 < len(named) <= _MOST_SCORES:
            raise ValueError(f"there must be from 1 to {_MOST_SCORES} metrics, not {len(named)}")
        self.all: list[Score] = [_score_of(one, window, positive, regression) for one in named]
        self.first: Score = self.all[0]
        names = [score.name for score in self.all]
        if self.first.table is not None:
            raise ValueError(f"{self.first.name} is a table: name a metric that is one number before it: Accuracy,{names[0]}")
        described = list(map(repr, self.all))
        if len(set(described)) < len(described):
            raise ValueError(f"{', '.join(names)}: a metric stands there twice")
        #: Whether a positive label can be named.
        self.accepts_positive_label: bool = any(score.accepts_positive_label for score in self.all)
        if positive is not None and not self.accepts_positive_label:
            treats = "treat" if len(names) > 1 else "treats"
            raise ValueError(f"{', '.join(names)} {treats} all labels alike, there is no positive one to name")
        binary = next((score for score in self.all if score.binary), None)
        #: Whether a label is the positive one, for a score at least: then labels must be admitted before they are counted.
        self.binary: bool = binary is not None
        self.labels: PositiveLabels = PositiveLabels("" if binary is None else binary.name, positive, multiclass)
        self._guesses = TargetBaselines() if any(type(score.metric) in BASELINE_METRICS for score in self.all) else None
        wanting = [score for score in self.all if not score.uses_predicted_labels]
        #: The name of a score that takes probabilities; "": none does.
        self.wants_probabilities: str = wanting[0].name if wanting else ""
        self._rows: list[tuple[Any, Any, Any]] = []  # that are not counted yet: label, predicted label, probabilities
        self._n_first = 0  # of these rows, those that the first score has counted

    def __repr__(self) -> str:
        """The scores, with parameters, window and positive label: equal for those that may continue each other."""
        return ", ".join(map(repr, self.all))

    def update(self, y: Any, label: Any, probabilities: Mapping[Any, float] | None = None) -> None:
        """Take a row, which `flush` will count: its label, the predicted one, and the probabilities of all labels."""
        self._rows.append((y, label, probabilities))
        if len(self._rows) >= _MAX_ROWS_WAITING:
            self.flush()

    def flush(self) -> None:
        """Count the rows that `update` has taken. Values do not depend on when this is done."""
        self.flush_first()
        rows, self._rows, self._n_first = self._rows, [], 0
        _count_rows(self.all[1:], rows)

    def flush_first(self) -> None:
        """Count these rows in the first score alone, whose value is needed more often."""
        if self._n_first == len(self._rows):
            return
        rows, self._n_first = self._rows[self._n_first :], len(self._rows)
        _count_rows(self.all[:1], rows)
        if self._guesses is not None:
            for y, label, _ in rows:
                if label is not None:
                    self._guesses.update(y)

    def update_many(self, ys: Sequence[Any], labels: Sequence[Any], probabilities: ProbabilityColumns | None = None) -> None:
        """Count rows in their order, those without a label (None) left out."""
        if self._rows:
            self.flush()
        if None in ys:
            labelled = [i for i, y in enumerate(ys) if y is not None]
            ys, labels = [ys[i] for i in labelled], [labels[i] for i in labelled]
            probabilities = {label: column[labelled] for label, column in (probabilities or {}).items()}
        if self._guesses is not None:
            for y, label in zip(ys, labels, strict=True):
                if label is not None:
                    self._guesses.update(y)
        for score in self.all:
            score.update_many(ys, labels if score.uses_predicted_labels else probabilities or {})

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves: that of each score, and of guesses."""
        return {"scores": [score.state for score in self.all], "guesses": None if self._guesses is None else self._guesses.state}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`; CheckpointError if it is none of such scores."""
        try:
            for score, saved in zip(self.all, state["scores"], strict=True):
                score.resume(saved)
            if self._guesses is not None:
                self._guesses.resume(state["guesses"])
            self.reports()
        except Exception as error:  # whatever a state that somebody has written leads to
            raise CheckpointError(f"the checkpoint's scores are not what was written ({error}): give another folder") from error

    def reports(self) -> tuple[ScoreReport, ...]:
        """Return what each score says."""
        reports = []
        for score in self.all:
            values = (score.value, score.windowed_value) if score.has_rows else (math.nan, math.nan)
            guesses: tuple[tuple[str, float], ...] = ()
            if score.has_rows:
                guesses = score.baselines if self._guesses is None else self._guesses.of(score.metric)
            reports.append(ScoreReport(score.name, *values, guesses, score.table))
        return tuple(reports)

    @property
    def best_baseline(self) -> float:
        """The first score of the best guess, or NaN; this takes less time than reports."""
        if (majority := self.first.majority) is not None:
            return majority[1]
        guesses = self.first.baselines if self._guesses is None else self._guesses.of(self.first.metric)
        best = max if getattr(self.first.metric, "bigger_is_better", False) else min
        return best((value for _, value in guesses if math.isfinite(value)), default=math.nan)


def _count_rows(scores: Sequence[Score], rows: Sequence[tuple[Any, Any, Any]]) -> None:
    """Count rows, each with its label, predicted label and probabilities, in some scores."""
    if not (scores and rows):
        return
    ys, labels = [row[0] for row in rows], [row[1] for row in rows]
    for score in scores:
        if score.uses_predicted_labels:
            score.update_many(ys, labels)
    if all(score.uses_predicted_labels for score in scores):
        return
    for names, part in itertools.groupby(rows, lambda row: tuple(row[2] or ())):
        ys, _, chances = map(list, zip(*part, strict=True))
        columns = {name: np.array([row[name] for row in chances], float) for name in names}
        for score in scores:
            if not score.uses_predicted_labels:
                score.update_many(ys, columns)


def _score_of(metric: Any, window: int, positive: Hashable, regression: bool) -> Score:
    if not isinstance(metric, str):
        return RiverScore(metric, window, positive, regression)
    if not regression and metric in PROBABILITY_SCORES:
        return PROBABILITY_SCORES[metric](window, positive)
    if not regression and metric in TABLES:
        return TABLES[metric](window)
    kind = getattr(metrics, metric, None)
    if not isinstance(kind, type) or not issubclass(kind, metrics.base.Metric):
        names = "MAE, RMSE or R2" if regression else "Accuracy, F1, ROCAUC, AveragePrecision, LogLoss or BrierScore"
        raise ValueError(f"{metric!r} is not the name of a metric; try {names}")
    try:
        made = kind()
    except TypeError as error:
        raise ValueError(f"{metric} needs parameters: give river's metrics.{metric}(...) ({error})") from None
    return RiverScore(made, window, positive, regression)
