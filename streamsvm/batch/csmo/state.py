"""The problem as conjugate SMO takes it, also of rows of which only kernel values are known, and its solution so far."""

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

_LARGEST_DENSE = 1e8  # values of a sparse matrix that may be made dense
_FEW_DENSE = 250_000  # values of few rows, which are dense however many of them are 0
_SPARSE = 0.1  # of the values of sparse rows are not zero, at most


class Problem(NamedTuple):
    """The dual of `streamsvm.batch.problem`. Arrays float64 [n].

    The rows are in float64, and as ``tiles`` of float32 unless these are not for them.
    """

    rows: Any  # `NormedRows`; None where only kernel values are known
    float32_rows: CheckedFloat32Rows | None
    precomputed: PrecomputedRows | None
    kernel: Kernel
    targets: np.ndarray
    epsilon: float
    classification: bool
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    total: float  # of all variables

    @property
    def largest_bound(self) -> float:
        return max(float(self.upper.max()), -float(self.lower.min()))


def make_problem(
    groups: RowGroups, bounds: Bounds, kernel: Kernel, epsilon: float | None, total: float = 0.0, few: bool = False
) -> Problem:
    """Return the problem of some groups: regression with ``epsilon``, else classification; ``total`` is the variables' sum.

    With ``few``, the rows are given by their Gram matrix.
    """
    X = groups.take_rows()
    if few and not isinstance(X, PrecomputedRows):
        X = compute_gram_rows(X, kernel)
    given, rows, tiles = X if isinstance(X, PrecomputedRows) else None, None, None
    if given is None:
        rows, tiles, kernel = _make_training_rows(X, kernel, groups.for_each)
    linear = 1.0 if epsilon is None else epsilon
    return Problem(rows, tiles, given, kernel, groups.targets, linear, epsilon is None, *bounds, total)


def choose_row_form(X: Any, kernel: Kernel, few: bool) -> Any:
    """Return X in the form whose kernel values are computed quickest, an array or CSR without duplicates; ``few``: of all."""
    dense, size = not sparse.issparse(X), X.shape[0] * X.shape[1]
    if few and size <= _FEW_DENSE:
        return to_dense(X)
    if dense and (np.count_nonzero(X) > _SPARSE * size or (kernel.kind == RBF and _has_one_value(X[:100][X[:100] != 0.0]))):
        return X
    rows = to_clean_csr(X)
    if size > _LARGEST_DENSE:
        return rows
    if rows.nnz > _SPARSE * size or (kernel.kind == RBF and _has_one_value(rows.data)):
        return X if dense else rows.toarray()
    return rows


def _has_one_value(values: np.ndarray) -> bool:
    """Whether there is one value beside 0: rows may then be indicators, and equal ones are found where they are dense."""
    return len(values) > 0 and bool((values == values[0]).all())


def _make_training_rows(X: Any, kernel: Kernel, each: ForEach) -> tuple[NormedRows, CheckedFloat32Rows | None, Kernel]:
    """Return X in float64, as tiles take it, and the kernel for these; ValueError if too large. Destroys a dense X."""
    values = X.data if sparse.issparse(X) else X
    largest = max(values.max(initial=0.0), -values.min(initial=0.0))
    if not sparse.issparse(X):
        rows, kernel = convert_to_indicators(X, kernel, each)
        if rows is X and kernel.kind == RBF:
            X -= 0.5 * (X.min(axis=0) + X.max(axis=0))  # distances stay the same, and have more digits
        X = rows
    stored = NormedRows(X)
    _check_magnitudes(largest, compute_self_kernels(stored, kernel))
    return stored, check_float32_rows(X, kernel), kernel


def _check_magnitudes(largest: float, compute_self_kernels: np.ndarray) -> None:
    if not (largest < LARGEST_FEATURE and np.abs(compute_self_kernels).max() < LARGEST_KERNEL):
        hint = "scale its features. The dual coefficients or intercepts are not finite then"
        raise ValueError(f"X has values that are too large for this kernel: {hint}")


def compute_gram_rows(X: Any, kernel: Kernel) -> PrecomputedRows:
    """Return rows X, an array or CSR, by their whole Gram matrix, in float64. Destroys a dense X. O(n^2 d)."""
    dense, values = not sparse.issparse(X), X.data if sparse.issparse(X) else X
    _check_magnitudes(max(values.max(initial=0.0), -values.min(initial=0.0)), np.ones(1))
    if dense and kernel.kind == RBF:
        X -= X.mean(axis=0)
    rows = NormedRows(X)
    K = compute_kernel_values(rows, rows, kernel)
    _check_magnitudes(0.0, K.diagonal())
    return PrecomputedRows(K)


