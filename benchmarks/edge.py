"""Measures models for small devices: bytes, stack and accuracy by bits of a number, and time in C, numpy, numba and ONNX.

Also: the bytes of the default model, and a plot of accuracy against bytes. `parity.py` and `fewer_bits.py` count the predictions
that differ between a model and its exports.

Models are BSCA classifiers with 100 or 500 support vectors that have learned all training rows in one pass. For predictions, C
is compiled for this computer by ``cc -O2`` (with ``-march=native``, it uses the same instructions as numba). For its size, it is
compiled for a Cortex-M4 with a floating-point unit by ``arm-none-eabi-gcc -Os``, if that compiler is installed, and
``qemu-system-arm`` counts the instructions of a prediction, and of predicting and learning a row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _cortex_m4 import measure_learner, measure_program
from common import PAPER, RESULTS, Split, load_split, make_parser, print_table, report_progress, summarise, to_dicts, write_json
from sklearn.datasets import load_digits

from streamsvm import BSCAClassifier, BSGDClassifier, SVMClassifier
from streamsvm.core.steps import decisions
from streamsvm.core.steps.iterates import DECISION
from streamsvm.edge import Predictor
from streamsvm.edge.program import ExportError, Program
from streamsvm.export.c.writer import measure_needs
from streamsvm.export.convert import make_program
from streamsvm.export.quantise import quantise_program
from streamsvm.export.reduce import reduce_program

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from c_model import CModel

BITS, BUDGETS = (32, 16, 8), (100, 500)
TABLE_SIZES = (1000, 2000, 3500, 5000, 10_000, 20_000)  # bytes of tables


def load_device_split(name: str, folder: Path | None) -> Split:
    if name == "magic04":  # its features have different units
        split = load_split(name, folder)
        mean, deviation = split.X.mean(axis=0), split.X.std(axis=0)
        return Split((split.X - mean) / deviation, split.y, (split.X_test - mean) / deviation, split.y_test)
    if name != "digits":
        return load_split(name, folder)
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = np.ascontiguousarray(X[order], np.float32), y[order]
    return Split(X[:1200], y[:1200], X[1200:], y[1200:])


def train_model(name: str, split: Split, budget: int) -> BSCAClassifier:
    gamma = PAPER[name].gamma if name in PAPER else {"digits": 0.001, "magic04": 0.1}[name]
    own_parameters: dict[str, Any] = {"magic04": {}, "digits": {"C": 10.0, "max_classes": 10}}
    parameters: dict[str, Any] = {"C": PAPER[name].C} if name in PAPER else own_parameters[name]
    model = BSCAClassifier(budget, gamma=gamma, scaling=None, max_features=split.X.shape[1], seed=0, **parameters)
    model.learn_many(*split.shuffle_rows(np.random.default_rng(0)))
    return model


# Bytes and accuracy ---------------------------------------------------------------------------------------------------


def measure_bits(name: str, split: Split, budget: int) -> list[dict[str, Any]]:
    model = train_model(name, split, budget)
    program, rows = make_program(model), []
    accuracy = 100.0 * float((np.asarray(model.predict_many(split.X_test)) == split.y_test).mean())
    for bits in BITS:
        quantised = quantise_program(program, bits)
        compiled = CModel(quantised)
        rows.append(
            {
                "data": name,
                "vectors": model.n_support,
                "bits": bits,
                "tables": compiled.table_bytes,
                **measure_program(quantised, split.X_test[:20])._asdict(),
                "accuracy": 100.0 * float((compiled.predict_many(split.X_test) == split.y_test).mean()),
                "model": accuracy,
            }
        )
    return rows


def measure_sizes(name: str, split: Split, budget: int) -> list[dict[str, Any]]:
    """Return accuracy and bytes of a large model that is reduced to several sizes, with and without rows to fit."""
    model = train_model(name, split, budget)
    program, learned = make_program(model), split.shuffle_rows(np.random.default_rng(1))[0][:5000]
    rows = []
    for size in TABLE_SIZES:
        start = time.perf_counter()
        try:
            reduction, blind_reduction = reduce_program(program, size, learned, bits=8), reduce_program(program, size, bits=8)
        except ExportError as error:  # the size is too small for one vector
            report_progress(f"{name}: {error}")
            continue
        seconds = (time.perf_counter() - start) / 2
        right = [
            100.0 * float((CModel(result.program).predict_many(split.X_test) == split.y_test).mean())
            for result in (reduction, blind_reduction)
        ]
        rows.append(
            {
                "data": name,
                "bytes": size,
                "tables": reduction.table_bytes,
                "vectors": reduction.n_vectors[1],
                "same": 100.0 * (1.0 - reduction.comparison.n_changed_labels / len(learned)),
                "accuracy": right[0],
                "without rows": right[1],
                "model": 100.0 * float((np.asarray(model.predict_many(split.X_test)) == split.y_test).mean()),
                "seconds": seconds,
            }
        )
    return rows


def measure_default(split: Split) -> list[dict[str, Any]]:
    """Return bytes and accuracy of the default model, unchanged and reduced, and of a learner with 100 support vectors."""
    programs = {}
    for model in (SVMClassifier(seed=0), BSCAClassifier(100, seed=0)):
        model.learn_many(*split.shuffle_rows(np.random.default_rng(0)))
        programs[type(model).__name__] = make_program(model)
    default, small = programs.values()
    programs = {
        "unchanged": default,
        "8 bits": quantise_program(default, 8),
        "8 bits, 16,000 bytes": reduce_program(default, 16_000, bits=8).program,
    }
    programs |= {"BSCAClassifier(100)": small, "BSCAClassifier(100), 8 bits": quantise_program(small, 8)}
    return [
        {
            "model": name,
            **measure_needs(exported)._asdict(),
            "accuracy": 100.0 * float((CModel(exported).predict_many(split.X_test) == split.y_test).mean()),
        }
        for name, exported in programs.items()
    ]


def measure_learners(split: Split) -> list[dict[str, Any]]:
    """Return the resources of learners with 100 support vectors that continue to learn on a Cortex-M4."""
    rows = []
    for kind in (BSGDClassifier, BSCAClassifier):
        model = kind(100, gamma=PAPER["ijcnn1"].gamma, scaling=None, seed=0)
        model.learn_many(*split.shuffle_rows(np.random.default_rng(0)))
        targets = split.y_test[:40] == max(model.labels)
        rows.append({"learner": kind.__name__, **measure_learner(model, split.X_test[:40], targets)._asdict()})
    return rows


# Time -----------------------------------------------------------------------------------------------------------------


def time_rows(work: Callable[[], Any], rows: int, repeats: int) -> list[float]:
    """Return the microseconds a row of each of ``repeats`` calls, after a call that is not timed."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e6 * (time.perf_counter() - start) / rows)
    return times


