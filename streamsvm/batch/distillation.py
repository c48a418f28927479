"""Distillation of exact kernel machines into budgeted learners, which predict alike and can keep learning."""

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

# Rows of the least squares fit: a multiple of the budget, within limits. For large budgets, the second multiple is allowed to
# exceed the limit.
_ROWS_PER_VECTOR, _MIN_ROWS_PER_VECTOR = 30, 4
_MIN_FIT_ROWS, _MAX_FIT_ROWS = 1000, 20_000
_AFFORDABLE_ROWS = 5000  # used even for small budgets, if X has as many: they cost little time
_MAX_DENSE_VALUES = 8_000_000  # 64 MB; sparse rows with fewer values become dense, because only dense rows are interpolated
_FLOAT64_CHUNK_ROWS = 2000  # rows that are converted to float64 at a time

_MAX_C_OF_CLASSIFIERS = 0.2  # a larger C would let a few noisy rows undo the fit as the learner keeps learning
_TIMES_LEARNED = 10  # a fitted row counts as learned this many times, so that only C limits the next steps

_NEGLIGIBLE_LOSS = 0.005  # percentage points of accuracy; vectors with a smaller loss are moved no further

# Shares of the budget after each stage of the choice of vectors: support vectors, then twice rows with large residuals.
_SELECTION_STAGES = (0.25, 0.5, 1.0)

