"""Every learner with its defaults on every stream, prequentially: accuracy, probabilities, time, memory, mean ranks.

Ours are found by looking; river's are those that one would compare with, and so are the peers of ``_peers.py``, which must be
asked for. The same scaler stands before all of them. Each run of a learner, a stream and a seed is written to the JSON file when
it is done, and not run again: an interrupted suite goes on, and ``--again`` repeats what has changed. Run it on one core:
``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/streams.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _peers import versions
from _prequential import BLOCK, run
from _ranks import critical_difference, friedman, mean_ranks, plot, plot_reliability
from _stream_learners import Learner, select
from _streams import GROUPS, SCALERS, STREAMS, rows_of
from common import argument_parser, progress, show, write

SAVE_EVERY = 10.0  # seconds
#: Digits of the metrics.
DIGITS = {
    "accuracy": 2,
    "kappa": 1,
    "kappa_temporal": 1,
    "log_loss": 3,
    "ece": 3,
    "class_ece": 4,
    "recovery": 1,
    "mae": 3,
    "r2": 3,
    "microseconds": 1,
    "p99": 1,
    "slowest": 0,
    "bytes": 0,
}
OF_LABELS = ("kappa", "kappa_temporal", "log_loss", "ece", "recovery")
COSTS = ("microseconds", "p99", "slowest", "bytes")
HEADS = {"kappa_temporal": "kappa t", "class_ece": "class ece", "log_loss": "log loss", "microseconds": "us", "bytes": "most kB"}
PLOTTED = 6  # learners of a plot

Runs = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """One learner on one stream with one seed."""

    learner: Learner
    stream: str
    seed: int
    count: int | None
    scaler: str
    units: bool
    data: Path | None

    @property
    def key(self) -> str:
        """Its name in the JSON file: whatever changes the result is in it, but for the code."""
        rows = "all" if self.count is None else self.count
        scale = f"scaler {self.scaler}{', other units' if self.units else ''}"
        return f"{self.learner.name} | {self.stream} | seed {self.seed} | {rows} rows | {scale}"

    def run(self) -> dict[str, Any]:
        """Its metrics."""
        stream = STREAMS[self.stream]
        rows = rows_of(self.stream, self.seed, self.count, self.data, self.scaler, self.units)
        return run(self.learner, rows, self.seed, stream.regression, stream.changes)


def tasks_of(args: argparse.Namespace, learners: list[Learner]) -> list[Task]:
    """All that was asked for, stream by stream; slow learners come last."""
    tasks = [
        Task(learner, name, seed, STREAMS[name].count(args.rows, args.whole), args.scaler, args.units, args.data)
        for name in args.streams
        for seed in range(args.seeds if STREAMS[name].seeded else 1)
        for learner in learners
        if learner.regression == STREAMS[name].regression
    ]
    return sorted(tasks, key=lambda task: task.learner.order)


def results_of(tasks: list[Task], jobs: int) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Run tasks, several at a time if asked for; their results as they come."""
    if jobs == 1:
        yield from ((task, task.run()) for task in tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(task.run): task for task in tasks}
        try:
            yield from ((futures[future], future.result()) for future in as_completed(futures))
        finally:  # an interrupted suite does not start the rest
            pool.shutdown(cancel_futures=True)


def read(path: Path) -> Runs:
    """The runs of an earlier suite."""
    if not path.is_file():
        return {}
    try:
        found: Runs = json.loads(path.read_text())["runs"]
    except (ValueError, KeyError):
        sys.exit(f"{path} is no file of this suite: name another with --out")
    return found


def save(path: Path, runs: Runs) -> None:
    """Write all runs; a suite that is killed here leaves the former file."""
    part = path.with_suffix(".part")
    write(part, {"peers": versions(), "runs": runs})
    part.replace(path)


def run_all(tasks: list[Task], runs: Runs, args: argparse.Namespace) -> None:
    """Run what has not been run yet."""
    missing = [task for task in tasks if args.again or task.key not in runs]
    saved = time.monotonic()
    try:
        for i, (task, result) in enumerate(results_of(missing, args.jobs), 1):
            runs[task.key] = {"learner": task.learner.name, "stream": task.stream, "seed": task.seed, **result}
            metric = "mae" if STREAMS[task.stream].regression else "accuracy"
            text = result.get("error") or f"{metric} {result[metric]:.3f}, {result['microseconds']:.1f} us"
            progress(f"{i}/{len(missing)} {task.stream} {task.seed}, {task.learner.name}: {text}")
            if time.monotonic() - saved > SAVE_EVERY:
                save(args.out, runs)
                saved = time.monotonic()
    finally:
        if missing:
            save(args.out, runs)


