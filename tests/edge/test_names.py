"""Target encodings are the same in all export formats, however categories are spelled. Invalid tables are refused."""

import ctypes
import json
import math

import numpy as np
import onnxruntime
import pytest

from c_compilers import FLAGS, needs_compiler
from c_model import CModel
from edge_models import bsgd, of_names
from refused import refused
from streamsvm import BSGDClassifier, edge
from streamsvm.edge.predictor import PROGRAM_KEY, Predictor
from streamsvm.edge.program import CategoryTable, Column, Program
from streamsvm.export.c import write_c
from streamsvm.export.compare import compare_programs
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export
from streamsvm.export.quantise import quantise_program
from streamsvm.export.reduce import reduce_program
from streamsvm.files.category_names import compute_column_seed, compute_name_key, format_category, normalize_name
from streamsvm.files.container import pack_container
from streamsvm.stream.tables import TableEncoder

CASES = [(classes, {}) for classes in (0, 2, 3)]
CASES += [(classes, {"columns": "city:key,size:category"}) for classes in (0, 2, 3)]
CASES += [(2, {"columns": "city:key,size:key", "max_values": 64})]
CASES += [(0, {"columns": "city:key,size:category", "scaler": "standard"})]
CASES += [(2, {"max_values": 0}), (2, {"scaler": "standard"}), (0, {"when_missing": "drop"})]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    """Return whether a model has labels, the model, its rows, and its program."""
    classes, parameters = request.param
    model, xs = of_names(classes, 300, **parameters)
    return classes > 0, model, xs, make_program(model)


def assert_predictions(has_labels, model, xs, predictions):
    """Assert that predictions for rows are those of the model."""
    expected = [model.predict_one(x) for x in xs]
    if has_labels:
        assert list(predictions) == expected
    else:
        np.testing.assert_allclose(predictions, expected, rtol=1e-4, atol=1e-4)


def test_encoded_rows_equal_those_of_the_encoder(case):
    _, model, xs, program = case
    predictor, encoder = Predictor(program), model["TableEncoder"]
    assert {column.field for column in program.columns if column.table is not None} >= {"city"}
    seen = {"text": 0, "table": 0, "neither": 0}
    for x in xs:
        features = encoder.transform_one(x)
        for column, number in zip(program.columns, predictor.encode_row(x).tolist(), strict=True):
            if column.text is not None or column.table is not None:
                assert (0.0 if math.isnan(number) else number) == features.get(column.name, 0.0)
                seen["neither" if math.isnan(number) else "text" if column.text else "table"] += 1
    assert all(seen.values()) or encoder.max_values == 0


def test_numpy_file_and_onnx_predict_as_the_model(case, tmp_path):
    has_labels, model, xs, _ = case
    [numpy_file], [onnx_file] = (export(model, export_format, tmp_path) for export_format in ("numpy", "onnx"))
    predictor = edge.load(numpy_file)
    assert_predictions(has_labels, model, xs, [predictor.predict_one(x) for x in xs])
    X = np.array([predictor.encode_row(x) for x in xs], np.float32)
    assert_predictions(has_labels, model, xs, onnxruntime.InferenceSession(onnx_file).run(None, {"X": X})[0].ravel().tolist())


@needs_compiler
def test_c_predicts_as_the_model(case):
    has_labels, model, xs, program = case
    compiled, predictor = CModel(program, flags=FLAGS), Predictor(program)
    look_up = compiled.library.model_name
    look_up.restype, look_up.argtypes = ctypes.c_float, [ctypes.c_int, ctypes.c_char_p]
    X = np.array([predictor.encode_row(x) for x in xs], np.float32)
    for x, row in zip(xs, X, strict=True):
        for index, column in enumerate(program.columns):
            if column.table is not None:
                value = x[column.field]
                text = "" if value is None or value != value else normalize_name(format_category(value).strip())
                assert look_up(index, text.encode()) == np.nan_to_num(row[index])
                row[index] = look_up(index, text.encode())
    assert look_up(-1, b"1") == look_up(len(program.columns), b"1") == 0.0
    assert_predictions(has_labels, model, xs, compiled.predict_many(X).tolist())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_categories(library, case):
    _, _, xs, program = case
    predictor = Predictor(program)
    xs = [{**x, "city": None if x["city"] is None else str(x["city"]), "size": str(x["size"])} for x in xs[:200]]
    frame = pytest.importorskip(library).DataFrame({name: [x.get(name) for x in xs] for name in ("city", "size", *"abcde")})
    rows = np.array([predictor.encode_row(x) for x in xs])
    np.testing.assert_array_equal(predictor._read_matrix(frame), rows)


