"""Budgeted learners against their twins, step by step: the same decisions and support vectors."""

import numpy as np
import pytest
from river import base, datasets

import naive
from problems import waves
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor, Merge, OneClassBSGD, Projection, Removal

SMALL = {"budget": 15, "gamma": 0.8, "scaling": None}


def bsgd(**options):
    keep = type(options.get("maintenance", Merge())).__name__.lower()
    rest = {name: value for name, value in options.items() if name != "maintenance"}
    return BSGDClassifier(**SMALL, l2=1e-3, seed=0, **options), naive.NaiveBSGD(15, 0.8, 1e-3, keep=keep, **rest), 2e-5


def bsca(**options):
    options = {"relaxation": 1.0, "tol": 0.0, "averaging": 0, **options}
    return BSCAClassifier(**SMALL, reprocess=0, seed=0, **options), naive.NaiveBSCA(15, 0.8, **options), 1e-4


def bsgd_numbers(**options):
    return (
        BSGDRegressor(**SMALL, **options),
        naive.NaiveBSGDRegression(15, 0.8, **{"eta0": 0.1, "fit_intercept": True, **options}),
        1e-4,
    )


def bsca_numbers(**options):
    return BSCARegressor(**SMALL, **options), naive.NaiveBSCARegression(15, 0.8, **options), 1e-4


def one_class():
    return OneClassBSGD(**SMALL, nu=0.2, averaging=100), naive.NaiveOneClass(15, 0.8, 0.2, 100), 1e-4


CASES = [
    *(
        pytest.param(bsgd, options, id=f"bsgd {options}")
        for options in (
            {},
            {"averaging": 50, "fit_intercept": True, "maintenance": Merge("gss-precise")},
            {"averaging": 0, "learning_rate": "pegasos"},
            {"learning_rate": "constant", "eta0": 0.5, "maintenance": Merge("lookup-h")},
            {"learning_rate": "floor", "eta0": 20.0},
            {"maintenance": Removal()},
            {"maintenance": Projection()},
        )
    ),
    *(
        pytest.param(make, options, id=f"{make.__name__} {options}", marks=pytest.mark.once)
        for make, options in (
            (bsca, {"C": 1.0}),
            (bsca, {"C": 0.2, "relaxation": 1.5}),
            (bsca, {"C": 100.0, "relaxation": 0.5, "averaging": 30}),
            (bsca, {"C": 5.0, "tol": 0.3, "averaging": 1000}),
            (bsgd_numbers, {"l2": 1e-3, "epsilon": 0.2, "averaging": 50, "fit_intercept": True}),
            (bsgd_numbers, {"l2": 1e-2, "epsilon": 0.0, "learning_rate": "constant", "eta0": 0.5}),
            (bsca_numbers, {"C": 0.5, "epsilon": 0.1, "relaxation": 0.7, "averaging": 100}),
            (one_class, {}),
        )
    ),
]


@pytest.mark.parametrize(("make", "options"), CASES)
def test_decisions_are_those_of_the_twin(make, options):
    model, twin, atol = make(**options)
    classifier = isinstance(model, base.Classifier)
    n = 60 if classifier else 50  # later one close decision between two merges may set the two apart
    rows = [([x["1"], x["2"]], y) for x, y in datasets.Bananas().take(n)] if classifier else zip(*waves(n), strict=True)
    for number, (row, y) in enumerate(rows):
        row = np.array(row, np.float32)
        x, expected = dict(enumerate(row.tolist())), twin.decisions(row)
        decide, outputs = (model.decision_function_one, ("last", "average")) if classifier else (model._compute_output, (0, 1))
        got = [decide(x, output) for output in outputs]
        np.testing.assert_allclose(got, expected, atol=atol * (sum(map(abs, twin.last)) + 1.0))
        weight = 1.0 if number % 7 or make is one_class else 0.5
        model.learn_one(x, *([] if make is one_class else [y, weight]))
        twin.learn(row, (1.0 if y else -1.0) if classifier else y, weight)
        assert make is not bsgd or model.n_support == len(twin.vectors)
        assert make is not bsgd or abs(model._common["error"][0][0] - twin.errors[0]) < 0.05
    assert classifier or model.n_merges > 5
