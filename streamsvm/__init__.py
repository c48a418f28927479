"""Kernel support vector machines that learn from endless streams in a fixed amount of memory.

Start with `SVMClassifier` or `SVMRegressor`, which have nothing to tune. Every model is a river model: it learns and predicts
row by row, and works in river's pipelines. `table_model` makes a model for a table as it is: a frame or a file. `streamsvm.save`
and `streamsvm.load` store models in files.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing takes as long to import as all that comes before the handlers of signals
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


if not TYPE_CHECKING:  # a checker of types knows all names there are

    def __getattr__(name: str) -> Any:
        # Imported when they are asked for: the command line starts at once, and can be interrupted in order while numba is
        # imported.
        if name in _PARTS:
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            return globals().setdefault(name, getattr(import_module(f"{__name__}.{_MODULES.get(name, 'learners')}"), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PARTS, "__version__"]
