"""Corrupt and hostile program files: a sample of `mutate_programs.py`, which changes 10^5 files if run by hand, and more."""

import hashlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edge_models import bsgd, learned
from refused import refused
from streamsvm import edge
from streamsvm.edge.calibration import LogOddsCalibration, MarginCalibration
from streamsvm.edge.predictor import PROGRAM_KEY, Predictor
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.export.convert import make_program
from streamsvm.files.container import VERSION, pack_container, unpack_container


@pytest.mark.thorough
@pytest.mark.once
def test_mutated_files_are_refused_or_predict():
    command = [sys.executable, str(Path(__file__).parents[1] / "mutate_programs.py"), "300", "0"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    fates = json.loads(process.stdout)["fates"]
    assert fates["edge refused"] > 100
    assert fates["edge answers"] > 20


def test_a_header_of_100_mb_is_refused_without_reading_it():
    text = b'{"a":"' + b"x" * 10**8 + b'"}'
    data = len(text).to_bytes(8, "little") + text
    with pytest.raises(edge.ExportError, match="corrupt: it is cut off, or not a file of streamsvm"):
        edge.loads(data + hashlib.sha256(data).digest())


def test_newer_versions_are_refused_by_name():
    program = make_program(learned(bsgd(), 50, 2))
    text, arrays = program.serialise()
    with pytest.raises(edge.ExportError, match="m: it has program version 2, and this streamsvm reads 1: upgrade"):
        edge.loads(pack_container(arrays, {PROGRAM_KEY: text.replace('{"version":1', '{"version":2')}), "m")
    data = pack_container(arrays, {PROGRAM_KEY: text})
    for version in (1, 2, 3, 4, 9, 99):
        newer = data.replace(b'"version":"%d"' % VERSION, b'"version":"%d"' % version)
        newer = newer[:-32] + hashlib.sha256(newer[:-32]).digest()
        if version > VERSION and len(newer) == len(data):
            refused(f"version {version} of the format", edge.loads, newer, error=edge.ExportError)


def test_files_do_not_depend_on_byte_order():
    program = make_program(learned(bsgd(), 50, 2))
    text, arrays = program.serialise()
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in arrays.items()}
    assert pack_container(swapped, {PROGRAM_KEY: text}) == pack_container(arrays, {PROGRAM_KEY: text})
    data = pack_container(arrays, {PROGRAM_KEY: text})
    size = int.from_bytes(data[:8], "little")
    swapped_header = size.to_bytes(8, "big") + data[8:-32]  # as a big-endian writer would write it
    refused("corrupt", edge.loads, swapped_header + hashlib.sha256(swapped_header).digest(), error=edge.ExportError)
    assert unpack_container(data).strings[PROGRAM_KEY] == text


def test_probabilities_need_a_decision_value_for_each_label():
    program = Program([Column(name, name) for name in "abc"])
    pairs = program.add("concat", 0, 0)
    calibration = LogOddsCalibration(0.5, (0.2, 0.3, 0.5))
    program.answer = Answer("class", pairs, 0, (1, 2, 3), calibration=calibration)
    refused("its answer has 6 decision values and 3 numbers for 3 labels", program.check_answer, error=edge.ExportError)
    program.answer = program.answer._replace(decision=0)
    program.check_answer()


def test_an_array_that_two_steps_use_is_refused():
    text, arrays = make_program(learned(bsgd(), 50, 2)).serialise()
    saved = json.loads(text)
    saved["steps"][-1:] *= 2
    refused("its program is corrupt", Program.deserialise, json.dumps(saved), arrays, error=edge.ExportError)


def test_programs_whose_values_are_too_wide_are_refused():
    program = Program([Column("a", "a")])
    value = program.add("select", 0, columns=np.zeros(2**12, np.int64))
    for _ in range(7):
        value = program.add("concat", value, value)
    with pytest.raises(edge.ExportError, match="its values have 2,093,057 numbers, which no model of its size has"):
        program.add("concat", value, value)


@pytest.mark.parametrize(
    ("labels", "width", "has_calibration", "is_valid"),
    [
        (4, 4, True, True),
        (4, 6, False, True),
        (4, 6, True, False),
        (4, 1, False, False),
        (2, 2, False, False),
    ],
)
def test_decision_values_are_one_per_label_or_one_per_pair(labels, width, has_calibration, is_valid):
    program = Program([Column("a", "a")])
    decision = program.add("linear", 0, weights=np.ones((width, 1)), biases=np.zeros(width))
    n = labels if labels > 2 else 1
    choice = program.add("linear", 0, weights=np.ones((n, 1)), biases=np.zeros(n))
    calibration = MarginCalibration(1.0, 0.1) if has_calibration else None
    program.answer = Answer("class", decision, choice, tuple(range(labels)), calibration=calibration)
    if is_valid:
        program.check_answer()
        return
    refused(f"its answer has {width} decision values and {n} numbers", program.check_answer, error=edge.ExportError)


def test_programs_with_too_many_steps_are_refused():
    program = Program([Column("a", "a")])
    for _ in range(1000):
        program.add("impute", 0, float32=False)
    refused("it has more than 1,000 steps, which no model has", program.add, "impute", 0, float32=False, error=edge.ExportError)


def test_ints_above_the_largest_float_are_refused():
    text, arrays = make_program(learned(bsgd(), 50, 2)).serialise()
    for name in ("center", "size", "prior", "factor"):
        saved, is_score = json.loads(text), name in ("center", "size")
        (saved["answer"] if is_score else saved["answer"]["odds"])[name] = 10**400
        reason = "anomaly scores is not a finite number" if is_score else "calibration of its probabilities is invalid"
        refused(reason, Program.deserialise, json.dumps(saved), arrays, error=edge.ExportError)


def test_one_long_label_does_not_use_memory_for_all_labels():
    n = 100_000
    program = Program([Column("a", "a")])
    no_columns = program.add("select", 0, columns=np.zeros(0, np.int64))
    value = program.add("linear", no_columns, weights=np.zeros((n, 0)), biases=np.zeros(n))
    program.answer = Answer("class", value, value, ("x" * 2048, *map(str, range(n - 1))))
    program.check_answer()
    tracemalloc.start()
    predictor = Predictor(program)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25  # an array of texts would take 2**30
    assert predictor.predict_many(np.zeros((1, 1))).tolist() == ["x" * 2048]
