"""Several models as one: the weighted union of their support vectors, brought down to the budget, and fitted once more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from streamsvm.core.budget import Refusal, Strategy
from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.kernels import compute_kernel_matrix
from streamsvm.core.memory.moments import convert_moments, pool_moments
from streamsvm.core.steps.decisions import add_expansion
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, HINGE
from streamsvm.core.steps.rescale import GAMMA_FOLLOWS_SCALE, compute_current_units, update_gamma, update_scale
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.mergeable import Mergeable, MergeSource
from streamsvm.learners.refit import (
    NormalEquations,
    RefitRows,
    calibrate_probabilities,
    check_refit_rows,
    compute_residuals,
    read_kernel_parameters,
)

_NEAR = 1.25  # the most by which two values of gamma="scale" may differ, as a factor

#: How much the mean of the models counts against what each knew of its own support vectors: the first where labels are clean,
#: and more by the advantage of the average iterate, which says that they are noisy.
_TRUST, _NOISE, _MOST_TRUST = 0.03, 140.0, 10.0
_ROW_WEIGHT = 10.0  # what a row that is given counts, where a support vector counts 1
_MOST_ASKED = 8_000  # support vectors of all models that are fitted; of more each stands for some
_STEPS = 15  # of Newton's method, and parts of such steps
_SMALLEST = 0.05  # part of a step that is tried
_SAME = 3e-3  # which ends earlier where all rows but for this share are short of their margins that were so before
_CHUNK = 2000  # rows whose kernel values are computed at once
_HELD = 2**27  # bytes of kernel values that are kept between steps


class MergeableExpansion(Mergeable, BudgetedEstimator):
    """A model of support vectors that can merge with others of its kind.

    The state of its rule has the field `FITTED_RANGE` if coefficients that the rule has learned have the signs of labels.
    """

    maintenance: Strategy | None
    """The strategy that keeps the model within its budget: `Merge`, `Removal`, `Projection`, or a `Strategy` of your own. None
    is ``Merge("lookup-wd")`` for the Gaussian kernel and ``Projection()`` for the others, which cannot merge.
    """
    seed: int | None
    """Seed of the random choices, for repeatable runs: those of ``Removal("random")``, and of ``reprocess`` and ``replay`` in
    models that have them. None picks a random one.
    """

    _may_differ: ClassVar = Mergeable._may_differ | {"budget", "maintenance", "seed"}

    @property
    def _knows_labels(self) -> bool:
        # Whether the sign of a coefficient is the label of its support vector.
        return "fitted" in (self._rule_record.dtype.names or ()) and not self._rule_record["fitted"][0]

    def _check_merge(self, other: Any) -> None:
        super()._check_merge(other)
        if getattr(self, "replay", 0):
            raise ValueError("models with a window of rows cannot be merged: its rows are of one stream. Give them replay=0")
        gammas = self.effective_gamma, other.effective_gamma
        found = self.gamma == "scale" and self.scaling is None and self.n_learned and other.n_learned
        if found and max(gammas) > _NEAR * min(gammas):
            raise ValueError(
                f'the models have found gamma="scale" to be {gammas[0]:g} and {gammas[1]:g}, too far apart to become one: '
                'give a gamma that is a number, or scaling="auto"'
            )

    def _merge_sources(self, parts: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        fits = self._common["loss"][0] in (HINGE, EPSILON_INSENSITIVE)
        if rows is not None and not fits:
            raise ValueError(f"a {type(self).__name__} has no labels or targets to fit: merge without rows")
        checked = None if rows is None else check_refit_rows(self, *rows)
        _pool_scale(self, parts)
        self._merge_counters(parts)
        coefficients = np.hstack([part.share * part.coefficients for part in parts])
        intercept = sum(part.share * part.intercept for part in parts)
        vectors = np.zeros((coefficients.shape[1], self._store.used), self._dtype)
        first = 0
        for part in parts:
            vectors[first : first + part.model.n_support, part.columns] = _unscale_vectors(part)
            first += part.model.n_support
        if not len(vectors):  # nor is there a coefficient to fit
            self.set_coefficients(self._get_coefficients("last"), intercept)
            return
        weights = np.concatenate([part.model._store.views.weights[: part.model.n_support] for part in parts]).astype(np.float64)
        sizes = np.square(coefficients).sum(axis=0)
        order = np.argsort(-sizes, kind="stable")
        if isinstance(self._strategy, Refusal):
            # The rule maintains the budget: the least come first, which it lets go first. Of equal ones each model has some.
            places = np.concatenate([np.arange(part.model.n_support) for part in parts])
            order = np.lexsort((places, -sizes))[: self.budget][::-1]
        self._prepare_to_learn()
        sorted_coefficients = np.ascontiguousarray(coefficients[:, order].T)
        if not add_expansion(self._block, vectors[order], np.arange(vectors.shape[1]), weights[order], sorted_coefficients):
            self._raise_strategy_error()
        self.set_coefficients(self._get_coefficients("last"), intercept)
        if fits:
            _refit_coefficients(self, parts, _make_margin_rows(self, parts, vectors, checked))
            if checked is not None:
                calibrate_probabilities(self, checked)


def _unscale_vectors(part: MergeSource) -> np.ndarray:
    # [m, features], as rows are given.
    model = part.model
    vectors = model.support_vectors
    if model.scaling is not None:
        v, used = model._store.views, model._store.used
        location, spread = compute_current_units(v.moments, v.location, v.spread, used)
        vectors = vectors * spread + location
    if (part.factors != 1.0).any() or part.shifts.any():
        vectors = vectors * part.factors + part.shifts
        if not (np.abs(vectors) <= LARGEST_FLOAT32).all():
            raise ValueError("the models were scaled so differently that support vectors of one are beyond float32")
    return np.asarray(vectors, model._dtype)


def _pool_scale(merged: Any, parts: Sequence[MergeSource]) -> None:
    v, c, used = merged._store.views, merged._common, merged._store.used
    if merged.scaling is not None:
        of = [(part.model._store.views, part) for part in parts]
        moments = [(*convert_moments(o.moments, o.first, part.factors, part.shifts), part.columns) for o, part in of]
        pool_moments(moments, v.moments, v.first)
        centred = merged.kernel != "rbf"
        update_scale(v.moments, v.location, v.spread, v.ratio, v.shift, used, True, centred, 0)
    if c["gamma_rows"][0] == GAMMA_FOLLOWS_SCALE:
        update_gamma(merged._block, 0)
    elif merged.gamma == "scale":
        first, columns = parts[0].model, parts[0].columns
        v.header["gamma"] = first.effective_gamma
        for name in ("gamma_rows", "deviation"):
            c[name] = first._common[name]
        v.means[columns] = first._store.views.means[: len(columns)]


class _MarginRows(NamedTuple):
    """Rows that the coefficients are fitted to: the support vectors of all models, and rows that are given."""

    X: np.ndarray  # float64 [n, features], in the scale of the union
    wanted: np.ndarray
    margins: np.ndarray  # float64 [n]: see `compute_residuals`
    weights: np.ndarray  # float64 [n]


def _make_margin_rows(merged: Any, parts: Sequence[MergeSource], vectors: np.ndarray, rows: RefitRows | None) -> _MarginRows:
    every = -(-len(vectors) // _MOST_ASKED)
    some = np.concatenate([np.arange(part.model.n_support) % every == 0 for part in parts])
    answers = (_label_support_vectors(merged, part, every) for part in parts)
    wanted, margins = (np.concatenate(each) for each in zip(*answers, strict=True))
    vectors, weights = vectors[some], np.full(len(wanted), float(every))
    if rows is not None:
        margin = 0.0 if merged._common["loss"][0] == EPSILON_INSENSITIVE else 1.0
        vectors = np.vstack([vectors, rows.X])
        wanted, margins = np.append(wanted, rows.wanted), np.append(margins, np.full(len(rows.X), margin))
        weights = np.append(weights, _ROW_WEIGHT * rows.weights)
    X = vectors.astype(np.float64) if merged.scaling is None else merged.scale_in_use.transform(vectors)
    return _MarginRows(X, wanted, margins, weights)


def _refit_coefficients(merged: Any, parts: Sequence[MergeSource], asked: _MarginRows) -> None:
    kernel, numbers = read_kernel_parameters(merged), merged._common["loss"][0] == EPSILON_INSENSITIVE
    Z = merged.support_vectors.astype(np.float64)
    start, intercept = merged._get_coefficients("last"), merged.intercept
    between = compute_kernel_matrix(*kernel, Z, Z)
    penalty = _choose_trust(parts) * float(np.mean(np.diag(between))) * between
    chunks = _KernelChunks(kernel, asked.X, Z)
    moved, step, size, lowest = np.zeros_like(start), np.zeros_like(start), 1.0, math.inf
    active = np.zeros((len(asked.X), len(start)), bool)
    for _ in range(_STEPS):
        move = moved + size * step
        F = np.concatenate([K @ (start + move).T for _, K in chunks]) + intercept
        residual, now = compute_residuals(F, asked.wanted, asked.margins, numbers)
        residual[~now] = 0.0
        objective = float(np.sum(move * (move @ penalty)) + asked.weights @ np.square(residual).sum(axis=1))
        if objective >= lowest:  # outputs take their steps at once, and which label is the best other one changes
            size *= 0.5
            if size < _SMALLEST:
                break
            continue
        changed = np.count_nonzero(now != active)
        moved, converged = move, lowest < math.inf and size == 1.0 and changed <= _SAME * active.size
        if converged:
            break
        lowest, active, size = objective, now, 1.0
        equations = NormalEquations.zeros(merged)
        for rows, K in chunks:
            equations.add_rows(K, residual[rows], now[rows], asked.weights[rows])
        step = equations.solve(penalty, moved)
    merged.set_coefficients(start + moved, intercept)


class _KernelChunks:
    """Kernel values of rows and support vectors, [rows, B], in chunks: those that fit into `_HELD` bytes are kept."""

    def __init__(self, kernel: tuple[int, float, float, int], X: np.ndarray, Z: np.ndarray) -> None:
        self.kernel, self.X, self.Z = kernel, X, Z
        self.kept: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[tuple[slice, np.ndarray]]:
        for begin in range(0, len(self.X), _CHUNK):
            rows = slice(begin, begin + _CHUNK)
            K = self.kept.get(begin)
            if K is None:
                K = compute_kernel_matrix(*self.kernel, self.X[rows], self.Z)
                if 8 * (begin + _CHUNK) * len(self.Z) <= _HELD:
                    self.kept[begin] = K
            yield rows, K


def _label_support_vectors(merged: Any, part: MergeSource, every: int) -> tuple[np.ndarray, np.ndarray]:
    # Of a model's support vectors, or every second one, third, ...: its label, as a sign or the number of an output, and the
    # margin that the model is asked for; of numbers what the model says, and 0.
    model = part.model
    S, coefficients = model.support_vectors.astype(np.float64), part.coefficients[:, ::every]
    own = compute_kernel_matrix(*read_kernel_parameters(model), S[::every], S) @ model.coefficients.T + model.intercept
    F = own @ part.outputs.T + part.shift
    if merged._common["loss"][0] == EPSILON_INSENSITIVE:
        return F[:, 0], np.zeros(len(F))
    if F.shape[1] == 1:
        if not model._knows_labels:
            return np.where(F[:, 0] > 0.0, 1.0, -1.0), np.minimum(np.abs(F[:, 0]), 1.0)
        labels = np.where(coefficients[0] > 0.0, 1.0, -1.0)
        return labels, np.where(labels * F[:, 0] > 0.0, 1.0, 0.0)
    F[:, ~part.outputs.any(axis=1)] = -np.inf
    if not model._knows_labels:
        second, best = np.sort(F, axis=1)[:, -2:].T
        return F.argmax(axis=1).astype(np.float64), np.minimum(best - second, 1.0)
    labels = coefficients.argmax(axis=0)
    return labels.astype(np.float64), np.where(F.argmax(axis=1) == labels, 1.0, 0.0)


def _choose_trust(parts: Sequence[MergeSource]) -> float:
    if parts[0].model.averaging == 0:
        return _TRUST
    last, average = (sum(part.share * part.model._common["error"][0][iterate] for part in parts) for iterate in range(2))
    advantage = (last - average) / max(math.sqrt(last), last) if average < last else 0.0
    return min(_TRUST * math.exp(_NOISE * advantage), _MOST_TRUST)
