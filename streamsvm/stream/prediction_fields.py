"""Additional fields of predictions: columns copied from the row, metadata of its message, and outputs of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from typing import Any, NamedTuple

from streamsvm.core.checks import finite_or_none, to_python_scalar
from streamsvm.files.messages import format_names, short_repr
from streamsvm.stream.endpoints import Sink, Source, StreamError
from streamsvm.stream.rows import RowError, split_pipeline
from streamsvm.stream.tables.chunk import Chunk, MessageColumns
from streamsvm.stream.tables.table_parser import Names, validate_names

#: Maximum length of all texts that are copied from one row: its prediction must fit into a Kafka message.
MAX_COPIED_CHARS = 2**16
#: Maximum size of the key and the headers that are copied from one message.
MAX_COPIED_MESSAGE_BYTES = 2**17


class ComputedFields(NamedTuple):
    """Additional fields of each prediction, computed by the model."""

    names: tuple[str, ...]
    """Names of the fields."""
    compute: Callable[[Any, Any], Sequence[Any]]
    """Function that computes a value for each field from the model and a row as the source read it, before the row is learned."""


#: The field ``probabilities``: a mapping of each label, as text, to its probability.
PROBABILITIES = ComputedFields(
    ("probabilities",), lambda model, x: [{str(label): float(p) for label, p in model.predict_proba_one(x).items()}]
)


def make_conformal_fields(model: Any) -> ComputedFields | None:
    """Return the names of the additional prediction fields of a conformal model, and a function that computes them from the model
    and a row: ``low`` and ``high`` for a prediction interval, or ``labels`` for a prediction set; ``is_anomaly`` for an anomaly
    detector with a threshold. None for other models.
    """
    last_step = split_pipeline(model)[1]
    if hasattr(last_step, "predict_interval_one"):
        return ComputedFields(
            ("low", "high"), lambda model, x: [*map(finite_or_none, _call_last_step(model, x, "predict_interval_one"))]
        )
    if hasattr(last_step, "predict_set_one"):
        return ComputedFields(("labels",), lambda model, x: [_call_last_step(model, x, "predict_set_one")])
    if hasattr(last_step, "is_anomaly_one"):
        return ComputedFields(("is_anomaly",), lambda model, x: [_call_last_step(model, x, "is_anomaly_one")])
    return None


def _call_last_step(model: Any, x: Any, method_name: str) -> Any:
    """Transform the features ``x`` by all transformers of a pipeline, then call the method ``method_name`` of its last step with
    them, and return the result.
    """
    transformers, last_step = split_pipeline(model)
    for transformer in transformers:
        x = transformer.transform_one(x)
    return getattr(last_step, method_name)(x)


class PredictionExtension:
    """Additional fields of a loop's predictions: passthrough columns, the origin of a Kafka message, and ``computed_fields``.

    The source chooses the origin fields, such as partition and offset. If the sink accepts messages, predictions also carry the
    message of their row. Without a sink, the extension is empty. A passthrough column that has the name of another field,
    such as one of the ``standard_names``, raises a StreamError.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink | None,
        passthrough: Names = (),
        standard_names: Sequence[str] = (),
        computed_fields: Sequence[ComputedFields] = (),
    ) -> None:
        names = validate_names("passthrough", passthrough)
        if sink is None and names:
            raise ValueError("passthrough copies columns into predictions, but no sink receives them: pass sink=... (--to)")
        self._copied_names = [] if sink is None else source.request_passthrough(names)
        self._computed_fields = () if sink is None else computed_fields
        self._has_columns = bool(names)
        self._has_messages = sink is not None and sink.accepts_messages and source.has_messages
        #: Names of the additional fields.
        self.field_names: list[str] = [*self._copied_names, *(name for fields in self._computed_fields for name in fields.names)]
        #: Whether predictions have neither additional fields nor messages.
        self.is_empty: bool = not self.field_names and not self._has_messages
        reserved_names = {*standard_names, *self.field_names[len(names) :]}
        if clashes := [name for name in names if name in reserved_names]:
            raise StreamError(
                f"{source.name}: column {clashes[0]!r} cannot be passed through: predictions have a field of that name. Rename it"
            )

    def copy_columns(self, chunk: Chunk, start: int, stop: int) -> dict[str, Sequence[Any]]:
        """Return the values of the passthrough columns (copied from rows into predictions) in rows ``start`` to ``stop``
        (exclusive) of a chunk, by column name, converted to types of JSON. Raise a RowError if a value cannot be converted, or if
        the texts of a row are too long.
        """
        if not self._copied_names:
            return {}
        columns = chunk.passthrough_columns(start, stop)
        values = to_json_columns(self._copied_names, columns) if self._has_columns else columns
        return dict(zip(self._copied_names, values, strict=True))

    def copy_messages(self, chunk: Chunk, start: int, stop: int) -> MessageColumns | None:
        """Return the Kafka messages of rows ``start`` to ``stop`` (exclusive) of a chunk, so that predictions are written with
        the same key and headers. None if the rows are not from Kafka, or if the sink does not accept messages.

        Raises a RowError if the key and the headers of a message are too long.
        """
        messages, limit = chunk.messages(start, stop) if self._has_messages else None, MAX_COPIED_MESSAGE_BYTES
        if messages is not None and messages.largest > limit and (size := max(message.size for message in messages)) > limit:
            raise RowError("too long", f"key and headers of the message have {size:,} bytes; predictions can carry {limit:,}")
        return messages

    def read_row(self, chunk: Chunk, i: int, model: Any, x: Any) -> tuple[dict[str, Any], MessageColumns | None]:
        """Return the additional fields of the prediction for row ``i`` of a chunk, as a dict, and the row's Kafka message or
        None. Some fields are copied from the row, the others are computed by ``model`` from its features ``x``. Call it before
        the model learns the row. Raise a RowError if a field or the message cannot be copied.
        """
        values = {name: column[0] for name, column in self.copy_columns(chunk, i, i + 1).items()}
        for fields in self._computed_fields:
            values |= zip(fields.names, fields.compute(model, x), strict=True)
        return values, self.copy_messages(chunk, i, i + 1)


