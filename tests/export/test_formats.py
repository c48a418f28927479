"""Export formats predict as their programs. Invalid arguments, paths and files are refused."""

import json
import math

import numpy as np
import onnxruntime
import pytest
from river import preprocessing
from safetensors.numpy import load_file

import streamsvm
from c_compilers import FLAGS, needs_compiler
from c_model import CModel
from edge_models import MEMORIES, WHOLE_NUMBERS, bsgd, learned, matrix, memory, of_whole_numbers, program
from refused import refused
from streamsvm import BSGDClassifier, edge, load, save
from streamsvm.edge.program import Program
from streamsvm.export.convert import make_program
from streamsvm.export.formats import FORMATS, export, list_files
from streamsvm.export.pipelines import find_fields_lost_in_float32
from streamsvm.files.container import DTYPES, ModelFileError
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.stream.tables import TableEncoder

NAMES = [
    *("BSGDClassifier 0 of 2", "BSGDClassifier 0 of 3", "SVMClassifier 0 of 3", "SVMRegressor 0 of 0", "OneClassBSGD 0 of 0"),
    *("FOGD 0 of 2", "CSMOClassifier 0 of 4", "HierarchicalSVC 7 of 2", "OutOfCoreLinearSVC"),
    *("table of 2", "names of 3", "scaled targets"),
]


def assert_equal_predictors(original, restored):
    X = matrix(original)
    a, b = edge.Predictor(original), edge.Predictor(restored)
    np.testing.assert_array_equal(a.predict_many(X), b.predict_many(X))
    np.testing.assert_array_equal(a.decision_function_many(X), b.decision_function_many(X))
    assert (a.columns, a.labels, a.metadata) == (b.columns, b.labels, b.metadata)


def read_json(data):
    saved, arrays = json.loads(data), {}
    assert saved.pop("format") == "streamsvm program"
    for number, step in enumerate(saved["steps"]):
        for name, array in step["arrays"].items():
            arrays[f"{number} {name}"] = np.array(array["data"], DTYPES[array["dtype"]]).reshape(array["shape"])
        step["arrays"] = {name: f"{number} {name}" for name in step["arrays"]}
    for table in saved.get("tables", []):
        for name, array in table.items():
            arrays[name] = np.array(array["data"], DTYPES[array["dtype"]]).reshape(array["shape"])
            table[name] = name
    return Program.deserialise(json.dumps(saved), arrays)


@pytest.mark.parametrize("name", [*NAMES, *MEMORIES])
def test_numpy_and_json_files_are_lossless(name, tmp_path):
    original = program(name)
    [numpy_file], [json_file] = (export(original, to, tmp_path / "new", "some.name") for to in ("numpy", "json"))
    assert (numpy_file.name, json_file.name) == ("some.name.safetensors", "some.name.json")
    assert_equal_predictors(original, edge.load(numpy_file).program)
    assert_equal_predictors(original, read_json(json_file.read_bytes()))
    assert export(original, "numpy", tmp_path)[0].read_bytes() == numpy_file.read_bytes()
    arrays = load_file(numpy_file)  # with the reference reader of safetensors
    assert sum(array.nbytes for name, array in arrays.items() if name.startswith("program.")) == original.nbytes


def iter_decisions(original, X, tmp_path, bits=32):
    """Yield the decision values of rows by numpy, ONNX and C."""
    [path] = export(original, "onnx", tmp_path)
    yield edge.Predictor(original).decision_function_many(X)
    yield onnxruntime.InferenceSession(path).run(None, {"X": X.astype(np.float32)})[-1]
    yield CModel(original, flags=FLAGS, bits=bits).decision_function_many(X)


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "labels", "values"), WHOLE_NUMBERS)
def test_ties_do_not_depend_on_rounding(kind, labels, values, tmp_path):
    model, X = of_whole_numbers(kind, labels, values)
    f = model.decision_function_many(X) if labels else model.predict_many(X)
    for decisions, rounding in zip(iter_decisions(make_program(model), X, tmp_path), (2e-5, 1e-4, 1e-4), strict=True):
        np.testing.assert_allclose(decisions.reshape(f.shape), f, atol=rounding)


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize(("n", "features", "bits"), [(5, 3, 8), (16, 4, 32), (16, 4, 8), (50, 7, 32)])
def test_the_first_of_equally_near_rows_vote(n, features, bits, tmp_path):
    original = memory(n, n, features, neighbours=3)
    step = original.steps[2]
    step.arrays["vectors"][:], step.arrays["targets"][:], step.arrays["weights"][:] = 0.7, np.arange(n), 1.0
    for decisions in iter_decisions(original, matrix(original), tmp_path, bits):
        np.testing.assert_allclose(decisions, np.where(np.arange(n) < 3, -1.0 / 3.0, -1.0) + np.zeros_like(decisions), atol=1e-6)


