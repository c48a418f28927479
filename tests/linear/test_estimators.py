"""Tests of linear machines over block files: against LinearSVC, LinearSVR, dense arithmetic and scikit-learn's conventions."""

import os
import pickle
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.multiclass import OneVsRestClassifier

from failing import interrupted, interrupts
from linear_problems import SLOW, SMALL_MEMORY, N, check_optimum, draw_weights, make_classes, make_regression
from refused import refused
from streamsvm.batch import batch_adapter
from streamsvm.linear import BlockFile, BlockFileError, BlockWriter, OutOfCoreLinearSVC, OutOfCoreLinearSVR, dual, write_blocks

#: Parameters of the quick tests, without sample weights and with them.
HIGH_C = {"C": 10.0, "class_weight": {1: 0.1, -1: 3.0}}
SQUARED = {"loss": "squared_hinge"}
QUICK = [
    [{"C": 0.01}, {}, SQUARED, {"fit_intercept": False}, {"class_weight": "balanced"}, HIGH_C | SQUARED],
    [{"C": 0.01}, SQUARED, HIGH_C | {"C": 1.0}],
]
THOROUGH = [[HIGH_C, {"intercept_scaling": 10.0}, {"C": 100.0}, {"C": 30.0} | SQUARED], [{"C": 30.0}, HIGH_C | SQUARED]]


@pytest.mark.parametrize(
    ("weighted", "dual", "settings", "dense"),
    [
        pytest.param(weighted, dual, settings, number % 2 == 1, marks=[pytest.mark.thorough] * (settings in THOROUGH[weighted]))
        for weighted, dual in ((False, False), (True, False), (True, True))
        for number, settings in enumerate(QUICK[weighted] + THOROUGH[weighted])
    ],
)
def test_classifier_reaches_the_optimum(settings, dense, weighted, dual, monkeypatch):
    if dual:
        monkeypatch.setattr("streamsvm.linear.fit.hessian_fits_in", lambda *_: False)
    n = N // 2 if weighted else N
    (X, y), weights = make_classes(n, dense=dense), draw_weights(n) if weighted else None
    model = OutOfCoreLinearSVC(memory_limit=SMALL_MEMORY, tol=1e-4 if weighted else 1e-3, **settings).fit(
        X, y, sample_weight=weights
    )
    exact = check_optimum(model, X, y, weights)
    assert model.n_samples_fit_ == (np.count_nonzero(weights) if weighted else n)
    assert (model.predict(X) == exact.predict(X)).mean() > 0.985
    assert model.coef_.shape == (1, X.shape[1])


@pytest.mark.parametrize(
    ("weighted", "dual", "settings"),
    [
        *(
            pytest.param(False, False, settings, marks=pytest.mark.once)
            for settings in (
                {"C": 0.01, "epsilon": 0.1},
                {"C": 1.0},
                {"C": 10.0, "epsilon": 0.5},
                {"C": 1.0, "epsilon": 0.1, "loss": "squared_epsilon_insensitive"},
                {"C": 1.0, "epsilon": 0.3, "fit_intercept": False},
            )
        ),
        *(
            (True, dual, {"C": 0.5, "epsilon": 0.2, "loss": loss})
            for dual in (False, True)
            for loss in ("epsilon_insensitive", "squared_epsilon_insensitive")
        ),
    ],
)
def test_regressor_reaches_the_optimum(settings, weighted, dual, monkeypatch):
    if dual:
        monkeypatch.setattr("streamsvm.linear.fit.hessian_fits_in", lambda *_: False)
    n = N // 2 if weighted else N
    (X, y), weights = make_regression(n), draw_weights(n) if weighted else None
    model = OutOfCoreLinearSVR(memory_limit=SMALL_MEMORY, tol=1e-4 if weighted else 1e-3, **settings).fit(X, y, weights)
    check_optimum(model, X, y, weights)
    assert model.coef_.shape == (X.shape[1],)