def to_json_columns(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Convert the values of columns to types that every JSON parser reads: None, bools, 64-bit ints, finite floats and text.
    ``names`` are the columns' names, for messages.

    Numbers that are not finite become None, and larger ints text. Dates become ISO 8601 text, lists and mappings JSON text.
    Raises RowError if a text is not valid UTF-8, a value cannot be written as JSON, or the texts of a row are too long together.

    >>> to_json_columns(["id", "n", "tags"], [["007"], [float("nan")], [["a", 1]]])
    [['007'], [None], ['["a", 1]']]
    """
    converted = [
        values if _are_json_values(values) else [_to_json_value(name, value) for value in values]
        for name, values in zip(names, columns, strict=True)
    ]
    longest = sum(max((len(value) for value in values if value.__class__ is str), default=0) for values in converted)
    if longest > MAX_COPIED_CHARS:  # the longest texts may be of different rows
        for row in zip(*converted, strict=True):
            if sum(len(value) for value in row if value.__class__ is str) > MAX_COPIED_CHARS:
                text = f"the passthrough columns have more than {MAX_COPIED_CHARS:,} characters: {format_names(names, 5)}"
                raise RowError("too long", text)
    return converted


def _are_json_values(values: Sequence[Any]) -> bool:
    """Return whether all values are already None, bools, 64-bit ints or ASCII text, and need no conversion for JSON."""
    types = set(map(type, values))
    if not types <= _JSON_TYPES:
        return False
    integers = [value for value in values if value.__class__ is int] if int in types else [0]
    is_ascii = str not in types or "".join(value for value in values if value.__class__ is str).isascii()
    return is_ascii and min(integers) >= -(2**63) and max(integers) < 2**63


_JSON_TYPES = frozenset((str, int, bool, type(None)))


def _to_json_value(name: str, value: Any) -> Any:
    """Convert a value of the column ``name`` to None, a bool, a 64-bit int, a finite float or text. Raise a RowError if it is
    neither valid text nor JSON.
    """
    value = to_python_scalar(value)
    if isinstance(value, float):
        return finite_or_none(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    try:
        if isinstance(value, date | time):
            return None if value != value else value.isoformat()  # pandas' NaT is a date that differs from itself
        if isinstance(value, bytes):
            return value.decode()
        is_json = isinstance(value, Mapping | Sequence) and not isinstance(value, str)
        text = json.dumps(value, default=str, ensure_ascii=False, allow_nan=False) if is_json else str(value)
        if not text.isascii():
            text.encode()
    except (ValueError, TypeError, RecursionError):  # a lone surrogate, NaN within a list, a key that is not a str, deep nesting
        text = f"column {name!r} is {short_repr(value)}, which cannot be passed through: it is neither valid text nor JSON"
        raise RowError("malformed", text) from None
    return text


def select_probabilities(probabilities: Mapping[Any, Sequence[float]], labels: Sequence[Any]) -> list[float | None]:
    """Return, for each row, the probability of the label in ``labels``, which has one label per row. ``probabilities`` has the
    probabilities of all rows [n] by label; the result is None for a label without probabilities.

    >>> select_probabilities({"ham": [0.9, 0.4], "spam": [0.1, 0.6]}, ["ham", "ham"])
    [0.9, 0.4]
    """
    return [float(probabilities[label][i]) if label in probabilities else None for i, label in enumerate(labels)]


def abstain_below(labels: Sequence[Any], probabilities: Sequence[float | None] | None, threshold: float) -> tuple[list[Any], int]:
    """Replace each label whose probability is below ``threshold`` by None (the model abstains). Return the new labels and the
    number of replaced ones.

    >>> abstain_below(["ham", "ham"], [0.9, 0.4], 0.8)
    (['ham', None], 1)
    """
    sure = [None if p is not None and p < threshold else label for label, p in zip(labels, probabilities or (), strict=True)]
    return sure, sum(label is not None for label in labels) - sum(label is not None for label in sure)
