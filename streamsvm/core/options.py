"""String options of public signatures, as types that a checker of types knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

__all__ = [
    "SCALINGS",
    "ClassificationLoss",
    "DecisionShape",
    "ExpiryPolicy",
    "Gamma",
    "KernelName",
    "LearnerName",
    "LearningRate",
    "MachineGamma",
    "MachineKernel",
    "OnDrift",
    "OnnxOperators",
    "OutputName",
    "Overflow",
    "PredictionKernel",
    "RegressionLoss",
    "Scaling",
    "Search",
    "Split",
    "Victim",
]

KernelName = Literal["rbf", "linear", "poly"]
#: The kernel of an exact machine: a name, or a function of rows [n] and rows [m] that returns their kernel values [n, m].
MachineKernel = KernelName | Literal["sigmoid", "precomputed"] | Callable[[Any, Any], Any]
#: Decision values of three or more classes: one for each class, or one for each pair.
DecisionShape = Literal["ovr", "ovo"]
#: The kernel parameter of a learner, and of a batch machine.
Gamma = float | Literal["scale"]
MachineGamma = float | Literal["scale", "auto"]
Overflow = Literal["raise", "hash", "ignore"]
#: Whether a kernel learner scales its rows itself.
Scaling = Literal["auto"] | None
SCALINGS = ("auto", None)
LearningRate = Literal["pegasos", "constant", "floor", "capped"]
OutputName = Literal["auto", "last", "average"]
#: How `Merge` finds the best partner and the merged vector.
Search = Literal["gss", "gss-precise", "lookup-h", "lookup-wd"]
#: Which support vector `Removal` removes.
Victim = Literal["smallest", "random"]
#: The learner that a machine is distilled into.
LearnerName = Literal["bsca", "bsgd"]
#: How a tree cuts the rows of a node in two.
Split = Literal["principal-axis", "two-means"]
#: The kernel that a machine predicts with: the compressed one that it was trained with, or the exact one.
PredictionKernel = Literal["auto", "compressed", "exact"]
ClassificationLoss = Literal["hinge", "squared_hinge"]
RegressionLoss = Literal["epsilon_insensitive", "squared_epsilon_insensitive"]
#: What becomes of a row whose label does not come.
ExpiryPolicy = Literal["drop", "dead-letter", "negative"]
#: What a loop does about a drift.
OnDrift = Literal["count", "anew"]
OnnxOperators = Literal["primitive", "ml"]