def test_categories_are_normalised_as_by_the_encoder():
    texts = ["1.0", "-20.00", "-0.0", "TRUE", "False", "true", "1.10", "007", "007.0", "0.000", "1" * 17 + ".0", "Paris", "\xc4"]
    model = TableEncoder("a:category", max_values=0) | bsgd()
    for number, text in enumerate(texts):
        model.learn_one({"a": text}, int(number > 9))
    predictor = Predictor(make_program(model))
    [index] = [index for index, column in enumerate(predictor.program.columns) if column.table is not None]
    for text in (*texts, *map(normalize_name, texts)):
        expected = model["TableEncoder"].transform_one({"a": text})["a~1"]
        assert expected
        assert predictor.encode_row({"a": f" {text}\t"})[index] == expected
    assert compute_name_key(0, "") == 1


def test_one_hot_categories_are_in_the_table_only_for_regression():
    """In classification, a category has a one-hot column or a target encoding; in regression, it may have both."""
    for classes, has_both in ((2, False), (0, True)):
        model, _ = of_names(classes)
        program = make_program(model)
        indicators = [(column.field, column.text) for column in program.columns if column.text is not None]
        assert {field for field, _ in indicators} == {"city", "size"}
        in_table = {
            not np.isnan(program.tables[0].find_values(compute_name_key(compute_column_seed(field), text))[0])
            for field, text in indicators
        }
        assert in_table == {has_both}


def test_one_hot_categories_alone_need_no_table():
    model = TableEncoder("a:category") | BSGDClassifier(budget=10)
    for number in range(20):
        model.learn_one({"a": "xy"[number % 2]}, number % 2)
    program = make_program(model)
    assert program.tables == ()
    assert [column.name for column in program.columns] == ["a=x", "a=y"]
    assert program.serialise()[0].startswith('{"version":1,"columns":[["a=x","a","x",null],')


