"""A source of rows with weights, which make some rows count more for the model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from river import base

from streamsvm.core.checks import LARGEST_WEIGHT, to_python_scalar, validate_weight
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.stream.endpoints import Source, StreamError, WrappedSource
from streamsvm.stream.rows import SETTLED_ROWS, RowError, split_pipeline
from streamsvm.stream.tables.chunk import Chunk, Row, Table, WeightedLabel
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.values import parse_number


class WeightedSource(WrappedSource):
    """A source whose rows have a weight in one of their columns, which is then not a feature.

    `LearningLoop` hands the weight to the model. A row without one counts as 1. A row of weight 0 is predicted and scored, but
    not learned. The metric ignores weights. A row whose weight is negative, not finite or not a number
    is returned as a `BadRow`.

    Parameters
    ----------
    source
        Source of the rows: of a file, a topic, or any other.
    weight
        Name of the column.
    missing
        Texts that mean a missing weight, such as ``"NA"``, for a source that does not parse them itself.

    Raises
    ------
    StreamError
        The columns of the source have no names, or this one is missing.

    Warns
    -----
    UserWarning
        None of the first 1,000 rows, or of all if there are fewer, has a weight.

    Examples
    --------
    >>> from streamsvm.stream import IterableSource
    >>> source = WeightedSource(IterableSource([({"a": 1.0, "w": 2.5}, "yes"), ({"a": 2.0}, "no")]), "w")
    >>> list(source)
    [Row(x={'a': 1.0}, y=WeightedLabel(y='yes', w=2.5)), Row(x={'a': 2.0}, y='no')]
    """

    def __init__(self, source: Source, weight: str, missing: Sequence[str] = ()) -> None:
        self._parser = parser = TableParser(missing=missing)
        super().__init__(source, lambda chunk: extract_weights(chunk, weight, parser), weight)
        self._n_unweighted = 0  # from the first row on; -1 once a row has had a weight
        if not source.has_names:
            raise StreamError(f"{source.name}: there is no column {weight!r} for the weight: its rows are numbers without names")

    def read(self, max_rows: int) -> Chunk | None:
        chunk = self._source.read(max_rows)
        if chunk is not None and self.columns and self.weight not in self.columns:
            raise StreamError(f"{self.name}: there is no column {self.weight!r} for the weight, only {', '.join(self.columns)}")
        if chunk is None and self._n_unweighted > 0:
            self._warn_of_missing_weights()
        elif chunk and self._n_unweighted >= 0:
            xs = (chunk.row(i)[0] for i in range(len(chunk)))
            has_weight = any(isinstance(x, Mapping) and self._parser.parse_label(x.get(self.weight)) is not None for x in xs)
            self._n_unweighted = -1 if has_weight else self._n_unweighted + len(chunk)
            if self._n_unweighted >= SETTLED_ROWS:
                self._warn_of_missing_weights()
        return self._change_chunk(chunk) if chunk else chunk

    def _warn_of_missing_weights(self) -> None:
        text = f"{self.name}: none of the first {self._n_unweighted:,} rows has a weight {self.weight!r}"
        warn(f"{text}: all count as 1. Is its name right?")
        self._n_unweighted = -1


def extract_weights(chunk: Chunk, weight: str, parser: TableParser) -> Chunk:
    """Return a copy of ``chunk`` (rows read together) with the values of the column ``weight`` as the rows' weights instead of as
    a feature. Rows without a value, or with one that is missing for the ``parser``, have the weight 1.
    """

    def change_row(row: Row) -> Row:
        x, y = row
        if not isinstance(x, Mapping) or weight not in x:
            return row
        row_weight = parse_weight(parser.parse_label(x[weight]))
        y = y if y is None or row_weight == 1.0 else WeightedLabel(y, row_weight)
        return Row({name: value for name, value in x.items() if name != weight}, y)

    def change_table(table: Table) -> Table:
        if (values := table.get_column(weight)) is None:
            return table
        weights, unparsed = np.ones(len(table)), set(table.unparsed_rows)
        if isinstance(values, np.ndarray):
            if parser.missing:
                values = np.array(list(map(parser.parse_label, values.tolist())), np.float64)
            weights = np.where(np.isnan(values), 1.0, values)
            unparsed.update(np.flatnonzero(~((weights >= 0.0) & (weights <= LARGEST_WEIGHT))).tolist())
        else:
            for i, value in enumerate(values):
                try:
                    weights[i] = parse_weight(parser.parse_label(value))
                except RowError:
                    unparsed.add(i)
        return replace(table.drop_columns([weight]), weights=weights, unparsed_rows=sorted(unparsed))

    return chunk.with_change(change_row, change_table, [weight])


def parse_weight(value: Any) -> float:
    """Convert a weight (a number or its text) to a float of at least 0; a missing or blank weight is 1. Raise a RowError if it is
    negative, not finite or not a number.

    >>> parse_weight("0.5"), parse_weight(2), parse_weight(None), parse_weight(" ")
    (0.5, 2.0, 1.0, 1.0)
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return 1.0
    try:
        plain = to_python_scalar(value)
        return validate_weight(parse_number(plain) if isinstance(plain, str) else plain)
    except (ValueError, TypeError):
        raise RowError("weight", f"weight {short_repr(value)} is not a finite number of at least 0") from None


def check_accepts_weights(model: Any, weight: str) -> None:
    """Raise a ValueError if ``learn_one`` of a model does not accept the weight of a row (a parameter ``w``). ``weight`` is the
    name of the column with weights, for the message.
    """
    while True:
        model = split_pipeline(model)[1]
        parameters = inspect.signature(model.learn_one).parameters.values()
        if not any(parameter.name == "w" or parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            raise ValueError(
                f"rows have weights ({weight!r}), but {type(model).__name__} accepts none: use another model, or no weights"
            )
        if not isinstance(model, base.Wrapper):
            return
        model = model._wrapped_model
