"""The names of columns and classes that a block file saves for streams."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any, NamedTuple

from streamsvm.core.memory.features import OVERFLOW
from streamsvm.core.warning import warn
from streamsvm.linear.files.block_file import LARGEST_JSON

__all__ = ["StreamNames", "names_to_save"]

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
