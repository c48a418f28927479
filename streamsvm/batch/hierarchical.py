"""Support vector machines for very many rows, by dual coordinate descent on a forest of compositional kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from streamsvm.batch.hss.compositional import compose_matrix
from streamsvm.batch.hss.trees import PartitionTree, add_forest_values, check_forest, grow_tree, join_trees, pack_forest
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor
from streamsvm.batch.path_machine import PathData, PathMachine, choose_forest_sizes
from streamsvm.batch.problem import Bounds, RowGroups
from streamsvm.batch.tree_descent import LossTerms, TreeSolution, descend_tree
from streamsvm.core.checks import parameter
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.kernels import LARGEST_KERNEL, POLY, RBF, Kernel
from streamsvm.core.progress import show_count
from streamsvm.core.sklearn_base import draw_seed, is_interrupt
from streamsvm.core.threads import Workers, limit_blas_threads, raise_if_stopped, resolve_n_jobs
from streamsvm.core.warning import warn

_MAX_VALUE = 1e100  # of X, so that products of three values are finite
_CHUNK_ROWS = 65_536  # rows of a chunk of a prediction


class _SolvedTree(NamedTuple):
    """A tree with the solutions of all problems; the rows of a solution are in the order of the tree's leaves."""

    seed: int
    tree: PartitionTree
    solutions: list[TreeSolution]
    nbytes: int  # of the kernel matrix


