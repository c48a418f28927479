"""Steps until the gap is below the tolerance, against C: plain and conjugate SMO."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm.batch import CSMOClassifier

rows = list(datasets.Bananas())[:2000]
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([label for _, label in rows])
costs = 10.0 ** np.arange(-1.0, 4.0)
figure, axes = plt.subplots(2, 1, figsize=(6, 6), sharex=True, layout="constrained", height_ratios=(3, 2))
for gamma, color in (0.1, "C0"), (1.0, "C2"):
    plain, conjugate = (
        np.array([CSMOClassifier(C=C, gamma=gamma, conjugate=conjugate).fit(X, y).n_iter_[0] for C in costs])
        for conjugate in (False, True)
    )
    axes[0].plot(costs, plain, marker="o", ls="--", color=color, label=f"SMO, gamma {gamma:g}")
    axes[0].plot(costs, conjugate, marker="o", color=color, label=f"conjugate SMO, gamma {gamma:g}")
    axes[1].plot(costs, conjugate / plain, marker="o", color=color, label=f"gamma {gamma:g}")
axes[0].set(xscale="log", yscale="log", ylabel="steps")
axes[1].set(xlabel="C", ylabel="part of SMO's steps", ylim=(0.0, 1.1))
for axis in axes:
    axis.grid(alpha=0.3)
    axis.legend()
