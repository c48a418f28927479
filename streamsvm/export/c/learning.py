"""Learners in C99, which is C++11, too, that go on learning on a device, and their state on its way back."""

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
    CHECKED,
    c_comment,
    c_string,
    checked_prefix,
    header_text,
    number,
    read_c,
    read_sections,
    row_type,
    write_pair,
)
from streamsvm.export.convert import describe_order, find_column_order
from streamsvm.export.learners import list_labels
from streamsvm.learners.bsca import BSCAClassifier
from streamsvm.learners.bsgd import CAPPED, CONSTANT, FLOOR, BSGDClassifier

Learner = BSGDClassifier | BSCAClassifier

_PARTS = read_sections("learner_steps.c")
_LONGEST = 0.999e18  # of a row: longer ones no learner of Python takes


class LearningFiles(NamedTuple):
    """The files that `write_learning_c` has written, and the bytes that they need."""

    header: Path
    source: Path
    state_bytes: int
    """Bytes that ``NAME_learn_state`` gives."""
    ram_bytes: int
    """Bytes of all variables: the state, a second state for one that is restored, and what a row is compared with."""


def write_learning_c(model: Learner, folder: str | Path, name: str = "model") -> LearningFiles:
    """Write a learner as C that continues learning on a device, in a fixed amount of memory.

    ``NAME_learn(x, label)`` learns a row; its label is the first or the second of ``NAME_learn_labels``. ``NAME_learn_predict``
    and ``NAME_learn_decision`` predict. ``NAME_learn_state`` gives ``NAME_LEARN_BYTES`` bytes, which ``NAME_learn_restore`` on
    the device and `restore_state` in Python check and take back. The steps are those of the learner itself: the same merges, and
    the same vectors apart from rounding. Rows are scaled by the scale in use, which stays as it is on the device. With
    ``scaling=None``, numbers are bounded by 1e18 over the root of the number of features, because no learner accepts longer
    rows. The files are C99 and later, and C++11 and later. A double must have 64 bits: avr-gcc has shorter ones.

    Parameters
    ----------
    model
        A `BSGDClassifier` or `BSCAClassifier` with the Gaussian kernel and merging, which has learned two labels.
    folder
        Path of an existing folder. The files in it are ``NAME_learn.h`` and ``NAME_learn.c``.
    name
        Name of the files, and the beginning of all symbols: a C identifier.

    Raises
    ------
    ExportError
        The model is of another kind, or a file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, value > 4)
    >>> written = write_learning_c(model, tempfile.mkdtemp())
    >>> written.header.name, written.state_bytes
    ('model_learn.h', 456)
    """
    name, folder = checked_prefix(name), Path(folder)
    _check_learns(model)
    state = _state_of(model)
    source = read_c("learner.c")
    location, spread = _scale_arrays(model)
    first = location.astype(np.float32)
    filled = {
        "@HEAD": f" * {_head_text(model)} See the header.",
        "@CHECKED": CHECKED,
        "@NAME": name,
        "@FEATURES": str(len(model.feature_names)),
        "@BUDGET": str(model.budget),
        "@STATE": _initial_state(state),
        "@LOCATION": _number_list(first),
        "@REST": _number_list(location - first),
        "@FACTOR": _number_list(np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0.0)),
        "@BOUND": number(_LONGEST / math.sqrt(len(model.feature_names)) if model.scaling is None else float(MAX_SCALED_VALUE)),
        "@GAMMA": repr(model.effective_gamma),
        "@HORIZON_OR_ONE": repr(float(model.averaging or 1)),
        "@HORIZON": repr(float(model.averaging)),
        "@STEP": _step_text(model),
        "@LABELS": ", ".join(c_string(label) for label in list_labels(model)),
        "@MADE_FOR": str(_made_for(model)),
        **(_CHART_TEXTS if _forgets(model) else dict.fromkeys(_CHART_TEXTS, "")),
        "@GAP": "gap, " if "gap" in (state.dtype.names or ()) else "",
    }
    for mark, text in filled.items():
        source = source.replace(mark, text)
    ram = 2 * state.nbytes + 4 * (len(model.feature_names) + 2 * (model.budget + 1))
    paths = write_pair(folder, f"{name}_learn", name, _header_text(model, state.nbytes, ram), source)
    return LearningFiles(*paths, state.nbytes, ram)


def serialise_state(model: Learner) -> bytes:
    """Return the state of a model as ``NAME_learn_restore`` takes it.

    It brings to the device what the model has learned since its C code was written.

    Raises
    ------
    ExportError
        The model has no such C code, as in `write_learning_c`.
    """
    _check_learns(model)
    data = bytearray(_state_of(model).tobytes())
    data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
    return bytes(data)


