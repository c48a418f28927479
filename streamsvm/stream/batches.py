"""Rows of a chunk that a model takes in one call, as a matrix."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.stream.rows import NUMBERS, RowError, ValidatingPipeline, checked_number, is_number
from streamsvm.stream.tables.chunk import Chunk, Table, to_float_prefix


def supports_batches(pipeline: ValidatingPipeline, learns: bool) -> bool:
    """Whether a model takes many rows in one call: a learner of this library, with nothing or a `TableEncoder` before it."""
    if pipeline.encoder is None and not pipeline.is_bare_learner:
        return False
    return hasattr(pipeline.last_step, "predict_then_learn") and (not learns or pipeline.last_step.can_learn_many)


class Batch(NamedTuple):
    """Rows that a model takes in one call, as `predict_then_learn` takes them."""

    X: np.ndarray
    names: Sequence[Hashable]
    y: list[Any]
    weights: np.ndarray | None
    empty: int
    """The number of rows that have no feature."""
    learn: Callable[[], None]
    """Has the encoder learn the rows, once the learner has."""
    table: Table
    """The table in which the rows are."""
    first: int
    """The number of the first one there."""


def next_batch(
    chunk: Chunk, first: int, end: int, pipeline: ValidatingPipeline, learns: bool, knows: Callable[[Any], bool], regression: bool
) -> Batch | None:
    """Return the rows ``first`` to ``end - 1`` of a chunk, or those before one that must be taken alone; None if there are none.

    Such a row cannot be read, has a new feature or a new label (for which ``knows`` returns False), or a value that a model
    refuses. Rows that are only predicted have nothing new. For a ``regression``, labels become numbers.
    """
    if not learns and pipeline.last_step.overflow == "hash":  # features that are not known may have columns, too
        return None
    known = pipeline.last_step.feature_names
    table = chunk.table(known if pipeline.encoder is None else ())
    if table is None:
        return None
    for positions in (table.unparsed_rows, table.rows_with_nulls if pipeline.encoder is None else ()):
        i = bisect.bisect_left(positions, first)
        end = min(end, positions[i] if i < len(positions) else end)
    y: list[Any] = [None] * (end - first) if table.y is None else table.y[first:end]
    weights = None if table.weights is None else table.weights[first:end]
    if learns and regression:
        y, end = _targets_of(y, first)
    elif learns:
        try:
            if new := {label for label in set(y) if label is not None and not knows(label)}:
                end = first + next(i for i, label in enumerate(y) if label in new)
        except TypeError:  # a label that cannot be hashed is invalid
            return None
    if pipeline.encoder is not None:
        end = _first_refused(table, first, end)
    if first == end:
        return None
    if pipeline.encoder is None:
        X, names, empty, learn = *_numbers_of(table, first, end, known, learns), lambda: None
    else:
        learned = np.array([label is not None for label in y[: end - first]]) if learns else np.zeros(end - first, bool)
        if weights is not None:
            learned &= weights[: end - first] > 0.0
        X, names, empty, learn = pipeline.encoder.encode(
            table, first, end, learned if learns else None, known, y[: end - first], weights
        )
    n = len(X)
    return Batch(X, names, y[:n], None if weights is None else weights[:n], empty, learn, table, first) if n else None


def _targets_of(ys: list[Any], first: int) -> tuple[list[Any], int]:
    """Return labels as numbers to predict, up to an invalid one, and the number of its row."""
    targets: list[Any] = []
    for y in ys:
        try:
            targets.append(None if y is None else checked_number(y))
        except RowError:
            break
    return targets, first + len(targets)


def _numbers_of(
    table: Table, first: int, end: int, known: Sequence[Hashable], learns: bool
) -> tuple[np.ndarray, list[Hashable], int]:
    """Return the known features of the rows before one with another value; their names, and the number of rows without any."""
    features, names, columns = set(known), [], []
    for name, values in zip(table.names, table.columns, strict=True):
        part = values[first:end]
        if not learns and name not in features:
            if isinstance(part, list):  # texts are left out, and other values that are no numbers are refused
                end = first + next((i for i, value in enumerate(part) if not _may_be_left_out(value)), len(part))
            continue
        numbers, n = to_float_prefix(part)
        end = first + n
        if name in features:
            names.append(name)
            columns.append(numbers)
        elif len(present := np.flatnonzero(numbers == numbers)):
            end = first + int(present[0])
    n = end - first
    X = np.column_stack([numbers[:n] for numbers in columns]) if columns else np.empty((n, 0))
    missing = np.isnan(X)
    if (bad := np.abs(X) > LARGEST_FLOAT32).any():
        n = int(np.argmax(bad.any(axis=1)))
    empty = int(missing[:n].all(axis=1).sum())
    X[missing] = 0.0
    return X[:n], names, empty


def _may_be_left_out(value: Any) -> bool:
    """Return whether a learner that only predicts ignores this value of an unknown feature."""
    return isinstance(value, _LEFT_OUT) or (isinstance(value, int) and abs(value) < _TOO_LARGE)


_LEFT_OUT = (str, bytes, float, np.floating, np.bool_, type(None))
_TOO_LARGE = 1 << 1023


def _first_refused(table: Table, first: int, end: int) -> int:
    """Return the number of the first row that `check_numbers` refuses, ``end`` if it refuses none."""
    for values in table.columns:
        part = values[first:end]
        numbers, n = to_float_prefix(part)
        if isinstance(part, np.ndarray):
            refused = np.flatnonzero(np.abs(numbers) > LARGEST_FLOAT32)
            end = first + int(refused[0]) if len(refused) else end
            continue
        if n < len(part) and not any(issubclass(kind, NUMBERS) for kind in set(map(type, part))):  # it has names
            continue
        wrong = (i for i in np.flatnonzero(~(np.abs(numbers) <= LARGEST_FLOAT32)).tolist() if part[i] is not None)
        others = (i for i in range(n, len(part)) if is_number(part[i]) and not -LARGEST_FLOAT32 <= part[i] <= LARGEST_FLOAT32)
        end = first + next(itertools.chain(wrong, others), end - first)
    return end
