"""The transformers before a model, folded into its program: where the features come from, and how they are scaled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from river import compose

from streamsvm.core.checks import to_python_scalar
from streamsvm.edge.predictor import format_category
from streamsvm.edge.program import CategoryTable, Column, ExportError, Program
from streamsvm.files.category_names import compute_column_seed, compute_name_key
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.stream.tables.column_state import ColumnState
from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.target_encoding import TargetEncoding


class ColumnScaling(NamedTuple):
    """A scaler of columns: (x - location) / spread; NaN in both where a column passes as it is."""

    location: np.ndarray
    spread: np.ndarray
    bound: float | None = None
    fills: bool = False
    """Whether what is missing is 0 afterwards."""


@dataclass
class PipelineInputs:
    """The columns before a model, and the scales in the order in which rows meet them."""

    columns: list[Column]
    scalings: list[ColumnScaling] = field(default_factory=list)
    tables: list[CategoryTable] = field(default_factory=list)


def fold_transformers(names: Sequence[Any], transformers: Sequence[Any]) -> PipelineInputs:
    """Return what a model's features, which have these names, come from, through transformers in the order of rows.

    It is an ExportError if a transformer cannot be folded into a program, or a name is no text and no number.
    """
    names = list(map(to_python_scalar, names))  # equal to what it was
    for name in names:
        if not isinstance(name, str | int | float | bool) or (isinstance(name, float) and not math.isfinite(name)):
            raise ExportError(f"the feature {name!r:.80} has a name that is no text or finite number: rename it")
    front = PipelineInputs([Column(name, name) for name in names])
    for transformer in reversed(transformers):
        _take_transformer(front, transformer)
    return front


def get_river_name(model: Any) -> str:
    """Return the name of a class of `river.preprocessing`; "" of others. River's part is not imported, which takes a second.

    >>> from river import preprocessing
    >>> get_river_name(preprocessing.StandardScaler()), get_river_name(BoundedScaler())
    ('StandardScaler', '')
    """
    kind = type(model)
    return kind.__name__ if kind.__module__.startswith("river.preprocessing.") else ""


def _is_scaler(transformer: Any) -> bool:
    return type(transformer) is BoundedScaler or get_river_name(transformer) in _SCALERS


def _take_transformer(front: PipelineInputs, transformer: Any) -> None:
    kind = type(transformer)
    if _is_scaler(transformer):
        fields = [column.field for column in front.columns]
        if any(column[2:] != (None, None, None) for column in front.columns):
            raise ExportError(f"a {kind.__name__} before an encoder is not exported: put it behind, or leave it out")
        front.scalings.insert(0, _scale_of(transformer, fields))
    elif kind is compose.Select:
        return  # a model knows no other names than were selected
    elif get_river_name(transformer) == "OneHotEncoder":
        front.columns = [_one_hot(transformer, column) for column in front.columns]
        if len({(column.field, column.text) for column in front.columns}) < len(front.columns):
            raise ExportError("a OneHotEncoder is not exported where two values of a field are one text: True and 'true', say")
    elif kind is TableEncoder:
        _take_encoder(front, transformer)
    else:
        raise ExportError(
            f"a {kind.__name__} before the model cannot be exported: scalers (Standard, MinMax, MaxAbs, Robust, Bounded), "
            "Select, OneHotEncoder and TableEncoder can"
        )


def add_scalings(program: Program, value: int, scales: Sequence[ColumnScaling]) -> int:
    """Add the steps of scales to a program."""
    for scale in scales:
        value = _add_scale(program, value, scale)
        if scale.fills:
            value = program.add("impute", value, float32=False)
    return value


def _add_scale(program: Program, value: int, scale: ColumnScaling) -> int:
    passes = np.isnan(scale.location)
    if not passes.any():
        return program.add("scale", value, location=scale.location, spread=scale.spread, bound=scale.bound)
    # What passes goes by its own way, and comes back to its place.
    kept, scaled = np.flatnonzero(passes), np.flatnonzero(~passes)
    part = program.add("select", value, columns=scaled)
    location, spread = scale.location[scaled], scale.spread[scaled]
    part = program.add("scale", part, location=location, spread=spread, bound=scale.bound)
    both = program.add("concat", program.add("select", value, columns=kept), part)
    return program.add("select", both, columns=np.argsort(np.concatenate([kept, scaled])))


# Scalers: location and spread of the columns that come from these fields -------------------------------------------------------

_Pairs = list[tuple[float, float]]


def _scale_of(scaler: Any, fields: list[Any]) -> ColumnScaling:
    if getattr(scaler, "window_size", None) is not None:
        raise ExportError(f"a {type(scaler).__name__} with a window is not exported")
    find = _bounded_scaling if type(scaler) is BoundedScaler else _SCALERS[get_river_name(scaler)]
    pairs = find(scaler, fields)
    location, spread = np.array(pairs, np.float64).reshape(-1, 2).T
    return ColumnScaling(location.copy(), spread.copy(), getattr(scaler, "deviations", None))


def _standard_scaling(scaler: Any, fields: list[Any]) -> _Pairs:
    means, variances = dict(scaler.means), dict(scaler.vars)
    return [(means.get(name, 0.0), variances.get(name, 0.0) ** 0.5 if scaler.with_std else 1.0) for name in fields]


def _min_max(scaler: Any, fields: list[Any]) -> _Pairs:
    found = [(scaler.min[name].get(), scaler.max[name].get()) if name in scaler.min else (0.0, 0.0) for name in fields]
    return [(low, high - low) for low, high in found]


def _max_abs(scaler: Any, fields: list[Any]) -> _Pairs:
    return [(0.0, scaler.abs_max[name].get() if name in scaler.abs_max else 0.0) for name in fields]


def _robust_scaling(scaler: Any, fields: list[Any]) -> _Pairs:
    pairs = []
    for name in fields:
        median = scaler.median[name].get() if scaler.with_centering and name in scaler.median else 0.0
        spread = 1.0
        if scaler.with_scaling:
            spread = scaler.iqr[name].get() if name in scaler.iqr else 0.0
        pairs.append((median or 0.0, max(spread or 0.0, 0.0)))
    return pairs


def _bounded_scaling(scaler: BoundedScaler, fields: list[Any]) -> _Pairs:
    means, variances = scaler.means, scaler.vars
    return [(means.get(name, 0.0), math.sqrt(variances.get(name, 0.0))) for name in fields]


#: Those of river, by name.
_SCALERS: dict[str, Callable[[Any, list[Any]], _Pairs]] = {
    "StandardScaler": _standard_scaling,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "RobustScaler": _robust_scaling,
}


# Encoders -------------------------------------------------------------------------------------------------------------------


def _one_hot(encoder: Any, column: Column) -> Column:
    found = [(name, value) for name, values in encoder.values.items() for value in values if f"{name}_{value}" == column.field]
    if len(found) != 1 or encoder.drop_first:
        what = "drop_first" if encoder.drop_first else f"the feature {column.field!r}, which is not of one field and value"
        raise ExportError(f"a OneHotEncoder with {what} is not exported")
    field_name, value = found[0]
    if value is None or value != value:
        what = f"{value} of {field_name!r:.80}"
        raise ExportError(f"a OneHotEncoder that has learned {what} is not exported: leave missing fields out")
    return Column(column.name, field_name, format_category(value))


def _take_encoder(front: PipelineInputs, encoder: TableEncoder) -> None:
    if encoder.cycles:
        raise ExportError(
            "a TableEncoder with cycles is not exported: a device has numbers (of dates, seconds since 1970) and names"
        )
    if encoder.when_missing == "indicator":
        raise ExportError("a TableEncoder with when_missing='indicator' is not exported: 'mean' and 'drop' are")
    if front.scalings:
        raise ExportError("a scaler behind a TableEncoder is not exported: the encoder has one itself")
    of_names, columns, numbers = _columns_of_names(encoder, len(front.tables)), [], []
    for place, column in enumerate(front.columns):
        if column.field in of_names:
            columns.append(of_names[column.field]._replace(name=column.name))
        else:
            columns.append(column)
            numbers.append(place)
    front.columns = columns
    state, scaler = encoder.column_state, encoder.learned_scaler
    if state.target_encoding is not None and any(column.table is not None for column in columns):
        front.tables.append(_table_of(state, state.target_encoding))
    if encoder.when_missing == "mean" and not hasattr(scaler, "means") and numbers:  # else the mean is 0 once scaled
        means, ones = np.full((2, len(columns)), math.nan)
        means[numbers], ones[numbers] = [state.means.get(columns[place].field, (0, 0.0))[1] for place in numbers], 1.0
        front.scalings += [ColumnScaling(means, ones, fills=True), ColumnScaling(-means, ones)]
    if scaler is None:
        return
    if not _is_scaler(scaler):
        raise ExportError(f"a TableEncoder with a {type(scaler).__name__} is not exported")
    scale = _scale_of(scaler, [columns[place].field for place in numbers])
    location, spread = np.full((2, len(columns)), math.nan)
    location[numbers], spread[numbers] = scale.location, scale.spread
    front.scalings.append(scale._replace(location=location, spread=spread))


def _columns_of_names(encoder: TableEncoder, table: int) -> dict[Any, Column]:
    """Return the columns of an encoder's features that come from names; its statistics are the table with this number."""
    found: dict[Any, Column] = {}
    state, statistics = encoder.column_state, encoder.target_encoding
    categories: dict[Any, dict[str, str]] = state.categories
    for name in categories:
        if encoder.buckets is not None:
            buckets = ((number, encoder.buckets) for number in range(encoder.buckets))
            found |= {f"{name}#{bucket[0]}": Column("", name, bucket=bucket) for bucket in buckets}
        elif statistics is not None and state.has_target_encoding(name, None):
            suffixes = enumerate(statistics.suffixes)
            found |= {f"{name}~{suffix}": Column("", name, table=(table, place)) for place, suffix in suffixes}
    for feature in state.means:
        if feature in found and found.pop(feature).table is not None:
            raise ExportError(f"a column has the name of a statistic of names, {feature!r:.80}: rename it")
    for name, values in categories.items():
        found |= {feature: Column("", name, text) for text, feature in values.items() if feature}
    return found


