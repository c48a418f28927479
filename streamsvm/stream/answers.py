"""The parts of predictions beside the label: copies of columns and messages of their rows, all probabilities, an interval."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.core.checks import as_python, finite_or_none
from streamsvm.files.messages import shown
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.endpoints import START_AFRESH, Record, Sink, Source, StreamError
from streamsvm.stream.rows import RowError, steps_of
from streamsvm.stream.tables.chunk import Chunk, Message
from streamsvm.stream.tables.reading import Names, as_names

#: The most characters of all columns that are copied from a row: predictions must fit into a message of Kafka.
MOST_KEPT = 2**16
#: The most bytes of the key and the headers that are copied from a message.
MOST_OF_MESSAGE = 2**17


class Keeping:
    """Makes predictions with further fields: columns of the row, of a topic partition, offset and message, and ``answers``.

    The source says what its chunks copy. A sink with ``takes_messages`` gets the message of a row, too. A StreamError says that a
    prediction has a field of such a name already.
    """

    def __init__(
        self, source: Source, sink: Sink, names: Sequence[str], record: type[Record], answers: Sequence[ExtraFields] = ()
    ) -> None:
        kept = source.keep(names)
        answered = [name for answer in answers for name in answer.fields]
        #: The further fields of predictions.
        self.names: list[str] = [*kept, *answered]
        self._asked = bool(names)
        self.takes_messages: bool = sink.takes_messages and source.has_messages
        self._kept, self._answers = kept, answers
        taken = {*record._fields, *self.names[len(names) :]}
        if clash := [name for name in names if name in taken]:
            raise StreamError(
                f"{source.name}: column {clash[0]!r} cannot be kept, because predictions have a field of that name. Rename it"
            )
        #: Makes a prediction of its values, and of what `of` returns for its row.
        self.kind: Callable[..., Record] = _record_kind(record, self.names, self.takes_messages)

    def columns(self, chunk: Chunk, first: int, end: int) -> list[Sequence[Any]]:
        """Return what predictions of rows get, by field, and their messages; a RowError where that is too long, or no text."""
        columns = chunk.kept(first, end)
        if self._asked and not are_plain(columns):
            rows = [kept_values(self._kept, values) for values in zip(*columns, strict=True)]
            columns = [list(values) for values in zip(*rows, strict=True)]
        if not self.takes_messages:
            return columns
        if (messages := chunk.messages(first, end)) is None:
            return [*columns, [None] * (end - first)]
        if messages.largest > MOST_OF_MESSAGE and (size := max(message.size for message in messages)) > MOST_OF_MESSAGE:
            text = f"key and headers of the message have {size:,} bytes; predictions can keep {MOST_OF_MESSAGE:,}"
            raise RowError("too long", text)
        return [*columns, messages]

    def of(self, chunk: Chunk, i: int, model: Any, x: Any) -> list[Any]:
        """Return what the prediction of a row gets, which the model has not learned yet; a RowError as of `columns`."""
        kept = [values[0] for values in self.columns(chunk, i, i + 1)]
        if self._answers:
            n = len(self._kept)
            kept[n:n] = [value for answer in self._answers for value in answer.of(model, x)]
        return kept


def keeping_of(
    source: Source, sink: Sink | None, keep: Names, record: type[Record], answers: Sequence[ExtraFields] = ()
) -> Keeping | None:
    """Return what makes predictions with ``keep``, ``answers`` and what a topic adds, or None; a ValueError if there are none."""
    names = as_names("keep", keep)
    if sink is None:
        if names:
            raise ValueError("keep copies columns into predictions, and these go nowhere: give sink=... (--to)")
        return None
    found = Keeping(source, sink, names, record, answers)
    return found if found.names or found.takes_messages else None


def check_kept(folder: Path | str, header: Mapping[str, Any], keeping: Keeping | None) -> None:
    """Raise a CheckpointError where predictions before a checkpoint have other fields."""
    then, now = header.get("kept", []), [] if keeping is None else keeping.names
    if then != now:
        raise CheckpointError(
            f"{folder} was written with predictions that have {shown(then)} of their rows, not {shown(now)}: "
            f"ask for the same --keep, --probabilities and --explain (keep=..., answers=...), {START_AFRESH}"
        )


def kept_values(names: Iterable[str], values: Iterable[Any]) -> list[Any]:
    """Return values as a prediction has them: None, bools, numbers and texts.

    A number that is not finite is None, and a whole one beyond 64 bits is its text. A date is text in ISO 8601; lists and objects
    are JSON. A RowError says that a value is no text that UTF-8 can hold, is nested too deep, or all are too long.

    >>> kept_values(["id", "n", "tags"], ["007", float("nan"), ["a", 1]])
    ['007', None, '["a", 1]']
    """
    found, length = [], 0
    for name, value in zip(names, values, strict=True):
        if value is not None and value.__class__ is not int:
            value = _kept_value(name, value)
        elif value is not None and not -(2**63) <= value < 2**63:
            value = str(value)
        if value.__class__ is str:
            length += len(value)
            if length > MOST_KEPT:
                raise RowError("too long", f"columns to keep have more than {MOST_KEPT:,} characters, with {name!r}")
        found.append(value)
    return found


def are_plain(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether columns hold short texts, whole numbers of 64 bits, bools and None alone, which predictions have as they are."""
    length = 0
    for values in columns:
        kinds = set(map(type, values))
        if not kinds <= _PLAIN:
            return False
        texts = [value for value in values if value.__class__ is str] if str in kinds else []
        length += max(map(len, texts), default=0)
        wholes = [value for value in values if value.__class__ is int] if int in kinds else [0]
        if not ("".join(texts).isascii() and min(wholes) >= -(2**63) and max(wholes) < 2**63):
            return False
    return length <= MOST_KEPT


