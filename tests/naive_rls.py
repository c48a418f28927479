"""A slow reference implementation of kernel recursive least squares: normal equations, solved in float64 by numpy."""

import numpy as np

from naive import rbf
from streamsvm.core.steps.triangle import row_start

CHUNK = 64
FIRST_ROWS = 500
CENTRE_PRIOR, SLACK = 1.0, 1.0 + 1e-5


def packed(matrix, stride, dtype=np.float64):
    out = np.zeros(stride * (stride + 1) // 2, dtype)
    for j in range(len(matrix)):
        start = row_start(j, stride)
        out[start + j : start + len(matrix)] = matrix[j, j:]
    return out


def unpacked(triangle, stride, n):
    """The symmetric matrix of n rows in a triangle with room for ``stride``."""
    out = np.zeros((n, n))
    for j in range(n):
        start = row_start(j, stride)
        out[j, j:] = out[j:, j] = triangle[start + j : start + n]
    return out


def gram(A, B, gamma):
    return np.array([[rbf(a, b, gamma) for b in B] for a in A])


def regressors(X, landmarks, gamma):
    return np.column_stack([np.ones(len(X)), gram(X, landmarks, gamma)])


def prior(landmarks, gamma, ridge):
    R = np.zeros((len(landmarks) + 1,) * 2)
    R[0, 0] = CENTRE_PRIOR
    R[1:, 1:] = ridge * gram(landmarks, landmarks, gamma)
    R[np.arange(1, len(R)), np.arange(1, len(R))] *= SLACK
    return R


def normal_equations(Z, T, w, R, forgetting=1.0):
    """S and c of rows with regressors Z [n, m], targets T [outputs, n], weights w; and how many rows are in full chunks."""
    S, c, at = R.copy(), np.zeros((len(T), len(R))), 0
    while at < len(Z):
        stop = min(at + CHUNK, FIRST_ROWS) if at < FIRST_ROWS else at + CHUNK
        if stop > len(Z):
            break
        z, decay = Z[at:stop], forgetting ** (stop - at)
        S = decay * S + (1.0 - decay) * R + (z * w[at:stop, None]).T @ z
        c = decay * c + T[:, at:stop] * w[at:stop] @ z
        at = stop
    return S, c, at


def projected(S, c, place, R, neighbours, ridge=1e-4):
    """S and c with regressor ``place`` replaced: for rows so far it is its projection on the neighbours, by the prior R that has
    its kernel values.
    """
    A = R[np.ix_(neighbours, neighbours)].copy()
    A[np.diag_indices(len(A))] *= 1.0 + ridge
    x = np.linalg.solve(A, R[place, neighbours])
    T = np.eye(len(S))
    T[place] = 0.0
    T[place, neighbours] = x
    S, c = T @ S @ T.T, c @ T.T
    S[place, place] += max(R[place, place] - x @ R[place, neighbours], 0.0)
    return S, c
