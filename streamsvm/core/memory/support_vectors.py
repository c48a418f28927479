"""The fixed-size memory of a budgeted kernel model: one block of bytes.

A block holds the support vectors, their coefficients and the learner's state. Its layout is decided when it is made and never
changes, so a snapshot is one copy, a file is one write, and a compiled function opens the whole model with `views`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, LARGEST_WEIGHT
from streamsvm.core.kernels import FOURIER, LARGEST_GAMMA, LARGEST_LENGTH, LARGEST_NORM, LINEAR, POLY, RBF
from streamsvm.core.memory.block import LARGEST, LINE, Array, Layout, VectorStore, check_size, round_up_to_lines
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, check_moments

#: Fields of the header, beside the sizes. The budget is fixed at construction, too.
HEADER = np.dtype(
    [
        ("budget", "i8"),  # B: the most support vectors between two rows
        ("n_support", "i8"),  # support vectors
        ("used", "i8"),  # columns that have a feature
        ("n_outputs", "i8"),  # rows of coefficients in use; those after them hold zeros
        ("next_stamp", "i8"),  # the next support vector's stamp
        ("kernel", "i8"),
        ("degree", "i8"),
        ("gamma", "f8"),
        ("coef0", "f8"),
        ("largest_norm", "f8"),  # squared norm of the longest support vector that there ever was
    ]
)

#: What is computed or looked up once, and not saved.
CACHE = np.dtype(
    [
        ("valid", "i8"),  # whether ``kernel_rows[0]`` is that of ``rows[2]``
        ("scored", "i8"),  # whether ``scores`` are those of the row that is learned next, as the predictions of an ensemble
        ("event", "u8"),  # the address of the strategy's event; 0: none
        ("options", "u8", 2),  # of the strategy
    ]
)

_LAST_STAMP = 2**61
_LARGEST_DEGREE = 100
ROUNDING = 1.001  # of the squared norms, which are float32
_UNDERFLOW = 1e-37  # smaller squared norms are not exact


class Views(NamedTuple):
    """The arrays inside a block, by the sizes of its `HEADER`."""

    header: Annotated[np.ndarray, Array(HEADER)]
    norms: Annotated[np.ndarray, Array(np.float32, ("stride",), 0.0, LARGEST_NORM * ROUNDING)]
    """Squared norms of the support vectors."""
    stamps: Annotated[np.ndarray, Array(np.int64, ("stride",), 0, _LAST_STAMP)]
    """The order in which the support vectors came, for ties and for the oldest."""
    weights: Annotated[np.ndarray, Array(np.float32, ("stride",), 0.0, LARGEST_FLOAT32)]
    """Total weight of the rows that each support vector stands for."""
    coefficients: Annotated[np.ndarray, Array(np.float64, ("outputs", "stride"))]
    biases: Annotated[np.ndarray, Array(np.float64, ("outputs",))]
    vectors: Annotated[np.ndarray, Array(np.float32, ("columns", "stride"), -LARGEST_LENGTH, LARGEST_LENGTH)]
    """The support vectors, feature-major: a feature of all of them is one run of memory."""
    means: Annotated[np.ndarray, Array(np.float64, ("columns",))]
    """Mean of each feature over the rows that gamma="scale" is found from."""
    gram: Annotated[np.ndarray, Array(np.float64, ("gram", "gram"))]
    """Room for a Gram matrix of the support vectors, or for what a rule makes of it."""
    window: Annotated[np.ndarray, Array(np.float64, ("window", "columns"), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    """The last rows, as they are given."""
    window_targets: Annotated[np.ndarray, Array(np.float64, ("window",))]
    window_weights: Annotated[np.ndarray, Array(np.float64, ("window",), 0.0, LARGEST_WEIGHT)]
    window_stamps: Annotated[np.ndarray, Array(np.int64, ("window",), -1, _LAST_STAMP)]
    """The stamp of the support vector that a row has become, which may have been merged since; -1 where it has become none."""
    moments: Annotated[np.ndarray, Array(np.float64, ("scaled", N_MOMENTS))]
    """Of each feature, as `streamsvm.core.memory.moments` has them."""
    first: Annotated[np.ndarray, Array(np.float64, ("scaled", N_FIRST), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    location: Annotated[np.ndarray, Array(np.float64, ("scaled",))]
    spread: Annotated[np.ndarray, Array(np.float64, ("scaled",), 0.0)]
    """The scale that rows are brought to, and that support vectors have; 0 for a feature that is constant."""
    unscaled: Annotated[np.ndarray, Array(np.float64, ("scaled",), saved=False)]
    """The current row as it is given, where ``rows[0]`` is the same by the scale."""
    ratio: Annotated[np.ndarray, Array(np.float64, ("scaled",), saved=False)]
    shift: Annotated[np.ndarray, Array(np.float64, ("scaled",), saved=False)]
    """From the old scale to the new one, when support vectors are brought to it."""
    rows: Annotated[np.ndarray, Array(np.float32, (3, "columns"), saved=False)]
    """The current row, a support vector taken out, the row that ``kernel_rows[0]`` belongs to."""
    kernel_rows: Annotated[np.ndarray, Array(np.float32, (4, "stride"), saved=False)]
    """Kernel values and squared distances of the current row, the same of a support vector."""
    degradations: Annotated[np.ndarray, Array(np.float32, ("stride",), saved=False)]
    """Weight degradation of each candidate for a merge."""
    scores: Annotated[np.ndarray, Array(np.float64, ("outputs",), saved=False)]
    """Decision values of the current row."""
    active: Annotated[np.ndarray, Array(np.int64, (2, "columns"), saved=False)]
    """Columns of the non-zero features of ``rows[0]`` and ``rows[1]``."""
    cache: Annotated[np.ndarray, Array(CACHE, saved=False)]


_LAYOUT = Layout(Views, in_lines=("stride", "gram"))
#: Of what headers of kernel models have: the least and the largest value.
HEADER_RANGES = {
    "gamma": (float(np.nextafter(0.0, 1.0)), LARGEST_GAMMA),
    "coef0": (-LARGEST, LARGEST),
    "largest_norm": (0.0, LARGEST_NORM * ROUNDING),
}

#: Opens a block (uint8 [nbytes]) as `Views` in Python and in compiled code, without a copy. Each function
#: that takes a block opens it anew.
views: Callable[[np.ndarray], Views] = _LAYOUT.views


def round_up_to_odd_lines(n: int) -> int:
    """Return ``n`` rounded up so that a feature of so many vectors fills an odd number of cache lines."""
    # With an even number of cache lines the features of one support vector would share few of the cache's sets and evict each
    # other: appending one took ten times as long.
    n = round_up_to_lines(n)
    return n if 4 * n // LINE % 2 else n + LINE // 4


def _array_sizes(
    columns: int, budget: int, outputs: int, gram: bool = False, window: int = 0, scaled: bool = False
) -> dict[str, int]:
    stride = round_up_to_odd_lines(int(budget) + 1)  # room for support vectors: one more than the budget
    sizes = {"budget": budget, "outputs": outputs, "stride": stride, "gram": stride if gram else 0, "window": window}
    return {**{name: int(size) for name, size in sizes.items()}, "scaled": columns if scaled else 0}


class SupportVectorStore(VectorStore[Views]):
    """Room for ``budget`` support vectors and one more, all allocated at construction.

    ``outputs`` rows of coefficients, at least 1, share the vectors. There may also be room for a ``gram`` matrix of the support
    vectors, for a ``window`` of rows, and for the scale of features by which rows are learned. ``within`` and ``columns`` are as
    in `Store`. It is a ValueError if a size is not a positive integer, or the store would not fit into memory.

    It has ``424 + 36 S + 8 K S + 4 D S + 36 D + 128 ceil(K / 8)`` bytes with S = budget + 1 rounded up to an odd multiple of 16,
    D columns, and K outputs; ``8 S^2`` more with a Gram matrix, and with a window of R rows ``8 D R + 24 R``, R rounded up to a
    multiple of 8 in the second term; ``376 D`` more with the scale of features. With less than 16 columns, it has up to 400 bytes
    more, since arrays begin on cache lines.

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
        named = {"budget": budget, "max_features": max_features, "outputs": outputs, "window": window}
        for name, size in named.items():
            check_size(name, size, 0 if name == "window" else 1)
        what = ", ".join(f"{name}={size}" for name, size in named.items() if size)
        what += " and a Gram matrix (budget squared)" if gram else ""
        given = {"budget": budget, "outputs": outputs, "gram": gram, "window": window, "scaled": scaled}
        super().__init__(max_features, what, within, columns, **given)
        self._header["n_outputs"], self._header["gamma"] = outputs, 1.0

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients as they are stored, float64 [live, n_support]; learners apply their scale factors."""
        return self.views.coefficients[: self.n_outputs, : self.n_support]

    def _check_block(self, block: np.ndarray) -> None:
        h = self._check_header(block, "support vectors", 0, {**HEADER_RANGES, "next_stamp": (0, _LAST_STAMP)})
        if h["kernel"] not in (RBF, LINEAR, POLY, FOURIER) or not 0 <= h["degree"] <= _LARGEST_DEGREE:
            raise ValueError(f"the snapshot is corrupt: kernel {h['kernel']} of degree {h['degree']} is none of this library")
        n, used, live = int(h["n_support"]), int(h["used"]), int(h["n_outputs"])
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"stride": n, "columns": used, "outputs": live, "scaled": used})
        check_moments(v.moments)
        stamps = v.stamps[:n]
        if (stamps >= h["next_stamp"]).any() or len(np.unique(stamps)) != n:
            raise ValueError("the snapshot is corrupt: two support vectors have one stamp, or one has the stamp of a later one")
        check_norms(v.vectors[:used, :n], v.norms[:n], h["largest_norm"])


def check_norms(vectors: np.ndarray, norms: np.ndarray, largest_norm: float) -> None:
    """Raise a ValueError where squared norms, float32 [n], or the largest of them are not those of vectors, float32 [used, n]."""
    exact = np.square(vectors, dtype=np.float64).sum(axis=0)
    if not (
        (exact <= largest_norm * ROUNDING + _UNDERFLOW).all()
        and (np.abs(norms - exact) <= exact * (ROUNDING - 1.0) + _UNDERFLOW).all()
    ):
        raise ValueError("the snapshot is corrupt: its norms are not those of its support vectors")
