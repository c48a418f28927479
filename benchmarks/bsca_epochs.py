"""Accuracy of BSCA epoch by epoch, as plots.

The last iterate of dual coordinate ascent swings from epoch to epoch, most of all at the large C of Qaadan, Schüler and
Glasmachers (2019), figure 6: with a budget as without one. What the library predicts by default follows an average of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from common import PAPER, accuracies, argument_parser, load, progress, show, write

from streamsvm import BSCAClassifier

#: C of the library's own choice; the paper's is in `PAPER`.
SETS = {"a9a": 0.3, "ijcnn1": 1.0, "phishing": 1.0, "skin": 1.0}
SWING = 0.5  # points by which the accuracies after the third and later epochs may differ


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy after each of many passes: by default, of the last iterate, and by the paper's algorithm at the paper's C."""
    results: dict[str, Any] = {}
    for name, C in SETS.items():
        split = load(name, args.data)
        for budget in (200, 500):
            fixed = {"gamma": PAPER[name].gamma, "max_features": split.X.shape[1], "max_classes": 2, "seed": 0}
            models = {
                "BSCA": BSCAClassifier(budget, C=C, **fixed),
                "the paper's": BSCAClassifier(
                    budget, C=PAPER[name].C, relaxation=1.0, reprocess=0, tol=0.0, averaging=0, **fixed
                ),
            }
            curves: dict[str, list[float]] = {"BSCA": [], "its last iterate": [], "the paper's": []}
            rng = np.random.default_rng(0)
            for _ in range(args.epochs):
                X, y = split.shuffled(rng)
                for label, model in models.items():
                    model.learn_many(X, y)
                    found = accuracies(model, split.X_test, split.y_test)
                    curves[label].append(found["auto"])
                    if label == "BSCA":
                        curves["its last iterate"].append(found["last"])
            results[f"{name}, B = {budget}"] = curves
            progress(f"epochs: {name}, B = {budget} {curves['BSCA'][-1]:.2f} %")
    return results


def show_curves(results: dict[str, Any], path: Path) -> None:
    rows = []
    for label, curves in results.items():
        for name, curve in curves.items():
            late = curve[2:]
            below = max(late) - min(late)
            verdict = ("yes" if below <= SWING else "NO") if name == "BSCA" else ""
            rows.append((label, name, f"{curve[0]:.2f}", f"{max(curve):.2f}", f"{curve[-1]:.2f}", f"{below:.2f}", verdict))
    show(
        f"Accuracy over {len(curve)} epochs, %",
        ("set", "model", "first", "best", "last", "range from the third on", f"<= {SWING}"),
        rows,
    )
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    figure, axes = plt.subplots(2, len(results) // 2, figsize=(16, 7), constrained_layout=True)
    for axis, (label, curves) in zip(axes.T.ravel(), results.items(), strict=True):
        for name, curve in curves.items():
            axis.plot(range(1, len(curve) + 1), curve, label=name, linewidth=2.0 if name == "BSCA" else 1.0)
        axis.set_title(label)
        axis.set_xlabel("epoch")
        axis.set_ylabel("test accuracy, %")
    axes[0, 0].legend()
    figure.savefig(path.with_suffix(".png"), dpi=120)
    progress(f"drawn: {path.with_suffix('.png')}")


def main() -> None:
    parser = argument_parser(__doc__, "bsca_epochs")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    results = measure(args)
    write(args.out, {"epochs": results})
    show_curves(results, args.out)


if __name__ == "__main__":
    main()
