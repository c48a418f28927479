"""Steps equal naive twins in plain Python, in bounded memory. Invalid arrays and options are refused."""

import math
import tracemalloc

import numpy as np
import pytest

from edge_models import FORESTS, MEMORIES, matrix, program
from lists import OF_RELEASE
from refused import refused
from streamsvm import edge
from streamsvm.core.steps import neighbours as learner_neighbours
from streamsvm.core.steps import stack
from streamsvm.edge import ensembles
from streamsvm.edge.operations import check_step, evaluate_step
from streamsvm.edge.program import run_program
from streamsvm.edge.step import MAX_NUMBERS_AT_ONCE, Step
from streamsvm.export.quantise import quantise_program

OPTIONS = {"labels": 3, "neighbours": 2, "max_difference": 1.0, "offset": 1e-3, "power": 3}


def neighbours_twin(step, row):
    """Evaluate a step ``neighbours`` for a row with loops."""
    a, o = step.arrays, step.options
    distances = []
    for vector in a["vectors"].tolist():
        if "scale" in a:
            vector = [number * unit for number, unit in zip(vector, a["scale"].tolist(), strict=True)]
        differences = [min(abs(x - v), o["max_difference"]) for x, v in zip(row, vector, strict=True)]
        distances.append(
            math.fsum(weight * difference for weight, difference in zip(a["feature_weights"].tolist(), differences, strict=True))
        )
    nearest = sorted(range(len(distances)), key=lambda i: (round(1024.0 * distances[i]), i))[: o["neighbours"]]
    votes = {i: float(a["weights"][i]) / (max(distances[i], 2.0**-15) + o["offset"]) ** o["power"] for i in nearest}
    if not o["labels"]:
        return [sum(votes[i] * float(a["targets"][i]) for i in nearest) / sum(votes.values())]
    return [sum(votes[i] for i in nearest if a["targets"][i] == k) / sum(votes.values()) for k in range(o["labels"])]


def make_step(**changes):
    """Make a step ``neighbours`` with three rows of two numbers; ``changes`` replaces some arrays and options."""
    arrays = {"vectors": np.array([[0, 0], [1, 0], [1, 1]], np.float32), "feature_weights": np.array([1.0, 0.5])}
    arrays |= {"targets": np.array([0.0, 2.0, 1.0]), "weights": np.ones(3, np.float32)}
    arrays |= {name: value for name, value in changes.items() if name in (*arrays, "scale", "center")}
    return Step("neighbours", (0,), arrays, OPTIONS | {name: value for name, value in changes.items() if name in OPTIONS})


def test_distances_below_the_minimum_count_as_the_minimum():
    step = make_step(vectors=np.array([[0, 0], [3, 0], [3, 3]], np.float32), labels=3, neighbours=3)
    equal, near, beyond = evaluate_step(step, np.array([[0.0, 0.0], [2.0**-17, 0.0], [2.0**-14, 0.0]])).tolist()
    assert equal == near
    assert beyond[0] < equal[0]


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("name", MEMORIES)
def test_neighbours_equal_their_naive_twin(name, bits):
    original = quantise_program(program(name), bits)
    index = next(index for index, step in enumerate(original.steps) if step.op == "neighbours")
    prefix = original.with_steps(original.steps[:index])
    prefix.answer = original.answer._replace(decision=index, choice=index)
    X = matrix(original).astype(np.float64)
    inputs, step, labels = run_program(prefix, X)[0], original.steps[index], original.steps[index].options["labels"]
    values = evaluate_step(step, inputs)
    assert values.shape == (len(X), labels or 1) == (len(X), check_step(step, inputs.shape[1]))
    np.testing.assert_allclose(values, [neighbours_twin(step, row) for row in inputs.tolist()], rtol=1e-9, atol=1e-12)
    expected = values if not labels else 2.0 * values - 1.0 if labels > 2 else values[:, 1:] - values[:, :1]
    np.testing.assert_allclose(run_program(original, X)[0], expected, rtol=1e-12, atol=1e-12)


