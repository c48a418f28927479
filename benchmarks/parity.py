"""Whether models answer elsewhere as they do here: every learner and machine, in each of its forms.

Learners, batch machines and linear machines are found by looking. Each learns rows and predicts others, of numbers with several
units and means, of whole numbers, and of a feature that is 0 or 1. Classifiers are measured with two labels and with three. The
answers of numpy (``streamsvm.edge``), of ONNX (onnxruntime), of C with 32, 16 and 8 bits, and of C as WebAssembly (wasmtime) are
compared with the model's: labels, decision values (of regressors, predictions) and probabilities. A form whose compiler or
runtime is missing is left out, and what a model cannot be exported as is named below the tables.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import make_parser, print_table, report_progress, write_json
from river import base
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

from streamsvm import batch, learners, linear
from streamsvm.edge import Predictor
from streamsvm.edge.program import ExportError, Program
from streamsvm.export.c import write_c
from streamsvm.export.convert import make_program

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from c_model import CModel

FITTED = 2_000  # rows of machines: exact ones take the square of it
FEATURES = 8
_PIECE = 100  # rows that WebAssembly takes at once


class Case(NamedTuple):
    """A model that has learned nothing, with the number of its labels; 0 for numbers, 1 for anomalies."""

    name: str
    model: Any
    labels: int


class Answers(NamedTuple):
    """Answers of a model, or of one of its forms, to n rows."""

    values: np.ndarray
    """Decision values or predicted numbers, float [n, outputs]."""
    labels: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    """Float [n, labels]."""


def cases() -> Iterator[Case]:
    """Give every learner and machine with its defaults."""
    for name in learners.__all__:
        kind = getattr(learners, name)
        given = {"seed": 0} if "seed" in inspect.signature(kind).parameters else {}
        model = kind(**given)
        several = [2, 3] if getattr(model, "max_classes", 2) > 2 else [2]
        for labels in several if issubclass(kind, base.Classifier) else [int(issubclass(kind, base.AnomalyDetector))]:
            yield Case(name, model.clone(), labels)
    for name in (*batch.__all__, *linear.__all__):
        kind = getattr(linear if hasattr(linear, name) else batch, name)
        if inspect.isclass(kind) and issubclass(kind, BaseEstimator):
            tags = get_tags(kind())
            classes = [2, 3] if tags.classifier_tags and tags.classifier_tags.multi_class else [2]
            for labels in classes if tags.classifier_tags else [int(tags.estimator_type == "outlier_detector")]:
                yield Case(name, kind(), labels)


def rows_of(n: int, labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, float32 [n, `FEATURES`], and their labels or targets."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, FEATURES))
    X = 3.0 * z + np.arange(FEATURES)
    X[:, 5], X[:, 6], X[:, 7] = rng.integers(0, 6, n), rng.random(n) < 0.3, 300.0 + 20.0 * z[:, 7]
    target = z[:, 0] + z[:, 1] * z[:, 2] + np.sin(3.0 * z[:, 3]) + (X[:, 5] == 2.0) + 0.3 * rng.normal(size=n)
    if labels < 2:
        return X.astype(np.float32), target
    return X.astype(np.float32), np.array(["a", "b", "c"])[np.digitize(target, [0.0, 1.0][: labels - 1])]


def learned(case: Case, n: int) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    """Return the case's model after n rows or fewer, and what brings rows to the units that it takes."""
    X, y = rows_of(n, case.labels, seed=0)
    middle, spread = X.mean(axis=0), X.std(axis=0)

    def units(rows: np.ndarray) -> np.ndarray:
        return rows if hasattr(case.model, "scaling") else (rows - middle) / spread

    given = (units(X), y) if case.labels != 1 else (units(X),)
    if not isinstance(case.model, BaseEstimator):
        case.model.learn_many(*given)
        return case.model, units
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that stop early: they are exported all the same
        return case.model.fit(*(part[:FITTED] for part in given)), units


# Forms ------------------------------------------------------------------------------------------------------------------