@pytest.mark.parametrize("bits", [32, 8])
def test_bits_of_vectors_in_c(bits, tmp_path):
    header, source = export(learned(bsgd(), 200, 2), "c", tmp_path, bits=bits)
    assert header.name == "model.h"
    assert ("static const MODEL_TABLE int8_t model_vectors" in source.read_text()) == (bits == 8)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"to": "pickle"}, "unknown format 'pickle': the formats are c, onnx, numpy, json"),
        ({"to": "numpy", "name": "../evil"}, "invalid file name"),
        ({"to": "numpy", "name": ""}, "invalid file name"),
        ({"to": "numpy", "bits": 8}, "bits is not an option of the format numpy: it has no options"),
        ({"to": "onnx", "bits": 8}, "bits is not an option of the format onnx: it has inputs"),
        ({"to": "c", "bits": 7}, "bits must be 32, 16 or 8, not 7"),
    ],
)
def test_invalid_arguments_are_refused(arguments, reason, tmp_path):
    with pytest.raises(edge.ExportError, match=reason):
        export(learned(bsgd(), 50, 2), out=tmp_path / "new", **arguments)
    assert not list(tmp_path.glob("new/*"))


@pytest.mark.parametrize("to", FORMATS)
def test_unwritable_paths_are_reported(to, tmp_path):
    (tmp_path / "file").write_text("")
    path = list_files(to, tmp_path, "model")[-1]
    path.mkdir()
    refused("file: File exists", export, learned(bsgd(), 50, 2), to, tmp_path / "file", error=edge.ExportError)
    with pytest.raises(edge.ExportError, match=rf"{path.name} was not written: Is a directory"):
        export(learned(bsgd(), 50, 2), to, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", path.name]


def test_files_of_the_wrong_format_are_refused(tmp_path):
    [numpy_file], [json_file] = (export(learned(bsgd(), 50, 2), to, tmp_path) for to in ("numpy", "json"))
    refused("it is JSON, which other programs read: .*--to numpy", edge.load, json_file, error=edge.ExportError)
    refused(r"holds a program alone, which streamsvm\.edge\.load reads", streamsvm.load, numpy_file, error=ModelFileError)


def test_precision_is_measured_by_the_scaling_of_the_learner_behind_an_encoder():
    model, rng = TableEncoder() | BSGDClassifier(budget=20), np.random.default_rng(1)
    for a, b in zip(rng.uniform(0, 2, 300).tolist(), rng.normal(size=300).tolist(), strict=True):
        model.learn_one({"north": 5.4e6 + a, "weight": 4e5 + 1e5 * b}, b > 0.0)
    assert find_fields_lost_in_float32(make_program(model)) == ["north"]


@pytest.mark.parametrize("learner_scales", [True, False])
def test_features_that_lose_precision_in_float32_are_named(tmp_path, learner_scales):
    rng = np.random.default_rng(1)
    rows = [
        {"north": 5.4e6 + a, "v": b} for a, b in zip(rng.uniform(0, 2, 300).tolist(), rng.normal(size=300).tolist(), strict=True)
    ]
    learner = BSGDClassifier(budget=20, seed=0, scaling="auto" if learner_scales else None)
    model = learner if learner_scales else BoundedScaler() | learner
    for x in rows:
        model.learn_one(x, x["north"] > 5.4e6 + 1.0)
    for to, options in (("c", {}), ("onnx", {"inputs": "float"})):
        with pytest.warns(UserWarning, match="float32, which lose the differences of 'north': the mean"):
            export(model, to, tmp_path, to, **options)
    expected = [model.predict_one(x) for x in rows]
    [path] = export(model, "numpy", tmp_path)
    assert [edge.load(path).predict_one(x) for x in rows] == expected
    [path] = export(model, "onnx", tmp_path)  # rows are float64 here: no warning
    label, *_ = onnxruntime.InferenceSession(path).run(None, {"X": [[x["north"], x["v"]] for x in rows]})
    assert label.tolist() == expected


@pytest.mark.parametrize("kind", [preprocessing.StandardScaler, preprocessing.MinMaxScaler, preprocessing.MaxAbsScaler])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e-30])
def test_invalid_numbers_in_transformers_do_not_prevent_saving(tmp_path, kind, value):
    """A negative variance, which rounding may leave, has no square root, so the program cannot be made."""
    scaler = kind()
    model = scaler | BSGDClassifier(budget=10)
    for i in range(5):
        model.learn_one({"a": float(i), "b": 1.0}, i % 2)
    scaler.learn_one({"a": value, "b": -value})
    if kind is preprocessing.StandardScaler:
        scaler.vars["a"] = value
    save(model, tmp_path / "model.safetensors")
    loaded = next(iter(load(tmp_path / "model.safetensors").steps.values()))
    assert repr(vars(loaded)) == repr(vars(scaler))
