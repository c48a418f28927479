"""Requirements of all batch machines: scikit-learn's conventions, weights, and invalid input."""

import inspect

import numpy as np
import pytest
from numba import config
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils.estimator_checks import estimator_checks_generator

from problems import sine_classes
from refused import refused
from streamsvm import batch, linear
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor, HierarchicalSVC, HSSADMMClassifier
from streamsvm.linear import OutOfCoreLinearSVC, OutOfCoreLinearSVR

SLOW = config.DISABLE_JIT
#: Parameters that make a machine quicker.
QUICK = {"HSSADMM": {"max_iter": 50 if SLOW else 2000}, "Hierarchical": {"n_trees": 2, "max_iter": 20 if SLOW else 150}}


def machines():
    kinds = [getattr(part, name) for part in (batch, linear) for name in part.__all__]
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, BaseEstimator):
            yield kind(**next((more for name, more in QUICK.items() if kind.__name__.startswith(name)), {}))


MACHINES = list(machines())


def problem(n=60):
    return sine_classes(n, 3, 0.5)


def name(machine):
    return type(machine).__name__


def test_all_machines_are_tested():
    assert {CSMOClassifier, CSMOOneClass, HierarchicalSVC, OutOfCoreLinearSVR} < set(map(type, MACHINES))
    assert len(MACHINES) == 8


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(machine, marks=pytest.mark.thorough if machine.__module__.startswith(linear.__name__) else pytest.mark.once)
        for machine in (*MACHINES, OutOfCoreLinearSVC(loss="squared_hinge"))
    ],
    ids=name,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::sklearn.exceptions.DataConversionWarning")
def test_conventions_of_scikit_learn(machine):
    linear_one = isinstance(machine, OutOfCoreLinearSVC | OutOfCoreLinearSVR)
    for model, check in estimator_checks_generator(machine):
        check_name = getattr(check, "func", check).__name__
        if linear_one and check_name.startswith("check_sample_weight_equivalence"):
            model.set_params(tol=1e-8)  # it compares to that many digits, and rows come in another order
        if check_name != "check_array_api_input":  # skipped unless an environment variable is set
            check(model)


@pytest.mark.once
@pytest.mark.parametrize(
    ("machine", "weight", "close"),
    [
        (CSMOClassifier(gamma=0.5), {1: 3.0}, 1e-8),
        (CSMOOneClass(nu=0.3, gamma=0.3, tol=1e-7), None, 1e-6),
        (HSSADMMClassifier(gamma=0.5, leaf_size=32, rel_tol=0.05), {1: 3.0}, 1e-8),
        (HierarchicalSVC(gamma=0.5, n_trees=1, tol=1e-5, max_iter=5000), {1: 3.0}, 5e-3),
    ],
    ids=name,
)
def test_weights_are_repetitions_and_zero_is_absence(machine, weight, close):
    X, y = problem(150)
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    often = np.repeat(np.arange(len(y)), weights)
    one, repeated = clone(machine).fit(X, y, sample_weight=weights), clone(machine).fit(X[often], y[often])
    np.testing.assert_allclose(one.decision_function(X), repeated.decision_function(X), rtol=1e-9, atol=close)
    assert (weights[one.support_] > 0).all()
    if weight:
        heavy = clone(machine).set_params(class_weight=weight).fit(X, y)
        same = clone(machine).fit(X, y, np.where(y > 0, 3.0, 1.0))
        np.testing.assert_allclose(heavy.decision_function(X), same.decision_function(X), rtol=1e-9, atol=close)


CSMO, HSS, FOREST = CSMOClassifier(gamma=0.5), HSSADMMClassifier(gamma=0.5), HierarchicalSVC(n_trees=2, leaf_size=32, rank=12)
SVC = OutOfCoreLinearSVC()


