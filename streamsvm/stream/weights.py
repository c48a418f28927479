"""Rows with weights: which say how much a row counts for the model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from river import base

from streamsvm.core.checks import checked_weight
from streamsvm.core.warning import warn
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import BadRow, Row, Rows, StreamError, Weighted, WrappedSource
from streamsvm.stream.rows import SETTLED, RowError, steps_of
from streamsvm.stream.tables.values import number


class WeightedSource(WrappedSource):
    """A source whose rows have a weight in one of their columns, which is no feature.

    `LearningLoop` hands the weight to the model. A row without one counts as 1. A row of weight 0 is predicted and scored, but
    not learned. The metric counts each row once, whatever its weight. A row whose weight is negative, not finite or no number is
    given as a `BadRow`. Rows are learned one by one, which takes longer.

    Parameters
    ----------
    source
        Source of the rows: of a file, a topic, or any other.
    weight
        Name of the column.

    Raises
    ------
    StreamError
        The columns of the source have no names, or there is none of that name.

    Warns
    -----
    UserWarning
        None of the first 1,000 rows, or of all if there are fewer, has a weight.

    Examples
    --------
    >>> from streamsvm.stream import IterableSource
    >>> source = WeightedSource(IterableSource([({"a": 1.0, "w": 2.5}, "yes"), ({"a": 2.0}, "no")]), "w")
    >>> list(source)
    [Row(x={'a': 1.0}, y=Weighted(y='yes', w=2.5)), Row(x={'a': 2.0}, y='no')]
    """

    def __init__(self, source: Any, weight: str) -> None:
        super().__init__(source)
        #: The name of the column.
        self.weight: str = weight
        self._rows = 0  # until one has a weight; -1 afterwards
        if not getattr(source, "has_names", True):
            raise StreamError(f"{source.name}: there is no column {weight!r} for the weight: its rows are numbers without names")

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows, as `BatchSource.take` does."""
        rows = super().take(most)
        if rows is None and self._rows > 0:
            self._warn()
        return rows

    def __iter__(self) -> Iterator[Row | BadRow]:
        while (rows := self.take(1)) is not None:
            yield from [rows.row(i) for i in range(len(rows))] if isinstance(rows, Rows) else rows

    def _changed(self, rows: Sequence[Row | BadRow] | Rows) -> Sequence[Row | BadRow] | Rows:
        columns = getattr(self._source, "columns", ())
        if columns and self.weight not in columns:
            raise StreamError(f"{self.name}: there is no column {self.weight!r} for the weight. It has: {', '.join(columns)}")
        given = map(rows.row, range(len(rows))) if isinstance(rows, Rows) else rows
        found = [row if isinstance(row, BadRow) else self._weighted(i, row) for i, row in enumerate(given)]
        if self._rows >= SETTLED:
            self._warn()
        return found

    def _warn(self) -> None:
        warn(
            f"{self.name}: none of the first {self._rows:,} rows has a weight {self.weight!r}: all count as 1. Is its name right?"
        )
        self._rows = -1

    def _weighted(self, i: int, row: Row) -> Row | BadRow:
        x, y = row
        if not isinstance(x, Mapping) or self.weight not in x:
            self._rows += self._rows >= 0
            return row
        self._rows = -1
        try:
            w = weight_of(x[self.weight])
        except RowError as error:
            return BadRow(self.place_of(i), self.raw_of(i), str(error))
        return Row(
            {name: value for name, value in x.items() if name != self.weight}, y if y is None or w == 1.0 else Weighted(y, w)
        )


def weight_of(value: Any) -> float:
    """Return the weight that a cell is: a number from 0 on, or its text; 1 if there is none.

    A RowError says that it is no such number.

    Examples
    --------
    >>> weight_of("0.5"), weight_of(2), weight_of(None), weight_of(" ")
    (0.5, 2.0, 1.0, 1.0)
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return 1.0
    try:
        plain = value.item() if isinstance(value, np.generic) else value
        return checked_weight(number(plain) if isinstance(plain, str) else plain)
    except (ValueError, TypeError):
        raise RowError("weight", f"weight {shown(value)} is no finite number of at least 0") from None


def check_takes_weights(model: Any, weight: str) -> None:
    """Raise a ValueError if a model, or what it wraps, learns rows without weights only."""
    while True:
        model = steps_of(model)[1]
        parameters = inspect.signature(model.learn_one).parameters.values()
        if not any(each.name == "w" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            raise ValueError(
                f"rows have weights, {weight!r}, and {type(model).__name__} takes none: take another model, or leave them out"
            )
        if not isinstance(model, base.Wrapper):
            return
        model = model._wrapped_model
