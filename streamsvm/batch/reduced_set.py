"""Kernel expansions of few vectors that come close to a function: vectors chosen, coefficients solved for, vectors moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import optimize, sparse

from streamsvm.core.kernels import LARGEST_KERNEL, RBF, Kernel, kernel_matrix, values_of_products

_CHUNK, _CHUNK_VALUES = 1000, 1_000_000  # rows, and their values, whose kernel values are computed at a time
_HELD_VALUES = 16_000_000  # kernel values, float32, that are held from the solution to the gradient; more are computed twice
_MOVED_VALUES = 1_000_000  # of the vectors that are moved: L-BFGS holds 20 times as many numbers in float64
_RIDGE, _ROUGH_RIDGE = 1e-7, 1e-5  # relative to the mean of the diagonal: of the result, and of steps in float32
_ROUGH_EXPONENT = 64.0  # up to this gamma times the largest squared norm, float32 has distances well enough for steps
_GAIN = 1e-4  # of the first squared error: steps that gain less are the last ones
_FLAT = 0.01  # of the mean curvature, added to each: a vector that nothing depends on must not fly away
_SHARPNESS = 5.0  # of the softmax: an output that is 1 above the others has a probability of .99


def dense_rows(rows: Any) -> np.ndarray:
    """Return rows, array or CSR matrix [n, d], as an array of float64."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float64)


