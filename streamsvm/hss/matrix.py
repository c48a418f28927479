"""A kernel matrix in hierarchically semi-separable form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from streamsvm._progress import shown
from streamsvm.checks import check_number, check_one_of
from streamsvm.hss.factor import Factor, factorize, solve
from streamsvm.hss.product import product
from streamsvm.hss.tree import SPLITS, ClusterTree
from streamsvm.hss.trials import Trial, Trials
from streamsvm.kernels import LARGEST_FEATURE, checked_kernel

__all__ = ["HSSFactorization", "HSSMatrix"]


class HSSMatrix:
    """The kernel matrix of n rows, compressed: K~ is close to K, positive semi-definite, and takes O(n) memory.

    Made by `HSSMatrix.compress`. Rows are in the order in which they were given.

    Attributes
    ----------
    error : float
        |(K - K~) V| / |K V| in the Frobenius norm, with random vectors V, over 256 random rows: an estimate of |K - K~| / |K|.
    shape : tuple of int
    reached : bool
        Whether that is at most half above the tolerance.
    nbytes : int
        Of K~. What `closer` goes on from comes on top: about ``4 * d + 4 * n_neighbors + 160`` bytes a row.
    order : int64 [n]
        Numbers of the rows in the order in which the leaves have them.
    ranks : int64 [levels, 2]
        The least and the largest rank among the nodes of each level, from the root's children down.

    Notes
    -----
    Rows are ordered in a binary tree. Leaves keep their block of the matrix as it is; towards all other rows, those of a leaf are
    interpolated from a few of them, the leaf's skeleton; the skeletons of two leaves together from a skeleton of theirs, and so
    on. The interpolation is that of the kernel itself, so that K~ has no negative eigenvalue (see `streamsvm.hss.compress`):
    K~ + shift I can be factorised for any shift above 0, and methods that rely on that cannot diverge.

    References
    ----------
    Chávez, G., Liu, Y., Ghysels, P., Li, X. S., Rebrova, E. (2020). Scalable and memory-efficient kernel ridge regression. IPDPS.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.hss import HSSMatrix

    >>> X = np.random.default_rng(0).normal(size=(3000, 2))
    >>> K = HSSMatrix.compress(X, gamma=0.5, rel_tol=0.01)
    >>> K.shape, K.error < 0.02, K.nbytes < 0.3 * 8 * 3000**2
    ((3000, 3000), True, True)
    >>> factorization = K.factorize(1.0)
    >>> x = factorization.solve(np.ones(3000))
    >>> bool(np.allclose(K @ x + 1.0 * x, 1.0))
    True
    """

    def __init__(self, trials: Trials, trial: Trial) -> None:
        self._trials, self._trial = trials, trial
        self._tree, self._blocks, self._nodes = trials.tree, trials.blocks, trial.nodes
        self.error, self.reached = trial.error, trial.reached
        self.order = self._tree.order

    @staticmethod
    def compress(
        X: Any,
        *,
        kernel: str = "rbf",
        gamma: float = 1.0,
        degree: int = 3,
        coef0: float = 0.0,
        rel_tol: float = 0.1,
        abs_tol: float = 0.0,
        max_rank: int = 1000,
        n_neighbors: int = 64,
        leaf_size: int = 256,
        split: str = "principal-axis",
        zero_sum: bool = False,
        memory_limit: float | None = None,
        seed: int | None = 0,
        verbose: bool = False,
    ) -> HSSMatrix:
        """The kernel matrix of the rows of X, compressed.

        Parameters
        ----------
        X
            float64 [n, d], n at least 1.
        kernel, gamma, degree, coef0
            ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree.
        rel_tol
            What |K - K~| / |K| in the Frobenius norm should be, about. Where the estimate comes out more than half above, it is
            compressed again, more exactly.
        abs_tol
            The same of |K - K~| / sqrt(n); the looser of the two counts.
        max_rank
            Rows of a skeleton, at most.
        n_neighbors
            Near rows of each row by which skeletons are chosen, about.
        leaf_size
            Rows of a leaf, at most.
        split
            How rows are cut in two: ``"principal-axis"`` or ``"two-means"``.
        zero_sum
            Whether K~ is for vectors whose sum is zero: tolerances and the error are then of what K does to those, which is
            little where all rows are near each other.
        memory_limit
            Bytes that the matrix and a factorisation of it may take if all ranks are ``max_rank``; None: no limit.
        seed
            Of what is chosen at random; None: another choice each time.
        verbose
            Whether progress is shown on standard error.

        Raises
        ------
        ValueError
            A parameter is out of its range, X is not finite, or memory_limit is too small; the message says what would fit.

        Warns
        -----
        RuntimeWarning
            The estimated error is more than half above the tolerance.

        Notes
        -----
        O(n (m + r) (m + c + d)) time for leaves of m rows, ranks of r and c columns looked at, where ranks do not grow with n.
        """
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
        trials = Trials(
            X,
            parameters,
            ClusterTree.build(X, leaf_size, split, seed),
            max_rank=max_rank,
            n_neighbors=n_neighbors,
            zero_sum=zero_sum,
            seed=seed,
            verbose=verbose,
        )
        return HSSMatrix(trials, trials.compressed(rel_tol, abs_tol))

    def closer(self, rel_tol: float, abs_tol: float = 0.0) -> HSSMatrix:
        """The same matrix with an error of no more than a smaller tolerance, or as close as it comes: the tree and what is known
        of the rows' neighbours stay. Itself where it is exact enough, or nothing better was found.

        Raises and warns as `compress`.
        """
        _check_tolerances(rel_tol, abs_tol)
        trial = self._trials.compressed(rel_tol, abs_tol, self._trial)
        return self if trial.nodes is self._trial.nodes else HSSMatrix(self._trials, trial)

    @property
    def shape(self) -> tuple[int, int]:
        n = len(self.order)
        return n, n

    @property
    def nbytes(self) -> int:
        return self._blocks.X.nbytes + sum(array.nbytes for node in self._nodes for array in node)

    @property
    def largest_diagonal(self) -> float:
        """The largest k(x, x)."""
        return float(
            max(
                node.block.diagonal().max() for node, left in zip(self._nodes, self._tree.children[:, 0], strict=True) if left < 0
            )
        )

    @property
    def ranks(self) -> np.ndarray:
        levels = self._tree.level[:-1]
        ranks = np.array([len(node.skeleton) for node in self._nodes[:-1]], np.int64)
        found = [[of.min(), of.max()] for of in (ranks[levels == level] for level in np.unique(levels))]
        return np.array(found, np.int64).reshape(-1, 2)

    def __matmul__(self, V: np.ndarray) -> np.ndarray:
        return self.product(V)

    def product(self, V: np.ndarray, *, ordered: bool = False) -> np.ndarray:
        """K~ V, float64, for V [n] or [n, k]: the same as ``K @ V``. ``ordered``: whether rows of both are in ``order``, which is
        quicker. O(n (m + r) k).
        """
        return self._in_order(lambda rows: product(self._tree, self._nodes, rows), V, ordered)

    def factorize(self, shift: float, *, verbose: bool = False) -> HSSFactorization:
        """K~ + shift I, factorised; for another shift, call again: the compression stays. O(n (m + r)^2).

        Raises
        ------
        ValueError
            The shift is not above 0, or so small that the matrix is not positive definite in float64.
        """
        check_number("shift", shift, 0.0)
        order = shown(range(len(self._nodes)), "factorisation", verbose)
        return HSSFactorization(self, shift, *factorize(self._tree, order, self._nodes, shift))

    def expand(self, Z: Any, coefficients: np.ndarray) -> np.ndarray:
        """The exact kernel expansion at other rows: K(Z, X) times the coefficients [n] or [n, k], float64 [m] or [m, k].

        O(m n d).
        """
        Z, coefficients = _rows(Z), self._column(coefficients)
        if Z.shape[1] != self._blocks.X.shape[1]:
            raise ValueError(f"rows of {self._blocks.X.shape[1]} features are wanted, not of {Z.shape[1]}")
        return self._blocks.expand(Z, coefficients[self.order])

    def exact_product(self, rows: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Some rows, int64 [m], of the exact K times V [n] or [n, k]: float64 [m] or [m, k], to see what the compression costs.
        O(m (d + k)) for each row of V that is not zero.
        """
        V, rows = self._column(V), np.asarray(rows)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or ((rows < 0) | (rows >= len(self.order))).any():
            raise ValueError(f"rows must be whole numbers from 0 to {len(self.order) - 1}")
        own = np.empty_like(self.order)
        own[self.order] = np.arange(len(own))
        return self._blocks.product(own[rows], V[self.order])

    def to_array(self) -> np.ndarray:
        """K~ as it would be without the form, float64 [n, n]: to look at small ones."""
        return self @ np.eye(len(self.order))

    def _column(self, V: Any) -> np.ndarray:
        # A value for each row, or several.
        V = np.asarray(V, np.float64)
        if V.ndim not in (1, 2) or len(V) != len(self.order):
            raise ValueError(f"an array of {len(self.order)} rows is wanted, not one of shape {V.shape}")
        return V

    def _in_order(self, compute: Any, V: Any, ordered: bool) -> np.ndarray:
        V = self._column(V)
        columns = V.reshape(len(V), -1)
        if ordered:
            return compute(columns).reshape(V.shape)
        out = np.empty_like(columns)
        out[self.order] = compute(columns[self.order])
        return out.reshape(V.shape)


