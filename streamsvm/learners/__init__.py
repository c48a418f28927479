"""The learners: one file for each rule.

`estimator`, `budgeted`, `classifier`, `regressor` and `baseline` have what they share. `streamsvm.core.steps` has the
functions that rules are made of.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamsvm.learners.bogd import BOGD
    from streamsvm.learners.bpas import BPAS
    from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
    from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
    from streamsvm.learners.fogd import FOGD
    from streamsvm.learners.forgetron import Forgetron
    from streamsvm.learners.kernel_rls import KernelRLSClassifier, KernelRLSRegressor
    from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
    from streamsvm.learners.nogd import NOGD
    from streamsvm.learners.ogd import KernelOGD
    from streamsvm.learners.one_class import OneClassBSGD
    from streamsvm.learners.pegasos import KernelPegasos
    from streamsvm.learners.perceptron import KernelPerceptron
    from streamsvm.learners.projectron import Projectron, ProjectronPP
    from streamsvm.learners.rbp import RBP
    from streamsvm.learners.stoptron import Stoptron
    from streamsvm.learners.svm import SVMClassifier, SVMRegressor

__all__ = [
    "BOGD",
    "BPAS",
    "FOGD",
    "NOGD",
    "RBP",
    "BSCAClassifier",
    "BSCARegressor",
    "BSGDClassifier",
    "BSGDRegressor",
    "Forgetron",
    "KernelOGD",
    "KernelPegasos",
    "KernelPerceptron",
    "KernelRLSClassifier",
    "KernelRLSRegressor",
    "OneClassBSGD",
    "OnlineLinearSVC",
    "OnlineLinearSVR",
    "Projectron",
    "ProjectronPP",
    "SVMClassifier",
    "SVMRegressor",
    "Stoptron",
]

_MODULES = {
    "BSCAClassifier": "bsca",
    "BSCARegressor": "bsca",
    "BSGDClassifier": "bsgd",
    "BSGDRegressor": "bsgd",
    "KernelOGD": "ogd",
    "KernelPegasos": "pegasos",
    "KernelPerceptron": "perceptron",
    "KernelRLSClassifier": "kernel_rls",
    "KernelRLSRegressor": "kernel_rls",
    "OneClassBSGD": "one_class",
    "OnlineLinearSVC": "linear",
    "OnlineLinearSVR": "linear",
    "ProjectronPP": "projectron",
    "SVMClassifier": "svm",
    "SVMRegressor": "svm",
}


def __getattr__(name: str) -> Any:
    # Imported when they are asked for: who needs one rule does not wait for the others.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, name.lower())}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
