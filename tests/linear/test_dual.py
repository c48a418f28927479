"""Dual coordinate ascent over blocks: its passes, stages and order, and how far its figures are true."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from linear_problems import LITTLE, N, objective, two_classes
from streamsvm.linear import OutOfCoreLinearSVC, dual


def test_squared_losses_of_many_features_are_learned_in_the_dual(monkeypatch):
    X, y = two_classes()
    newton = OutOfCoreLinearSVC(loss="squared_hinge").fit(X, y)
    assert {one.kind for one in newton.history_} == {"newton"}
    assert newton.n_iter_ < 15
    monkeypatch.setattr("streamsvm.linear.fit.hessian_fits_memory", lambda *_: False)
    ascent = OutOfCoreLinearSVC(loss="squared_hinge").fit(X, y)
    assert {one.kind for one in ascent.history_} == {"all", "working set", "gap"}
    assert ascent.objective_ == pytest.approx(newton.objective_, rel=1e-3)


def test_rows_without_values_and_rows_that_are_alike():
    X, y = two_classes(60)
    X = sparse.vstack([X, sparse.csr_array((40, X.shape[1])), X[:30]], format="csr")
    y = np.concatenate([y, np.arange(40) % 4 // 3 * 2 - 1, -y[:30]])
    for fit_intercept in (True, False):
        model = OutOfCoreLinearSVC(fit_intercept=fit_intercept, tol=1e-4).fit(X, y)
        assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
        assert model.duality_gap_ <= 1e-4 * model.objective_
    nothing = OutOfCoreLinearSVC(fit_intercept=False).fit(sparse.csr_array((4, 2)), [0, 1, 0, 1])
    assert nothing.coef_.tolist() == [[0.0, 0.0]]
    assert nothing.objective_ == 4.0


@pytest.mark.once
def test_few_rows_are_free_after_some_passes():
    X, y = two_classes(10 * N)
    history = OutOfCoreLinearSVC(C=10.0, memory_limit=LITTLE).fit(X, y).history_
    passes = [one for one in history if one.kind == "all"]
    assert passes[-1].free < 0.1 * passes[-1].rows
    assert all(one.rows == 10 * N for one in passes)
    assert [one.C for one in passes] == sorted(one.C for one in passes)  # from stage to stage
    assert any(one.kind == "working set" and one.rows < N for one in history)
    duals = [one.dual for one in history if one.C == 10.0]
    assert (np.diff(duals) >= -1e-9 * duals[-1]).all()  # every step is one upwards
    assert [one.seconds for one in history] == sorted(one.seconds for one in history)


@pytest.mark.once
def test_nothing_is_taken_from_another_loss(tmp_path):
    X, y = two_classes()
    with pytest.warns(ConvergenceWarning, match="for C=100000 ") as caught:
        hard, easy = OutOfCoreLinearSVC(max_iter=5, tol=0.5).fit_path(X, y, [1e5, 1e-4])
    assert len(caught) == 1
    assert hard.history_[-1].C == 1e5
    assert {one.C for one in easy.history_} == {1e-4}
    with pytest.warns(ConvergenceWarning):
        OutOfCoreLinearSVC(C=1e5, max_iter=3, tol=1e-6, work_folder=tmp_path).fit(X, y)
    other = OutOfCoreLinearSVC(C=1e-4, class_weight="balanced", work_folder=tmp_path).fit(X, y)
    assert other.history_[0].C < 1e-3
    assert other.n_iter_ < 20
    balanced = OutOfCoreLinearSVC(C=100.0, class_weight="balanced", random_state=1).fit(X, y)
    tiny = OutOfCoreLinearSVC(C=1e-3, work_folder=tmp_path, random_state=1).fit(X, y)
    assert tiny.duality_gap_ <= 1e-3 * tiny.objective_
    after = OutOfCoreLinearSVC(C=100.0, class_weight="balanced", work_folder=tmp_path, random_state=1).fit(X, y)
    # From another problem nothing is taken: stages are those of one that begins
    assert sorted({one.C for one in after.history_}) == sorted({one.C for one in balanced.history_})


def test_passes_are_no_more_than_asked_for():
    X, y = two_classes()
    with pytest.warns(ConvergenceWarning):
        model = OutOfCoreLinearSVC(C=1e5, max_iter=1, tol=1e-9).fit(X, y)
    assert model.n_iter_ <= 1 + 2 + 2  # a stage, the C asked for with its working set, and the gap
    assert model.history_[-1].C == 1e5
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)


def test_each_model_of_a_path_counts_its_passes():
    X, y = two_classes()
    for model in OutOfCoreLinearSVC(memory_limit=LITTLE).fit_path(X, y, [0.1, 1.0, 10.0]):
        assert model.n_iter_ == int(np.ceil(sum(one.rows for one in model.history_) / len(y)))


def test_passes_have_the_cost_of_the_positive_class():
    X, y = two_classes(200)
    model = OutOfCoreLinearSVC(C=2.0, class_weight={1: 3.0}).fit(X, y)
    assert model.history_[-1].C == 6.0
    assert model.n_samples_fit_ == 200


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_features_of_very_different_size(loss):
    X, y = two_classes(60, dense=True)
    X *= np.geomspace(1e-3, 1e6, X.shape[1])
    model = OutOfCoreLinearSVC(C=1e5, loss=loss, max_iter=50).fit(X, y)
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-5)
    assert model.duality_gap_ >= 0.0


def exact_objective(w, C, X, y):
    """Of hinge losses without an intercept, in exact arithmetic."""
    rows, w = [[Fraction(float(x)) for x in row] for row in X.astype(np.float32)], [Fraction(float(v)) for v in w]
    values = [sum(a * b for a, b in zip(row, w, strict=True)) for row in rows]
    losses = [max(Fraction(0), 1 - int(t) * f) for f, t in zip(values, y, strict=True)]
    return float(sum(v * v for v in w) / 2 + Fraction(C) * sum(losses))


@pytest.mark.once
@pytest.mark.parametrize(
    ("scale", "C"), [(1e3, 1.0), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1e5, 1e4), (1e6, 1.0)))]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_gap_of_rows_that_are_not_scaled_is_true(scale, C):
    # Steps round w: the gap is that of the coefficients, whose expansion w should be.
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(60, 4)) * scale).astype(np.float32).astype(float)
    y = np.where(X @ rng.normal(size=4) > 0.0, 1, -1)
    model = OutOfCoreLinearSVC(C=C, fit_intercept=False, max_iter=300).fit(X, y)
    other = OutOfCoreLinearSVC(C=C * scale**2, fit_intercept=False, tol=1e-5).fit(X / scale, y)
    primal = exact_objective(model.coef_[0], C, X, y)
    assert model.objective_ == pytest.approx(primal, rel=1e-3)
    assert model.duality_gap_ >= -1e-9 * model.objective_
    # The optimum is no more than any w costs.
    assert primal - model.duality_gap_ <= 1.001 * exact_objective(other.coef_[0] / scale, C, X, y)


@pytest.mark.once
@pytest.mark.parametrize(("scaling", "C"), [(1000.0, 1.0), (100.0, 100.0)])
def test_a_fit_that_does_not_converge_is_better_than_none(scaling, C):
    X, y = two_classes(600)
    with pytest.warns(ConvergenceWarning):
        model = OutOfCoreLinearSVC(C=C, intercept_scaling=scaling, max_iter=60, tol=1e-6).fit(X, y)
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
    assert model.objective_ < C * len(y)  # what w = 0 costs


def test_blocks_come_in_another_order_each_time(monkeypatch):
    X, y = two_classes(max(N, 300))
    sweep_rows, sweep_free_rows, firsts = dual.sweep_rows, dual.sweep_free_rows, []

    def noted(w, b, block, *rest):
        firsts.append(block.first_row)
        return sweep_rows(w, b, block, *rest)

    def not_noted(*args):
        with monkeypatch.context() as patch:  # interpreted, it calls the other one
            patch.setattr(dual, "sweep_rows", sweep_rows)
            return sweep_free_rows(*args)

    monkeypatch.setattr(dual, "sweep_rows", noted)
    monkeypatch.setattr(dual, "sweep_free_rows", not_noted)
    OutOfCoreLinearSVC(C=10.0, tol=1e-5, memory_limit=2**17).fit(X, y)
    blocks = len(set(firsts))
    assert blocks > 2
    orders = [tuple(firsts[k : k + blocks]) for k in range(0, len(firsts), blocks)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(set(firsts)))}
    assert len(set(orders)) > 3


def test_w_that_rounding_has_moved_comes_back(monkeypatch):
    X, y = two_classes()
    clean = OutOfCoreLinearSVC(C=1.0, memory_limit=LITTLE).fit(X, y)
    measure_objectives, calls = dual.measure_objectives, []

    def moved(w, *rest):
        if not calls:
            w += 0.5  # as if much had been lost
        calls.append(1)
        return measure_objectives(w, *rest)

    monkeypatch.setattr(dual, "measure_objectives", moved)
    model = OutOfCoreLinearSVC(C=1.0, memory_limit=LITTLE).fit(X, y)
    first = next(one for one in model.history_ if one.kind == "gap")
    assert first.primal - first.dual > 2e-3 * model.objective_
    assert 0.0 <= model.duality_gap_ <= 1e-3 * model.objective_
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
    assert model.objective_ <= 1.0011 * clean.objective_
