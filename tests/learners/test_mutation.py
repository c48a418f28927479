"""Parameters that change on trained models: they keep predictions, or are refused. Differences of two models."""

import copy
import pickle

import numpy as np
import pytest
from river import compose, metrics, preprocessing

from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor, SVMClassifier, SVMRegressor
from streamsvm.core.mutation import compare_parameters
from streamsvm.learners import NOGD, KernelPegasos, KernelRLSClassifier, OneClassBSGD, OnlineLinearSVC, Projectron
from streamsvm.learners.conformal import ConformalClassifier
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.tables import TableEncoder

RNG = np.random.default_rng(0)
ROWS = [dict(zip("abc", row, strict=True)) for row in RNG.normal(size=(160, 3)).tolist()]
TWO = [x["a"] * x["b"] > 0.0 for x in ROWS]
THREE = ["low" if x["a"] < -0.5 else "high" if x["a"] > 0.5 else "middle" for x in ROWS]
NUMBERS = [x["a"] * x["b"] for x in ROWS]


def trained(model, labels=TWO, rows=ROWS[:120]):
    for x, y in zip(rows, labels, strict=False):
        model.learn_one(x) if isinstance(model, OneClassBSGD) else model.learn_one(x, y)
    return model


def answers(model):
    ask = next(getattr(model, name) for name in ("predict_proba_one", "score_one", "predict_one") if hasattr(model, name))
    return [ask(x) for x in ROWS[120:]]


def with_parameters(model, **parameters):
    """A copy that is restored with other parameters of the same sizes, as if its file had them."""
    state = model.__getstate__()
    state["parameters"] |= parameters
    changed = copy.deepcopy(model)
    for name in parameters.keys() & model._rule.state.names:
        changed._rule_record[name] = parameters[name]
    state["store"] = changed._store.snapshot()
    restored = type(model).__new__(type(model))
    restored.__setstate__(state)
    return restored


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "labels"),
    [
        (BSGDClassifier(budget=30, seed=0), TWO),
        (BSGDClassifier(budget=30, seed=0), THREE),
        (BSCARegressor(budget=30, seed=0, scaling=None), NUMBERS),
        (Projectron(budget=30), TWO),
        (OneClassBSGD(budget=30, seed=0), None),
        (KernelPegasos(budget=150), TWO),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "learn_one") else "",
)
def test_a_larger_budget_changes_no_prediction(model, labels):
    model = trained(model, labels or TWO)
    before, n_support = answers(model), model.n_support
    model.mutate({"budget": 200})
    assert answers(model) == before
    assert (model.budget, model.n_support, model._store.budget) == (200, n_support, 200)
    assert answers(pickle.loads(pickle.dumps(model))) == before
    trained(model, labels or TWO, ROWS)
    assert model.n_support > n_support


@pytest.mark.once
@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier])
def test_a_smaller_budget_merges_support_vectors(kind, labels):
    model = trained(kind(budget=60, seed=0), labels)
    n_support, n_merges = model.n_support, model.n_merges
    assert n_support > 12
    model.mutate({"budget": 12})
    assert (model.n_support, model._store.budget, model.n_merges) == (12, 12, n_merges + n_support - 12)
    # As accurate on the rows that follow as a model that is made with this budget.
    small = trained(kind(budget=12, seed=0), labels)
    shares = [np.mean([m.predict_one(x) == y for x, y in zip(ROWS[120:], labels[120:], strict=True)]) for m in (model, small)]
    assert shares[0] > shares[1] - 0.15
    assert model.nbytes == small.nbytes
    trained(model, labels, ROWS)
    assert model.n_support == 12


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (BSGDClassifier(budget=20, seed=0), {"l2": 1e-3, "eta0": 0.5}),
        (BSCAClassifier(budget=20, seed=0), {"C": 3.0, "relaxation": 1.0, "tol": 0.1, "reprocess": 2}),
        (OnlineLinearSVC(), {"C": 0.1}),
        (NOGD(budget=20), {"eta0": 0.3}),
        (KernelRLSClassifier(budget=20), {"forgetting_factor": 0.99, "max_swaps": 1}),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "learn_one") else "",
)
def test_the_model_equals_one_that_is_restored_with_the_parameters(model, changes):
    model = trained(model)
    expected = with_parameters(model, **changes)
    model.mutate(changes)
    assert pickle.dumps(model) == pickle.dumps(expected)
    assert {name: getattr(model, name) for name in changes} == changes
    trained(model, TWO, ROWS)
    trained(expected, TWO, ROWS)
    assert model._store.snapshot() == expected._store.snapshot()


