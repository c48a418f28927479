"""A table of how often predictions are right, by how probable they were said to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsvm.stream.scores.base import Columns, State, TableScore

_BINS = 10
_UNITS = 2**20  # of a probability: whole numbers, so that a sum does not depend on the order of its parts
_MOST_ROWS = 2**42


class Calibration(TableScore):
    """How often the most probable label is right, by its probability, in ten bins: expected is the mean probability there.

    Of a calibrated model, both are equal but for chance (Niculescu-Mizil and Caruana 2005, Predicting good probabilities with
    supervised learning, section 4: reliability diagrams). A probability that is NaN counts as 0.

    >>> score = Calibration(window=10)
    >>> score.update_many(["ham", "ham", "spam"], {"ham": [0.95, 0.7, 0.6], "spam": [0.05, 0.3, 0.4]})
    >>> for name, *numbers in score.table[1:]:
    ...     print([name, *(round(number, 2) for number in numbers)])
    ['0.6 to 0.7', 0.6, 0.0, 1]
    ['0.7 to 0.8', 0.7, 1.0, 1]
    ['0.9 to 1', 0.95, 1.0, 1]
    ['all', 0.75, 0.67, 3]
    """

    wants_labels: bool = False

    def __init__(self, window: int) -> None:
        super().__init__(window)
        # Of each bin: rows, the sum of their probabilities in units, and rows whose label is right.
        self._sums = np.zeros((3, _BINS), np.int64)

    def update(self, y: Any, predicted: Any) -> None:
        if predicted:
            self.update_many([y], {label: np.array([p]) for label, p in predicted.items()})

    def update_many(self, ys: Sequence[Any], predicted: Columns) -> None:
        if not predicted:
            return
        labels = list(predicted)
        p = np.nan_to_num(np.clip(np.array(list(predicted.values()), np.float64), 0.0, 1.0), nan=0.0)
        best = p.argmax(axis=0)
        highest = p[best, np.arange(p.shape[1])]
        right = np.fromiter((labels[i] == y for i, y in zip(best.tolist(), ys, strict=True)), bool, len(ys))
        bins = np.minimum((highest * _BINS + 1e-9).astype(np.int64), _BINS - 1)
        for sums, weights in zip(self._sums, (None, np.rint(highest * _UNITS), right), strict=True):
            sums += np.bincount(bins, weights, _BINS).astype(np.int64)

    @property
    def counted(self) -> bool:
        return bool(self._sums[0].any())

    @property
    def table(self) -> list[list[Any]]:
        table: list[list[Any]] = [["probability", "expected", "right", "rows"]]
        for number, (rows, of_all, right) in enumerate(self._sums.T.tolist()):
            if rows:
                name = f"{number / _BINS:g} to {(number + 1) / _BINS:g}"
                table.append([name, of_all / _UNITS / rows, right / rows, rows])
        rows, of_all, right = self._sums.sum(axis=1).tolist()
        return [*table, ["all", of_all / _UNITS / rows, right / rows, rows]] if rows else table

    @property
    def state(self) -> State:
        return self._sums.copy(), None, 0

    def resume(self, sums: Any, last: Any, rows_anew: Any) -> None:
        good = isinstance(sums, np.ndarray) and sums.dtype == np.int64 and sums.shape == self._sums.shape
        if not good or last is not None or type(rows_anew) is not int or rows_anew:
            raise self._refuse()
        rows = sums[0]
        if not ((sums >= 0).all() and (rows < _MOST_ROWS).all() and (sums[1:] <= rows * np.array([[_UNITS], [1]])).all()):
            raise self._refuse()
        self._sums = sums.copy()
