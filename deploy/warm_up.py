"""Compiles what learners and followers need, into numba's cache, and sees that they work: run while an image is built."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from streamsvm.cli.main import main

ROWS = 300
BUDGET = ["--budget", "20"]  # so that support vectors are merged, too
MODELS: dict[str, list[str]] = {"auto": [], "bsgd": BUDGET, "bsca": BUDGET, "linear": []}


def run(words: list[str]) -> None:
    """Call the command line; end with its status if it fails."""
    if status := main(words):
        sys.exit(status)


if __name__ == "__main__":
    rng = random.Random(0)  # noqa: S311
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, predictions = folder / "rows.csv", folder / "predictions.csv"
        points = [(rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)) for _ in range(ROWS)]
        rows.write_text("a,b,y\n" + "".join(f"{a},{b},{int(a * b > 0.0)}\n" for a, b in points))
        for model, flags in MODELS.items():
            for kind in ([], ["--regression"]):
                state = folder / "-".join([model, *kind])
                learn = ["learn", str(rows), "--label", "y", "--model", model, *flags, *kind, "--quiet"]
                run([*learn, "--checkpoint", str(state)])
                run(["predict", str(rows), "--model", str(state), "--to", str(predictions), "--quiet"])
