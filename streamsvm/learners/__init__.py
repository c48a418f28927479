"""Online learners: support vector machines that learn row by row, and reference algorithms from the literature.

There is a module for each learner, and for each family of reference algorithms. Their base classes are in `store_estimator`,
`estimator`, `budgeted`, `classifier`, `budgeted_classifier` and `regressor`. The compiled functions of update rules are in
`streamsvm.core.steps`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
    from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
    from streamsvm.learners.gradient_rules import BOGD, BPAS, KernelOGD, KernelPegasos
    from streamsvm.learners.kernel_features import FOGD, NOGD
    from streamsvm.learners.kernel_rls import KernelRLSClassifier, KernelRLSRegressor
    from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
    from streamsvm.learners.one_class import OneClassBSGD
    from streamsvm.learners.perceptrons import RBP, Forgetron, KernelPerceptron, Stoptron
    from streamsvm.learners.projectron import Projectron, ProjectronPP
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
    "BOGD": "gradient_rules",
    "BPAS": "gradient_rules",
    "BSCAClassifier": "bsca",
    "BSCARegressor": "bsca",
    "BSGDClassifier": "bsgd",
    "BSGDRegressor": "bsgd",
    "FOGD": "kernel_features",
    "Forgetron": "perceptrons",
    "KernelOGD": "gradient_rules",
    "KernelPegasos": "gradient_rules",
    "KernelPerceptron": "perceptrons",
    "KernelRLSClassifier": "kernel_rls",
    "KernelRLSRegressor": "kernel_rls",
    "NOGD": "kernel_features",
    "OneClassBSGD": "one_class",
    "OnlineLinearSVC": "linear",
    "OnlineLinearSVR": "linear",
    "Projectron": "projectron",
    "ProjectronPP": "projectron",
    "RBP": "perceptrons",
    "SVMClassifier": "svm",
    "SVMRegressor": "svm",
    "Stoptron": "perceptrons",
}


def __getattr__(name: str) -> Any:
    # Lazy imports, because most users need one learner only.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
