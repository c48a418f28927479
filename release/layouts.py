"""Record the present layouts of stores under their number, ``LAYOUT_VERSION``, in ``streamsvm/core/memory/layouts.json``.

Run it after you have changed a layout and increased the number. Layouts of released versions never change.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm import learners
from streamsvm.core.memory import saved_layout
from streamsvm.core.memory.block import STATE_BEGIN, STATE_END, Store
from streamsvm.core.steps.iterates import COMMON_STATE

PATH = Path(saved_layout.__file__).with_name("layouts.json")


def describe_fields(dtype: Any) -> list[Any]:
    """Return the fields of a record as lists of name, type and shape."""
    shapes = [dtype[name].shape for name in dtype.names or ()]
    return [[name, dtype[name].base.str, *([list(s)] if s else [])] for name, s in zip(dtype.names or (), shapes, strict=True)]


def describe_layouts() -> dict[str, Any]:
    """Return the present layouts of the stores of all learners."""
    tables, models, n_common = {}, {}, len(COMMON_STATE.names or ())
    for name in learners.__all__:
        kind = getattr(learners, name)
        efforts = ("low", "normal", "high") if "effort" in inspect.signature(kind).parameters else ()
        for model in [kind(effort=effort) for effort in efforts] or [kind()]:
            models[model._layout_name] = [
                [part.name, part.kind, describe_fields(part.state)[n_common:], part.inputs, part.newtons]
                for part in model._list_parts()
            ]
            for store in (model._store, *(store for stores in getattr(model._store, "stores", []) for store in stores)):
                tables[type(store).__name__] = describe_store(type(store))
    return {"state": [STATE_BEGIN, STATE_END], "common": describe_fields(COMMON_STATE), "tables": tables, "models": models}


def describe_store(kind: type[Store[Any]]) -> list[Any]:
    """Return the fields of the header of a class of stores, and its saved arrays."""
    arrays = [[name, np.dtype(a.dtype).str, list(a.shape)] for name, a in kind._layout.arrays.items() if a.saved]
    return [describe_fields(kind._layout.header), arrays]


def main() -> None:
    """Add the present layouts to the recorded ones, unless their number has other ones already."""
    recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
    number, layouts = str(saved_layout.LAYOUT_VERSION), describe_layouts()
    if recorded.get(number, layouts) != layouts:
        sys.exit(f"layouts {number} are recorded, and differ: increase LAYOUT_VERSION in {saved_layout.__file__}")
    recorded[number] = layouts
    lines = (f'"{number}": {{\n{format_layouts(layouts)}\n}}' for number, layouts in recorded.items())
    PATH.write_text("{" + ",\n".join(lines) + "}\n")


def format_layouts(layouts: dict[str, Any]) -> str:
    """Return layouts as JSON, with a line for each class of stores and each model."""
    lines = []
    for name, value in layouts.items():
        parts = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()] if isinstance(value, dict) else []
        lines.append(f"{json.dumps(name)}: " + ("{\n" + ",\n".join(parts) + "}" if parts else json.dumps(value)))
    return ",\n".join(lines)


if __name__ == "__main__":
    main()
