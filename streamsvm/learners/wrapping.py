"""The bases of wrappers of a classifier or a regressor, which learns within as it would alone, or in another unit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from river import base, compose

from streamsvm.core.checks import validate_target
from streamsvm.core.explaining import Examples, Explanation

#: The probabilities of many rows: float64 [rows] by label.
Probabilities = Mapping[Any, np.ndarray]
#: What loops ask a wrapper of its classifier.
_FORWARDED = frozenset({"feature_names", "note_columns", "labels", "max_classes", "overflow", "can_learn_many"})


class ClassifierWrapper(base.Wrapper[base.Classifier], base.Classifier):
    """The base of wrappers of a ``classifier`` that learns as it would alone.

    A subclass predicts by its probabilities, or learns something of these.
    """

    classifier: base.Classifier

    @property
    def _wrapped_model(self) -> base.Classifier:
        return self.classifier

    @property
    def _multiclass(self) -> bool:
        return bool(self.classifier._multiclass)

    @property
    def wrapped_learner(self) -> base.Classifier:
        """The classifier within."""
        return self.classifier

    def __getattr__(self, name: str) -> Any:
        if name in _FORWARDED and "classifier" in self.__dict__:
            return getattr(self.classifier, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def check_one(self, x: dict[Any, Any], y: Any) -> None:
        """Check a row and its label if the classifier has its own `check_one`, without learning it."""
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
        """Return how much each feature of a row moves its decision, as the classifier does, by default of the predicted label."""
        return explain_wrapped(self.classifier, x, typical, groups, self.predict_one(dict(x)) if label is None else label)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the rows of each label that the classifier knows and that are nearest to a row."""
        return find_wrapped_examples(self.classifier, x, n)

    @property
    def predict_then_learn(self) -> Callable[..., tuple[list[Any], Any] | None]:
        """``predict_then_learn`` of a learner of this library, with what this one makes of it; others have none."""
        many = self.classifier.predict_then_learn  # type: ignore[attr-defined]

        def predict_then_learn(
            X: np.ndarray,
            names: Sequence[Hashable],
            y: Sequence[Any],
            probability: bool | Literal["all"],
            weights: np.ndarray | None = None,
        ) -> tuple[list[Any], Any] | None:
            if not self._can_learn_batch(y) or (answers := many(X, names, y, "all", weights)) is None:
                return None
            columns: Probabilities = answers[1]
            decided = self._finish_predictions(answers[0], columns, y, weights)
            if probability is True:
                return decided, [float(columns[label][i]) if label in columns else None for i, label in enumerate(decided)]
            return decided, columns if probability else None

        return predict_then_learn

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        from river import linear_model  # noqa: PLC0415 - takes a second

        yield {"classifier": linear_model.LogisticRegression()}

    def _merge_within(self, others: Sequence[Any], units: Any) -> None:
        """Merge the classifiers of other models into that of this one; a ValueError where something differs, or cannot be."""
        if any(type(other) is not type(self) or _list_own_parameters(other) != _list_own_parameters(self) for other in others):
            raise ValueError("models that choose labels differently cannot be merged: give all the same costs, or metric")
        if not hasattr(self.classifier, "merge_with"):
            raise ValueError(f"models of {type(self.classifier).__name__} cannot be merged")
        self.classifier.merge_with(*(other.classifier for other in others), units=units)

    def _can_learn_batch(self, y: Sequence[Any]) -> bool:  # noqa: ARG002
        """Whether rows with these labels can be taken together; a label None is of a row that is predicted only."""
        return True

    def _finish_predictions(
        self, decided: list[Any], columns: Probabilities, y: Sequence[Any], weights: np.ndarray | None
    ) -> list[Any]:
        """Take rows that the classifier has predicted, ``decided`` with the probabilities ``each``, and learned; their labels."""
        raise NotImplementedError


class RegressorWrapper(base.Wrapper[base.Regressor], base.Regressor):
    """The base of wrappers of a ``regressor``."""

    regressor: base.Regressor

    @property
    def _wrapped_model(self) -> base.Regressor:
        return self.regressor

    def check_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Check a target, and the row if the regressor has its own `check_one`, without learning it."""
        validate_target(y)
        if (check := getattr(self.regressor, "check_one", None)) is not None:
            check(x, y)

    def explain_one(
        self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, groups: Mapping[Any, Hashable] | None = None
    ) -> Explanation:
        """Return how much each feature of a row moves its prediction, as the regressor does, in the unit of the target."""
        return explain_wrapped(self.regressor, x, typical, groups)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the rows that the regressor knows and that are nearest to a row, with their targets as they were given."""
        return find_wrapped_examples(self.regressor, x, n)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        from river import linear_model  # noqa: PLC0415 - takes a second

        yield {"regressor": linear_model.LinearRegression()}


def explain_wrapped(
    model: Any, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None, groups: Mapping[Any, Hashable] | None, *label: Any
) -> Explanation:
    """Explain a row by the model that another one wraps, which may be behind transformers."""
    row = x
    while isinstance(model, compose.Pipeline) and not hasattr(model, "explain_one"):
        typical = None if typical is None else _transformed_row(model, typical)[0]
        x, model = _transformed_row(model, x)
    if not hasattr(model, "explain_one"):
        raise ValueError(f"a {type(model).__name__} explains no decision")
    grouped = () if isinstance(model, compose.Pipeline) else (groups,)  # a table's model has groups of its own
    found: Explanation = model.explain_one(x, typical, *grouped, *label)
    return found if x is row else found.with_values(row)


def find_wrapped_examples(model: Any, x: Mapping[Any, Any], n: int) -> Examples:
    """Return the examples of the model that another one wraps, which may be behind transformers."""
    while isinstance(model, compose.Pipeline) and not hasattr(model, "examples_one"):
        x, model = _transformed_row(model, x)
    if not hasattr(model, "examples_one"):
        raise ValueError(f"a {type(model).__name__} knows no rows")
    found: Examples = model.examples_one(x, n)
    return found


def _transformed_row(pipeline: compose.Pipeline, x: Any) -> tuple[dict[Any, Any], Any]:
    """Return a row as the last step of a pipeline is given it, and that step."""
    if not isinstance(x, Mapping):
        raise ValueError(f"a row must be a mapping of feature names to numbers, not a {type(x).__name__}")
    transformed: tuple[dict[Any, Any], Any] = pipeline._transform_one(dict(x))
    return transformed


def _list_own_parameters(model: Any) -> list[Any]:
    """Return the parameters of a wrapper beside its classifier, so that they can be compared."""
    others = [value for name, value in model._get_params().items() if name != "classifier"]
    return [
        (type(each), {name: value for name, value in each._get_params().items() if name != "cm"})
        if isinstance(each, base.Base)
        else each
        for each in others
    ]
