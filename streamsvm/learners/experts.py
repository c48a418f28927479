"""The kinds of experts in an ensemble. A class specifies the memory, the compiled functions and the initial state of a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from streamsvm.core.kernels import POLY, RBF
from streamsvm.core.memory.block import STATE_BEGIN, view_record
from streamsvm.core.memory.ensemble import ExpertSpec
from streamsvm.core.memory.forest import ForestStore
from streamsvm.core.memory.landmarks import LandmarkStore
from streamsvm.core.memory.neighbours import NeighbourStore
from streamsvm.core.memory.saved_layout import Part
from streamsvm.core.memory.support_vectors import SupportVectorStore
from streamsvm.core.memory.weights import WeightStore
from streamsvm.core.steps import experts, forest, iterates, landmarks, least_squares, linear_step, neighbours
from streamsvm.core.steps import second_order as newton
from streamsvm.core.steps.coordinate_ascent import step as ascent
from streamsvm.core.steps.ensemble import ExpertFunctions
from streamsvm.core.steps.rule import NO_STATE
from streamsvm.learners.budgeted_classifier import split_output
from streamsvm.learners.estimator import check_record
from streamsvm.learners.kernel_rls import check_stored_rows, grow_outputs, has_label_targets

_AVERAGING, _EPSILON = 3000, 0.1  # the defaults of these parameters in the learners themselves


def read_common(store: Any) -> Any:
    """Return the statistics that every learner keeps at the start of its memory (such as its number of steps and its recent
    errors), as a writable record. ``store`` is the memory of one member of an ensemble.
    """
    return view_record(store.block, STATE_BEGIN, iterates.COMMON_STATE)


@dataclass(frozen=True)
class Expert:
    """The specification of an expert."""

    name: str

    #: The names of its outputs, which are inputs of the stacks.
    outputs: ClassVar[tuple[str, ...]] = ("last", "average")
    functions: ClassVar[ExpertFunctions]

    def plan_memory(self, outputs: int) -> ExpertSpec:  # noqa: ARG002
        """Return the description of the memory (`ExpertSpec`) that this member of an ensemble needs if the ensemble has
        ``outputs`` decision values for a row.
        """
        return ExpertSpec(len(self.outputs))

    def describe_part(self) -> Part:
        """Return the description (name, store and state) that identifies this member of an ensemble in saved models."""
        spec = self.plan_memory(1)
        kind = "" if spec.store is None else spec.store.__name__
        return Part(self.name, kind, NO_STATE, spec.inputs, int(spec.is_second_order))

    def initialize_store(self, store: Any, random: int, loss: int) -> None:
        """Write the initial state of this member of an ensemble into its new memory ``store``. ``random`` is the seed of its
        random choices, and ``loss`` the code of the loss function.
        """

    def grow_outputs(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:
        """Adapt the memories ``stores`` of this member of an ensemble, if new labels increase its number of decision values from
        ``before`` to ``outputs``. Its decisions between the previous labels do not change. If two labels shared one value so far,
        ``positive`` (0 or 1) is the index of the label for which it was above 0.
        """

    def check_store(self, store: Any, outputs: int, loss: int) -> None:
        """Raise a ValueError if the memory ``store`` of this member of an ensemble, which was read from a file, is invalid for a
        model with this number of ``outputs`` and this ``loss``. By default, nothing is checked.
        """


@dataclass(frozen=True)
class LearnerExpert(Expert):
    """An expert that learns by the update rule of a learner of this library."""

    state: Mapping[str, float]
    """Initial values of its update rule's state; other fields are 0."""
    dtype: ClassVar[np.dtype[np.void]]
    learned: ClassVar[Mapping[str, Any]] = iterates.COMMON_RANGES

    def describe_part(self) -> Part:
        """Return the description (name, store and state) that identifies this member of an ensemble in saved models."""
        state = np.dtype(iterates.COMMON_STATE.descr + self.dtype.descr)
        return super().describe_part()._replace(state=state, learned=frozenset(self.learned))

    def get_states(self, store: Any) -> tuple[Any, Any]:
        """Return two writable records of this ensemble member's memory ``store``: the statistics that every learner has, and the
        state of its own update rule.
        """
        return read_common(store), view_record(store.block, iterates.RULE_STATE_OFFSET, self.dtype)

    def _make_initial_states(self, loss: int) -> tuple[Any, Any]:
        """Return the initial values of two records in this ensemble member's memory: the statistics that every learner has, and
        the state of its own update rule. ``loss`` is the integer code of the loss function.
        """
        common, rule_record = np.zeros(1, iterates.COMMON_STATE)[0], np.zeros(1, self.dtype)[0]
        epsilon = _EPSILON if loss == iterates.EPSILON_INSENSITIVE else 0.0
        initial = {"scale": 1.0, "average_v": 1.0, "slope": iterates.INITIAL_SLOPE, "horizon": _AVERAGING, "gamma_rows": -1}
        for name, value in {**initial, "loss": loss, "epsilon": epsilon}.items():
            common[name] = value
        for name, value in self.state.items():
            rule_record[name] = value
        return common, rule_record

    def initialize_store(self, store: Any, random: int, loss: int) -> None:
        """Write the initial statistics and the initial state of the update rule into this member's new memory ``store``.
        ``random`` is the seed of its random choices, and ``loss`` the code of the loss function.
        """
        common, rule_record = self._make_initial_states(loss)
        common["random"] = random
        state = np.frombuffer(common.tobytes() + rule_record.tobytes(), np.uint8)
        store.block[STATE_BEGIN : STATE_BEGIN + len(state)] = state

    def check_store(self, store: Any, outputs: int, loss: int) -> None:  # noqa: ARG002
        """Raise a ValueError if a statistic, or a field of the update rule's state, is out of its valid range in the memory
        ``store``, which was read from a file.
        """
        for saved, initial in zip(self.get_states(store), self._make_initial_states(loss), strict=True):
            check_record(saved, initial, self.learned)


