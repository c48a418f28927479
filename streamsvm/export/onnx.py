"""Exports programs as ONNX: a graph of primitive operators, which every ONNX runtime executes, in float32.

If the input is float64, so are the leading ``impute``, ``scale`` and ``select`` steps of the graph. Scaled numbers are near 0,
where float32 is precise enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from streamsvm.core.checks import OnnxInputs
from streamsvm.edge.ensembles import MAX_EXPERT_LOG_ODDS, MAX_EXPERT_TARGET, MIN_DISTANCE, ROUNDING_OFFSET, TIE_TOLERANCE
from streamsvm.edge.operations import MAX_KERNEL_VALUE, MIN_KERNEL_VALUE
from streamsvm.edge.program import ExportError, Program
from streamsvm.edge.step import Step, dequantise_vectors
from streamsvm.export.onnx_answers import WINNER_LEAD, add_answer
from streamsvm.export.onnx_graph import Graph, convert_labels, measure_depth, serialise_graph, to_float32
from streamsvm.export.pipelines import check_no_texts, count_scaling_steps, find_fields_lost_in_float32
from streamsvm.files.container import ModelFileError
from streamsvm.files.model_file import write_file

_MAX_INPUT = 1e18  # features are clipped to this, as in C
#: gamma times the largest squared length of a vector up to which squared distances are computed from products: up to here,
#: float32 has them to 1e-5.
_MAX_SQUARES_FOR_PRODUCTS = 100.0
_MAX_ROUNDING = 1e-4  # standard deviations: if float32 rounds a feature by more, rows are float64
_ABOVE_HALF = 0.5 + 2.0**-23


def write_onnx(program: Program, path: str | Path, *, inputs: OnnxInputs = "auto") -> None:
    """Export a program (a model as a list of operations, from `make_program`) to an ONNX file. The model takes rows as ``X``
    [rows, columns], of the type ``inputs`` (float32 or float64), and returns labels, probabilities and decision values, or
    numbers, or anomaly scores.

    The input is ``X``, float32 or float64 [rows, columns], in the order of the program's columns. A number that is not finite is
    missing, and a number beyond 1e18 after scaling counts as 1e18. The outputs come in the order that skl2onnx gives them:

    - For a classifier: ``label`` [rows] (int64, bool or float64 if all labels have that type, else text); ``probabilities``,
      float32 [rows, labels], if the program has them; and ``decision``, float32 [rows], or [rows, labels] if there are several.
    - For a regressor: ``variable``, float32 [rows, 1].
    - For an anomaly detector: ``score``, float32 [rows], from 0 to 1, and ``decision``, float32 [rows].

    Decision values are those of the program, up to the rounding of float32: about 1e-5 of their standard deviation. If the values
    of two labels are closer than that, rounding decides between them.

    The metadata contains JSON: ``columns``, the names of the input columns; ``labels``, in the order of the columns of
    ``probabilities`` and with the type of ``label``; and ``facts``, the metadata of the model. Its entry ``order`` is the origin
    of the order of the columns: ``"table"``, or ``"natural"`` if the model was not learned from a table.

    Parameters
    ----------
    program
        Program of a model, from `make_program`.
    path
        Path of the file.
    inputs
        ``"float"`` or ``"double"``, the type of the input, as FloatTensorType and DoubleTensorType in skl2onnx. Doubles are
        scaled in double precision; the rest is computed in float32. ``"auto"``: double if the mean of a feature is so large
        that float32 rounds it by more than a ten-thousandth of its standard deviation (as most dates), else float.

    Raises
    ------
    ExportError
        A step of the program is not supported in ONNX, the package onnx is missing, or the file cannot be written.

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
    check_no_texts(program, "onnx")
    has_cycles = any(step.op == "cycles" for step in program.steps)  # float32 has a date to a minute
    needs_double = has_cycles or bool(find_fields_lost_in_float32(program, _MAX_ROUNDING))
    graph = Graph(inputs == "double" or (inputs == "auto" and needs_double))
    is_finite = graph.op("Not", graph.op("Or", graph.op("IsNaN", "X"), graph.op("IsInf", "X")))
    values = [graph.op("Where", is_finite, "X", np.nan)]
    n_scaling_steps = count_scaling_steps(program)
    for number, step in enumerate(program.steps):
        if number == n_scaling_steps:
            values = graph.switch_to_float32(values, _find_used_values(program, number))
        inputs_of_step = [values[index] for index in step.inputs]
        x = inputs_of_step[0] if len(inputs_of_step) == 1 else graph.op("Concat", *inputs_of_step, axis=1)
        values.append(_add_step(graph, step, x))
    add_answer(graph, program, graph.switch_to_float32(values, _find_used_values(program, len(program.steps))))
    metadata = {"columns": json.dumps([column.name for column in program.columns]), "facts": json.dumps(program.metadata)}
    if program.answer.kind == "class":
        metadata["labels"] = json.dumps(convert_labels(program.answer.labels)[1])
    try:
        write_file(Path(path), serialise_graph(graph, len(program.columns), metadata))
    except ModelFileError as error:
        raise ExportError(f"{path} was not written: {error}") from error