@pytest.mark.once
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_fit_path_equals_single_fits(loss, tmp_path):
    X, y = make_classes()
    start = OutOfCoreLinearSVC(loss=loss, memory_limit=SMALL_MEMORY)
    models = start.fit_path(X, y, [0.1, 1.0, 100.0, 0.5])
    assert not hasattr(start, "coef_")
    for model in models:
        single = OutOfCoreLinearSVC(**model.get_params()).fit(X, y)
        assert model.objective_ == pytest.approx(single.objective_, rel=1.5e-3)
        assert model.duality_gap_ <= 1e-3 * model.objective_
    dump_svmlight_file(X, y, str(tmp_path / "rows.txt"), zero_based=False)
    again = start.fit_file_path(tmp_path / "rows.txt", [0.1, 1.0])
    assert [model.C for model in again] == [0.1, 1.0]
    np.testing.assert_allclose(again[1].decision_function(X), models[1].decision_function(X), atol=0.1)
    assert [model.C for model in start.fit_path(X, y, (C for C in (0.1, 0.2)))] == [0.1, 0.2]
    for wrong in ([], 1.0):
        refused("Cs must be numbers", start.fit_path, X, y, wrong)
    refused("C must be", start.fit_path, X, y, [1.0, 0.0])


@pytest.mark.once
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_fits_of_files_and_arrays_agree(tmp_path, suffix, monkeypatch):
    X, y = make_classes()
    text, folder = tmp_path / f"rows{suffix}", tmp_path / "work"
    dump_svmlight_file(X, y, str(tmp_path / "rows.txt"), zero_based=False)
    if suffix.endswith(".gz"):
        import gzip

        text.write_bytes(gzip.compress((tmp_path / "rows.txt").read_bytes()))
    model = OutOfCoreLinearSVC(tol=1e-4, memory_limit=SMALL_MEMORY)
    from_arrays, from_text = model.fit(X, y).decision_function(X), model.fit_file(text).decision_function(X)
    assert model.n_features_in_ == X.shape[1]
    assert (model.classes_.tolist(), model.classes_.dtype) == ([-1, 1], np.int64)
    np.testing.assert_allclose(from_text, from_arrays, atol=0.02)
    write_blocks(text, tmp_path / "blocks", memory_limit=SMALL_MEMORY)
    np.testing.assert_allclose(model.fit_file(tmp_path / "blocks").decision_function(X), from_arrays, atol=0.02)
    first = OutOfCoreLinearSVC(work_folder=folder, memory_limit=SMALL_MEMORY).fit_file(text)
    with monkeypatch.context() as patch:
        patch.setattr("streamsvm.linear.fit.write_blocks", None)  # must not be called again
        again, second = (OutOfCoreLinearSVC(C, work_folder=folder, memory_limit=SMALL_MEMORY).fit_file(text) for C in (1.0, 3.0))
        np.testing.assert_array_equal(again.coef_, first.coef_)
        assert second.duality_gap_ <= 1e-3 * second.objective_
    wide = tmp_path / "wide"
    OutOfCoreLinearSVC(work_folder=wide).fit_file(text)
    smaller = OutOfCoreLinearSVC(work_folder=wide, memory_limit=2**17).fit_file(text)  # the blocks are too large for this limit
    assert smaller.duality_gap_ <= 1e-3 * smaller.objective_
    rows = wide / "streamsvm-fit" / "rows"
    rows.write_bytes(rows.read_bytes()[:-1])
    again = OutOfCoreLinearSVC(C=2.0, work_folder=wide).fit_file(text)
    assert again.duality_gap_ <= 1e-3 * again.objective_
    os.utime(text, ns=(1, 1))
    with BlockFile(folder / "streamsvm-fit" / "rows") as before:
        OutOfCoreLinearSVC(work_folder=folder).fit_file(text)
        with BlockFile(folder / "streamsvm-fit" / "rows") as after:
            assert after.meta != before.meta  # it was parsed again


