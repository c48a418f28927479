"""Measures the time of a row, compared with river's models (dicts) and numpy's margin (arrays), and start-up and memory.

Run it on one core (``taskset -c 0`` on Linux). Models take turns, so that a busy moment of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import PAPER, Split, load_split, make_parser, print_table, report_progress, summarise, to_dicts, write_json
from river import feature_extraction, linear_model, tree

from streamsvm import BSGDClassifier

BUDGET = 500

START_UP_CODE = """
import json, time
def resident():
    try:
        return int(open("/proc/self/statm").read().split()[1]) * 4096
    except OSError:
        return 0
base = resident()
times = [time.perf_counter()]
def lap():
    times.append(time.perf_counter())
import streamsvm; lap()
model = streamsvm.BSGDClassifier(budget=500); lap()
model.predict_one({"a": 1.0, "b": 2.0}); lap()
for i in range(1000):
    model.learn_one({"a": float(i % 7), "b": float(i % 11)}, i % 3 == 0)
    if i == 0:
        lap()
lap()
print(json.dumps({"import": times[1] - times[0], "construct": times[2] - times[1], "first predict_one": times[3] - times[2],
    "first learn_one": times[4] - times[3], "import to first prediction": times[3] - times[0],
    "import to 1,000 rows learned": times[5] - times[0], "resident": resident(), "interpreter": base, "nbytes": model.nbytes}))
