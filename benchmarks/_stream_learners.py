"""The learners of the suite ``streams.py``: all of this package, and peers of river and other libraries, with their defaults."""

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

RIVER_CLASSES = (
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
#: Classes that take long for a row; they run last, in this order.
SLOW_LEARNERS = (
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
#: Regressors that accept targets of any scale; all others get standardised targets.
ANY_TARGET_SCALE = (
    learners.SVMRegressor,
    dummy.StatisticRegressor,
    tree.HoeffdingAdaptiveTreeRegressor,
    neighbors.KNNRegressor,
    forest.ARFRegressor,
)


@dataclass(frozen=True)
class Learner:
    """A learner: its name, its class, the parameters that differ from the defaults, and its library."""

    name: str
    kind: Callable[..., Any]
    parameters: dict[str, Any]
    library: str

    @property
    def needs_warm_up(self) -> bool:
        """Whether its first rows compile or load code, so that they must not be timed."""
        return self.library != "river"

    @property
    def regression(self) -> bool:
        """Whether it is a regressor."""
        return inspect.isclass(self.kind) and issubclass(self.kind, base.Regressor)

    @property
    def run_order(self) -> int:
        """Its position in a run, as a sort key: 0 for quick learners, then the slow ones as `SLOW_LEARNERS` lists them."""
        name = getattr(self.kind, "__name__", "")
        return 1 + SLOW_LEARNERS.index(name) if name in SLOW_LEARNERS else 0

    def make(self, seed: int, n_classes: int) -> Any:
        """Return a new model, with the seed if it has that parameter, for a stream with ``n_classes`` labels.

        For more than two labels, it gets ``max_classes`` if it has that parameter; binary classifiers become one-vs-rest.
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
            return model if self.kind in ANY_TARGET_SCALE else preprocessing.TargetStandardScaler(model)
        return multiclass.OneVsRestClassifier(model) if n_classes > 2 and not model._multiclass else model


def _list_classes() -> dict[str, tuple[Any, str]]:
    # Tests check that `learners.__all__` is complete.
    own_classes = {name: getattr(learners, name) for name in sorted(learners.__all__)}
    classes: dict[str, tuple[Any, str]] = {
        name: (kind, "streamsvm") for name, kind in own_classes.items() if issubclass(kind, base.Classifier | base.Regressor)
    }
    peers = {"river": (*RIVER_CLASSES, WindowKNN), "CapyMOA": CAPYMOA, "VW": VW, "LightGBM": (RefittedLightGBM,)}
    for library, library_classes in peers.items():
        for kind in library_classes:
            name = kind.__name__
            classes[f"{library}.{name}" if name in classes else name] = kind, library
    return classes


def select_learners(texts: list[str]) -> list[Learner]:
    """Return the learners that the words of ``--learners`` select, quick ones first.

    Words: ``all`` (``ours`` and ``river``), ``fast``, ``peers`` (``capymoa`` and ``vw``), ``heavy``, or the name of a class, with
    or without parameters: ``Name(parameter=literal)``.

    Raises
    ------
    ValueError
        If a word is unknown, the learner does not accept its parameters, or its library is missing.
    """
    kinds = _list_classes()
    own_names, river_names = (
        [name for name, (_, of_library) in kinds.items() if of_library == library] for library in ("streamsvm", "river")
    )
    river_names.remove("WindowKNN")  # it is in the group heavy
    groups = {
        "all": [*own_names, *river_names],
        "ours": own_names,
        "river": river_names,
        "fast": [name for name in (*own_names, *river_names) if name not in SLOW_LEARNERS],
        "peers": [name for names in PEERS.values() for name in names],
        **PEERS,
        "heavy": HEAVY,
    }
    learners: dict[str, Learner] = {}
    for text in texts:
        for word in groups.get(text, [text]):
            learner = _make_learner(word, kinds)
            learners[learner.name] = learner
    return sorted(learners.values(), key=lambda learner: learner.run_order)


def _make_learner(text: str, kinds: dict[str, tuple[Any, str]]) -> Learner:
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
        raise ValueError(f"unknown learner {text!r}: use {words}, with a name of {', '.join(kinds)}")
    kind, library = kinds[name]
    description = (
        kind.__name__
        if not parameters
        else f"{kind.__name__}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"
    )
    learner = Learner(description if library == "streamsvm" else f"{library} {description}", kind, parameters, library)
    try:
        learner.make(0, 2)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"learner {text!r}: {error}") from None
    return learner


def measure_memory(model: Any) -> int:
    """Return the bytes of a model: its ``nbytes`` if it has them, the memory that Java frees for CapyMOA, else river's estimate.

    A model of CapyMOA cannot be used afterwards.
    """
    for inner in (getattr(model, "regressor", None), model):
        if hasattr(inner, "forget"):
            return int(inner.forget())
        if hasattr(inner, "nbytes"):
            return int(inner.nbytes)
    if isinstance(model, multiclass.OneVsRestClassifier) and all(hasattr(part, "nbytes") for part in model.classifiers.values()):
        return sum(int(part.nbytes) for part in model.classifiers.values())
    return int(model._raw_memory_usage)
