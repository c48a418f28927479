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
figure, (diagram, counts) = plt.subplots(2, 1, figsize=(6.5, 7), sharex=True, height_ratios=[3, 1], layout="constrained")
diagram.plot([0, 1], [0, 1], color="grey", linestyle=":")
for name, model in models.items():
    said = np.empty(len(rows))
    for i, (x, y) in enumerate(rows):
        said[i] = model.predict_proba_one(x).get(True, 0.5)
        model.learn_one(x, y)
    bins = np.minimum((10 * said).astype(int), 9)
    n = np.bincount(bins, minlength=10)
    used = n >= 20  # the share of fewer rows is chance
    mean, share = (np.bincount(bins, of, 10)[used] / n[used] for of in (said, labels))
    error = np.sum(n[used] * np.abs(mean - share)) / len(rows)
    diagram.plot(mean, share, marker="o", label=f"{name}, error {100.0 * error:.1f} %")
    counts.stairs(n, np.arange(11) / 10, linewidth=2)
diagram.set(ylabel="share of True among the rows", title="What was said, and what came true")
diagram.legend()
counts.set(xlabel="probability of True that was said", ylabel="rows")
for axis in diagram, counts:
    axis.grid(alpha=0.3)

# %%
# A learner on the dotted line means what it says. Below the line it says too much, above it too little. The error is
# how far the points are from the line, on average over the rows. The lower picture shows how many rows were given
# which probability. Good probabilities are near the line, and most of them near 0 or 1: a learner that always says
# one half would be on the line, too, but say nothing.
