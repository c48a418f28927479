"""Models as files for numpy and as JSON answer as their programs do; what is no such file is refused and takes no memory."""

import json

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

import streamsvm
from c_compilers import FLAGS, needs_compiler
from c_model import CModel
from edge_models import MEMORIES, WHOLE_NUMBERS, bsgd, learned, matrix, memory, of_whole_numbers, program
from refused import refused
from streamsvm import BSGDClassifier, edge
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


def same(given, found):
    X = matrix(given)
    a, b = edge.Predictor(given), edge.Predictor(found)
    np.testing.assert_array_equal(a.predict_many(X), b.predict_many(X))
    np.testing.assert_array_equal(a.decision_function_many(X), b.decision_function_many(X))
    assert (a.columns, a.labels, a.metadata) == (b.columns, b.labels, b.metadata)


def of_json(data):
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
def test_numbers_come_back_to_the_bit(name, tmp_path):
    given = program(name)
    [numpy_file], [text] = (export(given, form, tmp_path / "new", "some.name") for form in ("numpy", "json"))
    assert (numpy_file.name, text.name) == ("some.name.safetensors", "some.name.json")
    same(given, edge.load(numpy_file).program)
    same(given, of_json(text.read_bytes()))
    assert export(given, "numpy", tmp_path)[0].read_bytes() == numpy_file.read_bytes()
    arrays = load_file(numpy_file)  # as others read it
    assert sum(array.nbytes for name, array in arrays.items() if name.startswith("program.")) == given.nbytes


def of_every_form(given, X, tmp_path, bits=32):
    """The decision values of rows by numpy, ONNX and C."""
    [path] = export(given, "onnx", tmp_path)
    yield edge.Predictor(given).decision_function_many(X)
    yield onnxruntime.InferenceSession(path).run(None, {"X": X.astype(np.float32)})[-1]
    yield CModel(given, flags=FLAGS, bits=bits).decision_function_many(X)


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "labels", "values"), WHOLE_NUMBERS)
def test_rounding_does_not_choose_among_what_is_equal(kind, labels, values, tmp_path):
    model, X = of_whole_numbers(kind, labels, values)
    f = model.decision_function_many(X) if labels else model.predict_many(X)
    for found, rounding in zip(of_every_form(make_program(model), X, tmp_path), (2e-5, 1e-4, 1e-4), strict=True):
        np.testing.assert_allclose(found.reshape(f.shape), f, atol=rounding)


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize(("n", "features", "bits"), [(5, 3, 8), (16, 4, 32), (16, 4, 8), (50, 7, 32)])
def test_of_equally_near_rows_the_first_vote(n, features, bits, tmp_path):
    given = memory(n, n, features, neighbours=3)
    step = given.steps[2]
    step.arrays["vectors"][:], step.arrays["targets"][:], step.arrays["weights"][:] = 0.7, np.arange(n), 1.0
    for found in of_every_form(given, matrix(given), tmp_path, bits):
        np.testing.assert_allclose(found, np.where(np.arange(n) < 3, 2.0 / 3.0, 0.0) - 1.0 + np.zeros_like(found), atol=1e-6)


@pytest.mark.parametrize("bits", [32, 8])
def test_bits_of_vectors(bits, tmp_path):
    header, source = export(learned(bsgd(), 200, 2), "c", tmp_path, bits=bits)
    assert header.name == "model.h"
    assert ("static const MODEL_TABLE int8_t model_vectors" in source.read_text()) == (bits == 8)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"to": "pickle"}, "unknown format 'pickle': the formats are c, onnx, numpy, json"),
        ({"to": "numpy", "name": "../evil"}, "invalid file name"),
        ({"to": "numpy", "name": ""}, "invalid file name"),
        ({"to": "numpy", "bits": 8}, "bits is not an option of the format numpy: it has no options"),
        ({"to": "onnx", "bits": 8}, "bits is not an option of the format onnx: it has inputs"),
        ({"to": "c", "bits": 7}, "bits must be 32, 16 or 8, not 7"),
    ],
)
def test_what_cannot_be_asked_for(given, reason, tmp_path):
    with pytest.raises(edge.ExportError, match=reason):
        export(learned(bsgd(), 50, 2), out=tmp_path / "new", **given)
    assert not list(tmp_path.glob("new/*"))


@pytest.mark.parametrize("form", FORMATS)
def test_where_no_file_can_be_written(form, tmp_path):
    (tmp_path / "file").write_text("")
    path = list_files(form, tmp_path, "model")[-1]
    path.mkdir()
    refused("file: File exists", export, learned(bsgd(), 50, 2), form, tmp_path / "file", error=edge.ExportError)
    with pytest.raises(edge.ExportError, match=rf"{path.name} was not written: Is a directory"):
        export(learned(bsgd(), 50, 2), form, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", path.name]


def test_json_is_not_for_numpy_and_a_file_for_numpy_is_no_model_that_learns(tmp_path):
    [numpy_file], [text] = (export(learned(bsgd(), 50, 2), form, tmp_path) for form in ("numpy", "json"))
    refused("it is JSON, which other programs read: .*--to numpy", edge.load, text, error=edge.ExportError)
    refused(r"holds a program alone, which streamsvm\.edge\.load reads", streamsvm.load, numpy_file, error=ModelFileError)


def test_what_an_encoder_centres_is_measured_by_the_spread_of_the_learner():
    model, rng = TableEncoder() | BSGDClassifier(budget=20), np.random.default_rng(1)
    for a, b in zip(rng.uniform(0, 2, 300).tolist(), rng.normal(size=300).tolist(), strict=True):
        model.learn_one({"north": 5.4e6 + a, "weight": 4e5 + 1e5 * b}, b > 0.0)
    assert find_fields_lost_in_float32(make_program(model)) == ["north"]


@pytest.mark.parametrize("within", [True, False])
def test_features_that_float32_cannot_carry_are_named(tmp_path, within):
    rng = np.random.default_rng(1)
    rows = [
        {"north": 5.4e6 + a, "v": b} for a, b in zip(rng.uniform(0, 2, 300).tolist(), rng.normal(size=300).tolist(), strict=True)
    ]
    learner = BSGDClassifier(budget=20, seed=0, scaling="auto" if within else None)
    model = learner if within else BoundedScaler() | learner
    for x in rows:
        model.learn_one(x, x["north"] > 5.4e6 + 1.0)
    for form, options in (("c", {}), ("onnx", {"inputs": "float"})):
        with pytest.warns(UserWarning, match="float32, which lose the differences of 'north': the mean"):
            export(model, form, tmp_path, form, **options)
    expected = [model.predict_one(x) for x in rows]
    [path] = export(model, "numpy", tmp_path)
    assert [edge.load(path).predict_one(x) for x in rows] == expected
    [path] = export(model, "onnx", tmp_path)  # whose rows are float64, so that there is nothing to warn of
    label, *_ = onnxruntime.InferenceSession(path).run(None, {"X": [[x["north"], x["v"]] for x in rows]})
    assert label.tolist() == expected
