"""Tests of `to_online`, of column names from files to streams, and of the files in a work folder."""

import os
import pickle
import resource
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from river import datasets, preprocessing
from sklearn.datasets import dump_svmlight_file, load_diabetes
from sklearn.linear_model import HuberRegressor, SGDClassifier
from sklearn.svm import SVC, LinearSVC, LinearSVR

from failing import Failing, interrupted, interrupts
from linear_problems import SMALL_MEMORY, make_classes
from refused import refused
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.linear import (
    BlockFile,
    BlockWriter,
    OutOfCoreLinearSVC,
    OutOfCoreLinearSVR,
    dual,
    to_online,
    write_blocks,
    write_rows,
)
from streamsvm.stream import CSVSource, LearningLoop, LIBSVMSource


def make_data(n=300, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, X @ rng.normal(size=d) + 0.5 * rng.normal(size=n) - 0.3


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        *((OutOfCoreLinearSVC, labels) for labels in ([False, True], [-1, 1], [1, 2], ["ham", "spam"], ["spam", 1.5])),
        *((kind, [False, True]) for kind in (LinearSVC, SGDClassifier)),
    ],
)
def test_online_classifier_decides_as_the_fitted_machine(kind, labels):
    X, f = make_data()
    y = np.array([str(label) for label in labels] if len({type(label) for label in labels}) > 1 else labels)[
        (f > 0.0).astype(int)
    ]
    model = kind(random_state=0).fit(X, y)
    learner = to_online(model)
    assert isinstance(learner, OnlineLinearSVC)
    assert learner.predict_many(X).tolist() == model.predict(X).tolist()
    sign = 1.0 if learner.positive_label == model.classes_.tolist()[1] else -1.0
    for output in ("auto", "last", "average"):
        np.testing.assert_allclose(
            learner.decision_function_many(X, output=output), sign * model.decision_function(X), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("kind", [OutOfCoreLinearSVR, LinearSVR])
def test_online_regressor_predicts_as_the_fitted_machine(kind):
    X, f = make_data()
    model = kind(epsilon=0.25, random_state=0).fit(X, f)
    learner = to_online(model)
    assert isinstance(learner, OnlineLinearSVR)
    assert learner.epsilon == 0.25
    np.testing.assert_allclose(learner.predict_many(X), model.predict(X), rtol=1e-5, atol=1e-6)


def test_online_learner_continues_from_the_fitted_machine():
    X, f = make_data(2000)
    y = f > 0.0
    fitted = OutOfCoreLinearSVC(C=10.0).fit(X[:1000], y[:1000])
    learner = to_online(fitted)
    assert learner.C == 0.1
    assert learner.n_learned == fitted.n_samples_fit_ == 1000
    before = learner.coefficients
    learner.learn_many(X[1000:], y[1000:])
    assert learner.n_learned == 2000
    assert not np.array_equal(learner.coefficients, before)
    assert (learner.predict_many(X) == y).mean() > (fitted.predict(X) == y).mean() - 0.01


@pytest.mark.parametrize("zero_based", [False, True])
def test_libsvm_files_and_streams_have_the_same_column_names(tmp_path, zero_based):
    X, f = make_data(d=5)
    path = tmp_path / "rows.txt"
    dump_svmlight_file(X, np.where(f > 0.0, 1, -1), str(path), zero_based=zero_based)
    fitted = OutOfCoreLinearSVC().fit_file(path, zero_based=zero_based)
    learner = to_online(fitted)
    assert learner.feature_names == list(range(5) if zero_based else range(1, 6))
    with closing(LIBSVMSource(path)) as source:
        assert [learner.predict_one(x) for x, _ in source] == fitted.predict(X).tolist()
    with closing(LIBSVMSource(path)) as source:
        LearningLoop(source, learner).run()
    assert learner.n_learned == 600


@pytest.mark.parametrize("text", ["rows.csv", "rows.parquet"])
def test_tables_and_their_rows_have_the_same_column_names(tmp_path, text):
    X, f = make_data(d=3)
    frame = pd.DataFrame(X.astype(float), columns=["width", "height", "age"]).assign(label=(f > 0.0).astype(int))
    frame.to_csv(tmp_path / text, index=False) if text.endswith("csv") else frame.to_parquet(tmp_path / text)
    fitted = OutOfCoreLinearSVC().fit_file(tmp_path / text, target="label")
    assert fitted.feature_names_in_.tolist() == ["width", "height", "age"]
    learner = to_online(fitted)
    rows = frame.drop(columns="label")
    assert learner.predict_many(rows).tolist() == fitted.predict(rows).tolist()
    assert learner.predict_one(rows.iloc[0].to_dict()) == fitted.predict(rows.iloc[:1])[0]


@pytest.mark.parametrize(("overflow", "max_features"), [("raise", 50), ("hash", 50), ("ignore", 4)])
def test_block_files_of_streams_keep_the_column_names(tmp_path, overflow, max_features):
    rows = [(x, y) for x, y in datasets.Phishing().take(400)]
    write_rows(rows, tmp_path / "rows.blocks", max_features=max_features, overflow=overflow)
    fitted = OutOfCoreLinearSVC().fit_file(tmp_path / "rows.blocks")
    learner = to_online(fitted, overflow="ignore")
    decisions = [learner.decision_function_one(x) for x, _ in rows]
    X = np.array([[x[name] for name in fitted.feature_names_in_] for x, _ in rows])
    np.testing.assert_allclose(decisions, X @ fitted.coef_[0] + fitted.intercept_, rtol=1e-5, atol=1e-6)
    learner.learn_one({**rows[0][0]}, True)


def test_hashed_columns_have_no_names(tmp_path):
    write_rows(datasets.Phishing().take(400), tmp_path / "rows.blocks", max_features=4, overflow="hash")
    fitted = OutOfCoreLinearSVC().fit_file(tmp_path / "rows.blocks")
    assert not hasattr(fitted, "feature_names_in_")
    refused("pass feature_names", to_online, fitted)


def test_unknown_feature_names_must_be_passed(tmp_path):
    rows = [({(0, 1): float(i % 3), "b": 1.0}, i % 2 == 0) for i in range(20)]
    write_rows(rows, tmp_path / "rows.blocks")
    fitted = OutOfCoreLinearSVC().fit_file(tmp_path / "rows.blocks")
    refused("pass feature_names", to_online, fitted)
    learner = to_online(fitted, feature_names=[(0, 1), "b"])
    assert learner.predict_one(rows[0][0]) in (0.0, 1.0)


@pytest.mark.parametrize(
    "meta",
    [
        {"names": ["a", "a"]},
        {"names": [["a"], "b"]},
        {"names": "ab"},
        {"index_base": 7},
        {"index_base": "1"},
    ],
)
def test_invalid_names_in_a_file_are_ignored(tmp_path, meta):
    X, f = make_data(50, d=2)
    with BlockWriter(tmp_path / "rows.blocks") as writer:
        writer.add(X, (f > 0.0).astype(float))
        writer.meta = meta
    fitted = OutOfCoreLinearSVC().fit_file(tmp_path / "rows.blocks")
    refused("pass feature_names", to_online, fitted)
    assert to_online(fitted, feature_names="ab").feature_names == ["a", "b"]


def test_new_fit_replaces_the_feature_names(tmp_path):
    X, f = make_data(d=2)
    path = tmp_path / "rows.txt"
    dump_svmlight_file(X, f > 0.0, str(path), zero_based=False)
    model = OutOfCoreLinearSVC().fit_file(path)
    assert to_online(model).feature_names == [1, 2]
    assert to_online(pickle.loads(pickle.dumps(model))).feature_names == [1, 2]
    assert to_online(model.fit_file_path(path, [1.0])[0]).feature_names == [1, 2]
    assert to_online(model.fit(X, f > 0.0)).feature_names == [0, 1]
    assert to_online(model.fit(pd.DataFrame(X, columns=["u", "v"]), f > 0.0)).feature_names == ["u", "v"]


def test_online_learner_works_behind_a_scaler():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    names = [f"x{j}" for j in range(10)]
    scaler = preprocessing.StandardScaler()
    scaled = []
    for row in X.tolist():
        x = dict(zip(names, row, strict=True))
        scaler.learn_one(x)
        scaled.append(list(scaler.transform_one(x).values()))
    model = OutOfCoreLinearSVR(C=10.0).fit(np.array(scaled), y)
    pipeline = scaler | to_online(model, feature_names=names)
    last = dict(zip(names, X[-1].tolist(), strict=True))
    assert pipeline.predict_one(last) == pytest.approx(model.predict(np.array(scaled[-1:]))[0], rel=1e-4)


def test_invalid_arguments_of_to_online_are_refused():
    X, f = make_data(60, d=3)
    y = f > 0.0
    fitted = OutOfCoreLinearSVC().fit(X, y)
    for names in (["a", "b"], ["a", "b", "b"], []):
        refused("3 distinct names", to_online, fitted, feature_names=names)
    refused("machine's number of features, 3", to_online, fitted, max_features=2)
    refused("fitted linear machine", to_online, SVC().fit(X, y))
    refused("one output", to_online, LinearSVC().fit(X, np.arange(60) % 3))
    refused("not fitted", to_online, OutOfCoreLinearSVC())
    refused("no column left", to_online(fitted).learn_one, {0: 1.0, "new": 1.0}, True)
    to_online(fitted, max_features=10).learn_one({0: 1.0, "new": 1.0}, True)
    to_online(fitted, overflow="ignore").learn_one({0: 1.0, "new": 1.0}, True)


@pytest.mark.parametrize(
    "labels", [("True", "False"), ("true", "false"), ("1", "x"), ("007", "8"), ("1.0", "0.0"), ("spam", "ham"), ("-1", "1")]
)
def test_csv_files_and_streams_have_the_same_labels(tmp_path, labels):
    rng = np.random.default_rng(0)
    rows = [(round(float(a), 3), labels[int(a < 0.0)]) for a in rng.normal(size=200)]
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in rows))
    learner = to_online(OutOfCoreLinearSVC().fit_file(path, target="y"))
    with closing(CSVSource(path, label="y")) as source:
        hits = [learner.predict_one(x) == y or learner.learn_one(x, y) for x, y in source]
    assert np.mean([hit is True for hit in hits]) > 0.95