class _TreeProblems(NamedTuple):
    """The dual problems of a fit, which all trees solve, each with its own kernel matrix."""

    X: np.ndarray
    kernel: Kernel
    loss: LossTerms
    bounds: list[Bounds]  # of each problem: machine by machine, and for each machine with increasing C
    machines: int
    leaf_size: int
    rank: int
    tol: float
    max_iter: int
    stop: threading.Event

    def try_solve_tree(self, seed: int) -> _SolvedTree | None:
        """Grow the random tree for ``seed``, and solve all dual problems of the fit with its approximate kernel. Return the tree
        with the solutions; None if the fit was stopped or the user interrupts before there is a solution.

        Once ``stop`` is set, each problem gets only one walk, and no further tree is begun: it returns None.
        """
        if self.stop.is_set():
            return None
        try:
            return self._solve_tree(seed)
        except BaseException as error:
            self.stop.set()  # after a failure, the other trees are useless
            if not is_interrupt(error):
                raise
            return None

    def _solve_tree(self, seed: int) -> _SolvedTree:
        """Grow the random tree for ``seed``, compute its approximate kernel matrix, and solve all dual problems of the fit with
        it, one for each class against all others and each C. Return the tree with the solutions.
        """
        raise_if_stopped()
        tree = grow_tree(self.X, self.leaf_size, seed)
        matrix = compose_matrix(self.X[tree.order], tree, self.kernel, self.rank, seed)
        loss = self.loss._replace(targets=self.loss.targets[tree.order])
        solutions: list[TreeSolution] = []
        for number, bounds in enumerate(self.bounds):
            ordered = Bounds(*(side[tree.order] for side in bounds))
            start = solutions[-1] if number % (len(self.bounds) // self.machines) else None
            solutions.append(descend_tree(tree, matrix, loss, ordered, start, self.tol, self.max_iter, self.stop))
        return _SolvedTree(seed, tree, solutions, matrix.nbytes)


@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalMachine(PathMachine):
    """The base of `HierarchicalSVC` and `HierarchicalSVR`: each tree solves one problem for each machine and each C.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the rows that predictions read, or that have a nonzero coefficient.
    support_vectors_ : float64 [n_support, features]
        Those rows.
    dual_coef_ : float64 [machines, n_support]
        Coefficients (y_i alpha_i for classifiers), averaged over the trees; one machine for a regressor or two classes,
        otherwise one for each class. Predictions use the weights of the leaves' rows instead. `to_budget` chooses vectors by
        these coefficients.
    intercept_ : float64 [machines]
        The intercept of each machine, averaged over the trees.
    n_iter_ : int
        Number of walks of the longest descent.
    gap_ : float
        The largest relative duality gap of all trees and machines. If coefficients do not sum to 0, it includes the cost of an
        intercept that is wrong by a margin: 1 for classifiers; for regressors epsilon, or a tenth of the targets' standard
        deviation if that is larger.
    objective_ : float
        The primal objective, summed over the machines and averaged over the trees.
    n_trees_ : int
        Number of trees; fewer than ``n_trees`` after an interrupt.
    compressed_nbytes_ : int
        Bytes of the largest tree's matrix, which exists only during the fit.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` walks.
    """

    n_trees: int = parameter(default=8, least=1, integer=True)
    """Number of trees, at least 1. More trees are more accurate, and cost time and memory in proportion."""
    leaf_size: int | str = "auto"
    """Maximum number of rows of a leaf, at least 2. Rows that fit into one leaf have the exact kernel. ``"auto"`` is 256 for up
    to 12 features and 512 for more. For fewer than 50,000 rows it is larger: twice as large for 25,000, and at most four times
    as large. It is at least twice the rank. Larger leaves are more accurate, and cost more.
    """
    rank: int | str = "auto"
    """Number of rows of a skeleton, at least 1. ``"auto"`` is 50 for up to 12 features and 100 for more; for fewer than 50,000
    rows it grows as ``leaf_size`` does. A higher rank is more accurate, and costs more.
    """
    tol: float = parameter(default=0.05, least=0.0)
    """Largest duality gap of a converged descent, relative to the primal objective; at least 0."""
    max_iter: int = parameter(default=1000, least=1, integer=True)
    """Maximum number of walks through a tree for each problem. A walk visits every leaf once."""
    n_jobs: int | None = None
    """Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. In a fit, each thread works on one
    tree. Predictions use the threads too. Results do not depend on it.
    """

    _is_expansion = False  # decision values are those of ``_forest``

    def _fit_models(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        """Fit several models that differ only in their C to the same rows, with the same random trees, and return them. If the
        user interrupts, the finished trees are used, and KeyboardInterrupt is raised.
        """
        Cs = [model.C for model in models]
        with self._rollback_on_error():
            prepared = self._prepare_path(Cs, X, y, sample_weight)
            unit_bounds, by_C = prepared.unit_bounds, np.argsort(Cs)
            bounds = [Bounds(*(Cs[number] * side for side in unit)) for unit in unit_bounds for number in by_C]
            problems = self._make_problems(prepared.groups, bounds, len(unit_bounds))
            trees, interrupted = self._solve_trees(problems)
            self._copy_fit_to(models)
            rank_of_C = np.empty(len(Cs), np.int64)
            rank_of_C[by_C] = np.arange(len(Cs))
            for number, (model, C) in enumerate(zip(models, Cs, strict=True)):
                numbers = (np.arange(len(unit_bounds)) * len(Cs) + rank_of_C[number]).tolist()
                model._set_fit(prepared, trees, C, numbers)
        if interrupted:
            raise KeyboardInterrupt
        self._warn_if_inexact(models)
        return models

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        super()._check_parameters(Cs)
        resolve_n_jobs(self.n_jobs)
        for name, least in {"leaf_size": 2, "rank": 1}.items():
            self._check_or_auto(name, least, high=10**5, integer=True)

    def _choose_sizes(self, n: int, d: int) -> tuple[int, int]:
        """Return the maximum number of rows in a leaf of a tree, and the rank: the number of rows of a tree node from which the
        kernel values of its other rows are interpolated. They are this estimator's parameters, or defaults for ``n`` rows of
        ``d`` features.
        """
        leaf_size, rank = choose_forest_sizes(n, d)
        rank = rank if isinstance(self.rank, str) else int(self.rank)
        return max(leaf_size, 2 * rank) if isinstance(self.leaf_size, str) else int(self.leaf_size), rank

    def _make_problems(self, groups: RowGroups, bounds: list[Bounds], machines: int) -> _TreeProblems:
        """Return the dual problems that are solved with each tree. They use one row from each group of equal rows (``groups``).
        Each element of ``bounds`` makes a problem; there are ``machines`` problems (one for each class against all others) for
        each value of C.
        """
        rows = groups.take_rows()
        leaf_size, rank = self._choose_sizes(*rows.shape)
        loss = LossTerms.from_targets(groups.targets, self._epsilon, _compute_mean_self_kernel(rows, self._kernel))
        limits = float(self.tol), int(self.max_iter)
        return _TreeProblems(rows, self._kernel, loss, bounds, machines, leaf_size, rank, *limits, threading.Event())

    def _solve_trees(self, problems: _TreeProblems) -> tuple[list[_SolvedTree], bool]:
        """Solve all dual problems of a fit with each of ``n_trees`` random trees, in ``n_jobs`` threads. Return the trees with
        their solutions, and whether the user interrupted.

        After an interrupt, only finished trees are returned or, if none is finished, the unfinished ones.
        """
        seeds = np.random.SeedSequence(draw_seed(self.random_state)).generate_state(self.n_trees).tolist()
        trees, threads = list[_SolvedTree](), min(resolve_n_jobs(self.n_jobs), len(seeds))

        def solve_one(seed: int) -> None:
            """Solve all dual problems with the random tree for ``seed``, and report progress."""
            if (tree := problems.try_solve_tree(seed)) is not None:
                trees.append(tree)
                show(len(trees))

        # Each thread solves one tree at a time. BLAS has one thread, so that its results do not depend on n_jobs.
        with limit_blas_threads(), Workers(threads) as workers, show_count(len(seeds), "trees", bool(self.verbose)) as show:
            try:
                workers.for_each(solve_one, seeds, problems.stop)
            except BaseException as error:
                problems.stop.set()
                if not is_interrupt(error):
                    raise
        if not trees:
            raise KeyboardInterrupt
        trees.sort(key=lambda tree: seeds.index(tree.seed))  # so that sums do not depend on which thread finished first
        finished = [tree for tree in trees if not any(solution.stopped for solution in tree.solutions)]
        return finished or trees, problems.stop.is_set()

    def _set_fit(self, prepared: PathData, trees: list[_SolvedTree], C: float, numbers: list[int]) -> None:
        """Set the fitted attributes of this model, such as support vectors and intercepts, from the solved ``trees``. ``numbers``
        are the positions of this model's dual problems among those that were solved with each tree, and ``C`` is its value of C.
        """
        solutions = [[tree.solutions[number] for number in numbers] for tree in trees]
        weighted_trees = (
            (tree.tree, np.array([solution.weights for solution in tree_solutions]) / len(trees))
            for tree, tree_solutions in zip(trees, solutions, strict=True)
        )
        forest = join_trees(weighted_trees, prepared.training.used_rows[prepared.groups.row_of_group])
        b = np.zeros((len(numbers), len(prepared.groups)))
        for tree, tree_solutions in zip(trees, solutions, strict=True):
            for machine_b, solution in zip(b, tree_solutions, strict=True):
                machine_b[tree.tree.order] += solution.b / len(trees)
        biases = np.array([[solution.bias for solution in tree_solutions] for tree_solutions in solutions])
        coefficients = prepared.expand_coefficients(b, C)
        is_support: np.ndarray = np.any(coefficients, axis=0)
        is_support[forest.rows] = True
        support = np.flatnonzero(is_support)
        self._forest = forest._replace(rows=np.searchsorted(support, forest.rows).astype(np.int32))
        self._set_solution(prepared.X, coefficients, biases.mean(axis=0), support)
        all_solutions = [solution for tree_solutions in solutions for solution in tree_solutions]
        self.n_iter_: int = max(solution.n_iter for solution in all_solutions)
        self.gap_: float = float(max(solution.gap for solution in all_solutions))
        self.objective_: float = float(sum(solution.objective for solution in all_solutions) / len(trees))
        self.n_trees_: int = len(trees)
        self.compressed_nbytes_: int = max(tree.nbytes for tree in trees)

    def _warn_if_inexact(self, models: list[Self]) -> None:
        """Issue a ConvergenceWarning if the largest duality gap of the ``models`` is above ``tol``."""
        worst = max(models, key=lambda model: model.gap_)
        if worst.gap_ > self.tol:
            warn(
                f"{type(self).__name__} ended for C={worst.C:g} after {worst.n_iter_} walks with a relative gap of "
                f"{worst.gap_:.3g}, above tol={self.tol:g}: raise max_iter or tol, or lower C or raise gamma",
                ConvergenceWarning,
            )

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _prepare_predictor(self) -> None:
        """Set ``_predictor``, the object for fast predictions: all trees, with the rows of their leaves in one array."""
        self._predictor = pack_forest(self._forest, np.ascontiguousarray(self.support_vectors_), self._kernel)

    def _compute_decisions(self, X: Any) -> np.ndarray:
        """Return the decision values for the rows X, averaged over the trees, float64 [n, machines]. There is one column for a
        regressor or two classes, and otherwise one for each class.
        """
        out = np.tile(self._intercepts, (X.shape[0], 1))

        def decide_chunk(start: int) -> None:
            """Add the decision values of the chunk of rows that begins at row ``start`` to the output array."""
            rows = slice(start, start + _CHUNK_ROWS)
            chunk = X[rows].toarray() if sparse.issparse(X) else X[rows]
            add_forest_values(self._predictor, self._kernel, np.ascontiguousarray(chunk, np.float64), out[rows])

        self._run_chunks(decide_chunk, range(0, X.shape[0], _CHUNK_ROWS))
        return out

    # Saved models -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if "_forest" in state:
            state["_forest"] = tuple(state["_forest"])
        return state

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        """Raise a ValueError if the ``state`` of a saved model is corrupt: its trees are missing or invalid, or its arrays do not
        match its number of ``machines``.
        """
        super()._check_saved(state, machines)
        vectors = state["support_vectors_"]
        if "_forest" not in state or sparse.issparse(vectors):
            raise ValueError("the saved model is corrupt: it has no trees, or its support vectors are sparse")
        state["_forest"] = check_forest(state["_forest"], machines, *vectors.shape)


def _compute_mean_self_kernel(rows: np.ndarray, kernel: Kernel) -> float:
    """Return the mean of the kernel values of the ``rows`` [n, d] with themselves, or 1 if that is 0. Raise a ValueError if the
    rows have values that are too large for the kernel.
    """
    largest = float(np.abs(rows).max(initial=0.0))
    if kernel.kind == RBF and largest < _MAX_VALUE:
        return 1.0
    if largest < _MAX_VALUE:
        values = np.einsum("ij,ij->i", rows, rows)
        if kernel.kind == POLY:
            with np.errstate(over="ignore"):
                values = (kernel.gamma * values + kernel.coef0) ** kernel.degree
        if values.max() < LARGEST_KERNEL:
            return float(values.mean()) or 1.0
    raise ValueError("X has values that are too large for this kernel: scale its features")


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVC(KernelClassifier, HierarchicalMachine):
    """A support vector classifier for very many rows, averaged over trees that approximate the kernel.

    Use it for more than 50,000 dense rows of up to about 30 features. For fewer rows, `CSMOClassifier` is faster, and exact.

    Each tree divides the rows recursively along random axes. Within a leaf, its kernel is exact. Between leaves, the
    kernel goes through the skeleton of each node, which is a few of the node's rows. The result is a kernel too (a
    compositional kernel), and it is defined for new rows, so that each tree is trained and predicts in the same space. The
    trees differ, and their average comes close to the machine of the exact kernel. Each tree solves the problem of
    `CSMOClassifier`, except that with more than two classes there is one machine for each class against all others. Time and
    memory are linear in the number of rows, and a prediction reads one leaf of each tree.

    Notes
    -----
    With n rows, d features, leaves of m rows and rank r, each tree costs O(n d log n) to grow, O(n (m + r) (d + r)) for its
    matrix, and O(n r) for each walk, plus O(m + r) for each coefficient that changes. A prediction costs
    O(d log n + m (d + machines)) for each tree. A fit needs about 4 n (m + 3 r) bytes for each thread, and 8 n (d + 3) bytes
    for each tree. Equal rows share one variable.

    If you interrupt a fit (Ctrl-C), it keeps the finished trees, or if none is finished, the last walk of those that had
    begun, then raises KeyboardInterrupt. An interrupt before the first walk, or after the last tree is finished, does not change
    the model.

    References
    ----------
    Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR
    18.

    Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
    large-scale linear SVM. ICML. The steps in a leaf are theirs; here, the intercept is a multiplier.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import HierarchicalSVC

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> models = HierarchicalSVC(gamma=0.03, leaf_size=128, rank=50).fit_path(X, y, [0.1, 1.0, 10.0])
    >>> [model.C for model in models], all(model.score(X, y) > 0.94 for model in models)
    ([0.1, 1.0, 10.0], True)
    """


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVR(KernelRegressor, HierarchicalMachine):
    """Support vector regression for very many rows, averaged over trees that approximate the kernel.

    Use it for more than 50,000 dense rows of up to about 30 features. For fewer rows, `CSMORegressor` is faster, and exact.
    Each tree solves the problem of `CSMORegressor` with the compositional kernel that `HierarchicalSVC` describes.

    Notes
    -----
    Cost, memory and interrupts (Ctrl-C) are described in `HierarchicalSVC`, together with the references.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import HierarchicalSVR

    >>> X = np.linspace(-3.0, 3.0, 2000)[:, np.newaxis]
    >>> model = HierarchicalSVR(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """
