"""Exports learners as C that continues learning on a device, and restores the state that comes back from it."""

from __future__ import annotations

import copy
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.steps.rescale import MAX_SCALED_VALUE
from streamsvm.edge.program import Column, ExportError
from streamsvm.export.c.text import (
    FLAG_CHECKS,
    check_prefix,
    declare_row_type,
    escape_comment,
    format_float,
    make_header,
    quote_c_string,
    read_c_file,
    read_sections,
    write_c_files,
)
from streamsvm.export.convert import describe_order, find_column_order
from streamsvm.export.learners import list_labels
from streamsvm.learners.bsca import BSCAClassifier
from streamsvm.learners.bsgd import CAPPED, CONSTANT, FLOOR, BSGDClassifier

Learner = BSGDClassifier | BSCAClassifier

_SECTIONS = read_sections("learner_steps.c")
_MAX_ROW_LENGTH = 0.999e18  # learners do not accept rows with a larger norm


class LearningFiles(NamedTuple):
    """The files that `write_learning_c` has written, and the memory that they need."""

    header: Path
    source: Path
    state_bytes: int
    """Bytes of the state that ``NAME_learn_state`` returns."""
    ram_bytes: int
    """Bytes of all variables: the state, a second one for ``NAME_learn_restore``, and buffers."""


def write_learning_c(model: Learner, folder: str | Path, name: str = "model") -> LearningFiles:
    """Write a learner as C source that continues to learn on a device, with a fixed amount of memory: ``NAME_learn.h`` and
    ``NAME_learn.c`` in ``folder``, where NAME is ``name``. Returns their paths and the needed memory.

    ``NAME_learn(x, label)`` learns a row; ``label`` is 0 or 1, an index of ``NAME_learn_labels``. ``NAME_learn_predict`` and
    ``NAME_learn_decision`` predict. ``NAME_learn_state`` returns ``NAME_LEARN_BYTES`` bytes. ``NAME_learn_restore`` on the device
    and `restore_state` in Python check them and continue from them. The device computes the same steps as the learner: the same
    merges, and the same vectors up to rounding. Rows are scaled by the scale in use, which does not change on the device. With
    ``scaling=None``, numbers are clipped to 1e18 over the square root of the number of features, because learners do not accept
    longer rows. The files are C99 and later, and C++11 and later. A double must have 64 bits, which excludes avr-gcc's.

    Parameters
    ----------
    model
        A `BSGDClassifier` or `BSCAClassifier` with the Gaussian kernel and merging, which has learned two labels.
    folder
        Path of an existing folder. The files in it are ``NAME_learn.h`` and ``NAME_learn.c``.
    name
        Name of the files, and prefix of all symbols: a C identifier.

    Raises
    ------
    ExportError
        The model is not supported, or a file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, value > 4)
    >>> files = write_learning_c(model, tempfile.mkdtemp())
    >>> files.header.name, files.state_bytes
    ('model_learn.h', 456)
    """
    name, folder = check_prefix(name), Path(folder)
    _check_supported(model)
    state = _make_state(model)
    source = read_c_file("learner.c")
    location, spread = _get_scale(model)
    first = location.astype(np.float32)
    values = {
        "@HEAD": f" * {_make_title(model)} See the header.",
        "@CHECKED": FLAG_CHECKS,
        "@NAME": name,
        "@FEATURES": str(len(model.feature_names)),
        "@BUDGET": str(model.budget),
        "@STATE": _format_initial_state(state),
        "@LOCATION": _format_numbers(first),
        "@REST": _format_numbers(location - first),
        "@FACTOR": _format_numbers(np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0.0)),
        "@BOUND": format_float(
            _MAX_ROW_LENGTH / math.sqrt(len(model.feature_names)) if model.scaling is None else float(MAX_SCALED_VALUE)
        ),
        "@GAMMA": repr(model.effective_gamma),
        "@HORIZON_OR_ONE": repr(float(model.averaging or 1)),
        "@HORIZON": repr(float(model.averaging)),
        "@STEP": _make_step_functions(model),
        "@LABELS": ", ".join(quote_c_string(label) for label in list_labels(model)),
        "@MADE_FOR": str(_compute_model_checksum(model)),
        **(_DRIFT_TEXTS if _watches_drift(model) else dict.fromkeys(_DRIFT_TEXTS, "")),
        "@GAP": "gap, " if "gap" in (state.dtype.names or ()) else "",
    }
    for placeholder, text in values.items():
        source = source.replace(placeholder, text)
    ram = 2 * state.nbytes + 4 * (len(model.feature_names) + 2 * (model.budget + 1))
    paths = write_c_files(folder, f"{name}_learn", name, _make_header_text(model, state.nbytes, ram), source)
    return LearningFiles(*paths, state.nbytes, ram)


