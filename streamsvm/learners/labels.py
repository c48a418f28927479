"""Label encoding for classifiers that discover their labels in a stream, and class weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from streamsvm.core.checks import LARGEST_WEIGHT, PLAIN_TYPES, check_number, to_plain
from streamsvm.core.memory.features import LONGEST_NAME
from streamsvm.files.messages import short_repr

#: Default maximum number of labels. Each costs memory and time per row; more distinct values are usually numbers or identifiers.
MAX_CLASSES = 128


class TooManyLabelsError(ValueError):
    """A label is new, but there are ``max_classes`` labels already."""


class Labels:
    """Encodes labels as numeric targets, and decodes decision values to labels. New labels are added as they arrive.

    With up to two labels, targets are signs: True and 1 are positive; False, 0 and -1 negative; another label gets the sign that
    is free, the negative one first. If only one label has been seen and it is a number or bool, the other one is assumed to be
    its opposite. With three or more labels, the target is the index of the label, in order of arrival.

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
        #: All labels if there are at least three, otherwise empty; and the number of outputs, which is 1 for up to two labels.
        self.class_labels: list[Any] = []
        self.outputs: int = 1

    @property
    def seen(self) -> list[Any]:
        """The labels that this encoder has seen so far, in order of arrival."""
        return list(self.targets)

    @property
    def in_output_order(self) -> list[Any]:
        """The labels that this encoder has seen so far, by their targets: of two labels, the negative one comes first."""
        return sorted(self.targets, key=self.targets.__getitem__)

    @property
    def n_seen(self) -> int:
        """The number of labels that this encoder has seen so far."""
        return len(self.targets)

    @property
    def is_positive_first(self) -> bool:
        """Whether the label that arrived first is the positive one of the two labels."""
        return self.seen[0] == self._positive

    def encode(self, y: Any) -> float:
        """Return the numeric target of the label ``y``: -1 or 1 for one of two labels, or with three or more labels its index. A
        new label is added to this encoder.

        Raises a ValueError if the label is missing (None, NaN), not hashable or longer than 1,024 characters, and a
        `TooManyLabelsError` if it exceeds ``max_classes``.
        """
        try:
            return self.targets[y]
        except KeyError:
            return self._admit_label(y)
        except TypeError:
            raise ValueError(f"label {y!r} is a {type(y).__name__}: a label must be a bool, a number or a str") from None

    def check_label(self, y: Any) -> None:
        """Raise a ValueError if `encode` would refuse the label ``y``: if it is missing, not hashable or too long, or a new label
        beyond ``max_classes``. The label is not added.
        """
        try:
            if y in self.targets:
                return
        except TypeError:
            self.encode(y)
        self._validate_label(y)

    def forget_after(self, n_labels: int) -> None:
        """Remove all labels except the first ``n_labels``, in order of arrival, because the row that added the others was
        refused.
        """
        if n_labels < len(self.targets):
            self.restore_labels(self.seen[:n_labels])

    def restore_labels(self, labels: Iterable[Any]) -> None:
        """Replace all labels of this encoder by ``labels``, in order of arrival, such as those of a saved model. Raise a
        ValueError if one is invalid.
        """
        restored = Labels(self.max_classes)
        for y in labels:
            restored.encode(y)
        self.__dict__.update(restored.__dict__)  # one update, so that an interrupt leaves either the old or the new labels

    def decode(self, decision: float) -> Any:
        """Return the label that a model predicts: by the sign of its ``decision`` value for up to two labels, or by the label
        index ``decision`` with three or more. Return None if no label has been seen.
        """
        if self.class_labels:
            return self.class_labels[int(decision)]
        if not self.targets:
            return None
        if len(self.targets) == 1 and not self._are_binary_numbers:
            return next(iter(self.targets))
        return self._positive if decision > 0.0 else self._negative

    @property
    def positive(self) -> Any:
        """The label that is predicted for decision values above 0; None with three or more labels, or before that label has been
        seen.
        """
        return next((label for label, target in self.targets.items() if target > 0.0 and not self.class_labels), None)

    def decode_array(self, decisions: np.ndarray) -> np.ndarray:
        """Return the predicted labels of n rows as an array. ``decisions`` [n] has their decision values (the sign decides) or,
        with three or more labels, their label indices.
        """
        values = as_array(self.class_labels or [self.decode(-1.0), self.decode(1.0)])
        return values[(decisions if self.class_labels else decisions > 0.0).astype(np.intp)]

    def decode_list(self, decisions: np.ndarray) -> list[Any]:
        """Return the predicted labels of n rows as a list. ``decisions`` [n] has their decision values (the sign decides) or,
        with three or more labels, their label indices.
        """
        if self.class_labels:
            return [self.class_labels[int(index)] for index in decisions.tolist()]
        negative, positive = self.decode(-1.0), self.decode(1.0)
        return [positive if is_positive else negative for is_positive in (decisions > 0.0).tolist()]

    def find_label_probabilities(self, probabilities: np.ndarray) -> list[float | None]:
        """Return the probability of the predicted label of each of n rows, as a list. ``probabilities`` [n] are those of the
        positive label if there are two labels; with three or more, they are those of the predicted labels already. All items are
        None if no label has been seen.
        """
        if self.class_labels:
            largest: list[float | None] = probabilities.tolist()
            return largest
        columns = self.make_probabilities(probabilities).values()
        return np.max(list(columns), axis=0).tolist() if columns else [None] * len(probabilities)

    def make_probabilities(self, positive: Any) -> dict[Any, Any]:
        """Return a dict of label to probability for a model with up to two labels. ``positive`` is the probability of the
        positive label, a number or an array [rows].

        Before the first label it is empty; or, if ``max_classes`` is 2, it has False and True, as river expects.
        """
        if not self.targets and self.max_classes > 2:
            return {}
        if len(self.targets) == 1 and not self._are_binary_numbers:
            return {next(iter(self.targets)): 0.0 * positive + 1.0}
        return {self._negative: 1.0 - positive, self._positive: positive}

    @property
    def _are_binary_numbers(self) -> bool:
        """Whether all labels seen so far are 0, 1, -1 or bools, so that the opposite label is known before it arrives."""
        return all(y in (0, 1, -1) for y in self.targets)

    def _admit_label(self, y: Any) -> float:
        """Add the new label ``y`` to this encoder, and return its numeric target. A third label changes the targets of the first
        two from signs to indices. Raise a ValueError if the label is invalid or exceeds ``max_classes``.
        """
        y = self._validate_label(y)
        if y in self.targets:
            return self.targets[y]
        n = len(self.targets)
        if n >= 2:
            class_labels = [*self.targets, y]
            targets = {label: float(i) for i, label in enumerate(class_labels)}
            self.__dict__.update(targets=targets, class_labels=class_labels, outputs=n + 1)  # one update, as in `restore_labels`
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

    def _validate_label(self, y: Any) -> Any:
        """Return the new label ``y`` as a plain Python object (numpy scalars are converted). Raise a ValueError if it is missing
        or too long, and a `TooManyLabelsError` if there are ``max_classes`` labels already.
        """
        if is_missing(y):
            raise ValueError(f"label {y!r} is missing or not finite: leave out rows without a label")
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
            regressor = (
                ", or use a regressor (--regression) if the labels are numbers to predict" if isinstance(y, int | float) else ""
            )
            raise TooManyLabelsError(
                f"label {y!r} exceeds max_classes={self.max_classes}: the model has learned {seen}{', ...' if n > 10 else ''}. "
                f"Use a model with a larger max_classes, or wrap it in river.multiclass.OneVsRestClassifier{regressor}"
            )
        return y


