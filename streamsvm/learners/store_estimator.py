"""The base of learners whose learned state is one block of bytes: how the block is made, enlarged, saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from streamsvm.core.checks import Overflow, check_number, check_parameters, parameter
from streamsvm.core.compiling.common import expect_component
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.memory.block import STATE_BEGIN, STATE_END, choose_columns
from streamsvm.core.memory.features import OVERFLOW_POLICIES, FeatureSpace
from streamsvm.core.memory.saved_layout import LAYOUT_VERSION, Part, SavedLayout, convert_store, find_layout
from streamsvm.core.steps import iterates
from streamsvm.core.steps.iterates import INITIAL_SLOPE
from streamsvm.core.steps.rule import FieldRange, Rule
from streamsvm.learners.river_base import RiverEstimator, list_parameters

_Kind = TypeVar("_Kind")


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(parameter, field))
def learner(kind: type[_Kind]) -> type[_Kind]:
    """Class decorator for learners: convert the class ``kind`` to a dataclass whose annotated attributes are parameters of the
    constructor (keyword-only by default), and return it.

    The docstring of the class is completed by the descriptions of the parameters (see `complete_docstring`).
    """
    return complete_docstring(dataclass(eq=False, repr=False, kw_only=True, match_args=False)(kind))


@learner
class StoreEstimator(RiverEstimator):
    """The base of models whose learned state is a store: one block of bytes, which compiled code reads and writes.

    The block grows in two cases only, by being copied to a larger one: for new features, and for new labels from the third on.
    """

    # The attributes below are derived from the parameters and the store, and are not saved as they are.
    #: The store. It has ``used`` (the number of columns with a feature), ``nbytes``, ``snapshot`` and ``restore``.
    _store: Any = field(init=False)
    #: The bytes of the store, uint8 [nbytes].
    _block: np.ndarray = field(init=False)
    #: Views of the block: the current row [columns], and its decision values if there can be several outputs.
    _row: np.ndarray = field(init=False)
    _scores: np.ndarray = field(init=False)
    #: The names of the features and their columns.
    _features: FeatureSpace = field(init=False)
    #: Two records inside the block, [1] each: the state that all learners have, and the state of the update rule.
    _common: Any = field(init=False)
    _rule_record: np.ndarray = field(init=False)
    #: The current number of decision values of a row.
    _n_outputs: int = field(init=False)

    _rule: ClassVar[Rule]
    # The parameters of any learner that affect how further rows are learned, and sizes.
    _changeable: ClassVar[frozenset[str]] = frozenset(
        {"C", "averaging", "budget", "class_weight", "effort", "epsilon", "eta", "eta0", "forgetting_factor", "l2"}
        | {"learning_rate", "max_classes", "max_features", "max_swaps", "nu", "overflow", "relaxation", "replay_steps"}
        | {"reprocess", "seed", "tol"}
    )
    _loss = iterates.HINGE
    max_features: int = 1024
    """The maximum number of feature names. Memory grows with the number of names seen, up to this maximum: see ``nbytes``."""
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW_POLICIES)
    """What to do with a new feature name when there are ``max_features`` names already: ``"raise"`` a ValueError, ``"hash"`` the
    name to one of the existing columns (values that share a column are added up), or ``"ignore"`` the feature.
    """
    averaging = 0
    """The number of recent rows that the average of the iterates represents. 0, the default in learners whose papers do not
    average, turns averaging off. The last iterate fluctuates, most of all with little regularisation. The average is steadier,
    but adapts to concept drift more slowly. Predictions follow the one of the two that has made fewer errors over about the last
    1,000 rows, or in regression has the smaller absolute error.
    """

    def __post_init__(self) -> None:
        expect_component(type(self))
        self._check_parameters()
        self._features = FeatureSpace(self.max_features, self.overflow, self._dtype)
        self._use_store(self._make_store(1, self._columns))
        self._common["scale"] = self._common["average_v"] = 1.0
        self._common["slope"] = INITIAL_SLOPE
        self._common["horizon"], self._common["loss"] = self.averaging, self._loss
        self._common["epsilon"] = getattr(self, "epsilon", 0.0)

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the parameter if a parameter of this model is out of its range. The constructor calls it
        before it allocates memory.
        """
        check_parameters(self)
        check_number("averaging", self.averaging, 0, inclusive=True, high=2**53, integer=True)

    @property
    def n_learned(self) -> int:
        """The number of rows that this model has learned so far. Rows of weight 0 do not count."""
        return int(self._common[0]["t"])

    @property
    def feature_names(self) -> list[Hashable]:
        """The names of the features that this model has seen so far, in the order of its columns."""
        return self._features.names

    @property
    def nbytes(self) -> int:
        """The size of this model's memory in bytes. It only grows with the number of features and labels, never with the number
        of rows.

        A new model has room for two features. The room doubles when it is full, up to ``max_features``. Each label from the
        third one on, up to ``max_classes``, takes the same number of bytes. While the model grows, there are two copies of it.
        """
        return int(self._store.nbytes)

    def _copy_with(self, parameters: dict[str, Any]) -> Any:
        """Return another model with the learned state of this one, and with new values of some ``parameters``. Raise a ValueError
        if a value is invalid, or does not fit what this model has learned.
        """
        parameters = {**self._get_params(), **parameters}
        requested = type(self)(**parameters)
        if requested.max_features < self.max_features:
            raise ValueError(f"max_features can grow from {self.max_features}, but not shrink to {requested.max_features}")
        if (requested.averaging > 0) != (self.averaging > 0):
            raise ValueError("averaging cannot be turned on or off: 0 means that it is off")
        model = copy.deepcopy(self)
        model._shrink_to(requested)
        changed = type(self).__new__(type(self))
        changed.__setstate__({**model.__getstate__(), "parameters": parameters, "layout_name": self._layout_name})
        return changed

    def _shrink_to(self, requested: Any) -> None:
        """Reduce this model to the smaller budget of ``requested``, an untrained model. By default, do nothing."""

    # The store --------------------------------------------------------------------------------------------------------------

    def _make_store(self, outputs: int, columns: int) -> Any:
        """Return a new, empty memory (store) for this kind of model, with room for ``outputs`` decision values and ``columns``
        features.
        """
        raise NotImplementedError

    @property
    def _columns(self) -> int:
        """The number of feature columns that the memory of this model needs for the features seen so far: a power of two, so that
        it is rarely enlarged.
        """
        return choose_columns(len(self._features), self.max_features)

    @property
    def _dtype(self) -> Any:
        """The numpy dtype of the rows that this model receives, before it scales them: float32 by default."""
        return np.float32

    def _use_store(self, store: Any) -> None:
        """Replace the memory of this model (one array of bytes with its learned state) by ``store``, and set all attributes that
        are views of it.
        """
        # One update, so that an interrupt leaves the model with either the old store or the new one.
        self.__dict__.update(self._make_store_attributes(store))

    def _make_store_attributes(self, store: Any) -> dict[str, Any]:
        """Return the attributes that this model must set when it starts to use the memory ``store``, as a dict of name to value:
        the memory itself, views of its arrays and records, and the number of decision values per row.
        """
        state, start, dtype = store.block[STATE_BEGIN:STATE_END], iterates.RULE_STATE_OFFSET - STATE_BEGIN, self._rule.state
        rule_record = state[start : start + dtype.itemsize].view(dtype) if dtype.names else np.zeros(1, dtype)
        common = state[:start].view(iterates.COMMON_STATE)
        return {"_store": store, "_block": store.block, "_n_outputs": 1, "_common": common, "_rule_record": rule_record}

    def _write_rule_state(self) -> None:
        """Write the initial state of this model's update rule (the compiled function that learns a row) into its memory."""
        for name, value in self._make_rule_state().items():
            self._rule_record[name] = value

    def _make_rule_state(self) -> dict[str, Any]:
        """Return the initial state of this model's update rule (the compiled function that learns a row), as a dict of field name
        to value. By default, these are the constructor parameters that are fields of the state; other fields start at 0.
        """
        parameters = list_parameters(type(self))
        return {name: getattr(self, name) for name in self._rule.state.names or () if name in parameters}

    def _resize(self, outputs: int) -> None:
        """Move this model to a larger memory, with room for ``outputs`` decision values and for all features seen so far.

        The old store does not change, so that it can be restored if the current row is refused.
        """
        store = self._make_store(outputs, self._columns)
        store.copy_from(self._store)
        if outputs != self._n_outputs:
            self._grow_outputs(store, outputs)
        attributes = self._make_store_attributes(store)
        attributes["_row"][: len(self._row)] = self._row
        self.__dict__.update(attributes)

    def _grow_columns(self, x: Mapping[Any, Any] | None = None) -> None:
        """Enlarge the memory of this model if it has too few columns for all features seen so far, and mark their columns as
        used. If it is enlarged, the values of ``x``, the row that is about to be learned, are written into the new memory.
        """
        if self._columns > self._store.columns:
            self._resize(self._n_outputs)
            if x is not None:
                self._features.fill_row(self._row, x, False)
                self._row += 0.0  # turns -0.0 into 0.0, as in a row that fits
        self._store.used = len(self._features)

    def _grow_outputs(self, store: Any, outputs: int) -> None:
        """Initialise the weights of new labels in ``store``, an enlarged copy of this model's memory with room for ``outputs``
        decision values. Decisions between the previous labels do not change. Only classifiers implement it.
        """
        raise NotImplementedError

    # A model is saved as plain values. The constructor rebuilds it, and the checks below make sure that compiled code does not
    # rely on unchecked values of a file.

    def __getstate__(self) -> dict[str, Any]:
        parameters = self._get_params()  # river inspects the signature for them
        derived = {declared.name for declared in fields(self)} | set(parameters)
        return {
            "parameters": parameters,
            "store": self._store.snapshot(),
            **({"layout": LAYOUT_VERSION} if LAYOUT_VERSION > 1 else {}),
            "features": self.feature_names,
            **({} if (order := self._features.order) is None else {"order": order}),
            "attributes": {name: value for name, value in self.__dict__.items() if name not in derived},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["attributes"].items():  # set by a subclass or by a user
            if hasattr(type(self), name):
                raise ValueError(f"the saved model is corrupt: it has an attribute {name!r}, which no model saves")
            self.__dict__[name] = value
        self.__init__(**state["parameters"])  # type: ignore[misc]
        common, rule_record, fixed_fields = self._common[0].copy(), self._rule_record[0].copy(), self._list_fixed_fields()
        self._features.restore(state["features"])
        self._features.restore_order(state.get("order"))
        outputs, layout = self._restore_labels(state), state.get("layout", 1)
        if layout == LAYOUT_VERSION and "layout_name" not in state:
            self._use_store(self._make_store(outputs, self._columns))
            self._store.restore(state["store"])
        else:
            self._resize(outputs)  # a new part of the store is as in a new model
            parts = self._list_parts()
            self._convert(state["store"], find_layout(layout, state.get("layout_name", self._layout_name), parts), parts)
        if len(self._features) != self._store.used:
            raise ValueError(
                f"the saved model is corrupt: {len(self._features)} feature names for {self._store.used} columns with a feature"
            )
        for name, value in self._list_fixed_fields().items():
            _check_equal(name, value, fixed_fields[name])
        check_record(self._common[0], common, {**iterates.COMMON_RANGES, **self._list_learned_fields()})
        check_record(self._rule_record[0], rule_record, self._rule.ranges)

    def _list_parts(self) -> list[Part]:
        """Return a description of the parts of this model's memory that have a state: itself, and the members of an ensemble."""
        learned = frozenset({**iterates.COMMON_RANGES, **self._list_learned_fields(), **self._rule.ranges})
        state = np.dtype(iterates.COMMON_STATE.descr + self._rule.state.descr * bool(self._rule.state.names))
        return [Part("", type(self._store).__name__, state, learned=learned)]

    def _convert(self, snapshot: bytes, saved: SavedLayout, parts: list[Part]) -> None:
        """Replace the contents of this model's memory, which has these ``parts``, by those of ``snapshot``, the bytes of a memory
        with the layout ``saved`` or with other sizes. Raise a ValueError if they are invalid.
        """
        convert_store(self._store, snapshot, saved, saved.parts[0], parts[0])

    @property
    def _layout_name(self) -> str:
        """The name of this kind of model in the records of layouts: that of its class, and the effort of an ensemble."""
        return f"{type(self).__name__} {getattr(self, 'effort', '')}".strip()

    def _restore_labels(self, state: dict[str, Any]) -> int:  # noqa: ARG002
        """Restore the labels from ``state``, the dict of a saved model, and return the number of decision values that they need:
        1 for models without labels.
        """
        return 1

    def _list_fixed_fields(self) -> dict[str, Any]:
        """Return a dict of fields in the model's memory that the parameters determine, such as kernel parameters, to compare with
        those of a saved model. By default, it is empty.
        """
        return {}

    def _list_learned_fields(self) -> dict[str, tuple[float, float]]:
        """Return the valid range of each additional field in the model's memory that learning changes, as a dict of field name to
        (minimum, maximum), to validate a saved model. By default, it is empty: there are only the fields of all models.
        """
        return {}


def check_record(record: np.void, initial: np.void, learned: Mapping[str, FieldRange]) -> None:
    """Raise a ValueError if the state ``record`` of a saved model is invalid. A field that learning changes must be within its
    range in ``learned`` (name to minimum and maximum); any other field must equal that of ``initial``, the state of a new model.
    """
    for name in record.dtype.names or ():
        if name not in learned:
            _check_equal(name, record[name], initial[name])
        elif not np.all((record[name] >= learned[name][0]) & (record[name] <= learned[name][1])):
            raise ValueError(f"the saved model is corrupt: its {name} is {record[name]}")


def _check_equal(name: str, value: Any, expected: Any) -> None:
    """Raise a ValueError if ``value``, the field ``name`` of a saved model, differs from ``expected``, the value that the model's
    parameters imply.
    """
    if np.any(value != expected):
        raise ValueError(f"the saved model is corrupt: its {name} is {value}, but its parameters imply {expected}")
