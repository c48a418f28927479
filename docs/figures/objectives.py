"""Primal and dual objectives over passes: of BSCA at two budgets, and of BSGD with the same kernel and C."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.kernels import RBF, kernel_matrix

C, gamma, passes = 1.0, 1.0, 12
rows = list(datasets.Bananas())
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([1.0 if label else -1.0 for _, label in rows])


def primal(model: BSGDClassifier) -> float:
    """The primal objective of the last iterate."""
    S, a = model.support_vectors.astype(float), model.coefficients[0]
    losses = np.maximum(1.0 - y * model.decision_function_many(X), 0.0)
    return float(0.5 * a @ kernel_matrix(RBF, gamma, 0.0, 1, S, S) @ a + C * losses.sum())


figure, axis = plt.subplots(figsize=(6, 4.2), layout="constrained")
seen = len(X) * np.arange(1, passes + 1)
for budget, color in (20, "C0"), (100, "C2"):
    values: list[tuple[float, float]] = []
    model = BSCAClassifier(budget, C=C, gamma=gamma, relaxation=1.0, tol=0.01, averaging=0, scaling=None, seed=0)
    model.learn_epochs(X, y > 0, epochs=passes, on_epoch=lambda now, into=values: into.append((now.primal(), now.dual())))
    above, below = np.array(values).T
    axis.plot(seen[: len(above)], above, color=color, label=f"BSCA, budget {budget}: primal")
    axis.plot(seen[: len(below)], below, color=color, ls="--", label=f"BSCA, budget {budget}: dual")
descent = BSGDClassifier(100, l2=1.0 / (len(X) * C), learning_rate="pegasos", gamma=gamma, averaging=0, scaling=None, seed=0)
rng, values = np.random.default_rng(0), []
for _ in range(passes):
    order = rng.permutation(len(X))
    descent.learn_many(X[order], y[order] > 0)
    values.append(primal(descent))
axis.plot(seen, values, color="C1", label="BSGD, budget 100: primal")
axis.set(xlabel="rows learned", ylabel="objective", ylim=(500, 2500))
axis.grid(alpha=0.3)
axis.legend(fontsize=9)
