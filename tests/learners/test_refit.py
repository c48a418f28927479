"""Refitting of coefficients to rows in several partitions."""

import copy

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.refit import LineSearch, NormalEquations, take_step

ROWS = 240


def problem(classes, seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)).astype(np.float32)
    f = np.sin(2.0 * X[:, 0]) + X[:, 1]
    if classes == 0:
        return X, f
    y = (f > 0.3).astype(int) if classes == 2 else np.digitize(f, [-0.5, 0.5])
    return X, np.where(rng.random(rows) < 0.1, (y + 1) % classes, y)


def fitted(kind, classes, **parameters):
    X, y = problem(classes)
    model = kind(budget=12, gamma=0.5, seed=0, **parameters)
    model.learn_many(X, y)
    return model, X, y


def kernels(model, X):
    Z = model.support_vectors.astype(float)
    X = X.astype(float) if model.scaling is None else model.scale_in_use.transform(X)
    return np.exp(-model.effective_gamma * np.square(X[:, None] - Z).sum(axis=2))


def kernels_of_vectors(model):
    Z = model.support_vectors.astype(float)
    return np.exp(-model.effective_gamma * np.square(Z[:, None] - Z).sum(axis=2))


def loss_of(model, X, y, w, ridge):
    """The twin: the loss over rows, of all outputs, as a function of the coefficients."""
    K, between = kernels(model, X), kernels_of_vectors(model)
    rows, places = np.arange(len(y)), [model.labels.index(label) for label in y] if len(model.coefficients) > 1 else None

    def loss(a):
        total = 0.5 * ridge * sum(one @ between @ one for one in a)
        F = K @ a.T + model.intercept
        if isinstance(model, BSCARegressor):
            return total + 0.5 * w @ (y - F[:, 0]) ** 2
        if len(a) == 1:
            signs = np.where(y == model.positive_label, 1.0, -1.0)
            return total + 0.5 * w @ np.maximum(0.0, 1.0 - signs * F[:, 0]) ** 2
        own = F[rows, places]
        F[rows, places] = -np.inf
        return total + 0.25 * w @ np.maximum(0.0, 1.0 - own + F.max(axis=1)) ** 2

    return loss


def step_by_parts(model, X, y, w, parts, ridge=0.1):
    equations = NormalEquations.zeros(model)
    for part in np.array_split(np.arange(len(y)), parts):
        equations.add(NormalEquations.from_rows(model, X[part], y[part], w[part]))
    step, trial = equations.compute_step(model, ridge), LineSearch.zeros()
    for part in np.array_split(np.arange(len(y)), parts):
        trial.add(LineSearch.from_rows(model, step, X[part], y[part], w[part]))
    return step, trial


CASES = [(BSCAClassifier, 2), (BSGDClassifier, 2), (BSCAClassifier, 3), (BSCARegressor, 0)]


@pytest.mark.once
@pytest.mark.parametrize("scaling", ["auto", None])
@pytest.mark.parametrize(("kind", "classes"), CASES)
def test_steps_converge_to_the_minimum(kind, classes, scaling):
    model, X, y = fitted(kind, classes, scaling=scaling)
    w = np.random.default_rng(1).uniform(0.2, 3.0, len(y))
    X, y, w = X[::3], y[::3], w[::3]
    shape, loss = model.coefficients.shape, loss_of(model, X, y, w, 0.1)
    best = optimize.minimize(lambda a: loss(a.reshape(shape)), model.coefficients.ravel())
    before = loss(model.coefficients)
    for _ in range(12):
        step, trial = step_by_parts(model, X, y, w, 1)
        take_step(model, step, trial)
        after = loss(model.coefficients)
        assert after <= before * (1.0 + 1e-9)
        before = after
    # Of several outputs the loss has edges, on which steps that go output by output may end.
    assert after == pytest.approx(best.fun, rel=0.05 if classes > 2 else 1e-6)


