"""Target encoding of the categories of a table, in bounded memory: smoothed log odds of labels, or smoothed means of targets."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar, validate_count
from streamsvm.files.category_names import compute_name_key
from streamsvm.stream.tables.target_counts import WAYS, HashTable, find_slot, merge_categories, process_rows

#: Maximum number of categories in a target encoding, of all columns together.
MAX_CATEGORIES = 65_536
#: Maximum number of labels with a feature each: the first ones. All others are counted together.
MAX_LABELS = 8
#: Maximum number of labels with features in the encoding of a column of texts: the first ones, as above.
MAX_TEXT_LABELS = 20
_MAX_KNOWN_LABELS = 64  # if one more is a whole number, the labels are targets of a regression
_MAX_SUFFIX_LENGTH = 100  # characters of a label in the name of a feature
_MIN_TABLE_SIZE = 16 * WAYS
_TABLE_SIZES = [_MIN_TABLE_SIZE * 2**i for i in range((MAX_CATEGORIES // _MIN_TABLE_SIZE).bit_length())]
#: Larger weights count as this, so that sums stay finite.
MAX_WEIGHT = 1e6
_NO_KEYS, _NO_FEATURES, _NOT_LEARNED = np.zeros((1, 0), np.uint32), np.zeros((1, 0)), np.full(1, np.nan)


class OrderedEncoding:
    """Base of encodings of rows that learn each row after it is encoded, and undo this unless the rows are learned next."""

    _batch: Any = None  # the rows that were encoded, the attributes before that, and the arrays with their changed parts

    def _keep(self, rows: Any) -> bool:
        """Return whether ``rows`` are those that were encoded last, which are learned then. Otherwise, undo their effect."""
        if is_encoded := self._batch is not None and self._batch[0] is rows:
            self._batch = None
        self._roll_back()
        return is_encoded

    def _roll_back(self) -> None:
        """Undo the effect of rows that were encoded, but not learned."""
        if self._batch is not None:
            _, attributes, changes = self._batch
            for array, changed, old_values in changes:
                array[changed[changed >= 0]] = old_values[changed >= 0]  # others are unused
            vars(self).update(attributes, _batch=None)


class TargetEncoding(OrderedEncoding):
    """Target encoding of categories, learned online in a hash table of bounded size.

    A row is encoded by the labels of earlier rows only (ordered target statistics; Prokhorenkova et al. 2018, CatBoost: unbiased
    boosting with categorical features, section 3.2). It is a regression if a label is a float, or if more than 64 labels are
    whole numbers; otherwise each of the first 8 labels has a feature. If there are two labels, only the larger one has. A row
    costs O(columns x labels).

    The hash table doubles its size when more than half of it is in use, up to 65,536 categories of 28 to 84 bytes each. Then a
    new category replaces the least recently learned one of 16.

    >>> from streamsvm.files.category_names import compute_column_seed, compute_name_key
    >>> encoding = TargetEncoding()
    >>> key = compute_name_key(compute_column_seed("city"), "Paris")
    >>> for y in ("no", "yes", "yes"):
    ...     _ = encoding.learn_row([key], y)
    >>> encoding.suffixes, encoding.encode_categories([key]).round(2).tolist()
    (['yes'], [[0.11]])
    """

    def __init__(self, has_memory: bool = False) -> None:
        #: Whether the table also has the memory of each category, which are features of keys.
        self.has_memory: bool = has_memory
        #: Whether labels are targets of a regression; None before the first label.
        self.is_regression: bool | None = None
        self._labels: dict[Any, int] = {}
        self._suffixes: Any = None
        self._n_rows = self._n_categories = 0
        self._totals: np.ndarray = np.zeros(0)
        self._make_table(_MIN_TABLE_SIZE, 2)

    def _make_table(self, size: int, width: int) -> None:
        """Replace the hash table of categories by an empty one with ``size`` slots, and with ``width`` numbers of statistics in
        each slot.
        """
        memories = np.zeros((size, (2 + width) * self.has_memory), np.float32)
        self._table = HashTable(np.zeros(size, np.uint32), np.zeros(size, np.int64), np.zeros((size, width)), memories)

    @property
    def nbytes(self) -> int:
        """Size of the arrays of this target encoding in bytes."""
        return sum(array.nbytes for array in (*self._table, self._totals))

    @property
    def keys(self) -> np.ndarray:
        """Sorted integer keys of the categories that have a target encoding, uint32 [categories]. A key is a hash of column and
        category.
        """
        self._roll_back()
        return np.sort(self._table.keys[self._table.keys != 0])

    @property
    def suffixes(self) -> list[str]:
        """Texts that are put after ``~`` in the names of a column's target-encoded features: one for each encoded label, or one
        empty text for a regression. Empty before there are two labels.
        """
        return self.find_suffixes()[0]

    @property
    def memory_suffixes(self) -> list[str]:
        """As `suffixes`, for the features with the memory of a key: its last label and the mean of recent ones, and its rows."""
        return _make_memory_suffixes(self.is_regression, *self.suffixes)

    @property
    def target_scale(self) -> tuple[float, float]:
        """The mean and the standard deviation (1 if it is 0) of all targets in a regression."""
        return self._totals[1], math.sqrt(self._totals[2] / (self._totals[0] or 1.0)) or 1.0

    def make_names(self, encoded: Iterable[Hashable], recalled: Iterable[Hashable]) -> list[str]:
        """Return the names of features in the order of `encode_rows`: the target encodings of the columns ``encoded``, and the
        memories of the columns ``recalled``.
        """
        pairs = [(name, self.suffixes) for name in encoded] + [(name, self.memory_suffixes) for name in recalled]
        return [f"{name}~{suffix}" for name, suffixes in pairs for suffix in suffixes]

    def find_suffixes(self, limit: int = MAX_LABELS) -> tuple[list[str], int]:
        """Return `suffixes`, at most ``limit`` of them, and the class index of the label that is encoded if there are only two:
        the larger one. They are computed when there is a new label.
        """
        if self._suffixes is None or self._suffixes[0] != (self.is_regression, len(self._labels)):
            labels = list(self._labels)
            positive = max(range(len(labels)), key=lambda index: (isinstance(labels[index], str), labels[index]), default=0)
            encoded = labels[:MAX_TEXT_LABELS] if len(labels) > 2 else labels[positive : positive + 1] * (len(labels) == 2)
            suffixes = [""] if self.is_regression else [_make_suffix(label) for label in encoded]
            self._suffixes = (self.is_regression, len(labels)), (suffixes, positive)
        all_suffixes, positive = self._suffixes[1]
        return all_suffixes[:limit], positive

    def split_scores(self, scores: np.ndarray) -> dict[Any, list[float]]:
        """Return the scores of n words of texts by label, from an array of ``scores``, float64 [n, suffixes]. Of two labels, only
        the larger one has a suffix: the scores of the other one are negative. A regression has a single score,
        under the key None. Labels after the first 20 are left out.
        """
        labels = [None] if self.is_regression else list(self._labels)
        if len(labels) == 2:
            scores = scores * np.where(np.arange(2) == self.find_suffixes()[1], 1.0, -1.0)
        return dict(zip(labels, scores.T.tolist(), strict=False))

    def count_labels(self, limit: int = MAX_LABELS) -> int:
        """Return the number of counts of a category or token: one for each of the first ``limit`` labels, and one for all further
        labels. A regression has two numbers.
        """
        return 2 if self.is_regression else min(len(self._labels), limit + 1)

    def map_labels(self, merged: TargetEncoding, limit: int = MAX_LABELS) -> list[int]:
        """Return the index of each of the counts from `count_labels` in a ``merged`` encoding."""
        if self.is_regression:
            return [0, 1]
        labels = [*itertools.islice(self._labels, limit), None][: self.count_labels(limit)]
        return [min(merged._labels.get(label, limit), limit) for label in labels]

    def contains(self, keys: Iterable[int]) -> np.ndarray:
        """Return for each of these integer keys whether its category has a target encoding, bool [keys]."""
        self._roll_back()
        return np.array([find_slot(self._table.keys, int(key)) >= 0 for key in keys], bool)

    def count_rows(self, key: int) -> int:
        """Return the number of rows that the memory of the integer ``key`` has learned, 0 if it is unknown."""
        self._roll_back()
        slot = find_slot(self._table.keys, key)
        return int(self._table.memories[slot, 0]) if slot >= 0 else 0

    def encode_categories(self, keys: Sequence[int]) -> np.ndarray:
        """Return the target encoding of categories, float64 [keys, suffixes], from all rows learned so far. ``keys`` are their
        integer keys. Unknown categories are encoded as zeros.
        """
        return self.encode_row(keys, ()).reshape(len(keys), len(self.suffixes))

    def encode_row(self, encoded: Sequence[int], recalled: Sequence[int]) -> np.ndarray:
        """Return the features of one row, float64 [features], as `encode_rows` does, from all rows learned so far."""
        self._roll_back()
        suffixes, positive = self.find_suffixes()
        out = np.zeros((1, _count_features(len(suffixes), len(encoded), len(recalled))))
        keys = _NO_KEYS, np.array([encoded], np.uint32), np.array([recalled], np.uint32)
        options = _NOT_LEARNED, _NOT_LEARNED, positive, bool(self.is_regression), out
        process_rows(*self._table, self._totals, 0, 0, 0, *keys, *options)
        return out[0]

    def get_label_code(self, y: Any) -> float | None:
        """Return the number that stands for a label in learning: its class index (64 for all labels after the first 64), or the
        target itself in a regression. NaN if the label is missing or invalid. None if it is new: then it must be registered
        first.
        """
        if y.__class__ is str and (index := self._labels.get(y)) is not None:
            return float(index)
        y = _to_plain_label(y)
        if y is None:
            return math.nan
        if self.is_regression:
            return float(y) if isinstance(y, bool | int | float) and abs(y) <= LARGEST_FLOAT32 else math.nan
        if self.is_regression is None or (isinstance(y, float) and not y.is_integer()):
            return None
        if (index := self._labels.get(y)) is None:
            is_full = len(self._labels) >= _MAX_KNOWN_LABELS and isinstance(y, str) | isinstance(next(iter(self._labels)), str)
            return float(_MAX_KNOWN_LABELS) if is_full else None
        return float(index)

    def get_label_codes(self, ys: Sequence[Any], is_learned: np.ndarray) -> tuple[np.ndarray, int]:
        """Convert labels to the numbers that stand for them in learning (see `get_label_code`), up to the first new label.
        Returns the numbers, float64 [n], and n. Rows that are not in the mask ``is_learned`` have NaN.
        """
        codes: list[float] = []
        get_label_code = functools.lru_cache(None, typed=True)(self.get_label_code)
        for y, learns_row in zip(ys, is_learned.tolist(), strict=False):
            code = get_label_code(y) if learns_row else math.nan
            if code is None:
                break
            codes.append(code)
        return np.array(codes, np.float64), len(codes)

    def learn_row(self, keys: Sequence[int], y: Any, w: float = 1.0) -> float:
        """Learn the label or target ``y`` of one row with weight ``w``. ``keys`` are the integer keys of the row's categories.
        Returns the number that stands for it, from `encode_rows`; NaN if nothing was learned.
        """
        self._roll_back()
        if (code := self.get_label_code(y)) is None:
            self._add_label(_to_plain_label(y))
            code = self.get_label_code(y)
        if code is None or code != code or w <= 0.0:
            return math.nan
        codes, weights = np.array([code]), np.array([min(float(w), MAX_WEIGHT)])
        return float(self._process(np.array([sorted(keys)], np.uint32), codes, weights, _NO_KEYS, _NO_KEYS, _NO_FEATURES)[0])

    def learn_rows(self, row_keys: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Learn many rows in order. ``row_keys``, uint32 [rows, columns], has the integer keys of their categories, sorted in
        each row (0: missing). ``y``, float64 [rows], has the numbers from `get_label_codes` (NaN: the row is skipped), and ``w``,
        float64 [rows], the weights, at most 1e6.
        """
        if not self._keep(row_keys):
            self._process(row_keys, y, w, _NO_KEYS, _NO_KEYS, _NO_FEATURES)

    def encode_rows(
        self, row_keys: np.ndarray, encoded: np.ndarray, recalled: np.ndarray, y: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of rows, float64 [rows, features], each computed only from the labels of the rows before it: target
        encodings of the keys ``encoded``, and memories of the keys ``recalled``, both uint32 [rows, columns] (0: missing). Also
        returns the targets that encodings of texts learn, float64 [rows]: class indices, at most 20, or in a regression the
        standard deviations from the mean of all targets up to and with them.

        The other parameters are those of `learn_rows`. Pass them to it next to learn the rows; otherwise, nothing is learned.
        """
        self._roll_back()
        is_changed = np.zeros(len(self._table.keys) // WAYS, bool)
        is_changed[row_keys[~np.isnan(y)] & (len(is_changed) - 1)] = True
        sets = [array.reshape(len(is_changed), -1) for array in self._table]
        changed = np.flatnonzero(is_changed)
        changes = [(array, changed, array[changed]) for array in sets]
        attributes = {**vars(self), "_totals": self._totals.copy()}
        out = np.zeros((len(row_keys), _count_features(len(self.suffixes), encoded.shape[1], recalled.shape[1])))
        self._batch = row_keys, attributes, changes  # set before the rows are learned: Ctrl-C may come at any time
        return out, self._process(row_keys, y, w, encoded, recalled, out)

    def _process(
        self, row_keys: np.ndarray, y: np.ndarray, w: np.ndarray, encoded: np.ndarray, recalled: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Write the encodings of rows to ``out``, and learn each one after that. Returns the targets, as `encode_rows` does."""
        is_regression, positive, n = bool(self.is_regression), self.find_suffixes()[1], 0
        targets = y.copy() if is_regression else np.minimum(y, MAX_TEXT_LABELS)
        codes = targets if is_regression else np.minimum(y, MAX_LABELS)
        rows = row_keys, encoded, recalled, codes, w, positive, is_regression, out
        while n < len(y):
            n_free = self._n_free
            n, n_learned, n_new = process_rows(*self._table, self._totals, self._n_rows, n_free, n, *rows)
            self._n_rows += n_learned
            self._n_categories += int(n_new)
            while n_new > n_free and self._n_free < 0:
                self._grow_table()
        return targets

    @property
    def _n_free(self) -> int:
        """Number of new categories that the hash table can take before it must grow."""
        size = len(self._table.keys)
        return size // 2 - self._n_categories if size < MAX_CATEGORIES else size

    def _grow_table(self) -> None:
        """Replace the hash table by one of twice its size, with the same categories."""
        old_table = self._table
        self._make_table(2 * len(old_table.keys), old_table.counts.shape[1])
        self._n_categories = 0
        self._add_categories(old_table)

    def _add_categories(self, table: HashTable) -> None:
        """Add all categories of another hash table to this one, which is enlarged if needed."""
        slot = 0
        while slot < len(table.keys):
            slot, n_new = merge_categories(self._table, max(self._n_free, 0), table, slot)
            self._n_categories += int(n_new)
            while self._n_free < 0:
                self._grow_table()

    def _add_label(self, y: Any) -> None:
        """Register a new label ``y`` and give it the next class index. If labels turn out to be numbers to predict (one has a
        fraction, or there are too many distinct integers), switch to regression instead, and forget all labels and categories.
        """
        has_fraction = isinstance(y, float) and (self.is_regression is None or not y.is_integer())
        if has_fraction or len(self._labels) >= _MAX_KNOWN_LABELS:
            self.is_regression, self._labels, self._totals, self._n_categories = True, {}, np.zeros(3), 0
            self._make_table(_MIN_TABLE_SIZE, 2)
        else:
            self.is_regression = False
            self._labels[y] = len(self._labels)
            self._widen_counts()

    def _widen_counts(self) -> None:
        """Add columns to the array of counts, so that each registered label has one. There are at most 9: the last one counts all
        further labels together.
        """
        self._totals = np.pad(self._totals, (0, self.count_labels() - len(self._totals)))
        if (n_more := self.count_labels() - self._table.counts.shape[1]) > 0:
            more = ((0, 0), (0, n_more)), ((0, 0), (0, n_more * self.has_memory))
            wider = [np.ascontiguousarray(np.pad(*pair)) for pair in zip(self._table[2:], more, strict=True)]
            self._table = HashTable(*self._table[:2], *wider)

    def merge_with(self, others: Iterable[TargetEncoding]) -> TargetEncoding:
        """Return a new target encoding that is approximately as if one encoding had learned all rows of this one and of
        ``others``. Raises ValueError if some have learned class labels, and others the targets of a regression.
        """
        encodings = [encoding for encoding in (self, *others) if encoding.is_regression is not None]
        for encoding in encodings:
            encoding._roll_back()
        merged = TargetEncoding(self.has_memory)
        if len({encoding.is_regression for encoding in encodings}) > 1:
            raise ValueError("encoders that have learned labels cannot be merged with those that have learned numbers to predict")
        if not encodings:
            return merged
        merged.is_regression = encodings[0].is_regression
        for label in (label for encoding in encodings for label in encoding._labels):
            if len(merged._labels) < _MAX_KNOWN_LABELS:
                merged._labels.setdefault(label, len(merged._labels))
        if merged.is_regression:
            merged._totals = _pool_moments([encoding._totals for encoding in encodings])
        else:
            merged._widen_counts()
        for encoding in encodings:
            table = old = encoding._table
            if not merged.is_regression:
                shapes = [(len(old.keys), array.shape[1]) for array in merged._table[2:]]
                table = HashTable(*old[:2], np.zeros(shapes[0]), np.zeros(shapes[1], np.float32))
                table.memories[:, :1] = old.memories[:, :1]
                for index, merged_index in enumerate(encoding.map_labels(merged)):
                    table.counts[:, merged_index] += old.counts[:, index]
                    table.memories[:, 2 + merged_index :][:, :1] += old.memories[:, 2 + index :][:, :1]
                    table.memories[:, 1:2][old.memories[:, 1:2] == index] = merged_index
                    merged._totals[merged_index] += encoding._totals[index]
            merged._add_categories(table)
            merged._n_rows += encoding._n_rows
        return merged

    def __getstate__(self) -> dict[str, Any]:
        self._roll_back()
        slots = np.flatnonzero(self._table.keys)
        arrays = {name: array[slots] for name, array in self._table._asdict().items() if array.size}
        labels = {"of_numbers": self.is_regression, "labels": list(self._labels)}
        return {**labels, "rows": self._n_rows, "table_size": len(self._table.keys), **arrays, "totals": self._totals}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        size, labels, is_regression = state["table_size"], list(state["labels"]), bool(state["of_numbers"])
        n_totals = 3 if is_regression else min(len(labels), MAX_LABELS + 1)
        width = 2 if is_regression else max(n_totals, 2)
        n, has_memory = len(state["keys"]), "memories" in state
        stored = {"memories": np.zeros((n, 0), np.float32), **state}
        arrays = [np.array(stored[name]) for name in (*HashTable._fields, "totals")]
        # Compiled code relies on these types and shapes.
        shapes = (n,), (n,), (n, width), (n, (2 + width) * has_memory), (n_totals,)
        expected = [*zip(("<u4", "<i8", "<f8", "<f4", "<f8"), shapes, strict=True)]
        is_valid = state["of_numbers"] in (is_regression, None) and all(y is not None and _to_plain_label(y) is y for y in labels)
        is_valid &= [(array.dtype.str, array.shape) for array in arrays] == expected and size in _TABLE_SIZES
        if not (is_valid and np.isfinite(arrays[3]).all() and (arrays[3][:, :1] >= 0.0).all()):
            raise ValueError("the target encoding is corrupt: its labels, arrays or the memory of a key do not fit")
        self.__init__(has_memory)  # type: ignore[misc]
        self.is_regression, self._labels = state["of_numbers"], {label: index for index, label in enumerate(labels)}
        self._n_rows, (*table, self._totals) = validate_count("rows", state["rows"]), arrays
        self._make_table(size, width)
        _, n_new = merge_categories(self._table, n, HashTable(*table), 0)
        self._n_categories = int(n_new)


def _to_plain_label(y: Any) -> Any:
    """Convert a label to a Python bool, number or text. Returns None for missing labels, NaN and infinity."""
    y = to_python_scalar(y)
    if y is None or isinstance(y, bool | int | float | str):
        return None if isinstance(y, float) and not math.isfinite(y) else y
    return str(y)


def _make_suffix(label: Any) -> str:
    """Return a label as text for the name of a feature. If the text has more than 100 characters, it is shortened, and a hash is
    appended, so that different labels have different texts.
    """
    text = str(label)
    return text if len(text) <= _MAX_SUFFIX_LENGTH else f"{text[: _MAX_SUFFIX_LENGTH // 2]}#{compute_name_key(0, text):08x}"


@functools.lru_cache(maxsize=16)
def _make_memory_suffixes(is_regression: bool | None, *suffixes: str) -> list[str]:
    """Return the suffixes of the features with the memory of a key, from those of its target encoding."""
    kinds = [f"{kind} {suffix}" for kind in ("last", "recent") for suffix in suffixes]
    return [*(["last", "recent"] if is_regression else kinds), "rows"] if suffixes else []


def _count_features(n_suffixes: int, n_encoded: int, n_recalled: int) -> int:
    """Return the number of features of ``n_encoded`` columns with a target encoding, and ``n_recalled`` columns with a memory."""
    return n_encoded * n_suffixes + n_recalled * (2 * n_suffixes + 1)


def _pool_moments(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Combine the statistics of regression targets of several encodings into those of all targets. ``parts`` has an array for
    each encoding: weight, mean and sum of squared deviations. Returns the same three numbers, float64 [3].
    """
    weight = sum(float(part[0]) for part in parts)
    mean = sum(float(part[0] * part[1]) for part in parts) / weight if weight > 0.0 else 0.0
    return np.array([weight, mean, sum(float(part[2] + part[0] * (part[1] - mean) ** 2) for part in parts)])