def serialise_state(model: Learner) -> bytes:
    """Return the learned state of a model (support vectors, coefficients and statistics) as bytes. The C function
    ``NAME_learn_restore``, from `write_learning_c`, replaces the state of a device with them.

    It updates the device with all that the model has learned since its C code was written.

    Raises
    ------
    ExportError
        The model is not supported, as in `write_learning_c`.
    """
    _check_supported(model)
    data = bytearray(_make_state(model).tobytes())
    data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
    return bytes(data)


def restore_state(model: Learner, data: bytes) -> Learner:
    """Return a copy of ``model`` that continues from the learned state of a device: ``data``, the bytes that the C function
    ``NAME_learn_state`` has returned there.

    Parameters
    ----------
    model
        The model that `write_learning_c` has written; it is not changed.
    data
        The bytes that ``NAME_learn_state`` has returned. The device must be little-endian.

    Raises
    ------
    ExportError
        The bytes are not a state of this model, or they are corrupt.
    """
    _check_supported(model)
    dtype = _make_state_dtype(model)
    if len(data) != dtype.itemsize:
        raise ExportError(f"a state of {len(data):,} bytes is not one of this model, whose states have {dtype.itemsize:,}")
    state = np.frombuffer(data, dtype, 1)[0]
    if state["sum"] != zlib.crc32(data[:-4]):
        raise ExportError("the state is corrupt: its checksum is wrong")
    if state["made_for"] != _compute_model_checksum(model):
        raise ExportError("the state is of a model with other features, scale or parameters")
    n, used = int(state["n"]), len(model.feature_names)
    if n > model.budget:
        raise ExportError(f"the state is corrupt: it has {n:,} support vectors, more than the budget")
    restored = copy.deepcopy(model)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            _fill_state(restored, state, n, used)
        return copy.deepcopy(restored)  # copying runs the checks for models from files
    except (ValueError, OverflowError) as error:
        raise ExportError(f"the state is corrupt: {error}") from None


def _fill_state(model: Learner, state: Any, n: int, used: int) -> None:
    """Copy the learned state of a device (``state``, a record with ``n`` support vectors, their coefficients and statistics)
    into ``model`` in place. ``used`` is the model's number of features.
    """
    v, c = model._store.views, model._common
    h = v.header[0]
    for array in (v.vectors, v.coefficients, v.weights, v.stamps, v.norms):
        array[:] = 0
    v.vectors[_find_feature_order(model), :n] = state["vectors"][:n].T
    v.coefficients[0, :n], v.coefficients[1, :n] = state["coefficients"][:n], state["averages"][:n]
    v.weights[:n], v.stamps[:n] = state["weights"][:n], state["stamps"][:n]
    v.norms[:n] = np.square(v.vectors[:used, :n].astype(np.float64)).sum(axis=0)
    h["n_support"], h["next_stamp"] = n, state["next_stamp"]
    h["largest_norm"] = max(float(h["largest_norm"]), float(v.norms[:n].max(initial=0.0)) * (1.0 + 1e-6))
    v.biases[:2] = state["bias"]
    for name in ("scale", "average_v", "average_u", "error", "size", "slope", "curvature", "t", "random"):
        c[name] = state[name]
    c["n_merges"] = state["merges"]
    for name in _DRIFT_FIELDS if _watches_drift(model) else ():
        model._rule_record[name] = state[name]
    v.cache[0]["valid"] = 0


def _check_supported(model: Any) -> None:
    """Raise ExportError with the reason if `write_learning_c` cannot export this model as C that learns, for example because it
    has another kernel, or has not learned two labels yet.
    """
    name = type(model).__name__
    if not issubclass(type(model), Learner):  # isinstance is also true for pipelines that end with one
        raise ExportError(f"a {name} cannot learn in C: a BSGDClassifier or BSCAClassifier can")
    problems = {
        "it has not learned two labels yet": len(model.labels) != 2,
        "it has not learned a feature yet": not model.feature_names,
        f"kernel={model.kernel!r}, and 'rbf' is needed": model.kernel != "rbf",
        "maintenance must be Merge('lookup-wd')": str(model.maintenance) not in ("None", "Merge(search='lookup-wd')"),
        "class_weight is not supported on a device: None is needed": model.class_weight is not None,
        "gamma='scale' is not determined yet: learn 500 rows, or pass a number": 0 <= int(model._common[0]["gamma_rows"]) < 500,
        "replay needs a window of rows: replay=0 is needed": getattr(model, "replay", 0) != 0,
    }
    if reasons := [problem for problem, applies in problems.items() if applies]:
        raise ExportError(f"this {name} cannot learn in C: {reasons[0]}")


