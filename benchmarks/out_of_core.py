"""Compares linear machines that learn from a file within a memory limit with LinearSVC and SGDClassifier in memory.

Sets are written as LIBSVM text and learned from it. CPU seconds in one process; scikit-learn uses its own reader. "from text" is
the time to read and fit, divided by 1.5 times LinearSVC's time plus that of scikit-learn's reader.
The large set is synthetic and sparse. Each fit has its own process, with a limit of a tenth, a twentieth or a fiftieth of the
set's size. Its peak memory is that of the operating system, minus the memory of the interpreter, imports and compiled code.
Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/out_of_core.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, read_resident_bytes, report_progress, summarise, write_json
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier
from sklearn.svm import LinearSVC

from streamsvm.linear import BlockFile, BlockWriter, OutOfCoreLinearSVC, write_blocks

SETS = ("a9a", "w7a", "reuters", "ijcnn1")
CS = (0.1, 1.0, 10.0)
GRID = np.geomspace(0.01, 10.0, 10)
LIMIT_SHARES = (10, 20, 50)
MIN_LIMIT_BYTES = 2**18  # smallest memory limit of a fit, plus 32 bytes for each feature
FEATURES, N_VALUES = 100_000, 30  # of the large set
CHUNK_ROWS = 50_000


def load_rows(name: str, folder: Path | None) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return training rows, labels, test rows and labels: CSR float64 [n, d], bool [n]."""
    arrays, matrices = load_file(name, folder), []
    for part in ("X", "X_test"):
        if "X" in arrays:
            matrices.append(sparse.csr_array(arrays[part].astype(np.float64)))
        else:
            data, indices, starts = (arrays[f"{part}_{key}"] for key in ("data", "indices", "indptr"))
            shape = tuple(arrays[f"{part}_shape"].tolist())
            matrices.append(sparse.csr_array((data.astype(np.float64), indices.astype(np.int32), starts.astype(np.int32)), shape))
    return matrices[0], arrays["y"] > 0, matrices[1], arrays["y_test"] > 0


def time_call(work: Callable[[], Any], repeats: int) -> tuple[Any, dict[str, float]]:
    """Return the result of the last of ``repeats`` calls, and statistics of their CPU seconds."""
    seconds, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
    return result, summarise(seconds)


def compute_objective(model: Any, X: Any, y: np.ndarray, C: float) -> float:
    """Return 1/2 |w|^2 + C times the sum of hinge losses, with the intercept as a part of w."""
    w, bias = model.coef_.ravel(), float(np.ravel(model.intercept_)[0])
    return float(0.5 * (w @ w + bias * bias) + C * np.maximum(0.0, 1.0 - np.where(y, 1.0, -1.0) * (X @ w + bias)).sum())


