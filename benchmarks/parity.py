"""Compares the predictions of every learner and batch machine with those of its exports, in each format.

All learners, batch machines and linear machines of the package are run. Each learns rows and predicts others; features have
different units and means, one is an integer, and one is 0 or 1. Classifiers are run with two and with three labels. The formats
are numpy (``streamsvm.edge``), ONNX (onnxruntime), C with 32, 16 and 8 bits, and C as WebAssembly (wasmtime). Labels, decision
values (for regressors, predictions) and probabilities are compared. Formats whose compiler or runtime is missing are skipped, and
unsupported exports of a model are listed below the tables.

With ``--data``, the folder of the real tables of `tables.py`, the models that `table_model` makes of each are compared as well:
they learn the first half of the rows, and predict the others.
"""

from __future__ import annotations

import functools
import inspect
import json
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

from streamsvm import BSGDClassifier, BSGDRegressor, batch, learners, linear, table_model
from streamsvm.edge import Predictor
from streamsvm.edge.program import ExportError, Program
from streamsvm.export.c import write_c
from streamsvm.export.convert import make_program
from streamsvm.stream import open_source

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from c_model import CModel

MAX_FIT_ROWS = 2_000  # rows of batch machines: the time of exact ones grows quadratically
FEATURES = 8
_WASM_CHUNK_ROWS = 100  # rows of a call of WebAssembly


class Case(NamedTuple):
    """An untrained model and its number of labels; 0 for regression, 1 for anomaly detection."""

    name: str
    model: Any
    labels: int


class Answers(NamedTuple):
    """Predictions of a model, or of one of its exports, for n rows."""

    values: np.ndarray
    """Decision values or predicted numbers, float [n, outputs]."""
    labels: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    """Float [n, labels]."""


def list_cases() -> Iterator[Case]:
    """Yield every learner and batch machine with its defaults, classifiers with two and three labels."""
    for name in learners.__all__:
        kind = getattr(learners, name)
        parameters = {"seed": 0} if "seed" in inspect.signature(kind).parameters else {}
        model = kind(**parameters)
        label_counts = [2, 3] if getattr(model, "max_classes", 2) > 2 else [2]
        for labels in label_counts if issubclass(kind, base.Classifier) else [int(issubclass(kind, base.AnomalyDetector))]:
            yield Case(name, model.clone(), labels)
    for name in (*batch.__all__, *linear.__all__):
        kind = getattr(linear if hasattr(linear, name) else batch, name)
        if inspect.isclass(kind) and issubclass(kind, BaseEstimator):
            tags = get_tags(kind())
            label_counts = [2, 3] if tags.classifier_tags and tags.classifier_tags.multi_class else [2]
            for labels in label_counts if tags.classifier_tags else [int(tags.estimator_type == "outlier_detector")]:
                yield Case(name, kind(), labels)


