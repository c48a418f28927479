"""Sums of kernel values with support vectors, times coefficients: what decision values of machines are, beside the intercepts.

They are computed in float64 (`streamsvm.batch.csmo.values`), or where labels allow, in float32, in tiles of rows and support
vectors (`streamsvm.batch.csmo.tiles`). With the Gaussian kernel, all are taken relative to a centre: the mean of the support
vectors, or, where most of a feature's values are the same one, that value, which makes the rows sparse.

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

from streamsvm.batch.csmo.tiles import (
    COLUMNS,
    ROWS,
    Float32Rows,
    array_to_csr,
    iter_product_tiles,
    make_float32_rows,
    make_right_side,
)
from streamsvm.batch.csmo.values import NormedRows, add_kernel_sums, to_clean_csr, to_dense
from streamsvm.core.kernels import LINEAR, LOG2E, RBF, Kernel, exp2f
from streamsvm.core.threads import raise_if_stopped

FEW = 32  # rows up to which float32 saves no time
_AT_ONCE, _LEAST_ROWS, _MOST_ROWS = 2**22, 64, 4096  # values of rows that are made ready at a time, and rows
_FAR = 2.0**19  # p + 4 times gamma times a squared norm: up to it, the exponent is off by at most 1/8 in float32
_MOST_TERMS = 2**17  # products in a sum of float32
_BLOCK = 64  # values of a sum of float32 for one machine
_SPARSE = 0.2  # of the values are not 0, at most, where sparse products are quicker
_LARGEST_DENSE = 1e7  # values of sparse vectors that may be made dense
_SCALES = 2.0**-60, 2.0**60  # of gamma, within which float32 neither overflows nor loses digits
_UNIT = 1.1 * 2.0**-24
_LEAST = 2.0**-123


class _TiledVectors(NamedTuple):
    """Support vectors as tiles take them, dense or sparse, and their coefficients."""

    vectors: Float32Rows
    farthest: float  # gamma times the squared norm of a row that is near enough
    steep: float  # 2 gamma (p + 4)
    #: Of each tile, the machines that have coefficients there, and these, [machines, vectors]. Those of one machine are [blocks,
    #: vectors]. Rows c and c |s|^2 follow, where c is the largest |c| of a vector.
    tiles: list[tuple[Any, np.ndarray]]
    has_coefficients: np.ndarray  # float64 [tiles, machines]: 1 where a machine has coefficients


class KernelSums:
    """The sums of one or more machines over n support vectors, an array or CSR [n, d].

    ``coefficients`` are float64 [machines, n]. Forms of the vectors are made when rows first need them.
    """

    def __init__(self, vectors: Any, coefficients: np.ndarray, kernel: Kernel) -> None:
        self._vectors: Any = to_clean_csr(vectors) if sparse.issparse(vectors) else vectors
        self._coefficients, self._kernel = coefficients, kernel
        self._by_vector: np.ndarray = np.ascontiguousarray(coefficients.T)
        self._negligible: np.ndarray = 2.0**-1021 * np.abs(coefficients).sum(axis=1)  # kernel values are at least 2^-1022
        self._forms: dict[bool, _TiledVectors | None] = {}
        self._weights: Any = None
        if kernel.kind == LINEAR:  # the weights of the features are enough
            self._weights = (sparse.csr_array(coefficients) if sparse.issparse(vectors) else coefficients) @ self._vectors

    def choose_chunk_rows(self, X: Any) -> int:
        """Return how many of the rows X are best given at a time."""
        if sparse.issparse(X) and self._weights is None and self._stay_sparse:
            return _MOST_ROWS
        return int(np.clip(_AT_ONCE // max(self._vectors.shape[1], 1), _LEAST_ROWS, _MOST_ROWS))

    @np.errstate(over="ignore", invalid="ignore")  # of huge rows
    def compute_exact(self, X: Any) -> np.ndarray:
        """Return the sums at rows X [m, d], an array or CSR, float64 [m, machines], to about 1e-10 of sum_s |c_s|."""
        if self._weights is not None:
            return to_dense(X @ self._weights.T)
        out = np.zeros((X.shape[0], len(self._coefficients)))
        X = to_clean_csr(X) if self._stay_sparse else _center_rows(X, self._centres[False])
        add_kernel_sums(NormedRows(X), self._exact_vectors, self._by_vector, self._kernel, out)
        out[np.abs(out) <= self._negligible] = 0.0  # far from all support vectors, where the intercept alone decides
        return out

    @np.errstate(over="ignore", invalid="ignore")
    def compute_float32(self, X: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the sums in float32, as `compute_exact` does, and bounds of their errors, float64 [m, machines], maybe infinite.

        None where they would not save time.
        """
        if self._kernel.kind != RBF or X.shape[0] <= FEW or (found := self._prepare_rows(X)) is None:
            return None
        form, left, squares = found
        sizes = np.zeros((2, len(form.tiles), X.shape[0]))
        out = self._sum_tiles(form, left, sizes).T
        added = _BLOCK if len(self._coefficients) == 1 else COLUMNS
        errors = _UNIT * ((added + 5 + form.steep * squares) * sizes[0] + form.steep * sizes[1])
        error = (
            errors.T @ form.has_coefficients + _LEAST * (left.n_rows + np.abs(self._coefficients).max(axis=0, initial=0.0)).sum()
        )
        near = self._kernel.gamma * squares <= form.farthest
        unknown = ~(near & np.isfinite(error.sum(axis=1) + out.sum(axis=1)))
        out[unknown], error[unknown] = 0.0, np.inf
        return out, error

    # Forms ------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _centres(self) -> dict[bool, Any]:
        """The centre of sparse rows (True) and of dense ones, [d] or None for 0; without the forms that are slower."""
        V, moves = self._vectors, self._kernel.kind == RBF
        n, dense = max(V.shape[0], 1), not sparse.issparse(V)
        size = float(n) * V.shape[1]
        usual = np.median(V[:: -(-n // 100)], axis=0) if dense and moves and len(V) else None
        count = V.nnz if not dense else np.count_nonzero(V if usual is None else usual != V)
        small, centres = dense or size <= _LARGEST_DENSE, {}
        if count <= _SPARSE * size or not small:
            centres[True] = usual
        if small:
            centres[False] = np.asarray(V.sum(axis=0)) / n if moves else None
        return centres

    @cached_property
    def _stay_sparse(self) -> bool:
        return sparse.issparse(self._vectors) and True in self._centres

    @cached_property
    def _exact_vectors(self) -> NormedRows:
        return NormedRows(self._vectors if self._stay_sparse else _center_rows(self._vectors, self._centres[False]))

    def _prepare_rows(self, X: Any) -> tuple[_TiledVectors, Float32Rows, np.ndarray] | None:
        """Return the form of the support vectors for rows X, these in that form, and their squared norms."""
        is_sparse = True in self._centres
        X = to_clean_csr(X) if sparse.issparse(X) else X
        if is_sparse and (not sparse.issparse(X) or self._centres[True] is not None):
            moved = _center_rows(X, self._centres[True])
            is_sparse = False not in self._centres or bool(np.count_nonzero(moved) <= _SPARSE * moved.size)
            X = array_to_csr(moved) if is_sparse else X
        if is_sparse not in self._forms:
            self._forms[is_sparse] = self._tile_vectors(is_sparse)
        form = self._forms[is_sparse]
        return form and (form, *make_float32_rows(X if is_sparse else _center_rows(X, self._centres[False]), self._kernel))

    def _tile_vectors(self, is_sparse: bool) -> _TiledVectors | None:
        V, kernel = self._vectors, self._kernel
        if not (is_sparse and sparse.issparse(V)):
            V = _center_rows(V, self._centres[is_sparse])
            V = array_to_csr(V) if is_sparse else V
        right, squares = make_float32_rows(V, kernel)
        terms = 2 + int(np.diff(right.starts).max(initial=0) if is_sparse else right.features)
        farthest = _FAR / (terms + 4)
        fits = _SCALES[0] <= kernel.gamma <= _SCALES[1] and terms <= _MOST_TERMS
        if not (fits and kernel.gamma * squares.max(initial=0.0) <= farthest):
            return None
        tiles: list[tuple[Any, np.ndarray]] = []
        size = np.abs(self._coefficients).max(axis=0, initial=0.0)
        for part in [slice(first, first + right.tile_columns) for first in range(0, right.n_rows, right.tile_columns)]:
            machines = np.flatnonzero(self._coefficients[:, part].any(axis=1))
            factors = self._coefficients[machines, part]
            if len(machines) == len(self._coefficients) == 1:  # a row for each block: 0 beside it rounds nothing
                of_block = np.arange(factors.shape[1]) // _BLOCK
                factors = np.where(of_block == np.arange(COLUMNS // _BLOCK)[:, np.newaxis], factors, 0.0)
            tiles.append((machines, np.vstack([factors, size[part], size[part] * squares[part]]).astype(np.float32)))
        has = np.zeros((len(tiles), len(self._coefficients)))
        for number, (machines, _) in enumerate(tiles):
            has[number, machines] = 1.0
        return _TiledVectors(make_right_side(right), farthest, 2.0 * kernel.gamma * (terms + 4), tiles, has)

    def _sum_tiles(self, form: _TiledVectors, left: Float32Rows, sizes: np.ndarray) -> np.ndarray:
        """Return the sums, float64 [machines, m]; ``sizes`` [2, tiles, m] gets those of c k and c k |s|^2."""
        out, memory = np.zeros((len(self._coefficients), left.n_rows)), np.empty(ROWS * COLUMNS, np.float32)
        factor = np.float32(-self._kernel.gamma * LOG2E)
        for rows, first, distances in iter_product_tiles(left, form.vectors, 0, left.n_rows):
            raise_if_stopped()
            number = first // form.vectors.tile_columns
            machines, factors = form.tiles[number]
            values = memory[: distances.size].reshape(distances.shape)
            exp2f(distances.ravel(), factor, distances.size, values.reshape(-1))
            sums = factors @ values[:, : factors.shape[1]].T
            sums, sizes[:, number, rows] = sums[:-2], sums[-2:]
            out[machines, rows] += sums.sum(axis=0, dtype=np.float64) if len(out) == 1 else sums
        return out


def _center_rows(X: Any, centre: Any) -> np.ndarray:
    """Return rows as an array, relative to a centre [d]; None: to 0."""
    X = to_dense(X)
    return X if centre is None else X - centre
