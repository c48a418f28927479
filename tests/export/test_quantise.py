"""Quantised vectors: refitted coefficients make up for the rounding; programs that would lose too much are refused."""

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


def make_expansion(vectors, weights, kind="rbf", gamma=0.5):
    """Make a program of a kernel expansion."""
    program = Program([Column(j, j) for j in range(vectors.shape[1])])
    value = program.add(
        "kernel", program.add("impute", 0, float32=False), vectors=vectors, kind=kind, gamma=gamma, coef0=1.0, degree=2
    )
    value = program.add("linear", value, weights=weights, biases=np.zeros(len(weights)))
    program.answer = Answer("number", value, value)
    return program


def make_random_expansion(m, d, outputs=1, kind="rbf", seed=0):
    rng = np.random.default_rng(seed)
    return make_expansion(5.0 + 3.0 * rng.normal(size=(m, d)), rng.normal(size=(outputs, m)), kind)


def expansion_twin(program, X):
    """Evaluate a kernel expansion at rows with loops over vectors, float64 [n, outputs]."""
    kernel, linear = program.steps[1:]
    kind, gamma = kernel.options["kind"], kernel.options["gamma"]
    arrays, out = kernel.arrays, np.zeros((len(X), len(linear.arrays["weights"])))
    units, centers = arrays.get("scale", np.ones(X.shape[1])), arrays.get("center", np.zeros(X.shape[1]))
    for vector, weights in zip(arrays["vectors"], linear.arrays["weights"].T, strict=True):
        point = [number * unit + middle for number, unit, middle in zip(vector.tolist(), units, centers, strict=True)]
        for i, x in enumerate(X):
            product = math.fsum(a * b for a, b in zip(x, point, strict=True))
            value = math.exp(-gamma * math.fsum((a - b) ** 2 for a, b in zip(x, point, strict=True)))
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
def test_the_change_is_orthogonal_to_the_rounded_vectors(m, d, outputs, kind, bits, seed):
    before = make_random_expansion(m, d, outputs, kind, seed)
    after = _refit_coefficients(before, round_vectors(before, bits))  # without the check of the loss
    step = after.steps[1]
    new_vectors = dequantise_vectors(step)
    assert step.arrays["vectors"].dtype == {8: np.int8, 16: np.int16}[bits]
    assert (np.abs(new_vectors - dequantise_vectors(before.steps[1])) <= 0.501 * step.arrays["scale"]).all()
    # The inner product of a function with the kernel function of a point is its value there.
    expected, refitted = expansion_twin(before, new_vectors), expansion_twin(after, new_vectors)
    np.testing.assert_allclose(refitted, expected, atol=1e-5 * np.abs(expected).max() + 1e-9)
    np.testing.assert_allclose(
        Predictor(after)._decision_values(new_vectors), refitted, atol=1e-9 * np.abs(expected).max() + 1e-9
    )


LEARNERS = {
    "bsgd": lambda: learned(BSGDClassifier(budget=60, seed=0), 1500, 2),
    "bsca": lambda: learned(BSCAClassifier(budget=60, seed=0), 1500, 3),
    "rls": lambda: learned(KernelRLSClassifier(), 600, 2),
    "rls of numbers": lambda: learned(KernelRLSRegressor(), 600, 0),
    "bsca of numbers": lambda: learned(BSCARegressor(budget=60, seed=0), 1500, 0),
    "one class": lambda: learned(OneClassBSGD(budget=60, gamma=0.2), 1500, 2),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_eight_bits_predict_as_floats(name):
    before = make_program(LEARNERS[name]())
    X = np.array([Predictor(before).encode_row(x) for x, _ in rows(2000, 2, seed=1)])
    refitted, rounded = (
        compare_programs(before, quantised, X) for quantised in (quantise_program(before, 8), round_vectors(before, 8))
    )
    assert 0.0 < refitted.max_difference < 0.7 * rounded.max_difference  # smaller than with the old coefficients
    assert (refitted.n_changed_labels <= 8) if refitted.relative_rmse is None else (refitted.relative_rmse < 0.01)


def test_values_far_from_zero_and_binary_features_are_exact():
    rng = np.random.default_rng(0)
    vectors = np.stack([rng.choice([2019.0, 2020.0], 20), 1e6 + np.arange(20) % 2], axis=1)
    after = quantise_program(make_expansion(vectors, np.ones((1, 20))), 8)
    np.testing.assert_allclose(dequantise_vectors(after.steps[1]), vectors, rtol=1e-12)


def make_outlier_program(value):
    """Make a program with a vector whose first number is far from those of the others."""
    original = make_random_expansion(30, 2)
    vectors = dequantise_vectors(original.steps[1])
    vectors[3, 0] = value
    return make_expansion(vectors, original.steps[2].arrays["weights"])


def test_an_outlier_among_the_vectors_is_refused_with_advice():
    message = "vectors of {} bits would lose [0-9]+% of a kernel's sums, .*: ask for {} bits, or learn with scaling"
    refused(message.format(8, 16), quantise_program, make_outlier_program(1e4), 8, error=edge.ExportError)
    assert (
        compare_programs(
            make_outlier_program(1e4),
            quantise_program(make_outlier_program(1e4), 16),
            dequantise_vectors(make_outlier_program(1e4).steps[1]),
        ).relative_rmse
        < 0.01
    )
    refused(message.format(16, 32), quantise_program, make_outlier_program(1e7), 16, error=edge.ExportError)


def test_neighbours_have_at_least_16_bits():
    step = quantise_program(memory(2), 8).steps[2]
    assert (step.op, step.arrays["vectors"].dtype) == ("neighbours", np.int16)


def test_coefficients_that_cannot_be_refitted_are_kept(monkeypatch):
    sigmoid = make_random_expansion(10, 2, kind="sigmoid")
    np.testing.assert_array_equal(quantise_program(sigmoid, 8).steps[2].arrays["weights"], sigmoid.steps[2].arrays["weights"])
    before = make_random_expansion(10, 2)
    monkeypatch.setattr(quantise, "_MAX_REFITTED_VECTORS", 9)
    after = quantise_program(before, 8)
    np.testing.assert_array_equal(after.steps[2].arrays["weights"], before.steps[2].arrays["weights"])


@pytest.mark.thorough
def test_trees_and_random_features_are_not_quantised():
    names = [name for name in MAKERS if name.startswith(("HierarchicalSVC 7 of 2", "FOGD 0"))]
    assert len(names) == 2
    for name in names:
        before = program(name)
        assert {step.op for step in before.steps} & {"trees", "fourier"}
        assert quantise_program(before, 8).nbytes == before.nbytes


def test_quantising_twice_changes_nothing():
    once = quantise_program(make_random_expansion(20, 3), 8)
    for again in (quantise_program(once, 8), quantise_program(once, 16)):
        assert all(a.arrays.items() == b.arrays.items() or a is b for a, b in zip(once.steps, again.steps, strict=True))


def test_other_numbers_of_bits_are_refused():
    refused("bits must be", quantise_program, make_random_expansion(20, 3), bits=7, error=edge.ExportError)
