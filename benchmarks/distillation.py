"""Measures how much accuracy exact kernel machines lose when they are distilled into a budget, and as they learn further rows.

Each machine is fitted exactly to at most 40,000 rows, at the paper's C and gamma. Three more sets are standardised and fitted to
12,000 rows, at the defaults of scikit-learn ("default"), and at a C and gamma that give rugged decision values and thousands of
support vectors ("hard"). Each machine is distilled into 500 support vectors, with and without its training rows, and compared
with itself. Another machine is fitted to three quarters of the rows and distilled, and the learner then learns the other rows in
one pass; it is tested before, after 1,000 of them, and at the end. For comparison, a new learner learns all rows in one pass.
``--search`` also finds the budget that loses at most .2 points on rows that were held out of the distillation.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from common import PAPER, Split, load_split, make_parser, print_table, report_progress, summarise, write_json

from streamsvm import BSCAClassifier
from streamsvm.batch import CSMOClassifier


class Setup(NamedTuple):
    """A data set, and the parameters of the exact machine that is fitted to it."""

    data: str
    C: float
    gamma: Any
    rows: int = 12_000
    standardize: bool = True


SETS = {name: Setup(name, PAPER[name].C, PAPER[name].gamma, 40_000, False) for name in ("a9a", "ijcnn1", "phishing", "skin")}
SETS |= {
    "magic04 default": Setup("magic04", 1.0, "scale"),
    "eeg_eye default": Setup("eeg_eye", 1.0, "scale"),
    "elec2 default": Setup("elec2", 1.0, "scale"),
    "magic04 hard": Setup("magic04", 10.0, 0.3),
    "eeg_eye hard": Setup("eeg_eye", 10.0, 0.5),
    "elec2 hard": Setup("elec2", 30.0, 1.0),
}
BUDGET, N_FIRST, MAX_LOSS = 500, 1000, 0.2


MEASURES = ("distilled", "without rows", "seconds", "before", "first", "after", "one pass")


def measure_accuracy(model: Any, split: Split) -> float:
    predict = model.predict_many if hasattr(model, "predict_many") else model.predict
    return 100.0 * float((predict(split.X_test) == split.y_test).mean())


def measure_sets(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    X = np.random.default_rng(0).normal(size=(200, 5))
    CSMOClassifier().fit(X, X[:, 0] > 0.0).to_budget(5, X)  # compiles before any time is taken
    for name in args.sets:
        setting = SETS[name]
        split = load_split(setting.data, args.data)
        order = np.random.default_rng(0).permutation(len(split.y))[: setting.rows]
        X, y = split.X[order], split.y[order]
        if setting.standardize:
            low, high = np.percentile(X, (0.2, 99.8), axis=0)  # eeg_eye has extreme outliers
            X, test = np.clip(X, low, high), np.clip(split.X_test, low, high)
            mean, deviation = X.mean(axis=0), X.std(axis=0)
            X, split = (X - mean) / deviation, replace(split, X_test=(test - mean) / deviation)
        result: dict[str, Any] = {"rows": len(y), **{key: [] for key in MEASURES}}
        start = time.process_time()
        exact = CSMOClassifier(C=setting.C, gamma=setting.gamma).fit(X, y)
        result["fit seconds"] = time.process_time() - start
        result["exact"], result["support vectors"] = measure_accuracy(exact, split), len(exact.support_)
        part = len(y) * 3 // 4
        partial_machine = CSMOClassifier(C=setting.C, gamma=setting.gamma).fit(X[:part], y[:part])
        for seed in range(args.seeds):
            start = time.process_time()
            learner = exact.to_budget(BUDGET, X, seed=seed)
            result["seconds"].append(time.process_time() - start)
            result["distilled"].append(measure_accuracy(learner, split))
            result["without rows"].append(measure_accuracy(exact.to_budget(BUDGET, seed=seed), split))
            learner = partial_machine.to_budget(BUDGET, X[:part], seed=seed)
            result["before"].append(measure_accuracy(learner, split))
            learner.learn_many(X[part : part + N_FIRST], y[part : part + N_FIRST])
            result["first"].append(measure_accuracy(learner, split))
            learner.learn_many(X[part + N_FIRST :], y[part + N_FIRST :])
            result["after"].append(measure_accuracy(learner, split))
            gamma = setting.gamma if setting.gamma == "scale" else exact._kernel.gamma
            plain = BSCAClassifier(BUDGET, gamma=gamma, scaling=None, max_features=X.shape[1], max_classes=2, seed=seed)
            plain.learn_many(X, y)
            result["one pass"].append(measure_accuracy(plain, split))
        if args.search:
            start = time.process_time()
            learner = exact.to_budget(X=X, y=y, loss=MAX_LOSS)
            result["search seconds"] = time.process_time() - start
            result["budget"], result["at the budget"] = learner.budget, measure_accuracy(learner, split)
        results[name] = result
        report_progress(f"{name}: {result['exact']:.2f} %, distilled {np.mean(result['distilled']):.2f} %")
    return results


def print_results(results: dict[str, Any]) -> None:
    rows = []
    for name, result in results.items():
        stats = {key: summarise(result[key]) for key in MEASURES}
        differences = [stats[key]["mean"] - result["exact"] for key in ("distilled", "without rows")]
        rows.append(
            (
                name,
                result["rows"],
                f"{result['fit seconds']:.2f}",
                result["support vectors"],
                f"{result['exact']:.2f}",
                *(f"{difference:+.2f} {'yes' if difference >= -MAX_LOSS else 'NO'}" for difference in differences),
                f"{stats['seconds']['median']:.1f}",
                *(f"{stats[key]['mean']:.2f} ± {stats[key]['std']:.2f}" for key in ("before", "first", "after", "one pass")),
            )
        )
    print_table(
        f"Exact, and what {BUDGET} support vectors add to its test accuracy, %: is it >= -{MAX_LOSS}?",
        (
            "set",
            "rows",
            "fit s",
            "vectors",
            "exact",
            "distilled",
            "without rows",
            "s",
            "of 3/4 of the rows",
            f"after {N_FIRST} fresh",
            "after all",
            "BSCA alone",
        ),
        rows,
    )


def print_search(results: dict[str, Any]) -> None:
    rows = [
        (
            name,
            result["support vectors"],
            result["budget"],
            f"{result['at the budget'] - result['exact']:+.2f}",
            f"{result['search seconds']:.0f}",
        )
        for name, result in results.items()
    ]
    print_table(
        f"Support vectors that cost {MAX_LOSS} points on rows held out, and what they add to the test accuracy, %",
        ("set", "vectors", "enough", "distilled", "s"),
        rows,
    )


def main() -> None:
    parser = make_parser(__doc__, "distillation")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=tuple(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--search", action="store_true", help=f"also find the budget that loses {MAX_LOSS} points: some minutes for each set"
    )
    args = parser.parse_args()
    results = measure_sets(args)
    write_json(args.out, {"distillation": results})
    print_results(results)
    if args.search:
        print_search(results)


if __name__ == "__main__":
    main()