_HELD_OUT_SHARE, _MIN_HELD_OUT_ROWS, _MAX_HELD_OUT_ROWS = 0.25, 50, 20_000  # rows on which a loss is measured
_FIRST_BUDGET, _BISECTIONS = 25, 2  # of the search for a budget: it doubles the budget, then bisects
# A search tries no larger share of the machine's support vectors, because the machine itself is as good, and no larger budget,
# because that takes hours.
_MAX_BUDGET_SHARE, _MAX_TRIED_BUDGET = 0.7, 4000


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
    """Compress a fitted kernel machine to a learner that has at most ``budget`` support vectors, makes nearly the same
    predictions, and can keep learning from a stream. With ``loss`` (in percent of accuracy) instead of ``budget``, the smallest
    budget that loses at most that is searched for. Returns the learner.

    The first quarter of the budget are support vectors of the machine, far from each other and with large coefficients. Their
    coefficients are fitted to the machine's decision values on X by weighted least squares; rows near the decision boundary have
    the largest weights. Then rows with large residuals become vectors, in two stages. Finally, all vectors are moved to reduce
    the residuals, and the coefficients are fitted again, until the loss of accuracy on the rows is negligible.

    A machine with at most ``budget`` support vectors is copied. If three or more classes are decided by one-against-one votes, no
    expansion reproduces these exactly, and vectors and coefficients are fitted to the votes.

    Parameters
    ----------
    model
        A fitted `CSMOClassifier`, `HSSADMMClassifier` or `HierarchicalSVC`, or the regressor of one of them.
    budget
        Maximum number of support vectors of the learner, at least 1. Without a budget, X and ``loss`` are required.
    X
        Rows [n, features] on which the learner is fitted to agree with the machine: the machine's training rows, or similar
        ones. If there are few, interpolated rows are added. By default, the machine's support vectors, and as many rows
        interpolated between them.
    loss
        The largest acceptable loss in percent, above 0, in place of a budget: the function searches for the smallest budget.
        The loss is measured on a quarter of the rows of X, drawn at random (at most 20,000), which are held out from the fit.
        Without ``y``, it is the percentage of these rows for which the predicted label changes, an upper bound of the decrease
        in accuracy. For a regressor, it is the mean absolute difference between the predictions of learner and machine, in
        percent of the standard deviation of the machine's predictions.
    y
        Labels of X, [n], for classifiers: ``loss`` is then the decrease in accuracy in percentage points, which takes fewer
        vectors. On the machine's training rows, accuracy decreases more than on new rows, so that the budget is on the safe
        side. To measure the loss on new rows, pass rows and labels that the machine was not fitted to.
    feature_names
        Names of the machine's columns, if it was fitted to an array. By default, the machine's ``feature_names_in_``, or 0, 1,
        ...
    learner
        Kind of learner: ``"bsca"`` or ``"bsgd"``. ``"bsgd"`` regularises the intercept if it learns one, as regressors do by
        default: if targets are far from 0, the intercept shrinks as the learner keeps learning. With ``fit_intercept=False``,
        the intercept does not change.
    passes
        Number of passes over the rows for moving the vectors. A step takes seven passes; small budgets take more steps. 0 only
        fits coefficients, in a fifth of the time. More passes than the default improve the fit to rugged decision functions
        (large C and gamma).
    seed
        Seed for choosing vectors and rows, and of the learner.
    parameters
        Further parameters of the learner. ``C`` defaults to the machine's, but for classifiers to at most 0.2, so that a few
        noisy rows do not undo the fit; the default of ``l2`` is 1 / (``n_learned`` C). ``n_learned`` starts at ten times the
        number of rows, so that only C limits the steps: 0.2 from 1,500 rows on, 0.02 from 15,000 rows on. With C = 0.02, more
        rows of the same distribution hardly change accuracy, neither by their steps nor by the merges that make room for them;
        a stream that drifts needs the larger C. ``max_features`` defaults to the machine's number of features, and
        ``max_classes`` to at least its number of classes.

    Returns
    -------
    A `BSCAClassifier`, `BSCARegressor`, `BSGDClassifier` or `BSGDRegressor`.

    Raises
    ------
    ValueError
        A parameter is out of range, X does not match the machine, no learner supports the machine's kernel, or the loss of all
        budgets up to the machine's number of support vectors is too large.
    sklearn.exceptions.NotFittedError
        The machine is not fitted.

    Notes
    -----
    With m support vectors of the machine and a budget of B, choosing vectors takes O(m B d), the machine's decision values on r
    rows O(r m d), and each step O(r B (B + d)): 2 seconds for B = 500 and 10 features, 0.2 for B = 50. r is 30 B, and at least
    5,000 if X has as many rows; from B = 667 on, it is 20,000, and from B = 5,000 on, 4 B. Memory: r d numbers for the rows, as
    many again up to 64 MB, O(B^2 + 10 B d) for the fit, and 64 MB of kernel values, or 128 MB if vectors are so far from each
    other, relative to gamma, that float32 is too coarse. Vectors are moved if the kernel is Gaussian and B d is at most
    1,000,000. Sparse rows that would take more than 64 MB as an array stay sparse, and no rows are interpolated between them.

    A search for a loss tries budgets of 25, 50, 100 and so on, then two between the last one that was too small and the first
    one that was large enough. The result is within a fifth of the smallest possible budget, and takes two to three times as
    long as its last trial. Budgets above 70 % of the machine's support vectors, or above 4,000, are not tried: the machine is
    copied instead, if it is an expansion. A loss of 0.2 % on 2,000 held-out rows is 4 rows, plus or minus 2 by chance: pass 8,000
    rows or more for so small a loss. The logger ``streamsvm`` logs each trial at level INFO.

    References
    ----------
    Schoelkopf, B., Mika, S., Burges, C. J. C., Knirsch, P., Mueller, K.-R., Raetsch, G., Smola, A. (1999). Input space versus
    feature space in kernel-based methods. IEEE Trans. Neural Networks 10 (reduced sets).

    Smola, A. J., Schoelkopf, B. (2000). Sparse greedy matrix approximation for machine learning. ICML (vectors from rows with
    large residuals).

    Golub, G., Pereyra, V. (1973). The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
    separate. SIAM J. Numer. Anal. 10.

    Kaufman, L. (1975). A variable projection method for solving separable nonlinear least squares problems. BIT 15 (steps).

    Bucila, C., Caruana, R., Niculescu-Mizil, A. (2006). Model compression. KDD (fitting the machine's decision values).

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
        raise ValueError(f"{type(model).__name__} cannot be distilled: use OneClassBSGD, which learns from the rows themselves")
    if model._kernel.kind not in KERNELS.values():
        supported = ", ".join(map(repr, KERNELS))
        raise ValueError(f"no learner supports the kernel {short_repr(model.kernel)}: fit the machine with one of {supported}")
    if model._kernel.coef0 < 0.0:
        raise ValueError(f"coef0 must be at least 0 for a learner, not {model._kernel.coef0:g}: the kernel would be indefinite")
    check_one_of("learner", learner, _LEARNERS)
    if (budget is None) == (loss is None):
        raise ValueError("give either a budget or a loss: to_budget(100), or to_budget(X=X, loss=1.0)")
    if budget is not None:
        check_number("budget", budget, 1, inclusive=True, high=2**31 - 1, integer=True)
    if loss is not None:
        check_number("loss", loss, 0.0)
    check_number("passes", passes, 0, inclusive=True, high=2**31, integer=True)
    if X is not None:
        X = validate_data(model, X, accept_sparse="csr", dtype=np.float64, reset=False)
        if X.shape[0] and abs(X).max() > LARGEST_FEATURE:
            raise ValueError(f"X has a value beyond {LARGEST_FEATURE:g}: scale its features")
    n_rows = (model.support_vectors_ if X is None else X).shape[0]
    if n_rows == 0:
        raise ValueError("there are no rows to fit the learner to, because the machine has no support vectors: give rows as X")
    if fixed := [name for name in ("kernel", "gamma", "degree", "coef0") if name in parameters]:
        raise ValueError(f"{fixed[0]} is that of the machine, and cannot be changed: leave it out")
    names = list(getattr(model, "feature_names_in_", range(model.n_features_in_)) if feature_names is None else feature_names)
    if len(set(names)) != model.n_features_in_:
        raise ValueError(f"feature_names must be {model.n_features_in_} different names, not {feature_names!r}")
    hold_out = None if loss is None else _HoldOut.draw_split(model, X, y, loss, seed)
    if y is not None and (hold_out is None or not is_classifier(model)):
        raise ValueError("y is only used for the loss of a classifier: leave it out")
    labels = model.classes_.tolist() if is_classifier(model) else None
    C, n_learned = model.C if labels is None else min(model.C, _MAX_C_OF_CLASSIFIERS), _TIMES_LEARNED * n_rows
    parameters = {**({"C": C} if learner == "bsca" else {"l2": 1.0 / (n_learned * C)}), **parameters}
    first_budget = 1 if budget is None else budget  # 1: the search below creates another learner
    result = _create_learner(learner, model, first_budget, seed, parameters)
    for name, needed in {"max_features": len(names), "max_classes": len(labels or ())}.items():
        if getattr(result, name, needed) < needed:
            raise ValueError(f"{name} must be at least {needed}, as many as the machine has, not {getattr(result, name)}")
    distillation = _Distillation(model, X if hold_out is None else X[hold_out.fit_positions], seed)
    if hold_out is None:
        vectors, coefficients, intercept = distillation.fit_expansion(first_budget, passes)
    else:
        vectors, coefficients, intercept = _search_budget(distillation, hold_out, passes)
        result = _create_learner(learner, model, vectors.shape[0], seed, parameters)
    result.start_from(vectors, coefficients, intercept, feature_names=names, labels=labels, n_learned=n_learned)
    return result


def _create_learner(learner: LearnerName, machine: Any, budget: int, seed: int | None, parameters: dict[str, Any]) -> Any:
    """Create a river learner with at most ``budget`` support vectors that has the kernel, the loss and the number of features and
    classes of the fitted ``machine``. ``learner`` names its algorithm, and ``parameters`` override the defaults.
    """
    kernel, classification = machine._kernel, is_classifier(machine)
    defaults = {
        "kernel": next(name for name, code in KERNELS.items() if code == kernel.kind),
        "gamma": kernel.gamma,
        "degree": kernel.degree,
        "coef0": kernel.coef0,
        "max_features": machine.n_features_in_,
        "scaling": None,
        "seed": seed,
    }
    defaults |= {"max_classes": max(len(machine.classes_), MAX_CLASSES)} if classification else {"epsilon": machine.epsilon}
    learner_class: Any = _LEARNERS[learner][0 if classification else 1]
    return learner_class(budget=budget, **{**defaults, **parameters})


class _Expansion(NamedTuple):
    """A kernel expansion: the support vectors, coefficients and intercepts with which a learner starts."""

    vectors: Any  # array or CSR matrix, float [n_vectors, n_features]
    coefficients: np.ndarray  # [n_outputs, n_vectors]
    intercept: np.ndarray  # [n_outputs]


class _HoldOut(NamedTuple):
    """A split of rows into those that are fitted and those on which the loss is measured."""

    machine: Any
    fit_positions: np.ndarray  # of the rows of X that are fitted, sorted
    X: Any  # the held-out rows, float64 [n, n_features]
    predictions: np.ndarray  # of the machine, [n]
    y: np.ndarray | None  # [n]
    max_loss: float  # percent

    @staticmethod
    def draw_split(machine: Any, X: Any, y: Any, max_loss: float, seed: int | None) -> _HoldOut:
        """Split the rows of X at random into rows to fit and held-out rows, on which the loss of accuracy of a distilled
        ``machine`` is measured. Return the split, with the machine's predictions. Raise a ValueError if X has too few rows. ``y``
        are the true labels [n], if known.
        """
        n_held_out = 0 if X is None else min(int(_HELD_OUT_SHARE * X.shape[0]), _MAX_HELD_OUT_ROWS)
        if n_held_out < _MIN_HELD_OUT_ROWS:
            n_needed = int(_MIN_HELD_OUT_ROWS / _HELD_OUT_SHARE)
            raise ValueError(f"give at least {n_needed} of the machine's rows as X: loss is measured on a part of them")
        if y is not None:
            y = column_or_1d(y)
            check_consistent_length(X, y)
        order = np.random.default_rng(seed).permutation(X.shape[0])
        held_out = order[:n_held_out]
        rows, labels = X[held_out], None if y is None else y[held_out]
        return _HoldOut(machine, np.sort(order[n_held_out:]), rows, machine._predict_checked(rows), labels, max_loss)

    def measure_loss(self, expansion: _Expansion) -> float:
        """Return how much worse than the full machine a small kernel ``expansion`` (support vectors, coefficients, intercepts)
        predicts the held-out rows, in percent. For classifiers, this is the loss of accuracy (without true labels, the share of
        labels that differ); for regressors, the mean difference relative to the spread.
        """
        problem = ReducedSet(self.machine._kernel, self.X, np.zeros((self.X.shape[0], 1)), np.ones(self.X.shape[0]))
        f = problem.compute_values(to_dense_rows(expansion.vectors), expansion.coefficients.T) + expansion.intercept
        if not is_classifier(self.machine):
            error, spread = np.abs(f[:, 0] - self.predictions).mean(), self.predictions.std()
            return float(100.0 * error / spread) if spread > 0.0 else 100.0 * float(error > 0.0)
        label_indices = f.argmax(axis=1) if f.shape[1] > 1 else (f[:, 0] > 0.0).astype(np.intp)
        labels = self.machine.classes_[label_indices]
        if self.y is None:
            return 100.0 * float((labels != self.predictions).mean())
        return 100.0 * float((self.predictions == self.y).mean() - (labels == self.y).mean())


def _search_budget(distillation: _Distillation, hold_out: _HoldOut, passes: int) -> _Expansion:
    """Search for the smallest number of support vectors with which a compressed machine loses at most ``hold_out.max_loss``
    percent on held-out rows, and return the compressed machine, a kernel expansion. ``passes`` limits the passes over the rows in
    each fit. Raise a ValueError if even the largest number loses more.
    """
    n_support, too_small, budget = len(distillation.coefficients), 0, _FIRST_BUDGET
    max_budget = min(_MAX_BUDGET_SHARE * n_support, _MAX_TRIED_BUDGET)
    best_loss = math.inf

    def fit_and_test(budget: int) -> tuple[bool, _Expansion]:
        """Fit a kernel expansion with at most ``budget`` support vectors to the machine. Return whether its loss on the held-out
        rows is small enough, and the expansion.
        """
        nonlocal best_loss
        expansion = distillation.fit_expansion(budget, passes)
        loss = hold_out.measure_loss(expansion)
        best_loss = min(loss, best_loss)
        logger.info("to_budget: %d vectors instead of %d have a loss of %.2f %%", expansion.vectors.shape[0], n_support, loss)
        return loss <= hold_out.max_loss, expansion

    is_enough = False
    while not is_enough:
        if budget > max_budget and distillation.can_copy_machine(n_support):
            budget, is_enough, expansion = n_support, True, distillation.fit_expansion(n_support, passes)
        elif budget > max_budget and too_small:
            raise ValueError(
                f"no budget up to {too_small} has a loss of at most {hold_out.max_loss:g} %: "
                f"raise loss to {best_loss:.2g}, or passes above {passes}"
            )
        else:
            is_enough, expansion = fit_and_test(budget)
            too_small, budget = (too_small, budget) if is_enough else (budget, 2 * budget)
    for _ in range(_BISECTIONS):
        middle = round(math.sqrt(too_small * budget))
        if not too_small < middle <= min(max_budget, budget - 1):
            break
        is_enough, smaller_expansion = fit_and_test(middle)
        if is_enough:
            budget, expansion = middle, smaller_expansion
        else:
            too_small = middle
    return expansion


class _Distillation:
    """Fits small expansions to a machine, on the rows X; without X, on its support vectors and rows between them."""

    def __init__(self, machine: Any, X: Any, seed: int | None) -> None:
        self.machine, self.X, self.seed = machine, X, seed
        self.is_multiclass = is_classifier(machine) and len(machine.classes_) > 2
        self.is_voting = self.is_multiclass and machine._uses_votes
        coefficients, intercepts = machine._coefficients.T, machine._intercepts[np.newaxis]
        if self.is_multiclass:
            coefficients, intercepts = machine._compute_class_values(coefficients), machine._compute_class_values(intercepts)
        #: The machine's coefficients, float64 [n_support, n_outputs], and intercepts [n_outputs], for the learner's outputs.
        self.coefficients = coefficients
        self.intercept = intercepts[0]

    def can_copy_machine(self, budget: int) -> bool:
        """Return whether the machine can be copied without an approximation: it has at most ``budget`` support vectors, and its
        outputs are sums of kernel values, not votes of pairs of classes.
        """
        return len(self.coefficients) <= budget and self.machine._is_expansion and not self.is_voting

    def fit_expansion(self, budget: int, passes: int) -> _Expansion:
        """Fit a kernel expansion (support vectors, coefficients, intercepts) of at most ``budget`` vectors that approximates the
        machine's decision function, and return it. ``passes`` limits the passes over the rows that move the vectors; more passes
        are more accurate.
        """
        machine, rng, intercept = self.machine, np.random.default_rng(self.seed), self.intercept
        if self.can_copy_machine(budget):
            return _Expansion(machine.support_vectors_, self.coefficients.T, intercept)
        rows = self._draw_rows(budget, rng)
        targets, margins = self._compute_targets(rows)
        if self.is_voting:
            intercept = targets.mean(axis=0)
        weights = np.ones(len(targets)) if margins is None else 1.0 / (1.0 + np.square(margins))
        problem = ReducedSet(machine._kernel, rows, targets - intercept, weights)
        vectors = self._choose_vectors(problem, budget, rng)
        if self.is_voting:
            vectors = problem.move_vectors(vectors, passes // 4)
            vectors, coefficients = problem.match_largest_output(vectors, problem.solve_coefficients(vectors), intercept, passes)
            return _Expansion(vectors, coefficients.T, intercept)

        def is_loss_negligible(values: np.ndarray) -> bool:
            """Return whether the outputs ``values`` [n, n_outputs] of the small expansion, plus intercepts, lead to the machine's
            label for nearly all rows, so that the optimisation can stop.
            """
            return self._estimate_accuracy_loss(values + intercept, targets) < _NEGLIGIBLE_LOSS

        vectors = problem.move_vectors(vectors, passes, None if margins is None else is_loss_negligible)
        vectors = vectors.astype(np.float32)  # the precision of the learner
        return _Expansion(vectors, problem.solve_coefficients(vectors.astype(np.float64)).T, intercept)

    def _draw_rows(self, budget: int, rng: np.random.Generator) -> Any:
        """Draw the rows on which a kernel expansion of at most ``budget`` vectors is fitted to the machine, with the generator
        ``rng``: random rows of X (without X, support vectors) and, if these are few, points between them. Returns float32 [n,
        n_features], or a CSR matrix if that were too large.

        Without X, at least half of the rows are interpolated, because support vectors alone say little about the regions far from
        the boundary.
        """
        X = self.machine.support_vectors_ if self.X is None else self.X
        n_wanted, n_features = max(_ROWS_PER_VECTOR * budget, _MIN_FIT_ROWS), X.shape[1]
        n_wanted = min(n_wanted, max(_MAX_FIT_ROWS, _MIN_ROWS_PER_VECTOR * budget))
        n_drawn = min(X.shape[0], max(n_wanted, _AFFORDABLE_ROWS))
        rows = X[rng.permutation(X.shape[0])[:n_drawn]]  # in random order, so that each slice of them is a random sample
        n_interpolated = max(n_wanted - n_drawn, 0 if self.X is not None else n_drawn)
        if sparse.issparse(rows):
            if (n_drawn + n_interpolated) * n_features > _MAX_DENSE_VALUES:
                return rows
            rows = rows.toarray()
        rows = np.asarray(rows, np.float32)
        return np.concatenate([rows, interpolate_rows(rows, n_interpolated, rng)])

    def _compute_targets(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the machine's outputs for ``rows``, float64 [n, n_outputs], to which the small kernel expansion will be fitted,
        and the margins [n] of a classifier's decisions (None for a regressor).

        The margin is the difference between the largest value and the second largest, or the absolute value of one output.
        """
        machine = self.machine
        chunks = [rows[start : start + _FLOAT64_CHUNK_ROWS] for start in range(0, rows.shape[0], _FLOAT64_CHUNK_ROWS)]
        f = np.concatenate([machine._compute_decisions(chunk.astype(np.float64)) for chunk in chunks])
        if not is_classifier(machine):
            return f, None
        if not self.is_multiclass:
            return f, np.abs(f[:, 0])
        values = machine._compute_soft_votes(f) if self.is_voting else machine._compute_class_values(f)
        ascending = np.sort(values, axis=1)
        return values, ascending[:, -1] - ascending[:, -2]

    def _choose_vectors(self, problem: ReducedSet, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Choose at most ``budget`` vectors for the small expansion, float64 [n_vectors, n_features]: first support vectors of
        the machine that are far from each other, then rows where the fit has large errors.
        """
        S, sizes = self.machine.support_vectors_, [math.ceil(share * budget) for share in _SELECTION_STAGES]
        weights = np.abs(self.coefficients).max(axis=1)
        vectors = to_dense_rows(S[choose_vectors(self.machine._kernel, S, weights, sizes[0], rng)])
        for size in sizes[1:] if len(vectors) else ():  # no vectors: the machine's decision function is constant
            vectors = np.concatenate([vectors, problem.find_worst_rows(vectors, size - len(vectors), rng)])
        return vectors

    def _estimate_accuracy_loss(self, values: np.ndarray, targets: np.ndarray) -> float:
        """Estimate how much accuracy, in percentage points, a classifier loses if its outputs ``targets`` [n, n_outputs] are
        replaced by the approximate outputs ``values`` of the same shape.

        Each row whose label changes costs its margin, at most 1: where the machine is unsure, its label is often wrong.
        """
        if not self.is_multiclass:
            costs = np.where((values > 0.0) == (targets > 0.0), 0.0, np.abs(targets))
        else:
            rows, best = np.arange(len(values)), targets.argmax(axis=1)
            costs = targets[rows, best] - targets[rows, values.argmax(axis=1)]
        return 100.0 * float(np.minimum(costs, 1.0).sum()) / len(values)
