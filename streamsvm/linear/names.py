"""The names of columns and classes that a block file saves for streams, and numbers for labels that are names."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.memory.features import LONGEST_NAME, OVERFLOW
from streamsvm.core.warning import warn
from streamsvm.linear.block_file import LARGEST_JSON

_OTHER_JSON = 2**20  # bytes of the JSON of a block file for all but the names


class StreamNames(NamedTuple):
    """How the rows of a stream name the columns and the classes of a block file."""

    names: list[Hashable] | None = None  # names of the columns; None: they are integers, or not known
    first: int | None = 0  # the first of those integers; None: the names are not known
    max_features: int | None = None  # columns of the `FeatureSpace` that gave the names; None: there was none
    overflow: str = "raise"  # its parameter
    text_labels: bool = False  # whether classes were cells of text, which a stream reads with `parse_label`

    def of_columns(self, n_features: int) -> list[Hashable]:
        """Return the names of all columns; ValueError where they are not known."""
        if self.names is not None:
            return list(self.names)
        if self.first is None:
            raise ValueError("the file does not say what its columns are called: give feature_names")
        return list(range(self.first, self.first + n_features))

    def texts(self) -> list[str]:
        """Return the names if all of them are texts and each column has one; else an empty list."""
        hashed = self.overflow == "hash" and self.names is not None and len(self.names) == self.max_features
        texts = [name for name in self.names or () if isinstance(name, str)]
        return texts if len(texts) == len(self.names or ()) and not hashed else []

    @classmethod
    def saved_in(cls, meta: dict[str, Any], n_features: int) -> StreamNames:
        """Return what the ``meta`` of a block file, which may hold anything, says of the names."""
        text = meta.get("text_labels") is True
        names, first, room, overflow = (meta.get(key) for key in ("names", "first_index", "max_features", "overflow"))
        if not (isinstance(room, int) and n_features <= room < 2**31 and overflow in OVERFLOW):
            room, overflow = None, "raise"
        if isinstance(names, list) and _can_be_saved(names) and len(names) == n_features:
            return cls(names, None, room, overflow, text)
        unnamed = "names" not in meta and first in (None, 0, 1)
        return cls(None, int(first or 0) if unnamed else None, room, overflow, text)


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
