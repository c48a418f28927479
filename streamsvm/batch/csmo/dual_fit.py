"""Solves the dual problems of one fit: one binary machine for each pair of classes, or a single machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamsvm.batch.csmo.precomputed import PrecomputedRows
from streamsvm.batch.csmo.small import solve_machines
from streamsvm.batch.csmo.solver import (
    MachineSolution,
    SolverOptions,
    allocate_gram,
    is_small,
    make_small_options,
    make_solution,
    solve_problem,
)
from streamsvm.batch.csmo.state import GramCache, Problem, make_problem
from streamsvm.batch.kernel_machine import TrainingData
from streamsvm.batch.problem import RowGroups
from streamsvm.core.kernels import Kernel
from streamsvm.core.threads import Workers, raise_if_stopped

_MACHINES_BETWEEN_SIGNALS = 64  # small machines that are solved before a signal is handled; each takes milliseconds


@dataclass
class SharedFitData:
    """Data that fits to the same rows and weights share; fits of a single machine also share the problem and the Gram matrix."""

    rows: Any = None
    groups: RowGroups | None = None
    problem: Problem | None = None
    gram: GramCache | None = None
    is_path: bool = False  # whether several fits follow, so that a Gram matrix in memory pays off


@dataclass
class DualFit:
    """The machines of one fit, with their common data and options."""

    training: TrainingData
    labels: np.ndarray  # int64 [n]: the class of each row
    machines: np.ndarray  # int64 [machines, 2]: the class with negative and the class with positive coefficients
    C: np.ndarray  # float64 [n]: the bound of each row
    start: np.ndarray | None  # float64 [n]: initial coefficients, if there is only one machine
    kernel: Kernel
    epsilon: float | None
    sum_share: float
    options: SolverOptions
    shared: SharedFitData

    def __post_init__(self) -> None:
        self.coefficients: np.ndarray = np.zeros((len(self.machines), len(self.C)))
        self.first_solutions: dict[int, MachineSolution] = {}  # of `solve_small_machines`
        self._used_labels = self.labels[self.training.used_rows]

    @cached_property
    def max_rows(self) -> int:
        """The number of training rows of the largest binary machine (an SVM for one pair of classes) of this fit."""
        counts, (first, second) = np.bincount(self._used_labels, minlength=2), self.machines.T
        return int((counts[second] + np.where(first != second, counts[first], 0)).max())

    def solve_small_machines(self) -> None:
        """Solve all binary machines (SVMs for pairs of classes) of this fit in compiled code, and store their solutions, which
        may be above the tolerance, in ``first_solutions``. Does nothing if a machine has too many rows, kernel values are not
        precomputed, or the user passed initial coefficients.
        """
        rows, targets = self.shared.rows, self.training.targets
        has_matrix = isinstance(rows, PrecomputedRows) and rows.contiguous_matrix is not None
        if self.start is not None or not has_matrix or not is_small(self.max_rows, self.options.megabytes):
            return
        targets = np.zeros(len(self.C)) if targets is None else targets
        slope, options, values = 1.0 if self.epsilon is None else self.epsilon, self.options, np.empty((len(self.machines), 5))
        for first in range(0, len(self.machines), _MACHINES_BETWEEN_SIGNALS):
            raise_if_stopped()
            part = slice(first, first + _MACHINES_BETWEEN_SIGNALS)
            solve_machines(
                rows.contiguous_matrix, rows.which, self.C, self.labels, targets, self.machines[part], slope,
                self.epsilon is None, self.sum_share, make_small_options(options), self.coefficients[part], values[part],
            )  # fmt: skip
        self.first_solutions = {k: make_solution(self.coefficients[k], row, options) for k, row in enumerate(values.tolist())}

    def solve_machine(self, k: int, buffer: np.ndarray, workers: Workers) -> MachineSolution:
        """Solve the dual problem of the binary machine number ``k`` (an SVM for one pair of classes), write its dual coefficients
        into ``coefficients[k]``, and return the solution. It starts from coefficients of an earlier solution if there is one.
        ``buffer`` is memory for kernel values, and ``workers`` are the threads that compute them.
        """
        (first, second), used_rows, shared = self.machines[k], self.training.used_rows, self.shared
        which = used_rows[(self._used_labels == first) | (self._used_labels == second)]
        C, targets = self.C[which], self.training.targets
        positive = None if first == second else self.labels[which] == second
        groups = shared.groups
        if groups is None:
            groups = RowGroups(shared.rows, which, None if targets is None else targets[which], workers.for_each)
        bounds, total = groups.compute_bounds(C, positive), self.sum_share * float(C.sum())
        problem = shared.problem and shared.problem._replace(**bounds._asdict(), total=total)
        if problem is None:
            is_small_problem = is_small(len(groups), self.options.megabytes)
            problem = make_problem(groups, bounds, self.kernel, self.epsilon, total, is_small_problem)
        if len(self.machines) == 1:
            if shared.is_path and shared.gram is None:
                shared.gram = allocate_gram(len(groups), self.options.megabytes)
            shared.groups, shared.problem = groups, problem
        n_done = self.first_solutions[k].n_iter if k in self.first_solutions else 0
        coefficients = self.coefficients[k] if n_done else self.start
        start = None if coefficients is None else groups.sum_values(coefficients[which])
        solution = solve_problem(problem, start, self.options, buffer, workers, n_done, shared.gram)
        self.coefficients[k, which] = groups.split_coefficients(solution.b, C, positive)
        return solution
