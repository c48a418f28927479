"""The base of models that can be merged: models that learned different rows become one, in one memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from streamsvm.core.steps.iterates import COMMON_RANGES
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.learners.labels import Labels


class MergeSource(NamedTuple):
    """One of the models to merge, its share, and how its features, outputs and units convert to those of the merged model."""

    model: Any
    share: float
    """The number of its rows, divided by that of all models."""
    columns: np.ndarray
    """int64 [features]: the columns of its features in the merged model."""
    outputs: np.ndarray
    """float64 [outputs of the merged model, its outputs]: the matrix that converts its outputs."""
    factors: np.ndarray
    shifts: np.ndarray
    """float64 [features]: its values, times the factors plus the shifts, are in the units of the merged model."""
    shift: float
    """A constant to add to its outputs, in the unit of the merged model."""

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients of this model, one of several to merge, converted to the decision values (outputs) of the merged
        model: float64 [outputs of the merged model, m].

        They are not multiplied by the model's share of the rows.
        """
        return np.asarray(self.outputs @ np.atleast_2d(self.model.coefficients))

    @property
    def intercept(self) -> np.ndarray:
        """The intercepts of this model, one of several to merge, converted to the decision values (outputs) of the merged model:
        float64 [outputs of the merged model].

        They are not multiplied by the model's share of the rows.
        """
        return np.asarray(self.outputs @ np.atleast_1d(self.model.intercept) + self.shift)


class _ModelUnits(NamedTuple):
    """A model, and the factors and shifts that convert its features and its target to the units of the merged model."""

    model: Any
    units: Mapping[Hashable, tuple[float, float]]
    target: tuple[float, float]


