"""The fixed-size memory of kernel recursive least squares: one block with landmarks and the normal equations of their kernels.

A row's regressors are 1, for the intercept, and its kernel values with the landmarks: number i + 1 belongs to landmark i. There
is room for ``stride`` of them. Symmetric matrices lie as `streamsvm.core.steps.triangle` describes.
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

#: Rows whose regressors are gathered before the normal equations take them.
CHUNK_ROWS = 64
#: Landmarks on which a new one is projected.
N_NEIGHBOURS = 32

#: Fields of the header, beside the sizes. The budget is fixed at construction, too.
HEADER = np.dtype(
    [
        ("budget", "i8"),  # the most landmarks
        ("n_support", "i8"),  # landmarks
        ("used", "i8"),  # columns that have a feature
        ("n_outputs", "i8"),  # outputs in use
        ("kernel", "i8"),
        ("degree", "i8"),
        ("gamma", "f8"),
        ("coef0", "f8"),
        ("largest_norm", "f8"),  # squared norm of the longest landmark that there ever was
    ]
)

_LEAST_ROWS, _ROWS_A_LANDMARK = 500, 1.25


class LandmarkViews(NamedTuple):
    """The arrays inside a block, by the sizes of its `HEADER`."""

    header: Annotated[np.ndarray, Array(HEADER)]
    norms: Annotated[np.ndarray, Array(np.float32, ("stride",), 0.0, LARGEST_NORM * ROUNDING)]
    """Squared norms of the landmarks."""
    vectors: Annotated[np.ndarray, Array(np.float32, ("columns", "stride"), -LARGEST_LENGTH, LARGEST_LENGTH)]
    """The landmarks, feature-major."""
    means: Annotated[np.ndarray, Array(np.float64, ("columns",))]
    """Mean of each feature over the rows that gamma="scale" is found from."""
    moments: Annotated[np.ndarray, Array(np.float64, ("triangle",))]
    """S: the weighted sum of the outer products of rows' regressors, and the prior."""
    prior: Annotated[np.ndarray, Array(np.float32, ("triangle",), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """R: the ridge times the Gram matrix of the landmarks."""
    products: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """c: for each output the weighted sum of regressors times target."""
    weights: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """w: the solution of S w = c, nearly; that of the intercept, then the landmarks' coefficients."""
    corrections: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """The corrections: added to w to follow the last rows; they fade."""
    residuals: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    """c - S w, or S w while it is summed up."""
    factor: Annotated[np.ndarray, Array(np.float32, ("triangle",), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """The Cholesky factor of an earlier S."""
    usage: Annotated[np.ndarray, Array(np.float64, ("stride",), 0.0)]
    """Recent mean of the squares of each regressor."""
    regressors: Annotated[np.ndarray, Array(np.float32, (CHUNK_ROWS, "stride"), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """Of the rows that are gathered."""
    targets: Annotated[np.ndarray, Array(np.float64, (CHUNK_ROWS,))]
    row_weights: Annotated[np.ndarray, Array(np.float64, (CHUNK_ROWS,), 0.0, LARGEST_WEIGHT)]
    window: Annotated[np.ndarray, Array(np.float32, ("window", "columns"), -LARGEST_LENGTH, LARGEST_LENGTH)]
    """The first rows; later the first of them are candidates for new landmarks."""
    window_targets: Annotated[np.ndarray, Array(np.float64, ("window",))]
    window_weights: Annotated[np.ndarray, Array(np.float64, ("window",), 0.0, LARGEST_WEIGHT)]
    candidates: Annotated[np.ndarray, Array(np.float64, (CHUNK_ROWS,), 0.0)]
    """How much each candidate promises; 0 where there is none."""
    rows: Annotated[np.ndarray, Array(np.float32, (3, "columns"), saved=False)]
    """The current row, another row, the row that ``kernel_rows[0]`` belongs to."""
    kernel_rows: Annotated[np.ndarray, Array(np.float32, (3, "stride"), saved=False)]
    """Regressors of the current row, of another row, and squared distances."""
    sums: Annotated[np.ndarray, Array(np.float32, (2, "stride"), saved=False)]
    multipliers: Annotated[np.ndarray, Array(np.float32, (2, "stride"), saved=False)]
    starts: Annotated[np.ndarray, Array(np.int64, ("stride",), saved=False)]
    direction: Annotated[np.ndarray, Array(np.float64, (4, "stride"), saved=False)]
    """The direction of a step and S times it; or two rows of sums and the factors of their terms."""
    small: Annotated[np.ndarray, Array(np.float64, (N_NEIGHBOURS + 1, N_NEIGHBOURS), saved=False)]
    """The Gram matrix of a landmark's neighbours, and a right-hand side."""
    scores: Annotated[np.ndarray, Array(np.float64, ("scores",), saved=False)]
    """Decision values of the current row: of output k with the correction at 2k, without it at 2k + 1."""
    active: Annotated[np.ndarray, Array(np.int64, (2, "columns"), saved=False)]
    """Columns of the non-zero features of ``rows[0]`` and ``rows[1]``."""
    cache: Annotated[np.ndarray, Array(np.dtype([("valid", "i8")]), saved=False)]
    """Whether ``kernel_rows[0]`` is that of ``rows[2]``."""


_LAYOUT = Layout(LandmarkViews, in_lines=("stride",))

#: Opens a block (uint8 [nbytes]) as `LandmarkViews` in Python and in compiled code, without a copy.
landmark_views: Callable[[np.ndarray], LandmarkViews] = _LAYOUT.views


def _array_sizes(columns: int, budget: int, outputs: int) -> dict[str, int]:  # noqa: ARG001 - on which none depends
    budget, outputs = int(budget), int(outputs)
    stride = round_up_to_odd_lines(max(budget + 1, CHUNK_ROWS))  # scratch along it is for the rows of a block, too
    return {
        "budget": budget,
        "outputs": outputs,
        "stride": stride,
        "scores": 2 * outputs,  # room for decision values
        "triangle": stride * (stride + 1) // 2,  # numbers of a symmetric matrix
        "window": math.ceil(max(_LEAST_ROWS, _ROWS_A_LANDMARK * budget)),
    }


class LandmarkStore(VectorStore[LandmarkViews]):
    """Room for ``budget`` landmarks and their normal equations, all allocated at construction.

    ``outputs`` right-hand sides, at least 1, share the landmarks. ``within`` and ``columns`` are as in
    `streamsvm.core.memory.block.Store`. It is a ValueError if a size is not a positive integer, or the store would not fit into
    memory.

    About ``8 S^2 + 4 D (S + W) + 340 S + 32 K S`` bytes, with S = budget + 1, at least 64, rounded up to an odd multiple of 16,
    D columns, K outputs and W rows of the window: 500, or 1.25 times the budget.

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
        what = f"budget={budget} (squared), max_features={max_features}, outputs={outputs}"
        super().__init__(max_features, what, within, columns, budget=budget, outputs=outputs)
        self._header["n_outputs"], self._header["gamma"] = outputs, 1.0

    def _check_block(self, block: np.ndarray) -> None:
        h = self._check_header(block, "landmarks", 1, {**HEADER_RANGES, "degree": (0, 100)})
        if h["kernel"] not in KERNELS.values():
            raise ValueError(f"the snapshot is corrupt: kernel {h['kernel']} is none of this library")
        n, used, live = int(h["n_support"]), int(h["used"]), int(h["n_outputs"])
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"columns": used, "outputs": live})
        of_regressors = "products", "weights", "corrections", "residuals", "usage", "regressors"
        for name, end in {"norms": n, "vectors": n, **dict.fromkeys(of_regressors, n + 1)}.items():
            if getattr(v, name)[..., end:].any():
                raise ValueError(f"the snapshot is corrupt: {name} hold numbers beyond the part in use")
        check_norms(v.vectors[:used, :n], v.norms[:n], h["largest_norm"])
