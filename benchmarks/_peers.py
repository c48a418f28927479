"""Learners of CapyMOA (in Java), Vowpal Wabbit and LightGBM (refitted at intervals), with river's interface, for ``streams.py``.

``pip install -e '.[benchmark]'`` installs all; CapyMOA also needs Java 17. They take rows as dicts, like all learners of the
suite, and convert each for their library; their times include that. A library is imported when a model first needs it.
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

#: Learners of each group in ``--learners``. Ensembles have ten trees, as in river; the rest has the library's defaults.
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
#: Learners that take hundreds or thousands of microseconds a row, with the sizes that their authors use.
HEAVY = [
    "AdaptiveRandomForestClassifier(ensemble_size=100)",
    "StreamingRandomPatches(ensemble_size=100)",
    "StreamingGradientBoostedTrees",
    "KNN(window_size=5000)",
    "WindowKNN",
    "RefittedLightGBM",
]
#: CapyMOA's default flags of Java, and -Xrs, which leaves Ctrl-C to Python: an interrupted suite saves its results.
JAVA_FLAGS = "-Xmx8g -Xss10M -Xrs"


def list_versions() -> dict[str, str]:
    """Return the versions of the optional packages that are installed."""
    return {package: version(package) for package in ("capymoa", "lightgbm", "vowpalwabbit") if find_spec(package)}


def _require_package(package: str) -> None:
    """Raise ValueError if a package is missing."""
    if find_spec(package) is None:
        raise ValueError(f"{package} is missing: pip install -e '.[benchmark]'")


class _Peer(base.Classifier, ABC):
    """Base class of classifiers that need class indices: labels are numbered in the order of their first rows.

    Parameters
    ----------
    max_classes
        Number of labels of the stream.
    seed
        Random seed.
    parameters
        Further parameters of the library's learner.
    """

    def __init__(self, max_classes: int = 2, seed: int = 0, **parameters: Any) -> None:
        self.max_classes = max_classes
        self.seed = seed
        self.parameters = parameters
        self._codes: dict[Any, int] = {}
        self._labels: list[Any] = []

    @property
    def _multiclass(self) -> bool:
        return True

    @abstractmethod
    def _learn_row(self, x: Row, number: int) -> None:
        """Learn a row with the class index ``number``."""

    def learn_one(self, x: Row, y: Any) -> None:
        if y not in self._codes:
            self._codes[y] = len(self._labels)
            self._labels.append(y)
        self._learn_row(x, self._codes[y])

    def _decode_label(self, number: int) -> Any:
        """Return the label of a class index; None if no label has it yet."""
        return self._labels[number] if number < len(self._labels) else None

    def _name_probabilities(self, values: Any) -> dict[Any, float]:
        """Return probabilities, listed by class index, as a dict by label."""
        return dict(zip(self._labels, map(float, values), strict=False))


# CapyMOA --------------------------------------------------------------------------------------------------------------


class _CapyMOA(ABC):
    """Wraps the learner of CapyMOA that has the same name as this class.

    CapyMOA's schema needs the names of the features, so the learner is created with the first row.
    """

    seed: int
    parameters: dict[str, Any]
    _model: Any = None

    @staticmethod
    def _require_java() -> None:
        _require_package("capymoa")
        home = os.environ.get("JAVA_HOME")
        if shutil.which("java", path=str(Path(home, "bin")) if home else None) is None:
            raise ValueError(f"CapyMOA needs Java 17, and {f'JAVA_HOME, {home},' if home else 'the PATH'} has no java")

    @abstractmethod
    def _targets(self) -> list[str]:
        """Return the labels of the schema; an empty list for regression."""

    def _make_model(self, features: list[Any]) -> None:
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

    def _to_array(self, x: Row) -> np.ndarray:
        if self._model is None:
            self._make_model(list(x))
        return np.array([x[name] for name in self._features], float)

    def _train_row(self, x: Row, target: float) -> None:
        """Learn a row with a target of regression, or a class index."""
        values = self._to_array(x)
        self._model.train(self._learned(self._schema, values, target))

    def _make_instance(self, x: Row) -> Any:
        """Return a row as an instance for CapyMOA's ``predict``."""
        values = self._to_array(x)
        return self._instance(self._schema, values)

    def forget(self) -> int:
        """Delete the model, and return the bytes of Java's heap that this frees."""
        from java.lang import System  # noqa: PLC0415 - Java runs by now
        from java.lang.management import ManagementFactory, MemoryType  # noqa: PLC0415

        def used() -> int:
            for _ in range(4):  # a single collection may leave dead objects
                gc.collect()
                System.gc()
            pools = ManagementFactory.getMemoryPoolMXBeans()
            return sum(int(pool.getCollectionUsage().getUsed()) for pool in pools if pool.getType() == MemoryType.HEAP)

        used()  # its first call loads classes of Java
        before = used()
        self._model = None
        return before - used()


