"""Decision values of kernel machines without the intercepts: sums of kernel values with support vectors, times coefficients.

They are computed in float64 (`streamsvm.batch.csmo.values`) or, where that suffices to determine the labels, in float32, in tiles
of rows and support vectors (`streamsvm.batch.csmo.tiles`). For the Gaussian kernel, all vectors are first centred: at the mean of
the support vectors or, if most values of a feature are equal, at this value, which makes the centred rows sparse.

**Bounds of the float32 errors.** Let u = 2^-24 be the unit roundoff of float32, and x a row and s a support vector, both centred
in float64. A squared distance D is a sum of p products: those of x and -2 s, at most p - 2 are nonzero, and |x|^2 1 + 1 |s|^2.
The absolute values of the products sum to at most 2 (|x|^2 + |s|^2). Their two factors are rounded by u each. In whichever order
p products are added, with or without fused multiply-add, the error of the sum is at most p u times the sum of absolute values
(Higham, Accuracy and stability of numerical algorithms, section 3.1). Multiplying D, which is at most 2 (|x|^2 + |s|^2), by
-gamma log2(e) adds two more roundings. So the error of the exponent is at most

    e(x, s) = (p + 4) u 2 gamma (|x|^2 + |s|^2).

Float32 is used only if this is at most 1/8. The relative error of `exp2` is below 4 u. The relative error of a kernel value is
thus at most 1.07 e + 4 u. Coefficients are rounded once. Their products with m kernel values are summed in float32, where m is
256 (one tile), or 64 for a single machine. The error of this sum is at most (m + 1) u times the sum of absolute values; the sums
are added in float64. In total,

    |f32 - f| <= 1.1 u sum_s |c_s| k(x, s) (m + 5 + (p + 4) 2 gamma (|x|^2 + |s|^2)).

The two sums over s on the right, of |c| k and of |c| k |s|^2, are computed together with the sums of kernel values. The factor
1.1 covers 1.07, products of errors, and the errors of these two sums and of float64. Values below the smallest normal number,
2^-126, have an error of at most that size, which adds less than 2^-123 (sum_s |c_s| + n) for n vectors.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.tiles import COLUMNS, ROWS, Float32Rows, iter_product_tiles, make_float32_rows, make_right_side, to_csr
from streamsvm.batch.csmo.values import NormedRows, add_kernel_sums, to_clean_csr, to_dense
from streamsvm.core.kernels import LINEAR, LOG2E, RBF, Kernel, exp2f
from streamsvm.core.threads import raise_if_stopped

MIN_CHUNK_ROWS = 32  # float32 saves no time for chunks of at most this size
_CHUNK_VALUES, _MIN_ROWS, _MAX_ROWS = 2**22, 64, 4096  # of a chunk of rows
_MAX_SQUARED_NORM = 2.0**19  # limit of (p + 4) gamma |x|^2: below it, the error of the exponent is at most 1/8 in float32
_MAX_TERMS = 2**17  # products in a float32 sum
_BLOCK_SIZE = 64  # kernel values in a float32 sum, for a single machine
_MAX_DENSITY = 0.2  # up to this share of nonzero values, sparse products are faster than dense ones
_MAX_DENSE_VALUES = 1e7  # sparse support vectors with fewer values, zeros included, may be converted to dense ones
_MIN_GAMMA, _MAX_GAMMA = 2.0**-60, 2.0**60  # between them, float32 neither overflows nor loses digits
_ROUNDOFF = 1.1 * 2.0**-24
_UNDERFLOW = 2.0**-123


class _TiledVectors(NamedTuple):
    """Float32 support vectors, dense or sparse, and their coefficients, divided into the column tiles of `iter_product_tiles`."""

    vectors: Float32Rows
    max_squared_norm: float  # largest gamma |x|^2 of rows for which the error bound holds
    steepness: float  # 2 gamma (p + 4)
    #: For each tile, the machines with nonzero coefficients in it, and their coefficients [machines, vectors]; for a single
    #: machine, [blocks, vectors]. Two more rows are c and c |s|^2, where c is the largest |coefficient| of a vector.
    tiles: list[tuple[Any, np.ndarray]]
    has_coefficients: np.ndarray  # float64 [tiles, machines]: 1 if the machine has nonzero coefficients in the tile


class KernelSums:
    """Computes the sums of one or more machines over n support vectors [n, d], an array or CSR matrix.

    ``coefficients`` are float64 [machines, n]. The sparse or dense representations of the vectors are computed on first use.
    """

    def __init__(self, vectors: Any, coefficients: np.ndarray, kernel: Kernel) -> None:
        self._vectors: Any = to_clean_csr(vectors) if sparse.issparse(vectors) else vectors
        self._coefficients, self._kernel = coefficients, kernel
        self._by_vector: np.ndarray = np.ascontiguousarray(coefficients.T)
        self._negligible: np.ndarray = 2.0**-1021 * np.abs(coefficients).sum(axis=1)  # kernel values are at least 2^-1022
        self._tiled: dict[bool, _TiledVectors | None] = {}  # by whether they are sparse
        self._weights: Any = None
        if kernel.kind == LINEAR:  # the sums are linear in the features
            self._weights = (sparse.csr_array(coefficients) if sparse.issparse(vectors) else coefficients) @ self._vectors

    def choose_chunk_rows(self, X: Any) -> int:
        """Return the number of rows that should be passed to `compute_exact` or `compute_float32` in one call, for rows like
        those of X, so that intermediate results stay small.
        """
        if sparse.issparse(X) and self._weights is None and self._stays_sparse:
            return _MAX_ROWS
        return int(np.clip(_CHUNK_VALUES // max(self._vectors.shape[1], 1), _MIN_ROWS, _MAX_ROWS))

    @np.errstate(over="ignore", invalid="ignore")  # huge rows have infinite distances
    def compute_exact(self, X: Any) -> np.ndarray:
        """Return kernel sums for rows X [m, d], an array or CSR matrix, float64 [m, machines]: for each set of coefficients, the
        sum over all support vectors of kernel value times coefficient, exact to about 1e-10 of the sum of |coefficients|.
        """
        if self._weights is not None:
            return to_dense(X @ self._weights.T)
        out = np.zeros((X.shape[0], len(self._coefficients)))
        X = to_clean_csr(X) if self._stays_sparse else _center_rows(X, self._centres[False])
        add_kernel_sums(NormedRows(X), self._exact_vectors, self._by_vector, self._kernel, out)
        out[np.abs(out) <= self._negligible] = 0.0  # far from all support vectors, the intercept alone determines the label
        return out

    @np.errstate(over="ignore", invalid="ignore")
    def compute_float32(self, X: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Compute kernel sums (sums over the support vectors of kernel value times coefficient) for rows X [m, d] in float32.
        Return them with bounds of their errors, float64 [m, machines] each. Return None if float32 would save no time, or is too
        inaccurate for these support vectors.

        Bounds may be infinite.
        """
        if self._kernel.kind != RBF or X.shape[0] <= MIN_CHUNK_ROWS or (prepared := self._prepare_rows(X)) is None:
            return None
        tiled, left, squares = prepared
        absolute_sums = np.zeros((2, len(tiled.tiles), X.shape[0]))
        out = self._sum_tiles(tiled, left, absolute_sums).T
        n_terms = _BLOCK_SIZE if len(self._coefficients) == 1 else COLUMNS
        steepness = tiled.steepness
        tile_errors = _ROUNDOFF * ((n_terms + 5 + steepness * squares) * absolute_sums[0] + steepness * absolute_sums[1])
        largest = np.abs(self._coefficients).max(axis=0, initial=0.0)
        errors = tile_errors.T @ tiled.has_coefficients + _UNDERFLOW * (left.n_rows + largest).sum()
        is_near = self._kernel.gamma * squares <= tiled.max_squared_norm
        is_unknown = ~(is_near & np.isfinite(errors.sum(axis=1) + out.sum(axis=1)))
        out[is_unknown], errors[is_unknown] = 0.0, np.inf
        return out, errors

    # Sparse and dense support vectors -----------------------------------------------------------------------------------------

    @cached_property
    def _centres(self) -> dict[bool, Any]:
        """The vectors [d] that are subtracted from rows and support vectors before inner products are computed, as a dictionary:
        under True the one for sparse vectors, under False the one for dense vectors. None stands for zeros. If a form (sparse or
        dense) would be slow, its key is missing.
        """
        V, is_centred = self._vectors, self._kernel.kind == RBF
        n, is_dense = max(V.shape[0], 1), not sparse.issparse(V)
        size = float(n) * V.shape[1]
        usual = np.median(V[:: -(-n // 100)], axis=0) if is_dense and is_centred and len(V) else None
        count = V.nnz if not is_dense else np.count_nonzero(V if usual is None else usual != V)
        is_small, centres = is_dense or size <= _MAX_DENSE_VALUES, {}
        if count <= _MAX_DENSITY * size or not is_small:
            centres[True] = usual
        if is_small:
            centres[False] = np.asarray(V.sum(axis=0)) / n if is_centred else None
        return centres

    @cached_property
    def _stays_sparse(self) -> bool:
        """Whether sparse support vectors stay sparse when `compute_exact` uses them; otherwise they become dense."""
        return sparse.issparse(self._vectors) and True in self._centres

    @cached_property
    def _exact_vectors(self) -> NormedRows:
        """The support vectors in float64 for `compute_exact`: sparse, or dense and minus their centre."""
        return NormedRows(self._vectors if self._stays_sparse else _center_rows(self._vectors, self._centres[False]))

    def _prepare_rows(self, X: Any) -> tuple[_TiledVectors, Float32Rows, np.ndarray] | None:
        """Prepare rows X [m, d] for float32 kernel sums. Return the support vectors, the rows in the same form (both sparse or
        both dense), and the rows' squared norms, float64 [m]. Return None if float32 is too inaccurate for the support vectors.
        """
        is_sparse = True in self._centres
        X = to_clean_csr(X) if sparse.issparse(X) else X
        if is_sparse and (not sparse.issparse(X) or self._centres[True] is not None):
            centred = _center_rows(X, self._centres[True])
            is_sparse = False not in self._centres or bool(np.count_nonzero(centred) <= _MAX_DENSITY * centred.size)
            X = to_csr(centred) if is_sparse else X
        if is_sparse not in self._tiled:
            self._tiled[is_sparse] = self._tile_vectors(is_sparse)
        tiled = self._tiled[is_sparse]
        return tiled and (tiled, *make_float32_rows(X if is_sparse else _center_rows(X, self._centres[False]), self._kernel))

    def _tile_vectors(self, is_sparse: bool) -> _TiledVectors | None:
        """Return the support vectors and coefficients in float32, split into parts that fit into the processor's cache (tiles),
        in sparse or dense form. Return None if float32 is too inaccurate for them.
        """
        V, kernel = self._vectors, self._kernel
        if not (is_sparse and sparse.issparse(V)):
            V = _center_rows(V, self._centres[is_sparse])
            V = to_csr(V) if is_sparse else V
        right, squares = make_float32_rows(V, kernel)
        terms = 2 + int(np.diff(right.starts).max(initial=0) if is_sparse else right.features)
        max_squared_norm = _MAX_SQUARED_NORM / (terms + 4)
        is_safe = _MIN_GAMMA <= kernel.gamma <= _MAX_GAMMA and terms <= _MAX_TERMS
        if not (is_safe and kernel.gamma * squares.max(initial=0.0) <= max_squared_norm):
            return None
        tiles: list[tuple[Any, np.ndarray]] = []
        largest = np.abs(self._coefficients).max(axis=0, initial=0.0)
        for tile in [slice(first, first + right.tile_columns) for first in range(0, right.n_rows, right.tile_columns)]:
            machines = np.flatnonzero(self._coefficients[:, tile].any(axis=1))
            factors = self._coefficients[machines, tile]
            if (
                len(machines) == len(self._coefficients) == 1
            ):  # one row for each block; the zeros beside it add no rounding errors
                block_of_vector = np.arange(factors.shape[1]) // _BLOCK_SIZE
                factors = np.where(block_of_vector == np.arange(COLUMNS // _BLOCK_SIZE)[:, np.newaxis], factors, 0.0)
            tiles.append((machines, np.vstack([factors, largest[tile], largest[tile] * squares[tile]]).astype(np.float32)))
        has_coefficients = np.zeros((len(tiles), len(self._coefficients)))
        for number, (machines, _) in enumerate(tiles):
            has_coefficients[number, machines] = 1.0
        steepness = 2.0 * kernel.gamma * (terms + 4)
        return _TiledVectors(make_right_side(right), max_squared_norm, steepness, tiles, has_coefficients)

    def _sum_tiles(self, tiled: _TiledVectors, left: Float32Rows, absolute_sums: np.ndarray) -> np.ndarray:
        """Compute kernel sums for the m rows ``left`` in float32, and return them as float64 [machines, m]: for each row, the sum
        over the support vectors ``tiled`` of kernel value times coefficient. Sums of absolute values, from which error bounds
        follow, are written into ``absolute_sums`` [2, tiles, m].
        """
        out, memory = np.zeros((len(self._coefficients), left.n_rows)), np.empty(ROWS * COLUMNS, np.float32)
        factor = np.float32(-self._kernel.gamma * LOG2E)
        for rows, first, distances in iter_product_tiles(left, tiled.vectors, 0, left.n_rows):
            raise_if_stopped()
            number = first // tiled.vectors.tile_columns
            machines, factors = tiled.tiles[number]
            values = memory[: distances.size].reshape(distances.shape)
            exp2f(distances.ravel(), factor, distances.size, values.reshape(-1))
            sums = factors @ values[:, : factors.shape[1]].T
            sums, absolute_sums[:, number, rows] = sums[:-2], sums[-2:]
            out[machines, rows] += sums.sum(axis=0, dtype=np.float64) if len(out) == 1 else sums
        return out


def _center_rows(X: Any, centre: Any) -> np.ndarray:
    """Return the rows X as a dense array, minus the vector ``centre`` [d] unless it is omitted (None)."""
    X = to_dense(X)
    return X if centre is None else X - centre