# Tables ---------------------------------------------------------------------------------------------------------------


class Suite:
    """The runs that were asked for, by learner and stream, as means over seeds."""

    def __init__(self, tasks: Iterable[Task], runs: Runs, regression: bool) -> None:
        self.of: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.regression = regression
        for task in tasks:
            if task.key in runs and STREAMS[task.stream].regression == regression:
                self.of.setdefault(task.learner.name, {}).setdefault(task.stream, []).append(runs[task.key])
        self.streams = [name for name in STREAMS if any(name in streams for streams in self.of.values())]
        self.score = "mae" if regression else "accuracy"
        # Learners that have not met every stream have no rank.
        self.ranked = [learner for learner, streams in self.of.items() if set(streams) == set(self.streams)]
        sign = -1.0 if regression else 1.0
        values = [[self.value(learner, name, self.score) for learner in self.ranked] for name in self.streams]
        scores = sign * np.array([[-sign * np.inf if value is None else value for value in row] for row in values])
        self.scores = scores.reshape(len(self.streams), len(self.ranked))
        self.ranks = self.ranks_on(self.streams)
        self.order = sorted(self.of, key=lambda learner: (self.ranks.get(learner, np.inf), learner))

    def ranks_on(self, streams: list[str]) -> dict[str, float]:
        """Mean ranks over some of the streams."""
        rows = [i for i, name in enumerate(self.streams) if name in streams]
        return dict(zip(self.ranked, mean_ranks(self.scores[rows]).tolist(), strict=True)) if rows and self.ranked else {}

    def half(self, half: str) -> list[str]:
        """The streams of half A or B."""
        return [name for name in self.streams if STREAMS[name].half == half]

    def value(self, learner: str, stream: str, metric: str) -> float | None:
        """A metric's mean over the seeds; None if a run failed or has no such metric."""
        found = [result.get(metric) for result in self.of[learner].get(stream, [])]
        return None if not found or None in found else float(np.mean(found))

    def over_streams(self, learner: str, metric: str) -> str:
        """A metric over the streams that the learner has it for: the mean, or what says more."""
        values = [self.value(learner, stream, metric) for stream in self.streams]
        known = [value for value in values if value is not None]
        if not known:
            return "-"
        if metric == "bytes":
            return f"{max(known) / 1e3:.0f}"
        if metric == "slowest":
            return f"{max(known):.0f}"
        # Where labels come in long runs, kappa_temporal is thousands below zero, and a mean is that of one stream.
        return f"{np.median(known) if metric == 'kappa_temporal' else np.mean(known):.{DIGITS[metric]}f}"

    def cell(self, learner: str, stream: str, metric: str) -> str:
        """A value of a table, with the standard deviation over the seeds."""
        value = self.value(learner, stream, metric)
        if value is not None:
            runs, digits = self.of[learner][stream], DIGITS[metric]
            spread = statistics.stdev(result[metric] for result in runs) if len(runs) > 1 and metric not in COSTS else None
            return f"{value:.{digits}f}" if spread is None else f"{value:.{digits}f} ± {spread:.{digits}f}"
        return "failed" if any("error" in result for result in self.of[learner].get(stream, [])) else "-"

    def errors(self) -> list[tuple[str, str, str]]:
        """Which runs failed, and how."""
        return [
            (learner, stream, str(result["error"]))
            for learner, streams in self.of.items()
            for stream, results in streams.items()
            for result in results
            if "error" in result
        ]

    def summary(self) -> dict[str, Any]:
        """Mean ranks, as the JSON file has them."""
        n_streams, n_learners = self.scores.shape
        enough = n_learners > 1 and n_streams > 0
        return {
            "streams": self.streams,
            "mean ranks": {learner: self.ranks[learner] for learner in self.order if learner in self.ranks},
            "critical difference": critical_difference(n_learners, n_streams) if enough else None,
            "friedman p": friedman(self.scores),
        }