def restore_state(model: Learner, data: bytes) -> Learner:
    """Return a model that continues from the state of a device, as ``NAME_learn_state`` gives it.

    Parameters
    ----------
    model
        The model that `write_learning_c` has written; it stays as it is.
    data
        The bytes of the state. The device must be little-endian.

    Raises
    ------
    ExportError
        The bytes are not a state of this model's device, or they are corrupt.
    """
    _check_learns(model)
    dtype = _row_dtype(model)
    if len(data) != dtype.itemsize:
        raise ExportError(f"a state of {len(data):,} bytes is none of this model, whose states have {dtype.itemsize:,}")
    state = np.frombuffer(data, dtype, 1)[0]
    if state["sum"] != zlib.crc32(data[:-4]):
        raise ExportError("the state is corrupt: its sum is wrong")
    if state["made_for"] != _made_for(model):
        raise ExportError("the state is of a model with other features, scale or parameters")
    n, used = int(state["n"]), len(model.feature_names)
    if n > model.budget:
        raise ExportError(f"the state is corrupt: it has {n:,} support vectors, more than the budget")
    taken = copy.deepcopy(model)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            _fill_state(taken, state, n, used)
        return copy.deepcopy(taken)  # through the checks of a model that comes from a file
    except (ValueError, OverflowError) as error:
        raise ExportError(f"the state is corrupt: {error}") from None


def _fill_state(model: Learner, state: Any, n: int, used: int) -> None:
    v, c = model._store.views, model._common
    h = v.header[0]
    for array in (v.vectors, v.coefficients, v.weights, v.stamps, v.norms):
        array[:] = 0
    v.vectors[_feature_places(model), :n] = state["vectors"][:n].T
    v.coefficients[0, :n], v.coefficients[1, :n] = state["coefficients"][:n], state["averages"][:n]
    v.weights[:n], v.stamps[:n] = state["weights"][:n], state["stamps"][:n]
    v.norms[:n] = np.square(v.vectors[:used, :n].astype(np.float64)).sum(axis=0)
    h["n_support"], h["next_stamp"] = n, state["next_stamp"]
    h["largest_norm"] = max(float(h["largest_norm"]), float(v.norms[:n].max(initial=0.0)) * (1.0 + 1e-6))
    v.biases[:2] = state["bias"]
    for name in ("scale", "average_v", "average_u", "error", "size", "slope", "curvature", "t", "random"):
        c[name] = state[name]
    c["n_merges"] = state["merges"]
    for name in _CHART if _forgets(model) else ():
        model._rule_record[name] = state[name]
    v.cache[0]["valid"] = 0


