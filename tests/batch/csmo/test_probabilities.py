"""Probabilities of CSMOClassifier: sigmoids fitted to held-out rows, and pairwise coupling for several classes."""

import pickle
import warnings

import numpy as np
import pytest
from numba import config
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

from problems import sine_classes
from refused import raises, refused
from saved import dumps, loads
from streamsvm.batch import CSMOClassifier, batch_adapter
from streamsvm.batch.csmo import estimators

N = 60 if config.DISABLE_JIT else 240
IRIS = load_iris(return_X_y=True)


def two_classes():
    X, y = sine_classes(N, 4, 0.5)
    return X, np.where(y > 0, "yes", "no")


def model(**parameters):
    return CSMOClassifier(**{"gamma": 0.5, "probability": True, "random_state": 0, **parameters})


def test_two_class_probabilities_match_scikit_learn():
    X, y = two_classes()
    weights = np.random.default_rng(0).uniform(0.5, 2.0, N)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    peer = CalibratedClassifierCV(CSMOClassifier(gamma=0.5), ensemble=False, cv=folds).fit(X, y, weights)
    probabilities = model().fit(X, y, weights).predict_proba(X)
    np.testing.assert_allclose(probabilities, peer.predict_proba(X), atol=1e-3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_three_class_probabilities_are_close_to_scikit_learn():
    X, y = IRIS
    ours = model(gamma="scale").fit(X, y)
    p = ours.predict_proba(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the parameter
        peer = SVC(probability=True, random_state=0).fit(X, y)
    assert log_loss(y, p) == pytest.approx(log_loss(y, peer.predict_proba(X)), abs=0.02)
    assert (p.argmax(axis=1) == ours.predict(X)).mean() > 0.95
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(ours.predict_log_proba(X)), p)


@pytest.mark.parametrize("classes", [3, 7])
def test_consistent_pairs_are_coupled_exactly(classes, monkeypatch):
    monkeypatch.setattr(estimators, "_MAX_SYSTEM_VALUES", 5 * (classes + 1) ** 2)  # five rows at a time
    p = np.random.default_rng(0).dirichlet(np.ones(classes), size=23)
    i, j = np.triu_indices(classes, 1)
    f = np.log(p[:, j] / p[:, i])
    sigmoids = np.tile([1.0, 0.0], (len(i), 1))
    np.testing.assert_allclose(estimators.compute_class_probabilities(f, sigmoids, classes), p, atol=1e-6)


def test_inconsistent_pairs_are_coupled_by_least_squares():
    rng, classes = np.random.default_rng(1), 4
    i, j = np.triu_indices(classes, 1)
    f = rng.normal(size=(30, len(i)))
    p = estimators.compute_class_probabilities(f, np.tile([1.0, 0.0], (len(i), 1)), classes)
    r = 1.0 / (1.0 + np.exp(-f))

    def loss(p):
        return np.square(r * p[:, i] - (1.0 - r) * p[:, j]).sum(axis=1)

    for _ in range(50):
        perturbed = p + 1e-3 * rng.normal(size=p.shape)
        assert (loss(perturbed / perturbed.sum(axis=1, keepdims=True)) >= loss(p)).all()


def test_all_forms_of_rows_have_probabilities():
    X, y = two_classes()
    p = model().fit(X, y).predict_proba(X)
    K = np.exp(-0.5 * np.square(X[:, None] - X).sum(axis=2))
    np.testing.assert_allclose(model().fit(sparse.csr_array(X), y).predict_proba(X), p, atol=1e-9)
    np.testing.assert_allclose(model(kernel="precomputed").fit(K, y).predict_proba(K), p, atol=5e-3)
    texts = [repr(row.tolist()) for row in X]

    def kernel(A, B):
        A, B = (np.array([eval(text) for text in texts]) for texts in (A, B))
        return np.exp(-0.5 * np.square(A[:, None] - B).sum(axis=2))

    np.testing.assert_allclose(model(kernel=kernel).fit(texts, y).predict_proba(texts), p, atol=5e-3)


def test_order_and_rows_without_weight_do_not_matter():
    X, y = IRIS  # in order of the classes
    order = np.random.default_rng(0).permutation(len(y))
    p, q = (model().fit(X[rows], y[rows]).predict_proba(X) for rows in (slice(None), order))
    assert np.abs(p - q).max() < 0.2  # other folds
    rows = np.vstack([X, X[:40] + 1.0])
    labels, weights = np.concatenate([y, y[:40][::-1]]), np.repeat([1.0, 0.0], [150, 40])
    np.testing.assert_allclose(model().fit(rows, labels, weights).predict_proba(X), p, atol=1e-9)


def test_class_weights_move_the_boundary_and_not_the_probabilities():
    X, y = two_classes()
    rare = np.flatnonzero((y == "no") | (np.arange(N) % 4 == 0))
    X, y = X[rare], y[rare]
    plain, balanced = (model(class_weight=weight).fit(X, y) for weight in (None, "balanced"))
    assert (balanced.predict(X) == "yes").sum() > (plain.predict(X) == "yes").sum()
    for classifier in (plain, balanced):
        assert classifier.predict_proba(X)[:, 1].mean() == pytest.approx((y == "yes").mean(), abs=0.05)


def test_few_rows():
    X, y = np.array([[0.0], [0.1], [1.0], [1.1], [1.2]]), np.array([0, 0, 1, 1, 1])
    assert model().fit(X, y).predict_proba(X).shape == (5, 2)
    refused("at least two rows of each class", model().fit, X[1:], y[1:])
    refused("at least two rows of each class", model().fit, X, y, [1.0, 0.0, 1.0, 1.0, 1.0])
    assert np.isfinite(model(gamma=0.0).fit(X, y).predict_proba(X)).all()  # all decision values are the same


def test_probability_methods_exist_only_with_probability_true():
    X, y = two_classes()
    ours = CSMOClassifier().fit(X, y)
    assert not hasattr(ours, "predict_proba")
    assert not hasattr(ours, "predict_log_proba")
    with pytest.raises(AttributeError) as caught:
        _ = ours.predict_proba
    assert "only with probability=True" in str(caught.value.__cause__)
    ours.probability = True
    raises("not available when fitted with probability=False", ours.predict_proba, X, error=NotFittedError)
    assert not hasattr(CSMOClassifier(**SVC().get_params()), "predict_proba")
    raises("not fitted", model().predict_proba, X, error=NotFittedError)
    assert ours.fit(X, y).predict_proba(X).shape == (N, 2)
    ours.set_params(probability=False).fit(X, y).probability = True  # the probabilities of the fit before are gone
    raises("not available when fitted with probability=False", ours.predict_proba, X, error=NotFittedError)


def test_saved_models_keep_probabilities():
    for X, y in (two_classes(), IRIS):
        ours = model().fit(X, y)
        for copy in (pickle.loads(pickle.dumps(ours)), loads(dumps(ours))):
            np.testing.assert_array_equal(copy.predict_proba(X), ours.predict_proba(X))


def test_other_tools_use_the_probabilities():
    X, y = two_classes()
    search = GridSearchCV(model(), {"C": [0.1, 1.0]}, scoring="neg_log_loss", cv=2).fit(X, y)
    assert np.isfinite(search.best_score_)
    stream = batch_adapter(model(), refit_every=50)
    for x, label in zip(X[:50], y[:50].tolist(), strict=True):
        stream.learn_one(dict(enumerate(x.tolist())), label)
    probabilities = stream.predict_proba_one(dict(enumerate(X[0].tolist())))
    assert sum(probabilities.values()) == pytest.approx(1.0)
