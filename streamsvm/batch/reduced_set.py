"""Kernel expansions of few vectors that come close to a function: vectors chosen, coefficients solved for, vectors moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize, sparse

from streamsvm.core.kernels import (
    LARGEST_FEATURE,
    LARGEST_KERNEL,
    RBF,
    Kernel,
    compute_exponentials,
    compute_kernel_matrix,
    convert_products,
)

_CHUNK, _CHUNK_VALUES = 1000, 1_000_000  # rows, and their values, whose kernel values are computed at a time
_HELD_VALUES = 8_000_000  # kernel values, float32, that are held, twice, and values of rows; more are computed in each pass
_WORST_OF = 10  # rows for each vector, of which the worst are taken
_MOVED_VALUES = 1_000_000  # of the vectors that are moved
_RIDGE, _ROUGH_RIDGE = 1e-7, 1e-5  # relative to the mean of the diagonal: of the result, and of steps in float32
_ROUGH_EXPONENT = 512.0  # up to this gamma times the largest squared norm, float32 has distances well enough for steps
_FEW = 50  # vectors and features that take so little time that they have twice the steps; fewer have more
_DAMPING, _LEAST_DAMPING = 0.05, 1e-5  # of the first step, relative to the curvature; the latter is as exact as float32 is
_CONJUGATE, _SOLVED = 6, 0.01  # gradients of a step at most, and part of the squared residual at which fewer do
_GAIN = 0.002  # of the squared error: a step that gains less is the last one
_FLAT = 0.03  # of the mean curvature, added to each: a vector that nothing depends on must not fly away
_LEAST = 2.0**-126  # of a sum of squares, as of a kernel value in float32: where no row is near, nothing is divided by 0
_SHARPNESS = 5.0  # of the softmax: an output that is 1 above the others has a probability of .99


def to_dense_rows(rows: Any) -> np.ndarray:
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
        convert_products(products[np.newaxis], norm, norms, kernel)
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


class _FittedVectors(NamedTuple):
    """Vectors with the coefficients that are best for them."""

    vectors: np.ndarray  # float64 [m, d]
    products: np.ndarray  # of weighted kernel values, with the ridge, float64 [m, m]
    coefficients: np.ndarray  # float64 [m, outputs]
    roots: np.ndarray  # of the weights of rows, [n, 1], in the type of kernel values
    held: list[np.ndarray]  # kernel values times the roots, of each chunk; empty if they are too many
    errors: np.ndarray  # times the roots, [n, outputs]

    @property
    def total(self) -> float:
        """Half the sum of squares."""
        return 0.5 * float(np.square(self.errors, dtype=np.float64).sum())


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
        self._held_rows: dict[np.dtype[Any], list[np.ndarray]] = {}

    def solve_coefficients(self, vectors: np.ndarray) -> np.ndarray:
        """Return the coefficients, float64 [m, outputs], of vectors float64 [m, d]: least squares with a small ridge.

        O(n m (m + d)); O(m^2) numbers in memory.
        """
        return self._fit_coefficients(vectors, _RIDGE, np.dtype(np.float64)).coefficients

    def compute_values(self, vectors: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the values of an expansion, without an intercept, float64 [n, outputs]. O(n m d)."""
        values = np.empty((self.rows.shape[0], coefficients.shape[1]))
        for chunk, _, K in self._iter_chunks(vectors, self._rough_dtype(vectors)):
            values[chunk] = K @ coefficients
        return values

    def find_worst_rows(self, vectors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return at most ``count`` rows, float64 [count, d], where the expansion of the vectors float64 [m, d] is far off.

        They are drawn as by `choose_vectors`, each with its part of the sum of squares as its weight. If there are many rows, it
        looks at 10 (m + count) of them: O(m^2 (m + d)).
        """
        every = max(self.rows.shape[0] // (_WORST_OF * (len(vectors) + count)), 1)
        some = slice(int(rng.integers(every)), None, every)
        part = ReducedSet(self.kernel, self.rows[some], self.targets[some], self.weights[some])
        fit = part._fit_coefficients(vectors, _ROUGH_RIDGE, part._rough_dtype(vectors))
        errors = np.square(fit.errors, dtype=np.float64).sum(axis=1)
        return to_dense_rows(part.rows[choose_vectors(self.kernel, part.rows, errors, count, rng)])

    def move_vectors(self, vectors: np.ndarray, passes: int, enough: Callable[[np.ndarray], bool] | None = None) -> np.ndarray:
        """Return vectors, float64 [m, d], moved so that the sum of squares is small where coefficients are solved for.

        By steps of Gauss and Newton, damped as by Levenberg and Marquardt, with the coefficients at their best (variable
        projection): what coefficients can change is left out of what vectors change. The equations of a step are solved by
        conjugate gradients: seven passes for each step, with the kernel values. It stops when a step gains next to nothing, or
        when ``enough`` says so of the values on the rows. Vectors stay as they are where the kernel is not Gaussian, or m d is
        above 1,000,000.

        O(n m d) a pass, and O(n m^2) a step; O(m^2 + 10 m d) numbers in memory, and 16,000,000 kernel values. `to_budget`
        names the sources.
        """
        if passes == 0 or not self._can_move(vectors):
            return vectors
        fit, damping = self._fit_coefficients(vectors, _ROUGH_RIDGE, self._rough_dtype(vectors)), _DAMPING
        for _ in range(math.ceil(passes / (1 + _CONJUGATE) * (1.0 + _FEW / max(vectors.shape)))):
            if enough is not None and enough(fit.errors / np.maximum(fit.roots, _LEAST) + self.targets):
                break
            step, promised = self._compute_step(fit, damping)
            if not promised > 0.0:
                break
            moved, gain = fit.vectors + step, -math.inf
            if np.abs(moved).max() <= LARGEST_FEATURE:  # else the next step is shorter
                new = self._fit_coefficients(moved, _ROUGH_RIDGE, fit.roots.dtype)
                gain = fit.total - new.total
            damping *= 0.2 if gain > 0.7 * promised else 1.0 if gain > 0.4 * promised else 4.0
            damping = max(damping, _LEAST_DAMPING)
            if gain > 0.0:
                fit = new
                if gain <= _GAIN * new.total:
                    break
            elif promised <= _GAIN**2 * fit.total:  # shorter steps gain less
                break
        return fit.vectors

    def match_largest_output(
        self, vectors: np.ndarray, coefficients: np.ndarray, intercept: np.ndarray, passes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors and coefficients moved so that the largest output is that of the targets.

        Targets that have kinks, as votes have, are not what so few vectors can be everywhere, but the largest of them may be
        theirs. By L-BFGS on the cross entropy between the probabilities that targets and outputs stand for: the softmax of five
        times their values. Vectors stay where `move_vectors` would not move them. O(n m d) a pass and O(n m^2) once; memory as in
        `move_vectors`.
        """
        m, outputs = coefficients.shape
        if passes == 0 or m == 0:
            return vectors, coefficients
        dtype, moved = self._rough_dtype(vectors), self._can_move(vectors)
        # Coordinates in which all directions have about the same curvature, by that of the squared error.
        fit = self._fit_coefficients(vectors, _ROUGH_RIDGE, dtype)._replace(coefficients=coefficients)
        back = np.linalg.inv(np.linalg.cholesky(fit.products / self.weights.sum())).T
        scale = np.sqrt(self._compute_curvature(fit) / self.weights.sum()) if moved else None
        wanted = _compute_softmax(self.targets + intercept)

        def parts(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            a = back @ point[: m * outputs].reshape(m, outputs)
            if scale is None:
                return a, vectors
            return a, np.clip(point[m * outputs :].reshape(vectors.shape) / scale, -LARGEST_FEATURE, LARGEST_FEATURE)

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            a, Z = parts(point)
            total, of_a, sums = 0.0, np.zeros_like(a), np.zeros((m, Z.shape[1] + 1))
            rough = a.astype(dtype)
            for chunk, X, K in self._iter_chunks(Z, dtype):
                p, weights = _compute_softmax(K @ rough + intercept), self.weights[chunk] / self.weights.sum()
                total -= float(weights @ (wanted[chunk] * np.log(np.maximum(p, 1e-30))).sum(axis=1))
                slopes = (_SHARPNESS * weights[:, np.newaxis] * (p - wanted[chunk])).astype(dtype)
                of_a += K.T @ slopes
                if scale is not None:
                    sums += _sum_slopes(K, X, rough, slopes)
            gradient = [(back.T @ of_a).ravel()]
            if scale is not None:
                gradient.append((self._to_vector_gradient(Z, sums) / scale).ravel())
            return total, np.concatenate(gradient)

        start = [np.linalg.solve(back, coefficients).ravel()] + ([] if scale is None else [(vectors * scale).ravel()])
        options = {"maxiter": passes, "maxfun": 2 * passes, "maxcor": 10, "ftol": 1e-5, "gtol": 0.0}
        found = optimize.minimize(objective, np.concatenate(start), jac=True, method="L-BFGS-B", options=options)
        a, Z = parts(found.x)
        return (Z, a) if np.isfinite(found.x).all() else (vectors, coefficients)

    def _can_move(self, vectors: np.ndarray) -> bool:
        return len(vectors) > 0 and self.kernel.kind == RBF and vectors.size <= _MOVED_VALUES

    def _rough_dtype(self, vectors: np.ndarray) -> np.dtype[Any]:
        """Return the type of kernel values for steps: float32 where that is exact enough."""
        norm = float(np.square(vectors - self._centre).sum(axis=1).max())
        return np.dtype(np.float32 if self.kernel.gamma * norm < _ROUGH_EXPONENT else np.float64)

    @cached_property
    def _centre(self) -> np.ndarray:
        """The centre of rows and vectors, float64 [d]: distances are most exact from the middle."""
        rows = self.rows
        return np.asarray(rows.mean(axis=0, dtype=np.float64)).ravel() if self.kernel.kind == RBF else np.zeros(rows.shape[1])

    def _iter_row_chunks(self, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        """Yield chunks of the rows relative to the centre, with a column of 1 and one of squared norms. Few rows are held."""
        (n, d), held = self.rows.shape, self._held_rows.get(dtype)
        if held is not None:
            yield from held
            return
        kept: list[np.ndarray] = []
        size = max(min(_CHUNK, _CHUNK_VALUES // max(d, 1)), 1)
        for begin in range(0, n, size):
            rows = self.rows[begin : begin + size]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            X = np.ones((len(rows), d + 2), dtype)
            np.subtract(rows, self._centre.astype(rows.dtype), out=X[:, :d], casting="same_kind")
            X[:, -1] = np.square(X[:, :d]).sum(axis=1)
            if n * d <= _HELD_VALUES:
                kept.append(X)
            yield X
        if kept:
            self._held_rows[dtype] = kept

    def _iter_chunks(
        self, vectors: np.ndarray, dtype: np.dtype[Any], held: list[np.ndarray] | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield chunks of rows: which, they relative to the centre with a last column of 1, and kernel values or those held."""
        d, begin = self.rows.shape[1], 0
        S = (vectors - self._centre).astype(dtype)
        if self.kernel.kind == RBF:
            S = np.column_stack([-2.0 * S, np.square(S).sum(axis=1), np.ones(len(S), dtype)])
        for number, X in enumerate(self._iter_row_chunks(dtype)):
            if held:
                K = held[number]
            elif self.kernel.kind == RBF:
                distances = X @ S.T
                np.maximum(distances, 0.0, out=distances)  # they round
                K = np.empty_like(distances)
                compute_exponentials(distances.ravel(), self.kernel.gamma, K.size, K.reshape(-1))
            else:
                K = compute_kernel_matrix(*self.kernel, X[:, :d], S)
            yield slice(begin, begin + len(X)), X[:, :-1], K
            begin += len(X)

    def _iter_weighted_chunks(self, fit: _FittedVectors) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield what `_iter_chunks` yields, with kernel values times the roots of the weights."""
        for chunk, X, K in self._iter_chunks(fit.vectors, fit.roots.dtype, fit.held):
            if not fit.held:
                K *= fit.roots[chunk]
            yield chunk, X, K

    def _fit_coefficients(self, vectors: np.ndarray, ridge: float, dtype: np.dtype[Any]) -> _FittedVectors:
        """Return vectors with their best coefficients."""
        m, roots = len(vectors), np.sqrt(self.weights)[:, np.newaxis].astype(dtype)
        wanted, products, c = roots * self.targets.astype(dtype), np.zeros((m, m)), np.zeros((m, self.targets.shape[1]))
        held: list[np.ndarray] = []
        for chunk, _, K in self._iter_chunks(vectors, dtype):
            K *= roots[chunk]
            products += K.T @ K  # of a matrix with itself: NumPy computes half of it
            c += K.T @ wanted[chunk]
            if m * len(roots) <= _HELD_VALUES:
                held.append(K)
        products[np.diag_indices(m)] += max(ridge * np.trace(products) / max(m, 1), _LEAST)
        fit = _FittedVectors(vectors, products, np.linalg.solve(products, c), roots, held, -wanted)
        for chunk, _, K in self._iter_weighted_chunks(fit):
            fit.errors[chunk] += K @ fit.coefficients.astype(dtype)
        return fit

    @np.errstate(over="ignore", invalid="ignore")  # where no row is near a vector: then nothing is promised
    def _compute_step(self, fit: _FittedVectors, damping: float) -> tuple[np.ndarray, float]:
        """Return a step of the vectors, float64 [m, d], and how much it promises to gain: by conjugate gradients."""
        dtype, factors = fit.roots.dtype, linalg.lu_factor(fit.products, check_finite=False)
        a, Z = fit.coefficients.astype(dtype), fit.vectors - self._centre

        def products_with(step: np.ndarray) -> np.ndarray:
            """Return the product of Gauss and Newton's matrix and a step."""
            V = 2.0 * self.kernel.gamma * np.column_stack([step, -(Z * step).sum(axis=1)]).astype(dtype)
            changes, of_a = np.empty_like(fit.errors), np.zeros(a.shape)
            for chunk, X, K in self._iter_weighted_chunks(fit):
                changes[chunk] = np.einsum("ij,ij->i", K @ (a * V), X)[:, np.newaxis] if a.shape[1] == 1 else (X @ V.T * K) @ a
                of_a += K.T @ changes[chunk]
            return self._compute_gradient(fit, changes, linalg.lu_solve(factors, of_a, check_finite=False))

        curvature, gradient = self._compute_curvature(fit), self._compute_gradient(fit, fit.errors, np.zeros(a.shape))
        step, left, direction, size = np.zeros_like(Z), -gradient, np.zeros_like(Z), np.inf
        least = _SOLVED * float((gradient * gradient / curvature).sum())
        for _ in range(_CONJUGATE):
            before, size = size, float((left * left / curvature).sum())
            if size <= least:
                break
            direction = left / curvature + size / before * direction
            products = products_with(direction) + damping * curvature * direction
            curved = float((products * direction).sum())
            if not curved > 0.0:  # by rounding
                break
            step += size / curved * direction
            left -= size / curved * products
        return step, 0.5 * float((step * (damping * curvature * step - gradient)).sum())

    def _compute_gradient(self, fit: _FittedVectors, errors: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the gradient in the vectors, float64 [m, d], of half the squared errors less an expansion."""
        a, others = fit.coefficients.astype(errors.dtype), coefficients.astype(errors.dtype)
        sums = np.zeros((len(a), fit.vectors.shape[1] + 1))
        for chunk, X, K in self._iter_weighted_chunks(fit):
            sums += _sum_slopes(K, X, a, errors[chunk] - K @ others)
        return self._to_vector_gradient(fit.vectors, sums)

    def _to_vector_gradient(self, vectors: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return a gradient in the vectors from the sums of slopes times rows, and of slopes, float64 [m, d + 1]."""
        return np.asarray(2.0 * self.kernel.gamma * (sums[:, :-1] - (vectors - self._centre) * sums[:, -1:]))

    def _compute_curvature(self, fit: _FittedVectors) -> np.ndarray:
        """Return the curvature of half the sum of squares in each vector, float64 [m, 1], and a part of the mean curvature.

        It is the mean over the features of the diagonal of Gauss and Newton's matrix.
        """
        m, d = fit.vectors.shape
        Z, sums, squares = fit.vectors - self._centre, np.zeros((m, d + 1)), np.zeros(m)
        for _, X, K in self._iter_weighted_chunks(fit):
            K = np.square(K)
            sums += K.T @ X
            squares += np.square(X[:, :-1]).sum(axis=1) @ K
        squares += np.square(Z).sum(axis=1) * sums[:, -1] - 2.0 * (Z * sums[:, :-1]).sum(axis=1)
        curvature = 4.0 * self.kernel.gamma**2 * np.maximum(squares, 0.0) * np.square(fit.coefficients).sum(axis=1) / d
        return np.asarray(curvature + _FLAT * curvature.mean() + _LEAST)[:, np.newaxis]


def _sum_slopes(K: np.ndarray, X: np.ndarray, a: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the sums over rows of kernel values times slopes, the errors times a, times X: [m, d + 1]."""
    return np.asarray(a * (K.T @ (errors * X)) if a.shape[1] == 1 else (errors @ a.T * K).T @ X)


def _compute_softmax(values: np.ndarray) -> np.ndarray:
    p = np.exp(_SHARPNESS * (values - values.max(axis=1, keepdims=True)))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


_PARTNERS = 10  # random rows of which the nearest is the other end of a row between


def interpolate_rows(X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n rows between random rows of X and near ones: half on the line between the two, half with features of either.

    The latter keep values that features have: zeros and ones stay zeros and ones. O(10 n d).
    """
    first, others = rng.integers(len(X), size=n), rng.integers(len(X), size=(_PARTNERS, n))
    nearest, second = np.full(n, np.inf), others[0].copy()
    for other in others:
        squares = np.square(X[other] - X[first]).sum(axis=1)
        nearer = (squares > 0.0) & (squares < nearest)
        nearest[nearer], second[nearer] = squares[nearer], other[nearer]
    share = rng.random((n, 1)).astype(X.dtype)
    rows = X[first] + share * (X[second] - X[first])
    crossed = np.flatnonzero(rng.random(n) < 0.5)
    rows[crossed] = np.where(rng.random((len(crossed), X.shape[1])) < 0.5, X[first[crossed]], X[second[crossed]])
    return rows
