"""Compiled outputs of kernel models for the current row, and functions that put rows of a matrix into a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.budget.strategy import maintain_budget
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LARGEST_NORM
from streamsvm.core.memory.slots import append_vector
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import (
    PROBABILITY,
    compute_probabilities,
    compute_probability,
    get_common_state,
    select_iterate,
)
from streamsvm.core.steps.rescale import is_too_large, scale_current_row
from streamsvm.core.steps.step import NO_OUTPUT, add_to_coefficient, compute_scores, draw_bits, find_best_output


@compiled
def set_current_row(block: np.ndarray, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Copy row i of X float32 [n, features] into the model's memory (``block``) as the row to learn or predict next. ``columns``
    int64 [features] maps each feature of X to the model's column; features with -1 are ignored, missing columns become 0.
    """
    v = views(block)
    h = v.header[0]
    if h["scaled"] > 0:
        scatter_row(v.unscaled, h["used"], X, columns, i)
    else:
        scatter_row(v.rows[0], h["used"], X, columns, i)


@compiled(inline=True)
def scatter_row(row: np.ndarray, used: int, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Copy row i of X into the array ``row`` [used or more]: feature j of X is added to ``row[columns[j]]``, and ignored if
    ``columns[j]`` is -1. The other of the first ``used`` values become 0.
    """
    row[:used] = 0.0
    for j in range(X.shape[1]):
        if columns[j] >= 0:
            row[columns[j]] += X[i, j]


@compiled(fastmath=FAST)
def _compute_squared_norm(row: np.ndarray) -> float:
    """Return the squared Euclidean norm of a vector, summed in float64."""
    norm = 0.0
    for j in range(len(row)):
        norm += np.float64(row[j]) * np.float64(row[j])
    return norm


@compiled
def find_refused_row(row: np.ndarray, X: np.ndarray, columns: np.ndarray, distinct: bool, scaled: bool) -> int:
    """Return the index of the first row of X that a model would refuse to learn, because a value is not finite or the squared
    norm is too large; -1 if all are valid. ``columns`` maps features of X to model columns; ``distinct`` is False if several
    share one. ``row`` is scratch; ``scaled`` is True if the model standardises rows.

    ``row`` [features] has the dtype of X. If the model standardises rows, each value must be finite in float32; otherwise, the
    squared norm is limited.
    """
    limit = LARGEST_NORM * (1.0 - 1e-9)  # the rule sums in another order, which rounds differently
    for i in range(X.shape[0]):
        if not distinct:
            scatter_row(row, len(row), X, columns, i)
        candidate = X[i] if distinct else row
        if is_too_large(candidate, len(candidate)) if scaled else not _compute_squared_norm(candidate) < limit:
            return i
    return -1


@compiled
def compute_output(block: np.ndarray, output_kind: int) -> float:
    """Return the prediction for the current row of the model in ``block`` (one byte array, with the row in it). ``output_kind``,
    a constant, requests a decision value or a probability; with three or more classes, the index of the predicted class is
    returned. NaN if the row is not finite or too large.

    ``output_kind`` is the decision value by the `LAST_ITERATE`, by the `AVERAGE_ITERATE`, by the iterate that predictions follow
    (`DECISION`), or the `PROBABILITY` of the positive label. With several outputs, the values of all outputs are left in
    ``scores[:outputs]``.
    """
    v, c = views(block), get_common_state(block)
    n_active, norm = scale_current_row(block)
    if n_active < 0:
        return np.nan
    compute_scores(block, n_active, norm)
    return select_output(c, v.scores, v.header[0]["n_outputs"], output_kind)


@compiled(inline=True)
def select_output(common: Any, scores: np.ndarray, n_scores: int, output_kind: int) -> float:
    """Return a row's prediction, computed from its decision values ``scores`` (alternately by the last and by the average
    iterate; ``n_scores`` in total): the value or probability that the constant ``output_kind`` requests. With three or more
    classes it is the predicted class, and the values of all classes replace the first scores.
    """
    iterate = select_iterate(common, output_kind)
    if n_scores == 2:
        f = scores[iterate]
        return compute_probability(common, iterate, f) if output_kind == PROBABILITY else f
    best = find_best_output(scores, iterate, n_scores, NO_OUTPUT)
    if output_kind == PROBABILITY:
        compute_probabilities(common, scores, iterate, n_scores, best)
    for k in range(n_scores // 2):
        scores[k] = scores[2 * k + iterate]
    return float(best)


@compiled
def add_expansion(block: np.ndarray, X: np.ndarray, columns: np.ndarray, weights: np.ndarray, coefficients: np.ndarray) -> bool:
    """Add the rows of X float32 [n, features] as support vectors to the model in ``block``, with these ``coefficients`` float64
    [n, outputs] and ``weights`` float64 [n]; ``columns`` maps features to model columns. Beyond the budget, vectors are merged
    or removed; returns False if that is impossible, after a part of the rows.
    """
    v = views(block)
    h = v.header[0]
    for i in range(X.shape[0]):
        set_current_row(block, X, columns, i)
        slot = append_vector(block, v.rows[0], scale_current_row(block)[1], weights[i])
        for k in range(coefficients.shape[1]):
            add_to_coefficient(block, slot, coefficients[i, k], k)
        if h["n_support"] > h["budget"]:
            get_common_state(block)["n_merges"] += maintain_budget(block, draw_bits(block))
            if h["n_support"] > h["budget"]:
                return False
    return True
