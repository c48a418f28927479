"""Forests of compositional kernels: against a reference implementation, the exact solvers and scikit-learn's checks."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

import naive_batch
from failing import Failing, interrupted, interrupts, of_compiled_code
from patience import PATIENCE
from problems import sine_classes, sine_curve
from refused import refused
from streamsvm.batch import CSMOClassifier, CSMORegressor, HierarchicalSVC, HierarchicalSVR, hierarchical, tree_descent
from streamsvm.batch.hss.compositional import RIDGE, compose_matrix
from streamsvm.batch.hss.trees import grow_tree
from streamsvm.batch.problem import Bounds
from streamsvm.batch.tree_descent import LossTerms, add_skeleton_weights, compute_upward_sums, descend_tree, walk_tree
from streamsvm.core.kernels import RBF, Kernel

SLOW = config.DISABLE_JIT
N = 120 if SLOW else 500
SMALL = {"leaf_size": 32, "rank": 12}


def two_classes(n=N, noise=0.5):
    return sine_classes(n, 3, noise)


def curve(n=N):
    return sine_curve(n, 2, 0.1)


class Small:
    """A problem of 60 rows in the order of a tree's leaves, with the dense matrix of its kernel."""

    def __init__(self, regression, gamma=0.5, leaf_size=16, rank=5):
        X, y = curve(60) if regression else two_classes(60)
        self.cuts = grow_tree(X, leaf_size, 3)
        X, y = X[self.cuts.order], y[self.cuts.order].astype(float)
        self.matrix = compose_matrix(X, self.cuts, Kernel(RBF, gamma, 0.0, 3), rank, 7)
        skeletons = [
            self.matrix.skeletons[p : p + r] for p, r in zip(self.matrix.skeleton_starts, self.matrix.ranks, strict=True)
        ]
        self.K = naive_batch.compositional(X, self.cuts, skeletons, RIDGE, gamma=gamma)
        self.C, self.y = np.random.default_rng(1).uniform(0.2, 3.0, 60), y
        self.tree = self.cuts.starts, self.cuts.stops, self.cuts.right
        self.leaves = [slice(self.cuts.starts[leaf], self.cuts.stops[leaf]) for leaf in self.cuts.leaves]
        if regression:
            self.loss = LossTerms(y, 0.1, 0.2, False, 1.0)
            self.bounds = Bounds(-self.C, self.C, np.zeros(60))
        else:
            self.loss = LossTerms(np.zeros(60), 1.0, 1.0, True, 1.0)
            self.bounds = Bounds(np.where(y > 0, 0.0, -self.C), np.where(y > 0, self.C, 0.0), y * self.C)

    def losses(self, f):
        if not self.loss.classification:
            return np.maximum(np.abs(self.y - f) - self.loss.epsilon, 0.0)
        return np.maximum(1.0 - self.y * f, 0.0)

    def dual(self, b):
        gains = self.y @ b if self.loss.classification else self.y @ b - self.loss.epsilon * np.abs(b).sum()
        return gains - 0.5 * b @ self.K @ b


@pytest.mark.once
@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_walk_matches_the_reference(regression, passes):
    p = Small(regression)
    b = np.clip(np.random.default_rng(2).normal(size=60), p.bounds.lower, p.bounds.upper)
    expected, start = b.copy(), b.copy()
    near, up, down = np.zeros(60), np.zeros(len(p.matrix.skeletons)), np.zeros(len(p.matrix.skeletons))
    compute_upward_sums(*p.tree, p.matrix, b, near, up)
    for _ in range(2):
        gap, quadratic, cost = walk_tree(
            *p.tree, p.matrix, p.loss.targets, p.loss.epsilon, *p.bounds, b, near, up, down, 0.3, 1e-9, passes
        )
        naive_batch.descend_once(p.K, p.loss.targets, *p.bounds, p.loss.epsilon, expected, 0.3, p.leaves, passes)
        np.testing.assert_allclose(b, expected, atol=1e-4)
    if not passes:
        f = p.K @ start
        assert quadratic == pytest.approx(start @ f, rel=1e-4)
        primal = 0.5 * start @ f + p.C @ p.losses(f + 0.3)
        assert gap == pytest.approx(primal - p.dual(start) + 0.3 * start.sum(), rel=1e-4)
        constant = p.C.sum() if p.loss.classification else 0.0
        assert cost + constant == pytest.approx(p.C @ p.losses(f + 0.3), rel=1e-4)


