"""Whole numbers in the place of vectors: coefficients make up for the rounding, and what they cannot make up for is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_models import MAKERS, learned, memory, program, rows
from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, KernelRLSClassifier, KernelRLSRegressor, edge
from streamsvm.edge import Predictor
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.edge.step import dequantise_vectors
from streamsvm.export import quantise
from streamsvm.export.compare import compare_programs
from streamsvm.export.convert import make_program
from streamsvm.export.quantise import _refit_coefficients, quantise_program, round_vectors
from streamsvm.learners import OneClassBSGD


def expansion(vectors, weights, kind="rbf", gamma=0.5):
    """A program of a sum of kernel values; a row is as its vectors are."""
    made = Program([Column(j, j) for j in range(vectors.shape[1])])
    value = made.add("kernel", made.add("impute", 0, float32=False), vectors=vectors, kind=kind, gamma=gamma, coef0=1.0, degree=2)
    value = made.add("linear", value, weights=weights, biases=np.zeros(len(weights)))
    made.answer = Answer("number", value, value)
    return made


def random_expansion(m, d, outputs=1, kind="rbf", seed=0):
    rng = np.random.default_rng(seed)
    return expansion(5.0 + 3.0 * rng.normal(size=(m, d)), rng.normal(size=(outputs, m)), kind)


def values(made, X):
    """The sums at rows by loops over vectors, float64 [n, outputs]."""
    kernel, linear = made.steps[1:]
    kind, gamma = kernel.options["kind"], kernel.options["gamma"]
    arrays, out = kernel.arrays, np.zeros((len(X), len(linear.arrays["weights"])))
    units, middles = arrays.get("scale", np.ones(X.shape[1])), arrays.get("center", np.zeros(X.shape[1]))
    for vector, weights in zip(arrays["vectors"], linear.arrays["weights"].T, strict=True):
        place = [number * unit + middle for number, unit, middle in zip(vector.tolist(), units, middles, strict=True)]
        for i, x in enumerate(X):
            product = math.fsum(a * b for a, b in zip(x, place, strict=True))
            value = math.exp(-gamma * math.fsum((a - b) ** 2 for a, b in zip(x, place, strict=True)))
            out[i] += weights * (value if kind == "rbf" else product if kind == "linear" else (gamma * product + 1.0) ** 2)
    return out


@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 12),
    d=st.integers(1, 4),
    outputs=st.integers(1, 3),
    kind=st.sampled_from(["rbf", "linear", "poly"]),
    bits=st.sampled_from([8, 16]),
    seed=st.integers(0, 100),
)
def test_what_is_lost_is_orthogonal_to_all_that_is_left(m, d, outputs, kind, bits, seed):
    before = random_expansion(m, d, outputs, kind, seed)
    after = _refit_coefficients(before, round_vectors(before, bits))  # be it lossy
    step = after.steps[1]
    kept = dequantise_vectors(step)
    assert step.arrays["vectors"].dtype == {8: np.int8, 16: np.int16}[bits]
    assert (np.abs(kept - dequantise_vectors(before.steps[1])) <= 0.501 * step.arrays["scale"]).all()
    # The product of a function with the kernel at a point is its value there.
    wanted, found = values(before, kept), values(after, kept)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max() + 1e-9)
    np.testing.assert_allclose(Predictor(after)._decision_values(kept), found, atol=1e-9 * np.abs(wanted).max() + 1e-9)


LEARNERS = {
    "bsgd": lambda: learned(BSGDClassifier(budget=60, seed=0), 1500, 2),
    "bsca": lambda: learned(BSCAClassifier(budget=60, seed=0), 1500, 3),
    "rls": lambda: learned(KernelRLSClassifier(), 600, 2),
    "rls of numbers": lambda: learned(KernelRLSRegressor(), 600, 0),
    "bsca of numbers": lambda: learned(BSCARegressor(budget=60, seed=0), 1500, 0),
    "one class": lambda: learned(OneClassBSGD(budget=60), 1500, 2),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_eight_bits_answer_as_floats_do(name):
    before = make_program(LEARNERS[name]())
    X = np.array([Predictor(before).encode_row(x) for x, _ in rows(2000, 2, seed=1)])
    found, alone = (compare_programs(before, other, X) for other in (quantise_program(before, 8), round_vectors(before, 8)))
    assert 0.0 < found.max_difference < 0.7 * alone.max_difference  # smaller than with the old coefficients
    assert (found.n_changed_labels <= 8) if found.relative_rmse is None else (found.relative_rmse < 0.01)


def test_values_far_from_zero_and_names_of_two_values_are_exact():
    rng = np.random.default_rng(0)
    vectors = np.stack([rng.choice([2019.0, 2020.0], 20), 1e6 + np.arange(20) % 2], axis=1)
    after = quantise_program(expansion(vectors, np.ones((1, 20))), 8)
    np.testing.assert_allclose(dequantise_vectors(after.steps[1]), vectors, rtol=1e-12)


def far(value):
    """A program with a vector whose first number is far from the others."""
    made = random_expansion(30, 2)
    vectors = dequantise_vectors(made.steps[1])
    vectors[3, 0] = value
    return expansion(vectors, made.steps[2].arrays["weights"])


def test_a_vector_that_takes_the_bits_of_the_others_is_refused_with_advice():
    said = "vectors of {} bits would lose [0-9]+% of a kernel's sums, .*: ask for {} bits, or learn with scaling"
    refused(said.format(8, 16), quantise_program, far(1e4), 8, error=edge.ExportError)
    assert compare_programs(far(1e4), quantise_program(far(1e4), 16), dequantise_vectors(far(1e4).steps[1])).relative_rmse < 0.01
    refused(said.format(16, 32), quantise_program, far(1e7), 16, error=edge.ExportError)


def test_rows_that_vote_have_16_bits_at_least():
    step = quantise_program(memory(2), 8).steps[2]
    assert (step.op, step.arrays["vectors"].dtype) == ("neighbours", np.int16)


def test_what_no_coefficient_makes_up_for_keeps_its_own(monkeypatch):
    sigmoid = random_expansion(10, 2, kind="sigmoid")
    np.testing.assert_array_equal(quantise_program(sigmoid, 8).steps[2].arrays["weights"], sigmoid.steps[2].arrays["weights"])
    before = random_expansion(10, 2)
    monkeypatch.setattr(quantise, "_MAX_REFITTED_VECTORS", 9)
    after = quantise_program(before, 8)
    np.testing.assert_array_equal(after.steps[2].arrays["weights"], before.steps[2].arrays["weights"])


@pytest.mark.thorough
def test_trees_and_random_features_stay_floats():
    names = [name for name in MAKERS if name.startswith(("HierarchicalSVC 7 of 2", "FOGD 0"))]
    assert len(names) == 2
    for name in names:
        before = program(name)
        assert {step.op for step in before.steps} & {"trees", "fourier"}
        assert quantise_program(before, 8).nbytes == before.nbytes


def test_twice_is_once():
    once = quantise_program(random_expansion(20, 3), 8)
    for again in (quantise_program(once, 8), quantise_program(once, 16)):
        assert all(a.arrays.items() == b.arrays.items() or a is b for a, b in zip(once.steps, again.steps, strict=True))


def test_there_are_three_numbers_of_bits():
    refused("bits must be", quantise_program, random_expansion(20, 3), bits=7, error=edge.ExportError)
