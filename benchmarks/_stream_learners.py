"""The learners of the suite: all of ours, found by looking, and river's and other peers, each with its defaults."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _peers import CAPYMOA, HEAVY, PEERS, VW, RefittedLightGBM, WindowKNN
from river import (
    base,
    dummy,
    ensemble,
    forest,
    linear_model,
    multiclass,
    naive_bayes,
    neighbors,
    preprocessing,
    rules,
    stats,
    tree,
)

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
    rules.AMRules,
    neighbors.KNNRegressor,
    forest.ARFRegressor,
)
#: Those that take long for a row come last.
SLOW = (
    "AdaptiveRandomForestClassifier",
    "AdaptiveRandomForestRegressor",
    "SOKNL",
    "StreamingRandomPatches",
    "SAMkNN",
    "KNN",
    "StreamingGradientBoostedTrees",
    "RefittedLightGBM",
    "WindowKNN",
    "KNNClassifier",
    "KNNRegressor",
    "ARFClassifier",
    "ARFRegressor",
    "SRPClassifier",
)
#: Those that take targets of any scale; all other regressors get standardised ones.
ANY_SCALE = (
    learners.SVMRegressor,
    dummy.StatisticRegressor,
    tree.HoeffdingAdaptiveTreeRegressor,
    neighbors.KNNRegressor,
    forest.ARFRegressor,
)


@dataclass(frozen=True)
class Learner:
    """A learner: its name, its class, the parameters that are not at their defaults, and its library."""

    name: str
    kind: Callable[..., Any]
    parameters: dict[str, Any]
    library: str

    @property
    def compiles(self) -> bool:
        """Whether its first rows compile what it needs, or load it."""
        return self.library != "river"

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
            return model if self.kind in ANY_SCALE else preprocessing.TargetStandardScaler(model)
        return multiclass.OneVsRestClassifier(model) if n_classes > 2 and not model._multiclass else model


def _kinds() -> dict[str, tuple[Any, str]]:
    # The package's list of learners; tests hold that it names every one.
    ours = {name: getattr(learners, name) for name in sorted(learners.__all__)}
    found: dict[str, tuple[Any, str]] = {
        name: (kind, "streamsvm") for name, kind in ours.items() if issubclass(kind, base.Classifier | base.Regressor)
    }
    peers = {"river": (*RIVER, WindowKNN), "CapyMOA": CAPYMOA, "VW": VW, "LightGBM": (RefittedLightGBM,)}
    for library, kinds in peers.items():
        for kind in kinds:
            name = kind.__name__
            found[f"{library}.{name}" if name in found else name] = kind, library
    return found


def select(texts: list[str]) -> list[Learner]:
    """The learners of the words: ``all`` (``ours`` and ``river``), ``fast``, ``peers`` (``capymoa`` and ``vw``), ``heavy``,
    or a name.

    A name may have parameters: ``Name(parameter=literal)``.

    Raises
    ------
    ValueError
        A word is none of these, the learner refuses its parameters, or its library is missing.
    """
    kinds = _kinds()
    ours, rivers = ([name for name, (_, of) in kinds.items() if of == library] for library in ("streamsvm", "river"))
    rivers.remove("WindowKNN")  # which is heavy
    groups = {
        "all": [*ours, *rivers],
        "ours": ours,
        "river": rivers,
        "fast": [name for name in (*ours, *rivers) if name not in SLOW],
        "peers": [name for names in PEERS.values() for name in names],
        **PEERS,
        "heavy": HEAVY,
    }
    found: dict[str, Learner] = {}
    for text in texts:
        for word in groups.get(text, [text]):
            learner = _learner(word, kinds)
            found[learner.name] = learner
    return sorted(found.values(), key=lambda learner: learner.order)


def _learner(text: str, kinds: dict[str, tuple[Any, str]]) -> Learner:
    parameters: dict[str, Any] = {}
    name = text
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Call) and not node.args:
            name = ast.unparse(node.func)
            parameters = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError):
        pass
    if name not in kinds:
        words = "all, ours, river, fast, peers, capymoa, vw, heavy, Name or Name(parameter=value)"
        raise ValueError(f"no learner {text!r}: give {words} of {', '.join(kinds)}")
    kind, library = kinds[name]
    shown = (
        kind.__name__
        if not parameters
        else f"{kind.__name__}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"
    )
    learner = Learner(shown if library == "streamsvm" else f"{library} {shown}", kind, parameters, library)
    try:
        learner.make(0, 2)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"learner {text!r}: {error}") from None
    return learner


def memory_of(model: Any) -> int:
    """Bytes of a model: of ours the block and its names, of river's all objects that it reaches, of CapyMOA's what Java frees.

    A model of CapyMOA is of no use after that.
    """
    for inner in (getattr(model, "regressor", None), model):
        if hasattr(inner, "forget"):
            return int(inner.forget())
        if hasattr(inner, "nbytes"):
            return int(inner.nbytes)
    if isinstance(model, multiclass.OneVsRestClassifier) and all(hasattr(of, "nbytes") for of in model.classifiers.values()):
        return sum(int(of.nbytes) for of in model.classifiers.values())
    return int(model._raw_memory_usage)
