"""The error of a compressed kernel matrix against its rank, at several widths of the kernel."""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm.batch.hss import HSSMatrix

X = np.array([list(x.values()) for x, _ in datasets.Phishing()])
X = (X - X.mean(axis=0)) / X.std(axis=0)
ranks = [5, 10, 20, 40, 80]
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 4.2), layout="constrained")
for gamma, marker in (0.01, "o"), (0.1, "s"), (1.0, "^"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        matrices = [HSSMatrix.compress(X, gamma=gamma, rel_tol=None, max_rank=rank, leaf_size=128) for rank in ranks]
    axis.plot(ranks, [K.error for K in matrices], marker=marker, label=f"Gamma {gamma:g}")
axis.set(xscale="log", yscale="log", xlabel="Rank", ylabel="Relative error |K - K~| / |K|")
axis.set_xticks(ranks, [str(rank) for rank in ranks])
axis.minorticks_off()
axis.grid(alpha=0.3)
axis.legend()
