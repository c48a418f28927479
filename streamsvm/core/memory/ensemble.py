"""The fixed-size memory of an ensemble: one block with the memories of its experts inside, and what combines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.memory.block import LINE, Array, Layout, Store, allocate_block, check_size, resolve_columns
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, check_moments
from streamsvm.core.memory.weights import WeightStore, WeightStores

#: The most features, or functions of them, that an expert of second order takes: its memory and time grow with their square.
MOST_SQUARED = 64

#: Stacks, which combine the experts.
STACKS = 2

#: The largest recent error: of labels 1, of bounded targets and predictions 18 deviations.
LARGEST_ERROR = 20.0

#: By how much less a feature may count.
MOST_DAMPED = 0.98

#: Labels that the table of which label follows which has room for: the first ones.
MOST_FOLLOWED = 64

#: The state of an ensemble, beside what all learners have.
STATE = np.dtype(
    [
        ("scaling", "i8"),
        ("choice", "i8"),  # what predictions follow: a number of `stack`
        ("last", "i8"),  # the last row's class; of one output 0 or 1; -1 before there was one
        ("last_target", "f8"),  # in standard deviations from the mean
        ("features", "i8"),  # columns that experts are prepared for
        ("functions", "i8"),  # of each feature, that the additive expert takes; 0 before there are features
        ("resets", "i8"),  # of experts, as the stream drifted
        ("rows", "f8"),  # of all classes, by weight
    ]
)

#: Fields of the header, beside the sizes.
HEADER = np.dtype(
    [
        ("used", "i8"),  # columns that have a feature
        ("n_outputs", "i8"),  # outputs in use
    ]
)


#: An expert. The addresses are those of its compiled functions (see `streamsvm.core.steps.ensemble`), 0: none.
EXPERT = np.dtype(
    [
        ("predict", "u8"),
        ("update", "u8"),
        ("rescale", "u8"),
        ("rule", "u8"),  # of a kernel machine or of least squares
        ("begin", "i8"),  # the bytes of the block that are its stores
        ("end", "i8"),
        ("first_input", "i8"),  # of its inputs to the stacks
        ("base_input", "i8"),  # the first input of the expert that it corrects; 0: none
        ("number", "i8"),  # among the experts of second order
        ("additive", "i8"),  # whether it takes several functions of each feature
        ("resets", "i8"),  # whether it begins anew where the stream drifts
        ("width", "f8"),  # its gamma over that of the ensemble
        ("memory", "f8"),  # the factor by which rows fade
    ]
)
#: The addresses of the compiled functions that combine experts.
CALLS = np.dtype([("predict_row", "u8"), ("learn_row", "u8"), ("compute_output", "u8")])


class EnsembleViews(NamedTuple):
    """The arrays inside a block, by the sizes of its `HEADER`."""

    header: Annotated[np.ndarray, Array(HEADER)]
    moments: Annotated[np.ndarray, Array(np.float64, ("columns", N_MOMENTS))]
    """Of each feature, as `streamsvm.core.memory.moments` has them."""
    first: Annotated[np.ndarray, Array(np.float64, ("columns", N_FIRST), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    location: Annotated[np.ndarray, Array(np.float64, ("columns",))]
    spread: Annotated[np.ndarray, Array(np.float64, ("columns",), 0.0)]
    """The scale that rows are brought to, and that stored vectors have; 0 for a feature that is constant."""
    damping: Annotated[np.ndarray, Array(np.float64, (2, "columns"), 0.0, MOST_DAMPED)]
    """By how much less each feature counts for the kernel machines of dual ascent, and where targets are labels for the nearest
    rows and the forest, too: 0 for one that counts in full. The second row is what the first one is to follow."""
    target_moments: Annotated[np.ndarray, Array(np.float64, ("targets", N_MOMENTS))]
    target_first: Annotated[np.ndarray, Array(np.float64, ("targets", N_FIRST))]
    weights: Annotated[np.ndarray, Array(np.float64, (STACKS, "inputs"))]
    """Of each stack."""
    curvatures: Annotated[np.ndarray, Array(np.float64, (STACKS, "inputs", "inputs"))]
    inverses: Annotated[np.ndarray, Array(np.float64, (STACKS, "inputs", "inputs"))]
    losses: Annotated[np.ndarray, Array(np.float64, (STACKS,), 0.0, 1e6)]
    """The log losses of each stack, or its absolute errors, fading."""
    errors: Annotated[np.ndarray, Array(np.float64, ("inputs",), 0.0, LARGEST_ERROR)]
    """The recent error of each expert's outputs: a share of rows, or a mean of absolute errors in deviations of the target."""
    mistakes: Annotated[np.ndarray, Array(np.float64, ("inputs",), 0.0, 1e6)]
    """Their mistakes, or the sum of their errors, fading."""
    choice_errors: Annotated[np.ndarray, Array(np.float64, (3,), 0.0, LARGEST_ERROR)]
    """The recent error of the stacks, of the votes and of the best expert."""
    newton_weights: Annotated[np.ndarray, Array(np.float64, ("newtons", "outputs", "side"))]
    newton_curvatures: Annotated[np.ndarray, Array(np.float64, ("newtons", "side", "side"))]
    newton_inverses: Annotated[np.ndarray, Array(np.float64, ("newtons", "side", "side"))]
    drifts: Annotated[np.ndarray, Array(np.float64, ("experts", 3), 0.0)]
    """The state of each resetting expert's detector of drift."""
    counts: Annotated[np.ndarray, Array(np.float64, ("outputs",), 0.0, 1e100)]
    """The rows of each class, by weight; of one output those of the positive one."""
    transitions: Annotated[np.ndarray, Array(np.float64, ("followed", "followed"), 0.0, 1e6)]
    """How often the class of the column followed that of the row, fading."""
    unscaled: Annotated[np.ndarray, Array(np.float64, (2, "columns"), saved=False)]
    """The current row as it is given, and the one that ``inputs`` belongs to."""
    scaled: Annotated[np.ndarray, Array(np.float32, ("columns",), saved=False)]
    """The current row as experts take it."""
    ratio: Annotated[np.ndarray, Array(np.float64, ("columns",), saved=False)]
    shift: Annotated[np.ndarray, Array(np.float64, ("columns",), saved=False)]
    """From the old scale to the new one, when stored vectors are brought to it."""
    squares: Annotated[np.ndarray, Array(np.float64, (2, "side"), saved=False)]
    """The current row as an expert of second order takes it, and its direction."""
    inputs: Annotated[np.ndarray, Array(np.float64, ("outputs", "inputs"), saved=False)]
    """The inputs of the stacks, for each output."""
    odds: Annotated[np.ndarray, Array(np.float64, (STACKS, "outputs"), saved=False)]
    """The log odds of the current row by each stack, or its decision value."""
    row_inputs: Annotated[np.ndarray, Array(np.float64, (2, "inputs"), saved=False)]
    """Those that a stack learns of the current row, and the direction."""
    scores: Annotated[np.ndarray, Array(np.float64, ("outputs",), saved=False)]
    """Decision values of the current row, or its probabilities."""
    answers: Annotated[np.ndarray, Array(np.int64, (3,), saved=False)]
    """The class that the stacks, the votes and the best expert choose."""
    numbers: Annotated[np.ndarray, Array(np.float64, (3,), saved=False)]
    """The target that they predict, in its deviations from the mean."""
    experts: Annotated[np.ndarray, Array(EXPERT, ("experts",), saved=False)]
    calls: Annotated[np.ndarray, Array(CALLS, saved=False)]
    cache: Annotated[np.ndarray, Array(np.dtype([("valid", "i8"), ("answered", "i8")]), saved=False)]
    """Whether ``inputs`` is that of ``unscaled[1]``, and if so whether ``answers`` or ``numbers`` are, and ``odds``."""


