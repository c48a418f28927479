"""The metrics of a run, whose first one is the main score, and metrics that are tables of labels."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.files.river_metrics import metrics
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.scores.base import Baselines, PositiveLabels, ProbabilityColumns, Score, ScoreReport, TableScore
from streamsvm.stream.scores.probability_scores import PROBABILITY_SCORES, Calibration
from streamsvm.stream.scores.river_score import BASELINE_METRICS, RiverScore, TargetBaselines

_MAX_LABELS = 100  # labels that are counted separately
_MAX_SHOWN_LABELS = 12
_OTHERS = "(others)"


class LabelTable(TableScore):
    """Base class of tables of predicted labels by true label.

    The first 100 labels are counted separately. The 12 most frequent ones are shown, and all others summed up.
    """

    _saved_attributes = ("_labels", "_pairs")

    def __init__(self, window: int) -> None:
        super().__init__(window)
        # By the numbers of the true and the predicted label; 0 stands for further labels.
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._labels: dict[Any, int] = {}

    def _number_label(self, label: Any) -> int:
        """Return the number that identifies a label in this confusion matrix: 1 for the first label, 2 for the next, and so on.
        All labels after the first 100 share the number 0.
        """
        number = self._labels.get(label)
        if number is None:
            if len(self._labels) >= _MAX_LABELS:
                return 0
            number = self._labels[label] = len(self._labels) + 1
        return number

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        for (y, label), count in Counter(zip(ys, predicted, strict=True)).items():  # by first occurrence
            if label is not None:
                self._pairs[self._number_label(y), self._number_label(label)] += count

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return bool(self._pairs)

    def _choose_labels(self) -> tuple[list[int], dict[int, Any]]:
        """Choose the labels to show in the confusion matrix: the 12 most frequent ones. Returns a list of their numbers, and a
        dict from number to label for all labels.
        """
        rows: Counter[int] = Counter()
        for (y, _), count in list(self._pairs.items()):
            rows[y] += count
        labels = {number: label for label, number in list(self._labels.items())}
        order = sorted(labels, key=lambda number: (-rows[number], number))
        return order[:_MAX_SHOWN_LABELS], labels


class ConfusionMatrix(LabelTable):
    """The confusion matrix: how often each label was predicted for the rows of each true label.

    >>> score = ConfusionMatrix(window=10)
    >>> score.update_many(["ham", "ham", "spam"], ["ham", "spam", "spam"])
    >>> score.table
    [['true label', 'as ham', 'as spam'], ['ham', 1, 1], ['spam', 0, 1]]
    """

    @property
    def table(self) -> list[list[Any]]:  # type: ignore[override]
        shown, labels = self._choose_labels()
        positions = {number: i for i, number in enumerate(shown)}
        names = [labels[number] for number in shown]
        pairs = list(self._pairs.items())
        if any(not {y, predicted} <= positions.keys() for (y, predicted), _ in pairs):
            names.append(_OTHERS)
        counts = [[0] * len(names) for _ in names]
        for (y, predicted), count in pairs:
            counts[positions.get(y, len(shown))][positions.get(predicted, len(shown))] += count
        rows = [[_to_json_label(name), *row] for name, row in zip(names, counts, strict=True)]
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
    def table(self) -> list[list[Any]]:  # type: ignore[override]
        shown, labels = self._choose_labels()
        correct: Counter[int] = Counter()
        predictions: Counter[int] = Counter()
        rows: Counter[int] = Counter()
        for (y, predicted), count in list(self._pairs.items()):
            rows[y] += count
            predictions[predicted] += count
            correct[y] += count * (y == predicted and y > 0)

        def compute_row(*numbers: int) -> tuple[float, float, float, int]:
            counters = correct, predictions, rows
            n_correct, n_predicted, n_rows = (sum(counter[number] for number in numbers) for counter in counters)
            precision, recall = n_correct / max(n_predicted, 1), n_correct / max(n_rows, 1)
            return precision, recall, 2 * n_correct / max(n_predicted + n_rows, 1), n_rows

        total, label_rows = rows.total(), [compute_row(number) for number in labels]
        table: list[list[Any]] = [["label", "precision", "recall", "F1", "rows"]]
        table += [[_to_json_label(labels[number]), *compute_row(number)] for number in shown]
        if other_numbers := (rows.keys() | predictions.keys()) - set(shown):
            table.append([_OTHERS, *compute_row(*other_numbers)])
        if label_rows:
            n = len(label_rows)
            table.append(["mean of labels", *(sum(row[i] for row in label_rows) / n for i in range(3)), total])
            weighted_means = (sum(row[i] * row[3] for row in label_rows) / max(total, 1) for i in range(3))
            table.append(["mean of rows", *weighted_means, total])
        return table


def _to_json_label(label: Hashable) -> Any:
    """Return a label unchanged if it is a bool, integer or text, and otherwise as text, for JSON."""
    return label if type(label) in (bool, int, str) else str(label)


def split_metrics(text: str) -> list[str]:
    """Split the repr of a `ScoreSet` into those of its metrics.

    >>> split_metrics("F1(window=9, positive='a, b'), ConfusionMatrix()")
    ["F1(window=9, positive='a, b')", 'ConfusionMatrix()']
    """
    return re.split(r"(?<=\)), (?=\w+\()", text)


def without_window(name: str) -> str:
    """Return the repr of a metric without the number of rows of its window, which may differ when a run continues."""
    return re.sub(r"\bwindow=\d+", "", name)


_MAX_SCORES = 20
_VALUE = operator.itemgetter(1)
_MAX_PENDING_ROWS = 1000  # rows that are buffered before they are added to the scores
#: Metrics that are tables, by name.
TABLES: dict[str, type[TableScore]] = {kind.__name__: kind for kind in (ConfusionMatrix, ClassificationReport, Calibration)}


class ScoreSet:
    """The metrics of a run.

    ``metric`` is a metric of river, the name of one, or a sequence of these; None is accuracy, or MAE for a ``regression``. Names
    are those of `PROBABILITY_SCORES`, `TABLES`, and metrics of river without parameters. The first metric must be a number.
    ``positive`` is the positive label, for metrics that have one, and ``multiclass`` allows more than two labels. Raises
    ValueError if a metric is unknown or does not fit.
    """

    def __init__(
        self, metric: Any, window: int, positive: Hashable = None, multiclass: bool = False, regression: bool = False
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        if metric is None:
            metric = "MAE" if regression else "Accuracy"
        requested = list(metric) if isinstance(metric, list | tuple) else [metric]
        if not 0 < len(requested) <= _MAX_SCORES:
            raise ValueError(f"there must be from 1 to {_MAX_SCORES} metrics, not {len(requested)}")
        self.scores: list[Score] = [_make_score(metric, window, positive, regression) for metric in requested]
        self.first: Score = self.scores[0]
        names = [score.name for score in self.scores]
        if self.first.table is not None:
            raise ValueError(f"{self.first.name} is a table: name a metric that is one number before it: Accuracy,{names[0]}")
        reprs = list(map(repr, self.scores))
        if len(set(reprs)) < len(reprs):
            raise ValueError(f"{', '.join(names)}: a metric is named twice")
        #: Whether the user may specify a positive label.
        self.accepts_positive_label: bool = any(score.accepts_positive_label for score in self.scores)
        if positive is not None and not self.accepts_positive_label:
            verb = "treat" if len(names) > 1 else "treats"
            raise ValueError(f"{', '.join(names)} {verb} all labels alike: leave --positive out (positive=...)")
        binary_score = next((score for score in self.scores if score.is_binary), None)
        #: Whether a metric distinguishes a positive label: then labels must be checked before they are scored.
        self.is_binary: bool = binary_score is not None
        self.labels: PositiveLabels = PositiveLabels("" if binary_score is None else binary_score.name, positive, multiclass)
        self._key_baseline = f"the {'last target' if regression else 'previous label'} of the key"
        self._baselines = TargetBaselines() if any(type(score.metric) in BASELINE_METRICS for score in self.scores) else None
        probability_scores = [score for score in self.scores if not score.uses_predicted_labels]
        #: Name of a metric that needs probabilities, or "".
        self.probability_metric: str = probability_scores[0].name if probability_scores else ""
        self._rows: list[tuple[Any, Any, Any]] = []  # pending rows: label, predicted label, probabilities

    def __repr__(self) -> str:
        """Format all scores; score sets with the same repr can resume from each other's saved state."""
        return ", ".join(map(repr, self.scores))

    def update(self, y: Any, label: Any, probabilities: Mapping[Any, float] | None = None) -> None:
        """Update all metrics with a row: its true label ``y``, its predicted ``label``, and the predicted ``probabilities`` by
        label, or None. Rows are collected, and added to the metrics 1,000 at a time, or by `flush`.
        """
        self._rows.append((y, label, probabilities))
        if len(self._rows) >= _MAX_PENDING_ROWS:
            self.flush()

    def flush(self) -> None:
        """Add the collected rows to all metrics now. The final values of the metrics do not depend on when this is called."""
        rows, self._rows = self._rows, []
        for names, group in itertools.groupby(rows, lambda row: tuple(row[2] or ())):
            ys, labels, probabilities = map(list, zip(*group, strict=True))
            self.update_many(ys, labels, {name: np.array([row[name] for row in probabilities], float) for name in names})

    def update_many(self, ys: Sequence[Any], labels: Sequence[Any], probabilities: ProbabilityColumns | None = None) -> None:
        """Update all metrics with many rows, in order: their true labels ``ys`` (rows with None are skipped), their predicted
        ``labels``, and their probabilities, float64 [rows] for each label, which may be None if no metric uses them.
        """
        if self._rows:
            self.flush()
        if None in ys:
            indices = [i for i, y in enumerate(ys) if y is not None]
            ys, labels = [ys[i] for i in indices], [labels[i] for i in indices]
            probabilities = {label: column[indices] for label, column in (probabilities or {}).items()}
        if self._baselines is not None:
            for y, label in zip(ys, labels, strict=True):
                if label is not None:
                    self._baselines.update(y)
        for score in self.scores:
            score.update_many(ys, labels if score.uses_predicted_labels else probabilities or {})

    def update_keys(self, ys: Sequence[Any], labels: Sequence[Any], key_labels: Sequence[Any]) -> None:
        """Update the baseline of keys with rows that `update_many` gets, too: their true labels ``ys``, predicted ``labels``, and
        ``key_labels``, the previous labels or targets of their keys (empty without keys). Rows for which one of the three is None
        are skipped.
        """
        predicted = [None if y is None or label is None else last for y, label, last in zip(ys, labels, key_labels, strict=False)]
        for score in self.scores if predicted else ():
            if score.key_score is not None:
                score.key_score.update_many(ys, predicted)

    @property
    def state(self) -> dict[str, Any]:
        """The state of all metrics and baselines as a dict, for a checkpoint."""
        baselines = None if self._baselines is None else self._baselines.state
        return {"scores": [score.state for score in self.scores], "guesses": baselines}

    def resume(self, state: Any, metrics: str | None = None) -> list[str]:
        """Resume the metrics and baselines from a saved `state` of the ``metrics`` with this repr (None: of the same). A metric
        with another window continues with the last rows that are there. Return a text about each metric that is new, changed or
        dropped. Raise a CheckpointError if the state is invalid.
        """
        texts = []
        try:
            names = split_metrics(repr(self) if metrics is None else metrics)
            saved = {without_window(name): (name, saved) for name, saved in zip(names, state["scores"], strict=True)}
            for score in self.scores:
                name, score_state = saved.pop(without_window(repr(score)), ("", None))
                if not name:
                    texts.append(f"{score!r} is new")
                    continue
                if name != repr(score):
                    texts.append(f"{name} is now {score!r}")
                    score_state = score.resize_window(score_state)
                score.resume(score_state)
            if self._baselines is not None and state["guesses"] is not None:
                self._baselines.resume(state["guesses"])
            self.make_reports()
        except Exception as error:  # a forged state can cause any error
            text = f"the checkpoint's scores are not what was written ({error})"
            raise CheckpointError(f"{text}. To continue with its model, and new scores, give another --metric") from error
        return [*texts, *(f"{name} is not computed any more" for name, _ in saved.values())]

    def make_reports(self) -> tuple[ScoreReport, ...]:
        """Return the current value of each metric with its baselines, as a tuple of `ScoreReport`; the values are NaN before the
        first row.
        """
        reports = []
        for score in self.scores:
            values = (score.value, score.windowed_value) if score.has_rows else (math.nan, math.nan)
            baselines, windowed = (self._rank_baselines(score, is_windowed) for is_windowed in (False, True))
            reports.append(ScoreReport(score.name, *values, baselines, score.table, windowed))
        return tuple(reports)

    def find_best_baseline(self, is_windowed: bool) -> float:
        """Return the value of the first metric for its best baseline, such as always predicting the most frequent label, over all
        rows or over the last ``window`` rows; NaN without a baseline. It is faster than `make_reports`.
        """
        ranking = self._rank_baselines(self.first, is_windowed)
        return ranking[0][1] if ranking else math.nan

    def _rank_baselines(self, score: Score, is_windowed: bool) -> Baselines:
        """Return the baselines of the metric ``score`` over all rows or over the last ones, as pairs of a name and the value of
        the metric for this baseline, the best one first. Undefined values are left out.
        """
        if self._baselines is not None and not is_windowed:
            baselines = self._baselines.compute_values(score.metric)
        else:
            baselines = score.compute_baselines(is_windowed)
        if (key_score := score.key_score) is not None and key_score.has_rows:
            baselines += ((self._key_baseline, key_score.windowed_value if is_windowed else key_score.value),)
        is_bigger_better = getattr(score.metric, "bigger_is_better", False)  # metrics without it have a single baseline
        finite = [pair for pair in baselines if math.isfinite(pair[1])]
        return tuple(sorted(finite, key=_VALUE, reverse=is_bigger_better) if len(finite) > 1 else finite)


def _make_score(metric: Any, window: int, positive: Hashable, regression: bool) -> Score:
    """Make the object that computes a metric over all rows and over the last ``window`` rows. ``metric`` is a river metric or the
    name of a metric; ``positive`` is the positive label, or None. Raises ValueError if the name is unknown, or if the metric does
    not fit the task: a ``regression`` or a classification.
    """
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
        river_metric = kind()
    except TypeError as error:
        raise ValueError(f"{metric} needs parameters: give river's metrics.{metric}(...) ({error})") from None
    return RiverScore(river_metric, window, positive, regression)
