"""Exported models encode texts as the models do. Forged tables and states, and formats without texts, are refused."""

import copy
import json
import math
import random

import numpy as np
import pandas as pd
import pytest

import streamsvm
from refused import raises
from streamsvm import BSCARegressor, BSGDClassifier, edge
from streamsvm.edge.program import CategoryTable, Column, Program, TextTable
from streamsvm.edge.texts import MAX_SCORES, hash_text
from streamsvm.export.c import write_c
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export
from streamsvm.export.onnx import write_onnx
from streamsvm.export.quantise import quantise_program
from streamsvm.export.reduce import reduce_program
from streamsvm.files.characters import Characters, list_character_kinds
from streamsvm.stream.tables import TableEncoder, tokens
from streamsvm.stream.tables.target_encoding import MAX_TEXT_LABELS
from streamsvm.stream.tables.text_encoding import TextEncoding

TEXTS = [
    *("Free PRIZE! Call now", "see you at home, ok?", "  ok  ", "abc", "ab", "a", "...", "İstanbul ΣΑΣ straße", "naïve_x2 2nd"),
    *(
        "明天见 你好。世界",
        "カタカナ ひらがな漢字abc",
        "こんにちは、ありがとう",
        "안녕 하세요",
        "завтра дома",
        "עברית שלום",
        "हिन्दी में",
        "😀 free 😀😀",
        "\U0010ffff" * 5,
    ),
    *("\ud83d free", "x\ude00y", "\0a\0\0b", "\uffff\ufffe", "free " * 4000, "x" * 20_000, "İ" * 16_384),
]
ODD_VALUES = (*TEXTS, "", "   ", None, math.nan, 7.0, True, "unknown", " 1.0 ")


def make_text(rng):
    """Return a random text of several languages."""
    return " ".join(rng.choices([text[:30] for text in TEXTS], k=rng.randrange(1, 4)))


@pytest.mark.parametrize("n_random", [200])
def test_keys_equal_those_of_compiled_code(n_random):
    rng = random.Random(0)
    ranges = (128, 0x3000, 0x110000)
    many = ["".join(chr(rng.choice((32, rng.randrange(rng.choice(ranges))))) for _ in range(i % 40)) for i in range(n_random)]
    for text in (*TEXTS, *many):
        codes = Characters.from_texts([text]).codes
        keys, ends = np.zeros(3 * len(codes) + 1, np.uint32), np.zeros(3, np.int64)
        tokens.hash_text(codes, list_character_kinds(), keys, ends)
        exported, *counts = hash_text(text)
        assert exported.dtype == np.uint32
        np.testing.assert_array_equal(exported, keys[: ends[2]])
        assert counts == [ends[0], ends[1] - ends[0]]


def learned(classes, n=105, **parameters):
    """Return a model with two columns of texts beside a number, a category and a date, and rows; 0 classes: a regression."""
    columns = "body:text,title:text,city:category,at:date"
    learner = (
        BSGDClassifier(budget=30, seed=0, max_features=400) if classes else BSCARegressor(budget=30, seed=0, max_features=99)
    )
    model, rng, rows = TableEncoder(columns, **parameters) | learner, random.Random(1), []
    for i in range(n):
        y = i % classes if classes else rng.gauss(0.0, 1.0)
        x = {"a": rng.random(), "body": f"{make_text(rng)} word{y}", "city": rng.choice(("Oslo", "Rom", "Bern", None))}
        rows.append({**x, "title": make_text(rng) if i % 3 else None, "at": 1e9 + 7919.0 * i})
        model.learn_one(rows[-1], f"label {y}" if classes else y)
    return model, rows


CASES = [(2, {}), (3, {}), (21, {}), (0, {}), (2, {"scaler": "standard"}), (0, {"when_missing": "drop"}), (1, {})]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    """Return a model, and rows."""
    classes, parameters = request.param
    model, rows = learned(classes, **parameters)
    odd_rows = [{**rows[0], "body": value} for value in ODD_VALUES]
    return model, [*rows[:20], *odd_rows, {"body": "free"}, {"title": "Free word1", "a": 0.5}, {}]