def test_memory_of_neighbours_is_bounded():
    rng, n, features = np.random.default_rng(0), 2000, 40
    arrays = {"vectors": rng.normal(size=(n, features)).astype(np.float32), "feature_weights": rng.random(features)}
    arrays |= {"targets": rng.integers(0, 3, n).astype(float), "weights": np.ones(n, np.float32)}
    step, x = make_step(**arrays), rng.normal(size=(300, features))
    expected = np.concatenate([evaluate_step(step, row[None]) for row in x])
    tracemalloc.start()
    values = evaluate_step(step, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 8 * MAX_NUMBERS_AT_ONCE < 8 * len(x) * n * features / 3
    np.testing.assert_array_equal(values, expected)


def test_extreme_votes_are_finite_and_sum_to_one():
    """Neither the largest nor the smallest allowed distances and weights lead to infinity or NaN."""
    for feature_weight in (0.0, 1e30):
        for offset in (1e-30, 1e30):
            weights = np.array([1e-30, 1.0, 1e29])
            step = make_step(
                feature_weights=np.array([feature_weight, 0.0]), weights=weights, offset=offset, power=8, neighbours=3
            )
            assert check_step(step, 2) == 3
            np.testing.assert_allclose(evaluate_step(step, np.array([[0.0, 0.0], [1e300, -1e300]])).sum(axis=1), 1.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vectors": np.zeros((0, 2), np.float32)}, "has no vectors, or one label"),
        ({"vectors": np.zeros((3, 1), np.float32)}, r"vectors of a step 'neighbours' has the shape \(3, 1\)"),
        ({"vectors": np.full((3, 2), math.nan, np.float32)}, "vectors of a step 'neighbours' are not finite"),
        ({"vectors": np.zeros((3, 2), bool)}, "vectors of a step 'neighbours' is bool"),
        ({"vectors": np.zeros((3, 2), np.int8)}, "has missing or invalid arrays and options .*scale"),
        *(
            ({"vectors": np.zeros((3, 2), dtype), "scale": np.ones(3)}, "scale of a step 'neighbours' has")
            for dtype in ("i1", "f4")
        ),
        ({"vectors": np.zeros((3, 2), np.int8), "scale": np.ones(2), "center": np.ones(2)}, "has a center, which only"),
        ({"feature_weights": np.array([1.0, -1e-9])}, "feature_weights of a step 'neighbours' is below 0"),
        ({"feature_weights": np.array([1e308, 1e308])}, "its distances are too large"),
        ({"feature_weights": np.array([1e20, 0.0]), "max_difference": 1e20}, "its distances are too large"),
        *(({"targets": np.array([0.0, 1.0, bad])}, "are not class indices") for bad in (3.0, -1.0, 0.5)),
        ({"targets": np.array([0.0, 1.0, math.nan]), "labels": 0}, "targets of a step 'neighbours' are not finite"),
        ({"weights": np.ones((3, 1), np.float32)}, "weights of a step 'neighbours' is float32 with 2 dimensions"),
        *(({"weights": np.array([1.0, bad, 1.0])}, "are not above 0, or too large") for bad in (0.0, -1.0, 1e300)),
        *(({"labels": bad}, "labels of a step 'neighbours' is out of its range") for bad in (-1, 2**12 + 1, 2.0, True, None)),
        ({"labels": 1, "targets": np.zeros(3)}, "has no vectors, or one label"),
        *(({"neighbours": bad}, "neighbours of a step 'neighbours' is out of its range") for bad in (0, -1, 1.5, 10**400, "1")),
        *(
            ({"max_difference": bad}, "max_difference of a step 'neighbours' is out of its range")
            for bad in (0.0, -1.0, math.inf, math.nan, 1e31)
        ),
        *(({"offset": bad}, "offset of a step 'neighbours' is out of its range") for bad in (0.0, -1e-3, math.inf, 1e-300)),
        *(({"power": bad}, "power of a step 'neighbours' is out of its range") for bad in (0, 9, 2.5, True)),
    ],
)
def test_invalid_neighbours_are_refused(changes, reason):
    assert check_step(make_step(), 2) == 3
    with pytest.raises(edge.ExportError, match=reason):
        check_step(make_step(**changes), 2)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((1, 2)), np.zeros(2, int), np.array([0.0, math.nan])], ids=str)
