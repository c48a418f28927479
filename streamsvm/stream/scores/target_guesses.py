"""Guesses of numbers: the mean of the targets so far, and the last one."""

from __future__ import annotations

import math
from typing import Any

from streamsvm.files.river_metrics import metrics

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
