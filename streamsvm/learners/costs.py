"""Cost-sensitive classification: predict the label with the least expected misclassification cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from river import base

from streamsvm.core.docstrings import complete_docstring
from streamsvm.files.messages import short_repr
from streamsvm.learners.wrapping import ClassifierWrapper, Probabilities, Weights

_MAX_COST = 1e9


@complete_docstring
class CostSensitiveClassifier(ClassifierWrapper):
    """A classifier that predicts the label with the largest product of probability and cost.

    It wraps another classifier, which learns as it would without the wrapper; its probabilities do not change. The cost of a
    label is the cost of predicting another label for one of its rows, so the predicted label has the least expected cost. With
    two labels, costs are equivalent to a probability threshold: with costs of 9 and 1, the first label is predicted if its
    probability is at least 1 / 10.

    Parameters
    ----------
    classifier
        A river classifier that has ``predict_proba_one``.
    costs
        A mapping of label to its misclassification cost, above 0 and at most 1e9. Labels that are not in it cost 1.

    Raises
    ------
    ValueError
        ``classifier`` is not a river classifier, or a cost is out of its range.

    References
    ----------
    Elkan, C. (2001). The foundations of cost-sensitive learning. IJCAI, equation 1, with a cost for each label that is missed.

    Examples
    --------
    >>> import random
    >>> from streamsvm import BSCAClassifier
    >>> from streamsvm.learners.costs import CostSensitiveClassifier
    >>> rng = random.Random(0)
    >>> labels = ["fraud" if rng.random() < 0.05 else "fine" for _ in range(2000)]
    >>> rows = [({"a": rng.gauss(2.0 if y == "fraud" else 0.0, 1.0)}, y) for y in labels]
    >>> model = CostSensitiveClassifier(BSCAClassifier(seed=0), {"fraud": 10.0})
    >>> for x, y in rows:
    ...     model.learn_one(x, y)
    >>> x = {"a": 2.5}
    >>> model.predict_one(x), model.classifier.predict_one(x), round(model.predict_proba_one(x)["fraud"], 1)
    ('fraud', 'fine', 0.3)
    """

    def __init__(self, classifier: base.Classifier, costs: Mapping[Any, float]) -> None:
        self._set_wrapped(classifier, classifier)
        self.costs: dict[Any, float] = validate_costs(costs)

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> base.typing.ClfTarget | None:
        """Predict the label of the row ``x`` with the least expected misclassification cost: the one with the largest product of
        predicted probability and cost.
        """
        probabilities = self.classifier.predict_proba_one(x, **kwargs)
        if not probabilities:
            return self.classifier.predict_one(x, **kwargs)
        return max(probabilities, key=lambda label: self.costs.get(label, 1.0) * probabilities[label])

    def merge_with(self, *others: CostSensitiveClassifier, units: Any = None) -> None:
        """Merge the trained models ``others``, which must have the same costs, into this model, so that it approximates one model
        that has learned the rows of all of them. ``units`` converts features of models with different scalers, as in
        `BSGDClassifier.merge_with`.
        """
        self._merge_within(others, units)

    def _finish_predictions(self, labels: list[Any], columns: Probabilities, y: Sequence[Any], weights: Weights) -> list[Any]:  # noqa: ARG002
        """Return the label with the least expected misclassification cost for each row. ``columns`` maps each label to the
        predicted probabilities of all rows; if it is empty, the ``labels`` that the classifier has predicted are returned. ``y``
        and ``weights`` have no effect.
        """
        if not columns:  # the classifier has not learned a label yet
            return labels
        names, probabilities = list(columns), np.array(list(columns.values()))
        best = (probabilities * np.array([[self.costs.get(label, 1.0)] for label in names])).argmax(axis=0)
        return [names[i] for i in best.tolist()]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._init_from(state)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield from ({**parameters, "costs": {True: 3.0}} for parameters in super()._unit_test_params())


def validate_costs(costs: Any) -> dict[Any, float]:
    """Return a copy of ``costs``, a mapping of label to misclassification cost, with floats. Raise a ValueError that names the
    label if a cost is not a number above 0 and at most 1e9.
    """
    if not isinstance(costs, Mapping) or not costs:
        raise ValueError(f"costs must be a mapping of label to number, such as {{'yes': 5.0}}, not {short_repr(costs)}")
    validated = {}
    for label, cost in costs.items():
        number = cost if isinstance(cost, int | float | np.number) and not isinstance(cost, bool | np.bool_) else math.nan
        if not 0.0 < number <= _MAX_COST:
            raise ValueError(
                f"the cost of {short_repr(label)} must be a number above 0, and at most {_MAX_COST:g}, not {short_repr(cost)}"
            )
        validated[label] = float(number)
    return validated


def compute_threshold_costs(positive: Any, threshold: float) -> dict[Any, float]:
    """Return misclassification costs, as a dict of label to cost, with which a two-class model predicts the label ``positive``
    exactly if its probability is at least ``threshold``.

    >>> compute_threshold_costs("yes", 0.2)
    {'yes': 4.0}
    """
    if not 1e-9 <= threshold < 1.0:
        raise ValueError(f"threshold must lie between 0 and 1, not {short_repr(threshold)}")
    return {positive: (1.0 - threshold) / threshold}
