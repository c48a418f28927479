"""The layouts of saved stores, described by names, so that a store of another layout can read them.

A model is saved as the bytes of its store, and of those of its experts. A description of their layout lists the fields of the
header and of the state, the arrays with their shapes, and the experts. Files with the first layouts of the library contain no
description: `first_layouts.json` has those of all its models. Descriptions in files are not trusted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.memory.block import LINE, STATE_BEGIN, STATE_END, Store

#: The number of the newest layouts. Increase it whenever a layout changes, so that earlier versions refuse its files.
LAYOUT_VERSION = 1

_ITEM = re.compile(r"([a-zA-Z_]\w{0,60}):([iu][1248]|f[248])(?:\[(\w{1,60}(?:,\w{1,60}){0,3})\])?", re.ASCII)
_MAX_CHARS, _MAX_STATE_END, _MAX_INPUTS = 100_000, 4096, 100

#: The name, dtype and shape of a field or an array. A dimension is a number or the name of a header field.
Item = tuple[str, Any, Sequence[str | int]]


class Table(NamedTuple):
    """The layout of a class of stores: the fields of its header, and its saved arrays with their shapes."""

    header: np.dtype[Any]
    arrays: Mapping[str, tuple[np.dtype[Any], Sequence[str | int]]]


class Part(NamedTuple):
    """A store with its state: that of a model, whose name is empty, or of an expert of an ensemble."""

    name: str
    kind: str
    """The name of the class of the store; empty for an expert without one."""
    rule: np.dtype[Any]
    """The state of the update rule, which follows the common state."""
    inputs: int = 0
    is_second_order: bool = False
    learned: frozenset[str] = frozenset()
    """The fields of both states that learning changes. A store that is restored keeps its own values of all others."""


class SavedLayout(NamedTuple):
    """The layout of a saved model: the byte range of states, the common state, the tables by class, and the parts."""

    state: tuple[int, int]
    common: np.dtype[Any]
    tables: Mapping[str, Table]
    parts: Sequence[Part]

    def describe(self) -> dict[str, Any]:
        """Return the description of this layout that files contain, a dict for JSON."""
        return {
            "state": list(self.state),
            "common": _format_fields(self.common),
            "tables": {
                kind: [_format_fields(table.header), _format_items((n, *a) for n, a in table.arrays.items())]
                for kind, table in self.tables.items()
            },
            "parts": [[p.name, p.kind, _format_fields(p.rule), p.inputs, int(p.is_second_order)] for p in self.parts],
        }


def make_layout(common: np.dtype[Any], parts: Sequence[tuple[Part, type[Store[Any]] | None]]) -> SavedLayout:
    """Return the present layout of a model with these ``parts``, each with the class of its store, and this ``common`` state."""
    tables = {}
    for part, kind in parts:
        if kind is not None:
            arrays = {name: (np.dtype(a.dtype), a.shape) for name, a in kind._layout.arrays.items() if a.saved}
            tables[part.kind] = Table(kind._layout.header, arrays)
    return SavedLayout((STATE_BEGIN, STATE_END), common, tables, [part for part, _ in parts])


def parse_layout(description: Any) -> SavedLayout:
    """Return the layout that a dict from a file describes. Raise a ValueError if it is invalid, or of a newer version."""
    try:
        if description.get("version", 1) > LAYOUT_VERSION:
            raise ValueError("a newer version of streamsvm wrote it, with a layout that this one does not know: upgrade it")
        begin, stop = map(int, description["state"])
        tables = {}
        for kind, (header, arrays) in description["tables"].items():
            items = {name: (dtype, shape) for name, dtype, shape in _parse_items(arrays)}
            tables[kind] = Table(_make_record(header, begin), items)
            header_fields = tables[kind].header.names or ()
            sizes = {size for _, shape in items.values() for size in shape if isinstance(size, str)}
            if not sizes <= {*header_fields} or any(tables[kind].header[name].shape for name in header_fields):
                raise ValueError(f"the header of {kind} is invalid")
        common = _make_record(description["common"], stop - begin)
        parts = [
            Part(str(name), str(kind), _make_record(rule, stop - begin - common.itemsize), int(inputs), bool(second))
            for name, kind, rule, inputs, second in description["parts"]
        ]
        is_valid = 0 < begin <= stop <= _MAX_STATE_END and all(0 <= part.inputs <= _MAX_INPUTS for part in parts)
        if not (is_valid and parts and parts[0].kind in tables and all(part.kind in ("", *tables) for part in parts)):
            raise ValueError("its parts are invalid")
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"the description of the saved layout is invalid ({error!r:.200})") from None
    return SavedLayout((begin, stop), common, tables, parts)


def read_layout(text: str | None, model: str) -> SavedLayout | None:
    """Return the layout that ``text`` in a file describes, or if that is None the first one of this ``model``, its name and
    options. Return None for a model without a first layout: its layout has never changed.
    """
    if text is None:
        return None if model not in _read_first_layouts()["models"] else parse_layout(get_first_layout(model))
    if not isinstance(text, str) or len(text) > _MAX_CHARS:
        raise ValueError("the description of the saved layout is not a short text")
    return parse_layout(json.loads(text))


def format_layout(layout: SavedLayout) -> str:
    """Return the description of a ``layout`` as the text that files contain."""
    return json.dumps({"version": LAYOUT_VERSION, **layout.describe()}, separators=(",", ":"))


@cache
def _read_first_layouts() -> Any:
    """Return the first layouts of the library's models: the common parts of all descriptions, and the parts by model."""
    return json.loads(Path(__file__).with_name("first_layouts.json").read_text())


