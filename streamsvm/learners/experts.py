"""The experts of a committee: which there are, where they lie in the memory, and how they begin."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.budget import strategy_for
from streamsvm.core.budget.dispatch import set_strategy
from streamsvm.core.kernels import POLY, RBF
from streamsvm.core.memory.block import STATE_BEGIN
from streamsvm.core.memory.committee import Place
from streamsvm.core.steps import iterates, kinds, least_squares, linear_step
from streamsvm.core.steps.coordinate_ascent import step as ascent
from streamsvm.core.steps.descent import step as descent
from streamsvm.core.steps.probability import FIRST_SLOPE
from streamsvm.learners import normal_equations
from streamsvm.learners.bsgd import SCHEDULES

__all__ = ["EXPERTS", "REGRESSION_EXPERTS", "Expert", "begin", "get_ready", "states"]

_BUDGET = 150  # support vectors of most experts that have some
_AVERAGING, _EPSILON = 3000, 0.1  # rows, and an error, as by default in the learners themselves
_RULES = {
    kinds.ASCENT: ascent.state,
    kinds.RESETTING: ascent.state,
    kinds.DESCENT: descent.state,
    kinds.LINEAR: linear_step.STATE,
    kinds.LANDMARKS: least_squares.STATE,
}


class Expert(NamedTuple):
    """An expert: its name, its kind, its gamma over that of the committee, and the first state of its rule."""

    name: str
    kind: int
    width: float = 1.0
    state: Mapping[str, float] = MappingProxyType({})
    budget: int = _BUDGET
    """Its support vectors or landmarks, where it has some."""
    kernel: int = RBF
    corrects: int | None = None
    """The kind of the expert before it that it corrects."""

    @property
    def place(self) -> Place:
        """The memory that it needs."""
        if self.kind <= kinds.DESCENT:
            return Place(self.kind, 2, budget=self.budget, corrects=self.corrects)
        if self.kind == kinds.LINEAR:
            return Place(self.kind, 2, linear=True)
        if self.kind == kinds.LANDMARKS:
            return Place(self.kind, 2, landmarks=self.budget, corrects=self.corrects)
        return Place(self.kind, 1, second_order=self.kind in (kinds.NEWTON, kinds.SLOW_NEWTON, kinds.ADDITIVE))

    @property
    def outputs(self) -> list[str]:
        """The names of its inputs to the stack."""
        return ["last", "average"] if self.place.inputs == 2 else ["last"]


def _ascent(width: float, C: float, kind: int = kinds.ASCENT) -> Expert:
    name = f"{'resetting ' if kind == kinds.RESETTING else ''}dual ascent, gamma x {width:g}, C {C:g}"
    return Expert(name, kind, width, {"C": C, "relaxation": 1.5, "reprocess": 1, "tol": 0.3, "replay_steps": 1})


def _linear(C: float) -> Expert:
    return Expert(f"linear, C {C:g}", kinds.LINEAR, 1.0, {"C": C, "fit_intercept": 1.0})


def _landmarks(number: int, width: float = 1.0, forgetting_factor: float = 1.0, kernel: int = RBF) -> Expert:
    rows = "" if forgetting_factor == 1.0 else f", {1.0 / (1.0 - forgetting_factor):,.0f} rows"
    state = {"ridge": 0.3, "forgetting_factor": forgetting_factor, "max_swaps": 5, **normal_equations.FIRST_STATE}
    of = "cubic" if kernel == POLY else f"gamma x {width:g}"
    return Expert(f"least squares on {number} landmarks, {of}{rows}", kinds.LANDMARKS, width, state, number, kernel)


def _regression(width: float, C: float, kind: int = kinds.ASCENT, budget: int = _BUDGET, corrects: int | None = None) -> Expert:
    name = _ascent(width, C, kind).name + ("" if corrects is None else ", of what is not additive")
    return Expert(name, kind, width, {"C": C, "relaxation": 0.5}, budget, corrects=corrects)


_FADING = {"schedule": SCHEDULES["constant"], "eta0": 0.3, "l2": 1e-3}
_SECOND_ORDER = (
    Expert("linear of second order, 1,000 rows", kinds.NEWTON),
    Expert("linear of second order, 10,000 rows", kinds.SLOW_NEWTON),
)
_ADDITIVE = Expert("additive of second order, 1,000 rows", kinds.ADDITIVE)


def _of_labels(budget: int) -> tuple[Expert, ...]:
    # Two kernel machines have more support vectors: where there is much to resolve, they resolve it.
    return (
        _ascent(0.25, 1.0),
        _ascent(1.0, 0.1),
        *(_ascent(width, 1.0)._replace(budget=budget) for width in (1.0, 4.0)),
        *(_ascent(width, 1.0, kinds.RESETTING) for width in (1.0, 4.0)),
        Expert("fading gradient descent", kinds.DESCENT, 1.0, _FADING),
        _linear(0.01),
        _linear(1.0),
        *_SECOND_ORDER,
        _ADDITIVE,
        Expert("last label", kinds.LAST_LABEL),
    )


#: The experts of labels by effort.
EXPERTS: dict[str, tuple[Expert, ...]] = {
    "low": (_ascent(1.0, 1.0), _ascent(1.0, 1.0, kinds.RESETTING), _linear(1.0), _SECOND_ORDER[1], _ADDITIVE),
    "normal": _of_labels(300),
    "high": (*_of_labels(500), _landmarks(300), _landmarks(100, 1.0, 0.999), _landmarks(100, 0.25)),
}

_IN_FEATURES = (
    _linear(0.01),
    _linear(0.1),
    _SECOND_ORDER[0],
    _ADDITIVE,
    Expert("last target", kinds.LAST_TARGET),
)
_CORRECTING = _regression(1.0, 1.0, kinds.RESETTING, corrects=kinds.ADDITIVE)
_NARROW = _regression(4.0, 1.0, budget=300, corrects=kinds.ADDITIVE)
#: Those of targets.
REGRESSION_EXPERTS: dict[str, tuple[Expert, ...]] = {
    "low": (*_IN_FEATURES, _regression(1.0, 1.0), _CORRECTING),
    "normal": (*_IN_FEATURES, _landmarks(300), _landmarks(300, kernel=POLY), _NARROW, _CORRECTING),
    "high": (
        *_IN_FEATURES,
        _SECOND_ORDER[1],
        _landmarks(500),
        _landmarks(300, kernel=POLY),
        _landmarks(300, 0.25),
        _NARROW,
        _regression(4.0, 0.1, corrects=kinds.ADDITIVE),
        _CORRECTING,
    ),
}


def states(store: Any, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two records of an expert's store, [1] each: what all learners have, and its rule's."""
    dtype, begin = _RULES[kind], iterates.RULE_STATE
    return (
        store.block[STATE_BEGIN:begin].view(iterates.COMMON),
        store.block[begin : begin + dtype.itemsize].view(dtype),
    )


def begin(expert: Expert, store: Any, number: int, seed: int, loss: int) -> None:
    """Set the state of an expert's new store; ``number`` is its place, from which its random numbers follow."""
    common, own = states(store, expert.kind)
    common["scale"] = common["average_v"] = 1.0
    common["slope"], common["horizon"], common["loss"] = FIRST_SLOPE, _AVERAGING, loss
    common["epsilon"] = _EPSILON if loss == iterates.EPSILON_INSENSITIVE else 0.0
    common["gamma_rows"] = -1
    common["random"] = (seed + number) % 2**64
    for name, value in expert.state.items():
        own[name] = value
    if expert.place.budget or expert.place.landmarks:
        header = store.views.header
        header["kernel"], header["gamma"], header["degree"] = expert.kernel, expert.width, 3
        header["coef0"] = 1.0 if expert.kernel == POLY else 0.0


def get_ready(store: Any, shared: bool) -> None:
    """Compile what keeps an expert's store within its budget; ``shared``: whether there are several outputs."""
    set_strategy(store, strategy_for("rbf", None), shared)
