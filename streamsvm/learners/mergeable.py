"""Several models as one: what all kinds of models have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.learners.labels import Labels

__all__ = ["Mergeable", "Part"]


class Part(NamedTuple):
    """A model of the union, its share, and how its features, outputs and units become those of the union."""

    model: Any
    share: float
    """Its rows over those of all models."""
    columns: np.ndarray
    """int64 [features]: of its features in the union."""
    outputs: np.ndarray
    """float64 [outputs of the union, its outputs]: how its outputs become those of the union."""
    factors: np.ndarray
    shifts: np.ndarray
    """float64 [features]: how its rows come into the units of the union."""
    shift: float
    """A constant that is added to its outputs, in the unit of the union."""

    @property
    def coefficients(self) -> np.ndarray:
        """float64 [outputs of the union, m], not weighted by the share."""
        return np.asarray(self.outputs @ np.atleast_2d(self.model.coefficients))

    @property
    def intercept(self) -> np.ndarray:
        """float64 [outputs of the union], not weighted by the share."""
        return np.asarray(self.outputs @ np.atleast_1d(self.model.intercept) + self.shift)


class _Given(NamedTuple):
    """A model, and how its rows and its target come into the units of the union."""

    model: Any
    units: Mapping[Hashable, tuple[float, float]]
    target: tuple[float, float]


class Mergeable(OnlineEstimator):
    """A model that can take in what others of its kind have learned."""

    #: Parameters in which models that become one may differ.
    _free: ClassVar[frozenset[str]] = frozenset({"max_features", "overflow"})

    def merge_with(
        self,
        *others: Self,
        units: Sequence[Mapping[Any, tuple[float, float]]] | None = None,
        targets: Sequence[tuple[float, float]] | None = None,
        rows: tuple[Any, ...] | None = None,
    ) -> None:
        """Become the model of all the rows that this model and others have learned, in the memory of this one.

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
        rows
            ``(X, y)`` or ``(X, y, w)``, as ``learn_many`` takes them, of features and labels that the models have learned, in the
            units of the model that results: rows that the coefficients are fitted to besides. A sample of those that the models
            have learned tells what no support vector does, as far from the boundary. Linear models and detectors take none.

        Raises
        ------
        ValueError
            A model is of another class, has another value of a parameter or a window of rows (``replay``), or has found a
            ``gamma="scale"`` that differs by more than a quarter; there is no room for the features or labels of all; or a row
            cannot be fitted. This model is as it was then.

        Notes
        -----
        The decision function of model p is f_p, the one that its predictions follow, and n_p rows have made it. The union is f =
        sum of n_p / n f_p (Zinkevich et al. 2010, with parts of unequal size). Of linear models that is all, but that a weight of
        exactly 0, as of a feature that a model has not seen, does not count in the mean of that weight.

        The support vectors of the union come into the budget in the order of their coefficients, the largest first, each by an
        event of the strategy (``maintenance``). A rule without one keeps those with the largest coefficients, whatever it does
        where its own rows fill the budget; what its paper proves holds of its own rows alone. Then the coefficients a are fitted
        once more, for a mean of models knows less than each of them near its own support vectors: they make |f_a - f|^2 trust +
        sum over the support vectors of all models of max(0, m - y f_a)^2 smallest, where y is the label of a support vector, and
        the margin m is 1 where the model that it is from decides as y, and else 0. A row that is given counts as ten support
        vectors do, times its weight; its margin is 1. From the third label on, each margin is that to the best other label, the
        second sum counts half, and the objective ends some percent above its smallest value. Of a model whose coefficients were
        fitted before, as here, their signs are no labels: y is what the model decides, and m how surely, at most 1. Of numbers,
        the second sum is over (f_p - f_a)^2; an anomaly detector has none. The trust is .03, and up to 10 where the average
        iterates have erred less than the last ones, which is a sign of noise (see `BSCAClassifier`), times the mean of k(z, z)
        over the support vectors z.

        With ``scaling="auto"``, the moments of each feature are pooled, and support vectors are brought to that scale. Both
        iterates become the model, recent errors are the means of theirs, and counters are summed: learning goes on with the
        rates of a model that has learned all rows. The result depends on the order of the models by rounding and by ties; the
        same models in the same order give the same bytes (on one machine, with as many threads of its BLAS).

        It costs O(m (B d + B^2)) for m support vectors of all models and rows that are given, and O(d) for each linear model.

        References
        ----------
        Zinkevich, M., Weimer, M., Li, L., Smola, A. (2010). Parallelized stochastic gradient descent. NIPS.

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
            self._check_merge(other)
        models = self, *others
        moves = units or [{}] * len(models), targets or [(1.0, 0.0)] * len(models)
        given = [_Given(*each) for each in zip(models, *moves, strict=True) if each[0].n_learned]
        if not given or (len(given) == 1 and given[0].model is self and not units and not targets and rows is None):
            return
        merged = type(self)(**self._get_params())
        parts = _parts(merged, given, _admit_features(merged, [each.model for each in given]))
        _take_facts(merged, [each.model for each in given])
        merged._take(parts, rows)
        _become(self, merged)

    def _check_merge(self, other: Any) -> None:
        """Raise a ValueError unless the other model can become one with this one."""
        if type(other) is not type(self):
            raise ValueError(f"a {type(self).__name__} can be merged with others of its class, not with a {type(other).__name__}")
        theirs = other._get_params()
        for name, value in self._get_params().items():
            if name not in self._free and theirs[name] != value:
                raise ValueError(
                    f"models with {name}={value!r} and {name}={theirs[name]!r} cannot become one: give both the same"
                )

    @abstractmethod
    def _take(self, parts: Sequence[Part], rows: tuple[Any, ...] | None) -> None:
        """Become the union of parts, as a new model that has learned nothing, but has all their features and labels."""

    def _take_counters(self, parts: Sequence[Part]) -> None:
        c = self._common
        c["t"] = sum(part.model.n_learned for part in parts)
        c["n_merges"] = sum(int(part.model._common["n_merges"][0]) for part in parts)
        for name in ("error", "center", "size", "slope", "curvature"):
            c[name] = sum(part.share * part.model._common[name][0][int(part.model.averaged)] for part in parts)


