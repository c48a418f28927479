"""Rows at hand together; and checks of a row before any part of a model sees it, so that one which is refused leaves nothing."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, overload

import numpy as np
from river import base, compose

from streamsvm.core.checks import checked_target
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import BadRow, BatchSource, Row, Rows, Source


class RawRows(Sequence[Row | BadRow]):
    """Rows that are read one by one as they are asked for, or one after the other with fewer checks.

    Parameters
    ----------
    read
        Reads the row with a number.
    read_pairs
        Gives the features and the label of each row from one number to another, and ends early before one that needs a closer
        look. Values of features may be no numbers.
    rows
        The first number, and the one after the last.
    """

    def __init__(
        self,
        read: Callable[[int], Row | BadRow],
        read_pairs: Callable[[int, int], Iterator[tuple[Any, Any]]],
        rows: tuple[int, int],
    ) -> None:
        self._read, self._read_pairs, self._rows = read, read_pairs, rows

    def __len__(self) -> int:
        return self._rows[1] - self._rows[0]

    @overload
    def __getitem__(self, i: int) -> Row | BadRow: ...
    @overload
    def __getitem__(self, i: slice) -> RawRows: ...
    def __getitem__(self, i: int | slice) -> Row | BadRow | RawRows:
        numbers = range(*self._rows)[i]
        if isinstance(numbers, int):
            return self._read(numbers)
        return RawRows(self._read, self._read_pairs, (numbers.start, numbers.stop))

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Give the features and the label of each row, up to one that must be looked at by itself."""
        return self._read_pairs(*self._rows)


class OneByOne:
    """The `BatchSource` of a source that only iterates."""

    def __init__(self, source: Source) -> None:
        self._source, self._iterator = source, iter(source)

    def take(self, most: int) -> list[Row | BadRow] | None:  # noqa: ARG002
        """Return the next row; None at the end."""
        row = next(self._iterator, None)
        return None if row is None else [row]

    def place_of(self, i: int) -> str:  # noqa: ARG002
        """The place of the row."""
        return self._source.place

    def raw_of(self, i: int) -> bytes | None:  # noqa: ARG002
        """The bytes of the row."""
        return getattr(self._source, "raw", None)


def batches_of(source: Source) -> BatchSource:
    """Return what gives the rows at hand of a source: itself, if it can."""
    found: Any = source if hasattr(source, "take") else OneByOne(source)
    return found


