"""The cost of a budget: the primal objective after ten passes, above the dual objective of a model without merges."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm import BSCAClassifier
from streamsvm.learners.dual_ascent import DualSolution

rows = list(datasets.Bananas())[:2500]
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([label for _, label in rows])


def fit_model(budget: int, gamma: float) -> DualSolution:
    """Return the dual solution of a model after ten passes."""
    model = BSCAClassifier(budget, gamma=gamma, relaxation=1.0, tol=0.01, averaging=0, scaling=None, seed=0)
    return model.learn_epochs(X, y, epochs=10)


budgets = [20, 40, 80, 160, 320]
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for gamma, marker in (0.25, "o"), (1.0, "s"), (4.0, "^"):
    bound = fit_model(len(X), gamma).dual()
    costs = [100.0 * (fit_model(budget, gamma).primal() / bound - 1.0) for budget in budgets]
    axis.plot(budgets, costs, marker=marker, label=f"Gamma {gamma:g}")
axis.set(xscale="log", yscale="log", xlabel="Budget", ylabel="Objective above the bound in %")
axis.yaxis.set_major_formatter("{x:g}")
axis.set_xticks(budgets, [str(budget) for budget in budgets])
axis.minorticks_off()
axis.grid(alpha=0.3)
axis.legend()
