"""Lists the public names of the packages, and warns if one of them has no page."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

MODULES = (
    "streamsvm",
    "streamsvm.learners",
    "streamsvm.core.budget",
    "streamsvm.batch",
    "streamsvm.linear",
    "streamsvm.batch.hss",
    "streamsvm.batch.tables",
    "streamsvm.learners.preprocessing",
    "streamsvm.learners.thresholds",
    "streamsvm.stream.tables",
    "streamsvm.export.plots",
    "streamsvm.export.formats",
    "streamsvm.export.quantise",
    "streamsvm.export.compare",
    "streamsvm.export.reduce",
    "streamsvm.export.c",
    "streamsvm.export.c.learning",
    "streamsvm.edge",
    "streamsvm.edge.program",
    "streamsvm.stream",
    "streamsvm_kafka",
    "streamsvm_kafka.codecs",
    "streamsvm_spark",
)
#: Public names of other modules: functions, and base classes that the documentation of public classes refers to.
EXTRA_NAMES = (
    "streamsvm.export.convert.make_program",
    "streamsvm.export.onnx.write_onnx",
    "streamsvm.files.messages.MissingPackageError",
    "streamsvm.learners.budgeted.BudgetedEstimator",
    "streamsvm.learners.classifier.OnlineClassifier",
    "streamsvm.learners.regressor.OnlineRegressor",
    "streamsvm.stream.sources.TextSource",
    "streamsvm.stream.prediction_fields.ComputedFields",
    "streamsvm.export.c.writer.CFiles",
)
MOCKED = ["pyspark"]


def _list_names(module: ModuleType) -> list[str]:
    """Return the names in ``__all__``; without it, the names without an underscore that the module defines."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return getattr(module, "__all__", [name for name in defined if not name.startswith("_")])


@cache
def find_full_names() -> dict[int, list[str]]:
    """Return the full names of each public object, by its ``id``, in the order of `MODULES`."""
    full_names: dict[int, list[str]] = {}
    with mock(MOCKED):
        for module in MODULES:
            imported = importlib.import_module(module)
            for name in _list_names(imported):
                full_names.setdefault(id(getattr(imported, name)), []).append(f"{module}.{name}")
        for full_name in EXTRA_NAMES:
            module, _, name = full_name.rpartition(".")
            full_names[id(getattr(importlib.import_module(module), name))] = [full_name]
    return full_names


@cache
def public_names() -> dict[str, str]:
    """Return the documented full name for each full name, and for each short name that is unambiguous."""
    short: dict[str, set[str]] = {}
    targets = {}
    for names in find_full_names().values():
        for name in names:
            targets[name] = names[0]
            short.setdefault(name.rpartition(".")[2], set()).add(names[0])
    return targets | {name: full_names.pop() for name, full_names in short.items() if len(full_names) == 1}


def check_pages(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn about names in ``__all__`` and `EXTRA_NAMES` that are missing on all pages."""
    documented = env.domains.python_domain.objects
    listed = {f"{module}.{name}" for module in MODULES for name in getattr(sys.modules[module], "__all__", ())}
    for names in find_full_names().values():
        if listed.union(EXTRA_NAMES) & set(names) and not documented.keys() & set(names):
            logging.getLogger(__name__).warning("no page of docs/api has %s", names[0], type="streamsvm", subtype="public")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the check, which runs after all pages have been read."""
    app.connect("env-check-consistency", check_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
