"""The results of the problems of a fit, each with what it was found on."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm.iteration import GAP, ADMMSolution
from streamsvm.batch.tree_descent.descent import Solution

__all__ = ["Results"]


class Results:
    """The results of some problems: a column of ``b`` and ``multipliers``, and an element of the other arrays, for each."""

    b: np.ndarray
    multipliers: np.ndarray
    bias: np.ndarray
    beta: np.ndarray
    primal: np.ndarray
    dual: np.ndarray
    gap: np.ndarray
    shift: np.ndarray
    value_error: np.ndarray

    def __init__(self, n: int, problems: int, margin: float) -> None:
        self.b, self.multipliers = np.zeros((n, problems)), np.zeros((n, problems))
        self.bias, self.beta, self.primal, self.dual, self.gap = (np.zeros(problems) for _ in range(5))
        self.n_iter: np.ndarray = np.zeros(problems, np.int64)
        self.residual: np.ndarray = np.full(problems, np.inf)
        self.exact: np.ndarray = np.zeros(problems, bool)  # whether the exact kernel's problem was solved
        self.shift, self.value_error = np.zeros(problems), np.zeros(problems)  # as `compare_values` returns them
        self.compressions: dict[int, tuple[float, np.ndarray, int]] = {}  # error, ranks and bytes of each problem's matrix
        self.margin = margin
        self.interrupted: bool = False

    def put(self, which: np.ndarray, K: HSSMatrix, solution: ADMMSolution, comparison: tuple[np.ndarray, np.ndarray]) -> None:
        """Take the solution of the problems ``which`` with matrix K."""
        for name in ("b", "multipliers", "bias", "beta", "primal", "dual", "gap", "residual"):
            getattr(self, name)[..., which] = getattr(solution, name)
        self.shift[which], self.value_error[which] = comparison
        self.compressions.update(dict.fromkeys(which.tolist(), (K.error, K.ranks, K.nbytes)))
        self.n_iter[which] += solution.n_iter
        self.interrupted = solution.interrupted

    def put_walks(self, number: int, K: HSSMatrix, solution: Solution) -> None:
        """Take what a descent found for a problem with matrix K. Its gap is held against the tolerance itself."""
        self.b[K.order, number], self.bias[number], self.gap[number] = solution.b, solution.bias, solution.gap
        self.residual[number] = solution.gap
        self.n_iter[number] += solution.n_iter
        self.compressions[number] = K.error, K.ranks, K.nbytes

    def put_exact(self, number: int, b: np.ndarray, bias: float, gap: float) -> None:
        """Take the solution of a problem with the exact matrix."""
        self.b[:, number], self.bias[number], self.gap[number] = b, bias, gap
        self.residual[number], self.exact[number] = gap / GAP, True
