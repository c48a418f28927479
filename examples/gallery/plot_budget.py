"""Accuracy against budget
=======================

More support vectors decide better, and cost more time. How many are enough? Each learner takes the rows of river's Bananas in one
pass, and predicts each row before it learns it.
"""

import matplotlib.pyplot as plt
from river import datasets, evaluate, metrics

from streamsvm import BSCAClassifier, BSGDClassifier

budgets = [5, 10, 20, 50, 100, 200]
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for make in BSCAClassifier, BSGDClassifier:
    scores = [evaluate.progressive_val_score(datasets.Bananas(), make(budget=b), metrics.Accuracy()).get() for b in budgets]
    axis.plot(budgets, [100.0 * score for score in scores], marker="o", label=make.__name__)
axis.set(xscale="log", xlabel="budget", ylabel="accuracy in %", title="Each row is predicted before it is learned")
axis.set_xticks(budgets, [str(budget) for budget in budgets])
axis.minorticks_off()
axis.grid(alpha=0.3)
axis.legend()

# %%
# The curve is flat from some 50 support vectors on: the boundary of this stream needs no more. Time grows with the budget.
