"""The problem as conjugate SMO takes it, also of rows of which only kernel values are known, and its solution so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from streamsvm.batch.csmo.columns import (
    DENSE,
    ColumnCache,
    Rows,
    best_dense,
    column,
    cost,
    csr_without_zeros,
    diagonal,
    expand,
    pack,
    single,
    store_dense,
    store_sparse,
    subset,
)
from streamsvm.batch.csmo.steps import Workers, slopes
from streamsvm.batch.csmo.sweeps import WorkingSet
from streamsvm.batch.csmo.tiles import Factors, add_exact_products, add_products, factors, gram
from streamsvm.batch.problem import Bounds, Groups
from streamsvm.core.kernels import LARGEST_FEATURE, LARGEST_KERNEL, RBF, Kernel
from streamsvm.core.threads import stop_if_asked

_VALUES = 4_000_000  # float64 that are held at a time
_COLUMNS = 100_000  # values of columns, so that they are in the processor's cache when they are taken
_ASYMMETRY = 1e-5  # of the largest value, which rounding to float32 may make; of more, a fit might never end
_DIAGONAL = 64  # rows whose kernel values with each other are asked for at once, for their diagonal


class GivenRows:
    """The n rows ``which`` by their kernel values: those of a matrix that is given, or what a function returns.

    ``find`` returns the kernel values, float64 [m, k], of m with k rows, which are given by their numbers; the latter ascend.
    ``matrix`` has those of all rows with all, float64, where they are in memory.
    """

    def __init__(
        self, find: Callable[[np.ndarray, np.ndarray], np.ndarray], which: np.ndarray, matrix: np.ndarray | None = None
    ) -> None:
        self._find, self._which, self._matrix = find, which, matrix
        self.shape: tuple[int, int] = (len(which), 0)

    @classmethod
    def of_matrix(cls, K: np.ndarray) -> GivenRows:
        """Return the rows of a Gram matrix, float64 [n, n]; raise a ValueError where it is not symmetric."""
        _check_size(K)
        _check_symmetry(K)
        return cls(lambda rows, others: K[rows] if len(others) == len(K) else K[np.ix_(rows, others)], np.arange(len(K)), K)

    @classmethod
    def of_function(cls, kernel: Callable[[Any, Any], Any], X: Any, n: int, megabytes: float) -> GivenRows:
        """Return n rows X, of any form, with the values of a function; it is called once if the Gram matrix is so small."""
        if 8.0 * n * n <= megabytes * 2**20:
            return cls.of_matrix(kernel_values(kernel, X, X, (n, n)))

        def find(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
            of = _safe_indexing(X, others)
            values = kernel_values(kernel, _safe_indexing(X, rows), of, (len(rows), len(others)))
            _check_size(values)
            return values

        return cls(find, np.arange(n))

    def __len__(self) -> int:
        return len(self._which)

    def __getitem__(self, which: np.ndarray) -> GivenRows:
        return GivenRows(self._find, self._which[which], self._matrix)

    def values(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the kernel values of m with k of the n rows, float64 [m, k]."""
        return self._find(self._which[rows], self._which[others])

    def columns(self) -> Iterator[np.ndarray]:
        """Yield the columns of the Gram matrix, float64 [m, n], in chunks."""
        size = max(_COLUMNS // len(self), 1)
        for begin in range(0, len(self), size):
            if self._matrix is not None and len(self) == len(self._matrix):
                yield self._matrix[begin : begin + size]  # a view
                continue
            yield self.values(np.arange(begin, min(begin + size, len(self))), np.arange(len(self)))

    def diagonal(self) -> np.ndarray:
        """Return the self-kernels, float64 [n]; raise a ValueError where the values that are asked for are not symmetric."""
        if self._matrix is not None:
            return self._matrix.diagonal()[self._which]
        found = []
        for begin in range(0, len(self), _DIAGONAL):
            chunk = np.arange(begin, min(begin + _DIAGONAL, len(self)))
            values = self.values(chunk, chunk)
            _check_symmetry(values)
            found.append(values.diagonal())
        return np.concatenate(found)

    def add_products(self, b: np.ndarray, columns: np.ndarray, which: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Add the rows ``which`` of K b, where b is that of the ``columns``, to ``out`` float64 [m], in chunks; return it."""
        support = np.flatnonzero(b)
        size = max(_VALUES // max(len(support), 1), 1)
        for begin in range(0, len(which) if len(support) else 0, size):
            out[begin : begin + size] += self.values(which[begin : begin + size], columns[support]) @ b[support]
        return out


def kernel_values(kernel: Callable[[Any, Any], Any], X: Any, Z: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return what a kernel function gives for rows X and Z, float64; ValueError where it is of another shape, or not finite."""
    values = kernel(X, Z)
    values = np.asarray(values.toarray() if sparse.issparse(values) else values, np.float64)
    if values.shape != shape:
        raise ValueError(
            f"the kernel function must return an array of shape {list(shape)} for so many rows, not of shape {list(values.shape)}"
        )
    if not np.isfinite(values).all():
        raise ValueError("the kernel function returned a value that is not finite")
    return values


def _check_size(K: np.ndarray) -> None:
    size = max(_COLUMNS // max(K.shape[1], 1), 1)
    parts = (K[begin : begin + size] for begin in range(0, len(K), size))  # the second pass finds a part in the cache
    if not max((max(part.max(), -part.min()) for part in parts), default=0.0) < LARGEST_KERNEL:
        raise ValueError(f"a kernel value is beyond {LARGEST_KERNEL:g}: scale the kernel")


def _check_symmetry(K: np.ndarray) -> None:
    allowed = _ASYMMETRY * max(K.max(initial=0.0), -K.min(initial=0.0))
    for begin in range(0, len(K), _DIAGONAL):
        off = np.abs(K[begin : begin + _DIAGONAL] - K[:, begin : begin + _DIAGONAL].T)
        if off.max() > allowed:
            i, j = np.unravel_index(off.argmax(), off.shape)
            raise ValueError(
                f"the kernel is not symmetric: of rows {begin + i} and {j} its values are {K[begin + i, j]:g} and "
                f"{K[j, begin + i]:g}, by the order in which they are given; take the mean of both"
            )


_LARGEST_DENSE = 1e8  # values of a sparse matrix that may be made dense
_GIVEN_COST = 200  # a kernel value that compiled code does not compute is taken to cost as much as that of so many features


class Problem(NamedTuple):
    """The dual of `streamsvm.batch.problem`. Arrays float64 [n]; ``rows`` in float32, ``exact_rows`` in float64."""

    rows: Rows
    exact_rows: Rows
    given: GivenRows | None
    kernel: Kernel
    targets: np.ndarray
    epsilon: float
    classification: bool
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    total: float  # of all variables


def problem_of(groups: Groups, bounds: Bounds, kernel: Kernel, epsilon: float | None, total: float = 0.0) -> Problem:
    """Return the problem of some groups: regression with ``epsilon``, else classification; ``total`` is the variables' sum."""
    X = groups.rows()
    given = X if isinstance(X, GivenRows) else None
    if given is None:
        rows, exact = _training_rows(X, kernel)
    else:  # without features, but columns are worth their place in the cache
        exact = store_dense(np.empty((len(given), 0)), np.float64)._replace(features=_GIVEN_COST)
        rows = single(exact)
    linear = 1.0 if epsilon is None else epsilon
    return Problem(rows, exact, given, kernel, groups.targets, linear, epsilon is None, *bounds, total)


def quickest_form(X: Any, kernel: Kernel) -> Any:
    """Return X as an array or as CSR without duplicates: columns of sparse rows may be quicker from dense rows or from bits."""
    if not sparse.issparse(X):  # or values are given
        return X
    X = csr_without_zeros(X)
    if X.shape[0] * X.shape[1] > _LARGEST_DENSE:
        return X
    two_valued = kernel.kind == RBF and X.nnz > 0 and (X.data == X.data[0]).all()
    return X.toarray() if two_valued or best_dense(X) else X


def _training_rows(X: Any, kernel: Kernel) -> tuple[Rows, Rows]:
    """Return X in float32 and in float64, as bits where that is possible; ValueError if too large. Destroys a dense X."""
    dense, n, values = not sparse.issparse(X), X.shape[0], X.data if sparse.issparse(X) else X
    largest = max(values.max(initial=0.0), -values.min(initial=0.0))
    packed = pack(X, kernel.gamma) if dense and kernel.kind == RBF else None
    if packed is not None:
        rows, exact = packed
    else:
        if dense and kernel.kind == RBF:
            X -= 0.5 * (X.min(axis=0) + X.max(axis=0))  # distances stay the same, and float32 has more digits for them
        exact = store_dense(X, np.float64) if dense else store_sparse(X, np.float64)
        del X, values  # the float32 copy may take their memory
        rows = single(exact)
    self_kernels = np.ones(n)
    diagonal(exact, kernel, self_kernels)
    if not (largest < LARGEST_FEATURE and np.abs(self_kernels).max() < LARGEST_KERNEL):
        hint = "scale its features. The dual coefficients or intercepts are not finite then"
        raise ValueError(f"X has values that are too large for this kernel: {hint}")
    return rows, exact


def first_point(problem: Problem) -> np.ndarray:
    """Return variables, float64 [n], whose sum is the total: from the first on, they are at their upper bound."""
    upper = problem.upper
    return np.clip(problem.total - (np.cumsum(upper) - upper), 0.0, upper)


def feasible(problem: Problem, b: np.ndarray) -> np.ndarray:
    """Return ``b`` float64 [n] clipped to the bounds, the larger of its two signs scaled down so that its sum is the total."""
    b = np.clip(b, problem.lower, problem.upper)
    excess = b.sum() - problem.total
    side = b > 0.0 if excess > 0.0 else b < 0.0
    if side.any():
        b[side] *= 1.0 - excess / b[side].sum()
    return b


#: Operations before a signal can be handled: a fraction of a second.
PAUSE = 1e9

_SHARES = 4  # of a thread in the rows of an expansion
_PRODUCTS = 1e5  # gamma times the largest squared norm up to which products are as exact as differences, to 1e-10
_WORTHWHILE = 0.9  # shrinking must leave at most this part of the working set


class _Dropped(NamedTuple):
    """Rows that left the working set together: their numbers and gradients, and that working set with its coefficients."""

    rows: np.ndarray
    gradient: np.ndarray
    which: np.ndarray
    b: np.ndarray


def add_expansions(
    rows: Rows, b: np.ndarray, source: Rows, which: np.ndarray, kernel: Kernel, out: np.ndarray, workers: Workers | None = None
) -> None:
    """Add K b to ``out[which]`` for the rows numbered ``which`` of ``source``, in chunks between which signals are handled.

    ``b`` float64 [outputs, n], ``out`` float64 [rows of source, outputs].
    """
    support = np.flatnonzero(b.any(axis=0))
    if not len(support):
        return
    if len(support) < b.shape[1]:
        rows, b = subset(rows, support), b[:, support]
    b = np.require(b, requirements=["C", "W"])  # other layouts would be compiled anew
    size = max(int(PAUSE / (len(support) * cost(rows))), 1)
    workers = workers or Workers()

    def add(begin: int) -> None:
        stop_if_asked()
        chunk = which[begin : begin + size]
        sums = np.zeros((len(chunk), len(b)))
        expand(rows, b, source, chunk, kernel, np.empty(len(support), rows.dense.dtype), sums)
        out[chunk] += sums

    if workers.threads > 1:
        size = min(size, max(-(-len(which) // (_SHARES * workers.threads)), 1))
    workers.each(add, range(0, len(which), size))


def _not_far(p: Problem) -> bool:
    """Return whether products of dense rows in float64 give distances that are exact enough."""
    X = p.exact_rows.dense
    return p.kernel.gamma * float(np.einsum("ji,ji->i", X, X).max()) <= _PRODUCTS


class State:
    """The solution so far: of the rows in the working set in ``working``, of the others in ``b``.

    Rows that leave the working set keep their gradient, and what it was computed at: when they come back, only coefficients that
    have changed since are added. Methods assign what belongs together last and at once, since an interrupt may come between any
    two statements.
    """

    which: np.ndarray
    rows: Rows
    working: WorkingSet
    dropped: list[_Dropped]

    def __init__(self, problem: Problem, b: np.ndarray, buffer: np.ndarray, workers: Workers | None = None) -> None:
        n = len(b)
        self.problem: Problem = problem
        self.workers: Workers = workers or Workers()
        self.n_iter: int = 0
        self.b: np.ndarray = b
        self.diagonal: np.ndarray = np.empty(n, np.float32)
        if problem.given is None:
            diagonal(problem.rows, problem.kernel, self.diagonal)
        else:
            self.diagonal[:] = problem.given.diagonal()
        dense = problem.given is None and problem.rows.kind == DENSE
        self.tiles: tuple[Factors, np.ndarray] | None = factors(problem.exact_rows.dense, problem.kernel) if dense else None
        self._products = dense and problem.kernel.kind == RBF and _not_far(problem)
        self.cache: ColumnCache = ColumnCache(buffer, n)
        everything, nothing = np.arange(n), np.arange(0)
        self.which, self.dropped = nothing, [_Dropped(everything, -problem.targets, everything, np.zeros(n))]
        self.unshrink()
        if problem.given is not None:
            self.cache.fill(problem.given.columns())

    def provide_column(self) -> None:
        """Write the column for which steps wait."""
        i, column = self.cache.newest
        column[:] = self.problem.given.values(self.which[i : i + 1], self.which)[0]  # type: ignore[union-attr]

    def fill_gram(self, which: np.ndarray, K: np.ndarray) -> None:
        """Write the kernel matrix of the rows ``which`` into K, float32 [m, m], by tiles: that of far ones column by column."""
        of, near = self.tiles  # type: ignore[misc]
        gram(of, which, K)
        far = np.flatnonzero(~near[which])
        if len(far):
            rows = subset(self.problem.rows, which)
            for i in far:
                column(rows, rows, i, self.problem.kernel, K[i])
                K[:, i] = K[i]

    def add(self, change: np.ndarray, columns: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        """Add K b to a gradient, float64 [m], of the rows ``which``, int64 [m]; b is ``change`` in the rows ``columns``."""
        p, moved = self.problem, np.flatnonzero(change)
        if not len(moved):
            return
        change, columns = change[moved], columns[moved]
        if p.given is not None:
            p.given.add_products(change, columns, which, gradient)
        elif self.tiles is None:
            self._add_expansions(change, columns, which, gradient)
        else:
            of, near = self.tiles
            rows, close = near[which], near[columns]
            some = gradient[rows]
            add_products(of, which[rows], change[close], columns[close], some, self.workers.each)
            gradient[rows] = some
            self._add_expansions(change[~close], columns[~close], which, gradient)
            if not rows.all():
                some = gradient[~rows]
                self._add_expansions(change[close], columns[close], which[~rows], some)
                gradient[~rows] = some

    def _add_expansions(self, change: np.ndarray, columns: np.ndarray, which: np.ndarray, gradient: np.ndarray) -> None:
        if not len(columns):
            return
        p = self.problem
        if self._products:
            add_exact_products(p.exact_rows.dense, p.kernel, which, change, columns, gradient, self.workers.each)
            return
        sums = np.zeros((len(self.b), 1))
        add_expansions(subset(p.rows, columns), change[np.newaxis], p.rows, which, p.kernel, sums, self.workers)
        gradient += sums[which, 0]

    def unshrink(self) -> None:
        """Put all rows into the working set, with the gradient at the present point."""
        if not self.dropped:
            return
        p, n = self.problem, len(self.b)
        b, gradient = self.b.copy(), np.empty(n)
        if len(self.which):
            b[self.which], gradient[self.which] = self.working.b, self.working.gradient
        for rows, at, which, before in self.dropped:
            found = at.copy()
            self.add(b[which] - before, which, rows, found)
            gradient[rows] = found
        working = WorkingSet(
            b.copy(), gradient, p.lower, p.upper, p.kink,
            np.empty(n, np.float32), np.empty(n, np.float32), self.diagonal,
            np.empty(n, np.float32), np.empty(n, np.float32), np.zeros(n), np.zeros(n),
            np.empty(n, np.int64), np.zeros(n, bool),
        )  # fmt: skip
        self.cache.reset(n)
        self.b, self.which, self.rows, self.working, self.dropped = b, np.arange(n), p.rows, working, []

    def derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes of the objective in each variable of the working set: upwards from it, and downwards to it."""
        a, epsilon = self.working, self.problem.epsilon
        slopes(a, epsilon)
        rise, fall = (np.where(np.isinf(slope), slope, np.copysign(np.float64(epsilon), slope)) for slope in (a.rise, a.fall))
        return a.gradient + rise, a.gradient + fall

    def shrink(self) -> None:
        """Drop bounded variables that the most violating pair would leave at their bound or kink, if they are enough."""
        a, (rises, falls) = self.working, self.derivatives()
        keep = (rises <= falls.max()) | (falls >= rises.min())
        kept = np.flatnonzero(keep)
        if not 2 <= len(kept) <= _WORTHWHILE * len(self.which):
            return
        left = np.flatnonzero(~keep)
        dropped = [*self.dropped, _Dropped(self.which[left], a.gradient[left], self.which, a.b)]
        rows, working = subset(self.rows, kept), WorkingSet(*(array[kept] for array in a))
        b = self.b.copy()
        b[self.which] = a.b
        self.cache.keep(kept)
        self.b, self.which, self.rows, self.working, self.dropped = b, self.which[kept], rows, working, dropped

    def check(self) -> float:
        """Return the gap in float64. All rows must be in the working set; the gradients that decide the gap are computed anew.

        A row cannot decide it if its float32 gradient excludes it by more than four times the largest error found so far. Kernels
        other than the Gaussian one can have values, and errors, of any size: all their rows are computed anew.
        """
        p, a = self.problem, self.working
        exact = np.zeros(len(self.b), bool)
        error = 1e-7 * float(np.sqrt(np.sum(a.b**2) * np.abs(self.diagonal).max()))
        while True:
            rises, falls = self.derivatives()
            doubt = (rises <= rises.min() + 8.0 * error) | (falls >= falls.max() - 8.0 * error)
            doubt |= p.kernel.kind != RBF
            new = np.flatnonzero(doubt & ~exact)
            if not len(new):
                return max(float(falls.max() - rises.min()), 0.0)
            gradient = self.exact_gradient(new)
            error = max(error, float(np.abs(a.gradient[new] - gradient).max()))
            a.gradient[new], exact[new] = gradient, True

    def exact_gradient(self, which: np.ndarray) -> np.ndarray:
        """Return the gradient of the rows ``which``, int64 [m], in float64, where all rows are in the working set."""
        p, b = self.problem, self.working.b
        gradient = -p.targets
        if p.given is not None:
            return p.given.add_products(b, np.arange(len(b)), which, gradient[which])
        if self._products:
            found, support = gradient[which], np.flatnonzero(b)
            add_exact_products(p.exact_rows.dense, p.kernel, which, b[support], support, found, self.workers.each)
            return found
        add_expansions(p.exact_rows, b[np.newaxis], p.exact_rows, which, p.kernel, gradient[:, np.newaxis], self.workers)
        return gradient[which]