@pytest.mark.once
def test_regression_of_files_and_arrays_agrees(tmp_path):
    X, y = make_regression()
    dump_svmlight_file(X, y, str(tmp_path / "rows.txt"), zero_based=False)
    model = OutOfCoreLinearSVR(tol=1e-4, memory_limit=SMALL_MEMORY)
    np.testing.assert_allclose(model.fit_file(tmp_path / "rows.txt").predict(X), model.fit(X, y).predict(X), atol=0.05)
    refused(r"must have two labels, but has more than 64", OutOfCoreLinearSVC().fit_file, tmp_path / "rows.txt")


@pytest.mark.thorough
@pytest.mark.once
def test_memory_stays_within_its_limit(tmp_path):
    X, y = make_classes(12_000, 50)
    with BlockWriter(tmp_path / "rows", block_bytes=2**13) as writer:
        writer.add(X, y.astype(float))
    small = tmp_path / "small"
    with BlockWriter(small, block_bytes=2**13) as writer:
        writer.add(X[:200], y[:200].astype(float))
    for limit in (250_000, 600_000):  # bytes; the file has 1.6 MB, so that it exceeds each of them
        model = OutOfCoreLinearSVC(memory_limit=limit, tol=0.01)
        model.fit_file(small)  # compiles
        tracemalloc.start()
        model.fit_file(tmp_path / "rows")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 1.2 * limit


def test_too_small_memory_limit_error_names_the_required_bytes():
    X, y = make_classes()
    with pytest.raises(ValueError, match=r"memory_limit=1,000 bytes is too little for any fit: [\d,]+ are needed"):
        OutOfCoreLinearSVC(memory_limit=1000).fit(X, y)
    wide = sparse.csr_array((np.ones(2), ([0, 1], [0, 100_000])), shape=(2, 100_001))
    with pytest.raises(ValueError, match="for 100,001 features and blocks of up to") as caught:
        OutOfCoreLinearSVC(memory_limit=2**17).fit(wide, [0, 1])
    needed = float(str(caught.value).rpartition(": ")[2].split()[0].replace(",", ""))
    assert OutOfCoreLinearSVC(memory_limit=needed).fit(wide, [0, 1]).score(wide, [0, 1]) == 1.0
    refused("is too little", OutOfCoreLinearSVC(memory_limit=0.99 * needed).fit, wide, [0, 1])


def test_row_of_a_million_values_is_learned(tmp_path):
    n = 10_000 if SLOW else 1_000_000
    X = sparse.vstack([sparse.csr_array(np.ones((1, n))), sparse.csr_array(([-1.0], ([0], [3])), shape=(1, n))], format="csr")
    assert OutOfCoreLinearSVC().fit(X, ["long", "short"]).score(X, ["long", "short"]) == 1.0
    with BlockWriter(tmp_path / "rows") as writer:
        writer.add(X, np.array([1.0, 0.0]))
    refused("blocks of up to", OutOfCoreLinearSVC(memory_limit=32 * n).fit_file, tmp_path / "rows")


def test_convergence_warning_names_the_line_of_the_caller():
    X, y = make_classes()
    with pytest.warns(ConvergenceWarning, match=r"for C=1000 with a relative duality gap of .* above tol=1e-06") as caught:
        OutOfCoreLinearSVC(C=1000.0, tol=1e-6, max_iter=2).fit(X, y)
    assert caught[0].filename == __file__


def test_refused_fit_leaves_the_model_unchanged(tmp_path):
    X, y = make_classes(60)
    model = OutOfCoreLinearSVC().fit(X, y)
    before = pickle.dumps(model)
    (tmp_path / "rows.txt").write_text("1 1:1\n2 1:2\n3 1:3\n")
    (tmp_path / "one.txt").write_text("1 1:1\n1 1:2\n")
    wrong = X.copy()
    wrong.data[0] = np.nan
    for fit, message in (
        (lambda: model.fit(wrong, y), "NaN"),
        (lambda: model.fit(X, np.ones(60)), "only one class"),
        (lambda: model.fit(*load_iris(return_X_y=True)), "Only binary classification"),
        (lambda: model.fit_file(tmp_path / "rows.txt"), "must have two labels, but has 1, 2, 3"),
        (lambda: model.fit_file(tmp_path / "one.txt"), "must have two labels, but has 1"),
        (lambda: model.fit(sparse.csr_array(1e39 * X.toarray()), y), "not finite in float32"),
    ):
        refused(message, fit)
        assert pickle.dumps(model) == before
    with pytest.raises(FileNotFoundError):
        model.fit_file(tmp_path / "none")


