"""A pipeline of an encoder of tables and a learner, which learns the rows of a frame in their order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from river import compose

from streamsvm.core.checks import checked_weight
from streamsvm.core.frames import as_columns
from streamsvm.stream.tables.chunk import Table

_FEW, _FEW_ROWS, _MANY_ROWS = 8, 64, 1024  # rows that are taken one by one, first together, and at most


class TableModel(compose.Pipeline):
    """A pipeline that begins with a `TableEncoder`, as ``encoder | learner`` makes it.

    It is river's Pipeline, but that `learn_many` is `learn_one` for one row after the other. River would first transform all rows
    of a frame, and then learn them: their names would have no statistics of the rows before.

    Examples
    --------
    >>> import pandas as pd
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream.tables import TableEncoder
    >>> model = TableEncoder(categorical="city") | BSGDClassifier(budget=10)
    >>> X = pd.DataFrame({"city": ["Paris", "Oslo"] * 20})
    >>> model.learn_many(X, ["warm", "cold"] * 20)
    >>> list(model.predict_many(X[:2]))
    ['warm', 'cold']
    """

    def learn_many(self, X: Any, y: Any = None, w: Any = None, **params: Any) -> None:
        """Learn the rows of a frame, one after the other.

        Parameters
        ----------
        X
            The frame [n, columns].
        y
            The n labels, or targets.
        w
            The n weights, at least 0. None: each is 1.
        params
            Other arguments of river's ``learn_many``.

        Raises
        ------
        ValueError
            A row is refused; the message begins with its number. The rows before it were learned.
        """
        encoder, *_, last = self.steps.values()
        if len(self.steps) != 2 or params or not hasattr(last, "learn_one"):
            super().learn_many(X, y, **params, **({} if w is None else {"w": w}))
            return
        names, columns, frame = as_columns(X)
        n, labels = len(frame), [None] * len(frame) if y is None else list(y)
        weights = np.ones(n) if w is None else np.array([checked_weight(each) for each in w], np.float64)
        if not len(labels) == len(weights) == n:
            raise ValueError(f"there are {n:,} rows, {len(labels):,} labels and {len(weights):,} weights")
        table, first, most = Table(tuple(names), columns), 0, _FEW_ROWS
        while first < n:
            end = min(first + most, n)
            done = self._learn_together(encoder, last, table, first, labels[first:end], weights[first:end], w is not None)
            first += done
            # After a row that brings something new, there may be others: few rows are tried first.
            most = min(4 * most, _MANY_ROWS) if first == end else _FEW_ROWS
            if first < end:
                with in_row(first):
                    row = {} if w is None else {"w": float(weights[first])}
                    self.learn_one(table.row(first).x, labels[first], **row)
                first += 1

    def _learn_together(
        self, encoder: Any, last: Any, table: Table, first: int, y: list[Any], w: np.ndarray, is_weighted: bool
    ) -> int:
        """Learn rows in one call, as many as can be from the first on; return how many."""
        if not hasattr(last, "predict_then_learn") or encoder.learned_scaler is not None or None in y:
            return 0
        encoded = encoder.encode(table, first, first + len(y), w > 0.0, set(last.feature_names), y, w)
        n = len(encoded.X)
        if n < _FEW or last.predict_then_learn(encoded.X, encoded.names, y[:n], False, w[:n] if is_weighted else None) is None:
            return 0
        encoded.learn()
        return n


@contextlib.contextmanager
def in_row(i: int) -> Iterator[None]:
    """Let an error say which row of a frame it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {i}: {error}") from None