@pytest.mark.parametrize("options", [{"max_values": 0}, {"max_values": 2}, {"buckets": 3, "max_values": 0}])
def test_a_column_with_the_name_of_a_derived_feature_is_exported(options):
    model, xs = TableEncoder("a:category", **options) | BSGDClassifier(budget=10), []
    for number in range(60):
        xs.append({"a": number % 3, "a~1": float(number % 7), "a=1": 0.5 - number % 5, "a#1": number % 4})
        model.learn_one(xs[-1], (number + number // 3) % 2)
    predictor = Predictor(make_program(model))
    assert {"a~1", "a=1", "a#1"} <= {column.field for column in predictor.program.columns if column.text is None}
    assert [predictor.predict_one(x) for x in xs] == [model.predict_one(x) for x in xs]


def test_a_column_with_the_name_of_a_target_encoding_is_refused_if_an_older_version_learned_it():
    model = TableEncoder("a:category", max_values=0) | BSGDClassifier(budget=10)
    model["TableEncoder"].column_state._derived_feature = None  # older versions did not quote names
    for number in range(20):
        model.learn_one({"a": number % 3, "a~1": 1.0}, number % 2)
    refused("a column has the name of a target encoding, 'a~1': rename it", make_program, model, error=edge.ExportError)


def test_quantised_and_reduced_programs_keep_their_tables(tmp_path):
    program = make_program(of_names(3)[0])
    rng = np.random.default_rng(0)
    small, rows = quantise_program(program, 8), rng.uniform(-2.0, 2.0, (300, len(program.columns)))
    assert small.tables == program.tables
    assert not compare_programs(program, small, rows).is_large
    full_bytes = write_c(program, tmp_path).table_bytes
    reduction = reduce_program(program, full_bytes - 500, rows[:100], passes=2)
    assert reduction.n_vectors[1] < reduction.n_vectors[0]
    assert reduction.table_bytes == write_c(reduction.program, tmp_path).table_bytes <= full_bytes - 500
    nbytes = sum(4 * array.size for array in program.tables[0])
    refused(
        rf"bytes \({nbytes:,} of them for names and texts\), more than", reduce_program, program, nbytes, error=edge.ExportError
    )
    assert program.nbytes > sum(array.nbytes for array in program.tables[0])


# Files that somebody has put together ------------------------------------------------------------------------------------------

KEYS, VALUES = np.array([3, 2**32 - 1], np.uint32), np.array([[0.5, 1.0], [-0.5, 0.0]])


@pytest.mark.parametrize(
    ("keys", "numbers", "reason"),
    [
        (KEYS.astype(np.int64), VALUES, "of another type"),
        (KEYS, VALUES.astype(np.float32), "of another type"),
        (KEYS[0], VALUES, "of another type"),
        (KEYS, VALUES[:1], "do not fit together"),
        (KEYS, VALUES[:, :0], "do not fit together"),
        (KEYS[::-1], VALUES, "not in ascending order"),
        (KEYS[[0, 0]], VALUES, "not in ascending order"),
        (KEYS, VALUES + math.inf, "not finite"),
    ],
)
def test_invalid_tables_are_refused(keys, numbers, reason):
    text, arrays = Program([Column("a", "a", table=(0, 1))], tables=[CategoryTable(KEYS, VALUES)]).serialise()
    assert Program.deserialise(text, arrays).tables[0].find_values(2**32 - 1).tolist() == VALUES[1].tolist()
    bad = {"program.0": np.ascontiguousarray(keys) if keys.ndim else keys, "program.1": np.ascontiguousarray(numbers)}
    refused(f"a table are .*{reason}|{reason}", Program.deserialise, text, bad, error=edge.ExportError)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("columns", 0, 4), [0, 2], "a number of a table that does not exist"),
        (("columns", 0, 4), [1, 0], "a number of a table that does not exist"),
        *(
            (("columns", 0, 4), bad, "not a valid count")
            for bad in ([-1, 0], [0, -1], [0, 0.5], [0, True], [0, 2**40], [None, 0])
        ),
        *((("columns", 0, 4), bad, "its program is corrupt") for bad in ([0], [0, 0, 0], 7)),
        (("columns", 0, 2), "x", "and is 1 for some texts as well"),
        (("columns", 0, 3), [0, 2], "and is 1 for some texts as well"),
        *((("tables",), bad, "its program is corrupt") for bad in (None, 7, [None], [[]], [{}], {"keys": "program.0"})),
        (("tables",), [], "a number of a table that does not exist"),
        (("tables", 0, "keys"), "program.9", "its program is corrupt"),
        (("tables", 0, "keys"), ["program.0"], "its program is corrupt"),
        (("tables", 0, "values"), "program.0", "its program is corrupt"),
    ],
    ids=str,
)
def test_invalid_references_to_tables_are_refused(path, value, reason):
    text, arrays = Program([Column("a", "a", table=(0, 1))], tables=[CategoryTable(KEYS, VALUES)]).serialise()
    saved = json.loads(text)
    *parents, key_to_change = path
    parent = saved
    for key in parents:
        parent = parent[key]
    parent[key_to_change] = value
    refused(reason, edge.loads, pack_container(arrays, {PROGRAM_KEY: json.dumps(saved)}), error=edge.ExportError)


def test_an_array_that_two_tables_use_is_refused():
    text, arrays = Program([Column("a", "a", table=(0, 1))], tables=[CategoryTable(KEYS, VALUES)]).serialise()
    saved = json.loads(text)
    saved["tables"] *= 2
    refused("its program is corrupt", Program.deserialise, json.dumps(saved), arrays, error=edge.ExportError)


@needs_compiler
def test_an_empty_table(tmp_path):
    program = Program([Column("a", "a", table=(0, 0))], tables=[CategoryTable(KEYS[:0], VALUES[:0])])
    assert np.isnan(Predictor(program).encode_row({"a": "x"})).tolist() == [True]
    assert write_c(program, tmp_path).table_bytes == 8
    compiled = CModel(program, flags=FLAGS)
    compiled.library.model_name.restype = ctypes.c_float
    assert compiled.library.model_name(0, b"x") == 0.0
