"""Passes over a batch in the dual: against a twin, against the optimum, and what is left of them where they are refused."""

import pickle

import numpy as np
import pytest
from numba import config
from scipy import optimize

import naive
from streamsvm import BSCAClassifier, BSCARegressor

ROWS = 50 if config.DISABLE_JIT else 150
EPOCHS = 60 if config.DISABLE_JIT else 400
EXACT = {"relaxation": 1.0, "averaging": 0, "gamma": 0.8, "seed": 0}


def blobs(classes=2, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    X = rng.normal(size=(rows, 2)) + 1.2 * np.column_stack([np.cos(2 * np.pi * y / classes), np.sin(2 * np.pi * y / classes)])
    return X.astype(np.float32), y


def numbers(rows=ROWS):
    X, y = blobs(rows=rows)
    return X, y + 0.3 * X[:, 0].astype(float)


def gram(X, gamma=0.8):
    X = np.asarray(X, float)
    return np.exp(-gamma * ((X[:, None] - X[None]) ** 2).sum(axis=2))


@pytest.mark.parametrize("options", [{}, {"relaxation": 1.5, "tol": 0.2}, {"averaging": 40}], ids=str)
@pytest.mark.parametrize("kind", [BSCAClassifier, BSCARegressor])
def test_steps_are_those_of_the_twin(kind, options):
    X, y = blobs(rows=60) if kind is BSCAClassifier else numbers(60)
    w = np.random.default_rng(5).uniform(0.5, 2.0, size=60)
    if kind is BSCAClassifier:
        targets, rule = np.where(y == 1, 1.0, -1.0), {"tol": 0.0, **options}
        twin = naive.NaiveEpochs(15, 0.8, 0.7, **options)
    else:
        options = {name: value for name, value in options.items() if name != "tol"}
        targets, rule = y, {"epsilon": 0.1, **options}
        twin = naive.NaiveEpochs(15, 0.8, 0.7, epsilon=0.1, **options)
    model = kind(budget=15, C=0.7, **{**EXACT, **rule})
    solution = model.learn_epochs(X, y, w, epochs=1)
    expected = np.zeros(60)
    for i in np.random.default_rng(naive.split_mix(0)).permutation(60):
        twin.visit(i, X[i], targets[i], w[i], expected)
    np.testing.assert_allclose(solution.coefficients, expected, atol=2e-3)
    twins = np.array([twin.decisions(x) for x in X])
    for column, output in enumerate(("last", "average") if "averaging" in options else ("last",)):
        got = (
            model.decision_function_many(X, output) if kind is BSCAClassifier else model._decisions(X, np.arange(2), column)[:, 0]
        )
        np.testing.assert_allclose(got, twins[:, column], atol=5e-3)
    assert model.n_merges > 5


def box_optimum(K, gain, low, high):
    """The largest of gain(a) - a'Ka / 2 over a box, by L-BFGS-B: ``gain`` gives value and slope."""

    def lost(a):
        value, slope = gain(a)
        return 0.5 * a @ K @ a - value, K @ a - slope

    found = optimize.minimize(
        lost,
        np.zeros(len(K)),
        jac=True,
        bounds=list(zip(low, high, strict=True)),
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return -found.fun


def test_without_merges_passes_reach_the_optimum_of_classification():
    X, y = blobs()
    w = np.random.default_rng(1).uniform(0.2, 2.0, size=ROWS)
    w[::7] = 0.0
    duals = []
    model = BSCAClassifier(budget=ROWS, C=0.9, tol=1e-3, **EXACT)
    solution = model.learn_epochs(X, y, w, EPOCHS, lambda solution: duals.append(solution.dual()))
    sign, C = np.where(y == 1, 1.0, -1.0), 0.9 * w
    best = box_optimum(gram(X), lambda a: (sign @ a, sign), np.minimum(sign * C, 0.0), np.maximum(sign * C, 0.0))
    assert duals == sorted(duals)  # exact steps never lose
    assert solution.dual() == pytest.approx(best, rel=1e-4)
    assert solution.primal() == pytest.approx(best, rel=5e-3)
    a = solution.coefficients
    assert a.shape == (ROWS,)
    assert (a[::7] == 0.0).all()
    assert ((sign * a >= 0.0) & (sign * a <= C)).all()
    f = gram(X) @ a
    assert solution.primal() == pytest.approx(0.5 * a @ f + C @ np.maximum(1.0 - sign * f, 0.0), rel=1e-4)
    assert solution.dual() == pytest.approx(sign @ a - 0.5 * a @ f, rel=1e-4)
    assert solution.n_stepped[-1] == 0  # it ended by itself
    assert solution.n_epochs < EPOCHS


def test_without_merges_passes_reach_the_optimum_of_regression():
    X, y = numbers()
    model = BSCARegressor(budget=ROWS, C=2.0, epsilon=0.05, **EXACT)
    solution = model.learn_epochs(X, y, epochs=EPOCHS)
    both = np.ones(ROWS)

    def gain(a):  # alpha and alpha*
        up, down = a[:ROWS], a[ROWS:]
        return y @ (up - down) - 0.05 * a.sum(), np.concatenate([y - 0.05, -y - 0.05])

    K = np.kron([[1.0, -1.0], [-1.0, 1.0]], gram(X))
    best = box_optimum(K, gain, np.zeros(2 * ROWS), 2.0 * np.concatenate([both, both]))
    assert solution.dual() == pytest.approx(best, rel=1e-3)
    assert solution.primal() == pytest.approx(best, rel=1e-2)
    a = solution.coefficients
    f = gram(X) @ a
    assert solution.primal() == pytest.approx(0.5 * a @ f + 2.0 * np.maximum(np.abs(y - f) - 0.05, 0.0).sum(), rel=1e-4)
    np.testing.assert_allclose(model.predict_many(X), f, atol=1e-3)


def test_without_merges_passes_close_the_gap_of_several_classes():
    X, y = blobs(classes=4)
    w = np.random.default_rng(1).uniform(0.2, 2.0, size=ROWS)
    model = BSCAClassifier(budget=ROWS, C=1.2, tol=1e-3, **EXACT)
    duals = []
    solution = model.learn_epochs(X, y, w, EPOCHS, lambda solution: duals.append(solution.dual()))
    assert duals == sorted(duals)
    names = model.labels
    own = np.array([names.index(label) for label in y])
    a = solution.coefficients
    rows = np.arange(ROWS)
    np.testing.assert_allclose(a.sum(axis=1), 0.0, atol=1e-12)
    assert (a[rows, own] <= 0.6 * w + 1e-12).all()
    assert (np.delete(a, 0, axis=1)[own == 0] <= 0.0).all()
    f = gram(X) @ a
    rivals = f.copy()
    rivals[rows, own] = -np.inf
    primal = 0.5 * (a * f).sum() + 0.6 * w @ np.maximum(1.0 - f[rows, own] + rivals.max(axis=1), 0.0)
    dual = a[rows, own].sum() - 0.5 * (a * f).sum()
    assert solution.primal() == pytest.approx(primal, rel=1e-4)
    assert solution.dual() == pytest.approx(dual, rel=1e-4)
    assert 0.0 <= primal - dual < 1e-2 * primal  # a gap proves both


@pytest.mark.parametrize("classes", [2, 3])
def test_the_unmerged_model_is_that_of_the_coefficients(classes):
    X, y = blobs(classes)
    model = BSCAClassifier(budget=10, C=0.5, replay=20, **EXACT)
    solution = model.learn_epochs(X, y, epochs=2)
    whole = solution.unmerged()
    f = gram(X) @ solution.coefficients
    np.testing.assert_allclose(np.asarray(whole.decision_function_many(X)), f, atol=1e-4)
    assert whole.labels == model.labels
    assert whole.n_support == np.count_nonzero(solution.coefficients.reshape(ROWS, -1).any(axis=1)) > 10
    assert model.n_support == 10
    pickle.loads(pickle.dumps(whole)).learn_many(X, y)


def test_passes_go_on_from_what_was_learned_and_learning_goes_on_from_them():
    X, y = blobs(classes=3)
    model = BSCAClassifier(budget=12, seed=0, replay=20)
    model.learn_many(X[:20], y[:20] % 2)
    solution = model.learn_epochs(X, y, epochs=3)
    assert solution.n_epochs == len(solution.n_stepped) == 3
    assert model.n_learned == 20 + 3 * ROWS
    assert sorted(model.labels) == [0, 1, 2]
    assert {tuple(row) for row in model._store.views.window[:, :2].tolist()} <= {tuple(row) for row in X.tolist()}
    again = pickle.loads(pickle.dumps(model))
    for one in (model, again):
        one.learn_many(X, y)
    assert model._store.snapshot() == again._store.snapshot()


@pytest.mark.parametrize(
    ("X", "y", "w", "epochs", "message"),
    [
        ([[1.0], [np.nan], [2.0]], [0, 1, 2], [0.0, 1.0, 1.0], 2, "row 1: feature 0 is nan"),
        ([[1.0], [1.0], [2.0]], [0, 1, None], [0.0, 1.0, 1.0], 2, "row 2: label None"),
        ([[1.0], [1.0], [2.0]], [0, 1], 1.0, 2, "X has 3 rows, y 2"),
        ([[1.0], [1.0], [2.0]], [0, 1, 2], -1.0, 2, "w must be finite"),
        ([[1.0], [1.0], [2.0]], [0, 1, 2], 1.0, 0, "epochs must be an integer"),
    ],
)
def test_a_batch_that_is_refused_leaves_the_model_as_it_was(X, y, w, epochs, message):
    model = BSCAClassifier(budget=5, seed=0)
    model.learn_many(np.ones((2, 1)), ["a", "b"])
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=message):
        model.learn_epochs(np.array(X), y, w, epochs)
    assert pickle.dumps(model) == before
    with pytest.raises(ValueError, match="on_epoch must be a function"):
        model.learn_epochs(np.ones((2, 1)), ["a", "b"], on_epoch=3)


def test_an_interrupted_pass_leaves_a_model_that_goes_on():
    X, y = blobs()
    model = BSCAClassifier(budget=12, seed=0)

    def stop(solution):
        if solution.n_epochs == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn_epochs(X, y, on_epoch=stop)
    assert model.n_learned == 2 * ROWS
    pickle.loads(pickle.dumps(model)).learn_many(X, y)


def test_no_rows_are_no_work():
    model = BSCAClassifier(budget=5)
    solution = model.learn_epochs(np.empty((0, 3)), [])
    assert solution.n_stepped == [0]
    assert solution.coefficients.shape == (0,)
    assert solution.primal() == solution.dual() == 0.0
