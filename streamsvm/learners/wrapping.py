"""Base classes of wrappers around a classifier or regressor, which change its predictions or the scale of its targets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from river import base, compose

from streamsvm.core.checks import validate_target
from streamsvm.core.explaining import Examples, Explanation, Groups
from streamsvm.core.mutation import Mutable, compare_parameters
from streamsvm.files.messages import short_repr

#: Probabilities of many rows: a float64 array [rows] for each label.
Probabilities = Mapping[Any, np.ndarray]
#: Weights of many rows, float64 [rows]; None: all weights are 1.
Weights = np.ndarray | None


class ModelWrapper(Mutable):
    """The base of wrappers of classifiers and of regressors."""

    _role: ClassVar[str]
    """The name of the attribute with the wrapped model: ``classifier`` or ``regressor``."""
    _forwarded: ClassVar[frozenset[str]] = frozenset()
    """Attributes of the wrapped model that stream loops read through the wrapper."""
    _predict_then_learn: Callable[..., Any]
    """As `predict_then_learn`; the first parameter is the function of the wrapped model."""

    def _set_wrapped(self, model: Any, last_step: Any) -> None:
        """Set the attribute ``classifier`` or ``regressor`` of this wrapper to ``model``. Raise a ValueError if its ``last_step``
        is not a classifier or regressor of river. It is ``model`` itself for a wrapper that takes no pipelines.
        """
        if not isinstance(last_step, base.Classifier if isinstance(self, base.Classifier) else base.Regressor):
            raise ValueError(f"{self._role} must be a river {self._role}, not {short_repr(model)}")
        setattr(self, self._role, model)

    @property
    def _wrapped_model(self) -> Any:
        """The wrapped model, under the name that river's base class for wrappers requires."""
        return getattr(self, self._role)

    def __getattr__(self, name: str) -> Any:
        if name in self._forwarded or name in ("key", "key_models"):  # of small models of each key
            return getattr(self._wrapped_model, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def predict_then_learn(self) -> Callable[..., Any]:
        """A function that predicts each of many rows before it is learned, in one compiled call, with the parameters of
        `SVMClassifier.predict_then_learn`. It returns the predictions of this wrapper. Raises an AttributeError if the wrapped
        model has no such method, or if this wrapper needs single rows.
        """
        return partial(self._predict_then_learn, self._wrapped_model.predict_then_learn)

    def check_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Raise a ValueError if the target ``y`` is not a finite number, or if the wrapped model would refuse the row ``x`` with
        the label or target ``y``, without learning them. If it has no method `check_one`, only targets are checked.
        """
        if isinstance(self, base.Regressor):
            validate_target(y)
        if (check := getattr(self._wrapped_model, "check_one", None)) is not None:
            check(self._convert_row(x), y)

    def _merge_within(self, others: Sequence[Any], units: Any) -> None:
        """Merge the wrapped models of the wrappers ``others`` into the wrapped model of this one. ``units`` converts features of
        models with different scalers. Raises a ValueError if parameters of the wrappers differ, or if the models cannot be
        merged.
        """
        for model in others:
            twin = copy.copy(model)
            twin._set_wrapped(self._wrapped_model, self._wrapped_model)  # wrapped models may differ in some parameters
            differences = compare_parameters(self, twin)
            if differences.changes or differences.conflicts:
                different = "; ".join(differences.changes + differences.conflicts)
                raise ValueError(f"models with different parameters cannot be merged: give all of them the same ({different})")
        if not hasattr(self._wrapped_model, "merge_with"):
            raise ValueError(f"models of {type(self._wrapped_model).__name__} cannot be merged")
        self._wrapped_model.merge_with(*(model._wrapped_model for model in others), units=units)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the stored rows (or support vectors) of the wrapped model that are nearest to the row ``x``: at most ``n`` of
        each label, or ``n`` with their targets. Raises a ValueError if it stores no rows.
        """
        return find_wrapped_examples(self._wrapped_model, self._convert_row(x), n)

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> Any:
        """Predict the label or target of the row ``x``: by default, the prediction of the wrapped model."""
        return self._wrapped_model.predict_one(self._convert_row(x), **kwargs)

    def explain_one(
        self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, groups: Groups = None, label: Any = None
    ) -> Explanation:
        """Return the contribution of each feature to the wrapped model's decision for the row ``x``, or to its prediction in the
        unit of the target, compared with the row ``typical`` (by default, a typical row of the model). ``groups`` maps features
        to groups that are counted together. ``label`` is the label whose decision is explained, by default the one that this
        wrapper predicts; a regressor has none.
        """
        labels = () if isinstance(self, base.Regressor) else (self.predict_one(dict(x)) if label is None else label,)
        typical = None if typical is None else self._convert_row(typical)
        return explain_wrapped(self._wrapped_model, self._convert_row(x), typical, groups, *labels)

    def _convert_row(self, x: Mapping[Any, Any]) -> Any:
        """Return the row ``x`` as the wrapped model predicts it: by default, unchanged."""
        return x

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        from river import linear_model  # noqa: PLC0415 - takes a second

        is_regressor = issubclass(cls, base.Regressor)
        yield {cls._role: linear_model.LinearRegression() if is_regressor else linear_model.LogisticRegression()}


class ClassifierWrapper(ModelWrapper, base.Wrapper[base.Classifier], base.Classifier):
    """The base of wrappers around a ``classifier`` that learns as it would without the wrapper.

    A subclass derives its predictions from the classifier's probabilities, or learns from them.
    """

    classifier: base.Classifier
    _role = "classifier"
    _forwarded = frozenset({"feature_names", "note_columns", "labels", "max_classes", "overflow", "can_learn_many"})

    @property
    def _multiclass(self) -> bool:
        """Whether the wrapped classifier accepts more than two labels. River reads this attribute."""
        return bool(self.classifier._multiclass)

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn the row ``x`` with the label ``y`` in the wrapped classifier."""
        self.classifier.learn_one(x, y, **kwargs)

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Predict the probability of each label of the row ``x`` with the wrapped classifier, as a dict of label to
        probability.
        """
        return self.classifier.predict_proba_one(self._convert_row(x), **kwargs)

    def _predict_then_learn(
        self, predict: Any, X: np.ndarray, names: Sequence[Hashable], y: Sequence[Any], probability: Any, weights: Weights = None
    ) -> tuple[list[Any], Any] | None:
        if not self._can_learn_batch(y) or (predictions := predict(X, names, y, "all", weights)) is None:
            return None
        columns: Probabilities = predictions[1]
        labels = self._finish_predictions(predictions[0], columns, y, weights)
        if probability is True:
            return labels, [float(columns[label][i]) if label in columns else None for i, label in enumerate(labels)]
        return labels, columns if probability else None

    def _can_learn_batch(self, y: Sequence[Any]) -> bool:  # noqa: ARG002
        """Return whether rows with the labels ``y`` can be predicted and learned in one call; None stands for a row that is only
        predicted. True by default.
        """
        return True

    def _finish_predictions(self, labels: list[Any], columns: Probabilities, y: Sequence[Any], weights: Weights) -> list[Any]:
        """Return this wrapper's predicted labels for rows that the wrapped classifier has predicted as ``labels`` and then
        learned. ``columns`` maps each label to its predicted probabilities [rows]. Subclasses may also learn here from the true
        labels ``y`` and the ``weights`` (None and 0 for rows that were not learned).
        """
        raise NotImplementedError


class RegressorWrapper(ModelWrapper, base.Wrapper[base.Regressor], base.Regressor):
    """The base of wrappers around a ``regressor``."""

    regressor: base.Regressor
    _role = "regressor"


def explain_wrapped(
    model: Any, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None, groups: Groups, *label: Any
) -> Explanation:
    """Return the contribution of each feature to the decision of ``model`` for the row ``x``, by its method ``explain_one``,
    which also receives ``typical``, ``groups`` and ``label`` if passed. If a pipeline has no such method, x is transformed, and
    its last step explains. Raises a ValueError if that has none, either.
    """
    original_row = x
    while isinstance(model, compose.Pipeline) and not hasattr(model, "explain_one"):
        typical = None if typical is None else _transform_row(model, typical)[0]
        x, model = _transform_row(model, x)
    if not hasattr(model, "explain_one"):
        raise ValueError(f"decisions of a {type(model).__name__} cannot be explained: it has no explain_one")
    grouped = () if isinstance(model, compose.Pipeline) else (groups,)  # a TableModel has its own groups
    explanation: Explanation = model.explain_one(x, typical, *grouped, *label)
    return explanation if x is original_row else explanation.with_values(original_row)


def find_wrapped_examples(model: Any, x: Mapping[Any, Any], n: int) -> Examples:
    """Return the stored rows (or support vectors) of ``model`` that are nearest to the row ``x``, at most ``n`` of each label, by
    its method ``examples_one``. If a pipeline has no such method, x is transformed, and its last step is asked. Raises a
    ValueError if that has none, either.
    """
    while isinstance(model, compose.Pipeline) and not hasattr(model, "examples_one"):
        x, model = _transform_row(model, x)
    if not hasattr(model, "examples_one"):
        raise ValueError(f"a {type(model).__name__} stores no rows that could be examples")
    examples: Examples = model.examples_one(x, n)
    return examples


def _transform_row(pipeline: compose.Pipeline, x: Any) -> tuple[dict[Any, Any], Any]:
    """Apply the transformers of a river ``pipeline`` to the row ``x``. Return the transformed row, and the last step of the
    pipeline. Raises a ValueError if x is not a mapping.
    """
    if not isinstance(x, Mapping):
        raise ValueError(f"a row must be a mapping of feature names to numbers, not a {type(x).__name__}")
    transformed: tuple[dict[Any, Any], Any] = pipeline._transform_one(dict(x))
    return transformed
