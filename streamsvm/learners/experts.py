"""The kinds of experts that an ensemble consists of: their memory and compiled functions, and their state in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from streamsvm.core.kernels import POLY, RBF
from streamsvm.core.memory.block import STATE_BEGIN, view_record
from streamsvm.core.memory.ensemble import Place
from streamsvm.core.memory.forest import ForestStore
from streamsvm.core.memory.landmarks import LandmarkStore
from streamsvm.core.memory.neighbours import NeighbourStore
from streamsvm.core.memory.support_vectors import SupportVectorStore
from streamsvm.core.memory.weights import WeightStore
from streamsvm.core.steps import experts, forest, iterates, landmarks, least_squares, linear_step, neighbours
from streamsvm.core.steps import second_order as newton
from streamsvm.core.steps.coordinate_ascent import step as ascent
from streamsvm.core.steps.ensemble import ExpertFunctions
from streamsvm.learners.classifier import split_output
from streamsvm.learners.estimator import check_record
from streamsvm.learners.kernel_rls import check_work, grow_outputs, holds_labels

_AVERAGING, _EPSILON = 3000, 0.1  # rows, and an error, as by default in the learners themselves


def read_common(store: Any) -> Any:
    """Return the record of an expert's store that all learners have."""
    return view_record(store.block, STATE_BEGIN, iterates.COMMON_STATE)


