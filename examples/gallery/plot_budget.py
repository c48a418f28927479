"""Accuracy against budget and time
================================

More support vectors decide better, but cost more time. How many are enough? Each learner passes once over the rows of
river's Bananas, and predicts each row before it learns it.
"""

import time

import matplotlib.pyplot as plt
from river import datasets, evaluate, metrics, neighbors, tree

from streamsvm import BSCAClassifier, BSGDClassifier, SVMClassifier

rows = list(datasets.Bananas())


def measure_model(model):
    """Return the accuracy in percent, and the CPU time of a row in microseconds."""
    start = time.process_time()
    score = evaluate.progressive_val_score(rows, model, metrics.Accuracy())
    return 100.0 * score.get(), 1e6 * (time.process_time() - start) / len(rows)


def measure_fastest(make, budget):
    """Return the accuracy and the time of the fastest of three passes."""
    return min((measure_model(make(budget=budget, seed=0)) for _ in range(3)), key=lambda accuracy_and_time: accuracy_and_time[1])


budgets = [5, 10, 20, 50, 100, 200, 500, 1000]
plt.style.use("seaborn-v0_8-colorblind")
figure, (by_budget, by_time) = plt.subplots(2, 1, figsize=(6.5, 8), sharey=True, layout="constrained")
for make, style in (BSCAClassifier, "o-"), (BSGDClassifier, "v--"):
    scores, times = zip(*(measure_fastest(make, budget) for budget in budgets), strict=True)
    by_budget.plot(budgets, scores, style, label=make.__name__)
    by_time.plot(times, scores, style, label=make.__name__)
measure_model(SVMClassifier(seed=0))  # load the compiled functions first
other_models = {
    "SVMClassifier": SVMClassifier(seed=0),
    "river's HoeffdingTreeClassifier": tree.HoeffdingTreeClassifier(),
    "river's KNNClassifier": neighbors.KNNClassifier(),
}
for number, (name, model) in enumerate(other_models.items()):
    score, microseconds = measure_model(model)
    by_time.plot(microseconds, score, "*sD"[number], color=("C2", "C3", "C5")[number], markersize=10, label=name)
by_budget.set(xscale="log", xlabel="Budget (maximum number of support vectors)", ylabel="Accuracy in %")
by_budget.legend()
by_budget.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
by_budget.minorticks_off()
by_time.set(xscale="log", xlabel="CPU time per row in microseconds", ylabel="Accuracy in %")
by_time.xaxis.set_major_formatter("{x:g}")
by_time.legend(loc="lower right")
for axis in by_budget, by_time:
    axis.grid(alpha=0.3)

# %%
# **Above:** from about 50 support vectors on, the curves are flat. The boundary of this stream needs no more.
#
# **Below:** the same points against the time that they cost, together with other learners. Up and to the left is
# better. Up to about a hundred support vectors cost hardly more than five, because the calls from Python take most of
# a row's time. The times come from the machine that built this page, and include everything that a row costs, even the
# metric.