def test_invalid_values_for_missing_numbers_are_refused(values):
    step = Step("fill", (0,), {"values": np.array([1.0, 2.0])})
    assert check_step(step, 2) == 2
    assert evaluate_step(step, np.array([[math.nan, 5.0]])).tolist() == [[1.0, 5.0]]
    with pytest.raises(edge.ExportError, match="values of a step 'fill'"):
        check_step(Step("fill", (0,), {"values": values}), 2)
    with pytest.raises(edge.ExportError, match="a step 'fill' has missing or invalid arrays"):
        check_step(Step("fill", (0,)), 2)


@pytest.mark.parametrize("name", ["vectors", "feature_weights", "targets", "weights", *OPTIONS])
def test_neighbours_with_missing_arrays_or_options_are_refused(name):
    step = make_step()
    arrays, options = ({key: value for key, value in mapping.items() if key != name} for mapping in (step.arrays, step.options))
    with pytest.raises(edge.ExportError, match=f"has missing or invalid arrays and options .*{name}"):
        check_step(Step("neighbours", (0,), arrays, options), 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"center": np.zeros(2)}, "center of a step 'kernel' has the shape"),
        ({"center": np.array([math.inf])}, "center of a step 'kernel' are not finite"),
        ({"kind": "linear"}, "a step 'kernel' has a center, which only quantised"),
        ({"vectors": np.ones((2, 1), np.float32)}, "a step 'kernel' has a center, which only quantised"),
        *(({"degree": bad}, "degree of a step 'kernel' is out of its range") for bad in (2.5, 0, 101)),
    ],
)
def test_invalid_centers_and_degrees_are_refused(changes, reason):
    arrays = {"vectors": np.array([[-127], [127]], np.int8), "scale": np.array([0.5]), "center": np.array([100.0])}
    options = {"kind": "rbf", "gamma": 1.0, "coef0": 0.0, "degree": 1}
    step = Step("kernel", (0,), arrays, options)
    np.testing.assert_allclose(evaluate_step(step, np.array([[163.5], [37.5]])), [[0.0, 1.0], [math.exp(-1.0), 0.0]], atol=1e-15)
    changed = [{name: changes.get(name, value) for name, value in mapping.items()} for mapping in (arrays, options)]
    if changes.get("vectors", arrays["vectors"]).dtype.kind == "f":
        del changed[0]["scale"]
    refused(reason, check_step, Step("kernel", (0,), *changed), 1, error=edge.ExportError)


def forest_twin(step, row):
    """Evaluate a step ``forest`` for a row with loops."""
    a, shares = {name: array.tolist() for name, array in step.arrays.items()}, [0.0] * step.options["labels"]
    for node, vote in zip(a["roots"], a["votes"], strict=True):
        while a["left"][node] >= 0:
            value, threshold = float(np.float32(row[a["feature"][node]])), a["thresholds"][node]
            node = a["left"][node] + (value != threshold if a["equal"][node] else value > threshold)
        counts = a["counts"][a["feature"][node]]
        for label, n in zip(a["targets"][a["feature"][node]], counts, strict=True):
            shares[label] += vote * n / max(sum(counts), 1)
    return [share / sum(a["votes"]) for share in shares]


@pytest.mark.parametrize("name", FORESTS)
def test_forests_equal_their_naive_twin(name):
    original = program(name)
    X = np.nan_to_num(matrix(original).astype(np.float64), posinf=1e38, neginf=-1e38)[:: 1 if OF_RELEASE else 3]
    step = original.steps[1]
    assert check_step(step, X.shape[1]) == step.options["labels"]
    np.testing.assert_allclose(evaluate_step(step, X), [forest_twin(step, row) for row in X.tolist()], rtol=1e-6, atol=1e-9)


FOREST = {
    "roots": np.array([0, 3], np.int32),
    "left": np.array([1, -1, -1, 4, -1, 6, -1, -1], np.int16),
    "feature": np.array([1, 0, 1, 0, 2, 1, 3, 4], np.int16),
    "equal": np.array([0, 0, 0, 1, 0, 0, 0, 0], np.int8),
    "thresholds": np.array([0.5, 0, 0, 2, 0, -1, 0, 0], np.float32),
    "targets": np.array([[0, 1], [1, 0], [2, 0], [0, 2], [1, 2]], np.int16),
    "counts": np.array([[3, 1], [4, 0], [1, 1], [5, 0], [0, 0]], np.int8),
    "votes": np.array([1.0, 3.0], np.float32),
}