"""

Row = tuple[dict[str, float], bool]


def make_model(split: Split) -> BSGDClassifier:
    setting = PAPER["ijcnn1"]
    n, features = split.X.shape
    return BSGDClassifier(BUDGET, gamma=setting.gamma, scaling=None, l2=setting.compute_l2(n), max_features=features, seed=0)


# One row at a time ----------------------------------------------------------------------------------------------------


def predict_and_learn(model: Any, rows: list[Row]) -> float:
    """Predict and learn rows, and return the CPU microseconds a row, which other programs hardly influence."""
    start = time.process_time()
    for x, y in rows:
        model.predict_one(x)
        model.learn_one(x, y)
    return (time.process_time() - start) / len(rows) * 1e6


def compare_with_river(split: Split, repeats: int) -> dict[str, dict[str, float]]:
    rows: list[Row] = list(zip(to_dicts(split.X), split.y.tolist(), strict=True))
    ours = make_model(split)
    ours.learn_many(make_frame(rows), split.y)
    if ours.n_support != BUDGET:
        sys.exit(f"the budget is not full: {ours.n_support} of {BUDGET} support vectors")
    models: dict[str, tuple[Any, int]] = {
        f"streamsvm BSGDClassifier({BUDGET})": (ours, 20_000),
        "river LogisticRegression": (linear_model.LogisticRegression(), 20_000),
        "river PAClassifier": (linear_model.PAClassifier(), 20_000),
        "river RBFSampler(100) | LogisticRegression": (
            feature_extraction.RBFSampler(n_components=100, seed=0) | linear_model.LogisticRegression(),
            500,
        ),
        "river HoeffdingTreeClassifier": (tree.HoeffdingTreeClassifier(), 5_000),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for name, (model, n) in models.items():
        predict_and_learn(model, rows[: min(n, 2_000)])
        report_progress(f"warm: {name}")
    for repeat in range(repeats):
        for name, (model, n) in models.items():
            first = repeat * n % (len(rows) - n)
            times[name].append(predict_and_learn(model, rows[first : first + n]))
        report_progress(f"one row at a time: {repeat + 1}/{repeats}")
    return {name: summarise(values) for name, values in times.items()}


def make_frame(rows: list[Row]) -> Any:
    import pandas as pd  # noqa: PLC0415 - its columns get the names of the features in dicts

    return pd.DataFrame([x for x, _ in rows]).astype(np.float32)


# Many rows ------------------------------------------------------------------------------------------------------------


def make_numpy_margins(S: np.ndarray, a: np.ndarray, gamma: float) -> dict[str, Callable[[np.ndarray], Any]]:
    """Return functions that compute the margin of a row in numpy in different ways, in float32. S is [B, d], a is [B]."""
    g = np.float32(gamma)
    T = np.ascontiguousarray(S.T)
    norms = (S * S).sum(1)
    scaled, scaled_norms = S * np.float32(2.0 * g), -g * norms
    differences, distances = np.empty_like(S), np.empty(len(S), np.float32)
    differences_t = np.empty_like(T)

    def in_place(x: np.ndarray) -> Any:
        np.dot(scaled, x, out=distances)
        np.add(distances, scaled_norms, out=distances)
        np.subtract(distances, g * (x @ x), out=distances)
        np.exp(distances, out=distances)
        return distances @ a

    def in_place_differences(x: np.ndarray) -> Any:
        np.subtract(S, x, out=differences)
        np.einsum("ij,ij->i", differences, differences, out=distances)
        np.multiply(distances, -g, out=distances)
        np.exp(distances, out=distances)
        return distances @ a

    def feature_major(x: np.ndarray) -> Any:
        np.subtract(T, x[:, None], out=differences_t)
        np.multiply(differences_t, differences_t, out=differences_t)
        np.sum(differences_t, axis=0, out=distances)
        np.multiply(distances, -g, out=distances)
        np.exp(distances, out=distances)
        return distances @ a

    return {
        "np.exp(-g * ((S - x) ** 2).sum(1)) @ a": lambda x: np.exp(-g * ((S - x) ** 2).sum(1)) @ a,
        "np.exp(-g * (norms - 2 * (S @ x) + x @ x)) @ a": lambda x: np.exp(-g * (norms - 2 * (S @ x) + x @ x)) @ a,
        "the same on S.T": lambda x: np.exp(-g * (norms - 2 * (x @ T) + x @ x)) @ a,
        "the same into one buffer, constants folded": in_place,
        "differences into buffers, einsum": in_place_differences,
        "differences into buffers, feature-major": feature_major,
    }


def compare_with_numpy(split: Split, repeats: int, n: int = 10_000) -> dict[str, Any]:
    model = make_model(split)
    model.learn_many(split.X, split.y)
    S, a = model.support_vectors, model.coefficients[0].astype(np.float32)
    ways = make_numpy_margins(S, a, model.effective_gamma)
    X, y = split.X[:n], split.y[:n]
    expected = model.decision_function_many(X[:100])
    for name, margin in ways.items():  # all must agree
        worst = max(abs(float(margin(x)) - f) for x, f in zip(X[:100], expected, strict=True))
        if worst > 1e-3 * np.abs(a).sum():
            sys.exit(f"{name} is off by {worst}")
    times: dict[str, list[float]] = {name: [] for name in ("learn_many", *ways)}
    for repeat in range(repeats):
        start = time.perf_counter()
        model.learn_many(X, y)
        times["learn_many"].append((time.perf_counter() - start) / n * 1e6)
        for name, margin in ways.items():
            start = time.perf_counter()
            for x in X[: n // 5]:
                margin(x)
            times[name].append((time.perf_counter() - start) / (n // 5) * 1e6)
        report_progress(f"many rows: {repeat + 1}/{repeats}")
    learn = times.pop("learn_many")
    ways_summary = {name: summarise(values) for name, values in times.items()}
    return {"learn_many": summarise(learn), "numpy": ways_summary}


# Start-up and memory ----------------------------------------------------------------------


def measure_start_up(repeats: int) -> dict[str, Any]:
    """Return start-up times and memory of new processes, with an empty compile cache ("cold") and a filled one ("warm")."""
    laps_by_kind: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(max(1, repeats // 3)):
        with tempfile.TemporaryDirectory() as cache:
            for run in range(1 + 3):
                environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
                start = time.perf_counter()
                output = subprocess.run(
                    [sys.executable, "-c", START_UP_CODE], env=environment, check=True, capture_output=True, text=True
                )
                result = {"whole process": time.perf_counter() - start, **json.loads(output.stdout)}
                laps_by_kind["cold" if run == 0 else "warm"].append(result)
                report_progress(f"start-up: {'cold' if run == 0 else 'warm'} {result['import to first prediction']:.2f} s")
    return {kind: {key: summarise([run[key] for run in runs]) for key in runs[0]} for kind, runs in laps_by_kind.items()}


def format_spread(values: dict[str, float], digits: int = 2) -> tuple[str, str, str]:
    return tuple(f"{values[key]:.{digits}f}" for key in ("min", "median", "max"))  # type: ignore[return-value]


def print_results(results: dict[str, Any]) -> None:
    rows: list[tuple[object, ...]] = []
    if "one_row" in results:
        one = results["one_row"]
        ours = next(iter(one.values()))["median"]
        rows.append((f"predict_one + learn_one, ijcnn1 as dicts, B = {BUDGET} full", "", "", "", ""))
        rows += [(f"  {name}", *format_spread(values), f"{values['median'] / ours:.2f}x") for name, values in one.items()]
    if "many_rows" in results:
        many = results["many_rows"]
        ours = many["learn_many"]["median"]
        rows.append((f"a row of many, ijcnn1 as an array, B = {BUDGET}", "", "", "", ""))
        rows.append(("  streamsvm learn_many: margin, step and merges", *format_spread(many["learn_many"]), "1.00x"))
        rows += [
            (f"  margin alone: {name}", *format_spread(values), f"{values['median'] / ours:.2f}x")
            for name, values in many["numpy"].items()
        ]
        best = min(values["median"] for values in many["numpy"].values())
        rows.append(("  the best of these", "", f"{best:.2f}", "", f"{best / ours:.2f}x"))
    if rows:
        print_table("Microseconds a row", ("", "min", "median", "max", "over ours"), rows)
    if "start_up" in results:
        rows = []
        for kind, laps in results["start_up"].items():
            for name, values in laps.items():
                if name not in ("resident", "interpreter", "nbytes"):
                    rows.append((f"{kind}: {name}", *format_spread(values)))
        print_table("Start-up, seconds (cold: nothing compiled yet)", ("", "min", "median", "max"), rows)
        warm = results["start_up"]["warm"]
        rows = [
            (f"model, nbytes (B = {BUDGET}, 256 features)", f"{warm['nbytes']['median'] / 1e6:.2f}"),
            ("resident: interpreter alone", f"{warm['interpreter']['median'] / 1e6:.1f}"),
            ("resident: with numba, river, the model, 1,000 rows learned; warm", f"{warm['resident']['median'] / 1e6:.1f}"),
            ("the same, all compiled in this process", f"{results['start_up']['cold']['resident']['median'] / 1e6:.1f}"),
            (f"model, nbytes (B = {BUDGET}, 22 features)", f"{BSGDClassifier(BUDGET, max_features=22).nbytes / 1e6:.3f}"),
        ]
        print_table("Memory, MB", ("", "MB"), rows)


def main() -> None:
    parser = make_parser(__doc__, "online_latency")
    parser.add_argument(
        "--parts", nargs="+", choices=("one_row", "many_rows", "start_up"), default=["one_row", "many_rows", "start_up"]
    )
    parser.add_argument("--repeats", type=int, default=9)
    args: argparse.Namespace = parser.parse_args()
    results: dict[str, Any] = {}
    if {"one_row", "many_rows"} & set(args.parts):
        split = load_split("ijcnn1", args.data)
    if "one_row" in args.parts:
        results["one_row"] = compare_with_river(split, args.repeats)
    if "many_rows" in args.parts:
        results["many_rows"] = compare_with_numpy(split, args.repeats)
    if "start_up" in args.parts:
        results["start_up"] = measure_start_up(args.repeats)
    print_results(results)
    write_json(args.out, results)


if __name__ == "__main__":
    main()
