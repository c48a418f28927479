"""Runs every learner with its defaults on every stream, prequentially: accuracy, probabilities, time, memory, mean ranks.

It runs all learners of this package and the usual ones of river; the peers of ``_peers.py`` run only if ``--learners`` names
them. The same scaler precedes all learners. Each run of a learner, a stream and a seed is saved in the JSON file, and not
repeated: an interrupted suite resumes. ``--again`` repeats runs whose code has changed. Run it on one core:
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
from _peers import list_versions
from _prequential import BLOCK, run_learner
from _ranks import compute_critical_difference, compute_friedman_p, compute_mean_ranks, plot_curves, plot_reliability
from _stream_learners import Learner, select_learners
from _streams import GROUPS, SCALERS, STREAMS, make_rows
from common import make_parser, print_table, report_progress, write_json

SAVE_SECONDS = 10.0  # between two writes of the JSON file
#: Digits after the decimal point of each metric.
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
CLASSIFICATION_METRICS = ("kappa", "kappa_temporal", "log_loss", "ece", "recovery")
COST_METRICS = ("microseconds", "p99", "slowest", "bytes")
HEADS = {"kappa_temporal": "kappa t", "class_ece": "class ece", "log_loss": "log loss", "microseconds": "us", "bytes": "most kB"}
MAX_PLOTTED_LEARNERS = 6  # the best ones of each stream

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
        """Its key in the JSON file, with all settings that influence the result."""
        rows = "all" if self.count is None else self.count
        scale = f"scaler {self.scaler}{', other units' if self.units else ''}"
        return f"{self.learner.name} | {self.stream} | seed {self.seed} | {rows} rows | {scale}"

    def run(self) -> dict[str, Any]:
        """Run the learner, and return its metrics."""
        stream = STREAMS[self.stream]
        rows = make_rows(self.stream, self.seed, self.count, self.data, self.scaler, self.units)
        return run_learner(self.learner, rows, self.seed, stream.regression, stream.changes)


def list_tasks(args: argparse.Namespace, learners: list[Learner]) -> list[Task]:
    """Return a task for each selected learner, stream and seed, in the order of streams; slow learners come last."""
    tasks = [
        Task(learner, name, seed, STREAMS[name].count(args.rows, args.whole), args.scaler, args.units, args.data)
        for name in args.streams
        for seed in range(args.seeds if STREAMS[name].seeded else 1)
        for learner in learners
        if learner.regression == STREAMS[name].regression
    ]
    return sorted(tasks, key=lambda task: task.learner.run_order)


def run_tasks(tasks: list[Task], jobs: int) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Run tasks in ``jobs`` processes, and yield each with its metrics when it is done."""
    if jobs == 1:
        yield from ((task, task.run()) for task in tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(task.run): task for task in tasks}
        try:
            yield from ((futures[future], future.result()) for future in as_completed(futures))
        finally:  # so that an interrupted suite does not start further tasks
            pool.shutdown(cancel_futures=True)


