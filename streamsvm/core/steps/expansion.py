"""A kernel expansion that is given, compiled: its rows become support vectors."""

from __future__ import annotations

import numpy as np

from streamsvm.core.budget.dispatch import maintain
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.slots import append
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.decisions import fill_row
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rescale import scan_given
from streamsvm.core.steps.step import add_to_coefficient, random_bits

__all__ = ["expand"]


@compiled
def expand(block: np.ndarray, X: np.ndarray, columns: np.ndarray, weights: np.ndarray, coefficients: np.ndarray) -> bool:
    """Make the rows of X float32 [n, features] support vectors with ``coefficients`` float64 [n, outputs], within the budget.

    Returns
    -------
    Whether all became support vectors: False where the strategy has not brought the store back to its budget.
    """
    v = views(block)
    h = v.header[0]
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        slot = append(block, v.rows[0], scan_given(block)[1], weights[i])
        for k in range(coefficients.shape[1]):
            add_to_coefficient(block, slot, coefficients[i, k], k)
        if h["n_support"] > h["budget"]:
            common(block)["n_merges"] += maintain(block, random_bits(block))
            if h["n_support"] > h["budget"]:
                return False
    return True