def test_to_online_takes_parameters_from_the_machine():
    X, f = make_data(d=3)
    machine = OutOfCoreLinearSVC(C=0.01, fit_intercept=False).fit(X, f > 0.0)
    learner = machine.to_online()
    assert (learner.C, learner.fit_intercept, learner.intercept, learner.max_features) == (0.01, False, 0.0, 3)
    assert (learner.overflow, learner.averaging) == ("raise", 3000)
    regressor = OutOfCoreLinearSVR(C=7.0, epsilon=0.3).fit(X, f).to_online(averaging=5)
    assert (regressor.C, regressor.epsilon, regressor.averaging) == (0.1, 0.3, 5)
    assert to_online(HuberRegressor(epsilon=1.9).fit(X, f)).epsilon == 0.0
    assert to_online(LinearSVC().fit(X, f > 0.0).sparsify()).n_learned == 3000
    assert to_online(machine, feature_names=np.array(["a", "b", "c"])).feature_names == ["a", "b", "c"]
    for names in (4, [[1], [2], [3]]):
        refused("3 distinct names", to_online, machine, feature_names=names)


def test_unreadable_row_leaves_no_block_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n1,1\n1,2,3\n")
    with (
        CSVSource(path, label="y") as source,
        pytest.raises(ValueError, match=r"row 1: .*rows\.csv, line 3: 3 cells for 2 columns"),
    ):
        write_rows(source, tmp_path / "rows.blocks")
    assert not (tmp_path / "rows.blocks").exists()


