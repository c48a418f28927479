"""Small models of many keys, such as devices or customers: a linear model and naive Bayes for each key, in a block of bytes.

All keys share the names of features, the labels, and the statistics that standardise rows. If there are too many keys,
the least recently used ones are evicted into a store, or forgotten.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar, validate_count, validate_target
from streamsvm.core.compiling.common import expect_component
from streamsvm.core.memory.block import LARGEST, LINE, choose_columns
from streamsvm.core.memory.features import LONGEST_NAME, FeatureSpace
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, check_moments, pool_moments
from streamsvm.core.saved import BLOCK_STORE
from streamsvm.core.steps.keyed import LAST_ROW, N_COLUMNS, N_OUTPUTS, WEIGHTS, predict_then_learn_keys
from streamsvm.files.messages import short_repr
from streamsvm.learners.labels import Labels

Key = str | int | float

#: Further features and labels have no effect on the models of keys, which bounds the memory per key.
MAX_FEATURES, MAX_LINEAR_FEATURES, MAX_LABELS = 96, 24, 8
_NUMBERS = "rows", "last_row", "columns", "outputs"  # the fields of a block that are one number
_INTERCEPT_VARIANCE, _WEIGHT_VARIANCE = 2.0, 0.25  # of the prior distribution of the linear model


def _make_start(columns: int, outputs: int, labels: int) -> np.ndarray:
    """Return the block of a new key as an array [1] of records, with room for a number of ``columns``, linear ``outputs`` and
    ``labels`` (0 in a regression). The fields, all float64, are in the order of `streamsvm.core.steps.keyed`.
    """
    width = 1 + min(columns, MAX_LINEAR_FEATURES)
    shapes = {"linear": (outputs, width), "covariance": (width, width), "counts": (labels,)}
    shapes |= {"means": (labels, columns), "squares": (labels, columns)}
    dtype = np.dtype([*((name, "f8") for name in _NUMBERS), *((name, "f8", shape) for name, shape in shapes.items())])
    start = np.zeros(1, [*dtype.descr, ("unused", "u1", (-dtype.itemsize % LINE,))])
    start["columns"], start["outputs"] = columns, outputs
    start["covariance"] = np.diag([_INTERCEPT_VARIANCE, *[_WEIGHT_VARIANCE] * (width - 1)])
    return start


def _convert_blocks(blocks: np.ndarray, start: np.ndarray, columns: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return ``blocks`` [n] in the format of ``start``. ``columns`` and ``outputs`` have the new index of each of their columns
    and outputs; -1 and further ones are left out.
    """
    result, kept, rows = np.repeat(start, len(blocks)), np.flatnonzero(columns >= 0), np.flatnonzero(outputs >= 0)
    pairs = np.array([(0, 0), *zip(1 + kept, 1 + columns[kept], strict=True)])
    old, new = pairs[(pairs < (blocks["linear"].shape[2], start["linear"].shape[2])).all(axis=1)].T
    result["rows"], result["last_row"] = blocks["rows"], blocks["last_row"]
    result["linear"][:, outputs[rows, None], new] = blocks["linear"][:, rows[:, None], old]
    result["covariance"][:, new[:, None], new] = blocks["covariance"][:, old[:, None], old]
    if blocks["counts"].size:
        result["counts"][:, outputs[rows]] = blocks["counts"][:, rows]
        for name in ("means", "squares"):
            result[name][:, outputs[rows, None], columns[kept]] = blocks[name][:, rows[:, None], kept]
    return result


