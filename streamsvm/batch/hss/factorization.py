"""Factorisation of a compressed kernel matrix plus a multiple of the identity, node by node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from streamsvm.batch.csmo.precomputed import gather_submatrix
from streamsvm.batch.hss.skeletons import Node
from streamsvm.batch.hss.trees import ClusterTree
from streamsvm.core.compiling.functions import compiled


class Factor(NamedTuple):
    """The two matrices of a node that `_solve_system` needs.

    S is the node's matrix. P is its interpolation: the identity at the skeleton, and T at the other rows. The columns of N are
    orthogonal to P: the identity at the other rows, and -T' at the skeleton.
    """

    inverse: np.ndarray  # float64 [m, m]: N (N'SN)^-1 N', the solution if there were no rows outside the node
    exchange: np.ndarray  # float64 [m, r]: (1 at the skeleton) - N (N'SN)^-1 N'S, from the skeleton to the node's rows


class HSSFactorization:
    """The factorised matrix K~ + shift I, which `HSSMatrix.factorize` returns.

    Attributes
    ----------
    shift : float
        The shift that was added to the diagonal.
    nbytes : int
        Bytes of the factors.
    """

    def __init__(self, tree: ClusterTree, shift: float, factors: list[Factor]) -> None:
        self._tree, self._factors = tree, factors
        self.shift: float = shift

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices of this factorisation."""
        return sum(array.nbytes for factor in self._factors for array in factor)

    def solve(self, B: np.ndarray, *, ordered: bool = False) -> np.ndarray:
        """Solve the linear equations (K~ + shift I) X = B with this factorisation, where K~ is the compressed kernel matrix, and
        return X. B and X are float64 [n] or [n, k]; if ``ordered``, their rows are in the order of the matrix's tree. O(n (m + r)
        k) for leaves of m rows and rank r.

        ``ordered`` tells whether the rows of B are in the matrix's ``order``, as X is then; this is faster. A B of another shape
        raises a ValueError.
        """
        return self._tree.apply_in_order(lambda rows: _solve_system(self._tree, self._factors, rows), B, ordered)


def factorize_nodes(tree: ClusterTree, order: Iterable[int], nodes: list[Node], shift: float) -> list[Factor]:
    """Factorise a compressed kernel matrix, whose parts are the ``nodes`` of the ``tree``, plus ``shift`` times the identity, so
    that linear equations can be solved in linear time. Nodes are processed in ``order``. Return a factor for each node.

    Raises a ValueError if the matrix is not positive definite in float64. O(n (m^2 + r^2)).

    Each level is eliminated by a Cholesky factorisation: with S block-diagonal, M the couplings of the levels above and
    E = (P' S^-1 P)^-1, (S + P M P')^-1 = (S^-1 - S^-1 P E P' S^-1) + S^-1 P E (M + E)^-1 E P' S^-1, and M + E is the next level's
    matrix. In the coordinates of the skeleton and of N, P is (1, 0): E is the Schur complement of N'SN, and no digits are lost.
    """
    factors: list[Factor] = []
    reduced: list[np.ndarray] = []  # E of each node
    for number in order:
        node, (left, right) = nodes[number], tree.children[number]
        if left < 0:
            S = node.block.copy()
            S[np.diag_indices(len(S))] += shift
        else:
            S = np.block([[reduced[left], node.block], [node.block.T, reduced[right]]])
            reduced[left] = reduced[right] = np.empty((0, 0))
        r = len(node.places)
        skeleton_first = np.concatenate([node.places, np.delete(np.arange(len(S)), node.places)])
        original_order = np.argsort(skeleton_first)
        S, T = _reorder_matrix(S, skeleton_first), node.interpolation[skeleton_first[r:]]
        NS = S[r:] - T @ S[:r]
        inner = _invert(NS[:, r:] - NS[:, :r] @ T.T, shift)
        inner_T, solution = inner @ T, inner @ NS[:, :r]
        E = S[:r, :r] - NS[:, :r].T @ solution
        inverse = np.block([[T.T @ inner_T, -inner_T.T], [-inner_T, inner]])
        exchange = np.concatenate([np.eye(r) + T.T @ solution, -solution])
        factors.append(Factor(_reorder_matrix(inverse, original_order), exchange[original_order]))
        reduced.append(0.5 * (E + E.T))
    return factors


def _invert(A: np.ndarray, shift: float) -> np.ndarray:
    """Return the inverse of a symmetric matrix A, whose upper triangle is read and overwritten. Raise a ValueError, which names
    ``shift``, if A is not positive definite.
    """
    if not len(A):
        return A
    factor, info = lapack.dpotrf(A.T, lower=1, clean=0, overwrite_a=1)  # LAPACK reads the transpose without a copy
    if info:
        raise ValueError(f"the matrix with {shift:g} on its diagonal is not positive definite in float64: raise the shift")
    inverse = lapack.dpotri(factor, lower=1, overwrite_c=1)[0].T
    _mirror_triangle(inverse)
    return inverse


@compiled(nogil=True)
def _mirror_triangle(A: np.ndarray) -> None:
    """Make the square matrix A symmetric: copy its upper triangle to the lower one, in place."""
    for i in range(len(A)):
        for j in range(i):
            A[i, j] = A[j, i]


def _reorder_matrix(A: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the square matrix A with its rows and columns in the new ``order``: ``A[order][:, order]``."""
    out = np.empty_like(A)
    gather_submatrix(A, order, order, out)
    return out


def _solve_system(tree: ClusterTree, factors: list[Factor], B: np.ndarray) -> np.ndarray:
    """Solve linear equations for the right-hand sides B float64 [n, k], and return the solution [n, k], with the ``factors`` of a
    compressed kernel matrix plus a multiple of the identity. The rows of both are in the order of ``tree``. O(n (m + r) k).
    """
    upward: list[np.ndarray] = []
    inner: list[np.ndarray] = []
    for number, factor in enumerate(factors):
        rows = tree.gather_rows(number, B, upward)
        inner.append(factor.inverse @ rows)
        upward.append(factor.exchange.T @ rows)
    out = np.empty_like(B)
    downward = upward.copy()
    for number in range(len(factors) - 1, -1, -1):
        left, right = tree.children[number]
        x = inner[number] + factors[number].exchange @ downward[number]
        if left < 0:
            out[tree.starts[number] : tree.stops[number]] = x
        else:
            size = len(upward[left])
            downward[left], downward[right] = x[:size], x[size:]
    return out