# The files of a work folder -----------------------------------------------------------------------------------------------------


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_foreign_files_in_the_work_folder_stay_unchanged(tmp_path):
    text, folder = "1 1:1\n0 1:-1\n", tmp_path / "work"
    folder.mkdir()
    for name in ("rows", "working-set-notes.txt", "state"):
        (folder / name).write_text(text)
    OutOfCoreLinearSVC(work_folder=folder).fit_file(folder / "rows")
    assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == dict.fromkeys(
        ("rows", "working-set-notes.txt", "state"), text
    )
    refused("would be overwritten", write_blocks, folder / "rows", folder / "rows")


def test_work_folder_has_only_the_required_files(tmp_path, monkeypatch):
    X, y = make_classes()
    settings = {"work_folder": tmp_path, "memory_limit": SMALL_MEMORY}
    for C in (0.1, 1.0):
        OutOfCoreLinearSVC(C=C, **settings).fit(X, y)
    names = {path.name.partition("-")[0] for path in (tmp_path / "streamsvm-fit").iterdir()}
    assert names == {"rows", "state", "coefficients", "solution", "lock"}
    assert len(list((tmp_path / "streamsvm-fit").glob("solution-*"))) == 2
    OutOfCoreLinearSVC(**settings).fit(X[:-1], y[:-1])
    assert len(list((tmp_path / "streamsvm-fit").glob("solution-*"))) == 1
    monkeypatch.setattr(dual, "measure_objectives", Failing(None, 1, OSError(28, "No space left on device")))
    monkeypatch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
    refused("No space left", OutOfCoreLinearSVC(C=5.0, **settings).fit, X, y, error=OSError)
    assert not list((tmp_path / "streamsvm-fit").glob("working*"))


