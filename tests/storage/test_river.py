"""Every estimator, statistic and metric of river: which can be saved, by discovery."""

import importlib
import inspect
import pkgutil
import random
import warnings

import pytest
import river
from river import base

from saved import dumps, loads
from streamsvm.storage.model_file import ModelFileError

#: What no file holds, and why. Anything else that river brings must be one that can be saved.
REFUSED = {
    "HoltWinters": "a deque with arithmetic",
    "LDA": "makes arrays by functions of numpy",
    "OutputCodeClassifier": "an iterator over codes",
    "SKL2RiverClassifier": "scikit-learn's own",
    "SKL2RiverRegressor": "scikit-learn's own",
}
#: Only some of their parameters bring what no file holds.
SOME = {"OutputCodeClassifier"}

RNG = random.Random(1)
ROWS = [({"a": RNG.gauss(0, 1), "b": RNG.gauss(0, 1), "c": float(i % 3)}, i % 3 == 0) for i in range(300)]


def discovered():
    found = set()
    for module in pkgutil.walk_packages(river.__path__, "river."):
        try:
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        except ImportError:  # of an optional package
            continue
        found |= {kind for _, kind in members if kind.__module__.startswith("river.") and issubclass(kind, base.Base)}
    return sorted((kind for kind in found if not inspect.isabstract(kind)), key=lambda kind: (kind.__module__, kind.__name__))


def instances(kind):
    try:
        parameters = list(kind._unit_test_params())
    except (TypeError, NotImplementedError):
        return
    for chosen in parameters:
        try:
            yield kind(**chosen)
        except (TypeError, ValueError, RuntimeError):  # of a class that is made by others only, or needs a later Python
            continue


def learned(model):
    """The model after some rows, as far as it takes them."""
    for i, (x, y) in enumerate(ROWS):
        try:
            if isinstance(model, base.Classifier):
                model.predict_one(x)
                model.learn_one(x, y)
            elif isinstance(model, base.Regressor):
                model.predict_one(x)
                model.learn_one(x, x["a"] + y)
            elif hasattr(model, "update") and i % 2:
                model.update(y, x["a"] > 0)
            elif hasattr(model, "update"):
                model.update(x["a"])
            elif getattr(model, "_supervised", False):
                model.learn_one(x, y)
            else:
                model.learn_one(x)
        except Exception:  # noqa: BLE001 - of one that takes other rows
            continue
    return model


@pytest.mark.parametrize("kind", discovered(), ids=lambda kind: f"{kind.__module__.removeprefix('river.')}.{kind.__name__}")
@pytest.mark.filterwarnings("ignore")
def test_saved(kind):
    for model in instances(kind):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learned(model)
        try:
            data = dumps(model)
        except ModelFileError:
            assert kind.__name__ in REFUSED
            continue
        assert kind.__name__ not in REFUSED or kind.__name__ in SOME, f"{kind.__name__} can be saved now: take it off the list"
        found = loads(data)
        assert type(found) is kind
        assert dumps(found) == data
