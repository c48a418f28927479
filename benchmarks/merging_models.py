"""Measures how much accuracy is lost if models of the parts of a data set are merged, compared with one pass over all rows.

Each part is learned by its own model, like the partitions of a topic; the models are merged as by ``streamsvm merge``. They are
the models of the command line: a learner, or a pipeline of a `BoundedScaler` and a learner.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from common import PAPER, Split, load_split, make_parser, print_table, report_progress, summarise, write_json

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.stream.merging import merge_models

BUDGET = 500
LEARNERS = {"BSGD": BSGDClassifier, "BSCA": BSCAClassifier}
SETS = ("a9a", "skin", "ijcnn1", "phishing")
SETTINGS = ("default", "scaler", "paper")
CHUNK = 100  # the scaler learns and transforms this many rows at once
MIN_DIFFERENCE = -0.5  # least difference to one pass that is accepted for 8 parts, in points


def make_model(learner: str, settings: str, name: str, split: Split) -> Any:
    """Return a model with the library's defaults, one with a scaler, or one with the paper's C and gamma."""
    features, paper = split.X.shape[1], PAPER[name]
    if settings == "default":
        return LEARNERS[learner](BUDGET, max_features=features, seed=0)
    if settings == "scaler":
        return BoundedScaler() | LEARNERS[learner](BUDGET, scaling=None, max_features=features, seed=0)
    strength = {"l2": paper.compute_l2(len(split.y))} if learner == "BSGD" else {"C": paper.C}
    return LEARNERS[learner](BUDGET, gamma=paper.gamma, scaling=None, max_features=features, seed=0, **strength)


def measure(learner: str, settings: str, name: str, split: Split, seed: int, parts: list[int]) -> dict[str, dict[str, float]]:
    """Return for each number of parts the test accuracies of one pass, of the part models (mean) and of the merged model."""
    X, y = split.shuffle_rows(np.random.default_rng(seed))

    def train_model(rows: slice) -> Any:
        model = make_model(learner, settings, name, split)
        if settings != "scaler":
            model.learn_many(X[rows], y[rows])
            return model
        scaler, last = model.steps.values()
        for start in range(rows.start or 0, len(y) if rows.stop is None else rows.stop, CHUNK):
            chunk = slice(start, min(start + CHUNK, len(y) if rows.stop is None else rows.stop))
            scaler.learn_many(X[chunk])
            last.learn_many(scaler.transform_many(X[chunk]), y[chunk])
        return model

    def measure_accuracy(model: Any) -> float:
        if settings == "scaler":
            scaler, last = model.steps.values()
            return 100.0 * float((last.predict_many(scaler.transform_many(split.X_test)) == split.y_test).mean())
        return 100.0 * float((model.predict_many(split.X_test) == split.y_test).mean())

    one_pass = measure_accuracy(train_model(slice(None)))
    results = {}
    for n in parts:
        cuts = [len(y) * i // n for i in range(n + 1)]
        models = [train_model(slice(first, last)) for first, last in itertools.pairwise(cuts)]
        alone = float(np.mean([measure_accuracy(model) for model in models[:8]]))
        start = time.perf_counter()
        model = merge_models(models)
        seconds = time.perf_counter() - start
        merged = measure_accuracy(model)
        results[str(n)] = {"whole": one_pass, "alone": alone, "merged": merged, "loss": merged - one_pass, "seconds": seconds}
    return results


def main() -> None:
    parser = make_parser(__doc__, "merging_models")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--parts", nargs="*", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--shuffles", type=int, default=5)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    rows = []
    for name in args.sets:
        split = load_split(name, args.data)
        for settings in args.settings:
            for learner in LEARNERS:
                runs = [measure(learner, settings, name, split, seed, args.parts) for seed in range(args.shuffles)]
                key = f"{name}, {learner}, {settings}"
                stats = {n: {quantity: summarise([run[n][quantity] for run in runs]) for quantity in runs[0][n]} for n in runs[0]}
                results[key] = stats
                losses = [f"{stats[str(n)]['loss']['mean']:+.2f}" for n in args.parts]
                eight = stats.get("8")
                verdict = "-" if eight is None else "yes" if eight["loss"]["mean"] >= MIN_DIFFERENCE else "NO"
                first = next(iter(stats.values()))
                alone = "-" if eight is None else f"{eight['alone']['mean']:.2f}"
                slowest = f"{max(figures['seconds']['median'] for figures in stats.values()):.1f}"
                rows.append((key, f"{first['whole']['mean']:.2f}", alone, *losses, slowest, verdict))
                report_progress(str(rows[-1]))
    write_json(args.out, {"results": results})
    title = (
        f"B = {BUDGET}, {args.shuffles} shuffles: test accuracy %; of n parts: that of the merged model minus that of one pass"
    )
    print_table(
        title, ("set, learner, settings", "one pass", "of 1/8", *(f"n = {n}" for n in args.parts), "s", "8 within .5"), rows
    )


if __name__ == "__main__":
    main()