class KeyModels:
    """The models of many keys, and the statistics and names that they share.

    ``key`` is the name of the field of a row with its key. At most ``max_keys`` are kept in memory, and a key without any of the
    last ``idle`` rows starts again (None: never).
    """

    def __init__(self, key: str, is_regression: bool, max_keys: int, idle: int | None) -> None:
        expect_component(type(self))
        #: The name of the field of a row with its key.
        self.key: str = key
        self._is_regression, self._max_keys, self._idle = is_regression, max_keys, idle
        #: The `KeyTable` of evicted keys, beside the checkpoints of a run in a folder; None if they are forgotten.
        self.store: Any = None
        self.features: FeatureSpace = FeatureSpace(MAX_FEATURES, "ignore", np.float64)
        self.labels: Labels = Labels(MAX_LABELS)
        #: The number of rows that the models have learned, of all keys.
        self.n_learned: int = 0
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()  # the least recently used key comes first
        self._changed: dict[Key, None] = {}  # keys in memory that have learned a row since the last checkpoint
        #: Learns the rows that were processed last, unless it has, and keeps the models of their keys in memory.
        self.commit: Callable[[], None] = _do_nothing
        self._start = _make_start(2, 1, int(not is_regression))
        self._shared = np.zeros((3, N_MOMENTS + N_FIRST))

    def _grow(self) -> None:
        """Enlarge all blocks, if there are more features or labels than they have room for."""
        columns, labels = choose_columns(len(self.features), MAX_FEATURES), max(self.labels.n_seen, 1)
        start = _make_start(columns, labels, 0 if self._is_regression else labels)
        if start.dtype != self._start.dtype:
            shared, n = np.zeros((columns + 1, N_MOMENTS + N_FIRST)), len(self._shared) - 1
            order = np.arange(n), np.arange(self._start["linear"].shape[1])
            blocks = _convert_blocks(self._join_blocks(self._blocks.values()), start, *order)
            shared[:n], shared[-1] = self._shared[:n], self._shared[n]
            blocks_by_key = OrderedDict(zip(self._blocks, _split_blocks(blocks), strict=True))
            self.__dict__.update(_start=start, _blocks=blocks_by_key, _shared=shared)

    def _join_blocks(self, blocks: Iterable[bytes]) -> np.ndarray:
        """Return ``blocks`` as an array [n] of records."""
        return np.frombuffer(bytearray().join(blocks), self._start.dtype)

    # Rows ---------------------------------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> dict[str, int]:
        """The names of the predictions of a row, and their columns in those of `process_rows`: that of the linear model and of
        naive Bayes for each label (of two, for the larger one), and the logarithm of 1 + the rows of the key. It is empty before
        the second label.
        """
        labels = dict(enumerate([""] if self._is_regression else (f" {label}" for label in self.labels.seen)))
        n, kinds = len(labels), ["linear"] if self._is_regression else ["linear", "bayes"]
        if not self._is_regression and n <= 2:
            labels.pop(min(labels, key=labels.__getitem__, default=0), None)
        names = {f"{self.key} own {kind}{label}": i * n + k for i, kind in enumerate(kinds) for k, label in labels.items()}
        return names and {**names, f"{self.key} own rows": len(kinds) * n}

    def _is_input(self, name: Hashable) -> bool:
        """Return whether the feature ``name`` is an input of the models: unless it is the key, or was derived from it."""
        return not (name == self.key or (isinstance(name, str) and name.startswith((f"{self.key}=", f"{self.key}~"))))

    def _has_new(self, names: Iterable[Hashable], labels: Iterable[Any]) -> bool:
        """Return whether the models learn further features or labels with a row: some of the features ``names`` or ``labels``."""
        is_new_label = not self._is_regression and not all(label in self.labels.seen for label in labels)
        is_new_name = len(self.features) < MAX_FEATURES and (self.features.find_columns(names, False) < 0).any()
        return bool(is_new_name or (is_new_label and self.labels.n_seen < MAX_LABELS))

    def process_row(self, x: Mapping[Any, Any], y: Any = None, weight: float = 0.0) -> dict[str, float]:
        """Predict the row ``x`` with the models of its key, and return the predictions by name. If the ``weight`` is above 0,
        `commit` then learns the label or target ``y``.
        """
        key, inputs, target = parse_key(x.get(self.key)), {name: x[name] for name in x if self._is_input(name)}, math.nan
        is_learned, seen = weight > 0.0 and key is not None, self.labels.seen
        if is_learned and self._is_regression:
            target = validate_target(y)
        elif is_learned and y in seen:
            target = float(seen.index(y))
        row = np.zeros(len(self._shared) - 1)
        self.features.fill_row(row, inputs, False)
        if not (np.abs(row) <= LARGEST_FLOAT32).all():
            self.features.raise_for_row(inputs)
        out = self._process([key], row[None], np.array([[target, weight]]))
        if is_learned and self._has_new(inputs, [y]):
            self.commit = partial(self._learn_new, x, y, weight)
        return {name: float(out[0, i]) for name, i in self.outputs.items()}

    def _learn_new(self, x: Mapping[Any, Any], y: Any, weight: float) -> None:
        """Learn a row with new features or a new label."""
        self.features.find_columns(filter(self._is_input, x), True)
        if not self._is_regression and self.labels.n_seen < MAX_LABELS:
            self.labels.encode(y)
        self._grow()
        self.process_row(x, y, weight)
        self.commit()

    def process_rows(
        self, X: np.ndarray, names: Sequence[Hashable], y: Sequence[Any], weights: np.ndarray | None
    ) -> np.ndarray | None:
        """Predict each of the rows ``X`` [n, names] with models that have learned the rows before it. `commit` then learns their
        labels or targets in ``y``, unless one is missing (None) or its weight in ``weights`` is 0. Return the predictions float64
        [n, columns of `outputs`], or None if rows must be processed one by one. Numbers are not checked.
        """
        inputs = [i for i, name in enumerate(names) if self._is_input(name)]
        if self.key not in names or self._has_new([names[i] for i in inputs], {*y} - {None}):
            return None
        columns = self.features.find_columns([names[i] for i in inputs], False)
        rows, targets = np.zeros((len(X), len(self._shared) - 1)), np.ones((len(X), 2))
        rows[:, columns[columns >= 0]] = X[:, inputs][:, columns >= 0]
        numbers = X[:, names.index(self.key)].tolist()
        keys = [None if number != number else parse_key(number) for number in numbers]
        codes = {None: math.nan, **{label: float(i) for i, label in enumerate(self.labels.seen)}}
        targets[:, 0] = [codes.get(label, label if self._is_regression else math.nan) for label in y]
        targets[:, 1] = 1.0 if weights is None else weights
        targets[np.array([key is None for key in keys], bool) | (targets[:, 1] <= 0.0), 0] = math.nan
        return self._process(keys, rows, targets)

    def _process(self, keys: Sequence[Key | None], X: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Predict the rows ``X`` [n, columns] with the models of their ``keys``, and let `commit` learn those with a target that
        is not NaN. ``targets`` [n, 2] are targets or indices of labels, and weights. Return the predictions as `process_rows`.
        """
        is_learned, old_blocks, start = (~np.isnan(targets[:, 0])).tolist(), self._find_blocks(keys), self._start.tobytes()
        slots, n_keys, blocks = np.zeros(len(X), np.int64), self.n_keys, [start]
        indices: dict[Any, int] = {}  # of the blocks of keys
        recent: OrderedDict[Any, None] = OrderedDict()  # keys in memory that these rows have used, the least recent one first
        evicted, learned = set[Any](), set(compress(keys, is_learned))
        unused = (key for key in self._blocks if key not in recent)
        for i, key in enumerate(keys):
            if key not in indices and (is_learned[i] or key in old_blocks):
                indices[key] = len(blocks)
                blocks.append(old_blocks.get(key, start))
            if key not in indices:
                continue
            slots[i] = indices[key]
            is_absent = key not in recent and (key not in self._blocks or key in evicted)
            if is_learned[i] or is_absent:
                recent[key] = recent.pop(key, None)
                evicted.discard(key)
                n_keys += is_absent
            while n_keys > self._max_keys:
                if (oldest := next(unused, None)) is None:
                    oldest, _ = recent.popitem(last=False)
                evicted.add(oldest)
                n_keys -= 1
                if self.store is None:  # it starts again
                    old_blocks.pop(oldest, None)
                    indices.pop(oldest, None)
        arena, shared, n_learned = self._join_blocks(blocks), self._shared.copy(), self.n_learned + sum(is_learned)
        sizes = self._start["linear"].shape[2], len(self.features), self._start["counts"].shape[1]
        out = np.empty((len(X), self._start["linear"].shape[1] + sizes[2] + 1))
        options = np.array([*sizes, self.n_learned, self._idle or 0])
        numbers = arena.view(np.float64).reshape(len(blocks), -1)
        predict_then_learn_keys(numbers, slots, shared, X, targets, options, out)

        def commit() -> None:
            processed = _split_blocks(arena)
            if evicted and self.store is not None:
                changed = evicted & (learned | self._changed.keys())
                blocks = {key: processed[indices[key]] if key in learned else self._blocks[key] for key in changed}
                self._write_blocks(self.store, blocks)
            # If Ctrl-C comes in between, the state is valid.
            self.__dict__.update(n_learned=n_learned, _shared=shared)
            self._changed.update({key: None for key in recent if key in learned})
            for key in recent:
                self._blocks[key] = processed[indices[key]]
                self._blocks.move_to_end(key)
            for key in evicted:
                self._blocks.pop(key, None)
                self._changed.pop(key, None)
            self.commit = _do_nothing

        self.commit = commit
        return out

    # Storing, saving and merging ------------------------------------------------------------------------------------------------

    def _find_blocks(self, keys: Sequence[Any]) -> dict[Any, bytes]:
        """Return the blocks of those of the ``keys`` that are in memory or in the store, by key."""
        blocks = {key: block for key in keys if (block := self._blocks.get(key)) is not None}
        absent = [] if self.store is None else [key for key in dict.fromkeys(keys) if key is not None and key not in blocks]
        return blocks | self.store.read(absent, self._parse_block) if absent else blocks

    def _parse_block(self, data: bytes) -> bytes:
        """Return a block of the store in the present format. Raise a ValueError if it is corrupt."""
        return self._parse_blocks(data, 1).tobytes()

    def _parse_blocks(self, data: bytes, n: int) -> np.ndarray:
        """Return ``n`` blocks from outside, ``data``, as an array [n] in the present format. They may have fewer features and
        labels or, if a learner has stored them after a model that only predicts was loaded, more: these are left out. Raise a
        ValueError if they are corrupt.
        """
        numbers = np.frombuffer(data[: 8 * WEIGHTS], np.float64) if len(data) > 8 * WEIGHTS else np.zeros(WEIGHTS)
        columns, outputs = numbers[N_COLUMNS], numbers[N_OUTPUTS]
        own = len(self._shared) - 1, self._start["linear"].shape[1]
        most = own if self.store is None else (MAX_FEATURES, MAX_LABELS)
        if columns not in range(2, most[0] + 1) or outputs not in range(1, most[1] + 1):
            raise ValueError(f"the saved models of a key are corrupt: they have {columns:g} columns and {outputs:g} outputs")
        start = _make_start(int(columns), int(outputs), 0 if self._is_regression else int(outputs))
        if len(data) != n * start.nbytes:
            raise ValueError(f"the saved models of {n} keys are corrupt: they have {len(data):,} bytes, not {n * start.nbytes:,}")
        blocks = np.frombuffer(data, start.dtype)
        is_valid = (np.abs(np.frombuffer(data, np.float64)) <= LARGEST).all() and (blocks["rows"] > 0.0).all()
        is_valid &= all((blocks[name] == start[name]).all() for name in ("columns", "outputs"))
        is_valid &= all((blocks[name] >= 0.0).all() for name in ("counts", "squares"))
        if not (is_valid and (np.diagonal(blocks["covariance"], axis1=1, axis2=2) > 0.0).all()):
            raise ValueError("the saved models of a key are corrupt: a number is missing, too large or negative")
        return _convert_blocks(blocks, self._start, *map(np.arange, np.minimum(own, (int(columns), int(outputs)))))

    @property
    def n_keys(self) -> int:
        """The number of keys in memory."""
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """The size of the models in bytes, without the names of keys. It grows with the number of keys, up to ``max_keys``."""
        return self.n_keys * self._start.nbytes + self._shared.nbytes

    def describe_key(self, name: str | float) -> dict[str, Any]:
        """Return facts about the models of the key called ``name``: the number of rows that they have learned, the number of the
        last one among the rows of all keys, and where they are. Empty if it has no models.
        """
        key: Any = parse_key(name)
        (block,) = self._join_blocks([self._find_blocks([key]).get(key, self._start.tobytes())])
        facts = {"rows of own models": int(block["rows"]), "last updated at row": int(block["last_row"])}
        return facts | {"own models in": "memory" if key in self._blocks else "keys.sqlite"} if block["rows"] else {}

    def _write_blocks(self, table: Any, blocks: Mapping[Any, bytes]) -> None:
        """Write ``blocks`` by key into a `KeyTable`."""
        rows = ((key, _get_last_row(block), block) for key, block in blocks.items())
        table.write(rows, 0 if self._idle is None else self.n_learned - self._idle)

    def _list_blocks(self) -> dict[Any, bytes]:
        """Return up to ``max_keys`` blocks by key, in the order of their last rows, also of keys in the store."""
        stored = () if self.store is None else self.store.read_recent(self._max_keys, self._parse_block)
        blocks = {key: block for key, _, block in stored} | self._blocks
        return dict(sorted(blocks.items(), key=lambda item: _get_last_row(item[1]))[-self._max_keys :])

    def _get_changed(self) -> dict[Any, bytes]:
        """Return the blocks in memory that have learned a row since the last checkpoint, by key."""
        return {key: self._blocks[key] for key in self._changed if key in self._blocks}

    def share_store(self, other: KeyModels) -> None:
        """Continue with the store of ``other``. These models must be a copy of them."""
        if other.store is not None:
            self.store = other.store
            self._write_blocks(self.store, other._get_changed())

    def get_state(self) -> dict[str, Any]:
        """Return the saved state of the models, as plain values and arrays. Keys are in the order of their last rows. While a
        checkpoint is written into a folder, write changed blocks into its store instead.
        """
        if (store := BLOCK_STORE.get()) is None:
            blocks = self._list_blocks()
            state = {"keys": [*blocks], "blocks": b"".join(blocks.values())}
        else:
            table = store.attach(self.store)
            self._write_blocks(table, self._get_changed() if table is self.store else self._list_blocks())
            self.store, self._changed, state = table, {}, {"table": table.number}
        names = {"features": self.features.names, "labels": self.labels.seen}
        return {**names, "n_learned": self.n_learned, "shared": self._shared.copy(), **state}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. Raise a ValueError if it is corrupt."""
        self.features.restore(state["features"])
        self.labels.restore_labels(state["labels"])
        self.n_learned = validate_count("n_learned", state["n_learned"])
        self._grow()
        if "table" in state:
            if (store := BLOCK_STORE.get()) is None:
                raise ValueError("the models of keys are in a file beside the checkpoint: load it from its folder")
            self.store = store.open(state["table"])
        shared, keys = state["shared"], [parse_key(key) for key in state.get("keys", ())]
        blocks = self._parse_blocks(state.get("blocks", b""), len(keys)) if keys else self._start[:0]
        last_rows = np.array([0.0, *blocks["last_row"], self.n_learned + 0.5])
        is_array = isinstance(shared, np.ndarray) and shared.dtype == np.float64 and shared.shape == self._shared.shape
        is_valid = is_array and (np.abs(shared) <= LARGEST).all() and (np.diff(last_rows) > 0.0).all()
        if not is_valid or None in keys or len({*keys}) < len(keys):
            raise ValueError("the saved models of keys are corrupt: statistics, a last row, or a key, are invalid")
        check_moments(shared[:, :N_MOMENTS])
        self._shared[:] = shared
        self._set_blocks(keys, blocks)

    def _set_blocks(self, keys: Sequence[Any], blocks: np.ndarray) -> None:
        """Replace all keys by the last ``max_keys`` of ``keys``, which have these ``blocks`` [n]."""
        self._blocks = OrderedDict([*zip(keys, _split_blocks(blocks), strict=True)][-self._max_keys :])

    def merge_with(self, *others: KeyModels) -> None:
        """Merge the models of ``others``, which have learned other rows, into these. A key that several of them have keeps the
        models that have learned the most rows. If there are more than 8 labels, further ones are left out.
        """
        merged, parts = KeyModels(self.key, self._is_regression, self._max_keys, self._idle), [self, *others]
        for part in parts:
            merged.n_learned += part.n_learned
            merged.features.find_columns(part.features.names, True)
        merged.labels.restore_labels([*dict.fromkeys(label for part in parts for label in part.labels.seen)][:MAX_LABELS])
        merged._grow()
        newest, moments, seen = dict[Key, Any](), list[Any](), merged.labels.seen
        for part in parts:
            columns = merged.features.find_columns(part.features.names, False)
            outputs = np.array([seen.index(label) if label in seen else -1 for label in part.labels.seen] or [0])
            own = part._list_blocks()
            blocks = _convert_blocks(part._join_blocks(own.values()), merged._start, columns, outputs)
            for key, block in zip(own, blocks, strict=True):
                if key not in newest or block["rows"] > newest[key]["rows"]:
                    newest[key] = block
            statistics = part._shared[[*np.flatnonzero(columns >= 0), -1]]
            places = np.append(columns[columns >= 0], len(merged._shared) - 1)
            moments.append((*np.split(statistics, [N_MOMENTS], axis=1), places))
        pool_moments(moments, merged._shared[:, :N_MOMENTS], merged._shared[:, N_MOMENTS:])
        keys = sorted(newest, key=lambda key: newest[key]["last_row"])
        blocks = np.array([newest[key] for key in keys], merged._start.dtype)
        blocks["last_row"] = merged.n_learned - np.arange(len(keys))[::-1]  # distinct
        merged._set_blocks(keys, blocks)
        self.__dict__.update(merged.__dict__)


def _do_nothing() -> None:
    """Learn nothing: no rows were processed."""


def _split_blocks(blocks: np.ndarray) -> list[bytes]:
    """Return the bytes of each of the ``blocks`` [n]."""
    split: list[bytes] = blocks.view(f"V{blocks.itemsize}").tolist()
    return split


def _get_last_row(block: bytes) -> int:
    """Return the number of the last row of a block among those of all keys."""
    return int(struct.unpack_from("d", block, 8 * LAST_ROW)[0])


def parse_key(value: Any) -> Key | None:
    """Return the key of a row: a text or number, where equal numbers are the same key; None if it is missing, or its
    number is too large for a float. Raise a ValueError for other values.
    """
    if isinstance(value := to_python_scalar(value), int | float):
        return (int(value) if value == int(value) else value) if abs(value) < 1e308 else None
    if not (value is None or (isinstance(value, str) and len(value) <= LONGEST_NAME)):
        raise ValueError(f"the key {short_repr(value)} is not a text of up to {LONGEST_NAME:,} characters, or a number")
    return value
