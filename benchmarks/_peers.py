"""Learners of other libraries as peers of the suite: of CapyMOA, which is Java, of Vowpal Wabbit, and LightGBM, fitted anew.

``pip install -e '.[benchmark]'`` installs all; CapyMOA needs Java 17, too. They take the same rows as all others, as dicts, and
turn each into what their library takes; that is in their time. No library is imported before a model needs it.
"""

from __future__ import annotations

import gc
import os
import shutil
from abc import ABC, abstractmethod
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from river import base, neighbors

Row = dict[Any, float]

#: What a word of ``--learners`` stands for. Ensembles have ten trees, as river's; all else is at the library's defaults.
PEERS = {
    "capymoa": [
        "AdaptiveRandomForestClassifier(ensemble_size=10)",
        "StreamingRandomPatches(ensemble_size=10)",
        "SAMkNN",
        "KNN",
        "HoeffdingAdaptiveTree",
        "AdaptiveRandomForestRegressor(ensemble_size=10)",
        "SOKNL(ensemble_size=10)",
        "CapyMOA.KNNRegressor",
        "FIMTDD",
    ],
    "vw": ["OAA", "OAA(q='::')"],
}
#: Those that take hundreds or thousands of microseconds a row, each as large as its authors have it.
HEAVY = [
    "AdaptiveRandomForestClassifier(ensemble_size=100)",
    "StreamingRandomPatches(ensemble_size=100)",
    "StreamingGradientBoostedTrees",
    "KNN(window_size=5000)",
    "WindowKNN",
    "RefittedLightGBM",
]
#: The flags that CapyMOA starts Java with, and one that leaves Ctrl-C to Python: an interrupted suite saves what it has.
JAVA_FLAGS = "-Xmx8g -Xss10M -Xrs"


def versions() -> dict[str, str]:
    """The versions of the packages that are installed."""
    return {package: version(package) for package in ("capymoa", "lightgbm", "vowpalwabbit") if find_spec(package)}


def _need(package: str) -> None:
    """Raise ValueError if a package is missing."""
    if find_spec(package) is None:
        raise ValueError(f"{package} is missing: pip install -e '.[benchmark]'")


class _Peer(base.Classifier, ABC):
    """A classifier that knows labels by their numbers, which they get in the order in which they are learned.

    Parameters
    ----------
    max_classes
        How many labels the stream has.
    seed
        Of the learner.
    parameters
        What else the library's learner takes.
    """

    def __init__(self, max_classes: int = 2, seed: int = 0, **parameters: Any) -> None:
        self.max_classes = max_classes
        self.seed = seed
        self.parameters = parameters
        self._numbers: dict[Any, int] = {}
        self._labels: list[Any] = []

    @property
    def _multiclass(self) -> bool:
        return True

    @abstractmethod
    def _learn(self, x: Row, number: int) -> None:
        """Learn a row, whose label has this number."""

    def learn_one(self, x: Row, y: Any) -> None:
        if y not in self._numbers:
            self._numbers[y] = len(self._labels)
            self._labels.append(y)
        self._learn(x, self._numbers[y])

    def _label(self, number: int) -> Any:
        """None of a number that no label has yet."""
        return self._labels[number] if number < len(self._labels) else None

    def _of_labels(self, values: Any) -> dict[Any, float]:
        """Probabilities by number as probabilities by label."""
        return dict(zip(self._labels, map(float, values), strict=False))


# CapyMOA --------------------------------------------------------------------------------------------------------------


