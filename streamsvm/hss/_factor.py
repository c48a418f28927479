"""Factorisation of a compressed kernel matrix with a multiple of the identity added, node by node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.linalg import lapack

from streamsvm.hss._compress import Node
from streamsvm.hss.tree import ClusterTree

__all__ = ["Factor", "factorize", "solve"]


class Factor(NamedTuple):
    """With S the node's own matrix, P its interpolation and E = (P' S^-1 P)^-1: what solving takes."""

    inverse: np.ndarray
    """float64 [m, m]: S^-1 - S^-1 P E P' S^-1, what the node answers without the others."""
    exchange: np.ndarray
    """float64 [m, r]: S^-1 P E, between the node's rows and its skeleton."""


def factorize(tree: ClusterTree, order: Iterable[int], nodes: list[Node], shift: float) -> tuple[list[Factor], float]:
    """The factors of K~ + shift I, in the tree's ``order``, and its log-determinant. O(n (m^2 + r^2)).

    Each level is eliminated by Cholesky factorisations: with S block-diagonal and M the couplings of the levels above,
    (S + P M P')^-1 = (S^-1 - S^-1 P E P' S^-1) + S^-1 P E (M + E)^-1 E P' S^-1, and M + E is the next level's matrix.
    It is positive definite where K~ + shift I is.

    Raises
    ------
    ValueError
        The matrix is not positive definite in float64.
    """
    factors: list[Factor] = []
    given: list[np.ndarray] = []  # E of each node
    log_determinant = 0.0
    for number in order:
        node, (left, right) = nodes[number], tree.children[number]
        if left < 0:
            S = node.block.copy()
            S[np.diag_indices(len(S))] += shift
        else:
            S = np.block([[given[left], node.block], [node.block.T, given[right]]])
            given[left] = given[right] = np.empty((0, 0))
        inverse, log_own = _inverse(S, shift)
        solved = inverse @ node.interpolation
        G = node.interpolation.T @ solved
        E, log_coupling = _inverse(0.5 * (G + G.T), shift)
        exchange = solved @ E
        inverse -= exchange @ solved.T
        log_determinant += log_own + log_coupling
        factors.append(Factor(inverse, exchange))
        given.append(E)
    return factors, log_determinant


def _inverse(A: np.ndarray, shift: float) -> tuple[np.ndarray, float]:
    # The inverse of a positive definite matrix, and the logarithm of its determinant. Destroys A.
    if not len(A):
        return A, 0.0
    factor, failed = lapack.dpotrf(A.T, lower=1, clean=0, overwrite_a=1)  # transposed, LAPACK takes it as it is
    if failed:
        raise ValueError(f"the matrix with {shift:g} on its diagonal is not positive definite in float64: take a larger shift")
    log_determinant = 2.0 * float(np.log(factor.diagonal()).sum())
    inverse = lapack.dpotri(factor, lower=1, overwrite_c=1)[0].T
    _mirror(inverse)
    return inverse, log_determinant


@njit(cache=True, error_model="numpy")
def _mirror(A: np.ndarray) -> None:
    # The lower triangle from the upper one.
    for i in range(len(A)):
        for j in range(i):
            A[i, j] = A[j, i]


def solve(tree: ClusterTree, factors: list[Factor], B: np.ndarray) -> np.ndarray:
    """X float64 [n, k] with (K~ + shift I) X = B, rows of both in the tree's order. O(n (m + r) k)."""
    upward: list[np.ndarray] = []
    own: list[np.ndarray] = []
    for number, factor in enumerate(factors):
        left, right = tree.children[number]
        rows = B[tree.begin[number] : tree.end[number]] if left < 0 else np.concatenate([upward[left], upward[right]])
        own.append(factor.inverse @ rows)
        upward.append(factor.exchange.T @ rows)
    out = np.empty_like(B)
    downward = upward.copy()
    for number in range(len(factors) - 1, -1, -1):
        left, right = tree.children[number]
        x = own[number] + factors[number].exchange @ downward[number]
        if left < 0:
            out[tree.begin[number] : tree.end[number]] = x
        else:
            size = len(upward[left])
            downward[left], downward[right] = x[:size], x[size:]
    return out
