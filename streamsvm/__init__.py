"""Kernel support vector machines that learn endless streams inside a fixed number of bytes."""

from typing import TYPE_CHECKING, Any

from streamsvm import _numba_cache  # noqa: F401 - first: it acts before anything is compiled
from streamsvm.budget import Merge, Projection, Removal
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.one_class import OneClassBSGD

__all__ = [
    "BSCAClassifier",
    "BSCARegressor",
    "BSGDClassifier",
    "BSGDRegressor",
    "Merge",
    "OneClassBSGD",
    "Projection",
    "Removal",
    "load",
    "save",
]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from streamsvm.runtime.checkpoint import load
    from streamsvm.storage.model_file import save


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: the runtime brings river's metrics and with them scipy.stats, half a second of a program's
    # start.
    if name == "load":
        from streamsvm.runtime.checkpoint import load  # noqa: PLC0415

        return load
    if name == "save":
        from streamsvm.storage.model_file import save  # noqa: PLC0415

        return save
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
