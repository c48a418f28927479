"""The parameters of a model as text, by which a checkpoint knows the model that it continues."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from river import base, compose

__all__ = ["differing", "parameters_of"]


def parameters_of(model: Any) -> str:
    """Return the parameters of a model that has learned nothing."""
    # Taken before the first row, for some models show state in their repr; without addresses in memory. A wrapper's repr says
    # of what it wraps the name only.
    texts = [repr(model)]
    for step in model.steps.values() if isinstance(model, compose.Pipeline) else [model]:
        while isinstance(step, base.Wrapper):
            step = step._wrapped_model
            texts.append(repr(step))
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(texts))


def differing(then: str, now: str) -> str:
    """Say which lines of the parameters of two models differ."""
    before, after = (Counter(filter(None, (line.strip(" (),") for line in text.splitlines()))) for text in (then, now))
    learned, asked = (", ".join((one - other).elements()) for one, other in ((before, after), (after, before)))
    parts = [f"it was learned with {learned}"] * bool(learned) + [f"asked for is {asked}"] * bool(asked)
    return ", and ".join(parts) or "its steps have another order"
