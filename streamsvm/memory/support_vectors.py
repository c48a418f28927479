"""The fixed-size memory of a budgeted kernel model: one block of bytes.

A block holds the support vectors, their coefficients and the learner's own numbers. Its layout is decided at construction and
never changes, so a snapshot is one copy, a file is one write, and a compiled function opens the whole model with `views`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from streamsvm.checks import LARGEST_WEIGHT
from streamsvm.kernels import FOURIER, LARGEST_GAMMA, LARGEST_NORM, LINEAR, POLY, RBF
from streamsvm.memory.block import LARGEST, LINE, STATE_END, allocate, array_at, check_size, rounded_up

__all__ = ["HEADER", "SupportVectorStore", "Views", "views"]

#: The first bytes of a block. The fields up to ``window`` are the layout, fixed at construction.
HEADER = np.dtype(
    [
        ("budget", "i8"),  # B: support vectors kept between two rows
        ("columns", "i8"),  # features that fit, rounded up to a cache line
        ("outputs", "i8"),  # rows of coefficients that there is room for
        ("stride", "i8"),  # slots in memory: B + 1 rounded up to an odd number of cache lines
        ("gram", "i8"),  # 1 where there is room for a Gram matrix of the support vectors, else 0
        ("window", "i8"),  # rows that are kept to be learned again
        ("n_support", "i8"),
        ("used", "i8"),  # columns that have a feature
        ("live", "i8"),  # rows of coefficients in use: those after them hold zeros
        ("next_stamp", "i8"),  # what the next support vector is stamped with: stamps grow with age
        ("kernel", "i8"),
        ("degree", "i8"),
        ("gamma", "f8"),
        ("coef0", "f8"),
        ("largest_norm", "f8"),  # squared norm of the longest support vector that there ever was
    ]
)
_LAYOUT = ("budget", "columns", "outputs", "stride", "gram", "window")
_HEADER_SIZE = HEADER.itemsize

_LAST_STAMP = 2**61
_LARGEST_DEGREE = 100
_ROUNDING, _TINY = 1.0 + 1e-3, 1e-37  # float32 norms underflow below the second


class Views(NamedTuple):
    """The arrays inside a block. Those from ``rows`` on are scratch: no snapshot holds them."""

    header: np.ndarray
    """`HEADER` [1]."""
    norms: np.ndarray
    """float32 [stride]: squared norms of the support vectors."""
    stamps: np.ndarray
    """int64 [stride]: the order in which the support vectors came, for ties and for the oldest."""
    weights: np.ndarray
    """float32 [stride]: total weight of the rows that each support vector stands for."""
    coefficients: np.ndarray
    """float64 [outputs, stride]."""
    biases: np.ndarray
    """float64 [outputs]."""
    vectors: np.ndarray
    """float32 [columns, stride], feature-major: a feature of all support vectors is one run of memory."""
    means: np.ndarray
    """float64 [columns]: mean of each feature over the rows that gamma="scale" looks at."""
    gram: np.ndarray
    """float64 [stride, stride], or [0, 0]: what is made of the kernel values between support vectors."""
    window: np.ndarray
    """float32 [window, columns]: the last rows."""
    window_targets: np.ndarray
    """float64 [window]."""
    window_weights: np.ndarray
    """float64 [window]."""
    window_stamps: np.ndarray
    """int64 [window]: of the support vector that a row has become; -1 where it has become none. It may have been merged since."""
    rows: np.ndarray
    """float32 [3, columns]: the row at hand, a support vector taken out, the row that ``kernel_rows[0]`` belongs to."""
    kernel_rows: np.ndarray
    """float32 [4, stride]: kernel values and squared distances of the row at hand, the same of a support vector."""
    degradations: np.ndarray
    """float32 [stride]: weight degradation of each merge that was considered."""
    scores: np.ndarray
    """float64 [outputs]: decision values of the row at hand."""
    active: np.ndarray
    """int64 [2, columns]: columns of the non-zero features of ``rows[0]`` and ``rows[1]``."""
    cache: np.ndarray
    """int64 [8]: whether ``kernel_rows[0]`` is that of ``rows[2]``, and how many features of that row are non-zero."""


def _views(block: np.ndarray) -> Views:
    header = array_at(block, 0, (1,), HEADER)
    h = header[0]
    columns, outputs, stride = h["columns"], h["outputs"], h["stride"]
    side = stride * h["gram"]
    at = STATE_END
    norms = array_at(block, at, (stride,), np.float32)
    at += 4 * stride
    stamps = array_at(block, at, (stride,), np.int64)
    at += 8 * stride
    weights = array_at(block, at, (stride,), np.float32)
    at += 4 * stride
    coefficients = array_at(block, at, (outputs, stride), np.float64)
    at += 8 * outputs * stride
    biases = array_at(block, at, (outputs,), np.float64)
    at += (8 * outputs + LINE - 1) // LINE * LINE
    vectors = array_at(block, at, (columns, stride), np.float32)
    at += 4 * columns * stride
    means = array_at(block, at, (columns,), np.float64)
    at += 8 * columns
    gram = array_at(block, at, (side, side), np.float64)
    at += 8 * side * side
    length = h["window"]
    window = array_at(block, at, (length, columns), np.float32)
    at += 4 * columns * length
    room = (8 * length + LINE - 1) // LINE * LINE
    window_targets = array_at(block, at, (length,), np.float64)
    at += room
    window_weights = array_at(block, at, (length,), np.float64)
    at += room
    window_stamps = array_at(block, at, (length,), np.int64)
    at += room
    rows = array_at(block, at, (3, columns), np.float32)
    at += 12 * columns
    kernel_rows = array_at(block, at, (4, stride), np.float32)
    at += 16 * stride
    degradations = array_at(block, at, (stride,), np.float32)
    at += 4 * stride
    scores = array_at(block, at, (outputs,), np.float64)
    at += (8 * outputs + LINE - 1) // LINE * LINE
    active = array_at(block, at, (2, columns), np.int64)
    at += 16 * columns
    cache = array_at(block, at, (8,), np.int64)
    return Views(
        header,
        norms,
        stamps,
        weights,
        coefficients,
        biases,
        vectors,
        means,
        gram,
        window,
        window_targets,
        window_weights,
        window_stamps,
        rows,
        kernel_rows,
        degradations,
        scores,
        active,
        cache,
    )


#: The arrays inside a block (uint8 [nbytes]) as `Views`, without a copy. Every compiled function that takes a block opens it so:
#: what it does not use is never computed, where arrays handed on from function to function would be copied at each call.
views = njit(cache=True, forceinline=True)(_views)


def _named(budget: int, max_features: int, outputs: int, gram: bool, window: int) -> str:
    # The sizes of a store, by what learners call them.
    named = [f"budget={budget}" + (" (squared: projection keeps a matrix)" if gram else ""), f"max_features={max_features}"]
    named += [f"outputs={outputs} (two a class)"] if outputs > 2 else []
    named += [f"replay={window}"] if window else []
    return ", ".join(named)


def _odd_lines(n: int) -> int:
    # An even number of cache lines would put the features of one support vector into few of the cache's sets, where they drive
    # each other out: to append one cost ten times as much.
    n = rounded_up(n)
    return n if 4 * n // LINE % 2 else n + LINE // 4


class SupportVectorStore:
    """Room for ``budget`` support vectors and one more, all allocated at construction.

    Parameters
    ----------
    budget
        Support vectors that the store keeps, B >= 1.
    max_features
        Columns, at least 1.
    outputs
        Rows of coefficients that share the vectors, at least 1.
    gram
        Whether to make room for a Gram matrix of the support vectors (projection solves with it).
    window
        Rows that are kept to be learned again, at least 0.

    Raises
    ------
    ValueError
        A size is not a positive integer, or the store would not fit into memory.

    Examples
    --------
    >>> store = SupportVectorStore(budget=100, max_features=20)
    >>> store.nbytes
    20992
    >>> store.n_support, store.vectors.shape
    (0, (0, 0))
    """

    def __init__(self, budget: int, max_features: int, outputs: int = 1, gram: bool = False, window: int = 0) -> None:
        for name, size in (("budget", budget), ("max_features", max_features), ("outputs", outputs)):
            check_size(name, size, 1)
        self.max_features = int(max_features)
        stride, columns = _odd_lines(int(budget) + 1), rounded_up(self.max_features)
        check_size("window", window, 0)
        side = stride if gram else 0
        lines = (8 * int(outputs) + LINE - 1) // LINE * LINE
        kept = 4 * columns * int(window) + 3 * ((8 * int(window) + LINE - 1) // LINE * LINE)
        self._snapshot_bytes = (
            STATE_END + (16 + 8 * int(outputs) + 4 * columns) * stride + lines + 8 * columns + 8 * side * side + kept
        )
        size = self._snapshot_bytes + 28 * columns + 20 * stride + lines + LINE
        #: The whole store as one array, uint8 [nbytes]: what compiled functions take.
        self.block = allocate(size, _named(budget, max_features, outputs, gram, window))
        header = self.block[:_HEADER_SIZE].view(HEADER)
        header["budget"], header["columns"], header["outputs"] = budget, columns, outputs
        header["stride"], header["gram"], header["window"] = stride, int(gram), window
        header["live"], header["gamma"] = outputs, 1.0
        #: The arrays inside the block.
        self.views = _views(self.block)
        self._header = self.views.header

    @property
    def nbytes(self) -> int:
        """Bytes of the block: constant from construction.

        ``448 + 36 S + 8 K S + 4 D S + 36 D + 128 ceil(K / 8)`` with S = budget + 1 rounded up to an odd multiple of
        16, D = max_features rounded up to a multiple of 16, and K outputs; ``8 S^2`` more with a Gram matrix, and with a
        window of R rows ``4 D R + 24 R``, R rounded up to a multiple of 8 in the second term.
        """
        return self.block.nbytes

    @property
    def budget(self) -> int:
        """Support vectors that the store keeps."""
        return int(self._header["budget"][0])

    @property
    def n_support(self) -> int:
        """Support vectors that the store holds now."""
        return int(self._header["n_support"][0])

    @property
    def used(self) -> int:
        """Columns that have a feature."""
        return int(self._header["used"][0])

    @used.setter
    def used(self, columns: int) -> None:
        self._header["used"] = columns

    @property
    def live(self) -> int:
        """Rows of coefficients in use."""
        return int(self._header["live"][0])

    @live.setter
    def live(self, rows: int) -> None:
        self._header["live"] = rows

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the support vectors, float32 [n_support, used]."""
        return np.ascontiguousarray(self.views.vectors[: self.used, : self.n_support].T)

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients as they are stored, float64 [live, n_support]; learners apply their scale factors."""
        return self.views.coefficients[: self.live, : self.n_support]

    def snapshot(self) -> bytes:
        """All that the store knows, as bytes: one copy. Equal stores give equal bytes."""
        return self.block[: self._snapshot_bytes].tobytes()

    def restore(self, snapshot: bytes, own: bool = False) -> None:
        """Take back what `snapshot` gave, into a store of the same sizes. Nothing changes unless all of it is valid.

        Parameters
        ----------
        snapshot
            The bytes.
        own
            Whether they have never left this process, and so need no check.

        Raises
        ------
        ValueError
            The snapshot is of another size or layout, or holds counts or numbers that no store can have.
        """
        if len(snapshot) != self._snapshot_bytes:
            raise ValueError(
                f"a snapshot of {len(snapshot):,} bytes does not fit a store whose snapshots have "
                f"{self._snapshot_bytes:,} bytes: it is of a model with other sizes, or cut off"
            )
        block = np.zeros_like(self.block)  # untouched pages of it cost nothing
        block[: self._snapshot_bytes] = np.frombuffer(snapshot, np.uint8)
        if not own:
            self._check(block)
        self.block[: self._snapshot_bytes] = block[: self._snapshot_bytes]
        self.views.cache[:] = 0

    def _check(self, block: np.ndarray) -> None:
        # Compiled code trusts a block: whatever it would read as a count, a place or an order is looked at here.
        header = block[:_HEADER_SIZE].view(HEADER)[0]
        for field in _LAYOUT:
            if header[field] != self._header[field][0]:
                raise ValueError(f"the snapshot's {field} is {header[field]}, the store's {self._header[field][0]}")
        n, used, live = int(header["n_support"]), int(header["used"]), int(header["live"])
        if not (0 <= n <= self.budget and 0 <= used <= self.max_features and 0 <= live <= int(header["outputs"])):
            raise ValueError(f"a snapshot with {n} support vectors, {used} features and {live} outputs does not fit the store")
        if header["kernel"] not in (RBF, LINEAR, POLY, FOURIER) or not 0 <= header["degree"] <= _LARGEST_DEGREE:
            raise ValueError("the snapshot names a kernel that there is not")
        inside = _views(block)
        stamps = inside.stamps[:n]
        if not 0 <= header["next_stamp"] < _LAST_STAMP or ((stamps < 0) | (stamps >= header["next_stamp"])).any():
            raise ValueError("the snapshot's support vectors are older or newer than its model")
        if len(np.unique(stamps)) != n:
            raise ValueError("the snapshot has two support vectors of one age")
        held = inside.vectors[:used, :n]
        norms = np.square(held, dtype=np.float64).sum(axis=0)
        numbers = (
            inside.coefficients[:, :n],
            inside.biases,
            inside.means,
            inside.gram,
            inside.window_targets,
            header["gamma"],
            header["coef0"],
        )
        if not (
            all((np.abs(part) < LARGEST).all() for part in numbers)
            and np.isfinite(inside.window).all()
            and ((inside.weights >= 0.0) & np.isfinite(inside.weights)).all()
            and ((inside.window_weights >= 0.0) & (inside.window_weights <= LARGEST_WEIGHT)).all()
            and (norms <= header["largest_norm"] * _ROUNDING + _TINY).all()
            and (np.abs(inside.norms[:n] - norms) <= norms * (_ROUNDING - 1.0) + _TINY).all()
            and 0.0 < header["gamma"] <= LARGEST_GAMMA
            and 0.0 <= header["largest_norm"] < LARGEST_NORM * _ROUNDING
        ):
            raise ValueError("the snapshot holds numbers that are not finite, or that no learning leads to")
        rest = (
            inside.vectors[used:],
            inside.vectors[:used, n:],
            inside.coefficients[:, n:],
            inside.coefficients[live:],
            inside.biases[live:],
            inside.norms[n:],
            inside.stamps[n:],
            inside.weights[n:],
        )
        if any(part.any() for part in rest):
            raise ValueError("the snapshot holds numbers where it has no support vectors or no features")

    def __getstate__(self) -> dict[str, object]:
        h = self._header[0]
        return {
            "sizes": (int(h["budget"]), self.max_features, int(h["outputs"]), bool(h["gram"]), int(h["window"])),
            "snapshot": self.snapshot(),
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(*state["sizes"])  # type: ignore[misc]
        self.restore(state["snapshot"])  # type: ignore[arg-type]
