"""The base class of out-of-core linear estimators, and their conversion to online learners."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from streamsvm.core.checks import check_number, check_parameters, parameter, to_python_scalar
from streamsvm.core.sklearn_base import PathEstimator, draw_seed, validate_rows
from streamsvm.core.warning import warn
from streamsvm.files.locks import try_lock
from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.linear.block_file import BlockFile, BlockFileError, is_block_file, read_feature_names, read_index_base
from streamsvm.linear.block_writer import DEFAULT_MEMORY_BYTES, hessian_fits_in, open_shuffling_writer, plan_memory
from streamsvm.linear.convert import MIN_DENSE_SHARE, SourceOptions, fingerprint_source, write_blocks
from streamsvm.linear.dual import DualSolver
from streamsvm.linear.newton import NewtonSolver
from streamsvm.linear.solution import (
    LinearLoss,
    LinearOptions,
    LinearSolution,
    load_solution,
    remove_stale_solutions,
    save_solution,
)
from streamsvm.stream.rows import parse_label

_FOLDER_NAME = "streamsvm-fit"  # in the work folder; files outside it are never touched


@dataclass(eq=False, repr=False)
class OutOfCoreLinear(PathEstimator):
    """Base class of linear machines that are fitted to a block file within a memory limit; arrays are written to a block file
    first.

    Attributes
    ----------
    coef_ : float64 [features] or [1, features]
        The weights of the features; two-dimensional for a classifier.
    intercept_ : float64 [1]
        The intercept.
    objective_ : float
        The objective, 1/2 |w|^2 + C sum of losses, measured over all rows.
    duality_gap_ : float
        Upper bound of the objective minus the optimum.
    n_iter_ : int
        Number of passes, each with as many steps as there are rows.
    n_samples_fit_ : int
        Number of rows, without those of weight 0.
    index_base_ : int or None
        The integer that names the first column: 1 for LIBSVM text whose indices start at 1, 0 for arrays; None if columns have
        names.
    labels_are_csv_ : bool
        Whether the labels were cells of CSV text; a stream reads those as numbers or booleans if they look like these.
    history_ : list of Pass
        The passes of the fit.

    Raises
    ------
    ValueError
        A parameter is out of its range, there are not two labels, or ``memory_limit`` is too small; the message names a
        sufficient one. For files, also a BlockFileError: the file is corrupt, truncated, or was changed while it was read.
    OSError
        A file cannot be read, or the disk is full.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` passes.
    """

    C: float = parameter(default=1.0, above=0.0)
    """Factor of the losses in the objective, above 0; it is multiplied by the weight of the row, and in classification by the
    weight of its class. A larger C fits the rows more closely. `fit_path` warm-starts each fit from the previous one: pass the
    values in ascending order.
    """
    _: KW_ONLY
    loss: str
    fit_intercept: bool = True
    """Whether to fit an intercept. It is penalised like the coefficient of a feature with the value ``intercept_scaling`` in all
    rows.
    """
    intercept_scaling: float = parameter(default=1.0, above=0.0)
    """Value of that feature, above 0. The larger it is, the less the intercept is penalised, and the more passes a fit takes."""
    tol: float = parameter(default=1e-3, least=0.0)
    """Duality gap, relative to the objective, that ends a fit; at least 0."""
    max_iter: int = parameter(default=1000, least=1, integer=True)
    """Maximum number of passes, each with as many steps as there are rows. A pass with the final C, a pass over its working set,
    and a pass that measures the gap may follow.
    """
    memory_limit: float = DEFAULT_MEMORY_BYTES
    """Maximum memory in bytes for rows, coefficients and everything else that a fit needs, in addition to the interpreter's;
    256 MiB by default. `fit` also needs the arrays that you pass, copies of them if they are not arrays or CSR matrices of
    floats, and about 50 bytes per row for labels or targets. A larger limit makes larger blocks.
    """
    work_folder: str | Path | None = None
    """Folder for the state of fits. A fit writes its block files, coefficients and working set to ``streamsvm-fit`` in this
    folder, and only one fit at a time may use it. None uses a temporary folder for each fit. With a work folder:

    - A fit that was killed resumes from its saved state, which is at most a pass and a second old, when you call it again. The
      rows and class weights must be the same, ``random_state`` must be a number, and except for block files ``memory_limit`` must
      be the same, too.
    - A fit with another C is warm-started from the previous coefficients.
    - Text is parsed only once.
    """
    random_state: int | None = 0
    """Seed of the order of rows, for repeatable fits. None uses a different seed each time."""
    verbose: bool = False
    """Whether to show progress on standard error."""

    def fit_file(
        self, path: str | Path, *, target: str | None = None, weight: str | Path | None = None, zero_based: bool = False
    ) -> Self:
        """Fit the model to the rows of a file, which may be larger than memory, and return it. If the fit fails, the model is
        unchanged.

        Parameters
        ----------
        path
            A block file written by `write_blocks`, or a table or LIBSVM text as `write_blocks` accepts it. A table or text is
            converted to a block file first: in ``work_folder``, where the next fit with this ``memory_limit`` finds it, otherwise
            for this fit only.
        target, weight, zero_based
            Options for reading a table or text, as in `write_blocks`. A block file contains its labels and weights.

        Returns
        -------
        The fitted estimator.

        Raises
        ------
        ValueError, OSError
            As described in the class.
        """
        return self._fit_file([self], Path(path), SourceOptions(target, weight, zero_based))[0]

    def fit_file_path(
        self,
        path: str | Path,
        Cs: Sequence[float],
        *,
        target: str | None = None,
        weight: str | Path | None = None,
        zero_based: bool = False,
    ) -> list[Self]:
        """Fit one model for each value of C in ``Cs`` to the rows of a file, and return the fitted models in this order. Each fit
        starts from the previous solution.

        ``Cs`` is as in `fit_path`, and the other parameters are as in `fit_file`.
        """
        models = self._make_models(Cs)
        return models[0]._fit_file(models, Path(path), SourceOptions(target, weight, zero_based))

    def to_online(
        self, *, feature_names: Sequence[Hashable] | None = None, **parameters: Any
    ) -> OnlineLinearSVC | OnlineLinearSVR:
        """Return a river learner with the weights and intercept of this fitted model, which makes the same decisions and
        continues learning on a stream.

        See `streamsvm.linear.to_online`.
        """
        return to_online(self, feature_names=feature_names, **parameters)

    def _fit_models(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        with self._rollback_on_error():
            self._check_models(models)
            columns = list(X.columns) if hasattr(X, "columns") else None
            checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "accept_large_sparse": True}
            X, y = validate_rows(self, X, y, y_numeric=is_regressor(self), **checks)
            weights = None
            if sample_weight is not None:
                weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
                if not weights.any():
                    raise ValueError("sample_weight is 0 for all rows: give at least one row a weight above 0")
            labels = self._encode_labels(y, weights)
            are_indices = columns is None or columns == list(range(len(columns)))
            self.index_base_: int | None = 0 if are_indices else None
            self.labels_are_csv_: bool = False
            with self._working_folder() as folder:
                self._write_arrays(folder / "rows", X, labels, weights)
                with BlockFile(folder / "rows") as file:
                    solutions = self._solve_models(file, folder, models)
        return self._finish_models(models, solutions)

    def _write_arrays(self, path: Path, X: Any, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Write rows X, an array or CSR matrix, with their labels and weights (None means weight 1) to a new block file, chunk by
        chunk, for the solver, which reads its rows from block files.
        """
        block_bytes = plan_memory(self.memory_limit).block_bytes
        density = X.nnz / max(X.shape[0] * X.shape[1], 1) if sparse.issparse(X) else np.count_nonzero(X) / X.size
        n_values = np.diff(X.indptr) if sparse.issparse(X) else np.full(len(labels), X.shape[1])
        cumulative_bytes, start = np.cumsum(X.dtype.itemsize * n_values + 8.0), 0
        path.unlink(missing_ok=True)  # there may not be enough space for both
        layout: dict[str, Any] = {"dense": bool(density > MIN_DENSE_SHARE), "weighted": weights is not None}
        with open_shuffling_writer(path, **layout, block_bytes=block_bytes, memory=self.memory_limit, durable=False) as writer:
            while start < len(labels):
                previous_bytes = cumulative_bytes[start - 1] if start else 0.0
                stop = max(int(np.searchsorted(cumulative_bytes, previous_bytes + block_bytes, "right")), start + 1)
                chunk_weights = None if weights is None else weights[start:stop]
                writer.add(X[start:stop], labels[start:stop], weights=chunk_weights)
                start = stop

    def _fit_file(self, models: list[Self], path: Path, options: SourceOptions) -> list[Self]:
        with self._rollback_on_error():
            self._check_models(models)
            with self._working_folder() as folder:
                rows = path
                if not is_block_file(path):
                    rows = folder / "rows"
                    self._convert(path, rows, options)
                elif options.weight is not None:
                    raise ValueError("a block file contains the weights of its rows: leave out weight=")
                solutions = self._fit_blocks(rows, folder, models)
        return self._finish_models(models, solutions)

    def _convert(self, path: Path, rows: Path, options: SourceOptions) -> None:
        """Convert a table file or LIBSVM text file to the block file ``rows``, unless an earlier fit left the one of the same
        source and options.
        """
        with suppress(OSError, ValueError), BlockFile(rows) as file:
            if file.meta.get("source") == fingerprint_source(path, options, self.memory_limit):
                return
        write_blocks(path, rows, **options._asdict(), memory_limit=self.memory_limit, verbose=bool(self.verbose))

    def _fit_blocks(self, rows: Path, folder: Path, models: list[Self]) -> list[LinearSolution]:
        with BlockFile(rows) as file:
            if file.has_row_numbers:
                raise BlockFileError(f"{rows} has copies of some rows of another file: fit to that file")
            if not all(file.shape):
                raise BlockFileError(f"{rows} has no rows or no features: its shape is {file.shape}")
            self.n_features_in_: int = file.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            self.index_base_, self.labels_are_csv_ = read_index_base(file.meta), file.meta.get("labels_are_csv") is True
            if (names := read_feature_names(file.meta, self.n_features_in_)) is not None:
                self.feature_names_in_: np.ndarray = np.array(names, object)
            self._load_labels(file)
            return self._solve_models(file, folder, models)

    def _solve_models(self, file: BlockFile, folder: Path, models: list[Self]) -> list[LinearSolution]:
        self.n_samples_fit_: int = file.shape[0]
        block_bytes = plan_memory(self.memory_limit, file.shape[1], file.largest_block, len(file)).working_set_block_bytes
        options = LinearOptions(float(self.tol), int(self.max_iter), block_bytes, bool(self.verbose))
        losses, resumable = [self._make_loss(model.C, file) for model in models], self.work_folder is not None
        if resumable:
            remove_stale_solutions(folder, file)
        solver: DualSolver | NewtonSolver
        if losses[0].squared and hessian_fits_in(self.memory_limit, file.shape[1]):
            solver = NewtonSolver(file, folder, options, resumable=resumable)
        else:
            solver = DualSolver(file, folder, options, draw_seed(self.random_state), resumable=resumable)
        solutions = []
        with closing(solver):
            for loss in losses:
                solution = load_solution(folder, file, loss, options) if resumable else None
                if solution is None:
                    solution = solver.solve(loss)
                    if not (np.isfinite(solution.primal) and np.isfinite(solution.w).all()):
                        raise ValueError("objective or coefficients are not finite: scale the features and targets")
                    if resumable:
                        save_solution(folder, file, loss, options, solution)
                solutions.append(solution)
        return solutions

    def _finish_models(self, models: list[Self], solutions: list[LinearSolution]) -> list[Self]:
        self._copy_fit_to(models)
        for model, solution in zip(models, solutions, strict=True):
            w = solution.w[:-1]
            model.coef_ = w.copy() if is_regressor(self) else w[np.newaxis].copy()
            model.intercept_ = np.array([solution.w[-1] * self._constant])
            model.objective_, model.duality_gap_ = solution.primal, solution.primal - solution.dual
            model.n_iter_, model.history_ = int(np.ceil(solution.passes)), solution.history
            gap = model.duality_gap_ / solution.primal if solution.primal > 0.0 else 0.0
            if not gap <= self.tol:
                warn(
                    f"{type(self).__name__} ended for C={model.C:g} with a relative duality gap of {gap:.1e}, above "
                    f"tol={self.tol:g}, after {model.n_iter_:,} passes: scale the features, or raise max_iter or tol",
                    ConvergenceWarning,
                )
        return models

    @contextmanager
    def _working_folder(self) -> Iterator[Path]:
        if self.work_folder is None:
            with tempfile.TemporaryDirectory(prefix="streamsvm-") as name:
                yield Path(name)
            return
        folder = Path(self.work_folder).expanduser() / _FOLDER_NAME
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("ab") as lock:
            if not try_lock(lock):
                raise RuntimeError(f"{folder} is in use by another fit: give each concurrent fit its own work_folder")
            for leftover in folder.glob("rows.*"):  # of a killed process
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        n = state.get("n_features_in_", 0)
        arrays = [(name, shape) for name, shape in (("coef_", (n,) if is_regressor(self) else (1, n)), ("intercept_", (1,))) if n]
        values = [(np.asarray(state.get(name)), shape) for name, shape in arrays]
        are_valid = all(a.dtype == np.float64 and a.shape == shape and np.isfinite(a).all() for a, shape in values)
        if not are_valid or (n and is_classifier(self) and np.asarray(state.get("classes_")).shape != (2,)):
            raise ValueError("the saved model is corrupt: its coefficients, or its labels, have another shape")

    def _check_models(self, models: Sequence[Self]) -> None:
        for model in models:
            check_parameters(model)
        if isinstance(self.random_state, int | np.integer):
            check_number("random_state", self.random_state, 0, inclusive=True, integer=True)
        plan_memory(self.memory_limit)

    @property
    def _constant(self) -> float:
        # The value of the constant feature; its weight times this is the intercept.
        return float(self.intercept_scaling) if self.fit_intercept else 0.0

    def _encode_labels(self, y: Any, weights: np.ndarray | None) -> np.ndarray:
        """Convert the labels or targets y of all rows to numbers, float64 [n], as the block file stores them, and set the fitted
        attributes about labels. Rows of weight 0 do not count.
        """
        raise NotImplementedError

    def _load_labels(self, file: BlockFile) -> None:
        """Check the labels or targets that a block file contains, and set the fitted attributes about labels, such as
        ``classes_``. Raise a ValueError if they are invalid.
        """
        raise NotImplementedError

    def _make_loss(self, C: float, file: BlockFile) -> LinearLoss:
        """Return the loss function for the parameter ``C`` and the rows of a block file. Raise a ValueError if C times a row's
        weight is too small or too large.
        """
        raise NotImplementedError

    def _compute_decisions(self, X: Any) -> np.ndarray:
        return np.asarray(X @ self.coef_.reshape(-1)) + self.intercept_[0]

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        return f

    # Saved models -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        if isinstance(state.get("work_folder"), Path):
            state["work_folder"] = str(state["work_folder"])
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")


_MAX_DEFAULT_C = 0.1  # of an online learner: a few rows should not undo a fit to all rows


def to_online(
    model: Any, *, feature_names: Sequence[Hashable] | None = None, **parameters: Any
) -> OnlineLinearSVC | OnlineLinearSVR:
    """Return a river learner with the weights and intercept of a fitted linear model, which makes the same decisions and
    continues learning on a stream.

    Parameters
    ----------
    model
        A fitted `OutOfCoreLinearSVC` or `OutOfCoreLinearSVR`, or another linear model of two classes or of one target with
        scikit-learn's conventions, such as LinearSVC.
    feature_names
        The stream's names of the machine's columns. None uses ``feature_names_in_``, if the machine was fitted to a file or
        frame with column names; otherwise the indices of LIBSVM text, or 0, 1, ... for arrays.
    parameters
        Parameters of `OnlineLinearSVC` or `OnlineLinearSVR`. By default, C is the machine's but at most 0.1, so that a few rows
        do not undo the fit, and ``max_features`` is the machine's number of features: raise it if the stream has more. With
        ``fit_intercept=False``, the machine's intercept stays constant.

    Returns
    -------
    OnlineLinearSVC or OnlineLinearSVR
        A learner with the same decision values, up to rounding. Its ``n_learned`` is the machine's number of training rows, or
        ``averaging`` if that is unknown.

    Raises
    ------
    ValueError
        A parameter is out of its range, the names do not match the columns, or the model has more than one output.
    sklearn.exceptions.NotFittedError
        The model is not fitted.

    Notes
    -----
    O(features). If the machine was fitted with ``class_weight``, pass those weights to ``learn_one`` as ``w``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.linear import OutOfCoreLinearSVC, to_online

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> fitted = OutOfCoreLinearSVC(C=0.1).fit(X[:400], y[:400])
    >>> learner = to_online(fitted)  # or fitted.to_online()
    >>> bool((learner.predict_many(X) == fitted.predict(X)).all())
    True
    >>> learner.learn_many(X[400:], y[400:])
    >>> learner.n_learned
    569
    """
    check_is_fitted(model)
    w, intercept = _get_coefficients(model)
    names = _find_feature_names(model, feature_names)
    learner = _new_learner(model, parameters)
    if learner.max_features < len(w):
        raise ValueError(f"max_features must be at least the machine's number of features, {len(w)}, not {learner.max_features}")
    labels = None
    if is_classifier(model):
        are_csv = getattr(model, "labels_are_csv_", False)
        labels = [parse_label(y) if are_csv and isinstance(y, str) else y for y in model.classes_.tolist()]
    n_learned = int(getattr(model, "n_samples_fit_", learner.averaging))
    learner.start_from(w, intercept, feature_names=names, labels=labels, n_learned=n_learned)
    return learner


def _get_coefficients(model: Any) -> tuple[np.ndarray, float]:
    if not hasattr(model, "coef_") or not (is_classifier(model) or is_regressor(model)):
        raise ValueError(f"model must be a fitted linear machine, not {model!r}")
    w = np.asarray(model.coef_.toarray() if sparse.issparse(model.coef_) else model.coef_, np.float64)
    intercepts = np.ravel(model.intercept_)
    if len(intercepts) != 1 or w.shape not in ((len(w),), (1, w.size)) or w.size != model.n_features_in_:
        raise ValueError(f"model must have one output, not coefficients of shape {w.shape}: make one learner for each class")
    return w.reshape(-1), float(intercepts[0])


def _find_feature_names(model: Any, feature_names: Sequence[Hashable] | None) -> list[Hashable]:
    n, names = model.n_features_in_, feature_names
    if names is None:
        names = getattr(model, "feature_names_in_", None)
    if names is None:
        base = getattr(model, "index_base_", 0)
        if base is None:
            raise ValueError("the model has no names for its columns: pass feature_names")
        names = range(base, base + n)
    names = list(map(to_python_scalar, names)) if isinstance(names, Iterable) else []
    if len(names) != n or not all(isinstance(name, Hashable) for name in names) or len(set(names)) != n:
        raise ValueError(f"feature_names must be {n} distinct names, not {feature_names!r}")
    return names


def _new_learner(model: Any, parameters: dict[str, Any]) -> Any:
    C = getattr(model, "C", 0.0)
    defaults: dict[str, Any] = {
        "C": min(C, _MAX_DEFAULT_C) if C > 0.0 else _MAX_DEFAULT_C,
        "fit_intercept": getattr(model, "fit_intercept", True),
        "max_features": model.n_features_in_,
    }
    if is_classifier(model):
        return OnlineLinearSVC(**{**defaults, **parameters})
    defaults["epsilon"] = model.epsilon if hasattr(model, "epsilon") and C > 0.0 else 0.0  # other models have another epsilon
    return OnlineLinearSVR(**{**defaults, **parameters})