def choose_vectors(kernel: Kernel, S: Any, weights: np.ndarray, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of at most ``budget`` rows of S that are far from each other in the kernel's space, by k-means++.

    Each row of S, array or CSR matrix float64 [m, d], is drawn with a probability that is proportional to its weight (0 or above)
    times the squared distance to the nearest one chosen. O(m budget d).

    Arthur, D., Vassilvitskii, S. (2007). k-means++: the advantages of careful seeding. SODA.
    """
    if not sparse.issparse(S) and len(S):
        S = S - S.mean(axis=0) if kernel.kind == RBF else S  # distances are most exact from the middle
    norms = np.ascontiguousarray((S.multiply(S) if sparse.issparse(S) else np.square(S)).sum(axis=1)).ravel()

    def values_at(products: np.ndarray, norm: np.ndarray) -> np.ndarray:
        values_of_products(products[np.newaxis], norm, norms, kernel)
        return np.clip(products, -LARGEST_KERNEL, LARGEST_KERNEL, out=products)

    own = np.ones_like(norms) if kernel.kind == RBF else values_at(norms.copy(), norms)
    distances, chosen = own.copy(), []
    for _ in range(min(budget, S.shape[0])):
        cumulated = np.cumsum(distances * weights)
        if not cumulated[-1] > 0.0:
            break
        new = min(int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right")), len(own) - 1)
        chosen.append(new)
        row = S[[new]].toarray()[0] if sparse.issparse(S) else S[new]
        values = values_at(S @ row, norms[new : new + 1])
        distances = np.clip(own + own[new] - 2.0 * values, 0.0, distances)
        distances[new] = 0.0
    return np.array(chosen, np.intp)


class ReducedSet:
    """The least squares problem of an expansion: a weighted sum of squares over rows, of coefficients and vectors.

    On the ``rows``, array or CSR matrix [n, d], the expansion is to be the ``targets`` float64 [n, outputs]; ``weights`` float64
    [n], 0 or above, are those of the rows.
    """

    def __init__(self, kernel: Kernel, rows: Any, targets: np.ndarray, weights: np.ndarray) -> None:
        # plain numbers: NumPy's would make float64 of what is float32
        self.kernel: Kernel = Kernel(int(kernel.kind), float(kernel.gamma), float(kernel.coef0), int(kernel.degree))
        self.rows: Any = rows
        self.targets: np.ndarray = targets
        self.weights: np.ndarray = weights

    def solve(self, vectors: np.ndarray) -> np.ndarray:
        """Return the coefficients, float64 [m, outputs], of vectors float64 [m, d]: least squares with a small ridge.

        O(n m (m + d)); O(m^2) numbers in memory.
        """
        return self._solve(vectors, _RIDGE, np.dtype(np.float64), None)

    def values(self, vectors: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the values of an expansion, without an intercept, float64 [n, outputs]. O(n m d)."""
        dtype = self._rough_dtype(vectors)
        S, values = vectors.astype(dtype), np.empty((self.rows.shape[0], coefficients.shape[1]))
        for chunk, X in self._chunks(dtype):
            values[chunk] = kernel_matrix(*self.kernel, X, S) @ coefficients
        return values

    def worst_rows(self, vectors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return at most ``count`` rows, float64 [count, d], where the expansion of the vectors float64 [m, d] is far off.

        They are drawn as by `choose_vectors`, each with its part of the sum of squares as its weight. O(n m (m + d)).
        """
        coefficients = self._solve(vectors, _ROUGH_RIDGE, self._rough_dtype(vectors), None)
        errors = self.weights * np.square(self.values(vectors, coefficients) - self.targets).sum(axis=1)
        return dense_rows(self.rows[choose_vectors(self.kernel, self.rows, errors, count, rng)])

    def move(self, vectors: np.ndarray, passes: int) -> np.ndarray:
        """Return vectors, float64 [m, d], moved so that the sum of squares is small where coefficients are solved for.

        Each step is a pass over the rows: it solves for the coefficients, and takes the gradient in the vectors there, which
        is that of the sum of squares with its coefficients at their best (variable projection). L-BFGS follows it, in
        coordinates in which each vector has the same curvature at the start. It stops when a step gains next to nothing. Vectors
        stay as they are where the kernel is not Gaussian, or m d is above 1,000,000.

        O(n m (m + d)) a pass; O(m^2 + 20 m d) numbers in memory, and 16,000,000 kernel values. `to_budget` names the sources.
        """
        if passes == 0 or not self._can_move(vectors):
            return vectors
        dtype = self._rough_dtype(vectors)
        error, _ = self._error(vectors, dtype)
        if not error > 0.0:
            return vectors
        scale = self._scale(self._solve(vectors, _ROUGH_RIDGE, dtype, None), vectors, dtype)

        def objective(scaled: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._error(scaled.reshape(vectors.shape) / scale, dtype)
            return value / error, (gradient / (scale * error)).ravel()

        options = {"maxiter": passes, "maxfun": 2 * passes, "maxcor": 10, "ftol": _GAIN, "gtol": 0.0}
        with np.errstate(over="ignore", invalid="ignore"):  # far from all rows; L-BFGS then tries a shorter step
            found = optimize.minimize(objective, (vectors * scale).ravel(), jac=True, method="L-BFGS-B", options=options)
        moved = found.x.reshape(vectors.shape) / scale
        return moved if np.isfinite(moved).all() and found.fun <= 1.0 else vectors

    def follow(
        self, vectors: np.ndarray, coefficients: np.ndarray, intercept: np.ndarray, passes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors and coefficients moved so that the largest output is that of the targets.

        Targets that have kinks, as votes have, are not what so few vectors can be everywhere, but the largest of them may be
        theirs. By L-BFGS on the cross entropy between the probabilities that targets and outputs stand for: the softmax of five
        times their values. Vectors stay as they are where `move` leaves them. O(n m d) a pass and O(n m^2) once; memory as of
        `move`.
        """
        m, outputs = coefficients.shape
        if passes == 0 or m == 0:
            return vectors, coefficients
        dtype, moved = self._rough_dtype(vectors), self._can_move(vectors)
        # Coordinates in which all directions have about the same curvature, by that of the squared error.
        G, _ = self._normal_equations(vectors, _ROUGH_RIDGE, dtype, None)
        back = np.linalg.inv(np.linalg.cholesky(G / self.weights.sum())).T
        scale = self._scale(coefficients, vectors, dtype) / np.sqrt(self.weights.sum()) if moved else None
        wanted = _softmax(self.targets + intercept)

        def parts(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            a = back @ point[: m * outputs].reshape(m, outputs)
            return a, vectors if scale is None else point[m * outputs :].reshape(vectors.shape) / scale

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            a, Z = parts(point)
            S, centre, total, of_a = Z.astype(dtype), Z.mean(axis=0), 0.0, np.zeros_like(a)
            sums, products = np.zeros(m), np.zeros_like(Z)
            for chunk, X in self._chunks(dtype):
                K = kernel_matrix(*self.kernel, X, S)
                p, weights = _softmax(K @ a + intercept), self.weights[chunk] / self.weights.sum()
                total -= float(weights @ (wanted[chunk] * np.log(np.maximum(p, 1e-30))).sum(axis=1))
                slopes = _SHARPNESS * weights[:, np.newaxis] * (p - wanted[chunk])
                of_a += K.T @ slopes
                if scale is not None:
                    of_K = (slopes @ a.T).astype(dtype) * K
                    sums += of_K.sum(axis=0)
                    products += of_K.T @ (X - centre.astype(dtype))
            gradient = [(back.T @ of_a).ravel()]
            if scale is not None:
                of_Z = -2.0 * self.kernel.gamma * ((Z - centre) * sums[:, np.newaxis] - products)
                gradient.append((of_Z / scale).ravel())
            return total, np.concatenate(gradient)

        start = [np.linalg.solve(back, coefficients).ravel()] + ([] if scale is None else [(vectors * scale).ravel()])
        options = {"maxiter": passes, "maxfun": 2 * passes, "maxcor": 10, "ftol": 1e-5, "gtol": 0.0}
        found = optimize.minimize(objective, np.concatenate(start), jac=True, method="L-BFGS-B", options=options)
        a, Z = parts(found.x)
        return (Z, a) if np.isfinite(found.x).all() else (vectors, coefficients)

    def _can_move(self, vectors: np.ndarray) -> bool:
        return len(vectors) > 0 and self.kernel.kind == RBF and vectors.size <= _MOVED_VALUES

    def _scale(self, coefficients: np.ndarray, vectors: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Return what coordinates of vectors are multiplied by so that all have about the same curvature, float64 [m, 1]."""
        curvature = self._curvature(vectors, coefficients, dtype)
        return np.asarray(np.sqrt(curvature + _FLAT * curvature.mean() + np.finfo(np.float64).tiny)[:, np.newaxis])

    def _rough_dtype(self, vectors: np.ndarray) -> np.dtype[Any]:
        """Return the type of kernel values for steps: float32 where that is exact enough."""
        norm = float(np.square(vectors - vectors.mean(axis=0)).sum(axis=1).max())
        return np.dtype(np.float32 if self.kernel.gamma * norm < _ROUGH_EXPONENT else np.float64)

    def _chunks(self, dtype: np.dtype[Any]) -> Iterator[tuple[slice, np.ndarray]]:
        n, d = self.rows.shape
        size = max(min(_CHUNK, _CHUNK_VALUES // d), 1)
        for begin in range(0, n, size):
            rows = self.rows[begin : begin + size]
            yield slice(begin, min(begin + size, n)), np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype)

    def _normal_equations(
        self, vectors: np.ndarray, ridge: float, dtype: np.dtype[Any], held: list[np.ndarray] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted products of kernel values, float64 [m, m], and with the targets.

        Kernel values times the roots of the weights go to ``held``.
        """
        m = len(vectors)
        S, G, c = vectors.astype(dtype), np.zeros((m, m)), np.zeros((m, self.targets.shape[1]))
        for chunk, X in self._chunks(dtype):
            roots = np.sqrt(self.weights[chunk, np.newaxis])
            K = kernel_matrix(*self.kernel, X, S)
            K *= roots
            G += K.T @ K  # of a matrix with itself: NumPy computes half of it
            c += K.T @ (roots * self.targets[chunk]).astype(dtype)
            if held is not None:
                held.append(K)
        G[np.diag_indices(m)] += max(ridge * np.trace(G) / max(m, 1), np.finfo(np.float64).tiny)
        return G, c

    def _solve(self, vectors: np.ndarray, ridge: float, dtype: np.dtype[Any], held: list[np.ndarray] | None) -> np.ndarray:
        return np.asarray(np.linalg.solve(*self._normal_equations(vectors, ridge, dtype, held)))

    def _error(self, vectors: np.ndarray, dtype: np.dtype[Any]) -> tuple[float, np.ndarray]:
        """Return half the sum of squares with the best coefficients, and its gradient in the vectors."""
        held: list[np.ndarray] | None = [] if len(vectors) * self.rows.shape[0] <= _HELD_VALUES else None
        coefficients = self._solve(vectors, _ROUGH_RIDGE, dtype, held)
        S, centre = vectors.astype(dtype), vectors.mean(axis=0)
        total, sums, products = 0.0, np.zeros(len(S)), np.zeros_like(vectors)
        for number, (chunk, X) in enumerate(self._chunks(dtype)):
            roots = np.sqrt(self.weights[chunk, np.newaxis])
            K = held[number] if held else kernel_matrix(*self.kernel, X, S) * roots.astype(dtype)
            errors = K @ coefficients - roots * self.targets[chunk]
            total += 0.5 * float(np.square(errors).sum())
            slopes = errors.astype(dtype) @ coefficients.T.astype(dtype)
            slopes *= K
            sums += slopes.sum(axis=0)
            products += slopes.T @ (X - centre.astype(dtype))
        return total, -2.0 * self.kernel.gamma * ((vectors - centre) * sums[:, np.newaxis] - products)

    def _curvature(self, vectors: np.ndarray, coefficients: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the curvature of half the sum of squares in each vector, float64 [m].

        It is the mean over the features of the diagonal of Gauss and Newton's matrix.
        """
        squares = np.zeros(len(vectors))
        for chunk, X in self._chunks(dtype):
            K = kernel_matrix(*self.kernel, X, vectors.astype(dtype))
            # minus the logarithm of a kernel value is gamma times the squared distance
            squares -= self.weights[chunk] @ (np.square(K) * np.log(np.maximum(K, np.finfo(dtype).tiny)))
        return np.asarray(4.0 * self.kernel.gamma * squares * np.square(coefficients).sum(axis=1) / vectors.shape[1])


def _softmax(values: np.ndarray) -> np.ndarray:
    p = np.exp(_SHARPNESS * (values - values.max(axis=1, keepdims=True)))
    return np.asarray(p / p.sum(axis=1, keepdims=True))