class Mergeable(OnlineEstimator):
    """The base of models that can be merged with others of the same class."""

    #: Parameters that may differ between models to merge.
    _may_differ: ClassVar[frozenset[str]] = frozenset({"max_features", "overflow"})

    def merge_with(
        self,
        *others: Self,
        units: Sequence[Mapping[Any, tuple[float, float]]] | None = None,
        targets: Sequence[tuple[float, float]] | None = None,
        rows: tuple[Any, ...] | None = None,
    ) -> None:
        """Merge ``others``, models of the same class that have learned different rows, into this model, so that it approximates
        one model that has learned all rows. If the models were trained with different scalers, ``units`` converts their features,
        and ``targets`` their targets. ``rows`` are extra rows ``(X, y)`` to fit the result to.

        The size of this model does not change, except for new features and labels.

        Parameters
        ----------
        *others
            Models of the same class and parameters. Only budget, max_features, overflow, maintenance and seed may differ. The
            other models do not change.
        units
            For models behind different scalers: a sequence with an item for this model and for each other model. An item maps
            feature names to the factor and shift that convert values to the units of the merged model. None: no conversion.
        targets
            The same for targets: a factor and a shift for each model.
        rows
            Extra rows to fit the coefficients to, ``(X, y)`` or ``(X, y, w)`` as in ``learn_many``. Their features and labels
            must be known to the models, and their values in the units of the merged model. A sample of the rows that the models
            have learned adds information that support vectors lack, for example about regions far from the boundary. Linear
            models and anomaly detectors do not accept rows.

        Raises
        ------
        ValueError
            A model is of another class, has another value of a parameter, has a window of rows (``replay``), or has estimated a
            ``gamma="scale"`` that differs by more than a quarter; the features or labels of all models exceed the limits of this
            model; or a row is invalid. This model does not change.

        Notes
        -----
        Let f_p be the decision function of model p that its predictions follow, learned from n_p of all n rows. The union of
        the models is f = sum of n_p / n f_p (Zinkevich et al. 2010, with parts of unequal size). For linear models this is the
        result, except that weights of exactly 0, as of features that a model has not seen, are left out of the mean.

        For support vectors there are two more steps. First, they are added to an empty budget in descending order of their
        coefficients, and the strategy (``maintenance``) makes room for each. A learner without a strategy keeps those with the
        largest coefficients, even if its update rule maintains the budget in another way; guarantees of its paper only hold for
        rows that it learned itself.

        Second, the coefficients a are fitted again, because near its own support vectors each model knows more than the mean of
        the models. They minimise trust |f_a - f|^2 + sum over the support vectors of all models of max(0, m - y f_a)^2. Here y is
        the label of a support vector. Its margin m is 1 if its own model decides for y, and otherwise 0. Each of ``rows`` counts
        as much as ten support vectors, times its weight, with a margin of 1.

        - With three or more labels, a margin is the difference to the best other label, the second sum counts half, and the fit
          ends a few per cent above the minimum.
        - If the coefficients of a model were fitted before, as by this method, their signs are not labels. Then y is the decision
          of the model, and m is its decision value, at most 1.
        - For regression, the second sum is over (f_p - f_a)^2. For anomaly detectors it is omitted.
        - The trust is .03 times the mean of k(z, z) over the support vectors z. The factor increases up to 10 if the average
          iterates have made fewer errors than the last ones, which is a sign of noise (see `BSCAClassifier`).

        With ``scaling="auto"``, the moments of each feature are pooled, and support vectors are rescaled accordingly. Both
        iterates become the merged model, recent errors are averaged, and counters are added up: learning continues with the
        learning rates of a model that has learned all rows. The order of the models only affects rounding and ties. The same
        models in the same order give the same bytes (on one machine, with the same number of BLAS threads).

        Merging takes O(m (B d + B^2)) for m support vectors of all models and extra rows, and O(d) for each linear model.

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
        for model in others:
            self._check_merge(model)
        models = self, *others
        conversions = units or [{}] * len(models), targets or [(1.0, 0.0)] * len(models)
        learned = [_ModelUnits(*item) for item in zip(models, *conversions, strict=True) if item[0].n_learned]
        if not learned or (len(learned) == 1 and learned[0].model is self and not units and not targets and rows is None):
            return
        merged = type(self)(**self._get_params())
        sources = _make_sources(merged, learned, _merge_features(merged, [item.model for item in learned]))
        _merge_counts(merged, [item.model for item in learned])
        merged._merge_sources(sources, rows)
        self.__dict__.update(merged.__dict__)  # the parameters are the same

    def _check_merge(self, other: Any) -> None:
        """Raise a ValueError unless the model ``other`` can be merged into this one: it must have the same class and the same
        parameters, except for those that may differ.
        """
        if type(other) is not type(self):
            raise ValueError(f"a {type(self).__name__} can be merged with others of its class, not with a {type(other).__name__}")
        parameters = other._get_params()
        for name, value in self._get_params().items():
            if name not in self._may_differ and parameters[name] != value:
                raise ValueError(
                    f"models with {name}={value!r} and {name}={parameters[name]!r} cannot be merged: give both the same"
                )

    @abstractmethod
    def _merge_sources(self, sources: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        """Compute the learned weights of this new model by merging the trained models in ``sources``. ``rows`` are extra rows
        ``(X, y)`` or ``(X, y, w)`` to fit the result to, or None. The features and labels of all models are registered already.
        """

    def _merge_counters(self, sources: Sequence[MergeSource]) -> None:
        """Set the counters of this merged model, such as its number of rows, to the sums of those of the models in ``sources``,
        and its recent error rates and its probability calibration to their means, weighted by numbers of rows.
        """
        c = self._common
        c["t"] = min(sum(source.model.n_learned for source in sources), COMMON_RANGES["t"][1])
        c["n_merges"] = min(sum(int(source.model._common["n_merges"][0]) for source in sources), COMMON_RANGES["n_merges"][1])
        for name in ("error", "center", "size", "slope", "curvature"):
            c[name] = sum(source.share * source.model._common[name][0][int(source.model.follows_average)] for source in sources)


def _merge_features(merged: Any, models: Sequence[Any]) -> dict[Any, int]:
    """Add the feature names of all ``models`` to the new model ``merged``, and return a dict of feature name to column. Raise a
    ValueError if there are too many, or if features are hashed to columns that differ.
    """
    names = list(dict.fromkeys(name for model in models for name in model.feature_names))
    if len(names) > merged.max_features:
        raise ValueError(f"the models have {len(names)} features together, more than max_features={merged.max_features}")
    hashing = [model for model in models if model.overflow == "hash" and len(model.feature_names) == model.max_features]
    if any(model.feature_names != names or model.max_features != merged.max_features for model in hashing):
        raise ValueError("a model has hashed features into columns that the other models do not share: increase max_features")
    merged._features.restore(names)
    merged._features.restore_order(next((order for model in models if (order := model._features.order) is not None), None))
    merged._grow_columns()
    return {name: column for column, name in enumerate(names)}


def _make_sources(merged: Any, learned: Sequence[_ModelUnits], column_by_name: dict[Any, int]) -> list[MergeSource]:
    """Return a `MergeSource` for each of the models in ``learned``: the model, its share of all rows, and the conversion of its
    features and decision values to those of the new model ``merged``, which gets the labels of all models. ``column_by_name``
    maps feature names to columns of ``merged``.
    """
    labels: Labels | None = getattr(merged, "_labels", None)
    if labels is not None:
        for item in learned:
            for label in item.model._labels.seen:
                labels.encode(label)
        if labels.outputs > 1:
            merged._resize(labels.outputs)
    n_rows = sum(item.model.n_learned for item in learned)
    sources = []
    for model, units, (factor, shift) in learned:
        outputs = np.full((1, 1), factor) if labels is None else _map_outputs(model._labels, labels)
        columns = np.array([column_by_name[name] for name in model.feature_names], np.int64)
        factors, shifts = np.array([units.get(name, (1.0, 0.0)) for name in model.feature_names], np.float64).reshape(-1, 2).T
        sources.append(MergeSource(model, model.n_learned / n_rows, columns, outputs, factors, shifts, shift))
    return sources


def _map_outputs(labels: Labels, merged_labels: Labels) -> np.ndarray:
    """Return the matrix that converts the decision values of a model with ``labels`` to those of a merged model with
    ``merged_labels``, when multiplied by them: float64 [outputs of the merged model, outputs of the model].

    If both have one output, it is 1 or -1, depending on whether their positive labels agree. The single output of two labels
    becomes half of the output of each label in a model with several outputs.
    """
    if not merged_labels.class_labels:
        label = labels.seen[0]
        return np.array([[labels.targets[label] * merged_labels.targets[label]]])
    matrix = np.zeros((merged_labels.outputs, labels.outputs))
    for label, target in labels.targets.items():
        k = int(merged_labels.targets[label])
        if labels.class_labels:
            matrix[k, int(target)] = 1.0
        else:
            matrix[k, 0] = 0.5 * target
    return matrix


def _merge_counts(merged: Any, models: Sequence[Any]) -> None:
    """Set the number of ignored rows and the class counts of the new model ``merged`` to the sums of those of ``models``."""
    if hasattr(merged, "_first_targets"):
        merged._first_targets = None
    if hasattr(merged, "_labels"):
        merged._ignored = sum(model._ignored for model in models)
    if getattr(merged, "class_weight", None) is not None:
        counts = [model._class_weights.list_counts(merged._labels.seen) for model in models]
        merged._class_weights.restore_counts(
            merged._labels.seen, [sum(label_counts) for label_counts in zip(*counts, strict=True)]
        )
