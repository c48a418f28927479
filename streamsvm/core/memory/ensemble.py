"""The memory of an ensemble: one block with the stores of its experts, and the weights and statistics that combine them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.memory.block import LINE, Array, Layout, Store, allocate_block, check_size, resolve_columns
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, check_moments
from streamsvm.core.memory.saved_layout import Part, SavedLayout, convert_store, read_header
from streamsvm.core.memory.weights import WeightStore, WeightStores

#: Maximum number of features, or functions of them, of a second-order expert: its memory and time grow with their square.
MAX_SECOND_ORDER_INPUTS = 64

#: Number of stacked models that combine the experts.
N_STACKS = 2

#: Upper limit of recent errors: those of labels are at most 1, those of bounded targets at most 18 standard deviations.
LARGEST_ERROR = 20.0

#: Maximum damping of a feature, where 1 would ignore it.
MAX_DAMPING = 0.98

#: Maximum number of labels in the transition table, which contains the first ones.
MAX_TRANSITION_LABELS = 64

#: The state of an ensemble, in addition to that of all learners.
STATE = np.dtype(
    [
        ("scaling", "i8"),
        ("choice", "i8"),  # the source of predictions, a constant of `streamsvm.core.steps.stack`
        ("last", "i8"),  # class index of the last row, 0 or 1 with one output; -1 before the first row
        ("last_target", "f8"),  # in standard deviations from the mean
        ("features", "i8"),  # columns for which the experts are prepared
        ("functions", "i8"),  # functions of each feature in the additive expert; 0 before the first feature
        ("resets", "i8"),  # number of resets of experts after concept drift
        ("rows", "f8"),  # total weight of the rows of all classes
    ]
)

#: Header fields in addition to the sizes.
HEADER = np.dtype(
    [
        ("used", "i8"),  # columns in use
        ("n_outputs", "i8"),  # outputs in use
    ]
)


#: An expert. The first four are addresses of its compiled functions (see `streamsvm.core.steps.ensemble`), or 0.
EXPERT = np.dtype(
    [
        ("predict", "u8"),
        ("update", "u8"),
        ("rescale", "u8"),
        ("rule", "u8"),  # of a kernel machine or of least squares
        ("begin", "i8"),  # byte range of its stores in the block
        ("end", "i8"),
        ("first_input", "i8"),  # index of its first input to the stacks
        ("base_input", "i8"),  # first input of the expert whose errors it corrects; 0 without one
        ("number", "i8"),  # index among the second-order experts
        ("additive", "i8"),  # whether its inputs are several functions of each feature
        ("resets", "i8"),  # whether it is reset after concept drift
        ("width", "f8"),  # its gamma divided by that of the ensemble
        ("memory", "f8"),  # decay factor of rows
    ]
)
#: The addresses of the compiled functions that combine experts.
CALLS = np.dtype([("predict_row", "u8"), ("learn_row", "u8"), ("compute_output", "u8")])


class EnsembleViews(NamedTuple):
    """The arrays of a block; the header contains their sizes."""

    header: Annotated[np.ndarray, Array(HEADER)]
    moments: Annotated[np.ndarray, Array(np.float64, ("columns", N_MOMENTS))]
    """Moments of each feature; see `streamsvm.core.memory.moments`."""
    first: Annotated[np.ndarray, Array(np.float64, ("columns", N_FIRST), -LARGEST_FLOAT32, LARGEST_FLOAT32)]
    location: Annotated[np.ndarray, Array(np.float64, ("columns",))]
    spread: Annotated[np.ndarray, Array(np.float64, ("columns",), 0.0)]
    """The scale of the scaled rows and of stored vectors; 0 for a constant feature."""
    damping: Annotated[np.ndarray, Array(np.float64, (2, "columns"), 0.0, MAX_DAMPING)]
    """Damping of each feature in the kernel machines by dual ascent, and in classification also in the nearest neighbours and the
    forest; 0 is undamped. The second row is the goal to which the first one is adapted."""
    target_moments: Annotated[np.ndarray, Array(np.float64, ("targets", N_MOMENTS))]
    target_first: Annotated[np.ndarray, Array(np.float64, ("targets", N_FIRST))]
    weights: Annotated[np.ndarray, Array(np.float64, (N_STACKS, "inputs"))]
    """Weights of each stack."""
    curvatures: Annotated[np.ndarray, Array(np.float64, (N_STACKS, "inputs", "inputs"))]
    inverses: Annotated[np.ndarray, Array(np.float64, (N_STACKS, "inputs", "inputs"))]
    losses: Annotated[np.ndarray, Array(np.float64, (N_STACKS,), 0.0, 1e6)]
    """Exponentially decaying sum of the log losses of each stack, or of its absolute errors in regression."""
    errors: Annotated[np.ndarray, Array(np.float64, ("inputs",), 0.0, LARGEST_ERROR)]
    """Recent error of each expert's outputs: an error rate, or a mean absolute error in standard deviations of the target."""
    mistakes: Annotated[np.ndarray, Array(np.float64, ("inputs",), 0.0, 1e6)]
    """Exponentially decaying sum of their mistakes, or of their absolute errors in regression."""
    choice_errors: Annotated[np.ndarray, Array(np.float64, (3,), 0.0, LARGEST_ERROR)]
    """Recent errors of the stacks, of the weighted vote and of the best expert."""
    newton_weights: Annotated[np.ndarray, Array(np.float64, ("newtons", "outputs", "side"))]
    newton_curvatures: Annotated[np.ndarray, Array(np.float64, ("newtons", "side", "side"))]
    newton_inverses: Annotated[np.ndarray, Array(np.float64, ("newtons", "side", "side"))]
    drifts: Annotated[np.ndarray, Array(np.float64, ("experts", 3), 0.0)]
    """State of the drift detector of each expert that is reset after drift."""
    counts: Annotated[np.ndarray, Array(np.float64, ("outputs",), 0.0, 1e100)]
    """Total weight of the rows of each class; with one output, of the positive class."""
    transitions: Annotated[np.ndarray, Array(np.float64, ("transition_labels", "transition_labels"), 0.0, 1e6)]
    """Exponentially decaying counts of label transitions, from the class of the row to that of the column."""
    unscaled: Annotated[np.ndarray, Array(np.float64, (2, "columns"), saved=False)]
    """The current row before scaling, and the row for which ``inputs`` were computed."""
    scaled: Annotated[np.ndarray, Array(np.float32, ("columns",), saved=False)]
    """The current row as the experts see it."""
    ratio: Annotated[np.ndarray, Array(np.float64, ("columns",), saved=False)]
    shift: Annotated[np.ndarray, Array(np.float64, ("columns",), saved=False)]
    """Factors and offsets from the old to the new scale, when stored vectors are rescaled."""
    squares: Annotated[np.ndarray, Array(np.float64, (2, "side"), saved=False)]
    """The inputs of a second-order expert for the current row, and its update direction."""
    inputs: Annotated[np.ndarray, Array(np.float64, ("outputs", "inputs"), saved=False)]
    """The inputs of the stacks, for each output."""
    odds: Annotated[np.ndarray, Array(np.float64, (N_STACKS, "outputs"), saved=False)]
    """Log odds of the current row by each stack, or its decision values."""
    row_inputs: Annotated[np.ndarray, Array(np.float64, (2, "inputs"), saved=False)]
    """The inputs from which a stack learns the current row, and its update direction."""
    scores: Annotated[np.ndarray, Array(np.float64, ("outputs",), saved=False)]
    """Decision values of the current row, or its probabilities."""
    answers: Annotated[np.ndarray, Array(np.int64, (3,), saved=False)]
    """Class indices predicted by the stacks, by the weighted vote and by the best expert."""
    numbers: Annotated[np.ndarray, Array(np.float64, (3,), saved=False)]
    """Targets that they predict, in standard deviations from the mean."""
    experts: Annotated[np.ndarray, Array(EXPERT, ("experts",), saved=False)]
    calls: Annotated[np.ndarray, Array(CALLS, saved=False)]
    cache: Annotated[np.ndarray, Array(np.dtype([("valid", "i8"), ("answered", "i8"), ("repeats", "i8")]), saved=False)]
    """``valid``: whether ``inputs`` belong to ``unscaled[1]``; ``answered``: whether ``odds`` and the predictions do, too;
    ``repeats``: whether the row that is learned equals the last ones."""


