"""Learners that can be exported as C that learns, and rows for them."""

import numpy as np

from streamsvm import BSCAClassifier, BSGDClassifier, Merge

KINDS = [
    (BSGDClassifier, {"scaling": None, "gamma": 0.2}),
    (BSGDClassifier, {"scaling": None, "gamma": 0.2, "learning_rate": "pegasos", "l2": 1e-3, "fit_intercept": True}),
    (BSGDClassifier, {"scaling": None, "gamma": 0.2, "learning_rate": "constant", "eta0": 0.1, "averaging": 0}),
    (BSGDClassifier, {"scaling": None, "gamma": 0.2, "learning_rate": "floor", "eta0": 0.1, "maintenance": Merge()}),
    (BSCAClassifier, {"scaling": None, "gamma": 0.2}),
    (BSCAClassifier, {"scaling": None, "gamma": 0.2, "reprocess": 3, "C": 0.1}),
]


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n) > 0.0).astype(int)


def learner(kind, parameters, n=40, budget=15):
    model = kind(budget=budget, seed=0, **parameters)
    model.learn_many(*rows(n, seed=9))
    return model


def assert_equal(model, restored, tolerance):
    for name in ("vectors", "coefficients", "biases", "weights", "stamps"):
        a, b = (np.asarray(getattr(learner._store.views, name), np.float64) for learner in (model, restored))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)
    for name in model._common.dtype.names:
        np.testing.assert_allclose(restored._common[name], model._common[name], rtol=tolerance, atol=tolerance, err_msg=name)