@dataclass(frozen=True)
class Expert:
    """An expert of an ensemble."""

    name: str

    #: The names of its inputs to the stacks.
    outputs: ClassVar[tuple[str, ...]] = ("last", "average")
    functions: ClassVar[ExpertFunctions]

    def place(self, outputs: int) -> Place:  # noqa: ARG002
        """Return the room that it needs."""
        return Place(len(self.outputs))

    def initialize(self, store: Any, random: int, loss: int) -> None:
        """Set the state of a new store."""

    def grow(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:
        """Continue with more outputs than ``before``: one output f becomes f of label number ``positive`` and -f of the other."""

    def check(self, store: Any, outputs: int, loss: int) -> None:
        """Raise a ValueError if the state of a store from a file does not fit the model."""


@dataclass(frozen=True)
class Learner(Expert):
    """An expert that is a learner of the library."""

    state: Mapping[str, float]
    """The first numbers of its rule."""
    dtype: ClassVar[np.dtype[np.void]]
    learned: ClassVar[Mapping[str, Any]] = iterates.COMMON_RANGES

    def states(self, store: Any) -> tuple[Any, Any]:
        """Return the records of a store: what all learners have, and the rule's."""
        return read_common(store), view_record(store.block, iterates.RULE_STATE_OFFSET, self.dtype)

    def _first_states(self, loss: int) -> tuple[Any, Any]:
        common, own = np.zeros(1, iterates.COMMON_STATE)[0], np.zeros(1, self.dtype)[0]
        epsilon = _EPSILON if loss == iterates.EPSILON_INSENSITIVE else 0.0
        first = {"scale": 1.0, "average_v": 1.0, "slope": iterates.INITIAL_SLOPE, "horizon": _AVERAGING, "gamma_rows": -1}
        for name, value in {**first, "loss": loss, "epsilon": epsilon}.items():
            common[name] = value
        for name, value in self.state.items():
            own[name] = value
        return common, own

    def initialize(self, store: Any, random: int, loss: int) -> None:
        common, own = self._first_states(loss)
        common["random"] = random
        state = np.frombuffer(common.tobytes() + own.tobytes(), np.uint8)
        store.block[STATE_BEGIN : STATE_BEGIN + len(state)] = state

    def check(self, store: Any, outputs: int, loss: int) -> None:  # noqa: ARG002
        for saved, first in zip(self.states(store), self._first_states(loss), strict=True):
            check_record(saved, first, self.learned)


@dataclass(frozen=True)
class KernelLearner(Learner):
    """A learner with a kernel."""

    width: float = 1.0
    """Its gamma over that of the ensemble."""
    budget: int = 150
    """Its support vectors or landmarks."""
    kernel: int = RBF
    outputs_each: ClassVar[int]
    """Rows of coefficients of an output that are in use."""

    @property
    def _kernel_numbers(self) -> dict[str, float]:
        return {"kernel": self.kernel, "degree": 3, "coef0": 1.0 if self.kernel == POLY else 0.0}

    def initialize(self, store: Any, random: int, loss: int) -> None:
        super().initialize(store, random, loss)
        for name, value in {**self._kernel_numbers, "gamma": self.width}.items():
            store.views.header[name] = value

    def check(self, store: Any, outputs: int, loss: int) -> None:
        super().check(store, outputs, loss)
        for name, value in {"n_outputs": self.outputs_each * outputs, **self._kernel_numbers}.items():
            if store.views.header[0][name] != value:
                raise ValueError(f"the saved model is corrupt: {name} of an expert is {store.views.header[0][name]}, not {value}")


@dataclass(frozen=True)
class BudgetedMachine(KernelLearner):
    """Coordinate ascent in the dual with a budget. It may begin anew where the stream drifts, or correct another expert."""

    resets: bool = False
    corrects: Expert | None = None

    outputs_each: ClassVar[int] = 2
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        experts.predict_kernel_machine, experts.update_kernel_machine, experts.rescale_kernel_machine, ascent.learn_one
    )
    dtype: ClassVar[np.dtype[np.void]] = ascent.state

    def place(self, outputs: int) -> Place:
        return Place(2, SupportVectorStore, {"budget": self.budget, "outputs": 2 * outputs})

    def grow(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:
        if before == 1:
            split_output(stores[0].views, positive)
        stores[0].n_outputs = 2 * outputs


@dataclass(frozen=True)
class Linear(Learner):
    """A linear learner of first order, which has a store for each output."""

    functions: ClassVar[ExpertFunctions] = ExpertFunctions(experts.predict_linear, experts.update_linear)
    dtype: ClassVar[np.dtype[np.void]] = linear_step.STATE

    def place(self, outputs: int) -> Place:  # noqa: ARG002
        return Place(2, WeightStore, {"takes_rows": False})

    def grow(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:  # noqa: ARG002
        if before == 1:
            stores[1].block[:] = stores[0].block
            weights = stores[1 - positive].views
            for numbers in (weights.weights, weights.biases):
                np.subtract(0.0, numbers, out=numbers)  # no -0.0, which is not saved of features to come
        common = read_common(stores[0])
        for store in list(stores)[max(before, 2) :]:
            self.initialize(store, int(common["random"]), int(common["loss"]))


@dataclass(frozen=True)
class Landmarks(KernelLearner):
    """Recursive least squares on kernel values with landmarks."""

    outputs_each: ClassVar[int] = 1
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        experts.predict_landmarks, experts.update_landmarks, experts.rescale_landmarks, landmarks.learn_one
    )
    dtype: ClassVar[np.dtype[np.void]] = least_squares.STATE
    learned: ClassVar[Mapping[str, Any]] = MappingProxyType({**iterates.COMMON_RANGES, **least_squares.STATE_RANGES})

    def place(self, outputs: int) -> Place:
        return Place(2, LandmarkStore, {"budget": self.budget, "outputs": outputs})

    def grow(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:
        grow_outputs(stores[0].block, before, outputs, positive)

    def check(self, store: Any, outputs: int, loss: int) -> None:
        super().check(store, outputs, loss)
        own = self.states(store)[1]
        check_work(store, own)
        if loss == iterates.HINGE and not holds_labels(store, own):
            raise ValueError("the saved model is corrupt: an expert holds targets that are no labels")


@dataclass(frozen=True)
class SecondOrder(Expert):
    """Newton's method on the features."""

    memory: float = 1.0 - 1e-3
    """The factor by which rows fade."""
    additive: ClassVar[bool] = False

    outputs: ClassVar[tuple[str, ...]] = ("last",)
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(newton.predict_second_order, newton.update_second_order)

    def place(self, outputs: int) -> Place:  # noqa: ARG002
        return Place(1, is_second_order=True)


@dataclass(frozen=True)
class Additive(SecondOrder):
    """Newton's method on functions of one feature each."""

    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        newton.predict_second_order, newton.update_second_order, newton.reset_functions
    )
    additive: ClassVar[bool] = True


@dataclass(frozen=True)
class LastLabel(Expert):
    """The last label, and what followed it before."""

    outputs: ClassVar[tuple[str, ...]] = ("last", "what follows it")
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(experts.predict_last_label, experts.update_last_label)


@dataclass(frozen=True)
class LastTarget(Expert):
    """The last target."""

    outputs: ClassVar[tuple[str, ...]] = ("last",)
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(experts.predict_last_target)


@dataclass(frozen=True)
class Neighbours(Expert):
    """A memory of rows, of which the nearest vote."""

    rows: int = 2000

    outputs: ClassVar[tuple[str, ...]] = ("last",)
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(
        neighbours.predict_neighbours, neighbours.update_neighbours, neighbours.rescale_neighbours
    )

    def place(self, outputs: int) -> Place:
        return Place(1, NeighbourStore, {"rows": self.rows if outputs == 1 else 2 * self.rows})

    def grow(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:  # noqa: ARG002
        if before == 1:
            targets = stores[0].views.targets[: stores[0].n_rows]
            targets[:] = np.where(targets == 1.0, positive, 1 - positive)

    def check(self, store: Any, outputs: int, loss: int) -> None:
        if loss == iterates.HINGE and not np.isin(store.views.targets, np.arange(max(outputs, 2))).all():
            raise ValueError("the saved model is corrupt: its memory of rows holds targets that are no labels")


@dataclass(frozen=True)
class Forest(Expert):
    """A rolling forest that votes for labels."""

    rows: int = 2400

    outputs: ClassVar[tuple[str, ...]] = ("share", "logarithm")
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(forest.predict_labels, forest.update_labels, forest.rescale_forest)

    def place(self, outputs: int) -> Place:
        return Place(2, ForestStore, {"rows": self.rows, "labels": max(outputs, 2)})

    def initialize(self, store: Any, random: int, loss: int) -> None:  # noqa: ARG002
        store.views.header["random"] = random

    def grow(self, stores: Sequence[Any], before: int, outputs: int, positive: int) -> None:  # noqa: ARG002
        if before == 1 and positive == 0:
            stores[0].swap_labels()


@dataclass(frozen=True)
class NumberForest(Forest):
    """A rolling forest that predicts targets, and what other experts miss of them."""

    outputs: ClassVar[tuple[str, ...]] = ("target", "what others miss")
    functions: ClassVar[ExpertFunctions] = ExpertFunctions(forest.predict_targets, forest.update_targets, forest.rescale_forest)

    def place(self, outputs: int) -> Place:  # noqa: ARG002
        return Place(2, ForestStore, {"rows": self.rows, "labels": 0})
