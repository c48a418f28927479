"""Exact kernel machines within a budget: what of their accuracy is left, and what becomes of it on fresh rows.

Each machine is fitted exactly at the paper's C and gamma, to 40,000 rows at most, distilled into 500 support vectors, and
compared with itself. Then the same with three quarters of the rows, and the learner goes on with the rest, one pass. A learner
that never saw the exact machine learns the same rows in one pass for comparison.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from common import PAPER, Split, argument_parser, load, progress, show, summary, write

from streamsvm import BSCAClassifier
from streamsvm.batch import CSMOClassifier

SETS = ("a9a", "ijcnn1", "phishing", "skin")
ROWS, BUDGET, WITHIN = 40_000, 500, 0.2


def accuracy(model: Any, split: Split) -> float:
    predict = model.predict_many if hasattr(model, "predict_many") else model.predict
    return 100.0 * float((predict(split.X_test) == split.y_test).mean())


def measure(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    X = np.random.default_rng(0).normal(size=(200, 5))
    CSMOClassifier().fit(X, X[:, 0] > 0.0).to_budget(5, X)  # compiled before any time is taken
    for name in args.sets:
        split, setting = load(name, args.data), PAPER[name]
        order = np.random.default_rng(0).permutation(len(split.y))[:ROWS]
        X, y = split.X[order], split.y[order]
        found: dict[str, Any] = {"rows": len(y), "distilled": [], "seconds": [], "before": [], "after": [], "one pass": []}
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
            learner = earlier.to_budget(BUDGET, X[:part], seed=seed)
            found["before"].append(accuracy(learner, split))
            learner.learn_many(X[part:], y[part:])
            found["after"].append(accuracy(learner, split))
            plain = BSCAClassifier(BUDGET, gamma=setting.gamma, max_features=X.shape[1], max_classes=2, seed=seed)
            plain.learn_many(X, y)
            found["one pass"].append(accuracy(plain, split))
        results[name] = found
        progress(f"{name}: {found['exact']:.2f} %, distilled {np.mean(found['distilled']):.2f} %")
    return results


def present(results: dict[str, Any]) -> None:
    rows = []
    for name, found in results.items():
        distilled, seconds, after = (summary(found[key]) for key in ("distilled", "seconds", "after"))
        before, plain = summary(found["before"]), summary(found["one pass"])
        difference = distilled["mean"] - found["exact"]
        rows.append(
            (
                name,
                found["rows"],
                f"{found['fit seconds']:.2f}",
                found["support vectors"],
                f"{found['exact']:.2f}",
                f"{distilled['mean']:.2f} ± {distilled['std']:.2f}",
                f"{difference:+.2f} {'yes' if difference >= -WITHIN else 'NO'}",
                f"{seconds['median']:.1f}",
                f"{before['mean']:.2f} ± {before['std']:.2f}",
                f"{after['mean']:.2f} ± {after['std']:.2f}",
                f"{plain['mean']:.2f} ± {plain['std']:.2f}",
            )
        )
    show(
        f"Exact, and distilled into {BUDGET} support vectors: test accuracy, %",
        (
            "set",
            "rows",
            "fit s",
            "support vectors",
            "exact",
            "distilled",
            f">= -{WITHIN}",
            "s",
            "of 3/4 of the rows",
            "after the fresh ones",
            "BSCA alone, one pass",
        ),
        rows,
    )


def main() -> None:
    parser = argument_parser(__doc__, "distillation")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    results = measure(args)
    write(args.out, {"distillation": results})
    present(results)


if __name__ == "__main__":
    main()
