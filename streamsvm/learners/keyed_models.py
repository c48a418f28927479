"""Small models of many keys, such as devices or customers: a linear model and naive Bayes for each key, in one array.

All keys share the names of features, the labels, and the statistics that standardise rows. If there are too many keys,
the least recently used ones are evicted into a store, or forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar, validate_count, validate_target
from streamsvm.core.compiling.common import expect_component
from streamsvm.core.memory.block import LARGEST, LINE, allocate_block, choose_columns
from streamsvm.core.memory.features import LONGEST_NAME, FeatureSpace
from streamsvm.core.memory.moments import N_FIRST, N_MOMENTS, check_moments, pool_moments
from streamsvm.core.saved import BLOCK_STORE
from streamsvm.core.steps.keyed import N_COLUMNS, N_OUTPUTS, WEIGHTS, predict_then_learn_keys
from streamsvm.files.messages import short_repr
from streamsvm.learners.labels import Labels, TooManyLabelsError

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
        self._n_saved = 0
        self._slots: OrderedDict[Any, int] = OrderedDict()  # the least recently used key comes first
        self._leaving: dict[Key, np.void] = {}  # evicted blocks that are not in the store yet
        self._log: list[Any] | None = None  # what `_note_blocks` has noted of the current rows
        self._start = _make_start(2, 1, int(not is_regression))
        self._shared = np.zeros((3, N_MOMENTS + N_FIRST))
        self._blocks = self._allocate(self._start)

    def _allocate(self, start: np.ndarray) -> np.ndarray:
        """Return room for the blocks of ``max_keys`` keys in the format of ``start``. Unused pages cost nothing."""
        return allocate_block(self._max_keys * start.nbytes, "max_keys").view(start.dtype)

    def _grow(self) -> None:
        """Enlarge all blocks, if there are more features or labels than they have room for."""
        columns, labels = choose_columns(len(self.features), MAX_FEATURES), max(self.labels.n_seen, 1)
        start = _make_start(columns, labels, 0 if self._is_regression else labels)
        if start.dtype != self._start.dtype:
            blocks, shared, n = self._allocate(start), np.zeros((columns + 1, N_MOMENTS + N_FIRST)), len(self._shared) - 1
            outputs = np.arange(len(self._start["linear"][0]))
            blocks[: self.n_keys] = _convert_blocks(self._blocks[: self.n_keys], start, np.arange(n), outputs)
            shared[:n], shared[-1] = self._shared[:n], self._shared[n]
            self.__dict__.update(_start=start, _blocks=blocks, _shared=shared)

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

    def process_row(self, x: Mapping[Any, Any], y: Any = None, weight: float = 0.0) -> dict[str, float]:
        """Predict the row ``x`` with the models of its key, and return the predictions by name. Then learn its label or target
        ``y``, if the ``weight`` is above 0.
        """
        key, inputs, target = parse_key(x.get(self.key)), {name: x[name] for name in x if self._is_input(name)}, math.nan
        if weight > 0.0 and key is not None:
            with suppress(TooManyLabelsError):
                target = validate_target(y) if self._is_regression else self.labels.encode(y)
                self.features.fill_row(np.zeros(len(self.features)), inputs, True)
                self._grow()
                target = target if self._is_regression else float(self.labels.seen.index(y))
        row = np.zeros(len(self._shared) - 1)
        self.features.fill_row(row, inputs, False)
        if not (np.abs(row) <= LARGEST_FLOAT32).all():
            self.features.raise_for_row(inputs)
        with self.rollback_on_error(None):
            out = self._process([key], row[None], np.array([[target, weight]]))
        return {name: float(out[0, i]) for name, i in self.outputs.items()}

    def process_rows(
        self, X: np.ndarray, names: Sequence[Hashable], y: Sequence[Any], weights: np.ndarray | None
    ) -> np.ndarray | None:
        """Predict each of the rows ``X`` [n, names], then learn its label or target in ``y``, unless it is missing (None) or its
        weight in ``weights`` is 0. Return the predictions float64 [n, columns of `outputs`], or None if rows must be processed
        one by one. Numbers are not checked.
        """
        inputs = [i for i, name in enumerate(names) if self._is_input(name)]
        columns = self.features.find_columns([names[i] for i in inputs], False)
        codes = {None: math.nan, **{label: float(i) for i, label in enumerate(self.labels.seen)}}
        has_new_name = (columns < 0).any() and len(self.features) < MAX_FEATURES
        has_new_label = not (self._is_regression or self.labels.n_seen == MAX_LABELS or {*y} <= codes.keys())
        if self.key not in names or has_new_name or has_new_label:
            return None
        rows, targets = np.zeros((len(X), len(self._shared) - 1)), np.ones((len(X), 2))
        rows[:, columns[columns >= 0]] = X[:, inputs][:, columns >= 0]
        numbers = X[:, list(names).index(self.key)].tolist()
        keys = [int(number) if number.is_integer() else parse_key(number) for number in numbers]
        targets[:, 0] = [codes.get(label, label if self._is_regression else math.nan) for label in y]
        targets[:, 1] = 1.0 if weights is None else weights
        targets[np.array([key is None for key in keys], bool) | (targets[:, 1] <= 0.0), 0] = math.nan
        return self._process(keys, rows, targets)

    def _process(self, keys: Sequence[Key | None], X: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Predict the rows ``X`` [n, columns] with the models of their ``keys``, and learn those with a target that is not NaN.
        ``targets`` [n, 2] are targets or indices of labels, and weights. Return the predictions as `process_rows`.
        """
        n_outputs = self._start["linear"].shape[1] + self._start["counts"].shape[1] + 1
        out, slots, start = np.empty((len(X), n_outputs)), np.empty(len(X), np.int64), 0
        stored, is_learned = self._read_evicted(keys), (~np.isnan(targets[:, 0])).tolist()
        for i, key in enumerate(keys):
            slot = None if key is None else self._slots.get(key)
            if key is not None and slot is None and (is_learned[i] or key in stored):
                slot, evicted = self.n_keys, None
                if slot == self._max_keys:  # evict a key, after earlier rows, which may be of this key
                    self._compute(*(array[start:i] for array in (slots, X, targets, out)))
                    start, evicted = i, next(iter(self._slots))
                    slot = self._slots[evicted]
                    if self.store is not None:
                        stored[evicted] = self._blocks[[slot]]
                        if stored[evicted]["last_row"] > self._n_saved:
                            self._leaving[evicted] = stored[evicted][0]
                self._note_blocks(slot, key, evicted)  # before any change: Ctrl-C may come at any time
                self._slots.pop(evicted, None)
                self._blocks[slot], self._slots[key] = stored.pop(key, self._start)[0], slot
            slots[i] = -1 if slot is None else slot
            if is_learned[i]:
                self._slots.move_to_end(key)
        self._compute(*(array[start:] for array in (slots, X, targets, out)))
        return out

    def _compute(self, slots: np.ndarray, X: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
        """Predict and learn rows whose keys have these ``slots``, as `_process`, into ``out``."""
        learned = slots[~np.isnan(targets[:, 0])]
        self._note_blocks(learned)
        arena, start = (array.view(np.float64).reshape(len(array), -1) for array in (self._blocks, self._start))
        sizes = self._start["linear"].shape[2], len(self.features), self._start["counts"].shape[1]
        options = np.array([*sizes, self.n_learned, self._idle or 0])
        predict_then_learn_keys(arena, slots, start[0], self._shared, X, targets, options, out)
        self.n_learned += len(learned)

    def _note_blocks(self, slots: Any, key: Key | None = None, evicted: Key | None = None) -> None:
        """Note the blocks in ``slots`` before they change, and a new ``key`` and an ``evicted`` one, for `rollback_on_error`."""
        if self._log is not None:
            self._log.append((slots, self._blocks[slots].copy(), key, evicted))

    @contextmanager
    def rollback_on_error(self, learner: Any) -> Iterator[None]:
        """Return a context manager that undoes the changes by `process_rows` if its body raises an exception, or is interrupted
        before ``learner`` has learned the same rows.
        """
        n_before, self._log = getattr(learner, "n_learned", None), []
        saved = {"n_learned": self.n_learned, "_shared": self._shared.copy(), "_leaving": dict(self._leaving)}
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or getattr(learner, "n_learned", None) == n_before:
                for slots, blocks, key, evicted in reversed(self._log):
                    self._slots.pop(key, None)
                    self._slots.update({} if evicted is None else {evicted: slots})
                    self._blocks[slots] = blocks
                self.__dict__.update(saved)
                self._slots = OrderedDict(sorted(self._slots.items(), key=lambda item: self._blocks["last_row"][item[1]]))
            raise
        finally:
            self._log = None

    # Storing, saving and merging ------------------------------------------------------------------------------------------------

    def _read_evicted(self, keys: Sequence[Key | None]) -> dict[Key, np.ndarray]:
        """Return the blocks of those of the ``keys`` that are in the store, but not in memory, by key, each an array [1]. Blocks
        that were evicted by earlier rows are written into the store first.
        """
        if self.store is None:
            return {}
        if self._leaving:
            self._write_blocks(self._leaving)
            self._leaving = {}
        absent = [key for key in dict.fromkeys(keys) if key is not None and key not in self._slots]
        return self.store.read(absent, self._parse_blocks) if absent else {}

    def _parse_blocks(self, data: bytes, n: int = 1) -> np.ndarray:
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
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """The size of the models in bytes, without the names of keys. It grows with the number of keys, up to ``max_keys``."""
        return self.n_keys * self._start.nbytes + self._shared.nbytes

    def describe_key(self, name: str | float) -> dict[str, Any]:
        """Return facts about the models of the key called ``name``: the number of rows that they have learned, the number of the
        last one among the rows of all keys, and where they are. Empty if it has no models.
        """
        key: Any = parse_key(name)
        slot = self._slots.get(key)
        block = self._read_evicted([key]).get(key, self._start)[0] if slot is None else self._blocks[slot]
        facts = {"rows of own models": int(block["rows"]), "last updated at row": int(block["last_row"])}
        return facts | {"own models in": "memory" if slot is not None else "keys.sqlite"} if block["rows"] else {}

    def _write_blocks(self, blocks: Mapping[Key, np.void]) -> None:
        """Write ``blocks`` by key into the store."""
        rows = ((key, int(block["last_row"]), block.tobytes()) for key, block in blocks.items())
        self.store.write(rows, 0 if self._idle is None else self.n_learned - self._idle)

    def _list_blocks(self, since: int | None = None) -> dict[Key, np.void]:
        """Return the blocks that have learned a row after row ``since``, by key. By default, return up to ``max_keys`` blocks, in
        the order of their last rows, also of keys in the store.
        """
        keys, slots = list(self._slots), np.array(list(self._slots.values()), np.int64)
        indices = np.flatnonzero(self._blocks["last_row"][slots] > (since or 0))
        blocks = {**self._leaving, **dict(zip([keys[i] for i in indices], self._blocks[slots[indices]], strict=True))}
        if since is not None:
            return blocks
        stored = () if self.store is None else self.store.read_recent(self._max_keys, self._parse_blocks)
        blocks = {key: block[0] for key, _, block in stored} | blocks
        return dict(sorted(blocks.items(), key=lambda item: item[1]["last_row"])[-self._max_keys :])

    def share_store(self, other: KeyModels) -> None:
        """Continue with the store of ``other``. These models must be a copy of them."""
        if other.store is not None:
            self.store, self._n_saved, self._leaving = other.store, other._n_saved, other._list_blocks(other._n_saved)

    def get_state(self) -> dict[str, Any]:
        """Return the saved state of the models, as plain values and arrays. Keys are in the order of their last rows. While a
        checkpoint is written into a folder, write changed blocks into its store instead.
        """
        if (store := BLOCK_STORE.get()) is None:
            blocks = self._list_blocks()
            state = {"keys": [*blocks], "blocks": np.array([*blocks.values()], self._start.dtype).tobytes()}
        else:
            table = store.attach(self.store)
            blocks = self._list_blocks(self._n_saved if table is self.store else None)
            self.store, self._n_saved = table, 0  # if writing fails, blocks are written again
            self._write_blocks(blocks)
            self._n_saved, self._leaving, state = self.n_learned, {}, {"table": table.number}
        names = {"features": self.features.names, "labels": self.labels.seen}
        return {**names, "n_learned": self.n_learned, "shared": self._shared.copy(), **state}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. Raise a ValueError if it is corrupt."""
        self.features.restore(state["features"])
        self.labels.restore_labels(state["labels"])
        self.n_learned = self._n_saved = validate_count("n_learned", state["n_learned"])
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
        """Replace all keys by the last ``max_keys`` of ``keys``, which have these ``blocks``."""
        self._slots = OrderedDict((key, slot) for slot, key in enumerate(keys[-self._max_keys :]))
        self._blocks[: self.n_keys] = blocks[-self._max_keys :]

    def merge_with(self, *others: KeyModels) -> None:
        """Merge the models of ``others``, which have learned other rows, into these. A key that several of them have keeps the
        models that have learned the most rows. If there are more than 8 labels, further ones are left out.
        """
        merged, parts = KeyModels(self.key, self._is_regression, self._max_keys, self._idle), [self, *others]
        for part in parts:
            merged.n_learned += part.n_learned
            merged.features.find_columns(part.features.names, True)
            for label in part.labels.seen:
                with suppress(TooManyLabelsError):
                    merged.labels.encode(label)
        merged._grow()
        newest, moments, seen = dict[Key, Any](), list[Any](), merged.labels.seen
        for part in parts:
            columns = merged.features.find_columns(part.features.names, False)
            outputs = np.array([seen.index(label) if label in seen else -1 for label in part.labels.seen] or [0])
            own = part._list_blocks()
            blocks = _convert_blocks(np.array([*own.values()], part._start.dtype), merged._start, columns, outputs)
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


def parse_key(value: Any) -> Key | None:
    """Return the key of a row: a text or number, where equal numbers are the same key; None if it is missing, or its
    number is too large for a float. Raise a ValueError for other values.
    """
    if isinstance(value := to_python_scalar(value), int | float):
        return (int(value) if value == int(value) else value) if abs(value) < 1e308 else None
    if not (value is None or (isinstance(value, str) and len(value) <= LONGEST_NAME)):
        raise ValueError(f"the key {short_repr(value)} is not a text of up to {LONGEST_NAME:,} characters, or a number")
    return value
