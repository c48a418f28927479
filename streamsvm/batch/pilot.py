"""A small exact fit that tells, before a large one begins, about how long an exact one would take."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from streamsvm.batch.csmo.solver import Options, column_buffer, solve
from streamsvm.batch.csmo.state import problem_of
from streamsvm.batch.path_machine import Prepared, exact
from streamsvm.batch.problem import Groups
from streamsvm.core.kernels import Kernel

_FEWER, _ROWS = 500, 2000  # rows of two fits: how support vectors grow from one to the other, they go on
_OPTIONS = Options(tol=1e-2, conjugate=True, shrinking=True, max_iter=20_000, verbose=False)
_MEGABYTES = 16.0  # for all columns of so few rows


def exact_seconds(prepared: Prepared, Cs: Iterable[float], kernel: Kernel, epsilon: float | None) -> float:
    """Return about how many seconds exact fits of the rows take: those of all machines, for each C; ``epsilon``: regression.

    Fits 500 and 2,000 random rows for each machine and C, in some tens of milliseconds. From the one to the other, support
    vectors grow as a power of the rows, and are taken to go on so.
    """
    counted = prepared.training.counted
    order = np.random.default_rng(0).permutation(len(counted))
    fewer, more = (_expected_support(prepared, np.sort(order[:rows]), Cs, kernel, epsilon) for rows in (_FEWER, _ROWS))
    power = min(max(np.log(more / fewer) / np.log(_ROWS / _FEWER), 0.0), 1.0)
    support = more * max(len(counted) / _ROWS, 1.0) ** power
    return exact("", len(counted), int(support), 1).seconds


def _expected_support(prepared: Prepared, some: np.ndarray, Cs: Iterable[float], kernel: Kernel, epsilon: float | None) -> int:
    """Return how many support vectors exact machines of some rows have together, at least 1."""
    counted, targets = prepared.training.counted[some], prepared.training.targets
    groups = Groups(prepared.dense, counted, None if targets is None else targets[counted])
    buffer, support = column_buffer(_MEGABYTES, len(groups)), 1
    for C in Cs:
        for positive in prepared.sides:
            bounds = groups.bounds(C * prepared.weights[some], None if positive is None else positive[some])
            solution = solve(problem_of(groups, bounds, kernel, epsilon), None, _OPTIONS, buffer)
            if solution.interrupted:
                raise KeyboardInterrupt
            support += int(np.count_nonzero(solution.b))
    return support
