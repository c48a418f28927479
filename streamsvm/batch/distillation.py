"""From an exact kernel machine to a budgeted learner that goes on learning."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted, validate_data

from streamsvm.checks import check_number, check_one_of
from streamsvm.frames import Batch
from streamsvm.kernels import KERNELS, kernel_matrix
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.compiled.decisions import decide_many
from streamsvm.learners.compiled.expansion import expand
from streamsvm.learners.compiled.iterates import CHOSEN

__all__ = ["to_budget"]

_LEARNERS = {"bsca": (BSCAClassifier, BSCARegressor), "bsgd": (BSGDClassifier, BSGDRegressor)}
_ROWS_A_VECTOR = 20  # for least squares: as many for each support vector
_RIDGE = 1e-7  # over the mean of the diagonal
_C_AFTERWARDS = 0.2  # most, for labels: what is there already should not be undone by a few rows that are noise
_BLOCK, _BLOCK_VALUES = 2000, 1_000_000  # rows that are dense, and whose kernel values are held, at a time
_PATIENCE = 3  # passes without gain before the best so far is taken


def to_budget(
    model: Any,
    budget: int,
    X: Any = None,
    *,
    feature_names: list[Hashable] | None = None,
    learner: str = "bsca",
    passes: int = 10,
    seed: int | None = 0,
    **parameters: Any,
) -> BudgetedEstimator:
    """A budgeted learner that decides as a fitted kernel machine does, with at most ``budget`` support vectors, and that then
    goes on learning.

    The support vectors are merged until they are few enough, and their coefficients fitted to the machine's decision values on
    the rows of X by least squares. Then those rows are learned in passes, with the machine's own predictions as labels or
    targets; those near its boundary count least. The state is kept that agrees best with the machine.

    Parameters
    ----------
    model
        A fitted `CSMOClassifier` or `CSMORegressor`.
    budget
        Support vectors of the learner, at least 1.
    X
        Rows on which the learner is to decide alike, [n, features], labels are not needed: those the machine was fitted to, or
        others like them. None: its support vectors, which lie where decisions are hard and say little of the rest.
    feature_names
        Of the machine's columns, where it was fitted to an array. None: those that it was fitted with (``feature_names_in_``), or
        0, 1, ...
    learner
        ``"bsca"`` or ``"bsgd"``. The latter's intercept is regularised where it is fitted, as that of numbers is by default: of
        targets that are far from 0 it would lose the offset as it learns on. With ``fit_intercept=False`` it stays as it is.
    passes
        At most so many; 0: none.
    seed
        Of the order of merges and rows, and of the learner.
    parameters
        Of the learner, see `BSCAClassifier` and so on. By default its C is the machine's, but 0.2 at most for labels (``l2`` is
        1 / (n C)), so that a few noisy rows do not undo what is there, and there is room for just the machine's features and
        classes.

    Returns
    -------
    A `BSCAClassifier`, `BSCARegressor`, `BSGDClassifier` or `BSGDRegressor`.

    Raises
    ------
    ValueError
        A parameter is out of its range, or X does not fit the machine.
    sklearn.exceptions.NotFittedError
        The machine was not fitted.

    Notes
    -----
    O(m B d) for the machine's m support vectors, O(n m d) for its decisions, O(r B^2) for least squares on r = 20 B rows at most,
    and O(n B d) a pass.

    References
    ----------
    Merging: Wang, Z., Crammer, K., Vucetic, S. (2012). Breaking the curse of kernelization. JMLR 13. Fitting to the machine's
    own decisions: Bucila, C., Caruana, R., Niculescu-Mizil, A. (2006). Model compression. KDD.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import CSMOClassifier, to_budget

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> exact = CSMOClassifier(C=10.0).fit(X, y)
    >>> learner = to_budget(exact, 20, X)
    >>> len(exact.support_), learner.n_support, bool((learner.predict_many(X) == exact.predict(X)).mean() > 0.98)
    (93, 20, True)
    >>> learner.learn_many(X, y)
    """
    check_is_fitted(model)
    check_one_of("learner", learner, _LEARNERS)
    check_number("budget", budget, 1, inclusive=True, high=2**31 - 1, integer=True)
    check_number("passes", passes, 0, inclusive=True, high=2**31, integer=True)
    X = model.support_vectors_ if X is None else validate_data(model, X, accept_sparse="csr", dtype=np.float64, reset=False)
    n = X.shape[0]
    if n == 0:
        raise ValueError("there are no rows to decide alike on: give the machine's rows as X")
    if taken := [name for name in ("kernel", "gamma", "degree", "coef0") if name in parameters]:
        raise ValueError(f"{taken[0]} is that of the machine, and cannot be another")
    names = list(getattr(model, "feature_names_in_", range(model.n_features_in_)) if feature_names is None else feature_names)
    if len(set(names)) != model.n_features_in_:
        raise ValueError(f"feature_names must be {model.n_features_in_} different names, not {feature_names!r}")
    kind = _LEARNERS[learner][0 if is_classifier(model) else 1]
    result = _make(kind, model, names, budget, seed, {**_defaults(model, learner, n), **parameters})
    pupil = _Distillation(model, names, budget, X, seed).run(passes)
    return _take(pupil, result, n)


def _defaults(model: Any, learner: str, n: int) -> dict[str, Any]:
    C = min(model.C, _C_AFTERWARDS) if is_classifier(model) else model.C
    return {"C": C} if learner == "bsca" else {"l2": 1.0 / (n * C)}


def _make(kind: Any, model: Any, names: list[Hashable], budget: int, seed: int | None, parameters: dict[str, Any]) -> Any:
    # A learner of the kernel, the labels and the features of a machine.
    kernel = model._kernel
    same = {
        "kernel": next(name for name, code in KERNELS.items() if code == kernel.kind),
        "gamma": kernel.gamma,
        "degree": kernel.degree,
        "coef0": kernel.coef0,
        "max_features": model.n_features_in_,
        "seed": seed,
    }
    same |= {"max_classes": len(model.classes_)} if is_classifier(model) else {"epsilon": model.epsilon}
    made = kind(budget=budget, **{**same, **parameters})
    if made.max_features < len(names):
        raise ValueError(f"max_features must be at least {len(names)}, the features of the machine, not {made.max_features}")
    made._features.restore(names)  # in their order: hashed names find the columns that they had
    made._store.used = len(made._features)
    if is_classifier(model):
        for label in model.classes_.tolist():
            made._labels.target(label)
        if len(model.classes_) > 2:
            made._resize(len(model.classes_))
    return made


def _take(pupil: Any, result: Any, n: int) -> Any:
    # What the pupil's predictions follow becomes both iterates of the result.
    vectors, coefficients = pupil.support_vectors, np.ascontiguousarray(pupil.coefficients.T)
    every = np.arange(vectors.shape[1])
    expand(result._block, result._ready(), vectors, every, np.ones(len(vectors)), coefficients)
    _set_iterates(result, coefficients, pupil.intercept)
    result._common["t"] = n  # descent steps by 1 / t
    return result


def _set_iterates(model: Any, coefficients: np.ndarray, bias: np.ndarray) -> None:
    views = model._store.views
    views.coefficients[: 2 * len(bias), : len(coefficients)] = np.repeat(coefficients.T, 2, axis=0)
    views.biases[: 2 * len(bias)] = np.repeat(bias, 2)
    views.cache[:] = 0


class _Distillation:
    """A machine, the learner that is to be like it, and rows, an array or CSR [n, features], to be like it on."""

    def __init__(self, machine: Any, names: list[Hashable], budget: int, X: Any, seed: int | None) -> None:
        kind: Any = BSCAClassifier if is_classifier(machine) else BSCARegressor
        how = {"C": 1.0, "tol": 0.1} if is_classifier(machine) else {"C": machine.C}
        pupil = _make(kind, machine, names, budget, seed, how)
        self.machine, self.pupil, self.rng = machine, pupil, np.random.default_rng(seed)
        self.X = X
        values = machine._decide(X)
        self.decisions = self._of_outputs(values)
        self.labels = machine._predictions(values)
        self.weights = np.ones(len(values))
        if is_classifier(machine):
            self.weights = np.clip(self._margins(self.decisions), 1e-3, 1.0)

    def _parts(self, n: int) -> Iterator[slice]:
        size = max(min(_BLOCK, _BLOCK_VALUES // self.X.shape[1]), 1)
        return (slice(begin, begin + size) for begin in range(0, n, size))

    def _dense(self, X: Any, which: np.ndarray) -> np.ndarray:
        # Rows of X as the learner has them, float32 [m, features].
        part = X[which]
        return np.ascontiguousarray(part.toarray() if sparse.issparse(part) else part, np.float32)

    def run(self, passes: int) -> Any:
        pupil, machine, store = self.pupil, self.machine, self.pupil._store
        order = self.rng.permutation(len(machine.support_))
        coefficients = np.ascontiguousarray(self._of_outputs(machine.dual_coef_.T)[order])
        columns = np.arange(store.used)
        for part in self._parts(len(order)):
            vectors = self._dense(machine.support_vectors_, order[part])
            expand(pupil._block, pupil._ready(), vectors, columns, np.ones(len(vectors)), coefficients[part])
        bias = self._of_outputs(machine.intercept_[np.newaxis])[0]
        _set_iterates(pupil, (pupil._coefficients_of("last")).T, bias)
        best, kept, since = self._agreement(), store.snapshot(), 0
        self._fit_coefficients(bias)
        for done in range(passes + 1):
            agreement = self._agreement()
            since += 1
            if agreement > best:
                best, kept, since = agreement, store.snapshot(), 0
            if done == passes or since > _PATIENCE or best == 1.0:
                break
            order = self.rng.permutation(len(self.labels))
            for part in self._parts(len(order)):
                pupil._learn_batch(self._batch(order[part]))
        store.restore(kept, own=True)
        return pupil

    def _batch(self, which: np.ndarray) -> Batch:
        X = self._dense(self.X, which)
        return Batch(X, self.pupil.feature_names, self.labels[which].tolist(), self.weights[which], which, len(self.labels))

    def _of_outputs(self, f: np.ndarray) -> np.ndarray:
        # From values of the machine, float64 [n, machines], to those of the learner, float64 [n, outputs].
        if not is_classifier(self.machine):
            return f
        classes = self.machine.classes_.tolist()
        if len(classes) == 2:
            return f * self.pupil._labels.targets[classes[1]]
        values: np.ndarray = self.machine._class_values(f)
        return values

    @staticmethod
    def _margins(f: np.ndarray) -> np.ndarray:
        # How far the best output is above the next, float64 [n].
        if f.shape[1] == 1:
            return np.abs(f[:, 0])
        ordered = np.sort(f, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    def _fit_coefficients(self, bias: np.ndarray) -> None:
        # Least squares, in which rows near the boundary count most.
        pupil, n = self.pupil, self.pupil.n_support
        if n == 0:
            return
        chosen = self.rng.permutation(len(self.decisions))[: _ROWS_A_VECTOR * n]
        f = self.decisions[chosen]
        weights = np.ones(len(f))
        if is_classifier(self.machine):
            weights /= 1.0 + np.square(self._margins(f))
        h = pupil._store.views.header[0]
        S = pupil.support_vectors.astype(np.float64)
        G, target = np.zeros((n, n)), np.zeros((n, f.shape[1]))
        for part in self._parts(len(chosen)):
            X = self._dense(self.X, chosen[part]).astype(np.float64)
            K = kernel_matrix(h["kernel"], h["gamma"], h["coef0"], h["degree"], X, S)
            weighted = K.T * weights[part]
            G += weighted @ K
            target += weighted @ (f[part] - bias)
        G[np.diag_indices(n)] += max(_RIDGE * np.trace(G) / n, np.finfo(np.float64).tiny)
        _set_iterates(pupil, np.linalg.solve(G, target), bias)

    def _agreement(self) -> float:
        # The share of rows with the same label, or minus the mean distance of the numbers.
        pupil, n, total = self.pupil, len(self.labels), 0.0
        for part in self._parts(n):
            X = self._dense(self.X, np.arange(n)[part])
            found = np.empty((len(X), 1 if pupil._outputs == 1 else pupil._outputs + 1))
            decide_many(pupil._block, X, np.arange(X.shape[1]), CHOSEN, found)
            if is_classifier(self.machine):
                total += float((pupil._labels.array(found[:, 0]) == self.labels[part]).sum())
            else:
                total -= float(np.abs(found[:, 0] - self.labels[part]).sum())
        return total / n