@pytest.mark.parametrize("regression", [False, True])
def test_a_descent_reaches_the_exact_solution_of_its_matrix(regression):
    p = Small(regression)
    solution = descend_tree(p.cuts, p.matrix, p.loss, p.bounds, None, 1e-6, 3000, threading.Event())
    if regression:
        b, _ = naive_batch.regress(p.K, p.y, p.C, p.loss.epsilon, 1e-8)
    else:
        b, _ = naive_batch.classify(p.K, p.y, p.C, 1e-8)
    assert solution.gap <= 1e-6
    assert p.dual(solution.b) == pytest.approx(p.dual(b), rel=1e-5)
    assert solution.b.sum() == pytest.approx(0.0, abs=1e-4)
    assert solution.objective == pytest.approx(p.dual(b), rel=1e-5)
    np.testing.assert_allclose(p.K @ solution.b, p.K @ b, atol=0.01)
    assert descend_tree(p.cuts, p.matrix, p.loss, p.bounds, solution, 1e-5, 3000, threading.Event()).n_iter <= 2


@pytest.mark.parametrize(("gamma", "rank"), [(0.5, 5), (0.001, 12)])  # of the latter, inverses of skeletons' matrices are large
def test_leaf_weights_reproduce_the_matrix(gamma, rank):
    p = Small(False, gamma, 30, rank)
    b, near = 10.0 * np.random.default_rng(2).normal(size=60), np.zeros(60)
    up, down = np.zeros(len(p.matrix.skeletons)), np.zeros(len(p.matrix.skeletons))
    compute_upward_sums(*p.tree, p.matrix, b, near, up)
    walk_tree(*p.tree, p.matrix, p.loss.targets, 1.0, *p.bounds, b, near, up, down, 0.0, 1e-9, 0)
    weights = b.copy()
    add_skeleton_weights(p.cuts.right, p.matrix, down, weights)
    for leaf in p.leaves:
        np.testing.assert_allclose(p.K[leaf, leaf] @ weights[leaf], (p.K @ b)[leaf], atol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_a_single_leaf_gives_the_exact_machine(C):
    n = 40 if SLOW else 150
    X, y = two_classes(n)
    exact = CSMOClassifier(C=C, gamma=0.5, tol=1e-6, class_weight={1: 2.0}).fit(X, y)
    ours = HierarchicalSVC(C=C, gamma=0.5, tol=1e-6, max_iter=5000, n_trees=1, class_weight={1: 2.0}).fit(X, y)
    np.testing.assert_allclose(ours.decision_function(X), exact.decision_function(X), atol=2e-3)
    assert ours.objective_ == pytest.approx(-exact.objective_, rel=1e-4)
    X, y = curve(n)
    exact = CSMORegressor(C=C, gamma=0.5, epsilon=0.05, tol=1e-6).fit(X, y + 1e4)
    ours = HierarchicalSVR(C=C, gamma=0.5, epsilon=0.05, tol=1e-5, max_iter=5000, n_trees=1).fit(X, y + 1e4)
    np.testing.assert_allclose(ours.predict(X), exact.predict(X), atol=2e-3)


@pytest.mark.once
@pytest.mark.parametrize(("kernel", "parameters"), [("rbf", {"gamma": 0.5}), ("poly", {"gamma": 0.3, "coef0": 1.0})])
def test_a_forest_is_close_to_the_exact_machine(kernel, parameters):
    X, y = two_classes(60 if SLOW else 300, noise=0.2)
    exact = CSMOClassifier(kernel=kernel, **parameters).fit(X, y)
    trees = 2 if SLOW else 8
    ours = HierarchicalSVC(kernel=kernel, n_trees=trees, tol=0.01, max_iter=2000, **SMALL, **parameters).fit(X, y)
    assert (ours.predict(X) == exact.predict(X)).mean() > 0.9
    assert ours.n_trees_ == trees
    assert ours.gap_ <= 0.01
    X, y = curve(60 if SLOW else 300)
    model = HierarchicalSVR(C=10.0, gamma=0.5, n_trees=trees, **SMALL).fit(X, y)
    assert model.score(X, y) > 0.9


def test_training_rows_have_their_fitted_values():
    X, y = two_classes()
    model = HierarchicalSVC(gamma=0.5, n_trees=1, tol=1e-3, max_iter=2000, **SMALL).fit(X, y)
    b = np.zeros(N)
    b[model.support_] = model.dual_coef_[0]
    primal = model.objective_
    losses = np.maximum(1.0 - y * model.decision_function(X), 0.0).sum()
    assert 2.0 * (primal - losses) == pytest.approx(b @ (model.decision_function(X) - model.intercept_), rel=0.01)


@pytest.mark.once
def test_results_depend_on_seeds_but_not_on_threads():
    X, y = two_classes()
    one, two, different = (
        HierarchicalSVC(gamma=0.5, n_trees=3, n_jobs=jobs, random_state=seed, **SMALL).fit(X, y)
        for jobs, seed in ((1, 0), (2, 0), (1, 1))
    )
    np.testing.assert_array_equal(one.decision_function(X), two.decision_function(X))
    assert np.abs(one.decision_function(X) - different.decision_function(X)).max() > 1e-3


@pytest.mark.once
def test_three_classes_and_a_path_share_the_trees(monkeypatch):
    X, y = (part[:: 3 if SLOW else 2] for part in load_iris(return_X_y=True))
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    grown = []
    monkeypatch.setattr(hierarchical, "grow_tree", lambda *a: grown.append(1) or grow_tree(*a))
    model = HierarchicalSVC(gamma=0.5, n_trees=2, tol=1e-3, max_iter=3000, **SMALL)
    models = model.fit_path(X, names, [10.0, 0.1, 1.0])
    assert len(grown) == 2
    assert not hasattr(model, "classes_")
    for m, C in zip(models, [10.0, 0.1, 1.0], strict=True):
        assert m.C == C
        assert m.decision_function(X).shape == (len(X), 3)
        assert m.dual_coef_.shape == (3, len(m.support_))
        assert m.score(X, names) > 0.9
        alone = HierarchicalSVC(**m.get_params()).fit(X, names)
        np.testing.assert_allclose(alone.decision_function(X), m.decision_function(X), atol=0.1)


@settings(max_examples=3 if SLOW else 25, deadline=None)
@given(
    n=st.integers(2, 150),
    log_gamma=st.floats(-12.0, 12.0),
    log_C=st.floats(-3.0, 3.0),
    repeats=st.booleans(),
    sorted_=st.booleans(),
    constant=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_unusual_rows_and_parameters_work(n, log_gamma, log_C, repeats, sorted_, constant, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    X = np.round(X) if repeats else X
    X[:, 2] = 7.0 if constant else X[:, 2]
    y = np.arange(n) % 2
    y = (X[:, 0].argsort().argsort() >= n // 2).astype(int) if sorted_ else rng.permutation(y)  # then leaves have one class
    model = HierarchicalSVC(C=10.0**log_C, gamma=10.0**log_gamma, leaf_size=16, rank=6, n_trees=2, max_iter=30)
    model.fit(X, y)
    assert np.abs(model.dual_coef_).max(initial=0.0) <= model.C * (1.0 + 1e-9)
    assert np.isfinite(model.decision_function(np.vstack([X, 1e150 * X]))).all()


@pytest.mark.once
def test_equal_rows_with_different_targets_converge():
    X = np.repeat([[0.0], [1.0]], 100, axis=0)
    y = np.linspace(0.0, 1.0, 200)
    model = HierarchicalSVR(leaf_size=8, rank=3, max_iter=50, C=0.1).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.once
def test_sparse_rows_give_the_model_of_dense_ones():
    X, y = two_classes(200)
    X[np.abs(X) < 0.5] = 0.0
    dense, from_sparse = (HierarchicalSVC(gamma=0.5, **SMALL).fit(rows, y) for rows in (X, sparse.csr_array(X)))
    assert (dense.predict(X) == from_sparse.predict(sparse.csr_array(X))).mean() > 0.95  # equal rows are not one variable
    np.testing.assert_array_equal(from_sparse.decision_function(X), from_sparse.decision_function(sparse.csr_array(X)))


def test_invalid_numbers_of_threads_are_refused():
    X, y = two_classes(60)
    model = HierarchicalSVC(gamma=0.5, n_trees=2, **SMALL).fit(X, y)
    before = model.decision_function(X)
    for use in (model.fit, lambda X, _: model.predict(X)):
        model.set_params(n_jobs=0)
        refused("n_jobs must be None, or an integer other than 0, not 0", use, X, y)
        model.set_params(n_jobs=-1)
        np.testing.assert_array_equal(model.decision_function(X), before)


def test_rows_that_cannot_be_learned():
    X, y = two_classes(60)
    refused("too large for this kernel: scale its features", HierarchicalSVC(kernel="poly", degree=100).fit, 1e3 * X, y)
    refused("too large for this kernel: scale its features", HierarchicalSVC(gamma=1.0).fit, 1e120 * X, y)


@pytest.mark.once
@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e90])
def test_units_do_not_matter(scale):
    """Units do not matter, even if distances exceed float32, the usual type of the rows."""
    X, y = two_classes()
    model = HierarchicalSVC(n_trees=2, **SMALL).fit(scale * X, y)
    assert model.score(scale * X, y) > 0.7
    assert np.isfinite(model.decision_function(1e50 * scale * X)).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kernel", ["linear", "poly"])
def test_kernel_values_too_small_for_float32_count_as_0(kernel):
    X, y = two_classes()
    model = HierarchicalSVC(kernel=kernel, gamma=1.0, max_iter=20, n_trees=2, **SMALL).fit(1e-50 * X, y)
    assert np.isfinite(model.decision_function(1e-50 * X)).all()


def test_too_few_walks_cause_a_warning():
    X, y = two_classes()
    with pytest.warns(
        ConvergenceWarning, match=r"ended for C=100 after 2 walks with a relative gap of .* above tol=0.05"
    ) as caught:
        HierarchicalSVC(gamma=0.5, max_iter=2, **SMALL).fit_path(X, y, [100.0, 0.01])
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_keeps_the_last_walk(jobs, monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(tree_descent, "walk_tree", Failing(walk_tree, 12, of_compiled_code()))
    model = HierarchicalSVC(C=100.0, gamma=0.5, tol=0.0, n_jobs=jobs, **SMALL)
    interrupts(model.fit, X, y)
    assert model.score(X, y) > 0.7
    assert model.n_trees_ <= jobs
    assert model.gap_ > 0.0


def test_an_interrupt_before_the_first_walk_of_a_tree_keeps_the_others(monkeypatch):
    """The other trees stop soon, too: the tree that is already walking does not complete all its walks."""
    X, y = two_classes()
    walked, threads = threading.Event(), []

    def interrupted(*arguments):
        me = threading.get_ident()
        threads.append(me)
        if me != threads[0]:
            assert walked.wait(PATIENCE)
            raise KeyboardInterrupt
        result = walk_tree(*arguments)
        walked.set()
        return result

    monkeypatch.setattr(tree_descent, "walk_tree", interrupted)
    model = HierarchicalSVC(C=100.0, gamma=0.5, tol=0.0, max_iter=10**6, n_jobs=2, **SMALL)
    interrupts(model.fit, X, y)
    assert model.n_trees_ == 1
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_before_all_walks_leaves_no_model(jobs, monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(tree_descent, "walk_tree", interrupted)
    model = HierarchicalSVC(n_jobs=jobs, **SMALL)
    interrupts(model.fit, X, y)
    assert not hasattr(model, "n_trees_")


def test_an_interrupt_of_the_last_step_keeps_its_walk(monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(tree_descent, "add_skeleton_weights", Failing(add_skeleton_weights))
    one, model = (HierarchicalSVC(gamma=0.5, n_trees=n, **SMALL) for n in (1, 8))
    interrupts(model.fit, X, y)
    np.testing.assert_array_equal(model.decision_function(X), one.fit(X, y).decision_function(X))


def test_an_interrupt_keeps_finished_trees(monkeypatch):
    X, y = two_classes()
    two = HierarchicalSVC(gamma=0.5, n_trees=2, **SMALL).fit(X, y)
    monkeypatch.setattr(hierarchical, "grow_tree", Failing(grow_tree, 3))
    model = HierarchicalSVC(gamma=0.5, **SMALL)
    interrupts(model.fit, X, y)
    np.testing.assert_array_equal(model.decision_function(X), two.decision_function(X))
    monkeypatch.setattr(hierarchical, "grow_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):  # before any tree
        model.fit(X + 1.0, np.where(y > 0, "other", "labels"))
    np.testing.assert_array_equal(model.decision_function(X), two.decision_function(X))


@pytest.mark.once
def test_saved_and_distilled_models():
    X, y = two_classes(n := min(N, 300))
    model = HierarchicalSVC(gamma=0.5, **SMALL).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.decision_function(X), again.decision_function(X))
    for budget in (60, n):  # also a budget for all rows, because the model is not an expansion over them
        learner = model.to_budget(budget, X)
        assert (learner.predict_many(X) == model.predict(X)).mean() > 0.93
    X, y = curve(n)
    model = HierarchicalSVR(C=10.0, gamma=0.5, **SMALL).fit(X, y)
    assert np.abs(model.to_budget(60, X).predict_many(X) - model.predict(X)).mean() < 0.1


#: Corruptions of the arrays of a forest.
CHANGES = {
    "roots": [lambda a: a + 10_000, lambda a: a - 1, lambda a: a[:0]],
    "right": [lambda a: np.where(a >= 0, a + 10_000, a), lambda a: np.where(a >= 0, 0, a), lambda a: np.append(a[:-1], len(a))],
    "cut": [lambda a: a + 10_000, lambda a: a - 1, lambda a: a[:-1]],
    "axes": [lambda a: a[:, :-1].copy(), lambda a: np.where(a == a[0, 0], np.nan, a)],
    "thresholds": [lambda a: a[:-1], lambda a: a.astype(np.float32)],
    "starts": [lambda a: a[::-1].copy(), lambda a: a + 1],
    "rows": [lambda a: a + 10_000, lambda a: a - 1, lambda a: a[:-1]],
    "weights": [lambda a: a[:, :-1].copy(), lambda a: np.vstack([a, a]), lambda a: a.T, lambda a: a.tolist()],
}


@pytest.mark.once
def test_corrupt_states_are_refused():
    X, y = two_classes(80)
    model = HierarchicalSVC(gamma=0.5, n_trees=2, **SMALL).fit(X, y)
    state = model.__getstate__()
    vectors = state["support_vectors_"]
    for changes in (
        *({"_forest": 3}, {"_forest": state["_forest"][:-1]}, {"_predictor": ()}),
        *({"support_vectors_": vectors[:-1]}, {"support_vectors_": sparse.csr_array(vectors)}),
    ):
        refused("corrupt", HierarchicalSVC().__setstate__, state | changes)
    for part, changes in CHANGES.items():
        for change in changes:
            forest = model._forest._replace(**{part: change(getattr(model._forest, part))})
            refused("corrupt", HierarchicalSVC().__setstate__, {**state, "_forest": tuple(forest)})
    del state["_forest"]
    refused("corrupt", HierarchicalSVC().__setstate__, state)
