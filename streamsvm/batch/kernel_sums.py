"""Sums of kernel values with support vectors, times coefficients: what decision values of machines are, beside the intercepts.

They are computed in tiles of rows and support vectors, whose products are matrix products (`streamsvm.batch.csmo.tiles`). With
the Gaussian kernel, all are taken relative to a centre: the mean of the support vectors, or, where most of a feature's values
are the same one, that value, which makes the rows sparse. Rows and vectors that are too far from it have no products that are
exact enough. They take kernel values by differences, and so do a few rows, for which there is nothing to be shared.

**How far float32 may be off.** Let u = 2^-24 be float32's rounding, x a row, and s a support vector, both relative to the
centre, exactly to float64. A squared distance D is a sum of p products: of x and -2 s, of which at most p - 2 are not 0, and
|x|^2 1 + 1 |s|^2. The absolute values of the products add up to at most 2 (|x|^2 + |s|^2). Their two factors are rounded by u
each, and in whatever order p products are added, with or without fused steps, the sum is off by at most p u times these absolute
values (Higham, Accuracy and stability of numerical algorithms, section 3.1). Two more roundings multiply D, itself at most
2 (|x|^2 + |s|^2), by -gamma log2(e). So the exponent is off by at most

    e(x, s) = (p + 4) u 2 gamma (|x|^2 + |s|^2),

which is at most 1/8 as far as float32 is used, and `exp2` by less than 4 u of its result. A kernel value is thus off by at most
(1.07 e + 4 u) times itself. Coefficients are rounded once, and the products with m of the values are added in float32: 256 (a
tile) or, for one machine, 64. They are off by at most (m + 1) u of the sum of their absolute values, and are added in float64.
Hence

    |f32 - f| <= 1.1 u sum_s |c_s| k(x, s) (m + 5 + (p + 4) 2 gamma (|x|^2 + |s|^2)).

The two sums over s there, of |c| k and of |c| k |s|^2, are computed with the values. The factor 1.1 is for 1.07, for the
products of errors, for the errors of these two sums, and for those of float64. What is below the least normal number, 2^-126,
is off by at most as much, which adds less than 2^-123 (sum_s |c_s| + n) for n vectors.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.columns import DENSE, Rows, csr, csr_without_zeros, store, subset
from streamsvm.batch.csmo.state import add_expansions
from streamsvm.batch.csmo.tiles import COLUMNS, ROWS, Vectors, csr_of, other_side, product_tiles
from streamsvm.core.kernels import LINEAR, LOG2E, RBF, SIGMOID, Kernel, exp2f, exp64
from streamsvm.core.threads import stop_if_asked

FEW = 32  # rows up to which kernel values by differences are quicker
_AT_ONCE, _LEAST_ROWS, _MOST_ROWS = 2**22, 64, 4096  # values of rows that are made ready at a time, and rows
#: p + 4 times gamma times a squared norm: up to it, the exponent is off by at most 1/8 in float32, and 6e-11 in float64.
_FAR: dict[type, float] = {np.float32: 2.0**19, np.float64: 2.0**17}
_MOSTLY = 0.5  # of the kernel values, at least, are from tiles
_MOST_FAR = 0.05  # support vectors too far for float32 from which on all is in float64
_MOST_TERMS = 2**17  # products in a sum of float32
_BLOCK = 64  # values of a sum of float32 for one machine
_SPARSE = 0.2  # of the values are not 0, at most, where sparse products are quicker
_LARGEST_DENSE = 1e7  # values of sparse vectors that may be made dense
_SCALES = 2.0**-60, 2.0**60  # of gamma, within which float32 neither overflows nor loses digits
_UNIT = 1.1 * 2.0**-24
_LEAST = 2.0**-123


class _Tile(NamedTuple):
    """The coefficients of the support vectors of a tile."""

    machines: np.ndarray | slice  # those that have some here
    factors: np.ndarray  # [machines, vectors]; of float32, then rows c and c |s|^2, c the largest |c| of a vector


class _Form(NamedTuple):
    """Support vectors as tiles take them: dense or sparse, in float32 or float64."""

    vectors: Vectors  # the near ones
    terms: int  # products in a squared distance, at most
    far: tuple[Rows, np.ndarray] | None  # the other ones, and their coefficients
    tiles: list[_Tile]
    has: np.ndarray  # float64 [tiles, machines]: 1 where a machine has coefficients in a tile


class KernelSums:
    """The sums of one or more machines over n support vectors, an array or sparse matrix [n, d].

    ``coefficients`` are float64 [machines, n]. Forms of the vectors are made when rows first need them.
    """

    def __init__(self, vectors: Any, coefficients: np.ndarray, kernel: Kernel) -> None:
        self.rows: Rows = store(vectors, dense=not sparse.issparse(vectors))
        self._coefficients, self._kernel = coefficients, kernel
        self._forms: dict[tuple[bool, type], _Form] = {}
        self._weights: Any = None
        if kernel.kind == LINEAR:  # the weights of the features are enough
            self._weights = (coefficients if self.rows.kind == DENSE else sparse.csr_array(coefficients)) @ self._vectors

    def rows_at_once(self, X: Any) -> int:
        """Return how many of the rows X are best given at a time."""
        if sparse.issparse(X) and self._weights is None and self._centres.get(True, X) is None:
            return _MOST_ROWS  # they stay sparse
        return int(np.clip(_AT_ONCE // max(self.rows.features, 1), _LEAST_ROWS, _MOST_ROWS))

    def exact(self, X: Any) -> np.ndarray:
        """Return the sums at rows X [m, d], an array or CSR, float64 [m, machines], to about 1e-10 of sum_s |c_s|."""
        with np.errstate(over="ignore", invalid="ignore"):  # polynomials of huge rows
            if self._weights is not None:
                products = X @ self._weights.T
                return products.toarray() if sparse.issparse(products) else products
            if X.shape[0] > FEW:
                form, left, near, _ = self._prepared(X, np.float64)
                if near.mean() * form.vectors.n >= _MOSTLY * self._coefficients.shape[1]:
                    out = self._by_tiles(form, left).T
                    if form.far is not None:
                        out += self._by_columns(*form.far, X)
                    if not near.all():
                        out[~near] = self._by_columns(self.rows, self._coefficients, X[~near])
                    return out
        return self._by_columns(self.rows, self._coefficients, X)

    def rough(self, X: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the sums in float32, as `exact` does, and how far they may be off, float64 [m, machines], maybe infinite.

        None where they would not save time.
        """
        gamma = self._kernel.gamma
        if self._kernel.kind != RBF or X.shape[0] <= FEW or not _SCALES[0] <= gamma <= _SCALES[1]:
            return None
        form, left, near, squares = self._prepared(X, np.float32)
        m, n = X.shape[0], self._coefficients.shape[1]
        if n - form.vectors.n > _MOST_FAR * n or form.terms > _MOST_TERMS:
            return None
        sizes = np.zeros((2, len(form.tiles), m))
        steep, added = 2.0 * gamma * (form.terms + 4), _BLOCK if len(self._coefficients) == 1 else COLUMNS
        with np.errstate(over="ignore", invalid="ignore"):
            out = self._by_tiles(form, left, sizes).T
            errors = _UNIT * ((added + 5 + steep * squares) * sizes[0] + steep * sizes[1])
            error = errors.T @ form.has + _LEAST * (n + np.abs(self._coefficients).max(axis=0, initial=0.0).sum())
            if form.far is not None:
                out += self._by_columns(*form.far, X)
            unknown = ~(near & np.isfinite(error.sum(axis=1) + out.sum(axis=1)))
        out[unknown], error[unknown] = 0.0, np.inf
        return out, error

    # Forms ------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _centres(self) -> dict[bool, Any]:
        """What sparse rows (True) and dense ones are taken relative to, [d] or None for 0; without the forms that are slower."""
        dense, n = self.rows.kind == DENSE, self._coefficients.shape[1]
        V, size = self._vectors, float(n) * self.rows.features
        centres, usual, count = {}, None, 0 if dense else V.nnz
        if dense:
            if n and self._kernel.kind == RBF:
                usual = np.median(V[:: -(-n // 100)], axis=0)
            count = np.count_nonzero(V if usual is None else usual != V)
        if count <= _SPARSE * size or not (dense or size <= _LARGEST_DENSE):
            centres[True] = usual
        if dense or size <= _LARGEST_DENSE:
            centres[False] = np.asarray(V.sum(axis=0)) / max(n, 1) if self._kernel.kind == RBF else None
        return centres

    @property
    def _vectors(self) -> Any:
        """The support vectors as an array or CSR array that shares their memory, [n, d]."""
        return self.rows.dense.T if self.rows.kind == DENSE else csr(self.rows)

    def _prepared(self, X: Any, dtype: type) -> tuple[_Form, Vectors, np.ndarray, np.ndarray]:
        """Return the form of the support vectors for rows X, these, which of them are near enough, and their squared norms."""
        is_sparse, X = self._like_vectors(X)
        if (is_sparse, dtype) not in self._forms:
            self._forms[is_sparse, dtype] = self._form(is_sparse, dtype)
        form = self._forms[is_sparse, dtype]
        left, squares = _vectors(X, self._kernel, dtype)
        return form, left, self._near(squares, form.terms, dtype), squares

    def _like_vectors(self, X: Any) -> tuple[bool, Any]:
        """Return whether rows X are best taken as sparse ones, and X relative to the centre of the form."""
        if True in self._centres:
            centre = self._centres[True]
            if sparse.issparse(X) and centre is None:
                return True, csr_without_zeros(X)
            moved = _relative(X, centre)
            if False not in self._centres or np.count_nonzero(moved) <= _SPARSE * moved.size:
                return True, csr_of(moved)
        return False, _relative(X, self._centres[False])

    def _near(self, squares: np.ndarray, terms: int, dtype: type) -> np.ndarray:
        """Return which rows are near enough to the centre, bool [n], by their squared norms."""
        if self._kernel.kind != RBF:
            return np.ones(len(squares), bool)
        return np.asarray(self._kernel.gamma * squares <= _FAR[dtype] / (terms + 4))

    def _form(self, is_sparse: bool, dtype: type) -> _Form:
        V = self._vectors
        if self.rows.kind == DENSE or not is_sparse:
            V = _relative(V, self._centres[is_sparse])
            V = csr_of(V) if is_sparse else V
        right, squares = _vectors(V, self._kernel, dtype)
        terms = 2 + int(np.diff(right.starts).max(initial=0) if is_sparse else right.features)
        near, far = self._near(squares, terms, dtype), None
        if not near.all():
            some = np.flatnonzero(~near)
            far = subset(self.rows, some), self._coefficients[:, some]
        kept = np.flatnonzero(near)
        right, coefficients = other_side(right.take(kept)), self._coefficients[:, kept]
        parts = [slice(first, first + right.lanes) for first in range(0, right.n, right.lanes)]
        tiles = [_tile(coefficients[:, part], squares[kept][part], dtype) for part in parts]
        has = [coefficients[:, part].any(axis=1) for part in parts]
        return _Form(right, terms, far, tiles, np.array(has, np.float64).reshape(len(parts), len(coefficients)))

    # Sums -------------------------------------------------------------------------------------------------------------------

    def _by_columns(self, rows: Rows, coefficients: np.ndarray, X: Any) -> np.ndarray:
        """Return sums by differences, float64 [m, machines]."""
        out = np.zeros((X.shape[0], len(coefficients)))
        add_expansions(rows, coefficients, store(X, dense=rows.kind == DENSE), np.arange(X.shape[0]), self._kernel, out)
        return out

    def _by_tiles(self, form: _Form, left: Vectors, sizes: np.ndarray | None = None) -> np.ndarray:
        """Return sums over the near vectors, float64 [machines, m].

        Write those of c k and c k |s|^2 into ``sizes`` [2, tiles, m], where c is the largest |c| of a vector.
        """
        out, memory = np.zeros((len(self._coefficients), left.n)), np.empty(ROWS * COLUMNS, left.values.dtype)
        for rows, first, products in product_tiles(left, form.vectors, 0, left.n):
            stop_if_asked()
            number = first // form.vectors.lanes
            machines, factors = form.tiles[number]
            values = _kernel_values(self._kernel, products, memory)[:, : factors.shape[1]]
            if sizes is None:
                out[machines, rows] += factors @ values.T
                continue
            sums = factors @ values.T if len(out) > 1 else _sums_of_one(values, factors)
            out[machines, rows] += sums[:-2]
            sizes[:, number, rows] = sums[-2:]
        return out


def _relative(X: Any, centre: Any) -> np.ndarray:
    """Return rows as an array, relative to a centre [d]; None: to 0."""
    X = X.toarray() if sparse.issparse(X) else X
    return X if centre is None else X - centre


def _vectors(X: Any, kernel: Kernel, dtype: type) -> tuple[Vectors, np.ndarray]:
    """Return rows X, an array or CSR, as tiles take them, and their squared norms, float64 [n]."""
    n, d = X.shape
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are too far are left out later
        if sparse.issparse(X):
            squares = sparse.csr_array((np.square(X.data), X.indices, X.indptr), X.shape) @ np.ones(d)
            parts = np.empty((n, 0), dtype), X.indptr.astype(np.int64), X.indices.astype(np.int32, copy=False)
            far = ~(kernel.gamma * squares <= _FAR[dtype]) & (kernel.kind == RBF)
            values = np.where(np.repeat(far, np.diff(X.indptr)), 0.0, X.data) if far.any() else X.data
            return Vectors(kernel, squares.astype(dtype), *parts, values.astype(dtype), d), squares
        squares = np.einsum("ij,ij->i", X, X)
        nothing: dict[str, Any] = {"starts": np.int64, "indices": np.int32, "values": dtype}
        nothing = {name: np.empty(0, of) for name, of in nothing.items()}
        dense: np.ndarray = np.ascontiguousarray(X, dtype)
        if kernel.kind == RBF:
            dense = np.empty((n, d + 2), dtype)
            dense[:, :d], dense[:, d], dense[:, d + 1] = X, squares, 1.0
            dense[~(kernel.gamma * squares <= _FAR[dtype])] = 0.0
        return Vectors(kernel, squares.astype(dtype), dense, **nothing, features=d), squares


def _tile(coefficients: np.ndarray, squares: np.ndarray, dtype: type) -> _Tile:
    machines = np.flatnonzero(coefficients.any(axis=1))
    factors = coefficients[machines]
    if dtype is np.float32:
        size = np.abs(coefficients).max(axis=0)
        factors = np.vstack([factors, size, size * squares])
    with np.errstate(over="ignore"):
        return _Tile(slice(None) if len(machines) == len(coefficients) else machines, factors.astype(dtype))


def _sums_of_one(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the product for one machine, float64 [3, rows]; the first sum is one in float64 of those of blocks."""
    n, out = factors.shape[1] - factors.shape[1] % _BLOCK, np.empty((3, len(values)))
    blocks = values[:, :n].reshape(len(values), n // _BLOCK, _BLOCK).swapaxes(0, 1)
    out[0] = (blocks @ factors[0, :n].reshape(n // _BLOCK, _BLOCK, 1)).sum(axis=0, dtype=np.float64)[:, 0]
    out[0] += values[:, n:] @ factors[0, n:]
    for k in (1, 2):
        out[k] = values @ factors[k]
    return out


def _kernel_values(kernel: Kernel, products: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Turn squared distances (rbf) or products into kernel values, in ``memory`` or in place."""
    if kernel.kind == RBF:
        out, size = memory[: products.size], products.size
        if products.dtype == np.float32:
            exp2f(products.ravel(), np.float32(-kernel.gamma * LOG2E), size, out)
        else:
            exp64(products.ravel(), -kernel.gamma, size, out)
        return out.reshape(products.shape)
    products *= kernel.gamma
    products += kernel.coef0
    if kernel.kind == SIGMOID:
        return np.tanh(products, out=products)
    powers = products.copy()
    for _ in range(kernel.degree - 1):
        powers *= products
    return powers
