"""Distillation: from an exact kernel machine to a budgeted learner that decides alike and goes on learning."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_outlier_detector
from sklearn.utils.validation import check_is_fitted, validate_data

from streamsvm.batch.reduced_set import ReducedSet, choose_vectors, rows_between
from streamsvm.core.checks import LearnerName, check_number, check_one_of
from streamsvm.core.kernels import KERNELS, LARGEST_FEATURE
from streamsvm.files.messages import shown
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.labels import MAX_CLASSES

_LEARNERS = {"bsca": (BSCAClassifier, BSCARegressor), "bsgd": (BSGDClassifier, BSGDRegressor)}
_ROWS_A_VECTOR, _LEAST_ROWS_A_VECTOR = 20, 4  # rows of least squares for each support vector; the latter of large budgets
_LEAST_ROWS, _MOST_ROWS = 1000, 20_000  # of least squares; more than the latter of large budgets only
_CHEAP_ROWS = 5000  # of those there are, for small budgets
_DENSE_VALUES = 8_000_000  # of sparse rows that are made dense, so that there are rows between them
_LARGEST_C = 0.2  # of a classifier that keeps learning: a few noisy rows must not undo what is there
_CHUNK = 2000  # rows that are float64 at a time


def to_budget(
    model: Any,
    budget: int,
    X: Any = None,
    *,
    feature_names: Sequence[Hashable] | None = None,
    learner: LearnerName = "bsca",
    passes: int = 40,
    seed: int | None = 0,
    **parameters: Any,
) -> BudgetedEstimator:
    """Turn a fitted kernel machine into a learner within a budget that decides alike and keeps learning.

    It chooses support vectors of the machine that are far from each other, those of large coefficients first. It then moves
    them, and fits their coefficients by least squares, so that their expansion comes close to the machine's decision values on
    rows. Rows near the machine's boundary count most. A machine that fits into the budget is taken over as it is. If the
    machine has three or more classes and its pairs of classes vote, vectors and coefficients follow the votes, which no
    expansion matches exactly.

    Parameters
    ----------
    model
        A fitted `CSMOClassifier`, `HSSADMMClassifier` or `HierarchicalSVC`, or the regressor of one of them.
    budget
        Maximum number of support vectors of the learner, at least 1.
    X
        Rows on which the learner has to decide like the machine, [n, features], without labels. Pass the rows that the machine
        was fitted to, or others like them. If there are few, rows between them are added. None uses the machine's support
        vectors, and as many rows between them.
    feature_names
        Names of the machine's columns, if it was fitted to an array. None uses the machine's ``feature_names_in_``, or 0, 1,
        ...
    learner
        Kind of learner: ``"bsca"`` or ``"bsgd"``. The intercept of ``"bsgd"`` is regularised if it is fitted, as a regressor's
        is by default; if targets are far from 0, the learner would lose the offset as it continues learning. With
        ``fit_intercept=False``, the intercept stays as it is.
    passes
        Maximum number of passes over the rows in which vectors are moved. 0 only fits coefficients, which takes a twentieth of
        the time. More passes than the default pay off for machines with rugged decision values (large C and gamma).
    seed
        Seed of the choice of vectors and rows, and of the learner.
    parameters
        Further parameters of the learner (see `BSCAClassifier` and the others). By default, its C is the machine's, but at most
        0.2 for a classifier (``l2`` is 1 / (n C)), so that a few noisy rows do not undo what is there. ``max_features`` is just
        large enough for the machine, and ``max_classes`` at least.

    Returns
    -------
    A `BSCAClassifier`, `BSCARegressor`, `BSGDClassifier` or `BSGDRegressor`.

    Raises
    ------
    ValueError
        A parameter is out of its range, X does not fit the machine, or no learner has the machine's kernel.
    sklearn.exceptions.NotFittedError
        The machine is not fitted.

    Notes
    -----
    With m support vectors of the machine and a budget of B, it costs O(m B d) to choose vectors, O(r m d) for the machine's
    decision values on r rows, and O(r B (B + d)) for each pass: 5 seconds for B = 500 and 10 features, .2 for B = 50. r is 20
    B, and at least 5,000 if there are that many; from B = 1,000 on it is 20,000, and from B = 5,000 on 4 B. Memory: r d numbers
    for the rows, O(B^2 + 20 B d) for the fit, and 64 MB of kernel values. Vectors are moved if the kernel is Gaussian and B d
    is at most 1,000,000. Sparse rows stay sparse if they would take more than 64 MB as an array, and no rows are added between
    them.

    References
    ----------
    Schoelkopf, B., Mika, S., Burges, C. J. C., Knirsch, P., Mueller, K.-R., Raetsch, G., Smola, A. (1999). Input space versus
    feature space in kernel-based methods. IEEE Trans. Neural Networks 10 (reduced sets).

    Golub, G., Pereyra, V. (1973). The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
    separate. SIAM J. Numer. Anal. 10.

    Bucila, C., Caruana, R., Niculescu-Mizil, A. (2006). Model compression. KDD (learning from the machine's decisions).

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
    if is_outlier_detector(model):
        raise ValueError(f"{type(model).__name__} cannot become a learner: OneClassBSGD learns from the rows themselves")
    if model._kernel.kind not in KERNELS.values():
        known = ", ".join(map(repr, KERNELS))
        raise ValueError(f"no learner has the kernel {shown(model.kernel)}: a machine that becomes one has one of {known}")
    if model._kernel.coef0 < 0.0:
        raise ValueError(f"coef0 must be at least 0 for a learner, not {model._kernel.coef0:g}: such a polynomial is no kernel")
    check_one_of("learner", learner, _LEARNERS)
    check_number("budget", budget, 1, inclusive=True, high=2**31 - 1, integer=True)
    check_number("passes", passes, 0, inclusive=True, high=2**31, integer=True)
    if X is not None:
        X = validate_data(model, X, accept_sparse="csr", dtype=np.float64, reset=False)
        if X.shape[0] and abs(X).max() > LARGEST_FEATURE:
            raise ValueError(f"X has a number beyond {LARGEST_FEATURE:g}: scale its features")
    n = (model.support_vectors_ if X is None else X).shape[0]
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
    distillation = _Distillation(model, budget, X, seed)
    vectors, coefficients = distillation.run(passes)
    result.start_from(vectors, coefficients, distillation.intercept, feature_names=names, labels=labels, n_learned=n)
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
        "scaling": None,
        "seed": seed,
    }
    same |= {"max_classes": max(len(model.classes_), MAX_CLASSES)} if classification else {"epsilon": model.epsilon}
    kind: Any = _LEARNERS[learner][0 if classification else 1]
    return kind(budget=budget, **{**same, **parameters})


