"""Linear support vector machines from a file, within a limit of memory, beside LinearSVC and SGDClassifier in memory.

Sets are written as LIBSVM text and learned from there. CPU seconds in one process, of scikit-learn's with its own reader of text:
"from text" is reading and fitting over 1.5 times LinearSVC and that reader.
The large set is synthetic and sparse, and learned in processes of their own, with limits of a tenth, a twentieth and a fiftieth
of its size; their peak of memory is that of the operating system, without what the interpreter with its imports and compiled code
has. Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/out_of_core.py``.
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
SHARES = (10, 20, 50)
SMALLEST = 2**18  # bytes that a fit takes at least, whatever the rows; and 32 a feature
FEATURES, VALUES = 100_000, 30  # of the large set
CHUNK = 50_000


def rows_of(name: str, folder: Path | None) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Rows to learn and to test, CSR float64 [n, d], and whether each is of the positive class."""
    arrays, found = load_file(name, folder), []
    for part in ("X", "X_test"):
        if "X" in arrays:
            found.append(sparse.csr_array(arrays[part].astype(np.float64)))
        else:
            data, indices, starts = (arrays[f"{part}_{key}"] for key in ("data", "indices", "indptr"))
            shape = tuple(arrays[f"{part}_shape"].tolist())
            found.append(sparse.csr_array((data.astype(np.float64), indices.astype(np.int32), starts.astype(np.int32)), shape))
    return found[0], arrays["y"] > 0, found[1], arrays["y_test"] > 0


def timed(work: Callable[[], Any], repeats: int) -> tuple[Any, dict[str, float]]:
    """What the last of some runs gave, and their CPU seconds."""
    seconds, found = [], None
    for _ in range(repeats):
        start = time.process_time()
        found = work()
        seconds.append(time.process_time() - start)
    return found, summarise(seconds)


def objective(model: Any, X: Any, y: np.ndarray, C: float) -> float:
    """1/2 |w|^2 + C sum of hinge losses, with the intercept as a coefficient."""
    w, bias = model.coef_.ravel(), float(np.ravel(model.intercept_)[0])
    return float(0.5 * (w @ w + bias * bias) + C * np.maximum(0.0, 1.0 - np.where(y, 1.0, -1.0) * (X @ w + bias)).sum())