@pytest.mark.once
@pytest.mark.parametrize(("kind", "classes"), CASES)
def test_sums_of_partitions_give_the_step_of_all_rows(kind, classes):
    model, X, y = fitted(kind, classes)
    one, five = (step_by_parts(model, X, y, np.ones(len(y)), parts) for parts in (1, 5))
    np.testing.assert_allclose(five[0], one[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(five[1].sums, one[1].sums, rtol=1e-6)


def test_refits_use_class_weights():
    model, X, y = fitted(BSCAClassifier, 2, class_weight={1: 5.0})
    weights = np.where(y == 1, 5.0, 1.0)
    plain = copy.deepcopy(model)
    plain._class_weights = None
    np.testing.assert_allclose(
        NormalEquations.from_rows(model, X, y).g, NormalEquations.from_rows(plain, X, y, weights).g, rtol=1e-9
    )


def test_a_step_that_goes_too_far_is_shortened():
    model, X, y = fitted(BSCAClassifier, 2)
    w = np.ones(len(y))
    step, _ = step_by_parts(model, X, y, w, 1)
    loss, a = loss_of(model, X, y, w, 0.1), model.coefficients
    before = loss(a)
    for factor, sizes in ((2.0, (0.25, 0.5)), (1e3, (0.0,)), (-1.0, (0.0,))):
        shortened = copy.deepcopy(model)
        size = take_step(shortened, factor * step, LineSearch.from_rows(model, factor * step, X, y))
        assert size in sizes
        np.testing.assert_allclose(shortened.coefficients, a + size * factor * step)
        assert loss(shortened.coefficients) <= before


@pytest.mark.once
@pytest.mark.parametrize(("kind", "classes"), CASES[:3])
def test_refits_calibrate_probabilities(kind, classes):
    X, y = problem(classes, rows=4 * ROWS)
    model = kind(budget=12, gamma=0.5, seed=0)
    model.learn_many(X[:ROWS], y[:ROWS])
    step, trial = step_by_parts(model, X, y, np.ones(len(y)), 2)
    take_step(model, step, trial)

    F = model.decision_function_many(X)
    f = np.column_stack([-F, F]) / 2.0 if classes == 2 else F
    order = model.labels if classes > 2 else sorted(model.labels, key=lambda label: label == model.positive_label)
    places = [order.index(label) for label in y]

    def log_loss(factor):
        odds = np.exp(factor * (f - f[np.arange(len(f)), places][:, None]))
        return np.log(odds.sum(axis=1)).mean()

    factor = np.exp(model._common["slope"][0, 0]) / max(model._common["size"][0, 0], 1.0)
    assert log_loss(factor) == pytest.approx(min(log_loss(factor * by) for by in np.geomspace(0.1, 10.0, 201)), rel=1e-3)
    probabilities = model.predict_proba_many(X)[np.arange(len(y)), places]
    assert -np.log(probabilities).mean() == pytest.approx(log_loss(factor), rel=0.01)  # which has no prior
    wrong = np.mean(model.predict_many(X) != y)
    assert model._common["error"][0, 0] == pytest.approx(wrong, abs=1e-9)


def test_refits_match_columns_by_name():
    X, y = problem(2)
    model = BSCAClassifier(budget=12, gamma=0.5)
    model.learn_many(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    turned = NormalEquations.from_rows(model, pd.DataFrame(X[:, ::-1], columns=["c", "b", "a"]), y)
    np.testing.assert_array_equal(turned.g, NormalEquations.from_rows(model, pd.DataFrame(X, columns=["a", "b", "c"]), y).g)


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda X, y: (X, np.where(y == 1, 7, y)), "labels that the model has not learned"),
        (lambda X, y: (np.where(X > 0.0, np.nan, X), y), "not finite"),
        (lambda X, y: (X[:-1], y), "rows"),
    ],
)
def test_refits_refuse_invalid_rows(change, reason):
    model, X, y = fitted(BSCAClassifier, 2)
    refused(reason, NormalEquations.from_rows, model, *change(X, y))


def linear(kind, fit_intercept):
    X, y = problem(0 if kind is OnlineLinearSVR else 2)
    model = kind(fit_intercept=fit_intercept)
    model.learn_many(X, y)
    return model, X, y


def linear_loss(model, a, X, y, w):
    """The slow twin: row by row, of weights and, where one is fitted, of the intercept."""
    total = 0.05 * a @ a
    for x, label, weight in zip(X.astype(float), y, w, strict=True):
        f = a[:3] @ x + a[3:].sum()
        if isinstance(model, OnlineLinearSVR):
            total += 0.5 * weight * (label - f) ** 2
        else:
            total += 0.5 * weight * max(0.0, 1.0 - (1.0 if label == model.positive_label else -1.0) * f) ** 2
    return total


@pytest.mark.once
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", [OnlineLinearSVC, OnlineLinearSVR])
def test_steps_of_linear_models_converge_to_the_minimum(kind, fit_intercept):
    model, X, y = linear(kind, fit_intercept)
    w = np.random.default_rng(1).uniform(0.2, 3.0, len(y))
    size = 3 + fit_intercept
    best = optimize.minimize(lambda a: linear_loss(model, a, X, y, w), np.zeros(size), tol=1e-10)
    for _ in range(12):
        step, trial = step_by_parts(model, X, y, w, 3)
        take_step(model, step, trial)
    assert step.shape == (1, size)
    weights = np.append(model.coefficients, model.intercept)
    assert linear_loss(model, weights[:size], X, y, w) == pytest.approx(best.fun, rel=1e-9)
    np.testing.assert_allclose(weights[:size], best.x, rtol=1e-4, atol=1e-6)
    assert fit_intercept or model.intercept == 0.0


def test_a_refit_does_not_change_an_unfitted_intercept():
    X, y = problem(2)
    model = OnlineLinearSVC(fit_intercept=False)
    model.start_from([1.0, 0.0, 0.0], 0.7, labels=[0, 1])
    step, trial = step_by_parts(model, X, y, np.ones(len(y)), 2)
    assert take_step(model, step, trial) > 0.0
    assert model.intercept == 0.7


def test_refits_calibrate_probabilities_of_linear_models():
    model, X, y = linear(OnlineLinearSVC, True)
    take_step(model, *step_by_parts(model, X, y, np.ones(len(y)), 2))
    signs, f = np.where(y == 1, 1.0, -1.0), model.decision_function_many(X)
    factor = np.exp(model._common["slope"][0, 0]) / max(model._common["size"][0, 0], 1.0)

    def log_loss(factor):
        return np.log1p(np.exp(-factor * signs * f)).mean()

    assert log_loss(factor) == pytest.approx(min(log_loss(factor * by) for by in np.geomspace(0.1, 10.0, 201)), rel=1e-3)
