"""Kernel rows: the kernel values between one row and every support vector of a store.

They are computed by compiled functions of plain arrays. The floating-point policy is here, too. `FAST` lets the compiler
reorder sums, which turns a loop along the support vectors into SIMD code. It never assumes that values are finite: NaN and
infinity keep their meaning. Exponentials are compiled without reordering.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from streamsvm.core.checks import check_number, check_one_of
from streamsvm.core.compiling.functions import compiled, overload

FAST = {"reassoc", "contract", "arcp", "nsz"}

RBF, LINEAR, POLY, FOURIER, SIGMOID, PRECOMPUTED = 0, 1, 2, 3, 4, 5
#: Kernel names as in scikit-learn. rbf: exp(-gamma |x-s|^2); linear: x.s; poly: (gamma x.s + coef0)^degree.
KERNELS = {"rbf": RBF, "linear": LINEAR, "poly": POLY}
#: Kernels of exact machines: also sigmoid, tanh(gamma x.s + coef0), and precomputed kernel values in place of rows.
MACHINE_KERNELS = {**KERNELS, "sigmoid": SIGMOID, "precomputed": PRECOMPUTED}


class Kernel(NamedTuple):
    """A kernel and its parameters for compiled functions; ``kind`` is a value of `MACHINE_KERNELS`."""

    kind: int
    gamma: float
    coef0: float
    degree: int


def make_kernel(kernel: object, gamma: float, degree: int, coef0: float) -> Kernel:
    """Create a `Kernel` from its name (such as ``"rbf"``) and parameters, after checking them. Raises ValueError with the name of
    an invalid parameter.
    """
    check_one_of("kernel", kernel, KERNELS)
    check_number("gamma", gamma, 0.0, inclusive=True)
    check_number("degree", degree, 1, inclusive=True, high=100, integer=True)
    check_number("coef0", coef0, 0.0, inclusive=True)
    return Kernel(KERNELS[str(kernel)], float(gamma), float(coef0), int(degree))


def check_learner_kernel(kernel: str, gamma: object, coef0: object) -> None:
    """Check the kernel parameters of an online learner, whose gamma is a number or ``"scale"``. Raises ValueError with the name
    of an invalid parameter.
    """
    if isinstance(gamma, str):
        if gamma != "scale":
            raise ValueError(f"gamma must be 'scale' or a number above 0, not {gamma!r}")
    else:
        check_number("gamma", gamma, 0.0, high=LARGEST_GAMMA)
    # With coef0 < 0, the polynomial is not positive semidefinite.
    check_number("coef0", coef0, 0.0 if kernel == "poly" else -1e6, inclusive=True, high=1e6)


#: Upper limit of squared norms of rows, so that squared distances are finite in float32.
LARGEST_NORM = 1e36
#: Square root of `LARGEST_NORM`.
LARGEST_LENGTH = 1e18
#: Upper limit of gamma.
LARGEST_GAMMA = 1e15
#: Upper limit of absolute kernel values: batch solvers refuse larger ones, online learners clip them.
LARGEST_KERNEL = 1e30
#: Smallest k(x, x) that can be divided by, because kernel values are float32.
LEAST_SELF_KERNEL = 2.0**-126
#: Upper limit of features in batch fits, so that sums of many squares are finite in float32.
LARGEST_FEATURE = 1e15

_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_EXP2_MIN = np.float32(-126.0)
_EXP2 = Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
_B0, _B1, _B2, _B3, _B4, _B5, _B6 = map(np.float32, _EXP2.convert(kind=Polynomial).coef)

_EXP2_MIN_64, _TO_INTEGER = -1022.0, 1.5 * 2.0**52
_D0, _D1, _D2, _D3, _D4, _D5, _D6, _D7, _D8, _D9, _D10 = map(
    float, Chebyshev.interpolate(np.exp2, 10, domain=[-0.5, 0.5]).convert(kind=Polynomial).coef
)

LOG2E = 1.4426950408889634

# cos(2 pi t) and sin(2 pi t) for |t| <= 1/2: Chebyshev interpolation by polynomials in t^2 (times t for the sine).
_COS = Chebyshev.interpolate(lambda u: np.cos(2.0 * np.pi * np.sqrt(u)), 7, domain=[0.0, 0.25])
_SIN = Chebyshev.interpolate(lambda u: np.sin(2.0 * np.pi * np.sqrt(u)) / np.sqrt(u), 7, domain=[1e-30, 0.25])
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = map(np.float32, _COS.convert(kind=Polynomial).coef)
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7 = map(np.float32, _SIN.convert(kind=Polynomial).coef)

# The expansion |s|^2 + sum x(x - 2s) has a rounding error of about 2^-23 times the largest squared norm. Up to this limit of
# gamma times this norm, the exponent of a Gaussian kernel is exact to 1e-4; above it, distances are computed from differences.
_EXPANSION_LIMIT = 512.0


@compiled(inline=True)
def exp2(x: np.float32) -> np.float32:
    """Return 2^x in float32 for ``x`` from -126 up to about 0 (smaller ones count as -126), by a polynomial that the compiler can
    vectorise in a loop.

    The relative error is at most 2e-7.
    """
    z = _EXP2_MIN if x < _EXP2_MIN else x
    k = np.floor(z + _HALF)
    r = z - k
    p = (((((_B6 * r + _B5) * r + _B4) * r + _B3) * r + _B2) * r + _B1) * r + _B0
    return np.int32(np.float32(p).view(np.int32) + (np.int32(k) << np.int32(23))).view(np.float32)


def compute_exponentials(values: np.ndarray, gamma: float, n: int, out: np.ndarray) -> None:
    """Compute exp(-gamma * values[:n]) into ``out[:n]``, in float32 or float64 as ``values`` are. The values must be finite and
    not negative. It is a fast approximation that the compiler can vectorise.
    """
    if values.dtype == np.float32:
        exp2f(values, np.float32(-gamma * LOG2E), n, out)
    else:
        exp2d(values, -gamma * LOG2E, n, out)


@overload(compute_exponentials)
def _negative_exponentials(values, gamma, n, out):  # type: ignore[no-untyped-def] # noqa: ARG001
    if str(values.dtype) == "float32":
        return lambda values, gamma, n, out: exp2f(values, np.float32(-gamma * LOG2E), n, out)
    return lambda values, gamma, n, out: exp2d(values, -gamma * LOG2E, n, out)


@compiled(nogil=True, fastmath={"contract"})
def exp2f(values: np.ndarray, factor: np.float32, n: int, out: np.ndarray) -> None:
    """Compute 2^(factor * values[:n]) into ``out[:n]`` in float32; results below 2^-126 become 0. It is a polynomial that the
    compiler can vectorise.

    Exported models compute 0, too, so that rows far from all support vectors get the same label everywhere.
    """
    for i in range(n):
        x = factor * values[i]
        y = exp2(x)
        out[i] = np.float32(0.0) if x < _EXP2_MIN else y


@compiled(nogil=True, fastmath={"contract"})
def exp2d(values: np.ndarray, factor: float, n: int, out: np.ndarray) -> None:
    """Compute 2^(factor * values[:n]) into ``out[:n]`` in float64, for exponents below 1023; results are at least 2^-1022. It is
    a polynomial that the compiler can vectorise.

    The relative error is at most 2e-15. ``values`` and ``out`` must not overlap, so that the loop is vectorised.
    """
    for i in range(n):
        x = factor * values[i]
        z = x if x > _EXP2_MIN_64 else _EXP2_MIN_64
        t = z + _TO_INTEGER  # its last bits are the nearest integer
        r = z - (t - _TO_INTEGER)
        p = ((((_D10 * r + _D9) * r + _D8) * r + _D7) * r + _D6) * r + _D5
        p = ((((p * r + _D4) * r + _D3) * r + _D2) * r + _D1) * r + _D0
        out[i] = np.int64(np.float64(p).view(np.int64) + (np.float64(t).view(np.int64) << np.int64(52))).view(np.float64)


@compiled(fastmath={"contract"})
def compute_cos_and_sin(values: np.ndarray, factor: np.float32, n: int, cos: np.ndarray) -> None:
    """Compute cos(2 pi factor v) and sin(2 pi factor v) of each v in ``values[:n]``, in float32. The cosines are written into
    ``cos[:n]``, and the sines replace the values.

    The absolute error is at most 5e-7, plus that of the product, 2 pi 2^-24 times its absolute value.
    """
    for i in range(n):
        t = factor * values[i]
        t -= np.floor(t + _HALF)
        u = t * t
        cos[i] = ((((((_C7 * u + _C6) * u + _C5) * u + _C4) * u + _C3) * u + _C2) * u + _C1) * u + _C0
        values[i] = t * (((((((_S7 * u + _S6) * u + _S5) * u + _S4) * u + _S3) * u + _S2) * u + _S1) * u + _S0)


@compiled(fastmath=FAST)
def add_squared_differences(vectors: np.ndarray, row: np.ndarray, used: int, n: int, out: np.ndarray) -> None:
    """Add the squared Euclidean distance between ``row`` and vector i to ``out[i]``, for the first n ``vectors``. Only the first
    ``used`` features count. ``vectors`` is float32 [features, n or more], so that each vector is a column.
    """
    # Four features in one pass, so that the sums are loaded and stored a quarter as often.
    j = 0
    while j + 4 <= used:
        x0, x1, x2, x3 = row[j], row[j + 1], row[j + 2], row[j + 3]
        for i in range(n):
            d0, d1 = x0 - vectors[j, i], x1 - vectors[j + 1, i]
            d2, d3 = x2 - vectors[j + 2, i], x3 - vectors[j + 3, i]
            out[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
        j += 4
    while j < used:
        x0 = row[j]
        for i in range(n):
            d0 = x0 - vectors[j, i]
            out[i] += d0 * d0
        j += 1


@compiled(fastmath=FAST)
def _add_products(
    vectors: np.ndarray, row: np.ndarray, active: np.ndarray, n_active: int, factor: np.float32, n: int, out: np.ndarray
) -> None:
    """Add ``factor`` times the dot product of ``row`` and vector i to ``out[i]``, for the first n ``vectors``. Only the
    ``n_active`` features whose indices are listed in ``active`` are read: the non-zero ones of the row. ``vectors`` is float32
    [features, n or more], so that each vector is a column.
    """
    a = 0  # four features in one pass, as above
    while a + 4 <= n_active:
        j0, j1, j2, j3 = active[a], active[a + 1], active[a + 2], active[a + 3]
        x0, x1, x2, x3 = factor * row[j0], factor * row[j1], factor * row[j2], factor * row[j3]
        for i in range(n):
            out[i] += (x0 * vectors[j0, i] + x1 * vectors[j1, i]) + (x2 * vectors[j2, i] + x3 * vectors[j3, i])
        a += 4
    while a < n_active:
        j0 = active[a]
        x0 = factor * row[j0]
        for i in range(n):
            out[i] += x0 * vectors[j0, i]
        a += 1


@compiled(noinline=True)
def compute_kernel_row(
    kernel: int,
    gamma: float,
    coef0: float,
    degree: int,
    vectors: np.ndarray,
    norms: np.ndarray,
    largest_norm: float,
    row: np.ndarray,
    row_norm: float,
    active: np.ndarray,
    n_active: int,
    used: int,
    n: int,
    distances: np.ndarray,
    out: np.ndarray,
) -> None:
    """Compute the kernel values between ``row`` and the first ``n`` of a model's support ``vectors`` into ``out``, float32 [n or
    more]. The constant ``kernel`` selects the kernel, with the parameters ``gamma``, ``coef0`` and ``degree``. Squared norms and
    the row's non-zero features are arguments, since callers have them; ``distances`` is scratch memory.

    This costs O(n * n_active). The distances of the Gaussian kernel are computed by expansion over the non-zero features, or far
    from the origin, where this would cancel, from differences in O(n * used). Values of the polynomial kernel are clipped to
    `LARGEST_KERNEL`.

    Support vectors are ``vectors``, feature-major, float32 [used or more, n or more] (frequencies for `FOURIER`), their squared
    ``norms``, float32 [n or more], and ``largest_norm``. The row is ``row``, float32 [used or more], its squared norm
    ``row_norm`` and the ``active`` columns of its non-zero features, int64 [n_active or more]. ``distances``, float32 [n or
    more], receives squared distances for `RBF`, and for `FOURIER` the sines of sqrt(2 gamma) times the products of frequencies
    and row, whose cosines are the kernel values; for other kernels it is scratch memory.
    """
    if kernel == RBF:
        if gamma * (largest_norm + row_norm) < _EXPANSION_LIMIT:
            x_norm = np.float32(row_norm)
            for i in range(n):
                distances[i] = norms[i] + x_norm
            _add_products(vectors, row, active, n_active, np.float32(-2.0), n, distances)
            for i in range(n):
                distances[i] = max(distances[i], np.float32(0.0))
        else:
            for i in range(n):
                distances[i] = np.float32(0.0)
            add_squared_differences(vectors, row, used, n, distances)
        exp2f(distances, np.float32(-gamma * LOG2E), n, out)
        return
    if kernel == FOURIER:
        for i in range(n):
            distances[i] = np.float32(0.0)
        _add_products(vectors, row, active, n_active, _ONE, n, distances)
        compute_cos_and_sin(distances, np.float32(math.sqrt(2.0 * gamma) / (2.0 * math.pi)), n, out)
        return
    for i in range(n):
        out[i] = np.float32(0.0)
    _add_products(vectors, row, active, n_active, _ONE, n, out)
    if kernel == POLY:
        for i in range(n):
            out[i] = np.float32(_compute_polynomial(gamma, coef0, degree, np.float64(out[i])))


@compiled(inline=True)
def compare_with_vectors(v: Any, row: int, n_active: int, norm: float, distances: np.ndarray, out: np.ndarray) -> None:
    """Compute the kernel values between one row in a model's memory and all support vectors of the model into ``out``, float32.
    ``v`` gives access to the arrays in this memory, and ``row`` is the row's index there. ``n_active`` is its number of non-zero
    features, and ``norm`` its squared norm; ``distances`` is scratch memory.

    This calls `compute_kernel_row`. ``n_active`` and ``norm`` are the results of `scan_row` for the row.
    """
    h = v.header[0]
    compute_kernel_row(
        h["kernel"],
        h["gamma"],
        h["coef0"],
        h["degree"],
        v.vectors,
        v.norms,
        h["largest_norm"],
        v.rows[row],
        norm,
        v.active[row],
        n_active,
        h["used"],
        h["n_support"],
        distances,
        out,
    )


@compiled(inline=True)
def _compute_polynomial(gamma: float, coef0: float, degree: int, product: float) -> float:
    """Return the polynomial kernel (gamma * product + coef0)^degree for a dot ``product`` of two rows, clipped to [-1e30, 1e30],
    so that all numbers of a model stay finite.
    """
    return min(max((gamma * product + coef0) ** degree, -LARGEST_KERNEL), LARGEST_KERNEL)


def compute_kernel_matrix(kernel: int, gamma: float, coef0: float, degree: int, X: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Return the matrix of kernel values between the rows of X, float64 [n, d], and of S, float64 [m, d], as float64 [n, m].
    ``kernel``, ``gamma``, ``coef0`` and ``degree`` define the kernel. O(n m d).
    """
    if kernel == RBF:
        centre = S.mean(axis=0) if len(S) else 0.0  # rounding errors of distances are smallest near the mean
        X, S = X - centre, S - centre
        values = X @ (2.0 * gamma * S.T)  # the rest is in place, because memory bandwidth limits the speed
        values -= gamma * np.square(X).sum(axis=1)[:, None]
        values -= gamma * np.square(S).sum(axis=1)
        return np.exp(np.minimum(values, 0.0, out=values), out=values)
    products = X @ S.T
    if kernel == LINEAR:
        return products
    with np.errstate(over="ignore"):
        return np.clip((gamma * products + coef0) ** int(degree), -LARGEST_KERNEL, LARGEST_KERNEL)


