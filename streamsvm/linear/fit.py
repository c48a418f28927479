"""What the linear machines over block files share."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from streamsvm._locks import locks
from streamsvm._warnings import warn
from streamsvm.checks import check_number
from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.linear.files.block_file import BlockFile, BlockFileError, is_block_file
from streamsvm.linear.files.mixing import mixing_writer, names_of
from streamsvm.linear.memory_plan import Plan, hessian_fits, plan
from streamsvm.linear.online import StreamNames, to_online
from streamsvm.linear.solvers.dual import DualSolver
from streamsvm.linear.solvers.newton import NewtonSolver
from streamsvm.linear.solvers.solution import Options, Solution, forget, recall, remember
from streamsvm.linear.solvers.sweep import Loss
from streamsvm.linear.sources.convert import DENSE, source_of, write_blocks
from streamsvm.sklearn_base import SklearnEstimator, seed_of

__all__ = ["OutOfCoreLinear"]

_OWN = "streamsvm-fit"  # a folder in the work folder, where nothing is of anybody else


class OutOfCoreLinear(SklearnEstimator):
    """What the classifier and the regressor share."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows in memory, which are written to a block file. What is refused leaves the model as it was.

        Parameters
        ----------
        X
            Array or sparse matrix [n, features].
        y
            Two labels, or targets, [n].
        """
        return self._fit_arrays([self], X, y, [self.C])[0]

    def fit_path(self, X: Any, y: Any, Cs: Sequence[float]) -> list[Self]:
        """Models for several values of C, each from where the one before has ended: give them rising.

        Parameters
        ----------
        X, y
            As of `fit`.
        Cs
            Numbers above 0.

        Returns
        -------
        list
            A fitted model with each of ``Cs`` in place of C. This one stays as it was.
        """
        models = self._models(Cs)
        return models[0]._fit_arrays(models, X, y, [model.C for model in models])

    def fit_file(self, path: str | Path, *, target: str | None = None, zero_based: bool = False) -> Self:
        """Learn from a file. What is refused leaves the model as it was.

        Parameters
        ----------
        path
            Of a block file, as `write_blocks` makes it; or of LIBSVM text or a table, as `write_blocks` takes them, which is made
            one first: in ``work_folder``, where the next fit finds it, or else for this fit.
        target, zero_based
            As of `write_blocks`.
        """
        return self._fit_file([self], Path(path), [self.C], target, zero_based)[0]

    def fit_file_path(
        self, path: str | Path, Cs: Sequence[float], *, target: str | None = None, zero_based: bool = False
    ) -> list[Self]:
        """As `fit_path`, of a file as `fit_file` takes it."""
        models = self._models(Cs)
        return models[0]._fit_file(models, Path(path), [model.C for model in models], target, zero_based)

    def to_online(
        self, *, feature_names: Sequence[Hashable] | None = None, **parameters: Any
    ) -> OnlineLinearSVC | OnlineLinearSVR:
        """A learner of river's protocol that decides alike and goes on learning: `streamsvm.linear.online`."""
        return to_online(self, feature_names=feature_names, **parameters)

    def _fit_arrays(self, models: list[Self], X: Any, y: Any, Cs: list[float]) -> list[Self]:
        with self._all_or_nothing():
            self._check(Cs)
            columns = list(X.columns) if hasattr(X, "columns") else None
            X, y = validate_data(
                self,
                X,
                y,
                accept_sparse="csr",
                dtype=[np.float64, np.float32],
                accept_large_sparse=True,
                y_numeric=is_regressor(self),
            )
            labels = self._labels(y)
            self.stream_names_ = StreamNames(columns)
            limits = plan(self.memory_limit)
            filled = X.nnz / max(X.shape[0] * X.shape[1], 1) if sparse.issparse(X) else np.count_nonzero(X) / X.size
            sizes = np.diff(X.indptr) if sparse.issparse(X) else np.full(len(labels), X.shape[1])
            ends = np.cumsum(X.dtype.itemsize * sizes + 8.0)
            with self._folder() as folder:
                (folder / "rows").unlink(missing_ok=True)  # there need not be room for both
                how = {"dense": bool(filled > DENSE), "block_bytes": limits.block, "memory": self.memory_limit}
                with mixing_writer(folder / "rows", **how, durable=False) as writer:
                    begin = 0
                    while begin < len(labels):
                        before = ends[begin - 1] if begin else 0.0
                        end = max(int(np.searchsorted(ends, before + limits.block, "right")), begin + 1)
                        writer.add(X[begin:end], labels[begin:end])
                        begin = end
                with BlockFile(folder / "rows") as file:
                    solutions = self._solved(file, folder, Cs)
        return self._finish(models, Cs, solutions)

    def _fit_file(self, models: list[Self], path: Path, Cs: list[float], target: str | None, zero_based: bool) -> list[Self]:
        with self._all_or_nothing():
            self._check(Cs)
            with self._folder() as folder:
                if is_block_file(path):
                    solutions = self._learned(path, folder, Cs)
                else:
                    solutions = self._learned_text(path, folder, Cs, target, zero_based)
        return self._finish(models, Cs, solutions)

    def _learned(self, rows: Path, folder: Path, Cs: list[float]) -> list[Solution]:
        with BlockFile(rows) as file:
            if file.numbered or not file.shape[0] or not file.shape[1]:
                what = "rows of another file, by their numbers" if file.numbered else f"rows of shape {file.shape}"
                raise BlockFileError(f"{rows} has {what}: there is nothing to learn from them")
            self.n_features_in_ = file.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            self.stream_names_ = StreamNames.of(file.meta, self.n_features_in_)
            if names := self.stream_names_.texts():
                self.feature_names_in_ = np.array(names, object)
            self._label_counts(file)
            return self._solved(file, folder, Cs)

    def _learned_text(self, path: Path, folder: Path, Cs: list[float], target: str | None, zero_based: bool) -> list[Solution]:
        rows, anew = self._written(path, folder, target, zero_based)
        try:
            return self._learned(rows, folder, Cs)
        except BlockFileError:
            if anew:
                raise
        rows.unlink()  # it was damaged since the fit before
        return self._learned(self._written(path, folder, target, zero_based)[0], folder, Cs)

    def _written(self, path: Path, folder: Path, target: str | None, zero_based: bool) -> tuple[Path, bool]:
        # The block file of a text, from the fit before if there is one, or made anew.
        rows = folder / "rows"
        if is_block_file(rows):
            # Not where it is damaged, or its blocks are too large for a limit that is smaller than the one of that time.
            with suppress(ValueError), BlockFile(rows) as file:
                if file.meta.get("source") == source_of(path, target, zero_based):
                    self._plan(file)
                    return rows, False
        limit, verbose = self.memory_limit, bool(self.verbose)
        write_blocks(path, rows, target=target, zero_based=zero_based, memory_limit=limit, verbose=verbose)
        return rows, True

    def _plan(self, file: BlockFile) -> Plan:
        return plan(self.memory_limit, file.shape[1], file.largest_block, len(file))

    def _solved(self, file: BlockFile, folder: Path, Cs: list[float]) -> list[Solution]:
        self.n_samples_fit_ = file.shape[0]
        limits = self._plan(file)
        options = Options(float(self.tol), int(self.max_iter), limits.undecided, bool(self.verbose))
        losses, resumable = [self._loss(C) for C in Cs], self.work_folder is not None
        if resumable:
            forget(folder, file)
        solver: DualSolver | NewtonSolver
        if losses[0].squared and hessian_fits(self.memory_limit, file.shape[1]):
            solver = NewtonSolver(file, folder, options, resumable=resumable)
        else:
            solver = DualSolver(file, folder, options, seed_of(self.random_state), resumable=resumable)
        solutions = []
        with closing(solver):
            for loss in losses:
                solution = recall(folder, file, loss, options) if resumable else None
                if solution is None:
                    solution = solver.solve(loss)
                    if not (np.isfinite(solution.primal) and np.isfinite(solution.w).all()):
                        raise ValueError("objective or coefficients are not finite: scale the features and targets")
                    if resumable:
                        remember(folder, file, loss, options, solution)
                solutions.append(solution)
        return solutions

    def _finish(self, models: list[Self], Cs: list[float], solutions: list[Solution]) -> list[Self]:
        parameters = self.get_params(deep=False)
        fitted = {name: value for name, value in self.__dict__.items() if name not in parameters}
        for model, C, solution in zip(models, Cs, solutions, strict=True):
            if model is not self:
                model.__dict__.update(fitted)
            model.coef_ = self._coefficients(solution.w[:-1])
            model.intercept_ = np.array([solution.w[-1] * self._bias])
            model.objective_, model.duality_gap_ = solution.primal, solution.primal - solution.dual
            model.n_iter_, model.history_ = int(np.ceil(solution.passes)), solution.history
            gap = model.duality_gap_ / solution.primal if solution.primal > 0.0 else 0.0
            if not gap <= self.tol:
                warn(
                    f"{type(self).__name__} ended for C={C:g} with a relative duality gap of {gap:.1e}, above tol={self.tol:g}, "
                    f"after {model.n_iter_:,} passes: scale the features, or raise max_iter or tol",
                    ConvergenceWarning,
                )
        return models

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        if self.work_folder is None:
            with tempfile.TemporaryDirectory(prefix="streamsvm-") as folder:
                yield Path(folder)
        else:
            kept = Path(self.work_folder).expanduser() / _OWN
            kept.mkdir(parents=True, exist_ok=True)
            with (kept / "lock").open("ab") as lock:
                if not locks(lock):
                    raise RuntimeError(f"{kept} is in use by another fit: give each fit that runs a work_folder of its own")
                for left in names_of(kept / "rows")[1:]:  # of a process that was killed
                    left.unlink(missing_ok=True)
                yield kept

    def _check(self, Cs: Sequence[float]) -> None:
        for C in Cs:
            check_number("C", C, 0.0)
        check_number("tol", self.tol, 0.0, inclusive=True)
        check_number("max_iter", self.max_iter, 1, inclusive=True, integer=True)
        check_number("intercept_scaling", self.intercept_scaling, 0.0)
        if isinstance(self.random_state, int | np.integer):
            check_number("random_state", self.random_state, 0, inclusive=True, integer=True)
        plan(self.memory_limit)

    @property
    def _bias(self) -> float:
        return float(self.intercept_scaling) if self.fit_intercept else 0.0

    def _labels(self, y: Any) -> np.ndarray:
        # What is written for each row, float64 [n].
        raise NotImplementedError

    def _label_counts(self, file: BlockFile) -> None:
        # Sets what there is to be known of the labels of a file.
        raise NotImplementedError

    def _loss(self, C: float) -> Loss:
        raise NotImplementedError

    def _coefficients(self, w: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _values(self, X: Any) -> np.ndarray:
        # float64 [n]
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, reset=False)
        return np.asarray(X @ self.coef_.reshape(-1)) + self.intercept_[0]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
