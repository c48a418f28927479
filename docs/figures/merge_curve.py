"""Merging two Gaussians: the position of the merged one, and the loss of weight.

`search_positions` of release/merge_tables.py computes the position, and `compute_degradation` the weight degradation.
"""

import matplotlib.pyplot as plt
import numpy as np
from merge_tables import search_positions

from streamsvm.core.budget.merge_table import compute_degradation

plt.style.use("seaborn-v0_8-colorblind")
figure, axes = plt.subplots(2, 2, figsize=(6, 5.8), layout="constrained")
a, b = 0.8, 1.0  # coefficients; b is the larger one
m = b / (a + b)
x, h = np.linspace(-3.5, 3.5, 400), np.linspace(0.0, 1.0, 400)
for (top, bottom), distance in zip(axes.T, (1.0, 2.4), strict=True):
    q = distance**2  # with gamma = 1
    best = float(search_positions(np.array(m), np.array(q)))
    s = m * np.exp(-((1.0 - h) ** 2) * q) + (1.0 - m) * np.exp(-(h**2) * q)
    height = (a + b) * (m * np.exp(-((1.0 - best) ** 2) * q) + (1.0 - m) * np.exp(-(best**2) * q))
    lost = compute_degradation(a**2, b**2, a * b, q, best) / (a**2 + b**2 + 2.0 * a * b * np.exp(-q))
    first, second = -0.5 * distance, 0.5 * distance
    total = a * np.exp(-((x - first) ** 2)) + b * np.exp(-((x - second) ** 2))
    top.plot(x, total, color="k", label="Both")
    top.plot(x, height * np.exp(-((x - first - best * distance) ** 2)), color="C2", ls="--", label="Merged")
    top.plot([first, second], [a, b], "o", color="k", ms=4)
    top.plot([first + best * distance], [height], "D", color="C2", ms=5)
    top.set(title=f"Kernel value {np.exp(-q):.2g}:\n{100.0 * lost:.0f} % lost", xlabel="x", ylim=(0.0, 2.1))
    bottom.plot(h, s, color="C0")
    bottom.plot([best], [height / (a + b)], "D", color="C2", label=f"h* = {best:.2f}")
    bottom.set(xlabel="h", ylim=(0.0, 1.0))
    bottom.legend(loc="lower center")
axes[0, 0].set_ylabel("Decision value")
axes[1, 0].set_ylabel("s(h)")
axes[0, 0].legend(loc="upper left")
