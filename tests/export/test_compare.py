"""Answers of two programs that differ are counted as by hand."""

import math

import numpy as np
import pytest

from edge_models import matrix, program
from refused import refused
from streamsvm.edge.calibration import LogOddsCalibration
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.export.compare import Comparison, compare_programs
from streamsvm.export.quantise import quantise_program


def linear(bias, kind="class", odds=None):
    made = Program([Column("a", "a")])
    value = made.add("linear", made.add("impute", 0, float32=False), weights=np.ones((1, 1)), biases=np.array([bias]))
    labels = ("no", "yes") if kind == "class" else ()
    size = 1.0 if kind == "anomaly" else 0.0
    made.answer = Answer(kind, value, value, labels, calibration=odds, size=size)
    return made


X = np.arange(-2.0, 3.0)[:, None]


def test_labels_by_hand():
    found = compare_programs(linear(0.0), linear(1.5), X)
    assert found == Comparison(5, 2, 1.5, "decision values", None)
    assert str(found) == "2 of 5 rows (40%) have another label; decision values differ by at most 1.5"
    odds = LogOddsCalibration(0.0)
    found = compare_programs(linear(0.0, odds=odds), linear(1.5, odds=odds), X)
    assert (found.n_changed_labels, found.quantity) == (2, "probabilities")
    shares = 1.0 / (1.0 + np.exp(-X[:, 0])), 1.0 / (1.0 + np.exp(-X[:, 0] - 1.5))
    assert found.max_difference == pytest.approx(np.abs(shares[1] - shares[0]).max())


def test_numbers_and_scores_by_hand():
    found = compare_programs(linear(0.0, "number"), linear(0.1, "number"), X)
    assert found == Comparison(5, None, pytest.approx(0.1), "numbers", pytest.approx(0.1 / math.sqrt(2.0)))
    assert str(found) == "numbers differ by at most 0.1, and by 7.1% of their deviation (root mean square), on 5 rows"
    assert compare_programs(linear(0.0, "anomaly"), linear(0.1, "anomaly"), X).quantity == "anomaly scores"
    alone = compare_programs(linear(0.0, "number"), linear(0.1, "number"), X[:1])
    assert (alone.relative_rmse, alone.is_large) == (None, False)  # a single number has no deviation
    assert str(alone) == "numbers differ by at most 0.1, on 1 rows"


def test_what_is_large():
    for changed, large in ((10, False), (11, True)):
        assert Comparison(1000, changed, 0.0, "probabilities", None).is_large == large
    for away, large in ((0.03, False), (0.031, True)):
        assert Comparison(1000, None, 0.0, "numbers", away).is_large == large


def test_rows_that_cannot_be_compared_on():
    refused("there are no rows to compare programs on", compare_programs, linear(0.0), linear(0.0), np.zeros((0, 1)))
    refused(r"X has the shape \(2, 3\)", compare_programs, linear(0.0), linear(0.0), np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["BSCAClassifier 0 of 2", "CSMOClassifier 0 of 4", "table of 0"])
def test_a_program_differs_from_itself_in_nothing(name):
    given, rows = program(name), matrix(program(name)).astype(np.float64)
    assert compare_programs(given, given, rows).max_difference == 0.0
    assert 0.0 < compare_programs(given, quantise_program(given, 8), rows).max_difference < math.inf
