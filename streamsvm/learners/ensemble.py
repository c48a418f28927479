"""The base of ensembles: experts of several kinds in one block, which learn the same rows and whose predictions are combined.

The tables `EXPERTS` and `REGRESSION_EXPERTS` specify the experts, with their hyperparameters, for each effort.
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
from streamsvm.core.memory.saved_layout import Part, SavedLayout
from streamsvm.core.steps import ensemble, iterates, newton, second_order
from streamsvm.core.steps.rule import Rule
from streamsvm.core.steps.stack import FIRST_INPUT, fill_initial_weights
from streamsvm.learners.budgeted import shrink_store
from streamsvm.learners.estimator import learner
from streamsvm.learners.experts import (
    AdditiveExpert,
    Expert,
    ForestExpert,
    KernelExpert,
    KernelMachineExpert,
    LandmarkExpert,
    LastLabelExpert,
    LastTargetExpert,
    LinearExpert,
    NeighboursExpert,
    RegressionForestExpert,
    SecondOrderExpert,
)
from streamsvm.learners.explained import KnownRows, find_vector_labels
from streamsvm.learners.kernel_rls import INITIAL_STATE
from streamsvm.learners.scaling import ScalingEstimator


def _describe_machine(width: float, C: float, resets: bool) -> str:
    """Return the display name of a kernel machine of the ensemble, for reports. It contains ``width`` (a factor for the
    ensemble's gamma), the regularisation constant ``C``, and whether the machine is reset on concept drift (``resets``).
    """
    return f"{'resetting ' if resets else ''}dual ascent, gamma x {width:g}, C {C:g}"


def _make_ascent_expert(width: float, C: float, resets: bool = False, budget: int = 150) -> KernelMachineExpert:
    """Return the specification of a kernel SVM classifier in the ensemble, trained by dual coordinate ascent. ``width``
    multiplies the ensemble's gamma, ``C`` is the regularisation constant, ``resets`` tells whether it starts from scratch on
    concept drift, and ``budget`` is the maximum number of support vectors.
    """
    state = {"C": C, "relaxation": 1.5, "reprocess": 1, "tol": 0.3, "replay_steps": 1}
    return KernelMachineExpert(_describe_machine(width, C, resets), state, width, budget, resets=resets)


def _make_linear_expert(C: float) -> LinearExpert:
    """Return the specification of a linear SVM (trained by a first-order method) in the ensemble, with the regularisation
    constant ``C``.
    """
    return LinearExpert(f"linear, C {C:g}", {"C": C, "fit_intercept": 1.0})


def _make_landmark_expert(budget: int, width: float = 1.0, forgetting_factor: float = 1.0, kernel: int = RBF) -> LandmarkExpert:
    """Return the specification of a kernel recursive least squares model in the ensemble, with ``budget`` landmarks. ``width``
    multiplies the ensemble's gamma; with a ``forgetting_factor`` below 1, old rows lose influence; ``kernel`` is the code of the
    Gaussian (`RBF`) or of the polynomial kernel.
    """
    horizon = "" if forgetting_factor == 1.0 else f", {1.0 / (1.0 - forgetting_factor):,.0f} rows"
    state = {"ridge": 0.3, "forgetting_factor": forgetting_factor, "max_swaps": 5, **INITIAL_STATE}
    kernel_name = "cubic" if kernel == POLY else f"gamma x {width:g}"
    return LandmarkExpert(f"least squares on {budget} landmarks, {kernel_name}{horizon}", state, width, budget, kernel)


def _make_regression_expert(
    width: float, C: float, resets: bool = False, budget: int = 150, corrects: Expert | None = None
) -> KernelMachineExpert:
    """Return the specification of a kernel support vector regression in the ensemble. ``width`` multiplies the ensemble's gamma,
    ``C`` is the regularisation constant, ``resets`` tells whether it starts from scratch on concept drift, and ``budget`` limits
    its support vectors. It learns the target or, with ``corrects``, the error of that other member.
    """
    name = _describe_machine(width, C, resets) + ("" if corrects is None else ", of what is not additive")
    return KernelMachineExpert(name, {"C": C, "relaxation": 0.5}, width, budget, resets=resets, corrects=corrects)


_SECOND_ORDER = (
    SecondOrderExpert("linear of second order, 1,000 rows"),
    SecondOrderExpert("linear of second order, 10,000 rows", 1.0 - 1e-4),
)
_ADDITIVE = AdditiveExpert("additive of second order, 1,000 rows")
_NEIGHBOURS = NeighboursExpert("nearest neighbours")


def _make_classification_experts(budget: int) -> tuple[Expert, ...]:
    """Return the specifications of the members of a classification ensemble with ``effort="normal"``. ``budget`` is the maximum
    number of support vectors of its two kernel machines that are never reset.
    """
    return (
        *(_make_ascent_expert(width, 1.0, budget=budget) for width in (1.0, 4.0)),
        *(_make_ascent_expert(width, 1.0, resets=True) for width in (1.0, 4.0)),
        _make_linear_expert(0.01),
        _make_linear_expert(1.0),
        _SECOND_ORDER[1],
        _ADDITIVE,
        _NEIGHBOURS,
        ForestExpert("rolling forest"),
        LastLabelExpert("last label"),
    )


#: Experts of the classifier, by effort.
EXPERTS: dict[str, tuple[Expert, ...]] = {
    "low": (
        _make_ascent_expert(1.0, 1.0),
        _make_ascent_expert(1.0, 1.0, resets=True),
        _make_linear_expert(1.0),
        _SECOND_ORDER[1],
        _ADDITIVE,
    ),
    "normal": _make_classification_experts(300),
    "high": (
        *_make_classification_experts(500),
        _make_landmark_expert(300),
        _make_landmark_expert(100, 1.0, 0.999),
        _make_landmark_expert(100, 0.25),
    ),
}

_FEATURE_EXPERTS = (
    _make_linear_expert(0.01),
    _make_linear_expert(0.1),
    _SECOND_ORDER[0],
    _ADDITIVE,
    LastTargetExpert("last target"),
)
_RESETTING_BOOSTER = _make_regression_expert(1.0, 1.0, resets=True, corrects=_ADDITIVE)
_NARROW_BOOSTER = _make_regression_expert(4.0, 1.0, budget=300, corrects=_ADDITIVE)
#: Experts of the regressor, by effort.
REGRESSION_EXPERTS: dict[str, tuple[Expert, ...]] = {
    "low": (*_FEATURE_EXPERTS, _make_regression_expert(1.0, 1.0), _RESETTING_BOOSTER),
    "normal": (
        *_FEATURE_EXPERTS,
        _make_landmark_expert(300),
        _make_landmark_expert(300, kernel=POLY),
        _NARROW_BOOSTER,
        _RESETTING_BOOSTER,
        _NEIGHBOURS,
        RegressionForestExpert("rolling forest"),
    ),
    "high": (
        *_FEATURE_EXPERTS,
        _SECOND_ORDER[1],
        _make_landmark_expert(500),
        _make_landmark_expert(300, kernel=POLY),
        _make_landmark_expert(300, 0.25),
        _NARROW_BOOSTER,
        _make_regression_expert(4.0, 0.1, corrects=_ADDITIVE),
        _RESETTING_BOOSTER,
        _NEIGHBOURS,
        RegressionForestExpert("rolling forest"),
    ),
}


# Ranges of the fields of the state that learning changes.
_STATE_RANGES = {
    "choice": (0, 2),
    "last": (-1, 2**31),
    "last_target": (-8.0, 8.0),
    "features": (0, 2**31),
    "functions": (0, 4),
    "resets": (0, 2**62),
    "rows": (0.0, 1e100),
}


class ExpertReport(NamedTuple):
    """The report on one output of an expert: its recent error, and its weight in the ensemble."""

    name: str
    output: str
    """``"last"`` or ``"average"`` iterate, or the kind of the output for experts without iterates."""
    error: float
    """The prequential error over about the last 1,000 rows: the fraction of wrong labels, or the mean absolute error."""
    weight: float
    """The weight of its decision value in the stacks."""


@learner
class Ensemble(ScalingEstimator):
    """The base of models that combine an ensemble of experts by stacking and voting (see `streamsvm.core.steps.ensemble`)."""

    effort: Literal["low", "normal", "high"] = parameter(default="normal", choices=EXPERTS, kw_only=False)
    """The size of the ensemble: ``"low"``, ``"normal"`` or ``"high"``. A larger ensemble is more accurate, but takes more time
    per row: see the Notes.
    """
    scaling: Scaling = parameter(default="auto", choices=SCALINGS)
    """``"auto"`` scales rows inside the model, so that you need no scaler in front of it: each value is standardised by the
    running mean and standard deviation of its feature, and clipped to [-8, 8]. Binary features (all values are 0 or 1) are not
    changed; if all features are binary, rare ones count more. None: rows are not scaled. The targets of a regressor are scaled
    in both cases.
    """
    seed: int | None = None
    """Seed of the random choices, for repeatable runs. None picks a random one."""

    #: Whether the compiled functions of the experts are linked; they are at the first row.
    _is_connected: bool = field(init=False)
    #: Whether budget maintenance is compiled; it is before the first row that may exceed a budget.
    _is_ready: bool = field(init=False)

    _rule = Rule(ensemble.learn_one, STATE, _STATE_RANGES)
    _output_function = staticmethod(ensemble.compute_output)
    _has_targets = False
    #: The factor that converts errors of standardised targets to the original unit of the target; 1 in classification.
    _error_unit: ClassVar[float] = 1.0
    #: The specifications of the experts, by effort.
    _specs_by_effort: ClassVar[Mapping[str, tuple[Expert, ...]]]
    #: The compiled module that combines the experts' predictions.
    _combiner: ClassVar[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        v = self._store.views
        self._rule_record["scaling"], self._rule_record["last"] = self.scaling == "auto", -1
        seed = make_random_state(self.seed)
        for number, (expert, stores) in enumerate(zip(self._expert_specs, self._store.stores, strict=True)):
            for store in stores:
                expert.initialize_store(store, (seed + number) % 2**64, self._loss)
        for curvature, inverse, ridge, weights in zip(v.curvatures, v.inverses, self._combiner.RIDGES, v.weights, strict=True):
            newton.reset_curvature(curvature, inverse, ridge)
            fill_initial_weights(weights, self._combiner.INITIAL_WEIGHT_SUM)

    @property
    def _dtype(self) -> Any:
        """The numpy dtype of the rows that this model receives, before it scales them: float64."""
        return np.float64

    def _make_store(self, outputs: int, columns: int) -> EnsembleStore:
        """Return a new memory for all members of the ensemble (`EnsembleStore`), with room for ``outputs`` decision values and
        ``columns`` features.
        """
        specs = self._expert_specs
        places = [expert.plan_memory(outputs) for expert in specs]
        store = EnsembleStore(places, self.max_features, outputs, self._has_targets, columns)
        v = store.views
        for entry, expert in zip(v.experts, specs, strict=True):
            for name in ("width", "memory", "additive", "resets"):
                entry[name] = getattr(expert, name, 0)
            if isinstance(expert, KernelMachineExpert) and expert.corrects is not None:
                entry["base_input"] = v.experts["first_input"][specs.index(expert.corrects)]
        newton.reset_curvature(v.newton_curvatures, v.newton_inverses, second_order.NEWTON_RIDGE)
        return store

    def _make_store_attributes(self, store: EnsembleStore) -> dict[str, Any]:
        """Return the attributes that this ensemble must set when it starts to use the memory ``store``, as a dict of name to
        value: views of the memory's arrays, the number of decision values per row, and two flags that make it link its compiled
        functions again.
        """
        v, inherited = store.views, super()._make_store_attributes(store)
        views = {"_row": v.unscaled[0], "_scores": v.scores, "_n_outputs": int(v.header[0]["n_outputs"])}
        return {**inherited, **views, "_is_connected": False, "_is_ready": False}

    @property
    def _expert_specs(self) -> tuple[Expert, ...]:
        """The specifications of the members of this ensemble, a tuple of `Expert`, as chosen by ``effort``."""
        return self._specs_by_effort[self.effort]

    def _list_parts(self) -> list[Part]:
        """Return a description of the parts of this model's memory that have a state: itself, and its members."""
        return [*super()._list_parts(), *(expert.describe_part() for expert in self._expert_specs)]

    def _convert(self, snapshot: bytes, saved: SavedLayout, parts: list[Part]) -> None:
        """Replace the contents of this ensemble's memory, which has these ``parts``, by those of ``snapshot``, the bytes of a
        memory with the layout ``saved`` or with other sizes. New members start empty, with the kernel width of the others. Raise
        a ValueError if the bytes are invalid.
        """
        new_members = self._store.convert(snapshot, saved, parts)
        experts = enumerate(zip(self._expert_specs, self._store.stores, strict=True))
        kernels = [(n, e, stores[0].views.header) for n, (e, stores) in experts if isinstance(e, KernelExpert)]
        unit = next((header["gamma"][0] / e.width for n, e, header in kernels if n not in new_members), 1.0)
        for _, expert, header in (kernel for kernel in kernels if kernel[0] in new_members):
            header["gamma"] = expert.width * unit
        if new_members:
            self._rule_record["features"] = 0  # so that the next row prepares the new members

    def _shrink_to(self, requested: Any) -> None:
        """Reduce each kernel machine to its smaller budget in ``requested``, an untrained model with another effort."""
        budgets = {e.name: e.budget for e in requested._expert_specs if isinstance(e, KernelMachineExpert)}
        for expert, stores in zip(self._expert_specs, self._store.stores, strict=True):
            if isinstance(expert, KernelMachineExpert):
                shrink_store(stores[0], choose_strategy("rbf", None), budgets.get(expert.name, expert.budget))

    # Rows -----------------------------------------------------------------------------------------------------------------

    def _compute_output(self, x: Mapping[Any, Any], output: int) -> float:
        """Return the decision value or a probability that the ensemble predicts for the row ``x``, a dict of feature name to
        number. ``output`` is an integer code that selects one of them. The first call compiles the functions of the members.
        """
        if not self._is_connected:
            self._connect_experts()
        return super()._compute_output(x, output)

    def _compute_matrix_outputs(self, matrix: np.ndarray, columns: np.ndarray, output: int, values: np.ndarray) -> None:
        """Compute the ensemble's decision values or probabilities for the rows of ``matrix`` [n, d], and write them into the
        array ``values`` [n, 1 or more]. ``columns`` [d] has the model's column index of each feature, and ``output`` is an
        integer code that selects decision values or probabilities.
        """
        if not self._is_connected:
            self._connect_experts()
        super()._compute_matrix_outputs(matrix, columns, output, values)

    def _connect_experts(self) -> None:
        """Compile the predict and update functions of the members of this ensemble, and write their addresses into the model's
        memory, where compiled code calls them.
        """
        ensemble.link_functions(self._store, (expert.functions for expert in self._expert_specs), self._combiner)
        self._is_connected = True

    def _prepare_to_learn(self, rows: int) -> None:
        """Compile the functions that are needed to learn ``rows`` more rows: those of the members on the first call, and those of
        budget maintenance if a member could exceed its budget of support vectors.
        """
        if not self._is_connected:
            self._connect_experts()
        if self._is_ready:
            return
        experts = zip(self._expert_specs, self._store.stores, strict=True)
        budgeted = [(expert.budget, stores[0]) for expert, stores in experts if isinstance(expert, KernelMachineExpert)]
        if self.n_learned + rows > min(budget for budget, _ in budgeted):
            for _, store in budgeted:
                set_strategy(store, choose_strategy("rbf", None), self._n_outputs > 1)
            self._is_ready = True

    def _find_output_code(self, name: OutputName) -> int:
        """Return the integer code of the output ``"auto"``, the decision value. Raise a ValueError for any other ``name``: an
        ensemble cannot choose between the latest weights and their average, as single learners can.
        """
        if name != "auto":
            raise ValueError(f"output must be 'auto': {type(self).__name__} combines the last and the average iterates")
        return super()._find_output_code(name)

    # Properties of the model ----------------------------------------------------------------------------------------------

    @property
    def experts(self) -> list[ExpertReport]:
        """A report on each output of each member of the ensemble: a list of ``ExpertReport`` with its current error, and its
        weight in the combined prediction.

        Each entry has the ``name`` of the expert, the ``output`` (such as ``"last"`` or ``"average"`` iterate), the ``error``
        over about the last 1,000 rows (the fraction of wrong labels, or the mean absolute error in the unit of the target) and
        the ``weight`` of its decision value in the stacks.
        """
        v, unit = self._store.views, self._error_unit
        names = [(expert.name, output) for expert in self._expert_specs for output in expert.outputs]
        shares = np.exp(self._combiner.LOSS_RATE * (v.losses.min() - v.losses))
        weights = shares @ v.weights / shares.sum()
        return [ExpertReport(*name, unit * float(v.errors[m]), float(weights[m])) for m, name in enumerate(names, FIRST_INPUT)]

    def _find_known_rows(self, x: Mapping[Any, Any]) -> KnownRows:
        """Return the rows that this ensemble stores, with their distances to the row ``x`` and their labels or targets: the rows
        of its k-nearest-neighbours member or, without one, the support vectors of a kernel machine.
        """
        self._compute_output(x, iterates.DECISION)  # computes the distances to the rows of an instance memory
        experts = list(zip(self._expert_specs, self._store.stores, strict=True))
        for memory in (stores[0] for expert, stores in experts if isinstance(expert, NeighboursExpert)):
            n, v = memory.n_rows, memory.views
            return KnownRows(memory.vectors, v.distances[:n].astype(np.float64), self._unscale_targets(v.targets[:n]), "rows")
        machine = next(stores[0] for expert, stores in experts if isinstance(expert, KernelMachineExpert) and expert.resets)
        vectors, labels = machine.vectors, find_vector_labels(machine.coefficients[::2], not self._has_targets)
        distances = compute_distances(self._store.views.scaled[: vectors.shape[1]], vectors)
        return KnownRows(vectors, distances, labels, "support vectors")

    def _unscale_targets(self, targets: np.ndarray) -> np.ndarray:
        """Convert standardised regression ``targets`` [n] to the original unit of the target. In classification, they are label
        indices, and are returned unchanged.
        """
        if not self._has_targets:
            return targets
        moments = self._store.views.target_moments[0]
        return moments[1] + self._error_unit * targets.astype(np.float64)

    def merge_with(self, *models: Any, **units: Any) -> NoReturn:  # noqa: ARG002
        """Raise a ValueError, because ensembles cannot be merged, unlike single learners such as `BSGDClassifier`."""
        raise ValueError(
            f"models of {type(self).__name__} cannot be merged: the stack of each is fitted to the decision values of its own "
            "experts, and there are no rows to fit a new stack to. To merge models, use BSGDClassifier or BSCAClassifier, their "
            "regressors, or a linear learner (--learner bsgd, bsca or linear)"
        )

    @property
    def active_combiner(self) -> str:
        """The name of the method that currently combines the predictions of the ensemble's members: ``"stacks"`` (stacking),
        ``"votes"`` (weighted votes, or in regression a weighted mean) or ``"best"`` (the best member alone).
        """
        return ("stacks", "votes", "best")[int(self._rule_record[0]["choice"])]

    def _check_experts(self) -> None:
        """Raise a ValueError if the saved state of a member of this ensemble, which was read from a file, is invalid or does not
        fit the parameters.
        """
        for expert, stores in zip(self._expert_specs, self._store.stores, strict=True):
            for store in stores:
                expert.check_store(store, self._n_outputs, self._loss)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"max_features": 20, "effort": "low"}
        yield {"max_features": 20}
