"""The two tables that a merge reads, as pictures."""

import matplotlib.pyplot as plt
import numpy as np

from streamsvm.core.budget.merge_table import load_tables

figure, axes = plt.subplots(2, 1, figsize=(6, 6.6), sharex=True, layout="constrained")
names = "Best position h*", "Scaled weight degradation"
ticks = [0.0, 0.1, 0.5, 1.0, 2.0, 5.0]  # of q
for axis, table, name in zip(axes, load_tables(), names, strict=True):
    image = axis.imshow(table, origin="lower", extent=(0.0, 1.0, 0.5, 1.0), aspect="auto", cmap="viridis")
    figure.colorbar(image, ax=axis)
    axis.set(title=name, ylabel="m")
jump = 2.0 / 3.0  # u at q = 2, where the kernel value is e^-2
axes[0].plot([jump, 1.0], [0.5, 0.5], color="k", lw=6)
axes[0].annotate("h jumps at this edge", (0.86, 0.505), (0.62, 0.58), arrowprops={"arrowstyle": "->"})
axes[1].set_xticks([q / (1.0 + q) for q in ticks] + [1.0], [f"{np.exp(-q):.2g}" for q in ticks] + ["0"])
axes[1].set_xlabel("Kernel value κ of the two\n(nonlinear axis: even steps of u)")
