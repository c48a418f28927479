"""Tables 2 and 3 of Glasmachers and Qaadan (2018): what the four merge searches score, cost and decide.

Table 2: test accuracy after 20 passes, beside the paper's. Table 3: training time that lookup saves over golden section search,
how often a row leads to a merge, how often a search decides as the precise one does, and by which factor the squared weight
degradation of its merges exceeds the least possible.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import PAPER, accuracies, argument_parser, load, progress, show, summary, write
from numba import njit

from streamsvm import BSGDClassifier, Merge
from streamsvm.core.budget.merge import merge_smallest
from streamsvm.core.budget.merge_search import GSS_PRECISE, SEARCHES, find_partner, find_position
from streamsvm.core.budget.merge_table import compute_degradation_compiled, load_tables
from streamsvm.core.budget.removal import find_smallest_coefficient
from streamsvm.core.budget.strategy import set_strategy
from streamsvm.core.memory.slots import compute_slot_kernels
from streamsvm.core.memory.support_vectors import views
from streamsvm.learners.bsgd import step

learn_one = step.learn_one  # of the rule, for compiled code
PARTS = ("accuracy", "time", "decisions")
TIMED = ("gss", "lookup-h", "lookup-wd")
AS_GOOD = 1e-4  # relative excess of the weight degradation below which two decisions are one as good as the other
TARGET = -0.3  # points by which the mean may fall short of the paper's

# Table 2: mean and deviation of 5 runs; the searches in the order of SEARCHES.
PAPER_ACCURACY = {
    ("skin", 100): ((99.629, 0.852), (99.621, 0.711), (99.621, 0.201), (99.617, 0.877)),
    ("skin", 200): ((99.877, 0.053), (99.868, 0.033), (99.855, 0.054), (99.754, 0.089)),
    ("ijcnn1", 100): ((96.807, 0.344), (97.141, 0.317), (97.132, 0.371), (97.130, 0.363)),
    ("ijcnn1", 500): ((98.055, 0.334), (98.138, 0.158), (98.113, 0.448), (98.070, 0.372)),
    ("a9a", 100): ((84.166, 0.701), (84.234, 0.883), (84.164, 0.988), (84.200, 0.798)),
    ("a9a", 500): ((83.739, 1.303), (84.280, 0.800), (83.836, 1.157), (83.949, 1.001)),
    ("w7a", 100): ((98.793, 0.027), (98.805, 0.026), (98.783, 0.045), (98.793, 0.039)),
    ("w7a", 500): ((98.781, 0.047), (98.809, 0.023), (98.799, 0.029), (98.807, 0.016)),
    ("phishing", 100): ((96.254, 0.301), (96.554, 0.158), (96.539, 0.242), (96.389, 0.371)),
    ("phishing", 500): ((97.517, 0.292), (97.555, 0.187), (97.518, 0.280), (97.525, 0.201)),
}  # fmt: skip

# Table 3: % of training time saved by lookup-h and by lookup-wd at the smaller and the larger budget; merging frequency %; equal
# decisions of gss and lookup-wd %; factors of gss and of lookup-wd.
PAPER_TABLE_3 = {
    "skin": ((20.5, 17.8), (14.2, 14.9), 16, 74.31, 1.00047, 1.00005),
    "ijcnn1": ((28.1, 30.4), (30.6, 29.9), 17, 91.79, 1.02429, 1.00149),
    "a9a": ((21.6, 18.5), (22.3, 22.3), 32, 92.54, 1.05064, 1.00402),
    "w7a": ((3.1, 5.6), (7.5, 0.5), 6, 93.77, 1.00255, 1.00039),
    "phishing": ((15.4, 13.9), (7.6, 10.9), 21, 96.96, 1.00055, 1.00008),
}

# Table 1: test accuracy of the exact SVM.
PAPER_EXACT = {"skin": 99.96, "ijcnn1": 98.77, "a9a": 84.82, "w7a": 98.81, "phishing": 97.55}


def classifier(name: str, rows: int, features: int, budget: int, search: str) -> BSGDClassifier:
    """The library's defaults, but for what the paper sets."""
    setting = PAPER[name]
    return BSGDClassifier(
        budget, gamma=setting.gamma, l2=setting.l2(rows), maintenance=Merge(search), scaling=None, max_features=features, seed=0
    )


