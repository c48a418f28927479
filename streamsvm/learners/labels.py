"""The two labels of a binary model, found as they come."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

__all__ = ["BinaryLabels"]


class BinaryLabels:
    """Labels to signs and back.

    True and 1 are the positive label; False, 0 and -1 the negative one; any other label takes the side that is free, the negative
    one first. Before a label was seen, its side is called False or True.

    Examples
    --------
    >>> labels = BinaryLabels()
    >>> [labels.sign(y) for y in ("ham", "spam", "ham")]
    [-1.0, 1.0, -1.0]
    >>> labels.of(0.3)
    'spam'
    """

    def __init__(self) -> None:
        self._signs: dict[Hashable, float] = {}
        self._negative: Any = False
        self._positive: Any = True

    @property
    def seen(self) -> list[Any]:
        """Labels seen, in the order in which they came."""
        return list(self._signs)

    @property
    def n_seen(self) -> int:
        """How many labels were seen."""
        return len(self._signs)

    def sign(self, y: Any) -> float:
        """-1.0 or 1.0 of a label, which becomes known with it.

        Raises
        ------
        ValueError
            The label is None, NaN or not hashable, or a third one.
        """
        try:
            return self._signs[y]
        except KeyError:
            return self._admit(y)
        except TypeError:
            raise ValueError(f"label {y!r} is a {type(y).__name__}: a label must be a bool, an int or a str") from None

    def forget(self, known: int) -> None:
        """Forget all labels but the first ``known``: the row that brought the others was refused."""
        if known < len(self._signs):
            self.restore(self.seen[:known])

    def restore(self, labels: Iterable[Any]) -> None:
        """Take back what `seen` gave.

        Raises
        ------
        ValueError
            They are not labels, or more than two.
        """
        self.__init__()  # type: ignore[misc]
        for y in labels:
            self.sign(y)

    def of(self, decision: float) -> Any:
        """The label that a decision value stands for; before any learning False."""
        if len(self._signs) == 1 and not self._numeric:
            return next(iter(self._signs))
        return self._positive if decision > 0.0 else self._negative

    def array(self, decisions: np.ndarray) -> np.ndarray:
        """`of`, for an array [n] of decision values."""
        both = [self.of(-1.0), self.of(1.0)]
        if len({type(label) for label in both}) == 1 and isinstance(both[0], bool | int | float | str):
            values = np.array(both)
        else:  # numpy would turn labels of two kinds into one kind, and tuples into rows
            values = np.empty(2, object)
            values[:] = both
        return values[(decisions > 0.0).astype(np.intp)]

    def probabilities(self, positive: Any) -> dict[Any, Any]:
        """Label to probability, where that of the positive label is given, a number or an array."""
        if len(self._signs) == 1 and not self._numeric:
            return {next(iter(self._signs)): 0.0 * positive + 1.0}
        return {self._negative: 1.0 - positive, self._positive: positive}

    @property
    def _numeric(self) -> bool:
        # Labels whose other side has a name before it was seen.
        return all(y in (0, 1, -1) for y in self._signs)

    def _admit(self, y: Any) -> float:
        if _is_missing(y):
            raise ValueError(f"label {y!r} is no label: leave rows without one out of learning")
        if isinstance(y, np.generic):
            y = y.item()
        if len(self._signs) == 2:
            raise ValueError(
                f"label {y!r} is a third one: this binary model has learned {self.seen[0]!r} and {self.seen[1]!r}. "
                "Wrap it in river.multiclass.OneVsRestClassifier"
            )
        taken = set(self._signs.values())
        sign = 1.0 if y == 1 else -1.0
        if sign in taken:
            sign = -sign
        self._signs[y] = sign
        if sign > 0.0:
            self._positive = y
        else:
            self._negative = y
        if len(self._signs) == 1 and isinstance(y, int) and not isinstance(y, bool):
            if sign > 0.0:
                self._negative = 0
            else:
                self._positive = 1
        return sign


def _is_missing(y: Any) -> bool:
    if y is None or (isinstance(y, float | np.floating) and not math.isfinite(y)):
        return True
    try:
        return bool(y != y)  # NaT
    except (TypeError, ValueError):  # pandas' NA has no truth value
        return True
