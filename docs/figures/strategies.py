"""Four strategies of budget maintenance at several budgets."""

import matplotlib.pyplot as plt
from river import datasets, evaluate, metrics

from streamsvm import BSGDClassifier
from streamsvm.budget import Merge, Projection, Removal

strategies = {
    "merge": Merge(),
    "projection": Projection(),
    "removal of the smallest": Removal(),
    "of a random one": Removal("random"),
}
budgets = [5, 10, 20, 40, 80]
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for name, strategy in strategies.items():
    scores = []
    for budget in budgets:
        model = BSGDClassifier(budget, maintenance=strategy, seed=0)
        scores.append(100.0 * evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get())
    axis.plot(budgets, scores, marker="o", label=name)
axis.set(xscale="log", xlabel="budget", ylabel="accuracy in %")
axis.set_xticks(budgets, [str(budget) for budget in budgets])
axis.minorticks_off()
axis.grid(alpha=0.3)
axis.legend()