def train(job: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """One run: so many passes, shuffled each; seconds are those inside ``learn_many``."""
    split = load(job["set"], data)
    model = classifier(job["set"], *split.X.shape, job["budget"], job["search"])
    rng = np.random.default_rng(job["seed"])
    seconds = 0.0
    for _ in range(job["passes"]):
        X, y = split.shuffled(rng)
        start = time.perf_counter()
        model.learn_many(X, y)
        seconds += time.perf_counter() - start
    return {
        **job,
        "seconds": seconds,
        "merging_frequency": model.n_merges / model.n_learned,
        **accuracies(model, split.X_test, split.y_test),
    }


# Table 2 --------------------------------------------------------------------------------------------------------------


def measure_accuracy(args: argparse.Namespace) -> list[dict[str, Any]]:
    jobs = [
        {"set": name, "budget": budget, "search": search, "seed": seed, "passes": args.passes}
        for search in args.searches
        for name in args.sets
        for budget in budgets(args, name)
        for seed in range(args.seeds)
    ]
    runs: list[dict[str, Any]] = []
    with multiprocessing.Pool(args.processes) as pool:
        waiting = [pool.apply_async(train, (job, args.data)) for job in jobs]
        for job in waiting:
            run = job.get()
            runs.append(run)
            write(args.out, {"accuracy": runs})  # what there is, should the rest be too long to wait for
            progress(f"accuracy {len(runs)}/{len(jobs)}: {label(run)} {run['auto']:.2f} % {run['seconds']:.1f} s")
    return runs


def exact_accuracies(args: argparse.Namespace) -> dict[str, float]:
    """Of LIBSVM with the same parameters on the same split: it says how much of a difference is the split's."""
    found = {}
    for name in set(args.exact) & set(args.sets):
        from sklearn.svm import SVC  # noqa: PLC0415 - an extra

        split, setting = load(name, args.data), PAPER[name]
        exact = SVC(C=setting.C, gamma=setting.gamma, cache_size=1000).fit(split.X, split.y)
        found[name] = 100.0 * float(exact.score(split.X_test, split.y_test))
        progress(f"exact SVM: {name} {found[name]:.2f} %")
    return found


def show_accuracy(args: argparse.Namespace, runs: list[dict[str, Any]], exact: dict[str, float]) -> None:
    rows = []
    for (name, budget), paper in PAPER_ACCURACY.items():
        for search, (mean, std) in zip(SEARCHES, paper, strict=True):
            chosen = of(runs, name, budget, search)
            if not chosen:
                continue
            ours, last = (summary([run[output] for run in chosen]) for output in ("auto", "last"))
            difference = ours["mean"] - mean
            rows.append(
                (
                    name,
                    budget,
                    search,
                    len(chosen),
                    f"{ours['mean']:.2f} ± {ours['std']:.2f}",
                    f"{mean:.2f} ± {std:.2f}",
                    f"{difference:+.2f}",
                    "yes" if difference >= TARGET else "NO",
                    f"{last['mean']:.2f} ± {last['std']:.2f}",
                    f"{exact[name]:.2f}" if name in exact else "-",
                    f"{PAPER_EXACT[name]:.2f}",
                )
            )
    columns = ("set", "B", "search", "runs", "accuracy %", "paper %", "difference", f">= {TARGET}", "last iterate %")
    title = f"Table 2: test accuracy after {args.passes} passes"
    show(title, (*columns, "exact SVM, this split", "paper's exact SVM"), rows)


def of(runs: list[dict[str, Any]], name: str, budget: int, search: str) -> list[dict[str, Any]]:
    return [run for run in runs if (run["set"], run["budget"], run["search"]) == (name, budget, search)]


def label(run: dict[str, Any]) -> str:
    return f"{run['set']} B={run['budget']} {run['search']}"


# Table 3 --------------------------------------------------------------------------------------------------------------


def measure_time(args: argparse.Namespace) -> list[dict[str, Any]]:
    runs = []
    searches = [search for search in args.searches if search != "gss-precise"]
    for name in args.sets:
        for budget in budgets(args, name):
            for repeat in range(-1, args.repeats):  # a short run before the first, which loads or compiles
                for search in searches:  # in turn, so that a busy moment of the machine meets all of them
                    passes = args.time_passes if repeat >= 0 else 1
                    run = train(
                        {"set": name, "budget": budget, "search": search, "seed": max(repeat, 0), "passes": passes}, args.data
                    )
                    if repeat >= 0:
                        runs.append(run)
                        progress(f"time: {label(run)} {run['seconds']:.2f} s")
    return runs


def show_time(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    rows = []
    for name in args.sets:
        published = PAPER_TABLE_3[name]
        for budget in budgets(args, name):
            chosen = {search: of(runs, name, budget, search) for search in SEARCHES}
            seconds = {search: summary([run["seconds"] for run in found]) for search, found in chosen.items() if found}
            frequency = [run["merging_frequency"] for found in chosen.values() for run in found]
            times = [
                " ".join(f"{seconds[s][key]:.2f}" for key in ("min", "median", "max")) if s in seconds else "-" for s in TIMED
            ]
            saved = [
                f"{100.0 * (1.0 - seconds[s]['median'] / seconds['gss']['median']):.1f}" if {s, "gss"} <= seconds.keys() else "-"
                for s in TIMED[1:]
            ]
            which = PAPER[name].budgets.index(budget) if budget in PAPER[name].budgets else None
            paper = published[which] if which is not None else ("-", "-")
            merges = (f"{100.0 * np.mean(frequency):.1f}", published[2] if which == 0 else "-")
            rows.append((name, budget, *times, saved[0], paper[0], saved[1], paper[1], *merges))
    columns = ("set", "B", *(f"{s} s" for s in TIMED), "h saves %", "paper", "wd saves %", "paper", "merges %", "paper")
    show(f"Table 3, training time: {args.time_passes} passes, min median max of {args.repeats}", columns, rows)


@njit
def first_and_distances(block: np.ndarray) -> int:
    """The support vector that would be merged, and the squared distances of all to it, into ``kernel_rows[3]``."""
    first = find_smallest_coefficient(block)
    compute_slot_kernels(block, first)
    return first


@njit
def decide(block: np.ndarray, tables: np.ndarray, first: int, search: int) -> tuple[int, float]:
    """A search's partner and the squared weight degradation of that merge at the position that the search finds."""
    v = views(block)
    h = v.header[0]
    coefficients, distances = v.coefficients[0], v.kernel_rows[3]
    partner = find_partner(block, search, tables, first)
    if partner < 0:
        return -1, 0.0
    smaller, larger = abs(coefficients[first]), max(abs(coefficients[partner]), abs(coefficients[first]))
    q = h["gamma"] * np.float64(distances[partner])
    position = find_position(search, tables, larger / (larger + smaller), q)
    return partner, compute_degradation_compiled(smaller**2, larger**2, smaller * larger, q, position)


@njit
def watch(
    block: np.ndarray,
    tables: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    every: int,
    partners: np.ndarray,
    losses: np.ndarray,
    at: int,
) -> tuple[int, int]:
    """A pass that stops at merge events: each search decides on the same store, that of the model's strategy merges.

    The row that is one too many is let in by a budget raised for the moment (the store has the room). Partners int64 [room, 4]
    and losses float64 [room, 4] are filled from row ``at`` with every so manyeth event. Returns the next row and the events.
    """
    v = views(block)
    h = v.header[0]
    budget, events = h["budget"], 0
    for i in range(X.shape[0]):
        v.rows[0, : X.shape[1]] = X[i]
        h["budget"] = budget + 1
        learn_one(block, y[i], 1.0)
        h["budget"] = budget
        if h["n_support"] > budget:
            events += 1
            if events % every == 0 and at < len(partners):
                first = first_and_distances(block)
                for search in range(4):
                    partners[at, search], losses[at, search] = decide(block, tables, first, search)
                at += 1
            merge_smallest(block, np.uint64(0))
    return at, events


def measure_decisions(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Along a run of lookup-wd, on a sample of its merge events."""
    found = []
    for name in args.sets:
        split = load(name, args.data)
        for budget in budgets(args, name):
            model = classifier(name, *split.X.shape, budget, "lookup-wd")
            rng = np.random.default_rng(0)
            X, y = split.shuffled(rng)
            model.learn_many(X[:1], y[:1])  # gives the features their columns
            set_strategy(model._store, Merge("lookup-wd"), False)
            partners, losses = np.zeros((args.events, 4), np.int64), np.ones((args.events, 4))
            at = events = rows = 0
            for _ in range(args.decision_passes):
                X, y = split.shuffled(rng)
                progress(f"decisions: {name} B={budget}, {at} events so far")
                at, more = watch(
                    model._block,
                    load_tables(),
                    X,
                    np.where(y, 1.0, -1.0),
                    args.event_every,
                    partners,
                    losses,
                    at,
                )
                events, rows = events + more, rows + len(y)
            partners, losses = partners[:at], losses[:at]
            real = (partners >= 0).all(axis=1)
            partners, losses = partners[real], losses[real]
            best = losses[:, GSS_PRECISE]
            # Twins merge at no loss: every search finds them, and there is no factor.
            factors = losses[best > 1e-300] / best[best > 1e-300, None]
            result: dict[str, Any] = {"set": name, "budget": budget, "events": len(partners), "all_events": events, "rows": rows}
            for search in SEARCHES:
                code = SEARCHES[search]
                result[search] = {
                    "equal_to_precise": float((partners[:, code] == partners[:, GSS_PRECISE]).mean()) if len(partners) else 1.0,
                    "as_good": float((losses[:, code] <= best * (1.0 + AS_GOOD) + 1e-300).mean()) if len(partners) else 1.0,
                    "factor": float(factors[:, code].mean()) if len(factors) else 1.0,
                    "largest_factor": float(factors[:, code].max()) if len(factors) else 1.0,
                }
            found.append(result)
    return found


def show_decisions(args: argparse.Namespace, decisions: list[dict[str, Any]]) -> None:
    rows = []
    for d in decisions:
        *_, equal, factor_gss, factor_wd = PAPER_TABLE_3[d["set"]]
        wd, h, gss = d["lookup-wd"], d["lookup-h"], d["gss"]
        rows.append(
            (
                d["set"],
                d["budget"],
                d["events"],
                *(f"{100.0 * of['equal_to_precise']:.2f}" for of in (wd, h, gss)),
                equal,
                f"{100.0 * wd['as_good']:.2f}",
                f"{wd['factor']:.6f}",
                factor_wd,
                f"{wd['largest_factor']:.5f}",
                f"{h['factor']:.6f}",
                f"{gss['factor']:.6f}",
                factor_gss,
            )
        )
    equal_columns = ("wd equal %", "h equal %", "gss equal %", "paper: wd = gss %", "wd as good %")
    columns = ("set", "B", "events", *equal_columns, "factor wd", "paper", "largest", "factor h", "factor gss", "paper")
    title = (
        f"Table 3, decisions equal to gss-precise, factor over its weight degradation: {args.decision_passes} passes of lookup-wd"
    )
    show(title, columns, rows)


def budgets(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    """The paper's budgets of a set, or those asked for."""
    return tuple(args.budgets or PAPER[name].budgets)


def main() -> None:
    parser = argument_parser(__doc__, "bsgd_merging")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sets", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--budgets", nargs="+", type=int, help="instead of the paper's")
    parser.add_argument("--seeds", type=int, default=5, help="runs of table 2")
    parser.add_argument("--passes", type=int, default=20, help="of table 2")
    parser.add_argument(
        "--exact", nargs="*", choices=PAPER, default=["phishing"], help="sets to fit an exact SVM to (skin is slow)"
    )
    parser.add_argument("--processes", type=int, default=2, help="of table 2; times are measured in one")
    parser.add_argument("--time-passes", type=int, default=20, help="of table 3's times")
    parser.add_argument("--repeats", type=int, default=3, help="of table 3's times")
    parser.add_argument("--decision-passes", type=int, default=5, help="of table 3's decisions")
    parser.add_argument("--event-every", type=int, default=20, help="merge events to each that is looked at")
    parser.add_argument("--events", type=int, default=100_000, help="merge events to look at, at most")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if "accuracy" in args.parts:
        results["accuracy"], results["exact"] = measure_accuracy(args), exact_accuracies(args)
        show_accuracy(args, results["accuracy"], results["exact"])
    if "time" in args.parts:
        results["time"] = measure_time(args)
        show_time(args, results["time"])
    if "decisions" in args.parts:
        results["decisions"] = measure_decisions(args)
        show_decisions(args, results["decisions"])
    write(args.out, results)


if __name__ == "__main__":
    main()
