"""Reduced sets: small kernel expansions that approximate a function, by choosing and moving vectors and fitting coefficients."""

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
    convert_to_kernel_values,
)

_CHUNK_ROWS, _CHUNK_VALUES = 1000, 1_000_000  # limits of the rows whose kernel values are computed at a time
_MAX_CACHED_VALUES = 8_000_000  # kernel values, and values of rows, up to which they are kept for the next pass
_CANDIDATES_PER_VECTOR = 10  # rows from which new vectors are drawn, for each vector
_MAX_MOVED_VALUES = 1_000_000  # larger sets of vectors are not moved
_RIDGE, _STEP_RIDGE = 1e-7, 1e-5  # relative to the mean of the diagonal: for the result, and for steps, perhaps in float32
_MAX_FLOAT32_EXPONENT = 512.0  # gamma |x|^2 of vectors up to which float32 distances are accurate enough for steps
_SMALL_SIZE = 50  # sets with this number of vectors and features take twice the steps, because they are cheap; smaller ones more
_FIRST_DAMPING, _MIN_DAMPING = 0.05, 1e-5  # relative to the curvature; smaller than the second is noise in float32
_MAX_CG_STEPS, _CG_TOLERANCE = 6, 0.01  # of conjugate gradients for a step; the tolerance is for the squared residual
_MIN_GAIN = 0.002  # relative decrease of the squared error; after a smaller one, the iteration ends
_CURVATURE_SHARE = 0.03  # of the mean curvature, added to each, so that vectors without influence do not move far
_TINY = 2.0**-126  # keeps sums of squares positive if no row is near a vector
_SHARPNESS = 5.0  # factor of the softmax: an output that is 1 above the others has a probability of 0.99