def print_suite(suite: Suite, metrics: list[str]) -> None:
    """One line a learner, and tables for each stream."""
    if not suite.of:
        return
    found = suite.summary()
    difference, p = found["critical difference"], found["friedman p"]
    columns = [suite.score, *(("r2",) if suite.regression else OF_LABELS), *COSTS]
    kind = "Regression" if suite.regression else "Classification"
    title = f"{kind}: mean ranks of {len(suite.ranked)} learners over {len(suite.streams)} streams and its halves; means"
    if difference is not None:
        title += f". Critical difference of ranks (Nemenyi, 5 %): {difference:.2f}"
    if p is not None:
        title += f", Friedman p = {p:.1g}"
    rows = []
    ranks = [suite.ranks, suite.ranks_on(suite.half("A")), suite.ranks_on(suite.half("B"))]
    for learner in suite.order:
        failed = sum("error" in result for results in suite.of[learner].values() for result in results)
        cells = [f"{of[learner]:.2f}" if learner in of else "-" for of in ranks]
        rows.append((learner, *cells, *(suite.over_streams(learner, metric) for metric in columns), failed or ""))
    names = [HEADS.get(name, name) for name in columns]
    show(title, ("learner", "rank", "A", "B", *names, "failed"), rows)
    for metric in metrics:
        for half in ("A", "B"):
            streams = suite.half(half)
            if all(suite.value(learner, stream, metric) is None for learner in suite.of for stream in streams):
                continue
            cells = [(learner, *(suite.cell(learner, stream, metric) for stream in streams)) for learner in suite.order]
            show(f"{metric}, half {half}", ("learner", *streams), cells)
    if failures := suite.errors():
        show("Failed: on which stream, at which row", ("learner", "stream", "error"), failures)


def plot_suite(suite: Suite, folder: Path) -> None:
    """Plots over time of the best of each stream, and of what predicts the last label, and their reliability; the first seed."""
    curves: dict[str, dict[str, list[float]]] = {}
    points: dict[str, dict[str, Any]] = {}
    for stream in suite.streams:
        values = {learner: suite.value(learner, stream, suite.score) for learner in suite.of}
        known = {learner: value for learner, value in values.items() if value is not None}
        best = sorted(known, key=lambda learner: known[learner], reverse=not suite.regression)[:PLOTTED]
        shown = [*best, *(name for name in ("river NoChangeClassifier",) if name in known and name not in best)]
        curves[stream] = {f"{learner} {known[learner]:.2f}": suite.of[learner][stream][0]["over_time"] for learner in shown}
        first = {learner: suite.of[learner][stream][0] for learner in best}
        points[stream] = {learner: run["reliability"] for learner, run in first.items() if "reliability" in run}
    try:
        plot(curves, BLOCK, suite.score, folder)
        plot_reliability(points, folder)
    except ImportError:
        sys.exit("plots need matplotlib: pip install matplotlib")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__, "streams")
    parser.add_argument(
        "--learners",
        nargs="+",
        default=["all"],
        help="all, ours, river, fast, peers, capymoa, vw, heavy, names, 'Name(parameter=value)'",
    )
    words = [*GROUPS, *STREAMS]
    parser.add_argument("--streams", nargs="+", choices=words, default=["all"], metavar="NAME", help=", ".join(words))
    parser.add_argument("--half", choices=("A", "B"), help="only the streams of this half")
    parser.add_argument("--rows", type=int, help="of each stream; else 10,000, or 12,000 of a generator with drift")
    parser.add_argument("--whole", action="store_true", help="all rows of data files")
    parser.add_argument("--seeds", type=int, default=5, help="shuffles, or seeds of generators; streams in order have one")
    parser.add_argument(
        "--scaler", choices=SCALERS, default="standard", help="before every learner: river's, the library's, none"
    )
    parser.add_argument("--units", action="store_true", help="each feature times a random factor of 1e-3 to 1e3, and shifted")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--again", action="store_true", help="run what was asked for even if the JSON file has it")
    parser.add_argument("--show", action="store_true", help="run nothing: tables of what the JSON file has")
    parser.add_argument(
        "--metrics", nargs="*", choices=DIGITS, default=["accuracy", "log_loss", "mae", "microseconds"], help="tables by stream"
    )
    parser.add_argument("--plots", type=Path, help="folder for plots over time, and of the reliability of probabilities")
    args = parser.parse_args()
    if (args.rows is not None and args.rows < 100) or args.seeds < 1 or args.jobs < 1:
        parser.error("--rows must be at least 100, --seeds and --jobs 1")
    if args.rows is not None and args.whole:
        parser.error("--rows and --whole exclude each other")
    asked = {name for word in args.streams for name in GROUPS.get(word, [word])}
    args.streams = [name for name in STREAMS if name in asked and args.half in (None, STREAMS[name].half)]
    if not args.streams:
        parser.error(f"none of these streams is in half {args.half}")
    return args


def main() -> None:
    """Run it."""
    args = arguments()
    try:
        learners = select(args.learners)
    except ValueError as error:
        sys.exit(str(error))
    tasks, runs = tasks_of(args, learners), read(args.out)
    if not args.show:
        try:
            run_all(tasks, runs, args)
        except KeyboardInterrupt:
            sys.exit(f"interrupted; the same command goes on from {args.out}")
    for regression in (False, True):
        suite = Suite(tasks, runs, regression)
        print_suite(suite, args.metrics)
        if args.plots and suite.of:
            plot_suite(suite, args.plots)


if __name__ == "__main__":
    main()
