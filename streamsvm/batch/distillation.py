"""Distillation: from an exact kernel machine to a budgeted learner that decides alike and goes on learning."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted, validate_data

from streamsvm._options import LearnerName
from streamsvm.checks import check_number, check_one_of
from streamsvm.kernels import KERNELS, kernel_matrix
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.budgeted import BudgetedEstimator

__all__ = ["to_budget"]

_LEARNERS = {"bsca": (BSCAClassifier, BSCARegressor), "bsgd": (BSGDClassifier, BSGDRegressor)}
_ROWS_A_VECTOR = 20  # rows of least squares for each support vector
_RIDGE = 1e-7  # relative to the mean of the diagonal
_LARGEST_C = 0.2  # of a classifier that goes on learning: a few noisy rows must not undo what is there
_CHUNK, _CHUNK_VALUES = 2000, 1_000_000  # rows, and their values, that are dense at a time
_PATIENCE = 3  # passes without gain before the best state is taken


def to_budget(
    model: Any,
    budget: int,
    X: Any = None,
    *,
    feature_names: list[Hashable] | None = None,
    learner: LearnerName = "bsca",
    passes: int = 10,
    seed: int | None = 0,
    **parameters: Any,
) -> BudgetedEstimator:
    """Return a learner of at most ``budget`` support vectors that decides as a fitted kernel machine, and goes on learning.

    The machine's support vectors are merged until they are few enough, and their coefficients fitted by least squares to the
    machine's decision values on the rows of X. Then those rows are learned in passes, with the machine's predictions as labels or
    targets; rows near its boundary count least. Of all states the one that agrees best with the machine is taken.

    Parameters
    ----------
    model
        A fitted `CSMOClassifier`, `CSMORegressor`, `HSSADMMClassifier` or `HSSADMMRegressor`.
    budget
        Support vectors of the learner, at least 1.
    X
        Rows on which the learner is to decide alike, [n, features], without labels: those the machine was fitted to, or others
        like them. None: the machine's support vectors, which lie where decisions are hard and say little of the rest.
    feature_names
        Of the machine's columns, if it was fitted to an array. None: ``feature_names_in_`` of the machine, or 0, 1, ...
    learner
        ``"bsca"`` or ``"bsgd"``. The intercept of the latter is regularised where it is fitted, as a regressor's is by default:
        with targets far from 0 it would lose the offset as it goes on learning. With ``fit_intercept=False`` it stays as it is.
    passes
        Passes over X, at most.
    seed
        Of the order of merges and rows, and of the learner.
    parameters
        Of the learner, see `BSCAClassifier` and so on. By default its C is the machine's, but at most 0.2 for a classifier
        (``l2`` is 1 / (n C)), so that a few noisy rows do not undo what is there, and ``max_features`` and ``max_classes`` are
        just what the machine needs.

    Returns
    -------
    A `BSCAClassifier`, `BSCARegressor`, `BSGDClassifier` or `BSGDRegressor`.

    Raises
    ------
    ValueError
        A parameter is out of its range, or X does not fit the machine.
    sklearn.exceptions.NotFittedError
        The machine is not fitted.

    Notes
    -----
    O(m B d) for the machine's m support vectors, O(n m d) for its decisions, O(r B^2) for least squares on r = 20 B rows at most,
    and O(n B d) a pass.

    References
    ----------
    Merging: Wang, Z., Crammer, K., Vucetic, S. (2012). Breaking the curse of kernelization. JMLR 13. Learning from the machine's
    decisions: Bucila, C., Caruana, R., Niculescu-Mizil, A. (2006). Model compression. KDD.

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
    if fixed := [name for name in ("kernel", "gamma", "degree", "coef0") if name in parameters]:
        raise ValueError(f"{fixed[0]} is that of the machine, and cannot be another")
    names = list(getattr(model, "feature_names_in_", range(model.n_features_in_)) if feature_names is None else feature_names)
    if len(set(names)) != model.n_features_in_:
        raise ValueError(f"feature_names must be {model.n_features_in_} different names, not {feature_names!r}")
    labels = model.classes_.tolist() if is_classifier(model) else None
    C = model.C if labels is None else min(model.C, _LARGEST_C)
    parameters = {**({"C": C} if learner == "bsca" else {"l2": 1.0 / (n * C)}), **parameters}
    result = _new_learner(learner, model, budget, seed, parameters)
    for name, needed in {"max_features": len(names), "max_classes": len(labels or ())}.items():
        if getattr(result, name, needed) < needed:
            raise ValueError(f"{name} must be at least {needed}, as many as the machine has, not {getattr(result, name)}")
    pupil = _Distillation(model, budget, X, seed).run(passes)
    result.start_from(pupil.support_vectors, pupil.coefficients, pupil.intercept, feature_names=names, labels=labels, n_learned=n)
    return result


