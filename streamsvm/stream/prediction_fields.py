"""The parts of predictions beside the label: copies of columns and messages of their rows, all probabilities, an interval."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.core.checks import finite_or_none, to_python_scalar
from streamsvm.files.messages import short_repr
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.endpoints import START_AFRESH, Sink, Source, StreamError
from streamsvm.stream.rows import RowError, listed, steps_of
from streamsvm.stream.tables.chunk import Chunk, MessageColumns
from streamsvm.stream.tables.table_parser import Names, as_names

#: The most characters of all columns that are copied from a row: predictions must fit into a message of Kafka.
MAX_COPIED_CHARS = 2**16
#: The most bytes of the key and the headers that are copied from a message.
MAX_COPIED_MESSAGE_BYTES = 2**17


class PredictionExtension:
    """The further fields of predictions: columns of the row, its partition and offset in a topic, and ``computed_fields``.

    The source says what its chunks copy. A StreamError says that one of the ``usual`` fields has such a name.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink | None,
        keep: Names = (),
        usual: Sequence[str] = (),
        computed_fields: Sequence[ComputedFields] = (),
    ) -> None:
        names = as_names("keep", keep)
        if sink is None and names:
            raise ValueError("keep copies columns into predictions, and these go nowhere: give sink=... (--to)")
        self._kept = [] if sink is None else source.keep(names)
        self._computed = () if sink is None else computed_fields
        self._asked = bool(names)
        self._has_messages = sink is not None and sink.takes_messages and source.has_messages
        #: Their names.
        self.names: list[str] = [*self._kept, *(name for answer in self._computed for name in answer.fields)]
        #: Whether predictions have anything of their rows.
        self.are_any: bool = bool(self.names) or self._has_messages
        taken = {*usual, *self.names[len(names) :]}
        if clash := [name for name in names if name in taken]:
            raise StreamError(
                f"{source.name}: column {clash[0]!r} cannot be kept, because predictions have a field of that name. Rename it"
            )

    def columns(self, chunk: Chunk, first: int, end: int) -> dict[str, Sequence[Any]]:
        """Return what is copied from rows, by field; raise a RowError where that is too long, or no text."""
        if not self._kept:
            return {}
        columns = chunk.kept(first, end)
        return dict(zip(self._kept, to_json_columns(self._kept, columns) if self._asked else columns, strict=True))

    def messages(self, chunk: Chunk, first: int, end: int) -> MessageColumns | None:
        """Return the messages of rows for a sink that takes them; raise a RowError where one is too long."""
        messages = chunk.messages(first, end) if self._has_messages else None
        if messages is None or messages.largest <= MAX_COPIED_MESSAGE_BYTES:
            return messages
        if (size := max(message.size for message in messages)) > MAX_COPIED_MESSAGE_BYTES:
            text = f"key and headers of the message have {size:,} bytes; predictions can keep {MAX_COPIED_MESSAGE_BYTES:,}"
            raise RowError("too long", text)
        return messages

    def of_row(self, chunk: Chunk, i: int, model: Any, x: Any) -> tuple[dict[str, Any], MessageColumns | None]:
        """Return the further fields and the message of a row that the model has not learned yet; raise a RowError as above."""
        fields = {name: values[0] for name, values in self.columns(chunk, i, i + 1).items()}
        for answer in self._computed:
            fields |= zip(answer.fields, answer.of(model, x), strict=True)
        return fields, self.messages(chunk, i, i + 1)


def check_same_fields(folder: Path | str, header: Mapping[str, Any], now: list[str]) -> None:
    """Raise a CheckpointError where predictions before a checkpoint have other further fields."""
    if (then := header.get("further_fields", [])) != now:
        raise CheckpointError(
            f"{folder} was written with predictions that have {short_repr(then)} of their rows, not {short_repr(now)}: "
            f"ask for the same --keep, --probabilities and --explain (keep=..., computed_fields=...), {START_AFRESH}"
        )