def _admit_features(merged: Any, models: Sequence[Any]) -> dict[Any, int]:
    # Their columns in a new model.
    names = list(dict.fromkeys(name for model in models for name in model.feature_names))
    if len(names) > merged.max_features:
        raise ValueError(f"the models have {len(names)} features together, more than max_features={merged.max_features}")
    full = [model for model in models if model.overflow == "hash" and len(model.feature_names) == model.max_features]
    if any(model.feature_names != names or model.max_features != merged.max_features for model in full):
        raise ValueError("a model has hashed features into its columns, which are not those of the others: raise max_features")
    merged._features.restore(names)
    merged._store.used = len(names)
    return {name: column for column, name in enumerate(names)}


def _parts(merged: Any, given: Sequence[_Given], column_of: dict[Any, int]) -> list[Part]:
    labels: Labels | None = getattr(merged, "_labels", None)
    if labels is not None:
        for each in given:
            for label in each.model._labels.seen:
                labels.target(label)
        if labels.outputs > 1:
            merged._resize(labels.outputs)
    rows = sum(each.model.n_learned for each in given)
    parts = []
    for model, units, (factor, shift) in given:
        outputs = np.full((1, 1), factor) if labels is None else _outputs_of(model._labels, labels)
        columns = np.array([column_of[name] for name in model.feature_names], np.int64)
        moves = np.array([units.get(name, (1.0, 0.0)) for name in model.feature_names], np.float64).reshape(-1, 2).T
        parts.append(Part(model, model.n_learned / rows, columns, outputs, moves[0], moves[1], shift))
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


def _take_facts(merged: Any, models: Sequence[Any]) -> None:
    # What a model finds out of its rows besides, and needs to know of others.
    if hasattr(merged, "_first_targets"):
        merged._first_targets = None
    if getattr(merged, "class_weight", None) is not None:
        each = [one._class_weights.counts_of(merged.labels) for one in models]
        merged._class_weights.restore(merged.labels, [sum(of_label) for of_label in zip(*each, strict=True)])


def _become(model: Any, merged: Any) -> None:
    model._block[:] = merged._block  # of the same parameters, and so of the same size
    model._features.restore(merged.feature_names)
    model._outputs, model._ready = merged._outputs, False
    if hasattr(model, "_labels"):
        model._labels.restore(merged.labels)
        if model._class_weights is not None:
            model._class_weights.restore(merged.labels, merged._class_weights.counts_of(merged.labels))
    if hasattr(model, "_first_targets"):
        model._first_targets = None
