"""Update rules of kernel learners: `rule` compiles a step function into a function that learns the current row.

A rule says how a learner changes with a row. The module of a learner has one function under the decorator `rule`: the step.
Refusing rows that are not finite, computing decision values before the step, averaging after it, and the loops over many rows are
the same for all rules, and are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import BLOCK_TYPE, compiled, get_address, make_caller
from streamsvm.core.memory.block import view_record
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.decisions import scatter_row
from streamsvm.core.steps.iterates import DECISION, PROBABILITY, RULE_STATE_OFFSET
from streamsvm.core.steps.step import CurrentRow, begin_row, end_row, score_row

#: Results of learning a row. The row was learned; it is not finite or too large, and the model is unchanged; or budget
#: maintenance did not remove the excess support vector, and the caller must undo the step.
LEARNED, REFUSED, FULL = 0, 1, 2

#: Argument types of the compiled ``learn_one`` of a rule, and the function that calls one by its address.
LEARN_SIGNATURE = f"{BLOCK_TYPE} f8 f8"
call_learn: Callable[..., Any] = make_caller(LEARN_SIGNATURE, "i8")

#: Argument types of a compiled ``compute_output``, and the function that calls one by its address.
OUTPUT_SIGNATURE = f"{BLOCK_TYPE} i8"
call_output: Callable[..., Any] = make_caller(OUTPUT_SIGNATURE, "f8")

NO_STATE = np.dtype([])
#: A state field of rules whose models can be merged: 1 if coefficients were ever set directly and not learned row by row. Then
#: their signs are not those of the labels.
FITTED_RANGE = {"fitted": (0, 1)}

#: The smallest and the largest value of a state field; for array fields, the largest value of each element.
FieldRange = tuple[float, float | tuple[float, ...]]


class Rule(NamedTuple):
    """A compiled update rule of a kernel learner. (The rule of linear learners has other arguments: see `linear_step`.)"""

    learn_one: Callable[..., int]
    """``(block, target, weight)``: learn the current row. Returns `LEARNED`, `REFUSED` or `FULL`."""
    state: np.dtype
    """Record dtype of the rule's own state. A field with the name of a parameter of the learner holds its value."""
    ranges: Mapping[str, FieldRange]
    """Fields of ``state`` that learning changes, with their smallest and largest value. A saved model is corrupt if any other
    field differs from that of a new model."""

    @property
    def address(self) -> int:
        """The memory address of this rule's compiled ``learn_one``, an integer with which compiled code calls it."""
        return get_address(self.learn_one, LEARN_SIGNATURE, "i8")


@compiled(inline=True)
def get_rule_state(block: np.ndarray, dtype: np.dtype) -> Any:
    """Return the state of a learner's update rule (its hyperparameters and counters, a record of this ``dtype``) from the model's
    memory ``block``, as a view that can be written.
    """
    return view_record(block, RULE_STATE_OFFSET, dtype)


@compiled(inline=True)
def _do_nothing(block: np.ndarray) -> None:
    """Do nothing: the default of the callbacks ``prepare`` and ``on_rescale`` of `rule`. ``block`` is the model's memory."""


def rule(
    state: np.dtype = NO_STATE,
    *,
    ranges: Mapping[str, FieldRange] | None = None,
    prepare: Callable[[np.ndarray], None] = _do_nothing,
    on_rescale: Callable[[np.ndarray], None] = _do_nothing,
) -> Callable[[Callable[[np.ndarray, CurrentRow], None]], Rule]:
    """Return a decorator for the learning step of a kernel model: a function ``step(block, row)`` that updates the model's
    memory. It returns a `Rule`, compiled, which also checks rows, computes their decision values, and averages. ``state`` is the
    dtype of the rule's own state, ``ranges`` the valid ranges of its fields. The callbacks are called with ``block``.

    The step reads the decision values of the current row from ``views(block).scores`` (that of the last iterate first), and its
    kernel values from ``views(block).kernel_rows[0]``. Coefficients are stored divided by ``get_common_state(block)["scale"]``; a
    step may lower this factor to shrink all of them. With ``gamma="scale"`` and no scaling, the kernel changes with each of the
    first 500 rows, which makes anything that a rule has computed from kernel values stale.

    ``state`` and ``ranges`` are those of `Rule`. ``prepare(block)`` is called before the decision values of a row are computed;
    ``on_rescale(block)`` after support vectors were converted to a new scale, which makes values computed from kernel values
    stale, too.
    """

    def make(step: Callable[[np.ndarray, CurrentRow], None]) -> Rule:
        names = {"step": compiled(step, inline=True), "prepare": prepare, "on_rescale": on_rescale}
        return Rule(_compile_template(_learn_one, step, names), state, ranges or {})

    return make


