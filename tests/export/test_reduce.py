"""Programs made smaller keep to the bytes, and to the labels where there are vectors enough."""

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
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export
from streamsvm.export.learners import add_neighbours
from streamsvm.export.reduce import reduce_program


def rows_of(given, n=2000):
    return matrix(given, n).astype(np.float64)


@pytest.mark.parametrize(("name", "bits"), in_turn(OF_EACH, 32, 8))
def test_every_model_fits_or_says_why_not(name, bits, tmp_path):
    given = program(name)
    if any(step.op == "trees" for step in given.steps):
        refused("a step 'trees' is not supported in C", reduce_program, given, 100, error=edge.ExportError)
        return
    names = count_category_bytes(given)  # which stay
    most = names + (count_table_bytes(given) - names) * (2 if bits == 32 else 1) // 3
    fixed = any(step.op == "fourier" or step.options.get("kind") == "sigmoid" for step in given.steps)
    vectors = [len(step.arrays["vectors"]) for step in given.steps if step.op in ("kernel", "neighbours")]
    if fixed or most - names < 900 or not vectors:
        why = "cannot be made smaller" if fixed else f"with{' one' if sum(vectors) else 'out a support'} vector its tables have"
        refused(why, reduce_program, given, 10, bits=bits, error=edge.ExportError)
        return
    found = reduce_program(given, most, bits=bits, passes=2)
    assert write_c(found.program, tmp_path).table_bytes == found.table_bytes <= most
    assert found.n_vectors[0] == sum(vectors) >= found.n_vectors[1]


@needs_compiler
def test_fewer_vectors_decide_alike():
    given = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    X = rows_of(given)
    half = count_table_bytes(given) // 2
    found = reduce_program(given, half, X)
    assert found.table_bytes <= half < count_table_bytes(given)
    assert found.label_agreement > 0.97
    assert found.rmse < 0.2
    assert f"{100 * found.label_agreement:.2f}% of the rows have the same label" in str(found)
    rounded = reduce_program(given, half, X, bits=8)
    assert rounded.n_vectors[1] > found.n_vectors[1]
    assert rounded.label_agreement > 0.97
    assert (CModel(rounded.program).predict_many(X) == edge.Predictor(given).predict_many(X)).mean() > 0.97


def with_memory(targets, count=200):
    """A program that adds up what support vectors say, and the nearest of stored rows with these targets; and these rows."""
    given = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    given = given.with_steps(given.steps)
    stored = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)
    said = add_neighbours(given, 2, stored, np.ones(5), targets(stored), np.ones(count, np.float32), 2)
    value = given.add("linear", given.add("concat", 4, said), weights=np.ones((1, 2)), biases=np.zeros(1))
    given.answer = given.answer._replace(decision=value, choice=value)
    return given, stored


def test_a_memory_loses_as_many_rows_as_kernels_lose_vectors():
    given, stored = with_memory(lambda stored: (stored[:, 0] > 0.0).astype(float))
    found = reduce_program(given, count_table_bytes(given) // 2)
    assert found.table_bytes <= count_table_bytes(given) // 2
    [kernel] = [step for step in found.program.steps if step.op == "kernel"]
    [memory] = [step for step in found.program.steps if step.op == "neighbours"]
    assert found.n_vectors == (400, len(kernel.arrays["vectors"]) + len(memory.arrays["vectors"]))
    assert len(kernel.arrays["vectors"]) == len(memory.arrays["vectors"]) < 200
    places = [stored.tolist().index(row) for row in memory.arrays["vectors"].tolist()]
    assert places == sorted(places)
    np.testing.assert_array_equal(memory.arrays["targets"], stored[places, 0] > 0.0)


def test_a_memory_that_says_little_gives_its_room_to_kernels():
    given, _ = with_memory(lambda stored: np.arange(len(stored)) % 2.0)
    found = reduce_program(given, count_table_bytes(given) // 4, rows_of(given))
    assert found.table_bytes <= count_table_bytes(given) // 4
    assert [step.op for step in found.program.steps].count("neighbours") == 0
    [said] = [step for step in found.program.steps if step.op == "linear" and len(step.arrays["biases"]) == 2]
    np.testing.assert_array_equal(said.arrays["biases"], [0.5, 0.5])
    assert found.label_agreement > 0.9


@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_ensembles_of_any_size(kind):
    given = make_program(learned(kind(seed=0), 300, 2 if kind is SVMClassifier else 0))
    found = reduce_program(given, count_table_bytes(given) // 3, rows_of(given, 400), passes=5)
    assert found.table_bytes <= count_table_bytes(given) // 3
    assert 0 < found.n_vectors[1] < found.n_vectors[0]
    assert [step.op for step in found.program.steps].count("forest") == 0


@pytest.mark.parametrize(("allowed", "kept"), [(1.0, True), (0.9, True), (0.2, False)])
def test_trees_stay_if_they_take_no_more_than_half_of_the_bytes(allowed, kept):
    given = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    given, trees = given.with_steps(given.steps), forest(2, trees=4).steps[1]
    said = given.add("forest", 1, **trees.arrays, **trees.options)
    value = given.add("linear", given.add("concat", 4, said), weights=np.array([[1.0, -0.2, 0.2]]), biases=np.zeros(1))
    given.answer = given.answer._replace(decision=value, choice=value)
    whole = count_table_bytes(given)
    found = reduce_program(given, int(allowed * whole), rows_of(given))
    assert found.table_bytes <= allowed * whole
    assert ("made smaller" in found.program.metadata) == (allowed < 1.0)
    assert (found.program.steps[said - 1].op == "forest") == kept
    if not kept:
        counts = np.bincount(trees.arrays["targets"].ravel(), trees.arrays["counts"].ravel().astype(float))
        np.testing.assert_allclose(found.program.steps[said - 1].arrays["biases"], counts / counts.sum())


def test_export_takes_bytes(tmp_path):
    given = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    export(given, "numpy", tmp_path, max_bytes=2000, X=rows_of(given))
    facts = edge.load(tmp_path / "model.safetensors").metadata
    assert "rows have the same label" in facts["made smaller"]
    assert "made smaller" not in given.metadata


def test_rows_of_one_kind_do_not_undo_the_others():
    given = make_program(learned(BSCAClassifier(budget=200, seed=0), 2000, 2))
    X = rows_of(given)
    kind = X[X[:, 0] > np.nanquantile(X[np.isfinite(X[:, 0]), 0], 0.9)]
    found = edge.Predictor(reduce_program(given, count_table_bytes(given) // 2, kind).program)
    assert (found.predict_many(X) == edge.Predictor(given).predict_many(X)).mean() > 0.97


def test_what_is_small_enough_stays():
    given = program("BSGDClassifier 0 of 2")
    found = reduce_program(given, count_table_bytes(given))
    assert found.n_vectors[0] == found.n_vectors[1]
    assert found.label_agreement is found.rmse is None
    assert found.program is given
    with pytest.raises(edge.ExportError, match="with one vector its tables have .* bytes, more than max_bytes=10: allow"):
        reduce_program(given, 10)
    refused("X has the shape", reduce_program, given, 100, np.zeros((2, 2)))


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


def test_a_model_without_vectors_may_be_too_large():
    model = BSGDRegressor(budget=5, seed=0)
    model.learn_one({f"a feature {j}": 1.0 for j in range(40)}, 0.0)
    refused("without a support vector its tables have", reduce_program, make_program(model), 100, error=ExportError)