@pytest.mark.once
def test_features_and_predictions_equal_those_of_the_model(case):
    model, rows = case
    program = make_program(model)
    predictor, n_different = edge.Predictor(program), 0
    is_text = np.array(list(map(program.is_text, program.columns)))
    assert {column.field for column in program.columns if program.is_text(column)} == {"body", "title"}
    for x in rows:
        features, numbers = model["TableEncoder"].transform_one(x), np.nan_to_num(predictor.encode_row(x))
        expected_numbers = np.array([features.get(column.name, 0.0) for column in program.columns])
        np.testing.assert_allclose(numbers[is_text], expected_numbers[is_text], rtol=1e-5, atol=1e-4)
        n_different += np.count_nonzero(numbers[is_text])
        expected, prediction = model.predict_one(x), predictor.predict_one(x)
        if predictor.kind == "number":
            assert prediction == pytest.approx(expected, rel=1e-4, abs=1e-5)
        elif len(predictor.labels) > 1:
            p, q = model.predict_proba_one(x), predictor.predict_proba_one(x)
            assert q == pytest.approx(p, abs=1e-5)
            assert prediction == expected
    assert n_different > 50


def test_frames_are_encoded_like_rows():
    model, rows = learned(2, 30)
    predictor = edge.Predictor(make_program(model))
    expected = [predictor.encode_row(x) for x in rows]
    np.testing.assert_array_equal(predictor._read_matrix(pd.DataFrame(rows, dtype=object)), expected)


def test_a_model_of_a_text_alone_without_labels_counts_words():
    model = TableEncoder("body:text") | streamsvm.OneClassBSGD(budget=10, seed=0)
    for text in TEXTS:
        model.learn_one({"body": text})
    predictor = edge.Predictor(make_program(model))
    assert predictor.columns == ["body~words"]
    for text in TEXTS:
        assert predictor.predict_one({"body": text}) == pytest.approx(model.score_one({"body": text}), abs=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("classes", [0, 2, 21])
def test_saved_models_are_loaded_without_loss(classes, tmp_path):
    model, rows = learned(classes, 40)
    streamsvm.save(model, tmp_path / "first")
    loaded = streamsvm.load(tmp_path / "first")
    streamsvm.save(loaded, tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    for i, x in enumerate(rows):
        assert loaded.predict_one(x) == model.predict_one(x)
        for one in (model, loaded):
            one.learn_one({**x, "body": f"new {i}"}, float(i) if classes == 0 else "label 1")
    assert loaded["TableEncoder"].transform_one(rows[0]) == model["TableEncoder"].transform_one(rows[0])


def test_forged_states_are_refused():
    for classes in (2, 0):
        state = learned(classes, 20)[0]["TableEncoder"].column_state.texts["body"].__getstate__()
        keys, counts, totals = state["keys"], state["counts"], state["totals"]
        forged = {
            "of_numbers": ("a", 2),
            "keys": (keys[:-1], keys.astype(np.int64), keys[:, None], np.zeros_like(keys)),
            "times": (state["times"][1:], state["times"].astype(np.float32)),
            "counts": (
                counts[:, :1],
                counts.astype(np.float64),
                *(np.full_like(counts, number) for number in (math.nan, math.inf, -5000.0)),
            ),
            "totals": (totals[:2], totals.astype(np.float32), totals * np.nan, -1.0 - totals),
        }
        for name, values in forged.items():
            for value in values:
                raises("the text encoding is corrupt", TextEncoding().__setstate__, state | {name: value})
        raises("rows must be", TextEncoding().__setstate__, state | {"rows": -1})
        TextEncoding().__setstate__(state)
    encoder = TableEncoder("body:text")
    for value in ({"body": TableEncoder()}, {"body": None}, [], None):
        raises("the table encoder is corrupt", copy.copy(encoder).__setstate__, encoder.__getstate__() | {"_texts": value})


# Tables -----------------------------------------------------------------------------------------------------------------------

KEYS = np.array([3, 5], np.uint32)
TABLE = TextTable(KEYS, np.ones((2, 1), np.float32), np.zeros((2, 1)))


def program_of(*tables, columns=(("body", 0),)):
    return Program([Column("c", field, table=(table, 6)) for field, table in columns], tables=tables)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (TABLE._replace(keys=KEYS.astype(np.int64)), "of another type, or do not fit"),
        (TABLE._replace(keys=KEYS[:1]), "do not fit"),
        (TABLE._replace(keys=KEYS[::-1]), "not in ascending order"),
        (TABLE._replace(keys=KEYS * 0), "not in ascending order"),
        (TABLE._replace(scores=np.ones((2, 1))), "of another type"),
        (TABLE._replace(scores=np.ones(2, np.float32)), "of another type"),
        (TABLE._replace(scores=np.full((2, 1), np.nan, np.float32)), "not finite"),
        (TABLE._replace(averages=np.full((2, 1), np.inf)), "not finite"),
        (TABLE._replace(averages=np.zeros((2, 2))), "do not fit"),
        (TABLE._replace(averages=np.zeros((3, 1))), "do not fit"),
        (TextTable(KEYS, np.ones((2, 21), np.float32), np.zeros((2, 21))), "do not fit"),
        (TextTable(KEYS, np.ones((2, 0), np.float32), np.zeros((2, 0))), "a table that does not exist"),
        (CategoryTable(KEYS, np.ones((2, 6))), "a table that does not exist"),
    ],
    ids=str,
)
def test_invalid_tables_are_refused(table, reason):
    raises(reason, program_of, table, error=edge.ExportError)