def _check_learns(model: Any) -> None:
    """Raise an ExportError where a model has no form that learns in C."""
    kind = type(model).__name__
    if not issubclass(type(model), Learner):  # isinstance is true of pipelines with one at their end
        raise ExportError(f"a {kind} has no form in C that learns: a BSGDClassifier or BSCAClassifier has")
    reasons = {
        "it has not learned two labels yet": len(model.labels) != 2,
        "it has not learned a feature yet": not model.feature_names,
        f"kernel={model.kernel!r}: the Gaussian one has": model.kernel != "rbf",
        "its budget is not kept by Merge('lookup-wd')": str(model.maintenance) not in ("None", "Merge(search='lookup-wd')"),
        "class_weight is not counted on a device: None is needed": model.class_weight is not None,
        "gamma='scale' is still being found: learn 500 rows, or give a number": 0 <= int(model._common[0]["gamma_rows"]) < 500,
        "replay needs a window of rows: replay=0 is needed": getattr(model, "replay", 0) != 0,
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise ExportError(f"this {kind} has no form in C that learns: {found[0]}")


#: The state of a learner that forgets where its stream drifts.
_CHART = "drifts", "forgotten"


def _forgets(model: Learner) -> bool:
    return isinstance(model, BSCAClassifier) and bool(model._rule_record[0]["one_pass"])


def _row_dtype(model: Learner) -> np.dtype[Any]:
    slots, features = model.budget + 1, len(model.feature_names)
    fields: list[Any] = [("coefficients", "<f8", slots), ("averages", "<f8", slots), ("bias", "<f8", 2)]
    fields += [(name, "<f8") for name in ("scale", "average_v", "average_u")]
    fields += [(name, "<f8", 2) for name in ("error", "size", "slope", "curvature")]
    forgets = _forgets(model)
    fields += [("drifts", "<f8", 3)] * forgets
    fields += [(name, "<u8") for name in ("t", "random", "merges", *["forgotten"] * forgets)]
    fields += [("vectors", "<f4", (slots, features)), ("weights", "<f4", slots), ("stamps", "<u4", slots)]
    fields += [(name, "<u4") for name in ("next_stamp", "n", "made_for")]
    size = np.dtype(fields).itemsize
    if size % 8 == 0:  # the sum stands last, and a struct of C fills its size up to 8 bytes
        fields.append(("gap", "<u4"))
    return np.dtype([*fields, ("sum", "<u4")])


def _state_of(model: Learner) -> Any:
    state = np.zeros(1, _row_dtype(model))
    v, c, n = model._store.views, model._common[0], model.n_support
    one = state[0]
    one["coefficients"][:n], one["averages"][:n] = v.coefficients[0, :n], v.coefficients[1, :n]
    one["bias"] = v.biases[:2]
    for name in ("scale", "average_v", "average_u", "error", "size", "slope", "curvature", "t", "random"):
        one[name] = c[name]
    for name in _CHART if _forgets(model) else ():
        one[name] = model._rule_record[0][name]
    one["merges"], one["vectors"][:n] = c["n_merges"], v.vectors[_feature_places(model), :n].T
    one["weights"][:n], one["stamps"][:n] = v.weights[:n], v.stamps[:n]
    one["next_stamp"], one["n"], one["made_for"] = v.header[0]["next_stamp"], n, _made_for(model)
    return state


def _feature_places(model: Learner) -> np.ndarray:
    """Return the places of the features in the order in which the device takes them."""
    names: list[Any] = model.feature_names
    return find_column_order([Column(name, name) for name in names], model._features.order)


def _feature_names(model: Learner) -> list[Any]:
    return [model.feature_names[place] for place in _feature_places(model)]


def _scale_arrays(model: Learner) -> tuple[np.ndarray, np.ndarray]:
    scale = model.scale_in_use
    n, places = len(model.feature_names), _feature_places(model)
    return (np.zeros(n), np.ones(n)) if scale is None else (scale.location[places], scale.spread[places])


def _made_for(model: Learner) -> int:
    """Return a sum of all that a state does not say, but must fit."""
    parts = [repr(_feature_names(model)), repr(list_labels(model)), repr(model.effective_gamma), str(_step_text(model))]
    return zlib.crc32("|".join([*parts, *(array.tobytes().hex() for array in _scale_arrays(model))]).encode())


def _initial_state(state: Any) -> str:
    parts = []
    for name in state.dtype.names:
        array = np.atleast_1d(state[name][0])
        if array.dtype.kind == "f":
            values = [repr(float(value)) if array.dtype.itemsize == 8 else number(float(value)) for value in array.ravel()]
        else:
            values = [f"{int(value)}u" for value in array.ravel()]
        text = ", ".join(values)
        if array.ndim == 2:
            text = ", ".join(f"{{{', '.join(values[k : k + array.shape[1]])}}}" for k in range(0, len(values), array.shape[1]))
        parts.append(text if state[name][0].ndim == 0 else f"{{{text}}}")
    return "{\n    " + ",\n    ".join(parts) + "\n}"


def _number_list(array: np.ndarray) -> str:
    return ", ".join(number(float(value)) for value in array)


def _step_text(model: Learner) -> str:
    own = model._rule_record[0]
    if isinstance(model, BSCAClassifier):
        names = {"C": own["C"], "RELAXATION": own["relaxation"], "TOL": own["tol"], "REPROCESS": own["reprocess"]}
        text = _PARTS["ascent"].replace("$LIMIT", _PARTS["one_pass_limit"] if own["one_pass"] else "    return $C;")
        text = text.replace("$FORGET\n", _PARTS["forget"] + "\n\n" if own["one_pass"] else "")
        text = text.replace("$WATCH\n", _PARTS["watch"] + "\n" if own["one_pass"] else "")
        for name, value in names.items():
            text = text.replace(f"${name}", repr(value.item()))
        return text
    schedule = int(own["schedule"])
    eta = {CONSTANT: "$ETA0", FLOOR: "larger(eta, $ETA0)", CAPPED: "smaller(eta, $ETA0)"}.get(schedule, "eta")
    shrink = "    if (shrink > 0.0) s.bias[0] *= shrink;\n" if own["fit_intercept"] else ""
    bias = "    s.bias[0] += size;\n" if own["fit_intercept"] else ""
    text = (
        _PARTS["descent"]
        .replace("    eta = $SCHEDULE;\n", "" if eta == "eta" else f"    eta = {eta};\n")
        .replace("$SHRINK\n", shrink)
        .replace("$BIAS\n", bias)
    )
    return text.replace("$L2", repr(float(own["l2"]))).replace("$ETA0", repr(float(own["eta0"])))


#: What the marks of the chart in learner.c stand for.
_CHART_TEXTS = {
    "@DRIFTS": ", drifts[3]",
    "@FORGOTTEN": ", forgotten",
    "@CHART": " + 3",
    "@CHECK_CHART": _PARTS["check_chart"] + "\n",
}


def _head_text(model: Learner) -> str:
    return f"{type(model).__name__} that keeps learning, after {model.n_learned:,} rows."


def _header_text(model: Learner, nbytes: int, ram: int) -> str:
    order = describe_order("natural" if model._features.order is None else "table")
    head = [
        _head_text(model),
        f"Variables: {ram:,} bytes. A call needs at most 1,024 bytes of stack compiled with -Os, -O2 or -O3.",
        "",
        f"x holds these numbers in {order}, as they are; what is not finite is missing.",
        *(f"  x[{place}]  {c_comment(name)}" for place, name in enumerate(_feature_names(model))),
    ]
    defined = [f"#define @UP_LEARN_FEATURES {len(model.feature_names)}", f"#define @UP_LEARN_BYTES {nbytes}"]
    lines = row_type(_feature_names(model), "@_learn_row", "@UP_LEARN_FEATURES")
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
    return header_text("@UP_LEARN_H", head, defined, lines)
