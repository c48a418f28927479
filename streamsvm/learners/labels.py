"""The labels of a model, found as they come, and the weights of their classes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from streamsvm.core.checks import LARGEST_WEIGHT, PLAIN_TYPES, check_number, to_plain
from streamsvm.core.memory.features import LONGEST_NAME
from streamsvm.files.messages import short_repr

#: The most labels of a model by default. Each costs memory and time of every row; more are usually numbers or names.
MAX_CLASSES = 128


class TooManyLabelsError(ValueError):
    """A label is new, and there are ``max_classes`` labels already."""


class Labels:
    """Labels to targets and back.

    While there are two, a target is a sign: True and 1 are positive; False, 0 and -1 negative; any other label takes the side
    that is free, the negative one first. A side whose label was not seen yet is called by the number or bool opposite to the one
    that was. With three or more labels, a target is the number of the label, in the order of arrival.

    >>> labels = Labels(max_classes=3)
    >>> [labels.encode(y) for y in ("ham", "spam", "ham", "eggs", "ham")]
    [-1.0, 1.0, -1.0, 2.0, 0.0]
    >>> labels.decode(2.0)
    'eggs'
    """

    def __init__(self, max_classes: int) -> None:
        self.max_classes = max_classes
        #: The target of each label seen.
        self.targets: dict[Hashable, float] = {}
        self._negative: Any = False
        self._positive: Any = True
        #: All labels, from the third one on; and the outputs that they need, one for two labels.
        self.class_labels: list[Any] = []
        self.outputs: int = 1

    @property
    def seen(self) -> list[Any]:
        """Labels seen, in the order of arrival."""
        return list(self.targets)

    @property
    def n_seen(self) -> int:
        """How many labels were seen."""
        return len(self.targets)

    @property
    def is_positive_first(self) -> bool:
        """Whether the first label is the positive one, where there are two."""
        return self.seen[0] == self._positive

    def encode(self, y: Any) -> float:
        """The target that a label, which becomes known with it, stands for.

        A ValueError says that it is None, NaN, not hashable, a text of more than 1,024 characters, or one too many (a
        `TooManyLabelsError`).
        """
        try:
            return self.targets[y]
        except KeyError:
            return self._admit_label(y)
        except TypeError:
            raise ValueError(f"label {y!r} is a {type(y).__name__}: a label must be a bool, an int or a str") from None

    def check_label(self, y: Any) -> None:
        """Raise the ValueError that `encode` would raise, without knowing the label then."""
        try:
            if y in self.targets:
                return
        except TypeError:
            self.encode(y)
        self._admissible_label(y)

    def forget_after(self, known: int) -> None:
        """Forget all labels but the first ``known``: the row that brought the others was refused."""
        if known < len(self.targets):
            self.restore_labels(self.seen[:known])

    def restore_labels(self, labels: Iterable[Any]) -> None:
        """Take back what `seen` gave; raise a ValueError where they are not labels, or too many."""
        fresh = Labels(self.max_classes)
        for y in labels:
            fresh.encode(y)
        self.__dict__.update(fresh.__dict__)  # at once: an interrupt finds the labels before or after

    def decode(self, decision: float) -> Any:
        """The label of a decision value, or from the third label on of the number of an output; None before a label was seen."""
        if self.class_labels:
            return self.class_labels[int(decision)]
        if not self.targets:
            return None
        if len(self.targets) == 1 and not self._are_numeric:
            return next(iter(self.targets))
        return self._positive if decision > 0.0 else self._negative

    @property
    def positive(self) -> Any:
        """The label of decision values above 0, while there are two; None before it was seen."""
        return next((label for label, target in self.targets.items() if target > 0.0 and not self.class_labels), None)

    def decode_array(self, decisions: np.ndarray) -> np.ndarray:
        """`of`, for an array [n] of decisions."""
        values = as_array(self.class_labels or [self.decode(-1.0), self.decode(1.0)])
        return values[(decisions if self.class_labels else decisions > 0.0).astype(np.intp)]

    def decode_list(self, decisions: np.ndarray) -> list[Any]:
        """`of`, for an array [n] of decisions, as a list."""
        if self.class_labels:
            return [self.class_labels[int(number)] for number in decisions.tolist()]
        negative, positive = self.decode(-1.0), self.decode(1.0)
        return [positive if above else negative for above in (decisions > 0.0).tolist()]

    def find_largest(self, probabilities: np.ndarray) -> list[float | None]:
        """The probability of the best label of each row, from that of the positive one, or of several the best one's."""
        if self.class_labels:
            best: list[float | None] = probabilities.tolist()
            return best
        each = self.make_probabilities(probabilities).values()
        return np.max(list(each), axis=0).tolist() if each else [None] * len(probabilities)

    def make_probabilities(self, positive: Any) -> dict[Any, Any]:
        """Label to probability while there are two, from that of the positive label, a number or an array.

        It is empty before a label was seen; where two labels are the most, it has False and True, as river asks.
        """
        if not self.targets and self.max_classes > 2:
            return {}
        if len(self.targets) == 1 and not self._are_numeric:
            return {next(iter(self.targets)): 0.0 * positive + 1.0}
        return {self._negative: 1.0 - positive, self._positive: positive}

    @property
    def _are_numeric(self) -> bool:
        # Labels whose other side has a name before it was seen.
        return all(y in (0, 1, -1) for y in self.targets)

    def _admit_label(self, y: Any) -> float:
        y = self._admissible_label(y)
        if y in self.targets:
            return self.targets[y]
        n = len(self.targets)
        if n >= 2:
            many = [*self.targets, y]
            targets = {label: float(i) for i, label in enumerate(many)}
            self.__dict__.update(targets=targets, class_labels=many, outputs=n + 1)  # at once, as in `restore`
            return float(n)
        sign = 1.0 if y == 1 else -1.0
        if sign in self.targets.values():
            sign = -sign
        self.targets[y] = sign
        if sign > 0.0:
            self._positive = y
        else:
            self._negative = y
        if n == 0 and type(y) in (int, float):
            if sign > 0.0:
                self._negative = type(y)(0)
            else:
                self._positive = type(y)(1)
        return sign

    def _admissible_label(self, y: Any) -> Any:
        # A new label, as a scalar of Python; ValueError if it cannot be one.
        if is_missing(y):
            raise ValueError(f"label {y!r} is no label: do not learn rows without one")
        if type(y) not in PLAIN_TYPES:
            try:
                y = to_plain(y)
            except ValueError as error:
                raise ValueError(f"label {error}") from None
            if y in self.targets:
                return y
        if isinstance(y, str | bytes) and len(y) > LONGEST_NAME:
            raise ValueError(f"label {y[:50]!r}... has {len(y):,} characters; at most {LONGEST_NAME:,} are allowed")
        n = len(self.targets)
        if n >= self.max_classes:
            seen = ", ".join(map(repr, self.seen[:10]))
            number = ", or take a regressor if labels are numbers to predict" if isinstance(y, int | float) else ""
            raise TooManyLabelsError(
                f"label {y!r} is one too many: this model is for max_classes={self.max_classes} labels and has learned "
                f"{seen}{', ...' if n > 10 else ''}. Make one with a larger max_classes, if it has that parameter, "
                f"or wrap it in river.multiclass.OneVsRestClassifier{number}"
            )
        return y