def change_forest(name, index, value):
    """Return an array of `FOREST` with one number changed, by its name."""
    array = FOREST[name].copy()
    array[index] = value
    return {name: array}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (change_forest("left", 0, 0), "do not fit together"),  # its own child
        (change_forest("left", 5, 3), "do not fit together"),  # its parent
        (change_forest("left", 0, 3), "do not fit together"),  # in another tree
        (change_forest("left", 5, 7), "do not fit together"),  # the second child does not exist
        (change_forest("left", 5, -2), "do not fit together"),
        (change_forest("roots", 0, 1), "do not fit together"),
        (change_forest("roots", 1, 0), "do not fit together"),
        (change_forest("roots", 1, 8), "do not fit together"),
        ({"roots": np.zeros(0, np.int32), "votes": np.zeros(0)}, "do not fit together"),
        (change_forest("feature", 0, 2), "do not fit together"),
        (change_forest("feature", 0, -1), "do not fit together"),
        (change_forest("feature", 1, 5), "do not fit together"),
        (change_forest("equal", 0, 2), "do not fit together"),
        (change_forest("targets", (0, 0), 3), "do not fit together"),
        (change_forest("targets", (0, 1), -1), "do not fit together"),
        (change_forest("counts", (0, 1), -1), "do not fit together"),
        (change_forest("thresholds", 0, math.nan), "thresholds of a step 'forest' are not finite"),
        (change_forest("votes", 0, 0.0), "votes of a step 'forest' are not above 0"),
        ({"counts": FOREST["counts"][:4]}, "targets of a step 'forest' has the shape"),
    ],
)
def test_invalid_forests_are_refused(changes, reason):
    refused(reason, check_step, Step("forest", (0,), FOREST | changes, {"labels": 3}), 2, error=edge.ExportError)


def test_regression_forests_have_means_in_their_leaves():
    arrays = {name: array for name, array in FOREST.items() if name not in ("targets", "counts")}
    means = {"means": np.arange(float(len(FOREST["counts"])))}
    step = Step("forest", (0,), arrays | means, {"labels": 0})
    assert check_step(step, 2) == 1
    labelled = Step("forest", (0,), FOREST | {"targets": np.tile([0, 1], (len(means["means"]), 1))}, {"labels": 2})
    assert check_step(labelled, 2) == 2
    x = np.random.default_rng(0).normal(size=(20, 2))
    leaves = ensembles._find_leaves(FOREST, x.astype(np.float32))
    votes = FOREST["votes"].astype(float)
    np.testing.assert_allclose(evaluate_step(step, x)[:, 0], leaves @ votes / votes.sum())
    for changes, reason in (
        ({}, "means"),
        ({"means": means["means"][:1]}, "do not fit"),
        ({"means": np.full(len(means["means"]), 2e30)}, "do not fit"),
    ):
        refused(reason, check_step, Step("forest", (0,), arrays | changes, {"labels": 0}), 2, error=edge.ExportError)


def test_invalid_options_of_forests_and_logarithms_are_refused():
    for labels in (1, 2.0, 2**12 + 1, None):
        step = Step("forest", (0,), FOREST, {"labels": labels})
        refused("labels of a step 'forest'", check_step, step, 2, error=edge.ExportError)
    for least in (0.0, -1.0, math.inf):
        refused("least of a step 'log'", check_step, Step("log", (0,), {}, {"least": least}), 2, error=edge.ExportError)
    np.testing.assert_array_equal(
        evaluate_step(Step("log", (0,), {}, {"least": 0.5}), np.array([[1.0, 0.25]])), [[0.0, math.log(0.5)]]
    )


def test_constants_equal_those_of_the_learners():
    learned = learner_neighbours.ROUNDING_OFFSET, learner_neighbours.MIN_DISTANCE, stack.TIE_TOLERANCE
    assert learned == (ensembles.ROUNDING_OFFSET, ensembles.MIN_DISTANCE, ensembles.TIE_TOLERANCE)