@pytest.mark.once
@pytest.mark.parametrize(
    ("machine", "parameters", "message"),
    [
        *((machine, {"C": 0.0}, "C must be") for machine in (CSMO, CSMORegressor(), HSS, FOREST, SVC)),
        *(
            (machine, {"class_weight": {7: 1.0}}, "class_weight has labels|labels that y does not have")
            for machine in (CSMO, HSS, FOREST)
        ),
        *((machine, {"epsilon": -1.0}, "epsilon must be") for machine in (CSMORegressor(), OutOfCoreLinearSVR())),
        (CSMO, {"C": np.nan}, "C must be a finite number above 0"),
        (CSMO, {"coef0": np.inf}, "coef0 must be a finite number"),
        (CSMO, {"decision_function_shape": "one"}, "decision_function_shape must be one of"),
        (CSMO, {"kernel": "cosine"}, "kernel must be one of"),
        (CSMO, {"gamma": -1.0}, "gamma must be"),
        (CSMO, {"degree": 2.5}, "degree must be an integer"),
        (CSMO, {"tol": 0.0}, "tol must be"),
        (CSMO, {"cache_size": np.nan}, "cache_size must be"),
        (CSMO, {"max_iter": 1.5}, "max_iter must be an integer"),
        (CSMO, {"class_weight": {1: -1.0}}, "class_weight"),
        (CSMOOneClass(), {"nu": 1.5}, "nu must be"),
        *((CSMO, {"n_jobs": n_jobs}, "n_jobs must be") for n_jobs in (0, 1.5, True, "2")),
        (HSS, {"gamma": "auto2"}, "gamma must be one of"),
        (HSS, {"beta": "best"}, "beta must be one of 'balanced', 'paper'"),
        (HSS, {"beta": 0.0}, "beta must be"),
        (HSS, {"relaxation": 2.0}, "relaxation must be below 2"),
        (HSS, {"max_iter": 0}, "max_iter must be"),
        (HSS, {"rel_tol": 0.0}, "rel_tol or abs_tol"),
        *((machine, {"random_state": "a"}, "cannot be used to seed") for machine in (HSS, FOREST)),
        *(
            (HSS, {name: value}, f"{name} must be")
            for name in ("max_rank", "leaf_size", "n_neighbors", "tol")
            for value in ("many", -1)
        ),
        (FOREST, {"n_trees": 0}, "n_trees must be"),
        (FOREST, {"leaf_size": 1}, "leaf_size must be"),
        (FOREST, {"rank": "all"}, "rank must be one of 'auto'"),
        (FOREST, {"class_weight": [1.0, 2.0]}, r"class_weight must be a dictionary, 'balanced' or None, not \[1.0, 2.0\]"),
        (FOREST, {"kernel": "sigmoid"}, "kernel must be one of 'rbf', 'linear', 'poly', not 'sigmoid'"),
        (SVC, {"loss": "log"}, "loss must be"),
        (SVC, {"tol": -1.0}, "tol must be"),
        (SVC, {"max_iter": 0}, "max_iter must be"),
        (SVC, {"intercept_scaling": 0.0}, "intercept_scaling must be"),
        (SVC, {"random_state": -1}, "random_state must be"),
        (SVC, {"memory_limit": None}, "memory_limit must be"),
    ],
    ids=lambda value: name(value) if isinstance(value, BaseEstimator) else str(value).partition(" at 0x")[0],
)
def test_bad_parameters_do_not_change_the_model(machine, parameters, message):
    X, y = problem()
    model = clone(machine).fit(X, y)
    model.set_params(**parameters)
    refused(message, model.fit, X + 1.0, y)


@pytest.mark.parametrize("machine", MACHINES, ids=name)
def test_invalid_rows_do_not_change_the_model(machine):
    X, y = problem()
    model = clone(machine).fit(X, y)
    refused("NaN", model.fit, np.where(X > 1.0, np.nan, X), y)
    refused("[Nn]egative", model.fit, X, y, sample_weight=-np.ones(60))
    if is_classifier(model):
        refused("only one class", model.fit, X, np.ones(60, int))


@pytest.mark.once
def test_a_machine_that_is_its_own_parameter_is_refused():
    state = {**vars(CSMOClassifier()), "class_weight": CSMOClassifier()}
    refused("its class_weight is a CSMOClassifier", CSMOClassifier.__new__(CSMOClassifier).__setstate__, state)
