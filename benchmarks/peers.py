"""Compares speed and accuracy with river and scikit-learn in a few minutes, and with the ratios of an earlier version.

The parts are short forms of ``online_latency.py``, ``streams.py`` and ``full_fits.py``. For each pair of our model and a
peer, the ratios of CPU times and of errors are computed. ``ratios.json`` has the ratios of the version that it names, and
``--check`` compares new ratios with them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import full_fits
import numpy as np
from _prequential import run_learner
from _ratios import FACTORS, compare_ratios, compute_ratios, format_table, summarise_runs
from _stream_learners import select_learners
from _streams import STREAMS, make_rows
from common import Split, describe_machine, load_split, make_parser, print_table, report_progress, write_json
from online_latency import BUDGET, compare_with_river

from streamsvm import __version__

RATIOS_FILE = Path(__file__).with_name("ratios.json")
STREAM_ROWS = 4_000  # of each stream; the generators with abrupt drift change after 3,000 rows
FIT_ROWS = 10_000  # rows of each batch fit
REPEATS = 3  # of measurements that take little time
RIVER_STREAMS = ("Bananas", "ImageSegments", "Phishing", "sea_abrupt", "agrawal", "rbf_drift")
FILE_STREAMS = ("elec2", "magic04")
OURS = ("SVMClassifier", "BSCAClassifier", "BSGDClassifier")
PEERS = ("LogisticRegression", "PAClassifier", "HoeffdingAdaptiveTreeClassifier", "ARFClassifier")
FITS = (
    ("CSMOClassifier", "scikit-learn SVC"),
    ("CSMOClassifier", "scikit-learn-intelex SVC"),
    ("CSMOClassifier", "Nystroem(1000) + SGD"),
    ("HierarchicalSVC", "scikit-learn SVC"),
    ("BSCAClassifier, one pass", "Nystroem(300) + SGD"),
    ("BSGDClassifier, one pass", "Nystroem(300) + SGD"),
)

Figures = dict[str, dict[str, float]]


def measure_rows(split: Split) -> Figures:
    """Return the CPU microseconds to predict and learn a row, as a dict, with a full budget, for each model."""
    return {
        name.removeprefix("streamsvm "): {"time": times["median"]} for name, times in compare_with_river(split, REPEATS).items()
    }


def measure_streams(names: tuple[str, ...], folder: Path | None) -> Figures:
    """Return the CPU microseconds a row and prequential accuracy of each learner with its defaults, means over streams."""
    figures: Figures = {}
    for learner in select_learners([*OURS, *PEERS]):
        results = []
        for name in names:
            rows = make_rows(name, 0, STREAM_ROWS, folder, "standard", False)
            results.append(run_learner(learner, rows, 0, False, STREAMS[name].changes))
            if "error" in results[-1]:
                sys.exit(f"{learner.name} on {name}: {results[-1]['error']}")
        microseconds, accuracy = (float(np.mean([result[key] for result in results])) for key in ("microseconds", "accuracy"))
        figures[learner.name] = {"time": microseconds, "accuracy": accuracy}
        report_progress(f"{learner.name}: {accuracy:.2f} %, {microseconds:.1f} us a row")
    return figures


def measure_fits() -> Figures:
    """Return the CPU seconds of a batch fit and the test accuracy of each method; the methods take turns."""
    X, y, X_test, y_test, gamma = full_fits.load_data("mixture", FIT_ROWS, None)
    methods = [name for name in full_fits.METHODS if any(name in pair for pair in FITS)]
    times: dict[str, list[float]] = {name: [] for name in methods}
    accuracy = {}
    for repeat in range(-1, REPEATS):
        n = FIT_ROWS if repeat >= 0 else FIT_ROWS // 5  # the first fits load or compile
        for name in methods:
            model = full_fits.METHODS[name](gamma, 1.0, n)
            start = time.process_time()
            (model.learn_many if hasattr(model, "learn_many") else model.fit)(X[:n], y[:n])
            if repeat >= 0:
                times[name].append(time.process_time() - start)
            if repeat <= 0:
                right = (model.predict_many if hasattr(model, "predict_many") else model.predict)(X_test) == y_test
                accuracy[name] = 100.0 * float(np.mean(right))
        report_progress(f"fits: {repeat + 1}/{REPEATS}")
    return {name: {"time": statistics.median(seconds), "accuracy": accuracy[name]} for name, seconds in times.items()}


def measure_all(folder: Path | None) -> dict[str, Any]:
    """Return the figures of all parts, the ratios, and the versions of the packages, as written to JSON."""
    X, y = full_fits.draw_mixture(FIT_ROWS)
    ours = f"BSGDClassifier({BUDGET})"
    parts: dict[str, Figures] = {"rows of a mixture": measure_rows(Split(X.astype(np.float32), y, X[:0], y[:0]))}
    if folder is not None:
        parts["rows of ijcnn1"] = measure_rows(load_split("ijcnn1", folder))
    parts["streams of river"] = measure_streams(RIVER_STREAMS, folder)
    if folder is not None:
        parts["streams of files"] = measure_streams(FILE_STREAMS, folder)
    parts["fits of a mixture"] = measure_fits()
    ratios: dict[str, float] = {}
    for where, figures in parts.items():
        pairs = list(FITS) if where.startswith("fits") else [(a, f"river {b}") for a in OURS for b in PEERS]
        if where.startswith("rows"):
            pairs = [(ours, peer) for peer in figures if peer != ours]
        ratios |= compute_ratios(where, pairs, figures)
    versions = {**describe_machine(), "scikit-learn": version("scikit-learn")}
    return {"version": __version__, "machine": versions, "parts": parts, "ratios": ratios}


def print_parts(parts: dict[str, Figures]) -> None:
    """Print a table for each part."""
    for where, figures in parts.items():
        unit = "s of a fit" if where.startswith("fits") else "us a row"
        digits = 2 if where.startswith("fits") else 1
        rows = [
            (name, f"{model['time']:.{digits}f}", f"{model['accuracy']:.2f}" if "accuracy" in model else "")
            for name, model in sorted(figures.items(), key=lambda item: item[1]["time"])
        ]
        print_table(where, ("", f"CPU {unit}", "accuracy %"), rows)


def check_ratios(ratios: dict[str, float]) -> None:
    """Compare ratios with the stored ones, and exit with a message if any is worse."""
    stored = json.loads(RATIOS_FILE.read_text())
    worse, absent = compare_ratios(stored, ratios)
    for name in absent:
        print(f"not compared, because this run did not measure it: {name}")
    n = len(stored["ratios"]) - len(absent)
    if worse:
        sys.exit("\n".join([f"{len(worse)} of {n} ratios are worse than those of version {stored['version']}:", *worse]))
    limits = " and ".join(f"{factor} times the {kind}" for kind, factor in FACTORS.items())
    print(f"none of {n} ratios is worse than those of version {stored['version']} by more than {limits}")


def main() -> None:
    """Measure and print the ratios, or write the ratios of earlier runs."""
    parser = make_parser(__doc__, "peers")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help=f"compare the new ratios with those of {RATIOS_FILE.name}")
    action.add_argument("--keep", nargs="+", type=Path, metavar="RUN", help=f"only write {RATIOS_FILE.name} from these runs")
    args: argparse.Namespace = parser.parse_args()
    if args.keep:
        stored = summarise_runs([json.loads(path.read_text()) for path in args.keep])
        RATIOS_FILE.write_text(json.dumps(stored, indent=1) + "\n")
        print(format_table(stored))
        return
    results = measure_all(None if args.data is None else Path(args.data))
    print_parts(results["parts"])
    lines = [(name, f"{ratio:.3g}") for name, ratio in results["ratios"].items()]
    print_table("Ours over the peer's; less is better", ("", "ratio"), lines)
    write_json(args.out, results)
    if args.check:
        check_ratios(results["ratios"])


if __name__ == "__main__":
    main()
