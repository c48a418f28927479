"""Merging of models with support vectors: their weighted union, reduced to the budget, with refitted coefficients."""

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

_MAX_GAMMA_RATIO = 1.25  # two estimates of gamma="scale" may differ by at most this factor

#: The trust is the weight of the mean of the models, compared with each model's knowledge of its own support vectors: _TRUST
#: without label noise, and more if the average iterate has an advantage over the last one, which is a sign of noise.
_TRUST, _NOISE, _MAX_TRUST = 0.03, 140.0, 10.0
_ROW_WEIGHT = 10.0  # the weight of an extra row in the refit, where a support vector has 1
_MAX_FITTED_VECTORS = 8_000  # of more support vectors, a part is fitted, with a larger weight
_STEPS = 15  # the maximum number of Newton steps and shortened steps
_MIN_STEP_SIZE = 0.05  # the fit ends if no longer step reduces the objective
_MAX_CHANGED = 3e-3  # the fit ends if no more than this fraction of rows has come to violate or satisfy its margin
_CHUNK_ROWS = 2000  # rows whose kernel values are computed at a time
_MAX_CACHED_BYTES = 2**27  # bytes of kernel values that are cached between steps


class MergeableExpansion(Mergeable, BudgetedEstimator):
    """The base of models with support vectors that can be merged with others of the same class.

    The state of an update rule has the field of `FITTED_RANGE` if it learns coefficients whose signs are those of labels. The
    field is 1 once coefficients have been fitted in another way.
    """

    maintenance: Strategy | None
    """The strategy that keeps the model within its budget: `Merge`, `Removal`, `Projection`, or a `Strategy` of your own. None
    is ``Merge("lookup-wd")`` for the Gaussian kernel, and ``Projection()`` for other kernels, which cannot merge.
    """
    seed: int | None
    """Seed of the random choices, for repeatable runs: those of ``Removal("random")``, and of ``reprocess`` and ``replay`` in
    models that have them. None picks a random one.
    """

    _may_differ: ClassVar = Mergeable._may_differ | {"budget", "maintenance", "seed"}

    @property
    def _has_label_signs(self) -> bool:
        """Whether the sign of each coefficient of this model is the label of its support vector. This is True until coefficients
        are set in another way than by learning rows, for example by a merge.
        """
        return "fitted" in (self._rule_record.dtype.names or ()) and not self._rule_record["fitted"][0]

    def _check_merge(self, other: Any) -> None:
        """Raise a ValueError unless the model ``other`` can be merged into this one: it must have the same class and parameters,
        no window of recent rows (``replay``), and a similar estimate of ``gamma="scale"``.
        """
        super()._check_merge(other)
        if getattr(self, "replay", 0):
            raise ValueError("models with a window of rows cannot be merged: its rows are of one stream. Set replay=0")
        gammas = self.effective_gamma, other.effective_gamma
        are_estimated = self.gamma == "scale" and self.scaling is None and self.n_learned and other.n_learned
        if are_estimated and max(gammas) > _MAX_GAMMA_RATIO * min(gammas):
            raise ValueError(
                f'the models have estimated gamma="scale" as {gammas[0]:g} and {gammas[1]:g}, which differ too much to merge: '
                'set gamma to a number, or use scaling="auto"'
            )

    def _merge_sources(self, sources: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        """Compute the learned state of this new model by merging the trained models in ``sources``: collect their support
        vectors, reduce these to the budget, and fit the coefficients again. ``rows`` are extra rows ``(X, y)`` or ``(X, y, w)``
        for this fit, or None.
        """
        can_refit = self._common["loss"][0] in (HINGE, EPSILON_INSENSITIVE)
        if rows is not None and not can_refit:
            raise ValueError(f"a {type(self).__name__} has no labels or targets to fit: merge without rows")
        checked_rows = None if rows is None else check_refit_rows(self, *rows)
        _pool_scale(self, sources)
        self._merge_counters(sources)
        coefficients = np.hstack([source.share * source.coefficients for source in sources])
        intercept = sum(source.share * source.intercept for source in sources)
        vectors = np.zeros((coefficients.shape[1], self._store.used), self._dtype)
        start = 0
        for source in sources:
            vectors[start : start + source.model.n_support, source.columns] = _unscale_vectors(source)
            start += source.model.n_support
        if not len(vectors):  # then there are no coefficients to fit, either
            self.set_coefficients(self._get_coefficients("last"), intercept)
            return
        weights = [source.model._store.views.weights[: source.model.n_support] for source in sources]
        sizes = np.square(coefficients).sum(axis=0)
        order = np.argsort(-sizes, kind="stable")
        if isinstance(self._strategy, Refusal):
            # The update rule maintains the budget, and removes old vectors first: so the largest are added last. Of vectors with
            # equal coefficients, the same number of each model is kept.
            positions = np.concatenate([np.arange(source.model.n_support) for source in sources])
            order = np.lexsort((positions, -sizes))[: self.budget][::-1]
        self._prepare_to_learn()
        sorted_weights = np.concatenate(weights).astype(np.float64)[order]
        sorted_coefficients = np.ascontiguousarray(coefficients[:, order].T)
        if not add_expansion(self._block, vectors[order], np.arange(vectors.shape[1]), sorted_weights, sorted_coefficients):
            self._raise_strategy_error()
        self.set_coefficients(self._get_coefficients("last"), intercept)
        if can_refit:
            _refit_coefficients(self, sources, _make_margin_rows(self, sources, vectors, checked_rows))
            if checked_rows is not None:
                calibrate_probabilities(self, checked_rows)


def _unscale_vectors(source: MergeSource) -> np.ndarray:
    """Return the support vectors of the model in ``source``, one of several to merge, [m, features], converted from its scaled
    features to the units of the merged model. Raise a ValueError if a number exceeds the range of float32.
    """
    model = source.model
    vectors = model.support_vectors
    if model.scaling is not None:
        v, used = model._store.views, model._store.used
        location, spread = compute_current_units(v.moments, v.location, v.spread, used)
        vectors = vectors * spread + location
    if (source.factors != 1.0).any() or source.shifts.any():
        vectors = vectors * source.factors + source.shifts
        if not (np.abs(vectors) <= LARGEST_FLOAT32).all():
            raise ValueError("the models were scaled so differently that support vectors of one exceed the range of float32")
    return np.asarray(vectors, model._dtype)


def _pool_scale(merged: Any, sources: Sequence[MergeSource]) -> None:
    """Set the feature scaling and the gamma of the new model ``merged`` from those of the models in ``sources``, which are merged
    into it: combine their counts, means and variances of each feature.
    """
    v, c, used = merged._store.views, merged._common, merged._store.used
    if merged.scaling is not None:
        views = [(source.model._store.views, source) for source in sources]
        moments = [(*convert_moments(s.moments, s.first, source.factors, source.shifts), source.columns) for s, source in views]
        pool_moments(moments, v.moments, v.first)
        centred = merged.kernel != "rbf"
        update_scale(v.moments, v.location, v.spread, v.ratio, v.shift, used, True, centred, 0)
    if c["gamma_rows"][0] == GAMMA_FOLLOWS_SCALE:
        update_gamma(merged._block, 0)
    elif merged.gamma == "scale":
        first, columns = sources[0].model, sources[0].columns
        v.header["gamma"] = first.effective_gamma
        for name in ("gamma_rows", "deviation"):
            c[name] = first._common[name]
        v.means[columns] = first._store.views.means[: len(columns)]


class _MarginRows(NamedTuple):
    """The rows that coefficients are fitted to, with targets and margins: support vectors of all models, and extra rows."""

    X: np.ndarray  # float64 [n, features], scaled as in the merged model
    targets: np.ndarray
    margins: np.ndarray  # float64 [n]: see `compute_residuals`
    weights: np.ndarray  # float64 [n]


def _make_margin_rows(merged: Any, sources: Sequence[MergeSource], vectors: np.ndarray, rows: RefitRows | None) -> _MarginRows:
    """Return the rows that the coefficients of the new model ``merged`` are fitted to, with targets, margins to reach, and
    weights. They are ``vectors``, the unscaled support vectors of the models in ``sources`` in that order, and the extra ``rows``
    of the caller, if not None.
    """
    every = -(-len(vectors) // _MAX_FITTED_VECTORS)
    is_fitted = np.concatenate([np.arange(source.model.n_support) % every == 0 for source in sources])
    targets, margins = map(
        np.concatenate, zip(*(_label_support_vectors(merged, source, every) for source in sources), strict=True)
    )
    vectors, weights = vectors[is_fitted], np.full(len(targets), float(every))
    if rows is not None:
        margin = 0.0 if merged._common["loss"][0] == EPSILON_INSENSITIVE else 1.0
        vectors = np.vstack([vectors, rows.X])
        targets, margins = np.append(targets, rows.targets), np.append(margins, np.full(len(rows.X), margin))
        weights = np.append(weights, _ROW_WEIGHT * rows.weights)
    X = vectors.astype(np.float64) if merged.scaling is None else merged.scale_in_use.transform(vectors)
    return _MarginRows(X, targets, margins, weights)


def _refit_coefficients(merged: Any, sources: Sequence[MergeSource], rows: _MarginRows) -> None:
    """Fit the coefficients of the new model ``merged`` to ``rows`` by a damped Newton method. A penalty keeps them near the mean
    of the models in ``sources``, which are merged into it.
    """
    kernel, is_regression = read_kernel_parameters(merged), merged._common["loss"][0] == EPSILON_INSENSITIVE
    Z = merged.support_vectors.astype(np.float64)
    start, intercept = merged._get_coefficients("last"), merged.intercept
    gram = compute_kernel_matrix(*kernel, Z, Z)
    penalty = _choose_trust(sources) * float(np.mean(np.diag(gram))) * gram
    chunks = _KernelChunks(kernel, rows.X, Z)
    change, step, size, lowest = np.zeros_like(start), np.zeros_like(start), 1.0, math.inf
    active = np.zeros((len(rows.X), len(start)), bool)
    for _ in range(_STEPS):
        new_change = change + size * step
        F = np.concatenate([K @ (start + new_change).T for _, K in chunks]) + intercept
        residual, new_active = compute_residuals(F, rows.targets, rows.margins, is_regression)
        residual[~new_active] = 0.0
        objective = float(np.sum(new_change * (new_change @ penalty)) + rows.weights @ np.square(residual).sum(axis=1))
        if objective >= lowest:  # outputs are stepped independently, although the best other label depends on all of them
            size *= 0.5
            if size < _MIN_STEP_SIZE:
                break
            continue
        n_changed = np.count_nonzero(new_active != active)
        change, has_converged = new_change, lowest < math.inf and size == 1.0 and n_changed <= _MAX_CHANGED * active.size
        if has_converged:
            break
        lowest, active, size = objective, new_active, 1.0
        equations = NormalEquations.zeros(merged)
        for part, K in chunks:
            equations.add_rows(K, residual[part], new_active[part], rows.weights[part])
        step = equations.solve(penalty, change)
    merged.set_coefficients(start + change, intercept)


class _KernelChunks:
    """Iterates over chunks of a kernel matrix [rows, B], as pairs of slice and values, and caches some of them."""

    def __init__(self, kernel: tuple[int, float, float, int], X: np.ndarray, Z: np.ndarray) -> None:
        self.kernel, self.X, self.Z = kernel, X, Z
        self.cache: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, len(self.X), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            K = self.cache.get(start)
            if K is None:
                K = compute_kernel_matrix(*self.kernel, self.X[rows], self.Z)
                if 8 * (start + _CHUNK_ROWS) * len(self.Z) <= _MAX_CACHED_BYTES:
                    self.cache[start] = K
            yield rows, K


def _label_support_vectors(merged: Any, source: MergeSource, every: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets and the margins for a new fit of coefficients to support vectors of the model in ``source``: two arrays,
    float64 [n], for every ``every``-th vector. A target is the vector's label as a number or, in regression, the model's
    prediction. ``merged`` is the new model that is fitted.

    A label is a sign, or with several outputs an index. In regression, the target is the model's prediction, and the margin is 0.
    """
    model = source.model
    S, coefficients = model.support_vectors.astype(np.float64), source.coefficients[:, ::every]
    K = compute_kernel_matrix(*read_kernel_parameters(model), S[::every], S)
    F = (K @ model.coefficients.T + model.intercept) @ source.outputs.T + source.shift
    if merged._common["loss"][0] == EPSILON_INSENSITIVE:
        return F[:, 0], np.zeros(len(F))
    if F.shape[1] == 1:
        if not model._has_label_signs:
            return np.where(F[:, 0] > 0.0, 1.0, -1.0), np.minimum(np.abs(F[:, 0]), 1.0)
        labels = np.where(coefficients[0] > 0.0, 1.0, -1.0)
        return labels, np.where(labels * F[:, 0] > 0.0, 1.0, 0.0)
    F[:, ~source.outputs.any(axis=1)] = -np.inf
    if not model._has_label_signs:
        second, best = np.sort(F, axis=1)[:, -2:].T
        return F.argmax(axis=1).astype(np.float64), np.minimum(best - second, 1.0)
    labels = coefficients.argmax(axis=0)
    return labels.astype(np.float64), np.where(F.argmax(axis=1) == labels, 1.0, 0.0)


def _choose_trust(sources: Sequence[MergeSource]) -> float:
    """Return the factor of the penalty that keeps newly fitted coefficients near the mean of the models in ``sources``. It is
    larger for noisy labels, which show in fewer errors of the models' averaged coefficients than of the latest ones.
    """
    if sources[0].model.averaging == 0:
        return _TRUST
    last, average = (sum(source.share * source.model._common["error"][0][k] for source in sources) for k in range(2))
    advantage = (last - average) / max(math.sqrt(last), last) if average < last else 0.0
    return min(_TRUST * math.exp(_NOISE * advantage), _MAX_TRUST)