def _find_used_values(program: Program, first: int) -> set[int]:
    """Return the indices of the values (outputs of operations of an exported model) that are still read by the steps from index
    ``first`` on, or by the final prediction.
    """
    used = {index for step in program.steps[first:] for index in step.inputs}
    return used | {program.answer.decision, program.answer.choice}


def _add_step(graph: Graph, step: Step, x: str) -> str:
    """Append the ONNX nodes that compute one step (an operation of an exported model) to the graph; ``x`` is the name of its
    input. Returns the name of its output. Raises ExportError if ONNX does not support the operation.
    """
    if step.op not in _STEP_FUNCTIONS:
        raise ExportError(f"a step {step.op!r} is not supported in ONNX: model.to_budget(500) makes a learner, which is")
    return _STEP_FUNCTIONS[step.op](graph, step, x)


def _subtract_location(graph: Graph, x: str, location: np.ndarray) -> str:
    """Append ONNX nodes that compute x - location for each column to the graph. ``x`` is the name of a value [rows, columns].
    Returns the name of the result.

    In float32, the location is split into two terms, so that its rounding error is not lost.
    """
    if graph.real is np.float64:
        return graph.op("Sub", x, location)
    first = to_float32(location)
    return graph.op("Sub", graph.op("Sub", x, first), to_float32(location - first))


def _add_impute(graph: Graph, step: Step, x: str) -> str:  # noqa: ARG001
    """Append ONNX nodes to the graph that replace missing numbers (NaN) in the value named ``x`` by 0, and clip the others to +-
    1e18. ``step`` is not used. Returns the name of the result.
    """
    # Products and squares of larger numbers would be infinite, and differences of these NaN.
    return graph.clip(graph.op("Where", graph.op("IsNaN", x), 0.0, x), _MAX_INPUT)


