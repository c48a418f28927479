"""Helpers of the benchmarks: data sets and their splits, the papers' settings, command-line options, tables, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

#: The file of each data set. It has ``X`` float32 [n, d] and ``y`` in {-1, 1}, and ``X_test``, ``y_test`` if the set has an
#: official test file. reuters is sparse: the arrays of two CSR matrices. The four sets after it are for regression: ``y`` has
#: their targets. letter, chess and krkopt have many labels: ``y`` has codes from 0.
FILES = {
    "a9a": "a9a.npz",
    "ijcnn1": "ijcnn1.npz",
    "phishing": "phishing.npz",
    "skin": "skin_nonskin.npz",
    "w7a": "w7a.npz",
    "elec2": "elec2.npz",
    "eeg_eye": "eeg_eye.npz",
    "magic04": "magic04.npz",
    "sea_stream": "sea_stream.npz",
    "letter": "letter.npz",
    "chess": "chess.npz",
    "krkopt": "krkopt.npz",
    "reuters": "reuters_lasvm.npz",
    "abalone": "abalone.npz",
    "cpusmall": "cpusmall.npz",
    "cadata": "cadata.npz",
    "kin40k": "kin40k.npz",
}

_SPLIT_SEED = 1234  # for 75/25 splits of sets without an official test file


@dataclass(frozen=True)
class Setting:
    """Parameters that Glasmachers and Qaadan (2018) found by cross-validation, and the budgets of their tables."""

    C: float
    gamma: float
    budgets: tuple[int, int]

    def compute_l2(self, rows: int) -> float:
        """Return the regularisation parameter of the papers (lambda) for a number of rows."""
        return 1.0 / (rows * self.C)


PAPER = {
    "a9a": Setting(2.0**5, 2.0**-7, (100, 500)),
    "ijcnn1": Setting(2.0**5, 2.0**1, (100, 500)),
    "phishing": Setting(2.0**3, 2.0**3, (100, 500)),
    "skin": Setting(2.0**5, 2.0**-7, (100, 200)),
    "w7a": Setting(2.0**3, 2.0**-5, (100, 500)),
}


@dataclass(frozen=True)
class Split:
    """Training rows X float32 [n, d] with labels y bool [n], and test rows."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    def shuffle_rows(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the training rows and labels in a random order."""
        order = rng.permutation(len(self.y))
        return self.X[order], self.y[order]


def make_parser(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. ``name`` is the default name of its JSON file."""
    parser = argparse.ArgumentParser(
        description=(doc or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("STREAMSVM_DATA"), help="folder of the data sets (STREAMSVM_DATA)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="JSON file to write")
    return parser


def load_file(name: str, folder: Path | None) -> dict[str, np.ndarray]:
    """Return the arrays in the file of a data set; exit with a message if the folder or the file is missing."""
    if folder is None:
        sys.exit(
            "no data: name the folder with --data DIR or in the environment variable STREAMSVM_DATA (see benchmarks/README.md)"
        )
    path = Path(folder) / FILES[name]
    if not path.is_file():
        sys.exit(f"no data: {path} is missing; data set {name!r} is read from it (see benchmarks/README.md)")
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def load_split(name: str, folder: Path | None) -> Split:
    """Return a data set with its official split, or a 75/25 split with a fixed seed; exit with a message if it is missing."""
    arrays = load_file(name, folder)
    X, y = np.ascontiguousarray(arrays["X"], np.float32), arrays["y"] > 0
    if "X_test" in arrays:
        return Split(X, y, np.ascontiguousarray(arrays["X_test"], np.float32), arrays["y_test"] > 0)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(y))
    train, test = np.split(order, [len(y) * 3 // 4])
    return Split(X[train], y[train], X[test], y[test])


def compute_accuracies(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the accuracy (percent) of the model's default predictions ("auto"), its last iterate and its average iterate."""
    return {
        output: 100.0 * float(((model.decision_function_many(X, output=output) > 0.0) == y).mean())
        for output in ("auto", "last", "average")
    }


def to_dicts(X: np.ndarray) -> list[dict[str, float]]:
    """Return the rows of X as dicts, as river takes them; the features are f0, f1, ..."""
    names = [f"f{j}" for j in range(X.shape[1])]
    return [dict(zip(names, row, strict=True)) for row in X.tolist()]


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median, maximum, mean and standard deviation of values, and their number."""
    return {
        "min": min(values),
        "median": statistics.median(values),
        "max": max(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "n": len(values),
    }


def read_resident_bytes() -> int:
    """Return the bytes of resident memory of this process (on Linux; elsewhere its peak so far)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource  # noqa: PLC0415 - not on every system

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_command(command: Sequence[str], folder: Path, **environment: str) -> tuple[float, float]:
    """Run a command on one thread, and return its CPU seconds (with child processes) and wall-clock seconds.

    ``environment`` has further environment variables. Raises subprocess.CalledProcessError if the command fails.
    """
    import resource  # noqa: PLC0415 - not on every system

    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env=variables, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def describe_machine() -> dict[str, Any]:
    """Return a description of this machine and the versions of its packages."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        model = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), model
        )
    return {
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "river")},
    }


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; all columns but the first are aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    rows = [[str(cell) for cell in row] for row in rows]
    for j, name in enumerate(columns):
        table.add_column(name, justify="left" if j == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # do not wrap lines in a file
        console = Console(width=400)
    console.print(table)


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results and a description of the machine to a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": describe_machine(), **results}, indent=1) + "\n")


def report_progress(text: str) -> None:
    """Print a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)
