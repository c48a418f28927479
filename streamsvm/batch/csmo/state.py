"""The dual problem as conjugate SMO takes it, and the state of the solver: current solution, working set and kernel matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.precomputed import PrecomputedRows
from streamsvm.batch.csmo.steps import WorkingSet, write_slopes
from streamsvm.batch.csmo.tiles import (
    CheckedFloat32Rows,
    Float32Rows,
    add_kernel_products,
    check_float32_rows,
    convert_to_indicators,
    write_kernel_block,
)
from streamsvm.batch.csmo.values import (
    NormedRows,
    add_kernel_sums,
    compute_kernel_values,
    compute_self_kernels,
    to_clean_csr,
    to_dense,
    write_kernel_values,
)
from streamsvm.batch.problem import Bounds, RowGroups
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_FEATURE, LARGEST_KERNEL, LINEAR, RBF, Kernel
from streamsvm.core.threads import ForEach, Workers

_MAX_DENSE_VALUES = 1e8  # a sparse matrix with more values, zeros included, stays sparse
_MAX_SMALL_DENSE_VALUES = 250_000  # small problems up to this size become dense, however sparse they are
_MAX_DENSITY = 0.1  # rows with a larger share of nonzero values become dense


class Problem(NamedTuple):
    """The dual problem of `streamsvm.batch.problem`. Arrays are float64 [n].

    The rows are known in float64 and, if float32 is accurate enough, in float32; or their kernel values are precomputed.
    """

    rows: Any  # `NormedRows`; None for precomputed kernel values
    float32_rows: CheckedFloat32Rows | None
    precomputed: PrecomputedRows | None
    kernel: Kernel
    targets: np.ndarray
    epsilon: float
    classification: bool
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    total: float  # the sum of all variables

    @property
    def largest_bound(self) -> float:
        """The largest absolute value of all bounds of this problem's variables."""
        return max(float(self.upper.max()), -float(self.lower.min()))


def make_problem(
    groups: RowGroups, bounds: Bounds, kernel: Kernel, epsilon: float | None, total: float = 0.0, is_small: bool = False
) -> Problem:
    """Return the dual problem of an SVM with one variable for each group of equal rows (``groups``), between ``bounds``, with the
    sum ``total``. With ``epsilon``, it is a regression problem, otherwise a classification problem. ``is_small`` requests that
    the whole Gram matrix is computed at once.

    ``total`` is the sum of all variables. If the problem ``is_small``, the whole Gram matrix of the rows is computed at once.
    """
    X = groups.take_rows()
    if is_small and not isinstance(X, PrecomputedRows):
        X = compute_gram_rows(X, kernel)
    precomputed, rows, float32_rows = X if isinstance(X, PrecomputedRows) else None, None, None
    if precomputed is None:
        rows, float32_rows, kernel = _make_training_rows(X, kernel, groups.for_each)
    slope = 1.0 if epsilon is None else epsilon
    return Problem(rows, float32_rows, precomputed, kernel, groups.targets, slope, epsilon is None, *bounds, total)


def choose_row_form(X: Any, kernel: Kernel, is_small: bool) -> Any:
    """Return the rows X in the form, a dense array or a CSR matrix, that makes computing values of this ``kernel`` fastest.
    ``is_small`` tells whether the whole Gram matrix will be computed.

    ``is_small`` tells whether the whole Gram matrix will be computed.
    """
    is_dense, size = not sparse.issparse(X), X.shape[0] * X.shape[1]
    if is_small and size <= _MAX_SMALL_DENSE_VALUES:
        return to_dense(X)
    # A Gaussian kernel of rows with two values is faster on indicators, which are computed from dense rows.
    may_be_indicators = kernel.kind == RBF and is_dense and _has_one_value(X[:100][X[:100] != 0.0])
    if is_dense and (may_be_indicators or np.count_nonzero(X) > _MAX_DENSITY * size):
        return X
    rows = to_clean_csr(X)
    if size > _MAX_DENSE_VALUES:
        return rows
    if rows.nnz > _MAX_DENSITY * size or (kernel.kind == RBF and _has_one_value(rows.data)):
        return X if is_dense else rows.toarray()
    return rows