class _CapyMOA(ABC):
    """The learner of CapyMOA with the name of this class.

    Its schema needs the names of the features, so it is made at the first row.
    """

    seed: int
    parameters: dict[str, Any]
    _model: Any = None

    @staticmethod
    def _need_java() -> None:
        _need("capymoa")
        home = os.environ.get("JAVA_HOME")
        if shutil.which("java", path=str(Path(home, "bin")) if home else None) is None:
            raise ValueError(f"CapyMOA needs Java 17, and {f'JAVA_HOME, {home},' if home else 'the PATH'} has no java")

    @abstractmethod
    def _targets(self) -> list[str]:
        """The labels of the schema; none of numbers."""

    def _make(self, features: list[Any]) -> None:
        os.environ.setdefault("CAPYMOA_JVM_ARGS", JAVA_FLAGS)
        from capymoa import classifier, regressor  # noqa: PLC0415 - optional; it starts Java
        from capymoa.core import Instance, LabeledInstance, RegressionInstance  # noqa: PLC0415
        from capymoa.stream import Schema  # noqa: PLC0415

        labels = self._targets()
        self._features = features
        names = [*map(str, features), "target"]
        self._schema = Schema.from_custom(names, target="target", categories={"target": labels} if labels else None)
        kind = getattr(classifier if labels else regressor, type(self).__name__)
        self._model = kind(schema=self._schema, random_seed=self.seed, **self.parameters)
        self._instance = Instance.from_array
        self._learned = (LabeledInstance if labels else RegressionInstance).from_array

    def _values(self, x: Row) -> np.ndarray:
        if self._model is None:
            self._make(list(x))
        return np.array([x[name] for name in self._features], float)

    def _train(self, x: Row, target: float) -> None:
        """Learn a row, whose target is a number or a label's number."""
        values = self._values(x)
        self._model.train(self._learned(self._schema, values, target))

    def _ask(self, x: Row) -> Any:
        """A row as CapyMOA's learners predict it."""
        values = self._values(x)
        return self._instance(self._schema, values)

    def forget(self) -> int:
        """Forget the model; the bytes of Java's memory that this frees."""
        from java.lang import System  # noqa: PLC0415 - Java runs by now
        from java.lang.management import ManagementFactory, MemoryType  # noqa: PLC0415

        def used() -> int:
            for _ in range(4):  # of four collections, Java leaves no dead object in one
                gc.collect()
                System.gc()
            pools = ManagementFactory.getMemoryPoolMXBeans()
            return sum(int(pool.getCollectionUsage().getUsed()) for pool in pools if pool.getType() == MemoryType.HEAP)

        used()  # which loads what it needs itself
        before = used()
        self._model = None
        return before - used()


class _CapyMOAClassifier(_CapyMOA, _Peer):
    """A classifier of CapyMOA."""

    def __init__(self, max_classes: int = 2, seed: int = 0, **parameters: Any) -> None:
        super().__init__(max_classes, seed, **parameters)
        self._need_java()
        self._asked: Row | None = None  # the row that was predicted just now, and its votes
        self._votes: Any = None

    def _targets(self) -> list[str]:
        return [str(number) for number in range(self.max_classes)]

    def _learn(self, x: Row, number: int) -> None:
        self._train(x, number)
        self._asked = None

    def predict_one(self, x: Row) -> Any:
        row = self._ask(x)
        self._asked, self._votes = x, self._model.predict_proba(row)
        return None if self._votes is None else self._label(int(self._votes.argmax()))

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        if x is not self._asked:
            self.predict_one(x)
        return {} if self._votes is None else self._of_labels(self._votes)


class _CapyMOARegressor(_CapyMOA, base.Regressor):
    """A regressor of CapyMOA.

    Parameters
    ----------
    seed
        Of the learner.
    parameters
        What else the library's learner takes.
    """

    def __init__(self, seed: int = 0, **parameters: Any) -> None:
        self._need_java()
        self.seed = seed
        self.parameters = parameters

    def _targets(self) -> list[str]:
        return []

    def learn_one(self, x: Row, y: float) -> None:
        self._train(x, y)

    def predict_one(self, x: Row) -> float:
        row = self._ask(x)
        return float(self._model.predict(row))


class AdaptiveRandomForestClassifier(_CapyMOAClassifier):
    """Adaptive random forest (Gomes et al. 2017)."""


class StreamingRandomPatches(_CapyMOAClassifier):
    """Streaming random patches (Gomes, Read and Bifet 2019)."""


class SAMkNN(_CapyMOAClassifier):
    """Nearest neighbours with a self adjusting memory (Losing, Hammer and Wersing 2016)."""


class KNN(_CapyMOAClassifier):
    """Nearest neighbours among the last rows."""


class StreamingGradientBoostedTrees(_CapyMOAClassifier):
    """Gradient boosting of 100 regression trees (Gunasekara et al. 2024)."""


class HoeffdingAdaptiveTree(_CapyMOAClassifier):
    """Hoeffding tree whose branches watch for drift (Bifet and Gavalda 2009)."""


class AdaptiveRandomForestRegressor(_CapyMOARegressor):
    """Adaptive random forest of regression trees (Gomes et al. 2018)."""


class SOKNL(_CapyMOARegressor):
    """Nearest leaves of an adaptive random forest, as many as serve best (Sun et al. 2022)."""


