"""The factory of rules: one compiled step in, what learns a row and many rows out.

A rule is how a learner changes with a row. Its file has one function under `rule`, the step; the look at the row before it, the
refusal of rows that are not finite, the average after it and the loop over many rows are the same for all rules, and made here.
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

#: The fate of a row. It is learned; it is not finite or too large, and nothing has changed; or no strategy has removed the
#: support vector that is one too many, and the caller undoes what has changed.
LEARNED, REFUSED, FULL = 0, 1, 2

#: What the compiled ``learn_one`` of a rule takes, and a call of it by its address.
LEARN_SIGNATURE = f"{BLOCK_TYPE} f8 f8"
call_learn: Callable[..., Any] = make_caller(LEARN_SIGNATURE, "i8")

#: The same of a ``decide``, which takes what it is asked.
OUTPUT_SIGNATURE = f"{BLOCK_TYPE} i8"
call_output: Callable[..., Any] = make_caller(OUTPUT_SIGNATURE, "f8")

NO_STATE = np.dtype([])
#: The field of the state of rules whose models merge: whether coefficients were set, and not learned row by row, at some time.
#: Then their signs are no labels.
FITTED_RANGE = {"fitted": (0, 1)}


#: The least and the largest value of a field; of several numbers, the largest of each.
FieldRange = tuple[float, float | tuple[float, ...]]


class Rule(NamedTuple):
    """A compiled rule of support vectors. (That of the linear learners takes a row's columns and values: see `linear_step`.)"""

    learn_one: Callable[..., int]
    """``(block, target, weight)``: learn the current row; `LEARNED`, `REFUSED` or `FULL`."""
    state: np.dtype
    """The numbers of the rule, beside those that all learners have. Fields with the name of a parameter hold its value."""
    ranges: Mapping[str, FieldRange]
    """Fields of ``state`` that learning changes, with the least and the largest value that they can have. A saved model in which
    another field differs from that of a new one is corrupt."""

    @property
    def address(self) -> int:
        """The address of ``learn_one``."""
        return get_address(self.learn_one, LEARN_SIGNATURE, "i8")


@compiled(inline=True)
def get_rule_state(block: np.ndarray, dtype: np.dtype) -> Any:
    """The rule's own record of a block, for compiled code to read and write."""
    return view_record(block, RULE_STATE_OFFSET, dtype)


@compiled(inline=True)
def _do_nothing(block: np.ndarray) -> None:
    pass


def rule(
    state: np.dtype = NO_STATE,
    *,
    ranges: Mapping[str, FieldRange] | None = None,
    prepare: Callable[[np.ndarray], None] = _do_nothing,
    on_rescale: Callable[[np.ndarray], None] = _do_nothing,
) -> Callable[[Callable[[np.ndarray, CurrentRow], None]], Rule]:
    """Make a rule of the step under this decorator, ``step(block, row)``.

    The step finds the decision values of the current row in ``views(block).scores`` (that of the last iterate first), and its
    kernel values in ``views(block).kernel_rows[0]``. Coefficients are stored divided by the factor ``common(block)["scale"]``,
    which a step may lower to shrink all of them. With ``gamma="scale"`` and no scaling the kernel changes in each of the first
    500 rows: what a rule computes from kernel values is stale then.

    ``state`` and ``ranges`` are those of `Rule`. ``prepare`` is called before the decision values of a row are computed,
    ``on_rescale`` where support vectors have been brought to another scale, which makes the same stale.
    """

    def make(step: Callable[[np.ndarray, CurrentRow], None]) -> Rule:
        names = {"step": compiled(step, inline=True), "prepare": prepare, "on_rescale": on_rescale}
        return Rule(_function_of_template(_learn_one, step, names), state, ranges or {})

    return make


def _function_of_template(template: Any, step: Any, names: dict[str, Any]) -> Any:
    # A closure over the step, or the step as an argument, would be compiled with the learner of each rule. This is a function of
    # its own, which lies in the file of the rule.
    name = f"{step.__qualname__}.{template.__name__.lstrip('_')}"
    place = {"co_filename": step.__code__.co_filename, "co_firstlineno": step.__code__.co_firstlineno}
    made = FunctionType(template.__code__.replace(co_name=name, co_qualname=name, **place), {**globals(), **names}, name)
    made.__module__, made.__qualname__ = step.__module__, name
    return compiled(made)


# The template: `step`, `prepare` and `on_rescale` are those of the rule.


def _learn_one(block: np.ndarray, target: float, weight: float) -> int:
    n_active, norm, moved = begin_row(block)
    if n_active < 0:
        return REFUSED
    if moved:
        on_rescale(block)  # type: ignore[name-defined] # noqa: F821
    prepare(block)  # type: ignore[name-defined] # noqa: F821
    step(block, score_row(block, n_active, norm, target, weight))  # type: ignore[name-defined] # noqa: F821
    h = views(block).header[0]
    if h["n_support"] > h["budget"]:
        return FULL
    end_row(block)
    return LEARNED


# Many rows are learned and decided by the machine code of one, called at its address, and leave the same bytes. A copy of it in a
# loop would be compiled for seconds, and may add up in another order. ``row`` is where a block has the row that is given, float32
# or float64 [features], and ``scores`` where decisions of several outputs are. X are rows of its type [n, features].


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
    """Learn the rows of X, up to one that the rule cannot; how many were learned."""
    for i in range(X.shape[0]):
        scatter_row(row, len(row), X, columns, i)
        if call_learn(learn_one, block, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]


@compiled
def compute_outputs(
    decide: int,
    block: np.ndarray,
    row: np.ndarray,
    scores: np.ndarray,
    X: np.ndarray,
    columns: np.ndarray,
    what: int,
    out: np.ndarray,
) -> None:
    """Decide the rows of X, into ``out`` float64 [n, 1].

    With several outputs ``out`` is float64 [n, outputs + 1]: the number of the best one, then the values of all.
    """
    for i in range(X.shape[0]):
        scatter_row(row, len(row), X, columns, i)
        out[i, 0] = call_output(decide, block, what)
        for k in range(1, out.shape[1]):
            out[i, k] = scores[k - 1]


@compiled
def predict_then_learn(
    decide: int,
    learn_one: int,
    block: np.ndarray,
    row: np.ndarray,
    scores: np.ndarray,
    outputs: int,
    X: np.ndarray,
    columns: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    answers: np.ndarray,
) -> int:
    """Predict each row, and then learn it: answers and bytes are those of single rows.

    X are rows that the rule would not refuse. ``targets`` are float64 [n], of which NaN says that the row is only predicted, and
    ``weights`` float64 [n], above 0. ``answers`` float64 [n, 1 or more] receives the answer that is `DECISION`, and the
    probability: of the positive label, or, where there are several outputs, of the best one, or with ``outputs`` more columns of
    each.

    Returns how many rows were learned: n, or the number of the row that the rule could not.
    """
    for i in range(X.shape[0]):
        scatter_row(row, len(row), X, columns, i)
        if answers.shape[1] > 1:
            answers[i, 1] = call_output(decide, block, PROBABILITY)
            if outputs > 1 and answers.shape[1] == 2:
                answers[i, 1] = np.max(scores[:outputs])
            elif outputs > 1:
                answers[i, 1:] = scores[:outputs]
        answers[i, 0] = call_output(decide, block, DECISION)
        if not np.isnan(targets[i]) and call_learn(learn_one, block, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]