def read_runs(path: Path) -> Runs:
    """Return the runs in the JSON file of an earlier suite; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        runs: Runs = json.loads(path.read_text())["runs"]
    except (ValueError, KeyError):
        sys.exit(f"{path} was not written by this suite: name another file with --out")
    return runs


def save_runs(path: Path, runs: Runs) -> None:
    """Write all runs to the JSON file atomically."""
    part = path.with_suffix(".part")
    write_json(part, {"peers": list_versions(), "runs": runs})
    part.replace(path)


def run_all(tasks: list[Task], runs: Runs, args: argparse.Namespace) -> None:
    """Run the tasks whose results are not in ``runs`` (all tasks with ``--again``), and add and save the results."""
    missing = [task for task in tasks if args.again or task.key not in runs]
    saved = time.monotonic()
    try:
        for i, (task, result) in enumerate(run_tasks(missing, args.jobs), 1):
            runs[task.key] = {"learner": task.learner.name, "stream": task.stream, "seed": task.seed, **result}
            metric = "mae" if STREAMS[task.stream].regression else "accuracy"
            text = result.get("error") or f"{metric} {result[metric]:.3f}, {result['microseconds']:.1f} us"
            report_progress(f"{i}/{len(missing)} {task.stream} {task.seed}, {task.learner.name}: {text}")
            if time.monotonic() - saved > SAVE_SECONDS:
                save_runs(args.out, runs)
                saved = time.monotonic()
    finally:
        if missing:
            save_runs(args.out, runs)


# Tables ---------------------------------------------------------------------------------------------------------------


class Suite:
    """The results of the selected tasks, classification or regression, by learner and stream; tables have means over seeds."""

    def __init__(self, tasks: Iterable[Task], runs: Runs, regression: bool) -> None:
        self.results: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.regression = regression
        for task in tasks:
            if task.key in runs and STREAMS[task.stream].regression == regression:
                self.results.setdefault(task.learner.name, {}).setdefault(task.stream, []).append(runs[task.key])
        self.streams = [name for name in STREAMS if any(name in streams for streams in self.results.values())]
        self.score = "mae" if regression else "accuracy"
        # Only learners that have run on every stream can be ranked.
        self.ranked = [learner for learner, streams in self.results.items() if set(streams) == set(self.streams)]
        sign = -1.0 if regression else 1.0
        values = [[self.compute_mean(learner, name, self.score) for learner in self.ranked] for name in self.streams]
        scores = sign * np.array([[-sign * np.inf if value is None else value for value in row] for row in values])
        self.scores = scores.reshape(len(self.streams), len(self.ranked))
        self.ranks = self.compute_ranks(self.streams)
        self.order = sorted(self.results, key=lambda learner: (self.ranks.get(learner, np.inf), learner))

    def compute_ranks(self, streams: list[str]) -> dict[str, float]:
        """Return the mean rank of each learner over some of the streams."""
        rows = [i for i, name in enumerate(self.streams) if name in streams]
        return dict(zip(self.ranked, compute_mean_ranks(self.scores[rows]).tolist(), strict=True)) if rows and self.ranked else {}

    def list_half(self, half: str) -> list[str]:
        """Return the names of the streams in half A or B."""
        return [name for name in self.streams if STREAMS[name].half == half]

    def compute_mean(self, learner: str, stream: str, metric: str) -> float | None:
        """Return the mean of a metric over the seeds; None if a run failed or lacks the metric."""
        values = [result.get(metric) for result in self.results[learner].get(stream, [])]
        return None if not values or None in values else float(np.mean(values))

    def format_over_streams(self, learner: str, metric: str) -> str:
        """Format the mean of a metric over the streams that have it; the maximum of costs, the median of kappa_temporal."""
        values = [self.compute_mean(learner, stream, metric) for stream in self.streams]
        valid_values = [value for value in values if value is not None]
        if not valid_values:
            return "-"
        if metric == "bytes":
            return f"{max(valid_values) / 1e3:.0f}"
        if metric == "slowest":
            return f"{max(valid_values):.0f}"
        # On streams with long runs of equal labels, kappa_temporal is far below zero, and would dominate a mean.
        return f"{np.median(valid_values) if metric == 'kappa_temporal' else np.mean(valid_values):.{DIGITS[metric]}f}"

    def format_cell(self, learner: str, stream: str, metric: str) -> str:
        """Format the mean of a metric on a stream, with the standard deviation over the seeds."""
        value = self.compute_mean(learner, stream, metric)
        if value is not None:
            runs, digits = self.results[learner][stream], DIGITS[metric]
            spread = statistics.stdev(result[metric] for result in runs) if len(runs) > 1 and metric not in COST_METRICS else None
            return f"{value:.{digits}f}" if spread is None else f"{value:.{digits}f} ± {spread:.{digits}f}"
        return "failed" if any("error" in result for result in self.results[learner].get(stream, [])) else "-"

    def list_errors(self) -> list[tuple[str, str, str]]:
        """Return learner, stream and error message of each failed run."""
        return [
            (learner, stream, str(result["error"]))
            for learner, streams in self.results.items()
            for stream, results in streams.items()
            for result in results
            if "error" in result
        ]

    def make_summary(self) -> dict[str, Any]:
        """Return mean ranks and the tests of their differences."""
        n_streams, n_learners = self.scores.shape
        enough = n_learners > 1 and n_streams > 0
        return {
            "streams": self.streams,
            "mean ranks": {learner: self.ranks[learner] for learner in self.order if learner in self.ranks},
            "critical difference": compute_critical_difference(n_learners, n_streams) if enough else None,
            "friedman p": compute_friedman_p(self.scores),
        }


def print_suite(suite: Suite, metrics: list[str]) -> None:
    """Print a table with a line for each learner, and for each metric a table by stream."""
    if not suite.results:
        return
    summary = suite.make_summary()
    difference, friedman_p = summary["critical difference"], summary["friedman p"]
    columns = [suite.score, *(("r2",) if suite.regression else CLASSIFICATION_METRICS), *COST_METRICS]
    kind = "Regression" if suite.regression else "Classification"
    title = f"{kind}: mean ranks of {len(suite.ranked)} learners over {len(suite.streams)} streams and its halves; means"
    if difference is not None:
        title += f". Critical difference of ranks (Nemenyi, 5 %): {difference:.2f}"
    if friedman_p is not None:
        title += f", Friedman p = {friedman_p:.1g}"
    rows = []
    ranks = [suite.ranks, suite.compute_ranks(suite.list_half("A")), suite.compute_ranks(suite.list_half("B"))]
    for learner in suite.order:
        failed = sum("error" in result for results in suite.results[learner].values() for result in results)
        cells = [f"{ranks_by_learner[learner]:.2f}" if learner in ranks_by_learner else "-" for ranks_by_learner in ranks]
        rows.append((learner, *cells, *(suite.format_over_streams(learner, metric) for metric in columns), failed or ""))
    names = [HEADS.get(name, name) for name in columns]
    print_table(title, ("learner", "rank", "A", "B", *names, "failed"), rows)
    for metric in metrics:
        for half in ("A", "B"):
            streams = suite.list_half(half)
            if all(suite.compute_mean(learner, stream, metric) is None for learner in suite.results for stream in streams):
                continue
            cells = [(learner, *(suite.format_cell(learner, stream, metric) for stream in streams)) for learner in suite.order]
            print_table(f"{metric}, half {half}", ("learner", *streams), cells)
    if failures := suite.list_errors():
        print_table("Failed: on which stream, at which row", ("learner", "stream", "error"), failures)


def plot_suite(suite: Suite, folder: Path) -> None:
    """Save plots for the first seed: the best learners of each stream and the no-change classifier over time, and reliability."""
    curves: dict[str, dict[str, list[float]]] = {}
    points: dict[str, dict[str, Any]] = {}
    for stream in suite.streams:
        values = {learner: suite.compute_mean(learner, stream, suite.score) for learner in suite.results}
        valid_scores = {learner: value for learner, value in values.items() if value is not None}
        best = sorted(valid_scores, key=lambda learner: valid_scores[learner], reverse=not suite.regression)[
            :MAX_PLOTTED_LEARNERS
        ]
        plotted = [*best, *(name for name in ("river NoChangeClassifier",) if name in valid_scores and name not in best)]
        curves[stream] = {
            f"{learner} {valid_scores[learner]:.2f}": suite.results[learner][stream][0]["over_time"] for learner in plotted
        }
        first = {learner: suite.results[learner][stream][0] for learner in best}
        points[stream] = {learner: run["reliability"] for learner, run in first.items() if "reliability" in run}
    try:
        plot_curves(curves, BLOCK, suite.score, folder)
        plot_reliability(points, folder)
    except ImportError:
        sys.exit("plots need matplotlib: pip install matplotlib")


def parse_arguments() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = make_parser(__doc__, "streams")
    parser.add_argument(
        "--learners",
        nargs="+",
        default=["all"],
        help="all, ours, river, fast, peers, capymoa, vw, heavy, names, 'Name(parameter=value)'",
    )
    words = [*GROUPS, *STREAMS]
    parser.add_argument("--streams", nargs="+", choices=words, default=["all"], metavar="NAME", help=", ".join(words))
    parser.add_argument("--half", choices=("A", "B"), help="only the streams of this half")
    parser.add_argument("--rows", type=int, help="rows of each stream; default: 10,000, or 12,000 of a generator with drift")
    parser.add_argument("--whole", action="store_true", help="all rows of data files")
    parser.add_argument("--seeds", type=int, default=5, help="shuffles, or seeds of generators; streams in order have one")
    parser.add_argument(
        "--scaler", choices=SCALERS, default="standard", help="before every learner: river's, the library's, none"
    )
    parser.add_argument(
        "--units", action="store_true", help="multiply each feature by a random factor of 1e-3 to 1e3, and shift it"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--again", action="store_true", help="repeat runs that are in the JSON file")
    parser.add_argument("--show", action="store_true", help="only print tables of the runs in the JSON file")
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
        parser.error(f"no selected stream is in half {args.half}")
    return args


def main() -> None:
    """Run the suite, print its tables and save its plots."""
    args = parse_arguments()
    try:
        learners = select_learners(args.learners)
    except ValueError as error:
        sys.exit(str(error))
    tasks, runs = list_tasks(args, learners), read_runs(args.out)
    if not args.show:
        try:
            run_all(tasks, runs, args)
        except KeyboardInterrupt:
            sys.exit(f"interrupted; run the same command again to resume from {args.out}")
    for regression in (False, True):
        suite = Suite(tasks, runs, regression)
        print_suite(suite, args.metrics)
        if args.plots and suite.results:
            plot_suite(suite, args.plots)


if __name__ == "__main__":
    main()
