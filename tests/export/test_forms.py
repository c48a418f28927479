"""Models as files for numpy and as JSON answer as their programs do; what is no such file is refused and takes no memory."""

import io
import json
import zipfile

import numpy as np
import onnxruntime
import pytest

import streamsvm
from c_compilers import FLAGS, needs_compiler
from c_model import CModel
from edge_models import MEMORIES, WHOLE_NUMBERS, bsgd, learned, matrix, memory, of_whole_numbers, program
from refused import refused
from streamsvm import BSGDClassifier, edge
from streamsvm.edge.program import Program
from streamsvm.export.describe import program_of
from streamsvm.export.forms import FORMS, export
from streamsvm.export.pipelines import lost_in_float32
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
    assert (a.columns, a.labels, a.facts) == (b.columns, b.labels, b.facts)


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
    return Program.of_parts(json.dumps(saved), arrays)


@pytest.mark.parametrize("name", [*NAMES, *MEMORIES])
def test_numbers_come_back_to_the_bit(name, tmp_path):
    given = program(name)
    [npz], [text] = (export(given, form, tmp_path / "new", "some.name") for form in ("npz", "json"))
    assert (npz.name, text.name) == ("some.name.npz", "some.name.json")
    same(given, edge.load(npz).program)
    same(given, of_json(text.read_bytes()))
    data = npz.read_bytes()
    assert export(given, "npz", tmp_path)[0].read_bytes() == data
    with np.load(npz) as arrays:  # as others read it
        assert sum(arrays[name].nbytes for name in arrays.files if name != "program") == given.nbytes


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
    for found, rounding in zip(of_every_form(program_of(model), X, tmp_path), (2e-5, 1e-4, 1e-4), strict=True):
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
        ({"to": "pickle"}, "there is no form 'pickle': c, onnx, npz, json are the forms"),
        ({"to": "npz", "name": "../evil"}, "is no name of a file"),
        ({"to": "npz", "name": ""}, "is no name of a file"),
        ({"to": "npz", "bits": 8}, "bits means nothing for npz: it takes no options"),
        ({"to": "onnx", "bits": 8}, "bits means nothing for onnx: it takes inputs, operators, zipmap"),
        ({"to": "c", "bits": 7}, "bits must be 32, 16 or 8, not 7"),
    ],
)
def test_what_cannot_be_asked_for(given, reason, tmp_path):
    with pytest.raises(edge.ProgramError, match=reason):
        export(learned(bsgd(), 50, 2), out=tmp_path / "new", **given)
    assert not list(tmp_path.glob("new/*"))


@pytest.mark.parametrize("form", FORMS)
def test_where_no_file_can_be_written(form, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / f"model.{form}").mkdir()
    refused("file: File exists", export, learned(bsgd(), 50, 2), form, tmp_path / "file", error=edge.ProgramError)
    with pytest.raises(edge.ProgramError, match=rf"model.{form} was not written: Is a directory"):
        export(learned(bsgd(), 50, 2), form, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", f"model.{form}"]


# Files for numpy that somebody has put together -----------------------------------------------------------------------------


def zipped(parts, **how):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", **how) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return data.getvalue()


def npy(array, header=None, **how):
    data = io.BytesIO()
    np.lib.format.write_array(data, array, **how)
    if header is None:
        return data.getvalue()
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, header)
    return made.getvalue() + array.tobytes()


@pytest.fixture
def parts(tmp_path):
    [path] = export(learned(bsgd(), 50, 2), "npz", tmp_path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def shaped(*shape):
    return npy(np.zeros(3), {"descr": "<f8", "fortran_order": False, "shape": shape})


def with_array(part):
    return lambda parts: zipped({**parts, "program.0.npy": part})


BAD = {
    "compressed": lambda parts: zipped({**parts, "bomb.npy": bytes(10**7)}, compression=zipfile.ZIP_DEFLATED),
    "no program": lambda parts: zipped({name: part for name, part in parts.items() if name != "program.npy"}),
    "a program of numbers": lambda parts: zipped({**parts, "program.npy": npy(np.zeros(3))}),
    "an array that is none": with_array(b"\x93NUMPY"),
    "objects": with_array(npy(np.array([{}]), allow_pickle=True)),
    "a shape beyond the file": with_array(shaped(2**60, 2**60)),
    "a shape below 0": with_array(shaped(-1, -1)),
    "another order of bytes": with_array(npy(np.zeros(3, ">f8"))),
    "cut off": lambda parts: zipped(parts)[:-30],
    "empty": lambda parts: zipped({}),
}


@pytest.mark.parametrize("bad", BAD)
def test_files_for_numpy_that_are_none(bad, parts):
    assert edge.loads(zipped(parts)).labels == [0, 1]
    refused(r"^m\.npz: it ", edge.loads, BAD[bad](parts), "m.npz", error=edge.ProgramError)


def test_json_is_not_for_numpy_and_a_file_for_numpy_is_no_model_that_learns(tmp_path):
    [npz], [text] = (export(learned(bsgd(), 50, 2), form, tmp_path) for form in ("npz", "json"))
    refused("it is JSON, which other programs read: .*--to npz", edge.load, text, error=edge.ProgramError)
    refused(r"it is a zip file, and only streamsvm\.edge\.load reads", streamsvm.load, npz, error=ModelFileError)


def test_what_an_encoder_centres_is_measured_by_the_spread_of_the_learner():
    model, rng = TableEncoder() | BSGDClassifier(budget=20), np.random.default_rng(1)
    for a, b in zip(rng.uniform(0, 2, 300).tolist(), rng.normal(size=300).tolist(), strict=True):
        model.learn_one({"north": 5.4e6 + a, "weight": 4e5 + 1e5 * b}, b > 0.0)
    assert lost_in_float32(program_of(model)) == ["north"]


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
    [path] = export(model, "npz", tmp_path)
    assert [edge.load(path).predict_one(x) for x in rows] == expected
    [path] = export(model, "onnx", tmp_path)  # whose rows are float64, so that there is nothing to warn of
    label, *_ = onnxruntime.InferenceSession(path).run(None, {"X": [[x["north"], x["v"]] for x in rows]})
    assert label.tolist() == expected
