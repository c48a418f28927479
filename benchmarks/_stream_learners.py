"""The learners of the suite: all of ours, found by looking, and river's, each with its defaults."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from river import base, dummy, ensemble, forest, linear_model, multiclass, naive_bayes, neighbors, preprocessing, stats, tree

from streamsvm import learners

RIVER = (
    dummy.NoChangeClassifier,
    dummy.PriorClassifier,
    naive_bayes.GaussianNB,
    linear_model.LogisticRegression,
    linear_model.PAClassifier,
    tree.HoeffdingAdaptiveTreeClassifier,
    neighbors.KNNClassifier,
    forest.ARFClassifier,
    ensemble.SRPClassifier,
    dummy.StatisticRegressor,
    linear_model.LinearRegression,
    linear_model.PARegressor,
    tree.HoeffdingAdaptiveTreeRegressor,
    neighbors.KNNRegressor,
    forest.ARFRegressor,
)
#: Those that take milliseconds a row come last.
SLOW = ("KNNClassifier", "KNNRegressor", "ARFClassifier", "ARFRegressor", "SRPClassifier")
#: Those that take targets of any scale; all other regressors get standardised ones.
ANY_SCALE = ("SVMRegressor", "StatisticRegressor", "HoeffdingAdaptiveTreeRegressor", "KNNRegressor", "ARFRegressor")


@dataclass(frozen=True)
class Learner:
    """A learner: its name, its class, and the parameters that are not at their defaults."""

    name: str
    kind: Callable[..., Any]
    parameters: dict[str, Any]
    ours: bool

    @property
    def regression(self) -> bool:
        """Whether it predicts numbers."""
        return inspect.isclass(self.kind) and issubclass(self.kind, base.Regressor)

    @property
    def order(self) -> int:
        """Where it comes in a run: the quick ones first, and of the slow ones the slowest last."""
        name = getattr(self.kind, "__name__", "")
        return 1 + SLOW.index(name) if name in SLOW else 0

    def make(self, seed: int, n_classes: int) -> Any:
        """A model: with a seed where it takes one, and for as many classes as the stream has.

        More than two are ``max_classes`` where that is a parameter; a classifier of two is put under one against the rest.
        """
        valid = inspect.signature(self.kind).parameters
        parameters = dict(self.parameters)
        if "seed" in valid:
            parameters.setdefault("seed", seed)
        if n_classes > 2 and "max_classes" in valid:
            parameters.setdefault("max_classes", n_classes)
        if self.kind is dummy.StatisticRegressor:
            parameters = {"statistic": stats.Mean()}
        model = self.kind(**parameters)
        if self.regression:
            return model if self.kind.__name__ in ANY_SCALE else preprocessing.TargetStandardScaler(model)
        return multiclass.OneVsRestClassifier(model) if n_classes > 2 and not model._multiclass else model


def _kinds() -> dict[str, tuple[Any, bool]]:
    # The package's list of learners; tests hold that it names every one.
    ours = {name: getattr(learners, name) for name in sorted(learners.__all__)}
    found = {name: (kind, True) for name, kind in ours.items() if issubclass(kind, base.Classifier | base.Regressor)}
    return {**found, **{kind.__name__: (kind, False) for kind in RIVER}}


def select(texts: list[str]) -> list[Learner]:
    """The learners of the words: ``all``, ``ours``, ``river``, ``fast``, a name, or ``Name(parameter=literal)``.

    Raises
    ------
    ValueError
        A word is none of these, or the learner refuses its parameters.
    """
    kinds = _kinds()
    groups = {
        "all": list(kinds),
        "ours": [name for name, (_, ours) in kinds.items() if ours],
        "river": [name for name, (_, ours) in kinds.items() if not ours],
        "fast": [name for name in kinds if name not in SLOW],
    }
    found: dict[str, Learner] = {}
    for text in texts:
        for word in groups.get(text, [text]):
            learner = _learner(word, kinds)
            found[learner.name] = learner
    return sorted(found.values(), key=lambda learner: learner.order)


def _learner(text: str, kinds: dict[str, tuple[Any, bool]]) -> Learner:
    parameters: dict[str, Any] = {}
    name = text
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            name = node.func.id
            parameters = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError):
        pass
    if name not in kinds:
        raise ValueError(f"no learner {text!r}: give all, ours, river, fast, Name or Name(parameter=value) of {', '.join(kinds)}")
    kind, ours = kinds[name]
    shown = name if not parameters else f"{name}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"
    learner = Learner(shown if ours else f"river {shown}", kind, parameters, ours)
    try:
        learner.make(0, 2)
    except (TypeError, ValueError) as error:
        raise ValueError(f"learner {text!r}: {error}") from None
    return learner


def memory_of(model: Any) -> int:
    """Bytes of a model: of ours the block and its names, of river's all objects that it reaches."""
    for inner in (getattr(model, "regressor", None), model):
        if hasattr(inner, "nbytes"):
            return int(inner.nbytes)
    if isinstance(model, multiclass.OneVsRestClassifier) and all(hasattr(of, "nbytes") for of in model.classifiers.values()):
        return sum(int(of.nbytes) for of in model.classifiers.values())
    return int(model._raw_memory_usage)
