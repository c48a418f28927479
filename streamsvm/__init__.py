"""Kernel support vector machines that learn from endless streams in a fixed amount of memory.

Start with `SVMClassifier` or `SVMRegressor`, which need no tuning. Every model is a river model: it learns and predicts row by
row, and works in river's pipelines. `table_model` makes a model for tables (frames or files) with numbers, categories and dates.
`streamsvm.save` and `streamsvm.load` store models in files.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing would double the time until the command line handles signals
if TYPE_CHECKING:
    from typing import Any

    from streamsvm import batch as batch
    from streamsvm import core as core
    from streamsvm import edge as edge
    from streamsvm import export as export
    from streamsvm import learners as learners
    from streamsvm import linear as linear
    from streamsvm import stream as stream
    from streamsvm.core.budget.merge import Merge
    from streamsvm.core.budget.removal import Projection, Removal
    from streamsvm.explanations import examples_one as examples_one
    from streamsvm.explanations import explain_one as explain_one
    from streamsvm.explanations import importance as importance
    from streamsvm.export.formats import save
    from streamsvm.files.container import ModelFileError as ModelFileError
    from streamsvm.from_tables import table_model as table_model
    from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
    from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
    from streamsvm.learners.kernel_rls import KernelRLSClassifier, KernelRLSRegressor
    from streamsvm.learners.one_class import OneClassBSGD
    from streamsvm.learners.svm import SVMClassifier, SVMRegressor
    from streamsvm.stream.checkpoint import load

__all__ = [
    "BSCAClassifier",
    "BSCARegressor",
    "BSGDClassifier",
    "BSGDRegressor",
    "KernelRLSClassifier",
    "KernelRLSRegressor",
    "Merge",
    "ModelFileError",
    "OneClassBSGD",
    "Projection",
    "Removal",
    "SVMClassifier",
    "SVMRegressor",
    "examples_one",
    "explain_one",
    "importance",
    "load",
    "save",
    "table_model",
]
__version__ = "0.1.0"

_MODULES = {
    "Merge": "core.budget",
    "ModelFileError": "files.container",
    "Projection": "core.budget",
    "Removal": "core.budget",
    "examples_one": "explanations",
    "explain_one": "explanations",
    "importance": "explanations",
    "load": "stream.checkpoint",
    "save": "export.formats",
    "table_model": "from_tables",
}
_PARTS = ("batch", "core", "edge", "export", "learners", "linear", "stream")


if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> Any:
        # Lazy imports, so that the command line starts at once, and can be interrupted cleanly while numba is imported.
        if name in _PARTS:
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            return globals().setdefault(name, getattr(import_module(f"{__name__}.{_MODULES.get(name, 'learners')}"), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PARTS, "__version__"]