class KNNRegressor(_CapyMOARegressor):
    """Mean of the nearest neighbours among the last rows."""


class FIMTDD(_CapyMOARegressor):
    """Regression tree with linear leaves that watches for drift (Ikonomovska, Gama and Dzeroski 2011)."""


CAPYMOA = (
    AdaptiveRandomForestClassifier,
    StreamingRandomPatches,
    SAMkNN,
    KNN,
    StreamingGradientBoostedTrees,
    HoeffdingAdaptiveTree,
    AdaptiveRandomForestRegressor,
    SOKNL,
    KNNRegressor,
    FIMTDD,
)

# Vowpal Wabbit --------------------------------------------------------------------------------------------------------


class OAA(_Peer):
    """Vowpal Wabbit's linear learners, one against all: ``vw --oaa K``, with further options of its command line.

    It has probabilities with ``probabilities=True, loss_function="logistic"``.
    """

    def __init__(self, max_classes: int = 2, seed: int = 0, **parameters: Any) -> None:
        super().__init__(max_classes, seed, **parameters)
        _need("vowpalwabbit")
        from vowpalwabbit import Workspace  # noqa: PLC0415 - optional

        self._model = Workspace(oaa=max_classes, random_seed=seed, quiet=True, **parameters)

    def _learn(self, x: Row, number: int) -> None:
        example = self._model.example({"f": x})
        example.set_label_string(str(number + 1))
        self._model.learn(example)
        self._model.finish_example(example)

    def _predict(self, x: Row) -> Any:
        example = self._model.example({"f": x})
        found = self._model.predict(example)
        self._model.finish_example(example)
        return found

    def predict_one(self, x: Row) -> Any:
        found = self._predict(x)
        return self._label(int(np.argmax(found)) if isinstance(found, list) else found - 1)

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        if not self.parameters.get("probabilities"):
            raise NotImplementedError("vw --oaa without --probabilities")
        return self._of_labels(self._predict(x))

    @property
    def nbytes(self) -> int:
        """Bytes of its weights, in float32."""
        return 4 * self._model.num_weights() * self._model.get_stride()


VW = (OAA,)

# River's neighbours, and LightGBM ---------------------------------------------------------------------------------------


class WindowKNN(neighbors.KNNClassifier):
    """River's nearest neighbours among the last rows.

    Parameters
    ----------
    window
        How many these are.
    """

    def __init__(self, window: int = 5_000) -> None:
        self.window = window
        super().__init__(engine=neighbors.LazySearch(window_size=window))


class RefittedLightGBM(_Peer):
    """LightGBM with its defaults, fitted anew to all rows so far, every so many rows: what batch learning would do.

    Parameters
    ----------
    max_classes, seed
        As of all peers.
    every
        Rows between two fits.
    """

    def __init__(self, max_classes: int = 2, seed: int = 0, every: int = 1_000) -> None:
        super().__init__(max_classes, seed)
        _need("lightgbm")
        self.every = every
        self._rows: list[list[float]] = []
        self._y: list[int] = []
        self._features: list[Any] = []
        self._model: Any = None
        self._asked: Row | None = None
        self._shares: Any = None

    def _learn(self, x: Row, number: int) -> None:
        self._features = self._features or list(x)
        self._rows.append([x[name] for name in self._features])
        self._y.append(number)
        self._asked = None
        if len(self._y) % self.every == 0 and len(set(self._y)) > 1:
            from lightgbm import LGBMClassifier  # noqa: PLC0415 - optional

            self._model = LGBMClassifier(random_state=self.seed, n_jobs=1, verbose=-1).fit(np.array(self._rows), self._y)

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        if self._model is None:
            return {}
        if x is not self._asked:
            row = np.array([[x[name] for name in self._features]])
            shares = np.atleast_1d(self._model.booster_.predict(row)[0])
            self._asked, self._shares = x, shares if len(shares) > 1 else np.array([1.0 - shares[0], shares[0]])
        return {self._labels[number]: float(p) for number, p in zip(self._model.classes_, self._shares, strict=True)}

    def predict_one(self, x: Row) -> Any:
        shares = self.predict_proba_one(x)
        return max(shares, key=shares.__getitem__) if shares else self._label(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the model as text, and of all rows."""
        text = 0 if self._model is None else len(self._model.booster_.model_to_string())
        return text + 8 * len(self._rows) * (len(self._features) + 1)