@dataclass(frozen=True)
class KernelExpert(LearnerExpert):
    """The base of learners with a kernel."""

    width: float = 1.0
    """Its gamma, as a multiple of the ensemble's gamma."""
    budget: int = 150
    """The maximum number of support vectors or landmarks."""
    kernel: int = RBF
    rows_per_output: ClassVar[int]
    """The number of rows of coefficients for each output."""

    @property
    def _kernel_numbers(self) -> dict[str, float]:
        """The kernel parameters of this ensemble member that learning does not change, as a dict of name to number: the code of
        the kernel, ``degree`` and ``coef0``.
        """
        return {"kernel": self.kernel, "degree": 3, "coef0": 1.0 if self.kernel == POLY else 0.0}

    def initialize_store(self, store: Any, random: int, loss: int) -> None:
        """Write the initial state and the kernel parameters into this member's new memory ``store``. ``random`` is the seed of
        its random choices, and ``loss`` the code of the loss function.
        """
        super().initialize_store(store, random, loss)
        for name, value in {**self._kernel_numbers, "gamma": self.width}.items():
            store.views.header[name] = value

    def check_store(self, store: Any, outputs: int, loss: int) -> None:
        """Raise a ValueError if the state, the kernel parameters or the number of outputs in the memory ``store``, which was read
        from a file, do not fit this kernel machine of the ensemble.
        """
        super().check_store(store, outputs, loss)
        for name, value in {"n_outputs": self.rows_per_output * outputs, **self._kernel_numbers}.items():
            if store.views.header[0][name] != value:
                raise ValueError(f"the saved model is corrupt: {name} of an expert is {store.views.header[0][name]}, not {value}")


