"""The order in which a program takes the numbers of a row: that of the table whose rows were learned, or the natural one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamsvm.core.memory.features import natural_key
from streamsvm.edge.program import Column, Program, ProgramError
from streamsvm.edge.step import Step

_SAID = {
    "table": "the order of the table",
    "natural": "the natural order of their names, for the model knows no order of a table",
    "model": "the order of the model, into which names are hashed",
}


def order_of(program: Program) -> str:
    """Return what is said of the order in which a program takes numbers, by its fact ``order``."""
    return _SAID.get(str(program.facts.get("order")), "this order")


def said_of(order: Sequence[Hashable] | None) -> str:
    """Return what is said of the order of a model's features; None is that of no table."""
    return _SAID["natural" if order is None else "table"]


def in_order(program: Program, order: Sequence[Hashable] | None) -> Program:
    """Return a program whose columns are in an order, and which says the same. Its arrays take as many bytes.

    A column stands where its field does in ``order``, or behind all that are there; features of the same field, and fields
    without a place, are in natural order. The columns stay as they are where names are hashed into them.
    """
    program.facts["order"] = "model" if program.hashed else "natural" if order is None else "table"
    if program.hashed:
        return program
    moved = places_in_order(program.columns, order)
    if (moved == np.arange(len(moved))).all():
        return program
    made = Program([program.columns[number] for number in moved], program.hashed, program.tables)
    made.answer, made.facts = program.answer, program.facts
    # Number j of a value is number ``orders[value][j]`` of what it was.
    orders = [moved]
    for step in program.steps:
        own = _joined_orders([orders[value] for value in step.of])
        if (own == np.arange(len(own))).all():
            made.take(step)
            orders.append(np.arange(made.widths[-1]))
        else:
            changed, of_value = _STEPS[step.do](step, own)
            made.take(changed)
            orders.append(of_value)
    if any((orders[value] != np.arange(len(orders[value]))).any() for value in (made.answer.decision, made.answer.choice)):
        raise ProgramError("its answer is the row itself")
    return made


def places_in_order(columns: Sequence[Column], order: Sequence[Hashable] | None) -> np.ndarray:
    """Return the places of columns, int64, in the order that `in_order` gives them."""
    places = {} if order is None else {name: place for place, name in enumerate(order)}

    def key(number: int) -> tuple[Any, ...]:
        column = columns[number]
        kind = [made is not None for made in column[2:]]  # the number itself comes first
        place = places.get(column.name, places.get(column.field, len(places)))
        return place, natural_key(column.field), kind, natural_key(column.name)

    return np.array(sorted(range(len(columns)), key=key), np.int64)


def _joined_orders(orders: list[np.ndarray]) -> np.ndarray:
    begins = np.cumsum([0, *map(len, orders)])
    return np.concatenate([begin + order for begin, order in zip(begins[:-1], orders, strict=True)])


_Changed = tuple[Step, np.ndarray]


def _with_arrays(step: Step, **arrays: np.ndarray) -> Step:
    return replace(step, arrays={**step.arrays, **{name: np.ascontiguousarray(array) for name, array in arrays.items()}})


def _reorder_each(step: Step, own: np.ndarray) -> _Changed:
    """A step whose number j is one of number j alone."""
    return _with_arrays(step, **{name: array[own] for name, array in step.arrays.items()}), own


def _reorder_select(step: Step, own: np.ndarray) -> _Changed:
    columns = np.argsort(own)[step.arrays["columns"]]
    return _with_arrays(step, columns=columns), np.arange(len(columns))


def _reorder_bend(step: Step, own: np.ndarray) -> _Changed:
    functions = step.options["functions"]
    return step, (functions * own[:, None] + np.arange(functions)).ravel()


def _reorder_sums(step: Step, own: np.ndarray) -> _Changed:
    """A step that sums over numbers: its arrays with a number for each in their last dimension are in the new order."""
    wide = ("vectors", "relevance") if step.do in ("kernel", "fourier", "neighbours") else ("weights",)
    changed = _with_arrays(step, **{name: step.arrays[name][..., own] for name in wide if name in step.arrays})
    return changed, np.arange(_outputs_of(step))


def _outputs_of(step: Step) -> int:
    if step.do == "linear":
        return len(step.arrays["biases"])
    if step.do == "neighbours":
        return int(step.options["labels"]) or 1
    return len(step.arrays["vectors"]) * (2 if step.do == "fourier" else 1)


def _reorder_forest(step: Step, own: np.ndarray) -> _Changed:
    inner, feature = step.arrays["left"] >= 0, step.arrays["feature"]
    places = np.argsort(own)[np.where(inner, feature, 0)].astype(feature.dtype)
    return _with_arrays(step, feature=np.where(inner, places, feature)), np.arange(int(step.options["labels"]) or 1)


#: What becomes of a step whose numbers come in another order: the step, and the order of its value.
_STEPS: dict[str, Callable[[Step, np.ndarray], _Changed]] = {
    "fill": _reorder_each,
    "scale": _reorder_each,
    "clip": _reorder_each,
    "log": _reorder_each,
    "join": _reorder_each,
    "select": _reorder_select,
    "bend": _reorder_bend,
    "kernel": _reorder_sums,
    "fourier": _reorder_sums,
    "neighbours": _reorder_sums,
    "linear": _reorder_sums,
    "forest": _reorder_forest,
}