def _add_scale(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that compute (x - location) / spread for each column, with the arrays of ``step`` (an
    operation of an exported model), and clip it to the step's bound, if it has one. NaN stays NaN. ``x`` is the name of the
    input; returns the name of the result.
    """
    spread = step.arrays["spread"]
    factor = np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0.0)
    factor = np.minimum(factor, np.finfo(graph.real).max)
    scaled = graph.op("Mul", _subtract_location(graph, x, step.arrays["location"]), factor)
    if step.options["bound"] is None:
        return scaled
    bounded = graph.clip(scaled, step.options["bound"])
    return graph.op("Where", graph.op("IsNaN", x), x, bounded)  # runtimes differ in whether Clip keeps NaN


def _add_cycles(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that replace times by the sine of their phase, with the periods and offsets of ``step`` (an
    operation of an exported model). ``x`` is the name of the input; returns the name of the result.
    """
    periods = step.arrays["periods"]
    divisors = np.where(periods > 0.0, periods, 1.0)
    turns = graph.op("Add", graph.op("Div", graph.op("Mod", x, divisors, fmod=1), divisors), step.arrays["offsets"])
    is_time = graph.op("Greater", periods, 0.0)
    return graph.op("Where", is_time, graph.op("Sin", graph.op("Mul", turns, 2.0 * np.pi)), x)


def _add_hinges(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that compute 2 or 4 piecewise linear functions of each number, such as |x| - knot, with the
    options of ``step``, an operation of an exported model. ``x`` is the name of the input [rows, m]; returns the name of the
    result [rows, functions * m].
    """
    knot = step.options["knot"]
    functions = [x, graph.op("Sub", graph.op("Abs", x), knot)]
    if step.options["functions"] == 4:
        functions.append(graph.op("Max", graph.op("Sub", x, knot), 0.0))
        functions.append(graph.op("Max", graph.op("Sub", graph.op("Neg", x), knot), 0.0))
    columns = [graph.op("Unsqueeze", function, np.array([2])) for function in functions]
    return graph.op("Flatten", graph.op("Concat", *columns, axis=2))


def _add_kernel(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that compute kernel values between rows and the vectors of ``step`` (an operation of an
    exported model). ``x`` is the name of the rows; returns the name of the result [rows, vectors].
    """
    vectors, kind, gamma = dequantise_vectors(step), step.options["kind"], step.options["gamma"]
    if kind == "rbf":
        values = graph.op("Exp", graph.op("Mul", _add_squared_distances(graph, vectors, gamma, x), -gamma))
        return graph.op("ThresholdedRelu", values, alpha=MIN_KERNEL_VALUE)
    products = graph.op("MatMul", x, to_float32(vectors.T))
    if kind == "linear":
        return products
    products = graph.op("Add", graph.op("Mul", products, gamma), step.options["coef0"])
    if kind == "sigmoid":
        return graph.op("Tanh", products)
    return graph.clip(graph.op("Pow", products, float(step.options["degree"])), MAX_KERNEL_VALUE)


def _add_squared_distances(graph: Graph, vectors: np.ndarray, gamma: float, x: str) -> str:
    """Append ONNX nodes to the graph that compute the squared distances between rows and ``vectors`` [m, features]. ``x`` is the
    name of the rows, and ``gamma`` the factor of the distances in the kernel. Returns the name of the result [rows, m].

    They are computed from products if float32 is precise enough for that, else from differences.
    """
    mean = vectors.mean(axis=0) if len(vectors) else np.zeros(vectors.shape[1])
    x, vectors = _subtract_location(graph, x, mean), vectors - mean
    last, squares = graph.add_constant(np.array([1])), np.square(vectors).sum(axis=1)
    if gamma * squares.max(initial=0.0) > _MAX_SQUARES_FOR_PRODUCTS:
        differences = graph.op("Sub", graph.op("Unsqueeze", x, last), to_float32(vectors))
        return graph.op("ReduceSumSquare", differences, np.array([2]), keepdims=0)
    products = graph.op("MatMul", x, to_float32(-2.0 * vectors.T))
    total = graph.op("Add", graph.op("ReduceSumSquare", x, last, keepdims=1), to_float32(squares))
    return graph.op("Max", graph.op("Add", total, products), 0.0)


def _add_neighbours(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that predict rows by the weighted k nearest neighbours stored in ``step``, an operation of
    an exported model. ``x`` is the name of the rows. Returns the name of the result: each label's share of the votes, [rows,
    labels], or the mean target, [rows, 1].
    """
    vectors, labels, axis_1 = dequantise_vectors(step), step.options["labels"], graph.add_constant(np.array([1]))
    differences = graph.op("Abs", graph.op("Sub", graph.op("Unsqueeze", x, np.array([2])), to_float32(vectors.T)))
    differences = graph.op("Min", differences, step.options["max_difference"])  # [rows, features, vectors]
    feature_weights = to_float32(step.arrays["feature_weights"][None])
    distances = graph.op("Squeeze", graph.op("MatMul", feature_weights, differences), axis_1)
    rounded = graph.op("Add", distances, float(ROUNDING_OFFSET))
    nearest = graph.find_smallest(rounded, min(step.options["neighbours"], len(vectors)))
    nearest_distances = graph.op("Max", graph.op("GatherElements", distances, nearest, axis=1), MIN_DISTANCE)
    divisors = graph.op("Add", nearest_distances, step.options["offset"])
    ratios = graph.op("Div", graph.op("ReduceMin", divisors, axis_1, keepdims=1), divisors)
    votes = graph.op("Pow", ratios, float(step.options["power"]))
    votes = graph.op("Mul", votes, graph.op("Gather", to_float32(step.arrays["weights"]), nearest))
    shares = graph.op("Div", votes, graph.op("ReduceSum", votes, axis_1, keepdims=1))
    if not labels:
        targets = graph.op("Gather", to_float32(step.arrays["targets"]), nearest)
        return graph.op("ReduceSum", graph.op("Mul", shares, targets), axis_1, keepdims=1)
    targets = graph.op("Gather", step.arrays["targets"].astype(np.int64), nearest)
    is_label = graph.add_one_hot(graph.op("Unsqueeze", targets, axis_1), labels)  # [rows, labels, neighbours]
    return graph.op("ReduceSum", graph.op("Mul", is_label, graph.op("Unsqueeze", shares, axis_1)), np.array([2]), keepdims=0)


def _add_forest(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that predict rows by the decision trees stored in ``step``, an operation of an exported
    model. ``x`` is the name of the rows. Returns the name of the result: each label's share of the votes, [rows, labels], or the
    mean of the reached leaves, [rows, 1].
    """
    arrays, labels, axis_1 = step.arrays, step.options["labels"], graph.add_constant(np.array([1]))
    is_inner, nodes = arrays["left"] >= 0, np.arange(len(arrays["left"]))
    # ONNX has no loop that ends early. So a leaf is its own child, and all rows take as many steps as the deepest tree has.
    left = np.where(is_inner, arrays["left"], nodes).astype(np.int64)
    feature = np.where(is_inner, arrays["feature"], 0).astype(np.int64)
    thresholds = to_float32(np.where(is_inner, arrays["thresholds"], np.inf))
    n_rows = graph.op("Gather", graph.op("Shape", x), np.array([0]))
    shape = graph.op("Concat", n_rows, np.array([len(arrays["roots"])]), axis=0)
    node = graph.op("Expand", arrays["roots"].astype(np.int64)[None], shape)
    for _ in range(measure_depth(arrays["left"])):
        value = graph.op("GatherElements", x, graph.op("Gather", feature, node), axis=1)
        threshold = graph.op("Gather", thresholds, node)
        passes = graph.op("LessOrEqual", value, threshold)
        if arrays["equal"].any():
            is_less_test = graph.op("Greater", 0.5, graph.op("Gather", to_float32(arrays["equal"]), node))
            passes = graph.op("And", passes, graph.op("Or", graph.op("Equal", value, threshold), is_less_test))
        node = graph.op("Add", graph.op("Gather", left, node), graph.op("Where", passes, np.array(0), np.array(1)))
    leaf, votes = graph.op("Gather", arrays["feature"].astype(np.int64), node), arrays["votes"] / arrays["votes"].sum()
    if not labels:
        return graph.op("MatMul", graph.op("Gather", to_float32(arrays["means"]), leaf), to_float32(votes[:, None]))
    counts = arrays["counts"] / np.maximum(arrays["counts"].sum(axis=1, keepdims=True), 1)
    sums = []
    for j in range(2):  # the two labels of a leaf
        shares = graph.op("Mul", graph.op("Gather", to_float32(counts[:, j]), leaf), to_float32(votes[None]))
        targets = graph.op("Gather", arrays["targets"][:, j].astype(np.int64), leaf)
        is_label = graph.add_one_hot(graph.op("Unsqueeze", targets, axis_1), labels)  # [rows, labels, trees]
        label_shares = graph.op("Mul", is_label, graph.op("Unsqueeze", shares, axis_1))
        sums.append(graph.op("ReduceSum", label_shares, np.array([2]), keepdims=0))
    return graph.op("Add", *sums)


def _add_fourier(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that compute random Fourier features, cosines and sines of products with the m vectors of
    ``step``, an operation of an exported model. ``x`` is the name of the rows; returns the name of the result [rows, 2 m].
    """
    angles = graph.op("MatMul", x, to_float32(step.options["factor"] * dequantise_vectors(step).T))
    return graph.op("Concat", graph.op("Cos", angles), graph.op("Sin", angles), axis=1)


def _add_linear(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that compute weights times x plus biases, with the arrays of ``step`` (an operation of an
    exported model). ``x`` is the name of the rows; returns the name of the result [rows, outputs].
    """
    return graph.op("Add", graph.op("MatMul", x, to_float32(step.arrays["weights"].T)), to_float32(step.arrays["biases"]))


def _make_pair_matrix(classes: int) -> np.ndarray:
    """Return a float32 matrix [pairs, classes] that sums up one-vs-one decision values by class when they are multiplied by it:
    -1 for the first class of a pair, and 1 for the second.
    """
    first, second = np.triu_indices(classes, 1)
    matrix = np.zeros((len(first), classes), np.float32)
    matrix[np.arange(len(first)), first], matrix[np.arange(len(first)), second] = -1.0, 1.0
    return matrix


def _add_pair_votes(graph: Graph, step: Step, x: str, comparison: str) -> str:
    """Append ONNX nodes to the graph that count the votes of a one-vs-one classifier: a pair of classes votes for the second one
    if its decision value passes the ``comparison`` (an ONNX operator) with 0. ``x`` is the name of the decision values [rows,
    pairs]. Returns the name of the result [rows, classes].
    """
    classes = step.options["classes"]
    votes = graph.op("Where", graph.op(comparison, x, 0.0), 0.5, -0.5)
    return graph.op("Add", graph.op("MatMul", votes, _make_pair_matrix(classes)), 0.5 * (classes - 1))


def _add_pair_scores(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that score the classes of a one-vs-one classifier: the number of votes, plus less than half
    a vote by the sum of decision values, to break ties. ``x`` is the name of the decision values [rows, pairs]. Returns the name
    of the result [rows, classes].
    """
    sums = graph.op("MatMul", x, _make_pair_matrix(step.options["classes"]))
    divisors = graph.op("Add", graph.op("Mul", graph.op("Abs", sums), 3.0), 3.0)
    return graph.op("Add", _add_pair_votes(graph, step, x, "Greater"), graph.op("Div", sums, divisors))


# Ensembles ---------------------------------------------------------------------------------------------------------------------


def _add_experts(graph: Graph, step: Step, x: str) -> str:
    """Append ONNX nodes to the graph that combine the predictions of an ensemble's members, the value named ``x``, by voting and
    stacking. ``step``, an exported operation, has the weights. Returns the name of the result: log odds of the labels, or a
    predicted number.
    """
    votes, outputs = step.arrays["votes"], step.options["outputs"]
    votes = votes / votes.sum()
    if step.options["task"] == "regression":
        return _add_regression_experts(graph, step, x, votes)
    predictions = graph.op("Transpose", graph.op("Reshape", x, np.array([-1, len(votes), outputs])), perm=[0, 2, 1])
    if outputs == 1:
        winners = graph.op("Where", graph.op("Greater", predictions, TIE_TOLERANCE), 1.0, -1.0)
    else:
        winners = graph.add_one_hot(_find_first_largest(graph, predictions, TIE_TOLERANCE), outputs)
    voted = graph.op("MatMul", winners, to_float32(votes[:, None]))
    clipped = graph.clip(graph.op("Concat", voted, predictions, axis=2), MAX_EXPERT_LOG_ODDS)
    weights, shares = step.arrays["weights"], step.arrays["shares"]
    mean_weights = shares @ weights / shares.sum()  # stacking models are linear, so their mean is one, too
    stacked = graph.op("MatMul", clipped, to_float32(mean_weights[1:, None]))
    if outputs == 1:
        stacked = graph.op("Add", stacked, mean_weights[0])
    best = graph.op("Gather", predictions, np.array([step.options["best"]]), axis=2)
    sources = [graph.op("Squeeze", source, np.array([2])) for source in (stacked, voted, best)]
    followed, tolerance = sources[step.options["follows"]], TIE_TOLERANCE if step.options["follows"] else 0.0
    if outputs == 1:
        return _add_log_odds(graph, step, sources[0], graph.op("Greater", followed, tolerance))
    is_winner = graph.add_one_hot(_find_first_largest(graph, followed, tolerance), outputs)
    lead = graph.op("Add", graph.op("ReduceMax", sources[0], np.array([1]), keepdims=1), WINNER_LEAD)
    return graph.op("Where", graph.op("Greater", is_winner, 0.5), lead, sources[0])


def _find_first_largest(graph: Graph, values: str, tolerance: float) -> str:
    """Append ONNX nodes to the graph that find the index of the largest number along axis 1 of the value named ``values``.
    Numbers that are smaller by at most ``tolerance`` count as equal, and the first one wins. Returns the name of the indices;
    axis 1 has length 1.
    """
    bound = graph.op("Sub", graph.op("ReduceMax", values, np.array([1]), keepdims=1), tolerance)
    return graph.op("ArgMax", graph.op("Where", graph.op("GreaterOrEqual", values, bound), 1.0, 0.0), axis=1, keepdims=1)


def _add_log_odds(graph: Graph, step: Step, stacked: str, is_positive: str) -> str:
    """Append ONNX nodes to the graph that compute an ensemble's log odds of the second of two labels. ``stacked`` is the name of
    the log odds from its stacking models, and ``is_positive`` that of whether the second label is predicted; the sign of the
    result always fits this label. Returns the name of the result.
    """
    prior, share = step.options["prior"], step.options["share"]
    agree = graph.op("Equal", is_positive, graph.op("Greater", stacked, 0.0))
    log_odds = graph.clip(stacked, 30.0)
    probabilities = []
    # Compute the probability of each label separately: 1 - p would lose the digits of a small one.
    for f, frequency in ((log_odds, share), (graph.op("Neg", log_odds), 1.0 - share)):
        p = graph.op("Where", agree, graph.op("Sigmoid", f), 0.5)
        probabilities.append(graph.op("Add", graph.op("Mul", p, 1.0 - prior), prior * frequency))
    f = graph.op("Log", graph.op("Div", *probabilities))
    min_positive = graph.add_constant(float(np.log(_ABOVE_HALF / (1.0 - _ABOVE_HALF))))
    return graph.op("Where", is_positive, graph.op("Max", f, min_positive), graph.op("Min", f, 0.0))


def _add_regression_experts(graph: Graph, step: Step, x: str, votes: np.ndarray) -> str:
    """Append ONNX nodes to the graph that combine the predictions of an ensemble's members for regression, the value named ``x``
    [rows, members]: by their mean with the weights ``votes``, the best member, or the stacking models of ``step``, an exported
    operation. Returns the name of the result [rows, 1].
    """
    corrects, n = step.arrays["corrects"], len(votes)
    if (corrects >= 0).any():
        # Corrected experts correct no others themselves, so that one product adds all of their clipped predictions.
        add = np.zeros((n, n), np.float32)
        add[corrects[corrects >= 0], np.flatnonzero(corrects >= 0)] = 1.0
        if (corrects[corrects[corrects >= 0]] >= 0).any():
            raise ExportError("experts that predict residuals of residuals are not supported in ONNX")
        x = graph.op("Add", x, graph.op("MatMul", graph.clip(x, MAX_EXPERT_TARGET), add))
    x = graph.clip(x, MAX_EXPERT_TARGET)
    voted = graph.op("MatMul", x, to_float32(votes[:, None]))
    follows = step.options["follows"]
    if follows == 1:
        return voted
    if follows == 2:
        return graph.op("Gather", x, np.array([step.options["best"]]), axis=1)
    weights, shares = step.arrays["weights"], step.arrays["shares"]
    stacked = graph.op("MatMul", graph.op("Concat", voted, x, axis=1), to_float32(weights[:, 1:].T))
    stacked = graph.clip(graph.op("Add", stacked, to_float32(weights[:, 0])), MAX_EXPERT_TARGET)
    return graph.op("MatMul", stacked, to_float32(shares[:, None] / shares.sum()))


_STEP_FUNCTIONS: Mapping[str, Callable[[Graph, Step, str], str]] = {
    "impute": _add_impute,
    "cycles": _add_cycles,
    "fill": lambda graph, step, x: graph.op("Where", graph.op("IsNaN", x), step.arrays["values"], x),
    "scale": _add_scale,
    "select": lambda graph, step, x: graph.op("Gather", x, step.arrays["columns"].astype(np.int64), axis=1),
    "clip": lambda graph, step, x: graph.clip(x, step.options["bound"]),
    "hinges": _add_hinges,
    "kernel": _add_kernel,
    "fourier": _add_fourier,
    "neighbours": _add_neighbours,
    "forest": _add_forest,
    "log": lambda graph, step, x: graph.op("Log", graph.op("Max", x, step.options["least"])),
    "linear": _add_linear,
    "concat": lambda _graph, _step, x: x,
    "votes": lambda graph, step, x: _add_pair_votes(graph, step, x, "GreaterOrEqual"),
    "pair_scores": _add_pair_scores,
    "experts": _add_experts,
}
