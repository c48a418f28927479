"""Repeats tables 2 and 3 of Glasmachers and Qaadan (2018): accuracy, time and decisions of the four merge searches.

Table 2: test accuracy after 20 passes, beside the paper's. Table 3: training time that lookup saves over golden section search,
how often a row leads to a merge, how often a search chooses the same partner as the precise one, and the ratio of the squared
weight degradation of its merges to the minimum.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import PAPER, compute_accuracies, load_split, make_parser, print_table, report_progress, summarise, write_json
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

learn_one = step.learn_one  # the compiled function of the rule
PARTS = ("accuracy", "time", "decisions")
TIMED_SEARCHES = ("gss", "lookup-h", "lookup-wd")
TIE_TOLERANCE = 1e-4  # two decisions are equally good below this relative difference of their weight degradations
MIN_DIFFERENCE = -0.3  # least difference of the mean accuracy to the paper's, in points

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


def make_classifier(name: str, rows: int, features: int, budget: int, search: str) -> BSGDClassifier:
    """Return a classifier with the paper's parameters for a data set, and the library's defaults for the others."""
    setting = PAPER[name]
    return BSGDClassifier(
        budget,
        gamma=setting.gamma,
        l2=setting.compute_l2(rows),
        maintenance=Merge(search),
        scaling=None,
        max_features=features,
        seed=0,
    )


def train_job(job: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """Train and test one classifier; each pass has a new order of rows. The seconds are those of ``learn_many`` alone."""
    split = load_split(job["set"], data)
    model = make_classifier(job["set"], *split.X.shape, job["budget"], job["search"])
    rng = np.random.default_rng(job["seed"])
    seconds = 0.0
    for _ in range(job["passes"]):
        X, y = split.shuffle_rows(rng)
        start = time.perf_counter()
        model.learn_many(X, y)
        seconds += time.perf_counter() - start
    return {
        **job,
        "seconds": seconds,
        "merging_frequency": model.n_merges / model.n_learned,
        **compute_accuracies(model, split.X_test, split.y_test),
    }


# Table 2 --------------------------------------------------------------------------------------------------------------


def measure_accuracy(args: argparse.Namespace) -> list[dict[str, Any]]:
    jobs = [
        {"set": name, "budget": budget, "search": search, "seed": seed, "passes": args.passes}
        for search in args.searches
        for name in args.sets
        for budget in list_budgets(args, name)
        for seed in range(args.seeds)
    ]
    runs: list[dict[str, Any]] = []
    with multiprocessing.Pool(args.processes) as pool:
        waiting = [pool.apply_async(train_job, (job, args.data)) for job in jobs]
        for job in waiting:
            run = job.get()
            runs.append(run)
            write_json(args.out, {"accuracy": runs})  # so that an interrupted run leaves its results so far
            report_progress(f"accuracy {len(runs)}/{len(jobs)}: {describe_run(run)} {run['auto']:.2f} % {run['seconds']:.1f} s")
    return runs


def fit_exact(args: argparse.Namespace) -> dict[str, float]:
    """Return the test accuracies of LIBSVM with the same parameters and split, to show the effect of the split."""
    accuracies = {}
    for name in set(args.exact) & set(args.sets):
        from sklearn.svm import SVC  # noqa: PLC0415 - an extra

        split, setting = load_split(name, args.data), PAPER[name]
        exact = SVC(C=setting.C, gamma=setting.gamma, cache_size=1000).fit(split.X, split.y)
        accuracies[name] = 100.0 * float(exact.score(split.X_test, split.y_test))
        report_progress(f"exact SVM: {name} {accuracies[name]:.2f} %")
    return accuracies


def show_accuracy(args: argparse.Namespace, runs: list[dict[str, Any]], exact: dict[str, float]) -> None:
    rows = []
    for (name, budget), paper in PAPER_ACCURACY.items():
        for search, (mean, std) in zip(SEARCHES, paper, strict=True):
            chosen = select_runs(runs, name, budget, search)
            if not chosen:
                continue
            ours, last = (summarise([run[output] for run in chosen]) for output in ("auto", "last"))
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
                    "yes" if difference >= MIN_DIFFERENCE else "NO",
                    f"{last['mean']:.2f} ± {last['std']:.2f}",
                    f"{exact[name]:.2f}" if name in exact else "-",
                    f"{PAPER_EXACT[name]:.2f}",
                )
            )
    columns = ("set", "B", "search", "runs", "accuracy %", "paper %", "difference", f">= {MIN_DIFFERENCE}", "last iterate %")
    title = f"Table 2: test accuracy after {args.passes} passes"
    print_table(title, (*columns, "exact SVM, this split", "paper's exact SVM"), rows)


def select_runs(runs: list[dict[str, Any]], name: str, budget: int, search: str) -> list[dict[str, Any]]:
    return [run for run in runs if (run["set"], run["budget"], run["search"]) == (name, budget, search)]


def describe_run(run: dict[str, Any]) -> str:
    return f"{run['set']} B={run['budget']} {run['search']}"


# Table 3 --------------------------------------------------------------------------------------------------------------


def measure_time(args: argparse.Namespace) -> list[dict[str, Any]]:
    runs = []
    searches = [search for search in args.searches if search != "gss-precise"]
    for name in args.sets:
        for budget in list_budgets(args, name):
            for repeat in range(-1, args.repeats):  # a short run before the first, which loads or compiles
                for search in searches:  # in turn, so that a busy moment of the machine meets all of them
                    passes = args.time_passes if repeat >= 0 else 1
                    run = train_job(
                        {"set": name, "budget": budget, "search": search, "seed": max(repeat, 0), "passes": passes}, args.data
                    )
                    if repeat >= 0:
                        runs.append(run)
                        report_progress(f"time: {describe_run(run)} {run['seconds']:.2f} s")
    return runs


def show_time(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    rows = []
    for name in args.sets:
        published = PAPER_TABLE_3[name]
        for budget in list_budgets(args, name):
            chosen = {search: select_runs(runs, name, budget, search) for search in SEARCHES}
            seconds = {
                search: summarise([run["seconds"] for run in search_runs])
                for search, search_runs in chosen.items()
                if search_runs
            }
            frequency = [run["merging_frequency"] for search_runs in chosen.values() for run in search_runs]
            times = [
                " ".join(f"{seconds[s][key]:.2f}" for key in ("min", "median", "max")) if s in seconds else "-"
                for s in TIMED_SEARCHES
            ]
            saved = [
                f"{100.0 * (1.0 - seconds[s]['median'] / seconds['gss']['median']):.1f}" if {s, "gss"} <= seconds.keys() else "-"
                for s in TIMED_SEARCHES[1:]
            ]
            budget_index = PAPER[name].budgets.index(budget) if budget in PAPER[name].budgets else None
            paper = published[budget_index] if budget_index is not None else ("-", "-")
            merges = (f"{100.0 * np.mean(frequency):.1f}", published[2] if budget_index == 0 else "-")
            rows.append((name, budget, *times, saved[0], paper[0], saved[1], paper[1], *merges))
    columns = ("set", "B", *(f"{s} s" for s in TIMED_SEARCHES), "h saves %", "paper", "wd saves %", "paper", "merges %", "paper")
    print_table(f"Table 3, training time: {args.time_passes} passes, min median max of {args.repeats}", columns, rows)


@njit
def find_first(block: np.ndarray) -> int:
    """Return the support vector to merge, and write the squared distances of all others to it into ``kernel_rows[3]``."""
    first = find_smallest_coefficient(block)
    compute_slot_kernels(block, first)
    return first


@njit
def find_merge(block: np.ndarray, tables: np.ndarray, first: int, search: int) -> tuple[int, float]:
    """Return the partner that a search chooses (-1: none), and the squared weight degradation of that merge."""
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
def watch_pass(
    block: np.ndarray,
    tables: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    every: int,
    partners: np.ndarray,
    losses: np.ndarray,
    n_sampled: int,
) -> tuple[int, int]:
    """Learn rows, and at every ``every``-th merge event record the decision of each search; lookup-wd makes the merges.

    To stop at merge events, the budget is raised by one while a row is learned (the store has a spare slot). Decisions are
    written to ``partners`` int64 [n, 4] and ``losses`` float64 [n, 4] from row ``n_sampled`` on. Returns the new ``n_sampled``
    and the number of all events.
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
            if events % every == 0 and n_sampled < len(partners):
                first = find_first(block)
                for search in range(4):
                    partners[n_sampled, search], losses[n_sampled, search] = find_merge(block, tables, first, search)
                n_sampled += 1
            merge_smallest(block, np.uint64(0))
    return n_sampled, events


