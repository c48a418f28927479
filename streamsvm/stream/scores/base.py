"""The protocol of scores: a value over all and the last rows, that of guesses, a saved state; and which labels are positive."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.saved import Resumable
from streamsvm.core.warning import warn

#: The probabilities of many rows: float64 [rows] by label.
ProbabilityColumns = Mapping[Any, np.ndarray]


class ScoreReport(NamedTuple):
    """The value of one metric in a run so far. A value is NaN if there is none."""

    name: str
    value: float
    """Over all rows."""
    windowed: float
    """Over the last ``window`` rows."""
    baselines: tuple[tuple[str, float], ...] = ()
    """The value that a guess would have had on the same rows, with what it does in words, such as ``("always 'no'", 0.76)``."""
    table: list[list[Any]] | None = None
    """Of a metric that is no number: rows of cells, of which the first row and the first cell of each row are names."""

    @property
    def saved(self) -> dict[str, Any]:
        """The name, the value and the guesses as a checkpoint has them: rounded, as the order of sums may change last digits."""
        value, *guesses = (round(x, 12) if math.isfinite(x) else None for x in (self.value, *(x for _, x in self.baselines)))
        named_guesses = [[what, guess] for (what, _), guess in zip(self.baselines, guesses, strict=True)]
        return {"name": self.name, "value": value} | ({"guesses": named_guesses} if named_guesses else {})


class ScoreView:
    """The value of a score over all rows or the last ones, read as a metric of river is."""

    def __init__(self, name: str, get: Callable[[], float]) -> None:
        self._name = name
        self.get: Callable[[], float] = get

    def __repr__(self) -> str:
        return f"{self._name}: {self.get():.6g}"


class Score(Resumable):
    """A score over all rows, and over the last ``window`` of them.

    Its repr has the metric, its parameters, window and positive label: it is equal for scores that may continue each other.
    """

    name: str
    window: int
    metric: Any
    """The metric over all rows, which has ``get()``."""
    windowed: Any
    """The metric over the last rows, which has ``get()``."""
    uses_predicted_labels: bool = True
    """Whether it takes predicted labels, and not probabilities."""
    binary: bool = False
    """Whether one label is the positive one, and all others are not."""
    accepts_positive_label: bool = False
    """Whether a positive label can be named."""

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        """Count rows, whose labels are given, by predicted labels, or by columns of probabilities if the score wants these.

        Rows that the model does not predict (None, no columns) are not counted, as in river's evaluate.
        """
        raise NotImplementedError

    @property
    def value(self) -> float:
        """The metric over all rows; NaN if it has no value."""
        return math.nan

    @property
    def windowed_value(self) -> float:
        """The metric over the last rows; NaN if it has no value."""
        return math.nan

    @property
    def has_rows(self) -> bool:
        """Whether a row was counted."""
        raise NotImplementedError

    @property
    def baselines(self) -> tuple[tuple[str, float], ...]:
        """The values that guesses would have had on the same rows."""
        return ()

    @property
    def majority(self) -> tuple[Any, float] | None:
        """The commonest label and its share of the rows, which is the accuracy of always predicting it; None of other metrics."""
        return None

    @property
    def table(self) -> list[list[Any]] | None:
        """The table, of a score that is no number."""
        return None


class TableScore(Score):
    """The base of scores that are tables: they are no numbers, and have no last rows."""

    def __init__(self, window: int) -> None:
        self.name: str = type(self).__name__
        self.window: int = window
        self.metric: Any = ScoreView(self.name, lambda: math.nan)
        self.windowed: Any = self.metric

    def __repr__(self) -> str:
        return f"{self.name}()"


def format_score(name: str, facts: Mapping[str, Any], window: int, positive: Hashable = None) -> str:
    """Return the repr of a score with some parameters.

    >>> format_score("F1", {}, 100, "spam")
    "F1(window=100, positive='spam')"
    """
    facts = {**facts, "window": window} | ({} if positive is None else {"positive": positive})
    return f"{name}({', '.join(f'{fact}={value!r}' for fact, value in facts.items())})"


POSITIVE_LABEL_HINT = "name the positive label with --positive LABEL, or LearningLoop(positive=...)"


class ScoreError(ValueError):
    """A metric cannot count the labels of a stream."""


class PositiveLabels:
    """The labels of a stream, as far as metrics with a positive one need to know them.

    Without a ``positive`` label, True and 1 are positive, False, 0 and -1 negative, and other labels are refused. ``multiclass``
    says whether there may be more than two labels. ``name`` is that of the metric.
    """

    def __init__(self, name: str, positive: Hashable = None, multiclass: bool = False) -> None:
        self._name, self._positive, self._multiclass = name, positive, multiclass
        self._seen: set[Any] = set()

    def check_label(self, y: Any) -> None:
        """Raise a ScoreError where a label cannot be counted.

        Then which label is positive is not known, or there are two others (a warning if there may be more than two).
        """
        if y in self._seen:
            return
        if self._positive is None:
            if y not in (0, 1, -1):
                raise ScoreError(
                    f"{self._name} counts one label as positive, and which one is not known: is it {y!r}, or the other? "
                    f"So {POSITIVE_LABEL_HINT}"
                )
        elif len(self._seen) == 1 and self._positive not in (*self._seen, y):
            seen = " and ".join(map(repr, (*self._seen, y)))
            doubt = f"no label so far is {self._positive!r}, which was named as the positive one: there are {seen}"
            if not self._multiclass:  # there will be no third one
                raise ScoreError(doubt)
            warn(f"{doubt}. {self._name} says nothing until it comes")
        self._seen.add(y)

    def add_known_labels(self, labels: Iterable[Any]) -> None:
        """Know labels that were admitted in an earlier run."""
        self._seen.update(labels)
