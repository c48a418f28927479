"""The fit of kernel machines by ADMM on a compressed kernel matrix."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streamsvm.batch.csmo.solver import Options, column_buffer, solve
from streamsvm.batch.csmo.state import problem_of
from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm.iteration import (
    CLOSE,
    GAP,
    ADMMOptions,
    Problems,
    Results,
    admm,
    compare,
    compare_values,
    go_on,
    start,
)
from streamsvm.batch.path_machine import ForestMachine
from streamsvm.batch.problem import Bounds, Groups
from streamsvm.batch.tree_descent import Loss
from streamsvm.core.checks import KernelName, PredictionKernel, check_number, check_one_of, parameter
from streamsvm.core.kernels import KERNELS, LARGEST_KERNEL
from streamsvm.core.sklearn_base import is_interrupt, seed_of
from streamsvm.core.threads import one_blas_thread
from streamsvm.core.warning import warn

logger: logging.Logger = logging.getLogger(__name__)

_FIRST_BETA = 5.0  # times the largest self-kernel; from there it follows the residuals
_PAPER_STEPS = 11  # the source's loop runs from 0 to 10
_TOLERANCES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the compressions with rel_tol="auto"
_TRIAL_PART = 4  # a compression that may be replaced is given one of so many parts of the iterations that are left
_MARGIN_ERROR = 1.0  # margins by which values may be off; else a closer compression is tried whatever it costs
_CHEAP_ERROR = 0.3  # margins by which values may be off; else a closer compression is tried if it is cheap
_ONE_SPACE_ERROR = 0.15  # margins by which values of the compressed kernel may differ from exact ones where these are cheap
_LOW_RANK = 0.5  # a compression is cheap if its ranks are at most this part of a leaf's rows
_EXACT_TOL, _COMPRESSED_TOL = 1e-2, 5e-2  # with tol="auto"; values of the compressed kernel are as good with the latter
_LEAF_SIZE = 512  # where values are compressed
_RANK, _SMALL_RANK = 200, 100  # there; the latter for very many rows of few features
_FEW_FEATURES, _MANY_ROWS = 16, 50_000
_SOLVED_EXACTLY = 10**9  # rows times support vectors: up to so many, an exact solution costs about as much as the compression
_POLISH_WORK = 3 * 10**9  # rows times steps, of such a solution
_POLISH = Options(tol=1e-3, conjugate=True, shrinking=True, max_iter=-1, verbose=False)
_POLISH_MEGABYTES = 200.0


@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMM(ForestMachine):
    """The fit that `HSSADMMClassifier` and `HSSADMMRegressor` share: one problem for each machine and each C of a path.

    Parameters
    ----------
    memory_limit
        Maximum memory in bytes of a compressed matrix and its factorisation; None sets no limit. It does not count 8 bytes a
        row for each of about ten columns of every machine and C, nor the previous matrix while a closer one is made.
    random_state
        Seed of the random choices in the compression, for repeatable fits. None uses a different seed each time.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows.
    support_vectors_ : float64 [n_support, features]
        The support vectors. With compressed values, rows of skeletons are among them, whose coefficients may be 0.
    dual_coef_ : float64 [machines, n_support]
        Coefficients, of a classifier y_i alpha_i; one machine for a regressor or two classes, otherwise one for each class.
    intercept_ : float64 [machines]
        The intercept of each machine. With exact values, that of a classifier is corrected for them if the rows then cost
        clearly less, and that of a regressor by their mean difference from compressed ones, over rows at the margin.
    predict_with_ : str
        The kernel of this model's predictions, ``"compressed"`` or ``"exact"``.
    solved_exactly_ : bool
        Whether the coefficients are those of the exact kernel's problem: after ``polish``, or because ``predict_with="auto"``
        found the compressed kernel too coarse or too slow for this C. Such a model is what `CSMOClassifier` or `CSMORegressor`
        would have found. The logger ``streamsvm`` says so, too, at the level INFO.
    n_iter_ : int
        Number of walks and iterations, without those of an exact solution.
    beta_ : float
        The last penalty; 0 if ADMM was not needed.
    primal_residual_, dual_residual_, gap_ : float
        Relative residuals of ADMM and relative gap at the end. After an exact solution, the gap is that of the exact problem.
    compression_error_ : float
        An estimate of |(K - K~) V| / |K V|; see `streamsvm.batch.hss.HSSMatrix`.
    value_error_ : float
        Root mean square difference between the values of the compressed expansion and the exact ones, over up to 256 rows at
        the margin or over 256 random rows, whichever is larger. For random rows, values beyond twice the margin count as twice
        the margin. For a model that was solved exactly, it is that of the solution it started from.
    ranks_ : int64 [levels, 2]
        The smallest and the largest rank of each level of the tree.
    compressed_nbytes_ : int
        Bytes of the compressed matrix.

    Warns
    -----
    ConvergenceWarning
        The residuals or the gap are above the tolerance after ``max_iter`` iterations, or the gap is above 1e-3 after the
        polish. With ``predict_with="exact"`` and ``rel_tol="auto"``: values differ from exact ones by more than the margin.
    RuntimeWarning
        The error of the compression is above its tolerance.
    """

    _single = False  # weights are as large as the inverses of skeletons' matrices

    kernel: KernelName = parameter(default="rbf", choices=KERNELS)
    predict_with: PredictionKernel = parameter(default="auto", choices=("auto", "compressed", "exact"))
    """Kernel of the predictions:

    - ``"compressed"``: the kernel of the compressed matrix, which new rows have too (`streamsvm.batch.hss.HSSMatrix.extend`).
      The fit begins with dual descent along the tree, as in `HierarchicalSVC`, and starts each C from the one before; where
      that is slow, ADMM continues. Decision values jump a little where leaves meet.
    - ``"auto"``: the same, but models of a C are solved with the exact kernel, as by ``polish``, if their values differ from
      exact ones by more than 0.15 of the margin, or if 30 walks of the descent do not solve them. This happens only if rows
      times support vectors are at most 10^9, and for at most 3 10^9 / rows steps. With ``beta="paper"``, ``"auto"`` means
      ``"exact"``.
    - ``"exact"``: the exact kernel, with coefficients that ADMM alone finds on the compressed matrix. The fit compresses again
      and again until the values agree, which takes minutes if the kernel is broad or the rows have many features.
    """
    rel_tol: float | str = "auto"
    """Relative error that the compression may have for coefficients whose sum is zero (see
    `streamsvm.batch.hss.HSSMatrix.compress`). A number asks for one compression to that error. ``"auto"`` is one compression of
    rank ``max_rank``, whatever its error. With ``predict_with="exact"``, ``"auto"`` begins at 0.3, and continues with 0.1, 0.03
    and so on down to 0.001 for models whose values differ from exact ones by more than 0.3 of the margin while ranks are below
    half a leaf, or by more than the margin whatever the ranks; a warning reports differences above the margin that remain. The
    margin of a regressor is epsilon or a tenth of the targets' standard deviation, whichever is larger. With ``beta="paper"``,
    it stays at 0.3.
    """
    abs_tol: float = 0.0
    """Absolute error that the compression may have (see `streamsvm.batch.hss.HSSMatrix.compress`); the looser of the two
    counts.
    """
    max_rank: int | str = "auto"
    """Maximum number of rows of a skeleton, at least 1. ``"auto"`` is 200, or 100 for more than 50,000 rows of up to 16
    features. It is 1000 with ``predict_with="exact"``, and with ``predict_with="auto"`` and a number as ``rel_tol``. A higher
    rank is more accurate, and costs more.
    """
    n_neighbors: int | str = "auto"
    """Approximate number of nearest rows of each row by which skeletons are chosen, at least 4. ``"auto"`` is 16, or 64 where
    ``max_rank`` is 1000.
    """
    leaf_size: int | str = "auto"
    """Maximum number of rows of a leaf, at least 2. ``"auto"`` is 512, or 256 where ``max_rank`` is 1000."""
    beta: float | str = "balanced"
    """Penalty of the augmented Lagrangian. A number above 0 stays as it is. ``"balanced"`` follows the residuals, for which the
    matrix is factorised a few more times. ``"paper"`` does what the source of `HSSADMMClassifier` does: 100 for fewer than 10^5
    rows, 1,000 for fewer than 10^6, and 10,000 for more; eleven iterations from 0 without relaxation; residuals are ignored.
    """
    relaxation: float = parameter(default=1.6, above=0.0)
    """Over-relaxation of ADMM, above 0 and below 2. The fit converges for any such value and any ``beta``, although slowly for
    unsuitable ones, because the compressed matrix has no negative eigenvalues apart from rounding.
    """
    tol: float | str = "auto"
    """Relative primal and dual residuals at which the fit ends, provided that the duality gap is at most ten times as large,
    relative to the objective or to a tenth of the cost of a constant prediction, whichever is larger. All are those of the
    compressed problem. ``"auto"`` is 0.05 with compressed values, otherwise 0.01. A descent ends at a gap of a tenth of
    ``tol``, and one of a fifth or less counts as a solution.
    """
    max_iter: int = parameter(default=2000, least=1, integer=True)
    """Maximum number of walks of the descent and iterations of ADMM, on all compressions together."""
    polish: bool = False
    """Whether conjugate SMO continues with the exact kernel to the exact solution of every model, as `CSMOClassifier` and
    `CSMORegressor` do with ``tol=1e-3``. It cannot be combined with ``predict_with="compressed"``.
    """

    def _fit_path(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        Cs = [model.C for model in models]
        with self._all_or_nothing(), one_blas_thread():  # products are small: threads of BLAS would wait for each other
            prepared = self._prepared(Cs, X, y, sample_weight)
            training, groups, units = prepared.training, prepared.groups, prepared.units
            K = self._compressed(groups)
            bounds = [Bounds(*(C * side for side in unit)) for C in Cs for unit in units]
            if self._one_space:
                paths = [[int(i) * len(units) + machine for i in np.argsort(Cs)] for machine in range(len(units))]
                results = self._solved_in_one_space(K, groups, bounds, paths)
            else:
                results = self._solved(K, groups, Bounds(*(np.column_stack(parts) for parts in zip(*bounds, strict=True))))
                if self.beta != "paper":
                    results.bias += results.shift
            columns_of = np.arange(len(bounds)).reshape(len(Cs), -1)
            if self.polish and not results.interrupted:
                self._polished(groups, bounds, results, list(columns_of), -1)
            self.__dict__.pop("_forest", None)  # of a fit before this one
            self._share_fit(models)
            for model, C, columns in zip(models, Cs, columns_of, strict=True):
                coefficients, biases = prepared.coefficients(results.b[:, columns].T, C), results.bias[columns]
                if self._compressed_values and not results.exact[columns].all():
                    forest = K.extension(results.b[:, columns])
                    forest = forest._replace(rows=training.counted[groups.first][forest.rows])
                    model._set_forest(prepared.dense, coefficients, biases, forest)
                else:
                    model._set_solution(training.X, coefficients, biases, np.flatnonzero(coefficients.any(axis=0)))
                model._report(results, columns)
                if model.solved_exactly_ and not self.polish:
                    text = "%s solved the model for C=%g with the exact kernel: the compressed one was too coarse or too slow"
                    logger.info(text, type(self).__name__, C)
        if results.interrupted:
            raise KeyboardInterrupt
        self._warn(results, np.repeat(Cs, len(units)))
        return models

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        super()._check_parameters(Cs)
        if isinstance(self.rel_tol, str):
            check_one_of("rel_tol", self.rel_tol, ("auto",))
        if isinstance(self.beta, str):
            check_one_of("beta", self.beta, ("balanced", "paper"))
        else:
            check_number("beta", self.beta, 0.0)
        if self.relaxation >= 2.0:
            raise ValueError(f"relaxation must be below 2, not {self.relaxation!r}")
        for name, least in {"tol": 0.0, "max_rank": 1, "n_neighbors": 4, "leaf_size": 2}.items():
            self._check_or_auto(name, least, integer=name != "tol")
        if self.polish and self.predict_with == "compressed":
            raise ValueError("polish solves with the exact kernel: set predict_with='exact', or polish=False")

    @property
    def _compressed_values(self) -> bool:
        """Whether predictions are those of the compressed matrix's kernel, but for models that were solved exactly."""
        return self.predict_with == "compressed" or (self.predict_with == "auto" and self.beta != "paper")

    @property
    def _one_space(self) -> bool:
        """Whether the fit is for the compressed matrix's kernel, and not as in the source."""
        return self._compressed_values and self.beta != "paper"

    def _sizes(self, n: int) -> dict[str, int]:
        """Return the numbers that ``"auto"`` stands for, with n rows."""
        if self._tolerances[0] is not None and self.predict_with != "compressed":
            found = {"max_rank": 1000, "n_neighbors": 64, "leaf_size": 256}
        else:
            small = n > _MANY_ROWS and self.n_features_in_ <= _FEW_FEATURES
            found = {"max_rank": _SMALL_RANK if small else _RANK, "n_neighbors": 16, "leaf_size": _LEAF_SIZE}
        given = {name: getattr(self, name) for name in found}
        return found | {name: int(value) for name, value in given.items() if not isinstance(value, str)}

    @property
    def _tol(self) -> float:
        if isinstance(self.tol, str):
            return _COMPRESSED_TOL if self._compressed_values else _EXACT_TOL
        return float(self.tol)

    @property
    def _tolerances(self) -> tuple[float | None, ...]:
        if self.rel_tol == "auto" and self._one_space:
            return (None,)  # a rank is given instead
        if self.rel_tol != "auto":
            return (self.rel_tol,)  # type: ignore[return-value]
        return _TOLERANCES[:1] if self.beta == "paper" else _TOLERANCES

    def _compressed(self, groups: Groups) -> HSSMatrix:
        _, gamma, coef0, degree = self._kernel
        kernel: dict[str, Any] = {"kernel": self.kernel, "gamma": gamma, "degree": degree, "coef0": coef0}
        limits: dict[str, Any] = {"abs_tol": self.abs_tol, "memory_limit": self.memory_limit, **self._sizes(len(groups))}
        how: dict[str, Any] = {"zero_sum": True, "seed": seed_of(self.random_state), "verbose": bool(self.verbose)}
        K = HSSMatrix.compress(groups.rows(), rel_tol=self._tolerances[0], **kernel, **limits, **how)
        if not K.largest_diagonal < LARGEST_KERNEL:
            raise ValueError("X has values that are too large for this kernel: scale its features")
        return K

    def _solved(self, K: HSSMatrix, groups: Groups, bounds: Bounds) -> Results:
        """Solve all problems; go on with a closer compression for those whose values are far off, or off and it is cheap."""
        loss = Loss.of(groups.targets, self._epsilon, K.mean_diagonal or 1.0)
        epsilon, margin, regression = loss.epsilon, loss.margin, not loss.classification
        n, problems = bounds.lower.shape
        results = Results(n, problems, margin)
        going, start, beta, closer = np.arange(problems), None, None, [t for t in self._tolerances[1:] if t]
        try:
            while left := int(self.max_iter - results.n_iter[going].max()):
                some = Bounds(*(side[:, going] for side in bounds))
                # On a compression that may be replaced, iterations need not go on to the end.
                options = self._admm_options(n, K, beta, -(-left // _TRIAL_PART) if closer else left)
                solution = admm(K, groups.targets, epsilon, some, options, start)
                comparison = compare_values(K, groups.targets, solution.b, solution.bias, some, epsilon, regression=regression)
                results.put(going, K, solution, comparison)
                limit = _MARGIN_ERROR if K.ranks.max(initial=0) > _LOW_RANK * self._sizes(n)["leaf_size"] else _CHEAP_ERROR
                far, slow = results.value_error > limit * margin, results.residual > self._tol
                if solution.interrupted or self.beta == "paper" or not (slow.any() or (far.any() and closer)):
                    break
                if far.any() and closer:
                    K = K.closer(closer.pop(0), self.abs_tol)
                    if not K.reached:
                        closer = []  # nor would it reach a smaller tolerance
                    going = np.flatnonzero(far | slow)
                else:
                    going, closer = np.flatnonzero(slow), []
                start, beta = (results.b[:, going], results.multipliers[:, going]), solution.beta
        except KeyboardInterrupt:
            if not results.n_iter.all():
                raise
            results.interrupted = True  # while the next compression was made: the results are those of the last
        return results

    def _admm_options(self, n: int, K: HSSMatrix, beta: float | None, max_iter: int) -> ADMMOptions:
        """Return the options of a run; ``beta`` is where the run before it ended, None if it is the first."""
        if self.beta == "paper":
            return ADMMOptions(1e2 if n < 10**5 else 1e3 if n < 10**6 else 1e4, False, 1.0, 0.0, _PAPER_STEPS, bool(self.verbose))
        balance = self.beta == "balanced"
        if beta is None:
            beta = _FIRST_BETA * (K.largest_diagonal or 1.0) if balance else float(self.beta)
        return ADMMOptions(beta, balance, float(self.relaxation), self._tol, max_iter, bool(self.verbose))

    def _solved_in_one_space(self, K: HSSMatrix, groups: Groups, bounds: list[Bounds], paths: list[list[int]]) -> Results:
        """Solve all problems with one compressed matrix, and those that it does not serve with the exact one, if that is cheap.

        It does not serve where values are off, or descent along the tree does not come to an end soon.
        """
        loss = Loss.of(groups.targets, self._epsilon, K.mean_diagonal or 1.0)
        problems = Problems(K, loss, bounds, paths, self._tol, int(self.max_iter), bool(self.verbose))
        results = start(problems)
        if not (results.interrupted or self.polish):
            try:
                self._refine(problems, groups, results)
            except BaseException as error:
                if not is_interrupt(error):
                    raise
                results.interrupted = True  # the walks of the start are there
        return results

    def _refine(self, problems: Problems, groups: Groups, results: Results) -> None:
        """Solve with the exact matrix where the start does not serve and that is cheap, and else go on from the start."""
        compare(problems, results)
        slow = results.gap > CLOSE * self._tol
        if self.predict_with == "auto":
            machines = len(problems.paths)  # those of one C are predicted alike
            doubtful = slow | (results.value_error > _ONE_SPACE_ERROR * problems.loss.margin)
            work = len(groups) * np.count_nonzero(results.b, axis=0).reshape(-1, machines).sum(axis=1)
            chosen = doubtful.reshape(-1, machines).any(axis=1) & (work <= _SOLVED_EXACTLY)
            sets = list(np.arange(len(slow)).reshape(-1, machines)[chosen])
            self._polished(groups, problems.bounds, results, sets, max(_POLISH_WORK // len(groups), 1))
        which = np.flatnonzero(slow & ~results.exact)
        if len(which) and not results.interrupted:
            go_on(problems, results, which, self._admm_options(len(groups), problems.K, None, 0))

    def _polished(self, groups: Groups, bounds: list[Bounds], results: Results, sets: list[np.ndarray], max_iter: int) -> None:
        """Go on with conjugate SMO for the problems of each C in ``sets``, its machines, for at most so many steps each.

        Where predictions would be compressed, all machines of a C are solved or stay as they were.
        """
        if not sets:
            return
        problem = problem_of(groups, bounds[0], self._kernel, self._epsilon)
        options = _POLISH._replace(verbose=bool(self.verbose), max_iter=max_iter)
        buffer = column_buffer(_POLISH_MEGABYTES, len(groups))
        for columns in sets:
            found = []
            for column in columns:
                found.append(solve(problem._replace(**bounds[column]._asdict()), results.b[:, column], options, buffer))
                if found[-1].interrupted:
                    break
            results.interrupted = found[-1].interrupted
            solved = len(found) == len(columns) and (max_iter < 0 or max(exact.gap for exact in found) <= GAP * self._tol)
            if (solved and not results.interrupted) or not self._compressed_values:
                for column, exact in zip(columns, found, strict=False):
                    results.put_exact(column, exact.b, exact.bias, exact.gap)
            if results.interrupted:
                break

    def _report(self, results: Results, columns: np.ndarray) -> None:
        self.predict_with_ = "compressed" if hasattr(self, "_forest") else "exact"
        self.solved_exactly_: bool = bool(results.exact[columns].all())
        worst = int(columns[results.value_error[columns].argmax()])
        self.n_iter_: int = int(results.n_iter[columns].max())
        self.beta_: float = float(results.beta[columns].max())
        self.primal_residual_: float = float(results.primal[columns].max())
        self.dual_residual_: float = float(results.dual[columns].max())
        self.gap_: float = float(results.gap[columns].max())
        self.value_error_: float = float(results.value_error[worst])
        error, ranks, nbytes = results.compressions[worst]
        self.compression_error_: float = error
        self.ranks_: np.ndarray = ranks
        self.compressed_nbytes_: int = nbytes

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        super()._check_saved(state, machines)
        solved = state.get("solved_exactly_", False)  # which earlier versions did not save
        if type(solved) is not bool or (solved and "_forest" in state):
            raise ValueError("the saved model is corrupt: whether it was solved exactly does not fit its trees")

    def _warn(self, results: Results, Cs: np.ndarray) -> None:
        """Warn of problems, each with its C, that were not solved to the tolerance."""
        if self.polish:
            worst = int(results.gap.argmax())
            if (gap := results.gap[worst]) > _POLISH.tol:
                message = f"the polish for C={Cs[worst]:g} ended with a gap of {gap:.3g}, above {_POLISH.tol:g}"
                warn(f"{message}: scale the features", ConvergenceWarning)
            return
        if self.beta == "paper":
            return
        worst = int(results.residual.argmax())
        if results.residual[worst] > self._tol:
            warn(
                f"{type(self).__name__} ended for C={Cs[worst]:g} after {results.n_iter[worst]} iterations with relative "
                f"residuals of {results.primal[worst]:.1e} and {results.dual[worst]:.1e}, above tol={self._tol:g}, or a gap of "
                f"{results.gap[worst]:.1e}, above {GAP * self._tol:g}: raise max_iter or tol",
                ConvergenceWarning,
            )
        worst = int(results.value_error.argmax())
        if self.rel_tol == "auto" and not self._compressed_values and results.value_error[worst] > _MARGIN_ERROR * results.margin:
            message = f"values of the model for C={Cs[worst]:g} differ from exact ones by {results.value_error[worst]:.2g}"
            warn(f"{message}, as the matrix is compressed: lower rel_tol, or polish", ConvergenceWarning)