@dataclass(frozen=True)
class KernelMachineExpert(KernelExpert):
    """Budgeted coordinate ascent in the dual. It may reset itself on concept drift, or learn the error of another expert."""

    resets: bool = False
    """Whether it starts from scratch when its errors increase."""
    corrects: Expert | None = None
    """The expert whose error it learns (boosting); None if it learns the target itself."""

    rows_per_output: ClassVar[int] = 2
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        experts.predict_kernel_machine, experts.update_kernel_machine, experts.rescale_kernel_machine, ascent.learn_one
    )
    dtype: ClassVar[np.dtype[np.void]] = ascent.state

    def plan_memory(self, outputs: int) -> ExpertSpec:
        """Return the description of the memory (`ExpertSpec`) of this kernel machine: room for its budget of support vectors,
        with two coefficients (the latest one and its running average) for each of ``outputs`` decision values.
        """
        return ExpertSpec(2, SupportVectorStore, {"budget": self.budget, "outputs": 2 * outputs})

    def grow_outputs(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:
        """Adapt the memory of this kernel machine, the only item of ``stores``, if new labels increase its number of decision
        values from ``before`` to ``outputs``. If two labels shared one value so far, it is split into one for each; ``positive``
        (0 or 1) is the index of the label for which it was above 0.
        """
        if before == 1:
            split_output(stores[0].views, positive)
        stores[0].n_outputs = 2 * outputs


@dataclass(frozen=True)
class LinearExpert(LearnerExpert):
    """A linear learner of first order, with one store for each output."""

    functions: ClassVar[ExpertFunctions] = ExpertFunctions(experts.predict_linear, experts.update_linear)
    dtype: ClassVar[np.dtype[np.void]] = linear_step.STATE

    def plan_memory(self, outputs: int) -> ExpertSpec:  # noqa: ARG002
        """Return the description of the memory (`ExpertSpec`) of this linear model: for each decision value, one memory with the
        latest weights and their running average.
        """
        return ExpertSpec(2, WeightStore, {"takes_rows": False})

    def grow_outputs(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:  # noqa: ARG002
        """Adapt the weights of this linear model if new labels increase its number of decision values from ``before`` to
        ``outputs``. ``stores`` has one memory for each value. If two labels shared one value so far, each gets a copy of the
        weights, negated for the negative label; ``positive`` (0 or 1) is the index of the other one.
        """
        if before == 1:
            stores[1].block[:] = stores[0].block
            weights = stores[1 - positive].views
            for numbers in (weights.weights, weights.biases):
                np.subtract(0.0, numbers, out=numbers)  # and not -numbers: unused columns must stay 0.0, not -0.0
        common = read_common(stores[0])
        for store in list(stores)[max(before, 2) :]:
            self.initialize_store(store, int(common["random"]), int(common["loss"]))


@dataclass(frozen=True)
class LandmarkExpert(KernelExpert):
    """Recursive least squares on the kernel values with landmarks."""

    rows_per_output: ClassVar[int] = 1
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        experts.predict_landmarks, experts.update_landmarks, experts.rescale_landmarks, landmarks.learn_one
    )
    dtype: ClassVar[np.dtype[np.void]] = least_squares.STATE
    learned: ClassVar[Mapping[str, Any]] = MappingProxyType({**iterates.COMMON_RANGES, **least_squares.STATE_RANGES})

    def plan_memory(self, outputs: int) -> ExpertSpec:
        """Return the description of the memory (`ExpertSpec`) of this kernel least squares model: room for its landmarks, and for
        the normal equations of ``outputs`` decision values.
        """
        return ExpertSpec(2, LandmarkStore, {"budget": self.budget, "outputs": outputs})

    def grow_outputs(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:
        """Adapt the memory of this model, the only item of ``stores``, if new labels increase its number of decision values from
        ``before`` to ``outputs``. If two labels shared one value so far, ``positive`` (0 or 1) is the index of the label for
        which it was above 0.
        """
        grow_outputs(stores[0].block, before, outputs, positive)

    def check_store(self, store: Any, outputs: int, loss: int) -> None:
        """Raise a ValueError if the memory ``store``, which was read from a file, is invalid for this kernel least squares model:
        if its state, its kernel parameters, the number of its stored rows, or their labels do not fit.
        """
        super().check_store(store, outputs, loss)
        rule_record = self.get_states(store)[1]
        check_stored_rows(store, rule_record)
        if loss == iterates.HINGE and not has_label_targets(store, rule_record):
            raise ValueError("the saved model is corrupt: an expert stores targets that are not labels")


@dataclass(frozen=True)
class SecondOrderExpert(Expert):
    """A linear learner of second order: Newton's method on the features."""

    memory: float = 1.0 - 1e-3
    """The forgetting factor: the weight of all earlier rows is multiplied by it with each row."""
    additive: ClassVar[bool] = False

    outputs: ClassVar[tuple[str, ...]] = ("last",)
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(newton.predict_second_order, newton.update_second_order)

    def plan_memory(self, outputs: int) -> ExpertSpec:  # noqa: ARG002
        """Return the description of the memory (`ExpertSpec`) of this linear model of second order. Its matrix [features,
        features] is part of the ensemble's own arrays, so it needs no memory of its own.
        """
        return ExpertSpec(1, is_second_order=True)


@dataclass(frozen=True)
class AdditiveExpert(SecondOrderExpert):
    """An additive model: Newton's method on functions of one feature each."""

    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        newton.predict_second_order, newton.update_second_order, newton.reset_functions
    )
    additive: ClassVar[bool] = True


@dataclass(frozen=True)
class LastLabelExpert(Expert):
    """Predicts the last label, and the labels that followed the last label earlier in the stream."""

    outputs: ClassVar[tuple[str, ...]] = ("last", "what follows it")
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(experts.predict_last_label, experts.update_last_label)


@dataclass(frozen=True)
class LastTargetExpert(Expert):
    """Predicts the last target."""

    outputs: ClassVar[tuple[str, ...]] = ("last",)
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(experts.predict_last_target)


@dataclass(frozen=True)
class NeighboursExpert(Expert):
    """An instance memory: the nearest stored rows vote (k nearest neighbours)."""

    rows: int = 2000

    outputs: ClassVar[tuple[str, ...]] = ("last",)
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        neighbours.predict_neighbours, neighbours.update_neighbours, neighbours.rescale_neighbours
    )

    def plan_memory(self, outputs: int) -> ExpertSpec:
        """Return the description of the memory (`ExpertSpec`) of this k-nearest-neighbours model: room for its chosen number of
        stored rows, or for twice as many if ``outputs``, the number of decision values, is above 1 (three or more labels).
        """
        return ExpertSpec(1, NeighbourStore, {"rows": self.rows if outputs == 1 else 2 * self.rows})

    def grow_outputs(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:  # noqa: ARG002
        """Adapt the stored rows of this k-nearest-neighbours model, in ``stores[0]``, when a third label arrives: their targets,
        1 or -1 for two labels (``before`` is 1), become label indices. ``positive`` (0 or 1) is the index of the label with the
        target 1. ``outputs`` has no effect.
        """
        if before == 1:
            targets = stores[0].views.targets[: stores[0].n_rows]
            targets[:] = np.where(targets == 1.0, positive, 1 - positive)

    def check_store(self, store: Any, outputs: int, loss: int) -> None:
        """Raise a ValueError if a target of the stored rows in ``store``, which was read from a file, is not an index of one of
        the model's labels.
        """
        if loss == iterates.HINGE and not np.isin(store.views.targets, np.arange(max(outputs, 2))).all():
            raise ValueError("the saved model is corrupt: its instance memory has targets that are not labels")


@dataclass(frozen=True)
class ForestExpert(Expert):
    """A rolling forest of classification trees."""

    rows: int = 2400

    outputs: ClassVar[tuple[str, ...]] = ("share", "logarithm")
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(forest.predict_labels, forest.update_labels, forest.rescale_forest)

    def plan_memory(self, outputs: int) -> ExpertSpec:
        """Return the description of the memory (`ExpertSpec`) of this forest of classification trees: room for the trees and
        their stored rows, with counts for each label.
        """
        return ExpertSpec(2, ForestStore, {"rows": self.rows, "labels": max(outputs, 2)})

    def initialize_store(self, store: Any, random: int, loss: int) -> None:  # noqa: ARG002
        """Write the seed ``random`` of the forest's random choices into its new memory ``store``."""
        store.views.header["random"] = random

    def grow_outputs(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:  # noqa: ARG002
        """Adapt this forest, in ``stores[0]``, when a third label arrives (``before`` is 1): exchange the label indices 0 and 1
        in all trees if the positive label arrived first (``positive`` is 0). With two labels, index 1 is the positive one; with
        more, indices follow the order of arrival.
        """
        if before == 1 and positive == 0:
            stores[0].swap_labels()


@dataclass(frozen=True)
class RegressionForestExpert(ForestExpert):
    """A rolling forest of regression trees, which predict the target or the error of the other experts."""

    outputs: ClassVar[tuple[str, ...]] = ("target", "what others miss")
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(forest.predict_targets, forest.update_targets, forest.rescale_forest)

    def plan_memory(self, outputs: int) -> ExpertSpec:  # noqa: ARG002
        """Return the description of the memory (`ExpertSpec`) of this forest of regression trees: room for the trees and their
        stored rows.
        """
        return ExpertSpec(2, ForestStore, {"rows": self.rows, "labels": 0})
