"""The public names of the packages, and a warning for each that has no page."""

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
#: Single names of other modules: functions, and bases that the documentation of public classes refers to.
SINGLE = (
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


def _names_of(module: ModuleType) -> list[str]:
    """Return the names that a package lists, or those without an underscore that a module defines."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return getattr(module, "__all__", [name for name in defined if not name.startswith("_")])


@cache
def homes() -> dict[int, list[str]]:
    """Return the full names of each public object, by its identity; the first is that of the module that comes first."""
    found: dict[int, list[str]] = {}
    with mock(MOCKED):
        for module in MODULES:
            imported = importlib.import_module(module)
            for name in _names_of(imported):
                found.setdefault(id(getattr(imported, name)), []).append(f"{module}.{name}")
        for name in SINGLE:
            module, _, single = name.rpartition(".")
            found[id(getattr(importlib.import_module(module), single))] = [name]
    return found


@cache
def public_names() -> dict[str, str]:
    """Return where each name is documented: full names, and short ones that mean one object alone."""
    short: dict[str, set[str]] = {}
    full = {}
    for names in homes().values():
        for name in names:
            full[name] = names[0]
            short.setdefault(name.rpartition(".")[2], set()).add(names[0])
    return full | {name: targets.pop() for name, targets in short.items() if len(targets) == 1}


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of names that a package lists, or that are bases, and that are in no page."""
    documented = env.domains.python_domain.objects
    listed = {f"{module}.{name}" for module in MODULES for name in getattr(sys.modules[module], "__all__", ())}
    for names in homes().values():
        if listed.union(SINGLE) & set(names) and not documented.keys() & set(names):
            logging.getLogger(__name__).warning("no page of docs/api has %s", names[0], type="streamsvm", subtype="public")


def setup(app: Sphinx) -> dict[str, Any]:
    """Check when all pages have been read."""
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
