"""Accuracy against time on 17 streams: the first table of streams of the page ``figures.md`` as a plot."""

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

LINE = re.compile(r"^\| (.+?) \| [\d.]+ \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|$", re.MULTILINE)
OURS = ("SVM", "BSGD", "BSCA")

page = Path(sys.argv[0]).resolve().parents[1] / "figures.md"
_, _, table = page.read_text(encoding="utf-8").partition("| mean of 17 streams |")
lines = [
    (name.replace("`", ""), float(accuracy), float(time)) for name, accuracy, time in LINE.findall(table.partition("\n\n")[0])
]
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
for kind, marker, ours in (("streamsvm", "o", True), ("river", "D", False)):
    points = [(time, accuracy) for name, accuracy, time in lines if name.startswith(OURS) == ours]
    axis.scatter(*zip(*points, strict=True), s=70, marker=marker, color="C0" if ours else "C2", label=kind, zorder=3)
for name, accuracy, time in lines:
    below = name == "BSCAClassifier"  # which is beside BSGDClassifier
    where = (
        {"ha": "right", "xytext": (-9, 0)} if time > 300 else {"ha": "left", "xytext": (9, -5 if below else 3 if time < 7 else 0)}
    )
    axis.annotate(name.removeprefix("river's "), (time, accuracy), textcoords="offset points", va="center", fontsize=9, **where)
axis.set(xscale="log", xlim=(4, 1500), ylim=(77, 94), xlabel="Microseconds a row", ylabel="Accuracy in %")
axis.xaxis.set_major_formatter("{x:g}")
axis.set_title("Up and to the left is better", loc="left", fontsize=10)
axis.grid(alpha=0.3, which="both")
axis.legend(loc="lower right")