class WrappedSource:
    """A source with other rows: those that a class below this one makes of them.

    Parameters
    ----------
    source
        The source; all else is asked of it.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._batches: BatchSource | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows, as `BatchSource.take`."""
        if self._batches is None:
            self._batches = batches_of(self._source)
        rows = self._batches.take(most)
        return self._changed(rows) if rows else rows

    def _changed(self, rows: Sequence[Row | BadRow] | Rows) -> Sequence[Row | BadRow] | Rows:
        """Return what becomes of rows, at least one."""
        raise NotImplementedError

    def place_of(self, i: int) -> str:
        """The place of a row of those that were taken last."""
        place: str = self._source.place if self._batches is None else self._batches.place_of(i)
        return place

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of a row of those that were taken last."""
        return None if self._batches is None else self._batches.raw_of(i)


_LARGEST = float(np.finfo(np.float32).max)
_MOST_NAMES = 1000  # up to which rows with new ones are transformed by copies
LONGEST_NUMBER = 400  # characters


class RowError(ValueError):
    """A row is refused. ``kind`` is a short name for reasons alike."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class GuardedModel:
    """A model whose rows are checked before any part of it learns from them.

    In a pipeline of river, transformers learn a row before the last step can refuse it. Here a row's numbers are checked first
    (finite, and within the range of float32; text is for the transformers, and refused where none of them takes it), then it is
    transformed by what was learned before, which the last step predicts and checks. A learner of this library refuses a row as a
    whole by itself, so alone it is not guarded.

    Many transformers of river change by a name that they only transform (they note it, or draw numbers for it), some transform
    what they cannot learn, and some make infinities of what they have not learned. So a row with a new name, or with a text where
    there was none, is tried on a copy of them, up to 1,000 names, and what is not finite counts as 0 there.

    This cannot undo what is learned before a transformer's ``learn_one`` fails where its ``transform_one`` did not, what
    transformers take from more than 1,000 names, nor what they take under river's ``compose.learn_during_predict`` or inside
    a wrapper.

    Parameters
    ----------
    model
        A river model or pipeline.
    learns
        Whether rows will be learned.

    Attributes
    ----------
    prepare : callable or None
        Checks a row, and transforms it for ``last``; None if neither is needed.
    last : estimator
        The step that predicts; the model itself if it is no pipeline.
    check : callable or None
        Raises a ValueError where ``last`` would refuse to learn a row and its label; None if it cannot tell.
    new_names : bool
        Whether the row that was prepared last is of a new kind: tell `learned` once it is.

    Raises
    ------
    ValueError
        It is no model that predicts.
    """

    def __init__(self, model: Any, learns: bool = True) -> None:
        self.model = model
        self.prepare: Callable[[Any], Any] | None = None
        self.new_names: bool = False
        self._known: set[Hashable] = set()
        self._texts: set[Hashable] = set()
        steps, last = steps_of(model)
        self._steps = steps
        self.last: Any = last
        if isinstance(model, type) or not (hasattr(self.last, "predict_one") and hasattr(self.last, "learn_one")):
            raise ValueError(f"the model must be a classifier or a regressor, or a pipeline that ends in one, not {_kind(model)}")
        piped = bool(self._steps)
        checker = self.last if hasattr(self.last, "check_one") else learner_of(self.last)
        self.check: Callable[[Any, Any], None] | None = getattr(checker, "check_one", None)
        if piped:
            self.prepare = self._prepare_learning if learns else self._prepare
        elif self.check is None or checker is not self.last:
            self.prepare = _checked
        else:  # a learner of this library, which checks all by itself
            self.check = None

    def _prepare(self, x: Any) -> Any:
        _check_row(x)
        for step in self._steps:
            x = step.transform_one(x)
        return x

    def _prepare_learning(self, x: Any) -> Any:
        all_numbers = _check_row(x)
        if compose.Pipeline._LEARN_UNSUPERVISED_DURING_PREDICT:
            pipeline = self.model
            while isinstance(pipeline, compose.Pipeline):
                x, pipeline = pipeline._transform_one(x)
            return x
        if isinstance(x, Mapping) and len(self._known) <= _MOST_NAMES:
            self.new_names = not x.keys() <= self._known or not (all_numbers or _texts(x) <= self._texts)
            if self.new_names:
                return self._tried(x)
        else:
            self.new_names = False
        for step in self._steps:
            x = step.transform_one(x)
        return x

    def _tried(self, x: Any) -> Any:
        # Transformed by copies, which then learn the row: some transform what they refuse to learn.
        steps, learned = copy.deepcopy(self._steps), x
        for step in steps:
            x = step.transform_one(x)
        for step in steps:
            if not step._supervised:
                step.learn_one(learned)
            learned = step.transform_one(learned)
        if not isinstance(x, Mapping):
            return x
        return {name: 0.0 if isinstance(value, float) and not math.isfinite(value) else value for name, value in x.items()}

    def learned(self, x: Any) -> None:
        """Know the names of a row that was learned, and which of them have values that are no numbers."""
        self._known.update(x)
        self._texts.update(_texts(x))

    def culprit(self, x: Any) -> tuple[Hashable, ...]:
        """The name of the feature that, were it a number, would let the row be predicted; a tuple of one, or of none."""
        if not isinstance(x, Mapping):
            return ()
        suspects = [name for name, value in x.items() if not is_number(value)][:64]
        steps = copy.deepcopy(self._steps)  # which may change by what they transform

        def predicts(x: Any) -> bool:
            try:
                for step in steps:
                    x = step.transform_one(x)
                self.last.predict_one(x)
            except Exception:  # noqa: BLE001 - of any step
                return False
            return True

        harmless = {**x, **dict.fromkeys(suspects, 0.0)}
        guilty = [name for name in suspects if predicts({**x, name: 0.0})]
        if not guilty and predicts(harmless):  # several are
            guilty = [name for name in suspects if not predicts({**harmless, name: x[name]})]
        return tuple(guilty[:1])


def steps_of(model: Any) -> tuple[list[Any], Any]:
    """Return the transformers of a pipeline in their order, also of pipelines in it, and what stands at its end."""
    steps: list[Any] = []
    while isinstance(model, compose.Pipeline) and model.steps:
        *before, model = model.steps.values()
        steps += before
    return steps, model


