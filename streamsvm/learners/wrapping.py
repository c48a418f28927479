"""Base classes of wrappers around a classifier or regressor, which change its predictions or the scale of its targets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from river import base, compose

from streamsvm.core.checks import validate_target
from streamsvm.core.explaining import Examples, Explanation

#: Probabilities of many rows: a float64 array [rows] for each label.
Probabilities = Mapping[Any, np.ndarray]
#: Weights of many rows, float64 [rows]; None: all weights are 1.
Weights = np.ndarray | None
#: Attributes of the classifier that stream loops read through the wrapper.
_FORWARDED = frozenset({"feature_names", "note_columns", "labels", "max_classes", "overflow", "can_learn_many"})


class ClassifierWrapper(base.Wrapper[base.Classifier], base.Classifier):
    """The base of wrappers around a ``classifier`` that learns as it would without the wrapper.

    A subclass derives its predictions from the classifier's probabilities, or learns from them.
    """

    classifier: base.Classifier

    @property
    def _wrapped_model(self) -> base.Classifier:
        """The wrapped classifier, as river's wrappers call it."""
        return self.classifier

    @property
    def _multiclass(self) -> bool:
        """Whether the wrapped classifier accepts more than two labels."""
        return bool(self.classifier._multiclass)

    @property
    def wrapped_learner(self) -> base.Classifier:
        """The wrapped classifier."""
        return self.classifier

    def __getattr__(self, name: str) -> Any:
        if name in _FORWARDED and "classifier" in self.__dict__:
            return getattr(self.classifier, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def check_one(self, x: dict[Any, Any], y: Any) -> None:
        """Check a row and its label by the classifier's own `check_one`, if it has one, without learning them."""
        if (check := getattr(self.classifier, "check_one", None)) is not None:
            check(x, y)

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn one row, as the classifier does."""
        self.classifier.learn_one(x, y, **kwargs)

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> base.typing.ClfTarget | None:
        """Predict the label of one row, as the classifier does."""
        return self.classifier.predict_one(x, **kwargs)

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Predict the probability of each label of one row, as the classifier does."""
        return self.classifier.predict_proba_one(x, **kwargs)

    def explain_one(
        self,
        x: Mapping[Any, Any],
        typical: Mapping[Any, Any] | None = None,
        groups: Mapping[Any, Hashable] | None = None,
        label: Any = None,
    ) -> Explanation:
        """Return the contribution of each feature to the decision for a row; see the classifier's ``explain_one``.

        By default, it is the decision for the label that the wrapper predicts.
        """
        return explain_wrapped(self.classifier, x, typical, groups, self.predict_one(dict(x)) if label is None else label)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the stored rows of each label that are nearest to a row; see the classifier's ``examples_one``."""
        return find_wrapped_examples(self.classifier, x, n)

    @property
    def predict_then_learn(self) -> Callable[..., tuple[list[Any], Any] | None]:
        """`SVMClassifier.predict_then_learn` with the wrapper's predictions; only for classifiers of this library."""
        predict_wrapped = self.classifier.predict_then_learn  # type: ignore[attr-defined]

        def predict_then_learn(
            X: np.ndarray,
            names: Sequence[Hashable],
            y: Sequence[Any],
            probability: bool | Literal["all"],
            weights: np.ndarray | None = None,
        ) -> tuple[list[Any], Any] | None:
            if not self._can_learn_batch(y) or (predictions := predict_wrapped(X, names, y, "all", weights)) is None:
                return None
            columns: Probabilities = predictions[1]
            labels = self._finish_predictions(predictions[0], columns, y, weights)
            if probability is True:
                return labels, [float(columns[label][i]) if label in columns else None for i, label in enumerate(labels)]
            return labels, columns if probability else None

        return predict_then_learn

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        from river import linear_model  # noqa: PLC0415 - takes a second

        yield {"classifier": linear_model.LogisticRegression()}

    def _merge_within(self, others: Sequence[Any], units: Any) -> None:
        """Merge the wrapped classifiers; raise a ValueError if parameters differ or the classifiers cannot merge."""
        if any(type(model) is not type(self) or _list_own_parameters(model) != _list_own_parameters(self) for model in others):
            raise ValueError("models with different costs or metrics cannot be merged: give all of them the same")
        if not hasattr(self.classifier, "merge_with"):
            raise ValueError(f"models of {type(self.classifier).__name__} cannot be merged")
        self.classifier.merge_with(*(model.classifier for model in others), units=units)

    def _can_learn_batch(self, y: Sequence[Any]) -> bool:  # noqa: ARG002
        """Return whether `predict_then_learn` can process rows with these labels; None marks rows that are only predicted."""
        return True

    def _finish_predictions(self, labels: list[Any], columns: Probabilities, y: Sequence[Any], weights: Weights) -> list[Any]:
        """Return the wrapper's predictions, given the classifier's labels and probabilities; learn from rows that have a label.

        The classifier has predicted and learned the rows. ``y`` has None, or ``weights`` has 0, for rows that were not learned.
        """
        raise NotImplementedError


class RegressorWrapper(base.Wrapper[base.Regressor], base.Regressor):
    """The base of wrappers around a ``regressor``."""

    regressor: base.Regressor

    @property
    def _wrapped_model(self) -> base.Regressor:
        """The wrapped regressor, as river's wrappers call it."""
        return self.regressor

    def check_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Check a target, and the row by the regressor's own `check_one`, if it has one, without learning them."""
        validate_target(y)
        if (check := getattr(self.regressor, "check_one", None)) is not None:
            check(x, y)

    def explain_one(
        self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, groups: Mapping[Any, Hashable] | None = None
    ) -> Explanation:
        """Return the contribution of each feature to the prediction for a row, in the unit of the target."""
        return explain_wrapped(self.regressor, x, typical, groups)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the stored rows that are nearest to a row, with their targets in the original unit."""
        return find_wrapped_examples(self.regressor, x, n)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        from river import linear_model  # noqa: PLC0415 - takes a second

        yield {"regressor": linear_model.LinearRegression()}


def explain_wrapped(
    model: Any, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None, groups: Mapping[Any, Hashable] | None, *label: Any
) -> Explanation:
    """Explain a row by a wrapped model, which may be the last step of a pipeline; raise a ValueError if it cannot explain."""
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
    """Return the examples of a wrapped model, which may end a pipeline; raise a ValueError if it stores no rows."""
    while isinstance(model, compose.Pipeline) and not hasattr(model, "examples_one"):
        x, model = _transform_row(model, x)
    if not hasattr(model, "examples_one"):
        raise ValueError(f"a {type(model).__name__} stores no rows that could be examples")
    examples: Examples = model.examples_one(x, n)
    return examples


def _transform_row(pipeline: compose.Pipeline, x: Any) -> tuple[dict[Any, Any], Any]:
    """Return a row after the transformers of a pipeline, and the last step of the pipeline."""
    if not isinstance(x, Mapping):
        raise ValueError(f"a row must be a mapping of feature names to numbers, not a {type(x).__name__}")
    transformed: tuple[dict[Any, Any], Any] = pipeline._transform_one(dict(x))
    return transformed


def _list_own_parameters(model: Any) -> list[Any]:
    """Return the parameters of a wrapper except for its classifier, in a form that can be compared by ``==``."""
    values = [value for name, value in model._get_params().items() if name != "classifier"]
    return [
        (type(value), {name: nested for name, nested in value._get_params().items() if name != "cm"})
        if isinstance(value, base.Base)
        else value
        for value in values
    ]
