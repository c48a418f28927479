"""Exact kernel machines within a budget: what of their accuracy is left, and what becomes of it on fresh rows.

Each machine is fitted exactly to 40,000 rows at most, at the paper's C and gamma. Three more sets are standardised and fitted to
12,000 rows, at the defaults of scikit-learn ("default"), and at a C and gamma of rugged decision values and thousands of support
vectors ("hard"). Each is distilled into 500 support vectors, with its rows and without any, and compared with itself. Then the
same with three quarters of the rows, and the learner goes on with the rest, one pass; it is compared again after the first 1,000
of them. A learner that never saw the exact machine learns the same rows in one pass for comparison. ``--search`` also looks for
the budget that costs .2 points, by labels of rows that are held out of the fit of vectors and coefficients.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from common import PAPER, Split, load_split, make_parser, print_table, report_progress, summarise, write_results

from streamsvm import BSCAClassifier
from streamsvm.batch import CSMOClassifier


class Machine(NamedTuple):
    """The machine that is distilled."""

    data: str
    C: float
    gamma: Any
    rows: int = 12_000
    standardize: bool = True


SETS = {name: Machine(name, PAPER[name].C, PAPER[name].gamma, 40_000, False) for name in ("a9a", "ijcnn1", "phishing", "skin")}
SETS |= {
    "magic04 default": Machine("magic04", 1.0, "scale"),
    "eeg_eye default": Machine("eeg_eye", 1.0, "scale"),
    "elec2 default": Machine("elec2", 1.0, "scale"),
    "magic04 hard": Machine("magic04", 10.0, 0.3),
    "eeg_eye hard": Machine("eeg_eye", 10.0, 0.5),
    "elec2 hard": Machine("elec2", 30.0, 1.0),
}
BUDGET, FIRST, WITHIN = 500, 1000, 0.2


KEYS = ("distilled", "without rows", "seconds", "before", "first", "after", "one pass")


def accuracy(model: Any, split: Split) -> float:
    predict = model.predict_many if hasattr(model, "predict_many") else model.predict
    return 100.0 * float((predict(split.X_test) == split.y_test).mean())


def measure(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    X = np.random.default_rng(0).normal(size=(200, 5))
    CSMOClassifier().fit(X, X[:, 0] > 0.0).to_budget(5, X)  # compiled before any time is taken
    for name in args.sets:
        setting = SETS[name]
        split = load_split(setting.data, args.data)
        order = np.random.default_rng(0).permutation(len(split.y))[: setting.rows]
        X, y = split.X[order], split.y[order]
        if setting.standardize:
            low, high = np.percentile(X, (0.2, 99.8), axis=0)  # eeg_eye has absurd outliers
            X, test = np.clip(X, low, high), np.clip(split.X_test, low, high)
            mean, deviation = X.mean(axis=0), X.std(axis=0)
            X, split = (X - mean) / deviation, replace(split, X_test=(test - mean) / deviation)
        found: dict[str, Any] = {"rows": len(y), **{key: [] for key in KEYS}}
        start = time.process_time()
        exact = CSMOClassifier(C=setting.C, gamma=setting.gamma).fit(X, y)
        found["fit seconds"] = time.process_time() - start
        found["exact"], found["support vectors"] = accuracy(exact, split), len(exact.support_)
        part = len(y) * 3 // 4
        earlier = CSMOClassifier(C=setting.C, gamma=setting.gamma).fit(X[:part], y[:part])
        for seed in range(args.seeds):
            start = time.process_time()
            learner = exact.to_budget(BUDGET, X, seed=seed)
            found["seconds"].append(time.process_time() - start)
            found["distilled"].append(accuracy(learner, split))
            found["without rows"].append(accuracy(exact.to_budget(BUDGET, seed=seed), split))
            learner = earlier.to_budget(BUDGET, X[:part], seed=seed)
            found["before"].append(accuracy(learner, split))
            learner.learn_many(X[part : part + FIRST], y[part : part + FIRST])
            found["first"].append(accuracy(learner, split))
            learner.learn_many(X[part + FIRST :], y[part + FIRST :])
            found["after"].append(accuracy(learner, split))
            gamma = setting.gamma if setting.gamma == "scale" else exact._kernel.gamma
            plain = BSCAClassifier(BUDGET, gamma=gamma, scaling=None, max_features=X.shape[1], max_classes=2, seed=seed)
            plain.learn_many(X, y)
            found["one pass"].append(accuracy(plain, split))
        if args.search:
            start = time.process_time()
            learner = exact.to_budget(X=X, y=y, loss=WITHIN)
            found["search seconds"] = time.process_time() - start
            found["budget"], found["at the budget"] = learner.budget, accuracy(learner, split)
        results[name] = found
        report_progress(f"{name}: {found['exact']:.2f} %, distilled {np.mean(found['distilled']):.2f} %")
    return results


def present(results: dict[str, Any]) -> None:
    rows = []
    for name, found in results.items():
        of = {key: summarise(found[key]) for key in KEYS}
        lost = [of[key]["mean"] - found["exact"] for key in ("distilled", "without rows")]
        rows.append(
            (
                name,
                found["rows"],
                f"{found['fit seconds']:.2f}",
                found["support vectors"],
                f"{found['exact']:.2f}",
                *(f"{difference:+.2f} {'yes' if difference >= -WITHIN else 'NO'}" for difference in lost),
                f"{of['seconds']['median']:.1f}",
                *(f"{of[key]['mean']:.2f} ± {of[key]['std']:.2f}" for key in ("before", "first", "after", "one pass")),
            )
        )
    print_table(
        f"Exact, and what {BUDGET} support vectors add to its test accuracy, %: is it >= -{WITHIN}?",
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
            f"after {FIRST} fresh",
            "after all",
            "BSCA alone",
        ),
        rows,
    )


def present_search(results: dict[str, Any]) -> None:
    rows = [
        (
            name,
            found["support vectors"],
            found["budget"],
            f"{found['at the budget'] - found['exact']:+.2f}",
            f"{found['search seconds']:.0f}",
        )
        for name, found in results.items()
    ]
    print_table(
        f"Support vectors that cost {WITHIN} points on rows held out, and what they add to the test accuracy, %",
        ("set", "vectors", "enough", "distilled", "s"),
        rows,
    )


def main() -> None:
    parser = make_parser(__doc__, "distillation")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=tuple(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--search", action="store_true", help=f"look for the budget that costs {WITHIN} points: some minutes each"
    )
    args = parser.parse_args()
    results = measure(args)
    write_results(args.out, {"distillation": results})
    present(results)
    if args.search:
        present_search(results)


if __name__ == "__main__":
    main()
