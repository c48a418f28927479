"""Primal and dual objectives over passes: of BSCA at two budgets, and of BSGD with the same kernel and C."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.core.kernels import RBF, compute_kernel_matrix

C, gamma, passes = 1.0, 1.0, 12
rows = list(datasets.Bananas())
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([1.0 if label else -1.0 for _, label in rows])


def compute_primal(model: BSGDClassifier) -> float:
    """Return the primal objective of the last iterate."""
    S, a = model.support_vectors.astype(float), model.coefficients[0]
    losses = np.maximum(1.0 - y * model.decision_function_many(X), 0.0)
    return float(0.5 * a @ compute_kernel_matrix(RBF, gamma, 0.0, 1, S, S) @ a + C * losses.sum())


plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 5), layout="constrained")
for budget, color, marker in (20, "C0", "o"), (100, "C1", "s"):
    values: list[tuple[float, float]] = []
    model = BSCAClassifier(budget, C=C, gamma=gamma, relaxation=1.0, tol=0.01, averaging=0, scaling=None, seed=0)
    model.learn_epochs(X, y > 0, epochs=passes, on_epoch=lambda now, into=values: into.append((now.primal(), now.dual())))
    above, below = np.array(values).T
    axis.plot(range(1, len(above) + 1), above, color=color, marker=marker, label=f"BSCA, budget {budget}: primal")
    axis.plot(range(1, len(below) + 1), below, "--", color=color, marker=marker, label=f"BSCA, budget {budget}: dual")
descent = BSGDClassifier(100, l2=1.0 / (len(X) * C), learning_rate="pegasos", gamma=gamma, averaging=0, scaling=None, seed=0)
rng, values = np.random.default_rng(0), []
for _ in range(passes):
    order = rng.permutation(len(X))
    descent.learn_many(X[order], y[order] > 0)
    values.append(compute_primal(descent))
axis.plot(range(1, passes + 1), values, color="C2", marker="^", label="BSGD, budget 100: primal")
axis.set(xlabel=f"Passes over the {len(X):,} rows", ylabel="Objective", ylim=(500, 1650), xticks=range(1, passes + 1))
axis.yaxis.set_major_formatter("{x:,.0f}")
axis.grid(alpha=0.3)
figure.legend(loc="outside upper center", ncols=2)
