"""Passes over a batch in the dual: against a twin and the optimum, and how learning continues after them."""

import pickle

import numpy as np
import pytest
from scipy import optimize

import naive
from failing import interrupted, interrupts
from lists import first
from problems import EPOCHS, EXACT, ROWS, blobs, gram, snapshot
from refused import raises, refused
from streamsvm import BSCAClassifier, BSCARegressor, Projection, Removal
from streamsvm.core.steps import decisions


def numbers(rows=ROWS):
    X, y = blobs(rows=rows)
    return X, y + 0.3 * X[:, 0].astype(float)


OPTIONS = first(1, [{"averaging": 40}, {"relaxation": 1.5, "tol": 0.2}, {}], pytest.mark.once)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
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
        S = model.support_vectors
        got = np.array([[naive.rbf(x, s, 0.8) for s in S] for x in X]) @ model._get_coefficients(output)[0]
        np.testing.assert_allclose(got, twins[:, column], atol=5e-3)
    assert model.n_merges > 5


def box_optimum(K, gain, low, high):
    """The largest of gain(a) - a'Ka / 2 over a box, by L-BFGS-B: ``gain`` gives value and slope."""

    def lost(a):
        value, slope = gain(a)
        return 0.5 * a @ K @ a - value, K @ a - slope

    result = optimize.minimize(
        lost,
        np.zeros(len(K)),
        jac=True,
        bounds=list(zip(low, high, strict=True)),
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return -result.fun


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


@pytest.mark.once
def test_without_merges_passes_reach_the_optimum_of_regression():
    X, y = numbers()
    model = BSCARegressor(budget=ROWS, C=2.0, epsilon=0.05, **EXACT)
    solution = model.learn_epochs(X, y, epochs=EPOCHS)
    unit_weights = np.ones(ROWS)

    def gain(a):  # alpha and alpha*
        up, down = a[:ROWS], a[ROWS:]
        return y @ (up - down) - 0.05 * a.sum(), np.concatenate([y - 0.05, -y - 0.05])

    K = np.kron([[1.0, -1.0], [-1.0, 1.0]], gram(X))
    best = box_optimum(K, gain, np.zeros(2 * ROWS), 2.0 * np.concatenate([unit_weights, unit_weights]))
    assert solution.dual() == pytest.approx(best, rel=1e-3)
    assert solution.primal() == pytest.approx(best, rel=1e-2)
    a = solution.coefficients
    f = gram(X) @ a
    assert solution.primal() == pytest.approx(0.5 * a @ f + 2.0 * np.maximum(np.abs(y - f) - 0.05, 0.0).sum(), rel=1e-4)
    np.testing.assert_allclose(model.predict_many(X), f, atol=1e-3)


@pytest.mark.once
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


@pytest.mark.parametrize(("relaxation", "tol"), [(1.5, 0.2), (0.7, 0.0)])
def test_steps_between_classes_are_those_of_the_twin(relaxation, tol):
    X, y = blobs(classes=4, rows=60)
    w = np.random.default_rng(5).uniform(0.3, 2.0, size=60)
    model = BSCAClassifier(budget=60, C=0.8, relaxation=relaxation, tol=tol, averaging=0, gamma=0.8, scaling=None, seed=0)
    solution = model.learn_epochs(X, y, w, epochs=3)
    own = np.array([model.labels.index(label) for label in y])
    rng, expected = np.random.default_rng(naive.split_mix(0)), np.zeros((60, 4))
    for _ in range(3):
        naive.multiclass_epoch(gram(X), own, rng.permutation(60), expected, 0.4 * w, relaxation, tol)
    np.testing.assert_allclose(solution.coefficients, expected, atol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize("problem", ["labels", "classes", "numbers"])
def test_no_pass_decreases_the_dual_objective(problem):
    duals = []
    options = {"budget": ROWS, "C": 2.0, "gamma": 0.8, "scaling": None, "averaging": 0, "relaxation": 1.9, "seed": 0}
    if problem == "numbers":
        X, y = numbers()
        model = BSCARegressor(epsilon=0.3, **options)
    else:
        X, y = blobs(classes=2 if problem == "labels" else 3)
        model = BSCAClassifier(tol=0.0, **options)
    solution = model.learn_epochs(X, y, epochs=EPOCHS // 2, on_epoch=lambda solution: duals.append(solution.dual()))
    assert (np.diff(duals) > -1e-6 * duals[-1]).all()
    assert solution.primal() - duals[-1] < 0.05 * duals[-1]


@pytest.mark.parametrize("C", [1e-6, 1e9])
def test_very_large_and_small_limits(C):
    X, y = blobs()
    solution = BSCAClassifier(budget=ROWS, C=C, tol=0.0, **EXACT).learn_epochs(X, y, epochs=5)
    assert solution.n_stepped[0] > 20
    assert solution.dual() > 0.0
    if C < 1.0:
        np.testing.assert_allclose(np.abs(solution.coefficients), C)
        assert solution.n_stepped[1] == 0


def test_the_primal_objective_of_the_average():
    X, y = blobs()
    model = BSCAClassifier(budget=20, C=0.9, gamma=0.8, scaling=None, averaging=50, seed=0)
    solution = model.learn_epochs(X, y, epochs=2)
    sign = np.where(y == 1, 1.0, -1.0)
    for output in ("last", "average"):
        S, a = model.support_vectors.astype(float), model._get_coefficients(output)[0]
        f = np.array([[naive.rbf(x, s, 0.8) for s in S] for x in X]) @ a
        primal = 0.5 * a @ gram(S) @ a + 0.9 * np.maximum(1.0 - sign * f, 0.0).sum()
        assert solution.primal(output) == pytest.approx(primal, rel=1e-9)
    assert solution.primal("last") != solution.primal("average")
    refused("output must be one of", solution.primal, "mean")


@pytest.mark.once
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf"])
def test_the_dual_objective_is_below_the_primal_one_for_each_kernel(kernel):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(200, 2)) + 3.0).astype(np.float32)
    y = X[:, 0] > 3.0
    model = BSCAClassifier(budget=15, kernel=kernel, degree=3, gamma=0.1, scaling=None, coef0=1.0, averaging=0, seed=0)
    solution = model.learn_epochs(X, y, epochs=5)
    assert solution.dual() <= solution.primal()


# The solution, and a model that learns on ---------------------------------------------------------------------------------------


def test_passes_and_online_learning_can_alternate():
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
    assert snapshot(model) == snapshot(again)


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
def test_a_refused_batch_does_not_change_the_model(X, y, w, epochs, message):
    model = BSCAClassifier(budget=5, seed=0)
    model.learn_many(np.ones((2, 1)), ["a", "b"])
    refused(message, model.learn_epochs, np.array(X), y, w, epochs)
    refused("on_epoch must be a function", model.learn_epochs, np.ones((2, 1)), ["a", "b"], on_epoch=3)


def test_a_model_continues_after_an_interrupted_pass():
    X, y = blobs()
    model = BSCAClassifier(budget=12, seed=0)

    def stop(solution):
        if solution.n_epochs == 2:
            raise KeyboardInterrupt

    interrupts(model.learn_epochs, X, y, on_epoch=stop)
    assert model.n_learned == 2 * ROWS
    pickle.loads(pickle.dumps(model)).learn_many(X, y)


def test_passes_over_no_rows():
    model = BSCAClassifier(budget=5)
    solution = model.learn_epochs(np.empty((0, 3)), [])
    assert solution.n_stepped == [0]
    assert solution.coefficients.shape == (0,)
    assert solution.primal() == solution.dual() == 0.0


@pytest.mark.parametrize("maintenance", [None, Removal(), Projection()], ids=repr)
def test_weights_of_support_vectors_after_passes(maintenance):
    X, y = blobs()
    w = np.random.default_rng(5).uniform(0.5, 2.0, size=ROWS)
    model = BSCAClassifier(budget=15, C=0.5, tol=0.0, maintenance=maintenance, **EXACT)
    solution = model.learn_epochs(X, y, w, epochs=3)
    weights = model._store.views.weights[: model.n_support].astype(float)
    if maintenance is None:  # each row that ever had a coefficient is in one of them
        assert weights.sum() == pytest.approx(w[solution._stamps >= 0].sum(), rel=1e-5)
    else:  # each row is its own support vector, or none
        rows = [int(np.flatnonzero((s == X).all(axis=1))[0]) for s in model.support_vectors]
        np.testing.assert_array_equal(weights, w.astype(np.float32)[rows])


def test_the_window_holds_the_last_rows_of_a_pass():
    X, y = blobs()
    w = np.random.default_rng(5).uniform(0.5, 2.0, size=ROWS)
    model = BSCAClassifier(budget=ROWS, tol=0.0, replay=10, **EXACT)
    solution = model.learn_epochs(X, y, w, epochs=1)
    order = np.random.default_rng(naive.split_mix(0)).permutation(ROWS)
    places = np.arange(ROWS)[-10:] % 10
    v = model._store.views
    np.testing.assert_array_equal(v.window[places, :2], X[order[-10:]])
    np.testing.assert_array_equal(v.window_targets[places], np.where(y[order[-10:]] == 1, 1.0, -1.0))
    np.testing.assert_array_equal(v.window_weights[places], w[order[-10:]])
    np.testing.assert_array_equal(v.window_stamps[places], solution._stamps[order[-10:]])
    assert (v.window_stamps[places] >= 0).any()


@pytest.mark.once
def test_more_passes_and_early_stops():
    X, y = blobs()
    options = {"budget": ROWS, "C": 0.9, "tol": 0.0, **EXACT}
    expected = BSCAClassifier(**options).learn_epochs(X, y, epochs=EPOCHS)
    solution = BSCAClassifier(**options).learn_epochs(X, y, epochs=EPOCHS, on_epoch=lambda solution: solution.n_epochs == 3)
    assert solution.n_epochs == 3
    assert repr(solution) == f"DualSolution(n_epochs=3, rows={ROWS})"
    X[:] = np.nan  # its rows are its own
    solution.learn(EPOCHS)
    assert solution.dual() == pytest.approx(expected.dual(), rel=1e-4)
    refused("epochs", solution.learn, 0)


def test_a_label_learned_after_the_passes_raises():
    X, y = blobs()

    def learn_others(solution):
        for label in range(2, 8):
            model.learn_one({0: 0.0, 1: 0.0}, label)

    model = BSCAClassifier(budget=20, tol=0.0, **EXACT)
    raises("a label that is not in these rows", model.learn_epochs, X, y, on_epoch=learn_others, error=RuntimeError)
    model = BSCAClassifier(budget=20, **EXACT)
    solution = model.learn_epochs(X, y, epochs=1)
    model.learn_one({0: 0.0, 1: 0.0}, "another")
    for ask in (solution.primal, solution.dual, solution.learn):
        refused("a label that is not in these rows", ask, error=RuntimeError)
    assert solution.coefficients.shape == (ROWS,)


def test_an_interrupt_while_features_are_added_changes_nothing(monkeypatch):
    X, y = blobs()
    model = BSCAClassifier(budget=12, seed=0)
    model.learn_many(X, y)
    monkeypatch.setattr(decisions, "find_refused_row", interrupted)
    for learn in (model.learn_many, model.learn_epochs):
        refused(None, learn, np.column_stack([X, X]), np.arange(ROWS) % 3, error=KeyboardInterrupt)


def test_a_model_continues_after_an_interrupt_between_labels(monkeypatch):
    X, y = blobs()
    model = BSCAClassifier(budget=12, seed=0)
    learn_rows = model._learn_rows

    def learn_then_interrupt(_, *args):
        learn_rows(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BSCAClassifier, "_learn_rows", learn_then_interrupt)
        interrupts(model.learn_many, X, [0, 1] * (ROWS // 2 - 1) + [2, 2])
    assert model.n_learned == ROWS - 2
    assert model.labels == [0, 1, 2]
    again = pickle.loads(pickle.dumps(model))
    again.learn_many(X, y)
    assert set(again.predict_many(X).tolist()) <= {0, 1, 2}
