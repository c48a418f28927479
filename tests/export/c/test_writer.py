"""Exported C predicts as the program, and compiles with all warnings as errors."""

import ctypes
import re
import subprocess
from importlib.resources import files

import numpy as np
import pytest

from c_compilers import ALSO_CLANG, COMPILERS, FLAGS, needs_compiler
from c_model import CModel
from c_sanitized import run_random_rows
from edge_models import FORESTS, MEMORIES, NAMES, matrix, memory, outside, program
from lists import in_turn, sample
from refused import refused
from streamsvm import BSGDClassifier, edge
from streamsvm.edge.program import Answer, Column, Program, run_program
from streamsvm.export.c import write_c
from streamsvm.export.convert import make_program
from streamsvm.export.quantise import quantise_program

pytestmark = [needs_compiler, pytest.mark.thorough]
SAMPLE = [
    "BSGDClassifier 0 of 2",
    "BSGDClassifier 0 of 3",
    "SVMClassifier 0 of 3",
    "SVMRegressor 0 of 0",
    "CSMOClassifier 3 of 4",
    "OneClassBSGD 0 of 0",
    "KernelRLSClassifier 1 of 2",  # another kernel
    "BSGDClassifier 3 of 2",
    "names of 3",
]


def check(original, **options):
    X = matrix(original)
    compiled = CModel(original, flags=FLAGS, **options)
    predictions, decisions = compiled.predict_many(X), compiled.decision_function_many(X).reshape(len(X), -1)
    if "bits" in options:
        original = quantise_program(original, options["bits"])
    f, choice = run_program(original, X.astype(np.float64))
    size = max(np.abs(f).max(), 1.0)
    np.testing.assert_allclose(decisions, f, rtol=2e-4, atol=2e-4 * size)
    predictor = edge.Predictor(original)
    expected = predictor.predict_many(X)
    if original.answer.calibration is not None:
        probabilities = compiled.predict_proba_many(X)
        np.testing.assert_allclose(probabilities, predictor.predict_proba_many(X), rtol=2e-3, atol=2e-4)
    if original.answer.kind == "class":
        is_clear = outside(original, f, choice)
        assert is_clear.mean() > 0.8
        assert (predictions == expected)[is_clear].all()
    else:
        np.testing.assert_allclose(predictions, expected, rtol=2e-4, atol=2e-4 * size)
    return compiled


COMPILED_CODE = set()


@pytest.mark.parametrize("name", NAMES)
def test_c_predicts_as_every_program(name, tmp_path):
    original = program(name)
    if any(step.op == "trees" for step in original.steps):
        refused("not supported in C: model.to_budget", write_c, original, tmp_path, error=edge.ExportError)
        return
    code = re.sub(r"(?s)= \{.*?\};|/\*.*?\*/|-?[\d.]+(e[-+]?\d+)?", "", write_c(original, tmp_path).source.read_text())
    if code not in COMPILED_CODE:  # compile only one of the models whose C differs in numbers alone
        COMPILED_CODE.add(code)
        check(original, compiler=COMPILERS[0])


@pytest.mark.parametrize(("name", "compiler"), in_turn([*sample(5, MEMORIES), *sample(3, FORESTS)], *ALSO_CLANG))
def test_c_predicts_as_neighbours_and_forests(name, compiler):
    """Half of them; before a release, all."""
    original = program(name)
    check(original, compiler=compiler)
    if original.columns:  # rows without columns cannot be random
        run_random_rows(original, COMPILERS[0])


QUANTISED = [*SAMPLE, "CSMOClassifier 2 of 2", *(name for name in MEMORIES if " one " not in name and "no " not in name)]


@pytest.mark.parametrize(("name", "bits_and_compiler"), in_turn(sample(9, QUANTISED), (16, ALSO_CLANG[0]), (8, ALSO_CLANG[-1])))
def test_c_predicts_as_quantised_programs(name, bits_and_compiler, tmp_path):
    """Half of them; before a release, all."""
    original = program(name)
    compiled = check(original, bits=bits_and_compiler[0], compiler=bits_and_compiler[1])
    assert compiled.table_bytes < write_c(original, tmp_path).table_bytes
    run_random_rows(original, COMPILERS[-1], bits=8)