def _has_one_value(values: np.ndarray) -> bool:
    """Return whether all ``values`` are equal; False for an empty array."""
    return len(values) > 0 and bool((values == values[0]).all())


def _make_training_rows(X: Any, kernel: Kernel, for_each: ForEach) -> tuple[NormedRows, CheckedFloat32Rows | None, Kernel]:
    """Prepare the rows X for training, and return them in float64 and in float32 (None if float32 is too inaccurate), and the
    kernel, whose gamma may have to change. ``for_each`` runs loops in threads. A dense X is overwritten. Raise a ValueError if
    values of X are too large.

    Two-valued features become indicators, and gamma changes with them.
    """
    values = X.data if sparse.issparse(X) else X
    largest = max(values.max(initial=0.0), -values.min(initial=0.0))
    if not sparse.issparse(X):
        rows, kernel = convert_to_indicators(X, kernel, for_each)
        if rows is X and kernel.kind == RBF:
            X -= 0.5 * (X.min(axis=0) + X.max(axis=0))  # distances stay the same, and lose fewer digits
        X = rows
    normed = NormedRows(X)
    _check_magnitudes(largest, compute_self_kernels(normed, kernel))
    return normed, check_float32_rows(X, kernel), kernel


def _check_magnitudes(largest: float, self_kernels: np.ndarray) -> None:
    """Raise a ValueError if ``largest``, the largest absolute value of the rows, or one of ``self_kernels`` (kernel values of
    rows with themselves) exceeds the limit.
    """
    if not (largest < LARGEST_FEATURE and np.abs(self_kernels).max() < LARGEST_KERNEL):
        hint = "scale its features. The dual coefficients or intercepts are not finite then"
        raise ValueError(f"X has values that are too large for this kernel: {hint}")


def compute_gram_rows(X: Any, kernel: Kernel) -> PrecomputedRows:
    """Compute the Gram matrix (kernel values of all pairs) of the rows X, an array or CSR matrix [n, d], in float64, and return
    it as `PrecomputedRows`. A dense X is overwritten. O(n^2 d).
    """
    is_dense, values = not sparse.issparse(X), X.data if sparse.issparse(X) else X
    _check_magnitudes(max(values.max(initial=0.0), -values.min(initial=0.0)), np.ones(1))
    if is_dense and kernel.kind == RBF:
        X -= X.mean(axis=0)
    rows = NormedRows(X)
    K = compute_kernel_values(rows, rows, kernel)
    _check_magnitudes(0.0, K.diagonal())
    return PrecomputedRows(K)


def make_feasible(problem: Problem, b: np.ndarray) -> np.ndarray:
    """Return the dual variables ``b`` float64 [n], changed so that they satisfy the constraints of ``problem``: they are clipped
    to their bounds; then the positive ones or the negative ones are scaled down until the sum is the required one.
    """
    b = np.clip(b, problem.lower, problem.upper)
    excess = b.sum() - problem.total
    side = b > 0.0 if excess > 0.0 else b < 0.0
    if side.any():
        b[side] *= 1.0 - excess / b[side].sum()
    return b


#: Kernel operations after which a signal must be handled: a fraction of a second.
MAX_UNINTERRUPTED_OPERATIONS = 1e9

# Three times the rounding error of a kernel value from float32 products. Float32 is used if this times the largest bound is below
# ``tol``.
_FLOAT32_ERROR = 1e-5


class _ShrunkRows(NamedTuple):
    """Rows that left the working set together, and the working set at that time."""

    rows: np.ndarray  # int64: positions of the rows that left
    gradient: np.ndarray  # float64: their gradients at that time
    which: np.ndarray  # int64: positions of the working set, these rows included
    b: np.ndarray  # float64: coefficients of the working set, to which the gradients belong