_LAYOUT = Layout(EnsembleViews, in_lines=())

#: Opens a block (uint8 [nbytes]) as `EnsembleViews` in Python and in compiled code, without a copy.
ensemble_views: Callable[[np.ndarray], EnsembleViews] = _LAYOUT.views


class Place(NamedTuple):
    """The room that an expert needs."""

    inputs: int
    """Its inputs to the stacks."""
    store: Any = None
    """The class of its stores, if it has any."""
    sizes: Mapping[str, int] = MappingProxyType({})
    """Their sizes, beside columns."""
    is_second_order: bool = False
    """Whether it has matrices of features by features."""

    def count(self, outputs: int) -> int:
        """Return the number of its stores: of a linear expert, each output has one."""
        return 0 if self.store is None else outputs if self.store is WeightStore else 1


class EnsembleStore(Store[EnsembleViews]):
    """Room for an ensemble of experts: one block, in which each expert's own store lies.

    There is room for ``outputs`` classes; it is 1 for two classes, and for ``targets``, which are learned in place of labels.
    ``columns`` is as in `Store`. It is a ValueError if a size is not a positive integer, or the store would not fit into memory.

    Notes
    -----
    With D columns, it has ``404 D`` bytes, and those of its experts' stores; ``16 S^2`` for each expert of second order,
    S = min(4 D, 4 max_features, 64) + 1; and ``8 F^2``, F = min(labels, 64), for which follows which.
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(lambda _, **sizes: sizes)

    def __init__(
        self, places: Sequence[Place], max_features: int, outputs: int = 1, targets: bool = False, columns: int | None = None
    ) -> None:
        check_size("max_features", max_features, 1)
        columns = resolve_columns(max_features, columns)
        sizes = {
            "experts": len(places),
            "inputs": 2 + sum(place.inputs for place in places),
            "outputs": outputs,
            "followed": 0 if targets else min(max(outputs, 2), MOST_FOLLOWED),
            "newtons": sum(place.is_second_order for place in places),
            "side": min(4 * min(columns, int(max_features)), MOST_SQUARED) + 1,
            "targets": int(targets),
        }
        end = _rounded_to_lines(_LAYOUT.compute_nbytes({**sizes, "columns": columns}))
        rooms = [(place.count(outputs), self._room_of(place, columns)) for place in places]
        what = f"max_features={max_features} and outputs={outputs}"
        block = allocate_block(end + sum(count * size for count, size in rooms), what)
        super().__init__(max_features, what, block, columns, **sizes)
        self.block = block
        self._header["n_outputs"] = outputs
        #: The stores of each expert: none, one, or one for each output.
        self.stores: list[Any] = []
        first, number = 2, 0
        for expert, place, (count, size) in zip(self.views.experts, places, rooms, strict=True):
            begin, end = end, end + count * size
            for name, value in {"begin": begin, "end": end, "first_input": first, "number": number}.items():
                expert[name] = value
            part = block[begin:end].reshape(count, size)
            if place.store is WeightStore:
                self.stores.append(WeightStores(max_features, columns, part))
            else:
                given = {**place.sizes, "max_features": max_features, "columns": columns}
                self.stores.append([place.store(**given, within=one) for one in part])
            first, number = first + place.inputs, number + place.is_second_order

    @staticmethod
    def _room_of(place: Place, columns: int) -> int:
        return 0 if place.store is None else _rounded_to_lines(place.store.compute_nbytes(columns=columns, **place.sizes))

    @property
    def used(self) -> int:
        """The number of columns that have a feature."""
        return super().used

    @used.setter
    def used(self, columns: int) -> None:
        self._header["used"] = columns
        self.views.cache["valid"] = 0
        for store in self._together:
            store.used = columns

    @property
    def _all(self) -> list[Any]:
        return [store for stores in self.stores for store in stores]

    @property
    def _together(self) -> list[Any]:
        # The same, but those of a linear expert together.
        return [store for stores in self.stores for store in ([stores] if isinstance(stores, WeightStores) else stores)]

    def copy_from(self, other: EnsembleStore) -> None:
        super().copy_from(other)
        for store, theirs in zip(self._together, other._together, strict=True):
            store.copy_from(theirs)
        self.used = other.used

    def snapshot(self) -> bytes:
        """Return all that the store holds as bytes: its own arrays, then the snapshot of each expert's stores, each after its
        length in 8 bytes. Equal stores give equal bytes.
        """
        parts = [self._saved.tobytes(), *(store.snapshot() for store in self._all)]
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:
        """Restore a `snapshot`; see `Store.restore`."""
        parts = _snapshot_parts(snapshot, 1 + len(self._all))
        before = self.block.copy()
        try:
            super().restore(parts[0], trusted)
            for store, part in zip(self._all, parts[1:], strict=True):
                store.restore(part, trusted)
                if store.used != self.used:
                    raise ValueError(f"the snapshot is corrupt: an expert has {store.used} features, and others {self.used}")
        except ValueError:
            self.block[:] = before
            raise

    def _check_block(self, block: np.ndarray) -> None:
        header = self._read_header(block, self._layout.sizes)
        if not (0 <= header["used"] <= self.max_features and 1 <= header["n_outputs"] <= header["outputs"]):
            raise ValueError(
                f"a snapshot with {header['used']} features and {header['n_outputs']} outputs does not fit the store"
            )
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"columns": int(header["used"]), "outputs": int(header["n_outputs"])})
        check_moments(v.moments)
        check_moments(v.target_moments)
        if v.drifts[self.views.experts["resets"] == 0].any() or (v.drifts[:, 1:] > 1.0).any():
            raise ValueError("the snapshot is corrupt: drifts hold numbers of no detector, or means above 1")
        for matrix in (*v.curvatures, *v.inverses, *v.newton_curvatures, *v.newton_inverses):
            if not _is_positive(matrix):
                raise ValueError("the snapshot is corrupt: a matrix of a stack or of an expert is not positive definite")


def _rounded_to_lines(size: int) -> int:
    # Bytes, rounded up so that the next array begins on a cache line.
    return (size + LINE - 1) // LINE * LINE


def _snapshot_parts(snapshot: bytes, n: int) -> list[bytes]:
    parts, at = [], 0
    while at < len(snapshot):
        size = int.from_bytes(snapshot[at : at + 8], "little")
        parts.append(snapshot[at + 8 : at + 8 + size])
        at += 8 + size
    if at != len(snapshot):
        raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
    if len(parts) != n:
        raise ValueError(
            "the snapshot is of an ensemble with other experts, as versions of streamsvm before had them: learn anew; "
            "streamsvm.edge.load reads files of such models, and predicts"
        )
    return parts


def _is_positive(matrix: np.ndarray) -> bool:
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-9):
        return False
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