def measure_set(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure a set with several values of C, and a path over a grid of C."""
    X, y, X_test, y_test = load_rows(name, args.data)
    text, blocks = folder / f"{name}.txt", folder / f"{name}.blocks"
    dump_svmlight_file(X, np.where(y, 1, -1), str(text), zero_based=False)
    write_blocks(text, blocks)  # compiles before any time is taken
    size = blocks.stat().st_size
    limit = max(size / 10, MIN_LIMIT_BYTES + 32 * X.shape[1])
    _, reading = time_call(lambda: write_blocks(text, blocks, memory_limit=limit), args.repeats)
    _, their_reading = time_call(lambda: load_svmlight_file(str(text)), args.repeats)
    own_model = OutOfCoreLinearSVC(memory_limit=limit)
    own_model.fit_file(blocks)  # compiles before any time is taken
    result: dict[str, Any] = {
        "bytes": size,
        "limit": limit,
        "text": text.stat().st_size,
        "reading": reading,
        "their reading": their_reading,
        "C": {},
    }
    for C in CS:
        own, own_seconds = time_call(lambda C=C: own_model.set_params(C=C).fit_file(blocks), args.repeats)
        theirs, their_seconds = time_call(
            lambda C=C: LinearSVC(C=C, loss="hinge", max_iter=100_000, random_state=0).fit(X, y), args.repeats
        )
        sgd, sgd_seconds = time_call(
            lambda C=C: SGDClassifier(alpha=1.0 / (len(y) * C), average=True, random_state=0).fit(X, y), args.repeats
        )
        result["C"][str(C)] = {
            "seconds": {"own": own_seconds, "LinearSVC": their_seconds, "SGD": sgd_seconds},
            "objective": {
                "own": own.objective_,
                "LinearSVC": compute_objective(theirs, X, y, C),
                "SGD": compute_objective(sgd, X, y, C),
            },
            "gap": own.duality_gap_ / own.objective_,
            "accuracy": {
                "own": 100.0 * float(((own.decision_function(_match_features(X_test, own)) > 0.0) == y_test).mean()),
                "LinearSVC": 100.0 * theirs.score(X_test, y_test),
                "SGD": 100.0 * sgd.score(X_test, y_test),
            },
            "passes": own.n_iter_,
            "history": [record._asdict() for record in own.history_],
        }
        report_progress(f"{name}, C = {C:g}")
    hardest, one = time_call(lambda: own_model.set_params(C=float(GRID[-1])).fit_file(blocks), args.repeats)
    _, path = time_call(lambda: own_model.fit_file_path(blocks, GRID.tolist()), args.repeats)
    result["grid"] = {"one": one, "path": path, "passes of one": hardest.n_iter_}
    return result


def _match_features(X: Any, model: Any) -> Any:
    # Test rows may have more or fewer features than the training file.
    X = sparse.csr_array(X)
    if X.shape[1] < model.n_features_in_:
        return sparse.csr_array((X.data, X.indices, X.indptr), (X.shape[0], model.n_features_in_))
    return X[:, : model.n_features_in_]


def write_large(path: Path, rows: int) -> None:
    """Write random rows with 30 of 100,000 features, whose frequencies differ as in text, and noisy labels, to a block file."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=FEATURES)
    size = rows * (12 + 8 * N_VALUES)
    with BlockWriter(path, block_bytes=min(size // max(LIMIT_SHARES) // 16, 2**20)) as writer:
        for start in range(0, rows, CHUNK_ROWS):
            n = min(CHUNK_ROWS, rows - start)
            indices = (FEATURES * rng.random((n, N_VALUES)) ** 3).astype(np.int64)
            values = rng.exponential(size=(n, N_VALUES))
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            X = sparse.csr_array((values.ravel(), indices.ravel(), np.arange(0, n * N_VALUES + 1, N_VALUES)), (n, FEATURES))
            writer.add(X, (X @ weights + 0.3 * rng.normal(size=n) > 0.0).astype(float))
            if start % (20 * CHUNK_ROWS) == 0:
                report_progress(f"large: {start + n:,} rows written")


def fit_large(path: str, limit: float) -> dict[str, Any]:
    """Return seconds and peak memory above that before the fit; runs in its own process."""
    rng = np.random.default_rng(0)
    warnings.simplefilter("ignore")
    OutOfCoreLinearSVC(memory_limit=2**20).fit(sparse.csr_array(rng.random((50, 5)) < 0.5, dtype=float), np.arange(50) % 2)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read_resident_bytes()
    start, wall = time.process_time(), time.perf_counter()
    model = OutOfCoreLinearSVC(memory_limit=limit).fit_file(path)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "limit": limit,
        "seconds": time.process_time() - start,
        "wall": time.perf_counter() - wall,
        "peak": 1024 * int(peak.split()[1]) - before,
        "objective": model.objective_,
        "gap": model.duality_gap_ / model.objective_,
        "passes": model.n_iter_,
        "history": [record._asdict() for record in model.history_],
    }


def fit_large_in_memory(path: str) -> dict[str, Any]:
    """Return seconds and peak memory of LinearSVC with all rows in memory; runs in its own process."""
    with BlockFile(path) as file:
        starts, nonzero = np.zeros(file.shape[0] + 1, np.int64), 0
        for number in range(len(file)):
            block = file.read_block(number)
            starts[block.first_row + 1 : block.first_row + len(block.labels) + 1] = np.diff(block.starts.astype(np.int64))
        np.cumsum(starts, out=starts)
        values, indices = np.empty(starts[-1]), np.empty(starts[-1], np.int32)
        labels = np.empty(file.shape[0])
        for number in range(len(file)):
            block = file.read_block(number)
            labels[block.first_row : block.first_row + len(block.labels)] = block.labels
            values[nonzero : nonzero + len(block.values)], indices[nonzero : nonzero + len(block.values)] = (
                block.values,
                block.indices,
            )
            nonzero += len(block.values)
        X = sparse.csr_array((values, indices, starts.astype(np.int32)), shape=file.shape)
    start = time.process_time()
    model = LinearSVC(loss="hinge", random_state=0).fit(X, labels)
    seconds = time.process_time() - start
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"seconds": seconds, "peak": 1024 * int(peak.split()[1]), "objective": compute_objective(model, X, labels > 0.0, 1.0)}


def measure_large(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure fits to the large set with several memory limits, and LinearSVC."""
    path = folder / "large.blocks"
    start = time.process_time()
    write_large(path, args.rows)
    result: dict[str, Any] = {"rows": args.rows, "bytes": path.stat().st_size, "written": time.process_time() - start, "fits": {}}
    for share in LIMIT_SHARES:
        result["fits"][str(share)] = _call_in_process(f"fit_large({str(path)!r}, {result['bytes'] / share})")
        report_progress(f"large: limit of 1/{share}")
    result["LinearSVC"] = _call_in_process(f"fit_large_in_memory({str(path)!r})")
    return result


def _call_in_process(call: str) -> dict[str, Any]:
    # Calls a function of this module in a new process, and returns its result.
    code = f"import json, out_of_core; print(json.dumps(out_of_core.{call}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def print_sets(results: dict[str, Any]) -> None:
    """Print tables of the sets."""
    rows, grids = [], []
    for name, result in results.items():
        for C, fit in result["C"].items():
            own, theirs = (fit["seconds"][who]["median"] for who in ("own", "LinearSVC"))
            allowed = 1.5 * theirs + result["reading"]["median"]
            from_text, allowed_of_text = result["reading"]["median"] + own, 1.5 * theirs + result["their reading"]["median"]
            rows.append(
                (
                    f"{name}, C = {C}",
                    f"{fit['seconds']['own']['min']:.3f}/{own:.3f}/{fit['seconds']['own']['max']:.3f}",
                    f"{theirs:.3f}",
                    f"{fit['seconds']['SGD']['median']:.3f}",
                    f"{result['reading']['median']:.3f} ({result['their reading']['median']:.3f})",
                    f"{own / allowed:.2f}",
                    f"{from_text / allowed_of_text:.2f}",
                    fit["passes"],
                    f"{fit['gap']:.1e}",
                    f"{fit['objective']['own'] / fit['objective']['LinearSVC'] - 1.0:+.1e}",
                    f"{fit['objective']['SGD'] / fit['objective']['LinearSVC'] - 1.0:+.1e}",
                    " ".join(f"{fit['accuracy'][who]:.2f}" for who in ("own", "LinearSVC", "SGD")),
                )
            )
        one, path = (result["grid"][key]["median"] for key in ("one", "path"))
        grids.append((name, f"{one:.3f}", f"{path:.3f}", f"{path / one:.2f}"))
    print_table(
        "Hinge loss, CPU seconds; the limit of memory is a tenth of the rows. LinearSVC and SGD learn in memory",
        (
            *(
                "set",
                "own, min/median/max",
                "LinearSVC",
                "SGD",
                "reading text (theirs)",
                "/ (1.5 LinearSVC + reading)",
                "from text",
            ),
            *("passes", "gap", "objective - LinearSVC's", "SGD's", "test accuracy of the three"),
        ),
        rows,
    )
    print_table(f"{len(GRID)} values of C from 0.01 to 10 beside C = 10 alone", ("set", "one", "ten", "ten / one"), grids)


def print_large(results: dict[str, Any]) -> None:
    """Print a table of the large set."""
    rows = [
        (
            f"1/{share}",
            f"{fit['limit'] / 2**20:.0f} MB",
            f"{fit['peak'] / 2**20:.0f} MB",
            f"{fit['peak'] / fit['limit']:.2f}",
            f"{fit['seconds']:.0f}",
            f"{fit['wall']:.0f}",
            fit["passes"],
            f"{fit['gap']:.1e}",
            f"{100.0 * fit['history'][0]['free'] / results['rows']:.1f} %",
            f"{100.0 * fit['history'][-1]['free'] / results['rows']:.1f} %",
            f"{fit['objective'] / results['LinearSVC']['objective'] - 1.0:+.1e}",
        )
        for share, fit in results["fits"].items()
    ]
    theirs = results["LinearSVC"]
    in_memory = ("LinearSVC", "", f"{theirs['peak'] / 2**20:.0f} MB", "", f"{theirs['seconds']:.0f}", *6 * [""])
    rows.append(in_memory)
    print_table(
        f"{results['rows']:,} rows, {results['bytes'] / 2**30:.2f} GB",
        (
            "limit",
            "bytes",
            "peak",
            "/ limit",
            "CPU s",
            "wall s",
            "passes",
            "gap",
            "free after one pass",
            "at the end",
            "objective - LinearSVC's",
        ),
        rows,
    )


def save_plot(path: Path, results: dict[str, Any]) -> None:
    """Save plots of relative gaps and shares of free rows over the passes."""
    import matplotlib as mpl  # noqa: PLC0415 - of an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    names = list(results["sets"])
    figure, axes = plt.subplots(2, len(names), figsize=(4.0 * len(names), 6.0), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        result = results["sets"][name]
        total = next(epoch["rows"] for epoch in result["C"]["1.0"]["history"] if epoch["kind"] == "all")
        for C, fit in result["C"].items():
            passes = np.cumsum([epoch["rows"] for epoch in fit["history"]]) / total
            axes[0][column].plot(passes, [100.0 * epoch["free"] / total for epoch in fit["history"]], label=f"C = {C}")
            measured = [k for k, epoch in enumerate(fit["history"]) if epoch["kind"] != "working set"]
            gaps = np.array([1.0 - fit["history"][k]["dual"] / fit["history"][k]["primal"] for k in measured])
            is_positive = gaps > 0.0  # estimates may be negative, because w has just learned similar rows
            axes[1][column].plot(passes[measured][is_positive], gaps[is_positive], ".-", label=f"C = {C}")
        axes[0][column].set(title=name, yscale="log", ylabel="free rows, %" if not column else "")
        axes[1][column].set(
            xlabel="passes over the data", yscale="log", ylabel="relative gap, estimated or measured" if not column else ""
        )
        axes[0][column].grid(alpha=0.3)
        axes[1][column].grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=120)


def main() -> None:
    """Measure the sets and the large set, print tables, write JSON and save plots."""
    parser = make_parser(__doc__, "out_of_core")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names of data sets")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the large set; 0: skip it")
    parser.add_argument("--folder", type=Path, default=None, help="folder for temporary files, a few GB")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results: dict[str, Any] = {"sets": {}}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in filter(None, args.sets.split(",")):
            results["sets"][name] = measure_set(name, args, Path(folder))
        if results["sets"]:
            print_sets(results["sets"])
        if args.rows:
            results["large"] = measure_large(args, Path(folder))
            print_large(results["large"])
    write_json(args.out, results)
    if results["sets"]:
        save_plot(args.out, results)


if __name__ == "__main__":
    main()