def to_dense_rows(rows: Any) -> np.ndarray:
    """Return rows [n, d], an array or a sparse matrix, as a dense float64 array."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float64)


def choose_vectors(kernel: Kernel, S: Any, weights: np.ndarray, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Choose at most ``budget`` rows of S [m, d] that are far from each other in the kernel's feature space, by weighted
    k-means++. Return their positions, intp, in the order of their choice.

    Each row of S, an array or CSR matrix float64 [m, d], is drawn with a probability proportional to its weight (0 or above)
    times the squared distance to the nearest chosen row. O(m budget d).

    Arthur, D., Vassilvitskii, S. (2007). k-means++: the advantages of careful seeding. SODA.
    """
    if not sparse.issparse(S) and len(S):
        S = S - S.mean(axis=0) if kernel.kind == RBF else S  # centred rows lose fewer digits in distances
    norms = np.ascontiguousarray((S.multiply(S) if sparse.issparse(S) else np.square(S)).sum(axis=1)).ravel()

    def convert_to_values(products: np.ndarray, norm: np.ndarray) -> np.ndarray:
        """Convert the inner products of all rows with one row to kernel values, in place. ``norm`` is the squared norm of that
        row.
        """
        convert_to_kernel_values(products[np.newaxis], norm, norms, kernel)
        return np.clip(products, -LARGEST_KERNEL, LARGEST_KERNEL, out=products)

    self_kernels = np.ones_like(norms) if kernel.kind == RBF else convert_to_values(norms.copy(), norms)
    distances, chosen = self_kernels.copy(), []
    for _ in range(min(budget, S.shape[0])):
        cumulated = np.cumsum(distances * weights)
        if not cumulated[-1] > 0.0:
            break
        new = min(int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right")), len(self_kernels) - 1)
        chosen.append(new)
        row = S[[new]].toarray()[0] if sparse.issparse(S) else S[new]
        values = convert_to_values(S @ row, norms[new : new + 1])
        distances = np.clip(self_kernels + self_kernels[new] - 2.0 * values, 0.0, distances)
        distances[new] = 0.0
    return np.array(chosen, np.intp)


class _FittedVectors(NamedTuple):
    """Vectors with their least squares coefficients, and the errors on the rows."""

    vectors: np.ndarray  # float64 [m, d]
    products: np.ndarray  # float64 [m, m]: K'K of the weighted kernel values K, plus the ridge
    coefficients: np.ndarray  # float64 [m, outputs]
    roots: np.ndarray  # [n, 1]: square roots of the row weights, in the type of the kernel values
    cached: list[np.ndarray]  # for each chunk, kernel values times the roots; empty if they need too much memory
    errors: np.ndarray  # [n, outputs]: errors times the roots

    @property
    def total(self) -> float:
        """Half the weighted sum of squared differences between this kernel expansion and its targets on all rows."""
        return 0.5 * float(np.square(self.errors, dtype=np.float64).sum())


class ReducedSet:
    """Fits a kernel expansion to targets by weighted least squares, over its coefficients and its vectors.

    The ``targets`` float64 [n, outputs] belong to the ``rows``, an array or CSR matrix [n, d], which have the ``weights`` float64
    [n], 0 or above.
    """

    def __init__(self, kernel: Kernel, rows: Any, targets: np.ndarray, weights: np.ndarray) -> None:
        # Plain Python numbers: numpy's would convert float32 arrays to float64.
        self.kernel: Kernel = Kernel(int(kernel.kind), float(kernel.gamma), float(kernel.coef0), int(kernel.degree))
        self.rows: Any = rows
        self.targets: np.ndarray = targets
        self.weights: np.ndarray = weights
        self._cached_rows: dict[np.dtype[Any], list[np.ndarray]] = {}

    def solve_coefficients(self, vectors: np.ndarray) -> np.ndarray:
        """Return the coefficients, float64 [m, outputs], with which a kernel expansion of ``vectors`` float64 [m, d] (sums of
        kernel values times coefficients) fits the targets best: weighted least squares with a small ridge.

        O(n m (m + d)), and memory for O(m^2) numbers.
        """
        return self._fit_coefficients(vectors, _RIDGE, np.dtype(np.float64)).coefficients

    def compute_values(self, vectors: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the values of the kernel expansion with these ``vectors`` [m, d] and ``coefficients`` [m, outputs] on all n
        rows, float64 [n, outputs], without an intercept. O(n m d).
        """
        values = np.empty((self.rows.shape[0], coefficients.shape[1]))
        for chunk, _, K in self._iter_chunks(vectors, self._choose_step_dtype(vectors)):
            values[chunk] = K @ coefficients
        return values

    def find_worst_rows(self, vectors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return at most ``count`` rows, float64 [count, d], on which the best kernel expansion of ``vectors`` [m, d] has large
        errors, as further vectors to add. They are drawn at random with the generator ``rng``.

        They are drawn by `choose_vectors`, weighted by their squared errors. From many rows, 10 (m + count) are sampled first:
        O(m^2 (m + d)).
        """
        stride = max(self.rows.shape[0] // (_CANDIDATES_PER_VECTOR * (len(vectors) + count)), 1)
        sample = slice(int(rng.integers(stride)), None, stride)
        part = ReducedSet(self.kernel, self.rows[sample], self.targets[sample], self.weights[sample])
        fit = part._fit_coefficients(vectors, _STEP_RIDGE, part._choose_step_dtype(vectors))
        errors = np.square(fit.errors, dtype=np.float64).sum(axis=1)
        return to_dense_rows(part.rows[choose_vectors(self.kernel, part.rows, errors, count, rng)])

    def move_vectors(self, vectors: np.ndarray, passes: int, is_enough: Callable[[np.ndarray], bool] | None = None) -> np.ndarray:
        """Move the ``vectors`` float64 [m, d] of a kernel expansion to reduce its squared errors on the rows, and return the
        moved vectors. ``passes`` limits the passes over the rows; ``is_enough`` can end the search early.

        The steps are those of Gauss and Newton, damped as by Levenberg and Marquardt, for the problem without the coefficients
        (variable projection). The equations of a step are solved by conjugate gradients, which takes seven passes over the rows.
        The iteration ends when a step gains little, or when ``is_enough`` returns True for the values on the rows. The
        vectors are returned unchanged if the kernel is not Gaussian, or m d is above 1,000,000.

        O(n m d) for each pass, and O(n m^2) for each step; memory for O(m^2 + 10 m d) numbers and 16,000,000 kernel values. The
        references are in `to_budget`.
        """
        if passes == 0 or not self._can_move(vectors):
            return vectors
        fit, damping = self._fit_coefficients(vectors, _STEP_RIDGE, self._choose_step_dtype(vectors)), _FIRST_DAMPING
        for _ in range(math.ceil(passes / (1 + _MAX_CG_STEPS) * (1.0 + _SMALL_SIZE / max(vectors.shape)))):
            if is_enough is not None and is_enough(fit.errors / np.maximum(fit.roots, _TINY) + self.targets):
                break
            step, expected_gain = self._compute_step(fit, damping)
            if not expected_gain > 0.0:
                break
            moved, gain = fit.vectors + step, -math.inf
            if np.abs(moved).max() <= LARGEST_FEATURE:  # otherwise the next step is shorter
                new_fit = self._fit_coefficients(moved, _STEP_RIDGE, fit.roots.dtype)
                gain = fit.total - new_fit.total
            damping *= 0.2 if gain > 0.7 * expected_gain else 1.0 if gain > 0.4 * expected_gain else 4.0
            damping = max(damping, _MIN_DAMPING)
            if gain > 0.0:
                fit = new_fit
                if gain <= _MIN_GAIN * new_fit.total:
                    break
            elif expected_gain <= _MIN_GAIN**2 * fit.total:  # shorter steps would gain less
                break
        return fit.vectors

    def match_largest_output(
        self, vectors: np.ndarray, coefficients: np.ndarray, intercept: np.ndarray, passes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Move the vectors [m, d] and coefficients [m, outputs] of a kernel expansion so that its largest output agrees with that
        of the targets in as many rows as possible, and return both. ``passes`` limits the passes over the rows.

        Targets with kinks, such as votes, cannot be approximated well everywhere by few vectors, but their largest output can.
        Uses L-BFGS on the cross entropy of the probabilities of targets and outputs: the softmax of five times their values.
        Vectors stay where `move_vectors` would not move them. O(n m d) for each pass, and O(n m^2) once; memory as in
        `move_vectors`.
        """
        m, outputs = coefficients.shape
        if passes == 0 or m == 0:
            return vectors, coefficients
        dtype, can_move = self._choose_step_dtype(vectors), self._can_move(vectors)
        # Coordinates with about the same curvature in all directions, estimated by that of the squared error.
        fit = self._fit_coefficients(vectors, _STEP_RIDGE, dtype)._replace(coefficients=coefficients)
        to_coefficients = np.linalg.inv(np.linalg.cholesky(fit.products / self.weights.sum())).T
        scale = np.sqrt(self._compute_curvature(fit) / self.weights.sum()) if can_move else None
        target_probabilities = _compute_softmax(self.targets + intercept)

        def split_point(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Split the flat vector ``point`` of the optimiser's variables into the coefficients [m, outputs] and the vectors [m,
            d] of a kernel expansion, and undo their scaling.
            """
            a = to_coefficients @ point[: m * outputs].reshape(m, outputs)
            if scale is None:
                return a, vectors
            return a, np.clip(point[m * outputs :].reshape(vectors.shape) / scale, -LARGEST_FEATURE, LARGEST_FEATURE)

        def compute_loss(point: np.ndarray) -> tuple[float, np.ndarray]:
            """Return the cross entropy between the target's and the expansion's output probabilities, for the optimiser's
            variables ``point`` (a flat vector), and its gradient of the same length.
            """
            a, Z = split_point(point)
            total, a_gradient, sums = 0.0, np.zeros_like(a), np.zeros((m, Z.shape[1] + 1))
            rounded_a = a.astype(dtype)
            for chunk, X, K in self._iter_chunks(Z, dtype):
                p, weights = _compute_softmax(K @ rounded_a + intercept), self.weights[chunk] / self.weights.sum()
                targets = target_probabilities[chunk]
                total -= float(weights @ (targets * np.log(np.maximum(p, 1e-30))).sum(axis=1))
                slopes = (_SHARPNESS * weights[:, np.newaxis] * (p - targets)).astype(dtype)
                a_gradient += K.T @ slopes
                if scale is not None:
                    sums += _sum_slopes(K, X, rounded_a, slopes)
            gradient = [(to_coefficients.T @ a_gradient).ravel()]
            if scale is not None:
                gradient.append((self._to_vector_gradient(Z, sums) / scale).ravel())
            return total, np.concatenate(gradient)

        start = [np.linalg.solve(to_coefficients, coefficients).ravel()]
        start += [] if scale is None else [(vectors * scale).ravel()]
        options = {"maxiter": passes, "maxfun": 2 * passes, "maxcor": 10, "ftol": 1e-5, "gtol": 0.0}
        result = optimize.minimize(compute_loss, np.concatenate(start), jac=True, method="L-BFGS-B", options=options)
        a, Z = split_point(result.x)
        return (Z, a) if np.isfinite(result.x).all() else (vectors, coefficients)

    def _can_move(self, vectors: np.ndarray) -> bool:
        """Return whether `move_vectors` can move these vectors: there are some, the kernel is Gaussian, and they have at most
        1,000,000 values.
        """
        return len(vectors) > 0 and self.kernel.kind == RBF and vectors.size <= _MAX_MOVED_VALUES

    def _choose_step_dtype(self, vectors: np.ndarray) -> np.dtype[Any]:
        """Return the type of kernel values for steps that move the vectors: float32 if that is accurate enough for the kernel's
        gamma and these vectors, otherwise float64.
        """
        norm = float(np.square(vectors - self._centre).sum(axis=1).max())
        return np.dtype(np.float32 if self.kernel.gamma * norm < _MAX_FLOAT32_EXPONENT else np.float64)

    @cached_property
    def _centre(self) -> np.ndarray:
        """The mean of the rows, float64 [d], which is subtracted from rows and vectors for accuracy; zeros unless the kernel is
        Gaussian.
        """
        rows = self.rows
        return np.asarray(rows.mean(axis=0, dtype=np.float64)).ravel() if self.kernel.kind == RBF else np.zeros(rows.shape[1])

    def _iter_row_chunks(self, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        """Yield all rows in chunks, arrays [rows, d + 2] of the type ``dtype``: the features minus their means, a column of ones,
        and a column of squared norms. The chunks of small data are cached.
        """
        (n, d), cached = self.rows.shape, self._cached_rows.get(dtype)
        if cached is not None:
            yield from cached
            return
        chunks: list[np.ndarray] = []
        size = max(min(_CHUNK_ROWS, _CHUNK_VALUES // max(d, 1)), 1)
        for start in range(0, n, size):
            rows = self.rows[start : start + size]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            X = np.ones((len(rows), d + 2), dtype)
            np.subtract(rows, self._centre.astype(rows.dtype), out=X[:, :d], casting="same_kind")
            X[:, -1] = np.square(X[:, :d]).sum(axis=1)
            if n * d <= _MAX_CACHED_VALUES:
                chunks.append(X)
            yield X
        if chunks:
            self._cached_rows[dtype] = chunks

    def _iter_chunks(
        self, vectors: np.ndarray, dtype: np.dtype[Any], cached: list[np.ndarray] | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield three items for each chunk of rows: its slice, the rows minus their mean with a last column of ones, and the
        rows' kernel values with ``vectors``. The kernel values are taken from the list ``cached`` if it is not empty. ``dtype``
        is the type of all arrays.
        """
        d, start = self.rows.shape[1], 0
        S = (vectors - self._centre).astype(dtype)
        if self.kernel.kind == RBF:
            S = np.column_stack([-2.0 * S, np.square(S).sum(axis=1), np.ones(len(S), dtype)])
        for number, X in enumerate(self._iter_row_chunks(dtype)):
            if cached:
                K = cached[number]
            elif self.kernel.kind == RBF:
                distances = X @ S.T
                np.maximum(distances, 0.0, out=distances)  # rounding may make them negative
                K = np.empty_like(distances)
                compute_exponentials(distances.ravel(), self.kernel.gamma, K.size, K.reshape(-1))
            else:
                K = compute_kernel_matrix(*self.kernel, X[:, :d], S)
            yield slice(start, start + len(X)), X[:, :-1], K
            start += len(X)

    def _iter_weighted_chunks(self, fit: _FittedVectors) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield three items for each chunk of rows: its slice, the rows minus their mean with a last column of ones, and the
        rows' kernel values with the vectors of ``fit``, times the square roots of the row weights.
        """
        for chunk, X, K in self._iter_chunks(fit.vectors, fit.roots.dtype, fit.cached):
            if not fit.cached:
                K *= fit.roots[chunk]
            yield chunk, X, K

    def _fit_coefficients(self, vectors: np.ndarray, ridge: float, dtype: np.dtype[Any]) -> _FittedVectors:
        """Fit the coefficients of a kernel expansion of ``vectors`` [m, d] to the targets by weighted least squares, with kernel
        values of the type ``dtype`` and a relative ``ridge``. Return them with the errors.
        """
        m, roots = len(vectors), np.sqrt(self.weights)[:, np.newaxis].astype(dtype)
        targets, products, c = roots * self.targets.astype(dtype), np.zeros((m, m)), np.zeros((m, self.targets.shape[1]))
        cached: list[np.ndarray] = []
        for chunk, _, K in self._iter_chunks(vectors, dtype):
            K *= roots[chunk]
            products += K.T @ K  # numpy computes one triangle only
            c += K.T @ targets[chunk]
            if m * len(roots) <= _MAX_CACHED_VALUES:
                cached.append(K)
        products[np.diag_indices(m)] += max(ridge * np.trace(products) / max(m, 1), _TINY)
        fit = _FittedVectors(vectors, products, np.linalg.solve(products, c), roots, cached, -targets)
        for chunk, _, K in self._iter_weighted_chunks(fit):
            fit.errors[chunk] += K @ fit.coefficients.astype(dtype)
        return fit

    @np.errstate(over="ignore", invalid="ignore")  # if no row is near a vector; then the expected gain is not positive
    def _compute_step(self, fit: _FittedVectors, damping: float) -> tuple[np.ndarray, float]:
        """Return a step that moves the vectors of ``fit`` to lower squared errors, float64 [m, d] (Gauss-Newton with the given
        ``damping``, solved by conjugate gradients), and the decrease that it should achieve.
        """
        dtype, factors = fit.roots.dtype, linalg.lu_factor(fit.products, check_finite=False)
        a, Z = fit.coefficients.astype(dtype), fit.vectors - self._centre

        def multiply_hessian(step: np.ndarray) -> np.ndarray:
            """Return the product of the Gauss-Newton matrix and a ``step`` of the vectors, [m, d]."""
            V = 2.0 * self.kernel.gamma * np.column_stack([step, -(Z * step).sum(axis=1)]).astype(dtype)
            changes, a_gradient = np.empty_like(fit.errors), np.zeros(a.shape)
            for chunk, X, K in self._iter_weighted_chunks(fit):
                changes[chunk] = np.einsum("ij,ij->i", K @ (a * V), X)[:, np.newaxis] if a.shape[1] == 1 else (X @ V.T * K) @ a
                a_gradient += K.T @ changes[chunk]
            return self._compute_gradient(fit, changes, linalg.lu_solve(factors, a_gradient, check_finite=False))

        curvature, gradient = self._compute_curvature(fit), self._compute_gradient(fit, fit.errors, np.zeros(a.shape))
        step, residual, direction, size = np.zeros_like(Z), -gradient, np.zeros_like(Z), np.inf
        tolerance = _CG_TOLERANCE * float((gradient * gradient / curvature).sum())
        for _ in range(_MAX_CG_STEPS):
            previous_size, size = size, float((residual * residual / curvature).sum())
            if size <= tolerance:
                break
            direction = residual / curvature + size / previous_size * direction
            products = multiply_hessian(direction) + damping * curvature * direction
            direction_curvature = float((products * direction).sum())
            if not direction_curvature > 0.0:  # because of rounding errors
                break
            step += size / direction_curvature * direction
            residual -= size / direction_curvature * products
        return step, 0.5 * float((step * (damping * curvature * step - gradient)).sum())

    def _compute_gradient(self, fit: _FittedVectors, errors: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the gradient of half the sum of squared ``errors`` [n, outputs] with respect to the vectors of ``fit``, float64
        [m, d]. Before, the values of the expansion with ``coefficients`` instead of its own are subtracted from the errors.

        The expansion has the same vectors, and its own ``coefficients``.
        """
        a, coefficients = fit.coefficients.astype(errors.dtype), coefficients.astype(errors.dtype)
        sums = np.zeros((len(a), fit.vectors.shape[1] + 1))
        for chunk, X, K in self._iter_weighted_chunks(fit):
            sums += _sum_slopes(K, X, a, errors[chunk] - K @ coefficients)
        return self._to_vector_gradient(fit.vectors, sums)

    def _to_vector_gradient(self, vectors: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return the gradient of the squared error with respect to the ``vectors`` [m, d] of a kernel expansion. ``sums`` [m, d +
        1] are sums over the rows of slope times features for each vector, with the sum of slopes in the last column.
        """
        return np.asarray(2.0 * self.kernel.gamma * (sums[:, :-1] - (vectors - self._centre) * sums[:, -1:]))

    def _compute_curvature(self, fit: _FittedVectors) -> np.ndarray:
        """Return an estimate of the curvature of the squared error with respect to each vector of ``fit``, float64 [m, 1], always
        above 0. It scales the steps.

        The mean is taken over the features, on the diagonal of the Gauss-Newton matrix.
        """
        m, d = fit.vectors.shape
        Z, sums, squares = fit.vectors - self._centre, np.zeros((m, d + 1)), np.zeros(m)
        for _, X, K in self._iter_weighted_chunks(fit):
            K = np.square(K)
            sums += K.T @ X
            squares += np.square(X[:, :-1]).sum(axis=1) @ K
        squares += np.square(Z).sum(axis=1) * sums[:, -1] - 2.0 * (Z * sums[:, :-1]).sum(axis=1)
        curvature = 4.0 * self.kernel.gamma**2 * np.maximum(squares, 0.0) * np.square(fit.coefficients).sum(axis=1) / d
        return np.asarray(curvature + _CURVATURE_SHARE * curvature.mean() + _TINY)[:, np.newaxis]


def _sum_slopes(K: np.ndarray, X: np.ndarray, a: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return for each of m vectors the sum over all rows of slope times row, as an array [m, d + 1]. A slope is the kernel value
    in K [n, m] times the row's ``errors`` [n, outputs] times the vector's coefficients ``a`` [m, outputs]; X [n, d + 1] are the
    rows.
    """
    return np.asarray(a * (K.T @ (errors * X)) if a.shape[1] == 1 else (errors @ a.T * K).T @ X)


def _compute_softmax(values: np.ndarray) -> np.ndarray:
    """Return the softmax of each row of ``values`` [n, outputs] times a constant, which brings the probabilities nearer to 0 and
    1.
    """
    p = np.exp(_SHARPNESS * (values - values.max(axis=1, keepdims=True)))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


_CANDIDATES = 10  # random rows; the nearest one is the partner of a row


def interpolate_rows(X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``n`` new rows [n, d], each a random point between a random row of X and one of its near neighbours. O(10 n d).

    One half are on the line between the two rows. In the other half, each feature is copied from one of the two rows, so that 0/1
    features stay 0 or 1.
    """
    first, candidates = rng.integers(len(X), size=n), rng.integers(len(X), size=(_CANDIDATES, n))
    smallest, second = np.full(n, np.inf), candidates[0].copy()
    for candidate in candidates:
        squares = np.square(X[candidate] - X[first]).sum(axis=1)
        is_nearer = (squares > 0.0) & (squares < smallest)
        smallest[is_nearer], second[is_nearer] = squares[is_nearer], candidate[is_nearer]
    share = rng.random((n, 1)).astype(X.dtype)
    rows = X[first] + share * (X[second] - X[first])
    crossed = np.flatnonzero(rng.random(n) < 0.5)
    rows[crossed] = np.where(rng.random((len(crossed), X.shape[1])) < 0.5, X[first[crossed]], X[second[crossed]])
    return rows