class HSSFactorization:
    """K~ + shift I, factorised, from `HSSMatrix.factorize`.

    Attributes
    ----------
    shift : float
    logdet : float
        The logarithm of the determinant.
    nbytes : int
    """

    def __init__(self, matrix: HSSMatrix, shift: float, factors: list[Factor], logdet: float) -> None:
        self._matrix, self._factors = matrix, factors
        self.shift, self.logdet = shift, logdet

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for factor in self._factors for array in factor)

    def solve(self, B: np.ndarray, *, ordered: bool = False) -> np.ndarray:
        """X with (K~ + shift I) X = B, float64, for B [n] or [n, k]. ``ordered``: whether rows of both are in the matrix's
        ``order``, which is quicker. O(n (m + r) k).
        """
        return self._matrix._in_order(lambda rows: solve(self._matrix._tree, self._factors, rows), B, ordered)


def _check_tolerances(rel_tol: float, abs_tol: float) -> None:
    for name, value in (("rel_tol", rel_tol), ("abs_tol", abs_tol)):
        check_number(name, value, 0.0, inclusive=True, high=1e100)
    if not (rel_tol > 0.0 or abs_tol > 0.0):
        raise ValueError("rel_tol or abs_tol must be above 0")


def _rows(X: Any) -> np.ndarray:
    if sparse.issparse(X):
        raise ValueError("X must be an array: of a sparse matrix take X.toarray(), if there is room for it")
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
    # Before the work starts: what it takes where all ranks are the largest.
    check_number("memory_limit", limit, 0.0)
    n, d = X.shape
    most = min(leaf_size, n)
    more = 8.0 if split == "two-means" else 2.0  # times as many nodes as there are if all have as many rows as they may

    def needed(rank: int) -> float:
        leaf = 8.0 * n * (2 * most + 2 * min(rank, most))
        inner, size = 0.0, float(most)
        while size < n:  # nodes of twice as many rows, and half as many of them
            size *= 2.0
            own = min(rank, size / 2.0)
            inner += 8.0 * (more * n / size) * 9.0 * own * own
        return 24.0 * n * d + 4.0 * n * n_neighbors + leaf + inner

    if needed(max_rank) > limit:
        fitting = [rank for rank in (2**k for k in range(20)) if rank < max_rank and needed(rank) <= limit]
        hint = f"max_rank={fitting[-1]} would fit" if fitting else f"{needed(1):,.0f} is the least, with max_rank=1"
        raise ValueError(f"memory_limit={limit:,.0f} bytes, and up to {needed(max_rank):,.0f} would be needed: {hint}")
