"""The public class of kernel matrices in hierarchically semi-separable (HSS) form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.batch.hss.compression import Compression, compress_matrix, multiply_compressed
from streamsvm.batch.hss.factorization import HSSFactorization, factorize_nodes
from streamsvm.batch.hss.skeletons import KernelBlocks
from streamsvm.batch.hss.trees import ClusterTree
from streamsvm.core.checks import KernelName, check_number
from streamsvm.core.kernels import LARGEST_FEATURE, make_kernel
from streamsvm.core.progress import iterate_with_progress
from streamsvm.core.threads import limit_blas_threads


class HSSMatrix:
    """A compressed kernel matrix K~ of n rows, close to K and positive semi-definite, in O(n) memory.

    `HSSMatrix.compress` returns it. Its rows have the order of the rows X.

    Attributes
    ----------
    error : float
        Estimate of |K - K~| / |K|: |(K - K~) V| / |K V| in the Frobenius norm, with random vectors V, over 256 random rows.
    reached : bool
        Whether the error is at most 1.5 times the tolerance; True without a tolerance.
    shape : tuple of int
    nbytes : int
        Bytes of K~.
    order : int64 [n]
        Indices of the rows in the order of the leaves.
    ranks : int64 [levels, 2]
        The smallest and the largest rank among the nodes of each level, from the root's children down.
    largest_diagonal : float
        The largest self-kernel.

    Notes
    -----
    The rows are divided by a binary tree. The block of each leaf is exact. For kernel values with all other rows, the rows of a
    leaf are interpolated from a few of them, the leaf's skeleton. The skeletons of two sibling leaves together are interpolated
    from a smaller skeleton, and so on. The interpolation is that of the kernel itself, so K~ has no negative eigenvalue
    (``streamsvm.batch.hss.skeletons`` explains why): K~ + shift I can be factorised for any shift above 0, and methods that rely
    on that cannot diverge.

    References
    ----------
    Chávez, G., Liu, Y., Ghysels, P., Li, X. S., Rebrova, E. (2020). Scalable and memory-efficient kernel ridge regression.
    IPDPS.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch.hss import HSSMatrix

    >>> X = np.random.default_rng(0).normal(size=(3000, 2))
    >>> K = HSSMatrix.compress(X, gamma=0.5, rel_tol=0.01)
    >>> K.shape, K.error < 0.02, K.nbytes < 0.3 * 8 * 3000**2
    ((3000, 3000), True, True)
    >>> factorization = K.factorize(1.0)
    >>> x = factorization.solve(np.ones(3000))
    >>> bool(np.allclose(K @ x + 1.0 * x, 1.0))
    True
    """

    def __init__(self, tree: ClusterTree, blocks: KernelBlocks, compression: Compression) -> None:
        self._tree, self._blocks, self._nodes = tree, blocks, compression.nodes
        self.error: float = compression.error
        self.reached: bool = compression.reached
        self.order: np.ndarray = tree.order

    @staticmethod
    def compress(
        X: Any,
        *,
        kernel: KernelName = "rbf",
        gamma: float = 1.0,
        degree: int = 3,
        coef0: float = 0.0,
        rel_tol: float | None = 0.1,
        abs_tol: float = 0.0,
        max_rank: int = 1000,
        n_neighbors: int = 64,
        leaf_size: int = 256,
        zero_sum: bool = False,
        seed: int | None = 0,
        verbose: bool = False,
    ) -> HSSMatrix:
        """Compress the kernel matrix of the rows of X to an `HSSMatrix`, which needs memory and time of O(n) instead of O(n^2)
        for products and factorisations.

        Parameters
        ----------
        X
            The rows, float64 [n, d], at least one.
        kernel, gamma, degree, coef0
            ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree.
        rel_tol, abs_tol
            Tolerances of |K - K~| / |K| in the Frobenius norm, and of |K - K~| / sqrt(n); the looser of the two counts. The
            matrix is compressed again, more exactly, until the estimated error is at most half above it. ``rel_tol=None``
            accepts any error: the rank is then ``max_rank``.
        max_rank, n_neighbors, leaf_size
            Maximum number of rows of a skeleton; approximate number of nearest neighbours of each row used to choose skeletons;
            maximum number of rows of a leaf.
        zero_sum
            Whether K~ will only multiply vectors whose sum is zero. Tolerances and error are then relative to K on such
            vectors, which is small if all rows are near each other.
        seed
            Seed of the random choices; None makes different choices each time.
        verbose
            Whether to show progress on standard error.

        Raises
        ------
        ValueError
            A parameter is out of range, or X is not finite.

        Warns
        -----
        RuntimeWarning
            The estimated error is more than half above the tolerance.

        Notes
        -----
        O(n (m + r) (m + c + d)) time for leaves of m rows, ranks of r, and c sampled columns for choosing a skeleton, if ranks
        do not grow with n.
        """
        if rel_tol is not None:
            for name, value in (("rel_tol", rel_tol), ("abs_tol", abs_tol)):
                check_number(name, value, 0.0, inclusive=True, high=1e100)
            if not (rel_tol > 0.0 or abs_tol > 0.0):
                raise ValueError("rel_tol or abs_tol must be above 0")
        for name, value, low in (("max_rank", max_rank, 1), ("n_neighbors", n_neighbors, 4), ("leaf_size", leaf_size, 2)):
            check_number(name, value, low, inclusive=True, integer=True)
        if seed is not None:
            check_number("seed", seed, 0, inclusive=True, integer=True)
        X = _check_rows(X)
        parameters = make_kernel(kernel, gamma, degree, coef0)
        seed = int(np.random.default_rng().integers(2**63)) if seed is None else seed
        with limit_blas_threads():  # the products are too small for several threads
            tree = ClusterTree.grow(X, leaf_size, seed)
            blocks = KernelBlocks(X[tree.order], parameters)
            options: dict[str, Any] = {"max_rank": max_rank, "n_neighbors": n_neighbors, "zero_sum": zero_sum, "seed": seed}
            return HSSMatrix(tree, blocks, compress_matrix(tree, blocks, rel_tol, abs_tol, **options, verbose=verbose))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (n, n) of this compressed kernel matrix."""
        n = len(self.order)
        return n, n

    @property
    def nbytes(self) -> int:
        """The bytes of this compressed kernel matrix, including the rows that it was computed from."""
        return self._blocks.X.nbytes + sum(array.nbytes for node in self._nodes for array in node)

    @property
    def largest_diagonal(self) -> float:
        """The largest value on the diagonal of this compressed kernel matrix, which is the largest kernel value of a row with
        itself.
        """
        return float(max(self._nodes[leaf].block.diagonal().max() for leaf in self._tree.leaves))

    @property
    def ranks(self) -> np.ndarray:
        """The smallest and the largest rank among the nodes of each level of the matrix's tree, int64 [levels, 2], from the
        root's children down. The rank of a node is the number of its rows from which the others are interpolated.
        """
        levels = self._tree.level[:-1]
        ranks = np.array([len(node.skeleton) for node in self._nodes[:-1]], np.int64)
        extremes = [[r.min(), r.max()] for r in (ranks[levels == level] for level in np.unique(levels))]
        return np.array(extremes, np.int64).reshape(-1, 2)

    def __matmul__(self, V: np.ndarray) -> np.ndarray:
        return self.product(V)

    def product(self, V: np.ndarray, *, ordered: bool = False) -> np.ndarray:
        """Return the product of this compressed kernel matrix [n, n] and V, float64 [n] or [n, k], as ``K @ V`` does. If
        ``ordered``, rows are in the order of the matrix's tree. O(n (m + r) k) for leaves of m rows and rank r.

        ``ordered`` tells whether the rows of V are in ``order``, as those of the product are then; this is faster. A V of another
        shape raises a ValueError.
        """
        return self._tree.apply_in_order(lambda rows: multiply_compressed(self._tree, self._nodes, rows), V, ordered)

    def factorize(self, shift: float, *, verbose: bool = False) -> HSSFactorization:
        """Factorise this compressed kernel matrix plus ``shift`` times the identity, and return an `HSSFactorization`, which
        solves linear equations. The matrix does not change. O(n (m + r)^2) for leaves of m rows and rank r.

        Raises a ValueError if the shift is not above 0, or so small that the matrix is not positive definite in float64.
        ``verbose`` shows progress on standard error.
        """
        check_number("shift", shift, 0.0)
        order = iterate_with_progress(range(len(self._nodes)), "factorisation", verbose)
        return HSSFactorization(self._tree, shift, factorize_nodes(self._tree, order, self._nodes, shift))

    def expand(self, Z: Any, coefficients: np.ndarray) -> np.ndarray:
        """Return the exact kernel sums at new rows Z float64 [m, d]: the kernel values of Z with the n compressed rows times
        ``coefficients`` float64 [n] or [n, k]. The result is float64 [m] or [m, k]. O(m n d).

        Other shapes raise a ValueError.
        """
        Z, coefficients = _check_rows(Z), self._tree.check_columns(coefficients)
        if Z.shape[1] != self._blocks.X.shape[1]:
            raise ValueError(f"Z must have rows of {self._blocks.X.shape[1]} features, not of {Z.shape[1]}")
        return self._blocks.multiply_new_rows(Z, coefficients[self.order])

    def exact_product(self, rows: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return the product of some rows of the exact (not compressed) kernel matrix and V, float64 [n] or [n, k], to measure
        the error of `product`. ``rows`` int64 [m] are the indices of the rows.

        Raises a ValueError if an index is out of range, or V does not have n rows. O(m (d + k)) for each non-zero row of V.
        """
        V, rows = self._tree.check_columns(V), np.asarray(rows)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or ((rows < 0) | (rows >= len(self.order))).any():
            raise ValueError(f"rows must be integers from 0 to {len(self.order) - 1}")
        positions = np.empty_like(self.order)
        positions[self.order] = np.arange(len(positions))
        return self._blocks.multiply_rows(positions[rows], V[self.order])

    def to_array(self) -> np.ndarray:
        """Return this compressed kernel matrix as a dense array, float64 [n, n], to inspect small matrices. O(n^2 (m + r)) for
        leaves of m rows and rank r.
        """
        return self @ np.eye(len(self.order))


def _check_rows(X: Any) -> np.ndarray:
    """Return the rows X as a contiguous array float64 [n, d]. Raise a ValueError if X is sparse, empty, not two-dimensional, or
    has values that are complex, missing, not finite or too large.
    """
    if sparse.issparse(X):
        raise ValueError("X must be a dense array: convert a sparse matrix by X.toarray(), if it fits in memory")
    if np.iscomplexobj(X) or (np.ma.isMaskedArray(X) and np.ma.is_masked(X)):
        raise ValueError("X must be rows of real numbers without missing values")
    X = np.ascontiguousarray(X, np.float64)
    if X.ndim != 2 or not X.size:
        raise ValueError(f"X must be a 2-D array with at least one row and one feature: its shape is {X.shape}")
    if not np.isfinite(X).all():
        raise ValueError("X has values that are not finite")
    if np.abs(X).max() > LARGEST_FEATURE:
        raise ValueError(f"X has values beyond {LARGEST_FEATURE:g}: scale the features")
    return X