def by_model(model: Any, program: Program, X: np.ndarray) -> Answers:
    kind, river = program.answer.kind, not isinstance(model, BaseEstimator)
    if kind == "number":
        return Answers(np.asarray((model.predict_many if river else model.predict)(X)))
    values = (model.decision_function_many if river else model.decision_function)(X)
    labels = None if kind == "anomaly" else np.asarray((model.predict_many if river else model.predict)(X))
    return Answers(values, labels, np.asarray(model.predict_proba_many(X)) if program.answer.calibration is not None else None)


def by_numpy(program: Program, X: np.ndarray) -> Answers:
    predictor = Predictor(program)
    labels = predictor.predict_many(X) if program.answer.kind == "class" else None
    odds = program.answer.calibration
    return Answers(predictor.decision_function_many(X), labels, None if odds is None else predictor.predict_proba_many(X))


def by_onnx(program: Program, X: np.ndarray) -> Answers:
    import onnxruntime  # noqa: PLC0415

    from streamsvm.export.onnx import write_onnx  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        write_onnx(program, Path(folder, "model.onnx"), inputs="float")
        session = onnxruntime.InferenceSession(str(Path(folder, "model.onnx")), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"X": X}), strict=True))
    return Answers(found.get("decision", found.get("variable")), found.get("label"), found.get("probabilities"))


def by_c(program: Program, X: np.ndarray, bits: int) -> Answers:
    compiled = CModel(program, bits=bits)
    return Answers(compiled.decision_function_many(X), compiled.predict_many(X) if program.answer.kind == "class" else None)


_PAGE = f"""
#include "model.h"
static float given[{_PIECE} * MODEL_FEATURES], values[{_PIECE} * MODEL_OUTPUTS], answers[{_PIECE}];
__attribute__((export_name("given"))) float *given_at(void) {{ return given; }}
__attribute__((export_name("values"))) float *values_at(void) {{ return values; }}
__attribute__((export_name("answers"))) float *answers_at(void) {{ return answers; }}
__attribute__((export_name("run"))) void run(int n)
{{
    int i;
    for (i = 0; i < n; i++) {{
        answers[i] = (float)model_predict(given + i * MODEL_FEATURES);
        model_decision(given + i * MODEL_FEATURES, values + i * MODEL_OUTPUTS);
    }}
}}
"""
_FLAGS = "-std=c99", "-O2", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry"


def by_wasm(program: Program, X: np.ndarray) -> Answers:
    import wasmtime  # noqa: PLC0415

    clang = ["clang", "--target=wasm32", "-ffreestanding"]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"]
    with tempfile.TemporaryDirectory() as folder:
        write_c(program, folder, "model")
        Path(folder, "page.c").write_text(_PAGE)
        command = [*(zig if find_spec("ziglang") else clang), *_FLAGS, "-o", "page.wasm", "page.c", "model.c"]
        subprocess.run(command, cwd=folder, check=True)
        store = wasmtime.Store()
        module = wasmtime.Module(store.engine, Path(folder, "page.wasm").read_bytes())
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory, run = exports["memory"], exports["run"]
    places = {name: exports[name](store) for name in ("given", "values", "answers")}
    found: dict[str, list[np.ndarray]] = {"values": [], "answers": []}
    for piece in np.split(X, range(_PIECE, len(X), _PIECE)):
        memory.write(store, piece.tobytes(), places["given"])
        run(store, len(piece))
        for name, width in (("values", program.widths[program.answer.decision]), ("answers", 1)):
            data = memory.read(store, places[name], places[name] + 4 * width * len(piece))
            found[name].append(np.frombuffer(data, np.float32).reshape(len(piece), width))
    numbers = np.concatenate(found["answers"])[:, 0].astype(np.intp)
    return Answers(
        np.concatenate(found["values"]), np.array(program.answer.labels)[numbers] if program.answer.kind == "class" else None
    )


def forms() -> dict[str, Callable[[Program, np.ndarray], Answers]]:
    """The forms that can be run here, by name."""
    found: dict[str, Callable[[Program, np.ndarray], Answers]] = {"numpy": by_numpy}
    if find_spec("onnx") and find_spec("onnxruntime"):
        found["ONNX"] = by_onnx
    if any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        found |= {f"C, {bits} bits": functools.partial(by_c, bits=bits) for bits in (32, 16, 8)}
    if find_spec("wasmtime") and (find_spec("ziglang") or (shutil.which("clang") and shutil.which("wasm-ld"))):
        found["WebAssembly"] = by_wasm
    return found


