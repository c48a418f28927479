"""Several models as one: the weighted union of their support vectors, brought down to the budget, and fitted once more."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from streamsvm.kernels import kernel_matrix
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.compiled.expansion import expand
from streamsvm.learners.compiled.iterates import EPSILON_INSENSITIVE, HINGE
from streamsvm.learners.compiled.rescale import scale_moved, units_of
from streamsvm.learners.compiled.scaled_rows import FOLLOWS
from streamsvm.learners.labels import Labels
from streamsvm.learners.refit import add_equations, kernel_of, residuals, solved
from streamsvm.memory.moments import move_moments, pool_moments

__all__ = ["Mergeable"]

#: Parameters in which models that become one may differ.
_FREE = {"budget", "max_features", "overflow", "maintenance", "seed"}
_NEAR = 1.25  # the most by which two values of gamma="scale" may differ, as a factor

#: How much the mean of the models counts against what each knew of its own support vectors: the first where labels are clean,
#: and more by the advantage of the average iterate, which says that they are noisy.
_TRUST, _NOISE, _MOST_TRUST = 0.03, 140.0, 10.0
_STEPS = 10  # of Newton's method, which ends earlier where the same rows are short of their margins
_CHUNK = 2000  # rows whose kernel values are held at once


class _Part(NamedTuple):
    """What one model brings into the union, in its order of columns and outputs."""

    model: Any
    share: float
    """Its rows over those of all models."""
    columns: np.ndarray
    """int64 [features]: of its features in the union."""
    outputs: np.ndarray
    """float64 [outputs of the union, its outputs]: how its outputs become those of the union."""
    vectors: np.ndarray
    """float32 [m, features], as rows are given."""
    coefficients: np.ndarray
    """float64 [outputs of the union, m], not weighted by the share."""
    factors: np.ndarray
    shifts: np.ndarray
    """float64 [features]: how its rows come into the units of the union."""
    shift: float
    """What is added to its outputs, in the unit of the union."""


class _Given(NamedTuple):
    """A model, and how its rows and its target come into the units of the union."""

    model: Any
    units: Mapping[Hashable, tuple[float, float]]
    target: tuple[float, float]


class Mergeable(BudgetedEstimator):
    """A model that can take in what others of its kind have learned. The state of its rule has the field `FITTED`."""

    def set_coefficients(self, coefficients: Any, intercept: Any = 0.0) -> None:
        """Make both iterates a model with other coefficients of the same support vectors: see `BudgetedEstimator`."""
        super().set_coefficients(coefficients, intercept)
        self._own["fitted"] = 1

    def merge_with(
        self,
        *others: Self,
        units: Sequence[Mapping[Hashable, tuple[float, float]]] | None = None,
        targets: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        """Become the model of all the rows that this model and others have learned, within the budget of this one.

        Parameters
        ----------
        *others
            Models of the same class and parameters, but for budget, max_features, overflow, maintenance and seed. They stay as
            they are.
        units
            Where the rows of each were scaled by another scaler: of this model and of each other, the factor and the shift by
            which values of a feature come into the units of the model that results. None: into those they have.
        targets
            As ``units``, of the targets.

        Raises
        ------
        ValueError
            A model is of another class, has another value of a parameter or a window of rows (``replay``), or has found a
            ``gamma="scale"`` that differs by more than a quarter; or there is no room for the features or labels of all. This
            model is as it was then.

        Notes
        -----
        The decision function of model p is f_p, the one that its predictions follow, and n_p rows have made it. The union is
        f = sum of n_p / n f_p. Its support vectors come into the budget in the order of their coefficients, the largest first,
        each by an event of the strategy (``maintenance``). Then the coefficients a are fitted once more, for a mean of models
        knows less than each of them near its own support vectors: they make |f_a - f|^2 trust + sum over the support vectors of
        all models of max(0, m - y f_a)^2 smallest, where y is the label of a support vector, and the margin m is 1 where the
        model that it is from decides as y, and else 0. From the third label on, each margin is that to the best other label. Of a
        model whose coefficients were fitted before, as here, their signs are no labels: y is what the model decides, and m how
        surely, at most 1.
        Of numbers, the second sum is over (f_p - f_a)^2; an anomaly detector has none. The trust is .03, and up to 10 where the
        average iterates have erred less than the last ones, which is a sign of noise: see `BSCAClassifier`.

        With ``scaling="auto"``, the moments of each feature are pooled, and support vectors are brought to that scale. Both
        iterates become the model, recent errors are the means of theirs, and counters are summed: learning goes on with the
        rates of a model that has learned all rows. The result depends on the order of the models by rounding and by ties; the
        same models in the same order give the same bytes (on one machine, with as many threads of its BLAS).

        It costs O(m (B d + B^2)) for m support vectors of all models.

        Examples
        --------
        >>> from river import datasets
        >>> from streamsvm import BSGDClassifier
        >>> model, other = BSGDClassifier(budget=50), BSGDClassifier(budget=50)
        >>> for number, (x, y) in enumerate(datasets.Bananas()):
        ...     (other if number % 2 else model).learn_one(x, y)
        >>> model.merge_with(other)
        >>> model.n_learned, model.n_support
        (5300, 50)
        """
        for other in others:
            _check(self, other)
        models = self, *others
        moves = units or [{}] * len(models), targets or [(1.0, 0.0)] * len(models)
        given = [_Given(*each) for each in zip(models, *moves, strict=True) if each[0].n_learned]
        if not given or (len(given) == 1 and given[0].model is self and not units and not targets):
            return
        merged = type(self)(**self._get_params())
        _fill(merged, given)
        _become(self, merged, [each.model for each in given])


def _become(model: Any, merged: Any, models: list[Any]) -> None:
    counts: list[int] = []
    if getattr(model, "class_weight", None) is not None:
        each = [one._class_weights.counts_of(merged.labels) for one in models]
        counts = [sum(of_label) for of_label in zip(*each, strict=True)]
    model._store.restore(merged._store.snapshot(), trusted=True)
    model._features.restore(merged.feature_names)
    model._outputs, model._ready = merged._outputs, False
    if hasattr(model, "_labels"):
        model._labels.restore(merged.labels)
        if model._class_weights is not None:
            model._class_weights.restore(merged.labels, counts)
    if hasattr(model, "_first_targets"):
        model._first_targets = None


def _check(model: Any, other: Any) -> None:
    if type(other) is not type(model):
        raise ValueError(f"a {type(model).__name__} can be merged with others of its class, not with a {type(other).__name__}")
    ours, theirs = model._get_params(), other._get_params()
    for name, value in ours.items():
        if name not in _FREE and theirs[name] != value:
            raise ValueError(f"models with {name}={value!r} and {name}={theirs[name]!r} cannot become one: give both the same")
    if ours.get("replay", 0):
        raise ValueError("models with a window of rows cannot become one: its rows are of one stream. Give them replay=0")
    gammas = model.effective_gamma, other.effective_gamma
    found = model.gamma == "scale" and model.scaling is None and model.n_learned and other.n_learned
    if found and max(gammas) > _NEAR * min(gammas):
        raise ValueError(
            f'the models have found gamma="scale" to be {gammas[0]:g} and {gammas[1]:g}, too far apart to become one: '
            'give a gamma that is a number, or scaling="auto"'
        )


def _fill(merged: Any, given: list[_Given]) -> None:
    # Make a new model that of the rows of others.
    models = [each.model for each in given]
    names = list(dict.fromkeys(name for model in models for name in model.feature_names))
    if len(names) > merged.max_features:
        raise ValueError(f"the models have {len(names)} features together, more than max_features={merged.max_features}")
    full = [model for model in models if model.overflow == "hash" and len(model.feature_names) == model.max_features]
    if any(model.feature_names != names or model.max_features != merged.max_features for model in full):
        raise ValueError("a model has hashed features into its columns, which are not those of the others: raise max_features")
    merged._features.restore(names)
    merged._store.used = len(names)
    parts = _parts(merged, given, {name: column for column, name in enumerate(names)})
    _set_scale(merged, parts)
    _set_counters(merged, parts)
    coefficients = np.hstack([part.share * part.coefficients for part in parts])
    intercept = sum(part.share * (part.outputs @ part.model.intercept + part.shift) for part in parts)
    vectors = np.zeros((coefficients.shape[1], len(names)), np.float32)
    first = 0
    for part in parts:
        vectors[first : first + len(part.vectors), part.columns] = part.vectors
        first += len(part.vectors)
    if not len(vectors):
        merged.set_coefficients(merged._coefficients_of("last"), intercept)
        return
    weights = np.concatenate([part.model._store.views.weights[: len(part.vectors)] for part in parts]).astype(np.float64)
    order = np.argsort(-np.square(coefficients).sum(axis=0), kind="stable")
    merged._get_ready()
    sorted_coefficients = np.ascontiguousarray(coefficients[:, order].T)
    if not expand(merged._block, vectors[order], np.arange(len(names)), weights[order], sorted_coefficients):
        merged._complain_of_strategy()
    merged.set_coefficients(merged._coefficients_of("last"), intercept)
    if merged._common["loss"][0] in (HINGE, EPSILON_INSENSITIVE):
        _fit_again(merged, parts, vectors)


def _parts(merged: Any, given: list[_Given], column_of: dict[Any, int]) -> list[_Part]:
    models = [each.model for each in given]
    labels: Labels | None = getattr(merged, "_labels", None)
    if labels is not None:
        for model in models:
            for label in model._labels.seen:
                labels.target(label)
        if labels.outputs > 1:
            merged._resize(labels.outputs)
    rows = sum(model.n_learned for model in models)
    parts = []
    for model, units, (factor, shift) in given:
        outputs = np.full((1, 1), factor) if labels is None else _outputs_of(model._labels, labels)
        columns = np.array([column_of[name] for name in model.feature_names], np.int64)
        vectors = model.support_vectors
        if model.scaling is not None:
            v, used = model._store.views, model._store.used
            location, spread = units_of(v.moments, v.location, v.spread, used)
            vectors = (vectors * spread + location).astype(np.float32)
        moves = np.array([units.get(name, (1.0, 0.0)) for name in model.feature_names], np.float64).reshape(-1, 2).T
        if units:
            vectors = (vectors * moves[0] + moves[1]).astype(np.float32)
            if not np.isfinite(vectors).all():
                raise ValueError("the models were scaled so differently that support vectors of one are beyond float32")
        parts.append(
            _Part(
                model, model.n_learned / rows, columns, outputs, vectors, outputs @ model.coefficients, moves[0], moves[1], shift
            )
        )
    return parts


def _outputs_of(labels: Labels, union: Labels) -> np.ndarray:
    # How the outputs of a model become those of the union: one of two labels has another sign where the other side is positive,
    # and is half of two of more labels.
    if not union.many:
        label = labels.seen[0]
        return np.array([[labels.targets[label] * union.targets[label]]])
    matrix = np.zeros((union.outputs, labels.outputs))
    for label, target in labels.targets.items():
        k = int(union.targets[label])
        if labels.many:
            matrix[k, int(target)] = 1.0
        else:
            matrix[k, 0] = 0.5 * target
    return matrix


def _set_scale(merged: Any, parts: list[_Part]) -> None:
    v, c, used = merged._store.views, merged._common, merged._store.used
    if merged.scaling is not None:
        of = [(part.model._store.views, part) for part in parts]
        moments = [(*move_moments(o.moments, o.first, part.factors, part.shifts), part.columns) for o, part in of]
        pool_moments(moments, v.moments, v.first)
        centred = merged.kernel != "rbf"
        scale_moved(v.moments, v.location, v.spread, v.ratio, v.shift, used, True, centred, 0)
    if c["gamma_rows"][0] == FOLLOWS:
        v.header["gamma"] = 1.0 / max(used, 1)
    elif merged.gamma == "scale":
        first = parts[0]
        c_first = first.model._common
        v.header["gamma"], c["gamma_rows"], c["deviation"] = (
            first.model.effective_gamma,
            c_first["gamma_rows"],
            c_first["deviation"],
        )
        v.means[first.columns] = first.model._store.views.means[: len(first.columns)]


def _set_counters(merged: Any, parts: list[_Part]) -> None:
    c = merged._common
    c["t"] = sum(part.model.n_learned for part in parts)
    c["n_merges"] = sum(part.model.n_merges for part in parts)
    for name in ("error", "center", "size", "slope", "curvature"):
        c[name] = sum(part.share * part.model._common[name][0][int(part.model.averaged)] for part in parts)


def _fit_again(merged: Any, parts: list[_Part], vectors: np.ndarray) -> None:
    kernel, numbers = kernel_of(merged), merged._common["loss"][0] == EPSILON_INSENSITIVE
    X = vectors.astype(np.float64) if merged.scaling is None else merged.scale_in_use.of(vectors)
    Z = merged.support_vectors.astype(np.float64)
    labels, margins = (np.concatenate(numbers) for numbers in zip(*(_own_answers(merged, part) for part in parts), strict=True))
    a0, b = merged._coefficients_of("last").T, merged.intercept
    between = kernel_matrix(*kernel, Z, Z)
    penalty = _trust(parts) * float(np.mean(np.diag(between))) * between
    a, before = a0.copy(), None
    chunks = [slice(begin, begin + _CHUNK) for begin in range(0, len(X), _CHUNK)]
    for _ in range(_STEPS):
        F = np.vstack([kernel_matrix(*kernel, X[rows], Z) @ a for rows in chunks]) + b
        residual, active = residuals(F, labels, margins, numbers)
        if before is not None and (active == before).all():
            break
        step = np.empty_like(a)
        for k in range(a.shape[1]):
            A, g = penalty.copy(), penalty @ (a0[:, k] - a[:, k])
            for rows in chunks:
                some = np.flatnonzero(active[rows, k]) + rows.start
                add_equations(A, g, kernel_matrix(*kernel, X[some], Z), residual[some, k])
            step[:, k] = solved(A, g)
        a, before = a + step, active
    merged.set_coefficients(a.T, b)


def _own_answers(merged: Any, part: _Part) -> tuple[np.ndarray, np.ndarray]:
    # Of each support vector of a model: its label, as a sign or the number of an output, and the margin that the model is asked
    # for; of numbers what the model says, and 0.
    model = part.model
    S = model.support_vectors.astype(np.float64)
    own = kernel_matrix(*kernel_of(model), S, S) @ model.coefficients.T + model.intercept
    F = own @ part.outputs.T + part.shift
    if merged._common["loss"][0] == EPSILON_INSENSITIVE:
        return F[:, 0], np.zeros(len(F))
    if F.shape[1] == 1:
        if model._own["fitted"][0]:
            return np.where(F[:, 0] > 0.0, 1.0, -1.0), np.minimum(np.abs(F[:, 0]), 1.0)
        labels = np.where(part.coefficients[0] > 0.0, 1.0, -1.0)
        return labels, np.where(labels * F[:, 0] > 0.0, 1.0, 0.0)
    F[:, ~part.outputs.any(axis=1)] = -np.inf
    if model._own["fitted"][0]:
        second, best = np.sort(F, axis=1)[:, -2:].T
        return F.argmax(axis=1).astype(np.float64), np.minimum(best - second, 1.0)
    labels = part.coefficients.argmax(axis=0)
    return labels.astype(np.float64), np.where(F.argmax(axis=1) == labels, 1.0, 0.0)


def _trust(parts: list[_Part]) -> float:
    if parts[0].model.averaging == 0:
        return _TRUST
    last, average = (sum(part.share * part.model._common["error"][0][iterate] for part in parts) for iterate in range(2))
    advantage = (last - average) / max(math.sqrt(last), last) if average < last else 0.0
    return min(_TRUST * math.exp(_NOISE * advantage), _MOST_TRUST)