@pytest.mark.once
def test_epsilon_averaging_classes_and_features():
    model = trained(BSGDRegressor(budget=20, seed=0, max_features=3), NUMBERS)
    before = answers(model)
    refused("feature 'd' has no column left", model.learn_one, {"d": 1.0}, 0.0)
    model.mutate({"epsilon": 0.3, "averaging": 50, "max_features": 30})
    assert answers(model) == before
    assert (model._common["epsilon"][0], model._common["horizon"][0]) == (0.3, 50.0)
    model.learn_one({"d": 1.0}, 0.0)
    classifier = trained(BSGDClassifier(budget=20, seed=0, max_classes=2))
    with pytest.warns(UserWarning, match="max_classes=2"):
        classifier.learn_one(ROWS[0], "third")
    classifier.mutate({"max_classes": 3, "class_weight": {"third": 2.0}})
    classifier.learn_one(ROWS[0], "third")
    assert len(classifier.labels) == 3
    balanced = trained(BSGDClassifier(budget=20, seed=0))
    balanced.mutate({"class_weight": "balanced"})
    trained(balanced)
    assert sum(balanced._class_weights.counts.values()) == 120  # those of the rows before are not known


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0}, "budget of a BSGDClassifier cannot change: .*budget must be"),
        ({"l2": 1e-3, "kernel": "linear"}, "kernel of a BSGDClassifier cannot change"),
        ({"l2": -1.0, "budget": 50}, "l2, budget of a BSGDClassifier cannot change: l2 must"),
        ({"max_features": 2}, "max_features can grow from 4"),
        ({"max_classes": 2}, "max_classes of a BSGDClassifier cannot change: label .* exceeds max_classes=2"),
        ({"averaging": 0}, "averaging cannot be turned on or off"),
        ({"gamma": 1.0}, "gamma of a BSGDClassifier cannot"),
    ],
)
def test_a_refused_change_leaves_the_model_as_it_was(changes, message):
    model = trained(BSGDClassifier(budget=20, max_features=4, seed=0), THREE)
    before = pickle.dumps(model)
    refused(message, model.mutate, changes)
    assert pickle.dumps(model) == before


def test_a_model_without_budget_maintenance_cannot_lose_support_vectors():
    model = trained(KernelPegasos(budget=150))
    refused("support vectors, and its budget maintenance", model.mutate, {"budget": model.n_support - 1})
    model.mutate({"budget": model.n_support})


# Effort of ensembles ------------------------------------------------------------------------------------------------------------


def inputs(model, x):
    """The decision values of all experts, by name of the expert and of its output."""
    model.predict_one(x)
    names = [(expert.name, output) for expert in model._expert_specs for output in expert.outputs]
    return dict(zip(names, model._store.views.inputs[:, 2:].T.tolist(), strict=True))


@pytest.mark.parametrize(
    ("kind", "labels", "efforts"),
    [
        (SVMClassifier, TWO, ("low", "normal")),
        (SVMClassifier, THREE, ("normal", "low")),
        (SVMRegressor, NUMBERS, ("low", "normal")),
        pytest.param(SVMClassifier, THREE, ("low", "high"), marks=pytest.mark.thorough),
        pytest.param(SVMRegressor, NUMBERS, ("high", "normal"), marks=pytest.mark.thorough),
    ],
)
@pytest.mark.once
def test_experts_of_both_efforts_continue(kind, labels, efforts):
    model = trained(kind(efforts[0], seed=0, max_features=5), labels)
    before = [inputs(model, x) for x in ROWS[120:]]
    model.mutate({"effort": efforts[1]})
    assert model.effort == efforts[1]
    shared = 0
    for x, expected in zip(ROWS[120:], before, strict=True):
        for name, values in inputs(model, x).items():
            if name in expected and name[1] != "what others miss":  # depends on all experts
                shared += 1
                assert values == pytest.approx(expected[name], rel=1e-6, abs=1e-9), name
    assert shared >= 5 * len(before)
    again = pickle.loads(pickle.dumps(model))
    trained(model, labels, ROWS)
    trained(again, labels, ROWS)
    assert model._store.snapshot() == again._store.snapshot()
    for report in model.experts:
        assert np.isfinite(report.error)
        assert np.isfinite(report.weight)


@pytest.mark.once
def test_new_experts_are_not_taken_for_the_best():
    model = trained(SVMClassifier("low", seed=0))
    n_inputs = len(model._store.views.errors)
    worst = model._store.views.errors.max()
    model.mutate({"effort": "normal"})
    errors = model._store.views.errors
    assert len(errors) > n_inputs
    assert errors.max() == worst > 0.0
    assert sum(errors == worst) > len(errors) - n_inputs
    gammas = {
        expert.name: stores[0].views.header["gamma"][0] / expert.width
        for expert, stores in zip(model._expert_specs, model._store.stores, strict=True)
        if hasattr(expert, "width")
    }
    assert len(gammas) == 4
    assert len(set(gammas.values())) == 1


# Pipelines and wrappers ---------------------------------------------------------------------------------------------------------


