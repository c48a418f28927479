"""The base of ensembles: experts of several kinds in one block, which learn the same rows, and are combined.

A table says which experts there are, where they lie in the memory, and how they begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

import numpy as np

from streamsvm.core.budget import choose_strategy
from streamsvm.core.budget.strategy import set_strategy
from streamsvm.core.checks import SCALINGS, OutputName, Scaling, make_random_state, parameter
from streamsvm.core.explaining import compute_distances
from streamsvm.core.kernels import POLY, RBF
from streamsvm.core.memory.ensemble import STATE, EnsembleStore
from streamsvm.core.steps import ensemble, iterates, newton, second_order
from streamsvm.core.steps.rule import Rule
from streamsvm.core.steps.stack import FIRST_INPUT, fill_initial_weights
from streamsvm.learners.estimator import learner
from streamsvm.learners.experts import (
    Additive,
    BudgetedMachine,
    Expert,
    Forest,
    Landmarks,
    LastLabel,
    LastTarget,
    Linear,
    Neighbours,
    NumberForest,
    SecondOrder,
)
from streamsvm.learners.explained import find_vector_labels
from streamsvm.learners.kernel_rls import FIRST_STATE
from streamsvm.learners.scaling import ScalingEstimator


def _machine_name(width: float, C: float, resets: bool) -> str:
    return f"{'resetting ' if resets else ''}dual ascent, gamma x {width:g}, C {C:g}"


def _ascent_expert(width: float, C: float, resets: bool = False, budget: int = 150) -> BudgetedMachine:
    state = {"C": C, "relaxation": 1.5, "reprocess": 1, "tol": 0.3, "replay_steps": 1}
    return BudgetedMachine(_machine_name(width, C, resets), state, width, budget, resets=resets)


def _linear_expert(C: float) -> Linear:
    return Linear(f"linear, C {C:g}", {"C": C, "fit_intercept": 1.0})


def _landmark_expert(number: int, width: float = 1.0, forgetting_factor: float = 1.0, kernel: int = RBF) -> Landmarks:
    rows = "" if forgetting_factor == 1.0 else f", {1.0 / (1.0 - forgetting_factor):,.0f} rows"
    state = {"ridge": 0.3, "forgetting_factor": forgetting_factor, "max_swaps": 5, **FIRST_STATE}
    of = "cubic" if kernel == POLY else f"gamma x {width:g}"
    return Landmarks(f"least squares on {number} landmarks, {of}{rows}", state, width, number, kernel)


def _regression_expert(
    width: float, C: float, resets: bool = False, budget: int = 150, corrects: Expert | None = None
) -> BudgetedMachine:
    name = _machine_name(width, C, resets) + ("" if corrects is None else ", of what is not additive")
    return BudgetedMachine(name, {"C": C, "relaxation": 0.5}, width, budget, resets=resets, corrects=corrects)


_SECOND_ORDER = (
    SecondOrder("linear of second order, 1,000 rows"),
    SecondOrder("linear of second order, 10,000 rows", 1.0 - 1e-4),
)
_ADDITIVE = Additive("additive of second order, 1,000 rows")
_NEIGHBOURS = Neighbours("nearest neighbours")


def _of_labels(budget: int) -> tuple[Expert, ...]:
    # Two kernel machines have more support vectors: where there is much to resolve, they resolve it.
    return (
        *(_ascent_expert(width, 1.0, budget=budget) for width in (1.0, 4.0)),
        *(_ascent_expert(width, 1.0, resets=True) for width in (1.0, 4.0)),
        _linear_expert(0.01),
        _linear_expert(1.0),
        _SECOND_ORDER[1],
        _ADDITIVE,
        _NEIGHBOURS,
        Forest("rolling forest"),
        LastLabel("last label"),
    )


#: The experts of labels by effort.
EXPERTS: dict[str, tuple[Expert, ...]] = {
    "low": (
        _ascent_expert(1.0, 1.0),
        _ascent_expert(1.0, 1.0, resets=True),
        _linear_expert(1.0),
        _SECOND_ORDER[1],
        _ADDITIVE,
    ),
    "normal": _of_labels(300),
    "high": (*_of_labels(500), _landmark_expert(300), _landmark_expert(100, 1.0, 0.999), _landmark_expert(100, 0.25)),
}

_IN_FEATURES = (
    _linear_expert(0.01),
    _linear_expert(0.1),
    _SECOND_ORDER[0],
    _ADDITIVE,
    LastTarget("last target"),
)
_CORRECTING = _regression_expert(1.0, 1.0, resets=True, corrects=_ADDITIVE)
_NARROW = _regression_expert(4.0, 1.0, budget=300, corrects=_ADDITIVE)
#: Those of targets.
REGRESSION_EXPERTS: dict[str, tuple[Expert, ...]] = {
    "low": (*_IN_FEATURES, _regression_expert(1.0, 1.0), _CORRECTING),
    "normal": (
        *_IN_FEATURES,
        _landmark_expert(300),
        _landmark_expert(300, kernel=POLY),
        _NARROW,
        _CORRECTING,
        _NEIGHBOURS,
        NumberForest("rolling forest"),
    ),
    "high": (
        *_IN_FEATURES,
        _SECOND_ORDER[1],
        _landmark_expert(500),
        _landmark_expert(300, kernel=POLY),
        _landmark_expert(300, 0.25),
        _NARROW,
        _regression_expert(4.0, 0.1, corrects=_ADDITIVE),
        _CORRECTING,
        _NEIGHBOURS,
        NumberForest("rolling forest"),
    ),
}


_LEARNED = {
    "choice": (0, 2),
    "last": (-1, 2**31),
    "last_target": (-8.0, 8.0),
    "features": (0, 2**31),
    "functions": (0, 4),
    "resets": (0, 2**62),
    "rows": (0.0, 1e100),
}


class ExpertReport(NamedTuple):
    """One entry of an ensemble's ``experts``: an output of an expert, its recent error and its weight."""

    name: str
    output: str
    """``"last"`` iterate or ``"average"``."""
    error: float
    """Its prequential error over the last 1,000 rows or so: the share of wrong labels, or the mean absolute error."""
    weight: float
    """Of its decision value in the stacks."""


