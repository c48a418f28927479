"""Parameters that change on a trained model, by river's protocol ``mutate``, and the differences between two models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from river import base

from streamsvm.files.messages import format_names, short_repr

_PARTS = "steps", "transformers"  # attributes of river's pipelines and unions


class Mutable:
    """A model some of whose parameters, `_mutable_attributes`, can change after it has learned.

    It is restored from its own saved state with the new values, so that it equals a saved model that is loaded with them.
    """

    #: The names of the parameters that can change, and of those that hold a model with such parameters; None for all.
    _changeable: ClassVar[frozenset[str] | None] = None

    @property
    def _mutable_attributes(self) -> set[str]:
        """The set of parameters that `mutate` can change, under the name that river reads."""
        names: set[str] = {*self._get_params()}  # type: ignore[attr-defined]
        return names if self._changeable is None else names & self._changeable

    def mutate(self, new_attrs: dict[str, Any]) -> None:
        """Change parameters of this model in place, also after it has learned, as in river's protocol.

        The learned state stays. If a value is refused, nothing changes. Parameters that the learned state depends on, such as
        the kernel, need a new model: see `clone`.

        Parameters
        ----------
        new_attrs
            A mapping of parameter to its new value. For a parameter that holds a model, such as ``regressor`` of a wrapper, the
            value is a mapping of its parameters.

        Raises
        ------
        ValueError
            A name is unknown, or the parameter cannot change or not to this value; the message names it.
        """
        kind, models = type(self).__name__, {name for name in new_attrs if hasattr(getattr(self, name, None), "learn_one")}
        for name, value in new_attrs.items():
            if name not in self._mutable_attributes:
                reason = "cannot change after construction" if hasattr(self, name) else "is not a parameter"
                names = format_names(sorted(self._mutable_attributes), 30)
                raise ValueError(f"{name} of a {kind} {reason}: {names} can change; for others, clone({{{name!r}: ...}})")
            if name in models and not isinstance(value, Mapping):
                raise ValueError(f"{name} must be a mapping of parameters to change, not {short_repr(value)}")
        own = {name: value for name, value in new_attrs.items() if name not in models}
        try:
            changed = self._copy_with(own) if own else None
        except ValueError as error:
            raise ValueError(f"{', '.join(own)} of a {kind} cannot change: {error}") from error
        for name in models:
            getattr(self, name).mutate(new_attrs[name])
        if changed is not None:
            self.__dict__.update(changed.__dict__)

    def _init_from(self, state: Mapping[str, Any]) -> None:
        """Call the constructor with the parameters in ``state``, a saved state. One that a later version has added is absent, and
        has its default.
        """
        names = inspect.signature(type(self)).parameters
        self.__init__(**{name: state[name] for name in names if name in state})  # type: ignore[misc]

    def _copy_with(self, parameters: dict[str, Any]) -> Any:
        """Return another model with the learned state of this one, and with new values of some ``parameters``. Raise a ValueError
        if a value is invalid.
        """
        state: Any = self.__getstate__()
        changed: Any = type(self).__new__(type(self))
        stored = {"parameters": {**state["parameters"], **parameters}} if "parameters" in state else parameters
        changed.__setstate__({**state, **stored})
        return changed


class Differences(NamedTuple):
    """The differences between the parameters of a trained model and of another one, as `compare_parameters` returns them."""

    new_params: dict[str, Any]
    """The argument of ``mutate`` that gives the trained model the parameters of the other one, as far as they can change."""
    changes: list[str]
    """Texts about them, such as ``"BSGDClassifier budget: 50 -> 60"``."""
    conflicts: list[str]
    """Texts about the differences that no trained model can adopt."""


def compare_parameters(model: Any, requested: Any) -> Differences:
    """Return the differences between the parameters of a trained ``model`` and of a ``requested``, untrained one: those
    that `mutate` of the model can change, and those that conflict with its learned state.

    >>> from streamsvm import BSGDClassifier
    >>> compare_parameters(BSGDClassifier(budget=50), BSGDClassifier(budget=60, kernel="linear"))
    Differences(new_params={'budget': 60}, changes=['BSGDClassifier budget: 50 -> 60'],
        conflicts=["BSGDClassifier kernel: 'rbf' -> 'linear'"])
    """
    kind = type(model).__name__
    if type(model) is not type(requested):
        return Differences({}, [], [f"{kind} -> {type(requested).__name__}"])
    old, new = _list_parts(model), _list_parts(requested)
    if list(old) != list(new):
        return Differences({}, [], [f"{kind}: {' | '.join(old)} -> {' | '.join(new)}"])
    is_composed = any(old is getattr(model, name, None) for name in _PARTS)
    result = Differences({}, [], [])
    for name, value in old.items():
        can_change = is_composed or name in model._mutable_attributes
        if isinstance(value, base.Base) and type(value) is type(new[name]):
            nested = compare_parameters(value, new[name])
        elif _are_equal(value, new[name]):
            continue
        else:
            nested = Differences(new[name], [f"{kind} {name}: {short_repr(value)} -> {short_repr(new[name])}"], [])
            can_change = can_change and not hasattr(value, "learn_one")
        (result.changes if can_change else result.conflicts).extend(nested.changes)
        if can_change and nested.changes:
            result.new_params[name] = nested.new_params
        result.conflicts.extend(nested.conflicts)
    return result


def _list_parts(model: Any) -> Mapping[str, Any]:
    """Return the steps of a river pipeline or union, or the parameters of any other model, by name."""
    for steps in (getattr(model, name, None) for name in _PARTS):
        if isinstance(steps, Mapping):
            return steps
    parameters = model._get_params()
    return {name: getattr(model, name, value) for name, value in parameters.items() if name != "cm"}  # the counts of a metric


def _are_equal(value: Any, requested: Any) -> bool:
    """Return whether two values of a parameter are equal, or print alike apart from addresses in memory."""
    texts = {re.sub(r" at 0x[0-9a-f]+", "", repr(item)) for item in (value, requested)}
    return len(texts) == 1 or (not isinstance(value, base.Base) and bool(np.all(value == requested)))