def one_set(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A set with several values of C."""
    X, y, X_test, y_test = rows_of(name, args.data)
    text, blocks = folder / f"{name}.txt", folder / f"{name}.blocks"
    dump_svmlight_file(X, np.where(y, 1, -1), str(text), zero_based=False)
    write_blocks(text, blocks)  # compiles
    size = blocks.stat().st_size
    limit = max(size / 10, SMALLEST + 32 * X.shape[1])
    _, reading = timed(lambda: write_blocks(text, blocks, memory_limit=limit), args.repeats)
    _, their_reading = timed(lambda: load_svmlight_file(str(text)), args.repeats)
    own_model = OutOfCoreLinearSVC(memory_limit=limit)
    own_model.fit_file(blocks)  # compiles
    found: dict[str, Any] = {
        "bytes": size,
        "limit": limit,
        "text": text.stat().st_size,
        "reading": reading,
        "their reading": their_reading,
        "C": {},
    }
    for C in CS:
        own, own_seconds = timed(lambda C=C: own_model.set_params(C=C).fit_file(blocks), args.repeats)
        theirs, their_seconds = timed(
            lambda C=C: LinearSVC(C=C, loss="hinge", max_iter=100_000, random_state=0).fit(X, y), args.repeats
        )
        sgd, sgd_seconds = timed(
            lambda C=C: SGDClassifier(alpha=1.0 / (len(y) * C), average=True, random_state=0).fit(X, y), args.repeats
        )
        found["C"][str(C)] = {
            "seconds": {"own": own_seconds, "LinearSVC": their_seconds, "SGD": sgd_seconds},
            "objective": {"own": own.objective_, "LinearSVC": objective(theirs, X, y, C), "SGD": objective(sgd, X, y, C)},
            "gap": own.duality_gap_ / own.objective_,
            "accuracy": {
                "own": 100.0 * float(((own.decision_function(_wide(X_test, own)) > 0.0) == y_test).mean()),
                "LinearSVC": 100.0 * theirs.score(X_test, y_test),
                "SGD": 100.0 * sgd.score(X_test, y_test),
            },
            "passes": own.n_iter_,
            "history": [one._asdict() for one in own.history_],
        }
        report_progress(f"{name}, C = {C:g}")
    hardest, one = timed(lambda: own_model.set_params(C=float(GRID[-1])).fit_file(blocks), args.repeats)
    _, path = timed(lambda: own_model.fit_file_path(blocks, GRID.tolist()), args.repeats)
    found["grid"] = {"one": one, "path": path, "passes of one": hardest.n_iter_}
    return found


def _wide(X: Any, model: Any) -> Any:
    # As many features as the file had: those of rows to test may be more, or fewer.
    X = sparse.csr_array(X)
    if X.shape[1] < model.n_features_in_:
        return sparse.csr_array((X.data, X.indices, X.indptr), (X.shape[0], model.n_features_in_))
    return X[:, : model.n_features_in_]


def write_large(path: Path, rows: int) -> None:
    """Rows of 30 values among 100,000 features of very different frequency, as of text, and noisy labels."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=FEATURES)
    size = rows * (12 + 8 * VALUES)
    with BlockWriter(path, block_bytes=min(size // max(SHARES) // 16, 2**20)) as writer:
        for begin in range(0, rows, CHUNK):
            n = min(CHUNK, rows - begin)
            indices = (FEATURES * rng.random((n, VALUES)) ** 3).astype(np.int64)
            values = rng.exponential(size=(n, VALUES))
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            X = sparse.csr_array((values.ravel(), indices.ravel(), np.arange(0, n * VALUES + 1, VALUES)), (n, FEATURES))
            writer.add(X, (X @ weights + 0.3 * rng.normal(size=n) > 0.0).astype(float))
            if begin % (20 * CHUNK) == 0:
                report_progress(f"large: {begin + n:,} rows written")


def large_fit(path: str, limit: float) -> dict[str, Any]:
    """In a process of its own: seconds, and the peak of memory over what the process had before."""
    rng = np.random.default_rng(0)
    warnings.simplefilter("ignore")
    OutOfCoreLinearSVC(memory_limit=2**20).fit(sparse.csr_array(rng.random((50, 5)) < 0.5, dtype=float), np.arange(50) % 2)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
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
        "history": [one._asdict() for one in model.history_],
    }


def large_fit_in_memory(path: str) -> dict[str, Any]:
    """LinearSVC in a process of its own, with all rows in memory."""
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
    return {"seconds": seconds, "peak": 1024 * int(peak.split()[1]), "objective": objective(model, X, labels > 0.0, 1.0)}


def large(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The large set at several limits."""
    path = folder / "large.blocks"
    start = time.process_time()
    write_large(path, args.rows)
    found: dict[str, Any] = {"rows": args.rows, "bytes": path.stat().st_size, "written": time.process_time() - start, "fits": {}}
    for share in SHARES:
        found["fits"][str(share)] = _apart(f"large_fit({str(path)!r}, {found['bytes'] / share})")
        report_progress(f"large: limit of 1/{share}")
    found["LinearSVC"] = _apart(f"large_fit_in_memory({str(path)!r})")
    return found


def _apart(call: str) -> dict[str, Any]:
    # What a function of this module gives in a process of its own.
    code = f"import json, out_of_core; print(json.dumps(out_of_core.{call}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def print_sets(results: dict[str, Any]) -> None:
    """Tables of the sets."""
    rows, grids = [], []
    for name, r in results.items():
        for C, of in r["C"].items():
            own, theirs = (of["seconds"][who]["median"] for who in ("own", "LinearSVC"))
            allowed = 1.5 * theirs + r["reading"]["median"]
            from_text, allowed_of_text = r["reading"]["median"] + own, 1.5 * theirs + r["their reading"]["median"]
            rows.append(
                (
                    f"{name}, C = {C}",
                    f"{of['seconds']['own']['min']:.3f}/{own:.3f}/{of['seconds']['own']['max']:.3f}",
                    f"{theirs:.3f}",
                    f"{of['seconds']['SGD']['median']:.3f}",
                    f"{r['reading']['median']:.3f} ({r['their reading']['median']:.3f})",
                    f"{own / allowed:.2f}",
                    f"{from_text / allowed_of_text:.2f}",
                    of["passes"],
                    f"{of['gap']:.1e}",
                    f"{of['objective']['own'] / of['objective']['LinearSVC'] - 1.0:+.1e}",
                    f"{of['objective']['SGD'] / of['objective']['LinearSVC'] - 1.0:+.1e}",
                    " ".join(f"{of['accuracy'][who]:.2f}" for who in ("own", "LinearSVC", "SGD")),
                )
            )
        one, path = (r["grid"][key]["median"] for key in ("one", "path"))
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
    """Table of the large set."""
    rows = [
        (
            f"1/{share}",
            f"{of['limit'] / 2**20:.0f} MB",
            f"{of['peak'] / 2**20:.0f} MB",
            f"{of['peak'] / of['limit']:.2f}",
            f"{of['seconds']:.0f}",
            f"{of['wall']:.0f}",
            of["passes"],
            f"{of['gap']:.1e}",
            f"{100.0 * of['history'][0]['free'] / results['rows']:.1f} %",
            f"{100.0 * of['history'][-1]['free'] / results['rows']:.1f} %",
            f"{of['objective'] / results['LinearSVC']['objective'] - 1.0:+.1e}",
        )
        for share, of in results["fits"].items()
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


def plot(path: Path, results: dict[str, Any]) -> None:
    """Objectives and shares of free rows over passes, as the source shows them."""
    import matplotlib as mpl  # noqa: PLC0415 - of an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    names = list(results["sets"])
    figure, axes = plt.subplots(2, len(names), figsize=(4.0 * len(names), 6.0), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        r = results["sets"][name]
        total = next(one["rows"] for one in r["C"]["1.0"]["history"] if one["kind"] == "all")
        for C, of in r["C"].items():
            passes = np.cumsum([one["rows"] for one in of["history"]]) / total
            axes[0][column].plot(passes, [100.0 * one["free"] / total for one in of["history"]], label=f"C = {C}")
            known = [k for k, one in enumerate(of["history"]) if one["kind"] != "working set"]
            gaps = np.array([1.0 - of["history"][k]["dual"] / of["history"][k]["primal"] for k in known])
            shown = gaps > 0.0  # estimates may be below: rows are measured by a w that has just learned their neighbours
            axes[1][column].plot(passes[known][shown], gaps[shown], ".-", label=f"C = {C}")
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
    """Run it."""
    parser = make_parser(__doc__, "out_of_core")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names of data sets")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the large set; 0: without it")
    parser.add_argument("--folder", type=Path, default=None, help="for files of rows, a few GB; empty: a temporary one")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results: dict[str, Any] = {"sets": {}}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in filter(None, args.sets.split(",")):
            results["sets"][name] = one_set(name, args, Path(folder))
        if results["sets"]:
            print_sets(results["sets"])
        if args.rows:
            results["large"] = large(args, Path(folder))
            print_large(results["large"])
    write_json(args.out, results)
    if results["sets"]:
        plot(args.out, results)


if __name__ == "__main__":
    main()