def test_the_order_of_tables_is_deterministic(tmp_path):
    source = write_c(program("SVMRegressor 1 of 0"), tmp_path).source.read_text()  # it has a regression forest
    assert 0 < source.index("_thresholds") < source.index("_means") < source.index("_votes", source.index("_means"))


def test_the_source_needs_no_library(tmp_path):
    for original in map(program, (*SAMPLE[::2], "memory of 3")):
        write_c(original, tmp_path)
        subprocess.run(
            [COMPILERS[0], *FLAGS, "-ffreestanding", "-nostdlib", "-c", "-o", tmp_path / "m.o", tmp_path / "model.c"], check=True
        )
        symbols = subprocess.run(["nm", "-u", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
        assert {line.split()[-1] for line in symbols.splitlines()} <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
        assert "include <math.h>" not in (tmp_path / "model.c").read_text()


def test_names_are_escaped(tmp_path):
    names = ['a"b', "back\\slash", "*/ int x; /*", "uml\u00e4ut", "??=", "line\nbreak", "", "%s", "at@_home", "@UP"]
    program = Program([Column(name, name) for name in names])
    value = program.add("linear", program.add("impute", 0, float32=True), weights=np.ones((1, 10)), biases=np.zeros(1))
    program.answer = Answer("class", value, value, ('no "', "yes\\@_@UP"))
    compiled = CModel(program, flags=FLAGS)
    features = (ctypes.c_char_p * 10).in_dll(compiled.library, "model_features")
    assert [name.decode() for name in features] == names
    labels = (ctypes.c_char_p * 2).in_dll(compiled.library, "model_labels")
    assert [label.decode() for label in labels] == list(program.answer.labels)
    assert compiled.predict_many(np.ones((1, 10))).tolist() == ["yes\\@_@UP"]
    assert "x[8]  at@ _home" in write_c(program, tmp_path).header.read_text()


def test_invalid_names_flags_and_rows_are_refused(tmp_path):
    original = program(SAMPLE[0])
    for reason, call, *arguments, options in (
        ("there is no C compiler none-such: install one", CModel, {"compiler": "none-such"}),
        ("-fno-such-flag.* failed: ", CModel, {"flags": ["-fno-such-flag"]}),
        ("which numbers are missing", CModel, {"flags": ["-ffast-math"]}),
        ("was not written", write_c, tmp_path / "none", {}),
        *(
            ("must be a C identifier", write_c, tmp_path, name, {})
            for name in ("", "2x", "a-b", "int", "x" * 60, "a b", "\u00e4", "math", "stdint")
        ),
    ):
        refused(reason, call, original, *arguments, **options, error=edge.ExportError)
    refused(r"shape \(2, 3\), not \(rows, 5\)", CModel(original).predict_many, np.zeros((2, 3)))


def test_features_with_tiny_values():
    model = BSGDClassifier(budget=20, gamma=0.2, scaling=None, seed=0)
    for number in range(50):
        model.learn_one({"a": number % 7 * 1e-25, "b": number % 3 - 1.0}, number % 3 > 1)
    original = make_program(model)
    X = np.array([[1e18, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, -1.0]], np.float32)
    decisions = CModel(original, bits=8).decision_function_many(X)
    np.testing.assert_allclose(decisions, run_program(original, X.astype(np.float64))[0][:, 0], atol=0.02)
    run_random_rows(original, COMPILERS[0], bits=8)


def test_many_outputs_need_little_stack(tmp_path):
    rng, classes = np.random.default_rng(0), 40
    program = Program([Column(name, name) for name in "abc"])
    kernel = {"kind": "rbf", "gamma": 0.3, "coef0": 0.0, "degree": 1}
    value = program.add("kernel", program.add("impute", 0, float32=True), vectors=rng.normal(size=(37, 3)), **kernel)
    value = program.add("linear", value, weights=rng.normal(size=(classes, 37)), biases=rng.normal(size=classes))
    program.answer = Answer("class", value, value, tuple(range(classes)))
    check(program)
    check(program, bits=8)
    assert write_c(program, tmp_path).stack_bytes < 1000


def test_the_reported_stack_covers_all_arrays(tmp_path):
    for name in (*SAMPLE[1::2], "CSMOClassifier 4 of 4", "memory"):
        original = memory(3, neighbours=30) if name == "memory" else program(name)
        files = write_c(original, tmp_path)
        # Inlined functions share stack, and small arrays become registers.
        subprocess.run(["gcc", *FLAGS, "-Os", "-fno-inline", "-fstack-usage", "-c", "model.c"], cwd=tmp_path, check=True)
        usage = [line.split() for line in (tmp_path / "model.su").read_text().splitlines()]
        frames = {fields[0].split(":")[-1]: int(fields[1]) for fields in usage}
        # Only one of the public functions is called at a time.
        public_functions = [frames.pop(f"model_{function}", 0) for function in ("predict", "decision", "probabilities")]
        assert files.stack_bytes <= sum(frames.values()) + max(public_functions) <= files.stack_bytes + 700, name
        assert f"Arrays on the stack: {files.stack_bytes:,} bytes." in files.header.read_text()


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("CSMOClassifier 0 of 2", "The decision value: the second label where it is above 0."),
        ("CSMOOneClass", "The decision value: the second label where it is 0 or above."),
        ("tuned threshold", "The decision value, the larger the more it is the second label; model_predict compares it"),
        ("CSMOClassifier 0 of 4", "A decision value for each label."),
        ("CSMOClassifier 5 of 4", "A decision value for each pair of labels, 0 and 1, 0 and 2, and so on: the first of them"),
    ],
)
def test_the_header_explains_decision_values(name, comment, tmp_path):
    assert comment in write_c(program(name), tmp_path).header.read_text()


