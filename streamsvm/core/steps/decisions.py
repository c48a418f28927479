"""Rows of a batch laid out, their decisions, and the rows of a given kernel expansion as support vectors, compiled."""

from __future__ import annotations

import numpy as np

from streamsvm.core.budget.strategy import maintain_budget
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LARGEST_NORM
from streamsvm.core.memory.slots import append_vector
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import PROBABILITY, common, iterate_for, probabilities, probability
from streamsvm.core.steps.rescale import scan_given, too_large
from streamsvm.core.steps.step import NO_OUTPUT, add_to_coefficient, best_output, compute_scores, random_bits


@compiled
def fill_row(block: np.ndarray, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Make row i of X the row that is given. Its features have the columns ``columns`` int64 [features]; -1: none."""
    v = views(block)
    h = v.header[0]
    if h["scaled"] > 0:
        lay_out(v.unscaled, h["used"], X, columns, i)
    else:
        lay_out(v.rows[0], h["used"], X, columns, i)


@compiled(inline=True)
def lay_out(row: np.ndarray, used: int, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Write row i of X into ``row`` [used or more], as `fill_row` does."""
    row[:used] = 0.0
    for j in range(X.shape[1]):
        if columns[j] >= 0:
            row[columns[j]] += X[i, j]


@compiled(fastmath=FAST)
def _squared_norm(row: np.ndarray) -> float:
    norm = 0.0
    for j in range(len(row)):
        norm += np.float64(row[j]) * np.float64(row[j])
    return norm


@compiled
def first_refused(row: np.ndarray, X: np.ndarray, columns: np.ndarray, distinct: bool, scaled: bool) -> int:
    """The number of the first row of X that a rule would refuse, or -1. ``distinct``: no two features share a column.

    ``row`` [features] is scratch, of the type of X. Where rows are ``scaled``, each value is to be finite in float32, else the
    squared norm.
    """
    limit = LARGEST_NORM * (1.0 - 1e-9)  # sums in another order round otherwise
    for i in range(X.shape[0]):
        if not distinct:
            lay_out(row, len(row), X, columns, i)
        given = X[i] if distinct else row
        if too_large(given, len(given)) if scaled else not _squared_norm(given) < limit:
            return i
    return -1


@compiled
def decide(block: np.ndarray, what: int) -> float:
    """Return the output ``what`` for the current row; NaN for a row that is not finite or too large.

    ``what`` is the decision value by the `LAST` iterate, by the `AVERAGE`, by the one `CHOSEN` for its recent error, or the
    `PROBABILITY` of the positive label. With several outputs, the answer is the number of the best one, and the values of all
    outputs are in ``scores[: outputs]``.
    """
    v, c = views(block), common(block)
    n_active, norm = scan_given(block)
    if n_active < 0:
        return np.nan
    compute_scores(block, n_active, norm)
    return answer(c, v.scores, v.header[0]["n_outputs"], what)


@compiled(inline=True)
def answer(c: np.ndarray, scores: np.ndarray, live: int, what: int) -> float:
    """`decide` for a row whose decision values are ``scores``, of which ``n_outputs`` are in use: two for each output."""
    iterate = iterate_for(c, what)
    if live == 2:
        f = scores[iterate]
        return probability(c, iterate, f) if what == PROBABILITY else f
    best = best_output(scores, iterate, live, NO_OUTPUT)
    if what == PROBABILITY:
        probabilities(c, scores, iterate, live, best)
    for k in range(live // 2):
        scores[k] = scores[2 * k + iterate]
    return float(best)


@compiled
def expand(block: np.ndarray, X: np.ndarray, columns: np.ndarray, weights: np.ndarray, coefficients: np.ndarray) -> bool:
    """Make the rows of X float32 [n, features] support vectors with ``coefficients`` float64 [n, outputs], within the budget.

    Returns whether all became some: False where the strategy has not brought the store back to its budget.
    """
    v = views(block)
    h = v.header[0]
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        slot = append_vector(block, v.rows[0], scan_given(block)[1], weights[i])
        for k in range(coefficients.shape[1]):
            add_to_coefficient(block, slot, coefficients[i, k], k)
        if h["n_support"] > h["budget"]:
            common(block)["n_merges"] += maintain_budget(block, random_bits(block))
            if h["n_support"] > h["budget"]:
                return False
    return True
