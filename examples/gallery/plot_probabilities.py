"""Reliability of probabilities
============================

A learner says 0.8 for many rows. Is the label the one it names in 80 percent of them? Each row is given a probability
before it is learned; the rows are put into ten bins by that, and each bin shows how often the label was indeed True.
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
figure, axes = plt.subplots(
    2, len(models), figsize=(11, 4.6), sharex=True, sharey="row", height_ratios=[3, 1], layout="constrained"
)
for (name, model), (diagram, counts) in zip(models.items(), axes.T, strict=True):
    said = np.empty(len(rows))
    for i, (x, y) in enumerate(rows):
        said[i] = model.predict_proba_one(x).get(True, 0.5)
        model.learn_one(x, y)
    bins = np.minimum((10 * said).astype(int), 9)
    n = np.bincount(bins, minlength=10)
    used = n >= 20  # the share of fewer rows is chance
    mean, share = (np.bincount(bins, of, 10)[used] / n[used] for of in (said, labels))
    error = np.sum(n[used] * np.abs(mean - share)) / len(rows)
    diagram.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle=":")
    diagram.plot(mean, share, marker="o")
    diagram.set_title(f"{name}\nerror {100.0 * error:.1f} %", fontsize="medium")
    counts.bar(np.arange(10) / 10 + 0.05, n, width=0.09)
    counts.set(xlabel="probability of True", xticks=[0, 0.5, 1])
    for axis in diagram, counts:
        axis.grid(alpha=0.3)
axes[0, 0].set_ylabel("share of True")
axes[1, 0].set_ylabel("rows")

# %%
# A learner on the dotted line means what it says. Below the line it says too much, above it too little. The error is
# how far the points are from the line, on average over the rows. The bars below show how many rows have which
# probability: a learner that always says one half would lie on the line, too, but say nothing. Good probabilities are
# near the line, and most of them near 0 or 1.