def measure_speeds(split: Split, budget: int, repeats: int) -> dict[str, dict[str, float]]:
    model = train_model("ijcnn1", split, budget)
    program, X = make_program(model), split.X_test[:1000]
    predictor, dicts = Predictor(program), to_dicts(X)
    renamed = [dict(zip(predictor.columns, row, strict=True)) for row in X.tolist()]
    ways: dict[str, tuple[Callable[[], Any], int]] = {}
    for bits in BITS:
        compiled = CModel(program, bits=bits)
        ways[f"C, {bits} bits"] = lambda compiled=compiled: compiled.predict_many(X), len(X)
        native = CModel(program, bits=bits, flags=["-march=native"])
        ways[f"C for this processor, {bits} bits"] = lambda native=native: native.predict_many(X), len(X)
    model._features.fill_row(model._row, renamed[0], False)
    ways["numba, rows of an array"] = lambda: model.predict_many(X), len(X)
    ways["numba, one filled row"] = lambda: [decisions.compute_output(model._block, DECISION) for _ in dicts], len(X)
    ways["numba, one dict"] = lambda: [model.predict_one(x) for x in renamed], len(X)
    ways["numpy, rows of an array"] = lambda: predictor.predict_many(X), len(X)
    ways["numpy, one dict"] = lambda: [predictor.predict_one(x) for x in renamed[:200]], 200
    if session := _open_onnx(program):
        ways["onnxruntime, rows of an array"] = lambda: session.run(["label"], {"X": X}), len(X)
        ways["onnxruntime, one row"] = lambda: [session.run(["label"], {"X": X[i : i + 1]}) for i in range(200)], 200
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):  # in turn, so that a busy moment affects all of them
        for name, (work, rows) in ways.items():
            times[name] += time_rows(work, rows, 1)
    return {name: summarise(values) for name, values in times.items()}