def test_row_copies_and_empty_files_are_refused(tmp_path):
    X, y = make_classes(60)
    with BlockWriter(tmp_path / "numbered", with_row_numbers=True) as writer:
        writer.add(X, y.astype(float), np.arange(60, dtype=np.uint64)[::-1].copy())
    refused("has copies of some rows of another file", OutOfCoreLinearSVC().fit_file, tmp_path / "numbered", error=BlockFileError)
    BlockWriter(tmp_path / "empty").close()
    for machine in (OutOfCoreLinearSVC(), OutOfCoreLinearSVR()):
        with pytest.raises(BlockFileError, match=r"has no rows or no features: its shape is \(0, 0\)"):
            machine.fit_file(tmp_path / "empty")


def test_numbers_outside_the_float_range_are_refused(tmp_path):
    X, y = make_classes(60)
    for settings in ({"C": 1e31}, {"C": 1e-31}, {"C": 1e20, "class_weight": {1: 1e20}}):
        refused("outside 1e-30 to 1e\\+30: scale it", OutOfCoreLinearSVC(**settings).fit, X, y)
    (tmp_path / "rows.txt").write_text("1e160 1:1\n1 1:2\n")
    refused("scale the targets", OutOfCoreLinearSVR(loss="squared_epsilon_insensitive").fit_file, tmp_path / "rows.txt")
    (tmp_path / "rows.txt").write_text("1e20 1:1\n1 1:-2\n")
    assert OutOfCoreLinearSVC().fit_file(tmp_path / "rows.txt").classes_.tolist() == [1.0, 1e20]


def test_interrupt_leaves_the_model_unchanged_and_no_files(tmp_path, monkeypatch):
    X, y = make_classes()
    model = OutOfCoreLinearSVC().fit(X, y)
    before = pickle.dumps(model)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(dual, "measure_objectives", interrupted)
    interrupts(model.fit, X, y)
    assert pickle.dumps(model) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
def test_one_vs_rest_and_batch_adapter_accept_the_classifier():
    X, y = make_classes(200, dense=True)
    iris, species = load_iris(return_X_y=True)
    machine = OutOfCoreLinearSVC(C=10.0, max_iter=2000)
    assert OneVsRestClassifier(machine).fit(iris, species).score(iris, species) > 0.9
    adapter = batch_adapter(OutOfCoreLinearSVC(), window=100, refit_every=50)
    adapter.learn_many(X, y)
    assert (adapter.predict_many(X) == y).mean() > 0.8


def test_large_targets_of_files_and_arrays_agree(tmp_path):
    X, y = make_regression(200, 4)
    y *= 1e17
    with BlockWriter(tmp_path / "rows") as writer:
        writer.add(X, y)
    settings = {"loss": "squared_epsilon_insensitive", "C": 1.0}
    model, array = OutOfCoreLinearSVR(**settings).fit_file(tmp_path / "rows"), OutOfCoreLinearSVR(**settings).fit(X, y)
    np.testing.assert_allclose(model.coef_, array.coef_, rtol=1e-3)


@pytest.mark.parametrize("name", ["coef_", "intercept_", "classes_"])
@pytest.mark.parametrize("change", [lambda a: a.ravel()[0], lambda a: a[..., :0], lambda a: a.astype(object), lambda a: None])
def test_a_saved_model_with_parts_of_another_shape_is_refused(name, change):
    X = np.random.default_rng(0).normal(size=(50, 3))
    state = OutOfCoreLinearSVC().fit(X, X[:, 0] > 0).__getstate__()
    if name == "classes_" and change(state[name]) is not None and np.shape(change(state[name])) == (2,):
        state[name] = state[name][:1]  # labels may have any type
    else:
        state[name] = change(state[name])
    with pytest.raises(ValueError, match="the saved model is corrupt"):
        OutOfCoreLinearSVC().__setstate__(state)