def make_feasible(problem: Problem, b: np.ndarray) -> np.ndarray:
    """Return ``b`` float64 [n] clipped to the bounds, the larger of its two signs scaled down so that its sum is the total."""
    b = np.clip(b, problem.lower, problem.upper)
    excess = b.sum() - problem.total
    side = b > 0.0 if excess > 0.0 else b < 0.0
    if side.any():
        b[side] *= 1.0 - excess / b[side].sum()
    return b


#: Operations before a signal can be handled: a fraction of a second.
PAUSE = 1e9

_ROUNDED = 1e-5  # thrice what products in float32 round of a kernel value: times the largest bound, it must be below ``tol``


class _ShrunkRows(NamedTuple):
    """Rows that left the working set together: their numbers and gradients, and that working set with its coefficients."""

    rows: np.ndarray
    gradient: np.ndarray
    which: np.ndarray
    b: np.ndarray


class GramCache:
    """Memory of all kernel values of n rows, float32, which fits to the same rows share."""

    def __init__(self, n: int) -> None:
        self.values: np.ndarray = np.empty((n, n), np.float32)
        self.source: tuple[Any, bool] | None = None  # the rows whose values they are, and whether by float64


class SolverState:
    """The solution so far: of the rows in the working set in ``working``, of the others in ``b``.

    Kernel values for steps are products in float64 where float32 would be too coarse for ``tol``: where C is large.

    Rows that leave the working set keep their gradient, and what it was computed at: when they come back, only coefficients that
    have changed since are added. Methods assign what belongs together last and at once, since an interrupt may come between any
    two statements.
    """

    which: np.ndarray  # int64 ascending: the rows in the working set
    working: WorkingSet
    values: np.ndarray | None  # float32 [m, m]: the kernel matrix of the working set, if it is there
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
        self.memory: int = max(memory, buffer.nbytes)  # bytes that the cache may take
        self.problem: Problem = problem
        self.workers: Workers = workers or Workers()
        self.n_iter: int = 0
        self.b: np.ndarray = b
        own = (
            compute_self_kernels(problem.rows, problem.kernel) if problem.precomputed is None else problem.precomputed.diagonal()
        )
        self.diagonal: np.ndarray = own.astype(np.float32)
        rounded = problem.kernel.kind == RBF and _ROUNDED * problem.largest_bound > tol
        #: Whether float32 is too coarse for ``tol``, or for the rows.
        self.is_float64: bool = problem.precomputed is None and (
            problem.float32_rows is None or (rounded and not problem.float32_rows.is_exact)
        )
        self.buffer: np.ndarray = buffer
        self._gram = gram
        everything, nothing = np.arange(n), np.arange(0)
        self.which, self.dropped = nothing, [_ShrunkRows(everything, -problem.targets, everything, np.zeros(n))]
        self.restore_rows()

    @property
    def _value_source(self) -> tuple[Any, bool]:
        return self.problem.precomputed or self.problem.rows, self.is_float64

    def reserve_matrix(self, n: int) -> np.ndarray:
        """Return memory for the kernel matrix of n variables, float32 [n, n]; the one of the working set is lost."""
        self.values = None
        return self.buffer[: n * n].reshape(n, n)

    # Kernel values ------------------------------------------------------------------------------------------------------------

    def write_matrix(self, variables: np.ndarray, out: np.ndarray) -> None:
        """Write the kernel matrix of m variables, numbers in the working set, ascending, into ``out``, float32 [m, m]."""
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
            out[far] = self._exact_values(which[far], which)
            out[:, far] = out[far].T

    def _exact_values(self, of: np.ndarray, to: np.ndarray) -> np.ndarray:
        """Return the kernel values of rows that are too far from the mean for products in float32 with any m, float64 [k, m]."""
        p = self.problem
        return compute_kernel_values(p.rows[of], p.rows[to], p.kernel)

    def fill_matrix(self) -> np.ndarray:
        """Write the kernel matrix of the working set unless it is there; return it."""
        n, gram = len(self.which), self._gram if len(self.which) == len(self.b) else None
        if self.values is None and gram is not None and gram.source is not None:
            (rows, precise), (own, own_precise) = gram.source, self._value_source
            if rows is own and precise == own_precise:
                self.values = gram.values
        if self.values is None:
            everything, values = np.arange(n), self.reserve_matrix(n) if gram is None else gram.values
            self.write_matrix(everything, values)
            self.values = values
            if gram is not None:
                gram.source = self._value_source
        return self.values

    def add_change(self, change: np.ndarray, columns: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Add K b to a gradient, float64 [m], of the rows ``which``, int64 [m]; b is ``change`` in the rows ``columns``."""
        p, moved = self.problem, np.flatnonzero(change)
        if not len(moved):
            return
        change, columns = change[moved], columns[moved]
        if p.float32_rows is None:
            self.add_change_exactly(change, columns, which, gradient)
            return
        everything, near = p.float32_rows.rows, p.float32_rows.is_near
        rows = self._tiles if which is self.which and self._tiles else everything.take_rows(which)
        far = np.flatnonzero(~near[which])
        before = gradient[far]
        add_kernel_products(
            rows, everything.take_rows(columns), np.where(near[columns], change, 0.0), gradient, self.workers.for_each
        )
        if len(apart := np.flatnonzero(~near[columns])):
            gradient += change[apart] @ self._exact_values(columns[apart], which)
        if len(far):
            gradient[far] = before + self._exact_values(which[far], columns) @ change

    def add_change_exactly(self, change: np.ndarray, columns: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Do as `add_change` does, in float64."""
        p = self.problem
        if p.precomputed is not None:
            p.precomputed.add_kernel_products(change, columns, which, gradient)
        elif p.kernel.kind == LINEAR:  # the weights of the features are enough
            gradient += p.rows.X[which] @ (change @ p.rows.X[columns])
        else:
            add_kernel_sums(p.rows[which], p.rows[columns], change, p.kernel, gradient, self.workers.for_each)

    # The working set ----------------------------------------------------------------------------------------------------------

    def restore_rows(self) -> None:
        """Put all rows into the working set, with the gradient at the present point."""
        if not self.dropped:
            return
        p, n = self.problem, len(self.b)
        b, gradient = self.b.copy(), np.empty(n)
        if len(self.which):
            b[self.which], gradient[self.which] = self.working.b, self.working.gradient
        for rows, at, which, before in self.dropped:
            found = at.copy()
            self.add_change(b[which] - before, which, rows, found)
            gradient[rows] = found
        working = WorkingSet(b.copy(), gradient, p.lower, p.upper, p.kink, self.diagonal)
        self._tiles = p.float32_rows and p.float32_rows.rows
        self.b, self.which, self.working, self.dropped, self.values = b, np.arange(n), working, [], None

    def compute_slopes(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the slopes of the objective in each variable of the working set, upwards and downwards, and the gap."""
        ascents, descents = np.empty(len(self.which)), np.empty(len(self.which))
        least, most = write_slopes(self.working, self.problem.epsilon, 0.0, ascents, descents)
        return ascents, descents, most - least

    def shrink_rows(self, part: float) -> None:
        """Drop bounded variables that the most violating pair would leave at their bound or kink, if at most a part is left."""
        ascents, descents, _ = self.compute_slopes()
        keep = (ascents <= descents.max()) | (descents >= ascents.min())
        kept = np.flatnonzero(keep)
        if not 2 <= len(kept) <= part * len(self.which):
            return
        a, left = self.working, np.flatnonzero(~keep)
        dropped = [*self.dropped, _ShrunkRows(self.which[left], a.gradient[left], self.which, a.b)]
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
        """Return the gap in float64. All rows must be in the working set; the gradients that decide the gap are computed anew.

        A row cannot decide it if its float32 gradient excludes it by more than four times the largest error found so far. Kernels
        other than the Gaussian one can have values, and errors, of any size: all their rows are computed anew.
        """
        p, a = self.problem, self.working
        if p.precomputed is not None:
            a.gradient[:] = self.exact_gradient(self.which)
            return max(self.compute_slopes()[2], 0.0)
        exact = np.zeros(len(self.b), bool)
        error = 1e-7 * float(np.sqrt(np.sum(a.b**2) * np.abs(self.diagonal).max()))
        while True:
            rises, falls, gap = self.compute_slopes()
            doubt = (rises <= rises.min() + 8.0 * error) | (falls >= falls.max() - 8.0 * error)
            doubt |= p.kernel.kind != RBF
            new = np.flatnonzero(doubt & ~exact)
            if not len(new):
                return max(gap, 0.0)
            gradient = self.exact_gradient(new)
            error = max(error, float(np.abs(a.gradient[new] - gradient).max()))
            a.gradient[new], exact[new] = gradient, True

    def exact_gradient(self, which: np.ndarray) -> np.ndarray:
        """Return the gradient of the rows ``which``, int64 [m], in float64, where all rows are in the working set."""
        gradient, support = -self.problem.targets[which], np.flatnonzero(self.working.b)
        self.add_change_exactly(self.working.b[support], support, which, gradient)
        return gradient


@compiled(nogil=True)
def _compact_matrix(values: np.ndarray, n: int, kept: np.ndarray, out: np.ndarray) -> None:
    """Write a kernel matrix of n variables, float32 [n n], for those that are ``kept``, ascending, to ``out``: maybe itself."""
    m = len(kept)
    for i in range(m):
        for j in range(m):
            out[i * m + j] = values[kept[i] * n + kept[j]]
