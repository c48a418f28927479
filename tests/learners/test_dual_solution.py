"""What passes over a batch leave: a solution to ask and to go on with, and a model that learns on, whatever came between."""

import pickle

import numpy as np
import pytest

import naive
from failing import interrupted
from problems import EPOCHS, EXACT, ROWS, blobs, gram, snapshot
from refused import raises, refused
from streamsvm import BSCAClassifier, Projection, Removal
from streamsvm.core.steps import decisions


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
def test_a_batch_that_is_refused_leaves_the_model_as_it_was(X, y, w, epochs, message):
    model = BSCAClassifier(budget=5, seed=0)
    model.learn_many(np.ones((2, 1)), ["a", "b"])
    refused(message, model.learn_epochs, np.array(X), y, w, epochs)
    refused("on_epoch must be a function", model.learn_epochs, np.ones((2, 1)), ["a", "b"], on_epoch=3)


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
def test_a_solution_goes_on_and_is_stopped():
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


def test_a_label_learned_since_is_noticed():
    X, y = blobs()

    def learn_others(solution):
        for label in range(2, 8):
            model.learn_one({0: 0.0, 1: 0.0}, label)

    model = BSCAClassifier(budget=20, tol=0.0, **EXACT)
    raises("a label since", model.learn_epochs, X, y, on_epoch=learn_others, error=RuntimeError)
    model = BSCAClassifier(budget=20, **EXACT)
    solution = model.learn_epochs(X, y, epochs=1)
    model.learn_one({0: 0.0, 1: 0.0}, "another")
    for ask in (solution.primal, solution.dual, solution.unmerged, solution.learn):
        refused("a label since", ask, error=RuntimeError)
    assert solution.coefficients.shape == (ROWS,)


def test_an_interrupt_while_rows_are_admitted_leaves_no_trace(monkeypatch):
    X, y = blobs()
    model = BSCAClassifier(budget=12, seed=0)
    model.learn_many(X, y)
    monkeypatch.setattr(decisions, "first_refused", interrupted)
    for learn in (model.learn_many, model.learn_epochs):
        refused(None, learn, np.column_stack([X, X]), np.arange(ROWS) % 3, error=KeyboardInterrupt)


def test_an_interrupt_between_labels_leaves_a_model_that_goes_on(monkeypatch):
    X, y = blobs()
    model = BSCAClassifier(budget=12, seed=0)
    learn_rows = model._learn_rows

    def learn_then_interrupt(_, *args):
        learn_rows(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BSCAClassifier, "_learn_rows", learn_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.learn_many(X, [0, 1] * (ROWS // 2 - 1) + [2, 2])
    assert model.n_learned == ROWS - 2
    assert model.labels == [0, 1, 2]
    again = pickle.loads(pickle.dumps(model))
    again.learn_many(X, y)
    assert set(again.predict_many(X).tolist()) <= {0, 1, 2}
