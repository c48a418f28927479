"""Decision values of kernel machines without the intercepts: sums of kernel values with support vectors, times coefficients.

They are computed in float64 (`streamsvm.batch.csmo.values`), in tiles of rows and support vectors. For the Gaussian kernel, dense
vectors are first centred at the mean of the support vectors.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.values import NormedRows, add_kernel_sums, to_clean_csr, to_dense
from streamsvm.core.kernels import LINEAR, RBF, Kernel

_CHUNK_VALUES, _MIN_ROWS, _MAX_ROWS = 2**22, 64, 4096  # of a chunk of rows
_MAX_DENSITY = 0.2  # up to this share of nonzero values, sparse products are faster than dense ones
_MAX_DENSE_VALUES = 1e7  # sparse support vectors with fewer values, zeros included, may be converted to dense ones


class KernelSums:
    """Computes the sums of one or more machines over n support vectors [n, d], an array or CSR matrix.

    ``coefficients`` are float64 [machines, n]. The form of the vectors for products is computed on first use.
    """

    def __init__(self, vectors: Any, coefficients: np.ndarray, kernel: Kernel) -> None:
        self._vectors: Any = to_clean_csr(vectors) if sparse.issparse(vectors) else vectors
        self._coefficients, self._kernel = coefficients, kernel
        self._by_vector: np.ndarray = np.ascontiguousarray(coefficients.T)
        self._negligible: np.ndarray = 2.0**-1021 * np.abs(coefficients).sum(axis=1)  # kernel values are at least 2^-1022
        self._weights: Any = None
        if kernel.kind == LINEAR:  # the sums are linear in the features
            self._weights = (sparse.csr_array(coefficients) if sparse.issparse(vectors) else coefficients) @ self._vectors

    def choose_chunk_rows(self, X: Any) -> int:
        """Return the number of rows that should be passed to `compute` in one call, for rows like those of X, so that
        intermediate results stay small.
        """
        if sparse.issparse(X) and self._weights is None and self._stays_sparse:
            return _MAX_ROWS
        return int(np.clip(_CHUNK_VALUES // max(self._vectors.shape[1], 1), _MIN_ROWS, _MAX_ROWS))

    @np.errstate(over="ignore", invalid="ignore")  # huge rows have infinite distances
    def compute(self, X: Any) -> np.ndarray:
        """Return kernel sums for rows X [m, d], an array or CSR matrix, float64 [m, machines]: for each set of coefficients, the
        sum over all support vectors of kernel value times coefficient, exact to about 1e-10 of the sum of |coefficients|.
        """
        if self._weights is not None:
            return to_dense(X @ self._weights.T)
        out = np.zeros((X.shape[0], len(self._coefficients)))
        X = to_clean_csr(X) if self._stays_sparse else to_dense(X) - self._centre
        add_kernel_sums(NormedRows(X), self._rows, self._by_vector, self._kernel, out)
        out[np.abs(out) <= self._negligible] = 0.0  # far from all support vectors, the intercept alone determines the label
        return out

    @cached_property
    def _stays_sparse(self) -> bool:
        """Whether the support vectors stay sparse: few of their values are nonzero, or they would be too large as an array."""
        V = self._vectors
        size = float(max(V.shape[0], 1)) * V.shape[1]
        return sparse.issparse(V) and (V.nnz <= _MAX_DENSITY * size or size > _MAX_DENSE_VALUES)

    @cached_property
    def _centre(self) -> Any:
        """The vector [d] that is subtracted from dense rows and support vectors before inner products are computed."""
        return np.asarray(self._vectors.sum(axis=0)) / max(self._vectors.shape[0], 1) if self._kernel.kind == RBF else 0.0

    @cached_property
    def _rows(self) -> NormedRows:
        """The support vectors with their squared norms: sparse, or dense and minus their centre."""
        return NormedRows(self._vectors if self._stays_sparse else to_dense(self._vectors) - self._centre)
