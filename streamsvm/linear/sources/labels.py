"""Numbers for labels that are names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.memory.features import LONGEST_NAME

__all__ = ["LabelCodes"]

_MOST_CLASSES = 64


class LabelCodes:
    """Numbers for labels: the labels themselves, or if the first one is a name, the order in which names came."""

    def __init__(self) -> None:
        self._codes: dict[str, float] = {}
        self.numbers: bool = False
        """Whether labels are numbers, of which some came."""

    @property
    def meta(self) -> dict[str, Any]:
        """The facts that a block file saves: the names of 0, 1 and so on, if labels are names."""
        return {"classes": list(self._codes)} if self._codes else {}

    def code(self, label: Any) -> float:
        """Return the number of a label; ValueError where it is missing, is not of the kind of those before, or one too many."""
        if label is None or label == "":
            raise ValueError("there is no label: leave the row out")
        if isinstance(label, str):
            if self.numbers:
                raise ValueError(f"label {label!r} is a name, and there were numbers before")
            if label not in self._codes:
                if len(label) > LONGEST_NAME:
                    raise ValueError(
                        f"label {label[:60]!r}... has {len(label):,} characters; at most {LONGEST_NAME:,} are allowed"
                    )
                if len(self._codes) == _MOST_CLASSES:
                    raise ValueError(f"label {label!r} is one too many: at most {_MOST_CLASSES} names are saved")
                self._codes[label] = float(len(self._codes))
            return self._codes[label]
        number = float(label) if isinstance(label, bool | int | float | np.number | np.bool_) else math.nan
        if not math.isfinite(number) or self._codes:
            raise ValueError(f"label {label!r} is no finite number" + (", and there were names before" if self._codes else ""))
        self.numbers = True
        return number