class _Distillation:
    """The expansion of at most ``budget`` vectors that decides as a fitted machine does, on rows X if they are given."""

    def __init__(self, machine: Any, budget: int, X: Any, seed: int | None) -> None:
        self.machine, self.budget, self.rng = machine, budget, np.random.default_rng(seed)
        self.several = is_classifier(machine) and len(machine.classes_) > 2
        coefficients = machine._coefficients.T
        #: Those of the learner's outputs, float64 [m, outputs] and [outputs].
        self.coefficients = machine._class_values(coefficients) if self.several else coefficients
        intercepts = machine._intercepts[np.newaxis]
        self.intercept = (machine._class_values(intercepts) if self.several else intercepts)[0]
        self.votes = self.several and machine._votes
        self.X = X

    def run(self, passes: int) -> tuple[Any, np.ndarray]:
        """Return the vectors and their coefficients [outputs, m]."""
        machine, rng = self.machine, self.rng
        S = machine.support_vectors_
        if len(self.coefficients) <= self.budget and machine._is_expansion and not self.votes:
            return S, self.coefficients.T
        rows = self._rows()
        targets, margins = self._targets(rows)
        if self.votes:
            self.intercept = targets.mean(axis=0)
        weights = np.ones(len(targets)) if margins is None else 1.0 / (1.0 + np.square(margins))
        problem = ReducedSet(machine._kernel, rows, targets - self.intercept, weights)
        chosen = choose_vectors(machine._kernel, S, np.abs(self.coefficients).max(axis=1), self.budget, rng)
        vectors = S[chosen]
        vectors = np.asarray(vectors.toarray() if sparse.issparse(vectors) else vectors, np.float64)
        if self.votes:
            vectors = problem.move(vectors, passes // 4)
            vectors, coefficients = problem.follow(vectors, problem.solve(vectors), self.intercept, passes)
            return vectors, coefficients.T
        vectors = problem.move(vectors, passes).astype(np.float32)  # as the learner will have them
        return vectors, problem.solve(vectors.astype(np.float64)).T

    def _rows(self) -> Any:
        """Return the rows of least squares, float32: those given, or the support vectors, and rows between them.

        Half at least are between where none are given: the support vectors alone say little of what lies apart from them.
        """
        X = self.machine.support_vectors_ if self.X is None else self.X
        needed, d = max(_ROWS_A_VECTOR * self.budget, _LEAST_ROWS), X.shape[1]
        needed = min(needed, max(_MOST_ROWS, _LEAST_ROWS_A_VECTOR * self.budget))
        n = min(X.shape[0], max(needed, _CHEAP_ROWS))
        rows = X[np.sort(self.rng.permutation(X.shape[0])[:n])]
        between = max(needed - n, 0 if self.X is not None else n)
        n += between
        if sparse.issparse(rows):
            if n * d > _DENSE_VALUES:
                return rows
            rows = rows.toarray()
        rows = np.asarray(rows, np.float32)
        return np.concatenate([rows, rows_between(rows, between, self.rng)])

    def _targets(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what the outputs are to be, float64 [n, outputs], and how far the best is above the next, for a classifier."""
        machine = self.machine
        chunks = [rows[begin : begin + _CHUNK] for begin in range(0, rows.shape[0], _CHUNK)]
        f = np.concatenate([machine._decide(chunk.astype(np.float64)) for chunk in chunks])
        if not is_classifier(machine):
            return f, None
        if not self.several:
            return f, np.abs(f[:, 0])
        values = machine._soft_votes(f) if self.votes else machine._class_values(f)
        ordered = np.sort(values, axis=1)
        return values, ordered[:, -1] - ordered[:, -2]
