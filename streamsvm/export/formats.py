"""Writes models to files: saves them, and exports them as C, ONNX, JSON, or for numpy."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.edge.predictor import NO_PROGRAM_KEY, PROGRAM_KEY
from streamsvm.edge.program import ExportError, Program
from streamsvm.export.convert import make_program
from streamsvm.export.pipelines import check_no_texts, find_fields_lost_in_float32
from streamsvm.files.container import DTYPES, ModelFileError, pack_container
from streamsvm.files.messages import short_repr
from streamsvm.files.model_file import is_model, serialize_parts, write_file

#: The export formats, and the options of each.
FORMATS: Mapping[str, frozenset[str]] = {
    "c": frozenset({"bits"}),
    "onnx": frozenset({"inputs"}),
    "numpy": frozenset(),
    "json": frozenset(),
}
_SUFFIXES: Mapping[str, tuple[str, ...]] = {"c": ("h", "c"), "onnx": ("onnx",), "numpy": ("safetensors",), "json": ("json",)}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def export(
    model: Any, to: str, out: str | Path, name: str = "model", *, max_bytes: int | None = None, X: Any = None, **options: Any
) -> list[Path]:
    """Export a model to files in the folder ``out`` that predict without streamsvm: as C source, ONNX, an array file for numpy,
    or JSON (``to``). If its tables in C exceed ``max_bytes``, the model is made smaller first, so that it predicts the rows X
    nearly as before. Returns the paths of the files.

    Parameters
    ----------
    model
        A learner, a fitted machine, a pipeline that ends with one, or a `Program`.
    to
        The format. ``"c"``: NAME.h and NAME.c, C99 without any library. ``"onnx"``: NAME.onnx. ``"numpy"``:
        NAME.safetensors, which `streamsvm.edge.load` reads. ``"json"``: NAME.json, the program as text.
    out
        Path of the folder, which is created if it does not exist, or of the file, such as ``"spam.json"``.
    name
        Name of the files, and of the functions in C, if ``out`` is a folder.
    max_bytes
        Maximum bytes of the tables in C. If they have more, `streamsvm.export.reduce.reduce_program` makes the model smaller, and
        the file says what that cost. None sets no limit.
    X
        Rows on which a smaller model must predict as before, for `reduce_program`.
    options
        Options of the format. For C: ``bits``, as in `streamsvm.export.c.write_c`. For ONNX: ``inputs``, as in
        `streamsvm.export.onnx.write_onnx`.

    Returns
    -------
    list of Path
        The files that were written, each completely or not at all.

    Raises
    ------
    ExportError
        The model cannot be exported in this format, or the files cannot be written; the message names the reason.

    Warns
    -----
    UserWarning
        The mean of a feature is so large, compared with its standard deviation, that float32 loses the differences of its values.
        C takes rows in float32, and so does ONNX with ``inputs="float"``.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm import BSGDClassifier, edge
    >>> model = BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> [path] = export(model, "numpy", tempfile.mkdtemp())
    >>> path.name, edge.load(path).predict_one({"a": 1.0})
    ('model.safetensors', 'yes')
    """
    if to not in FORMATS:
        raise ExportError(f"unknown format {to!r:.40}: the formats are {', '.join(FORMATS)}")
    if unknown := options.keys() - FORMATS[to]:
        supported = f"it has {', '.join(sorted(FORMATS[to]))}" if FORMATS[to] else "it has no options"
        raise ExportError(f"{min(unknown)} is not an option of the format {to}: {supported}")
    files = list_files(to, out, name)
    folder, name = files[0].parent, files[0].stem
    program = model if isinstance(model, Program) else make_program(model)
    check_no_texts(program, to)
    if to == "c" or options.get("inputs") == "float":
        _warn_of_float32(program, to)
    if max_bytes is not None:
        from streamsvm.export.reduce import reduce_program  # noqa: PLC0415 - scikit-learn takes a second

        program = reduce_program(program, max_bytes, X, bits=options.get("bits") or 32).program
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if to == "c":
            from streamsvm.export.c import write_c  # noqa: PLC0415 - needed for this form only

            write_c(program, folder, name, **options)
        elif to == "onnx":
            from streamsvm.export.onnx import write_onnx  # noqa: PLC0415 - onnx may not be installed

            write_onnx(program, files[0], **options)
        else:
            write_file(files[0], _serialise_container(program) if to == "numpy" else _serialise_json(program))
        return files
    except OSError as error:
        raise ExportError(f"{error.filename or folder}: {error.strerror}") from error
    except ModelFileError as error:
        raise ExportError(f"{files[0]} was not written: {error}") from error


def list_files(to: str, out: str | Path, name: str) -> list[Path]:
    """Return the paths of the files that `export` writes for the format ``to`` (``"c"``, ``"onnx"``, ``"numpy"`` or ``"json"``):
    into the folder ``out``, under the file name ``name`` without suffix. If ``out`` has a suffix of the format and is not a
    folder, it is the file itself, and ``name`` is ignored.

    Raises ExportError if ``out`` has the suffix of another format and is not a folder, or the name is invalid.
    """
    path = Path(out)
    suffixes, suffix = _SUFFIXES[to], path.suffix[1:].lower()
    if not path.is_dir() and (form := next((form for form, known in _SUFFIXES.items() if suffix in known), None)):
        if form != to:
            raise ExportError(f"{path} would be a file of the format {form}, not {to}: name a folder, or PATH.{suffixes[-1]}")
        path, name = path.parent, path.stem
    if not _FILE_NAME.fullmatch(name):
        raise ExportError(f"invalid file name {name!r:.100}: use letters, digits, _, - and .")
    return [path / f"{name}.{suffix}" for suffix in suffixes]


def _warn_of_float32(program: Program, to: str) -> None:
    """Warn the user if the format ``to`` takes rows in float32, and this rounds a feature of the model too much: its mean is very
    large compared with its standard deviation.
    """
    if fields := find_fields_lost_in_float32(program):
        names = ", ".join(map(short_repr, fields[:5])) + ", ..." * (len(fields) > 5)
        warnings.warn(
            f"{to} takes rows in float32, which lose the differences of {names}: the mean is far larger than the standard "
            "deviation. Subtract an offset from the feature before learning, or predict with numpy, json or onnx, whose rows can "
            "be float64",
            stacklevel=3,
        )


def _serialise_container(program: Program) -> bytes:
    """Serialise a program (a model as a list of numpy operations) to the bytes of a safetensors file, which `streamsvm.edge.load`
    reads.
    """
    text, arrays = program.serialise()
    return pack_container(arrays, {"kind": "program", PROGRAM_KEY: text})


def _serialise_json(program: Program) -> bytes:
    """Serialise a program (a model as a list of operations) with all its arrays to the bytes of a JSON file, for programs in
    other languages.
    """
    text, arrays = program.serialise()
    saved = json.loads(text)
    saved["format"] = "streamsvm program"
    # The JSON refers to arrays by key. Replace each key by the array itself.
    for references in (*(step["arrays"] for step in saved["steps"]), *saved.get("tables", ())):
        references.update({name: _array_to_json(arrays[key]) for name, key in references.items()})
    return json.dumps(saved, separators=(",", ":"), allow_nan=False).encode()


def _array_to_json(array: np.ndarray) -> dict[str, Any]:
    """Convert a numpy array to a dict for JSON: its dtype name, shape, and flat list of numbers. float32 numbers have the fewest
    digits that restore them exactly.
    """
    numbers = array.ravel().tolist() if array.dtype != np.float32 else [float(str(number)) for number in array.ravel()]
    return {"dtype": _DTYPE_NAMES[array.dtype.newbyteorder("<")], "shape": list(array.shape), "data": numbers}


def save(model: Any, path: str | Path, trusted: bool = False) -> None:
    """Save a model, or a river pipeline with one, to a file, from which `streamsvm.load` restores it to continue learning. The
    user's own classes may be part of it only if the file is to be loaded as ``trusted``. The file is written completely or not at
    all.

    `streamsvm.edge.load` reads it, too, where there is only numpy, and predicts. A model that cannot be exported can still be
    saved: the file has the reason in place of the program.

    Parameters
    ----------
    model
        An estimator of streamsvm or river, or a pipeline of them.
    path
        Path of the file; an existing file is replaced.
    trusted
        Whether the file may contain classes and functions of your own. Loading the file then requires to trust it.

    Raises
    ------
    ModelFileError
        The model contains an object that a file cannot hold, or the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib, streamsvm
    >>> model = streamsvm.BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "model.safetensors")
    >>> streamsvm.save(model, path)
    >>> streamsvm.load(path).predict_one({"a": 1.0}), streamsvm.edge.load(path).predict_one({"a": 1.0})
    ('yes', 'yes')
    """
    path = Path(path)
    if not is_model(model):
        raise ModelFileError(f"{path} was not written: a {type(model).__name__} is not a model of streamsvm or river")
    try:
        text, arrays = make_program(model).serialise()
        strings = {PROGRAM_KEY: text}
    except (ArithmeticError, TypeError, ValueError) as error:  # ExportError, or an invalid number in one of river's transformers
        strings, arrays = {NO_PROGRAM_KEY: str(error)}, {}
    try:
        write_file(path, serialize_parts({"model": model}, {"kind": "model"}, trusted, strings, arrays))
    except ModelFileError as error:
        raise ModelFileError(f"{path} was not written: {error}") from error
