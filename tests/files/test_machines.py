"""Batch machines are saved and loaded, with all types of labels and rows; invalid files are refused."""

import inspect
import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, is_classifier, is_outlier_detector

import streamsvm
from crafted import repacked
from refused import raises
from saved import dumps, loads
from streamsvm import batch, edge, linear
from streamsvm.files.container import ModelFileError
from streamsvm.linear import OutOfCoreLinearSVC

KINDS = [
    kind
    for module in (batch, linear)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, BaseEstimator) and kind.__module__.startswith("streamsvm.")
]
LABELS = {
    "int": np.array([3, -7]),
    "bool": np.array([False, True]),
    "text": np.array(["nein", "tschüß"]),
    "objects": np.array(["a", "bcd"], object),
}
FORMS = {
    "array": np.asarray,
    "csr_array": sparse.csr_array,
    "csr_matrix": sparse.csr_matrix,
    "frame": lambda X: pd.DataFrame(X, columns=list("abcd")),
}


def problem():
    X = np.random.default_rng(0).normal(size=(80, 4))
    X[np.abs(X) < 0.6] = 0.0
    return X, (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int64)


def fit_machine(kind, labels="text", form="array"):
    X, y = problem()
    options, model = FORMS[form](X), kind()
    if is_outlier_detector(model):
        return model.fit(options), options
    return model.fit(options, LABELS[labels][y] if is_classifier(model) else X[:, 0]), options


@pytest.mark.parametrize(
    ("labels", "form"), [*((labels, "array") for labels in LABELS), *(("text", form) for form in FORMS if form != "array")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_loaded_machine_equals_saved_machine(kind, labels, form, tmp_path):
    model, X = fit_machine(kind, labels, form)
    path = tmp_path / "model.safetensors"
    model.save(path)
    data, loaded = path.read_bytes(), streamsvm.load(path, kind=kind)
    assert dumps(loaded) == dumps(model)
    assert {name: type(value) for name, value in vars(loaded).items()} == {n: type(value) for n, value in vars(model).items()}
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    answers = edge.loads(data).predict_many(problem()[0])
    if is_classifier(model) or is_outlier_detector(model):
        assert (answers == model.predict(X)).mean() > 0.98
    else:
        np.testing.assert_allclose(answers, model.predict(X), atol=1e-4)


def test_model_fitted_from_a_file_is_loaded(tmp_path):
    rows = [f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(70)]
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(rows))
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit_file(tmp_path / "rows.csv", target="y")
    loaded = loads(dumps(model))
    assert loaded.history_ == model.history_
    assert loaded.work_folder == str(tmp_path)
    assert (loaded.index_base_, loaded.labels_are_csv_) == (None, True)
    assert loaded.to_online().predict_one({"a": 6, "b": 1}) == "yes"


ARRAYS = [
    np.array(["a", "", "\U0001f600b", "\ud800"]),
    np.array([["a", "bc"], ["d", "e"]]).T,
    np.array(["big", "endian"], ">U6"),
    np.empty(0, "<U3"),
    np.array(["mixed", 1, 2.5, math.inf, None, True, 2**70], object),
    np.empty(0, object),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_arrays_of_texts_and_labels_are_saved(array):
    data = dumps(array)
    loaded = loads(data)
    assert loaded.dtype == array.dtype.newbyteorder("<")
    assert loaded.shape == array.shape
    assert [(type(value), value) for value in loaded.ravel().tolist()] == [(type(v), v) for v in array.ravel().tolist()]
    assert dumps(loaded) == data


@pytest.mark.parametrize("array", [np.array([{}, 1], object), np.array(["a", object()], object), np.array([["a", 1]], object)])
def test_arrays_of_other_objects_are_refused(array):
    raises("an array of object cannot be saved", dumps, array, error=ModelFileError)


@pytest.mark.parametrize(
    ("record", "array"),
    [
        (["string_array", 0], np.array([[0x110000]], np.uint32)),
        (["string_array", 0], np.array([[97]], np.int32)),
        (["string_array", 0], np.array(97, np.uint32)),
        (["string_array", 0], np.empty((3, 0), np.uint32)),
        (["object_array"], None),
        (["object_array", 1], None),
        (["object_array", [[1]]], None),
        (["object_array", [{"ref": 0}]], None),
        (["object_array", [{"tuple": []}]], None),
    ],
)
def test_invalid_arrays_are_refused(record, array, tmp_path):
    tree = {"records": [record, ["dict", [["model", {"ref": 0}], ["metric", None]]]], "root": {"ref": 1}}
    path = repacked(tmp_path / "evil", json.dumps(tree).encode(), {} if array is None else {"0": array})
    raises("cannot be loaded", streamsvm.load, path, error=ModelFileError)


def state_changed(model, name, value):
    object.__new__(type(model)).__setstate__(model.__getstate__() | {name: value})


def test_an_attribute_that_hides_a_method_is_refused():
    raises("the saved model is corrupt", state_changed, fit_machine(OutOfCoreLinearSVC)[0], "predict", 1)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, lambda kind: "bsr_array"),
        (1, lambda shape: (shape[0], 3)),
        (1, lambda shape: (2**62, shape[1])),
        (1, lambda shape: (-1, shape[1])),
        (2, lambda values: values[1:]),
        (2, lambda values: values.astype(np.float32)),
        (2, lambda values: values * math.inf),
        (3, lambda indices: indices + 1),
        (3, lambda indices: indices - 1),
        (3, lambda indices: indices.astype(np.float64)),
        (4, lambda starts: starts[::-1]),
        (4, lambda starts: starts + 1),
    ],
)
def test_invalid_sparse_support_vectors_are_refused(place, value):
    model = fit_machine(batch.CSMOClassifier, form="csr_array")[0]
    parts = list(model.__getstate__()["support_vectors_"])
    parts[place] = value(parts[place])
    raises("the saved model is corrupt", state_changed, model, "support_vectors_", tuple(parts))