def test_the_header_explains_hashed_columns(tmp_path):
    model = BSGDClassifier(budget=5, max_features=2, overflow="hash")
    for number in range(20):
        model.learn_one({"a": 1.0, "b": number % 2, "c": 1.0}, number % 2)
    text = write_c(make_program(model), tmp_path).header.read_text()
    assert "Numbers of other names are added to the x whose place is the CRC-32 of the name modulo 2." in text


@pytest.mark.parametrize("name", ["BSGDClassifier 0 of 2", "memory of 3", "names of 2"])
def test_reported_table_sizes_are_exact(name, tmp_path):
    original = program(name)
    files = write_c(original, tmp_path, bits=8)
    subprocess.run([COMPILERS[0], *FLAGS, "-O0", "-c", "-o", tmp_path / "m.o", files.source], check=True)
    symbols = subprocess.run(["nm", "-S", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
    tables = [line.split() for line in symbols.splitlines() if len(line.split()) == 4 and line.split()[2] == "r"]
    assert sum(int(size, 16) for _, size, _, name in tables if name.startswith("model_")) == files.table_bytes
    assert f"Tables: {files.table_bytes:,} bytes." in files.header.read_text()


BY_NAMES = """
#include <stdio.h>
#include "model.h"
int main(void)
{
    model_row row;
    float by_names, by_places;
    const float x[MODEL_FEATURES] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
    row.at.x_class = 1.0f; row.at.x_PI = 2.0f; row.at.a_b = 3.0f; row.at.a_b_2 = 4.0f; row.at.x_1 = 5.0f;
    model_decision(row.x, &by_names);
    model_decision(x, &by_places);
    return by_names == by_places && by_names != 0.0f ? 0 : 1;
}
"""


@pytest.mark.parametrize("flags", [["-std=c99"], ["-x", "c++", "-std=c++11"]])
def test_rows_have_named_members(flags, tmp_path):
    model, names = BSGDClassifier(budget=5), ["class", "PI", "a-b", "a b", 1]
    for i in range(30):
        model.learn_one({name: float(i % (7 + k)) for k, name in enumerate(names)}, i % 2 == 0)
    model.note_columns(names)
    write_c(make_program(model), tmp_path)
    (tmp_path / "main.c").write_text(BY_NAMES)
    command = [COMPILERS[0], *flags, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "main.c", "model.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_runtime_c_is_a_valid_source_file(compiler, language):
    """Editors and linters can read it without the writer."""
    source = files("streamsvm.export.c").joinpath("runtime.c")
    flags = [flag for flag in FLAGS if language == "c" or not flag.startswith("-std")]
    command = [compiler, *flags, "-Wno-unused-function", "-fsyntax-only", "-x", language, str(source)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
