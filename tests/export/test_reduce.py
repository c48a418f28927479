"""Reduced programs fit the number of bytes, and keep almost all labels if enough vectors remain."""

import random

import numpy as np
import pytest

from c_compilers import needs_compiler
from c_model import CModel
from edge_models import OF_EACH, forest, learned, matrix, program
from lists import in_turn
from refused import refused
from streamsvm import BSCAClassifier, BSGDClassifier, BSGDRegressor, SVMClassifier, SVMRegressor, edge
from streamsvm.edge.program import ExportError
from streamsvm.export.c import write_c
from streamsvm.export.c.text import count_category_bytes
from streamsvm.export.c.writer import count_table_bytes
from streamsvm.export.compare import compare_programs
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export
from streamsvm.export.learners import add_neighbours
from streamsvm.export.reduce import reduce_program


def make_rows(original, n=2000):
    return matrix(original, n).astype(np.float64)


@pytest.mark.parametrize(("name", "bits"), in_turn(OF_EACH, 32, 8))
def test_every_program_fits_or_is_refused_with_a_reason(name, bits, tmp_path):
    original = program(name)
    if any(step.op == "trees" for step in original.steps):
        refused("a step 'trees' is not supported in C", reduce_program, original, 100, error=edge.ExportError)
        return
    names = count_category_bytes(original)  # cannot be reduced
    max_bytes = names + (count_table_bytes(original) - names) * (2 if bits == 32 else 1) // 3
    is_fixed = any(step.op == "fourier" or step.options.get("kind") == "sigmoid" for step in original.steps)
    vectors = [len(step.arrays["vectors"]) for step in original.steps if step.op in ("kernel", "neighbours")]
    if is_fixed or max_bytes - names < 900 or not vectors:
        reason = (
            "cannot be made smaller" if is_fixed else f"with{' one' if sum(vectors) else 'out a support'} vector its tables have"
        )
        refused(reason, reduce_program, original, 10, bits=bits, error=edge.ExportError)
        return
    reduction = reduce_program(original, max_bytes, bits=bits, passes=2)
    assert write_c(reduction.program, tmp_path).table_bytes == reduction.table_bytes <= max_bytes
    assert reduction.n_vectors[0] == sum(vectors) >= reduction.n_vectors[1]


@needs_compiler
def test_fewer_vectors_predict_almost_the_same():
    original = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    X = make_rows(original)
    half = count_table_bytes(original) // 2
    reduction = reduce_program(original, half, X)
    assert reduction.table_bytes <= half < count_table_bytes(original)
    assert reduction.comparison.n_changed_labels < 0.03 * len(X)
    assert reduction.comparison.max_difference < 0.2
    assert str(reduction).endswith(f"; {compare_programs(original, reduction.program, X)}")
    rounded = reduce_program(original, half, X, bits=8)
    assert rounded.n_vectors[1] > reduction.n_vectors[1]
    assert rounded.comparison.n_changed_labels < 0.03 * len(X)
    assert (CModel(rounded.program).predict_many(X) == edge.Predictor(original).predict_many(X)).mean() > 0.97


def make_program_with_memory(targets, n_stored=200):
    """Return a program that adds up a kernel expansion and votes of nearest neighbours, and the stored rows of the latter."""
    original = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    original = original.with_steps(original.steps)
    stored = np.random.default_rng(0).normal(size=(n_stored, 5)).astype(np.float32)
    arrays = {"vectors": stored, "feature_weights": np.ones(5), "targets": targets(stored)}
    neighbour_votes = add_neighbours(original, 2, 2, {**arrays, "weights": np.ones(n_stored, np.float32)})
    value = original.add("linear", original.add("concat", 4, neighbour_votes), weights=np.ones((1, 2)), biases=np.zeros(1))
    original.answer = original.answer._replace(decision=value, choice=value)
    return original, stored


