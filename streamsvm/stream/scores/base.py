"""The protocol of scores: a metric over all rows and over the last ones, its baselines, and its saved state."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.saved import Resumable
from streamsvm.core.warning import warn

#: Class probabilities of many rows: float64 [rows] for each label.
ProbabilityColumns = Mapping[Any, np.ndarray]
#: Names of baselines and the value of a metric for each.
Baselines = tuple[tuple[str, float], ...]


class ScoreReport(NamedTuple):
    """The current value of one metric of a run; NaN if it is undefined."""

    name: str
    value: float
    """Over all rows."""
    windowed: float
    """Over the last ``window`` rows."""
    baselines: Baselines = ()
    """Baselines on the same rows: what each predicts, and its value of the metric, such as ``("always 'no'", 0.76)``; the best
    one first."""
    table: list[list[Any]] | None = None
    """Cells of a metric that is a table, such as a confusion matrix; the first row and the first column have names."""
    windowed_baselines: Baselines = ()
    """Baselines on the last ``window`` rows, the best one first."""

    @property
    def saved(self) -> dict[str, Any]:
        """Name, value and baselines of this report as a dict for a checkpoint. Numbers are rounded to 12 digits, because further
        digits depend on the order of summation.
        """
        numbers = self.value, *(value for _, value in self.baselines)
        value, *baseline_values = (round(number, 12) if math.isfinite(number) else None for number in numbers)
        baselines = [[name, number] for (name, _), number in zip(self.baselines, baseline_values, strict=True)]
        return {"name": self.name, "value": value} | ({"guesses": baselines} if baselines else {})


class ScoreView:
    """A score's value over all rows or over the last ones, with the interface of a river metric: ``get()`` and repr."""

    def __init__(self, name: str, get: Callable[[], float]) -> None:
        self._name = name
        self.get: Callable[[], float] = get

    def __repr__(self) -> str:
        return f"{self._name}: {self.get():.6g}"


class Score(Resumable):
    """A metric over all rows, and over the last ``window`` of them.

    The repr contains the metric, its parameters, the window and the positive label. A score can resume from the saved state of
    one with the same repr.
    """

    name: str
    window: int
    metric: Any
    """The metric over all rows; its value is ``get()``."""
    windowed: Any
    """The metric over the last rows; its value is ``get()``."""
    uses_predicted_labels: bool = True
    """Whether it takes predicted labels; otherwise it takes probabilities."""
    is_binary: bool = False
    """Whether it distinguishes one positive label from all others."""
    accepts_positive_label: bool = False
    """Whether the user may specify a positive label."""
    value: float = math.nan
    """The metric over all rows so far; NaN if it is undefined."""
    windowed_value: float = math.nan
    """The metric over the last ``window`` rows; NaN if it is undefined."""
    has_rows: bool
    """Whether at least one row was added to this metric."""
    table: list[list[Any]] | None = None
    """The cells of this metric, as a list of rows, if it is a table such as a confusion matrix; None if it is a number."""
    key_score: Score | None = None
    """The same metric of a baseline, which predicts the previous label or target of the same key; None if it has no baseline."""

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        """Update the metric with the true labels ``ys`` of some rows and their predictions. ``predicted`` has the predicted
        labels if ``uses_predicted_labels`` is true for this metric; otherwise, it maps each label to its probabilities, float64
        [rows].

        Rows without a prediction (None, or no probabilities) are ignored, as in river's ``evaluate``.
        """
        raise NotImplementedError

    def resize_window(self, state: Any) -> Any:
        """Return the saved ``state`` of this metric with another window, for this one: with the last rows that fit into it."""
        return {name: rows[-self.window :] if name.startswith("last") else rows for name, rows in state.items()}

    def compute_baselines(self, is_windowed: bool) -> Baselines:  # noqa: ARG002
        """Return the value that this metric has for simple baselines on the same rows, all or the last ``window`` ones: pairs of
        a text such as ``"always 'no'"``, which tells how the baseline predicts, and the value. Empty if the metric has no
        baselines.
        """
        return ()


class TableScore(Score):
    """Base class of scores that are tables over all rows, without a windowed value."""

    def __init__(self, window: int) -> None:
        self.name: str = type(self).__name__
        self.window: int = window
        self.metric: Any = ScoreView(self.name, lambda: math.nan)
        self.windowed: Any = self.metric

    def __repr__(self) -> str:
        return f"{self.name}()"


def format_score(name: str, parameters: Mapping[str, Any], window: int, positive: Hashable = None) -> str:
    """Return the repr of a metric, such as ``F1(window=100, positive='spam')``, from its name and parameters, the length of its
    window and the positive label (None: left out).

    >>> format_score("F1", {}, 100, "spam")
    "F1(window=100, positive='spam')"
    """
    parameters = {**parameters, "window": window} | ({} if positive is None else {"positive": positive})
    return f"{name}({', '.join(f'{parameter}={value!r}' for parameter, value in parameters.items())})"


POSITIVE_LABEL_HINT = "name the positive label with --positive LABEL, or LearningLoop(positive=...)"


class ScoreError(ValueError):
    """The labels of a stream do not fit a metric."""


class PositiveLabels:
    """Checks that the positive label is among the labels of a stream, for metrics that need one.

    If no ``positive`` label is specified, True and 1 are positive, False, 0 and -1 are negative, and other labels are an error.
    ``multiclass`` allows more than two labels. ``name`` is the name of the metric.
    """

    def __init__(self, name: str, positive: Hashable = None, multiclass: bool = False) -> None:
        self._name, self._multiclass = name, multiclass
        #: The positive label; None if it was not specified.
        self.positive: Hashable = positive
        self._known_labels: set[Any] = set()

    def check_label(self, y: Any) -> None:
        """Check that a label ``y`` tells clearly whether a row is positive. Raises ScoreError if no positive label was specified
        and ``y`` is not True, False, 1, 0 or -1, or if two labels have come and neither is the specified one.

        If there may be more than two labels, the second case is only a warning.
        """
        if y in self._known_labels:
            return
        if self.positive is None:
            if y not in (0, 1, -1):
                text = f"{self._name} counts one label as positive, and which one is not known"
                raise ScoreError(f"{text}: is it {y!r}, or the other? So {POSITIVE_LABEL_HINT}")
        elif len(self._known_labels) == 1 and self.positive not in (*self._known_labels, y):
            labels = " and ".join(map(repr, (*self._known_labels, y)))
            problem = f"no label so far is {self.positive!r}, which was named as the positive one: there are {labels}"
            if not self._multiclass:  # a third label will not come
                raise ScoreError(problem)
            warn(f"{problem}. {self._name} says nothing until it comes")
        self._known_labels.add(y)
