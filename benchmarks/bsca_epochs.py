"""BSCA over many epochs, and what its merging costs, as plots.

The last iterate of dual coordinate ascent swings from epoch to epoch, most of all at the large C of Qaadan, Schüler and
Glasmachers (2019): with a budget as without one. What the library predicts by default follows an average of the iterates.

Part ``epochs``: accuracy, primal and dual objective and the share of rows that are followed by a merge, epoch by epoch (their
figures 1 to 3, 5, 6 and 8). Part ``merging``: after one epoch, the model within its budget beside the one that the same
coefficients make without any merge, and beside one that never had a budget.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from common import PAPER, Split, accuracies, argument_parser, load, progress, show, write

from streamsvm import BSCAClassifier, BSGDClassifier

#: C of the library's own choice; the paper's is in `PAPER`.
SETS = {"a9a": 0.3, "ijcnn1": 1.2, "phishing": 1.0, "skin": 1.0}
EPOCH_BUDGETS = (200, 500)
MERGING_BUDGETS = (50, 100, 200, 500)
WITHIN = 0.5  # points below its best that the accuracy after the third and each later epoch may lie
EXACT = {"relaxation": 1.0, "tol": 0.0}  # steps of coordinate ascent as they are in books
PARTS = ("epochs", "merging")


def fixed(name: str, split: Split) -> dict[str, Any]:
    return {"gamma": PAPER[name].gamma, "scaling": None, "max_features": split.X.shape[1], "max_classes": 2, "seed": 0}


def follow_epochs(model: BSCAClassifier, split: Split, epochs: int) -> dict[str, list[float]]:
    """Passes in the dual with a coefficient a row."""
    found: dict[str, list[float]] = {key: [] for key in ("auto", "last", "primal", "dual", "merges")}

    def after(solution: Any) -> None:
        accuracy = accuracies(model, split.X_test, split.y_test)
        found["auto"].append(accuracy["auto"])
        found["last"].append(accuracy["last"])
        found["primal"].append(solution.primal())
        found["dual"].append(solution.dual())
        found["merges"].append(model.n_merges / len(split.y))

    model.learn_epochs(split.X, split.y, epochs=epochs, on_epoch=after)
    found["merges"] = np.diff(found["merges"], prepend=0.0).tolist()
    return found


def follow_passes(model: BSCAClassifier | BSGDClassifier, split: Split, epochs: int) -> dict[str, list[float]]:
    """Passes as over a stream that repeats: each row comes as if it were new."""
    found: dict[str, list[float]] = {key: [] for key in ("auto", "last", "merges")}
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        before = model.n_merges
        model.learn_many(*split.shuffled(rng))
        accuracy = accuracies(model, split.X_test, split.y_test)
        found["auto"].append(accuracy["auto"])
        found["last"].append(accuracy["last"])
        found["merges"].append((model.n_merges - before) / len(split.y))
    return found


def measure_epochs(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, C in SETS.items():
        split = load(name, args.data)
        rest, paper = fixed(name, split), PAPER[name]
        for budget in EPOCH_BUDGETS:
            label = f"{name}, B = {budget}"
            results[label] = {
                "BSCA, epochs": follow_epochs(BSCAClassifier(budget, C=C, **EXACT, **rest), split, args.epochs),
                "BSCA, a stream": follow_passes(BSCAClassifier(budget, C=C, **rest), split, args.epochs),
                "BSCA, the paper's": follow_epochs(
                    BSCAClassifier(budget, C=paper.C, averaging=0, **EXACT, **rest), split, args.epochs
                ),
                "BSGD": follow_passes(BSGDClassifier(budget, l2=paper.l2(len(split.y)), **rest), split, args.epochs),
            }
            progress(f"epochs: {label} {results[label]['BSCA, epochs']['auto'][-1]:.2f} %")
    return results


def show_epochs(results: dict[str, Any], path: Path) -> None:
    rows = []
    for label, models in results.items():
        for name, found in models.items():
            for what in ("auto", "last"):
                curve = found[what]
                late = curve[2:]
                if not late or (what == "last" and name == "BSCA, the paper's"):
                    continue
                below = max(curve) - min(late)
                rows.append(
                    (
                        label,
                        name if what == "auto" else "  its last iterate",
                        len(curve),
                        f"{curve[0]:.2f}",
                        f"{max(curve):.2f}",
                        f"{curve[-1]:.2f}",
                        f"{max(late) - min(late):.2f}",
                        f"{below:.2f}",
                        ("yes" if below <= WITHIN else "NO") if (what, name) == ("auto", "BSCA, epochs") else "",
                    )
                )
    show(
        "Accuracy epoch by epoch, %",
        (
            "set",
            "model",
            "epochs",
            "first",
            "best",
            "last",
            "range from the third on",
            "best - least from the third on",
            f"<= {WITHIN}",
        ),
        rows,
    )
    rows = [
        (
            label,
            name,
            f"{found['primal'][0]:.0f}",
            f"{found['primal'][-1]:.0f}",
            f"{found['dual'][0]:.0f}",
            f"{found['dual'][-1]:.0f}",
        )
        for label, models in results.items()
        for name, found in models.items()
        if "dual" in found
    ]
    show("Objectives after the first and the last epoch", ("set", "model", "primal", "primal", "dual", "dual"), rows)
    draw_epochs(results, path)


def draw_epochs(results: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    figure, axes = plt.subplots(len(results), 3, figsize=(15, 3.2 * len(results)), constrained_layout=True, squeeze=False)
    for (accuracy, objective, merges), (label, models) in zip(axes, results.items(), strict=True):
        for color, (name, found) in zip(("C0", "C2", "C1", "C3"), models.items(), strict=True):
            epochs = range(1, len(found["auto"]) + 1)
            accuracy.plot(epochs, found["auto"], color=color, label=name)
            if name == "BSCA, a stream":
                accuracy.plot(epochs, found["last"], color=color, linewidth=0.8, linestyle=":", label="its last iterate")
            merges.plot(epochs, found["merges"], color=color, label=name)
            if "dual" in found:
                scale = abs(found["primal"][-1])  # the two C give objectives of two sizes
                objective.plot(epochs, np.array(found["primal"]) / scale, color=color, label=f"{name}: primal")
                objective.plot(epochs, np.array(found["dual"]) / scale, color=color, linestyle="--", label=f"{name}: dual")
        accuracy.set(title=label, ylabel="test accuracy, %")
        floor = min(min(found["auto"]) for name, found in models.items() if "paper" not in name and name != "BSGD")
        accuracy.set_ylim(floor - 1.0, None)
        objective.set(title="objective over the last primal one", ylim=(-1.0, 3.0))
        merges.set(title="merges a row", ylim=(0.0, None))
        for axis in (accuracy, objective, merges):
            axis.set_xlabel("epoch")
            axis.grid(alpha=0.3)
    for axis in axes[0]:
        axis.legend(fontsize=8)
    figure.savefig(path.with_suffix(".png"), dpi=100)
    plt.close(figure)
    progress(f"drawn: {path.with_suffix('.png')}")


def measure_merging(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, C in SETS.items():
        split = load(name, args.data)
        free = BSCAClassifier(min(len(split.y), args.rows), C=C, **EXACT, **fixed(name, split))
        chosen = slice(0, args.rows)
        X, y = split.X[chosen], split.y[chosen]
        free.learn_epochs(X, y, epochs=1)
        results[name] = {"rows": len(y), "no budget": accuracies(free, split.X_test, split.y_test), "budgets": {}}
        for budget in MERGING_BUDGETS:
            model = BSCAClassifier(budget, C=C, **EXACT, **fixed(name, split))
            solution = model.learn_epochs(X, y, epochs=1)
            unmerged = solution.unmerged()
            results[name]["budgets"][budget] = {
                **accuracies(model, split.X_test, split.y_test),
                "unmerged": accuracies(unmerged, split.X_test, split.y_test)["last"],
                "rows with a coefficient": unmerged.n_support,
                "merges": model.n_merges,
                "primal": solution.primal("last"),
                "dual": solution.dual(),
            }
        progress(f"merging: {name}")
    return results


def show_merging(results: dict[str, Any], path: Path) -> None:
    rows = []
    for name, found in results.items():
        for budget, values in found["budgets"].items():
            rows.append(
                (
                    name,
                    budget,
                    values["merges"],
                    values["rows with a coefficient"],
                    *(f"{values[key]:.2f}" for key in ("auto", "last", "unmerged")),
                    *(f"{found['no budget'][key]:.2f}" for key in ("auto", "last")),
                )
            )
    show(
        "After one epoch, accuracy %",
        (
            "set",
            "B",
            "merges",
            "rows with a coefficient",
            "budgeted, averaged",
            "its last iterate",
            "the same coefficients, unmerged",
            "never a budget, averaged",
            "its last iterate",
        ),
        rows,
    )
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    figure, axes = plt.subplots(1, len(results), figsize=(4.0 * len(results), 3.6), constrained_layout=True, squeeze=False)
    for axis, (name, found) in zip(axes[0], results.items(), strict=True):
        budgets = list(found["budgets"])
        for key, label, color in (
            ("auto", "budgeted, averaged", "C0"),
            ("last", "its last iterate", "C1"),
            ("unmerged", "the same coefficients, unmerged", "C2"),
        ):
            axis.plot(budgets, [found["budgets"][budget][key] for budget in budgets], "o-", color=color, label=label)
        axis.axhline(found["no budget"]["auto"], color="C0", linestyle="--", linewidth=1.0, label="never a budget, averaged")
        axis.axhline(found["no budget"]["last"], color="C1", linestyle="--", linewidth=1.0, label="its last iterate")
        axis.set(title=name, xlabel="budget", ylabel="test accuracy, %", xscale="log", xticks=budgets)
        axis.set_xticklabels([str(budget) for budget in budgets])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path.with_name(path.stem + "_merging.png"), dpi=110)
    plt.close(figure)
    progress(f"drawn: {path.with_name(path.stem + '_merging.png')}")


def main() -> None:
    parser = argument_parser(__doc__, "bsca_epochs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=30_000, help="rows of part merging, whose models without a budget grow")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for part, measure, present in (("epochs", measure_epochs, show_epochs), ("merging", measure_merging, show_merging)):
        if part in args.parts:
            results[part] = measure(args)
            write(args.out, results)
            present(results[part], args.out)


if __name__ == "__main__":
    main()