@compiled(nogil=True, inline=True)
def compute_kernel_value(kernel: Kernel, product: float) -> float:
    """Return the kernel value of two rows from their dot ``product``, for all kernels other than the Gaussian one."""
    if kernel.kind == LINEAR:
        return product
    if kernel.kind == SIGMOID:
        return math.tanh(kernel.gamma * product + kernel.coef0)
    return (kernel.gamma * product + kernel.coef0) ** kernel.degree


@compiled(nogil=True, fastmath=FAST)
def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Return the dot product, in float64, of vector ``a`` with the first entries of ``b``, which may be longer."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compiled(nogil=True)
def convert_to_kernel_values(products: np.ndarray, row_squares: np.ndarray, column_squares: np.ndarray, kernel: Kernel) -> None:
    """Convert dot products to values of ``kernel``, in place. ``products`` [n, m] contains the dot product of each pair of n rows
    and m other rows; ``row_squares`` [n] and ``column_squares`` [m] are the squared norms of the two sets.

    Only the Gaussian kernel needs the squared norms.
    """
    n, m = products.shape
    distances = np.empty(m, products.dtype)
    for i in range(n):
        for j in range(m):
            if kernel.kind == RBF:
                distances[j] = max(row_squares[i] + column_squares[j] - 2.0 * products[i, j], 0.0)
            else:
                products[i, j] = compute_kernel_value(kernel, np.float64(products[i, j]))
        if kernel.kind == RBF:
            compute_exponentials(distances, kernel.gamma, m, products[i])


@compiled(inline=True)
def compute_self_kernel(kernel: int, gamma: float, coef0: float, degree: int, norm: float) -> float:
    """Return the kernel value k(x, x) of a row x with itself, from its squared norm ``norm``. ``kernel``, ``gamma``, ``coef0``
    and ``degree`` define the kernel.
    """
    if kernel == RBF:
        return 1.0
    if kernel == LINEAR:
        return norm
    return _compute_polynomial(gamma, coef0, degree, norm)
