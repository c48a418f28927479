"""The last rows of a metric of river that is counts, of which many are counted at once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any


class CountedWindow:
    """A metric over the last rows: river's ``utils.Rolling`` for metrics that are a confusion matrix ``cm`` and nothing else.

    The labels of the last rows are held in two queues, which Python's garbage collector has not to look through as it has through
    a queue of pairs.

    >>> from river import metrics
    >>> windowed = CountedWindow(metrics.Accuracy(), size=2)
    >>> windowed.update(1, 0)
    >>> windowed.update_many([1, 0], [1, 0], {(1, 1): 1, (0, 0): 1})
    >>> windowed
    Accuracy: 100.00%
    """

    def __init__(self, metric: Any, size: int) -> None:
        self._metric, self._size = metric, size
        self._ys: deque[Any] = deque(maxlen=size)
        self._predicted: deque[Any] = deque(maxlen=size)

    def __repr__(self) -> str:
        return repr(self._metric)

    def __len__(self) -> int:
        return len(self._ys)

    def update(self, y: Any, predicted: Any) -> None:
        """Count a row: its label, and the one that was predicted."""
        if len(self._ys) == self._size:
            self._metric.revert(self._ys[0], self._predicted[0])
        self._metric.update(y, predicted)
        self._ys.append(y)
        self._predicted.append(predicted)

    def update_many(self, ys: Sequence[Any], predicted: Sequence[Any], pairs: Mapping[tuple[Any, Any], int]) -> None:
        """Count rows as `update` does one after the other; ``pairs`` are how often each pair of labels is among them."""
        count(self._metric.cm, pairs, 1)
        leaving = max(len(self._ys) + len(ys) - self._size, 0)
        gone = zip(chain(self._ys, ys), chain(self._predicted, predicted), strict=True)
        count(self._metric.cm, Counter(islice(gone, leaving)), -1)
        self._ys.extend(ys)
        self._predicted.extend(predicted)

    def get(self) -> float:
        """Return the metric."""
        value: float = self._metric.get()
        return value

    @property
    def columns(self) -> list[list[Any]]:
        """The labels of the last rows, and those that were predicted."""
        return [list(self._ys), list(self._predicted)]


def count(matrix: Any, pairs: Mapping[tuple[Any, Any], int], sign: int) -> None:
    """Change a confusion matrix of river as its ``update``, or with sign -1 its ``revert``, by counted pairs; sums are whole."""
    for (y, predicted), times in pairs.items():
        weight = float(sign * times)
        matrix.n_samples += sign * times
        matrix.data[y][predicted] += weight
        matrix.total_weight += weight
        matrix.sum_row[y] += weight
        matrix.sum_col[predicted] += weight
        if y == predicted:
            matrix._total_true_positives += weight
