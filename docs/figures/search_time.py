"""CPU time of a row that causes a merge, by search and budget. Labels are random, so that almost every row causes one."""

import time

import matplotlib.pyplot as plt
import numpy as np

from streamsvm import BSGDClassifier
from streamsvm.core.budget import Merge

rng = np.random.default_rng(0)
X, y = rng.normal(size=(3000, 4)), rng.random(3000) < 0.5
budgets, searches = [100, 200, 400], ["gss-precise", "gss", "lookup-h", "lookup-wd"]
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 4.4), layout="constrained")
for search, marker in zip(searches, "os^D", strict=True):
    micros = []
    for budget in budgets:
        model = BSGDClassifier(budget, gamma=0.5, maintenance=Merge(search), scaling=None, averaging=0)
        model.learn_many(X[:1000], y[:1000])
        before, start = model.n_merges, time.process_time()
        model.learn_many(X[1000:], y[1000:])
        micros.append(1e6 * (time.process_time() - start) / (model.n_merges - before))
    axis.plot(budgets, micros, marker=marker, label=search)
axis.set(xlabel="Budget", ylabel="Microseconds per merge", yscale="log")
axis.set_xticks(budgets)
axis.yaxis.set_major_formatter("{x:g}")
axis.grid(alpha=0.3, which="both")
figure.legend(loc="outside upper center", ncols=2)