_PLAIN = frozenset((str, int, bool, type(None)))


def _kept_value(name: str, value: Any) -> Any:
    value = as_python(value)
    if isinstance(value, float):
        return finite_or_none(value)
    if value is None or isinstance(value, bool):
        return value
    try:
        if isinstance(value, date | time):
            return None if value != value else value.isoformat()  # the NaT of pandas is not equal to itself
        if isinstance(value, bytes):
            return value.decode()
        text = value if type(value) is str else _json_text(value)
        if not text.isascii():
            text.encode()
    except (ValueError, TypeError, RecursionError):  # of half a surrogate pair, a NaN in a list, a name that is no text
        raise RowError(
            "malformed", f"column {name!r} is {shown(value)}, which cannot be kept: it is no text, and no JSON"
        ) from None
    return text


def _json_text(value: Any) -> str:
    if isinstance(value, Mapping | Sequence):
        return json.dumps(value, default=str, ensure_ascii=False, allow_nan=False)
    return str(value)  # of a Decimal, or whatever a file can hold


class OfMessage:
    """A record of a topic's row, for a sink with ``takes_messages``: beside its fields, it has the message of the row."""

    message: Message | None = None


def message_of(record: Any) -> Message | None:
    """Return the message that a record is `OfMessage`; None if there is none."""
    return record.message if isinstance(record, OfMessage) else None


def _record_kind(record: Any, names: Iterable[str], has_message: bool) -> Callable[..., Record]:
    """Return a kind of record with further fields; with ``has_message`` it is `OfMessage`, and the last argument becomes that."""
    fields = (*record._fields, *names)

    class Kept(record, OfMessage):  # type: ignore[misc]
        _fields = fields

        def __new__(cls, *values: Any) -> Any:
            made = tuple.__new__(cls, values[: len(fields)])
            if has_message:
                made.message = values[-1]
            return made

        def __repr__(self) -> str:
            return f"{record.__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    found: Callable[..., Record] = Kept
    return found


class ExtraFields(NamedTuple):
    """Further fields of each prediction."""

    fields: tuple[str, ...]
    """Their names."""
    of: Callable[[Any, Any], Sequence[Any]]
    """Returns their values, of the model and a row as it came, before the row is learned."""


#: The probabilities of all labels, by label.
PROBABILITIES = ExtraFields(
    ("probabilities",), lambda model, x: [{str(label): float(p) for label, p in model.predict_proba_one(x).items()}]
)


def calibrated_answer(model: Any) -> ExtraFields | None:
    """Return what a model is sure of, if it is a conformal one: the ends of an interval, or the labels of a set; else None."""
    last = steps_of(model)[1]
    if hasattr(last, "predict_interval_one"):
        return ExtraFields(
            ("low", "high"), lambda model, x: [finite_or_none(end) for end in _said_by_last(model, x, "predict_interval_one")]
        )
    if hasattr(last, "predict_set_one"):
        return ExtraFields(("labels",), lambda model, x: [_said_by_last(model, x, "predict_set_one")])
    return None


def _said_by_last(model: Any, x: Any, method: str) -> Any:
    steps, last = steps_of(model)
    for step in steps:
        x = step.transform_one(x)
    return getattr(last, method)(x)


def probabilities_of(each: Mapping[Any, Sequence[float]], labels: Sequence[Any]) -> list[float | None]:
    """Return the probability of the label that each row is given, of the probabilities of all labels; None where it has none.

    >>> probabilities_of({"ham": [0.9, 0.4], "spam": [0.1, 0.6]}, ["ham", "ham"])
    [0.9, 0.4]
    """
    return [float(each[label][i]) if label in each else None for i, label in enumerate(labels)]


def without_unsure(labels: Sequence[Any], probabilities: Sequence[float | None] | None, least: float) -> tuple[list[Any], int]:
    """Return labels with None for those that are less probable than ``least``, and how many these are.

    >>> without_unsure(["ham", "ham"], [0.9, 0.4], 0.8)
    (['ham', None], 1)
    """
    found = [None if p is not None and p < least else label for label, p in zip(labels, probabilities or (), strict=True)]
    return found, sum(label is not None for label in labels) - sum(label is not None for label in found)