def learner_of(model: Any) -> Any:
    """Return the learner of a model: the last step of a pipeline, or what it has within that scales targets."""
    last = steps_of(model)[1]
    return last.regressor if isinstance(last, base.Wrapper) and hasattr(last, "regressor") else last


def gives_probabilities(model: Any) -> bool:
    """Whether a classifier has probabilities, which not all of river's have."""
    own = getattr(type(model), "predict_proba_one", None)
    return own is not None and own is not base.Classifier.predict_proba_one


def takes_many(guarded: GuardedModel, learns: bool) -> bool:
    """Whether a model predicts, or also learns, many rows in one call: a learner of this library, with nothing before it."""
    if guarded.prepare is not None or not hasattr(guarded.last, "predict_then_learn"):
        return False
    return not learns or guarded.last.learns_many_at_once


class Columns(NamedTuple):
    """Rows as `predict_then_learn` takes them."""

    X: np.ndarray
    names: Sequence[Hashable] | None
    y: Sequence[Any]
    empty: int
    """Rows that have no feature."""


def columns_of(rows: Sequence[Row | BadRow] | Rows, model: Any) -> Columns | None:
    """Return rows as columns for a model that takes many; None where one could not be read, or brings something new."""
    if isinstance(rows, Rows):
        y, empty = [None] * len(rows) if rows.y is None else rows.y, 0 if rows.names else len(rows)
        X, missing = rows.X, np.isnan(rows.X)
        if missing.any():
            X, empty = np.where(missing, 0.0, X), int(missing.all(axis=1).sum())
        # Compiled code takes rows that lie one behind the other, and may be written to.
        return Columns(np.require(X, np.float32, ["C", "W"]), rows.names, y, empty)
    ys: list[Any] = []
    empty = 0

    def features() -> Iterator[Any]:
        nonlocal empty
        for x, y in pairs:
            ys.append(y)
            empty += not x
            yield x

    pairs: Iterable[Any] = rows.pairs() if isinstance(rows, RawRows) else rows
    if pairs is rows and BadRow in set(map(type, rows)):
        return None
    X = model.lay_out(features(), len(rows))
    return None if X is None or len(ys) < len(rows) else Columns(X, None, ys, empty)


def _kind(model: Any) -> str:
    return repr(model) if model is None or isinstance(model, str | type) else f"a {type(model).__name__}"


def _check_row(x: Any) -> bool:
    """Check the numbers of a row, as `check_numbers`; whether all its values are numbers."""
    try:
        if math.hypot(*x.values()) <= _LARGEST:  # then each number is, and none is NaN
            return True
    except (TypeError, ValueError, OverflowError, AttributeError):  # text, and whatever else transformers may take
        pass
    if isinstance(x, Mapping):
        check_numbers(x)
    return False


def _checked(x: Any) -> Any:
    _check_row(x)
    return x


def _texts(x: Mapping[Any, Any]) -> set[Hashable]:
    return {name for name, value in x.items() if not is_number(value)}


def check_numbers(x: Mapping[Any, Any]) -> None:
    """Raise a RowError that names the first number which is not finite, or too large for float32. What is no number may stay."""
    for name, value in x.items():
        if value.__class__ is float and -_LARGEST <= value <= _LARGEST:
            continue
        if is_number(value) and not (math.isfinite(value) and abs(value) <= _LARGEST):
            raise RowError(
                "not finite",
                f"feature {name!r} is {shown(value)}: features must be finite float32 numbers. Impute it "
                "(river.preprocessing.StatImputer) or leave it out (a missing feature counts as 0)",
            )


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or numpy."""
    return isinstance(value, int | float | np.number | np.bool_) and not isinstance(value, np.complexfloating)


def reason_of(error: Exception, x: Any, guarded: GuardedModel) -> tuple[str, str]:
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
    found = guarded.culprit(x)
    if found:
        return "not a number", f"{text} (feature {found[0]!r} is {shown(x[found[0]])})"
    return "model", text


def checked_number(y: Any) -> float:
    """Return a label that is a number to predict, which may be its text; RowError if it is not a finite number."""
    try:
        is_text = isinstance(y, str) and len(y) < LONGEST_NUMBER and "_" not in y
        return checked_target(float(y) if is_text or isinstance(y, numbers.Real | Decimal) else y)
    except (ValueError, OverflowError):
        raise RowError("label", f"label {shown(y)} is not a finite number to predict") from None


def listed(names: Iterable[Any], most: int) -> str:
    """The first ``most`` names, for a message."""
    names = list(map(repr, names))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
