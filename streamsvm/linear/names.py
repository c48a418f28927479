"""The names of columns and classes that a block file saves for streams, and numbers for labels that are names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from streamsvm.core.memory.features import LONGEST_NAME
from streamsvm.core.warning import warn
from streamsvm.linear.block_file import LARGEST_JSON

_OTHER_JSON = 2**20  # bytes of the JSON of a block file for all but the names


def saved_texts(meta: Mapping[str, Any], n_features: int) -> list[str] | None:
    """Return the names of columns that a block file saves, if they are ``n_features`` different texts; else None."""
    names = meta.get("names")
    if not isinstance(names, list) or len(names) != n_features or not _can_be_saved(names):
        return None
    return names if all(isinstance(name, str) for name in names) else None


def saved_index_base(meta: Mapping[str, Any]) -> int | None:
    """Return the integer that names the first column of a block file, 0 or 1; None where it saves other names, or none."""
    base = meta.get("index_base", 0)
    return base if "names" not in meta and type(base) is int and base in (0, 1) else None


def names_to_save(names: list[Any]) -> list[Any] | None:
    """Return the names of columns if a block file can save them; None where they are not texts and integers, or too long."""
    if not _can_be_saved(names):
        return None
    if sum(len(str(name)) for name in names) < LARGEST_JSON and len(json.dumps(names)) < LARGEST_JSON - _OTHER_JSON:
        return names
    warn("the names of features are too long to be saved with the rows: no learner can continue from a fit without them")
    return None


def _can_be_saved(names: list[Any]) -> bool:
    return all(type(name) in (str, int) for name in names) and len(set(names)) == len(names)


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
