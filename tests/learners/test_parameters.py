"""Parameters out of range are named, and cannot change after construction."""

import numpy as np
import pytest

from refused import refused
from streamsvm import (
    BSCAClassifier,
    BSCARegressor,
    BSGDClassifier,
    BSGDRegressor,
    KernelRLSClassifier,
    OneClassBSGD,
)
from streamsvm.learners import BOGD, BPAS, FOGD, NOGD, KernelOGD, KernelPegasos, OnlineLinearSVC, OnlineLinearSVR, Projectron

WRONG = {
    BSGDClassifier: {
        "budget": [0, -1, 2.5, True, "10"],
        "kernel": ["gauss", None],
        "gamma": [0.0, -1.0, np.nan, np.inf, "auto", None],
        "l2": [0.0, -1e-4, np.nan, "1"],
        "maintenance": ["merge", 3],
        "learning_rate": ["optimal", 0.1],
        "eta0": [0.0, -1.0, np.inf],
        "averaging": [-1, np.nan, 10**400],
        "degree": [0, -2, 2.9, 101],
        "fit_intercept": ["yes", None, 1],
        "coef0": [np.nan],
        "max_features": [0, -5, 1.5],
        "overflow": ["drop"],
        "seed": [1.5, "a"],
    },
    BSCAClassifier: {"C": [0.0, -1.0, np.inf, "1"], "relaxation": [0.0, 2.1], "reprocess": [-1, 0.5], "tol": [-0.1, np.nan]},
    BSGDRegressor: {"epsilon": [-0.1, np.nan], "learning_rate": ["optimal"]},
    BSCARegressor: {"epsilon": [-0.1, "x"], "C": [0.0], "relaxation": [0.0, 3.0]},
    OneClassBSGD: {"nu": [0.0, 1.1, np.nan]},
    BPAS: {"C": [0.0, np.nan]},
    BOGD: {"eta0": [0.0], "l2": [-1.0, 100.0]},
    Projectron: {"eta": [0.0, -1.0]},
    NOGD: {"rank": [0, 101, 1.5], "eta0": ["x"]},
    FOGD: {"eta0": [0.0]},
    KernelOGD: {"l2": [0.0]},
    KernelPegasos: {"l2": [0.0]},
    OnlineLinearSVC: {"C": [0.0], "averaging": [-1], "max_features": [0, 2**31], "overflow": ["drop"]},
    OnlineLinearSVR: {"epsilon": [-1.0]},
    KernelRLSClassifier: {
        "budget": [0, 2**31 - 1],
        "gamma": ["auto", 0.0],
        "ridge": [0.0],
        "forgetting_factor": [1.1, 0.0],
        "max_swaps": [65],
        "coef0": [-1.0],
        "max_classes": [1],
    },
}


@pytest.mark.parametrize(("kind", "parameter"), [(kind, parameter) for kind in WRONG for parameter in WRONG[kind]])
def test_parameters_out_of_range_are_named(kind, parameter):
    kernel = {"kernel": "poly"} if (kind, parameter) == (KernelRLSClassifier, "coef0") else {}
    for value in WRONG[kind][parameter]:
        refused(
            f"{parameter} must be" if kind in (OnlineLinearSVC, OnlineLinearSVR) else parameter,
            kind,
            **kernel,
            **{parameter: value},
        )


def test_incompatible_parameters_are_refused():
    refused("eta0 \\* l2 must be below 1", BSGDClassifier, learning_rate="constant", eta0=10.0, l2=0.1)
    refused("more than this machine has", BSGDClassifier, budget=2**30, max_features=2**30)
    refused("coef0 must be a finite number at least 0", BSGDClassifier, kernel="poly", coef0=-0.1)
