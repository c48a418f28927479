"""Conversion of saved stores, by names: a model continues from the bytes of a store with another layout, or of other sizes.

`layouts.json` records each layout that models were saved with: the fields of headers and states, the arrays with their shapes,
and the experts of ensembles. A file has the number of its layout, or the first one.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.memory.block import LINE, STATE_BEGIN, Store

#: The number of the present layouts. To change a layout, increase it, and run ``python release/layouts.py``.
LAYOUT_VERSION = 1


class Part(NamedTuple):
    """A store with its state: that of a model, whose name is empty, or of an expert of an ensemble."""

    name: str
    kind: str
    """The name of the class of the store; empty for an expert without one."""
    state: np.dtype[Any]
    """The state of all learners, followed by that of the update rule; a member without a state has no fields."""
    inputs: int = 0
    newtons: int = 0
    """The numbers of its inputs to the stacks, and of its second-order matrices."""
    learned: frozenset[str] = frozenset()
    """The fields of the state that learning changes. A store that is restored keeps its own values of all others."""


class SavedLayout(NamedTuple):
    """A layout of saved models: the byte range of states, the header and the arrays of each class of stores, and the parts."""

    start: int
    stop: int
    tables: Mapping[str, Any]
    parts: Sequence[Part]


def find_layout(version: Any, model: str, parts: Sequence[Part]) -> SavedLayout:
    """Return the layout with the number ``version``, which a file contains, of the ``model`` of this name; ``parts`` are those of
    a model that is not recorded, because it is not of this library. Raise a ValueError for a newer layout.
    """
    if type(version) is not int or not 1 <= version <= LAYOUT_VERSION:
        raise ValueError(f"it has the layout {version!r}, and this version knows {LAYOUT_VERSION}: upgrade streamsvm")
    saved, recorded = _read_layouts()[str(version)], []
    for name, kind, rule, inputs, newtons in saved["models"].get(model, ()):
        recorded.append(Part(name, kind, _make_record(saved["common"] + rule), inputs, newtons))
    start, stop = saved["state"]
    return SavedLayout(start, stop, saved["tables"], recorded or parts)


@cache
def _read_layouts() -> Any:
    """Return the recorded layouts by number."""
    return json.loads(Path(__file__).with_name("layouts.json").read_text())


def _make_record(fields: Sequence[Any]) -> np.dtype[Any]:
    """Return the record dtype with recorded ``fields``, each a name, a type and possibly a shape."""
    return np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in fields])


def read_header(snapshot: bytes, saved: SavedLayout, kind: str) -> Any:
    """Return the header of ``snapshot``, the bytes of a store of the class ``kind`` with the layout ``saved``, as a record."""
    if len(snapshot) < saved.stop:
        raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
    return np.frombuffer(snapshot, _make_record(saved.tables[kind][0]), 1)[0]


def convert_store(
    store: Store[Any], snapshot: bytes, saved: SavedLayout, old: Part, new: Part, maps: Mapping[Any, Any] | None = None
) -> None:
    """Replace the contents of an initial ``store`` by those of ``snapshot``, which were saved with another layout or other sizes.

    ``old`` and ``new`` are the saved and the present part whose store it is. Fields and arrays are copied by name: those that the
    snapshot lacks keep their initial values. ``maps`` has for some sizes the old and the new indices of the entries that
    continue. Raise a ValueError if the snapshot is invalid; then the contents of the store are undefined.
    """
    source = _open_source(store, snapshot, saved, old.kind, maps or {})
    source._check_block(source.block)
    target = store.block[STATE_BEGIN : STATE_BEGIN + new.state.itemsize]
    initial = target.copy()
    store.copy_from(source)
    target[:] = initial
    if new.state.names:
        _copy_fields(np.frombuffer(snapshot, old.state, 1, saved.start)[0], target.view(new.state)[0], new.learned)
    store._check_block(store.block)


def _open_source(store: Store[Any], snapshot: bytes, saved: SavedLayout, kind: str, maps: Mapping[Any, Any]) -> Any:
    """Return a store like ``store``, in the present layout, with the arrays and the sizes of ``snapshot``, from which `copy_from`
    can copy. Fields and arrays that are not in the snapshot are those of ``store``. Parameters and errors are those of
    `convert_store`.
    """
    header, layout, source = read_header(snapshot, saved, kind), store._layout, copy.copy(store)
    arrays, names = _split_arrays(snapshot, header, saved, kind, store.is_compact), header.dtype.names or ()
    sizes = {name: int((store._header[0] if name in maps or name not in names else header)[name]) for name in layout.sizes}
    if any(max(olds, default=-1) >= header[name] for name, (olds, _) in maps.items()):
        raise ValueError("the snapshot is corrupt: it has fewer experts than its layout")
    if min(sizes.values()) < 0 or (nbytes := layout.compute_nbytes(sizes)) > 4 * (len(snapshot) + store.nbytes):
        raise ValueError(f"the snapshot is corrupt: its sizes are {sizes}")
    source.block = np.zeros(nbytes, np.uint8)
    source._header = source.block[: store._header.nbytes].view(store._header.dtype)
    source._header[:] = store._header
    _copy_fields(header, source._header[0], frozenset(names) - maps.keys())
    source.columns, source.views = int(source._header["columns"][0]), layout.views(source.block)
    for name, array in layout.arrays.items():
        target = getattr(source.views, name)
        _copy_array(getattr(store.views, name), target, {})
        if array.saved and name in arrays:
            _copy_array(arrays[name], target, {axis: maps[size] for axis, size in enumerate(array.shape) if size in maps})
    return source


def _split_arrays(snapshot: bytes, header: Any, saved: SavedLayout, kind: str, is_compact: bool) -> dict[str, np.ndarray]:
    """Return the arrays of ``snapshot``, the bytes of a store of the class ``kind`` with this ``header``, by name: aligned to
    cache lines and with room for all columns, or if it ``is_compact`` only with those in use. Raise a ValueError if its length
    is not that of its sizes.
    """
    arrays, start, line = {}, saved.stop, 1 if is_compact else LINE
    for name, dtype, dimensions in saved.tables[kind][1]:
        sizes = ["used" if is_compact and size == "columns" else size for size in dimensions]
        shape = [size if isinstance(size, int) else int(header[size]) for size in sizes]
        start = (start + line - 1) // line * line
        if min(shape) < 0 or math.prod(shape) > len(snapshot):
            raise ValueError(f"the snapshot is corrupt: its {name} have the shape {shape}")
        arrays[name] = np.frombuffer(snapshot, dtype, math.prod(shape), start).reshape(shape)
        start += arrays[name].nbytes
    if start != len(snapshot):
        raise ValueError(f"the sizes of a snapshot need {start:,} bytes, not {len(snapshot):,}")
    return arrays


def _copy_array(values: np.ndarray, target: np.ndarray, maps: Mapping[int, Any]) -> None:
    """Copy ``values`` into ``target``, as far as both reach along each axis, or along an axis in ``maps`` from its old to its new
    indices.
    """
    shared = [(range(min(sizes)),) * 2 for sizes in zip(values.shape, target.shape, strict=True)]
    old, new = zip(*(maps.get(axis, indices) for axis, indices in enumerate(shared)), strict=True)
    target[np.ix_(*new)] = values[np.ix_(*old)].astype(target.dtype, casting="safe")


def _copy_fields(record: Any, target: Any, names: frozenset[str]) -> None:
    """Copy those fields of a saved ``record`` into the record ``target`` that are in ``names``, and that both have."""
    for name in names.intersection(record.dtype.names, target.dtype.names):
        target[name] = record[name].astype(target.dtype[name].base, casting="safe")
