"""Programs as ONNX, in a graph of primitive operators: any runtime of ONNX executes them, in float32.

Where inputs are float64, so is the *front* of the graph, which comes from the columns through nothing but ``impute``, ``scale``
and ``select``: scaled numbers are near 0, where float32 has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, OnnxInputs
from streamsvm.edge.calibration import LogOddsCalibration, MarginCalibration
from streamsvm.edge.ensembles import MAX_EXPERT_LOG_ODDS, MAX_EXPERT_TARGET, MIN_DISTANCE, ROUNDING_OFFSET, TIE_TOLERANCE
from streamsvm.edge.operations import MAX_KERNEL_VALUE, MIN_KERNEL_VALUE
from streamsvm.edge.program import ExportError, Program
from streamsvm.edge.step import Step, dequantise_vectors
from streamsvm.export.onnx_graph import Graph, convert_labels, measure_depth, model_bytes
from streamsvm.export.pipelines import count_scaling_steps, find_fields_lost_in_float32
from streamsvm.files.container import ModelFileError
from streamsvm.files.model_file import write_file

_LARGEST = 1e18  # of a row, as in C
_NEAR = 100.0  # gamma times squared lengths up to which distances are found from products: float32 then has them to 1e-5
_LEAD = 1e-5  # of the answer before others that are as probable: float32 has no less
_ABOVE_HALF = 0.5 + 2.0**-23


def write_onnx(
    program: Program,
    path: str | Path,
    *,
    inputs: OnnxInputs = "auto",
) -> None:
    """Write a program as an ONNX model.

    The input is ``X``, float32 or float64 [rows, columns], in the order of the program's columns. A number that is not finite is
    missing, and a number beyond 1e18 after scaling counts as 1e18. The outputs come in the order that skl2onnx gives them:

    - Of a classifier: ``label`` [rows] (int64, bool or float64 if all labels are such, else text); ``probabilities``, float32
      [rows, labels], if the program has them; and ``decision``, float32 [rows], or [rows, labels] if there are several.
    - Of a regressor: ``variable``, float32 [rows, 1].
    - Of an anomaly detector: ``score``, float32 [rows], from 0 to 1, and ``decision``, float32 [rows].

    Decision values are the program's, but for the rounding of float32: about 1e-5 of their deviations. If two labels are as near
    as that, rounding decides between them.

    The metadata holds JSON: ``columns``, the names of the input's columns; ``labels``, as ``label`` gives them, in the order of
    the columns of ``probabilities``; and ``facts`` about the model. The fact ``order`` says whose order the columns have:
    ``"table"``, or ``"natural"`` if the model knows no order of a table.

    Parameters
    ----------
    program
        Program of a model, from `make_program`.
    path
        Path of the file.
    inputs
        ``"float"`` or ``"double"``, the type of the input, as FloatTensorType and DoubleTensorType in skl2onnx. Doubles are
        scaled as such, and all else is float32. ``"auto"``: double if a feature has a mean so large beside its deviations that
        these are lost in float32, else float.

    Raises
    ------
    ExportError
        The program has a step that has no such form, the package onnx is missing, or the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.convert import make_program
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, "large" if value > 4 else "small")
    >>> path = Path(tempfile.mkdtemp(), "model.onnx")
    >>> write_onnx(make_program(model), path)
    >>> import onnxruntime
    >>> session = onnxruntime.InferenceSession(path)
    >>> label, probabilities, decision = session.run(None, {"X": np.array([[1.0], [9.0]], np.float32)})
    >>> label, probabilities.shape
    (array(['small', 'large'], dtype=object), (2, 2))
    >>> session.get_modelmeta().custom_metadata_map["labels"]
    '["small", "large"]'
    """
    if inputs not in get_args(OnnxInputs):
        raise ExportError(f"inputs must be 'auto', 'float' or 'double', not {inputs!r}")
    graph = Graph(inputs == "double" or (inputs == "auto" and bool(find_fields_lost_in_float32(program))))
    finite = graph.op("Not", graph.op("Or", graph.op("IsNaN", "X"), graph.op("IsInf", "X")))
    values = [graph.op("Where", finite, "X", np.nan)]
    front = count_scaling_steps(program)
    for number, step in enumerate(program.steps):
        if number == front:
            values = graph.narrow(values, _used_values(program, number))
        taken = [values[place] for place in step.inputs]
        values.append(_take_columns(graph, step, taken[0] if len(taken) == 1 else graph.op("Concat", *taken, axis=1)))
    _answer_nodes(graph, program, graph.narrow(values, _used_values(program, len(program.steps))))
    facts = {"columns": json.dumps([column.name for column in program.columns]), "facts": json.dumps(program.metadata)}
    if program.answer.kind == "class":
        facts["labels"] = json.dumps(convert_labels(program.answer.labels)[1])
    try:
        write_file(Path(path), model_bytes(graph, len(program.columns), facts))
    except ModelFileError as error:
        raise ExportError(f"{path} was not written: {error}") from error


def _used_values(program: Program, first: int) -> set[int]:
    """Return the numbers of the values that are used from a step on."""
    used = {place for step in program.steps[first:] for place in step.inputs}
    return used | {program.answer.decision, program.answer.choice}


def _take_columns(graph: Graph, step: Step, x: str) -> str:
    if step.op not in _STEPS:
        raise ExportError(f"a step {step.op!r} has no form in ONNX: model.to_budget(500) makes a learner of a forest, which has")
    return _STEPS[step.op](graph, step, x)


def _to_float32(array: np.ndarray) -> np.ndarray:
    return np.clip(array, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)


def _less_location(graph: Graph, x: str, location: np.ndarray) -> str:
    """X less a location: one that float32 has not exactly in two parts."""
    if graph.real is np.float64:
        return graph.op("Sub", x, location)
    first = _to_float32(location)
    return graph.op("Sub", graph.op("Sub", x, first), _to_float32(location - first))


def _clip_to(graph: Graph, x: str, bound: float) -> str:
    return graph.op("Clip", x, -bound, bound)


def _fill_nodes(graph: Graph, step: Step, x: str) -> str:  # noqa: ARG001
    # Of larger numbers products and squares would be infinite, and their differences no number.
    return _clip_to(graph, graph.op("Where", graph.op("IsNaN", x), 0.0, x), _LARGEST)


def _scale_nodes(graph: Graph, step: Step, x: str) -> str:
    spread = step.arrays["spread"]
    factor = np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0.0)
    factor = np.minimum(factor, np.finfo(graph.real).max)
    scaled = graph.op("Mul", _less_location(graph, x, step.arrays["location"]), factor)
    if step.options["bound"] is None:
        return scaled
    bounded = _clip_to(graph, scaled, step.options["bound"])
    return graph.op("Where", graph.op("IsNaN", x), x, bounded)  # runtimes differ in what Clip makes of NaN


def _bend_nodes(graph: Graph, step: Step, x: str) -> str:
    knot = step.options["knot"]
    functions = [x, graph.op("Sub", graph.op("Abs", x), knot)]
    if step.options["functions"] == 4:
        functions.append(graph.op("Max", graph.op("Sub", x, knot), 0.0))
        functions.append(graph.op("Max", graph.op("Sub", graph.op("Neg", x), knot), 0.0))
    return graph.op("Flatten", graph.op("Concat", *(graph.op("Unsqueeze", each, np.array([2])) for each in functions), axis=2))


def _kernel_nodes(graph: Graph, step: Step, x: str) -> str:
    vectors, kind, gamma = dequantise_vectors(step), step.options["kind"], step.options["gamma"]
    if kind == "rbf":
        values = graph.op("Exp", graph.op("Mul", _distance_nodes(graph, vectors, gamma, x), -gamma))
        return graph.op("ThresholdedRelu", values, alpha=MIN_KERNEL_VALUE)
    products = graph.op("MatMul", x, _to_float32(vectors.T))
    if kind == "linear":
        return products
    products = graph.op("Add", graph.op("Mul", products, gamma), step.options["coef0"])
    if kind == "sigmoid":
        return graph.op("Tanh", products)
    return _clip_to(graph, graph.op("Pow", products, float(step.options["degree"])), MAX_KERNEL_VALUE)


def _distance_nodes(graph: Graph, vectors: np.ndarray, gamma: float, x: str) -> str:
    middle = vectors.mean(axis=0) if len(vectors) else np.zeros(vectors.shape[1])
    x, vectors = _less_location(graph, x, middle), vectors - middle
    last, squares = graph.constant(np.array([1])), np.square(vectors).sum(axis=1)
    if gamma * squares.max(initial=0.0) > _NEAR:
        differences = graph.op("Sub", graph.op("Unsqueeze", x, last), _to_float32(vectors))
        return graph.op("ReduceSumSquare", differences, np.array([2]), keepdims=0)
    products = graph.op("MatMul", x, _to_float32(-2.0 * vectors.T))
    total = graph.op("Add", graph.op("ReduceSumSquare", x, last, keepdims=1), _to_float32(squares))
    return graph.op("Max", graph.op("Add", total, products), 0.0)


def _neighbour_nodes(graph: Graph, step: Step, x: str) -> str:
    vectors, labels, flat = dequantise_vectors(step), step.options["labels"], graph.constant(np.array([1]))
    ways = graph.op("Abs", graph.op("Sub", graph.op("Unsqueeze", x, np.array([2])), _to_float32(vectors.T)))
    ways = graph.op("Min", ways, step.options["max_difference"])  # [rows, features, vectors]
    distances = graph.op("Squeeze", graph.op("MatMul", _to_float32(step.arrays["feature_weights"][None]), ways), flat)
    places = graph.least(graph.op("Add", distances, float(ROUNDING_OFFSET)), min(step.options["neighbours"], len(vectors)))
    near = graph.op("Max", graph.op("GatherElements", distances, places, axis=1), MIN_DISTANCE)
    away = graph.op("Add", near, step.options["offset"])
    ratios = graph.op("Div", graph.op("ReduceMin", away, flat, keepdims=1), away)
    votes = graph.op("Pow", ratios, float(step.options["power"]))
    votes = graph.op("Mul", votes, graph.op("Gather", _to_float32(step.arrays["weights"]), places))
    shares = graph.op("Div", votes, graph.op("ReduceSum", votes, flat, keepdims=1))
    if not labels:
        targets = graph.op("Gather", _to_float32(step.arrays["targets"]), places)
        return graph.op("ReduceSum", graph.op("Mul", shares, targets), flat, keepdims=1)
    numbers = graph.op("Gather", step.arrays["targets"].astype(np.int64), places)
    chosen = _one_hot(graph, graph.op("Unsqueeze", numbers, flat), labels)  # [rows, labels, neighbours]
    return graph.op("ReduceSum", graph.op("Mul", chosen, graph.op("Unsqueeze", shares, flat)), np.array([2]), keepdims=0)


def _forest_nodes(graph: Graph, step: Step, x: str) -> str:
    a, labels, flat = step.arrays, step.options["labels"], graph.constant(np.array([1]))
    inner, nodes = a["left"] >= 0, np.arange(len(a["left"]))
    # A leaf has itself for a child, and all numbers pass: who is there stays, and all trees take as many steps.
    left, feature = np.where(inner, a["left"], nodes).astype(np.int64), np.where(inner, a["feature"], 0).astype(np.int64)
    thresholds = _to_float32(np.where(inner, a["thresholds"], np.inf))
    rows = graph.op("Gather", graph.op("Shape", x), np.array([0]))
    place = graph.op("Expand", a["roots"].astype(np.int64)[None], graph.op("Concat", rows, np.array([len(a["roots"])]), axis=0))
    for _ in range(measure_depth(a["left"])):
        value = graph.op("GatherElements", x, graph.op("Gather", feature, place), axis=1)
        threshold = graph.op("Gather", thresholds, place)
        passes = graph.op("LessOrEqual", value, threshold)
        if a["equal"].any():
            smaller = graph.op("Greater", 0.5, graph.op("Gather", _to_float32(a["equal"]), place))
            passes = graph.op("And", passes, graph.op("Or", graph.op("Equal", value, threshold), smaller))
        place = graph.op("Add", graph.op("Gather", left, place), graph.op("Where", passes, np.array(0), np.array(1)))
    place, votes = graph.op("Gather", a["feature"].astype(np.int64), place), a["votes"] / a["votes"].sum()  # of leaves
    if not labels:
        return graph.op("MatMul", graph.op("Gather", _to_float32(a["means"]), place), _to_float32(votes[:, None]))
    counts = a["counts"] / np.maximum(a["counts"].sum(axis=1, keepdims=True), 1)
    sums = []
    for j in range(2):
        shares = graph.op("Mul", graph.op("Gather", _to_float32(counts[:, j]), place), _to_float32(votes[None]))
        targets = graph.op("Gather", a["targets"][:, j].astype(np.int64), place)
        chosen = _one_hot(graph, graph.op("Unsqueeze", targets, flat), labels)  # [rows, labels, trees]
        voted = graph.op("Mul", chosen, graph.op("Unsqueeze", shares, flat))
        sums.append(graph.op("ReduceSum", voted, np.array([2]), keepdims=0))
    return graph.op("Add", *sums)


def _fourier_nodes(graph: Graph, step: Step, x: str) -> str:
    angles = graph.op("MatMul", x, _to_float32(step.options["factor"] * dequantise_vectors(step).T))
    return graph.op("Concat", graph.op("Cos", angles), graph.op("Sin", angles), axis=1)


def _linear_nodes(graph: Graph, step: Step, x: str) -> str:
    return graph.op("Add", graph.op("MatMul", x, _to_float32(step.arrays["weights"].T)), _to_float32(step.arrays["biases"]))


def _of_pairs(classes: int) -> np.ndarray:
    """The matrix that sums the numbers of pairs for their second class and against their first."""
    first, second = np.triu_indices(classes, 1)
    matrix = np.zeros((len(first), classes), np.float32)
    matrix[np.arange(len(first)), first], matrix[np.arange(len(first)), second] = -1.0, 1.0
    return matrix


def _counting_nodes(graph: Graph, step: Step, x: str, compare: str) -> str:
    classes = step.options["classes"]
    sides = graph.op("Where", graph.op(compare, x, 0.0), 0.5, -0.5)
    return graph.op("Add", graph.op("MatMul", sides, _of_pairs(classes)), 0.5 * (classes - 1))


def _pair_scores(graph: Graph, step: Step, x: str) -> str:
    sums = graph.op("MatMul", x, _of_pairs(step.options["classes"]))
    size = graph.op("Add", graph.op("Mul", graph.op("Abs", sums), 3.0), 3.0)
    return graph.op("Add", _counting_nodes(graph, step, x, "Greater"), graph.op("Div", sums, size))


# Ensembles ---------------------------------------------------------------------------------------------------------------------


def _expert_nodes(graph: Graph, step: Step, x: str) -> str:
    votes, outputs = step.arrays["votes"], step.options["outputs"]
    votes = votes / votes.sum()
    if step.options["task"] == "regression":
        return _number_nodes(graph, step, x, votes)
    said = graph.op("Transpose", graph.op("Reshape", x, np.array([-1, len(votes), outputs])), perm=[0, 2, 1])
    if outputs == 1:
        sides = graph.op("Where", graph.op("Greater", said, TIE_TOLERANCE), 1.0, -1.0)
    else:
        sides = _one_hot(graph, _first_alike(graph, said, TIE_TOLERANCE), outputs)
    voted = graph.op("MatMul", sides, _to_float32(votes[:, None]))
    bounded = _clip_to(graph, graph.op("Concat", voted, said, axis=2), MAX_EXPERT_LOG_ODDS)
    weights, shares = step.arrays["weights"], step.arrays["shares"]
    mean = shares @ weights / shares.sum()  # stacks are linear
    stacked = graph.op("MatMul", bounded, _to_float32(mean[1:, None]))
    if outputs == 1:
        stacked = graph.op("Add", stacked, mean[0])
    best = graph.op("Gather", said, np.array([step.options["best"]]), axis=2)
    sources = [graph.op("Squeeze", each, np.array([2])) for each in (stacked, voted, best)]
    followed, alike = sources[step.options["follows"]], TIE_TOLERANCE if step.options["follows"] else 0.0
    if outputs == 1:
        return _log_odds(graph, step, sources[0], graph.op("Greater", followed, alike))
    chosen = _one_hot(graph, _first_alike(graph, followed, alike), outputs)
    ahead = graph.op("Add", graph.op("ReduceMax", sources[0], np.array([1]), keepdims=1), _LEAD)
    return graph.op("Where", graph.op("Greater", chosen, 0.5), ahead, sources[0])


def _first_alike(graph: Graph, values: str, alike: float) -> str:
    """The first place along axis 1 whose number is the largest, or less by at most ``alike``."""
    bound = graph.op("Sub", graph.op("ReduceMax", values, np.array([1]), keepdims=1), alike)
    return graph.op("ArgMax", graph.op("Where", graph.op("GreaterOrEqual", values, bound), 1.0, 0.0), axis=1, keepdims=1)


def _one_hot(graph: Graph, numbers: str, outputs: int) -> str:
    """1 where a number [rows, 1, ...] is that of the output, along axis 1, else 0."""
    shape = graph.op("Shape", numbers)
    ranks = graph.op("Reshape", np.arange(outputs), np.array([1, outputs]))
    # [1, outputs] stands beside [rows, 1], and [1, outputs, 1] beside [rows, 1, experts].
    dimensions = graph.op("Sub", graph.op("Size", shape), np.array(2))
    ones = graph.op("Expand", np.array([1]), graph.op("Reshape", dimensions, np.array([1])))
    ranks = graph.op("Reshape", ranks, graph.op("Concat", np.array([1, outputs]), ones, axis=0))
    return graph.op("Where", graph.op("Equal", numbers, ranks), 1.0, 0.0)


def _log_odds(graph: Graph, step: Step, stacked: str, positive: str) -> str:
    prior, share = step.options["prior"], step.options["share"]
    agree = graph.op("Equal", positive, graph.op("Greater", stacked, 0.0))
    odds = _clip_to(graph, stacked, 30.0)
    sides = []
    for f, of in ((odds, share), (graph.op("Neg", odds), 1.0 - share)):  # each by itself: 1 - p would lose a small one
        p = graph.op("Where", agree, graph.op("Sigmoid", f), 0.5)
        sides.append(graph.op("Add", graph.op("Mul", p, 1.0 - prior), prior * of))
    f = graph.op("Log", graph.op("Div", *sides))
    least = graph.constant(float(np.log(_ABOVE_HALF / (1.0 - _ABOVE_HALF))))
    return graph.op("Where", positive, graph.op("Max", f, least), graph.op("Min", f, 0.0))


def _number_nodes(graph: Graph, step: Step, x: str, votes: np.ndarray) -> str:
    corrects, n = step.arrays["corrects"], len(votes)
    if (corrects >= 0).any():
        # Those that are corrected come first, and correct nothing themselves: one product adds what is bounded.
        add = np.zeros((n, n), np.float32)
        add[corrects[corrects >= 0], np.flatnonzero(corrects >= 0)] = 1.0
        if (corrects[corrects[corrects >= 0]] >= 0).any():
            raise ExportError("experts that correct experts that correct others have no form in ONNX")
        x = graph.op("Add", x, graph.op("MatMul", _clip_to(graph, x, MAX_EXPERT_TARGET), add))
    x = _clip_to(graph, x, MAX_EXPERT_TARGET)
    voted = graph.op("MatMul", x, _to_float32(votes[:, None]))
    follows = step.options["follows"]
    if follows == 1:
        return voted
    if follows == 2:
        return graph.op("Gather", x, np.array([step.options["best"]]), axis=1)
    weights, shares = step.arrays["weights"], step.arrays["shares"]
    stacked = graph.op("MatMul", graph.op("Concat", voted, x, axis=1), _to_float32(weights[:, 1:].T))
    stacked = _clip_to(graph, graph.op("Add", stacked, _to_float32(weights[:, 0])), MAX_EXPERT_TARGET)
    return graph.op("MatMul", stacked, _to_float32(shares[:, None] / shares.sum()))


_STEPS: Mapping[str, Callable[[Graph, Step, str], str]] = {
    "impute": _fill_nodes,
    "scale": _scale_nodes,
    "select": lambda graph, step, x: graph.op("Gather", x, step.arrays["columns"].astype(np.int64), axis=1),
    "clip": lambda graph, step, x: _clip_to(graph, x, step.options["bound"]),
    "hinges": _bend_nodes,
    "kernel": _kernel_nodes,
    "fourier": _fourier_nodes,
    "neighbours": _neighbour_nodes,
    "forest": _forest_nodes,
    "log": lambda graph, step, x: graph.op("Log", graph.op("Max", x, step.options["least"])),
    "linear": _linear_nodes,
    "concat": lambda _graph, _step, x: x,
    "votes": lambda graph, step, x: _counting_nodes(graph, step, x, "GreaterOrEqual"),
    "pair_scores": _pair_scores,
    "experts": _expert_nodes,
}


# Answers ------------------------------------------------------------------------------------------------------------------


def _answer_nodes(graph: Graph, program: Program, values: list[str]) -> None:
    answer = program.answer
    decision, choice = values[answer.decision], values[answer.choice]
    several = len(answer.labels) > 2
    if answer.kind == "number":
        graph.output("variable", decision, 1)
        return
    values_of = decision if several else graph.op("Squeeze", decision, np.array([1]))
    if answer.kind == "class":
        _class_nodes(graph, program, decision, choice)
    else:
        graph.output("score", _score_nodes(graph, values_of, answer.center, answer.size))
    graph.output("decision", values_of, program.widths[answer.decision] if several else None)


def _class_nodes(graph: Graph, program: Program, decision: str, choice: str) -> None:
    answer, several = program.answer, len(program.answer.labels) > 2
    p = None if answer.calibration is None else _probability_nodes(graph, answer.calibration, decision, several)
    if answer.costs is not None:
        number = graph.op("ArgMax", graph.op("Mul", p, _to_float32(np.array(answer.costs))), axis=1, keepdims=0)
    elif several:
        number = graph.op("ArgMax", choice, axis=1, keepdims=0)
    else:
        compare = "GreaterOrEqual" if answer.at_zero else "Greater"
        number = graph.op("Cast", graph.op(compare, graph.op("Squeeze", choice, np.array([1])), 0.0), to=7)
    if len(answer.labels) == 1:
        number = graph.op("Mul", number, np.array(0))
    graph.label(answer.labels, number)
    if p is None:
        if len(answer.labels) > 1:
            return
        p = graph.op("Add", graph.op("Mul", decision, 0.0), 1.0)
    graph.output("probabilities", p, len(answer.labels))


def _score_nodes(graph: Graph, f: str, center: float, size: float) -> str:
    if size == 0.0:
        return graph.op("Mul", f, 0.0)
    z = graph.op("Div", graph.op("Sub", f, center), size)
    z = _clip_to(graph, z, 1e15)  # whose square float32 has
    size_of = graph.op("Sqrt", graph.op("Add", graph.op("Mul", z, z), 2.0))
    return graph.op("Sub", 0.5, graph.op("Mul", graph.op("Div", z, size_of), 0.5))


def _probability_nodes(graph: Graph, odds: MarginCalibration | LogOddsCalibration, f: str, several: bool) -> str:
    margin, prior = isinstance(odds, MarginCalibration), odds.prior
    f = graph.op("Mul", f, odds.factor if isinstance(odds, MarginCalibration) else 1.0)
    if several:
        p = graph.op("Softmax", f, axis=1)
        if isinstance(odds, MarginCalibration):
            count = graph.op("Cast", graph.op("Gather", graph.op("Shape", f), np.array(1)), to=1)
            return graph.op("Add", graph.op("Mul", p, 1.0 - prior), graph.op("Div", prior, count))
        p = graph.op("Add", graph.op("Mul", p, 1.0 - prior), _to_float32(prior * np.array(odds.shares)))
        return _with_a_lead(graph, p, _one_hot(graph, graph.op("ArgMax", f, axis=1, keepdims=1), len(odds.shares)))
    f = _clip_to(graph, f, 30.0)
    p = graph.op("Sigmoid", graph.op("Concat", graph.op("Neg", f), f, axis=1))
    if not margin:
        return p
    return graph.op("Add", graph.op("Mul", p, 1.0 - prior), 0.5 * prior)


def _with_a_lead(graph: Graph, p: str, chosen: str) -> str:
    """Probabilities with that of the label that is chosen, 1 in ``chosen``, above the others: frequencies may have lifted one."""
    others = graph.op("ReduceMax", graph.op("Sub", p, chosen), np.array([1]), keepdims=1)
    own = graph.op("ReduceSum", graph.op("Mul", p, chosen), np.array([1]), keepdims=1)
    missing = graph.op("Max", graph.op("Sub", graph.op("Mul", others, 1.0 + _LEAD), own), 0.0)
    return graph.op("Div", graph.op("Add", p, graph.op("Mul", chosen, missing)), graph.op("Add", missing, 1.0))
