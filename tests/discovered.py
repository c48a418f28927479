"""Lists the estimators of the package's modules, so that tests cover new ones."""

import importlib
import inspect
import pkgutil

from river import base

from streamsvm import learners


def estimators():
    classes = set()
    for module in pkgutil.iter_modules(learners.__path__, f"{learners.__name__}."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__ != module.name or not issubclass(kind, base.Estimator) or not hasattr(kind, "learn_one"):
                continue
            parameters = inspect.signature(kind).parameters.values()
            # Base classes have parameters of their subclasses, or create no store.
            if all(parameter.default is not parameter.empty for parameter in parameters) and hasattr(kind, "_rule"):
                classes.add(kind)
    return sorted(classes, key=lambda kind: kind.__name__)