def get_first_layout(model: str) -> dict[str, Any] | None:
    """Return the description of the first layout of a ``model``, or None if it has none."""
    first = _read_first_layouts()
    parts = first["models"].get(model)
    kinds = {part[1] for part in parts or ()}
    tables = {kind: table for kind, table in first["tables"].items() if kind in kinds}
    return None if parts is None else {"state": first["state"], "common": first["common"], "tables": tables, "parts": parts}


def convert_store(
    store: Store[Any], snapshot: bytes, saved: SavedLayout, old: Part, current: SavedLayout, new: Part, maps: Any = None
) -> None:
    """Replace the contents of an initial ``store`` by those of ``snapshot``, which were saved with another layout or other sizes.

    ``old`` is the part of the layout ``saved`` whose store it is, ``new`` that of the ``current`` one. Fields and arrays are
    copied by name: those that the snapshot lacks keep their initial values. ``maps`` has for some sizes the old and the new
    indices of the entries that are continued. Raise a ValueError if the snapshot is invalid; then the store is undefined.
    """
    initial = store.block.copy()
    source = open_source(store, snapshot, saved, old, maps or {})
    source._check_block(source.block)
    store.copy_from(source)
    store.block[STATE_BEGIN:STATE_END] = initial[STATE_BEGIN:STATE_END]
    offset, new_offset = saved.state[0], STATE_BEGIN
    for dtype, new_dtype in ((saved.common, current.common), (old.rule, new.rule)):
        if dtype.itemsize and new_dtype.itemsize:
            record = np.frombuffer(snapshot, dtype, 1, offset)[0]
            target = store.block[new_offset : new_offset + new_dtype.itemsize].view(new_dtype)[0]
            _copy_fields(record, target, new.learned)
        offset, new_offset = offset + dtype.itemsize, new_offset + new_dtype.itemsize
    store._check_block(store.block)


def open_source(store: Store[Any], snapshot: bytes, saved: SavedLayout, old: Part, maps: Mapping[str, Any]) -> Any:
    """Return a store like ``store``, in the present layout, with the arrays and the sizes of ``snapshot``, the bytes of a saved
    store; what it lacks is as in ``store``. Parameters and errors are those of `convert_store`.
    """
    table, layout = saved.tables[old.kind], store._layout
    header = read_header(snapshot, saved, old)
    arrays = _split_arrays(snapshot, header, table, saved.state[1], store.is_compact)
    fields = frozenset(table.header.names or ())
    sizes = {name: int((store._header[0] if name in maps or name not in fields else header)[name]) for name in layout.sizes}
    if not all(0 <= size < 2**31 for size in sizes.values()):
        raise ValueError("the snapshot is corrupt: it has an invalid size")
    if (nbytes := layout.compute_nbytes(sizes)) > 4 * (len(snapshot) + store.nbytes):
        raise ValueError(f"the snapshot is corrupt: its sizes need {nbytes:,} bytes")
    source = store.make_empty(sizes, nbytes)
    for name, array in layout.arrays.items():
        ours, target = getattr(store.views, name), getattr(source.views, name)
        shared = tuple(map(slice, map(min, ours.shape, target.shape)))
        target[shared] = ours[shared]
        if array.saved and name in arrays:
            _copy_array(name, arrays[name], target, [maps.get(str(size)) for size in array.shape])
    _copy_fields(header, source._header[0], fields.difference(layout.sizes))
    return source


def read_header(snapshot: bytes, saved: SavedLayout, part: Part) -> Any:
    """Return the header of a ``snapshot``, a record with the fields of this ``part`` of the layout ``saved``."""
    if len(snapshot) < saved.state[1]:
        raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
    return np.frombuffer(snapshot, saved.tables[part.kind].header, 1)[0]


