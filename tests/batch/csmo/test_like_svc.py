"""Attributes, shapes and signs are those of scikit-learn's SVC, SVR and OneClassSVM."""

import pickle

import numpy as np
import pytest
from numba import config
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.svm import SVC, SVR, OneClassSVM

from refused import refused
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor, batch_adapter

STEP = 3 if config.DISABLE_JIT else 1
X, y = (part[::STEP] for part in load_iris(return_X_y=True))
TWO = y < 2


def plain(values):
    return values.toarray() if sparse.issparse(values) else values


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(("ours", "peer"), [(CSMOClassifier, SVC), (CSMORegressor, SVR), (CSMOOneClass, OneClassSVM)])
@pytest.mark.parametrize("classes", [2, 3])
def test_attributes(ours, peer, classes, form):
    rows, labels = (X[TWO], y[TWO]) if classes == 2 else (X, y)
    rows, labels = form(rows), labels if ours is CSMOClassifier else labels + 0.1 * X[: len(labels), 0]
    one, theirs = (kind(kernel="linear", tol=1e-5).fit(rows, labels) for kind in (ours, peer))
    for name in ("dual_coef_", "coef_", "intercept_", "n_support_", "support_vectors_"):
        assert plain(getattr(one, name)).shape[0] == plain(getattr(theirs, name)).shape[0], name
        assert sparse.issparse(getattr(one, name)) == sparse.issparse(getattr(theirs, name)), name
    for name in ("coef_", "intercept_"):  # the coefficients of equal rows, and of rows on a line, are not unique
        np.testing.assert_allclose(plain(getattr(one, name)), plain(getattr(theirs, name)), atol=3e-3, err_msg=name)
    assert one.n_support_.dtype == theirs.n_support_.dtype == np.int32
    assert one.n_support_.sum() == len(one.support_) == one.dual_coef_.shape[1]
    assert one.shape_fit_ == theirs.shape_fit_
    assert one.fit_status_ == theirs.fit_status_ == 0
    assert np.shape(one.n_iter_) == np.shape(theirs.n_iter_)
    assert type(one.n_iter_) is type(theirs.n_iter_)
    coef = one.coef_.data if form is sparse.csr_array else one.coef_
    with pytest.raises(ValueError, match="read-only"):
        coef[:1] = 1.0
    with pytest.raises(AttributeError):
        _ = ours().fit(rows, labels).coef_
    for name in ("dual_coef_", "coef_", "intercept_", "offset_", "n_support_"):
        assert not hasattr(clone(one), name)


@pytest.mark.parametrize("labels", [y, np.array(["b", "c", "a", "d"])[(2 * y + (X[:, 0] > 5.8)) % 4]], ids=["3", "4"])
def test_dual_coefficients_of_several_classes(labels):
    ours, peer = (kind(C=5.0, gamma=0.5, tol=1e-6).fit(X, labels) for kind in (CSMOClassifier, SVC))
    np.testing.assert_array_equal(ours.support_, peer.support_)
    np.testing.assert_array_equal(ours.n_support_, peer.n_support_)
    np.testing.assert_allclose(ours.dual_coef_, peer.dual_coef_, atol=1e-3)
    np.testing.assert_allclose(ours.intercept_, peer.intercept_, atol=1e-4)
    # a pair's values from the public attributes, as LIBSVM computes them
    K = np.exp(-0.5 * np.square(X[:, None] - ours.support_vectors_).sum(axis=2))
    of, k = np.repeat(np.arange(len(ours.classes_)), ours.n_support_), 0
    values = ours.set_params(decision_function_shape="ovo").decision_function(X)
    for first in range(len(ours.classes_)):
        for second in range(first + 1, len(ours.classes_)):
            expected = K[:, of == first] @ ours.dual_coef_[second - 1, of == first]
            expected += K[:, of == second] @ ours.dual_coef_[first, of == second] + ours.intercept_[k]
            np.testing.assert_allclose(values[:, k], expected, atol=1e-9)
            k += 1


@pytest.mark.parametrize("shape", ["ovr", "ovo"])
def test_decision_values(shape):
    ours, peer = (kind(decision_function_shape=shape, tol=1e-7).fit(X, y) for kind in (CSMOClassifier, SVC))
    np.testing.assert_allclose(ours.decision_function(X), peer.decision_function(X), atol=1e-4)
    np.testing.assert_array_equal(ours.predict(X), peer.predict(X))


