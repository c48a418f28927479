"""Tables of true and predicted labels: a confusion matrix, and a report of precision and recall by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from streamsvm.files.container import check_hashes
from streamsvm.stream.scores.base import State, TableScore

_MOST_KEPT = 100  # labels that are told apart
_MOST_SHOWN = 12
_OTHERS = "(others)"
_MOST_ROWS = 2**53


class LabelTable(TableScore):
    """The base of tables of how often each label was predicted for each true one.

    The first 100 labels are told apart. The 12 with most rows are shown, the others are summed up.
    """

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

    def update(self, y: Any, predicted: Any) -> None:
        if predicted is not None:
            self._pairs[self._number_of(y), self._number_of(predicted)] += 1

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        for y, label in zip(ys, predicted, strict=True):
            self.update(y, label)

    @property
    def counted(self) -> bool:
        return bool(self._pairs)

    @property
    def state(self) -> State:
        return {"labels": list(self._labels), "pairs": [[*pair, times] for pair, times in self._pairs.items()]}, None, 0

    def resume(self, sums: Any, last: Any, rows_anew: Any) -> None:
        try:
            if type(sums) is not dict or sums.keys() != {"labels", "pairs"} or last is not None or rows_anew != 0:
                raise ValueError
            labels, pairs = sums["labels"], sums["pairs"]
            if type(labels) is not list or len(labels) > _MOST_KEPT or type(pairs) is not list:
                raise ValueError
            check_hashes(labels)
            numbers = {label: number for number, label in enumerate(labels, 1)}
            if len(numbers) < len(labels) or not all(_is_pair(pair, len(labels)) for pair in pairs):
                raise ValueError
            found = Counter({(y, predicted): times for y, predicted, times in pairs})
            if len(found) < len(pairs):
                raise ValueError
        except (TypeError, ValueError):
            raise self._corrupt_error() from None
        self._pairs, self._labels = found, numbers

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
        given: Counter[int] = Counter()
        rows: Counter[int] = Counter()
        for (y, predicted), times in list(self._pairs.items()):
            rows[y] += times
            given[predicted] += times
            right[y] += times * (y == predicted and y > 0)

        def line(*numbers: int) -> tuple[float, float, float, int]:
            n_right, n_given, n_rows = (sum(each[number] for number in numbers) for each in (right, given, rows))
            precision, recall = n_right / max(n_given, 1), n_right / max(n_rows, 1)
            return precision, recall, 2 * n_right / max(n_given + n_rows, 1), n_rows

        total, every = rows.total(), [line(number) for number in labels]
        table: list[list[Any]] = [["label", "precision", "recall", "F1", "rows"]]
        table += [[_json_label(labels[number]), *line(number)] for number in shown]
        if others := (rows.keys() | given.keys()) - set(shown):
            table.append([_OTHERS, *line(*others)])
        if every:
            n = len(every)
            table.append(["mean of labels", *(sum(each[i] for each in every) / n for i in range(3)), total])
            table.append(["mean of rows", *(sum(each[i] * each[3] for each in every) / max(total, 1) for i in range(3)), total])
        return table


def _json_label(label: Hashable) -> Any:
    """Return a label as JSON holds it."""
    return label if type(label) in (bool, int, str) else str(label)


def _is_pair(found: Any, most: int) -> bool:
    if type(found) is not list or not all(type(number) is int for number in found) or len(found) != 3:
        return False
    return all(0 <= number <= most for number in found[:2]) and 0 < found[2] < _MOST_ROWS
