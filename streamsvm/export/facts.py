"""Facts of a model that go with its program: which model it is, its parameters, and what it has learned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.files.model_file import versions

__all__ = ["facts_of"]

_FIGURES = ("budget", "n_support", "n_merges", "effective_gamma", "effort", "follows", "n_iter_", "duality_gap_")
_LONGEST = 200  # characters of a parameter


def facts_of(model: Any) -> dict[str, Any]:
    """Return the facts of a learner or a fitted machine, as JSON.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> model = BSGDClassifier(budget=10, gamma=2.0)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> facts = facts_of(model)
    >>> facts["model"], facts["rows"], facts["n_support"], facts["parameters"]["gamma"]
    ('BSGDClassifier', 1, 1, 2.0)
    """
    found: dict[str, Any] = {"model": type(model).__name__, "versions": versions(), "parameters": _parameters(model)}
    rows = getattr(model, "n_learned", None) or getattr(model, "n_samples_fit_", None) or getattr(model, "shape_fit_", [None])[0]
    figures = {name.rstrip("_"): getattr(model, name) for name in _FIGURES if hasattr(model, name)}
    for name, value in {"rows": rows, **figures}.items():
        if value is not None and (plain := _plain(value)) is not None:
            found[name] = plain
    return found


def _parameters(model: Any) -> dict[str, Any]:
    given = model.get_params(deep=False) if hasattr(model, "get_params") else getattr(model, "_get_params", dict)()
    return {name: _shown(value) for name, value in given.items()}


def _shown(value: Any) -> Any:
    plain = _plain(value)
    return repr(value)[:_LONGEST] if plain is None and value is not None else plain


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; None where it is no text and no finite number."""
    value = value.item() if isinstance(value, np.generic) else value
    good = isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)
    good = good or (isinstance(value, float) and math.isfinite(value)) or (isinstance(value, str) and len(value) <= _LONGEST)
    return value if good else None