def make_rows(n: int, labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, float32 [n, `FEATURES`], and their labels or targets."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, FEATURES))
    X = 3.0 * z + np.arange(FEATURES)
    X[:, 5], X[:, 6], X[:, 7] = rng.integers(0, 6, n), rng.random(n) < 0.3, 300.0 + 20.0 * z[:, 7]
    target = z[:, 0] + z[:, 1] * z[:, 2] + np.sin(3.0 * z[:, 3]) + (X[:, 5] == 2.0) + 0.3 * rng.normal(size=n)
    if labels < 2:
        return X.astype(np.float32), target
    return X.astype(np.float32), np.array(["a", "b", "c"])[np.digitize(target, [0.0, 1.0][: labels - 1])]


def train_model(case: Case, n: int) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    """Train the model of a case on at most n rows, and return it with a function that scales rows for it."""
    X, y = make_rows(n, case.labels, seed=0)
    means, deviations = X.mean(axis=0), X.std(axis=0)

    def convert_units(rows: np.ndarray) -> np.ndarray:
        return rows if hasattr(case.model, "scaling") else (rows - means) / deviations

    data = (convert_units(X), y) if case.labels != 1 else (convert_units(X),)
    if not isinstance(case.model, BaseEstimator):
        case.model.learn_many(*data)
        return case.model, convert_units
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits that stop early can be exported, too
        return case.model.fit(*(part[:MAX_FIT_ROWS] for part in data)), convert_units


# Forms ------------------------------------------------------------------------------------------------------------------


def predict_with_model(model: Any, program: Program, X: np.ndarray) -> Answers:
    kind, river = program.answer.kind, not isinstance(model, BaseEstimator)
    if kind == "number":
        return Answers(np.asarray((model.predict_many if river else model.predict)(X)))
    values = (model.decision_function_many if river else model.decision_function)(X)
    labels = None if kind == "anomaly" else np.asarray((model.predict_many if river else model.predict)(X))
    return Answers(values, labels, np.asarray(model.predict_proba_many(X)) if program.answer.calibration is not None else None)


def predict_with_numpy(program: Program, X: np.ndarray) -> Answers:
    predictor = Predictor(program)
    labels = predictor.predict_many(X) if program.answer.kind == "class" else None
    odds = program.answer.calibration
    return Answers(predictor.decision_function_many(X), labels, None if odds is None else predictor.predict_proba_many(X))


def predict_with_onnx(program: Program, X: np.ndarray) -> Answers:
    import onnxruntime  # noqa: PLC0415

    from streamsvm.export.onnx import write_onnx  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        write_onnx(program, Path(folder, "model.onnx"))
        session = onnxruntime.InferenceSession(str(Path(folder, "model.onnx")), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    dtype = np.float64 if session.get_inputs()[0].type == "tensor(double)" else np.float32
    outputs = dict(zip(names, session.run(None, {"X": X.astype(dtype)}), strict=True))
    return Answers(outputs.get("decision", outputs.get("variable")), outputs.get("label"), outputs.get("probabilities"))


def predict_with_c(program: Program, X: np.ndarray, bits: int) -> Answers:
    compiled = CModel(program, bits=bits)
    labels = compiled.predict_many(X) if program.answer.kind == "class" else None
    probabilities = None if program.answer.calibration is None else compiled.predict_proba_many(X)
    return Answers(compiled.decision_function_many(X), labels, probabilities)


_WASM_SOURCE = f"""
#include "model.h"
static float given[{_WASM_CHUNK_ROWS} * MODEL_FEATURES], values[{_WASM_CHUNK_ROWS} * MODEL_OUTPUTS], answers[{_WASM_CHUNK_ROWS}];
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


def predict_with_wasm(program: Program, X: np.ndarray) -> Answers:
    import wasmtime  # noqa: PLC0415

    clang = ["clang", "--target=wasm32", "-ffreestanding"]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"]
    with tempfile.TemporaryDirectory() as folder:
        write_c(program, folder, "model")
        Path(folder, "page.c").write_text(_WASM_SOURCE)
        command = [*(zig if find_spec("ziglang") else clang), *_FLAGS, "-o", "page.wasm", "page.c", "model.c"]
        subprocess.run(command, cwd=folder, check=True)
        store = wasmtime.Store()
        module = wasmtime.Module(store.engine, Path(folder, "page.wasm").read_bytes())
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory, run = exports["memory"], exports["run"]
    addresses = {name: exports[name](store) for name in ("given", "values", "answers")}
    parts: dict[str, list[np.ndarray]] = {"values": [], "answers": []}
    for chunk in np.split(X.astype(np.float32), range(_WASM_CHUNK_ROWS, len(X), _WASM_CHUNK_ROWS)):
        memory.write(store, chunk.tobytes(), addresses["given"])
        run(store, len(chunk))
        for name, width in (("values", program.widths[program.answer.decision]), ("answers", 1)):
            data = memory.read(store, addresses[name], addresses[name] + 4 * width * len(chunk))
            parts[name].append(np.frombuffer(data, np.float32).reshape(len(chunk), width))
    codes = np.concatenate(parts["answers"])[:, 0].astype(np.intp)
    return Answers(
        np.concatenate(parts["values"]), np.array(program.answer.labels)[codes] if program.answer.kind == "class" else None
    )


def list_formats() -> dict[str, Callable[[Program, np.ndarray], Answers]]:
    """Return the prediction functions of the formats that can run on this machine, by name."""
    functions: dict[str, Callable[[Program, np.ndarray], Answers]] = {"numpy": predict_with_numpy}
    if find_spec("onnx") and find_spec("onnxruntime"):
        functions["ONNX"] = predict_with_onnx
    if any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        functions |= {f"C, {bits} bits": functools.partial(predict_with_c, bits=bits) for bits in (32, 16, 8)}
    if find_spec("wasmtime") and (find_spec("ziglang") or (shutil.which("clang") and shutil.which("wasm-ld"))):
        functions["WebAssembly"] = predict_with_wasm
    return functions


# Comparison -------------------------------------------------------------------------------------------------------------


def compute_differences(expected: Answers, actual: Answers) -> dict[str, float]:
    """Return the number of different labels, and the largest differences of values and probabilities.

    Differences of values are in standard deviations of the expected values.
    """
    n = len(expected.values)
    values = np.asarray(expected.values, float).reshape(n, -1)
    differences = np.abs(np.asarray(actual.values, float).reshape(n, -1) - values)
    result = {"value": float(differences.max() / max(values.std(), 1e-30))}
    if expected.labels is not None and actual.labels is not None:
        result["labels"] = int((np.asarray(actual.labels) != expected.labels).sum())
    if expected.probabilities is not None and actual.probabilities is not None:
        result["probability"] = float(np.abs(actual.probabilities - expected.probabilities).max())
    return result


def measure_case(case: Case, rows: int) -> dict[str, Any]:
    """Train a model on ``rows`` rows, and return the differences of all formats on as many other rows, or the export errors."""
    model, convert_units = train_model(case, rows)
    program, X = make_program(model), np.ascontiguousarray(convert_units(make_rows(rows, case.labels, seed=1)[0]), np.float32)
    return _compare_formats(case.name, case.labels, program, X, predict_with_model(model, program, X))


def measure_table(path: Path, learner: str, rows: int) -> dict[str, Any]:
    """Train a model on the first half of a table (at most ``rows`` rows), and return the differences of all formats on as many
    further rows. ``learner`` is ``"svm"``, the default of `table_model`, or ``"bsgd"``.
    """
    description = json.loads(path.with_suffix(".json").read_text())
    label, is_regression = description["label"], description["task"] == "reg"
    kind = BSGDRegressor if is_regression else BSGDClassifier
    model = table_model(str(path), label=label, learner=None if learner == "svm" else kind(seed=0))
    with open_source(str(path), label=label, **model.schema.source_options) as source:
        pairs = list(source)
    n = min(rows, len(pairs) // 2)
    for x, y in pairs[:n]:
        model.learn_one(x, y)
    program, (encoder, last) = make_program(model), model.steps.values()
    predictor, table_rows = Predictor(program), [row.x for row in pairs[n : 2 * n]]
    predictions, labels = np.array([model.predict_one(x) for x in table_rows]), program.answer.labels
    if is_regression:
        expected = Answers(predictions)
    else:
        p = [model.predict_proba_one(x) for x in table_rows]
        f = np.array([last.decision_function_one(encoder.transform_one(x)) for x in table_rows])
        expected = Answers(f, predictions, np.array([[shares[label] for label in labels] for shares in p]))
    X = np.array([predictor.encode_row(x) for x in table_rows])
    return _compare_formats(f"{path.stem}, {learner}", len(labels), program, X, expected)


def _compare_formats(name: str, labels: int, program: Program, X: np.ndarray, expected: Answers) -> dict[str, Any]:
    """Return the differences between a model's predictions of rows X, and those of all formats, or the export errors."""
    result: dict[str, Any] = {"model": name, "labels": labels, "rows": len(X), "forms": {}, "refused": {}}
    for form, predict in list_formats().items():
        try:
            result["forms"][form] = compute_differences(expected, predict(program, X))
        except ExportError as error:
            result["refused"][form] = str(error)
    return result


def main() -> None:
    parser = make_parser(__doc__, "parity")
    parser.add_argument("--rows", type=int, default=5000, help="number of rows to learn, and of other rows to predict")
    names = list(dict.fromkeys(case.name for case in list_cases()))
    parser.add_argument("--models", nargs="*", choices=names, metavar="NAME", default=names, help="names of models")
    args = parser.parse_args()
    results = []
    for case in list_cases():
        if case.name in args.models:
            results.append(measure_case(case, args.rows))
            report_progress(_describe(results[-1]))
    if results:
        _print_results(results)
    tables = []
    for path in [] if args.data is None else sorted(Path(args.data).glob("*.csv")):
        for learner in ("svm", "bsgd"):
            tables.append(measure_table(path, learner, args.rows))
            report_progress(_describe(tables[-1]))
    if tables:
        _print_results(tables)
    write_json(args.out, {"models": results, "tables": tables})


def _print_results(results: list[dict[str, Any]]) -> None:
    names = list(list_formats())
    cells = [[_describe(row), *(_format_cell(row["forms"].get(name)) for name in names)] for row in results]
    print_table("Labels that differ, and the largest difference of a decision value, in deviations of these", ["", *names], cells)
    heads = ["", "models", "labels", "of one model", "value: median", "largest", "of", "probability"]
    title = "By format: labels that differ, of all models and of the worst; the largest differences over all rows of a model"
    print_table(title, heads, [_summarise(name, results) for name in names if any(name in row["forms"] for row in results)])
    for reason in sorted({reason for row in results for reason in row["refused"].values()}):
        print(f"{'; '.join(_describe(row) for row in results if reason in row['refused'].values())}: {reason}")


def _summarise(name: str, results: list[dict[str, Any]]) -> list[object]:
    differences_by_model = [(row["forms"][name], _describe(row)) for row in results if name in row["forms"]]
    labels = [differences["labels"] for differences, _ in differences_by_model if "labels" in differences]
    rows = sum(row["rows"] for row in results if "labels" in row["forms"].get(name, ()))
    values = [(differences["value"], model) for differences, model in differences_by_model]
    probabilities = [differences["probability"] for differences, _ in differences_by_model if "probability" in differences]
    median, (largest, model) = statistics.median(value for value, _ in values), max(values)
    label_cells = [f"{sum(labels):,} of {rows:,}", f"{max(labels):,}"] if labels else ["-", "-"]
    probability = f"{max(probabilities):.0e}" if probabilities else "-"
    return [name, len(differences_by_model), *label_cells, f"{median:.0e}", f"{largest:.0e}", model, probability]


def _describe(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['labels']} labels" if row["labels"] > 1 else row["model"]


def _format_cell(differences: dict[str, float] | None) -> str:
    if differences is None:
        return "-"
    return f"{differences['labels']:,}; {differences['value']:.0e}" if "labels" in differences else f"{differences['value']:.0e}"


if __name__ == "__main__":
    main()