_LAYOUT = Layout(EnsembleViews, in_lines=())

#: Opens a block (uint8 [nbytes]) as `EnsembleViews` in Python and in compiled code, without a copy.
ensemble_views: Callable[[np.ndarray], EnsembleViews] = _LAYOUT.views


class ExpertSpec(NamedTuple):
    """The memory that an expert needs."""

    inputs: int
    """Number of its inputs to the stacks."""
    store: Any = None
    """Class of its stores; None without stores."""
    sizes: Mapping[str, int] = MappingProxyType({})
    """Parameters of its stores, except the number of columns."""
    is_second_order: bool = False
    """Whether it needs matrices [features, features]."""

    def count_stores(self, outputs: int) -> int:
        """Return the number of separate memory blocks that this member of an ensemble needs: 0 or 1, but for a linear model one
        for each of the ``outputs`` (decision values).
        """
        return 0 if self.store is None else outputs if self.store is WeightStore else 1


class EnsembleStore(Store[EnsembleViews]):
    """The store of an ensemble: one block that also contains the stores of all experts.

    ``outputs`` is the number of classes, or 1 for two classes and for regression (``targets``). ``columns`` is as in `Store`.
    Raises ValueError if a size is not a positive integer, or memory is exhausted.

    Notes
    -----
    With D columns, it has ``404 D`` bytes, plus those of its experts' stores; ``16 S^2`` for each second-order expert with
    S = min(4 D, 4 max_features, 64) + 1; and ``8 F^2`` for label transitions with F = min(labels, 64).
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(lambda _, **sizes: sizes)

    def __init__(
        self, specs: Sequence[ExpertSpec], max_features: int, outputs: int = 1, targets: bool = False, columns: int | None = None
    ) -> None:
        check_size("max_features", max_features, 1)
        columns = resolve_columns(max_features, columns)
        sizes = {
            "experts": len(specs),
            "inputs": 2 + sum(spec.inputs for spec in specs),
            "outputs": outputs,
            "transition_labels": 0 if targets else min(max(outputs, 2), MAX_TRANSITION_LABELS),
            "newtons": sum(spec.is_second_order for spec in specs),
            "side": min(4 * min(columns, int(max_features)), MAX_SECOND_ORDER_INPUTS) + 1,
            "targets": int(targets),
        }
        stop = _round_up_to_lines(_LAYOUT.compute_nbytes({**sizes, "columns": columns}))
        store_counts_and_bytes = [(spec.count_stores(outputs), self._compute_store_bytes(spec, columns)) for spec in specs]
        parameters = f"max_features={max_features} and outputs={outputs}"
        block = allocate_block(stop + sum(count * nbytes for count, nbytes in store_counts_and_bytes), parameters)
        super().__init__(max_features, parameters, block, columns, **sizes)
        self.block = block
        self._header["n_outputs"] = outputs
        #: The stores of each expert: none, one, or one for each output.
        self.stores: list[Any] = []
        first_input, second_order_index = 2, 0
        for expert, spec, (count, nbytes) in zip(self.views.experts, specs, store_counts_and_bytes, strict=True):
            start, stop = stop, stop + count * nbytes
            expert["begin"], expert["end"], expert["first_input"], expert["number"] = start, stop, first_input, second_order_index
            parts = block[start:stop].reshape(count, nbytes)
            if spec.store is WeightStore:
                self.stores.append(WeightStores(max_features, columns, parts))
            else:
                sizes_of_store = {**spec.sizes, "max_features": max_features, "columns": columns}
                self.stores.append([spec.store(**sizes_of_store, within=part) for part in parts])
            first_input, second_order_index = first_input + spec.inputs, second_order_index + spec.is_second_order

    @staticmethod
    def _compute_store_bytes(spec: ExpertSpec, columns: int) -> int:
        """Return the number of bytes, a multiple of 64, that each separate memory block of an ensemble's member takes, for this
        number of feature ``columns``. ``spec`` describes the member. Returns 0 if the member needs no such block.
        """
        return 0 if spec.store is None else _round_up_to_lines(spec.store.compute_nbytes(columns=columns, **spec.sizes))

    @property
    def used(self) -> int:
        """The number of feature columns of this memory that are in use: one for each feature seen. Setting it also sets that of
        all members of the ensemble.
        """
        return super().used

    @used.setter
    def used(self, columns: int) -> None:
        self._header["used"] = columns
        self.views.cache["valid"] = 0
        for store in self._grouped_stores:
            store.used = columns

    @property
    def _all_stores(self) -> list[Any]:
        return [store for stores in self.stores for store in stores]

    @property
    def _grouped_stores(self) -> list[Any]:
        """The memory objects of all members of the ensemble, as a list in the order of the members. A linear member has one
        object, `WeightStores`, for the memory of all its decision values.
        """
        return [store for stores in self.stores for store in ([stores] if isinstance(stores, WeightStores) else stores)]

    def copy_from(self, source: EnsembleStore) -> None:
        """Copy the contents of ``source`` into this ensemble's memory. ``source`` is the memory of an ensemble with the same
        members, and at most as many columns and outputs.
        """
        super().copy_from(source)
        for store, theirs in zip(self._grouped_stores, source._grouped_stores, strict=True):
            store.copy_from(theirs)
        self.used = source.used

    def snapshot(self) -> bytes:
        """Return a copy of the saved contents of this memory, with those of all members of the ensemble, as bytes. Equal contents
        give equal bytes.

        These are the ensemble's own arrays and the snapshot of each expert's store, each preceded by its length in 8 bytes.
        """
        parts = [self._saved.tobytes(), *(store.snapshot() for store in self._all_stores)]
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:
        """Replace the contents of this ensemble's memory by ``snapshot``, bytes that `snapshot` returned. Raises ValueError, and
        changes nothing, if the bytes are corrupt or come from an ensemble with other members. ``trusted`` (for bytes that were
        made in this process) skips the check of contents.
        """
        parts = _split_snapshot(snapshot, 1 + len(self._all_stores))
        before = self.block.copy()
        try:
            super().restore(parts[0], trusted)
            for store, part in zip(self._all_stores, parts[1:], strict=True):
                store.restore(part, trusted)
                if store.used != self.used:
                    raise ValueError(f"the snapshot is corrupt: an expert has {store.used} features, the ensemble {self.used}")
        except ValueError:
            self.block[:] = before
            raise

    def convert(self, snapshot: bytes, saved: SavedLayout, parts: Sequence[Part]) -> list[int]:
        """Replace the contents of this initial memory by those of ``snapshot``, the bytes of an ensemble with the layout
        ``saved``. ``parts`` are those of this ensemble: itself, and its members. Members continue those with the same name and
        kind of store; others of the snapshot are dropped. Return the indices of new members, which stay initial. Raise a
        ValueError if the snapshot is invalid; then the contents are undefined.

        A new member has the error of the worst other one at first, so that it is not taken for the best. The matrices of the
        stacks stay positive definite: rows and columns of new inputs are those of an initial stack.
        """
        (own, *olds), first_section = saved.parts, snapshot[8 : 8 + int.from_bytes(snapshot[:8], "little")]
        n_outputs = int(read_header(first_section, saved, own.kind)["outputs"])
        counts = [n_outputs if part.kind == WeightStore.__name__ else int(part.kind != "") for part in olds]
        _, *sections = _split_snapshot(snapshot, 1 + sum(counts))
        maps = {"experts": _match([part[:2] for part in olds], [part[:2] for part in parts[1:]])}
        for name, n_common in (("inputs", 2), ("newtons", 0)):
            entries = [[(*p[:2], i) for p in of for i in range(getattr(p, name))] for of in (olds, parts[1:])]
            maps[name] = _match(*([*range(n_common), *members] for members in entries))
        convert_store(self, first_section, saved, own, parts[0], maps)
        v, kept = self.views, maps["inputs"][1]
        for values in (v.errors, v.mistakes):
            values[np.setdiff1d(np.arange(len(values)), kept)] = values[kept].max()
        if len(kept) < 2 + sum(part.inputs for part in olds):
            v.inverses[:] = np.linalg.inv(v.curvatures)
        for old, new in zip(*maps["experts"], strict=True):
            begin = sum(counts[:old])
            for store, section in zip(self.stores[new], sections[begin : begin + counts[old]], strict=True):
                convert_store(store, section, saved, olds[old], parts[1 + new])
                if store.used != self.used:
                    raise ValueError(f"the snapshot is corrupt: an expert has {store.used} features, the ensemble {self.used}")
        self._check_block(self.block)
        return [new for new in range(len(parts) - 1) if new not in maps["experts"][1]]

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
            raise ValueError("the snapshot is corrupt: drifts hold numbers of experts without a drift detector, or means above 1")
        for matrix in (*v.curvatures, *v.inverses, *v.newton_curvatures, *v.newton_inverses):
            if not _is_positive_definite(matrix):
                raise ValueError("the snapshot is corrupt: a matrix of a stack or of an expert is not positive definite")


def _round_up_to_lines(nbytes: int) -> int:
    """Return ``nbytes``, a number of bytes, rounded up to a multiple of 64, the size of a cache line."""
    return (nbytes + LINE - 1) // LINE * LINE


def _match(olds: Sequence[Any], news: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the indices of the items that two sequences share: those in ``olds``, and those in ``news``."""
    shared = [item for item in news if item in olds]
    return [olds.index(item) for item in shared], [news.index(item) for item in shared]


def _split_snapshot(snapshot: bytes, n_parts: int) -> list[bytes]:
    """Split the ``snapshot`` of an ensemble's memory into a list of ``n_parts`` snapshots: first that of the ensemble's own
    arrays, then one for each memory block of its members. Raises ValueError if the bytes are cut off, or have another number of
    parts.
    """
    parts, offset = [], 0
    while offset < len(snapshot):
        size = int.from_bytes(snapshot[offset : offset + 8], "little")
        parts.append(snapshot[offset + 8 : offset + 8 + size])
        offset += 8 + size
    if offset != len(snapshot):
        raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
    if len(parts) != n_parts:
        raise ValueError(
            f"the snapshot has the stores of {len(parts) - 1} experts, not {n_parts - 1}: it is corrupt, or of a version before "
            "the first release. That version can continue to learn; streamsvm.edge.load predicts with its file"
        )
    return parts


def _is_positive_definite(matrix: np.ndarray) -> bool:
    """Return whether ``matrix`` is symmetric (within rounding) and positive definite, by an attempt at a Cholesky
    factorisation.
    """
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-9):
        return False
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
