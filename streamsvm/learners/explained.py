"""What every learner can say of a decision: which features moved it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from streamsvm.core.explaining import Explanation, explanation
from streamsvm.core.steps import iterates
from streamsvm.files.messages import shown


class Explained:
    """The base of learners that explain their decisions."""

    def explain_one(
        self,
        x: Mapping[Any, Any],
        typical: Mapping[Any, Any] | None = None,
        groups: Mapping[Any, Hashable] | None = None,
        label: Any = None,
    ) -> Explanation:
        """Return how much each feature of a row moves its decision, against that of a typical row.

        Two rows are decided for each feature, in one compiled call.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        typical
            The row to compare with. None: the means by which the model scales; of features that it does not scale, 0.
        groups
            What features are of that count together, by their names, as all that an encoder makes of a column. None: each
            feature counts by itself.
        label
            The label whose decision is explained. None: the predicted one.

        Raises
        ------
        ValueError
            A feature is not a finite number, nothing was learned, or there is no such label.
        """
        return _explain(self, x, typical, groups or {}, label)


def _explain(
    model: Any, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None, groups: Mapping[Any, Hashable], label: Any
) -> Explanation:
    if not model.feature_names:
        raise ValueError("the model has learned nothing: there is nothing to explain")
    base = _mean(model) if typical is None else _row(model, typical)[0]
    row, chosen = _row(model, x)
    prediction, place = _predicted(model, chosen) if label is None else (label, _place_of(model, label))

    def decide(rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), 1 if model._outputs == 1 else model._outputs + 1))
        columns = np.arange(rows.shape[1])
        model._decide_matrix(np.require(rows, model._dtype, ["C", "W"]), columns, model._output("auto"), found)
        return found[:, 1 + place] if model._outputs > 1 else found[:, 0] if place else -found[:, 0]

    names, given = _names(model, x)
    return explanation(prediction, decide, row, base, names, groups, given)


def _names(model: Any, x: Mapping[Any, Any]) -> tuple[list[Hashable], dict[Hashable, Any]]:
    """Return the name of each feature, and its value in a row; where names are hashed, those that share a column in the row."""
    names: list[Hashable] = list(model.feature_names)
    if model.overflow != "hash" or len(names) < model.max_features:
        return names, {name: x.get(name, 0.0) for name in names}
    sharing: dict[int, list[Any]] = {}
    for name, column in zip(x, model._features.columns_of(x, False).tolist(), strict=True):
        sharing.setdefault(column, []).append(name)
    for column, found in sharing.items():
        names[column] = found[0] if len(found) == 1 else ", ".join(map(str, found))
    return names, {names[column]: float(sum(x[name] for name in found)) for column, found in sharing.items()}


def _row(model: Any, x: Mapping[Any, Any]) -> tuple[np.ndarray, float]:
    """Return a row as the model reads it, [features], and what it answers."""
    chosen = model._decide_row(x, iterates.CHOSEN)  # or says what is wrong with it
    model._features.fill(model._row, x, False)
    return model._used_row.copy(), chosen


def _mean(model: Any) -> np.ndarray:
    """Return the mean of the rows that were learned, [features], as far as the model scales by it; 0 elsewhere."""
    scale = getattr(model, "scale_in_use", None)
    return np.zeros(len(model._used_row), model._dtype) if scale is None else scale.location.astype(model._dtype)


def _predicted(model: Any, chosen: float) -> tuple[Any, int]:
    """Return what is predicted, and the number of its decision value: of two labels, 1 of the positive and 0 of the other."""
    labels = getattr(model, "_labels", None)
    if labels is None:
        return (chosen if hasattr(model, "predict_one") else None), 1
    return labels.of(chosen), int(chosen) if labels.many else int(chosen > 0.0)


def _place_of(model: Any, label: Any) -> int:
    """Return the number of a label's decision value, as `_predicted`."""
    labels = getattr(model, "_labels", None)
    known = [] if labels is None else labels.many or [labels.of(-1.0), labels.of(1.0)]
    if label not in known:
        raise ValueError(f"the model has no label {shown(label)} to explain")
    return int(known.index(label))
