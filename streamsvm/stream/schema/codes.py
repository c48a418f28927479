"""Tells integers that are codes of categories (zip codes), ids of groups (devices), or number the rows, from quantities, by a
sample of their values.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from streamsvm.stream.tables.chunk import is_null, to_float_prefix

#: Column names that mean an id, even if the values in a few rows do not look like one.
ID_NAME = re.compile(r"(^|[_\W])(id|ID|Id)$|[a-z]I[dD]$")
#: Column names that pandas and other writers of tables give to row numbers, and names that people give to them.
_WRITERS_INDEX_NAME = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")
_INDEX_NAME = re.compile(r"index|level_\d+|row_?(num(ber)?|names?)|rownames?", re.IGNORECASE)
#: Column names of codes, whose values may be consecutive; and of quantities of a group, which repeat in its rows like its code.
_CODE_NAME = re.compile(r"code\d?$|(^|[_\W])(zip|plz|fips)$", re.IGNORECASE)
_QUANTITY_NAME = re.compile(
    r"(pop|population|inc|income|gdp|weight|wgh?t|sal|salary|wage|price|cost|amount|value|dist|distance)\d*$", re.IGNORECASE
)
#: Column names that mean a member of a group, to which several rows belong.
GROUP_NAME = re.compile(
    r"(?i)(device|sensor|machine|engine|unit|meter|vehicle|driver|store|shop|station|site|user|customer|client|account|person|patient"
    r"|subj(ect)?|individual|student|worker|seller|firm|household|district|county|city|state|player|team|product)[ _]?(id|no|nr)?"
)
_MIN_LARGEST_NAMED, _MIN_LARGEST = 100, 10_000  # the largest number must be at least this: with a telling name, and without one
_SECONDS_RANGE = (5e8, 2e9)  # whole numbers within may be seconds since 1970
# The following thresholds were tuned on halves of 15,117 columns of 3,428 tables.
_NEAR_DISTANCE = 10  # two numbers are near if they differ by at most this
_MIN_EQUAL_PAIRS, _EQUAL_TO_NEAR_RATIO = 10, 10  # pairs of equal rows: at least this many, and this many times the near pairs
_MAX_ROUND_SHARE, _MAX_DIGIT_SHARE = 0.35, 0.3  # of the numbers: those ending in 0 or 5, and those ending in the same digit
_STANDARD_ERRORS = 3.0  # tolerance of these shares in small samples
_MIN_INNER_NUMBERS = 5  # distinct numbers beside the smallest, the largest and the most common one
_MIN_VARIED_SHARE = 0.25  # of the rows: those with an inner number that differs from the row before
_MAX_GAP_RATIO = 0.45  # median gap between sorted numbers over the mean gap
# The following thresholds, of ids of groups, are a compromise between the best ones on two halves of 3,500 columns of 1,100
# tables. The second value is for telling names.
_MIN_GROUPS, _MIN_USED_SHARE = (8, 3), (0.8, 0.0)  # distinct ids; and their share of the whole numbers up to the largest one
_MIN_GAIN = (4.0, 2.0)  # gain of the groups over each other prediction, in standard errors over the groups
_MIN_EXPLAINED, _MAX_ORDER_RATIO = 0.05, 0.5  # share of the labels' variance due to the groups; part of it due to the order
_RADII = (1, 2, 4, 8)  # groups on either side whose mean label is a prediction by the order of the ids
_MAX_CLASSES = 10  # if there are more distinct labels, their ranks are predicted


def are_codes(name: str, numbers: Sequence[float]) -> bool:
    """Return whether the integers of a column are codes of categories rather than quantities (zip codes, store numbers), judged
    by the column's ``name`` and by the values.

    Values are codes if they are large, equal pairs of rows are far more frequent than near pairs, the last digits are not those
    of prices, and many numbers lie close together, as consecutively assigned ones do. Repetitions in adjacent rows do not count,
    because rows are often sorted by a group.

    >>> roles = [118_000 + 7 * (i * i % 31) + 4_321 * (i % 3) for i in range(200)]
    >>> are_codes("role", roles), are_codes("role", range(118_000, 118_200)), are_codes("zip_code", range(60_600, 60_700))
    (True, False, True)
    """
    distinct = set(numbers)
    if min(distinct) < 0 or max(distinct) < _MIN_LARGEST_NAMED or len(distinct) < 3:
        return False
    if (is_code := _CODE_NAME.search(name)) or ID_NAME.search(name):
        return bool(is_code) or len(distinct) < len(numbers)
    are_times = all(_SECONDS_RANGE[0] < number < _SECONDS_RANGE[1] for number in distinct)
    if max(distinct) < _MIN_LARGEST or _QUANTITY_NAME.search(name) or are_times:
        return False
    counts = Counter(number for number, _ in itertools.groupby(numbers))
    if not _are_clustered(sorted(counts)):
        return False
    for extreme in {min(counts), max(counts), counts.most_common(1)[0][0]}:  # these may be sentinels or clipped values
        del counts[extreme]
    is_varied = len(counts) >= _MIN_INNER_NUMBERS and sum(counts.values()) >= _MIN_VARIED_SHARE * len(numbers)
    return is_varied and _have_digits_of_codes(counts) and _are_repeated(counts)


def are_group_ids(name: str, numbers: np.ndarray, labels: Sequence[Any]) -> bool:
    """Return whether the whole numbers of a column (float64 [n], NaN if missing) are ids of groups of rows, such as devices: the
    mean label of a group predicts the labels of its rows, and the mean of groups with near numbers does not, as it would for a
    quantity.

    The row that is predicted is left out. Adjacent rows with the same number count once, because each quantity of a group repeats
    like its id if the rows are sorted by group. Groups have equal weights, so that one special number, such as 0, is not enough.
    Rows without a label are left out.

    >>> shops = np.arange(600.0) * 7 % 31 + 1
    >>> are_group_ids("x7", shops, shops * 11 % 31 > 15), are_group_ids("x7", shops, shops > 15)
    (True, False)
    """
    is_labelled = np.array([not (y is None or y == "" or is_null(y)) for y in labels], bool)
    numbers, labels = numbers[is_labelled], list(itertools.compress(labels, is_labelled))
    is_first = (numbers != np.roll(numbers, 1)) & np.isfinite(numbers)
    distinct, groups, counts = np.unique(numbers[is_first], return_inverse=True, return_counts=True)
    n, is_named = len(distinct), bool(ID_NAME.search(name) or GROUP_NAME.fullmatch(name))
    if n < _MIN_GROUPS[is_named] or n < _MIN_USED_SHARE[is_named] * distinct[-1] or distinct[0] < 0 or (distinct % 1).any():
        return False
    targets = _center_labels(list(itertools.compress(labels, is_first)))
    sums = np.column_stack([counts, *(np.bincount(groups, column) for column in targets.T)])
    limits, i = np.vstack([0.0 * sums[:1], sums.cumsum(axis=0)]), np.arange(n)
    near = [0.0 * sums, *(limits[np.minimum(i + r + 1, n)] - limits[np.maximum(i - r, 0)] - sums for r in _RADII)]
    # The divisors are larger by 1, which draws the means of few rows to the overall mean, 0.
    predictions = [*((y[:, 1:] / (y[:, :1] + 1.0))[groups] for y in near), (sums[groups, 1:] - targets) / sums[groups, :1]]
    errors = np.array([np.bincount(groups, ((targets - y) ** 2).sum(axis=1)) / counts for y in predictions])
    *by_order, by_groups = (errors[0].mean() - errors.mean(axis=1)).tolist()  # explained variance
    gains, min_explained = errors[:-1] - errors[-1], max(_MIN_EXPLAINED * errors[0].mean(), max(by_order) / _MAX_ORDER_RATIO)
    min_gains = _MIN_GAIN[is_named] * gains.std(axis=1) / math.sqrt(n)
    return bool((gains.mean(axis=1) > min_gains).all() and by_groups >= min_explained)


def _center_labels(labels: Sequence[Any]) -> np.ndarray:
    """Return columns that stand for labels, float64 [n, m], each with mean 0: an indicator of each class, or the ranks."""
    numbers, n_numbers = to_float_prefix(list(labels))
    values = numbers if n_numbers == len(labels) else list(map(str, labels))
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    columns = np.eye(len(counts))[codes] if len(counts) <= _MAX_CLASSES else (counts.cumsum() - counts / 2)[codes][:, None]
    return np.asarray(columns - columns.mean(axis=0))


def are_row_numbers(name: str, numbers: Sequence[float]) -> bool:
    """Return whether the integers of a column number the rows, in any order: the index that pandas and others write with a table.
    It may have gaps, and restart if tables were put together.

    >>> are_row_numbers("Unnamed: 0", [3, 0, 7, 4]), are_row_numbers("", [2, 1, 2, 2, 1]), are_row_numbers("size", [3, 0, 7, 4])
    (True, False, False)
    """
    if min(numbers) < 0:
        return False
    n_distinct = len(set(numbers))
    if _INDEX_NAME.fullmatch(name):
        return n_distinct == len(numbers)
    n_steps = sum(b - a == 1 for a, b in itertools.pairwise(numbers))
    return bool(_WRITERS_INDEX_NAME.fullmatch(name)) and 2 * max(n_distinct, n_steps) > len(numbers)


def _are_clustered(numbers: Sequence[float]) -> bool:
    """Return whether the numbers form groups of near values, as codes that are numbered in groups do: most gaps between
    neighbours in sorted order are much smaller than the mean gap.
    """
    gaps = sorted(b - a for a, b in itertools.pairwise(numbers))
    return gaps[len(gaps) // 2] * len(gaps) <= _MAX_GAP_RATIO * sum(gaps)


def _have_digits_of_codes(numbers: Iterable[float]) -> bool:
    """Return whether the numbers may be codes of categories, judged by their digits: the last digits are spread evenly, unlike
    those of prices, and not all numbers are squares.
    """
    whole_numbers = [int(number) for number in numbers]
    digit_counts, n = Counter(number % 10 for number in whole_numbers), len(whole_numbers)
    has_few_round = _is_plausible_count(digit_counts[0] + digit_counts[5], n, 0.2, _MAX_ROUND_SHARE)
    are_spread = has_few_round and _is_plausible_count(max(digit_counts.values()), n, 0.1, _MAX_DIGIT_SHARE)
    return are_spread and any(math.isqrt(number) ** 2 != number for number in whole_numbers)


def _is_plausible_count(count: int, n: int, expected_share: float, max_share: float) -> bool:
    """Return whether ``count`` of ``n`` values is small enough to be due to chance. The share ``count / n`` may be at most
    ``max_share``, or at most three standard errors above ``expected_share``.
    """
    standard_error = math.sqrt(n * expected_share * (1.0 - expected_share))
    return count <= max(max_share * n, expected_share * n + _STANDARD_ERRORS * standard_error)


def _are_repeated(counts: Counter[float]) -> bool:
    """Return whether rows share exactly the same number far more often than they have nearly equal numbers, as codes do.
    ``counts`` has the number of rows with each number.
    """
    rows = np.array(sorted(counts.elements()))
    n_equal, n_within = (int((np.arange(len(rows)) - np.searchsorted(rows, rows - by)).sum()) for by in (0, _NEAR_DISTANCE))
    return n_equal >= _MIN_EQUAL_PAIRS and n_equal * 2 * _NEAR_DISTANCE >= _EQUAL_TO_NEAR_RATIO * (n_within - n_equal)
