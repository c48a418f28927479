"""Reliability of probabilities
============================

A learner gives many rows a probability of 0.8. Are 80 percent of those rows really True? Each row gets a probability
before it is learned. The rows are then sorted into ten bins by their probability, and each point shows how often the
label of the rows in a bin was True.
"""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets, naive_bayes, tree

from streamsvm import BSCAClassifier, SVMClassifier

models = {
    "SVMClassifier": SVMClassifier(seed=0),
    "BSCAClassifier": BSCAClassifier(seed=0),
    "river's GaussianNB": naive_bayes.GaussianNB(),
    "river's HoeffdingTreeClassifier": tree.HoeffdingTreeClassifier(),
}
rows = list(datasets.Bananas())
labels = np.array([y for _, y in rows])
plt.style.use("seaborn-v0_8-colorblind")
figure, (diagram, counts) = plt.subplots(2, 1, figsize=(6.5, 7), sharex=True, height_ratios=[3, 1], layout="constrained")
diagram.plot([0, 1], [0, 1], color="grey", linewidth=1)
for (name, model), marker, style in zip(models.items(), "os^D", ("-", "--", "-.", ":"), strict=True):
    probabilities = np.empty(len(rows))
    for i, (x, y) in enumerate(rows):
        probabilities[i] = model.predict_proba_one(x).get(True, 0.5)
        model.learn_one(x, y)
    bins = np.minimum((10 * probabilities).astype(int), 9)
    n = np.bincount(bins, minlength=10)
    used = n >= 20  # the share of fewer rows is chance
    mean, share = (np.bincount(bins, values, 10)[used] / n[used] for values in (probabilities, labels))
    error = np.sum(n[used] * np.abs(mean - share)) / len(rows)
    diagram.plot(mean, share, marker=marker, linestyle=style, label=f"{name}, error {100.0 * error:.1f} %")
    counts.stairs(n, np.arange(11) / 10, linewidth=2, linestyle=style)
diagram.set(ylabel="Share of rows that are True", title="Predicted probabilities and observed shares")
diagram.legend()
counts.set(xlabel="Predicted probability of True", ylabel="Rows")
counts.yaxis.set_major_formatter("{x:,.0f}")
for axis in diagram, counts:
    axis.grid(alpha=0.3)

# %%
# **Above:** on the straight grey line, the probabilities are right. Below the line, they are too high, and above it, too low.
# The error is the distance of the points from the line, on average over the rows.
#
# **Below:** how many rows got which probability. Good probabilities lie near the grey line, and most of them are near
# 0 or 1. A learner that always answers one half would lie on the line, too, but tell you nothing.