def test_pipelines_and_wrappers_pass_changes_on():
    model = BoundedScaler() | BoundedTargetScaler(BSCARegressor(budget=20, seed=0))
    assert isinstance(trained(model, NUMBERS), compose.Pipeline)
    model.mutate({"BoundedScaler": {"deviations": 3}, "BoundedTargetScaler": {"deviations": 4.0, "regressor": {"C": 3.0}}})
    scaler, target = model.steps.values()
    assert (scaler._bound, target._scaler.deviations, target.regressor.C) == (3.0, 4.0, 3.0)
    assert scaler.counts["a"] == target._scaler.counts["target"] == 120
    refused("gamma of a BSCARegressor", model.mutate, {"BoundedTargetScaler": {"deviations": 5.0, "regressor": {"gamma": 3.0}}})
    refused("regressor must be a mapping", model.mutate, {"BoundedTargetScaler": {"regressor": BSCARegressor()}})
    assert target.deviations == 4.0


def test_costs_thresholds_and_levels_change():
    costs = trained(CostSensitiveClassifier(OnlineLinearSVC(), {True: 2.0}))
    costs.mutate({"costs": {True: 1e6}})
    assert all(costs.predict_one(x) for x in ROWS)
    refused("costs of a CostSensitiveClassifier.*above 0", costs.mutate, {"costs": {True: -1.0}})
    tuned = trained(TunedThresholdClassifier(OnlineLinearSVC(), metrics.F1()))
    counts = tuned._counts.copy()
    tuned.mutate({"metric": metrics.Precision(), "horizon": 500})
    assert (type(tuned.metric), tuned.horizon) == (metrics.Precision, 500)
    np.testing.assert_array_equal(tuned._counts, counts)
    refused("its positive label is True", tuned.mutate, {"metric": metrics.F1(pos_val=False)})
    conformal = trained(ConformalClassifier(OnlineLinearSVC()))
    threshold = conformal._calibration.threshold
    conformal.mutate({"level": 0.5, "window": 50})
    assert conformal._calibration.threshold < threshold
    assert len(conformal._calibration.scores) == 50


def test_a_table_model_changes_all_steps_or_none():
    model = TableEncoder("c:category", max_columns=10) | BSGDClassifier(budget=20, seed=0)
    trained(model)
    changes = {"TableEncoder": {"max_columns": 20}, "BSGDClassifier": {"kernel": "linear"}}
    refused("kernel of a BSGDClassifier", model.mutate, changes)
    assert model["TableEncoder"].max_columns == 10
    refused("'Scaler' is not a step", model.mutate, {"Scaler": {}})
    before = answers(model)
    model.mutate({"TableEncoder": {"max_columns": 20}, "BSGDClassifier": {"budget": 40}})
    assert (model["TableEncoder"].max_columns, model["BSGDClassifier"].budget) == (20, 40)
    assert answers(model) == before


# Differences -------------------------------------------------------------------------------------------------------------------


def test_differences_are_nested_and_separate_conflicts():
    saved, requested = (
        preprocessing.StandardScaler() | CostSensitiveClassifier(BSGDClassifier(budget=b, kernel=k), {True: c})
        for b, k, c in ((20, "rbf", 2.0), (30, "linear", 3.0))
    )
    trained(saved)
    differences = compare_parameters(saved, requested)
    assert differences.new_params == {"CostSensitiveClassifier": {"classifier": {"budget": 30}, "costs": {True: 3.0}}}
    assert differences.changes == ["BSGDClassifier budget: 20 -> 30", "CostSensitiveClassifier costs: {True: 2.0} -> {True: 3.0}"]
    assert differences.conflicts == ["BSGDClassifier kernel: 'rbf' -> 'linear'"]
    saved.mutate(differences.new_params)
    assert compare_parameters(saved, requested) == ({}, [], differences.conflicts)


@pytest.mark.parametrize(
    ("requested", "conflict"),
    [
        (BSCAClassifier(), "BSGDClassifier -> BSCAClassifier"),
        (BoundedScaler() | BSGDClassifier(), "BSGDClassifier -> Pipeline"),
        (CostSensitiveClassifier(BSGDClassifier(), {1: 2.0}), "BSGDClassifier -> CostSensitiveClassifier"),
    ],
)
def test_other_models_conflict(requested, conflict):
    assert compare_parameters(BSGDClassifier(), requested) == ({}, [], [conflict])


def test_other_wrapped_models_and_other_steps_conflict():
    wrapped = [CostSensitiveClassifier(kind(), {1: 2.0}) for kind in (BSGDClassifier, BSCAClassifier)]
    [conflict] = compare_parameters(*wrapped).conflicts
    assert "CostSensitiveClassifier classifier: " in conflict
    pipelines = preprocessing.StandardScaler() | BSGDClassifier(), preprocessing.MinMaxScaler() | BSGDClassifier()
    assert compare_parameters(*pipelines).conflicts == [
        "Pipeline: StandardScaler | BSGDClassifier -> MinMaxScaler | BSGDClassifier"
    ]
    metric = [TunedThresholdClassifier(BSGDClassifier(), metric) for metric in (metrics.F1(), metrics.MCC())]
    assert compare_parameters(*metric).new_params.keys() == {"metric"}
