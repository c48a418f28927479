"""The labels that rows of a stream may have, and how text is read as a label."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from streamsvm.core.checks import checked_mapping
from streamsvm.files.messages import shown
from streamsvm.stream.rows import LONGEST_NUMBER, RowError, is_number, listed

_MAX_NUMBER_LENGTH = 19  # a shorter number fits an int of 64 bits
_LARGEST_WHOLE = 2**53  # larger floats do not tell whole numbers apart


@functools.lru_cache(maxsize=1024)
def parse_label(text: str) -> Any:
    """Parse a label: True, False, None if the text is empty, a number if it prints as that text, else the text.

    Numbers that would print otherwise (``007``, ``1_000``, more digits than an int of 64 bits has) are names that look like
    numbers, and stay text.

    Examples
    --------
    >>> [parse_label(text) for text in ("true", "-1", "1.0", "007", "spam", "")]
    [True, -1, 1.0, '007', 'spam', None]
    """
    text = text.strip()
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if not text:
        return None
    if lower == "nan":  # a missing value of a table and no name: learners refuse it
        return math.nan
    for kind in (int, float):
        try:
            if len(text) < _MAX_NUMBER_LENGTH and str(number := kind(text)) == text and math.isfinite(number):
                return number
        except ValueError:
            pass
    return text


def parse_libsvm_label(text: str) -> Any:
    """Parse the label of LIBSVM text: a number however it is written (+1, 1 and 1.0 are equal), else as `parse_label`."""
    try:
        number = float(text)
    except ValueError:
        return parse_label(text)
    return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number


#: After so many rows, a new label is seldom meant, and a label that has not come is seldom late.
SETTLED = 1000
_PLAIN = (bool, int, float, str)
_MOST_LABELS = 4096  # that are remembered; a label beyond is checked each time


class LabelRules:
    """The labels that a stream may have: those declared, or else any of the type of the first one.

    Parameters
    ----------
    classes
        The labels; None: the type of the first label holds. A whole float is as good as the int that it equals.

    Attributes
    ----------
    known : dict
        The labels that were learned, or are declared, as its keys.

    Raises
    ------
    ValueError
        The labels are fewer than two, or two are equal, or one is neither bool, int, float nor str.

    Examples
    --------
    >>> rules = LabelRules()
    >>> rules.add(1)
    >>> rules.check("1")
    Traceback (most recent call last):
        ...
    streamsvm.stream.rows.RowError: label '1' is a str, but the labels before it are ints (such as 1). ...
    """

    def __init__(self, classes: Iterable[Any] | None = None) -> None:
        if isinstance(classes, str):
            raise ValueError(f"classes must be a list of labels, not the text {classes!r}")
        self.classes: list[Any] | None = None if classes is None else [_plain(y) for y in classes]
        self.known: dict[Any, None] = {} if self.classes is None else dict.fromkeys(self.classes)
        if self.classes is None:
            return
        if len(self.known) != len(self.classes) or len(self.known) < 2 or not all(isinstance(y, _PLAIN) for y in self.known):
            raise ValueError(f"classes must be at least two different bools, ints, floats or texts, not {self.classes!r}")

    def check(self, y: Any) -> bool:
        """Whether a label is a new one; RowError if it is none of the stream."""
        try:
            if y in self.known:
                return False
        except TypeError:
            raise RowError("label", f"label {y!r} is a {type(y).__name__}: a label must be a bool, an int or a str") from None
        y = _plain(y)
        if self.classes is not None:
            raise RowError("label", f"label {shown(y)} is not among those declared: {listed(self.classes, 10)}")
        if y.__class__ is float and not math.isfinite(y):
            raise RowError("label", f"label {y!r} is no label: do not learn rows without one")
        if y.__class__ is str and not y.strip():
            raise RowError("label", f"label {shown(y)} is empty. {_DECLARE}")
        if y.__class__ is str and any("\ud800" <= letter <= "\udfff" for letter in y):
            raise RowError("label", f"label {shown(y)} is no text: it has half of a surrogate pair")
        if not self.known:
            return True
        first = next(iter(self.known))
        if y.__class__ is first.__class__ or not isinstance(y, _PLAIN) or not isinstance(first, _PLAIN):
            return len(self.known) < _MOST_LABELS
        if {y.__class__, first.__class__} == {int, float} and float(y).is_integer() and float(first).is_integer():
            return len(self.known) < _MOST_LABELS
        numbers = "If they are numbers to predict: --regression, or a regressor. " * (is_number(first) and _reads_as_number(y))
        raise RowError(
            "label",
            f"label {shown(y)} is a {type(y).__name__}, but the labels before it are {type(first).__name__}s "
            f"(such as {first!r}). {numbers}{_DECLARE}",
        )

    def add(self, y: Any) -> None:
        """Know a label that `check` has called new, once its row was learned."""
        self.known[_plain(y)] = None

    def late(self, y: Any, rows: int) -> str:
        """Return a warning where a new label comes after so many rows that it may be a mistake; else an empty text."""
        if rows < SETTLED or self.classes is not None:
            return ""
        return (
            f"the label {shown(y)} is new after {rows:,} rows with {listed(self.known, 5)}. If it is a mistake, declare the "
            "labels, and rows with another one are refused: --labels-are A,B, or LearningLoop(classes=[...])"
        )

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves: the labels declared, and those known."""
        known = [y for y in self.known if isinstance(y, _PLAIN)]
        return {"classes": self.classes, "known": known}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`. Labels that are declared now replace those declared then.

        Raises
        ------
        ValueError
            It is no such state.
        """
        saved = checked_mapping("label_rules", state)
        classes: Any = saved.get("classes")
        known: Any = saved.get("known")
        for labels in (known, [] if classes is None else classes):
            if type(labels) is not list or not all(isinstance(y, _PLAIN) for y in labels):
                raise ValueError(f"the labels of the checkpoint are corrupt: {shown(labels)}")
        if self.classes is None:
            self.__init__(classes)  # type: ignore[misc]
            self.known |= dict.fromkeys(known)


_DECLARE = "If it is a label, declare all of them: --labels-are A,B,C, or LearningLoop(classes=[...])"


def _reads_as_number(y: Any) -> bool:
    try:
        return math.isfinite(float(y)) and len(str(y)) < LONGEST_NUMBER
    except (TypeError, ValueError, OverflowError):
        return False


def _plain(y: Any) -> Any:
    return y.item() if isinstance(y, np.generic) else y
