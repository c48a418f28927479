"""Models that start from the support vectors, coefficients and intercepts of others."""

import numpy as np
import pytest
from numba import njit
from scipy import sparse

from problems import dicts, learned_by, snapshot
from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, OneClassBSGD
from streamsvm.core.budget import Strategy
from streamsvm.learners import FOGD, OnlineLinearSVC, OnlineLinearSVR, Projectron, Stoptron

RNG = np.random.default_rng(0)
S, A = RNG.normal(size=(6, 3)), RNG.normal(size=6)
X = RNG.normal(size=(20, 3)).astype(np.float32)


def expansion(a, b, gamma=0.7):
    distances = np.square(X[:, None].astype(float) - S.astype(np.float32).astype(float)).sum(axis=2)
    return np.exp(-gamma * distances) @ a + b


@pytest.mark.once
@pytest.mark.parametrize(
    ("labels", "form"),
    [
        *((labels, np.asarray) for labels in ([1, 2], [False, True], [True, False], ["ham", "spam"], [-1, 1], [1, -1])),
        *(([1, 2], form) for form in (np.ndarray.tolist, sparse.csr_array, sparse.coo_array)),
    ],
)
def test_the_second_label_is_that_of_values_above_zero(labels, form):
    model = BSGDClassifier(budget=10, gamma=0.7, scaling=None, seed=0)
    model.start_from(form(S), A, 0.3, labels=labels, n_learned=50)
    f = expansion(A, 0.3)
    assert model.predict_many(X).tolist() == [labels[int(value > 0.0)] for value in f]
    sign = 1.0 if model.positive_label == labels[1] else -1.0
    for output in ("last", "average", "auto"):
        np.testing.assert_allclose(model.decision_function_many(X, output), sign * f, rtol=1e-4, atol=1e-5)
    assert (model.n_learned, model.n_support, model.labels) == (50, 6, labels[::-1] if sign < 0.0 else labels)
    model.learn_many(X, [labels[0]] * len(X))
    assert model.n_support <= 10


def test_start_from_several_classes():
    a, b = RNG.normal(size=(3, 6)), np.array([0.1, -0.2, 0.3])
    model = BSCAClassifier(budget=6, gamma=0.7, scaling=None, seed=0)
    model.start_from(S, a, b, labels=["a", "b", "c"], feature_names=["x", "y", "z"])
    expected = np.column_stack([expansion(a[k], b[k]) for k in range(3)])
    np.testing.assert_allclose(_decisions(model), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.coefficients, a)
    model.set_coefficients(2.0 * a, b)
    np.testing.assert_allclose(model.coefficients, 2.0 * a)


def _decisions(model):
    names = model.feature_names
    return np.array([list(model.decision_function_one(dict(zip(names, row.tolist(), strict=True))).values()) for row in X])


@pytest.mark.parametrize("kind", [BSCARegressor, OneClassBSGD])
def test_start_from_without_labels(kind):
    model = kind(budget=6, gamma=0.7, scaling=None, seed=0)
    model.start_from(S, A, -0.5)
    np.testing.assert_allclose(model.coefficients[0], A)
    assert model.intercept.tolist() == [-0.5]


def test_start_from_merges_vectors_beyond_the_budget():
    model = BSGDClassifier(budget=3, gamma=0.7, scaling=None, seed=0)
    model.start_from(S, np.abs(A), labels=[False, True])
    assert (model.n_support, model.n_merges) == (3, 3)


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e120])
def test_coefficients_that_are_too_large_are_refused(number):
    for model in (OnlineLinearSVR(), BSCARegressor(budget=6, gamma=0.7, scaling=None)):
        before = snapshot(model)
        arguments = [[1.0, number]] if isinstance(model, OnlineLinearSVR) else [S, np.append(A[:5], number)]
        refused("must be", model.start_from, *arguments)
        assert snapshot(model) == before