def measure_decisions(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the decisions of all searches on a sample of the merge events of lookup-wd, for each set and budget."""
    results = []
    for name in args.sets:
        split = load_split(name, args.data)
        for budget in list_budgets(args, name):
            model = make_classifier(name, *split.X.shape, budget, "lookup-wd")
            rng = np.random.default_rng(0)
            X, y = split.shuffle_rows(rng)
            model.learn_many(X[:1], y[:1])  # assigns the columns of features
            set_strategy(model._store, Merge("lookup-wd"), False)
            partners, losses = np.zeros((args.events, 4), np.int64), np.ones((args.events, 4))
            n_sampled = events = rows = 0
            for _ in range(args.decision_passes):
                X, y = split.shuffle_rows(rng)
                report_progress(f"decisions: {name} B={budget}, {n_sampled} events so far")
                n_sampled, n_events = watch_pass(
                    model._block,
                    load_tables(),
                    X,
                    np.where(y, 1.0, -1.0),
                    args.event_every,
                    partners,
                    losses,
                    n_sampled,
                )
                events, rows = events + n_events, rows + len(y)
            partners, losses = partners[:n_sampled], losses[:n_sampled]
            has_partner = (partners >= 0).all(axis=1)
            partners, losses = partners[has_partner], losses[has_partner]
            best = losses[:, GSS_PRECISE]
            # Merges of equal vectors lose nothing: every search finds them, and the ratio is undefined.
            factors = losses[best > 1e-300] / best[best > 1e-300, None]
            result: dict[str, Any] = {"set": name, "budget": budget, "events": len(partners), "all_events": events, "rows": rows}
            for search in SEARCHES:
                code = SEARCHES[search]
                result[search] = {
                    "equal_to_precise": float((partners[:, code] == partners[:, GSS_PRECISE]).mean()) if len(partners) else 1.0,
                    "as_good": float((losses[:, code] <= best * (1.0 + TIE_TOLERANCE) + 1e-300).mean()) if len(partners) else 1.0,
                    "factor": float(factors[:, code].mean()) if len(factors) else 1.0,
                    "largest_factor": float(factors[:, code].max()) if len(factors) else 1.0,
                }
            results.append(result)
    return results


def show_decisions(args: argparse.Namespace, decisions: list[dict[str, Any]]) -> None:
    rows = []
    for result in decisions:
        *_, equal, factor_gss, factor_wd = PAPER_TABLE_3[result["set"]]
        wd, h, gss = result["lookup-wd"], result["lookup-h"], result["gss"]
        rows.append(
            (
                result["set"],
                result["budget"],
                result["events"],
                *(f"{100.0 * decision['equal_to_precise']:.2f}" for decision in (wd, h, gss)),
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
    print_table(title, columns, rows)


def list_budgets(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    """Return the budgets of ``--budgets``, or the paper's budgets of a set."""
    return tuple(args.budgets or PAPER[name].budgets)


def main() -> None:
    parser = make_parser(__doc__, "bsgd_merging")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sets", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--budgets", nargs="+", type=int, help="budgets in place of the paper's")
    parser.add_argument("--seeds", type=int, default=5, help="runs for table 2")
    parser.add_argument("--passes", type=int, default=20, help="passes for table 2")
    parser.add_argument(
        "--exact", nargs="*", choices=PAPER, default=["phishing"], help="sets to fit an exact SVM to (skin is slow)"
    )
    parser.add_argument("--processes", type=int, default=2, help="processes for table 2; times are measured in one")
    parser.add_argument("--time-passes", type=int, default=20, help="passes for the times of table 3")
    parser.add_argument("--repeats", type=int, default=3, help="runs for the times of table 3")
    parser.add_argument("--decision-passes", type=int, default=5, help="passes for the decisions of table 3")
    parser.add_argument("--event-every", type=int, default=20, help="compare the searches at one merge event of this many")
    parser.add_argument("--events", type=int, default=100_000, help="maximum number of compared merge events")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if "accuracy" in args.parts:
        results["accuracy"], results["exact"] = measure_accuracy(args), fit_exact(args)
        show_accuracy(args, results["accuracy"], results["exact"])
    if "time" in args.parts:
        results["time"] = measure_time(args)
        show_time(args, results["time"])
    if "decisions" in args.parts:
        results["decisions"] = measure_decisions(args)
        show_decisions(args, results["decisions"])
    write_json(args.out, results)


if __name__ == "__main__":
    main()
