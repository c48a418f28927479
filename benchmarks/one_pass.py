"""Measures one pass of BSGD over each set at the paper's C and gamma, and over a drifting stream in file order.

A stream is seen once. At a large C, the accuracy of BSGD's last iterate varies with the order of the rows; the library's default
prediction uses the average of the iterates or the last one, whichever has had fewer errors recently.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from common import (
    PAPER,
    Split,
    compute_accuracies,
    load_file,
    load_split,
    make_parser,
    print_table,
    report_progress,
    summarise,
    to_dicts,
    write_json,
)
from river import linear_model, preprocessing

from streamsvm import BSGDClassifier

BUDGET = 500
SCHEDULES = ("pegasos", "floor", "constant")
# minimum of the mean accuracy, and upper limit of its standard deviation
TARGETS = {"a9a": (84.3, 0.4), "ijcnn1": (97.8, 0.4)}


def run_pass(name: str, split: Split, seed: int, shift: float = 0.0, factor: float = 1.0) -> dict[str, float]:
    """Return test accuracies after one pass over shuffled rows; features are shifted and scaled, and gamma is adjusted."""
    setting = PAPER[name]
    n, features = split.X.shape
    X, y = split.shuffle_rows(np.random.default_rng(seed))
    model = BSGDClassifier(
        BUDGET, gamma=setting.gamma / factor**2, scaling=None, l2=setting.compute_l2(n), max_features=features, seed=0
    )
    moved, scale = np.float32(shift), np.float32(factor)
    model.learn_many(X * scale + moved, y)
    return compute_accuracies(model, split.X_test * scale + moved, split.y_test)


def measure_shuffles(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in args.sets:
        split = load_split(name, args.data)
        unmoved_accuracies: list[float] = []  # accuracy of each shuffle without changes of the features
        for label, shift, factor in ((name, 0.0, 1.0), (f"{name} + 1000", 1000.0, 1.0), (f"{name} * 1000", 0.0, 1000.0)):
            moved = label != name
            runs = [run_pass(name, split, seed, shift, factor) for seed in range(max(args.shuffles, args.moved_shuffles))]
            counted_runs = runs if moved else runs[: args.shuffles]
            results[label] = {output: summarise([run[output] for run in counted_runs]) for output in counted_runs[0]}
            if moved:
                changes = summarise([run["auto"] - before for run, before in zip(runs, unmoved_accuracies, strict=True)])
                results[label]["change"] = {**changes, "standard error": changes["std"] / len(runs) ** 0.5}
            else:
                unmoved_accuracies = [run["auto"] for run in runs]
            report_progress(f"{label}: {results[label]['auto']['mean']:.2f} %")
    return results


def print_shuffles(args: argparse.Namespace, results: dict[str, Any]) -> None:
    rows = []
    for label, outputs in results.items():
        ours, name = outputs["auto"], label.split()[0]
        verdict = "-"
        if label in TARGETS:
            mean, std = TARGETS[label]
            verdict = f"{'yes' if ours['mean'] >= mean and ours['std'] < std else 'NO'} (>= {mean}, < {std})"
        elif label != name:
            change = outputs["change"]
            verdict = (
                f"{'yes' if abs(change['mean']) < 0.1 else 'NO'} ({change['mean']:+.3f} ± {change['standard error']:.3f}, < 0.1)"
            )
        cells = [
            f"{outputs[o]['mean']:.2f} ± {outputs[o]['std']:.2f} / {outputs[o]['min']:.2f}" for o in ("auto", "last", "average")
        ]
        rows.append((label, *cells, verdict))
    counts = f"{args.shuffles} shuffles ({max(args.shuffles, args.moved_shuffles)} where features are moved)"
    title = f"One pass, B = {BUDGET}, {counts}: test accuracy %, mean ± std / min"
    print_table(title, ("set", "default", "last iterate", "average", "met"), rows)


def measure_drift(args: argparse.Namespace) -> dict[str, Any]:
    """Return prequential accuracies on elec2, standardised row by row, for the whole stream and its first 20,000 rows."""
    arrays = load_file("elec2", args.data)
    rows, labels = to_dicts(arrays["X"]), (arrays["y"] > 0).tolist()
    repeated = np.array(labels[1:]) == np.array(labels[:-1])
    results: dict[str, Any] = {"predict the last label": compute_rates(np.concatenate(([not labels[0]], repeated)))}
    river_models = {
        "river PAClassifier": linear_model.PAClassifier(),
        "river LogisticRegression": linear_model.LogisticRegression(),
    }
    for name, model in river_models.items():
        scaler = preprocessing.StandardScaler()
        right = np.zeros(len(labels), bool)
        for i, (x, y) in enumerate(zip(rows, labels, strict=True)):
            scaler.learn_one(x)
            z = scaler.transform_one(x)
            right[i] = bool(model.predict_one(z)) == y
            model.learn_one(z, y)
        results[name] = compute_rates(right)
        report_progress(f"elec2, {name}: {results[name]['all']:.2f} %")
    for schedule in args.schedules:
        for l2 in args.l2:
            scaler = preprocessing.StandardScaler()
            ours = BSGDClassifier(
                BUDGET, gamma=args.gamma or "scale", l2=l2, learning_rate=schedule, eta0=args.eta0, max_features=16, seed=0
            )
            outputs = {
                "auto": np.zeros(len(labels), bool),
                "last": np.zeros(len(labels), bool),
                "average": np.zeros(len(labels), bool),
            }
            for i, (x, y) in enumerate(zip(rows, labels, strict=True)):
                scaler.learn_one(x)
                z = scaler.transform_one(x)
                for output, right in outputs.items():
                    right[i] = (ours.decision_function_one(z, output) > 0.0) == y
                ours.learn_one(z, y)
            name = f"BSGDClassifier {schedule}, l2 = {l2:g}"
            results[name] = {output: compute_rates(right) for output, right in outputs.items()}
            report_progress(f"elec2, {name}: {results[name]['auto']['all']:.2f} %")
    return results


def compute_rates(right: np.ndarray) -> dict[str, float]:
    return {"all": 100.0 * float(right.mean()), "first 20,000": 100.0 * float(right[:20_000].mean())}


def print_drift(results: dict[str, Any]) -> None:
    rows = []
    for name, rates in results.items():
        outputs = [rates] if "all" in rates else [rates["auto"], rates["last"], rates["average"]]
        cells = [f"{rate['all']:.2f} / {rate['first 20,000']:.2f}" for rate in outputs]
        rows.append((name, *cells, *["-"] * (3 - len(cells))))
    title = f"elec2 in file order, prequential accuracy %, whole stream / first 20,000 rows; B = {BUDGET}"
    print_table(title, ("", "default", "last iterate", "average"), rows)


def main() -> None:
    parser = make_parser(__doc__, "one_pass")
    parser.add_argument("--sets", nargs="*", choices=PAPER, default=list(PAPER))
    parser.add_argument("--shuffles", type=int, default=10)
    parser.add_argument("--moved-shuffles", type=int, default=40, help="shuffles with shifted or scaled features")
    parser.add_argument("--schedules", nargs="*", choices=SCHEDULES, default=SCHEDULES, help="for elec2; no values: skip it")
    parser.add_argument("--l2", nargs="+", type=float, default=[1e-4, 1e-5], help="for elec2; 1e-4 is the library's default")
    parser.add_argument("--gamma", type=float, help="for elec2, instead of the library's default")
    parser.add_argument("--eta0", type=float, default=1.0, help="for elec2")
    args = parser.parse_args()
    results: dict[str, Any] = {"shuffles": measure_shuffles(args)} if args.sets else {}
    if args.schedules:
        results["elec2"] = measure_drift(args)
    if "shuffles" in results:
        print_shuffles(args, results["shuffles"])
    if "elec2" in results:
        print_drift(results["elec2"])
    write_json(args.out, results)


if __name__ == "__main__":
    main()