def _split_arrays(snapshot: bytes, header: Any, table: Table, start: int, is_compact: bool) -> dict[str, np.ndarray]:
    """Return the arrays of a ``snapshot`` with this ``header`` and layout ``table``, by name. They begin at byte ``start``:
    aligned to cache lines and with room for all columns, or if it ``is_compact`` only with those in use. Raise a ValueError if
    its length is not that of its sizes.
    """
    arrays, line, columns = {}, 1 if is_compact else LINE, "used" if is_compact else "columns"
    for name, (dtype, dimensions) in table.arrays.items():
        shape = [size if isinstance(size, int) else int(header[columns if size == "columns" else size]) for size in dimensions]
        start, n = (start + line - 1) // line * line, math.prod(shape)
        if min(shape) < 0 or start + n * dtype.itemsize > len(snapshot):
            raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off, or has other sizes")
        arrays[name] = np.frombuffer(snapshot, dtype, n, start).reshape(shape)
        start += n * dtype.itemsize
    if start != len(snapshot):
        raise ValueError(f"the sizes of a snapshot need {start:,} bytes, not {len(snapshot):,}")
    return arrays


def _copy_array(name: str, values: np.ndarray, target: np.ndarray, maps: Sequence[Any]) -> None:
    """Copy the saved ``values`` of the array ``name`` into ``target``, as far as both reach along each axis, or along an axis
    with one of the ``maps`` the entries of its old indices to its new ones. Raise a ValueError if the shape or dtype does not
    fit.
    """
    if values.ndim != target.ndim:
        raise ValueError(f"the saved {name} has {values.ndim} dimensions, not {target.ndim}")
    olds, news = [], []
    for size, new_size, mapped in zip(values.shape, target.shape, maps, strict=True):
        shared = range(min(size, new_size))
        old, new = mapped or (shared, shared)
        if max(old, default=0) >= max(size, 1):
            raise ValueError(f"the saved {name} does not have the length of its description")
        olds.append(old)
        news.append(new)
    target[np.ix_(*news)] = _cast(name, values[np.ix_(*olds)], target.dtype)


def _copy_fields(record: Any, target: Any, names: frozenset[str]) -> None:
    """Copy those fields of a saved ``record`` into the record ``target`` that are in ``names``, and that both have."""
    for name in names.intersection(record.dtype.names).intersection(target.dtype.names):
        value = np.asarray(record[name])
        if value.shape != np.shape(target[name]):
            raise ValueError(f"the saved {name} has the shape {value.shape}")
        target[name] = _cast(name, value, target.dtype[name].base)


def _cast(name: str, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Convert ``values`` to ``dtype``. Raise a ValueError if it is an integer type that cannot represent them. Floats beyond the
    range of a narrower type become infinite, which the checks of stores refuse.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype)
    if dtype.kind in "iu" and dtype != values.dtype and (values.dtype.kind == "f" or (converted != values).any()):
        raise ValueError(f"the saved {name} does not fit {dtype}")
    return converted


def _format_fields(dtype: np.dtype[Any]) -> str:
    """Return the fields of a record ``dtype`` as text."""
    return _format_items((name, dtype[name].base, dtype[name].shape) for name in dtype.names or ())


def _format_items(items: Iterable[Item]) -> str:
    """Return fields or arrays as text.

    >>> _format_items([("t", np.dtype("i8"), ()), ("weights", np.dtype("f4"), (2, "columns"))])
    't:i8 weights:f4[2,columns]'
    """
    return " ".join(f"{n}:{dtype.str[1:]}" + (f"[{','.join(map(str, shape))}]" if shape else "") for n, dtype, shape in items)


def _parse_items(text: str) -> Iterator[Item]:
    """Yield the fields or arrays of a ``text`` of `_format_items`. Raise a ValueError if it is invalid."""
    names = set()
    for item in text.split():
        match = _ITEM.fullmatch(item)
        if match is None or match[1] in names:
            raise ValueError(f"the description of the saved layout has the invalid or repeated item {item!r:.80}")
        names.add(match[1])
        sizes = match[3].split(",") if match[3] else []
        yield match[1], np.dtype(match[2]), tuple(int(size) if size.isdigit() else size for size in sizes)


def _make_record(text: str, max_bytes: int) -> np.dtype[Any]:
    """Return the record dtype with the fields in ``text``. Raise a ValueError if it is invalid, or larger than ``max_bytes``."""
    items = list(_parse_items(text))
    if not all(isinstance(size, int) and size < _MAX_STATE_END for _, _, shape in items for size in shape):
        raise ValueError(f"the description of the saved layout has an invalid record {text!r:.80}")
    n_bytes = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in items)
    if n_bytes > max_bytes:
        raise ValueError(f"the description of the saved layout has a record of {n_bytes} bytes")
    return np.dtype([(name, dtype, shape) for name, dtype, shape in items])