def _table_of(state: ColumnState, statistics: TargetEncoding) -> CategoryTable:
    """Return the statistics that names have now; those that have a feature instead are left out."""
    left_out: list[int] = []
    for name, values in state.categories.items():
        left_out += [
            compute_name_key(compute_column_seed(name), text)
            for text, feature in values.items()
            if not state.has_target_encoding(name, feature)
        ]
    keys = np.setdiff1d(statistics.keys, np.array(left_out, np.uint32))
    return CategoryTable(keys, statistics.encode_names(keys.tolist()))


_LOST = 0.01 / 2.0**-24  # of the location over the spread: float32 rounds values by a hundredth of the spread


def count_scaling_steps(program: Program) -> int:
    """Return how many of a program's first steps only fill, select and scale columns in float64."""
    front = 0
    for step in program.steps:
        if step.op not in ("impute", "select", "scale") or step.options.get("float32"):
            break
        front += 1
    return front


def find_fields_lost_in_float32(program: Program) -> list[str]:
    """Return the fields of a program whose rows float32 rounds to a part of their deviations, by which they are scaled."""
    n = len(program.columns)
    # Of each value of the program: its columns, and where they are centred and how wide they are spread, in units of the rows.
    values = [(np.arange(n), np.zeros(n), np.ones(n))]
    for step in program.steps:
        if step.op not in ("impute", "select", "scale", "concat") or step.options.get("float32"):
            break
        own, location, spread = map(np.concatenate, zip(*(values[i] for i in step.inputs), strict=True))
        if step.op == "select":
            own, location, spread = (each[step.arrays["columns"]] for each in (own, location, spread))
        elif step.op == "scale":  # an encoder centres columns, fills them, and moves them back
            location, spread = location + spread * step.arrays["location"], spread * step.arrays["spread"]
        values.append((own, location, spread))
    own, location, spread = values[-1]
    lost = own[(spread > 0.0) & (np.abs(location) > _LOST * spread)].tolist()
    return list(dict.fromkeys(str(program.columns[column].field) for column in lost))