def test_a_column_has_one_table():
    assert program_of(TABLE, TABLE, columns=[("body", 0), ("title", 0), ("other", 1)]).text_nbytes == 2 * (8 + 8 + 16)
    two = program_of(TABLE, TABLE, columns=[("body", 0), ("body", 1)])
    raises("'body' has more than one table", edge.Predictor, two, error=edge.ExportError)
    assert MAX_SCORES == MAX_TEXT_LABELS


def test_numpy_files_and_smaller_programs_keep_the_tables(tmp_path):
    model, rows = learned(3)
    program = make_program(model)
    assert program.text_nbytes == sum(array.nbytes for table in program.tables[:2] for array in table) < program.nbytes
    max_bytes = program.nbytes - 4000
    reduction = reduce_program(program, max_bytes, passes=2)
    assert reduction.n_vectors[1] < reduction.n_vectors[0]
    assert reduction.table_bytes <= max_bytes
    [path], [json_path] = (export(program, form, tmp_path) for form in ("numpy", "json"))
    [saved, *_] = json.loads(json_path.read_text())["tables"]
    assert saved["scores"]["data"] == pytest.approx(program.tables[0].scores.ravel().tolist())
    inputs = [edge.Predictor(program).encode_row(x) for x in rows[:20]]
    for other in (edge.load(path).program, quantise_program(program, 16), reduction.program):
        assert other.tables[0]._fields == ("keys", "scores", "averages")
        np.testing.assert_array_equal([edge.Predictor(other).encode_row(x) for x in rows[:20]], inputs)
    reason = rf"{program.text_nbytes + 1:,}|of them for names and texts\), more than max_bytes"
    raises(reason, reduce_program, program, program.text_nbytes, error=edge.ExportError)


@pytest.mark.parametrize("form", ["c", "onnx"])
def test_formats_without_texts_are_refused_with_a_remedy(form, tmp_path):
    program = make_program(learned(2, 20)[0])
    reason = rf"the column 'body' has texts, which {form.upper()} cannot encode: use --to numpy .*\(--columns body:drop\)"
    raises(reason, export, program, form, tmp_path, max_bytes=100, error=edge.ExportError)
    write, place = (write_c, tmp_path) if form == "c" else (write_onnx, tmp_path / "model.onnx")
    raises(reason, write, program, place, error=edge.ExportError)
    assert not list(tmp_path.iterdir())