def as_array(labels: list[Any]) -> np.ndarray:
    """Convert a list of labels to an array [labels] whose items equal them. Its dtype is object if numpy would otherwise change
    types (as for mixed types) or unpack tuples.
    """
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], bool | int | float | str):
        values = np.array(labels)
        if values.tolist() == labels:
            return values
    values = np.empty(len(labels), object)
    values[:] = labels
    return values


def is_missing(y: Any) -> bool:
    """Return whether the label or target ``y`` is missing or not finite: None, NaN, NaT, pandas' NA, or an infinite number."""
    if y is None or (isinstance(y, float | np.floating) and not math.isfinite(y)):
        return True
    try:
        return bool(y != y)  # NaT
    except (TypeError, ValueError):  # the truth value of pandas' NA is undefined
        return True


#: The type of the parameter ``class_weight``.
ClassWeight = Mapping[Any, float] | Literal["balanced"] | None

#: Maximum weight of a balanced class: the first rows of a class that arrives late must not outweigh all earlier rows.
MAX_BALANCED_WEIGHT = 100.0


class ClassWeights:
    """Class weights: a fixed mapping of label to weight, or ``"balanced"`` by the class counts so far.

    A balanced row of class c has the weight n / (k n_c), as in scikit-learn, but at most 100. Here k is the number of classes so
    far, n_c the number of rows of class c, and n the number of all rows. The counts include the row itself, and one more row for
    each class, so that the weights of the first rows of a class are not much above 1. The constructor raises a ValueError for
    a weight that is not a number from 0 to 1e9.

    >>> weights = ClassWeights("balanced")
    >>> [weights.count_row(y) for y in ("ham", "ham", "ham", "spam", "ham")]
    [1.0, 1.0, 1.0, 1.5, 0.7]
    >>> weights.counts
    {'ham': 4, 'spam': 1}
    """

    def __init__(self, class_weight: Mapping[Any, float] | Literal["balanced"]) -> None:
        if isinstance(class_weight, Mapping):
            for label, weight in class_weight.items():
                check_number(f"class_weight[{short_repr(label)}]", weight, 0.0, inclusive=True, high=LARGEST_WEIGHT)
        elif not isinstance(class_weight, str) or class_weight != "balanced":
            raise ValueError(
                f"class_weight must be a mapping of label to weight, 'balanced' or None, not {short_repr(class_weight)}"
            )
        #: The fixed weight of each label; None if weights are balanced.
        self.fixed_weights: dict[Any, float] | None = (
            {label: float(weight) for label, weight in class_weight.items()} if isinstance(class_weight, Mapping) else None
        )
        #: The number of rows of each label so far, and of all rows, if weights are balanced.
        self.counts: dict[Hashable, int] = {}
        self.n_rows: int = 0

    def count_row(self, y: Any) -> float:
        """Count a row with the label ``y``, if class weights are balanced, and return the weight of its class."""
        if self.fixed_weights is None:
            self.counts[y] = self.counts.get(y, 0) + 1
            self.n_rows += 1
        return self.get_weight(y)

    def uncount_row(self, y: Any) -> None:
        """Undo the last `count_row` of the label ``y``, because its row was not learned."""
        if self.fixed_weights is None:
            self.n_rows -= 1
            self.counts[y] -= 1
            if not self.counts[y]:
                del self.counts[y]

    def get_weight(self, y: Any) -> float:
        """Return the current weight of the class with the label ``y``: its fixed weight (1 if it has none), or its balanced
        weight by the rows counted so far.
        """
        if self.fixed_weights is not None:
            return self.fixed_weights.get(y, 1.0)
        k = len(self.counts)
        return min((self.n_rows + k) / (k * (self.counts[y] + 1)), MAX_BALANCED_WEIGHT)

    def list_counts(self, labels: Iterable[Any]) -> list[int]:
        """Return the number of counted rows of each label in ``labels``, as a list, in order to save it with a model."""
        return [self.counts.get(y, 0) for y in labels]

    def restore_counts(self, labels: list[Any], counts: list[int]) -> None:
        """Replace the row counts of all classes by ``counts``, one for each of ``labels``, as `list_counts` returned them."""
        self.counts = {y: n for y, n in zip(labels, counts, strict=True) if n}
        self.n_rows = sum(counts)
