"""The source is valid C and C++ for all compilers, with all warnings as errors, and needs no more stack than it says."""

import ctypes
import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest

from c_compilers import HAS_ZIG, ZIG, ZIG_WARNS, needs_zig
from edge_models import matrix, program
from learners_in_c import KINDS, learner, rows
from lists import OF_RELEASE, in_turn
from streamsvm.export.c import write_c
from streamsvm.export.c.learning import write_learning_c
from streamsvm.export.c.steps import _STEP_WRITERS

pytestmark = pytest.mark.thorough
COMPILERS = ({"zig": ZIG} if HAS_ZIG else {}) | {name: (name,) for name in ("gcc", "clang") if shutil.which(name)}
STANDARDS = ["c99", "c17", "c++11", "c++20"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wdouble-promotion", "-Wvla", "-pedantic", "-Werror"]
M4 = ["-mthumb", "-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]
MODELS = [
    "SVMClassifier 0 of 2",
    "SVMClassifier 0 of 3",
    "SVMRegressor 0 of 0",
    "FOGD 0 of 2",
    "OneClassBSGD 0 of 0",
    "CSMOClassifier 0 of 4",
    "CSMOClassifier 2 of 4",
    "CSMOClassifier 3 of 2",
    "CSMOClassifier 5 of 4",
    "scaler 8",
    "table of 3",
    "names of 3",
    "tuned threshold",
    "dates of 2",
    "memory of 3",
    "CSMOClassifier 0 of 2",
    "CSMOClassifier 1 of 2",
    "memory of 0",
    "forest of 3",
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return a folder with models of all operations, with float and integer vectors, and with learners."""
    folder, operations = tmp_path_factory.mktemp("sources"), set()
    for number, name in enumerate(MODELS):
        program_to_write = program(name)
        operations |= {step.op for step in program_to_write.steps}
        write_c(program_to_write, folder, f"model{number}", bits=(32, 8)[number % 2])
    assert operations == set(_STEP_WRITERS)
    for number, (kind, parameters) in enumerate(KINDS[1::2]):
        write_learning_c(learner(kind, parameters), folder, f"learner{number}")
    return folder


def compile_without_warnings(folder, compiler, standard, *flags):
    command = [*compiler, *make_language_flags(standard), *WARNINGS, *flags, *sorted(folder.glob("*.c"))]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:3000]


def make_language_flags(standard):
    return ["-x", "c++" if "+" in standard else "c", f"-std={standard}"]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_all_compilers_accept_the_source_without_warnings(compiler, sources):
    # Some warnings of gcc need optimization: the test of the stack below compiles with it.
    for standard in STANDARDS:
        compile_without_warnings(sources, ZIG_WARNS if compiler == "zig" else COMPILERS[compiler], standard, "-fsyntax-only")


@needs_zig
def test_the_source_is_valid_for_microsofts_compiler(sources):
    target = ["-target", "x86_64-windows-msvc", "-fms-compatibility", "-fsyntax-only"]
    compile_without_warnings(
        sources, ZIG_WARNS, "c11", *target, "-U__STDC_VERSION__", "-Wno-builtin-macro-redefined"
    )  # without /std
    compile_without_warnings(sources, ZIG_WARNS, "c++14", *target)
    for path in sources.glob("*.[ch]"):  # another test compiles them, and leaves the binaries there
        assert set(re.findall("#include <(.*)>", path.read_text())) <= {"float.h", "stdint.h"}


class CompiledLibrary:
    """The compiled and loaded sources of a model and a learner."""

    def __init__(self, folder, compiler, standard):
        library = folder / f"{standard}.so"
        files = [folder / "model.c", folder / "model_learn.c"]
        subprocess.run([*compiler, *make_language_flags(standard), "-O2", "-shared", "-fPIC", "-o", library, *files], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.model_learn_state.restype = ctypes.c_void_p

    def decisions(self, X, outputs):
        values = np.empty((len(X), outputs), np.float32)
        for x, out in zip(X, values, strict=True):
            self._library.model_decision(x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
        return values.tobytes()

    def state(self, X, y, nbytes):
        for x, label in zip(X, y, strict=True):
            assert self._library.model_learn(x.ctypes.data_as(ctypes.c_void_p), int(label)) == 1
        return ctypes.string_at(self._library.model_learn_state(), nbytes)


TWO_MODELS = ["SVMClassifier 0 of 2", "CSMOClassifier 2 of 4"]


@pytest.mark.parametrize(
    ("compiler", "name"), list(itertools.product(COMPILERS, TWO_MODELS)) if OF_RELEASE else in_turn(COMPILERS, *TWO_MODELS[::-1])
)
def test_c_and_cpp_predictions_are_bit_identical(compiler, name, tmp_path):
    """With one of two models for each compiler; before a release, with both."""
    original, (kind, parameters) = program(name), KINDS[len(name) % len(KINDS)]
    write_c(original, tmp_path, bits=8)
    files = write_learning_c(learner(kind, parameters), tmp_path)
    plain, cpp = (CompiledLibrary(tmp_path, COMPILERS[compiler], standard) for standard in ("c99", "c++17"))
    outputs = original.widths[original.answer.decision]
    assert plain.decisions(matrix(original), outputs) == cpp.decisions(matrix(original), outputs)
    assert plain.state(*rows(300), files.state_bytes) == cpp.state(*rows(300), files.state_bytes)


STACKS = [(name, *options) for name in ("gcc", "clang") if shutil.which(name) for options in (("-Os", "c99"), ("-O3", "c++20"))]
STACKS += [("arm-none-eabi-gcc", "-Os", "c99")] if shutil.which("arm-none-eabi-gcc") else []


@pytest.mark.skipif(not STACKS, reason="needs gcc or clang")
@pytest.mark.parametrize(("compiler", "level", "standard"), STACKS)
def test_calls_need_no_more_stack_than_the_header_says(compiler, level, standard, sources, tmp_path):
    target = M4 if compiler.startswith("arm") else []
    compile_without_warnings(sources, [compiler], standard, *target, level, "-fstack-usage", "-c")
    for path in sources.glob("*.su"):
        frames = [int(line.split("\t")[1]) for line in path.read_text().splitlines()]
        comment = re.search(
            r"(?:([\d,]+) bytes of stack compiled with -Os)(?:, ([\d,]+) with)?", path.with_suffix(".h").read_text()
        )
        assert sum(frames) <= int(comment[2 if level != "-Os" and comment[2] else 1].replace(",", "")), path.name
        path.unlink()