def test_neighbours_and_kernels_lose_the_same_share_of_vectors():
    original, stored = make_program_with_memory(lambda stored: (stored[:, 0] > 0.0).astype(float))
    reduction = reduce_program(original, count_table_bytes(original) // 2)
    assert reduction.table_bytes <= count_table_bytes(original) // 2
    [kernel] = [step for step in reduction.program.steps if step.op == "kernel"]
    [memory] = [step for step in reduction.program.steps if step.op == "neighbours"]
    assert reduction.n_vectors == (400, len(kernel.arrays["vectors"]) + len(memory.arrays["vectors"]))
    assert len(kernel.arrays["vectors"]) == len(memory.arrays["vectors"]) < 200
    positions = [stored.tolist().index(row) for row in memory.arrays["vectors"].tolist()]
    assert positions == sorted(positions)
    np.testing.assert_array_equal(memory.arrays["targets"], stored[positions, 0] > 0.0)


@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_ensembles_are_reduced(kind):
    original = make_program(learned(kind(seed=0), 300, 2 if kind is SVMClassifier else 0))
    reduction = reduce_program(original, count_table_bytes(original) // 3, make_rows(original, 400), passes=5)
    assert reduction.table_bytes <= count_table_bytes(original) // 3
    assert 0 < reduction.n_vectors[1] < reduction.n_vectors[0]
    assert [step.op for step in reduction.program.steps].count("forest") == 0


@pytest.mark.parametrize(("share", "is_kept"), [(1.0, True), (0.9, True), (0.2, False)])
def test_forests_that_take_over_half_of_the_bytes_are_replaced(share, is_kept):
    original = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    original, trees = original.with_steps(original.steps), forest(2, trees=4).steps[1]
    forest_value = original.add("forest", 1, **trees.arrays, **trees.options)
    value = original.add(
        "linear", original.add("concat", 4, forest_value), weights=np.array([[1.0, -0.2, 0.2]]), biases=np.zeros(1)
    )
    original.answer = original.answer._replace(decision=value, choice=value)
    full_bytes = count_table_bytes(original)
    reduction = reduce_program(original, int(share * full_bytes), make_rows(original))
    assert reduction.table_bytes <= share * full_bytes
    assert ("made smaller" in reduction.program.metadata) == (share < 1.0)
    assert (reduction.program.steps[forest_value - 1].op == "forest") == is_kept
    if not is_kept:
        counts = np.bincount(trees.arrays["targets"].ravel(), trees.arrays["counts"].ravel().astype(float))
        np.testing.assert_allclose(reduction.program.steps[forest_value - 1].arrays["biases"], counts / counts.sum())


def test_export_with_max_bytes(tmp_path):
    original = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    export(original, "numpy", tmp_path, max_bytes=2000, X=make_rows(original))
    metadata = edge.load(tmp_path / "model.safetensors").metadata
    assert "rows (" in metadata["made smaller"]
    assert "have another label" in metadata["made smaller"]
    assert "made smaller" not in original.metadata


def test_rows_of_one_kind_do_not_spoil_predictions_for_others():
    original = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    X = make_rows(original)
    unusual_rows = X[X[:, 0] > np.nanquantile(X[np.isfinite(X[:, 0]), 0], 0.9)]
    predictor = edge.Predictor(reduce_program(original, count_table_bytes(original) // 2, unusual_rows).program)
    assert (predictor.predict_many(X) == edge.Predictor(original).predict_many(X)).mean() > 0.97


def test_programs_that_are_small_enough_are_not_changed():
    original = program("BSGDClassifier 0 of 2")
    reduction = reduce_program(original, count_table_bytes(original))
    assert reduction.n_vectors[0] == reduction.n_vectors[1]
    assert reduction.comparison is None
    assert reduction.program is original
    with pytest.raises(edge.ExportError, match="with one vector its tables have .* bytes, more than max_bytes=10: allow"):
        reduce_program(original, 10)
    refused("X has the shape", reduce_program, original, 100, np.zeros((2, 2)))


@pytest.mark.filterwarnings("error")
def test_one_vector_is_moved_without_a_warning():
    model = BSGDClassifier(budget=20, seed=0)
    rng = random.Random(0)
    for _ in range(300):
        x = {"a": rng.random(), "b": rng.random()}
        model.learn_one(x, x["a"] > x["b"])
    small = reduce_program(make_program(model), 100).program
    assert len(small.steps[2].arrays["vectors"]) == 1
    assert np.isfinite(small.steps[3].arrays["weights"]).all()


def test_a_model_without_vectors_that_is_too_large_is_refused():
    model = BSGDRegressor(budget=5, seed=0)
    model.learn_one({f"a feature {j}": 1.0 for j in range(40)}, 0.0)
    refused("without a support vector its tables have", reduce_program, make_program(model), 100, error=ExportError)
