"""A kernel matrix in hierarchically semi-separable form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.batch.hss.compositional import CompositionalMatrix, flattened
from streamsvm.batch.hss.compression import Compression, Compressor, leaf_weights, product
from streamsvm.batch.hss.cuts import Cuts, Forest, add_values, join, pack
from streamsvm.batch.hss.factorization import HSSFactorization, factorize
from streamsvm.batch.hss.tree import SPLITS, ClusterTree
from streamsvm.core.checks import KernelName, Split, check_number, check_one_of
from streamsvm.core.kernels import LARGEST_FEATURE, checked_kernel
from streamsvm.core.progress import shown
from streamsvm.core.threads import one_blas_thread


class HSSMatrix:
    """A compressed kernel matrix K~ of n rows, close to K and positive semi-definite, in O(n) memory.

    Made by `HSSMatrix.compress`. Rows are in the order in which you gave them.

    Attributes
    ----------
    error : float
        Estimate of |K - K~| / |K|: |(K - K~) V| / |K V| in the Frobenius norm, with random vectors V, over 256 random rows.
    reached : bool
        Whether the error is at most half above the tolerance, if there is one.
    shape : tuple of int
    nbytes : int
        Bytes of K~. The tree and neighbours that `closer` uses take about ``4 * d + 4 * n_neighbors + 160`` more bytes a row.
    order : int64 [n]
        Indices of the rows in the order of the leaves.
    ranks : int64 [levels, 2]
        The smallest and the largest rank among the nodes of each level, from the root's children down.
    largest_diagonal : float
        The largest self-kernel.

    Notes
    -----
    The rows are ordered in a binary tree. The block of a leaf is exact. Towards all other rows, the rows of a leaf are
    interpolated from a few of them, the leaf's skeleton. The skeletons of two leaves together are interpolated from a skeleton
    of theirs, and so on. The interpolation is that of the kernel itself, so K~ has no negative eigenvalue
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

    def __init__(self, compressor: Compressor, compression: Compression) -> None:
        self._compressor, self._compression = compressor, compression
        self._tree, self._blocks, self._nodes = compressor.tree, compressor.blocks, compression.nodes
        self.error: float = compression.error
        self.reached: bool = compression.reached
        self.order: np.ndarray = self._tree.order

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
        split: Split = "principal-axis",
        zero_sum: bool = False,
        memory_limit: float | None = None,
        seed: int | None = 0,
        verbose: bool = False,
    ) -> HSSMatrix:
        """Compress the kernel matrix of the rows of X.

        Parameters
        ----------
        X
            The rows, float64 [n, d], at least one.
        kernel, gamma, degree, coef0
            ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree.
        rel_tol
            Tolerance of |K - K~| / |K| in the Frobenius norm. The matrix is compressed again, more exactly, until the estimated
            error is at most half above it. None accepts any error: the rank is then ``max_rank``.
        abs_tol
            Tolerance of |K - K~| / sqrt(n); the looser of the two counts.
        max_rank
            Maximum number of rows of a skeleton.
        n_neighbors
            Approximate number of nearest rows of each row by which skeletons are chosen.
        leaf_size
            Maximum number of rows of a leaf.
        split
            Rule by which rows are cut in two: ``"principal-axis"`` or ``"two-means"``.
        zero_sum
            Whether K~ will only multiply vectors whose sum is zero. Tolerances and error are then relative to K on such
            vectors, which is small if all rows are near each other.
        memory_limit
            Maximum bytes of the matrix and a factorisation of it if all ranks are ``max_rank``; None sets no limit.
        seed
            Seed of the random choices; None makes different choices each time.
        verbose
            Whether to show progress on standard error.

        Raises
        ------
        ValueError
            A parameter is out of its range, X is not finite, or memory_limit is too small (the message names a rank that fits).

        Warns
        -----
        RuntimeWarning
            The estimated error is more than half above the tolerance.

        Notes
        -----
        O(n (m + r) (m + c + d)) time for leaves of m rows, ranks of r and skeletons chosen by c columns, if ranks do not grow
        with n.
        """
        if rel_tol is not None:
            _check_tolerances(rel_tol, abs_tol)
        for name, value, low in (("max_rank", max_rank, 1), ("n_neighbors", n_neighbors, 4), ("leaf_size", leaf_size, 2)):
            check_number(name, value, low, inclusive=True, integer=True)
        check_one_of("split", split, SPLITS)
        if seed is not None:
            check_number("seed", seed, 0, inclusive=True, integer=True)
        X = _rows(X)
        parameters = checked_kernel(kernel, gamma, degree, coef0)
        if memory_limit is not None:
            _check_memory(memory_limit, X, leaf_size, max_rank, n_neighbors, split)
        with one_blas_thread():  # products are small
            tree = ClusterTree.build(X, leaf_size, split, seed)
            how: dict[str, Any] = {"max_rank": max_rank, "n_neighbors": n_neighbors, "zero_sum": zero_sum, "seed": seed}
            compressor = Compressor(X, parameters, tree, **how, verbose=verbose)
            return HSSMatrix(compressor, compressor.at_rank() if rel_tol is None else compressor.compress(rel_tol, abs_tol))

    def closer(self, rel_tol: float, abs_tol: float = 0.0) -> HSSMatrix:
        """Compress the same kernel matrix to a smaller tolerance, with the same tree and neighbours.

        Parameters, errors and warnings are as in `compress`.

        Returns
        -------
        HSSMatrix
            The closer matrix; this one if it is exact enough, or if no better one was found.
        """
        _check_tolerances(rel_tol, abs_tol)
        compression = self._compressor.compress(rel_tol, abs_tol, self._compression)
        return self if compression.nodes is self._compression.nodes else HSSMatrix(self._compressor, compression)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix, both n."""
        n = len(self.order)
        return n, n

    @property
    def nbytes(self) -> int:
        """Bytes of K~."""
        return self._blocks.X.nbytes + sum(array.nbytes for node in self._nodes for array in node)

    @property
    def largest_diagonal(self) -> float:
        """The largest self-kernel."""
        return float(max(self._nodes[leaf].block.diagonal().max() for leaf in self._tree.leaves))

    @property
    def ranks(self) -> np.ndarray:
        """The smallest and the largest rank of each level, int64 [levels, 2], from the root's children down."""
        levels = self._tree.level[:-1]
        ranks = np.array([len(node.skeleton) for node in self._nodes[:-1]], np.int64)
        extremes = [[r.min(), r.max()] for r in (ranks[levels == level] for level in np.unique(levels))]
        return np.array(extremes, np.int64).reshape(-1, 2)

    def __matmul__(self, V: np.ndarray) -> np.ndarray:
        return self.product(V)

    def product(self, V: np.ndarray, *, ordered: bool = False) -> np.ndarray:
        """Multiply K~ by V, as ``K @ V`` does. O(n (m + r) k).

        Parameters
        ----------
        V
            Vectors, float64 [n] or [n, k], as which the product is returned; with other rows than n, there is a ValueError.
        ordered
            Whether the rows of V and of the product are in ``order``, which is quicker.
        """
        return self._tree.in_order(lambda rows: product(self._tree, self._nodes, rows), V, ordered)

    def factorize(self, shift: float, *, verbose: bool = False) -> HSSFactorization:
        """Factorise K~ + shift I. The compression stays: call again for another shift. O(n (m + r)^2).

        Parameters
        ----------
        shift
            Number added to the diagonal, above 0.
        verbose
            Whether to show progress on standard error.

        Raises
        ------
        ValueError
            The shift is not above 0, or so small that the matrix is not positive definite in float64.
        """
        check_number("shift", shift, 0.0)
        order = shown(range(len(self._nodes)), "factorisation", verbose)
        return HSSFactorization(self._tree, shift, *factorize(self._tree, order, self._nodes, shift))

    def expand(self, Z: Any, coefficients: np.ndarray) -> np.ndarray:
        """Compute the exact kernel expansion K(Z, X) coefficients, float64 [m] or [m, k], at other rows. O(m n d).

        Parameters
        ----------
        Z
            Other rows, float64 [m, d].
        coefficients
            Coefficients of the compressed rows, float64 [n] or [n, k].

        Raises
        ------
        ValueError
            Z is not finite or has another number of features, or there are not n coefficients.
        """
        Z, coefficients = self._checked_rows(Z), self._tree.columns(coefficients)
        return self._blocks.expand(Z, coefficients[self.order])

    def compositional(self) -> tuple[Cuts, CompositionalMatrix]:
        """Return the tree and K~ in float32, as flat arrays that compiled code can walk through. Rows are in ``order``.

        O(n (m + r)) time and half the memory of K~. Interpolations have no large weights, so float32 is enough for them. The
        matrix has no inverses.
        """
        cuts, tree = self._tree.cuts, self._tree
        number_of = {place: number for number, place in enumerate(zip(tree.begin.tolist(), tree.end.tolist(), strict=True))}
        nodes = [self._nodes[number_of[place]] for place in zip(cuts.begin.tolist(), cuts.end.tolist(), strict=True)]
        return cuts, flattened(
            [node.skeleton for node in nodes], [node.block for node in nodes], [node.interpolation for node in nodes]
        )

    @property
    def mean_diagonal(self) -> float:
        """The mean self-kernel."""
        return float(np.concatenate([self._nodes[leaf].block.diagonal() for leaf in self._tree.leaves]).mean())

    def extension(self, coefficients: np.ndarray) -> Forest:
        """Return the product of K~ with coefficients, float64 [n] or [n, k], in a form that new rows can be evaluated with.

        It is a forest of one tree, whose leaves have weights of their rows. Rows are numbered as they were compressed. A
        ValueError says that there are not n coefficients. O(n (m + r) k + n r^2) for leaves of m rows and ranks of r.
        """
        columns = self._tree.columns(coefficients)
        weights = leaf_weights(self._tree, self._nodes, columns.reshape(len(columns), -1)[self.order])
        return join([(self._tree.cuts, np.ascontiguousarray(weights.T))], np.arange(len(columns)))

    def extend(self, Z: Any, coefficients: np.ndarray) -> np.ndarray:
        """Compute K~(Z, X) coefficients at other rows, where the kernel of K~ has values too, as `expand` does of the exact one.

        Each row goes down the tree to a leaf, and uses the exact kernel's values with the rows of that leaf alone. At
        compressed rows, the result equals `product`, apart from rounding and rows that equal others along the axis of a cut.
        O(d log n + m (d + k)) for each row, for leaves of m rows, after one product.

        References
        ----------
        Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning.
        JMLR 18.

        Examples
        --------
        >>> X = np.random.default_rng(0).normal(size=(3000, 2))
        >>> K = HSSMatrix.compress(X, gamma=0.5, rel_tol=0.1)
        >>> bool(np.allclose(K.extend(X[:5], np.ones(3000)), (K @ np.ones(3000))[:5]))
        True
        """
        Z, shape = self._checked_rows(Z), np.shape(coefficients)[1:]
        forest, kernel = self.extension(coefficients), self._blocks.kernel
        out = np.zeros((len(Z), len(forest.weights)))
        add_values(pack(forest, self._blocks.given(self.order), kernel, single=False), kernel, Z, out)
        return out.reshape(len(Z), *shape)

    def exact_product(self, rows: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Multiply rows of the exact K, by their indices int64 [m], by V float64 [n] or [n, k], to measure errors.

        O(m (d + k)) for each non-zero row of V. A ValueError says that an index is out of range, or that V has not n rows.
        """
        V, rows = self._tree.columns(V), np.asarray(rows)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or ((rows < 0) | (rows >= len(self.order))).any():
            raise ValueError(f"rows must be whole numbers from 0 to {len(self.order) - 1}")
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(places))
        return self._blocks.product(places[rows], V[self.order])

    def _checked_rows(self, Z: Any) -> np.ndarray:
        Z = _rows(Z)
        if Z.shape[1] != self._blocks.X.shape[1]:
            raise ValueError(f"Z must have rows of {self._blocks.X.shape[1]} features, not of {Z.shape[1]}")
        return Z

    def to_array(self) -> np.ndarray:
        """Return K~ as a dense array, float64 [n, n], to inspect small matrices. O(n^2 (m + r))."""
        return self @ np.eye(len(self.order))


def _check_tolerances(rel_tol: float, abs_tol: float) -> None:
    for name, value in (("rel_tol", rel_tol), ("abs_tol", abs_tol)):
        check_number(name, value, 0.0, inclusive=True, high=1e100)
    if not (rel_tol > 0.0 or abs_tol > 0.0):
        raise ValueError("rel_tol or abs_tol must be above 0")


def _rows(X: Any) -> np.ndarray:
    if sparse.issparse(X):
        raise ValueError("X must be a dense array: of a sparse matrix take X.toarray(), if it fits in memory")
    if np.iscomplexobj(X) or (np.ma.isMaskedArray(X) and np.ma.is_masked(X)):
        raise ValueError("X must be rows of real numbers, none of them missing")
    X = np.ascontiguousarray(X, np.float64)
    if X.ndim != 2 or not X.size:
        raise ValueError(f"X must be rows of features, at least one of each, not an array of shape {X.shape}")
    if not np.isfinite(X).all():
        raise ValueError("X has values that are not finite")
    if np.abs(X).max() > LARGEST_FEATURE:
        raise ValueError(f"X has values beyond {LARGEST_FEATURE:g}: scale the features")
    return X


def _check_memory(limit: float, X: np.ndarray, leaf_size: int, max_rank: int, n_neighbors: int, split: str) -> None:
    """Refuse a limit that a matrix and its factors might exceed, with all ranks at their maximum, before the work starts."""
    check_number("memory_limit", limit, 0.0)
    n, d = X.shape
    leaf_size = min(leaf_size, n)
    more_nodes = 8.0 if split == "two-means" else 2.0  # at most, relative to a tree whose leaves are full

    def needed(rank: int) -> float:
        leaves = 8.0 * n * (2 * leaf_size + 2 * min(rank, leaf_size))
        inner, size = 0.0, float(leaf_size)
        while size < n:  # each level has half as many nodes of twice as many rows
            size *= 2.0
            child_rank = min(rank, size / 2.0)
            inner += 8.0 * (more_nodes * n / size) * 9.0 * child_rank * child_rank
        return 24.0 * n * d + 4.0 * n * n_neighbors + leaves + inner

    if needed(max_rank) > limit:
        fitting = [rank for rank in (2**k for k in range(20)) if rank < max_rank and needed(rank) <= limit]
        hint = f"max_rank={fitting[-1]} would fit" if fitting else f"{needed(1):,.0f} is the least, with max_rank=1"
        raise ValueError(f"memory_limit={limit:,.0f} bytes, but up to {needed(max_rank):,.0f} would be needed: {hint}")
