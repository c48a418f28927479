"""Plots the table of online methods on the page ``papers.md``."""

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

LINE = re.compile(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+)\s±\s([\d.]+) \| ([\d.]+) \| ([\d.]+)\s±\s([\d.]+) \|$", re.MULTILINE)

page = Path(sys.argv[0]).resolve().parents[1] / "papers.md"
lines = LINE.findall(page.read_text(encoding="utf-8"))[::-1]
names, places = [line[0] for line in lines], range(len(lines))
plt.style.use("seaborn-v0_8-colorblind")
figure, axes = plt.subplots(1, 2, figsize=(7, 4.6), sharey=True, layout="constrained")
for axis, name, first, limits in (axes[0], "a9a", 1, (65, 88)), (axes[1], "ijcnn1", 4, (89, 99)):
    paper, here, deviation = ([float(line[first + k]) for line in lines] for k in range(3))
    axis.errorbar(here, places, xerr=deviation, fmt="o", color="C0", label="This library")
    axis.plot(paper, places, "D", mfc="none", color="C2", ms=8, label="Paper")
    for place, value in zip(places, paper, strict=True):
        if value < limits[0]:
            arrow = {"arrowstyle": "->", "color": "C2"}
            axis.annotate(f"{value:g}", (limits[0], place), (limits[0] + 2, place), color="C2", va="center", arrowprops=arrow)
    axis.set(title=name, xlabel="Accuracy in %", xlim=limits)
    axis.grid(alpha=0.3)
axes[0].set_yticks(places, names)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
