"""Steps until the gap is below the tolerance, against C: plain and conjugate SMO."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm.batch import CSMOClassifier

rows = list(datasets.Bananas())[:2000]
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([label for _, label in rows])
costs = 10.0 ** np.arange(-1.0, 4.0)
plt.style.use("seaborn-v0_8-colorblind")
figure, axes = plt.subplots(2, 1, figsize=(6, 6), sharex=True, layout="constrained", height_ratios=(3, 2))
for gamma, color, marker in (0.1, "C0", "o"), (1.0, "C2", "s"):
    plain, conjugate = (
        np.array([CSMOClassifier(C=C, gamma=gamma, conjugate=conjugate).fit(X, y).n_iter_[0] for C in costs])
        for conjugate in (False, True)
    )
    axes[0].plot(costs, plain, marker=marker, ls="--", color=color, label=f"SMO, gamma {gamma:g}")
    axes[0].plot(costs, conjugate, marker=marker, color=color, label=f"CSMO, gamma {gamma:g}")
    axes[1].plot(costs, conjugate / plain, marker=marker, color=color, label=f"Gamma {gamma:g}")
axes[0].set(xscale="log", yscale="log", ylabel="Steps")
axes[1].set(xlabel="C", ylabel="Steps of CSMO /\nsteps of SMO", ylim=(0.0, 1.1))
axes[0].yaxis.set_major_formatter("{x:,.0f}")
axes[1].xaxis.set_major_formatter("{x:,g}")
for axis in axes:
    axis.grid(alpha=0.3)
    axis.legend()