def test_leftovers_of_other_fits_are_removed(tmp_path):
    X, y = make_classes()
    folder = tmp_path / "streamsvm-fit"
    folder.mkdir()
    for name in ("working-set", "working-set.partial"):
        (folder / name).write_bytes(b"rows")
    OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    assert not list(folder.glob("working-set*"))


def test_work_folder_in_use_is_refused(tmp_path, monkeypatch):
    X, y = make_classes()
    block, attempts = BlockFile.read_block, []

    def start_second_fit(self, number):
        if not attempts:
            attempts.append(True)
            refused("in use by another fit", OutOfCoreLinearSVC(C=2.0, work_folder=tmp_path).fit, X, y, error=RuntimeError)
        return block(self, number)

    monkeypatch.setattr(BlockFile, "read_block", start_second_fit)
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    np.testing.assert_array_equal(model.coef_, OutOfCoreLinearSVC().fit(X, y).coef_)
    assert attempts


def test_files_of_one_name_in_different_folders_are_distinguished(tmp_path):
    for name, sign in (("a", ""), ("b", "-")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.txt").write_text(f"1 1:{sign}1\n0 1:{'-' if not sign else ''}1\n" * 50)
        os.utime(tmp_path / name / "rows.txt", ns=(10**18, 10**18))
    work = {"work_folder": tmp_path / "work"}
    first, second = (OutOfCoreLinearSVC(**work).fit_file(tmp_path / name / "rows.txt").coef_[0, 0] for name in "ab")
    assert first > 0.0 > second


@pytest.mark.once
def test_number_of_open_files_stays_small(tmp_path, monkeypatch):
    X, y = make_classes(60, 40)
    max_open, block = [0], BlockFile.read_block

    def count_open_files(self, number):
        max_open[0] = max(max_open[0], count_descriptors())
        return block(self, number)

    monkeypatch.setattr(BlockFile, "read_block", count_open_files)
    before = count_descriptors()
    OutOfCoreLinearSVC(C=1e4, work_folder=tmp_path, max_iter=3000).fit(X, y)
    assert before < max_open[0] <= before + 16


@pytest.mark.parametrize("failure", ["interrupt", "state", "files"])
def test_failure_at_the_start_of_a_fit_raises_its_error(tmp_path, monkeypatch, failure):
    X, y = make_classes()
    model = OutOfCoreLinearSVC(work_folder=tmp_path)
    if failure == "interrupt":
        monkeypatch.setattr("streamsvm.linear.dual_state.Coefficients", interrupted)
        interrupts(model.fit, X, y)
    elif failure == "state":
        (tmp_path / "streamsvm-fit" / "state").mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            model.fit(X, y)
    else:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (count_descriptors() + 1, limits[1]))
        try:
            refused("Too many open files", model.fit, X, y, error=OSError)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not hasattr(model, "coef_")
