"""Distillation: from an exact kernel machine to a budgeted learner that decides alike and goes on learning."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_outlier_detector
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from streamsvm.batch.reduced_set import ReducedSet, choose_vectors, interpolate_rows, to_dense_rows
from streamsvm.core.checks import LearnerName, check_number, check_one_of
from streamsvm.core.kernels import KERNELS, LARGEST_FEATURE
from streamsvm.files.messages import short_repr
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.labels import MAX_CLASSES

_LEARNERS = {"bsca": (BSCAClassifier, BSCARegressor), "bsgd": (BSGDClassifier, BSGDRegressor)}
logger: logging.Logger = logging.getLogger(__name__)

_ROWS_A_VECTOR, _LEAST_ROWS_A_VECTOR = 30, 4  # rows of least squares for each support vector; the latter of large budgets
_LEAST_ROWS, _MOST_ROWS = 1000, 20_000  # of least squares; more than the latter of large budgets only
_CHEAP_ROWS = 5000  # of those there are, for small budgets
_DENSE_VALUES = 8_000_000  # of sparse rows that are made dense, so that there are rows between them
_LARGEST_C = 0.2  # of a classifier that keeps learning: a few noisy rows must not undo what is there
_PASSES_SEEN = 10  # a row of an exact fit counts as if it had been learned so often: C alone bounds the steps then
_CHUNK = 2000  # rows that are float64 at a time
_ENOUGH = 0.005  # points of accuracy that are lost at most where vectors are moved no further
_ROUGH = 0.2  # of a decision value, or of 1: so far its float32 may be off at worst where machines are followed
_PARTS = (0.25, 0.5, 1.0)  # of the budget: the first are vectors of the machine, the others follow what is still far off
_HELD_OUT, _MOST_HELD_OUT, _LEAST_HELD_OUT = 0.25, 20_000, 50  # part and numbers of the rows on which a loss is measured
_FIRST_BUDGET, _HALVINGS = 25, 2  # of the search for a budget
_LARGEST_PART, _LARGEST_TRIAL = 0.7, 4000  # of the machine, and vectors: more are as good as the machine, or take hours


def to_budget(
    model: Any,
    budget: int | None = None,
    X: Any = None,
    *,
    loss: float | None = None,
    y: Any = None,
    feature_names: Sequence[Hashable] | None = None,
    learner: LearnerName = "bsca",
    passes: int = 40,
    seed: int | None = 0,
    **parameters: Any,
) -> BudgetedEstimator:
    """Turn a fitted kernel machine into a learner within a budget that decides alike and keeps learning.

    It chooses support vectors of the machine that are far from each other, those of large coefficients first: a quarter of the
    budget. Their coefficients are fitted by least squares to the machine's decision values on rows, of which those near its
    boundary count most. Twice, it adds rows where the expansion is still far off. Then it moves all vectors, and fits their
    coefficients again, until the labels of the rows say that next to no accuracy is lost. A machine that fits into the budget
    is taken over as it is. If it has three or more classes and its pairs of classes vote, vectors and coefficients follow the
    votes, which no expansion matches exactly.

    Parameters
    ----------
    model
        A fitted `CSMOClassifier`, `HSSADMMClassifier` or `HierarchicalSVC`, or the regressor of one of them.
    budget
        Maximum number of support vectors of the learner, at least 1. Without one, give X and ``loss``.
    X
        Rows on which the learner has to decide like the machine, [n, features]. Pass the rows that the machine was fitted to, or
        others like them. If there are few, rows between them are added. None uses the machine's support vectors, and as many
        rows between them.
    loss
        What the budget may cost, in percent, above 0; only without a budget, and with X. It is measured on a quarter of
        the rows, drawn at random, at most 20,000: neither vectors nor coefficients are fitted to them. Without ``y``, it is the
        percentage of these rows whose label the learner changes; the accuracy falls by at most as much. For a regressor, it is
        the mean difference of the learner's predictions from the machine's, in percent of the standard deviation of the
        machine's.
    y
        Labels of X, [n], for classifiers: ``loss`` is then the fall of accuracy in points, for which fewer vectors do. On rows
        that the machine was fitted to, accuracy falls more than on new ones, so the budget is on the safe side. Pass rows and
        labels that the machine has not seen for the loss on new rows.
    feature_names
        Names of the machine's columns, if it was fitted to an array. None uses the machine's ``feature_names_in_``, or 0, 1,
        ...
    learner
        Kind of learner: ``"bsca"`` or ``"bsgd"``. The intercept of ``"bsgd"`` is regularised if it is fitted, as a regressor's
        is by default; if targets are far from 0, the learner would lose the offset as it continues learning. With
        ``fit_intercept=False``, the intercept stays as it is.
    passes
        How long vectors are moved: seven passes over the rows are a step, and small budgets take more steps. 0 only fits
        coefficients, which takes a fifth of the time. More passes than the default pay off for machines with rugged decision
        values (large C and gamma).
    seed
        Seed of the choice of vectors and rows, and of the learner.
    parameters
        Further parameters of the learner. By default, its C is the machine's, but at most
        0.2 for a classifier (``l2`` is 1 / (``n_learned`` C)), so that a few noisy rows do not undo what is there. Each of the n
        rows counts as learned ten times, so that C bounds the steps: .2 after 1,500 rows or more, .02 after 15,000. With
        a C of .02, rows like those of the fit cost next to nothing, neither by their steps nor by the merges that make room for
        them; a stream that drifts needs the larger one.
        ``max_features`` is just large enough for the machine, and ``max_classes`` at least.

    Returns
    -------
    A `BSCAClassifier`, `BSCARegressor`, `BSGDClassifier` or `BSGDRegressor`.

    Raises
    ------
    ValueError
        A parameter is out of its range, X does not fit the machine, no learner has the machine's kernel, or no budget up to the
        machine's number of support vectors has so small a loss.
    sklearn.exceptions.NotFittedError
        The machine is not fitted.

    Notes
    -----
    With m support vectors of the machine and a budget of B, it costs O(m B d) to choose vectors, O(r m d) for the machine's
    decision values on r rows, and O(r B (B + d)) for each step: 2 seconds for B = 500 and 10 features, .2 for B = 50. r is 30
    B, and at least 5,000 if there are that many; from B = 667 on it is 20,000, and from B = 5,000 on 4 B. Memory: r d numbers
    for the rows, as many again up to 64 MB, O(B^2 + 10 B d) for the fit, and 64 MB of kernel values, or 128 MB where vectors are
    too far from each other for float32, measured by gamma. Vectors are moved if the kernel is Gaussian and B d is at most
    1,000,000. Sparse rows stay sparse, and none are added between them, if they would take more than 64 MB as an array.

    A search for a loss tries 25 vectors, 50, 100 and so on, then two numbers between the last that was too few and the first
    that was enough, so that the budget is within a fifth of the smallest; it takes two to three times as long as its last
    trial. More than 70 % of the machine's support vectors, or more than 4,000, are not tried: the machine is then taken over as
    it is, if it is an expansion. A loss of .2 % on 2,000 rows held out is 4 rows, and chance may add or take two: give 8,000
    rows or more for so small a loss. The logger ``streamsvm`` tells each trial, at the level INFO.

    References
    ----------
    Schoelkopf, B., Mika, S., Burges, C. J. C., Knirsch, P., Mueller, K.-R., Raetsch, G., Smola, A. (1999). Input space versus
    feature space in kernel-based methods. IEEE Trans. Neural Networks 10 (reduced sets).

    Smola, A. J., Schoelkopf, B. (2000). Sparse greedy matrix approximation for machine learning. ICML (vectors added where the
    expansion is far off).

    Golub, G., Pereyra, V. (1973). The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
    separate. SIAM J. Numer. Anal. 10.

    Kaufman, L. (1975). A variable projection method for solving separable nonlinear least squares problems. BIT 15 (steps).

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

    The smallest budget that changes at most 2 % of the labels:

    >>> to_budget(exact, X=X, loss=2.0).n_support < 93
    True
    """
    check_is_fitted(model)
    if is_outlier_detector(model):
        raise ValueError(f"{type(model).__name__} cannot become a learner: OneClassBSGD learns from the rows themselves")
    if model._kernel.kind not in KERNELS.values():
        known = ", ".join(map(repr, KERNELS))
        raise ValueError(f"no learner has the kernel {short_repr(model.kernel)}: a machine that becomes one has one of {known}")
    if model._kernel.coef0 < 0.0:
        raise ValueError(f"coef0 must be at least 0 for a learner, not {model._kernel.coef0:g}: such a polynomial is no kernel")
    check_one_of("learner", learner, _LEARNERS)
    if (budget is None) == (loss is None):
        raise ValueError("give a budget, or the loss that it may cost: to_budget(100), or to_budget(X=X, loss=1.0), and not both")
    if budget is not None:
        check_number("budget", budget, 1, inclusive=True, high=2**31 - 1, integer=True)
    if loss is not None:
        check_number("loss", loss, 0.0)
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
    trial = None if loss is None else _HeldOutRows.of(model, X, y, loss, seed)
    if y is not None and (trial is None or not is_classifier(model)):
        raise ValueError("y is for the loss of a classifier: leave it out")
    labels = model.classes_.tolist() if is_classifier(model) else None
    C, n_learned = model.C if labels is None else min(model.C, _LARGEST_C), _PASSES_SEEN * n
    parameters = {**({"C": C} if learner == "bsca" else {"l2": 1.0 / (n_learned * C)}), **parameters}
    size = 1 if budget is None else budget
    result = _new_learner(learner, model, size, seed, parameters)
    for name, needed in {"max_features": len(names), "max_classes": len(labels or ())}.items():
        if getattr(result, name, needed) < needed:
            raise ValueError(f"{name} must be at least {needed}, as many as the machine has, not {getattr(result, name)}")
    distillation = _Distillation(model, X if trial is None else X[trial.fitted], seed)
    if trial is None:
        vectors, coefficients, intercept = distillation.run(size, passes)
    else:
        vectors, coefficients, intercept = _smallest_expansion(distillation, trial, passes)
        result = _new_learner(learner, model, vectors.shape[0], seed, parameters)
    result.start_from(vectors, coefficients, intercept, feature_names=names, labels=labels, n_learned=n_learned)
    return result


class _Expansion(NamedTuple):
    """The beginning of a learner."""

    vectors: Any  # array or CSR matrix, float [m, d]
    coefficients: np.ndarray  # [outputs, m]
    intercept: np.ndarray  # [outputs]


class _HeldOutRows(NamedTuple):
    """Rows on which a loss is measured, and those that are left to fit to."""

    machine: Any
    fitted: np.ndarray  # the numbers of the latter
    rows: Any  # float64 [n, d]
    predicted: np.ndarray  # by the machine, [n]
    y: np.ndarray | None
    allowed: float  # the loss, in percent

    @staticmethod
    def of(machine: Any, X: Any, y: Any, allowed: float, seed: int | None) -> _HeldOutRows:
        """Hold rows of X out, and their labels if there are any."""
        held = 0 if X is None else min(int(_HELD_OUT * X.shape[0]), _MOST_HELD_OUT)
        if held < _LEAST_HELD_OUT:
            raise ValueError(
                f"give at least {int(_LEAST_HELD_OUT / _HELD_OUT)} of the machine's rows as X: loss is measured on some"
            )
        if y is not None:
            y = column_or_1d(y)
            check_consistent_length(X, y)
        order = np.random.default_rng(seed).permutation(X.shape[0])
        out, rows = order[:held], X[order[:held]]
        labels = None if y is None else y[out]
        return _HeldOutRows(machine, np.sort(order[held:]), rows, machine._predict_checked(rows), labels, allowed)

    def loss(self, expansion: _Expansion) -> float:
        """Return what an expansion loses, in percent, as `to_budget` defines it."""
        problem = ReducedSet(self.machine._kernel, self.rows, np.zeros((self.rows.shape[0], 1)), np.ones(self.rows.shape[0]))
        values = problem.compute_values(to_dense_rows(expansion.vectors), expansion.coefficients.T) + expansion.intercept
        if not is_classifier(self.machine):
            difference, spread = np.abs(values[:, 0] - self.predicted).mean(), self.predicted.std()
            return float(100.0 * difference / spread) if spread > 0.0 else 100.0 * float(difference > 0.0)
        which = values.argmax(axis=1) if values.shape[1] > 1 else (values[:, 0] > 0.0).astype(np.intp)
        labels = self.machine.classes_[which]
        if self.y is None:
            return 100.0 * float((labels != self.predicted).mean())
        return 100.0 * float((self.predicted == self.y).mean() - (labels == self.y).mean())


def _smallest_expansion(distillation: _Distillation, trial: _HeldOutRows, passes: int) -> _Expansion:
    """Return the expansion of about the smallest budget whose loss is not too large."""
    m, fewer, budget = len(distillation.coefficients), 0, _FIRST_BUDGET
    largest = min(_LARGEST_PART * m, _LARGEST_TRIAL)
    least = math.inf

    def tried(budget: int) -> tuple[bool, _Expansion]:
        nonlocal least
        expansion = distillation.run(budget, passes)
        lost = trial.loss(expansion)
        least = min(lost, least)
        logger.info("to_budget: %d vectors in place of %d lose %.2f %%", expansion.vectors.shape[0], m, lost)
        return lost <= trial.allowed, expansion

    enough = False
    while not enough:
        if budget > largest and distillation.fits(m):
            budget, enough, expansion = m, True, distillation.run(m, passes)
        elif budget > largest and fewer:
            raise ValueError(
                f"no budget up to {fewer} has a loss of at most {trial.allowed:g} %: allow {least:.2g}, or take more passes"
            )
        else:
            enough, expansion = tried(budget)
            fewer, budget = (fewer, budget) if enough else (budget, 2 * budget)
    for _ in range(_HALVINGS):
        between = round(math.sqrt(fewer * budget))
        if not fewer < between <= min(largest, budget - 1):
            break
        if (found := tried(between))[0]:
            budget, expansion = between, found[1]
        else:
            fewer = between
    return expansion


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
    """Expansions of few vectors that decide as a fitted machine does, on rows X if they are given."""

    def __init__(self, machine: Any, X: Any, seed: int | None) -> None:
        self.machine, self.seed = machine, seed
        self.several = is_classifier(machine) and len(machine.classes_) > 2
        coefficients = machine._coefficients.T
        #: Those of the learner's outputs, float64 [m, outputs] and [outputs].
        self.coefficients = machine._compute_class_values(coefficients) if self.several else coefficients
        intercepts = machine._intercepts[np.newaxis]
        self.intercept = (machine._compute_class_values(intercepts) if self.several else intercepts)[0]
        self.votes = self.several and machine._uses_votes
        self.X = X

    def run(self, budget: int, passes: int) -> _Expansion:
        """Return an expansion of at most ``budget`` vectors."""
        machine, rng, intercept = self.machine, np.random.default_rng(self.seed), self.intercept
        if self.fits(budget):
            return _Expansion(machine.support_vectors_, self.coefficients.T, intercept)
        rows = self._rows(budget, rng)
        targets, margins = self._targets(rows)
        if self.votes:
            intercept = targets.mean(axis=0)
        weights = np.ones(len(targets)) if margins is None else 1.0 / (1.0 + np.square(margins))
        problem = ReducedSet(machine._kernel, rows, targets - intercept, weights)
        vectors = self._choose_vectors(problem, budget, rng)
        if self.votes:
            vectors = problem.move_vectors(vectors, passes // 4)
            vectors, coefficients = problem.match_largest_output(vectors, problem.solve_coefficients(vectors), intercept, passes)
            return _Expansion(vectors, coefficients.T, intercept)
        enough = None if margins is None else lambda values: self._estimate_lost_points(values + intercept, targets) < _ENOUGH
        vectors = problem.move_vectors(vectors, passes, enough).astype(np.float32)  # as the learner will have them
        return _Expansion(vectors, problem.solve_coefficients(vectors.astype(np.float64)).T, intercept)

    def _estimate_lost_points(self, values: np.ndarray, targets: np.ndarray) -> float:
        """Return about how many points of accuracy are lost with values [n, outputs] in place of targets.

        A row whose label is another one counts as far as the machine is certain of it.
        """
        if not self.several:
            costs = np.where((values > 0.0) == (targets > 0.0), 0.0, np.abs(targets))
        else:
            rows, best = np.arange(len(values)), targets.argmax(axis=1)
            costs = targets[rows, best] - targets[rows, values.argmax(axis=1)]
        return 100.0 * float(np.minimum(costs, 1.0).sum()) / len(values)

    def fits(self, budget: int) -> bool:
        """Whether the machine is itself an expansion of at most so many vectors."""
        return len(self.coefficients) <= budget and self.machine._is_expansion and not self.votes

    def _choose_vectors(self, problem: ReducedSet, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Return at most ``budget`` vectors, float64 [m, d]: a few of the machine's, and rows where these are far off."""
        S, sizes = self.machine.support_vectors_, [math.ceil(part * budget) for part in _PARTS]
        weights = np.abs(self.coefficients).max(axis=1)
        vectors = to_dense_rows(S[choose_vectors(self.machine._kernel, S, weights, sizes[0], rng)])
        for size in sizes[1:] if len(vectors) else ():  # none: the machine's decision is constant
            vectors = np.concatenate([vectors, problem.find_worst_rows(vectors, size - len(vectors), rng)])
        return vectors

    def _rows(self, budget: int, rng: np.random.Generator) -> Any:
        """Return the rows of least squares, float32: those given, or the support vectors, and rows between them.

        Half at least are between where none are given: the support vectors alone say little of what lies apart from them.
        """
        X = self.machine.support_vectors_ if self.X is None else self.X
        needed, d = max(_ROWS_A_VECTOR * budget, _LEAST_ROWS), X.shape[1]
        needed = min(needed, max(_MOST_ROWS, _LEAST_ROWS_A_VECTOR * budget))
        n = min(X.shape[0], max(needed, _CHEAP_ROWS))
        rows = X[rng.permutation(X.shape[0])[:n]]  # in no order: each part of them is like the others
        between = max(needed - n, 0 if self.X is not None else n)
        n += between
        if sparse.issparse(rows):
            if n * d > _DENSE_VALUES:
                return rows
            rows = rows.toarray()
        rows = np.asarray(rows, np.float32)
        return np.concatenate([rows, interpolate_rows(rows, between, rng)])

    def _targets(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what the outputs are to be, float64 [n, outputs], and how far the best is above the next, for a classifier."""
        machine = self.machine
        chunks = [rows[begin : begin + _CHUNK] for begin in range(0, rows.shape[0], _CHUNK)]
        f = np.concatenate([machine._compute_decisions(chunk.astype(np.float64), _is_accurate) for chunk in chunks])
        if not is_classifier(machine):
            return f, None
        if not self.several:
            return f, np.abs(f[:, 0])
        values = machine._compute_soft_votes(f) if self.votes else machine._compute_class_values(f)
        ordered = np.sort(values, axis=1)
        return values, ordered[:, -1] - ordered[:, -2]


def _is_accurate(f: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return of which rows decision values [n, machines] from float32 are good enough to follow."""
    return (error <= _ROUGH * np.maximum(np.abs(f), 1.0)).all(axis=1)
