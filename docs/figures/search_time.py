"""CPU time of a row that brings a merge, by search and budget: labels are drawn at random, so that hardly a row fits."""

import time

import matplotlib.pyplot as plt
import numpy as np

from streamsvm import BSGDClassifier
from streamsvm.budget import Merge

rng = np.random.default_rng(0)
X, y = rng.normal(size=(3000, 4)), rng.random(3000) < 0.5
budgets, searches = [100, 200, 400], ["gss-precise", "gss", "lookup-h", "lookup-wd"]
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for search in searches:
    micros = []
    for budget in budgets:
        model = BSGDClassifier(budget, gamma=0.5, maintenance=Merge(search), scaling=None, averaging=0)
        model.learn_many(X[:1000], y[:1000])
        before, start = model.n_merges, time.process_time()
        model.learn_many(X[1000:], y[1000:])
        micros.append(1e6 * (time.process_time() - start) / (model.n_merges - before))
    axis.plot(budgets, micros, marker="o", label=search)
axis.set(xlabel="budget", ylabel="microseconds a merge", yscale="log")
axis.set_xticks(budgets)
axis.grid(alpha=0.3, which="both")
axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1))
