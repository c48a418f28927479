"""Appends a model's outputs to its ONNX graph: label, decision, probabilities and anomaly score."""

from __future__ import annotations

import numpy as np

from streamsvm.edge.calibration import LogOddsCalibration, MarginCalibration
from streamsvm.edge.program import Program
from streamsvm.export.onnx_graph import Graph, to_float32

WINNER_LEAD = 1e-5  # lead of the predicted label over equally probable ones, the smallest that float32 represents


def add_answer(graph: Graph, program: Program, values: list[str]) -> None:
    """Append the model's outputs, such as ``label`` and ``decision``, to the graph. ``values`` are the names of the outputs of
    all operations of the exported model, ``program``.
    """
    answer = program.answer
    decision, choice = values[answer.decision], values[answer.choice]
    has_many_labels = len(answer.labels) > 2
    if answer.kind == "number":
        graph.add_output("variable", decision, 1)
        return
    decision_output = decision if has_many_labels else graph.op("Squeeze", decision, np.array([1]))
    if answer.kind == "class":
        _add_class_outputs(graph, program, decision, choice)
    else:
        graph.add_output("score", _add_anomaly_score(graph, decision_output, answer.center, answer.size))
    graph.add_output("decision", decision_output, program.widths[answer.decision] if has_many_labels else None)


def _add_class_outputs(graph: Graph, program: Program, decision: str, choice: str) -> None:
    """Append the outputs of a classifier to the graph: ``label``, and ``probabilities`` if the model has them. ``decision`` is
    the name of its decision values, and ``choice`` that of the scores that choose the label: the largest score wins, or for two
    labels, the sign decides.
    """
    answer, has_many_labels = program.answer, len(program.answer.labels) > 2
    p = None if answer.calibration is None else _add_probabilities(graph, answer.calibration, decision, has_many_labels)
    if answer.costs is not None:
        index = graph.op("ArgMax", graph.op("Mul", p, to_float32(np.array(answer.costs))), axis=1, keepdims=0)
    elif has_many_labels:
        index = graph.op("ArgMax", choice, axis=1, keepdims=0)
    else:
        comparison = "GreaterOrEqual" if answer.at_zero else "Greater"
        index = graph.op("Cast", graph.op(comparison, graph.op("Squeeze", choice, np.array([1])), 0.0), to=7)
    if len(answer.labels) == 1:
        index = graph.op("Mul", index, np.array(0))
    graph.add_label_output(answer.labels, index)
    if p is None:
        if len(answer.labels) > 1:
            return
        p = graph.op("Add", graph.op("Mul", decision, 0.0), 1.0)
    graph.add_output("probabilities", p, len(answer.labels))


def _add_anomaly_score(graph: Graph, f: str, center: float, size: float) -> str:
    """Append ONNX nodes to the graph that convert decision values, named ``f``, to anomaly scores from 0 (usual) to 1 (unusual).
    A decision value of ``center``, the mean, gets 0.5; ``size`` is the mean deviation from it. Returns the name of the result.
    """
    if size == 0.0:
        return graph.op("Mul", f, 0.0)
    z = graph.op("Div", graph.op("Sub", f, center), size)
    z = graph.clip(z, 1e15)  # so that float32 can hold the square
    length = graph.op("Sqrt", graph.op("Add", graph.op("Mul", z, z), 2.0))
    return graph.op("Sub", 0.5, graph.op("Mul", graph.op("Div", z, length), 0.5))


def _add_probabilities(graph: Graph, calibration: MarginCalibration | LogOddsCalibration, f: str, has_many_labels: bool) -> str:
    """Append ONNX nodes to the graph that convert the decision values of a classifier, named ``f``, to probabilities, by the
    factors of ``calibration``. ``has_many_labels`` is true for more than two labels. Returns the name of the result [rows,
    labels].
    """
    prior = calibration.prior
    f = graph.op("Mul", f, calibration.factor if isinstance(calibration, MarginCalibration) else 1.0)
    if has_many_labels:
        p = graph.op("Softmax", f, axis=1)
        if isinstance(calibration, MarginCalibration):
            n_labels = graph.op("Cast", graph.op("Gather", graph.op("Shape", f), np.array(1)), to=1)
            return graph.op("Add", graph.op("Mul", p, 1.0 - prior), graph.op("Div", prior, n_labels))
        p = graph.op("Add", graph.op("Mul", p, 1.0 - prior), to_float32(prior * np.array(calibration.shares)))
        winner = graph.op("ArgMax", f, axis=1, keepdims=1)
        return _lift_winner(graph, p, graph.add_one_hot(winner, len(calibration.shares)))
    f = graph.clip(f, 30.0)
    p = graph.op("Sigmoid", graph.op("Concat", graph.op("Neg", f), f, axis=1))
    if isinstance(calibration, LogOddsCalibration):
        return p
    return graph.op("Add", graph.op("Mul", p, 1.0 - prior), 0.5 * prior)


def _lift_winner(graph: Graph, p: str, is_winner: str) -> str:
    """Append ONNX nodes to the graph that make the probability of the predicted label the largest of its row, if it is not.
    ``p`` is the name of the probabilities, and ``is_winner`` that of 1 for the predicted label, else 0, both [rows, labels].
    Returns the name of the result, with rows that sum to 1.

    Mixing with frequencies may have lifted another label.
    """
    rivals = graph.op("ReduceMax", graph.op("Sub", p, is_winner), np.array([1]), keepdims=1)
    own = graph.op("ReduceSum", graph.op("Mul", p, is_winner), np.array([1]), keepdims=1)
    missing = graph.op("Max", graph.op("Sub", graph.op("Mul", rivals, 1.0 + WINNER_LEAD), own), 0.0)
    return graph.op("Div", graph.op("Add", p, graph.op("Mul", is_winner, missing)), graph.op("Add", missing, 1.0))
