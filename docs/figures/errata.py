"""The cost of two errata of the merge: m of the other partner, and interpolation across the jump of h."""

import matplotlib.pyplot as plt
import numpy as np
from merge_tables import search_positions

from streamsvm.core.budget.merge_table import GRID, compute_degradation


def find_best_position(m: np.ndarray, q: float) -> np.ndarray:
    """Return the best position for any m in [0, 1]."""
    h = search_positions(np.maximum(m, 1.0 - m), np.array(q))
    return np.where(m < 0.5, 1.0 - h, h)


def compute_loss_factor(m: np.ndarray, q: float, h: np.ndarray) -> np.ndarray:
    """Return the weight degradation at h, divided by that at the best position."""
    a, b = 1.0 - m, m
    return compute_degradation(a**2, b**2, a * b, q, h) / compute_degradation(a**2, b**2, a * b, q, find_best_position(m, q))


plt.style.use("seaborn-v0_8-colorblind")
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 6.4), layout="constrained")
m = np.linspace(0.5, 0.95, 200)
for kappa, style in (0.9, "-"), (0.5, "--"), (0.2, "-."):
    q = -np.log(kappa)
    top.plot(m, compute_loss_factor(m, q, find_best_position(1.0 - m, q)), style, label=f"Kernel value {kappa:g}")
top.set(yscale="log", title="h found for the other partner's m")
even = np.linspace(0.0, 1.0, GRID)
m = np.linspace(0.495, 0.505, 801)
for kappa, style in (0.1, "-"), (0.01, "--"), (0.001, "-."):
    q = -np.log(kappa)
    bottom.plot(
        m, compute_loss_factor(m, q, np.interp(m, even, find_best_position(even, q))), style, label=f"Kernel value {kappa:g}"
    )
bottom.set(title=f"h interpolated from {GRID} points in [0, 1]")
for axis in (top, bottom):
    axis.set(xlabel="m", ylabel="Degradation / least possible")
    axis.grid(alpha=0.3)
    axis.legend()
