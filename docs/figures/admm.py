"""The duality gap of ADMM on a compressed kernel matrix over iterations, at several beta."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm.iteration import ADMMOptions, run_admm
from streamsvm.batch.problem import Bounds

rows = list(datasets.Bananas())[:3000]
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([1.0 if label else -1.0 for _, label in rows])
C = 10.0
bounds = Bounds(np.where(y > 0, 0.0, -C)[:, None], np.where(y > 0, C, 0.0)[:, None], C * y[:, None])
K = HSSMatrix.compress(X, gamma=1.0, rel_tol=0.01)
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 4.2), layout="constrained")
for beta, balance, relaxation, marker, name in (
    (100.0, False, 1.0, "o", "Beta 100, as in the paper"),
    (10.0, False, 1.6, "s", "Beta 10, relaxation 1.6"),
    (1.0, False, 1.6, "^", "Beta 1, relaxation 1.6"),
    (1.0, True, 1.6, "D", "Balanced, starting at 1"),
):
    gaps = []
    for iterations in (counts := [5, 10, 20, 40, 80, 160]):
        gaps.append(run_admm(K, bounds, ADMMOptions(beta, balance, relaxation, 1e-9, iterations, False)).gap[0])
    axis.plot(counts, gaps, marker=marker, label=name)
axis.set(xscale="log", yscale="log", xlabel="Iterations", ylabel="Relative duality gap")
axis.set_xticks(counts, [str(count) for count in counts])
axis.minorticks_off()
axis.grid(alpha=0.3)
axis.legend()
