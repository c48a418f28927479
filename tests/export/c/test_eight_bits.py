"""Kernels with 8-bit vectors, which C computes with integers, equal those of the program at all distances from the vectors."""

import numpy as np
import pytest

from c_compilers import COMPILERS, FLAGS, needs_compiler
from c_model import CModel
from c_sanitized import run_random_rows
from streamsvm.edge.program import Answer, Column, Program, run_program
from streamsvm.export.c.library import can_use_eight_bits
from streamsvm.export.quantise import _refit_coefficients, round_vectors

pytestmark = [needs_compiler, pytest.mark.thorough]


def make_expansion(vectors, outputs, gamma, biases=0.0, seed=0):
    """Return a program of a Gaussian kernel expansion with 8-bit vectors."""
    rng, features = np.random.default_rng(seed), vectors.shape[1]
    program = Program([Column(i, i) for i in range(features)])
    kernel = {"kind": "rbf", "gamma": gamma, "coef0": 0.0, "degree": 1}
    value = program.add("kernel", program.add("impute", 0, float32=True), vectors=vectors.astype(np.float32), **kernel)
    weights = rng.normal(size=(outputs, len(vectors)))
    value = program.add("linear", value, weights=weights, biases=np.full(outputs, biases))
    labels = tuple(range(outputs)) if outputs > 1 else (0, 1)
    program.answer = Answer("class", value, value, labels)
    return _refit_coefficients(program, round_vectors(program, 8))  # without the check of the loss


@pytest.mark.parametrize(
    ("n", "features", "outputs", "gamma", "is_short"),
    [
        (1, 1, 1, 1.0, True),
        (7, 6, 3, 0.2, True),
        (100, 16, 10, 1 / 16, True),
        (30, 9, 13, 0.1, True),  # too many outputs for a variable each
        (13, 800, 1, 1 / 800, True),
        (40, 3, 1, 60.0, False),  # |s|^2 is too long for the difference of three sums in float
        (40, 3, 1, 5.0, True),
    ],
)
def test_decisions_at_all_distances_equal_the_program(n, features, outputs, gamma, is_short):
    rng = np.random.default_rng(n)
    program = make_expansion(3.0 * rng.uniform(-1.0, 1.0, (n, features)), outputs, gamma)
    assert can_use_eight_bits(program, 1) == is_short
    X = rng.normal(size=(400, features)).astype(np.float32)
    X[:100] = rng.uniform(-3.0, 3.0, (100, features))
    X[100:300] *= np.geomspace(0.1, 1e18, 200)[:, None]  # from rows with all kernel values above 0 to rows with none
    compiled = CModel(program, flags=FLAGS)
    decisions, (expected, _) = compiled.decision_function_many(X).reshape(400, -1), run_program(program, X.astype(np.float64))
    np.testing.assert_allclose(decisions, expected, rtol=2e-4, atol=1e-4 * np.abs(expected).max())
    is_far = (expected == 0.0).all(axis=1)
    assert is_far.sum() > 50
    assert (decisions[is_far] == 0.0).all()
    assert np.array_equal(decisions[100:300] == 0.0, expected[100:300] == 0.0)
    run_random_rows(program, COMPILERS[0])


def test_constant_features_of_vectors():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20, 5))
    vectors[:, [1, 3]] = 7.0, 0.0
    X = rng.normal(size=(200, 5)).astype(np.float32)
    X[:, 1] += 7.0
    X[:50, 3] = 1e4
    for case_vectors in (vectors, np.tile(vectors[0], (20, 1))):  # with twenty equal vectors, all scales are 0
        program = make_expansion(case_vectors, 2, 0.3)
        np.testing.assert_allclose(
            CModel(program).decision_function_many(X), run_program(program, X.astype(np.float64))[0], atol=1e-4
        )