def _compile_template(template: Any, step: Any, names: dict[str, Any]) -> Any:
    """Return a compiled copy of the function ``template``, whose global names listed in ``names`` (dict of name to function) now
    stand for these functions. The copy is named after the function ``step``, and belongs to its module.

    A closure over the step, or the step as an argument, would be compiled again in the learner of each rule.
    """
    name = f"{step.__qualname__}.{template.__name__.lstrip('_')}"
    location = {"co_filename": step.__code__.co_filename, "co_firstlineno": step.__code__.co_firstlineno}
    function = FunctionType(template.__code__.replace(co_name=name, co_qualname=name, **location), {**globals(), **names}, name)
    function.__module__, function.__qualname__ = step.__module__, name
    return compiled(function)


# The template of `Rule.learn_one`: `step`, `prepare` and `on_rescale` are functions of the rule.


def _learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Train the kernel model in ``block`` on its current row. Returns a constant: `LEARNED`, `REFUSED` (the row is not finite or
    too large; nothing has changed) or `FULL` (there is one support vector too many, and the caller must undo the step).
    """
    n_active, norm, has_new_scale = begin_row(block)
    if n_active < 0:
        return REFUSED
    if has_new_scale:
        on_rescale(block)  # type: ignore[name-defined] # noqa: F821
    prepare(block)  # type: ignore[name-defined] # noqa: F821
    step(block, score_row(block, n_active, norm, target, weight))  # type: ignore[name-defined] # noqa: F821
    h = views(block).header[0]
    if h["n_support"] > h["budget"]:
        return FULL
    end_row(block)
    return LEARNED


# Loops over many rows call the compiled function for one row by its address, so that they leave the same bytes as a loop in
# Python: a copy inlined in a loop would compile for seconds, and might sum in another order. ``row`` is the part of the block for
# the unscaled row, float32 or float64 [features], ``scores`` the part with the decision values of several outputs. X [n,
# features] has the dtype of ``row``.


@compiled
def learn_rows(
    learn_one: int,
    block: np.ndarray,
    row: np.ndarray,
    X: np.ndarray,
    columns: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
) -> int:
    """Train a model on the rows of X with the compiled function at address ``learn_one``, and return how many were learned:
    fewer than all if the model exceeded its budget. ``columns`` int64 [features] maps features of X to the model's columns (-1:
    ignored). ``row`` is the part of the model's memory ``block`` for the current row.
    """
    for i in range(X.shape[0]):
        scatter_row(row, len(row), X, columns, i)
        if call_learn(learn_one, block, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]


@compiled
def compute_outputs(
    compute_output: int,
    block: np.ndarray,
    row: np.ndarray,
    scores: np.ndarray,
    X: np.ndarray,
    columns: np.ndarray,
    output_kind: int,
    out: np.ndarray,
) -> None:
    """Compute predictions for the rows of X with the compiled function at address ``compute_output``, into ``out`` float64 [n,
    1]. The constant ``output_kind`` requests decision values or probabilities. ``columns`` maps features of X to the model's
    columns (-1: ignored); ``row`` and ``scores`` are parts of the model's memory ``block``.

    With several outputs, ``out`` is float64 [n, outputs + 1]: the index of the best output, then the values of all outputs.
    """
    for i in range(X.shape[0]):
        scatter_row(row, len(row), X, columns, i)
        out[i, 0] = call_output(compute_output, block, output_kind)
        for k in range(1, out.shape[1]):
            out[i, k] = scores[k - 1]


@compiled
def predict_then_learn(
    compute_output: int,
    learn_one: int,
    block: np.ndarray,
    row: np.ndarray,
    scores: np.ndarray,
    n_outputs: int,
    X: np.ndarray,
    columns: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    predictions: np.ndarray,
) -> int:
    """Predict each row of X, then train the model on it (prequential evaluation), with the compiled functions at the addresses
    ``compute_output`` and ``learn_one``. Predictions are written into ``predictions`` float64 [n, 1 or more]. Returns the number
    of rows learned, fewer than n if the model exceeded its budget.

    The rule must not refuse any row of X. ``targets`` are float64 [n]; a row with NaN is only predicted. ``weights`` are float64
    [n], above 0. ``predictions`` receives the `DECISION` in column 0. If it has more columns, column 1 receives the probability
    of the positive label, or of the best output if there are several; with ``n_outputs`` more columns, they receive the
    probability of each output.
    """
    for i in range(X.shape[0]):
        scatter_row(row, len(row), X, columns, i)
        if predictions.shape[1] > 1:
            predictions[i, 1] = call_output(compute_output, block, PROBABILITY)
            if n_outputs > 1 and predictions.shape[1] == 2:
                predictions[i, 1] = np.max(scores[:n_outputs])
            elif n_outputs > 1:
                predictions[i, 1:] = scores[:n_outputs]
        predictions[i, 0] = call_output(compute_output, block, DECISION)
        if not np.isnan(targets[i]) and call_learn(learn_one, block, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]