def _new_learner(learner: LearnerName, model: Any, budget: int, seed: int | None, parameters: dict[str, Any]) -> Any:
    """Return a learner with a machine's kernel and loss, and room for its features and classes."""
    kernel, classification = model._kernel, is_classifier(model)
    same = {
        "kernel": next(name for name, code in KERNELS.items() if code == kernel.kind),
        "gamma": kernel.gamma,
        "degree": kernel.degree,
        "coef0": kernel.coef0,
        "max_features": model.n_features_in_,
        "seed": seed,
    }
    same |= {"max_classes": len(model.classes_)} if classification else {"epsilon": model.epsilon}
    kind: Any = _LEARNERS[learner][0 if classification else 1]
    return kind(budget=budget, **{**same, **parameters})


class _Distillation:
    """The distillation of a machine, on rows of an array or CSR matrix X [n, features].

    Features and labels of the pupil are 0, 1, ..., so that its decision values have the sign of the machine's.
    """

    def __init__(self, machine: Any, budget: int, X: Any, seed: int | None) -> None:
        self.machine, self.X, self.rng = machine, X, np.random.default_rng(seed)
        self.classification = is_classifier(machine)
        self.pupil = _new_learner(
            "bsca", machine, budget, seed, {"C": 1.0, "tol": 0.1} if self.classification else {"C": machine.C}
        )
        values = machine._decide(X)
        self.decisions = self._of_outputs(values)
        self.targets, self.weights = machine._predictions(values), np.ones(len(values))
        if self.classification:
            self.targets = np.searchsorted(machine.classes_, self.targets)
            self.weights = np.clip(self._margins(self.decisions), 1e-3, 1.0)

    def run(self, passes: int) -> Any:
        """Return the pupil in the state that agrees best with the machine."""
        pupil, machine = self.pupil, self.machine
        order = self.rng.permutation(len(machine.support_))
        coefficients = self._of_outputs(machine.dual_coef_.T)[order].T
        intercept = self._of_outputs(machine.intercept_[np.newaxis])[0]
        labels = range(len(machine.classes_)) if self.classification else None
        pupil.start_from(machine.support_vectors_[order].astype(np.float32), coefficients, intercept, labels=labels)
        best, agreement, since = pupil.clone(include_attributes=True), self._agreement(), 0
        self._fit_coefficients(intercept)
        for done in range(passes + 1):
            new = self._agreement()
            since += 1
            if new > agreement:
                best, agreement, since = pupil.clone(include_attributes=True), new, 0
            if done == passes or since > _PATIENCE or agreement == 1.0:
                break
            order = self.rng.permutation(len(self.targets))
            for chunk in self._chunks(len(order)):
                which = order[chunk]
                pupil.learn_many(self._dense(which), self.targets[which], self.weights[which])
        return best

    def _chunks(self, n: int) -> Iterator[slice]:
        size = max(min(_CHUNK, _CHUNK_VALUES // self.X.shape[1]), 1)
        return (slice(begin, begin + size) for begin in range(0, n, size))

    def _dense(self, which: Any) -> np.ndarray:
        """Return rows of X as the learner has them, float32 [m, features]."""
        rows = self.X[which]
        return np.ascontiguousarray(rows.toarray() if sparse.issparse(rows) else rows, np.float32)

    def _of_outputs(self, f: np.ndarray) -> np.ndarray:
        """Return the values of the pupil's outputs, float64 [n, outputs], from those of the machines, float64 [n, machines]."""
        several = self.classification and len(self.machine.classes_) > 2
        return self.machine._class_values(f) if several else f

    @staticmethod
    def _margins(f: np.ndarray) -> np.ndarray:
        """Return how far the best output is above the next one, float64 [n]."""
        if f.shape[1] == 1:
            return np.abs(f[:, 0])
        ordered = np.sort(f, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    def _fit_coefficients(self, intercept: np.ndarray) -> None:
        """Fit the pupil's coefficients by least squares, in which rows near the boundary count most."""
        n = self.pupil.n_support
        if n == 0:
            return
        chosen = self.rng.permutation(len(self.decisions))[: _ROWS_A_VECTOR * n]
        f = self.decisions[chosen]
        weights = np.ones(len(f))
        if self.classification:
            weights /= 1.0 + np.square(self._margins(f))
        kind, gamma, coef0, degree = self.machine._kernel
        S = self.pupil.support_vectors.astype(np.float64)
        G, target = np.zeros((n, n)), np.zeros((n, f.shape[1]))
        for chunk in self._chunks(len(chosen)):
            K = kernel_matrix(kind, gamma, coef0, degree, self._dense(chosen[chunk]).astype(np.float64), S)
            weighted = K.T * weights[chunk]
            G += weighted @ K
            target += weighted @ (f[chunk] - intercept)
        G[np.diag_indices(n)] += max(_RIDGE * np.trace(G) / n, np.finfo(np.float64).tiny)
        self.pupil.set_coefficients(np.linalg.solve(G, target).T, intercept)

    def _agreement(self) -> float:
        """Return the relative number of rows with the machine's label, or minus the mean distance of the values."""
        n, total = len(self.targets), 0.0
        for chunk in self._chunks(n):
            found = self.pupil.predict_many(self._dense(chunk))
            if self.classification:
                total += float((found == self.targets[chunk]).sum())
            else:
                total -= float(np.abs(found - self.targets[chunk]).sum())
        return total / n
