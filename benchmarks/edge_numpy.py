"""What predictions with numpy alone take: the import, loading a file, and single rows.

Models have 100 support vectors and 22 features, normal numbers. The import is timed in a new process each time; a single row is a
mapping, as `predict_one` takes it. The peer is the model itself, with its compiled code.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np

from streamsvm import BSGDClassifier, SVMClassifier, edge

FEATURES, BUDGET, ROWS, CALLS = 22, 100, 3000, 1000
_IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def imported(module: str, repeats: int) -> dict[str, float]:
    """Seconds that an import takes in a new process."""
    command = [sys.executable, "-c", _IMPORT.format(module)]
    return common.summary([float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(repeats)])


def microseconds(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Microseconds of a call."""
    call()
    return common.summary([1e6 * seconds / CALLS for seconds in timeit.repeat(call, number=CALLS, repeat=repeats)])


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = common.argument_parser(__doc__, "edge_numpy")
    parser.add_argument("--repeats", type=int, default=11)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, FEATURES))
    y = [("a", "b", "c")[number] for number in (X[:, 0] + X[:, 1] * X[:, 2] > 0.0).astype(int) + (X[:, 3] > 1.0)]
    rows = common.dict_rows(X)
    found: dict[str, dict[str, float]] = {}
    for module in ("numpy", "streamsvm.edge"):
        found[f"import {module}, s"] = imported(module, arguments.repeats)
    sizes = {}
    models = {
        "BSGD, two labels": BSGDClassifier(budget=BUDGET, seed=0),
        "BSGD, three labels": BSGDClassifier(budget=BUDGET, seed=0),
    }
    for name, model in {**models, "SVMClassifier, three labels": SVMClassifier(seed=0)}.items():
        for x, label in zip(rows, y, strict=True):
            model.learn_one(x, label != "a" if "two" in name else label)
        path = Path(tempfile.mkdtemp(), "model")
        model.save(path)
        predictor, x = edge.load(path), rows[0]
        sizes[name] = {"file": path.stat().st_size, "program": predictor.nbytes}
        loading = timeit.repeat(lambda path=path: edge.load(path), number=1, repeat=arguments.repeats)  # type: ignore[misc]
        found[f"{name}: load, ms"] = common.summary([1e3 * seconds for seconds in loading])
        for what, ask in {"numpy": predictor.predict_one, "the model": model.predict_one}.items():
            found[f"{name}: predict_one by {what}, us"] = microseconds(lambda ask=ask, x=x: ask(x), arguments.repeats)  # type: ignore[misc]
    shown = [(name, *(f"{times[part]:.3f}" for part in ("min", "median", "max"))) for name, times in found.items()]
    common.show(f"{BUDGET} vectors, {FEATURES} features", ("what", "min", "median", "max"), shown)
    common.write(arguments.out, {"times": found, "bytes": sizes, "repeats": arguments.repeats})


if __name__ == "__main__":
    main()