class _CapyMOAClassifier(_CapyMOA, _Peer):
    """A classifier of CapyMOA."""

    def __init__(self, max_classes: int = 2, seed: int = 0, **parameters: Any) -> None:
        super().__init__(max_classes, seed, **parameters)
        self._require_java()
        self._predicted_row: Row | None = None  # the last predicted row, and its votes
        self._votes: Any = None

    def _targets(self) -> list[str]:
        return [str(number) for number in range(self.max_classes)]

    def _learn_row(self, x: Row, number: int) -> None:
        self._train_row(x, number)
        self._predicted_row = None

    def predict_one(self, x: Row) -> Any:
        row = self._make_instance(x)
        self._predicted_row, self._votes = x, self._model.predict_proba(row)
        return None if self._votes is None else self._decode_label(int(self._votes.argmax()))

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        if x is not self._predicted_row:
            self.predict_one(x)
        return {} if self._votes is None else self._name_probabilities(self._votes)


class _CapyMOARegressor(_CapyMOA, base.Regressor):
    """A regressor of CapyMOA.

    Parameters
    ----------
    seed
        Random seed.
    parameters
        Further parameters of the library's learner.
    """

    def __init__(self, seed: int = 0, **parameters: Any) -> None:
        self._require_java()
        self.seed = seed
        self.parameters = parameters

    def _targets(self) -> list[str]:
        return []

    def learn_one(self, x: Row, y: float) -> None:
        self._train_row(x, y)

    def predict_one(self, x: Row) -> float:
        row = self._make_instance(x)
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
    """Self-optimising k nearest leaves of an adaptive random forest (Sun et al. 2022)."""


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
    """Vowpal Wabbit's linear one-against-all classifier, ``vw --oaa K``. ``parameters`` are options of its command line.

    It predicts probabilities with ``probabilities=True, loss_function="logistic"``.
    """

    def __init__(self, max_classes: int = 2, seed: int = 0, **parameters: Any) -> None:
        super().__init__(max_classes, seed, **parameters)
        _require_package("vowpalwabbit")
        from vowpalwabbit import Workspace  # noqa: PLC0415 - optional

        self._model = Workspace(oaa=max_classes, random_seed=seed, quiet=True, **parameters)

    def _learn_row(self, x: Row, number: int) -> None:
        example = self._model.example({"f": x})
        example.set_label_string(str(number + 1))
        self._model.learn(example)
        self._model.finish_example(example)

    def _predict(self, x: Row) -> Any:
        example = self._model.example({"f": x})
        prediction = self._model.predict(example)
        self._model.finish_example(example)
        return prediction

    def predict_one(self, x: Row) -> Any:
        prediction = self._predict(x)
        return self._decode_label(int(np.argmax(prediction)) if isinstance(prediction, list) else prediction - 1)

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        if not self.parameters.get("probabilities"):
            raise NotImplementedError("vw --oaa without --probabilities")
        return self._name_probabilities(self._predict(x))

    @property
    def nbytes(self) -> int:
        """Bytes of its float32 weights."""
        return 4 * self._model.num_weights() * self._model.get_stride()


VW = (OAA,)

# River's neighbours, and LightGBM ---------------------------------------------------------------------------------------


class WindowKNN(neighbors.KNNClassifier):
    """River's nearest neighbours among the last rows.

    Parameters
    ----------
    window
        Number of rows.
    """

    def __init__(self, window: int = 5_000) -> None:
        self.window = window
        super().__init__(engine=neighbors.LazySearch(window_size=window))


class RefittedLightGBM(_Peer):
    """LightGBM with its defaults, refitted to all rows so far at intervals: an example of batch learning on a stream.

    Parameters
    ----------
    max_classes, seed
        As in all peers.
    every
        Number of rows between two fits.
    """

    def __init__(self, max_classes: int = 2, seed: int = 0, every: int = 1_000) -> None:
        super().__init__(max_classes, seed)
        _require_package("lightgbm")
        self.every = every
        self._rows: list[list[float]] = []
        self._y: list[int] = []
        self._features: list[Any] = []
        self._model: Any = None
        self._predicted_row: Row | None = None
        self._shares: Any = None

    def _learn_row(self, x: Row, number: int) -> None:
        self._features = self._features or list(x)
        self._rows.append([x[name] for name in self._features])
        self._y.append(number)
        self._predicted_row = None
        if len(self._y) % self.every == 0 and len(set(self._y)) > 1:
            from lightgbm import LGBMClassifier  # noqa: PLC0415 - optional

            self._model = LGBMClassifier(random_state=self.seed, n_jobs=1, verbose=-1).fit(np.array(self._rows), self._y)

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        if self._model is None:
            return {}
        if x is not self._predicted_row:
            row = np.array([[x[name] for name in self._features]])
            shares = np.atleast_1d(self._model.booster_.predict(row)[0])
            self._predicted_row, self._shares = x, shares if len(shares) > 1 else np.array([1.0 - shares[0], shares[0]])
        return {self._labels[number]: float(p) for number, p in zip(self._model.classes_, self._shares, strict=True)}

    def predict_one(self, x: Row) -> Any:
        shares = self.predict_proba_one(x)
        return max(shares, key=shares.__getitem__) if shares else self._decode_label(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the model, saved as text, and of all rows."""
        text = 0 if self._model is None else len(self._model.booster_.model_to_string())
        return text + 8 * len(self._rows) * (len(self._features) + 1)
