"""What the benchmarks share: data sets and their splits, the papers' settings, timing, tables, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

#: Every data set: the file that holds it. ``X`` float32 [n, d] and ``y`` in {-1, 1}, and ``X_test``, ``y_test`` where there is
#: an official test file. The last four are regressions: ``y`` holds their targets. Before them a sparse one, as the parts of two
#: CSR matrices. letter, chess and krkopt have many labels: ``y`` holds codes from 0.
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

_SPLIT_SEED = 1234  # of the 75/25 splits of sets without an official test file


@dataclass(frozen=True)
class Setting:
    """Parameters that Glasmachers and Qaadan (2018) found by cross-validation, and the budgets of their tables."""

    C: float
    gamma: float
    budgets: tuple[int, int]

    def l2(self, rows: int) -> float:
        """The papers' lambda."""
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
    """Rows to learn, X float32 [n, d] and y bool [n], and rows to test on."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    def shuffled(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The rows to learn, in another order."""
        order = rng.permutation(len(self.y))
        return self.X[order], self.y[order]


def argument_parser(doc: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=(doc or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("STREAMSVM_DATA"), help="folder of the data sets (STREAMSVM_DATA)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="JSON file to write")
    return parser


def load_file(name: str, folder: Path | None) -> dict[str, np.ndarray]:
    """The arrays of a data set as its file has them; ends the program with what is missing."""
    if folder is None:
        sys.exit(
            "no data: name the folder with --data DIR or in the environment variable STREAMSVM_DATA (see benchmarks/README.md)"
        )
    path = Path(folder) / FILES[name]
    if not path.is_file():
        sys.exit(f"no data: {path} is missing; data set {name!r} is read from it (see benchmarks/README.md)")
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def load(name: str, folder: Path | None) -> Split:
    """A data set, split: by its official test file where there is one, else 75/25 with a fixed seed."""
    arrays = load_file(name, folder)
    X, y = np.ascontiguousarray(arrays["X"], np.float32), arrays["y"] > 0
    if "X_test" in arrays:
        return Split(X, y, np.ascontiguousarray(arrays["X_test"], np.float32), arrays["y_test"] > 0)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(y))
    learn, test = np.split(order, [len(y) * 3 // 4])
    return Split(X[learn], y[learn], X[test], y[test])


def accuracies(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Percent right of what the model predicts by default ("auto"), of its last iterate and of its average."""
    return {
        output: 100.0 * float(((model.decision_function_many(X, output=output) > 0.0) == y).mean())
        for output in ("auto", "last", "average")
    }


def dict_rows(X: np.ndarray) -> list[dict[str, float]]:
    """Rows as river wants them."""
    names = [f"f{j}" for j in range(X.shape[1])]
    return [dict(zip(names, row, strict=True)) for row in X.tolist()]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Min, median, max, mean and standard deviation."""
    return {
        "min": min(values),
        "median": statistics.median(values),
        "max": max(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "n": len(values),
    }


def resident_bytes() -> int:
    """Resident memory of this process (Linux; elsewhere its peak so far)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource  # noqa: PLC0415 - not on every system

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
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


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print one table; numbers and dashes to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    rows = [[str(cell) for cell in row] for row in rows]
    for j, name in enumerate(columns):
        table.add_column(name, justify="left" if j == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # a file has no width to wrap at
        console = Console(width=400)
    console.print(table)


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the results and the machine as one JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")


def progress(text: str) -> None:
    """Say on standard error how far it is."""
    print(text, file=sys.stderr, flush=True)
