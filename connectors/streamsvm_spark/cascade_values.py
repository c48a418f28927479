"""Decision values of a machine at the rows of a partition, exact where the margin is near."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.csmo.columns import Rows, pack, store, subset
from streamsvm.batch.csmo.state import add_expansions
from streamsvm.batch.csmo.tiles import add_products, factors
from streamsvm.batch.csmo.workers import Workers
from streamsvm.core.kernels import RBF, Kernel
from streamsvm.core.threads import one_blas_thread
from streamsvm_spark.candidates import Candidates

__all__ = ["decision_values"]

_CAUTION = 8.0  # times the largest error of float32 that was found


def decision_values(support: Candidates, bias: float, kernel: Kernel, rows: Candidates, reach: float) -> np.ndarray:
    """Return the decision values at rows, float64 [n], in float64 where the margin is short or exceeds 1 by less than ``reach``.

    Farther rows cost nothing and violate nothing: theirs are of float32, whose products take a quarter of the time. Where float32
    is found to be too inexact for that, and with other kernels than the Gaussian one, all are of float64. Features of two values
    each are compared bit by bit. O(n m d) for m support vectors.
    """
    m, n = len(support.row), len(rows.row)
    both = np.concatenate([support.X, rows.X]).astype(np.float64)
    of_support, of_rows = np.arange(m), np.arange(m, m + n)
    c = support.alpha * support.signs
    packed = pack(both, kernel.gamma) if kernel.kind == RBF else None
    exact = store(both, dense=True) if packed is None else packed[1]
    made = factors(exact.dense, kernel) if packed is None else None
    if made is None:
        return bias + _expansions(exact, of_support, c, of_rows, kernel)
    of, near = made
    far = np.flatnonzero(~near[:m])
    f = np.full(n, bias)
    with one_blas_thread():
        add_products(of, of_rows, c[near[:m]], of_support[near[:m]], f, Workers().each)
    f += _expansions(exact, far, c[far], of_rows, kernel)
    doubt = (1.0 - rows.signs * f > -2.0 * reach) | ~near[m:]
    found = bias + _expansions(exact, of_support, c, of_rows[doubt], kernel)
    error = float(np.abs(found - f[doubt])[near[m:][doubt]].max(initial=0.0))
    if _CAUTION * error > reach:
        return bias + _expansions(exact, of_support, c, of_rows, kernel)
    f[doubt] = found
    return f


def _expansions(rows: Rows, columns: np.ndarray, c: np.ndarray, which: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return K c, float64 [n], of the rows ``which`` with the rows ``columns``."""
    if not len(columns) or not len(which):
        return np.zeros(len(which))
    out = np.zeros((int(which.max()) + 1, 1))
    add_expansions(subset(rows, columns), c[np.newaxis], rows, which, kernel, out)
    return out[which, 0]
