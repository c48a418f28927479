"""Weights of classes: given, or from the rows of each class so far."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

from streamsvm.core.checks import LARGEST_WEIGHT, check_number, checked_count
from streamsvm.files.messages import shown

__all__ = ["LARGEST_RATIO", "ClassWeight", "ClassWeights"]

#: The parameter ``class_weight``.
ClassWeight = Mapping[Any, float] | Literal["balanced"] | None

#: The largest weight of a balanced class: one that comes after very many rows of others must not outweigh them all at once.
LARGEST_RATIO = 100.0


class ClassWeights:
    """Weights of classes: given, or ``"balanced"``: by the counts of their rows so far.

    A row of class c then weighs n / (k n_c), as in scikit-learn, where k classes have come, n_c rows of class c so far and n of
    all. The row counts itself, and each class has one row more than it had, so that the first rows of a class weigh little more
    than others. No class weighs more than 100.

    Parameters
    ----------
    given
        Label to weight, 1 for labels that are not there; or ``"balanced"``.

    Raises
    ------
    ValueError
        It is neither, or a weight is not a number from 0 to 1e9; the message names it.

    Examples
    --------
    >>> weights = ClassWeights("balanced")
    >>> [weights.learn(y) for y in ("ham", "ham", "ham", "spam", "ham")]
    [1.0, 1.0, 1.0, 1.5, 0.7]
    >>> weights.counts
    {'ham': 4, 'spam': 1}
    """

    def __init__(self, given: Mapping[Any, float] | Literal["balanced"]) -> None:
        if isinstance(given, Mapping):
            for label, weight in given.items():
                check_number(f"class_weight[{shown(label)}]", weight, 0.0, inclusive=True, high=LARGEST_WEIGHT)
        elif not isinstance(given, str) or given != "balanced":
            raise ValueError(f"class_weight must be a mapping of label to weight, 'balanced' or None, not {shown(given)}")
        #: Label to weight; None: balanced.
        self.given: dict[Any, float] | None = (
            {label: float(weight) for label, weight in given.items()} if isinstance(given, Mapping) else None
        )
        #: Rows of each label so far, where weights are balanced; and of all.
        self.counts: dict[Hashable, int] = {}
        self.n_rows: int = 0

    def learn(self, y: Any) -> float:
        """Count a row of a label, where weights are balanced; the weight of its class."""
        if self.given is None:
            self.counts[y] = self.counts.get(y, 0) + 1
            self.n_rows += 1
        return self.of(y)

    def forget(self, y: Any) -> None:
        """Undo the last `learn`, of the same label."""
        if self.given is None:
            self.n_rows -= 1
            self.counts[y] -= 1
            if not self.counts[y]:
                del self.counts[y]

    def of(self, y: Any) -> float:
        """The weight of a class now."""
        if self.given is not None:
            return self.given.get(y, 1.0)
        k = len(self.counts)
        return min((self.n_rows + k) / (k * (self.counts[y] + 1)), LARGEST_RATIO)

    def counts_of(self, labels: Iterable[Any]) -> list[int]:
        """The rows of each of the labels, to be saved."""
        return [self.counts.get(y, 0) for y in labels]

    def restore(self, labels: list[Any], counts: Any) -> None:
        """Take back what `counts_of` gave for these labels.

        Raises
        ------
        ValueError
            They are not as many counts, or there are some where weights are given.
        """
        if not isinstance(counts, list) or len(counts) != len(labels) or (self.given is not None and any(counts)):
            raise ValueError(f"the saved model is corrupt: counts {shown(counts)} of its rows for {len(labels)} labels")
        checked = [checked_count("the saved model is corrupt: the number of rows of a label", n) for n in counts]
        self.counts = {y: n for y, n in zip(labels, checked, strict=True) if n}
        self.n_rows = sum(checked)
