"""The transformers of a pipeline as parts of a program: input columns from fields of a row, and scalings of the columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from river import compose

from streamsvm.core.checks import to_python_scalar
from streamsvm.edge.program import CategoryTable, Column, ExportError, Program, Table, TextTable
from streamsvm.files.category_names import compute_column_seed, compute_name_key, format_category
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.stream.tables.column_state import ColumnState
from streamsvm.stream.tables.dates import CYCLES
from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.target_encoding import TargetEncoding
from streamsvm.stream.tables.text_encoding import TextEncoding

_SCALING_STEPS = frozenset({"impute", "fill", "cycles", "select", "scale"})
_FLOAT32_ROUNDING = 2.0**-24  # relative to the rounded number


class ColumnScaling(NamedTuple):
    """A scaling (x - location) / spread of columns. Both are NaN for a column that stays unchanged."""

    location: np.ndarray
    spread: np.ndarray
    bound: float | None = None
    """Scaled numbers are clipped to this; None: they are not clipped."""


@dataclass
class PipelineInputs:
    """The input columns of a program, the tables of their encodings, and the scalings in the order of application."""

    columns: list[Column]
    scalings: list[ColumnScaling] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    phases: dict[int, tuple[Any, float, float]] = field(default_factory=dict)
    """Features that are the phase of a date, by index: name of the date, period in seconds, and offset in turns."""
    means: np.ndarray | None = None
    """Numbers that replace missing ones before the scalings, float64 [columns]; None: they stay missing."""


def fold_transformers(names: Sequence[Any], transformers: Sequence[Any]) -> PipelineInputs:
    """Convert the ``transformers`` of a river pipeline to parts of an exported model: input columns with encodings, and
    scalings. Together they turn a row into the final model's features, which are called ``names``. Raises ExportError if a
    transformer is not supported.

    Raises ExportError if a transformer is not supported, or the type of a name is not.
    """
    names = list(map(to_python_scalar, names))
    for name in names:
        if not isinstance(name, str | int | float | bool) or (isinstance(name, float) and not math.isfinite(name)):
            raise ExportError(f"the feature {name!r:.80} has a name that is neither a text nor a finite number: rename it")
    inputs = PipelineInputs([Column(name, name) for name in names])
    for transformer in reversed(transformers):
        _fold_transformer(inputs, transformer)
    return inputs


def get_river_name(model: Any) -> str:
    """Return the class name of an object if its class is defined in `river.preprocessing`, such as ``"StandardScaler"``, and an
    empty string for other objects.

    It does not import `river.preprocessing`, which takes a second.

    >>> from river import preprocessing
    >>> get_river_name(preprocessing.StandardScaler()), get_river_name(BoundedScaler())
    ('StandardScaler', '')
    """
    cls = type(model)
    return cls.__name__ if cls.__module__.startswith("river.preprocessing.") else ""


def _is_scaler(transformer: Any) -> bool:
    """Return whether a pipeline's transformer is a scaler that can be exported: BoundedScaler, or river's StandardScaler,
    MinMaxScaler, MaxAbsScaler or RobustScaler.
    """
    return type(transformer) is BoundedScaler or get_river_name(transformer) in _SCALING_FUNCTIONS


def _fold_transformer(inputs: PipelineInputs, transformer: Any) -> None:
    """Add a pipeline's ``transformer`` in front of ``inputs``, the exported form of the transformers behind it (input columns
    and scalings), in place. A scaler becomes the first scaling, and an encoder changes the columns. Raises ExportError if it is
    not supported.
    """
    cls = type(transformer)
    if _is_scaler(transformer):
        fields = [column.field for column in inputs.columns]
        if any(column[2:] != (None, None, None) for column in inputs.columns):
            raise ExportError(f"a {cls.__name__} before an encoder is not exported: put it behind, or leave it out")
        inputs.scalings.insert(0, _compute_scaling(transformer, fields))
    elif cls is compose.Select:
        return  # the model has only learned the selected features
    elif get_river_name(transformer) == "OneHotEncoder":
        inputs.columns = [_encode_one_hot(transformer, column) for column in inputs.columns]
        if len({(column.field, column.text) for column in inputs.columns}) < len(inputs.columns):
            raise ExportError("a OneHotEncoder is not exported if two values of a field have one text, such as True and 'true'")
    elif cls is TableEncoder:
        _fold_table_encoder(inputs, transformer)
    else:
        raise ExportError(
            f"a {cls.__name__} before the model cannot be exported: scalers (Standard, MinMax, MaxAbs, Robust, Bounded), "
            "Select, OneHotEncoder and TableEncoder can"
        )


def start_program(inputs: PipelineInputs, n_hash_columns: int) -> tuple[Program, int]:
    """Return a program (an exported model) with the columns of ``inputs`` and the steps of their transformers, and the index of
    the value that has the final model's features. Dates are columns; steps compute their phase. ``n_hash_columns`` is a parameter
    of `Program`.
    """
    dates = {name: Column(name, name) for name, _, _ in inputs.phases.values()}
    others = [column for index, column in enumerate(inputs.columns) if index not in inputs.phases and column.field not in dates]
    program, value = Program([*others, *dates.values()], n_hash_columns, inputs.tables), 0
    if inputs.phases:
        positions = {column: position for position, column in enumerate(program.columns)}
        phases = [inputs.phases.get(index, (column.field, 0.0, 0.0)) for index, column in enumerate(inputs.columns)]
        sources = [dates.get(phase[0], column) for phase, column in zip(phases, inputs.columns, strict=True)]
        value = program.add("select", value, columns=np.array([positions[column] for column in sources]))
        _, periods, offsets = zip(*phases, strict=True)
        value = program.add("cycles", value, periods=np.array(periods), offsets=np.array(offsets))
    if inputs.means is not None:
        value = program.add("fill", value, values=inputs.means)
    for scaling in inputs.scalings:
        value = _add_scaling(program, value, scaling)
    return program, value


def _add_scaling(program: Program, value: int, scaling: ColumnScaling) -> int:
    """Append operations to a program (an exported model) that apply ``scaling``, (x - location) / spread, to the columns of the
    operation output with the index ``value``. Columns whose location is NaN stay unchanged. Returns the index of the new output,
    which has the columns in the same order.
    """
    is_unscaled = np.isnan(scaling.location)
    if not is_unscaled.any():
        return program.add("scale", value, location=scaling.location, spread=scaling.spread, bound=scaling.bound)
    # Scale a selection of the columns, and merge it with the unscaled ones in the original order.
    unscaled, scaled = np.flatnonzero(is_unscaled), np.flatnonzero(~is_unscaled)
    selection = program.add("select", value, columns=scaled)
    location, spread = scaling.location[scaled], scaling.spread[scaled]
    selection = program.add("scale", selection, location=location, spread=spread, bound=scaling.bound)
    merged = program.add("concat", program.add("select", value, columns=unscaled), selection)
    return program.add("select", merged, columns=np.argsort(np.concatenate([unscaled, scaled])))


# Scalers: location and spread for each of the fields ---------------------------------------------------------------------------

_LocationSpreads = list[tuple[float, float]]


def _compute_scaling(scaler: Any, fields: list[Any]) -> ColumnScaling:
    """Return the scaling (x - location) / spread that a fitted ``scaler`` (river's, or a BoundedScaler) applies to the columns of
    these ``fields``. Raises ExportError if the scaler forgets values outside a window.
    """
    if getattr(scaler, "window_size", None) is not None:
        raise ExportError(f"a {type(scaler).__name__} with a window is not exported")
    pairs = _SCALING_FUNCTIONS.get(get_river_name(scaler), _read_standard_scaler)(scaler, fields)
    location, spread = np.array(pairs, np.float64).reshape(-1, 2).T
    return ColumnScaling(location.copy(), spread.copy(), getattr(scaler, "deviations", None))


def _read_standard_scaler(scaler: Any, fields: list[Any]) -> _LocationSpreads:
    """Return a pair of the mean and the standard deviation (1 if the scaler does not use it) for each field, as a river
    StandardScaler or a BoundedScaler has learned them; 0 for unknown fields.
    """
    means, variances, divides = scaler.means, scaler.vars, getattr(scaler, "with_std", True)
    return [(means.get(name, 0.0), variances.get(name, 0.0) ** 0.5 if divides else 1.0) for name in fields]


def _read_min_max_scaler(scaler: Any, fields: list[Any]) -> _LocationSpreads:
    """Return (minimum, maximum - minimum) for each field, as a river MinMaxScaler has learned them; (0, 0) for unknown fields."""
    ranges = [(scaler.min[name].get(), scaler.max[name].get()) if name in scaler.min else (0.0, 0.0) for name in fields]
    return [(low, high - low) for low, high in ranges]


def _read_max_abs_scaler(scaler: Any, fields: list[Any]) -> _LocationSpreads:
    """Return (0, largest absolute value) for each field, as a river MaxAbsScaler has learned it; (0, 0) for unknown fields."""
    return [(0.0, scaler.abs_max[name].get() if name in scaler.abs_max else 0.0) for name in fields]


def _read_robust_scaler(scaler: Any, fields: list[Any]) -> _LocationSpreads:
    """Return (median, interquartile range) for each field, as a river RobustScaler has learned them; they are 0 for unknown
    fields. If the scaler does not subtract medians, they are all 0; if it does not divide by ranges, they are all 1.
    """
    pairs = []
    for name in fields:
        median = scaler.median[name].get() if scaler.with_centering and name in scaler.median else 0.0
        spread = 1.0
        if scaler.with_scaling:
            spread = scaler.iqr[name].get() if name in scaler.iqr else 0.0
        pairs.append((median or 0.0, max(spread or 0.0, 0.0)))
    return pairs


#: For each supported scaler of river: the function that returns location and spread of fields.
_SCALING_FUNCTIONS: dict[str, Callable[[Any, list[Any]], _LocationSpreads]] = {
    "StandardScaler": _read_standard_scaler,
    "MinMaxScaler": _read_min_max_scaler,
    "MaxAbsScaler": _read_max_abs_scaler,
    "RobustScaler": _read_robust_scaler,
}


# Encoders -------------------------------------------------------------------------------------------------------------------


def _encode_one_hot(encoder: Any, column: Column) -> Column:
    """Return the input column of an exported model for ``column``, a feature such as ``city_Paris`` of ``encoder``, river's
    OneHotEncoder: it is 1 where the field ``city`` of a row is ``Paris``, else 0.

    Raises ExportError if the encoder drops the first value, or the feature's field and value are ambiguous or missing.
    """
    matches = [(name, value) for name, values in encoder.values.items() for value in values if f"{name}_{value}" == column.field]
    if len(matches) != 1 or encoder.drop_first:
        problem = "drop_first" if encoder.drop_first else f"the feature {column.field!r}, which is not of one field and value"
        raise ExportError(f"a OneHotEncoder with {problem} is not exported")
    field_name, value = matches[0]
    if value is None or value != value:
        problem = f"{value} of {field_name!r:.80}"
        raise ExportError(f"a OneHotEncoder that has learned {problem} is not exported: leave missing fields out")
    return Column(column.name, field_name, format_category(value))


def _fold_table_encoder(inputs: PipelineInputs, encoder: TableEncoder) -> None:
    """Add a TableEncoder in front of ``inputs``, the exported form of the transformers behind it (input columns and scalings),
    in place: its encodings of categories and texts, means for missing numbers, and scaler. Raises ExportError if one of its
    options is not supported.
    """
    if encoder.when_missing == "indicator":
        raise ExportError("a TableEncoder with when_missing='indicator' is not exported: 'mean' and 'drop' are")
    if inputs.scalings:
        raise ExportError("a scaler behind a TableEncoder is not exported: the encoder has one itself")
    encoded, columns, numeric = _list_encoded_columns(encoder, len(inputs.tables)), [], []
    quoted: dict[Any, Any] = {feature: column for column, feature in encoder.column_state.quoted.items()}
    phases = encoder.column_state.phases
    for index, column in enumerate(inputs.columns):
        if column.field in phases:
            columns.append(column)
            name, cycle, part = phases[str(column.field)]
            inputs.phases[index] = name, CYCLES[cycle], 0.25 if part == "cos" else 0.0
        elif column.field in encoded:
            columns.append(encoded[column.field]._replace(name=column.name))
        else:
            columns.append(column._replace(field=quoted.get(column.field, column.field)))
            numeric.append(index)
    inputs.columns = columns
    state, scaler = encoder.column_state, encoder.learned_scaler
    if state.target_encoding is not None:
        inputs.tables += [TextTable(*encoding.compute_scores(state.target_encoding)) for encoding in state.texts.values()]
        if any(column.table and column.table[0] == len(inputs.tables) for column in columns):
            inputs.tables.append(_make_category_table(state, state.target_encoding, scaler is not None))
    # Missing numbers become the mean. After a scaler with means, that is the 0 of the learner, without further steps.
    if encoder.when_missing == "mean" and not hasattr(scaler, "means") and numeric:
        inputs.means = np.zeros(len(columns))
        inputs.means[numeric] = [state.means.get(columns[index].field, (0, 0.0))[1] for index in numeric]
    if scaler is None:
        return
    if not _is_scaler(scaler):
        raise ExportError(f"a TableEncoder with a {type(scaler).__name__} is not exported")
    scaling = _compute_scaling(scaler, [columns[index].field for index in numeric])
    location, spread = np.full((2, len(columns)), math.nan)
    location[numeric], spread[numeric] = scaling.location, scaling.spread
    inputs.scalings.append(scaling._replace(location=location, spread=spread))


def check_no_texts(program: Program, form: str) -> None:
    """Raise ExportError if an exported model has a column of texts, and the format ``form`` does not support it: C or ONNX."""
    fields = [column.field for column in program.columns if program.is_text(column)]
    if fields and form in ("c", "onnx"):
        remedy = f"use --to numpy and streamsvm.edge, or learn without the column (--columns {fields[0]!s:.80}:drop)"
        raise ExportError(f"the column {fields[0]!r:.80} has texts, which {form.upper()} cannot encode: {remedy}")


def _list_encoded_columns(encoder: TableEncoder, table: int) -> dict[Any, Column]:
    """Return a dict from the name of each feature of texts and categories of a TableEncoder (one-hot, hash bucket or target
    encoding) to the input column that computes it in an exported model. ``table`` is the index of the model's first table: there
    is one for each column of texts, and one of target encodings.

    Raises ExportError if a numeric column has the same name as a target encoding.
    """
    columns: dict[Any, Column] = {}
    state, target_encoding = encoder.column_state, encoder.target_encoding
    categories: dict[Any, dict[str, str]] = state.categories
    texts: list[Any] = list(state.texts)
    for number, name in enumerate(texts, table):
        features = enumerate(TextEncoding.make_names(name, target_encoding))
        columns |= {feature: Column("", name, table=(number, i)) for i, feature in features}
    for name in categories:
        if encoder.buckets is not None:
            buckets = ((number, encoder.buckets) for number in range(encoder.buckets))
            columns |= {f"{name}#{bucket[0]}": Column("", name, bucket=bucket) for bucket in buckets}
        elif target_encoding is not None and (name in state.keys or state.has_target_encoding(name, None)):
            features = enumerate(target_encoding.make_names([name], state.keys & {name}))
            columns |= {feature: Column("", name, table=(table + len(texts), i)) for i, feature in features}
    for feature in map(state.get_feature, state.means):
        if feature in columns and columns.pop(feature).table is not None:
            raise ExportError(f"a column has the name of a target encoding, {feature!r:.80}: rename it")
    for name, values in categories.items():
        columns |= {feature: Column("", name, text) for text, feature in values.items() if feature}
    return columns


def _make_category_table(state: ColumnState, target_encoding: TargetEncoding, is_scaled: bool) -> CategoryTable:
    """Return a table of target encodings (numbers that replace categories) for an exported model, with the hashes of the
    categories as keys. It has what ``target_encoding``, part of a TableEncoder with this ``state``, has learned, except for
    categories with a one-hot column. If the encoder has columns that are keys, the table also has their memories, and a first row
    for unknown keys; in a regression, ``is_scaled`` is whether they are scaled.
    """
    one_hot_keys = [
        compute_name_key(compute_column_seed(name), text)
        for name, values in state.categories.items()
        for text, feature in values.items()
        if not state.has_target_encoding(name, feature)
    ]
    keys = np.setdiff1d(target_encoding.keys, np.array(one_hot_keys, np.uint32))
    if not state.keys:
        return CategoryTable(keys, target_encoding.encode_categories(keys.tolist()))
    all_keys = np.append(np.uint32(0), target_encoding.keys)
    unknown = np.setdiff1d(np.arange(1, len(all_keys) + 1, dtype=np.uint32), all_keys)[0]
    requests = np.where(np.isin(all_keys, keys), all_keys, 0), np.where(all_keys == 0, unknown, all_keys)
    rows = np.zeros((len(all_keys), 0), np.uint32), *(request[:, None].astype(np.uint32) for request in requests)
    numbers = target_encoding.encode_rows(*rows, *np.full((2, len(all_keys)), math.nan))[0]
    if is_scaled and target_encoding.is_regression:
        mean, deviation = target_encoding.target_scale
        numbers[:, 1:3] = (numbers[:, 1:3] - mean) / deviation  # after the encoding, the last target and the mean
    return CategoryTable(all_keys, numbers)


# Precision of float32 -----------------------------------------------------------------------------------------------------------


def count_scaling_steps(program: Program) -> int:
    """Return the number of operations at the start of a program (an exported model) that only fill missing numbers, select and
    scale columns. ONNX computes these in float64, and the rest in float32.
    """
    is_scaling = (step.op in _SCALING_STEPS and not step.options.get("float32") for step in program.steps)
    return sum(takewhile(bool, is_scaling))


def find_fields_lost_in_float32(program: Program, max_rounding: float = 0.01) -> list[str]:
    """Return the names of the row's fields whose values an exported model cannot take as float32, because their mean is so large
    that rounding exceeds ``max_rounding`` standard deviations.
    """
    n = len(program.columns)
    # For each value of the program: the columns of its numbers, and their location and spread in the units of the rows.
    values = [(np.arange(n), np.zeros(n), np.ones(n))]
    for step in program.steps:
        if step.op not in {*_SCALING_STEPS, "concat"} or step.options.get("float32"):
            break
        columns, location, spread = map(np.concatenate, zip(*(values[i] for i in step.inputs), strict=True))
        if step.op == "select":
            columns, location, spread = (array[step.arrays["columns"]] for array in (columns, location, spread))
        elif step.op == "cycles":  # a phase is as exact as its date, which a column of its own has
            spread = np.where(step.arrays["periods"] > 0.0, 0.0, spread)
        elif step.op == "scale":  # scalings are composed: there may be a scaler before that of the learner
            location, spread = location + spread * step.arrays["location"], spread * step.arrays["spread"]
        values.append((columns, location, spread))
    columns, location, spread = values[-1]
    lost = columns[(spread > 0.0) & (np.abs(location) * _FLOAT32_ROUNDING > max_rounding * spread)].tolist()
    return list(dict.fromkeys(str(program.columns[column].field) for column in lost))
