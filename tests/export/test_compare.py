"""Comparisons of two programs equal a computation by hand."""

import math

import numpy as np
import pytest

from edge_models import matrix, program
from refused import refused
from streamsvm.edge.calibration import LogOddsCalibration
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.export.compare import Comparison, compare_programs
from streamsvm.export.quantise import quantise_program


def make_linear(bias, kind="class", calibration=None):
    program = Program([Column("a", "a")])
    value = program.add("linear", program.add("impute", 0, float32=False), weights=np.ones((1, 1)), biases=np.array([bias]))
    labels = ("no", "yes") if kind == "class" else ()
    size = 1.0 if kind == "anomaly" else 0.0
    program.answer = Answer(kind, value, value, labels, calibration=calibration, size=size)
    return program


X = np.arange(-2.0, 3.0)[:, None]


def test_labels_equal_a_count_by_hand():
    comparison = compare_programs(make_linear(0.0), make_linear(1.5), X)
    assert comparison == Comparison(5, 2, 1.5, "decision values", None)
    assert str(comparison) == "2 of 5 rows (40%) have another label; decision values differ by at most 1.5"
    calibration = LogOddsCalibration(0.0)
    comparison = compare_programs(make_linear(0.0, calibration=calibration), make_linear(1.5, calibration=calibration), X)
    assert (comparison.n_changed_labels, comparison.quantity) == (2, "probabilities")
    probabilities = 1.0 / (1.0 + np.exp(-X[:, 0])), 1.0 / (1.0 + np.exp(-X[:, 0] - 1.5))
    assert comparison.max_difference == pytest.approx(np.abs(probabilities[1] - probabilities[0]).max())


def test_numbers_and_scores_equal_a_computation_by_hand():
    comparison = compare_programs(make_linear(0.0, "number"), make_linear(0.1, "number"), X)
    assert comparison == Comparison(5, None, pytest.approx(0.1), "numbers", pytest.approx(0.1 / math.sqrt(2.0)))
    assert str(comparison) == "numbers differ by at most 0.1, and by 7.1% of their deviation (root mean square), on 5 rows"
    assert compare_programs(make_linear(0.0, "anomaly"), make_linear(0.1, "anomaly"), X).quantity == "anomaly scores"
    single = compare_programs(make_linear(0.0, "number"), make_linear(0.1, "number"), X[:1])
    assert (single.relative_rmse, single.is_large) == (None, False)  # a single number has no standard deviation
    assert str(single) == "numbers differ by at most 0.1, on 1 rows"


def test_limits_of_large_differences():
    for n_changed, is_large in ((10, False), (11, True)):
        assert Comparison(1000, n_changed, 0.0, "probabilities", None).is_large == is_large
    for rmse, is_large in ((0.03, False), (0.031, True)):
        assert Comparison(1000, None, 0.0, "numbers", rmse).is_large == is_large


def test_invalid_rows_are_refused():
    refused("there are no rows to compare programs on", compare_programs, make_linear(0.0), make_linear(0.0), np.zeros((0, 1)))
    refused(r"X has the shape \(2, 3\)", compare_programs, make_linear(0.0), make_linear(0.0), np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["BSCAClassifier 0 of 2", "CSMOClassifier 0 of 4", "table of 0"])
def test_a_program_equals_itself_and_differs_from_its_quantisation(name):
    original, rows = program(name), matrix(program(name)).astype(np.float64)
    assert compare_programs(original, original, rows).max_difference == 0.0
    assert 0.0 < compare_programs(original, quantise_program(original, 8), rows).max_difference < math.inf
