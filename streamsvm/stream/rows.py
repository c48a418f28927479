"""Validates rows and labels before any part of a model learns from them."""

from __future__ import annotations

import copy
import functools
import math
import numbers
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
from river import base, compose

from streamsvm.core.checks import LARGEST_FLOAT32, to_plain, validate_target
from streamsvm.core.mutation import Mutable
from streamsvm.files.messages import format_names, is_encodable, short_repr
from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.values import parse_number

#: The types of real numbers.
NUMBER_TYPES = (int, float, np.number, np.bool_)
MAX_NUMBER_CHARS = 400  # a longer text is not parsed as a number


class RowError(ValueError):
    """The reason why a row is refused. ``kind`` is its short name; refused rows are counted by it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ValidatingPipeline:
    """A model, split into its transformers and its last step, that validates each row before any of them learns it.

    In a river pipeline, transformers learn a row before the last step can refuse it. Here the numbers of a row are checked first:
    they must be finite, and within the range of float32. Text is left to the transformers. Then the row is transformed, without
    being learned, and the last step checks and predicts the transformed row. A learner of this library refuses a row as a whole
    by itself, so without transformers it needs no check.

    Some river transformers turn features that they have not learned into infinities. These count as 0.

    A refused row leaves no trace in the learner, or in transformers of this library. River transformers may remember the name of
    a feature that they transform, or draw random numbers for it. A row whose ``transform_one`` succeeds and whose ``learn_one``
    fails (a text in a new column, behind river's StandardScaler) has been learned in part. Also, rows that transformers learn
    under river's ``compose.learn_during_predict``, or inside a wrapper, are not forgotten.

    Raises
    ------
    ValueError
        The model has no ``predict_one`` or ``learn_one``.
    """

    def __init__(self, model: Any, learns: bool = True) -> None:
        self.model = model
        #: Validates a row and transforms it for `last_step`; None if neither is needed.
        self.prepare_row: Callable[[Any], Any] | None = None
        steps, last = split_pipeline(model)
        self._steps = steps
        #: The step that predicts; the model itself if it is not a pipeline.
        self.last_step: Any = last
        #: Whether the last step scores anomalies: it predicts a score of each row, and learns without labels.
        self.detects_anomalies: bool = detects_anomalies(last)
        predicts = (hasattr(last, "predict_one") or self.detects_anomalies) and hasattr(last, "learn_one")
        if isinstance(model, type) or not predicts:
            kind = repr(model) if model is None or isinstance(model, str | type) else f"a {type(model).__name__}"
            raise ValueError(f"the model must be a classifier or a regressor, or a pipeline that ends in one, not {kind}")
        #: Predicts a transformed row: the last step's ``predict_one``, or ``score_one`` for anomalies.
        self.predict_one: Callable[[Any], Any] = last.score_one if self.detects_anomalies else last.predict_one
        checker = last if hasattr(last, "check_one") else find_learner(last)
        #: Raises a ValueError if `last_step` would refuse to learn a row and its label; None if the learner has no check.
        self.check_row: Callable[[Any, Any], None] | None = getattr(checker, "check_one", None)
        #: Whether the model is a learner of this library without transformers.
        self.is_bare_learner: bool = False
        #: The encoder before `last_step`, if it is the only transformer and can encode rows in batches; else None.
        self.encoder: TableEncoder | None = None
        if len(steps) == 1 and type(steps[0]) is TableEncoder and steps[0].scaler is None:
            self.encoder = steps[0]
        #: The encoder at the beginning of the pipeline, which may have a scaler; None without one.
        self.table_encoder: TableEncoder | None = steps[0] if steps and isinstance(steps[0], TableEncoder) else None
        if steps:
            self.prepare_row = self._transform_to_learn if learns else self._transform_row
        elif self.check_row is None or checker is not last:
            self.prepare_row = _check_row
        else:  # a learner of this library validates rows by itself
            self.check_row, self.is_bare_learner = None, True
            self.prepare_row = None if learns else self._without_unknown_texts
        #: As `check_row`, for a bare learner and a label that is new to it: beyond ``max_classes``, it would ignore the row.
        self.check_new_label: Callable[[Any, Any], None] | None = None if self.check_row else getattr(last, "check_one", None)

    def find_key_labels(self, features: Mapping[Hashable, Any]) -> list[Any]:
        """Return the previous labels of the keys of rows, as `TableEncoder.find_key_labels`; empty without a `TableEncoder`, or
        if another transformer has changed its features.
        """
        return [] if self.table_encoder is None or len(self._steps) > 1 else self.table_encoder.find_key_labels(features)

    @property
    def dropped_columns(self) -> list[str]:
        """Names of the columns that the encoders in this pipeline drop."""
        return [name for step in self._steps if isinstance(step, TableEncoder) for name in step.dropped_columns]

    def _without_unknown_texts(self, x: Any) -> Any:
        """Return the row ``x`` (values by feature name) without the texts in features that the learner does not know. With them,
        the learner would refuse the row.
        """
        if not isinstance(x, Mapping) or all(map(is_number, x.values())):
            return x
        features = set(self.last_step.feature_names)
        return {name: value for name, value in x.items() if name in features or not isinstance(value, str | bytes)}

    def _transform_row(self, x: Any) -> Any:
        """Check that all numbers of the row ``x`` are finite and fit float32, and return it transformed by all transformers of
        the pipeline. None of them learns the row. Raise a RowError if a number is invalid. An encoder comes before the check,
        because it defines which numbers are missing values.
        """
        n_encoders = int(self.table_encoder is not None)
        for step in self._steps[:n_encoders]:
            x = step.transform_one(x)
        _check_row(x)
        for step in self._steps[n_encoders:]:
            x = step.transform_one(x)
        return x

    def _transform_to_learn(self, x: Any) -> Any:
        """Return the row ``x``, before it is learned, transformed by all transformers of the pipeline, with 0 for infinities and
        NaNs in their result. If river's ``learn_during_predict`` is active, the transformers learn the row, and these numbers
        stay. Raise a RowError if a number of ``x`` is not finite or too large for float32.
        """
        if compose.Pipeline._LEARN_UNSUPERVISED_DURING_PREDICT:
            _check_row(x)
            pipeline = self.model
            while isinstance(pipeline, compose.Pipeline):
                x, pipeline = pipeline._transform_one(x)
            return x
        return _with_finite_numbers(self._transform_row(x))

    def find_bad_feature(self, x: Any) -> tuple[Hashable, ...]:
        """Return the name of a feature whose value is not a number and prevents the model from predicting the row ``x``: with 0
        instead of the value, the model can predict it. The result is a tuple with this one name; ``()`` if no such feature is
        found.
        """
        if not isinstance(x, Mapping):
            return ()
        suspects = [name for name, value in x.items() if not is_number(value)][:_MAX_SUSPECTS]
        steps = copy.deepcopy(self._steps)  # a transformer may change when it transforms

        def can_predict(x: Any) -> bool:
            try:
                for step in steps:
                    x = step.transform_one(x)
                self.predict_one(x)
            except Exception:  # noqa: BLE001 - of any step
                return False
            return True

        harmless = {**x, **dict.fromkeys(suspects, 0.0)}
        bad = [name for name in suspects if can_predict({**x, name: 0.0})]
        if not bad and can_predict(harmless):  # several are
            bad = [name for name in suspects if not can_predict({**harmless, name: x[name]})]
        return tuple(bad[:1])


def split_pipeline(model: Any) -> tuple[list[Any], Any]:
    """Return the transformers of a river pipeline (in order, those of nested pipelines included) and its last step; an empty list
    and the model itself if it is not a pipeline.
    """
    steps: list[Any] = []
    while isinstance(model, compose.Pipeline) and model.steps:
        *before, model = model.steps.values()
        steps += before
    return steps, model


def find_learner(model: Any) -> Any:
    """Return the learner within a model: the last step of a pipeline, and within it the model inside wrappers that scale targets
    or choose labels.
    """
    while True:
        model = split_pipeline(model)[1]
        if not (isinstance(model, base.Wrapper) and (isinstance(model, Mutable) or hasattr(model, "regressor"))):
            return model
        model = model._wrapped_model


def find_keys(model: Any) -> list[str]:
    """Return the names of the columns of a model that are keys, such as the device of a row."""
    steps, last = split_pipeline(model)
    keys = [key for step in steps if isinstance(step, TableEncoder) for key in step.keys]
    return list(dict.fromkeys([*keys, *filter(None, [getattr(last, "key", None)])]))


def detects_anomalies(model: Any) -> bool:
    """Return whether the last step of a model is an anomaly detector of river's protocol, which learns without labels."""
    return isinstance(split_pipeline(model)[1], base.AnomalyDetector)


def has_probabilities(model: Any) -> bool:
    """Return whether a river classifier defines ``predict_proba_one``. Some can only predict labels."""
    own = getattr(type(model), "predict_proba_one", None)
    return own is not None and own is not base.Classifier.predict_proba_one


def _check_row(x: Any) -> Any:
    """Return the row ``x`` (numbers by feature name) unchanged. Raise a RowError if a number is not finite or too large for
    float32.
    """
    try:
        if math.hypot(*x.values()) <= LARGEST_FLOAT32:  # a quick test that all numbers are valid
            return x
    except (TypeError, ValueError, OverflowError, AttributeError):  # text, and other values for transformers
        pass
    if isinstance(x, Mapping):
        check_numbers(x)
    return x


def _with_finite_numbers(x: Any) -> Any:
    """Return the row ``x`` with infinities and NaNs replaced by 0. Some river transformers return them for features that they
    have not learned.
    """
    try:
        if math.hypot(*x.values()) < math.inf:
            return x
    except (TypeError, OverflowError, AttributeError):
        pass
    if not isinstance(x, Mapping):
        return x
    return {name: 0.0 if isinstance(value, float) and not math.isfinite(value) else value for name, value in x.items()}


def check_numbers(x: Mapping[Any, Any]) -> None:
    """Raise a RowError that names the first feature of the row ``x`` whose number is not finite, or too large for float32. Values
    that are not numbers are ignored.
    """
    for name, value in x.items():
        if value.__class__ is float and -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32:
            continue
        if is_number(value) and not (math.isfinite(value) and abs(value) <= LARGEST_FLOAT32):
            text = f"feature {name!r} is {short_repr(value)}: features must be finite float32 numbers"
            advice = "Impute it (river.preprocessing.StatImputer) or leave it out (a missing feature counts as 0)"
            raise RowError("not finite", f"{text}. {advice}")


def is_number(value: Any) -> bool:
    """Return whether a value is a real number (int, float, or numpy's scalar types), not a complex one."""
    return isinstance(value, NUMBER_TYPES) and not isinstance(value, np.complexfloating)


def classify_error(error: Exception, x: Any, pipeline: ValidatingPipeline) -> tuple[str, str]:
    """Classify an exception about the row ``x`` of a ``pipeline``. Return the kind under which the refused row is counted, such
    as "label" or "not a number", and the message, with the name of the bad feature if it can be found.
    """
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
    for name in pipeline.find_bad_feature(x):
        return "not a number", f"{text} (feature {name!r} is {short_repr(x[name])})"
    return "model", text


def parse_target(y: Any) -> float:
    """Convert a regression target (a number, or its text) to a float. Raise a RowError if it is not a finite number."""
    try:
        is_text = isinstance(y, str) and len(y) < MAX_NUMBER_CHARS
        return validate_target(parse_number(y) if is_text else float(y) if isinstance(y, numbers.Real | Decimal) else y)
    except (ValueError, OverflowError):
        raise RowError(
            "label", f"label {short_repr(y)} is not a finite number to predict (labels: leave --regression out)"
        ) from None


_MAX_LABEL_DIGITS = 19  # a shorter number fits an int of 64 bits
_LARGEST_EXACT_INTEGER = 2**53  # larger integers are not exact as floats
_MAX_SUSPECTS = 64  # features of a row that are tried, because of the time that it takes


@functools.lru_cache(maxsize=1024)
def parse_label(text: str) -> Any:
    """Convert the text of a label to a bool, int or float if it is one, else return it as text; None if it is empty.

    A number that Python would print differently (``007``, ``1_000``, more digits than an int of 64 bits has) is probably a name,
    and stays text.

    >>> [parse_label(text) for text in ("true", "-1", "1.0", "007", "spam", "")]
    [True, -1, 1.0, '007', 'spam', None]
    """
    text = text.strip()
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if not text:
        return None
    if lower == "nan":  # a missing value rather than a name: learners refuse it
        return math.nan
    for kind in (float,) if "." in text else (int, float):
        try:
            if len(text) < _MAX_LABEL_DIGITS and str(number := kind(text)) == text and math.isfinite(number):
                return number
        except ValueError:
            pass
    return text


def parse_libsvm_label(text: str) -> Any:
    """Convert the label of a LIBSVM line to a number, where +1, 1 and 1.0 are equal. If it is not a number, convert it to a bool
    or text.
    """
    try:
        value = parse_number(text)
    except ValueError:
        return parse_label(text)
    return int(value) if value.is_integer() and abs(value) < _LARGEST_EXACT_INTEGER else value


#: After this many rows, a new label is probably a mistake, and so is a stream without labels or weights.
SETTLED_ROWS = 1000
_LABEL_TYPES = (bool, int, float, str)
MAX_LABELS = 4096  # labels that are remembered; further ones are checked each time


class LabelRules:
    """The labels that a stream may have: the declared ``classes``, or any labels of the same type as the first one.

    A float that is equal to an int is accepted among ints. Raises a ValueError if there are fewer than two ``classes``, two are
    equal, or one is not a bool, int, float or str.

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
        self.classes: list[Any] | None = None if classes is None else [_to_plain_label(y) for y in classes]
        #: The labels that were learned or declared, as keys.
        self.known_labels: dict[Any, None] = {} if self.classes is None else dict.fromkeys(self.classes)
        if self.classes is None:
            return
        if not 2 <= len(self.known_labels) == len(self.classes) or not all(isinstance(y, _LABEL_TYPES) for y in self.classes):
            raise ValueError(f"classes must be at least two different bools, ints, floats or texts, not {self.classes!r}")

    def check_is_new(self, y: Any) -> bool:
        """Return whether the label ``y`` is new: it was neither declared by the user nor learned before. Raise a RowError if it
        is invalid: not among the declared labels, empty, not finite, or of another type than earlier labels.
        """
        try:
            if y in self.known_labels:
                return False
        except TypeError:
            raise RowError("label", f"label {y!r} is a {type(y).__name__}: a label must be a bool, a number or a str") from None
        y = _to_plain_label(y)
        if y in self.known_labels:
            return False
        if self.classes is not None:
            raise RowError("label", f"label {short_repr(y)} is not among those declared: {format_names(self.classes, 10)}")
        if y.__class__ is float and not math.isfinite(y):
            raise RowError("label", f"label {y!r} is not a label; rows without a label can only be predicted")
        if y.__class__ is str and not y.strip():
            raise RowError("label", f"label {short_repr(y)} is empty. {_DECLARE_ADVICE}")
        if y.__class__ is str and not is_encodable(y):
            raise RowError("label", f"label {short_repr(y)} is not valid text: it has a lone surrogate")
        if not self.known_labels:
            return True
        first = next(iter(self.known_labels))
        are_whole = {y.__class__, first.__class__} == {int, float} and y % 1 == first % 1 == 0
        if are_whole or y.__class__ is first.__class__ or not (isinstance(y, _LABEL_TYPES) and isinstance(first, _LABEL_TYPES)):
            return len(self.known_labels) < MAX_LABELS
        numbers = "If they are numbers to predict: --regression, or a regressor. " * (is_number(first) and _reads_as_number(y))
        text = f"label {short_repr(y)} is a {type(y).__name__}, but the labels before it are {type(first).__name__}s"
        raise RowError("label", f"{text} (such as {first!r}). {numbers}{_DECLARE_ADVICE}")

    def add(self, y: Any) -> None:
        """Add ``y`` to the known labels. Call it after a row with this label was learned."""
        self.known_labels[_to_plain_label(y)] = None

    def describe_late_label(self, y: Any, rows: int) -> str:
        """Return a warning that the new label ``y`` may be a mistake, because it first occurs after ``rows`` rows; ``""`` if this
        is fewer than 1,000 (`SETTLED_ROWS`) or if labels are declared.
        """
        if rows < SETTLED_ROWS or self.classes is not None:
            return ""
        return (
            f"the label {short_repr(y)} is new after {rows:,} rows with {format_names(self.known_labels, 5)}. If it is a "
            "mistake, declare the labels, and rows with another one are refused: --labels-are A,B, or LearningLoop(classes=[...])"
        )

    @property
    def state(self) -> dict[str, Any]:
        """The declared labels (None if any label is allowed) and the known ones, as a dict, for a checkpoint."""
        seen = [y for y in self.known_labels if isinstance(y, _LABEL_TYPES)]
        return {"classes": self.classes, "seen": seen}

    def resume(self, state: Any) -> None:
        """Restore the known labels from a saved `state`. If this object was created with declared ``classes``, these replace the
        saved labels. Raise an exception if the state is invalid.
        """
        classes, seen = state["classes"], list(state["seen"])
        if self.classes is None:
            self.__init__(classes)  # type: ignore[misc]
            self.known_labels |= dict.fromkeys(seen)


_DECLARE_ADVICE = "If it is a label, declare all of them: --labels-are A,B,C, or LearningLoop(classes=[...])"


def _reads_as_number(y: Any) -> bool:
    """Return whether a label is a finite number, or a text that float() converts to one."""
    try:
        return math.isfinite(float(y)) and len(str(y)) < MAX_NUMBER_CHARS
    except (TypeError, ValueError, OverflowError):
        return False


def _to_plain_label(y: Any) -> Any:
    """Convert a label, such as a numpy scalar, to a plain Python object. Raise a RowError if that is not possible."""
    try:
        return to_plain(y)
    except ValueError as error:
        raise RowError("label", f"label {error}") from None


def get_learned_columns(model: Any) -> list[Any]:
    """Return the names of the columns that a model has learned. They are read from a pipeline's first transformer or, for a model
    without transformers, from its learner. Empty if that does not list its columns.
    """
    steps, last = split_pipeline(model)
    if not steps:
        return list(getattr(find_learner(last), "feature_names", ()))
    for name in ("learned_columns", "counts"):  # attributes of encoders and of scalers
        if isinstance(learned := getattr(steps[0], name, None), list | Mapping):
            return list(learned)
    return []


def get_learned_labels(model: Any) -> list[Any]:
    """Return the labels that a model has learned; empty for a regressor, and if the learner does not list its labels."""
    return list(getattr(find_learner(model), "labels", ()))


def describe_parameters(model: Any) -> str:
    """Return the parameters of an untrained model as text. It is saved in checkpoints, so that a later run can check that its
    model has the same ones.

    Call it before the first row, because some models show their state in their repr.
    """
    # The repr of a wrapper or encoder has only the name of its model or scaler: add their own. Addresses in memory are left out.
    kind = type(model).__name__
    texts = [repr(model).replace(kind, "Pipeline", 1) if isinstance(model, compose.Pipeline) else repr(model)]
    for step in model.steps.values() if isinstance(model, compose.Pipeline) else [model]:
        while isinstance(step, base.Wrapper):
            step = step._wrapped_model
            texts.append(repr(step))
        texts += [repr(step.scaler)] if isinstance(step, TableEncoder) and step.scaler is not None else []
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(texts))
