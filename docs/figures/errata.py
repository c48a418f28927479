"""What two errata of the merge cost: m of the other partner, and a table that lies across the jump of h."""

import matplotlib.pyplot as plt
import numpy as np

from streamsvm.core.budget.merge_table import GRID, compute_degradation, search_positions


def best(m: np.ndarray, q: float) -> np.ndarray:
    """The best position for any m in [0, 1]."""
    h = search_positions(np.maximum(m, 1.0 - m), np.array(q))
    return np.where(m < 0.5, 1.0 - h, h)


def factor(m: np.ndarray, q: float, h: np.ndarray) -> np.ndarray:
    """The weight degradation at h over that at the best position."""
    a, b = 1.0 - m, m
    return compute_degradation(a**2, b**2, a * b, q, h) / compute_degradation(a**2, b**2, a * b, q, best(m, q))


plt.style.use("seaborn-v0_8-colorblind")
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 6.4), layout="constrained")
m = np.linspace(0.5, 0.95, 200)
for kappa, style in (0.9, "-"), (0.5, "--"), (0.2, "-."):
    q = -np.log(kappa)
    top.plot(m, factor(m, q, best(1.0 - m, q)), style, label=f"Kernel value {kappa:g}")
top.set(yscale="log", title="h found for the other partner's m")
even = np.linspace(0.0, 1.0, GRID)
m = np.linspace(0.495, 0.505, 801)
for kappa, style in (0.1, "-"), (0.01, "--"), (0.001, "-."):
    q = -np.log(kappa)
    bottom.plot(m, factor(m, q, np.interp(m, even, best(even, q))), style, label=f"Kernel value {kappa:g}")
bottom.set(title=f"h interpolated from {GRID} points in [0, 1]")
for axis in (top, bottom):
    axis.set(xlabel="m", ylabel="Degradation / least possible")
    axis.grid(alpha=0.3)
    axis.legend()