def test_ties():
    """If votes are equal, the first class wins, or with break_ties the one with the larger sum of decision values."""
    model = CSMOClassifier().fit(X, y)
    f = np.array([[1.0, -0.2, 0.5], [1.0, -3.0, 0.5], [0.0, 0.0, 0.0]])  # a cycle twice, and no pair decides
    np.testing.assert_array_equal(model._count_votes(f[:2] > 0.0), np.ones((2, 3)))
    assert model._predict_from_decisions(f).tolist() == [0, 0, 2]
    assert model.set_params(break_ties=True)._predict_from_decisions(f).tolist() == [1, 0, 0]
    refused("break_ties must be False", model.set_params(decision_function_shape="ovo").predict, X)
    assert model.decision_function(X).shape == (len(X), 3)
    refused("decision_function_shape='ovr'", batch_adapter, CSMOClassifier(decision_function_shape="ovo"))


def test_class_weights():
    for weight in (None, "balanced", {0: 2.0, 2: 0.5}):
        rows, labels = X[10:], y[10:]
        ours, peer = (kind(class_weight=weight).fit(rows, labels) for kind in (CSMOClassifier, SVC))
        np.testing.assert_allclose(ours.class_weight_, peer.class_weight_)


@pytest.mark.parametrize(("ours", "peer"), [(CSMOClassifier, SVC), (CSMORegressor, SVR), (CSMOOneClass, OneClassSVM)])
def test_rows_without_positive_weight_are_left_out(ours, peer):
    ask = "decision_function" if ours is CSMOOneClass else "predict"  # many rows lie on its boundary
    weights = np.where(np.arange(len(y)) % 4 == 0, -0.5, 1.0)
    left = weights > 0.0
    message = f"{(~left).sum()} of {len(y)} rows have a negative sample_weight: they are left out"
    with pytest.warns(UserWarning, match=message) as caught:
        one = ours(gamma=0.5).fit(X, y, sample_weight=weights)
    assert caught[0].filename == __file__
    clipped = ours(gamma=0.5).fit(X, y, sample_weight=np.maximum(weights, 0.0))
    np.testing.assert_array_equal(one.predict(X), clipped.predict(X))
    assert left[one.support_].all()
    expected = getattr(peer(gamma=0.5).fit(X, y, sample_weight=weights), ask)(X)
    assert np.mean(np.abs(getattr(one, ask)(X) - expected) < 0.01) > 0.95
    np.testing.assert_array_equal(ours().fit(X, y, 1.0).predict(X), ours().fit(X, y).predict(X))
    refused("zero or negative weights", ours().fit, X, y, sample_weight=-weights * left)
    refused("sample_weight must be", ours().fit, X, y, sample_weight=weights[:-1])
    refused("sample_weight must be", ours().fit, X, y, sample_weight=weights[:, np.newaxis])
    refused("NaN", ours().fit, X, y, sample_weight=np.where(left, np.nan, 1.0))


def test_only_one_class_with_weight_is_refused():
    refused("all samples with positive weights belong to the same class: class 0", CSMOClassifier().fit, X, y, y == 2)
    refused("^class 0 has no row whose sample_weight", CSMOClassifier().fit, X, y, y > 0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_status_says_whether_a_fit_ended_early():
    for ours, peer in ((CSMOClassifier, SVC), (CSMORegressor, SVR), (CSMOOneClass, OneClassSVM)):
        assert [kind(max_iter=2).fit(X, y).fit_status_ for kind in (ours, peer)] == [1, 1]


def test_infinite_bound():
    """An infinite C does not bound coefficients: all rows are outside the margin, or within epsilon, if the kernel allows it."""
    rows, labels = X[TWO], y[TWO]
    machine = CSMOClassifier(C=np.inf, kernel="linear").fit(rows, labels)
    assert (np.where(labels == 1, 1.0, -1.0) * machine.decision_function(rows)).min() >= 1.0 - 1e-3
    line = np.linspace(0.0, 5.0, 30)[:, np.newaxis]
    curve = CSMORegressor(C=np.inf, gamma=1.0).fit(line, np.sin(line[:, 0]))
    assert np.abs(curve.predict(line) - np.sin(line[:, 0])).max() <= 0.1 + 1e-3


@pytest.mark.parametrize(
    "kernel",
    [
        {"gamma": 0.0},
        {"kernel": "poly", "degree": 0},
        {"kernel": "poly", "gamma": 0.0, "coef0": 1.0},
        {"kernel": "sigmoid", "gamma": 0, "coef0": -1.0},
        {"kernel": "rbf", "degree": 0},
    ],
    ids=str,
)
def test_constant_kernels(kernel):
    """A gamma of 0 and a degree of 0 have the same meaning as in scikit-learn."""
    part = slice(len(y) // 12, -(len(y) // 6))  # no two classes have as many rows: then any intercept would do
    ours, peer = (kind(**kernel).fit(X[part], y[part]) for kind in (CSMOClassifier, SVC))
    np.testing.assert_allclose(ours.decision_function(X), peer.decision_function(X), atol=2e-3)
    copy = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(copy.decision_function(X), ours.decision_function(X))
