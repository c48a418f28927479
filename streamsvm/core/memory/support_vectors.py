"""The memory of a budgeted kernel machine: one block with its support vectors, their coefficients and the learner's state.

The layout of a block is fixed when it is created. So a snapshot is one copy, and a compiled function opens the whole model with
`views`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, LARGEST_WEIGHT
from streamsvm.core.kernels import FOURIER, LARGEST_GAMMA, LARGEST_LENGTH, LARGEST_NORM, LINEAR, POLY, RBF
from streamsvm.core.memory.block import LARGEST, LINE, Array, Layout, VectorStore, check_size, round_up_to_lines
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, check_moments

#: Header fields in addition to the sizes. Like these, the budget is fixed at construction.
HEADER = np.dtype(
    [
        ("budget", "i8"),  # B: maximum number of support vectors after a row was learned
        ("n_support", "i8"),  # number of support vectors
        ("used", "i8"),  # columns in use
        ("n_outputs", "i8"),  # rows of coefficients in use; the others are zeros
        ("next_stamp", "i8"),  # stamp of the next support vector
        ("kernel", "i8"),
        ("degree", "i8"),
        ("gamma", "f8"),
        ("coef0", "f8"),
        ("largest_norm", "f8"),  # largest squared norm of all present and past support vectors
    ]
)

#: Cached values, which are not saved.
CACHE = np.dtype(
    [
        ("valid", "i8"),  # whether ``kernel_rows[0]`` belongs to ``rows[2]``
        ("scored", "i8"),  # whether ``scores`` belong to the row that is learned next, after the predictions of an ensemble
        ("event", "u8"),  # address of the maintenance strategy's event; 0 without one
        ("options", "u8", 2),  # options of the strategy
    ]
)

_MAX_STAMP = 2**61
_MAX_DEGREE = 100
ROUNDING = 1.001  # tolerance factor of squared norms, because they are float32
_UNDERFLOW = 1e-37  # squared norms below this may be inexact


class Views(NamedTuple):
    """The arrays of a block; the header contains their sizes."""

    header: Annotated[np.ndarray, Array(HEADER)]
    norms: Annotated[np.ndarray, Array(np.float32, ("stride",), 0.0, LARGEST_NORM * ROUNDING)]
    """Squared norms of the support vectors."""
    stamps: Annotated[np.ndarray, Array(np.int64, ("stride",), 0, _MAX_STAMP)]
    """Insertion numbers of the support vectors, which break ties and tell the oldest."""
    weights: Annotated[np.ndarray, Array(np.float32, ("stride",), 0.0, LARGEST_FLOAT32)]
    """Total weight of the rows that were merged into each support vector."""
    coefficients: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    biases: Annotated[np.ndarray, Array(np.float64, ("outputs",))]
    vectors: Annotated[np.ndarray, Array(np.float32, ("columns", "stride"), -LARGEST_LENGTH, LARGEST_LENGTH)]
    """The support vectors, feature-major: the values of a feature are contiguous."""
    means: Annotated[np.ndarray, Array(np.float64, ("columns",))]
    """Mean of each feature over the first rows, from which gamma="scale" is computed."""
    gram: Annotated[np.ndarray, Array(np.float64, ("gram", "gram"))]
    """Gram matrix of the support vectors, or a matrix that a rule derives from it."""
    window: Annotated[np.ndarray, Array(np.float64, ("window", "columns"), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """The last rows, before scaling."""
    window_targets: Annotated[np.ndarray, Array(np.float64, ("window",))]
    window_weights: Annotated[np.ndarray, Array(np.float64, ("window",), 0.0, LARGEST_WEIGHT)]
    window_stamps: Annotated[np.ndarray, Array(np.int64, ("window",), -1, _MAX_STAMP)]
    """Stamp of the support vector that a row became, which may have been merged since; -1 for other rows."""
    moments: Annotated[np.ndarray, Array(np.float64, ("scaled", N_MOMENTS))]
    """Moments of each feature; see `streamsvm.core.memory.moments`."""
    first: Annotated[np.ndarray, Array(np.float64, ("scaled", N_FIRST), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    location: Annotated[np.ndarray, Array(np.float64, ("scaled",))]
    spread: Annotated[np.ndarray, Array(np.float64, ("scaled",), 0.0)]
    """The scale of the scaled rows and of support vectors; 0 for a constant feature."""
    unscaled: Annotated[np.ndarray, Array(np.float64, ("scaled",), saved=False)]
    """The current row before scaling; ``rows[0]`` is the scaled one."""
    ratio: Annotated[np.ndarray, Array(np.float64, ("scaled",), saved=False)]
    shift: Annotated[np.ndarray, Array(np.float64, ("scaled",), saved=False)]
    """Factors and offsets from the old to the new scale, when support vectors are rescaled."""
    rows: Annotated[np.ndarray, Array(np.float32, (3, "columns"), saved=False)]
    """The current row, a copy of a support vector, and the row to which ``kernel_rows[0]`` belongs."""
    kernel_rows: Annotated[np.ndarray, Array(np.float32, (4, "stride"), saved=False)]
    """Kernel values and squared distances of the current row, then those of a support vector."""
    degradations: Annotated[np.ndarray, Array(np.float32, ("stride",), saved=False)]
    """Weight degradation of each candidate for a merge."""
    scores: Annotated[np.ndarray, Array(np.float64, ("outputs",), saved=False)]
    """Decision values of the current row."""
    active: Annotated[np.ndarray, Array(np.int64, (2, "columns"), saved=False)]
    """Columns of the non-zero features of ``rows[0]`` and ``rows[1]``."""
    cache: Annotated[np.ndarray, Array(CACHE, saved=False)]


_LAYOUT = Layout(Views, in_lines=("stride", "gram"))
#: Minimum and maximum of header fields that all kernel models have.
HEADER_RANGES = {
    "gamma": (float(np.nextafter(0.0, 1.0)), LARGEST_GAMMA),
    "coef0": (-LARGEST, LARGEST),
    "largest_norm": (0.0, LARGEST_NORM * ROUNDING),
}

#: Opens a block (uint8 [nbytes]) as `Views` in Python and in compiled code, without a copy. Every function with a block as its
#: argument opens it for itself.
views: Callable[[np.ndarray], Views] = _LAYOUT.views


def round_up_to_odd_lines(n: int) -> int:
    """Return ``n``, a number of 4-byte values, rounded up so that they fill an odd number of cache lines of 64 bytes."""
    # With an even number, the features of one support vector would share few of the cache's sets and evict each other:
    # appending a vector took ten times as long.
    n = round_up_to_lines(n)
    return n if 4 * n // LINE % 2 else n + LINE // 4


def _array_sizes(
    columns: int, budget: int, outputs: int, gram: bool = False, window: int = 0, scaled: bool = False
) -> dict[str, int]:
    """Return the dimensions of the arrays in a kernel machine's memory, as a dict of name to length. ``outputs`` is the number
    of rows of coefficients. Optional arrays: a Gram matrix (``gram``), the last ``window`` rows, and the means and deviations of
    features that are standardised (``scaled``).
    """
    stride = round_up_to_odd_lines(int(budget) + 1)  # slots of support vectors: one more than the budget
    sizes = {"budget": budget, "outputs": outputs, "stride": stride, "gram": stride if gram else 0, "window": window}
    return {**{name: int(size) for name, size in sizes.items()}, "scaled": columns if scaled else 0}


class SupportVectorStore(VectorStore[Views]):
    """The store of a kernel machine, with slots for ``budget`` + 1 support vectors.

    ``outputs`` is the number of rows of coefficients, at least 1, which share the vectors. The store has optional room for a
    ``gram`` matrix of the support vectors, for a ``window`` of the last rows, and for the scale of features (``scaled``).
    ``within`` and ``columns`` are as in `Store`. Raises ValueError if a size is not a positive integer, or memory is exhausted.

    It has ``424 + 36 S + 8 K S + 4 D S + 36 D + 128 ceil(K / 8)`` bytes with S = budget + 1 rounded up to an odd multiple of 16,
    D columns, and K outputs; ``8 S^2`` more with a Gram matrix; ``8 D R + 24 R`` more with a window of R rows, R rounded up to a
    multiple of 8 in the second term; ``376 D`` more with the scale of features. With less than 16 columns, alignment to cache
    lines can add up to 400.

    >>> store = SupportVectorStore(budget=100, max_features=20)
    >>> store.n_support, store.nbytes, store.vectors.shape
    (0, 20968, (0, 0))
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(_array_sizes)

    def __init__(
        self,
        budget: int,
        max_features: int,
        outputs: int = 1,
        gram: bool = False,
        window: int = 0,
        within: np.ndarray | None = None,
        scaled: bool = False,
        columns: int | None = None,
    ) -> None:
        sizes = {"budget": budget, "max_features": max_features, "outputs": outputs, "window": window}
        for name, size in sizes.items():
            check_size(name, size, 0 if name == "window" else 1)
        shown_parameters = ", ".join(f"{name}={size}" for name, size in sizes.items() if size)
        shown_parameters += " and a Gram matrix (budget squared)" if gram else ""
        parameters = {"budget": budget, "outputs": outputs, "gram": gram, "window": window, "scaled": scaled}
        super().__init__(max_features, shown_parameters, within, columns, **parameters)
        self._header["n_outputs"], self._header["gamma"] = outputs, 1.0

    @property
    def coefficients(self) -> np.ndarray:
        """The stored coefficients of the support vectors, float64 [n_outputs, n_support], a view. Each decision value has two
        rows: for the last and the average iterate. Learners multiply them by scale factors that are not included.
        """
        return self.views.coefficients[: self.n_outputs, : self.n_support]

    def _check_block(self, block: np.ndarray) -> None:
        h = self._check_header(block, "support vectors", 0, {**HEADER_RANGES, "next_stamp": (0, _MAX_STAMP)})
        if h["kernel"] not in (RBF, LINEAR, POLY, FOURIER) or not 0 <= h["degree"] <= _MAX_DEGREE:
            raise ValueError(f"the snapshot is corrupt: unknown kernel {h['kernel']} of degree {h['degree']}")
        n, used, n_outputs = int(h["n_support"]), int(h["used"]), int(h["n_outputs"])
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"stride": n, "columns": used, "outputs": n_outputs, "scaled": used})
        check_moments(v.moments)
        stamps = v.stamps[:n]
        if (stamps >= h["next_stamp"]).any() or len(np.unique(stamps)) != n:
            raise ValueError("the snapshot is corrupt: the stamps of support vectors are repeated, or too large")
        check_norms(v.vectors[:used, :n], v.norms[:n], h["largest_norm"])


def check_norms(vectors: np.ndarray, norms: np.ndarray, largest_norm: float) -> None:
    """Raise ValueError unless ``norms``, float32 [n], are the squared norms of the n columns of ``vectors`` [used, n] within
    rounding, and ``largest_norm`` is at least as large.
    """
    exact = np.square(vectors, dtype=np.float64).sum(axis=0)
    if not (
        (exact <= largest_norm * ROUNDING + _UNDERFLOW).all()
        and (np.abs(norms - exact) <= exact * (ROUNDING - 1.0) + _UNDERFLOW).all()
    ):
        raise ValueError("the snapshot is corrupt: its norms are not those of its support vectors")
