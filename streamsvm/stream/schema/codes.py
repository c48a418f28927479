"""Tells integers that are codes of categories (zip codes), or number the rows, from quantities, by a sample of their values."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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
    if _CODE_NAME.search(name):
        return True
    if ID_NAME.search(name):
        return len(distinct) < len(numbers)
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


def _are_repeated(counts: Mapping[float, int]) -> bool:
    """Return whether rows share exactly the same number far more often than they have nearly equal numbers, as codes do.
    ``counts`` has the number of rows with each number.
    """
    n_equal_pairs = sum(count * (count - 1) // 2 for count in counts.values())
    numbers = sorted(counts)
    n_near_pairs, first, n_in_window = 0, 0, 0  # `first` is the index of the first number that is near the current one
    for number in numbers:
        while number - numbers[first] > _NEAR_DISTANCE:
            n_in_window -= counts[numbers[first]]
            first += 1
        n_near_pairs += n_in_window * counts[number]
        n_in_window += counts[number]
    return n_equal_pairs >= _MIN_EQUAL_PAIRS and n_equal_pairs * 2 * _NEAR_DISTANCE >= _EQUAL_TO_NEAR_RATIO * n_near_pairs
