"""What guesses would have given on the same rows: of labels their shares so far, of numbers the mean or the last one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamsvm.files.container import check_hashes
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.rows import MOST_LABELS


class LabelShares:
    """The loss of a guess: before each row, the shares of the labels that have come are the probabilities of its label.

    Each label counts as one row more (Laplace's rule of succession), also the one that is to come, so that none has the
    probability 0. Of 4,096 labels on, further ones are one.

    >>> shares = LabelShares()
    >>> shares.add_many(["a", "a", "b"], lambda p, squares: 1.0 - p)
    >>> round(shares.loss, 3)  # of 1/2, 2/3 and 1/4
    1.583
    """

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}
        self._rows, self._squares = 0, 0.0  # the sum of the squares of the counts
        self.loss: float = 0.0

    def add(self, y: Any, loss_of: Callable[[float, float], float]) -> None:
        """Count a row by its label; ``loss_of`` is the loss by its probability and the sum of the squares of all."""
        counts, n = self._counts, self._rows
        if y not in counts and len(counts) >= MOST_LABELS:
            y = None
        times = counts.get(y, 0)
        k = max(len(counts) + (not times), 2)
        self.loss += loss_of((times + 1) / (n + k), (self._squares + (2 * n + k)) / (float(n + k) * float(n + k)))
        counts[y] = times + 1
        self._squares += 2.0 * times + 1.0
        self._rows = n + 1

    def add_many(self, ys: Sequence[Any], losses_of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Count rows as `add` does one after the other; ``losses_of`` gives the losses of many."""
        if not len(ys):
            return
        counts, known = self._counts, len(self._counts)
        for y in ys if not counts.keys() >= set(ys) else ():
            if y not in counts:
                counts[y if len(counts) < MOST_LABELS else None] = 0
        numbers = {y: number for number, y in enumerate(counts)}
        beyond = numbers.get(None, -1)
        codes = np.array([numbers.get(y, beyond) for y in ys], np.intp)
        # How often the label of each row was there before: in earlier calls, and in this one.
        before = np.array(list(counts.values()), np.int64)
        order = np.argsort(codes, kind="stable")
        of_each = np.bincount(codes, minlength=len(before))
        times = np.empty(len(ys), np.int64)
        times[order] = np.arange(len(ys)) - np.repeat(np.cumsum(of_each) - of_each, of_each)
        times += before[codes]
        n = self._rows + np.arange(len(ys))
        k = np.maximum(known + np.cumsum((times == 0) & (codes >= known)), 2)
        squares = np.cumsum(np.concatenate(([self._squares], 2.0 * times + 1.0)))
        total = (n + k).astype(np.float64)
        losses = losses_of((times + 1) / total, (squares[:-1] + (2 * n + k)) / (total * total))
        self.loss = float(np.cumsum(np.concatenate(([self.loss], losses)))[-1])
        self._rows, self._squares = self._rows + len(ys), float(squares[-1])
        self._counts = dict(zip(counts, (before + of_each).tolist(), strict=True))

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves."""
        return {"labels": list(self._counts), "counts": list(self._counts.values()), "loss": self.loss}

    def resume(self, state: Any, rows: int, most: float) -> None:
        """Go on from a saved `state` of so many rows, with this largest loss; ValueError if it is none."""
        if type(state) is not dict or state.keys() != {"labels", "counts", "loss"}:
            raise ValueError("there are no shares of labels")
        labels, counts, loss = state["labels"], state["counts"], state["loss"]
        if type(labels) is not list or type(counts) is not list or len(labels) != len(counts) or len(labels) > MOST_LABELS + 1:
            raise ValueError("labels have no counts")
        if not all(type(times) is int and times > 0 for times in counts) or sum(counts) != rows:
            raise ValueError("counts of labels are none")
        if type(loss) is not float or not 0.0 <= loss <= 1.01 * most * rows:
            raise ValueError("the loss is none")
        try:
            check_hashes(labels)
            self._counts = dict(zip(labels, counts, strict=True))
        except TypeError:
            raise ValueError("labels cannot be compared") from None
        if len(self._counts) < len(labels):
            raise ValueError("a label stands there twice")
        self._rows, self._squares, self.loss = rows, float(sum(times * times for times in counts)), loss


#: The metrics for which there is a guess.
GUESSED: tuple[Any, ...] = (metrics.MAE, metrics.MSE, metrics.RMSE, metrics.R2)
_FIELDS = ["rows", "mean", "spread", "last", "mean_absolute", "mean_squared", "last_absolute", "last_squared"]


class TargetGuesses:
    """The errors of two guesses of each target but the first: the mean of those before it, and the one before it.

    >>> guesses = TargetGuesses()
    >>> for y in (1.0, 3.0, 5.0):
    ...     guesses.update(y)
    >>> guesses.of(metrics.MAE())
    (('the mean so far', 2.5), ('the last target', 2.0))
    """

    def __init__(self) -> None:
        self._rows, self._mean, self._last = 0, 0.0, 0.0
        self._spread = 0.0  # the sum of squared differences from the mean
        self._absolute, self._squared = [0.0, 0.0], [0.0, 0.0]  # errors of both guesses

    def update(self, y: float) -> None:
        """Guess a target, and then know it."""
        y = float(y)
        self._rows += 1
        error = y - self._mean
        if self._rows > 1:
            for guess, wrong in enumerate((error, y - self._last)):
                self._absolute[guess] += abs(wrong)
                self._squared[guess] += wrong * wrong
        self._mean += error / self._rows
        self._spread += error * (y - self._mean)
        self._last = y

    def of(self, metric: Any) -> tuple[tuple[str, float], ...]:
        """Return what a metric of river is of both guesses, which are named; nothing where it is none of `GUESSED`."""
        kind, n = type(metric), self._rows - 1
        if kind not in GUESSED or n < 1 or (kind is metrics.R2 and not self._spread):
            return ()
        found = []
        for name, absolute, squared in zip(("the mean so far", "the last target"), self._absolute, self._squared, strict=True):
            value = absolute / n if kind is metrics.MAE else squared / n
            value = math.sqrt(value) if kind is metrics.RMSE else 1.0 - squared / self._spread if kind is metrics.R2 else value
            found.append((name, value))
        return tuple(found)

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves."""
        (mean_absolute, last_absolute), (mean_squared, last_squared) = self._absolute, self._squared
        numbers = mean_absolute, mean_squared, last_absolute, last_squared
        return dict(zip(_FIELDS, (self._rows, self._mean, self._spread, self._last, *numbers), strict=True))

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`; ValueError if it is none."""
        if type(state) is not dict or list(state) != _FIELDS:
            raise ValueError("there are no guesses of targets")
        rows, *numbers = state.values()
        if type(rows) is not int or not 0 <= rows < 2**53:
            raise ValueError("the rows of guesses are none")
        if not all(type(number) is float and math.isfinite(number) for number in numbers):
            raise ValueError("the errors of guesses are none")
        mean, spread, last, *errors = numbers
        if min(errors) < 0.0 or spread < 0.0:
            raise ValueError("the errors of guesses are below 0")
        self._rows, self._mean, self._spread, self._last = rows, mean, spread, last
        self._absolute, self._squared = errors[::2], errors[1::2]
