"""Batches of rows for the stream loops: as many rows of a chunk as a model can process in one call."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, LARGEST_TARGET
from streamsvm.stream.rows import NUMBER_TYPES, RowError, ValidatingPipeline, is_number, parse_target
from streamsvm.stream.tables.chunk import Chunk, Table, to_float_prefix

LabelTest = Callable[[Any], bool]
_INT_LIMIT = 2**1023  # converting an int of this magnitude to float64 may overflow, so `to_float_prefix` refuses it
_IGNORED_IF_UNKNOWN = (str, bytes, float, np.floating, np.bool_, type(None))


class Batch(NamedTuple):
    """n consecutive rows of a table, as arguments of ``predict_then_learn``."""

    X: np.ndarray
    """Values of the features ``names``, float64 [n, features]; 0 if missing."""
    names: Sequence[Hashable]
    y: list[Any]
    """The n labels, or targets as floats; None for a row without one."""
    weights: np.ndarray | None
    """Row weights, float64 [n]; None if the stream has no weights."""
    n_empty: int
    """Number of rows without any feature value."""
    update_encoder: Callable[[], None]
    """Function to call after the learner has learned the rows: the `TableEncoder`, if any, then learns them, too."""
    table: Table
    start: int
    """Index of the first row in ``table``."""
    first_gap: int
    """Index of the first row without a value of a feature, if the model lacks an encoder; else ``start``."""


def supports_batches(pipeline: ValidatingPipeline, learns: bool) -> bool:
    """Return whether the model in ``pipeline`` can process many rows in one call: it must be a learner of this library, alone or
    after a `TableEncoder`. If ``learns``, the learner must also be able to learn many rows in one call.
    """
    if pipeline.encoder is None and not pipeline.is_bare_learner:
        return False
    return hasattr(pipeline.last_step, "predict_then_learn") and (not learns or pipeline.last_step.can_learn_many)


def next_batch(
    chunk: Chunk, start: int, stop: int, pipeline: ValidatingPipeline, learns: bool, knows_label: LabelTest, regression: bool
) -> Batch | None:
    """Return rows of a chunk (rows read together), from ``start`` to at most ``stop`` (exclusive), as a batch for one call of the
    model; None if row ``start`` must be processed alone. The batch ends before an invalid row and, if the model ``learns``,
    before a row with a new feature or a label for which ``knows_label`` returns False. ``regression`` means that labels are
    numbers.
    """
    if not learns and pipeline.last_step.overflow == "hash":  # features that the model does not list may share hashed columns
        return None
    known_features, table = pipeline.last_step.feature_names, read_batch_table(chunk, pipeline)
    if table is None:
        return None
    for excluded_rows in (table.unparsed_rows, table.rows_with_nulls if pipeline.encoder is None else ()):
        position = bisect.bisect_left(excluded_rows, start)
        stop = min(stop, excluded_rows[position] if position < len(excluded_rows) else stop)
    y: list[Any] = [None] * (stop - start) if table.y is None else table.y[start:stop]
    weights = None if table.weights is None else table.weights[start:stop]
    if learns and regression:
        y = _leading_targets(y)
        stop = start + len(y)
    elif learns:
        try:
            if new_labels := {label for label in set(y) if label is not None and not knows_label(label)}:
                stop = start + next(i for i, label in enumerate(y) if label in new_labels)
        except TypeError:  # an unhashable label, which is refused when its row is processed alone
            return None
    if pipeline.encoder is not None:
        stop = _first_refused_row(table, start, stop)
    if start == stop:
        return None
    first_gap, update_encoder = start, lambda: None
    if pipeline.encoder is None:
        key = getattr(pipeline.last_step, "key", None)
        X, names, n_empty, first_gap = _feature_matrix(table, start, stop, known_features, learns, key)
    else:
        is_learned = np.array([label is not None for label in y[: stop - start]]) if learns else np.zeros(stop - start, bool)
        if weights is not None:
            is_learned &= weights[: stop - start] > 0.0
        X, names, n_empty, update_encoder = pipeline.encoder.parse_table(table).encode_batch(
            start, stop, is_learned if learns else None, known_features, y[: stop - start], weights
        )
    n = len(X)
    weights = None if weights is None else weights[:n]
    return Batch(X, names, y[:n], weights, n_empty, update_encoder, table, start, first_gap) if n else None


def read_batch_table(chunk: Chunk, pipeline: ValidatingPipeline) -> Table | None:
    """Return the table of a chunk from which batches for the model in ``pipeline`` are made; None if it has none."""
    return chunk.table(pipeline.last_step.feature_names if pipeline.encoder is None else ())


def _leading_targets(labels: list[Any]) -> list[Any]:
    """Convert the labels of a regression to floats; missing ones stay None. Stop before the first label that is not a finite
    number, so that the result may be shorter than ``labels``.
    """
    if set(map(type, labels)) == {float} and (np.abs(labels) <= LARGEST_TARGET).all():
        return labels
    targets: list[Any] = []
    for label in labels:
        try:
            targets.append(None if label is None else parse_target(label))
        except RowError:
            break
    return targets


def _feature_matrix(
    table: Table, start: int, stop: int, known_features: Sequence[Hashable], learns: bool, key: Hashable
) -> tuple[np.ndarray, list[Hashable], int, int]:
    """Convert rows ``start`` to ``stop`` (exclusive) of a table to a float64 matrix [rows, features] of ``known_features``, with
    0 for missing values, but NaN for a missing ``key``. Return the matrix, its feature names, its number of rows without any
    value, and the index of the first row without one of the values (else ``start``). The matrix ends before the first invalid row
    and, if the model ``learns``, before the first row with a new feature.
    """
    known_names, names, columns = set(known_features), [], []
    for name, column in zip(table.names, table.columns, strict=True):
        values = column[start:stop]
        if not learns and name not in known_names:
            if isinstance(values, list):
                stop = start + next((i for i, value in enumerate(values) if not _is_ignored_if_unknown(value)), len(values))
            continue
        numbers, n_numbers = to_float_prefix(values)
        stop = start + n_numbers
        if name in known_names:
            names.append(name)
            columns.append(numbers)
        elif len(present := np.flatnonzero(~np.isnan(numbers))):
            stop = start + int(present[0])
    n = stop - start
    X = np.column_stack([numbers[:n] for numbers in columns]) if columns else np.empty((n, 0))
    missing = np.isnan(X)
    if (too_large := np.abs(X) > LARGEST_FLOAT32).any():
        n = int(np.argmax(too_large.any(axis=1)))
    n_empty = first_gap = 0
    if n and (missing.any() or not columns):
        n_empty, first_gap = int(missing[:n].all(axis=1).sum()), int(missing[:n].any(axis=1).argmax())
        X[missing & np.array([name != key for name in names], bool)] = 0.0
    return X[:n], names, n_empty, start + first_gap


def _is_ignored_if_unknown(value: Any) -> bool:
    """Return whether a learner ignores ``value`` when it predicts a row with a feature that it does not know. It ignores text,
    None, floats and ints in float64's range, and refuses a row with any other value there.
    """
    return isinstance(value, _IGNORED_IF_UNKNOWN) or (isinstance(value, int) and abs(value) < _INT_LIMIT)


def _first_refused_row(table: Table, start: int, stop: int) -> int:
    """Return the index of the first row from ``start`` to ``stop`` (exclusive) of a table with a number that is not finite or too
    large for float32; ``stop`` if all numbers are valid.
    """
    for column in table.columns:
        values = column[start:stop]
        numbers, n = to_float_prefix(values)  # the first n values
        if isinstance(values, np.ndarray):
            refused = np.flatnonzero(np.abs(numbers) > LARGEST_FLOAT32)
            stop = start + int(refused[0]) if len(refused) else stop
            continue
        if n < len(values) and not any(issubclass(kind, NUMBER_TYPES) for kind in set(map(type, values))):
            continue  # a column of category names
        refused_early = (i for i in np.flatnonzero(~(np.abs(numbers) <= LARGEST_FLOAT32)).tolist() if values[i] is not None)
        refused_late = (
            i for i in range(n, len(values)) if is_number(values[i]) and not -LARGEST_FLOAT32 <= values[i] <= LARGEST_FLOAT32
        )
        stop = start + next(itertools.chain(refused_early, refused_late), stop - start)
    return stop