@learner
class Ensemble(ScalingEstimator):
    """A model that is an ensemble of experts, and the rule of `streamsvm.core.steps.ensemble`."""

    effort: Literal["low", "normal", "high"] = parameter(default="normal", choices=EXPERTS, kw_only=False)
    """The size of the ensemble: ``"low"``, ``"normal"`` or ``"high"``. A larger ensemble takes more time for each row: see
    Notes. Use ``"low"`` if time is short.
    """
    scaling: Scaling = parameter(default="auto", choices=SCALINGS)
    """``"auto"`` scales rows inside the model, so that you need no scaler in front of it. Each value is learned as its
    deviation from the running mean of the feature, in running standard deviations, and bounded to 8 of these. Binary features,
    of which all values are 0 or 1, stay so; if all features are binary, rare ones count more. None: rows are
    learned as they are. The targets of a regressor are scaled in either case.
    """
    seed: int | None = None
    """Seed of the random choices, for repeatable runs. None picks a random one."""

    #: Whether the experts are compiled, and what maintains their budgets: not before the first row, and one that may exceed them.
    _is_connected: bool = field(init=False)
    _is_ready: bool = field(init=False)

    _rule = Rule(ensemble.learn_one, STATE, _LEARNED)
    _decide = staticmethod(ensemble.compute_output)
    _has_targets = False
    #: The experts by effort.
    _specs_by_effort: ClassVar[Mapping[str, tuple[Expert, ...]]]
    #: The compiled module that combines them.
    _combiner: ClassVar[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        v = self._store.views
        self._rule_record["scaling"], self._rule_record["last"] = self.scaling == "auto", -1
        seed = make_random_state(self.seed)
        for number, (expert, stores) in enumerate(zip(self._expert_specs, self._store.stores, strict=True)):
            for store in stores:
                expert.initialize(store, (seed + number) % 2**64, self._loss)
        for curvature, inverse, ridge, weights in zip(v.curvatures, v.inverses, self._combiner.RIDGES, v.weights, strict=True):
            newton.reset_curvature(curvature, inverse, ridge)
            fill_initial_weights(weights, self._combiner.INITIAL_WEIGHT_SUM)

    @property
    def _dtype(self) -> Any:
        return np.float64

    def _make_store(self, outputs: int, columns: int) -> EnsembleStore:
        team = self._expert_specs
        places = [expert.place(outputs) for expert in team]
        store = EnsembleStore(places, self.max_features, outputs, self._has_targets, columns)
        v = store.views
        for entry, expert in zip(v.experts, team, strict=True):
            for name in ("width", "memory", "additive", "resets"):
                entry[name] = getattr(expert, name, 0)
            if isinstance(expert, BudgetedMachine) and expert.corrects is not None:
                entry["base_input"] = v.experts["first_input"][team.index(expert.corrects)]
        newton.reset_curvature(v.newton_curvatures, v.newton_inverses, second_order.NEWTON_RIDGE)
        return store

    def _make_store_attributes(self, store: EnsembleStore) -> dict[str, Any]:
        v, first = store.views, super()._make_store_attributes(store)
        live = int(v.header[0]["n_outputs"])
        return {**first, "_row": v.unscaled[0], "_scores": v.scores, "_outputs": live, "_is_connected": False, "_is_ready": False}

    @property
    def _expert_specs(self) -> tuple[Expert, ...]:
        return self._specs_by_effort[self.effort]

    # Rows -----------------------------------------------------------------------------------------------------------------

    def _decide_row(self, x: Mapping[Any, Any], what: int) -> float:
        if not self._is_connected:
            self._connect_experts()
        return super()._decide_row(x, what)

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        self._connect_experts()
        super()._decide_matrix(matrix, columns, what, decisions)

    def _connect_experts(self) -> None:
        ensemble.link_functions(self._store, (expert.functions for expert in self._expert_specs), self._combiner)
        self._is_connected = True

    def _prepare_to_learn(self, rows: int) -> None:
        if not self._is_connected:
            self._connect_experts()
        if self._is_ready:
            return
        team = zip(self._expert_specs, self._store.stores, strict=True)
        budgeted = [(expert.budget, stores[0]) for expert, stores in team if isinstance(expert, BudgetedMachine)]
        if self.n_learned + rows > min(budget for budget, _ in budgeted):
            for _, store in budgeted:
                set_strategy(store, choose_strategy("rbf", None), self._outputs > 1)
            self._is_ready = True

    def _find_output_code(self, name: OutputName) -> int:
        if name != "auto":
            raise ValueError(f"output must be 'auto': {type(self).__name__} combines the last and the average iterates")
        return super()._find_output_code(name)

    # What the model is ----------------------------------------------------------------------------------------------------

    @property
    def experts(self) -> list[ExpertReport]:
        """The outputs of each expert, with the error and the weight that each has now.

        Each entry has a ``name``, an ``output`` (``"last"`` or ``"average"`` iterate), the ``error`` over the last 1,000 rows
        or so (the fraction of wrong labels, or the mean absolute error in the unit of the target) and the ``weight`` of its
        decision value in the stacks.
        """
        v, unit = self._store.views, self._error_unit
        names = [(expert.name, output) for expert in self._expert_specs for output in expert.outputs]
        shares = np.exp(self._combiner.LOSS_RATE * (v.losses.min() - v.losses))
        weights = shares @ v.weights / shares.sum()
        return [ExpertReport(*name, unit * float(v.errors[m]), float(weights[m])) for m, name in enumerate(names, FIRST_INPUT)]

    def _find_known_rows(self, x: Mapping[Any, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
        self._decide_row(x, iterates.DECISION)
        team = list(zip(self._expert_specs, self._store.stores, strict=True))
        for memory in (stores[0] for expert, stores in team if isinstance(expert, Neighbours)):
            n, v = memory.n_rows, memory.views  # which has just measured the distances
            return memory.vectors, v.distances[:n].astype(np.float64), self._unscale_targets(v.targets[:n]), "rows"
        machine = next(stores[0] for expert, stores in team if isinstance(expert, BudgetedMachine) and expert.resets)
        vectors, of = machine.vectors, find_vector_labels(machine.coefficients[::2], not self._has_targets)
        return vectors, compute_distances(self._store.views.scaled[: vectors.shape[1]], vectors), of, "support vectors"

    def _unscale_targets(self, targets: np.ndarray) -> np.ndarray:
        """Return targets as they were given, of labels their numbers."""
        if not self._has_targets:
            return targets
        moments = self._store.views.target_moments[0]
        return moments[1] + self._error_unit * targets.astype(np.float64)

    def merge_with(self, *others: Any, **units: Any) -> NoReturn:  # noqa: ARG002
        """Refuse to merge with other models: ensembles cannot do what `BSGDClassifier.merge_with` does.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            f"models of {type(self).__name__} cannot be merged: the stack of each is fitted to the decision values of its own "
            "experts, and no rows are left to fit another one. Learn with BSGDClassifier or BSCAClassifier, their regressors, or "
            "a linear learner"
        )

    @property
    def _error_unit(self) -> float:
        return 1.0

    @property
    def active_combiner(self) -> str:
        """The answer that is given: ``"stacks"``, ``"votes"`` (a weighted mean in regression) or ``"best"``, the best one."""
        return ("stacks", "votes", "best")[int(self._rule_record[0]["choice"])]

    def _check_experts(self) -> None:
        # Raise a ValueError where experts that come from a file do not fit the parameters.
        for expert, stores in zip(self._expert_specs, self._store.stores, strict=True):
            for store in stores:
                expert.check(store, self._outputs, self._loss)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 20, "effort": "low"}
        yield {"max_features": 20}
