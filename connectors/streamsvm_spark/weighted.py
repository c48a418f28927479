"""A learning loop whose rows have weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from streamsvm.stream.endpoints import Prediction
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.rows import GuardedModel

__all__ = ["Weighted", "WeightedLoop"]


class Weighted(NamedTuple):
    """A label with the weight of its row, in the place of the label."""

    y: Any
    w: float


class WeightedLoop(LearningLoop):
    """Learns rows whose labels are `Weighted`, one by one. The metric counts each row once, whatever its weight.

    Raises
    ------
    ValueError
        The model takes no weights.
    """

    def __init__(self, source: Any, model: Any, metric: Any = None, **how: Any) -> None:
        super().__init__(source, model, metric, **how)
        self._at_once = False
        last = self._guarded.last
        parameters = inspect.signature(last.learn_one).parameters.values()
        if not any(each.name == "w" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            raise ValueError(f"weightCol is set, and {type(last).__name__} takes no weights: take another model, or leave it out")

    def _taker(self, guarded: GuardedModel) -> Callable[[Any, Any], Prediction | None]:
        predict, learn = self._predictor(guarded), self._learner(guarded)

        def take(x: Any, weighted: Weighted) -> Prediction | None:
            seen, label, predicted, probability = predict(x)
            y = learn(x, weighted.y, seen, predicted, w=weighted.w)
            return None if self.sink is None else Prediction(self.rows, label, y, probability)

        return take
