"""The times that rows take, in buckets."""

from __future__ import annotations

import time
from bisect import bisect_left

#: Upper ends of the buckets in seconds; another one holds all above.
BOUNDS = (*(float(f"{digit}e{power}") for power in range(-6, 0) for digit in (1, 2, 5)), 1.0)


class Histogram:
    """Counts of times by `BOUNDS`, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS) + 1)
        self.total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def quantile(self, part: float) -> float:
        """Return the end of the bucket below which ``part`` of the times are; NaN if there are none, inf above all bounds.

        >>> histogram = Histogram()
        >>> for milliseconds in range(1, 101):
        ...     histogram.add(milliseconds / 1000)
        >>> histogram.quantile(0.5)
        0.05
        """
        wanted, seen = part * sum(self.counts), 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return float("nan")


class Timings:
    """The times that predicting and learning take, row by row: `began`, `predicted`, `learned`."""

    __slots__ = ("_since", "learn", "predict")

    def __init__(self) -> None:
        self.predict: Histogram = Histogram()
        self.learn: Histogram = Histogram()
        self._since = 0.0

    def began(self) -> None:
        """Note that a row has come."""
        self._since = time.perf_counter()

    def predicted(self) -> None:
        """Count the time since the row has come."""
        now = time.perf_counter()
        self.predict.add(now - self._since)
        self._since = now

    def learned(self) -> None:
        """Count the time since the row was predicted."""
        self.learn.add(time.perf_counter() - self._since)
