"""Which labels a stream may have where one of them is positive and all others are not."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from streamsvm.core.warning import warn

NAME_IT = "name the positive label with --positive LABEL, or LearningLoop(positive=...)"


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

    def admit(self, y: Any) -> None:
        """Raise a ScoreError where a label cannot be counted.

        Then which label is positive is not known, or there are two others (a warning if there may be more than two).
        """
        if y in self._seen:
            return
        if self._positive is None:
            if y not in (0, 1, -1):
                raise ScoreError(
                    f"{self._name} counts one label as positive, and which one is not known: is it {y!r}, or the other? "
                    f"So {NAME_IT}"
                )
        elif len(self._seen) == 1 and self._positive not in (*self._seen, y):
            seen = " and ".join(map(repr, (*self._seen, y)))
            doubt = f"no label so far is {self._positive!r}, which was named as the positive one: there are {seen}"
            if not self._multiclass:  # there will be no third one
                raise ScoreError(doubt)
            warn(f"{doubt}. {self._name} says nothing until it comes")
        self._seen.add(y)

    def admitted(self, labels: Iterable[Any]) -> None:
        """Know labels that were admitted in an earlier run."""
        self._seen.update(labels)
