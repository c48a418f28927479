"""The memory of kernel recursive least squares: one block with landmarks and the normal equations of their kernel values.

The regressors of a row are 1, for the intercept, and its kernel values with the landmarks: number i + 1 belongs to landmark i.
The array length for them is ``stride``. Symmetric matrices are packed as `streamsvm.core.steps.triangle` describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, LARGEST_WEIGHT
from streamsvm.core.kernels import KERNELS, LARGEST_LENGTH, LARGEST_NORM
from streamsvm.core.memory.block import Array, Layout, VectorStore, check_size
from streamsvm.core.memory.support_vectors import HEADER_RANGES, ROUNDING, check_norms, round_up_to_odd_lines

#: Rows whose regressors are collected before they are added to the normal equations.
CHUNK_ROWS = 64
#: Number of nearest landmarks on which a new one is projected.
N_NEIGHBOURS = 32

#: Header fields in addition to the sizes. Like these, the budget is fixed at construction.
HEADER = np.dtype(
    [
        ("budget", "i8"),  # maximum number of landmarks
        ("n_support", "i8"),  # number of landmarks
        ("used", "i8"),  # columns in use
        ("n_outputs", "i8"),  # outputs in use
        ("kernel", "i8"),
        ("degree", "i8"),
        ("gamma", "f8"),
        ("coef0", "f8"),
        ("largest_norm", "f8"),  # largest squared norm of all present and past landmarks
    ]
)

_MIN_WINDOW_ROWS, _WINDOW_ROWS_PER_LANDMARK = 500, 1.25


class LandmarkViews(NamedTuple):
    """The arrays of a block; the header contains their sizes."""

    header: Annotated[np.ndarray, Array(HEADER)]
    norms: Annotated[np.ndarray, Array(np.float32, ("stride",), 0.0, LARGEST_NORM * ROUNDING)]
    """Squared norms of the landmarks."""
    vectors: Annotated[np.ndarray, Array(np.float32, ("columns", "stride"), -LARGEST_LENGTH, LARGEST_LENGTH)]
    """The landmarks, feature-major."""
    means: Annotated[np.ndarray, Array(np.float64, ("columns",))]
    """Mean of each feature over the first rows, from which gamma="scale" is computed."""
    moments: Annotated[np.ndarray, Array(np.float64, ("triangle",))]
    """S: the prior, plus the weighted sum of the outer products of the rows' regressors."""
    prior: Annotated[np.ndarray, Array(np.float32, ("triangle",), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """R: the ridge times the Gram matrix of the landmarks."""
    products: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """c: for each output, the weighted sum of regressors times target."""
    weights: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """w: the approximate solution of S w = c, the intercept and the landmarks' coefficients."""
    corrections: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """Decaying corrections, added to w to adapt to the last rows."""
    residuals: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """c - S w; or S w, while it is computed."""
    factor: Annotated[np.ndarray, Array(np.float32, ("triangle",), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """The Cholesky factor of an earlier S."""
    usage: Annotated[np.ndarray, Array(np.float64, ("stride",), 0.0)]
    """Recent mean square of each regressor."""
    regressors: Annotated[np.ndarray, Array(np.float32, (CHUNK_ROWS, "stride"), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """Regressors of the collected rows."""
    targets: Annotated[np.ndarray, Array(np.float64, (CHUNK_ROWS,))]
    row_weights: Annotated[np.ndarray, Array(np.float64, (CHUNK_ROWS,), 0.0, LARGEST_WEIGHT)]
    window: Annotated[np.ndarray, Array(np.float32, ("window", "columns"), -LARGEST_LENGTH, LARGEST_LENGTH)]
    """The first rows of the stream; later, its first entries are candidates for new landmarks."""
    window_targets: Annotated[np.ndarray, Array(np.float64, ("window",))]
    window_weights: Annotated[np.ndarray, Array(np.float64, ("window",), 0.0, LARGEST_WEIGHT)]
    candidates: Annotated[np.ndarray, Array(np.float64, (CHUNK_ROWS,), 0.0)]
    """Score of each candidate; 0 for an empty entry."""
    rows: Annotated[np.ndarray, Array(np.float32, (3, "columns"), saved=False)]
    """The current row, another row, and the row to which ``kernel_rows[0]`` belongs."""
    kernel_rows: Annotated[np.ndarray, Array(np.float32, (3, "stride"), saved=False)]
    """Regressors of the current row, those of another row, and squared distances."""
    sums: Annotated[np.ndarray, Array(np.float32, (2, "stride"), saved=False)]
    multipliers: Annotated[np.ndarray, Array(np.float32, (2, "stride"), saved=False)]
    starts: Annotated[np.ndarray, Array(np.int64, ("stride",), saved=False)]
    direction: Annotated[np.ndarray, Array(np.float64, (4, "stride"), saved=False)]
    """An update direction and S times this direction; or two rows of sums and the factors of their terms."""
    small: Annotated[np.ndarray, Array(np.float64, (N_NEIGHBOURS + 1, N_NEIGHBOURS), saved=False)]
    """The Gram matrix of a landmark's neighbours, and a right-hand side."""
    scores: Annotated[np.ndarray, Array(np.float64, ("scores",), saved=False)]
    """Decision values of the current row: for output k with the corrections at 2k, without them at 2k + 1."""
    active: Annotated[np.ndarray, Array(np.int64, (2, "columns"), saved=False)]
    """Columns of the non-zero features of ``rows[0]`` and ``rows[1]``."""
    cache: Annotated[np.ndarray, Array(np.dtype([("valid", "i8")]), saved=False)]
    """Whether ``kernel_rows[0]`` belongs to ``rows[2]``."""


_LAYOUT = Layout(LandmarkViews, in_lines=("stride",))

#: Opens a block (uint8 [nbytes]) as `LandmarkViews` in Python and in compiled code, without a copy.
landmark_views: Callable[[np.ndarray], LandmarkViews] = _LAYOUT.views


def _array_sizes(columns: int, budget: int, outputs: int) -> dict[str, int]:  # noqa: ARG001 - the sizes do not depend on it
    """Return the dimensions of the arrays in a kernel least squares model's memory, as a dict of name to length. ``budget`` is
    the maximum number of landmarks, ``outputs`` the number of decision values. ``columns`` (features) has no influence.
    """
    budget, outputs = int(budget), int(outputs)
    stride = round_up_to_odd_lines(max(budget + 1, CHUNK_ROWS))  # some scratch arrays of this length are indexed by rows
    return {
        "budget": budget,
        "outputs": outputs,
        "stride": stride,
        "scores": 2 * outputs,
        "triangle": stride * (stride + 1) // 2,  # numbers in a packed symmetric matrix
        "window": math.ceil(max(_MIN_WINDOW_ROWS, _WINDOW_ROWS_PER_LANDMARK * budget)),
    }


class LandmarkStore(VectorStore[LandmarkViews]):
    """The store of kernel recursive least squares: up to ``budget`` landmarks and their normal equations.

    ``outputs`` is the number of right-hand sides, at least 1, which share the landmarks. ``within`` and ``columns`` are as in
    `streamsvm.core.memory.block.Store`. Raises ValueError if a size is not a positive integer, or memory is exhausted.

    It has about ``8 S^2 + 4 D (S + W) + 340 S + 32 K S`` bytes, with S = budget + 1, at least 64, rounded up to an odd multiple
    of 16, D columns, K outputs and W rows of the window: 500, or 1.25 times the budget.

    >>> store = LandmarkStore(budget=100, max_features=20)
    >>> store.n_support, store.nbytes
    (0, 240520)
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(_array_sizes)

    def __init__(
        self,
        budget: int,
        max_features: int,
        outputs: int = 1,
        within: np.ndarray | None = None,
        columns: int | None = None,
    ) -> None:
        for name, size in (("budget", budget), ("max_features", max_features), ("outputs", outputs)):
            check_size(name, size, 1)
        parameters = f"budget={budget} (squared), max_features={max_features}, outputs={outputs}"
        super().__init__(max_features, parameters, within, columns, budget=budget, outputs=outputs)
        self._header["n_outputs"], self._header["gamma"] = outputs, 1.0

    def copy_from(self, source: LandmarkStore) -> None:
        """Copy the contents of ``source``, a memory with the same budget, into this one."""
        if len(source.views.norms) != len(self.views.norms):  # positions in packed matrices depend on the number of landmarks
            raise ValueError(f"{source.budget} landmarks cannot become {self.budget}: their normal equations cannot change")
        super().copy_from(source)

    def _check_block(self, block: np.ndarray) -> None:
        h = self._check_header(block, "landmarks", 1, {**HEADER_RANGES, "degree": (0, 100)})
        if h["kernel"] not in KERNELS.values():
            raise ValueError(f"the snapshot is corrupt: unknown kernel {h['kernel']}")
        n, used, n_outputs = int(h["n_support"]), int(h["used"]), int(h["n_outputs"])
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"columns": used, "outputs": n_outputs})
        regressor_arrays = "products", "weights", "corrections", "residuals", "usage", "regressors"
        for name, length in {"norms": n, "vectors": n, **dict.fromkeys(regressor_arrays, n + 1)}.items():
            if getattr(v, name)[..., length:].any():
                raise ValueError(f"the snapshot is corrupt: {name} hold numbers beyond the part in use")
        check_norms(v.vectors[:used, :n], v.norms[:n], h["largest_norm"])