def _open_onnx(program: Program) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415

        from streamsvm.export.onnx import write_onnx  # noqa: PLC0415
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(program, Path(folder, "model.onnx"))
        return onnxruntime.InferenceSession(str(Path(folder, "model.onnx")), options, providers=["CPUExecutionProvider"])


# ----------------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = make_parser(__doc__, "edge")
    parser.add_argument("--sets", nargs="*", default=["ijcnn1", "a9a", "digits"])
    parser.add_argument("--repeats", type=int, default=15, help="repeated measurements of each time")
    parser.add_argument("--plot", type=Path, default=RESULTS / "edge.png", help="file of the plot of accuracy against bytes")
    args: argparse.Namespace = parser.parse_args()
    results: dict[str, Any] = {"bits": [], "sizes": []}
    for name in args.sets:
        split = load_device_split(name, args.data)
        for budget in BUDGETS:
            report_progress(f"{name}, {budget} vectors")
            results["bits"] += measure_bits(name, split, budget)
        report_progress(f"{name}, made smaller")
        results["sizes"] += measure_sizes(name, split, BUDGETS[-1])
    report_progress("the default model")
    results["default"] = measure_default(load_split("magic04", args.data))
    report_progress("learners on a device")
    results["learners"] = measure_learners(load_split("ijcnn1", args.data))
    report_progress("times")
    results["times"] = {str(budget): measure_speeds(load_split("ijcnn1", args.data), budget, args.repeats) for budget in BUDGETS}
    _print_results(results)
    write_json(args.out, results)
    _save_plot(results, args.plot)


def _print_results(results: dict[str, Any]) -> None:
    names = ["data", "vectors", "bits", "tables", "flash", "stack", "instructions", "accuracy", "model"]
    cells = [[_format(row[name]) for name in names] for row in results["bits"]]
    print_table("By bits of a vector's number: bytes, instructions (a Cortex-M4), accuracy in C and of the model", names, cells)
    names = ["model", "table_bytes", "stack_bytes", "fits_16_bits", "accuracy"]
    print_table(
        "The default model on magic04: bytes, accuracy",
        names,
        [[_format(row[name]) for name in names] for row in results["default"]],
    )
    names = ["learner", "flash", "ram", "stack", "instructions"]
    cells = [[_format(row[name]) for name in names] for row in results["learners"]]
    print_table(
        "Learners of 100 vectors of 22 features on a Cortex-M4: bytes; instructions to predict and learn a row", names, cells
    )
    names = ["data", "bytes", "tables", "vectors", "same", "accuracy", "without rows", "model", "seconds"]
    print_table(
        "Made smaller, 8 bits: bytes allowed", names, [[_format(row[name]) for name in names] for row in results["sizes"]]
    )
    for budget, times in results["times"].items():
        cells = [[name, *(f"{statistics[key]:.2f}" for key in ("min", "median", "max"))] for name, statistics in times.items()]
        print_table(f"Microseconds a prediction, {budget} vectors of 22 features", ["", "min", "median", "max"], cells)


def _save_plot(results: dict[str, Any], path: Path) -> None:
    """Save a plot of accuracy against bytes: reduced models, with and without rows to fit, and the original model."""
    import matplotlib  # noqa: PLC0415 - optional

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    sets = list(dict.fromkeys(row["data"] for row in results["sizes"]))
    figure, grid = plt.subplots(1, len(sets), figsize=(4.5 * len(sets), 4), layout="constrained", squeeze=False)
    for axes, name in zip(grid[0], sets, strict=True):
        rows = [row for row in results["sizes"] if row["data"] == name]
        sizes = [row["tables"] for row in rows]
        axes.plot(sizes, [row["accuracy"] for row in rows], "o-", label="made smaller, with rows to fit")
        axes.plot(sizes, [row["without rows"] for row in rows], "s--", label="made smaller, without rows")
        axes.axhline(rows[0]["model"], color="0.4", linewidth=1.0, label=f"the model, {BUDGETS[-1]} vectors of floats")
        axes.set(title=name, xlabel="KB of tables in C, 8 bits a number", xscale="log")
        axes.set_xticks(sizes, [f"{size / 1000:.3g}" for size in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("test accuracy, %")
    grid[0][-1].legend(fontsize="small", loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _format(value: Any) -> str:
    return (
        "-"
        if value is None
        else f"{value:.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else str(value)
    )


if __name__ == "__main__":
    main()