def test_start_from_with_a_linear_kernel():
    for model, labels in ((OnlineLinearSVC(), ["no", "yes"]), (OnlineLinearSVR(), None)):
        model.start_from([1.0, -2.0], 0.5, feature_names=["a", "b"], labels=labels, n_learned=7)
        assert (model.coefficients.tolist(), model.intercept, model.n_learned) == ([1.0, -2.0], 0.5, 7)
    refused("learned nothing", model.start_from, [1.0], 0.0)


def test_a_projectron_inverts_the_gram_matrix_after_start_from():
    started, twin = (Projectron(budget=20, gamma=0.7, scaling=None, eta=0.01) for _ in range(2))
    started.start_from(S, A, labels=[False, True])
    assert (started.predict_many(X) == (expansion(A, 0.0) > 0.0)).all()
    twin.start_from(S, A, labels=[False, True])
    twin._rule_record["gamma"] = 0.0  # inverts anew
    labels = (np.arange(len(X)) % 2 == 0).tolist()
    for model in (started, twin):
        model.learn_many(X, labels)
    np.testing.assert_array_equal(started.decision_function_many(X), twin.decision_function_many(X))


def test_start_from_refuses_invalid_arguments_and_changes_nothing():
    model = BSGDClassifier(budget=10, gamma=0.7, scaling=None, seed=0)
    for match, arguments, keywords in (
        ("vectors must be a matrix", (S[0], A), {}),
        ("vectors must be a matrix", (S.astype(object), A), {}),
        ("coefficients must have the shape", (S, A[:2]), {}),
        ("finite", (S, np.full(6, np.nan)), {}),
        ("finite numbers, one intercept", (S, A, [1.0, 2.0]), {}),
        ("row 0|row 1|row 2|row 3|row 4|row 5", (np.where(S > 1.0, np.inf, S), A), {}),
        ("too large", (1e30 * S, A), {}),
        *(("labels must be", (S, A), {"labels": labels}) for labels in (None, [1], [1, 2, 3], [1, 1])),
        *(("feature_names must be", (S, A), {"feature_names": names}) for names in (["a", "a", "b"], ["a"])),
        *(("n_learned must be", (S, A), {"n_learned": n}) for n in (-1, 1.5)),
    ):
        refused(match, model.start_from, *arguments, **{"labels": [False, True], **keywords})
    model.start_from(S, A, labels=[False, True])
    refused("learned nothing", model.start_from, S, A, labels=[False, True])


def test_models_that_cannot_start_from_vectors_raise():
    refused("gamma that is a number", BSGDClassifier(budget=10).start_from, S, A, labels=[0, 1])
    refused("scaling=None", BSGDClassifier(budget=10, gamma=0.7).start_from, S, A, labels=[0, 1])
    refused("frequencies", FOGD(budget=10).start_from, S, A, labels=[0, 1])
    refused("no budget maintenance and budget=5", Stoptron(budget=5, gamma=1.0, scaling=None).start_from, S, A, labels=[0, 1])


@njit
def nothing(block, random):
    return 0


class Useless(Strategy):
    def event(self, shared):
        return nothing


def test_a_strategy_that_fails_is_named_and_the_budget_holds():
    model = BSGDClassifier(budget=3, gamma=0.7, scaling=None, maintenance=Useless(), averaging=0)
    with pytest.raises(RuntimeError, match="Useless.* has not reduced the model to its budget of 3"):
        model.start_from(S, A, labels=[False, True])
    assert model.n_support == 0
    learned_by(model, zip(dicts(X[:3]), [True, False, True], strict=True))
    for learn in (lambda: model.learn_one({0: 9.0}, True), lambda: model.learn_many(X, [True, False] * 10)):
        for _ in range(30):
            refused("Useless", learn, error=RuntimeError)
            assert model.n_support == 3
    refused("Useless", lambda: model.learn_one({0: 9.0}, "third"), error=RuntimeError)  # the row is learned, but for its vector
    assert (len(model.labels), len(model.decision_function_one({0: 1.0}))) == (3, 3)
