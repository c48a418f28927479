"""Four strategies of budget maintenance at several budgets."""

import matplotlib.pyplot as plt
from river import datasets, evaluate, metrics

from streamsvm import BSGDClassifier
from streamsvm.core.budget import Merge, Projection, Removal

strategies = {
    "Merging": Merge(),
    "Projection": Projection(),
    "Removal of the smallest": Removal(),
    "Removal of a random one": Removal("random"),
}
budgets = [5, 10, 20, 40, 80]
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 4.4), layout="constrained")
for (name, strategy), style in zip(strategies.items(), ("o-", "s--", "^-", "D--"), strict=True):
    scores = []
    for budget in budgets:
        model = BSGDClassifier(budget, maintenance=strategy, seed=0)
        scores.append(100.0 * evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get())
    axis.plot(budgets, scores, style, label=name)
axis.set(xscale="log", xlabel="Budget", ylabel="Accuracy in %")
axis.set_xticks(budgets, [str(budget) for budget in budgets])
axis.minorticks_off()
axis.grid(alpha=0.3)
figure.legend(loc="outside upper center", ncols=2)
