"""Whole numbers that are codes, such as those of managers and of products, and no quantities."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

#: The name of a column of ids, which few rows do not show by their values.
ID = re.compile(r"(^|[_\W])(id|ID|Id)$|[a-z]I[dD]$")
#: That of codes, which may lie close together, and that of what belongs to a group, and repeats with it as its code does.
_CODE = re.compile(r"code\d?$|(^|[_\W])(zip|plz|fips)$", re.IGNORECASE)
_QUANTITY = re.compile(
    r"(pop|population|inc|income|gdp|weight|wgh?t|sal|salary|wage|price|cost|amount|value|dist|distance)\d*$", re.IGNORECASE
)
_LEAST_NAMED, _LEAST = 100, 10_000  # of the largest number
_SECONDS = (5e8, 2e9)  # since 1970
# Halves of 15,117 columns of 3,428 tables led to these, or near them:
_NEAR = 10  # at most so far from each other
_EQUAL, _TIMES = 10, 10  # pairs of rows that are equal, and how many times as many as those at a distance
_ROUND, _DIGIT = 0.35, 0.3  # the most of the numbers that end with 0 or 5, or with one digit
_ERRORS = 3.0  # standard ones, by which few numbers may have more of these
_FEWEST = 5  # other numbers than the least, the largest and the most common one
_VARIED = 0.25  # the least of the rows that have other numbers than the most common one, and not the one before
_CLUSTERED = 0.45  # the most that the median gap is of the mean one


def are_codes(name: str, numbers: Sequence[float]) -> bool:
    """Whether whole numbers are codes, by the name of their column or by their values.

    By their values, they are large; two rows have the same number far more often than two that are near each other; the last
    digits are not those of prices; and many numbers lie close together, as those do that are given one after another. What only
    repeats from one row to the next says nothing: rows are often sorted by what belongs to several of them.

    >>> roles = [118_000 + 7 * (i * i % 31) + 4_321 * (i % 3) for i in range(200)]
    >>> are_codes("role", roles), are_codes("role", range(118_000, 118_200)), are_codes("zip_code", range(60_600, 60_700))
    (True, False, True)
    """
    distinct = set(numbers)
    if min(distinct) < 0 or max(distinct) < _LEAST_NAMED or len(distinct) < 3:
        return False
    if _CODE.search(name):
        return True
    if ID.search(name):
        return len(distinct) < len(numbers)
    if max(distinct) < _LEAST or _QUANTITY.search(name) or all(_SECONDS[0] < number < _SECONDS[1] for number in distinct):
        return False
    counts = Counter(number for number, _ in itertools.groupby(numbers))
    if not _are_clustered(sorted(counts)):
        return False
    for number in {min(counts), max(counts), counts.most_common(1)[0][0]}:  # where what is too small or too large may stand
        del counts[number]
    is_varied = len(counts) >= _FEWEST and sum(counts.values()) >= _VARIED * len(numbers)
    return is_varied and _have_digits_of_codes(counts) and _are_repeated(counts)


def _are_clustered(numbers: Sequence[float]) -> bool:
    """Whether gaps between sorted numbers are mostly small beside the mean one."""
    gaps = sorted(b - a for a, b in itertools.pairwise(numbers))
    return gaps[len(gaps) // 2] * len(gaps) <= _CLUSTERED * sum(gaps)


def _have_digits_of_codes(numbers: Iterable[float]) -> bool:
    """Whether the last digits of numbers are spread, and the numbers are no squares."""
    wholes = [int(number) for number in numbers]
    last, n = Counter(whole % 10 for whole in wholes), len(wholes)
    are_spread = _is_usual(last[0] + last[5], n, 0.2, _ROUND) and _is_usual(max(last.values()), n, 0.1, _DIGIT)
    return are_spread and any(math.isqrt(whole) ** 2 != whole for whole in wholes)


def _is_usual(count: int, n: int, share: float, most: float) -> bool:
    """Whether a share of some numbers is usual where it is so much of all, or at most so much."""
    return count <= max(most * n, share * n + _ERRORS * math.sqrt(n * share * (1.0 - share)))


def _are_repeated(counts: Mapping[float, int]) -> bool:
    """Whether two rows have the same number more often than two at a small distance."""
    equal = sum(count * (count - 1) // 2 for count in counts.values())
    numbers = sorted(counts)
    near, first, window = 0, 0, 0  # pairs of rows; the first number that is near; the rows from there on
    for number in numbers:
        while number - numbers[first] > _NEAR:
            window -= counts[numbers[first]]
            first += 1
        near += window * counts[number]
        window += counts[number]
    return equal >= _EQUAL and equal * 2 * _NEAR >= _TIMES * near