class GramCache:
    """Memory for the float32 Gram matrix of n rows, which several fits to the same rows share."""

    def __init__(self, n: int) -> None:
        self.values: np.ndarray = np.empty((n, n), np.float32)
        #: The rows of the matrix, and whether its values were computed in float64; None before the first fit.
        self.source: tuple[Any, bool] | None = None


class SolverState:
    """The current solution and the working set: ``working`` has the variables of the working set, ``b`` those of all rows.

    Kernel values for the steps are computed in float64 if float32 is too inaccurate for ``tol``, as for large C.

    Rows that leave the working set keep their gradients, and the coefficients to which these belong. When they return, only the
    coefficients that have changed since are added. Methods compute first and assign attributes last, all in one statement, since
    an interrupt may come between any two statements.
    """

    which: np.ndarray  # int64, ascending: positions of the rows in the working set
    working: WorkingSet
    values: np.ndarray | None  # float32 [m, m]: the kernel matrix of the working set; None if it was not computed
    dropped: list[_ShrunkRows]

    def __init__(
        self,
        problem: Problem,
        b: np.ndarray,
        buffer: np.ndarray,
        workers: Workers | None = None,
        tol: float = np.inf,
        memory: int = 0,
        gram: GramCache | None = None,
    ) -> None:
        n = len(b)
        self.memory: int = max(memory, buffer.nbytes)  # bytes that the user allows for the cache
        self.problem: Problem = problem
        self.workers: Workers = workers or Workers()
        self.n_iter: int = 0
        self.b: np.ndarray = b
        precomputed, float32_rows = problem.precomputed, problem.float32_rows
        diagonal = compute_self_kernels(problem.rows, problem.kernel) if precomputed is None else precomputed.diagonal()
        self.diagonal: np.ndarray = diagonal.astype(np.float32)
        is_inexact = problem.kernel.kind == RBF and _FLOAT32_ERROR * problem.largest_bound > tol
        is_coarse = float32_rows is None or (is_inexact and not float32_rows.is_exact)
        #: Whether kernel values are computed in float64, because float32 is too inaccurate for ``tol`` or for the rows.
        self.is_float64: bool = precomputed is None and is_coarse
        self.buffer: np.ndarray = buffer
        self._gram = gram
        all_rows, no_rows = np.arange(n), np.arange(0)
        self.which, self.dropped = no_rows, [_ShrunkRows(all_rows, -problem.targets, all_rows, np.zeros(n))]
        self.restore_rows()

    @property
    def _value_source(self) -> tuple[Any, bool]:
        """The rows from which the solver computes kernel values, and whether it computes them in float64. A Gram matrix that
        several fits share may only be used again if both are the same.
        """
        return self.problem.precomputed or self.problem.rows, self.is_float64

    def reserve_matrix(self, n: int) -> np.ndarray:
        """Return memory for the kernel matrix of ``n`` variables, float32 [n, n]. It is the memory of the solver's current kernel
        matrix, which must be computed again afterwards.
        """
        self.values = None
        return self.buffer[: n * n].reshape(n, n)

    # Kernel values ------------------------------------------------------------------------------------------------------------

    def write_matrix(self, variables: np.ndarray, out: np.ndarray) -> None:
        """Write the kernel values of m variables with each other into ``out``, float32 [m, m]. ``variables`` int64 [m] are
        ascending positions in the working set (the variables that the solver currently works on).
        """
        p, which = self.problem, self.which[variables]
        if p.precomputed is not None:
            p.precomputed.write_values(which, which, out)
            return
        if p.float32_rows is None or self.is_float64:
            rows = p.rows[which]
            write_kernel_values(rows, rows, p.kernel, out, self.workers.for_each)
            return
        tiles: Float32Rows = self._tiles  # type: ignore[assignment]
        tiles = tiles if len(variables) == tiles.n_rows else tiles.take_rows(variables)
        write_kernel_block(tiles, tiles, out, self.workers.for_each)
        if len(far := np.flatnonzero(~p.float32_rows.is_near[which])):
            out[far] = self._compute_exact_values(which[far], which)
            out[:, far] = out[far].T

    def _compute_exact_values(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the kernel values between training rows computed in float64, [len(rows), len(columns)], for rows so far from the
        mean that float32 is too inaccurate. ``rows`` and ``columns`` are row numbers.
        """
        p = self.problem
        return compute_kernel_values(p.rows[rows], p.rows[columns], p.kernel)

    def fill_matrix(self) -> np.ndarray:
        """Return the kernel values with each other of the m variables that the solver currently works on (the working set),
        float32 [m, m]. They are computed at the first call after the working set has changed.
        """
        n, gram = len(self.which), self._gram if len(self.which) == len(self.b) else None
        if self.values is None and gram is not None and gram.source is not None:
            (gram_rows, gram_is_float64), (rows, is_float64) = gram.source, self._value_source
            if gram_rows is rows and gram_is_float64 == is_float64:
                self.values = gram.values
        if self.values is None:
            variables, values = np.arange(n), self.reserve_matrix(n) if gram is None else gram.values
            self.write_matrix(variables, values)
            self.values = values
            if gram is not None:
                gram.source = self._value_source
        return self.values

    def add_change(self, change: np.ndarray, columns: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Update the gradients of the rows ``which`` [m] after dual variables have changed. For each of these rows, the sum of
        its kernel values with the rows ``columns``, times their ``change``, is added to ``gradient`` float64 [m].
        """
        p, changed = self.problem, np.flatnonzero(change)
        if not len(changed):
            return
        change, columns = change[changed], columns[changed]
        if p.float32_rows is None:
            self.add_change_exactly(change, columns, which, gradient)
            return
        all_rows, is_near = p.float32_rows.rows, p.float32_rows.is_near
        rows = self._tiles if which is self.which and self._tiles else all_rows.take_rows(which)
        far = np.flatnonzero(~is_near[which])
        before, near_change = gradient[far], np.where(is_near[columns], change, 0.0)
        add_kernel_products(rows, all_rows.take_rows(columns), near_change, gradient, self.workers.for_each)
        if len(far_columns := np.flatnonzero(~is_near[columns])):
            gradient += change[far_columns] @ self._compute_exact_values(columns[far_columns], which)
        if len(far):
            gradient[far] = before + self._compute_exact_values(which[far], columns) @ change

    def add_change_exactly(self, change: np.ndarray, columns: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Update the gradients of the rows ``which`` [m] after dual variables have changed, with kernel values in float64. For
        each of these rows, the sum of its kernel values with the rows ``columns``, times their ``change``, is added to
        ``gradient`` [m].
        """
        p = self.problem
        if p.precomputed is not None:
            p.precomputed.add_kernel_products(change, columns, which, gradient)
        elif p.kernel.kind == LINEAR:  # the feature weights are enough
            gradient += p.rows.X[which] @ (change @ p.rows.X[columns])
        else:
            add_kernel_sums(p.rows[which], p.rows[columns], change, p.kernel, gradient, self.workers.for_each)

    # The working set ----------------------------------------------------------------------------------------------------------

    def restore_rows(self) -> None:
        """Put all variables that were dropped from the working set (the variables that the solver currently works on) back into
        it, and compute their gradients for the current solution.
        """
        if not self.dropped:
            return
        p, n = self.problem, len(self.b)
        b, gradient = self.b.copy(), np.empty(n)
        if len(self.which):
            b[self.which], gradient[self.which] = self.working.b, self.working.gradient
        for rows, old_gradient, which, old_b in self.dropped:
            new_gradient = old_gradient.copy()
            self.add_change(b[which] - old_b, which, rows, new_gradient)
            gradient[rows] = new_gradient
        working = WorkingSet(b.copy(), gradient, p.lower, p.upper, p.kink, self.diagonal)
        self._tiles = p.float32_rows and p.float32_rows.rows
        self.b, self.which, self.working, self.dropped, self.values = b, np.arange(n), working, [], None

    def compute_slopes(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return three values for the m variables that the solver currently works on: the slopes of the objective when each is
        raised, float64 [m], the slopes when each is lowered, float64 [m], and the gap (how much the worst pair violates the
        optimality conditions).
        """
        ascents, descents = np.empty(len(self.which)), np.empty(len(self.which))
        least, most = write_slopes(self.working, self.problem.epsilon, 0.0, ascents, descents)
        return ascents, descents, most - least

    def shrink_rows(self, max_share: float) -> None:
        """Drop variables from the working set (the variables that the solver currently works on) that are at a bound or kink and
        will probably stay there (shrinking). Does nothing if more than the share ``max_share`` of the variables would remain.
        """
        ascents, descents, _ = self.compute_slopes()
        stays = (ascents <= descents.max()) | (descents >= ascents.min())
        kept = np.flatnonzero(stays)
        if not 2 <= len(kept) <= max_share * len(self.which):
            return
        a, leaving = self.working, np.flatnonzero(~stays)
        dropped = [*self.dropped, _ShrunkRows(self.which[leaving], a.gradient[leaving], self.which, a.b)]
        working = WorkingSet(*(array[kept] for array in a))
        b = self.b.copy()
        b[self.which] = a.b
        values, self.values = self.values, None
        if values is not None:
            n, m = len(values), len(kept)
            _compact_matrix(values.ravel(), n, kept, self.buffer)
            values = self.buffer[: m * m].reshape(m, m)
        self._tiles = self._tiles and self._tiles.take_rows(kept)
        self.b, self.which, self.working, self.dropped, self.values = b, self.which[kept], working, dropped, values

    def check_gap(self) -> float:
        """Return the gap (the violation of the optimality conditions) of the current solution, computed in float64: the gradients
        that may determine it are recomputed. Variables that were dropped from the working set must be restored before.

        A row cannot determine the gap if its float32 gradient excludes that by more than four times the largest error so far. For
        other kernels than the Gaussian, values and errors can have any size: all their gradients are recomputed.
        """
        p, a = self.problem, self.working
        if p.precomputed is not None:
            a.gradient[:] = self.compute_exact_gradient(self.which)
            return max(self.compute_slopes()[2], 0.0)
        is_exact = np.zeros(len(self.b), bool)
        error = 1e-7 * float(np.sqrt(np.sum(a.b**2) * np.abs(self.diagonal).max()))
        while True:
            rises, falls, gap = self.compute_slopes()
            is_doubtful = (rises <= rises.min() + 8.0 * error) | (falls >= falls.max() - 8.0 * error)
            is_doubtful |= p.kernel.kind != RBF
            new = np.flatnonzero(is_doubtful & ~is_exact)
            if not len(new):
                return max(gap, 0.0)
            gradient = self.compute_exact_gradient(new)
            error = max(error, float(np.abs(a.gradient[new] - gradient).max()))
            a.gradient[new], is_exact[new] = gradient, True

    def compute_exact_gradient(self, which: np.ndarray) -> np.ndarray:
        """Return the gradient of the dual problem at the current solution, computed in float64, for the rows at the positions
        ``which`` int64 [m], as float64 [m]. Variables that were dropped from the working set must be restored before.
        """
        gradient, support = -self.problem.targets[which], np.flatnonzero(self.working.b)
        self.add_change_exactly(self.working.b[support], support, which, gradient)
        return gradient


@compiled(nogil=True)
def _compact_matrix(values: np.ndarray, n: int, positions: np.ndarray, out: np.ndarray) -> None:
    """Copy a submatrix of the square matrix ``values``, a flat float32 array of ``n`` rows, to ``out``, row by row: the rows and
    columns at the ascending ``positions`` [m]. ``out`` may be the same memory.
    """
    m = len(positions)
    for i in range(m):
        for j in range(m):
            out[i * m + j] = values[positions[i] * n + positions[j]]
