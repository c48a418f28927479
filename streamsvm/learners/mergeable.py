"""Several models as one: what all kinds of models have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from streamsvm.core.steps.iterates import COMMON_RANGES
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.learners.labels import Labels


class MergeSource(NamedTuple):
    """A model of the union, its share, and how its features, outputs and units become those of the union."""

    model: Any
    share: float  # its rows over those of all models
    columns: np.ndarray  # int64 [features]: of its features in the union
    outputs: np.ndarray  # float64 [outputs of the union, its outputs]: how its outputs become those of the union
    factors: np.ndarray
    shifts: np.ndarray  # float64 [features]: how its rows come into the units of the union
    shift: float  # a constant that is added to its outputs, in the unit of the union

    @property
    def coefficients(self) -> np.ndarray:
        """float64 [outputs of the union, m], not weighted by the share."""
        return np.asarray(self.outputs @ np.atleast_2d(self.model.coefficients))

    @property
    def intercept(self) -> np.ndarray:
        """float64 [outputs of the union], not weighted by the share."""
        return np.asarray(self.outputs @ np.atleast_1d(self.model.intercept) + self.shift)


class _ModelUnits(NamedTuple):
    """A model, and how its rows and its target come into the units of the union."""

    model: Any
    units: Mapping[Hashable, tuple[float, float]]
    target: tuple[float, float]


class Mergeable(OnlineEstimator):
    """A model that can merge with others of its kind."""

    #: Parameters in which models that become one may differ.
    _may_differ: ClassVar[frozenset[str]] = frozenset({"max_features", "overflow"})

    def merge_with(
        self,
        *others: Self,
        units: Sequence[Mapping[Any, tuple[float, float]]] | None = None,
        targets: Sequence[tuple[float, float]] | None = None,
        rows: tuple[Any, ...] | None = None,
    ) -> None:
        """Merge other models into this one.

        It becomes the model of all the rows that any of them has learned, in the memory that it has.

        Parameters
        ----------
        *others
            Models of the same class and parameters. Only budget, max_features, overflow, maintenance and seed may differ. The
            other models stay as they are.
        units
            For models whose rows were scaled by different scalers: for this model and then for each other, a mapping of feature
            to the factor and the shift that bring its values into the units of the merged model. None leaves values as they
            are.
        targets
            As ``units``, for the targets: a factor and a shift for each model.
        rows
            Extra rows to fit the coefficients to, ``(X, y)`` or ``(X, y, w)`` as ``learn_many`` takes them. The models must
            have learned their features and labels, and their values must be in the units of the merged model. A sample of the
            rows that the models have learned adds what no support vector can say, for example about places far from the
            boundary. Linear models and detectors accept none.

        Raises
        ------
        ValueError
            A model is of another class, has another value of a parameter or a window of rows (``replay``), or has found a
            ``gamma="scale"`` that differs by more than a quarter; there is no room for the features or labels of all models; or
            a row cannot be fitted. This model stays as it was.

        Notes
        -----
        Let f_p be the decision function of model p that its predictions follow, learned from n_p of all n rows. The union of
        the models is f = sum of n_p / n f_p (Zinkevich et al. 2010, with parts of unequal size). For linear models this is the
        result, except that a weight of exactly 0, as of a feature that a model has not seen, does not count in the mean of that
        weight.

        For support vectors there are two more steps. First, they enter the budget in the order of their coefficients, the
        largest first, and the strategy (``maintenance``) makes room for each. A learner without a strategy keeps those with the
        largest coefficients, whatever it does when its own rows fill the budget; what its paper proves only holds for rows that
        it learned itself.

        Second, the coefficients a are fitted again, because each model knows more near its own support vectors than the mean of
        the models does. They minimise trust |f_a - f|^2 + sum over the support vectors of all models of max(0, m - y f_a)^2.
        Here y is the label of a support vector, and the margin m is 1 if the model that it comes from decides as y, and 0 if
        not. Each row in ``rows`` counts as much as ten support vectors, times its weight, with a margin of 1.

        - With three or more labels, a margin is the distance to the best other label, the second sum counts half, and the fit
          ends a few per cent above the smallest value of the objective.
        - If a model was fitted before, as by this method, the signs of its coefficients are not labels. Then y is what the
          model decides, and m how surely it does, at most 1.
        - For regression, the second sum is over (f_p - f_a)^2. For an anomaly detector there is none.
        - The trust is the mean of k(z, z) over the support vectors z, times .03. This factor is up to 10 if the average
          iterates have erred less than the last ones, which is a sign of noise (see `BSCAClassifier`).

        With ``scaling="auto"``, the moments of each feature are pooled, and support vectors are moved to the pooled scale. Both
        iterates become the merged model, recent errors are the means of those of the models, and counters are summed: learning
        continues with the rates of a model that has learned all rows. The order of the models affects the result by rounding
        and by ties only. The same models in the same order give the same bytes (on one machine, with the same number of BLAS
        threads).

        Merging costs O(m (B d + B^2)) for m support vectors of all models and extra rows, and O(d) for each linear model.

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
        given = [_ModelUnits(*each) for each in zip(models, *moves, strict=True) if each[0].n_learned]
        if not given or (len(given) == 1 and given[0].model is self and not units and not targets and rows is None):
            return
        merged = type(self)(**self._get_params())
        parts = _merge_parts(merged, given, _admit_features(merged, [each.model for each in given]))
        _merge_counts(merged, [each.model for each in given])
        merged._merge_sources(parts, rows)
        _copy_merged_state(self, merged)

    def _check_merge(self, other: Any) -> None:
        """Raise a ValueError unless the other model can become one with this one."""
        if type(other) is not type(self):
            raise ValueError(f"a {type(self).__name__} can be merged with others of its class, not with a {type(other).__name__}")
        theirs = other._get_params()
        for name, value in self._get_params().items():
            if name not in self._may_differ and theirs[name] != value:
                raise ValueError(f"models with {name}={value!r} and {name}={theirs[name]!r} cannot be merged: give both the same")

    @abstractmethod
    def _merge_sources(self, parts: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        """Become the union of parts, as a new model that has learned nothing, but has all their features and labels."""

    def _merge_counters(self, parts: Sequence[MergeSource]) -> None:
        c = self._common
        c["t"] = min(sum(part.model.n_learned for part in parts), COMMON_RANGES["t"][1])
        c["n_merges"] = min(sum(int(part.model._common["n_merges"][0]) for part in parts), COMMON_RANGES["n_merges"][1])
        for name in ("error", "center", "size", "slope", "curvature"):
            c[name] = sum(part.share * part.model._common[name][0][int(part.model.follows_average)] for part in parts)


def _admit_features(merged: Any, models: Sequence[Any]) -> dict[Any, int]:
    # Their columns in a new model.
    names = list(dict.fromkeys(name for model in models for name in model.feature_names))
    if len(names) > merged.max_features:
        raise ValueError(f"the models have {len(names)} features together, more than max_features={merged.max_features}")
    full = [model for model in models if model.overflow == "hash" and len(model.feature_names) == model.max_features]
    if any(model.feature_names != names or model.max_features != merged.max_features for model in full):
        raise ValueError("a model has hashed features into its columns, which are not those of the others: raise max_features")
    merged._features.restore(names)
    merged._features.restore_order(next((order for model in models if (order := model._features.order) is not None), None))
    merged._grow_columns()
    return {name: column for column, name in enumerate(names)}


def _merge_parts(merged: Any, given: Sequence[_ModelUnits], column_of: dict[Any, int]) -> list[MergeSource]:
    labels: Labels | None = getattr(merged, "_labels", None)
    if labels is not None:
        for each in given:
            for label in each.model._labels.seen:
                labels.encode(label)
        if labels.outputs > 1:
            merged._resize(labels.outputs)
    rows = sum(each.model.n_learned for each in given)
    parts = []
    for model, units, (factor, shift) in given:
        outputs = np.full((1, 1), factor) if labels is None else _map_outputs(model._labels, labels)
        columns = np.array([column_of[name] for name in model.feature_names], np.int64)
        moves = np.array([units.get(name, (1.0, 0.0)) for name in model.feature_names], np.float64).reshape(-1, 2).T
        parts.append(MergeSource(model, model.n_learned / rows, columns, outputs, moves[0], moves[1], shift))
    return parts


def _map_outputs(labels: Labels, union: Labels) -> np.ndarray:
    # How the outputs of a model become those of the union: one of two labels has another sign where the other side is positive,
    # and is half of two of more labels.
    if not union.class_labels:
        label = labels.seen[0]
        return np.array([[labels.targets[label] * union.targets[label]]])
    matrix = np.zeros((union.outputs, labels.outputs))
    for label, target in labels.targets.items():
        k = int(union.targets[label])
        if labels.class_labels:
            matrix[k, int(target)] = 1.0
        else:
            matrix[k, 0] = 0.5 * target
    return matrix


def _merge_counts(merged: Any, models: Sequence[Any]) -> None:
    # What a model finds out of its rows besides, and needs to know of others.
    if hasattr(merged, "_first_targets"):
        merged._first_targets = None
    if hasattr(merged, "_labels"):
        merged._ignored = sum(one._ignored for one in models)
    if getattr(merged, "class_weight", None) is not None:
        each = [one._class_weights.list_counts(merged.labels) for one in models]
        merged._class_weights.restore_counts(merged.labels, [sum(of_label) for of_label in zip(*each, strict=True)])


def _copy_merged_state(model: Any, merged: Any) -> None:
    model._features.restore(merged.feature_names)
    model._features.restore_order(merged._features.order)
    model._use_store(merged._store)
    if hasattr(model, "_labels"):
        model._labels.restore_labels(merged.labels)
        model._ignored = merged._ignored
        if model._class_weights is not None:
            model._class_weights.restore_counts(merged.labels, merged._class_weights.list_counts(merged.labels))
    if hasattr(model, "_first_targets"):
        model._first_targets = None