#: Fields of the state of a learner that watches for concept drift.
_DRIFT_FIELDS = "drifts", "forgotten"


def _watches_drift(model: Learner) -> bool:
    """Return whether this learner detects concept drift and then forgets old rows, with statistics in its state."""
    return isinstance(model, BSCAClassifier) and bool(model._rule_record[0]["one_pass"])


def _make_state_dtype(model: Learner) -> np.dtype[Any]:
    """Return the numpy record dtype of a learner's state (support vectors, coefficients and statistics) with the same memory
    layout as the struct in the exported C code.
    """
    slots, features = model.budget + 1, len(model.feature_names)
    fields: list[Any] = [("coefficients", "<f8", slots), ("averages", "<f8", slots), ("bias", "<f8", 2)]
    fields += [(name, "<f8") for name in ("scale", "average_v", "average_u")]
    fields += [(name, "<f8", 2) for name in ("error", "size", "slope", "curvature")]
    has_drift = _watches_drift(model)
    fields += [("drifts", "<f8", 3)] * has_drift
    fields += [(name, "<u8") for name in ("t", "random", "merges", *["forgotten"] * has_drift)]
    fields += [("vectors", "<f4", (slots, features)), ("weights", "<f4", slots), ("stamps", "<u4", slots)]
    fields += [(name, "<u4") for name in ("next_stamp", "n", "made_for")]
    size = np.dtype(fields).itemsize
    if size % 8 == 0:  # the checksum must be at the very end, and C pads a struct to a multiple of 8 bytes
        fields.append(("gap", "<u4"))
    return np.dtype([*fields, ("sum", "<u4")])


def _make_state(model: Learner) -> Any:
    """Return the learned state of a model (support vectors, coefficients and statistics) as a numpy record array of length 1, in
    the memory layout of the exported C code. Its checksum field is still 0.
    """
    state = np.zeros(1, _make_state_dtype(model))
    v, c, n = model._store.views, model._common[0], model.n_support
    record = state[0]
    record["coefficients"][:n], record["averages"][:n] = v.coefficients[0, :n], v.coefficients[1, :n]
    record["bias"] = v.biases[:2]
    for name in ("scale", "average_v", "average_u", "error", "size", "slope", "curvature", "t", "random"):
        record[name] = c[name]
    for name in _DRIFT_FIELDS if _watches_drift(model) else ():
        record[name] = model._rule_record[0][name]
    record["merges"], record["vectors"][:n] = c["n_merges"], v.vectors[_find_feature_order(model), :n].T
    record["weights"][:n], record["stamps"][:n] = v.weights[:n], v.stamps[:n]
    record["next_stamp"], record["n"], record["made_for"] = v.header[0]["next_stamp"], n, _compute_model_checksum(model)
    return state


def _find_feature_order(model: Learner) -> np.ndarray:
    """Return the permutation of the model's features, int64 [features], that sorts them into the input order of the exported C
    code: the order of the user's table, if known, else the natural order of names.
    """
    names: list[Any] = model.feature_names
    return find_column_order([Column(name, name) for name in names], model._features.order)


def _list_feature_names(model: Learner) -> list[Any]:
    """Return the names of the model's features in the order of the inputs of the exported C code."""
    return [model.feature_names[index] for index in _find_feature_order(model)]


def _get_scale(model: Learner) -> tuple[np.ndarray, np.ndarray]:
    """Return the location and the spread of the scaling (x - location) / spread that the model applies to its features, float64
    [features] each, in the input order of the exported C code. Without scaling, they are 0 and 1.
    """
    scale = model.scale_in_use
    n, order = len(model.feature_names), _find_feature_order(model)
    return (np.zeros(n), np.ones(n)) if scale is None else (scale.location[order], scale.spread[order])


def _compute_model_checksum(model: Learner) -> int:
    """Return the CRC-32 of those parts of a model that its exported C code contains as constants: feature names, labels, scale
    and hyperparameters. A state can be exchanged between models with equal checksums.
    """
    parts = [repr(_list_feature_names(model)), repr(list_labels(model)), repr(model.effective_gamma)]
    parts += [_make_step_functions(model), *(array.tobytes().hex() for array in _get_scale(model))]
    return zlib.crc32("|".join(parts).encode())


