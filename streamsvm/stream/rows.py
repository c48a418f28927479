"""Checks of a row and its label before any part of a model learns from them."""

from __future__ import annotations

import copy
import functools
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
from river import base, compose

from streamsvm.core.checks import LARGEST_FLOAT32, to_plain, validate_target
from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.values import parse_number

#: The largest number of float32.
#: The types of numbers.
NUMBER_TYPES = (int, float, np.number, np.bool_)
MAX_NUMBER_CHARS = 400  # characters


class RowError(ValueError):
    """A row is refused. ``kind`` is a short name for reasons alike."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ValidatingPipeline:
    """A model whose rows are checked before any part of it learns from them.

    In a pipeline of river, transformers learn a row before the last step can refuse it. Here a row's numbers are checked first
    (finite, and within the range of float32; text is for the transformers, and refused where none of them takes it), then it is
    transformed by what was learned before, which the last step predicts and checks. A learner of this library refuses a row as a
    whole by itself, so alone it is not guarded.

    Some transformers of river make infinities of features that they have not learned: these count as 0.

    A refused row leaves nothing in the learner, nor in transformers of this library. Transformers of river may note the name of a
    feature that they transform, or draw numbers for it. A row whose ``transform_one`` succeeds and whose ``learn_one`` fails (a
    text in a new column, behind river's StandardScaler) has been learned in part. Nor is undone what transformers learn under
    river's ``compose.learn_during_predict`` or inside a wrapper.

    Raises
    ------
    ValueError
        The model has no ``predict_one`` or ``learn_one``.
    """

    def __init__(self, model: Any, learns: bool = True) -> None:
        self.model = model
        #: Checks a row, and transforms it for `last_step`; None if neither is needed.
        self.prepare_row: Callable[[Any], Any] | None = None
        steps, last = split_pipeline(model)
        self._steps = steps
        #: The step that predicts; the model itself if it is no pipeline.
        self.last_step: Any = last
        if isinstance(model, type) or not (hasattr(last, "predict_one") and hasattr(last, "learn_one")):
            kind = repr(model) if model is None or isinstance(model, str | type) else f"a {type(model).__name__}"
            raise ValueError(f"the model must be a classifier or a regressor, or a pipeline that ends in one, not {kind}")
        checker = last if hasattr(last, "check_one") else find_learner(last)
        #: Raises a ValueError where `last_step` would refuse to learn a row and its label; None if it cannot tell.
        self.check_row: Callable[[Any, Any], None] | None = getattr(checker, "check_one", None)
        #: Whether `last_step` is a learner of this library with nothing before it.
        self.is_bare_learner: bool = False
        #: What is before `last_step`, if that is an encoder whose rows can be taken many at once; else None.
        self.encoder: TableEncoder | None = None
        if len(steps) == 1 and type(steps[0]) is TableEncoder and steps[0].scaler is None:
            self.encoder = steps[0]
        if steps:
            self.prepare_row = self._transform_to_learn if learns else self._transform_row
        elif self.check_row is None or checker is not last:
            self.prepare_row = _checked_row
        else:  # a learner of this library, which checks all by itself
            self.check_row, self.is_bare_learner = None, True
            self.prepare_row = None if learns else self._without_unknown_texts
        #: The same for such a learner, to be asked of labels that are new to it: if one is too many, it ignores the row.
        self.check_new_label: Callable[[Any, Any], None] | None = None if self.check_row else getattr(last, "check_one", None)

    def _without_unknown_texts(self, x: Any) -> Any:
        if not isinstance(x, Mapping) or all(map(is_number, x.values())):
            return x
        known = set(self.last_step.feature_names)
        return {name: value for name, value in x.items() if name in known or not isinstance(value, str | bytes)}

    def _transform_row(self, x: Any) -> Any:
        _checked_row(x)
        for step in self._steps:
            x = step.transform_one(x)
        return x

    def _transform_to_learn(self, x: Any) -> Any:
        _checked_row(x)
        if compose.Pipeline._LEARN_UNSUPERVISED_DURING_PREDICT:
            pipeline = self.model
            while isinstance(pipeline, compose.Pipeline):
                x, pipeline = pipeline._transform_one(x)
            return x
        for step in self._steps:
            x = step.transform_one(x)
        return _with_finite_numbers(x)

    def find_bad_feature(self, x: Any) -> tuple[Hashable, ...]:
        """The name of the feature that, were it a number, would let the row be predicted; a tuple of one, or of none."""
        if not isinstance(x, Mapping):
            return ()
        suspects = [name for name, value in x.items() if not is_number(value)][:64]
        steps = copy.deepcopy(self._steps)  # which may change by what they transform

        def predicts(x: Any) -> bool:
            try:
                for step in steps:
                    x = step.transform_one(x)
                self.last_step.predict_one(x)
            except Exception:  # noqa: BLE001 - of any step
                return False
            return True

        harmless = {**x, **dict.fromkeys(suspects, 0.0)}
        guilty = [name for name in suspects if predicts({**x, name: 0.0})]
        if not guilty and predicts(harmless):  # several are
            guilty = [name for name in suspects if not predicts({**harmless, name: x[name]})]
        return tuple(guilty[:1])


def split_pipeline(model: Any) -> tuple[list[Any], Any]:
    """Return the transformers of a pipeline in their order, also of pipelines in it, and what stands at its end."""
    steps: list[Any] = []
    while isinstance(model, compose.Pipeline) and model.steps:
        *before, model = model.steps.values()
        steps += before
    return steps, model


def find_learner(model: Any) -> Any:
    """Return the learner of a model: the last step of a pipeline, or what it has within that scales targets or chooses labels."""
    while True:
        model = split_pipeline(model)[1]
        if hasattr(model, "wrapped_learner"):
            model = model.wrapped_learner
        elif isinstance(model, base.Wrapper) and hasattr(model, "regressor"):
            model = model.regressor
        else:
            return model


def has_probabilities(model: Any) -> bool:
    """Whether a classifier has probabilities, which not all of river's have."""
    own = getattr(type(model), "predict_proba_one", None)
    return own is not None and own is not base.Classifier.predict_proba_one


def _checked_row(x: Any) -> Any:
    """Return a row whose numbers `check_numbers` accepts."""
    try:
        if math.hypot(*x.values()) <= LARGEST_FLOAT32:  # then each number is, and none is NaN
            return x
    except (TypeError, ValueError, OverflowError, AttributeError):  # text, and whatever else transformers may take
        pass
    if isinstance(x, Mapping):
        check_numbers(x)
    return x


def _with_finite_numbers(x: Any) -> Any:
    """Replace the infinities and NaNs that transformers make of features which they have not learned by 0."""
    try:
        if math.hypot(*x.values()) < math.inf:
            return x
    except (TypeError, OverflowError, AttributeError):
        pass
    if not isinstance(x, Mapping):
        return x
    return {name: 0.0 if isinstance(value, float) and not math.isfinite(value) else value for name, value in x.items()}


def check_numbers(x: Mapping[Any, Any]) -> None:
    """Raise a RowError that names the first number which is not finite, or too large for float32. What is no number may stay."""
    for name, value in x.items():
        if value.__class__ is float and -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32:
            continue
        if is_number(value) and not (math.isfinite(value) and abs(value) <= LARGEST_FLOAT32):
            raise RowError(
                "not finite",
                f"feature {name!r} is {short_repr(value)}: features must be finite float32 numbers. Impute it "
                "(river.preprocessing.StatImputer) or leave it out (a missing feature counts as 0)",
            )


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or numpy."""
    return isinstance(value, NUMBER_TYPES) and not isinstance(value, np.complexfloating)


def classify_error(error: Exception, x: Any, pipeline: ValidatingPipeline) -> tuple[str, str]:
    """The kind and the message of an error about a row, with the feature at fault if the message names none."""
    text = str(error) if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RowError):
        return error.kind, text
    if text.startswith("label "):
        return "label", text
    if not isinstance(x, Mapping):
        return "malformed", text
    if text.startswith("feature ") and "has no column left" not in text and " has a name of " not in text:
        return ("not finite" if "finite" in text else "not a number"), text
    if text.startswith("feature "):
        return "feature name", text
    if text.startswith("the row is too large"):
        return "not finite", text
    found = pipeline.find_bad_feature(x)
    if found:
        return "not a number", f"{text} (feature {found[0]!r} is {short_repr(x[found[0]])})"
    return "model", text


def parse_target(y: Any) -> float:
    """Return a label that is a number to predict, which may be its text; RowError if it is not a finite number."""
    try:
        is_text = isinstance(y, str) and len(y) < MAX_NUMBER_CHARS
        return validate_target(parse_number(y) if is_text else float(y) if isinstance(y, numbers.Real | Decimal) else y)
    except (ValueError, OverflowError):
        raise RowError("label", f"label {short_repr(y)} is not a finite number to predict") from None


def format_names(names: Iterable[Any], most: int) -> str:
    """The first ``most`` names, for a message."""
    names = list(map(repr, names))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


_MAX_NUMBER_LENGTH = 19  # a shorter number fits an int of 64 bits
_LARGEST_WHOLE = 2**53  # larger floats do not tell whole numbers apart


@functools.lru_cache(maxsize=1024)
def parse_label(text: str) -> Any:
    """Parse a label: True, False, None if the text is empty, a number if it prints as that text, else the text.

    Numbers that would print otherwise (``007``, ``1_000``, more digits than an int of 64 bits has) are names that look like
    numbers, and stay text.

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
        value = parse_number(text)
    except ValueError:
        return parse_label(text)
    return int(value) if value.is_integer() and abs(value) < _LARGEST_WHOLE else value


#: After so many rows, a new label is seldom meant, and a label that has not come is seldom late.
SETTLED_ROWS = 1000
_PLAIN = (bool, int, float, str)
MAX_LABELS = 4096  # that are remembered; a label beyond is checked each time


class LabelRules:
    """The labels that a stream may have: those declared as ``classes``, or else any of the type of the first one.

    A whole float is as good as the int that it equals. A ValueError says that the labels are fewer than two, or two are equal, or
    one is neither bool, int, float nor str.

    >>> rules = LabelRules()
    >>> rules.add(1)
    >>> rules.check_is_new("1")
    Traceback (most recent call last):
        ...
    streamsvm.stream.rows.RowError: label '1' is a str, but the labels before it are ints (such as 1). ...
    """

    def __init__(self, classes: Iterable[Any] | None = None) -> None:
        if isinstance(classes, str):
            raise ValueError(f"classes must be a list of labels, not the text {classes!r}")
        self.classes: list[Any] | None = None if classes is None else [_plain_label(y) for y in classes]
        #: The labels that were learned, or are declared, as keys.
        self.known_labels: dict[Any, None] = {} if self.classes is None else dict.fromkeys(self.classes)
        if self.classes is None:
            return
        if not 2 <= len(self.known_labels) == len(self.classes) or not all(isinstance(y, _PLAIN) for y in self.classes):
            raise ValueError(f"classes must be at least two different bools, ints, floats or texts, not {self.classes!r}")

    def check_is_new(self, y: Any) -> bool:
        """Whether a label is a new one; RowError if it is none of the stream."""
        try:
            if y in self.known_labels:
                return False
        except TypeError:
            raise RowError("label", f"label {y!r} is a {type(y).__name__}: a label must be a bool, an int or a str") from None
        y = _plain_label(y)
        if y in self.known_labels:
            return False
        if self.classes is not None:
            raise RowError("label", f"label {short_repr(y)} is not among those declared: {format_names(self.classes, 10)}")
        if y.__class__ is float and not math.isfinite(y):
            raise RowError("label", f"label {y!r} is no label: do not learn rows without one")
        if y.__class__ is str and not y.strip():
            raise RowError("label", f"label {short_repr(y)} is empty. {_DECLARE}")
        if y.__class__ is str and any("\ud800" <= letter <= "\udfff" for letter in y):
            raise RowError("label", f"label {short_repr(y)} is no text: it has half of a surrogate pair")
        if not self.known_labels:
            return True
        first = next(iter(self.known_labels))
        if y.__class__ is first.__class__ or not isinstance(y, _PLAIN) or not isinstance(first, _PLAIN):
            return len(self.known_labels) < MAX_LABELS
        if {y.__class__, first.__class__} == {int, float} and float(y).is_integer() and float(first).is_integer():
            return len(self.known_labels) < MAX_LABELS
        numbers = "If they are numbers to predict: --regression, or a regressor. " * (is_number(first) and _reads_as_number(y))
        raise RowError(
            "label",
            f"label {short_repr(y)} is a {type(y).__name__}, but the labels before it are {type(first).__name__}s "
            f"(such as {first!r}). {numbers}{_DECLARE}",
        )

    def add(self, y: Any) -> None:
        """Know a label that `check_is_new` has called new, once its row was learned."""
        self.known_labels[_plain_label(y)] = None

    def describe_late_label(self, y: Any, rows: int) -> str:
        """Return a warning where a new label comes after so many rows that it may be a mistake; else an empty text."""
        if rows < SETTLED_ROWS or self.classes is not None:
            return ""
        return (
            f"the label {short_repr(y)} is new after {rows:,} rows with {format_names(self.known_labels, 5)}. If it is a "
            "mistake, declare the labels, and rows with another one are refused: --labels-are A,B, or LearningLoop(classes=[...])"
        )

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves: the labels declared, and those known."""
        known = [y for y in self.known_labels if isinstance(y, _PLAIN)]
        return {"classes": self.classes, "seen": known}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`; an error if it is none. Labels that are declared now replace those declared then."""
        classes, known = state["classes"], list(state["seen"])
        if self.classes is None:
            self.__init__(classes)  # type: ignore[misc]
            self.known_labels |= dict.fromkeys(known)


_DECLARE = "If it is a label, declare all of them: --labels-are A,B,C, or LearningLoop(classes=[...])"


def _reads_as_number(y: Any) -> bool:
    try:
        return math.isfinite(float(y)) and len(str(y)) < MAX_NUMBER_CHARS
    except (TypeError, ValueError, OverflowError):
        return False


def _plain_label(y: Any) -> Any:
    try:
        return to_plain(y)
    except ValueError as error:
        raise RowError("label", f"label {error}") from None


def get_learned_columns(model: Any) -> list[Any]:
    """Return the columns that a model has learned; none where transformers make features of others, and do not tell."""
    steps, last = split_pipeline(model)
    if not steps:
        return list(getattr(find_learner(last), "feature_names", ()))
    for name in ("learned_columns", "counts"):  # of an encoder, of a scaler
        if isinstance(learned := getattr(steps[0], name, None), list | Mapping):
            return list(learned)
    return []


def describe_parameters(model: Any) -> str:
    """Return the parameters of a model that has learned nothing."""
    # Taken before the first row, for some models show state in their repr; without addresses in memory. A wrapper's repr says
    # of what it wraps the name only.
    kind = type(model).__name__
    texts = [repr(model).replace(kind, "Pipeline", 1) if isinstance(model, compose.Pipeline) else repr(model)]
    for step in model.steps.values() if isinstance(model, compose.Pipeline) else [model]:
        while isinstance(step, base.Wrapper):
            step = step._wrapped_model
            texts.append(repr(step))
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(texts))


def describe_differences(then: str, now: str) -> str:
    """Say which lines of the parameters of two models differ."""
    before, after = (Counter(filter(None, (line.strip(" (),") for line in text.splitlines()))) for text in (then, now))
    learned, asked = (", ".join((one - other).elements()) for one, other in ((before, after), (after, before)))
    parts = [f"it was learned with {learned}"] * bool(learned) + [f"asked for is {asked}"] * bool(asked)
    return ", and ".join(parts) or "its steps have another order"