# Comparison -------------------------------------------------------------------------------------------------------------


def difference(expected: Answers, found: Answers) -> dict[str, float]:
    """Return how two answers differ: labels by their number, values in deviations of the model's, probabilities as they are.

    Of values and probabilities, it is the largest difference.
    """
    n = len(expected.values)
    values = np.asarray(expected.values, float).reshape(n, -1)
    off = np.abs(np.asarray(found.values, float).reshape(n, -1) - values)
    result = {"value": float(off.max() / max(values.std(), 1e-30))}
    if expected.labels is not None and found.labels is not None:
        result["labels"] = int((np.asarray(found.labels) != expected.labels).sum())
    if expected.probabilities is not None and found.probabilities is not None:
        result["probability"] = float(np.abs(found.probabilities - expected.probabilities).max())
    return result


def measured(case: Case, rows: int) -> dict[str, Any]:
    """Return the differences of all forms of a model that has learned as many rows as it then predicts, or why there are none."""
    model, units = learned(case, rows)
    program, X = make_program(model), np.ascontiguousarray(units(rows_of(rows, case.labels, seed=1)[0]), np.float32)
    expected = by_model(model, program, X)
    found: dict[str, Any] = {"model": case.name, "labels": case.labels, "rows": rows, "forms": {}, "refused": {}}
    for name, form in forms().items():
        try:
            found["forms"][name] = difference(expected, form(program, X))
        except ExportError as error:
            found["refused"][name] = str(error)
    return found


def main() -> None:
    parser = make_parser(__doc__, "parity")
    parser.add_argument("--rows", type=int, default=5000, help="to learn, and others to predict")
    names = list(dict.fromkeys(case.name for case in cases()))
    parser.add_argument("--models", nargs="+", choices=names, metavar="NAME", default=names, help="of learners and machines")
    args = parser.parse_args()
    results = []
    for case in cases():
        if case.name in args.models:
            results.append(measured(case, args.rows))
            report_progress(_name(results[-1]))
    _show(results)
    write_json(args.out, {"models": results})


def _show(results: list[dict[str, Any]]) -> None:
    names = list(forms())
    cells = [[_name(row), *(_cell(row["forms"].get(name)) for name in names)] for row in results]
    print_table("Labels that differ, and the largest difference of a decision value, in deviations of these", ["", *names], cells)
    heads = ["", "models", "labels", "of one model", "value: median", "largest", "of", "probability"]
    title = "By form: labels that differ, of all models and of the worst; the largest differences over all rows of a model"
    print_table(title, heads, [_of_form(name, results) for name in names if any(name in row["forms"] for row in results)])
    for reason in sorted({reason for row in results for reason in row["refused"].values()}):
        print(f"{'; '.join(_name(row) for row in results if reason in row['refused'].values())}: {reason}")


def _of_form(name: str, results: list[dict[str, Any]]) -> list[object]:
    found = [(row["forms"][name], _name(row)) for row in results if name in row["forms"]]
    labels = [each["labels"] for each, _ in found if "labels" in each]
    rows = sum(row["rows"] for row in results if "labels" in row["forms"].get(name, ()))
    values = [(each["value"], model) for each, model in found]
    probabilities = [each["probability"] for each, _ in found if "probability" in each]
    median, (largest, model) = statistics.median(value for value, _ in values), max(values)
    differ = [f"{sum(labels):,} of {rows:,}", f"{max(labels):,}"] if labels else ["-", "-"]
    probability = f"{max(probabilities):.0e}" if probabilities else "-"
    return [name, len(found), *differ, f"{median:.0e}", f"{largest:.0e}", model, probability]


def _name(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['labels']} labels" if row["labels"] > 1 else row["model"]


def _cell(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['labels']:,}; {found['value']:.0e}" if "labels" in found else f"{found['value']:.0e}"


if __name__ == "__main__":
    main()
