"""Speed and accuracy beside river and scikit-learn in a few minutes, and whether they are still what they were.

The parts are short forms of ``online_latency.py``, ``streams.py`` and ``full_fits.py``. Of each pair of ours and a
peer's, the ratios of CPU times and of errors are taken. ``ratios.json`` has those of the version that it names, and
``--check`` compares new ones with them.
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
from _prequential import run
from _ratios import FACTORS, compare, keep, ratios, table
from _stream_learners import select
from _streams import STREAMS, rows_of
from common import Split, argument_parser, load, machine, progress, show, write
from online_latency import BUDGET, against_river

from streamsvm import __version__

KEPT = Path(__file__).with_name("ratios.json")
ROWS = 4_000  # of a stream; after 3,000 the generators with abrupt drift have their first one
FIT = 10_000  # rows of a fit
REPEATS = 3  # of what takes little time
OF_RIVER = ("Bananas", "ImageSegments", "Phishing", "sea_abrupt", "agrawal", "rbf_drift")
OF_FILES = ("elec2", "magic04")
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

Found = dict[str, dict[str, float]]


def of_rows(split: Split) -> Found:
    """CPU microseconds of a row as a dict, predicted and learned by a model whose budget is full."""
    return {name.removeprefix("streamsvm "): {"time": of["median"]} for name, of in against_river(split, REPEATS).items()}


def of_streams(names: tuple[str, ...], folder: Path | None) -> Found:
    """CPU microseconds of a row and prequential accuracy, means over streams; each learner has its defaults."""
    found: Found = {}
    for learner in select([*OURS, *PEERS]):
        results = []
        for name in names:
            rows = rows_of(name, 0, ROWS, folder, "standard", False)
            results.append(run(learner, rows, 0, False, STREAMS[name].changes))
            if "error" in results[-1]:
                sys.exit(f"{learner.name} on {name}: {results[-1]['error']}")
        us, accuracy = (float(np.mean([of[key] for of in results])) for key in ("microseconds", "accuracy"))
        found[learner.name] = {"time": us, "accuracy": accuracy}
        progress(f"{learner.name}: {accuracy:.2f} %, {us:.1f} us a row")
    return found


def of_fits() -> Found:
    """CPU seconds of a fit, and test accuracy; the methods take turns."""
    X, y, X_test, y_test, gamma = full_fits.data("mixture", FIT, None)
    methods = [name for name in full_fits.METHODS if any(name in pair for pair in FITS)]
    times: dict[str, list[float]] = {name: [] for name in methods}
    accuracy = {}
    for repeat in range(-1, REPEATS):
        n = FIT if repeat >= 0 else FIT // 5  # the first fits load or compile
        for name in methods:
            model = full_fits.METHODS[name](gamma, 1.0, n)
            began = time.process_time()
            (model.learn_many if hasattr(model, "learn_many") else model.fit)(X[:n], y[:n])
            if repeat >= 0:
                times[name].append(time.process_time() - began)
            if repeat <= 0:
                right = (model.predict_many if hasattr(model, "predict_many") else model.predict)(X_test) == y_test
                accuracy[name] = 100.0 * float(np.mean(right))
        progress(f"fits: {repeat + 1}/{REPEATS}")
    return {name: {"time": statistics.median(of), "accuracy": accuracy[name]} for name, of in times.items()}


def measure(folder: Path | None) -> dict[str, Any]:
    """All that is measured, part by part, and the ratios."""
    X, y = full_fits.mixture(FIT)
    ours = f"BSGDClassifier({BUDGET})"
    parts: dict[str, Found] = {"rows of a mixture": of_rows(Split(X.astype(np.float32), y, X[:0], y[:0]))}
    if folder is not None:
        parts["rows of ijcnn1"] = of_rows(load("ijcnn1", folder))
    parts["streams of river"] = of_streams(OF_RIVER, folder)
    if folder is not None:
        parts["streams of files"] = of_streams(OF_FILES, folder)
    parts["fits of a mixture"] = of_fits()
    found: dict[str, float] = {}
    for where, of in parts.items():
        pairs = list(FITS) if where.startswith("fits") else [(a, f"river {b}") for a in OURS for b in PEERS]
        if where.startswith("rows"):
            pairs = [(ours, peer) for peer in of if peer != ours]
        found |= ratios(where, pairs, of)
    versions = {**machine(), "scikit-learn": version("scikit-learn")}
    return {"version": __version__, "machine": versions, "parts": parts, "ratios": found}


def report(parts: dict[str, Found]) -> None:
    """Print what was measured."""
    for where, found in parts.items():
        unit = "s of a fit" if where.startswith("fits") else "us a row"
        digits = 2 if where.startswith("fits") else 1
        rows = [
            (name, f"{of['time']:.{digits}f}", f"{of['accuracy']:.2f}" if "accuracy" in of else "")
            for name, of in sorted(found.items(), key=lambda item: item[1]["time"])
        ]
        show(where, ("", f"CPU {unit}", "accuracy %"), rows)


def check(found: dict[str, float]) -> None:
    """Say which ratios are worse than the kept ones, and end the program with an error if there is one."""
    kept = json.loads(KEPT.read_text())
    worse, absent = compare(kept, found)
    for name in absent:
        print(f"not compared, for this run has it not: {name}")
    n = len(kept["ratios"]) - len(absent)
    if worse:
        sys.exit("\n".join([f"{len(worse)} of {n} ratios are worse than those of version {kept['version']}:", *worse]))
    limits = " and ".join(f"{factor} times the {kind}" for kind, factor in FACTORS.items())
    print(f"none of {n} ratios is worse than those of version {kept['version']} by more than {limits}")


def main() -> None:
    """Run it."""
    parser = argument_parser(__doc__, "peers")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help=f"compare the new ratios with those of {KEPT.name}")
    action.add_argument("--keep", nargs="+", type=Path, metavar="RUN", help=f"measure nothing: make {KEPT.name} of these files")
    args: argparse.Namespace = parser.parse_args()
    if args.keep:
        kept = keep([json.loads(path.read_text()) for path in args.keep])
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        print(table(kept))
        return
    results = measure(None if args.data is None else Path(args.data))
    report(results["parts"])
    show("Ours over the peer's; less is better", ("", "ratio"), [(name, f"{of:.3g}") for name, of in results["ratios"].items()])
    write(args.out, results)
    if args.check:
        check(results["ratios"])


if __name__ == "__main__":
    main()
