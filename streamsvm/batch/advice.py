"""Warnings of long fits that another of our machines would do in a tenth of the time.

Times of the others are estimates by the numbers of rows, features and support vectors, for one core of the machine that the
benchmarks name; ``benchmarks/full_fits.py`` measures them. They need not be exact: only ten times less is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from streamsvm.core.compiling.common import compilation
from streamsvm.core.warning import warn

_TIMES = 10.0
_LEAST_SECONDS = 10.0  # a fit that took no longer is not worth a word
_TREES, _FEW_FEATURES = 8, 12
_SIZES, _LARGE_SIZES = (256, 50), (512, 100)  # of leaves and skeletons, for few features and for more
_SECONDS_A_LEAF_VALUE = 2e-10  # of each tree: rows x rows of a leaf x (features + rank), for all walks together
_SECONDS_A_PAIR = 4e-9  # rows x support vectors, for columns and steps
_SECONDS_A_LINEAR_VALUE = 1e-7  # all passes over a value of a row


class Stopwatch:
    """The seconds since it was made, without those of compilation, of which a second fit has none."""

    def __init__(self) -> None:
        self._began, self._compiled = time.perf_counter(), compilation.seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began - (compilation.seconds - self._compiled)


class Alternative(NamedTuple):
    """Another machine, and about how long it would take."""

    name: str
    seconds: float


def hierarchical(name: str, n: int, d: int, problems: int) -> Alternative:
    """Return what a forest would take for n rows of d features."""
    leaf_size, rank = _SIZES if d <= _FEW_FEATURES else _LARGE_SIZES
    return Alternative(name, _SECONDS_A_LEAF_VALUE * problems * _TREES * n * leaf_size * (d + rank))


def exact(name: str, n: int, support: int, problems: int) -> Alternative:
    """Return what CSMO would take, which has so many support vectors."""
    return Alternative(name, _SECONDS_A_PAIR * problems * n * support)


def linear(name: str, values: int, problems: int) -> Alternative:
    """Return what a linear machine would take for rows with so many values together."""
    return Alternative(name, _SECONDS_A_LINEAR_VALUE * problems * values)


def advise(fitted: str, seconds: float, n: int, other: Alternative) -> bool:
    """Warn where another machine would take a tenth of the seconds that a fit has taken so far; return whether that was said."""
    if seconds < _LEAST_SECONDS or seconds < _TIMES * other.seconds:
        return False
    about = f"{other.name} would take about {float(f'{max(other.seconds, 0.1):.1g}'):,g} s"
    warn(f"{fitted} has taken {seconds:.0f} s for {n:,} rows: {about}, for about the same decisions")
    return True


def watch(fitted: str, n: int, other: Alternative | None) -> Callable[[], None]:
    """Return what a fit that begins now calls again and again: it advises, once."""
    stopwatch, told = Stopwatch(), other is None

    def look() -> None:
        nonlocal told
        if not told and other is not None:
            told = advise(fitted, stopwatch.seconds, n, other)

    return look
