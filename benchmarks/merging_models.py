"""Models of the parts of a data set, merged into one: how much that costs against one pass over all rows.

Each part is learned by its own model, as the partitions of a topic are; they become one as by ``streamsvm merge``. Models are
those of the command line: the learner alone, or behind a `BoundedScaler`.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from common import PAPER, Split, load_split, make_parser, print_table, report_progress, summarise, write_json

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.stream.merging import merge_models as merged_of

BUDGET = 500
LEARNERS = {"BSGD": BSGDClassifier, "BSCA": BSCAClassifier}
SETS = ("a9a", "skin", "ijcnn1", "phishing")
SETTINGS = ("default", "scaler", "paper")
CHUNK = 100  # rows that are scaled at once, by what the scaler knows then
TARGET = -0.5  # points against one pass, of 8 parts


def new_model(learner: str, settings: str, name: str, split: Split) -> Any:
    """A model with the library's defaults, one behind a scaler, or one at the paper's C and gamma."""
    features, paper = split.X.shape[1], PAPER[name]
    if settings == "default":
        return LEARNERS[learner](BUDGET, max_features=features, seed=0)
    if settings == "scaler":
        return BoundedScaler() | LEARNERS[learner](BUDGET, scaling=None, max_features=features, seed=0)
    strength = {"l2": paper.compute_l2(len(split.y))} if learner == "BSGD" else {"C": paper.C}
    return LEARNERS[learner](BUDGET, gamma=paper.gamma, scaling=None, max_features=features, seed=0, **strength)


def measure(learner: str, settings: str, name: str, split: Split, seed: int, parts: list[int]) -> dict[str, dict[str, float]]:
    """Test accuracies of one pass, and for each number of parts of the part models (mean) and of the merged one."""
    X, y = split.shuffle_rows(np.random.default_rng(seed))

    def learned(rows: slice) -> Any:
        model = new_model(learner, settings, name, split)
        if settings != "scaler":
            model.learn_many(X[rows], y[rows])
            return model
        scaler, last = model.steps.values()
        for begin in range(rows.start or 0, len(y) if rows.stop is None else rows.stop, CHUNK):
            some = slice(begin, min(begin + CHUNK, len(y) if rows.stop is None else rows.stop))
            scaler.learn_many(X[some])
            last.learn_many(scaler.transform_many(X[some]), y[some])
        return model

    def accuracy(model: Any) -> float:
        if settings == "scaler":
            scaler, last = model.steps.values()
            return 100.0 * float((last.predict_many(scaler.transform_many(split.X_test)) == split.y_test).mean())
        return 100.0 * float((model.predict_many(split.X_test) == split.y_test).mean())

    whole = accuracy(learned(slice(None)))
    results = {}
    for n in parts:
        cuts = [len(y) * i // n for i in range(n + 1)]
        models = [learned(slice(first, last)) for first, last in itertools.pairwise(cuts)]
        alone = float(np.mean([accuracy(model) for model in models[:8]]))
        began = time.perf_counter()
        model = merged_of(models)
        seconds = time.perf_counter() - began
        merged = accuracy(model)
        results[str(n)] = {"whole": whole, "alone": alone, "merged": merged, "loss": merged - whole, "seconds": seconds}
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
                of = {n: {what: summarise([run[n][what] for run in runs]) for what in runs[0][n]} for n in runs[0]}
                results[key] = of
                losses = [f"{of[str(n)]['loss']['mean']:+.2f}" for n in args.parts]
                eight = of.get("8")
                verdict = "-" if eight is None else "yes" if eight["loss"]["mean"] >= TARGET else "NO"
                first = next(iter(of.values()))
                alone = "-" if eight is None else f"{eight['alone']['mean']:.2f}"
                slowest = f"{max(each['seconds']['median'] for each in of.values()):.1f}"
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
