"""C source answers as the program does that it is made of, compiled with all warnings as errors."""

import ctypes
import math
import subprocess

import numpy as np
import pytest

import c_random_rows
from c_compilers import ALSO_CLANG, COMPILERS, FLAGS, needs_compiler
from edge_models import MAKERS, matrix, outside, program
from streamsvm import edge
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.edge.steps import run
from streamsvm.export.c import CModel, write_c
from streamsvm.export.c.text import comment, string
from streamsvm.export.quantise import error_bound, quantised

pytestmark = needs_compiler
SHORT = [
    "BSGDClassifier 0 of 2",
    "BSGDClassifier 0 of 3",
    "SVMClassifier 0 of 3",
    "SVMRegressor 0 of 0",
    "CSMOClassifier 3 of 4",
    "OneClassBSGD 0 of 0",
    "KernelRLSClassifier 1 of 2",  # of another kernel
    "BSGDClassifier 3 of 2",
]


def check(given, **how):
    X = matrix(given)
    compiled = CModel(given, flags=FLAGS, **how)
    predictions, found = compiled.predict_many(X), compiled.decision_function_many(X).reshape(len(X), -1)
    if "bits" in how:
        given = quantised(given, how["bits"])
    f, choice = run(given, X.astype(np.float64))
    size = max(np.abs(f).max(), 1.0)
    np.testing.assert_allclose(found, f, rtol=2e-4, atol=2e-4 * size)
    expected = edge.Predictor(given).predict_many(X)
    if given.answer.kind == "class":
        far = outside(given, f, choice)
        assert far.mean() > 0.8
        assert (predictions == expected)[far].all()
    else:
        np.testing.assert_allclose(predictions, expected, rtol=2e-4, atol=2e-4 * size)
    return compiled


@pytest.mark.parametrize("name", MAKERS)
def test_every_model_answers_alike(name, tmp_path):
    given = program(name)
    if any(step.do == "trees" for step in given.steps):
        with pytest.raises(edge.ProgramError, match="no form in C: model.to_budget"):
            write_c(given, tmp_path)
        return
    check(given, compiler=COMPILERS[0])


@pytest.mark.parametrize("compiler", ALSO_CLANG)
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("name", [*SHORT, "CSMOClassifier 2 of 2"])
def test_whole_numbers(name, bits, compiler, tmp_path):
    given = program(name)
    compiled = check(given, bits=bits, compiler=compiler)
    assert compiled.table_bytes < write_c(given, tmp_path).table_bytes


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", SHORT)
def test_no_read_or_number_is_out_of_bounds(name, compiler):
    c_random_rows.run(program(name), compiler, 20000, bits=8)


def test_the_source_needs_no_library(tmp_path):
    for name in SHORT:
        write_c(program(name), tmp_path)
        subprocess.run(
            [COMPILERS[0], *FLAGS, "-ffreestanding", "-nostdlib", "-c", "-o", tmp_path / "m.o", tmp_path / "model.c"], check=True
        )
        symbols = subprocess.run(["nm", "-u", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
        assert {line.split()[-1] for line in symbols.splitlines()} <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
        assert "include <math.h>" not in (tmp_path / "model.c").read_text()


def test_flags_that_break_missing_numbers_are_refused():
    with pytest.raises(edge.ProgramError, match="which numbers are missing"):
        CModel(program(SHORT[0]), flags=["-ffast-math"])


def test_names_are_escaped(tmp_path):
    names = ['a"b', "back\\slash", "*/ int x; /*", "uml\u00e4ut", "??=", "line\nbreak", "", "%s"]
    made = Program([Column(name, name) for name in names])
    value = made.add("linear", made.add("fill", 0, single=True), weights=np.ones((1, 8)), biases=np.zeros(1))
    made.answer = Answer("class", value, value, ('no "', "yes\\"))
    compiled = CModel(made, flags=FLAGS)
    features = (ctypes.c_char_p * 8).in_dll(compiled.library, "model_features")
    assert [name.decode() for name in features] == names
    assert [name.decode() for name in (ctypes.c_char_p * 2).in_dll(compiled.library, "model_labels")] == ['no "', "yes\\"]
    assert compiled.predict_many(np.ones((1, 8))).tolist() == ["yes\\"]


def test_a_compiler_that_is_not_there_or_fails():
    given = program(SHORT[0])
    with pytest.raises(edge.ProgramError, match="there is no C compiler none-such: install one"):
        CModel(given, compiler="none-such")
    with pytest.raises(edge.ProgramError, match="-fno-such-flag.* failed: "):
        CModel(given, flags=["-fno-such-flag"])
    with pytest.raises(ValueError, match=r"shape \(2, 3\), not \(rows, 5\)"):
        CModel(given).predict_many(np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["", "2x", "a-b", "int", "x" * 60, "a b", "\u00e4"])
def test_names_that_are_no_identifiers_are_refused(name, tmp_path):
    with pytest.raises(edge.ProgramError, match="must be a C identifier"):
        write_c(program(SHORT[0]), tmp_path, name)


def test_the_bound_of_the_error_holds():
    given = program("BSGDClassifier 0 of 2")
    X = matrix(given, 2000).astype(np.float64)
    for bits in (16, 8):
        rounded = quantised(given, bits)
        bound, worst = error_bound(given, rounded), np.abs(run(rounded, X)[0] - run(given, X)[0]).max()
        assert 0.0 < worst <= bound < math.inf
    assert quantised(given, error=error_bound(given, quantised(given, 16))).steps[2].arrays["vectors"].dtype == np.int16
    assert quantised(given, error=0.0).steps[2].arrays["vectors"].dtype == np.float32
    with pytest.raises(edge.ProgramError, match="may change by up to .*, more than error=1e-09"):
        quantised(given, bits=8, error=1e-9)
    with pytest.raises(edge.ProgramError, match="bits must be"):
        quantised(given, bits=7)


def test_what_is_said_of_sizes_is_true(tmp_path):
    given = program("BSGDClassifier 0 of 2")
    files = write_c(given, tmp_path, bits=8)
    subprocess.run([COMPILERS[0], *FLAGS, "-O0", "-c", "-o", tmp_path / "m.o", files.source], check=True)
    symbols = subprocess.run(["nm", "-S", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
    tables = [line.split() for line in symbols.splitlines() if len(line.split()) == 4 and line.split()[2] == "r"]
    assert sum(int(size, 16) for _, size, _, name in tables if name.startswith("model_")) == files.table_bytes
    assert f"Tables: {files.table_bytes:,} bytes." in files.header.read_text()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(edge.ProgramError, match="was not written"):
        write_c(program(SHORT[0]), tmp_path / "none")


def test_texts():
    assert string("??=") == '"\\077\\077="'
    assert comment("*/ /*") == "* / / *"
    assert comment("??=\\\n") == "? ?=__"
