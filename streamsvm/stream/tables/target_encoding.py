"""Statistics of the labels of each name of a table, in a hash table of bounded size: smoothed log odds, or means of targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar
from streamsvm.files.category_names import compute_name_key
from streamsvm.stream.tables.target_counts import (
    WAYS,
    encode_keys,
    encode_rows_in_order,
    find_slot,
    merge_categories,
    update_rows,
)

#: Names with statistics, of all columns together.
MOST_NAMES = 65_536
#: Labels that have a statistic each: the first ones. All others are counted together.
MOST_LABELS = 8
_MOST_KNOWN = 64  # labels; if one more is a whole number, labels are numbers to predict
_LONGEST = 100  # characters of a label in the name of a feature
_SMALLEST = 16 * WAYS
_SIZES = [_SMALLEST * 2**i for i in range((MOST_NAMES // _SMALLEST).bit_length())]  # of a table
_HEAVIEST = 1e6  # a weight that counts: sums stay finite
_LABELS = bool | int | float | str


class TargetEncoding:
    """Counts the labels of each name of a table, or averages its targets, in a hash table of bounded size.

    The statistic of a name knows the labels of the rows before it alone, as ordered target statistics do (Prokhorenkova et al.
    2018, CatBoost: unbiased boosting with categorical features, section 3.2). Labels are numbers to predict if one is a float, or
    if more than 64 are whole numbers; otherwise each of the first 8 has a statistic. Of two labels it is the larger one that has.
    A row costs O(names x labels).

    The table begins small, doubles when more than half of it is in use, and holds 65,536 names at most, in 28 to 84 bytes each.
    Then a new name takes the place of the one among 16 that was learned least recently.

    >>> from streamsvm.files.category_names import compute_column_seed, compute_name_key
    >>> encoding = TargetEncoding()
    >>> key = compute_name_key(compute_column_seed("city"), "Paris")
    >>> for y in ("no", "yes", "yes"):
    ...     encoding.learn_row([key], y)
    >>> encoding.suffixes, encoding.encode_names([key]).round(2).tolist()
    (['yes'], [[0.11]])
    """

    def __init__(self) -> None:
        #: Whether labels are numbers to predict; None before one came.
        self.is_regression: bool | None = None
        self._labels: dict[Any, int] = {}
        self._rows = self._held = 0
        self._totals: np.ndarray = np.zeros(0)
        self._make_table(_SMALLEST, 2)

    def _make_table(self, size: int, width: int) -> None:
        self._keys, self._last = np.zeros(size, np.uint32), np.zeros(size, np.int64)
        self._counts = np.zeros((size, width))

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return sum(array.nbytes for array in (self._keys, self._last, self._counts, self._totals))

    @property
    def keys(self) -> np.ndarray:
        """The keys of the names that are in the table, in the order of their size, uint32."""
        return np.sort(self._keys[self._keys != 0])

    @property
    def suffixes(self) -> list[str]:
        """The end of the name of each statistic, after ``~``: the label; of targets nothing."""
        if self.is_regression:
            return [""]
        if len(self._labels) < 2:
            return []
        labels = list(self._labels)[:MOST_LABELS]
        return [_suffix_of(label) for label in (labels if len(labels) > 2 else [labels[self._larger_label]])]

    @property
    def _larger_label(self) -> int:
        """The number of the label that has the statistic, where there are two: the larger one."""
        labels = list(self._labels)
        return max(range(len(labels)), key=lambda number: (isinstance(labels[number], str), labels[number]), default=0)

    def contains(self, keys: Iterable[int]) -> np.ndarray:
        """Return whether each key is in the table, bool."""
        return np.array([find_slot(self._keys, int(key)) >= 0 for key in keys], bool)

    def encode_names(self, keys: Sequence[int]) -> np.ndarray:
        """Return the statistics of keys, 0 for none, float64 [keys, suffixes]."""
        asked = np.array(keys, np.uint32).reshape(1, -1)
        out = np.zeros((*asked.shape, len(self.suffixes)))
        if out.shape[2]:
            encode_keys(self._keys, self._counts, self._totals, asked, self._larger_label, bool(self.is_regression), out)
        return out[0]

    def get_label_code(self, y: Any) -> float | None:
        """Return the class index of a label, or the target itself; NaN if it is not counted, None if the label is new."""
        y = _plain_target(y)
        if y is None:
            return math.nan
        if self.is_regression:
            return float(y) if isinstance(y, bool | int | float) and abs(y) <= LARGEST_FLOAT32 else math.nan
        if self.is_regression is None or (isinstance(y, float) and not y.is_integer()):
            return None
        if (number := self._labels.get(y)) is None:
            is_full = len(self._labels) >= _MOST_KNOWN
            return float(MOST_LABELS) if is_full and (isinstance(y, str) or isinstance(next(iter(self._labels)), str)) else None
        return float(min(number, MOST_LABELS))

    def get_label_codes(self, ys: Sequence[Any], learned: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the class index of each label, float64 [rows], NaN where a row is not ``learned``, up to the first new one."""
        codes: list[float] = []
        known_codes: dict[Any, float | None] = {}
        for y, is_learned in zip(ys, learned.tolist(), strict=False):
            kind = type(y), y
            code = (
                math.nan
                if not is_learned
                else known_codes[kind]
                if kind in known_codes
                else known_codes.setdefault(kind, self.get_label_code(y))
            )
            if code is None:
                break
            codes.append(code)
        return np.array(codes, np.float64), len(codes)

    def learn_row(self, keys: Sequence[int], y: Any, w: float = 1.0) -> None:
        """Count the label of a row, by a weight, for its names, given by their keys in any order."""
        if (code := self.get_label_code(y)) is None:
            self._add_label(_plain_target(y))
            code = self.get_label_code(y)
        if code is not None and code == code and w > 0.0:
            named = np.sort(np.array(keys, np.uint32)).reshape(1, -1)
            self.learn_rows(named, np.array([code]), np.array([float(w)]))

    def learn_rows(self, named: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Count the labels of rows by their `get_label_code`, float64 [rows], NaN for none, for the names of the rows.

        These are given by their sorted keys, uint32 [rows, names], 0 for none; ``w`` has weights, float64 [rows].
        """
        table = self._keys, self._last, self._counts, self._totals
        rows, new = update_rows(*table, self._rows, named, y, np.minimum(w, _HEAVIEST), bool(self.is_regression))
        self._rows += int(rows)
        self._held += int(new)
        while self._room_left < 0:
            self._grow_table()

    def encode_rows(self, named: np.ndarray, asked: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the statistics that names have in each row before its label is counted; nothing is counted.

        Returned are those of the keys ``asked`` for, uint32 [rows, names], 0 for none, as float64 [rows, names, suffixes], and
        how many rows can be learned together. The other parameters are those of `learn_rows`.
        """
        out = np.zeros((*asked.shape, len(self.suffixes)))
        which, kind = self._larger_label, bool(self.is_regression)
        table = self._keys, self._last, self._counts, self._totals
        n = encode_rows_in_order(*table, self._rows, self._room_left, named, asked, y, np.minimum(w, _HEAVIEST), which, kind, out)
        return out, int(n)

    @property
    def _room_left(self) -> int:
        """How many new names may come before the table grows."""
        return len(self._keys) // 2 - self._held if len(self._keys) < MOST_NAMES else len(self._keys)

    def _grow_table(self) -> None:
        old = self._keys, self._last, self._counts
        self._make_table(2 * len(self._keys), self._counts.shape[1])
        self._held = 0
        self._add_counts(*old)

    def _add_counts(self, keys: np.ndarray, last: np.ndarray, counts: np.ndarray) -> None:
        place = 0
        while place < len(keys):
            place, new = merge_categories(
                self._keys, self._last, self._counts, max(self._room_left, 0), keys, last, counts, place
            )
            self._held += int(new)
            while self._room_left < 0:
                self._grow_table()

    def _add_label(self, y: Any) -> None:
        """Know a label that is new, or that labels are numbers."""
        if isinstance(y, float) and (self.is_regression is None or not y.is_integer()):
            self._become_numbers()
        elif self.is_regression is None:
            self.is_regression = False
            self._labels, self._totals = {y: 0}, np.zeros(1)
        elif len(self._labels) >= _MOST_KNOWN:
            self._become_numbers()
        else:
            self._labels[y] = len(self._labels)
            self._widen_counts()

    def _become_numbers(self) -> None:
        self.is_regression, self._labels, self._totals, self._held = True, {}, np.zeros(3), 0
        self._make_table(_SMALLEST, 2)

    def _widen_counts(self) -> None:
        width = min(len(self._labels), MOST_LABELS + 1)
        self._totals = np.pad(self._totals, (0, width - len(self._totals)))
        if (more := width - self._counts.shape[1]) > 0:
            self._counts = np.ascontiguousarray(np.pad(self._counts, ((0, 0), (0, more))))

    def merge_with(self, others: Iterable[TargetEncoding]) -> TargetEncoding:
        """Return the statistics of the rows of this one and others; ValueError if some learned labels, and others numbers."""
        tables = [table for table in (self, *others) if table.is_regression is not None]
        merged = TargetEncoding()
        if len({table.is_regression for table in tables}) > 1:
            raise ValueError("encoders that have learned labels cannot be merged with those that have learned numbers to predict")
        if not tables:
            return merged
        merged.is_regression = tables[0].is_regression
        for label in (label for table in tables for label in table._labels):
            if len(merged._labels) < _MOST_KNOWN:
                merged._labels.setdefault(label, len(merged._labels))
        if merged.is_regression:
            merged._totals = _pooled_moments([table._totals for table in tables])
        else:
            merged._widen_counts()
        for table in tables:
            counts = table._counts
            if not merged.is_regression:
                counts = np.zeros((len(table._keys), merged._counts.shape[1]))
                for number, total in enumerate(table._totals.tolist()):
                    label = list(table._labels)[number] if number < MOST_LABELS else None
                    place = min(merged._labels.get(label, MOST_LABELS), MOST_LABELS)
                    counts[:, place] += table._counts[:, number]
                    merged._totals[place] += total
            merged._add_counts(table._keys, table._last, counts)
            merged._rows += table._rows
        return merged

    def __getstate__(self) -> dict[str, Any]:
        places = np.flatnonzero(self._keys)
        return {
            "of_numbers": self.is_regression,
            "labels": list(self._labels),
            "rows": self._rows,
            "table_size": len(self._keys),
            "keys": self._keys[places],
            "last_rows": self._last[places],
            "counts": self._counts[places],
            "totals": self._totals,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        size, labels, kind = state["table_size"], list(state["labels"]), bool(state["of_numbers"])
        n_totals = 3 if kind else min(len(labels), MOST_LABELS + 1)
        width = 2 if kind else max(n_totals, 2)
        arrays = [np.array(state[name]) for name in ("keys", "last_rows", "counts", "totals")]
        n = len(state["keys"])
        # Compiled code reads them by these sizes.
        forms = [("<u4", (n,)), ("<i8", (n,)), ("<f8", (n, width)), ("<f8", (n_totals,))]
        if [(array.dtype.str, array.shape) for array in arrays] != forms or size not in _SIZES:
            raise ValueError("the statistics of names are corrupt: their arrays do not fit")
        self.__init__()  # type: ignore[misc]
        self.is_regression, self._labels = state["of_numbers"], {label: number for number, label in enumerate(labels)}
        self._rows, (keys, last, counts, self._totals) = state["rows"], arrays
        self._make_table(size, width)
        _, new = merge_categories(self._keys, self._last, self._counts, n, keys, last, counts, 0)
        self._held = int(new)


def _plain_target(y: Any) -> Any:
    """Convert a label to a plain Python object; None for missing labels and for numbers that are not finite."""
    y = to_python_scalar(y)
    if y is None or isinstance(y, _LABELS):
        return None if isinstance(y, float) and not math.isfinite(y) else y
    return str(y)


def _suffix_of(label: Any) -> str:
    text = str(label)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}#{compute_name_key(0, text):08x}"


def _pooled_moments(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return weight, mean and sum of squared deviations of all targets of several streams."""
    weight = sum(float(part[0]) for part in parts)
    mean = sum(float(part[0] * part[1]) for part in parts) / weight if weight > 0.0 else 0.0
    return np.array([weight, mean, sum(float(part[2] + part[0] * (part[1] - mean) ** 2) for part in parts)])
