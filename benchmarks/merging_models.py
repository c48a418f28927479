"""Models of the parts of a data set, merged into one: how much that costs against one pass over all rows.

Each part is learned by its own model, as the partitions of a topic are; ``merge_with`` makes one model of them.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from common import PAPER, Split, argument_parser, load, progress, show, summary, write

from streamsvm import BSCAClassifier, BSGDClassifier

BUDGET = 500
LEARNERS = {"BSGD": BSGDClassifier, "BSCA": BSCAClassifier}
SETS = ("a9a", "skin", "ijcnn1", "phishing")
TARGET = -0.5  # points against one pass, of 8 parts


def new_model(learner: str, settings: str, name: str, split: Split) -> Any:
    """A model with the library's defaults, or at the paper's C and gamma."""
    features, paper = split.X.shape[1], PAPER[name]
    if settings == "default":
        return LEARNERS[learner](BUDGET, max_features=features, seed=0)
    strength = {"l2": paper.l2(len(split.y))} if learner == "BSGD" else {"C": paper.C}
    return LEARNERS[learner](BUDGET, gamma=paper.gamma, scaling=None, max_features=features, seed=0, **strength)


def measure(learner: str, settings: str, name: str, split: Split, seed: int, parts: list[int]) -> dict[str, dict[str, float]]:
    """Test accuracies of one pass, and for each number of parts of the part models (mean) and of the merged one."""
    X, y = split.shuffled(np.random.default_rng(seed))

    def learned(rows: slice) -> Any:
        model = new_model(learner, settings, name, split)
        model.learn_many(X[rows], y[rows])
        return model

    def accuracy(model: Any) -> float:
        return 100.0 * float((model.predict_many(split.X_test) == split.y_test).mean())

    whole = accuracy(learned(slice(None)))
    results = {}
    for n in parts:
        cuts = [len(y) * i // n for i in range(n + 1)]
        models = [learned(slice(first, last)) for first, last in itertools.pairwise(cuts)]
        alone = float(np.mean([accuracy(model) for model in models[:8]]))
        began = time.perf_counter()
        models[0].merge_with(*models[1:])
        seconds = time.perf_counter() - began
        merged = accuracy(models[0])
        results[str(n)] = {"whole": whole, "alone": alone, "merged": merged, "loss": merged - whole, "seconds": seconds}
    return results


def main() -> None:
    parser = argument_parser(__doc__, "merging_models")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--parts", nargs="*", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--shuffles", type=int, default=5)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    rows = []
    for name in args.sets:
        split = load(name, args.data)
        for settings in ("default", "paper"):
            for learner in LEARNERS:
                runs = [measure(learner, settings, name, split, seed, args.parts) for seed in range(args.shuffles)]
                key = f"{name}, {learner}, {settings}"
                of = {n: {what: summary([run[n][what] for run in runs]) for what in runs[0][n]} for n in runs[0]}
                results[key] = of
                losses = [f"{of[str(n)]['loss']['mean']:+.2f}" for n in args.parts]
                eight = of.get("8")
                verdict = "-" if eight is None else "yes" if eight["loss"]["mean"] >= TARGET else "NO"
                first = next(iter(of.values()))
                alone = "-" if eight is None else f"{eight['alone']['mean']:.2f}"
                slowest = f"{max(each['seconds']['median'] for each in of.values()):.1f}"
                rows.append((key, f"{first['whole']['mean']:.2f}", alone, *losses, slowest, verdict))
                progress(str(rows[-1]))
    write(args.out, {"results": results})
    title = (
        f"B = {BUDGET}, {args.shuffles} shuffles: test accuracy %; of n parts: that of the merged model minus that of one pass"
    )
    show(title, ("set, learner, settings", "one pass", "of 1/8", *(f"n = {n}" for n in args.parts), "s", "8 within .5"), rows)


if __name__ == "__main__":
    main()