def _format_initial_state(state: Any) -> str:
    """Return a learned state, a numpy record array [1], as the text of a C struct initializer, with nested braces for arrays."""
    parts = []
    for name in state.dtype.names:
        array = np.atleast_1d(state[name][0])
        if array.dtype.kind == "f":
            values = [repr(float(value)) if array.dtype.itemsize == 8 else format_float(float(value)) for value in array.ravel()]
        else:
            values = [f"{int(value)}u" for value in array.ravel()]
        text = ", ".join(values)
        if array.ndim == 2:
            text = ", ".join(f"{{{', '.join(values[k : k + array.shape[1]])}}}" for k in range(0, len(values), array.shape[1]))
        parts.append(text if state[name][0].ndim == 0 else f"{{{text}}}")
    return "{\n    " + ",\n    ".join(parts) + "\n}"


def _format_numbers(array: np.ndarray) -> str:
    """Return the numbers of an array as C literals of type float, joined by commas."""
    return ", ".join(format_float(float(value)) for value in array)


def _make_step_functions(model: Learner) -> str:
    """Return the text of the C functions that learn one row, the model's update rule with its hyperparameters."""
    own = model._rule_record[0]
    if isinstance(model, BSCAClassifier):
        numbers = {"C": own["C"], "RELAXATION": own["relaxation"], "TOL": own["tol"], "REPROCESS": own["reprocess"]}
        text = _SECTIONS["ascent"].replace("$LIMIT", _SECTIONS["one_pass_limit"] if own["one_pass"] else "    return $C;")
        text = text.replace("$FORGET\n", _SECTIONS["forget"] + "\n\n" if own["one_pass"] else "")
        text = text.replace("$WATCH\n", _SECTIONS["watch"] + "\n" if own["one_pass"] else "")
        for name, value in numbers.items():
            text = text.replace(f"${name}", repr(value.item()))
        return text
    schedule = int(own["schedule"])
    eta = {CONSTANT: "$ETA0", FLOOR: "larger(eta, $ETA0)", CAPPED: "smaller(eta, $ETA0)"}.get(schedule, "eta")
    shrink = "    if (shrink > 0.0) s.bias[0] *= shrink;\n" if own["fit_intercept"] else ""
    bias = "    s.bias[0] += size;\n" if own["fit_intercept"] else ""
    text = (
        _SECTIONS["descent"]
        .replace("    eta = $SCHEDULE;\n", "" if eta == "eta" else f"    eta = {eta};\n")
        .replace("$SHRINK\n", shrink)
        .replace("$BIAS\n", bias)
    )
    return text.replace("$L2", repr(float(own["l2"]))).replace("$ETA0", repr(float(own["eta0"])))


#: Texts for the placeholders of drift detection in learner.c.
_DRIFT_TEXTS = {
    "@DRIFTS": ", drifts[3]",
    "@FORGOTTEN": ", forgotten",
    "@CHART": " + 3",
    "@CHECK_CHART": _SECTIONS["check_chart"] + "\n",
}


def _make_title(model: Learner) -> str:
    """Return the first comment line of the exported C files: the model's class, and the number of rows that it has learned."""
    return f"{type(model).__name__} that keeps learning, after {model.n_learned:,} rows."


def _make_header_text(model: Learner, nbytes: int, ram: int) -> str:
    """Return the text of the C header of an exported learner, with declarations of its functions. ``nbytes`` is the size of its
    state, and ``ram`` that of all variables, both in bytes.
    """
    order = describe_order("natural" if model._features.order is None else "table")
    head = [
        _make_title(model),
        f"Variables: {ram:,} bytes. A call needs at most 1,024 bytes of stack compiled with -Os, -O2 or -O3.",
        "",
        f"x holds these numbers in {order}, as they are; what is not finite is missing.",
        *(f"  x[{index}]  {escape_comment(name)}" for index, name in enumerate(_list_feature_names(model))),
    ]
    definitions = [f"#define @UP_LEARN_FEATURES {len(model.feature_names)}", f"#define @UP_LEARN_BYTES {nbytes}"]
    lines = declare_row_type(_list_feature_names(model), "@_learn_row", "@UP_LEARN_FEATURES")
    lines += ["extern const char *const @_learn_labels[2];", ""]
    lines += ["/* Learn a row of label 0 or 1; 0 for another label, with which nothing is learned, else 1. */"]
    lines += ["int @_learn(const float *x, int label);", "", "/* The number of the label. */"]
    lines += ["int @_learn_predict(const float *x);", "", "/* The decision value: label 1 where it is above 0. */"]
    lines += ["float @_learn_decision(const float *x);", "", "/* @UP_LEARN_BYTES bytes, valid until the next row is learned. */"]
    lines += [
        "const unsigned char *@_learn_state(void);",
        "",
        "/* Take such bytes back; 0, and nothing has changed, where they are corrupt. */",
    ]
    lines += ["int @_learn_restore(const unsigned char *bytes, unsigned n);", ""]
    return make_header("@UP_LEARN_H", head, definitions, lines)
