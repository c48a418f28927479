"""Tests of dual coordinate ascent over blocks: passes, stages, block order, and the accuracy of objective and gap."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from linear_problems import SMALL_MEMORY, N, compute_objective, make_classes
from streamsvm.linear import OutOfCoreLinearSVC, dual


def test_squared_loss_uses_the_dual_when_the_hessian_is_too_large(monkeypatch):
    X, y = make_classes()
    newton = OutOfCoreLinearSVC(loss="squared_hinge").fit(X, y)
    assert {entry.kind for entry in newton.history_} == {"newton"}
    assert newton.n_iter_ < 15
    monkeypatch.setattr("streamsvm.linear.fit.hessian_fits_in", lambda *_: False)
    ascent = OutOfCoreLinearSVC(loss="squared_hinge").fit(X, y)
    assert {entry.kind for entry in ascent.history_} == {"all", "working set", "gap"}
    assert ascent.objective_ == pytest.approx(newton.objective_, rel=1e-3)


def test_empty_and_duplicate_rows_are_learned():
    X, y = make_classes(60)
    X = sparse.vstack([X, sparse.csr_array((40, X.shape[1])), X[:30]], format="csr")
    y = np.concatenate([y, np.arange(40) % 4 // 3 * 2 - 1, -y[:30]])
    for fit_intercept in (True, False):
        model = OutOfCoreLinearSVC(fit_intercept=fit_intercept, tol=1e-4).fit(X, y)
        assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)
        assert model.duality_gap_ <= 1e-4 * model.objective_
    empty = OutOfCoreLinearSVC(fit_intercept=False).fit(sparse.csr_array((4, 2)), [0, 1, 0, 1])
    assert empty.coef_.tolist() == [[0.0, 0.0]]
    assert empty.objective_ == 4.0


@pytest.mark.once
def test_working_set_shrinks_and_dual_objective_grows():
    X, y = make_classes(10 * N)
    history = OutOfCoreLinearSVC(C=10.0, memory_limit=SMALL_MEMORY).fit(X, y).history_
    passes = [entry for entry in history if entry.kind == "all"]
    assert passes[-1].free < 0.1 * passes[-1].rows
    assert all(entry.rows == 10 * N for entry in passes)
    assert [entry.C for entry in passes] == sorted(entry.C for entry in passes)  # C grows from stage to stage
    assert any(entry.kind == "working set" and entry.rows < N for entry in history)
    duals = [entry.dual for entry in history if entry.C == 10.0]
    assert (np.diff(duals) >= -1e-9 * duals[-1]).all()  # no step decreases the dual objective
    assert [entry.seconds for entry in history] == sorted(entry.seconds for entry in history)


@pytest.mark.once
def test_saved_state_of_another_problem_is_not_used(tmp_path):
    X, y = make_classes()
    with pytest.warns(ConvergenceWarning, match="for C=100000 ") as caught:
        hard, easy = OutOfCoreLinearSVC(max_iter=5, tol=0.5).fit_path(X, y, [1e5, 1e-4])
    assert len(caught) == 1
    assert hard.history_[-1].C == 1e5
    assert {entry.C for entry in easy.history_} == {1e-4}
    with pytest.warns(ConvergenceWarning):
        OutOfCoreLinearSVC(C=1e5, max_iter=3, tol=1e-6, work_folder=tmp_path).fit(X, y)
    second = OutOfCoreLinearSVC(C=1e-4, class_weight="balanced", work_folder=tmp_path).fit(X, y)
    assert second.history_[0].C < 1e-3
    assert second.n_iter_ < 20
    balanced = OutOfCoreLinearSVC(C=100.0, class_weight="balanced", random_state=1).fit(X, y)
    tiny = OutOfCoreLinearSVC(C=1e-3, work_folder=tmp_path, random_state=1).fit(X, y)
    assert tiny.duality_gap_ <= 1e-3 * tiny.objective_
    after = OutOfCoreLinearSVC(C=100.0, class_weight="balanced", work_folder=tmp_path, random_state=1).fit(X, y)
    # The stages are those of a fit without saved state.
    assert sorted({entry.C for entry in after.history_}) == sorted({entry.C for entry in balanced.history_})


def test_number_of_passes_respects_max_iter():
    X, y = make_classes()
    with pytest.warns(ConvergenceWarning):
        model = OutOfCoreLinearSVC(C=1e5, max_iter=1, tol=1e-9).fit(X, y)
    assert model.n_iter_ <= 1 + 2 + 2  # one stage, the final C with its working set, and the gap
    assert model.history_[-1].C == 1e5
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)


def test_n_iter_counts_the_passes_of_each_model_of_a_path():
    X, y = make_classes()
    for model in OutOfCoreLinearSVC(memory_limit=SMALL_MEMORY).fit_path(X, y, [0.1, 1.0, 10.0]):
        assert model.n_iter_ == int(np.ceil(sum(entry.rows for entry in model.history_) / len(y)))


def test_history_reports_the_weighted_c_of_the_positive_class():
    X, y = make_classes(200)
    model = OutOfCoreLinearSVC(C=2.0, class_weight={1: 3.0}).fit(X, y)
    assert model.history_[-1].C == 6.0
    assert model.n_samples_fit_ == 200


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_objective_is_correct_with_features_of_very_different_scale(loss):
    X, y = make_classes(60, dense=True)
    X *= np.geomspace(1e-3, 1e6, X.shape[1])
    model = OutOfCoreLinearSVC(C=1e5, loss=loss, max_iter=50).fit(X, y)
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-5)
    assert model.duality_gap_ >= 0.0


def compute_exact_objective(w, C, X, y):
    """Return the objective of hinge losses without an intercept, computed with fractions."""
    rows, w = [[Fraction(float(x)) for x in row] for row in X.astype(np.float32)], [Fraction(float(v)) for v in w]
    values = [sum(a * b for a, b in zip(row, w, strict=True)) for row in rows]
    losses = [max(Fraction(0), 1 - int(t) * f) for f, t in zip(values, y, strict=True)]
    return float(sum(v * v for v in w) / 2 + Fraction(C) * sum(losses))


@pytest.mark.once
@pytest.mark.parametrize(
    ("scale", "C"), [(1e3, 1.0), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1e5, 1e4), (1e6, 1.0)))]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_duality_gap_is_correct_without_scaling(scale, C):
    # Each step rounds w, so w drifts from the expansion of the dual coefficients, to which the gap belongs.
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(60, 4)) * scale).astype(np.float32).astype(float)
    y = np.where(X @ rng.normal(size=4) > 0.0, 1, -1)
    model = OutOfCoreLinearSVC(C=C, fit_intercept=False, max_iter=300).fit(X, y)
    second = OutOfCoreLinearSVC(C=C * scale**2, fit_intercept=False, tol=1e-5).fit(X / scale, y)
    primal = compute_exact_objective(model.coef_[0], C, X, y)
    assert model.objective_ == pytest.approx(primal, rel=1e-3)
    assert model.duality_gap_ >= -1e-9 * model.objective_
    # The objective of any w is an upper bound of the optimum.
    assert primal - model.duality_gap_ <= 1.001 * compute_exact_objective(second.coef_[0] / scale, C, X, y)


@pytest.mark.once
@pytest.mark.parametrize(("scaling", "C"), [(1000.0, 1.0), (100.0, 100.0)])
def test_unconverged_fit_is_better_than_zero_coefficients(scaling, C):
    X, y = make_classes(600)
    with pytest.warns(ConvergenceWarning):
        model = OutOfCoreLinearSVC(C=C, intercept_scaling=scaling, max_iter=60, tol=1e-6).fit(X, y)
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)
    assert model.objective_ < C * len(y)  # the objective of w = 0


def test_every_pass_shuffles_the_blocks(monkeypatch):
    X, y = make_classes(max(N, 300))
    sweep_rows, sweep_free_rows, firsts = dual.sweep_rows, dual.sweep_free_rows, []

    def record_block(w, b, block, *rest):
        firsts.append(block.first_row)
        return sweep_rows(w, b, block, *rest)

    def sweep_without_record(*args):
        with monkeypatch.context() as patch:  # without compilation it calls `sweep_rows`
            patch.setattr(dual, "sweep_rows", sweep_rows)
            return sweep_free_rows(*args)

    monkeypatch.setattr(dual, "sweep_rows", record_block)
    monkeypatch.setattr(dual, "sweep_free_rows", sweep_without_record)
    OutOfCoreLinearSVC(C=10.0, tol=1e-5, memory_limit=2**17).fit(X, y)
    blocks = len(set(firsts))
    assert blocks > 2
    orders = [tuple(firsts[k : k + blocks]) for k in range(0, len(firsts), blocks)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(set(firsts)))}
    assert len(set(orders)) > 3


def test_rounding_errors_of_w_are_corrected(monkeypatch):
    X, y = make_classes()
    clean = OutOfCoreLinearSVC(C=1.0, memory_limit=SMALL_MEMORY).fit(X, y)
    measure_objectives, calls = dual.measure_objectives, []

    def measure_after_shift(w, *rest):
        if not calls:
            w += 0.5  # stands for an accumulated rounding error
        calls.append(1)
        return measure_objectives(w, *rest)

    monkeypatch.setattr(dual, "measure_objectives", measure_after_shift)
    model = OutOfCoreLinearSVC(C=1.0, memory_limit=SMALL_MEMORY).fit(X, y)
    first = next(entry for entry in model.history_ if entry.kind == "gap")
    assert first.primal - first.dual > 2e-3 * model.objective_
    assert 0.0 <= model.duality_gap_ <= 1e-3 * model.objective_
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)
    assert model.objective_ <= 1.0011 * clean.objective_
