"""The parameters of a model, by which a checkpoint knows the model that it continues."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from river import base, compose


def parameters_of(model: Any) -> str:
    """Return the parameters of a model that has learned nothing."""
    # Taken before the first row, for some models show state in their repr; without addresses in memory. A wrapper's repr says
    # of what it wraps the name only.
    kind = type(model).__name__
    texts = [repr(model).replace(kind, "Pipeline", 1) if isinstance(model, compose.Pipeline) else repr(model)]
    for step in model.steps.values() if isinstance(model, compose.Pipeline) else [model]:
        while isinstance(step, base.Wrapper):
            step = step._wrapped_model
            texts.append(repr(step))
    return re.sub(r" at 0x[0-9a-f]+|\n +marks=\{\}", "", "\n".join(texts))


def as_now(parameters: Any) -> str:
    """Return the parameters in a checkpoint with the default of now, where earlier versions had room for 256 features."""
    return re.sub(r"\bmax_features=256\b", "max_features=1024", str(parameters))


def differing(then: str, now: str) -> str:
    """Say which lines of the parameters of two models differ."""
    before, after = (Counter(filter(None, (line.strip(" (),") for line in text.splitlines()))) for text in (then, now))
    learned, asked = (", ".join((one - other).elements()) for one, other in ((before, after), (after, before)))
    parts = [f"it was learned with {learned}"] * bool(learned) + [f"asked for is {asked}"] * bool(asked)
    return ", and ".join(parts) or "its steps have another order"