def as_array(labels: list[Any]) -> np.ndarray:
    """Return labels as an array that gives them back: numpy would unite labels of two types, and take tuples for rows."""
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], bool | int | float | str):
        values = np.array(labels)
        if values.tolist() == labels:
            return values
    values = np.empty(len(labels), object)
    values[:] = labels
    return values


def is_missing(y: Any) -> bool:
    """Whether a label or target says that there is none: None, NaN, NaT, pandas' NA, or an infinite number."""
    if y is None or (isinstance(y, float | np.floating) and not math.isfinite(y)):
        return True
    try:
        return bool(y != y)  # NaT
    except (TypeError, ValueError):  # pandas' NA has no truth value
        return True


#: The parameter ``class_weight``.
ClassWeight = Mapping[Any, float] | Literal["balanced"] | None

#: The largest weight of a balanced class: one that comes after very many rows of others must not outweigh them all at once.
LARGEST_RATIO = 100.0


class ClassWeights:
    """Weights of classes: given, or ``"balanced"``: by the counts of their rows so far.

    A row of class c then weighs n / (k n_c), as in scikit-learn, where k classes have come, n_c rows of class c so far and n of
    all. The row counts itself, and each class has one row more than it had, so that the first rows of a class weigh little more
    than others. No class weighs more than 100. A ValueError names a weight that is not a number from 0 to 1e9.

    >>> weights = ClassWeights("balanced")
    >>> [weights.learn(y) for y in ("ham", "ham", "ham", "spam", "ham")]
    [1.0, 1.0, 1.0, 1.5, 0.7]
    >>> weights.counts
    {'ham': 4, 'spam': 1}
    """

    def __init__(self, given: Mapping[Any, float] | Literal["balanced"]) -> None:
        if isinstance(given, Mapping):
            for label, weight in given.items():
                check_number(f"class_weight[{short_repr(label)}]", weight, 0.0, inclusive=True, high=LARGEST_WEIGHT)
        elif not isinstance(given, str) or given != "balanced":
            raise ValueError(f"class_weight must be a mapping of label to weight, 'balanced' or None, not {short_repr(given)}")
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
        return self.weight_of(y)

    def forget(self, y: Any) -> None:
        """Undo the last `learn`, of the same label."""
        if self.given is None:
            self.n_rows -= 1
            self.counts[y] -= 1
            if not self.counts[y]:
                del self.counts[y]

    def weight_of(self, y: Any) -> float:
        """The weight of a class now."""
        if self.given is not None:
            return self.given.get(y, 1.0)
        k = len(self.counts)
        return min((self.n_rows + k) / (k * (self.counts[y] + 1)), LARGEST_RATIO)

    def list_counts(self, labels: Iterable[Any]) -> list[int]:
        """The rows of each of the labels, to be saved."""
        return [self.counts.get(y, 0) for y in labels]

    def restore(self, labels: list[Any], counts: list[int]) -> None:
        """Take back what `list_counts` gave for these labels."""
        self.counts = {y: n for y, n in zip(labels, counts, strict=True) if n}
        self.n_rows = sum(counts)