def to_json_columns(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Convert columns to values that predictions have: None, bools, numbers and texts.

    A number that is not finite is None, and a whole one beyond 64 bits is its text. A date is text in ISO 8601; lists and objects
    are JSON. Raise a RowError if a value is no text that UTF-8 can hold, or is nested too deep, or the texts of a row are too
    long.

    >>> to_json_columns(["id", "n", "tags"], [["007"], [float("nan")], [["a", 1]]])
    [['007'], [None], ['["a", 1]']]
    """
    copied = [
        values if _are_plain(values) else [_copied_value(name, value) for value in values]
        for name, values in zip(names, columns, strict=True)
    ]
    longest = sum(max((len(value) for value in values if value.__class__ is str), default=0) for values in copied)
    if longest > MAX_COPIED_CHARS:  # in one row, perhaps
        for row in zip(*copied, strict=True):
            if sum(len(value) for value in row if value.__class__ is str) > MAX_COPIED_CHARS:
                raise RowError("too long", f"columns to keep have more than {MAX_COPIED_CHARS:,} characters: {listed(names, 5)}")
    return copied


def _are_plain(values: Sequence[Any]) -> bool:
    """Return whether all values are ASCII text, whole numbers of 64 bits, bools or None, which are copied as they are."""
    kinds = set(map(type, values))
    if not kinds <= _PLAIN:
        return False
    integers = [value for value in values if value.__class__ is int] if int in kinds else [0]
    is_ascii = str not in kinds or "".join(value for value in values if value.__class__ is str).isascii()
    return is_ascii and min(integers) >= -(2**63) and max(integers) < 2**63


_PLAIN = frozenset((str, int, bool, type(None)))


def _copied_value(name: str, value: Any) -> Any:
    value = to_python_scalar(value)
    if isinstance(value, float):
        return finite_or_none(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
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
            "malformed", f"column {name!r} is {short_repr(value)}, which cannot be kept: it is no text, and no JSON"
        ) from None
    return text


def _json_text(value: Any) -> str:
    if isinstance(value, Mapping | Sequence):
        return json.dumps(value, default=str, ensure_ascii=False, allow_nan=False)
    return str(value)  # of a Decimal, or whatever a file can hold


class ComputedFields(NamedTuple):
    """Further fields of each prediction."""

    fields: tuple[str, ...]
    """Their names."""
    of: Callable[[Any, Any], Sequence[Any]]
    """Returns their values, of the model and a row as it came, before the row is learned."""


#: The probabilities of all labels, by label.
PROBABILITIES = ComputedFields(
    ("probabilities",), lambda model, x: [{str(label): float(p) for label, p in model.predict_proba_one(x).items()}]
)


def make_conformal_fields(model: Any) -> ComputedFields | None:
    """Return what a model is sure of, if it is a conformal one: the ends of an interval, or the labels of a set; else None."""
    last = steps_of(model)[1]
    if hasattr(last, "predict_interval_one"):
        return ComputedFields(
            ("low", "high"), lambda model, x: [finite_or_none(end) for end in _said_by_last(model, x, "predict_interval_one")]
        )
    if hasattr(last, "predict_set_one"):
        return ComputedFields(("labels",), lambda model, x: [_said_by_last(model, x, "predict_set_one")])
    return None


def _said_by_last(model: Any, x: Any, method: str) -> Any:
    steps, last = steps_of(model)
    for step in steps:
        x = step.transform_one(x)
    return getattr(last, method)(x)


def select_probabilities(probabilities: Mapping[Any, Sequence[float]], labels: Sequence[Any]) -> list[float | None]:
    """Return the probability of the label that each row is given, of the probabilities of all labels; None where it has none.

    >>> select_probabilities({"ham": [0.9, 0.4], "spam": [0.1, 0.6]}, ["ham", "ham"])
    [0.9, 0.4]
    """
    return [float(probabilities[label][i]) if label in probabilities else None for i, label in enumerate(labels)]


def abstain_below(labels: Sequence[Any], probabilities: Sequence[float | None] | None, least: float) -> tuple[list[Any], int]:
    """Return labels with None for those that are less probable than ``least``, and how many these are.

    >>> abstain_below(["ham", "ham"], [0.9, 0.4], 0.8)
    (['ham', None], 1)
    """
    sure = [None if p is not None and p < least else label for label, p in zip(labels, probabilities or (), strict=True)]
    return sure, sum(label is not None for label in labels) - sum(label is not None for label in sure)
